//! A store of pages that several running transactions share, with a redo log beside them: the
//! extended protocols of flag commit (On et al., "Flag Commit", TKDE 24(9), 2012, section 4).
//!
//! Owns a whole device: versions of logical pages, the flags of the transactions on them, the pages
//! of the log, garbage collection and restart. Never looks into a page's content, and never locks:
//! the engine decides which records of a version belong to which transaction.
//!
//! ```text
//! unit   = one version of a logical page │ header: back, LSN, members <xid, order, link> │ content
//! member = a transaction with pending records in the unit; its flag stands in the spare bytes of
//!          the unit's first page, one slot a member, as many as the page takes programs beside the
//!          first one (NOP 4 carries three)
//! back   = the version before it, where the value stands that a pending record replaces
//! ```
//!
//! | a transaction is | iff |
//! | --- | --- |
//! | committed | the log has its commit record, or its members' flags prove it ([`Flags`]) |
//! | decided by a restart | it is of an earlier epoch: committed unless the log's verdict names it |
//!
//! - **R1** A version is needed while it is the newest of its page, while it has a running member,
//!   or while it is the `back` of a needed version with an uncommitted member.
//! - **R2** A version with members is programmed once the version that it leads back to is complete;
//!   AFC's members after the first once the first is (rule H2 of the page-level store).
//! - **R3** A transaction commits when its members are complete. By its record: when that is durable;
//!   its flags follow, and the record stays until they are set (rule D4). Else by its flags.
//! - **R4** Numbers, of transactions, versions and log pages alike, are `epoch << 26 | counter`. A
//!   restart takes an epoch that nothing on the device has, and says so in the log before it writes
//!   anything else (rule D3).
//! - **R5** The decisions of a restart become true with one record of the log, its verdict: which
//!   transactions did not commit, and which blocks without a summary count. Until then a restart
//!   erases no evidence, and its own writes count for nothing (versions of an epoch without a
//!   verdict).
//! - **R6** A flag that cannot be set, to commit or to hand on, is replaced by a line in the verdict.
//! - **R7** A block is erased when everything programmed before is complete, flags handed on
//!   (rules E1 to E6), its needed versions elsewhere.

mod bugs;
mod collect;
mod commit;
mod flash;
mod log;
mod note;
mod place;
mod restart;
mod stats;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use flagstone_nand::{BlockIndex, Nand, NandError};

use super::blocks::{Blocks, State};
use super::flash::Work;
use super::note::NOWHERE;
use super::options::{Lack, ShadowError, ShadowProtocol};
use super::{RESERVE, WorkTally};
use crate::evidence::{Flag, Flags, Shadow};
#[doc(hidden)]
pub use bugs::RecordBug;
use flagstone_space::{Check, GroupId, LogicalPage, Lsn, Version};
use flash::{Flash, Sizes};
pub use log::Batch;
use log::Log;
use note::{Body, Header, Member, NO_VERSION, SLOT_STRIDE};
pub use stats::RecordStats;
pub use table::Standing;
use table::{Entry, Table};

/// Options a store is made with; a mount must name the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    /// Protocol of the flags.
    pub flags: Flags,
    /// Physical pages of a logical page: 1 to 8.
    pub unit_pages: u32,
    /// Blocks not offered, in percent.
    pub reserve_percent: u32,
    /// Free blocks below which blocks are collected, in percent.
    pub collect_below_percent: u32,
    /// Pages that a restart may have to write: frames of the pool above.
    pub restart_pages: u32,
}

impl RecordOptions {
    /// The setting of the paper.
    #[must_use]
    pub const fn new(flags: Flags) -> Self {
        Self {
            flags,
            unit_pages: 4,
            reserve_percent: 10,
            collect_below_percent: 5,
            restart_pages: 512,
        }
    }

    const fn protocol(&self) -> ShadowProtocol {
        match self.flags {
            Flags::Cfc => ShadowProtocol::Cfc,
            Flags::Afc => ShadowProtocol::Afc,
        }
    }
}

/// Pages for which it is noted when their newest version is complete, at least.
const ENDS_MIN: usize = 64;

/// Bits of a number that count within an epoch (R4).
const EPOCH_SHIFT: u32 = 26;

