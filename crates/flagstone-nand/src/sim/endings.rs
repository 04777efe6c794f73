//! How a simulated operation ends when the power goes, or when the chip reports failure.
//!
//! Owns the translation of an [`Ending`] into bytes and damage. Never decides when.
//!
//! - **E1** Cells that an interrupted operation may have touched count as used: a program over
//!   them before an erase breaks a rule, even where they read as erased.
//! - **E2** An ending that the operation cannot have leaves everything untouched.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::damage::{Apparent, WordDamage};
use super::{Place, SimNand};
use crate::cells::CellRole;
use crate::mix::Draw;
use crate::rules::{PageState, Span};
use crate::{Ending, ProgramPart};

/// State of a page with unreliable cells (E1).
const SPENT: PageState =
    PageState { words: u64::MAX, data_programs: u8::MAX, spare_programs: u8::MAX };

impl SimNand {
    /// Ends a program as `ending` says.
    pub(super) fn end_program(
        &mut self,
        place: Place,
        span: &Span,
        part: &ProgramPart<'_>,
        ending: Ending,
    ) {
        match ending {
            Ending::Complete => self.store(place, span, part),
            Ending::Torn { units } => self.tear(place, span, part, units),
            Ending::SpareOnly => self.tear_data(place, span, part, 0),
            Ending::RandomBits => self.scatter(place, span, part),
            Ending::LooksUntouched => self.unsettle(place, span, part, Apparent::Before),
            Ending::LooksComplete => self.unsettle(place, span, part, Apparent::After),
            Ending::PairLost => self.lose_pair(place, span, part),
            Ending::PageLost => {
                self.scatter(place, span, part);
                self.lose_words(place, !span.words);
            }
            _ => {}
        }
    }

    /// The first `units` code words, then the spare bytes.
    fn tear(&mut self, place: Place, span: &Span, part: &ProgramPart<'_>, units: u8) {
        let word_count = span.words.count_ones();
        let spare = if u32::from(units) > word_count { part.spare } else { &[] };
        self.tear_data(place, span, &ProgramPart { spare, ..*part }, u32::from(units));
    }

    /// The first `word_count` code words and the spare bytes; the other code words read as erased.
    fn tear_data(&mut self, place: Place, span: &Span, part: &ProgramPart<'_>, word_count: u32) {
        let size = (word_count * self.rules.word_size()) as usize;
        let mut data = Vec::from(part.data);
        if let Some(rest) = data.get_mut(size..) {
            rest.fill(0xFF);
        }
        self.store(place, span, &ProgramPart { data: &data, ..*part });
    }

    /// Some of the bits that had to fall did.
    fn scatter(&mut self, place: Place, span: &Span, part: &ProgramPart<'_>) {
        let mut draw = Draw::new(self.faults.seed(), 3);
        let mut data = alloc::vec![0; part.data.len()];
        let mut spare = alloc::vec![0; part.spare.len()];
        draw.fill(&mut data);
        draw.fill(&mut spare);
        for (kept, byte) in data.iter_mut().zip(part.data).chain(spare.iter_mut().zip(part.spare)) {
            *kept |= byte;
        }
        self.store(place, span, &ProgramPart { data: &data, spare: &spare, ..*part });
        for word in bits(span.words) {
            if draw.coin() {
                self.damage.word(place.page.number(), word, WordDamage::Lost);
            }
        }
    }

    /// The part reads as before or as after, for a while.
    fn unsettle(&mut self, place: Place, span: &Span, part: &ProgramPart<'_>, apparent: Apparent) {
        let before = self.spare_now(place);
        match apparent {
            Apparent::Before => self.tear_data(place, span, part, 0),
            Apparent::After => self.store(place, span, part),
        }
        let number = place.page.number();
        for word in bits(span.words) {
            self.damage.unsettle(number, word);
        }
        let after = self.spare_now(place);
        let doubtful: Vec<u8> = before.iter().zip(&after).map(|(old, new)| old & !new).collect();
        if doubtful.iter().any(|bits| *bits != 0) {
            self.damage.doubt(number, doubtful, apparent);
        }
    }

    /// The page is scattered and takes the LSB page of its cells along.
    fn lose_pair(&mut self, place: Place, span: &Span, part: &ProgramPart<'_>) {
        let role = self.capabilities.cell_role(place.index, self.geometry.pages_per_block);
        let CellRole::Msb { partner } = role else { return };
        self.scatter(place, span, part);
        if let Some(page) = self.geometry.page(place.block, partner) {
            self.lose_words(Place { page, index: partner, ..place }, u64::MAX);
        }
    }

