mod cuts;

use flagstone_engine::Options;
use flagstone_engine::blocking::Database;
use flagstone_nand::{Profile, SimNand};

use super::*;
use crate::workload::stuttering::Stuttering;
use crate::workload::{Outcome, Terminal as _};

const INPUT_COUNT: u64 = 100_000;
/// Standard errors that a measured rate may be off.
const SIGMAS: f64 = 4.0;

fn tables() -> Tables {
    let profile = Profile::named("slc-2k").expect("the profile exists");
    let device = SimNand::new(&profile, 0);
    let database = Database::create_on(device, &Options::default()).expect("a fresh database");
    Tatp::new(Dialect::Spec, 1, 1).tables(|name| database.table(name)).expect("five tables")
}

fn handles(tables: Tables) -> [Table; 5] {
    let Tables { subscriber, sub_nbr, access_info, special_facility, call_forwarding } = tables;
    [subscriber, sub_nbr, access_info, special_facility, call_forwarding]
}

/// A loaded map that stops every operation once.
fn loaded(tatp: &Tatp, tables: Tables) -> Stuttering {
    let mut engine = Stuttering::default();
    let mut put = |table, key: &[u8], value: &[u8]| {
        engine.load(table, key, value);
        Ok(())
    };
    tatp.load(tables, &mut put).expect("a map takes every row");
    engine
}

fn verify(
    tatp: &Tatp,
    tables: Tables,
    engine: &Stuttering,
    acknowledged: &Acknowledged,
) -> Result<(), Fault> {
    let mut audit = Audit::new(*tatp, acknowledged);
    for (place, table) in handles(tables).iter().enumerate() {
        let rows = engine.tables.get(table).into_iter().flatten();
        rows.for_each(|(key, value)| audit.add(place, key, value));
    }
    audit.verify()
}

/// Rows that a transaction which aborts has touched, put back.
fn transact(terminal: &mut Terminal, engine: &mut Stuttering, tables: Tables) -> Outcome {
    let subscriber = rows::subscriber_key(terminal.inputs().subscriber);
    let before = engine.tables[&tables.subscriber][&subscriber[..]].clone();
    let outcome = loop {
        if let Ok(outcome) = terminal.advance(engine) {
            break outcome;
        }
    };
    if outcome == Outcome::Abort {
        engine.load(tables.subscriber, &subscriber, &before);
    }
    outcome
}

/// Runs `count` transactions of two clients, and counts commits and aborts of each class.
fn work(
    tatp: &Tatp,
    tables: Tables,
    engine: &mut Stuttering,
    count: u64,
) -> (Acknowledged, [[u64; 2]; 7]) {
    let mut terminals = [0, 1].map(|number| tatp.terminal(tables, number));
    let mut acknowledged: Acknowledged = [0, 1].map(|client| (client, vec![0; 7])).into();
    let mut counts = [[0; 2]; 7];
    for number in 0..count {
        let client = number % 2;
        let terminal = &mut terminals[client as usize];
        let (class, outcome) = (terminal.class(), transact(terminal, engine, tables));
        let is_commit = outcome == Outcome::Commit;
        counts[class][usize::from(!is_commit)] += 1;
        acknowledged.get_mut(&client).expect("two clients")[class] += u64::from(is_commit);
        terminal.next(outcome);
    }
    (acknowledged, counts)
}

/// Whether `hits` of `count` agree with the probability `expected`.
fn is_near(hits: u64, count: u64, expected: f64) -> bool {
    let error = (expected * (1.0 - expected) / count as f64).sqrt();
    (hits as f64 / count as f64 - expected).abs() <= SIGMAS * error
}

#[test]
fn the_mix_is_as_published() {
    let mut stream = Stream::new(Tatp::new(Dialect::Spec, 1000, 1), 0);
    let mut counts = [0; 7];
    (0..INPUT_COUNT).for_each(|_| counts[stream.inputs().class as usize] += 1);
    for (count, percent) in counts.into_iter().zip([35, 10, 35, 2, 14, 2, 2]) {
        assert!(is_near(count, INPUT_COUNT, f64::from(percent) / 100.0), "{counts:?}");
    }
}

