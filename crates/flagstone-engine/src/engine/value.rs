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
use super::{Commits, Step, Store, Transactions};
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

/// The chunk of a page image, padding included; none when the image is no page of a value.
pub(crate) fn value_page_content(image: &[u8]) -> Option<&[u8]> {
    image.strip_prefix(&[VALUE_PAGE_MAGIC, 0, 0, 0])
}

const DESCRIPTOR_HEADER_SIZE: usize = 13;

/// Place of a value that has pages of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    size: u32,
    group: GroupId,
    is_indirect: bool,
    pages: Vec<LogicalPage>,
}

impl Descriptor {
    /// Names pages alone: the value is gone.
    pub(super) fn of_pages(group: GroupId, pages: Vec<LogicalPage>) -> Self {
        Self { size: 0, group, is_indirect: false, pages }
    }

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
    /// Lists that lead to the pages of the value.
    fn lists(&self) -> &[LogicalPage] {
        if self.descriptor.is_indirect { &self.descriptor.pages } else { &[] }
    }

    /// Pages of the value, and of the lists that lead to them.
    pub(crate) fn pages(&self) -> Vec<LogicalPage> {
        [&self.chunks, self.lists()].concat()
    }
}

impl Store {
    /// Bytes of the largest value: its descriptor can name its pages, and so can the record of a
    /// checkpoint while the transaction that stores it is open.
    #[must_use]
    pub fn value_size_max(&self) -> usize {
        let chunk_size = self.payload_size - VALUE_PAGE_HEADER_SIZE;
        let lists = (node::descriptor_size_max(self.payload_size) - DESCRIPTOR_HEADER_SIZE) / 4;
        let list_chunks = chunk_size / 4;
        // Of the pages that the record names, one in so many is a list.
        let named_chunks =
            self.nameable_pages_ever().saturating_mul(list_chunks) / (list_chunks + 1);
        let chunks = lists.saturating_mul(list_chunks).min(named_chunks);
        chunks.saturating_mul(chunk_size).min(VALUE_SIZE_MAX)
    }

    /// Pages of a value that are written before a record is asked again whether it can name more.
    pub(crate) fn value_part_pages(&self) -> usize {
        (self.nameable_pages() / PARTS_NAMED).clamp(1, PART_PAGES_MAX)
    }

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

    /// The next release, and whether this session let its pages go: a release that restart found may
    /// have been made before.
    pub(crate) fn take_release(&mut self) -> Option<(Release, bool)> {
        let (durable, oldest) = (self.durable(), self.snapshots.oldest());
        let (lsn, release) = self.trims.take_ready(durable, oldest)?;
        Some((release, lsn > self.recovered))
    }
}

impl Transactions {
    /// The pages are on flash now, or their write has failed.
    pub(crate) fn end_part(&mut self, xid: Xid, pages: usize) {
        if let Some(own) = self.transactions.get_mut(&xid).filter(|own| own.doom.is_none()) {
            own.unwritten -= pages;
        }
    }

