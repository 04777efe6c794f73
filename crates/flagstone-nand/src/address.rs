//! Addresses on a device: newtypes, so that a block can never be taken for a page.

use core::fmt;

use crate::Geometry;

/// Index of an erase block on one device. Not a byte address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIndex(pub u32);

/// One physical page: the smallest unit that a device programs as a whole.
///
/// Held as `block * pages_per_block + page`, the form in which mappings keep it (4 bytes a page).
/// Only [`Geometry`] makes and splits it, so a value always belongs to some geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysicalPage(u32);

impl PhysicalPage {
    /// The number under which mappings and formats store the page.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for BlockIndex {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "block {}", self.0)
    }
}

impl fmt::Display for PhysicalPage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "physical page {}", self.0)
    }
}

impl Geometry {
    /// Names a page, or `None` when the address falls outside the device.
    #[must_use]
    pub fn page(&self, block: BlockIndex, page: u32) -> Option<PhysicalPage> {
        let inside = block.0 < self.block_count && page < self.pages_per_block;
        inside.then(|| PhysicalPage(block.0 * self.pages_per_block + page))
    }

    /// The page stored under `number`, or `None` when it falls outside the device.
    #[must_use]
    pub fn page_from_number(&self, number: u32) -> Option<PhysicalPage> {
        (number < self.page_count()).then_some(PhysicalPage(number))
    }

    /// Block that holds `page`.
    #[must_use]
    pub fn block_of(&self, page: PhysicalPage) -> BlockIndex {
        BlockIndex(page.0 / self.pages_per_block)
    }

    /// Position of `page` within its block.
    #[must_use]
    pub fn index_in_block(&self, page: PhysicalPage) -> u32 {
        page.0 % self.pages_per_block
    }

    /// Every block of the device, in order.
    pub fn blocks(&self) -> impl Iterator<Item = BlockIndex> + use<> {
        (0..self.block_count).map(BlockIndex)
    }

    /// Die that holds `block`: blocks are striped over the dies.
    #[must_use]
    pub fn die_of(&self, block: BlockIndex) -> u32 {
        block.0 % self.die_count
    }
}
