//! Mounting without a record: every block is read.
//!
//! Owns the facts that can be known without a checkpoint: options from a block summary, the newest
//! version of each page. Never decides on groups: all that are not proven committed wait for the
//! caller.

use alloc::vec::Vec;

use flagstone_nand::{BlockIndex, Nand, NandError};

use super::Mount;
use super::classes::Class;
use crate::Lsn;
use crate::SpaceOptions;
use crate::blocks::BlockState;
use crate::error::MountError;
use crate::flash::{Flash, ReadFault};
use crate::format::{empty_table, first_page, take_ring};
use crate::layout::Layout;
use crate::log::LogBlock;
use crate::meta::{PageKind, PageMeta, RawMeta};
use crate::numbers::Numbers;
use crate::ring::Ring;
use crate::scan::{First, Summary, find_life, is_whole, read_summary};
use crate::space::Space;
use crate::stats::ReadPurpose;
use crate::summary::SummaryHead;

/// Numbers skipped when no record says which are reserved.
const SCAN_GAP: u64 = 1 << 25;

impl<D: Nand> Mount<D> {
    /// Rebuilds the mapping from all blocks, when no record reads whole.
    pub(super) fn from_scan(mut flash: Flash<D>, firsts: Vec<First>) -> Result<Self, MountError> {
        let options = find_options(&mut flash, &firsts)?.ok_or(MountError::NotFormatted)?;
        let (geometry, capabilities) = (flash.layout.geometry, flash.layout.capabilities);
        flash.layout = Layout::new(geometry, capabilities, &options.0, flash.layout.blocks)
            .map_err(|_| MountError::NotFormatted)?;
        let blocks = empty_table(&mut flash)?;
        let ring = Ring::new(&[], &[], options.1, geometry.pages_per_block);
        let space = Space::assemble(flash, options.0, blocks, ring, Numbers::default());
        let mut mount = Self::new(space, firsts);
        mount.report.full_scan = true;
        mount.scan_everything(options.1)?;
        Ok(mount)
    }

    fn scan_everything(&mut self, floor: u32) -> Result<(), MountError> {
        let limit = self.space.layout().log_pages_per_block();
        let (mut sequence_max, mut record_max, mut log) = (0, 0, Vec::new());
        for index in 0..self.firsts.len() {
            let block = BlockIndex(index as u32);
            if self.firsts[index] == First::Bad {
                continue;
            }
            let meta = self.life_of(block, floor)?;
            let Some(meta) = meta else { continue };
            sequence_max = sequence_max.max(meta.sequence);
            let erases = self.space.flash.device.erase_count(block);
            self.space.blocks.restore(block, BlockState::Closed, meta.sequence, erases);
            match meta.kind {
                PageKind::Log => log.push(LogBlock { block, first: meta.version.0, limit }),
                PageKind::Anchor => record_max = record_max.max(meta.version.0),
                _ => self.classes[index] = Class::Scan,
            }
        }
        self.scan_new_blocks()?;
        self.settle()?;
        self.count_appends()?;
        let head = log.iter().map(|block| block.first).min().unwrap_or(0);
        self.load_log(log, head, head)?;
        self.number_after_scan(sequence_max, record_max);
        let (count, floor) = (self.space.options.ring_blocks, self.space.ring.sequence_floor);
        let ring = take_ring(&mut self.space.blocks, &self.space.flash.layout, count);
        let pages_per_block = self.space.layout().geometry.pages_per_block;
        self.space.ring = Ring::new(&ring, &[], floor, pages_per_block);
        Ok(())
    }

    /// Counts the appends of every page that stand whole, one behind the other: no record says how
    /// many were complete.
    fn count_appends(&mut self) -> Result<(), NandError> {
        if self.space.append_lack(1).is_some() {
            return Ok(());
        }
        let mapped: Vec<_> = self.space.map.iter().collect();
        for (page, at) in mapped {
            if let RawMeta::Found(meta, _) = self.space.flash.peek(at)?
                && meta.slots > 0
            {
                let count = self.space.flash.count_appends(at, &meta, Lsn(u64::MAX))?;
                self.space.map.append(page, count);
                self.fold_suspect(at, count)?;
            }
        }
        Ok(())
    }

