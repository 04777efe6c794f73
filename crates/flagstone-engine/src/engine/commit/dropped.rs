//! Dropped tables: their pages are given back, a few at a time.
//!
//! ```text
//!              commit             clear                                       last record
//!  (a table) ─────────▶ Waiting ────────▶ Cleared ──▶ Covered ──▶ Releasing ─────────────▶ (nothing)
//!                       for snapshots     for a checkpoint        node by node, children
//!                       before the drop   that begins now         before their parents
//! ```
//!
//! | transition | function | may be relied on afterwards |
//! | --- | --- | --- |
//! | commit → Waiting | `note_drops` | the transaction had the whole table to itself |
//! | Waiting → Cleared | `clear` | the drop is durable, and no snapshot reads a state before it |
//! | Cleared → Covered → Releasing | `drops_covered`, `drops_saved` | inner nodes on flash are complete |
//! | Releasing → Releasing | `drop_step`, `visited`, `freed` | each record is durable before its pages go |
//! | Releasing → (nothing) | `freed` | no page is left, nor the entry in the catalog |
//!
//! Invariants:
//! - **X1** The entry of a dropped table stays in the catalog, under a key that no name can be, until
//!   its last page is free: a restart finds the entry there and begins again with `Waiting`.
//! - **X2** The release begins after a checkpoint that began when the table had no change in memory. So
//!   the only records of the table that restart reads are the records of its release.
//! - **X3** A node goes no earlier than all nodes below it, so that every page that is left can be
//!   found from the root. A page whose number has another owner by now is recognised by the tree in its
//!   image: no page of a dropped table is written any more.
//! - **X4** The record that frees the root stands before the commit that takes the entry away, and the
//!   root is free when both are durable: its number gets no other owner while the entry names it.
//! - **X5** The number of a table that is gone never names another one.

use flagstone_space::{GroupId, Lsn};

use crate::delta::{KeyRange, Op};
use crate::engine::commit::Commits;
use crate::engine::commit::job::{Job, Next};
use crate::engine::step::Step;
use crate::engine::store::catalog::{CATALOG, Table, Tree, tombstone};
use crate::engine::store::dropped::{Dropped, Phase, Visit, Visited};
use crate::engine::store::log_records::InstallParts;
use crate::engine::store::private_key::private_key;
use crate::engine::txn::Transactions;
use crate::engine::txn::dropped::Freed;
use crate::engine::txn::transaction::Transaction;
use crate::lock::Xid;
use crate::node::{NodeView, ValueRef};

impl Commits {
    /// Gives a transaction sole use of a table that it is going to drop: its commit drops it.
    pub(crate) fn note_drop(&mut self, xid: Xid, table: Table) -> Step<()> {
        let transaction = self.transaction(xid)?;
        if !transaction.drops.contains(&table) {
            transaction.drops.push(table);
        }
        // Its change of the catalog adds no more than it takes away, and the drop makes room.
        transaction.growth = 0;
        Ok(())
    }

    /// The tables that a transaction dropped are gone for every later transaction.
    pub(super) fn note_drops(&mut self, tables: &[Table], lsn: Lsn) {
        for table in tables {
            self.mark_dropped(*table, lsn);
        }
    }

    /// Forgets drops above the durable frontier: the engine is poisoned, and the drops may not have
    /// happened.
    pub(in crate::engine) fn forget_drops(&mut self, durable: Lsn) {
        for tree in &mut self.trees {
            tree.dropped.take_if(|dropped| dropped.lsn > durable);
        }
        let Transactions { store, drops, .. }: &mut Transactions = self;
        let is_dropped =
            |id: u32| store.trees.get(id as usize).is_some_and(|tree| tree.dropped.is_some());
        drops.tables.retain(|id| is_dropped(*id));
    }

    /// Whether the rest of a dropped table can be freed: no snapshot from before the drop is in the
    /// way.
    pub(crate) fn may_free(&self, table: Table) -> bool {
        let dropped = self.trees.get(table.id as usize).and_then(|tree| tree.dropped.as_ref());
        dropped.is_some_and(|dropped| !self.hides_from_snapshot(dropped.lsn)) && !self.is_poisoned()
    }

    /// Whether work can be done now for a table that was dropped.
    pub(in crate::engine) fn has_drop_work(&self) -> bool {
        self.next_dropped().is_some()
    }

    /// Whether pages can be freed: their record is durable.
    pub(in crate::engine) fn has_durable_freed(&self) -> bool {
        self.drops.freed.front().is_some_and(|freed| freed.lsn <= self.durable())
    }

