//! Runs of committed transactions: which of their parts are in memory, and which are not.
//!
//! Owns the counts of runs, so that a question for the size of waiting runs costs nothing. Knows the
//! key range without unloaded parts around the place where parts were loaded last: merges go through
//! the keys in order, and many runs may wait.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use flagstone_space::{GroupId, LogicalPage, Lsn};

use crate::delta::{DeltaMap, KeyRange};
use crate::engine::store::run::record::MasterRun;
use crate::engine::store::run::{Run, RunPart};

/// A run whose transaction has committed.
#[derive(Clone, Debug)]
pub(crate) struct CommittedRun {
    pub(crate) lsn: Lsn,
    pub(crate) run: Run,
    pub(crate) rolled_back: Vec<(u64, u64)>,
    /// Bytes that the run takes in a master record.
    pub(in crate::engine) named_size: usize,
    /// Whether each part is loaded.
    pub(in crate::engine) is_loaded: Vec<bool>,
    /// Parts that are being read.
    pub(in crate::engine) loading: BTreeMap<usize, Loading>,
}

/// Changes read so far of a part.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct Loading {
    pub(in crate::engine) page_count: usize,
    pub(in crate::engine) changes: DeltaMap,
}

impl CommittedRun {
    pub(crate) fn new(lsn: Lsn, run: Run, rolled_back: Vec<(u64, u64)>) -> Self {
        let is_loaded = vec![false; run.parts.len()];
        let named_size = MasterRun::size_of(&run, rolled_back.len());
        Self { lsn, run, rolled_back, named_size, is_loaded, loading: BTreeMap::new() }
    }

    /// The part that holds keys around `low`, if it is not loaded.
    fn at(&self, low: &[u8]) -> Option<usize> {
        let above = self.run.parts.partition_point(|part| part.first.as_slice() <= low);
        let part = above.checked_sub(1).filter(|_| low <= self.run.last.as_slice())?;
        (!self.is_loaded[part]).then_some(part)
    }

    /// First part in `range` that is not loaded.
    fn next_in(&self, range: KeyRange<'_>) -> Option<usize> {
        self.run.parts_in(range).find(|part| !self.is_loaded[*part])
    }

    /// The next page of a part that is being loaded; none when all are read.
    fn next_page(&self, part: usize) -> Option<LogicalPage> {
        let read = self.loading.get(&part).map_or(0, |loading| loading.page_count);
        self.run.parts[part].pages.iter().nth(read)
    }

    /// Whether the page was not read yet.
    fn wants(&self, page: LogicalPage) -> bool {
        let holder = self.run.parts.iter().position(|part| part.pages.contains(page));
        holder.filter(|part| !self.is_loaded[*part]).is_some_and(|part| {
            let read = self.loading.get(&part).map_or(0, |loading| loading.page_count);
            !self.run.parts[part].pages.iter().take(read).any(|other| other == page)
        })
    }
}

/// Runs of committed transactions that are not all in memory, or not covered by a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    pub(in crate::engine) open: Vec<CommittedRun>,
    /// Runs with all parts loaded; trimmed when a checkpoint that began later has finished.
    loaded: Vec<CommittedRun>,
    /// LSNs of runs that restart found: a base may have held them before they are loaded, so that
    /// their changes are never folded with later ones (R4).
    recovered: Vec<Lsn>,
    /// First keys of parts that are not loaded, and the LSNs of their runs.
    left: BTreeSet<(Vec<u8>, Lsn)>,
    /// The range in which all parts of commits up to an LSN are loaded.
    met: Option<Met>,
    probe: Option<Probe>,
    totals: Totals,
    /// Nothing is merged: a loaded part may be let go, and is loaded again when it is read (R6).
    may_unload: bool,
    /// LSNs of runs that stay loaded all the same: a checkpoint copied their changes, which may have
    /// taken in older ones.
    pinned: BTreeSet<Lsn>,
}

/// Private keys from `low` on, below `high`, for which every part of commits up to `upto` is loaded.
/// `high` is none where no unloaded part follows.
#[derive(Debug)]
struct Met {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    upto: Lsn,
}

