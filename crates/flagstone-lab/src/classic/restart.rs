//! Creating, opening, and the three passes of restart.
//!
//! ```text
//! log      head ·········· begin ·········· end │ copies of the tail, new epoch
//! 1 analysis               ├───────────────▶│      who was running, which pages may be behind
//! 2 redo   ├───────────────────────────────▶│      repeat history where a page is behind
//! 3 undo                  losers, largest LSN first, a compensation each
//! ```
//!
//! Log pages that may have been in flight at the cut are programmed again before a page or a
//! compensation relies on them (rule D11). A cut at any moment leaves a log from which the same
//! passes end in the same state: redo skips changes that a page holds, compensations say where undo
//! goes on.

use std::collections::BTreeMap;

use flagstone_engine::log::{
    ChainPoint, LogEnd, LogGeometry, LogPage, LogReader, LogWriter, ReadStart, Survivors,
};
use flagstone_engine::node::NodeView;
use flagstone_engine::{Corruption, EngineError, OpenError, RecoveryReport, Xid};
use flagstone_nand::{CellMode, Nand};
use flagstone_space::{
    LogRead, LogicalPage, Lsn, MountError, MountReport, NoOwner, Space, SpaceOptions,
};

use super::appends::{Room, write_page};
use super::checkpoint::Master;
use super::engine::{CATALOG, CHUNKS, Engine, Undo};
use super::machine::{DeviceNeeds, Machine, Restarted};
use super::page::{self, Edited};
use super::record::{Edit, Part, Record};
use super::{Config, Mistake};

const NO_MASTER: Corruption = Corruption { page: None, check: "master record does not decode" };
const LOG_HOLE: Corruption = Corruption { page: None, check: "a complete log page is missing" };
const BAD_RECORD: Corruption = Corruption { page: None, check: "log record does not decode" };
const BAD_CHAIN: Corruption = Corruption { page: None, check: "a transaction's chain is broken" };
const EPOCHS: Corruption = Corruption { page: None, check: "restart epochs are used up" };
const NO_SLOTS: Corruption = Corruption { page: None, check: "log slots are too small" };

fn corrupt(page: LogicalPage, check: &'static str) -> Corruption {
    Corruption { page: Some(page), check }
}

fn shape_of<D: Nand>(space: &Space<D>) -> Result<LogGeometry, OpenError> {
    let slots = u16::try_from(space.log_slots_per_page()).unwrap_or(u16::MAX);
    Ok(LogGeometry::new(space.log_slot_size(), slots).ok_or(NO_SLOTS)?)
}

fn needs_of(device: &impl Nand, options: &SpaceOptions) -> DeviceNeeds {
    let capabilities = device.capabilities();
    let is_paired =
        matches!(capabilities.cell_mode, CellMode::Mlc { .. } | CellMode::OddMlc { .. });
    DeviceNeeds {
        needs_sync: capabilities.needs_sync || is_paired,
        log_pages: u64::from(options.log_pages),
    }
}

impl<D: Nand> Machine<D> {
    /// Formats `device` and starts an empty engine on it.
    ///
    /// # Errors
    ///
    /// The options do not fit the device, or the device failed.
    pub fn create(mut device: D, config: &Config) -> Result<Self, OpenError> {
        config.options.require(&device)?;
        config.options.require_appends(&device)?;
        let options = flagstone_engine::space_options(&mut device, &config.options)?;
        let needs = needs_of(&device, &options);
        let mut space = Space::format(device, &options)?;
        let master = Master::default();
        space.checkpoint(&master.encode())?;
        let shape = shape_of(&space)?;
        let log = LogWriter::new(1, master.head.chain, Lsn::ZERO).map_err(|_| EPOCHS)?;
        let engine = Engine::new(config.clone(), Room::of(&space), log, master.head);
        let machine = Self::around(engine, space, shape, needs);
        let mut space = machine.space();
        reserve_roots(&mut space);
        machine.observe(&space);
        drop(space);
        Ok(machine)
    }

