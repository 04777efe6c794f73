//! Changes packed one behind the other, as in records of the log.
//!
//! ```text
//! change = number head [more] [more] key size_and_tag body
//!
//! number        given by the record, a varint: tree of the change, or its age
//! head          high four bits: bytes at the front that the key shares with the one before;
//!               low four bits: bytes behind them, which follow; 15 = 15 and the varint `more`
//! size_and_tag  a varint: bytes of the body << 2 | tag of the operation; then its body (`op`)
//! ```
//!
//! Keys ascend, and neighbours have much in common: most changes are small, and the key is a large
//! part of them.
//!
//! Invariants:
//! - K1: `Unpacker` meets untrusted bytes: any input gives changes or a fault.
//! - K2: a key is never longer than its change and the changes before it together.

use super::op::{DeltaFault, Op};
use crate::log::{Cursor, put_varint};

/// Largest number in four bits of a head.
const NIBBLE_MAX: usize = 15;

/// Bits of the tag beside the size of a body.
const TAG_BITS: u32 = 2;

/// Appends a change of `key` after a change of the key `before`, which is empty for the first
/// change.
pub(crate) fn pack(before: &[u8], number: u64, key: &[u8], op: Op<'_>, out: &mut Vec<u8>) {
    put_varint(out, number);
    let shared = before.iter().zip(key).take_while(|(old, new)| old == new).count();
    let rest = &key[shared..];
    out.push((shared.min(NIBBLE_MAX) << 4 | rest.len().min(NIBBLE_MAX)) as u8);
    for size in [shared, rest.len()] {
        if size >= NIBBLE_MAX {
            put_varint(out, (size - NIBBLE_MAX) as u64);
        }
    }
    out.extend_from_slice(rest);
    put_varint(out, (op.body_size() as u64) << TAG_BITS | u64::from(op.tag()));
    op.encode_body(out);
}

/// A change, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    /// The number given to `pack`.
    pub(crate) number: u64,
    /// The changed key.
    pub(crate) key: &'a [u8],
    /// The change of its value.
    pub(crate) op: Op<'a>,
}

/// Walks packed changes.
#[derive(Debug)]
pub(crate) struct Unpacker<'a> {
    input: Cursor<'a>,
    key: Vec<u8>,
}

impl<'a> Unpacker<'a> {
    /// A walk over all of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { input: Cursor::new(bytes), key: Vec::new() }
    }

    /// The next change, if there is one.
    ///
    /// # Errors
    ///
    /// The first check that failed (K1): nothing behind it can be read.
    pub(crate) fn next(&mut self) -> Option<Result<Change<'_>, DeltaFault>> {
        if self.input.is_empty() {
            return None;
        }
        let number_and_op = self.read();
        if number_and_op.is_err() {
            self.input = Cursor::new(&[]);
        }
        Some(number_and_op.map(|(number, op)| Change { number, key: &self.key, op }))
    }

    /// Number and operation of the next change; its key is assembled in `self.key`.
    fn read(&mut self) -> Result<(u64, Op<'a>), DeltaFault> {
        let number = self.number()?;
        let head = self.input.byte().map_err(|_| DeltaFault::Truncated)?;
        let shared = self.size(head >> 4)?;
        let rest = self.size(head & 0x0F)?;
        let rest = self.input.take(rest).map_err(|_| DeltaFault::Truncated)?;
        let shared = usize::try_from(shared).ok().filter(|shared| *shared <= self.key.len());
        self.key.truncate(shared.ok_or(DeltaFault::Prefix)?);
        self.key.extend_from_slice(rest);
        let size_and_tag = self.number()?;
        let body = self.input.take(size_and_tag >> TAG_BITS).map_err(|_| DeltaFault::Truncated)?;
        let tag = (size_and_tag & ((1 << TAG_BITS) - 1)) as u8;
        Ok((number, Op::decode_body(tag, body)?))
    }

    fn size(&mut self, nibble: u8) -> Result<u64, DeltaFault> {
        let size = u64::from(nibble);
        if usize::from(nibble) < NIBBLE_MAX {
            return Ok(size);
        }
        self.number()?.checked_add(size).ok_or(DeltaFault::Truncated)
    }

    fn number(&mut self) -> Result<u64, DeltaFault> {
        self.input.varint().map_err(|_| DeltaFault::Truncated)
    }
}
