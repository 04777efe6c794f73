//! Reading the log back: the fragments that belong to it, and their records.
//!
//! A fragment that is read meets one of four fates:
//!
//! | fragment | fate | function |
//! | --- | --- | --- |
//! | continues the chain, same or later epoch | accepted | `accept` |
//! | later epoch, continues inside the last flush | accepted; replaced fragments go | `judge`, `take_in` |
//! | proves that a complete fragment is missing | the log ends with a fault (I5) | `proves_hole`, `leaves_gap` |
//! | anything else: dead, a copy, left over from an older use of the block | skipped | `judge` |
//!
//! Accepted fragments are held back until their flush is over (I4); then their payload joins the
//! stream, from which whole records are given out.

use std::collections::VecDeque;

use flagstone_space::Lsn;

use super::codec::Cursor;
use super::fragment::{HEADER_SIZE, Header, Parsed, parse};
use super::record::Record;
use super::{COUNTER_MASK, ChainPoint, LogError, LogFault, LogGeometry, lsn};

/// Where reading starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStart {
    /// At a known point of the chain.
    Chain(ChainPoint),
    /// At the first fragment found, whatever came before it.
    Anywhere,
}

/// Programs in flight that may survive a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// Programs of one block reach flash in order: a later one proves the earlier ones.
    Prefix,
    /// Any subset of the programs since the last sync.
    AnySubset,
}

/// A page of the log as read.
#[derive(Clone, Copy, Debug)]
pub struct LogPage<'a> {
    /// Number of the page.
    pub number: u64,
    /// Whether the page is the first of its block.
    pub opens_block: bool,
    /// Bytes of all its slots.
    pub bytes: &'a [u8],
}

/// State of the block so far, from the first page that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Above {
    /// No page.
    Nothing,
    /// Pages without a whole fragment.
    Unreadable,
    /// A whole fragment last, with this sequence and checksum.
    Fragment(u64, u32),
}

/// The end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// Point from which the writer of the next epoch continues.
    pub chain: ChainPoint,
    /// Log page of the last fragment; `None` when there is none.
    pub last_page: Option<u64>,
    /// LSN of the last record.
    pub last_lsn: Lsn,
    /// LSN of the last record that ends before the tail: it stands whatever happens to the tail.
    pub settled_lsn: Lsn,
    /// Set when the log ends because of damage and not because of a cut.
    pub fault: Option<LogFault>,
}

/// A fragment near the end, which may have been in flight at the cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailFragment {
    /// Log page of the fragment.
    pub page: u64,
    /// First slot.
    pub slot: u16,
    /// Whole slots, as they were programmed.
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
struct Held {
    header: Header,
    is_streamed: bool,
    /// LSN of the last record that ended before the fragment.
    before: Lsn,
    raw: TailFragment,
}

impl Held {
    fn payload(&self) -> &[u8] {
        let end = HEADER_SIZE + self.header.payload_size as usize;
        self.raw.bytes.get(HEADER_SIZE..end).unwrap_or(&[])
    }
}

/// A whole record in the stream.
#[derive(Clone, Copy, Debug)]
struct Extent {
    body: usize,
    end: usize,
    lsn: Lsn,
}

/// Reassembles the log from its pages.
#[derive(Debug)]
pub struct LogReader {
    geometry: LogGeometry,
    survivors: Survivors,
    above: Above,
    first_page: Option<u64>,
    /// `None` until a first fragment is found.
    chain: Option<ChainPoint>,
    last_page: Option<u64>,
    held: VecDeque<Held>,
    stream: Vec<u8>,
    /// Records not yet given out.
    extents: VecDeque<Extent>,
    /// Start in the stream of the record that is still incomplete.
    partial: usize,
    /// Epoch of the fragment in which this record starts.
    partial_epoch: u32,
    /// Whether the start of a record has been seen.
    is_in_step: bool,
    last_lsn: Lsn,
    fault: Option<LogFault>,
    is_finished: bool,
}