const fn epoch_of(number: u64) -> u64 {
    number >> EPOCH_SHIFT
}

/// A version that may have to be looked at again.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unit {
    page: LogicalPage,
    version: Version,
    back: u64,
    members: Vec<GroupId>,
}

/// A version as the engine reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The version before it.
    pub back: Option<Version>,
    /// Its content is complete up to this LSN.
    pub lsn: Lsn,
    /// Transactions with pending records in it, in the order in which they were given.
    pub members: Vec<GroupId>,
    /// Content.
    pub image: Vec<u8>,
}

/// Events that the tallies of operations do not tell.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    host_writes: u64,
    host_reads: u64,
    flags_commit: u64,
    flags_collection: u64,
    relocations: u64,
    collections: u64,
    shared_max: u64,
    chain_max: u64,
    testified: u64,
}

/// A store of pages that transactions share.
#[derive(Clone, Debug)]
pub struct RecordStore<D> {
    flash: Flash<D>,
    options: RecordOptions,
    page_count: u32,
    blocks: Blocks,
    /// Newest version of each logical page: where it stands, and its number.
    map: Vec<u32>,
    versions: Vec<u64>,
    /// Versions with members, and older ones that are needed.
    units: BTreeMap<u32, Unit>,
    /// Older versions that are needed (R1).
    olds: BTreeMap<LogicalPage, Vec<u32>>,
    /// When the newest version of a page is complete, where that may lie ahead.
    ends: BTreeMap<LogicalPage, u64>,
    /// Entries of `ends` at which the past ones are dropped.
    ends_limit: usize,
    table: Table,
    log: Log,
    hosts: place::Stream,
    moved: place::Stream,
    /// Blocks in which a program failed: emptied, then marked bad.
    failing: Vec<BlockIndex>,
    /// Blocks without a summary whose first units count (R5).
    adopted: BTreeMap<BlockIndex, u16>,
    epoch: u64,
    version: u64,
    /// Standings of this epoch's transactions that no flag could record (R6).
    testified: BTreeMap<GroupId, Standing>,
    /// A restart that has not given its verdict yet.
    restart: Option<restart::Pending>,
    poisoned: bool,
    counts: Counts,
    report: super::RestartReport,
}

impl<D: Nand> RecordStore<D> {
    /// Makes an empty store on a device; its former contents are lost.
    ///
    /// # Errors
    ///
    /// [`ShadowError::Lacks`] names the device's shortcoming.
    pub fn format(device: D, options: RecordOptions) -> Result<Self, ShadowError> {
        let mut store = Self::empty(device, options)?;
        for block in store.flash.sizes.geometry.blocks() {
            store.format_block(block)?;
        }
        let page_count = store.offered();
        if page_count == 0 {
            return Err(ShadowError::Lacks { protocol: options.protocol(), lack: Lack::Room });
        }
        store.set_page_count(page_count);
        store.begin_epoch(1);
        store.give_verdict()?;
        Ok(store)
    }

    fn empty(device: D, options: RecordOptions) -> Result<Self, ShadowError> {
        let (geometry, capabilities) = (device.geometry(), device.capabilities());
        if !(1..=8).contains(&options.unit_pages) {
            return Err(ShadowError::Option("unit_pages"));
        }
        let sizes = Sizes::new(geometry, capabilities, &options)
            .map_err(|lack| ShadowError::Lacks { protocol: options.protocol(), lack })?;
        Ok(Self {
            flash: Flash::new(device, sizes),
            options,
            page_count: 0,
            blocks: Blocks::new(&geometry, sizes.units_per_block),
            map: Vec::new(),
            versions: Vec::new(),
            units: BTreeMap::new(),
            olds: BTreeMap::new(),
            ends: BTreeMap::new(),
            ends_limit: ENDS_MIN,
            table: Table::default(),
            log: Log::default(),
            hosts: place::Stream::new(geometry.die_count),
            moved: place::Stream::new(geometry.die_count),
            failing: Vec::new(),
            adopted: BTreeMap::new(),
            testified: BTreeMap::new(),
            epoch: 0,
            version: 0,
            restart: None,
            poisoned: false,
            counts: Counts::default(),
            report: super::RestartReport::default(),
        })
    }

