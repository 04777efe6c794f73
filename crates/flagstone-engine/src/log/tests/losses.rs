//! Fragments that are lost or torn: the losses that a cut explains, and the ones that are damage.

use super::*;

/// A log of one slot a page: `before`, then one flush over the other pages of the first block.
fn one_flush_over_a_block() -> (Pages, Vec<Place>) {
    let mut pages = Pages::new(geometry(256, 1));
    let mut writer = writer();
    commit(&mut writer, b"before");
    pages.flush(&mut writer);
    commit(&mut writer, &[7; 900]);
    let places = pages.flush(&mut writer);
    assert!(pages.pages.len() > PAGES_PER_BLOCK, "the flush reaches the next block");
    (pages, places)
}

#[test]
fn a_page_lost_before_a_whole_one_of_its_block_is_damage() {
    let (mut pages, places) = one_flush_over_a_block();
    pages.tear(places[1]);
    let start = ReadStart::Chain(ChainPoint::START);
    let damaged = pages.read_with(start, Survivors::Prefix, 0);
    assert_eq!(damaged.end.fault, Some(LogFault::Missing { sequence: 2, page: 3 }));
    let cut = pages.read_with(start, Survivors::AnySubset, 0);
    assert_eq!(cut.end.fault, None, "some of what was not synced may survive");
    assert_eq!(values(&cut), [b"before"]);
}

#[test]
fn a_page_lost_at_the_end_of_a_block_may_have_been_in_flight() {
    let (mut pages, places) = one_flush_over_a_block();
    let last = places.iter().rfind(|place| place.page < PAGES_PER_BLOCK).copied();
    pages.tear(last.expect("the flush begins in the first block"));
    let reading = pages.read_with(ReadStart::Chain(ChainPoint::START), Survivors::Prefix, 0);
    assert_eq!(reading.end.fault, None, "the next block may lie on another die");
    assert_eq!(values(&reading), [b"before"]);
}

#[test]
fn a_lost_first_page_of_a_block_is_damage() {
    let (mut pages, _) = one_flush_over_a_block();
    pages.pages[0].fill(0xFF);
    let reading = pages.read_with(ReadStart::Chain(ChainPoint::START), Survivors::Prefix, 0);
    assert!(matches!(reading.end.fault, Some(LogFault::Missing { sequence: 0, .. })));
}

#[test]
fn a_slot_lost_before_a_whole_one_is_damage() {
    let mut pages = Pages::new(geometry(512, 4));
    let mut writer = writer();
    let mut places = Vec::new();
    for number in 0..3 {
        commit(&mut writer, &[number; 100]);
        places.extend(pages.flush(&mut writer));
    }
    pages.tear(places[1]);
    let start = ReadStart::Chain(ChainPoint::START);
    let reading = pages.read_with(start, Survivors::Prefix, 0);
    assert_eq!(reading.end.fault, Some(LogFault::Missing { sequence: 1, page: 0 }));
    pages.tear(places[2]);
    let reading = pages.read_with(start, Survivors::Prefix, 0);
    assert_eq!(reading.end.fault, None, "nothing behind it proves anything");
}

#[test]
fn a_fragment_among_the_bytes_of_a_torn_one_proves_nothing() {
    let mut other = writer();
    for number in 0..200_u8 {
        commit(&mut other, &[number; 10]);
        let flush = other.seal(geometry(512, 4), 0).expect("a record is pending");
        other.completed(flush);
    }
    commit(&mut other, b"stored as a value");
    let fake = other.seal(geometry(512, 4), 0).expect("a record is pending").fragments.remove(0);
    let mut pages = Pages::new(geometry(512, 4));
    let mut writer = writer();
    commit(&mut writer, b"before");
    pages.flush(&mut writer);
    commit(&mut writer, &[1; 1200]);
    let place = pages.flush(&mut writer)[0];
    pages.tear(place);
    pages.bytes_mut(place)[512..1024].copy_from_slice(&fake.bytes);
    let reading = pages.read_with(ReadStart::Chain(ChainPoint::START), Survivors::Prefix, 0);
    assert_eq!((reading.end.fault, values(&reading)), (None, vec![&b"before"[..]]));
}

