//! Mounting: from the newest whole record and the pages written since to a mapping.
//!
//! Owns which version of each page is valid after a restart. Writes nothing.
//!
//! U1. An entry of the recorded mapping holds only while its block still lives the recorded life. U2. Of the
//! versions written since the record the newest valid one wins (rule D6); it is never older than the recorded
//! one. Of a version that was moved, the last place wins, if it reads whole: the block of its former place
//! may have been in an erase that the cut ended. U3. A page of a group that is not proven committed waits,
//! open, for the caller's decision. U4. A version that may have been in flight is kept in memory, and older
//! versions of its page stay (rule D11). A device that needs syncs has no such version: the session begins
//! with a sync. U5. A page whose recorded version is gone and that has no newer one is lost, not unmapped.
//! U6. On a device that needs syncs a mount reads the ring, the mappings, one page of each block, and the
//! blocks taken or open since the record; of a free block no second page. U7. A block that was free at mount
//! has no content, even if a later mount can read an old life there (rule D11, made durable by K5).
//!
//! ```text
//! first pages ─▶ newest record ─▶ block classes ─▶ recorded mapping ─▶ scan of new blocks ─▶ ready
//!                     │ none
//!                     └─────────▶ scan of all blocks ─────────────────────────────────────▶ ready
//! ```

mod classes;
mod frozen;
mod full_scan;
mod settle;

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use flagstone_nand::{Geometry, Nand, NandError};

use crate::blocks::BlockState;
use crate::bugs::Bugs;
use crate::bytes::get_uint;
use crate::checkpoint::stored;
use crate::error::{Check, MountError, Structure};
use crate::flash::{Flash, NO_APPENDS, ReadFault};
use crate::format::{empty_table, first_page};
use crate::groups::{GroupPage, Rank};
use crate::layout::{BLOCK_ENTRY_SIZE, Layout};
use crate::log::LogBlock;
use crate::mapping::UNMAPPED;
use crate::meta::{Origin, PageKind, PageMeta};
use crate::numbers::Numbers;
use crate::record::Record;
use crate::ring::Ring;
use crate::scan::{First, FoundRecord, find_record, read_firsts};
use crate::space::{Space, Suspect};
use crate::stats::ReadPurpose;
use crate::{GroupId, LogicalPage, Lsn, SpaceBug, Version};
use classes::{Class, Recorded, stands};
use frozen::Moved;

/// Findings of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountReport {
    /// Blob given to the newest durable checkpoint; empty after a full scan.
    pub user: Vec<u8>,
    /// Groups with pages that wait for `commit_group` or `discard_group`.
    pub open_groups: Vec<GroupId>,
    /// Groups that a flag has committed: their pages are valid.
    pub flagged_groups: Vec<GroupId>,
    /// Open groups that a flag might have committed. Discarded, where nothing names them, before
    /// [`Space::pin_flags`].
    pub unflagged_groups: Vec<GroupId>,
    /// Log pages that may exist, from the durable head on.
    pub log_pages: Range<u64>,
    /// Last programmed log page: it may have been in flight when power went.
    pub log_suspect: Option<u64>,
    /// The last session was closed, and left nothing that may have been in flight.
    pub closed: bool,
    /// No record was readable: every block was scanned.
    pub full_scan: bool,
    /// Physical pages read.
    pub pages_read: u64,
    /// Blocks scanned for units written since the record.
    pub blocks_scanned: u32,
    /// Units that did not read whole behind the written part of a block.
    pub torn_units: u32,
    /// Units that did not read whole although a later unit of their block does: only a power cut in the erase
    /// of a block without live content explains them. A group whose page was among them is incomplete.
    pub damaged_units: u32,
    /// Units that may have been in flight: kept in memory until they are copied.
    pub suspects: u32,
    /// Pages whose version is gone without a newer one in its place: no power cut explains them.
    pub lost_pages: u32,
    /// Highest LSN among the units found since the record: the log must reach as far (rule D1).
    pub lsn_max: Lsn,
}

