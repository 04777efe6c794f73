//! Creating and opening: format or mount, then restart.

use std::collections::HashMap;

use flagstone_nand::{Capabilities, CellMode, Geometry};
use flagstone_space::{
    LogRead, LogRoom, MountError, MountReport, OPEN_GROUP_PAGE_SIZE, blocks_needed,
};

use super::{
    Collection, EngineError, GcPolicy, GroupId, LogGeometry, LogicalPage, Lsn, Mutex, Nand,
    OpenError, Options, Runtime, RwLock, SeededBug, Space, SpaceError, SpaceOptions, WearLevelling,
};
use crate::bugs::Bugs;
use crate::engine::{
    CATALOG, CATALOG_ROOT, Direction, Engine, Identity, Master, MeetPoint, Replay, ReplayEffects,
    RowValue, ScanRange, is_name,
};
use crate::error::Corruption;
use crate::log::{
    ChainPoint, LogEnd, LogPage, LogReader, LogWriter, ReadStart, Record, Survivors, lsn,
};
use crate::options::OptionsError;

/// Purpose of opening a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Write,
    /// Nothing is written, not even by restart: answers rest on the data that reads now.
    Read,
}

/// Work and findings of a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Physical pages read, log pages included.
    pub pages_read: u64,
    /// Physical pages programmed: copies of the log's tail, never data (rule D11).
    pub pages_written: u64,
    /// Log pages read.
    pub log_pages_read: u64,
    /// Log fragments that may have been in flight at a cut and were programmed again.
    pub log_pages_copied: u64,
    /// Commits put back into memory.
    pub commits: u64,
    /// Whether all blocks of the chip had to be scanned.
    pub full_scan: bool,
    /// Device time spent on opening, in nanoseconds.
    pub time_ns: u64,
}

/// Bytes of log for each byte of memory, when the options leave the size open: the more the log
/// holds, the fewer live deltas a checkpoint has to copy for each commit.
const LOG_MEMORY_RATIO: u64 = 4;

/// A log whose size the options leave open takes at most one part in this many of the blocks that it
/// shares with the data.
const LOG_DEVICE_SHARE: u64 = 4;

/// Static wear levelling moves at most one page in this many.
const LEVEL_SHARE: u32 = 64;

/// Log pages of the smallest log: room for a checkpoint's copies and for commits meanwhile.
const LOG_PAGES_MIN: u64 = 24;

/// Blocks of the smallest log: one that takes appends, one that a restart left half used, one with
/// the copies of a checkpoint, and one for the commits that go on meanwhile.
const LOG_BLOCKS_MIN: u64 = 4;

/// Log pages beyond which no device is large enough.
const LOG_PAGES_MAX: u32 = 1 << 24;

/// A growing device begins with the blocks that the smallest database needs, and one part in this
/// many more.
const GROWING_SPARE_SHARE: u32 = 8;

/// Logical pages of the smallest database: three times the engine's reserve.
const PAGES_MIN: u32 = 24;

const NO_MASTER: Corruption = Corruption { page: None, check: "master record does not decode" };
const LOG_HOLE: Corruption = Corruption { page: None, check: "a complete log page is missing" };
const NO_RECORD: Corruption = Corruption {
    page: None,
    check: "no checkpoint reads, and the log behind the last one is gone",
};
const LOG_SHORT: Corruption =
    Corruption { page: None, check: "the log ends before what other pages prove durable" };
const EPOCHS: Corruption = Corruption { page: None, check: "restart epochs are used up" };
const NO_SLOTS: Corruption = Corruption { page: None, check: "log slots are too small" };

impl<D: Nand> Runtime<D> {
    /// Formats `device` and starts an empty engine on it.
    ///
    /// # Errors
    ///
    /// The options do not fit the device, or the device failed.
    pub fn create(mut device: D, options: &Options) -> Result<Self, OpenError> {
        options.require(&device)?;
        options.require_own_appends()?;
        let capabilities = device.capabilities();
        let space_options = space_options(&mut device, options)?;
        let mut space = Space::format(device, &space_options)?;
        let identity = Identity::draw(options.seed);
        let master = Master { identity: Some(identity), ..Master::default() };
        space.checkpoint(&master.encode())?;
        let log = LogWriter::new(1, ChainPoint::START, Lsn::ZERO).map_err(|_| EPOCHS)?;
        let runtime = Self::assemble(space, capabilities, options, log)?;
        runtime.engine().identity = identity;
        runtime.space().reserve(CATALOG_ROOT);
        runtime.observe(&runtime.space());
        Ok(runtime)
    }

    /// Mounts `device` and restarts its engine.
    ///
    /// # Errors
    ///
    /// No database, a damaged one, options that do not fit, or a failing device.
    pub fn open(device: D, options: &Options) -> Result<Self, OpenError> {
        Self::open_with(device, options, Access::Write, Bugs::default(), Space::mount)
    }

    /// Mounts `device` and restarts its engine in memory alone: nothing is written, now or later.
    ///
    /// # Errors
    ///
    /// As [`Runtime::open`]; `NeedsMemory` when the changes that no page holds yet do not fit the
    /// memory.
    pub fn open_read_only(device: D, options: &Options) -> Result<Self, OpenError> {
        Self::open_with(device, options, Access::Read, Bugs::default(), |device| {
            let mut mounted = Space::mount(device)?;
            mounted.0.forbid_writes();
            Ok(mounted)
        })
    }

