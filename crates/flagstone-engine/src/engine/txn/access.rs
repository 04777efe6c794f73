//! Reading and writing single keys.

use flagstone_space::Lsn;

use crate::bugs::SeededBug;
use crate::delta::{Op, PatchBuf, Value, apply};
use crate::engine::step::{Step, Stop};
use crate::engine::store::catalog::Table;
use crate::engine::store::descent::{DEPTH_MAX, Seek};
use crate::engine::store::read::{Read, into_read};
use crate::engine::store::value::Descriptor;
use crate::engine::txn::Transactions;
use crate::engine::txn::spill::OwnVersion;
use crate::error::EngineError;
use crate::lock::{Mode, Target, Xid};
use crate::options::AbsentLeaf;

/// Longest patch that replaces a put, as a share of the value: above it the whole value is cheaper
/// to keep, since a patch needs its base to be read.
const PATCH_SHARE: usize = 4;

/// Bytes of the smallest patch that changes something: tag, size of the value, offset and length of a
/// run, one byte.
const PATCH_SIZE_MIN: usize = 5;

impl Transactions {
    /// Reads the value of `key` as transaction `xid` sees it, into `out`.
    ///
    /// # Errors
    ///
    /// Stops for locks and pages; `Deadlock` when the transaction was chosen to end one.
    pub fn get(&mut self, xid: Xid, table: Table, key: &[u8], out: &mut Vec<u8>) -> Step<Read> {
        let table = self.own(table)?;
        self.check_key(key)?;
        self.lock(xid, Target::Record { tree: table.id, key }, Mode::Shared)?;
        self.note_read(xid)?;
        let value = self.value_of(xid, table, key)?;
        into_read(value, out)
    }

