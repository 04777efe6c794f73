//! Tables as a whole: their names, and their end.

use flagstone_engine::{Durability, Table};

use super::{Database, Transaction};
use crate::{Error, TableError};

impl Database {
    /// Opens a table, creating it durably when it does not exist.
    ///
    /// A name with `@` is the name of an index: `users@city` is renamed and dropped with `users`. Such a
    /// table is opened by this call, but not created.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// use flagstone::TableError;
    ///
    /// let users = db.table("users")?;
    /// assert_eq!(db.table("users")?, users);
    /// assert_eq!(db.existing_table("user")?, None);
    /// assert_eq!(db.table("users@home"), Err(TableError::IndexName));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the table does not exist: `IndexName`; `NameTooLong` when the name is longer than a key;
    /// `ReadOnly` in a database that was opened for reading; `WearBudget` where the budget is used up. The
    /// device is full or failed.
    pub fn table(&self, name: &str) -> Result<Table, TableError> {
        self.inner.table(name).map_err(TableError::of)
    }

    /// As [`Database::table`], for any name: for copies of whole databases, indexes included.
    ///
    /// # Errors
    ///
    /// As [`Database::table`].
    #[doc(hidden)]
    pub fn copied_table(&self, name: &str) -> Result<Table, TableError> {
        self.inner.copied_table(name).map_err(TableError::of)
    }

    /// Opens a table if it exists.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn existing_table(&self, name: &str) -> Result<Option<Table>, TableError> {
        self.inner.existing_table(name).map_err(TableError::of)
    }

    /// Names of all tables, in order.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub fn tables(&self) -> Result<Vec<String>, TableError> {
        self.inner.tables().map_err(TableError::of)
    }

    /// Gives a table another name, and renames its indexes with it: `users@city` becomes `people@city`, and
    /// so does every table whose name begins with `users@`. The change is atomic; no row is read or written,
    /// and open tables stay open.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// use flagstone::TableError;
    ///
    /// let table = db.table("users")?;
    /// db.rename_table("users", "people")?;
    /// assert_eq!(db.existing_table("people")?, Some(table));
    /// assert_eq!(db.rename_table("users", "folk"), Err(TableError::NoTable));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `NoTable` when there is no table `from`, `TableExists` when the new name, or the new name of an index,
    /// is taken; `IndexName` when the new name has an `@`; `NameTooLong` when a name is longer than a key;
    /// `WearBudget`; the device is full, read-only or failed.
    pub fn rename_table(&self, from: &str, to: &str) -> Result<(), TableError> {
        self.inner.rename_table(from, to).map_err(TableError::of)
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
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// use flagstone::ReadError;
    ///
    /// let table = db.table("scratch")?;
    /// let mut txn = db.begin();
    /// txn.put(table, b"key", b"value")?;
    /// txn.commit()?;
    /// let before = db.snapshot()?;
    ///
    /// db.drop_table("scratch")?;
    /// assert_eq!(db.existing_table("scratch")?, None);
    /// assert_eq!(db.begin().get(table, b"key"), Err(ReadError::NoTable));
    /// assert_eq!(before.get(table, b"key")?.as_deref(), Some(&b"value"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A dropped table leaves no trace: tables may come and go any number of times. A dropped table that a
    /// snapshot reads counts until the snapshot ends.
    ///
    /// # Errors
    ///
    /// `NoTable` when there is no such table; `LockTimeout`; `WearBudget`; the device is read-only or failed.
    pub fn drop_table(&self, name: &str) -> Result<(), TableError> {
        self.inner.drop_table(name).map_err(TableError::of)
    }

    /// Runs `change` in one transaction, which is durable afterwards; a deadlock begins it again.
    pub(crate) fn change_tables<T>(
        &self,
        change: impl Fn(&mut Transaction) -> Result<T, Error>,
    ) -> Result<T, TableError> {
        loop {
            let mut transaction = self.begin();
            let changed = change(&mut transaction).and_then(|value| {
                transaction.commit_with(Durability::Immediate)?;
                Ok(value)
            });
            match changed {
                Err(Error::Deadlock) => {}
                other => return other.map_err(TableError::of),
            }
        }
    }
}
