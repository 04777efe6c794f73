//! A binary BCH code: parity of a run of bytes that repairs bits flipped anywhere in both.
//!
//! Owns encoding and decoding; knows nothing of flash. Bytes are laid out as in Linux's `lib/bch.c`: the most
//! significant bit of a byte comes first, and parity is filled up with zeros behind its last bit.
//!
//! - **B1** The code is narrow-sense and shortened: `n = 8 · data + parity` bits out of `2^m - 1`, for the
//!   smallest `m` that has room.
//! - **B2** Up to `strength` flipped bits are repaired, wherever they are. More give an error or, where the
//!   bits are as near to another code word, that word: a caller that needs certainty has a checksum above.
//! - **B3** A code word of which [`Bch::correct`] reports an error is left as it was.
//! - **B4** Decoding needs no more than the stack: the tables are made once.

use alloc::boxed::Box;

use super::field::Field;

/// Most bits that a code repairs: the parity of 15 · 8 bits still leaves a byte of the register free.
pub(crate) const STRENGTH_MAX: u32 = 8;

/// Syndromes of the strongest code.
const SYNDROMES_MAX: usize = 2 * STRENGTH_MAX as usize;

const BYTE_VALUES: usize = 256;

/// More bits were flipped than the code repairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyErrors;

/// A polynomial over the field, lowest coefficient first.
type Polynomial = [u16; SYNDROMES_MAX + 1];

/// A code over runs of bytes of one size.
#[derive(Debug)]
pub(crate) struct Bch {
    field: Field,
    data_size: usize,
    strength: usize,
    /// Bits of parity: the degree of the generator polynomial.
    parity_bits: u32,
    /// Remainder of each byte divided by the generator polynomial.
    remainders: Box<[u128; BYTE_VALUES]>,
}

impl Bch {
    /// The code over `data_size` bytes that repairs `strength` bits; none where no field has room (B1), or
    /// the strength is 0 or above [`STRENGTH_MAX`].
    pub(crate) fn new(data_size: usize, strength: u32) -> Option<Self> {
        let field = Field::new(Self::field_degree(data_size, strength)?)?;
        let generator = generator(&field, strength)?;
        let parity_bits = u128::BITS - 1 - generator.leading_zeros();
        if parity_bits < u8::BITS {
            return None;
        }
        let remainders = remainders(generator, parity_bits);
        let strength = strength as usize;
        Some(Self { field, data_size, strength, parity_bits, remainders })
    }

    /// Degree of the smallest field that has room (B1).
    fn field_degree(data_size: usize, strength: u32) -> Option<u32> {
        if data_size == 0 || !(1..=STRENGTH_MAX).contains(&strength) {
            return None;
        }
        let data_bits = data_size.checked_mul(8)?;
        (5..=15).find(|degree| 1 << degree > data_bits + (degree * strength) as usize)
    }

    /// Bytes of parity that such a code takes at most; as [`Bch::new`] it may be none.
    pub(crate) fn parity_size_of(data_size: usize, strength: u32) -> Option<usize> {
        let bits = Self::field_degree(data_size, strength)? * strength;
        Some(bits.div_ceil(u8::BITS) as usize)
    }

    /// Bytes of parity.
    pub(crate) const fn parity_size(&self) -> usize {
        self.parity_bits.div_ceil(u8::BITS) as usize
    }

    /// Zeros that fill up the last byte of parity.
    const fn fill_bits(&self) -> u32 {
        self.parity_size() as u32 * u8::BITS - self.parity_bits
    }

    /// Remainder of the data, shifted up by the degree of the generator, divided by the generator.
    fn remainder(&self, data: impl Iterator<Item = u8>) -> u128 {
        let mask = (1 << self.parity_bits) - 1;
        let top = self.parity_bits - u8::BITS;
        data.fold(0, |register: u128, byte| {
            let index = (register >> top) as u8 ^ byte;
            (register << u8::BITS & mask) ^ self.remainders[usize::from(index)]
        })
    }

    /// Computes the parity of `data`, which has the code's size.
    pub(crate) fn encode(&self, data: impl Iterator<Item = u8>, parity: &mut [u8]) {
        debug_assert_eq!(parity.len(), self.parity_size(), "the caller asked for the size");
        let bits = self.remainder(data) << self.fill_bits();
        let bytes = bits.to_be_bytes();
        for (target, byte) in parity.iter_mut().zip(&bytes[bytes.len() - self.parity_size()..]) {
            *target = *byte;
        }
    }

