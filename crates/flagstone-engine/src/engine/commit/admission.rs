//! Admission of commits: room in memory, in the log and on the device (rule D7).

use flagstone_space::{Lsn, OPEN_GROUP_PAGE_SIZE};

use crate::bugs::SeededBug;
use crate::engine::commit::Commits;
use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::private_key::split_private_key;
use crate::engine::store::room::{Growth, PAGES_RESERVED};
use crate::engine::txn::transaction::{Transaction, growth_of};
use crate::error::EngineError;
use crate::lock::Xid;

/// One part in this many of the memory for deltas is kept for changes that replace values of equal
/// length.
const DELETE_SHARE: usize = 4;

/// Share of the log budget, in percent, that users may fill; the rest is for install records and
/// for the copies of the checkpoint that frees room.
const LOG_USE_PERCENT: u64 = 90;

/// Log blocks kept for a restart, which begins a block of its own, and for the copies of the
/// checkpoint that follows it.
const LOG_BLOCKS_RESERVED: u64 = 2;

/// Share of the log budget, in percent, beyond which a restart leaves no room to another one: half of
/// the part that users may not fill is for restarts, and half for the checkpoint that follows them.
const RESTART_USE_PERCENT: u64 = 95;

/// Names of loaded runs, which the next checkpoint lets go, take at most one part in this many of its
/// record where that record is half full.
const LOADED_SHARE: usize = 16;

/// A log that becomes shorter keeps this many times its content together with the copies of all waiting
/// changes: its blocks, the partly used ones at its ends among them, then fit the shorter length, and
/// the log does become that short.
const LOG_SPARE_SHARE: u64 = 2;

impl Commits {
    /// Whether the commit of `xid` may be appended now.
    pub(crate) fn admit_commit(&mut self, xid: Xid) -> Step<()> {
        if self.commit_barriers > 0 {
            return Err(Stop::Wait(Wait::CommitBarrier));
        }
        if self.room.view.lacks_reserve {
            return Err(Stop::Wait(Wait::Reserve));
        }
        loop {
            let (_, growth) = self.demand_of(xid);
            let admitted = match self.room_missed(xid) {
                Some(Wait::Memory) => {
                    self.obstacles.retry_shrinking();
                    Err(Stop::Wait(Wait::Memory))
                }
                Some(wait) => Err(Stop::Wait(wait)),
                None => self.admit_growth(growth),
            };
            let is_for_growth = match admitted {
                Err(Stop::Wait(Wait::Memory)) => self.obstacles.is_out_of_pages(),
                Err(Stop::Error(EngineError::Full)) => true,
                _ => false,
            };
            if !is_for_growth || !self.weigh(xid)? {
                return admitted;
            }
        }
    }

    /// Counts by how much `xid` makes leaves grow, beside the rows that it replaces; returns whether
    /// the growth is less than was known. The replaced rows are read: only a device without room is
    /// worth that. After a stop for a page the count goes on at the same row.
    fn weigh(&mut self, xid: Xid) -> Step<bool> {
        let own = self.transaction(xid)?;
        if own.growth == 0 || !own.runs.is_empty() || own.is_weighed() {
            return Ok(false);
        }
        while let Some((key, grown)) = self.transaction(xid)?.next_to_weigh() {
            let (table, user_key) = split_private_key(&key);
            let replaced = match grown {
                0 => 0,
                _ => match self.committed_value(table, user_key, Lsn(u64::MAX)) {
                    Ok(value) => value.map_or(0, |value| growth_of(user_key.len(), value.as_put())),
                    // The next reader of the row meets the error.
                    Err(Stop::Error(_)) => 0,
                    Err(stop) => return Err(stop),
                },
            };
            self.transaction(xid)?.note_weighed(&key, grown.saturating_sub(replaced));
        }
        Ok(self.transaction(xid)?.take_weighed())
    }

    /// The room that the commit of `xid` waits for, which merging and checkpoints make.
    fn room_missed(&self, xid: Xid) -> Option<Wait> {
        let (size, _) = self.demand_of(xid);
        let deltas_size = self.memory.deltas + size + self.claim_demand();
        if deltas_size > self.deltas_limit(xid) && self.has_deltas() {
            return Some(Wait::Memory);
        }
        let is_full = self.is_log_full() || self.takes_room_of_copies(size);
        (is_full && !self.bugs.has(SeededBug::LogRoomGiven)).then_some(Wait::Log)
    }

