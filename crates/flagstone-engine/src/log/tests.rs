//! Facts about the log, each on simulated pages: the bytes programmed, the state after a cut, the
//! records read.

mod losses;
mod properties;

use flagstone_space::GroupId;

use super::fragment::{parse, write_header};
use super::reader::TailFragment;
use super::writer::Fragment;
use super::*;

/// Log pages in memory; erased bytes are 0xFF.
#[derive(Clone, Debug)]
struct Pages {
    geometry: LogGeometry,
    pages: Vec<Vec<u8>>,
    slots_used: u16,
}

/// The place of a fragment.
#[derive(Clone, Copy, Debug)]
struct Place {
    page: usize,
    slot: u16,
    slots: u16,
}

impl Pages {
    fn new(geometry: LogGeometry) -> Self {
        Self { geometry, pages: Vec::new(), slots_used: geometry.slots_per_page() }
    }

    fn slots_left(&self) -> u16 {
        self.geometry.slots_per_page() - self.slots_used
    }

    fn start_page(&mut self) {
        let size = self.geometry.slot_size() * usize::from(self.geometry.slots_per_page());
        self.pages.push(vec![0xFF; size]);
        self.slots_used = 0;
    }

    fn program(&mut self, fragment: &Fragment) -> Place {
        if fragment.slots > self.slots_left() {
            self.start_page();
        }
        assert!(fragment.slots <= self.slots_left(), "a fragment fits in a page");
        let slot_size = self.geometry.slot_size();
        assert_eq!(fragment.bytes.len(), usize::from(fragment.slots) * slot_size);
        let place =
            Place { page: self.pages.len() - 1, slot: self.slots_used, slots: fragment.slots };
        self.bytes_mut(place).copy_from_slice(&fragment.bytes);
        self.slots_used += fragment.slots;
        place
    }

    fn bytes_mut(&mut self, place: Place) -> &mut [u8] {
        let size = self.geometry.slot_size();
        let start = usize::from(place.slot) * size;
        &mut self.pages[place.page][start..start + usize::from(place.slots) * size]
    }

    fn tear(&mut self, place: Place) -> Vec<u8> {
        let bytes = self.bytes_mut(place);
        let whole = bytes.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle..].fill(0x5A);
        bytes[0] ^= 1;
        whole
    }

    fn flush(&mut self, writer: &mut LogWriter) -> Vec<Place> {
        let Some(flush) = writer.seal(self.geometry, self.slots_left()) else { return Vec::new() };
        let places = flush.fragments.iter().map(|fragment| self.program(fragment)).collect();
        assert_eq!(writer.completed(flush), writer.appended());
        places
    }

    fn read_from(&self, start: ReadStart, first_page: usize) -> Reading {
        self.read_with(start, Survivors::AnySubset, first_page)
    }

    fn read_with(&self, start: ReadStart, survivors: Survivors, first_page: usize) -> Reading {
        let mut reader = LogReader::new(self.geometry, start, survivors);
        let mut records = Vec::new();
        for (number, page) in self.pages.iter().enumerate().skip(first_page) {
            reader.feed(log_page(number, page));
            drain(&mut reader, &mut records);
        }
        let end = reader.finish();
        drain(&mut reader, &mut records);
        Reading { records, end, tail: reader.tail().cloned().collect() }
    }

    fn read(&self) -> Reading {
        self.read_from(ReadStart::Chain(ChainPoint::START), 0)
    }
}

/// A reader's result: LSNs with the deltas of their commits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reading {
    records: Vec<(Lsn, Vec<u8>)>,
    end: LogEnd,
    tail: Vec<TailFragment>,
}

/// A page of a log with this many pages per block.
fn log_page(number: usize, bytes: &[u8]) -> LogPage<'_> {
    let opens_block = number.is_multiple_of(PAGES_PER_BLOCK);
    LogPage { number: number as u64, opens_block, bytes }
}

const PAGES_PER_BLOCK: usize = 4;

fn drain(reader: &mut LogReader, records: &mut Vec<(Lsn, Vec<u8>)>) {
    while let Some(next) = reader.next_record() {
        let (lsn, record) = next.expect("the checksum holds, so the record decodes");
        let Record::Commit { changes, .. } = record else {
            panic!("only commits are written here")
        };
        records.push((lsn, changes.to_vec()));
    }
}

