//! Checkpoints: how the head of the log advances although live deltas stay unmerged.
//!
//! ```text
//!  Idle ──▶ Merging ──▶ Copying ──▶ Settling ──▶ Saving ──▶ Idle
//!           leaves with  copies of    inner nodes  mapping checkpoint with the master record,
//!           old deltas,  live deltas  and frames   then the log's head moves to where the cycle
//!           if asked for to the tail  on flash     began
//! ```
//!
//! | transition | function | afterwards |
//! | --- | --- | --- |
//! | Idle → Merging | `begin_cycle` | cutoff = durable LSN; versions at or below it stay apart |
//! | Merging → Copying | `merge_step` | deltas ≤ cutoff are left only where a merge had to wait |
//! | Copying → Settling | `copy_step` | every live delta ≤ cutoff is in a copy record behind `begin` |
//! | Settling → Saving | `checkpoint_job` | no node on flash needs a record before `begin` |
//! | Saving → Idle | `checkpoint_done` | restart reads from `begin` (rule D4) |
//!
//! Invariants:
//! - **C1** The master record is written only after every copy of its cycle is durable, every
//!   structure change at or below the cutoff is in an inner node on flash, every install record
//!   before it is installed, and every large transaction's group is current.
//! - **C2** Restart ignores commit records at or below the cutoff: their live changes were copied.

use std::ops::Bound;

use flagstone_space::{GroupId, Lsn, OPEN_GROUP_PAGE_SIZE};

use super::merge::{Job, Next, WriteJob};
use super::owner::Identity;
use super::spans::PageSpans;
use super::spill::{CommittedRun, Run};
use super::transaction::PENDING_SHARE;
use super::value::Release;
use super::{Commits, Recovery, Step, Store, Table, Tree, journal};
use crate::bugs::SeededBug;
use crate::log::{Cursor, LogPosition};
use crate::options::Compaction;

/// Share of the log budget, in percent, at which a cycle begins.
const BEGIN_PERCENT: u64 = 60;

/// Copies that wait for one sync, in bytes: written in a few milliseconds, about the time that the sync
/// takes.
const COPY_BATCH_MAX: usize = 256 << 10;

/// Such copies take at most one part in this many of the log.
const COPY_LOG_SHARE: usize = 64;

/// Log blocks that must be left when a cycle begins, for logs of few blocks.
const BEGIN_BLOCKS: u64 = 3;

/// One part in this many of the memory that restart may fill is the tail of the log at which a cycle
/// that merges begins.
const TAIL_SHARE: usize = 2;

/// Step of a cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    /// Merging leaves with deltas at or below the cutoff, from this tree and key on.
    Merging { tree: usize, from: Vec<u8> },
    /// Copying deltas from this tree and key on.
    Copying { tree: usize, after: Option<Vec<u8>> },
    /// Waiting for nodes, frames and the log to reach flash.
    Settling { copied: Lsn },
    /// The mapping checkpoint is being written.
    Saving,
}

/// Progress of checkpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cycle {
    phase: Phase,
    number: u32,
    cutoff: Lsn,
    begin: LogPosition,
    /// Log page at which the last cycle ended: until the log has a later page, another cycle frees
    /// nothing.
    end_page: Option<u64>,
    is_wanted: bool,
    /// A caller waits for the end of the cycle.
    is_awaited: bool,
    /// Bytes that may have to be copied before the cycle ends.
    owed: usize,
    /// The requested checkpoint is the last of the session.
    is_last: bool,
    /// The next cycle merges every leaf that it can, also where cycles copy.
    merges_all: bool,
    /// A leaf was found that cannot be merged before this cycle, or the next one, is over.
    goes_first: bool,
    /// Commits counted when the last cycle began.
    begin_commits: u64,
    /// Memory that the changes committed since then took at first, even where they take little of it by
    /// now: restart puts all of them back.
    tail_size: usize,
    /// Runs that were loaded before this cycle began.
    loaded: Vec<CommittedRun>,
    /// Pages that became current as groups since the last checkpoint: a mount finds their groups open,
    /// and its first record has to name them all.
    grouped_pages: usize,
    /// The part of these pages that the checkpoint being written covers.
    grouped_saved: usize,
}

impl Cycle {
    /// Versions at or below this LSN must stay apart from later ones until they are copied.
    pub(crate) fn cutoff(&self) -> Option<Lsn> {
        (self.phase != Phase::Idle).then_some(self.cutoff)
    }

    pub(crate) fn resume(&mut self, number: u32) {
        self.number = number;
    }

