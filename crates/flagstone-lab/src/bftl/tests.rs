//! The tree against an ordered map: random requests, restarts between flushes, planted mistakes.

use std::collections::BTreeMap;

use flagstone_nand::{Profile, SimNand};
use proptest::prelude::*;

use super::*;
use crate::bftl::replay::{Setup, run};
use crate::workload::index::{Dialect, Index};

const SEED: u64 = 3;
const KEYS: u64 = 600;

fn chip() -> SimNand {
    let profile = Profile::named("ls-lru-nand").unwrap().with_block_count(48).unwrap();
    SimNand::new(&profile, SEED)
}

/// Nodes of six entries, so that few requests make a tree of several levels, and a buffer and memory so
/// small that most nodes are read from their pages.
fn config(mistake: Mistake) -> Config {
    let config = Config::new(4, 0);
    Config { buffer_units: 13, list_max: 3, node_max: Some(6), mistake, ..config }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Put(u64),
    Delete(u64),
    DeleteFrom(u64, usize),
    Get(u64),
    Range(u64),
    Flush,
    Open,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..KEYS).prop_map(Step::Put),
        4 => (0..KEYS).prop_map(Step::Delete),
        1 => (0..KEYS, 1..60_usize).prop_map(|(key, count)| Step::DeleteFrom(key, count)),
        3 => (0..KEYS).prop_map(Step::Get),
        1 => (0..KEYS).prop_map(Step::Range),
        1 => Just(Step::Flush),
        1 => Just(Step::Open),
    ];
    proptest::collection::vec(step, 1..400)
}

/// The first fault, if there is any.
fn fault_of(steps: &[Step], config: Config) -> Option<String> {
    let mut store = Bftl::format(chip(), config).ok()?;
    let mut model: BTreeMap<u64, u32> = BTreeMap::new();
    for (number, step) in (0..).zip(steps) {
        match apply(store, &mut model, number, *step) {
            Ok(next) => store = next,
            Err(fault) => return Some(format!("step {number}, {step:?}: {fault}")),
        }
    }
    let all: Vec<(u64, u32)> = model.into_iter().collect();
    match store.range(0, usize::MAX) {
        Ok(found) if found == all => None,
        found => Some(format!("at the end: {found:?}")),
    }
}

type Store = Bftl<SimNand>;

fn apply(
    mut store: Store,
    model: &mut BTreeMap<u64, u32>,
    number: u32,
    step: Step,
) -> Result<Store, String> {
    let text = |error: BftlError| error.to_string();
    let require = |is_right: bool, what: &str| {
        if is_right { Ok(()) } else { Err(what.to_owned()) }
    };
    match step {
        Step::Put(key) => {
            model.insert(key, number);
            store.put(key, number).map_err(text)?;
        }
        Step::Delete(key) => {
            let was_there = model.remove(&key).is_some();
            require(store.delete(key).map_err(text)? == was_there, "what is deleted was there")?;
        }
        Step::DeleteFrom(key, count) => {
            let keys: Vec<u64> = model.range(key..).take(count).map(|(key, _)| *key).collect();
            for key in keys {
                model.remove(&key);
                require(store.delete(key).map_err(text)?, "what is deleted was there")?;
            }
        }
        Step::Get(key) => {
            let expected = model.get(&key).copied();
            require(store.get(key).map_err(text)? == expected, "a query finds what is there")?;
        }
        Step::Range(key) => {
            let expected: Vec<(u64, u32)> =
                model.range(key..).take(10).map(|(key, pointer)| (*key, *pointer)).collect();
            require(store.range(key, 10).map_err(text)? == expected, "a range has all rows")?;
        }
        Step::Flush => store.flush().map_err(text)?,
        Step::Open => {
            store.flush().map_err(text)?;
            let config = store.config();
            store = Bftl::open(store.into_device(), config).map_err(text)?;
        }
    }
    let list_max = store.config().list_max;
    require(store.longest_list() <= list_max, "no list exceeds its bound (B3)")?;
    Ok(store)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_tree_is_an_ordered_map(steps in steps()) {
        prop_assert_eq!(fault_of(&steps, config(Mistake::None)), None);
    }

    #[test]
    fn so_it_is_when_each_request_is_durable(steps in steps()) {
        let config = Config { flush_at: FlushAt::Request, memory: 4096, ..config(Mistake::None) };
        prop_assert_eq!(fault_of(&steps, config), None);
    }
}

/// Goal: the property sees each rule. Method: a script that grows, changes and shrinks the tree, with
/// restarts; a planted mistake has to show in it.
#[test]
fn planted_mistakes_are_found() {
    let key = |number: u64| number * 7919 % KEYS;
    let mut script: Vec<Step> = Vec::new();
    for round in 0..6 {
        script.extend((0..300).map(|number| Step::Put(key(number * 3 + round))));
        script.push(Step::Open);
        script.extend((0..150).map(|number| Step::Delete(key(number * 5 + round))));
        script.extend((0..80).map(|number| Step::Get(key(number * 11 + round))));
    }
    assert_eq!(fault_of(&script, config(Mistake::None)), None);
    for mistake in [
        Mistake::NewestFirst,
        Mistake::BufferIgnored,
        Mistake::CompactionDropsWaiting,
        Mistake::ListKept,
        Mistake::BaseIgnored,
        Mistake::SharedPageFreed,
    ] {
        assert!(fault_of(&script, config(mistake)).is_some(), "{mistake:?} is not seen");
    }
}

/// Goal: BFTL loses exactly the changes it says it loses. Method: power fails while units wait.
#[test]
fn a_cut_loses_what_waits_and_nothing_that_was_flushed() {
    let mut store = Bftl::format(chip(), Config::new(4, 20_000)).unwrap();
    (0..1000).for_each(|key| store.put(key, 1).unwrap());
    store.flush().unwrap();
    (0..40).for_each(|key| store.put(key, 2).unwrap());
    let mut store = Bftl::open(store.into_device(), Config::new(4, 20_000)).unwrap();
    let all: Vec<(u64, u32)> = (0..1000).map(|key| (key, 1)).collect();
    assert_eq!(store.range(0, usize::MAX).unwrap(), all);
}

#[test]
fn every_workload_runs_and_finds_what_is_there() {
    for dialect in Dialect::ALL {
        let index = Index::small(dialect, 20, 1);
        let profile = Profile::named(dialect.profile()).unwrap();
        let config = Config::new(dialect.keys().size(), 8_000);
        let setup =
            Setup { profile: &profile, block_count: 24, fill: 0.8, warmup: 500, requests: 1000 };
        let replayed = run(&index, config, setup).unwrap();
        assert!(replayed.totals.device.page_reads > 0, "{dialect}");
        assert!(replayed.fill <= 0.8, "{dialect}: {}", replayed.fill);
    }
}
