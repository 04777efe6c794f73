//! The changes of each transaction, and a model of the resulting rows.
//!
//! Each thread has a table of its own, in which a row holds the number of its last transaction. It also takes part in
//! a shared bank, with transfers that add up to nothing. The numbers of all threads tell which transfers were made.
//! So the numbers decide each byte, in any order of the threads.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use flagstone::Durability;

use super::draw::Draw;
use super::plan::Plan;

pub(crate) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Rows of each table.
pub(crate) type Contents = BTreeMap<String, Rows>;

/// Table of the accounts.
pub(crate) const BANK: &str = "bank";

/// Key of the row that holds the number of a thread's last transaction.
pub(crate) const NUMBER: &[u8] = b"number";

/// Name of a thread's table.
pub(crate) fn table_of(thread: u8) -> String {
    format!("rows-{thread}")
}

pub(crate) enum Change {
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Delete {
        key: Vec<u8>,
    },
    /// Where the value is too short or there is none, `bytes` become the value.
    Patch {
        key: Vec<u8>,
        offset: usize,
        bytes: Vec<u8>,
    },
}

/// Steps of a transaction.
pub(crate) struct Script {
    pub(crate) durability: Durability,
    /// Changes made, and taken back by a savepoint, before the others.
    pub(crate) undone: Vec<Change>,
    pub(crate) changes: Vec<Change>,
    /// Accounts in ascending order, each with the change of its balance.
    pub(crate) transfers: Vec<(u32, i64)>,
}

/// Limits of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appetite {
    /// Everything.
    Full,
    /// Nothing that needs much room: it deletes the rows that it would have written.
    Lean,
}

impl Plan {
    pub(crate) fn script(&self, thread: u8, number: u64, appetite: Appetite) -> Script {
        let mut draw = Draw::of(&[self.seed, self.life, 3, u64::from(thread), number]);
        let durability = self.durability(&mut draw);
        let is_big = draw.one_in(self.big_every);
        let count = if is_big { draw.between(100, 800) } else { draw.between(1, self.changes_max) };
        let mut changes: Vec<_> = (0..count).map(|_| self.change(&mut draw, is_big)).collect();
        let undone = if draw.one_in(15) {
            (0..draw.between(1, 8)).map(|_| self.change(&mut draw, false)).collect()
        } else {
            Vec::new()
        };
        let transfers = self.transfers(&mut draw, if is_big { 20 } else { 2 });
        if appetite == Appetite::Lean {
            changes = changes.into_iter().map(deletion).collect();
        }
        let undone = if appetite == Appetite::Full { undone } else { Vec::new() };
        Script { durability, undone, changes, transfers }
    }

    fn change(&self, draw: &mut Draw, is_of_many: bool) -> Change {
        let key = format!("{:06}", draw.below(self.keys)).into_bytes();
        match draw.below(8) {
            0 => Change::Delete { key },
            1 | 2 => Change::Patch { key, offset: draw.below(60) as usize, bytes: draw.bytes(9) },
            _ => {
                let is_large = !is_of_many && draw.one_in(self.large_every);
                let size_max = if is_large { 20_000 } else { self.value_size_max };
                let size = draw.below(size_max + 1) as usize;
                Change::Put { key, value: draw.bytes(size) }
            }
        }
    }

    /// Changes of this many pairs of accounts, which add up to nothing.
    fn transfers(&self, draw: &mut Draw, pairs: u64) -> Vec<(u32, i64)> {
        let mut accounts = BTreeMap::new();
        for _ in 0..pairs {
            let amount = draw.below(1_000_000) as i64;
            *accounts.entry(draw.below(self.accounts) as u32).or_default() += amount;
            *accounts.entry(draw.below(self.accounts) as u32).or_default() -= amount;
        }
        accounts.into_iter().collect()
    }

    /// Row of an account.
    pub(crate) fn account(&self, balance: i64) -> Vec<u8> {
        let mut row = balance.to_be_bytes().to_vec();
        row.resize(8 + self.padding, 0);
        row
    }
}

fn deletion(change: Change) -> Change {
    match change {
        Change::Put { key, .. } | Change::Delete { key } | Change::Patch { key, .. } => {
            Change::Delete { key }
        }
    }
}

