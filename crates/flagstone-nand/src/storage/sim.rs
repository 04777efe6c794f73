//! A simulated file: unsynced writes, power cuts that keep any subset of them, failing syncs.
//!
//! Owns two images, the readable and the durable one, and the writes between them. Never touches
//! the host.
//!
//! - **M1** After a cut the file holds the durable image plus the writes that survived, each torn
//!   only at multiples of the tear size.
//! - **M2** After a failed sync the writes since the last one never become durable by themselves.
//! - **M3** A file that grows is as long after a cut as the last of the writes that survived reaches.
//! - **M4** On a host that is told of ([`SimHost`]) each piece of 4 KiB is a hole, reserved, or written. A
//!   hole takes room when it is written or reserved; where rewrites move, a written piece takes room for a
//!   moment whenever it is written again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Storage, StorageError};
use crate::fault::{Faults, Verdict};
use crate::mix::{Draw, mix, mix_bytes};
use crate::timing::Timeline;
use crate::{Completion, Ending, FaultPlan, OperationKind, SyncFailure, Timing};

/// Bytes shared between snapshots as one piece.
const CHUNK_SIZE: usize = 4096;

/// Bytes of a write that makes a file longer.
const GROWTH_SIZE: u64 = 16 << 10;

/// Sector of the simulated drive: the unit of the operation kinds.
const SECTOR_SIZE: usize = 512;

/// Bytes in pieces; an absent piece is zero.
#[derive(Clone, Debug, Default)]
struct Image {
    chunks: Vec<Option<Arc<[u8; CHUNK_SIZE]>>>,
}

impl Image {
    fn read(&self, offset: u64, target: &mut [u8]) {
        for (chunk, within, part) in pieces(offset, target.len()) {
            let target = &mut target[part];
            match &self.chunks[chunk] {
                Some(bytes) => target.copy_from_slice(&bytes[within..within + target.len()]),
                None => target.fill(0),
            }
        }
    }

    fn write(&mut self, offset: u64, source: &[u8]) {
        for (chunk, within, part) in pieces(offset, source.len()) {
            let source = &source[part];
            let bytes = self.chunks[chunk].get_or_insert_with(|| Arc::new([0; CHUNK_SIZE]));
            Arc::make_mut(bytes)[within..within + source.len()].copy_from_slice(source);
        }
    }

    fn hash(&self, hash: u64) -> u64 {
        self.chunks.iter().enumerate().fold(hash, |hash, (index, chunk)| match chunk {
            Some(bytes) if **bytes != [0; CHUNK_SIZE] => {
                mix_bytes(mix(hash, index as u64), &bytes[..])
            }
            _ => hash,
        })
    }
}

/// Splits a run of bytes by chunk: chunk, offset in it, range of the run.
fn pieces(
    offset: u64,
    size: usize,
) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let start = offset as usize;
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= size {
            return None;
        }
        let at = start + done;
        let within = at % CHUNK_SIZE;
        let step = (CHUNK_SIZE - within).min(size - done);
        let part = done..done + step;
        done += step;
        Some((at / CHUNK_SIZE, within, part))
    })
}

/// A write that no sync has covered yet.
#[derive(Clone, Debug)]
struct Unsynced {
    offset: u64,
    bytes: Arc<[u8]>,
}

/// The file system around a simulated file (M4). Clones are the same one.
#[derive(Clone, Debug)]
pub struct SimHost {
    free: Arc<AtomicU64>,
    moves_rewrites: bool,
}

impl SimHost {
    /// A host with `free` bytes left that writes in place, as ext4 does.
    #[must_use]
    pub fn in_place(free: u64) -> Self {
        Self { free: Arc::new(AtomicU64::new(free)), moves_rewrites: false }
    }

    /// A host with `free` bytes left that moves rewrites elsewhere, as btrfs does.
    #[must_use]
    pub fn copy_on_write(free: u64) -> Self {
        Self { moves_rewrites: true, ..Self::in_place(free) }
    }

