//! The turns of a history: clients, the log and the background worker, in a drawn order.
//!
//! Owns the database, the waiting clients with their events, and the work in flight. Never looks
//! into a list.

use std::collections::VecDeque;

use flagstone_engine::blocking::Database;
use flagstone_engine::{EngineError, Flush, Stop, Table, Wait, Work};
use flagstone_nand::{Crashable as _, SimNand};
use flagstone_space::Lsn;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;

use super::client::{Client, Halt, Handle, LIST_COUNT, Pace, Turn, Waiting, below, key_of};
use super::graph::{History, ListKey, Lists, NodeIndex, Reader};
use super::threads::lists_in;
use super::{Failure, HistoryConfig, Totals, open_failed};

/// Turns without progress after which a client that waits for room is let go on.
const QUIET_TURNS_MAX: u32 = 500;

/// Times in a row that this may happen before all clients are thought to be stuck.
const PRESSES_MAX: u32 = 2_000;

/// Transactions begun while the lists that most operations go to stay the same.
const HOT_TIME: u64 = 6;

/// Of so many transactions one is a snapshot.
const SNAPSHOT_SHARE: u64 = 6;

/// Turns between checkpoints that are made without need.
const TURNS_PER_CHECKPOINT: u64 = 3_000;

/// Of so many reads of a page one is slow.
const SLOW_SHARE: u64 = 24;

/// Turns of its client that a slow read takes, on average.
const SLOW_TURNS: u64 = 300;

/// Everything of a run.
pub(super) struct World<'c> {
    config: &'c HistoryConfig,
    random: Pcg64Mcg,
    database: Database<SimNand>,
    table: Table,
    history: History,
    clients: Vec<Option<Client>>,
    begun: u64,
    flush: Option<Flush>,
    work: Option<Work>,
    /// Commits that are not known to be durable, in order.
    later: VecDeque<(Lsn, NodeIndex)>,
    quiet_turns: u32,
    presses: u32,
    totals: Totals,
}

