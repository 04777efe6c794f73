//! Steps that read and change rows.
//!
//! Owns the expectations of these steps on the engine and on locks (rule D13). Never opens or ends
//! anything.

use flagstone_engine::EngineError;
use flagstone_nand::Crashable;

use super::super::script::{
    Direction, KEY_COUNT, KeyIndex, Op, Part, Size, key_bytes, value_bytes,
};
use super::super::subject::{Pairs, Subject};
use super::{LARGE_KEY_COUNT, LARGE_SIZE_MAX, Runner, RunnerRig, Stop, Violation};
use crate::model::{Access, KeyRange, SlotIndex, TableIndex};

impl<S: Subject<RunnerRig<C>>, C: Crashable> Runner<S, C> {
    /// Puts a value of `size` bytes, even where the table's rows usually have another size.
    ///
    /// # Errors
    ///
    /// Why the run ends here.
    pub fn put_value(
        &mut self,
        slot: SlotIndex,
        table: TableIndex,
        key: KeyIndex,
        size: usize,
    ) -> Result<(), Stop> {
        self.trace.steps += 1;
        self.put(Op::Put(slot, table, key, Size(u8::MAX)), slot, table, key, size)?;
        self.device_is_sound()
    }

    /// Where the model sees a conflict the engine must see one (rule D13). The step is skipped.
    pub(super) fn must_be_locked(
        &mut self,
        op: Op,
        range: &KeyRange,
        access: Access,
    ) -> Result<bool, Stop> {
        let key = KeyRange::of(range.table, &range.low);
        let asked = if access == Access::Write { &key } else { range };
        if self.model.is_free(asked, access) {
            return Ok(false);
        }
        let could_lock = |subject: &mut S| subject.could_lock(asked, access);
        let answer = match access {
            Access::Read => self.read_op(op, could_lock)?,
            Access::Write => self.ask_op(op, could_lock)?,
        };
        match answer {
            Some(Some(true)) => Err(Violation::Locked { doing: format!("{op:?}") }.into()),
            _ => Ok(false),
        }
    }

    pub(super) fn put(
        &mut self,
        op: Op,
        slot: SlotIndex,
        table: TableIndex,
        key: KeyIndex,
        size: usize,
    ) -> Result<(), Stop> {
        let key = key_bytes(table, key);
        if !self.may_touch(op, slot, KeyRange::of(table, &key), Access::Write)? {
            return Ok(());
        }
        let value = value_bytes(self.trace.steps, size);
        let put = |subject: &mut S| subject.put(slot, table, &key, &value);
        if self.change(op, slot, put)? {
            self.model.set(slot, (table, key), Some(value));
        }
        Ok(())
    }

    pub(super) fn put_large(
        &mut self,
        op: Op,
        slot: SlotIndex,
        table: TableIndex,
        key: KeyIndex,
        size: Size,
    ) -> Result<(), Stop> {
        let size = 200 + usize::from(size.0) * (LARGE_SIZE_MAX - 200) / 255;
        self.put(op, slot, table, KeyIndex(key.0 % LARGE_KEY_COUNT), size)
    }

    pub(super) fn fill(
        &mut self,
        op: Op,
        slot: SlotIndex,
        table: TableIndex,
        size: Size,
    ) -> Result<(), Stop> {
        // It locks the keys it puts and not the table: the model may claim no more of the engine.
        let all = KeyRange { table, low: Vec::new(), high: None };
        if !self.model.may_lock(slot, &all, Access::Write) || !self.ensure_open(slot, op)? {
            return Ok(());
        }
        for key in (0..KEY_COUNT).map(KeyIndex) {
            if !self.model.is_open(slot) {
                break;
            }
            self.put(op, slot, table, key, row_size(table, size))?;
        }
        Ok(())
    }

    pub(super) fn patch(
        &mut self,
        op: Op,
        slot: SlotIndex,
        table: TableIndex,
        key: KeyIndex,
        part: Part,
    ) -> Result<(), Stop> {
        let key = key_bytes(table, key);
        if !self.may_touch(op, slot, KeyRange::of(table, &key), Access::Write)? {
            return Ok(());
        }
        let address = (table, key);
        let old = self.model.get(slot, &address).map(<[u8]>::to_vec);
        let (offset, size) = old.as_ref().map_or((0, 1), |value| part_of(value.len(), part));
        let bytes = value_bytes(self.trace.steps, size);
        let patch = |subject: &mut S| subject.patch(slot, table, &address.1, offset, &bytes);
        let Some(mut value) = old else {
            return self.must_refuse_patch(op, slot, patch);
        };
        if self.change(op, slot, patch)? {
            value.splice(offset..offset + size, bytes);
            self.model.set(slot, address, Some(value));
        }
        Ok(())
    }

