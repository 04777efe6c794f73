//! One client: an endless sequence of transfers.

use super::{HistoryKey, Stream, Tables, Tpcb, Transfer};
use crate::workload::{Operations, Outcome, Terminal};

/// A client of TPC-B.
#[derive(Clone, Debug)]
pub struct Teller {
    tables: Tables,
    stream: Stream,
    transfer: Transfer,
}

impl Teller {
    /// Client `number`, whose history holds `history_rows` rows; `session` tells the streams of
    /// successive lives apart.
    #[must_use]
    pub fn new(tpcb: &Tpcb, tables: Tables, number: u64, history_rows: u64, session: u64) -> Self {
        let mut stream = tpcb.stream(session << 32 | number);
        let history = HistoryKey { client: number, sequence: history_rows };
        let transfer = Transfer::new(tpcb.dialect.balance_kind(), stream.inputs(), history);
        Self { tables, stream, transfer }
    }
}

impl Terminal for Teller {
    fn class(&self) -> usize {
        0
    }

    fn advance<O: Operations>(&mut self, engine: &mut O) -> Result<Outcome, O::Stop> {
        self.transfer.advance(&self.tables, engine)
    }

    fn restart(&mut self) {
        self.transfer.restart();
    }

    fn next(&mut self, ended: Outcome) {
        let HistoryKey { client, sequence } = self.transfer.history();
        // Commits alone spend sequence numbers (rule T2).
        let sequence = sequence + u64::from(ended == Outcome::Commit);
        let inputs = self.stream.inputs();
        self.transfer.reset(inputs, HistoryKey { client, sequence });
    }
}
