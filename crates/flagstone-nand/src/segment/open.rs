//! Devices made and opened on storage.
//!
//! Owns the checks of a profile and of a file's length. Never programs or erases a page.

use std::path::Path;

use super::head::{self, Found, Head};
use super::rooms::Rooms;
use super::shared::Shared;
use super::{GROWING_PAGES_MAX, SECTOR_SIZE, SegmentFile, capabilities};
use crate::rules::Rules;
use crate::storage::{FileStorage, OpenDeviceError, Storage};
use crate::{Capabilities, Counters, Geometry, Profile};

/// How much of a new file is there from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Fixed,
    /// 64 segments, or as many as it can have: the file grows.
    Growing,
}

/// Segments that a file which grows begins with.
const BLOCKS_BEGUN_WITH: u32 = 64;

/// Refuses profiles of other devices.
fn check_kind(profile: &Profile) -> Result<(), OpenDeviceError> {
    let geometry = profile.geometry;
    let fits = geometry.spare_size == 0
        && geometry.page_size.is_multiple_of(SECTOR_SIZE)
        && profile.capabilities.needs_sync;
    if fits && crate::profile::check(&geometry, &capabilities()).is_ok() {
        return Ok(());
    }
    Err(OpenDeviceError::Unsuitable)
}

impl SegmentFile<FileStorage> {
    /// Most bytes to which a file with pages of `page_size` bytes can grow.
    #[must_use]
    pub const fn size_max(page_size: u32) -> u64 {
        page_size as u64 * GROWING_PAGES_MAX as u64
    }

    /// Makes a device in a new file, or on a whole block device.
    ///
    /// # Errors
    ///
    /// The errors of [`FileStorage::create`], [`SegmentFile::create`] and [`SegmentFile::create_growing`]. A
    /// file that was made does not stay.
    pub fn create_file(
        path: &Path,
        profile: &Profile,
        extent: Extent,
    ) -> Result<Self, OpenDeviceError> {
        check_kind(profile)?;
        let size = match extent {
            Extent::Fixed => Head::new(profile, None).size_of(profile.geometry.block_count),
            // A block device is refused later, for its fixed size.
            Extent::Growing => 0,
        };
        FileStorage::create_for(path, size, |storage| Self::create_in(storage, profile, extent))
    }
}

impl<S: Storage> SegmentFile<S> {
    /// Makes a device on empty storage; takes geometry and tail rule from `profile`.
    ///
    /// All bytes are written before a superblock is, so a creation cut short leaves a file that
    /// is refused, or a whole one.
    ///
    /// # Errors
    ///
    /// `Unsuitable` for a profile with a spare area or without sync; host errors.
    pub fn create(storage: S, profile: &Profile) -> Result<Self, OpenDeviceError> {
        Self::create_with(storage, profile, None)
    }

    /// Makes a device on empty storage, all of it or its beginning.
    ///
    /// # Errors
    ///
    /// As [`SegmentFile::create`] and [`SegmentFile::create_growing`].
    pub fn create_in(
        storage: S,
        profile: &Profile,
        extent: Extent,
    ) -> Result<Self, OpenDeviceError> {
        match extent {
            Extent::Fixed => Self::create(storage, profile),
            Extent::Growing => Self::create_growing(storage, profile, BLOCKS_BEGUN_WITH),
        }
    }

    /// Makes a device that begins with `blocks` segments, two at least, and grows to the size that `profile` has.
    ///
    /// # Errors
    ///
    /// As [`SegmentFile::create`]; `TooLarge` when it could grow to more than 2^28 pages, `FixedSize` on a
    /// block device. Nothing was written.
    pub fn create_growing(
        storage: S,
        profile: &Profile,
        blocks: u32,
    ) -> Result<Self, OpenDeviceError> {
        let Geometry { page_size, block_count, .. } = profile.geometry;
        if profile.geometry.data_size() > u64::from(page_size) * u64::from(GROWING_PAGES_MAX) {
            let size_max = u64::from(page_size) * u64::from(GROWING_PAGES_MAX);
            return Err(OpenDeviceError::TooLarge { size: profile.geometry.data_size(), size_max });
        }
        if !storage.can_extend() {
            return Err(OpenDeviceError::FixedSize);
        }
        Self::create_with(storage, profile, Some(blocks.max(2).min(block_count)))
    }