    /// Bytes left.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Others take or give up room: `free` bytes are left.
    pub fn set_free(&self, free: u64) {
        self.free.store(free, Ordering::Relaxed);
    }

    fn take(&self, size: u64) -> Result<(), StorageError> {
        let rest = self.free().checked_sub(size).ok_or(StorageError::NoSpace)?;
        self.set_free(rest);
        Ok(())
    }

    fn give_back(&self, size: u64) {
        self.set_free(self.free() + size);
    }
}

/// Room that a piece of a file has of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Hole,
    Reserved,
    Written,
}

/// A simulated file on a simulated drive. `Clone` is a copy-on-write snapshot.
#[derive(Clone, Debug)]
pub struct SimStorage {
    size: u64,
    /// Size after a cut that no unsynced write survives (M3).
    durable_size: u64,
    /// Bytes that the drive has room for.
    size_max: u64,
    /// The host, and the room that each piece has of it.
    host: Option<(SimHost, Vec<Piece>)>,
    visible: Image,
    durable: Image,
    unsynced: Vec<Unsynced>,
    timing: Timing,
    timeline: Timeline,
    faults: Faults,
    trace: u64,
}

impl SimStorage {
    /// An empty file; `timing` gives a read, a write of 4 KiB (`program_ns`) and a sync.
    #[must_use]
    pub fn new(timing: Timing) -> Self {
        Self {
            size: 0,
            durable_size: 0,
            size_max: u64::MAX,
            host: None,
            visible: Image::default(),
            durable: Image::default(),
            unsynced: Vec::new(),
            timing,
            timeline: Timeline::new(1, 0),
            faults: Faults::default(),
            trace: 0,
        }
    }

    /// Replaces the plan; operation numbers go on counting. Writes and syncs are numbered.
    pub fn set_plan(&mut self, plan: FaultPlan) {
        self.faults.set_plan(plan);
    }

