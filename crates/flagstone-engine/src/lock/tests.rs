//! Facts about the lock table, and random schedules against a brute-force model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const A: Xid = Xid(1);
const B: Xid = Xid(2);
const C: Xid = Xid(3);
const D: Xid = Xid(4);
const S: Mode = Mode::Shared;
const X: Mode = Mode::Exclusive;

fn record(key: &[u8]) -> Target<'_> {
    Target::Record { tree: 1, key }
}

fn interval<'a>(low: &'a [u8], high: &'a [u8]) -> Target<'a> {
    Target::Interval { tree: 1, low, high: Some(high) }
}

#[test]
fn readers_share_and_a_writer_waits_for_all_of_them() {
    let mut table = LockTable::within(usize::MAX);
    assert_eq!(table.acquire(A, record(b"k"), S), LockOutcome::Granted);
    assert_eq!(table.acquire(B, record(b"k"), S), LockOutcome::Granted);
    assert_eq!(table.acquire(C, record(b"k"), X), LockOutcome::Wait);
    assert_eq!(table.release_all(A), vec![]);
    assert_eq!(table.release_all(B), vec![C]);
    assert_eq!(table.acquire(C, record(b"k"), X), LockOutcome::Granted);
    assert_eq!(table.release_all(C), vec![]);
    assert!(table.is_empty());
}

#[test]
fn a_reader_behind_a_waiting_writer_waits_too() {
    let mut table = LockTable::within(usize::MAX);
    assert_eq!(table.acquire(A, record(b"k"), S), LockOutcome::Granted);
    assert_eq!(table.acquire(B, record(b"k"), X), LockOutcome::Wait);
    assert_eq!(table.acquire(C, record(b"k"), S), LockOutcome::Wait);
    assert_eq!(table.release_all(A), vec![B]);
    assert_eq!(table.release_all(B), vec![C]);
}

#[test]
fn a_cancelled_writer_lets_the_readers_behind_it_in() {
    let mut table = LockTable::within(usize::MAX);
    assert_eq!(table.acquire(A, record(b"k"), S), LockOutcome::Granted);
    assert_eq!(table.acquire(B, record(b"k"), X), LockOutcome::Wait);
    assert_eq!(table.acquire(C, record(b"k"), S), LockOutcome::Wait);
    assert_eq!(table.acquire(D, record(b"k"), S), LockOutcome::Wait);
    assert_eq!(table.cancel_wait(B), vec![C, D]);
}

#[test]
fn an_upgrade_goes_ahead_of_the_queue() {
    let mut table = LockTable::within(usize::MAX);
    assert_eq!(table.acquire(A, record(b"k"), S), LockOutcome::Granted);
    assert_eq!(table.acquire(B, record(b"k"), S), LockOutcome::Granted);
    assert_eq!(table.acquire(C, record(b"k"), X), LockOutcome::Wait);
    assert_eq!(table.acquire(A, record(b"k"), X), LockOutcome::Wait);
    assert_eq!(table.release_all(B), vec![A]);
    assert_eq!(table.release_all(A), vec![C]);
}

#[test]
fn two_upgrades_of_one_record_are_a_deadlock_and_the_younger_dies() {
    let mut table = LockTable::within(usize::MAX);
    assert_eq!(table.acquire(A, record(b"k"), S), LockOutcome::Granted);
    assert_eq!(table.acquire(B, record(b"k"), S), LockOutcome::Granted);
    assert_eq!(table.acquire(B, record(b"k"), X), LockOutcome::Wait);
    assert_eq!(table.acquire(A, record(b"k"), X), LockOutcome::Deadlock { victim: B });
    assert_eq!(table.release_all(B), vec![A]);
    assert_eq!(table.acquire(A, record(b"k"), X), LockOutcome::Granted);
}

