//! Changes of transactions larger than memory: sorted pages written under the transaction's group.
//!
//! While the transaction runs, its own reads look into these pages. Its commit record names them, and
//! from then on they are deltas that happen to lie on flash: an operation that needs a key range loads
//! the parts that overlap it into the tree's deltas, and background work loads the rest. When all parts
//! are loaded and a checkpoint has covered them, the pages are trimmed. A part is some pages named by
//! their first key alone: names take a thousandth of the pages' bytes.
//!
//! ```text
//! page:   'R' | 1 | count u16 | entry ...
//! entry:  key size varint | key (tree id u32 BE, key) | change number varint | op size varint | op
//! ```
//!
//! Invariants:
//! - **R1** A base claims completeness beyond a run's commit only after every part of the run that
//!   overlaps the base was loaded (rule D2). Where these parts are large, a merge takes the keys below
//!   the first part that is not loaded, and leaves the rest of its leaf to later merges.
//! - **R2** Versions of a key on both sides of a run that is not loaded are never folded: the run's
//!   own change comes between them.
//! - **R3** A run stays in the master record until a checkpoint that began after it was loaded.
//! - **R4** A base that restart finds may already hold changes of a run that is loaded only later, and
//!   commits after that run: the run's change, older than the base, is not folded into a newer one. A
//!   checkpoint copies such a change, so its master record names the run, without pages, while any such
//!   change is unmerged.
//! - **R5** The versions of a key that savepoints kept apart come under one LSN, folded: they lie in one
//!   part, and a part becomes deltas as a whole, once all its pages are read.
//! - **R6** A session that only reads lets go of parts again, when others are read and memory is short:
//!   their changes are folded with nothing, older or newer, so loading them again gives the same
//!   changes. Where a checkpoint has copied changes of a run, and the session that wrote that
//!   checkpoint may have folded them with older changes, the run stays.

use std::ops::Bound;

use flagstone_space::{GroupId, LogicalPage, Lsn, PageInfo};

use super::checkpoint::MasterRun;
use super::descent::missing;
use super::pool::Class;
use super::run_commit;
use super::scan::{Direction, ScanRange};
use super::spans::PageSpans;
use super::transaction::{Transaction, private_key, split_private_key};
use super::{Commits, Fetch, Merges, Step, Stop, Store, Table, Transactions, Wait};
use crate::bugs::SeededBug;
use crate::delta::{DeltaMap, DroppedRefs, KeyRange, Op, put_varint, take_varint};
use crate::error::EngineError;
use crate::lock::Xid;

const RUN_MAGIC: u8 = b'R';
const RUN_VERSION: u8 = 1;
const RUN_HEADER_SIZE: usize = 4;

/// Pages that one job writes at least, unless there are fewer to write.
const SPILL_PAGES_MIN: usize = 8;

/// Images of one job take at most one part in this many of the memory, beside the changes themselves,
/// unless a single key takes more.
const SPILL_SHARE: usize = 64;

/// Pages of one job, at most, however large the memory.
const SPILL_PAGES_MAX: usize = 256;

/// Changes loaded for one merge, or for one part of a scan, take one part in this many of the memory
/// for deltas, together with the deltas already in their range. The parts that hold the range's first
/// key come in any case, one of each run at most.
const LOAD_SHARE: usize = 8;

/// Pages of a part, at most, unless a key takes more: a read of one key loads that many of each run.
const PART_PAGES_MAX: usize = 8;

/// Parts that a run has at least, if it has as many pages: the part of a key is then a small share of
/// the run, as the run is a small share of all keys.
const PARTS_MIN: usize = 2;

mod committed;
mod names;

pub(crate) use self::committed::{CommittedRun, Runs};

/// Sorted pages of changes, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) group: GroupId,
    pub(crate) parts: Vec<RunPart>,
    /// Last private key of the run.
    pub(crate) last: Vec<u8>,
}

/// Pages of a run that are loaded together. No key has changes in two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunPart {
    /// First private key, or the prefix that tells it from the keys before.
    pub(crate) first: Vec<u8>,
    pub(crate) pages: PageSpans,
}

