//! A device that asks a hook before each call.

use std::fmt;
use std::sync::Arc;

use flagstone_nand::{
    BlockIndex, Capabilities, Completion, Counters, Geometry, Nand, NandError, PhysicalPage,
    ProgramPart, ReadPart,
};

/// The call that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Read(PhysicalPage),
    Program(PhysicalPage),
    Erase(BlockIndex),
    MarkBad(BlockIndex),
    Sync,
}

/// Says whether the call may be made.
pub(crate) type Hook = Arc<dyn Fn(Call) -> Result<(), NandError> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Hooked<D> {
    pub(crate) device: D,
    pub(crate) hook: Hook,
}

impl<D: fmt::Debug> fmt::Debug for Hooked<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.device.fmt(formatter)
    }
}

impl<D: Nand> Nand for Hooked<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        (self.hook)(Call::Read(page))?;
        self.device.read(page, part)
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        (self.hook)(Call::Program(page))?;
        self.device.program(page, part)
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        (self.hook)(Call::Erase(block))?;
        self.device.erase(block)
    }

    fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
        self.device.takes_spare(page)
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        self.device.is_bad(block)
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        (self.hook)(Call::MarkBad(block))?;
        self.device.mark_bad(block)
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        (self.hook)(Call::Sync)?;
        self.device.sync()
    }

    fn may_lack_room(&self) -> bool {
        self.device.may_lack_room()
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

    fn reset_counters(&mut self) {
        self.device.reset_counters();
    }

    fn now_ns(&self) -> u64 {
        self.device.now_ns()
    }

    fn advance_to(&mut self, now_ns: u64) {
        self.device.advance_to(now_ns);
    }
}
