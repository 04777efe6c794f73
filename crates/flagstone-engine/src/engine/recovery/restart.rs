//! Putting the log's tail back: the engine's part of a restart. Reading the log, moving mappings and
//! trimming are the runtime's part.
//!
//! 1. Everything behind the master record's position is read once: structure changes, the copies of
//!    the master's cycle, and the changes of later commits, into the trees' deltas. No node is read
//!    and no page is written.
//! 2. If the changes of later commits do not fit the memory budget, they are forgotten again, the
//!    catalog is loaded, and the log is read a second time with merges on the way (rule D11).
//!
//! A delta put back may be older than its base; it is dropped when the two meet (rule D2). Where memory
//! was full before, most deltas are older: restart first lets deltas meet their bases, which only
//! reads, and merges afterwards, which writes.

use flagstone_space::{GroupId, GroupSpan, LogicalPage, Lsn, Version};

use crate::bugs::SeededBug;
use crate::delta::{KeyRange, Op, Unpacker};
use crate::engine::recovery::Recovery;
use crate::engine::recovery::master::Master;
use crate::engine::step::Step;
use crate::engine::store::catalog::{CATALOG, Table};
use crate::engine::store::descent::Seek;
use crate::engine::store::memory::UNPACKED_MAX;
use crate::engine::store::run::Run;
use crate::engine::store::run::committed::CommittedRun;
use crate::engine::store::run::record::{Input, MasterRun};
use crate::error::Corruption;
use crate::log::{Cursor, Install, Items, LogWriter, Record};
use crate::node::NodeView;

/// How far restart has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Replay {
    /// Everything is put back as it is read.
    #[default]
    All,
    /// Memory ran out: user commits are left for the second reading.
    WithoutCommits,
    /// Second reading: only user commits, merged when memory runs out.
    CommitsOnly,
}

/// Changes that a record asks of the space floor.
#[derive(Debug, Default)]
pub(crate) struct ReplayEffects {
    /// The group's pages are current.
    pub(crate) group: Option<GroupId>,
    /// Pages of that group, as far as the record names them.
    pub(crate) pages: Vec<GroupSpan>,
    /// Pages that went, if their content is older than the record.
    pub(crate) trims: Vec<LogicalPage>,
}

impl ReplayEffects {
    /// Whether the space floor stays as it is.
    pub(crate) fn is_empty(&self) -> bool {
        self.group.is_none() && self.trims.is_empty()
    }
}

/// How far changes that were put back have met their leaves: table and key.
#[derive(Debug, Default)]
pub(crate) struct MeetPoint {
    tree: usize,
    from: Vec<u8>,
}

impl MeetPoint {
    pub(crate) fn pass_table(&mut self) {
        *self = Self { tree: self.tree + 1, from: Vec::new() };
    }
}

const DAMAGED: Corruption = Corruption { page: None, check: "log record does not decode" };

const NOT_KEPT: Corruption =
    Corruption { page: None, check: "LSN that the log could not have at its place" };

impl Recovery {
    /// Takes over the state of the master record.
    ///
    /// # Errors
    ///
    /// LSNs that no session can have given.
    pub(crate) fn resume(&mut self, master: &Master, last: Lsn) -> Result<(), Corruption> {
        self.cycle.resume(master.cycle);
        self.frontier.recovered = last;
        self.frontier.replay_cutoff = Some(master.cutoff);
        self.frontier.replaying = Some(master.cutoff);
        self.frontier.log_page = master.begin.page;
        self.durable_chain = master.begin.chain;
        self.trees.note_next(master.next_table);
        self.identity = master.identity.unwrap_or(self.identity);
        for (id, count) in &master.entry_counts {
            if let Some(tree) = self.tree_slot(*id) {
                tree.entry_count = i64::try_from(*count).unwrap_or(i64::MAX);
            }
        }
        for run in &master.runs {
            let restored = CommittedRun::new(run.lsn, run.run.clone(), run.rolled_back.clone());
            self.runs.restore(restored);
        }
        self.runs.note_recovered();
        for (lsn, descriptor) in &master.values {
            self.trims.add(*lsn, descriptor.clone());
        }
        for (lsn, group, pages) in &master.pages {
            self.trims.add_pages(*lsn, *group, pages.clone());
        }
        self.read_boundaries()
    }

