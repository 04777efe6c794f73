//! Restart keeps apart the changes before and after a transaction that committed with its pages: the
//! transaction's own changes stand in a page alone.

use flagstone::Options;
use flagstone_engine::CommitBy;
use flagstone_nand::{Crashable, Profile, SimNand};

use crate::on::Database;

const ROWS: u8 = 24;

fn options(commit: CommitBy) -> Options {
    let options = Options::default().with_memory(256 << 10);
    options.with_techniques(|techniques| techniques.commit = commit)
}

/// A session in which `offset` of some rows becomes `value`, by the log or with their leaf; then power goes.
fn patched(
    chip: SimNand,
    commit: CommitBy,
    rows: std::ops::Range<u8>,
    change: (usize, u8),
) -> SimNand {
    let database = Database::open_on(chip, &options(commit)).unwrap();
    let table = database.existing_table("t").unwrap().unwrap();
    let mut transaction = database.begin();
    rows.for_each(|row| transaction.patch(table, &[row], change.0, &[change.1]).unwrap());
    transaction.commit().unwrap();
    assert_eq!(database.stats().engine.claimed_pages > 0, commit == CommitBy::Claims);
    let mut chip = database.into_device().unwrap();
    chip.power_cycle();
    chip
}

/// A row whose first byte is changed by a small commit, then by a commit that writes its leaf, and whose
/// sixth byte is changed afterwards.
fn changed_three_times() -> SimNand {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let chip = SimNand::new(&profile, 1);
    let database = Database::create_on(chip, &options(CommitBy::Log)).unwrap();
    let table = database.table("t").unwrap();
    let mut transaction = database.begin();
    (0..ROWS).for_each(|row| transaction.put(table, &[row], &[0; 60]).unwrap());
    transaction.commit().unwrap();
    database.merge().unwrap();
    database.runtime().checkpoint_now().unwrap();
    let chip = patched(database.into_device().unwrap(), CommitBy::Log, 3..4, (0, 1));
    let chip = patched(chip, CommitBy::Claims, 0..ROWS, (0, 2));
    patched(chip, CommitBy::Log, 3..4, (5, 3))
}

fn row_of(database: &flagstone::Database) -> Vec<u8> {
    let table = database.existing_table("t").unwrap().unwrap();
    let row = database.snapshot().unwrap().get(table, &[3]).unwrap().unwrap();
    row[..6].to_vec()
}

#[test]
fn changes_before_and_after_a_page_commit_stay_apart() {
    let database = Database::open_on(changed_three_times(), &options(CommitBy::Log)).unwrap();
    assert_eq!(row_of(&database), [2, 0, 0, 0, 0, 3]);
}

/// Goal: the test above sees such folds. Method: a restart that folds the changes.
#[cfg(feature = "seeded-bugs")]
#[test]
fn a_fold_over_a_page_commit_is_seen() {
    let bug = Some(flagstone::SeededBug::ClaimFolded);
    let options = options(CommitBy::Log);
    let device = flagstone::device::AnyNand::new(changed_three_times());
    let runtime = flagstone_engine::Runtime::open_planted(device, &options, bug, None).unwrap();
    let database = flagstone::Database::over(runtime);
    assert_eq!(row_of(&database), [1, 0, 0, 0, 0, 3], "the first change comes back");
}