#[test]
fn a_fresh_database_has_the_published_proportions() {
    const SUBSCRIBERS: u32 = 20_000;
    let tatp = Tatp::new(Dialect::Spec, SUBSCRIBERS, 3);
    let mut last: (usize, Vec<u8>) = (0, Vec::new());
    let (mut rows, mut bytes, mut active) = ([0_u64; 5], [0_u64; 5], 0);
    load::load(&tatp, &mut |table, key, value| {
        assert!((last.0, last.1.as_slice()) < (table, key), "sorted load");
        last = (table, key.to_vec());
        rows[table] += 1;
        bytes[table] += (key.len() + value.len()) as u64;
        active += u64::from(table == 3 && value[rows::facility::IS_ACTIVE] == 1);
        Ok::<(), ()>(())
    })
    .expect("nothing refuses a row");
    let sizes: Vec<u64> = rows.iter().zip(bytes).map(|(rows, bytes)| bytes / rows).collect();
    assert_eq!(sizes, [67, 19, 17, 15, 22]);
    assert_eq!(rows[..2], [u64::from(SUBSCRIBERS); 2]);
    for (found, mean) in rows[2..].iter().zip([2.5, 2.5, 3.75]) {
        let found = *found as f64 / f64::from(SUBSCRIBERS);
        assert!((found - mean).abs() < 0.05, "{found} rows a subscriber, not {mean}");
    }
    assert!(is_near(active, rows[3], 0.85), "{active} of {}", rows[3]);
    assert_eq!(tatp.row_count(), rows.iter().sum::<u64>());
    assert_eq!(tatp.loaded_bytes(), bytes.iter().sum::<u64>());
    let expected: Vec<f64> =
        tatp.contents(0, 1).iter().map(|content| content.rows as f64).collect();
    let is_close = |(rows, expected): (&u64, &f64)| (*rows as f64 / expected - 1.0).abs() < 0.02;
    assert!(rows.iter().zip(&expected).all(is_close), "{rows:?}, {expected:?}");
}

#[test]
fn shore_kits_pads_rows_and_benchbase_draws_access_data_once() {
    let one = Tatp::new(Dialect::ShoreKits, 10, 1).subscriber(3);
    assert_eq!(one.row.len() + 4, 100);
    assert!(one.facilities.iter().all(|(_, row)| row.len() + 6 == 50));
    let tatp = Tatp::new(Dialect::Benchbase, 200, 1);
    let kinds = |id| tatp.subscriber(id).access.iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
    assert!((2..=200).all(|id| kinds(id) == kinds(1)));
    let starts: std::collections::BTreeSet<u8> =
        (1..=200).flat_map(|id| tatp.subscriber(id).forwards).map(|(_, start, _)| start).collect();
    assert_eq!(starts.into_iter().collect::<Vec<_>>(), [0, 6, 8]);
}

#[test]
fn subscribers_are_drawn_evenly_or_by_the_standard_rule() {
    let hits = |dialect| {
        let mut stream = Stream::new(Tatp::new(dialect, 100_000, 1), 0);
        let drawn = (0..INPUT_COUNT).map(|_| stream.inputs().subscriber);
        let mut odd = 0;
        for subscriber in drawn {
            assert!((1..=100_000).contains(&subscriber));
            // An OR of two numbers is odd three times in four; then one is added.
            odd += u64::from(subscriber % 2 == 0);
        }
        odd
    };
    assert!(is_near(hits(Dialect::Spec), INPUT_COUNT, 0.5));
    assert!(is_near(hits(Dialect::SpecNonUniform), INPUT_COUNT, 0.75));
}

/// Goal: the success rates follow from the population. Method: a loaded map, one transaction after
/// the other; binomial error.
#[test]
fn transactions_succeed_as_often_as_the_population_says() {
    let tatp = Tatp::new(Dialect::Spec, 10_000, 5);
    let tables = tables();
    let mut engine = loaded(&tatp, tables);
    let (_, counts) = work(&tatp, tables, &mut engine, 4 * INPUT_COUNT);
    let rate = |class: Class, expected| {
        let [commits, aborts] = counts[class as usize];
        let count = commits + aborts;
        assert!(is_near(commits, count, expected), "{class:?}: {commits} of {count}");
    };
    rate(Class::GetSubscriberData, 1.0);
    rate(Class::GetAccessData, 0.625);
    rate(Class::UpdateSubscriberData, 0.625);
    rate(Class::UpdateLocation, 1.0);
    rate(Class::InsertCallForwarding, 0.3125);
    rate(Class::DeleteCallForwarding, 0.3125);
    // Published: 23.9 %. The rate of the literal predicate is in the next test.
    let [commits, aborts] = counts[Class::GetNewDestination as usize];
    let measured = commits as f64 / (commits + aborts) as f64;
    eprintln!("get-new-destination: {:.1} % succeed", 100.0 * measured);
}

/// Goal: the success rate of GET_NEW_DESTINATION's literal predicate on a fresh database. Method:
/// every set of forwarded calls, every hour asked for.
#[test]
fn the_literal_predicate_of_get_new_destination_gives_14_8_percent() {
    // Of the subsets of {0, 8, 16} each size is equally likely, and each of a size.
    let weights = [1.0, 1.0 / 3.0, 1.0 / 3.0, 1.0].map(|weight: f64| weight / 4.0);
    let mut sum = 0.0;
    for subset in 0_u32..8 {
        let starts: Vec<u32> =
            (0..3).filter(|bit| subset >> bit & 1 == 1).map(|bit| 8 * bit).collect();
        for (asked, until) in (0..3).flat_map(|hour| (1..=24).map(move |until| (8 * hour, until))) {
            let misses = starts.iter().filter(|start| **start <= asked).map(|start| {
                // End times are start + 1 to 8.
                (1..=8).filter(|hours| start + hours <= until).count() as f64 / 8.0
            });
            let found = 1.0 - misses.product::<f64>();
            sum += weights[subset.count_ones() as usize] * found / 72.0;
        }
    }
    let rate = 0.625 * 0.85 * sum;
    assert!((rate - 0.148).abs() < 0.0005, "{rate}");
}

