//! The isolation anomalies by their names (Adya 1999; Hermitage, Kleppmann 2014), all prevented.
//!
//! Goal: no interleaving of transactions shows an anomaly; snapshots show none either.
//!
//! Method: an anomaly is a few sessions. Every interleaving of their steps is run through the engine's own
//! interface on one thread: a step that has to wait is tried again when the engine names its transaction. The
//! reads of the sessions that committed, and the rows that they leave, must be the result of some serial
//! order of them. For the default preset every interleaving is run; the other presets share its locks, and
//! run every ninth.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;

use flagstone::{Durability, Options, PRESETS, Table};
use flagstone_engine::{
    Direction, Engine, Read, RowValue, ScanRange, SnapshotId, Step, Stop, Wait, Xid,
};
use flagstone_nand::{Profile, SimNand};

use crate::on::Database;

/// Acts of a step. Keys and values are one byte each.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Get(u8),
    /// Reads the whole table: any predicate is asked of its rows.
    Scan,
    Put(u8, u8),
    Delete(u8),
    Commit,
    Abort,
}

use Act::{Abort, Commit, Delete, Get, Put, Scan};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Transaction,
    /// Reads only; its first step opens the snapshot.
    Snapshot,
}

type Session = (Role, &'static [Act]);
type Rows = Vec<(u8, u8)>;

const X: u8 = 1;
const Y: u8 = 2;

/// Rows of the table before each run.
const INITIAL: [(u8, u8); 2] = [(X, 10), (Y, 20)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Running,
    Committed,
    Aborted,
    /// Chosen as the victim that ends a deadlock.
    Victim,
}

#[derive(Clone, Copy, Debug)]
enum Handle {
    Transaction(Xid),
    Snapshot(SnapshotId),
}

/// A session in a run.
#[derive(Debug)]
struct Actor {
    role: Role,
    acts: &'static [Act],
    next: usize,
    /// Steps that came up while the session waited.
    owed: usize,
    is_waiting: bool,
    handle: Option<Handle>,
    reads: Vec<Rows>,
    end: End,
}

impl Actor {
    fn new((role, acts): Session) -> Self {
        let (reads, end) = (Vec::new(), End::Running);
        Self { role, acts, next: 0, owed: 0, is_waiting: false, handle: None, reads, end }
    }

    fn is_over(&self) -> bool {
        self.end != End::Running || self.next == self.acts.len()
    }

    fn is_named(&self, woken: &[Xid]) -> bool {
        matches!(self.handle, Some(Handle::Transaction(xid)) if woken.contains(&xid))
    }
}

/// Outcome of a step.
enum Outcome {
    Done(Rows),
    Waits,
    Victim,
}

/// How often something happened over all interleavings.
#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    waits: u64,
    victims: u64,
    all_committed: u64,
}

struct Stage {
    database: Database<SimNand>,
    table: Table,
    tally: Tally,
    /// Transactions that the engine named during other work.
    named: RefCell<Vec<Xid>>,
}

impl Stage {
    fn new(preset: &str) -> Self {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let options = Options::preset(preset).unwrap().with_memory(1 << 20);
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("test").unwrap();
        Self { database, table, tally: Tally::default(), named: RefCell::default() }
    }

    fn reset(&self) {
        let mut transaction = self.database.begin();
        (0..8).for_each(|key| transaction.delete(self.table, &[key]).unwrap());
        for (key, value) in INITIAL {
            transaction.put(self.table, &[key], &[value]).unwrap();
        }
        transaction.commit().unwrap();
    }

    fn contents(&self) -> Rows {
        let transaction = self.database.begin();
        let rows = transaction.range(self.table, ..).map(|row| row.unwrap());
        rows.map(|(key, value)| (key[0], value[0])).collect()
    }

    /// Runs an engine operation until it completes or waits for a lock.
    fn complete<T>(&self, mut operation: impl FnMut(&mut Engine) -> Step<T>) -> Step<T> {
        let runtime = self.database.runtime();
        for _ in 0..1000 {
            let step = operation(&mut runtime.engine());
            match step {
                Err(Stop::Miss(fetch)) => {
                    let fetched = runtime.read(fetch).unwrap();
                    runtime.engine().fill(fetched).unwrap();
                }
                Err(Stop::Wait(Wait::CommitPages)) => self.work(),
                Err(Stop::Wait(wait)) if wait != Wait::Lock => self.database.flush().unwrap(),
                other => return other,
            }
        }
        panic!("an operation goes round in circles");
    }

