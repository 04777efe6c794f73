//! Checkpoints: the mapping made durable.
//!
//! Owns the order of a checkpoint's writes. Never moves a page of the caller.
//!
//! K1. Changed mapping pages are durable before the record that points to them is programmed. K2. A
//! superseded mapping page stays live until that record is durable (rule D4). K3. The record lists every open
//! group with its pages, and every open block with its position. K4. A checkpoint that the floor makes for
//! itself repeats the caller's blob and log head. K5. A session starts with a checkpoint: a torn page that
//! read badly at mount may read well later. K6. A session whose last checkpoint says that it is closed writes
//! nothing more before it has taken that back; the device may grow, which no record has to mention (E1). The
//! content of a closed session was complete: nothing has to be copied, and a session that only reads writes
//! nothing. K7. A checkpoint may leave the space during its two syncs. Until it is over others only read:
//! nothing is programmed or erased, and no page gets another place.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use flagstone_nand::{BlockIndex, Geometry, Nand, NandError};

use crate::blocks::BlockState;
use crate::concurrent_io::SyncTicket;
use crate::error::SpaceError;
use crate::frontier::Stream;
use crate::frozen::Frozen;
use crate::mapping::UNMAPPED;
use crate::meta::{PageKind, PageMeta};
use crate::place::Entitlement;
use crate::record::{OPEN_GROUP_PAGE_SIZE, OpenBlock, Record};
use crate::ring::ProgrammedRecord;
use crate::space::{Session, Space, Suspect};
use crate::{Cause, LogicalPage, SpaceBug};

/// Block states as the block table stores them.
pub(crate) mod stored {
    pub(crate) const FREE: u8 = 0;
    pub(crate) const USED: u8 = 1;
    pub(crate) const RETIRED: u8 = 2;
}

/// Share of a record, in percent, that the caller's blob and groups may fill before closed groups are
/// forgotten.
const RECORD_USE_PERCENT: usize = 75;

/// A checkpoint that waits for a sync (K7). Given up, it is one that failed: the next one starts anew.
#[derive(Debug)]
#[must_use]
pub struct CheckpointUnderWay {
    unsynced: Unsynced,
    log_head: u64,
    /// Programs and erases that the checkpoint goes on from.
    changes: u64,
    /// None where nothing is left to sync.
    sync: Option<SyncTicket>,
}

/// What a checkpoint programmed last.
#[derive(Debug)]
enum Unsynced {
    /// The mapping, for a record with this blob of the caller.
    Mapping(Vec<u8>),
    Record(Box<ProgrammedRecord>),
}

impl CheckpointUnderWay {
    /// Makes durable what the checkpoint has programmed so far.
    ///
    /// # Errors
    ///
    /// To be handed to [`Space::advance_checkpoint`].
    pub fn run(&self) -> Result<(), NandError> {
        self.sync.as_ref().map_or(Ok(()), SyncTicket::run)
    }
}

impl<D: Nand> Space<D> {
    /// Makes the mapping durable, with `user` for the next mount to hand back.
    ///
    /// Log pages released before are free afterwards.
    ///
    /// # Errors
    ///
    /// `TooLong` when `user` and the open groups do not fit a ring block.
    pub fn checkpoint(&mut self, user: &[u8]) -> Result<(), SpaceError> {
        self.ready()?;
        self.checkpoint_with(user.to_vec(), self.log.head)
    }

    /// A checkpoint that needs the space before, between and behind its two syncs only (K7); none where the
    /// device works for one at a time: [`Space::checkpoint`] does it there.
    ///
    /// # Errors
    ///
    /// As [`Space::checkpoint`].
    pub fn begin_checkpoint(
        &mut self,
        user: &[u8],
    ) -> Result<Option<CheckpointUnderWay>, SpaceError> {
        if !self.layout().capabilities.needs_sync || self.flash.device.shared().is_none() {
            return Ok(None);
        }
        self.ready()?;
        let log_head = self.log.head;
        self.program_mapping()?;
        self.await_sync(Unsynced::Mapping(user.to_vec()), log_head).map(Some)
    }

