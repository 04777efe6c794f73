//! The smallest transactional use of the space floor: groups, a record each, nothing else.
//!
//! Owns a store that keeps its content in memory and every value in logical pages of its own. A
//! commit writes its pages in a group, appends one record that names the group to the log, and
//! moves the mapping. A deferred commit leaves its group open: the next record names it too, and
//! until then collection, checkpoints and restarts meet open groups. It exists so that the harness
//! can explore floor 1 without the floors above: a failure here is a bug of the space floor.
//!
//! ```text
//! page   = table(1) key_size(2) key part(1) parts(1) value_size(4) bytes     parts 0 = deleted
//! record = magic(4) sequence(8) count(1) groups(8 each) sum(8)
//! ```

use std::collections::{BTreeMap, BTreeSet};

use flagstone_engine::{Durability, EngineError, OpenError};
use flagstone_nand::Nand;
use flagstone_space::{
    GroupId, LogicalPage, Lsn, MountError, MountReport, NoOwner, RegionId, Space, SpaceError,
    SpaceOptions, WriteTag, blocks_needed,
};

use super::overlay::{Overlay, Store};
use super::subject::Setup;
use crate::model::{Address, Change, Contents, TableIndex};

const MAGIC: [u8; 4] = *b"LEDG";

/// Groups that one record names at most: a record fits the smallest slot of a log.
const GROUPS_MAX: usize = 8;

/// Log pages of a ledger: two blocks of a tiny chip and one more.
const LOG_PAGES: u32 = 24;

/// Logical pages that the smallest ledger has room for.
const PAGES_MIN: u32 = 8;

/// A part is missing that no power cut takes.
const DAMAGED: EngineError =
    EngineError::Corrupt { page: LogicalPage(u32::MAX), check: "a ledger with holes" };

/// The store with its transactions.
pub type Ledger<D> = Overlay<Groups<D>>;

/// The store.
#[derive(Debug)]
pub struct Groups<D: Nand> {
    space: Space<D>,
    /// Logical pages of each key, in the order of the value's parts.
    pages: BTreeMap<Address, Vec<LogicalPage>>,
    /// Logical pages that the write under way took first, in order.
    fresh: Vec<(Address, LogicalPage)>,
    /// Groups of deferred commits, in order: no record names them.
    undecided: Vec<GroupId>,
    sequence: u64,
}

/// One logical page of a ledger.
struct Part {
    address: Address,
    index: u8,
    count: u8,
    value_size: usize,
    bytes: Vec<u8>,
}

impl Part {
    fn encode(&self) -> Vec<u8> {
        let (table, key) = &self.address;
        let mut payload = vec![table.0];
        payload.extend((key.len() as u16).to_le_bytes());
        payload.extend(key);
        payload.extend([self.index, self.count]);
        payload.extend((self.value_size as u32).to_le_bytes());
        payload.extend(&self.bytes);
        payload
    }

    fn decode(payload: &[u8]) -> Option<Self> {
        let (table, rest) = payload.split_first()?;
        let (key_size, rest) = rest.split_first_chunk::<2>()?;
        let (key, rest) = rest.split_at_checked(u16::from_le_bytes(*key_size).into())?;
        let (numbers, rest) = rest.split_first_chunk::<2>()?;
        let (value_size, bytes) = rest.split_first_chunk::<4>()?;
        Some(Self {
            address: (TableIndex(*table), key.to_vec()),
            index: numbers[0],
            count: numbers[1],
            value_size: u32::from_le_bytes(*value_size) as usize,
            bytes: bytes.to_vec(),
        })
    }
}

#[cfg(not(feature = "seeded-bugs"))]
fn mount<D: Nand>(device: D, _: &Setup) -> Result<(Space<D>, MountReport), MountError> {
    Space::mount(device)
}

#[cfg(not(feature = "seeded-bugs"))]
fn plant<D: Nand>(_: &mut Space<D>, _: &Setup) {}