    /// Bytes that are still to be copied, at most, where changes take `packed`.
    pub(super) fn copies_owed(&self, packed: usize) -> usize {
        match self.phase {
            // Changes that do not merge are copied.
            Phase::Merging { .. } | Phase::Copying { .. } => self.owed.min(packed),
            _ => 0,
        }
    }

    /// A commit put changes of `size` bytes into the log's tail.
    pub(crate) fn count_committed(&mut self, size: usize) {
        self.tail_size += size;
    }

    /// A group of `pages` became current.
    pub(crate) fn count_grouped(&mut self, pages: usize) {
        self.grouped_pages += pages;
    }

    /// Pages of groups that no checkpoint covers.
    pub(crate) fn grouped_pages(&self) -> usize {
        self.grouped_pages
    }

    /// Restart put the log's tail back, which took `size` bytes.
    pub(crate) fn count_replayed(&mut self, size: usize) {
        self.tail_size = size;
    }
}

/// A checkpoint to be written by the space floor.
#[derive(Debug)]
pub(crate) struct CheckpointJob {
    /// The master record, kept by the mapping checkpoint.
    pub(crate) master: Vec<u8>,
    /// Nothing is written after it.
    pub(crate) is_last: bool,
    /// Log pages below this are not needed once it is durable.
    pub(crate) release_before: u64,
}

/// State that restart begins with: travels in the mapping checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Master {
    pub(crate) cycle: u32,
    pub(crate) cutoff: Lsn,
    pub(crate) begin: LogPosition,
    /// Epoch of the engine that wrote the record.
    pub(crate) epoch: u32,
    /// Durable frontier: a log that ends before it is damaged.
    pub(crate) durable: Lsn,
    /// No table ever had this number or a higher one.
    pub(crate) next_table: u32,
    /// Identity of the database; none if a power cut took its first checkpoint.
    pub(crate) identity: Option<Identity>,
    /// Rows of each tree by its number, as many as [`COUNT_MAX`] at most.
    pub(crate) entry_counts: Vec<(u32, u64)>,
    pub(crate) runs: Vec<MasterRun>,
    pub(crate) values: Vec<(Lsn, Vec<u8>)>,
    /// Pages of runs that no read needs any more, once this record is durable.
    pub(crate) pages: Vec<(Lsn, GroupId, PageSpans)>,
}

/// A run as the master record names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MasterRun {
    pub(crate) lsn: Lsn,
    pub(crate) run: Run,
    pub(crate) rolled_back: Vec<(u64, u64)>,
}

const MASTER_VERSION: u8 = 6;

/// Bytes of a master record without the elements of its lists.
pub(crate) const MASTER_HEAD_SIZE: usize = 77;

/// Bytes that count the rows of one table.
pub(crate) const TABLE_COUNT_SIZE: usize = 10;

/// Most rows of a table that are counted: as many as six bytes say.
const COUNT_MAX: u64 = (1 << 48) - 1;

/// Bytes of a deferred release, at most, without the value or the pages that it releases.
const RELEASE_SIZE: usize = 20;

impl Master {
    /// ```text
    /// 6 | cycle u32 | cutoff u64 | page u64 | sequence u64 | chain epoch u32 | predecessor u32
    ///   | epoch u32 | durable u64 | next table u32 | identity u64 | counts | runs | values | pages
    ///                                                                    lists: count u32, then elements
    /// count: table u32 | rows u48
    /// ```
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![MASTER_VERSION];
        out.extend(self.cycle.to_le_bytes());
        out.extend(self.cutoff.0.to_le_bytes());
        out.extend(self.begin.page.to_le_bytes());
        out.extend(self.begin.chain.next_sequence.to_le_bytes());
        out.extend(self.begin.chain.epoch.to_le_bytes());
        out.extend(self.begin.chain.predecessor.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend(self.durable.0.to_le_bytes());
        out.extend(self.next_table.to_le_bytes());
        out.extend(self.identity.map_or(0, Identity::number).to_le_bytes());
        out.extend((self.entry_counts.len() as u32).to_le_bytes());
        for (table, count) in &self.entry_counts {
            out.extend(table.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes()[..TABLE_COUNT_SIZE - size_of::<u32>()]);
        }
        out.extend((self.runs.len() as u32).to_le_bytes());
        for run in &self.runs {
            run.encode(&mut out);
        }
        out.extend((self.values.len() as u32).to_le_bytes());
        for (lsn, value) in &self.values {
            out.extend(lsn.0.to_le_bytes());
            put_sized(&mut out, value);
        }
        out.extend((self.pages.len() as u32).to_le_bytes());
        for (lsn, group, pages) in &self.pages {
            out.extend(lsn.0.to_le_bytes());
            out.extend(group.0.to_le_bytes());
            pages.encode(&mut out);
        }
        out
    }

