//! Log records.
//!
//! ```text
//! frame    size of the rest (varint) | counter (varint) | kind (1) | body
//! list     count (varint) | size (varint, absent when count is 0) | elements
//! last     count (varint) | elements to the end of the frame
//!
//! 2 Install     group | tree | level (1) | deletes: list | trims: list | dropped: list | puts: last
//! 4 Claimed     group
//! 11 Claimed    group | lowest version | pages: last
//! 7 Open        epoch
//! 8 Commit      changes to the end, with their trees
//! 12 Commit     group | runs: list | dropped: list | the rest as 8
//! 10 Copy       cycle | tree | newest LSN | changes to the end, each with its distance below
//! ```
//!
//! Changes are packed as in the delta module, opaque here. Most commits are small, and have nothing
//! else.
//!
//! The LSN of a record is the epoch of the fragment in which it starts, and its counter.

use flagstone_space::{GroupId, LogicalPage, Lsn, Version};

use super::codec::{Cursor, Item, Items, RecordFault, put_bytes, put_varint};
use super::{COUNTER_BITS, COUNTER_MASK, EPOCH_MAX, lsn};

/// A child of an inner node and the key that it starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Separator<'a> {
    /// First key of the child's range.
    pub key: &'a [u8],
    /// The child.
    pub child: LogicalPage,
}

/// Bytes with a meaning only for their writer: a key, a descriptor, a spilled run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blob<'a>(pub &'a [u8]);

/// A structure change, idempotent by (tree, level, key).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Install<'a> {
    /// Group of the images that become valid; `GroupId::NONE` when there are none.
    pub group: GroupId,
    /// Tree that changes.
    pub tree: u32,
    /// Level of the node that receives the separators; leaves are level 0.
    pub level: u8,
    /// Separators to put.
    pub puts: Items<'a, Separator<'a>>,
    /// Keys whose separators are removed.
    pub deletes: Items<'a, Blob<'a>>,
    /// Pages of nodes that were merged into their neighbours.
    pub trims: Items<'a, LogicalPage>,
    /// Descriptors of large values without references.
    pub dropped: Items<'a, Blob<'a>>,
}

/// Pages of a claim with consecutive numbers and consecutive versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimedSpan {
    /// First page.
    pub page: LogicalPage,
    /// Distance of the first page's version from the lowest version of the claim.
    pub above: u64,
    /// Number of pages.
    pub count: u32,
}

/// One record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// A transaction is committed.
    Commit {
        /// Group of pages that become valid with the commit; `GroupId::NONE` when there is none.
        group: GroupId,
        /// Changes of the transaction, packed; the number of each change is its tree.
        changes: &'a [u8],
        /// Spilled changes of the transaction.
        runs: Items<'a, Blob<'a>>,
        /// Descriptors of large values that the transaction stored and no longer needs.
        dropped: Items<'a, Blob<'a>>,
    },
    /// The structure of a tree changes.
    Install(Install<'a>),
    /// Live deltas of older commits, so that the head of the log may pass these commits.
    Copy {
        /// Number of the checkpoint that copies.
        cycle: u32,
        /// Tree of the deltas.
        tree: u32,
        /// Upper bound of the deltas' LSNs.
        newest: Lsn,
        /// The deltas, packed; the number of each delta is the distance of its commit below
        /// `newest`.
        changes: &'a [u8],
    },
    /// A group of claimed leaves was committed by a flag before this record, or is by the next
    /// record. The marker only keeps changes before and after it apart.
    Claimed {
        /// The group.
        group: GroupId,
        /// Lowest version of the group's pages.
        lowest: Version,
        /// Pages of the group, if the next record commits it: damage may take a page that nothing
        /// else names.
        spans: Items<'a, ClaimedSpan>,
    },
    /// A restart is complete: the first record of its epoch.
    Open {
        /// The epoch.
        epoch: u32,
    },
}

const KIND_INSTALL: u8 = 2;
const KIND_CLAIMED: u8 = 4;
const KIND_OPEN: u8 = 7;
const KIND_COMMIT: u8 = 8;
const KIND_COPY: u8 = 10;
const KIND_CLAIMED_PAGES: u8 = 11;
const KIND_COMMIT_GROUP: u8 = 12;

