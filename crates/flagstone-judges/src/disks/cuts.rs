//! The states that a cut at one place of a record can leave: prefixes, subsets, torn sectors, lengths and names.

use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::disk::{Disk, Kept, SECTOR, State, file_of};
use super::record::{Event, Record};

/// Bytes that a page cache writes at a time.
const PAGE: usize = 4096;

/// One state that a cut can leave, in words that name events by their place among the pending ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The first events, all of each.
    Prefix(usize),
    /// All but one.
    Without(usize),
    /// One alone; lengths and names are there.
    Alone(usize),
    /// One in part: behind all before it, or among all.
    Torn { event: usize, unit: usize, count: usize, from_end: bool, with_later: bool },
    /// Each event by the toss of a coin.
    Subset { seed: u64 },
    /// Each unit of each write by the toss of a coin.
    Units { unit: usize, seed: u64 },
    /// All lengths and names, and no data.
    NoData,
    /// All data, and the first changes of lengths.
    Lengths(usize),
    /// Names by the bits of a number; with all data or with none.
    Names { bits: u64, has_data: bool },
}

/// States of random choice at one place.
const RANDOM: usize = 12;

/// Names that are tried in all combinations.
const NAMES_ALL: usize = 5;

/// The cuts at one place, which follow from the seed.
pub(super) fn cuts(disk: &Disk, record: &Record, seed: u64) -> Vec<Cut> {
    let count = disk.pending.len();
    let mut draws = Pcg64Mcg::seed_from_u64(seed);
    let mut cuts = vec![Cut::Prefix(count), Cut::NoData];
    for event in 0..count {
        cuts.extend([Cut::Prefix(event), Cut::Without(event), Cut::Alone(event)]);
        if let Event::Write { bytes, .. } = &record.events[disk.pending[event]] {
            tear(&mut cuts, event, bytes.len(), &mut draws);
        }
    }
    if count > 1 {
        for _ in 0..RANDOM {
            cuts.push(Cut::Subset { seed: draws.random() });
            cuts.push(Cut::Units { unit: SECTOR, seed: draws.random() });
            cuts.push(Cut::Units { unit: PAGE, seed: draws.random() });
        }
    }
    names(&mut cuts, disk, record, &mut draws);
    let lengths = disk.pending.iter().filter(|number| changes_length(disk, record, **number));
    cuts.extend((0..lengths.count()).map(Cut::Lengths));
    cuts
}

/// Order in which the cuts of a place are tried, as long as there is time: the simplest first, the others drawn.
pub(super) fn order(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order[2..].shuffle(&mut Pcg64Mcg::seed_from_u64(seed));
    order
}

/// A write of some sectors or pages in part.
fn tear(cuts: &mut Vec<Cut>, event: usize, size: usize, draws: &mut Pcg64Mcg) {
    for unit in [SECTOR, PAGE] {
        let units = size.div_ceil(unit);
        // A large write is torn at a few places.
        let places: Vec<usize> = match units {
            0..=16 => (1..units).collect(),
            _ => (0..16).map(|_| draws.random_range(1..units)).collect(),
        };
        for count in places {
            let from_end = draws.random();
            let with_later = draws.random();
            cuts.push(Cut::Torn { event, unit, count, from_end, with_later });
            cuts.push(Cut::Torn { event, unit, count, from_end: !from_end, with_later });
        }
    }
}

fn names(cuts: &mut Vec<Cut>, disk: &Disk, record: &Record, draws: &mut Pcg64Mcg) {
    let count = disk.pending.iter().filter(|number| is_name(record, **number)).count();
    let sets: Vec<u64> = match count {
        0 => Vec::new(),
        1..=NAMES_ALL => (0..1 << count).collect(),
        _ => (0..1 << NAMES_ALL).map(|_| draws.random()).collect(),
    };
    for bits in sets {
        cuts.extend([true, false].map(|has_data| Cut::Names { bits, has_data }));
    }
}

fn is_name(record: &Record, number: usize) -> bool {
    file_of(&record.events[number]).is_none()
}

fn changes_length(disk: &Disk, record: &Record, number: usize) -> bool {
    match &record.events[number] {
        Event::Write { .. } => disk.lengthening.contains_key(&number),
        Event::Resize { .. } | Event::Reserve { .. } => true,
        _ => false,
    }
}

impl Cut {
    /// The state that the cut leaves.
    pub(super) fn state(self, disk: &Disk, record: &Record) -> State {
        let mut lengths_seen = 0;
        let mut names_seen = 0;
        let kept = disk.pending.iter().enumerate().map(|(index, number)| {
            let is_length = changes_length(disk, record, *number);
            let is_name = is_name(record, *number);
            let places = (lengths_seen, names_seen);
            lengths_seen += usize::from(is_length);
            names_seen += usize::from(is_name);
            self.kept(index, record, *number, (is_length, is_name), places)
        });
        let kept: Vec<_> = kept.collect();
        disk.state(record, &disk.pending, &kept)
    }

    /// How much of one pending event is there.
    fn kept(
        self,
        index: usize,
        record: &Record,
        number: usize,
        (is_length, is_name): (bool, bool),
        (lengths_before, names_before): (usize, usize),
    ) -> Kept {
        let is_write = matches!(record.events[number], Event::Write { .. });
        let all_if = |is_there| if is_there { Kept::All } else { Kept::None };
        let bare = if is_write { Kept::Length } else { Kept::All };
        match self {
            Self::Prefix(count) => all_if(index < count),
            Self::Without(event) if is_write && is_length && index == event => Kept::Length,
            Self::Without(event) => all_if(index != event),
            Self::Alone(event) if index == event => Kept::All,
            Self::Alone(_) | Self::NoData => bare,
            Self::Torn { event, unit, count, from_end, with_later } => match index.cmp(&event) {
                std::cmp::Ordering::Less => Kept::All,
                std::cmp::Ordering::Greater => all_if(with_later),
                std::cmp::Ordering::Equal if from_end => Kept::Last { unit, count },
                std::cmp::Ordering::Equal => Kept::First { unit, count },
            },
            Self::Subset { seed } => all_if(super::disk::mix(seed, index as u64) & 1 == 1),
            Self::Units { unit, seed } if is_write => {
                Kept::Some { unit, seed: super::disk::mix(seed, index as u64) }
            }
            Self::Units { .. } => Kept::All,
            Self::Lengths(count) => all_if(!is_length || lengths_before < count),
            Self::Names { bits, has_data } => match is_name {
                true => all_if(bits >> (names_before % 64) & 1 == 1),
                false if has_data => Kept::All,
                false => Kept::None,
            },
        }
    }
}