/// Goal: transactions that stop at every operation leave the rows that their inputs say. Method: a
/// map that refuses every operation once; then one commit more than there was must be missed.
#[test]
fn inputs_explain_every_row_in_every_dialect() {
    let tables = tables();
    for dialect in Dialect::ALL {
        let tatp = Tatp::new(dialect, 300, 7);
        let mut engine = loaded(&tatp, tables);
        verify(&tatp, tables, &engine, &Acknowledged::new()).expect("a right load");
        let (acknowledged, counts) = work(&tatp, tables, &mut engine, 20_000);
        let seen = verify(&tatp, tables, &engine, &acknowledged);
        assert_eq!(seen, Ok(()), "{dialect}");
        let [commits, aborts] = counts[Class::UpdateSubscriberData as usize];
        let expected = if dialect == Dialect::Benchbase { 0.375 } else { 0.625 };
        let rate = commits as f64 / (commits + aborts) as f64;
        assert!((rate - expected).abs() < 0.15, "{dialect}: {rate}");
    }
}

/// Goal: each check sees a violation of its own. Method: a worked database, one row changed.
#[test]
fn every_check_sees_a_row_that_violates_it() {
    let tatp = Tatp::new(Dialect::Spec, 300, 7);
    let tables = tables();
    let mut engine = loaded(&tatp, tables);
    let (acknowledged, _) = work(&tatp, tables, &mut engine, 20_000);
    let changed = |table: Table, with: &dyn Fn(&mut Vec<u8>)| {
        let mut changed = Stuttering::of(engine.tables.clone());
        let rows = changed.tables.get_mut(&table).expect("the table has rows");
        with(rows.values_mut().nth(1).expect("two rows"));
        verify(&tatp, tables, &changed, &acknowledged)
    };
    let vlr = rows::subscriber::VLR_LOCATION.offset;
    assert!(matches!(changed(tables.subscriber, &|row| row[10] ^= 1), Err(Fault::Row { .. })));
    assert!(matches!(changed(tables.subscriber, &|row| row[vlr] ^= 1), Err(Fault::Lost { .. })));
    assert!(matches!(changed(tables.sub_nbr, &|row| row[3] ^= 1), Err(Fault::Row { .. })));
    assert!(matches!(changed(tables.access_info, &|row| row[0] ^= 1), Err(Fault::Row { .. })));
    let data = rows::facility::DATA_A.offset;
    let seen = changed(tables.special_facility, &|row| row[data] ^= 1);
    assert!(matches!(seen, Err(Fault::Lost { .. })), "{seen:?}");
    let seen = changed(tables.call_forwarding, &|row| row[3] ^= 1);
    assert!(matches!(seen, Err(Fault::Row { .. })), "{seen:?}");
    for table in handles(tables) {
        let mut changed = Stuttering::of(engine.tables.clone());
        let rows = changed.tables.get_mut(&table).expect("the table has rows");
        let keys: Vec<Vec<u8>> = rows.keys().take(4).cloned().collect();
        keys.iter().for_each(|key| drop(rows.remove(key)));
        let seen = verify(&tatp, tables, &changed, &acknowledged);
        let is_seen = matches!(seen, Err(Fault::Rows { .. } | Fault::Forwarding { .. }));
        assert!(is_seen, "{seen:?}");
    }
}

/// Goal: a commit that returned and left nothing is seen, in every class. Method: the database
/// before each client's last change of the class, with the counts after it.
#[test]
fn a_lost_commit_of_any_class_is_seen() {
    let tatp = Tatp::new(Dialect::Spec, 300, 7);
    let tables = tables();
    let mut engine = loaded(&tatp, tables);
    let mut terminal = tatp.terminal(tables, 0);
    let mut counts = vec![0; 7];
    let (mut seen, mut losses) = ([0_u32; 7], [0_u32; 7]);
    for _ in 0..6_000 {
        let class = terminal.class();
        let is_change = class >= Class::UpdateSubscriberData as usize;
        let before = is_change.then(|| engine.tables.clone());
        let outcome = transact(&mut terminal, &mut engine, tables);
        terminal.next(outcome);
        if outcome == Outcome::Abort {
            continue;
        }
        counts[class] += 1;
        let Some(before) = before else { continue };
        let acknowledged: Acknowledged = [(0, counts.clone())].into();
        let lost = verify(&tatp, tables, &Stuttering::of(before), &acknowledged);
        losses[class] += 1;
        seen[class] += u32::from(lost.is_err());
    }
    // A value that equals the one before shows nothing, nor does a call that may be in flight.
    for class in [Class::UpdateLocation, Class::UpdateSubscriberData] {
        let (seen, losses) = (seen[class as usize], losses[class as usize]);
        assert!(losses > 50 && seen > losses * 98 / 100, "{class:?}: {seen} of {losses}");
    }
}

#[test]
fn dialects_are_found_by_name() {
    for dialect in Dialect::ALL {
        assert_eq!(Dialect::named(dialect.name()), Some(dialect));
    }
    assert_eq!(Dialect::named("spec2"), None);
}
