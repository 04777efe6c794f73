//! What several threads do to a device in a file at a time: reads, and the sync of a commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::storage::SharedStorage;
use crate::{Counters, FlashRule, Geometry, NandError, PhysicalPage, SharedNand};

/// The part of a device that nobody has to himself.
#[derive(Debug)]
pub(super) struct Shared {
    storage: Arc<dyn SharedStorage>,
    geometry: Geometry,
    head_size: u64,
    reads: AtomicU64,
    bytes_read: AtomicU64,
    syncs: AtomicU64,
    poisoned: AtomicBool,
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
        Ok(self.storage.read_at(self.head_size + offset, target)?)
    }

    fn sync(&self) -> Result<(), NandError> {
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
