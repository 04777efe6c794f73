//! The model that every test of the floor compares with, and the steps that both take.
//!
//! The model knows, for each logical page, which contents a mount may show: the last one that is
//! durable and everything written since. On a chip a completed write is durable; on a file, and on
//! paired cells, a sync makes it so. A forgotten page is durably forgotten by a checkpoint only.

use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use flagstone_nand::{CellMode, Crashable};

use super::script::{Draw, Step, script, script_of_changes, script_of_freezes};
use crate::runs::{self, ChangeForm};
use crate::{
    GroupId, LogRead, LogicalPage, Lsn, MountReport, NoOwner, RegionId, Space, SpaceError,
    SpaceOptions, Temperature, Version, WriteTag,
};

pub(super) const REGION: RegionId = RegionId(0);

/// Content of one page: a stamp that fills it.
pub(super) fn content(page: LogicalPage, stamp: u64, size: usize) -> Vec<u8> {
    let mut draw = Draw(stamp << 20 ^ u64::from(page.0));
    let mut bytes: Vec<u8> = (0..size / 8 + 1).flat_map(|_| draw.next().to_le_bytes()).collect();
    bytes[..8].copy_from_slice(&stamp.to_le_bytes());
    bytes.truncate(size);
    bytes
}

#[derive(Clone, Debug)]
struct Group {
    id: GroupId,
    pages: BTreeMap<u32, (u64, Version)>,
}

/// Content of a frozen mapping.
#[derive(Clone, Debug)]
struct Kept {
    label: Vec<u8>,
    pages: BTreeMap<u32, Option<Vec<u8>>>,
}

/// Mappings that are frozen at a time.
const KEPT_MAX: usize = 2;

/// Content that a space must have.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    /// Stamps that a mount may show, oldest first; the last is the valid one. `None` = unmapped.
    allowed: BTreeMap<u32, Vec<Option<u64>>>,
    /// Stamps since the last checkpoint: versions that a mount may show of a forgotten page.
    recent: BTreeMap<u32, Vec<Option<u64>>>,
    versions: BTreeMap<u32, Version>,
    groups: [Option<Group>; 2],
    /// Groups whose commit a log would prove.
    proven: BTreeSet<GroupId>,
    /// Durable log slots: page, slot, stamp.
    log: BTreeMap<(u64, u8), u64>,
    unsynced_log: BTreeMap<(u64, u8), u64>,
    stamp: u64,
    /// Append slots of every page.
    pub(super) slots: u8,
    /// Stamps of small changes, each with the stamp whose first bytes it changed.
    bases: BTreeMap<u64, u64>,
    /// Appends since the last checkpoint: a mount may show the page without them.
    loose: BTreeSet<u64>,
    /// Highest version and group seen: both only grow, across mounts (rule D3).
    version_max: Version,
    group_max: GroupId,
    /// A completed write is durable only after a sync.
    lazy: bool,
    /// Blocks that hold nothing are given back to the host.
    discards: bool,
    /// Mappings are frozen.
    pub(super) freezes: bool,
    /// Frozen mappings that are there for sure, oldest first; then one that a cut may have kept
    /// from being frozen or given up.
    frozen: Vec<Kept>,
    frozen_perhaps: Option<Kept>,
    /// The last mount has shown it: it is there once the session has begun.
    has_shown: bool,
    /// Deliberate bug to plant at every mount.
    #[cfg(feature = "seeded-bugs")]
    pub(super) bug: Option<crate::SpaceBug>,
    /// No write of this session is complete yet.
    fresh: bool,
}

/// A space with its model.
#[derive(Clone, Debug)]
pub(super) struct Pair<D> {
    pub(super) space: Space<D>,
    pub(super) model: Model,
}