fn commit(writer: &mut LogWriter, changes: &[u8]) -> Lsn {
    writer.append(&Record::Commit {
        group: GroupId::NONE,
        changes,
        runs: Items::default(),
        dropped: Items::default(),
    })
}

fn geometry(slot_size: usize, slots_per_page: u16) -> LogGeometry {
    LogGeometry::new(slot_size, slots_per_page).expect("a sensible geometry")
}

fn writer() -> LogWriter {
    LogWriter::new(1, ChainPoint::START, Lsn::ZERO).expect("a new log")
}

fn next_epoch(epoch: u32, end: &LogEnd) -> LogWriter {
    LogWriter::new(epoch, end.chain, end.last_lsn).expect("a later epoch")
}

fn values(reading: &Reading) -> Vec<&[u8]> {
    reading.records.iter().map(|(_, delta)| delta.as_slice()).collect()
}

#[test]
fn a_small_commit_takes_one_slot() {
    let mut pages = Pages::new(geometry(512, 4));
    let mut writer = writer();
    for number in 0..6_u8 {
        commit(&mut writer, &[number; 100]);
        let places = pages.flush(&mut writer);
        assert_eq!((places.len(), places[0].slots), (1, 1));
    }
    assert_eq!(pages.pages.len(), 2);
    assert_eq!(pages.read().records.len(), 6);
}

#[test]
fn a_fragment_fills_the_rest_of_a_page_and_goes_on_in_the_next() {
    let mut pages = Pages::new(geometry(512, 4));
    let mut writer = writer();
    commit(&mut writer, &[1; 600]);
    assert_eq!(pages.flush(&mut writer).len(), 1);
    commit(&mut writer, &[2; 6500]);
    assert_eq!(writer.pending_fragments(pages.geometry, pages.slots_left()), 4);
    let slots: Vec<u16> = pages.flush(&mut writer).iter().map(|place| place.slots).collect();
    assert_eq!(slots, [2, 4, 4, 3]);
    assert_eq!(values(&pages.read()), [&[1; 600][..], &[2; 6500][..]]);
}

#[test]
fn a_flush_starts_a_page_when_the_rest_of_the_last_one_would_cost_a_program() {
    let mut pages = Pages::new(geometry(512, 4));
    let mut writer = writer();
    let mut flush = |size: usize| -> Vec<(usize, u16, u16)> {
        commit(&mut writer, &vec![1; size]);
        let places = pages.flush(&mut writer);
        places.iter().map(|place| (place.page, place.slot, place.slots)).collect()
    };
    assert_eq!(flush(1200), [(0, 0, 3)]);
    assert_eq!(flush(700), [(1, 0, 2)], "one program, and a slot of page 0 stays free");
    assert_eq!(flush(700), [(1, 2, 2)], "what fits goes on in the page");
    assert_eq!(flush(1200), [(2, 0, 3)]);
    assert_eq!(flush(2300), [(2, 3, 1), (3, 0, 4)], "two programs either way");
    assert_eq!(pages.read().records.len(), 5);
}

#[test]
fn commits_during_a_flush_gather_for_the_next() {
    let geometry = geometry(512, 4);
    let mut writer = writer();
    let first = commit(&mut writer, b"first");
    let flush = writer.seal(geometry, 0).expect("one record is pending");
    let second = commit(&mut writer, b"second");
    assert!(writer.seal(geometry, 3).is_none(), "one flush at a time");
    assert_eq!(writer.durable(), Lsn::ZERO);
    assert_eq!(writer.completed(flush), first);
    let flush = writer.seal(geometry, 3).expect("the second is pending");
    assert_eq!(writer.completed(flush), second);
    assert!(writer.seal(geometry, 2).is_none(), "nothing is pending");
}

