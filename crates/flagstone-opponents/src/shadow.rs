//! Shadow pages whose commit stands in the pages themselves: the basic protocols of flag commit,
//! and the cyclic ones that it is compared with.
//!
//! Owns a whole device: logical pages of several physical ones, their mapping in memory, the
//! transaction table, garbage collection, and restart from spare areas or block summaries. Never
//! locks: two running transactions must not write one page. [`crate::evidence`] alone decides which
//! pages prove a commit and which flags are due before a page goes (rules E1 to E5).
//!
//! - **H1** A unit counts only when all its parts are there.
//! - **H2** A flag, the page that carries one from memory, and AFC's pages after the first are
//!   programmed only once the pages they vouch for are complete on their dies. A cycle needs such
//!   an order only if one of its records was written twice.
//! - **H3** An erase is issued only after the flags it asks for are verified and the copies of the
//!   units that stay are complete.
//! - **H4** A stale copy of a running transaction's page is erased before that transaction commits
//!   (rule E4): a collection ends with the erase.
//! - **H5** Programs that may have been in flight at a cut are not relied on: restart programs such
//!   flags again, and empties every block that was open.
//! - **H6** Hosts leave blocks to collection and to restarts, which therefore always finish.
//!
//! ```text
//!  begin ─▶ running ── write: shadow pages go out as they come (steal)
//!             │  └─ collection moves them, each sub-chain keeps its head
//!             ├─ commit: the rest goes out (force) ─▶ complete ─▶ flags ─▶ mapping moves
//!             └─ abort: nothing is written; the pages are garbage, and known as such
//! ```

mod blocks;
mod bugs;
mod collect;
mod commit;
mod cycles;
mod flash;
mod judge;
mod note;
mod options;
mod place;
pub mod records;
mod restart;
mod stats;
mod summary;
mod table;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Range;

use flagstone_nand::{BlockIndex, Nand, NandError};

use crate::evidence::Flag;
use blocks::{Blocks, State};
use cycles::CycleState;
use flagstone_space::{GroupId, LogicalPage, Version};
use flash::{Fault, Flash, Sizes};
use note::{Kind, NOWHERE, NUMBER_MAX, Note};
use options::Evidence;
use place::{Hidden, Stream};
use stats::Counts;
use table::{Grain, Table, Written};

#[doc(hidden)]
pub use bugs::ShadowBug;
pub use flash::WorkTally;
pub use options::{Lack, ShadowError, ShadowOptions, ShadowProtocol, UnknownProtocol};
pub use restart::{Restart, RestartReport};
pub use stats::ShadowStats;

/// Free blocks that hosts leave to collection, where blocks are not tiny.
const RESERVE: u32 = 3;

/// Transaction numbers that one mark reserves (rule D3).
const XID_STEP: u64 = 1 << 16;

/// A store of shadow pages.
#[derive(Clone, Debug)]
pub struct ShadowStore<D> {
    flash: Flash<D>,
    options: ShadowOptions,
    evidence: Evidence,
    grain: Grain,
    page_count: u32,
    blocks: Blocks,
    /// Committed unit of each logical page.
    map: Vec<u32>,
    table: Table,
    cycles: CycleState,
    hosts: Stream,
    moved: Stream,
    /// Blocks in which a program failed: emptied, then marked bad.
    failing: Vec<BlockIndex>,
    /// Unit that holds the reserved numbers.
    mark_at: Option<u32>,
    next_xid: u64,
    xid_bound: u64,
    /// Version given last.
    version: u64,
    /// Floor that notes carry while a restart is not finished.
    restart_floor: Option<u64>,
    /// Blocks that a restart empties: their units are no evidence.
    doomed: BTreeSet<BlockIndex>,
    /// A restart is emptying them, and has left their evidence elsewhere.
    is_emptying: bool,
    /// The restart before was cut while it emptied them.
    was_emptying: bool,
    /// Places in which a unit may appear that must stay unseen.
    hidden: Vec<Hidden>,
    /// No mark names all `hidden` places yet: none may be erased before one does.
    is_mark_due: bool,
    end_ns: u64,
    poisoned: bool,
    /// Collections within collections.
    nested: u32,
    counts: Counts,
    report: RestartReport,
    buffer: Vec<u8>,
}

