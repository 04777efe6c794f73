//! Backups that no writer of this crate made: right checksums around wrong entries.

use super::*;

/// A backup with right frames around `entries`.
fn forged(entries: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = FrameWriter::begin(&mut bytes).expect("memory can be written");
    entries.iter().for_each(|entry| writer.write(entry).expect("memory can be written"));
    writer.finish().expect("memory can be written");
    bytes
}

fn end(tables: u64, rows: u64, bytes: u64) -> Vec<u8> {
    let mut end = vec![ENTRY_END];
    [tables, rows, bytes].iter().for_each(|number| end.extend(number.to_le_bytes()));
    end
}

/// The check that refuses the entries.
#[track_caller]
fn check_of(entries: &[&[u8]]) -> &'static str {
    match verify_backup(forged(entries).as_slice()) {
        Err(BackupError::Damaged { check, .. }) => check,
        other => panic!("{other:?}"),
    }
}

const TABLE: &[u8] = b"\x01\x01\0\0\0t";
const ROW: &[u8] = b"\x02\x01\0\0\0k\x02\0\0\0\0\0\0\0vv";

#[test]
fn entries_that_contradict_each_other_are_refused() {
    assert!(verify_backup(forged(&[TABLE, ROW, &end(1, 1, 3)]).as_slice()).is_ok());
    assert_eq!(check_of(&[]), "an entry is cut short");
    assert_eq!(check_of(&[TABLE, ROW]), "an entry is cut short");
    assert_eq!(check_of(&[ROW, &end(0, 1, 3)]), "a row stands before the first table");
    assert_eq!(check_of(&[TABLE, ROW, &end(1, 2, 3)]), "its end counts something else");
    assert_eq!(check_of(&[TABLE, &end(1, 0, 0), ROW]), "entries follow its end");
    assert_eq!(check_of(&[b"\x09"]), "an entry of unknown kind");
    assert_eq!(check_of(&[b"\x01\x01\0\0\0\xff"]), "the name of a table is no text");
    assert_eq!(check_of(&[b"\x01\xff\xff\xff\xff"]), "a key is too long");
}

#[test]
fn a_size_that_lies_allocates_nothing() {
    let mut row = ROW[..6].to_vec();
    row.extend(u64::MAX.to_le_bytes());
    assert_eq!(check_of(&[TABLE, &row, &end(1, 1, 1)]), "an entry is cut short");
}

#[test]
fn an_entry_that_fills_its_frames_exactly_is_read_back() {
    // Kind, size of the key, key, size of the value: 15 bytes stand before the value's.
    for size in
        (1..4).map(|frames| (frames << 16) - TABLE.len() - 14).flat_map(|n| [n - 1, n, n + 1])
    {
        let mut row = ROW[..6].to_vec();
        row.extend((size as u64).to_le_bytes());
        row.resize(row.len() + size, 7);
        let backup = forged(&[TABLE, &row, &end(1, 1, size as u64 + 1)]);
        let report = verify_backup(backup.as_slice()).expect("a whole backup");
        assert_eq!(report.bytes, size as u64 + 1);
    }
}

/// Goal (B1): a backup has the tables of its moment, under the names of that moment. Method: a table renamed,
/// one dropped, and two whose names were exchanged, behind the snapshot.
#[test]
fn tables_are_those_of_the_snapshot() {
    let profile = flagstone_nand::Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
    let device = flagstone_nand::SimNand::new(&profile, 1);
    let options = crate::Options::default().with_memory(256 << 10);
    let database = crate::Database::create_on(device, &options).unwrap();
    let names = ["a", "b", "c", "d"];
    let made = names.map(|name| (name.to_owned(), database.table(name).unwrap()));
    let snapshot = database.snapshot().unwrap();
    database.rename_table("a", "e").unwrap();
    database.drop_table("b").unwrap();
    for (from, to) in [("c", "x"), ("d", "c"), ("x", "d")] {
        database.rename_table(from, to).unwrap();
    }
    assert_eq!(snapshot.named_tables().unwrap(), made);
}