/// Mounts as the model says, with the bug planted that it carries.
fn mount<D: Crashable>(device: D, model: &Model) -> (Space<D>, MountReport) {
    #[cfg(not(feature = "seeded-bugs"))]
    let mounted = Space::mount(device);
    #[cfg(feature = "seeded-bugs")]
    let mounted = match model.bug {
        Some(bug) => Space::mount_planted(device, bug),
        None => Space::mount(device),
    };
    let (mut space, report) = mounted.unwrap();
    if model.discards {
        space.discard_free_blocks();
    }
    (space, report)
}

impl<D: Crashable> Pair<D> {
    pub(super) fn format(device: D, options: &SpaceOptions) -> Self {
        let capabilities = device.capabilities();
        let paired =
            matches!(capabilities.cell_mode, CellMode::Mlc { .. } | CellMode::OddMlc { .. });
        let lazy = capabilities.needs_sync || paired;
        let space = Space::format(device, options).unwrap();
        Self { space, model: Model { lazy, ..Model::default() } }
    }

    /// The same with pages that take `slots` appends.
    pub(super) fn with_slots(mut self, slots: u8) -> Self {
        self.model.slots = slots;
        self
    }

    /// The same, on a file whose blocks that hold nothing are given back to the host.
    pub(super) fn discarding(mut self) -> Self {
        self.model.discards = true;
        self.space.discard_free_blocks();
        self
    }

    /// The same with mappings that are frozen.
    pub(super) fn freezing(mut self) -> Self {
        self.model.freezes = true;
        self
    }

    fn tag(&self, cold: bool) -> WriteTag {
        let temperature = if cold { Temperature::Cold } else { Temperature::Hot };
        let append_slots = self.model.slots;
        WriteTag { temperature, append_slots, ..WriteTag::data(Lsn(7), REGION) }
    }

    fn payload_size(&self) -> usize {
        self.space.payload_size_with(self.model.slots)
    }

    /// Does a step to both; on an error the model holds the states that a mount may show.
    pub(super) fn apply(&mut self, step: Step) -> Result<(), SpaceError> {
        match step {
            Step::Write { page, cold } => self.write(page, cold)?,
            Step::Change { page } => self.change(page)?,
            Step::WriteInGroup { page, slot } => self.write_in_group(page, slot)?,
            Step::Commit { slot } => self.commit(slot)?,
            Step::Discard { slot } => {
                if let Some(group) = self.model.groups[slot].take() {
                    self.space.discard_group(group.id);
                }
                return Ok(());
            }
            Step::Trim { page } => return self.trim(page),
            Step::Checkpoint => self.checkpoint()?,
            Step::Log { slots } => self.append(slots)?,
            Step::Sync => {
                self.space.sync()?;
                self.model.synced();
                return Ok(());
            }
            Step::Freeze => self.freeze()?,
            Step::Background => {
                self.space.background(&mut NoOwner)?;
            }
        }
        self.model.began();
        Ok(())
    }

    fn write(&mut self, page: u32, cold: bool) -> Result<(), SpaceError> {
        self.model.stamp += 1;
        self.write_image(page, self.model.stamp, cold)
    }

    /// Writes the content that belongs to a stamp.
    fn write_image(&mut self, page: u32, stamp: u64, cold: bool) -> Result<(), SpaceError> {
        let payload = self.model.image(page, stamp, self.payload_size());
        self.space.ensure_room(1, &mut NoOwner)?;
        self.model.began();
        self.model.may(page, Some(stamp));
        let result = self.space.write(LogicalPage(page), &payload, &self.tag(cold));
        let info = result.inspect_err(|error| {
            if !matches!(error, SpaceError::Device(_)) {
                self.model.may_not(page);
            }
        })?;
        self.model.grew(info.version);
        self.model.is(page, Some(stamp), Some(info.version));
        Ok(())
    }

