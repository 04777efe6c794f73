//! The tail of the log in memory: records gather here and leave as flushes.
//!
//! ```text
//!           append            seal                     completed
//!  pending ◀────── record,  ───────▶ Flush in flight ───────────▶ durable
//!                             one at a time: commits that arrive meanwhile gather for the next
//! ```
//!
//! An epoch begins with a flush that holds only its marker. Until the marker is durable nothing of
//! the epoch is, and a restart that does not find the marker writes the same bytes again: no number
//! ever names two records (rule D3). An epoch ends long before its counters run out, and the next
//! one begins behind it.

use flagstone_space::Lsn;

use super::codec::{Cursor, put_varint};
use super::fragment::{HEADER_SIZE, Header, write_header};
use super::record::Record;
use super::{ChainPoint, EPOCH_MAX, LogError, LogGeometry, lsn};

/// Bytes of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Header, payload and 0xFF up to the end of the last slot.
    pub bytes: Vec<u8>,
    /// Slots of the page that the fragment takes.
    pub slots: u16,
    /// LSN up to which records are on flash when this fragment and all fragments before it are.
    pub upto: Lsn,
}

/// Fragments to program, in order, each behind the fragment before it.
///
/// When a program fails, its fragment and all later ones are programmed again on later pages: the
/// reader takes fragments in the order of log pages only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Flush {
    /// The fragments. The first goes into the rest of the current page if it fits there; each other
    /// one starts a page.
    pub fragments: Vec<Fragment>,
    /// Durable LSN once all fragments are on flash.
    pub upto: Lsn,
}

/// Records after which an epoch ends: far below the range of a counter, to leave room for pending
/// records.
const EPOCH_RECORDS: u64 = 1 << 31;

/// Buffers kept from completed flushes.
const SPARE_COUNT_MAX: usize = 4;

/// Encodes records and cuts them into fragments.
#[derive(Debug)]
pub struct LogWriter {
    epoch: u32,
    /// Counter of the last appended record.
    counter: u64,
    /// Frames not cut yet.
    pending: Vec<u8>,
    /// End of each frame in `pending`.
    ends: Vec<usize>,
    scratch: Vec<u8>,
    chain: ChainPoint,
    in_flight: Option<Lsn>,
    durable: Lsn,
    /// The marker of the epoch waits for a flush of its own.
    is_opening: bool,
    has_appended: bool,
    spare: Vec<Vec<u8>>,
}

impl LogWriter {
    /// A writer for a restart epoch, which continues the chain after `after`.
    ///
    /// The first fragment goes on a fresh page (I3). `durable` is the last LSN found by restart.
    ///
    /// # Errors
    ///
    /// `StaleEpoch` when the chain has seen `epoch` or a later one, `EpochRange` past the last one.
    pub fn new(epoch: u32, after: ChainPoint, durable: Lsn) -> Result<Self, LogError> {
        if after != ChainPoint::START && epoch <= after.epoch {
            return Err(LogError::StaleEpoch { epoch, last: after.epoch });
        }
        if epoch > EPOCH_MAX {
            return Err(LogError::EpochRange { epoch });
        }
        Ok(Self {
            epoch,
            counter: 0,
            pending: Vec::new(),
            ends: Vec::new(),
            scratch: Vec::new(),
            chain: ChainPoint { epoch, ..after },
            in_flight: None,
            durable,
            is_opening: false,
            has_appended: false,
            spare: Vec::new(),
        })
    }

    /// Appends the marker of the epoch before any other record, unless it was appended already.
    pub(crate) fn open(&mut self) {
        if self.counter == 0 {
            self.append(&Record::Open { epoch: self.epoch });
            self.is_opening = true;
        }
    }

    /// The marker of the epoch, while it waits for its own flush.
    pub(crate) fn marker(&self) -> Option<Lsn> {
        self.is_opening.then(|| lsn(self.epoch, 1))
    }

    /// Adds a record to the tail in memory and gives it the next LSN.
    pub(crate) fn append(&mut self, record: &Record<'_>) -> Lsn {
        self.append_with(|out| record.encode(out))
    }