impl<'c> World<'c> {
    /// A new database.
    pub(super) fn new(config: &'c HistoryConfig) -> Result<Self, Failure> {
        let chip = SimNand::new(&config.profile, config.seed);
        let database = Database::create_on(chip, &config.setup.options).map_err(open_failed)?;
        config.setup.plant(database.runtime());
        let table = database.table("lists")?;
        let clients = (0..config.clients).map(|_| None).collect();
        Ok(Self {
            config,
            random: Pcg64Mcg::seed_from_u64(config.seed),
            database,
            table,
            history: History::default(),
            clients,
            begun: 0,
            flush: None,
            work: None,
            later: VecDeque::new(),
            quiet_turns: 0,
            presses: 0,
            totals: Totals::default(),
        })
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// Runs one history to its end.
    pub(super) fn live(mut self) -> Result<Self, Failure> {
        self.begun = 0;
        while self.begun < self.config.transactions || self.clients.iter().any(Option::is_some) {
            self.turn()?;
            let cut = self.config.turns_per_cut;
            if cut > 0 && below(&mut self.random, cut) == 0 {
                self = self.power_cut()?;
            }
        }
        Ok(self)
    }

    /// Checks the history that has ended, and clears the table for the next one.
    pub(super) fn judge(&mut self) -> Result<(), Failure> {
        self.end_flush();
        self.end_work();
        self.database.flush()?;
        self.acknowledge();
        let finals = self.lists()?;
        let checked = std::mem::take(&mut self.history).check(&finals)?;
        self.totals.checked.add(&checked);
        let keys: Vec<ListKey> = finals.keys().copied().collect();
        Ok(self.clear(&keys)?)
    }

    /// Deletes lists: as many in a transaction as the log can name, at least one (rule D7).
    fn clear(&self, keys: &[ListKey]) -> Result<(), EngineError> {
        match self.delete_at_once(keys) {
            Err(EngineError::Full | EngineError::TooLarge) if keys.len() > 1 => {
                let (low, high) = keys.split_at(keys.len() / 2);
                self.clear(low)?;
                self.clear(high)
            }
            done => done,
        }
    }

    fn delete_at_once(&self, keys: &[ListKey]) -> Result<(), EngineError> {
        let mut transaction = self.database.begin();
        for key in keys {
            transaction.delete(self.table, &key_of(*key))?;
        }
        transaction.commit().map(drop)
    }

    fn lists(&self) -> Result<Lists, Failure> {
        Ok(lists_in(&self.database, self.table)?)
    }

    fn turn(&mut self) -> Result<(), Failure> {
        if below(&mut self.random, TURNS_PER_CHECKPOINT) == 0 {
            self.database.runtime().engine().want_checkpoint();
        }
        let moved = match below(&mut self.random, 5) {
            0 => self.log_turn()?,
            1 if self.is_idle() => false,
            1 => self.work_turn()?,
            _ => self.client_turn()?,
        };
        self.wake();
        self.quiet_turns = if moved { 0 } else { self.quiet_turns + 1 };
        if self.quiet_turns > QUIET_TURNS_MAX {
            self.press_on()?;
        }
        Ok(())
    }

    /// Whether this turn leaves background work alone.
    fn is_idle(&mut self) -> bool {
        let idleness = self.config.idleness;
        idleness > 1 && below(&mut self.random, idleness) > 0
    }

    /// Nothing moves: a client that waits for the durable frontier needs a flush (rule D1).
    fn press_on(&mut self) -> Result<(), Failure> {
        self.quiet_turns = 0;
        self.presses += 1;
        if self.presses > PRESSES_MAX {
            return Err(Failure::Stalled(format!("{:?}", self.clients)));
        }
        self.database.runtime().engine().want_flush();
        self.release_held();
        Ok(())
    }

    fn client_turn(&mut self) -> Result<bool, Failure> {
        let index = below(&mut self.random, self.clients.len() as u64) as usize;
        let Some(mut client) = self.clients[index].take() else {
            return Ok(self.begin(index));
        };
        let ends_slowness = below(&mut self.random, SLOW_TURNS) == 0;
        let runtime = self.database.runtime();
        match std::mem::replace(&mut client.waiting, Waiting::Nothing) {
            Waiting::Nothing => {}
            Waiting::Page(fetched) => runtime.engine().fill(fetched)?,
            Waiting::Read(fetch, pace) if pace == Pace::AtTheNextTurn || ends_slowness => {
                client.waiting = Waiting::Page(runtime.read(fetch)?);
                self.clients[index] = Some(client);
                return Ok(true);
            }
            other => {
                client.waiting = other;
                self.clients[index] = Some(client);
                return Ok(false);
            }
        }
        let turn = client.go_on(&mut runtime.engine(), self.table, &mut self.history);
        match turn {
            Ok(Turn::GoesOn) => self.clients[index] = Some(client),
            Ok(Turn::Over(ticket)) => {
                if let Some(ticket) = ticket {
                    let place = self.later.partition_point(|(lsn, _)| *lsn <= ticket.lsn);
                    self.later.insert(place, (ticket.lsn, client.node));
                }
                self.presses = 0;
            }
            Err(Halt::Anomaly(anomaly)) => return Err(anomaly.into()),
            Err(Halt::Stop(stop)) => self.clients[index] = self.park(client, stop)?,
        }
        Ok(true)
    }

    /// Begins a transaction or snapshot, unless the history is long enough.
    fn begin(&mut self, index: usize) -> bool {
        if self.begun == self.config.transactions {
            return false;
        }
        let mut engine = self.database.runtime().engine();
        let begun = match below(&mut self.random, SNAPSHOT_SHARE) {
            0 => engine.begin_snapshot().ok().map(|id| (Reader::Snapshot, Handle::Snapshot(id))),
            _ => Some((Reader::Transaction, Handle::Transaction(engine.begin()))),
        };
        drop(engine);
        let Some(begun) = begun else { return false };
        let hot = self.begun / HOT_TIME % u64::from(LIST_COUNT);
        self.clients[index] = Some(Client::drawn(&mut self.random, &mut self.history, begun, hot));
        self.begun += 1;
        true
    }

    /// Sets a client aside until the event it waits for has come; none when it has ended.
    fn park(&mut self, mut client: Client, stop: Stop) -> Result<Option<Client>, Failure> {
        let runtime = self.database.runtime();
        client.waiting = match stop {
            Stop::Miss(fetch) => match below(&mut self.random, SLOW_SHARE) {
                0 => Waiting::Read(fetch, Pace::Slow),
                _ => Waiting::Read(fetch, Pace::AtTheNextTurn),
            },
            Stop::Wait(Wait::Lock) => {
                self.totals.lock_waits += 1;
                Waiting::Lock
            }
            Stop::Wait(wait) if wait.is_at_hand() => match runtime.supply(wait) {
                Ok(()) => Waiting::Nothing,
                Err(error) => return self.give_up(&client, error).map(|()| None),
            },
            Stop::Wait(Wait::Log) => {
                runtime.engine().want_log_room();
                Waiting::Room
            }
            Stop::Wait(Wait::CommitPages) => Waiting::Room,
            Stop::Wait(_) => {
                runtime.engine().want_flush();
                Waiting::Room
            }
            Stop::Error(error) => return self.give_up(&client, error).map(|()| None),
        };
        Ok(Some(client))
    }

    /// A transaction or snapshot ends without having come to its end.
    fn give_up(&mut self, client: &Client, error: EngineError) -> Result<(), Failure> {
        match (client.handle, error) {
            (Handle::Transaction(_), EngineError::Deadlock) => self.totals.victims += 1,
            (Handle::Transaction(xid), EngineError::Full | EngineError::TooLarge) => {
                self.totals.full += 1;
                self.database.runtime().engine().abort(xid);
            }
            (Handle::Snapshot(_), EngineError::SnapshotTooOld) => {
                self.totals.ended_snapshots += 1;
                self.history.snapshot_ended(client.node);
                return Ok(());
            }
            (_, error) => return Err(error.into()),
        }
        self.history.aborted(client.node);
        Ok(())
    }

    /// Begins a flush that is wanted, or ends the one in flight.
    fn log_turn(&mut self) -> Result<bool, Failure> {
        if self.flush.is_some() {
            self.end_flush();
            return Ok(true);
        }
        let runtime = self.database.runtime();
        if !runtime.engine().is_flush_wanted() {
            return Ok(false);
        }
        self.flush = runtime.flush_begin()?;
        Ok(self.flush.is_some())
    }

    fn end_flush(&mut self) {
        if let Some(flush) = self.flush.take() {
            self.database.runtime().flush_end(flush);
            self.acknowledge();
            self.release_held();
        }
    }

    /// Begins background work, or ends the work in flight.
    fn work_turn(&mut self) -> Result<bool, Failure> {
        if self.work.is_some() {
            self.end_work();
            return Ok(true);
        }
        let runtime = self.database.runtime();
        if !runtime.engine().has_work() {
            return Ok(false);
        }
        match runtime.work_begin() {
            Ok(work) => self.work = work,
            Err(Stop::Miss(fetch)) => {
                let fetched = runtime.read(fetch)?;
                runtime.engine().fill(fetched)?;
                return Ok(true);
            }
            // Full leaves everything as it was: others make room, or the client that needs room is
            // refused.
            Err(Stop::Wait(_) | Stop::Error(EngineError::Full)) => {}
            Err(Stop::Error(error)) => return Err(error.into()),
        }
        Ok(self.work.is_some())
    }

    fn end_work(&mut self) {
        if let Some(work) = self.work.take() {
            self.database.runtime().work_end(work);
            self.release_held();
        }
    }

    fn acknowledge(&mut self) {
        let durable = self.database.runtime().engine().durable();
        while let Some((_, node)) = self.later.front().filter(|(lsn, _)| *lsn <= durable) {
            self.history.durable(*node);
            self.later.pop_front();
        }
    }

    fn release_held(&mut self) {
        for client in self.clients.iter_mut().flatten() {
            if matches!(client.waiting, Waiting::Room) {
                client.waiting = Waiting::Nothing;
            }
        }
    }

    /// Lets only the clients go on that the engine names (Y2).
    fn wake(&mut self) {
        let woken = self.database.runtime().engine().take_woken();
        for client in self.clients.iter_mut().flatten() {
            if matches!(client.waiting, Waiting::Lock) && client.is_named(&woken) {
                client.waiting = Waiting::Nothing;
            }
        }
    }

    /// The power goes between two device operations; the database is opened again.
    fn power_cut(mut self) -> Result<Self, Failure> {
        self.totals.cuts += 1;
        self.clients.iter_mut().for_each(|client| *client = None);
        (self.flush, self.work) = (None, None);
        self.later.clear();
        let shared = || Failure::Open(String::from("the database is shared"));
        let mut chip = self.database.into_device().ok_or_else(shared)?;
        chip.power_cycle();
        self.database = Database::over(self.config.setup.open(chip).map_err(open_failed)?);
        self.table = self.database.table("lists")?;
        let found = self.lists()?;
        self.history.power_off(&found)?;
        Ok(self)
    }
}
