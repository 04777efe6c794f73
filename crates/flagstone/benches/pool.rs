//! CPU time of changes and look-ups that memory serves: `cargo bench -p flagstone --bench pool`.
//!
//! Fixed seed, one thread, the engine called as its runtime calls it, without a latch. A million keys of
//! 8 bytes with values of 8 bytes are loaded, then as many changes wait as deltas. Arguments: keys, and rounds of
//! each measurement; `no-appends` for a chip without. Each measurement is a function of its own, so that
//! callgrind counts its instructions:
//!
//! ```sh
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*query_deltas*' \
//!     target/release/deps/pool-* 1000000 20000
//! ```
#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark has nobody to report to")]

use std::hint::black_box;
use std::time::Instant;

use flagstone::{Database, Durability, Options, Table};
use flagstone_engine::{Appends, Budget, Engine, Xid};
use flagstone_nand::{Profile, SimNand};

const KEYS: u64 = 1_000_000;
const ROUNDS: u32 = 200_000;
/// Changes between two flushes of the log.
const BATCH: u32 = 1_000;
/// Changes of a transaction of many.
const MANY: u32 = 100;

/// Keys of an order that has nothing to do with theirs.
struct Keys {
    state: u64,
    count: u64,
}

impl Keys {
    fn draw(&mut self) -> [u8; 8] {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.state >> 33) % self.count).to_be_bytes()
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let count = arguments.next().unwrap_or(KEYS);
    let rounds = arguments.next().map_or(ROUNDS, |rounds| rounds as u32);
    let profile = Profile::named("slc-2k").unwrap().with_block_count(12_288).unwrap();
    let no_appends = std::env::args().any(|argument| argument == "no-appends");
    let options = Options::default().with_memory(512 << 20).with_log_pages(262_144);
    let options = options.with_durability(Durability::Deferred).with_techniques(|techniques| {
        techniques.append_scheme = if no_appends { Appends::default() } else { Appends::auto() };
        (techniques.budget, techniques.frame_share) = (Budget::Divided, 0.3);
    });
    let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
    let table = database.table("rows").unwrap();
    let mut keys = Keys { state: 1, count };
    for first in (0..count).step_by(1_000) {
        let mut load = database.begin();
        for key in first..(first + 1_000).min(count) {
            load.put(table, &key.to_be_bytes(), &[7; 8]).unwrap();
        }
        load.commit().unwrap();
    }
    database.merge().unwrap();
    for key in 0..count {
        black_box(database.begin().get(table, &key.to_be_bytes()).unwrap());
    }
    measure("query, no deltas", rounds, &database, |engine, rounds| {
        query_bases(engine, table, &mut keys, rounds);
    });
    for change in 0..count {
        let mut transaction = database.begin();
        transaction.put(table, &change.to_be_bytes(), &change.to_le_bytes()).unwrap();
        transaction.commit().unwrap();
    }
    let deltas = database.stats().engine.memory.deltas;
    println!("{count} deltas in {deltas} bytes");
    measure("query, a million deltas", rounds, &database, |engine, rounds| {
        query_deltas(engine, table, &mut keys, rounds);
    });
    measure("lock of a query alone", rounds, &database, |engine, rounds| {
        lock_alone(engine, table, &mut keys, rounds);
    });
    measure("transaction alone", rounds, &database, |engine, rounds| {
        nothing_alone(engine, rounds);
    });
    measure("update, a million deltas", rounds, &database, |engine, rounds| {
        update(engine, table, &mut keys, rounds);
    });
    measure_many(rounds, &database, table, &mut keys);
    database.close().unwrap();
}

