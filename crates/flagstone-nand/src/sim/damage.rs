//! Damage of simulated cells beyond their bytes: bit errors, unstable bits, lost words.
//!
//! Owns the damage of each page until its block is erased. Never changes stored bytes.
//!
//! - **W1** A page without damage costs one test.
//! - **W2** Unstable cells read well at first, now and then badly, and badly for ever after a few
//!   reads: "it read well at mount" proves nothing (Djelic, linux-mtd, October 2011).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::mix::Draw;

/// Damage of one code word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordDamage {
    /// So many bits read wrongly; up to its strength the ECC repairs them.
    Flipped(u32),
    /// Uncorrectable for ever.
    Lost,
    /// Reads well for a few reads (W2).
    Unstable {
        /// Reads until the word is lost.
        reads_left: u8,
    },
}

/// How unstable spare bytes look while they can still be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Apparent {
    /// As before the program.
    Before,
    /// As after the program.
    After,
}

/// Spare cells whose fall from 1 to 0 is in doubt. The stored bytes have them at 0.
#[derive(Clone, Debug)]
pub(super) struct SpareDoubt {
    /// Bits in doubt, from the first spare byte on.
    pub(super) doubtful: Vec<u8>,
    pub(super) apparent: Apparent,
    /// Reads until the bits settle.
    pub(super) reads_left: u8,
    /// Seed of the mixture on which they settle.
    pub(super) seed: u64,
}

#[derive(Clone, Debug, Default)]
struct PageDamage {
    words: Vec<(u32, WordDamage)>,
    spare: Option<SpareDoubt>,
}

/// Outcome of the ECC for one read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Correction {
    pub(super) uncorrectable: bool,
    pub(super) bits_max: u32,
    pub(super) bits: u64,
}

/// Damage of all pages, by page number.
#[derive(Clone, Debug)]
pub(super) struct Damage {
    pages: BTreeMap<u32, PageDamage>,
    draw: Draw,
    seed: u64,
}

/// Most reads that unstable cells survive.
const UNSTABLE_READS_MAX: u32 = 4;

impl Damage {
    pub(super) const fn new(seed: u64) -> Self {
        Self { pages: BTreeMap::new(), draw: Draw::new(seed, 1), seed }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Forgets the pages numbered from `first` to before `end`.
    pub(super) fn erase(&mut self, first: u32, end: u32) {
        while let Some(page) = self.pages.range(first..end).next().map(|(page, _)| *page) {
            self.pages.remove(&page);
        }
    }

    /// Damages a code word; bit errors add up, other damage replaces the former.
    pub(super) fn word(&mut self, page: u32, word: u32, damage: WordDamage) {
        let words = &mut self.pages.entry(page).or_default().words;
        match (words.iter_mut().find(|(index, _)| *index == word), damage) {
            (None, _) => words.push((word, damage)),
            (Some((_, WordDamage::Flipped(bits))), WordDamage::Flipped(more)) => *bits += more,
            (Some(_), WordDamage::Flipped(_)) => {}
            (Some((_, found)), _) => *found = damage,
        }
    }

    /// Makes a code word unstable.
    pub(super) fn unsettle(&mut self, page: u32, word: u32) {
        let reads_left = self.reads();
        self.word(page, word, WordDamage::Unstable { reads_left });
    }

    /// Puts spare bits in doubt.
    pub(super) fn doubt(&mut self, page: u32, doubtful: Vec<u8>, apparent: Apparent) {
        let (reads_left, seed) = (self.reads(), self.draw.bits());
        let doubt = SpareDoubt { doubtful, apparent, reads_left, seed };
        self.pages.entry(page).or_default().spare = Some(doubt);
    }

    fn reads(&mut self) -> u8 {
        1 + self.draw.below(UNSTABLE_READS_MAX) as u8
    }

    /// A program of spare bytes drives cells firmly to 0 and ends doubt about them.
    pub(super) fn firm(&mut self, page: u32, offset: u32, spare: &[u8]) {
        let doubt = self.pages.get_mut(&page).and_then(|damage| damage.spare.as_mut());
        let doubtful = doubt.and_then(|doubt| doubt.doubtful.get_mut(offset as usize..));
        for (bits, byte) in doubtful.unwrap_or_default().iter_mut().zip(spare) {
            *bits &= byte;
        }
    }

    /// Bits of a page that read wrongly.
    pub(super) fn flipped(&self, page: u32) -> u32 {
        let words = self.pages.get(&page).map_or(&[][..], |damage| &damage.words);
        let bits = words.iter().map(|(_, damage)| match damage {
            WordDamage::Flipped(bits) => *bits,
            WordDamage::Lost | WordDamage::Unstable { .. } => 0,
        });
        bits.sum()
    }

    /// Outcome of the ECC for a read of `words`.
    pub(super) fn correct(&mut self, page: u32, words: u64, strength: u32) -> Correction {
        let mut correction = Correction::default();
        let Some(damage) = self.pages.get_mut(&page) else { return correction };
        for (word, damage) in &mut damage.words {
            if words >> *word & 1 == 0 {
                continue;
            }
            match damage {
                WordDamage::Flipped(bits) if *bits <= strength => {
                    correction.bits_max = correction.bits_max.max(*bits);
                    correction.bits += u64::from(*bits);
                }
                WordDamage::Flipped(_) | WordDamage::Lost => correction.uncorrectable = true,
                WordDamage::Unstable { reads_left } => {
                    correction.uncorrectable |= self.draw.below(4) == 0;
                    *reads_left = reads_left.saturating_sub(1);
                    if *reads_left == 0 {
                        *damage = WordDamage::Lost;
                    }
                }
            }
        }
        correction
    }

    /// Shows damage where no ECC hides it: flipped bits, or garbage for words that are lost. `words` are the
    /// code words that were read, from number `first` on.
    pub(super) fn show<'a>(
        &mut self,
        page: u32,
        first: u32,
        words: impl Iterator<Item = &'a mut [u8]>,
    ) {
        let Some(damage) = self.pages.get_mut(&page) else { return };
        for (number, bytes) in (first..).zip(words) {
            let damage = damage.words.iter_mut().find(|(word, _)| *word == number);
            let Some((_, damage)) = damage else { continue };
            // The same bits at every read.
            let mut draw = Draw::new(self.seed ^ u64::from(page) << 32 ^ u64::from(number), 7);
            match damage {
                WordDamage::Flipped(count) => flip(bytes, *count, &mut draw),
                WordDamage::Lost => draw.fill(bytes),
                WordDamage::Unstable { reads_left } => {
                    if self.draw.below(4) == 0 {
                        self.draw.fill(bytes);
                    }
                    *reads_left = reads_left.saturating_sub(1);
                    if *reads_left == 0 {
                        *damage = WordDamage::Lost;
                    }
                }
            }
        }
    }

