//! Rows as JSON Lines: `{"table":"users","key":"YWRh","value":"Y291bnRlc3M="}`, one object a line.
//!
//! Owns the form of a line, both ways, and its greatest length. Key and value are base64 with padding (RFC 4648,
//! section 4), so that any bytes pass through tools for text. Never touches a database.
//!
//! Invariants:
//! - I1: [`Lines`] gives back each row of [`write_row`] byte for byte.
//! - I2: a line that is not exactly one row is an error, never a guess.
//! - I3: no line takes more memory than the longest row of the database needs.

use std::borrow::Cow;
use std::io::{self, BufRead, Read as _, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flagstone::Limits;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One line.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    table: Cow<'a, str>,
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow)]
    value: Cow<'a, str>,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineRow {
    /// Table.
    pub(crate) table: String,
    /// Key.
    pub(crate) key: Vec<u8>,
    /// Value.
    pub(crate) value: Vec<u8>,
}

/// Why a line is no row.
#[derive(Debug, Error)]
pub(crate) enum BadLine {
    /// Not one JSON object with these three members, all of them texts.
    #[error("not `{{\"table\",\"key\",\"value\"}}` in JSON: {0}")]
    Json(String),
    /// A member is not base64 with padding.
    #[error("`{member}` is not base64: {}", as_clause(source))]
    Base64 {
        /// Member concerned.
        member: &'static str,
        /// The fault, with its position.
        source: base64::DecodeError,
    },
    /// Longer than the line of any row that the database stores.
    #[error("longer than {0} bytes, the line of the longest row that this database stores")]
    TooLong(u64),
}

