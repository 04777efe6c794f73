//! A simulated SSD: chips behind a page-mapping translation layer, seen through a block interface.
//!
//! Owns the commands of the host, device time and the fate of commands in a power cut; the mapping
//! and the collection are [`ftl`]'s, cells and wear are the chips'. Never lets the host see a chip.
//!
//! - **H1** A page may be written again at any time; a write is all there or not at all, and there
//!   once it is acknowledged: no volatile cache holds it.
//! - **H2** The host's addresses are [`THIN_FACTOR`] times the pages that can be live. A page that is trimmed
//!   takes no room, so a host that writes each new version of a page to a fresh address and trims the old one
//!   costs the translation layer exactly what a host that writes in place does: one page programmed, one page
//!   dead. The translation layer decides where a page stands.
//! - **H3** Dies work in parallel, each in turn; writes go to them in turn. The translation layer's own work
//!   occupies its die like any other work, ahead of the write that needs it. A page that it moves stays
//!   within its die where the profile says copy-back; else it crosses the bus twice. Pages of the host cross
//!   the host's link as well, one at a time.
//! - **H4** A write of part of a page writes a whole one: the host's own cache holds the rest.
//! - **H5** [`Nand::counters`] count the chips' work, wear included; [`SsdCounters`] part it by cause.
//! - **H6** Where the profile says so ([`crate::Translation`]), a page that is written again is compared with
//!   its content on the chips. If its changes fill only code words which were left erased, and the chips take
//!   one program more there, those code words are programmed in place; else the page goes to a new place.
//!   Code words of `0xFF` at the end of a page are left erased. The host does not say that it appends: it
//!   gives an address and a whole page.

mod ftl;

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::fault::{Faults, Verdict};
use crate::mix::{Draw, mix, mix_bytes};
use crate::timing::Timeline;
use crate::{
    BlockIndex, Capabilities, CellMode, CodeWord, Completion, Counters, Crashable, Ending,
    FaultPlan, FlashRule, Geometry, Nand, NandError, OperationKind, PageType, PartialCut,
    PhysicalPage, Profile, ProgramOrder, ProgramPart, ReadPart, SimNand, SpareRange, Timing,
    Translation,
};
use ftl::{Ftl, Step};

/// Addresses of the host for each page of the chips (rule H2).
pub const THIN_FACTOR: u32 = 4;

/// Bytes of the host's sector.
const SECTOR_SIZE: u32 = 512;

/// `ENOSPC` on every Unix: more pages are live than the device has room for.
const ENOSPC: i32 = 28;
/// `EINVAL` on every Unix.
const EINVAL: i32 = 22;

/// Work of an SSD, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SsdCounters {
    /// Pages that the host read.
    pub host_reads: u64,
    /// Pages that the host wrote.
    pub host_writes: u64,
    /// Pages that the host trimmed.
    pub trims: u64,
    /// Pages that collection moved: each a read and a program.
    pub gc_programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Pages that the host wrote again and that were programmed in place (rule H6).
    pub appends: u64,
}

/// A simulated SSD. `Clone` takes a snapshot.
#[derive(Clone, Debug)]
pub struct SimSsd {
    geometry: Geometry,
    capabilities: Capabilities,
    timing: Timing,
    /// Whether overwrites are programmed in place where they can be (rule H6).
    appends: bool,
    /// Whether a page that is moved stays within its die (rule H3).
    copy_back: bool,
    /// Content, wear and rules; its own clock stands still.
    chips: SimNand,
    ftl: Ftl,
    timeline: Timeline,
    counters: SsdCounters,
    /// Blocks that the host marked: an SSD has none by itself.
    marked: BTreeSet<u32>,
    faults: Faults,
    trace: u64,
}

