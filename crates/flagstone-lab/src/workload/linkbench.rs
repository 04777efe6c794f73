//! LinkBench: a social graph of nodes and typed links, ten operations, 69 % of them reads
//! (Armstrong et al., SIGMOD 2013).
//!
//! Owns the workload as described there, and with the published program's deviations. Links with
//! their covering index, counts and nodes; all change in the transaction that changes the link.
//!
//! - **N1** Loaded rows follow from the seed and the id alone, and a client's requests from the
//!   seed and the client: neither depends on the contents of the database. Times are logical.
//! - **N2** A link's time names the input that wrote it last, and so does a node's: a lost commit is
//!   seen in the row that it wrote.
//! - **N3** The count of an id and type is the number of its visible links; the index holds each
//!   link once.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | linktable | type, id1, id2 | visibility, version, time, data up to 254 bytes |
//! | id1_type | id1, type, visibility, time, id2 | version, data |
//! | counttable | id, type | count, time, version |
//! | nodetable | id | type, version, time, size, data up to 640 bytes |
//! | nodetext | id, piece | the data that follow, 640 bytes a piece |

mod access;
mod audit;
mod degree;
mod input;
mod java;
mod load;
mod payload;
pub mod rows;
mod shuffle;
mod terminal;
#[cfg(test)]
mod tests;
mod transaction;

use std::fmt;
use std::sync::{Arc, OnceLock};

use flagstone_engine::{EngineError, Table};
use serde::{Deserialize, Serialize};

use super::{Acknowledged, GivingUp, Put, Workload};
use crate::bench::BenchError;
use crate::sizing::{Content, Estimate};
use crate::store::Store;

pub use access::Access;
pub use audit::{Audit, Fault};
pub use degree::Degrees;
pub use input::{Class, Inputs, Stream};
use load::Volume;
pub use terminal::Terminal;

/// Programs of an operation, as a first guess: three in ten write, most of them three rows.
const PROGRAMS_PER_TXN: f64 = 1.0;
/// Groups of the shuffle, and so the fewest nodes there can be.
pub const NODES_MIN: u32 = shuffle::GROUPS as u32;

/// Whose habits to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// As described.
    #[default]
    Spec,
    /// The published program: the links of an id that is left over are handed to both types, so that
    /// there are 4.37 an id instead of 4.10; link writes are drawn with the blend and skew of reads; a
    /// multiget asks for one id more, 3.62 instead of 2.62.
    Linkbench,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 2] = [Self::Spec, Self::Linkbench];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Linkbench => "linkbench",
        }
    }

    /// The dialect called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Bounds that small databases cannot keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Links of the id that has most.
    pub degree_max: u64,
    /// Links that a list returns.
    pub list_max: usize,
}

impl Bounds {
    /// Of the published configuration.
    pub const SPEC: Self = Self { degree_max: degree::DEGREE_MAX, list_max: 10_000 };
    /// For tests and quick runs, where a full node would be most of the graph.
    pub const SMALL: Self = Self { degree_max: 60, list_max: 5 };
}

/// Parameters of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Whose habits to follow.
    pub dialect: Dialect,
    /// Nodes to begin with, whose ids count from 1; at least [`NODES_MIN`].
    pub nodes: u32,
    /// Clients, who take turns in naming new nodes.
    pub clients: u32,
    /// Seed of every stream.
    pub seed: u64,
    /// How far degrees and lists go.
    pub bounds: Bounds,
    /// Whether clients give up at will.
    pub giving_up: GivingUp,
}

impl Setting {
    /// The published configuration but for its size.
    #[must_use]
    pub const fn new(dialect: Dialect, nodes: u32, clients: u32, seed: u64) -> Self {
        let (bounds, giving_up) = (Bounds::SPEC, GivingUp::Never);
        Self { dialect, nodes, clients, seed, bounds, giving_up }
    }
}

/// Names of the tables, in the order in which [`Audit`] wants them.
pub const TABLE_NAMES: [&str; 5] = ["linktable", "id1_type", "counttable", "nodetable", "nodetext"];