    /// Goes on with a checkpoint whose sync has ended like this; none once the checkpoint is durable.
    ///
    /// # Errors
    ///
    /// As [`Space::checkpoint`]. A failed sync poisons the space (rule D10).
    ///
    /// # Panics
    ///
    /// If the space was changed meanwhile (K7): the record would name other pages than it frees.
    pub fn advance_checkpoint(
        &mut self,
        checkpoint: CheckpointUnderWay,
        synced: Result<(), NandError>,
    ) -> Result<Option<CheckpointUnderWay>, SpaceError> {
        let CheckpointUnderWay { unsynced, log_head, changes, sync } = checkpoint;
        assert_eq!(self.flash.changes, changes, "a checkpoint alone programs and erases");
        assert!(self.map.is_clean(), "no page gets another place during a checkpoint");
        if let Some(ticket) = sync {
            self.end_sync(ticket, synced)?;
        }
        match unsynced {
            Unsynced::Mapping(user) => {
                let record = self.program_record(self.make_record(user, log_head))?;
                self.await_sync(Unsynced::Record(Box::new(record)), log_head).map(Some)
            }
            Unsynced::Record(record) => {
                self.record_durable(*record);
                self.mapping_durable(log_head);
                Ok(None)
            }
        }
    }

    fn await_sync(
        &mut self,
        unsynced: Unsynced,
        log_head: u64,
    ) -> Result<CheckpointUnderWay, SpaceError> {
        let sync = if self.flash.is_settled() { None } else { self.begin_sync()? };
        if sync.is_none() {
            self.flash.fence().map_err(|error| self.fail(error))?;
        }
        Ok(CheckpointUnderWay { unsynced, log_head, changes: self.flash.changes, sync })
    }

    /// As [`Space::checkpoint`], the last of a session (K6). It may go on all the same.
    ///
    /// # Errors
    ///
    /// As [`Space::checkpoint`].
    pub fn close(&mut self, user: &[u8]) -> Result<(), SpaceError> {
        self.ready()?;
        self.session = Session::Closing;
        let result = self.checkpoint_with(user.to_vec(), self.log.head);
        self.session = Session::Begun;
        // The next write reserves numbers first, by a record that says that the session goes on.
        let is_closed = self.durable.as_ref().is_some_and(|record| record.closed);
        debug_assert!(!is_closed || self.numbers.are_short(), "a closed session has numbers left");
        result
    }

    /// Checkpoint of the floor itself (K4).
    pub(crate) fn checkpoint_own(&mut self) -> Result<(), SpaceError> {
        let user = self.durable.as_ref().map_or_else(Vec::new, |record| record.user.clone());
        self.checkpoint_with(user, self.log.durable_head)
    }

    fn checkpoint_with(&mut self, user: Vec<u8>, log_head: u64) -> Result<(), SpaceError> {
        self.program_mapping()?;
        self.flash.fence().map_err(|error| self.fail(error))?;
        self.write_record(self.make_record(user, log_head))?;
        self.mapping_durable(log_head);
        Ok(())
    }

    /// Programs the mapping pages that changed, and leaves none of them to a partner (rule D9).
    fn program_mapping(&mut self) -> Result<(), SpaceError> {
        let mut buffer = core::mem::take(&mut self.move_buffer);
        let written = self.write_meta_pages(&mut buffer);
        self.move_buffer = buffer;
        written?;
        self.settle_pairs()
    }

    /// A record of the whole mapping is durable: what only the record before it needed is free.
    fn mapping_durable(&mut self, log_head: u64) {
        // Units that the record frees wait for it, whoever pays for the time.
        self.blocks.placed_at = self.blocks.placed_at.max(self.flash.moment_of_all());
        for at in core::mem::take(&mut self.meta_old) {
            self.blocks.drop_live(at);
        }
        self.forget_flags();
        self.groups.recorded();
        for at in core::mem::take(&mut self.trimmed_unsaved) {
            self.release_unit(at);
        }
        self.log_head_durable(log_head);
        self.flash.tally.checkpoints += 1;
    }

