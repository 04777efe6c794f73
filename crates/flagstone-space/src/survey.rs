//! The content of a device, page by page, whether or not the rest is damaged: for saving a device that a
//! mount refuses.
//!
//! Owns the units that read whole and the proof for each of them. Writes nothing, decides nothing about
//! versions, and needs no record, though a readable record proves more.
//!
//! - **SV1** A unit is listed only if all its parts read whole, each in the place that its checksum names.
//! - **SV2** No page that does not read keeps another one from being looked at, and no mark of a bad block does: a mark
//!   may be damage, too.
//! - **SV3** Blocks of an earlier format of the device count for nothing, as far as a record or a summary tells which
//!   these are.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use flagstone_nand::{BlockIndex, Nand, NandError};

use crate::flash::{Flash, NO_APPENDS, ReadFault};
use crate::layout::Layout;
use crate::mapping::UNMAPPED;
use crate::meta::{PageKind, PageMeta, Placement, RawMeta, Standing};
use crate::record::Record;
use crate::scan::read_summary;
use crate::stats::ReadPurpose;
use crate::{GroupId, LogicalPage, Lsn, MountError, PageInfo, Space, Version};

/// Proof for a version of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The version was valid when it was written, or became so.
    Valid,
    /// A record of the log has to name its group, which was open at the newest checkpoint or is younger.
    NeedsRecord,
    /// Nothing tells: no checkpoint reads.
    Unknown,
}

/// A version of a logical page that reads whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SurveyUnit {
    /// The page.
    pub page: LogicalPage,
    /// The version, its writer, and the LSN to which it is complete.
    pub info: PageInfo,
    /// Whether it counts.
    pub proof: Proof,
}

/// A device that was read from its first page to its last.
#[derive(Debug)]
pub struct Survey<D> {
    flash: Flash<D>,
    units: Vec<SurveyUnit>,
    others: Vec<u32>,
    lost_parts: u64,
    record: Option<Record>,
}

/// Pages with valid metadata that do not fit their place, after which a device is none of ours.
const MISFITS_MAX: u32 = 64;

/// Whether some page of a device reads whole: shape and place of its pages are the right ones. A caller that
/// does not know them tries several.
#[must_use]
pub fn holds_pages<D: Nand>(device: D) -> bool {
    let Some(layout) = Layout::probe(device.geometry(), device.capabilities()) else {
        return false;
    };
    let pages = device.present_blocks().saturating_mul(layout.geometry.pages_per_block);
    let mut flash = Flash::new(device, layout);
    let (mut chunk, mut misfits) = (vec![0; flash.layout.chunk_size], 0);
    for at in 0..pages {
        if !matches!(flash.peek(at), Ok(RawMeta::Found(..))) {
            continue;
        }
        if flash.read_page(at, &mut chunk, NO_APPENDS, ReadPurpose::Metadata).is_ok() {
            return true;
        }
        misfits += 1;
        if misfits == MISFITS_MAX {
            return false;
        }
    }
    false
}

/// A unit before its proof is known.
struct Found {
    at: u32,
    meta: PageMeta,
    is_flagged: bool,
    appends: u8,
}

/// Kinds of all pages of a device.
#[derive(Default)]
struct Pages {
    units: Vec<Found>,
    maps: Vec<(u32, Version)>,
    records: Vec<(Version, u32, Record)>,
    others: Vec<u32>,
    lost_parts: u64,
    floor: u32,
}

impl<D: Nand> Space<D> {
    /// Looks at every page of the device below.
    ///
    /// # Errors
    ///
    /// As [`Survey::of`].
    pub fn survey(&mut self) -> Result<Survey<&mut D>, MountError> {
        Survey::of(&mut self.flash.device)
    }
}

