//! References and boxes of devices are devices, and so is a device of any kind, [`AnyNand`].

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::{
    AnyNand, BlockIndex, Capabilities, Completion, Counters, Geometry, Nand, NandError,
    PhysicalPage, ProgramPart, ReadPart, SharedNand, SsdCounters,
};

macro_rules! forward {
    ([$($generics:tt)*] $pointer:ty, $this:ident => $device:expr) => {
        impl<$($generics)*> Nand for $pointer {
            fn geometry(&self) -> Geometry {
                let $this = self;
                $device.geometry()
            }
            fn capabilities(&self) -> Capabilities {
                let $this = self;
                $device.capabilities()
            }
            fn read(
                &mut self,
                page: PhysicalPage,
                part: ReadPart<'_>,
            ) -> Result<Completion, NandError> {
                let $this = self;
                $device.read(page, part)
            }
            fn program(
                &mut self,
                page: PhysicalPage,
                part: ProgramPart<'_>,
            ) -> Result<Completion, NandError> {
                let $this = self;
                $device.program(page, part)
            }
            fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
                let $this = self;
                $device.erase(block)
            }
            fn may_lack_room(&self) -> bool {
                let $this = self;
                $device.may_lack_room()
            }
            fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
                let $this = self;
                $device.takes_spare(page)
            }
            fn trim(&mut self, first: PhysicalPage, count: u32) {
                let $this = self;
                $device.trim(first, count);
            }
            fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
                let $this = self;
                $device.is_bad(block)
            }
            fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
                let $this = self;
                $device.mark_bad(block)
            }
            fn sync(&mut self) -> Result<Completion, NandError> {
                let $this = self;
                $device.sync()
            }
            fn present_blocks(&self) -> u32 {
                let $this = self;
                $device.present_blocks()
            }
            fn extend(&mut self, block_count: u32) -> Result<(), NandError> {
                let $this = self;
                $device.extend(block_count)
            }
            fn begin_program(
                &mut self,
                page: PhysicalPage,
                part: &ProgramPart<'_>,
            ) -> Result<bool, NandError> {
                let $this = self;
                $device.begin_program(page, part)
            }
            fn shared(&self) -> Option<Arc<dyn SharedNand>> {
                let $this = self;
                $device.shared()
            }
            fn erase_count(&self, block: BlockIndex) -> u32 {
                let $this = self;
                $device.erase_count(block)
            }
            fn counters(&self) -> Counters {
                let $this = self;
                $device.counters()
            }
            fn translation(&self) -> Option<SsdCounters> {
                let $this = self;
                $device.translation()
            }
            fn reset_counters(&mut self) {
                let $this = self;
                $device.reset_counters();
            }
            fn now_ns(&self) -> u64 {
                let $this = self;
                $device.now_ns()
            }
            fn advance_to(&mut self, now_ns: u64) {
                let $this = self;
                $device.advance_to(now_ns);
            }
            fn resume_at(&mut self, now_ns: u64) {
                let $this = self;
                $device.resume_at(now_ns);
            }
        }
    };
}

forward!([N: Nand + ?Sized] Box<N>, device => (**device));
forward!([N: Nand + ?Sized] &mut N, device => (**device));
forward!([] AnyNand, device => device.0);