    /// Whether a mount would find so many groups open, with `pages` more, that a record is due which forgets
    /// the closed ones (G3).
    pub(crate) fn is_record_crowded(&self, pages: u32) -> bool {
        let (listed, closed) = self.groups.listed();
        let size = |count: usize| self.saved_size() + count * OPEN_GROUP_PAGE_SIZE;
        let is_crowded =
            size(listed + pages as usize) * 100 > self.record_room() * RECORD_USE_PERCENT;
        closed > 0 && is_crowded && size(listed - closed) <= self.record_room()
    }

    fn write_meta_pages(&mut self, buffer: &mut Vec<u8>) -> Result<(), SpaceError> {
        let (map_pages, table_pages) = (self.layout().map_pages, self.layout().table_pages);
        let table_start = self.layout().table_start;
        for page in 0..map_pages {
            if self.map.is_dirty(page) {
                self.map.encode(page, buffer);
                self.write_meta_page(page, buffer)?;
                self.map.mark_clean(page);
            }
        }
        for page in 0..table_pages {
            let entries = self.table_entries(page);
            if self.must_write_table(page, &entries) {
                self.encode_table(entries.clone(), buffer);
                self.write_meta_page(table_start + page, buffer)?;
                entries.for_each(|block| self.blocks.mark_saved(BlockIndex(block)));
            }
        }
        let leaves = self.layout().directory_start;
        if self.layout().directory_pages > 0 {
            self.write_directory_of(0..leaves, leaves, buffer)?;
        }
        self.write_frozen(buffer)?;
        self.meta_moving.clear();
        Ok(())
    }

    /// Blocks whose entries a page of the block table holds.
    fn table_entries(&self, page: u32) -> Range<u32> {
        let entries = self.layout().table_entries_per_page();
        let first = page * entries;
        first..(first + entries).min(self.blocks.len())
    }

    fn must_write_table(&self, page: u32, entries: &Range<u32>) -> bool {
        self.meta_moving.contains(&(self.layout().table_start + page))
            || entries.clone().any(|block| self.blocks.is_changed(BlockIndex(block)))
    }

    fn encode_table(&self, entries: Range<u32>, target: &mut Vec<u8>) {
        target.clear();
        for index in entries {
            let block = *self.blocks.get(BlockIndex(index));
            let state = match block.state {
                BlockState::Free | BlockState::Bad => stored::FREE,
                BlockState::Retired => stored::RETIRED,
                _ => stored::USED,
            };
            target.extend_from_slice(&block.sequence.to_le_bytes());
            target.extend_from_slice(&block.erases.to_le_bytes());
            target.push(state);
        }
    }

    /// Writes the pages of the directory, from `first` on, that name pages among `leaves` which have moved.
    pub(crate) fn write_directory_of(
        &mut self,
        leaves: Range<u32>,
        first: u32,
        buffer: &mut Vec<u8>,
    ) -> Result<(), SpaceError> {
        let entries = self.layout().entries_per_page();
        for (page, begin) in (first..).zip(leaves.clone().step_by(entries as usize)) {
            let named = begin..(begin + entries).min(leaves.end);
            let has_moved = |index: &u32| named.contains(index) || *index == page;
            if !self.meta_moving.iter().any(has_moved) {
                continue;
            }
            buffer.clear();
            for unit in &self.meta_units[named.start as usize..named.end as usize] {
                buffer.extend_from_slice(&unit.to_le_bytes());
            }
            self.write_meta_page(page, buffer)?;
        }
        Ok(())
    }

    pub(crate) fn write_meta_page(&mut self, index: u32, payload: &[u8]) -> Result<(), SpaceError> {
        let version = self.next_version();
        let meta = PageMeta {
            parts: self.options.parts,
            ..PageMeta::own(PageKind::Map, LogicalPage(index), version)
        };
        let at = self.place(Stream::Meta, Entitlement::Reserve, meta, payload, Cause::Metadata)?;
        let old = core::mem::replace(&mut self.meta_units[index as usize], at);
        self.meta_moving.push(index);
        if old != UNMAPPED {
            self.meta_old.push(old);
        }
        Ok(())
    }

    /// The collector wants the unit of mapping page `index` moved: the next checkpoint does it.
    pub(crate) fn move_meta_page(&mut self, index: u32) {
        if index < self.layout().table_start {
            self.map.mark_dirty(index);
        } else if let Some((frozen, page)) = self.frozen_page(index) {
            frozen.map.mark_dirty(page);
        } else {
            self.meta_moving.push(index);
        }
    }

