//! Changes and commits of transactions on the calling thread.
//!
//! Owns the handling of rows too large for a leaf, and of commits that have to be retried. Never
//! checks the wear budget: the code that begins a transaction calls [`Runtime::admit_change`]
//! before the first change.

use flagstone_nand::Nand;
use flagstone_space::Lsn;

use super::{Reader, Runtime};
use crate::engine::{CATALOG, Descriptor, Savepoint, Table, Ticket, tombstone};
use crate::error::EngineError;
use crate::lock::Xid;
use crate::options::Durability;

impl<D: Nand> Runtime<D> {
    /// Stores a row with a value of any size.
    ///
    /// # Errors
    ///
    /// The row is too long; the transaction has ended or lost a deadlock; the device is full or failed.
    pub fn put(&self, xid: Xid, table: Table, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        if value.len() <= self.engine_shared().inline_value_size_max(key.len()) {
            return self.run_for(Some(xid), |engine| engine.put(xid, table, key, value));
        }
        // Reasons to refuse the row must be known before its pages are written.
        self.run_for(Some(xid), |engine| engine.prepare_write(xid, table, key))?;
        let descriptor = self.store(xid, value)?;
        let put = self.run_for(Some(xid), |engine| engine.put_ref(xid, table, key, &descriptor));
        if put.is_err() {
            self.engine().drop_stored(xid, &descriptor);
        }
        put
    }

    /// Writes a large value, freeing room for it where there is none.
    fn store(&self, xid: Xid, value: &[u8]) -> Result<Descriptor, EngineError> {
        loop {
            let plan = self.run_for(Some(xid), |engine| engine.plan_value(xid, value.len()))?;
            let stored = self.store_value(xid, &plan, value);
            let stored = self.engine().stored(xid, &plan, stored);
            self.wake_others();
            match stored {
                Err(EngineError::Full) if self.free_room()? => {}
                stored => return stored.map(|()| plan.descriptor),
            }
        }
    }

    /// Changes some bytes of a value, from an offset on.
    ///
    /// # Errors
    ///
    /// `PatchOutOfRange`; as [`Runtime::put`].
    pub fn patch(
        &self,
        xid: Xid,
        table: Table,
        key: &[u8],
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let large =
            self.run_for(Some(xid), |engine| engine.patch(xid, table, key, offset, bytes))?;
        let Some(descriptor) = large else { return Ok(()) };
        let mut value = self.load(Reader::Transaction(xid), &descriptor)?;
        let target = offset
            .checked_add(bytes.len())
            .and_then(|end| value.get_mut(offset..end))
            .ok_or(EngineError::PatchOutOfRange { offset, size: bytes.len() })?;
        target.copy_from_slice(bytes);
        self.put(xid, table, key, &value)
    }

    /// Deletes a row, if there is one.
    ///
    /// # Errors
    ///
    /// As [`Runtime::put`]; on a full device `TooLarge`, where the transaction itself takes the
    /// room.
    pub fn delete(&self, xid: Xid, table: Table, key: &[u8]) -> Result<(), EngineError> {
        let deleted = self.run_for(Some(xid), |engine| engine.delete(xid, table, key));
        deleted.map_err(|error| self.engine().refusal(xid, error))
    }

    /// Locks a key exclusively, as a change of the key would.
    ///
    /// # Errors
    ///
    /// The transaction has ended, lost a deadlock, or waited too long.
    pub fn lock_key(&self, xid: Xid, table: Table, key: &[u8]) -> Result<(), EngineError> {
        self.run_for(Some(xid), |engine| engine.lock_key(xid, table, key))
    }

    /// A point that the transaction can be rolled back to.
    ///
    /// # Errors
    ///
    /// The transaction has ended.
    pub fn savepoint(&self, xid: Xid) -> Result<Savepoint, EngineError> {
        self.run_for(Some(xid), |engine| engine.savepoint(xid))
    }

    /// Takes back the changes made after a savepoint.
    ///
    /// # Errors
    ///
    /// `NoSavepoint`; the transaction has ended.
    pub fn rollback_to(&self, xid: Xid, savepoint: Savepoint) -> Result<(), EngineError> {
        self.run_for(Some(xid), |engine| engine.rollback_to(xid, savepoint))
    }

    /// Commits: other transactions see the changes, which [`Runtime::settle`] makes durable. Once a
    /// ticket is returned, the transaction is over.
    ///
    /// # Errors
    ///
    /// The transaction lost a deadlock, is too large, or finds no room; `OtherProcess`;
    /// `OutcomeUnknown` when the device failed while the commit was written.
    pub fn commit(&self, xid: Xid) -> Result<Ticket, EngineError> {
        self.require_own_process()?;
        // This thread flushes itself: the engine need not ask for a flush.
        loop {
            match self.run_for(Some(xid), |engine| engine.commit(xid, Durability::Deferred)) {
                Ok(ticket) => return Ok(ticket),
                Err(EngineError::OutcomeUnknown) => return Err(EngineError::OutcomeUnknown),
                Err(error) if self.engine().gives_up(xid) => {
                    return Err(match error {
                        EngineError::Full => self.engine().why_full(xid),
                        error => error,
                    });
                }
                // Background work failed, not the commit: it goes on.
                Err(_) => {
                    self.await_flush();
                }
            }
        }
    }

