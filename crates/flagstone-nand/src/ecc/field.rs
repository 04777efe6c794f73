//! Arithmetic in GF(2^m), for the decoder of a BCH code.
//!
//! Owns the tables of one field. Never knows a code.
//!
//! - **G1** Every element but 0 is a power of α, the root of the primitive polynomial. `powers` holds each
//!   twice over, so that a sum of two logarithms needs no remainder.

use alloc::vec;
use alloc::vec::Vec;

/// Primitive polynomials for m = 5 to 15, from Linux's `lib/bch.c`, so that parity is the same.
const POLYNOMIALS: [u32; 11] =
    [0x25, 0x43, 0x83, 0x11d, 0x211, 0x409, 0x805, 0x1053, 0x201b, 0x402b, 0x8003];

/// Smallest `m`.
const DEGREE_MIN: u32 = 5;

/// A field of 2^m elements.
#[derive(Debug)]
pub(super) struct Field {
    degree: u32,
    powers: Vec<u16>,
    logarithms: Vec<u16>,
}

impl Field {
    /// The field of 2^`degree` elements, for degrees from 5 to 15.
    pub(super) fn new(degree: u32) -> Option<Self> {
        let polynomial = *POLYNOMIALS.get(degree.checked_sub(DEGREE_MIN)? as usize)?;
        let order = (1_usize << degree) - 1;
        let mut powers = vec![0_u16; 2 * order];
        let mut logarithms = vec![0_u16; order + 1];
        let mut element = 1_u32;
        for exponent in 0..order {
            powers[exponent] = element as u16;
            powers[exponent + order] = element as u16;
            logarithms[element as usize] = exponent as u16;
            element <<= 1;
            if element >> degree == 1 {
                element ^= polynomial;
            }
        }
        assert_eq!(element, 1, "the polynomial is primitive: α has the order of the group");
        Some(Self { degree, powers, logarithms })
    }

    /// `m`.
    pub(super) const fn degree(&self) -> u32 {
        self.degree
    }

    /// How many elements there are besides 0.
    pub(super) const fn order(&self) -> usize {
        (1 << self.degree) - 1
    }

    /// α to the `exponent`, which may be up to twice the order.
    pub(super) fn power(&self, exponent: usize) -> u16 {
        debug_assert!(exponent < self.powers.len(), "exponents are reduced by the caller");
        self.powers.get(exponent).copied().unwrap_or_default()
    }

    /// The exponent of an element; none of 0.
    pub(super) fn logarithm(&self, element: u16) -> Option<usize> {
        if element == 0 {
            return None;
        }
        self.logarithms.get(usize::from(element)).map(|exponent| usize::from(*exponent))
    }

    pub(super) fn multiply(&self, one: u16, other: u16) -> u16 {
        match (self.logarithm(one), self.logarithm(other)) {
            (Some(one), Some(other)) => self.power(one + other),
            _ => 0,
        }
    }

    /// `dividend / divisor`; the divisor is not 0.
    pub(super) fn divide(&self, dividend: u16, divisor: u16) -> u16 {
        debug_assert_ne!(divisor, 0, "the caller divides by a discrepancy that is not 0");
        match (self.logarithm(dividend), self.logarithm(divisor)) {
            (Some(one), Some(other)) => self.power(one + self.order() - other),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_an_inverse() {
        for degree in 5..=15 {
            let field = Field::new(degree).unwrap();
            assert_eq!(field.degree(), degree);
            for element in (1..=field.order() as u16).step_by(1 + field.order() / 500) {
                let inverse = field.divide(1, element);
                assert_eq!(field.multiply(element, inverse), 1, "{element} of 2^{degree}");
            }
        }
        assert!(Field::new(4).is_none() && Field::new(16).is_none());
    }
}
