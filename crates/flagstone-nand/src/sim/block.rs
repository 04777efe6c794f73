//! Cells of one simulated block: bytes, and which of them were programmed.
//!
//! Owns the bytes of a block that was programmed at least once. Never judges: the rules have
//! spoken before.
//!
//! - **B1** Bytes of a code word that was not programmed mean nothing: reads give `0xFF`. So an
//!   erase touches no bytes.
//! - **B2** Spare bytes mean something as soon as anything of the page was programmed.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::rules::{PageState, Rules, Span};
use crate::{Geometry, ProgramPart};

/// Bytes and state of a block.
#[derive(Clone, Debug)]
pub(super) struct Block {
    bytes: Vec<u8>,
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
            bytes: vec![0; page_count * stride(geometry)],
            pages: vec![PageState::default(); page_count],
            frontier: 0,
            stale: false,
        }
    }

    /// Forgets everything (B1).
    pub(super) fn erase(&mut self) {
        self.pages.fill(PageState::default());
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

    /// Data and spare bytes of a page, as stored: what was not programmed is arbitrary (B1).
    #[inline]
    pub(super) fn page(&self, geometry: &Geometry, index: u32) -> (&[u8], &[u8]) {
        let start = index as usize * stride(geometry);
        self.bytes[start..start + stride(geometry)].split_at(geometry.page_size as usize)
    }

    #[inline]
    pub(super) fn page_mut(&mut self, geometry: &Geometry, index: u32) -> (&mut [u8], &mut [u8]) {
        let start = index as usize * stride(geometry);
        self.bytes[start..start + stride(geometry)].split_at_mut(geometry.page_size as usize)
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
        let (data, spare) = self.page_mut(geometry, index);
        let start = part.data_offset as usize;
        data[start..start + part.data.len()].copy_from_slice(part.data);
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
        let (data, _) = self.page(geometry, index);
        let start = offset as usize;
        target.copy_from_slice(&data[start..start + target.len()]);
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
        let (_, spare) = self.page(geometry, index);
        let start = offset as usize;
        target.copy_from_slice(&spare[start..start + target.len()]);
    }
}

const fn stride(geometry: &Geometry) -> usize {
    geometry.page_size as usize + geometry.spare_size as usize
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