    /// A patch of a missing key is refused and changes nothing. Where there was no room for the
    /// question, the transaction is given up, as after any change.
    pub(super) fn must_refuse_patch(
        &mut self,
        op: Op,
        slot: SlotIndex,
        patch: impl FnOnce(&mut S) -> Result<(), EngineError>,
    ) -> Result<(), Stop> {
        let answer = self.subject.as_mut().map(patch);
        match answer {
            None | Some(Err(EngineError::PatchOutOfRange { .. })) => Ok(()),
            Some(Ok(())) => Err(Violation::Accepted { doing: format!("{op:?}") }.into()),
            Some(Err(error)) => {
                self.refused(&format!("{op:?}"), &error)?;
                self.abort(slot)
            }
        }
    }

    pub(super) fn delete(
        &mut self,
        op: Op,
        slot: SlotIndex,
        table: TableIndex,
        key: KeyIndex,
    ) -> Result<(), Stop> {
        let key = key_bytes(table, key);
        if !self.may_touch(op, slot, KeyRange::of(table, &key), Access::Write)? {
            return Ok(());
        }
        if self.change(op, slot, |subject| subject.delete(slot, table, &key))? {
            self.model.set(slot, (table, key), None);
        }
        Ok(())
    }

    pub(super) fn get(
        &mut self,
        op: Op,
        slot: SlotIndex,
        table: TableIndex,
        key: KeyIndex,
    ) -> Result<(), Stop> {
        let key = key_bytes(table, key);
        if !self.may_touch(op, slot, KeyRange::of(table, &key), Access::Read)? {
            return Ok(());
        }
        let found = self.read_op(op, |subject| subject.get(slot, table, &key))?;
        let expected = self.model.get(slot, &(table, key)).map(<[u8]>::to_vec);
        self.compare(op, slot, found, &expected)
    }

    pub(super) fn get_part(
        &mut self,
        op: Op,
        slot: SlotIndex,
        table: TableIndex,
        key: KeyIndex,
        part: Part,
    ) -> Result<(), Stop> {
        let key = key_bytes(table, key);
        if !self.may_touch(op, slot, KeyRange::of(table, &key), Access::Read)? {
            return Ok(());
        }
        let address = (table, key);
        let whole = self.model.get(slot, &address);
        let (offset, size) = whole.map_or((0, 1), |value| part_of(value.len(), part));
        let expected = whole.map(|value| value[offset..offset + size].to_vec());
        let get = |subject: &mut S| subject.get_part(slot, table, &address.1, offset, size);
        let found = self.read_op(op, get)?;
        self.compare(op, slot, found, &expected)
    }

    pub(super) fn scan(
        &mut self,
        op: Op,
        slot: SlotIndex,
        range: KeyRange,
        direction: Direction,
    ) -> Result<(), Stop> {
        if !self.may_touch(op, slot, range.clone(), Access::Read)? {
            return Ok(());
        }
        let found = self.read_op(op, |subject| subject.scan(slot, &range, direction))?;
        let view = self.model.view(slot);
        let expected =
            in_direction(view.range(range.table, &range.low, range.high.as_deref()), direction);
        self.compare(op, slot, found, &expected)
    }
}

/// Bytes of a row: one size in the first table, any size up to a quarter page in the others.
pub(super) fn row_size(table: TableIndex, size: Size) -> usize {
    match table.0 {
        0 => 24,
        1 => usize::from(size.0) / 2,
        _ => usize::from(size.0) / 8,
    }
}

fn part_of(size: usize, part: Part) -> (usize, usize) {
    let offset = size * usize::from(part.offset) / 256;
    let rest = size - offset;
    (offset, rest.min(1 + rest * usize::from(part.size) / 256))
}

pub(super) fn key_range(table: TableIndex, one: KeyIndex, other: KeyIndex) -> KeyRange {
    let (one, other) = (key_bytes(table, one), key_bytes(table, other));
    let (low, high) = if one <= other { (one, other) } else { (other, one) };
    KeyRange { table, low, high: Some(high) }
}

pub(super) fn in_direction(pairs: Vec<(&[u8], &[u8])>, direction: Direction) -> Pairs {
    let owned = pairs.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec()));
    match direction {
        Direction::Forward => owned.collect(),
        Direction::Backward => owned.rev().collect(),
    }
}
