//! Simulated devices whose power can be cut while a database works on them.
//!
//! They stall now and then, as cards and disks do, about as long as a thread waits before it looks again: waits run
//! out at any moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use flagstone::device::AnyNand;
use flagstone_nand::{
    BlockIndex, Capabilities, Completion, Counters, Crashable, Ending, FaultPlan, Geometry, Nand,
    NandError, PhysicalPage, Profile, ProgramPart, ReadPart, SegmentFile, SimNand, SimStorage,
    SsdCounters,
};

use super::draw::{Draw, mixed};
use super::program::Place;

/// A device that others can look at while a database has it.
pub(crate) trait Medium: Send + Sync {
    /// The device for a database, now and until the power goes.
    fn device(&self) -> AnyNand;

    /// A copy of this device as a power cut at this moment would leave it.
    fn cut(&self, draw: &mut Draw) -> Box<dyn Medium>;

    /// Lets the power go within the next operations.
    fn cut_soon(&self, draw: &mut Draw);
}

/// A new device for a place; none where that is no simulated one.
///
/// # Errors
/// The profile is unknown, or does not fit.
pub(crate) fn create(place: Place, seed: u64) -> anyhow::Result<Option<Box<dyn Medium>>> {
    Ok(match place {
        Place::File | Place::Process => None,
        Place::Chip(name, blocks) => {
            let profile = Profile::named(name)?.with_block_count(blocks)?;
            Some(Box::new(Shared::new(SimNand::new(&profile, seed))))
        }
        Place::SimulatedFile => {
            let profile = Profile::named("segment-file")?.with_block_count(240)?;
            let storage = SimStorage::new(profile.timing);
            Some(Box::new(Shared::new(SegmentFile::create(storage, &profile)?)))
        }
    })
}

struct Shared<D> {
    device: Arc<Mutex<D>>,
    /// Programs and syncs so far.
    writes: Arc<AtomicU64>,
}

/// One program or sync in so many stalls.
const STALL_IN: u64 = 64;

/// Length of a stall in microseconds: at least, and at most.
const STALL_US: [u64; 2] = [5_000, 30_000];

impl<D> Shared<D> {
    fn new(device: D) -> Self {
        Self { device: Arc::new(Mutex::new(device)), writes: Arc::default() }
    }

    /// Stalls at times, while others may use the device.
    fn stall(&self) {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        let drawn = mixed(number);
        if drawn.is_multiple_of(STALL_IN) {
            let [least, most] = STALL_US;
            let length = least + (drawn >> 32) % (most - least);
            thread::sleep(Duration::from_micros(length));
        }
    }

    fn lock(&self) -> MutexGuard<'_, D> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Endings of an operation in flight. An ending that the operation cannot have leaves it undone.
const ENDINGS: [Ending; 12] = [
    Ending::Untouched,
    Ending::Complete,
    Ending::Torn { units: 1 },
    Ending::Torn { units: 3 },
    Ending::RandomBits,
    Ending::LooksUntouched,
    Ending::LooksComplete,
    Ending::PairLost,
    Ending::PartlyErased,
    Ending::LooksErased,
    Ending::UnsyncedLost,
    Ending::UnsyncedSubset512 { draw: 0 },
];

impl<D: Crashable + Send + 'static> Medium for Shared<D> {
    fn device(&self) -> AnyNand {
        AnyNand::new(Self { device: Arc::clone(&self.device), writes: Arc::clone(&self.writes) })
    }

    fn cut(&self, draw: &mut Draw) -> Box<dyn Medium> {
        let mut device = self.lock().clone();
        if !device.is_off() {
            let ending = draw.pick(&[
                Ending::UnsyncedLost,
                Ending::UnsyncedSubset512 { draw: 1 },
                Ending::UnsyncedSubset4096 { draw: 2 },
            ]);
            device.set_plan(FaultPlan::power_cut(draw.bits(), device.operation_count(), ending));
            // The sync is the operation in flight: it fails, and takes unsynced writes with it.
            let _ = device.sync();
        }
        device.power_cycle();
        Box::new(Self::new(device))
    }

    fn cut_soon(&self, draw: &mut Draw) {
        let mut device = self.lock();
        let operation = device.operation_count() + draw.below(40);
        device.set_plan(FaultPlan::power_cut(draw.bits(), operation, draw.pick(&ENDINGS)));
    }
}

impl<D: Nand> Nand for Shared<D> {
    fn geometry(&self) -> Geometry {
        self.lock().geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.lock().capabilities()
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        self.lock().read(page, part)
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        let done = self.lock().program(page, part);
        self.stall();
        done
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        self.lock().erase(block)
    }

    fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
        self.lock().takes_spare(page)
    }

    fn trim(&mut self, first: PhysicalPage, count: u32) {
        self.lock().trim(first, count);
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        self.lock().is_bad(block)
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        self.lock().mark_bad(block)
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        let done = self.lock().sync();
        self.stall();
        done
    }

    fn present_blocks(&self) -> u32 {
        self.lock().present_blocks()
    }

    fn extend(&mut self, block_count: u32) -> Result<(), NandError> {
        self.lock().extend(block_count)
    }

    fn erase_count(&self, block: BlockIndex) -> u32 {
        self.lock().erase_count(block)
    }

    fn counters(&self) -> Counters {
        self.lock().counters()
    }

    fn translation(&self) -> Option<SsdCounters> {
        self.lock().translation()
    }

    fn reset_counters(&mut self) {
        self.lock().reset_counters();
    }

    fn now_ns(&self) -> u64 {
        self.lock().now_ns()
    }

    fn advance_to(&mut self, now_ns: u64) {
        self.lock().advance_to(now_ns);
    }

    fn resume_at(&mut self, now_ns: u64) {
        self.lock().resume_at(now_ns);
    }
}
