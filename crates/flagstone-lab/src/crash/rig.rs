//! The device under test, shared between the engine that uses it and the test that watches it.
//!
//! Owns the device and a picture of it before each operation. Never changes the effect of an
//! operation: faults are the device's business.
//!
//! - **R1** With capturing on, every numbered operation leaves one [`Capture`]: the device just
//!   before, the request, every way it may end, and the test's mark at that moment. One run of a
//!   script thus gives all its crash states; nothing is run again.
//! - **R2** Every broken rule of flash is kept, even if the engine drops the error.
//! - **R3** Dies work side by side: an operation may still be under way when others, asked for later
//!   on other dies, are complete or under way too. Each die keeps its order: behind an operation
//!   that was asked for too late, no operation of its die has begun. Time may run back between two
//!   callers ([`Nand::resume_at`]); the order of the calls is not the order of time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flagstone_nand::{
    BlockIndex, Capabilities, CellMode, Completion, Counters, Crashable, Ending, FaultPlan,
    Geometry, Nand, NandError, PhysicalPage, ProgramPart, ReadPart, SsdCounters,
};

/// An operation that was asked of the device, kept so that it can be asked again.
#[derive(Clone, Debug)]
pub enum DeviceCall {
    /// A program, with its bytes.
    Program {
        /// Page concerned.
        page: PhysicalPage,
        /// First data byte.
        data_offset: u32,
        /// Data bytes.
        data: Vec<u8>,
        /// First spare byte.
        spare_offset: u32,
        /// Spare bytes.
        spare: Vec<u8>,
    },
    /// An erase.
    Erase(BlockIndex),
    /// A bad-block mark.
    MarkBad(BlockIndex),
    /// A sync.
    Sync,
    /// A growth to so many blocks: several operations.
    Extend(u32),
}

impl DeviceCall {
    /// Asks `device` for the operation; a dead engine never hears the answer.
    fn repeat(&self, device: &mut impl Nand) -> Result<(), NandError> {
        match self {
            Self::Program { page, data_offset, data, spare_offset, spare } => {
                let part = ProgramPart {
                    data_offset: *data_offset,
                    data,
                    spare_offset: *spare_offset,
                    spare,
                };
                device.program(*page, part).map(drop)
            }
            Self::Erase(block) => device.erase(*block).map(drop),
            Self::MarkBad(block) => device.mark_bad(*block),
            Self::Sync => device.sync().map(drop),
            Self::Extend(block_count) => device.extend(*block_count),
        }
    }
}

/// The device just before one operation.
#[derive(Clone, Debug)]
pub struct Capture<D, M> {
    /// Number of the operation.
    pub operation: u64,
    /// Every way it may end when the power goes.
    pub endings: Vec<Ending>,
    /// The test's mark when it was asked for.
    pub mark: M,
    device: D,
    call: DeviceCall,
    /// Time on the device's clock when it was asked for.
    issued_ns: u64,
    /// Time at which it was complete.
    end_ns: u64,
}

impl<D: Crashable, M> Capture<D, M> {
    /// Die that the operation occupies, on raw flash.
    fn die(&self) -> Option<u32> {
        let (geometry, capabilities) = (self.device.geometry(), self.device.capabilities());
        if capabilities.needs_sync || capabilities.cell_mode == CellMode::Translated {
            return None;
        }
        match self.call {
            DeviceCall::Program { page, .. } => Some(geometry.die_of(geometry.block_of(page))),
            DeviceCall::Erase(block) | DeviceCall::MarkBad(block) => Some(geometry.die_of(block)),
            DeviceCall::Sync | DeviceCall::Extend(_) => None,
        }
    }

