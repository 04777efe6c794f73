//! The Flagstone engine, driven step by step.

use std::time::Duration;

use flagstone_engine::{Engine, Read};
use parking_lot::RwLockWriteGuard;

use super::{
    Driven, Durability, EngineError, Fetch, Fetched, Flush, Lsn, Nand, Operations, Runtime, Step,
    Stop, Table, Timed, Wait, Work, Xid,
};
use crate::workload::{Intent, Part, Scan};

/// Operations of one transaction; holds the engine's latch.
#[derive(Debug)]
pub struct Session<'e> {
    engine: RwLockWriteGuard<'e, Engine>,
    xid: Xid,
}

impl<D: Nand> Driven for Runtime<Timed<D>> {
    type Session<'a>
        = Session<'a>
    where
        D: 'a;
    type Flush = Flush;
    type Work = Work;

    fn begin(&self) -> Xid {
        self.engine().begin()
    }

    fn session(&self, xid: Xid) -> Session<'_> {
        Session { engine: self.engine(), xid }
    }

    fn commit(&self, xid: Xid, durability: Durability) -> Step<Lsn> {
        self.engine().commit(xid, durability).map(|ticket| ticket.lsn)
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
        let is_at_hand = wait.is_at_hand();
        if is_at_hand {
            Self::supply(self, wait)?;
        }
        Ok(is_at_hand)
    }

    fn want(&self, wait: Wait) {
        match wait {
            Wait::Log => self.engine().want_log_room(),
            Wait::CommitPages => {}
            Wait::Memory => self.engine().want_flush(),
            _ => self.engine().want_flush(),
        }
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
        let engine = self.engine();
        engine.awaits_group_commit().then(|| engine.options().group_delay)
    }

    fn flush_begin(&self) -> Result<Option<Flush>, EngineError> {
        Self::flush_begin(self)
    }

    fn flush_end(&self, flush: Flush) {
        Self::flush_end(self, flush);
    }

    fn has_work(&self) -> bool {
        self.engine().has_work()
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

impl Operations for Session<'_> {
    type Stop = Stop;

    fn get(&mut self, table: Table, key: &[u8], intent: Intent, out: &mut Vec<u8>) -> Step<bool> {
        self.lock_for(table, key, intent)?;
        let read = self.engine.get(self.xid, table, key, out)?;
        Ok(matches!(read, Read::Inline))
    }

    fn get_part(
        &mut self,
        table: Table,
        key: &[u8],
        part: Part,
        intent: Intent,
        out: &mut Vec<u8>,
    ) -> Step<bool> {
        self.lock_for(table, key, intent)?;
        let read = self.engine.get_part(self.xid, table, key, part.offset, part.size, out)?;
        Ok(matches!(read, Read::Inline))
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Step<()> {
        self.engine.put(self.xid, table, key, value)
    }

    fn patch(&mut self, table: Table, key: &[u8], offset: usize, bytes: &[u8]) -> Step<()> {
        // Rows of workloads lie inside their leaves: no patch has a value elsewhere to rewrite.
        self.engine.patch(self.xid, table, key, offset, bytes).map(|_| ())
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Step<()> {
        self.engine.delete(self.xid, table, key)
    }

    fn scan(&mut self, table: Table, scan: &mut Scan) -> Step<()> {
        let (engine, xid) = (&mut self.engine, self.xid);
        while scan.step(|range, direction, limit, rows| {
            engine.scan(xid, table, range, direction, limit, rows)
        })? {}
        Ok(())
    }
}

impl Session<'_> {
    fn lock_for(&mut self, table: Table, key: &[u8], intent: Intent) -> Step<()> {
        match intent {
            Intent::Read => Ok(()),
            Intent::Change => self.engine.lock_key(self.xid, table, key),
        }
    }
}