    /// Reads a master record; any bytes give a value or none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Input(Cursor::new(bytes));
        if input.u8()? != MASTER_VERSION {
            return None;
        }
        let mut master = Self { cycle: input.u32()?, cutoff: Lsn(input.u64()?), ..Self::default() };
        master.begin.page = input.u64()?;
        master.begin.chain.next_sequence = input.u64()?;
        master.begin.chain.epoch = input.u32()?;
        master.begin.chain.predecessor = input.u32()?;
        master.epoch = input.u32()?;
        master.durable = Lsn(input.u64()?);
        master.next_table = input.u32()?;
        master.identity = Identity::of(input.u64()?);
        for _ in 0..input.u32()? {
            let (table, [low, high]) = (input.u32()?, [input.u32()?, input.u16()?.into()]);
            master.entry_counts.push((table, u64::from(high) << 32 | u64::from(low)));
        }
        for _ in 0..input.u32()? {
            master.runs.push(MasterRun::decode(&mut input)?);
        }
        for _ in 0..input.u32()? {
            let lsn = Lsn(input.u64()?);
            master.values.push((lsn, input.sized()?.to_vec()));
        }
        for _ in 0..input.u32()? {
            let (lsn, group) = (Lsn(input.u64()?), GroupId(input.u64()?));
            master.pages.push((lsn, group, PageSpans::decode(&mut input)?));
        }
        // Copied changes were durable, even if later records were lost (C1).
        let is_sound = master.cutoff <= master.durable && input.0.is_empty();
        let mut lsns: Vec<Lsn> = master.runs.iter().map(|run| run.lsn).collect();
        lsns.sort_unstable();
        let are_apart = lsns.is_sorted_by(|one, other| one < other);
        let are_durable = lsns.last().is_none_or(|last| *last <= master.durable);
        (is_sound && are_apart && are_durable).then_some(master)
    }
}

impl MasterRun {
    /// A run that has no pages any more, but whose changes stay apart from later ones.
    pub(crate) fn bare(lsn: Lsn) -> Self {
        let run = Run { group: GroupId::NONE, parts: Vec::new(), last: Vec::new() };
        Self { lsn, run, rolled_back: Vec::new() }
    }

    /// Bytes that a run takes in a master record, with so many ranges rolled back.
    pub(crate) fn size_of(run: &Run, rolled_back: usize) -> usize {
        size_of::<u64>() + run.encoded_size() + size_of::<u32>() + 16 * rolled_back
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.lsn.0.to_le_bytes());
        self.run.encode(out);
        out.extend((self.rolled_back.len() as u32).to_le_bytes());
        for (above, upto) in &self.rolled_back {
            out.extend(above.to_le_bytes());
            out.extend(upto.to_le_bytes());
        }
    }

    pub(crate) fn decode(input: &mut Input<'_>) -> Option<Self> {
        let lsn = Lsn(input.u64()?);
        let run = Run::decode(input)?;
        let mut rolled_back = Vec::new();
        for _ in 0..input.u32()? {
            rolled_back.push((input.u64()?, input.u64()?));
        }
        Some(Self { lsn, run, rolled_back })
    }
}

fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Fixed-size fields from untrusted bytes.
pub(crate) struct Input<'a>(pub(crate) Cursor<'a>);

impl<'a> Input<'a> {
    fn u8(&mut self) -> Option<u8> {
        self.0.byte().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.0.take(2).ok()?.try_into().ok()?))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.0.take(4).ok()?.try_into().ok()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.0.take(8).ok()?.try_into().ok()?))
    }

    /// A varint.
    pub(super) fn number(&mut self) -> Option<u64> {
        self.0.varint().ok()
    }

    /// Bytes behind their number as a varint.
    pub(super) fn key(&mut self) -> Option<&'a [u8]> {
        self.0.bytes().ok()
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let size = self.u32()?;
        self.0.take(u64::from(size)).ok()
    }
}

impl Store {
    /// Bytes of copies in one record.
    fn copy_record_size(&self) -> usize {
        2 * self.payload_size
    }

    /// Copies gather until they fill this many bytes: that makes pages dense and bursts small, and
    /// changes merged meanwhile need not be copied. Where each burst takes a sync there are fewer
    /// bursts for the callers that wait, as far as memory and log have room.
    fn copy_batch_size(&self) -> usize {
        let least = self.copy_record_size();
        if !self.cycle.is_awaited || !self.view.needs_sync {
            return least;
        }
        let log_size = self.view.log_budget as usize * self.view.log_page_size;
        let most = (self.options.memory / (2 * PENDING_SHARE)).min(log_size / COPY_LOG_SHARE);
        most.min(COPY_BATCH_MAX).max(least)
    }

