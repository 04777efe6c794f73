//! Images made and opened.
//!
//! Owns the choice of the profile that an image is opened under, and the signs of an image at a path. Never programs or
//! erases.

use std::fs;
use std::path::{Path, PathBuf};

use super::side::{self, Side};
use super::{ImageNand, mark_of};
use crate::ecc::{Carried, survey};
use crate::fault::Faults;
use crate::rules::Rules;
use crate::segment::{begins_like_ours, is_ours};
use crate::storage::{
    Access, FileLock, FileStorage, Making, OpenDeviceError, Storage, StorageError, kind_of,
    link_kind_of, look_at, require_missing,
};
use crate::{Counters, EccNand, EccOwner, Profile};

/// An image is read at any size.
#[derive(Clone, Copy, Debug)]
struct Damaged<'a> {
    /// In place of a side file that does not read.
    profile: Option<&'a Profile>,
}

impl ImageNand {
    /// Makes an erased image and its side file.
    ///
    /// # Errors
    ///
    /// `Io` when either exists already or cannot be written; `Unsuitable` for a file profile, and for
    /// one with ECC of our own ([`EccNand::create_image`]). Neither file stays.
    pub fn create(path: &Path, profile: &Profile) -> Result<Self, OpenDeviceError> {
        if profile.ecc == EccOwner::Own {
            return Err(OpenDeviceError::Unsuitable);
        }
        Self::make(path, profile)
    }

    fn make(path: &Path, profile: &Profile) -> Result<Self, OpenDeviceError> {
        let size = usable(profile)?.geometry.image_size();
        let side_path = Self::side_path(path);
        // An existing file is not ours: each save would take its place.
        require_missing(&side_path)?;
        let made =
            FileStorage::create_for(path, size, |storage| Self::make_in(storage, path, profile));
        if made.is_err() {
            side::remove(&side_path);
        }
        made
    }

    /// Makes an erased image in an empty file, which is called `path` now.
    fn make_in(
        mut storage: FileStorage,
        path: &Path,
        profile: &Profile,
    ) -> Result<Self, OpenDeviceError> {
        let profile = usable(profile)?;
        let size = profile.geometry.image_size();
        storage.fill(size, 0xFF)?;
        debug_assert_eq!(storage.size(), Ok(size));
        let side = Side::new(&profile);
        let nand = Self::assemble(storage, Self::side_path(path), profile, side)?;
        nand.save(side::Closing::Open).map(|()| nand)
    }

    /// Whether a path holds an image: a side file lies beside it, and it is no file of segments.
    ///
    /// # Errors
    ///
    /// Host errors: the content of the path is then not known.
    pub fn is_at(path: &Path) -> Result<bool, OpenDeviceError> {
        let side_path = Self::side_of(path)?;
        if kind_of(&side_path)?.is_none() {
            return Ok(false);
        }
        let is_image = |storage: &mut FileStorage| {
            if begins_like_ours(storage) {
                return Ok(false);
            }
            // Content of an image may look like the second head of a file.
            let expected = side::load(&side_path).map(|(profile, _)| profile.geometry.image_size());
            let has_its_size = expected.is_ok_and(|size| storage.size() == Ok(size));
            Ok(has_its_size || !is_ours(storage)?)
        };
        look_at(path, is_image)?.unwrap_or(Ok(true))
    }