    /// Adds a record written by `encode`.
    pub fn append_with(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Lsn {
        self.counter += 1;
        self.has_appended = true;
        self.scratch.clear();
        put_varint(&mut self.scratch, self.counter);
        encode(&mut self.scratch);
        put_varint(&mut self.pending, self.scratch.len() as u64);
        self.pending.extend_from_slice(&self.scratch);
        self.ends.push(self.pending.len());
        lsn(self.epoch, self.counter)
    }

    /// Skips `count` LSNs, and returns the last of them: the next record's own LSN then stands for
    /// the skipped ones just below it.
    pub(crate) fn skip(&mut self, count: u64) -> Lsn {
        self.counter += count;
        lsn(self.epoch, self.counter)
    }

    /// Restart epoch of the records appended here.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Counter of the last record appended.
    pub fn counter(&self) -> u64 {
        self.counter
    }

    /// Whether any record was appended here.
    #[must_use]
    pub fn has_appended(&self) -> bool {
        self.has_appended
    }

    /// Bytes appended and not yet cut.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// The last LSN up to which all records are on flash.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// The LSN that is durable once all appended records are.
    #[must_use]
    pub fn appended(&self) -> Lsn {
        let before = self.in_flight.unwrap_or(self.durable);
        if self.counter == 0 { before } else { lsn(self.epoch, self.counter) }
    }

    /// Point at which the next flush continues the chain: a checkpoint can name it as a place to
    /// read from.
    #[must_use]
    pub fn chain(&self) -> ChainPoint {
        self.chain
    }

    #[cfg(test)]
    /// Number of fragments that all pending records would take now.
    #[must_use]
    pub(crate) fn pending_fragments(&self, geometry: LogGeometry, slots_left: u16) -> usize {
        let room = first_room(geometry, slots_left, self.pending.len());
        fragment_count(geometry, room, self.pending.len())
    }

    /// Cuts all pending records into fragments. `slots_left` slots of the current page are free;
    /// they stay unused when a flush that starts a new page takes fewer programs. The marker of an
    /// epoch is cut alone.
    ///
    /// `None` when nothing is pending or a flush is in flight.
    pub fn seal(&mut self, geometry: LogGeometry, slots_left: u16) -> Option<Flush> {
        self.seal_first(self.ends.len(), geometry, slots_left)
    }

    /// As [`LogWriter::seal`], but leaves half of the records pending: a deliberate bug.
    #[cfg(feature = "seeded-bugs")]
    pub(crate) fn seal_half(&mut self, geometry: LogGeometry, slots_left: u16) -> Option<Flush> {
        self.seal_first(self.ends.len().div_ceil(2), geometry, slots_left)
    }

    /// Cuts the first `count` of the pending records.
    fn seal_first(
        &mut self,
        count: usize,
        geometry: LogGeometry,
        slots_left: u16,
    ) -> Option<Flush> {
        if self.in_flight.is_some() || self.pending.is_empty() {
            return None;
        }
        let count = if std::mem::take(&mut self.is_opening) { 1 } else { count };
        let last = self.counter_of(count - 1)?;
        let mut pending = std::mem::take(&mut self.pending);
        let mut ends = std::mem::take(&mut self.ends);
        self.put_back_behind(count, &mut pending, &mut ends);
        let mut cutter = Cutter { ends: &ends, last, start: 0, done: 0, index: 0 };
        let mut fragments = Vec::new();
        let mut room = first_room(geometry, slots_left, pending.len());
        while cutter.start < pending.len() {
            fragments.push(self.cut(&mut cutter, &pending, geometry, room));
            room = 0;
        }
        let upto = lsn(self.epoch, last);
        debug_assert_eq!(fragments.last().map(|last| last.upto), Some(upto), "I2: whole records");
        self.in_flight = Some(upto);
        self.keep(pending, ends);
        if self.counter >= EPOCH_RECORDS && self.epoch < EPOCH_MAX && self.pending.is_empty() {
            (self.epoch, self.counter) = (self.epoch + 1, 0);
        }
        Some(Flush { fragments, upto })
    }

    /// The counter of a pending record, read from its frame.
    fn counter_of(&self, index: usize) -> Option<u64> {
        let begin =
            index.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        let mut frame = Cursor::new(self.pending.get(begin..)?);
        frame.varint().ok()?;
        frame.varint().ok()
    }

    /// Puts all records but the first `count` back among the pending ones.
    fn put_back_behind(&mut self, count: usize, pending: &mut Vec<u8>, ends: &mut Vec<usize>) {
        let cut = ends[count - 1];
        self.pending.extend_from_slice(&pending[cut..]);
        self.ends.extend(ends[count..].iter().map(|end| end - cut));
        pending.truncate(cut);
        ends.truncate(count);
    }

    /// Notes that every fragment of the flush in flight is on flash, and returns the durable LSN.
    ///
    /// "On flash" is meant as in rule D9: no later program can harm the fragments.
    ///
    /// # Panics
    ///
    /// If `flush` is not the flush in flight: a commit would be acknowledged that is not durable.
    pub fn completed(&mut self, flush: Flush) -> Lsn {
        assert_eq!(self.in_flight, Some(flush.upto), "only the flush in flight is completed");
        assert!(flush.upto > self.durable, "the durable LSN never goes back");
        self.in_flight = None;
        self.durable = flush.upto;
        let room = SPARE_COUNT_MAX.saturating_sub(self.spare.len());
        self.spare.extend(flush.fragments.into_iter().take(room).map(|fragment| fragment.bytes));
        self.durable
    }

    fn cut(
        &mut self,
        cutter: &mut Cutter<'_>,
        pending: &[u8],
        geometry: LogGeometry,
        room: u16,
    ) -> Fragment {
        let (slots, payload_size) = cut_size(geometry, room, pending.len() - cutter.start);
        let payload = &pending[cutter.start..cutter.start + payload_size];
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.resize(HEADER_SIZE, 0);
        bytes.extend_from_slice(payload);
        bytes.resize(usize::from(slots) * geometry.slot_size(), 0xFF);
        let header = Header {
            flush_index: cutter.index,
            payload_size: payload_size as u32,
            first_record: cutter.advance(payload_size),
            epoch: self.epoch,
            sequence: self.chain.next_sequence,
            predecessor: self.chain.predecessor,
        };
        self.chain.predecessor = write_header(&mut bytes, &header);
        self.chain.epoch = self.epoch;
        self.chain.next_sequence += 1;
        let open_count = (cutter.ends.len() - cutter.done) as u64;
        let is_none_whole = cutter.done == 0;
        let upto =
            if is_none_whole { self.durable } else { lsn(self.epoch, cutter.last - open_count) };
        Fragment { bytes, slots, upto }
    }

    /// Keeps the buffers of a cut flush for reuse, unless records are pending in other buffers.
    fn keep(&mut self, mut pending: Vec<u8>, mut ends: Vec<usize>) {
        if !self.pending.is_empty() {
            return;
        }
        pending.clear();
        ends.clear();
        self.pending = pending;
        self.ends = ends;
    }
}

/// Progress of cutting one flush.
struct Cutter<'a> {
    /// End of each record.
    ends: &'a [usize],
    /// Counter of the last record.
    last: u64,
    /// First byte not cut yet.
    start: usize,
    /// Number of records that end before `start`.
    done: usize,
    index: u32,
}

