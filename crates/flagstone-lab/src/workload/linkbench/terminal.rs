//! One client: an endless sequence of the ten operations.

use std::sync::Arc;

use super::transaction::{Tail, Transaction};
use super::{Bounds, Graph, Inputs, Stream, Tables};
use crate::workload::{self, Draws, Operations, Outcome};

/// First of the streams by which clients choose among the lists that were cut off.
const TAIL_STREAM: u64 = 1 << 44;
/// Lists that were cut off, remembered at a time.
const TAILS_MAX: usize = 2048;

/// A client of LinkBench.
#[derive(Clone, Debug)]
pub struct Terminal {
    tables: Tables,
    bounds: Bounds,
    stream: Stream,
    transaction: Transaction,
    /// Where lists were cut off.
    tails: Vec<Tail>,
    /// Draws of its own, so that inputs do not depend on rows found (rule N1).
    draws: Draws,
}

impl Terminal {
    /// Client `number`, from 0, before its first operation.
    #[must_use]
    pub(crate) fn new(graph: Arc<Graph>, tables: Tables, number: u64) -> Self {
        let (bounds, seed) = (graph.setting.bounds, graph.setting.seed);
        let mut stream = Stream::new(graph, number);
        let transaction = Transaction::new(stream.inputs(), None, &bounds);
        let draws = Draws::new(seed, TAIL_STREAM + number);
        Self { tables, bounds, stream, transaction, tails: Vec::new(), draws }
    }

    /// Inputs of the operation under way.
    #[must_use]
    pub fn inputs(&self) -> &Inputs {
        &self.transaction.inputs
    }

    /// Number of links or nodes that the operation found, or the count it read.
    #[must_use]
    pub fn found(&self) -> usize {
        self.transaction.found
    }

    /// One of the lists that were cut off.
    fn choose(&mut self) -> Option<Tail> {
        let place = self.draws.below(self.tails.len() as u64) as usize;
        self.tails.get(place).copied()
    }

    /// Keeps in mind where a list was cut off.
    fn remember(&mut self, tail: Tail) {
        let going_on = self.transaction.tail();
        let place = self.tails.iter().position(|known| Some(*known) == going_on);
        match place {
            Some(place) => self.tails[place] = tail,
            None if self.tails.len() < TAILS_MAX => self.tails.push(tail),
            None => {
                let place = self.draws.below(TAILS_MAX as u64) as usize;
                self.tails[place] = tail;
            }
        }
    }
}

impl workload::Terminal for Terminal {
    fn class(&self) -> usize {
        self.transaction.inputs.class as usize
    }

    fn advance<O: Operations>(&mut self, engine: &mut O) -> Result<Outcome, O::Stop> {
        self.transaction.advance(&self.tables, engine)
    }

    fn restart(&mut self) {
        self.transaction.restart();
    }

    fn next(&mut self, _: Outcome) {
        if let Some(tail) = self.transaction.cut_off {
            self.remember(tail);
        }
        let inputs = self.stream.inputs();
        let tail = if inputs.is_history { self.choose() } else { None };
        self.transaction = Transaction::new(inputs, tail, &self.bounds);
    }
}
