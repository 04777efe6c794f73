//! Random numbers and texts of the specification.

use super::rows::ORIGINAL;
use crate::workload::Draws;

const ALPHABET: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ab";

/// Syllables of last names.
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// The last name of number `n`, below 1000.
#[must_use]
pub(super) fn last_name(n: u16) -> String {
    let syllable = |digit: u16| SYLLABLES[usize::from(digit % 10)];
    [syllable(n / 100), syllable(n / 10), syllable(n)].concat()
}

/// Distribution of [`non_uniform`]: its constants and bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NonUniform {
    /// A power of two less one.
    pub a: u32,
    /// Constant of the run.
    pub c: u32,
    /// Least value.
    pub low: u32,
    /// Greatest value.
    pub high: u32,
}

impl NonUniform {
    /// `((rand(0, A) | rand(x, y)) + C) % (y - x + 1) + x`.
    pub(super) fn draw(&self, draws: &mut Draws) -> u32 {
        let coarse = draws.below(u64::from(self.a) + 1) as u32;
        let fine = self.low + draws.below(u64::from(self.high - self.low) + 1) as u32;
        self.fold((coarse | fine) + self.c)
    }

    /// `(rand(0, A) | (x + rand(0, y))) % (y - x + 1) + x`, as DBT-2 draws it: without the
    /// constant, and with a second number that may exceed `y`.
    pub(super) fn draw_dbt2(&self, draws: &mut Draws) -> u32 {
        let coarse = draws.below(u64::from(self.a) + 1) as u32;
        let fine = self.low + draws.below(u64::from(self.high) + 1) as u32;
        self.fold(coarse | fine)
    }

    fn fold(&self, value: u32) -> u32 {
        value % (self.high - self.low + 1) + self.low
    }
}

/// Appends `size` random letters and digits.
pub(super) fn push_letters(out: &mut Vec<u8>, draws: &mut Draws, size: usize) {
    // Ten characters a draw. Two of the 64 places repeat a letter: far within the specification's
    // demands on a random string.
    let (mut bits, mut left) = (0, 0);
    for _ in 0..size {
        if left == 0 {
            (bits, left) = (draws.below(u64::MAX), 10);
        }
        out.push(ALPHABET[(bits & 63) as usize]);
        (bits, left) = (bits >> 6, left - 1);
    }
}

/// Appends `size` random digits.
pub(super) fn push_digits(out: &mut Vec<u8>, draws: &mut Draws, size: usize) {
    out.extend((0..size).map(|_| b'0' + draws.below(10) as u8));
}

/// Appends a text of `low` to `high` letters and digits, with its size in front.
pub(super) fn push_random_text(out: &mut Vec<u8>, draws: &mut Draws, low: u64, high: u64) {
    let size = low + draws.below(high - low + 1);
    out.push(size as u8);
    push_letters(out, draws, size as usize);
}

/// Appends a text as [`push_random_text`] does, with `ORIGINAL` somewhere in one tenth of the
/// texts.
pub(super) fn push_marked_text(out: &mut Vec<u8>, draws: &mut Draws, low: u64, high: u64) {
    let start = out.len() + 1;
    push_random_text(out, draws, low, high);
    if draws.below(10) == 0 {
        let room = out.len() - start - ORIGINAL.len();
        let place = start + draws.below(room as u64 + 1) as usize;
        out[place..place + ORIGINAL.len()].copy_from_slice(ORIGINAL);
    }
}

/// The numbers `1..=count` in random order.
pub(super) fn permutation(draws: &mut Draws, count: u16) -> Vec<u16> {
    let mut numbers: Vec<u16> = (1..=count).collect();
    for last in (1..numbers.len()).rev() {
        numbers.swap(last, draws.below(last as u64 + 1) as usize);
    }
    numbers
}