    /// Number of the next operation.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        self.faults.count()
    }

    /// Leaves room for a file of `size_max` bytes.
    pub fn set_size_max(&mut self, size_max: u64) {
        self.size_max = size_max;
    }

    /// From now on the file lies on `host`, where pieces of zeros are holes if it is a sparse copy.
    pub fn move_to(&mut self, host: SimHost, is_sparse: bool) {
        let is_hole = |chunk: &Option<Arc<[u8; CHUNK_SIZE]>>| {
            is_sparse && chunk.as_ref().is_none_or(|bytes| **bytes == [0; CHUNK_SIZE])
        };
        let piece = |chunk| if is_hole(chunk) { Piece::Hole } else { Piece::Written };
        self.host = Some((host, self.visible.chunks.iter().map(piece).collect()));
    }

    /// Takes the room of a write of `size` bytes at `offset`.
    fn take_room(&mut self, offset: u64, size: usize) -> Result<(), StorageError> {
        let Some((host, known)) = &mut self.host else { return Ok(()) };
        let room = CHUNK_SIZE as u64;
        for (chunk, ..) in pieces(offset, size) {
            known.resize(known.len().max(chunk + 1), Piece::Hole);
            match known[chunk] {
                Piece::Hole => host.take(room)?,
                Piece::Written if host.moves_rewrites => {
                    host.take(room)?;
                    host.give_back(room);
                }
                _ => {}
            }
            known[chunk] = Piece::Written;
        }
        Ok(())
    }

    /// Starts to keep the kind of every operation.
    pub fn record_operations(&mut self) {
        self.faults.record();
    }

    /// Kind of operation `number`, if it was recorded.
    #[must_use]
    pub fn operation_kind(&self, number: u64) -> Option<OperationKind> {
        self.faults.kind(number)
    }

    /// Whether a cut took the power away.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.faults.is_off()
    }

    /// Restores the power.
    pub fn power_cycle(&mut self) {
        self.faults.power_cycle();
        self.timeline.idle();
    }

    /// Hash of the readable and the durable image.
    #[must_use]
    pub fn state_hash(&self) -> u64 {
        self.durable.hash(self.visible.hash(mix(self.size, self.durable_size)))
    }

    /// Running hash of all operations.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.trace
    }

    /// Writes that no sync has covered: the crash states of a cut are their subsets.
    #[must_use]
    pub fn unsynced_count(&self) -> usize {
        self.unsynced.len()
    }

    /// The visible bytes, to tamper with them.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        self.visible.read(0, &mut bytes);
        bytes
    }

    /// A file with this content, durable.
    #[must_use]
    pub fn from_bytes(timing: Timing, bytes: &[u8]) -> Self {
        let mut storage = Self::new(timing);
        storage.resize(bytes.len() as u64);
        storage.visible.write(0, bytes);
        storage.durable = storage.visible.clone();
        storage.durable_size = storage.size;
        storage
    }

    fn resize(&mut self, size: u64) {
        self.size = size;
        let count = (size as usize).div_ceil(CHUNK_SIZE);
        self.visible.chunks.resize(count, None);
        self.durable.chunks.resize(count, None);
    }

    fn check(&self, offset: u64, size: usize) -> Result<(), StorageError> {
        if self.faults.is_off() {
            return Err(StorageError::PowerOff);
        }
        let inside = offset.checked_add(size as u64).is_some_and(|end| end <= self.size);
        if inside { Ok(()) } else { Err(StorageError::BeyondEnd) }
    }

    /// Makes the unsynced writes durable.
    fn settle(&mut self) {
        for write in self.unsynced.drain(..) {
            for (chunk, ..) in pieces(write.offset, write.bytes.len()) {
                self.durable.chunks[chunk].clone_from(&self.visible.chunks[chunk]);
            }
        }
        self.durable_size = self.size;
    }

    /// Ends the operation in flight, whose write, if it is one, comes last among the unsynced.
    fn cut(&mut self, ending: Ending, in_flight: OperationKind) {
        let is_write = in_flight != OperationKind::Sync;
        match ending {
            Ending::Complete => self.settle(),
            Ending::Untouched if is_write => {
                self.unsynced.pop();
                self.survive(|_| true, CHUNK_SIZE);
            }
            Ending::UnsyncedSubset512 { draw } => self.survive_drawn(draw, SECTOR_SIZE),
            Ending::UnsyncedSubset4096 { draw } => self.survive_drawn(draw, CHUNK_SIZE),
            _ => {}
        }
        self.unsynced.clear();
        self.resize(self.durable_size);
        self.visible = self.durable.clone();
    }

    fn survive_drawn(&mut self, draw: u8, tear_size: usize) {
        let mut draw = Draw::new(self.faults.seed(), 16 + u64::from(draw));
        self.survive(|_| draw.coin(), tear_size);
    }

    /// Makes the parts of the unsynced writes durable that `survives` picks (M1).
    fn survive(&mut self, mut survives: impl FnMut(u64) -> bool, tear_size: usize) {
        for write in &self.unsynced {
            let mut done = 0;
            while done < write.bytes.len() {
                let at = write.offset + done as u64;
                let step = tear_size - at as usize % tear_size;
                let end = (done + step).min(write.bytes.len());
                if survives(at) {
                    self.durable.write(at, &write.bytes[done..end]);
                    self.durable_size = self.durable_size.max(write.offset + end as u64);
                }
                done = end;
            }
        }
    }

    /// The writes since the last sync are lost to the medium (M2).
    fn fail_sync(&mut self) -> StorageError {
        self.unsynced.clear();
        match self.faults.plan().sync_failure {
            SyncFailure::Dropped => self.visible = self.durable.clone(),
            SyncFailure::Kept => {}
        }
        StorageError::SyncFailed
    }
}

/// `EIO` for writes that the plan makes fail.
const WRITE_FAILED: StorageError = StorageError::Host { errno: super::EIO };

impl Storage for SimStorage {
    fn read_at(&mut self, offset: u64, target: &mut [u8]) -> Result<Completion, StorageError> {
        self.check(offset, target.len())?;
        self.visible.read(offset, target);
        self.trace = mix(mix(self.trace, 1), offset);
        Ok(self.timeline.send(0, self.timing.read_ns, 0, 0))
    }

