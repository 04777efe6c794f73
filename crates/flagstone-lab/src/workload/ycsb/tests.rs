use std::collections::BTreeMap;

use super::audit::Audit;
use super::client::Request;
use super::record::parse;
use super::*;
use crate::workload::stuttering::{Map, Stuttering};
use crate::workload::{Outcome, Terminal as _};

#[test]
fn a_field_says_who_wrote_it_and_half_a_field_says_nothing() {
    let record = Record::inserted(3, 17);
    let writer = Writer { client: 4, request: 99 };
    let mut value = record.value(Writer::LOAD);
    value[2 * FIELD_SIZE..3 * FIELD_SIZE].copy_from_slice(&record.field(2, writer));
    let (found, writers) = parse(&value).unwrap();
    assert_eq!((found, writers[2], writers[3]), (record, writer, Writer::LOAD));
    value[2 * FIELD_SIZE..2 * FIELD_SIZE + 50]
        .copy_from_slice(&record.field(2, Writer::LOAD)[..50]);
    assert!(parse(&value).is_none(), "half of the one and half of the other");
}

#[test]
fn requests_come_in_the_shares_of_their_workload() {
    for dialect in Dialect::ALL {
        let ycsb = Ycsb::new(dialect, 1_000, 1);
        let mut client = Client::new(&ycsb, flagstone_engine::table_with_id(0), 0);
        let mut counts = [0_u64; 5];
        for _ in 0..20_000 {
            counts[client.class()] += 1;
            client.next(Outcome::Commit);
        }
        let Mix { update, insert, scan, modify } = dialect.mix();
        let read = 100 - update - insert - scan - modify;
        for (count, share) in counts.into_iter().zip([read, update, insert, scan, modify]) {
            assert!(count.abs_diff(share * 200) < 300, "{dialect}: {counts:?}");
        }
    }
}

/// Goal: few records are asked for often, spread over the key space; of workload D the newest.
/// Method: draws of one client, counted.
#[test]
fn the_wanted_records_are_few_and_those_of_d_are_new() {
    let asked = |dialect, draws: usize| {
        let mut client =
            Client::new(&Ycsb::new(dialect, 10_000, 1), flagstone_engine::table_with_id(0), 0);
        let mut counts: BTreeMap<Record, u64> = BTreeMap::new();
        for _ in 0..draws {
            if let (Request::Read(record), _) = client.request() {
                *counts.entry(record).or_default() += 1;
            }
            client.next(Outcome::Commit);
        }
        counts
    };
    let counts = asked(Dialect::C, 50_000);
    let most = *counts.values().max().unwrap();
    // The first of the ranks has a share of 1 / 26.47.
    assert!(most.abs_diff(50_000 * 100 / 2647) < 200, "{most}");
    assert!(counts.len() > 5_000, "{} records", counts.len());
    let counts = asked(Dialect::D, 20_000);
    let new: u64 = counts.iter().filter(|(it, _)| it.is_inserted()).map(|(_, count)| count).sum();
    assert!(new > 9_000, "{new} reads of inserted records");
}

/// Goal: of workload E, too, the most wanted record is one throughout, although records are inserted.
/// Method: the records at which 10,000 requests of one client begin.
#[test]
fn insertions_leave_the_wanted_records_where_they_are() {
    for requests in [0, 10_000] {
        let ycsb = Ycsb::new(Dialect::E, 10_000, 1).with_requests(requests);
        let mut client = Client::new(&ycsb, flagstone_engine::table_with_id(0), 0);
        let mut counts: BTreeMap<Record, u64> = BTreeMap::new();
        let mut inserted = 0;
        for _ in 0..10_000 {
            match client.request().0 {
                Request::Scan(record, _) => *counts.entry(record).or_default() += 1,
                Request::Insert(_) => inserted += 1,
                other => panic!("E has no {other:?}"),
            }
            client.next(Outcome::Commit);
        }
        let most = *counts.values().max().unwrap();
        assert!(inserted > 400 && most >= 200, "{most} of 10,000 after {inserted} insertions");
        let new = counts.keys().filter(|record| record.is_inserted()).count();
        assert_eq!(new > 0, requests > 0, "{new} of the new records are wanted");
    }
}

