//! The engine on a small simulated chip, against a map.

use std::collections::BTreeMap;

use flagstone_engine::{Direction, Row, RowValue, ScanRange, Xid};
use flagstone_engine::{Durability, Options, Table};
use flagstone_nand::{Crashable, Profile, SimNand};

use super::{Config, Locking, Machine, Mistake};
use crate::workload::Draws;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn chip() -> SimNand {
    let profile = Profile::named("tiny").unwrap().with_block_count(96).unwrap();
    SimNand::new(&profile, 1)
}

fn config(locking: Locking) -> Config {
    let options = with_appends(Options::default(), "0x0");
    let options = options.with_log_pages(144).with_memory(32 * 512);
    Config { options, locking, mistake: Mistake::None }
}

fn with_appends(options: Options, scheme: &str) -> Options {
    options.with_techniques(|techniques| techniques.append_scheme = scheme.parse().unwrap())
}

fn created(locking: Locking) -> (Machine<SimNand>, Table) {
    let machine = Machine::create(chip(), &config(locking)).unwrap();
    let table = table(&machine, "rows");
    (machine, table)
}

fn table(machine: &Machine<SimNand>, name: &str) -> Table {
    let xid = machine.engine().begin();
    let table = machine.run(|engine| engine.create_table(xid, name)).unwrap();
    machine.commit(xid, Durability::Immediate).unwrap();
    table
}

fn put(machine: &Machine<SimNand>, xid: Xid, table: Table, key: &[u8], value: &[u8]) {
    machine.run(|engine| engine.put(xid, table, key, value)).unwrap();
}

fn get(machine: &Machine<SimNand>, xid: Xid, table: Table, key: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    machine.run(|engine| engine.get(xid, table, key, &mut out)).unwrap().then_some(out)
}

fn all(machine: &Machine<SimNand>, table: Table, direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
    let xid = machine.engine().begin();
    let mut rest = Some(ScanRange { low: Vec::new(), high: None });
    let mut rows: Vec<Row> = Vec::new();
    while let Some(range) = rest {
        rest = machine
            .run(|engine| engine.scan(xid, table, &range, direction, usize::MAX, &mut rows))
            .unwrap();
    }
    machine.engine().abort(xid);
    let pair = |row: Row| match row.value {
        RowValue::Inline(value) => (row.key, value),
        RowValue::Large(_) => panic!("values come whole"),
    };
    rows.into_iter().map(pair).collect()
}

/// One random change of a random row, in the map too.
fn change(machine: &Machine<SimNand>, xid: Xid, table: Table, draws: &mut Draws, map: &mut Map) {
    let key = format!("key/{}", draws.below(300)).into_bytes();
    match draws.below(10) {
        0..6 => {
            let size = if draws.below(20) == 0 { 900 } else { draws.below(90) as usize };
            let value = vec![draws.below(256) as u8; size];
            put(machine, xid, table, &key, &value);
            map.insert(key, value);
        }
        6..8 => {
            machine.run(|engine| engine.delete(xid, table, &key)).unwrap();
            map.remove(&key);
        }
        _ => {
            let Some(value) = map.get_mut(&key).filter(|value| !value.is_empty()) else { return };
            let offset = draws.below(value.len() as u64) as usize;
            value[offset] ^= 0xFF;
            let byte = [value[offset]];
            machine.run(|engine| engine.patch(xid, table, &key, offset, &byte)).unwrap();
        }
    }
}