/// Among the runs up to `number`, no part of commits up to `upto` is left to load around a private key.
#[derive(Debug)]
struct Probe {
    low: Vec<u8>,
    upto: Lsn,
    number: usize,
}

/// Counts of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    /// Pages of parts that are not loaded.
    pages_left: usize,
    /// Pages of all runs.
    pages: usize,
    /// Bytes of a checkpoint's record that name runs with changes that are not in memory.
    waiting_size: usize,
    /// Pages of runs that the next checkpoint frees.
    loaded_pages: usize,
    /// Bytes of the checkpoint's record that name these runs.
    loaded_size: usize,
}

impl Runs {
    /// Whether every change is in memory or in leaves.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Pages of changes that are not in memory.
    pub(crate) fn pages_left(&self) -> usize {
        self.totals.pages_left
    }

    /// Runs with changes that are not in memory.
    pub(crate) fn waiting_count(&self) -> usize {
        self.open.len()
    }

    /// Bytes of a checkpoint's record that name runs with changes that are not in memory.
    pub(crate) fn waiting_size(&self) -> usize {
        self.totals.waiting_size
    }

    /// Bytes of a record's names of runs which the next checkpoint frees.
    pub(crate) fn loaded_size(&self) -> usize {
        self.totals.loaded_size
    }

    /// Pages of runs that the next checkpoint frees.
    pub(crate) fn loaded_pages(&self) -> u64 {
        self.totals.loaded_pages as u64
    }

    /// Pages of all runs that are not trimmed.
    pub(crate) fn page_count(&self) -> usize {
        self.totals.pages
    }

    /// The runs of a commit at `lsn`, oldest first: each gets an LSN of its own just below, which
    /// the log has skipped, so that later changes of a key win. A run that the master record named
    /// already is not taken twice: one of the two would outlive its pages.
    pub(crate) fn commit(&mut self, lsn: Lsn, runs: &[Run], rolled_back: &[(u64, u64)]) {
        for (index, run) in runs.iter().enumerate() {
            let own = Lsn(lsn.0 - (runs.len() - index) as u64);
            if !self.unfinished().any(|known| known.run == *run) {
                self.open(CommittedRun::new(own, run.clone(), rolled_back.to_vec()));
            }
        }
    }

    fn open(&mut self, run: CommittedRun) {
        self.totals.pages_left += run.run.page_count();
        self.totals.pages += run.run.page_count();
        self.totals.waiting_size += run.named_size;
        self.left.extend(run.run.parts.iter().map(|part| (part.first.clone(), run.lsn)));
        (self.met, self.probe) = (None, None);
        self.open.push(run);
    }

    pub(in crate::engine) fn get(&self, number: usize) -> &CommittedRun {
        &self.open[number]
    }

    pub(in crate::engine) fn part(&self, number: usize, part: usize) -> &RunPart {
        &self.open[number].run.parts[part]
    }

    /// The next part of `range` to load, among unloaded parts of commits up to `upto`, as numbers of
    /// run and part: a part that holds the first keys, or else the part with the lowest keys.
    pub(in crate::engine) fn next_left(
        &mut self,
        range: KeyRange<'_>,
        upto: Lsn,
    ) -> Option<(usize, usize)> {
        if !self.is_met(range.low, upto) {
            if let Some(found) = self.at_low(range.low, upto) {
                return Some(found);
            }
            let above = (Bound::Excluded((range.low.to_vec(), Lsn(u64::MAX))), Bound::Unbounded);
            let next = self.left.range(above).find(|(_, lsn)| *lsn <= upto);
            let high = next.map(|(first, _)| first.clone());
            self.met = Some(Met { low: range.low.to_vec(), high, upto });
        }
        let met = self.met.as_ref()?;
        let next =
            met.high.clone().filter(|high| range.high.is_none_or(|end| high.as_slice() < end))?;
        let (first, lsn) = self.left.range((next, Lsn::ZERO)..).find(|(_, lsn)| *lsn <= upto)?;
        let is_inside = range.high.is_none_or(|end| first.as_slice() < end);
        let found = is_inside.then(|| self.part_at(first, *lsn)).flatten();
        let met_to = first.clone();
        if let Some(met) = self.met.as_mut().filter(|met| met.upto == upto) {
            met.high = Some(met_to);
        }
        found
    }

