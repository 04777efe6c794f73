//! Flushes of the log: sealed, programmed, made durable, acknowledged.
//!
//! Owns the order of these four (W3). Never decides when to flush.

use flagstone_nand::Nand;
use flagstone_space::SpaceError;

use super::{Runtime, SpaceGuard};
use crate::bugs::SeededBug;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::log::Flush as LogFlush;

/// A flush whose programs are issued.
#[derive(Debug)]
pub struct Flush {
    flush: LogFlush,
    log_page: u64,
    end_ns: u64,
}

impl Flush {
    /// Device time at which the flush is durable, in nanoseconds.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }
}

impl<D: Nand> Runtime<D> {
    /// Appends the fragments of a flush and makes them durable, without holding the space's latch
    /// where the device does both beside other work. Returns the log page on which the fragments
    /// end.
    fn write_log<'a>(
        &'a self,
        mut space: SpaceGuard<'a, D>,
        flush: &LogFlush,
        syncs: bool,
    ) -> Result<(SpaceGuard<'a, D>, u64), SpaceError> {
        let fragments = || flush.fragments.iter().map(|fragment| fragment.bytes.as_slice());
        if syncs && let Some(mut ticket) = space.begin_flush(fragments())? {
            drop(space);
            let result = ticket.run();
            let mut space = self.space();
            let end = space.end_flush(ticket, result)?;
            return Ok((space, end.map_or(0, |address| address.page)));
        }
        let mut log_page = 0;
        for fragment in fragments() {
            log_page = space.log_append(fragment)?.page;
        }
        if syncs {
            space.sync()?;
        }
        Ok((space, log_page))
    }

    /// Seals the pending log records into a flush and programs it; `None` when nothing is pending
    /// or a flush is in flight.
    ///
    /// # Errors
    ///
    /// The device failed: the engine is poisoned.
    pub fn flush_begin(&self) -> Result<Option<Flush>, EngineError> {
        self.flush_after(|_| {})
    }

    /// As [`Runtime::flush_begin`], for all pending records.
    pub(super) fn flush_all(&self) -> Result<Option<Flush>, EngineError> {
        self.flush_after(|engine| engine.want_flush())
    }

    fn flush_after(&self, ask: impl FnOnce(&mut Engine)) -> Result<Option<Flush>, EngineError> {
        let mut space = self.space();
        let begun_ns = space.busy_ns();
        self.restore_reserves(&mut space)?;
        let collected_ns = space.busy_ns() - begun_ns;
        let slots_left = u16::try_from(space.log_slots_left()).unwrap_or(u16::MAX);
        let mut engine = self.engine();
        ask(&mut engine);
        let Some(flush) = engine.seal(self.geometry, slots_left) else { return Ok(None) };
        let (wants_log, skips_sync) =
            (engine.take_log_wish(), engine.bugs.has(SeededBug::SkipSync));
        drop(engine);
        if wants_log {
            space.want_log();
        }
        let syncs = (self.needs_sync || self.has_pairs) && !skips_sync;
        let (space, log_page) = match self.write_log(space, &flush, syncs) {
            Ok(written) => written,
            Err(error) => return self.poison_for(error.into()),
        };
        let end_ns = space.end_ns();
        let flushed_ns = space.busy_ns() - begun_ns - collected_ns;
        let view = self.view_of(&space);
        let mut engine = self.engine();
        engine.note_write_cost(0, collected_ns);
        engine.note_log_cost(flush.fragments.len(), flushed_ns);
        engine.observe(view);
        Ok(Some(Flush { flush, log_page, end_ns }))
    }

    /// Completes a durable flush: commits up to its LSN are acknowledged.
    pub fn flush_end(&self, flush: Flush) {
        self.await_end(flush.end_ns);
        // A record's claim becomes current in the same moment as the record becomes durable: a
        // snapshot that begins now has to see the claim.
        let awaits_record = self.engine_shared().awaits_record();
        let space = awaits_record.then(|| self.space());
        let mut engine = self.engine();
        if engine.is_poisoned() {
            // The flush's commits were forgotten when the device failed elsewhere: they are not
            // acknowledged.
            return;
        }
        engine.flushed(flush.flush);
        engine.note_log_page(flush.log_page);
        if let (Some(mut space), Some(group)) = (space, engine.recorded_claim()) {
            Self::move_claim(&mut space, &mut engine, group);
        }
        let durable = engine.durable();
        // The woken threads want the engine: its latch is free by then.
        drop(engine);
        self.sleepers.wake_durable(durable);
        self.sleepers.wake_changed();
    }
}