impl SimSsd {
    /// An empty SSD of the chips in `profile`, behind `translation`.
    #[must_use]
    pub fn new(profile: &Profile, translation: Translation, seed: u64) -> Self {
        let Translation { reserve_percent, in_place_appends: appends, copy_back } = translation;
        let chip = profile.geometry;
        let still = Timing::default();
        let pages_per_block = chip.pages_per_block * THIN_FACTOR;
        let geometry = Geometry { spare_size: 0, pages_per_block, die_count: 1, ..chip };
        Self {
            geometry,
            capabilities: block_interface(&profile.capabilities, appends),
            timing: profile.timing,
            appends,
            copy_back,
            chips: SimNand::from_parts(chip, profile.capabilities, still, seed),
            ftl: Ftl::new(chip, geometry.page_count(), reserve_percent),
            timeline: Timeline::new(chip.die_count, profile.timing.channel_count),
            counters: SsdCounters::default(),
            marked: BTreeSet::new(),
            faults: Faults::default(),
            trace: 0,
        }
    }

    /// Writes every page that can be live once, in an order drawn from `seed`, and trims all of
    /// them, as a drive that has been used and formatted: no block is fresh any more.
    ///
    /// # Errors
    ///
    /// The errors of the chips.
    pub fn precondition(&mut self, seed: u64) -> Result<(), NandError> {
        let count = self.ftl.capacity();
        let mut order: Vec<u32> = (0..count).collect();
        let mut draw = Draw::new(seed, 9);
        for index in (1..order.len()).rev() {
            order.swap(index, draw.below(index as u32 + 1) as usize);
        }
        let page = vec![0x5A; self.geometry.page_size as usize];
        for host in &order {
            self.store(*host, &page, 0)?;
        }
        for host in order {
            self.ftl.trim(host);
        }
        self.timeline = Timeline::new(self.chips.geometry().die_count, self.timing.channel_count);
        self.counters = SsdCounters::default();
        self.chips.reset_counters();
        Ok(())
    }

    /// Pages that hold data of the host.
    #[must_use]
    pub fn live_pages(&self) -> u32 {
        self.ftl.live_pages()
    }

    /// Pages that can hold data of the host.
    #[must_use]
    pub fn capacity_pages(&self) -> u32 {
        self.ftl.capacity()
    }

    /// Writes one page of the host, which is there at `from_ns`; completes when it is on the chips.
    fn store(&mut self, host: u32, data: &[u8], from_ns: u64) -> Result<Completion, NandError> {
        let die = self.ftl.next_die().ok_or(NandError::Host { errno: ENOSPC })?;
        self.collect(die)?;
        let at = self.ftl.place(die, host).ok_or(NandError::Host { errno: ENOSPC })?;
        self.program_chip(at, data)?;
        let transfer_ns = self.timing.transfer_page_ns;
        Ok(self.timeline.program(from_ns, die, transfer_ns, self.program_ns(at)))
    }

