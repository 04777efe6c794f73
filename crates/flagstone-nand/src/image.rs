//! A chip in a file: a raw image, data and spare interleaved page by page, as `nanddump` writes it.
//!
//! Owns the image and the side file `PATH.toml` beside it. Never computes ECC: spare bytes that a
//! chip's ECC would own stay as they are, and reads correct nothing. ECC of our own is computed above it
//! ([`EccNand`]).
//!
//! - **K1** The image alone carries all data: it survives the death of the process at any moment,
//!   and dumps of real chips open when a profile lies beside them.
//! - **K2** The side file is complete only after [`ImageNand::close`] or a drop. After a kill the
//!   rules know only the bytes: a page that is not `0xFF` was programmed once. They never accuse
//!   wrongly; they may let a program too many pass.
//! - **K3** Writes reach the operating system when the call returns, and the medium with `sync`;
//!   against a power cut of the *host* an image is as safe as the file system makes it.
//! - **K4** A block is bad when the mark in the spare area of its first or second page is not `0xFF`: byte 5 of
//!   pages of 512 bytes, byte 0 of larger ones and where the profile has byte 5 used. Without a spare area the side
//!   file lists it.

mod open;
mod side;

use std::path::PathBuf;

use crate::ecc::bad_mark_offset;
use crate::fault::{Faults, Verdict};
use crate::mix::Draw;
use crate::rules::{PageState, Rules, Span};
use crate::storage::{FileStorage, OpenDeviceError, Storage};
use crate::{
    BlockIndex, Capabilities, Completion, Counters, Ending, FaultPlan, FlashRule, Geometry, Nand,
    NandError, OperationKind, PhysicalPage, Profile, ProgramPart, ReadPart, SpareRange,
};
use side::Side;

/// Knowledge of a block that was touched.
#[derive(Clone, Debug)]
struct BlockState {
    pages: Vec<PageState>,
    frontier: u32,
}

/// A NAND image in a file.
#[derive(Debug)]
pub struct ImageNand {
    storage: FileStorage,
    side_path: PathBuf,
    profile: Profile,
    rules: Rules,
    /// Filled block by block, on first touch.
    blocks: Vec<Option<BlockState>>,
    /// Program counts of the last clean close, for blocks not touched yet.
    remembered: Side,
    bad: Vec<bool>,
    erase_counts: Vec<u32>,
    counters: Counters,
    faults: Faults,
    poisoned: bool,
    closed: bool,
}

impl ImageNand {
    /// The profile the image was made with.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Writes the side file and closes the image.
    ///
    /// # Errors
    ///
    /// Host errors; the image itself is complete all the same (K1).
    pub fn close(mut self) -> Result<(), OpenDeviceError> {
        self.closed = true;
        self.storage.sync()?;
        self.save(side::Closing::Clean)
    }

    /// Replaces the plan of faults: cuts and failures by operation number, as in
    /// [`crate::SimNand`]. Endings that need unstable cells leave random bits instead.
    pub fn set_plan(&mut self, plan: FaultPlan) {
        self.faults.set_plan(plan);
    }