impl Run {
    pub(crate) fn pages(&self) -> impl Iterator<Item = LogicalPage> + '_ {
        self.parts.iter().flat_map(|part| part.pages.iter())
    }

    pub(crate) fn page_count(&self) -> usize {
        self.parts.iter().map(|part| part.pages.len()).sum()
    }

    /// A run of these pages under these numbers, in order.
    fn of(
        group: GroupId,
        built: &BuiltPages,
        numbers: impl IntoIterator<Item = LogicalPage>,
        part_pages: usize,
    ) -> Self {
        let mut parts: Vec<RunPart> = Vec::new();
        for (built, page) in built.pages.iter().zip(numbers) {
            match parts.last_mut() {
                Some(part) if built.goes_on || part.pages.len() < part_pages => {
                    part.pages.push(page);
                }
                _ => {
                    let (first, pages) = (built.first.clone(), PageSpans::from_iter([page]));
                    parts.push(RunPart { first, pages });
                }
            }
        }
        Self { group, parts, last: built.last.clone() }
    }

    /// The parts that may hold private keys from `low` on, up to `high` (exclusive) if there is one.
    fn parts_in(&self, range: KeyRange<'_>) -> std::ops::Range<usize> {
        if self.last.as_slice() < range.low {
            return 0..0;
        }
        let above = self.parts.partition_point(|part| part.first.as_slice() <= range.low);
        let below = |high: &[u8]| self.parts.partition_point(|part| part.first.as_slice() < high);
        let first = above.saturating_sub(1);
        first..range.high.map_or(self.parts.len(), below).max(first)
    }
}

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

/// Whether no key has two versions.
pub(crate) fn keys_are_unique(map: &DeltaMap) -> bool {
    map.range(KeyRange::ALL).all(|entry| entry.versions().count() == 1)
}

fn fault(page: LogicalPage) -> EngineError {
    EngineError::Corrupt { page, check: "page of spilled changes" }
}

/// One entry of a run page.
pub(crate) struct RunEntry<'a> {
    /// The private key.
    pub(crate) key: &'a [u8],
    pub(crate) number: u64,
    pub(crate) op: Op<'a>,
}

/// Entries of a run page, in order; stops at the first fault.
pub(crate) fn entries(image: &[u8]) -> Option<impl Iterator<Item = Option<RunEntry<'_>>>> {
    let (header, mut rest) = image.split_first_chunk::<RUN_HEADER_SIZE>()?;
    if header[0] != RUN_MAGIC || header[1] != RUN_VERSION {
        return None;
    }
    let count = u16::from_le_bytes([header[2], header[3]]);
    Some((0..count).map(move |_| {
        let (key, after) = take_bytes(rest)?;
        let (number, after) = take_varint(after)?;
        let (op, after) = take_bytes(after)?;
        rest = after;
        Some(RunEntry { key, number: u64::from(number), op: Op::decode(op).ok()? })
    }))
}

fn take_bytes(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = take_varint(bytes)?;
    rest.split_at_checked(size as usize)
}

/// A change to a private key: the key, its number in the transaction, and the operation.
type Version<'a> = (&'a [u8], Lsn, Op<'a>);

