//! Threads on a chip and on a file; `FLAGSTONE_EFFORT=N` lets them loose N times as often.

use std::time::Duration;

use flagstone_nand::{FileStorage, Profile, SegmentFile, SimNand};

use super::super::graph::Checked;
use super::super::tests::effort;
use super::{Crowd, Pace, Room, Yielding, in_time, let_loose, short_schedule};

const PATIENCE: Duration = Duration::from_secs(300);

/// Method: a chip in memory, so that all time goes into the code between the latches.
#[test]
fn shuffled_threads_are_serializable() {
    let mut total = Checked::default();
    for seed in 0..4 * effort() {
        let checked = in_time(PATIENCE, move || {
            let profile = Profile::named("tiny").unwrap().with_block_count(128).unwrap();
            let crowd = Crowd { threads: 6, count: 100, room: Room::Scarce, pace: Pace::Often };
            let chip = SimNand::new(&profile, seed);
            let_loose(Yielding::new(chip, Pace::Often, 0, seed), crowd, seed)
        })
        .unwrap();
        total.add(&checked);
    }
    println!("{total:?}");
    assert!(total.transactions > 1_000 * effort(), "{total:?}");
}

/// Method: a regular file with its real syncs.
#[test]
fn threads_on_a_file_are_serializable() {
    for seed in 0..effort() {
        let checked = in_time(PATIENCE, move || {
            let directory = tempfile::tempdir().unwrap();
            let file = FileStorage::create(&directory.path().join("threads.flag")).unwrap();
            let profile = Profile::named("segment-file").unwrap();
            let profile = profile.with_capacity(32 << 20).unwrap();
            let crowd = Crowd { threads: 6, count: 150, room: Room::Ample, pace: Pace::Often };
            let_loose(SegmentFile::create(file, &profile).unwrap(), crowd, seed)
        })
        .unwrap();
        println!("{checked:?}");
        assert!(checked.transactions > 400 && checked.snapshots > 100, "{checked:?}");
    }
}

/// Goal (E3): no schedule of a few threads breaks the promise. Method: many short ones.
#[test]
fn short_schedules_are_serializable() {
    for seed in 0..60 * effort() {
        let checked = in_time(PATIENCE, move || short_schedule(seed));
        assert!(checked.is_ok(), "schedule of seed {seed}: {checked:?}");
    }
}
