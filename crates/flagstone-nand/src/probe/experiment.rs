//! The experiments on one scratch block.
//!
//! Owns the order in which pages are programmed, the bytes they get and the check that they came back.

use alloc::vec;
use alloc::vec::Vec;

use super::{MeasuredTimes, SPARE_PROGRAMS_MAX, free_spare};
use crate::mix::Draw;
use crate::{BlockIndex, Nand, NandError, PhysicalPage, ProgramPart, ReadPart};

/// Pages of a block, by the experiment that uses them.
const DATA_PAGE: u32 = 0;
const SPARE_PAGE: u32 = 1;
/// Two programmed in descending order, then one that is continued after the next.
const LATER_PAGE: u32 = 2;
const EARLIER_PAGE: u32 = 1;
const CONTINUED_PAGE: u32 = 4;
const NEXT_PAGE: u32 = 5;

/// Findings on one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) programs_data: u32,
    pub(super) programs_spare: u32,
    pub(super) goes_back_first: bool,
    pub(super) goes_back_later: bool,
}

/// Times of one kind of operation.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    count: u64,
    sum_ns: u64,
}

impl Times {
    fn mean_ns(self) -> u64 {
        self.sum_ns / self.count.max(1)
    }
}

/// A page as it was read: its data, and the spare bytes that users may have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Content {
    data: Vec<u8>,
    spare: Vec<u8>,
}

/// A device whose operations are timed (rule P2).
pub(super) struct Bench<'a, D> {
    pub(super) device: &'a mut D,
    pub(super) corrected_bits_max: u32,
    reads: Times,
    programs: Times,
    partial_programs: Times,
    spare_programs: Times,
    erases: Times,
    draw: Draw,
}

impl<'a, D: Nand> Bench<'a, D> {
    pub(super) fn new(device: &'a mut D) -> Self {
        Self {
            device,
            corrected_bits_max: 0,
            reads: Times::default(),
            programs: Times::default(),
            partial_programs: Times::default(),
            spare_programs: Times::default(),
            erases: Times::default(),
            draw: Draw::new(1, 11),
        }
    }

    pub(super) fn times(&self) -> MeasuredTimes {
        MeasuredTimes {
            read_ns: self.reads.mean_ns(),
            program_ns: self.programs.mean_ns(),
            partial_program_ns: self.partial_programs.mean_ns(),
            spare_program_ns: self.spare_programs.mean_ns(),
            erase_ns: self.erases.mean_ns(),
        }
    }

    /// Every experiment on `block`.
    pub(super) fn examine(&mut self, block: BlockIndex) -> Result<Found, NandError> {
        self.erase(block)?;
        let programs_data = self.program_words(self.page(block, DATA_PAGE)?)?;
        let programs_spare = self.program_spare(self.page(block, SPARE_PAGE)?)?;
        self.erase(block)?;
        let goes_back_first = self.go_back_first(block)?;
        self.erase(block)?;
        let goes_back_later = self.go_back_later(block)?;
        self.erase(block)?;
        Ok(Found { programs_data, programs_spare, goes_back_first, goes_back_later })
    }

    fn page(&self, block: BlockIndex, index: u32) -> Result<PhysicalPage, NandError> {
        let page = self.device.geometry().page(block, index);
        page.ok_or(NandError::EraseFailed { block })
    }

    /// Programs the code words of a page one after the other; how many it took.
    fn program_words(&mut self, page: PhysicalPage) -> Result<u32, NandError> {
        let page_size = self.device.geometry().page_size;
        let word_size = self.device.capabilities().code_word.data_size;
        let source = self.random_page();
        let mut expected = self.erased_page();
        for number in 0..page_size / word_size {
            let word = (number * word_size) as usize..((number + 1) * word_size) as usize;
            let (Some(from), Some(to)) = (source.get(word.clone()), expected.data.get_mut(word))
            else {
                return Ok(number);
            };
            to.copy_from_slice(from);
            let took = self.program(page, number * word_size, from, (0, &[]))?;
            if !took || !self.holds(page, &expected)? {
                return Ok(number);
            }
        }
        Ok(page_size / word_size)
    }

    /// Programs a page, then free bytes of its spare area bit by bit; how many programs it took.
    fn program_spare(&mut self, page: PhysicalPage) -> Result<u32, NandError> {
        let free = free_spare(&self.device.capabilities());
        let mut expected = self.erased_page();
        expected.data = self.random_page();
        if !self.program(page, 0, &expected.data, (0, &[]))? || !self.holds(page, &expected)? {
            return Ok(0);
        }
        let bit_count = free.size.saturating_mul(u8::BITS);
        for number in 0..bit_count.min(SPARE_PROGRAMS_MAX - 1) {
            let index = number / u8::BITS;
            let Some(byte) = expected.spare.get_mut(index as usize) else { return Ok(number + 1) };
            *byte &= !(1 << (number % u8::BITS));
            let spare = [*byte];
            if !self.program(page, 0, &[], (free.offset + index, &spare))?
                || !self.holds(page, &expected)?
            {
                return Ok(number + 1);
            }
        }
        Ok(1 + bit_count.min(SPARE_PROGRAMS_MAX - 1))
    }

