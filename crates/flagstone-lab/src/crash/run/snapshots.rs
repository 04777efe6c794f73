//! Steps with snapshots, of a session and named ones that last.
//!
//! Owns which states they may show. Never changes rows.

use std::sync::Arc;

use flagstone_nand::Crashable;

use super::super::script::{Direction, KeyIndex, Op, key_bytes};
use super::super::subject::Subject;
use super::rows::in_direction;
use super::{KEPT_MAX, Runner, RunnerRig, Stop, Violation};
use crate::model::{Contents, SlotIndex, TableIndex};

impl<S: Subject<RunnerRig<C>>, C: Crashable> Runner<S, C> {
    pub(super) fn snapshot_open(&mut self, op: Op, slot: SlotIndex) -> Result<(), Stop> {
        if !self.model.has_snapshot(slot)
            && self.read_op(op, |subject| subject.snapshot(slot))?.is_some()
        {
            self.model.snapshot(slot);
        }
        Ok(())
    }

    pub(super) fn snapshot_scan(
        &mut self,
        op: Op,
        slot: SlotIndex,
        table: TableIndex,
        direction: Direction,
    ) -> Result<(), Stop> {
        if !self.model.has_snapshot(slot) {
            return Ok(());
        }
        let scan = |subject: &mut S| subject.snapshot_scan(slot, table, direction);
        let Some(found) = self.ask_snapshot(op, slot, scan)? else {
            return Ok(());
        };
        let agrees =
            |state: &Contents| in_direction(state.range(table, b"", None), direction) == found;
        self.must_agree(op, slot, agrees)
    }

    pub(super) fn snapshot_get(
        &mut self,
        op: Op,
        slot: SlotIndex,
        table: TableIndex,
        key: KeyIndex,
    ) -> Result<(), Stop> {
        if !self.model.has_snapshot(slot) {
            return Ok(());
        }
        let address = (table, key_bytes(table, key));
        let get = |subject: &mut S| subject.snapshot_get(slot, table, &address.1);
        let Some(found) = self.ask_snapshot(op, slot, get)? else {
            return Ok(());
        };
        self.must_agree(op, slot, |state| state.get(&address) == found.as_deref())
    }

    pub(super) fn snapshot_close(&mut self, slot: SlotIndex) -> Result<(), Stop> {
        if self.model.has_snapshot(slot) {
            if let Some(subject) = &mut self.subject {
                subject.snapshot_close(slot);
            }
            self.model.snapshot_closed(slot);
        }
        Ok(())
    }

    pub(super) fn must_agree(
        &mut self,
        op: Op,
        slot: SlotIndex,
        agrees: impl Fn(&Contents) -> bool,
    ) -> Result<(), Stop> {
        if self.model.snapshot_agrees(slot, agrees) {
            return Ok(());
        }
        let found = String::from("a mixture of states");
        let expected = String::from("one state from the durable one on");
        Err(Violation::Read { doing: format!("{op:?}"), found, expected }.into())
    }

    /// Keeps a snapshot, unless there are enough.
    pub(super) fn keep(&mut self, op: Op) -> Result<(), Stop> {
        if self.model.kept_names().len() >= KEPT_MAX {
            return Ok(());
        }
        let name = format!("kept {}", self.trace.steps);
        self.model.keep_asked(&name);
        self.rig.mark(Arc::new(self.model.clone()));
        let is_kept = self.ask_op(op, |subject| subject.keep(&name))?.is_some();
        match is_kept && self.keeps_snapshots()? {
            true => {
                self.model.keep_done();
                self.trace.kept += 1;
            }
            false => self.model.keep_refused(),
        }
        self.rig.mark(Arc::new(self.model.clone()));
        Ok(())
    }

    /// Whether the engine keeps snapshots at all.
    pub(super) fn keeps_snapshots(&mut self) -> Result<bool, Stop> {
        Ok(self.read("list kept snapshots", S::kept)?.flatten().is_some())
    }

    pub(super) fn drop_kept(&mut self, op: Op, index: u8) -> Result<(), Stop> {
        let names = self.model.kept_names();
        let Some(name) = names.get(usize::from(index) % names.len().max(1)) else { return Ok(()) };
        self.model.drop_asked(name);
        self.rig.mark(Arc::new(self.model.clone()));
        if self.ask_op(op, |subject| subject.drop_kept(name))?.is_some() {
            self.model.drop_done();
        }
        self.rig.mark(Arc::new(self.model.clone()));
        Ok(())
    }

    /// Compares kept snapshots with the model.
    pub(super) fn check_kept(&mut self) -> Result<(), Stop> {
        let Some(found) = self.read("read kept snapshots", S::kept)?.flatten() else {
            return Ok(());
        };
        self.model.settle_kept(&found).map_err(|what| Violation::Differs(what).into())
    }
}
