//! Executable model of the promise: an ordered map and the commit rule.
//!
//! Owns the contents that a database must have: the durable commits, the later ones that a power
//! cut may take, the changes of open transactions, and the view of a snapshot. Never touches an
//! engine or a device, and knows nothing of pages: it is the oracle that every crash test asks.
//!
//! - **M1** Commits are totally ordered; a found content is admitted iff it equals the durable
//!   state plus a prefix of the later commits, in order.
//! - **M2** A commit moves from later to durable when a commit that must be durable, itself or one
//!   after it, has returned; it never moves back.
//! - **M3** Once a content was found after a power cut, it is the durable state: a second cut
//!   during the recovery must find the same.
//! - **M4** A transaction that returned as durable makes the changes it read durable (rule D8).
//! - **M5** A snapshot sees one prefix of the commits, the same in all its reads.
//! - **M6** A kept snapshot holds every commit before it and no other, after every restart, until
//!   it is dropped. The state that a restart shows of a snapshot that was being kept, or dropped,
//!   stays once the session has written.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Table of a script; its name is [`TableIndex::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableIndex(pub u8);

/// Place that holds one open transaction or snapshot at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(pub u8);

impl TableIndex {
    /// Name under which the database knows the table.
    #[must_use]
    pub fn name(self) -> String {
        format!("table-{}", self.0)
    }
}

/// A key of a table; contents are ordered by it.
pub type Address = (TableIndex, Vec<u8>);

/// Keys and values of all tables at one moment.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Contents(BTreeMap<Address, Arc<[u8]>>);

/// Changes of a transaction: `None` deletes.
pub type Change = BTreeMap<Address, Option<Arc<[u8]>>>;

impl Contents {
    /// Adds a pair that was read from a database.
    pub fn insert(&mut self, table: TableIndex, key: Vec<u8>, value: Vec<u8>) {
        self.0.insert((table, key), value.into());
    }

    /// Value of a key.
    #[must_use]
    pub fn get(&self, address: &Address) -> Option<&[u8]> {
        self.0.get(address).map(AsRef::as_ref)
    }

    /// Pairs of `table` with keys in `[low, high)`, in order; no `high` is no limit.
    #[must_use]
    pub fn range(&self, table: TableIndex, low: &[u8], high: Option<&[u8]>) -> Vec<(&[u8], &[u8])> {
        let inside = |address: &Address| {
            address.0 == table && high.is_none_or(|high| address.1.as_slice() < high)
        };
        let from = self.0.range((table, low.to_vec())..);
        let pairs = from.take_while(|(address, _)| inside(address));
        pairs.map(|((_, key), value)| (key.as_slice(), value.as_ref())).collect()
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Address, &[u8])> {
        self.0.iter().map(|(address, value)| (address, value.as_ref()))
    }

    /// Carries out a change.
    pub fn apply(&mut self, change: &Change) {
        for (address, value) in change {
            match value {
                Some(value) => self.0.insert(address.clone(), Arc::clone(value)),
                None => self.0.remove(address),
            };
        }
    }

    /// First address at which the two differ, with both values' sizes.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        let mut addresses: Vec<_> = self.0.keys().chain(other.0.keys()).collect();
        addresses.sort_unstable();
        let address = addresses.into_iter().find(|address| self.get(address) != other.get(address));
        address.map(|address| {
            format!(
                "{}[{}] is {}, not {}",
                address.0.name(),
                address.1.escape_ascii(),
                Brief(other.get(address)),
                Brief(self.get(address))
            )
        })
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let brief = |((table, key), value): (&Address, &Arc<[u8]>)| {
            format!("{}[{}]={}", table.name(), key.escape_ascii(), Brief(Some(value)))
        };
        f.debug_list().entries(self.0.iter().map(brief)).finish()
    }
}

/// A value in a message: its size, its first bytes, and a sum that tells two apart.
struct Brief<'a>(Option<&'a [u8]>);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(value) = self.0 else { return f.write_str("absent") };
        write!(f, "{} bytes", value.len())?;
        value.iter().take(4).try_for_each(|byte| write!(f, " {byte:02x}"))?;
        let sum =
            value.iter().fold(0_u32, |sum, byte| sum.rotate_left(5).wrapping_add(u32::from(*byte)));
        write!(f, " sum {sum:08x}")
    }
}

/// Whether two lock requests can stand beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads the range.
    Read,
    /// Changes the range.
    Write,
}

/// Keys `[low, high)` of a table; no `high` is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// Table concerned.
    pub table: TableIndex,
    /// First key.
    pub low: Vec<u8>,
    /// First key behind the range.
    pub high: Option<Vec<u8>>,
}

