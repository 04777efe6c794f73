//! Keys and values as text: printable ASCII as itself, every other byte as `\xNN`.
//!
//! Owns the one notation in which bytes enter and leave the command line; never touches a file or
//! a database.
//!
//! Invariants:
//! - I1: [`unescape`] of [`escape`] gives back the same bytes.
//! - I2: [`escape`] gives printable ASCII only, so a row never breaks a line or a column.

use std::fmt::Write as _;

use thiserror::Error;

/// Why a text does not stand for bytes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{text}`: the backslash at position {position} starts neither `\\\\` nor `\\xNN` \
     (two hexadecimal digits)"
)]
pub(crate) struct BadEscape {
    /// Text given.
    pub(crate) text: String,
    /// Byte offset of the backslash.
    pub(crate) position: usize,
}

/// Text for `bytes`: printable ASCII as itself, a backslash doubled, the rest as `\xNN`.
#[must_use]
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                // Writing to a string cannot fail.
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text
}

/// Bytes for `text`. Bytes outside ASCII stand for themselves, so text for its UTF-8 bytes.
///
/// # Errors
///
/// `BadEscape`, with the position of the backslash that means nothing.
pub(crate) fn unescape(text: impl AsRef<[u8]>) -> Result<Vec<u8>, BadEscape> {
    let text = text.as_ref();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let (byte, used) = match (first, after) {
            (b'\\', [b'\\', ..]) => (b'\\', 1),
            (b'\\', _) => (hex_byte(after).ok_or_else(|| bad_escape(text, rest))?, 3),
            _ => (first, 0),
        };
        bytes.push(byte);
        rest = after.get(used..).unwrap_or_default();
    }
    Ok(bytes)
}

/// The byte that `xNN` at the start of `text` names.
fn hex_byte(text: &[u8]) -> Option<u8> {
    let [b'x' | b'X', high, low, ..] = *text else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

fn bad_escape(text: &[u8], rest: &[u8]) -> BadEscape {
    BadEscape {
        text: String::from_utf8_lossy(text).into_owned(),
        position: text.len() - rest.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_the_round_trip() {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = escape(&bytes);
        assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        assert_eq!(unescape(&text), Ok(bytes));
    }

    #[test]
    fn bytes_outside_printable_ascii_become_two_hexadecimal_digits() {
        assert_eq!(escape(b"a\x00\n\xff b\\"), r"a\x00\x0a\xff b\\");
    }

    #[test]
    fn a_backslash_that_means_nothing_is_refused_with_its_position() {
        for (text, position) in [(r"ab\n", 2), (r"\x1", 0), (r"a\\\xg0", 3), ("\\", 0)] {
            let error = unescape(text).expect_err("no byte has this notation");
            assert_eq!(error.position, position, "{text}");
        }
    }

    #[test]
    fn text_outside_ascii_stands_for_its_utf8_bytes() {
        assert_eq!(unescape("é"), Ok(vec![0xc3, 0xa9]));
        assert_eq!(unescape(b"\xfe\\x01"), Ok(vec![0xfe, 1]));
    }
}
