//! Cells of one simulated block: bytes, and which of them were programmed.
//!
//! Owns the bytes of a block that was programmed at least once. Never judges: the rules have
//! spoken before.
//!
//! - **B1** Bytes of a code word that was not programmed mean nothing: reads give `0xFF`. So an
//!   erase touches no bytes.
//! - **B2** Spare bytes mean something as soon as anything of the page was programmed.
//! - **B3** A page that repeats one word of eight bytes costs that word: a chip full of cold data
//!   fits into memory whatever its size.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::rules::{PageState, Rules, Span};
use crate::{Geometry, ProgramPart};

/// Data of a page.
#[derive(Clone, Copy, Debug)]
enum Lane {
    /// One word of eight bytes, over and over (B3).
    Filled([u8; 8]),
    /// A page of the block's bytes, by number.
    At(u32),
}

/// Bytes and state of a block.
#[derive(Clone, Debug)]
pub(super) struct Block {
    lanes: Vec<Lane>,
    /// Data of the pages that have bytes of their own, in the order in which they got them.
    data: Vec<u8>,
    spare: Vec<u8>,
    pages: Vec<PageState>,
    /// One more than the highest page programmed.
    pub(super) frontier: u32,
    /// Whether an erase was reported and not done: the rules believe in an erased block.
    pub(super) stale: bool,
}

impl Block {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let page_count = geometry.pages_per_block as usize;
        Self {
            lanes: vec![BLANK; page_count],
            data: Vec::new(),
            spare: vec![0; page_count * geometry.spare_size as usize],
            pages: vec![PageState::default(); page_count],
            frontier: 0,
            stale: false,
        }
    }

    /// Forgets everything (B1).
    pub(super) fn erase(&mut self) {
        self.pages.fill(PageState::default());
        self.lanes.fill(BLANK);
        self.data.clear();
        self.frontier = 0;
        self.stale = false;
    }

    #[inline]
    pub(super) fn state(&self, index: u32) -> PageState {
        self.pages.get(index as usize).copied().unwrap_or_default()
    }

    pub(super) fn set_state(&mut self, index: u32, state: PageState) {
        if let Some(page) = self.pages.get_mut(index as usize) {
            *page = state;
        }
        if !state.is_erased() {
            self.frontier = self.frontier.max(index + 1);
        }
    }

    /// Whether the data bytes from `offset` on, as stored, are `bytes`.
    pub(super) fn has_data(
        &self,
        geometry: &Geometry,
        index: u32,
        offset: u32,
        bytes: &[u8],
    ) -> bool {
        match self.lanes[index as usize] {
            Lane::Filled(word) => bytes.chunks(word.len()).all(|chunk| word.starts_with(chunk)),
            Lane::At(number) => {
                let start = number as usize * geometry.page_size as usize + offset as usize;
                self.data[start..start + bytes.len()] == *bytes
            }
        }
    }

    /// Data bytes of a page, which has bytes of its own from now on (B1).
    pub(super) fn data_mut(&mut self, geometry: &Geometry, index: u32) -> &mut [u8] {
        let size = geometry.page_size as usize;
        let number = match self.lanes[index as usize] {
            Lane::At(number) => number,
            Lane::Filled(word) => {
                let start = self.data.len();
                self.data.resize(start + size, 0);
                fill(&mut self.data[start..], word);
                (start / size) as u32
            }
        };
        self.lanes[index as usize] = Lane::At(number);
        let start = number as usize * size;
        &mut self.data[start..start + size]
    }

    /// Spare bytes of a page, as stored (B2).
    #[inline]
    pub(super) fn spare(&self, geometry: &Geometry, index: u32) -> &[u8] {
        let size = geometry.spare_size as usize;
        &self.spare[index as usize * size..][..size]
    }

    #[inline]
    pub(super) fn spare_mut(&mut self, geometry: &Geometry, index: u32) -> &mut [u8] {
        let size = geometry.spare_size as usize;
        &mut self.spare[index as usize * size..][..size]
    }

    /// Stores a legal program.
    #[inline]
    pub(super) fn store(
        &mut self,
        geometry: &Geometry,
        index: u32,
        span: &Span,
        part: &ProgramPart<'_>,
    ) {
        let before = self.state(index);
        match uniform_word(part.data) {
            Some(word) if part.data.len() == geometry.page_size as usize => {
                self.lanes[index as usize] = Lane::Filled(word);
            }
            _ if part.data.is_empty() => {}
            _ => {
                let start = part.data_offset as usize;
                let data = self.data_mut(geometry, index);
                data[start..start + part.data.len()].copy_from_slice(part.data);
            }
        }
        let spare = self.spare_mut(geometry, index);
        if before.is_erased() {
            spare.fill(0xFF);
        }
        let start = part.spare_offset as usize;
        for (cell, byte) in spare[start..].iter_mut().zip(part.spare) {
            *cell &= byte;
        }
        self.set_state(index, span.after);
    }

    /// Reads data bytes; `words` are the code words of the run.
    #[inline]
    pub(super) fn read_data(
        &self,
        geometry: &Geometry,
        rules: &Rules,
        index: u32,
        offset: u32,
        words: u64,
        target: &mut [u8],
    ) {
        let programmed = self.state(index).words & words;
        if programmed == 0 {
            target.fill(0xFF);
            return;
        }
        match self.lanes[index as usize] {
            Lane::Filled(word) => fill(target, word),
            Lane::At(number) => {
                let start = number as usize * geometry.page_size as usize + offset as usize;
                target.copy_from_slice(&self.data[start..start + target.len()]);
            }
        }
        if programmed == words {
            return;
        }
        let first = words.trailing_zeros();
        for (position, word) in target.chunks_mut(rules.word_size() as usize).enumerate() {
            if programmed >> (first as usize + position) & 1 == 0 {
                word.fill(0xFF);
            }
        }
    }

    /// Reads spare bytes (B2).
    #[inline]
    pub(super) fn read_spare(
        &self,
        geometry: &Geometry,
        index: u32,
        offset: u32,
        target: &mut [u8],
    ) {
        if self.state(index).is_erased() {
            target.fill(0xFF);
            return;
        }
        let spare = self.spare(geometry, index);
        let start = offset as usize;
        target.copy_from_slice(&spare[start..start + target.len()]);
    }
}

