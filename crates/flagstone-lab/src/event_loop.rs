//! The event loop: any number of clients on one thread, in device time, on the engine's own code.
//!
//! Owns the virtual clock, the clients and the two actors beside them: the log, which is flushed
//! whenever the device has taken the last flush (an engine without a log has several commits under
//! way), and the background worker, which has as many pieces of work under way as the engine allows.
//! Never waits and never looks at the wall clock.
//!
//! - **L1** An operation that finds all it needs in memory takes no device time.
//! - **L2** A client waits for exactly one thing: a read of its own, room, a lock, or its commit to
//!   become durable.
//! - **L3** An operation issued at an event starts no earlier than the event's time; dies work in
//!   parallel, each in turn.
//! - **L4** Device and counters depend on seed and configuration alone.
//! - **L5** A run ends with exactly the commits asked for. Where one flush makes more commits
//!   durable, the others are acknowledged at the same time by the clock, but in the next run.
//!
//! ```text
//!            miss          read done                 commit            flush done
//! Running ─────────▶  Read  ───────▶ Running ─────────────▶ Durable ─────────────▶ Running (next)
//!    │ ▲  a wait                         │
//!    └─┴───────── Room / Lock ───────────┘ deadlock: begins again
//! ```

mod client;

use std::collections::VecDeque;

use flagstone_engine::{Durability, EngineError, Fetched, Step, Stop, Wait};
use flagstone_space::Lsn;

use crate::bench::BenchError;
use crate::clock::Clock;
use crate::store::Driven;
use crate::tally::Tally;
use crate::workload::{Acknowledged, Outcome, Terminal, Workload};
use client::{Client, Ended};

pub use client::Manners;

/// Steps without a commit after which a run counts as stalled: thousands a client are far beyond
/// the steps that any back-pressure takes.
const STEPS_MAX: u32 = 2_000_000;

/// Rounds with nothing under way after which the loop gives up.
const IDLE_ROUNDS_MAX: u32 = 10_000;

/// Work under way on the device.
enum Event<E: Driven> {
    /// A client's page has come.
    Fetched(u32, Fetched),
    /// A page for the background worker has come.
    WorkerFetched(Fetched),
    /// The programs of a flush are done.
    Flushed(E::Flush),
    /// The programs of background work are done.
    Worked(Box<E::Work>),
    /// Commits have waited for company as long as they may.
    Due,
    /// A deadlock's victim has waited long enough.
    Retry(u32),
}

/// Whether the worker can begin a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Idle,
    /// Waits for a page.
    Reading,
    /// Could not go on; tries again after the next event that may have changed that.
    Held,
}

/// A commit that waits to become durable.
struct Pending {
    lsn: Lsn,
    since_ns: u64,
    client: u32,
}

/// Clients in a closed loop without think time, and the engine under them.
pub struct EventLoop<'e, E: Driven, T> {
    engine: &'e E,
    durability: Durability,
    clients: Vec<Client<T>>,
    clock: Clock<Event<E>>,
    ready: VecDeque<u32>,
    on_room: Vec<(u32, Wait)>,
    on_lock: Vec<u32>,
    on_durable: VecDeque<Pending>,
    /// Flushes under way.
    flushes: usize,
    /// Pieces of background work under way.
    works: usize,
    worker: Actor,
    /// Transactions of the clients since [`EventLoop::reset_tally`], by class.
    pub tally: Tally,
    /// Durable commits since the loop began.
    commits: u64,
    /// Commits at which the run stops: later ones are acknowledged in the next run.
    goal: u64,
    /// Whether an [`Event::Due`] is to come.
    is_due_set: bool,
    /// Whether clients begin further transactions.
    is_open: bool,
    /// Rounds in which nothing was under way and no client could go on.
    idle_rounds: u32,
}