    /// Why there was no room for the commit of `xid`. Changes of a page that cannot be read never reach
    /// that page: where the commit waited in vain for these changes to make way, the unreadable page is
    /// the reason, and deleting would not help.
    pub(crate) fn why_full(&self, xid: Xid) -> EngineError {
        let unread = self.room_missed(xid).and_then(|_| self.obstacles.unreadable_error());
        unread.unwrap_or_else(|| self.refusal(xid, self.fullness()))
    }

    /// Whether the log has no room for users before a checkpoint frees some.
    pub(crate) fn is_log_full(&self) -> bool {
        self.log_use(0) > self.log_pages_below(LOG_USE_PERCENT, LOG_BLOCKS_RESERVED)
    }

    /// Whether a commit of `size` bytes would leave too little room for the copies that the checkpoint
    /// under way still has to make.
    fn takes_room_of_copies(&self, size: usize) -> bool {
        let owed = self.cycle.copies_owed(self.memory.packed);
        owed > 0 && self.lacks_log(size + owed, self.log_pages_below(RESTART_USE_PERCENT, 1))
    }

    /// Log pages that commits may have beside copies of `owed` bytes.
    pub(in crate::engine) fn room_beside(&self, owed: usize) -> u64 {
        self.log_pages_below(RESTART_USE_PERCENT, 1).saturating_sub(self.log_use(owed))
    }

    /// Whether there is no room for copies of all waiting changes.
    pub(crate) fn lacks_room_for_copies(&self) -> bool {
        self.lacks_log(self.memory.packed, self.room.view.log_budget)
    }

    /// Pages that would be enough for these copies, where their room is missing.
    pub(crate) fn room_for_copies(&self) -> Option<u64> {
        let excess = self.log_use(self.memory.packed).saturating_sub(self.room.view.log_budget);
        let pages = excess + self.pages_for(self.room.growth.bytes) + PAGES_RESERVED;
        self.lacks_room_for_copies().then_some(pages)
    }

    /// Whether `more` bytes do not fit below `pages` of log, nor in the free pages of the device,
    /// beside the log and the growth that was committed.
    fn lacks_log(&self, more: usize, pages: u64) -> bool {
        let excess = self.log_use(more).saturating_sub(pages);
        excess > 0 && !self.has_pages_for(excess + self.pages_for(self.room.growth.bytes))
    }

    /// Pages of the log once its pending bytes, and `more` bytes, are in it.
    fn log_use(&self, more: usize) -> u64 {
        let pending = self.frontier.log.pending_bytes() + self.claim_demand() + more;
        self.room.view.log_used + pending.div_ceil(self.room.view.log_page_size.max(1)) as u64
    }

    /// Whether the checkpoint that is due cannot wait until the database is open: another restart would
    /// find no room in the log, or more groups than a record can name, or the blocks that it takes
    /// beyond the log's own would leave no room to write a checkpoint.
    pub(crate) fn is_checkpoint_urgent(&self) -> bool {
        let taken = LOG_BLOCKS_RESERVED * self.room.view.log_block_pages;
        self.room.view.log_used > self.log_pages_below(RESTART_USE_PERCENT, LOG_BLOCKS_RESERVED)
            || self.must_checkpoint() && !self.has_pages_for(taken)
            || self.is_record_crowded()
    }

    fn admit_growth(&mut self, growth: usize) -> Step<()> {
        if !self.has_deltas() && self.runs.is_empty() {
            self.room.growth = Growth::default();
        }
        if growth == 0 || self.has_room_beside_growth(growth) {
            self.room.growth.is_reclaiming = false;
            return Ok(());
        }
        // Changes that replaced each other were counted one by one: the waiting changes may come to
        // much less.
        let waiting_max = 2 * self.memory.deltas + self.runs.pages_left() * self.payload_size;
        if self.room.growth.bytes > waiting_max {
            self.room.growth.bytes = self.growth_waiting();
            return self.admit_growth(growth);
        }
        self.demand_room(self.pages_for(self.room.growth.bytes + growth))?;
        self.settle_growth()?;
        if self.hurry_runs() {
            return Err(Stop::Wait(Wait::Memory));
        }
        self.refuse_when_full()
    }

