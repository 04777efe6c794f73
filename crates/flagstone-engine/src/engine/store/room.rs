//! Room: the pages left on the device and in the log, and the bytes left in a checkpoint's record.

use flagstone_space::{GroupId, LogicalPage, Lsn, OPEN_GROUP_PAGE_SIZE};

use crate::delta::{Entry, KeyRange, Op};
use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::Store;
use crate::engine::store::guest::growth_by;
use crate::engine::store::memory::DELTAS_LOG_PERCENT;
use crate::engine::store::run::record::MasterRun;
use crate::error::EngineError;

/// Bytes by which unmerged deltas may make leaves grow: an upper bound, since a put may replace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Growth {
    pub(in crate::engine) bytes: usize,
    /// Changes were committed since deltas were last merged to the end: how much leaves grow or shrink
    /// when these are merged is not known.
    pub(in crate::engine) is_open: bool,
    /// Commits wait until merging has told real growth from replaced values.
    pub(in crate::engine) is_reclaiming: bool,
}

impl Growth {
    /// A commit added changes that may grow leaves by `bytes`.
    pub(crate) fn committed(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.is_open = true;
    }

    /// Deltas of `bytes` out of `total` were merged: their share of the growth is real now.
    pub(crate) fn merged(&mut self, bytes: usize, total: usize) {
        if total == 0 || bytes >= total {
            (self.bytes, self.is_open) = (0, false);
        } else {
            self.bytes -= (self.bytes as u128 * bytes as u128 / total as u128) as usize;
        }
    }

    /// Whether deltas must be merged to learn how much room there is.
    pub(crate) fn is_reclaiming(&self) -> bool {
        self.is_reclaiming
    }
}

/// Largest commit of a load, in bytes of rows.
const LOAD_SIZE_MAX: usize = 1 << 20;

/// Average share of a leaf that is used, in percent, when growth in bytes becomes pages.
const LEAF_USE_PERCENT: usize = 65;

/// Logical pages never given to users: the largest structure change and a checkpoint's inner nodes.
pub(in crate::engine) const PAGES_RESERVED: u64 = 8;

/// Share of a checkpoint's record, in percent, up to which transactions may write before their
/// commit; the rest is for values whose release waits for a snapshot.
const RECORD_USE_PERCENT: usize = 50;

/// Share of a checkpoint's record, in percent, that counts the rows of tables.
const COUNTS_PERCENT: usize = 25;

const _: () = assert!(RECORD_USE_PERCENT + COUNTS_PERCENT < 100, "values wait in the rest");

/// LSNs that keep changes apart take at most one part in this many of a checkpoint's record.
const APART_SHARE: usize = 8;

/// Percentage of the record's room for names of runs that the runs of committed transactions may take.
const WAITING_PERCENT: usize = 60;

/// One part in this many of the logical pages is never taken by claims.
const CLAIM_SPARE_SHARE: u64 = 8;

/// The runs of one transaction take at most one part in this many of the log.
const COMMIT_LOG_SHARE: usize = 16;

/// Bytes of a master record without the elements of its lists.
pub(crate) const MASTER_HEAD_SIZE: usize = 77;

/// Bytes that count the rows of one table.
pub(crate) const TABLE_COUNT_SIZE: usize = 10;

/// The engine's view of the space floor; refreshed by the runtime.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceView {
    /// Bytes of the master record that the last checkpoint saved.
    pub(crate) record_said: usize,
    /// Bytes of a record that list the pages of open groups on flash.
    pub(crate) record_listed: usize,
    /// Log pages in use.
    pub(crate) log_used: u64,
    /// Log pages the budget allows.
    pub(crate) log_budget: u64,
    /// The same once the log has given back the pages beyond its share.
    pub(crate) log_least: u64,
    /// Bytes of a log page.
    pub(crate) log_page_size: usize,
    /// Log pages of an erase block.
    pub(crate) log_block_pages: u64,
    /// Bytes that the record of a checkpoint has for the master record and open groups.
    pub(crate) record_room: usize,
    /// The same with as many named snapshots as there may be: never less.
    pub(crate) record_room_least: usize,
    /// Logical pages that are live, or taken by the engine.
    pub(crate) taken_pages: u64,
    /// Logical pages that may be live.
    pub(crate) capacity_pages: u64,
    /// The device may become larger.
    pub(crate) can_grow: bool,
    /// The log may become larger, too.
    pub(crate) log_grows: bool,
    /// The host may have no room for the blocks that log, checkpoints and collection rely on.
    pub(crate) lacks_reserve: bool,
    /// Blocks are bad: less may be live than when the device was new.
    pub(crate) has_lost_blocks: bool,
    /// Memory of the mapping.
    pub(crate) mapping_bytes: usize,
    /// A flag in the spare area can commit a group.
    pub(crate) carries_flags: bool,
    /// Nothing written is durable before a sync, which takes longer than a few pages.
    pub(crate) needs_sync: bool,
    /// Relocations that a page write has brought with it, on average.
    pub(crate) moves_per_write: f64,
}

