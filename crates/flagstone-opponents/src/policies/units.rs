//! Units of Lazy-Split LRU: a leaf's base copy and its changes in one order of use, evicted in parts.
//!
//! Owns the order and the border between its two regions. Never sees an image or a delta: the pool reports
//! the memory of base copies, and the groups that of changes. A unit stands for a leaf, by its page.
//!
//! ```text
//!   hot region                 │ cold region: the window's share of the units' memory
//!   most recently used ──────▶ │ clean list: units with a base copy, oldest first
//!                              │ dirty list: changes alone, in the order of commits
//! ```
//!
//! | state | holds | left by |
//! | --- | --- | --- |
//! | clean | base copy | a change → semi-clean; eviction → gone |
//! | semi-clean | base copy and changes | eviction of the copy → dirty; a merge → clean |
//! | dirty | changes | a read of the base → semi-clean; a merge → gone |
//!
//! The victim is the oldest base copy of the cold region. When there is none, changes have to meet
//! their pages before units of the hot region give memory. Without a window the cold region is empty:
//! the least recently used unit leaves as a whole, which is LRU.
//!
//! - **L1** Every unit has a base copy or changes, and one place in the order.
//! - **L2** The cold region is the shortest tail of the order that takes the window's share of the
//!   memory of all units.
//! - **L3** A change of one unit moves the border past as many units as fit the changed size: work
//!   grows with the number of units by its logarithm only.
//! - **L4** Background work moves no unit. A unit that it brings to memory for the first time is the
//!   oldest. But the base copies that it used last stay until it ends: it holds their frames.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use flagstone_engine::policy::{Replacement, Urgency};
use flagstone_space::LogicalPage;
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

/// Changes that wait in memory for a leaf, beside its base copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Bytes of memory; 0 when nothing waits.
    pub(super) size: usize,
    /// Pages that a merge is likely to write.
    pub(super) writes: u64,
}

/// One part in this many of the memory that stays free for changes: the next change finds room, and
/// merges begin before frames have to make some.
const SLACK_SHARE: usize = 16;

/// Number of a unit's last use; larger is newer.
type Use = u64;

/// Base copies that background work may hold at a time: a merge has a leaf and its neighbour.
const AT_WORK: usize = 4;

/// The first use: uses by background work count down from here.
const FIRST_USE: Use = 1 << 62;

#[derive(Clone, Copy, Debug)]
struct Unit {
    page: LogicalPage,
    /// Frame of the base copy, with its memory.
    base: Option<(u32, usize)>,
    changes: Changes,
}

impl Unit {
    fn size(&self) -> usize {
        self.base.map_or(0, |(_, size)| size) + self.changes.size
    }

    fn is_dirty(&self) -> bool {
        self.base.is_none()
    }

    /// Place in the dirty list: fewest writes first, among equal ones the most memory.
    fn rank(&self, used: Use) -> (u64, u64, Use) {
        (self.changes.writes, u64::MAX - self.changes.size as u64, used)
    }
}

/// Order of the units.
#[derive(Debug)]
pub(super) struct Units {
    window: f64,
    slack: usize,
    order: BTreeMap<Use, Unit>,
    places: HashMap<LogicalPage, Use>,
    /// Units with a base copy.
    clean: BTreeSet<Use>,
    /// Units of the cold region without a base copy.
    dirty: BTreeSet<(u64, u64, Use)>,
    /// The cold region is the units with an earlier use.
    border: Use,
    cold_size: usize,
    size: usize,
    newest: Use,
    oldest: Use,
    /// Page of each frame.
    pages: Vec<LogicalPage>,
    /// Units whose base copy stays although its turn has come.
    kept: Vec<LogicalPage>,
    /// Pages that background work has used last.
    at_work: VecDeque<LogicalPage>,
    is_background: bool,
    count_peak: usize,
}

impl Units {
    pub(super) fn new(window: f64, memory: usize) -> Self {
        Self {
            window,
            slack: memory / SLACK_SHARE,
            order: BTreeMap::new(),
            places: HashMap::new(),
            clean: BTreeSet::new(),
            dirty: BTreeSet::new(),
            border: 0,
            cold_size: 0,
            size: 0,
            newest: FIRST_USE,
            oldest: FIRST_USE,
            pages: Vec::new(),
            kept: Vec::new(),
            at_work: VecDeque::new(),
            is_background: false,
            count_peak: 0,
        }
    }

