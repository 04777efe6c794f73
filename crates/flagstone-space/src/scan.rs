//! Reading blocks at mount: the kind of each block, and its units.
//!
//! Owns the order of a mount's reads. Never changes the mapping and never writes.
//!
//! Q1. A unit exists only if all its parts read whole, of one version and of the block's life.
//! Q2. The last unit of a block that was not sealed may have been in flight: it is a suspect.
//! Q3. Where any subset of unsynced writes may survive, nothing counts behind a page that did not:
//!     a sync would have covered both. So an old first page makes a block an old one, and the ring
//!     is read no further than the records of a block's life reach.
//! Q4. A page of the ring that does not read may hold a newer record that a later mount reads.

use alloc::vec;
use alloc::vec::Vec;

use flagstone_nand::{BlockIndex, CellMode, Nand, NandError};

use crate::Check;
use crate::error::MountError;
use crate::flash::{Flash, NO_APPENDS, ReadFault};
use crate::format::first_page;
use crate::frontier::HOLE;
use crate::meta::{PageKind, PageMeta, Placement, RawMeta};
use crate::record::{FORMAT_VERSION, Record, RecordFault};
use crate::stats::ReadPurpose;
use crate::summary::{self, SummaryHead};
use crate::{SpaceBug, Version};

/// First page of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// The block is marked bad.
    Bad,
    Erased,
    Damaged,
    /// Metadata, not checked against the payload.
    Found(PageMeta),
}

/// Unit found in a block.
#[derive(Clone, Debug)]
pub(crate) struct FoundUnit {
    pub(crate) at: u32,
    pub(crate) meta: PageMeta,
}

/// A closed block's description of itself.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) head: SummaryHead,
    pub(crate) units: Vec<PageMeta>,
}

/// Content of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockScan {
    pub(crate) units: Vec<FoundUnit>,
    /// Content of the last unit, when it is a suspect (Q2).
    pub(crate) last_image: Option<Vec<u8>>,
    pub(crate) torn_units: u32,
    pub(crate) damaged_units: u32,
}

/// Reads the metadata of every block's first page.
pub(crate) fn read_firsts<D: Nand>(flash: &mut Flash<D>) -> Result<Vec<First>, NandError> {
    let blocks = (0..flash.layout.blocks).map(BlockIndex);
    blocks.map(|block| read_first(flash, block)).collect()
}

fn read_first<D: Nand>(flash: &mut Flash<D>, block: BlockIndex) -> Result<First, NandError> {
    if flash.device.is_bad(block)? {
        return Ok(First::Bad);
    }
    Ok(match flash.peek(first_page(&flash.layout, block))? {
        RawMeta::Erased => First::Erased,
        RawMeta::Damaged => First::Damaged,
        RawMeta::Found(meta, _) => First::Found(meta),
    })
}

/// Whether metadata fit the payload of the page at `at`.
pub(crate) fn is_whole<D: Nand>(
    flash: &mut Flash<D>,
    at: u32,
    meta: &PageMeta,
) -> Result<bool, NandError> {
    if meta.kind == PageKind::Log && flash.layout.placement != Placement::Header {
        // Log slots carry checksums of their own: here only the metadata are covered.
        let Some(page) = flash.layout.geometry.page_from_number(at) else { return Ok(false) };
        let raw = flash.peek(at)?;
        return Ok(matches!(raw, RawMeta::Found(meta, crc) if meta.matches(page, 0, crc)));
    }
    let mut buffer = vec![0; flash.layout.chunk_size];
    match flash.read_page(at, &mut buffer, NO_APPENDS, ReadPurpose::Metadata) {
        Ok(read) => Ok(read.meta == *meta),
        Err(ReadFault::Bad(_)) => Ok(false),
        Err(ReadFault::Device(error)) => Err(error),
    }
}

/// Metadata of the first whole page behind a block's first page, which does not read.
pub(crate) fn find_life<D: Nand>(
    flash: &mut Flash<D>,
    block: BlockIndex,
) -> Result<Option<PageMeta>, NandError> {
    for page in 1..flash.layout.geometry.pages_per_block {
        let at = first_page(&flash.layout, block) + page;
        if let RawMeta::Found(meta, _) = flash.peek(at)?
            && is_whole(flash, at, &meta)?
        {
            return Ok(Some(meta));
        }
    }
    Ok(None)
}

/// Whether the page that the log programs after the first one of a block is a page of the log: the
/// second copy of the block's head, where metadata stand in the data area.
pub(crate) fn is_second_of_log<D: Nand>(
    flash: &mut Flash<D>,
    block: BlockIndex,
) -> Result<bool, NandError> {
    let mut positions = flash.layout.log_positions.iter().copied();
    let next = match flash.layout.placement {
        Placement::Header => None,
        Placement::RawSpare { .. } | Placement::CoveredSpare { .. } => {
            positions.find(|position| *position > 0)
        }
    };
    let at = first_page(&flash.layout, block) + next.unwrap_or(1);
    Ok(matches!(flash.peek(at)?, RawMeta::Found(meta, _) if meta.kind == PageKind::Log))
}

