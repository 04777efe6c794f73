//! Run commits: commits with changes all over a table larger than memory, many pages of changes in one
//! transaction.
//!
//! If memory took such changes and merged them, each leaf would be written for a few changes. So such a
//! transaction leaves memory before its commit, as one larger than memory does: sorted pages take the
//! place of the log. Its run waits, together with the runs of others, until these runs are as large as
//! a share of the leaves. Then leaf after leaf is written, in key order, with the changes that all runs
//! have for it.
//!
//! ```text
//!  commit ──▶ is worth a run? ──no──▶ by the log, changes stay in memory
//!                    │ yes
//!                    ▼
//!             changes leave memory ──▶ the record names the run ──▶ it waits
//!                                                                      │ a read needs its changes, or runs
//!                                                                      ▼ take their share of the pages
//!                                                     loaded in key order, merged, trimmed
//! ```
//!
//! Invariants:
//! - **B1** Runs wait as long as no read needs them: the first read of a key inside a waiting run has
//!   all runs loaded, and for a while commits go by the log.
//! - **B2** Waiting runs are bounded by the pages of the leaves; by memory, which can hold half as much
//!   again, and a page of each run beside all else; and by the record of a checkpoint, which names them
//!   all. Where they may not grow, commits go by the log.

use super::merge::{Job, Next};
use super::transaction::split_private_key;
use super::{Commits, Step, Stop, Store, Wait};
use crate::delta::KeyRange;
use crate::lock::Xid;
use crate::options::CommitBy;

/// Least size of such a transaction's changes in memory, in pages: the free rest of its last page, and
/// the names of its pages, are little beside that.
const PAGES_MIN: usize = 16;

/// Commits of that size that go by the log after a read has asked for runs.
const PAUSE: u32 = 64;

/// Runs wait until their pages are one part in this many of the leaves' pages. Leaves are merged one
/// after the other: when its turn comes, changes of its own size wait for a leaf.
const WAITING_SHARE: u64 = 2;

/// A page of each run takes at most one part in this many of the memory for deltas: one key may need
/// that many pages loaded.
const RUNS_SHARE: usize = 4;

/// Reads that look into runs beside their tables before runs wait no longer.
const READS_MAX: u32 = 10_000;

/// Places at which a transaction's changes are looked at.
const PLACES: usize = 16;

/// Part of the waiting runs' bound above which leaves are merged for them.
const MERGED_ABOVE: f64 = 0.8;

/// Pages of a part of such a run: a key loads no more.
pub(super) const PART_PAGES: usize = 1;

/// The transactions that commit by a run, and whether runs wait.
#[derive(Debug, Default)]
pub(crate) struct RunCommits {
    /// Transactions whose changes leave memory before their commit.
    leaving: Vec<Xid>,
    /// A read needs changes that runs hold.
    is_asked: bool,
    /// Commits yet to come that go by the log.
    pause: u32,
    /// Reads since runs began to wait.
    reads: u32,
}

/// How changes of a transaction lie in its tables, as far as they were looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spread {
    /// Private key up to which they were looked at.
    looked: Vec<u8>,
    places: usize,
    /// Number of these places where the next change has another leaf.
    alone: usize,
}

impl Store {
    /// Waiting runs, as a fraction of their bound (B2).
    fn waiting(&self) -> f64 {
        let keys = self.runs.waiting_count() * RUNS_SHARE * self.payload_size;
        let in_memory = keys as f64 / self.limits.deltas_hard as f64;
        let pages = self.runs.pages_left() as f64 / self.waiting_pages_max() as f64;
        pages.max(in_memory).max(self.waiting_part())
    }

    /// Pages of runs that may wait: a share of the leaves' pages, as far as memory can hold them all.
    fn waiting_pages_max(&self) -> u64 {
        let pages = |bytes: usize| (bytes / self.payload_size / 2) as u64;
        let (least, most) = (self.limits.deltas_hard, self.options.memory);
        (self.leaf_pages() / WAITING_SHARE).clamp(pages(least.min(most)), pages(most))
    }

    /// Approximate number of pages that belong to no run.
    fn leaf_pages(&self) -> u64 {
        self.used_pages().saturating_sub(self.runs.page_count() as u64)
    }

    /// Whether the runs that a checkpoint would free take more pages than the bound of waiting runs.
    pub(super) fn are_loaded_many(&self) -> bool {
        // A restart finds these runs waiting.
        self.runs.loaded_pages() > self.waiting_pages_max()
    }

    /// Memory that is kept for parts of runs, while some wait.
    pub(super) fn kept_for_parts(&self) -> usize {
        let is_waiting = !self.runs.is_empty() && !self.run_commit.is_asked;
        if is_waiting { self.limits.deltas_hard / RUNS_SHARE } else { 0 }
    }

    /// A read needs changes that runs hold.
    pub(crate) fn ask_for_runs(&mut self) {
        if !self.runs.is_empty() {
            self.run_commit.is_asked = true;
            self.run_commit.pause = PAUSE;
        }
    }

    pub(super) fn is_asked_for_runs(&self) -> bool {
        self.run_commit.is_asked
    }

    /// A read looks into waiting runs beside its table, or needs a part that is not loaded. Each read
    /// has to look.
    pub(super) fn note_run_read(&mut self, is_left: bool) {
        self.run_commit.reads += 1;
        if is_left || self.run_commit.reads > READS_MAX {
            self.ask_for_runs();
        }
    }