/// Treatment of a fragment.
enum Fate {
    Accept,
    RollBack(usize),
    Fault(LogFault),
    Skip,
}

impl LogReader {
    /// A reader for pages with this geometry.
    #[must_use]
    pub fn new(geometry: LogGeometry, start: ReadStart, survivors: Survivors) -> Self {
        let chain = match start {
            ReadStart::Chain(point) => Some(point),
            ReadStart::Anywhere => None,
        };
        Self {
            geometry,
            survivors,
            above: Above::Nothing,
            first_page: None,
            chain,
            last_page: None,
            held: VecDeque::new(),
            stream: Vec::new(),
            extents: VecDeque::new(),
            partial: 0,
            partial_epoch: 0,
            is_in_step: false,
            last_lsn: Lsn::ZERO,
            fault: None,
            is_finished: false,
        }
    }

    /// Reads the slots of one log page. Pages come in the order of their numbers.
    ///
    /// Slots are used from front to back, and the writer abandons a page when a cut may have torn
    /// one of its fragments: nothing after the first slot without a fragment counts. So the inside
    /// of a torn fragment is never taken for a fragment.
    pub fn feed(&mut self, page: LogPage<'_>) {
        self.compact();
        self.first_page.get_or_insert(page.number);
        if page.opens_block {
            self.above = Above::Nothing;
        }
        let (bytes, slot_size) = (page.bytes, self.geometry.slot_size());
        let mut slot = 0;
        while let Some(parsed) = bytes.get(slot * slot_size..).and_then(parse) {
            if self.fault.is_some() || self.is_finished {
                return;
            }
            let slots = (HEADER_SIZE + parsed.payload.len()).div_ceil(slot_size);
            let end = bytes.len().min((slot + slots) * slot_size);
            let raw = bytes.get(slot * slot_size..end).unwrap_or(&[]);
            self.take_in(page.number, slot as u16, raw, &parsed);
            self.above = Above::Fragment(parsed.header.sequence, parsed.crc);
            slot += slots;
        }
        if self.above == Above::Nothing {
            self.above = Above::Unreadable;
        }
        let behind = bytes.get((slot + 1) * slot_size..).unwrap_or(&[]);
        self.look_behind(page.number, behind);
    }

    /// Finds a lost fragment: whole flushes behind a slot without a fragment prove that it held one
    /// (I5).
    ///
    /// Apparent fragments may be a caller's bytes inside a torn fragment: one counts only if the
    /// missing slots explain its sequence.
    fn look_behind(&mut self, page: u64, behind: &[u8]) {
        let Some(chain) = self.chain.filter(|_| self.survivors == Survivors::Prefix) else {
            return;
        };
        let known = self.last_page.or(self.first_page).unwrap_or(page);
        let slots = u64::from(self.geometry.slots_per_page());
        let missing_max = page.saturating_sub(known).saturating_add(1).saturating_mul(slots);
        let proves = |slot: &[u8]| {
            parse(slot).is_some_and(|Parsed { header, .. }| {
                let missing = header.sequence.checked_sub(chain.next_sequence);
                proves_hole(&chain, &header)
                    && header.flush_index == 0
                    && missing.is_some_and(|missing| missing <= missing_max)
            })
        };
        let starts = (0..behind.len()).step_by(self.geometry.slot_size());
        if self.fault.is_none() && starts.map(|start| &behind[start..]).any(proves) {
            self.fault = Some(LogFault::Missing { sequence: chain.next_sequence, page });
        }
    }

    /// Ends reading: the rest of the last flush is accepted. More records may follow from it.
    pub fn finish(&mut self) -> LogEnd {
        self.compact();
        self.settle();
        self.is_finished = true;
        LogEnd {
            chain: self.chain.unwrap_or(ChainPoint::START),
            last_page: self.last_page,
            last_lsn: self.last_lsn,
            settled_lsn: self.held.front().map_or(self.last_lsn, |held| held.before),
            fault: self.fault,
        }
    }

