//! Values with pages of their own, and everything that becomes free after a commit is durable.
//!
//! A value above [`Engine::inline_value_size_max`] is cut into chunks, one a logical page, written
//! under its transaction's group before the commit. The leaf holds a descriptor. Descriptors carry
//! the group, so that a trim replayed after a crash never hits a page that has a new owner
//! (rule D12).
//!
//! ```text
//! descriptor:  kind u8 | size u32 | group u64 | page number u32 ...     little-endian
//!              kind 0: the pages hold the chunks
//!              kind 1: the pages hold lists of chunk pages (u32 each)
//! page:        'V' | 0 0 0 | bytes
//! ```

use flagstone_space::{GroupId, LogicalPage, Lsn};

use super::spans::PageSpans;
use super::{Engine, Step};
use crate::error::EngineError;
use crate::lock::Xid;
use crate::node;

/// First byte of a page that holds part of a value; nodes and spilled pages start otherwise.
pub(crate) const VALUE_PAGE_MAGIC: u8 = b'V';

/// Bytes before the content of a value page.
pub(crate) const VALUE_PAGE_HEADER_SIZE: usize = 4;

/// The page image of a chunk.
pub(crate) fn value_page(chunk: &[u8]) -> Vec<u8> {
    let mut image = vec![VALUE_PAGE_MAGIC, 0, 0, 0];
    image.extend_from_slice(chunk);
    image
}

/// The chunk of a page image, padding included; none when it is no page of a value.
pub(crate) fn value_page_content(image: &[u8]) -> Option<&[u8]> {
    image.strip_prefix(&[VALUE_PAGE_MAGIC, 0, 0, 0])
}

const DESCRIPTOR_HEADER_SIZE: usize = 13;

/// Where a value lies that has pages of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    size: u32,
    group: GroupId,
    is_indirect: bool,
    pages: Vec<LogicalPage>,
}

impl Descriptor {
    /// Bytes of the value.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size as usize
    }

    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    /// Pages the descriptor names: chunks, or lists of chunks when `is_indirect`.
    pub(crate) fn pages(&self) -> &[LogicalPage] {
        &self.pages
    }

    pub(crate) fn is_indirect(&self) -> bool {
        self.is_indirect
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(DESCRIPTOR_HEADER_SIZE + 4 * self.pages.len());
        bytes.push(u8::from(self.is_indirect));
        bytes.extend_from_slice(&self.size.to_le_bytes());
        bytes.extend_from_slice(&self.group.0.to_le_bytes());
        for page in &self.pages {
            bytes.extend_from_slice(&page.0.to_le_bytes());
        }
        bytes
    }

    /// Reads a descriptor; any bytes give a value or an error.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, EngineError> {
        let decoded = (|| {
            let (&kind, rest) = bytes.split_first()?;
            let (size, rest) = rest.split_first_chunk::<4>()?;
            let (group, rest) = rest.split_first_chunk::<8>()?;
            let pages = decode_pages(rest)?;
            (kind <= 1).then(|| Self {
                size: u32::from_le_bytes(*size),
                group: GroupId(u64::from_le_bytes(*group)),
                is_indirect: kind == 1,
                pages,
            })
        })();
        decoded.ok_or(EngineError::Corrupt {
            page: LogicalPage(u32::MAX),
            check: "descriptor of a large value",
        })
    }
}

/// Page numbers, 4 bytes each, little-endian; none when bytes are left over.
pub(crate) fn decode_pages(bytes: &[u8]) -> Option<Vec<LogicalPage>> {
    let (numbers, rest) = bytes.as_chunks::<4>();
    let page = |number: &[u8; 4]| LogicalPage(u32::from_le_bytes(*number));
    rest.is_empty().then(|| numbers.iter().map(page).collect())
}

/// Pages a value is to be written to, and the descriptor that will name them.
#[derive(Debug)]
pub(crate) struct ValuePlan {
    pub(crate) descriptor: Descriptor,
    pub(crate) chunks: Vec<LogicalPage>,
    pub(crate) chunk_size: usize,
}

impl ValuePlan {
    /// Pages of the value and of the lists that lead to them.
    fn page_count(&self) -> usize {
        let lists = if self.descriptor.is_indirect { self.descriptor.pages.len() } else { 0 };
        self.chunks.len() + lists
    }
}