    /// The image of a suspect in memory gets its appends too.
    fn fold_suspect(&mut self, at: u32, count: u8) -> Result<(), NandError> {
        let space = &mut self.space;
        let Some(suspect) = space.suspects.iter_mut().find(|suspect| suspect.at == at) else {
            return Ok(());
        };
        let mut image = Vec::new();
        match space.flash.read_unit(at, &mut image, &|_| count, ReadPurpose::Metadata) {
            Ok(read) => (suspect.meta, suspect.image) = (read.meta, image),
            Err((_, ReadFault::Bad(_))) => {}
            Err((_, ReadFault::Device(error))) => return Err(error),
        }
        Ok(())
    }

    /// Metadata that tell which life a block lives: of its first page, or the first that reads.
    fn life_of(&mut self, block: BlockIndex, floor: u32) -> Result<Option<PageMeta>, NandError> {
        let flash = &mut self.space.flash;
        let at = first_page(&flash.layout, block);
        let life = match self.firsts[block.0 as usize] {
            First::Erased | First::Bad => None,
            First::Found(meta) if is_whole(flash, at, &meta)? => Some(meta),
            First::Found(_) | First::Damaged => find_life(flash, block)?,
        };
        Ok(life.filter(|meta| meta.sequence >= floor))
    }

    fn number_after_scan(&mut self, sequence_max: u32, record_max: u64) {
        let groups = self.space.groups.iter().map(|page| page.group.0);
        let group = groups.max().unwrap_or(0) + SCAN_GAP;
        let sequence = sequence_max.saturating_add(1 << 13);
        let version = self.version_max + SCAN_GAP;
        self.space.numbers = Numbers::starting(version, sequence, group, record_max + (1 << 17));
    }
}

/// Log pages assumed where no summary says how many: the log pages found, never more than there
/// were, so that no logical page loses its number.
fn log_pages_found<D: Nand>(flash: &Flash<D>, firsts: &[First]) -> u32 {
    let is_log = |first: &&First| matches!(first, First::Found(meta) if meta.kind == PageKind::Log);
    let blocks = firsts.iter().filter(is_log).count() as u32;
    blocks.saturating_sub(1) * flash.layout.log_pages_per_block()
}

/// Options and sequence floor from any summary, else from any page of a unit. The mapping's own
/// pages alone prove nothing: a format ends with a record, and a cut before it leaves no space.
fn find_options<D: Nand>(
    flash: &mut Flash<D>,
    firsts: &[First],
) -> Result<Option<(SpaceOptions, u32)>, NandError> {
    let metas = (0..).map(BlockIndex).zip(firsts).filter_map(|(block, first)| match first {
        First::Found(meta) if matches!(meta.kind, PageKind::Data | PageKind::Map) => {
            Some((block, *meta))
        }
        _ => None,
    });
    let mut fallback = None;
    for (block, meta) in metas {
        let log_pages = log_pages_found(flash, firsts).max(1);
        let (geometry, capabilities) = (flash.layout.geometry, flash.layout.capabilities);
        let present = flash.layout.blocks;
        // Where a summary does not say it: a device that is as large as it can be has the larger log.
        let grows = present < geometry.block_count;
        let parts = meta.parts;
        let options = SpaceOptions { parts, log_pages, grows, ..SpaceOptions::default() };
        let Ok(layout) = Layout::new(geometry, capabilities, &options, present) else { continue };
        let probe = core::mem::replace(&mut flash.layout, layout);
        let whole = is_whole(flash, first_page(&flash.layout, block), &meta)?;
        let summary = read_summary(flash, block, meta.sequence)?;
        flash.layout = probe;
        if let Some(Summary { head, .. }) = summary {
            let SummaryHead { log_pages, ring_blocks, grows, .. } = head;
            let options = SpaceOptions { log_pages, ring_blocks, grows, ..options };
            return Ok(Some((options, head.sequence_floor)));
        }
        if whole && meta.kind == PageKind::Data {
            fallback = fallback.or(Some((options, 0)));
        }
    }
    Ok(fallback)
}
