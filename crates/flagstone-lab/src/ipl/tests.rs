//! The store against a model: random events, each path on its own, and every power cut of a script.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_nand::{Crashable, Ending, FaultPlan, Nand, NandError, Profile, SimNand};
use proptest::prelude::*;

use super::*;

const SEED: u64 = 5;
const PAGES: u32 = 9;

/// Units of three pages and sixteen sectors.
fn chip() -> SimNand {
    let mut profile = Profile::named("ipl-2007").unwrap().with_block_count(20).unwrap();
    profile.geometry.pages_per_block = 16;
    SimNand::new(&profile, SEED)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Change { page: u32, xid: u64, size: usize },
    Flush(u32),
    Commit(u64),
    Abort(u64),
    Forget(u32),
    Read(u32),
}

/// Changes that must be on flash, and changes that may be.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Changes of each page in their order, with their transactions; the first is its creation.
    changes: BTreeMap<u32, Vec<(u64, u64)>>,
    /// Changes of each page that are known to be on flash: the first so many.
    flushed: BTreeMap<u32, usize>,
    committed: BTreeSet<u64>,
    aborted: BTreeSet<u64>,
    number: u64,
}

impl Model {
    fn version(page: u32, changes: impl Iterator<Item = u64>) -> Version {
        let mut version = Version::default();
        changes.for_each(|number| version.add(page, number));
        version
    }

    /// The version that a read of the page shows.
    fn now(&self, page: u32) -> Option<Version> {
        let changes = self.changes.get(&page)?.iter();
        let changes = changes.filter(|(xid, _)| !self.aborted.contains(xid));
        Some(Self::version(page, changes.map(|(_, number)| *number)))
    }

    /// Whether a store after a cut holds the changes it must; `in_flight` may have committed or
    /// not.
    fn admits<D: Nand>(
        &self,
        store: &mut IplStore<D>,
        in_flight: Option<u64>,
    ) -> Result<(), String> {
        let with = |xid: Option<u64>| {
            let mut committed = self.committed.clone();
            committed.insert(0);
            committed.extend(xid);
            committed
        };
        match store.config.variant {
            Variant::Basic => self.admits_basic(store),
            Variant::Recovery => {
                self.admits_committed(store, &with(None)).or_else(|error| match in_flight {
                    Some(_) => self.admits_committed(store, &with(in_flight)),
                    None => Err(error),
                })
            }
        }
    }

    /// Everything flushed, in order, and perhaps the changes that came next.
    fn admits_basic<D: Nand>(&self, store: &mut IplStore<D>) -> Result<(), String> {
        for (page, changes) in &self.changes {
            let flushed = self.flushed.get(page).copied().unwrap_or(0);
            if !store.has(*page) || flushed == 0 {
                if flushed > 0 {
                    return Err(format!("page {page} is gone"));
                }
                continue;
            }
            let found = store.read(*page).map_err(|error| format!("page {page}: {error}"))?;
            let of = |count: usize| {
                Self::version(*page, changes[..count].iter().map(|(_, number)| *number))
            };
            if !(flushed..=changes.len()).any(|count| of(count) == found) {
                return Err(format!("page {page} has {found:?}, {flushed} changes were flushed"));
            }
        }
        Ok(())
    }

    /// Exactly the changes of these transactions.
    fn admits_committed<D: Nand>(
        &self,
        store: &mut IplStore<D>,
        committed: &BTreeSet<u64>,
    ) -> Result<(), String> {
        for (page, changes) in &self.changes {
            let own: Vec<u64> = changes
                .iter()
                .filter(|(xid, _)| committed.contains(xid))
                .map(|(_, number)| *number)
                .collect();
            let was_flushed = self.flushed.contains_key(page);
            if !store.has(*page) {
                if was_flushed || own.len() > 1 {
                    return Err(format!("page {page} is gone"));
                }
                continue;
            }
            if !was_flushed && own.len() == 1 {
                continue;
            }
            let found = store.read(*page).map_err(|error| format!("page {page}: {error}"))?;
            let expected = Self::version(*page, own.into_iter());
            if found != expected {
                return Err(format!("page {page} has {found:?} instead of {expected:?}"));
            }
        }
        Ok(())
    }

