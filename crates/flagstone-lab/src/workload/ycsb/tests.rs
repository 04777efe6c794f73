use std::collections::BTreeMap;

use flagstone::parts;

use super::client::Request;
use super::record::parse;
use super::*;
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
        let mut client = Client::new(&ycsb, parts::table(0), 0);
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
        let mut client = Client::new(&Ycsb::new(dialect, 10_000, 1), parts::table(0), 0);
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
