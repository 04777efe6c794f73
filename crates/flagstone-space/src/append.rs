//! In-place appends: a small change of a page goes onto the page that holds it, without an erase.
//!
//! Owns the reserved end of a unit, its delta-records, and the question which devices take them. The changes
//! come from the caller, in the byte forms of [`crate::runs`].
//!
//! ```text
//! last page of a unit    body ┃ slot 0 ┃ slot 1 ┃ …       each slot is a code word of the ECC
//! slot                   form 1 │ length 2 │ LSN 7 │ changes │ CRC-32C 4 │ left erased
//!                        the form's upper bit: the next slot belongs to the same append
//! ```
//!
//! A1. A slot is programmed once: an append touches no code word that was programmed, and the body leaves the
//! code words of the slots erased. A2. The mapping counts the appends of a page that are complete, and only
//! they are read. So a torn append, or one that a restart cannot vouch for, does not exist: its change is in
//! the caller's log, and comes back from there as after any lost write (rule D11). A session that only reads
//! may count appends that stand whole, and then relies on them to the end ([`Space::see_appends`]). A3. Only
//! a unit of this session takes appends: the slots of an older unit are in an unknown state, since a cut may
//! have left anything in them. A4. An append is compared and set on unit, life of its block and count (rule
//! D6): on a page that moved or changed meanwhile it is refused. A copy has the changes folded in, and its
//! slots free again. A5. A version does not change while it is pinned, nor while an open group has a later
//! version of its page. A6. A translation layer is given whole pages only: the page is read, gets the slot,
//! and is written again at its address. A layer that programs this page elsewhere instead costs more and
//! loses nothing.

use alloc::vec::Vec;

use flagstone_nand::{
    Capabilities, CellMode, CellRole, Geometry, Nand, NandError, PartialCut, PhysicalPage,
    ProgramOrder, ProgramPart,
};

use crate::blocks::BlockState;
use crate::bytes::crc32c;
use crate::bytes::{get_uint, put_uint};
use crate::error::SpaceError;
use crate::flash::Flash;
use crate::layout::Layout;
use crate::meta::{PageKind, PageMeta, Placement, RawMeta};
use crate::runs::{self, ChangeForm};
use crate::space::Space;
use crate::{Cause, LogicalPage, Lsn, PageInfo, SpaceBug, Version};

/// Most slots that metadata and mapping can count.
pub const APPEND_SLOTS_MAX: u8 = 7;

/// Bytes of a page that are at least left for its content.
const BODY_SIZE_MIN: usize = 64;

/// Bytes before and behind the changes of a record.
const HEAD_SIZE: usize = 10;
const CRC_SIZE: usize = 4;

const PAIRS: u8 = 1;
const RUNS: u8 = 2;

/// Bit of a record's form: another record of the same append follows.
const MORE: u8 = 0x80;

/// Lack of a device that rules out in-place appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendLack {
    /// The device is no flash, or a second program disturbs neighbouring cells.
    #[error("a second program disturbs its cells, or it is no flash")]
    Cells,
    /// Slots need more programs of a page between erases than the device allows.
    #[error("its pages take too few programs between erases (NOP)")]
    PartialPrograms,
    /// The order rule covers later programs.
    #[error("its order rule covers re-programs")]
    ReprogramOrder,
    /// A cut in an append may take the page along.
    #[error("a cut in a partial program may harm the whole page")]
    IsolatedCuts,
    /// A code word of the ECC covers too much of a page.
    #[error("a code word of its ECC leaves no room for slots")]
    CodeWords,
    /// The mapping has no bits left to count appends.
    #[error("it has too many pages")]
    Pages,
}

/// The lack that keeps a device from carrying `slots` appends a page, if there is one.
#[must_use]
pub fn append_lack(
    geometry: &Geometry,
    capabilities: &Capabilities,
    slots: u8,
) -> Option<AppendLack> {
    let can_repeat = matches!(
        capabilities.cell_mode,
        CellMode::Slc | CellMode::PseudoSlc | CellMode::OddMlc { .. } | CellMode::Translated
    );
    // A translation layer has spare areas of its own.
    let programs = match capabilities.cell_mode {
        CellMode::Translated => capabilities.programs_data,
        _ => capabilities.programs_data.min(capabilities.programs_spare),
    };
    let slots = u32::from(slots);
    let word_size = capabilities.code_word.data_size as usize;
    let placement = Placement::choose(geometry, capabilities);
    let taken = word_size * slots as usize + placement.header_size() + BODY_SIZE_MIN;
    let has_words = word_size > HEAD_SIZE + CRC_SIZE
        && taken <= geometry.page_size as usize
        // Spare bytes that the ECC covers with the data are programmed together with all data.
        && !matches!(placement, Placement::CoveredSpare { .. });
    let lacks = [
        (!can_repeat || capabilities.needs_sync, AppendLack::Cells),
        (programs <= slots || slots > APPEND_SLOTS_MAX.into(), AppendLack::PartialPrograms),
        (capabilities.reprogram_order != ProgramOrder::Any, AppendLack::ReprogramOrder),
        (capabilities.partial_cut != PartialCut::Isolated, AppendLack::IsolatedCuts),
        (!has_words, AppendLack::CodeWords),
        (!crate::mapping::counts_appends(geometry.page_count()), AppendLack::Pages),
    ];
    lacks.into_iter().find_map(|(is_lacking, lack)| is_lacking.then_some(lack))
}