    /// Asks for a checkpoint, however short the log is. Pending records may have to be flushed before
    /// the cycle goes on, and the caller may be the only one to wait for them (rule D1).
    pub fn want_checkpoint(&mut self) {
        self.cycle.is_wanted = true;
        self.await_cycle();
    }

    fn await_cycle(&mut self) {
        self.cycle.is_awaited = true;
        self.want_flush();
    }

    /// Asks for a checkpoint without which a leaf cannot be merged, and for merges in it if the cycle
    /// under way merges.
    pub(super) fn want_checkpoint_before_merges(&mut self) {
        self.cycle.merges_all |= matches!(self.cycle.phase, Phase::Merging { .. });
        self.cycle.goes_first = true;
        self.want_checkpoint();
    }

    /// Whether the log is so long that a checkpoint has to free a part of it.
    fn is_log_filling(&self) -> bool {
        self.view.log_used > self.log_pages_below(BEGIN_PERCENT, BEGIN_BLOCKS)
    }

    /// Whether the checkpoint under way is the last one: after it, no operation needs more memory than
    /// there is.
    pub(super) fn is_closing(&self) -> bool {
        self.cycle.is_last
    }

    /// Whether a checkpoint was asked for and is not finished.
    #[must_use]
    pub fn is_checkpointing(&self) -> bool {
        self.cycle.is_wanted || self.cycle.phase != Phase::Idle
    }

    /// Whether the checkpoint under way lets go of runs.
    pub(super) fn covers_runs(&self) -> bool {
        !self.cycle.loaded.is_empty()
    }

    /// Whether the log went on since the last checkpoint: another checkpoint then frees a part of it.
    pub(super) fn shortens_log(&self) -> bool {
        self.cycle.end_page.is_none_or(|end| self.log_page > end)
    }

    /// Whether as many commits as the options name have come since the last cycle began.
    fn is_checkpoint_due(&self) -> bool {
        let every = self.options.checkpoint_commits;
        every > 0 && self.counts.commits - self.cycle.begin_commits >= every
    }

    /// Rows of a table by its last count, with its live deltas: for estimates.
    pub(crate) fn entry_estimate(&self, table: Table) -> u64 {
        let Some(tree) = self.trees.get(table.id as usize) else { return 0 };
        u64::try_from(tree.entry_count).unwrap_or(0) + tree.deltas.len() as u64
    }
}

impl Commits {
    pub(crate) fn must_checkpoint(&self) -> bool {
        if self.replaying.is_some() {
            // The log is being read: no part of it may go.
            return false;
        }
        match self.cycle.phase {
            Phase::Idle => {
                self.cycle.is_wanted
                    || self.is_checkpoint_due()
                    || self.is_tail_long()
                    || self.is_record_crowded()
                    || (self.is_log_filling() || self.is_record_filling() || self.are_loaded_many())
                        && self.shortens_log()
            }
            Phase::Merging { .. } => true,
            // A page full of copies is waiting to be written: the flush comes first. Records that the
            // flush leaves behind may be as many bytes again.
            Phase::Copying { .. } => {
                self.log.pending_bytes() < self.copy_batch_size()
                    || !self.is_flush_wanted() && self.flush_in_flight.is_none()
            }
            Phase::Settling { copied } => {
                copied <= self.durable()
                    || !self.is_flush_wanted() && self.flush_in_flight.is_none()
            }
            Phase::Saving => false,
        }
    }

    /// Whether the log's tail should be cut, or restart may have to merge (rule D11): a second tail as
    /// long may come before the cycle ends. Copying would not shorten the tail.
    fn is_tail_long(&self) -> bool {
        self.options.techniques.compaction == Compaction::Merge
            && self.cycle.tail_size > self.replay_size_max() / TAIL_SHARE
    }

    /// Bytes that the record of a checkpoint may come to need for unfinished work: the master record,
    /// and the pages of open groups.
    pub(crate) fn record_size(&self) -> usize {
        let releases = self.trims.deferred().map(|(_, release)| RELEASE_SIZE + release.size());
        let open = self.transactions.values().map(|transaction| transaction.named_size());
        let bare =
            self.runs.bare_lsns().map(|lsn| MasterRun::size_of(&MasterRun::bare(lsn).run, 0));
        let lists = releases.chain(open).chain(bare).sum::<usize>() + self.run_record_size();
        MASTER_HEAD_SIZE + self.counts_size() + lists + self.open_pages_size()
    }

    /// Bytes of that record that name the runs of committed transactions.
    fn run_record_size(&self) -> usize {
        let runs = self.runs.unfinished().chain(&self.cycle.loaded);
        runs.map(|run| run.named_size).sum()
    }