    /// Pages whose record is durable.
    pub(in crate::engine) fn take_freed(&mut self) -> Option<Freed> {
        if self.has_durable_freed() { self.drops.freed.pop_front() } else { None }
    }

    /// A dropped table whose release can go on now.
    fn next_dropped(&self) -> Option<u32> {
        if self.drops.tables.is_empty() || self.frontier.replaying.is_some() || self.is_log_full() {
            return None;
        }
        let can_go_on = |id: &&u32| {
            let Some(tree) = self.trees.get(**id as usize) else { return false };
            tree.dropped.as_ref().is_some_and(|dropped| match dropped.phase {
                Phase::Waiting => self.may_clear(tree, dropped),
                Phase::Cleared | Phase::Covered => false,
                Phase::Releasing => {
                    let next = dropped.open.last();
                    // One record at a time.
                    self.drops.freed.is_empty()
                        && dropped.reading.is_none()
                        && next.is_none_or(|next| !self.groups.busy.contains(&next.page()))
                }
            })
        };
        self.drops.tables.iter().find(can_go_on).copied()
    }

    fn may_clear(&self, tree: &Tree, dropped: &Dropped) -> bool {
        dropped.lsn <= self.durable()
            && !self.hides_from_snapshot(dropped.lsn)
            && self.runs.is_empty()
            && tree.reshaping.is_none()
    }

    /// The next step for a table that was dropped.
    pub(in crate::engine) fn drop_step(&mut self) -> Step<Next> {
        let Some(id) = self.next_dropped() else {
            let mut dropped = self.trees.iter().filter(|tree| tree.dropped.is_some());
            if self.drops.has_tables() && dropped.any(|tree| !tree.reshaping.is_none()) {
                self.await_installs();
            }
            return Ok(Next::Idle);
        };
        let table = Table::of(id);
        let payload_size = self.payload_size;
        let tree = self.trees.get_mut(id as usize);
        let Some(dropped) = tree.and_then(|tree| tree.dropped.as_mut()) else {
            return Ok(Next::Idle);
        };
        if dropped.phase == Phase::Waiting {
            self.clear(table);
            return Ok(Next::Stepped);
        }
        if dropped.is_full(payload_size) {
            self.append_freed(table);
            return Ok(Next::Stepped);
        }
        match dropped.open.pop() {
            Some(visit @ Visit::Enter(page, _)) => {
                dropped.reading = Some(visit);
                Ok(Next::Job(Job::Visit(table, page)))
            }
            Some(Visit::Leave(page)) => {
                dropped.pages.push(page);
                Ok(Next::Stepped)
            }
            None => {
                self.append_last_freed(table);
                Ok(Next::Stepped)
            }
        }
    }

    /// Forgets the changes of a dropped table that its leaves lack, and asks for a checkpoint (X2).
    fn clear(&mut self, table: Table) {
        let Some(tree) = self.trees.get_mut(table.id as usize) else { return };
        tree.entry_count = 0;
        let Some(dropped) = tree.dropped.as_mut() else { return };
        dropped.phase = Phase::Cleared;
        let lsn = dropped.lsn;
        // No snapshot reads old leaves of the table any more.
        let retained = std::mem::take(&mut tree.retained);
        let mut values = Vec::new();
        for entry in tree.deltas.range(KeyRange::ALL) {
            values.extend(entry.versions().filter_map(|(_, op)| match op {
                Op::PutRef(descriptor) => Some(descriptor.to_vec()),
                _ => None,
            }));
        }
        self.let_go(retained);
        self.remove_deltas(table, KeyRange::ALL, Lsn(u64::MAX));
        self.drop_refs(values, lsn);
        self.want_checkpoint();
    }

    /// A checkpoint begins: it finds no change of the tables that are clear.
    pub(in crate::engine) fn drops_covered(&mut self) {
        self.move_drops(Phase::Cleared, Phase::Covered);
    }

    /// A checkpoint that had begun was given up.
    pub(in crate::engine) fn drops_uncovered(&mut self) {
        self.move_drops(Phase::Covered, Phase::Cleared);
    }

    /// The checkpoint is durable: the tables that it covered can be released.
    pub(in crate::engine) fn drops_saved(&mut self) {
        self.move_drops(Phase::Covered, Phase::Releasing);
    }

    fn move_drops(&mut self, from: Phase, to: Phase) {
        let Transactions { store, drops, .. }: &mut Transactions = self;
        for id in &drops.tables {
            let Some(tree) = store.trees.get_mut(*id as usize) else { continue };
            let root = tree.root;
            let Some(dropped) = tree.dropped.as_mut() else { continue };
            if dropped.phase == from {
                dropped.phase = to;
                if to == Phase::Releasing {
                    dropped.open = root.map(|root| Visit::Enter(root, None)).into_iter().collect();
                }
            }
        }
    }