    fn write_at(&mut self, offset: u64, source: &[u8]) -> Result<Completion, StorageError> {
        self.check(offset, source.len())?;
        self.take_room(offset, source.len())?;
        self.trace = mix_bytes(mix(mix(self.trace, 2), offset), source);
        let code_words = source.len().div_ceil(SECTOR_SIZE).min(usize::from(u8::MAX)) as u8;
        let kind = OperationKind::Program { code_words, spare: false, again: false, paired: false };
        let verdict = self.faults.next(kind, None);
        if verdict == Verdict::Fails {
            return Err(WRITE_FAILED);
        }
        if verdict != Verdict::Ignored {
            self.visible.write(offset, source);
            self.unsynced.push(Unsynced { offset, bytes: source.into() });
        }
        if let Verdict::Cut(ending) = verdict {
            self.cut(ending, kind);
            return Err(StorageError::PowerOff);
        }
        let chunk_count = source.len().div_ceil(CHUNK_SIZE) as u64;
        Ok(self.timeline.post(0, self.timing.program_ns * chunk_count))
    }

    fn sync(&mut self) -> Result<Completion, StorageError> {
        self.check(0, 0)?;
        self.trace = mix(self.trace, 3);
        match self.faults.next(OperationKind::Sync, None) {
            Verdict::Works | Verdict::Ignored => self.settle(),
            Verdict::Fails => return Err(self.fail_sync()),
            Verdict::Cut(ending) => {
                self.cut(ending, OperationKind::Sync);
                return Err(StorageError::PowerOff);
            }
        }
        Ok(self.timeline.drain(self.timing.sync_ns))
    }

    /// Written zeros: their remains after a cut are drawn as of any write (M1).
    fn discard(&mut self, offset: u64, size: u64) -> Result<(), StorageError> {
        let host = self.host.take();
        let written = self.write_at(offset, &vec![0; size as usize]).map(drop);
        self.host = host;
        if let Some((host, known)) = &mut self.host {
            for (chunk, ..) in pieces(offset, size as usize) {
                known.resize(known.len().max(chunk + 1), Piece::Hole);
                if std::mem::replace(&mut known[chunk], Piece::Hole) != Piece::Hole {
                    host.give_back(CHUNK_SIZE as u64);
                }
            }
        }
        written
    }

    fn has_holes(&self) -> Result<bool, StorageError> {
        Ok(self.host.as_ref().is_some_and(|(_, known)| known.contains(&Piece::Hole)))
    }

    fn moves_rewrites(&self) -> bool {
        self.host.as_ref().is_some_and(|(host, _)| host.moves_rewrites)
    }

    fn reserve(&mut self, offset: u64, size: u64) -> Result<(), StorageError> {
        self.check(offset, size as usize)?;
        let Some((host, known)) = &mut self.host else { return Ok(()) };
        let chunks: Vec<usize> = pieces(offset, size as usize).map(|(chunk, ..)| chunk).collect();
        let last = chunks.last().map_or(0, |chunk| chunk + 1);
        known.resize(known.len().max(last), Piece::Hole);
        let holes = chunks.iter().filter(|chunk| known[**chunk] == Piece::Hole).count();
        host.take((holes * CHUNK_SIZE) as u64)?;
        for chunk in chunks {
            if known[chunk] == Piece::Hole {
                known[chunk] = Piece::Reserved;
            }
        }
        Ok(())
    }

    fn renew(&mut self, offset: u64, size: u64) -> Result<(), StorageError> {
        if self.moves_rewrites() {
            self.discard(offset, size)?;
        }
        self.reserve(offset, size)
    }

    fn size(&self) -> Result<u64, StorageError> {
        self.check(0, 0)?;
        Ok(self.size)
    }

    fn preallocate(&mut self, size: u64) -> Result<(), StorageError> {
        self.check(0, 0)?;
        self.resize(size);
        self.durable_size = size;
        Ok(())
    }

