//! A simulated chip: real bytes, virtual time, every rule of flash, any fault.
//!
//! Owns the contents of a whole device in memory. Never touches the host: equal calls give equal
//! answers, times, counters and hashes on every machine.
//!
//! - **S1** A snapshot (`Clone`) shares all blocks; a block is copied when either side changes it.
//! - **S2** An erased block owns no bytes.
//! - **S3** A call that breaks a rule changes nothing and counts nothing.
//! - **S4** A chip of strength 0 has no ECC: damage shows in the bytes that are read, never as an error.
//! - **S5** The hot path allocates nothing and hashes only the trace.

mod block;
mod damage;
mod disturb;
mod endings;
mod inspect;

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::cells::CellRole;
use crate::fault::{Faults, Verdict};
use crate::mix::{Draw, mix, mix_bytes, scramble};
use crate::rules::{PageState, Rules, Span};
use crate::timing::Timeline;
use crate::{
    BlockIndex, Capabilities, Completion, Counters, Crashable, Ending, FaultPlan, FlashRule,
    Geometry, Nand, NandError, OperationKind, PageType, PhysicalPage, Profile, ProgramPart,
    ReadFault, ReadPart, Timing, WearOut,
};
use block::{Block, Pool};
use damage::Damage;

pub use inspect::PageContent;

/// A simulated NAND chip.
///
/// Programs and erases are posted: they occupy their die, report when they end and leave the
/// clock alone. Reads and syncs move it.
#[derive(Clone, Debug)]
pub struct SimNand {
    geometry: Geometry,
    capabilities: Capabilities,
    timing: Timing,
    rules: Rules,
    blocks: Vec<Option<Arc<Block>>>,
    pool: Pool,
    bad: Vec<bool>,
    erase_counts: Vec<u32>,
    counters: Counters,
    timeline: Timeline,
    faults: Faults,
    damage: Damage,
    /// Draws of programs against the rules.
    disturb: Draw,
    seed: u64,
    trace: u64,
}

/// A page with its block and its position, split once per operation.
#[derive(Clone, Copy, Debug)]
struct Place {
    page: PhysicalPage,
    block: BlockIndex,
    index: u32,
}

/// Tags of operations in the trace.
#[derive(Clone, Copy)]
enum Trace {
    Read = 1,
    Program = 2,
    Erase = 3,
    MarkBad = 4,
    Sync = 5,
}

impl SimNand {
    /// An erased chip. `seed` decides everything that is drawn: bit positions, unstable bits. Where
    /// the profile's ECC is ours, the chip has none: see [`crate::EccNand`].
    #[must_use]
    pub fn new(profile: &Profile, seed: u64) -> Self {
        Self::from_parts(profile.geometry, profile.device_capabilities(), profile.timing, seed)
    }

    /// An erased chip of any shape. Parts that contradict each other refuse programs with
    /// [`FlashRule::Alignment`]; see [`Profile::checked`].
    #[must_use]
    pub fn from_parts(
        geometry: Geometry,
        capabilities: Capabilities,
        timing: Timing,
        seed: u64,
    ) -> Self {
        let block_count = geometry.block_count as usize;
        Self {
            geometry,
            capabilities,
            timing,
            rules: Rules::new(geometry, capabilities),
            blocks: vec![None; block_count],
            pool: Pool::default(),
            bad: vec![false; block_count],
            erase_counts: vec![0; block_count],
            counters: Counters::default(),
            timeline: Timeline::new(geometry.die_count, timing.channel_count),
            faults: Faults::default(),
            damage: Damage::new(seed),
            disturb: Draw::new(seed, 10),
            seed,
            trace: 0,
        }
    }

    /// The same chip with factory marks on `blocks`.
    #[must_use]
    pub fn with_bad_blocks(mut self, blocks: &[BlockIndex]) -> Self {
        for block in blocks {
            if let Some(bad) = self.bad.get_mut(block.0 as usize) {
                *bad = true;
            }
        }
        self
    }

    /// The same chip with factory marks on `count` blocks drawn from the seed; never block 0,
    /// which vendors guarantee.
    #[must_use]
    pub fn with_bad_block_count(mut self, count: u32) -> Self {
        let mut draw = Draw::new(self.seed, 6);
        let count = count.min(self.geometry.block_count.saturating_sub(1));
        let mut marked = 0;
        while marked < count {
            let block = 1 + draw.below(self.geometry.block_count - 1);
            if let Some(bad @ false) = self.bad.get_mut(block as usize) {
                *bad = true;
                marked += 1;
            }
        }
        self
    }

