//! Images drawn by number, opened, read, checked and written (scoreboard D1 and D5).
//!
//! Owns the draws of a number: the chip, and the damage to it. Never decides which answers are
//! right: all but a panic and an endless loop are.
//!
//! - **I1** A number draws the same image after any other draws: the findings of two ranges add up.
//! - **I2** An image shares all blocks but the damaged ones with the chip that it was made from.

use std::ops::Range;
use std::thread::available_parallelism;

use flagstone_nand::{Nand as _, PhysicalPage, SimNand};

use super::faults::{Trial, programmed_pages};
use super::fuzz::{ImageVerdict, image_on_chip};
use super::run::{RunnerRig, Violation};
use super::script::value_bytes;
use super::subject::Setup;
use super::swarm::CHIP_PROFILES;
use super::{CrashError, Flagstone, chip, fuzz_image, small};
use crate::parallel::each;

type Engine = Flagstone<RunnerRig<SimNand>>;

/// Findings of a range of images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Images opened.
    pub images: u64,
    /// Of these, how many were answered with a typed error at some step.
    pub reported: u64,
    /// Panics and endless loops: the image, and the message.
    pub failures: Vec<String>,
}

/// A chip that images are made from.
struct Base {
    chip: SimNand,
    /// Its pages that hold anything.
    #[cfg_attr(not(feature = "seeded-bugs"), expect(dead_code, reason = "forged pages alone"))]
    pages: Vec<PhysicalPage>,
}

/// One image in so many is noise from end to end.
const NOISE: u64 = 16;

/// Bytes of noise.
const NOISE_SIZE: usize = 20_000;

/// Bytes of an image that are changed, at most.
const CHANGES: u64 = 16;

/// D1: images of every chip with 1 to 16 bytes changed anywhere, and noise.
///
/// # Errors
///
/// When a chip cannot be made.
pub fn damaged(numbers: Range<u64>) -> Result<Tried, CrashError> {
    opened(numbers, 120, |bases, number| {
        if number % NOISE == 0 {
            return fuzz_image(&value_bytes(number, NOISE_SIZE));
        }
        let mut chip = bases[number as usize % bases.len()].chip.clone();
        damage(&mut chip, number);
        image_on_chip::<Engine>(chip)
    })
}

/// Changes bytes of a chip, as if its cells had been tampered with.
fn damage(chip: &mut SimNand, number: u64) {
    let geometry = chip.geometry();
    let data_size = geometry.page_size as usize;
    let page_size = data_size + geometry.spare_size as usize;
    let draws = value_bytes(number, 4 * (1 + number % CHANGES) as usize);
    for draw in draws.chunks_exact(4) {
        let at = u32::from_le_bytes([draw[0], draw[1], draw[2], 0]) as usize;
        let at = at % (page_size * geometry.page_count() as usize);
        let Some(page) = geometry.page_from_number((at / page_size) as u32) else { continue };
        let mut content = chip.peek(page);
        match at % page_size {
            at if at < data_size => content.data[at] = draw[3],
            at => content.spare[at - data_size] = draw[3],
        }
        chip.poke(page, &content);
    }
}

/// D5: images of every chip with a few bytes changed and every checksum computed anew.
///
/// # Errors
///
/// When a chip cannot be made.
#[cfg(feature = "seeded-bugs")]
pub fn forged(numbers: Range<u64>) -> Result<Tried, CrashError> {
    use super::forged::forged;

    opened(numbers, 150, |bases, number| {
        let Base { chip, pages } = &bases[number as usize % bases.len()];
        image_on_chip::<Engine>(forged(chip, pages, number))
    })
}

/// Forging (D5) seals pages with functions that exist only with the feature `seeded-bugs`.
///
/// # Errors
///
/// Never.
#[cfg(not(feature = "seeded-bugs"))]
pub fn forged(numbers: Range<u64>) -> Result<Tried, CrashError> {
    let failures = vec![String::from("needs the feature `seeded-bugs`")];
    Ok(Tried { images: numbers.end - numbers.start, failures, ..Tried::default() })
}

/// Opens the images that `open` makes of numbers, from chips on which so many operations were run.
fn opened(
    numbers: Range<u64>,
    ops: usize,
    open: impl Fn(&[Base], u64) -> Result<ImageVerdict, Violation> + Sync,
) -> Result<Tried, CrashError> {
    let mut tried = Tried::default();
    let mut bases = Vec::new();
    for profile in CHIP_PROFILES {
        for base in bases_of(profile, ops)? {
            match base {
                Ok(chip) => bases.push(Base { pages: programmed_pages(&chip), chip }),
                Err(violation) => tried.failures.push(format!("{profile}: {violation}")),
            }
        }
    }
    if !tried.failures.is_empty() {
        return Ok(Tried { images: 1, ..tried });
    }
    let threads = available_parallelism().map_or(1, usize::from);
    let numbers: Vec<u64> = numbers.collect();
    let verdicts = each(threads, &numbers, |number| open(&bases, *number));
    for (number, verdict) in numbers.iter().zip(verdicts) {
        tried.images += 1;
        match verdict {
            Ok(ImageVerdict::Opened(_)) => {}
            Ok(ImageVerdict::Damaged(_) | ImageVerdict::Refused(_)) => tried.reported += 1,
            Err(violation) => tried.failures.push(format!("image {number}: {violation}")),
        }
    }
    Ok(tried)
}

/// Chips on which a script was run: the database closed, and cut where it was at some places of the
/// script, which leaves a log to read.
fn bases_of(profile: &str, ops: usize) -> Result<Vec<Result<SimNand, Violation>>, CrashError> {
    let chip = chip(profile, 1)?;
    let setup: Setup = small(flagstone_engine::Options::default().with_seed(1), &chip).into();
    let trial = |ops| Trial {
        chip: chip.clone(),
        setup: setup.clone(),
        ops,
        seed: 1,
        threads: 1,
        stride: 1,
    };
    let cut = [ops / 3, ops / 2, ops].map(|ops| trial(ops).cut_after_script::<Engine>());
    let bases = std::iter::once(trial(ops).after_script::<Engine>()).chain(cut);
    Ok(bases.map(|base| base.map(|base| base.chip)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: I1. Method: one range, and the same in two parts.
    #[test]
    fn ranges_add_up() {
        for draw in [damaged, forged] {
            let whole = draw(0..120).unwrap();
            let (first, second) = (draw(0..50).unwrap(), draw(50..120).unwrap());
            assert_eq!(whole.images, first.images + second.images);
            assert_eq!(whole.reported, first.reported + second.reported);
            assert_eq!((first.failures, second.failures), (Vec::new(), Vec::new()));
        }
    }

    /// Goal: damage is seen. Method: some images are refused, some are opened with all their rows.
    #[test]
    fn images_are_damaged_and_not_all_of_them_to_death() {
        let found = damaged(0..200).unwrap();
        assert!(found.reported > 20 && found.reported < 180, "{found:?}");
    }
}
