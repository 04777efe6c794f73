//! Faults of typed rows: plain data in an error. The engine knows no types and raises none of these
//! faults.

use std::fmt;

use thiserror::Error;

/// Reason for which bytes are no key or value of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end too early.
    #[error("it is cut short")]
    Truncated,
    /// Bytes follow the end of the value.
    #[error("bytes follow its end")]
    Trailing,
    /// No variant has this number; or a `bool` is neither 0 nor 1.
    #[error("no variant has its number")]
    Variant,
    /// Text is not UTF-8, or a number is no Unicode character.
    #[error("it is no text")]
    Text,
    /// A zero byte in a key stands where none may.
    #[error("a zero in it has no meaning")]
    Escape,
    /// A number of elements is out of range.
    #[error("its number of elements is out of range")]
    Count,
}

/// The part of a row that could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPart {
    /// The key.
    Key,
    /// The value.
    Value,
}

impl fmt::Display for RowPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "key",
            Self::Value => "value",
        })
    }
}

/// Fault of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IndexFault {
    /// Another row has the same index key, and the index is unique.
    Duplicate,
    /// The table has the index, but was opened without it.
    Undeclared,
    /// The index was not declared when the table was opened.
    Unknown,
    /// The index has an entry without a row: rows were changed without updating the index. Repair
    /// the index.
    Stale,
}

impl fmt::Display for IndexFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Duplicate => "another row is found by the same",
            Self::Undeclared => "the table has it, but was opened without it",
            Self::Unknown => "the table was opened without it",
            Self::Stale => "an entry has no row",
        })
    }
}
