//! ECC of our own, for chips that are reached byte by byte: code words in data and spare area.
//!
//! Owns the code words of such a chip: their parity, its place, and the repairs of a read. Never decides when
//! anything is programmed; rules of flash are the chip's.
//!
//! - **E1** A code word is programmed once, together with its parity, by one program. Words of a page are
//!   independent, so that a page takes as many programs as the chip allows, each of any words.
//! - **E2** A word that was never programmed is a code word: up to `strength` of its bits may have flipped,
//!   and it reads as erased.
//! - **E3** Data is returned only if every word of it is a code word or was repaired; else
//!   `Uncorrectable`.
//! - **E4** Raw spare bytes are the bytes that the layout leaves, outside every code word. A program that
//!   touches any other spare byte is refused.
//! - **E5** On a profile whose ECC is the device's, everything goes to the device unchanged.

mod bch;
mod field;
mod layout;
#[cfg(feature = "std")]
mod survey;
#[cfg(test)]
mod tests;

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::profile::{Inconsistency, ProfileError};
use crate::rules::Rules;
use crate::{
    BlockIndex, Capabilities, Completion, Counters, Crashable, EccOwner, FaultPlan, FlashRule,
    Geometry, Nand, NandError, OperationKind, PhysicalPage, Profile, ProgramPart, ReadPart,
    SharedNand, SimNand, SpareRange, SsdCounters,
};
use bch::STRENGTH_MAX;

pub(crate) use bch::Bch;
#[cfg(feature = "std")]
pub(crate) use layout::bad_mark_offset;
pub(crate) use layout::{Layout, programmable};
#[cfg(feature = "std")]
pub(crate) use survey::{Carried, survey};

/// Most bytes of parity of a code word.
const PARITY_SIZE_MAX: usize = 15 * STRENGTH_MAX as usize / 8;

/// A device whose ECC is ours, where its profile says so.
#[derive(Clone, Debug)]
pub struct EccNand<D> {
    device: D,
    code: Option<Code>,
}

/// The code words of a device.
#[derive(Clone, Debug)]
struct Code {
    bch: Arc<Bch>,
    layout: Layout,
    capabilities: Capabilities,
    rules: Rules,
    corrected_bits: u64,
    /// Spare bytes of a page on their way.
    spare: Vec<u8>,
}

impl<D: Nand> EccNand<D> {
    /// Puts the ECC of `profile` in front of a device that was made with it.
    ///
    /// # Errors
    ///
    /// `Inconsistent` when the code words do not fit the device's pages.
    pub fn new(device: D, profile: &Profile) -> Result<Self, ProfileError> {
        if profile.ecc == EccOwner::Device {
            return Ok(Self { device, code: None });
        }
        let geometry = device.geometry();
        let code = Code::new(geometry, profile.capabilities, device.capabilities());
        let code = code.ok_or(ProfileError::Inconsistent(Inconsistency::Ecc))?;
        Ok(Self { device, code: Some(code) })
    }

    /// The device.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// The device, past the ECC.
    pub const fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Gives the device back.
    pub fn into_device(self) -> D {
        self.device
    }
}

impl EccNand<SimNand> {
    /// An erased simulated chip, with the ECC that its profile names.
    ///
    /// # Errors
    ///
    /// As [`EccNand::new`].
    pub fn simulated(profile: &Profile, seed: u64) -> Result<Self, ProfileError> {
        Self::new(SimNand::new(profile, seed), profile)
    }
}

impl Code {
    fn new(geometry: Geometry, asked: Capabilities, chip: Capabilities) -> Option<Self> {
        let layout = Layout::new(&geometry, asked.code_word)?;
        let bch = Bch::new(layout.word.data_size as usize, layout.word.strength)?;
        assert_eq!(
            bch.parity_size(),
            layout.parity_size as usize,
            "the layout has room for parity"
        );
        let capabilities = Capabilities {
            code_word: layout.word,
            spare_raw: asked.spare_raw,
            spare_covered: SpareRange { offset: 0, size: 0 },
            ..chip
        };
        Some(Self {
            bch: Arc::new(bch),
            layout,
            capabilities,
            rules: Rules::new(geometry, capabilities),
            corrected_bits: 0,
            spare: vec![0xFF; geometry.spare_size as usize],
        })
    }

