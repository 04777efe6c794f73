//! Cells of one simulated block: bytes, and which of them were programmed.
//!
//! Owns the bytes of a block that was programmed at least once. Never judges: the rules have
//! spoken before.
//!
//! - **B1** Bytes of a code word that was not programmed mean nothing: reads give `0xFF`. So an
//!   erase touches no bytes.
//! - **B2** Spare bytes mean something as soon as anything of the page was programmed.
//! - **B3** A page that repeats one word of eight bytes, from its beginning or behind a short head,
//!   costs that word and the head: a chip full of cold data fits into memory at any size.

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
    /// The repeated word behind a head, by number (B3).
    Headed([u8; 8], u32),
    /// A page of the block's bytes, by number.
    At(u32),
}

/// Bytes of a head: room for a unit's description of itself in front of its content.
const HEAD_SIZE: usize = 128;

/// Bytes and state of a block.
#[derive(Clone, Debug)]
pub(super) struct Block {
    lanes: Vec<Lane>,
    /// Data of the pages that have bytes of their own, in the order in which they got them.
    data: Vec<u8>,
    /// Heads, in the order in which pages got them.
    heads: Vec<[u8; HEAD_SIZE]>,
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
            heads: Vec::new(),
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
        self.heads.clear();
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
            Lane::Filled(word) => repeats(bytes, word),
            Lane::Headed(word, number) => {
                let (head, rest) = bytes.split_at(head_share(offset, bytes.len()));
                let stored = &self.heads[number as usize][HEAD_SIZE.min(offset as usize)..];
                stored.starts_with(head) && repeats(rest, word)
            }
            Lane::At(number) => {
                let start = number as usize * geometry.page_size as usize + offset as usize;
                self.data[start..start + bytes.len()] == *bytes
            }
        }
    }

    /// Data bytes of a page, which has bytes of its own from now on (B1).
    pub(super) fn data_mut(&mut self, geometry: &Geometry, index: u32) -> &mut [u8] {
        let size = geometry.page_size as usize;
        let (word, head) = match self.lanes[index as usize] {
            Lane::At(number) => {
                let start = number as usize * size;
                return &mut self.data[start..start + size];
            }
            Lane::Filled(word) => (word, None),
            Lane::Headed(word, number) => (word, self.heads.get(number as usize)),
        };
        let start = self.data.len();
        self.data.resize(start + size, 0);
        fill(&mut self.data[start..], word);
        if let Some(head) = head {
            self.data[start..start + HEAD_SIZE].copy_from_slice(head);
        }
        self.lanes[index as usize] = Lane::At((start / size) as u32);
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
        let is_whole = part.data.len() == geometry.page_size as usize;
        match repeated(part.data).filter(|_| is_whole) {
            Some((word, 0)) => self.lanes[index as usize] = Lane::Filled(word),
            Some((word, 1..=HEAD_SIZE)) if part.data.len() > HEAD_SIZE => {
                let number = match self.lanes[index as usize] {
                    Lane::Headed(_, number) => number as usize,
                    _ => self.heads.len(),
                };
                self.heads.resize(self.heads.len().max(number + 1), [0; HEAD_SIZE]);
                self.heads[number].copy_from_slice(&part.data[..HEAD_SIZE]);
                self.lanes[index as usize] = Lane::Headed(word, number as u32);
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
            Lane::Headed(word, number) => {
                let (head, rest) = target.split_at_mut(head_share(offset, target.len()));
                let stored = &self.heads[number as usize][HEAD_SIZE.min(offset as usize)..];
                head.copy_from_slice(&stored[..head.len()]);
                fill(rest, word);
            }
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

/// The word that `data` repeats to its end, and how many bytes are in front of it (B3).
#[inline]
fn repeated(data: &[u8]) -> Option<([u8; 8], usize)> {
    let (words, rest) = data.as_chunks::<8>();
    let word = *words.last().filter(|_| rest.is_empty())?;
    let tail = words.iter().rev().take_while(|other| **other == word).count();
    Some((word, data.len() - tail * word.len()))
}

/// Whether `bytes`, which begin at the beginning of a word, repeat it.
fn repeats(bytes: &[u8], word: [u8; 8]) -> bool {
    bytes.chunks(word.len()).all(|chunk| word.starts_with(chunk))
}

/// How many of `size` bytes from `offset` on lie in a page's head: `HEAD_SIZE` is a whole number of
/// words, so the rest begins with a word again.
fn head_share(offset: u32, size: usize) -> usize {
    HEAD_SIZE.saturating_sub(offset as usize).min(size)
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
