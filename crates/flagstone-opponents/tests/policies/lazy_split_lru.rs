//! Base copies and changes in one order of use: no commit is lost with any window, and the window saves the
//! work that it is made to save.

use flagstone::Options;
use flagstone_engine::{AbsentLeaf, Budget, FrameKind, MergeTo, Techniques};
use flagstone_nand::{Crashable as _, Profile, SimNand};
use flagstone_opponents::policies::{ReplacementRule, VictimRule, WithPolicies as _};

use crate::on::Database;

const ROWS: u32 = 20_000;
const CHANGES: u32 = 20_000;
const MEMORY: usize = 64 << 10;

/// Keys of which an eighth takes half of the requests.
struct Draws(u64);

impl Draws {
    fn below(&mut self, below: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) % u64::from(below)) as u32
    }

    fn row(&mut self) -> u32 {
        if self.below(2) == 0 { self.below(ROWS / 8) } else { self.below(ROWS) }
    }
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn ls_lru(window: f64) -> Options {
    let options = Options::default().with_memory(MEMORY).with_techniques(|techniques| {
        (techniques.budget, techniques.frame_share) = (Budget::Shared, 0.05);
        techniques.absent = AbsentLeaf::ReadOnce;
    });
    options.with_policies(|policies| {
        policies.replacement = ReplacementRule::LsLru;
        policies.replacement_window = window;
    })
}

fn chip() -> SimNand {
    SimNand::new(&Profile::named("slc-2k").unwrap().with_block_count(64).unwrap(), 1)
}

/// Cost of a run of reads and changes.
#[derive(Debug)]
struct Cost {
    merges: u64,
    misses: u64,
    bases_peak: usize,
}

/// Half reads, half changes, of rows that are all there in the end, after a power cut too.
fn run(options: &Options) -> Cost {
    let database = Database::create_on(chip(), options).unwrap();
    let table = database.table("t").unwrap();
    let mut expected = vec![0u32; ROWS as usize];
    for first in (0..ROWS).step_by(100) {
        let mut transaction = database.begin();
        (first..first + 100)
            .for_each(|number| transaction.put(table, &key(number), &[0; 30]).unwrap());
        transaction.commit().unwrap();
    }
    database.runtime().checkpoint_now().unwrap();
    // The next requests meet a database that was opened again.
    let database = Database::open_on(database.into_device().unwrap(), options).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    let before = database.stats().engine;
    let mut draws = Draws(7);
    for change in 1..=CHANGES {
        let number = draws.row();
        let mut transaction = database.begin();
        if change % 2 == 0 {
            let value = transaction.get(table, &key(number)).unwrap();
            let found = value.as_deref().and_then(|value| value.first_chunk());
            let wanted = expected[number as usize].to_le_bytes();
            assert_eq!(found, Some(&wanted), "row {number} at {change}: {options:?}");
        } else {
            let mut value = [0; 30];
            value[..4].copy_from_slice(&change.to_le_bytes());
            transaction.put(table, &key(number), &value).unwrap();
            expected[number as usize] = change;
        }
        transaction.commit().unwrap();
    }
    let after = database.stats().engine;
    let peaks = [after.memory.bases, after.memory.deltas];
    assert!(peaks.iter().all(|peak| *peak <= MEMORY), "{peaks:?}, {options:?}");
    let mut device = database.into_device().unwrap();
    device.power_cycle();
    let database = Database::open_on(device, options).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    for (number, change) in expected.iter().enumerate() {
        let value = database.begin().get(table, &key(number as u32)).unwrap().unwrap();
        assert_eq!(value[..4], change.to_le_bytes(), "row {number}, {options:?}");
    }
    assert!(database.check().unwrap().faults.is_empty(), "{options:?}");
    Cost {
        merges: after.merges - before.merges,
        misses: after.pool_misses - before.pool_misses,
        bases_peak: after.memory.bases,
    }
}

#[test]
fn a_wider_window_writes_less_and_no_window_is_lru() {
    let [none, half, whole] = [0.0, 0.5, 1.0].map(|window| run(&ls_lru(window)));
    let all = format!("{none:?} {half:?} {whole:?}");
    assert!(half.merges * 10 < none.merges * 7 && whole.merges < half.merges, "{all}");
    // Under LRU, a leaf that changed is written when it leaves: every other request misses a leaf
    // with changes, or will change it.
    assert!(none.bases_peak > MEMORY / 2, "{all}");
}

#[test]
fn any_victim_goes_with_it() {
    for victim in VictimRule::ALL {
        run(&ls_lru(0.5).with_policies(|policies| policies.victim = victim));
    }
}

