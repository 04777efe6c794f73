//! Deltas: keyed changes that the bases on flash lack, of one tree.
//!
//! Owns the form of a change (`Op`, `Patch`), its one encoding, and `DeltaMap`, the ordered map of
//! committed deltas. A transaction's private write set is a map of the same kind, with rising
//! numbers of its own in place of LSNs and its savepoints as boundaries. Memory is the point: a delta
//! with an 8-byte key and an 8-byte patch costs about 35 bytes, so that a small budget holds the
//! changes of many leaves and each leaf is written once for many of them.
//!
//! Never reads a page, never allocates an LSN, never decides what is durable. Knows leaves only as
//! key ranges: a split moves no delta, and deltas may wait for an unread leaf.
//!
//! ```text
//! Index   two levels of sorted arrays          low key of each chunk
//!   └─ Chunk   about 1 KiB, packed             records ascending by (key, LSN)
//!        └─ Record   sizes, LSN, key, op
//! ```
//!
//! Invariants:
//! - M1: the versions of a key stand in one chunk, oldest first.
//! - M2: folding changes no value that a boundary, or a reader of the newest state, can see. Folding
//!   moves the older change to the newer LSN, never the other way round (rule D2: a base complete
//!   to an LSN between the two then meets a change that it already has, and operations are
//!   idempotent).
//! - M3: a descriptor of an out-of-line value leaves the map only by being handed to the caller, or
//!   by a range removal after a merge took the value over.
//! - M4: `bytes` and `len` are exact, and O(1).
//! - M5: the caller adds the versions of a key in commit order. Only copies of versions that are
//!   folded already, or of all versions below some LSN (in order), may come late. Any other late
//!   version would need one that folding has taken apart.
//!
//! A version leaves the map in one of these ways and no other; each names the readers that may
//! still need it:
//!
//! - *A newer version of its key folds it in.* A reader at a place between the two would miss it.
//!   Each such place is a boundary: a place becomes one only while it already is a boundary, or if it
//!   lies at or above every version (rule D17).
//! - *A merge, a relocation or a frame has it in a base complete to X.* For a snapshot below X the
//!   old leaf is pinned and keeps its deltas (`RetainedLeaf`), or the merge waits
//!   (`hides_from_snapshot`). For a restart after a cut the base is durable before the version
//!   goes, or the frame holds the log back (`ahead`).
//! - *Restart finds it in a base complete to X.* No reader needs it: X is a place that was kept,
//!   and folding only moves changes up, never below X (rule D2).
//! - *A claim or a run has it in pages.* Restart finds it only there: the place of the claim or run
//!   stays a boundary until the pages are loaded and a checkpoint names the changes.
//! - *A checkpoint copies it and lets the log go.* The copies hold every version at or below the cutoff, each with its
//!   own LSN; the cutoff is a boundary until the next one.
//! - *A spill moves it from a private map to pages.* From then on its transaction reads it there,
//!   newest run first; savepoints are boundaries of the private map.
//! - *A rollback, or a poisoned database, removes versions above a place.* The savepoint, or the
//!   durable frontier, is a boundary; no version above it became visible to others, or durable.
//! - *Its table was dropped.* A snapshot below the drop reads it, and the log may bring it back:
//!   the drop waits for both (`may_clear`).

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
pub(crate) use cursor::Sum;
pub(crate) use cursor::{Entry, Versions};
pub use map::KeyRange;
pub(crate) use map::{DeltaMap, DeltaSize, DroppedRefs};
pub(crate) use op::{Op, put_varint, take_varint, varint_size};
pub(crate) use packed::{Unpacker, pack};
pub(crate) use patch::{Patch, PatchBuf};
pub(crate) use value::{OutOfLine, Value, apply};