/// A version found by scanning. The greatest of a page is its newest version, where it was moved last: moved
/// units go to the blocks of one stream, which are taken in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    version: Version,
    origin: Origin,
    /// Sequence of its block.
    sequence: u32,
    at: u32,
}

/// A mount in progress.
struct Mount<D> {
    space: Space<D>,
    firsts: Vec<First>,
    classes: Vec<Class>,
    /// Valid versions found by scanning, of each page.
    found: BTreeMap<LogicalPage, Vec<Found>>,
    /// Pages of open groups that scanning found, by where they stand.
    found_in_groups: BTreeMap<u32, Found>,
    suspects: Vec<Suspect>,
    /// Units of frozen mappings that collection may have moved.
    moved: Moved,
    /// Finds of the scan that may prove a group committed: its flagged pages, and copies made since.
    evidence: Vec<(u32, PageMeta)>,
    /// Group pages that were overtaken when the record was made.
    overtaken: Vec<(LogicalPage, Version)>,
    report: MountReport,
    version_max: u64,
    /// Pages whose recorded unit is gone. A cut explains it only where a newer version is found, or
    /// waits in an open group: a forgotten page stays until a record says that it is gone.
    dropped: Vec<LogicalPage>,
    /// Pages of the mapping that needed many corrections: the next checkpoint writes them elsewhere.
    worn: Vec<u32>,
}

impl<D: Nand> Space<D> {
    /// Finds the state of the last session. Writes nothing.
    ///
    /// # Errors
    ///
    /// `NotFormatted`, `Version`, `GeometryMismatch` for a device that holds something else;
    /// `Damaged` when the mapping itself cannot be read.
    pub fn mount(device: D) -> Result<(Self, MountReport), MountError> {
        Self::mount_with(device, Bugs::default())
    }

    /// Mounts with a deliberate bug planted, for the tests that have to find it.
    ///
    /// # Errors
    ///
    /// As [`Space::mount`].
    #[cfg(feature = "seeded-bugs")]
    pub fn mount_planted(device: D, bug: SpaceBug) -> Result<(Self, MountReport), MountError> {
        let mut bugs = Bugs::default();
        bugs.plant(bug);
        Self::mount_with(device, bugs)
    }

    fn mount_with(device: D, bugs: Bugs) -> Result<(Self, MountReport), MountError> {
        let layout = Layout::probe(device.geometry(), device.capabilities());
        let mut layout = layout.ok_or(MountError::NotFormatted)?;
        layout.blocks = device.present_blocks();
        let mut flash = Flash::new(device, layout);
        flash.bugs = bugs;
        let firsts = read_firsts(&mut flash)?;
        let mount = match find_record(&mut flash, &firsts)? {
            Some(found) => Mount::from_record(flash, firsts, found)?,
            None => Mount::from_scan(flash, firsts)?,
        };
        Ok(mount.finish())
    }
}

impl<D: Nand> Mount<D> {
    fn new(space: Space<D>, firsts: Vec<First>) -> Self {
        let classes = vec![Class::Drop; firsts.len()];
        Self {
            space,
            firsts,
            classes,
            found: BTreeMap::new(),
            found_in_groups: BTreeMap::new(),
            suspects: Vec::new(),
            moved: Moved::default(),
            evidence: Vec::new(),
            overtaken: Vec::new(),
            report: MountReport::default(),
            version_max: 0,
            dropped: Vec::new(),
            worn: Vec::new(),
        }
    }