impl<D: Nand> ShadowStore<D> {
    /// Makes an empty store on a device; its former contents are lost.
    ///
    /// # Errors
    ///
    /// [`ShadowError::Lacks`] names the device's shortcoming and a protocol that fits.
    pub fn format(device: D, options: ShadowOptions) -> Result<Self, ShadowError> {
        let mut store = Self::empty(device, options)?;
        for block in store.flash.sizes.geometry.blocks() {
            store.format_block(block)?;
        }
        let page_count = store.offered();
        if page_count == 0 {
            return Err(ShadowError::Lacks { protocol: options.protocol, lack: Lack::Room });
        }
        store.set_page_count(page_count);
        store.write_mark()?;
        store.flash.wait(store.end_ns);
        Ok(store)
    }

    /// A store that knows of no block yet.
    fn empty(device: D, options: ShadowOptions) -> Result<Self, ShadowError> {
        let (geometry, capabilities) = (device.geometry(), device.capabilities());
        check(&options)?;
        let protocol = options.protocol;
        let sizes = Sizes::new(geometry, capabilities, &options)
            .map_err(|lack| ShadowError::Lacks { protocol, lack })?;
        let grain = match options.block_flags {
            true => Grain::Block(geometry.pages_per_block),
            false => Grain::Page,
        };
        Ok(Self {
            flash: Flash::new(device, sizes),
            options,
            evidence: protocol.evidence(),
            grain,
            page_count: 0,
            blocks: Blocks::new(&geometry, sizes.units_per_block),
            map: Vec::new(),
            table: Table::default(),
            cycles: CycleState::default(),
            hosts: Stream::new(geometry.die_count),
            moved: Stream::new(geometry.die_count),
            failing: Vec::new(),
            mark_at: None,
            next_xid: 1,
            xid_bound: 1,
            version: 0,
            restart_floor: None,
            doomed: BTreeSet::new(),
            is_emptying: false,
            was_emptying: false,
            hidden: Vec::new(),
            is_mark_due: false,
            end_ns: 0,
            poisoned: false,
            nested: 0,
            counts: Counts::default(),
            report: RestartReport::default(),
            buffer: vec![0; sizes.image_size],
        })
    }

    /// Erases a block that is not blank where a mount would look.
    fn format_block(&mut self, block: BlockIndex) -> Result<(), ShadowError> {
        if self.flash.device.is_bad(block)? {
            return Ok(());
        }
        let sizes = self.flash.sizes;
        let erases = self.flash.device.erase_count(block);
        self.blocks.erased(block, erases);
        let places = [sizes.first_of(block), sizes.summary_of(block)];
        let mut is_blank = true;
        for place in places {
            is_blank &= self.flash.peek(place)? == note::RawNote::Erased;
        }
        self.blocks.set_state(block, State::Free { clean: false });
        if !is_blank {
            self.erase(block)?;
        }
        Ok(())
    }

    /// Logical pages: the number that options offer, less the room of open blocks and collection
    /// (H6).
    fn offered(&self) -> u32 {
        let good = self.blocks.good_count();
        let dies = self.flash.sizes.geometry.die_count;
        let kept = (u64::from(good) * u64::from(self.options.reserve_percent)).div_ceil(100);
        let kept = u32::try_from(kept).unwrap_or(good).max(2 * dies + self.reserve() + 1);
        good.saturating_sub(kept) * self.flash.sizes.units_per_block
    }

    /// Blocks that hosts leave to collection and to a restart, which copies the last unit of each
    /// open block and writes a mark before it erases anything.
    fn reserve(&self) -> u32 {
        let sizes = &self.flash.sizes;
        let copies = 2 * sizes.geometry.die_count + 2;
        RESERVE - 1 + copies.div_ceil(sizes.units_per_block)
    }

    fn set_page_count(&mut self, page_count: u32) {
        self.page_count = page_count;
        self.map = vec![NOWHERE; page_count as usize];
        self.cycles.set_page_count(self.options.protocol, page_count);
    }

    /// Logical pages offered.
    #[must_use]
    pub const fn page_count(&self) -> u32 {
        self.page_count
    }