    /// Does a piece of background work, or the flush for which background work waits.
    fn work(&self) {
        let runtime = self.database.runtime();
        match runtime.work_begin() {
            Ok(Some(work)) => runtime.work_end(work),
            Err(Stop::Miss(fetch)) => {
                let fetched = runtime.read(fetch).unwrap();
                runtime.engine().fill(fetched).unwrap();
            }
            Ok(None) => {
                runtime.engine().want_flush();
                if let Some(flush) = runtime.flush_begin().unwrap() {
                    runtime.flush_end(flush);
                }
            }
            Err(stop) => panic!("{stop:?}"),
        }
    }

    fn open(&self, role: Role) -> Handle {
        match role {
            Role::Transaction => Handle::Transaction(self.database.runtime().engine().begin()),
            Role::Snapshot => {
                Handle::Snapshot(self.complete(|engine| engine.begin_snapshot()).unwrap())
            }
        }
    }

    fn get(&self, handle: Handle, key: u8) -> Step<Rows> {
        let mut value = Vec::new();
        let read = self.complete(|engine| match handle {
            Handle::Transaction(xid) => engine.get(xid, self.table, &[key], &mut value),
            Handle::Snapshot(id) => engine.get_snapshot(id, self.table, &[key], &mut value),
        })?;
        Ok(if read == Read::Absent { Rows::new() } else { vec![(key, value[0])] })
    }

    fn scan(&self, handle: Handle) -> Step<Rows> {
        let mut rest = Some(ScanRange::from_bounds(Bound::Unbounded, Bound::Unbounded));
        let (mut rows, way) = (Vec::new(), Direction::Forward);
        while let Some(range) = rest {
            rest = self.complete(|engine| match handle {
                Handle::Transaction(xid) => {
                    engine.scan(xid, self.table, &range, way, 100, &mut rows)
                }
                Handle::Snapshot(id) => {
                    engine.scan_snapshot(id, self.table, &range, way, 100, &mut rows)
                }
            })?;
        }
        let pairs = rows.iter().map(|row| match &row.value {
            RowValue::Inline(value) => (row.key[0], value[0]),
            RowValue::Large(_) => panic!("one byte is stored in its leaf"),
        });
        Ok(pairs.collect())
    }

    fn change(&self, handle: Handle, act: Act) -> Step<Rows> {
        let Handle::Transaction(xid) = handle else { panic!("a snapshot changes nothing") };
        self.complete(|engine| match act {
            Put(key, value) => engine.put(xid, self.table, &[key], &[value]),
            Delete(key) => engine.delete(xid, self.table, &[key]),
            Commit => engine.commit(xid, Durability::Immediate).map(drop),
            _ => {
                engine.abort(xid);
                Ok(())
            }
        })?;
        Ok(Rows::new())
    }

    fn take(&self, handle: Handle, act: Act) -> Outcome {
        let step = match act {
            Get(key) => self.get(handle, key),
            Scan => self.scan(handle),
            _ => self.change(handle, act),
        };
        match step {
            Ok(rows) => Outcome::Done(rows),
            Err(Stop::Wait(_)) => Outcome::Waits,
            Err(Stop::Error(flagstone_engine::EngineError::Deadlock)) => Outcome::Victim,
            Err(other) => panic!("{act:?}: {other:?}"),
        }
    }

    /// Takes the next step of an actor and the steps that it owes, until it waits or ends.
    fn go_on(&mut self, actor: &mut Actor) {
        actor.owed += 1;
        while actor.owed > 0 && !actor.is_waiting && !actor.is_over() {
            let act = actor.acts[actor.next];
            let handle = *actor.handle.get_or_insert_with(|| self.open(actor.role));
            match self.take(handle, act) {
                Outcome::Waits => {
                    self.tally.waits += 1;
                    actor.is_waiting = true;
                    return;
                }
                Outcome::Victim => {
                    self.tally.victims += 1;
                    actor.end = End::Victim;
                }
                Outcome::Done(rows) => self.step_taken(actor, act, rows),
            }
            actor.owed -= 1;
        }
    }

    fn step_taken(&self, actor: &mut Actor, act: Act, rows: Rows) {
        actor.next += 1;
        match act {
            Get(_) | Scan => actor.reads.push(rows),
            Commit => {
                actor.end = End::Committed;
                // The flush would take these names to wake threads; here they stand for actors.
                self.named.borrow_mut().extend(self.database.runtime().engine().take_woken());
                // The flush makes the commit visible to snapshots begun from now on.
                self.database.flush().unwrap();
            }
            Abort => actor.end = End::Aborted,
            Put(..) | Delete(_) => {}
        }
    }