/// Fills one page of `size` bytes with the first of `versions`; returns the image and the number of
/// versions in it.
///
/// The versions of one key stay on one page, unless a page is too small for them: then they begin a
/// page, and the pages that follow begin with the same key (R5).
fn build_page(versions: &[Version<'_>], size: usize) -> (Vec<u8>, usize) {
    let mut image = vec![RUN_MAGIC, RUN_VERSION, 0, 0];
    let mut count = 0;
    for of_key in versions.chunk_by(|one, other| one.0 == other.0) {
        let (begin, mut end) = (image.len(), count);
        for version in of_key {
            let entry_begin = image.len();
            put_entry(&mut image, version);
            if image.len() > size || end == usize::from(u16::MAX) {
                image.truncate(entry_begin);
                break;
            }
            end += 1;
        }
        let is_cut = end < count + of_key.len();
        if is_cut && count > 0 {
            image.truncate(begin);
            break;
        }
        count = end;
        if is_cut {
            break;
        }
    }
    image[2..4].copy_from_slice(&(count as u16).to_le_bytes());
    image.resize(size, 0);
    (image, count)
}

/// A page of changes, not written yet.
#[derive(Debug)]
struct BuiltPage {
    /// The prefix of its first key that tells it from the keys before.
    first: Vec<u8>,
    /// Whether it begins with the key that the page before ended with.
    goes_on: bool,
    image: Vec<u8>,
}

/// Some pages' worth of a transaction's changes.
struct BuiltPages {
    pages: Vec<BuiltPage>,
    last: Vec<u8>,
    /// First key behind these pages that stays in memory.
    rest: Option<Vec<u8>>,
}

impl BuiltPages {
    /// Bytes that name these pages in a record, at most, in parts of so many pages and with so many
    /// ranges rolled back.
    fn named_size(&self, part_pages: usize, rolled_back: usize) -> usize {
        // Numbers far from each other take most.
        let far = [0, u32::MAX - 1].map(LogicalPage).into_iter().cycle();
        MasterRun::size_of(&Run::of(GroupId::NONE, self, far, part_pages), rolled_back)
    }
}

/// Fills `page_count` pages with changes of keys from `from` on, and as many more as the last key
/// needs.
fn build_pages(
    writes: &DeltaMap,
    from: &[u8],
    page_count: usize,
    size: usize,
) -> Option<BuiltPages> {
    let versions = first_versions(writes, from, page_count * size);
    let mut pages = Vec::new();
    let mut count = 0;
    let goes_on = |count: usize| count > 0 && versions[count - 1].0 == versions[count].0;
    while count < versions.len() && (pages.len() < page_count || goes_on(count)) {
        let (image, taken) = build_page(&versions[count..], size);
        let before = count.checked_sub(1).map(|before| versions[before].0);
        let first = beginning(before, versions[count].0).to_vec();
        pages.push(BuiltPage { first, goes_on: goes_on(count), image });
        count += taken;
    }
    let last = versions[..count].last()?.0.to_vec();
    let rest = versions.get(count).map(|(key, ..)| key.to_vec());
    Some(BuiltPages { pages, last, rest })
}

/// The prefix of a private key that tells it from the one before; at least its tree.
fn beginning<'a>(before: Option<&[u8]>, key: &'a [u8]) -> &'a [u8] {
    let Some(before) = before else { return key };
    let shared = before.iter().zip(key).take_while(|(one, other)| one == other).count();
    key.get(..(shared + 1).max(size_of::<u32>())).unwrap_or(key)
}

/// The versions of the first keys from `from` on that together take more than `bytes`, and of one key
/// beyond; all of them where they take less.
fn first_versions<'a>(writes: &'a DeltaMap, from: &'a [u8], bytes: usize) -> Vec<Version<'a>> {
    let mut versions = Vec::new();
    let mut taken = 0;
    for entry in writes.range(KeyRange { low: from, high: None }) {
        let is_enough = taken > bytes;
        for (number, op) in entry.versions() {
            taken += entry.key().len() + op.encoded_size();
            versions.push((entry.key(), number, op));
        }
        if is_enough {
            break;
        }
    }
    versions
}

fn put_entry(image: &mut Vec<u8>, (key, number, op): &Version<'_>) {
    put_varint(image, key.len() as u32);
    image.extend_from_slice(key);
    put_varint(image, number.0 as u32);
    put_varint(image, op.encoded_size() as u32);
    op.encode(image);
}

/// Pages of a spill on their way to flash.
#[derive(Debug)]
pub(crate) struct SpillJob {
    pub(crate) xid: Xid,
    pub(crate) group: GroupId,
    pub(crate) images: Vec<(LogicalPage, Vec<u8>)>,
    run: Run,
}