    /// The frozen mapping that has page `index` of the mapping for one of its own, and which it is there.
    fn frozen_page(&mut self, index: u32) -> Option<(&mut Frozen, u32)> {
        let layout = &self.flash.layout;
        let pages = |frozen: &Frozen| layout.frozen_pages(frozen.slot);
        let frozen = self.frozen.maps.values_mut().find(|it| pages(it).contains(&index))?;
        let page = index - pages(frozen).start;
        (page < layout.map_pages).then_some((frozen, page))
    }

    fn make_record(&self, user: Vec<u8>, log_head: u64) -> Record {
        let layout = self.layout();
        let first = if layout.directory_pages > 0 { layout.directory_start } else { 0 };
        let roots = first as usize..layout.frozen_start() as usize;
        let groups = if self.flash.bugs.has(SpaceBug::GroupsNotListed) {
            Vec::new()
        } else {
            self.groups.iter().collect()
        };
        Record {
            geometry: Geometry { block_count: layout.blocks, ..layout.geometry },
            options: self.options,
            placement: layout.placement.number(),
            sequence_floor: self.ring.sequence_floor,
            sequence_reserved: self.numbers.sequence_reserved,
            version_reserved: self.numbers.version_reserved,
            group_reserved: self.numbers.group_reserved,
            closed: false,
            log_head,
            log_next: self.log.next_page + u64::from(self.log.next_slot > 0),
            ring: self.ring.blocks(),
            open: self.open_blocks(),
            roots: self.meta_units[roots].to_vec(),
            groups,
            frozen: self.frozen_records(),
            user,
        }
    }

    fn open_blocks(&self) -> Vec<OpenBlock> {
        let layout = self.layout();
        let open = self.frontiers.iter().flatten().map(|frontier| OpenBlock {
            block: frontier.block.0,
            sequence: frontier.sequence,
            erases: self.blocks.get(frontier.block).erases,
            next_page: frontier.next_unit() * layout.parts,
        });
        open.collect()
    }

    /// First writes of a session: reserves numbers, copies suspects away (rules D3, D11), then pins
    /// down the state that the mount saw, so that a page with another reading at the next mount can
    /// neither return nor vanish (K5).
    pub(crate) fn begin_session(&mut self) -> Result<(), SpaceError> {
        self.session = Session::Begun;
        let result = self.write_first_records();
        if result.is_err() {
            self.session = Session::Mounted;
        }
        result
    }

    fn write_first_records(&mut self) -> Result<(), SpaceError> {
        if self.layout().capabilities.needs_sync {
            // The mount may have read writes of a dead process from a cache alone (rule D10).
            self.flash.sync().map_err(|error| self.fail(error))?;
        }
        if let Some(record) = self.durable.clone() {
            self.write_first_record(&record)?;
        }
        self.copy_suspects()?;
        if self.flags.is_empty() || !self.flash.bugs.has(SpaceBug::FlagTrustedInFlight) {
            self.checkpoint_own()?;
        }
        self.report_dead();
        Ok(())
    }

    /// Moves the reserves without a new checkpoint.
    pub(crate) fn reserve_numbers(&mut self) -> Result<(), SpaceError> {
        match self.durable.clone() {
            Some(record) => self.write_record(record),
            None => self.checkpoint_own(),
        }
    }

    fn copy_suspects(&mut self) -> Result<(), SpaceError> {
        if self.flash.bugs.has(SpaceBug::SuspectNotCopied) {
            self.suspects.clear();
            return Ok(());
        }
        // A suspect leaves the list only when its copy stands: reads go on from memory until then.
        // Older versions stay where they are until all copies stand.
        let mut pins = Vec::new();
        while let Some(suspect) = self.suspects.last().cloned() {
            let Suspect { at, meta, image, fallbacks } = &suspect;
            if self.still_holds(&suspect) && self.is_current(*at, meta) {
                self.move_unit(*at, meta, image, Cause::Relocation)?;
            }
            pins.extend_from_slice(fallbacks);
            self.suspects.pop();
        }
        for pin in pins {
            self.unpin(pin);
        }
        Ok(())
    }
}
