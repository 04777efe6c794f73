//! Programs and erases that fail, and flags that do not take.

use flagstone_nand::{BlockFault, BlockIndex, Crashable, FaultPlan, Persistence};

use super::super::{Restart, ShadowProtocol};
use super::harness::{Pair, Step, chip, options, script, variants};
use flagstone_space::GroupId;

/// Commits a transaction while the block of its first page ignores programs, and mounts.
pub(super) fn flag_that_does_not_take(mut pair: Pair) {
    for page in 0..17 {
        pair.apply(&Step::Write { slot: 0, page }).unwrap();
    }
    // Seven units a block: the blocks of the first pages are closed.
    let written = &pair.store.table.get(GroupId(1)).unwrap().written;
    let sizes = pair.store.flash.sizes;
    let blocks: Vec<BlockIndex> = written.iter().map(|unit| sizes.block_of(unit.at)).collect();
    let flagged = match pair.store.options.protocol {
        ShadowProtocol::Cfc => blocks[blocks.len() - 1],
        _ => blocks[0],
    };
    let mut plan = FaultPlan::default();
    plan.block_faults.push((flagged, BlockFault::ProgramIgnored));
    pair.store.device_mut().set_plan(plan);
    pair.apply(&Step::Commit { slot: 0, rest: Vec::new() }).unwrap();
    pair.store.device_mut().set_plan(FaultPlan::default());
    pair.check();
    pair.reopen(Restart::Scan).reopen(Restart::Summaries);
}

#[test]
fn the_page_of_a_flag_that_does_not_take_is_moved() {
    for protocol in [ShadowProtocol::Cfc, ShadowProtocol::Afc] {
        flag_that_does_not_take(Pair::format(chip(14), options(protocol)));
    }
}

/// Goal: an aborted transaction stays aborted although none of its pages takes a `False`. Method:
/// the blocks of all but its first page ignore programs; the block of the first page is collected.
#[test]
fn a_flag_that_no_page_takes_is_left_to_a_witness() {
    let mut pair = Pair::format(chip(14), options(ShadowProtocol::Afc));
    for page in 0..17 {
        pair.apply(&Step::Write { slot: 0, page }).unwrap();
    }
    let sizes = pair.store.flash.sizes;
    let written = &pair.store.table.get(GroupId(1)).unwrap().written;
    let blocks: Vec<BlockIndex> = written.iter().map(|unit| sizes.block_of(unit.at)).collect();
    pair.apply(&Step::Abort { slot: 0 }).unwrap();
    let mut plan = FaultPlan::default();
    let others = blocks.iter().filter(|block| **block != blocks[0]);
    plan.block_faults.extend(others.map(|block| (*block, BlockFault::ProgramIgnored)));
    pair.store.device_mut().set_plan(plan);
    assert!(pair.store.collect(blocks[0]).unwrap().is_some(), "the block is erased");
    pair.store.device_mut().set_plan(FaultPlan::default());
    pair.check();
    pair.reopen(Restart::Scan).reopen(Restart::Summaries);
}

/// Goal: a program or erase that fails costs a block, not a page. Method: each operation of a
/// script fails once, alone.
#[test]
fn failed_programs_and_erases_cost_a_block() {
    for options in variants() {
        let mut pair = Pair::format(chip(16), options);
        let pages = pair.store.page_count() / 2;
        let steps = script(9, 260, pages);
        steps[..200].iter().for_each(|step| pair.apply(step).unwrap());
        let first = pair.store.device().operation_count();
        for number in first..first + 60 {
            let mut pair = pair.clone();
            let plan = FaultPlan::failure(1, number, Persistence::Once);
            pair.store.device_mut().set_plan(plan);
            for step in &steps[200..] {
                pair.apply(step).unwrap_or_else(|err| panic!("{options:?} {number}: {err}"));
            }
            pair.check();
            pair.reopen(Restart::Summaries).reopen(Restart::Scan);
        }
    }
}
