//! Properties of the log over arbitrary records, geometries, restarts and bytes.

use flagstone_space::LogicalPage;
use proptest::prelude::*;

use super::*;

fn any_geometry() -> impl Strategy<Value = LogGeometry> {
    (40_usize..700, 1_u16..6)
        .prop_filter_map("too small", |(size, count)| LogGeometry::new(size, count))
}

fn any_flushes() -> impl Strategy<Value = Vec<Vec<usize>>> {
    let size = prop_oneof![4 => 0_usize..60, 2 => 60_usize..600, 1 => 600_usize..3000];
    prop::collection::vec(prop::collection::vec(size, 1..6), 1..8)
}

type Value<'a> = &'a [u8];

fn round_trip(record: Record<'_>) -> Result<(), TestCaseError> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    prop_assert_eq!(Record::decode(&bytes), Ok(record));
    for end in 0..bytes.len() {
        let _ = Record::decode(&bytes[..end]);
    }
    Ok(())
}

/// The elements whose bit in `mask` is set.
fn masked<T>(all: &[T], mask: u64) -> impl Iterator<Item = &T> {
    all.iter().enumerate().filter(move |(bit, _)| mask >> (bit % 64) & 1 == 1).map(|(_, one)| one)
}

fn walk<'a, T: Item<'a>>(items: Items<'a, T>) -> Result<Vec<T>, RecordFault> {
    items.iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_written_is_read(geometry in any_geometry(), flushes in any_flushes()) {
        let written = write(geometry, &flushes);
        let reading = written.pages.read();
        prop_assert_eq!(&reading.records, &written.records);
        prop_assert_eq!(reading.end.fault, None);
        prop_assert_eq!(reading.end.last_page, Some(written.pages.pages.len() as u64 - 1));
    }

    /// Goal: durable records survive restarts, whichever part of the flush in flight reached flash,
    /// and dead records never return although their fragments are readable again later.
    #[test]
    fn restarts_keep_what_was_durable(
        geometry in any_geometry(),
        epochs in prop::collection::vec((any_flushes(), any::<u64>(), any::<u64>()), 1..5),
    ) {
        let mut pages = Pages::new(geometry);
        let mut expected: Vec<(Lsn, Vec<u8>)> = Vec::new();
        let mut unstable = Vec::new();
        let mut end = pages.read().end;
        let mut epoch = 0;
        for (flushes, torn_mask, return_mask) in &epochs {
            epoch += 1;
            let mut writer = next_epoch(epoch, &end);
            pages.slots_used = geometry.slots_per_page();
            let mut last = Vec::new();
            for sizes in flushes {
                for size in sizes {
                    let value = vec![expected.len() as u8; *size];
                    expected.push((commit(&mut writer, &value), value));
                }
                last = pages.flush(&mut writer);
            }
            let durable_count = expected.len() - flushes.last().map_or(0, Vec::len);
            for place in masked(&last, *torn_mask) {
                unstable.push((*place, pages.tear(*place)));
            }
            let reading = pages.read();
            prop_assert_eq!(reading.end.fault, None);
            prop_assert!(expected.starts_with(&reading.records));
            prop_assert!(reading.records.len() >= durable_count);
            expected = reading.records;

            epoch += 1;
            let mut marker = next_epoch(epoch, &reading.end);
            pages.slots_used = geometry.slots_per_page();
            expected.push((commit(&mut marker, b"restart"), b"restart".to_vec()));
            pages.flush(&mut marker);
            for (place, bytes) in masked(&unstable, *return_mask) {
                pages.bytes_mut(*place).copy_from_slice(bytes);
            }
            let reading = pages.read();
            prop_assert_eq!(reading.end.fault, None);
            prop_assert_eq!(&reading.records, &expected);
            end = reading.end;
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(
        geometry in any_geometry(),
        pages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 0..5),
    ) {
        for start in [ReadStart::Anywhere, ReadStart::Chain(ChainPoint::START)] {
            let mut reader = LogReader::new(geometry, start, Survivors::Prefix);
            for (number, page) in pages.iter().enumerate() {
                reader.feed(log_page(number, page));
                while reader.next_record().is_some() {}
            }
            reader.finish();
        }
    }

    /// Method: fragments whose payload and header fields are mutated and whose checksums are right.
    #[test]
    fn forged_fragments_are_read_without_a_panic(
        flushes in any_flushes(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..200, any::<u8>()), 1..6),
        start_anywhere in any::<bool>(),
    ) {
        let mut written = write(geometry(128, 2), &flushes);
        let places: Vec<Place> = written.flushes.iter().flat_map(|(places, _)| places.clone()).collect();
        for (index, offset, byte) in changes {
            let bytes = written.pages.bytes_mut(*index.get(&places));
            let Some(mut header) = parse(bytes).map(|parsed| parsed.header) else { continue };
            match offset {
                0 => header.flush_index = u32::from(byte),
                1 => header.first_record = Some(u32::from(byte) % header.payload_size.max(1)),
                2 => header.epoch = u32::from(byte),
                3 => header.sequence = u64::from(byte),
                4 => header.sequence = u64::MAX,
                5 => header.first_record = None,
                _ => {
                    let at = HEADER_SIZE + offset % header.payload_size.max(1) as usize;
                    bytes[at] = byte;
                }
            }
            write_header(bytes, &header);
        }
        let start = if start_anywhere { ReadStart::Anywhere } else { ReadStart::Chain(ChainPoint::START) };
        let mut reader = LogReader::new(written.pages.geometry, start, Survivors::Prefix);
        for (number, page) in written.pages.pages.iter().enumerate() {
            reader.feed(log_page(number, page));
            while let Some(next) = reader.next_record() {
                if let Ok((_, Record::Commit { runs, .. })) = next {
                    let _ = walk(runs);
                }
            }
        }
        reader.finish();
    }

    #[test]
    fn any_bytes_are_decoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0_u8..13) {
        let bytes = [&[kind], bytes.as_slice()].concat();
        if let Ok(Record::Install(i)) = Record::decode(&bytes) {
            let _ = (walk(i.puts), walk(i.deletes), walk(i.trims));
        }
    }

    #[test]
    fn commits_round_trip(
        group in prop_oneof![Just(0), any::<u64>()],
        changes in prop::collection::vec(any::<u8>(), 0..90),
        runs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..4),
    ) {
        let mut run_buf = ItemBuf::default();
        runs.iter().for_each(|run| run_buf.push(Blob(run)));
        prop_assert_eq!(walk(run_buf.items::<Blob<'_>>()).expect("decodes").len(), runs.len());
        round_trip(Record::Commit {
            group: GroupId(group),
            changes: &changes,
            runs: run_buf.items(),
            dropped: run_buf.items(),
        })?;
    }

    #[test]
    fn structure_records_round_trip(
        numbers in any::<(u64, u32, u8, u32)>(),
        keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..6),
    ) {
        let (mut puts, mut deletes, mut trims) = (ItemBuf::default(), ItemBuf::default(), ItemBuf::default());
        for key in &keys {
            puts.push(Separator { key, child: LogicalPage(numbers.3) });
            deletes.push(Blob(key));
            trims.push(LogicalPage(numbers.1));
        }
        round_trip(Record::Install(Install {
            group: GroupId(numbers.0),
            tree: numbers.1,
            level: numbers.2,
            puts: puts.items(),
            deletes: deletes.items(),
            trims: trims.items(),
            dropped: deletes.items(),
        }))?;
        let walked = walk(puts.items::<Separator<'_>>()).expect("decodes");
        let walked: Vec<Value<'_>> = walked.iter().map(|separator| separator.key).collect();
        prop_assert_eq!(walked, keys);
    }

    #[test]
    fn copies_and_openings_round_trip(
        numbers in any::<(u32, u32)>(),
        at in (0..=EPOCH_MAX, any::<u32>()),
    ) {
        let (cycle, tree) = numbers;
        let newest = lsn(at.0, u64::from(at.1));
        round_trip(Record::Copy { cycle, tree, newest, changes: b"changes" })?;
        round_trip(Record::Open { epoch: cycle })?;
    }
}