    /// Recomputes the boundaries from LSNs that were read: an LSN between versions that were folded is
    /// damage.
    fn read_boundaries(&mut self) -> Result<(), Corruption> {
        if self.take_boundaries() || self.bugs.has(SeededBug::FrontierBetween) {
            Ok(())
        } else {
            Err(NOT_KEPT)
        }
    }

    /// Puts one record back.
    ///
    /// # Errors
    ///
    /// A record whose parts do not decode although its checksum held.
    pub(crate) fn replay(
        &mut self,
        master: &Master,
        phase: Replay,
        lsn: Lsn,
        record: &Record<'_>,
    ) -> Result<ReplayEffects, Corruption> {
        let mut effects = ReplayEffects::default();
        let is_first = phase != Replay::CommitsOnly;
        match record {
            Record::Commit { group, runs, dropped, changes } if lsn > master.cutoff => {
                let claimed = self.replayed_claim.take();
                if phase != Replay::WithoutCommits {
                    self.frontier.replaying = Some(lsn);
                }
                if is_first {
                    effects.group = (*group != GroupId::NONE).then_some(*group);
                    let named = claimed.filter(|(claimed, _)| claimed == group);
                    effects.pages = named.map(|(_, pages)| pages).unwrap_or_default();
                    self.replay_runs(lsn, runs)?;
                    for descriptor in dropped.iter() {
                        self.trims.add(lsn, descriptor.map_err(|_| DAMAGED)?.0.to_vec());
                    }
                }
                self.replay_changes(phase, lsn, changes)?;
            }
            Record::Install(install) if is_first && !self.bugs.has(SeededBug::SkipInstalls) => {
                self.replay_install(lsn, install, &mut effects)?;
            }
            // The cut may have taken the marker of a commit that a flag made: no later record tells of
            // that commit.
            Record::Claimed { group, lowest, spans } if is_first => {
                let mut pages = Vec::new();
                for span in spans.iter() {
                    let span = span.map_err(|_| DAMAGED)?;
                    let version = lowest.0.checked_add(span.above).map(Version).ok_or(DAMAGED)?;
                    pages.push(GroupSpan { page: span.page, version, count: span.count });
                }
                self.replayed_claim = Some((*group, pages));
                self.keep_apart(lsn)?;
            }
            Record::Open { .. } if is_first => self.keep_apart(lsn)?,
            Record::Copy { cycle, tree, newest, changes } if is_first && *cycle == master.cycle => {
                self.replay_copies(master.cutoff, Table::of(*tree), *newest, changes)?;
            }
            _ => {}
        }
        Ok(effects)
    }

    /// Pages may hold changes of a commit at `lsn` that the log does not have: changes from before that
    /// LSN are not folded with changes from after it (Q2 of claims, R4 of runs).
    fn keep_apart(&mut self, lsn: Lsn) -> Result<(), Corruption> {
        if self.bugs.has(SeededBug::ClaimFolded) {
            return Ok(());
        }
        self.runs.keep_apart(lsn);
        self.read_boundaries()
    }

    fn replay_changes(
        &mut self,
        phase: Replay,
        lsn: Lsn,
        changes: &[u8],
    ) -> Result<(), Corruption> {
        let is_wanted = |table: Table| match phase {
            Replay::All => true,
            Replay::WithoutCommits => table == CATALOG,
            Replay::CommitsOnly => table != CATALOG,
        };
        let mut changes = Unpacker::new(changes);
        while let Some(change) = changes.next() {
            let change = change.map_err(|_| DAMAGED)?;
            let table = Table::of(u32::try_from(change.number).map_err(|_| DAMAGED)?);
            if is_wanted(table) {
                self.put_back(table, change.key, change.op, lsn)?;
            }
        }
        Ok(())
    }

    /// Copies of changes up to the cutoff: later ones are not copied.
    fn replay_copies(
        &mut self,
        cutoff: Lsn,
        table: Table,
        newest: Lsn,
        changes: &[u8],
    ) -> Result<(), Corruption> {
        if newest > cutoff {
            return Err(NOT_KEPT);
        }
        let mut changes = Unpacker::new(changes);
        while let Some(change) = changes.next() {
            let change = change.map_err(|_| DAMAGED)?;
            let lsn = newest.0.checked_sub(change.number).ok_or(DAMAGED)?;
            self.runs.note_copied(Lsn(lsn));
            self.put_back(table, change.key, change.op, Lsn(lsn))?;
        }
        Ok(())
    }

