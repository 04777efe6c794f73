use super::*;

fn cell(bytes: &[u8]) -> OwnCell {
    OwnCell { bytes: bytes.to_vec(), is_ref: false }
}

fn records() -> Vec<Record> {
    let (xid, previous) = (Xid(300), Lsn(7 << 32 | 9));
    let place = Place { tree: 2, page: LogicalPage(4000), key: b"key".to_vec() };
    let update = |change| Record::Update { xid, previous, place: place.clone(), change };
    let replace = Change::Replace { old: cell(b"a"), new: OwnCell { is_ref: true, ..cell(b"b") } };
    let parts = vec![
        Part::Image { page: LogicalPage(1), image: vec![1, 2] },
        Part::Fences { page: LogicalPage(2), low: vec![], high: Some(vec![3]) },
        Part::Fences { page: LogicalPage(2), low: vec![1], high: None },
        Part::Children {
            page: LogicalPage(3),
            deletes: vec![vec![1]],
            puts: vec![(vec![2], LogicalPage(9))],
        },
        Part::Free { page: LogicalPage(4) },
    ];
    let edit = Edit::Splice { offset: 3, old_size: 2, new: vec![9] };
    vec![
        update(Change::Insert(cell(b"new"))),
        update(Change::Remove(cell(b"old"))),
        update(replace),
        update(Change::Splice { offset: 200, old: vec![1], new: vec![2, 3] }),
        Record::Clr { xid, previous, undo_next: Lsn(5), place: place.clone(), edit },
        Record::Clr { xid, previous, undo_next: Lsn(0), place, edit: Edit::Remove },
        Record::Commit { xid, previous },
        Record::Abort { xid, previous },
        Record::End { xid, previous },
        Record::Shape { parts },
        Record::Begin,
        Record::Checkpoint {
            begin: previous,
            dirty: vec![(LogicalPage(1), Lsn(2))],
            active: vec![Active { xid, last: previous }],
        },
        Record::Open,
    ]
}

#[test]
fn every_record_reads_back_and_no_prefix_of_it_does() {
    for record in records() {
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes).as_ref(), Some(&record));
        for size in 0..bytes.len() {
            assert_ne!(Record::decode(&bytes[..size]).as_ref(), Some(&record));
        }
    }
}

#[test]
fn a_change_logs_only_the_bytes_that_differ() {
    let change = Change::between(Some(cell(b"balance 100")), Some(cell(b"balance 250")));
    let expected = Change::Splice { offset: 8, old: b"10".to_vec(), new: b"25".to_vec() };
    assert_eq!(change, Some(expected.clone()));
    let undo = Edit::Splice { offset: 8, old_size: 2, new: b"10".to_vec() };
    assert_eq!(expected.undo(), undo);
    assert_eq!(Change::between(Some(cell(b"a")), Some(cell(b"a"))), None);
}

#[test]
fn values_of_repeated_bytes_splice_without_overlap() {
    for (old, new) in [("aa", "aaa"), ("aaa", "aa"), ("", "a"), ("aba", "a")] {
        let Change::Splice { offset, old: removed, new: added } =
            splice(old.as_bytes(), new.as_bytes())
        else {
            panic!("a splice");
        };
        let mut bytes = old.as_bytes().to_vec();
        bytes.splice(offset..offset + removed.len(), added);
        assert_eq!(bytes, new.as_bytes());
    }
}
