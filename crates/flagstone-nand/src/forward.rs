//! References and boxes of devices are devices: `Box<dyn Nand + Send>` works wherever one is
//! expected.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::{
    BlockIndex, Capabilities, Completion, Counters, Geometry, Nand, NandError, PhysicalPage,
    ProgramPart, ReadPart, SharedNand, SsdCounters,
};

macro_rules! forward {
    ($pointer:ty) => {
        impl<N: Nand + ?Sized> Nand for $pointer {
            fn geometry(&self) -> Geometry {
                (**self).geometry()
            }
            fn capabilities(&self) -> Capabilities {
                (**self).capabilities()
            }
            fn read(
                &mut self,
                page: PhysicalPage,
                part: ReadPart<'_>,
            ) -> Result<Completion, NandError> {
                (**self).read(page, part)
            }
            fn program(
                &mut self,
                page: PhysicalPage,
                part: ProgramPart<'_>,
            ) -> Result<Completion, NandError> {
                (**self).program(page, part)
            }
            fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
                (**self).erase(block)
            }
            fn may_lack_room(&self) -> bool {
                (**self).may_lack_room()
            }
            fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
                (**self).takes_spare(page)
            }
            fn trim(&mut self, first: PhysicalPage, count: u32) {
                (**self).trim(first, count);
            }
            fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
                (**self).is_bad(block)
            }
            fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
                (**self).mark_bad(block)
            }
            fn sync(&mut self) -> Result<Completion, NandError> {
                (**self).sync()
            }
            fn present_blocks(&self) -> u32 {
                (**self).present_blocks()
            }
            fn extend(&mut self, block_count: u32) -> Result<(), NandError> {
                (**self).extend(block_count)
            }
            fn begin_program(
                &mut self,
                page: PhysicalPage,
                part: &ProgramPart<'_>,
            ) -> Result<bool, NandError> {
                (**self).begin_program(page, part)
            }
            fn shared(&self) -> Option<Arc<dyn SharedNand>> {
                (**self).shared()
            }
            fn erase_count(&self, block: BlockIndex) -> u32 {
                (**self).erase_count(block)
            }
            fn counters(&self) -> Counters {
                (**self).counters()
            }
            fn translation(&self) -> Option<SsdCounters> {
                (**self).translation()
            }
            fn reset_counters(&mut self) {
                (**self).reset_counters();
            }
            fn now_ns(&self) -> u64 {
                (**self).now_ns()
            }
            fn advance_to(&mut self, now_ns: u64) {
                (**self).advance_to(now_ns);
            }
            fn resume_at(&mut self, now_ns: u64) {
                (**self).resume_at(now_ns);
            }
        }
    };
}

forward!(Box<N>);
forward!(&mut N);
