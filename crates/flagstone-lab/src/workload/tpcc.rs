//! TPC-C: the generator, the rows, the five transactions and the twelve conditions.
//!
//! Owns the workload to the letter of the specification (5.11), and with the quirks of DBT-2, which
//! papers ran. Nine tables and two secondary indexes, the latter tables of their own.
//!
//! - **C1** A transaction depends only on its inputs and the rows it reads; dates are logical times
//!   ([`rows::Stamp`]).
//! - **C2** Keys are big-endian columns, so that keys sort as their columns do. Money is in cents,
//!   taxes and discounts in ten-thousandths: sums are exact.
//! - **C3** Columns that change and have a fixed size come first in their row, so that a change is
//!   a patch of few bytes. Only the data of a customer with bad credit change their size.
//! - **C4** The specification's consistency conditions hold whenever no transaction is in flight,
//!   in every snapshot, and after every restart; so do the indexes and the sums of the stock.
//! - **C5** A client's commits of a class are numbered without gaps, in the rows that they write:
//!   a lost commit is seen.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | warehouse | W | sums and tax, texts |
//! | district | W, D | next order, tax, sum, texts |
//! | customer | W, D, C | account, credit, texts, data |
//! | customer_name | W, D, last, first, C | nothing |
//! | history | client, number | payment |
//! | order | W, D, O | header |
//! | order_customer | W, D, C, O | nothing |
//! | new_order | W, D, O | nothing |
//! | order_line | W, D, O, number | line |
//! | stock | W, I | counts, texts |
//! | item | I | price, texts |

mod conditions;
mod delivery;
mod input;
pub mod keys;
mod load;
mod new_order;
mod order_status;
mod payment;
mod random;
pub mod rows;
mod select;
mod stock_level;
mod terminal;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::OnceLock;

use flagstone_engine::{EngineError, Table};
use serde::{Deserialize, Serialize};

use super::{Acknowledged, Put, Workload};
use crate::bench::BenchError;
use crate::sizing::{Content, Estimate};
use crate::store::Store;

pub use conditions::{Audit, Fault};
pub use input::{Class, Inputs, Stream};
use load::Volume;
use random::NonUniform;
pub use terminal::{Output, Terminal};

/// Programs of a transaction of the mix, as a first guess: rows added meanwhile must find room.
const PROGRAMS_PER_TXN: f64 = 2.0;
/// Districts of a warehouse.
pub const DISTRICTS: u8 = 10;
/// Most lines of an order.
pub const LINES_MAX: u8 = 15;

/// Which implementation's habits the workload follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// The specification.
    #[default]
    Spec,
    /// DBT-2: non-uniform numbers without their constant; 6 to 15 lines an order, 5 to 14 in the
    /// load; carriers 1 to 9 in the load; item 0 where a New-Order must fail; a remote warehouse
    /// computed modulo their number, so that a line's may be 0 and its New-Order fails.
    Dbt2,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 2] = [Self::Spec, Self::Dbt2];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Dbt2 => "dbt2",
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

/// Orders that one transaction delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryUnit {
    /// The oldest new order of each district of a warehouse.
    #[default]
    Warehouse,
    /// The oldest new order of one district; ten such transactions follow one another.
    District,
}

/// How many rows the tables begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cardinality {
    /// Items, and stock rows of a warehouse.
    pub items: u32,
    /// Customers of a district, and its orders.
    pub customers: u16,
    /// The last of a district's orders, which are not delivered yet.
    pub undelivered: u16,
}

impl Cardinality {
    /// Of the specification.
    pub const SPEC: Self = Self { items: 100_000, customers: 3_000, undelivered: 900 };
    /// Small enough for tests; the same proportions.
    pub const SMALL: Self = Self { items: 500, customers: 30, undelivered: 9 };

    /// Last names in use.
    fn names(self) -> u16 {
        self.customers.min(1000)
    }
}

/// Parameters of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Whose habits to follow.
    pub dialect: Dialect,
    /// Warehouses.
    pub scale: u16,
    /// Seed of every stream.
    pub seed: u64,
    /// Rows to begin with.
    pub cardinality: Cardinality,
    /// Orders that a Delivery delivers.
    pub delivery: DeliveryUnit,
    /// Which transactions there are.
    pub mix: Mix,
}

/// Which of the five transactions clients ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mix {
    /// All, in the shares of the specification.
    #[default]
    All,
    /// Transactions that write ten pages at most: Payments.
    Short,
    /// Transactions that write more: New-Orders and Deliveries, in the shares of the specification.
    Long,
}

impl Setting {
    /// The workload of the specification's size.
    #[must_use]
    pub fn new(dialect: Dialect, scale: u16, seed: u64) -> Self {
        let (cardinality, delivery) = (Cardinality::SPEC, DeliveryUnit::default());
        Self { dialect, scale, seed, cardinality, delivery, mix: Mix::All }
    }

    /// Customers of a district: A = 1023 for 3000 of them.
    fn customer_numbers(&self) -> NonUniform {
        let high = u32::from(self.cardinality.customers);
        NonUniform { a: mask(high, 1023, 3000), c: 259, low: 1, high }
    }

