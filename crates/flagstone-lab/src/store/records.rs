//! The engine of shared pages, behind both interfaces.

use std::sync::Arc;

use flagstone::{Direction, Row, ScanRange};
use flagstone_space::shadow::Restart;

use super::stopping::{EngineTransaction, LatchedSession, Machinery, Stopping};
use super::{
    BlockReport, Drivable, Driven, Durability, EngineError, EngineStats, Fetch, Fetched, Lsn, Nand,
    OnRow, OpenError, Options, RecoveryReport, SpaceStats, Step, Store, Table, Timed, Wait, Xid,
};
use crate::records::{Config, Engine, Flush, Machine, Work};
use crate::run::Scan;
use crate::workload::Part;

/// Page writes under way at a time.
const WORKS_MAX: usize = 32;

/// An engine of shared pages as a database.
#[derive(Debug)]
pub struct RecordDatabase<D: Nand>(Arc<Machine<D>>);

impl<D: Nand> RecordDatabase<D> {
    /// What drives the engine.
    #[must_use]
    pub fn machine(&self) -> &Machine<D> {
        &self.0
    }
}

impl<D: Nand> Store for RecordDatabase<D> {
    type Device = D;
    type Transaction = EngineTransaction<Machine<D>>;

    fn create(device: D, options: &Options) -> Result<Self, OpenError> {
        Ok(Self(Arc::new(Machine::create(device, &Config::of(options))?)))
    }

    fn open(device: D, options: &Options) -> Result<Self, OpenError> {
        Ok(Self(Arc::new(Machine::open(device, &Config::of(options))?)))
    }

    fn scan_restart(
        copy: impl FnOnce() -> D,
        options: &Options,
    ) -> Result<Option<Scan>, OpenError> {
        let machine = Machine::open_by(copy(), &Config::of(options), Restart::Scan)?;
        let RecoveryReport { pages_read, time_ns, .. } = machine.recovery();
        Ok(Some(Scan { pages_read, time_s: time_ns as f64 / 1e9 }))
    }

    fn into_device(self) -> Option<D> {
        Arc::into_inner(self.0).map(Machine::into_device)
    }

    fn recovery(&self) -> RecoveryReport {
        self.0.recovery()
    }

    fn stats(&self) -> EngineStats {
        self.0.stats()
    }

    fn with_device<R>(&self, look: impl FnOnce(&mut D) -> R) -> R {
        look(self.0.store().device_mut())
    }

    fn space_stats(&self) -> SpaceStats {
        self.0.space_stats()
    }

    fn block_report(&self) -> Vec<BlockReport> {
        self.0.store().block_report()
    }

    fn settle(&self) -> Result<(), EngineError> {
        while self.0.advance()? {}
        self.0.checkpoint_now()
    }

    fn prefill(&self, spare_count: u32) -> Result<(), EngineError> {
        self.0.prefill(spare_count)
    }

    fn table(&self, name: &str) -> Result<Table, EngineError> {
        let transaction = self.begin();
        let table = self.0.run(|engine| engine.create_table(transaction.xid, name))?;
        self.0.commit(transaction.xid).map(|()| table)
    }

    fn begin(&self) -> Self::Transaction {
        EngineTransaction { machine: Arc::clone(&self.0), xid: self.0.engine().begin() }
    }

    fn commit(&self, transaction: Self::Transaction, _: Durability) -> Result<(), EngineError> {
        self.0.commit(transaction.xid)
    }

    fn visit(&self, names: &[&str], on_row: OnRow<'_>) -> Result<(), EngineError> {
        self.begin().visit(names, on_row)
    }
}

impl Stopping for Engine {
    fn lock_key(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()> {
        Self::lock_key(self, xid, table, key)
    }

    fn get_part(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        part: Part,
        out: &mut Vec<u8>,
    ) -> Step<bool> {
        Self::get_part(self, xid, table, key, (part.offset, part.size), out)
    }

    fn put(&mut self, xid: Xid, table: Table, key: &[u8], value: &[u8]) -> Step<()> {
        Self::put(self, xid, table, key, value)
    }

    fn patch(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Step<()> {
        Self::patch_value(self, xid, table, key, offset, bytes)
    }

    fn delete(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()> {
        Self::delete(self, xid, table, key)
    }

    fn scan(
        &mut self,
        xid: Xid,
        table: Table,
        range: &ScanRange,
        direction: Direction,
        limit: usize,
        rows: &mut Vec<Row>,
    ) -> Step<Option<ScanRange>> {
        Self::scan(self, xid, table, range, direction, limit, rows)
    }

    fn open_table(&mut self, xid: Xid, name: &str) -> Step<Option<Table>> {
        Self::open_table(self, xid, name)
    }
}

impl<D: Nand> Machinery for Machine<D> {
    type Engine = Engine;

    fn complete<T>(&self, operation: impl FnMut(&mut Engine) -> Step<T>) -> Result<T, EngineError> {
        self.run(operation)
    }

    fn take_back(&self, xid: Xid) {
        self.abort(xid);
    }
}

impl<D: Nand> Drivable for RecordDatabase<Timed<D>> {
    type Engine = Machine<Timed<D>>;

    fn engine(&self) -> &Self::Engine {
        &self.0
    }
}

impl<D: Nand> Driven for Machine<Timed<D>> {
    type Session<'a>
        = LatchedSession<'a, Engine>
    where
        D: 'a;
    type Flush = Flush;
    type Work = Work;

    fn begin(&self) -> Xid {
        self.engine().begin()
    }

    fn session(&self, xid: Xid) -> Self::Session<'_> {
        LatchedSession { engine: self.engine(), xid }
    }

    fn commit(&self, xid: Xid, _: Durability) -> Step<Lsn> {
        self.engine().commit(xid)
    }

    fn abort(&self, xid: Xid) -> Step<()> {
        Self::abort(self, xid);
        Ok(())
    }

    fn read(&self, fetch: Fetch) -> Result<Fetched, EngineError> {
        Self::read(self, fetch)
    }

    fn fill(&self, fetched: Fetched) -> Result<(), EngineError> {
        self.engine().fill(fetched)
    }

    fn supply(&self, _: Wait) -> Result<bool, EngineError> {
        Ok(false)
    }

    fn want(&self, _: Wait) {}

    fn durable(&self) -> Lsn {
        Lsn::ZERO
    }

    fn is_durable(&self, lsn: Lsn) -> bool {
        self.engine().is_committed(lsn)
    }

    fn works_max(&self) -> usize {
        WORKS_MAX
    }

    fn take_woken(&self) -> Vec<Xid> {
        self.engine().take_woken()
    }

    fn is_flush_wanted(&self) -> bool {
        self.engine().is_flush_wanted()
    }

    fn flush_begin(&self) -> Result<Option<Flush>, EngineError> {
        Self::flush_begin(self)
    }

    fn flush_end(&self, flush: Flush) {
        Self::flush_end(self, flush);
    }

    fn has_work(&self) -> bool {
        Self::has_work(self)
    }

    fn work_begin(&self) -> Step<Option<Work>> {
        Self::work_begin(self)
    }

    fn work_end(&self, work: Work) {
        Self::work_end(self, work);
    }

    fn now_ns(&self) -> u64 {
        self.store().device().now_ns()
    }

    fn at(&self, now_ns: u64) {
        let mut store = self.store();
        let device = store.device_mut();
        device.take_end_ns();
        device.resume_at(now_ns);
    }

    fn take_end_ns(&self) -> u64 {
        self.store().device_mut().take_end_ns()
    }
}