const BLANK: Lane = Lane::Filled([0; 8]);

/// The word that fills `data` (B3).
#[inline]
fn uniform_word(data: &[u8]) -> Option<[u8; 8]> {
    let word = *data.first_chunk::<8>()?;
    let (words, rest) = data.as_chunks::<8>();
    (rest.is_empty() && words.iter().all(|other| *other == word)).then_some(word)
}

/// Fills `target`, which begins at the beginning of a word.
fn fill(target: &mut [u8], word: [u8; 8]) {
    for chunk in target.chunks_mut(word.len()) {
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Erased blocks kept for reuse, so that a busy simulation does not allocate.
#[derive(Debug, Default)]
pub(super) struct Pool(Vec<Arc<Block>>);

/// Blocks the pool keeps at most.
const POOL_COUNT_MAX: usize = 16;

impl Clone for Pool {
    /// A snapshot starts with an empty pool: shared buffers could not be reused.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Pool {
    /// An erased block.
    pub(super) fn take(&mut self, geometry: &Geometry) -> Arc<Block> {
        self.0.pop().unwrap_or_else(|| Arc::new(Block::new(geometry)))
    }

    /// Takes an erased block's buffers back, if no snapshot holds them.
    pub(super) fn put(&mut self, mut block: Arc<Block>) {
        if self.0.len() >= POOL_COUNT_MAX {
            return;
        }
        if let Some(owned) = Arc::get_mut(&mut block) {
            owned.erase();
            self.0.push(block);
        }
    }
}