impl<D: Nand> Survey<D> {
    /// Looks at every page of a device.
    ///
    /// # Errors
    ///
    /// `NotFormatted` where pages are too small for any space; the device lost its power.
    pub fn of(device: D) -> Result<Self, MountError> {
        let layout = Layout::probe(device.geometry(), device.capabilities());
        let mut layout = layout.ok_or(MountError::NotFormatted)?;
        layout.blocks = device.present_blocks();
        let mut flash = Flash::new(device, layout);
        let mut pages = Pages::default();
        for block in (0..flash.layout.blocks).map(BlockIndex) {
            pages.look_at(&mut flash, block)?;
        }
        let newest = pages.records.iter().max_by_key(|(number, at, _)| (*number, *at));
        let record = newest.map(|(_, _, record)| record.clone());
        let floor = record.as_ref().map_or(pages.floor, |record| record.sequence_floor);
        let units = pages.judged(record.as_ref(), floor);
        // A page of the mapping is no loss: the units themselves are here.
        let is_root = |at: &u32| record.as_ref().is_some_and(|record| record.roots.contains(at));
        pages.others.retain(|at| !is_root(at));
        let Pages { others, lost_parts, .. } = pages;
        Ok(Self { flash, units, others, lost_parts, record })
    }

    /// Versions of data pages that read whole, as they stand on the device. One may stand more than once.
    #[must_use]
    pub fn units(&self) -> &[SurveyUnit] {
        &self.units
    }

    /// Physical pages that are no part of a unit, in order: log pages, erased pages, damaged pages
    /// that do not tell their kind.
    #[must_use]
    pub fn others(&self) -> &[u32] {
        &self.others
    }

    /// Physical pages that were part of a unit, as their metadata say, and do not read.
    #[must_use]
    pub fn lost_parts(&self) -> u64 {
        self.lost_parts
    }

    /// Whether the session that wrote the newest record was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.closed)
    }

    /// The caller's bytes in the newest checkpoint record that reads.
    #[must_use]
    pub fn user(&self) -> Option<&[u8]> {
        self.record.as_ref().map(|record| record.user.as_slice())
    }

    /// Blocks that the newest record knows, and blocks that exist.
    #[must_use]
    pub fn blocks(&self) -> (Option<u32>, u32) {
        let known = self.record.as_ref().map(|record| record.geometry.block_count);
        (known, self.flash.layout.blocks)
    }

    /// Bytes of a log slot.
    #[must_use]
    pub fn log_slot_size(&self) -> usize {
        self.flash.layout.log_slot_size
    }

    /// Bytes of a page of the log.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.flash.layout.geometry.page_size as usize
    }

    /// Bytes of a logical page.
    #[must_use]
    pub fn payload_size(&self) -> usize {
        self.flash.layout.payload_size
    }

    /// Whether a page of such bytes was never programmed, as far as they tell.
    #[must_use]
    pub fn is_erased(&self, bytes: &[u8]) -> bool {
        let blank = if self.flash.layout.capabilities.needs_sync { 0 } else { 0xFF };
        bytes.iter().all(|byte| *byte == blank)
    }

    /// Reads a unit, with the appends that stand whole on it.
    ///
    /// # Errors
    ///
    /// The device lost its power. False when it does not read any more.
    pub fn read(&mut self, unit: &SurveyUnit, target: &mut Vec<u8>) -> Result<bool, NandError> {
        let count = unit.info.appends;
        let read = self.flash.read_unit(unit.info.at, target, &|_| count, ReadPurpose::Metadata);
        alive(read.map_err(|(_, fault)| fault)).map(|read| read.is_some())
    }

    /// Reads the raw bytes of a page, slot by slot; unreadable slots are zeros. False where no slot reads.
    ///
    /// # Errors
    ///
    /// The device lost its power.
    pub fn read_raw(&mut self, page: u32, target: &mut Vec<u8>) -> Result<bool, NandError> {
        target.resize(self.page_size(), 0);
        if alive(self.flash.read_slots(page, 0, target))?.is_some() {
            return Ok(true);
        }
        let (slot_size, mut is_any) = (self.log_slot_size(), false);
        for (slot, bytes) in (0..).zip(target.chunks_mut(slot_size)) {
            match alive(self.flash.read_slots(page, slot, bytes))? {
                Some(()) => is_any = true,
                None => bytes.fill(0),
            }
        }
        Ok(is_any)
    }
}

