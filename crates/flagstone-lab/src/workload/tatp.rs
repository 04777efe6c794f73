//! TATP (TM-1): subscribers of a mobile network, seven short transactions, 80 % of them reads.
//!
//! Owns the workload as published, and with the quirks of Shore-Kits and BenchBase. Four tables, and
//! the index on the subscribers' numbers as a table of its own.
//!
//! - **P1** A subscriber's first rows follow from the seed and the subscriber alone, and a client's
//!   requests from the seed and the client: neither depends on the contents of the database.
//! - **P2** A transaction that finds nothing, or must not insert, aborts: the published success rates
//!   are the commits of a class among its commits and aborts.
//! - **P3** Access data, facilities and numbers are never made or removed. So inputs alone tell which
//!   updates commit, and a lost commit is seen in the cell that it wrote.
//!
//! | table | key | value | bytes, Shore-Kits |
//! | --- | --- | --- | --- |
//! | subscriber | s_id | bits, hexes, byte2s, msc, vlr, number | 4 + 63, 4 + 96 |
//! | sub_nbr | 15 digits | s_id | 15 + 4 |
//! | access_info | s_id, type | data1 to data4 | 5 + 12, 5 + 44 |
//! | special_facility | s_id, type | active, error, data_a, data_b | 5 + 10, 5 + 44 |
//! | call_forwarding | s_id, type, start | end, number | 6 + 16, 6 + 42 |

mod audit;
mod input;
mod load;
pub mod rows;
mod terminal;
#[cfg(test)]
mod tests;

use std::fmt;

use flagstone_engine::{EngineError, Table};
use serde::{Deserialize, Serialize};

use super::{Acknowledged, GivingUp, Put, Workload};
use crate::bench::BenchError;
use crate::sizing::{Content, Estimate};
use crate::store::Store;

pub use audit::{Audit, Fault};
pub use input::{Class, Inputs, Stream};
pub use load::Subscriber;
pub use terminal::Terminal;

/// Programs of a transaction of the mix, as a first guess: one in five writes a few bytes.
const PROGRAMS_PER_TXN: f64 = 0.4;
/// Bytes of a leaf entry beside key and value.
const ENTRY_OVERHEAD: u32 = 4;

