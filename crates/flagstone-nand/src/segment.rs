//! A file or block device as a flash device: big segments are the blocks.
//!
//! Owns the placement of segments behind the head ([`head`]), and the rules as far as one session can know
//! them. Never trusts a write that no sync covered.
//!
//! - **G1** An erase writes nothing: old bytes stay readable until they are programmed over, in
//!   this session and after. A page that reads as valid may be stale, so upper floors number the
//!   generations of a segment (rule D10). A new file reads as zeros, not as `0xFF`.
//! - **G2** Nothing since the last sync is durable; a failed sync ends all writing (rule D10).
//! - **G3** Pages that this session has neither programmed nor erased may be programmed once.
//! - **G4** A sector that was programmed keeps its bytes until its segment is erased.
//! - **G5** A file that grows has as many segments as lie whole in it. New ones read as zeros, after a cut
//!   too; bytes behind the last whole segment count for nothing and are written over.
//! - **G6** Where the host has no room for more segments nothing has changed.
//! - **G7** Room for every write was made sure of in this session: with all of the file where it has no
//!   holes, else with its segment, before the segment is erased or written to. Discarded pages read as zeros
//!   or as before, page by page. A growth makes sure of room for the whole file: a file does not grow into
//!   room that it will want back.
//! - **G8** Where the host moves rewrites elsewhere, an erase gives the segment's room back and gets it anew,
//!   for one write of each page. A page that is written in parts may lack room for all but the first. Nothing
//!   is discarded there.

use std::sync::Arc;

use self::head::Head;
use self::rooms::Rooms;
use self::shared::Shared;
use crate::mix::mix;
use crate::rules::{PageState, Rules, Span};
use crate::storage::{SimStorage, Storage};
use crate::{
    BlockIndex, Capabilities, CellMode, CodeWord, Completion, Counters, Crashable, FaultPlan,
    FlashRule, Geometry, Nand, NandError, OperationKind, PartialCut, PhysicalPage, ProgramOrder,
    ProgramPart, ReadPart, SharedNand, SpareRange,
};

pub(crate) mod head;
mod open;
mod rooms;
mod shared;

pub(crate) use self::head::{begins_like_ours, is_ours};
pub use self::open::Extent;

const SECTOR_SIZE: u32 = 512;
const EINVAL: i32 = 22;

/// Capabilities of a file: profile `segment-file`.
#[must_use]
pub(crate) const fn capabilities() -> Capabilities {
    Capabilities {
        programs_data: 1,
        programs_spare: 0,
        first_program_order: ProgramOrder::Any,
        reprogram_order: ProgramOrder::Any,
        cell_mode: CellMode::File,
        code_word: CodeWord { data_size: SECTOR_SIZE, strength: 0 },
        spare_raw: SpareRange { offset: 0, size: 0 },
        spare_covered: SpareRange { offset: 0, size: 0 },
        partial_cut: PartialCut::Isolated,
        endurance: u32::MAX,
        rewrite_tail: true,
        needs_sync: true,
    }
}

/// Pages that a file which grows can have: 1 TiB of 4 KiB each. The memory of a mount for pages that do not
/// exist yet stays small.
const GROWING_PAGES_MAX: u32 = 1 << 28;

/// A device on a file, a block device or simulated storage.
#[derive(Clone, Debug)]
pub struct SegmentFile<S> {
    storage: S,
    head: Head,
    geometry: Geometry,
    capabilities: Capabilities,
    rules: Rules,
    head_size: u64,
    /// Segments that are there (G5).
    present: u32,
    bad: Vec<u8>,
    pages: Vec<PageState>,
    /// The host takes no discards.
    keeps_all: bool,
    /// Which segments have room on the host, as far as is known (G7).
    rooms: Rooms,
    erase_counts: Vec<u32>,
    counters: Counters,
    poisoned: bool,
    shared: Option<Arc<Shared>>,
}