#[test]
fn a_record_is_durable_with_its_last_byte() {
    let mut writer = writer();
    let first = commit(&mut writer, &[1; 100]);
    let second = commit(&mut writer, &[2; 900]);
    let flush = writer.seal(geometry(512, 1), 0).expect("two records are pending");
    let upto: Vec<Lsn> = flush.fragments.iter().map(|fragment| fragment.upto).collect();
    assert_eq!(upto, [first, first, second]);
}

fn all_records(pages: &Pages) -> Vec<Lsn> {
    let start = ReadStart::Chain(ChainPoint::START);
    let mut reader = LogReader::new(pages.geometry, start, Survivors::Prefix);
    let mut lsns = Vec::new();
    for (number, page) in pages.pages.iter().enumerate() {
        reader.feed(log_page(number, page));
        while let Some(next) = reader.next_record() {
            lsns.push(next.expect("the checksum holds").0);
        }
    }
    assert_eq!(reader.finish().fault, None);
    while let Some(next) = reader.next_record() {
        lsns.push(next.expect("the checksum holds").0);
    }
    lsns
}

/// Goal (D3): a marker torn by a cut and the marker that a later restart writes are the same
/// fragment.
#[test]
fn an_epoch_begins_with_a_flush_of_its_marker_alone() {
    let mut fragments = Vec::new();
    for value in [b"lost", b"kept"] {
        let mut pages = Pages::new(geometry(256, 2));
        let mut writer = writer();
        writer.open();
        let lsn = commit(&mut writer, value);
        let marker = writer.seal(pages.geometry, 0).expect("two records are pending");
        assert_eq!((marker.fragments.len(), marker.upto), (1, self::lsn(1, 1)));
        fragments.push(marker.fragments[0].clone());
        pages.program(&marker.fragments[0]);
        writer.completed(marker);
        pages.flush(&mut writer);
        assert_eq!((writer.durable(), all_records(&pages)), (lsn, vec![self::lsn(1, 1), lsn]));
    }
    assert_eq!(fragments[0], fragments[1]);
}

#[test]
fn an_epoch_ends_before_its_counters_run_out() {
    let mut pages = Pages::new(geometry(256, 2));
    let mut writer = writer();
    writer.open();
    let mut written = vec![writer.appended()];
    writer.skip((1 << 32) - 5);
    for number in 0..6_u8 {
        let epoch = writer.epoch();
        writer.open();
        written.extend((number == 3).then(|| writer.appended()));
        written.push(commit(&mut writer, &[number; 20]));
        assert_eq!(u32::from(number > 2) + 1, epoch);
        while number > 1
            && let Some(flush) = writer.seal(pages.geometry, pages.slots_left())
        {
            for fragment in &flush.fragments {
                pages.program(fragment);
            }
            writer.completed(flush);
        }
    }
    assert!(written.is_sorted_by(|a, b| a < b), "{written:?}");
    assert_eq!(all_records(&pages), written);
    assert_eq!(writer.durable(), *written.last().expect("records were written"));
}

#[test]
fn the_tail_is_the_last_flush_and_the_last_page() {
    let mut pages = Pages::new(geometry(256, 4));
    let mut writer = writer();
    for number in 0..6_u8 {
        commit(&mut writer, &[number; 10]);
        pages.flush(&mut writer);
    }
    let settled = |reading: &Reading| {
        let before = |(lsn, _): &&(Lsn, Vec<u8>)| *lsn <= reading.end.settled_lsn;
        reading.records.iter().take_while(before).count()
    };
    let places = |reading: &Reading| -> Vec<(u64, u16)> {
        reading.tail.iter().map(|tail| (tail.page, tail.slot)).collect()
    };
    let reading = pages.read();
    assert_eq!(places(&reading), [(1, 0), (1, 1)]);
    assert_eq!(settled(&reading), 4, "two records stand in the tail");
    commit(&mut writer, &[9; 1000]);
    pages.flush(&mut writer);
    let reading = pages.read();
    assert_eq!(places(&reading), [(1, 2), (2, 0)]);
    assert_eq!(settled(&reading), 6, "the last one begins in the tail");
}

