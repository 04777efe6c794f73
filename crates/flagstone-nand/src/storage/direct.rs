//! Writes of less than a page past the system's page cache, where the drive takes them.
//!
//! The page cache writes whole pages of 4 KiB: for a log that grows by sectors it would write the
//! same page again with every commit. A drive whose own blocks are smaller takes the sectors alone.
//! Where its blocks are not smaller, the drive would read and write the whole block itself: no
//! gain, and the page cache does this in memory.
//!
//! Reads, and writes of whole pages, stay with the page cache; the system keeps the two coherent.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{OFlags, major, minor};

/// Largest block of a drive for which writing past the page cache pays: the sector of the log.
const BLOCK_SIZE_MAX: usize = 512;

/// Least size of a write of the page cache.
const PAGE_SIZE: usize = 4096;

/// A file opened a second time, for writes that the page cache would enlarge.
#[derive(Debug)]
pub(super) struct Direct {
    file: File,
    buffer: Mutex<Vec<u8>>,
    /// Some file systems open a file so and refuse each write.
    is_refused: AtomicBool,
}

impl Direct {
    /// None where the drive, the file system or the kernel do not allow it.
    pub(super) fn over(file: &File) -> Option<Self> {
        let data = file.metadata().ok()?;
        let is_device = data.file_type().is_block_device();
        let number = if is_device { data.rdev() } else { data.dev() };
        let home = format!("/sys/dev/block/{}:{}", major(number), minor(number));
        (physical_block_size(Path::new(&home))? <= BLOCK_SIZE_MAX).then_some(())?;
        let mut options = OpenOptions::new();
        let flags = i32::try_from(OFlags::DIRECT.bits()).ok()?;
        let again = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let file = options.read(true).write(true).custom_flags(flags).open(again).ok()?;
        Some(Self::new(file))
    }

    fn new(file: File) -> Self {
        let buffer = Mutex::new(vec![0; PAGE_SIZE + BLOCK_SIZE_MAX]);
        Self { file, buffer, is_refused: AtomicBool::new(false) }
    }

    /// Whether a write is one that the page cache would enlarge.
    fn takes(&self, offset: u64, size: usize) -> bool {
        let is_aligned =
            offset.is_multiple_of(BLOCK_SIZE_MAX as u64) && size.is_multiple_of(BLOCK_SIZE_MAX);
        is_aligned && (1..PAGE_SIZE).contains(&size) && !self.is_refused.load(Ordering::Relaxed)
    }

    /// Does a write that the page cache would enlarge; false where the write is left to the cache.
    pub(super) fn writes(&self, offset: u64, source: &[u8]) -> bool {
        if !self.takes(offset, source.len()) {
            return false;
        }
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        // The kernel wants memory aligned as well.
        let start = buffer.as_ptr().align_offset(BLOCK_SIZE_MAX);
        let room = &mut buffer[start..start + source.len()];
        room.copy_from_slice(source);
        let is_written = self.file.write_all_at(room, offset).is_ok();
        if !is_written {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        is_written
    }
}

/// Bytes that the drive behind a directory of `/sys` writes at least; a partition's is its disk's.
fn physical_block_size(home: &Path) -> Option<usize> {
    let read = |path| fs::read_to_string(home.join(path)).ok();
    let text = read("queue/physical_block_size").or_else(|| read("../queue/physical_block_size"));
    text?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the page cache reads the bytes that were written past it, before and after writes of
    /// both ways. Method: a file; where the drive refuses, there is nothing to test.
    #[test]
    fn both_ways_see_the_same_bytes() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let file = options.open(directory.path().join("file")).unwrap();
        file.write_all_at(&[1; 3 * PAGE_SIZE], 0).unwrap();
        let Some(direct) = Direct::over(&file) else { return };
        let mut expected = vec![1; 3 * PAGE_SIZE];
        let mut found = vec![0; 3 * PAGE_SIZE];
        for step in 0..48_u8 {
            let offset = usize::from(step) * 7 % 23 * BLOCK_SIZE_MAX;
            let size = if step % 5 == 0 { BLOCK_SIZE_MAX } else { 100 };
            expected[offset..offset + size].fill(step);
            let source = &expected[offset..offset + size];
            if !direct.writes(offset as u64, source) {
                assert!(size != BLOCK_SIZE_MAX, "step {step}");
                file.write_all_at(source, offset as u64).unwrap();
            }
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found == expected, "step {step}");
        }
    }

    #[test]
    fn whole_pages_and_odd_bytes_go_through_the_page_cache() {
        let file = tempfile::tempfile().unwrap();
        let direct = Direct::new(file);
        let taken = [(0, 512), (512, 1024), (8192, 3584)];
        let refused = [(0, 4096), (0, 0), (1, 512), (512, 100), (0, 8192)];
        assert!(taken.into_iter().all(|(offset, size)| direct.takes(offset, size)));
        assert!(!refused.into_iter().any(|(offset, size)| direct.takes(offset, size)));
    }

    #[test]
    fn a_drive_that_is_not_known_is_left_alone() {
        assert_eq!(physical_block_size(Path::new("/sys/dev/block/none")), None);
    }
}
