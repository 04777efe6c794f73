//! Ranges as a transaction reads them: under its locks, with its own changes on top.

use flagstone_space::Lsn;

use crate::bugs::SeededBug;
use crate::engine::step::Step;
use crate::engine::store::catalog::Table;
use crate::engine::store::scan::{Direction, Row, ScanRange, deliver};
use crate::engine::txn::Transactions;
use crate::lock::{Mode, Target, Xid};

impl Transactions {
    /// Appends rows of `range` as transaction `xid` sees them: the rows of one leaf, at most `limit`.
    ///
    /// Returns the rest of the range, none at its end. Locks the whole range first, so that no key can
    /// appear in it (rule D13).
    ///
    /// # Errors
    ///
    /// Stops for locks and pages.
    pub fn scan(
        &mut self,
        xid: Xid,
        table: Table,
        range: &ScanRange,
        direction: Direction,
        limit: usize,
        out: &mut Vec<Row>,
    ) -> Step<Option<ScanRange>> {
        if range.is_empty() {
            return Ok(None);
        }
        let table = self.own(table)?;
        let (low, high) = (range.low.as_slice(), range.high.as_deref());
        if !self.bugs.has(SeededBug::ScanWithoutLock) {
            self.lock(xid, Target::Interval { tree: table.id, low, high }, Mode::Shared)?;
        }
        self.note_read(xid)?;
        let mut part = self.part_of(table, range, direction, None)?;
        self.clip_to_own(xid, table, &mut part.range, direction, limit)?;
        let own = self.own_changes(xid, table, part.range.as_key_range())?;
        let rows = self.rows_of(table, &part, Lsn(u64::MAX), &own)?;
        Ok(deliver(rows, part.range, range, direction, limit, out))
    }
}
