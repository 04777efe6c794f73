//! One transaction in the making: carries out the program's pieces, and notes down its reads.
//!
//! - **T1** A transaction's reads of its own writes are checked at once; it notes only reads of other transactions'
//!   writes.

use hashbrown::HashMap;

use flagstone::{CommitError, Durability, ReadError, Savepoint, Table, Transaction};

use super::record::{Area, Finding, Key, List, Look, Op, Outcome, Txn, TxnId, Version};
use super::value::Value;
use super::world::{GROUP, Stop, World, decoded, member_filler, note_read, row_of};

/// Rows as the transaction that wrote them sees them.
type Own = HashMap<Key, Option<Value>>;

/// A point to go back to.
pub(crate) struct Mark {
    savepoint: Savepoint,
    own: Own,
    writes: usize,
}

/// A transaction in the making.
pub(crate) struct Draft<'a> {
    world: &'a World<'a>,
    txn: Option<Transaction>,
    id: TxnId,
    begun: u64,
    ops: Vec<Op>,
    own: Own,
    writes: Vec<(Key, Version, Look)>,
    operations: u64,
}

impl<'a> Draft<'a> {
    pub(crate) fn begin(world: &'a World<'a>, id: TxnId) -> Self {
        let begun = world.stamp();
        Self {
            world,
            txn: Some(world.db.begin()),
            id,
            begun,
            ops: Vec::new(),
            own: Own::new(),
            writes: Vec::new(),
            operations: 0,
        }
    }

    fn txn(&mut self) -> Result<&mut Transaction, Stop> {
        self.txn.as_mut().ok_or(Stop::Retry)
    }

    /// The version of the next write.
    pub(crate) fn next_version(&mut self) -> Version {
        self.operations += 1;
        self.id.version(self.operations)
    }

    fn table(&self, key: Key) -> Table {
        self.world.tables.of(key.area)
    }

    /// Notes a read, unless the row is the transaction's own (T1).
    fn note(&mut self, key: Key, found: Option<&Value>) -> Result<(), Stop> {
        match self.own.get(&key) {
            Some(own) if own.as_ref() == found => Ok(()),
            Some(own) => {
                let text =
                    format!("{}: {key} is {own:?} to its writer, but reads {found:?}", self.id);
                Err(Finding::new("own write", text).into())
            }
            None => {
                note_read(&mut self.ops, key, found);
                Ok(())
            }
        }
    }

    /// The value of a row.
    pub(crate) fn get(&mut self, key: Key) -> Result<Option<Value>, Stop> {
        let table = self.table(key);
        let bytes = self.txn()?.get(table, &key.row.to_be_bytes())?;
        let value = bytes.map(|bytes| decoded(key, &bytes)).transpose()?;
        self.note(key, value.as_ref())?;
        Ok(value)
    }

    /// Locks a row that is going to be read and changed.
    pub(crate) fn lock(&mut self, key: Key) -> Result<(), Stop> {
        let table = self.table(key);
        Ok(self.txn()?.lock_key(table, &key.row.to_be_bytes())?)
    }

    pub(crate) fn put(&mut self, key: Key, value: Value) -> Result<(), Stop> {
        let table = self.table(key);
        self.txn()?.put(table, &key.row.to_be_bytes(), &value.encode())?;
        self.wrote(key, value.version, Look::Version(value.version));
        self.own.insert(key, Some(value));
        Ok(())
    }

    /// Changes version and number of a value, and no other byte.
    pub(crate) fn patch(&mut self, key: Key, old: &Value, number: i64) -> Result<(), Stop> {
        let value = Value { version: self.next_version(), number, ..old.clone() };
        let table = self.table(key);
        self.txn()?.patch(table, &key.row.to_be_bytes(), 0, &value.patched())?;
        self.wrote(key, value.version, Look::Version(value.version));
        self.own.insert(key, Some(value));
        Ok(())
    }

    pub(crate) fn delete(&mut self, key: Key) -> Result<(), Stop> {
        let (table, version) = (self.table(key), self.next_version());
        self.txn()?.delete(table, &key.row.to_be_bytes())?;
        self.wrote(key, version, Look::Absent);
        self.own.insert(key, None);
        Ok(())
    }

