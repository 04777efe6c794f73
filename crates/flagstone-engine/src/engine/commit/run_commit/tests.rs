use std::collections::BTreeMap;

use flagstone_nand::{Crashable, Ending, FaultPlan, Profile, SimNand};

use crate::testing::Database;
use crate::{Durability, EngineError, Options, Table};

/// Changes of a commit that goes by a run.
const MANY: u32 = 500;

type Model = BTreeMap<[u8; 4], Vec<u8>>;

/// Numbers without a pattern, and keys out of that many.
struct Draws(u64, u32);

impl Draws {
    fn next(&mut self, below: u32) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        ((self.0 >> 33) % u64::from(below)) as u32
    }

    fn key(&mut self) -> [u8; 4] {
        self.next(self.1).wrapping_mul(0x9E37_79B1).to_be_bytes()
    }
}

fn options() -> Options {
    Options::default().with_memory(1 << 20)
}

fn created() -> (Database<SimNand>, Table) {
    let profile = Profile::named("slc-2k").unwrap().with_block_count(256).unwrap();
    let database = Database::create_on(SimNand::new(&profile, 1), &options()).unwrap();
    let table = database.table("t").unwrap();
    (database, table)
}

/// A commit of many changes at random places, also made in the model.
fn put_many(database: &Database<SimNand>, table: Table, draws: &mut Draws, model: &mut Model) {
    try_change(database, table, (MANY, 20), draws, model).unwrap();
}

/// A commit of few changes.
fn change_some(database: &Database<SimNand>, table: Table, draws: &mut Draws, model: &mut Model) {
    let count = 1 + draws.next(5);
    try_change(database, table, (count, 3), draws, model).unwrap();
}

/// A commit of so many changes, of which one in `others` deletes. In commits of few changes another one
/// patches: a patch reads, and after that runs wait no longer.
fn try_change(
    database: &Database<SimNand>,
    table: Table,
    (count, others): (u32, u32),
    draws: &mut Draws,
    model: &mut Model,
) -> Result<(), EngineError> {
    let mut transaction = database.begin();
    for _ in 0..count {
        let (key, fill) = (draws.key(), draws.next(256) as u8);
        match draws.next(others) {
            0 => {
                transaction.delete(table, &key)?;
                model.remove(&key);
            }
            1 if count < MANY && model.contains_key(&key) => {
                transaction.patch(table, &key, 7, &[fill; 9])?;
                model.get_mut(&key).unwrap()[7..16].fill(fill);
            }
            _ => {
                transaction.put(table, &key, &[fill; 100])?;
                model.insert(key, vec![fill; 100]);
            }
        }
    }
    transaction.commit_with(Durability::Immediate).map(drop)
}

fn rows(database: &Database<SimNand>, table: Table) -> Vec<(Vec<u8>, Vec<u8>)> {
    database.snapshot().unwrap().range(table, ..).map(Result::unwrap).collect()
}

fn assert_holds(database: &Database<SimNand>, table: Table, model: &Model, what: &str) {
    let expected = model.iter().map(|(key, value)| (key.to_vec(), value.clone()));
    let found = rows(database, table);
    assert!(found.iter().cloned().eq(expected), "{what}: {} of {}", found.len(), model.len());
    let report = database.check().unwrap();
    assert!(report.is_sound(), "{what}: {report:?}");
}

fn waiting(database: &Database<SimNand>) -> usize {
    database.runtime().engine().runs.waiting_count()
}

/// Goal (B1, B2, R1 to R5): changes that wait outside memory are there for every reader, also with
/// later commits behind them, after merges, and after a restart. Method: commits of 500 random rows
/// among small commits that change the same rows, reads, restarts, checkpoints; a model.
#[test]
fn runs_that_wait_are_part_of_the_table() {
    let mut waited = 0;
    for seed in 0..6_u64 {
        let (mut database, mut table) = created();
        let (mut draws, mut model) = (Draws(seed, 24_000), Model::new());
        for step in 0..90 {
            put_many(&database, table, &mut draws, &mut model);
            for _ in 0..draws.next(4) {
                change_some(&database, table, &mut draws, &mut model);
            }
            waited = waited.max(waiting(&database));
            match draws.next(12) {
                0 => {
                    let key = draws.key();
                    let found = database.begin().get(table, &key).unwrap();
                    assert_eq!(found.as_ref(), model.get(&key), "seed {seed}, step {step}");
                }
                1 if seed % 2 == 0 => database.runtime().checkpoint_now().unwrap(),
                2 => {
                    let mut device = database.into_device().unwrap();
                    device.power_cycle();
                    database = Database::open_on(device, &options()).unwrap();
                    table = database.existing_table("t").unwrap().unwrap();
                }
                3 if step % 4 == 0 => {
                    assert_holds(&database, table, &model, &format!("seed {seed}, step {step}"));
                }
                _ => {}
            }
        }
        let (before, known) = (database.snapshot().unwrap(), model.clone());
        change_some(&database, table, &mut draws, &mut model);
        for _ in 0..50 {
            let key = draws.key();
            match before.get(table, &key) {
                Ok(found) => assert_eq!(found.as_ref(), known.get(&key), "seed {seed}"),
                // The old versions that merges kept took too much memory.
                Err(error) => assert_eq!(error, EngineError::SnapshotTooOld),
            }
        }
        drop(before);
        assert_holds(&database, table, &model, &format!("seed {seed}"));
    }
    assert!(waited > 10, "{waited} runs waited at most");
}

