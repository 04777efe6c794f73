//! Tables as a whole: their names, and their end.

use flagstone_nand::Nand;
use tracing::info;

use super::{Database, Transaction};
use crate::runtime::EVENTS;
use crate::{Durability, EngineError, Table};

/// Mark between the name of a table and the name of one of its indexes.
const INDEX_MARK: char = '@';

/// Refuses the name of an index, and each name that could be taken for one.
///
/// # Errors
///
/// `IndexName`.
pub fn require_plain(name: &str) -> Result<(), EngineError> {
    if name.contains(INDEX_MARK) { Err(EngineError::IndexName) } else { Ok(()) }
}

/// Common beginning of the names of a table's indexes.
#[must_use]
pub fn index_head(table: &str) -> String {
    format!("{table}{INDEX_MARK}")
}

impl<D: Nand> Database<D> {
    /// Opens a table, creating it durably when it does not exist.
    ///
    /// A name with `@` is the name of an index: `users@city` is renamed and dropped with `users`. Such a
    /// table is opened by this call, but not created.
    ///
    /// # Errors
    ///
    /// When the table does not exist: `IndexName`; `NameTooLong` when the name is longer than a key;
    /// `ReadOnly` in a database that was opened for reading; `WearBudget` where the budget is used up. The
    /// device is full or failed.
    pub fn table(&self, name: &str) -> Result<Table, EngineError> {
        if let Some(table) = self.existing_table(name)? {
            return Ok(table);
        }
        require_plain(name)?;
        self.copied_table(name)
    }

    /// As [`Database::table`], for any name: for copies of whole databases, indexes included.
    ///
    /// # Errors
    ///
    /// As [`Database::table`].
    pub fn copied_table(&self, name: &str) -> Result<Table, EngineError> {
        if let Some(table) = self.existing_table(name)? {
            return Ok(table);
        }
        self.change_tables(|transaction| transaction.create_table(name))
    }

    /// Opens a table if it exists.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn existing_table(&self, name: &str) -> Result<Option<Table>, EngineError> {
        self.runtime().open_table(name)
    }

    /// Names of all tables, in order.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn tables(&self) -> Result<Vec<String>, EngineError> {
        let rows = self.runtime().table_names()?;
        Ok(rows.into_iter().map(|key| String::from_utf8_lossy(&key).into_owned()).collect())
    }

    /// Gives a table another name, and renames its indexes with it: `users@city` becomes `people@city`, and
    /// so does every table whose name begins with `users@`. The change is atomic; no row is read or written,
    /// and open tables stay open.
    ///
    /// # Errors
    ///
    /// `NoTable` when there is no table `from`, `TableExists` when the new name, or the new name of an index,
    /// is taken; `IndexName` when the new name has an `@`; `NameTooLong` when a name is longer than a key;
    /// `WearBudget`; the device is full, read-only or failed.
    pub fn rename_table(&self, from: &str, to: &str) -> Result<(), EngineError> {
        require_plain(to)?;
        self.change_tables(|transaction| {
            for (name, suffix) in with_indexes(transaction, from)? {
                transaction.rename_entry(&name, &format!("{to}{suffix}"))?;
            }
            Ok(())
        })
    }

    /// Drops a table with all its rows, and its indexes too: for `users`, every table whose name begins with
    /// `users@`. The drop is atomic: after a power cut the table is there as it was, or it is gone.
    ///
    /// Waits for transactions that have read or changed the table. Then it is gone for all but older
    /// snapshots. Its pages are freed before this returns, a few at a time, while other threads go on; pages
    /// that such a snapshot still reads are freed after it has ended, and pages that a power cut leaves are
    /// freed after the restart, by threads that commit. No row is written or logged for a drop: each page is
    /// read once.
    ///
    /// A dropped table leaves no trace: tables may come and go any number of times. A dropped table that a
    /// snapshot reads counts until the snapshot ends.
    ///
    /// # Errors
    ///
    /// `NoTable` when there is no such table; `LockTimeout`; `WearBudget`; the device is read-only or failed.
    pub fn drop_table(&self, name: &str) -> Result<(), EngineError> {
        let dropped = self.change_tables(|transaction| {
            let names = with_indexes(transaction, name)?;
            names
                .iter()
                .map(|(name, _)| transaction.drop_entry(name))
                .collect::<Result<Vec<_>, _>>()
        })?;
        info!(target: EVENTS, name, "dropped a table");
        for table in dropped {
            // The table is gone, even where its pages cannot be freed now.
            let _ = self.runtime().finish_drop(table);
        }
        Ok(())
    }

    /// Runs `change` in one transaction, which is durable afterwards; a deadlock begins it again.
    ///
    /// # Errors
    ///
    /// The errors of `change` and of the commit.
    pub fn change_tables<T>(
        &self,
        change: impl Fn(&mut Transaction<D>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        loop {
            let mut transaction = self.begin();
            let changed = change(&mut transaction).and_then(|value| {
                transaction.commit_with(Durability::Immediate).map(|_commit| value)
            });
            match changed {
                Err(EngineError::Deadlock) => {}
                other => return other,
            }
        }
    }
}

/// A table and its indexes: their names, and the part of each behind the name of the table.
fn with_indexes<D: Nand>(
    transaction: &Transaction<D>,
    name: &str,
) -> Result<Vec<(String, String)>, EngineError> {
    let indexes = transaction.names(&index_head(name))?;
    let suffix = |index: String| {
        let suffix = index.get(name.len()..).unwrap_or_default().to_owned();
        (index, suffix)
    };
    let own = std::iter::once((name.to_owned(), String::new()));
    Ok(own.chain(indexes.into_iter().map(suffix)).collect())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use flagstone_nand::{Profile, SimNand};

    use super::*;
    use crate::Options;

    /// Goal: a drop waits for transactions that have changed rows, and a transaction that waits for a row
    /// meanwhile learns that the table is gone.
    #[test]
    fn a_drop_waits_for_transactions() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let database = Database::create_on(SimNand::new(&profile, 1), &Options::default()).unwrap();
        let table = database.table("t").unwrap();
        let mut first = database.begin();
        first.put(table, b"key", b"value").unwrap();
        let waits = |count| {
            while database.runtime().engine().lock_wait_count() < count {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            let dropping = scope.spawn(|| database.drop_table("t"));
            waits(1);
            let late = scope.spawn(|| database.begin().put(table, b"other", b""));
            waits(2);
            assert_eq!(database.tables().unwrap(), ["t"]);
            first.put(table, b"key", b"again").unwrap();
            first.commit().unwrap();
            assert_eq!(dropping.join().unwrap(), Ok(()));
            assert_eq!(late.join().unwrap(), Err(EngineError::NoTable));
        });
        assert!(database.tables().unwrap().is_empty());
    }
}
