//! Installing: the effect of a written job on the engine; no I/O, one short latch.

use flagstone_space::{GroupId, LogicalPage, Lsn, PinId};

use crate::bugs::SeededBug;
use crate::delta::KeyRange;
use crate::engine::merge::Merges;
use crate::engine::store::catalog::Table;
use crate::engine::store::groups::{Grouped, InstallJob, Outcome, PageWrite, Reshape, WriteJob};
use crate::engine::store::log_records::InstallParts;
use crate::engine::store::pool::Class;
use crate::node::NodeView;

impl Merges {
    /// The pages of a job are on flash.
    pub(crate) fn written(&mut self, job: WriteJob, pin: Option<PinId>) {
        self.pool.set_background(true);
        self.install_written(job, pin);
        self.pool.set_background(false);
    }

    fn install_written(&mut self, job: WriteJob, pin: Option<PinId>) {
        let is_buried = job.pin.is_some();
        let WriteJob { group, mut pages, outcome, is_durable, .. } = job;
        for write in &pages {
            self.groups.busy.remove(&write.page);
            if group == GroupId::NONE {
                // It is current already; pages of a group become so when the group is committed.
                self.mark_stale(write.page);
            }
        }
        match outcome {
            Outcome::Merged { table, low, high, upto, grown, base_lsn } => {
                let Some(write) = pages.pop() else {
                    debug_assert!(false, "a merge of one leaf writes one page");
                    return;
                };
                let range = KeyRange { low: &low, high: high.as_deref() };
                if is_buried {
                    let pin = pin.map(|pin| (pin, write.page));
                    self.retain_leaf(table, range, pin, base_lsn, upto);
                }
                self.remove_deltas(table, range, upto);
                self.count_entries(table, grown);
                self.replace_leaf(write);
            }
            Outcome::CaughtUp => {
                for write in pages {
                    self.caught_up(&write);
                }
            }
            Outcome::InnerWritten { table, level, low, high, upto } => {
                let Some(tree) = self.trees.get_mut(table.id as usize) else { return };
                tree.structure.forget(level, &low, high.as_deref(), upto);
                tree.reshaping.end();
            }
            Outcome::Reshaped(reshape) => {
                for write in &pages {
                    self.groups.busy.insert(write.page);
                }
                let grouped = Grouped { group, pages, reshape: *reshape };
                let at_once = self.open_groups().count() as u64 + 1;
                self.counts.reshapes_at_once = self.counts.reshapes_at_once.max(at_once);
                if !is_durable {
                    return self.groups.written.push_back(grouped);
                }
                self.record(grouped);
                if self.must_merge() || self.is_checkpointing() {
                    // Memory or the checkpoint waits for the install, and no other caller may ever
                    // flush.
                    self.want_flush();
                }
            }
        }
    }

    /// The pages of every group up to this one are durable.
    pub(crate) fn synced(&mut self, last: GroupId) {
        let Some(place) = self.groups.written.iter().position(|job| job.group == last) else {
            return;
        };
        let durable: Vec<Grouped> = self.groups.written.drain(..=place).collect();
        durable.into_iter().for_each(|job| self.record(job));
        // Otherwise the next commit takes the records along.
        let is_awaited = std::mem::take(&mut self.planner.awaits_installs);
        if is_awaited || self.are_images_many() || self.is_checkpointing() {
            self.want_flush();
        }
    }

    /// The log names a group whose pages are durable.
    fn record(&mut self, grouped: Grouped) {
        let (group, reshape) = (grouped.group, &grouped.reshape);
        let is_claimed = reshape.claim.is_some();
        if is_claimed {
            self.append_marker(Some(group));
        }
        let puts = self.named_of(reshape);
        let lsn = self.append_install_record(&InstallParts {
            group,
            tree: reshape.table.id,
            level: reshape.level,
            puts,
            deletes: &reshape.deletes,
            trims: &reshape.trims,
            dropped: &reshape.dropped,
        });
        let install = InstallJob { lsn, grouped };
        if is_claimed {
            return self.claim_reshaped(install);
        }
        self.groups.recorded.push_back(install);
    }