    fn wrote(&mut self, key: Key, version: Version, look: Look) {
        self.writes.push((key, version, look));
    }

    /// Appends to a list.
    pub(crate) fn append(&mut self, key: Key, filler: u32) -> Result<(), Stop> {
        let mut list = self.get(key)?.map_or_else(List::default, |value| value.to_list());
        let version = self.next_version();
        list.push(version);
        self.put(key, Value::list(version, &list, filler))
    }

    /// Reads rows from `first` to `last`.
    pub(crate) fn scan(&mut self, first: Key, last: Key) -> Result<Vec<(Key, Value)>, Stop> {
        let table = self.table(first);
        let (start, end) = (first.row.to_be_bytes(), last.row.to_be_bytes());
        let mut rows = Vec::new();
        for row in self.txn()?.range(table, &start[..]..=&end[..]) {
            let (key, bytes) = row?;
            let key = Key::new(first.area, row_of(&key)?);
            rows.push((key, decoded(key, &bytes)?));
        }
        for (key, own) in self.own.iter().filter(|(key, _)| **key >= first && **key <= last) {
            let found = rows.iter().find(|(found, _)| found == key).map(|(_, value)| value);
            if found != own.as_ref() {
                let text =
                    format!("{}: {key} is {own:?} to its writer, a scan has {found:?}", self.id);
                return Err(Finding::new("own write", text).into());
            }
        }
        let looks = |(key, value): &(Key, Value)| (*key, Look::Version(value.version));
        self.note_scan(first, last, rows.iter().map(looks).collect());
        for (key, value) in rows.iter().filter(|(key, _)| key.area == Area::Lists) {
            self.ops.push(Op::List(*key, value.to_list()));
        }
        Ok(rows)
    }

    /// Notes a scan. The transaction's own rows are as it wrote them (T1): the checker leaves them out.
    fn note_scan(&mut self, first: Key, last: Key, rows: Vec<(Key, Look)>) {
        self.ops.push(Op::Scan { first, last, rows });
    }

    /// Sets a member, and so its entry in the index.
    pub(crate) fn set_member(&mut self, row: u32, group: u64, filler: u32) -> Result<(), Stop> {
        let (members, version) = (self.world.tables.members.clone(), self.next_version());
        self.read_member(row)?;
        let member = (version.0, group, member_filler(version, filler));
        members.put(self.txn()?, &row, &member)?;
        let key = Key::new(Area::Members, row);
        self.wrote(key, version, Look::Version(version));
        self.own.insert(key, Some(Value::plain(version, group as i64, filler)));
        Ok(())
    }

    pub(crate) fn delete_member(&mut self, row: u32) -> Result<(), Stop> {
        let (members, version) = (self.world.tables.members.clone(), self.next_version());
        if self.read_member(row)?.is_none() {
            // Without a row there is nothing to delete.
            members.delete(self.txn()?, &row)?;
            return Ok(());
        }
        members.delete(self.txn()?, &row)?;
        let key = Key::new(Area::Members, row);
        self.wrote(key, version, Look::Absent);
        self.own.insert(key, None);
        Ok(())
    }

    /// Reads a member by its row.
    pub(crate) fn read_member(&mut self, row: u32) -> Result<Option<u64>, Stop> {
        let members = self.world.tables.members.clone();
        let found = members.get(self.txn()?, &row)?;
        let value = found.as_ref().map(|(version, group, filler)| {
            Value::plain(Version(*version), *group as i64, filler.len() as u32)
        });
        self.note(Key::new(Area::Members, row), value.as_ref())?;
        Ok(found.map(|(_, group, _)| group))
    }