/// Updates in transactions of many: what of them are the puts and the commit, and what locks alone.
fn measure_many(rounds: u32, database: &Database, table: Table, keys: &mut Keys) {
    let [mut lock_ns, mut release_ns, mut put_ns, mut commit_ns] = [0; 4];
    let transactions = rounds / MANY;
    for _ in 0..transactions {
        let mut engine = database.runtime().engine();
        let start = Instant::now();
        let xid = lock_many(&mut engine, table, keys);
        lock_ns += end(&mut engine, xid, start, &mut release_ns);
        let start = Instant::now();
        let xid = put_many(&mut engine, table, keys);
        put_ns += end(&mut engine, xid, start, &mut commit_ns);
        drop(engine);
        database.flush().unwrap();
    }
    let each = |total: u128| total as f64 / f64::from(transactions * MANY);
    println!("update in a transaction of {MANY}: {:.0} ns", each(put_ns + commit_ns));
    println!("  its put {:.0} ns, of that the lock {:.0} ns", each(put_ns), each(lock_ns));
    println!(
        "  its commit {:.0} ns, of that the release {:.0} ns",
        each(commit_ns),
        each(release_ns)
    );
}

/// Commits; gives the nanoseconds from `start` until then, and adds what the commit took.
fn end(engine: &mut Engine, xid: Xid, start: Instant, commit_ns: &mut u128) -> u128 {
    let middle = Instant::now();
    commit(engine, xid);
    *commit_ns += middle.elapsed().as_nanos();
    (middle - start).as_nanos()
}

/// Runs `rounds` of something in batches, and flushes the log and makes room between them, untimed.
fn measure(what: &str, rounds: u32, database: &Database, mut run: impl FnMut(&mut Engine, u32)) {
    let mut total_ns = 0;
    for _ in 0..rounds / BATCH {
        let mut engine = database.runtime().engine();
        let start = Instant::now();
        run(&mut engine, BATCH);
        total_ns += start.elapsed().as_nanos();
        drop(engine);
        database.flush().unwrap();
    }
    println!("{what}: {:.0} ns", total_ns as f64 / f64::from(rounds / BATCH * BATCH));
}

#[inline(never)]
fn query_bases(engine: &mut Engine, table: Table, keys: &mut Keys, rounds: u32) {
    query(engine, table, keys, rounds);
}

#[inline(never)]
fn query_deltas(engine: &mut Engine, table: Table, keys: &mut Keys, rounds: u32) {
    // Else the linker takes it for the function before.
    black_box(());
    query(engine, table, keys, rounds);
}

fn query(engine: &mut Engine, table: Table, keys: &mut Keys, rounds: u32) {
    let mut value = Vec::new();
    for _ in 0..rounds {
        let xid = engine.begin();
        engine.get(xid, table, &keys.draw(), &mut value).unwrap();
        commit(engine, xid);
        black_box(&value);
    }
}

#[inline(never)]
fn lock_alone(engine: &mut Engine, table: Table, keys: &mut Keys, rounds: u32) {
    for _ in 0..rounds {
        let xid = engine.begin();
        engine.lock_key(xid, table, &keys.draw()).unwrap();
        commit(engine, xid);
    }
}

#[inline(never)]
fn nothing_alone(engine: &mut Engine, rounds: u32) {
    for _ in 0..rounds {
        let xid = engine.begin();
        commit(engine, xid);
    }
}

#[inline(never)]
fn update(engine: &mut Engine, table: Table, keys: &mut Keys, rounds: u32) {
    for round in 0..rounds {
        let xid = engine.begin();
        let value = u64::from(round).to_le_bytes();
        engine.put(xid, table, &keys.draw(), &value).unwrap();
        commit(engine, xid);
    }
}

#[inline(never)]
fn lock_many(engine: &mut Engine, table: Table, keys: &mut Keys) -> Xid {
    let xid = engine.begin();
    for _ in 0..MANY {
        engine.lock_key(xid, table, &keys.draw()).unwrap();
    }
    xid
}

#[inline(never)]
fn put_many(engine: &mut Engine, table: Table, keys: &mut Keys) -> Xid {
    let xid = engine.begin();
    for round in 0..MANY {
        let value = u64::from(round).to_le_bytes();
        engine.put(xid, table, &keys.draw(), &value).unwrap();
    }
    xid
}

#[inline(never)]
fn commit(engine: &mut Engine, xid: Xid) {
    if let Err(stop) = engine.commit(xid, Durability::Deferred) {
        panic!("no room for a commit: {stop:?}");
    }
}