    /// Durability of a commit that names none.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.engine_shared().options().durability
    }

    /// Waits for a commit as its durability demands.
    ///
    /// # Errors
    ///
    /// `OutcomeUnknown` when the device failed meanwhile (rule D8); `OtherProcess`.
    pub fn settle(&self, lsn: Lsn, durability: Durability) -> Result<(), EngineError> {
        match durability {
            Durability::Deferred => Ok(()),
            Durability::Immediate => self.wait_durable(lsn),
            Durability::Group => self.wait_group(lsn),
        }
    }
}

/// Tables as a whole.
impl<D: Nand> Runtime<D> {
    /// The table called `name`, as committed.
    ///
    /// # Errors
    ///
    /// The device failed; the catalog is damaged.
    pub fn open_table(&self, name: &str) -> Result<Option<Table>, EngineError> {
        self.run(|engine| engine.open_table(name))
    }

    /// Creates a table inside a transaction, or opens the existing table with this name.
    ///
    /// # Errors
    ///
    /// `NameTooLong`, `TooManyTables`; as [`Runtime::put`].
    pub fn create_table(&self, xid: Xid, name: &str) -> Result<Table, EngineError> {
        self.run_for(Some(xid), |engine| engine.create_table(xid, name)).map_err(of_name)
    }

    /// Gives a table another name inside a transaction.
    ///
    /// # Errors
    ///
    /// `NoTable`, `TableExists`, `NameTooLong`; as [`Runtime::put`].
    pub fn rename_table(&self, xid: Xid, from: &str, to: &str) -> Result<(), EngineError> {
        let (_, entry) = self.entry(xid, from)?.ok_or(EngineError::NoTable)?;
        if self.entry(xid, to)?.is_some() {
            return Err(EngineError::TableExists);
        }
        self.run_for(Some(xid), |engine| engine.put(xid, CATALOG, to.as_bytes(), &entry))?;
        self.run_for(Some(xid), |engine| engine.delete(xid, CATALOG, from.as_bytes()))
    }

    /// Drops a table inside a transaction. Its pages are freed after the commit: see [`Runtime::finish_drop`].
    ///
    /// # Errors
    ///
    /// `NoTable`; as [`Runtime::put`].
    pub fn drop_table(&self, xid: Xid, name: &str) -> Result<Table, EngineError> {
        let (table, entry) = self.entry(xid, name)?.ok_or(EngineError::NoTable)?;
        let run = Some(xid);
        self.run_for(run, |engine| engine.lock_table(xid, table))?;
        self.run_for(run, |engine| engine.put(xid, CATALOG, &tombstone(table), &entry))?;
        self.run_for(run, |engine| engine.delete(xid, CATALOG, name.as_bytes()))?;
        self.run_for(run, |engine| engine.note_drop(xid, table))?;
        Ok(table)
    }

    /// The catalog entry of a name, locked.
    fn entry(&self, xid: Xid, name: &str) -> Result<Option<(Table, Vec<u8>)>, EngineError> {
        self.run_for(Some(xid), |engine| engine.locked_entry(xid, name)).map_err(of_name)
    }
}

/// Turns `KeyTooLong` of a catalog key into `NameTooLong`.
fn of_name(error: EngineError) -> EngineError {
    match error {
        EngineError::KeyTooLong { size, size_max } => EngineError::NameTooLong { size, size_max },
        error => error,
    }
}

/// Everything that was committed.
impl<D: Nand> Runtime<D> {
    /// Makes every commit durable.
    ///
    /// # Errors
    ///
    /// The device failed, now or before: commits that were not durable by then are lost.
    pub fn make_durable(&self) -> Result<(), EngineError> {
        let (lsn, before) = {
            let engine = self.engine();
            (engine.last_commit(), engine.sound())
        };
        self.wait_durable(lsn).map_err(|error| before.err().unwrap_or(error))
    }

    /// Merges all committed changes into their leaves, as far as possible, and writes a checkpoint.
    ///
    /// # Errors
    ///
    /// The device failed, or has no room.
    pub fn merge_all(&self) -> Result<(), EngineError> {
        self.make_durable()?;
        self.load_runs()?;
        self.merge_now()
    }

    /// Makes every commit durable and writes the last checkpoint of a session, if anything was logged in it.
    ///
    /// # Errors
    ///
    /// The device failed; the durability of commits is unchanged.
    pub fn close(&self) -> Result<(), EngineError> {
        self.make_durable()?;
        let (has_logged, sound) = {
            let engine = self.engine();
            (engine.has_logged(), engine.sound())
        };
        match sound {
            // The device could not be written, and nothing had to be.
            Err(EngineError::ReadOnly | EngineError::WornOut) if !has_logged => Ok(()),
            Err(error) => Err(error),
            Ok(()) if has_logged => self.close_now(),
            Ok(()) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::{Profile, SimNand};

    use crate::testing::Database;
    use crate::{Durability, EngineError, Options, Runtime};

    /// Goal: no commit of a child of a fork is acknowledged, not even one that waits in memory.
    /// Method: a database opened by another process, as told by its number.
    #[test]
    fn a_child_of_a_fork_commits_nothing() {
        let profile = Profile::named("slc-2k").unwrap().with_block_count(64).unwrap();
        let mut runtime = Runtime::create(SimNand::new(&profile, 1), &Options::default()).unwrap();
        runtime.opened_by ^= 1;
        let database = Database::over(runtime);
        for durability in [Durability::Immediate, Durability::Group, Durability::Deferred] {
            let committed = database.begin().commit_with(durability).map(drop);
            assert_eq!(committed, Err(EngineError::OtherProcess), "{durability:?}");
        }
    }
}
