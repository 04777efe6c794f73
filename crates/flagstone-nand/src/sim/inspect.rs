//! Looking at and tampering with simulated cells from outside: for tests, fuzzers and images.
//!
//! Owns nothing. Never counts, takes no time, and works without power.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::damage::WordDamage;
use super::{Block, Place, SimNand};
use crate::mix::{mix, mix_bytes};
use crate::rules::PageState;
use crate::{BlockIndex, Nand, PhysicalPage};

/// All bytes of a page, as a read without ECC would give them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageContent {
    /// Data area.
    pub data: Vec<u8>,
    /// Spare area.
    pub spare: Vec<u8>,
}

impl SimNand {
    /// The bytes of a page; damage is left out.
    #[must_use]
    pub fn peek(&self, page: PhysicalPage) -> PageContent {
        let mut data = vec![0xFF; self.geometry.page_size as usize];
        let mut spare = vec![0xFF; self.geometry.spare_size as usize];
        if let (Ok(place), Some(block)) = (self.place(page), self.allocated(page)) {
            let words = self.rules.all_words();
            block.read_data(&self.geometry, &self.rules, place.index, 0, words, &mut data);
            block.read_spare(&self.geometry, place.index, 0, &mut spare);
        }
        PageContent { data, spare }
    }

    /// Replaces the bytes of a page, as if the cells had been tampered with. ECC agrees with them.
    ///
    /// Bytes beyond the page's size are ignored, absent ones become `0xFF`.
    pub fn poke(&mut self, page: PhysicalPage, content: &PageContent) {
        let Ok(place) = self.place(page) else { return };
        let geometry = self.geometry;
        let (state, _) = self.block_state(place);
        let after = self.derived_state(content, state);
        self.damage.erase(page.number(), page.number() + 1);
        let block = self.block_mut(place.block);
        replace(block.data_mut(&geometry, place.index), &content.data);
        replace(block.spare_mut(&geometry, place.index), &content.spare);
        block.set_state(place.index, after);
    }

    /// Exchanges the contents of two pages.
    pub fn swap_pages(&mut self, one: PhysicalPage, other: PhysicalPage) {
        let (first, second) = (self.peek(one), self.peek(other));
        self.poke(one, &second);
        self.poke(other, &first);
    }

    /// Adds `count` bit errors to a code word; they last until the block is erased.
    ///
    /// Up to the ECC's strength they are repaired and reported, beyond it the read fails.
    pub fn flip_bits(&mut self, page: PhysicalPage, code_word: u32, count: u32) {
        self.damage.word(page.number(), code_word, WordDamage::Flipped(count));
    }

    /// Inverts bits of a spare byte. Raw spare bytes have no ECC: reads show them.
    pub fn flip_spare(&mut self, page: PhysicalPage, offset: u32, bits: u8) {
        let mut content = self.peek(page);
        if let Some(byte) = content.spare.get_mut(offset as usize) {
            *byte ^= bits;
        }
        let Ok(place) = self.place(page) else { return };
        let (state, _) = self.block_state(place);
        if state.is_erased() {
            self.poke(page, &content);
            return;
        }
        let geometry = self.geometry;
        let spare = self.block_mut(place.block).spare_mut(&geometry, place.index);
        replace(spare, &content.spare);
    }

    /// Sets a block's wear, to start a run near the end of its life.
    pub fn set_erase_count(&mut self, block: BlockIndex, count: u32) {
        if let Some(found) = self.erase_counts.get_mut(block.0 as usize) {
            *found = count;
        }
    }

    /// The whole device, data and spare interleaved page by page, as `nanddump` writes it.
    #[must_use]
    pub fn to_image(&self) -> Vec<u8> {
        let pages =
            (0..self.geometry.page_count()).filter_map(|n| self.geometry.page_from_number(n));
        let contents = pages.map(|page| self.peek(page));
        contents.flat_map(|content| [content.data, content.spare].concat()).collect()
    }

    /// Replaces the whole contents. Words that are not `0xFF` count as programmed once; bytes
    /// beyond the device are ignored, absent ones are erased.
    pub fn load_image(&mut self, image: &[u8]) {
        self.blocks.fill(None);
        self.damage.erase(0, u32::MAX);
        let stride = (self.geometry.page_size + self.geometry.spare_size) as usize;
        let pages = 0..self.geometry.page_count();
        for (number, bytes) in pages.zip(image.chunks(stride)) {
            if bytes.iter().all(|byte| *byte == 0xFF) {
                continue;
            }
            let data_size = bytes.len().min(self.geometry.page_size as usize);
            let (data, spare) = bytes.split_at(data_size);
            let content = PageContent { data: data.into(), spare: spare.into() };
            if let Some(page) = self.geometry.page_from_number(number) {
                self.poke(page, &content);
            }
        }
    }

    /// State that the rules derive from bytes alone, added to their former knowledge.
    fn derived_state(&self, content: &PageContent, known: PageState) -> PageState {
        let derived = self.rules.derive(&content.data, &content.spare);
        PageState {
            words: (derived.words | known.words) & self.rules.all_words(),
            data_programs: derived.data_programs.max(known.data_programs),
            spare_programs: derived.spare_programs.max(known.spare_programs),
        }
    }

    fn allocated(&self, page: PhysicalPage) -> Option<&Arc<Block>> {
        let block = self.geometry.block_of(page);
        self.blocks.get(block.0 as usize)?.as_ref()
    }

    /// Hash of everything that a later run can depend on.
    pub(super) fn contents_hash(&self) -> u64 {
        let mut hash = 0;
        for (block, found) in self.geometry.blocks().zip(&self.blocks) {
            hash = mix(hash, u64::from(self.erase_count(block)));
            hash = mix(hash, u64::from(self.bad[block.0 as usize]));
            if found.is_some() {
                hash = self.block_hash(hash, block);
            }
        }
        self.damage.facts().fold(hash, mix)
    }

    fn block_hash(&self, hash: u64, block: BlockIndex) -> u64 {
        let pages = (0..self.geometry.pages_per_block)
            .filter_map(|index| Some((index, self.geometry.page(block, index)?)));
        pages.fold(hash, |hash, (index, page)| {
            let (state, _) = self.block_state(Place { page, block, index });
            if state.is_erased() {
                return mix(hash, 0);
            }
            let counts = u64::from(state.data_programs) << 8 | u64::from(state.spare_programs);
            let content = self.peek(page);
            mix_bytes(mix_bytes(mix(hash, counts), &content.data), &content.spare)
        })
    }
}

/// Copies as many bytes as fit and fills the rest with `0xFF`.
fn replace(target: &mut [u8], source: &[u8]) {
    target.fill(0xFF);
    for (cell, byte) in target.iter_mut().zip(source) {
        *cell = *byte;
    }
}