/// Balance in the row of an account; no row is no money.
pub(crate) fn balance(row: Option<&[u8]>) -> i64 {
    row.and_then(|row| row.first_chunk()).map_or(0, |bytes| i64::from_be_bytes(*bytes))
}

/// Rows as they have to be.
#[derive(Clone)]
pub(crate) struct Model {
    /// Number of each thread's last transaction.
    pub(crate) numbers: Vec<u64>,
    tables: Vec<Rows>,
    bank: BTreeMap<u32, i64>,
}

impl Model {
    /// Before the first transaction.
    pub(crate) fn new(plan: &Plan) -> Self {
        let threads = usize::from(plan.threads);
        Self {
            numbers: vec![0; threads],
            tables: vec![Rows::new(); threads],
            bank: BTreeMap::new(),
        }
    }

    /// Takes the next transaction of a thread in.
    pub(crate) fn advance(&mut self, plan: &Plan, thread: u8, appetite: Appetite) {
        let index = usize::from(thread);
        self.numbers[index] += 1;
        let script = plan.script(thread, self.numbers[index], appetite);
        for change in script.changes {
            apply(&mut self.tables[index], change);
        }
        self.tables[index].insert(NUMBER.to_vec(), self.numbers[index].to_be_bytes().to_vec());
        for (account, amount) in script.transfers {
            *self.bank.entry(account).or_default() += amount;
        }
    }

    /// Whether `contents` are these, tables of other kinds apart.
    ///
    /// # Errors
    /// The first differences.
    pub(crate) fn require(&self, plan: &Plan, contents: &Contents) -> anyhow::Result<()> {
        let empty = Rows::new();
        for (thread, expected) in (0_u8..).zip(&self.tables) {
            let name = table_of(thread);
            same(expected, contents.get(&name).unwrap_or(&empty)).context(name)?;
        }
        let bank = self.bank.iter();
        let expected: Rows = bank
            .map(|(account, balance)| (account.to_be_bytes().to_vec(), plan.account(*balance)))
            .collect();
        let found = contents.get(BANK).unwrap_or(&empty);
        let sum: i64 = found.values().map(|row| balance(Some(row))).sum();
        same(&expected, found).with_context(|| format!("the bank, whose sum is {sum}"))
    }
}

fn apply(rows: &mut Rows, change: Change) {
    match change {
        Change::Put { key, value } => {
            rows.insert(key, value);
        }
        Change::Delete { key } => {
            rows.remove(&key);
        }
        Change::Patch { key, offset, bytes } => {
            let part =
                rows.get_mut(&key).and_then(|value| value.get_mut(offset..offset + bytes.len()));
            match part {
                Some(part) => part.copy_from_slice(&bytes),
                None => drop(rows.insert(key, bytes)),
            }
        }
    }
}

/// Whether two tables have the same rows.
///
/// # Errors
/// The number of differing rows, and the first of them.
pub(crate) fn same(expected: &Rows, found: &Rows) -> anyhow::Result<()> {
    if expected == found {
        return Ok(());
    }
    let mut differences = Vec::new();
    for key in expected.keys().chain(found.keys().filter(|key| !expected.contains_key(*key))) {
        let (is, should) = (found.get(key), expected.get(key));
        if is != should {
            let key = String::from_utf8_lossy(key).into_owned();
            differences.push(format!("{key:?}: {} instead of {}", shown(is), shown(should)));
        }
    }
    ensure!(differences.is_empty(), "{} rows differ: {}", differences.len(), {
        differences.truncate(4);
        differences.join("; ")
    });
    Ok(())
}

fn shown(value: Option<&Vec<u8>>) -> String {
    value.map_or_else(
        || String::from("nothing"),
        |value| {
            let head: String = value.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!("{} bytes {head}..", value.len())
        },
    )
}

/// Numbers of the last transactions that `contents` show.
///
/// # Errors
/// A row of a number that is none.
pub(crate) fn numbers(plan: &Plan, contents: &Contents) -> anyhow::Result<Vec<u64>> {
    (0..plan.threads)
        .map(|thread| match contents.get(&table_of(thread)).and_then(|rows| rows.get(NUMBER)) {
            None => Ok(0),
            Some(bytes) => {
                let bytes = bytes.as_slice().try_into().context("the row of a number")?;
                Ok(u64::from_be_bytes(bytes))
            }
        })
        .collect()
}
