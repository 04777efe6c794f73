//! Programs that break the rules on purpose, and their effect on the cells beside them.
//!
//! Owns program disturb: raising the charge of cells that hold their data already raises the charge of their
//! neighbours. Never happens to a caller who keeps the rules; [`crate::Nand::program`] refuses such programs.
//!
//! | cells | a second program of a page |
//! | --- | --- |
//! | one bit, or two of which one is used (SLC, pSLC) | harms nothing: the distance of the levels absorbs it |
//! | odd-MLC, LSB page | harms nothing |
//! | two bits (MLC), and MSB pages of odd-MLC | flips bits of the pages on its word line and on those beside it |
//!
//! That two-bit cells suffer and one-bit cells do not is from "In-Place Appends for Real" (EDBT 2017, section
//! 3). The rate is assumed, no data sheet gives it: one bit in a thousand of the other page of the word line,
//! one in four thousand of the pages on the word lines beside it.

use alloc::vec::Vec;

use super::damage::WordDamage;
use super::{Place, SimNand};
use crate::cells::CellRole;
use crate::rules::{PageState, Span};
use crate::{
    CellMode, Completion, FlashRule, Nand as _, NandError, PageType, PhysicalPage, ProgramPart,
};

/// One bit in so many flips on the same word line.
const SAME_LINE: u32 = 1_000;
/// One bit in so many flips on a neighbouring word line.
const NEXT_LINE: u32 = 4_000;

impl SimNand {
    /// Programs part of a page regardless of NOP, order and mode of the cells, as a real chip does without
    /// this crate's checks. Code words that were programmed before are lost; neighbours are disturbed.
    ///
    /// # Errors
    ///
    /// `Rule` for a program that no chip can do: parts that are no code words, pages that are not
    /// there.
    pub fn force_program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        self.powered()?;
        let place = self.place(page)?;
        let words = self.rules.words_of(part.data_offset, part.data.len());
        let words = words.filter(|_| self.rules.is_spare(part.spare_offset, part.spare.len()));
        let words = words.ok_or(NandError::Rule { page, rule: FlashRule::Alignment })?;
        let (state, _) = self.block_state(place);
        let after = PageState {
            words: state.words | words,
            data_programs: state.data_programs.saturating_add(1),
            spare_programs: state.spare_programs.saturating_add(1),
        };
        self.store(place, &Span { words, rewritten: 0, after }, &part);
        if !state.is_erased() && self.disturbs(place.index) {
            self.disturb(place);
        }
        Ok(self.count_program(place, &part))
    }

    /// Bits of a page that read wrongly, before the ECC corrects them. Lost code words are left out.
    #[must_use]
    pub fn bit_errors(&self, page: PhysicalPage) -> u32 {
        self.damage.flipped(page.number())
    }

    /// Whether a second program of such a page harms others.
    fn disturbs(&self, index: u32) -> bool {
        match self.capabilities().cell_mode {
            CellMode::Mlc { .. } | CellMode::Tlc | CellMode::Qlc => true,
            CellMode::OddMlc { .. } => self.page_type(index) == PageType::Upper,
            _ => false,
        }
    }

    fn disturb(&mut self, place: Place) {
        let pages_per_block = self.geometry().pages_per_block;
        let line_of = |index| word_line(self, index);
        let own = line_of(place.index);
        let near: Vec<(u32, u32)> = (0..pages_per_block)
            .filter(|index| *index != place.index)
            .filter_map(|index| match line_of(index).abs_diff(own) {
                0 => Some((index, SAME_LINE)),
                1 => Some((index, NEXT_LINE)),
                _ => None,
            })
            .collect();
        for (index, one_in) in near {
            self.flip_some(Place { index, ..place }, one_in);
        }
    }

    /// Flips one bit in so many of the programmed words of a page.
    fn flip_some(&mut self, place: Place, one_in: u32) {
        let words = self.block_state(place).0.words;
        let page = place.block.0 * self.geometry().pages_per_block + place.index;
        for word in (0..u64::BITS).filter(|word| words >> word & 1 == 1) {
            let bits = 8 * self.rules.word_size();
            let flipped = (0..bits).filter(|_| self.disturb.below(one_in) == 0).count() as u32;
            if flipped > 0 {
                self.damage.word(page, word, WordDamage::Flipped(flipped));
            }
        }
    }
}

/// Number of the word line of a page: that of its LSB page among all LSB pages of the block.
fn word_line(chip: &SimNand, index: u32) -> u32 {
    let pages_per_block = chip.geometry().pages_per_block;
    let role = |index| chip.capabilities().cell_role(index, pages_per_block);
    let lsb = match role(index) {
        CellRole::Msb { partner } => partner,
        CellRole::Alone | CellRole::Lsb { .. } => index,
    };
    (0..lsb).filter(|index| !matches!(role(*index), CellRole::Msb { .. })).count() as u32
}
