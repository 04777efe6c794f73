//! One client: an endless sequence of transfers, each begun again until it commits.

use flagstone::{Durability, Engine, Read, Stop, Table, Xid};
use flagstone_space::Lsn;

use crate::workload::tpcb::{HistoryKey, Outcome, Stream, Tables, Tpcb, Transfer};
use crate::workload::{Operations, Part};

/// A client and its transaction.
pub(super) struct Client {
    number: u64,
    stream: Stream,
    transfer: Transfer,
    /// Transaction of the engine; none between transactions.
    xid: Option<Xid>,
    is_active: bool,
    is_ready: bool,
    started_ns: u64,
    /// Commits acknowledged, which is also the next history row (rule T2).
    sequence: u64,
    aborts: u32,
}

/// Why a client's run ended.
pub(super) enum Ended {
    /// The commit has its place in the log.
    Committed(Lsn),
    /// An operation stopped.
    Stopped(Stop),
}

impl Client {
    pub(super) fn new(tpcb: &Tpcb, number: u64) -> Self {
        let mut stream = tpcb.stream(number);
        let history = HistoryKey { client: number, sequence: 0 };
        let transfer = Transfer::new(tpcb.dialect.balance_kind(), stream.inputs(), history);
        Self {
            number,
            stream,
            transfer,
            xid: None,
            is_active: false,
            is_ready: false,
            started_ns: 0,
            sequence: 0,
            aborts: 0,
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn xid(&self) -> Option<Xid> {
        self.xid
    }

    pub(super) fn started_ns(&self) -> u64 {
        self.started_ns
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.sequence
    }

    /// Whether a transaction has begun that is not durable yet.
    pub(super) fn is_active(&self) -> bool {
        self.is_active
    }

    pub(super) fn take_aborts(&mut self) -> u32 {
        std::mem::take(&mut self.aborts)
    }

    /// Goes on until the commit has its place in the log, or an operation stops.
    pub(super) fn run(
        &mut self,
        engine: &mut Engine,
        tables: &Tables,
        now_ns: u64,
        durability: Durability,
    ) -> Ended {
        if !self.is_active {
            self.is_active = true;
            self.started_ns = now_ns;
        }
        loop {
            let xid = *self.xid.get_or_insert_with(|| engine.begin());
            if !self.is_ready {
                match self.transfer.advance(tables, &mut Session { engine, xid }) {
                    Ok(Outcome::Ready) => self.is_ready = true,
                    Ok(Outcome::NoAccount) => {
                        engine.abort(xid);
                        self.give_up(now_ns);
                        continue;
                    }
                    Err(stop) => return Ended::Stopped(stop),
                }
            }
            return match engine.commit(xid, durability) {
                Ok(ticket) => Ended::Committed(ticket.lsn),
                Err(stop) => Ended::Stopped(stop),
            };
        }
    }

    /// The commit is acknowledged: the next transaction begins when the client runs again.
    pub(super) fn finish(&mut self) {
        self.is_active = false;
        self.sequence += 1;
        self.next_transfer();
    }

    /// The engine has aborted the transaction to end a deadlock: the same one begins again.
    pub(super) fn restart(&mut self) {
        self.xid = None;
        self.is_ready = false;
        self.transfer.restart();
    }

    /// The transaction has no account: the next one takes its place.
    fn give_up(&mut self, now_ns: u64) {
        self.aborts += 1;
        self.started_ns = now_ns;
        self.next_transfer();
    }

    fn next_transfer(&mut self) {
        self.restart();
        let history = HistoryKey { client: self.number, sequence: self.sequence };
        let inputs = self.stream.inputs();
        self.transfer.reset(inputs, history);
    }
}

/// A transaction of the engine, as the workload sees it.
struct Session<'e> {
    engine: &'e mut Engine,
    xid: Xid,
}

impl Operations for Session<'_> {
    type Stop = Stop;

    fn get_part(
        &mut self,
        table: Table,
        key: &[u8],
        part: Part,
        out: &mut Vec<u8>,
    ) -> Result<bool, Stop> {
        // What is read here is changed next: as SELECT FOR UPDATE.
        self.engine.lock_key(self.xid, table, key)?;
        let read = self.engine.get_part(self.xid, table, key, part.offset, part.size, out)?;
        Ok(matches!(read, Read::Inline))
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Stop> {
        self.engine.put(self.xid, table, key, value)
    }

    fn patch(&mut self, table: Table, key: &[u8], offset: usize, bytes: &[u8]) -> Result<(), Stop> {
        // Balances lie inside their leaves: no patch has a value elsewhere to rewrite.
        self.engine.patch(self.xid, table, key, offset, bytes).map(|_| ())
    }
}