    /// Locks `key` for a change that depends on its value: two transactions that both read first
    /// and write later would have to wait for each other.
    ///
    /// # Errors
    ///
    /// Stops for the lock; `Deadlock` when the transaction was chosen to end one.
    pub fn lock_key(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()> {
        let table = self.own(table)?;
        self.check_key(key)?;
        self.lock(xid, Target::Record { tree: table.id, key }, Mode::Exclusive)
    }

    /// Reads `size` bytes at `offset` of a value, without its base where pending changes hold them.
    ///
    /// `Absent` when the key has no value; the bytes that exist when the value is shorter.
    ///
    /// # Errors
    ///
    /// As `Transactions::get`.
    pub fn get_part(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        offset: usize,
        size: usize,
        out: &mut Vec<u8>,
    ) -> Step<Read> {
        let table = self.own(table)?;
        self.check_key(key)?;
        self.lock(xid, Target::Record { tree: table.id, key }, Mode::Shared)?;
        self.note_read(xid)?;
        if self.part_at_hand(xid, table, key, offset, size, out)? {
            self.pool.hits += 1;
            return Ok(Read::Inline);
        }
        let read = match self.value_of(xid, table, key)? {
            None => Read::Absent,
            Some(Value::Ref(descriptor)) => Read::Large(Descriptor::decode(&descriptor)?),
            Some(Value::Inline(bytes)) => {
                let end = offset.saturating_add(size).min(bytes.len());
                out.clear();
                out.extend_from_slice(bytes.get(offset..end).unwrap_or(&[]));
                Read::Inline
            }
        };
        Ok(read)
    }

    /// Sets the value of `key`. Reads nothing: a value at hand only makes the change smaller.
    ///
    /// # Errors
    ///
    /// Stops for locks and memory; `KeyTooLong`, `ValueTooLong` (values above
    /// `Store::inline_value_size_max` are stored first, then put by descriptor).
    pub fn put(&mut self, xid: Xid, table: Table, key: &[u8], value: &[u8]) -> Step<()> {
        let table = self.own(table)?;
        let size_max = self.inline_value_size_max(key.len());
        if value.len() > size_max {
            return Err(EngineError::ValueTooLong { size: value.len(), size_max }.into());
        }
        self.prepare_write(xid, table, key)?;
        self.count_user_bytes(key.len() + value.len());
        match self.patch_instead(xid, table, key, value) {
            Some(patch) => self.write(xid, table, key, Op::Patch(patch.as_patch())),
            None => self.write(xid, table, key, Op::Put(value)),
        }
    }

    /// Sets the value of `key` to one stored out of line.
    pub(crate) fn put_ref(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        descriptor: &Descriptor,
    ) -> Step<()> {
        let table = self.own(table)?;
        self.prepare_write(xid, table, key)?;
        self.count_user_bytes(key.len() + descriptor.size());
        self.write(xid, table, key, Op::PutRef(&descriptor.encode()))
    }

    /// Deletes `key`, whether it exists or not. Reads nothing.
    ///
    /// # Errors
    ///
    /// Stops for locks and memory.
    pub fn delete(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()> {
        let table = self.own(table)?;
        self.prepare_write(xid, table, key)?;
        self.count_user_bytes(key.len());
        self.write(xid, table, key, Op::Delete)
    }

    /// Changes `bytes` at `offset` of an existing value.
    ///
    /// Returns the descriptor when the value is out of line: its owner rewrites it whole.
    ///
    /// # Errors
    ///
    /// Stops like a read; `PatchOutOfRange` when the key is absent or the value too short.
    pub fn patch(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Step<Option<Descriptor>> {
        let table = self.own(table)?;
        self.prepare_write(xid, table, key)?;
        self.note_read(xid)?;
        let out_of_range = EngineError::PatchOutOfRange { offset, size: bytes.len() };
        let value_size = match self.size_at_hand(xid, table, key)? {
            Some(size) => size,
            None => match self.value_of(xid, table, key)? {
                None if self.bugs.has(SeededBug::PatchUnread) => offset + bytes.len(),
                None => return Err(out_of_range.into()),
                Some(Value::Ref(descriptor)) => return Ok(Some(Descriptor::decode(&descriptor)?)),
                Some(Value::Inline(value)) => value.len(),
            },
        };
        if offset.checked_add(bytes.len()).is_none_or(|end| end > value_size) {
            return Err(out_of_range.into());
        }
        self.count_user_bytes(key.len() + bytes.len());
        let patch = PatchBuf::of_run(value_size as u32, offset as u32, bytes)
            .map_err(|_| EngineError::PatchOutOfRange { offset, size: bytes.len() })?;
        self.write(xid, table, key, Op::Patch(patch.as_patch()))?;
        Ok(None)
    }

    /// Passes when `xid` may change `key` now.
    pub(crate) fn prepare_write(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<()> {
        let table = self.own(table)?;
        self.check_key(key)?;
        self.require_sound()?;
        self.root_of(table)?;
        self.lock(xid, Target::Record { tree: table.id, key }, Mode::Exclusive)?;
        self.admit_write(xid)?;
        let is_read = match self.options.techniques.absent {
            _ if self.holds_images_ahead() => true,
            AbsentLeaf::Wait => false,
            // An engine that changes pages in memory reads them first.
            AbsentLeaf::Read => true,
            AbsentLeaf::ReadOnce => !self.has_waiting(table, key)?,
        };
        if is_read {
            self.leaf_for(table, Seek::At(key))?;
        } else {
            self.pool.note_found();
        }
        Ok(())
    }

    /// The committed value with the transaction's own changes.
    fn value_of(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<Option<Value>> {
        let own = self.own_versions(xid, table, key)?;
        let is_whole = own.iter().any(|version| version.is_whole());
        let mut value = None;
        if !is_whole {
            value = self.committed_value(table, key, Lsn(u64::MAX))?;
        }
        for version in &own {
            let op = version.op()?;
            if apply(op, &mut value).is_err() {
                return Err(EngineError::PatchOutOfRange { offset: 0, size: 0 }.into());
            }
        }
        Ok(value)
    }

    /// Copies part of a value out of pending changes; false when they do not hold all of it.
    fn part_at_hand(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        offset: usize,
        size: usize,
        out: &mut Vec<u8>,
    ) -> Step<bool> {
        let own = self.own_versions(xid, table, key)?;
        let recovered = self.frontier.recovered;
        let mut known = false;
        if self.runs.is_empty() {
            for (lsn, op) in self.tree(table)?.deltas.versions(key) {
                known = lsn > recovered && part_after(op, offset, size, known, out);
            }
        }
        for version in &own {
            known = part_after(version.op()?, offset, size, known, out);
        }
        Ok(known)
    }

    /// The size of a value, if its pending changes tell it.
    fn size_at_hand(&mut self, xid: Xid, table: Table, key: &[u8]) -> Step<Option<usize>> {
        let own = self.own_versions(xid, table, key)?;
        let newest = match own.last() {
            Some(version) => size_after(version.op()?),
            None if self.runs.is_empty() => {
                let newest = self.tree(table)?.deltas.versions(key).last();
                newest
                    .filter(|(lsn, _)| *lsn > self.frontier.recovered)
                    .and_then(|(_, op)| size_after(op))
            }
            None => None,
        };
        Ok(newest)
    }

    /// The byte runs by which `value` differs from the old value in memory, when they are few. Where no
    /// patch is short enough, the old value counts as used all the same.
    fn patch_instead(
        &mut self,
        xid: Xid,
        table: Table,
        key: &[u8],
        value: &[u8],
    ) -> Option<PatchBuf> {
        if value.len() < PATCH_SHARE * PATCH_SIZE_MIN {
            self.use_at_hand(xid, table, key);
            return None;
        }
        if self.leaf_at_hand(table, key).is_none() && !self.holds_delta(table, key) {
            return None;
        }
        if !self.runs.is_empty() {
            // Changes in runs are not asked for.
            return None;
        }
        // Counts of shared reads are no part of the counters that are put back.
        self.pool.count_shared_reads();
        let (misses, hits, references) = (self.pool.misses, self.pool.hits, self.pool.references);
        let old = self.value_without_reading(xid, table, key);
        (self.pool.misses, self.pool.hits, self.pool.references) = (misses, hits, references);
        let Some(Value::Inline(old)) = old else { return None };
        if old.len() != value.len() {
            return None;
        }
        let patch = PatchBuf::between(&old, value).ok()?;
        let size = Op::Patch(patch.as_patch()).encoded_size();
        (size * PATCH_SHARE <= value.len()).then_some(patch)
    }

    /// The changes or the leaf that make up the value count as used, as far as they are in memory.
    fn use_at_hand(&mut self, xid: Xid, table: Table, key: &[u8]) {
        let Ok(own) = self.own_versions(xid, table, key) else { return };
        if own.iter().any(OwnVersion::is_whole) {
            return;
        }
        let is_set = self.is_set_by_delta(table, key);
        let (mut path, mut depth) = ([None; DEPTH_MAX as usize], 0);
        let see = |index| {
            path[depth] = Some(index);
            depth += 1;
        };
        let is_there = is_set
            || self.leaf_sought(table, Seek::At(key), see).is_ok()
            || self.holds_delta(table, key);
        if is_there {
            self.tell_query(table, key);
            path.into_iter().flatten().for_each(|index| self.pool.touch(index));
        }
    }

    /// The value if no page has to be read for it.
    fn value_without_reading(&mut self, xid: Xid, table: Table, key: &[u8]) -> Option<Value> {
        match self.value_of(xid, table, key) {
            Ok(value) => value,
            Err(Stop::Miss(fetch)) => {
                self.fetch_failed(fetch);
                None
            }
            Err(_) => None,
        }
    }
}

/// Follows one change to the bytes `[offset, offset + size)`; true when `out` holds them after it.
fn part_after(op: Op<'_>, offset: usize, size: usize, known: bool, out: &mut Vec<u8>) -> bool {
    let end = offset.saturating_add(size);
    match op {
        Op::Delete | Op::PutRef(_) => false,
        Op::Put(value) => {
            out.clear();
            out.extend_from_slice(value.get(offset..end.min(value.len())).unwrap_or(&[]));
            out.len() == size
        }
        Op::Patch(patch) => {
            let mut known = known && patch.value_size() as usize >= end;
            for run in patch.runs() {
                let (start, stop) = (run.offset as usize, run.offset as usize + run.bytes.len());
                if start <= offset && stop >= end {
                    out.clear();
                    out.extend_from_slice(&run.bytes[offset - start..end - start]);
                    known = true;
                } else if known && start < end && stop > offset {
                    let (from, to) = (start.max(offset), stop.min(end));
                    out[from - offset..to - offset]
                        .copy_from_slice(&run.bytes[from - start..to - start]);
                }
            }
            known
        }
    }
}

/// The size of the value after one change, when the change tells it.
fn size_after(op: Op<'_>) -> Option<usize> {
    match op {
        Op::Put(value) => Some(value.len()),
        Op::Patch(patch) => Some(patch.value_size() as usize),
        Op::Delete | Op::PutRef(_) => None,
    }
}
