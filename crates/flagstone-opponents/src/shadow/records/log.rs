//! The log: batches of records, each atomic, in blocks of their own.
//!
//! Owns the pages of the log and the store's own records in it. Never looks into a batch of the
//! engine's.
//!
//! L1. A batch counts when all its pages are there; the log is the sequence without a gap from the
//!     start that the last verdict names.
//! L2. The start never passes a commit record of which a flag is unset (R3), nor the last verdict.
//! L3. Pages of an epoch count only when the epoch has a verdict (R5).
//!
//! ```text
//! 0 kind   1..3 number in the batch   3..5 pages of the batch   5..10 start   10..12 bytes   12.. bytes
//! ```

use std::collections::{BTreeMap, BTreeSet};

use flagstone_nand::{BlockIndex, Nand, NandError};

use super::note::{Kind as PageKind, Note};
use super::place::ATTEMPTS;
use super::{
    EPOCH_SHIFT, Flags, GroupId, LogicalPage, NOWHERE, RecordBug, RecordStore, ShadowError,
    Standing, State, Version, epoch_of,
};
use flagstone_space::bytes::{get_uint, put_uint};

const HEADER_SIZE: usize = 12;

/// Kind of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An epoch is taken (R4).
    Intent,
    /// The engine's records.
    Records,
    /// The store's knowledge of transactions and blocks (R5).
    Verdict,
}

/// A batch of the engine's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its number.
    pub number: u64,
    /// The appended bytes.
    pub payload: Vec<u8>,
}

/// A page of the log as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogPage {
    pub(super) number: u64,
    kind: Kind,
    index: u64,
    count: u64,
    start: u64,
    payload: Vec<u8>,
}

impl LogPage {
    fn encode(&self, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_SIZE];
        bytes[0] = self.kind as u8;
        put_uint(&mut bytes[1..3], self.index);
        put_uint(&mut bytes[3..5], self.count);
        put_uint(&mut bytes[5..10], self.start);
        put_uint(&mut bytes[10..12], self.payload.len() as u64);
        bytes.extend_from_slice(&self.payload);
        bytes.resize(size.max(bytes.len()), 0);
        bytes
    }

    /// A page from untrusted bytes.
    pub(super) fn decode(number: u64, bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(HEADER_SIZE)?;
        let kind = match head[0] {
            0 => Kind::Intent,
            1 => Kind::Records,
            2 => Kind::Verdict,
            _ => return None,
        };
        let (index, count) = (get_uint(&head[1..3]), get_uint(&head[3..5]));
        (index < count).then_some(())?;
        let payload = rest.get(..get_uint(&head[10..12]) as usize)?.to_vec();
        Some(Self { number, kind, index, count, start: get_uint(&head[5..10]), payload })
    }
}

/// A record of the store about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) page_count: u32,
    pub(super) flags: u8,
    pub(super) unit_pages: u8,
    /// Transactions that did not commit: of earlier epochs, and of this one (R6).
    pub(super) dead: BTreeSet<GroupId>,
    /// Transactions of this epoch that committed (R6).
    pub(super) proven: BTreeSet<GroupId>,
    /// Blocks without a summary, with how many units count.
    pub(super) adopted: BTreeMap<BlockIndex, u16>,
}

impl Verdict {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 18];
        put_uint(&mut bytes[..4], self.page_count.into());
        bytes[4] = self.flags;
        bytes[5] = self.unit_pages;
        put_uint(&mut bytes[6..10], self.dead.len() as u64);
        put_uint(&mut bytes[10..14], self.proven.len() as u64);
        put_uint(&mut bytes[14..18], self.adopted.len() as u64);
        for xid in self.dead.iter().chain(&self.proven) {
            bytes.extend_from_slice(&xid.0.to_le_bytes()[..5]);
        }
        for (block, count) in &self.adopted {
            bytes.extend_from_slice(&block.0.to_le_bytes());
            bytes.extend_from_slice(&count.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(18)?;
        let count = |at: usize| get_uint(&head[at..at + 4]) as usize;
        let (dead, proven, adopted) = (count(6), count(10), count(14));
        let (dead, rest) = rest.split_at_checked(dead.checked_mul(5)?)?;
        let (proven, rest) = rest.split_at_checked(proven.checked_mul(5)?)?;
        let adopted = rest.get(..adopted.checked_mul(6)?)?;
        let xids = |bytes: &[u8]| bytes.chunks_exact(5).map(|xid| GroupId(get_uint(xid))).collect();
        let block = |place: &[u8]| {
            (BlockIndex(get_uint(&place[..4]) as u32), get_uint(&place[4..6]) as u16)
        };
        Some(Self {
            page_count: get_uint(&head[..4]) as u32,
            flags: head[4],
            unit_pages: head[5],
            dead: xids(dead),
            proven: xids(proven),
            adopted: adopted.chunks_exact(6).map(block).collect(),
        })
    }
}

