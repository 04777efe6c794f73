//! A transaction's own changes outside memory: how its reads find them.

use std::ops::Bound;

use flagstone_space::{GroupId, LogicalPage, Lsn, PageInfo};

use crate::bugs::SeededBug;
use crate::delta::{DeltaMap, KeyRange, Op};
use crate::engine::step::{Fetch, Fetched, Step};
use crate::engine::store::catalog::Table;
use crate::engine::store::descent::missing;
use crate::engine::store::pool::Class;
use crate::engine::store::private_key::{private_bounds, split_private_key};
use crate::engine::store::run::{Run, RunPart, entries, fault, is_rolled_back};
use crate::engine::store::scan::{Direction, ScanRange};
use crate::engine::txn::Transactions;
use crate::engine::txn::transaction::Transaction;
use crate::error::EngineError;
use crate::lock::Xid;
use crate::node::NodeView;

/// One change of a transaction, apart from where it was kept.
#[derive(Clone, Debug)]
pub(crate) struct OwnVersion {
    bytes: Vec<u8>,
}

impl OwnVersion {
    pub(crate) fn of(op: Op<'_>) -> Self {
        let mut bytes = Vec::with_capacity(op.encoded_size());
        op.encode(&mut bytes);
        Self { bytes }
    }

    pub(crate) fn op(&self) -> Result<Op<'_>, EngineError> {
        Op::decode(&self.bytes).map_err(|_| fault(LogicalPage(u32::MAX)))
    }

    /// Whether the change makes all earlier changes of its key irrelevant.
    pub(crate) fn is_whole(&self) -> bool {
        !matches!(self.op(), Ok(Op::Patch(_)) | Err(_))
    }
}

/// Tells one state of a transaction from the next.
pub(crate) type Stamp = (u64, usize);

/// A change that left memory.
#[derive(Clone, Debug)]
struct SpilledChange {
    key: Vec<u8>,
    number: u64,
    version: OwnVersion,
}

/// Changes read so far of a transaction's spilled changes in a range of private keys.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    stamp: Stamp,
    page_count: usize,
    changes: Vec<SpilledChange>,
}

impl Gathering {
    fn begin(range: KeyRange<'_>, stamp: Stamp) -> Self {
        let (low, high) = (range.low.to_vec(), range.high.map(<[u8]>::to_vec));
        Self { low, high, stamp, ..Self::default() }
    }

    fn is_of(&self, range: KeyRange<'_>, stamp: Stamp) -> bool {
        self.low == range.low && self.high.as_deref() == range.high && self.stamp == stamp
    }
}

/// Pages of a spill on their way to flash.
#[derive(Debug)]
pub(crate) struct SpillJob {
    pub(crate) xid: Xid,
    pub(crate) group: GroupId,
    pub(crate) images: Vec<(LogicalPage, Vec<u8>)>,
    pub(in crate::engine) run: Run,
}

impl Transactions {
    /// Takes a page that was read for a miss.
    ///
    /// # Errors
    ///
    /// `Corrupt` when the page's content does not fit its address.
    pub fn fill(&mut self, fetched: Fetched) -> Result<(), EngineError> {
        self.pool.count_shared_reads();
        if fetched.cost_ns > 0 {
            self.pool.costs.note_read(fetched.cost_ns);
        }
        match fetched.fetch {
            Fetch::Page(page, number) => {
                let is_stale = self.reads.end(page, number);
                let is_stale = is_stale && !self.bugs.has(SeededBug::KeepStaleReads);
                if is_stale || self.pool.peek(page).is_some() {
                    return Ok(());
                }
                match fetched.found {
                    Some((info, image)) => self.fill_page(page, info, image),
                    None => self.fill_absent(page),
                }
            }
            Fetch::Grouped(group, page) => self.fill_run(group, page, fetched.found),
            Fetch::Pinned(pin, page) => {
                if !self.retains(pin) {
                    // The last snapshot that needed the version has ended meanwhile: its reader gets an
                    // error.
                    return Ok(());
                }
                let (info, mut image) = fetched.found.ok_or(missing(page))?;
                self.widen(&mut image);
                NodeView::parse(&image)
                    .map_err(|_| EngineError::Corrupt { page, check: "old leaf does not parse" })?;
                self.snapshots.keep_old(pin, info.lsn, image);
                Ok(())
            }
        }
    }

    fn gather(
        &mut self,
        gathering: &mut Gathering,
        pages: &[(GroupId, LogicalPage)],
        range: KeyRange<'_>,
        rolled_back: &[(u64, u64)],
    ) -> Step<()> {
        while let Some((group, page)) = pages.get(gathering.page_count).copied() {
            let frame = self.run_frame(group, page)?;
            let own = entries(&frame).ok_or(fault(page))?.flatten().filter(|entry| {
                range.contains(entry.key) && !is_rolled_back(rolled_back, entry.number)
            });
            gathering.changes.extend(own.map(|entry| SpilledChange {
                key: entry.key.to_vec(),
                number: entry.number,
                version: OwnVersion::of(entry.op),
            }));
            gathering.page_count += 1;
        }
        Ok(())
    }

    /// Takes a page of a run that was read, unless its changes were loaded meanwhile: its number may
    /// then have another owner (rule D15).
    pub(crate) fn fill_run(
        &mut self,
        group: GroupId,
        page: LogicalPage,
        found: Option<(PageInfo, Vec<u8>)>,
    ) -> Result<(), EngineError> {
        if !self.wants_run_page(group, page) {
            return Ok(());
        }
        // The number may have had another owner: that owner's page is not this run's (rule D15).
        let of_group = found.filter(|(info, _)| info.group == group);
        let (info, image) = of_group.ok_or(missing(page))?;
        let is_sound = entries(&image).is_some_and(|mut all| all.all(|entry| entry.is_some()));
        if !is_sound {
            return Err(fault(page));
        }
        self.place(page, info.lsn, image, Class::Leaf);
        Ok(())
    }