    /// Items: A = 8191 for 100,000 of them.
    fn item_numbers(&self) -> NonUniform {
        let high = self.cardinality.items;
        NonUniform { a: mask(high, 8191, 100_000), c: 7911, low: 1, high }
    }

    /// Last names, with the constant of the load or of the run: their difference of 66 is one that
    /// the specification allows.
    fn name_numbers(&self, c: u32) -> NonUniform {
        NonUniform { a: 255, c, low: 0, high: u32::from(self.cardinality.names()) - 1 }
    }
}

/// The constant A for `count` values, in the proportion of the specification.
fn mask(count: u32, a: u32, of: u32) -> u32 {
    let scaled = u64::from(count) * u64::from(a) / u64::from(of);
    (scaled.max(1) as u32).next_power_of_two() - 1
}

/// Constant of the last names in the load.
const NAMES_LOADED: u32 = 157;
/// Constant of the last names in the run.
const NAMES_RUN: u32 = 223;

/// Names of the tables, in the order in which [`Audit`] wants them.
pub const TABLE_NAMES: [&str; 11] = [
    "warehouse",
    "district",
    "customer",
    "customer_name",
    "history",
    "order",
    "order_customer",
    "new_order",
    "order_line",
    "stock",
    "item",
];

/// The nine tables and the two indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the specification; see the module's table")]
pub struct Tables {
    pub warehouse: Table,
    pub district: Table,
    pub customer: Table,
    pub customer_name: Table,
    pub history: Table,
    pub order: Table,
    pub order_customer: Table,
    pub new_order: Table,
    pub order_line: Table,
    pub stock: Table,
    pub item: Table,
}

impl Tables {
    /// Opens the tables with `open`, which is given each name.
    ///
    /// # Errors
    ///
    /// The first error of `open`.
    pub fn open<E>(mut open: impl FnMut(&'static str) -> Result<Table, E>) -> Result<Self, E> {
        let mut names = TABLE_NAMES.into_iter();
        let mut next = || open(names.next().unwrap_or_default());
        Ok(Self {
            warehouse: next()?,
            district: next()?,
            customer: next()?,
            customer_name: next()?,
            history: next()?,
            order: next()?,
            order_customer: next()?,
            new_order: next()?,
            order_line: next()?,
            stock: next()?,
            item: next()?,
        })
    }
}

/// A TPC-C workload.
#[derive(Debug)]
pub struct Tpcc {
    setting: Setting,
    /// Rows and bytes of a fresh database, counted when they are first asked for.
    volume: OnceLock<Volume>,
}

impl Tpcc {
    /// The workload that `setting` describes.
    #[must_use]
    pub fn new(setting: Setting) -> Self {
        Self { setting, volume: OnceLock::new() }
    }

    /// Parameters of the workload.
    #[must_use]
    pub fn setting(&self) -> Setting {
        self.setting
    }

    /// Looks at all rows in one state of the database.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn audit<S: Store>(&self, store: &S) -> Result<Audit, EngineError> {
        let mut audit = Audit::new(self.setting);
        store.visit(&TABLE_NAMES, &mut |table, key, value| audit.add(table, key, value))?;
        Ok(audit)
    }

    fn volume(&self) -> &Volume {
        self.volume.get_or_init(|| Volume::of(&self.setting))
    }
}

impl Workload for Tpcc {
    type Tables = Tables;
    type Terminal = Terminal;

    fn name(&self) -> String {
        format!("tpcc/{}", self.setting.dialect)
    }

    fn identity(&self) -> String {
        format!("tpcc {:?}", self.setting)
    }

    fn classes(&self) -> &'static [&'static str] {
        &Class::NAMES
    }

    fn tables<E>(&self, open: impl FnMut(&'static str) -> Result<Table, E>) -> Result<Tables, E> {
        Tables::open(open)
    }

    fn load(&self, tables: Tables, put: Put<'_>) -> Result<(), EngineError> {
        load::load(&self.setting, &mut |table, key, value| put(table.of(&tables), key, value))
    }

    fn row_count(&self) -> u64 {
        self.volume().row_count()
    }

    fn loaded_bytes(&self) -> u64 {
        self.volume().bytes()
    }

    fn contents(&self, txns: u64, _clients: u32) -> Vec<Content> {
        self.volume().after(&self.setting, txns)
    }

    fn first_estimate(&self, _clients: u32) -> Estimate {
        Estimate { programs_per_txn: PROGRAMS_PER_TXN, live_ratio: 1.0 }
    }

    fn terminal(&self, tables: Tables, number: u64) -> Terminal {
        Terminal::new(self.setting, tables, number as u32)
    }

    fn verify_loaded<S: Store>(&self, store: &S) -> Result<(), BenchError> {
        let audit = self.audit(store)?;
        audit.verify_loaded()?;
        Ok(audit.verify(&Acknowledged::new())?)
    }

    fn verify<S: Store>(&self, store: &S, acknowledged: &Acknowledged) -> Result<(), BenchError> {
        Ok(self.audit(store)?.verify(acknowledged)?)
    }
}