/// Limits of a device for appends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendRoom {
    /// Slots that a page may have; 0 where the device carries no appends.
    pub slots_max: u8,
    /// Bytes of a page that each slot takes.
    pub slot_size: usize,
    /// Bytes of changes that each slot holds.
    pub record_size_max: usize,
}

impl AppendRoom {
    /// Slots for which a page of `page_size` bytes has room behind `used_size` bytes.
    #[must_use]
    pub fn slots_behind(&self, used_size: usize, page_size: usize) -> u8 {
        let fitting = page_size.saturating_sub(used_size).checked_div(self.slot_size).unwrap_or(0);
        self.slots_max.min(u8::try_from(fitting).unwrap_or(u8::MAX))
    }

    /// Bytes of a page that `slots` slots take.
    #[must_use]
    pub fn size_of(&self, slots: u8) -> usize {
        usize::from(slots) * self.slot_size
    }
}

impl Layout {
    /// Bytes of a slot.
    pub(crate) const fn append_slot_size(&self) -> usize {
        self.capabilities.code_word.data_size as usize
    }

    /// Payload bytes of a page with this metadata, without its slots.
    pub(crate) fn chunk_size_of(&self, meta: &PageMeta) -> usize {
        let is_last = meta.kind == PageKind::Data && meta.part + 1 == meta.parts;
        let slots = if is_last { usize::from(meta.slots) } else { 0 };
        self.chunk_size.saturating_sub(slots * self.append_slot_size())
    }

    /// Payload bytes of a unit with `slots` slots.
    pub(crate) fn payload_size_with(&self, slots: u8) -> usize {
        self.payload_size.saturating_sub(usize::from(slots) * self.append_slot_size())
    }
}

/// An append: the page, the LSN afterwards, and the changes.
struct Change<'a> {
    page: LogicalPage,
    /// LSN to which the page is complete afterwards.
    lsn: Lsn,
    form: ChangeForm,
    records: &'a [Vec<u8>],
}

impl Change<'_> {
    /// Whole slots, for the unit at `at` of that version.
    fn encode(&self, at: u32, version: Version, slot_size: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.records.len() * slot_size);
        for (index, changes) in self.records.iter().enumerate() {
            let mut record = alloc::vec![0; HEAD_SIZE];
            record[0] = match self.form {
                ChangeForm::Pairs { .. } => PAIRS,
                ChangeForm::Runs => RUNS,
            };
            if index + 1 < self.records.len() {
                record[0] |= MORE;
            }
            put_uint(&mut record[3..HEAD_SIZE], self.lsn.0);
            record.extend_from_slice(changes);
            let size = record.len() - HEAD_SIZE;
            put_uint(&mut record[1..3], size as u64);
            seal(&mut record, at, version);
            record.resize(slot_size, 0xFF);
            bytes.extend_from_slice(&record);
        }
        bytes
    }
}

/// A record as it stands on flash, for the unit at `at` of that version.
fn seal(record: &mut Vec<u8>, at: u32, version: Version) {
    let crc = crc_of(record, at, version);
    record.extend_from_slice(&crc.to_le_bytes());
}

fn crc_of(record: &[u8], at: u32, version: Version) -> u32 {
    let mut place = [0; 16];
    put_uint(&mut place[..4], at.into());
    put_uint(&mut place[4..12], version.0);
    put_uint(&mut place[12..], crc32c(record).into());
    crc32c(&place)
}

/// Content of a slot.
struct Parsed<'a> {
    form: ChangeForm,
    lsn: Lsn,
    changes: &'a [u8],
}

