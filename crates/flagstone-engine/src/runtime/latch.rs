//! The latch of the space: one holder at a time, who may lend it to readers.
//!
//! Owns the mark that the latch is lent. Never knows what its holder does meanwhile.
//!
//! - **O1** While the latch is lent, only threads that ask for it to read get it. All others wait until
//!   its holder has it back: they never see the space in the middle of a change.
//! - **O2** A latch that is lent comes back however the work of its holder ends, a panic included.

use std::ops::{Deref, DerefMut};

use crate::sync::{Condvar, Mutex, MutexGuard};

/// What a latch guards, and whether its holder has lent it.
#[derive(Debug)]
struct Guarded<T> {
    value: T,
    is_lent: bool,
}

/// A latch that its holder may lend to readers.
#[derive(Debug)]
pub(super) struct Latch<T> {
    guarded: Mutex<Guarded<T>>,
    came_back: Condvar,
}

impl<T> Latch<T> {
    pub(super) fn new(value: T) -> Self {
        let guarded = Mutex::new(Guarded { value, is_lent: false });
        Self { guarded, came_back: Condvar::default() }
    }

    /// Takes the latch; waits while it is lent (O1).
    pub(super) fn lock(&self) -> LatchGuard<'_, T> {
        let mut guarded = self.guarded.lock();
        while guarded.is_lent {
            self.came_back.wait(&mut guarded);
        }
        LatchGuard { latch: self, guarded }
    }

    /// Takes the latch to read, also while it is lent.
    pub(super) fn lock_to_read(&self) -> LatchGuard<'_, T> {
        LatchGuard { latch: self, guarded: self.guarded.lock() }
    }

    pub(super) fn into_inner(self) -> T {
        self.guarded.into_inner().value
    }
}

/// The latch, held.
pub(super) struct LatchGuard<'a, T> {
    latch: &'a Latch<T>,
    guarded: MutexGuard<'a, Guarded<T>>,
}

impl<T> LatchGuard<'_, T> {
    /// Lends the latch to readers while `work` is done.
    pub(super) fn lend<R>(&mut self, work: impl FnOnce() -> R) -> R {
        assert!(!self.guarded.is_lent, "who holds it to read has nothing to lend");
        self.guarded.is_lent = true;
        let lent = Lent(self);
        MutexGuard::unlocked(&mut lent.0.guarded, work)
    }
}

/// The latch, lent.
struct Lent<'a, 'b, T>(&'a mut LatchGuard<'b, T>);

impl<T> Drop for Lent<'_, '_, T> {
    fn drop(&mut self) {
        self.0.guarded.is_lent = false;
        self.0.latch.came_back.notify_all();
    }
}

impl<T> Deref for LatchGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guarded.value
    }
}

impl<T> DerefMut for LatchGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guarded.value
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Goal (O1): readers get a latch that is lent, others once it is back. Method: a thread that asks for
    /// the latch while it is lent sees what its holder wrote behind that.
    #[test]
    fn a_lent_latch_is_for_readers_alone() {
        let latch = Latch::new(1);
        thread::scope(|scope| {
            let (sender, asked) = mpsc::channel();
            let mut held = latch.lock();
            let other = held.lend(|| {
                assert_eq!(*latch.lock_to_read(), 1);
                let latch = &latch;
                let other = scope.spawn(move || {
                    sender.send(()).unwrap();
                    *latch.lock()
                });
                asked.recv().unwrap();
                // Most of the time the thread waits by then.
                thread::yield_now();
                other
            });
            *held = 2;
            held.lend(|| assert_eq!(*latch.lock_to_read(), 2));
            *held = 3;
            drop(held);
            assert_eq!(other.join().unwrap(), 3);
        });
    }

    #[test]
    fn a_latch_comes_back_from_a_panic() {
        let latch = Latch::new(1);
        let work = || latch.lock().lend(|| std::panic::resume_unwind(Box::new(())));
        assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
        assert_eq!(*latch.lock(), 1);
        assert_eq!(latch.into_inner(), 1);
    }
}