    /// Changes the first bytes of a page: by an append, or as a whole where it takes none.
    fn change(&mut self, page: u32) -> Result<(), SpaceError> {
        let Some(old_stamp) = self.model.valid(page) else { return self.write(page, false) };
        let mut old = Vec::new();
        let info = match self.space.read(LogicalPage(page), &mut old) {
            // The remains of a trim are not there for sure.
            Err(SpaceError::Unmapped(_) | SpaceError::Corrupt { .. }) => return Ok(()),
            info => info?,
        };
        self.model.stamp += 1;
        let stamp = self.model.stamp;
        let base = self.model.bases.get(&old_stamp).copied().unwrap_or(old_stamp);
        self.model.bases.insert(stamp, base);
        let new = self.model.image(page, stamp, old.len());
        let form = match stamp % 2 {
            0 => ChangeForm::Pairs { bytes_max: 4 },
            _ => ChangeForm::Runs,
        };
        let left = usize::from(info.append_slots - info.appends);
        let size_max = self.space.append_size_max();
        if let Some(records) = runs::encode(&old, &new, form, left, size_max) {
            self.model.may(page, Some(stamp));
            self.model.loose.insert(stamp);
            let appended = self.space.append(LogicalPage(page), &info, info.lsn, form, &records)?;
            if let Some(now) = appended {
                assert_eq!(now.appends, info.appends + records.len() as u8);
                return Ok(());
            }
            self.model.may_not(page);
            self.model.loose.remove(&stamp);
        }
        self.write_image(page, stamp, false)
    }

    fn write_in_group(&mut self, page: u32, slot: usize) -> Result<(), SpaceError> {
        if self.model.groups[slot].is_none() {
            let id = self.space.new_group()?;
            assert!(id > self.model.group_max, "group {id:?} was used before");
            self.model.group_max = id;
            self.model.groups[slot] = Some(Group { id, pages: BTreeMap::new() });
        }
        self.model.stamp += 1;
        let stamp = self.model.stamp;
        let payload = content(LogicalPage(page), stamp, self.payload_size());
        self.space.ensure_room(1, &mut NoOwner)?;
        let tag = self.tag(false);
        let Some(group) = &mut self.model.groups[slot] else { return Ok(()) };
        let info = self.space.write_in_group(group.id, LogicalPage(page), &payload, &tag)?;
        group.pages.insert(page, (stamp, info.version));
        let id = group.id;
        self.model.grew(info.version);
        let mut read = Vec::new();
        self.space.read_in_group(id, LogicalPage(page), &mut read)?;
        assert_eq!(read, payload, "a group reads its own page");
        Ok(())
    }

    fn commit(&mut self, slot: usize) -> Result<(), SpaceError> {
        let Some(group) = self.model.groups[slot].clone() else { return Ok(()) };
        if group.pages.is_empty() {
            return Ok(());
        }
        self.space.sync()?;
        self.model.synced();
        self.model.proven.insert(group.id);
        self.space.commit_group(group.id)?;
        self.model.groups[slot] = None;
        for (page, (stamp, version)) in group.pages {
            let current = self.model.versions.get(&page);
            if current.is_none_or(|current| *current < version) {
                self.model.may(page, Some(stamp));
                self.model.allowed.insert(page, vec![Some(stamp)]);
                self.model.versions.insert(page, version);
            }
        }
        Ok(())
    }