    /// Programs the bytes that `data` adds to the page of `host`; none when `data` has to go to a new page
    /// (rule H6).
    fn append(
        &mut self,
        host: u32,
        data: &[u8],
        from_ns: u64,
    ) -> Result<Option<Completion>, NandError> {
        let Some(at) = self.ftl.lookup(host).filter(|_| self.appends) else { return Ok(None) };
        let page = self.chip_page(at)?;
        if !self.chips.takes_data(page) {
            return Ok(None);
        }
        let mut old = vec![0; data.len()];
        self.read_chip(at, &mut old)?;
        let geometry = self.chips.geometry();
        let die = geometry.die_of(geometry.block_of(page));
        // The page does not cross the bus: the controller compares.
        let read = self.timeline.occupy(from_ns, die, self.read_ns(at));
        let word_size = self.chips.capabilities().code_word.data_size as usize;
        let Some(added) = added_words(&old, data, word_size) else { return Ok(None) };
        if added.is_empty() {
            return Ok(Some(read));
        }
        let data_offset = added.start as u32;
        let part = ProgramPart { data_offset, data: &data[added], spare_offset: 0, spare: &[] };
        match self.chips.program(page, part) {
            Ok(_) => {}
            // Code words of `0xFF` that were programmed look erased.
            Err(NandError::Rule { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        self.counters.appends += 1;
        let Timing { partial_program_ns, transfer_page_ns, .. } = self.timing;
        Ok(Some(self.timeline.program(from_ns, die, transfer_page_ns, partial_program_ns)))
    }

    /// Time of a program of a page of the chips.
    fn program_ns(&self, at: u32) -> u64 {
        self.timing.program_of(self.page_type(at))
    }

    /// Time of a read of a page of the chips.
    fn read_ns(&self, at: u32) -> u64 {
        self.timing.read_of(self.page_type(at))
    }

    /// Time of `size` bytes of a page on the host's link.
    fn link_ns(&self, size: usize) -> u64 {
        self.timing.host_page_ns * size as u64 / u64::from(self.geometry.page_size)
    }

    fn page_type(&self, at: u32) -> PageType {
        let pages_per_block = self.chips.geometry().pages_per_block;
        self.chips.capabilities().page_type(at % pages_per_block, pages_per_block)
    }

    /// Makes room on `die` (rule H3).
    fn collect(&mut self, die: u32) -> Result<(), NandError> {
        let mut page = vec![0; self.geometry.page_size as usize];
        while let Some(step) = self.ftl.collect_step(die) {
            match step {
                Step::Move { from, to } => {
                    self.read_chip(from, &mut page)?;
                    self.program_chip(to, &page)?;
                    self.counters.gc_programs += 1;
                    let transfer_ns = if self.copy_back { 0 } else { self.timing.transfer_page_ns };
                    let read = self.timeline.fetch(die, self.read_ns(from), transfer_ns);
                    self.timeline.program(read.end_ns, die, transfer_ns, self.program_ns(to));
                }
                Step::Erase(block) => {
                    self.chips.erase(block)?;
                    self.counters.erases += 1;
                    self.timeline.post(die, self.timing.erase_ns);
                }
            }
        }
        Ok(())
    }

    fn program_chip(&mut self, at: u32, data: &[u8]) -> Result<(), NandError> {
        let page = self.chip_page(at)?;
        let word_size = self.chips.capabilities().code_word.data_size as usize;
        let data = if self.appends { without_erased_end(data, word_size) } else { data };
        let part = ProgramPart { data_offset: 0, data, spare_offset: 0, spare: &[] };
        self.chips.program(page, part).map(|_| ())
    }

    fn read_chip(&mut self, at: u32, data: &mut [u8]) -> Result<(), NandError> {
        let page = self.chip_page(at)?;
        let part = ReadPart { data_offset: 0, data, spare_offset: 0, spare: &mut [] };
        self.chips.read(page, part).map(|_| ())
    }

    fn chip_page(&self, at: u32) -> Result<PhysicalPage, NandError> {
        let page = self.chips.geometry().page_from_number(at);
        page.ok_or(NandError::Host { errno: EINVAL })
    }

    /// The bytes of a host's page, `0xFF` where nothing is written; takes no time.
    fn peek(&self, host: u32) -> Vec<u8> {
        let page = self.ftl.lookup(host).and_then(|at| self.chips.geometry().page_from_number(at));
        page.map_or_else(
            || vec![0xFF; self.geometry.page_size as usize],
            |page| self.chips.peek(page).data,
        )
    }

    fn is_aligned(&self, page: PhysicalPage, offset: u32, size: usize) -> bool {
        let end = offset as usize + size;
        page.number() < self.geometry.page_count()
            && offset.is_multiple_of(SECTOR_SIZE)
            && size.is_multiple_of(SECTOR_SIZE as usize)
            && end <= self.geometry.page_size as usize
    }

    const fn powered(&self) -> Result<(), NandError> {
        if self.faults.is_off() { Err(NandError::PowerOff) } else { Ok(()) }
    }

    const fn idle(&self) -> Completion {
        Completion { end_ns: self.timeline.now_ns(), corrected_bits_max: 0 }
    }

    /// Merges a write of part of a page into the page's bytes and stores it (rule H4).
    fn write(
        &mut self,
        page: PhysicalPage,
        part: &ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        self.counters.host_writes += 1;
        let received_ns = self.timeline.receive(self.link_ns(part.data.len()));
        let merged;
        let whole = if part.data.len() == self.geometry.page_size as usize {
            part.data
        } else {
            let mut bytes = self.peek(page.number());
            let start = part.data_offset as usize;
            bytes[start..start + part.data.len()].copy_from_slice(part.data);
            merged = bytes;
            &merged
        };
        match self.append(page.number(), whole, received_ns)? {
            Some(completion) => Ok(completion),
            None => self.store(page.number(), whole, received_ns),
        }
    }
}

/// The bytes of `new` that `old` lacks, as whole code words: none where it changes any that is not
/// erased.
fn added_words(old: &[u8], new: &[u8], word_size: usize) -> Option<Range<usize>> {
    let words = || old.chunks(word_size).zip(new.chunks(word_size));
    let is_changed = |(old, new): (&[u8], &[u8])| old != new;
    let Some(first) = words().position(is_changed) else { return Some(0..0) };
    let last = words().rposition(is_changed).unwrap_or(first);
    let added = first * word_size..((last + 1) * word_size).min(new.len());
    is_erased(&old[added.clone()]).then_some(added)
}

/// A page without the code words at its end that hold nothing; the first stays.
fn without_erased_end(data: &[u8], word_size: usize) -> &[u8] {
    let used = data.chunks(word_size).rposition(|word| !is_erased(word)).unwrap_or(0);
    &data[..((used + 1) * word_size).min(data.len())]
}

fn is_erased(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0xFF)
}

/// Capabilities that a host may rely on: sectors and pages that can be rewritten, no spare area, no order.
/// Pages that take appends take as many programs as the chips' pages (rule H6).
const fn block_interface(chips: &Capabilities, appends: bool) -> Capabilities {
    let endurance = chips.endurance;
    Capabilities {
        programs_data: if appends { chips.programs_data } else { 1 },
        programs_spare: 0,
        first_program_order: ProgramOrder::Any,
        reprogram_order: ProgramOrder::Any,
        cell_mode: CellMode::Translated,
        code_word: CodeWord { data_size: SECTOR_SIZE, strength: 0 },
        spare_raw: SpareRange { offset: 0, size: 0 },
        spare_covered: SpareRange { offset: 0, size: 0 },
        partial_cut: PartialCut::Isolated,
        endurance,
        rewrite_tail: true,
        needs_sync: false,
    }
}

impl Nand for SimSsd {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        self.powered()?;
        if !self.is_aligned(page, part.data_offset, part.data.len()) || !part.spare.is_empty() {
            return Err(NandError::Rule { page, rule: FlashRule::Alignment });
        }
        if part.data.is_empty() {
            return Ok(self.idle());
        }
        self.trace = mix(mix(self.trace, 1), u64::from(page.number()));
        self.counters.host_reads += 1;
        let Some(at) = self.ftl.lookup(page.number()) else {
            part.data.fill(0xFF);
            return Ok(self.idle());
        };
        let chip_page = self.chip_page(at)?;
        let link_ns = self.link_ns(part.data.len());
        self.chips.read(chip_page, part)?;
        let geometry = self.chips.geometry();
        let die = geometry.die_of(geometry.block_of(chip_page));
        let transfer_ns = self.timing.transfer_page_ns;
        Ok(self.timeline.send(die, self.read_ns(at), transfer_ns, link_ns))
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        self.powered()?;
        if !self.is_aligned(page, part.data_offset, part.data.len()) || !part.spare.is_empty() {
            return Err(NandError::Rule { page, rule: FlashRule::Alignment });
        }
        if part.data.is_empty() {
            return Ok(self.idle());
        }
        self.trace = mix_bytes(mix(mix(self.trace, 2), u64::from(page.number())), part.data);
        let code_words = (part.data.len() / SECTOR_SIZE as usize).min(usize::from(u8::MAX)) as u8;
        let kind = OperationKind::Program { code_words, spare: false, again: false, paired: false };
        let block = self.geometry.block_of(page);
        match self.faults.next(kind, Some(block)) {
            Verdict::Works => self.write(page, &part),
            Verdict::Ignored => Ok(self.idle()),
            Verdict::Fails => Err(NandError::ProgramFailed { page }),
            Verdict::Cut(ending) => {
                if ending == Ending::Complete {
                    self.write(page, &part)?;
                }
                Err(NandError::PowerOff)
            }
        }
    }

    /// Trims the block's pages: they read as erased and take no room.
    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        self.powered()?;
        let first = self.geometry.page(block, 0).ok_or(NandError::Host { errno: EINVAL })?;
        self.trace = mix(mix(self.trace, 3), u64::from(block.0));
        let verdict = self.faults.next(OperationKind::Erase, Some(block));
        match verdict {
            Verdict::Fails => return Err(NandError::EraseFailed { block }),
            Verdict::Ignored => return Ok(self.idle()),
            Verdict::Cut(ending) if ending != Ending::Complete => return Err(NandError::PowerOff),
            Verdict::Works | Verdict::Cut(_) => {}
        }
        for page in first.number()..first.number() + self.geometry.pages_per_block {
            self.counters.trims += u64::from(self.ftl.trim(page));
        }
        self.powered().map(|()| self.idle())
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        self.powered()?;
        Ok(block.0 >= self.geometry.block_count || self.marked.contains(&block.0))
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        self.powered()?;
        let verdict = self.faults.next(OperationKind::MarkBad, Some(block));
        if matches!(verdict, Verdict::Works | Verdict::Cut(Ending::Complete)) {
            self.marked.insert(block.0);
        }
        self.powered()
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        self.powered()?;
        match self.faults.next(OperationKind::Sync, None) {
            Verdict::Cut(_) => Err(NandError::PowerOff),
            Verdict::Fails => Err(NandError::SyncFailed),
            Verdict::Works | Verdict::Ignored => Ok(self.timeline.drain(self.timing.sync_ns)),
        }
    }