    fn next_use(&mut self) -> Use {
        self.newest += 1;
        self.newest
    }

    /// Place of a unit that is new.
    fn first_use(&mut self) -> Use {
        if self.is_background {
            self.oldest -= 1;
            return self.oldest;
        }
        self.next_use()
    }

    /// Puts a unit into the order.
    fn link(&mut self, used: Use, unit: Unit) {
        debug_assert!(unit.size() > 0, "L1");
        self.size += unit.size();
        if used < self.border {
            self.cold_size += unit.size();
            if unit.is_dirty() {
                self.dirty.insert(unit.rank(used));
            }
        }
        if !unit.is_dirty() {
            self.clean.insert(used);
        }
        self.places.insert(unit.page, used);
        self.order.insert(used, unit);
        self.count_peak = self.count_peak.max(self.order.len());
    }

    /// Takes a unit out of the order.
    fn unlink(&mut self, page: LogicalPage) -> Option<(Use, Unit)> {
        let used = self.places.remove(&page)?;
        let unit = self.order.remove(&used)?;
        self.size -= unit.size();
        if used < self.border {
            self.cold_size -= unit.size();
            self.dirty.remove(&unit.rank(used));
        }
        self.clean.remove(&used);
        Some((used, unit))
    }

    /// Changes a unit; the rule gives its place afterwards.
    fn change(&mut self, page: LogicalPage, rule: Move, change: impl FnOnce(&mut Unit)) {
        let known = self.unlink(page);
        let is_known = known.is_some();
        let new = Unit { page, base: None, changes: Changes::default() };
        let (used, mut unit) = known.unwrap_or((0, new));
        change(&mut unit);
        if unit.size() > 0 {
            let used = match rule {
                _ if !is_known => self.first_use(),
                Move::Used if !self.is_background => self.next_use(),
                _ => used,
            };
            self.link(used, unit);
        }
        self.settle();
    }

    /// Moves the border (L2).
    fn settle(&mut self) {
        let target = (self.window * self.size as f64).ceil() as usize;
        while self.cold_size < target
            && let Some((used, unit)) = self.order.range(self.border..).next()
        {
            self.border = used + 1;
            self.cold_size += unit.size();
            if unit.is_dirty() {
                self.dirty.insert(unit.rank(*used));
            }
        }
        while let Some((used, unit)) = self.order.range(..self.border).next_back()
            && self.cold_size - unit.size() >= target
        {
            self.border = *used;
            self.cold_size -= unit.size();
            self.dirty.remove(&unit.rank(*used));
        }
    }

    /// The oldest base copy that may go.
    fn oldest_copy(&self) -> Option<(Use, u32)> {
        let mut copies = self.clean.iter().filter_map(|used| {
            let unit = self.order.get(used)?;
            let (frame, _) = unit.base?;
            let stays = self.kept.contains(&unit.page) || self.at_work.contains(&unit.page);
            (!stays).then_some((*used, frame))
        });
        copies.next()
    }

    /// The base copy that leaves by the rule.
    fn copy_by_rule(&self) -> Option<u32> {
        if self.cold_size == 0 {
            let (used, unit) = self.order.first_key_value()?;
            let is_clean = unit.changes.size == 0;
            return self.oldest_copy().filter(|(copy, _)| is_clean && copy == used).map(|(_, f)| f);
        }
        self.oldest_copy().filter(|(used, _)| *used < self.border).map(|(_, frame)| frame)
    }

    /// The waiting changes of a leaf are others now.
    pub(super) fn note_changes(&mut self, page: LogicalPage, changes: Changes) {
        self.change(page, Move::Stay, |unit| unit.changes = changes);
    }

    /// The changes that wait for a leaf were used.
    pub(super) fn use_changes(&mut self, page: LogicalPage) {
        let is_older = |used: &Use| *used < self.newest;
        if !self.is_background && self.places.get(&page).is_some_and(is_older) {
            self.change(page, Move::Used, |_| {});
        }
    }

    /// The leaf that leaves next as a whole, if changes wait for it.
    pub(super) fn tail(&self) -> Option<LogicalPage> {
        let (_, unit) = self.order.first_key_value()?;
        (self.cold_size == 0 && unit.changes.size > 0).then_some(unit.page)
    }

