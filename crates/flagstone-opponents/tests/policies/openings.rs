//! Rule D7 under the policies of the papers: every opening comes to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use flagstone::{Durability, Options, Table};
use flagstone_nand::{Crashable as _, NandError, Profile, SimNand};
use flagstone_opponents::policies::{PolicyOptions, ReplacementRule, WithPolicies as _};
use flagstone_opponents::presets::PRESETS;

use crate::hooked::{Call, Hooked};
use crate::on::Database;

const PAGE_SIZE: usize = 512;

/// The device, which fails where more pages are read than any opening may need.
fn with_bounded_reads(device: SimNand, read_count_max: u32) -> Hooked<SimNand> {
    let count = AtomicU32::new(0);
    let hook = move |call| match call {
        Call::Read(page) if count.fetch_add(1, Ordering::Relaxed) >= read_count_max => {
            Err(NandError::Uncorrectable { page })
        }
        _ => Ok(()),
    };
    Hooked { device, hook: Arc::new(hook) }
}

fn put_row(database: &Database<SimNand>, table: Table, key: &[u8], value: u8) {
    let mut transaction = database.begin();
    transaction.put(table, key, &[value; 60]).unwrap();
    transaction.commit_with(Durability::Deferred).unwrap();
}

/// Rows of one table all over its leaves, and rows of tables with one leaf each, all of them in the log
/// alone; then a cut.
fn cut_with_many_changes() -> SimNand {
    let profile = Profile::named("tiny").unwrap().with_block_count(1_000).unwrap();
    let options = Options::default().with_memory(2 << 20);
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("wide").unwrap();
    (0..2_000_u32).for_each(|row| put_row(&database, table, &row.to_be_bytes(), 1));
    let narrow: Vec<_> =
        (0..12).map(|number| database.table(&format!("t{number}")).unwrap()).collect();
    for row in 0..6_000_u32 {
        put_row(&database, table, &(row.wrapping_mul(769) % 2_000).to_be_bytes(), 2);
        put_row(&database, narrow[row as usize % narrow.len()], b"key", row as u8);
    }
    database.flush().unwrap();
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    device
}

/// Goal: an opening ends, with any memory and any order in which frames leave it. Method: many changes that
/// the log alone has, in trees of many leaves and of one; opened with other memory by every preset and every
/// rule, on a device that counts its reads.
#[test]
fn every_opening_ends_whatever_the_memory() {
    const READS_MAX: u32 = 400_000;
    let with_rule = |rule: &ReplacementRule| {
        let name = if *rule == ReplacementRule::LsLru { "ls-lru" } else { "flagstone" };
        crate::preset(name).with_policies(|policies| policies.replacement = *rule)
    };
    let presets = PRESETS.iter().map(|preset| crate::preset(preset.name));
    let device = cut_with_many_changes();
    for way in presets.chain(ReplacementRule::ALL.iter().map(with_rule)) {
        for memory in [24 * PAGE_SIZE, 96 << 10, 160 << 10, 256 << 10] {
            let options = way.clone().with_memory(memory);
            let rule = PolicyOptions::of(&options).replacement;
            let told = format!("{}, {rule:?}, {memory} bytes", options.preset);
            let database =
                Database::open_on(with_bounded_reads(device.clone(), READS_MAX), &options);
            let database = database.unwrap_or_else(|error| panic!("{told}: {error}"));
            let table = database.table("wide").unwrap();
            for row in (0..2_000_u32).step_by(97) {
                let found = database.begin().get(table, &row.to_be_bytes()).unwrap();
                assert_eq!(found.as_deref(), Some(&[2; 60][..]), "{told}, row {row}");
            }
        }
    }
}
