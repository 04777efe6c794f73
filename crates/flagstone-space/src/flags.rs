//! Flags that commit a group without a record: one partial program in a page's spare area.
//!
//! Owns the cells of a flag, which devices carry one, and how long a set flag stays. One set flag proves a
//! group committed, as in the paper's protocol CFC: every page names its group, so the links of a chain would
//! add nothing; the proof that they hand on before a page goes is kept for good by a checkpoint of the
//! mapping.
//!
//! ```text
//! meta 35  append count, left erased
//!   36..38 flag: 16 cells outside every checksum and every ECC
//! ```
//!
//! P1. A flag is set when three quarters of its cells have fallen. With fewer it is not set. P2. A flag is
//! programmed when all pages of its group are durable; it counts when it reads as set. P3. A page whose flag
//! is set stays until a durable record covers its group (rule D4). P4. A mount's verdicts by flag are pinned
//! by the session's first record before anything rests on them: a flag that was in flight may read otherwise
//! the next time (rule D11). Pages of groups whose flag did not read as set stay until then, or half a group
//! might come back; and a copy of a page is committed only if its group is.

use alloc::vec::Vec;

use flagstone_nand::{Capabilities, CellMode, Geometry, Nand, NandError, PartialCut, ProgramOrder};
use flagstone_nand::{ProgramPart, ReadPart};

use crate::error::SpaceError;
use crate::flash::Flash;
use crate::frontier::Stream;
use crate::meta::{META_SIZE_WITH_FLAGS, PageMeta, Placement, RawMeta};
use crate::space::Space;
use crate::stats::ReadPurpose;
use crate::{Cause, GroupId, SpaceBug};

/// Where the cells of a flag begin within the metadata.
const FLAG_OFFSET: usize = 36;

/// Bytes of a flag.
const FLAG_SIZE: usize = META_SIZE_WITH_FLAGS - FLAG_OFFSET;

/// Pages of a group that are tried in turn, when one does not take the flag.
const ATTEMPTS: usize = 3;

/// Capability that a device lacks for commits by flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagLack {
    /// Cells hold several bits, or there are none.
    #[error("a cut may harm pages written before, or it is no flash")]
    Cells,
    /// A page's spare area is programmed once between erases.
    #[error("its spare area takes one program between erases (NOP)")]
    PartialPrograms,
    /// The order rule covers later programs.
    #[error("its order rule covers re-programs")]
    ReprogramOrder,
    /// A cut in a flag program may take the page along.
    #[error("a cut in a partial program may harm the whole page")]
    IsolatedCuts,
    /// Too few spare bytes outside the ECC.
    #[error("it has fewer than 38 spare bytes outside its ECC")]
    RawSpare,
}

/// The lack that keeps a device from carrying flags; none when it carries them.
#[must_use]
pub fn flag_lack(geometry: &Geometry, capabilities: &Capabilities) -> Option<FlagLack> {
    let is_alone =
        matches!(capabilities.cell_mode, CellMode::Slc | CellMode::PseudoSlc | CellMode::Tlc);
    let raw = capabilities.spare_raw;
    let has_room = raw.size as usize >= META_SIZE_WITH_FLAGS
        && u64::from(raw.offset) + u64::from(raw.size) <= geometry.spare_size.into();
    let lacks = [
        (!is_alone || capabilities.needs_sync, FlagLack::Cells),
        (capabilities.programs_spare < 2, FlagLack::PartialPrograms),
        (capabilities.reprogram_order != ProgramOrder::Any, FlagLack::ReprogramOrder),
        (capabilities.partial_cut != PartialCut::Isolated, FlagLack::IsolatedCuts),
        (!has_room, FlagLack::RawSpare),
    ];
    lacks.into_iter().find_map(|(is_lacking, lack)| is_lacking.then_some(lack))
}

/// Verdict of the cells of a flag (P1).
fn vote(cells: &[u8]) -> bool {
    let fallen: u32 = cells.iter().map(|cell| cell.count_zeros()).sum();
    fallen as usize * 4 >= cells.len() * 8 * 3
}