impl Store {
    /// Forgets LSNs of recovered commits with no older change in memory, now or later (R4).
    pub(crate) fn forget_met_runs(&mut self) {
        let mut bare: Vec<Lsn> = self.runs.bare_lsns().collect();
        bare.sort_unstable();
        let Some(last) = bare.last().copied() else { return };
        // Without a change between two such LSNs, one of them keeps apart the same versions as the
        // other.
        let mut is_met = vec![true; bare.len()];
        for tree in &self.trees {
            for (_, at, _) in tree.deltas.older_than(Lsn(last.0 + 1), Bound::Unbounded) {
                is_met[bare.partition_point(|lsn| *lsn < at)] = false;
            }
        }
        let is_gone = |lsn: &Lsn| bare.binary_search(lsn).is_ok_and(|at| is_met[at]);
        self.runs.forget_apart(is_gone);
    }

    /// Loads the parts of runs that may change `[low, high)` into the tree's deltas.
    pub(crate) fn load_runs(&mut self, table: Table, range: KeyRange<'_>) -> Step<()> {
        self.load_runs_until(table, range, Lsn(u64::MAX))
    }

    /// As [`Engine::load_runs`], for commits up to `upto` alone: all changes that a base complete to
    /// `upto` needs (R1). Restart merges while it knows of later commits, whose changes could go
    /// nowhere yet.
    pub(crate) fn load_runs_until(
        &mut self,
        table: Table,
        range: KeyRange<'_>,
        upto: Lsn,
    ) -> Step<()> {
        if self.runs.is_empty() {
            return Ok(());
        }
        let (low, high) = private_bounds(table, range);
        self.load_parts(KeyRange { low: &low, high: Some(&high) }, upto)
    }

    /// As [`Engine::load_runs_until`] in key order, until the loaded changes and the changes already
    /// there reach their memory limit. Returns the key at which the first part begins that is not
    /// loaded, if there is one.
    pub(crate) fn load_some_runs(
        &mut self,
        table: Table,
        range: KeyRange<'_>,
        upto: Lsn,
    ) -> Step<Option<Vec<u8>>> {
        if self.runs.is_empty() {
            return Ok(None);
        }
        let (low, high) = private_bounds(table, range);
        let inside = KeyRange { low: &low, high: Some(&high) };
        let most = self.limits.deltas_hard / LOAD_SHARE;
        while let Some((number, part)) = self.next_part(inside, upto) {
            let left = self.runs.part(number, part);
            if left.first > low {
                let begin = split_private_key(&left.first).1.to_vec();
                let below = KeyRange { high: Some(&begin), ..range };
                let there = self.tree(table)?.deltas.range_bytes(below);
                if there > 0 && there + left.pages.len() * self.payload_size > most {
                    return Ok(Some(begin));
                }
            }
            self.load_part(number, part)?;
        }
        Ok(None)
    }

    /// As [`Engine::load_some_runs`], from the end of the range. Returns the key at which the last part
    /// ends that is not loaded, if there is one.
    pub(crate) fn load_last_runs(
        &mut self,
        table: Table,
        range: KeyRange<'_>,
    ) -> Step<Option<Vec<u8>>> {
        if self.runs.is_empty() {
            return Ok(None);
        }
        let (low, high) = private_bounds(table, range);
        let most = self.limits.deltas_hard / LOAD_SHARE;
        let deltas = &self.tree(table)?.deltas;
        let end =
            self.runs.left_from_end(KeyRange { low: &low, high: Some(&high) }, |end, pages| {
                let behind = KeyRange { low: split_private_key(end).1, ..range };
                deltas.range_bytes(behind) + pages * self.payload_size > most
            });
        let end = end.map(|end| split_private_key(&end).1.to_vec());
        self.load_runs(table, KeyRange { low: end.as_deref().unwrap_or(range.low), ..range })?;
        Ok(end)
    }