/// Parses the untrusted bytes of a slot.
fn parse(slot: &[u8], at: u32, version: Version) -> Option<Parsed<'_>> {
    let first = *slot.first()?;
    let form = match first & !MORE {
        PAIRS => ChangeForm::Pairs { bytes_max: u8::MAX },
        RUNS => ChangeForm::Runs,
        _ => return None,
    };
    let end = HEAD_SIZE + get_uint(slot.get(1..3)?) as usize;
    let crc = get_uint(slot.get(end..end + CRC_SIZE)?) as u32;
    let record = &slot[..end];
    if crc != crc_of(record, at, version) {
        return None;
    }
    let (head, changes) = record.split_at_checked(HEAD_SIZE)?;
    Some(Parsed { form, lsn: Lsn(get_uint(&head[3..])), changes })
}

impl<D: Nand> Flash<D> {
    /// Applies the first `count` appends of a unit to its image; `tail` holds their slots. Gives the metadata
    /// as the last append leaves them, or none when an append is damaged.
    pub(crate) fn fold(
        &self,
        at: u32,
        meta: PageMeta,
        image: &mut [u8],
        tail: &[u8],
        count: u8,
    ) -> Option<PageMeta> {
        let mut meta = meta;
        for slot in tail.chunks_exact(self.layout.append_slot_size()).take(count.into()) {
            let record = parse(slot, at, meta.version)?;
            runs::apply(image, record.form, record.changes).then_some(())?;
            meta.lsn = record.lsn;
        }
        Some(meta)
    }

    /// Records of the appends that stand whole on the unit at `at`, one behind the other. An append with an
    /// LSN above `upto` does not count.
    pub(crate) fn count_appends(
        &mut self,
        at: u32,
        meta: &PageMeta,
        upto: Lsn,
    ) -> Result<u8, NandError> {
        let layout = &self.layout;
        if append_lack(&layout.geometry, &layout.capabilities, meta.slots).is_some() {
            return Ok(0);
        }
        let mut whole = 0;
        let mut slot = alloc::vec![0; self.layout.append_slot_size()];
        for index in 0..meta.slots {
            let last = at + self.layout.parts - 1;
            let Some(page) = self.layout.geometry.page_from_number(last) else { return Ok(whole) };
            let data_offset = self.slot_offset(meta.slots, index);
            match self.read_data(page, data_offset, &mut slot) {
                Ok(()) if parse(&slot, at, meta.version).is_some_and(|found| found.lsn <= upto) => {
                    // An append of several records counts only where all of them are there.
                    let counts = slot.first().is_some_and(|form| form & MORE == 0);
                    whole = if counts { index + 1 } else { whole };
                }
                Ok(()) | Err(NandError::Uncorrectable { .. }) => return Ok(whole),
                Err(error) => return Err(error),
            }
        }
        Ok(whole)
    }

    /// Programs slots of a page. A translation layer is given the whole page, with the slots in it; whether
    /// it programs them in place is its own decision (A6).
    fn program_slots_behind(
        &mut self,
        page: PhysicalPage,
        data_offset: u32,
        slots: &[u8],
    ) -> Result<(), NandError> {
        let whole;
        let (data_offset, data) = match self.layout.capabilities.cell_mode {
            CellMode::Translated => {
                let mut bytes = alloc::vec![0; self.layout.geometry.page_size as usize];
                self.read_data(page, 0, &mut bytes)?;
                let start = data_offset as usize;
                bytes[start..start + slots.len()].copy_from_slice(slots);
                whole = bytes;
                (0, &whole[..])
            }
            _ => (data_offset, slots),
        };
        let part = ProgramPart { data_offset, data, spare_offset: 0, spare: &[] };
        self.program_part(page, part, Cause::Delta)
    }

    /// Offset at which slot `index` of `slots` begins on a page.
    fn slot_offset(&self, slots: u8, index: u8) -> u32 {
        let from_end = u32::from(slots - index) * self.layout.capabilities.code_word.data_size;
        self.layout.geometry.page_size - from_end
    }
}

impl<D: Nand> Space<D> {
    /// Bytes of a logical page that is written with so many append slots ([`crate::WriteTag`]).
    #[must_use]
    pub fn payload_size_with(&self, slots: u8) -> usize {
        self.layout().payload_size_with(slots)
    }

    /// Bytes of changes that a slot holds.
    #[must_use]
    pub fn append_size_max(&self) -> usize {
        self.layout().append_slot_size().saturating_sub(HEAD_SIZE + CRC_SIZE)
    }

    /// Limits of the device for appends.
    #[must_use]
    pub fn append_room(&self) -> AppendRoom {
        let slots_max =
            (1..=APPEND_SLOTS_MAX).take_while(|slots| self.append_lack(*slots).is_none());
        AppendRoom {
            slots_max: slots_max.last().unwrap_or(0),
            slot_size: self.layout().append_slot_size(),
            record_size_max: self.append_size_max(),
        }
    }

