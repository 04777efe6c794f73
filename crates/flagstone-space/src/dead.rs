//! Pages that nothing needs any more, for a device whose translation layer or host wants to be told.
//!
//! Owns the list between the moment a page dies and the moment the device is told. Never tells it
//! itself, and stays empty on devices that have no use for it.
//!
//! E1. A page is on the list only while its block may be taken and erased, or is full and closed:
//!     what a mount reads of a block that is being written stays readable.
//! E2. The first unit of a block stays until the block is free: it names the life that the block
//!     lives.
//! E3. The list is told before any block is taken, so no page on it has been written again. Where a sync has
//!     to come first, it is told after one, and a block that is taken leaves it.

use alloc::vec::Vec;
use core::ops::Range;

use flagstone_nand::{CellMode, Nand};

use crate::SpaceBug;
use crate::space::Space;

/// The list; empty for ever unless it is opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dead {
    /// Pages of a unit, once somebody wants to know.
    parts: Option<u32>,
    ranges: Vec<Range<u32>>,
}

impl Dead {
    /// Keeps a list from now on, of units of `parts` pages.
    pub(crate) fn open(&mut self, parts: u32) {
        self.parts = Some(parts);
    }

    /// Pages of a unit, if a list is kept.
    pub(crate) fn parts(&self) -> Option<u32> {
        self.parts
    }

    /// The unit at `at` of a closed block is dead; `first` is the block's first page (E2).
    pub(crate) fn unit(&mut self, at: u32, first: u32) {
        if let Some(parts) = self.parts.filter(|_| at != first) {
            self.ranges.push(at..at + parts);
        }
    }

    /// A block is free: all its pages are dead.
    pub(crate) fn block(&mut self, pages: Range<u32>) {
        if self.parts.is_some() {
            self.ranges.push(pages);
        }
    }

    /// The pages of a block are written again.
    pub(crate) fn withdraw(&mut self, pages: &Range<u32>) {
        self.ranges.retain(|range| !pages.contains(&range.start));
    }

    /// The list, neighbours as one.
    fn take(&mut self) -> Vec<Range<u32>> {
        let mut ranges = core::mem::take(&mut self.ranges);
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, range| {
            let continues = next.start <= range.end;
            range.end = if continues { range.end.max(next.end) } else { range.end };
            continues
        });
        ranges
    }
}

impl<D: Nand> Space<D> {
    /// Begins to list dead pages, where the device has a translation layer of its own, or a host that is to
    /// be told.
    pub(crate) fn report_dead(&mut self) {
        let discards = self.discards && self.layout().capabilities.needs_sync;
        if discards || self.layout().capabilities.cell_mode == CellMode::Translated {
            self.blocks.report_dead(u32::from(self.options.parts));
        }
    }

    /// Tells the device which pages nothing needs any more (E3).
    pub(crate) fn tell_dead(&mut self) {
        if !self.flash.is_settled() && !self.flash.bugs.has(SpaceBug::EraseBeforeSync) {
            return;
        }
        for range in self.blocks.dead.take() {
            let count = range.end - range.start;
            if let Some(first) = self.flash.layout.geometry.page_from_number(range.start) {
                self.flash.device.trim(first, count);
            }
        }
    }
}