    /// The ways in which it does not end.
    pub fn endings_short(&self) -> impl Iterator<Item = Ending> + '_ {
        self.endings.iter().copied().filter(|ending| *ending != Ending::Complete)
    }

    /// Which of the operations asked for after this one may end before it does (R3).
    #[must_use]
    pub fn overtaken_by(&self, later: &[Self]) -> Vec<usize> {
        let Some(die) = self.die() else { return Vec::new() };
        let die_count = self.device.geometry().die_count as usize;
        let mut behind = BTreeSet::from([die]);
        let mut overtaking = Vec::new();
        for (index, other) in later.iter().enumerate() {
            let Some(die) = other.die() else { break };
            if behind.contains(&die) {
                continue;
            }
            if other.issued_ns < self.end_ns {
                overtaking.push(index);
            } else {
                behind.insert(die);
                if behind.len() == die_count {
                    break;
                }
            }
        }
        overtaking
    }

    /// The request, in one line.
    #[must_use]
    pub fn describe(&self) -> String {
        let geometry = self.device.geometry();
        match &self.call {
            DeviceCall::Program { page, data_offset, data, spare, .. } => {
                let (block, index) = (geometry.block_of(*page).0, geometry.index_in_block(*page));
                let (size, spare) = (data.len(), spare.len());
                format!("program {block}/{index} data {data_offset}+{size} spare {spare}")
            }
            DeviceCall::Erase(block) => format!("erase {}", block.0),
            DeviceCall::MarkBad(block) => format!("mark {} bad", block.0),
            DeviceCall::Sync => String::from("sync"),
            DeviceCall::Extend(block_count) => format!("extend to {block_count}"),
        }
    }

    /// The device as it comes up again after the power went during this operation.
    #[must_use]
    pub fn cut(&self, ending: Ending, seed: u64) -> D {
        let mut device = self.device.clone();
        device.set_plan(FaultPlan::power_cut(seed, self.operation, ending));
        // The answer is `PowerOff`, or a success that is never heard.
        let _ = self.call.repeat(&mut device);
        device.power_cycle();
        device.set_plan(FaultPlan::default());
        device
    }

    /// The same when operations of `later` that may end before this one have ended (R3), the last
    /// of them with an ending of its own.
    #[must_use]
    pub fn cut_beside(&self, ending: Ending, later: &[Self], last: Ending, seed: u64) -> D {
        let mut device = self.cut(ending, seed);
        let overtaking = self.overtaken_by(later);
        let Some((cut, complete)) = overtaking.split_last() else { return device };
        for index in complete {
            // A dead engine hears no answer.
            let _ = later[*index].call.repeat(&mut device);
        }
        device.set_plan(FaultPlan::power_cut(seed, device.operation_count(), last));
        let _ = later[*cut].call.repeat(&mut device);
        device.power_cycle();
        device.set_plan(FaultPlan::default());
        device
    }
}

#[derive(Debug)]
struct State<D, M> {
    device: D,
    mark: M,
    captures: Option<Vec<Capture<D, M>>>,
    rules_broken: Vec<NandError>,
    /// Calls after which the device goes dark: an engine that loops is stopped by it.
    calls_left: u64,
}

/// A handle on the shared device. Clones share it.
#[derive(Debug)]
pub struct Rig<D, M>(Arc<Mutex<State<D, M>>>);

impl<D, M> Clone for Rig<D, M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Whether a rig keeps a capture of each operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capturing {
    /// One capture an operation.
    On,
    /// None.
    Off,
}

/// Device calls within one script or one recovery: 1500 operations of a sound engine take a third.
const CALLS_MAX: u64 = 60_000;

impl<D: Crashable, M: Clone> Rig<D, M> {
    /// Takes a device for one run.
    #[must_use]
    pub fn new(device: D, mark: M, capturing: Capturing) -> Self {
        let captures = (capturing == Capturing::On).then(Vec::new);
        let rules_broken = Vec::new();
        let calls_left = CALLS_MAX;
        Self(Arc::new(Mutex::new(State { device, mark, captures, rules_broken, calls_left })))
    }

    /// The same with so many calls: for runs that are meant to be long.
    #[must_use]
    pub fn with_calls(self, calls: u64) -> Self {
        self.state().calls_left = calls;
        self
    }

    fn state(&self) -> MutexGuard<'_, State<D, M>> {
        // A panic of the engine is caught and reported by the test; the device is still sound.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the mark that later captures carry.
    pub fn mark(&self, mark: M) {
        self.state().mark = mark;
    }