/// Table and commits after `count` requests of two clients in turns.
fn worked(ycsb: &Ycsb, count: u64) -> (Map, Acknowledged) {
    let table = flagstone_engine::table_with_id(0);
    let mut engine = Stuttering::default();
    let mut put = |table, key: &[u8], value: &[u8]| {
        engine.load(table, key, value);
        Ok(())
    };
    ycsb.load(table, &mut put).expect("a map takes every row");
    let mut clients = [0, 1].map(|number| ycsb.terminal(table, number));
    let mut acknowledged: Acknowledged = [0, 1].map(|client| (client, vec![0; 5])).into();
    for number in 0..count {
        let client = &mut clients[(number % 2) as usize];
        while client.advance(&mut engine).is_err() {}
        acknowledged.get_mut(&(number % 2)).expect("two clients")[client.class()] += 1;
        client.next(Outcome::Commit);
    }
    (engine.tables.remove(&table).expect("the table has rows"), acknowledged)
}

fn verdict(ycsb: &Ycsb, rows: &Map, acknowledged: &Acknowledged) -> Result<(), Fault> {
    let mut audit = Audit::new(ycsb, acknowledged);
    rows.iter().for_each(|(key, value)| audit.row(key, value));
    audit.verdict()
}

/// Goal: each check sees a violation of its own. Method: a worked table, one record changed.
#[test]
fn every_check_sees_a_row_that_violates_it() {
    let ycsb = Ycsb::new(Dialect::A, 50, 7);
    let (rows, acknowledged) = worked(&ycsb, 400);
    assert_eq!(verdict(&ycsb, &rows, &acknowledged), Ok(()));
    let seen = |with: &dyn Fn(&mut Map)| {
        let mut changed = rows.clone();
        with(&mut changed);
        verdict(&ycsb, &changed, &acknowledged).expect_err("it is seen")
    };
    let record = Record::loaded(3);
    let key = record.key().into_bytes();
    let write = |field: usize, writer: Writer, size: usize| {
        let key = key.clone();
        move |rows: &mut Map| {
            let value = rows.get_mut(&key).expect("the record is there");
            value[field * FIELD_SIZE..][..size]
                .copy_from_slice(&record.field(field, writer)[..size]);
        }
    };
    let stranger = Writer { client: 2, request: 10_000 };
    let field = |client, request| Fault::Field { record: 3, field: 4, client, request };
    assert_eq!(seen(&write(4, stranger, FIELD_SIZE)), field(2, 10_000), "nobody's write");
    assert!(matches!(seen(&write(4, stranger, 50)), Fault::Row(_)), "half of a write");
    let count = Fault::Count { found: 49, loaded: 50 };
    assert_eq!(seen(&|rows| drop(rows.remove(&key))), count, "a record of the load is missing");
    let misplace = |rows: &mut Map| {
        let value = rows.remove(&key).expect("the record is there");
        rows.insert(b"user0".to_vec(), value);
    };
    assert_eq!(seen(&misplace), Fault::Row("user0".into()), "under another key");
}

/// Goal: an update that returned and is lost is always seen. Method: every field that a client
/// wrote last goes back to its loaded content.
#[test]
fn every_lost_update_is_seen() {
    let ycsb = Ycsb::new(Dialect::F, 50, 7);
    let (rows, acknowledged) = worked(&ycsb, 400);
    let mut lost = 0;
    for (key, value) in &rows {
        let (record, writers) = parse(value).expect("a record");
        for field in (0..FIELD_COUNT).filter(|field| writers[*field] != Writer::LOAD) {
            let mut changed = rows.clone();
            let value = changed.get_mut(key).expect("the record is there");
            value[field * FIELD_SIZE..(field + 1) * FIELD_SIZE]
                .copy_from_slice(&record.field(field, Writer::LOAD));
            let fault = Fault::Field { record: record.0, field, client: 0, request: 0 };
            assert_eq!(verdict(&ycsb, &changed, &acknowledged), Err(fault));
            lost += 1;
        }
    }
    assert!(lost > 50, "{lost} fields were written");
}

/// Goal: every inserted record that is lost is seen; one that was in flight may be there.
#[test]
fn every_lost_insertion_is_seen() {
    let ycsb = Ycsb::new(Dialect::D, 50, 7);
    let (rows, acknowledged) = worked(&ycsb, 400);
    assert_eq!(verdict(&ycsb, &rows, &acknowledged), Ok(()));
    let inserted = rows.iter().filter_map(|(key, value)| {
        let (record, _) = parse(value).expect("a record");
        record.is_inserted().then(|| (key.clone(), record))
    });
    let mut lost = 0;
    for (key, record) in inserted {
        let mut changed = rows.clone();
        changed.remove(&key);
        assert_eq!(verdict(&ycsb, &changed, &acknowledged), Err(Fault::Missing(record.0)));
        lost += 1;
    }
    assert!(lost > 5, "{lost} records were inserted");
}
