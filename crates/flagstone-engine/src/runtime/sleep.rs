//! Threads that sleep until another thread has done the work they wait for.
//!
//! Owns the list of waiting threads and their reasons. Each thread is woken individually: with one
//! condition variable for all, every commit of sixteen threads would wake the fifteen others to
//! look and sleep again.
//!
//! - **L1** A thread joins the list under the same engine latch under which it looked, and a thread
//!   that changes the awaited state reads the list after the change: no wake-up is missed.
//! - **L2** When a flush ends, the waiting threads that it did not cover have no thread that
//!   flushes for them: the first of them is woken to do so.
//! - **L3** A wake-up ends the sleep that it was meant for, and no later sleep of that thread. A thread
//!   whose sleep ran out may be asleep again, for another commit, before the wake-up arrives.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use flagstone_space::Lsn;

use crate::lock::Xid;
use crate::sync::{Condvar, Mutex, thread_local};

/// Reason of a thread to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// The lock of this transaction, or any lock where the transaction is not known.
    Lock(Option<Xid>),
    /// Commits up to this LSN are durable.
    Durable(Lsn),
    /// Work or a flush by another thread.
    Change,
}

/// How a thread was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// The awaited state may have changed: the thread looks again.
    Perhaps,
    /// The awaited state has come.
    Done,
}

/// The place where one thread sleeps.
#[derive(Debug, Default)]
struct Bed {
    night: Mutex<Night>,
    changed: Condvar,
}

/// The newest sleep of a thread.
#[derive(Debug, Default)]
struct Night {
    number: u64,
    woken: Option<Woken>,
}

impl Bed {
    /// Ends the sleep of this number, if it is still the newest one (L3).
    fn wake(&self, number: u64, how: Woken) {
        let mut night = self.night.lock();
        if night.number == number {
            night.woken = Some(how);
            self.changed.notify_one();
        }
    }
}

thread_local! {
    static BED: OnceCell<Arc<Bed>> = const { OnceCell::new() };
}

/// The sleeping threads.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    list: Mutex<Vec<Sleeper>>,
}

/// A thread on the list.
#[derive(Debug)]
struct Sleeper {
    wants: For,
    bed: Arc<Bed>,
    /// Which sleep of the thread this is (L3).
    number: u64,
}

/// A thread that is on the list and about to sleep.
#[derive(Debug)]
#[must_use]
pub(super) struct Asleep(Arc<Bed>);

impl Sleepers {
    /// Lists this thread as waiting for a lock. The engine's latch is held (L1).
    pub(super) fn await_lock(&self, xid: Option<Xid>) -> Asleep {
        self.list(For::Lock(xid), true)
    }

    /// Lists this thread as waiting for a flush. The engine's latch is held (L1). A sleep that is not
    /// a new one breaks L3.
    pub(super) fn await_durable(&self, lsn: Lsn, is_new: bool) -> Asleep {
        self.list(For::Durable(lsn), is_new)
    }

    /// Lists this thread as waiting for work of another thread. The engine's latch is held (L1).
    pub(super) fn await_change(&self) -> Asleep {
        self.list(For::Change, true)
    }

    fn list(&self, wants: For, is_new: bool) -> Asleep {
        let bed = BED.with(|bed| Arc::clone(bed.get_or_init(Arc::default)));
        let number = {
            let mut night = bed.night.lock();
            night.number += u64::from(is_new);
            night.woken = None;
            night.number
        };
        self.list.lock().push(Sleeper { wants, bed: Arc::clone(&bed), number });
        Asleep(bed)
    }

    /// Sleeps until woken, or until `limit` has passed.
    pub(super) fn sleep(&self, asleep: Asleep, limit: Duration) -> Woken {
        let Asleep(bed) = asleep;
        let mut night = bed.night.lock();
        if night.woken.is_none() {
            bed.changed.wait_for(&mut night, limit);
        }
        if let Some(how) = night.woken.take() {
            return how;
        }
        drop(night);
        self.list.lock().retain(|other| !Arc::ptr_eq(&other.bed, &bed));
        Woken::Perhaps
    }

    /// Wakes the threads whose locks may have been granted.
    pub(super) fn wake_locks(&self, woken: &[Xid]) {
        let is_meant = |wants: For| match wants {
            For::Lock(Some(xid)) => woken.contains(&xid),
            For::Lock(None) => !woken.is_empty(),
            For::Durable(_) | For::Change => false,
        };
        self.wake_if(|wants| is_meant(wants).then_some(Woken::Perhaps));
    }