#[test]
fn a_leaf_is_read_for_its_first_change_alone() {
    let [wait, once, always] = [AbsentLeaf::Wait, AbsentLeaf::ReadOnce, AbsentLeaf::Read]
        .map(|absent| run(&ls_lru(0.5).with_techniques(|techniques| techniques.absent = absent)));
    let all = format!("{wait:?} {once:?} {always:?}");
    assert!(wait.misses < once.misses && once.misses < always.misses, "{all}");
}

#[test]
fn what_it_cannot_work_with_is_refused() {
    let with = |change: fn(&mut Techniques)| ls_lru(0.5).with_techniques(change);
    let wrong = [
        (with(|techniques| techniques.budget = Budget::Divided), "budget"),
        (with(|techniques| techniques.budget = Budget::Adaptive), "budget"),
        (with(|techniques| techniques.merge_to = MergeTo::Frame), "merge_to"),
        (with(|techniques| techniques.frames = FrameKind::Ahead), "frames"),
        (ls_lru(1.1), "replacement_window"),
    ];
    for (options, option) in wrong {
        let refused = Database::create_on(chip(), &options).map(drop).unwrap_err().to_string();
        assert!(refused.contains(&format!("`{option}`")), "{refused}");
    }
}

/// Figure 6 of the paper: a node of ten entries, and thirty new entries for it. Immediate splits write three
/// nodes for every five new entries, 18 in all; one multi-split writes at most four leaves and their parent.
///
/// Here an insert that does not fit splits its leaf in an engine with whole pages (`traditional`), which
/// writes both halves; a parent is written by the checkpoint, since its separators stand in the log.
#[test]
fn a_multi_split_writes_a_leaf_once() {
    const PAGE: usize = 512;
    /// Ten entries fill a page, and twelve do not fit.
    const VALUE: usize = 36;
    let cost = |preset: &str| {
        let profile = Profile::named("ls-lru-nand").unwrap().with_block_count(64).unwrap();
        let options = crate::preset(preset).with_memory(64 * PAGE);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let put = |number: u32| {
            let mut transaction = database.begin();
            transaction.put(table, &key(number), &[7; VALUE]).unwrap();
            transaction.commit().unwrap();
        };
        // Leaves far apart, and one of ten entries between them.
        (0..40).for_each(|number| put(number * 1000));
        database.merge().unwrap();
        let written = || database.stats().space.programs_by_cause[1];
        let (before, reshapes) = (written(), database.stats().engine.reshapes);
        for step in 0..30 {
            put(17_001 + step * 13 % 30);
        }
        let splits = database.stats().engine.reshapes - reshapes;
        database.merge().unwrap();
        let rows = database.begin().range(table, ..).count();
        assert_eq!(rows, 70);
        (written() - before, splits)
    };
    let (immediate, immediate_splits) = cost("traditional");
    let (multi, multi_splits) = cost("ls-lru");
    assert_eq!(multi_splits, 0, "thirty changes are not more than three pages");
    assert!(multi <= 5, "four leaves and their parent, not {multi}");
    assert!(immediate_splits >= 3, "{immediate_splits}");
    assert!(immediate >= 3 * multi, "{immediate} pages with immediate splits, {multi} with one");
}

/// Goal: a leaf's changes meet it when their number reaches the limit, though memory has room.
#[test]
fn a_leaf_that_is_full_of_changes_is_merged() {
    let merges = |unit_pages: f64| {
        let options = ls_lru(0.5).with_memory(1 << 20);
        let options = options.with_policies(|policies| policies.unit_pages = unit_pages);
        let database = Database::create_on(chip(), &options).unwrap();
        let table = database.table("t").unwrap();
        for number in 0..1000 {
            let mut transaction = database.begin();
            transaction.put(table, &key(number), &[1; 30]).unwrap();
            transaction.commit().unwrap();
        }
        database.stats().engine.merges
    };
    assert_eq!(merges(0.0), 0);
    let [one, three] = [1.0, 3.0].map(merges);
    assert!(one > 2 * three && three > 0, "{one} {three}");
}

#[test]
fn a_full_merge_leaves_no_change_pending() {
    for preset in ["flagstone", "ls-lru", "traditional", "lazy-cost"] {
        let options = crate::preset(preset).with_memory(1 << 20);
        let database = Database::create_on(chip(), &options).unwrap();
        let table = database.table("t").unwrap();
        let mut transaction = database.begin();
        (0..2000).for_each(|number| transaction.put(table, &key(number), &[1; 30]).unwrap());
        transaction.commit().unwrap();
        database.merge().unwrap();
        assert_eq!(database.stats().engine.deltas, 0, "{preset}");
        let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
        let table = database.existing_table("t").unwrap().unwrap();
        assert_eq!(database.stats().engine.deltas, 0, "{preset}: nothing to put back");
        assert_eq!(database.begin().range(table, ..).count(), 2000, "{preset}");
    }
}
