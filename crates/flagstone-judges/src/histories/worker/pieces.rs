//! Pieces of a transaction: the reads and writes of one kind, drawn and recorded.
//!
//! Owns the calls of each kind of piece. Never begins or ends a transaction.

use super::super::draft::Draft;
use super::super::program::{Lot, Piece};
use super::super::record::{Area, Finding, Key};
use super::super::value::Value;
use super::super::world::{Churn, GROUPS, Stop, churn_hash, churn_name};
use super::Worker;

impl Worker<'_> {
    pub(super) fn build(
        &mut self,
        draft: &mut Draft<'_>,
        lot: &Lot,
        churn: &mut Churn,
        counts: bool,
    ) -> Result<(), Stop> {
        for _ in 0..self.draw.between(1, lot.pieces_max) {
            let piece = lot.piece(&mut self.draw);
            self.piece(draft, piece, churn)?;
        }
        if counts {
            let key = Key::new(Area::Counters, self.thread as u32);
            let old = draft.get(key)?;
            let number = self.counted + 1;
            match old {
                Some(old) if self.draw.one_in(2) => draft.patch(key, &old, number)?,
                _ => {
                    let (version, filler) = (draft.next_version(), self.filler());
                    draft.put(key, Value::plain(version, number, filler))?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn piece(
        &mut self,
        draft: &mut Draft<'_>,
        piece: Piece,
        churn: &mut Churn,
    ) -> Result<(), Stop> {
        match piece {
            Piece::Append => self.append(draft),
            Piece::Set => self.set(draft),
            Piece::Transfer => self.transfer(draft),
            Piece::Spread => self.spread(draft),
            Piece::Read => self.read(draft),
            Piece::Scan => self.scan(draft),
            Piece::Member => self.member(draft),
            Piece::Tag => {
                let row = self.row(4);
                draft.tag(row, 6)
            }
            Piece::Churn => self.churn_rows(draft, churn),
            Piece::TakenBack => self.taken_back(draft),
            Piece::Many => self.many(draft),
        }
    }

    fn append(&mut self, draft: &mut Draft<'_>) -> Result<(), Stop> {
        for _ in 0..self.draw.between(1, 3) {
            let (key, locks) = (self.key(Area::Lists), self.draw.one_in(2));
            self.append_to(draft, key, locks)?;
        }
        Ok(())
    }

    fn set(&mut self, draft: &mut Draft<'_>) -> Result<(), Stop> {
        for _ in 0..self.draw.between(1, 4) {
            let key = self.key(Area::Registers);
            match self.draw.below(8) {
                0 => draft.delete(key)?,
                1 => {
                    draft.lock(key)?;
                    if let Some(old) = draft.get(key)? {
                        let number = old.number;
                        draft.patch(key, &old, number + 1)?;
                    }
                }
                _ => self.put(draft, key)?,
            }
        }
        Ok(())
    }

    fn transfer(&mut self, draft: &mut Draft<'_>) -> Result<(), Stop> {
        let amount = self.draw.below(1_000) as i64;
        for change in [-amount, amount] {
            let (key, locks) = (self.key(Area::Bank), self.draw.one_in(2));
            self.add(draft, key, change, locks)?;
        }
        Ok(())
    }

    /// Moves money from many accounts to one of them: neighbours, or scattered ones.
    fn spread(&mut self, draft: &mut Draft<'_>) -> Result<(), Stop> {
        let (first, step) = (self.row(1), self.draw.pick(&[1, 7, 7]));
        let (count, locks) = (self.draw.between(3, 24) as u32, !self.draw.one_in(4));
        for number in 1..=count {
            let key = Key::new(Area::Bank, (first + number * step) % self.world.program.rows);
            self.add(draft, key, -1, locks)?;
        }
        self.add(draft, Key::new(Area::Bank, first), i64::from(count), locks)
    }

    fn append_to(&mut self, draft: &mut Draft<'_>, key: Key, locks: bool) -> Result<(), Stop> {
        if locks {
            draft.lock(key)?;
        }
        let filler = self.filler();
        draft.append(key, filler)
    }

    fn put(&mut self, draft: &mut Draft<'_>, key: Key) -> Result<(), Stop> {
        let (version, filler) = (draft.next_version(), self.filler());
        draft.put(key, Value::plain(version, 0, filler))
    }

    /// Changes an account.
    fn add(
        &mut self,
        draft: &mut Draft<'_>,
        key: Key,
        change: i64,
        locks: bool,
    ) -> Result<(), Stop> {
        if locks {
            draft.lock(key)?;
        }
        match draft.get(key)? {
            Some(old) if self.draw.one_in(3) => draft.patch(key, &old, old.number + change),
            old => {
                let number = old.map_or(0, |old| old.number) + change;
                let (version, filler) = (draft.next_version(), self.filler());
                draft.put(key, Value::plain(version, number, filler))
            }
        }
    }

    fn read(&mut self, draft: &mut Draft<'_>) -> Result<(), Stop> {
        for _ in 0..self.draw.between(1, 6) {
            let area = self.draw.pick(&[Area::Lists, Area::Registers, Area::Registers, Area::Bank]);
            let key = self.key(area);
            draft.get(key)?;
        }
        Ok(())
    }

    fn scan(&mut self, draft: &mut Draft<'_>) -> Result<(), Stop> {
        let area = self.draw.pick(&[Area::Registers, Area::Registers, Area::Lists, Area::Bank]);
        let first = self.key(area);
        let last = Key { row: first.row + self.draw.below(24) as u32, ..first };
        let rows = draft.scan(first, last)?;
        if area == Area::Registers && self.draw.one_in(2) {
            let row = first.row + self.draw.below(24) as u32;
            let (version, filler) = (draft.next_version(), self.filler());
            let number = rows.len() as i64;
            draft.put(Key::new(area, row), Value::plain(version, number, filler))?;
        }
        Ok(())
    }

    fn member(&mut self, draft: &mut Draft<'_>) -> Result<(), Stop> {
        let row = self.row(4);
        match self.draw.below(6) {
            0 => draft.delete_member(row),
            1 => draft.read_member(row).map(drop),
            2 => {
                let group = self.draw.below(GROUPS);
                draft.find_members(group)
            }
            _ => {
                let (group, filler) = (self.draw.below(GROUPS), self.filler().min(400));
                draft.set_member(row, group, filler)
            }
        }
    }

    fn taken_back(&mut self, draft: &mut Draft<'_>) -> Result<(), Stop> {
        self.set(draft)?;
        let mark = draft.mark()?;
        self.transfer(draft)?;
        self.append(draft)?;
        if self.draw.one_in(3) {
            self.many(draft)?;
        }
        if self.draw.one_in(4) {
            return Ok(());
        }
        draft.take_back(mark)?;
        self.set(draft)
    }

    fn many(&mut self, draft: &mut Draft<'_>) -> Result<(), Stop> {
        let first = self.key(Area::Registers).row;
        for row in first..first + self.draw.between(20, 200) as u32 {
            self.put(draft, Key::new(Area::Registers, row))?;
        }
        Ok(())
    }

    /// Writes rows of one of the thread's own tables.
    fn churn_rows(&mut self, draft: &mut Draft<'_>, churn: &mut Churn) -> Result<(), Stop> {
        let numbers: Vec<u32> = churn.keys().copied().collect();
        if numbers.is_empty() {
            return Ok(());
        }
        let number = self.draw.pick(&numbers);
        let name = churn_name(self.thread, number);
        let table = self.world.db.existing_table(&name)?;
        let table = table.ok_or_else(|| Finding::new("tables", format!("{name} is gone")))?;
        let rows = churn.entry(number).or_default();
        for _ in 0..self.draw.between(1, 12) {
            let row = self.draw.below(60) as u32;
            if self.draw.one_in(4) {
                draft.delete_raw(table, row)?;
                rows.remove(&row);
            } else {
                let version = draft.next_version();
                let filler = self.world.program.filler(&mut self.draw);
                draft.put_raw(table, row, &Value::plain(version, 0, filler))?;
                rows.insert(row, version);
            }
        }
        draft.churned(self.thread, churn_hash(churn));
        Ok(())
    }
}
