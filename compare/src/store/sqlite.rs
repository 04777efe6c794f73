//! SQLite: pages of 4 KiB, all memory a cache, and a journal of either kind. A table is `WITHOUT ROWID`, its key
//! the primary key.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use rusqlite::{Connection, OptionalExtension, params};

use super::{Each, Limits, Plan, Rows, Store, Txn};

const PAGE_SIZE: usize = 4096;

/// How commits become durable.
#[derive(Clone, Copy, Debug)]
pub enum Journal {
    /// `WAL`, synced by each commit, checkpointed when as much is in it as may be held back.
    Ahead,
    /// `DELETE`, which is the default. `EXTRA`, because with `FULL` a power cut may bring the deleted journal back,
    /// and with it the state before the last commit.
    Rollback,
}

pub struct Sqlite {
    path: PathBuf,
    journal: Journal,
    limits: Limits,
    /// Connections that no thread uses just now.
    idle: Mutex<Vec<Connection>>,
}

impl Sqlite {
    pub fn open(plan: &Plan, journal: Journal, directory: &Path) -> Result<Self> {
        let path = directory.join("sqlite");
        let store = Self { path, journal, limits: plan.limits, idle: Mutex::new(Vec::new()) };
        store.with(|connection| {
            for table in 0..plan.tables {
                connection.execute_batch(&format!(
                    "CREATE TABLE IF NOT EXISTS t{table}(k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID"
                ))?;
            }
            Ok(())
        })?;
        Ok(store)
    }

    fn connect(&self) -> Result<Connection> {
        let connection = Connection::open(&self.path)?;
        connection.busy_timeout(Duration::from_secs(60))?;
        connection.set_prepared_statement_cache_capacity(64);
        let Limits { memory, held_back } = self.limits;
        let journal = match self.journal {
            Journal::Ahead => "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL",
            Journal::Rollback => "PRAGMA journal_mode=DELETE; PRAGMA synchronous=EXTRA",
        };
        connection.execute_batch(&format!(
            "PRAGMA page_size={PAGE_SIZE}; {journal}; PRAGMA cache_size=-{};
             PRAGMA wal_autocheckpoint={}",
            memory / 1024,
            held_back / PAGE_SIZE
        ))?;
        Ok(connection)
    }

    fn with<T>(&self, body: impl FnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let result = body(&mut connection);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        result
    }
}

struct Session<'a>(&'a Connection);

impl Session<'_> {
    fn run(&self, sql: &str) -> Result<()> {
        self.0.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    fn transaction<T>(
        &mut self,
        begin: &str,
        body: impl FnOnce(&mut Self) -> Result<(bool, T)>,
    ) -> Result<T> {
        self.run(begin)?;
        match body(self) {
            Ok((commits, value)) => {
                self.run(if commits { "COMMIT" } else { "ROLLBACK" })?;
                Ok(value)
            }
            Err(error) => {
                self.run("ROLLBACK")?;
                Err(error)
            }
        }
    }
}

impl Txn for Session<'_> {
    fn get(&mut self, table: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let sql = [
            "SELECT v FROM t0 WHERE k=?1",
            "SELECT v FROM t1 WHERE k=?1",
            "SELECT v FROM t2 WHERE k=?1",
            "SELECT v FROM t3 WHERE k=?1",
            "SELECT v FROM t4 WHERE k=?1",
            "SELECT v FROM t5 WHERE k=?1",
        ];
        let mut statement = self.0.prepare_cached(sql[table])?;
        let found = statement.query_row([key], |row| {
            out.clear();
            out.extend_from_slice(row.get_ref(0)?.as_blob()?);
            Ok(())
        });
        Ok(found.optional()?.is_some())
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        let sql = [
            "REPLACE INTO t0 VALUES(?1,?2)",
            "REPLACE INTO t1 VALUES(?1,?2)",
            "REPLACE INTO t2 VALUES(?1,?2)",
            "REPLACE INTO t3 VALUES(?1,?2)",
            "REPLACE INTO t4 VALUES(?1,?2)",
            "REPLACE INTO t5 VALUES(?1,?2)",
        ];
        self.0.prepare_cached(sql[table])?.execute(params![key, value])?;
        Ok(())
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Result<()> {
        let sql = format!("DELETE FROM t{table} WHERE k=?1");
        self.0.prepare_cached(&sql)?.execute([key])?;
        Ok(())
    }

    fn scan(&mut self, table: usize, from: &[u8], each: Each<'_>) -> Result<()> {
        let sql = format!("SELECT k, v FROM t{table} WHERE k>=?1 ORDER BY k");
        let mut statement = self.0.prepare_cached(&sql)?;
        let mut rows = statement.query([from])?;
        while let Some(row) = rows.next()? {
            if !each(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?) {
                break;
            }
        }
        Ok(())
    }
}

impl Store for Sqlite {
    fn load(&self, table: usize, rows: Rows<'_>) -> Result<()> {
        self.with(|connection| {
            Session(connection).transaction("BEGIN IMMEDIATE", |session| {
                for (key, value) in rows {
                    session.put(table, &key, &value)?;
                }
                Ok((true, ()))
            })?;
            checkpoint(connection)
        })
    }

    fn write(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<bool>) -> Result<bool> {
        self.with(|connection| {
            Session(connection).transaction("BEGIN IMMEDIATE", |session| {
                let commits = body(session)?;
                Ok((commits, commits))
            })
        })
    }

    fn read(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<()>) -> Result<()> {
        self.with(|connection| {
            Session(connection).transaction("BEGIN", |session| {
                body(session)?;
                Ok((true, ()))
            })
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        for connection in self.idle.into_inner().unwrap_or_else(PoisonError::into_inner) {
            if let Err((_, error)) = connection.close() {
                bail!(error);
            }
        }
        Ok(())
    }
}

fn checkpoint(connection: &Connection) -> Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(())
}