    /// As [`Runtime::open`], with deliberate bugs of both floors at work from the start.
    #[cfg(feature = "seeded-bugs")]
    pub fn open_planted(
        device: D,
        options: &Options,
        bug: Option<crate::SeededBug>,
        below: Option<flagstone_space::SpaceBug>,
    ) -> Result<Self, OpenError> {
        Self::open_with(device, options, Access::Write, Bugs::of(bug), |device| match below {
            Some(below) => Space::mount_planted(device, below),
            None => Space::mount(device),
        })
    }

    /// Plants a deliberate bug in a running engine.
    #[cfg(feature = "seeded-bugs")]
    pub fn plant(&self, bug: Option<crate::SeededBug>) {
        self.engine().bugs = Bugs::of(bug);
    }

    fn open_with(
        device: D,
        options: &Options,
        access: Access,
        bugs: Bugs,
        mount: impl FnOnce(D) -> Result<(Space<D>, MountReport), MountError>,
    ) -> Result<Self, OpenError> {
        options.require(&device)?;
        options.require_own_appends()?;
        let begun_ns = device.now_ns();
        let counters = device.counters();
        let capabilities = device.capabilities();
        let (space, mount) = mount(device)?;
        // A power cut between the format and the first checkpoint leaves an empty database.
        let master = match mount.full_scan || mount.user.is_empty() {
            true => Master::default(),
            false => Master::decode(&mount.user).ok_or(NO_MASTER)?,
        };
        let geometry = log_geometry(&space)?;
        // The writer's place in the chain is known only when the log is read.
        let log = LogWriter::new(1, ChainPoint::START, Lsn::ZERO).map_err(|_| EPOCHS)?;
        let mut runtime = Self::assemble(space, capabilities, options, log)?;
        runtime.engine().bugs = bugs;
        let carries_flags = runtime.space().carries_flags();
        let mut restart = Restart {
            runtime: &runtime,
            access,
            carries_flags,
            master,
            mount,
            geometry,
            report: RecoveryReport::default(),
            effects: Vec::new(),
            freed_lost: Vec::new(),
            meets_at: 0,
            meet_step: 0,
        };
        restart.run()?;
        // Restarts take log blocks too: many in a row must not use up the log (rule D7). A
        // checkpoint that is not urgent waits for background work: it may write pages, which would
        // prolong the opening.
        if access == Access::Write && runtime.engine().is_checkpoint_urgent() {
            restart.widen_for_copies()?;
            match runtime.checkpoint_now() {
                Ok(()) | Err(EngineError::Full | EngineError::WornOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        runtime.engine().end_opening();
        let mut report = restart.report;
        let space = runtime.space();
        let now = space.device().counters();
        report.pages_read = now.page_reads - counters.page_reads;
        report.pages_written = now.page_programs + now.partial_programs
            - counters.page_programs
            - counters.partial_programs;
        report.time_ns = space.end_ns().max(space.device().now_ns()).saturating_sub(begun_ns);
        drop(space);
        runtime.recovery = report;
        Ok(runtime)
    }

    fn assemble(
        mut space: Space<D>,
        capabilities: Capabilities,
        options: &Options,
        log: LogWriter,
    ) -> Result<Self, OpenError> {
        let geometry = log_geometry(&space)?;
        let device_geometry = space.device().geometry();
        let has_pairs =
            matches!(capabilities.cell_mode, CellMode::Mlc { .. } | CellMode::OddMlc { .. });
        if options.discard {
            space.discard_free_blocks();
        }
        let mut engine = Engine::new(options.clone(), space.payload_size(), log);
        engine.carry_appends(space.append_room());
        Ok(Self {
            engine: RwLock::new(engine),
            space: Mutex::new(space),
            sleepers: super::Sleepers::default(),
            working: Mutex::new(()),
            wear: Mutex::new(None),
            kept: Mutex::default(),
            geometry,
            needs_sync: capabilities.needs_sync,
            has_dies: device_geometry.die_count > 1,
            has_pairs,
            recovery: RecoveryReport::default(),
            opened_by: std::process::id(),
        })
    }
}

fn log_geometry<D: Nand>(space: &Space<D>) -> Result<LogGeometry, OpenError> {
    let slots = u16::try_from(space.log_slots_per_page()).unwrap_or(u16::MAX);
    Ok(LogGeometry::new(space.log_slot_size(), slots).ok_or(NO_SLOTS)?)
}

/// How a device is divided for a database with these options.
///
/// # Errors
///
/// The device is too small for them, or failed.
pub fn space_options(device: &mut impl Nand, options: &Options) -> Result<SpaceOptions, OpenError> {
    let (geometry, capabilities) = (device.geometry(), device.capabilities());
    let levels = options.wear_levelling == WearLevelling::Static && wears_by_block(capabilities);
    let mut space = SpaceOptions {
        parts: options.parts as u8,
        gc_policy: match options.techniques.collection {
            Collection::Greedy => GcPolicy::Greedy,
            Collection::CostBenefit => GcPolicy::CostBenefit,
            Collection::CostAgeTimes => GcPolicy::CostAgeTimes,
        },
        static_wear: levels.then_some(LEVEL_SHARE),
        grows: device.present_blocks() < geometry.block_count,
        ..SpaceOptions::default()
    };
    let blocks = match space.grows {
        // A file: blocks that it will grow by count as present.
        true => geometry.block_count,
        false => good_blocks(device)?,
    };
    let room = LogRoom::of(geometry, capabilities, &space, blocks).map_err(SpaceError::Options)?;
    let changes = if space.grows { options.changes_max() } else { options.memory };
    space.log_pages = log_pages(&geometry, room, options, changes);
    let needed = blocks_needed(geometry, capabilities, &space, PAGES_MIN);
    let needed = needed.map_err(SpaceError::Options)?.unwrap_or(u32::MAX);
    if blocks < needed {
        let size = u64::from(needed) * geometry.block_size();
        return Err(OptionsError::TooFewBlocks { blocks, needed, size }.into());
    }
    if space.grows {
        let begun_with = needed.saturating_add(needed / GROWING_SPARE_SHARE).min(blocks);
        device.extend(begun_with).map_err(EngineError::from)?;
    }
    Ok(space)
}

fn good_blocks(device: &mut impl Nand) -> Result<u32, EngineError> {
    let mut count = 0;
    for block in device.geometry().blocks() {
        count += u32::from(!device.is_bad(block)?);
    }
    Ok(count)
}

/// Whether erases wear the blocks that the engine sees: drives level the wear of their own.
const fn wears_by_block(capabilities: Capabilities) -> bool {
    !matches!(capabilities.cell_mode, CellMode::File | CellMode::Translated)
}

/// Log pages of a database with these options, whose changes take up to `changes` bytes of memory.
fn log_pages(geometry: &Geometry, room: LogRoom, options: &Options, changes: usize) -> u32 {
    let per_block = u64::from(room.pages_per_block);
    let least = LOG_PAGES_MIN.max(LOG_BLOCKS_MIN * per_block);
    let pages = match options.log_pages {
        0 => {
            let wanted = LOG_MEMORY_RATIO.saturating_mul(changes as u64);
            let wanted = wanted / u64::from(geometry.page_size);
            wanted.min(u64::from(room.blocks) / LOG_DEVICE_SHARE * per_block)
        }
        pages => u64::from(pages),
    };
    u32::try_from(pages.max(least)).unwrap_or(LOG_PAGES_MAX).min(LOG_PAGES_MAX)
}

/// Between two rounds in which changes meet their leaves, restart reads log for one part in this
/// many of the memory that it may fill. A round reads every leaf concerned; the distance doubles
/// each time a round drops less than that share.
const MEET_SHARE: usize = 4;

/// One restart: see the module `engine::restart` for its steps.
struct Restart<'a, D: Nand> {
    runtime: &'a Runtime<D>,
    access: Access,
    master: Master,
    mount: MountReport,
    geometry: LogGeometry,
    /// Commits may have been made by flags, whose markers are gone.
    carries_flags: bool,
    report: RecoveryReport,
    /// Requests of replayed records to the space floor, with their LSNs: requests from the log's
    /// tail are not carried out before the tail is safe (rule D11).
    effects: Vec<(Lsn, ReplayEffects)>,
    /// Lost pages that are freed by records made after the checkpoint.
    freed_lost: Vec<LogicalPage>,
    /// Number of log pages read at which changes meet their leaves again, at the earliest.
    meets_at: u64,
    /// Bytes of log between two such rounds: more each time a round drops little.
    meet_step: usize,
}

impl<D: Nand> Restart<'_, D> {
    fn run(&mut self) -> Result<(), OpenError> {
        self.report.full_scan = self.mount.full_scan;
        if self.access == Access::Read {
            self.runtime.engine().begin_reading();
        }
        self.runtime.engine().resume(&self.master, Lsn(LSN_MAX))?;
        let (phase, end, tail) = self.read_log(Replay::All)?;
        if end.fault.is_some() {
            return Err(if self.mount.full_scan { NO_RECORD } else { LOG_HOLE }.into());
        }
        let last = end.last_lsn.max(self.master.cutoff);
        if last < self.master.durable.max(self.mount.lsn_max) {
            return Err(LOG_SHORT.into());
        }
        self.require_named_pages()?;
        self.count_named();
        // Up to here nothing is written. If writing fails from now on, the data read so far stays
        // readable.
        self.begin_epoch(&end, last)?;
        let is_settled = self.settle_cache()?;
        self.apply_settled(if is_settled { last } else { end.settled_lsn })?;
        if is_settled {
            self.end_groups()?;
        }
        match self.settle_flags().and_then(|()| self.continue_log(&end, &tail)) {
            Ok(()) if self.access == Access::Read => {
                self.runtime.engine().poison(EngineError::ReadOnly);
            }
            // The host has no room for a session to begin: existing data can still be read.
            Err(
                OpenError::Engine(EngineError::Full)
                | OpenError::Space(SpaceError::Full | SpaceError::NoRoom | SpaceError::LogFull),
            ) => {
                self.runtime.engine().poison(EngineError::Full);
            }
            // Nothing can be written any more, but existing data can be read.
            Err(
                OpenError::Engine(EngineError::WornOut) | OpenError::Space(SpaceError::WornOut),
            ) => {
                self.runtime.engine().poison(EngineError::WornOut);
            }
            other => other?,
        }
        for (lsn, effects) in std::mem::take(&mut self.effects) {
            self.apply(lsn, effects)?;
        }
        self.end_groups()?;
        self.runtime.engine().settle(last)?;
        self.runtime.observe(&self.runtime.space());
        self.load_catalog()?;
        self.free_lost();
        if phase == Replay::WithoutCommits {
            let (_, again, _) = self.read_log(Replay::CommitsOnly)?;
            if again.fault.is_some() || again.last_lsn < end.last_lsn {
                return Err(LOG_HOLE.into());
            }
        }
        match self.can_write() {
            true => self.fit_copies()?,
            false => self.require_memory(last)?,
        }
        let freed = self.runtime.engine().end_replay();
        let mut space = self.runtime.space();
        // A number may have a new owner by now: a page, or a root that was never written.
        let roots = self.runtime.engine().roots();
        let is_root = |page: &LogicalPage| roots.iter().any(|(_, root)| root == page);
        for page in freed.into_iter().filter(|page| !is_root(page)) {
            if !space.is_mapped(page) {
                space.release(page);
            }
        }
        self.runtime.observe(&space);
        Ok(())
    }

    /// Syncs a device with a cache: after the death of a process, data that the mount and the log
    /// reader saw may stand only in the cache. After the sync it cannot change any more. True if
    /// the device was synced.
    fn settle_cache(&self) -> Result<bool, OpenError> {
        let has_cache = self.runtime.needs_sync && !self.runtime.has_pairs && !self.mount.closed;
        let is_settled = has_cache && self.access == Access::Write;
        if is_settled {
            self.runtime.space().sync()?;
        }
        Ok(is_settled)
    }

    /// Discards groups that no record commits.
    fn end_groups(&self) -> Result<(), OpenError> {
        let mut space = self.runtime.space();
        for group in space.groups() {
            if !self.has(SeededBug::CommitGroupsAtMount) {
                space.discard_group(group);
            } else {
                space.commit_group(group)?;
            }
        }
        Ok(())
    }

    /// Pins the verdicts of flags, in both directions: a flag that was in flight may read
    /// differently next time (rule D11). A log record decides before flags do (rule D5).
    fn settle_flags(&self) -> Result<(), OpenError> {
        let mut space = self.runtime.space();
        let is_named =
            |group: &GroupId| self.effects.iter().any(|(_, effects)| effects.group == Some(*group));
        for group in self.mount.unflagged_groups.iter().filter(|group| !is_named(group)) {
            space.discard_group(*group);
        }
        let has_judged =
            !self.mount.flagged_groups.is_empty() || !self.mount.unflagged_groups.is_empty();
        let is_pinned = has_judged && self.access == Access::Write;
        if is_pinned { Ok(space.pin_flags()?) } else { Ok(()) }
    }

    fn has(&self, bug: SeededBug) -> bool {
        self.runtime.engine().bugs.has(bug)
    }

    /// Reads the log from the master record's position and puts back the records that the phase
    /// asks for.
    fn read_log(&mut self, mut phase: Replay) -> Result<(Replay, LogEnd, Vec<Vec<u8>>), OpenError> {
        // Without a master record the whole log is needed: the deltas that a checkpoint had copied
        // or dropped are unknown.
        let start = ReadStart::Chain(self.master.begin.chain);
        let survivors = match self.runtime.needs_sync {
            true => Survivors::AnySubset,
            false => Survivors::Prefix,
        };
        let mut reader = LogReader::new(self.geometry, start, survivors);
        let first = self.master.begin.page.max(self.mount.log_pages.start);
        let mut bytes = Vec::new();
        // A second reading includes the copies of the tail: the tail itself may be unreadable by
        // now.
        let end = self.mount.log_pages.end.max(self.runtime.space().log_range().end);
        let numbers = self.runtime.space().log_numbers(first..end);
        for page in numbers {
            let read = self.runtime.space().log_read(page, &mut bytes)?;
            let LogRead::Present { opens_block, .. } = read else { continue };
            self.report.log_pages_read += 1;
            reader.feed(LogPage { number: page, opens_block, bytes: &bytes });
            self.drain(&mut reader, &mut phase)?;
        }
        let end = reader.finish();
        self.drain(&mut reader, &mut phase)?;
        let tail = reader.tail().map(|fragment| fragment.bytes.clone()).collect();
        Ok((phase, end, tail))
    }

    fn drain(&mut self, reader: &mut LogReader, phase: &mut Replay) -> Result<(), OpenError> {
        while let Some(record) = reader.next_record() {
            let (lsn, record) = record
                .map_err(|_| Corruption { page: None, check: "log record does not decode" })?;
            if matches!(record, Record::Commit { .. }) && *phase != Replay::CommitsOnly {
                self.report.commits += 1;
            }
            if matches!(record, Record::Open { .. }) && !self.carries_flags {
                continue;
            }
            let effects = self.runtime.engine().replay(&self.master, *phase, lsn, &record)?;
            if !effects.is_empty() {
                self.effects.push((lsn, effects));
            }
            let overflows = self.runtime.engine().replay_overflows();
            match phase {
                Replay::All if overflows => {
                    self.runtime.engine().forget_replayed(self.master.cutoff);
                    *phase = Replay::WithoutCommits;
                }
                Replay::CommitsOnly if overflows => self.make_room()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn can_write(&self) -> bool {
        self.access == Access::Write && !self.runtime.engine().is_poisoned()
    }

    /// Requires that all changes without a leaf fit the memory, where nothing can be merged. The
    /// session before had them in memory, too.
    fn require_memory(&self, last: Lsn) -> Result<(), OpenError> {
        if self.runtime.engine().exceeds_share() {
            self.meet_leaves(None)?;
            self.runtime.engine().pack_deltas();
        }
        // The session before had dropped the changes that it appended to leaves since its
        // checkpoint.
        if self.runtime.engine().replay_fills_memory() {
            self.meet_leaves(Some(last))?;
            self.runtime.engine().pack_deltas();
        }
        let engine = self.runtime.engine();
        match engine.replay_fills_memory() {
            true => Err(OpenError::NeedsMemory { memory: engine.options().memory }),
            false => Ok(()),
        }
    }

    /// Marks damaged pages of committed groups as lost before anything is written.
    fn require_named_pages(&self) -> Result<(), SpaceError> {
        let mut space = self.runtime.space();
        let freed = self
            .effects
            .iter()
            .flat_map(|(lsn, effects)| effects.trims.iter().map(|page| (*page, *lsn)));
        // The last record that frees a page.
        let freed: HashMap<_, _> = freed.collect();
        for (lsn, effects) in &self.effects {
            if let Some(group) = effects.group {
                let is_freed = |page| freed.get(&page).is_some_and(|freed| freed >= lsn);
                space.require_pages(group, &effects.pages, is_freed)?;
            }
        }
        Ok(())
    }

    /// Counts the groups that the first record of this session named: later records may have to
    /// name them as well (D4), since they were committed or discarded after the last checkpoint,
    /// until another checkpoint covers them.
    fn count_named(&self) {
        let listed = self.runtime.space().listed_size();
        self.runtime.engine().count_named(listed / OPEN_GROUP_PAGE_SIZE);
    }

    /// Carries out the requests of records up to `settled`, which stand whatever happens to the
    /// log's tail: the session's first writes may need the room of the replaced versions. Stops at
    /// the first request for pages that may have been in flight themselves.
    fn apply_settled(&mut self, settled: Lsn) -> Result<(), OpenError> {
        let count = {
            let space = self.runtime.space();
            let is_settled = |(lsn, effects): &&(Lsn, ReplayEffects)| {
                *lsn <= settled && !space.is_doubtful(effects.group, &effects.trims)
            };
            self.effects.iter().take_while(is_settled).count()
        };
        for (lsn, effects) in self.effects.drain(..count).collect::<Vec<_>>() {
            self.apply(lsn, effects)?;
        }
        Ok(())
    }

    fn apply(&mut self, lsn: Lsn, effects: ReplayEffects) -> Result<(), OpenError> {
        let mut space = self.runtime.space();
        if let Some(group) = effects.group {
            match space.commit_group(group) {
                Ok(_) | Err(SpaceError::UnknownGroup(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut image = Vec::new();
        for page in effects.trims {
            // The number may have a new owner by now, whose content is younger than this record.
            if let Ok(info) = space.read(page, &mut image)
                && info.lsn < lsn
            {
                space.trim(page, None)?;
            } else if lsn > self.master.durable && space.is_lost(page) {
                // The record was made after the checkpoint: it means the owner at that time.
                self.freed_lost.push(page);
            }
            if space.reserve(page) {
                self.runtime.engine().hold_number(page);
            }
        }
        Ok(())
    }

    /// Frees the numbers of lost pages. The space floor makes checkpoints of its own, which the
    /// engine's record does not follow, so a number may have a new owner by then. A table's root
    /// that was lost is kept: it must not pass for a root that was never written.
    fn free_lost(&mut self) {
        let roots = self.runtime.engine().roots();
        let mut space = self.runtime.space();
        for page in std::mem::take(&mut self.freed_lost) {
            let is_root = roots.iter().any(|(_, root)| *root == page);
            if !is_root && space.trim_lost(page) && space.reserve(page) {
                self.runtime.engine().hold_number(page);
            }
        }
    }

    /// Drops the changes that leaves hold already. With `appends_to`, in a session that only reads,
    /// it also drops the changes up to that LSN in appends that no checkpoint counts. An unreadable
    /// leaf is skipped and left to the merges.
    fn meet_leaves(&self, appends_to: Option<Lsn>) -> Result<(), OpenError> {
        let go_without = |error| match error {
            EngineError::Corrupt { .. } | EngineError::Space(_) => Ok(()),
            other => Err(other),
        };
        let mut at = MeetPoint::default();
        loop {
            match self.runtime.run(|engine| engine.next_to_meet(&mut at)) {
                Ok(None) => return Ok(()),
                Ok(Some((table, key, page))) => {
                    if let Some(upto) = appends_to
                        && self.runtime.space().see_appends(page, upto)?
                    {
                        self.runtime.engine().forget_base(page);
                    }
                    self.runtime.run(|engine| engine.meet_leaf(table, &key)).or_else(go_without)?;
                }
                Err(error) => {
                    go_without(error)?;
                    at.pass_table();
                }
            }
        }
    }

    /// Merges until the deltas in memory are no more than a checkpoint has room for. Deltas that
    /// leaves already hold are dropped first where there are many. A growing log is widened first,
    /// since its earlier length is not known. Deltas that the device has no room to merge stay.
    fn fit_copies(&self) -> Result<(), OpenError> {
        let exceeds = || self.runtime.engine().exceeds_copies();
        // A session that was closed copied only deltas that no leaf had.
        if !self.mount.closed && self.runtime.engine().exceeds_share() {
            self.meet_leaves(None)?;
        }
        while exceeds() && self.widen_log()? {}
        while exceeds() {
            match self.runtime.advance() {
                Ok(true) => {}
                Ok(false) | Err(EngineError::Full) => break,
                Err(EngineError::WornOut) => {
                    self.runtime.engine().poison(EngineError::WornOut);
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Makes room for copies of the deltas that were put back: on a device that may grow, copies
    /// take less room than the leaves that a short log would force out.
    fn widen_for_copies(&self) -> Result<(), OpenError> {
        while self.runtime.engine().lacks_room_for_copies() && self.widen_log()? {}
        let lacking = self.runtime.engine().room_for_copies();
        if let Some(pages) = lacking {
            let mut space = self.runtime.space();
            space.grow_for(u32::try_from(pages).unwrap_or(u32::MAX))?;
            self.runtime.observe(&space);
        }
        Ok(())
    }

    fn widen_log(&self) -> Result<bool, OpenError> {
        let mut space = self.runtime.space();
        let is_wider = space.widen_log()?;
        self.runtime.observe(&space);
        Ok(is_wider)
    }

    /// Makes the deltas that were put back fit the budget again: drops deltas that leaves hold
    /// already, and merges if that is not enough.
    fn make_room(&mut self) -> Result<(), OpenError> {
        if self.report.log_pages_read >= self.meets_at {
            let before = self.runtime.engine().put_back_size();
            self.meet_leaves(None)?;
            let engine = self.runtime.engine();
            let enough = engine.replay_size_max() / MEET_SHARE;
            let is_worth = before.saturating_sub(engine.put_back_size()) >= enough;
            self.meet_step = if is_worth { enough } else { enough.max(self.meet_step) * 2 };
            let pages = self.meet_step.div_ceil(self.runtime.log_page_size());
            self.meets_at = self.report.log_pages_read + pages as u64;
        }
        while self.can_write() && self.runtime.engine().replay_overflows() {
            match self.runtime.advance() {
                Ok(true) => {}
                // Deltas that the device has no room to merge stay in memory.
                Ok(false) | Err(EngineError::Full) => break,
                Err(EngineError::WornOut) => {
                    self.runtime.engine().poison(EngineError::WornOut);
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Begins a new epoch: from now on the engine knows its durable frontier.
    fn begin_epoch(&self, end: &LogEnd, last: Lsn) -> Result<(), OpenError> {
        let epoch = match self.has(SeededBug::ReuseEpoch) {
            true => end.chain.epoch.max(1),
            false => end.chain.epoch.max(self.master.epoch).checked_add(1).ok_or(EPOCHS)?,
        };
        if last >= lsn(epoch, 0) && !self.has(SeededBug::ReuseEpoch) {
            return Err(LOG_SHORT.into());
        }
        let after = ChainPoint { epoch: epoch - 1, ..end.chain };
        let after = if end.last_page.is_none() && end.chain == ChainPoint::START {
            self.master.begin.chain
        } else {
            after
        };
        let log = LogWriter::new(epoch, after, last).map_err(|_| EPOCHS)?;
        self.runtime.engine().continue_log(log, end.last_page);
        Ok(())
    }

    /// Starts the new epoch: the log's tail is programmed again before anything relies on it (D11).
    fn continue_log(&mut self, end: &LogEnd, tail: &[Vec<u8>]) -> Result<(), OpenError> {
        if end.last_page.is_none() {
            // Nothing behind the master record's position is needed: log pages taken by sessions
            // that left no record are freed by the next checkpoint (rule D7).
            let next = self.runtime.space().log_range().end;
            self.runtime.engine().note_log_page(next);
            return Ok(());
        }
        if self.mount.closed || self.access == Access::Read {
            // After a close nothing of the tail was in flight; a session that only reads writes
            // nothing. The epoch begins with the first change.
            return Ok(());
        }
        if !self.has(SeededBug::SkipTailCopy) {
            for fragment in tail {
                let mut space = self.runtime.space();
                self.runtime.restore_reserves(&mut space)?;
                space.log_append(fragment)?;
                self.report.log_pages_copied += 1;
            }
            // Fragments behind a copy that is not programmed yet would look like a hole in the log.
            self.runtime.space().await_dies();
        }
        // Answers rest on the tail: it must not change any more once something was answered.
        self.runtime.engine().append_open();
        self.runtime.observe(&self.runtime.space());
        if let Some(flush) = self.runtime.flush_begin()? {
            self.runtime.flush_end(flush);
        }
        Ok(())
    }

    /// Reads the catalog: the trees, and the places of their roots.
    fn load_catalog(&self) -> Result<(), OpenError> {
        let entries = self.runtime.catalog()?;
        let mut engine = self.runtime.engine();
        let roots: Vec<_> =
            entries.iter().filter_map(|(key, entry)| engine.register_tree(key, entry)).collect();
        engine.forget_nameless();
        drop(engine);
        let mut space = self.runtime.space();
        space.reserve(CATALOG_ROOT);
        for root in roots {
            space.reserve(root);
        }
        drop(space);
        // After a close the record holds no freed pages any more.
        if self.mount.closed { Ok(()) } else { self.forget_former_owners() }
    }

    /// Frees pages of former owners. A root that was never written has no page, but a cut may bring
    /// back a page that its number had before and that was freed since the last checkpoint. Such a
    /// page is no node of the table, and is freed again.
    fn forget_former_owners(&self) -> Result<(), OpenError> {
        let (roots, mut image) = (self.runtime.engine().roots(), Vec::new());
        for (tree, root) in roots {
            let mut space = self.runtime.space();
            // An unreadable page may be the table's own.
            let is_found = space.is_mapped(root) && space.read(root, &mut image).is_ok();
            if is_found && !self.runtime.engine().is_node_of(tree, &image) {
                space.trim(root, None)?;
                space.reserve(root);
            }
        }
        Ok(())
    }
}

/// Name and value.
type CatalogEntry = (Vec<u8>, Vec<u8>);

impl<D: Nand> Runtime<D> {
    /// Entries of the catalog.
    pub(super) fn catalog(&self) -> Result<Vec<CatalogEntry>, EngineError> {
        let mut entries = Vec::new();
        let mut range = Some(ScanRange { low: Vec::new(), high: None });
        while let Some(part) = range {
            let mut rows = Vec::new();
            range = self.run(|engine| {
                rows.clear();
                engine.scan_committed(CATALOG, &part, Direction::Forward, &mut rows)
            })?;
            entries.extend(rows.into_iter().filter_map(|row| match row.value {
                RowValue::Inline(value) => Some((row.key, value)),
                RowValue::Large(_) => None,
            }));
        }
        Ok(entries)
    }

    /// Names in the catalog.
    ///
    /// # Errors
    ///
    /// The device failed; the catalog is damaged.
    pub fn table_names(&self) -> Result<Vec<Vec<u8>>, EngineError> {
        let keys = self.catalog()?.into_iter().map(|(key, _)| key);
        Ok(keys.filter(|key| is_name(key)).collect())
    }
}

/// Above every LSN: while the log is read, no delta that was put back is trusted without its base.
const LSN_MAX: u64 = (1 << 56) - 1;

#[cfg(test)]
mod tests {
    use flagstone_nand::{Crashable as _, Profile, SimNand};
    use flagstone_space::Cause;

    use super::super::{REGION_SYSTEM, tag_of};
    use crate::appends::Appends;
    use crate::engine::{Stop, Table, Wait};
    use crate::options::{
        AbsentLeaf, Budget, CommitBy, Compaction, Durability, Options, RelocationFolding,
    };
    use crate::testing::Database;

    const KEYS: u32 = 500;

    fn put_all(database: &Database<SimNand>, table: Table) {
        let mut transaction = database.begin();
        (0..KEYS).for_each(|key| transaction.put(table, &key.to_be_bytes(), &[7; 100]).unwrap());
        transaction.commit().unwrap();
        database.runtime().checkpoint_now().unwrap();
    }

    /// Commits without any background work until the log is full for users; returns the number of
    /// commits.
    fn fill_log(database: &Database<SimNand>, table: Table) -> u32 {
        let runtime = database.runtime();
        for number in 0.. {
            let (key, new) = ((number % KEYS).to_be_bytes(), number.to_be_bytes());
            let xid = runtime.engine().begin();
            runtime.run(|engine| engine.patch(xid, table, &key, 4, &new)).unwrap();
            let commit = runtime.run(|engine| match engine.commit(xid, Durability::Deferred) {
                Err(Stop::Wait(Wait::Log)) => Ok(None),
                step => step.map(|ticket| Some(ticket.lsn)),
            });
            let Some(lsn) = commit.unwrap() else {
                runtime.engine().abort(xid);
                return number;
            };
            runtime.wait_durable(lsn).unwrap();
        }
        unreachable!()
    }

    /// Goal (rule D11): a log that is full for users is no reason to write data pages while
    /// opening. However often opening is cut short, the next opening has room.
    #[test]
    fn a_full_log_delays_no_restart() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(128).unwrap();
        // Changes that a checkpoint merges, and of which it copies the rest.
        let options = Options::default().with_memory(1 << 20).with_log_pages(32 * 64);
        let options = options.with_checkpoint_commits(5_000).with_techniques(|techniques| {
            techniques.append_scheme = Appends::default();
            (techniques.frame_share, techniques.merge_batch) = (0.5, 0.0);
            techniques.budget = Budget::Shared;
            techniques.absent = AbsentLeaf::Read;
            techniques.relocation = RelocationFolding::Keep;
            techniques.compaction = Compaction::Merge;
            techniques.commit = CommitBy::Log;
        });
        let mut database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        put_all(&database, table);
        let count = fill_log(&database, table);
        let mut data_free = 0;
        for restart in 0..60 {
            let mut device = database.into_device().unwrap();
            device.power_cycle();
            database = Database::open_on(device, &options).unwrap();
            let programs = database.runtime().space().stats().programs_by_cause;
            let data = Cause::ALL.iter().position(|cause| *cause == Cause::Data).unwrap();
            data_free += u32::from(programs[data] == 0);
            assert!(restart > 0 || data_free == 1, "{} data pages written", programs[data]);
        }
        assert!(data_free > 50, "{data_free} of 60 restarts write no data page");
        let table = database.existing_table("t").unwrap().unwrap();
        let last = ((count - 1) % KEYS).to_be_bytes();
        let value = database.begin().get(table, &last).unwrap().unwrap();
        assert_eq!(value[4..8], (count - 1).to_be_bytes());
        assert!(fill_log(&database, table) > 0, "a checkpoint makes room");
    }

    /// Goal (rule D7): commits that wait for a flush take log too, however little memory their deltas
    /// take. Method: commits of a few keys, none flushed, until there is no more log for users.
    #[test]
    fn commits_that_wait_for_a_flush_have_room_in_the_log() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(24).unwrap();
        let options = Options::default().with_memory(1 << 20).with_log_pages(8 * 64);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        put_all(&database, table);
        let runtime = database.runtime();
        let mut lsn = None;
        for number in 0..40_000u32 {
            let (key, new) = ((number % 20).to_be_bytes(), [number as u8; 64]);
            let xid = runtime.engine().begin();
            runtime.run(|engine| engine.patch(xid, table, &key, 4, &new)).unwrap();
            let commit = runtime.engine().commit(xid, Durability::Deferred);
            match commit {
                Ok(ticket) => lsn = Some(ticket.lsn),
                Err(Stop::Wait(Wait::Log | Wait::Memory)) => {
                    runtime.engine().abort(xid);
                    break;
                }
                Err(stop) => panic!("{stop:?}"),
            }
        }
        runtime.wait_durable(lsn.unwrap()).unwrap();
        runtime.checkpoint_now().unwrap();
        assert!(runtime.space().log_used_pages() < 64, "the checkpoint freed the log");
        for number in 0..20_000u32 {
            let mut transaction = database.begin();
            transaction.patch(table, &(number % 20).to_be_bytes(), 4, &[number as u8; 64]).unwrap();
            transaction.commit_with(Durability::Deferred).unwrap();
            let pending = runtime.engine().pending_log_size();
            assert!(pending <= options.memory / 8, "{pending} bytes wait for a flush");
        }
    }

    /// Goal (rule D7): deltas that were put back and are not merged yet take their room from later
    /// commits; else each session fills a device a little further, up to its reserve. Method: rows
    /// for an eighth of the chip wait in memory across a restart.
    #[test]
    fn growth_that_waits_is_known_after_a_restart() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let options = Options::default().with_memory(8 << 20);
        let database = Database::create_on(SimNand::new(&profile, 0), &options).unwrap();
        let table = database.table("t").unwrap();
        let view = database.stats().space;
        let capacity = view.capacity_pages as usize * 2048;
        for row in 0..capacity as u32 / 8 / 500 {
            let mut transaction = database.begin();
            transaction.put(table, &row.to_be_bytes(), &[1; 500]).unwrap();
            transaction.commit_with(Durability::Deferred).unwrap();
        }
        database.flush().unwrap();
        // Patches above deltas that the restart puts back hide nothing.
        let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
        let table = database.table("t").unwrap();
        for row in 0..capacity as u32 / 8 / 500 {
            let mut transaction = database.begin();
            transaction.patch(table, &row.to_be_bytes(), 9, &[2; 3]).unwrap();
            transaction.commit_with(Durability::Deferred).unwrap();
        }
        database.flush().unwrap();
        let room = |database: &Database<SimNand>| {
            let engine = database.runtime().engine();
            (0..).step_by(8 << 10).take_while(|bytes| engine.has_room_beside_growth(*bytes)).count()
        };
        let before = room(&database);
        let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
        let after = room(&database);
        assert!(after <= before, "room for {after} times 8 KiB, and {before} before");
    }

    /// Goal: a table that was never written shows no content of a former owner of its root's
    /// number, when a cut brings it back: a page of a large transaction, or a node of another
    /// table. Method: such pages are written under the numbers; opened to read, and to write.
    #[test]
    fn a_table_shows_nothing_of_who_had_its_number_before() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let options = Options::default().with_memory(1 << 20);
        let database = Database::create_on(SimNand::new(&profile, 0), &options).unwrap();
        let [table, one, other] = ["t", "one", "other"].map(|name| database.table(name).unwrap());
        put_all(&database, table);
        database.merge().unwrap();
        let runtime = database.runtime();
        let roots = runtime.engine().roots();
        let root_of = |table: Table| roots.iter().find(|(tree, _)| *tree == table.id).unwrap().1;
        let mut node = Vec::new();
        runtime.space().read(root_of(table), &mut node).unwrap();
        let tag = tag_of(runtime.engine().durable(), REGION_SYSTEM, Cause::Data);
        runtime.space().write(root_of(one), &vec![b'R'; node.len()], &tag).unwrap();
        runtime.space().write(root_of(other), &node, &tag).unwrap();

        let device = database.into_device().unwrap();
        let lengths = |database: &Database<SimNand>| {
            let snapshot = database.snapshot().unwrap();
            ["t", "one", "other"].map(|name| snapshot.len(database.table(name).unwrap()).unwrap())
        };
        let database = Database::open_read_only_on(device.clone(), &options).unwrap();
        assert_eq!(lengths(&database), [u64::from(KEYS), 0, 0]);
        let database = Database::open_on(device, &options).unwrap();
        assert_eq!(lengths(&database), [u64::from(KEYS), 0, 0]);
        let mut txn = database.begin();
        for name in ["one", "other"] {
            txn.put(database.table(name).unwrap(), b"k", b"v").unwrap();
        }
        txn.commit().unwrap();
        database.merge().unwrap();
        let database = Database::open_on(database.into_device().unwrap(), &options).unwrap();
        assert_eq!(lengths(&database), [u64::from(KEYS), 1, 1]);
        assert!(database.check().unwrap().is_sound());
    }
}
