//! The classic engine, behind both interfaces.

use std::sync::Arc;

use flagstone_engine::{Direction, Row, ScanRange};

use super::stopping::{EngineTransaction, LatchedSession, Machinery, Stopping};
use super::{
    BlockReport, Drivable, Driven, Durability, Duration, EngineError, EngineStats, Fetch, Fetched,
    Lsn, Nand, OnRow, OpenError, Options, RecoveryReport, RegionId, SpaceStats, Step, Store, Table,
    Timed, Wait, Xid, cold,
};
use crate::classic::{Config, Engine, Flush, Machine, Work};
use crate::workload::Part;

/// Pages that are written at a time: as many as clients that would each write the page whose frame
/// they take, where there are as many.
const WRITES_MAX: usize = 16;

/// A classic engine as a database.
#[derive(Debug)]
pub struct ClassicStore<D: Nand>(Arc<Machine<D>>);

/// A transaction on the calling thread.
pub type ClassicTransaction<D> = EngineTransaction<Machine<D>>;

/// Operations of one transaction; holds the engine's latch.
pub type ClassicSession<'e> = LatchedSession<'e, Engine>;

impl<D: Nand> ClassicStore<D> {
    /// The machine that drives the engine.
    #[must_use]
    pub fn machine(&self) -> &Machine<D> {
        &self.0
    }

    /// Runs `operation` as a transaction of its own.
    fn alone<T>(
        &self,
        mut operation: impl FnMut(&mut Engine, Xid) -> Step<T>,
    ) -> Result<T, EngineError> {
        let transaction = self.begin();
        let done = self.0.run(|engine| operation(engine, transaction.xid))?;
        self.commit(transaction, Durability::Immediate).map(|()| done)
    }
}

impl<D: Nand> Store for ClassicStore<D> {
    type Device = D;
    type Transaction = ClassicTransaction<D>;

    fn create(device: D, options: &Options) -> Result<Self, OpenError> {
        Ok(Self(Arc::new(Machine::create(device, &Config::of(options))?)))
    }

    fn open(device: D, options: &Options) -> Result<Self, OpenError> {
        Ok(Self(Arc::new(Machine::open(device, &Config::of(options))?)))
    }

    fn into_device(self) -> Option<D> {
        Arc::into_inner(self.0).map(Machine::into_device)
    }

    fn recovery(&self) -> RecoveryReport {
        self.0.recovery()
    }

    fn changes_undone(&self) -> u64 {
        self.0.restarted().undone
    }

    fn stats(&self) -> EngineStats {
        self.0.engine().stats()
    }

    fn with_device<R>(&self, look: impl FnOnce(&mut D) -> R) -> R {
        look(self.0.space().device_mut())
    }

    fn space_stats(&self) -> SpaceStats {
        self.0.space().stats()
    }

    fn regions(&self) -> Result<Vec<(String, RegionId)>, EngineError> {
        Ok(self.0.engine().regions())
    }

    fn block_report(&self) -> Vec<BlockReport> {
        self.0.space().block_report()
    }

    fn settle(&self) -> Result<(), EngineError> {
        self.0.clean_all()?;
        self.0.checkpoint_now()
    }

    fn prefill(&self, spare_count: u32) -> Result<(), EngineError> {
        cold::prefill(&mut self.0.space(), spare_count)
    }

    fn table(&self, name: &str) -> Result<Table, EngineError> {
        self.alone(|engine, xid| engine.create_table(xid, name))
    }

    fn begin(&self) -> ClassicTransaction<D> {
        ClassicTransaction { machine: Arc::clone(&self.0), xid: self.0.engine().begin() }
    }

    fn commit(
        &self,
        transaction: ClassicTransaction<D>,
        durability: Durability,
    ) -> Result<(), EngineError> {
        self.0.commit(transaction.xid, durability)
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
        Self::get_part(self, xid, table, key, part.offset, part.size, out)
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
        Self::patch(self, xid, table, key, offset, bytes)
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

    fn create_table(&mut self, xid: Xid, name: &str) -> Step<Table> {
        Self::create_table(self, xid, name)
    }
}

impl<D: Nand> Machinery for Machine<D> {
    type Engine = Engine;

    fn complete<T>(&self, operation: impl FnMut(&mut Engine) -> Step<T>) -> Result<T, EngineError> {
        self.run(operation)
    }

    fn take_back(&self, xid: Xid) {
        // A device that fails here fails the next operation too.
        let _ = self.abort(xid);
    }
}

impl<D: Nand> Drivable for ClassicStore<Timed<D>> {
    type Engine = Machine<Timed<D>>;

    fn engine(&self) -> &Self::Engine {
        &self.0
    }
}

impl<D: Nand> Driven for Machine<Timed<D>> {
    type Session<'a>
        = ClassicSession<'a>
    where
        D: 'a;
    type Flush = Flush;
    type Work = Work;

    fn begin(&self) -> Xid {
        self.engine().begin()
    }

    fn session(&self, xid: Xid) -> ClassicSession<'_> {
        ClassicSession { engine: self.engine(), xid }
    }

    fn commit(&self, xid: Xid, durability: Durability) -> Step<Lsn> {
        self.engine().commit(xid, durability)
    }

    fn abort(&self, xid: Xid) -> Step<()> {
        self.engine().abort(xid);
        Ok(())
    }

    fn read(&self, fetch: Fetch) -> Result<Fetched, EngineError> {
        Self::read(self, fetch)
    }

    fn fill(&self, fetched: Fetched) -> Result<(), EngineError> {
        self.engine().fill(fetched)
    }

    fn supply(&self, wait: Wait) -> Result<bool, EngineError> {
        let is_at_hand = matches!(wait, Wait::Pages(_));
        if is_at_hand {
            Self::supply(self, wait)?;
        }
        Ok(is_at_hand)
    }

    fn want(&self, wait: Wait) {
        Self::want(self, wait);
    }

    fn durable(&self) -> Lsn {
        self.engine().durable()
    }

    fn take_woken(&self) -> Vec<Xid> {
        self.engine().take_woken()
    }

    fn is_flush_wanted(&self) -> bool {
        self.engine().is_flush_wanted()
    }

    fn company(&self) -> Option<Duration> {
        self.engine().company()
    }

    fn flush_begin(&self) -> Result<Option<Flush>, EngineError> {
        Self::flush_begin(self)
    }

    fn flush_end(&self, flush: Flush) {
        Self::flush_end(self, flush);
    }

    fn works_max(&self) -> usize {
        WRITES_MAX
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
        self.space().device().now_ns()
    }

    fn at(&self, now_ns: u64) {
        let mut space = self.space();
        let device = space.device_mut();
        device.take_end_ns();
        device.resume_at(now_ns);
    }

    fn take_end_ns(&self) -> u64 {
        self.space().device_mut().take_end_ns()
    }
}
