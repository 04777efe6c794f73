//! Policies for the choice of leaves whose deltas leave memory: all keep every commit, and each saves the
//! page writes that it is made to save.

use std::collections::BTreeMap;

use flagstone::Options;
use flagstone_engine::{Budget, CommitBy, MergeTo};
use flagstone_nand::{Crashable as _, Profile, SimNand};
use flagstone_opponents::policies::{SuperGroup, VictimRule, WithPolicies as _};

use crate::on::Database;

const ROWS: u32 = 20_000;
const CHANGES: u32 = 20_000;

/// Keys of which few take most changes, as names do.
struct Skewed(u64);

impl Skewed {
    fn draw(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let uniform = (self.0 >> 33) as f64 / f64::from(1u32 << 31);
        (uniform.powi(4) * f64::from(ROWS)) as u32 % ROWS
    }
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn empty(options: &Options) -> Database<SimNand> {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    Database::create_on(SimNand::new(&profile, 1), options).unwrap()
}

/// The database after a power cut.
fn reopened(database: Database<SimNand>, options: &Options) -> Database<SimNand> {
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    Database::open_on(device, options).unwrap()
}

/// Deltas that each merge took, after many changes that were all there in the end.
fn deltas_a_merge(victim: VictimRule) -> f64 {
    // The same memory for changes under each policy, and one leaf at a time.
    let options = Options::default().with_memory(128 << 10).with_techniques(|techniques| {
        (techniques.budget, techniques.merge_batch) = (Budget::Divided, 0.0);
        techniques.commit = CommitBy::Log;
    });
    let options = options.with_policies(|policies| policies.victim = victim);
    let database = empty(&options);
    let table = database.table("t").unwrap();
    let mut expected = vec![0u32; ROWS as usize];
    for first in (0..ROWS).step_by(100) {
        let mut transaction = database.begin();
        (first..first + 100)
            .for_each(|number| transaction.put(table, &key(number), &[0; 60]).unwrap());
        transaction.commit().unwrap();
    }
    database.runtime().checkpoint_now().unwrap();
    let before = database.stats().engine;
    let mut keys = Skewed(7);
    for change in 1..=CHANGES {
        let number = keys.draw();
        let mut transaction = database.begin();
        transaction.patch(table, &key(number), 8, &change.to_be_bytes()).unwrap();
        transaction.commit().unwrap();
        expected[number as usize] = change;
    }
    let after = database.stats().engine;
    let database = reopened(database, &options);
    let table = database.existing_table("t").unwrap().unwrap();
    for (number, change) in expected.iter().enumerate() {
        let value = database.begin().get(table, &key(number as u32)).unwrap().unwrap();
        assert_eq!(value[8..12], change.to_be_bytes(), "{victim:?}: row {number}");
    }
    assert!(database.check().unwrap().faults.is_empty(), "{victim:?}");
    (after.merged_deltas - before.merged_deltas) as f64 / (after.merges - before.merges) as f64
}

#[test]
fn bigger_groups_make_fewer_page_writes() {
    let [window, fifo, lru, biggest, cost, cover] = VictimRule::ALL.map(deltas_a_merge);
    let all = format!(
        "window {window:.1}, fifo {fifo:.1}, lru {lru:.1}, {biggest:.1}, {cost:.1}, cover {cover:.1}"
    );
    assert!(cover > 0.8 * biggest, "a set of biggest groups, chosen at once. {all}");
    assert!(biggest > 1.3 * fifo && biggest > 1.3 * lru, "{all}");
    assert!(cost > 0.9 * biggest, "nothing splits: cost is size. {all}");
    assert!(window > 0.8 * biggest, "the hand looks at a part of the tree. {all}");
}

/// Data pages written for changes of few rows, far more changes than memory holds; every row is there after a
/// power cut, and after another one that finds the rows of restart among the deltas.
fn pages_written(options: &Options) -> u64 {
    let database = empty(options);
    let table = database.table("t").unwrap();
    let mut rows: BTreeMap<u32, u32> = (0..ROWS).map(|number| (number, 0)).collect();
    for first in (0..ROWS).step_by(100) {
        let mut transaction = database.begin();
        (first..first + 100)
            .for_each(|number| transaction.put(table, &key(number), &[0; 4]).unwrap());
        transaction.commit().unwrap();
    }
    let database = reopened(database, options);
    let table = database.existing_table("t").unwrap().unwrap();
    let data = |database: &Database<SimNand>| database.stats().space.programs_by_cause[1];
    let before = data(&database);
    let mut keys = Skewed(11);
    for change in 1..=CHANGES {
        let number = keys.draw();
        let mut transaction = database.begin();
        // Whole ranges go and come back, so that leaves are merged and split.
        if number.is_multiple_of(3) == (change / 4_000 % 2 == 0) {
            transaction.delete(table, &key(number)).unwrap();
            rows.remove(&number);
        } else {
            transaction.put(table, &key(number), &change.to_be_bytes()).unwrap();
            rows.insert(number, change);
        }
        transaction.commit().unwrap();
    }
    let written = data(&database) - before;
    let database = reopened(reopened(database, options), options);
    let table = database.existing_table("t").unwrap().unwrap();
    let number = |bytes: Vec<u8>| u32::from_be_bytes(bytes.try_into().unwrap());
    let transaction = database.begin();
    let pairs = transaction.range(table, ..).map(|row| row.unwrap());
    let found: Vec<(u32, u32)> = pairs.map(|(key, value)| (number(key), number(value))).collect();
    drop(transaction);
    assert_eq!(found, rows.into_iter().collect::<Vec<_>>(), "{options:?}");
    assert!(database.check().unwrap().faults.is_empty(), "{options:?}");
    written
}

/// Goal: groups that go together, and merges that wait in frames, lose nothing. Method: each way under
/// each policy that ranks groups, with leaves that come and go.
#[test]
fn super_groups_keep_every_row() {
    for victim in [VictimRule::Lru, VictimRule::Biggest, VictimRule::Cost] {
        for super_group in SuperGroup::ALL {
            let options = Options::default().with_memory(96 << 10);
            let options =
                options.with_techniques(|techniques| techniques.merge_to = MergeTo::Frame);
            let options = options.with_policies(|policies| {
                (policies.victim, policies.super_group) = (victim, super_group);
            });
            assert!(pages_written(&options) > 0);
        }
    }
}

/// Goal: a page that stays in memory takes several merges for one write. Method: equal runs.
#[test]
fn merges_to_frames_write_less() {
    let options = |merge_to| {
        Options::default().with_memory(80 << 10).with_techniques(|techniques| {
            (techniques.merge_to, techniques.frame_share) = (merge_to, 0.5);
            // Frames that are ahead take no claims: without any, both runs begin with the same leaves.
            techniques.commit = CommitBy::Log;
        })
    };
    let [flash, frame] = [MergeTo::Flash, MergeTo::Frame].map(|to| pages_written(&options(to)));
    assert!(frame * 100 < flash * 95, "{frame} and {flash} pages");
}

/// Goal: once memory is full, a batch of merges frees the share that the options ask for. Method: commits
/// between two batches, for which the freed memory has to suffice: the median of their number.
#[test]
fn a_batch_of_merges_frees_its_share() {
    let pause = |merge_batch: f64| {
        let options = Options::default().with_memory(128 << 10).with_techniques(|techniques| {
            (techniques.merge_batch, techniques.budget) = (merge_batch, Budget::Divided);
        });
        let database = empty(&options);
        let table = database.table("t").unwrap();
        let (mut merges, mut pause, mut pauses) = (0, 0, Vec::new());
        for change in 0..CHANGES {
            let mut transaction = database.begin();
            let number = change.wrapping_mul(2_654_435_761) % ROWS;
            transaction.put(table, &key(number), &change.to_be_bytes()).unwrap();
            transaction.commit().unwrap();
            let now = database.stats().engine.merges;
            pause += 1;
            if now != merges {
                // Only pauses after memory was full, and no single step of a batch.
                pauses.extend(Some(pause).filter(|pause| *pause > 1 && change > CHANGES / 2));
                (merges, pause) = (now, 0);
            }
        }
        pauses.sort_unstable();
        pauses[pauses.len() / 2]
    };
    let [single, eighth, half] = [0.0, 0.125, 0.5].map(pause);
    let all = format!("{single} {eighth} {half}");
    assert!(eighth > 2 * single, "{all}");
    assert!((2 * eighth..6 * eighth).contains(&half), "{all}");
}
