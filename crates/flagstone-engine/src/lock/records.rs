//! Locks on single keys: a hash index over a slab of entries.
//!
//! Pages are keys of their own space. Entries keep their buffers when they are freed, so that a
//! steady load allocates nothing.

use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::{Mode, Rank, Xid};

/// A set of keys with locks: one tree, or all pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Space(u64);

impl Space {
    /// Logical pages, keyed by their number.
    pub(super) const PAGES: Self = Self(1 << 32);

    /// Keys of one tree.
    pub(super) fn tree(tree: u32) -> Self {
        Self(u64::from(tree))
    }
}

/// Place of an entry in the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// A transaction that holds a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) xid: Xid,
    pub(super) mode: Mode,
}

/// A transaction that waits for a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) xid: Xid,
    pub(super) mode: Mode,
    pub(super) rank: Rank,
}

/// One locked or wanted key.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) space: Space,
    pub(super) key: Vec<u8>,
    pub(super) holders: Vec<Holder>,
    /// In order of rank.
    pub(super) queue: Vec<Queued>,
    hash: u64,
}

/// Largest buffer that a freed entry keeps.
const KEPT_SIZE_MAX: usize = 64;
/// Holders and waiters a freed entry keeps room for.
const KEPT_COUNT_MAX: usize = 4;

impl Entry {
    fn new(space: Space, hash: u64) -> Self {
        Self { space, key: Vec::new(), holders: Vec::new(), queue: Vec::new(), hash }
    }

    pub(super) fn mode_of(&self, xid: Xid) -> Option<Mode> {
        self.holders.iter().find(|holder| holder.xid == xid).map(|holder| holder.mode)
    }

    /// Makes `xid` a holder, or strengthens its lock. Returns whether the holder is new.
    pub(super) fn hold(&mut self, xid: Xid, mode: Mode) -> bool {
        if let Some(holder) = self.holders.iter_mut().find(|holder| holder.xid == xid) {
            holder.mode = holder.mode.max(mode);
            return false;
        }
        self.holders.push(Holder { xid, mode });
        true
    }

    pub(super) fn release(&mut self, xid: Xid) {
        self.holders.retain(|holder| holder.xid != xid);
    }

    pub(super) fn enqueue(&mut self, queued: Queued) {
        let place = self.queue.partition_point(|other| other.rank < queued.rank);
        self.queue.insert(place, queued);
    }

    pub(super) fn dequeue(&mut self, xid: Xid) {
        self.queue.retain(|queued| queued.xid != xid);
    }

    /// Notes the requests that a release may let in: up to the first exclusive request, which
    /// blocks all requests behind it whether it is granted or not.
    pub(super) fn note_first_waiters(&self, candidates: &mut Vec<(Rank, Xid)>) {
        for queued in &self.queue {
            candidates.push((queued.rank, queued.xid));
            if queued.mode == Mode::Exclusive {
                return;
            }
        }
    }

    pub(super) fn is_unused(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    fn clear(&mut self) {
        debug_assert!(self.is_unused(), "an entry in use is never freed");
        self.key.clear();
        self.key.shrink_to(KEPT_SIZE_MAX);
        self.holders.shrink_to(KEPT_COUNT_MAX);
        self.queue.shrink_to(KEPT_COUNT_MAX);
    }
}

/// All entries, found by space and key.
#[derive(Debug, Default)]
pub(super) struct Records {
    index: HashTable<u32>,
    slab: Vec<Entry>,
    free: Vec<u32>,
    hasher: DefaultHashBuilder,
    key_size: usize,
}

impl Records {
    /// Entries in use.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn entry(&self, slot: Slot) -> &Entry {
        &self.slab[slot.0 as usize]
    }

    pub(super) fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.slab[slot.0 as usize]
    }

    pub(super) fn find(&self, space: Space, key: &[u8]) -> Option<Slot> {
        self.lookup(self.hash(space, key), space, key)
    }

    /// The entry of a key, and whether it had to be made.
    pub(super) fn find_or_insert(&mut self, space: Space, key: &[u8]) -> (Slot, bool) {
        let hash = self.hash(space, key);
        if let Some(slot) = self.lookup(hash, space, key) {
            return (slot, false);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slab.push(Entry::new(space, hash));
            (self.slab.len() - 1) as u32
        });
        let entry = &mut self.slab[slot as usize];
        entry.space = space;
        entry.hash = hash;
        entry.key.extend_from_slice(key);
        self.key_size += key.len();
        let slab = &self.slab;
        self.index.insert_unique(hash, slot, |other| slab[*other as usize].hash);
        (Slot(slot), true)
    }

    /// Frees an entry without holders and waiters.
    pub(super) fn remove(&mut self, slot: Slot) {
        let entry = &mut self.slab[slot.0 as usize];
        self.key_size -= entry.key.len();
        if let Ok(found) = self.index.find_entry(entry.hash, |other| *other == slot.0) {
            found.remove();
        }
        entry.clear();
        self.free.push(slot.0);
        if self.index.is_empty() && self.slab.len() > KEPT_ENTRY_COUNT_MAX {
            self.slab = Vec::new();
            self.free = Vec::new();
            self.index = HashTable::new();
        }
    }

    /// Entries of one space, in no particular order.
    pub(super) fn in_space(&self, space: Space) -> impl Iterator<Item = (Slot, &Entry)> {
        self.index
            .iter()
            .map(|slot| (Slot(*slot), &self.slab[*slot as usize]))
            .filter(move |(_, entry)| entry.space == space)
    }

    pub(super) fn bytes(&self) -> usize {
        let holder_size = self.index.len() * size_of::<Holder>();
        let fixed_size = self.slab.capacity() * size_of::<Entry>() + self.index.capacity() * 5;
        fixed_size + holder_size + self.key_size + self.free.capacity() * 4
    }

    fn hash(&self, space: Space, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        space.hash(&mut hasher);
        hasher.write(key);
        hasher.finish()
    }

    fn lookup(&self, hash: u64, space: Space, key: &[u8]) -> Option<Slot> {
        let same = |slot: &u32| {
            let entry = &self.slab[*slot as usize];
            entry.hash == hash && entry.space == space && entry.key == key
        };
        self.index.find(hash, same).map(|slot| Slot(*slot))
    }
}

/// Largest slab kept when the last lock goes; a larger one came from one big transaction.
const KEPT_ENTRY_COUNT_MAX: usize = 4096;
