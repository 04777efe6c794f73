//! Dead pages, for a device whose translation layer or host wants to be told of them.
//!
//! Owns the list between the moment a page dies and the moment the device is told. Never tells the
//! device itself, and stays empty on devices that have no use for the list.
//!
//! E1. A page is on the list only while its block may be taken and erased, or is full and closed: pages that
//! a mount reads in a block that is being written stay readable. E2. The first unit of a block stays until
//! the block is free: it names the life that the block lives. E3. The list is told before any block is taken,
//! so no page on it has been written again. Where a sync has to come first, the list is told after the sync;
//! a block that is taken leaves the list.

use alloc::vec::Vec;
use core::ops::Range;

use flagstone_nand::{CellMode, Nand};

use crate::SpaceBug;
use crate::space::Space;

/// The list; empty for ever unless it is opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dead {
    listed: Option<Listed>,
    ranges: Vec<Range<u32>>,
}

/// The pages on the list, once somebody wants to know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// Units of so many pages, all told at once.
    Units(u32),
    /// Whole blocks, some at a time: a host may take long for each.
    Blocks,
}

/// Pages of whole blocks that are told at a time: 64 MiB of 4 KiB each.
const TOLD_MAX: u32 = 1 << 14;

impl Dead {
    /// Keeps a list from now on.
    pub(crate) fn open(&mut self, listed: Listed) {
        self.listed = Some(listed);
    }

    /// Pages of a unit, if units are listed.
    pub(crate) fn parts(&self) -> Option<u32> {
        match self.listed? {
            Listed::Units(parts) => Some(parts),
            Listed::Blocks => None,
        }
    }

    /// The unit at `at` of a closed block is dead; `first` is the block's first page (E2).
    pub(crate) fn unit(&mut self, at: u32, first: u32) {
        if let Some(parts) = self.parts().filter(|_| at != first) {
            self.ranges.push(at..at + parts);
        }
    }

    /// A block is free: all its pages are dead.
    pub(crate) fn block(&mut self, pages: Range<u32>) {
        if self.listed.is_some() {
            self.ranges.push(pages);
        }
    }

    /// The pages of a block are written again.
    pub(crate) fn withdraw(&mut self, pages: &Range<u32>) {
        self.ranges.retain(|range| !pages.contains(&range.start));
    }

    /// Takes the ranges to tell now, neighbours as one.
    fn take(&mut self) -> Vec<Range<u32>> {
        let mut left = match self.listed {
            Some(Listed::Blocks) => TOLD_MAX,
            _ => u32::MAX,
        };
        let fits = |range: &&Range<u32>| {
            let size = range.end - range.start;
            left.checked_sub(size).is_some_and(|rest| {
                left = rest;
                true
            })
        };
        // A block that is larger than all that is told at a time is told alone.
        let count = self.ranges.iter().rev().take_while(fits).count().max(1).min(self.ranges.len());
        let mut ranges = self.ranges.split_off(self.ranges.len() - count);
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
        let capabilities = self.layout().capabilities;
        if capabilities.cell_mode == CellMode::Translated {
            self.blocks.report_dead(Listed::Units(u32::from(self.options.parts)));
        } else if self.discards && capabilities.needs_sync {
            self.blocks.report_dead(Listed::Blocks);
        }
    }

    /// Tells the device which pages nothing needs any more (E3).
    pub(crate) fn tell_dead(&mut self) {
        let is_settled = self.flash.is_settled() || self.flash.bugs.has(SpaceBug::EraseBeforeSync);
        if !is_settled || self.was_refused() || self.lacks_reserve() {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no block is too large to be told. Method: two of them, each larger than the range told at a
    /// time.
    #[test]
    fn a_large_block_is_told_alone() {
        let mut dead = Dead::default();
        dead.open(Listed::Blocks);
        let size = TOLD_MAX + 1;
        dead.block(0..size);
        dead.block(2 * size..3 * size);
        for first in [2 * size, 0] {
            let told = dead.take();
            assert_eq!((told.len(), told.first()), (1, Some(&(first..first + size))));
        }
        assert!(dead.take().is_empty());
    }
}