impl Engine {
    /// Bytes of the largest value: its descriptor can name its pages, and so can the record of a
    /// checkpoint while the transaction that stores it is open.
    #[must_use]
    pub fn value_size_max(&self) -> usize {
        let chunk_size = self.payload_size - VALUE_PAGE_HEADER_SIZE;
        let lists = (node::descriptor_size_max(self.payload_size) - DESCRIPTOR_HEADER_SIZE) / 4;
        let list_chunks = chunk_size / 4;
        // Of the pages that the record names, one in so many is a list.
        let named_chunks = self.nameable_pages().saturating_mul(list_chunks) / (list_chunks + 1);
        let chunks = lists.saturating_mul(list_chunks).min(named_chunks);
        chunks.saturating_mul(chunk_size).min(VALUE_SIZE_MAX)
    }

    /// Chooses the pages for a value of `size` bytes that `xid` is going to store.
    pub(crate) fn plan_value(&mut self, xid: Xid, size: usize) -> Step<ValuePlan> {
        let size_max = self.value_size_max();
        if size > size_max {
            return Err(EngineError::ValueTooLong { size, size_max }.into());
        }
        self.require_sound()?;
        let chunk_size = self.payload_size - VALUE_PAGE_HEADER_SIZE;
        let chunk_count = size.div_ceil(chunk_size);
        let direct_max =
            (node::descriptor_size_max(self.payload_size) - DESCRIPTOR_HEADER_SIZE) / 4;
        let list_count =
            if chunk_count > direct_max { chunk_count.div_ceil(chunk_size / 4) } else { 0 };
        let page_count = chunk_count + list_count;
        self.demand_log(xid, 0)?;
        if !self.can_name_more(xid, page_count, 0) {
            // What waits to be released is still listed, and so is what the last checkpoint said.
            return Err(match self.may_name_more(xid, page_count, 0) {
                _ if self.has_release() => super::Stop::Wait(super::Wait::Memory),
                true => super::Stop::Wait(super::Wait::Log),
                false => EngineError::TooLarge.into(),
            });
        }
        self.admit_pages(page_count as u64)?;
        if self.unused_pages.len() < page_count {
            return Err(super::Stop::Wait(super::Wait::Pages(page_count)));
        }
        let group = self.group_of(xid)?;
        // In the order in which they came: where neighbours follow each other, one entry of a record names many.
        let chunks: Vec<LogicalPage> = self.unused_pages.drain(..chunk_count).collect();
        let lists: Vec<LogicalPage> = self.unused_pages.drain(..list_count).collect();
        let own = self.transaction(xid)?;
        own.pages.extend(chunks.iter().chain(&lists));
        own.unwritten += page_count;
        let is_indirect = list_count > 0;
        let pages = if is_indirect { lists } else { chunks.clone() };
        let descriptor = Descriptor { size: size as u32, group, is_indirect, pages };
        Ok(ValuePlan { descriptor, chunks, chunk_size })
    }

    /// What came of writing the pages of a value: none stay that nothing will refer to.
    pub(crate) fn stored(
        &mut self,
        xid: Xid,
        plan: &ValuePlan,
        result: Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let own = self.transactions.get_mut(&xid).filter(|own| own.doom.is_none());
        let is_live = own.map(|own| own.unwritten -= plan.page_count()).is_some();
        match &result {
            // It was ended while they were written: its group was given up without them.
            _ if !is_live => self.trims.discard_group(plan.descriptor.group),
            Err(_) if !plan.descriptor.is_indirect => self.drop_stored(xid, &plan.descriptor),
            // No list leads to those that were written.
            Err(error) => self.doom(xid, error.clone()),
            Ok(()) => {}
        }
        result
    }

    /// A value was stored, but no row refers to it.
    pub(crate) fn drop_stored(&mut self, xid: Xid, descriptor: &Descriptor) {
        if let Some(own) = self.transactions.get_mut(&xid) {
            own.dropped.push(descriptor.encode());
        }
    }

    /// The group of the pages that a transaction writes before its commit.
    pub(crate) fn group_of(&mut self, xid: Xid) -> Step<GroupId> {
        if let Some(group) = self.transaction(xid)?.group {
            return Ok(group);
        }
        let group = self.take_group()?;
        self.transaction(xid)?.group = Some(group);
        Ok(group)
    }
}

/// Largest value whatever the page size, in bytes.
const VALUE_SIZE_MAX: usize = 1 << 30;

