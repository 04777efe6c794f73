//! Values too long for a leaf: chunks in a tree of their own, logged like any other entry.
//!
//! ```text
//! leaf   key ─▶ descriptor = identity (16) | size (4)
//! chunks identity | index (4) ─▶ bytes
//! ```

use flagstone_engine::{EngineError, Step, Stop, Xid};
use flagstone_space::LogicalPage;

use super::engine::{CHUNKS, Engine};
use super::page;
use super::record::{Change, OwnCell};
use super::tree::{How, corrupt};

const IDENTITY_SIZE: usize = 16;

/// A value being written: where it goes, and how many of its chunks are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filling {
    tree: u32,
    key: Vec<u8>,
    long: Long,
    done: usize,
}

/// A value in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Long {
    identity: [u8; IDENTITY_SIZE],
    size: usize,
}

impl Long {
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (identity, size) = bytes.split_first_chunk::<IDENTITY_SIZE>()?;
        let size = u32::from_le_bytes(size.try_into().ok()?);
        Some(Self { identity: *identity, size: size as usize })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = self.identity.to_vec();
        out.extend((self.size as u32).to_le_bytes());
        out
    }

    fn key(&self, index: usize) -> Vec<u8> {
        let mut key = self.identity.to_vec();
        key.extend((index as u32).to_be_bytes());
        key
    }

    /// Prefix of the keys of its chunks.
    pub(super) fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// Bytes of the value.
    pub(super) fn size(&self) -> usize {
        self.size
    }
}

impl Engine {
    fn chunk_size(&self) -> usize {
        let key_size_max = flagstone_engine::node::key_size_max(self.page_size);
        flagstone_engine::node::value_size_max(self.page_size, key_size_max)
    }

    /// Bytes of the longest value: a quarter of the memory, since it is put together there.
    #[must_use]
    pub fn value_size_max(&self) -> usize {
        self.config.options.memory / 4
    }

    /// A chunk of a value.
    fn chunk(&mut self, long: &Long, index: usize) -> Step<Option<OwnCell>> {
        let key = long.key(index);
        let leaf = self.leaf_of(CHUNKS, &key)?;
        Ok(page::cell_of(self.image(leaf)?, &key))
    }

    /// Bytes `[start, end)` of a value in chunks.
    pub(super) fn read_long(&mut self, long: &Long, start: usize, end: usize) -> Step<Vec<u8>> {
        let (end, size) = (end.min(long.size), self.chunk_size());
        let mut bytes = Vec::with_capacity(end.saturating_sub(start));
        if start >= end {
            return Ok(bytes);
        }
        let first = start / size;
        for index in first..end.div_ceil(size) {
            let chunk = self.chunk(long, index)?;
            let missing = || corrupt(LogicalPage(1), "a chunk of a value is missing");
            bytes.extend(chunk.ok_or_else(missing)?.bytes);
        }
        bytes.drain(..start - first * size);
        bytes.truncate(end - start);
        Ok(bytes)
    }

    /// Removes the chunks of a value, the last first: undoing puts them back in ascending order, which
    /// fills leaves as they were. Called again after a stop, it goes on.
    pub(super) fn drop_long(&mut self, xid: Xid, long: &Long) -> Step<()> {
        for index in (0..long.size.div_ceil(self.chunk_size())).rev() {
            if let Some(old) = self.chunk(long, index)? {
                let key = long.key(index);
                self.perform(xid, CHUNKS, &key, &How::Forward(Change::Remove(old)))?;
            }
        }
        Ok(())
    }

    /// Writes the chunks of a value and gives its descriptor. Called again after a stop for the
    /// same key, it goes on.
    pub(super) fn write_long(
        &mut self,
        xid: Xid,
        tree: u32,
        key: &[u8],
        value: &[u8],
    ) -> Step<OwnCell> {
        let size_max = self.value_size_max();
        if value.len() > size_max {
            return Err(EngineError::ValueTooLong { size: value.len(), size_max }.into());
        }
        let mut filling = self.filling_of(xid, tree, key, value.len())?;
        for (index, bytes) in value.chunks(self.chunk_size()).enumerate().skip(filling.done) {
            let new = OwnCell { bytes: bytes.to_vec(), is_ref: false };
            let key = filling.long.key(index);
            self.perform(xid, CHUNKS, &key, &How::Forward(Change::Insert(new)))?;
            filling.done = index + 1;
            self.transaction(xid)?.filling = Some(filling.clone());
        }
        Ok(OwnCell { bytes: filling.long.encode(), is_ref: true })
    }

    /// The value under way for this key, or a new one. No two have the same identity: between
    /// two of one transaction the log has grown.
    fn filling_of(&mut self, xid: Xid, tree: u32, key: &[u8], size: usize) -> Step<Filling> {
        let next = self.next_lsn();
        let transaction = self.transaction(xid)?;
        let under_way = transaction.filling.as_ref();
        if let Some(filling) = under_way
            && filling.tree == tree
            && filling.key == key
            && filling.long.size == size
        {
            return Ok(filling.clone());
        }
        let mut identity = [0; IDENTITY_SIZE];
        identity[..8].copy_from_slice(&next.0.to_be_bytes());
        identity[8..].copy_from_slice(&xid.0.to_be_bytes());
        Ok(Filling { tree, key: key.to_vec(), long: Long { identity, size }, done: 0 })
    }

    /// Overwrites bytes of a value in chunks.
    pub(super) fn patch_long(
        &mut self,
        xid: Xid,
        long: &Long,
        offset: usize,
        bytes: &[u8],
    ) -> Step<()> {
        let size = self.chunk_size();
        let end = offset + bytes.len();
        for index in offset / size..end.div_ceil(size) {
            let missing = || corrupt(LogicalPage(1), "a chunk of a value is missing");
            let old = self.chunk(long, index)?.ok_or_else(missing)?;
            let start = index * size;
            let (from, to) = (offset.max(start), end.min(start + old.bytes.len()));
            let mut new = old.clone();
            new.bytes[from - start..to - start].copy_from_slice(&bytes[from - offset..to - offset]);
            if let Some(change) = Change::between(Some(old), Some(new)) {
                self.perform(xid, CHUNKS, &long.key(index), &How::Forward(change))?;
            }
        }
        Ok(())
    }

    /// A leaf's description of a value in chunks.
    pub(super) fn long_of(&self, page: LogicalPage, cell: &OwnCell) -> Result<Long, Stop> {
        Long::decode(&cell.bytes).ok_or_else(|| corrupt(page, "a descriptor does not decode"))
    }
}