    /// Whether a page can be programmed for the first time after a later one.
    fn go_back_first(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        let (later, earlier) = (self.page(block, LATER_PAGE)?, self.page(block, EARLIER_PAGE)?);
        let pages = [later, earlier].map(|page| (page, self.random_content()));
        for (page, content) in &pages {
            if !self.program(*page, 0, &content.data, (0, &[]))? {
                return Ok(false);
            }
        }
        self.hold(&pages)
    }

    /// Whether a page can be continued after a later one was programmed.
    fn go_back_later(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        let capabilities = self.device.capabilities();
        let word_size = capabilities.code_word.data_size as usize;
        let (continued, next) = (self.page(block, CONTINUED_PAGE)?, self.page(block, NEXT_PAGE)?);
        let mut pages = [continued, next].map(|page| (page, self.random_content()));
        let [(_, first), (_, second)] = &mut pages;
        let is_whole = first.data.len() <= word_size;
        let (head, tail) = first.data.split_at(word_size.min(first.data.len()));
        let began = self.program(continued, 0, head, (0, &[]))?
            && self.program(next, 0, &second.data, (0, &[]))?;
        let at = free_spare(&capabilities).offset;
        let went_on = if is_whole {
            // Nothing of the data is left to continue with: one spare byte does.
            let Some(byte) = first.spare.first_mut() else { return Ok(false) };
            *byte = 0;
            began && self.program(continued, 0, &[], (at, &[0]))?
        } else {
            began && self.program(continued, word_size as u32, tail, (0, &[]))?
        };
        Ok(went_on && self.hold(&pages)?)
    }

    fn hold(&mut self, pages: &[(PhysicalPage, Content)]) -> Result<bool, NandError> {
        for (page, content) in pages {
            if !self.holds(*page, content)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn random_page(&mut self) -> Vec<u8> {
        let mut data = vec![0; self.device.geometry().page_size as usize];
        self.draw.fill(&mut data);
        data
    }

    fn random_content(&mut self) -> Content {
        Content { data: self.random_page(), ..self.erased_page() }
    }

    fn erased_page(&self) -> Content {
        let geometry = self.device.geometry();
        let free = free_spare(&self.device.capabilities());
        Content {
            data: vec![0xFF; geometry.page_size as usize],
            spare: vec![0xFF; free.size as usize],
        }
    }

    /// Whether a page reads as `expected`.
    fn holds(&mut self, page: PhysicalPage, expected: &Content) -> Result<bool, NandError> {
        match self.read(page) {
            Ok(found) => Ok(found == *expected),
            Err(NandError::Uncorrectable { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn read(&mut self, page: PhysicalPage) -> Result<Content, NandError> {
        let mut content = self.erased_page();
        let started_ns = self.device.now_ns();
        let part = ReadPart {
            data_offset: 0,
            data: &mut content.data,
            spare_offset: free_spare(&self.device.capabilities()).offset,
            spare: &mut content.spare,
        };
        let result = self.device.read(page, part);
        let ended_ns = result.as_ref().map_or(self.device.now_ns(), |done| done.end_ns);
        self.reads.add(started_ns, ended_ns);
        let done = result?;
        self.corrected_bits_max = self.corrected_bits_max.max(done.corrected_bits_max);
        Ok(content)
    }

    /// One program; false when device or kernel refuse it, or when it fails.
    fn program(
        &mut self,
        page: PhysicalPage,
        data_offset: u32,
        data: &[u8],
        (spare_offset, spare): (u32, &[u8]),
    ) -> Result<bool, NandError> {
        let started_ns = self.device.now_ns();
        let part = ProgramPart { data_offset, data, spare_offset, spare };
        let done = match self.device.program(page, part) {
            Ok(done) => done,
            Err(error @ NandError::PowerOff) => return Err(error),
            Err(_) => return Ok(false),
        };
        let times = if data.is_empty() {
            &mut self.spare_programs
        } else if data.len() == self.device.geometry().page_size as usize {
            &mut self.programs
        } else {
            &mut self.partial_programs
        };
        times.add(started_ns, done.end_ns);
        self.device.advance_to(done.end_ns);
        Ok(true)
    }

    fn erase(&mut self, block: BlockIndex) -> Result<(), NandError> {
        let started_ns = self.device.now_ns();
        let done = self.device.erase(block)?;
        self.erases.add(started_ns, done.end_ns);
        self.device.advance_to(done.end_ns);
        Ok(())
    }
}

impl Times {
    fn add(&mut self, started_ns: u64, ended_ns: u64) {
        self.count += 1;
        self.sum_ns += ended_ns.saturating_sub(started_ns);
    }
}