    /// Finds the bits of `data` and `parity` that were flipped: their number, and the places of the ones in
    /// the data. Bit 0 of the data is the most significant one of its first byte.
    ///
    /// # Errors
    ///
    /// There are too many (B2).
    pub(crate) fn locate(
        &self,
        data: impl Iterator<Item = u8>,
        parity: &[u8],
    ) -> Result<Located, TooManyErrors> {
        let stored = parity.iter().fold(0_u128, |bits, byte| bits << u8::BITS | u128::from(*byte));
        let difference = self.remainder(data) ^ (stored >> self.fill_bits());
        if difference == 0 {
            return Ok(Located::default());
        }
        let syndromes = self.syndromes(difference);
        let (locator, degree) = self.locator(&syndromes)?;
        if degree == 1 { self.root(locator[1]) } else { self.roots(&locator, degree) }
    }

    /// Repairs `data` in place: how many bits had flipped, the bits of `parity` among them.
    ///
    /// # Errors
    ///
    /// There are too many; nothing was changed (B3).
    #[cfg(any(feature = "std", test))]
    pub(crate) fn correct(&self, data: &mut [u8], parity: &[u8]) -> Result<u32, TooManyErrors> {
        let located = self.locate(data.iter().copied(), parity)?;
        for place in located.places() {
            if let Some(byte) = data.get_mut(place / 8) {
                *byte ^= 0x80 >> (place % 8);
            }
        }
        Ok(located.count)
    }

    /// The values of `difference`, a polynomial over GF(2), at α, α², … α^2t.
    fn syndromes(&self, difference: u128) -> [u16; SYNDROMES_MAX] {
        let mut syndromes = [0; SYNDROMES_MAX];
        let order = self.field.order();
        for (exponent, syndrome) in (1..=2 * self.strength).zip(&mut syndromes) {
            let places =
                (0..self.parity_bits as usize).filter(|place| difference >> place & 1 == 1);
            *syndrome =
                places.fold(0, |sum, place| sum ^ self.field.power(place * exponent % order));
        }
        syndromes
    }

    /// The error locator polynomial and its degree, by Berlekamp and Massey.
    fn locator(
        &self,
        syndromes: &[u16; SYNDROMES_MAX],
    ) -> Result<(Polynomial, usize), TooManyErrors> {
        let field = &self.field;
        let (mut locator, mut previous): (Polynomial, Polynomial) = Default::default();
        (locator[0], previous[0]) = (1, 1);
        let (mut degree, mut shift, mut scale) = (0, 1, 1);
        for step in 0..2 * self.strength {
            let products =
                (0..=degree).map(|index| field.multiply(locator[index], syndromes[step - index]));
            let discrepancy = products.fold(0, |sum, product| sum ^ product);
            if discrepancy == 0 {
                shift += 1;
                continue;
            }
            let factor = field.divide(discrepancy, scale);
            let before = locator;
            for (index, coefficient) in previous.iter().enumerate() {
                match locator.get_mut(index + shift) {
                    Some(target) => *target ^= field.multiply(factor, *coefficient),
                    None => break,
                }
            }
            if 2 * degree <= step {
                (degree, previous, scale, shift) = (step + 1 - degree, before, discrepancy, 1);
            } else {
                shift += 1;
            }
        }
        if degree > self.strength { Err(TooManyErrors) } else { Ok((locator, degree)) }
    }

    /// Bits of a code word.
    const fn bit_count(&self) -> usize {
        self.data_size * 8 + self.parity_bits as usize
    }

    /// Place in the data of the bit that is the coefficient of x^`power`; none when it is one of the parity.
    fn place_of(&self, power: usize) -> Option<usize> {
        let power = power.checked_sub(self.parity_bits as usize)?;
        (self.data_size * 8 - 1).checked_sub(power)
    }

    /// The one bit that flipped, the usual case: the coefficient of the locator polynomial is its locator.
    fn root(&self, coefficient: u16) -> Result<Located, TooManyErrors> {
        let power = self.field.logarithm(coefficient).filter(|power| *power < self.bit_count());
        let mut located = Located::default();
        located.add(self.place_of(power.ok_or(TooManyErrors)?));
        Ok(located)
    }

