//! Goal: the shadow engine is a database under every protocol. Method: random transactions against a
//! map, with aborts and reopening; a TPC-B run with many clients, whose sums are checked within.

use std::collections::BTreeMap;

use flagstone_engine::{Durability, EngineError};
use flagstone_nand::{Profile, SimNand};

use crate::bench::{self, BenchConfig, Warmup};
use crate::preset;
use crate::store::{ShadowDatabase, Store};
use crate::workload::{Draws, Operations};

const PRESETS: [&str; 6] = ["cfc", "afc", "cfc-pages", "afc-pages", "scc", "bpcc"];

fn chip(blocks: u32) -> SimNand {
    let profile = Profile::named("flagcommit-slc").unwrap().with_block_count(blocks).unwrap();
    SimNand::new(&profile, 1)
}

fn contents(store: &impl Store) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut rows = BTreeMap::new();
    store
        .visit(&["t"], &mut |_, key, value| {
            rows.insert(key.to_vec(), value.to_vec());
        })
        .unwrap();
    rows
}

#[test]
fn every_protocol_agrees_with_a_map() {
    for name in PRESETS {
        let options = preset::options(name).unwrap().with_memory(64 * 1024);
        let mut store = ShadowDatabase::create(chip(64), &options).unwrap();
        let mut model = BTreeMap::new();
        let mut draws = Draws::new(1, 0);
        for round in 0..300 {
            let table = store.table("t").unwrap();
            let mut transaction = store.begin();
            let mut after = model.clone();
            for _ in 0..draws.below(20) {
                let key = draws.below(500).to_be_bytes().to_vec();
                if draws.below(4) == 0 {
                    transaction.delete(table, &key).unwrap();
                    after.remove(&key);
                } else {
                    let value = vec![round as u8; draws.below(200) as usize];
                    transaction.put(table, &key, &value).unwrap();
                    after.insert(key, value);
                }
            }
            if draws.below(4) > 0 {
                store.commit(transaction, Durability::Immediate).unwrap();
                model = after;
            } else {
                drop(transaction);
            }
            if round % 50 == 49 {
                assert_eq!(contents(&store), model, "{name}, round {round}");
                store = ShadowDatabase::open(store.into_device().unwrap(), &options).unwrap();
                assert_eq!(contents(&store), model, "{name}, reopened in round {round}");
            }
        }
    }
}

#[test]
fn clients_of_every_protocol_keep_the_sums() {
    for name in PRESETS {
        let profile = Profile::named("flagcommit-slc").unwrap();
        let options = preset::options(name).unwrap();
        let config = BenchConfig {
            clients: 8,
            txns: 600,
            warmup: Warmup::Txns(100),
            abort_ratio: 0.05,
            fill: 0.7,
            ..BenchConfig::tpcb(profile, Vec::new())
        };
        let run = bench::run(&config, &options, &mut |_| ()).unwrap();
        assert_eq!(run.commits, 600, "{name}");
        assert!(run.aborts > 0, "{name}");
        // CFC's last page may carry its flag from memory; AFC always programs its first page again.
        match name {
            "afc" | "afc-pages" => assert!(run.programs_by_cause.flag >= run.commits, "{name}"),
            "scc" | "bpcc" => assert_eq!(run.programs_by_cause.flag, 0, "{name}"),
            _ => {}
        }
    }
}

#[test]
fn a_device_that_cannot_carry_flags_is_refused_with_what_it_lacks() {
    let profile = Profile::named("spi-nand").unwrap();
    let device = SimNand::new(&profile, 1);
    let options = preset::options("cfc").unwrap();
    let error = ShadowDatabase::create(device, &options).unwrap_err().to_string();
    assert!(error.contains("NOP") && error.contains("bpcc"), "{error}");
}

#[test]
fn a_value_longer_than_a_leaf_takes_is_refused() {
    let options = preset::options("cfc").unwrap();
    let store = ShadowDatabase::create(chip(64), &options).unwrap();
    let table = store.table("t").unwrap();
    let error = store.begin().put(table, b"key", &[0; 100_000]).unwrap_err();
    assert!(matches!(error, EngineError::ValueTooLong { .. }), "{error}");
}
