//! Snapshots read beside each other: by the short way where everything is in memory, else in turn.

use std::collections::BTreeMap;

use flagstone::{Options, Snapshot, Table};
use flagstone_nand::{Profile, SimNand};

use crate::on::Database;

struct Draws(u64);

impl Draws {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (self.0 >> 33) % end
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u64) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

fn change(database: &Database<SimNand>, table: Table, draws: &mut Draws, model: &mut Model) {
    let mut txn = database.begin();
    for _ in 0..1 + draws.below(40) {
        let key = key(draws.below(1_500));
        match draws.below(8) {
            0 => {
                txn.delete(table, &key).unwrap();
                model.remove(&key);
            }
            1..4 if model.get(&key).is_some_and(|value| value.len() > 4) => {
                txn.patch(table, &key, 2, b"zz").unwrap();
                if let Some(value) = model.get_mut(&key) {
                    value[2..4].copy_from_slice(b"zz");
                }
            }
            _ => {
                let size = if draws.below(200) == 0 { 9_000 } else { draws.below(90) };
                let value = vec![draws.below(250) as u8; size as usize];
                txn.put(table, &key, &value).unwrap();
                model.insert(key, value);
            }
        }
    }
    txn.commit().unwrap();
}

/// Every row by key, by a shared read where that is enough, and ranges in both directions.
fn compare(snapshot: &Snapshot, table: Table, draws: &mut Draws, model: &Model) {
    for number in 0..1_500 {
        let found = snapshot.get(table, &key(number)).unwrap();
        assert_eq!(found.as_ref(), model.get(&key(number)), "key {number}");
    }
    let (low, high) = (key(draws.below(1_500)), key(draws.below(1_500)));
    let (low, high) = (low.clone().min(high.clone()), low.max(high));
    let wanted: Vec<_> = model.range(low.clone()..high.clone()).collect();
    let mut rows = snapshot.range(table, low.as_slice()..high.as_slice());
    let mut count = 0;
    while let Some(row) = rows.next_row() {
        let (key, value) = row.unwrap();
        assert_eq!((key, value), (wanted[count].0.as_slice(), wanted[count].1.as_slice()));
        count += 1;
    }
    assert_eq!(count, wanted.len());
    let backward = snapshot.range(table, low.as_slice()..high.as_slice()).rev();
    let backward: Vec<_> = backward.map(Result::unwrap).collect();
    assert!(backward.iter().rev().map(|(key, value)| (key, value)).eq(wanted), "backward");
    assert_eq!(snapshot.len(table).unwrap(), model.len() as u64);
}

/// Goal (V1): a shared read always gives the answer of the engine. Method: random changes, small memory,
/// merges in between, old and new snapshots; a model has the right answers.
#[test]
fn shared_reads_see_what_the_engine_sees() {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(96).unwrap();
    for seed in 0..4 {
        let options = Options::default().with_memory(400 << 10);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let (mut draws, mut model) = (Draws(seed), Model::new());
        let mut old = None;
        for round in 0..60 {
            change(&database, table, &mut draws, &mut model);
            if round % 9 == 0 {
                database.merge().unwrap();
            }
            if round % 10 == 3 {
                old = Some((database.snapshot().unwrap(), model.clone()));
            }
            if round % 5 == 4 {
                let now = database.snapshot().unwrap();
                compare(&now, table, &mut draws, &model);
                if let Some((snapshot, model)) = &old {
                    compare(snapshot, table, &mut draws, model);
                }
            }
        }
    }
}