#[test]
fn blind_puts_and_scans_see_each_other() {
    let mut table = LockTable::within(usize::MAX);
    assert_eq!(table.acquire(A, record(b"m"), X), LockOutcome::Granted);
    assert_eq!(table.acquire(B, interval(b"a", b"m"), S), LockOutcome::Granted);
    assert_eq!(table.acquire(B, interval(b"a", b"n"), S), LockOutcome::Wait);
    assert_eq!(table.release_all(A), vec![B]);
    assert_eq!(table.acquire(C, record(b"c"), X), LockOutcome::Wait);
    assert_eq!(table.acquire(D, record(b"n"), X), LockOutcome::Granted);
    assert_eq!(table.acquire(D, record(b"c"), S), LockOutcome::Wait);
    assert_eq!(table.release_all(B), vec![C]);
    assert_eq!(table.release_all(C), vec![D]);
}

#[test]
fn an_open_interval_reaches_to_the_end_of_its_tree_only() {
    let mut table = LockTable::within(usize::MAX);
    let open = Target::Interval { tree: 1, low: b"m", high: None };
    assert_eq!(table.acquire(A, open, S), LockOutcome::Granted);
    assert_eq!(table.acquire(B, record(b"zzz"), X), LockOutcome::Wait);
    assert_eq!(table.acquire(C, record(b"l"), X), LockOutcome::Granted);
    let elsewhere = Target::Record { tree: 2, key: b"zzz" };
    assert_eq!(table.acquire(D, elsewhere, X), LockOutcome::Granted);
}

#[test]
fn a_scan_queued_behind_an_updater_does_not_stop_the_updater() {
    let mut table = LockTable::within(usize::MAX);
    assert_eq!(table.acquire(A, record(b"b"), X), LockOutcome::Granted);
    assert_eq!(table.acquire(B, interval(b"a", b"z"), S), LockOutcome::Wait);
    assert_eq!(table.acquire(A, record(b"c"), X), LockOutcome::Granted);
    assert_eq!(table.release_all(A), vec![B]);
}

#[test]
fn intervals_that_touch_are_kept_as_one() {
    let mut table = LockTable::within(usize::MAX);
    for step in 0..100_u8 {
        assert_eq!(table.acquire(A, interval(&[step], &[step + 1]), S), LockOutcome::Granted);
    }
    assert_eq!(table.trees[&Space::tree(1)].intervals.len(), 1);
    assert_eq!(table.acquire(A, interval(&[0], &[100]), X), LockOutcome::Granted);
    assert_eq!(table.trees[&Space::tree(1)].intervals.len(), 1);
}

#[test]
fn an_interval_meets_each_of_many_record_locks() {
    let mut table = LockTable::within(usize::MAX);
    for number in 0..1000_u32 {
        let key = number.to_be_bytes();
        assert_eq!(table.acquire(A, record(&key), X), LockOutcome::Granted);
    }
    let inside = interval(&[0, 0, 3, 0], &[0, 0, 3, 1]);
    assert_eq!(table.acquire(B, inside, S), LockOutcome::Wait);
    let outside = interval(&[0, 0, 4, 0], &[0, 0, 5, 0]);
    assert_eq!(table.acquire(C, outside, S), LockOutcome::Granted);
    assert!(table.bytes() > 4000, "a thousand keys are charged");
    assert_eq!(table.release_all(A), vec![B]);
}

#[test]
fn a_new_sibling_inherits_the_locks_of_its_page() {
    let mut table = LockTable::within(usize::MAX);
    let (old, new) = (LogicalPage(7), LogicalPage(8));
    assert_eq!(table.acquire(A, Target::Page(old), S), LockOutcome::Granted);
    assert_eq!(table.acquire(B, Target::Page(old), S), LockOutcome::Granted);
    table.inherit_page(old, new);
    assert_eq!(table.acquire(C, Target::Page(new), X), LockOutcome::Wait);
    assert_eq!(table.release_all(A), vec![]);
    assert_eq!(table.release_all(B), vec![C]);
}

#[test]
fn asking_for_something_else_gives_the_queued_request_up() {
    let mut table = LockTable::within(usize::MAX);
    assert_eq!(table.acquire(A, record(b"k"), S), LockOutcome::Granted);
    assert_eq!(table.acquire(B, record(b"k"), X), LockOutcome::Wait);
    assert_eq!(table.acquire(C, record(b"k"), S), LockOutcome::Wait);
    assert_eq!(table.acquire(B, record(b"l"), X), LockOutcome::Granted);
    assert_eq!(table.release_all(D), vec![C], "whom it let in is reported by the next call");
}