    /// Mounts `device` and restarts its engine.
    ///
    /// # Errors
    ///
    /// No database, a damaged one, options that do not fit, or a failing device.
    pub fn open(mut device: D, config: &Config) -> Result<Self, OpenError> {
        config.options.require(&device)?;
        config.options.require_appends(&device)?;
        let (begun_ns, before) = (device.now_ns(), device.counters());
        let options = flagstone_engine::space_options(&mut device, &config.options)?;
        let needs = needs_of(&device, &options);
        let (space, mount) = Space::mount(device)?;
        if mount.full_scan && mount.log_pages.is_empty() && space.live_pages() == 0 {
            // Power failed before the format had its first record.
            return Err(MountError::NotFormatted.into());
        }
        // Power that fails between the format and the first checkpoint leaves an empty database.
        let master = match mount.full_scan || mount.user.is_empty() {
            true => Master::default(),
            false => Master::decode(&mount.user).ok_or(NO_MASTER)?,
        };
        let mut restart = Restart {
            shape: shape_of(&space)?,
            master,
            mount,
            dirty: BTreeMap::new(),
            losers: BTreeMap::new(),
            xid_next: master.xid_next.max(1),
            freed: Vec::new(),
            report: RecoveryReport::default(),
            done: Restarted::default(),
        };
        let mut machine = restart.run(space, config, needs)?;
        let space = machine.space();
        let (after, end_ns) = (space.device().counters(), space.end_ns());
        let ended_ns = end_ns.max(space.device().now_ns());
        drop(space);
        let mut report = restart.report;
        report.full_scan = restart.mount.full_scan;
        report.pages_read = after.page_reads - before.page_reads;
        report.pages_written = after.page_programs + after.partial_programs
            - before.page_programs
            - before.partial_programs;
        report.time_ns = ended_ns.saturating_sub(begun_ns);
        machine.recovery = report;
        machine.restarted = restart.done;
        Ok(machine)
    }
}

fn reserve_roots<D: Nand>(space: &mut Space<D>) {
    for root in [CATALOG, CHUNKS] {
        space.reserve(LogicalPage(root));
    }
}

/// One restart.
struct Restart {
    shape: LogGeometry,
    master: Master,
    mount: MountReport,
    /// Dirty page table: first record that each page may lack.
    dirty: BTreeMap<LogicalPage, Lsn>,
    /// Transaction table: last record of each that has not ended.
    losers: BTreeMap<Xid, Lsn>,
    xid_next: u64,
    /// Page numbers that repeated records gave up.
    freed: Vec<LogicalPage>,
    report: RecoveryReport,
    done: Restarted,
}

/// Which pass reads the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Analysis,
    Redo,
}