/// Whose habits to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// As published, subscribers drawn evenly.
    #[default]
    Spec,
    /// As published, subscribers drawn by the standard non-uniform rule.
    SpecNonUniform,
    /// Shore-Kits: rows padded to 100 and 50 bytes, locations below 2^17, forwarded numbers taken
    /// from subscribers, the facility updated before the subscriber.
    ShoreKits,
    /// BenchBase: calls are forwarded from 0, 8 and 6 o'clock in the load; all subscribers have the
    /// access data of one draw; an update of a subscriber commits where the facility is missing, and
    /// is taken back where it is there; forwarded numbers are the subscriber's own.
    Benchbase,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 4] = [Self::Spec, Self::SpecNonUniform, Self::ShoreKits, Self::Benchbase];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::SpecNonUniform => "spec-non-uniform",
            Self::ShoreKits => "shore-kits",
            Self::Benchbase => "benchbase",
        }
    }

    /// The dialect called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    /// Hours from which calls are forwarded in a fresh database.
    #[must_use]
    pub const fn loaded_starts(self) -> [u8; 3] {
        match self {
            Self::Benchbase => [0, 8, 6],
            _ => [0, 8, 16],
        }
    }

    /// Whether an update of a subscriber commits, by whether its facility is there.
    #[must_use]
    pub const fn commits_update(self, is_there: bool) -> bool {
        match self {
            Self::Benchbase => !is_there,
            _ => is_there,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Parameters of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tatp {
    /// Whose habits to follow.
    pub dialect: Dialect,
    /// Subscribers.
    pub subscribers: u32,
    /// Seed of every stream.
    pub seed: u64,
    /// Whether clients give up at will.
    pub giving_up: GivingUp,
}

/// Names of the tables, in the order in which [`Audit`] wants them.
pub const TABLE_NAMES: [&str; 5] =
    ["subscriber", "sub_nbr", "access_info", "special_facility", "call_forwarding"];

/// The four tables and the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Subscribers.
    pub subscriber: Table,
    /// Subscribers by number.
    pub sub_nbr: Table,
    /// Access data, one to four rows a subscriber.
    pub access_info: Table,
    /// Facilities, one to four a subscriber.
    pub special_facility: Table,
    /// Forwarded calls, none to three a facility.
    pub call_forwarding: Table,
}

impl Tatp {
    /// The workload with clients that commit every transaction that can commit.
    #[must_use]
    pub const fn new(dialect: Dialect, subscribers: u32, seed: u64) -> Self {
        Self { dialect, subscribers, seed, giving_up: GivingUp::Never }
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
        let mut audit = Audit::new(*self, acknowledged);
        store.visit(&TABLE_NAMES, &mut |table, key, value| audit.add(table, key, value))?;
        Ok(audit)
    }

    /// Mean rows of the last three tables: 2.5 a subscriber, or as many as BenchBase drew, and 3.75.
    fn detail_rows(&self) -> [u64; 3] {
        let subscribers = u64::from(self.subscribers);
        let access = match self.dialect {
            Dialect::Benchbase => subscribers * self.shared_access().len() as u64,
            _ => subscribers * 5 / 2,
        };
        [access, subscribers * 5 / 2, subscribers * 15 / 4]
    }
}

impl Workload for Tatp {
    type Tables = Tables;
    type Terminal = Terminal;

    fn name(&self) -> String {
        format!("tatp/{}", self.dialect)
    }

    fn identity(&self) -> String {
        format!("tatp/{}/{}/{}", self.dialect, self.subscribers, self.seed)
    }

    fn classes(&self) -> &'static [&'static str] {
        &Class::NAMES
    }

    fn tables<E>(
        &self,
        mut open: impl FnMut(&'static str) -> Result<Table, E>,
    ) -> Result<Tables, E> {
        let [subscriber, sub_nbr, access_info, special_facility, call_forwarding] = TABLE_NAMES;
        Ok(Tables {
            subscriber: open(subscriber)?,
            sub_nbr: open(sub_nbr)?,
            access_info: open(access_info)?,
            special_facility: open(special_facility)?,
            call_forwarding: open(call_forwarding)?,
        })
    }

    fn load(&self, tables: Tables, put: Put<'_>) -> Result<(), EngineError> {
        let Tables { subscriber, sub_nbr, access_info, special_facility, call_forwarding } = tables;
        let handles = [subscriber, sub_nbr, access_info, special_facility, call_forwarding];
        load::load(self, &mut |place, key, value| put(handles[place], key, value))
    }

    fn row_count(&self) -> u64 {
        load::volume(self).iter().map(|(rows, _)| rows).sum()
    }

    fn loaded_bytes(&self) -> u64 {
        load::volume(self).iter().map(|(_, bytes)| bytes).sum()
    }

    fn contents(&self, _txns: u64, _clients: u32) -> Vec<Content> {
        // Inserts and deletes of forwarded calls succeed equally often.
        let subscribers = u64::from(self.subscribers);
        let [access, facilities, forwards] = self.detail_rows();
        let rows = [subscribers, subscribers, access, facilities, forwards];
        let sizes = rows::entry_sizes(self.dialect);
        let content = |(rows, size)| Content { rows, entry_size: size + ENTRY_OVERHEAD, edges: 0 };
        rows.into_iter().zip(sizes).map(content).collect()
    }

    fn first_estimate(&self, _clients: u32) -> Estimate {
        Estimate { programs_per_txn: PROGRAMS_PER_TXN, live_ratio: 1.0 }
    }

    fn terminal(&self, tables: Tables, number: u64) -> Terminal {
        Terminal::new(*self, tables, number)
    }

    fn verify_loaded<S: Store>(&self, store: &S) -> Result<(), BenchError> {
        self.verify(store, &Acknowledged::new())
    }

    fn verify<S: Store>(&self, store: &S, acknowledged: &Acknowledged) -> Result<(), BenchError> {
        Ok(self.audit(store, acknowledged)?.verify()?)
    }
}