/// Room on the device and in the log.
#[derive(Debug, Default)]
pub(in crate::engine) struct Room {
    pub(in crate::engine) view: SpaceView,
    pub(in crate::engine) growth: Growth,
    /// Logical pages that the space floor reserved for new nodes and values.
    pub(in crate::engine) unused_pages: Vec<LogicalPage>,
    /// Group numbers that were never used.
    pub(in crate::engine) unused_groups: Vec<GroupId>,
}

impl Store {
    /// The state of a device without room: full, or worn out, with fewer blocks left than its content
    /// takes.
    pub(in crate::engine) fn fullness(&self) -> EngineError {
        let is_worn =
            self.room.view.has_lost_blocks && self.used_pages() > self.room.view.capacity_pages;
        if is_worn { EngineError::WornOut } else { EngineError::Full }
    }

    /// Waits until a device that grows has room for `pages` more, as long as it may have.
    pub(crate) fn demand_room(&self, pages: u64) -> Step<()> {
        let is_short = self.room.view.can_grow && !self.has_pages_for(pages);
        if is_short { Err(Stop::Wait(Wait::Room(pages + PAGES_RESERVED))) } else { Ok(()) }
    }

    /// Bytes by which leaves may grow for changes that are not merged, as far as is known.
    pub(crate) fn growth_waiting(&self) -> usize {
        let entries = self.trees.iter().flat_map(|tree| tree.deltas.range(KeyRange::ALL));
        let grown: usize =
            entries.map(|entry| grown_by(&entry, Lsn(u64::MAX)).max(0) as usize).sum();
        grown + self.runs.pages_left() * self.payload_size
    }

    /// The smaller of a share of the log budget and the budget less some blocks.
    pub(crate) fn log_pages_below(&self, percent: u64, blocks: u64) -> u64 {
        let budget = self.room.view.log_budget;
        let share = budget * percent / 100;
        // A log of very few blocks still has to hold some records before a checkpoint of it is worth
        // its cost.
        let spared = budget.saturating_sub(blocks * self.room.view.log_block_pages);
        share.min(spared).max(share / 2).max(budget.min(self.room.view.log_block_pages))
    }

    /// Whether there are deltas for a merge to take.
    pub(crate) fn has_deltas(&self) -> bool {
        self.trees.iter().any(|tree| !tree.deltas.is_empty())
    }

