//! One change of one value, and its one encoding.
//!
//! The same bytes of an operation serve the log record, the map in memory and the run on flash:
//!
//! ```text
//! op    = 0                      delete
//!       | 1 bytes                put, the bytes reach to the end
//!       | 2 bytes                put of an out-of-line value, opaque descriptor
//!       | 3 value_size run*      patch
//! run   = gap size bytes         gap: distance from the end of the run before
//! ```
//!
//! All sizes and gaps are varints (LEB128, at most 5 bytes).
//!
//! Invariants:
//! - O1: the runs of a patch are not empty, ascend, never overlap, and end inside `value_size`.
//! - O2: an operation is idempotent: applying it twice gives the same value as applying it once.
//!   Redo and folding rest on this (rule D2).
//! - O3: `decode` meets untrusted bytes: any input gives a value or a fault.

use super::patch::{Patch, PatchFault};

/// Largest value a patch may describe, in bytes: bounds the allocation that a damaged record can
/// cause.
pub(crate) const VALUE_SIZE_MAX: u32 = 1 << 30;

const TAG_DELETE: u8 = 0;
const TAG_PUT: u8 = 1;
const TAG_PUT_REF: u8 = 2;
const TAG_PATCH: u8 = 3;

/// The change of a delta to the value of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op<'a> {
    /// The value becomes these bytes.
    Put(&'a [u8]),
    /// The value becomes the out-of-line value that this opaque descriptor names.
    PutRef(&'a [u8]),
    /// The key is removed.
    Delete,
    /// Byte runs change; an absent key stays absent (rule D2).
    Patch(Patch<'a>),
}

/// Reason for which bytes are not a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DeltaFault {
    /// The bytes end inside a field.
    #[error("delta ends inside a field")]
    Truncated,
    /// The operation has an unknown tag.
    #[error("unknown operation tag {tag}")]
    Tag {
        /// The byte found.
        tag: u8,
    },
    /// A delete carries bytes after its tag.
    #[error("delete carries bytes")]
    Trailing,
    /// A key claims to share more bytes with its predecessor than the predecessor has.
    #[error("a key begins like the one before, beyond its end")]
    Prefix,
    /// The runs break O1.
    #[error(transparent)]
    Patch(#[from] PatchFault),
}

impl<'a> Op<'a> {
    /// Appends the encoding to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.tag());
        self.encode_body(out);
    }

    /// The first byte of the encoding.
    pub(super) const fn tag(&self) -> u8 {
        match self {
            Op::Delete => TAG_DELETE,
            Op::Put(_) => TAG_PUT,
            Op::PutRef(_) => TAG_PUT_REF,
            Op::Patch(_) => TAG_PATCH,
        }
    }

    /// Appends the encoding behind its tag.
    pub(super) fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            Op::Delete => {}
            Op::Put(bytes) | Op::PutRef(bytes) => out.extend_from_slice(bytes),
            Op::Patch(patch) => {
                put_varint(out, patch.value_size());
                out.extend_from_slice(patch.packed_runs());
            }
        }
    }

    /// Size of the encoding in bytes.
    pub(crate) fn encoded_size(&self) -> usize {
        1 + self.body_size()
    }

    /// Size of the encoding behind its tag.
    pub(super) fn body_size(&self) -> usize {
        match self {
            Op::Delete => 0,
            Op::Put(bytes) | Op::PutRef(bytes) => bytes.len(),
            Op::Patch(patch) => varint_size(patch.value_size()) + patch.packed_runs().len(),
        }
    }

    /// Reads an operation that fills `body`.
    ///
    /// # Errors
    ///
    /// The first check that failed; `body` may be any bytes (O3).
    pub(crate) fn decode(body: &'a [u8]) -> Result<Self, DeltaFault> {
        let (&tag, rest) = body.split_first().ok_or(DeltaFault::Truncated)?;
        Self::decode_body(tag, rest)
    }

    /// Reads an operation whose tag is stored elsewhere; `rest` follows the tag.
    ///
    /// # Errors
    ///
    /// As [`Op::decode`].
    pub(super) fn decode_body(tag: u8, rest: &'a [u8]) -> Result<Self, DeltaFault> {
        let op = Self::of_body(tag, rest)?;
        if let Op::Patch(patch) = op {
            patch.check()?;
        }
        Ok(op)
    }

    /// Reads an operation written by `encode`, without walking the runs.
    pub(super) fn decode_trusted(body: &'a [u8]) -> Result<Self, DeltaFault> {
        let (&tag, rest) = body.split_first().ok_or(DeltaFault::Truncated)?;
        Self::of_body(tag, rest)
    }

    #[inline]
    fn of_body(tag: u8, rest: &'a [u8]) -> Result<Self, DeltaFault> {
        match tag {
            TAG_DELETE if rest.is_empty() => Ok(Op::Delete),
            TAG_DELETE => Err(DeltaFault::Trailing),
            TAG_PUT => Ok(Op::Put(rest)),
            TAG_PUT_REF => Ok(Op::PutRef(rest)),
            TAG_PATCH => {
                let (value_size, runs) = take_varint(rest).ok_or(DeltaFault::Truncated)?;
                Ok(Op::Patch(Patch::from_packed(value_size, runs)))
            }
            tag => Err(DeltaFault::Tag { tag }),
        }
    }
}

/// Length of a key or value in the encoding; both are bounded by the page or by `VALUE_SIZE_MAX`,
/// far below 4 GiB.
pub(super) fn size_of_slice(bytes: &[u8]) -> u32 {
    debug_assert!(u32::try_from(bytes.len()).is_ok(), "keys and values stay below 4 GiB");
    bytes.len() as u32
}

/// Appends a varint: 7 bits a byte, low bits first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a varint; returns it and the bytes behind it. `None` when cut short or beyond 32 bits.
#[inline]
pub(crate) fn take_varint(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        return Some((u32::from(first), rest));
    }
    take_long_varint(bytes)
}

fn take_long_varint(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut number = 0_u64;
    for (index, byte) in bytes.iter().enumerate().take(5) {
        number |= u64::from(byte & 0x7F) << (7 * index);
        if *byte < 0x80 {
            return Some((u32::try_from(number).ok()?, bytes.get(index + 1..)?));
        }
    }
    None
}

/// Size of a varint in bytes.
pub(crate) const fn varint_size(number: u32) -> usize {
    match number {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        0x20_0000..0x1000_0000 => 4,
        _ => 5,
    }
}
