//! Places of a file that have room on the disk but were never written.
//!
//! A file system notes, with the next sync, that such a place has content now. On ext4 the note takes 12 KiB
//! of the journal and a second flush for each sync, however little was written before it. For a load that
//! writes much between two syncs this is cheap: filling the file with zeros beforehand would write everything
//! twice. A log that gets a sector a commit would pay the price with each commit, until its place is full. So
//! a place that turns out to be written a little at a time is filled with zeros to its end.
//!
//! - **F1** Only bytes that read as zeros are filled, and none that are being written: contents never change.
//! - **F2** The state kept here is a matter of cost alone; a file that was opened begins without
//!   it.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes between two syncs below which a place is filled: zeros for them cost less than the file system's own
/// writes, a second flush included.
const LITTLE: u64 = 32 << 10;

/// Syncs that have to be seen before a place is judged: the first one may fall anywhere.
const SYNCS_MIN: u64 = 2;

/// Places that are being judged, at most; the place left alone for longest is forgotten.
const JUDGED_MAX: usize = 64;

/// State of the places of one file.
#[derive(Debug)]
pub(super) struct Fresh {
    /// Where the first place begins; earlier bytes belong to no place.
    origin: u64,
    place_size: u64,
    /// One bit a place: nothing in it has to be noted by the file system any more.
    settled: Vec<u64>,
    judged: BTreeMap<u64, Use>,
}

/// How a place was written so far.
#[derive(Debug)]
struct Use {
    /// Bytes since the last sync.
    bytes: u64,
    /// Bytes between two syncs, the last ones counting most.
    average: u64,
    /// Syncs behind which it was written again.
    sync_count: u64,
    last_sync: u64,
}

/// Work to do beside a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Advice {
    Nothing,
    /// Nothing is known of the place that ends there: settle it, unless its end has room without content. The
    /// beginning would not tell: bytes read ahead into memory pass for content.
    Look {
        end: u64,
    },
    /// Fill the rest of the place behind the write.
    Fill(Range<u64>),
}

impl Fresh {
    /// Places of `place_size` bytes, not 0, from `origin` on; each is written from its start.
    pub(super) fn new(origin: u64, place_size: u64) -> Self {
        Self { origin, place_size, settled: Vec::new(), judged: BTreeMap::new() }
    }

    /// Takes note of a write of `size` bytes at `offset`, behind `sync_count` syncs of the file.
    pub(super) fn note(&mut self, offset: u64, size: u64, sync_count: u64) -> Advice {
        let Some(place) = self.place_of(offset).filter(|place| !self.is_settled(*place)) else {
            return Advice::Nothing;
        };
        let end = self.origin + (place + 1) * self.place_size;
        let left = (offset + size).min(end)..end;
        let Some(known) = self.judged.get_mut(&place) else {
            self.judge(
                place,
                Use { bytes: size, average: 0, sync_count: 0, last_sync: sync_count },
            );
            return Advice::Look { end };
        };
        if known.last_sync != sync_count {
            known.average = match known.sync_count {
                0 => known.bytes,
                _ => u64::midpoint(known.average, known.bytes),
            };
            (known.bytes, known.last_sync) = (0, sync_count);
            known.sync_count += 1;
        }
        if known.sync_count >= SYNCS_MIN && known.average < LITTLE {
            self.settle(place);
            return Advice::Fill(left);
        }
        known.bytes += size;
        Advice::Nothing
    }

    fn place_of(&self, offset: u64) -> Option<u64> {
        Some(offset.checked_sub(self.origin)? / self.place_size)
    }

    fn judge(&mut self, place: u64, first: Use) {
        if self.judged.len() >= JUDGED_MAX {
            let oldest = self.judged.iter().min_by_key(|(_, known)| known.last_sync);
            if let Some(oldest) = oldest.map(|(place, _)| *place) {
                self.judged.remove(&oldest);
            }
        }
        self.judged.insert(place, first);
    }

