//! Groups of pages in flight: written, synced, recorded in the log, current.
//!
//! ```text
//!  write job ──▶ Grouped ──▶ synced ──▶ InstallJob (its record is in the log) ──▶ current
//! ```
//!
//! Owns the jobs that write pages and their effect on the trees. The steps are layer 3's
//! (`merge/install.rs`).

use std::collections::VecDeque;

use flagstone_space::{Cause, GroupId, LogicalPage, Lsn, PageInfo};
use hashbrown::HashSet;

use crate::bugs::SeededBug;
use crate::delta::KeyRange;
use crate::engine::store::Store;
use crate::engine::store::append::Append;
use crate::engine::store::catalog::Table;
use crate::lock::Xid;

/// One page to be programmed.
#[derive(Debug)]
pub(crate) struct PageWrite {
    pub(crate) page: LogicalPage,
    pub(crate) image: Vec<u8>,
    pub(crate) lsn: Lsn,
    /// The append by which the version on flash becomes the image, where the page takes one.
    pub(crate) append: Option<Append>,
    /// Metadata of the page on flash, once it is written.
    pub(crate) version: Option<PageInfo>,
}

impl PageWrite {
    pub(crate) const fn new(page: LogicalPage, image: Vec<u8>, lsn: Lsn) -> Self {
        Self { page, image, lsn, append: None, version: None }
    }
}

/// Pages to be programmed, all in one group.
#[derive(Debug)]
pub(crate) struct WriteJob {
    /// `GroupId::NONE`: one page, current as soon as it is written.
    pub(crate) group: GroupId,
    pub(crate) pages: Vec<PageWrite>,
    pub(crate) cause: Cause,
    /// The old version of this page must stay readable: pin it first.
    pub(crate) pin: Option<LogicalPage>,
    /// Whether the group's pages may become durable later, with those of other groups.
    pub(crate) may_wait: bool,
    /// Whether the pages are durable as soon as they are written.
    pub(crate) is_durable: bool,
    pub(in crate::engine) outcome: Outcome,
}

impl WriteJob {
    /// A job whose pages are current as soon as they are written, or whose group becomes durable at
    /// once.
    pub(in crate::engine) const fn new(
        group: GroupId,
        pages: Vec<PageWrite>,
        outcome: Outcome,
    ) -> Self {
        let (pin, may_wait, is_durable) = (None, false, false);
        Self { group, pages, cause: Cause::Data, pin, may_wait, is_durable, outcome }
    }

    /// For each leaf, the LSN of its old base and the LSN up to which this job merges; none for other
    /// jobs.
    pub(in crate::engine) fn waited(&self) -> Vec<(Lsn, Lsn)> {
        match &self.outcome {
            Outcome::Merged { upto, base_lsn, .. } => vec![(*base_lsn, *upto)],
            Outcome::Reshaped(reshape) => {
                reshape.old.iter().map(|old| (old.lsn, reshape.upto)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Key at which the rest of a leaf begins that merges in parts.
    pub(in crate::engine) fn end(&self) -> Option<&[u8]> {
        let Outcome::Reshaped(reshape) = &self.outcome else { return None };
        reshape.rest.as_ref().map(|rest| rest.low.as_slice())
    }

    /// Pages that had a version before.
    pub(in crate::engine) fn pages_again(&self) -> usize {
        match &self.outcome {
            Outcome::Reshaped(reshape) => self.pages.len().saturating_sub(reshape.taken.len()),
            _ => self.pages.len(),
        }
    }
}

/// Effect of a written job on the engine.
#[derive(Debug)]
pub(in crate::engine) enum Outcome {
    /// A leaf's base moved up.
    Merged {
        table: Table,
        low: Vec<u8>,
        high: Option<Vec<u8>>,
        upto: Lsn,
        grown: i64,
        base_lsn: Lsn,
    },
    /// Flash caught up with a frame.
    CaughtUp,
    /// An inner node's base moved up.
    InnerWritten { table: Table, level: u8, low: Vec<u8>, high: Option<Vec<u8>>, upto: Lsn },
    /// The tree changed its shape.
    Reshaped(Box<Reshape>),
}

/// An inner node that was written: level, fences, and the LSN to which its image is complete.
pub(in crate::engine) type InnerRange = (u8, Vec<u8>, Option<Vec<u8>>, Lsn);

/// A change of a tree's shape.
#[derive(Debug)]
pub(in crate::engine) struct Reshape {
    pub(in crate::engine) table: Table,
    /// The new leaves hold all committed changes up to here that the bases in `old` lack.
    pub(in crate::engine) upto: Lsn,
    /// Inner nodes written together with the leaves: their structure deltas are in their images.
    pub(in crate::engine) written: Vec<InnerRange>,
    /// Node that `puts` and `deletes` change, and its level.
    pub(in crate::engine) parent: Option<LogicalPage>,
    pub(in crate::engine) level: u8,
    pub(in crate::engine) puts: Vec<(Vec<u8>, LogicalPage)>,
    pub(in crate::engine) deletes: Vec<Vec<u8>>,
    /// Nodes that merged into their neighbours.
    pub(in crate::engine) trims: Vec<LogicalPage>,
    /// Page numbers taken for the reshape.
    pub(in crate::engine) taken: Vec<LogicalPage>,
    pub(in crate::engine) dropped: Vec<Vec<u8>>,
    pub(in crate::engine) old: Vec<OldBase>,
    pub(in crate::engine) rest: Option<OldBase>,
    pub(in crate::engine) grown: i64,
    /// Bytes of deltas that go when it is installed.
    pub(in crate::engine) frees: usize,
    /// The transaction that its record commits.
    pub(in crate::engine) claim: Option<Xid>,
}

impl Reshape {
    /// Whether other shared reshapes of the tree may go on beside it: it adds nodes below a node that stays, or
    /// leaves every node its place.
    pub(in crate::engine) fn is_shared(&self) -> bool {
        let stays = self.taken.is_empty() && self.written.is_empty();
        let is_apart = self.parent.is_some() || stays;
        let is_split = self.deletes.is_empty() && self.trims.is_empty() && self.rest.is_none();
        is_apart && is_split && self.claim.is_none()
    }

    /// Leaves that split by it; none where leaves join.
    pub(in crate::engine) fn leaves_split(&self) -> usize {
        if self.taken.len() >= self.old.len() { self.old.len() } else { 0 }
    }
}

/// A base that a reshape replaces.
#[derive(Debug)]
pub(in crate::engine) struct OldBase {
    pub(in crate::engine) page: LogicalPage,
    pub(in crate::engine) low: Vec<u8>,
    pub(in crate::engine) high: Option<Vec<u8>>,
    pub(in crate::engine) lsn: Lsn,
}

impl OldBase {
    pub(in crate::engine) fn range(&self) -> KeyRange<'_> {
        KeyRange { low: &self.low, high: self.high.as_deref() }
    }
}

/// A reshape whose pages are written and whose install record is in the log.
#[derive(Debug)]
pub(crate) struct InstallJob {
    /// LSN of the install record.
    pub(crate) lsn: Lsn,
    pub(crate) grouped: Grouped,
}

/// A reshape whose pages are written.
#[derive(Debug)]
pub(crate) struct Grouped {
    pub(crate) group: GroupId,
    pub(in crate::engine) pages: Vec<PageWrite>,
    pub(in crate::engine) reshape: Reshape,
}

impl Grouped {
    /// Pages of its group.
    pub(crate) fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Pages to be trimmed with the install.
    pub(crate) fn trims(&self) -> &[LogicalPage] {
        &self.reshape.trims
    }

    /// Whether the version of a page goes with the install.
    pub(crate) fn replaces(&self, page: LogicalPage) -> bool {
        self.pages.iter().any(|write| write.page == page) || self.reshape.trims.contains(&page)
    }

    /// Pages whose old versions snapshots need: to be pinned before the mapping moves.
    pub(crate) fn pins(&self) -> impl Iterator<Item = LogicalPage> + '_ {
        self.reshape.old.iter().map(|old| old.page)
    }
}

/// Merges of one tree under way that change its shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reshaping {
    #[default]
    None,
    /// So many merges that add nodes, each below another node or all below a node that has room for
    /// all, or that give up large values and leave the nodes their places.
    Splits(u32),
    /// A single merge that does more, or writes structure deltas that an inner node lacks.
    Alone,
}

impl Reshaping {
    pub(crate) fn is_none(self) -> bool {
        self == Self::None
    }

