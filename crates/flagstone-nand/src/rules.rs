//! The rules of flash, in one place for every device that can enforce them.
//!
//! Owns the state of a page that is needed to judge the next program. Never touches cells: a device
//! asks first and programs afterwards.
//!
//! - **R1** A refused program changes nothing.
//! - **R2** A code word inside the data part of a program is used from then on, even when all its
//!   bytes are `0xFF`: the chip writes its parity. Parts leave out the words that stay
//!   unprogrammed.
//! - **R3** On a device with a spare area, a program of data is a program of spare as well: its
//!   parity lies there.

use crate::{Capabilities, FlashRule, Geometry, ProgramOrder, ProgramPart};

/// State of a page between two erases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageState {
    /// One bit for each code word that was programmed.
    pub(crate) words: u64,
    /// Programs of the data area.
    pub(crate) data_programs: u8,
    /// Programs of the spare area.
    pub(crate) spare_programs: u8,
}

impl PageState {
    /// Whether nothing was programmed since the erase.
    pub(crate) const fn is_erased(self) -> bool {
        self.words == 0 && self.data_programs == 0 && self.spare_programs == 0
    }
}

/// Code words that a legal program touches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Code words in the part.
    pub(crate) words: u64,
    /// Code words among them that were programmed before: only where the tail may be rewritten, and
    /// then the device has to make sure that their bytes stay the same.
    pub(crate) rewritten: u64,
    /// State of the page afterwards.
    pub(crate) after: PageState,
}

/// The rules of one device.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    geometry: Geometry,
    capabilities: Capabilities,
    word_size: u32,
    all_words: u64,
}

impl Rules {
    pub(crate) fn new(geometry: Geometry, capabilities: Capabilities) -> Self {
        let word_size = capabilities.code_word.data_size.max(1);
        let all_words = mask(0, geometry.page_size / word_size);
        Self { geometry, capabilities, word_size, all_words }
    }

    /// Bytes of a code word.
    pub(crate) const fn word_size(&self) -> u32 {
        self.word_size
    }

    /// The code words of a whole page.
    pub(crate) const fn all_words(&self) -> u64 {
        self.all_words
    }

    /// The code words of a run of data bytes, or `None` when it is not made of whole ones.
    #[inline]
    pub(crate) fn words_of(&self, offset: u32, size: usize) -> Option<u64> {
        if size == 0 {
            return Some(0);
        }
        let size = u32::try_from(size).ok()?;
        if offset == 0 && size == self.geometry.page_size {
            return Some(self.all_words);
        }
        let end = offset.checked_add(size)?;
        let aligned = offset.is_multiple_of(self.word_size) && size.is_multiple_of(self.word_size);
        let inside = aligned && end <= self.geometry.page_size;
        inside.then(|| mask(offset / self.word_size, size / self.word_size))
    }

    /// Whether a run of spare bytes lies inside the spare area.
    #[inline]
    pub(crate) fn is_spare(&self, offset: u32, size: usize) -> bool {
        size == 0 || offset as usize + size <= self.geometry.spare_size as usize
    }