    /// No run waits any more.
    pub(super) fn note_all_loaded(&mut self) {
        (self.run_commit.is_asked, self.run_commit.reads) = (false, 0);
    }

    /// Whether so much waits that leaves have to be merged.
    pub(super) fn are_runs_many(&self) -> bool {
        let is_open = !self.is_opening && !self.is_replaying();
        is_open && !self.runs.is_empty() && self.waiting() > MERGED_ABOVE
    }
}

impl Commits {
    /// Passes when the changes of `xid` are ready for its commit, in memory or in runs.
    ///
    /// # Errors
    ///
    /// `Wait::Claim` while they leave memory.
    pub(super) fn try_run_commit(&mut self, xid: Xid) -> Step<()> {
        let is_leaving = self.run_commit.leaving.contains(&xid);
        if !is_leaving && !self.is_worth_a_run(xid) {
            self.transaction(xid)?.stays = true;
            return Ok(());
        }
        if self.transaction(xid)?.writes.is_empty() {
            self.run_commit.leaving.retain(|other| *other != xid);
            return Ok(());
        }
        if !is_leaving {
            match self.is_scattered(xid) {
                Ok(true) => {}
                Err(stop @ (Stop::Miss(_) | Stop::Wait(_))) => return Err(stop),
                // The log takes the changes if a page that cannot be read leaves the question open.
                Ok(false) | Err(Stop::Error(_)) => {
                    self.transaction(xid)?.stays = true;
                    return Ok(());
                }
            }
            if self.commit_barriers > 0 {
                return Err(Stop::Wait(Wait::CommitBarrier));
            }
            self.transaction(xid)?.is_bulk = true;
            self.run_commit.leaving.push(xid);
        }
        Err(Stop::Wait(Wait::Claim))
    }

    fn is_worth_a_run(&mut self, xid: Xid) -> bool {
        let Some(own) = self.transactions.get(&xid) else { return false };
        let is_large =
            own.size >= PAGES_MIN * self.payload_size && own.runs.is_empty() && !own.stays;
        if !is_large
            || self.options.techniques.commit != CommitBy::Auto
            || self.view.log_page_size == 0
        {
            return false;
        }
        if self.run_commit.pause > 0 {
            self.run_commit.pause -= 1;
            return false;
        }
        let pages = (own.size / self.payload_size) as u64;
        let leaves_size = self.leaf_pages() as usize * self.payload_size;
        !self.run_commit.is_asked
            && !self.may_be_ahead()
            && leaves_size > self.limits.deltas_hard
            && self.waiting() < 1.0
            && self.has_room_to_claim(pages)
    }

    /// Whether most changes of `xid` are alone at their leaves, by a sample of a few places. After a
    /// stop for a node, goes on where it stopped.
    fn is_scattered(&mut self, xid: Xid) -> Step<bool> {
        loop {
            let own = self.transaction(xid)?;
            let from = KeyRange { low: &own.spread.looked, high: None };
            let mut ahead = own.writes.range(from).map(|entry| entry.key().to_vec());
            let pair = (ahead.next(), ahead.next());
            let behind = ahead.nth(own.writes.len() / PLACES);
            drop(ahead);
            let (Some(key), Some(next)) = pair else { break };
            let ((table, user_key), (other, next)) =
                (split_private_key(&key), split_private_key(&next));
            let high = self.place_of(table, user_key)?.high;
            let is_alone = table.id != other.id || high.is_some_and(|high| *next >= high[..]);
            let spread = &mut self.transaction(xid)?.spread;
            spread.places += 1;
            spread.alone += usize::from(is_alone);
            match behind {
                Some(key) => spread.looked = key,
                None => break,
            }
        }
        let spread = &self.transaction(xid)?.spread;
        Ok(2 * spread.alone > spread.places)
    }

    /// There is no room beside runs: they are loaded, and a checkpoint frees their pages. False when
    /// that makes no room.
    pub(super) fn hurry_runs(&mut self) -> bool {
        self.ask_for_runs();
        let is_loading = !self.runs.is_empty() && !self.obstacles.is_out_of_pages();
        let is_loaded = self.runs.loaded_pages() > 0;
        if is_loaded && !self.is_checkpointing() {
            self.want_checkpoint();
        }
        is_loading || is_loaded || self.covers_runs() || self.has_release()
    }

    /// Whether runs have to be loaded, all of them or some.
    pub(super) fn are_runs_due(&self) -> bool {
        let is_wanted =
            self.run_commit.is_asked || self.growth.is_reclaiming() || self.drops.has_tables();
        is_wanted && !self.runs.is_empty() || self.are_runs_many()
    }

    /// Takes a part of the changes of a transaction that commits by a run out of memory. Where there is
    /// no room for a run, the log takes the rest.
    pub(super) fn run_commit_step(&mut self) -> Step<Next> {
        while let Some(xid) = self.run_commit.leaving.last().copied() {
            let own = self.transactions.get(&xid);
            match own {
                Some(own) if own.is_spilling => return Ok(Next::Idle),
                Some(own) if !own.writes.is_empty() && self.obstacles.no_spill().is_none() => {
                    if let Some(job) = self.plan_spill(xid)? {
                        return Ok(Next::Job(Job::Spill(job)));
                    }
                    self.run_commit.pause = PAUSE;
                }
                _ => {}
            }
            self.run_commit.leaving.pop();
        }
        Ok(Next::Idle)
    }

    /// Whether there is any.
    pub(super) fn has_bulk_work(&self) -> bool {
        !self.run_commit.leaving.is_empty()
    }
}

#[cfg(test)]
mod tests;