/// Goal: after any mix of commits, aborts, rollbacks to savepoints and restarts, the content equals
/// a map's. Method: random changes on a chip with far less memory than data; returns the number of
/// changes that were appended to their page.
fn agrees_with_a_map(chip: SimNand, config: &Config, seed: u64) -> u64 {
    let mut appends = 0;
    let mut machine = Machine::create(chip, config).unwrap();
    let mut table = table(&machine, "rows");
    let mut draws = Draws::new(seed, 0);
    let mut committed = Map::new();
    for round in 0..150 {
        let xid = machine.engine().begin();
        let mut map = committed.clone();
        for _ in 0..draws.below(12) {
            change(&machine, xid, table, &mut draws, &mut map);
        }
        let savepoint = machine.run(|engine| engine.savepoint(xid)).unwrap();
        let mut lost = map.clone();
        for _ in 0..draws.below(6) {
            change(&machine, xid, table, &mut draws, &mut lost);
        }
        machine.run(|engine| engine.rollback_to(xid, savepoint)).unwrap();
        if draws.below(3) == 0 {
            machine.abort(xid).unwrap();
        } else {
            machine.commit(xid, Durability::Immediate).unwrap();
            committed = map;
        }
        if round % 10 == 9 {
            let open = machine.engine().begin();
            let mut lost = committed.clone();
            for _ in 0..10 {
                change(&machine, open, table, &mut draws, &mut lost);
            }
            machine.clean_all().unwrap();
            appends += machine.space().stats().delta_appends;
            let mut device = machine.into_device();
            device.power_cycle();
            machine = Machine::open(device, config).unwrap();
            assert!(machine.restarted().losers >= 1, "the open transaction is undone");
            table = self::table(&machine, "rows");
        }
        let found = all(&machine, table, Direction::Forward);
        let expected: Vec<_> = committed.clone().into_iter().collect();
        assert_eq!(found, expected, "seed {seed} round {round}");
        let mut backward = all(&machine, table, Direction::Backward);
        backward.reverse();
        assert_eq!(backward, expected, "seed {seed} round {round}");
        let report = machine.check().unwrap();
        assert_eq!(report.faults, Vec::<String>::new(), "seed {seed} round {round}");
    }
    let (memory, page_size) = (config.options.memory, machine.engine().page_size);
    let bases_max = memory + 12 * (page_size + 200);
    assert!(machine.engine().stats().memory.bases <= bases_max, "the budget holds");
    appends
}

#[test]
fn records_locked_one_by_one_agree_with_a_map() {
    agrees_with_a_map(chip(), &config(Locking::Record), 1);
    agrees_with_a_map(chip(), &config(Locking::Record), 2);
}

#[test]
fn records_locked_by_page_agree_with_a_map() {
    agrees_with_a_map(chip(), &config(Locking::Page), 3);
}

#[test]
fn pages_with_small_changes_appended_agree_with_a_map() {
    for (seed, scheme) in [(4, "2x4"), (5, "2xruns"), (6, "auto"), (7, "1x8,rows=0x0")] {
        let profile = Profile::named("tiny-shared").unwrap().with_block_count(96).unwrap();
        let mut config = config(Locking::Record);
        config.options.memory = 32 * 1024;
        config.options = with_appends(config.options, scheme);
        let appends = agrees_with_a_map(SimNand::new(&profile, seed), &config, seed);
        assert_eq!(appends > 0, seed != 7, "{scheme}: {appends} appends");
    }
}

/// Goal: a table keeps the scheme that it was made with, even when later sessions ask for another
/// one.
#[test]
fn a_table_keeps_its_scheme() {
    let profile = Profile::named("tiny-shared").unwrap().with_block_count(96).unwrap();
    let mut config = config(Locking::Record);
    config.options.memory = 32 * 1024;
    config.options = with_appends(config.options, "2x4");
    let machine = Machine::create(SimNand::new(&profile, 1), &config).unwrap();
    let first = table(&machine, "rows");
    machine.checkpoint_now().unwrap();
    config.options = with_appends(config.options, "0x0");
    let machine = Machine::open(machine.into_device(), &config).unwrap();
    let size_of = |table| machine.engine().node_size(super::Engine::tree_of(table));
    assert_eq!(table(&machine, "rows"), first);
    assert_eq!(size_of(first), machine.engine().page_size - 2 * 256);
    assert_eq!(size_of(table(&machine, "more")), machine.engine().page_size);
}

#[test]
fn a_transaction_larger_than_memory_is_undone_after_a_cut() {
    let (machine, table) = created(Locking::Record);
    let xid = machine.engine().begin();
    put(&machine, xid, table, b"kept", b"value");
    machine.commit(xid, Durability::Immediate).unwrap();
    let xid = machine.engine().begin();
    for number in 0_u32..300 {
        put(&machine, xid, table, &number.to_be_bytes(), &[7; 60]);
    }
    machine.clean_all().unwrap();
    let mut device = machine.into_device();
    device.power_cycle();
    let machine = Machine::open(device, &config(Locking::Record)).unwrap();
    assert_eq!(machine.restarted().losers, 1);
    assert_eq!(machine.restarted().undone, 300);
    let table = self::table(&machine, "rows");
    assert_eq!(all(&machine, table, Direction::Forward), [(b"kept".to_vec(), b"value".to_vec())]);
}

