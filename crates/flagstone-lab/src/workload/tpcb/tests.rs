use std::collections::BTreeMap;

use flagstone_engine::Options;
use flagstone_engine::blocking::Database;
use flagstone_nand::{Profile, SimNand};

use super::*;
use crate::workload::stuttering::Stuttering;
use crate::workload::{Outcome, Workload as _};

const INPUT_COUNT: u64 = 200_000;

fn tpcb(dialect: Dialect, scale: u32) -> Tpcb {
    Tpcb { dialect, scale, seed: 7 }
}

fn inputs(tpcb: Tpcb) -> impl Iterator<Item = Inputs> {
    let mut stream = tpcb.stream(0);
    (0..INPUT_COUNT).map(move |_| stream.inputs())
}

/// Share of transactions whose account lies outside the teller's branch.
fn remote_share(tpcb: Tpcb) -> f64 {
    let is_remote = |one: &Inputs| one.account / ACCOUNTS_PER_BRANCH != one.branch;
    inputs(tpcb).filter(is_remote).count() as f64 / INPUT_COUNT as f64
}

#[test]
fn spec_sends_15_percent_of_the_accounts_to_other_branches() {
    assert!((remote_share(tpcb(Dialect::Spec, 10)) - 0.15).abs() < 0.005);
    assert_eq!(remote_share(tpcb(Dialect::Spec, 1)), 0.0);
}

#[test]
fn spec_draws_tellers_uniformly_and_their_branch_with_them() {
    let tpcb = tpcb(Dialect::Spec, 3);
    let mut counts = [0_u64; 30];
    for one in inputs(tpcb) {
        assert_eq!(one.branch, one.teller / TELLERS_PER_BRANCH);
        assert!(one.account < tpcb.account_count(), "spec accounts exist");
        assert!(one.delta.abs() <= 999_999);
        counts[one.teller as usize] += 1;
    }
    let expected = INPUT_COUNT as f64 / 30.0;
    let chi_square: f64 = counts.iter().map(|n| (*n as f64 - expected).powi(2) / expected).sum();
    assert!(chi_square < 58.3, "29 degrees of freedom, 0.1 %: {chi_square}");
}

#[test]
fn shore_kits_reaches_one_branch_too_many() {
    // Of 101 draws 15 are remote; of these, one branch in `scale + 1` does not exist and one is the
    // home branch after all.
    let tpcb = tpcb(Dialect::ShoreKits, 4);
    let absent = inputs(tpcb).filter(|one| one.account >= tpcb.account_count()).count();
    let expected = INPUT_COUNT as f64 * 15.0 / 101.0 / 5.0;
    assert!((absent as f64 - expected).abs() < 4.0 * expected.sqrt(), "{absent} of {expected}");
    let remote = 15.0 / 101.0 * 4.0 / 5.0;
    assert!((remote_share(tpcb) - remote).abs() < 0.005);
}

#[test]
fn shore_kits_local_is_all_local() {
    assert_eq!(remote_share(tpcb(Dialect::ShoreKitsLocal, 4)), 0.0);
}

#[test]
fn shore_kits_draws_a_million_either_way() {
    let deltas = || inputs(tpcb(Dialect::ShoreKits, 1)).map(|one| one.delta);
    assert!(deltas().all(|delta| delta.abs() <= 1_000_000));
    assert!(deltas().any(|delta| delta.abs() > 999_990));
}

#[test]
fn dialects_are_found_by_name() {
    for dialect in Dialect::ALL {
        assert_eq!(Dialect::named(dialect.name()), Some(dialect));
    }
    assert_eq!(Dialect::named("spec2"), None);
}

#[test]
fn balances_survive_both_encodings() {
    for kind in [BalanceKind::Integer, BalanceKind::Float] {
        for amount in [0, 1, -1, 999_999, -123_456_789_012] {
            assert_eq!(kind.decode(&kind.encode(amount)), amount);
        }
    }
    assert_eq!(BalanceKind::Integer.decode(&[1, 2]), 0, "short rows hold nothing");
}

#[test]
fn history_keys_sort_by_client_then_sequence() {
    let key = |client, sequence| HistoryKey { client, sequence };
    assert!(key(1, u64::MAX).encode() < key(2, 0).encode());
    assert!(key(1, 255).encode() < key(1, 256).encode());
    assert_eq!(HistoryKey::decode(&key(3, 9).encode()), Some(key(3, 9)));
    assert_eq!(HistoryKey::decode(b"short"), None);
}

