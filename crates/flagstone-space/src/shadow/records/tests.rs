//! Goal: versions that several transactions share keep what each of them needs. Method: small stores
//! on a simulated chip, looked at before and after restarts; that no power cut harms them is shown
//! by the crash exploration of the engine above.

use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

use flagstone_nand::SimNand;

use super::*;
use crate::shadow::tests::harness::chip;

const BLOCKS: u32 = 40;

fn options(flags: Flags) -> RecordOptions {
    RecordOptions { unit_pages: 2, restart_pages: 8, ..RecordOptions::new(flags) }
}

fn store(flags: Flags) -> RecordStore<SimNand> {
    RecordStore::format(chip(BLOCKS), options(flags)).unwrap()
}

fn image(store: &RecordStore<SimNand>, byte: u8) -> Vec<u8> {
    vec![byte; store.image_size()]
}

fn write(store: &mut RecordStore<SimNand>, page: u32, byte: u8, members: &[GroupId]) {
    members.iter().for_each(|xid| store.admit(*xid));
    let image = image(store, byte);
    store.write(LogicalPage(page), &image, Lsn(byte.into()), members).unwrap();
}

fn newest(store: &mut RecordStore<SimNand>, page: u32) -> Read {
    store.read(LogicalPage(page)).unwrap().unwrap()
}

/// The power goes, and nothing of the log commits anybody.
fn reopen(store: RecordStore<SimNand>) -> RecordStore<SimNand> {
    let options = store.options;
    let (mut store, _) = RecordStore::mount(store.into_device(), options).unwrap();
    store.judge(&BTreeSet::new()).unwrap();
    for page in store.restless_pages() {
        let read = store.read(page).unwrap().unwrap();
        if read.members.is_empty() {
            store.rebuild(page, &read.image, read.lsn).unwrap();
        }
    }
    store.finish_restart().unwrap();
    store
}

/// Fills the blocks that are open, and collects every block that was closed before.
fn collect_all(store: &mut RecordStore<SimNand>) {
    (0..24).for_each(|round| write(store, 8 + round % 4, 9, &[]));
    let closed = |block: &BlockIndex| store.blocks.state(*block) == State::Closed;
    let blocks: Vec<BlockIndex> = store.flash.sizes.geometry.blocks().filter(closed).collect();
    for block in blocks {
        assert!(store.collect(block).unwrap());
    }
}

fn xids(store: &RecordStore<SimNand>) -> [GroupId; 3] {
    let first = store.first_xid().0;
    [GroupId(first), GroupId(first + 1), GroupId(first + 2)]
}

#[test]
fn three_transactions_share_a_page_and_each_has_a_flag_of_its_own() {
    for flags in [Flags::Cfc, Flags::Afc] {
        let mut store = store(flags);
        let [one, two, three] = xids(&store);
        write(&mut store, 0, 1, &[]);
        write(&mut store, 0, 2, &[one, two, three]);
        store.commit_by_flags(two).unwrap();
        store.abort(three);
        // Not the last unit of its block: that would be written again.
        (1..9).for_each(|page| write(&mut store, page, 9, &[]));
        let mut store = reopen(store);
        assert_eq!(store.standing(one), Standing::Aborted, "{flags:?}: it ran");
        assert_eq!(store.standing(two), Standing::Committed, "{flags:?}");
        assert_eq!(store.standing(three), Standing::Aborted, "{flags:?}");
        let read = newest(&mut store, 0);
        assert_eq!((read.image[0], &read.members[..]), (2, &[one, two, three][..]));
        let before = store.read_back(LogicalPage(0), read.back.unwrap()).unwrap();
        assert_eq!(before.image[0], 1, "{flags:?}: what they replaced is kept");
    }
}

#[test]
fn a_version_goes_when_nobody_leads_back_to_it() {
    let mut store = store(Flags::Cfc);
    let [one, two, _] = xids(&store);
    write(&mut store, 0, 1, &[]);
    write(&mut store, 0, 2, &[one]);
    write(&mut store, 0, 3, &[one, two]);
    assert_eq!(store.olds[&LogicalPage(0)].len(), 2);
    store.commit_by_flags(one).unwrap();
    assert_eq!(store.olds[&LogicalPage(0)].len(), 1, "the newest leads back to the second");
    store.commit_by_flags(two).unwrap();
    assert!(store.olds.is_empty());
}