    /// The separators that a reshape's record names.
    fn named_of<'a>(&self, reshape: &'a Reshape) -> &'a [(Vec<u8>, LogicalPage)] {
        let is_short = reshape.leaves_split() > 2 && self.bugs.has(SeededBug::SplitsUnnamed)
            || reshape.rest.is_some() && self.bugs.has(SeededBug::RestUnnamed);
        let count = reshape.puts.len();
        reshape.puts.get(..count.saturating_sub(is_short.into())).unwrap_or_default()
    }

    /// A job's pages could not be written: everything is as before. Returns whether the work can go on
    /// otherwise: its leaves split one by one from now on, which takes fewer pages at a time, or other
    /// leaves give their old pages back first.
    pub(crate) fn write_failed(&mut self, job: &WriteJob) -> bool {
        for write in &job.pages {
            self.groups.busy.remove(&write.page);
        }
        let mut is_split = false;
        let table = match &job.outcome {
            Outcome::Reshaped(reshape) => Some(reshape.table),
            Outcome::InnerWritten { table, .. } => Some(*table),
            _ => None,
        };
        if let Outcome::Reshaped(reshape) = &job.outcome {
            for page in &reshape.trims {
                self.groups.busy.remove(page);
            }
            self.room.unused_pages.extend(&reshape.taken);
            is_split = reshape.leaves_split() > 1;
            if is_split {
                self.obstacles.split_singly();
            }
        }
        if let Some(tree) = table.and_then(|table| self.trees.get_mut(table.id as usize)) {
            tree.reshaping.end();
        }
        if job.group != GroupId::NONE {
            self.trims.discard_group(job.group);
        }
        let gives_back = self.open_groups().next().is_some();
        if gives_back {
            self.await_installs();
        }
        is_split || gives_back
    }

    /// Whether snapshots need the pages that an install replaces.
    pub(crate) fn must_pin(&self, job: &Grouped) -> bool {
        self.hides_from_snapshot(job.reshape.upto)
    }

    /// The group's pages have become current: the engine follows.
    pub(crate) fn install(&mut self, job: InstallJob, pins: &[Option<PinId>]) {
        self.pool.set_background(true);
        self.install_group(job, pins);
        self.pool.set_background(false);
    }

    fn install_group(&mut self, job: InstallJob, pins: &[Option<PinId>]) {
        let InstallJob { lsn, grouped } = job;
        self.cycle.count_grouped(grouped.page_count());
        let Grouped { pages, reshape, .. } = grouped;
        let table = reshape.table;
        let until = if reshape.claim.is_some() { lsn } else { reshape.upto };
        let pins = pins.iter().copied().chain(std::iter::repeat(None));
        for (old, pin) in reshape.old.iter().zip(pins) {
            let (range, pin) = (old.range(), pin.map(|pin| (pin, old.page)));
            match reshape.claim {
                Some(_) => self.retain_copy(table, range, pin, old.lsn, until),
                None => self.retain_leaf(table, range, pin, old.lsn, until),
            }
        }
        for old in &reshape.old {
            self.remove_deltas(table, old.range(), reshape.upto);
        }
        self.count_entries(table, reshape.grown);
        for page in &reshape.trims {
            self.groups.busy.remove(page);
            self.forget_page(*page);
        }
        let written: Vec<LogicalPage> = pages.iter().map(|write| write.page).collect();
        for write in pages {
            self.groups.busy.remove(&write.page);
            let class =
                if NodeView::trusted(&write.image).is_leaf() { Class::Leaf } else { Class::Inner };
            self.mark_stale(write.page);
            self.note_leaf(&write.image);
            self.place(write.page, write.lsn, write.image, class);
            self.note_version(write.page, write.version.as_ref());
        }
        if let Some(tree) = self.trees.get_mut(table.id as usize) {
            for (level, low, high, upto) in &reshape.written {
                tree.structure.forget(*level, low, high.as_deref(), *upto);
            }
            for key in &reshape.deletes {
                tree.structure.note(reshape.level, key, lsn, None);
            }
            for (key, child) in &reshape.puts {
                tree.structure.note(reshape.level, key, lsn, Some(*child));
            }
            tree.reshaping.end();
        }
        self.refresh_parent(table, &reshape, lsn);
        // Commits that came while the leaves were being written go to their frames, where they may.
        written.into_iter().for_each(|page| self.absorb(page));
        // Until now the deltas were told by the old leaves.
        reshape.old.iter().for_each(|old| self.tell_leaves_changed(table, old.range()));
        if let Some(rest) = &reshape.rest {
            self.tell_deltas_went(table, rest.range());
        }
        self.counts.split_together = self.counts.split_together.max(reshape.leaves_split() as u64);
        self.counts.merges_in_parts += u64::from(reshape.rest.is_some());
        for descriptor in reshape.dropped {
            self.trims.add(reshape.upto, descriptor);
        }
        self.counts.splits += 1;
    }

    /// Brings the frame of the node that a reshape changed up to date, if it is in memory: it may be
    /// there without its ancestors. Else its next reader applies the structure deltas.
    fn refresh_parent(&mut self, table: Table, reshape: &Reshape, lsn: Lsn) {
        let Some(page) = reshape.parent else { return };
        let Some(index) = self.pool.peek(page) else { return };
        let frame = self.pool.frame(index);
        let Some(tree) = self.trees.get(table.id as usize) else { return };
        let applied = tree.structure.apply(&frame.image, frame.lsn);
        debug_assert!(
            applied.is_some() || frame.lsn >= lsn,
            "a node has room for what was put into it"
        );
        if let Some((image, lsn)) = applied {
            self.place(page, lsn, image, Class::Inner);
        }
    }

    fn replace_leaf(&mut self, write: PageWrite) {
        self.note_leaf(&write.image);
        if self.pool.peek(write.page).is_some() {
            let page = write.page;
            self.place(page, write.lsn, write.image, Class::Leaf);
            self.note_version(page, write.version.as_ref());
            self.absorb(page);
        }
    }

    /// Flash holds a frame's image; commits that came meanwhile are in the deltas.
    fn caught_up(&mut self, write: &PageWrite) {
        self.note_leaf(&write.image);
        if let Some(index) = self.pool.peek(write.page) {
            debug_assert_eq!(self.pool.frame(index).lsn, write.lsn, "a busy frame does not change");
            self.pool.mark_clean(index);
        }
        self.absorb(write.page);
    }

    pub(super) fn count_entries(&mut self, table: Table, grown: i64) {
        if let Some(tree) = self.trees.get_mut(table.id as usize) {
            tree.entry_count += grown;
        }
    }
}

#[cfg(test)]
mod tests;