    /// Bytes of that record that go when background work has loaded every run and released all pages
    /// that may go.
    pub(crate) fn passing_record_size(&self) -> usize {
        let ready = self.trims.ready(self.durable(), self.snapshots.oldest());
        let released = ready.map(|release| RELEASE_SIZE + release.size()).sum::<usize>();
        // Only the space floor can tell which of the pages belong to groups that are about to be
        // closed.
        let listed = if self.trims.has_groups() { self.view.record_listed } else { 0 };
        self.run_record_size() + released + listed
    }

    /// Bytes of that record that list pages of open groups: the pages on flash when the engine last saw
    /// the space floor, and the pages that may have come since.
    pub(crate) fn open_pages_size(&self) -> usize {
        let installs = self.open_groups().map(|job| job.page_count());
        let open = self.transactions.values().map(|transaction| transaction.unwritten);
        let pages = installs.chain(open).sum::<usize>() + self.claimed_page_count();
        self.view.record_listed + pages * OPEN_GROUP_PAGE_SIZE
    }
}

impl Recovery {
    /// A commit waits for room in the log: the cycle under way frees some, or else the next one does.
    pub fn want_log_room(&mut self) {
        self.cycle.is_wanted |= self.cycle.phase == Phase::Idle;
        if !self.cycle.is_awaited || !self.must_checkpoint() {
            self.await_cycle();
        }
    }

    /// Asks for a checkpoint after which nothing is written.
    pub(crate) fn want_last_checkpoint(&mut self) {
        self.cycle.is_last = true;
        self.want_checkpoint();
    }

    /// Whether merges wait until a checkpoint is made. A search for merges meanwhile would read pages,
    /// and drive out the pages that the checkpoint has read (rule D7). Where changes wait outside
    /// memory, and the log fills or leaves find no page to split, merging all of these changes may
    /// bring back more than the log has room to copy.
    pub(super) fn goes_before_merges(&self) -> bool {
        let may_overfill =
            !self.runs.is_empty() && (self.obstacles.is_out_of_pages() || self.is_log_filling());
        self.cycle.goes_first || may_overfill && self.must_checkpoint()
    }

    /// Asks for a checkpoint that merges every leaf with durable deltas (Lazy-Split LRU: full merge
    /// commit).
    pub fn want_full_merge(&mut self) {
        self.cycle.merges_all = true;
        self.want_checkpoint();
    }

    pub(crate) fn checkpoint_step(&mut self) -> Step<Next> {
        if !self.must_checkpoint() {
            return Ok(Next::Idle);
        }
        match self.cycle.phase.clone() {
            Phase::Idle => {
                self.begin_cycle();
                Ok(Next::Stepped)
            }
            Phase::Merging { tree, from } => self.merge_step(tree, &from),
            Phase::Copying { tree, after } => {
                self.copy_step(tree, after);
                Ok(Next::Stepped)
            }
            Phase::Settling { copied } => {
                Ok(self.settle_cycle(copied)?.map_or(Next::Idle, Next::Job))
            }
            Phase::Saving => Ok(Next::Idle),
        }
    }

    fn begin_cycle(&mut self) {
        self.cycle.is_wanted = false;
        self.cycle.number = self.cycle.number.wrapping_add(1);
        self.cycle.cutoff = self.durable();
        self.cycle.begin = LogPosition { page: self.log_page, chain: self.durable_chain };
        self.cycle.begin_commits = self.counts.commits;
        self.cycle.owed = self.packed_size;
        self.cycle.tail_size = 0;
        // Copies that have to be made where the log is full leave no room for the record that lets it go: the
        // fewer there are, the sooner it is there (D7).
        let merges = std::mem::take(&mut self.cycle.merges_all)
            || self.is_log_full()
            || self.lacks_room_for_copies()
            || self.are_many_apart()
            || self.options.techniques.compaction == Compaction::Merge;
        self.cycle.phase = match merges {
            false => Phase::Copying { tree: 0, after: None },
            true => Phase::Merging { tree: 0, from: Vec::new() },
        };
        let cutoff = self.cycle.cutoff;
        self.cycle.loaded = self.runs.take_loaded(cutoff);
        self.forget_met_runs();
        self.drops_covered();
        self.refresh_floors();
    }

