//! Frozen mappings: all logical pages as they were at one moment, kept across mounts.
//!
//! Owns the set of units that frozen mappings point to, and the moment when such a unit may go. Never knows
//! the meaning of a page, nor when a moment is worth keeping.
//!
//! ```text
//!           freeze                   page is written               unit is moved
//!  map ─▶ a ──────▶ map    ─▶ a ─────────────────▶ map    ─▶ b ───────────────▶ map    ─▶ b
//!                   frozen ─▶ a                    frozen ─▶ a                  frozen ─▶ a', as history
//! ```
//!
//! A frozen mapping begins as a copy of the mapping and shares the units of the mapping. Its own pages are
//! pages of the mapping, with numbers of their own behind the directory; the record names the pages of its
//! directory.
//!
//! Y1. A unit that a frozen mapping points to is live, whether its page has moved on or not (S2). Y2. Such a
//! unit takes no appends: the frozen mapping counts the appends that it had. Y3. The newest record defines
//! which frozen mappings there are. Units of a mapping that was given up stay until a record without it is
//! durable (rule D4). Y4. A unit to which frozen mappings alone point moves as history without the mark of a
//! copy; other history bears the mark. Take a version of a page that lies below the frontier of a frozen
//! mapping, and not below the frontier of the frozen mapping before it that has the page too: a moved unit
//! with this version is the unit that the frozen mapping had. Y5. A mapping is frozen only while no group is
//! open on a page that is mapped or lost: so no later commit can put a version below the frontier in the
//! place of a page that the frozen mapping has (Y4). For a page that the frozen mapping lacks, a commit may
//! do so; then the next frozen mapping has that version.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use flagstone_nand::Nand;

use crate::error::SpaceError;
use crate::mapping::{Bits, Mapping, UNMAPPED};
use crate::record::FrozenRecord;
use crate::space::{Space, info_of};
use crate::{FrozenId, LogicalPage, Owner, PageInfo, SpaceBug};

/// Mappings that may be frozen at a time.
pub const FROZEN_MAX: u8 = 32;

/// Bytes of the longest label of a frozen mapping.
pub const FROZEN_LABEL_SIZE_MAX: usize = 255;

/// Frozen mappings take at most one part in this many of the record's room for them and the caller.
const RECORD_SHARE: usize = 4;

/// One frozen mapping.
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    pub(crate) map: Mapping,
    /// Its slot among the places for frozen mappings in the pages of the mapping.
    pub(crate) slot: u8,
    /// Label given by the caller.
    pub(crate) label: Vec<u8>,
}

/// All frozen mappings.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrozenMaps {
    /// By their frontiers: oldest first.
    pub(crate) maps: BTreeMap<FrozenId, Frozen>,
    /// Units that frozen mappings point to.
    units: Bits,
    /// Units to which frozen mappings point, and the mapping does not.
    only: u32,
}

impl FrozenMaps {
    /// Whether a frozen mapping points to the unit.
    pub(crate) fn has(&self, at: u32) -> bool {
        self.units.get(at)
    }

    /// Units to which frozen mappings alone point.
    pub(crate) const fn only_count(&self) -> u32 {
        self.only
    }

    /// The mapping points to the unit no more.
    pub(crate) fn displaced(&mut self, at: u32) {
        self.only += u32::from(self.has(at));
    }

    /// Appends of the unit, which holds `page`, if a frozen mapping points to it.
    pub(crate) fn appends(&self, page: LogicalPage, at: u32) -> Option<u8> {
        self.has(at).then_some(())?;
        let mut maps = self.maps.values().map(|frozen| &frozen.map);
        maps.find(|map| map.get(page) == Some(at)).map(|map| map.appends(page))
    }

    /// The unit, which holds `page`, was copied to `to`.
    pub(crate) fn relocate(&mut self, page: LogicalPage, from: u32, to: u32) {
        if !self.has(from) {
            return;
        }
        for frozen in self.maps.values_mut() {
            if frozen.map.get(page) == Some(from) {
                frozen.map.set(page, to);
            }
        }
        self.units.remove(from);
        self.hold(to);
    }

    /// Points to the unit; says whether it is the first to do so.
    fn hold(&mut self, at: u32) -> bool {
        self.units.extend(at as usize + 1);
        self.units.insert(at)
    }

    /// Counts the units of all frozen mappings, beside `map`: after a mount.
    pub(crate) fn count(&mut self, map: &Mapping) {
        let maps = core::mem::take(&mut self.maps);
        for (page, at) in maps.values().flat_map(|frozen| frozen.map.iter()) {
            let is_new = self.hold(at);
            self.only += u32::from(is_new && map.get(page) != Some(at));
        }
        self.maps = maps;
    }