    fn is_aligned(&self, data_offset: u32, data: &[u8], spare_offset: u32, spare: &[u8]) -> bool {
        self.rules.words_of(data_offset, data.len()).is_some()
            && self.rules.is_spare(spare_offset, spare.len())
    }

    /// Whether a run of spare bytes lies in the floor above's part (E4).
    fn is_raw(&self, offset: u32, spare: &[u8]) -> bool {
        let raw = self.capabilities.spare_raw;
        let end = offset as usize + spare.len();
        spare.is_empty() || (offset >= raw.offset && end <= (raw.offset + raw.size) as usize)
    }

    /// The code words of a run of data, by number.
    fn words<'a>(&self, offset: u32, data: &'a [u8]) -> impl Iterator<Item = (u32, &'a [u8])> {
        let size = self.layout.word.data_size;
        (offset / size..).zip(data.chunks(size as usize))
    }

    /// Spare bytes of a program: the given ones, the parity of its words, and the label with the first (Y4).
    fn compose(&mut self, part: &ProgramPart<'_>) {
        let mut spare = core::mem::take(&mut self.spare);
        spare.fill(0xFF);
        put(&mut spare, part.spare_offset as usize, part.spare);
        if part.data_offset == 0 {
            put(&mut spare, self.layout.label_offset as usize, &self.layout.label());
        }
        for (index, word) in self.words(part.data_offset, part.data) {
            let start = self.layout.parity_of(index);
            if let Some(parity) = spare.get_mut(start..start + self.layout.parity_size as usize) {
                self.bch.encode(word.iter().map(|byte| !byte), parity);
                parity.iter_mut().for_each(invert);
            }
        }
        self.spare = spare;
    }

    /// Repairs data that was read together with the whole spare area: most bits in one word (E2, E3).
    fn repair(&mut self, offset: u32, data: &mut [u8]) -> Option<u32> {
        let size = self.layout.word.data_size;
        let mut corrected_max = 0;
        for (index, word) in (offset / size..).zip(data.chunks_mut(size as usize)) {
            let mut bytes = [0; PARITY_SIZE_MAX];
            let parity = bytes.get_mut(..self.layout.parity_size as usize)?;
            parity.copy_from_slice(
                self.spare.get(self.layout.parity_of(index)..)?.get(..parity.len())?,
            );
            parity.iter_mut().for_each(invert);
            let located = self.bch.locate(word.iter().map(|byte| !byte), parity).ok()?;
            for place in located.places() {
                *word.get_mut(place / 8)? ^= 0x80 >> (place % 8);
            }
            corrected_max = corrected_max.max(located.count);
            self.corrected_bits += u64::from(located.count);
        }
        Some(corrected_max)
    }
}

const _: () = assert!(PARITY_SIZE_MAX * 8 >= 15 * STRENGTH_MAX as usize);

fn invert(byte: &mut u8) {
    *byte = !*byte;
}

fn put(target: &mut [u8], offset: usize, source: &[u8]) {
    for (byte, source) in target.iter_mut().skip(offset).zip(source) {
        *byte = *source;
    }
}

impl<D: Nand> EccNand<D> {
    fn read_words(
        &mut self,
        page: PhysicalPage,
        part: ReadPart<'_>,
    ) -> Result<Completion, NandError> {
        let ReadPart { data_offset, data, spare_offset, spare } = part;
        let Some(code) = &mut self.code else {
            return self.device.read(page, ReadPart { data_offset, data, spare_offset, spare });
        };
        if !code.is_aligned(data_offset, data, spare_offset, spare) {
            return Err(NandError::Rule { page, rule: FlashRule::Alignment });
        }
        if data.is_empty() {
            return self.device.read(page, ReadPart { data_offset, data, spare_offset, spare });
        }
        let whole = ReadPart { data_offset, data, spare_offset: 0, spare: &mut code.spare };
        let completion = self.device.read(page, whole)?;
        for (target, byte) in spare.iter_mut().zip(code.spare.iter().skip(spare_offset as usize)) {
            *target = *byte;
        }
        let corrected = code.repair(data_offset, data);
        let corrected_bits_max = corrected.ok_or(NandError::Uncorrectable { page })?;
        Ok(Completion { corrected_bits_max, ..completion })
    }

