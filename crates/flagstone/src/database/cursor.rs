//! Cursors: a place in a table that moves both ways.
//!
//! Owns the place. Reads a batch at a time, in the direction it last went; turning around begins a batch of
//! its own. Invariant P1: the current row lies between the results of `next` and `prev`.

use std::fmt;

use flagstone_engine::{Direction, ScanRange, Table, successor};

use super::rows::{KeyValue, Range, RowRef};
use super::snapshot::Snapshot;
use super::transaction::Transaction;
use crate::{ReadError, WriteError};

/// Where a cursor stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Before the first row.
    Start,
    /// On the row with this key.
    At(Vec<u8>),
    /// Between rows, before the first one from this key on.
    Before(Vec<u8>),
    /// Behind the last row.
    End,
}

/// A place in a table, for reading: see [`Snapshot::cursor`] and [`Transaction::cursor`].
pub struct Cursor<'a> {
    view: View<'a>,
    table: Table,
    place: Place,
    value: Vec<u8>,
    ahead: Option<(Direction, Range<'a>)>,
}

/// Whose rows a cursor reads.
#[derive(Clone, Copy, Debug)]
enum View<'a> {
    Snapshot(&'a Snapshot),
    Transaction(&'a Transaction),
}

impl<'a> View<'a> {
    fn rows(self, table: Table, range: ScanRange) -> Range<'a> {
        match self {
            Self::Snapshot(snapshot) => snapshot.rows(table, range),
            Self::Transaction(transaction) => transaction.rows(table, range),
        }
    }
}

impl fmt::Debug for Cursor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor").field("place", &self.place).finish_non_exhaustive()
    }
}

impl<'a> Cursor<'a> {
    const fn new(view: View<'a>, table: Table) -> Self {
        Self { view, table, place: Place::Start, value: Vec::new(), ahead: None }
    }

    /// The row that the cursor stands on; none before the first, behind the last, and between two.
    #[must_use]
    pub fn current(&self) -> Option<RowRef<'_>> {
        match &self.place {
            Place::At(key) => Some((key, &self.value)),
            _ => None,
        }
    }

    /// Goes to the first row whose key is at or above `key`, and gives it; behind the last row when
    /// there is none.
    ///
    /// # Errors
    ///
    /// The errors of reading a row. The cursor then stands before `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<Option<RowRef<'_>>, ReadError> {
        self.jump(Place::Before(key.to_vec()));
        self.next()
    }

    /// Goes before the first row.
    pub fn rewind(&mut self) {
        self.jump(Place::Start);
    }

    /// Goes behind the last row.
    pub fn to_end(&mut self) {
        self.jump(Place::End);
    }

    fn jump(&mut self, place: Place) {
        (self.place, self.ahead) = (place, None);
    }

    /// Goes to the next row and gives it; behind the last row when there is none.
    ///
    /// # Errors
    ///
    /// The errors of reading a row. The cursor then stands where it was.
    #[expect(clippy::should_implement_trait, reason = "a row borrows from the cursor")]
    pub fn next(&mut self) -> Result<Option<RowRef<'_>>, ReadError> {
        self.step(Direction::Forward)
    }

    /// Goes to the row before and gives it; before the first row when there is none.
    ///
    /// # Errors
    ///
    /// The errors of reading a row. The cursor then stands where it was.
    pub fn prev(&mut self) -> Result<Option<RowRef<'_>>, ReadError> {
        self.step(Direction::Backward)
    }

    fn step(&mut self, direction: Direction) -> Result<Option<RowRef<'_>>, ReadError> {
        let rows = match self.ahead.take() {
            Some((known, rows)) if known == direction => rows,
            _ => self.rows(direction),
        };
        let (_, rows) = self.ahead.insert((direction, rows));
        match rows.next() {
            Some(Ok((key, value))) => (self.place, self.value) = (Place::At(key), value),
            Some(Err(error)) => {
                self.ahead = None;
                return Err(error);
            }
            None => self.jump(match direction {
                Direction::Forward => Place::End,
                Direction::Backward => Place::Start,
            }),
        }
        Ok(self.current())
    }

    /// The rows from here on.
    fn rows(&self, direction: Direction) -> Range<'a> {
        let (low, high) = match (direction, &self.place) {
            (Direction::Forward, Place::Start) | (Direction::Backward, Place::End) => {
                (Vec::new(), None)
            }
            (Direction::Forward, Place::At(key)) => (successor(key), None),
            (Direction::Forward, Place::Before(key)) => (key.clone(), None),
            (Direction::Backward, Place::At(key) | Place::Before(key)) => {
                (Vec::new(), Some(key.clone()))
            }
            // No key lies below the empty key.
            (Direction::Forward, Place::End) | (Direction::Backward, Place::Start) => {
                (Vec::new(), Some(Vec::new()))
            }
        };
        let rows = self.view.rows(self.table, ScanRange { low, high });
        match direction {
            Direction::Forward => rows,
            Direction::Backward => rows.rev(),
        }
    }
}