    /// Key at which the last part of `range` ends that is `too_much` to load. `too_much` gets the end
    /// of a part, and the number of unloaded pages from the part's first key on.
    pub(super) fn left_from_end(
        &self,
        range: KeyRange<'_>,
        mut too_much: impl FnMut(&[u8], usize) -> bool,
    ) -> Option<Vec<u8>> {
        let high = range.high?;
        let mut pages = 0;
        for (first, lsn) in self.left.range(..(high.to_vec(), Lsn::ZERO)).rev() {
            let (number, part) = self.part_at(first, *lsn)?;
            let Run { parts, last, .. } = &self.open[number].run;
            pages += parts[part].pages.len();
            let end = match parts.get(part + 1) {
                Some(next) => next.first.clone(),
                None => [last.as_slice(), &[0]].concat(),
            };
            if end.as_slice() <= range.low {
                return None;
            }
            if end.as_slice() < high && too_much(&end, pages) {
                return Some(end);
            }
        }
        None
    }

    /// Whether a part of `range` is not loaded, of commits up to `upto`.
    pub(super) fn has_left(&self, range: KeyRange<'_>, upto: Lsn) -> bool {
        if self.is_met(range.low, upto) {
            let high = self.met.as_ref().and_then(|met| met.high.as_deref());
            return high.is_some_and(|high| {
                let mut behind = self
                    .left
                    .range((high.to_vec(), Lsn::ZERO)..)
                    .take_while(|(first, _)| range.high.is_none_or(|end| first.as_slice() < end));
                behind.any(|(_, lsn)| *lsn <= upto)
            });
        }
        self.open.iter().any(|run| run.lsn <= upto && run.next_in(range).is_some())
    }

    /// Whether all parts around `low` are known to be loaded.
    fn is_met(&self, low: &[u8], upto: Lsn) -> bool {
        self.met.as_ref().is_some_and(|met| {
            let is_below = met.high.as_deref().is_none_or(|high| low < high);
            upto <= met.upto && met.low.as_slice() <= low && is_below
        })
    }

    /// A part that is not loaded and holds keys around `low`. The search goes on at the run of the last
    /// result.
    fn at_low(&mut self, low: &[u8], upto: Lsn) -> Option<(usize, usize)> {
        let probe = self.probe.take().filter(|probe| probe.low == low && probe.upto == upto);
        let mut probe = probe.unwrap_or_else(|| Probe { low: low.to_vec(), upto, number: 0 });
        let at_low = |run: &CommittedRun| (run.lsn <= upto).then(|| run.at(low)).flatten();
        let rest = self.open.get(probe.number..).unwrap_or_default();
        let found = rest.iter().enumerate().find_map(|(number, run)| Some((number, at_low(run)?)));
        let found = found.map(|(number, part)| (probe.number + number, part));
        probe.number = found.map_or(self.open.len(), |(number, _)| number);
        self.probe = Some(probe);
        found
    }

    fn part_at(&self, first: &[u8], lsn: Lsn) -> Option<(usize, usize)> {
        let number = self.open.iter().position(|run| run.lsn == lsn)?;
        let parts = &self.open[number].run.parts;
        let part = parts.partition_point(|part| part.first.as_slice() < first);
        (parts.get(part)?.first == first).then_some((number, part))
    }

    pub(in crate::engine) fn lsn(&self, number: usize) -> Lsn {
        self.open[number].lsn
    }

    /// The next page of a part that is being loaded; none when all are read.
    pub(super) fn next_page(&self, number: usize, part: usize) -> Option<LogicalPage> {
        self.open[number].next_page(part)
    }