    /// Bytes that frozen mappings take in a record.
    pub(crate) fn record_size(&self, roots: usize) -> usize {
        self.maps.values().map(|frozen| FrozenRecord::size(roots, frozen.label.len())).sum()
    }

    /// Every unit that a frozen mapping points to, with its page.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LogicalPage, u32)> + '_ {
        self.maps.values().flat_map(|frozen| frozen.map.iter())
    }

    /// Bytes of memory.
    pub(crate) fn size(&self) -> usize {
        self.maps.values().map(|frozen| frozen.map.size()).sum::<usize>() + self.units.size()
    }
}

impl<D: Nand> Space<D> {
    /// Keeps all pages readable as they are now, through later writes and across mounts: durable when it
    /// returns. `label` belongs to the caller, and comes back with the frozen mapping.
    ///
    /// The units are shared with the mapping: only new writes take room of their own.
    ///
    /// # Errors
    ///
    /// `TooManyFrozen` where there are [`FROZEN_MAX`] or the record has no room; `Full` where the device has
    /// none; `GroupOpen` while a group is open on a page that is mapped or lost (Y5); `TooLong` for a label;
    /// the errors of a checkpoint. After an error nothing is frozen.
    pub fn freeze(&mut self, label: &[u8], owner: &mut dyn Owner) -> Result<FrozenId, SpaceError> {
        self.ready()?;
        if label.len() > FROZEN_LABEL_SIZE_MAX {
            return Err(SpaceError::TooLong { size: label.len(), limit: FROZEN_LABEL_SIZE_MAX });
        }
        let is_taken = |slot: &u8| self.frozen.maps.values().any(|frozen| frozen.slot == *slot);
        let slot = (0..FROZEN_MAX).find(|slot| !is_taken(slot)).ok_or(SpaceError::TooManyFrozen)?;
        let size = FrozenRecord::size(self.layout().frozen_directory_pages() as usize, label.len());
        if self.frozen_record_size() + size > self.frozen_record_max(self.shared_record_room()) {
            return Err(SpaceError::TooManyFrozen);
        }
        let count = self.frozen.maps.len() as u32;
        self.flash.layout.set_frozen(count + 1);
        let frozen = self.freeze_with(slot, label, owner);
        if frozen.is_err() {
            self.frozen.maps.retain(|_, frozen| frozen.slot != slot);
            self.forget_meta_pages(slot);
            self.flash.layout.set_frozen(count);
            self.count_frozen();
        }
        frozen
    }

    fn freeze_with(
        &mut self,
        slot: u8,
        label: &[u8],
        owner: &mut dyn Owner,
    ) -> Result<FrozenId, SpaceError> {
        self.grow_for(0)?;
        if self.taken_pages() > self.capacity_pages() {
            return Err(SpaceError::Full);
        }
        self.ensure_room(0, owner).map_err(|error| match error {
            // Failed blocks are not the reason: without the frozen mapping there is room.
            SpaceError::WornOut => SpaceError::Full,
            error => error,
        })?;
        if let Some(group) = self.groups.on_known(&self.map) {
            return Err(SpaceError::GroupOpen(group));
        }
        // A version of its own: no two mappings have the same frontier, even where the checkpoint writes
        // nothing.
        let (mut map, id) = (self.map.clone(), FrozenId(self.next_version()));
        map.mark_used_dirty();
        let range = self.layout().frozen_pages(slot);
        self.meta_units.resize(self.meta_units.len().max(range.end as usize), UNMAPPED);
        self.frozen.maps.insert(id, Frozen { map, slot, label: label.to_vec() });
        self.count_frozen();
        self.checkpoint_own()?;
        Ok(id)
    }

    /// Frozen mappings with their labels, oldest first.
    #[must_use]
    pub fn frozen(&self) -> Vec<(FrozenId, Vec<u8>)> {
        self.frozen.maps.iter().map(|(id, frozen)| (*id, frozen.label.clone())).collect()
    }

    /// Reads `page` as it was when the mapping was frozen.
    ///
    /// # Errors
    ///
    /// `UnknownFrozen`; as [`Space::read`].
    pub fn read_frozen(
        &mut self,
        id: FrozenId,
        page: LogicalPage,
        out: &mut Vec<u8>,
    ) -> Result<PageInfo, SpaceError> {
        let frozen = self.frozen.maps.get(&id).ok_or(SpaceError::UnknownFrozen(id))?;
        let (found, appends) = (frozen.map.get(page), frozen.map.appends(page));
        let at = match found {
            Some(at) => at,
            None if frozen.map.is_lost(page) => return Err(SpaceError::Lost(page)),
            None => return Err(SpaceError::Unmapped(page)),
        };
        let meta = self.read_at_with(at, page, out, Some(appends))?;
        self.flash.tally.region(meta.region).reads += 1;
        Ok(PageInfo { appends, ..info_of(&meta, at) })
    }