    /// Whether leaves can grow by `bytes` and the reserve stays.
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        self.has_pages_for(self.pages_for(bytes))
    }

    /// Leaves that hold `bytes`.
    pub(in crate::engine) fn pages_for(&self, bytes: usize) -> u64 {
        let usable = self.payload_size * LEAF_USE_PERCENT / 100;
        bytes.div_ceil(usable) as u64
    }

    /// The same, beside committed changes that may make leaves grow.
    pub(crate) fn has_room_beside_growth(&self, bytes: usize) -> bool {
        self.has_room_for(self.room.growth.bytes + bytes)
    }

    /// Whether users may take `pages` more and the reserve stays.
    pub(crate) fn has_pages_for(&self, pages: u64) -> bool {
        self.used_pages() + pages + PAGES_RESERVED <= self.room.view.capacity_pages
    }

    /// Whether a claim may have `pages` beside the versions that they replace: the last part of the
    /// device is left to merges, which free the replaced pages at once.
    pub(crate) fn has_room_to_claim(&self, pages: u64) -> bool {
        // Leaves that turn out not to fit are logged.
        self.room.view.can_grow
            || self.has_pages_for(pages + self.room.view.capacity_pages / CLAIM_SPARE_SHARE)
    }

    /// Bytes of a checkpoint's record that count the rows of tables.
    pub(in crate::engine) fn counts_size(&self) -> usize {
        self.trees.len() * TABLE_COUNT_SIZE
    }

    /// How many tables there may be: their counts have a share of a checkpoint's record to themselves.
    #[must_use]
    pub fn table_count_max(&self) -> usize {
        let counts = self.room.view.record_room_least * COUNTS_PERCENT / 100 / TABLE_COUNT_SIZE;
        // The catalog has a count, too.
        counts.saturating_sub(1)
    }

    /// Pages that a transaction may write before its commit while nothing else is unfinished.
    pub(crate) fn nameable_pages(&self) -> usize {
        nameable_in(self.room.view.record_room)
    }

    /// The same with the smallest record that the database may ever have.
    pub(super) fn nameable_pages_ever(&self) -> usize {
        nameable_in(self.room.view.record_room_least)
    }

    /// Whether a record of `size` bytes leaves the part that transactions may not use. Counts have a
    /// share of their own.
    pub(in crate::engine) fn fits_record(&self, size: usize) -> bool {
        size.saturating_sub(self.counts_size()) * 100
            <= self.room.view.record_room * RECORD_USE_PERCENT
    }

    /// Bytes that names in one commit record may take.
    pub(in crate::engine) fn commit_names_max(&self) -> usize {
        self.room.view.log_budget as usize * self.room.view.log_page_size / COMMIT_LOG_SHARE
    }

    /// Bytes of a commit several of which may be claimed before a checkpoint has to cover their groups.
    pub(crate) fn claimed_bytes_max(&self) -> usize {
        (self.nameable_pages() / 8).max(1) * self.payload_size
    }

    /// Bytes of rows that one commit of a load should have: so many rows stay in memory until the
    /// commit, and their pages can be named.
    #[must_use]
    pub fn load_size_max(&self) -> usize {
        (self.uncommitted_max() / 2).min(self.claimed_bytes_max()).min(LOAD_SIZE_MAX)
    }

    /// Whether the groups of half as many pages as claims may come to have wait for a checkpoint.
    pub(crate) fn is_record_crowded(&self) -> bool {
        let grouped = self.cycle.grouped_pages() * OPEN_GROUP_PAGE_SIZE;
        grouped * 400 > self.room.view.record_room * RECORD_USE_PERCENT
    }

    /// Used part of the record's room for the names of committed, waiting runs; runs that transactions
    /// are still writing have the rest of the room for names.
    pub(super) fn waiting_part(&self) -> f64 {
        let most = self.room.view.record_room * RECORD_USE_PERCENT / 100 * WAITING_PERCENT / 100;
        self.runs.waiting_size() as f64 / most.max(1) as f64
    }

    /// Whether changes are kept apart at so many LSNs that merging has to bring them together.
    pub(crate) fn are_many_apart(&self) -> bool {
        let size = self.runs.apart_count() * MasterRun::size_of(&MasterRun::bare(Lsn::ZERO).run, 0);
        size * APART_SHARE > self.room.view.record_room
    }

    /// Pages that hold content, or will once their group is current.
    pub(super) fn used_pages(&self) -> u64 {
        self.room.view.taken_pages.saturating_sub(self.room.unused_pages.len() as u64)
    }
}

/// Pages that a record with `room` bytes can name for transactions.
fn nameable_in(room: usize) -> usize {
    (room * RECORD_USE_PERCENT / 100).saturating_sub(MASTER_HEAD_SIZE) / OPEN_GROUP_PAGE_SIZE
}

/// Bytes by which a leaf may grow for the changes of one of its keys up to an LSN: a patch changes the
/// bytes of the value below it, not the size.
pub(in crate::engine) fn grown_by(entry: &Entry<'_>, upto: Lsn) -> i64 {
    let versions = entry.versions().take_while(|(lsn, _)| *lsn <= upto);
    let whole = versions.filter(|(_, op)| !matches!(op, Op::Patch(_)));
    whole.last().map_or(0, |(_, op)| growth_by(entry.key(), op))
}

impl SpaceView {
    /// Bytes of deltas that a checkpoint has room to copy; without bound where nothing is known of a
    /// log.
    pub(super) fn copies_max(&self) -> usize {
        let pages = usize::try_from(self.log_budget).unwrap_or(usize::MAX);
        match pages.saturating_mul(self.log_page_size) {
            0 => usize::MAX,
            log_size => log_size / 100 * DELTAS_LOG_PERCENT,
        }
    }
}
