//! The redo log as bytes: records, the stream they form, and the fragments it is cut into.
//!
//! Owns: the encoding of records and fragments, the order of LSNs within a restart epoch, and the
//! rule that says which fragments on flash belong to the log. Never does: I/O, waiting, or choosing
//! pages; a driver programs the fragments that [`LogWriter::seal`] cuts and feeds the pages it
//! reads to [`LogReader`].
//!
//! Log pages consist of slots that the device can program one after the other. One program writes
//! one fragment: consecutive slots of one page, filled up with 0xFF.
//!
//! ```text
//! records      |  A  |    B    |          C           |D|
//! stream       |.........................................|      one flush: whole records
//! fragments    |H....|H................|H............... |      H = header with checksum
//! slots        | 3   | 0     1     2   3| 0     1        |
//! log page       41          42                43
//!
//! chain        epoch 1: s8 ◀─ s9 ◀─ s10 ◀─ torn   s12 (dead: its predecessor is missing)
//! after restart              └───── s10' ◀─ s11'         epoch 2 names s9, so s10 is dead as well
//! ```
//!
//! Invariants:
//! - **I1** A fragment belongs to the log only when its checksum holds and it names the checksum of
//!   the fragment before it (rule D3).
//! - **I2** A flush starts and ends on record boundaries; the next flush is cut only after the
//!   flush before has been completed. A fragment carries its index within its flush, so it proves
//!   that all fragments before its flush were complete.
//! - **I3** A new epoch starts with a fragment of index 0 on a fresh page. Where the new epoch
//!   disagrees with fragments of older epochs that were in flight at the cut, the new epoch wins.
//! - **I4** The reader gives out a record only when no later fragment can take it back: after the
//!   next flush or epoch has been seen, or at the end.
//! - **I5** A missing fragment that was complete is never taken for the end of the log: it is a
//!   [`LogFault`], because no power cut explains it. A later flush proves such a fragment; where
//!   programs of a block reach flash in order, so does any later fragment of the block.
//! - **I6** Decoding any bytes gives a value or an error, never a panic.
//! - **I7** An LSN is `epoch << 32 | counter`; counters rise by one from 1 in each epoch (rule D3).

mod codec;
mod fragment;
mod reader;
mod record;
mod writer;

#[cfg(test)]
mod tests;

use flagstone_space::Lsn;

#[cfg(test)]
pub(crate) use self::codec::Item;
pub use self::codec::RecordFault;
pub(crate) use self::codec::{Cursor, ItemBuf, Items, put_varint};
#[cfg(feature = "seeded-bugs")]
pub use self::fragment::reseal_all;
pub(crate) use self::fragment::{HEADER_SIZE, Header as FragmentHeader, parse as parse_fragment};
pub(crate) use self::reader::whole_frame;
pub use self::reader::{LogEnd, LogPage, LogReader, ReadStart, Survivors, TailFragment};
pub(crate) use self::record::{Blob, ClaimedSpan, Install, Record, Separator};
pub use self::writer::{Flush, Fragment, LogWriter};

/// Division of log pages into slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogGeometry {
    slot_size: usize,
    slots_per_page: u16,
}

impl LogGeometry {
    /// Slots of `slot_size` bytes, `slots_per_page` of them a page.
    ///
    /// `None` when a slot has no room for a payload or a page is too large for the format.
    #[must_use]
    pub fn new(slot_size: usize, slots_per_page: u16) -> Option<Self> {
        let page_size = slot_size.checked_mul(usize::from(slots_per_page))?;
        let fits = slot_size > HEADER_SIZE && slots_per_page > 0 && page_size < fragment::SIZE_END;
        fits.then_some(Self { slot_size, slots_per_page })
    }

    /// Bytes per slot.
    #[must_use]
    pub fn slot_size(self) -> usize {
        self.slot_size
    }

    /// Slots per page.
    #[must_use]
    pub fn slots_per_page(self) -> u16 {
        self.slots_per_page
    }
}

/// A place in the chain of fragments: between two of them, or at an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainPoint {
    /// Sequence number of the fragment after the point.
    pub next_sequence: u64,
    /// Epoch of the fragment before the point.
    pub epoch: u32,
    /// Checksum of the fragment before the point.
    pub predecessor: u32,
}

impl ChainPoint {
    /// Before the first fragment of a new log.
    pub const START: Self = Self { next_sequence: 0, epoch: 0, predecessor: 0 };
}

/// A position in the log from which reading can start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Log page that holds the fragment after the point, or comes before it.
    pub page: u64,
    /// The point in the chain.
    pub chain: ChainPoint,
}

/// The LSN of a record: `epoch << 32 | counter` (rule D3).
#[must_use]
pub fn lsn(epoch: u32, counter: u64) -> Lsn {
    Lsn(u64::from(epoch) << COUNTER_BITS | counter & COUNTER_MASK)
}

/// Records appended between two LSNs; `None` across a restart, which counts anew.
pub(crate) fn distance(from: Lsn, to: Lsn) -> Option<u64> {
    (from.0 >> COUNTER_BITS == to.0 >> COUNTER_BITS).then(|| to.0.saturating_sub(from.0))
}

/// Last restart epoch that an LSN can hold in its 56 bits.
pub(crate) const EPOCH_MAX: u32 = 0xFF_FFFF;

const COUNTER_BITS: u32 = 32;
const COUNTER_MASK: u64 = (1 << COUNTER_BITS) - 1;
const _: () = assert!((EPOCH_MAX as u64) < 1 << (56 - COUNTER_BITS));

/// Damage that no power cut explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogFault {
    /// A fragment proves that the fragment with this sequence was complete, but that fragment is
    /// unreadable.
    #[error("log fragment {sequence} is missing before log page {page}")]
    Missing {
        /// Sequence of the missing fragment.
        sequence: u64,
        /// Log page of the fragment with the proof.
        page: u64,
    },
    /// Record boundaries and fragment headers contradict each other.
    #[error("log fragment {sequence} does not start records where its header says")]
    Framing {
        /// Sequence of the fragment.
        sequence: u64,
    },
    /// Records are not in the order of their LSNs.
    #[error("log fragment {sequence} holds a record out of order")]
    Order {
        /// Sequence of the fragment that completes the record.
        sequence: u64,
    },
}

/// Errors of the log's encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A record with a good checksum does not decode: another version or a bug wrote it.
    #[error("log record {} cannot be decoded: {fault}", lsn.0)]
    Record {
        /// LSN of the record.
        lsn: Lsn,
        /// The check that fired.
        fault: RecordFault,
    },
    /// The epoch for a new writer is one that the log has already seen.
    #[error("restart epoch {epoch} does not come after epoch {last}")]
    StaleEpoch {
        /// Epoch asked for.
        epoch: u32,
        /// Last epoch in the log.
        last: u32,
    },
    /// The database has been restarted more often than LSNs can count.
    #[error("restart epoch {epoch} is beyond what an LSN can hold")]
    EpochRange {
        /// Epoch asked for.
        epoch: u32,
    },
}
