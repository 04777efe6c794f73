//! Work of several threads at a time on a device in a file: reads, and the write and the sync of a commit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::storage::SharedStorage;
use crate::{Counters, FlashRule, Geometry, NandError, PhysicalPage, SharedNand};

/// The part of a device that threads share.
#[derive(Debug)]
pub(super) struct Shared {
    storage: Arc<dyn SharedStorage>,
    geometry: Geometry,
    head_size: u64,
    reads: AtomicU64,
    bytes_read: AtomicU64,
    syncs: AtomicU64,
    poisoned: AtomicBool,
    /// Held by the sync under way. The host reports a failed write to one sync of a file alone: another
    /// one that is under way at the same time would end well (rule D10).
    syncing: Mutex<()>,
}

impl Shared {
    pub(super) fn new(
        storage: Arc<dyn SharedStorage>,
        geometry: Geometry,
        head_size: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            storage,
            geometry,
            head_size,
            reads: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            syncing: Mutex::new(()),
        })
    }

    /// A sync failed here: nothing is written any more (rule D10).
    pub(super) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    pub(super) fn add_to(&self, counters: &mut Counters) {
        counters.page_reads += self.reads.load(Ordering::Relaxed);
        counters.bytes_read += self.bytes_read.load(Ordering::Relaxed);
        counters.syncs += self.syncs.load(Ordering::Relaxed);
    }

    pub(super) fn reset_counters(&self) {
        for counter in [&self.reads, &self.bytes_read, &self.syncs] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

impl SharedNand for Shared {
    fn read(&self, page: PhysicalPage, target: &mut [u8]) -> Result<(), NandError> {
        let inside = page.number() < self.geometry.page_count();
        if !inside || target.len() > self.geometry.page_size as usize {
            return Err(NandError::Rule { page, rule: FlashRule::Alignment });
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(target.len() as u64, Ordering::Relaxed);
        let offset = u64::from(page.number()) * u64::from(self.geometry.page_size);
        match self.storage.read_at(self.head_size + offset, target) {
            Err(error) if error.is_unreadable() => Err(NandError::Uncorrectable { page }),
            read => Ok(read?),
        }
    }

    fn program(&self, page: PhysicalPage, data_offset: u32, data: &[u8]) -> Result<(), NandError> {
        let inside = page.number() < self.geometry.page_count();
        let room = (self.geometry.page_size as usize).checked_sub(data_offset as usize);
        if !inside || room.is_none_or(|room| data.len() > room) {
            return Err(NandError::Rule { page, rule: FlashRule::Alignment });
        }
        if self.is_poisoned() {
            return Err(NandError::SyncFailed);
        }
        let page_offset = u64::from(page.number()) * u64::from(self.geometry.page_size);
        let offset = self.head_size + page_offset + u64::from(data_offset);
        Ok(self.storage.write_at(offset, data)?)
    }

    fn sync(&self) -> Result<(), NandError> {
        let _syncing = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_poisoned() {
            return Err(NandError::SyncFailed);
        }
        let result = self.storage.sync().map_err(NandError::from);
        if result == Err(NandError::SyncFailed) {
            self.poisoned.store(true, Ordering::Release);
        }
        self.syncs.fetch_add(u64::from(result.is_ok()), Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::Profile;
    use crate::storage::StorageError;

    /// A host that reports a failed write to the first sync alone, after a while.
    #[derive(Debug)]
    struct ToldOnce {
        calls: AtomicU64,
        begun: Mutex<Sender<()>>,
        other_ended: Mutex<Receiver<()>>,
    }

    impl SharedStorage for ToldOnce {
        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), StorageError> {
            Ok(())
        }

        fn write_at(&self, _: u64, _: &[u8]) -> Result<(), StorageError> {
            Ok(())
        }

        fn sync(&self) -> Result<(), StorageError> {
            if self.calls.fetch_add(1, Ordering::Relaxed) > 0 {
                return Ok(());
            }
            self.begun.lock().unwrap().send(()).unwrap();
            let ended = self.other_ended.lock().unwrap();
            let _ = ended.recv_timeout(Duration::from_millis(200));
            Err(StorageError::SyncFailed)
        }
    }

    /// Goal: no sync ends well that was under way while another one failed (rule D10). Method: a host
    /// that reports the failure to the first one, which lasts until the second has ended, if it can.
    #[test]
    fn a_sync_beside_one_that_fails_fails_too() {
        let (begun, has_begun) = channel();
        let (ended, other_ended) = channel();
        let storage = ToldOnce {
            calls: AtomicU64::new(0),
            begun: Mutex::new(begun),
            other_ended: Mutex::new(other_ended),
        };
        let geometry = Profile::named("segment-file").unwrap().geometry;
        let shared = Shared::new(Arc::new(storage), geometry, 0);
        thread::scope(|scope| {
            let first = scope.spawn(|| shared.sync());
            has_begun.recv().unwrap();
            let second = shared.sync();
            ended.send(()).unwrap();
            assert_eq!(first.join().unwrap(), Err(NandError::SyncFailed));
            assert_eq!(second, Err(NandError::SyncFailed));
        });
    }
}