    /// The changes that a store shows after a cut count from now on.
    fn settle<D: Nand>(&mut self, store: &mut IplStore<D>) -> Result<(), IplError> {
        for page in 0..PAGES {
            let Some(changes) = self.changes.get(&page) else {
                // It came back after it was given up.
                store.forget(page);
                continue;
            };
            if !store.has(page) {
                self.changes.remove(&page);
                self.flushed.remove(&page);
                continue;
            }
            // The version stays as it is: one change represents all of its changes.
            let version = store.read(page)?;
            let is_kept = |it: &&(u64, u64)| match store.config.variant {
                Variant::Basic => true,
                Variant::Recovery => it.0 == 0 || self.committed.contains(&it.0),
            };
            let kept: Vec<(u64, u64)> = changes.iter().filter(is_kept).copied().collect();
            let count = (0..=kept.len())
                .find(|count| Self::version(page, kept[..*count].iter().map(|it| it.1)) == version);
            match count {
                Some(count) => {
                    self.changes.insert(page, kept[..count].to_vec());
                    self.flushed.insert(page, count);
                }
                None => {
                    store.forget(page);
                    self.changes.remove(&page);
                    self.flushed.remove(&page);
                }
            }
        }
        Ok(())
    }

    /// Takes a step with the store; `Err` when the store failed or is wrong.
    fn step<D: Nand>(&mut self, store: &mut IplStore<D>, step: Step) -> Result<(), Failure> {
        match step {
            Step::Change { page, xid, size } => {
                let xid = if store.config.variant == Variant::Basic { 0 } else { xid };
                self.number += 1;
                if !store.has(page) {
                    self.changes.insert(page, vec![(0, self.number)]);
                    self.flushed.remove(&page);
                    store.create(page, self.number);
                    return Ok(());
                }
                self.changes.entry(page).or_default().push((xid, self.number));
                self.aborted.remove(&xid);
                store.change(page, Change { xid, number: self.number, size })?;
            }
            Step::Flush(page) => {
                store.flush(page)?;
                if let Some(changes) = self.changes.get(&page) {
                    self.flushed.insert(page, changes.len());
                }
            }
            Step::Commit(xid) => {
                store.commit(xid)?;
                self.committed.insert(xid);
            }
            Step::Abort(xid) => {
                store.abort(xid);
                self.aborted.insert(xid);
            }
            Step::Forget(page) => {
                store.forget(page);
                self.changes.remove(&page);
                self.flushed.remove(&page);
            }
            Step::Read(page) => {
                let found = store.has(page).then(|| store.read(page)).transpose()?;
                if found != self.now(page) {
                    return Err(Failure::Wrong(format!("page {page} has {found:?}")));
                }
            }
        }
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Store(#[from] IplError),
    #[error("{0}")]
    Wrong(String),
}

fn reopened(store: IplStore<SimNand>, config: Config) -> IplStore<SimNand> {
    IplStore::open(store.into_device(), config).unwrap()
}

/// Steps whose transactions each commit or abort once; numbers are not used again.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..PAGES, 0_u64..4, 12_usize..300)
            .prop_map(|(page, xid, size)| Step::Change { page, xid, size }),
        4 => (0..PAGES).prop_map(Step::Flush),
        2 => (0_u64..4).prop_map(Step::Commit),
        1 => (0_u64..4).prop_map(Step::Abort),
        1 => (0..PAGES * 3).prop_map(Step::Forget),
        3 => (0..PAGES).prop_map(Step::Read),
    ];
    prop::collection::vec(step, 0..400).prop_map(numbered)
}

