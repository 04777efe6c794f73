//! Images changed behind their checksums: bytes that decode must be doubted all the same.
//!
//! Owns the drawing of changes and their sealing. Never decides which answers are right: all but a
//! panic and an endless loop are.

use flagstone_engine::log::reseal_all;
use flagstone_nand::{Nand as _, PageContent, PhysicalPage, SimNand};
use flagstone_space::forge::reseal;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::faults::{Campaign, Trial, programmed_pages};
use super::fuzz::{ImageVerdict, image_on_chip};
use super::run::RunnerRig;
use super::subject::Subject;
use crate::parallel::each;

/// Pages that one image is changed in, at most.
const PAGES_MAX: usize = 3;

/// Bytes of a page that are changed, at most.
const BYTES_MAX: usize = 4;

/// Forged images that are made and opened at a time.
const BATCH: u64 = 1_000;

/// A number from 0 to before `bound`.
fn below(random: &mut Pcg64Mcg, bound: usize) -> usize {
    (random.next_u64() % bound.max(1) as u64) as usize
}

/// Changes a byte to one that means something else: a neighbour, a bound, another bit.
fn change(random: &mut Pcg64Mcg, byte: &mut u8) {
    *byte = match below(random, 6) {
        0 => 0,
        1 => u8::MAX,
        2 => byte.wrapping_add(1),
        3 => byte.wrapping_sub(1),
        4 => *byte ^ 1 << below(random, 8),
        _ => random.next_u64() as u8,
    };
}

/// Changes bytes of a page: half of the time near its front, where most decoded fields stand. Now
/// and then changes a whole number: by a little, by much, or to a number from elsewhere.
fn change_page(random: &mut Pcg64Mcg, content: &mut PageContent) {
    for _ in 0..=below(random, BYTES_MAX) {
        let target = match below(random, 4) {
            0 if !content.spare.is_empty() => &mut content.spare,
            _ => &mut content.data,
        };
        let reach = if below(random, 2) == 0 { target.len().min(96) } else { target.len() };
        let at = below(random, reach);
        match below(random, 4) {
            0 => change_number(random, &mut target[at..]),
            1 => {
                let (from, size) = (below(random, target.len()), 1 + below(random, 16));
                let size = size.min(target.len() - from.max(at));
                target.copy_within(from..from + size, at);
            }
            _ => change(random, &mut target[at]),
        }
    }
}

/// Changes a number at the front of `bytes`, of fixed size or of as many bytes as it says.
fn change_number(random: &mut Pcg64Mcg, bytes: &mut [u8]) {
    let is_varint = below(random, 2) == 0;
    let size = match is_varint {
        true => 1 + bytes.iter().take(9).take_while(|byte| **byte >= 0x80).count(),
        false => [2, 4, 8][below(random, 3)],
    };
    let Some(bytes) = bytes.get_mut(..size) else { return };
    let bits = if is_varint { 7 } else { 8 };
    let mask = (1_u64 << bits) - 1;
    let old =
        bytes.iter().rev().fold(0_u64, |number, byte| number << bits | u64::from(*byte) & mask);
    let new = match below(random, 6) {
        0 => u64::MAX,
        1 => old.wrapping_add(1 + random.next_u64() % 8),
        2 => old.wrapping_sub(1 + random.next_u64() % 8),
        3 => old ^ 1 << below(random, 64),
        4 => old << 1,
        _ => random.next_u64() >> below(random, 64),
    };
    let last = bytes.len() - 1;
    for (place, byte) in bytes.iter_mut().enumerate() {
        let part = (new.checked_shr(bits * place as u32).unwrap_or(0) & mask) as u8;
        *byte = if is_varint && place < last { part | 0x80 } else { part };
    }
}

/// A chip with a few pages changed and sealed anew, drawn from `seed`.
pub(super) fn forged(chip: &SimNand, pages: &[PhysicalPage], seed: u64) -> SimNand {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let (geometry, capabilities) = (chip.geometry(), chip.capabilities());
    let mut chip = chip.clone();
    for _ in 0..=below(&mut random, PAGES_MAX) {
        let page = pages[below(&mut random, pages.len())];
        let mut content = chip.peek(page);
        change_page(&mut random, &mut content);
        let PageContent { data, spare } = &mut content;
        reseal((&geometry, &capabilities), page, data, spare);
        chip.poke(page, &content);
    }
    relink(&mut chip, pages);
    chip
}

/// Chains the fragments of the log anew, in any pages.
fn relink(chip: &mut SimNand, pages: &[PhysicalPage]) {
    let word = chip.capabilities().code_word.data_size as usize;
    let mut contents: Vec<_> = pages.iter().map(|page| chip.peek(*page)).collect();
    let mut log: Vec<_> = contents.iter_mut().map(|content| content.data.as_mut_slice()).collect();
    for index in reseal_all(&mut log, word) {
        chip.poke(pages[index], &contents[index]);
    }
}

/// D5: images changed in a few bytes, with every checksum computed anew, opened, read, checked and
/// written.
#[must_use]
pub fn forged_images<S: Subject<RunnerRig<SimNand>>>(trial: &Trial, count: u64) -> Campaign {
    let base = match trial.after_script::<S>() {
        Ok(base) => base.chip,
        Err(violation) => return Campaign::failed("D5", violation),
    };
    let pages = programmed_pages(&base);
    let mut campaign = Campaign { id: "D5", ..Campaign::default() };
    for first in (0..count).step_by(BATCH as usize) {
        let seeds: Vec<u64> =
            (first..count.min(first + BATCH)).map(|n| trial.seed ^ n << 8).collect();
        let open = |seed: &u64| image_on_chip::<S>(forged(&base, &pages, *seed));
        for (seed, verdict) in seeds.iter().zip(each(trial.threads, &seeds, open)) {
            campaign.cases += 1;
            match verdict {
                Ok(ImageVerdict::Opened(_)) => {}
                Ok(ImageVerdict::Damaged(_) | ImageVerdict::Refused(_)) => campaign.reported += 1,
                Err(violation) => {
                    campaign.failures.push((format!("image of seed {seed}"), violation))
                }
            }
        }
    }
    campaign
}