    fn from_record(
        mut flash: Flash<D>,
        firsts: Vec<First>,
        found: FoundRecord,
    ) -> Result<Self, MountError> {
        let FoundRecord { record, number, blocks: newest, doubtful } = found;
        let (geometry, present) = (flash.layout.geometry, flash.layout.blocks);
        let layout = Layout::new(geometry, flash.layout.capabilities, &record.options, present)
            .map_err(|_| MountError::GeometryMismatch)?;
        let block_count = record.geometry.block_count;
        let grows = record.options.grows && block_count <= geometry.block_count;
        let expected = if grows { block_count } else { geometry.block_count };
        if record.geometry != (Geometry { block_count: expected, ..geometry })
            || record.placement != layout.placement.number()
        {
            return Err(MountError::GeometryMismatch);
        }
        if block_count > present {
            return Err(MountError::Truncated { blocks: present, needed: block_count });
        }
        flash.layout = layout;
        let blocks = empty_table(&mut flash)?;
        let (floor, pages) = (record.sequence_floor, geometry.pages_per_block);
        let ring = Ring { doubtful, ..Ring::new(&record.ring, &newest, floor, pages) };
        let numbers = Numbers::starting(
            record.version_reserved,
            record.sequence_reserved,
            record.group_reserved,
            number.0 + 1,
        );
        let space = Space::assemble(flash, record.options, blocks, ring, numbers);
        let mut mount = Self::new(space, firsts);
        mount.load(&record)?;
        mount.report.user.clone_from(&record.user);
        let space = &mount.space;
        // Former content of the blocks of a file looks like log pages.
        let log_end = record.log_next.max(record.log_head);
        let ends_there = space.log.next_page == log_end || space.layout().capabilities.needs_sync;
        mount.report.closed = record.closed && ends_there;
        mount.space.durable = Some(record);
        Ok(mount)
    }

    fn load(&mut self, record: &Record) -> Result<(), MountError> {
        self.load_directory(record)?;
        self.forget_unborn();
        let recorded = self.load_table(record)?;
        let log = self.classify(record, &recorded)?;
        self.repair_ring(&log);
        self.load_map()?;
        if self.space.flash.bugs.has(SpaceBug::AppendsForgotten) {
            self.space.map.forget_appends();
        }
        self.verify_entries()?;
        self.load_frozen(record)?;
        self.load_groups(record)?;
        self.scan_new_blocks()?;
        self.settle()?;
        self.load_log(log, record.log_head, record.log_next)?;
        Ok(())
    }

    /// Units of all mapping pages, from the record or the directory pages it points to.
    fn load_directory(&mut self, record: &Record) -> Result<(), MountError> {
        let layout = self.space.layout().clone();
        let leaves = layout.directory_start as usize;
        let units = &mut self.space.meta_units;
        if layout.directory_pages == 0 {
            for (target, root) in units.iter_mut().zip(&record.roots) {
                *target = *root;
            }
            return Ok(());
        }
        for (target, root) in units[leaves..].iter_mut().zip(&record.roots) {
            *target = *root;
        }
        let entries = layout.entries_per_page() as usize;
        for page in 0..layout.directory_pages as usize {
            let index = leaves + page;
            let Some(bytes) = self.read_meta_page(index, Structure::Directory)? else { continue };
            let first = page * entries;
            let last = (first + entries).min(leaves);
            let units = self.space.meta_units[first..last].iter_mut();
            for (target, source) in units.zip(bytes.chunks_exact(4)) {
                *target = get_uint(source) as u32;
            }
        }
        Ok(())
    }

    /// Numbers follow the limit of a device that grows: mapping pages of blocks that do not exist yet were
    /// never written, even if a forged directory lists them.
    fn forget_unborn(&mut self) {
        let layout = &self.space.flash.layout;
        let (map_end, table_start) = (layout.map_pages, layout.table_start);
        let (table_end, end) = (table_start + layout.table_pages, layout.directory_start);
        self.forget_units(map_end..table_start);
        self.forget_units(table_end..end);
    }

    fn forget_units(&mut self, range: Range<u32>) {
        let range = range.start as usize..range.end as usize;
        if let Some(units) = self.space.meta_units.get_mut(range) {
            units.fill(UNMAPPED);
        }
    }