    fn create_with(
        mut storage: S,
        profile: &Profile,
        made_with: Option<u32>,
    ) -> Result<Self, OpenDeviceError> {
        check_kind(profile)?;
        let head = Head::new(profile, made_with);
        let size = head.size_of(head.present_min());
        storage.expect_segments(head.size(), head.segment_size());
        storage.preallocate(size)?;
        storage.sync()?;
        head.write(&mut storage)?;
        Self::assemble(storage, head, head.no_marks(), size)
    }

    /// Opens a device. A damaged copy of its head is written again, where the storage is open for that; the
    /// next sync makes it durable.
    ///
    /// # Errors
    ///
    /// Names the fault of the file: not ours, another version, damaged, truncated.
    pub fn open(mut storage: S) -> Result<Self, OpenDeviceError> {
        let Found { head, marks, repairs } = Head::load(&mut storage)?;
        let found = storage.size()?;
        let expected = head.size_of(head.present_min());
        if found < expected {
            return Err(OpenDeviceError::Size { expected, found });
        }
        if storage.is_writable() {
            // One copy is enough: a failed repair keeps nobody out.
            for (offset, sector) in &repairs {
                let _ = storage.write_at(*offset, sector);
            }
        }
        Self::assemble(storage, head, marks, found)
    }

    /// Opens a device to be read, at any length and with any head. Where no copy of the head is whole, shapes
    /// that files of this kind have are tried until `is_right`.
    ///
    /// # Errors
    ///
    /// The fault that the head shows, where no shape is right.
    pub fn open_damaged(
        mut storage: S,
        mut is_right: impl FnMut(&mut Self) -> bool,
    ) -> Result<Self, OpenDeviceError> {
        let found = storage.size()?;
        let refused = match Head::load(&mut storage) {
            Ok(Found { head, marks, .. }) => {
                let mut device = Self::assemble(storage, head, marks, found)?;
                device.count_torn(found);
                return Ok(device);
            }
            Err(error) => error,
        };
        for (head, head_size) in Head::guesses(found) {
            let mut device = Self::assemble(storage, head, head.no_marks(), found)?;
            device.head_size = head_size;
            device.count_torn(found);
            if is_right(&mut device) {
                return Ok(device);
            }
            storage = device.into_storage();
        }
        Err(refused)
    }

    /// The last segment is there as far as it reaches.
    fn count_torn(&mut self, size: u64) {
        let begun = size.saturating_sub(self.head_size).div_ceil(self.geometry.block_size());
        let limit = self.geometry.block_count;
        self.set_present(u32::try_from(begun).unwrap_or(limit).min(limit));
    }

    /// Has storage forget the device that it holds: afterwards another one may be made there.
    ///
    /// # Errors
    ///
    /// Host errors.
    pub fn forget(mut storage: S) -> Result<(), OpenDeviceError> {
        Ok(head::forget(&mut storage)?)
    }

    fn assemble(
        mut storage: S,
        head: Head,
        bad: Vec<u8>,
        size: u64,
    ) -> Result<Self, OpenDeviceError> {
        let geometry = head.geometry;
        storage.expect_segments(head.size(), geometry.block_size());
        let capabilities = Capabilities { rewrite_tail: head.rewrite_tail, ..capabilities() };
        let shared = storage.shared().map(|storage| Shared::new(storage, geometry, head.size()));
        let mut device = Self {
            storage,
            head,
            geometry,
            capabilities,
            rules: Rules::new(geometry, capabilities),
            shared,
            head_size: head.size(),
            present: 0,
            bad,
            pages: Vec::new(),
            keeps_all: false,
            rooms: Rooms::default(),
            erase_counts: Vec::new(),
            counters: Counters::default(),
            poisoned: false,
        };
        device.set_present(head.present_in(size));
        device.forget_rooms();
        Ok(device)
    }
}
