//! How transactions end (R3, R6).
//!
//! Owns the order of a commit on flash. Which flags are needed is decided by [`crate::evidence`].

use std::collections::BTreeSet;

use flagstone_nand::Nand;

use super::{Flag, Flags, GroupId, LogicalPage, RecordStore, ShadowError, Standing};

impl<D: Nand> RecordStore<D> {
    /// Commits a transaction whose record is in the log, at batch `record` and durable (R3); its
    /// flags are set by [`RecordStore::finish`].
    pub fn commit_by_record(&mut self, xid: GroupId, record: u64) {
        let Some(entry) = self.table.get_mut(xid) else { return };
        entry.standing = Standing::Committed;
        entry.record = Some(record);
        self.settle_pages_of(xid);
        if self.table.get(xid).is_some_and(|entry| entry.members.is_empty()) {
            self.table.remove(xid);
        }
    }

    /// Commits a transaction all of whose pending records stand in versions on flash (R3).
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn commit_by_flags(&mut self, xid: GroupId) -> Result<(), ShadowError> {
        self.flag_all(xid)?;
        if let Some(entry) = self.table.get_mut(xid) {
            entry.standing = Standing::Committed;
        }
        self.settle_pages_of(xid);
        self.forget_flagged(xid);
        Ok(())
    }

    /// Sets the flags of a transaction that its record committed; the record may go then.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn finish(&mut self, xid: GroupId) -> Result<(), ShadowError> {
        self.flag_all(xid)?;
        if let Some(entry) = self.table.get_mut(xid) {
            entry.record = None;
        }
        self.forget_flagged(xid);
        Ok(())
    }

    /// A transaction committed under AFC leaves nothing to others once all its flags say so.
    fn forget_flagged(&mut self, xid: GroupId) {
        let is_empty = self.table.get(xid).is_some_and(|entry| entry.members.is_empty());
        if self.options.flags == Flags::Afc || is_empty {
            self.table.remove(xid);
        }
    }

    /// Whether a member of the transaction is on flash.
    #[must_use]
    pub fn has_members(&self, xid: GroupId) -> bool {
        self.table.get(xid).is_some_and(|entry| !entry.members.is_empty())
    }

    /// Waits until the writes of a transaction are complete.
    pub fn await_members(&mut self, xid: GroupId) {
        let ready_ns = self.table.get(xid).map_or(0, |entry| entry.ready_ns);
        self.flash.wait(ready_ns);
    }

    /// Sets the flags that commit a transaction; where a page takes no flag the log says so (R6).
    fn flag_all(&mut self, xid: GroupId) -> Result<(), ShadowError> {
        self.check()?;
        self.await_members(xid);
        let Some(entry) = self.table.get(xid) else { return Ok(()) };
        if entry.has_stale_copies {
            return self.testify(xid, Standing::Committed);
        }
        let wanted = self.options.flags.to_commit(&entry.members);
        let is_unset = |address: u32, flag: Flag| {
            entry.members.iter().any(|member| member.at == address && member.flag != flag)
        };
        let missing: Vec<(u32, Flag)> =
            wanted.into_iter().filter(|(address, flag)| is_unset(*address, *flag)).collect();
        for (address, flag) in missing {
            self.counts.flags_commit += 1;
            if !self.set_flag(xid, address, flag)? {
                return self.testify(xid, Standing::Committed);
            }
        }
        Ok(())
    }

    /// Programs a flag; whether it is verified.
    pub(super) fn set_flag(
        &mut self,
        xid: GroupId,
        address: u32,
        flag: Flag,
    ) -> Result<bool, ShadowError> {
        let verified = self.flash.program_flag(address, flag).map_err(|error| self.fail(error))?;
        if verified {
            self.table.flagged(xid, address, flag);
        }
        Ok(verified)
    }

    /// Ends a transaction without a trace: nothing is written.
    pub fn abort(&mut self, xid: GroupId) {
        let Some(entry) = self.table.get_mut(xid) else { return };
        entry.standing = Standing::Aborted;
        self.settle_pages_of(xid);
        if self.table.get(xid).is_some_and(|entry| entry.members.is_empty()) {
            self.table.remove(xid);
        }
    }

    fn settle_pages_of(&mut self, xid: GroupId) {
        let Some(entry) = self.table.get(xid) else { return };
        let pages: BTreeSet<LogicalPage> = entry.members.iter().map(|member| member.page).collect();
        pages.into_iter().for_each(|page| self.settle(page));
    }
}
