//! The engines of shadow pages, behind both interfaces.

use std::sync::Arc;

use flagstone_opponents::shadow::Restart;

use super::stopping::{EngineTransaction, LatchedSession, Machinery, Stopping};
use super::{
    BlockReport, Drivable, Driven, Durability, EngineError, EngineStats, Fetch, Fetched, Lsn, Nand,
    OnRow, OpenError, Options, RecoveryReport, SpaceStats, Step, Store, Table, Timed, Wait, Xid,
};
use crate::pages::{PageEngine, PageMachine};
use crate::run::Scan;
use crate::{records, shadow};

/// Page writes under way at a time.
const WORKS_MAX: usize = 32;

/// An engine of shadow pages as a database.
#[derive(Debug)]
pub struct PageStore<M>(Arc<M>);

/// The engine of the basic protocols as a database.
pub type ShadowDatabase<D> = PageStore<shadow::Machine<D>>;

/// The engine of the extended protocols as a database.
pub type RecordDatabase<D> = PageStore<records::Machine<D>>;

impl<M: PageMachine> Store for PageStore<M> {
    type Device = M::Device;
    type Transaction = EngineTransaction<M>;

    fn create(device: M::Device, options: &Options) -> Result<Self, OpenError> {
        Ok(Self(Arc::new(M::create(device, options)?)))
    }

    fn open(device: M::Device, options: &Options) -> Result<Self, OpenError> {
        Ok(Self(Arc::new(M::open(device, options)?)))
    }

    fn scan_restart(
        copy: impl FnOnce() -> M::Device,
        options: &Options,
    ) -> Result<Option<Scan>, OpenError> {
        let machine = M::open_by(copy(), options, Restart::Scan)?;
        let RecoveryReport { pages_read, time_ns, .. } = machine.recovery();
        Ok(Some(Scan { pages_read, time_s: time_ns as f64 / 1e9 }))
    }

    fn into_device(self) -> Option<M::Device> {
        Arc::into_inner(self.0).map(M::into_device)
    }

    fn recovery(&self) -> RecoveryReport {
        self.0.recovery()
    }

    fn stats(&self) -> EngineStats {
        self.0.stats()
    }

    fn with_device<R>(&self, look: impl FnOnce(&mut M::Device) -> R) -> R {
        self.0.with_device(look)
    }

    fn space_stats(&self) -> SpaceStats {
        self.0.space_stats()
    }

    fn block_report(&self) -> Vec<BlockReport> {
        self.0.block_report()
    }

    fn settle(&self) -> Result<(), EngineError> {
        while self.0.advance()? {}
        Ok(())
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

impl<M: PageMachine> Machinery for M {
    type Engine = M::Engine;

    fn complete<T>(
        &self,
        operation: impl FnMut(&mut M::Engine) -> Step<T>,
    ) -> Result<T, EngineError> {
        self.run(operation)
    }

    fn take_back(&self, xid: Xid) {
        self.abort(xid);
    }
}

impl<D: Nand, M: PageMachine<Device = Timed<D>>> Drivable for PageStore<M> {
    type Engine = M;

    fn engine(&self) -> &M {
        &self.0
    }
}

impl<D: Nand, M: PageMachine<Device = Timed<D>>> Driven for M {
    type Session<'a>
        = LatchedSession<'a, M::Engine>
    where
        M: 'a;
    type Flush = M::Flush;
    type Work = M::Work;

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
        PageMachine::abort(self, xid);
        Ok(())
    }

    fn read(&self, fetch: Fetch) -> Result<Fetched, EngineError> {
        PageMachine::read(self, fetch)
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

    fn flushes_max(&self) -> usize {
        M::FLUSHES_MAX
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

    fn flush_begin(&self) -> Result<Option<M::Flush>, EngineError> {
        PageMachine::flush_begin(self)
    }

    fn flush_end(&self, flush: M::Flush) {
        PageMachine::flush_end(self, flush);
    }

    fn has_work(&self) -> bool {
        PageMachine::has_work(self)
    }

    fn work_begin(&self) -> Step<Option<M::Work>> {
        PageMachine::work_begin(self)
    }

    fn work_end(&self, work: M::Work) {
        PageMachine::work_end(self, work);
    }

    fn now_ns(&self) -> u64 {
        self.with_device(|device| device.now_ns())
    }

    fn at(&self, now_ns: u64) {
        self.with_device(|device| {
            device.take_end_ns();
            device.resume_at(now_ns);
        });
    }

    fn take_end_ns(&self) -> u64 {
        self.with_device(Timed::take_end_ns)
    }
}