/// Gives each transaction a number of its own: its terminal's, and how many it has ended.
fn numbered(steps: Vec<Step>) -> Vec<Step> {
    let mut ended = [0_u64; 4];
    let mut number = |terminal: u64, ends: bool| {
        let count = &mut ended[terminal as usize];
        let xid = 1 + terminal + 4 * *count;
        *count += u64::from(ends);
        xid
    };
    let numbered = |step| match step {
        Step::Change { page, xid, size } => Step::Change { page, xid: number(xid, false), size },
        Step::Commit(xid) => Step::Commit(number(xid, true)),
        Step::Abort(xid) => Step::Abort(number(xid, true)),
        other => other,
    };
    steps.into_iter().map(numbered).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Goal: every page reads as changed, after any events, and again after a restart.
    #[test]
    fn pages_read_as_they_were_changed(
        steps in steps(),
        is_basic in any::<bool>(),
        carried_max in prop::sample::select(vec![0.0, 0.3, 1.0]),
    ) {
        let variant = if is_basic { Variant::Basic } else { Variant::Recovery };
        let config = Config { carried_max, ..Config::of(variant) };
        let mut store = IplStore::format(chip(), config).unwrap();
        let mut model = Model::default();
        for step in &steps {
            let done = model.step(&mut store, *step);
            prop_assert!(done.is_ok(), "{step:?}: {done:?}");
        }
        for page in 0..PAGES {
            model.step(&mut store, Step::Read(page)).unwrap();
        }
        let mut store = reopened(store, config);
        let verdict = model.admits(&mut store, None);
        prop_assert!(verdict.is_ok(), "{verdict:?}");
    }
}

/// A script that merges, carries over and overflows on a small chip.
fn script() -> Vec<Step> {
    let mut draws = crate::workload::Draws::new(SEED, 0);
    let mut steps: Vec<Step> = (0..6)
        .flat_map(|page| [Step::Change { page, xid: 0, size: 0 }, Step::Flush(page)])
        .collect();
    for _ in 0..130 {
        let page = draws.below(7) as u32;
        let (xid, size) = (draws.below(3), 12 + draws.below(180) as usize);
        steps.push(Step::Change { page, xid, size });
        steps.push(match draws.below(16) {
            0 => Step::Commit(xid),
            1 => Step::Abort(xid),
            2 if page == 6 => Step::Forget(page),
            _ => Step::Flush(page),
        });
    }
    numbered(steps)
}

const VARIANTS: [Variant; 2] = [Variant::Basic, Variant::Recovery];

fn small(variant: Variant) -> Config {
    Config { carried_max: 0.2, ..Config::of(variant) }
}

/// Runs the script until power goes; the model, the device, and the commit in flight.
fn run(config: Config, device: SimNand) -> (Model, SimNand, Option<u64>, IplStats) {
    let mut store = IplStore::format(device, config).unwrap();
    let mut model = Model::default();
    for step in script() {
        match model.step(&mut store, step) {
            Ok(()) => {}
            Err(Failure::Store(IplError::Device(NandError::PowerOff))) => {
                let in_flight = if let Step::Commit(xid) = step { Some(xid) } else { None };
                let stats = store.stats();
                return (model, store.into_device(), in_flight, stats);
            }
            Err(error) => panic!("{step:?}: {error}"),
        }
    }
    let stats = store.stats();
    (model, store.into_device(), None, stats)
}

/// Reads that unstable cells do not survive.
const READS: usize = 6;

