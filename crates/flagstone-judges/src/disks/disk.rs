//! The disk at one place of a record: its durable content, and the pending events that may be there or not.
//!
//! - **D1** Data that no sync covers may be there or not, sector by sector, in any order.
//! - **D2** Lengths and names change in order, as journals keep it: a prefix of the changes of one file's length is
//!   there, and a prefix of the changes of names. Any single name may be missing, too, as on file systems without a
//!   journal.
//! - **D3** A file that grows without its data reads as zeros. A rename is there as a whole or not at all.

use std::collections::{BTreeMap, HashMap};

use super::record::{Event, FileNumber, Record};

/// Unit that a power cut leaves whole, in bytes.
pub(super) const SECTOR: usize = 512;

/// The durable content of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    /// Whole sectors; zeros behind the length.
    pub(super) bytes: Vec<u8>,
    pub(super) size: u64,
    pub(super) hash: u64,
}

/// Source of the bytes of a sector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sector {
    Zero,
    Here(Box<[u8; SECTOR]>),
}

/// Differences from the durable image of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Overlay {
    pub(super) sectors: BTreeMap<u64, Sector>,
    pub(super) size: u64,
}

/// How much of a pending event is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    All,
    None,
    /// The length that a write gives the file, and no data.
    Length,
    /// The first units, or the last.
    First {
        unit: usize,
        count: usize,
    },
    Last {
        unit: usize,
        count: usize,
    },
    /// Each unit by the toss of a coin.
    Some {
        unit: usize,
        seed: u64,
    },
}

/// The disk at one place of a record.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) files: HashMap<FileNumber, Image>,
    pub(super) names: BTreeMap<String, FileNumber>,
    /// Events that no sync covers, in order.
    pub(super) pending: Vec<usize>,
    /// The event behind which each call had returned.
    ended: HashMap<usize, usize>,
    /// Lengths with all pending events.
    sizes: HashMap<FileNumber, u64>,
    /// Pending writes that made their file longer.
    pub(super) lengthening: HashMap<usize, u64>,
}

/// A state that a cut can leave.
#[derive(Debug)]
pub(super) struct State {
    pub(super) names: BTreeMap<String, FileNumber>,
    pub(super) overlays: HashMap<FileNumber, Overlay>,
}

impl Disk {
    /// Takes in the next event; a sync makes the events it covers durable. Gives the files whose durable bytes
    /// changed.
    pub(super) fn advance(&mut self, record: &Record, number: usize) -> Vec<FileNumber> {
        match &record.events[number] {
            Event::Nothing | Event::Mark(_) => {}
            Event::Standing { name, file, bytes } => {
                let mut overlay = Overlay { sectors: BTreeMap::new(), size: bytes.len() as u64 };
                let mut image = Image::default();
                Place { image: None, overlay: &mut overlay }.put(0, bytes);
                image.take(overlay);
                self.sizes.insert(*file, image.size);
                self.files.insert(*file, image);
                self.names.insert(name.clone(), *file);
            }
            Event::Ended { event } => drop(self.ended.insert(*event as usize, number)),
            Event::Synced { file, begun } => {
                let file = *file;
                return self.settle(record, *begun, |event| file_of(event) == Some(file));
            }
            Event::NamesSynced { begun } => {
                return self.settle(record, *begun, |event| file_of(event).is_none());
            }
            event => {
                self.note_size(number, event);
                self.pending.push(number);
            }
        }
        Vec::new()
    }

    fn note_size(&mut self, number: usize, event: &Event) {
        let (Some(file), Some(end)) = (file_of(event), end_of(event)) else { return };
        let size = self.sizes.entry(file).or_default();
        match event {
            Event::Resize { .. } => *size = end,
            _ if end <= *size => {}
            Event::Write { .. } => {
                *size = end;
                self.lengthening.insert(number, end);
            }
            _ => *size = end,
        }
    }

