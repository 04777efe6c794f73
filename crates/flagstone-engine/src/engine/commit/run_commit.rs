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

use crate::delta::KeyRange;
use crate::engine::commit::Commits;
use crate::engine::commit::job::{Job, Next};
use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::private_key::split_private_key;
use crate::engine::store::run::load::PAUSE;
use crate::lock::Xid;
use crate::options::CommitBy;

/// Least size of such a transaction's changes in memory, in pages: the free rest of its last page, and
/// the names of its pages, are little beside that.
const PAGES_MIN: usize = 16;

/// Places at which a transaction's changes are looked at.
const PLACES: usize = 16;

/// Pages of a part of such a run: a key loads no more.
pub(super) const PART_PAGES: usize = 1;

impl Commits {
    /// Passes when the changes of `xid` are ready for its commit, in memory or in runs.
    ///
    /// # Errors
    ///
    /// `Wait::CommitPages` while they leave memory.
    pub(super) fn try_run_commit(&mut self, xid: Xid) -> Step<()> {
        let is_leaving = self.run_commit.leaving.contains(&xid);
        if !is_leaving && !self.is_worth_a_run(xid) {
            self.transaction(xid)?.commits_by_log = true;
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
                    self.transaction(xid)?.commits_by_log = true;
                    return Ok(());
                }
            }
            if self.commit_barriers > 0 {
                return Err(Stop::Wait(Wait::CommitBarrier));
            }
            self.transaction(xid)?.commits_by_run = true;
            self.run_commit.leaving.push(xid);
        }
        Err(Stop::Wait(Wait::CommitPages))
    }

    fn is_worth_a_run(&mut self, xid: Xid) -> bool {
        let Some(own) = self.transactions.get(&xid) else { return false };
        let is_large =
            own.size >= PAGES_MIN * self.payload_size && own.runs.is_empty() && !own.commits_by_log;
        if !is_large
            || self.options.techniques.commit != CommitBy::Auto
            || self.room.view.log_page_size == 0
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
            && leaves_size > self.memory.limits.deltas_hard
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
    pub(in crate::engine) fn are_runs_due(&self) -> bool {
        let is_wanted =
            self.run_commit.is_asked || self.room.growth.is_reclaiming() || self.drops.has_tables();
        is_wanted && !self.runs.is_empty() || self.are_runs_many()
    }

    /// Takes a part of the changes of a transaction that commits by a run out of memory. Where there is
    /// no room for a run, the log takes the rest.
    pub(in crate::engine) fn run_commit_step(&mut self) -> Step<Next> {
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
    pub(in crate::engine) fn has_run_commits(&self) -> bool {
        !self.run_commit.leaving.is_empty()
    }
}

#[cfg(test)]
mod tests;