impl<S: Storage> SegmentFile<S> {
    /// Promises of the host to former owners of the file are unknown; so is the room of a file where the host
    /// does not tell holes.
    fn forget_rooms(&mut self) {
        let is_sure = self.storage.has_holes().is_ok_and(|has_holes| !has_holes);
        self.rooms.set_all(is_sure && !self.storage.moves_rewrites());
    }

    /// Takes note that `block_count` segments are there.
    fn set_present(&mut self, block_count: u32) {
        self.present = block_count;
        let page_count = block_count as usize * self.geometry.pages_per_block as usize;
        self.pages.resize(page_count, PageState::default());
        self.rooms.resize(block_count as usize);
        self.erase_counts.resize(block_count as usize, 0);
    }

    /// The storage below.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// Gives the storage back.
    pub fn into_storage(self) -> S {
        self.storage
    }

    fn offset_of(&self, page: PhysicalPage) -> u64 {
        self.head_size + u64::from(page.number()) * u64::from(self.geometry.page_size)
    }

    fn is_marked(&self, block: BlockIndex) -> bool {
        let (at, bit) = Head::place_of(block);
        self.bad.get(at).is_none_or(|byte| byte & bit != 0)
    }

    fn writable(&self) -> Result<(), NandError> {
        let is_poisoned = self.poisoned || self.shared.as_ref().is_some_and(|it| it.is_poisoned());
        if is_poisoned { Err(NandError::SyncFailed) } else { Ok(()) }
    }

    fn judge(&mut self, page: PhysicalPage, part: &ProgramPart<'_>) -> Result<Span, NandError> {
        let broken = |rule| NandError::Rule { page, rule };
        if self.is_marked(self.geometry.block_of(page)) {
            return Err(broken(FlashRule::BadBlock));
        }
        let state = self.pages.get(page.number() as usize).copied();
        let state = state.ok_or(broken(FlashRule::Alignment))?;
        let index = self.geometry.index_in_block(page);
        let span = self.rules.judge(index, state, 0, part, &[]).map_err(broken)?;
        if span.rewritten != 0 && !self.keeps_bytes(page, &span, part)? {
            return Err(broken(FlashRule::CodeWordReuse));
        }
        self.ensure_room(self.geometry.block_of(page))?;
        Ok(span)
    }

    /// Makes sure of room for writes to a segment; its content stays (G7).
    fn ensure_room(&mut self, block: BlockIndex) -> Result<(), NandError> {
        let segment = block.0 as usize;
        if !self.rooms.has(segment) {
            let size = self.geometry.block_size();
            self.storage.reserve(self.head_size + u64::from(block.0) * size, size)?;
            self.rooms.set(segment, true);
        }
        Ok(())
    }

    /// Makes sure of room for a segment whose content is not needed (G8).
    fn renew_room(&mut self, block: BlockIndex) -> Result<(), NandError> {
        if !self.storage.moves_rewrites() {
            return self.ensure_room(block);
        }
        let (segment, size) = (block.0 as usize, self.geometry.block_size());
        self.rooms.set(segment, false);
        self.storage.renew(self.head_size + u64::from(block.0) * size, size)?;
        self.rooms.set(segment, true);
        Ok(())
    }

    /// Whether rewritten sectors keep their bytes (G4).
    fn keeps_bytes(
        &mut self,
        page: PhysicalPage,
        span: &Span,
        part: &ProgramPart<'_>,
    ) -> Result<bool, NandError> {
        let mut old = vec![0; part.data.len()];
        self.storage.read_at(self.offset_of(page) + u64::from(part.data_offset), &mut old)?;
        let size = SECTOR_SIZE as usize;
        let first = part.data_offset as usize / size;
        let pairs = part.data.chunks(size).zip(old.chunks(size)).enumerate();
        let kept = |(index, (new, old)): (usize, (&[u8], &[u8]))| {
            span.rewritten >> (first + index) & 1 == 0 || new == old
        };
        Ok(pairs.into_iter().all(kept))
    }

    fn programmed(&mut self, page: PhysicalPage, span: &Span, size: usize) {
        self.pages[page.number() as usize] = span.after;
        self.counters.bytes_programmed += size as u64;
        if span.words == self.rules.all_words() && span.rewritten == 0 {
            self.counters.page_programs += 1;
        } else {
            self.counters.partial_programs += 1;
        }
    }