/// The tables and the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Links.
    pub link: Table,
    /// Links by id, type and time.
    pub index: Table,
    /// How many visible links an id has of a type.
    pub count: Table,
    /// Nodes.
    pub node: Table,
    /// The part of a node's data that does not fit its row.
    pub text: Table,
}

impl Tables {
    fn handles(&self) -> [Table; 5] {
        [self.link, self.index, self.count, self.node, self.text]
    }
}

/// A LinkBench workload.
#[derive(Debug)]
pub struct Linkbench {
    graph: Arc<Graph>,
    /// Rows and bytes of a fresh database, counted when they are first asked for.
    volume: OnceLock<Volume>,
}

/// Data that loader, clients and checks share: the setting, and values computed from the setting
/// once.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) setting: Setting,
    pub(crate) degrees: Degrees,
    pub(crate) access: Access,
    pub(crate) motifs: payload::Motifs,
}

impl Linkbench {
    /// The workload that `setting` describes.
    #[must_use]
    pub fn new(setting: Setting) -> Self {
        let Setting { dialect, nodes, seed, bounds, .. } = setting;
        let graph = Graph {
            setting,
            degrees: Degrees::new(dialect, u64::from(nodes), bounds.degree_max),
            access: Access::new(dialect, u64::from(nodes)),
            motifs: payload::Motifs::new(seed),
        };
        Self { graph: Arc::new(graph), volume: OnceLock::new() }
    }

    /// Parameters of the workload.
    #[must_use]
    pub fn setting(&self) -> Setting {
        self.graph.setting
    }

    /// Looks at all rows in one state of the database.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn audit<S: Store>(
        &self,
        store: &S,
        acknowledged: &Acknowledged,
    ) -> Result<Audit, EngineError> {
        let mut audit = Audit::new(self, acknowledged);
        store.visit(&TABLE_NAMES, &mut |table, key, value| audit.add(table, key, value))?;
        Ok(audit)
    }

    fn volume(&self) -> &Volume {
        self.volume.get_or_init(|| Volume::of(&self.graph))
    }
}

impl Workload for Linkbench {
    type Tables = Tables;
    type Terminal = Terminal;

    fn name(&self) -> String {
        format!("linkbench/{}", self.graph.setting.dialect)
    }

    fn identity(&self) -> String {
        let Setting { dialect, nodes, seed, bounds, .. } = self.graph.setting;
        format!("linkbench/{dialect}/{nodes}/{seed}/{bounds:?}")
    }

    fn classes(&self) -> &'static [&'static str] {
        &Class::NAMES
    }

    fn tables<E>(
        &self,
        mut open: impl FnMut(&'static str) -> Result<Table, E>,
    ) -> Result<Tables, E> {
        let [link, index, count, node, text] = TABLE_NAMES;
        Ok(Tables {
            link: open(link)?,
            index: open(index)?,
            count: open(count)?,
            node: open(node)?,
            text: open(text)?,
        })
    }

    fn load(&self, tables: Tables, put: Put<'_>) -> Result<(), EngineError> {
        let handles = tables.handles();
        load::load(&self.graph, &mut |place, key, value| put(handles[place], key, value))
    }

    fn row_count(&self) -> u64 {
        self.volume().row_count()
    }

    fn loaded_bytes(&self) -> u64 {
        self.volume().bytes()
    }

    fn contents(&self, txns: u64, _clients: u32) -> Vec<Content> {
        self.volume().after(txns)
    }

    fn first_estimate(&self, _clients: u32) -> Estimate {
        Estimate { programs_per_txn: PROGRAMS_PER_TXN, live_ratio: 1.0 }
    }

    fn terminal(&self, tables: Tables, number: u64) -> Terminal {
        Terminal::new(Arc::clone(&self.graph), tables, number)
    }

    fn verify_loaded<S: Store>(&self, store: &S) -> Result<(), BenchError> {
        self.verify(store, &Acknowledged::new())
    }

    fn verify<S: Store>(&self, store: &S, acknowledged: &Acknowledged) -> Result<(), BenchError> {
        Ok(self.audit(store, acknowledged)?.verify()?)
    }
}