    /// One more merge began.
    pub(in crate::engine) fn begin(&mut self, is_shared: bool) {
        *self = match (*self, is_shared) {
            (Self::None, true) => Self::Splits(1),
            (Self::Splits(count), true) => Self::Splits(count + 1),
            _ => Self::Alone,
        };
    }

    /// A merge is installed, or given up.
    pub(in crate::engine) fn end(&mut self) {
        *self = match *self {
            Self::Splits(count) if count > 1 => Self::Splits(count - 1),
            _ => Self::None,
        };
    }
}

/// Images of leaves that split together take at most one part in this many of the memory, and other
/// groups that are not installed as much again.
pub(in crate::engine) const IMAGES_SHARE: usize = 16;

/// Groups of pages in flight, in the order of their writes.
#[derive(Debug, Default)]
pub(in crate::engine) struct Groups {
    /// Pages that a job writes or will install: no other job makes an image of them (E4).
    pub(in crate::engine) busy: HashSet<LogicalPage>,
    /// Pages are written, and not durable.
    pub(in crate::engine) written: VecDeque<Grouped>,
    /// The install record is in the log.
    pub(in crate::engine) recorded: VecDeque<InstallJob>,
}

impl Store {
    /// Groups that are not installed, where they wait for syncs; elsewhere an install follows at once.
    fn waiting_groups(&self) -> impl Iterator<Item = &Grouped> {
        self.open_groups().filter(|_| self.room.view.needs_sync)
    }

    /// Whether the images of groups that are not installed take all the memory that is meant for them.
    pub(in crate::engine) fn are_images_many(&self) -> bool {
        let pages: usize = self.waiting_groups().map(Grouped::page_count).sum();
        pages * self.payload_size > self.options.memory / IMAGES_SHARE
    }

    /// Memory of deltas, without the deltas that go when written groups are installed.
    pub(in crate::engine) fn deltas_staying(&self) -> usize {
        let leaving = self.waiting_groups().map(|job| job.reshape.frees).sum();
        (self.memory.deltas + self.memory.uncommitted).saturating_sub(leaving)
    }

    pub(in crate::engine) fn may_install(&self, install: &InstallJob) -> bool {
        install.lsn <= self.durable() || self.bugs.has(SeededBug::InstallBeforeDurable)
    }

    /// Reshapes whose pages are written and that are not installed, apart from a claim's.
    pub(in crate::engine) fn open_groups(&self) -> impl Iterator<Item = &Grouped> {
        self.groups.recorded.iter().map(|install| &install.grouped).chain(&self.groups.written)
    }
}