    /// Leaves whose merge is due, by the pages that the merge writes, from `writes` on; among leaves with
    /// equal writes, the leaf that frees most first.
    pub(super) fn due_from(
        &self,
        writes: u64,
    ) -> impl Iterator<Item = (LogicalPage, Changes)> + '_ {
        self.dirty.range((writes, 0, 0)..).filter_map(|(_, _, used)| {
            let unit = self.order.get(used)?;
            Some((unit.page, unit.changes))
        })
    }
}

/// Where a unit stands after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    /// It was used.
    Used,
    /// Where it stood.
    Stay,
}

impl Replacement for Units {
    fn count(&self) -> usize {
        self.clean.len()
    }

    fn insert(&mut self, index: u32, page: LogicalPage, size: usize) {
        let at = index as usize;
        if self.pages.len() <= at {
            self.pages.resize(at + 1, LogicalPage(u32::MAX));
        }
        self.pages[at] = page;
        self.change(page, Move::Used, |unit| unit.base = Some((index, size)));
    }

    fn replace(&mut self, index: u32, page: LogicalPage, size: usize) {
        self.pages[index as usize] = page;
        self.change(page, Move::Stay, |unit| unit.base = Some((index, size)));
    }

    fn touch(&mut self, index: u32) {
        let page = self.pages[index as usize];
        if self.is_background {
            self.at_work.truncate(AT_WORK - 1);
            self.at_work.push_front(page);
        }
        self.use_changes(page);
    }

    fn remove(&mut self, index: u32) {
        let page = self.pages[index as usize];
        self.change(page, Move::Stay, |unit| unit.base = None);
    }

    fn set_dirty(&mut self, _index: u32, _is_dirty: bool) {
        debug_assert!(false, "frames are bases: changes are told by their size");
    }

    fn victim(&mut self, urgency: Urgency) -> Option<u32> {
        let by_rule = self.copy_by_rule();
        match urgency {
            Urgency::Soon => by_rule,
            Urgency::Now => by_rule.or_else(|| self.oldest_copy().map(|(_, frame)| frame)),
        }
    }

    fn keep_only(&mut self, pages: &[LogicalPage]) {
        self.kept.clear();
        self.kept.extend_from_slice(pages);
    }

    fn set_background(&mut self, is_background: bool) {
        self.is_background = is_background;
        self.at_work.clear();
    }

    fn is_dry(&self) -> bool {
        self.copy_by_rule().is_none()
    }

    fn slack(&self) -> usize {
        self.slack
    }

    fn bytes_peak(&self) -> usize {
        self.count_peak * (size_of::<Unit>() + 5 * size_of::<Use>() + size_of::<LogicalPage>())
    }
}

/// The order of units, shared by the pool of frames and by the groups of deltas.
#[derive(Clone, Debug)]
pub(super) struct SharedUnits(pub(super) Arc<Mutex<Units>>);

impl SharedUnits {
    /// The order. Nobody asks the engine while holding it: the engine may be about to use a frame.
    pub(super) fn lock(&self) -> MutexGuard<'_, Units> {
        self.0.lock()
    }
}

impl Replacement for SharedUnits {
    fn count(&self) -> usize {
        self.lock().count()
    }

    fn insert(&mut self, index: u32, page: LogicalPage, size: usize) {
        self.lock().insert(index, page, size);
    }

    fn replace(&mut self, index: u32, page: LogicalPage, size: usize) {
        self.lock().replace(index, page, size);
    }

    fn touch(&mut self, index: u32) {
        self.lock().touch(index);
    }

    fn remove(&mut self, index: u32) {
        self.lock().remove(index);
    }

    fn set_dirty(&mut self, index: u32, is_dirty: bool) {
        self.lock().set_dirty(index, is_dirty);
    }

    fn victim(&mut self, urgency: Urgency) -> Option<u32> {
        self.lock().victim(urgency)
    }

    fn keep_only(&mut self, pages: &[LogicalPage]) {
        self.lock().keep_only(pages);
    }

    fn set_background(&mut self, is_background: bool) {
        self.lock().set_background(is_background);
    }

    fn is_dry(&self) -> bool {
        self.lock().is_dry()
    }

    fn slack(&self) -> usize {
        self.lock().slack()
    }

    fn bytes_peak(&self) -> usize {
        self.lock().bytes_peak()
    }
}

#[cfg(test)]
mod tests;