    /// Merges the next leaf with deltas at or below the cutoff. A leaf whose merge has to wait, or is
    /// not possible, is passed over: its deltas are copied.
    fn merge_step(&mut self, number: usize, from: &[u8]) -> Step<Next> {
        let Some((number, key)) = self.next_old_delta(number, from) else {
            // Merged changes need nothing kept apart. From the first copy on, the record has to go on
            // naming the LSNs that keep the copies apart.
            self.forget_met_runs();
            self.refresh_floors();
            self.cycle.owed = self.cycle.owed.min(self.packed_size);
            self.cycle.phase = Phase::Copying { tree: 0, after: None };
            return Ok(Next::Stepped);
        };
        let table = Table::of(number as u32);
        let mut next = Next::Stepped;
        let high = match self.behind_unreadable(table, &key) {
            Some(high) => high,
            None => {
                let place = self.place_of(table, &key)?;
                if !self.obstacles.passes_over(place.page) {
                    let job = self.merge_at(table, key)?;
                    if job.is_none() && self.has_installs() {
                        // A split of this tree comes first, as soon as its record is durable.
                        self.await_installs();
                        return Ok(Next::Idle);
                    }
                    let end = job.as_ref().and_then(WriteJob::end).map(<[u8]>::to_vec);
                    next = job.map_or(Next::Stepped, |job| Next::Job(Job::Write(Box::new(job))));
                    end.or(place.high)
                } else {
                    place.high
                }
            }
        };
        let (tree, from) = high.map_or((number + 1, Vec::new()), |high| (number, high));
        self.cycle.phase = Phase::Merging { tree, from };
        Ok(next)
    }

    /// The first delta at or below the cutoff, by tree and key, from a key of a tree on.
    fn next_old_delta(&self, number: usize, from: &[u8]) -> Option<(usize, Vec<u8>)> {
        let below = Lsn(self.cycle.cutoff.0 + 1);
        self.trees.from(number).filter(|tree| tree.root.is_some()).find_map(|tree| {
            let at = tree.id as usize;
            let from = if at == number { from } else { &[] };
            let (key, ..) = tree.deltas.older_than(below, Bound::Included(from)).next()?;
            Some((at, key.to_vec()))
        })
    }

    /// Copies live deltas at or below the cutoff until a batch is full.
    fn copy_step(&mut self, mut number: usize, mut after: Option<Vec<u8>>) {
        let below = Lsn(self.cycle.cutoff.0 + 1);
        let room = self.copy_record_size();
        if self.bugs.has(SeededBug::SkipCopies) {
            number = usize::MAX;
        }
        let store: &mut Store = self;
        while let Some(tree) = store.trees.first_from(number) {
            if number != tree.id as usize {
                (number, after) = (tree.id as usize, None);
            }
            let before = store.log.pending_bytes();
            let (copied, last) = journal::append_copies(
                &mut store.log,
                store.cycle.number,
                tree,
                below,
                after,
                room,
            );
            store.counts.copied_deltas += copied as u64;
            if store.log.marker().is_some() {
                store.refresh_floors();
            }
            let bytes = store.log.pending_bytes() - before;
            store.cycle.owed = store.cycle.owed.saturating_sub(bytes);
            store.commit_costs.copied(bytes);
            store.tuner.copied(bytes as f64 / store.view.log_page_size.max(1) as f64);
            after = last;
            if after.is_none() {
                number += 1;
            }
            let is_more = bytes > 0 && store.trees.first_from(number).is_some();
            if is_more && store.log.pending_bytes() >= store.copy_batch_size() {
                store.cycle.phase = Phase::Copying { tree: number, after };
                store.want_flush();
                return;
            }
        }
        store.cycle.phase = Phase::Settling { copied: store.log.appended() };
        store.want_flush();
    }

    fn settle_cycle(&mut self, copied: Lsn) -> Step<Option<Job>> {
        if self.has_installs() {
            self.await_installs();
            return Ok(None);
        }
        if copied > self.durable() {
            self.want_flush();
            return Ok(None);
        }
        let cutoff = self.cycle.cutoff;
        let skips_nodes = self.bugs.has(SeededBug::SkipInnerNodes);
        if !skips_nodes && let Some(job) = self.inner_job(cutoff)? {
            return Ok(Some(Job::Write(Box::new(job))));
        }
        let (is_waiting, job) = self.old_frame_job(cutoff)?;
        let is_reshaping = !skips_nodes && self.is_reshaping_anywhere();
        if is_waiting || is_reshaping || self.trims.has_groups() {
            return Ok(job.map(|job| Job::Write(Box::new(job))));
        }
        if self.record_size() > self.view.record_room && self.end_oldest_snapshot() {
            // The values that only this snapshot could read go first.
            return Ok(None);
        }
        self.cycle.phase = Phase::Saving;
        self.note_given_saved();
        self.cycle.grouped_saved = self.cycle.grouped_pages;
        let master = self.master().encode();
        let release_before = self.cycle.begin.page;
        let is_last = !self.cycle.is_wanted && std::mem::take(&mut self.cycle.is_last);
        Ok(Some(Job::Checkpoint(CheckpointJob { master, is_last, release_before })))
    }