    /// Takes the captures made so far.
    #[must_use]
    pub fn take_captures(&self) -> Vec<Capture<D, M>> {
        self.state().captures.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A copy of the device as it is.
    #[must_use]
    pub fn device(&self) -> D {
        self.state().device.clone()
    }

    /// Calls `change` on the device itself.
    pub fn with_device<R>(&self, change: impl FnOnce(&mut D) -> R) -> R {
        change(&mut self.state().device)
    }

    /// The first rule of flash that was broken (R2).
    #[must_use]
    pub fn rule_broken(&self) -> Option<NandError> {
        self.state().rules_broken.first().cloned()
    }

    /// Whether the engine asked for more operations than any sound one would.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.state().calls_left == 0
    }

    fn call(
        &self,
        call: impl Fn() -> DeviceCall,
        run: impl FnOnce(&mut D) -> Result<Completion, NandError>,
    ) -> Result<Completion, NandError> {
        let mut state = self.state();
        let state = &mut *state;
        state.spend_call()?;
        let before = state.captures.is_some().then(|| state.device.clone());
        let first = state.device.operation_count();
        let issued_ns = state.device.now_ns();
        if before.is_some() {
            state.device.record_operations();
        }
        let answer = run(&mut state.device);
        state.note_rule(&answer);
        if let (Some(device), Some(captures)) = (before, &mut state.captures) {
            let end_ns = answer.as_ref().map_or(issued_ns, |done| done.end_ns);
            for operation in first..state.device.operation_count() {
                let endings = state.device.endings_at(operation);
                if !endings.is_empty() {
                    let (mark, device) = (state.mark.clone(), device.clone());
                    let call = call();
                    captures.push(Capture {
                        operation,
                        endings,
                        mark,
                        device,
                        call,
                        issued_ns,
                        end_ns,
                    });
                }
            }
        }
        answer
    }
}

impl<D, M> State<D, M> {
    fn spend_call(&mut self) -> Result<(), NandError> {
        self.calls_left = self.calls_left.saturating_sub(1);
        if self.calls_left == 0 { Err(NandError::PowerOff) } else { Ok(()) }
    }

    fn note_rule<T>(&mut self, answer: &Result<T, NandError>) {
        if let Err(error @ NandError::Rule { .. }) = answer {
            self.rules_broken.push(error.clone());
        }
    }
}

impl<D: Crashable, M: Clone> Nand for Rig<D, M> {
    fn geometry(&self) -> Geometry {
        self.state().device.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.state().device.capabilities()
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        let mut state = self.state();
        state.spend_call()?;
        let answer = state.device.read(page, part);
        state.note_rule(&answer);
        answer
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        let call = || DeviceCall::Program {
            page,
            data_offset: part.data_offset,
            data: part.data.to_vec(),
            spare_offset: part.spare_offset,
            spare: part.spare.to_vec(),
        };
        self.call(call, |device| device.program(page, part))
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        self.call(|| DeviceCall::Erase(block), |device| device.erase(block))
    }

    fn translation(&self) -> Option<SsdCounters> {
        self.state().device.translation()
    }

    fn may_lack_room(&self) -> bool {
        self.state().device.may_lack_room()
    }

    fn trim(&mut self, first: PhysicalPage, count: u32) {
        self.state().device.trim(first, count);
    }

    fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
        self.state().device.takes_spare(page)
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        let mut state = self.state();
        state.spend_call()?;
        state.device.is_bad(block)
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        let mark = |device: &mut D| device.mark_bad(block).map(|()| Completion::default());
        self.call(|| DeviceCall::MarkBad(block), mark).map(drop)
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        self.call(|| DeviceCall::Sync, Nand::sync)
    }

    fn present_blocks(&self) -> u32 {
        self.state().device.present_blocks()
    }

    fn extend(&mut self, block_count: u32) -> Result<(), NandError> {
        let extend = |device: &mut D| device.extend(block_count).map(|()| Completion::default());
        self.call(|| DeviceCall::Extend(block_count), extend).map(drop)
    }

    fn erase_count(&self, block: BlockIndex) -> u32 {
        self.state().device.erase_count(block)
    }

    fn counters(&self) -> Counters {
        self.state().device.counters()
    }

    fn reset_counters(&mut self) {
        self.state().device.reset_counters();
    }

    fn now_ns(&self) -> u64 {
        self.state().device.now_ns()
    }

    fn advance_to(&mut self, now_ns: u64) {
        self.state().device.advance_to(now_ns);
    }

    fn resume_at(&mut self, now_ns: u64) {
        self.state().device.resume_at(now_ns);
    }
}