    fn idle(&self) -> Completion {
        Completion { end_ns: self.storage.now_ns(), corrected_bits_max: 0 }
    }
}

impl<S: Storage> Nand for SegmentFile<S> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        let words = self.rules.words_of(part.data_offset, part.data.len());
        let inside = page.number() < self.geometry.page_count();
        if inside && page.number() as usize >= self.pages.len() {
            return Err(NandError::Uncorrectable { page });
        }
        if words.is_none() || !inside || !self.rules.is_spare(part.spare_offset, part.spare.len()) {
            return Err(NandError::Rule { page, rule: FlashRule::Alignment });
        }
        if part.data.is_empty() {
            return Ok(self.idle());
        }
        self.counters.page_reads += 1;
        self.counters.bytes_read += part.data.len() as u64;
        let offset = self.offset_of(page) + u64::from(part.data_offset);
        match self.storage.read_at(offset, part.data) {
            Err(error) if error.is_unreadable() => Err(NandError::Uncorrectable { page }),
            read => Ok(read?),
        }
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        self.writable()?;
        if part.data.is_empty() && part.spare.is_empty() {
            return Ok(self.idle());
        }
        let span = self.judge(page, &part)?;
        let offset = self.offset_of(page) + u64::from(part.data_offset);
        let completion = self.storage.write_at(offset, part.data)?;
        self.programmed(page, &span, part.data.len());
        Ok(completion)
    }

    fn begin_program(
        &mut self,
        page: PhysicalPage,
        part: &ProgramPart<'_>,
    ) -> Result<bool, NandError> {
        self.writable()?;
        if self.shared.is_none() || part.data.is_empty() {
            return Ok(false);
        }
        let span = self.judge(page, part)?;
        let offset = self.offset_of(page) + u64::from(part.data_offset);
        self.storage.begin_write(offset, part.data.len());
        self.programmed(page, &span, part.data.len());
        Ok(true)
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        self.writable()?;
        let first = self.geometry.page(block, 0).ok_or(NandError::Host { errno: EINVAL })?;
        if block.0 >= self.present {
            return Err(NandError::Host { errno: EINVAL });
        }
        if self.is_marked(block) {
            return Err(NandError::Rule { page: first, rule: FlashRule::BadBlock });
        }
        // A device without power must not pretend to erase.
        self.storage.size()?;
        self.renew_room(block)?;
        let start = first.number() as usize;
        let pages = start..start + self.geometry.pages_per_block as usize;
        self.pages[pages].fill(PageState::default());
        let count = &mut self.erase_counts[block.0 as usize];
        *count = count.saturating_add(1);
        self.counters.block_erases += 1;
        Ok(self.idle())
    }

    /// Whole segments are given back to the host (G7): smaller pieces cost more than they bring.
    fn trim(&mut self, first: PhysicalPage, count: u32) {
        let pages_per_block = self.geometry.pages_per_block;
        let begin = first.number().next_multiple_of(pages_per_block);
        let end = first.number().saturating_add(count).min(self.pages.len() as u32);
        let end = end - end % pages_per_block;
        let Some(begin) = self.geometry.page_from_number(begin).filter(|at| at.number() < end)
        else {
            return;
        };
        // Where rewrites move, room that was given back is lost to the host's notes about them.
        if self.keeps_all || self.storage.moves_rewrites() || self.writable().is_err() {
            return;
        }
        let size = u64::from(end - begin.number()) * u64::from(self.geometry.page_size);
        match self.storage.discard(self.offset_of(begin), size) {
            Ok(()) => {
                self.counters.bytes_discarded += size;
                let per_block = pages_per_block as usize;
                let segments = begin.number() as usize / per_block..end as usize / per_block;
                segments.for_each(|segment| self.rooms.set(segment, false));
            }
            // Keeping the room is as good.
            Err(_) => self.keeps_all = true,
        }
    }

    fn may_lack_room(&self) -> bool {
        self.rooms.lacking > 0 || self.storage.moves_rewrites()
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        self.storage.size()?;
        Ok(self.is_marked(block))
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        self.writable()?;
        if !self.rooms.head {
            self.storage.reserve(0, self.head_size)?;
            self.rooms.head = true;
        }
        let (at, bit) = Head::place_of(block);
        *self.bad.get_mut(at).ok_or(NandError::Host { errno: EINVAL })? |= bit;
        let (sector, places) = self.head.marks_of(&self.bad, block);
        for place in places {
            self.storage.write_at(place, &sector)?;
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        self.writable()?;
        if let Some(shared) = &self.shared {
            // In turn with the syncs of other threads, which are counted with the device's own.
            SharedNand::sync(&**shared)?;
            return Ok(Completion { end_ns: self.now_ns(), corrected_bits_max: 0 });
        }
        let result = self.storage.sync().map_err(NandError::from);
        self.poisoned = result == Err(NandError::SyncFailed);
        let completion = result?;
        self.counters.syncs += 1;
        Ok(completion)
    }

    fn present_blocks(&self) -> u32 {
        self.present
    }

    fn extend(&mut self, block_count: u32) -> Result<(), NandError> {
        self.writable()?;
        if block_count <= self.present {
            return Ok(());
        }
        if block_count > self.geometry.block_count {
            return Err(NandError::NoSpace);
        }
        // From the end of the last segment that is there: the file may be longer (G5).
        let (from, to) = (self.head.size_of(self.present), self.head.size_of(block_count));
        if self.rooms.lacking > 0 {
            self.storage.reserve(self.head_size, from - self.head_size)?;
            if !self.storage.moves_rewrites() {
                self.rooms.set_all(true);
            }
        }
        self.storage.extend(from, to)?;
        self.sync()?;
        self.set_present(block_count);
        Ok(())
    }

    fn erase_count(&self, block: BlockIndex) -> u32 {
        self.erase_counts.get(block.0 as usize).copied().unwrap_or(0)
    }

    fn shared(&self) -> Option<Arc<dyn SharedNand>> {
        let shared: Arc<dyn SharedNand> = Arc::clone(self.shared.as_ref()?) as _;
        Some(shared)
    }

    fn counters(&self) -> Counters {
        let mut counters = self.counters;
        if let Some(shared) = &self.shared {
            shared.add_to(&mut counters);
        }
        counters
    }

    fn reset_counters(&mut self) {
        self.counters = Counters::default();
        if let Some(shared) = &self.shared {
            shared.reset_counters();
        }
    }

    fn now_ns(&self) -> u64 {
        self.storage.now_ns()
    }

    fn advance_to(&mut self, now_ns: u64) {
        self.storage.advance_to(now_ns);
    }
}

impl Crashable for SegmentFile<SimStorage> {
    fn set_plan(&mut self, plan: FaultPlan) {
        self.storage.set_plan(plan);
    }

    fn operation_count(&self) -> u64 {
        self.storage.operation_count()
    }

    fn record_operations(&mut self) {
        self.storage.record_operations();
    }

    fn operation_kind(&self, number: u64) -> Option<OperationKind> {
        self.storage.operation_kind(number)
    }

    fn is_off(&self) -> bool {
        self.storage.is_off()
    }

    /// As if another process opened the file: knowledge of this session alone is forgotten (G3).
    fn power_cycle(&mut self) {
        self.storage.power_cycle();
        let size = self.storage.size().unwrap_or(0);
        self.set_present(self.head.present_in(size));
        self.forget_rooms();
        self.pages.fill(PageState::default());
        self.erase_counts.fill(0);
        self.poisoned = false;
        self.bad = self.head.load_marks(&mut self.storage, &mut Vec::new());
    }

    fn state_hash(&self) -> u64 {
        mix(self.storage.state_hash(), u64::from(self.poisoned))
    }

    fn trace_hash(&self) -> u64 {
        self.storage.trace_hash()
    }
}

#[cfg(test)]
mod tests;