    /// Places whose locators are roots of `locator`, by trying all (Chien). A place outside the shortened
    /// code has no bit that could have flipped (B1).
    fn roots(&self, locator: &Polynomial, degree: usize) -> Result<Located, TooManyErrors> {
        let order = self.field.order();
        let mut exponents = [None; STRENGTH_MAX as usize];
        for (index, exponent) in (1..=degree).zip(&mut exponents) {
            *exponent = self.field.logarithm(locator[index]);
        }
        let mut located = Located::default();
        for power in 0..self.bit_count() {
            let mut sum = locator[0];
            for (index, exponent) in (1..=degree).zip(&mut exponents) {
                let Some(exponent) = exponent else { continue };
                sum ^= self.field.power(*exponent);
                // The next place's locator is that of this one times α; roots are inverse to locators.
                *exponent =
                    if *exponent >= index { *exponent - index } else { *exponent + order - index };
            }
            if sum == 0 {
                located.add(self.place_of(power));
                if located.count as usize == degree {
                    return Ok(located);
                }
            }
        }
        Err(TooManyErrors)
    }
}

/// Bits that flipped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Located {
    /// All flipped bits, parity included.
    pub(crate) count: u32,
    data_count: usize,
    data_places: [usize; STRENGTH_MAX as usize],
}

impl Located {
    /// Adds a bit: its place in the data, none when it is one of the parity.
    fn add(&mut self, place: Option<usize>) {
        self.count += 1;
        if let (Some(place), Some(target)) = (place, self.data_places.get_mut(self.data_count)) {
            *target = place;
            self.data_count += 1;
        }
    }

    /// Places of the bits of the data.
    pub(crate) fn places(&self) -> impl Iterator<Item = usize> + '_ {
        self.data_places.iter().take(self.data_count).copied()
    }
}

/// The generator polynomial, bit `i` its coefficient of x^i: the product of the minimal polynomials of
/// α, α³, … α^(2t-1), each once.
fn generator(field: &Field, strength: u32) -> Option<u128> {
    let order = field.order();
    let mut generator = 1_u128;
    let mut is_root = alloc::vec![false; order];
    for first in (1..2 * strength as usize).step_by(2) {
        if is_root[first % order] {
            continue;
        }
        let minimal = minimal_polynomial(field, first % order, &mut is_root);
        let product = multiply(generator, u128::from(minimal))?;
        generator = product;
    }
    Some(generator)
}

/// The polynomial over GF(2) whose roots are α^first and its conjugates, which it marks.
fn minimal_polynomial(field: &Field, first: usize, is_root: &mut [bool]) -> u32 {
    let mut coefficients = [0_u16; 17];
    coefficients[0] = 1;
    let mut exponent = first;
    for degree in 0..field.degree() as usize {
        is_root[exponent] = true;
        // Times (x + α^exponent).
        for index in (0..=degree + 1).rev() {
            let lower = if index == 0 { 0 } else { coefficients[index - 1] };
            coefficients[index] =
                lower ^ field.multiply(coefficients[index], field.power(exponent));
        }
        exponent = exponent * 2 % field.order();
        if exponent == first {
            break;
        }
    }
    debug_assert!(coefficients.iter().all(|one| *one < 2), "conjugates have a product over GF(2)");
    coefficients.iter().rev().fold(0, |bits, one| bits << 1 | u32::from(*one & 1))
}

/// The product of two polynomials over GF(2); none when the register is too small for it.
fn multiply(one: u128, other: u128) -> Option<u128> {
    let degree = |polynomial: u128| u128::BITS - polynomial.leading_zeros();
    if degree(one) + degree(other) > u128::BITS - u8::BITS + 2 {
        return None;
    }
    let shifted = (0..u128::BITS).filter(|bit| other >> bit & 1 == 1).map(|bit| one << bit);
    Some(shifted.fold(0, |sum, term| sum ^ term))
}

/// Remainder of each byte in front of `degree` zeros, divided by `generator`.
fn remainders(generator: u128, degree: u32) -> Box<[u128; BYTE_VALUES]> {
    let mask = (1 << degree) - 1;
    let low = generator & mask;
    let mut table = Box::new([0; BYTE_VALUES]);
    for (byte, remainder) in (0_u128..).zip(table.iter_mut()) {
        let mut register = byte << (degree - u8::BITS);
        for _ in 0..u8::BITS {
            let falls_out = register >> (degree - 1) & 1 == 1;
            register = register << 1 & mask;
            if falls_out {
                register ^= low;
            }
        }
        *remainder = register;
    }
    table
}

#[cfg(test)]
mod tests;