    /// The lack that keeps the device from carrying `slots` appends a page, if there is one.
    #[must_use]
    pub fn append_lack(&self, slots: u8) -> Option<AppendLack> {
        append_lack(&self.layout().geometry, &self.layout().capabilities, slots)
    }

    /// Appends `records`, changes in `form`, to the version of `page` that `expected` names: afterwards the
    /// page is complete to `lsn`. None when the page takes no append: then it has to be written as a whole.
    /// The change is in the caller's log: a mount forgets appends since the newest checkpoint (A2).
    ///
    /// # Errors
    ///
    /// The errors of the device.
    pub fn append(
        &mut self,
        page: LogicalPage,
        expected: &PageInfo,
        lsn: Lsn,
        form: ChangeForm,
        records: &[Vec<u8>],
    ) -> Result<Option<PageInfo>, SpaceError> {
        let change = Change { page, lsn, form, records };
        if !self.append_to(expected, &change)? {
            return Ok(None);
        }
        self.map.append(page, records.len() as u8);
        Ok(Some(PageInfo { lsn, appends: expected.appends + records.len() as u8, ..*expected }))
    }

    /// Counts the appends that stand whole on the unit of `page`, for a session that programs nothing: a
    /// mount left out the appends since the newest checkpoint. Each holds changes that were durable when it
    /// was made, up to `upto`, the end of the log, and has to read from then on. True when there are more
    /// than before.
    ///
    /// # Errors
    ///
    /// The errors of the device.
    pub fn see_appends(&mut self, page: LogicalPage, upto: Lsn) -> Result<bool, SpaceError> {
        let Some(at) = self.map.get(page) else { return Ok(false) };
        // A unit that may have been in flight is read from its copy in memory.
        if self.append_lack(1).is_some() || self.suspects.iter().any(|suspect| suspect.at == at) {
            return Ok(false);
        }
        let RawMeta::Found(meta, _) = self.flash.peek(at)? else { return Ok(false) };
        let have = self.map.appends(page);
        let is_whole = (meta.page, meta.kind) == (page, PageKind::Data);
        let count = if is_whole { self.flash.count_appends(at, &meta, upto)? } else { have };
        self.map.append(page, count.saturating_sub(have));
        Ok(count > have)
    }

    /// Programs records onto the unit that `expected` names; false when the unit takes none.
    fn append_to(&mut self, expected: &PageInfo, change: &Change<'_>) -> Result<bool, SpaceError> {
        self.ready()?;
        if change.lsn < expected.lsn || !self.takes_append(expected, change) {
            return Ok(false);
        }
        let (at, slots, count) = (expected.at, expected.append_slots, expected.appends);
        let slot_size = self.layout().append_slot_size();
        let bytes = change.encode(at, expected.version, slot_size);
        let last = at + self.layout().parts - 1;
        let Some(target) = self.layout().geometry.page_from_number(last) else { return Ok(false) };
        let data_offset = self.flash.slot_offset(slots, count);
        match self.flash.program_slots_behind(target, data_offset, &bytes) {
            Ok(()) => {}
            Err(NandError::ProgramFailed { .. }) => {
                self.retire_around(at);
                return Ok(false);
            }
            Err(error) => return Err(self.fail(error)),
        }
        self.flash.tally.delta_appends += 1;
        self.flash.tally.region(expected.region).appends += 1;
        Ok(true)
    }

    /// Whether a page takes these records (A1, A3, A4, A5).
    fn takes_append(&self, expected: &PageInfo, change: &Change<'_>) -> bool {
        let (at, layout) = (expected.at, self.layout());
        let &Change { page, records, .. } = change;
        if self.map.get(page) != Some(at) || self.map.appends(page) != expected.appends {
            return false;
        }
        let block = self.blocks.get(self.blocks.block_of(at));
        let last = (at + layout.parts - 1) % layout.geometry.pages_per_block;
        let role = layout.capabilities.cell_role(last, layout.geometry.pages_per_block);
        let size_max = self.append_size_max();
        let left = usize::from(expected.append_slots.saturating_sub(expected.appends));
        (1..=left).contains(&records.len())
            && records.iter().all(|record| record.len() <= size_max)
            && block.sequence == expected.sequence
            && (block.sequence >= self.first_sequence
                || self.flash.bugs.has(SpaceBug::AppendsToOldUnits))
            && block.state != BlockState::Retired
            && !matches!(role, CellRole::Msb { .. })
            && !self.pins.is_pinned(at)
            && !self.is_frozen(at)
            && !self.groups.has_page(page)
            && !self.rests_on_flag(expected.group)
    }
}