    /// Changes gathered so far for a part that is being loaded.
    pub(in crate::engine) fn loading(&mut self, number: usize, part: usize) -> &mut Loading {
        self.open[number].loading.entry(part).or_default()
    }

    pub(in crate::engine) fn take_changes(&mut self, number: usize, part: usize) -> DeltaMap {
        self.open[number].loading.remove(&part).unwrap_or_default().changes
    }

    /// A part is loaded; true if it was the last one of its run.
    pub(super) fn note_loaded(&mut self, number: usize, part: usize) -> bool {
        let run = &mut self.open[number];
        run.is_loaded[part] = true;
        let RunPart { first, pages } = &run.run.parts[part];
        self.totals.pages_left -= pages.len();
        self.left.remove(&(first.clone(), run.lsn));
        let is_last = run.is_loaded.iter().all(|loaded| *loaded);
        if is_last {
            let run = self.open.remove(number);
            self.probe = None;
            self.totals.waiting_size -= run.named_size;
            self.totals.loaded_size += run.named_size;
            self.totals.loaded_pages += run.run.page_count();
            self.loaded.push(run);
        }
        is_last
    }

    /// Whether a page of a part that is not loaded was not read yet.
    pub(in crate::engine) fn wants(&self, group: GroupId, page: LogicalPage) -> bool {
        self.open.iter().any(|run| run.run.group == group && run.wants(page))
    }

    /// Nothing has to stay apart any more at these LSNs.
    pub(super) fn forget_apart(&mut self, is_gone: impl Fn(&Lsn) -> bool) {
        self.recovered.retain(|lsn| !is_gone(lsn));
    }

    /// LSNs at which changes will still arrive, or must stay apart from later ones; where parts may be
    /// let go again, the LSNs just below too, to keep changes apart from earlier ones (R6).
    pub(crate) fn boundaries(&self, boundaries: &mut Vec<Lsn>) {
        boundaries.extend(self.open.iter().map(|run| run.lsn));
        boundaries.extend(&self.recovered);
        if self.may_unload {
            let before = |lsn: Lsn| Lsn(lsn.0.saturating_sub(1));
            boundaries.extend(self.unfinished().flat_map(|run| [before(run.lsn), run.lsn]));
        }
    }

    /// The session only reads.
    pub(crate) fn allow_unloading(&mut self) {
        self.may_unload = true;
    }

    /// Whether loaded parts may be let go.
    pub(crate) fn may_unload(&self) -> bool {
        self.may_unload
    }

    /// A change of the commit at `lsn` was put back from a copy.
    pub(crate) fn note_copied(&mut self, lsn: Lsn) {
        if self.may_unload && self.open.iter().any(|run| run.lsn == lsn) {
            self.pinned.insert(lsn);
        }
    }

    /// Unloaded pages that will stay in memory once they are loaded.
    pub(crate) fn pages_to_stay(&self) -> usize {
        if !self.may_unload {
            return self.totals.pages_left;
        }
        let left = |run: &CommittedRun| {
            let parts = run.run.parts.iter().zip(&run.is_loaded);
            let left = parts.filter(|(_, is_loaded)| !**is_loaded);
            left.map(|(part, _)| part.pages.len()).sum::<usize>()
        };
        self.open.iter().filter(|run| self.pinned.contains(&run.lsn)).map(left).sum()
    }

    /// Marks every loaded part that holds no key of `range` as not loaded; returns commit, first and
    /// last private key of each.
    pub(super) fn unload_outside(&mut self, range: KeyRange<'_>) -> Vec<(Lsn, Vec<u8>, Vec<u8>)> {
        let mut unloaded = Vec::new();
        self.open.append(&mut self.loaded);
        for run in self.open.iter_mut().filter(|run| !self.pinned.contains(&run.lsn)) {
            let inside = run.run.parts_in(range);
            for part in (0..run.run.parts.len()).filter(|part| !inside.contains(part)) {
                if std::mem::replace(&mut run.is_loaded[part], false) {
                    let first = run.run.parts[part].first.clone();
                    let next = run.run.parts.get(part + 1).map(|next| next.first.clone());
                    let last = next.unwrap_or_else(|| [run.run.last.as_slice(), &[0]].concat());
                    self.left.insert((first.clone(), run.lsn));
                    unloaded.push((run.lsn, first, last));
                }
            }
        }
        self.loaded = self.open.extract_if(.., |run| run.is_loaded.iter().all(|is| *is)).collect();
        self.recount();
        unloaded
    }