/// A place in a table, for reading and changing: see [`Transaction::cursor_mut`].
#[derive(Debug)]
pub struct CursorMut<'a> {
    transaction: &'a Transaction,
    cursor: Cursor<'a>,
}

impl CursorMut<'_> {
    /// As [`Cursor::current`].
    #[must_use]
    pub fn current(&self) -> Option<RowRef<'_>> {
        self.cursor.current()
    }

    /// As [`Cursor::seek`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn seek(&mut self, key: &[u8]) -> Result<Option<RowRef<'_>>, ReadError> {
        self.cursor.seek(key)
    }

    /// As [`Cursor::rewind`].
    pub fn rewind(&mut self) {
        self.cursor.rewind();
    }

    /// As [`Cursor::to_end`].
    pub fn to_end(&mut self) {
        self.cursor.to_end();
    }

    /// As [`Cursor::next`].
    ///
    /// # Errors
    ///
    /// As there.
    #[expect(clippy::should_implement_trait, reason = "a row borrows from the cursor")]
    pub fn next(&mut self) -> Result<Option<RowRef<'_>>, ReadError> {
        self.cursor.next()
    }

    /// As [`Cursor::prev`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prev(&mut self) -> Result<Option<RowRef<'_>>, ReadError> {
        self.cursor.prev()
    }

    /// Sets the value of the row that the cursor stands on; says whether there is such a row.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn put(&mut self, value: &[u8]) -> Result<bool, WriteError> {
        let Place::At(key) = &self.cursor.place else { return Ok(false) };
        let put = self.transaction.inner().put_row(self.cursor.table, key, value);
        put.map_err(WriteError::of)?;
        self.cursor.value = value.to_vec();
        Ok(true)
    }

    /// Deletes the row that the cursor stands on, and gives it. The cursor then stands between the neighbours
    /// of that row.
    ///
    /// # Errors
    ///
    /// See [`WriteError`].
    pub fn delete(&mut self) -> Result<Option<KeyValue>, WriteError> {
        let Place::At(key) = &self.cursor.place else { return Ok(None) };
        let key = key.clone();
        let deleted = self.transaction.inner().delete_row(self.cursor.table, &key);
        deleted.map_err(WriteError::of)?;
        self.cursor.jump(Place::Before(key.clone()));
        Ok(Some((key, std::mem::take(&mut self.cursor.value))))
    }
}

impl Transaction {
    /// A cursor before the first row of a table. Its first step locks the rest of the table ahead of it, as
    /// [`Transaction::range`] does.
    pub fn cursor(&self, table: Table) -> Cursor<'_> {
        Cursor::new(View::Transaction(self), table)
    }

    /// A cursor before the first row of a table, through which rows can be changed; locks as
    /// [`Transaction::cursor`].
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// let queue = db.table("queue")?;
    /// let mut txn = db.begin();
    /// for job in [b"1", b"2", b"3"] {
    ///     txn.put(queue, job, b"waits")?;
    /// }
    /// let mut cursor = txn.cursor_mut(queue);
    /// cursor.next()?;
    /// assert_eq!(cursor.delete()?, Some((b"1".to_vec(), b"waits".to_vec())));
    /// assert_eq!(cursor.next()?, Some((&b"2"[..], &b"waits"[..])));
    /// cursor.put(b"runs")?;
    /// txn.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cursor_mut(&mut self, table: Table) -> CursorMut<'_> {
        let transaction = &*self;
        CursorMut { transaction, cursor: transaction.cursor(table) }
    }
}

impl Snapshot {
    /// A cursor before the first row of a table.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("db");
    /// # let db = flagstone::Database::create(&path, &flagstone::Options::default())?;
    /// let fruit = db.table("fruit")?;
    /// let mut txn = db.begin();
    /// for name in ["apple", "banana", "cherry"] {
    ///     txn.put(fruit, name.as_bytes(), b"")?;
    /// }
    /// txn.commit()?;
    ///
    /// let snapshot = db.snapshot()?;
    /// let mut cursor = snapshot.cursor(fruit);
    /// assert_eq!(cursor.seek(b"b")?, Some((&b"banana"[..], &b""[..])));
    /// assert_eq!(cursor.prev()?, Some((&b"apple"[..], &b""[..])));
    /// assert_eq!(cursor.prev()?, None);
    /// assert_eq!(cursor.next()?, Some((&b"apple"[..], &b""[..])));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cursor(&self, table: Table) -> Cursor<'_> {
        Cursor::new(View::Snapshot(self), table)
    }
}