    /// Whether a transaction or a committed run still has to read a page of a run.
    fn wants_run_page(&self, group: GroupId, page: LogicalPage) -> bool {
        let has_page = |part: &RunPart| part.pages.contains(page);
        let is_own = |own: &Transaction| {
            own.group == Some(group) && own.runs.iter().any(|run| run.parts.iter().any(has_page))
        };
        self.runs.wants(group, page) || self.transactions.values().any(is_own)
    }

    /// A spill has reached flash: its transaction may go on.
    pub(crate) fn spilled(&mut self, job: &SpillJob) {
        match self.transactions.get_mut(&job.xid) {
            Some(transaction) if transaction.doom.is_none() => {
                transaction.is_spilling = false;
                transaction.unwritten -= job.images.len();
            }
            _ => self.trims.discard_group(job.group),
        }
    }

    /// Changes of `xid` to the private key `key` that left memory, oldest first.
    pub(crate) fn spilled_versions(&mut self, xid: Xid, key: &[u8]) -> Step<Vec<OwnVersion>> {
        if self.settled_transaction(xid)?.runs.is_empty() {
            return Ok(Vec::new());
        }
        let high = [key, &[0]].concat();
        let mut changes = self.spilled_changes(xid, KeyRange { low: key, high: Some(&high) })?;
        changes.sort_by_key(|change| change.number);
        Ok(changes.into_iter().map(|change| change.version).collect())
    }

    /// Changes of `xid` in a range of private keys that left memory. Gathered a page at a time: the
    /// pages of many runs need not fit in memory together (rule D7).
    fn spilled_changes(&mut self, xid: Xid, range: KeyRange<'_>) -> Step<Vec<SpilledChange>> {
        let transaction = self.settled_transaction(xid)?;
        if transaction.runs.is_empty() {
            return Ok(Vec::new());
        }
        let stamp = transaction.stamp();
        let known = transaction.gathering.take().filter(|known| known.is_of(range, stamp));
        let mut gathering = known.unwrap_or_else(|| Gathering::begin(range, stamp));
        let pages_of = |run: &Run| -> Vec<(GroupId, LogicalPage)> {
            let parts = &run.parts[run.parts_in(range)];
            parts.iter().flat_map(|part| part.pages.iter()).map(|page| (run.group, page)).collect()
        };
        let pages: Vec<_> = transaction.runs.iter().flat_map(pages_of).collect();
        let rolled_back = transaction.rolled_back.clone();
        let gathered = self.gather(&mut gathering, &pages, range, &rolled_back);
        let changes = gathered.map(|()| gathering.changes.clone());
        self.transaction(xid)?.gathering = Some(gathering);
        changes
    }

    /// Shortens a part of a scan so that few own changes lie in it, at most a part of each run.
    pub(crate) fn clip_to_own(
        &mut self,
        xid: Xid,
        table: Table,
        part: &mut ScanRange,
        direction: Direction,
        count_max: usize,
    ) -> Step<()> {
        let (low, high) = private_bounds(table, part.as_key_range());
        let inside = KeyRange { low: &low, high: Some(&high) };
        let transaction = self.settled_transaction(xid)?;
        let mut cut: Option<Vec<u8>> = None;
        match direction {
            Direction::Forward => {
                let mut take = |key: &[u8]| {
                    if key > low.as_slice() && cut.as_deref().is_none_or(|cut| key < cut) {
                        cut = Some(key.to_vec());
                    }
                };
                if let Some(entry) = transaction.writes.range(inside).nth(count_max) {
                    take(entry.key());
                }
                for run in &transaction.runs {
                    if let Some(next) = run.parts[run.parts_in(inside)].get(1) {
                        take(&next.first);
                    }
                }
            }
            Direction::Backward => {
                let mut take = |key: &[u8]| {
                    if key > low.as_slice() && cut.as_deref().is_none_or(|cut| key > cut) {
                        cut = Some(key.to_vec());
                    }
                };
                let below = transaction.writes.backward(Bound::Excluded(&high));
                if let Some(entry) = below.take(count_max + 1).nth(count_max) {
                    take(entry.key());
                }
                for run in &transaction.runs {
                    if let Some(last) = run.parts[run.parts_in(inside)].last() {
                        take(&last.first);
                    }
                }
            }
        }
        let Some(cut) = cut.filter(|cut| inside.contains(cut)) else { return Ok(()) };
        let key = split_private_key(&cut).1.to_vec();
        match direction {
            Direction::Forward => part.high = Some(key),
            Direction::Backward => part.low = key,
        }
        Ok(())
    }

    /// Every own change of `xid` inside `range` of `table`, by user key.
    pub(crate) fn own_changes(
        &mut self,
        xid: Xid,
        table: Table,
        range: KeyRange<'_>,
    ) -> Step<DeltaMap> {
        let (low, high) = private_bounds(table, range);
        let mut own = DeltaMap::new();
        let inside = KeyRange { low: &low, high: Some(&high) };
        let transaction = self.settled_transaction(xid)?;
        for entry in transaction.writes.range(inside) {
            for (number, op) in entry.versions() {
                own.insert(split_private_key(entry.key()).1, op, number, &[]);
            }
        }
        for change in self.spilled_changes(xid, inside)? {
            let key = split_private_key(&change.key).1;
            own.insert(key, change.version.op()?, Lsn(change.number), &[]);
        }
        Ok(own)
    }
}