    /// Whether the data area of a page takes one program more.
    #[must_use]
    pub fn takes_data(&self, page: PhysicalPage) -> bool {
        let Ok(place) = self.place(page) else { return false };
        let limit = self.capabilities.programs_data_of(place.index, self.geometry.pages_per_block);
        u32::from(self.block_state(place).0.data_programs) < limit
    }

    #[inline]
    fn place(&self, page: PhysicalPage) -> Result<Place, NandError> {
        let block = self.geometry.block_of(page);
        let index = page.number() - block.0 * self.geometry.pages_per_block;
        if block.0 < self.geometry.block_count {
            return Ok(Place { page, block, index });
        }
        // A page of another, larger device.
        Err(NandError::Rule { page, rule: FlashRule::Alignment })
    }

    fn block_place(&self, block: BlockIndex) -> Result<Place, NandError> {
        let page = self.geometry.page(block, 0);
        let page = page.ok_or(NandError::Host { errno: EINVAL })?;
        Ok(Place { page, block, index: 0 })
    }

    /// State of a page, and the frontier of its block.
    #[inline]
    fn block_state(&self, place: Place) -> (PageState, u32) {
        match &self.blocks[place.block.0 as usize] {
            Some(block) => (block.state(place.index), block.frontier),
            None => (PageState::default(), 0),
        }
    }

    #[inline]
    fn judge(&self, place: Place, part: &ProgramPart<'_>) -> Result<Span, FlashRule> {
        if self.bad[place.block.0 as usize] {
            return Err(FlashRule::BadBlock);
        }
        let Some(block) = &self.blocks[place.block.0 as usize] else {
            return self.rules.judge(place.index, PageState::default(), 0, part, &[]);
        };
        if block.stale {
            let erased = PageState::default();
            let mut span = self.rules.judge(place.index, erased, 0, part, &[])?;
            span.after.words |= block.state(place.index).words;
            return Ok(span);
        }
        let spare = block.spare(&self.geometry, place.index);
        let state = block.state(place.index);
        let span = self.rules.judge(place.index, state, block.frontier, part, spare)?;
        if span.rewritten != 0 && !self.keeps_bytes(span.rewritten, part, block, place.index) {
            return Err(FlashRule::CodeWordReuse);
        }
        Ok(span)
    }

    /// Whether `part` leaves the code words `words` as they are.
    fn keeps_bytes(&self, words: u64, part: &ProgramPart<'_>, block: &Block, index: u32) -> bool {
        let size = self.rules.word_size();
        let offsets = (part.data_offset..).step_by(size as usize);
        offsets.zip(part.data.chunks(size as usize)).all(|(offset, new)| {
            let is_free = words >> (offset / size) & 1 == 0;
            is_free || block.has_data(&self.geometry, index, offset, new)
        })
    }

    fn program_kind(&self, place: Place, span: &Span, part: &ProgramPart<'_>) -> OperationKind {
        let role = self.capabilities.cell_role(place.index, self.geometry.pages_per_block);
        let (state, _) = self.block_state(place);
        OperationKind::Program {
            code_words: span.words.count_ones() as u8,
            spare: !part.spare.is_empty(),
            again: !state.is_erased(),
            paired: matches!(role, CellRole::Msb { .. }),
        }
    }

    /// Stores a program, complete.
    #[inline]
    fn store(&mut self, place: Place, span: &Span, part: &ProgramPart<'_>) {
        let geometry = self.geometry;
        let (state, _) = self.block_state(place);
        let overwritten = span.words & state.words & !span.rewritten;
        self.block_mut(place.block).store(&geometry, place.index, span, part);
        if overwritten != 0 {
            // Only where an erase was reported and not done: the ECC sees two patterns at once.
            for word in (0..u64::BITS).filter(|word| overwritten >> word & 1 == 1) {
                self.damage.word(place.page.number(), word, damage::WordDamage::Lost);
            }
        }
        if !self.damage.is_empty() {
            self.damage.firm(place.page.number(), part.spare_offset, part.spare);
        }
    }

    fn clear(&mut self, place: Place) {
        self.count_erase(place);
        let first = place.block.0 * self.geometry.pages_per_block;
        self.damage.erase(first, first + self.geometry.pages_per_block);
        if let Some(block) = self.blocks[place.block.0 as usize].take() {
            self.pool.put(block);
        }
    }

    fn count_erase(&mut self, place: Place) {
        let count = &mut self.erase_counts[place.block.0 as usize];
        *count = count.saturating_add(1);
    }

    /// Whether wear has the better of a block (see [`WearOut`]).
    fn is_worn_out(&self, block: BlockIndex) -> bool {
        if self.faults.plan().wear == WearOut::Never {
            return false;
        }
        let endurance = self.capabilities.endurance;
        let spread = u64::from(endurance / 8) + 1;
        let extra = scramble(self.seed ^ u64::from(block.0)) % spread;
        let count = self.erase_counts.get(block.0 as usize).copied().unwrap_or(0);
        u64::from(count) >= u64::from(endurance) + extra
    }