/// The result of a read, or none where damage is in the way (SV2): a host that refuses one page has others.
fn alive<T>(read: Result<T, ReadFault>) -> Result<Option<T>, NandError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(ReadFault::Device(error @ NandError::PowerOff)) => Err(error),
        Err(ReadFault::Bad(_) | ReadFault::Device(_)) => Ok(None),
    }
}

impl Pages {
    fn look_at<D: Nand>(
        &mut self,
        flash: &mut Flash<D>,
        block: BlockIndex,
    ) -> Result<(), NandError> {
        let pages_per_block = flash.layout.geometry.pages_per_block;
        let first = block.0 * pages_per_block;
        let (mut chunk, mut image) = (vec![0; flash.layout.chunk_size], Vec::new());
        let mut index = 0;
        while index < pages_per_block {
            let at = first + index;
            index += 1;
            let read = flash.read_page(at, &mut chunk, NO_APPENDS, ReadPurpose::Metadata);
            let Some(read) = alive(read)? else {
                // Metadata have a code of their own: a page with a damaged payload may still tell its kind.
                match alive(flash.peek(at).map_err(ReadFault::from))? {
                    Some(RawMeta::Found(PageMeta { kind: PageKind::Data, .. }, _)) => {
                        self.lost_parts += 1;
                    }
                    Some(RawMeta::Found(PageMeta { kind: PageKind::Log, .. }, _)) | None => {
                        self.others.push(at);
                    }
                    Some(RawMeta::Found(..)) => {}
                    Some(RawMeta::Erased | RawMeta::Damaged) => self.others.push(at),
                }
                continue;
            };
            let meta = read.meta;
            match meta.kind {
                PageKind::Data | PageKind::Map if meta.part == 0 => {
                    flash.layout.parts = meta.parts.into();
                    flash.layout.payload_size = flash.layout.chunk_size * usize::from(meta.parts);
                    let unit = flash.read_unit(at, &mut image, NO_APPENDS, ReadPurpose::Metadata);
                    let Some(unit) = alive(unit.map_err(|(_, fault)| fault))? else { continue };
                    index += u32::from(meta.parts) - 1;
                    self.take_unit(flash, at, unit.meta)?;
                }
                PageKind::Anchor if meta.page.0 & 0xFFFF == 0 => {
                    let pages = (meta.page.0 >> 16).min(pages_per_block - (at - first));
                    self.take_record(flash, at, pages, &meta)?;
                }
                PageKind::Summary if meta.page.0 == 0 => {
                    self.take_summary(flash, block, &meta)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn take_unit<D: Nand>(
        &mut self,
        flash: &mut Flash<D>,
        at: u32,
        meta: PageMeta,
    ) -> Result<(), NandError> {
        if meta.kind == PageKind::Map {
            self.maps.push((at, meta.version));
            return Ok(());
        }
        let flag = match (meta.standing, flash.layout.placement) {
            (Standing::Flagged, Placement::RawSpare { .. }) => {
                alive(flash.peek_flag(at).map_err(ReadFault::from))?.flatten()
            }
            _ => None,
        };
        let is_flagged = flag.is_some_and(|(_, is_set)| is_set);
        // It does not matter here which of them a checkpoint counts: their content was durable
        // before.
        let appends =
            alive(flash.count_appends(at, &meta, Lsn(u64::MAX)).map_err(ReadFault::from))?
                .unwrap_or(0);
        let meta = match appends {
            0 => meta,
            _ => {
                let (mut image, count) = (Vec::new(), |_: &PageMeta| appends);
                let read = flash.read_unit(at, &mut image, &count, ReadPurpose::Metadata);
                alive(read.map_err(|(_, fault)| fault))?.map_or(meta, |read| read.meta)
            }
        };
        self.units.push(Found { at, meta, is_flagged, appends });
        Ok(())
    }

    fn take_record<D: Nand>(
        &mut self,
        flash: &mut Flash<D>,
        at: u32,
        pages: u32,
        meta: &PageMeta,
    ) -> Result<(), NandError> {
        let mut bytes = vec![0; flash.layout.chunk_size * pages as usize];
        for (index, target) in (0..).zip(bytes.chunks_mut(flash.layout.chunk_size)) {
            let read = flash.read_page(at + index, target, NO_APPENDS, ReadPurpose::Metadata);
            let expected = (meta.version, LogicalPage(pages << 16 | index));
            let Some(read) = alive(read)? else { return Ok(()) };
            if (read.meta.version, read.meta.page) != expected {
                return Ok(());
            }
        }
        if let Ok(record) = Record::decode(&bytes) {
            self.floor = self.floor.max(record.sequence_floor);
            self.records.push((meta.version, at, record));
        }
        Ok(())
    }

    fn take_summary<D: Nand>(
        &mut self,
        flash: &mut Flash<D>,
        block: BlockIndex,
        meta: &PageMeta,
    ) -> Result<(), NandError> {
        let Flash { layout, .. } = &*flash;
        let options = crate::SpaceOptions { parts: layout.parts as u8, ..Default::default() };
        let whole = Layout::new(layout.geometry, layout.capabilities, &options, layout.blocks);
        let Ok(whole) = whole else { return Ok(()) };
        let probe = core::mem::replace(&mut flash.layout, whole);
        let summary = read_summary(flash, block, meta.sequence);
        flash.layout = probe;
        if let Some(summary) = summary? {
            self.floor = self.floor.max(summary.head.sequence_floor);
        }
        Ok(())
    }

    /// The units, each with its proof.
    fn judged(&self, record: Option<&Record>, floor: u32) -> Vec<SurveyUnit> {
        let flagged: BTreeSet<GroupId> =
            self.units.iter().filter(|unit| unit.is_flagged).map(|unit| unit.meta.group).collect();
        let listed: BTreeSet<GroupId> =
            record.into_iter().flat_map(|record| &record.groups).map(|page| page.group).collect();
        // A checkpoint writes its mapping last: older versions were there before it. Where a part of the
        // mapping does not read, a version newer than the other parts may still precede the checkpoint.
        let version_at = |at: &u32| {
            let mut maps = self.maps.iter();
            maps.find(|(found, _)| found == at).map(|(_, version)| *version)
        };
        let roots = record.into_iter().flat_map(|record| &record.roots);
        let roots: Option<Vec<Version>> =
            roots.filter(|at| **at != UNMAPPED).map(version_at).collect();
        let frontier = roots.and_then(|versions| versions.into_iter().max());
        let proof_of = |meta: &PageMeta| {
            let decided = matches!(meta.standing, Standing::Committed | Standing::History);
            if meta.group == GroupId::NONE || decided || flagged.contains(&meta.group) {
                return Proof::Valid;
            }
            match frontier {
                None => Proof::Unknown,
                Some(frontier) if meta.version < frontier && !listed.contains(&meta.group) => {
                    Proof::Valid
                }
                Some(_) => Proof::NeedsRecord,
            }
        };
        let of_this_format = self.units.iter().filter(|unit| unit.meta.sequence >= floor);
        of_this_format
            .map(|Found { at, meta, appends, .. }| SurveyUnit {
                page: meta.page,
                info: PageInfo {
                    version: meta.version,
                    lsn: meta.lsn,
                    group: meta.group,
                    region: meta.region,
                    append_slots: meta.slots,
                    appends: *appends,
                    at: *at,
                    sequence: meta.sequence,
                },
                proof: proof_of(meta),
            })
            .collect()
    }
}