#[test]
fn collections_move_shared_versions_with_their_members() {
    for flags in [Flags::Cfc, Flags::Afc] {
        let mut store = store(flags);
        let [one, two, three] = xids(&store);
        (0..4).for_each(|page| write(&mut store, page, 1, &[]));
        write(&mut store, 0, 2, &[one, two]);
        write(&mut store, 1, 2, &[two, three]);
        store.abort(two);
        collect_all(&mut store);
        assert!(store.stats().relocations >= 4, "{flags:?}");
        store.commit_by_flags(one).unwrap();
        store.commit_by_flags(three).unwrap();
        collect_all(&mut store);
        // Places of the erased are given again: nobody's members may be thought to stand there.
        for entry in [one, two, three].iter().filter_map(|xid| store.table.get(*xid)) {
            for member in &entry.members {
                let unit = store.units.get(&(member.at / SLOT_STRIDE));
                assert!(unit.is_some_and(|unit| unit.members.contains(&member.xid)), "{flags:?}");
            }
        }
        let mut store = reopen(store);
        for (xid, standing) in
            [(one, Standing::Committed), (two, Standing::Aborted), (three, Standing::Committed)]
        {
            assert_eq!(store.standing(xid), standing, "{flags:?}");
        }
        for page in 0..2 {
            let read = newest(&mut store, page);
            assert_eq!(read.image[0], 2, "{flags:?}");
            let before = store.read_back(LogicalPage(page), read.back.unwrap()).unwrap();
            assert_eq!(before.image[0], 1, "{flags:?}: the aborted one's value before");
        }
    }
}

#[test]
fn a_commit_record_keeps_the_log_until_its_flags_are_set() {
    let mut store = store(Flags::Cfc);
    let [one, ..] = xids(&store);
    write(&mut store, 0, 1, &[]);
    write(&mut store, 0, 2, &[one]);
    let number = store.append(b"commit").unwrap();
    store.await_log();
    store.commit_by_record(one, number);
    store.append(b"later").unwrap();
    store.checkpoint(store.next_batch()).unwrap();
    let (mounted, batches) = RecordStore::mount(store.device().clone(), store.options).unwrap();
    assert_eq!(batches.first().map(|batch| batch.payload.as_slice()), Some(&b"commit"[..]));
    drop(mounted);
    store.finish(one).unwrap();
    store.checkpoint(store.next_batch()).unwrap();
    let (_, batches) = RecordStore::mount(store.into_device(), options(Flags::Cfc)).unwrap();
    assert_eq!(batches, [], "the flag says it now");
}

#[test]
fn a_restart_without_a_verdict_leaves_no_trace() {
    let mut store = store(Flags::Afc);
    write(&mut store, 0, 1, &[]);
    store.append(b"record").unwrap();
    let (mut half, batches) = RecordStore::mount(store.into_device(), options(Flags::Afc)).unwrap();
    half.judge(&BTreeSet::new()).unwrap();
    let image = image(&half, 7);
    half.rebuild(LogicalPage(0), &image, Lsn(7)).unwrap();
    let (mut again, batches_again) =
        RecordStore::mount(half.into_device(), options(Flags::Afc)).unwrap();
    assert_eq!(batches, batches_again);
    again.judge(&BTreeSet::new()).unwrap();
    assert_eq!(newest(&mut again, 0).image[0], 1);
}

#[test]
fn what_a_version_cannot_carry_is_refused() {
    let mut store = store(Flags::Cfc);
    let [one, two, three] = xids(&store);
    let four = GroupId(three.0 + 1);
    [one, two, three, four].into_iter().for_each(|xid| store.admit(xid));
    let image = image(&store, 1);
    let first = store.write(LogicalPage(0), &image, Lsn(1), &[one]);
    assert_eq!(first, Err(ShadowError::Option("members")), "nothing to lead back to");
    write(&mut store, 0, 1, &[]);
    assert_eq!(store.members_max(), 3, "NOP 4, of which the first program takes one");
    let crowded = store.write(LogicalPage(0), &image, Lsn(1), &[one, two, three, four]);
    assert_eq!(crowded, Err(ShadowError::Option("members")));
    store.abort(one);
    let ended = store.write(LogicalPage(0), &image, Lsn(1), &[one]);
    assert!(ended.is_err());
}

#[test]
fn a_place_that_is_given_again_keeps_nothing_of_what_stood_there() {
    let mut store = store(Flags::Cfc);
    let [one, ..] = xids(&store);
    write(&mut store, 0, 1, &[]);
    write(&mut store, 0, 2, &[one]);
    // A restart empties the blocks that were open, without a collection.
    let mut store = reopen(store);
    let [two, ..] = xids(&store);
    for round in 0..300 {
        let (page, xid) = (1 + round % 3, GroupId(two.0 + u64::from(round)));
        write(&mut store, page, round as u8, &[]);
        write(&mut store, page, round as u8, &[xid]);
        store.abort(xid);
        let read = newest(&mut store, page);
        store.read_back(LogicalPage(page), read.back.unwrap()).unwrap();
    }
}