    /// Erases a block that is not blank where a mount would look.
    fn format_block(&mut self, block: BlockIndex) -> Result<(), ShadowError> {
        if self.flash.device.is_bad(block)? {
            return Ok(());
        }
        self.blocks.erased(block, self.flash.device.erase_count(block));
        self.blocks.set_state(block, State::Free { clean: false });
        let places = [self.flash.sizes.first_of(block), self.flash.sizes.last_of(block)];
        let mut is_blank = true;
        for place in places {
            is_blank &= self.flash.peek(place)?.0 == note::RawNote::Erased;
        }
        if !is_blank {
            self.erase(block)?;
        }
        Ok(())
    }

    fn set_page_count(&mut self, page_count: u32) {
        self.page_count = page_count;
        self.map = vec![NOWHERE; page_count as usize];
        self.versions = vec![0; page_count as usize];
    }

    /// Numbers begin anew (R4).
    fn begin_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.version = epoch << EPOCH_SHIFT;
        self.log.begin_epoch(epoch);
    }

    /// Logical pages offered.
    #[must_use]
    pub const fn page_count(&self) -> u32 {
        self.page_count
    }

    /// Bytes of a version's content.
    #[must_use]
    pub const fn image_size(&self) -> usize {
        self.flash.sizes.image_size()
    }

    /// Transactions that a version carries at most.
    #[must_use]
    pub const fn members_max(&self) -> usize {
        self.flash.sizes.slots
    }

    /// The device.
    pub const fn device(&self) -> &D {
        &self.flash.device
    }

    /// The device, to set its time or its faults.
    pub const fn device_mut(&mut self) -> &mut D {
        &mut self.flash.device
    }

    /// Gives the device back; nothing is written.
    pub fn into_device(self) -> D {
        self.flash.device
    }

    /// The epoch's first number for transactions, and upper half of the order of log records: no
    /// earlier epoch had it (R4). The engine counts on from it.
    #[must_use]
    pub const fn first_xid(&self) -> GroupId {
        GroupId((self.epoch << EPOCH_SHIFT) + 1)
    }

    /// Number of this mount among all mounts of the store.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A transaction that runs will have pending records in a version.
    pub fn admit(&mut self, xid: GroupId) {
        if self.table.get(xid).is_none() {
            self.table.insert(xid, Entry::new(Standing::Running));
        }
    }

    /// The known standing of a transaction.
    #[must_use]
    pub fn standing(&self, xid: GroupId) -> Standing {
        self.table.standing(xid)
    }

    /// The newest version of a page; none when the page has no version.
    ///
    /// # Errors
    ///
    /// `Corrupt` when its bytes are damaged.
    pub fn read(&mut self, page: LogicalPage) -> Result<Option<Read>, ShadowError> {
        self.check_page(page)?;
        match self.map[page.0 as usize] {
            NOWHERE => Ok(None),
            at => self.read_at(at, page).map(Some),
        }
    }

    /// An older version of a page, which a newer one leads back to.
    ///
    /// # Errors
    ///
    /// `Corrupt` when its bytes are damaged; `Option` when it is not needed, and so may be gone.
    pub fn read_back(&mut self, page: LogicalPage, version: Version) -> Result<Read, ShadowError> {
        self.check_page(page)?;
        let at = self.old_at(page, version).ok_or(ShadowError::Option("version"))?;
        self.read_at(at, page)
    }

    fn old_at(&self, page: LogicalPage, version: Version) -> Option<u32> {
        let olds = self.olds.get(&page)?;
        let is_it = |at: &&u32| self.units.get(at).is_some_and(|unit| unit.version == version);
        olds.iter().find(is_it).copied()
    }

    fn read_at(&mut self, at: u32, page: LogicalPage) -> Result<Read, ShadowError> {
        self.counts.host_reads += 1;
        let mut bytes = vec![0; self.flash.sizes.unit_size];
        let header = match self.restart.as_ref().and_then(|pending| pending.held(at)) {
            Some(held) => {
                bytes.copy_from_slice(held);
                Header::decode(&bytes)
            }
            None => {
                let (note, header) = self.flash.read_unit(at, &mut bytes)?;
                (note.page == page).then_some(header)
            }
        };
        let header = header.ok_or_else(|| self.corrupt(at, Check::Identity))?;
        let skipped = self.flash.sizes.unit_size - self.image_size();
        let image = bytes.split_off(skipped);
        let back = (header.back != NO_VERSION).then_some(Version(header.back));
        let members = header.members.iter().map(|member| member.xid).collect();
        Ok(Read { back, lsn: header.lsn, members, image })
    }

    /// Writes the next version of a page, complete up to `lsn`, with pending records of `members`.
    ///
    /// # Errors
    ///
    /// `Full` when no room can be made; `Option` for members that a version cannot carry.
    pub fn write(
        &mut self,
        page: LogicalPage,
        image: &[u8],
        lsn: Lsn,
        members: &[GroupId],
    ) -> Result<(), ShadowError> {
        self.check_write(page, image, members)?;
        let places: Vec<Member> = members.iter().map(|xid| self.next_member(*xid)).collect();
        let flags: Vec<Flag> =
            places.iter().map(|member| self.options.flags.initial(member.order.into())).collect();
        self.await_before(page, &places);
        let back = if members.is_empty() { NO_VERSION } else { self.versions[page.0 as usize] };
        let version = self.next_version();
        let body =
            Body { page, version, header: Header { back, stamp: version.0, lsn, members: places } };
        let (at, end_ns) = self.put(place::Line::Hosts, &body, &flags, image)?;
        self.counts.host_writes += 1;
        self.counts.shared_max = self.counts.shared_max.max(members.len() as u64);
        self.table.wrote(at, &body, &flags, end_ns);
        self.supersede(at, body, end_ns);
        Ok(())
    }

    fn next_member(&self, xid: GroupId) -> Member {
        let entry = self.table.get(xid);
        let order = entry.map_or(0, |entry| entry.next_order);
        let link = entry.and_then(|entry| entry.members.last()).map(|member| member.at);
        Member { xid, order: u16::try_from(order).unwrap_or(u16::MAX), link }
    }

    /// Waits for the versions that a version relies on (R2).
    fn await_before(&mut self, page: LogicalPage, members: &[Member]) {
        if members.is_empty() || self.flash.bugs.has(RecordBug::BackNotAwaited) {
            return;
        }
        let back_ns = self.ends.get(&page).copied().unwrap_or(0);
        let follows =
            |member: &&Member| self.options.flags.initial(member.order.into()) == Flag::True;
        let firsts = members.iter().filter(follows).filter_map(|m| self.table.get(m.xid));
        let end_ns = firsts.map(|entry| entry.first_ns).max().unwrap_or(0).max(back_ns);
        self.flash.wait(end_ns);
    }

    /// The newest version of a page is complete at `end_ns`.
    fn ends_at(&mut self, page: LogicalPage, end_ns: u64) {
        self.ends.insert(page, end_ns);
        if self.ends.len() >= self.ends_limit {
            let now_ns = self.flash.now();
            self.ends.retain(|_, end_ns| *end_ns > now_ns);
            self.ends_limit = (2 * self.ends.len()).max(ENDS_MIN);
        }
    }

    /// A page has a newer version.
    fn supersede(&mut self, at: u32, body: Body, end_ns: u64) {
        let Body { page, version, header } = body;
        let index = page.0 as usize;
        let before = std::mem::replace(&mut self.map[index], at);
        let version_before = std::mem::replace(&mut self.versions[index], version.0);
        self.add_live(at);
        self.ends_at(page, end_ns);
        if !header.members.is_empty() {
            let members = header.members.iter().map(|member| member.xid).collect();
            self.units.insert(at, Unit { page, version, back: header.back, members });
        }
        if before != NOWHERE {
            self.units.entry(before).or_insert_with(|| Unit {
                page,
                version: Version(version_before),
                back: NO_VERSION,
                members: Vec::new(),
            });
            self.olds.entry(page).or_default().push(before);
        }
        self.settle(page);
    }

    /// Older versions that the newest one of a page leads back to (R1).
    fn chain(&self, page: LogicalPage) -> Vec<u32> {
        let mut chain = Vec::new();
        let mut at = self.map[page.0 as usize];
        while let Some(unit) = self.units.get(&at) {
            let drops = self.flash.bugs.has(RecordBug::ValueBeforeDropped);
            let is_open = unit.members.iter().any(|xid| match self.standing(*xid) {
                Standing::Running => true,
                Standing::Aborted => !drops,
                Standing::Committed => false,
            });
            let back = self.old_at(page, Version(unit.back));
            let Some(back) = back.filter(|_| is_open) else { break };
            chain.push(back);
            at = back;
        }
        chain
    }

    /// Gives up the older versions of a page that are not needed (R1).
    fn settle(&mut self, page: LogicalPage) {
        let Some(olds) = self.olds.remove(&page) else { return };
        self.olds.insert(page, olds.clone());
        let chain = self.chain(page);
        self.counts.chain_max = self.counts.chain_max.max(chain.len() as u64 + 1);
        let is_needed = |at: &u32| {
            let unit = self.units.get(at);
            let runs = |xid: &GroupId| self.standing(*xid) == Standing::Running;
            chain.contains(at) || unit.is_some_and(|unit| unit.members.iter().any(runs))
        };
        let (needed, gone): (Vec<u32>, Vec<u32>) = olds.into_iter().partition(is_needed);
        for at in gone {
            self.drop_live(at);
            if self.units.get(&at).is_some_and(|unit| unit.members.is_empty()) {
                self.units.remove(&at);
            }
        }
        match needed.is_empty() {
            true => self.olds.remove(&page),
            false => self.olds.insert(page, needed),
        };
    }

    /// Fills pages that have no version with one repeated 8-byte word each.
    ///
    /// # Errors
    ///
    /// As [`RecordStore::write`].
    pub fn prefill(&mut self, pages: Range<u32>, tag: u64) -> Result<(), ShadowError> {
        let mut image = vec![0; self.image_size()];
        for page in pages.map(LogicalPage) {
            let word = super::ShadowStore::<D>::prefilled_word(page, tag).to_le_bytes();
            image.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&word[..chunk.len()]));
            self.write(page, &image, Lsn::ZERO, &[])?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ShadowError> {
        if self.poisoned { Err(ShadowError::Poisoned) } else { Ok(()) }
    }

    fn check_page(&self, page: LogicalPage) -> Result<(), ShadowError> {
        self.check()?;
        let is_inside = page.0 < self.page_count;
        if is_inside { Ok(()) } else { Err(ShadowError::OutOfRange(page)) }
    }

    fn check_write(
        &self,
        page: LogicalPage,
        image: &[u8],
        members: &[GroupId],
    ) -> Result<(), ShadowError> {
        self.check_page(page)?;
        let (size, page_size) = (image.len(), self.image_size());
        if size != page_size {
            return Err(ShadowError::Size { size, page_size });
        }
        let has_back = members.is_empty() || self.map[page.0 as usize] != NOWHERE;
        if members.len() > self.flash.sizes.slots || !has_back {
            return Err(ShadowError::Option("members"));
        }
        let stopped = members.iter().find(|xid| self.standing(**xid) != Standing::Running);
        stopped.map_or(Ok(()), |xid| Err(ShadowError::NotRunning(*xid)))
    }

    fn next_version(&mut self) -> Version {
        self.version += 1;
        debug_assert_eq!(epoch_of(self.version), self.epoch, "an epoch has room for 64M programs");
        Version(self.version)
    }

    fn add_live(&mut self, at: u32) {
        self.blocks.add_live(self.flash.sizes.block_of(at));
    }

    fn drop_live(&mut self, at: u32) {
        self.blocks.drop_live(self.flash.sizes.block_of(at));
    }

    fn corrupt(&self, at: u32, check: Check) -> ShadowError {
        match self.flash.page(at) {
            Ok(page) => ShadowError::Corrupt { page, check },
            Err(error) => ShadowError::Device(error),
        }
    }

    /// An error of the device after which nothing is known for certain.
    fn fail(&mut self, error: NandError) -> ShadowError {
        debug_assert!(
            !matches!(error, NandError::Rule { .. }),
            "this store breaks no rule: {error}"
        );
        self.poisoned = true;
        ShadowError::Device(error)
    }
}
