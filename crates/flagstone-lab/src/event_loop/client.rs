//! One client: an endless sequence of transactions, each begun again until it commits.

use flagstone_engine::{Durability, Stop, Xid};
use flagstone_space::Lsn;

use crate::store::Driven;
use crate::workload::{Draws, Outcome, Terminal};

/// Stream of draws of client 0; the terminals' streams count up from 0.
const DRAWS_STREAM: u64 = 1 << 40;

/// Granularity of shares that are drawn.
const SHARE_UNITS: u64 = 1 << 32;

/// Behaviour of clients beside their transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Manners {
    /// Share of the transactions that abort where they would commit.
    pub abort_ratio: f64,
    /// Longest wait of a deadlock's victim before it begins again; the wait is drawn evenly. 0 lets
    /// it begin at once.
    pub backoff_ns: u64,
    /// Seed of both draws.
    pub seed: u64,
}

/// A client and its transaction.
pub(super) struct Client<T> {
    terminal: T,
    /// Transaction of the engine; none between transactions.
    xid: Option<Xid>,
    is_active: bool,
    outcome: Option<Outcome>,
    started_ns: u64,
    /// Commits acknowledged, by class.
    acknowledged: Vec<u64>,
    manners: Manners,
    draws: Draws,
    /// The transaction aborts where it would commit; drawn once for each.
    must_abort: bool,
}

/// Why a client's run ended.
pub(super) enum Ended {
    /// The commit has its place in the log.
    Committed(Lsn),
    /// The transaction was given up; the client goes on with the next one when it runs again.
    GaveUp,
    /// An operation stopped.
    Stopped(Stop),
}

impl<T: Terminal> Client<T> {
    /// Client `number`, before its first transaction.
    pub(super) fn new(terminal: T, class_count: usize, number: u32, manners: Manners) -> Self {
        let stream = DRAWS_STREAM + u64::from(number);
        Self {
            terminal,
            xid: None,
            is_active: false,
            outcome: None,
            started_ns: 0,
            acknowledged: vec![0; class_count],
            manners,
            draws: Draws::new(manners.seed, stream),
            must_abort: false,
        }
    }

    /// How long the victim of a deadlock waits.
    pub(super) fn backoff_ns(&mut self) -> u64 {
        self.draws.below(self.manners.backoff_ns)
    }

    pub(super) fn xid(&self) -> Option<Xid> {
        self.xid
    }

    pub(super) fn class(&self) -> usize {
        self.terminal.class()
    }

    pub(super) fn started_ns(&self) -> u64 {
        self.started_ns
    }

    pub(super) fn acknowledged(&self) -> &[u64] {
        &self.acknowledged
    }

    /// Whether a transaction has begun that is not durable yet.
    pub(super) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Goes on until the transaction has its place in the log or is given up, or until an
    /// operation stops.
    pub(super) fn run(
        &mut self,
        engine: &impl Driven,
        now_ns: u64,
        durability: Durability,
    ) -> Ended {
        if !self.is_active {
            self.is_active = true;
            self.started_ns = now_ns;
            let share = self.draws.below(SHARE_UNITS) as f64 / SHARE_UNITS as f64;
            self.must_abort = share < self.manners.abort_ratio;
        }
        match self.advance(engine, durability) {
            Ok(ended) => ended,
            Err(stop) => Ended::Stopped(stop),
        }
    }

    fn advance(&mut self, engine: &impl Driven, durability: Durability) -> Result<Ended, Stop> {
        let xid = *self.xid.get_or_insert_with(|| engine.begin());
        let outcome = match self.outcome {
            Some(outcome) => outcome,
            None => {
                let outcome = self.terminal.advance(&mut engine.session(xid))?;
                let outcome = if self.must_abort { Outcome::Abort } else { outcome };
                *self.outcome.insert(outcome)
            }
        };
        match outcome {
            Outcome::Commit => engine.commit(xid, durability).map(Ended::Committed),
            Outcome::Abort => {
                engine.abort(xid)?;
                Ok(Ended::GaveUp)
            }
        }
    }

    /// The transaction is over: the next one begins when the client runs again.
    pub(super) fn finish(&mut self, outcome: Outcome) {
        if outcome == Outcome::Commit
            && let Some(count) = self.acknowledged.get_mut(self.terminal.class())
        {
            *count += 1;
        }
        self.is_active = false;
        (self.xid, self.outcome) = (None, None);
        self.terminal.next(outcome);
    }

    /// The engine has aborted the transaction to end a deadlock: the same one begins again.
    pub(super) fn restart(&mut self) {
        (self.xid, self.outcome) = (None, None);
        self.terminal.restart();
    }
}