#[test]
fn an_idle_table_keeps_no_ordered_index() {
    let mut table = LockTable::within(usize::MAX);
    for number in 0..100_u8 {
        assert_eq!(table.acquire(A, record(&[number]), X), LockOutcome::Granted);
    }
    assert_eq!(table.acquire(B, interval(&[200], &[201]), S), LockOutcome::Granted);
    table.release_all(B);
    table.release_all(A);
    assert!(table.trees.is_empty());
}

/// Goal (I7): locks of a transaction take no more memory than a fixed number of record locks,
/// whatever it touches, and still cover the same keys. Method: records in order and in none, read
/// and changed; locks of others between them, beside them, and in the way.
#[test]
fn very_many_record_locks_become_intervals() {
    let key = |number: u32| number.wrapping_mul(2_654_435_761).to_be_bytes();
    for (is_sorted, mode) in [(true, X), (false, X), (true, S), (false, S)] {
        let place = |number: u32| if is_sorted { number.to_be_bytes() } else { key(number) };
        let mut table = LockTable::within(1_000 * POINT_SIZE);
        for number in 1..20_000 {
            assert_eq!(table.acquire(A, record(&place(number)), mode), LockOutcome::Granted);
        }
        assert!(table.bytes() < 1_500 * POINT_SIZE, "{} bytes", table.bytes());
        let other = Target::Record { tree: 2, key: &place(77) };
        assert_eq!(table.acquire(B, other, X), LockOutcome::Granted);
        assert_eq!(table.acquire(B, record(&place(77)), X), LockOutcome::Wait);
        assert_eq!(table.acquire(C, record(&[0; 5]), X), LockOutcome::Granted);
        assert_eq!(table.release_all(A), vec![B]);
        assert_eq!(table.release_all(B), vec![]);
        assert_eq!(table.release_all(C), vec![]);
        assert!(table.is_empty() && table.trees.is_empty() && table.records.len() == 0);
    }
    // Long keys.
    let mut table = LockTable::within(1_000 * POINT_SIZE);
    for number in 0..2_000_u32 {
        let key = [&number.to_be_bytes()[..], &[7; 1_000]].concat();
        assert_eq!(table.acquire(A, record(&key), X), LockOutcome::Granted);
    }
    assert!(table.bytes() < 1_500 * POINT_SIZE, "{} bytes", table.bytes());
    // Locks of others between them.
    let mut table = LockTable::within(1_000 * POINT_SIZE);
    let others = [5_000_u32, 5_003, 11_000];
    for other in others {
        assert_eq!(table.acquire(B, record(&other.to_be_bytes()), S), LockOutcome::Granted);
    }
    for number in (0..20_000_u32).filter(|number| !others.contains(number)) {
        assert_eq!(table.acquire(A, record(&number.to_be_bytes()), X), LockOutcome::Granted);
    }
    assert!(table.bytes() < 2_000 * POINT_SIZE, "{} bytes", table.bytes());
    for free in [5_001_u32, 0, 19_999] {
        assert_eq!(table.acquire(C, record(&free.to_be_bytes()), S), LockOutcome::Wait);
        table.cancel_wait(C);
    }
    assert_eq!(table.acquire(C, record(&5_003_u32.to_be_bytes()), S), LockOutcome::Granted);
    assert_eq!(table.acquire(B, record(&5_001_u32.to_be_bytes()), S), LockOutcome::Wait);
    assert_eq!(table.release_all(A), vec![B]);
}

/// A target owned by a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    Record(u32, [u8; 1]),
    Interval(u32, [u8; 1], Option<[u8; 1]>),
    Page(u32),
}