    /// Lets the actors go on that the engine names, until it names none.
    fn wake(&mut self, actors: &mut [Actor]) {
        loop {
            let mut woken = self.named.take();
            woken.extend(self.database.runtime().engine().take_woken());
            if woken.is_empty() {
                return;
            }
            for actor in actors.iter_mut().filter(|actor| actor.is_named(&woken)) {
                if std::mem::take(&mut actor.is_waiting) {
                    // The step that waited is already among the steps that the actor owes.
                    actor.owed -= 1;
                    self.go_on(actor);
                }
            }
        }
    }

    /// Runs the sessions in one interleaving, and compares with all serial orders.
    fn run(&mut self, sessions: &[Session], order: &[usize]) {
        self.reset();
        let mut actors: Vec<Actor> = sessions.iter().map(|session| Actor::new(*session)).collect();
        for index in order {
            self.go_on(&mut actors[*index]);
            self.wake(&mut actors);
        }
        let context = || format!("{sessions:?} as {order:?}: {actors:?}");
        assert!(actors.iter().all(Actor::is_over), "a wake-up was lost: {}", context());
        for actor in &actors {
            if let Some(Handle::Snapshot(id)) = actor.handle {
                self.database.runtime().engine().end_snapshot(id);
            }
        }
        let contents = self.contents();
        assert!(is_serial(&actors, &contents), "{contents:?} after {}", context());
        self.tally.runs += 1;
        let is_kept = |actor: &Actor| actor.end != End::Victim;
        self.tally.all_committed += u64::from(actors.iter().all(is_kept));
    }

    /// Runs every `stride`th interleaving.
    fn run_all(&mut self, sessions: &[Session], stride: usize) {
        let mut left: Vec<usize> = sessions.iter().map(|(_, acts)| acts.len()).collect();
        let mut orders = 0_usize;
        each_interleaving(&mut left, &mut Vec::new(), &mut |order| {
            if orders.is_multiple_of(stride) {
                self.run(sessions, order);
            }
            orders += 1;
        });
    }
}

fn each_interleaving(left: &mut [usize], order: &mut Vec<usize>, visit: &mut dyn FnMut(&[usize])) {
    if left.iter().all(|count| *count == 0) {
        return visit(order);
    }
    for index in 0..left.len() {
        if left[index] > 0 {
            left[index] -= 1;
            order.push(index);
            each_interleaving(left, order, visit);
            order.pop();
            left[index] += 1;
        }
    }
}

/// Whether some serial order of the committed sessions and snapshots gives their reads and leaves `contents`.
fn is_serial(actors: &[Actor], contents: &Rows) -> bool {
    let counts = |actor: &&Actor| actor.role == Role::Snapshot || actor.end == End::Committed;
    let open: Vec<&Actor> = actors.iter().filter(counts).collect();
    some_order_fits(&open, &BTreeMap::from(INITIAL), contents)
}

fn some_order_fits(open: &[&Actor], state: &BTreeMap<u8, u8>, contents: &Rows) -> bool {
    if open.is_empty() {
        return state.iter().map(|(key, value)| (*key, *value)).eq(contents.iter().copied());
    }
    (0..open.len()).any(|first| {
        let mut rest = open.to_vec();
        let actor = rest.remove(first);
        after(actor, state).is_some_and(|state| some_order_fits(&rest, &state, contents))
    })
}

/// The state after an actor alone; none when it would have read something else.
fn after(actor: &Actor, state: &BTreeMap<u8, u8>) -> Option<BTreeMap<u8, u8>> {
    let mut state = state.clone();
    let mut reads = actor.reads.iter();
    for act in actor.acts {
        let read: Rows = match act {
            Get(key) => state.get_key_value(key).map(|(k, v)| (*k, *v)).into_iter().collect(),
            Scan => state.iter().map(|(key, value)| (*key, *value)).collect(),
            Put(key, value) => {
                state.insert(*key, *value);
                continue;
            }
            Delete(key) => {
                state.remove(key);
                continue;
            }
            Commit | Abort => continue,
        };
        if *reads.next()? != read {
            return None;
        }
    }
    Some(state)
}

