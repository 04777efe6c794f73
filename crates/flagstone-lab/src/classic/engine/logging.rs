//! The engine's side of the log: records appended, flushes sealed, room admitted.
//!
//! Owns the rule when a flush is wanted. Never writes a page.

use std::time::Duration;

use flagstone_engine::log::{LogGeometry, LogPosition};
use flagstone_engine::{EngineError, Step, Stop, Wait};
use flagstone_space::Lsn;

use super::super::record::Record;
use super::{Engine, Sealed, next_lsn};

/// A flush takes about one of so many parts of the log at most.
const FLUSH_SHARE: u64 = 32;

/// Pages of the log for changes of shape while undoing, beside the pages for undoing itself.
const RESHAPES_RESERVE: u64 = 4;

/// Bytes in a checkpoint record for each dirty page or running transaction, at most.
const CHECKPOINT_ENTRY: usize = 12;

/// The log.
impl Engine {
    pub(in crate::classic) fn append(&mut self, record: &Record) -> Lsn {
        self.note_record(record);
        let before = self.log.pending_bytes();
        let lsn = self.log.append_with(|out| out.extend_from_slice(&record.encode()));
        self.counts.log_bytes += (self.log.pending_bytes() - before) as u64;
        lsn
    }

    /// Every record up to here is durable.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.log.durable()
    }

    /// The newest commit, durable or not.
    #[must_use]
    pub fn last_commit(&self) -> Lsn {
        self.last_commit
    }

    /// Whether a client waits for log records that are not being written yet.
    #[must_use]
    pub fn is_flush_wanted(&self) -> bool {
        !self.is_poisoned
            && !self.is_flushing
            && (self.flush_to > self.log.durable()
                || self.has_group_commit()
                || self.is_tail_long())
            && self.log.pending_bytes() > 0
    }

    /// How long commits may wait for company before they are flushed; none when none waits.
    #[must_use]
    pub fn company(&self) -> Option<Duration> {
        let awaits = !self.is_poisoned && self.company_to > self.log.durable();
        awaits.then_some(self.config.options.group_delay)
    }

    /// Whether enough has gathered to end the wait of a group commit.
    fn has_group_commit(&self) -> bool {
        let enough = self.view.log_page_size as f64 * self.config.options.group_fill;
        self.company_to > self.log.durable() && self.log.pending_bytes() as f64 >= enough
    }

    /// Asks for everything in the log to become durable.
    pub fn want_flush(&mut self) {
        self.flush_to = self.log.appended();
    }

    /// Asks for the log to become durable up to `lsn`.
    pub(in crate::classic) fn want_durable(&mut self, lsn: Lsn) {
        self.flush_to = self.flush_to.max(lsn);
    }

    /// Bytes of log records that wait for a flush.
    #[must_use]
    pub fn pending_log_size(&self) -> usize {
        self.log.pending_bytes()
    }

    /// The LSN that the next record gets.
    pub(in crate::classic) fn next_lsn(&self) -> Lsn {
        next_lsn(&self.log)
    }

    /// Cuts everything pending into a flush.
    pub(in crate::classic) fn seal(
        &mut self,
        shape: LogGeometry,
        slots_left: u16,
    ) -> Option<Sealed> {
        if self.is_poisoned {
            return None;
        }
        let place = LogPosition { page: self.log_page, chain: self.log.chain() };
        let flush = self.log.seal(shape, slots_left)?;
        self.places.push_back((self.unsealed, place));
        self.unsealed = Lsn(flush.upto.0 + 1);
        self.is_flushing = true;
        Some(Sealed(flush))
    }

    /// The flush is durable; its last fragment lies on `log_page`.
    pub(in crate::classic) fn flushed(&mut self, flush: Sealed, log_page: u64) {
        self.log.completed(flush.0);
        self.log_page = log_page;
        self.is_flushing = false;
    }

    /// The last durable fragment that restart found lies on this page.
    pub(in crate::classic) fn resume_log(&mut self, page: u64) {
        self.log_page = page;
    }

    /// Where the log has to be read from to see the record `lsn`.
    pub(in crate::classic) fn place_of(&self, lsn: Lsn) -> LogPosition {
        let after = self.places.partition_point(|(first, _)| *first <= lsn);
        let place = after.checked_sub(1).and_then(|index| self.places.get(index));
        place.map_or_else(LogPosition::default, |(_, place)| *place)
    }

    /// Pages of the log that one flush may take, about: a restart copies the last one (D11).
    fn flush_pages_max(&self) -> u64 {
        (self.view.log_budget / FLUSH_SHARE).max(2)
    }

    /// Whether so much is pending that it has to be flushed before more is added.
    pub(in crate::classic) fn is_tail_long(&self) -> bool {
        self.log.pending_bytes() as u64 >= self.flush_pages_max() * self.view.log_page_size as u64
    }

    /// Whether the log has room for `size` bytes beside the bytes owed (A7).
    pub(in crate::classic) fn admit_log(&mut self, size: usize) -> Step<()> {
        if self.is_tail_long() {
            return Err(Stop::Wait(Wait::Durable(self.log.appended())));
        }
        let page_size = self.page_size.max(1);
        let tables = CHECKPOINT_ENTRY * (self.pool.dirty_count() + self.transactions.len());
        let owed = self.debts.log + self.debts.growth;
        let bytes = size + self.log.pending_bytes() + owed + 2 * tables;
        // A restart may leave a block half used, copies the last flush, and adds a page of its own;
        // another restart may follow before the head moves.
        let restart = self.flush_pages_max() + 2;
        let reserve = self.view.log_block_pages + 2 * restart + RESHAPES_RESERVE;
        let needed = self.view.log_used + bytes.div_ceil(page_size) as u64 + reserve;
        if needed <= self.view.log_budget {
            return Ok(());
        }
        if self.place_of(self.oldest_record()).page <= self.checkpoint.head_page() {
            // A transaction keeps the head where it is: no checkpoint can move it.
            return Err(EngineError::Full.into());
        }
        Err(Stop::Wait(Wait::Log))
    }

    /// First record of the oldest transaction that runs; the next record when there is none.
    pub(in crate::classic) fn oldest_record(&self) -> Lsn {
        let firsts = self.transactions.values().map(|transaction| transaction.first);
        firsts.filter(|first| *first != Lsn::ZERO).min().unwrap_or(self.next_lsn())
    }
}