    /// Loses the used code words among `words`, and random spare bits of the page.
    fn lose_words(&mut self, place: Place, words: u64) {
        let (state, _) = self.block_state(place);
        for word in bits(state.words & words & self.rules.all_words()) {
            self.damage.word(place.page.number(), word, WordDamage::Lost);
        }
        if state.is_erased() {
            return;
        }
        let mut draw = Draw::new(self.faults.seed(), 4);
        let geometry = self.geometry;
        let spare = self.block_mut(place.block).spare_mut(&geometry, place.index);
        for byte in spare {
            *byte &= (draw.bits() | draw.bits()) as u8;
        }
    }

    /// Ends an erase as `ending` says.
    pub(super) fn end_erase(&mut self, place: Place, ending: Ending) {
        match ending {
            Ending::Complete => self.clear(place),
            Ending::PartlyErased => self.erase_partly(place),
            Ending::LooksErased => {
                self.count_erase(place);
                for place in self.places(place) {
                    self.blank(place);
                    self.unsettle_page(place);
                }
            }
            _ => {}
        }
    }

    /// Each page keeps its bytes, reads as erased or holds garbage.
    fn erase_partly(&mut self, block: Place) {
        self.count_erase(block);
        let mut draw = Draw::new(self.faults.seed(), 5);
        for place in self.places(block) {
            match draw.below(3) {
                0 => {}
                1 => self.blank(place),
                _ => self.spoil(place, &mut draw),
            }
        }
        // E1: even pages that kept their bytes or were never programmed accept nothing any more.
        let frontier = self.geometry.pages_per_block;
        for place in self.places(block) {
            let (state, _) = self.block_state(place);
            let data_programs = u8::MAX;
            let spare_programs = u8::MAX;
            let block = self.block_mut(place.block);
            if state.is_erased() {
                self.blank(place);
            } else {
                block.set_state(place.index, PageState { data_programs, spare_programs, ..state });
                block.frontier = frontier;
            }
        }
    }

    /// Sets all bytes to `0xFF`, without making them free to program.
    fn blank(&mut self, place: Place) {
        let geometry = self.geometry;
        let block = self.block_mut(place.block);
        block.set_state(place.index, SPENT);
        block.data_mut(&geometry, place.index).fill(0xFF);
        block.spare_mut(&geometry, place.index).fill(0xFF);
        let number = place.page.number();
        self.damage.erase(number, number + 1);
    }

    /// Garbage, noticed by the ECC or not.
    fn spoil(&mut self, place: Place, draw: &mut Draw) {
        self.blank(place);
        let geometry = self.geometry;
        let block = self.block_mut(place.block);
        draw.fill(block.data_mut(&geometry, place.index));
        draw.fill(block.spare_mut(&geometry, place.index));
        if draw.coin() {
            for word in bits(self.rules.all_words()) {
                self.damage.word(place.page.number(), word, WordDamage::Lost);
            }
        }
    }

    /// All code words of a blank page become unstable; its spare bytes are in doubt.
    fn unsettle_page(&mut self, place: Place) {
        let number = place.page.number();
        for word in bits(self.rules.all_words()) {
            self.damage.unsettle(number, word);
        }
        let mut doubtful = alloc::vec![0; self.geometry.spare_size as usize];
        Draw::new(self.faults.seed(), u64::from(number)).fill(&mut doubtful);
        let geometry = self.geometry;
        let spare = self.block_mut(place.block).spare_mut(&geometry, place.index);
        for (byte, bits) in spare.iter_mut().zip(&doubtful) {
            *byte &= !bits;
        }
        self.damage.doubt(number, doubtful, Apparent::Before);
    }

    /// Every page of a block.
    fn places(&self, block: Place) -> Vec<Place> {
        let pages = 0..self.geometry.pages_per_block;
        let place = |index| {
            let page = self.geometry.page(block.block, index)?;
            Some(Place { page, index, ..block })
        };
        pages.filter_map(place).collect()
    }

    /// Spare bytes of a page as stored.
    fn spare_now(&self, place: Place) -> Vec<u8> {
        let mut spare = alloc::vec![0xFF; self.geometry.spare_size as usize];
        if let Some(block) = self.blocks.get(place.block.0 as usize).and_then(Option::as_ref) {
            block.read_spare(&self.geometry, place.index, 0, &mut spare);
        }
        spare
    }

    /// Unshared bytes of a block, allocated if it was erased.
    pub(super) fn block_mut(&mut self, block: crate::BlockIndex) -> &mut super::Block {
        let slot = &mut self.blocks[block.0 as usize];
        Arc::make_mut(slot.get_or_insert_with(|| self.pool.take(&self.geometry)))
    }
}

/// Positions of the bits set in `mask`.
fn bits(mask: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).filter(move |bit| mask >> bit & 1 == 1)
}