/// Goal (D2, D5, R1 to R5): a waiting run is there as a whole once its commit is, with the commits
/// before and behind it, wherever the power goes, and again in the sessions that follow. Method: the
/// same commits, each session ended by a cut at a random operation; the last commit is there or not.
#[test]
fn runs_that_wait_survive_cuts() {
    let mut waited = 0;
    for seed in 0..4_u64 {
        let (mut database, mut table) = created();
        let (mut draws, mut model) = (Draws(seed, 16_000), Model::new());
        (0..30).for_each(|_| put_many(&database, table, &mut draws, &mut model));
        for round in 0..24 {
            let number = {
                let mut space = database.runtime().space();
                let number = space.device().operation_count() + u64::from(draws.next(1_500));
                let ending = match draws.next(3) {
                    0 => Ending::Untouched,
                    1 => Ending::Complete,
                    _ => Ending::Torn { units: 1 },
                };
                space.device_mut().set_plan(FaultPlan::power_cut(round, number, ending));
                number
            };
            let (mut before, mut after) = (model.clone(), model);
            loop {
                let size = if draws.next(3) == 0 { (MANY, 20) } else { (1 + draws.next(5), 3) };
                let done = try_change(&database, table, size, &mut draws, &mut after);
                if done.is_err() {
                    break;
                }
                waited = waited.max(waiting(&database));
                before.clone_from(&after);
            }
            let mut device = database.into_device().unwrap();
            assert!(device.operation_count() >= number, "the power went");
            device.power_cycle();
            device.set_plan(FaultPlan::default());
            database = Database::open_on(device, &options()).unwrap();
            table = database.existing_table("t").unwrap().unwrap();
            // A scan of the whole table has every run loaded.
            if draws.next(3) > 0 {
                let keys: Vec<_> = (0..20).map(|_| draws.key()).collect();
                let holds = |model: &Model| {
                    keys.iter().all(|key| {
                        database.begin().get(table, key).unwrap().as_ref() == model.get(key)
                    })
                };
                assert!(holds(&before) || holds(&after), "seed {seed}, round {round}");
            }
            let found = rows(&database, table);
            let is_of = |model: &Model| {
                found.len() == model.len()
                    && found
                        .iter()
                        .zip(model)
                        .all(|((key, value), (other, expected))| key == other && value == expected)
            };
            let is_old = is_of(&before);
            assert!(is_old || is_of(&after), "seed {seed}, round {round}: {} rows", found.len());
            model = if is_old { before } else { after };
        }
        assert_holds(&database, table, &model, &format!("seed {seed}"));
    }
    assert!(waited > 5, "{waited} runs waited at most");
}

/// Goal: where commits are large, random rows are written a few times their size, in a table of any
/// size. Method: all bytes programmed, for each byte of user data, with runs and with the log alone.
#[test]
fn random_rows_of_large_commits_cost_fewer_pages() {
    let cost = |commit| {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(512).unwrap();
        let options = options().with_techniques(|techniques| techniques.commit = commit);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let (mut draws, mut model) = (Draws(7, u32::MAX), Model::new());
        (0..160).for_each(|_| put_many(&database, table, &mut draws, &mut model));
        let bytes: u64 = database.stats().space.bytes_by_cause.iter().sum();
        bytes as f64 / database.stats().engine.user_bytes as f64
    };
    let (by_runs, by_log) = (cost(crate::CommitBy::Auto), cost(crate::CommitBy::Log));
    assert!(by_runs < by_log * 0.85, "{by_runs:.2} and {by_log:.2} times their bytes");
}

/// Goal: a database that was closed opens for reading with the memory that it was written with,
/// although readers can merge nothing. Method: sessions that leave runs waiting; all rows are read.
#[test]
fn what_waits_at_a_close_can_be_read_with_the_same_memory() {
    let (mut database, mut table) = created();
    let (mut draws, mut model) = (Draws(3, 24_000), Model::new());
    (0..40).for_each(|_| put_many(&database, table, &mut draws, &mut model));
    let mut waited = 0;
    for session in 0..8 {
        for _ in 0..4 {
            put_many(&database, table, &mut draws, &mut model);
            waited = waited.max(waiting(&database));
        }
        database.clone().close().unwrap();
        let device = database.into_device().unwrap();
        let reader = Database::open_read_only_on(device.clone(), &options()).unwrap();
        let read = reader.existing_table("t").unwrap().unwrap();
        assert_eq!(rows(&reader, read).len(), model.len(), "session {session}");
        database = Database::open_on(device, &options()).unwrap();
        table = database.existing_table("t").unwrap().unwrap();
    }
    assert!(waited > 3, "{waited} runs waited at most");
}