/// A message of another library as a part of a sentence of ours.
fn as_clause(source: &base64::DecodeError) -> String {
    let text = source.to_string();
    let mut letters = text.trim_end_matches('.').chars();
    let first = letters.next().map(|letter| letter.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

/// Writes one row and its end of line.
///
/// # Errors
///
/// Errors of the stream.
pub(crate) fn write_row(
    stream: &mut (impl Write + ?Sized),
    table: &str,
    key: &[u8],
    value: &[u8],
) -> io::Result<()> {
    let (key, value) = (STANDARD.encode(key), STANDARD.encode(value));
    let line = Line { table: table.into(), key: key.into(), value: value.into() };
    serde_json::to_writer(&mut *stream, &line)?;
    stream.write_all(b"\n")
}

/// The row that a line, without its end, stands for.
fn parse_row(line: &[u8]) -> Result<LineRow, BadLine> {
    let parsed: Line<'_> = serde_json::from_slice(line).map_err(|error| json_fault(&error))?;
    let decode = |member, text: &str| {
        STANDARD.decode(text).map_err(|source| BadLine::Base64 { member, source })
    };
    let (key, value) = (decode("key", &parsed.key)?, decode("value", &parsed.value)?);
    Ok(LineRow { table: parsed.table.into_owned(), key, value })
}

/// The fault, without the parser's line number: the parser sees one line alone.
fn json_fault(error: &serde_json::Error) -> BadLine {
    let text = error.to_string();
    let end = format!(" at line {} column {}", error.line(), error.column());
    let text = text
        .strip_suffix(&end)
        .map_or_else(|| text.clone(), |fault| format!("{fault} at column {}", error.column()));
    BadLine::Json(text)
}

/// Room in a line beside key and value: names of members, and a table's name with escapes.
const LINE_REST: u64 = 64 << 10;

/// Rows of a stream, line by line; lines of nothing but white space are passed over.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    stream: R,
    line: Vec<u8>,
    size_max: u64,
    number: u64,
    bytes: u64,
}

impl<R: BufRead> Lines<R> {
    /// Rows of `stream`, for a database with these limits.
    pub(crate) fn new(stream: R, limits: &Limits) -> Self {
        let bytes = (limits.key_size_max as u64).saturating_add(limits.value_size_max as u64);
        // Base64 takes four bytes for three.
        let size_max = (bytes / 3).saturating_mul(4).saturating_add(LINE_REST);
        Self { stream, line: Vec::new(), size_max, number: 0, bytes: 0 }
    }

    /// Number of the line read last; the first is 1.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Bytes read so far.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Passes over the lines up to `number`, without looking at them.
    ///
    /// # Errors
    ///
    /// Errors of the stream.
    pub(crate) fn skip_to(&mut self, number: u64) -> io::Result<()> {
        while self.number < number {
            let read = self.stream.skip_until(b'\n')?;
            if read == 0 {
                break;
            }
            self.number += 1;
            self.bytes += read as u64;
        }
        Ok(())
    }

    /// The next row, or none at the end; the inner error is one of the line [`Lines::number`].
    ///
    /// # Errors
    ///
    /// Errors of the stream.
    pub(crate) fn next_row(&mut self) -> io::Result<Option<Result<LineRow, BadLine>>> {
        loop {
            self.line.clear();
            let mut limited = (&mut self.stream).take(self.size_max.saturating_add(1));
            let read = limited.read_until(b'\n', &mut self.line)? as u64;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            self.bytes += read;
            if read > self.size_max {
                return Ok(Some(Err(BadLine::TooLong(self.size_max))));
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(Some(parse_row(&self.line)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        key_size_max: 512,
        inline_value_size_max: 600,
        value_size_max: 3000,
        table_count_max: 9,
    };

    fn rows(text: &[u8]) -> Vec<Result<LineRow, String>> {
        let mut lines = Lines::new(text, &LIMITS);
        let mut rows = Vec::new();
        while let Some(row) = lines.next_row().expect("memory can be read") {
            rows.push(row.map_err(|bad| format!("{}: {bad}", lines.number())));
        }
        assert_eq!(lines.bytes(), text.len() as u64);
        rows
    }

    #[test]
    fn what_is_no_base64_is_said_in_one_sentence() {
        let line = b"{\"table\":\"t\",\"key\":\"YQ==\",\"value\":\"!!\"}\n";
        let said = "1: `value` is not base64: invalid symbol 33, offset 0";
        assert_eq!(rows(line), [Err(said.to_owned())]);
    }

    #[test]
    fn every_byte_and_every_name_survives_the_round_trip() {
        let all: Vec<u8> = (0..=255).collect();
        for (table, key, value) in [
            ("t", all.as_slice(), all.as_slice()),
            ("", b"", b""),
            ("a\"b\\c\n\u{e9}\0", b"k", &[0xFF; 3000]),
        ] {
            let mut text = Vec::new();
            write_row(&mut text, table, key, value).expect("memory can be written");
            assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 1, "one line");
            let row = LineRow { table: table.into(), key: key.into(), value: value.into() };
            assert_eq!(rows(&text), [Ok(row)]);
        }
    }

    #[test]
    fn what_is_not_one_row_is_refused_with_its_line() {
        for bad in [
            "x",
            "[]",
            "{}",
            r#"{"table":"t","key":"YQ=="}"#,
            r#"{"table":"t","key":"YQ==","value":"","more":1}"#,
            r#"{"table":"t","key":"YQ==","key":"YQ==","value":""}"#,
            r#"{"table":1,"key":"YQ==","value":""}"#,
            r#"{"table":"t","key":"YQ","value":""}"#,
            r#"{"table":"t","key":"YR==","value":""}"#,
            r#"{"table":"t","key":"","value":"a b="}"#,
            r#"{"table":"t","key":"","value":""} {}"#,
            "{\"table\":\"\u{fffd}",
            r#"{"table":"t","key":"","value":null}"#,
        ] {
            let good = r#"{"value":"","table":"t","key":""}"#;
            let text = format!("{good}\n\n \t\r\n{bad}\n{good}");
            let rows = rows(text.as_bytes());
            assert_eq!(rows.len(), 3, "{bad}: {rows:?}");
            let error = rows[1].as_ref().expect_err(bad);
            assert!(error.starts_with("4: "), "{error}");
            assert!(!error.contains("line 1"), "the parser's own line number misleads: {error}");
        }
        assert!(rows(b"{\"table\":\"\xff\"}")[0].is_err());
    }

    #[test]
    fn a_line_without_end_takes_no_memory_without_end() {
        let long = vec![b' '; 1 << 20];
        let mut lines = Lines::new(long.as_slice(), &LIMITS);
        let row = lines.next_row().expect("memory can be read");
        assert!(matches!(row, Some(Err(BadLine::TooLong(_)))), "{row:?}");
        assert!(lines.line.capacity() < 1 << 18);
    }

    #[test]
    fn lines_before_the_first_are_passed_over_and_counted() {
        let text = b"nonsense\n\n{\"table\":\"t\",\"key\":\"\",\"value\":\"\"}\n";
        let mut lines = Lines::new(text.as_slice(), &LIMITS);
        lines.skip_to(2).expect("memory can be read");
        assert!(matches!(lines.next_row(), Ok(Some(Ok(_)))));
        assert_eq!((lines.number(), lines.bytes()), (3, text.len() as u64));
        lines.skip_to(9).expect("memory can be read");
        assert_eq!(lines.number(), 3);
    }
}
