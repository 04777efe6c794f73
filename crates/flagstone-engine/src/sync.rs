//! Primitives shared by threads: latches, wake-ups, thread-local data, and time.
//!
//! Owns the choice of scheduler. In every build the machine decides which thread goes on; with
//! `--cfg shuttle` a scheduler draws the next thread at each use of these primitives, so that a
//! seed repeats a schedule. Counters and marks that are only hints do not come from here.
//!
//! - **Y1** A scheduled wait shorter than [`LONG`] may time out at any moment. A longer wait never
//!   does in half of the schedules: a missed wake-up becomes a deadlock, which the scheduler sees. In
//!   the other half it may, as it does on a slow device: see [`let_long_waits_end`].

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
#[cfg(not(shuttle))]
pub(crate) use std::{thread_local, time::Instant};

#[cfg(shuttle)]
pub(crate) use scheduled::{
    Condvar, Instant, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
#[cfg(shuttle)]
pub(crate) use shuttle::thread_local;

/// Length of a wait that only a wake-up ends, in builds that look for missed wake-ups (Y1).
#[cfg(any(test, shuttle))]
pub(crate) const LONG: std::time::Duration = std::time::Duration::from_secs(60);

#[cfg(shuttle)]
pub use scheduled::let_long_waits_end;

/// The same primitives on top of the scheduler.
#[cfg(shuttle)]
mod scheduled {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;
    use std::time::Duration;

    use shuttle::{sync, thread};

    use super::LONG;

    std::thread_local! {
        static DO_LONG_WAITS_END: Cell<bool> = const { Cell::new(false) };
    }

    /// Whether waits of any length may time out, in the schedules that this thread of the machine runs
    /// from now on (Y1).
    pub fn let_long_waits_end(do_end: bool) {
        DO_LONG_WAITS_END.set(do_end);
    }

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T> {
        latch: &'a sync::Mutex<T>,
        /// `None` while the holder waits for a condition, or has given the latch away.
        held: Option<sync::MutexGuard<'a, T>>,
    }

    impl<T> MutexGuard<'_, T> {
        /// Gives the latch away while `work` is done.
        pub(crate) fn unlocked<R>(guard: &mut Self, work: impl FnOnce() -> R) -> R {
            guard.held = None;
            let result = work();
            guard.held = Some(lock(guard.latch));
            result
        }
    }

    fn lock<T>(latch: &sync::Mutex<T>) -> sync::MutexGuard<'_, T> {
        latch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard { latch: &self.0, held: Some(lock(&self.0)) }
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let held = self.0.try_lock().ok()?;
            Some(MutexGuard { latch: &self.0, held: Some(held) })
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn into_inner(self) -> T {
            self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
        }
    }

    const HELD: &str = "only a wait gives a latch away, and takes it again";

    #[expect(clippy::expect_used, reason = "a build for tests alone")]
    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.held.as_ref().expect(HELD)
        }
    }

    #[expect(clippy::expect_used, reason = "a build for tests alone")]
    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.held.as_mut().expect(HELD)
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(sync::Condvar);

    impl Condvar {
        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let Some(held) = guard.held.take() else { return };
            guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }

        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) {
            let Some(held) = guard.held.take() else { return };
            guard.held = Some(if limit < LONG || DO_LONG_WAITS_END.get() {
                drop(held);
                thread::yield_now();
                lock(guard.latch)
            } else {
                self.0.wait(held).unwrap_or_else(PoisonError::into_inner)
            });
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T>(sync::RwLock<T>);

    pub(crate) type RwLockReadGuard<'a, T> = sync::RwLockReadGuard<'a, T>;
    pub(crate) type RwLockWriteGuard<'a, T> = sync::RwLockWriteGuard<'a, T>;

    impl<T> RwLock<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A clock that advances by a millisecond each time it is read.
    #[derive(Clone, Debug)]
    pub(crate) struct Instant(Cell<u64>);

    impl Instant {
        pub(crate) const fn now() -> Self {
            Self(Cell::new(0))
        }

        pub(crate) fn elapsed(&self) -> Duration {
            self.0.set(self.0.get() + 1);
            Duration::from_millis(self.0.get())
        }
    }
}