    /// Payload of a mapping page; `None` when it was never written.
    fn read_meta_page(
        &mut self,
        index: usize,
        what: Structure,
    ) -> Result<Option<Vec<u8>>, MountError> {
        let at = self.space.meta_units[index];
        if at == UNMAPPED {
            return Ok(None);
        }
        let page = self.space.layout().geometry.page_from_number(at);
        let page = page.ok_or(MountError::GeometryMismatch)?;
        if !self.space.layout().is_unit(at) {
            return Err(MountError::Damaged { what, page });
        }
        let mut buffer = Vec::new();
        for _ in 0..2 {
            match self.space.flash.read_unit(at, &mut buffer, NO_APPENDS, ReadPurpose::Metadata) {
                Ok(read)
                    if read.meta.kind == PageKind::Map && read.meta.page.0 as usize == index =>
                {
                    self.worn.extend(read.worn.then_some(index as u32));
                    return Ok(Some(buffer));
                }
                Err((_, ReadFault::Device(error))) => return Err(error.into()),
                Ok(_) | Err((_, ReadFault::Bad(_))) => {}
            }
        }
        Err(MountError::Damaged { what, page })
    }

    fn load_table(&mut self, record: &Record) -> Result<Vec<Recorded>, MountError> {
        let mut table = vec![Recorded::default(); self.firsts.len()];
        let layout = self.space.layout();
        let (table_start, table_pages) = (layout.table_start, layout.table_pages);
        let entries = layout.table_entries_per_page() as usize;
        for page in 0..table_pages as usize {
            let index = table_start as usize + page;
            let Some(bytes) = self.read_meta_page(index, Structure::Map)? else { continue };
            // Blocks that came later are not in the table: they were never used.
            let known = table.iter_mut().take(record.geometry.block_count as usize);
            let targets = known.skip(page * entries).take(entries);
            for (target, source) in targets.zip(bytes.chunks_exact(BLOCK_ENTRY_SIZE)) {
                let (sequence, erases) = (get_uint(&source[..4]), get_uint(&source[4..8]));
                *target =
                    Recorded { sequence: sequence as u32, erases: erases as u32, state: source[8] };
            }
        }
        for open in &record.open {
            if let Some(entry) = table.get_mut(open.block as usize) {
                let (sequence, erases) = (open.sequence, open.erases);
                *entry = Recorded { sequence, erases, state: stored::USED };
            }
        }
        Ok(table)
    }

    fn load_map(&mut self) -> Result<(), MountError> {
        for page in 0..self.space.layout().map_pages {
            let Some(bytes) = self.read_meta_page(page as usize, Structure::Map)? else { continue };
            let layout = self.space.flash.layout.clone();
            let classes = &self.classes;
            let refused = self.space.map.load(page, &bytes, |at| stands(&layout, classes, at));
            self.dropped.extend(refused);
        }
        Ok(())
    }

    /// Drops entries into blocks whose first page does not read, unless the unit itself does.
    fn verify_entries(&mut self) -> Result<(), NandError> {
        if !self.classes.contains(&Class::Verify) {
            return Ok(());
        }
        let entries: Vec<_> = self.space.map.iter().collect();
        let mut buffer = Vec::new();
        for (page, at) in entries {
            let block = self.space.blocks.block_of(at);
            if self.classes[block.0 as usize] != Class::Verify {
                continue;
            }
            let sequence = self.space.blocks.get(block).sequence;
            match self.space.flash.read_unit(at, &mut buffer, NO_APPENDS, ReadPurpose::Metadata) {
                Ok(read) if read.meta.page == page && read.meta.sequence == sequence => {}
                Err((_, ReadFault::Device(error))) => return Err(error),
                // The page is lost, and reads will say so.
                Err((_, ReadFault::Bad(Check::Ecc | Check::Checksum | Check::Metadata))) => {}
                Ok(_) | Err(_) => {
                    self.space.map.clear(page);
                    self.dropped.push(page);
                }
            }
        }
        Ok(())
    }