/// Tables of an empty database, for their names only.
fn tables() -> Tables {
    let profile = Profile::named("slc-2k").expect("the profile exists");
    let device = SimNand::new(&profile, 0);
    let database = Database::create_on(device, &Options::default()).expect("a fresh database");
    Tables::open(|name| database.table(name)).expect("four tables")
}

/// Goal: transactions that stop at every operation still do exactly their work, in the order of
/// rule T1, and the four sums agree. Method: a map that refuses every operation once.
#[test]
fn a_transfer_goes_on_where_it_stopped_and_the_sums_agree() {
    for dialect in Dialect::ALL {
        let tpcb = tpcb(dialect, 1);
        let tables = tables();
        let mut engine = Stuttering::default();
        for row in tpcb.rows(tables) {
            engine.load(row.table, &row.key, &row.value);
        }
        let mut stream = tpcb.stream(3);
        let mut committed = 0;
        for _ in 0..200 {
            let history = HistoryKey { client: 3, sequence: committed };
            let inputs = stream.inputs();
            let mut transfer = Transfer::new(dialect.balance_kind(), inputs, history);
            let outcome = loop {
                if let Ok(outcome) = transfer.advance(&tables, &mut engine) {
                    break outcome;
                }
            };
            let exists = inputs.account < tpcb.account_count();
            assert_eq!(outcome == Outcome::Commit, exists);
            committed += u64::from(exists);
        }
        let Tables { account, history, teller, branch } = tables;
        let order = [account, account, history, teller, teller, branch, branch];
        let first_ready = &engine.trace[..7];
        assert!(dialect != Dialect::Spec || first_ready == order, "rule T1");
        let sums = scan(&tpcb, &tables, &engine);
        sums.verify(&BTreeMap::from([(3, vec![committed])])).expect("the sums agree");
        let lost = sums.verify(&BTreeMap::from([(3, vec![committed + 1])]));
        assert!(matches!(lost, Err(SumsFault::Lost { .. })), "a missing commit is seen");
    }
}

fn scan(tpcb: &Tpcb, tables: &Tables, engine: &Stuttering) -> Sums {
    let mut sums = Sums::new(tpcb);
    engine.tables[&tables.branch].values().for_each(|value| sums.add_branch(value));
    engine.tables[&tables.teller].values().for_each(|value| sums.add_teller(value));
    engine.tables[&tables.account].values().for_each(|value| sums.add_account(value));
    let history = &engine.tables[&tables.history];
    history.iter().for_each(|(key, value)| sums.add_history(key, value));
    sums
}

#[test]
fn a_half_applied_transfer_breaks_the_sums() {
    let tpcb = Tpcb { dialect: Dialect::Spec, scale: 0, seed: 0 };
    let mut sums = Sums::new(&tpcb);
    sums.add_branch(&BalanceKind::Integer.encode(5));
    sums.add_teller(&BalanceKind::Integer.encode(5));
    let nobody = BTreeMap::new();
    assert!(matches!(sums.verify(&nobody), Err(SumsFault::Unequal { branches: 5, .. })));
    sums.accounts = 5;
    let inputs = Inputs { account: 0, teller: 0, branch: 0, delta: 5 };
    let row = HistoryRow { inputs, time: 1 };
    let key = HistoryKey { client: 0, sequence: 1 };
    sums.add_history(&key.encode(), &row.encode(BalanceKind::Integer));
    assert!(matches!(sums.verify(&nobody), Err(SumsFault::Gap { client: 0, sequence: 1 })));
}

#[test]
fn a_fresh_database_has_the_rows_of_the_specification() {
    let tpcb = tpcb(Dialect::Spec, 2);
    let tables = tables();
    let rows: Vec<Row> = tpcb.rows(tables).collect();
    assert_eq!(rows.len() as u64, tpcb.row_count());
    let count = |table| rows.iter().filter(|row| row.table == table).count();
    let counts = [count(tables.account), count(tables.teller), count(tables.branch)];
    assert_eq!(counts, [200_000, 20, 2]);
    for pair in rows.windows(2) {
        assert!(pair[0].table != pair[1].table || pair[0].key < pair[1].key, "sorted load");
    }
}