    /// The next record that no later fragment can take back, with its LSN.
    ///
    /// To keep memory low, take all available records after each page.
    pub(crate) fn next_record(&mut self) -> Option<Result<(Lsn, Record<'_>), LogError>> {
        let (lsn, body) = self.next_bytes()?;
        Some(
            Record::decode(body).map(|r| (lsn, r)).map_err(|fault| LogError::Record { lsn, fault }),
        )
    }

    /// The bytes of the next record that no later fragment can take back, with its LSN.
    pub fn next_bytes(&mut self) -> Option<(Lsn, &[u8])> {
        let extent = self.extents.pop_front()?;
        Some((extent.lsn, self.stream.get(extent.body..extent.end).unwrap_or(&[])))
    }

    /// Fragments of the last flush and of the last page, in order.
    ///
    /// These fragments may have been in flight at the cut: one good read proves nothing, so restart
    /// programs them again on a later page before anything relies on them (rule D11).
    pub fn tail(&self) -> impl Iterator<Item = &TailFragment> {
        self.held.iter().map(|held| &held.raw)
    }

    fn take_in(&mut self, page: u64, slot: u16, raw: &[u8], parsed: &Parsed<'_>) {
        match self.judge(page, &parsed.header) {
            Fate::Skip => return,
            Fate::Fault(fault) => {
                self.fault = Some(fault);
                return;
            }
            Fate::RollBack(count) => self.held.truncate(count),
            Fate::Accept => {}
        }
        self.accept(page, slot, raw, parsed);
    }

    fn judge(&self, page: u64, header: &Header) -> Fate {
        let Some(chain) = self.chain else { return Fate::Accept };
        let follows = header.sequence == chain.next_sequence
            && header.predecessor == chain.predecessor
            && header.epoch >= chain.epoch
            && self.continues_flush(&chain, header);
        if follows {
            return Fate::Accept;
        }
        if header.epoch > chain.epoch
            && header.flush_index == 0
            && let Some(count) = self.held_before(header)
        {
            return Fate::RollBack(count);
        }
        if proves_hole(&chain, header) || self.leaves_gap(&chain, header) {
            return Fate::Fault(LogFault::Missing { sequence: chain.next_sequence, page });
        }
        Fate::Skip
    }

    /// Whether a program before this one, in the same block, is missing.
    fn leaves_gap(&self, chain: &ChainPoint, header: &Header) -> bool {
        let is_gap = match self.above {
            Above::Nothing => false,
            Above::Unreadable => true,
            Above::Fragment(sequence, crc) => {
                header.sequence != sequence.saturating_add(1) || header.predecessor != crc
            }
        };
        let is_later = header.epoch >= chain.epoch && header.sequence > chain.next_sequence;
        self.survivors == Survivors::Prefix && is_gap && is_later
    }

    /// Whether the index within the flush continues the fragment before.
    fn continues_flush(&self, chain: &ChainPoint, header: &Header) -> bool {
        if header.flush_index == 0 {
            return true;
        }
        let follows_index =
            |last: &Held| last.header.flush_index.checked_add(1) == Some(header.flush_index);
        header.epoch == chain.epoch && self.held.back().is_none_or(follows_index)
    }

    /// Number of held fragments before `header`, if it replaces an unsettled one.
    fn held_before(&self, header: &Header) -> Option<usize> {
        self.held.iter().position(|held| {
            !held.is_streamed
                && held.header.sequence == header.sequence
                && held.header.predecessor == header.predecessor
        })
    }

    fn accept(&mut self, page: u64, slot: u16, raw: &[u8], parsed: &Parsed<'_>) {
        let header = parsed.header;
        if header.flush_index == 0 {
            self.settle();
        }
        self.held.retain(|held| !held.is_streamed || held.raw.page == page);
        let raw = TailFragment { page, slot, bytes: raw.to_vec() };
        self.held.push_back(Held { header, is_streamed: false, before: Lsn::ZERO, raw });
        self.chain = Some(ChainPoint {
            next_sequence: header.sequence.saturating_add(1),
            epoch: header.epoch,
            predecessor: parsed.crc,
        });
        self.last_page = Some(page);
    }

