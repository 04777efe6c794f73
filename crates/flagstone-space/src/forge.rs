//! Pages whose bytes were changed, sealed anew: the checks behind the checksums are tested too.
//!
//! Owns the checksums of this floor, computed for any bytes. Never touches a device, and is not
//! compiled without the feature `seeded-bugs`.
//!
//! - **X1** After [`reseal`] every checksum of this floor accepts the page, except in a checkpoint record of
//!   several pages, whose checksum stands on the last one.

use flagstone_nand::{Capabilities, Geometry, PhysicalPage};

use crate::bytes::crc32c;
use crate::meta::{META_SIZE, PageKind, PageMeta, Placement};
use crate::{record, summary};

/// Gives the page's bytes the checksums that fit them (X1).
pub fn reseal(
    (geometry, capabilities): (&Geometry, &Capabilities),
    page: PhysicalPage,
    data: &mut [u8],
    spare: &mut [u8],
) {
    let placement = Placement::choose(geometry, capabilities);
    let (front, payload) = data.split_at_mut(placement.header_size().min(data.len()));
    let meta = match placement {
        Placement::Header => front,
        Placement::RawSpare { offset } | Placement::CoveredSpare { offset } => {
            spare.get_mut(offset as usize..).unwrap_or_default()
        }
    };
    let Some(meta) = meta.get_mut(..META_SIZE) else { return };
    let kind = PageMeta::kind_of(meta);
    match kind {
        Some(PageKind::Anchor) => record::reseal(payload),
        Some(PageKind::Summary) => summary::reseal(payload),
        Some(PageKind::Data | PageKind::Log | PageKind::Map) | None => {}
    }
    // Log slots carry checksums of their own.
    let is_bare = kind == Some(PageKind::Log) && placement != Placement::Header;
    PageMeta::reseal(meta, page, if is_bare { 0 } else { crc32c(payload) });
}