/// The log under writing.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    /// Its blocks, with the number of the first page in each.
    blocks: Vec<(BlockIndex, u64)>,
    /// Next page of the last block, if it takes one.
    open: Option<(BlockIndex, u32)>,
    /// Number of the next page.
    next: u64,
    start: u64,
    /// When its last page is complete.
    end_ns: u64,
}

impl Log {
    pub(super) fn begin_epoch(&mut self, epoch: u64) {
        *self = Self { next: epoch << EPOCH_SHIFT, start: epoch << EPOCH_SHIFT, ..Self::default() };
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = BlockIndex> + '_ {
        self.blocks.iter().map(|(block, _)| *block)
    }

    pub(super) fn block_count(&self) -> u32 {
        self.blocks.len() as u32
    }
}

pub(super) const fn number_of(flags: Flags) -> u8 {
    match flags {
        Flags::Cfc => 0,
        Flags::Afc => 1,
    }
}

impl<D: Nand> RecordStore<D> {
    /// Appends a batch of records; its number. It is durable when all programs are complete.
    ///
    /// # Errors
    ///
    /// `Full` when no block is left for the batch.
    pub fn append(&mut self, payload: &[u8]) -> Result<u64, ShadowError> {
        self.check()?;
        self.make_room_for_log()?;
        self.append_batch(Kind::Records, payload, self.log.start)
    }

    /// Waits until the last batch is durable.
    pub fn await_log(&mut self) {
        self.flash.wait(self.log.end_ns);
    }

    /// Waits until everything that was programmed is complete.
    pub(super) fn await_programs(&mut self) {
        self.flash.wait(self.flash.programs_end_ns);
    }

    /// Number of the next batch.
    #[must_use]
    pub const fn next_batch(&self) -> u64 {
        self.log.next
    }

    /// Blocks of the log.
    #[must_use]
    pub fn log_blocks(&self) -> u32 {
        self.log.block_count()
    }

    pub(super) fn append_batch(
        &mut self,
        kind: Kind,
        payload: &[u8],
        start: u64,
    ) -> Result<u64, ShadowError> {
        let size = self.flash.sizes.geometry.page_size as usize;
        let chunks: Vec<&[u8]> = match payload.is_empty() {
            true => vec![payload],
            false => payload.chunks(size - HEADER_SIZE).collect(),
        };
        let (first, count) = (self.log.next, chunks.len() as u64);
        for (index, chunk) in (0..).zip(chunks) {
            let payload = chunk.to_vec();
            let page = LogPage { number: first + index, kind, index, count, start, payload };
            self.program_log(page.number, &page.encode(size))?;
        }
        Ok(first)
    }