    /// Moves held fragments into the stream: nothing can replace them any more.
    fn settle(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        for fragment in held.iter_mut().filter(|fragment| !fragment.is_streamed) {
            (fragment.is_streamed, fragment.before) = (true, self.last_lsn);
            if !self.is_damaged_inside()
                && let Err(fault) = self.join(fragment)
            {
                self.fault = Some(fault);
            }
        }
        self.held = held;
    }

    /// Whether the stream itself is damaged; a missing fragment leaves the stream before it good.
    fn is_damaged_inside(&self) -> bool {
        !matches!(self.fault, None | Some(LogFault::Missing { .. }))
    }

    /// Appends a payload to the stream and finds the records that it completes.
    fn join(&mut self, fragment: &Held) -> Result<(), LogFault> {
        let Header { sequence, epoch, first_record, .. } = fragment.header;
        let payload = fragment.payload();
        let first = first_record.map_or(payload.len(), |first| first as usize);
        if epoch != self.partial_epoch {
            self.stream.truncate(self.partial);
        }
        let (carried, own) = payload.split_at_checked(first).unwrap_or((payload, &[]));
        let is_between_records = self.partial == self.stream.len();
        if self.is_in_step && is_between_records && !carried.is_empty() {
            return Err(LogFault::Framing { sequence });
        }
        if self.is_in_step {
            self.stream.extend_from_slice(carried);
            self.find_records(sequence)?;
        }
        if first_record.is_some() {
            self.is_in_step = true;
            self.partial_epoch = epoch;
            if self.partial != self.stream.len() {
                return Err(LogFault::Framing { sequence });
            }
        }
        self.stream.extend_from_slice(own);
        self.find_records(sequence)
    }

    fn find_records(&mut self, sequence: u64) -> Result<(), LogFault> {
        while let Some(frame) = self.stream.get(self.partial..).and_then(whole_frame) {
            let (counter, body, size) = frame.ok_or(LogFault::Framing { sequence })?;
            let lsn = lsn(self.partial_epoch, counter);
            if lsn <= self.last_lsn {
                return Err(LogFault::Order { sequence });
            }
            let end = self.partial + size;
            self.extents.push_back(Extent { body: self.partial + body, end, lsn });
            self.last_lsn = lsn;
            self.partial = end;
        }
        Ok(())
    }

    /// Forgets the part of the stream that has been given out.
    fn compact(&mut self) {
        if self.extents.is_empty() && self.partial > 0 {
            self.stream.drain(..self.partial);
            self.partial = 0;
        }
    }
}

/// Whether a fragment that does not follow the chain shows that a complete one is missing (I5).
fn proves_hole(chain: &ChainPoint, header: &Header) -> bool {
    let knows_more = header.flush_start() > chain.next_sequence;
    let starts_later_epoch = header.epoch > chain.epoch && header.flush_index == 0;
    header.epoch >= chain.epoch && (knows_more || starts_later_epoch)
}

/// Counter, offset of the body and size of the frame at the front of `bytes`.
///
/// `None` when more bytes are needed, `Some(None)` when no bytes make it a frame.
pub(crate) fn whole_frame(bytes: &[u8]) -> Option<Option<(u64, usize, usize)>> {
    let mut input = Cursor::new(bytes);
    let size = match input.varint() {
        Ok(size) => size,
        Err(super::RecordFault::Truncated) => return None,
        Err(_) => return Some(None),
    };
    let Ok(frame) = input.take(size) else { return None };
    let total = bytes.len() - input.rest().len();
    let mut inside = Cursor::new(frame);
    let counter = inside.varint().ok().filter(|counter| (1..=COUNTER_MASK).contains(counter));
    Some(counter.map(|counter| (counter, total - inside.rest().len(), total)))
}