impl<'a> Record<'a> {
    /// Appends kind and body.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Commit { group, changes, runs, dropped } => {
                let has_lists = !(runs.is_empty() && dropped.is_empty());
                if *group == GroupId::NONE && !has_lists {
                    out.push(KIND_COMMIT);
                } else {
                    out.push(KIND_COMMIT_GROUP);
                    put_varint(out, group.0);
                    runs.put(out);
                    dropped.put(out);
                }
                out.extend_from_slice(changes);
            }
            Self::Install(install) => {
                out.push(KIND_INSTALL);
                install.encode(out);
            }
            Self::Copy { cycle, tree, newest, changes } => {
                out.push(KIND_COPY);
                put_varint(out, u64::from(*cycle));
                put_varint(out, u64::from(*tree));
                put_lsn(out, *newest);
                out.extend_from_slice(changes);
            }
            Self::Claimed { group, spans, .. } if spans.is_empty() => {
                out.push(KIND_CLAIMED);
                put_varint(out, group.0);
            }
            Self::Claimed { group, lowest, spans } => {
                out.push(KIND_CLAIMED_PAGES);
                put_varint(out, group.0);
                put_varint(out, lowest.0);
                spans.put_last(out);
            }
            Self::Open { epoch } => {
                out.push(KIND_OPEN);
                put_varint(out, u64::from(*epoch));
            }
        }
    }

    /// Reads kind and body, which fill `bytes`.
    ///
    /// Lists are not walked here: their elements are checked when the list is walked.
    ///
    /// # Errors
    ///
    /// Says which check fired.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, RecordFault> {
        let mut input = Cursor::new(bytes);
        let kind = input.byte()?;
        let record = Self::decode_body(kind, &mut input)?;
        if input.is_empty() { Ok(record) } else { Err(RecordFault::TrailingBytes) }
    }

    fn decode_body(kind: u8, input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        Ok(match kind {
            KIND_COMMIT => Self::Commit {
                group: GroupId::NONE,
                runs: Items::default(),
                dropped: Items::default(),
                changes: input.take_rest(),
            },
            KIND_COMMIT_GROUP => Self::Commit {
                group: GroupId(input.varint()?),
                runs: Items::take(input)?,
                dropped: Items::take(input)?,
                changes: input.take_rest(),
            },
            KIND_INSTALL => Self::Install(Install::decode(input)?),
            KIND_COPY => {
                let (cycle, tree) = (input.varint32()?, input.varint32()?);
                let newest = take_lsn(input)?;
                Self::Copy { cycle, tree, newest, changes: input.take_rest() }
            }
            KIND_CLAIMED => Self::Claimed {
                group: GroupId(input.varint()?),
                lowest: Version(0),
                spans: Items::default(),
            },
            KIND_CLAIMED_PAGES => Self::Claimed {
                group: GroupId(input.varint()?),
                lowest: Version(input.varint()?),
                spans: Items::take_last(input)?,
            },
            KIND_OPEN => Self::Open { epoch: input.varint32()? },
            unknown => return Err(RecordFault::UnknownKind(unknown)),
        })
    }
}

impl<'a> Install<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.group.0);
        put_varint(out, u64::from(self.tree));
        out.push(self.level);
        self.deletes.put(out);
        self.trims.put(out);
        self.dropped.put(out);
        self.puts.put_last(out);
    }

    fn decode(input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        let (group, tree, level) = (GroupId(input.varint()?), input.varint32()?, input.byte()?);
        let (deletes, trims) = (Items::take(input)?, Items::take(input)?);
        let dropped = Items::take(input)?;
        Ok(Self { group, tree, level, deletes, trims, dropped, puts: Items::take_last(input)? })
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

impl<'a> Item<'a> for Blob<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.0);
    }

    fn decode(input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        input.bytes().map(Self)
    }
}

impl Item<'_> for ClaimedSpan {
    fn encode(&self, out: &mut Vec<u8>) {
        self.page.encode(out);
        put_varint(out, self.above);
        put_varint(out, u64::from(self.count));
    }

    fn decode(input: &mut Cursor<'_>) -> Result<Self, RecordFault> {
        let (page, above) = (LogicalPage::decode(input)?, input.varint()?);
        Ok(Self { page, above, count: input.varint32()? })
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

/// Epoch and counter apart: four bytes for most LSNs, instead of seven for the whole number.
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