    /// Whether a value may take `pages` now. Where there are too few, the device grows, or merging
    /// gives back the pages of deleted or replaced values.
    pub(crate) fn admit_pages(&mut self, pages: u64) -> Step<()> {
        self.demand_room(pages)?;
        if self.has_pages_for(pages) {
            self.room.growth.is_reclaiming = false;
            return Ok(());
        }
        self.settle_growth()?;
        self.refuse_when_full()
    }

    /// Waits as long as merging may tell real growth from replaced values, or give pages back: leaves
    /// that found no page may fit their own again since something shrank.
    pub(super) fn settle_growth(&mut self) -> Step<()> {
        self.obstacles.retry_shrinking();
        self.room.growth.is_reclaiming = self.may_settle();
        if self.room.growth.is_reclaiming { Err(Stop::Wait(Wait::Memory)) } else { Ok(()) }
    }

    /// Nothing is left to merge: waits for the log's room beyond its share, then for the room that
    /// snapshots keep, and refuses where neither is left.
    fn refuse_when_full(&mut self) -> Step<()> {
        self.demand_shorter_log()?;
        if self.has_given_back() {
            return Err(Stop::Wait(Wait::Log));
        }
        if self.frees_room() {
            return Err(Stop::Wait(Wait::Memory));
        }
        Err(self.fullness().into())
    }

    /// Waits until data have the room that the log got beyond its share while the device grew. The
    /// log's content goes first, with a checkpoint.
    fn demand_shorter_log(&mut self) -> Step<()> {
        if self.may_shorten_log() {
            return Err(Stop::Wait(Wait::ShorterLog));
        }
        let is_long = self.room.view.log_least < self.room.view.log_budget;
        if is_long && self.shortens_log() && !self.is_checkpointing() {
            self.want_checkpoint();
        }
        if is_long && self.is_checkpointing() { Err(Stop::Wait(Wait::Log)) } else { Ok(()) }
    }

    /// Whether the log has room beyond its share, and could still copy all waiting changes without it.
    pub(crate) fn may_shorten_log(&self) -> bool {
        let least = self.room.view.log_least;
        least < self.room.view.log_budget
            && self.log_use(self.memory.packed) * LOG_SPARE_SHARE <= least
    }

    /// Whether merging, or an earlier merge, may still give pages back.
    fn may_settle(&self) -> bool {
        let may_merge =
            self.has_deltas() && self.room.growth.is_open && !self.obstacles.is_out_of_pages();
        may_merge || self.has_release() || self.has_installs()
    }

    /// Memory that deltas may take together with the changes of `xid`. Where leaves have no room to
    /// split, their deltas stay in memory: a commit that only replaces may then use the share that is
    /// kept for replacements, and a commit that only deletes may use as much as a checkpoint has room
    /// to copy, since deletes make leaves fit again.
    fn deltas_limit(&self, xid: Xid) -> usize {
        let hard = self.memory.limits.deltas_hard;
        match self.transactions.get(&xid) {
            Some(own) if self.obstacles.is_out_of_pages() && !own.has_put => {
                hard.max(self.memory.limits.deltas_copied)
            }
            Some(own) if self.obstacles.is_out_of_pages() && own.growth == 0 => {
                hard + hard / DELETE_SHARE
            }
            _ => hard,
        }
    }

    /// Whether `xid` may write `pages` more before its commit, which runs name with `names` bytes: a
    /// checkpoint's record has to name all these pages, and one record in the log all the runs.
    pub(crate) fn can_name_more(&self, xid: Xid, pages: usize, names: usize) -> bool {
        // A record that the space floor makes for itself repeats the master record of the last one.
        let listed = self.open_pages_size();
        let said = (self.record_size() - listed).max(self.room.view.record_said);
        self.fits_record(said + listed + pages * OPEN_GROUP_PAGE_SIZE + names)
            && self.log_names(xid, names)
    }