    fn is_reshaping_anywhere(&self) -> bool {
        let cutoff = self.cycle.cutoff;
        self.trees.iter().any(|tree| tree.structure.first_until(cutoff).is_some())
    }

    pub(crate) fn master(&self) -> Master {
        let value = |(lsn, release): (Lsn, &Release)| match release {
            Release::Value(descriptor) => Some((lsn, descriptor.clone())),
            _ => None,
        };
        let pages = |(lsn, release): (Lsn, &Release)| match release {
            Release::Pages(group, pages) => Some((lsn, *group, pages.clone())),
            _ => None,
        };
        let covered = self
            .cycle
            .loaded
            .iter()
            .map(|covered| (covered.lsn, covered.run.group, covered.run.pages().collect()));
        let run = |run: &CommittedRun| MasterRun {
            lsn: run.lsn,
            run: run.run.clone(),
            rolled_back: run.rolled_back.clone(),
        };
        let bare = self.runs.bare_lsns().map(MasterRun::bare);
        let count = |tree: &Tree| {
            let rows = u64::try_from(tree.entry_count).unwrap_or(0);
            (tree.id, rows.min(COUNT_MAX))
        };
        Master {
            cycle: self.cycle.number,
            cutoff: self.cycle.cutoff,
            begin: self.cycle.begin,
            epoch: self.log.epoch(),
            durable: self.durable(),
            next_table: self.trees.next(),
            identity: Some(self.identity),
            entry_counts: self.trees.iter().map(count).collect(),
            runs: self.runs.unfinished().map(run).chain(bare).collect(),
            values: self.trims.deferred().filter_map(value).collect(),
            pages: self.trims.deferred().filter_map(pages).chain(covered).collect(),
        }
    }

    /// The checkpoint is durable: the log's head has moved.
    pub(crate) fn checkpoint_done(&mut self) {
        self.end_cycle();
        self.counts.checkpoints += 1;
        self.cycle.grouped_pages -= std::mem::take(&mut self.cycle.grouped_saved);
        self.cycle.end_page = Some(self.log_page);
        self.drops_saved();
        self.take_given_saved();
        if self.freed_lsn <= self.cycle.cutoff {
            self.freed_lsn = Lsn::ZERO;
        }
        for run in std::mem::take(&mut self.cycle.loaded) {
            self.trims.add_pages(run.lsn, run.run.group, run.run.pages().collect());
        }
        self.refresh_floors();
    }

    /// The checkpoint could not be written; the next one starts anew.
    pub(crate) fn checkpoint_failed(&mut self) {
        self.end_cycle();
        self.cycle.grouped_saved = 0;
        self.drops_uncovered();
        self.keep_given_saved();
        for run in std::mem::take(&mut self.cycle.loaded) {
            self.runs.keep_loaded(run);
        }
        self.refresh_floors();
    }

    fn end_cycle(&mut self) {
        self.cycle.phase = Phase::Idle;
        self.cycle.is_awaited = self.cycle.is_wanted;
        self.cycle.goes_first = false;
    }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::{Profile, SimNand};
    use flagstone_space::LogicalPage;

    use super::super::spill::Runs;
    use super::super::{Stop, Wait};
    use super::*;
    use crate::engine::spill::RunPart;
    use crate::testing::Database;
    use crate::{Durability, Options};