    fn extend(&mut self, from: u64, to: u64) -> Result<(), StorageError> {
        self.check(from, 0)?;
        if to > self.size_max {
            return Err(StorageError::NoSpace);
        }
        if let Some((host, known)) = &mut self.host {
            known.truncate(from as usize / CHUNK_SIZE);
            host.take(to - from)?;
            known.resize(to as usize / CHUNK_SIZE, Piece::Reserved);
        }
        let host = self.host.take();
        let written = self.write_zeros(from, to);
        self.host = host;
        written
    }

    fn now_ns(&self) -> u64 {
        self.timeline.now_ns()
    }

    fn advance_to(&mut self, now_ns: u64) {
        self.timeline.advance_to(now_ns);
    }
}

impl SimStorage {
    fn write_zeros(&mut self, from: u64, to: u64) -> Result<(), StorageError> {
        let mut offset = from;
        while offset < to {
            let step = (to - offset).min(GROWTH_SIZE);
            self.resize(self.size.max(offset + step));
            self.write_at(offset, &vec![0; step as usize])?;
            offset += step;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage() -> SimStorage {
        SimStorage::from_bytes(Timing::default(), &[1; 16384])
    }

    fn content(storage: &mut SimStorage) -> Vec<u8> {
        let mut bytes = vec![0; 16384];
        storage.read_at(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn synced_writes_survive_every_ending() {
        let endings = Ending::applicable(OperationKind::Sync, &crate::segment::capabilities());
        for ending in endings {
            let mut storage = storage();
            storage.write_at(100, &[2; 5000]).unwrap();
            storage.sync().unwrap();
            storage.set_plan(FaultPlan::power_cut(3, 2, ending));
            assert_eq!(storage.sync(), Err(StorageError::PowerOff));
            storage.power_cycle();
            assert_eq!(content(&mut storage)[100..5100], [2; 5000], "{ending}");
        }
    }

    /// Goal: M1. Method: many seeds of the finest ending; every sector is old or new as a whole,
    /// and both occur.
    #[test]
    fn a_cut_keeps_whole_sectors_of_any_subset() {
        let mut seen = [false; 2];
        for seed in 0..20 {
            let mut storage = storage();
            storage.write_at(0, &[2; 8192]).unwrap();
            let ending = Ending::UnsyncedSubset512 { draw: 0 };
            storage.set_plan(FaultPlan::power_cut(seed, 1, ending));
            assert_eq!(storage.write_at(8192, &[3; 512]), Err(StorageError::PowerOff));
            storage.power_cycle();
            for (index, sector) in content(&mut storage)[..8192].chunks(512).enumerate() {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "sector {index} is torn");
                seen[usize::from(sector[0] == 2)] = true;
            }
        }
        assert_eq!(seen, [true; 2]);
    }

    #[test]
    fn a_failed_sync_loses_the_writes_for_good() {
        for (sync_failure, visible) in [(SyncFailure::Dropped, 1), (SyncFailure::Kept, 2)] {
            let mut storage = storage();
            storage.write_at(0, &[2; 4096]).unwrap();
            let plan = FaultPlan::failure(1, 1, crate::Persistence::Once);
            storage.set_plan(FaultPlan { sync_failure, ..plan });
            assert_eq!(storage.sync(), Err(StorageError::SyncFailed));
            assert_eq!(content(&mut storage)[0], visible);
            storage.sync().unwrap();
            let number = storage.operation_count();
            storage.set_plan(FaultPlan::power_cut(1, number, Ending::Complete));
            assert_eq!(storage.sync(), Err(StorageError::PowerOff));
            storage.power_cycle();
            assert_eq!(content(&mut storage)[0], 1, "a dropped write came back");
        }
    }

    #[test]
    fn snapshots_are_independent() {
        let mut one = storage();
        let mut other = one.clone();
        one.write_at(4096, &[9; 4096]).unwrap();
        assert_eq!(content(&mut other), vec![1; 16384]);
        assert_eq!(content(&mut one)[4096..8192], [9; 4096]);
    }
}