impl KeyRange {
    /// The range of one key.
    #[must_use]
    pub fn of(table: TableIndex, key: &[u8]) -> Self {
        let mut high = key.to_vec();
        high.push(0);
        Self { table, low: key.to_vec(), high: Some(high) }
    }

    fn contains(&self, address: &Address) -> bool {
        let below = self.high.as_ref().is_none_or(|high| address.1 < *high);
        self.table == address.0 && self.low <= address.1 && below
    }

    fn is_empty(&self) -> bool {
        self.high.as_ref().is_some_and(|high| *high <= self.low)
    }

    /// Whether some key may lie in both.
    fn meets(&self, other: &Self) -> bool {
        let ends_behind = |one: &Self, two: &Self| one.high.as_ref().is_none_or(|h| *h > two.low);
        let have_keys = !self.is_empty() && !other.is_empty();
        let overlap = ends_behind(self, other) && ends_behind(other, self);
        self.table == other.table && have_keys && overlap
    }
}

fn excludes(held: &KeyRange, mode: Access, range: &KeyRange, access: Access) -> bool {
    (mode == Access::Write || access == Access::Write) && held.meets(range)
}

/// An open transaction.
#[derive(Clone, Debug, Default)]
struct Work {
    change: Change,
    savepoints: Vec<Change>,
    locks: Vec<(KeyRange, Access)>,
    /// Newest commit it depends on by reading (M4).
    depends_on: u64,
}

/// A commit that a power cut may take.
#[derive(Clone, Debug)]
struct LaterCommit {
    sequence: u64,
    change: Change,
}

/// Contents that a database must have.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Whether there must be a database: its creation returned, or a commit, or a close. Before
    /// that a second cut may take the database that a first one seemed to leave.
    exists: bool,
    durable: Contents,
    later: Vec<LaterCommit>,
    visible: Contents,
    sequence: u64,
    open: BTreeMap<SlotIndex, Work>,
    /// States each snapshot may show: every read leaves fewer (M5).
    snapshots: BTreeMap<SlotIndex, Vec<Contents>>,
    /// Contents of kept snapshots.
    kept: BTreeMap<String, Contents>,
    /// A snapshot whose keeping or dropping a cut may have undone (M6).
    kept_perhaps: Option<(String, Contents)>,
    /// The last restart showed that snapshot: it is there once the session has written.
    kept_shown: bool,
}

/// How a content contradicts the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the content is no prefix of the commits ({durable} keys durable, {later} commits later): {what}"
)]
pub struct NotAdmitted {
    /// Keys of the durable state.
    pub durable: usize,
    /// Commits that may or may not be there.
    pub later: usize,
    /// First difference from the nearest admitted state.
    pub what: String,
}

impl Model {
    /// The creation of the database returned.
    pub fn created(&mut self) {
        self.exists = true;
    }