    /// Makes the events that a sync covers durable.
    fn settle(
        &mut self,
        record: &Record,
        begun: u64,
        is_meant: impl Fn(&Event) -> bool,
    ) -> Vec<FileNumber> {
        let pending = std::mem::take(&mut self.pending);
        let (mut covered, mut left) = (Vec::new(), Vec::new());
        for number in pending {
            let event = &record.events[number];
            let ended = match file_of(event) {
                Some(_) => self.ended.get(&number).copied(),
                None => Some(number),
            };
            let is_covered = is_meant(event) && ended.is_some_and(|ended| (ended as u64) < begun);
            if is_covered { covered.push(number) } else { left.push(number) }
        }
        self.pending = left;
        let state = self.state(record, &covered, &vec![Kept::All; covered.len()]);
        for number in covered {
            self.ended.remove(&number);
            self.lengthening.remove(&number);
        }
        self.names = state.names;
        let files = state.overlays.into_iter().map(|(file, overlay)| {
            self.files.entry(file).or_default().take(overlay);
            file
        });
        files.collect()
    }

    /// The state that has, of each of the events `numbers`, the part that `kept` names.
    pub(super) fn state(&self, record: &Record, numbers: &[usize], kept: &[Kept]) -> State {
        let mut state = State { names: self.names.clone(), overlays: HashMap::new() };
        // These files have no more changes of length (D2).
        let mut cut_short = Vec::new();
        for (number, kept) in numbers.iter().zip(kept) {
            let event = &record.events[*number];
            let Some(file) = file_of(event) else {
                if *kept != Kept::None {
                    change_names(&mut state.names, event);
                }
                continue;
            };
            let image = self.files.get(&file);
            let overlay = state.overlays.entry(file).or_insert_with(|| Overlay {
                sectors: BTreeMap::new(),
                size: image.map_or(0, |image| image.size),
            });
            let mut place = Place { image, overlay };
            match event {
                Event::Write { offset, bytes, .. } => {
                    place.write(*offset, bytes, *kept);
                    if let Some(end) = self.lengthening.get(number) {
                        let is_there = !matches!(kept, Kept::None) && !cut_short.contains(&file);
                        match is_there {
                            true => place.overlay.size = place.overlay.size.max(*end),
                            false => cut_short.push(file),
                        }
                    }
                }
                Event::Punch { offset, size, .. } if *kept != Kept::None => {
                    place.zero(*offset, offset + size);
                }
                Event::Resize { size, .. } | Event::Reserve { size, .. } => {
                    if *kept == Kept::None || cut_short.contains(&file) {
                        cut_short.push(file);
                    } else if matches!(event, Event::Resize { .. }) {
                        place.resize(*size);
                    } else {
                        place.overlay.size = place.overlay.size.max(*size);
                    }
                }
                _ => {}
            }
        }
        state
    }

    /// A hash of the contents of a state: of all files that have names.
    pub(super) fn hash(&self, state: &State) -> u64 {
        state.names.iter().fold(0, |hash, (name, file)| {
            let image = self.files.get(file);
            let overlay = state.overlays.get(file);
            let size = overlay.map_or(image.map_or(0, |image| image.size), |overlay| overlay.size);
            let mut content = image.map_or(0, |image| image.hash);
            for (index, sector) in overlay.iter().flat_map(|overlay| &overlay.sectors) {
                let old = image.map_or(&[][..], |image| image.sector(*index));
                content ^= sector_hash(*index, old) ^ sector_hash(*index, sector.bytes());
            }
            let name = name.bytes().fold(0, |hash, byte| mix(hash, u64::from(byte)));
            mix(mix(mix(hash, name), size), content)
        })
    }
}

impl Image {
    pub(super) fn sector(&self, index: u64) -> &[u8] {
        let at = index as usize * SECTOR;
        self.bytes.get(at..at + SECTOR).unwrap_or_default()
    }

    fn take(&mut self, overlay: Overlay) {
        let sectors = overlay.size.div_ceil(SECTOR as u64) as usize;
        if self.bytes.len() < sectors * SECTOR {
            self.bytes.resize(sectors * SECTOR, 0);
        }
        for (index, sector) in overlay.sectors {
            let at = index as usize * SECTOR;
            if at >= self.bytes.len() {
                continue;
            }
            let old = sector_hash(index, self.sector(index));
            self.hash ^= old ^ sector_hash(index, sector.bytes());
            match &sector {
                Sector::Zero => self.bytes[at..at + SECTOR].fill(0),
                Sector::Here(bytes) => self.bytes[at..at + SECTOR].copy_from_slice(&bytes[..]),
            }
        }
        self.size = overlay.size;
    }
}

impl Sector {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Zero => &[0; SECTOR],
            Self::Here(bytes) => &bytes[..],
        }
    }
}

