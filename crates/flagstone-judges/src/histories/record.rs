//! A history: transactions, views of the whole, and their reads.
//!
//! - **H1** Every write has a number of its own, its [`Version`], which the value carries. So a read value names its
//!   writer.
//! - **H2** Stamps are drawn from one counter of the process: a call whose stamp of return is smaller than another
//!   call's stamp of beginning was over before that call began.

use std::fmt;

/// Names a transaction of a history: session, thread, and number within the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TxnId(pub(crate) u64);

impl TxnId {
    pub(crate) const fn new(session: u64, thread: u64, sequence: u64) -> Self {
        Self(session << 34 | thread << 28 | sequence)
    }

    pub(crate) const fn session(self) -> u64 {
        self.0 >> 34
    }

    /// The version that the write `operation` of this transaction makes.
    pub(crate) const fn version(self, operation: u64) -> Version {
        Version(self.0 << 20 | operation)
    }
}

impl fmt::Display for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (thread, sequence) = (self.0 >> 28 & 63, self.0 & ((1 << 28) - 1));
        write!(f, "T{}.{thread}.{sequence}", self.session())
    }
}

/// Names a write (H1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Version(pub(crate) u64);

impl Version {
    /// The transaction that made the write.
    pub(crate) const fn writer(self) -> TxnId {
        TxnId(self.0 >> 20)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.writer(), self.0 & 0xF_FFFF)
    }
}

/// Tables of a history, by the meaning of their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Area {
    /// Lists that are appended to.
    Lists = 0,
    /// Values that are set, patched and deleted, mostly without being read.
    Registers = 1,
    /// Accounts: the sum of all is 0.
    Bank = 2,
    /// One row a thread: how many of its transactions counted.
    Counters = 3,
    /// Rows that an index finds by their group.
    Members = 4,
    /// Several values for a key; `Key::value` is one.
    Tags = 5,
    /// All tables that one thread makes, fills, renames and drops: one row a thread.
    Churn = 6,
}

impl Area {
    pub(crate) const ALL: [Self; 7] = [
        Self::Lists,
        Self::Registers,
        Self::Bank,
        Self::Counters,
        Self::Members,
        Self::Tags,
        Self::Churn,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lists => "lists",
            Self::Registers => "registers",
            Self::Bank => "bank",
            Self::Counters => "counters",
            Self::Members => "members",
            Self::Tags => "tags",
            Self::Churn => "churn",
        }
    }
}

/// A row of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) area: Area,
    pub(crate) row: u32,
    /// Which of the values of the row, in [`Area::Tags`]; 0 elsewhere.
    pub(crate) value: u64,
}

impl Key {
    pub(crate) const fn new(area: Area, row: u32) -> Self {
        Self { area, row, value: 0 }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.area.name(), self.row)?;
        if self.value != 0 { write!(f, "={}", Version(self.value)) } else { Ok(()) }
    }
}

/// A row as a reader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Look {
    /// No row.
    Absent,
    /// A value that carries this version.
    Version(Version),
    /// Content that carries no version, as a hash.
    Content(u64),
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("no row"),
            Self::Version(version) => write!(f, "{version}"),
            Self::Content(hash) => write!(f, "content {hash:016x}"),
        }
    }
}

/// The end of a list: its last elements, and how many came before them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) before: u64,
    pub(crate) elements: Vec<Version>,
}

impl List {
    /// Elements a list keeps.
    pub(crate) const KEPT: usize = 12;

    pub(crate) fn push(&mut self, element: Version) {
        self.elements.push(element);
        if self.elements.len() > Self::KEPT {
            self.elements.remove(0);
            self.before += 1;
        }
    }
}

/// One step of a transaction or of a view.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Op {
    /// Somebody else's row was read.
    Read(Key, Look),
    /// All of these rows of an area were read; others between the two had no row.
    Scan { first: Key, last: Key, rows: Vec<(Key, Look)> },
    /// A list was read: `Read` gives its version.
    List(Key, List),
    /// A row was written; its new look.
    Write(Key, Version, Look),
    /// A write that was taken back, or written over in the same transaction: nobody else ever sees it.
    Hidden(Version),
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The commit returned: its place in the order of commits, where it was told.
    Committed { lsn: Option<u64> },
    /// It changed nothing.
    Aborted,
    /// Unknown: the process or the device ended first.
    Unknown,
}

/// A transaction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Txn {
    pub(crate) id: TxnId,
    /// Stamp of its beginning (H2).
    pub(crate) begun: u64,
    /// Stamp at which its commit or abort returned, if it returned.
    pub(crate) ended: Option<u64>,
    pub(crate) outcome: Outcome,
    /// Whether its commit promised that the transaction, and all it read, is durable when the commit returns.
    pub(crate) is_durable: bool,
    pub(crate) ops: Vec<Op>,
}

impl Txn {
    /// Whether a commit that promises durability waits: a transaction that saw and changed nothing waits for nobody.
    pub(crate) fn waits(&self) -> bool {
        self.is_durable
            && self
                .ops
                .iter()
                .any(|op| matches!(op, Op::Read(..) | Op::Scan { .. } | Op::Write(..)))
    }
}

/// Kind of view: a look at the database as of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Viewer {
    /// A snapshot.
    Snapshot,
    /// A snapshot with a name.
    Kept,
    /// A backup, restored somewhere else.
    Backup,
    /// A database opened after a cut or a kill.
    Cut,
    /// A database opened after it was closed.
    Closed,
}

impl Viewer {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Kept => "named snapshot",
            Self::Backup => "backup",
            Self::Cut => "restart after a cut",
            Self::Closed => "restart after a close",
        }
    }
}

/// One look at the whole, or at a part of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct View {
    pub(crate) viewer: Viewer,
    /// Stamp before its moment was chosen (H2).
    pub(crate) begun: u64,
    /// Stamp after its moment was chosen.
    pub(crate) ended: u64,
    pub(crate) ops: Vec<Op>,
}

/// A call that made all commits before it durable: a flush, a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flush {
    pub(crate) begun: u64,
    pub(crate) ended: u64,
}

/// A fault that is evident by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) form: String,
    pub(crate) text: String,
}

impl Finding {
    pub(crate) fn new(form: &str, text: impl Into<String>) -> Self {
        Self { form: form.to_owned(), text: text.into() }
    }
}

/// Notes of one thread, or of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Notes {
    pub(crate) txns: Vec<Txn>,
    pub(crate) views: Vec<View>,
    pub(crate) flushes: Vec<Flush>,
    pub(crate) findings: Vec<Finding>,
    /// Named snapshots, with their contents.
    pub(crate) kept: Vec<(String, Vec<Op>)>,
}

impl Notes {
    pub(crate) fn append(&mut self, mut other: Self) {
        self.txns.append(&mut other.txns);
        self.views.append(&mut other.views);
        self.flushes.append(&mut other.flushes);
        self.findings.append(&mut other.findings);
        self.kept.append(&mut other.kept);
    }
}

/// Every row at the beginning of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Base {
    pub(crate) rows: hashbrown::HashMap<Key, Look>,
    pub(crate) lists: hashbrown::HashMap<Key, List>,
}

impl Base {
    /// The base from a look at everything.
    pub(crate) fn of(ops: &[Op]) -> Self {
        let mut base = Self::default();
        for op in ops {
            match op {
                Op::Read(key, look) if *look != Look::Absent => {
                    base.rows.insert(*key, *look);
                }
                Op::Scan { rows, .. } => base.rows.extend(rows.iter().copied()),
                Op::List(key, list) => {
                    base.lists.insert(*key, list.clone());
                }
                _ => {}
            }
        }
        base
    }
}