    /// Restart put runs back.
    pub(crate) fn note_recovered(&mut self) {
        self.recovered.extend(self.open.iter().map(|run| run.lsn));
        self.recovered.sort_unstable();
        self.recovered.dedup();
    }

    /// A commit at `lsn` has changes in pages alone.
    pub(crate) fn keep_apart(&mut self, lsn: Lsn) {
        if let Err(place) = self.recovered.binary_search(&lsn) {
            self.recovered.insert(place, lsn);
        }
    }

    /// A checkpoint failed: its runs are still needed.
    pub(crate) fn keep_loaded(&mut self, run: CommittedRun) {
        self.totals.pages += run.run.page_count();
        self.totals.loaded_pages += run.run.page_count();
        self.totals.loaded_size += run.named_size;
        self.loaded.push(run);
    }

    /// Takes a run that the master record names: without pages it is only an LSN to keep apart (R4).
    pub(crate) fn restore(&mut self, run: CommittedRun) {
        if run.run.parts.is_empty() {
            self.recovered.push(run.lsn);
        } else if !self.open.iter().any(|open| open.run.parts == run.run.parts) {
            self.open(run);
        }
    }

    /// LSNs of recovered runs that the master record must go on naming although the runs are gone.
    pub(crate) fn bare_lsns(&self) -> impl Iterator<Item = Lsn> + '_ {
        let is_named = |lsn: &Lsn| self.unfinished().any(|run| run.lsn == *lsn);
        self.recovered.iter().copied().filter(move |lsn| !is_named(lsn))
    }

    /// Number of LSNs of recovered commits and sessions at which changes are kept apart, at most.
    pub(crate) fn apart_count(&self) -> usize {
        self.recovered.len()
    }

    /// Runs that the master record must name.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = &CommittedRun> {
        self.open.iter().chain(&self.loaded)
    }

    /// Runs at or below the cutoff of a checkpoint that begins: all their changes are in memory, so its
    /// copies cover them, and their pages go when the checkpoint is durable.
    pub(crate) fn take_loaded(&mut self, cutoff: Lsn) -> Vec<CommittedRun> {
        let taken: Vec<_> = self.loaded.extract_if(.., |run| run.lsn <= cutoff).collect();
        for run in &taken {
            self.totals.pages -= run.run.page_count();
            self.totals.loaded_pages -= run.run.page_count();
            self.totals.loaded_size -= run.named_size;
        }
        taken
    }

    /// Forgets runs of commits above `lsn`, which are gone.
    pub(crate) fn remove_newer(&mut self, lsn: Lsn) {
        self.loaded.retain(|run| run.lsn <= lsn);
        self.open.retain(|run| run.lsn <= lsn);
        self.recovered.retain(|apart| *apart <= lsn);
        self.left.retain(|(_, run)| *run <= lsn);
        self.recount();
    }

    /// Counts anew, and forgets the range in which all parts are loaded.
    fn recount(&mut self) {
        (self.met, self.probe) = (None, None);
        self.totals = Totals::default();
        for run in &self.open {
            let parts = run.run.parts.iter().zip(&run.is_loaded);
            let left = parts.filter(|(_, is_loaded)| !**is_loaded);
            self.totals.pages_left += left.map(|(part, _)| part.pages.len()).sum::<usize>();
            self.totals.pages += run.run.page_count();
            self.totals.waiting_size += run.named_size;
        }
        for run in &self.loaded {
            self.totals.pages += run.run.page_count();
            self.totals.loaded_pages += run.run.page_count();
            self.totals.loaded_size += run.named_size;
        }
    }
}