    fn program_words(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        let Some(code) = &mut self.code else { return self.device.program(page, part) };
        let ProgramPart { data_offset, data, spare_offset, spare } = part;
        let is_ours = code.is_aligned(data_offset, data, spare_offset, spare)
            && code.is_raw(spare_offset, spare);
        if !is_ours {
            return Err(NandError::Rule { page, rule: FlashRule::Alignment });
        }
        if data.is_empty() {
            return self.device.program(page, part);
        }
        code.compose(&part);
        // The bytes in front belong to the vendor (Y1).
        let spare_offset = code.layout.label_offset;
        let spare = code.spare.get(spare_offset as usize..).unwrap_or_default();
        self.device.program(page, ProgramPart { data_offset, data, spare_offset, spare })
    }
}

impl<D: Nand> Nand for EccNand<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.code.as_ref().map_or_else(|| self.device.capabilities(), |code| code.capabilities)
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        self.read_words(page, part)
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        self.program_words(page, part)
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        self.device.erase(block)
    }

    fn may_lack_room(&self) -> bool {
        self.device.may_lack_room()
    }

    fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
        self.device.takes_spare(page)
    }

    fn trim(&mut self, first: PhysicalPage, count: u32) {
        self.device.trim(first, count);
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        self.device.is_bad(block)
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        self.device.mark_bad(block)
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        self.device.sync()
    }

    fn present_blocks(&self) -> u32 {
        self.device.present_blocks()
    }

    fn extend(&mut self, block_count: u32) -> Result<(), NandError> {
        self.device.extend(block_count)
    }

    fn begin_program(
        &mut self,
        page: PhysicalPage,
        part: &ProgramPart<'_>,
    ) -> Result<bool, NandError> {
        // Programs beside this one would get past the ECC.
        if self.code.is_some() { Ok(false) } else { self.device.begin_program(page, part) }
    }

    fn shared(&self) -> Option<Arc<dyn SharedNand>> {
        // Reads beside this one would get past the ECC.
        if self.code.is_some() { None } else { self.device.shared() }
    }

    fn erase_count(&self, block: BlockIndex) -> u32 {
        self.device.erase_count(block)
    }

    fn counters(&self) -> Counters {
        let counters = self.device.counters();
        let corrected = self.code.as_ref().map_or(0, |code| code.corrected_bits);
        Counters { corrected_bits: counters.corrected_bits + corrected, ..counters }
    }

    fn translation(&self) -> Option<SsdCounters> {
        self.device.translation()
    }

    fn reset_counters(&mut self) {
        self.device.reset_counters();
        if let Some(code) = &mut self.code {
            code.corrected_bits = 0;
        }
    }

    fn now_ns(&self) -> u64 {
        self.device.now_ns()
    }

    fn advance_to(&mut self, now_ns: u64) {
        self.device.advance_to(now_ns);
    }

    fn resume_at(&mut self, now_ns: u64) {
        self.device.resume_at(now_ns);
    }
}

impl<D: Crashable> Crashable for EccNand<D> {
    fn set_plan(&mut self, plan: FaultPlan) {
        self.device.set_plan(plan);
    }

    fn operation_count(&self) -> u64 {
        self.device.operation_count()
    }

    fn record_operations(&mut self) {
        self.device.record_operations();
    }

    fn operation_kind(&self, number: u64) -> Option<OperationKind> {
        self.device.operation_kind(number)
    }

    fn is_off(&self) -> bool {
        self.device.is_off()
    }

    fn power_cycle(&mut self) {
        self.device.power_cycle();
    }

    fn state_hash(&self) -> u64 {
        self.device.state_hash()
    }

    fn trace_hash(&self) -> u64 {
        self.device.trace_hash()
    }
}
