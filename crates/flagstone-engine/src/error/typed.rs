//! Faults of rows that have types: plain data in an error. The engine knows no types and raises none of them.

use std::fmt;

use thiserror::Error;

/// Why bytes are no key or value of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// They end too early.
    #[error("it is cut short")]
    Truncated,
    /// Bytes follow the end.
    #[error("bytes follow its end")]
    Trailing,
    /// No variant has the number; or a `bool` is neither 0 nor 1.
    #[error("no variant has its number")]
    Variant,
    /// Text is not UTF-8, or a character no character.
    #[error("it is no text")]
    Text,
    /// A 0 in the bytes of a key has no meaning.
    #[error("a zero in it has no meaning")]
    Escape,
    /// A number of elements is out of range.
    #[error("its number of elements is out of range")]
    Count,
}

/// Which part of a row could not be decoded.
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

/// What goes wrong with an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IndexFault {
    /// Another row is found by the same; the index allows one.
    Duplicate,
    /// The table has the index, but was opened without it.
    Undeclared,
    /// It was not declared when the table was opened.
    Unknown,
    /// It has an entry without a row: rows were changed past it. Repair it.
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