    /// Whether `xid` could write them once the runs of other transactions are loaded, and a
    /// checkpoint's master record is shorter than the last one.
    pub(crate) fn may_name_more(&self, xid: Xid, pages: usize, names: usize) -> bool {
        let stays = self.record_size() - self.passing_record_size();
        self.fits_record(stays + pages * OPEN_GROUP_PAGE_SIZE + names) && self.log_names(xid, names)
    }

    /// Waits until `xid` may write `pages` more before its commit, which runs name with `names` bytes.
    /// Room is made in this order: released pages and the entries of the last checkpoint, then pages
    /// that wait for a flush, then pages that a snapshot keeps.
    pub(super) fn demand_names(&mut self, xid: Xid, pages: usize, names: usize) -> Step<()> {
        if self.is_garbage_long(xid) {
            return Err(Stop::Wait(Wait::Log));
        }
        if self.can_name_more(xid, pages, names) {
            return Ok(());
        }
        if self.has_release() {
            return Err(Stop::Wait(Wait::Memory));
        }
        if self.may_name_more(xid, pages, names) {
            // Unrequested runs would wait, and be named, for ever.
            self.ask_for_runs();
            return Err(Stop::Wait(Wait::Log));
        }
        if !self.log_names(xid, names) {
            return Err(EngineError::TooLarge.into());
        }
        if self.trims.awaits_flush(self.durable()) {
            return Err(Stop::Wait(Wait::Durable(self.frontier.committed)));
        }
        match self.end_snapshot_for_names() {
            true => Err(Stop::Wait(Wait::Memory)),
            false => Err(EngineError::TooLarge.into()),
        }
    }

    /// Whether one record in the log can name the runs of `xid`, and one more run in `names` bytes.
    fn log_names(&self, xid: Xid, names: usize) -> bool {
        let commit_size = self.transactions.get(&xid).map_or(0, Transaction::named_size);
        commit_size + names <= self.commit_names_max()
    }

    /// Whether the pages that `xid` gave back make the record of its commit long, for want of a
    /// checkpoint.
    fn is_garbage_long(&self, xid: Xid) -> bool {
        let garbage = self.transactions.get(&xid).map_or(0, Transaction::garbage_size);
        garbage > self.commit_names_max()
    }

    /// Waits until a log that grows with its device is large enough for the commit of `xid`.
    pub(crate) fn demand_log(&self, xid: Xid, names: usize) -> Step<()> {
        let is_short = self.room.view.log_grows && !self.log_names(xid, names);
        if is_short { Err(Stop::Wait(Wait::LargerLog(self.room.view.log_budget))) } else { Ok(()) }
    }

    /// Whether loaded runs, or LSNs that keep changes apart, take so much of a checkpoint's record that
    /// the next checkpoint has to come.
    pub(crate) fn is_record_filling(&self) -> bool {
        let is_much = self.runs.loaded_size() * LOADED_SHARE > self.room.view.record_room;
        self.are_many_apart()
            || is_much && !self.fits_record(2 * (self.record_size() - self.counts_size()))
    }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::{Profile, SimNand};

    use super::*;
    use crate::Options;
    use crate::testing::Database;

    /// Goal (promise 6): a device whose content takes more than the blocks that have not failed is worn
    /// out, and not full, for changes of every kind. Method: the engine's view of such a device.
    #[test]
    fn a_device_with_too_few_blocks_left_is_worn_out() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let database = Database::create_on(SimNand::new(&profile, 1), &Options::default()).unwrap();
        database.table("t").unwrap();
        let mut engine = database.runtime().engine();
        let xid = engine.begin();
        (engine.room.view.capacity_pages, engine.room.view.log_least) =
            (0, engine.room.view.log_budget);
        for (has_lost_blocks, error) in [(false, EngineError::Full), (true, EngineError::WornOut)] {
            (engine.room.view.has_lost_blocks, engine.room.growth) =
                (has_lost_blocks, Growth::default());
            assert_eq!(engine.why_full(xid), error);
            assert_eq!(engine.admit_pages(1), Err(error.clone().into()));
            assert_eq!(engine.admit_growth(1), Err(error.into()));
        }
    }
}