/// What the space floor has to do after a commit: in order, none before the commit is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The pages of a committed transaction become current.
    CommitGroup(GroupId),
    /// The pages of an aborted transaction are garbage.
    DiscardGroup(GroupId),
    /// A large value that nothing refers to any more.
    Value(Vec<u8>),
    /// Spilled pages whose content has reached the leaves.
    Pages(GroupId, PageSpans),
}

impl Release {
    /// Bytes of what is released, in a master record.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Value(descriptor) => descriptor.len(),
            Self::Pages(_, pages) => pages.encoded_size(),
            Self::CommitGroup(_) | Self::DiscardGroup(_) => 0,
        }
    }
}

/// Work that waits for a commit to be durable and for snapshots to end.
#[derive(Debug, Default)]
pub(crate) struct Trims {
    waiting: Vec<(Lsn, Release)>,
}

impl Trims {
    /// Nothing refers to the value of `descriptor` since commit `lsn`.
    pub(crate) fn add(&mut self, lsn: Lsn, descriptor: Vec<u8>) {
        self.waiting.push((lsn, Release::Value(descriptor)));
    }

    /// Spilled pages are not needed once the log has passed `lsn`.
    pub(crate) fn add_pages(&mut self, lsn: Lsn, group: GroupId, pages: PageSpans) {
        self.waiting.push((lsn, Release::Pages(group, pages)));
    }

    /// The group's transaction is gone.
    pub(crate) fn discard_group(&mut self, group: GroupId) {
        self.waiting.push((Lsn::ZERO, Release::DiscardGroup(group)));
    }

    /// The group's transaction has its commit record at `lsn`.
    pub(crate) fn commit_group(&mut self, lsn: Lsn, group: GroupId) {
        self.waiting.push((lsn, Release::CommitGroup(group)));
    }

    /// The first release that may be done, with every commit up to `durable` durable and the
    /// oldest snapshot at `oldest`.
    pub(crate) fn take_ready(&mut self, durable: Lsn, oldest: Option<Lsn>) -> Option<Release> {
        let ready = |waiting: &(Lsn, Release)| Self::is_ready(waiting, durable, oldest);
        let index = self.waiting.iter().position(ready)?;
        Some(self.waiting.remove(index).1)
    }

    /// Groups of transactions that are gone.
    fn take_discarded(&mut self) -> Vec<GroupId> {
        let mut groups = Vec::new();
        self.waiting.retain(|(_, release)| {
            let Release::DiscardGroup(group) = release else { return true };
            groups.push(*group);
            false
        });
        groups
    }

    /// What may be released.
    pub(crate) fn ready(
        &self,
        durable: Lsn,
        oldest: Option<Lsn>,
    ) -> impl Iterator<Item = &Release> {
        self.waiting.iter().filter_map(move |waiting| {
            Self::is_ready(waiting, durable, oldest).then_some(&waiting.1)
        })
    }

    fn is_ready((lsn, release): &(Lsn, Release), durable: Lsn, oldest: Option<Lsn>) -> bool {
        let is_seen = !matches!(release, Release::CommitGroup(_) | Release::DiscardGroup(_))
            && oldest.is_some_and(|oldest| oldest < *lsn);
        *lsn <= durable && !is_seen
    }

    /// Whether some group is not current although its commit is in the log.
    pub(crate) fn has_groups(&self) -> bool {
        let is_group = |(_, release): &(Lsn, Release)| matches!(release, Release::CommitGroup(_));
        self.waiting.iter().any(is_group)
    }

    /// Values and pages that still wait: a checkpoint keeps them in the master record.
    pub(crate) fn deferred(&self) -> impl Iterator<Item = (Lsn, &Release)> {
        self.waiting.iter().map(|(lsn, release)| (*lsn, release))
    }
}

impl Engine {
    pub(crate) fn await_group(&mut self, lsn: Lsn, group: GroupId) {
        self.trims.commit_group(lsn, group);
        self.flush_to = self.flush_to.max(lsn);
    }

    pub(crate) fn has_release(&self) -> bool {
        self.trims.ready(self.durable(), self.snapshots.oldest()).next().is_some()
    }

    pub(crate) fn take_discarded(&mut self) -> Vec<GroupId> {
        self.trims.take_discarded()
    }

    pub(crate) fn take_release(&mut self) -> Option<Release> {
        let (durable, oldest) = (self.durable(), self.snapshots.oldest());
        self.trims.take_ready(durable, oldest)
    }
}
