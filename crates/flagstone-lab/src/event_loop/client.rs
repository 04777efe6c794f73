//! One client: an endless sequence of transactions, each begun again until it commits.

use flagstone::{Durability, Stop, Xid};
use flagstone_space::Lsn;

use crate::store::Driven;
use crate::workload::{Outcome, Terminal};

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
    pub(super) fn new(terminal: T, class_count: usize) -> Self {
        let acknowledged = vec![0; class_count];
        Self { terminal, xid: None, is_active: false, outcome: None, started_ns: 0, acknowledged }
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
