//! Device time, and the share of it that collection takes.
//!
//! Owns the clock of each die as far as operations tell. Never decides when an operation runs.

use alloc::vec;
use alloc::vec::Vec;

use flagstone_nand::{Completion, Nand, NandError};

/// The user of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Work {
    /// Callers, and all work but collection.
    #[default]
    Other,
    /// Garbage collection: its reads and programs, and the erase of a block whose units it moved or others
    /// replaced.
    Collection,
}

/// Device time that operations take.
///
/// Each operation counts by as much as it delays the end of all: time spent waiting for another operation, or
/// while another die works, is not counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Busy {
    /// Nanoseconds so far.
    pub(crate) total_ns: u64,
    until_ns: u64,
    /// The user of the device now.
    pub(crate) work: Work,
    /// Nanoseconds that dies worked for collection, added up over the dies: waits for a die or for
    /// another operation are left out.
    pub(crate) collection_ns: u64,
    /// Time at which each die is idle, as far as known.
    idle_ns: Vec<u64>,
}

impl Busy {
    pub(super) fn new(die_count: u32) -> Self {
        Self { idle_ns: vec![0; die_count as usize], ..Self::default() }
    }

    /// Runs an operation of `device` on a die, and counts its time.
    pub(crate) fn during<D: Nand>(
        &mut self,
        device: &mut D,
        die: u32,
        operate: impl FnOnce(&mut D) -> Result<Completion, NandError>,
    ) -> Result<Completion, NandError> {
        let begin_ns = device.now_ns();
        let completion = operate(device)?;
        self.count(begin_ns, completion.end_ns);
        if let Some(idle_ns) = self.idle_ns.get_mut(die as usize) {
            if self.work == Work::Collection {
                self.collection_ns += completion.end_ns.saturating_sub(begin_ns.max(*idle_ns));
            }
            *idle_ns = completion.end_ns.max(*idle_ns);
        }
        Ok(completion)
    }

    /// Counts an operation that took from `begin_ns` to `end_ns`.
    pub(crate) fn count(&mut self, begin_ns: u64, end_ns: u64) {
        let begin_ns = begin_ns.max(self.until_ns);
        self.total_ns += end_ns.saturating_sub(begin_ns);
        self.until_ns = begin_ns.max(end_ns);
    }
}
