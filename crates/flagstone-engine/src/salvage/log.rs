//! The records of a log with unreadable pages.
//!
//! Owns the selection of its fragments, and the gaps between them. Never knows the effect of a
//! record.
//!
//! - **SL1** A fragment counts unless a later epoch began at or before its place (rule D3): such a
//!   fragment was given up.
//! - **SL2** Behind a gap a fragment counts if it begins a flush, or if a later flush began after it:
//!   other fragments may have been in flight at a cut.
//! - **SL3** A record is given out if all fragments between its ends are there, each naming its
//!   predecessor.

use flagstone_nand::{Nand, NandError};
use flagstone_space::{Lsn, Survey};

use crate::log::{ChainPoint, FragmentHeader, HEADER_SIZE, lsn, parse_fragment, whole_frame};

/// A fragment that reads whole, and its place.
#[derive(Clone, Copy, Debug)]
struct Place {
    page: u32,
    offset: usize,
    size: usize,
    crc: u32,
    header: FragmentHeader,
}

/// The remains of a log.
#[derive(Debug, Default)]
pub(super) struct SalvagedLog {
    /// In the order of their sequence.
    places: Vec<Place>,
    /// Pages whose content is neither a fragment nor part of a unit.
    pub(super) damaged_pages: u64,
}

/// Result of reading the records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogExtent {
    /// LSN of the last record.
    pub(super) last: Lsn,
    /// Fragments are missing between the records that a restart needs.
    pub(super) has_gap: bool,
}

impl SalvagedLog {
    /// Looks for fragments on all pages that belong to no unit.
    pub(super) fn find<D: Nand>(survey: &mut Survey<D>) -> Result<Self, NandError> {
        let mut log = Self::default();
        let mut bytes = Vec::new();
        for page in survey.others().to_vec() {
            let is_read = survey.read_raw(page, &mut bytes)?;
            let found = log.take_page(page, &bytes, survey.log_slot_size());
            let is_damaged = !is_read || !found && !survey.is_erased(&bytes);
            log.damaged_pages += u64::from(is_damaged);
        }
        log.settle();
        Ok(log)
    }

    /// Takes the fragments of a page; returns whether there are any.
    fn take_page(&mut self, page: u32, bytes: &[u8], slot_size: usize) -> bool {
        let (mut offset, before) = (0, self.places.len());
        while let Some(rest) = bytes.get(offset..).filter(|rest| !rest.is_empty()) {
            let Some(parsed) = parse_fragment(rest) else {
                // An unreadable slot may be followed by readable ones.
                offset += slot_size;
                continue;
            };
            let size = HEADER_SIZE + parsed.payload.len();
            let (crc, header) = (parsed.crc, parsed.header);
            self.places.push(Place { page, offset, size, crc, header });
            offset += size.next_multiple_of(slot_size);
        }
        self.places.len() > before
    }

    /// Orders the fragments and drops the given-up ones (SL1).
    fn settle(&mut self) {
        self.places.sort_by_key(|place| (place.header.sequence, place.header.epoch));
        let mut newest = 0;
        // Of each sequence the last entry has the latest epoch.
        let later = self.places.iter().skip(1).map(|place| place.header.sequence);
        let is_last: Vec<bool> = self
            .places
            .iter()
            .zip(later.map(Some).chain([None]))
            .map(|(place, next)| Some(place.header.sequence) != next)
            .collect();
        let mut is_last = is_last.into_iter();
        self.places.retain(|place| {
            let counts = is_last.next().unwrap_or(true) && place.header.epoch >= newest;
            if counts {
                newest = place.header.epoch;
            }
            counts
        });
        // Highest sequence at which a flush is known to begin, walking backwards (SL2).
        let mut begun = 0;
        let mut begins: Vec<u64> = Vec::with_capacity(self.places.len());
        for place in self.places.iter().rev() {
            begins.push(begun);
            begun = begun.max(place.header.flush_start());
        }
        begins.reverse();
        let mut expected: Option<u64> = None;
        let mut begins = begins.into_iter();
        self.places.retain(|Place { header, .. }| {
            let begun = begins.next().unwrap_or(0);
            let follows = expected.is_none_or(|expected| expected == header.sequence);
            let counts = follows || header.flush_index == 0 || begun > header.sequence;
            if counts {
                expected = Some(header.sequence.saturating_add(1));
            }
            counts
        });
    }

    /// Hands out every whole record with its LSN, in order. `begin` is the point from which a
    /// restart reads.
    pub(super) fn each_record<D: Nand>(
        &self,
        survey: &mut Survey<D>,
        begin: Option<ChainPoint>,
        mut take: impl FnMut(Lsn, &[u8]),
    ) -> Result<LogExtent, NandError> {
        let begin = begin.unwrap_or(ChainPoint::START);
        let (mut stream, mut extent) = (Stream::default(), LogExtent::default());
        let mut before = (begin.next_sequence, begin.predecessor);
        let (mut bytes, mut loaded) = (Vec::new(), None);
        for place in &self.places {
            let FragmentHeader { sequence, predecessor, .. } = place.header;
            let is_needed = sequence >= begin.next_sequence;
            let follows = (sequence, predecessor) == before;
            let is_begin = (sequence, predecessor) == (begin.next_sequence, begin.predecessor);
            extent.has_gap |= is_needed && !follows && !is_begin;
            if !follows {
                stream.reset();
            }
            before = (sequence.saturating_add(1), place.crc);
            if loaded != Some(place.page) {
                survey.read_raw(place.page, &mut bytes)?;
                loaded = Some(place.page);
            }
            let payload = bytes.get(place.offset + HEADER_SIZE..place.offset + place.size);
            let is_whole =
                stream.take(&place.header, payload.unwrap_or(&[]), &mut |lsn, record| {
                    extent.last = extent.last.max(lsn);
                    take(lsn, record);
                });
            extent.has_gap |= is_needed && !is_whole;
        }
        Ok(extent)
    }
}

/// Consecutive payloads.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    epoch: u32,
    /// Whether the start of a record has been seen.
    is_in_step: bool,
}

impl Stream {
    fn reset(&mut self) {
        *self = Self::default();
    }

    /// Takes a payload; false when it contradicts its header.
    fn take(
        &mut self,
        header: &FragmentHeader,
        payload: &[u8],
        give: &mut impl FnMut(Lsn, &[u8]),
    ) -> bool {
        if header.epoch != self.epoch {
            // No record continues in another epoch.
            self.bytes.clear();
        }
        let first = header.first_record.map_or(payload.len(), |first| first as usize);
        let (carried, own) = payload.split_at_checked(first).unwrap_or((payload, &[]));
        let mut is_whole = true;
        if self.is_in_step {
            self.bytes.extend_from_slice(carried);
            is_whole = self.give_whole(give);
        }
        if header.first_record.is_some() {
            is_whole &= !self.is_in_step || self.bytes.is_empty();
            self.bytes.clear();
            (self.is_in_step, self.epoch) = (true, header.epoch);
            self.bytes.extend_from_slice(own);
            is_whole &= self.give_whole(give);
        }
        is_whole
    }

    /// Gives out the whole records; false when the bytes at hand can never become one.
    fn give_whole(&mut self, give: &mut impl FnMut(Lsn, &[u8])) -> bool {
        let mut at = 0;
        while let Some(frame) = self.bytes.get(at..).and_then(whole_frame) {
            let Some((counter, body, size)) = frame else {
                self.reset();
                return false;
            };
            give(lsn(self.epoch, counter), self.bytes.get(at + body..at + size).unwrap_or(&[]));
            at += size;
        }
        self.bytes.drain(..at);
        true
    }
}
