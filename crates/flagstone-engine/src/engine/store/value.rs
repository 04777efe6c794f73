//! Values with pages of their own, and everything that becomes free after a commit is durable.
//!
//! A value above `Store::inline_value_size_max` is cut into chunks, one a logical page, written
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

use crate::engine::store::Store;
use crate::engine::store::spans::PageSpans;
use crate::error::EngineError;
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

pub(in crate::engine) const DESCRIPTOR_HEADER_SIZE: usize = 13;

/// Place of a value that has pages of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub(in crate::engine) size: u32,
    pub(in crate::engine) group: GroupId,
    pub(in crate::engine) is_indirect: bool,
    pub(in crate::engine) pages: Vec<LogicalPage>,
}

impl Descriptor {
    /// Names pages alone: the value is gone.
    pub(in crate::engine) fn of_pages(group: GroupId, pages: Vec<LogicalPage>) -> Self {
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
        self.frontier.flush_to = self.frontier.flush_to.max(lsn);
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
        Some((release, lsn > self.frontier.recovered))
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