/// Whether both copies of a log block's head say `meta`, although neither fits its page: they
/// changed places.
pub(crate) fn is_said_twice<D: Nand>(
    flash: &mut Flash<D>,
    block: BlockIndex,
    meta: &PageMeta,
) -> Result<bool, NandError> {
    if meta.kind != PageKind::Log || flash.layout.placement != Placement::Header {
        return Ok(false);
    }
    let second = flash.peek(first_page(&flash.layout, block) + 1)?;
    Ok(matches!(second, RawMeta::Found(other, _) if other == *meta))
}

/// Copy of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Copy {
    number: Version,
    at: u32,
    pages: u32,
}

/// Record that a mount starts from, its number, and the blocks that hold it.
#[derive(Debug)]
pub(crate) struct FoundRecord {
    pub(crate) record: Record,
    pub(crate) number: Version,
    pub(crate) blocks: Vec<u32>,
    /// A page may hold a newer record that does not read now (Q4).
    pub(crate) doubtful: bool,
}

/// Content of the ring's blocks, by metadata alone.
#[derive(Debug, Default)]
struct Copies {
    found: Vec<Copy>,
    /// A page behind the first of a block has unreadable metadata.
    unreadable: bool,
}

/// The newest record that reads whole.
pub(crate) fn find_record<D: Nand>(
    flash: &mut Flash<D>,
    firsts: &[First],
) -> Result<Option<FoundRecord>, MountError> {
    let Copies { found: mut copies, unreadable } = find_copies(flash, firsts)?;
    copies.sort_unstable_by(|a, b| b.cmp(a));
    let newest = copies.first().map(|copy| copy.number);
    let mut other_version = None;
    for copy in &copies {
        match read_copy(flash, *copy)? {
            Ok(record) => {
                let same = copies.iter().filter(|other| other.number == copy.number);
                let pages_per_block = flash.layout.geometry.pages_per_block;
                let blocks = same.map(|other| other.at / pages_per_block).collect();
                let mut ring = record.ring.iter().filter_map(|block| firsts.get(*block as usize));
                let hidden = ring.any(|first| matches!(first, First::Bad | First::Damaged));
                let doubtful = unreadable || hidden || newest > Some(copy.number);
                return Ok(Some(FoundRecord { record, number: copy.number, blocks, doubtful }));
            }
            Err(RecordFault::Version(found)) => other_version = Some(found),
            Err(RecordFault::Damaged) => {}
        }
    }
    match other_version {
        Some(found) => Err(MountError::Version { found, supported: FORMAT_VERSION }),
        None => Ok(None),
    }
}

fn find_copies<D: Nand>(flash: &mut Flash<D>, firsts: &[First]) -> Result<Copies, NandError> {
    let mut copies = Copies::default();
    for (block, first) in (0..).map(BlockIndex).zip(firsts) {
        match first {
            First::Found(meta) if meta.kind == PageKind::Anchor => {
                copies_in_block(flash, block, meta.sequence, &mut copies)?;
            }
            _ => {}
        }
    }
    Ok(copies)
}

/// Copies in a ring block whose first page is of the life `sequence`.
fn copies_in_block<D: Nand>(
    flash: &mut Flash<D>,
    block: BlockIndex,
    sequence: u32,
    copies: &mut Copies,
) -> Result<(), NandError> {
    let pages_per_block = flash.layout.geometry.pages_per_block;
    let may_be_stale = flash.layout.capabilities.needs_sync;
    for page in 0..pages_per_block {
        let at = first_page(&flash.layout, block) + page;
        match flash.peek(at)? {
            // Each record is synced before the next one is programmed (Q3).
            RawMeta::Found(meta, _) if may_be_stale && meta.sequence != sequence => break,
            RawMeta::Found(meta, _) if meta.kind == PageKind::Anchor => {
                let (pages, index) = (meta.page.0 >> 16, meta.page.0 & 0xFFFF);
                if index == 0 && pages <= pages_per_block - page {
                    copies.found.push(Copy { number: meta.version, at, pages });
                }
            }
            RawMeta::Erased => break,
            RawMeta::Damaged => copies.unreadable = true,
            RawMeta::Found(..) => {}
        }
    }
    Ok(())
}

