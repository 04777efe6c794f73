//! Log records.
//!
//! ```text
//! frame    size of the rest (varint) | counter (varint) | kind (1) | body
//! list     count (varint) | size (varint, absent when count is 0) | elements
//! last     count (varint) | elements to the end of the frame
//!
//! 1 Commit      xid | group | runs: list | deltas: last
//! 2 Install     group | tree | level (1) | root | deletes: list | trims: list | puts: last
//! 3 Copy        cycle | tree | deltas: last
//! 4 Checkpoint  cycle | page | sequence | epoch | predecessor | cutoff | xids | groups | open: last
//! 5 Reserve     kind (1) | upto
//! 6 Trim        pages: last
//! 7 Open        epoch
//! ```
//!
//! The LSN of a record is the epoch of the fragment in which it starts, and its counter.

use flagstone_space::{GroupId, LogicalPage, Lsn};

use super::codec::{Cursor, Item, Items, RecordFault, put_bytes, put_varint};
use super::{COUNTER_BITS, COUNTER_MASK, ChainPoint, EPOCH_MAX, LogPosition, lsn};
use crate::lock::Xid;

/// A change of one key, as the delta module encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedDelta<'a> {
    /// Tree of the key.
    pub tree: u32,
    /// Key and operation, opaque here.
    pub delta: &'a [u8],
}

/// Pages that a spilled transaction wrote for a range of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRef<'a> {
    /// Tree of the keys.
    pub tree: u32,
    /// First key of the run.
    pub first_key: &'a [u8],
    /// The pages, in key order.
    pub pages: Items<'a, LogicalPage>,
}

/// A child of an inner node and the key that it starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Separator<'a> {
    /// First key of the child's range.
    pub key: &'a [u8],
    /// The child.
    pub child: LogicalPage,
}

/// A key of an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeKey<'a>(pub &'a [u8]);

/// A page given up, if it still belongs to the group that wrote it (rule D12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimPage {
    /// The page.
    pub page: LogicalPage,
    /// Group that wrote it.
    pub group: GroupId,
}

/// The root that a tree has after a structure change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// Root page.
    pub page: LogicalPage,
    /// Levels of the tree; a lone leaf has one.
    pub height: u8,
}

/// A delta copied to the tail of the log, with the LSN of its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedDelta<'a> {
    /// LSN of the commit that made it.
    pub lsn: Lsn,
    /// Key and operation, opaque here.
    pub delta: &'a [u8],
}

/// A group that is neither committed nor dead, with its pages (rule D4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenGroup<'a> {
    /// The group.
    pub group: GroupId,
    /// Pages written in it.
    pub pages: Items<'a, LogicalPage>,
}

/// A structure change, idempotent by (tree, level, key).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Install<'a> {
    /// Group of the images that become valid; `GroupId::NONE` when there are none.
    pub group: GroupId,
    /// Tree that changes.
    pub tree: u32,
    /// Level of the node that the separators go to; leaves are level 0.
    pub level: u8,
    /// Root after the change, when it is another one.
    pub root: Option<RootInfo>,
    /// Separators to put.
    pub puts: Items<'a, Separator<'a>>,
    /// Keys whose separators go.
    pub deletes: Items<'a, TreeKey<'a>>,
    /// Pages given up.
    pub trims: Items<'a, TrimPage>,
}

/// Where restart begins and what it has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint<'a> {
    /// Number of the checkpoint.
    pub cycle: u32,
    /// Where reading starts.
    pub begin: LogPosition,
    /// Commits up to here are in pages or in `Copy` records of this cycle.
    pub cutoff: Lsn,
    /// First transaction number that is not reserved.
    pub xid_limit: u64,
    /// First group number that is not reserved.
    pub group_limit: u64,
    /// Groups still open.
    pub open_groups: Items<'a, OpenGroup<'a>>,
}

/// Numbers that are reserved in ranges (rule D3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveKind {
    /// Transaction numbers.
    Xid,
    /// Group numbers.
    Group,
}