impl<'e, E: Driven, T: Terminal> EventLoop<'e, E, T> {
    /// `client_count` clients of `workload` at the start of their first transaction.
    ///
    /// # Errors
    ///
    /// When the histograms of latencies cannot be made.
    pub fn new<W: Workload<Terminal = T>>(
        engine: &'e E,
        workload: &W,
        tables: W::Tables,
        client_count: u32,
        durability: Durability,
        manners: Manners,
    ) -> Result<Self, BenchError> {
        let class_count = workload.classes().len();
        let client = |index| {
            let terminal = workload.terminal(tables, u64::from(index));
            Client::new(terminal, class_count, index, manners)
        };
        Ok(Self {
            engine,
            durability,
            clients: (0..client_count).map(client).collect(),
            clock: Clock::new(engine.now_ns()),
            ready: (0..client_count).collect(),
            on_room: Vec::new(),
            on_lock: Vec::new(),
            on_durable: VecDeque::new(),
            flushes: 0,
            works: 0,
            worker: Actor::Idle,
            tally: Tally::new(workload.classes())?,
            commits: 0,
            goal: 0,
            is_due_set: false,
            is_open: true,
            idle_rounds: 0,
        })
    }

    /// Device time reached.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Durable commits since the loop began.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// Forgets the clients' transactions so far.
    pub fn reset_tally(&mut self) {
        self.tally.reset();
    }

    /// Durable commits of each client since the loop began, by class.
    #[must_use]
    pub fn acknowledged(&self) -> Acknowledged {
        let clients = self.clients.iter().zip(0..);
        clients.map(|(client, number)| (number, client.acknowledged().to_vec())).collect()
    }

    /// Runs until exactly `commits` transactions in all are durable and acknowledged (rule L5).
    ///
    /// # Errors
    ///
    /// The engine's error, or a stall.
    pub fn run_until(&mut self, commits: u64) -> Result<(), BenchError> {
        self.run_within(commits, u64::MAX)
    }

    /// As [`EventLoop::run_until`], or until the clock has reached `end_ns`, if that comes first.
    ///
    /// # Errors
    ///
    /// The engine's error, or a stall.
    pub fn run_within(&mut self, commits: u64, end_ns: u64) -> Result<(), BenchError> {
        let mut steps_left = STEPS_MAX;
        let mut before = self.commits;
        self.goal = commits;
        self.acknowledge();
        while self.commits < commits && self.clock.now_ns() < end_ns {
            self.step()?;
            steps_left -= 1;
            if self.commits != before {
                (before, steps_left) = (self.commits, STEPS_MAX);
            } else if steps_left == 0 {
                return Err(self.stalled());
            }
        }
        Ok(())
    }

    /// Lets every transaction under way end, and begins no other.
    ///
    /// # Errors
    ///
    /// The engine's error, or a stall.
    pub fn drain(&mut self) -> Result<(), BenchError> {
        self.is_open = false;
        self.goal = u64::MAX;
        self.acknowledge();
        while self.clients.iter().any(Client::is_active) {
            self.step()?;
        }
        Ok(())
    }

    /// As [`EventLoop::drain`], and lets the engine's work under way end, so that another driver
    /// may take over.
    ///
    /// # Errors
    ///
    /// The engine's error, or a stall.
    pub fn come_to_rest(&mut self) -> Result<(), BenchError> {
        self.drain()?;
        while self.flushes > 0 || self.works > 0 || self.worker == Actor::Reading {
            self.step()?;
        }
        Ok(())
    }

    /// Everything that can happen now, then the next event.
    fn step(&mut self) -> Result<(), BenchError> {
        while let Some(index) = self.ready.pop_front() {
            self.run_client(index)?;
            self.wake_locked();
            if self.commits >= self.goal {
                return Ok(());
            }
        }
        self.start_flush()?;
        self.start_work()?;
        match self.clock.advance() {
            Some(event) => {
                self.idle_rounds = 0;
                self.handle(event)
            }
            None => self.press_on(),
        }
    }

    /// Nothing is under way: a client that waits for the durable frontier needs a flush (rule D1),
    /// and a worker that found nothing looks on, since it looks at a part of the deltas at a time.
    fn press_on(&mut self) -> Result<(), BenchError> {
        if !self.ready.is_empty() {
            return Ok(());
        }
        self.idle_rounds += 1;
        if self.idle_rounds > IDLE_ROUNDS_MAX {
            return Err(self.stalled());
        }
        self.engine.want(Wait::Durable(self.engine.durable()));
        self.release_held();
        Ok(())
    }