    /// Erases of the chips' block of that number: the host's blocks wear nothing by themselves.
    fn erase_count(&self, block: BlockIndex) -> u32 {
        self.chips.erase_count(block)
    }

    fn counters(&self) -> Counters {
        self.chips.counters()
    }

    fn translation(&self) -> Option<SsdCounters> {
        Some(self.counters)
    }

    fn reset_counters(&mut self) {
        self.chips.reset_counters();
        self.counters = SsdCounters::default();
    }

    fn now_ns(&self) -> u64 {
        self.timeline.now_ns()
    }

    fn advance_to(&mut self, now_ns: u64) {
        self.timeline.advance_to(now_ns);
    }

    fn resume_at(&mut self, now_ns: u64) {
        self.timeline.resume_at(now_ns);
    }

    fn trim(&mut self, first: PhysicalPage, count: u32) {
        if !self.faults.is_off() {
            let pages = first.number()..first.number().saturating_add(count);
            self.counters.trims += pages.map(|page| u64::from(self.ftl.trim(page))).sum::<u64>();
        }
    }
}

impl Crashable for SimSsd {
    fn set_plan(&mut self, plan: FaultPlan) {
        self.faults.set_plan(plan);
    }

    fn operation_count(&self) -> u64 {
        self.faults.count()
    }

    fn record_operations(&mut self) {
        self.faults.record();
    }

    fn operation_kind(&self, number: u64) -> Option<OperationKind> {
        self.faults.kind(number)
    }

    fn is_off(&self) -> bool {
        self.faults.is_off()
    }

    /// The mapping survives: a real drive keeps it by a capacitor or rebuilds it before it answers.
    fn power_cycle(&mut self) {
        self.faults.power_cycle();
        self.timeline.idle();
    }

    fn state_hash(&self) -> u64 {
        mix(self.chips.state_hash(), self.ftl.hash())
    }

    fn trace_hash(&self) -> u64 {
        self.trace
    }
}

#[cfg(test)]
mod closed_forms;
#[cfg(test)]
mod tests;