/// One record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A transaction is committed.
    Commit {
        /// The transaction.
        xid: Xid,
        /// Group of pages that become valid with it; `GroupId::NONE` when there is none.
        group: GroupId,
        /// Its changes, in order.
        deltas: Items<'a, LoggedDelta<'a>>,
        /// Its spilled changes.
        runs: Items<'a, RunRef<'a>>,
    },
    /// The structure of a tree changes.
    Install(Install<'a>),
    /// Live deltas of older commits, so that the head of the log may pass those.
    Copy {
        /// Checkpoint that copies.
        cycle: u32,
        /// Tree of the deltas.
        tree: u32,
        /// The deltas.
        deltas: Items<'a, CopiedDelta<'a>>,
    },
    /// A checkpoint is complete.
    Checkpoint(Checkpoint<'a>),
    /// Numbers below `upto` may be used.
    Reserve {
        /// Which numbers.
        kind: ReserveKind,
        /// First number that may not be used.
        upto: u64,
    },
    /// Pages are given up.
    Trim {
        /// The pages.
        pages: Items<'a, TrimPage>,
    },
    /// A restart is complete; the first record of its epoch.
    Open {
        /// The epoch.
        epoch: u32,
    },
}

const KIND_COMMIT: u8 = 1;
const KIND_INSTALL: u8 = 2;
const KIND_COPY: u8 = 3;
const KIND_CHECKPOINT: u8 = 4;
const KIND_RESERVE: u8 = 5;
const KIND_TRIM: u8 = 6;
const KIND_OPEN: u8 = 7;

impl<'a> Record<'a> {
    /// Appends kind and body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Commit { xid, group, deltas, runs } => {
                out.push(KIND_COMMIT);
                put_varint(out, xid.0);
                put_varint(out, group.0);
                runs.put(out);
                deltas.put_last(out);
            }
            Self::Install(install) => {
                out.push(KIND_INSTALL);
                install.encode(out);
            }
            Self::Copy { cycle, tree, deltas } => {
                out.push(KIND_COPY);
                put_varint(out, u64::from(*cycle));
                put_varint(out, u64::from(*tree));
                deltas.put_last(out);
            }
            Self::Checkpoint(checkpoint) => {
                out.push(KIND_CHECKPOINT);
                checkpoint.encode(out);
            }
            Self::Reserve { kind, upto } => {
                out.push(KIND_RESERVE);
                out.push(kind.tag());
                put_varint(out, *upto);
            }
            Self::Trim { pages } => {
                out.push(KIND_TRIM);
                pages.put_last(out);
            }
            Self::Open { epoch } => {
                out.push(KIND_OPEN);
                put_varint(out, u64::from(*epoch));
            }
        }
    }

    /// Reads kind and body, which fill `bytes`.
    ///
    /// Lists are not walked: their elements are checked when they are.
    ///
    /// # Errors
    ///
    /// Says which check fired.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, RecordFault> {
        let mut input = Cursor::new(bytes);
        let kind = input.byte()?;
        let record = Self::decode_body(kind, &mut input)?;
        if input.is_empty() { Ok(record) } else { Err(RecordFault::TrailingBytes) }
    }

    fn decode_body(kind: u8, input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        Ok(match kind {
            KIND_COMMIT => {
                let (xid, group) = (Xid(input.varint()?), GroupId(input.varint()?));
                let runs = Items::take(input)?;
                Self::Commit { xid, group, runs, deltas: Items::take_last(input)? }
            }
            KIND_INSTALL => Self::Install(Install::decode(input)?),
            KIND_COPY => {
                let (cycle, tree) = (input.varint32()?, input.varint32()?);
                Self::Copy { cycle, tree, deltas: Items::take_last(input)? }
            }
            KIND_CHECKPOINT => Self::Checkpoint(Checkpoint::decode(input)?),
            KIND_RESERVE => {
                Self::Reserve { kind: ReserveKind::from_tag(input.byte()?)?, upto: input.varint()? }
            }
            KIND_TRIM => Self::Trim { pages: Items::take_last(input)? },
            KIND_OPEN => Self::Open { epoch: input.varint32()? },
            unknown => return Err(RecordFault::UnknownKind(unknown)),
        })
    }
}

impl ReserveKind {
    fn tag(self) -> u8 {
        match self {
            Self::Xid => 0,
            Self::Group => 1,
        }
    }

    fn from_tag(tag: u8) -> Result<Self, RecordFault> {
        match tag {
            0 => Ok(Self::Xid),
            1 => Ok(Self::Group),
            unknown => Err(RecordFault::UnknownTag(unknown)),
        }
    }
}

