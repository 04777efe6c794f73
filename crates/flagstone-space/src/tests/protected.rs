//! Goal: a chip whose write protection is on loses no block to it. Method: a simulated chip that answers as
//! Linux does then: programs and erases end as on a worn block, and a mark reports the write protection.

use std::vec::Vec;

use flagstone_nand::{
    BlockIndex, Capabilities, Completion, Counters, Geometry, Nand, NandError, PhysicalPage,
    ProgramPart, ReadPart, SimNand,
};

use super::devices::{options, profile, sim};
use super::harness::REGION;
use crate::{LogicalPage, Lsn, NoOwner, Space, SpaceError, WriteTag};

#[derive(Clone, Debug)]
pub(super) struct Protectable<D = SimNand> {
    chip: D,
    is_protected: bool,
    /// Room given back to the host is gone: no block has any.
    pub(super) is_full: bool,
    /// Pages that the host has no room for, and whether that goes for all.
    pub(super) full_pages: Vec<PhysicalPage>,
    pub(super) has_no_room: bool,
    /// Programs until the host has no room for any, where it is short of room.
    programs_left: Option<u32>,
    /// Erases and marks that were refused.
    refused: (u32, u32),
}

impl Protectable {
    pub(super) fn new(is_protected: bool) -> Self {
        Self { is_protected, ..Self::over(sim(&profile("tiny"))) }
    }
}

impl<D> Protectable<D> {
    /// Over another device, without any fault.
    pub(super) fn over(chip: D) -> Self {
        let (is_protected, full_pages, has_no_room) = (false, Vec::new(), false);
        let (is_full, programs_left, refused) = (false, None, (0, 0));
        Self { chip, is_protected, is_full, full_pages, has_no_room, programs_left, refused }
    }
}

impl<D: Nand> Nand for Protectable<D> {
    fn geometry(&self) -> Geometry {
        self.chip.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.chip.capabilities()
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        self.chip.read(page, part)
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        if self.is_protected {
            return Err(NandError::ProgramFailed { page });
        }
        if self.has_no_room || self.full_pages.contains(&page) {
            return Err(NandError::NoSpace);
        }
        match &mut self.programs_left {
            Some(0) => return Err(NandError::NoSpace),
            Some(left) => *left -= 1,
            None => {}
        }
        self.chip.program(page, part)
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        if self.is_protected {
            self.refused.0 += 1;
            return Err(NandError::EraseFailed { block });
        }
        if self.is_full {
            return Err(NandError::NoSpace);
        }
        self.chip.erase(block)
    }

    fn present_blocks(&self) -> u32 {
        self.chip.present_blocks()
    }

    fn extend(&mut self, block_count: u32) -> Result<(), NandError> {
        self.chip.extend(block_count)
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        self.chip.is_bad(block)
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        if self.is_protected {
            self.refused.1 += 1;
            return Err(NandError::WriteProtected);
        }
        self.chip.mark_bad(block)
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        self.chip.sync()
    }

    fn erase_count(&self, block: BlockIndex) -> u32 {
        self.chip.erase_count(block)
    }

    fn counters(&self) -> Counters {
        self.chip.counters()
    }

    fn reset_counters(&mut self) {
        self.chip.reset_counters();
    }

    fn now_ns(&self) -> u64 {
        self.chip.now_ns()
    }

    fn advance_to(&mut self, now_ns: u64) {
        self.chip.advance_to(now_ns);
    }
}

fn write(space: &mut Space<Protectable>, value: u8) -> Result<(), SpaceError> {
    space.ensure_room(1, &mut NoOwner)?;
    space.write(LogicalPage(0), &[value; 4], &WriteTag::data(Lsn(1), REGION)).map(drop)
}

fn value(space: &mut Space<Protectable>) -> u8 {
    let mut read = Vec::new();
    space.read(LogicalPage(0), &mut read).unwrap();
    read[0]
}

#[test]
fn a_protected_chip_is_named_at_the_first_mark_and_keeps_its_blocks() {
    let mut space = Space::format(Protectable::new(false), &options()).unwrap();
    write(&mut space, 7).unwrap();
    space.checkpoint(b"").unwrap();
    space.device_mut().is_protected = true;
    let refused = Err(SpaceError::Device(NandError::WriteProtected));
    assert_eq!(write(&mut space, 8), refused);
    assert_eq!(space.device().refused, (1, 1), "one attempt, whatever number of blocks is free");
    assert_eq!(write(&mut space, 8), Err(SpaceError::Poisoned));
    assert_eq!(value(&mut space), 7);

    let mut device = space.into_device();
    device.is_protected = false;
    let mut space = Space::mount(device).unwrap().0;
    assert_eq!(space.stats().bad_blocks, 0);
    write(&mut space, 9).unwrap();
    assert_eq!(value(&mut space), 9);
}

#[test]
fn a_protected_chip_gets_no_space() {
    let formatted = Space::format(Protectable::new(true), &options());
    assert_eq!(formatted.map(drop), Err(SpaceError::Device(NandError::WriteProtected)));
}

/// Goal (A2): a host that is full keeps the newest record, however often the next one is tried. Method: checkpoints for
/// which the host has room for some programs alone, time and again; then a mount, and room again.
#[test]
fn a_full_host_keeps_the_newest_record() {
    let mut refused = 0;
    for programs in 0..12 {
        let mut space = Space::format(Protectable::new(false), &options()).unwrap();
        write(&mut space, 7).unwrap();
        space.checkpoint(b"kept").unwrap();
        for _ in 0..6 {
            space.device_mut().programs_left = Some(programs);
            refused += u32::from(space.checkpoint(b"next").is_err());
            let (mounted, report) = Space::mount(space.device().clone()).unwrap();
            assert!(!report.full_scan, "{programs} programs, {refused} refused: no record is left");
            assert!([&b"kept"[..], b"next"].contains(&&report.user[..]), "{:?}", report.user);
            drop(mounted);
        }
        space.device_mut().programs_left = None;
        write(&mut space, 8).unwrap();
        space.checkpoint(b"last").unwrap();
        let (mut space, report) = Space::mount(space.into_device()).unwrap();
        assert_eq!((value(&mut space), &report.user[..]), (8, &b"last"[..]));
    }
    assert!(refused > 10, "{refused} checkpoints had no room");
}