    #[inline]
    fn transfer_ns(&self, size: usize) -> u64 {
        if self.timing.transfer_page_ns == 0 {
            return 0;
        }
        let page_size = u64::from(self.geometry.page_size) + u64::from(self.geometry.spare_size);
        self.timing.transfer_page_ns * size as u64 / page_size.max(1)
    }

    #[inline]
    fn page_type(&self, index: u32) -> PageType {
        self.capabilities.page_type(index, self.geometry.pages_per_block)
    }

    #[inline]
    fn count_program(&mut self, place: Place, part: &ProgramPart<'_>) -> Completion {
        let size = part.data.len() + part.spare.len();
        self.counters.bytes_programmed += size as u64;
        let is_whole = part.data.len() == self.geometry.page_size as usize;
        let count = match is_whole {
            true => &mut self.counters.page_programs,
            false => &mut self.counters.partial_programs,
        };
        *count += 1;
        let array_ns = match self.page_type(place.index) {
            PageType::Lower if !is_whole => self.timing.partial_program_ns,
            page_type => self.timing.program_of(page_type),
        };
        let die = self.geometry.die_of(place.block);
        self.timeline.program(self.now_ns(), die, self.transfer_ns(size), array_ns)
    }

    #[inline]
    fn note(&mut self, tag: Trace, address: u32) {
        self.trace = mix(self.trace, (tag as u64) << 32 | u64::from(address));
    }

    const fn powered(&self) -> Result<(), NandError> {
        if self.faults.is_off() { Err(NandError::PowerOff) } else { Ok(()) }
    }
}

/// `EINVAL` on every Unix: a block address outside the device.
const EINVAL: i32 = 22;