    /// Goal (rule D7): a cycle of a full log copies as little as it can. Method: the same cycle with room in
    /// the log and without.
    #[test]
    fn where_the_log_is_full_leaves_are_merged_before_the_rest_is_copied() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let database = Database::create_on(SimNand::new(&profile, 1), &Options::default()).unwrap();
        let mut engine = database.runtime().engine();
        engine.begin_cycle();
        assert!(matches!(engine.cycle.phase, Phase::Copying { .. }), "there was room");
        engine.cycle.phase = Phase::Idle;
        engine.view.log_used = engine.view.log_budget;
        engine.begin_cycle();
        assert!(matches!(engine.cycle.phase, Phase::Merging { .. }), "copies come first");
    }

    /// Goal (rule D7): commits leave the log room for the copies that a cycle still has to make, and a
    /// cycle copies only as much as there is room for, on a device without room beside the log. Method:
    /// changes of a few log pages in a log of 100, a cycle from its begin until they are copied, and
    /// one that begins later.
    #[test]
    fn commits_leave_room_for_copies() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let database = Database::create_on(SimNand::new(&profile, 1), &Options::default()).unwrap();
        let table = database.table("t").unwrap();
        for row in 0..1_000_u32 {
            let mut transaction = database.begin();
            transaction.put(table, &row.wrapping_mul(0x9E37_79B9).to_be_bytes(), &[7; 12]).unwrap();
            transaction.commit_with(Durability::Deferred).unwrap();
        }
        database.flush().unwrap();
        let mut engine = database.runtime().engine();
        let xid = engine.begin();
        let copies = (engine.packed_size / engine.view.log_page_size) as u64;
        assert!((10..20).contains(&copies), "{copies} pages of changes");
        (engine.view.log_budget, engine.view.log_block_pages) = (100, 1);
        engine.view.capacity_pages = 0;
        engine.view.log_used = 85 - copies;
        engine.begin_cycle();
        assert!(matches!(engine.cycle.phase, Phase::Copying { .. }), "there is room for copies");
        assert!(engine.admit_commit(xid).is_ok(), "and for commits beside");
        engine.view.log_used = 99 - copies;
        assert!(matches!(engine.admit_commit(xid), Err(Stop::Wait(Wait::Log))), "room of copies");
        while let Phase::Copying { tree, after } = engine.cycle.phase.clone() {
            engine.copy_step(tree, after);
        }
        engine.view.log_used = 80;
        assert!(engine.admit_commit(xid).is_ok(), "all that is owed is copied");
        engine.cycle.phase = Phase::Idle;
        engine.view.log_used = 103 - copies;
        engine.begin_cycle();
        assert!(matches!(engine.cycle.phase, Phase::Merging { .. }), "copies find no room");
    }

    /// Goal (rule D7): the bounds of a master record are the sizes of its encoding. Method: one of each
    /// list.
    #[test]
    fn sizes_are_those_of_the_encoding() {
        let part = |first: &[u8], pages: &[u32]| RunPart {
            first: first.to_vec(),
            pages: pages.iter().copied().map(LogicalPage).collect(),
        };
        let parts = vec![part(b"first", &[7, 8, 9]), part(b"next", &[4, 12])];
        let run = Run { group: GroupId(3), parts, last: b"the last".to_vec() };
        let named = MasterRun { lsn: Lsn(9), run: run.clone(), rolled_back: vec![(1, 2), (4, 6)] };
        let mut bytes = Vec::new();
        named.encode(&mut bytes);
        assert_eq!(bytes.len(), MasterRun::size_of(&run, 2));
        assert_eq!(MasterRun::decode(&mut Input(Cursor::new(&bytes))), Some(named));
        assert_eq!(Master::default().encode().len(), MASTER_HEAD_SIZE);
        let values = vec![(Lsn(1), vec![0; 17])];
        let apart: PageSpans = [1, 3, 5].map(LogicalPage).into_iter().collect();
        let pages = vec![(Lsn(1), GroupId(2), apart.clone())];
        let entry_counts = vec![(7, 3), (1 << 30, COUNT_MAX)];
        let master = Master { values, pages, next_table: 9, entry_counts, ..Master::default() };
        let sizes = 2 * (RELEASE_SIZE + TABLE_COUNT_SIZE) + 17 + apart.encoded_size();
        assert!(master.encode().len() <= MASTER_HEAD_SIZE + sizes);
        assert_eq!(Master::decode(&master.encode()), Some(master));
    }

    /// Goal (D5): a record with a correct checksum is doubted all the same. Method: a cutoff beyond
    /// every log, from which restart would take later LSNs.
    #[test]
    fn a_cutoff_beyond_the_durable_frontier_is_refused() {
        let master = Master { cutoff: Lsn(8), durable: Lsn(7), ..Master::default() };
        assert_eq!(Master::decode(&master.encode()), None);
        let master = Master { cutoff: Lsn(7), ..master };
        assert_eq!(Master::decode(&master.encode()), Some(master.clone()));
        let named = |lsn| Master { runs: vec![MasterRun::bare(Lsn(lsn))], ..master.clone() };
        assert_eq!(Master::decode(&named(8).encode()), None);
        assert_eq!(Master::decode(&named(7).encode()), Some(named(7)));
    }

    /// Goal (R3): a run that both the master record and the log name is loaded and freed once.
    #[test]
    fn a_run_that_is_named_twice_is_taken_once() {
        let pages = PageSpans::from_iter([LogicalPage(7)]);
        let parts = vec![RunPart { first: b"first".to_vec(), pages }];
        let run = Run { group: GroupId(3), parts, last: b"the last".to_vec() };
        let mut runs = Runs::default();
        runs.restore(CommittedRun::new(Lsn(8), run.clone(), Vec::new()));
        runs.commit(Lsn(9), &[run], &[]);
        assert_eq!(runs.unfinished().count(), 1);
    }
}