    fn handle(&mut self, event: Event<E>) -> Result<(), BenchError> {
        match event {
            Event::Fetched(index, fetched) => {
                self.engine.fill(fetched)?;
                self.ready.push_back(index);
            }
            Event::WorkerFetched(fetched) => {
                self.engine.fill(fetched)?;
                self.worker = Actor::Idle;
            }
            Event::Flushed(flush) => {
                self.engine.flush_end(flush);
                self.flushes -= 1;
                self.release_held();
                self.acknowledge();
            }
            Event::Due => self.is_due_set = false,
            Event::Retry(index) => self.ready.push_back(index),
            Event::Worked(work) => {
                self.engine.work_end(*work);
                self.works -= 1;
                self.release_held();
            }
        }
        self.wake_locked();
        Ok(())
    }

    /// Runs a client until it has to wait.
    fn run_client(&mut self, index: u32) -> Result<(), BenchError> {
        let now_ns = self.clock.now_ns();
        while let Some(client) = self.clients.get_mut(index as usize)
            && (client.is_active() || self.is_open)
        {
            match client.run(self.engine, now_ns, self.durability) {
                Ended::Committed(lsn) => {
                    self.committed(index, lsn);
                    break;
                }
                Ended::Stopped(stop) => return self.park(index, stop),
                Ended::GaveUp => {
                    self.tally.aborted(client.class());
                    client.finish(Outcome::Abort);
                }
            }
        }
        Ok(())
    }

    /// The commit of a client has its place in the log.
    fn committed(&mut self, index: u32, lsn: Lsn) {
        if self.durability == Durability::Deferred {
            self.finish(index, self.clock.now_ns());
        } else {
            self.on_durable.push_back(Pending {
                lsn,
                since_ns: self.clock.now_ns(),
                client: index,
            });
            // A client that only read durable rows waits for no flush, and perhaps none comes.
            self.acknowledge();
        }
    }

    /// A client's commit is as durable as it asked for.
    fn finish(&mut self, index: u32, asked_ns: u64) {
        let now_ns = self.clock.now_ns();
        self.tally.waited(now_ns.saturating_sub(asked_ns));
        if let Some(client) = self.clients.get_mut(index as usize) {
            let latency_ns = now_ns.saturating_sub(client.started_ns());
            self.tally.committed(client.class(), latency_ns);
            client.finish(Outcome::Commit);
            self.commits += 1;
            self.ready.push_back(index);
        }
    }

    /// Ends every commit that has become durable, up to the goal, in the order of their places.
    fn acknowledge(&mut self) {
        let mut place = 0;
        while let Some(pending) = self.on_durable.get(place)
            && self.commits < self.goal
        {
            let (client, since_ns) = (pending.client, pending.since_ns);
            if self.engine.is_durable(pending.lsn) {
                self.on_durable.remove(place);
                self.finish(client, since_ns);
            } else if self.engine.flushes_max() > 1 {
                place += 1;
            } else {
                break;
            }
        }
    }

