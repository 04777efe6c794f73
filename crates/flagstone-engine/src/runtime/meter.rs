//! Charges work on the flash to the thread that does it.
//!
//! Owns one counter per thread. The space floor counts work on the device only under its latch, so
//! the difference between taking and releasing the latch is the work of the thread that held it.
//!
//! Invariant B1: the sum over all threads equals the counters of the space floor.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use flagstone_nand::Nand;
use flagstone_space::{Bill, Space};

use super::latch::LatchGuard;
use crate::sync::{Mutex, thread_local};

thread_local! {
    static SPENT: Cell<Bill> = Cell::default();
}

/// The space floor, latched. Flash work done through the guard is charged to this thread's bill.
pub struct SpaceGuard<'a, D: Nand> {
    space: LatchGuard<'a, Space<D>>,
    before: Bill,
}

impl<'a, D: Nand> SpaceGuard<'a, D> {
    pub(super) fn over(space: LatchGuard<'a, Space<D>>) -> Self {
        let before = space.bill();
        Self { space, before }
    }

    /// Lends the latch to readers while `work` is done; what they do is charged to them.
    pub(super) fn lend<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.charge();
        let result = self.space.lend(work);
        self.before = self.space.bill();
        result
    }

    fn charge(&mut self) {
        let now = self.space.bill();
        // Most calls only read.
        if now != self.before {
            SPENT.with(|spent| spent.set(spent.get() + (now - self.before)));
        }
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
        self.charge();
    }
}

/// A bill: the flash work of a set of calls.
#[derive(Debug, Default)]
pub struct Meter(Mutex<Bill>);

impl Meter {
    /// Runs `calls` and returns their result; their flash work on this thread is added to the bill.
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