    /// The side file of an image: `PATH.toml`.
    #[must_use]
    pub fn side_path(path: &Path) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(".toml");
        name.into()
    }

    /// The side file of an image that may be there under another name: a link to an image uses the side file
    /// of its target, unless a side file lies beside the link alone.
    fn side_of(path: &Path) -> Result<PathBuf, OpenDeviceError> {
        let own = Self::side_path(path);
        let is_link = link_kind_of(path)?.is_some_and(|kind| kind.is_symlink());
        if !is_link || kind_of(path)?.is_none() {
            return Ok(own);
        }
        let image = fs::canonicalize(path).map_err(|error| side::io(path, &error))?;
        let pointed = Self::side_path(&image);
        Ok(if kind_of(&pointed)?.is_some() { pointed } else { own })
    }

    /// Opens an image with the side file beside it.
    ///
    /// # Errors
    ///
    /// Names the fault: no profile beside it, a damaged one, one of another size, locked, read-only, ECC of
    /// our own on the chip ([`EccNand::open_image`]).
    pub fn open(path: &Path) -> Result<Self, OpenDeviceError> {
        Self::load(path, Access::Write, FileLock::Required, None, |carried, profile| {
            let made = match profile.ecc {
                EccOwner::Own => Carried::Own(profile.capabilities.code_word),
                EccOwner::Device => Carried::Nothing,
            };
            made.must_be_the_devices().and(carried.must_be_the_devices()).map(|()| profile)
        })
    }

    /// Opens an image under the profile that `settle` makes of the chip's code words and the side file.
    fn load(
        path: &Path,
        access: Access,
        lock: FileLock,
        damaged: Option<Damaged<'_>>,
        settle: impl FnOnce(Carried, Profile) -> Result<Profile, OpenDeviceError>,
    ) -> Result<Self, OpenDeviceError> {
        let mut storage = FileStorage::open_with(path, access, lock)?;
        let side_path = Self::side_of(path)?;
        let (profile, blocks) = match (side::load(&side_path), damaged) {
            (Err(_), Some(Damaged { profile: Some(profile) })) => (profile.clone(), None),
            (loaded, _) => loaded?,
        };
        // Before memory is taken for as many blocks as the profile says.
        let (expected, found) = (profile.geometry.image_size(), storage.size()?);
        let profile = match damaged {
            None if expected != found => return Err(OpenDeviceError::Size { expected, found }),
            None => profile,
            Some(_) => of_size(profile, found)?,
        };
        let side = match Side::of(&profile, blocks) {
            Err(_) if damaged.is_some() => Side::new(&profile),
            side => side.map_err(|fault| side::error(&side_path, fault))?,
        };
        let carried = carried(&mut storage, &profile)?;
        let profile = settle(carried, profile)?;
        let mut nand = Self::assemble(storage, side_path, profile, side)?;
        match access {
            Access::Write => nand.save(side::Closing::Open)?,
            // An image that is only read has no state to save.
            Access::Read => nand.closed = true,
        }
        Ok(nand)
    }

    fn assemble(
        storage: FileStorage,
        side_path: PathBuf,
        profile: Profile,
        side: Side,
    ) -> Result<Self, OpenDeviceError> {
        let mut nand = Self {
            storage,
            side_path,
            rules: Rules::new(profile.geometry, profile.device_capabilities()),
            blocks: vec![None; profile.geometry.block_count as usize],
            bad: side.bad.clone(),
            erase_counts: side.erase_counts.clone(),
            remembered: side,
            profile,
            counters: Counters::default(),
            faults: Faults::default(),
            poisoned: false,
            closed: false,
        };
        nand.load_marks()?;
        Ok(nand)
    }

    /// Reads the bad-block marks (K4).
    fn load_marks(&mut self) -> Result<(), OpenDeviceError> {
        let geometry = self.profile.geometry;
        let Some(mark_at) = mark_of(&self.profile) else { return Ok(()) };
        for block in geometry.blocks() {
            let mut marked = false;
            for page in (0..2).filter_map(|index| geometry.page(block, index)) {
                let mut mark = [0xFF];
                let offset = self.spare_offset(page) + mark_at;
                read_as_far(&mut self.storage, offset, &mut mark)?;
                marked |= mark != [0xFF];
            }
            self.bad[block.0 as usize] = marked;
        }
        Ok(())
    }
}

impl EccNand<ImageNand> {
    /// Makes an erased image and its side file, with the ECC that the profile names.
    ///
    /// # Errors
    ///
    /// As [`ImageNand::create`].
    pub fn create_image(path: &Path, profile: &Profile) -> Result<Self, OpenDeviceError> {
        Ok(Self::new(ImageNand::make(path, profile)?, profile)?)
    }

    /// As [`EccNand::create_image`], in a file that has its name later: when the device is closed.
    ///
    /// # Errors
    ///
    /// As [`ImageNand::create`].
    pub fn create_image_in(
        making: &Making,
        storage: FileStorage,
        profile: &Profile,
    ) -> Result<Self, OpenDeviceError> {
        Ok(Self::new(ImageNand::make_in(storage, making.path(), profile)?, profile)?)
    }

