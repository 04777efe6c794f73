//! A database on a chip without any ECC, under code words of our own.

use std::collections::BTreeMap;

use flagstone::Options;
use flagstone_nand::{
    Crashable as _, EccNand, Ending, FaultPlan, Nand as _, PageContent, PhysicalPage, Profile,
    SimNand,
};

use crate::on::Database;

type Chip = EccNand<SimNand>;

/// Commits of a run: enough for merges, appends and a checkpoint.
const COMMITS: u32 = 120;
const KEYS: u32 = 17;

fn chip() -> Chip {
    let profile = Profile::named("tiny-own").unwrap().with_block_count(48).unwrap();
    EccNand::simulated(&profile, 1).unwrap()
}

fn options() -> Options {
    Options::default().with_memory(16 << 10).with_log_pages(24)
}

fn value(commit: u32) -> Vec<u8> {
    vec![commit as u8; 40 + commit as usize % 50]
}

/// Content of a database after so many commits.
fn expected(commits: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let row = |commit: u32| ((commit * 5 % KEYS).to_be_bytes().to_vec(), value(commit));
    (0..commits).map(row).collect()
}

fn created() -> Chip {
    let database = Database::create_on(chip(), &options()).unwrap();
    database.table("t").unwrap();
    database.runtime().checkpoint_now().unwrap();
    database.into_device().unwrap()
}

/// Commits one after the other; gives the number that returned.
fn commit_all(database: &Database<Chip>) -> u32 {
    let table = database.existing_table("t").unwrap().unwrap();
    for commit in 0..COMMITS {
        let mut transaction = database.begin();
        let key = (commit * 5 % KEYS).to_be_bytes();
        let done = transaction.put(table, &key, &value(commit)).is_ok()
            && transaction.commit().is_ok()
            && (commit != COMMITS / 2 || database.runtime().checkpoint_now().is_ok());
        if !done {
            return commit;
        }
    }
    COMMITS
}

fn run(chip: Chip) -> (Chip, u32) {
    let database = Database::open_on(chip, &options()).unwrap();
    let returned = commit_all(&database);
    (database.into_device().unwrap(), returned)
}

/// Content of a reopened database, or the fault that its check finds.
fn content(chip: Chip) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
    let database = Database::open_on(chip, &options()).map_err(|error| error.to_string())?;
    let table = database.existing_table("t").map_err(|error| error.to_string())?;
    let table = table.ok_or("the table is gone")?;
    let rows = database.snapshot().map_err(|error| error.to_string())?.range(table, ..).collect();
    let rows: Result<_, flagstone::ReadError> = rows;
    let rows = rows.map_err(|error| error.to_string())?;
    let faults = database.check().map_err(|error| error.to_string())?.faults;
    if faults.is_empty() { Ok(rows) } else { Err(format!("{faults:?}")) }
}

/// Goal: the promise holds at every power cut, also where it leaves torn parity and torn labels. Method:
/// every operation of small commits, with every ending; no more than the commit in flight is in doubt.
#[test]
fn every_power_cut_of_a_commit_leaves_whole_commits() {
    let created = created();
    let mut recording = created.clone();
    recording.record_operations();
    // Cuts begin behind the opening: a device that fails during an opening is not given back.
    let opened = Database::open_on(created.clone(), &options()).unwrap();
    let first = opened.into_device().unwrap().operation_count();
    let (done, returned) = run(recording);
    assert_eq!(returned, COMMITS, "without a cut");
    let mut states = 0;
    for operation in first..done.operation_count() {
        let kind = done.operation_kind(operation).unwrap();
        for ending in Ending::applicable(kind, &done.capabilities()) {
            let mut cut = created.clone();
            cut.set_plan(FaultPlan::power_cut(operation, operation, ending));
            let (mut cut, returned) = run(cut);
            cut.power_cycle();
            cut.set_plan(FaultPlan::default());
            states += 1;
            let found = content(cut);
            let is_right = [returned, returned + 1].map(expected).map(Ok).contains(&found);
            assert!(is_right, "operation {operation} {ending}: {returned} returned, {found:?}");
        }
    }
    assert!(states > 500, "{states} states");
}

fn pages(chip: &Chip) -> Vec<PhysicalPage> {
    let geometry = chip.geometry();
    (0..geometry.page_count()).filter_map(|number| geometry.page_from_number(number)).collect()
}

fn is_programmed(chip: &Chip, page: PhysicalPage) -> bool {
    let PageContent { data, spare } = chip.device().peek(page);
    data.iter().chain(&spare).any(|byte| *byte != 0xFF)
}

/// Goal: as many flipped bits as the code repairs are invisible, in every code word at once, words that were
/// never programmed and parity included. Method: bits that every read finds flipped.
#[test]
fn flips_up_to_the_strength_are_invisible() {
    let (chip, _) = run(created());
    let word = chip.capabilities().code_word;
    let geometry = chip.geometry();
    let words = geometry.page_size / word.data_size;
    let parity_size = 3;
    for in_parity in 0..=word.strength {
        let mut flipped = chip.clone();
        for page in pages(&chip) {
            for index in 0..words {
                flipped.device_mut().flip_bits(page, index, word.strength - in_parity);
                let parity = geometry.spare_size - (words - index) * parity_size;
                for bit in (0..in_parity).filter(|_| is_programmed(&chip, page)) {
                    flipped.device_mut().flip_spare(page, parity + bit, 0x80 >> bit);
                }
            }
        }
        assert_eq!(content(flipped), Ok(expected(COMMITS)), "{in_parity} of them in parity");
    }
}

/// Goal: one more flip gives a typed error or the right answer. Method: page by page.
#[test]
fn a_flip_too_many_is_noticed() {
    let (chip, _) = run(created());
    let word = chip.capabilities().code_word;
    let words = chip.geometry().page_size / word.data_size;
    let mut reported = 0;
    for page in pages(&chip).into_iter().filter(|page| is_programmed(&chip, *page)) {
        let mut flipped = chip.clone();
        (0..words).for_each(|index| flipped.device_mut().flip_bits(page, index, word.strength + 1));
        match content(flipped) {
            Ok(found) => {
                // Only the last page of the log may look like a page that a cut took.
                let is_right =
                    (0..=COMMITS).rev().take(30).any(|commits| expected(commits) == found);
                assert!(is_right, "page {}: {found:?}", page.number());
            }
            Err(_) => reported += 1,
        }
    }
    assert!(reported > 0, "no page is needed");
}
