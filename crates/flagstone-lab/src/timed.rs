//! A device that remembers when the last of its operations ends.
//!
//! Owns that one fact, which the event loop needs and a plain device does not keep. Every operation
//! goes to the inner device unchanged, and its result comes back unchanged.

use flagstone_nand::{
    BlockIndex, Capabilities, Completion, Counters, Geometry, Nand, NandError, PhysicalPage,
    ProgramPart, ReadPart, SsdCounters,
};

/// A device and the end of its latest operation.
#[derive(Debug)]
pub struct Timed<D> {
    device: D,
    end_ns_max: u64,
}

impl<D: Nand> Timed<D> {
    /// Watches `device` from now on.
    pub fn new(device: D) -> Self {
        Self { device, end_ns_max: 0 }
    }

    /// Latest end of the operations since the last call; 0 when there were none.
    pub fn take_end_ns(&mut self) -> u64 {
        std::mem::take(&mut self.end_ns_max)
    }

    /// Waits until every operation so far is done.
    pub fn come_to_rest(&mut self) {
        let end_ns = self.take_end_ns();
        self.device.advance_to(end_ns);
    }

    /// The device itself.
    pub fn inner(&self) -> &D {
        &self.device
    }

    /// The device itself, to be changed.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Ends the watch.
    pub fn into_inner(self) -> D {
        self.device
    }

    fn ended(&mut self, result: Result<Completion, NandError>) -> Result<Completion, NandError> {
        if let Ok(completion) = &result {
            self.end_ns_max = self.end_ns_max.max(completion.end_ns);
        }
        result
    }
}

impl<D: Nand> Nand for Timed<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        let result = self.device.read(page, part);
        self.ended(result)
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        let result = self.device.program(page, part);
        self.ended(result)
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        let result = self.device.erase(block);
        self.ended(result)
    }

    fn may_lack_room(&self) -> bool {
        self.device.may_lack_room()
    }

    fn trim(&mut self, first: PhysicalPage, count: u32) {
        self.device.trim(first, count);
    }

    fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
        self.device.takes_spare(page)
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        self.device.is_bad(block)
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        self.device.mark_bad(block)
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        let result = self.device.sync();
        self.ended(result)
    }

    fn present_blocks(&self) -> u32 {
        self.device.present_blocks()
    }

    fn extend(&mut self, block_count: u32) -> Result<(), NandError> {
        self.device.extend(block_count)
    }

    fn erase_count(&self, block: BlockIndex) -> u32 {
        self.device.erase_count(block)
    }

    fn counters(&self) -> Counters {
        self.device.counters()
    }

    fn translation(&self) -> Option<SsdCounters> {
        self.device.translation()
    }

    fn reset_counters(&mut self) {
        self.device.reset_counters();
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