    /// Takes the result of looking for a node of a dropped table. A node that cannot be read is freed
    /// unread where the drop is of this session: its number had no other owner. Where restart found the
    /// drop, earlier records may have freed the node, and it is left alone.
    pub(crate) fn visited(&mut self, table: Table, found: Visited) {
        let tree = self.trees.get_mut(table.id as usize);
        let root = tree.as_ref().and_then(|tree| tree.root);
        let Some(dropped) = tree.and_then(|tree| tree.dropped.as_mut()) else { return };
        let Some(Visit::Enter(page, level)) = dropped.reading.take() else { return };
        let is_own = dropped.lsn > Lsn::ZERO && root != Some(page);
        if matches!(found, Visited::Damage) && is_own && !dropped.pages.contains(&page) {
            dropped.open.push(Visit::Leave(page));
        }
        let Visited::Node(mut image) = found else { return };
        self.widen(&mut image);
        let Some(tree) = self.trees.get_mut(table.id as usize) else { return };
        let (is_root, Some(dropped)) = (tree.root == Some(page), tree.dropped.as_mut()) else {
            return;
        };
        let Ok(view) = NodeView::parse(&image) else { return };
        let is_here = view.tree() == table.id && level.is_none_or(|level| level == view.level());
        if !is_here || dropped.pages.contains(&page) {
            return;
        }
        // The root goes last of all.
        dropped.open.extend((!is_root).then_some(Visit::Leave(page)));
        if view.is_leaf() {
            dropped.values.extend(view.entries().filter_map(|entry| match entry.value {
                ValueRef::Ref(descriptor) => Some(descriptor.to_vec()),
                ValueRef::Inline(_) => None,
            }));
            return;
        }
        let below = view.level().checked_sub(1);
        let children = (0..view.count()).rev().filter_map(|index| view.child(index));
        dropped.open.extend(children.map(|child| Visit::Enter(child, below)));
    }

    /// Appends the record that frees the pages and values gathered so far.
    fn append_freed(&mut self, table: Table) {
        let Some(tree) = self.trees.get_mut(table.id as usize) else { return };
        let Some(dropped) = tree.dropped.as_mut() else { return };
        let (pages, values) =
            (std::mem::take(&mut dropped.pages), std::mem::take(&mut dropped.values));
        let lsn = self.append_install_record(&InstallParts {
            group: GroupId::NONE,
            tree: table.id,
            level: 0,
            puts: &[],
            deletes: &[],
            trims: &pages,
            dropped: &values,
        });
        self.drops.freed.push_back(Freed { lsn, table, pages, values, is_last: false });
        self.want_flush();
    }

    /// Appends the record that frees the root, and the commit that takes the entry away (X4).
    fn append_last_freed(&mut self, table: Table) {
        let root = self.trees.get(table.id as usize).and_then(|tree| tree.root);
        let dropped = self.trees.get_mut(table.id as usize).and_then(|tree| tree.dropped.as_mut());
        if let Some(dropped) = dropped {
            dropped.pages.extend(root);
        }
        self.append_freed(table);
        let mut transaction = Transaction::default();
        let mut key = Vec::new();
        private_key(CATALOG, &tombstone(table), &mut key);
        transaction.writes.insert(&key, Op::Delete, Lsn(1), &[]);
        let lsn = self.append_commit(&transaction);
        self.apply_commit(&transaction, lsn);
        self.frontier.committed = lsn;
        if let Some(freed) = self.drops.freed.back_mut() {
            (freed.lsn, freed.is_last) = (lsn, true);
        }
        self.want_flush();
    }

    /// The pages of a record are free.
    pub(crate) fn freed(&mut self, freed: Freed) {
        let Freed { table, pages, values, is_last, .. } = freed;
        pages.into_iter().for_each(|page| self.forget_page(page));
        let Some(tree) = self.trees.get(table.id as usize) else { return };
        // A snapshot from before the drop would have kept all of these values.
        let lsn = tree.dropped.as_ref().map_or(Lsn::ZERO, |dropped| dropped.lsn);
        if is_last && let Some(tree) = self.trees.remove(table.id) {
            self.note_deltas_size(tree.size(), Tree::new(table.id, None).size());
            self.drops.tables.retain(|id| *id != table.id);
        }
        self.drop_refs(values, lsn);
    }
}

#[cfg(test)]
mod tests;