/// A file while a state is made.
struct Place<'a> {
    image: Option<&'a Image>,
    overlay: &'a mut Overlay,
}

impl Place<'_> {
    fn write(&mut self, offset: u64, bytes: &[u8], kept: Kept) {
        let size = bytes.len();
        match kept {
            Kept::All => self.put(offset, bytes),
            Kept::None | Kept::Length => {}
            Kept::First { unit, count } => self.put(offset, &bytes[..(unit * count).min(size)]),
            Kept::Last { unit, count } => {
                let from = size.saturating_sub(unit * count);
                self.put(offset + from as u64, &bytes[from..]);
            }
            Kept::Some { unit, seed } => {
                for (index, part) in bytes.chunks(unit).enumerate() {
                    if mix(seed, index as u64) & 1 == 1 {
                        self.put(offset + (index * unit) as u64, part);
                    }
                }
            }
        }
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (index, within) = (at / SECTOR as u64, (at % SECTOR as u64) as usize);
            let count = (SECTOR - within).min(bytes.len() - done);
            let source = &bytes[done..done + count];
            if count == SECTOR && source.iter().all(|byte| *byte == 0) {
                self.overlay.sectors.insert(index, Sector::Zero);
            } else {
                self.sector(index)[within..within + count].copy_from_slice(source);
            }
            done += count;
        }
    }

    /// A sector of the overlay, to be written.
    fn sector(&mut self, index: u64) -> &mut [u8; SECTOR] {
        let old = || {
            let mut bytes = [0; SECTOR];
            if let Some(found) = self.image.map(|image| image.sector(index)) {
                bytes[..found.len()].copy_from_slice(found);
            }
            Sector::Here(Box::new(bytes))
        };
        let sector = self.overlay.sectors.entry(index).or_insert_with(old);
        if *sector == Sector::Zero {
            *sector = Sector::Here(Box::new([0; SECTOR]));
        }
        match sector {
            Sector::Here(bytes) => bytes,
            Sector::Zero => unreachable!("replaced above"),
        }
    }

    fn zero(&mut self, from: u64, to: u64) {
        let unit = SECTOR as u64;
        let (first, last) = (from.next_multiple_of(unit), to - to % unit);
        if first >= last {
            return self.put(from, &vec![0; (to - from) as usize]);
        }
        self.put(from, &vec![0; (first - from) as usize]);
        for index in first / unit..last / unit {
            self.overlay.sectors.insert(index, Sector::Zero);
        }
        self.put(last, &vec![0; (to - last) as usize]);
    }

    fn resize(&mut self, size: u64) {
        let written = self.overlay.sectors.keys().next_back().map_or(0, |last| last + 1);
        let image = self.image.map_or(0, |image| image.bytes.len() as u64);
        let end = image.max(written * SECTOR as u64);
        if size < end {
            self.zero(size, end);
        }
        self.overlay.size = size;
    }
}

fn change_names(names: &mut BTreeMap<String, FileNumber>, event: &Event) {
    match event {
        Event::Link { name, file } => drop(names.insert(name.clone(), *file)),
        Event::Unlink { name } => drop(names.remove(name)),
        Event::Rename { from, to } => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        _ => {}
    }
}

/// File that an event concerns; none for names.
pub(super) fn file_of(event: &Event) -> Option<FileNumber> {
    match event {
        Event::Write { file, .. }
        | Event::Resize { file, .. }
        | Event::Reserve { file, .. }
        | Event::Punch { file, .. } => Some(*file),
        _ => None,
    }
}

fn end_of(event: &Event) -> Option<u64> {
    match event {
        Event::Write { offset, bytes, .. } => Some(offset + bytes.len() as u64),
        Event::Resize { size, .. } | Event::Reserve { size, .. } => Some(*size),
        _ => None,
    }
}

/// Hash of one sector at its place; 0 for zeros.
fn sector_hash(index: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    let (hash, any) = words.fold((index, 0), |(hash, any), word| (mix(hash, word), any | word));
    if any == 0 { 0 } else { hash }
}

/// Mixes a number into a hash.
pub(super) fn mix(hash: u64, number: u64) -> u64 {
    let product =
        u128::from(hash ^ 0x9E37_79B9_7F4A_7C15) * u128::from(number ^ 0xD6E8_FEB8_6659_FD93);
    (product as u64 ^ (product >> 64) as u64).wrapping_add(hash.rotate_left(17))
}