impl Cutter<'_> {
    /// Moves past a payload and returns the offset in it of the first record that starts there.
    fn advance(&mut self, size: usize) -> Option<u32> {
        let previous = self.done.checked_sub(1).map_or(0, |last| self.ends[last]);
        let next = if previous == self.start { Some(previous) } else { self.next_start() };
        let end = self.start + size;
        let first = next.filter(|first| *first < end).map(|first| (first - self.start) as u32);
        self.start = end;
        self.index += 1;
        self.done += self.ends[self.done..].partition_point(|record_end| *record_end <= end);
        first
    }

    /// Start of the record after the record that is cut in two here.
    fn next_start(&self) -> Option<usize> {
        let last = self.ends.len() - 1;
        (self.done < last).then(|| self.ends[self.done])
    }
}

/// Slots of the current page that a flush of `size` bytes uses: none when using them costs one more
/// program.
fn first_room(geometry: LogGeometry, slots_left: u16, size: usize) -> u16 {
    let is_worth = fragment_count(geometry, slots_left, size) <= fragment_count(geometry, 0, size);
    if is_worth { slots_left } else { 0 }
}

/// Fragments that `rest` bytes take when `room` slots of the page are free (0: a new page).
fn fragment_count(geometry: LogGeometry, mut room: u16, mut rest: usize) -> usize {
    let mut count = 0;
    while rest > 0 {
        rest -= cut_size(geometry, room, rest).1;
        room = 0;
        count += 1;
    }
    count
}

/// Slots and payload of the next fragment, when `room` slots of the page are free (0: a new page).
fn cut_size(geometry: LogGeometry, room: u16, rest: usize) -> (u16, usize) {
    let free = if room == 0 { geometry.slots_per_page() } else { room };
    let free = free.min(geometry.slots_per_page());
    let wanted = (HEADER_SIZE + rest).div_ceil(geometry.slot_size());
    let slots = u16::try_from(wanted).unwrap_or(free).min(free);
    let payload_size = usize::from(slots) * geometry.slot_size() - HEADER_SIZE;
    (slots, payload_size.min(rest))
}