    /// Gives a frozen mapping up, with the units to which it alone points: durable when it returns.
    ///
    /// # Errors
    ///
    /// `UnknownFrozen`; the errors of a checkpoint: after one of these the mapping is given up all the same,
    /// durably with the next checkpoint.
    pub fn thaw(&mut self, id: FrozenId) -> Result<(), SpaceError> {
        self.ready()?;
        let frozen = self.frozen.maps.remove(&id).ok_or(SpaceError::UnknownFrozen(id))?;
        self.forget_meta_pages(frozen.slot);
        self.count_frozen();
        for (page, at) in frozen.map.iter() {
            if !self.frozen.has(at) && self.map.get(page) != Some(at) {
                self.trimmed_unsaved.insert(at);
            }
        }
        let result = self.checkpoint_own();
        let count = self.frozen.maps.len() as u32;
        self.flash.layout.set_frozen(count);
        result
    }

    /// Pages of a frozen mapping stay until a record that does not name them is durable (K2).
    fn forget_meta_pages(&mut self, slot: u8) {
        let pages = self.layout().frozen_pages(slot);
        self.meta_moving.retain(|index| !pages.contains(index));
        let range = pages.start as usize..pages.end as usize;
        let units = self.meta_units.get_mut(range).into_iter().flatten();
        let old = units.filter(|at| **at != UNMAPPED);
        self.meta_old.extend(old.map(|at| core::mem::replace(at, UNMAPPED)));
        let last = self.frozen.maps.values().map(|frozen| frozen.slot).max();
        let end = last.map(|slot| self.layout().frozen_pages(slot).end);
        let end = end.unwrap_or_else(|| self.layout().frozen_start());
        self.meta_units.truncate(end as usize);
    }

    /// Counts anew which units frozen mappings point to.
    pub(crate) fn count_frozen(&mut self) {
        let maps = core::mem::take(&mut self.frozen).maps;
        self.frozen.maps = maps;
        self.frozen.count(&self.map);
    }

    /// Entries of the frozen mappings for the record.
    pub(crate) fn frozen_records(&self) -> Vec<FrozenRecord> {
        let record = |(id, frozen): (&FrozenId, &Frozen)| {
            let pages = self.layout().frozen_pages(frozen.slot);
            let roots = (pages.end - self.layout().frozen_directory_pages())..pages.end;
            let units = self.meta_units.get(roots.start as usize..roots.end as usize);
            FrozenRecord {
                slot: frozen.slot,
                frontier: id.0,
                roots: units.unwrap_or_default().to_vec(),
                label: frozen.label.clone(),
            }
        };
        self.frozen.maps.iter().map(record).collect()
    }

    /// Bytes that frozen mappings may take of a record's `room`.
    pub(crate) fn frozen_record_max(&self, room: usize) -> usize {
        let roots = self.layout().frozen_directory_pages() as usize;
        let longest = FrozenRecord::size(roots, FROZEN_LABEL_SIZE_MAX);
        (room / RECORD_SHARE).min(usize::from(FROZEN_MAX) * longest)
    }

    /// Bytes that frozen mappings take in a record.
    pub(crate) fn frozen_record_size(&self) -> usize {
        self.frozen.record_size(self.layout().frozen_directory_pages() as usize)
    }

    /// Writes the pages of frozen mappings that changed, and their directories.
    pub(crate) fn write_frozen(&mut self, buffer: &mut Vec<u8>) -> Result<(), SpaceError> {
        let ids: Vec<FrozenId> = self.frozen.maps.keys().copied().collect();
        for id in ids {
            let Some(slot) = self.frozen.maps.get(&id).map(|frozen| frozen.slot) else { continue };
            let pages = self.layout().frozen_pages(slot);
            for page in 0..self.layout().map_pages {
                let Some(frozen) = self.frozen.maps.get_mut(&id) else { break };
                if frozen.map.is_dirty(page) {
                    frozen.map.encode(page, buffer);
                    self.write_meta_page(pages.start + page, buffer)?;
                    // A page that found no room is written by the next checkpoint.
                    if let Some(frozen) = self.frozen.maps.get_mut(&id) {
                        frozen.map.mark_clean(page);
                    }
                }
            }
            let directory = pages.end - self.layout().frozen_directory_pages();
            self.write_directory_of(pages.start..directory, directory, buffer)?;
        }
        Ok(())
    }

    /// The mapping points to the unit no more; frozen mappings that still do are counted.
    pub(crate) fn displace(&mut self, at: u32) {
        self.frozen.displaced(at);
    }

    /// Whether a frozen mapping points to the unit (Y1).
    pub(crate) fn is_frozen(&self, at: u32) -> bool {
        self.frozen.has(at) && !self.flash.bugs.has(SpaceBug::FrozenIgnored)
    }
}