    fn put_back(
        &mut self,
        table: Table,
        key: &[u8],
        op: Op<'_>,
        lsn: Lsn,
    ) -> Result<(), Corruption> {
        if key.len() > self.key_size_max() {
            // Changes that share so long a key would take far more memory than log.
            return Err(DAMAGED);
        }
        self.tree_slot(table.id).ok_or(DAMAGED)?;
        self.add_delta(table, key, op, lsn);
        Ok(())
    }

    fn replay_runs(
        &mut self,
        lsn: Lsn,
        runs: &Items<'_, crate::log::Blob<'_>>,
    ) -> Result<(), Corruption> {
        let mut list: Vec<Run> = Vec::new();
        let mut rolled_back = Vec::new();
        for run in runs.iter() {
            let mut input = Input(Cursor::new(run.map_err(|_| DAMAGED)?.0));
            let run = MasterRun::decode(&mut input).ok_or(DAMAGED)?;
            rolled_back = run.rolled_back;
            list.push(run.run);
        }
        if lsn.0 <= list.len() as u64 {
            return Err(NOT_KEPT);
        }
        self.runs.commit(lsn, &list, &rolled_back);
        self.runs.note_recovered();
        self.read_boundaries()
    }

    fn replay_install(
        &mut self,
        lsn: Lsn,
        install: &Install<'_>,
        effects: &mut ReplayEffects,
    ) -> Result<(), Corruption> {
        effects.group = (install.group != GroupId::NONE).then_some(install.group);
        for page in install.trims.iter() {
            effects.trims.push(page.map_err(|_| DAMAGED)?);
        }
        self.note_freed(&effects.trims, lsn);
        for descriptor in install.dropped.iter() {
            self.trims.add(lsn, descriptor.map_err(|_| DAMAGED)?.0.to_vec());
        }
        let level = install.level;
        let tree = self.tree_slot(install.tree).ok_or(DAMAGED)?;
        for key in install.deletes.iter() {
            tree.structure.note(level, key.map_err(|_| DAMAGED)?.0, lsn, None);
        }
        for put in install.puts.iter() {
            let put = put.map_err(|_| DAMAGED)?;
            tree.structure.note(level, put.key, lsn, Some(put.child));
        }
        Ok(())
    }

    /// The log goes on in a new epoch.
    pub(crate) fn continue_log(&mut self, log: LogWriter, last_page: Option<u64>) {
        self.durable_chain = log.chain();
        self.frontier.log = log;
        self.frontier.log_page = last_page.unwrap_or(self.frontier.log_page);
    }

    /// Appends the marker of a new epoch: nothing is answered before it is durable.
    pub(crate) fn append_open(&mut self) {
        self.open_log();
        self.want_flush();
    }

    /// The log's end is known.
    ///
    /// # Errors
    ///
    /// Changes that were put back from behind it.
    pub(crate) fn settle(&mut self, last: Lsn) -> Result<(), Corruption> {
        self.frontier.committed = last;
        self.frontier.recovered = last;
        self.frontier.replay_cutoff = None;
        self.read_boundaries()
    }

    /// Whether the changes put back so far exceed the budget.
    pub(crate) fn replay_overflows(&self) -> bool {
        self.memory.deltas > self.replay_size_max()
    }

    /// The next leaf behind `at` with changes that restart put back, by its table and a key, and its
    /// page; none at the end.
    pub(crate) fn next_to_meet(
        &mut self,
        at: &mut MeetPoint,
    ) -> Step<Option<(Table, Vec<u8>, LogicalPage)>> {
        while let Some(tree) = self.trees.first_from(at.tree) {
            if at.tree != tree.id as usize {
                *at = MeetPoint { tree: tree.id as usize, from: Vec::new() };
            }
            let rest = KeyRange { low: &at.from, high: None };
            let next = tree.deltas.range(rest).next().map(|entry| entry.key().to_vec());
            let Some(key) = next.filter(|_| tree.root.is_some()) else {
                at.pass_table();
                continue;
            };
            let table = Table::of(at.tree as u32);
            let place = self.place_of(table, &key)?;
            match place.high {
                Some(high) => at.from = high,
                None => at.pass_table(),
            }
            return Ok(Some((table, key, place.page)));
        }
        Ok(None)
    }