    /// Numbered operations so far: the number of the next one.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        self.faults.count()
    }

    /// Whether a cut took the power away.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.faults.is_off()
    }

    /// Restores the power; the rules then know only the bytes (K2).
    pub fn power_cycle(&mut self) {
        self.faults.power_cycle();
        self.blocks.fill(None);
        self.remembered.forget();
    }

    fn save(&self, closing: side::Closing) -> Result<(), OpenDeviceError> {
        self.storage.require_process()?;
        let side = Side {
            bad: self.bad.clone(),
            erase_counts: self.erase_counts.clone(),
            programs: self.remembered.programs_with(&self.blocks),
        };
        side.save(&self.side_path, &self.profile, closing)
    }

    fn data_offset(&self, page: PhysicalPage) -> u64 {
        let geometry = &self.profile.geometry;
        let stride = u64::from(geometry.page_size) + u64::from(geometry.spare_size);
        stride * u64::from(page.number())
    }

    fn spare_offset(&self, page: PhysicalPage) -> u64 {
        self.data_offset(page) + u64::from(self.profile.geometry.page_size)
    }

    fn powered(&self) -> Result<(), NandError> {
        if self.faults.is_off() { Err(NandError::PowerOff) } else { Ok(()) }
    }

    fn writable(&self) -> Result<(), NandError> {
        self.powered()?;
        if self.poisoned { Err(NandError::SyncFailed) } else { Ok(()) }
    }

    fn done(&self) -> Completion {
        Completion { end_ns: self.storage.now_ns(), corrected_bits_max: 0 }
    }

    /// State of a block, derived from its bytes on first touch.
    fn state(&mut self, block: BlockIndex) -> Result<&mut BlockState, NandError> {
        let index = block.0 as usize;
        if self.blocks.get(index).is_some_and(Option::is_none) {
            let state = self.derive(block)?;
            self.blocks[index] = Some(state);
        }
        let state = self.blocks.get_mut(index).and_then(Option::as_mut);
        state.ok_or(NandError::Host { errno: EINVAL })
    }

    /// State of a block as its bytes and the side file show it (K2).
    fn derive(&mut self, block: BlockIndex) -> Result<BlockState, NandError> {
        let geometry = self.profile.geometry;
        let stride = (geometry.page_size + geometry.spare_size) as usize;
        let first = geometry.page(block, 0).ok_or(NandError::Host { errno: EINVAL })?;
        let mut bytes = vec![0; stride * geometry.pages_per_block as usize];
        self.storage.read_at(self.data_offset(first), &mut bytes)?;
        let mut state = BlockState { pages: Vec::new(), frontier: 0 };
        for (index, page) in (0..).zip(bytes.chunks(stride)) {
            let (data, spare) = page.split_at(geometry.page_size as usize);
            let derived = self.rules.derive(data, spare);
            let page = self.remembered.recall(block, index, derived);
            state.pages.push(page);
            if !page.is_erased() {
                state.frontier = index + 1;
            }
        }
        Ok(state)
    }

    fn judge(&mut self, page: PhysicalPage, part: &ProgramPart<'_>) -> Result<Judged, NandError> {
        let geometry = self.profile.geometry;
        let block = geometry.block_of(page);
        let broken = |rule| NandError::Rule { page, rule };
        match self.bad.get(block.0 as usize) {
            None => return Err(broken(FlashRule::Alignment)),
            Some(true) => return Err(broken(FlashRule::BadBlock)),
            Some(false) => {}
        }
        let index = geometry.index_in_block(page);
        let state = self.state(block)?;
        let (before, frontier) = (state.pages[index as usize], state.frontier);
        let mut spare = vec![0xFF; geometry.spare_size as usize];
        if !before.is_erased() && !spare.is_empty() {
            self.storage.read_at(self.spare_offset(page), &mut spare)?;
        }
        let span = self.rules.judge(index, before, frontier, part, &spare).map_err(broken)?;
        Ok(Judged { span, again: !before.is_erased(), spare })
    }

    /// Stores a program: the spare bytes are combined with `spare_now`.
    fn store(
        &mut self,
        page: PhysicalPage,
        judged: &Judged,
        part: &ProgramPart<'_>,
    ) -> Result<(), NandError> {
        let geometry = self.profile.geometry;
        let mut spare = judged.spare.clone();
        for (cell, byte) in spare.iter_mut().skip(part.spare_offset as usize).zip(part.spare) {
            *cell &= byte;
        }
        if part.data.len() == geometry.page_size as usize && !part.spare.is_empty() {
            // One write, so that a kill does not come between data and spare.
            self.storage.write_at(self.data_offset(page), &[part.data, &spare].concat())?;
        } else {
            let offset = self.data_offset(page) + u64::from(part.data_offset);
            self.write(offset, part.data)?;
            let touched = if part.spare.is_empty() { &[][..] } else { &spare };
            self.write(self.spare_offset(page), touched)?;
        }
        let index = geometry.index_in_block(page);
        let state = self.state(geometry.block_of(page))?;
        state.pages[index as usize] = judged.span.after;
        state.frontier = state.frontier.max(index + 1);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), NandError> {
        if !bytes.is_empty() {
            self.storage.write_at(offset, bytes)?;
        }
        Ok(())
    }

    /// Ends a program that was cut short or failed.
    fn end_program(
        &mut self,
        page: PhysicalPage,
        judged: &Judged,
        part: &ProgramPart<'_>,
        ending: Ending,
    ) -> Result<(), NandError> {
        let word_size = self.rules.word_size() as usize;
        let (mut data, mut spare) = (part.data.to_vec(), part.spare.to_vec());
        match ending {
            Ending::Untouched => return Ok(()),
            Ending::Complete => {}
            Ending::Torn { units } => {
                let size = usize::from(units) * word_size;
                if size <= data.len() {
                    spare.fill(0xFF);
                }
                data.iter_mut().skip(size).for_each(|byte| *byte = 0xFF);
            }
            Ending::SpareOnly => data.fill(0xFF),
            _ => {
                let mut draw = Draw::new(self.faults.seed(), 3);
                data.iter_mut().chain(&mut spare).for_each(|byte| *byte |= draw.bits() as u8);
            }
        }
        self.store(page, judged, &ProgramPart { data: &data, spare: &spare, ..*part })
    }

    /// Sets the bytes of a block to `0xFF`, or page by page to the content that an ending leaves.
    fn clear(&mut self, block: BlockIndex, ending: Ending) -> Result<(), NandError> {
        let geometry = self.profile.geometry;
        if ending == Ending::Untouched {
            return Ok(());
        }
        let count = &mut self.erase_counts[block.0 as usize];
        *count = count.saturating_add(1);
        let first = geometry.page(block, 0).ok_or(NandError::Host { errno: EINVAL })?;
        let stride = (geometry.page_size + geometry.spare_size) as usize;
        let mut bytes = vec![0xFF; stride * geometry.pages_per_block as usize];
        if ending == Ending::PartlyErased {
            self.storage.read_at(self.data_offset(first), &mut bytes)?;
            let mut draw = Draw::new(self.faults.seed(), 5);
            for page in bytes.chunks_mut(stride) {
                match draw.below(3) {
                    0 => {}
                    1 => page.fill(0xFF),
                    _ => {
                        draw.fill(page);
                        // Garbage must not look like a bad-block mark.
                        let spare = page.iter_mut().skip(geometry.page_size as usize);
                        if let Some(mark_at) = mark_of(&self.profile) {
                            spare.skip(mark_at as usize).take(1).for_each(ones);
                        }
                    }
                }
            }
        }
        self.storage.write_at(self.data_offset(first), &bytes)?;
        self.remembered.erase(block);
        self.blocks[block.0 as usize] = None;
        Ok(())
    }

    fn known(&self, block: BlockIndex) -> Result<PhysicalPage, NandError> {
        let first = self.profile.geometry.page(block, 0);
        first.ok_or(NandError::Host { errno: EINVAL })
    }
}