    /// State of a page as its bytes show it: words that are not `0xFF` were programmed, at least
    /// once.
    pub(crate) fn derive(&self, data: &[u8], spare: &[u8]) -> PageState {
        let is_used = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0xFF);
        let chunks = data.chunks(self.word_size as usize).enumerate();
        let used = chunks.filter(|(_, word)| is_used(word));
        let words = used.fold(0, |words, (index, _)| words | mask(index as u32, 1));
        let spare_programs = u8::from(is_used(spare) || (words != 0 && !spare.is_empty()));
        PageState { words, data_programs: u8::from(words != 0), spare_programs }
    }

    /// Whether the spare bytes of a page may be programmed once more.
    pub(crate) fn takes_spare(&self, state: PageState) -> bool {
        u32::from(state.spare_programs) < self.capabilities.programs_spare
    }

    /// Judges a program of page `index` of a block.
    ///
    /// `frontier` is one more than the highest page of the block that was programmed, and
    /// `spare_now` holds the spare bytes as they are; it is read on programmed pages only.
    ///
    /// # Errors
    ///
    /// The first rule that would be broken.
    #[inline]
    pub(crate) fn judge(
        &self,
        index: u32,
        state: PageState,
        frontier: u32,
        part: &ProgramPart<'_>,
        spare_now: &[u8],
    ) -> Result<Span, FlashRule> {
        let words = self.words_of(part.data_offset, part.data.len()).ok_or(FlashRule::Alignment)?;
        if !self.is_spare(part.spare_offset, part.spare.len()) {
            return Err(FlashRule::Alignment);
        }
        self.judge_order(index, state, frontier)?;
        let rewritten = state.words & words;
        if rewritten != 0 && !self.capabilities.rewrite_tail {
            return Err(FlashRule::CodeWordReuse);
        }
        let after = self.judge_counts(index, state, words, part)?;
        self.judge_spare(state, words, part, spare_now)?;
        Ok(Span { words, rewritten, after })
    }

    fn judge_order(&self, index: u32, state: PageState, frontier: u32) -> Result<(), FlashRule> {
        if index + 1 >= frontier {
            return Ok(());
        }
        let (order, rule) = if state.is_erased() {
            (self.capabilities.first_program_order, FlashRule::FirstProgramOrder)
        } else {
            (self.capabilities.reprogram_order, FlashRule::ReprogramOrder)
        };
        match order {
            ProgramOrder::Any => Ok(()),
            ProgramOrder::Ascending => Err(rule),
        }
    }

    /// Counts the program and checks NOP.
    fn judge_counts(
        &self,
        index: u32,
        state: PageState,
        words: u64,
        part: &ProgramPart<'_>,
    ) -> Result<PageState, FlashRule> {
        let mut after = PageState { words: state.words | words, ..state };
        if words != 0 {
            after.data_programs = state.data_programs.saturating_add(1);
            let limit = if state.data_programs == 0 {
                self.capabilities.programs_data
            } else {
                self.capabilities.programs_data_of(index, self.geometry.pages_per_block)
            };
            let limited = !self.capabilities.rewrite_tail;
            if limited && u32::from(state.data_programs) >= limit {
                return Err(FlashRule::DataPrograms);
            }
        }
        let spare_touched = self.geometry.spare_size > 0 && (words != 0 || !part.spare.is_empty());
        if spare_touched {
            after.spare_programs = state.spare_programs.saturating_add(1);
            if !self.takes_spare(state) {
                return Err(FlashRule::SparePrograms);
            }
        }
        Ok(after)
    }

    /// Checks which spare bytes may be programmed, and that bits only fall.
    fn judge_spare(
        &self,
        state: PageState,
        words: u64,
        part: &ProgramPart<'_>,
        spare_now: &[u8],
    ) -> Result<(), FlashRule> {
        let (raw, covered) = (self.capabilities.spare_raw, self.capabilities.spare_covered);
        let with_page = words == self.all_words && state.words == 0;
        let first = part.spare_offset as usize;
        for (position, byte) in part.spare.iter().enumerate() {
            if *byte == 0xFF {
                continue;
            }
            let at = (first + position) as u32;
            if at.wrapping_sub(raw.offset) < raw.size {
                continue;
            }
            if at.wrapping_sub(covered.offset) >= covered.size {
                return Err(FlashRule::Alignment);
            }
            if !with_page {
                return Err(FlashRule::CodeWordReuse);
            }
        }
        // Without an ECC a bit that is 0 may have flipped; a program leaves it, and a code above repairs it.
        let is_bare = self.capabilities.code_word.strength == 0;
        if state.is_erased() || part.spare.is_empty() || is_bare {
            return Ok(());
        }
        let now = spare_now.get(first..).unwrap_or_default();
        let rises = part.spare.iter().zip(now).any(|(new, old)| *new != 0xFF && *new & !*old != 0);
        if rises { Err(FlashRule::BitsOnlyFall) } else { Ok(()) }
    }
}

/// `count` bits from bit `first` on.
const fn mask(first: u32, count: u32) -> u64 {
    if first >= u64::BITS || count == 0 {
        return 0;
    }
    let ones = if count >= u64::BITS { u64::MAX } else { (1 << count) - 1 };
    ones << first
}

#[cfg(test)]
mod tests;