/// Runs an anomaly three ways on every preset: transactions alone, then with each read-only transaction
/// turned into a snapshot, or, where all of them write, with a snapshot beside them.
fn prevented(name: &str, transactions: &[&'static [Act]]) {
    let reads_only = |acts: &[Act]| acts.iter().all(|act| matches!(act, Get(_) | Scan | Commit));
    let plain: Vec<Session> = transactions.iter().map(|acts| (Role::Transaction, *acts)).collect();
    let mut with_snapshot = plain.clone();
    match with_snapshot.iter_mut().find(|(_, acts)| reads_only(acts)) {
        Some((role, acts)) => {
            *role = Role::Snapshot;
            *acts = &acts[..acts.len() - 1];
        }
        None => with_snapshot.push((Role::Snapshot, &[Get(Y), Scan])),
    }
    for preset in PRESETS {
        for sessions in [&plain, &with_snapshot] {
            let mut stage = Stage::new(preset.name);
            stage.run_all(sessions, if preset.name == PRESETS[0].name { 1 } else { 9 });
            println!("{name}, {}: {:?}", preset.name, stage.tally);
            let tally = &stage.tally;
            assert!(tally.all_committed > 0, "{name}: no interleaving lets all of them end");
            let conflicts = tally.waits + tally.victims;
            let must_meet = sessions == &plain && tally.runs > 2;
            assert!(!must_meet || conflicts > 0, "{name}: they never meet");
        }
    }
}

#[test]
fn g0_dirty_writes_are_prevented() {
    prevented("G0", &[&[Put(X, 11), Put(Y, 21), Commit], &[Put(X, 12), Put(Y, 22), Commit]]);
}

#[test]
fn g1a_aborted_reads_are_prevented() {
    prevented("G1a", &[&[Put(X, 101), Abort], &[Get(X), Get(X), Commit]]);
}

#[test]
fn g1b_intermediate_reads_are_prevented() {
    prevented("G1b", &[&[Put(X, 101), Put(X, 11), Commit], &[Get(X), Get(X), Commit]]);
}

#[test]
fn g1c_circular_information_flow_is_prevented() {
    prevented("G1c", &[&[Put(X, 11), Get(Y), Commit], &[Put(Y, 22), Get(X), Commit]]);
}

#[test]
fn otv_an_observed_transaction_does_not_vanish() {
    let one: &[Act] = &[Put(X, 11), Put(Y, 19), Commit];
    let other: &[Act] = &[Put(X, 12), Put(Y, 18), Commit];
    prevented("OTV", &[one, other, &[Get(X), Get(Y), Get(X), Commit]]);
}

#[test]
fn pmp_a_predicate_read_twice_reads_the_same() {
    prevented("PMP", &[&[Scan, Scan, Commit], &[Put(3, 30), Delete(Y), Commit]]);
}

#[test]
fn p4_lost_updates_are_prevented() {
    prevented("P4", &[&[Get(X), Put(X, 11), Commit], &[Get(X), Put(X, 12), Commit]]);
}

#[test]
fn g_single_read_skew_is_prevented() {
    let writer: &[Act] = &[Get(X), Get(Y), Put(X, 12), Put(Y, 18), Commit];
    prevented("G-single", &[&[Get(X), Get(Y), Commit], writer]);
}

#[test]
fn g2_item_write_skew_is_prevented() {
    let one: &[Act] = &[Get(X), Get(Y), Put(X, 11), Commit];
    let other: &[Act] = &[Get(X), Get(Y), Put(Y, 21), Commit];
    prevented("G2-item", &[one, other]);
}

#[test]
fn g2_cycles_through_predicates_are_prevented() {
    prevented("G2", &[&[Scan, Put(3, 30), Commit], &[Scan, Put(4, 42), Commit]]);
}

/// Goal: the comparison sees the anomalies that it is there for. Method: outcomes that no engine may give.
#[test]
fn the_comparison_knows_lost_updates_and_write_skew() {
    let ended = |acts: &'static [Act], reads: Vec<Rows>| {
        let mut actor = Actor::new((Role::Transaction, acts));
        (actor.reads, actor.end) = (reads, End::Committed);
        actor
    };
    let (x, y) = (vec![(X, 10)], vec![(Y, 20)]);
    let one: &[Act] = &[Get(X), Put(X, 11), Commit];
    let other: &[Act] = &[Get(X), Put(X, 12), Commit];
    let both = [ended(one, vec![x.clone()]), ended(other, vec![x.clone()])];
    assert!(!is_serial(&both, &vec![(X, 12), (Y, 20)]), "a lost update");
    let later = [ended(one, vec![x.clone()]), ended(other, vec![vec![(X, 11)]])];
    assert!(is_serial(&later, &vec![(X, 12), (Y, 20)]));
    let one: &[Act] = &[Get(Y), Put(X, 11), Commit];
    let other: &[Act] = &[Get(X), Put(Y, 21), Commit];
    let skew = [ended(one, vec![y]), ended(other, vec![x])];
    assert!(!is_serial(&skew, &vec![(X, 11), (Y, 21)]), "write skew");
}