/// Byte of the spare area that marks a bad block (K4).
fn mark_of(profile: &Profile) -> Option<u64> {
    let usual = bad_mark_offset(profile.geometry.page_size);
    let rules = profile.device_capabilities();
    let is_used = |range: SpareRange| usual.wrapping_sub(range.offset) < range.size;
    let offset = if is_used(rules.spare_raw) || is_used(rules.spare_covered) { 0 } else { usual };
    (offset < profile.geometry.spare_size).then_some(offset.into())
}

/// A program found legal, with the facts needed to store it.
struct Judged {
    span: Span,
    again: bool,
    spare: Vec<u8>,
}

/// `EINVAL` on every Unix: a block address outside the device.
const EINVAL: i32 = 22;

const fn ones(byte: &mut u8) {
    *byte = 0xFF;
}

impl Nand for ImageNand {
    fn geometry(&self) -> Geometry {
        self.profile.geometry
    }

    fn capabilities(&self) -> Capabilities {
        self.profile.device_capabilities()
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        self.powered()?;
        let words = self.rules.words_of(part.data_offset, part.data.len());
        let inside = page.number() < self.profile.geometry.page_count();
        if words.is_none() || !inside || !self.rules.is_spare(part.spare_offset, part.spare.len()) {
            return Err(NandError::Rule { page, rule: FlashRule::Alignment });
        }
        if part.data.is_empty() && part.spare.is_empty() {
            return Ok(self.done());
        }
        self.counters.page_reads += 1;
        self.counters.bytes_read += (part.data.len() + part.spare.len()) as u64;
        let data_offset = self.data_offset(page) + u64::from(part.data_offset);
        let spare_offset = self.spare_offset(page) + u64::from(part.spare_offset);
        for (offset, target) in [(data_offset, part.data), (spare_offset, part.spare)] {
            if !target.is_empty() {
                match self.storage.read_at(offset, target) {
                    Err(error) if error.is_unreadable() => {
                        return Err(NandError::Uncorrectable { page });
                    }
                    read => read?,
                };
            }
        }
        Ok(self.done())
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        self.writable()?;
        if part.data.is_empty() && part.spare.is_empty() {
            return Ok(self.done());
        }
        let judged = self.judge(page, &part)?;
        let kind = OperationKind::Program {
            code_words: judged.span.words.count_ones() as u8,
            spare: !part.spare.is_empty(),
            again: judged.again,
            paired: false,
        };
        match self.faults.next(kind, Some(self.profile.geometry.block_of(page))) {
            Verdict::Works => self.store(page, &judged, &part)?,
            Verdict::Ignored => {}
            Verdict::Fails => {
                self.end_program(page, &judged, &part, Ending::RandomBits)?;
                return Err(NandError::ProgramFailed { page });
            }
            Verdict::Cut(ending) => {
                self.end_program(page, &judged, &part, ending)?;
                return Err(NandError::PowerOff);
            }
        }
        self.counters.bytes_programmed += (part.data.len() + part.spare.len()) as u64;
        if part.data.len() == self.profile.geometry.page_size as usize {
            self.counters.page_programs += 1;
        } else {
            self.counters.partial_programs += 1;
        }
        Ok(self.done())
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        self.writable()?;
        let page = self.known(block)?;
        if self.bad[block.0 as usize] {
            return Err(NandError::Rule { page, rule: FlashRule::BadBlock });
        }
        match self.faults.next(OperationKind::Erase, Some(block)) {
            Verdict::Works => self.clear(block, Ending::Complete)?,
            Verdict::Ignored => {}
            Verdict::Fails => {
                self.clear(block, Ending::PartlyErased)?;
                return Err(NandError::EraseFailed { block });
            }
            Verdict::Cut(ending) => {
                self.clear(block, ending)?;
                return Err(NandError::PowerOff);
            }
        }
        self.counters.block_erases += 1;
        Ok(self.done())
    }

    fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
        let geometry = self.profile.geometry;
        let index = geometry.index_in_block(page) as usize;
        let state = self.state(geometry.block_of(page))?.pages.get(index).copied();
        Ok(self.rules.takes_spare(state.unwrap_or_default()))
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        self.powered()?;
        Ok(self.bad.get(block.0 as usize).copied().unwrap_or(true))
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        self.writable()?;
        self.known(block)?;
        let verdict = self.faults.next(OperationKind::MarkBad, Some(block));
        let ending = if let Verdict::Cut(ending) = verdict { ending } else { Ending::Complete };
        if ending != Ending::Untouched {
            self.clear(block, Ending::Complete)?;
        }
        if ending == Ending::Complete {
            let geometry = self.profile.geometry;
            self.bad[block.0 as usize] = true;
            for page in (0..2).filter_map(|index| geometry.page(block, index)) {
                if let Some(mark_at) = mark_of(&self.profile) {
                    self.storage.write_at(self.spare_offset(page) + mark_at, &[0])?;
                }
            }
            let saved = self.save(side::Closing::Open);
            saved.map_err(|_| NandError::Host { errno: crate::storage::EIO })?;
        }
        self.powered()
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        self.writable()?;
        match self.faults.next(OperationKind::Sync, None) {
            Verdict::Works | Verdict::Ignored => {}
            Verdict::Fails => {
                self.poisoned = true;
                return Err(NandError::SyncFailed);
            }
            Verdict::Cut(_) => return Err(NandError::PowerOff),
        }
        let result = self.storage.sync().map_err(NandError::from);
        self.poisoned = result == Err(NandError::SyncFailed);
        let completion = result?;
        self.counters.syncs += 1;
        Ok(completion)
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
        self.storage.now_ns()
    }

    fn advance_to(&mut self, _now_ns: u64) {}
}

impl Drop for ImageNand {
    fn drop(&mut self) {
        if !self.closed {
            // Nobody is left to tell: after a failure here the next open falls back on K2.
            let _ = self.save(side::Closing::Clean);
        }
    }
}

#[cfg(test)]
mod tests;
