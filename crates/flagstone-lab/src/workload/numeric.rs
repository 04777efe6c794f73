//! Logarithm, exponential and power from basic operations, which are exact to the bit on every
//! machine, unlike the system library's functions (rule W1).

use std::f64::consts::{LN_2, SQRT_2};

/// Terms of the series: enough for 1e-16 in their ranges.
const TERMS: i32 = 24;

/// Natural logarithm of a positive, normal number.
pub(super) fn ln(value: f64) -> f64 {
    let bits = value.to_bits();
    let mut exponent = ((bits >> 52) & 0x7FF) as i32 - 1023;
    let mut mantissa = f64::from_bits(bits & 0x000F_FFFF_FFFF_FFFF | 0x3FF0_0000_0000_0000);
    if mantissa > SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), of which the argument is at most 0.172.
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let series =
        (0..TERMS).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    f64::from(exponent) * LN_2 + 2.0 * ratio * series
}

/// e to the power of `value`, for results within the range of normal numbers.
pub(super) fn exp(value: f64) -> f64 {
    let halvings = (value / LN_2).round();
    let rest = value - halvings * LN_2;
    let series = (1..TERMS).rev().fold(1.0, |sum, term| 1.0 + sum * rest / f64::from(term));
    let scale = (1023 + halvings.clamp(-1022.0, 1023.0) as i64) as u64;
    series * f64::from_bits(scale << 52)
}

/// A positive `base` to the power of `exponent`.
pub(super) fn pow(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_agree_with_the_library() {
        for step in 1..2000 {
            let value = f64::from(step) * 0.37;
            assert!((ln(value) - value.ln()).abs() <= 1e-14, "ln {value}");
            let exponent = (value - 370.0) / 20.0;
            assert!((exp(exponent) / exponent.exp() - 1.0).abs() < 1e-13, "exp {exponent}");
            assert!((pow(value, 0.741) / value.powf(0.741) - 1.0).abs() < 1e-13, "pow {value}");
        }
        assert_eq!((ln(1.0), exp(0.0)), (0.0, 1.0));
    }
}