/// Opens a store after a cut, checks it, works on with it, and opens it once more.
fn check(
    config: Config,
    mut device: SimNand,
    mut model: Model,
    in_flight: Option<u64>,
) -> Result<(), String> {
    let text = |error: IplError| format!("after the cut: {error}");
    device.power_cycle();
    let mut store = IplStore::open(device, config).map_err(text)?;
    for _ in 0..READS {
        model.admits(&mut store, in_flight)?;
    }
    let without = model.admits(&mut store, None).is_err();
    model.committed.extend(in_flight.filter(|_| without));
    model.settle(&mut store).map_err(text)?;
    // Numbers of transactions are not used again.
    let again = |step| match step {
        Step::Change { page, xid, size } => Step::Change { page, xid: xid + 1000, size },
        Step::Commit(xid) => Step::Commit(xid + 1000),
        Step::Abort(xid) => Step::Abort(xid + 1000),
        other => other,
    };
    for step in script().into_iter().take(60).map(again) {
        model.step(&mut store, step).map_err(|error| format!("{step:?} after it: {error}"))?;
    }
    let mut store = IplStore::open(store.into_device(), config).map_err(text)?;
    model.admits(&mut store, None)
}

/// Cuts the script at every `stride`th operation with every ending; the first failure.
fn explore(config: Config, stride: usize) -> Option<String> {
    let mut probe = chip();
    probe.record_operations();
    let (_, probe, _, _) = run(config, probe);
    for operation in (0..probe.operation_count()).step_by(stride) {
        for ending in probe.endings_at(operation) {
            let mut device = chip();
            device.set_plan(FaultPlan::power_cut(SEED, operation, ending));
            let (model, device, in_flight, _) = run(config, device);
            if let Err(error) = check(config, device, model, in_flight) {
                return Some(format!("operation {operation}, {ending}: {error}"));
            }
        }
    }
    None
}

#[test]
fn the_script_merges_carries_over_and_overflows() {
    for variant in VARIANTS {
        let (_, _, _, stats) = run(small(variant), chip());
        assert!(stats.merges >= 3 && stats.pages_created >= 6, "{stats:?}");
        let is_recovery = variant == Variant::Recovery;
        assert_eq!(stats.carried > 0, is_recovery, "{stats:?}");
        assert_eq!(stats.overflow_sectors > 0, is_recovery, "{stats:?}");
        assert_eq!(stats.status_sectors > 0, is_recovery, "{stats:?}");
    }
}

/// Goal: every flushed (or committed) change is there, and in the recovery variant nothing else.
///
/// Method: every operation of the script, every way in which it may end.
#[test]
fn every_power_cut_leaves_what_was_promised() {
    for variant in VARIANTS {
        assert_eq!(explore(small(variant), 1), None, "{variant:?}");
    }
}

/// Goal: a cut during restart is as harmless. Method: some cuts of the script, and after each every
/// operation of the restart that follows.
#[test]
fn a_cut_during_restart_leaves_what_was_promised() {
    const ENDINGS: [Ending; 3] =
        [Ending::LooksComplete, Ending::LooksUntouched, Ending::RandomBits];
    for variant in VARIANTS {
        let config = small(variant);
        let mut probe = chip();
        probe.record_operations();
        let (_, probe, _, _) = run(config, probe);
        for first in (0..probe.operation_count()).step_by(23) {
            for ending in ENDINGS {
                let mut device = chip();
                device.set_plan(FaultPlan::power_cut(SEED, first, ending));
                let (model, mut device, in_flight, _) = run(config, device);
                device.power_cycle();
                let begin = device.operation_count();
                let opened = IplStore::open(device.clone(), config).unwrap();
                for second in begin..opened.device().operation_count() {
                    let mut device = device.clone();
                    let ending = ENDINGS[(second % 3) as usize];
                    device.set_plan(FaultPlan::power_cut(SEED, second, ending));
                    let cut = IplStore::open(&mut device, config).err();
                    let off = IplError::Device(NandError::PowerOff);
                    assert_eq!(cut, Some(off), "the cut comes while it opens");
                    let verdict = check(config, device, model.clone(), in_flight);
                    assert_eq!(verdict, Ok(()), "{variant:?} {first} {ending} then {second}");
                }
            }
        }
    }
}

