//! Write streams: the open block of each, and the next free unit in it.
//!
//! Owns positions. Never takes or erases a block: see `place.rs`.

use alloc::vec::Vec;

use flagstone_nand::{BlockIndex, CellRole};

use crate::LogicalPage;
use crate::Temperature;
use crate::Version;
use crate::layout::Layout;
use crate::meta::{PageKind, PageMeta};

/// Logical page number of a summary entry without a unit.
pub(crate) const HOLE: LogicalPage = LogicalPage(u32::MAX);

/// Where units of one kind go. The log is a stream of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Pages that will be rewritten soon.
    Hot,
    /// Pages that will stay, and pages that were moved.
    Cold,
    /// Mapping, block table, directory.
    Meta,
}

impl Stream {
    pub(crate) const ALL: [Self; 3] = [Self::Hot, Self::Cold, Self::Meta];
}

impl From<Temperature> for Stream {
    fn from(temperature: Temperature) -> Self {
        match temperature {
            Temperature::Hot => Self::Hot,
            Temperature::Cold => Self::Cold,
        }
    }
}

/// Open block of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Frontier {
    pub(crate) block: BlockIndex,
    pub(crate) sequence: u32,
    /// One entry a unit programmed or skipped: the summary to be.
    pub(crate) units: Vec<PageMeta>,
}

impl Frontier {
    /// Index of the next unit.
    pub(crate) fn next_unit(&self) -> u32 {
        self.units.len() as u32
    }

    /// First page of the next unit; `None` when the block is full.
    pub(crate) fn next_page(&self, layout: &Layout) -> Option<u32> {
        let first = self.block.0 * layout.geometry.pages_per_block;
        let unit = self.next_unit();
        (unit < layout.units_per_block).then(|| first + unit * layout.parts)
    }

    /// Units left.
    pub(crate) fn left(&self, layout: &Layout) -> u32 {
        layout.units_per_block - self.next_unit()
    }

    /// Skips units until no page of the rest shares cells with a programmed one (rule D9).
    pub(crate) fn settle_pairs(&mut self, layout: &Layout) {
        let pages = layout.geometry.pages_per_block;
        let programmed = self.next_unit() * layout.parts;
        let harmful =
            (0..programmed).filter_map(|page| match layout.capabilities.cell_role(page, pages) {
                CellRole::Lsb { partner } if partner >= programmed => Some(partner + 1),
                _ => None,
            });
        let safe = harmful.max().unwrap_or(programmed).div_ceil(layout.parts);
        let hole = PageMeta::own(PageKind::Data, HOLE, Version(0));
        self.units.resize(safe.min(layout.units_per_block) as usize, hole);
    }
}
