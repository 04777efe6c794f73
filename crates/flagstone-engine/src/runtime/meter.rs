//! Who pays for what is done to the flash: the thread that does it.
//!
//! Owns a counter of each thread. The space floor counts what is done to the device; whoever holds its
//! latch is the only one who does anything, so the difference between taking and leaving it is his.
//!
//! Invariant B1: over all threads, what is metered is what the counters of the space floor say.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use flagstone_nand::Nand;
use flagstone_space::{Bill, Space};

use crate::sync::{Mutex, MutexGuard, thread_local};

thread_local! {
    static SPENT: Cell<Bill> = Cell::default();
}

/// The space floor, latched. What is done to the flash meanwhile is on the bill of this thread.
pub struct SpaceGuard<'a, D: Nand> {
    space: MutexGuard<'a, Space<D>>,
    before: Bill,
}

impl<'a, D: Nand> SpaceGuard<'a, D> {
    pub(super) fn over(space: MutexGuard<'a, Space<D>>) -> Self {
        let before = space.bill();
        Self { space, before }
    }
}

impl<D: Nand> fmt::Debug for SpaceGuard<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpaceGuard").finish_non_exhaustive()
    }
}

impl<D: Nand> Deref for SpaceGuard<'_, D> {
    type Target = Space<D>;

    fn deref(&self) -> &Space<D> {
        &self.space
    }
}

impl<D: Nand> DerefMut for SpaceGuard<'_, D> {
    fn deref_mut(&mut self) -> &mut Space<D> {
        &mut self.space
    }
}

impl<D: Nand> Drop for SpaceGuard<'_, D> {
    fn drop(&mut self) {
        let now = self.space.bill();
        // Most calls only read.
        if now != self.before {
            SPENT.with(|spent| spent.set(spent.get() + (now - self.before)));
        }
    }
}

/// A bill: what the calls of somebody did to the flash.
#[derive(Debug, Default)]
pub struct Meter(Mutex<Bill>);

impl Meter {
    /// What `calls` give; what they do to the flash on this thread is added to the bill.
    pub fn charge<T>(&self, calls: impl FnOnce() -> T) -> T {
        let before = SPENT.with(Cell::get);
        let result = calls();
        let after = SPENT.with(Cell::get);
        if after != before {
            *self.0.lock() += after - before;
        }
        result
    }

    /// The bill so far.
    #[must_use]
    pub fn bill(&self) -> Bill {
        *self.0.lock()
    }
}
