//! Cost of transactions on the flash: bills add up to the work of the device.

use flagstone::{Bill, Cause, Options, Table};
use flagstone_nand::{Nand as _, Profile, SimNand};

use crate::on::Database;

fn created(memory: usize) -> (Database<SimNand>, Table) {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(32).unwrap();
    let options = Options::default().with_memory(memory);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("t").unwrap();
    (database, table)
}

fn spent(database: &Database<SimNand>) -> Bill {
    database.runtime().space().bill()
}

/// Commits transactions of `first`, `first + step`, …, and sums up their bills.
fn change(database: &Database<SimNand>, table: Table, first: u32, step: usize) -> Bill {
    let commit = |number: u32| {
        let mut transaction = database.begin();
        let key = (number.wrapping_mul(2_654_435_761) % 2_500).to_be_bytes();
        let key = [&first.to_be_bytes()[..], &key].concat();
        transaction.put(table, &key, &[number as u8; 300]).unwrap();
        if number.is_multiple_of(50) {
            transaction.put(table, &key, &[1; 5_000]).unwrap();
            let rows = transaction.range(table, key.as_slice()..).take(2);
            assert!(rows.map(Result::unwrap).count() > 0);
        }
        transaction.commit().unwrap().bill
    };
    (first..16_000).step_by(step).map(commit).sum()
}

/// Goal: each program and erase is on exactly one bill.
///
/// Method: small memory and a small chip, so that commits merge, checkpoint and collect garbage. The
/// bills' sum is compared with the space's counters, and these with the device's.
#[test]
fn bills_add_up_to_what_the_device_did() {
    let (database, table) = created(128 << 10);
    let before = spent(&database);
    let device_before = database.at_device(|device| device.counters());
    let bills = change(&database, table, 0, 2);
    assert_eq!(bills, spent(&database) - before);
    let device = database.at_device(|device| device.counters());
    let programs = device.page_programs + device.partial_programs
        - device_before.page_programs
        - device_before.partial_programs;
    assert_eq!(bills.programs(), programs);
    assert_eq!(bills.bytes(), device.bytes_programmed - device_before.bytes_programmed);
    assert_eq!(bills.erases(), device.block_erases - device_before.block_erases);
    assert!(bills.programs_for(Cause::Data) > 0, "nothing was merged");
    assert!(bills.programs_for(Cause::Relocation) > 0, "nothing was collected");
    assert!(bills.erases() > 0, "nothing was erased");
}

#[test]
fn bills_of_threads_add_up_too() {
    let (database, table) = created(256 << 10);
    let before = spent(&database);
    let bills: Bill = std::thread::scope(|scope| {
        let database = &database;
        let run = |first| scope.spawn(move || change(database, table, first, 16));
        let threads = [0, 1, 2].map(run);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(bills, spent(&database) - before);
}

#[test]
fn a_transaction_that_only_reads_costs_nothing() {
    let (database, table) = created(1 << 20);
    let transaction = database.begin();
    assert_eq!(transaction.get(table, b"key").unwrap(), None);
    assert_eq!(transaction.bill(), Bill::default());
    assert_eq!(transaction.commit().unwrap().bill, Bill::default());
}

#[test]
fn a_value_with_pages_of_its_own_is_on_the_bill_before_the_commit() {
    let (database, table) = created(1 << 20);
    let mut transaction = database.begin();
    transaction.put(table, b"key", &[7; 100_000]).unwrap();
    let before = transaction.bill();
    assert!(before.programs() >= 49, "{before:?}");
    let bill = transaction.commit().unwrap().bill;
    assert!(bill.programs() > before.programs(), "the log's page comes on top");
}

/// Goal: merges that a scan does to make room in memory are on the bill of the scanning transaction.
///
/// Method: commits that are larger than memory, so that their changes come back when they are read.
#[test]
fn what_a_scan_makes_way_for_is_on_its_bill() {
    let (database, table) = created(128 << 10);
    let mut transaction = database.begin();
    for number in 0..3_000_u32 {
        let key = number.wrapping_mul(2_654_435_761).to_be_bytes();
        transaction.put(table, &key, &[number as u8; 100]).unwrap();
    }
    transaction.commit().unwrap();
    let before = spent(&database);
    let transaction = database.begin();
    assert_eq!(transaction.len(table).unwrap(), 3_000);
    assert!(transaction.bill().programs() > 0, "nothing made way");
    assert_eq!(transaction.bill(), spent(&database) - before);
}