    /// Whether there must be a database.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.exists
    }

    /// The state every new transaction reads.
    #[must_use]
    pub fn visible(&self) -> &Contents {
        &self.visible
    }

    /// Commits that a power cut may still take.
    #[must_use]
    pub fn later_count(&self) -> usize {
        self.later.len()
    }

    /// Commits so far, read-only ones left out.
    #[must_use]
    pub fn commit_count(&self) -> u64 {
        self.sequence
    }

    /// Takes `found` for the state after a power cut, and as durable from now on (M1, M3).
    ///
    /// # Errors
    ///
    /// `NotAdmitted` when no prefix of the commits gives that content.
    pub fn settle(&mut self, found: &Contents) -> Result<usize, NotAdmitted> {
        let mut state = self.durable.clone();
        let mut difference = state.difference(found);
        let mut kept = 0;
        // Of equal states the longest prefix is taken: they cannot be told apart.
        let mut matching = difference.is_none().then_some(0);
        for commit in &self.later {
            state.apply(&commit.change);
            kept += 1;
            let step = state.difference(found);
            if step.is_none() {
                matching = Some(kept);
            }
            difference = match (difference, step) {
                (Some(one), Some(other)) => Some(format!("{one}; with {kept} more: {other}")),
                (one, other) => other.or(one),
            };
        }
        let Some(kept) = matching else {
            let what = difference.unwrap_or_default();
            return Err(NotAdmitted { durable: self.durable.len(), later: self.later.len(), what });
        };
        self.later.truncate(kept);
        self.power_off();
        self.all_durable();
        Ok(kept)
    }

    /// Forgets the state in memory: open transactions and snapshots.
    pub fn power_off(&mut self) {
        self.open.clear();
        self.snapshots.clear();
    }

    /// A clean close returned: everything committed so far is durable.
    pub fn closed(&mut self) {
        self.exists = true;
        self.settle_written();
        self.all_durable();
    }

    fn all_durable(&mut self) {
        self.durable_up_to(self.sequence);
        self.visible.clone_from(&self.durable);
    }

    fn durable_up_to(&mut self, sequence: u64) {
        let count = self.later.iter().take_while(|commit| commit.sequence <= sequence).count();
        for commit in self.later.drain(..count) {
            self.durable.apply(&commit.change);
        }
    }

    /// Whether `slot` holds an open transaction.
    #[must_use]
    pub fn is_open(&self, slot: SlotIndex) -> bool {
        self.open.contains_key(&slot)
    }

    /// Slots with an open transaction.
    #[must_use]
    pub fn open_slots(&self) -> Vec<SlotIndex> {
        self.open.keys().copied().collect()
    }

    /// Opens a transaction in `slot`.
    pub fn begin(&mut self, slot: SlotIndex) {
        self.open.insert(slot, Work::default());
    }

    /// Whether `slot` could take the lock now; a single thread skips operations that would wait.
    #[must_use]
    pub fn may_lock(&self, slot: SlotIndex, range: &KeyRange, access: Access) -> bool {
        let clashes = |(held, mode): &(KeyRange, Access)| excludes(held, *mode, range, access);
        !self
            .open
            .iter()
            .filter(|(other, _)| **other != slot)
            .any(|(_, work)| work.locks.iter().any(clashes))
    }

    /// Whether no slot holds a lock that excludes this one.
    #[must_use]
    pub fn is_free(&self, range: &KeyRange, access: Access) -> bool {
        let clashes = |(held, mode): &(KeyRange, Access)| excludes(held, *mode, range, access);
        !self.open.values().any(|work| work.locks.iter().any(clashes))
    }

    /// Notes a lock that the transaction in `slot` now holds until it ends.
    pub fn lock(&mut self, slot: SlotIndex, range: KeyRange, access: Access) {
        let newest = self
            .later
            .iter()
            .rev()
            .find(|commit| commit.change.keys().any(|address| range.contains(address)))
            .map_or(0, |commit| commit.sequence);
        if let Some(work) = self.open.get_mut(&slot) {
            if access == Access::Read {
                work.depends_on = work.depends_on.max(newest);
            }
            work.locks.push((range, access));
        }
    }

    /// Value that the transaction in `slot` reads under `address`.
    #[must_use]
    pub fn get(&self, slot: SlotIndex, address: &Address) -> Option<&[u8]> {
        match self.open.get(&slot).and_then(|work| work.change.get(address)) {
            Some(own) => own.as_deref(),
            None => self.visible.get(address),
        }
    }

    /// Contents that the transaction in `slot` sees: the committed state and its own changes.
    #[must_use]
    pub fn view(&self, slot: SlotIndex) -> Contents {
        let mut view = self.visible.clone();
        if let Some(work) = self.open.get(&slot) {
            view.apply(&work.change);
        }
        view
    }

    /// Changes a key within the transaction in `slot`; `None` deletes it.
    pub fn set(&mut self, slot: SlotIndex, address: Address, value: Option<Vec<u8>>) {
        if let Some(work) = self.open.get_mut(&slot) {
            work.change.insert(address, value.map(Into::into));
        }
    }

    /// Sets a savepoint; gives its number within the transaction.
    pub fn savepoint(&mut self, slot: SlotIndex) -> usize {
        self.open.get_mut(&slot).map_or(0, |work| {
            work.savepoints.push(work.change.clone());
            work.savepoints.len() - 1
        })
    }

    /// Savepoints of the transaction in `slot`.
    #[must_use]
    pub fn savepoint_count(&self, slot: SlotIndex) -> usize {
        self.open.get(&slot).map_or(0, |work| work.savepoints.len())
    }

    /// Takes the changes since savepoint `index` back; later savepoints go, it stays.
    pub fn rollback_to(&mut self, slot: SlotIndex, index: usize) {
        if let Some(work) = self.open.get_mut(&slot)
            && let Some(change) = work.savepoints.get(index)
        {
            work.change.clone_from(change);
            work.savepoints.truncate(index + 1);
        }
    }

    /// Forgets the transaction in `slot`.
    pub fn abort(&mut self, slot: SlotIndex) {
        self.open.remove(&slot);
    }

    /// A commit is about to be asked for: from now on a power cut may or may not show it.
    pub fn commit_asked(&mut self, slot: SlotIndex) -> PendingCommit {
        let Work { change, depends_on, .. } = self.open.remove(&slot).unwrap_or_default();
        if change.is_empty() {
            return PendingCommit { upto: depends_on, writes: false };
        }
        self.sequence += 1;
        self.visible.apply(&change);
        self.later.push(LaterCommit { sequence: self.sequence, change });
        PendingCommit { upto: self.sequence, writes: true }
    }

    /// The commit returned as durable: it, and all before it, survive any cut (M2, M4).
    pub fn commit_durable(&mut self, commit: PendingCommit) {
        self.exists = true;
        self.durable_up_to(commit.upto);
    }

    /// The commit was refused as a whole: none of its changes may ever show.
    pub fn commit_refused(&mut self, commit: PendingCommit) {
        if !commit.writes {
            return;
        }
        self.later.retain(|later| later.sequence != commit.upto);
        self.visible.clone_from(&self.durable);
        for later in &self.later {
            self.visible.apply(&later.change);
        }
    }

    /// A snapshot of all that was committed is about to be kept.
    pub fn keep_asked(&mut self, name: &str) {
        self.settle_written();
        (self.kept_perhaps, self.kept_shown) =
            (Some((name.to_owned(), self.visible.clone())), false);
    }

    /// The snapshot is kept, and every commit is durable with it.
    pub fn keep_done(&mut self) {
        self.kept.extend(self.kept_perhaps.take());
        self.all_durable();
    }

    /// The snapshot is not kept, and no trace of it is there.
    pub fn keep_refused(&mut self) {
        self.kept_perhaps = None;
    }

    /// A kept snapshot is about to be dropped.
    pub fn drop_asked(&mut self, name: &str) {
        self.settle_written();
        (self.kept_perhaps, self.kept_shown) = (self.kept.remove_entry(name), false);
    }

    /// It is gone.
    pub fn drop_done(&mut self) {
        self.kept_perhaps = None;
    }

    /// Names of kept snapshots that are there for sure.
    #[must_use]
    pub fn kept_names(&self) -> Vec<String> {
        self.kept.keys().cloned().collect()
    }

    /// The session has written: the kept snapshots that a restart showed stay.
    pub fn settle_written(&mut self) {
        let perhaps = self.kept_perhaps.take().filter(|_| self.kept_shown);
        self.kept.extend(perhaps);
    }

    /// Compares the kept snapshots that a restart shows (M6); names the fault.
    ///
    /// # Errors
    ///
    /// One is missing, was never kept, or has other contents.
    pub fn settle_kept(&mut self, found: &BTreeMap<String, Contents>) -> Result<(), String> {
        let perhaps = self.kept_perhaps.as_ref();
        self.kept_shown = perhaps.is_some_and(|(name, _)| found.contains_key(name));
        let shown = perhaps.filter(|_| self.kept_shown).map(|(name, contents)| (name, contents));
        let expected: BTreeMap<_, _> = self.kept.iter().chain(shown).collect();
        if !expected.keys().copied().eq(found.keys()) {
            let (found, expected) = (found.keys(), expected.keys());
            return Err(format!("kept snapshots {found:?}, not {expected:?}"));
        }
        for (name, contents) in expected {
            if let Some(difference) = found.get(name).and_then(|it| contents.difference(it)) {
                return Err(format!("the kept snapshot {name}: {difference}"));
            }
        }
        Ok(())
    }

    /// Opens a snapshot in `slot`: it may see any prefix from the durable state on (M5).
    pub fn snapshot(&mut self, slot: SlotIndex) {
        let mut state = self.durable.clone();
        let mut states = vec![state.clone()];
        for commit in &self.later {
            state.apply(&commit.change);
            states.push(state.clone());
        }
        self.snapshots.insert(slot, states);
    }

    /// Whether `slot` holds a snapshot.
    #[must_use]
    pub fn has_snapshot(&self, slot: SlotIndex) -> bool {
        self.snapshots.contains_key(&slot)
    }

    /// Keeps the states of the snapshot that agree with a read; false when none is left.
    #[must_use]
    pub fn snapshot_agrees(&mut self, slot: SlotIndex, agrees: impl Fn(&Contents) -> bool) -> bool {
        self.snapshots.get_mut(&slot).is_some_and(|states| {
            states.retain(|state| agrees(state));
            !states.is_empty()
        })
    }

    /// Forgets the snapshot in `slot`.
    pub fn snapshot_closed(&mut self, slot: SlotIndex) {
        self.snapshots.remove(&slot);
    }
}

/// A commit whose outcome is not known yet.
#[derive(Clone, Copy, Debug)]
pub struct PendingCommit {
    upto: u64,
    writes: bool,
}

impl PendingCommit {
    /// Whether it changes anything.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.writes
    }
}

#[cfg(test)]
mod tests;