    /// Reads all members of a group by the index.
    pub(crate) fn find_members(&mut self, group: u64) -> Result<(), Stop> {
        let members = self.world.tables.members.clone();
        let rows: Vec<u32> =
            members.find_keys(self.txn()?, &GROUP, &group)?.collect::<Result<_, ReadError>>()?;
        for row in rows {
            let found = self.read_member(row)?;
            if found != Some(group) {
                let text = format!(
                    "{}: the index has member {row} in {group}, the row {found:?}",
                    self.id
                );
                return Err(Finding::new("index", text).into());
            }
        }
        Ok(())
    }

    /// Adds a tag to a row; takes the oldest ones away where there are many.
    pub(crate) fn tag(&mut self, row: u32, count_max: usize) -> Result<(), Stop> {
        let tags = self.world.tables.tags;
        let key = |value: u64| Key { area: Area::Tags, row, value };
        let version = self.next_version();
        tags.insert(self.txn()?, &row, &version.0)?;
        self.wrote(key(version.0), version, Look::Version(version));
        if !version.0.is_multiple_of(3) {
            return Ok(());
        }
        let values: Vec<u64> = tags.values(self.txn()?, &row).collect::<Result<_, ReadError>>()?;
        let looks = values.iter().map(|value| (key(*value), Look::Version(Version(*value))));
        self.note_scan(key(0), key(u64::MAX), looks.collect());
        let surplus = values.len().saturating_sub(count_max);
        for value in values.into_iter().take(surplus) {
            let removed = self.next_version();
            tags.remove(self.txn()?, &row, &value)?;
            self.wrote(key(value), removed, Look::Absent);
        }
        Ok(())
    }

    /// Writes a row of a table of [`Area::Churn`]; the caller notes the new look of its tables.
    pub(crate) fn put_raw(&mut self, table: Table, row: u32, value: &Value) -> Result<(), Stop> {
        Ok(self.txn()?.put(table, &row.to_be_bytes(), &value.encode())?)
    }

    pub(crate) fn delete_raw(&mut self, table: Table, row: u32) -> Result<(), Stop> {
        Ok(self.txn()?.delete(table, &row.to_be_bytes())?)
    }

    /// Notes the look of a thread's tables after this commit.
    pub(crate) fn churned(&mut self, thread: u64, hash: u64) {
        let version = self.next_version();
        self.wrote(Key::new(Area::Churn, thread as u32), version, Look::Content(hash));
    }

    pub(crate) fn mark(&mut self) -> Result<Mark, Stop> {
        let savepoint = self.txn()?.savepoint()?;
        Ok(Mark { savepoint, own: self.own.clone(), writes: self.writes.len() })
    }

    /// Takes back all writes since `mark`.
    pub(crate) fn take_back(&mut self, mark: Mark) -> Result<(), Stop> {
        self.txn()?.rollback_to(mark.savepoint)?;
        let taken = self.writes.split_off(mark.writes);
        self.ops.extend(taken.into_iter().map(|(_, version, _)| Op::Hidden(version)));
        self.own = mark.own;
        Ok(())
    }

    /// The transaction as it is known before its commit.
    pub(crate) fn intent(&mut self, durability: Durability) -> Txn {
        let mut ops = std::mem::take(&mut self.ops);
        let mut last = HashMap::new();
        for (index, (key, ..)) in self.writes.iter().enumerate() {
            last.insert(*key, index);
        }
        for (index, (key, version, look)) in self.writes.iter().enumerate() {
            ops.push(match last.get(key) == Some(&index) {
                true => Op::Write(*key, *version, *look),
                false => Op::Hidden(*version),
            });
        }
        let lists = self.own.iter().filter(|(key, _)| key.area == Area::Lists);
        ops.extend(lists.filter_map(|(key, own)| Some(Op::List(*key, own.as_ref()?.to_list()))));
        Txn {
            id: self.id,
            begun: self.begun,
            ended: None,
            outcome: Outcome::Unknown,
            is_durable: durability != Durability::Deferred,
            ops,
        }
    }

    /// Commits; gives the place in the order of commits.
    pub(crate) fn commit(mut self, durability: Durability) -> Result<u64, CommitError> {
        let txn = self.txn.take().ok_or(CommitError::Ended)?;
        Ok(txn.commit_with(durability)?.lsn.0)
    }
}