impl Restart {
    fn run<D: Nand>(
        &mut self,
        mut space: Space<D>,
        config: &Config,
        needs: DeviceNeeds,
    ) -> Result<Machine<D>, OpenError> {
        reserve_roots(&mut space);
        let mut scan = self.scan(Pass::Analysis);
        let end = self.read(&mut space, Pass::Analysis, &mut scan, |restart, _, lsn, record| {
            restart.analyse(lsn, &record);
            Ok(())
        })?;
        if end.fault.is_some() {
            return Err(LOG_HOLE.into());
        }
        let machine = self.go_on(space, config, needs, &scan, &end)?;
        self.redo(&machine, end.last_lsn)?;
        self.undo(&machine, config)?;
        // Restarts take log blocks too: many in a row must not use the log up (rule D7).
        if machine.engine().must_checkpoint() {
            match machine.checkpoint_now() {
                Ok(()) | Err(EngineError::Full) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(machine)
    }

    fn scan(&self, pass: Pass) -> LogReader {
        let start = match pass {
            Pass::Analysis => self.master.begin,
            Pass::Redo => self.master.head,
        };
        let is_anywhere = self.mount.full_scan || start.chain == ChainPoint::START;
        let start = if is_anywhere { ReadStart::Anywhere } else { ReadStart::Chain(start.chain) };
        LogReader::new(self.shape, start, Survivors::AnySubset)
    }

    /// Reads the log and hands out its records.
    fn read<D: Nand>(
        &mut self,
        space: &mut Space<D>,
        pass: Pass,
        scan: &mut LogReader,
        mut take: impl FnMut(&mut Self, &mut Space<D>, Lsn, Record) -> Result<(), OpenError>,
    ) -> Result<LogEnd, OpenError> {
        let start = match pass {
            Pass::Analysis => self.master.begin,
            Pass::Redo => self.master.head,
        };
        let first = if self.mount.full_scan { 0 } else { start.page };
        let first = first.max(self.mount.log_pages.start);
        // The second pass takes the copies of the tail, too: the tail itself may not read any more.
        let last = self.mount.log_pages.end.max(space.log_range().end);
        let mut bytes = Vec::new();
        for page in space.log_numbers(first..last) {
            if space.log_read(page, &mut bytes)? == LogRead::Skipped {
                continue;
            }
            self.report.log_pages_read += 1;
            scan.feed(LogPage { number: page, opens_block: false, bytes: &bytes });
            self.drain(space, scan, &mut take)?;
        }
        let end = scan.finish();
        self.drain(space, scan, &mut take)?;
        Ok(end)
    }

    fn drain<D: Nand>(
        &mut self,
        space: &mut Space<D>,
        scan: &mut LogReader,
        take: &mut impl FnMut(&mut Self, &mut Space<D>, Lsn, Record) -> Result<(), OpenError>,
    ) -> Result<(), OpenError> {
        while let Some((lsn, bytes)) = scan.next_bytes() {
            let record = Record::decode(bytes).ok_or(BAD_RECORD)?;
            take(self, space, lsn, record)?;
        }
        Ok(())
    }

    /// First pass: brings the two tables up to date.
    fn analyse(&mut self, lsn: Lsn, record: &Record) {
        if let Some((xid, _)) = record.chain() {
            self.xid_next = self.xid_next.max(xid.0 + 1);
            self.losers.insert(xid, lsn);
        }
        match record {
            Record::Update { place, .. } | Record::Clr { place, .. } => {
                self.dirty.entry(place.page).or_insert(lsn);
            }
            Record::Commit { xid, .. } => {
                self.report.commits += 1;
                self.losers.remove(xid);
            }
            Record::End { xid, .. } => {
                self.losers.remove(xid);
            }
            Record::Shape { parts } => parts.iter().for_each(|part| match part {
                Part::Free { page } => {
                    self.dirty.remove(page);
                }
                part => {
                    self.dirty.entry(part.page()).or_insert(lsn);
                }
            }),
            Record::Checkpoint { begin, dirty, active } if *begin == self.master.begin_lsn => {
                for (page, first) in dirty {
                    let entry = self.dirty.entry(*page).or_insert(*first);
                    *entry = (*entry).min(*first);
                }
                self.losers.extend(active.iter().map(|active| (active.xid, active.last)));
            }
            _ => {}
        }
    }

    /// Starts the new epoch: the log's tail is programmed again before it is relied on (D11).
    fn go_on<D: Nand>(
        &mut self,
        mut space: Space<D>,
        config: &Config,
        needs: DeviceNeeds,
        scan: &LogReader,
        end: &LogEnd,
    ) -> Result<Machine<D>, OpenError> {
        let epoch = end.chain.epoch.max(self.master.epoch) + 1;
        let is_empty = end.last_page.is_none();
        let is_nothing = is_empty && end.chain == ChainPoint::START;
        let after = if is_nothing { self.master.begin.chain } else { end.chain };
        let log = LogWriter::new(epoch, after, end.last_lsn).map_err(|_| EPOCHS)?;
        let mut engine = Engine::new(config.clone(), Room::of(&space), log, self.master.head);
        engine.checkpoint.resume(&self.master);
        engine.xid_next = self.xid_next;
        engine.last_commit = end.last_lsn;
        engine.resume_log(end.last_page.unwrap_or(self.master.begin.page));
        if !is_empty && !config.makes(Mistake::TailNotCopied) {
            for fragment in scan.tail() {
                let _ = space.ensure_room(1, &mut NoOwner);
                space.log_append(&fragment.bytes)?;
                self.report.log_pages_copied += 1;
            }
            space.await_dies();
        }
        let machine = Machine::around(engine, space, self.shape, needs);
        machine.observe(&machine.space());
        if !is_empty {
            machine.engine().append(&Record::Open);
            machine.flush_now()?;
        }
        Ok(machine)
    }

    /// Second pass: repeats history, and learns the losers' changes.
    fn redo<D: Nand>(&mut self, machine: &Machine<D>, last: Lsn) -> Result<(), OpenError> {
        let mut scan = self.scan(Pass::Redo);
        let mut space = machine.space();
        let mut engine = machine.engine();
        let end = self.read(&mut space, Pass::Redo, &mut scan, |restart, space, lsn, record| {
            if lsn > last {
                return Ok(());
            }
            restart.note_loser(&mut engine, lsn, &record)?;
            restart.repeat(&mut engine, space, lsn, record)
        })?;
        if end.fault.is_some() {
            return Err(LOG_HOLE.into());
        }
        for page in std::mem::take(&mut self.freed) {
            if !space.is_mapped(page) && engine.pool.peek(page).is_none() {
                space.release(page);
            }
        }
        Ok(())
    }

    /// Keeps a loser's chain: its changes still to be undone.
    fn note_loser(&self, engine: &mut Engine, lsn: Lsn, record: &Record) -> Result<(), OpenError> {
        let Some((xid, previous)) = record.chain() else { return Ok(()) };
        if !self.losers.contains_key(&xid) {
            return Ok(());
        }
        engine.transactions.entry(xid).or_default().is_ending = true;
        if engine.last_of(xid) != previous && !self.mount.full_scan {
            return Err(BAD_CHAIN.into());
        }
        engine.link(xid, lsn);
        match record {
            Record::Update { place, change, .. } => {
                let (tree, key) = (place.tree, place.key.clone());
                engine.push_undo(xid, Undo { lsn, tree, key, edit: change.undo() });
            }
            Record::Clr { undo_next, .. } if !engine.config.makes(Mistake::UndoAgain) => {
                let is_undone = |undo: &Undo| undo.lsn > *undo_next;
                while engine.top_undo(xid).is_some_and(is_undone) {
                    engine.pop_undo(xid);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn repeat<D: Nand>(
        &mut self,
        engine: &mut Engine,
        space: &mut Space<D>,
        lsn: Lsn,
        record: Record,
    ) -> Result<(), OpenError> {
        if engine.config.makes(Mistake::SkipRedo) {
            return Ok(());
        }
        match record {
            Record::Update { place, change, .. } => {
                self.repeat_edit(engine, space, lsn, place.page, &place.key, &change.redo())
            }
            Record::Clr { place, edit, .. } => {
                self.repeat_edit(engine, space, lsn, place.page, &place.key, &edit)
            }
            Record::Shape { parts } => {
                parts.iter().try_for_each(|part| self.repeat_part(engine, space, lsn, part))
            }
            _ => Ok(()),
        }
    }

    fn repeat_edit<D: Nand>(
        &mut self,
        engine: &mut Engine,
        space: &mut Space<D>,
        lsn: Lsn,
        page: LogicalPage,
        key: &[u8],
        edit: &Edit,
    ) -> Result<(), OpenError> {
        if !self.must_repeat(engine, space, page, lsn)? {
            return Ok(());
        }
        let Some(frame) = engine.pool.peek(page) else { return Ok(()) };
        let fault = |_| corrupt(page, "page does not hold what a record changes");
        match page::edit(&frame.image, key, edit).map_err(fault)? {
            Edited::Bytes(offset, bytes) => engine.pool.patch(page, lsn, offset, &bytes),
            Edited::Image(image) => engine.pool.change(page, lsn, image),
        }
        self.done.redone += 1;
        Ok(())
    }

    fn repeat_part<D: Nand>(
        &mut self,
        engine: &mut Engine,
        space: &mut Space<D>,
        lsn: Lsn,
        part: &Part,
    ) -> Result<(), OpenError> {
        let page = part.page();
        if let Part::Free { page } = part {
            return self.repeat_free(engine, space, lsn, *page);
        }
        let is_due = self.must_repeat(engine, space, page, lsn)?;
        let frame = engine.pool.peek(page);
        let is_listed = self.dirty.get(&page).is_some_and(|first| *first <= lsn);
        let is_made_here = matches!(part, Part::Image { .. })
            && is_listed
            && frame.is_none()
            && !space.is_mapped(page);
        if !is_due && !is_made_here {
            return Ok(());
        }
        let image = frame.map_or(&[][..], |frame| &frame.image);
        let fault = || corrupt(page, "page does not hold what a change of shape changes");
        let image = page::reshape(image, part, engine.page_size).ok_or_else(fault)?;
        self.make_room(engine, space)?;
        space.reserve(page);
        engine.pool.change(page, lsn, image);
        self.done.redone += 1;
        Ok(())
    }

    fn repeat_free<D: Nand>(
        &mut self,
        engine: &mut Engine,
        space: &mut Space<D>,
        lsn: Lsn,
        page: LogicalPage,
    ) -> Result<(), OpenError> {
        if engine.pool.peek(page).is_some_and(|frame| frame.lsn < lsn) {
            engine.pool.remove(page);
        }
        let mut image = Vec::new();
        if space.is_mapped(page) && space.read(page, &mut image)?.lsn < lsn {
            space.trim(page, None)?;
        }
        // Not to be taken again while records that free it are being repeated.
        space.reserve(page);
        self.freed.push(page);
        Ok(())
    }

    /// Whether the page lacks the record; it is in memory then.
    fn must_repeat<D: Nand>(
        &mut self,
        engine: &mut Engine,
        space: &mut Space<D>,
        page: LogicalPage,
        lsn: Lsn,
    ) -> Result<bool, OpenError> {
        if self.dirty.get(&page).is_none_or(|first| lsn < *first) {
            return Ok(false);
        }
        if engine.pool.get(page).is_none() {
            self.make_room(engine, space)?;
            let mut image = Vec::new();
            let found = match space.is_mapped(page) {
                true => Some((space.read(page, &mut image)?.lsn, image)),
                false => engine.absent(page).ok().map(|image| (Lsn::ZERO, image)),
            };
            let Some((lsn, mut image)) = found else { return Ok(false) };
            self.done.pages_read += 1;
            NodeView::parse(&image).map_err(|_| corrupt(page, "node does not parse"))?;
            // Which tables take appends is not known yet: at full size every entry that fitted
            // finds its room.
            image.resize(engine.page_size, 0xFF);
            engine.pool.fill(page, lsn, image);
        }
        Ok(engine.pool.peek(page).is_some_and(|frame| frame.lsn < lsn))
    }

    /// Makes room for a frame; pages that redo has changed are written if need be: their log is
    /// durable.
    fn make_room<D: Nand>(
        &mut self,
        engine: &mut Engine,
        space: &mut Space<D>,
    ) -> Result<(), OpenError> {
        while engine.make_room(1).is_err() {
            let Some((page, frame)) = engine.pool.old_dirty(1).next() else { break };
            write_page(space, page, frame, engine.placing_of(&frame.image))?;
            self.done.pages_written += 1;
            engine.pool.write_begun(page);
            engine.pool.write_ended(page);
        }
        Ok(())
    }

    /// Third pass: undoes the losers, the largest LSN first.
    fn undo<D: Nand>(&mut self, machine: &Machine<D>, config: &Config) -> Result<(), OpenError> {
        machine.run(Engine::load_trees)?;
        self.done.losers = machine.engine().transactions.len() as u64;
        loop {
            let Some(xid) = machine.engine().latest_loser() else { break };
            if config.makes(Mistake::SkipUndo) {
                machine.engine().forget(xid);
                continue;
            }
            machine.run(|engine| engine.roll_back(xid))?;
            // The next restart would copy all of the tail.
            if machine.engine().is_tail_long() {
                machine.flush_now()?;
            }
        }
        self.done.undone = machine.engine().counts.undone;
        if self.done.losers > 0 {
            machine.run(Engine::load_trees)?;
        }
        Ok(())
    }
}