impl Aim {
    fn target(&self) -> Target<'_> {
        match self {
            Self::Record(tree, key) => Target::Record { tree: *tree, key },
            Self::Interval(tree, low, high) => {
                Target::Interval { tree: *tree, low, high: high.as_ref().map(|h| &h[..]) }
            }
            Self::Page(page) => Target::Page(LogicalPage(*page)),
        }
    }

    /// The keys of the target, as (space, number).
    fn points(&self) -> BTreeSet<(u32, u8)> {
        match *self {
            Self::Record(tree, [key]) => BTreeSet::from([(tree, key)]),
            Self::Page(page) => BTreeSet::from([(99, page as u8)]),
            Self::Interval(tree, [low], high) => {
                (low..high.map_or(16, |h| h[0])).map(|key| (tree, key)).collect()
            }
        }
    }

    fn meets(&self, other: &Self) -> bool {
        !self.points().is_disjoint(&other.points())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(usize, Aim, Mode),
    Finish(usize),
    Cancel(usize),
}

const ACTOR_COUNT: usize = 7;

fn any_aim() -> impl Strategy<Value = Aim> {
    prop_oneof![
        4 => (0..2_u32, 0..6_u8).prop_map(|(tree, key)| Aim::Record(tree, [key])),
        2 => (0..2_u32, 0..6_u8, 1..4_u8).prop_map(|(t, low, n)| {
            Aim::Interval(t, [low], Some([low + n]))
        }),
        1 => (0..2_u32, 0..6_u8).prop_map(|(tree, low)| Aim::Interval(tree, [low], None)),
        1 => (0..2_u32).prop_map(Aim::Page),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let actor = 0..ACTOR_COUNT;
    let mode = prop_oneof![Just(S), Just(X)];
    prop_oneof![
        12 => (actor.clone(), any_aim(), mode).prop_map(|(a, t, m)| Step::Ask(a, t, m)),
        2 => actor.clone().prop_map(Step::Finish),
        1 => actor.prop_map(Step::Cancel),
    ]
}

/// A schedule's knowledge: every grant and every wait, without any shortcut.
struct Model {
    table: LockTable,
    actors: [Option<Xid>; ACTOR_COUNT],
    last_xid: u64,
    held: Vec<(Xid, Aim, Mode)>,
    waiting: BTreeMap<Xid, (Aim, Mode)>,
}

impl Model {
    fn new(points_max: usize) -> Self {
        let points_size_max = points_max.saturating_mul(POINT_SIZE);
        Self {
            table: LockTable { points_size_max, ..LockTable::within(0) },
            actors: [None; ACTOR_COUNT],
            last_xid: 0,
            held: Vec::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Counts the intervals that the table gave in place of records as held, too: no request was
    /// answered with them.
    fn note_coarse(&mut self, xid: Xid) {
        for (space, tree) in &self.table.trees {
            let Some(number) = (0..2).find(|tree| Space::tree(*tree) == *space) else { continue };
            for interval in tree.intervals.iter().filter(|i| i.xid == xid && i.rank.is_none()) {
                let end = |high: &[u8]| [high[0] + u8::from(high.len() > 1)];
                let high = interval.high.as_deref().map(end);
                let aim = Aim::Interval(number, [interval.low[0]], high);
                if !self.held.contains(&(xid, aim, interval.mode)) {
                    self.held.push((xid, aim, interval.mode));
                }
            }
        }
    }

    fn xid(&mut self, actor: usize) -> Xid {
        *self.actors[actor].get_or_insert_with(|| {
            self.last_xid += 1;
            Xid(self.last_xid)
        })
    }

    fn is_stopped(&self, xid: Xid) -> bool {
        self.waiting.contains_key(&xid)
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Ask(actor, aim, mode) => {
                let xid = self.xid(*actor);
                if !self.is_stopped(xid) {
                    self.ask(xid, *aim, *mode);
                }
            }
            Step::Finish(actor) => {
                let xid = self.xid(*actor);
                self.finish(xid);
            }
            Step::Cancel(actor) => {
                let xid = self.xid(*actor);
                self.waiting.remove(&xid);
                let woken = self.table.cancel_wait(xid);
                self.wake(&woken);
            }
        }
        self.check();
    }

    fn ask(&mut self, xid: Xid, aim: Aim, mode: Mode) {
        loop {
            match self.table.acquire(xid, aim.target(), mode) {
                LockOutcome::Granted => {
                    self.waiting.remove(&xid);
                    self.held.push((xid, aim, mode));
                    return self.note_coarse(xid);
                }
                LockOutcome::Wait => {
                    self.waiting.insert(xid, (aim, mode));
                    return;
                }
                LockOutcome::Deadlock { victim } => {
                    self.waiting.insert(xid, (aim, mode));
                    assert!(
                        self.reaches(xid, victim) && self.reaches(victim, xid),
                        "not on a cycle"
                    );
                    self.finish(victim);
                    if victim == xid || !self.waiting.contains_key(&xid) {
                        return;
                    }
                }
            }
        }
    }

    fn finish(&mut self, xid: Xid) {
        self.held.retain(|(holder, ..)| *holder != xid);
        self.waiting.remove(&xid);
        for actor in &mut self.actors {
            if *actor == Some(xid) {
                *actor = None;
            }
        }
        let woken = self.table.release_all(xid);
        self.wake(&woken);
    }

    fn wake(&mut self, woken: &[Xid]) {
        for xid in woken {
            let (aim, mode) = self.waiting.remove(xid).expect("only a waiter is woken");
            assert_eq!(self.table.acquire(*xid, aim.target(), mode), LockOutcome::Granted);
            self.held.push((*xid, aim, mode));
            self.note_coarse(*xid);
        }
    }

    /// All transactions that `xid` may wait for, whatever the order of the queues.
    fn may_wait_for(&self, xid: Xid) -> BTreeSet<Xid> {
        let mut found = BTreeSet::new();
        if let Some((aim, mode)) = self.waiting.get(&xid) {
            let held = self.held.iter().map(|(other, a, m)| (*other, a, m));
            let queued = self.waiting.iter().map(|(other, (a, m))| (*other, a, m));
            let blocks = |other: &(Xid, &Aim, &Mode)| {
                other.0 != xid && other.1.meets(aim) && other.2.conflicts(*mode)
            };
            found.extend(held.chain(queued).filter(blocks).map(|(other, ..)| other));
        }
        found
    }

    fn reaches(&self, from: Xid, to: Xid) -> bool {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(next) = open.pop() {
            for other in self.may_wait_for(next) {
                if seen.insert(other) {
                    open.push(other);
                }
            }
        }
        from == to || seen.contains(&to)
    }

    fn check(&self) {
        for (index, (xid, aim, mode)) in self.held.iter().enumerate() {
            for (other_xid, other, other_mode) in &self.held[..index] {
                let clash = xid != other_xid && mode.conflicts(*other_mode) && aim.meets(other);
                assert!(!clash, "I1: {xid:?} and {other_xid:?} both hold {aim:?}");
            }
        }
        for xid in self.waiting.keys() {
            assert!(self.table.is_waiting(*xid));
            assert!(!self.may_wait_for(*xid).is_empty(), "I2: {xid:?} waits for nobody");
        }
    }

    /// Lets the running transactions finish until none is left: a missed cycle or a lost wake-up
    /// leaves a set of transactions that all wait.
    fn drain(&mut self) {
        while let Some(xid) = self.actors.iter().flatten().copied().find(|x| !self.is_stopped(*x)) {
            self.finish(xid);
            self.check();
        }
        assert!(self.actors.iter().all(Option::is_none), "I4: everybody left waits");
        assert!(
            self.table.is_empty() && self.table.trees.is_empty() && self.table.records.len() == 0
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    /// Goal: mutual exclusion, no lost wake-up, every cycle found with its victim on it, every
    /// transaction finishes. Method: random schedules of seven actors; the model knows only the
    /// answers.
    #[test]
    fn random_schedules_exclude_wake_and_finish(
        steps in prop::collection::vec(any_step(), 1..80),
        points_max in prop_oneof![Just(2_usize), Just(3), Just(usize::MAX)],
    ) {
        let mut model = Model::new(points_max);
        for step in &steps {
            model.step(step);
        }
        model.drain();
    }
}