/// Goal: the exploration sees. Method: each rule broken on purpose.
#[test]
fn planted_mistakes_are_found() {
    let everywhere = [Mistake::EraseFirst, Mistake::HalfMergeCounts, Mistake::ChecksumIgnored];
    let recovery = [Mistake::StatusFirst];
    for (variants, mistakes) in [(&VARIANTS[..], &everywhere[..]), (&VARIANTS[1..], &recovery[..])]
    {
        for variant in variants {
            for mistake in mistakes {
                let config = Config { mistake: *mistake, ..small(*variant) };
                assert!(explore(config, 1).is_some(), "{variant:?} {mistake:?} was not found");
            }
        }
    }
    let config = Config { mistake: Mistake::FlightTrusted, ..small(Variant::Basic) };
    assert!(explore(config, 1).is_some(), "what was in flight is trusted");
}

#[test]
fn a_sector_with_a_wrong_bit_is_not_believed() {
    let config = Config::of(Variant::Basic);
    let mut store = IplStore::format(chip(), config).unwrap();
    store.create(1, 1);
    store.flush(1).unwrap();
    store.change(1, Change { xid: 0, number: 2, size: 40 }).unwrap();
    store.flush(1).unwrap();
    let mut device = store.clone().into_device();
    let page = device.geometry().page(BlockIndex(0), 12).unwrap();
    let mut content = device.peek(page);
    content.data[30] ^= 2;
    device.poke(page, &content);
    store.chip.device = device;
    let error = store.read(1).unwrap_err();
    assert!(matches!(error, IplError::Corrupt { block: BlockIndex(0), .. }), "{error}");
    store.chip.mistake = Mistake::ChecksumIgnored;
    assert!(store.read(1).is_ok(), "nothing but the checksum tells");
}

#[test]
fn a_full_chip_and_an_unfit_one_say_so() {
    let mut store = IplStore::format(chip(), Config::of(Variant::Basic)).unwrap();
    let full = (0..100).find_map(|page| {
        store.create(page, u64::from(page));
        store.flush(page).err()
    });
    assert_eq!(full, Some(IplError::Full));
    let tiny = SimNand::new(&Profile::named("spi-nand").unwrap(), SEED);
    let error = IplStore::format(tiny, Config::of(Variant::Basic)).err();
    assert!(matches!(error, Some(IplError::Unfit(_))), "{error:?}");
}

#[test]
fn reads_cost_the_flash_pages_that_hold_the_page_and_its_sectors() {
    let mut store = IplStore::format(chip(), Config::of(Variant::Basic)).unwrap();
    for page in 0..3 {
        store.create(page, u64::from(page));
        store.flush(page).unwrap();
    }
    let reads = |store: &mut IplStore<SimNand>, page: u32| {
        let before = store.device().counters().page_reads;
        store.read(page).unwrap();
        store.device().counters().page_reads - before
    };
    assert_eq!(reads(&mut store, 0), 4);
    for number in 10..16 {
        // Sectors 0 to 5: page 0 has the even ones.
        let page = (number % 2) as u32;
        store.change(page, Change { xid: 0, number, size: 50 }).unwrap();
        store.flush(page).unwrap();
    }
    assert_eq!(reads(&mut store, 0), 6, "two flash pages of the log region");
    assert_eq!(reads(&mut store, 2), 4, "no sector of it");
}

#[test]
fn a_merge_costs_a_block_and_begins_the_log_region_anew() {
    let mut store = IplStore::format(chip(), Config::of(Variant::Basic)).unwrap();
    for page in 0..3 {
        store.create(page, u64::from(page));
        store.flush(page).unwrap();
    }
    let before = store.device().counters();
    for number in 10..27 {
        store.change(0, Change { xid: 0, number, size: 50 }).unwrap();
        store.flush(0).unwrap();
    }
    let after = store.device().counters();
    assert_eq!(store.stats().merges, 1);
    assert_eq!(after.partial_programs - before.partial_programs, 17);
    assert_eq!(after.page_programs - before.page_programs, 12, "three pages of four");
    assert_eq!(after.block_erases - before.block_erases, 1);
    assert_eq!(after.page_reads - before.page_reads, 16, "and four flash pages of log");
}