#[test]
fn a_torn_page_followed_by_a_whole_one_ends_the_log() {
    let mut pages = Pages::new(geometry(256, 1));
    let mut writer = writer();
    commit(&mut writer, b"before");
    pages.flush(&mut writer);
    commit(&mut writer, &[1; 100]);
    commit(&mut writer, &[2; 400]);
    let places = pages.flush(&mut writer);
    pages.tear(places[0]);
    let reading = pages.read();
    assert_eq!(values(&reading), [b"before"]);
    assert_eq!(reading.end.fault, None, "one flush was in flight: a cut explains it");
    assert_eq!(reading.end.last_page, Some(0));
}

#[test]
fn a_later_epoch_skips_dead_fragments() {
    let mut pages = Pages::new(geometry(256, 1));
    let mut first = writer();
    commit(&mut first, b"kept");
    pages.flush(&mut first);
    commit(&mut first, &[1; 700]);
    let places = pages.flush(&mut first);
    pages.tear(places[1]);
    let end = pages.read().end;
    assert_eq!(end.chain.next_sequence, 2, "the whole part of the last flush stays in the chain");

    let mut second = next_epoch(2, &end);
    commit(&mut second, b"after restart");
    pages.flush(&mut second);
    commit(&mut second, b"later");
    pages.flush(&mut second);
    let reading = pages.read();
    assert_eq!(values(&reading), [&b"kept"[..], b"after restart", b"later"]);
    assert_eq!(reading.records[1].0, lsn(2, 1));
    assert_eq!(reading.end.fault, None);
}

#[test]
fn a_fragment_that_becomes_readable_again_does_not_come_back() {
    let mut pages = Pages::new(geometry(256, 1));
    let mut first = writer();
    commit(&mut first, b"kept");
    pages.flush(&mut first);
    commit(&mut first, &[1; 700]);
    let places = pages.flush(&mut first);
    let unstable = pages.tear(places[0]);

    let mut second = next_epoch(2, &pages.read().end);
    for value in [b"new 1", b"new 2"] {
        commit(&mut second, value);
        pages.flush(&mut second);
    }
    let expected = pages.read();
    pages.bytes_mut(places[0]).copy_from_slice(&unstable);
    let reading = pages.read();
    assert_eq!(values(&reading), [&b"kept"[..], b"new 1", b"new 2"]);
    assert_eq!(reading.records, expected.records);
    assert_eq!(reading.end, expected.end);
}

#[test]
fn three_epochs_may_disagree_about_the_same_fragment() {
    let mut pages = Pages::new(geometry(256, 1));
    let mut first = writer();
    commit(&mut first, b"kept");
    pages.flush(&mut first);
    let fork = pages.read().end;
    let mut unstable = Vec::new();
    for epoch in 2..5 {
        let mut writer = next_epoch(epoch, &fork);
        commit(&mut writer, &[epoch as u8; 300]);
        let places = pages.flush(&mut writer);
        unstable.extend(places.into_iter().map(|place| (place, pages.tear(place))));
        assert_eq!(pages.read().end.chain, fork.chain);
    }
    let mut last = next_epoch(5, &fork);
    commit(&mut last, b"last");
    pages.flush(&mut last);
    for (place, bytes) in unstable {
        pages.bytes_mut(place).copy_from_slice(&bytes);
        let reading = pages.read();
        assert_eq!(values(&reading), [&b"kept"[..], b"last"]);
        assert_eq!(reading.end.fault, None);
    }
}

#[test]
fn a_lost_fragment_that_was_complete_is_a_fault() {
    let mut pages = Pages::new(geometry(256, 1));
    let mut writer = writer();
    let mut places = Vec::new();
    for number in 0..4_u8 {
        commit(&mut writer, &[number; 10]);
        places.extend(pages.flush(&mut writer));
    }
    pages.tear(places[1]);
    let reading = pages.read();
    assert_eq!(values(&reading), [&[0; 10][..]]);
    assert_eq!(reading.end.fault, Some(LogFault::Missing { sequence: 1, page: 2 }));
}