impl Nand for SimNand {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        self.powered()?;
        if part.data.is_empty() && part.spare.is_empty() {
            return Ok(Completion { end_ns: self.now_ns(), corrected_bits_max: 0 });
        }
        let place = self.place(page)?;
        let words = self.rules.words_of(part.data_offset, part.data.len());
        let words = words.filter(|_| self.rules.is_spare(part.spare_offset, part.spare.len()));
        let words = words.ok_or(NandError::Rule { page, rule: FlashRule::Alignment })?;
        self.note(Trace::Read, page.number());
        let size = part.data.len() + part.spare.len();
        self.counters.page_reads += 1;
        self.counters.bytes_read += size as u64;
        let array_ns = self.timing.read_of(self.page_type(place.index));
        let die = self.geometry.die_of(place.block);
        let completion = self.timeline.send(die, array_ns, self.transfer_ns(size), 0);
        let corrected_bits_max = self.fetch(place, words, part)?;
        Ok(Completion { corrected_bits_max, ..completion })
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        self.powered()?;
        if part.data.is_empty() && part.spare.is_empty() {
            return Ok(Completion { end_ns: self.now_ns(), corrected_bits_max: 0 });
        }
        let place = self.place(page)?;
        let span = self.judge(place, &part).map_err(|rule| NandError::Rule { page, rule })?;
        self.note(Trace::Program, page.number());
        self.trace = mix_bytes(mix_bytes(self.trace, part.data), part.spare);
        let kind = self.program_kind(place, &span, &part);
        let verdict = self.faults.next(kind, Some(place.block));
        match verdict {
            Verdict::Works => self.store(place, &span, &part),
            Verdict::Fails => self.end_program(place, &span, &part, Ending::RandomBits),
            Verdict::Ignored => {}
            Verdict::Cut(ending) => {
                self.end_program(place, &span, &part, ending);
                return Err(NandError::PowerOff);
            }
        }
        let completion = self.count_program(place, &part);
        if verdict == Verdict::Fails {
            return Err(NandError::ProgramFailed { page });
        }
        Ok(completion)
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        self.powered()?;
        let place = self.block_place(block)?;
        if self.bad[block.0 as usize] {
            return Err(NandError::Rule { page: place.page, rule: FlashRule::BadBlock });
        }
        self.note(Trace::Erase, block.0);
        let mut verdict = self.faults.next(OperationKind::Erase, Some(block));
        if verdict == Verdict::Works && self.is_worn_out(block) {
            verdict = Verdict::Fails;
        }
        match verdict {
            Verdict::Works => self.clear(place),
            Verdict::Fails => self.end_erase(place, Ending::PartlyErased),
            Verdict::Ignored => self.block_mut(block).stale = true,
            Verdict::Cut(ending) => {
                self.end_erase(place, ending);
                return Err(NandError::PowerOff);
            }
        }
        self.counters.block_erases += 1;
        let die = self.geometry.die_of(block);
        let completion = self.timeline.post(die, self.timing.erase_ns);
        if verdict == Verdict::Fails {
            return Err(NandError::EraseFailed { block });
        }
        Ok(completion)
    }

    fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
        let place = self.place(page)?;
        let is_stale = self.blocks[place.block.0 as usize].as_ref().is_some_and(|it| it.stale);
        Ok(is_stale || self.rules.takes_spare(self.block_state(place).0))
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        self.powered()?;
        Ok(self.bad.get(block.0 as usize).copied().unwrap_or(true))
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        self.powered()?;
        let place = self.block_place(block)?;
        self.note(Trace::MarkBad, block.0);
        let ending = match self.faults.next(OperationKind::MarkBad, Some(block)) {
            Verdict::Cut(ending) => ending,
            _ => Ending::Complete,
        };
        if matches!(ending, Ending::Complete | Ending::EraseWithoutMark) {
            // Linux erases a block before it marks it (`MEMSETBADBLOCK`).
            self.clear(place);
            self.bad[block.0 as usize] = ending == Ending::Complete;
        }
        self.powered()
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        self.powered()?;
        self.note(Trace::Sync, 0);
        match self.faults.next(OperationKind::Sync, None) {
            Verdict::Cut(_) => return Err(NandError::PowerOff),
            Verdict::Fails => return Err(NandError::SyncFailed),
            Verdict::Works | Verdict::Ignored => {}
        }
        self.counters.syncs += 1;
        Ok(self.timeline.drain(self.timing.sync_ns))
    }

    fn erase_count(&self, block: BlockIndex) -> u32 {
        self.erase_counts.get(block.0 as usize).copied().unwrap_or(0)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn reset_counters(&mut self) {
        self.counters = Counters::default();
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
}

impl SimNand {
    /// Copies bytes out and lets the ECC and the faults have their say.
    #[inline]
    fn fetch(&mut self, place: Place, words: u64, part: ReadPart<'_>) -> Result<u32, NandError> {
        let mut source = place;
        if self.faults.reads_armed() {
            source = self.read_source(place)?;
        }
        match &self.blocks[source.block.0 as usize] {
            Some(block) => {
                let (geometry, rules) = (&self.geometry, &self.rules);
                let offset = part.data_offset;
                block.read_data(geometry, rules, source.index, offset, words, part.data);
                block.read_spare(geometry, source.index, part.spare_offset, part.spare);
            }
            None => {
                part.data.fill(0xFF);
                part.spare.fill(0xFF);
            }
        }
        if self.damage.is_empty() {
            return Ok(0);
        }
        let repaired = self.suffer(source, words, part);
        repaired.ok_or(NandError::Uncorrectable { page: place.page })
    }

    /// Applies damage to bytes that were read: most bits repaired in a word, `None` if too many.
    fn suffer(&mut self, place: Place, words: u64, part: ReadPart<'_>) -> Option<u32> {
        let number = place.page.number();
        if self.capabilities.code_word.strength == 0 {
            let first = part.data_offset / self.rules.word_size();
            let size = self.rules.word_size() as usize;
            self.damage.show(number, first, part.data.chunks_mut(size));
            self.damage.blur(number, part.spare_offset, part.spare);
            return Some(0);
        }
        let correction = self.damage.correct(number, words, self.capabilities.code_word.strength);
        self.damage.blur(number, part.spare_offset, part.spare);
        self.counters.corrected_bits += correction.bits;
        if correction.uncorrectable {
            // The target holds undefined bytes: nearly right ones are the nastiest.
            for byte in part.data.iter_mut().step_by(61) {
                *byte ^= 0x40;
            }
            return None;
        }
        Some(correction.bits_max)
    }

    /// Where a read really takes place, under the plan's read faults.
    fn read_source(&mut self, place: Place) -> Result<Place, NandError> {
        let uncorrectable = NandError::Uncorrectable { page: place.page };
        if self.faults.reads_fail(place.block) {
            return Err(uncorrectable);
        }
        match self.faults.read_fault(place.page) {
            None => Ok(place),
            Some(ReadFault::UncorrectableOnce | ReadFault::Uncorrectable) => Err(uncorrectable),
            Some(ReadFault::Misdirected { instead }) => self.place(instead),
        }
    }
}

impl Crashable for SimNand {
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

    fn power_cycle(&mut self) {
        self.faults.power_cycle();
        self.timeline.idle();
    }

    fn state_hash(&self) -> u64 {
        self.contents_hash()
    }

    fn trace_hash(&self) -> u64 {
        self.trace
    }
}

#[cfg(test)]
mod tests;