fn read_copy<D: Nand>(
    flash: &mut Flash<D>,
    copy: Copy,
) -> Result<Result<Record, RecordFault>, NandError> {
    let chunk_size = flash.layout.chunk_size;
    let mut bytes = vec![0; chunk_size * copy.pages as usize];
    for (index, target) in bytes.chunks_mut(chunk_size).enumerate() {
        match flash.read_page(copy.at + index as u32, target, NO_APPENDS, ReadPurpose::Metadata) {
            Ok(read) => {
                let expected = copy.pages << 16 | index as u32;
                if read.meta.version != copy.number || read.meta.page.0 != expected {
                    return Ok(Err(RecordFault::Damaged));
                }
            }
            Err(ReadFault::Bad(_)) => return Ok(Err(RecordFault::Damaged)),
            Err(ReadFault::Device(error)) => return Err(error),
        }
    }
    Ok(Record::decode(&bytes))
}

/// Units of a block from unit `from` on, of the life `sequence` (Q1, Q2).
pub(crate) fn scan_block<D: Nand>(
    flash: &mut Flash<D>,
    block: BlockIndex,
    from: u32,
    sequence: u32,
) -> Result<BlockScan, NandError> {
    // Where any subset of unsynced writes may survive, a summary proves nothing about its block.
    let summary = match flash.layout.capabilities.needs_sync {
        true => None,
        false => read_summary(flash, block, sequence)?,
    };
    match summary {
        Some(Summary { units, .. }) => {
            let units = summary_units(flash, block, from, units);
            Ok(BlockScan { units, ..BlockScan::default() })
        }
        None => scan_units(flash, block, from, sequence),
    }
}

fn summary_units<D>(
    flash: &Flash<D>,
    block: BlockIndex,
    from: u32,
    units: Vec<PageMeta>,
) -> Vec<FoundUnit> {
    let first = first_page(&flash.layout, block);
    let parts = flash.layout.parts;
    let indexed = (0..flash.layout.units_per_block).zip(units).skip(from as usize);
    let real = indexed.filter(|(_, meta)| meta.page != HOLE);
    real.map(|(index, meta)| FoundUnit { at: first + index * parts, meta }).collect()
}

fn scan_units<D: Nand>(
    flash: &mut Flash<D>,
    block: BlockIndex,
    from: u32,
    sequence: u32,
) -> Result<BlockScan, NandError> {
    let mut scan = BlockScan::default();
    let mut image = Vec::new();
    let mode = flash.layout.capabilities.cell_mode;
    let paired = matches!(mode, CellMode::Mlc { .. } | CellMode::OddMlc { .. });
    // A translation layer forgets units that died, wherever in the block they stood.
    let may_have_holes =
        flash.layout.capabilities.needs_sync || paired || mode == CellMode::Translated;
    let stale_counts = flash.bugs.has(SpaceBug::StaleSequenceAccepted);
    let mut was_erased = false;
    for unit in from..flash.layout.units_per_block {
        let at = first_page(&flash.layout, block) + unit * flash.layout.parts;
        match flash.read_unit(at, &mut image, NO_APPENDS, ReadPurpose::Metadata) {
            Ok(read) if read.meta.sequence == sequence || stale_counts => {
                if !may_have_holes {
                    let erased = u32::from(core::mem::take(&mut was_erased));
                    scan.damaged_units += core::mem::take(&mut scan.torn_units) + erased;
                }
                scan.units.push(FoundUnit { at, meta: read.meta });
                let last = scan.last_image.get_or_insert_default();
                core::mem::swap(last, &mut image);
            }
            Err((page, ReadFault::Bad(Check::Erased))) if page == at && !may_have_holes => {
                // One that lies before another was lost; two end the block.
                if was_erased {
                    break;
                }
                was_erased = true;
                continue;
            }
            Ok(_) | Err((_, ReadFault::Bad(Check::Erased))) => {}
            Err((_, ReadFault::Bad(_))) => scan.torn_units += 1,
            Err((_, ReadFault::Device(error))) => return Err(error),
        }
    }
    Ok(scan)
}

pub(crate) fn read_summary<D: Nand>(
    flash: &mut Flash<D>,
    block: BlockIndex,
    sequence: u32,
) -> Result<Option<Summary>, NandError> {
    let Some(start) = flash.layout.summary_start() else { return Ok(None) };
    let chunk_size = flash.layout.chunk_size;
    let mut bytes = vec![0; chunk_size * flash.layout.summary_pages as usize];
    let mut filled = 0;
    for (index, target) in bytes.chunks_mut(chunk_size).enumerate() {
        let at = first_page(&flash.layout, block) + start + index as u32;
        match flash.read_page(at, target, NO_APPENDS, ReadPurpose::Metadata) {
            Ok(read) if read.meta.kind == PageKind::Summary && read.meta.sequence == sequence => {
                filled += target.len();
            }
            Ok(_) | Err(ReadFault::Bad(_)) => break,
            Err(ReadFault::Device(error)) => return Err(error),
        }
    }
    let decoded = summary::decode(&bytes[..filled]);
    Ok(decoded.map(|(head, units)| Summary { head, units }))
}