#[cfg(feature = "seeded-bugs")]
fn mount<D: Nand>(device: D, setup: &Setup) -> Result<(Space<D>, MountReport), MountError> {
    match setup.space_bug {
        Some(bug) => Space::mount_planted(device, bug),
        None => Space::mount(device),
    }
}

#[cfg(feature = "seeded-bugs")]
fn plant<D: Nand>(space: &mut Space<D>, setup: &Setup) {
    if let Some(bug) = setup.space_bug {
        space.plant(bug);
    }
}

fn sum_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// The number of the last record before a checkpoint, by its blob.
fn sequence_of(user: &[u8]) -> u64 {
    user.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn encode_record(sequence: u64, groups: &[GroupId]) -> Vec<u8> {
    let mut record = MAGIC.to_vec();
    record.extend(sequence.to_le_bytes());
    record.push(groups.len() as u8);
    groups.iter().for_each(|group| record.extend(group.0.to_le_bytes()));
    record.extend(sum_of(&record).to_le_bytes());
    record
}

fn decode_record(slot: &[u8]) -> Option<(u64, Vec<GroupId>)> {
    let (magic, rest) = slot.split_first_chunk::<4>()?;
    let (sequence, rest) = rest.split_first_chunk::<8>()?;
    let (count, rest) = rest.split_first()?;
    let (groups, rest) = rest.split_at_checked(8 * usize::from(*count))?;
    let (sum, _) = rest.split_first_chunk::<8>()?;
    let body = slot.get(..4 + 8 + 1 + groups.len())?;
    let is_whole = *magic == MAGIC && sum_of(body) == u64::from_le_bytes(*sum);
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let groups = groups.chunks_exact(8).map(|bytes| GroupId(number(bytes)));
    is_whole.then(|| (u64::from_le_bytes(*sequence), groups.collect()))
}

impl<D: Nand> Groups<D> {
    fn around(space: Space<D>) -> Self {
        let (pages, fresh, undecided) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { space, pages, fresh, undecided, sequence: 0 }
    }

    /// Bytes of a value that fit one logical page with any key.
    fn part_size(&self) -> usize {
        const HEAD_SIZE_MAX: usize = 64;
        self.space.payload_size() - HEAD_SIZE_MAX
    }

    /// Reads the log: groups that are committed. Records since the checkpoint come without a gap.
    fn committed_groups(&mut self) -> Result<BTreeSet<GroupId>, EngineError> {
        let slot_size = self.space.log_slot_size();
        let (mut groups, mut numbers) = (BTreeSet::new(), BTreeSet::new());
        let mut page = Vec::new();
        for number in self.space.log_numbers(self.space.log_range()) {
            match self.space.log_read(number, &mut page) {
                Ok(_) => {}
                Err(SpaceError::LogPageGone(_)) => continue,
                Err(error) => return Err(error.into()),
            }
            for (sequence, named) in page.chunks(slot_size).filter_map(decode_record) {
                numbers.insert(sequence);
                groups.extend(named);
            }
        }
        let last = numbers.last().copied().unwrap_or(0).max(self.sequence);
        if (self.sequence + 1..=last).any(|number| !numbers.contains(&number)) {
            return Err(DAMAGED);
        }
        self.sequence = last;
        Ok(groups)
    }

    /// Decides the open groups by the log. The last record may have been in flight: the decision
    /// is written anew before anything relies on it (rule D11).
    fn recover(&mut self) -> Result<(), EngineError> {
        let decided = self.committed_groups()?;
        let open = self.space.groups().into_iter();
        let (committed, dead): (Vec<_>, Vec<_>) = open.partition(|group| decided.contains(group));
        for groups in committed.chunks(GROUPS_MAX) {
            self.append_record(groups)?;
        }
        for group in committed {
            self.space.commit_group(group)?;
        }
        dead.into_iter().for_each(|group| self.space.discard_group(group));
        Ok(self.pass_log()?)
    }

    fn append_record(&mut self, groups: &[GroupId]) -> Result<(), SpaceError> {
        self.sequence += 1;
        self.space.log_append(&encode_record(self.sequence, groups))?;
        self.space.sync()
    }

    /// Commits the groups of deferred commits.
    fn decide(&mut self) -> Result<(), SpaceError> {
        if self.undecided.is_empty() {
            return Ok(());
        }
        self.space.sync()?;
        self.append_record(&self.undecided.clone())?;
        for group in std::mem::take(&mut self.undecided) {
            self.space.commit_group(group)?;
        }
        Ok(())
    }

    /// Reads every page back.
    fn load(&mut self) -> Result<Contents, EngineError> {
        let mapped: Vec<_> = self.space.mapped_pages().collect();
        let mut parts: BTreeMap<Address, BTreeMap<u8, (LogicalPage, Part)>> = BTreeMap::new();
        let mut payload = Vec::new();
        for page in mapped {
            self.space.read(page, &mut payload)?;
            if let Some(part) = Part::decode(&payload) {
                let parts = parts.entry(part.address.clone()).or_default();
                parts.insert(part.index, (page, part));
            }
        }
        let part_size = self.part_size();
        let mut contents = Contents::default();
        self.pages.clear();
        for (address, parts) in parts {
            let count = parts.values().next().map_or(0, |(_, first)| first.count);
            let size = parts.values().next().map_or(0, |(_, first)| first.value_size);
            if !(0..count).all(|index| parts.contains_key(&index)) {
                return Err(DAMAGED);
            }
            let mut value = Vec::new();
            for (_, part) in parts.values().take(count.into()) {
                // The bytes behind a part in its page are padding.
                value.extend(part.bytes.iter().take(part_size));
            }
            value.truncate(size);
            let pages = parts.values().map(|(page, _)| *page).collect();
            self.pages.insert(address.clone(), pages);
            if count > 0 {
                contents.insert(address.0, address.1, value);
            }
        }
        Ok(contents)
    }

    /// Pages that a change writes: every part of a new value, or a mark that it is deleted.
    fn parts_of(&self, change: &Change) -> Vec<Part> {
        let part_size = self.part_size();
        let mut all = Vec::new();
        for (address, value) in change {
            let value: &[u8] = value.as_deref().unwrap_or(&[]);
            let is_deleted = change.get(address).is_some_and(Option::is_none);
            if is_deleted && !self.pages.contains_key(address) {
                continue;
            }
            let count = if is_deleted { 0 } else { value.len().div_ceil(part_size).max(1) as u8 };
            for index in 0..count.max(1) {
                let bytes = value.chunks(part_size).nth(index.into()).unwrap_or(&[]).to_vec();
                let address = address.clone();
                all.push(Part { address, index, count, value_size: value.len(), bytes });
            }
        }
        all
    }

    fn page_for(&mut self, part: &Part) -> Result<LogicalPage, SpaceError> {
        let pages = self.pages.entry(part.address.clone()).or_default();
        if let Some(page) = pages.get(usize::from(part.index)) {
            return Ok(*page);
        }
        let page = self.space.allocate(RegionId(0))?;
        pages.push(page);
        self.fresh.push((part.address.clone(), page));
        Ok(page)
    }

    /// Writes a change in a group, which is undecided then.
    fn write(&mut self, change: &Change) -> Result<(), SpaceError> {
        let parts = self.parts_of(change);
        if parts.is_empty() {
            return Ok(());
        }
        self.make_room(parts.len() as u32)?;
        let group = self.space.new_group()?;
        let written = self.write_parts(group, &parts);
        match written {
            Ok(()) => self.undecided.push(group),
            Err(_) => self.space.discard_group(group),
        }
        written
    }

    fn write_parts(&mut self, group: GroupId, parts: &[Part]) -> Result<(), SpaceError> {
        let tag = WriteTag::data(Lsn(self.sequence + 1), RegionId(0));
        for part in parts {
            let page = self.page_for(part)?;
            self.space.write_in_group(group, page, &part.encode(), &tag)?;
        }
        Ok(())
    }

    /// Room for so many pages and one record.
    fn make_room(&mut self, pages: u32) -> Result<(), SpaceError> {
        if self.space.log_used_pages() * 2 > self.space.log_budget_pages() {
            self.pass_log()?;
        }
        self.space.ensure_room(pages + 1, &mut NoOwner)
    }

    /// Makes the mapping durable and lets the log behind it go.
    fn pass_log(&mut self) -> Result<(), SpaceError> {
        // The head must not pass the page that takes the next record.
        self.space.log_skip_page();
        self.space.log_release(self.space.log_range().end);
        self.space.checkpoint(&self.sequence.to_le_bytes())
    }

    /// Forgets pages that a change took which was not written.
    fn forget_fresh(&mut self) {
        for (address, page) in std::mem::take(&mut self.fresh) {
            if let Some(pages) = self.pages.get_mut(&address) {
                pages.retain(|other| *other != page);
            }
            self.space.release(page);
        }
        self.pages.retain(|_, pages| !pages.is_empty());
    }
}

impl<D: Nand> Store<D> for Groups<D> {
    fn create(mut device: D, setup: &Setup) -> Result<Self, OpenError> {
        let limit = device.geometry().block_count;
        let options = SpaceOptions {
            parts: setup.options.parts as u8,
            log_pages: LOG_PAGES,
            grows: device.present_blocks() < limit,
            ..SpaceOptions::default()
        };
        if options.grows {
            let (geometry, capabilities) = (device.geometry(), device.capabilities());
            let needed = blocks_needed(geometry, capabilities, &options, PAGES_MIN);
            let needed = needed.map_err(SpaceError::Options)?.unwrap_or(limit);
            device.extend(needed).map_err(SpaceError::from)?;
        }
        let mut space = Space::format(device, &options)?;
        plant(&mut space, setup);
        Ok(Self::around(space))
    }

    fn open(device: D, setup: &Setup) -> Result<(Self, Contents), OpenError> {
        let (space, report) = mount(device, setup)?;
        if report.lost_pages > 0 {
            return Err(DAMAGED.into());
        }
        let mut store = Self::around(space);
        store.sequence = sequence_of(&report.user);
        store.recover()?;
        let contents = store.load()?;
        Ok((store, contents))
    }

    fn commit(
        &mut self,
        change: &Change,
        _: &Contents,
        durability: Durability,
    ) -> Result<(), EngineError> {
        if self.undecided.len() == GROUPS_MAX {
            self.decide()?;
        }
        let written = self.write(change);
        if written.is_err() {
            self.forget_fresh();
        }
        self.fresh.clear();
        written?;
        if durability != Durability::Deferred {
            self.decide()?;
        }
        Ok(())
    }

    fn checkpoint(&mut self, _: &Contents) -> Result<(), EngineError> {
        self.decide()?;
        Ok(self.pass_log()?)
    }

    fn checkpoint_begin(&mut self) -> Result<(), EngineError> {
        Ok(self.pass_log()?)
    }

    fn work(&mut self) -> Result<(), EngineError> {
        Ok(self.space.background(&mut NoOwner).map(drop)?)
    }

    fn collect(&mut self) -> Result<(), EngineError> {
        let room = self.space.room() + 8;
        match self.space.ensure_room(room, &mut NoOwner) {
            Ok(()) | Err(SpaceError::Full) => {}
            Err(error) => return Err(error.into()),
        }
        while self.space.background(&mut NoOwner)? {}
        Ok(())
    }

    fn contents(&mut self, _: &Contents) -> Result<Contents, EngineError> {
        self.decide()?;
        self.load()
    }

    fn check(&mut self) -> Result<Vec<String>, EngineError> {
        let faults = self.space.verify()?;
        Ok(faults.iter().map(|fault| format!("{fault:?}")).collect())
    }
}
