//! The log: records of any content, packed and chained as the engine's own.

use flagstone_space::Lsn;

use crate::log::{
    ChainPoint, Cursor, Flush, LogGeometry, LogPage, LogPosition, LogReader, LogWriter, ReadStart,
    Survivors,
};

/// How log pages are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogShape(LogGeometry);

impl LogShape {
    /// Slots of `slot_size` bytes, `slots_per_page` of them a page; none when no record would fit.
    #[must_use]
    pub fn new(slot_size: usize, slots_per_page: u16) -> Option<Self> {
        LogGeometry::new(slot_size, slots_per_page).map(Self)
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_size(self) -> usize {
        self.0.slot_size() * usize::from(self.0.slots_per_page())
    }
}

/// A place in the log from which it can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPlace(LogPosition);

impl LogPlace {
    /// Log page that holds what follows, or comes before it.
    #[must_use]
    pub fn page(self) -> u64 {
        self.0.page
    }

    /// Restart epoch of what comes before the place.
    #[must_use]
    pub fn epoch(self) -> u32 {
        self.0.chain.epoch
    }

    /// Whether it is before everything.
    #[must_use]
    pub fn is_start(self) -> bool {
        self.0.chain == ChainPoint::START
    }

    /// Appends its bytes.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.extend(self.0.page.to_le_bytes());
        out.extend(self.0.chain.next_sequence.to_le_bytes());
        out.extend(self.0.chain.epoch.to_le_bytes());
        out.extend(self.0.chain.predecessor.to_le_bytes());
    }

    /// Reads its bytes from the front of `bytes`; any bytes give a value or none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut input = Cursor::new(bytes);
        let mut number = |size| {
            let raw = input.take(size).ok()?;
            Some(raw.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
        };
        let (page, next_sequence) = (number(8)?, number(8)?);
        let (epoch, predecessor) = (number(4)? as u32, number(4)? as u32);
        let chain = ChainPoint { next_sequence, epoch, predecessor };
        Some((Self(LogPosition { page, chain }), input.rest()))
    }
}

/// Fragments to program, in order.
#[derive(Debug)]
pub struct LogFlush(Flush);

impl LogFlush {
    /// The fragments.
    pub fn fragments(&self) -> impl Iterator<Item = &[u8]> {
        self.0.fragments.iter().map(|fragment| fragment.bytes.as_slice())
    }

    /// Durable LSN once all fragments are.
    #[must_use]
    pub fn upto(&self) -> Lsn {
        self.0.upto
    }
}

/// The tail of the log in memory.
#[derive(Debug)]
pub struct LogTail(LogWriter);

impl LogTail {
    /// A tail for a restart epoch that continues the log at `after`; none when epochs are used up.
    #[must_use]
    pub fn new(epoch: u32, after: LogPlace, durable: Lsn) -> Option<Self> {
        LogWriter::new(epoch, after.0.chain, durable).ok().map(Self)
    }

    /// Adds a record and gives it the next LSN.
    pub fn append(&mut self, record: &[u8]) -> Lsn {
        self.0.append_with(|out| out.extend_from_slice(record))
    }

    /// The LSN that the next record gets, unless the log is empty.
    #[must_use]
    pub fn next(&self) -> Lsn {
        crate::log::lsn(self.0.epoch(), self.0.counter() + 1)
    }

    /// Restart epoch of the records appended here.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.0.epoch()
    }

    /// Whether any record was appended in this epoch.
    #[must_use]
    pub fn has_appended(&self) -> bool {
        self.0.has_appended()
    }

    /// Bytes appended and not yet cut.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.0.pending_bytes()
    }

    /// The last LSN that is on flash with all before it.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.0.durable()
    }

    /// The LSN that is durable once everything appended is.
    #[must_use]
    pub fn appended(&self) -> Lsn {
        self.0.appended()
    }

    /// Where the next flush continues the log, whose last fragment lies on `page`.
    #[must_use]
    pub fn place(&self, page: u64) -> LogPlace {
        LogPlace(LogPosition { page, chain: self.0.chain() })
    }

    /// Cuts everything pending into a flush; `slots_left` slots of the current page are free.
    pub fn seal(&mut self, shape: LogShape, slots_left: u16) -> Option<LogFlush> {
        self.0.seal(shape.0, slots_left).map(LogFlush)
    }

    /// Every fragment of the flush in flight is durable.
    pub fn completed(&mut self, flush: LogFlush) -> Lsn {
        self.0.completed(flush.0)
    }
}

/// Damage of the log that no power cut explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDamage;

/// Where the log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// Where the next epoch continues.
    pub place: LogPlace,
    /// Whether anything was found.
    pub is_empty: bool,
    /// LSN of the last record.
    pub last_lsn: Lsn,
    /// Set when the log ends because of damage and not because of a cut.
    pub damage: Option<LogDamage>,
}

/// Puts the log together from its pages.
#[derive(Debug)]
pub struct LogScan(LogReader);

impl LogScan {
    /// Reads from `start`, or from whatever comes first when there is none.
    #[must_use]
    pub fn new(shape: LogShape, start: Option<LogPlace>) -> Self {
        let start = start.map_or(ReadStart::Anywhere, |place| ReadStart::Chain(place.0.chain));
        Self(LogReader::new(shape.0, start, Survivors::AnySubset))
    }

    /// Takes in one log page. Pages come in the order of their numbers.
    pub fn feed(&mut self, page: u64, bytes: &[u8]) {
        self.0.feed(LogPage { number: page, opens_block: false, bytes });
    }

    /// Ends reading; more records may follow from it.
    pub fn finish(&mut self) -> LogEnd {
        let end = self.0.finish();
        LogEnd {
            place: LogPlace(LogPosition { page: end.last_page.unwrap_or(0), chain: end.chain }),
            is_empty: end.last_page.is_none(),
            last_lsn: end.last_lsn,
            damage: end.fault.map(|_| LogDamage),
        }
    }

    /// The next record that cannot be taken back, with its LSN.
    pub fn next_record(&mut self) -> Option<(Lsn, &[u8])> {
        self.0.next_bytes()
    }

    /// Fragments that may have been in flight at a cut, to be programmed again (rule D11).
    pub fn tail(&self) -> impl Iterator<Item = &[u8]> {
        self.0.tail().map(|fragment| fragment.bytes.as_slice())
    }
}