#[test]
fn undoing_a_dropped_value_takes_no_more_pages_than_it_had() {
    let (machine, table) = created(Locking::Record);
    let xid = machine.engine().begin();
    put(&machine, xid, table, b"long", &[3; 3000]);
    machine.commit(xid, Durability::Immediate).unwrap();
    machine.clean_all().unwrap();
    let before = machine.space().live_pages();
    let xid = machine.engine().begin();
    machine.run(|engine| engine.delete(xid, table, b"long")).unwrap();
    machine.clean_all().unwrap();
    assert!(machine.space().live_pages() < before, "the pages of the value are given up");
    machine.abort(xid).unwrap();
    machine.clean_all().unwrap();
    assert_eq!(machine.space().live_pages(), before);
}

/// Goal: undo needs no pages that another transaction's rows took (A7).
#[test]
fn rows_do_not_take_the_room_that_undoing_needs() {
    let (machine, table) = created(Locking::Record);
    let key = |number: u32| number.to_be_bytes();
    let xid = machine.engine().begin();
    (0..400).for_each(|number| put(&machine, xid, table, &key(4 * number), &[1; 20]));
    machine.commit(xid, Durability::Immediate).unwrap();
    let deletes = machine.engine().begin();
    for number in (0..400).step_by(8) {
        machine.run(|engine| engine.delete(deletes, table, &key(4 * number))).unwrap();
    }
    let inserts = machine.engine().begin();
    (0..400)
        .step_by(8)
        .for_each(|number| put(&machine, inserts, table, &key(4 * number + 5), &[2; 20]));
    machine.commit(inserts, Durability::Immediate).unwrap();
    let before = machine.engine().stats().reshapes;
    machine.abort(deletes).unwrap();
    assert_eq!(machine.engine().stats().reshapes, before, "undo splits no leaf");
    let xid = machine.engine().begin();
    (0..400).for_each(|number| {
        assert_eq!(get(&machine, xid, table, &key(4 * number)), Some(vec![1; 20]), "row {number}");
    });
}

#[test]
fn a_deadlock_ends_the_younger_and_the_older_goes_on() {
    let (machine, table) = created(Locking::Record);
    let older = machine.engine().begin();
    let younger = machine.engine().begin();
    put(&machine, older, table, b"a", b"1");
    put(&machine, younger, table, b"b", b"2");
    let wait = machine.attempt(|engine| engine.put(older, table, b"b", b"3")).unwrap();
    assert_eq!(wait, None, "the older waits");
    let victim = machine.attempt(|engine| engine.put(younger, table, b"a", b"4"));
    assert_eq!(victim, Err(flagstone_engine::EngineError::Deadlock));
    let done = machine.attempt(|engine| engine.put(older, table, b"b", b"3")).unwrap();
    assert_eq!(done, Some(()), "the younger is undone and its locks are gone");
    machine.commit(older, Durability::Immediate).unwrap();
    let xid = machine.engine().begin();
    assert_eq!(get(&machine, xid, table, b"a"), Some(b"1".to_vec()));
    assert_eq!(get(&machine, xid, table, b"b"), Some(b"3".to_vec()));
}

#[test]
fn a_long_transaction_is_refused_before_its_rollback_lacks_room() {
    let (machine, table) = created(Locking::Record);
    let xid = machine.engine().begin();
    let full = (0_u32..100_000).find_map(|number| {
        let put =
            |engine: &mut super::Engine| engine.put(xid, table, &number.to_be_bytes(), &[1; 90]);
        machine.run(put).err()
    });
    assert_eq!(full, Some(flagstone_engine::EngineError::Full));
    machine.abort(xid).unwrap();
    assert!(all(&machine, table, Direction::Forward).is_empty());
    let xid = machine.engine().begin();
    put(&machine, xid, table, b"after", b"1");
    machine.commit(xid, Durability::Immediate).unwrap();
}

#[test]
fn a_patch_logs_the_bytes_that_change_and_not_the_row() {
    let (machine, table) = created(Locking::Record);
    let xid = machine.engine().begin();
    put(&machine, xid, table, b"row", &[5; 100]);
    machine.commit(xid, Durability::Immediate).unwrap();
    let before = machine.engine().stats().log_bytes;
    let xid = machine.engine().begin();
    machine.run(|engine| engine.patch(xid, table, b"row", 40, &[1, 2])).unwrap();
    machine.commit(xid, Durability::Immediate).unwrap();
    let logged = machine.engine().stats().log_bytes - before;
    assert!(logged < 50, "{logged} bytes for two changed ones");
}