impl<D: Nand> Flash<D> {
    /// Metadata and flag of a page; none where metadata do not stand beside raw spare bytes.
    pub(crate) fn peek_flag(&mut self, number: u32) -> Result<Option<(PageMeta, bool)>, NandError> {
        let Placement::RawSpare { offset } = self.layout.placement else { return Ok(None) };
        let Some(page) = self.layout.geometry.page_from_number(number) else { return Ok(None) };
        let mut bytes = [0xFF; META_SIZE_WITH_FLAGS];
        self.tally.read(ReadPurpose::Metadata);
        let spare = &mut bytes[..];
        let part = ReadPart { data_offset: 0, data: &mut [], spare_offset: offset, spare };
        let die = self.die_of(page);
        match self.busy.during(&mut self.device, die, |device| device.read(page, part)) {
            Ok(_) => Ok(match PageMeta::decode(&bytes) {
                RawMeta::Found(meta, _) => Some((meta, vote(&bytes[FLAG_OFFSET..]))),
                RawMeta::Erased | RawMeta::Damaged => None,
            }),
            Err(NandError::Uncorrectable { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Programs the flag of a page; whether it reads as set afterwards (P2).
    fn program_flag(&mut self, number: u32) -> Result<bool, NandError> {
        let Placement::RawSpare { offset } = self.layout.placement else { return Ok(false) };
        let Some(page) = self.layout.geometry.page_from_number(number) else { return Ok(false) };
        let spare_offset = offset + FLAG_OFFSET as u32;
        let part = ProgramPart { data_offset: 0, data: &[], spare_offset, spare: &[0; FLAG_SIZE] };
        self.tally.program(Cause::Flag, FLAG_SIZE);
        let die = self.die_of(page);
        match self.busy.during(&mut self.device, die, |device| device.program(page, part)) {
            Ok(completion) => self.done(completion),
            Err(NandError::ProgramFailed { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(matches!(self.peek_flag(number)?, Some((_, true))))
    }
}

impl<D: Nand> Space<D> {
    /// Whether a flag can commit a group on this device.
    #[must_use]
    pub fn carries_flags(&self) -> bool {
        flag_lack(&self.layout().geometry, &self.layout().capabilities).is_none()
    }

    /// Commits an open group by a flag: afterwards a mount finds its pages valid. The mapping follows
    /// with [`Space::commit_group`].
    ///
    /// The group's pages were written by [`Space::write_claimed`], and nothing else commits it.
    ///
    /// # Errors
    ///
    /// `UnknownGroup` when it has no pages; `FlagRefused` leaves the outcome to the next mount, and the
    /// space poisoned.
    pub fn flag_group(&mut self, group: GroupId) -> Result<(), SpaceError> {
        self.ready()?;
        let pages = self.groups.iter().filter(|page| page.group == group);
        let mut pages: Vec<_> = pages.map(|page| (page.version, page.at)).collect();
        pages.sort_unstable();
        if pages.is_empty() {
            return Err(SpaceError::UnknownGroup(group));
        }
        for (_, at) in pages.into_iter().rev().take(ATTEMPTS) {
            if self.flash.program_flag(at).map_err(|error| self.fail(error))? {
                self.flags.insert(at, group);
                return Ok(());
            }
            self.retire_around(at);
        }
        self.poisoned = true;
        Err(SpaceError::FlagRefused(group))
    }

    /// A page of a block did not take its flag, or an append: nothing more goes there.
    pub(crate) fn retire_around(&mut self, at: u32) {
        let block = self.blocks.block_of(at);
        for stream in Stream::ALL {
            if self.frontier(stream).is_some_and(|open| open.block == block) {
                self.frontiers[stream as usize] = None;
            }
        }
        self.retire(block);
    }

    /// Pins the mount's verdicts by flag, before anything rests on them (P4).
    ///
    /// # Errors
    ///
    /// The errors of a write.
    pub fn pin_flags(&mut self) -> Result<(), SpaceError> {
        self.ready()
    }

    /// Relocations that a page write has brought with it since counting began.
    #[must_use]
    pub fn moves_per_write(&self) -> f64 {
        let count = |cause: Cause| self.flash.tally.programs[cause as usize] as f64;
        count(Cause::Relocation) / count(Cause::Data).max(1.0)
    }

    /// Whether the unit must stay for its flag alone, which is evidence (P3).
    pub(crate) fn is_evidence(&self, at: u32) -> bool {
        self.flags.contains_key(&at) && !self.flash.bugs.has(SpaceBug::FlagErased)
    }

    /// Whether a flag is the only proof that the group is committed.
    pub(crate) fn rests_on_flag(&self, group: GroupId) -> bool {
        self.flags.values().any(|other| *other == group)
    }

    /// A durable record covers every group that is not open.
    pub(crate) fn forget_flags(&mut self) {
        let groups = &self.groups;
        self.flags.retain(|_, group| groups.is_open(*group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_what_three_quarters_of_its_cells_show() {
        assert!(vote(&[0, 0]));
        assert!(!vote(&[0xFF, 0xFF]));
        assert!(vote(&[0, 0xF0]), "twelve of sixteen");
        assert!(!vote(&[0, 0xF8]), "eleven are in between");
    }

    #[test]
    fn what_a_chip_lacks_is_named() {
        let lack = |name: &str| {
            let profile = flagstone_nand::Profile::named(name).unwrap();
            flag_lack(&profile.geometry, &profile.capabilities)
        };
        assert_eq!(lack("tiny-flags"), None);
        assert_eq!(lack("slc-2k"), None);
        assert_eq!(lack("tiny"), Some(FlagLack::RawSpare));
        assert_eq!(lack("tiny-mlc"), Some(FlagLack::Cells));
        assert_eq!(lack("tiny-nop1"), Some(FlagLack::PartialPrograms));
        assert_eq!(lack("tiny-risk"), Some(FlagLack::IsolatedCuts));
    }
}
