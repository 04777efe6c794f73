//! Scripts: the steps of a workload, and the tables after each step.
//!
//! A script follows from its name and a seed alone, so that workload and checker exchange only numbers of steps.
//! Every transaction stores its number in a row of the table `counter`, beside its changes. So a database shows the
//! steps it has seen, and must hold exactly the rows that these steps make.

use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone::{Durability, FileSize, Options};

/// Table with the number of each chain's newest transaction.
pub(super) const COUNTER: &str = "counter";

/// A value that follows from few bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) seed: u64,
    pub(super) size: usize,
}

impl Bytes {
    pub(super) fn make(self) -> Vec<u8> {
        let mut bytes = vec![0; self.size];
        let mut state = self.seed | 1;
        for chunk in bytes.chunks_mut(8) {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            chunk.copy_from_slice(&(state ^ state >> 29).to_le_bytes()[..chunk.len()]);
        }
        bytes
    }
}

/// A change of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Put {
        table: String,
        key: Vec<u8>,
        value: Bytes,
    },
    Delete {
        table: String,
        key: Vec<u8>,
    },
    /// Changes a row that is there, and long enough.
    Patch {
        table: String,
        key: Vec<u8>,
        offset: usize,
        bytes: Bytes,
    },
}

/// One step of a chain.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Makes the database.
    Create,
    CreateTable(String),
    RenameTable(String, String),
    DropTable(String),
    /// A transaction: `undone` is changed first and rolled back to a savepoint.
    Commit {
        durability: Durability,
        changes: Vec<Change>,
        undone: Vec<Change>,
    },
    /// A transaction that is given up.
    Abort(Vec<Change>),
    /// A sorted load of so many rows into a table of its own, which is there.
    Load {
        table: String,
        rows: Vec<(Vec<u8>, Bytes)>,
    },
    Keep(String),
    Forget(String),
    Flush,
    Merge,
    /// Ends the session, by the closing or by dropping the database, and begins another.
    Reopen {
        closes: bool,
    },
    Compact,
    /// Of the durable state: a flush comes before it.
    Backup(String),
    /// Restores a backup into another database.
    Restore {
        backup: String,
        copy: String,
    },
}

impl Step {
    /// Whether all earlier steps of its chain are durable once this step returned.
    pub(super) fn is_durable(&self) -> bool {
        match self {
            Self::Commit { durability, .. } => *durability != Durability::Deferred,
            Self::Create
            | Self::CreateTable(_)
            | Self::RenameTable(..)
            | Self::DropTable(_)
            | Self::Load { .. }
            | Self::Keep(_)
            | Self::Flush
            | Self::Merge
            | Self::Compact => true,
            Self::Reopen { closes } => *closes,
            Self::Abort(_) | Self::Forget(_) | Self::Backup(_) | Self::Restore { .. } => false,
        }
    }
}

/// The steps of one workload.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) options: Options,
    pub(super) size: FileSize,
    /// Done by one thread, before the others begin.
    pub(super) first: Vec<Step>,
    /// Done by a thread each.
    pub(super) others: Vec<Vec<Step>>,
}

impl Script {
    /// Steps of a chain: the first one's, or another thread's.
    pub(super) fn chain(&self, chain: usize) -> &[Step] {
        match chain {
            0 => &self.first,
            other => &self.others[other - 1],
        }
    }

    pub(super) fn chain_count(&self) -> usize {
        1 + self.others.len()
    }
}

/// Rows of a table.
pub(super) type Rows = BTreeMap<Vec<u8>, Rc<[u8]>>;

/// All tables, as one chain makes them.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables(pub(super) BTreeMap<String, Rc<Rows>>);

impl Tables {
    fn rows(&mut self, table: &str) -> &mut Rows {
        Rc::make_mut(self.0.entry(table.to_owned()).or_default())
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Put { table, key, value } => {
                self.rows(table).insert(key.clone(), value.make().into());
            }
            Change::Delete { table, key } => {
                self.rows(table).remove(key);
            }
            Change::Patch { table, key, offset, bytes } => {
                let rows = self.rows(table);
                let Some(old) = rows.get(key) else { return };
                let mut value = old.to_vec();
                value[*offset..*offset + bytes.size].copy_from_slice(&bytes.make());
                rows.insert(key.clone(), value.into());
            }
        }
    }

    /// Applies step number `index` of chain `chain`.
    pub(super) fn apply(&mut self, chain: usize, index: usize, step: &Step) {
        match step {
            Step::CreateTable(name) => drop(self.0.entry(name.clone()).or_default()),
            Step::DropTable(name) => drop(self.0.remove(name)),
            Step::RenameTable(from, to) => {
                if let Some(rows) = self.0.remove(from) {
                    self.0.insert(to.clone(), rows);
                }
            }
            Step::Commit { changes, .. } => {
                changes.iter().for_each(|change| self.change(change));
                let number = (index as u64 + 1).to_le_bytes();
                self.rows(COUNTER).insert(counter_key(chain), Rc::from(number));
            }
            Step::Load { table, rows: loaded } => {
                let rows = self.rows(table);
                rows.extend(loaded.iter().map(|(key, value)| (key.clone(), value.make().into())));
            }
            _ => {}
        }
    }
}

/// Row of a chain in the table of counters.
pub(super) fn counter_key(chain: usize) -> Vec<u8> {
    format!("{chain}").into_bytes()
}
