//! Changes of a transaction leave memory before its commit: they are built into the pages of a run. A
//! transaction's own reads of them are layer 2's (`engine/txn/spill.rs`), the format of a run is layer 1's
//! (`engine/store/run.rs`).

use flagstone_space::Lsn;

use crate::delta::KeyRange;
use crate::engine::commit::{Commits, run_commit};
use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::run::Run;
use crate::engine::store::run::build::build_pages;
use crate::engine::txn::spill::SpillJob;
use crate::error::EngineError;
use crate::lock::Xid;

/// Pages that one job writes at least, unless there are fewer to write.
const SPILL_PAGES_MIN: usize = 8;

/// Images of one job take at most one part in this many of the memory, beside the changes themselves,
/// unless a single key takes more.
const SPILL_SHARE: usize = 64;

/// Pages of one job, at most, however large the memory.
const SPILL_PAGES_MAX: usize = 256;

/// Pages of a part, at most, unless a key takes more: a read of one key loads that many of each run.
const PART_PAGES_MAX: usize = 8;

/// Parts that a run has at least, if it has as many pages: the part of a key is then a small share of
/// the run, as the run is a small share of all keys.
const PARTS_MIN: usize = 2;

impl Commits {
    /// Takes the first pages' worth of changes of `xid` out of memory.
    pub(crate) fn plan_spill(&mut self, xid: Xid) -> Step<Option<SpillJob>> {
        let size = self.payload_size;
        let page_count = self.options.memory / SPILL_SHARE / size;
        let page_count = page_count.clamp(SPILL_PAGES_MIN, SPILL_PAGES_MAX);
        let own = self.transaction(xid)?;
        // Runs go on where the one before ended: each has a small share of the keys.
        let mut from = std::mem::take(&mut own.spill_next);
        let built = build_pages(&own.writes, &from, page_count, size).or_else(|| {
            from.clear();
            build_pages(&own.writes, &from, page_count, size)
        });
        own.spill_next.clone_from(&from);
        let Some(built) = built else { return Ok(None) };
        let count = built.pages.len();
        let part_pages = match own.commits_by_run {
            true => run_commit::PART_PAGES,
            false => (count / PARTS_MIN).clamp(1, PART_PAGES_MAX),
        };
        let names = built.named_size(part_pages, own.rolled_back.len());
        self.demand_room(count as u64)?;
        self.demand_log(xid, names)?;
        let has_pages = self.has_pages_for(count as u64);
        let named = match has_pages {
            true => self.demand_names(xid, count, names),
            false if self.has_given_back() => Err(Stop::Wait(Wait::Log)),
            false if self.hurry_runs() || self.settle_growth().is_err() || self.frees_room() => {
                return Ok(None);
            }
            false => Err(EngineError::Full.into()),
        };
        match named {
            Ok(()) => {}
            Err(Stop::Wait(wait)) => {
                self.hurry_names(wait);
                return Ok(None);
            }
            Err(Stop::Error(why)) if !self.transaction(xid)?.commits_by_run => {
                self.obstacles.stop_spilling(why);
                return Ok(None);
            }
            Err(_) => return Ok(None),
        }
        if self.room.unused_pages.len() < count {
            return Err(Stop::Wait(Wait::Pages(count)));
        }
        // Every step that may stop comes before the first change.
        let group = self.group_of(xid)?;
        let range = KeyRange { low: &from, high: built.rest.as_deref() };
        let own = self.transaction(xid)?;
        own.writes.remove_range(range, Lsn(u64::MAX));
        own.spill_next = built.rest.clone().unwrap_or_default();
        self.recount(xid);
        let left = self.room.unused_pages.len() - count;
        let mut numbers = self.room.unused_pages.split_off(left);
        numbers.sort_unstable();
        // The number may have had another owner: no trace of that owner may be found under it.
        numbers.iter().for_each(|page| self.forget_page(*page));
        let run = Run::of(group, &built, numbers.iter().copied(), part_pages);
        let written = built.pages.into_iter().map(|page| page.image);
        let images: Vec<_> = numbers.into_iter().zip(written).collect();
        self.counts.spilled_pages += images.len() as u64;
        let run_of = run.clone();
        if let Ok(transaction) = self.transaction(xid) {
            transaction.runs.push(run_of);
            transaction.spilled_to = transaction.sequence;
            transaction.pages.extend(images.iter().map(|(page, _)| *page));
            transaction.unwritten += images.len();
            transaction.is_spilling = true;
        }
        Ok(Some(SpillJob { xid, group, images, run }))
    }

    /// A spill failed to reach flash: its transaction cannot go on.
    pub(crate) fn spill_failed(&mut self, job: &SpillJob) {
        debug_assert!(!job.run.parts.is_empty(), "a spill writes at least one page");
        let why = self.refusal(job.xid, EngineError::Full);
        self.doom(job.xid, why);
    }
}

#[cfg(test)]
mod tests;