    /// The place of `offset` holds something everywhere.
    pub(super) fn settle_at(&mut self, offset: u64) {
        if let Some(place) = self.place_of(offset) {
            self.settle(place);
        }
    }

    fn settle(&mut self, place: u64) {
        self.judged.remove(&place);
        let word = (place / 64) as usize;
        if word >= self.settled.len() {
            self.settled.resize(word + 1, 0);
        }
        self.settled[word] |= 1 << (place % 64);
    }

    fn is_settled(&self, place: u64) -> bool {
        let word = self.settled.get((place / 64) as usize).copied().unwrap_or(0);
        word >> (place % 64) & 1 == 1
    }

    /// The content of `size` bytes at `offset` was given back to the host.
    pub(super) fn forget(&mut self, offset: u64, size: u64) {
        let first = self.place_of(offset).unwrap_or(0);
        let end = self.place_of(offset + size.saturating_sub(1)).map_or(0, |last| last + 1);
        for place in first..end {
            self.judged.remove(&place);
            if let Some(word) = self.settled.get_mut((place / 64) as usize) {
                *word &= !(1 << (place % 64));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;
    const ORIGIN: u64 = 5 * PAGE;
    const PLACE_SIZE: u64 = 64 * PAGE;

    fn fresh() -> Fresh {
        Fresh::new(ORIGIN, PLACE_SIZE)
    }

    /// Start of a place.
    fn at(place: u64) -> u64 {
        ORIGIN + place * PLACE_SIZE
    }

    /// A log that gets a sector a commit is filled soon, and then left alone.
    #[test]
    fn a_place_written_a_little_at_a_time_is_filled_once() {
        let mut fresh = fresh();
        let advice: Vec<_> =
            (0..8).map(|commit| fresh.note(at(1) + 512 * commit, 512, commit)).collect();
        assert_eq!(advice[0], Advice::Look { end: at(2) });
        assert_eq!(advice[1], Advice::Nothing);
        assert_eq!(advice[2], Advice::Fill(at(1) + 3 * 512..at(2)));
        assert!(advice[3..].iter().all(|advice| *advice == Advice::Nothing));
    }

    /// A place that is written much at a time is not filled, wherever its first sync falls; once it is
    /// written a little at a time, the rest is filled.
    #[test]
    fn a_place_written_at_once_is_left_as_it_is() {
        for first_sync in 0..27 {
            let mut fresh = fresh();
            for page in 0..64 {
                let sync_count = (page + 27 - first_sync) / 27;
                let advice = fresh.note(at(0) + page * PAGE, PAGE, sync_count);
                assert!(!matches!(advice, Advice::Fill(_)), "page {page}, sync at {first_sync}");
            }
        }
        let mut fresh = fresh();
        let advice =
            (0..64).map(|page| fresh.note(at(0) + page * PAGE, PAGE, u64::max(page, 31) - 31));
        assert_eq!(advice.filter(|advice| matches!(advice, Advice::Fill(_))).count(), 1);
    }

    #[test]
    fn what_is_settled_is_looked_at_again_after_a_discard() {
        let mut fresh = fresh();
        fresh.settle_at(at(5) + 7);
        assert_eq!(fresh.note(at(5), PAGE, 0), Advice::Nothing);
        fresh.forget(at(5), PLACE_SIZE);
        assert!(matches!(fresh.note(at(5), PAGE, 0), Advice::Look { .. }));
        assert!(matches!(fresh.note(at(70), PAGE, 0), Advice::Look { .. }));
        assert_eq!(fresh.note(ORIGIN - PAGE, PAGE, 0), Advice::Nothing);
    }

    #[test]
    fn few_places_are_judged_at_a_time() {
        let mut fresh = fresh();
        for place in 0..1_000 {
            let _ = fresh.note(at(place), PAGE, place);
        }
        assert!(fresh.judged.len() <= JUDGED_MAX);
        assert!(fresh.judged.contains_key(&999));
    }
}