#[test]
fn copies_of_the_tail_stand_in_for_pages_that_fail_later() {
    let mut pages = Pages::new(geometry(256, 4));
    let mut first = writer();
    for number in 0..3_u8 {
        commit(&mut first, &[number; 300]);
        pages.flush(&mut first);
    }
    let before = pages.read();
    let original = pages.pages.len() - 1;
    pages.start_page();
    for copy in &before.tail {
        let slots = (copy.bytes.len() / 256) as u16;
        pages.program(&Fragment { bytes: copy.bytes.clone(), slots, upto: Lsn::ZERO });
    }
    let mut second = next_epoch(2, &pages.read().end);
    commit(&mut second, b"after");
    pages.flush(&mut second);
    pages.pages[original].fill(0);
    let reading = pages.read();
    assert_eq!(reading.records.len(), 4);
    assert_eq!(reading.end.fault, None);
}

#[test]
fn reading_starts_at_a_checkpointed_position() {
    let mut pages = Pages::new(geometry(256, 2));
    let mut writer = writer();
    for number in 0..5_u8 {
        commit(&mut writer, &[number; 700]);
        pages.flush(&mut writer);
    }
    let (start, page) = (writer.chain(), pages.pages.len() - 1);
    commit(&mut writer, b"after");
    pages.flush(&mut writer);
    let reading = pages.read_from(ReadStart::Chain(start), page);
    assert_eq!(values(&reading), [b"after"]);
    // Nothing before the position is read.
    assert_eq!(reading.end, LogEnd { settled_lsn: Lsn::ZERO, ..pages.read().end });
}

#[test]
fn a_start_in_mid_stream_finds_the_first_record_boundary() {
    let mut pages = Pages::new(geometry(256, 2));
    let mut writer = writer();
    for number in 0..5_u8 {
        commit(&mut writer, &[number; 1200]);
    }
    pages.flush(&mut writer);
    let all = pages.read().records;
    for first_page in 0..pages.pages.len() {
        let reading = pages.read_from(ReadStart::Anywhere, first_page);
        assert!(all.ends_with(&reading.records), "from page {first_page}");
        assert_eq!(reading.end.fault, None);
    }
}

#[test]
fn a_stale_page_of_an_older_use_is_skipped() {
    let mut pages = Pages::new(geometry(256, 1));
    let mut writer = writer();
    for number in 0..4_u8 {
        commit(&mut writer, &[number; 10]);
        pages.flush(&mut writer);
    }
    let stale = pages.pages[1].clone();
    pages.pages.insert(3, stale.clone());
    pages.pages.push(stale);
    assert_eq!(pages.read().records.len(), 4);
    assert_eq!(pages.read().end.fault, None);
}

#[test]
fn a_torn_fragment_does_not_let_its_content_pose_as_one() {
    let mut pages = Pages::new(geometry(256, 4));
    let mut writer = writer();
    commit(&mut writer, b"kept");
    pages.flush(&mut writer);
    pages.start_page();
    let mut forged_writer = LogWriter::new(1, ChainPoint::START, Lsn::ZERO).expect("a new log");
    commit(&mut forged_writer, b"forged");
    let forged = forged_writer.seal(pages.geometry, 0).expect("pending").fragments.remove(0).bytes;
    pages.slots_used = 1;
    let place = pages.program(&Fragment { bytes: forged, slots: 1, upto: Lsn::ZERO });
    let predecessor = writer.chain().predecessor;
    forge(&mut pages, place, |header| (header.sequence, header.predecessor) = (1, predecessor));
    assert_eq!(values(&pages.read()), [b"kept"]);
}

/// Rewrites a header in place, with the right checksum.
fn forge(pages: &mut Pages, place: Place, change: impl Fn(&mut fragment::Header)) {
    let bytes = pages.bytes_mut(place);
    let mut header = parse(bytes).expect("a fragment").header;
    change(&mut header);
    write_header(bytes, &header);
}

#[test]
fn a_fragment_needs_its_very_predecessor_and_its_place_in_the_flush() {
    let mut pages = Pages::new(geometry(256, 1));
    let mut writer = writer();
    commit(&mut writer, b"kept");
    pages.flush(&mut writer);
    commit(&mut writer, b"refused");
    let place = pages.flush(&mut writer)[0];
    let changes: [fn(&mut fragment::Header); 4] = [
        |header| header.predecessor ^= 1,
        |header| header.sequence += 1,
        |header| header.epoch -= 1,
        |header| header.flush_index = 2,
    ];
    for change in changes {
        let mut forged = pages.clone();
        forge(&mut forged, place, change);
        assert_eq!(values(&forged.read()), [b"kept"]);
    }
    assert_eq!(pages.read().records.len(), 2);
}

