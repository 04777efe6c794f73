//! Deltas: keyed changes that the bases on flash lack, of one tree.
//!
//! Owns the form of a change (`Op`, `Patch`), its one encoding, and `DeltaMap`, the ordered map of
//! committed deltas. A transaction's private write set is a map of the same kind, with rising
//! numbers of its own in place of LSNs and its savepoints as floors. Memory is the point: a delta
//! with an 8-byte key and an 8-byte patch costs about 35 bytes, so that a small budget holds the
//! changes of many leaves and each leaf is written once for many of them.
//!
//! Never reads a page, never allocates an LSN, never decides what is durable. Knows leaves only as
//! key ranges: a split moves no delta, and deltas may wait for a leaf nobody has read.
//!
//! ```text
//! Index   two levels of sorted arrays          low key of each chunk
//!   └─ Chunk   about 1 KiB, packed             records ascending by (key, LSN)
//!        └─ Record   sizes, LSN, key, op
//! ```
//!
//! Invariants:
//! - M1: the versions of a key stand in one chunk, oldest first.
//! - M2: folding changes no value that a floor, or a reader of the newest state, can see; it moves
//!   the older change to the newer LSN, never the other way round (rule D2: a base complete to an
//!   LSN between the two then meets a change it has, and operations are idempotent).
//! - M3: a descriptor of an out-of-line value leaves the map only by being handed to the caller, or
//!   by a range removal after a merge took it over.
//! - M4: `bytes` and `len` are exact and cost nothing to ask.
//! - M5: the caller adds the versions of a key in commit order; only copies of versions that are
//!   folded already, or of all versions below some LSN (in order), may come late. Anything else
//!   would need a version that folding has taken apart.

mod chunk;
mod cursor;
mod index;
mod map;
mod op;
mod packed;
mod patch;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use chunk::key_head;
#[cfg(test)]
pub(crate) use cursor::Sum;
pub(crate) use cursor::{Entry, Versions};
pub(crate) use map::{DeltaMap, DeltaSize, DroppedRefs, KeyRange};
#[cfg(test)]
pub(crate) use op::encode_delta;
pub(crate) use op::{Op, decode_delta, put_varint, take_varint, varint_size};
pub(crate) use packed::{Unpacker, pack};
pub(crate) use patch::{Patch, PatchBuf};
pub(crate) use value::{OutOfLine, Value, apply};