impl<'a> Install<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.group.0);
        put_varint(out, u64::from(self.tree));
        out.push(self.level);
        out.push(u8::from(self.root.is_some()));
        if let Some(root) = self.root {
            root.page.encode(out);
            out.push(root.height);
        }
        self.deletes.put(out);
        self.trims.put(out);
        self.puts.put_last(out);
    }

    fn decode(input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        let (group, tree, level) = (GroupId(input.varint()?), input.varint32()?, input.byte()?);
        let root = match input.byte()? {
            0 => None,
            1 => Some(RootInfo { page: LogicalPage::decode(input)?, height: input.byte()? }),
            unknown => return Err(RecordFault::UnknownTag(unknown)),
        };
        let (deletes, trims) = (Items::take(input)?, Items::take(input)?);
        Ok(Self { group, tree, level, root, deletes, trims, puts: Items::take_last(input)? })
    }
}

impl<'a> Checkpoint<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.cycle));
        put_varint(out, self.begin.page);
        put_varint(out, self.begin.chain.next_sequence);
        put_varint(out, u64::from(self.begin.chain.epoch));
        put_varint(out, u64::from(self.begin.chain.predecessor));
        put_lsn(out, self.cutoff);
        put_varint(out, self.xid_limit);
        put_varint(out, self.group_limit);
        self.open_groups.put_last(out);
    }

    fn decode(input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        let (cycle, page) = (input.varint32()?, input.varint()?);
        let (next_sequence, epoch) = (input.varint()?, input.varint32()?);
        let chain = ChainPoint { next_sequence, epoch, predecessor: input.varint32()? };
        Ok(Self {
            cycle,
            begin: LogPosition { page, chain },
            cutoff: take_lsn(input)?,
            xid_limit: input.varint()?,
            group_limit: input.varint()?,
            open_groups: Items::take_last(input)?,
        })
    }
}

impl<'a> Item<'a> for LoggedDelta<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.tree));
        put_bytes(out, self.delta);
    }

    fn decode(input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        Ok(Self { tree: input.varint32()?, delta: input.bytes()? })
    }
}

impl<'a> Item<'a> for RunRef<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.tree));
        put_bytes(out, self.first_key);
        self.pages.put(out);
    }

    fn decode(input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        let (tree, first_key) = (input.varint32()?, input.bytes()?);
        Ok(Self { tree, first_key, pages: Items::take(input)? })
    }
}

impl<'a> Item<'a> for Separator<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.key);
        self.child.encode(out);
    }

    fn decode(input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        Ok(Self { key: input.bytes()?, child: LogicalPage::decode(input)? })
    }
}

impl<'a> Item<'a> for TreeKey<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.0);
    }

    fn decode(input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        input.bytes().map(Self)
    }
}

impl Item<'_> for TrimPage {
    fn encode(&self, out: &mut Vec<u8>) {
        self.page.encode(out);
        put_varint(out, self.group.0);
    }

    fn decode(input: &mut Cursor<'_>) -> Result<Self, RecordFault> {
        Ok(Self { page: LogicalPage::decode(input)?, group: GroupId(input.varint()?) })
    }
}

impl<'a> Item<'a> for CopiedDelta<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_lsn(out, self.lsn);
        put_bytes(out, self.delta);
    }

    fn decode(input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        Ok(Self { lsn: take_lsn(input)?, delta: input.bytes()? })
    }
}

impl<'a> Item<'a> for OpenGroup<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.group.0);
        self.pages.put(out);
    }

    fn decode(input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        Ok(Self { group: GroupId(input.varint()?), pages: Items::take(input)? })
    }
}

impl Item<'_> for LogicalPage {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.0));
    }

    fn decode(input: &mut Cursor<'_>) -> Result<Self, RecordFault> {
        input.varint32().map(Self)
    }
}

/// Epoch and counter apart: four bytes for most, where the whole number takes seven.
fn put_lsn(out: &mut Vec<u8>, lsn: Lsn) {
    put_varint(out, lsn.0 >> COUNTER_BITS);
    put_varint(out, lsn.0 & COUNTER_MASK);
}

fn take_lsn(input: &mut Cursor<'_>) -> Result<Lsn, RecordFault> {
    let epoch = input.varint32()?;
    let counter = input.varint()?;
    let in_range = counter <= COUNTER_MASK && epoch <= EPOCH_MAX;
    if in_range { Ok(lsn(epoch, counter)) } else { Err(RecordFault::NumberRange) }
}
