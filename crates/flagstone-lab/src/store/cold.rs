//! Cold pages on the space floor: they fill a chip, and are never looked at.

use flagstone_engine::EngineError;
use flagstone_nand::Nand;
use flagstone_space::{Lsn, NoOwner, RegionId, Space, SpaceError, Temperature, WriteTag};

/// Region of cold pages.
const REGION: RegionId = RegionId(7);

/// Writes cold pages until only `spare_count` pages are left to be taken.
pub(super) fn prefill<D: Nand>(space: &mut Space<D>, spare_count: u32) -> Result<(), EngineError> {
    let tag = WriteTag { temperature: Temperature::Cold, ..WriteTag::data(Lsn::ZERO, REGION) };
    let room = offered(space).saturating_sub(space.taken_pages());
    let mut image = vec![0; space.payload_size()];
    for _ in spare_count..room {
        let page = match space.allocate(REGION) {
            Err(SpaceError::Full) => break,
            page => page?,
        };
        // As in a store of shadow pages: one word over and over, unlike that of its neighbours.
        let word = (u64::from(page.0) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        image.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&word[..chunk.len()]));
        space.ensure_room(1, &mut NoOwner)?;
        space.write(page, &image, &tag)?;
    }
    Ok(())
}

/// Logical pages offered when a tenth of the blocks is kept back, as in a store of shadow pages: an
/// engine compared with such a store works at the same fill.
fn offered<D: Nand>(space: &Space<D>) -> u32 {
    let geometry = space.device().geometry();
    let parts = (space.payload_size() as u32).div_ceil(geometry.page_size).max(1);
    let units = geometry.pages_per_block.saturating_sub(1) / parts * geometry.block_count;
    space.stats().capacity_pages.min(units / 10 * 9)
}
