//! Tables as a whole: their names, and their end.

use flagstone_engine::{Durability, EngineError, Table};
use flagstone_nand::Nand;
use tracing::info;

use super::{Database, Transaction};

/// What stands between the name of a table and that of one of its indexes.
const INDEX_MARK: char = '@';

/// Refuses the name of an index, and of what could be taken for one.
pub(crate) fn require_plain(name: &str) -> Result<(), EngineError> {
    if name.contains(INDEX_MARK) { Err(EngineError::IndexName) } else { Ok(()) }
}

/// What the names of a table's indexes begin with.
pub(crate) fn index_head(table: &str) -> String {
    format!("{table}{INDEX_MARK}")
}

impl<D: Nand> Database<D> {
    /// Opens a table, creating it durably when it does not exist.
    ///
    /// A name with `@` is that of an index: `users@city` goes where `users` goes. Such a table is opened
    /// here, but not created.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// use flagstone::EngineError;
    ///
    /// let users = db.table("users")?;
    /// assert_eq!(db.table("users")?, users);
    /// assert_eq!(db.existing_table("user")?, None);
    /// assert_eq!(db.table("users@home"), Err(EngineError::IndexName));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When it does not exist: `IndexName`; `NameTooLong` when the name is longer than a key; `ReadOnly` in a
    /// database that was opened to be read; `WearBudget` where that is used up. The device is full or failed.
    pub fn table(&self, name: &str) -> Result<Table, EngineError> {
        if let Some(table) = self.existing_table(name)? {
            return Ok(table);
        }
        require_plain(name)?;
        self.copied_table(name)
    }

    /// As [`Database::table`], whatever the name: for copies of whole databases, indexes included.
    ///
    /// # Errors
    ///
    /// As [`Database::table`].
    #[doc(hidden)]
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

    /// Gives a table another name, and its indexes with it: `users@city` becomes `people@city`, and so does every
    /// table whose name begins with `users@`. All of it at once, or nothing; no row is read or written, and tables
    /// that are open stay so.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// use flagstone::EngineError;
    ///
    /// let table = db.table("users")?;
    /// db.rename_table("users", "people")?;
    /// assert_eq!(db.existing_table("people")?, Some(table));
    /// assert_eq!(db.rename_table("users", "folk"), Err(EngineError::NoTable));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `NoTable` when there is no table `from`, `TableExists` when there is one of the new name, or of that
    /// of an index; `IndexName` when the new name has an `@`; `NameTooLong` when a name is longer than a key;
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

    /// Drops a table with all its rows, and its indexes with it: for `users`, every table whose name begins with
    /// `users@`. All of it at once, or nothing: after a power cut the table is there as it was, or it is gone.
    ///
    /// Waits for transactions that have read or changed the table. Then it is gone for everybody but snapshots from before.
    /// Its pages are freed before this returns, a few at a time, while other threads go on; what such a snapshot
    /// still reads is freed after it has ended, and what a power cut leaves after the restart, by those who
    /// commit. No row is written or logged for it: each page is read once.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// use flagstone::EngineError;
    ///
    /// let table = db.table("scratch")?;
    /// let mut txn = db.begin();
    /// txn.put(table, b"key", b"value")?;
    /// txn.commit()?;
    /// let before = db.snapshot()?;
    ///
    /// db.drop_table("scratch")?;
    /// assert_eq!(db.existing_table("scratch")?, None);
    /// assert_eq!(db.begin().get(table, b"key"), Err(EngineError::NoTable));
    /// assert_eq!(before.get(table, b"key")?.as_deref(), Some(&b"value"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A table that is gone leaves nothing behind: any number of them may come and go. One that a snapshot reads counts
    /// until the snapshot ends.
    ///
    /// # Errors
    ///
    /// `NoTable` when there is none; `LockTimeout`; `WearBudget`; the device is read-only or failed.
    pub fn drop_table(&self, name: &str) -> Result<(), EngineError> {
        let dropped = self.change_tables(|transaction| {
            let names = with_indexes(transaction, name)?;
            names
                .iter()
                .map(|(name, _)| transaction.drop_entry(name))
                .collect::<Result<Vec<_>, _>>()
        })?;
        info!(name, "dropped a table");
        for table in dropped {
            // The table is gone, whatever becomes of its pages now.
            let _ = self.runtime().finish_drop(table);
        }
        Ok(())
    }

    /// Runs `change` in one transaction, which is durable afterwards; a deadlock begins it again.
    pub(crate) fn change_tables<T>(
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

/// A table and its indexes: their names, and what of them stands behind the name of the table.
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

    use flagstone_engine::Options;
    use flagstone_nand::{Profile, SimNand};

    use super::*;

    /// Goal: a drop waits for those who have changed rows, and who waits for a row of it meanwhile learns that
    /// the table is gone.
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