    /// Takes the result of writing a value's pages: no page stays that nothing will refer to.
    pub(crate) fn stored(
        &mut self,
        xid: Xid,
        plan: &ValuePlan,
        result: Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let own = self.transactions.get_mut(&xid).filter(|own| own.doom.is_none());
        match &result {
            // The transaction was ended while the pages were written: its group was given up without
            // them.
            _ if own.is_none() => self.trims.discard_group(plan.descriptor.group),
            // Lists may not lead to all pages that were written.
            Err(_) => {
                let all = Descriptor::of_pages(plan.descriptor.group, plan.pages());
                self.drop_stored(xid, &all);
            }
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

    /// Waits until the pages of values that `xid` stored and no longer names are given back.
    pub(super) fn demand_no_garbage(&mut self, xid: Xid) -> Step<()> {
        match self.transaction(xid)?.dropped.is_empty() {
            true => Ok(()),
            false => Err(super::Stop::Wait(super::Wait::Garbage(xid))),
        }
    }

    /// The next value whose pages `xid` gives back.
    pub(crate) fn next_garbage(&self, xid: Xid) -> Option<Vec<u8>> {
        self.transactions.get(&xid)?.dropped.last().cloned()
    }

    /// A checkpoint is being written that no longer lists the pages given back so far: a mount by it
    /// finds nothing in them.
    pub(super) fn note_given_saved(&mut self) {
        for own in self.transactions.values_mut() {
            own.given_saved.append(&mut own.given_back);
        }
    }

    /// That checkpoint is durable.
    pub(super) fn take_given_saved(&mut self) {
        let each = self.transactions.values_mut().map(|own| std::mem::take(&mut own.given_saved));
        let pages: Vec<_> = each.flatten().collect();
        self.take_back(pages.into_iter());
    }

    /// That checkpoint failed.
    pub(super) fn keep_given_saved(&mut self) {
        for own in self.transactions.values_mut() {
            own.given_back.append(&mut own.given_saved);
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

impl Commits {
    /// Chooses the pages for a value of `size` bytes that `xid` is going to store.
    pub(crate) fn plan_value(&mut self, xid: Xid, size: usize) -> Step<ValuePlan> {
        let size_max = self.value_size_max();
        if size > size_max {
            return Err(EngineError::ValueTooLong { size, size_max }.into());
        }
        self.require_sound()?;
        self.demand_no_garbage(xid)?;
        let chunk_size = self.payload_size - VALUE_PAGE_HEADER_SIZE;
        let chunk_count = size.div_ceil(chunk_size);
        let direct_max =
            (node::descriptor_size_max(self.payload_size) - DESCRIPTOR_HEADER_SIZE) / 4;
        let list_count =
            if chunk_count > direct_max { chunk_count.div_ceil(chunk_size / 4) } else { 0 };
        let page_count = chunk_count + list_count;
        self.admit_pages(page_count as u64)?;
        if self.unused_pages.len() < page_count {
            return Err(super::Stop::Wait(super::Wait::Pages(page_count)));
        }
        let group = self.group_of(xid)?;
        // Numbers are taken in the order in which they came: where neighbours follow each other, one
        // entry of a record names many.
        let chunks: Vec<LogicalPage> = self.unused_pages.drain(..chunk_count).collect();
        let lists: Vec<LogicalPage> = self.unused_pages.drain(..list_count).collect();
        let own = self.transaction(xid)?;
        own.pages.extend(chunks.iter().chain(&lists));
        let is_indirect = list_count > 0;
        let pages = if is_indirect { lists } else { chunks.clone() };
        let descriptor = Descriptor { size: size as u32, group, is_indirect, pages };
        Ok(ValuePlan { descriptor, chunks, chunk_size })
    }

    /// Lets `xid` write the next `pages` of a value. The record's entries for the pages before are
    /// known by then: most page numbers follow each other and share one entry, so a value needs less
    /// room than entries for its single pages would.
    pub(crate) fn begin_part(&mut self, xid: Xid, pages: usize) -> Step<()> {
        self.demand_log(xid, 0)?;
        self.demand_names(xid, pages, 0)?;
        self.transaction(xid)?.unwritten += pages;
        Ok(())
    }

    /// The pages of the value that [`Engine::next_garbage`] named are no longer in the group of `xid`.
    /// Their numbers stay with the transaction until a checkpoint no longer lists them: before that, a
    /// mount finds their old content in the group, and would take it for later pages that the group
    /// wrote and lost. False when the pages are no longer the transaction's.
    pub(crate) fn give_back(&mut self, xid: Xid, garbage: &[u8], pages: &[LogicalPage]) -> bool {
        let Some(own) = self.transactions.get_mut(&xid) else { return false };
        let is_own = own.dropped.pop_if(|last| last.as_slice() == garbage).is_some();
        if is_own {
            own.given_back.extend(pages.iter().filter(|page| own.pages.remove(*page)));
        }
        is_own
    }

    /// Whether a checkpoint frees pages that open transactions gave back.
    pub(super) fn has_given_back(&self) -> bool {
        self.transactions.values().any(|own| own.garbage_size() > 0)
    }
}

/// A part of a value has one in this many of the pages that a record can name one by one.
const PARTS_NAMED: usize = 8;

/// Pages of a part, at most.
const PART_PAGES_MAX: usize = 64;

/// Largest value at any page size, in bytes.
const VALUE_SIZE_MAX: usize = 1 << 30;

/// Work for the space floor after a commit: in order, none before the commit is durable.
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
    /// Bytes of the release's content in a master record.
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
    /// oldest snapshot at `oldest`; with the commit that lets it go.
    fn take_ready(&mut self, durable: Lsn, oldest: Option<Lsn>) -> Option<(Lsn, Release)> {
        let ready = |waiting: &(Lsn, Release)| Self::is_ready(waiting, durable, oldest);
        let index = self.waiting.iter().position(ready)?;
        Some(self.waiting.remove(index))
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

    /// Releases that may be made now.
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

    /// Whether a release could be made if every commit were durable.
    pub(crate) fn awaits_flush(&self, durable: Lsn) -> bool {
        self.waiting.iter().any(|(lsn, _)| *lsn > durable)
    }

    /// Whether a release could be made if no snapshot at `oldest` read its pages.
    pub(crate) fn awaits_snapshot(&self, durable: Lsn, oldest: Lsn) -> bool {
        let is_kept = |waiting: &(Lsn, Release)| {
            waiting.0 <= durable && !Self::is_ready(waiting, durable, Some(oldest))
        };
        self.waiting.iter().any(is_kept)
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