    /// Pages of recorded open groups whose blocks still live the recorded life.
    fn load_groups(&mut self, record: &Record) -> Result<(), NandError> {
        for page in &record.groups {
            if page.rank == Rank::Overtaken {
                self.overtaken.push((page.page, page.version));
            }
            let kept = stands(self.space.layout(), &self.classes, page.at);
            if kept && page.page.0 < self.space.map.len() {
                let entry = GroupPage { at: page.at, version: page.version, rank: page.rank };
                self.space.groups.insert(page.group, page.page, entry);
            }
        }
        Ok(())
    }

    fn load_log(&mut self, mut log: Vec<LogBlock>, head: u64, next: u64) -> Result<(), NandError> {
        // A block that looked torn at an earlier mount may look whole now; its numbers were given to a
        // later block then, which counts.
        let blocks = &self.space.blocks;
        log.sort_unstable_by_key(|block| (block.first, blocks.get(block.block).sequence));
        for index in 1..log.len() {
            let gap = log[index].first.saturating_sub(log[index - 1].first);
            let limit = u64::from(log[index - 1].limit).min(gap);
            log[index - 1].limit = limit as u32;
        }
        log.retain(|block| block.limit > 0 && block.first + u64::from(block.limit) > head);
        for block in &log {
            let entry = *self.space.blocks.get(block.block);
            let state = BlockState::Log;
            self.space.blocks.restore(block.block, state, entry.sequence, entry.erases);
        }
        let area = &mut self.space.log;
        (area.head, area.durable_head, area.next_page) = (head, head, next.max(head));
        area.blocks = log.into();
        if let Some(last) = self.space.log.blocks.back().copied() {
            let written = self.count_written(last)?;
            let end = last.first + u64::from(written);
            self.space.log.next_page = end.max(next).max(head);
            self.report.log_suspect = end.checked_sub(1).filter(|_| written > 0);
        }
        Ok(())
    }

    /// Log pages of the last block that hold anything, as far as reading tells: an erased page
    /// among them is a lost page.
    fn count_written(&mut self, block: LogBlock) -> Result<u32, NandError> {
        if self.space.layout().capabilities.needs_sync {
            // Old bytes may stand behind the written part: the chain of fragments tells.
            return Ok(block.limit);
        }
        let layout = self.space.layout();
        let first = first_page(layout, block.block);
        let positions = layout.log_positions.clone();
        let mut page = vec![0; layout.geometry.page_size as usize];
        let mut written = 0;
        for (index, position) in (0..block.limit).zip(positions) {
            match self.space.flash.read_slots(first + position, 0, &mut page) {
                Ok(()) if page.iter().all(|byte| *byte == 0xFF) => {
                    if index > written {
                        break;
                    }
                }
                Err(ReadFault::Device(error)) => return Err(error),
                Ok(()) | Err(ReadFault::Bad(_)) => written = index + 1,
            }
        }
        Ok(written)
    }

    fn finish(mut self) -> (Space<D>, MountReport) {
        let numbers = &mut self.space.numbers;
        if self.version_max >= numbers.version {
            // Only a bug gets here: versions above the reserve were used.
            *numbers = Numbers { version: self.version_max + 1, ..*numbers };
        }
        for index in core::mem::take(&mut self.worn) {
            self.space.move_meta_page(index);
        }
        let log_blocks = self.space.log.block_count();
        if log_blocks > self.space.layout().log_blocks {
            self.space.flash.layout.widen_log(log_blocks);
        }
        let sequence = self.space.numbers.sequence;
        self.space.first_sequence = sequence;
        self.space.blocks.end_lives(sequence);
        self.report.open_groups = self.space.groups();
        self.report.log_pages = self.space.log_range();
        self.report.pages_read = self.space.flash.tally.reads.iter().sum();
        self.space.flash.tally = crate::stats::Tally::default();
        (self.space, self.report)
    }
}
