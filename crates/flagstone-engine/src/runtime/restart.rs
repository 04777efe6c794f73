//! Restart of an engine on a mounted device: the log is read, put back and continued.
//!
//! Owns the order of the steps between the mount and the first answer (rules D5, D11). Never judges a record: the
//! engine does.

use std::collections::HashMap;

use flagstone_nand::Nand;
use flagstone_space::{
    GroupId, LogRead, LogicalPage, Lsn, MountReport, OPEN_GROUP_PAGE_SIZE, SpaceError,
};

use super::Runtime;
use super::open::{Access, EPOCHS, RecoveryReport};
use crate::bugs::SeededBug;
use crate::engine::{CATALOG_ROOT, Master, MeetPoint, Replay, ReplayEffects};
use crate::error::{Corruption, EngineError, OpenError};
use crate::log::{
    ChainPoint, LogEnd, LogGeometry, LogPage, LogReader, LogWriter, ReadStart, Record, Survivors,
    lsn,
};

const LOG_HOLE: Corruption = Corruption { page: None, check: "a complete log page is missing" };

const NO_RECORD: Corruption = Corruption {
    page: None,
    check: "no checkpoint reads, and the log behind the last one is gone",
};

const LOG_SHORT: Corruption =
    Corruption { page: None, check: "the log ends before what other pages prove durable" };

/// Between two rounds in which changes meet their leaves, restart reads log for one part in this
/// many of the memory that it may fill. A round reads every leaf concerned; the distance doubles
/// each time a round drops less than that share.
const MEET_SHARE: usize = 4;

/// One restart: [`Restart::run`] is the list of its steps.
pub(super) struct Restart<'a, D: Nand> {
    pub(super) runtime: &'a Runtime<D>,
    pub(super) access: Access,
    pub(super) master: Master,
    pub(super) mount: MountReport,
    pub(super) geometry: LogGeometry,
    /// Commits may have been made by flags, whose markers are gone.
    pub(super) carries_flags: bool,
    pub(super) report: RecoveryReport,
    /// Requests of replayed records to the space floor, with their LSNs: requests from the log's
    /// tail are not carried out before the tail is safe (rule D11).
    pub(super) effects: Vec<(Lsn, ReplayEffects)>,
    /// Lost pages that are freed by records made after the checkpoint.
    pub(super) freed_lost: Vec<LogicalPage>,
    /// Number of log pages read at which changes meet their leaves again, at the earliest.
    pub(super) meets_at: u64,
    /// Bytes of log between two such rounds: more each time a round drops little.
    pub(super) meet_step: usize,
}

impl<D: Nand> Restart<'_, D> {
    pub(super) fn run(&mut self) -> Result<(), OpenError> {
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
    pub(super) fn widen_for_copies(&self) -> Result<(), OpenError> {
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

/// Above every LSN: while the log is read, no delta that was put back is trusted without its base.
const LSN_MAX: u64 = (1 << 56) - 1;