#[test]
fn an_epoch_is_used_once() {
    let end = ChainPoint { next_sequence: 4, epoch: 3, predecessor: 9 };
    let refused = LogWriter::new(3, end, Lsn::ZERO).expect_err("the chain has seen it");
    assert_eq!(refused, LogError::StaleEpoch { epoch: 3, last: 3 });
    let refused = LogWriter::new(EPOCH_MAX + 1, end, Lsn::ZERO).expect_err("no LSN holds it");
    assert_eq!(refused, LogError::EpochRange { epoch: EPOCH_MAX + 1 });
}

#[test]
fn geometries_without_room_are_refused() {
    assert_eq!(LogGeometry::new(HEADER_SIZE, 4), None);
    assert_eq!(LogGeometry::new(512, 0), None);
    assert_eq!(LogGeometry::new(1 << 20, 16), None);
}

/// A log of several flushes: place of each fragment, and pending records of its flush.
struct Written {
    pages: Pages,
    records: Vec<(Lsn, Vec<u8>)>,
    flushes: Vec<(Vec<Place>, usize)>,
}

fn write(geometry: LogGeometry, flushes: &[Vec<usize>]) -> Written {
    let mut pages = Pages::new(geometry);
    let mut writer = writer();
    let mut records = Vec::new();
    let mut done = Vec::new();
    for sizes in flushes {
        for size in sizes {
            let value = vec![records.len() as u8; *size];
            records.push((commit(&mut writer, &value), value));
        }
        done.push((pages.flush(&mut writer), records.len()));
    }
    Written { pages, records, flushes: done }
}

#[test]
fn every_truncation_leaves_a_prefix_of_whole_flushes_and_more() {
    let written =
        write(geometry(128, 4), &[vec![5, 300, 40], vec![700], vec![1, 2, 3], vec![90, 800]]);
    let slot_count = written.pages.pages.len() * 4;
    for cut in 0..=slot_count {
        let mut pages = written.pages.clone();
        for slot in cut..slot_count {
            pages.bytes_mut(Place { page: slot / 4, slot: (slot % 4) as u16, slots: 1 }).fill(0xFF);
        }
        let reading = pages.read();
        let inside = |place: &Place| place.page * 4 + usize::from(place.slot + place.slots) <= cut;
        let whole = written.flushes.iter().filter(|(places, _)| places.iter().all(inside));
        let least = whole.map(|(_, count)| *count).max().unwrap_or(0);
        assert!(written.records.starts_with(&reading.records), "cut {cut}");
        assert!(reading.records.len() >= least, "cut {cut}");
        assert_eq!(reading.end.fault, None, "cut {cut}");
    }
}

/// Goal: a damaged byte never gives a wrong record, and is noticed unless a cut explains it.
#[test]
fn every_damaged_byte_gives_a_prefix_and_a_fault_unless_it_is_at_the_end() {
    let written = write(geometry(128, 2), &[vec![5, 30], vec![300], vec![1, 2], vec![200]]);
    let (last_places, _) = &written.flushes[3];
    for page in 0..written.pages.pages.len() {
        for offset in 0..256 {
            let mut pages = written.pages.clone();
            pages.pages[page][offset] ^= 0x10;
            let reading = pages.read();
            assert!(written.records.starts_with(&reading.records), "page {page} offset {offset}");
            let is_complete = reading.records.len() == written.records.len();
            let slot = (offset / 128) as u16;
            let in_last = last_places.iter().any(|place| {
                place.page == page && place.slot <= slot && slot < place.slot + place.slots
            });
            let noticed = reading.end.fault.is_some();
            assert!(is_complete || in_last || noticed, "page {page} offset {offset}");
            assert!(!(noticed && (in_last || is_complete)), "page {page} offset {offset}");
        }
    }
}