    /// Adds doubt to spare bytes that were read from `offset` on.
    pub(super) fn blur(&mut self, page: u32, offset: u32, target: &mut [u8]) {
        let doubt = self.pages.get_mut(&page).and_then(|damage| damage.spare.as_mut());
        let Some(doubt) = doubt else { return };
        let apparent = match doubt.apparent {
            Apparent::Before => 0xFF,
            Apparent::After => 0x00,
        };
        let settled = doubt.reads_left == 0;
        let steady = !settled && self.draw.below(4) != 0;
        let mut draw = Draw::new(if settled { doubt.seed } else { self.draw.bits() }, 2);
        let mut masks = alloc::vec![0; doubt.doubtful.len()];
        draw.fill(&mut masks);
        let pairs = doubt.doubtful.iter().zip(&masks).skip(offset as usize);
        for (byte, (bits, mask)) in target.iter_mut().zip(pairs) {
            *byte |= bits & if steady { apparent } else { *mask };
        }
        doubt.reads_left = doubt.reads_left.saturating_sub(1);
    }

    /// Everything that is wrong, in a fixed order: page, and a word for each fact.
    pub(super) fn facts(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.iter().flat_map(|(page, damage)| {
            let words = damage.words.iter().map(|(word, damage)| {
                let code = match damage {
                    WordDamage::Flipped(bits) => u64::from(*bits),
                    WordDamage::Lost => 1 << 20,
                    WordDamage::Unstable { reads_left } => (2 << 20) | u64::from(*reads_left),
                };
                (u64::from(*word) << 32) | code
            });
            let spare = damage.spare.iter().map(|doubt| doubt.seed);
            core::iter::once(u64::from(*page)).chain(words).chain(spare)
        })
    }
}

/// Flips `count` bits, no two of them the same; with more of them the first stay where they are.
fn flip(bytes: &mut [u8], count: u32, draw: &mut Draw) {
    let bit_count = bytes.len() as u32 * u8::BITS;
    let mut flipped: Vec<u32> = Vec::new();
    while flipped.len() < count.min(bit_count) as usize {
        let place = draw.below(bit_count);
        if flipped.contains(&place) {
            continue;
        }
        flipped.push(place);
        if let Some(byte) = bytes.get_mut((place / u8::BITS) as usize) {
            *byte ^= 1 << (place % u8::BITS);
        }
    }
}