    fn trim(&mut self, page: u32) -> Result<(), SpaceError> {
        let held = self.model.groups.iter().flatten().any(|group| group.pages.contains_key(&page));
        if held {
            return Ok(());
        }
        let was = self.space.trim(LogicalPage(page), None)?;
        assert_eq!(was, self.model.valid(page).is_some(), "trim says whether there was a version");
        if was {
            self.model.may(page, None);
            self.model.versions.remove(&page);
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), SpaceError> {
        let stamp = self.model.stamp;
        let release = self.space.log_range().start;
        self.space.checkpoint(&stamp.to_le_bytes())?;
        for allowed in self.model.allowed.values_mut() {
            allowed.drain(..allowed.len() - 1);
        }
        self.model.loose.clear();
        self.model.recent = self.model.allowed.clone();
        self.model.synced();
        self.model.proven.clear();
        self.model.log.retain(|(page, _), _| *page >= release);
        Ok(())
    }

    fn freeze(&mut self) -> Result<(), SpaceError> {
        // The session begins.
        self.space.new_group()?;
        self.model.settle_frozen();
        if self.model.frozen.len() == KEPT_MAX {
            let id = self.space.frozen()[0].0;
            self.model.frozen_perhaps = Some(self.model.frozen.remove(0));
            self.model.has_shown = false;
            self.space.thaw(id)?;
            self.model.frozen_perhaps = None;
            assert!(self.space.thaw(id).is_err(), "given up twice");
            return Ok(());
        }
        // Groups on pages that are not mapped stay open (Y5).
        for slot in 0..self.model.groups.len() {
            let group = self.model.groups[slot].iter().flat_map(|group| group.pages.keys());
            if group.copied().any(|page| self.space.is_mapped(LogicalPage(page))) {
                self.commit(slot)?;
            }
        }
        let mut pages = BTreeMap::new();
        for page in self.model.allowed.keys() {
            let mut bytes = Vec::new();
            match self.space.read(LogicalPage(*page), &mut bytes) {
                Ok(_) => drop(pages.insert(*page, Some(bytes))),
                Err(SpaceError::Unmapped(_)) => drop(pages.insert(*page, None)),
                // The remains of a trim may be half erased.
                Err(SpaceError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.model.stamp += 1;
        let kept = Kept { label: self.model.stamp.to_be_bytes().to_vec(), pages };
        self.model.frozen_perhaps = Some(kept.clone());
        self.model.has_shown = false;
        let frozen = self.space.freeze(&kept.label, &mut NoOwner);
        if matches!(frozen, Err(SpaceError::Full | SpaceError::GroupOpen(_))) {
            self.model.frozen_perhaps = None;
            return Ok(());
        }
        frozen?;
        self.model.frozen_perhaps = None;
        self.model.frozen.push(kept);
        Ok(())
    }

    /// Compares the content of frozen mappings with the model.
    fn check_frozen(&mut self) {
        let found = self.space.frozen();
        let is_there = |kept: &Kept| found.iter().any(|(_, label)| *label == kept.label);
        let perhaps = self.model.frozen_perhaps.clone().filter(is_there);
        self.model.has_shown = perhaps.is_some();
        let mut kept: Vec<_> = self.model.frozen.iter().cloned().chain(perhaps).collect();
        kept.sort_by(|one, other| one.label.cmp(&other.label));
        let labels: Vec<_> = kept.iter().map(|kept| kept.label.clone()).collect();
        assert_eq!(found.iter().map(|(_, label)| label.clone()).collect::<Vec<_>>(), labels);
        for ((id, _), kept) in found.into_iter().zip(kept) {
            for (page, expected) in kept.pages {
                let mut bytes = Vec::new();
                let seen = match self.space.read_frozen(id, LogicalPage(page), &mut bytes) {
                    Ok(_) => Some(bytes),
                    Err(SpaceError::Unmapped(_)) => None,
                    Err(error) => panic!("{id}, page {page}: {error}"),
                };
                assert!(seen == expected, "{id}, page {page}: not what it was");
            }
        }
    }

    fn append(&mut self, slots: u32) -> Result<(), SpaceError> {
        self.space.ensure_room(0, &mut NoOwner)?;
        let release = self.space.log_range().end.saturating_sub(6);
        self.space.log_release(release);
        if self.space.log_used_pages() + 2 > self.space.log_budget_pages() {
            self.checkpoint()?;
        }
        let slots = slots.min(self.space.log_slots_per_page());
        self.model.stamp += 1;
        let stamp = self.model.stamp;
        let size = self.space.log_slot_size() * slots as usize;
        let bytes = content(LogicalPage(u32::MAX), stamp, size);
        let address = self.space.log_append(&bytes)?;
        let entry = ((address.page, address.slot), stamp << 8 | u64::from(slots));
        let lazy = self.model.lazy && self.space.layout().capabilities.needs_sync;
        let target = if lazy { &mut self.model.unsynced_log } else { &mut self.model.log };
        assert!(target.insert(entry.0, entry.1).is_none(), "log addresses are never reused");
        let release = self.space.log_range().end.saturating_sub(6);
        self.space.log_release(release);
        Ok(())
    }

    /// Power comes back: mounts, decides the open groups, checks everything.
    pub(super) fn recover(mut device: D, mut model: Model) -> Self {
        device.power_cycle();
        let (space, report) = mount(device, &model);
        assert_eq!(report.lost_pages, 0, "a cut loses no page");
        let mut pair = Self { space, model: Model::default() };
        for group in report.open_groups {
            if model.proven.contains(&group) {
                pair.space.commit_group(group).unwrap();
            } else {
                pair.space.discard_group(group);
            }
        }
        model.groups = [None, None];
        model.versions.clear();
        model.unsynced_log.clear();
        pair.model = model;
        pair.check_log(report.log_pages.start);
        pair.check(Sight::AfterMount);
        pair
    }

    /// Mounts a copy of the device without a cut.
    pub(super) fn reopen(self) -> Self {
        Self::recover(self.space.into_device(), self.model)
    }

    /// Mounts a damaged device: every answer is a version since the last checkpoint, or an error.
    /// A page of a block whose first page is gone may be reported as unmapped where no checkpoint
    /// knew of it.
    pub(super) fn check_damaged(&self, mut device: D, what: &str) {
        device.power_cycle();
        let Ok((mut space, report)) = Space::mount(device) else { return };
        for group in report.open_groups {
            if self.model.proven.contains(&group) {
                let _ = space.commit_group(group);
            } else {
                space.discard_group(group);
            }
        }
        let (mut bytes, size) = (Vec::new(), self.payload_size());
        for (page, allowed) in &self.model.recent {
            let seen = match space.read(LogicalPage(*page), &mut bytes) {
                Ok(_) => Some(u64::from_le_bytes(bytes[..8].try_into().unwrap())),
                Err(SpaceError::Corrupt { .. } | SpaceError::Lost(_) | SpaceError::Unmapped(_)) => {
                    continue;
                }
                Err(error) => panic!("{what}: {error}"),
            };
            assert!(allowed.contains(&seen), "{what}: page {page}: {seen:?} not in {allowed:?}");
            if let Some(stamp) = seen {
                assert_eq!(bytes, self.model.image(*page, stamp, size), "{what}: page {page}");
            }
        }
    }

    fn check_log(&mut self, head: u64) {
        let mut page_bytes = Vec::new();
        let slot_size = self.space.log_slot_size();
        for ((page, slot), stamp) in self.model.log.clone() {
            if page < head {
                continue;
            }
            let read = self.space.log_read(page, &mut page_bytes).unwrap();
            assert!(matches!(read, LogRead::Present { .. }), "log page {page}: {read:?}");
            let start = usize::from(slot) * slot_size;
            let size = slot_size * (stamp & 0xFF) as usize;
            let expected = content(LogicalPage(u32::MAX), stamp >> 8, size);
            assert!(page_bytes[start..start + size] == expected[..], "log page {page} slot {slot}");
        }
    }

    /// Compares every page with the model.
    pub(super) fn check(&mut self, sight: Sight) {
        let size = self.payload_size();
        let mut bytes = Vec::new();
        for (page, allowed) in self.model.allowed.clone() {
            let seen = match self.space.read(LogicalPage(page), &mut bytes) {
                Ok(info) => {
                    let stamp = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    assert_eq!(bytes, self.model.image(page, stamp, size), "page {page}");
                    self.model.versions.insert(page, info.version);
                    Some(stamp)
                }
                Err(SpaceError::Unmapped(_)) => {
                    self.model.versions.remove(&page);
                    None
                }
                // The remains of a trim may be half erased; the page is trimmed again.
                Err(SpaceError::Corrupt { .. }) if allowed.contains(&None) => {
                    self.space.trim(LogicalPage(page), None).unwrap();
                    None
                }
                Err(error) => panic!("page {page}, allowed {allowed:?}: {error}"),
            };
            match sight {
                Sight::Running => {
                    assert_eq!(Some(&seen), allowed.last(), "page {page}");
                }
                Sight::AfterMount => {
                    assert!(allowed.contains(&seen), "page {page}: {seen:?} not in {allowed:?}");
                    self.model.may(page, seen);
                    // Changes that the mount counted count for good, once the session has begun.
                    seen.map(|stamp| self.model.loose.remove(&stamp));
                    self.model.fresh = true;
                }
            }
        }
        self.check_frozen();
        let faults = self.space.verify().unwrap();
        assert!(faults.is_empty(), "{faults:?}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    Running,
    AfterMount,
}

impl Model {
    /// The script that goes with this exploration.
    pub(super) fn script(&self, seed: u64, length: usize, pages: u32) -> Vec<Step> {
        match (self.freezes, self.slots) {
            (true, _) => script_of_freezes(seed, length, pages),
            (false, 0) => script(seed, length, pages),
            (false, _) => script_of_changes(seed, length, pages),
        }
    }

    /// Content of one page: as written, its first bytes as changed since.
    fn image(&self, page: u32, stamp: u64, size: usize) -> Vec<u8> {
        let base = self.bases.get(&stamp).copied().unwrap_or(stamp);
        let mut bytes = content(LogicalPage(page), base, size);
        bytes[..8].copy_from_slice(&stamp.to_le_bytes());
        bytes
    }

    pub(super) fn valid(&self, page: u32) -> Option<u64> {
        self.allowed.get(&page).and_then(|stamps| stamps.last().copied().flatten())
    }

    fn may(&mut self, page: u32, stamp: Option<u64>) {
        let recent = self.recent.entry(page).or_insert_with(|| vec![None]);
        recent.push(stamp);
        if stamp.is_none() {
            self.allowed.insert(page, recent.clone());
            return;
        }
        self.allowed.entry(page).or_insert_with(|| vec![None]).push(stamp);
    }

    fn may_not(&mut self, page: u32) {
        if let Some(stamps) = self.allowed.get_mut(&page) {
            stamps.pop();
        }
    }

    fn grew(&mut self, version: Version) {
        assert!(version > self.version_max, "version {version:?} was used before");
        self.version_max = version;
    }

    fn is(&mut self, page: u32, stamp: Option<u64>, version: Option<Version>) {
        if !self.lazy {
            self.allowed.insert(page, vec![stamp]);
        }
        if let Some(version) = version {
            self.versions.insert(page, version);
        }
    }

    /// A frozen mapping that the mount has shown is there for good; any other is gone.
    fn settle_frozen(&mut self) {
        let perhaps = self.frozen_perhaps.take().filter(|_| self.has_shown);
        self.frozen.extend(perhaps);
        self.frozen.sort_by(|one, other| one.label.cmp(&other.label));
    }

    /// A write of the session is complete: the content that the mount showed is durable.
    fn began(&mut self) {
        self.settle_frozen();
        if self.fresh && !self.lazy {
            self.synced();
        }
        self.fresh = false;
    }

    fn synced(&mut self) {
        for stamps in self.allowed.values_mut() {
            let is_loose = |stamp: &Option<u64>| stamp.is_some_and(|it| self.loose.contains(&it));
            if stamps.last().is_some_and(Option::is_some)
                && let Some(durable) = stamps.iter().rposition(|stamp| !is_loose(stamp))
            {
                stamps.drain(..durable);
            }
        }
        self.log.append(&mut self.unsynced_log);
    }
}