    /// Loads the parts of runs that may change `key` into the tree's deltas.
    pub(crate) fn load_runs_at(&mut self, table: Table, key: &[u8]) -> Step<()> {
        if self.runs.is_empty() {
            return Ok(());
        }
        let mut low = Vec::new();
        private_key(table, key, &mut low);
        let high = [low.as_slice(), &[0]].concat();
        let range = KeyRange { low: &low, high: Some(&high) };
        let is_left = self.runs.has_left(range, Lsn(u64::MAX));
        self.note_run_read(is_left);
        self.load_parts(range, Lsn(u64::MAX))
    }

    fn load_parts(&mut self, range: KeyRange<'_>, upto: Lsn) -> Step<()> {
        while let Some((number, part)) = self.next_part(range, upto) {
            self.load_part(number, part)?;
        }
        Ok(())
    }

    /// The part of `range` to load next; memory is freed for it, where any can be.
    fn next_part(&mut self, range: KeyRange<'_>, upto: Lsn) -> Option<(usize, usize)> {
        let next = self.runs.next_left(range, upto)?;
        match self.make_room_for_part(range) {
            true => self.runs.next_left(range, upto),
            false => Some(next),
        }
    }

    /// Lets go of parts that hold no key of `range`, if nothing else frees memory (R6). Returns whether
    /// runs have other places now.
    fn make_room_for_part(&mut self, range: KeyRange<'_>) -> bool {
        if !self.runs.may_unload() || self.deltas_size <= self.limits.deltas_soft {
            return false;
        }
        for (lsn, low, high) in self.runs.unload_outside(range) {
            let (first, _) = split_private_key(&low);
            let (last, _) = split_private_key(&high);
            let named = self.trees.from(first.id as usize).map(|tree| tree.id);
            let ids: Vec<u32> = named.take_while(|id| *id <= last.id).collect();
            for id in ids {
                let table = Table::of(id);
                let bounds = private_bounds(table, KeyRange::ALL);
                let begin = low.as_slice().max(&bounds.0);
                let end = high.as_slice().min(&bounds.1);
                if begin >= end {
                    continue;
                }
                let end = (end < bounds.1.as_slice()).then(|| split_private_key(end).1);
                let part = KeyRange { low: split_private_key(begin).1, high: end };
                let Some(tree) = self.trees.get_mut(id as usize) else { continue };
                let before = tree.deltas.size();
                tree.deltas.remove_at(part, lsn);
                let after = tree.deltas.size();
                self.note_deltas_size(before, after);
                self.tell_deltas_went(table, part);
            }
        }
        true
    }

    /// Whether a part of a range is not loaded, among commits up to `upto`.
    pub(super) fn has_left_runs(&self, table: Table, range: KeyRange<'_>, upto: Lsn) -> bool {
        if self.runs.is_empty() {
            return false;
        }
        let (low, high) = private_bounds(table, range);
        self.runs.has_left(KeyRange { low: &low, high: Some(&high) }, upto)
    }

    fn load_part(&mut self, number: usize, part: usize) -> Step<()> {
        while let Some(page) = self.runs.next_page(number, part) {
            self.load_run_page(number, part, page)?;
        }
        let (lsn, page) = (self.runs.lsn(number), self.runs.part(number, part).pages.iter().next());
        let changes = self.runs.take_changes(number, part);
        for entry in changes.range(KeyRange::ALL) {
            // The catalog itself may lie in this part, beside changes of a tree that it names: then the
            // tree is not registered yet.
            let (table, _) = split_private_key(entry.key());
            let tree = self.tree_slot(table.id);
            tree.ok_or(fault(page.unwrap_or(LogicalPage(u32::MAX))))?;
            self.add_entry(&entry, lsn);
        }
        if self.runs.note_loaded(number, part) {
            self.refresh_floors();
            if self.runs.is_empty() {
                self.note_all_loaded();
            }
        }
        Ok(())
    }