    /// Bytes of a logical page.
    #[must_use]
    pub const fn page_size(&self) -> usize {
        self.flash.sizes.image_size
    }

    /// Options the store was made with.
    #[must_use]
    pub const fn options(&self) -> &ShadowOptions {
        &self.options
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

    /// Device time at which the programs of the latest write or commit are complete.
    #[must_use]
    pub const fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// Starts a transaction. Its number was never used before, across restarts too.
    pub fn begin(&mut self) -> GroupId {
        let xid = GroupId(self.next_xid);
        self.next_xid += 1;
        self.table.begin(xid);
        xid
    }

    /// Reads a page as `xid` sees it, or as it was committed last; tells whether the page exists.
    ///
    /// # Errors
    ///
    /// `Corrupt` when the page's bytes are damaged.
    pub fn read(
        &mut self,
        xid: Option<GroupId>,
        page: LogicalPage,
        target: &mut [u8],
    ) -> Result<bool, ShadowError> {
        self.check_page(page, target.len())?;
        let own = xid.filter(|xid| self.table.writer(page) == Some(*xid));
        let own = own.and_then(|xid| self.table.running(xid));
        if let Some(held_back) = own.and_then(|own| own.held_back.as_ref())
            && held_back.page == page
        {
            target.copy_from_slice(&held_back.image);
            return Ok(true);
        }
        let committed = self.map[page.0 as usize];
        let at = own.and_then(|own| own.newest(page)).map_or(committed, |written| written.at);
        if at == NOWHERE {
            return Ok(false);
        }
        self.counts.host_reads += 1;
        let (note, _) = self.flash.read_unit(at, target).map_err(ShadowError::from)?;
        if note.page != page {
            return Err(self.corrupt(at, flagstone_space::Check::Identity));
        }
        Ok(true)
    }

    /// Writes a shadow page of a running transaction (steal). Cyclic protocols hold the last one
    /// back, because a record names the one after it.
    ///
    /// # Errors
    ///
    /// `Full` when no room can be made: the transaction still runs, and may be aborted.
    pub fn write(
        &mut self,
        xid: GroupId,
        page: LogicalPage,
        image: &[u8],
    ) -> Result<(), ShadowError> {
        self.check_write(xid, page, image)?;
        match self.evidence {
            Evidence::Chain(flags) => self.put_chain(flags, xid, page, image, Flag::First),
            Evidence::Cycle(cycles) => self.put_cycle(cycles, xid, page, image),
        }
    }

    /// Writes the remaining pages of a transaction and commits it (force). When this returns, the
    /// commit is complete at [`ShadowStore::end_ns`].
    ///
    /// # Errors
    ///
    /// `Full`, before anything is committed: the transaction still runs.
    pub fn commit(
        &mut self,
        xid: GroupId,
        rest: &[(LogicalPage, &[u8])],
    ) -> Result<(), ShadowError> {
        for (page, image) in rest {
            self.check_write(xid, *page, image)?;
        }
        self.check_running(xid)?;
        match self.evidence {
            Evidence::Chain(flags) => self.commit_chain(flags, xid, rest)?,
            Evidence::Cycle(cycles) => self.commit_cycle(cycles, xid, rest)?,
        }
        self.counts.commits += 1;
        Ok(())
    }

    /// Ends a transaction without a trace: nothing is written.
    pub fn abort(&mut self, xid: GroupId) {
        let Some(transaction) = self.table.running(xid) else { return };
        for written in transaction.written.clone() {
            self.drop_live(written.at);
            if matches!(self.evidence, Evidence::Cycle(_)) {
                self.cycles.died(xid, &written);
            }
        }
        self.table.abort(xid);
        self.counts.aborts += 1;
    }

    /// Fills pages that have no version with one repeated 8-byte word each, drawn from the page's
    /// number and `tag`. Each is a committed transaction of its own.
    ///
    /// # Errors
    ///
    /// As [`ShadowStore::write`].
    pub fn prefill(&mut self, pages: Range<u32>, tag: u64) -> Result<(), ShadowError> {
        let mut image = vec![0; self.page_size()];
        for page in pages.map(LogicalPage) {
            self.check_page(page, image.len())?;
            let word = Self::prefilled_word(page, tag).to_le_bytes();
            image.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word));
            let xid = GroupId(self.next_xid);
            self.next_xid += 1;
            self.put_alone(xid, page, &image)?;
        }
        Ok(())
    }

    /// The word that [`ShadowStore::prefill`] repeats over a page.
    #[must_use]
    pub const fn prefilled_word(page: LogicalPage, tag: u64) -> u64 {
        // SplitMix64's multiplier: neighbours look unlike each other.
        (page.0 as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ tag
    }

    fn check_page(&self, page: LogicalPage, size: usize) -> Result<(), ShadowError> {
        let page_size = self.page_size();
        match () {
            () if self.poisoned => Err(ShadowError::Poisoned),
            () if page.0 >= self.page_count => Err(ShadowError::OutOfRange(page)),
            () if size != page_size => Err(ShadowError::Size { size, page_size }),
            () => Ok(()),
        }
    }

    fn check_write(
        &self,
        xid: GroupId,
        page: LogicalPage,
        image: &[u8],
    ) -> Result<(), ShadowError> {
        self.check_page(page, image.len())?;
        self.check_running(xid)?;
        match self.table.writer(page) {
            Some(by) if by != xid => Err(ShadowError::Busy { page, by }),
            _ => Ok(()),
        }
    }

    fn check_running(&self, xid: GroupId) -> Result<(), ShadowError> {
        if self.poisoned {
            return Err(ShadowError::Poisoned);
        }
        self.table.running(xid).map(|_| ()).ok_or(ShadowError::NotRunning(xid))
    }

    /// Every transaction below has ended, its flags included.
    fn floor(&self) -> u64 {
        let oldest = self.table.oldest_running().map_or(self.next_xid, |xid| xid.0);
        self.restart_floor.unwrap_or(oldest)
    }

    fn next_version(&mut self) -> Version {
        self.version += 1;
        debug_assert!(self.version < NUMBER_MAX, "five bytes last for a million years of writes");
        Version(self.version)
    }

    /// Parts of a unit's note that do not depend on the protocol.
    fn note(&mut self, page: LogicalPage) -> Note {
        let version = self.next_version();
        let parts = self.flash.sizes.parts as u8;
        Note { page, parts, ..Note::own(Kind::Data, version) }
    }

    fn add_live(&mut self, at: u32) {
        self.blocks.add_live(self.flash.sizes.block_of(at));
    }

    fn drop_live(&mut self, at: u32) {
        self.blocks.drop_live(self.flash.sizes.block_of(at));
    }

    /// Makes a unit the newest committed one of its page.
    fn remap(&mut self, written: &Written) {
        let page = written.note.page;
        let old = std::mem::replace(&mut self.map[page.0 as usize], written.at);
        if old != NOWHERE && !self.hold_superseded(page, old) {
            self.drop_live(old);
        }
        self.cycles.set_back(page, written.note.version);
    }

    fn corrupt(&self, at: u32, check: flagstone_space::Check) -> ShadowError {
        match self.flash.sizes.geometry.page_from_number(at) {
            Some(page) => ShadowError::Corrupt { page, check },
            None => ShadowError::Device(NandError::Host { errno: 22 }),
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

impl From<Fault> for ShadowError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Bad(page, check) => Self::Corrupt { page, check },
            Fault::Device(error) => Self::Device(error),
        }
    }
}

fn check(options: &ShadowOptions) -> Result<(), ShadowError> {
    let has_flags = matches!(options.protocol.evidence(), Evidence::Chain(_));
    match options {
        ShadowOptions { unit_pages: 0 | 9.., .. } => Err(ShadowError::Option("unit_pages")),
        ShadowOptions { reserve_percent: 100.., .. } => Err(ShadowError::Option("reserve_percent")),
        ShadowOptions { collect_below_percent: 100.., .. } => {
            Err(ShadowError::Option("collect_below_percent"))
        }
        ShadowOptions { block_flags: true, .. } if !has_flags => {
            Err(ShadowError::Option("block_flags"))
        }
        _ => Ok(()),
    }
}