    /// Changes meet the leaf of `key`: changes that the leaf already holds are dropped (rule D2).
    pub(crate) fn meet_leaf(&mut self, table: Table, key: &[u8]) -> Step<()> {
        let index = self.leaf_for(table, Seek::At(key))?;
        let frame = self.pool.frame(index);
        let (view, lsn) = (NodeView::trusted(&frame.image), frame.lsn);
        let (low, high) = (view.low().to_vec(), view.high().map(<[u8]>::to_vec));
        self.drop_redundant(table, KeyRange { low: &low, high: high.as_deref() }, lsn);
        Ok(())
    }

    /// The base of `page` will be read again: flash has a later state of it.
    pub(crate) fn forget_base(&mut self, page: LogicalPage) {
        self.pool.remove(page);
    }

    /// Bytes that are put back.
    pub(crate) fn put_back_size(&self) -> usize {
        self.memory.deltas
    }

    /// Whether more is put back than changes may take of memory and of the log.
    pub(crate) fn exceeds_share(&self) -> bool {
        self.memory.deltas > self.memory.limits.deltas_soft
    }

    /// Packs the deltas into maps as small as maps filled in order: deltas that met their leaves left
    /// gaps.
    pub(crate) fn pack_deltas(&mut self) {
        let ids: Vec<_> = self.trees.iter().map(|tree| tree.id as usize).collect();
        for id in ids {
            let Some(tree) = self.trees.get_mut(id) else { continue };
            let before = tree.deltas.size();
            tree.deltas = tree.deltas.copy_range(KeyRange::ALL, Lsn(u64::MAX));
            let after = tree.deltas.size();
            self.note_deltas_size(before, after);
        }
    }

    /// Whether the changes put back so far take more than all the memory, together with spilled changes
    /// that will be loaded.
    pub(crate) fn replay_fills_memory(&self) -> bool {
        self.memory.deltas + self.runs.pages_to_stay() * self.payload_size > self.options.memory
    }

    /// The session only reads: parts of runs are loaded as they are read, and let go again.
    pub(crate) fn begin_reading(&mut self) {
        self.runs.allow_unloading();
    }

    /// Pages of runs that have to be loaded before a close, since a session which only reads might have
    /// no memory for them: either all waiting pages or none.
    pub(crate) fn pages_to_load(&mut self) -> usize {
        let waiting = self.runs.pages_left();
        let loaded = ((waiting * self.payload_size) as f64 * UNPACKED_MAX) as usize;
        if self.memory.deltas + loaded <= self.options.memory && !self.is_asked_for_runs() {
            return 0;
        }
        self.ask_for_runs();
        waiting
    }

    /// Forgets user commits above the cutoff: the second reading puts them back with merges.
    pub(crate) fn forget_replayed(&mut self, cutoff: Lsn) {
        self.frontier.replaying = Some(cutoff);
        let ids: Vec<usize> = self.trees.from(1).map(|tree| tree.id as usize).collect();
        for id in ids {
            let Some(tree) = self.trees.get_mut(id) else { continue };
            let before = tree.deltas.size();
            tree.deltas.remove_newer(cutoff);
            let after = tree.deltas.size();
            self.note_deltas_size(before, after);
        }
    }

    /// Holds a number that a page gave up while commits are put back. New images are complete to less
    /// than the record that frees the number; if the record were replayed after a new owner had written
    /// such an image, it would free the owner's page. So the number stays taken until the end.
    pub(crate) fn hold_number(&mut self, page: LogicalPage) {
        self.held_numbers.push(page);
    }

    /// Users may come.
    pub(crate) fn end_opening(&mut self) {
        self.frontier.is_opening = false;
    }

    /// Restart is complete; returns the numbers that were held until now.
    pub(crate) fn end_replay(&mut self) -> Vec<LogicalPage> {
        (self.frontier.replaying, self.frontier.is_opening) = (None, true);
        if self.has_deltas() {
            // How many pages their merges give back is not known either.
            let waiting = self.growth_waiting();
            self.room.growth.committed(waiting);
        }
        let deltas_size = self.memory.deltas;
        self.cycle.count_replayed(deltas_size);
        self.refresh_boundaries();
        std::mem::take(&mut self.held_numbers)
    }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::{Profile, SimNand};
    use flagstone_space::GroupId;

