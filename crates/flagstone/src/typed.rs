//! Typed tables: keys and values of Rust types, on top of the byte interface.
//!
//! Owns the encodings and the indexes; adds no rule of durability. Everything here is calls of
//! [`Transaction`](crate::Transaction) and [`Snapshot`](crate::Snapshot): a typed table is a table like any
//! other, which `scan` on the command line shows.

pub(crate) mod index;
pub(crate) mod key;
pub(crate) mod multi;
pub(crate) mod table;
pub(crate) mod value;

use flagstone_engine::DecodeError;
#[doc(inline)]
pub use flagstone_engine::IndexFault;
pub use index::{AnyIndex, Found, FoundRows, IndexReport};
pub use key::{Finds, StartsWith};
pub use multi::{Pairs, Values};
pub use table::{Reads, TypedRange};

/// The first `count` bytes of `bytes`, which loses them.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], DecodeError> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or(DecodeError::Truncated)?;
    *bytes = rest;
    Ok(taken)
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let (taken, rest) = bytes.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
    *bytes = rest;
    Ok(*taken)
}

/// An array of the values that `make` gives for each index, or the first error.
fn array_of<T, const N: usize>(
    make: impl FnMut(usize) -> Result<T, DecodeError>,
) -> Result<[T; N], DecodeError> {
    let elements: Vec<T> = (0..N).map(make).collect::<Result<_, _>>()?;
    elements.try_into().map_err(|_| DecodeError::Count)
}

#[cfg(test)]
mod tests;