    fn program_log(&mut self, number: u64, bytes: &[u8]) -> Result<(), ShadowError> {
        for _ in 0..ATTEMPTS {
            let at = self.log_place(number)?;
            let (kind, page) = (PageKind::Log, LogicalPage(NOWHERE));
            let note = Note { kind, part: 0, parts: 1, page, version: Version(number) };
            self.log.next = number + 1;
            match self.flash.program_page(at, &note, &[], bytes) {
                Ok(end_ns) => {
                    self.log.end_ns = self.log.end_ns.max(end_ns);
                    return Ok(());
                }
                Err(NandError::ProgramFailed { .. }) => {
                    self.failing_log(at);
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
        Err(ShadowError::Full)
    }

    /// Place of the log's next page.
    fn log_place(&mut self, number: u64) -> Result<u32, ShadowError> {
        let pages = self.flash.sizes.geometry.pages_per_block;
        let (block, page) = match self.log.open {
            Some(open) => open,
            None => {
                let block = self.block_for_log()?;
                self.log.blocks.push((block, number));
                (block, 0)
            }
        };
        self.log.open = (page + 1 < pages).then_some((block, page + 1));
        Ok(self.flash.sizes.first_of(block) + page)
    }

    /// A program failed: the block keeps its pages until the log's start passes it.
    fn failing_log(&mut self, at: u32) {
        self.log.open = None;
        self.failing.push(self.flash.sizes.block_of(at));
    }

    /// Records the store's knowledge, and that the log begins at `start` or, at the latest, here;
    /// earlier pages may go (L2). Gives the number of the batch.
    ///
    /// # Errors
    ///
    /// As [`RecordStore::append`].
    pub fn checkpoint(&mut self, start: u64) -> Result<u64, ShadowError> {
        self.check()?;
        self.make_room_for_log()?;
        let kept = self.table.first_record().unwrap_or(u64::MAX);
        let kept = if self.flash.bugs.has(RecordBug::RecordDropped) { u64::MAX } else { kept };
        let start = start.min(kept).min(self.log.next).max(self.log.start);
        let number = self.say(start)?;
        self.drop_log_before(start)?;
        Ok(number)
    }

    /// The first verdict of an epoch: nothing before it counts.
    pub(super) fn give_verdict(&mut self) -> Result<(), ShadowError> {
        self.say(self.log.next).map(drop)
    }

    /// Records a standing in the log that no flag could record (R6).
    pub(super) fn testify(&mut self, xid: GroupId, standing: Standing) -> Result<(), ShadowError> {
        if self.flash.bugs.has(RecordBug::FailureUnsaid) {
            return Ok(());
        }
        self.counts.testified += 1;
        self.testified.insert(xid, standing);
        self.say(self.log.start).map(drop)
    }

    fn say(&mut self, start: u64) -> Result<u64, ShadowError> {
        self.await_programs();
        let verdict = self.verdict().encode();
        let number = self.append_batch(Kind::Verdict, &verdict, start)?;
        self.await_programs();
        self.log.start = start;
        Ok(number)
    }

    fn verdict(&self) -> Verdict {
        let told = |standing: Standing| {
            self.testified.iter().filter(move |(_, told)| **told == standing).map(|(xid, _)| *xid)
        };
        let earlier = self.table.aborted().filter(|xid| epoch_of(xid.0) < self.epoch);
        let names = !self.flash.bugs.has(RecordBug::DeadNotNamed);
        Verdict {
            page_count: self.page_count,
            flags: number_of(self.options.flags),
            unit_pages: self.options.unit_pages as u8,
            dead: earlier.filter(|_| names).chain(told(Standing::Aborted)).collect(),
            proven: told(Standing::Committed).collect(),
            adopted: self.adopted.clone(),
        }
    }

    fn drop_log_before(&mut self, start: u64) -> Result<(), ShadowError> {
        while let [(block, _), (_, next), ..] = self.log.blocks[..]
            && next <= start
        {
            self.log.blocks.remove(0);
            self.blocks.set_state(block, State::Closed);
            let issued_ns = self.flash.now();
            self.erase(block)?;
            self.flash.device.resume_at(issued_ns);
        }
        Ok(())
    }
}

/// Contents of the pages of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) epoch: u64,
    pub(super) verdict: Verdict,
    pub(super) batches: Vec<Batch>,
}

/// The log out of the pages found (L1, L3); none when there is no verdict.
pub(super) fn read(pages: &[LogPage]) -> Option<Said> {
    let by_number: BTreeMap<u64, &LogPage> = pages.iter().map(|page| (page.number, page)).collect();
    let (first, verdict) = by_number.values().rev().find_map(|page| {
        let is_first = page.kind == Kind::Verdict && page.index == 0;
        let payload = is_first.then(|| batch_at(&by_number, page.number)).flatten()?;
        let has_gap = (page.start..page.number).any(|number| !by_number.contains_key(&number));
        (!has_gap).then_some(())?;
        Some((*page, Verdict::decode(&payload)?))
    })?;
    let mut batches = Vec::new();
    let mut number = first.start;
    while let Some(payload) = batch_at(&by_number, number) {
        let page = by_number.get(&number)?;
        if page.kind == Kind::Records {
            batches.push(Batch { number, payload });
        }
        number += page.count;
    }
    Some(Said { epoch: epoch_of(first.number), verdict, batches })
}

/// The bytes of the batch that begins with page `number`, if the whole batch is there.
fn batch_at(pages: &BTreeMap<u64, &LogPage>, number: u64) -> Option<Vec<u8>> {
    let first = pages.get(&number)?;
    (first.index == 0).then_some(())?;
    let mut payload = Vec::new();
    for index in 0..first.count {
        let page = pages.get(&(number + index))?;
        (page.index == index && page.count == first.count && page.kind == first.kind)
            .then_some(())?;
        payload.extend_from_slice(&page.payload);
    }
    Some(payload)
}