    use super::{Lsn, Master, Replay, Table};
    use crate::delta::{Op, pack};
    use crate::engine::Engine;
    use crate::log::{ItemBuf, Record};
    use crate::testing::Database;
    use crate::{Budget, Options};

    /// Takes the changes of a commit found in the log; false when they are damage.
    fn replayed<'a>(
        engine: &mut Engine,
        table: Table,
        all: impl IntoIterator<Item = (&'a [u8], Op<'a>)>,
    ) -> bool {
        let (mut changes, mut before) = (Vec::new(), &[][..]);
        for (key, op) in all {
            pack(before, u64::from(table.id), key, op, &mut changes);
            before = key;
        }
        let [runs, dropped] = [const { ItemBuf::EMPTY }; 2];
        let record = Record::Commit {
            group: GroupId::NONE,
            runs: runs.items(),
            dropped: dropped.items(),
            changes: &changes,
        };
        let lsn = Lsn(engine.durable().0 + 1);
        engine.replay(&Master::default(), Replay::All, lsn, &record).is_ok()
    }

    /// Goal: changes that restart put back are merged for want of memory when users come, not before:
    /// its checkpoint, where that cannot wait, copies them. Method: more changes than their share, in
    /// memory that has room.
    #[test]
    fn nothing_is_merged_for_memory_before_users_come() {
        let profile = Profile::named("slc-2k").unwrap();
        let options = Options::default().with_memory(512 << 10).with_techniques(|techniques| {
            (techniques.budget, techniques.frame_share) = (Budget::Divided, 0.8);
        });
        let database = Database::create_on(SimNand::new(&profile, 1), &options).unwrap();
        let table = database.table("t").unwrap();
        let mut engine = database.runtime().engine();
        let keys: Vec<_> = (0..2_000_u32).map(u32::to_be_bytes).collect();
        assert!(replayed(&mut engine, table, keys.iter().map(|key| (&key[..], Op::Put(&[7; 80])))));
        engine.end_replay();
        let (share, waiting) = (engine.memory.limits.deltas_soft, engine.memory.deltas);
        assert!(share < waiting && waiting < engine.merges_above(), "{waiting}, of them {share}");
        engine.end_opening();
        assert_eq!(engine.merges_above(), share);
    }

    /// Goal: a copy of a change has an LSN that the log can have had (rule D17 holds for every record
    /// that is read). Method: copies from above the cutoff, whose checksums hold, and one at it.
    #[test]
    fn copies_from_above_the_cutoff_are_damage() {
        let profile = Profile::named("slc-2k").unwrap();
        let database = Database::create_on(SimNand::new(&profile, 1), &Options::default()).unwrap();
        let table = database.table("t").unwrap();
        let mut engine = database.runtime().engine();
        let cutoff = engine.durable();
        let master = Master { cutoff, ..Master::default() };
        for (newest, is_sound) in [(cutoff.0, true), (cutoff.0 + 1, false), (u64::MAX, false)] {
            let mut changes = Vec::new();
            pack(&[], 0, b"a", Op::Put(b"1"), &mut changes);
            let (cycle, newest) = (master.cycle, Lsn(newest));
            let record = Record::Copy { cycle, tree: table.id, newest, changes: &changes };
            let replayed = engine.replay(&master, Replay::All, Lsn(cutoff.0 + 1), &record);
            assert_eq!(replayed.is_ok(), is_sound, "{newest:?}");
        }
    }

    /// Goal: changes that share a long key with the one before take no more memory than keys may. Method: a
    /// record that no session writes, and one that it does.
    #[test]
    fn keys_that_are_too_long_are_damage() {
        let profile = Profile::named("slc-2k").unwrap();
        let database = Database::create_on(SimNand::new(&profile, 1), &Options::default()).unwrap();
        let table = database.table("t").unwrap();
        let mut engine = database.runtime().engine();
        let longest = vec![b'x'; engine.key_size_max()];
        let replay = |engine: &mut Engine, key: &[u8]| replayed(engine, table, [(key, Op::Delete)]);
        assert!(replay(&mut engine, &longest));
        assert!(!replay(&mut engine, &[&longest[..], b"x"].concat()));
    }
}