    /// Wakes the threads whose commits are durable, and one of the others to flush next (L2).
    pub(super) fn wake_durable(&self, durable: Lsn) {
        let mut is_led = false;
        self.wake_if(|wants| match wants {
            For::Durable(lsn) if lsn <= durable => Some(Woken::Done),
            For::Durable(_) => (!std::mem::replace(&mut is_led, true)).then_some(Woken::Perhaps),
            For::Lock(_) | For::Change => None,
        });
    }

    /// Wakes the threads that wait for work of another thread.
    pub(super) fn wake_changed(&self) {
        self.wake_if(|wants| (wants == For::Change).then_some(Woken::Perhaps));
    }

    /// Wakes every thread: the engine is poisoned.
    pub(super) fn wake_all(&self) {
        self.wake_if(|_| Some(Woken::Perhaps));
    }

    fn wake_if(&self, mut how: impl FnMut(For) -> Option<Woken>) {
        let mut meant = Vec::new();
        self.list.lock().retain(|sleeper| match how(sleeper.wants) {
            None => true,
            Some(how) => {
                meant.push((how, Arc::clone(&sleeper.bed), sleeper.number));
                false
            }
        });
        // The list's latch is released first: a woken thread may want it at once.
        for (how, bed, number) in meant {
            bed.wake(number, how);
        }
    }
}

/// A wake-up on its way: its sleeper is off the list, and does not know yet.
#[cfg(test)]
pub(super) struct LateWake(Sleeper);

#[cfg(test)]
impl LateWake {
    pub(super) fn arrive(self) {
        self.0.bed.wake(self.0.number, Woken::Done);
    }
}

#[cfg(test)]
impl Sleepers {
    /// Begins to wake the first thread of the list.
    pub(super) fn wake_late(&self) -> LateWake {
        LateWake(self.list.lock().remove(0))
    }

    pub(super) fn count(&self) -> usize {
        self.list.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Lets threads sleep for each of `wants`, then runs `wake`; returns how each woke up, `None`
    /// where it slept on.
    fn woken(wants: &[For], wake: impl FnOnce(&Sleepers)) -> Vec<Option<Woken>> {
        let sleepers = Sleepers::default();
        thread::scope(|scope| {
            let sleepers = &sleepers;
            let sleeper = |wants: &For| {
                let wants = *wants;
                scope.spawn(move || {
                    let asleep = sleepers.list(wants, true);
                    sleepers.sleep(asleep, LONG)
                })
            };
            let threads: Vec<_> = wants.iter().map(sleeper).collect();
            while sleepers.list.lock().len() < wants.len() {
                thread::yield_now();
            }
            wake(sleepers);
            let left: Vec<For> = sleepers.list.lock().iter().map(|other| other.wants).collect();
            sleepers.wake_all();
            let ends = threads.into_iter().zip(wants);
            ends.map(|(thread, wants)| {
                let how = thread.join().unwrap();
                (!left.contains(wants)).then_some(how)
            })
            .collect()
        })
    }

    #[test]
    fn a_flush_wakes_whom_it_covers_and_one_more_who_flushes_next() {
        let wants = [3, 4, 5, 6].map(|lsn| For::Durable(Lsn(lsn)));
        let how = woken(&wants, |sleepers| sleepers.wake_durable(Lsn(4)));
        assert_eq!(how[..2], [Some(Woken::Done); 2]);
        let leaders = how[2..].iter().filter(|how| **how == Some(Woken::Perhaps)).count();
        assert_eq!(leaders, 1, "{how:?}");
    }

    #[test]
    fn a_lock_wakes_its_transaction_and_those_without_a_name() {
        let wants = [For::Lock(Some(Xid(1))), For::Lock(Some(Xid(2))), For::Lock(None)];
        let how = woken(&wants, |sleepers| sleepers.wake_locks(&[Xid(2)]));
        assert_eq!(how, [None, Some(Woken::Perhaps), Some(Woken::Perhaps)]);
        assert_eq!(woken(&wants, |sleepers| sleepers.wake_locks(&[])), [None; 3]);
    }

    #[test]
    fn whoever_is_woken_before_it_sleeps_does_not_sleep() {
        let sleepers = Sleepers::default();
        let asleep = sleepers.await_durable(Lsn(1), true);
        sleepers.wake_durable(Lsn(1));
        assert_eq!(sleepers.sleep(asleep, LONG), Woken::Done);
        let asleep = sleepers.await_durable(Lsn(2), true);
        assert_eq!(sleepers.sleep(asleep, Duration::ZERO), Woken::Perhaps, "nothing is left over");
        assert!(sleepers.list.lock().is_empty());
    }
}
