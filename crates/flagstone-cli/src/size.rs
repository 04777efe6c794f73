//! Sizes and durations as people write them: `64k`, `1MiB`, `2.5G`, `5ms`.
//!
//! Owns the notation; knows no use of a size.
//!
//! Invariant I1: a unit letter alone and with `iB` is a power of 1024, with `B` a power of 1000.

use std::time::Duration;

use thiserror::Error;

/// Why a text is not a size or a duration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum BadQuantity {
    /// Not a size.
    #[error(
        "`{0}` is not a size: write a number with B, k, KiB, kB, M, MiB, MB, G, GiB, GB, T, TiB or TB"
    )]
    Size(String),
    /// Not a duration.
    #[error("`{0}` is not a duration: write a number with ns, us, ms or s")]
    Duration(String),
    /// More than 64 bits of bytes or nanoseconds.
    #[error("`{0}` is too large")]
    TooLarge(String),
}

const SIZE_UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

const TIME_UNITS_NS: &[(&str, u64)] =
    &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Bytes that `text` names.
///
/// # Errors
///
/// `BadQuantity::Size` when it is not a number with a known unit; `TooLarge`.
pub(crate) fn parse_size(text: &str) -> Result<u64, BadQuantity> {
    quantity(text, SIZE_UNITS, BadQuantity::Size)
}

/// Duration that `text` names.
///
/// # Errors
///
/// `BadQuantity::Duration` when it is not a number with a unit of time; `TooLarge`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, BadQuantity> {
    quantity(text, TIME_UNITS_NS, BadQuantity::Duration).map(Duration::from_nanos)
}

/// Text for a number of bytes: exact when it is a whole number of units, else two decimals.
#[must_use]
pub(crate) fn format_size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let Some((unit, factor)) = UNITS.into_iter().find(|(_, factor)| bytes >= *factor) else {
        return format!("{bytes} B");
    };
    if bytes.is_multiple_of(factor) {
        return format!("{} {unit}", bytes / factor);
    }
    format!("{:.2} {unit}", bytes as f64 / factor as f64)
}

/// A number followed by one of `units`, multiplied out; `bad` for anything else.
fn quantity(
    text: &str,
    units: &[(&str, u64)],
    bad: fn(String) -> BadQuantity,
) -> Result<u64, BadQuantity> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'));
    let (number, unit) = trimmed.split_at(digits.unwrap_or(trimmed.len()));
    let unit = unit.trim_start().to_ascii_lowercase();
    let unit = units.iter().find(|(name, _)| *name == unit);
    let number = number.replace('_', "");
    let (Some((_, factor)), Ok(decimal)) = (unit, number.parse::<f64>()) else {
        return Err(bad(text.to_owned()));
    };
    let too_large = || BadQuantity::TooLarge(text.to_owned());
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(*factor).ok_or_else(too_large);
    }
    let product = decimal * *factor as f64;
    (product < u64::MAX as f64).then_some(product as u64).ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_letter_alone_is_a_power_of_1024() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64k", 65536),
            ("1MiB", 1 << 20),
            ("1 MiB", 1 << 20),
            ("1MB", 1_000_000),
            ("2.5G", 5 << 29),
            ("512B", 512),
            ("1TiB", 1 << 40),
            ("2t", 2 << 40),
            ("1TB", 1_000_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in ["", "k", "-1", "1TiBs", "1.2.3", "0x10", "1ms", "."] {
            assert_eq!(parse_size(text), Err(BadQuantity::Size(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn what_is_too_large_is_told_as_such() {
        for text in ["99999999999999999999G", "18446744073709551616", "16777216TiB", "16777217.5T"]
        {
            let refused = Err(BadQuantity::TooLarge(text.to_owned()));
            assert_eq!(parse_size(text), refused, "{text}");
        }
        let text = "99999999999s";
        assert_eq!(parse_duration(text), Err(BadQuantity::TooLarge(text.to_owned())));
        assert_eq!(parse_size("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(parse_duration("1.5us"), Ok(Duration::from_nanos(1500)));
        assert!(parse_duration("5").is_err());
    }

    #[test]
    fn whole_units_print_without_decimals() {
        assert_eq!(format_size(1 << 20), "1 MiB");
        assert_eq!(format_size(1536), "1.50 KiB");
        assert_eq!(format_size(17), "17 B");
        assert_eq!(format_size(1 << 40), "1 TiB");
    }
}