    /// Sets a client aside until the event it waits for has come (rule L2).
    fn park(&mut self, index: u32, stop: Stop) -> Result<(), BenchError> {
        match stop {
            Stop::Miss(fetch) => {
                self.at_now();
                let fetched = self.engine.read(fetch)?;
                let end_ns = self.take_end_ns();
                self.clock.set(end_ns, Event::Fetched(index, fetched));
            }
            Stop::Wait(Wait::Lock) => self.on_lock.push(index),
            Stop::Wait(wait) => {
                self.at_now();
                if self.engine.supply(wait)? {
                    self.ready.push_back(index);
                } else {
                    self.engine.want(wait);
                    self.on_room.push((index, wait));
                }
            }
            Stop::Error(EngineError::Deadlock) => {
                let Some(client) = self.clients.get_mut(index as usize) else { return Ok(()) };
                self.tally.restarted(client.class());
                client.restart();
                match client.backoff_ns() {
                    0 => self.ready.push_back(index),
                    wait => self.clock.set(self.clock.now_ns() + wait, Event::Retry(index)),
                }
            }
            Stop::Error(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Ends waits for company that last as long as the engine allows.
    fn end_company(&mut self) {
        let Some(delay) = self.engine.company() else { return };
        let Some(oldest) = self.on_durable.front() else { return };
        let due_ns = oldest.since_ns.saturating_add(delay.as_nanos() as u64);
        if due_ns <= self.clock.now_ns() {
            self.engine.want(Wait::Durable(oldest.lsn));
        } else if !self.is_due_set {
            self.clock.set(due_ns, Event::Due);
            self.is_due_set = true;
        }
    }

    /// Starts a flush when commits wait and the last flush is done: group commit without a delay,
    /// unless the engine wants company.
    fn start_flush(&mut self) -> Result<(), BenchError> {
        self.end_company();
        while self.flushes < self.engine.flushes_max() && self.engine.is_flush_wanted() {
            self.at_now();
            let Some(flush) = self.engine.flush_begin()? else { break };
            let end_ns = self.take_end_ns();
            self.clock.set(end_ns, Event::Flushed(flush));
            self.flushes += 1;
        }
        Ok(())
    }

    /// Starts background work while there is some, as many pieces at a time as the engine allows.
    fn start_work(&mut self) -> Result<(), BenchError> {
        while self.worker == Actor::Idle
            && self.works < self.engine.works_max()
            && self.engine.has_work()
        {
            self.at_now();
            match self.begin_work() {
                Ok(Some(work)) => {
                    let end_ns = self.take_end_ns();
                    self.clock.set(end_ns, Event::Worked(Box::new(work)));
                    self.works += 1;
                }
                Ok(None) => break,
                Err(Stop::Miss(fetch)) => {
                    let fetched = self.engine.read(fetch)?;
                    let end_ns = self.take_end_ns();
                    self.clock.set(end_ns, Event::WorkerFetched(fetched));
                    self.worker = Actor::Reading;
                }
                Err(Stop::Wait(_)) => self.worker = Actor::Held,
                Err(Stop::Error(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Begins work, with the resources that the space floor has at hand.
    fn begin_work(&self) -> Step<Option<E::Work>> {
        loop {
            match self.engine.work_begin() {
                Err(Stop::Wait(wait)) if self.engine.supply(wait)? => {}
                other => return other,
            }
        }
    }

    /// Lets the clients that wait for room go on, and the worker.
    fn release_held(&mut self) {
        self.ready.extend(self.on_room.drain(..).map(|(index, _)| index));
        if self.worker == Actor::Held {
            self.worker = Actor::Idle;
        }
    }

    /// Lets the clients go on whose lock wait has ended.
    fn wake_locked(&mut self) {
        if self.on_lock.is_empty() {
            return;
        }
        for xid in self.engine.take_woken() {
            let is_woken = |index: &u32| {
                self.clients.get(*index as usize).is_some_and(|one| one.xid() == Some(xid))
            };
            if let Some(place) = self.on_lock.iter().position(is_woken) {
                self.ready.push_back(self.on_lock.remove(place));
            }
        }
    }

    /// Operations issued from here on start no earlier than now (rule L3).
    fn at_now(&self) {
        self.engine.at(self.clock.now_ns());
    }

    /// When the operations since [`EventLoop::at_now`] end; now, when there were none.
    fn take_end_ns(&self) -> u64 {
        self.engine.take_end_ns().max(self.clock.now_ns())
    }

    fn stalled(&self) -> BenchError {
        let waits = format!(
            "{:?} for room, {} for locks, {} for a flush; {} flushes, {} works, worker {:?}",
            self.on_room,
            self.on_lock.len(),
            self.on_durable.len(),
            self.flushes,
            self.works,
            self.worker,
        );
        BenchError::Stalled { now_ns: self.clock.now_ns(), waits }
    }
}