    /// Reads the next page of a part. Savepoints kept versions of a key apart; under the run's one LSN
    /// only the folded version counts (R5).
    fn load_run_page(&mut self, number: usize, part: usize, page: LogicalPage) -> Step<()> {
        let run = self.runs.get(number);
        let (group, lsn) = (run.run.group, run.lsn);
        let mut rolled_back = run.rolled_back.clone();
        if self.bugs.has(SeededBug::KeepRolledBack) {
            rolled_back.clear();
        }
        let frame = self.run_frame(group, page)?;
        self.pool.remove(page);
        self.pool.let_go(page);
        let loading = self.runs.loading(number, part);
        let mut dropped = DroppedRefs::new();
        for entry in entries(&frame).ok_or(fault(page))? {
            let entry = entry.ok_or(fault(page))?;
            match entry.op {
                Op::PutRef(descriptor) if is_rolled_back(&rolled_back, entry.number) => {
                    dropped.push(descriptor.to_vec());
                }
                _ if is_rolled_back(&rolled_back, entry.number) => {}
                op => dropped.extend(loading.changes.insert(entry.key, op, Lsn(entry.number), &[])),
            }
        }
        loading.page_count += 1;
        self.drop_refs(dropped, lsn);
        Ok(())
    }

    fn run_frame(&mut self, group: GroupId, page: LogicalPage) -> Step<Vec<u8>> {
        match self.pool.get(page) {
            Some(index) => Ok(self.pool.frame(index).image.clone()),
            None => Err(Stop::Miss(Fetch::Grouped(group, page))),
        }
    }

    /// A spill waits for room in a checkpoint's record: asks for the work that makes it.
    fn hurry_names(&mut self, wait: Wait) {
        match wait {
            // The next checkpoint's record is shorter than the last one, and names fewer runs of
            // others.
            Wait::Log => {
                self.ask_for_runs();
                if !self.is_checkpointing() {
                    self.want_checkpoint();
                }
            }
            Wait::Durable(_) => self.want_flush(),
            _ => {}
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
}

impl Transactions {
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

impl Merges {
    /// Loads one more part, at the key where the search for leaves to merge goes on; false when there
    /// is none.
    pub(crate) fn load_next_run(&mut self) -> Step<bool> {
        let (table, key) = self.planner.place();
        let mut low = Vec::new();
        private_key(table, key, &mut low);
        let ahead = KeyRange { low: &low, high: None };
        let next = self.runs.next_left(ahead, Lsn(u64::MAX));
        let next = next.or_else(|| self.runs.next_left(KeyRange::ALL, Lsn(u64::MAX)));
        let Some((number, part)) = next else { return Ok(false) };
        self.load_part(number, part)?;
        Ok(true)
    }
}

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
        let part_pages = match own.is_bulk {
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
            Err(Stop::Error(why)) if !self.transaction(xid)?.is_bulk => {
                self.obstacles.stop_spilling(why);
                return Ok(None);
            }
            Err(_) => return Ok(None),
        }
        if self.unused_pages.len() < count {
            return Err(Stop::Wait(Wait::Pages(count)));
        }
        // Every step that may stop comes before the first change.
        let group = self.group_of(xid)?;
        let range = KeyRange { low: &from, high: built.rest.as_deref() };
        let own = self.transaction(xid)?;
        own.writes.remove_range(range, Lsn(u64::MAX));
        own.spill_next = built.rest.clone().unwrap_or_default();
        self.recount(xid);
        let left = self.unused_pages.len() - count;
        let mut numbers = self.unused_pages.split_off(left);
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

/// Private keys of a range of one table: low inclusive, high exclusive.
pub(super) fn private_bounds(table: Table, range: KeyRange<'_>) -> (Vec<u8>, Vec<u8>) {
    let (mut low, mut high) = (Vec::new(), Vec::new());
    private_key(table, range.low, &mut low);
    match range.high {
        Some(bound) => private_key(table, bound, &mut high),
        None => private_key(Table::of(table.id + 1), &[], &mut high),
    }
    (low, high)
}

pub(crate) fn is_rolled_back(ranges: &[(u64, u64)], number: u64) -> bool {
    ranges.iter().any(|(above, upto)| number > *above && number <= *upto)
}

#[cfg(test)]
mod tests;