    /// Opens an image with the side file beside it. Whether the ECC is ours is read off the image, where the
    /// side file leaves it to the device.
    ///
    /// # Errors
    ///
    /// As [`ImageNand::open`]; `Ecc` when the side file speaks of other code words than the image has.
    pub fn open_image(path: &Path) -> Result<Self, OpenDeviceError> {
        Self::open_image_with(path, Access::Write, FileLock::Required)
    }

    /// As [`EccNand::open_image`], to be read, which it may be by several at a time. Neither the image nor the
    /// side file is written; each program and erase fails.
    ///
    /// # Errors
    ///
    /// As [`EccNand::open_image`], but for `ReadOnly`.
    pub fn open_image_read_only(path: &Path) -> Result<Self, OpenDeviceError> {
        Self::open_image_with(path, Access::Read, FileLock::Required)
    }

    /// As [`EccNand::open_image`] and [`EccNand::open_image_read_only`], with a lock or where the file system has
    /// none.
    ///
    /// # Errors
    ///
    /// As both; `NoLocks` where a lock is required and there is none.
    pub fn open_image_with(
        path: &Path,
        access: Access,
        lock: FileLock,
    ) -> Result<Self, OpenDeviceError> {
        let image = ImageNand::load(path, access, lock, None, Carried::settle)?;
        let profile = image.profile.clone();
        Ok(Self::new(image, &profile)?)
    }

    /// As [`EccNand::open_image_read_only`], however short the image is. `profile` is taken where the side file does
    /// not read.
    ///
    /// # Errors
    ///
    /// As [`EccNand::open_image_read_only`], but for `Size`.
    pub fn open_image_damaged(
        path: &Path,
        profile: Option<&Profile>,
    ) -> Result<Self, OpenDeviceError> {
        let damaged = Some(Damaged { profile });
        let image =
            ImageNand::load(path, Access::Read, FileLock::Required, damaged, Carried::settle)?;
        let profile = image.profile.clone();
        Ok(Self::new(image, &profile)?)
    }
}

/// The profile of an image of `size` bytes, the last block begun.
fn of_size(profile: Profile, size: u64) -> Result<Profile, OpenDeviceError> {
    let block_size = profile.geometry.image_size() / u64::from(profile.geometry.block_count.max(1));
    let begun = size.div_ceil(block_size.max(1)).max(1);
    let begun = begun.next_multiple_of(profile.geometry.die_count.max(1).into());
    Ok(profile.with_block_count(u32::try_from(begun).unwrap_or(u32::MAX))?)
}

/// The profile of an image to be made, if it is that of a chip.
fn usable(profile: &Profile) -> Result<Profile, OpenDeviceError> {
    let profile = profile.clone().checked()?;
    if profile.capabilities.needs_sync { Err(OpenDeviceError::Unsuitable) } else { Ok(profile) }
}

/// Whose code words an image holds.
fn carried(storage: &mut FileStorage, profile: &Profile) -> Result<Carried, OpenDeviceError> {
    let geometry = profile.geometry;
    let Some(mark_at) = mark_of(profile) else { return Ok(Carried::Others) };
    let stride = u64::from(geometry.page_size) + u64::from(geometry.spare_size);
    let mut read = |page: u32, data: &mut [u8], spare: &mut [u8]| {
        let offset = stride * u64::from(page);
        read_as_far(storage, offset, data)?;
        read_as_far(storage, offset + u64::from(geometry.page_size), spare)
    };
    survey(&geometry, |block, data, spare| {
        let first = block.0 * geometry.pages_per_block;
        let is_marked = |spare: &[u8]| spare.get(mark_at as usize) != Some(&0xFF);
        let mut is_bad = false;
        if geometry.pages_per_block > 1 {
            read(first + 1, &mut [], spare)?;
            is_bad = is_marked(spare);
        }
        read(first, data, spare)?;
        Ok(!is_bad && !is_marked(spare))
    })
}

/// Reads bytes of an image that may have been cut short: missing bytes were never programmed.
fn read_as_far(
    storage: &mut FileStorage,
    offset: u64,
    target: &mut [u8],
) -> Result<(), StorageError> {
    match storage.read_at(offset, target) {
        Err(StorageError::BeyondEnd) => target.fill(0xFF),
        read => {
            read?;
        }
    }
    Ok(())
}
