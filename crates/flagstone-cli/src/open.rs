//! Creating and opening the database that a command works on.
//!
//! Owns the file's name together with the open database, so that every failure can name it, and the comparison of an
//! image with the profile that the user insists on.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use flagstone::device::AnyNand;
use flagstone::{Bill, Database, Error, FileLock, OpenError, Snapshot, Table, Transaction};
#[cfg(target_os = "linux")]
use flagstone_nand::MtdNand;
use flagstone_nand::{
    Access, CellMode, EccNand, EccOwner, Extent, FileStorage, ImageNand, Making, Nand,
    OpenDeviceError, Profile, SegmentFile, kind_of, link_kind_of, nearest,
};

use flagstone_space::{MountError, Space};

use crate::failure::{Failure, warn};
use crate::files::{EEXIST, free_bytes, taken};
use crate::interrupt;
use crate::output::Form;
use crate::request::{Creation, NewDevice, Target};
use crate::size::format_size;

/// An open database and the file it lives in.
pub(crate) struct Opened {
    database: Database,
    path: PathBuf,
    /// Name of the snapshot that is read in its place.
    kept: Option<String>,
}

/// Opens the database that `target` names, to change it.
pub(crate) fn open(target: &Target) -> Result<Opened, Failure> {
    let result = match &target.profile {
        None => Database::open(&target.path, &target.options),
        Some(profile) => {
            let device = open_as(&target.path, profile, Access::Write, target.options.file_lock)?;
            Database::open_on(device, &target.options)
        }
    };
    let path = target.path.clone();
    match result {
        Ok(database) => Ok(Opened { database, path, kept: target.snapshot.clone() }),
        Err(source) => Err(Failure::Open { path, source }),
    }
}

/// Opens the database that `target` names for a command that only reads: nothing is written. If that takes more
/// memory than the limit, the database is opened for writing where possible.
pub(crate) fn open_to_read(target: &Target) -> Result<Opened, Failure> {
    let result = match &target.profile {
        None => Database::open_read_only(&target.path, &target.options),
        Some(profile) => {
            let device = open_as(&target.path, profile, Access::Read, target.options.file_lock)?;
            Database::open_read_only_on(device, &target.options)
        }
    };
    let path = target.path.clone();
    match result {
        Ok(database) => Ok(Opened { database, path, kept: target.snapshot.clone() }),
        Err(source @ OpenError::NeedsMemory { .. }) => match open(target) {
            Err(Failure::Open { path, source: OpenError::Device(OpenDeviceError::ReadOnly) }) => {
                Err(Failure::Open { path, source })
            }
            opened => opened,
        },
        Err(source) => Err(Failure::Open { path, source }),
    }
}

/// Opens the device that `path` holds, if it is the one that `profile` describes.
fn open_as(
    path: &Path,
    profile: &Profile,
    access: Access,
    lock: FileLock,
) -> Result<AnyNand, Failure> {
    let failure = not_opened(path);
    if is_node(path)? {
        return open_mtd_for(path, Some(profile), access).map_err(failure);
    }
    if ImageNand::is_at(path).map_err(failure)? {
        let image = EccNand::open_image_with(path, access, lock.into()).map_err(failure)?;
        let found = image.device().profile();
        // A profile that leaves the ECC to the device allows ours.
        require_same(path, &image, found.name.clone(), &profile.with_ecc_of(found))?;
        return Ok(AnyNand::new(image));
    }
    let storage = FileStorage::open_with(path, access, lock.into());
    let file = storage.and_then(SegmentFile::open).map_err(failure)?;
    require_same(path, &file, String::from("a plain file"), profile)?;
    Ok(AnyNand::new(file))
}

/// The failure of a device that could not be opened, or looked at.
fn not_opened(path: &Path) -> impl Fn(OpenDeviceError) -> Failure + Copy {
    move |source| Failure::Open { path: path.into(), source: source.into() }
}

/// Refuses a device whose shape or rules differ from those of `asked`; sizes may differ.
fn require_same(
    path: &Path,
    device: &impl Nand,
    found: String,
    asked: &Profile,
) -> Result<(), Failure> {
    let (mut shape, found_shape) = (asked.geometry, device.geometry());
    shape.block_count = found_shape.block_count;
    if asked.capabilities.cell_mode == CellMode::File {
        // A file's segments follow its size.
        shape.pages_per_block = found_shape.pages_per_block;
    }
    if shape == device.geometry() && asked.capabilities == device.capabilities() {
        return Ok(());
    }
    Err(Failure::Profile { path: path.into(), found, asked: asked.name.clone() })
}

/// The device of a database that was created.
pub(crate) struct Created {
    /// Name of its profile.
    pub(crate) profile: String,
    /// Bytes of its data areas.
    pub(crate) data_size: u64,
    /// Bytes of its data areas at full size.
    pub(crate) data_size_max: u64,
    /// Whether it grows up to its limit.
    pub(crate) grows: bool,
}

/// Bytes of a new file above which its size is announced: writing it takes a while.
const LARGE: u64 = 1 << 30;

/// Announces the size of a large file that is written as a whole, and refuses a file for which there is no room.
pub(crate) fn announce(creation: &Creation, form: Form) -> Result<(), Failure> {
    let path = &creation.path;
    let size = match &creation.device {
        NewDevice::Image(profile) => {
            warn_of_drive(path, profile, form);
            profile.geometry.image_size()
        }
        NewDevice::Segments(profile) => profile.geometry.data_size(),
        NewDevice::Growing(..) | NewDevice::Mtd(..) => return Ok(()),
    };
    // An existing file is not replaced, so its room does not count; the creation reports it.
    if link_kind_of(path).map_err(not_opened(path))?.is_some() {
        return Ok(());
    }
    if let Some(free) = free_bytes(path).filter(|free| *free < size) {
        return Err(Failure::NoRoom { path: path.clone(), size, free });
    }
    if size >= LARGE {
        let size = format_size(size);
        let path = path.display();
        warn(&format!("{path}: all of its {size} are written now; see --capacity"), form);
    }
    Ok(())
}

/// Warns that an image of a drive holds its chips, not the drive as a host sees it.
fn warn_of_drive(path: &Path, profile: &Profile, form: Form) {
    if profile.translation.is_none() {
        return;
    }
    let (path, name) = (path.display(), &profile.name);
    warn(
        &format!(
            "{path}: {name} is a drive, and the image is one of its bare chips, as if the drive did not manage them: \
             on a drive of your own (SSD, eMMC, SD) leave out --profile"
        ),
        form,
    );
}

/// Creates a database and hands it to `fill`; when either fails, no file of it stays behind. A file gets its name
/// when it is whole and closed.
pub(crate) fn create_database<T>(
    creation: &Creation,
    fill: impl FnOnce(&Opened) -> Result<T, Failure>,
) -> Result<(Created, T), Failure> {
    let path = creation.path.clone();
    interrupt::watch_files();
    let NewFile { making, device, profile } = vacant_device(creation)?;
    let data_size_max = device.geometry().data_size();
    let database = Database::create_on(device, &creation.options)
        .map_err(|source| Failure::Open { path: path.clone(), source })?;
    let opened = Opened { database, path: path.clone(), kept: None };
    let filled = fill(&opened)?;
    let data_size = data_size(opened.database.runtime().space().device());
    let grows = making.is_some() && matches!(creation.device, NewDevice::Growing(..));
    opened.close()?;
    if let Some(making) = making {
        making.appear().map_err(not_opened(&path))?;
    }
    Ok((Created { profile, data_size, data_size_max, grows }, filled))
}

/// A device that was made for a database, and the name of its profile.
struct NewFile {
    /// The file that gets its name later; none on a device of the system.
    making: Option<Making>,
    device: AnyNand,
    profile: String,
}

/// The device of a database to be created. A device that holds a database is refused, unless the user gives the
/// database up.
fn vacant_device(creation: &Creation) -> Result<NewFile, Failure> {
    let path = &creation.path;
    let is_block_device = is_block_device(path)?;
    match &creation.device {
        NewDevice::Mtd(profile, _) if !creation.overwrite => {
            require_no_database(path, profile.as_ref())?;
        }
        NewDevice::Mtd(..) => {}
        _ if is_block_device => {}
        device => {
            let side = matches!(device, NewDevice::Image(_)).then(|| ImageNand::side_path(path));
            for used in [Some(path), side.as_ref()].into_iter().flatten() {
                if link_kind_of(used).map_err(not_opened(used))?.is_some() {
                    return Err(taken(used));
                }
            }
        }
    }
    let create = || create_device(creation, is_block_device);
    match create() {
        Err(OpenDeviceError::Io { errno: EEXIST }) if is_block_device => {
            if !creation.overwrite {
                return Err(Failure::Occupied { path: path.clone() });
            }
            give_up(path).and_then(|()| create()).map_err(not_opened(path))
        }
        created => created.map_err(not_opened(path)),
    }
}

/// Has a block device forget the database that it holds.
fn give_up(path: &Path) -> Result<(), OpenDeviceError> {
    SegmentFile::forget(FileStorage::open(path)?)
}

/// Refuses raw NAND that holds a database, which the command would destroy.
pub(crate) fn require_no_database(path: &Path, profile: Option<&Profile>) -> Result<(), Failure> {
    require_not(holds_database(path, profile), path)
}

/// The same of a chip that is to be probed: raw NAND, or an image.
pub(crate) fn require_no_database_to_probe(path: &Path) -> Result<(), Failure> {
    let image = || Ok(mounts(EccNand::open_image(path)?)?);
    require_not(if is_node(path)? { holds_database(path, None) } else { image() }, path)
}

fn require_not(is_occupied: Result<bool, OpenError>, path: &Path) -> Result<(), Failure> {
    match is_occupied {
        Ok(false) => Ok(()),
        Ok(true) => Err(Failure::Occupied { path: path.into() }),
        Err(source) => Err(Failure::Open { path: path.into(), source }),
    }
}

/// Whether raw NAND holds a database, made with `profile` or by the driver's description. Writes nothing.
fn holds_database(path: &Path, profile: Option<&Profile>) -> Result<bool, OpenError> {
    for profile in profile.map(Some).into_iter().chain([None]) {
        let device = match open_mtd(path, profile) {
            // Without the profile the chip opens under the ECC that it carries.
            Err(OpenDeviceError::Ecc { .. }) => continue,
            device => device?,
        };
        if mounts(device)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a device holds a database, a damaged one or one of another shape among them.
fn mounts(device: impl Nand) -> Result<bool, MountError> {
    match Space::mount(device) {
        Err(MountError::NotFormatted) => Ok(false),
        Err(error @ MountError::Device(_)) => Err(error),
        Ok(_) | Err(_) => Ok(true),
    }
}

/// Bytes of the present data areas.
pub(crate) fn data_size(device: &impl Nand) -> u64 {
    device.geometry().block_size() * u64::from(device.present_blocks())
}

/// A device, and its file until the file has its name.
type Made = (Option<Making>, AnyNand);

/// Makes the device; nothing of it stays when it cannot be made.
fn create_device(creation: &Creation, is_block_device: bool) -> Result<NewFile, OpenDeviceError> {
    let path = &creation.path;
    let begin = || Making::begin(path, creation.options.file_lock.into());
    let segments = |profile: &Profile, extent| -> Result<Made, OpenDeviceError> {
        if is_block_device {
            return Ok((None, AnyNand::new(SegmentFile::create_file(path, profile, extent)?)));
        }
        let (making, storage) = begin()?;
        Ok((Some(making), AnyNand::new(SegmentFile::create_in(storage, profile, extent)?)))
    };
    let ((making, device), profile): (Made, _) = match &creation.device {
        NewDevice::Image(profile) if is_block_device => {
            ((None, AnyNand::new(EccNand::create_image(path, profile)?)), Some(profile))
        }
        NewDevice::Image(profile) => {
            let (making, storage) = begin()?;
            let device = EccNand::create_image_in(&making, storage, profile)?;
            ((Some(making), AnyNand::new(device)), Some(profile))
        }
        NewDevice::Segments(profile) => (segments(profile, Extent::Fixed)?, Some(profile)),
        NewDevice::Growing(profile, fixed) => {
            let made = match fixed.as_deref().filter(|_| is_block_device) {
                Some(fixed) => segments(fixed, Extent::Fixed)?,
                None => segments(profile, Extent::Growing)?,
            };
            (made, Some(profile))
        }
        NewDevice::Mtd(profile, ecc) => {
            ((None, create_mtd(path, profile.as_ref(), *ecc)?), profile.as_ref())
        }
    };
    let profile = profile.map_or_else(|| String::from("mtd"), |profile| profile.name.clone());
    Ok(NewFile { making, device, profile })
}

/// Opens raw NAND as `profile`, or else its driver, describes it.
fn open_mtd(path: &Path, profile: Option<&Profile>) -> Result<AnyNand, OpenDeviceError> {
    open_mtd_for(path, profile, Access::Write)
}

#[cfg(target_os = "linux")]
fn open_mtd_for(
    path: &Path,
    profile: Option<&Profile>,
    access: Access,
) -> Result<AnyNand, OpenDeviceError> {
    Ok(AnyNand::new(match access {
        Access::Write => EccNand::open_mtd(path, profile)?,
        Access::Read => EccNand::open_mtd_read_only(path, profile)?,
    }))
}

/// Opens raw NAND to make a database on it.
#[cfg(target_os = "linux")]
fn create_mtd(
    path: &Path,
    profile: Option<&Profile>,
    ecc: EccOwner,
) -> Result<AnyNand, OpenDeviceError> {
    Ok(AnyNand::new(EccNand::create_mtd(path, profile, ecc)?))
}

#[cfg(not(target_os = "linux"))]
fn create_mtd(_: &Path, _: Option<&Profile>, _: EccOwner) -> Result<AnyNand, OpenDeviceError> {
    Err(OpenDeviceError::Unsuitable)
}

#[cfg(not(target_os = "linux"))]
fn open_mtd_for(_: &Path, _: Option<&Profile>, _: Access) -> Result<AnyNand, OpenDeviceError> {
    Err(OpenDeviceError::Unsuitable)
}

/// Profile of raw NAND as `profile`, or else its driver, describes it, with its size.
#[cfg(target_os = "linux")]
pub(crate) fn mtd_profile(path: &Path, profile: Option<&Profile>) -> Result<Profile, Failure> {
    let found = MtdNand::describe(path, profile);
    found.map_err(|source| Failure::Open { path: path.into(), source: source.into() })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn mtd_profile(path: &Path, _: Option<&Profile>) -> Result<Profile, Failure> {
    Err(Failure::Open { path: path.into(), source: OpenDeviceError::Unsuitable.into() })
}

/// The device that `path` holds, to be probed, and its known profile.
pub(crate) fn device_to_probe(path: &Path, ecc: EccOwner) -> Result<(AnyNand, Profile), Failure> {
    if FileStorage::open_read_only(path).and_then(SegmentFile::open).is_ok() {
        return Err(Failure::NoChip { path: path.into() });
    }
    let found = if is_node(path)? { mtd_to_probe(path, ecc) } else { image_to_probe(path) };
    found.map_err(not_opened(path))
}

fn image_to_probe(path: &Path) -> Result<(AnyNand, Profile), OpenDeviceError> {
    // A file without a profile beside it is no chip.
    if kind_of(path)?.is_some() && !ImageNand::is_at(path)? {
        return Err(OpenDeviceError::NotFlagstone);
    }
    let image = EccNand::open_image(path)?;
    let profile = image.device().profile().clone();
    Ok((AnyNand::new(image), profile))
}

#[cfg(target_os = "linux")]
fn mtd_to_probe(path: &Path, ecc: EccOwner) -> Result<(AnyNand, Profile), OpenDeviceError> {
    // The profile takes the driver's description, not the wider one under which the probe experiments.
    let known = EccNand::describe_to_probe(path, ecc)?;
    Ok((AnyNand::new(EccNand::open_to_probe(path, &known)?), known))
}

#[cfg(not(target_os = "linux"))]
fn mtd_to_probe(_: &Path, _: EccOwner) -> Result<(AnyNand, Profile), OpenDeviceError> {
    Err(OpenDeviceError::Unsuitable)
}

/// Whether a path is the node of a block device.
pub(crate) fn is_block_device(path: &Path) -> Result<bool, Failure> {
    is_kind(path, FileType::is_block_device)
}

/// Whether a path is a device node of MTD's kind.
fn is_node(path: &Path) -> Result<bool, Failure> {
    is_kind(path, FileType::is_char_device)
}

fn is_kind(path: &Path, is: impl FnOnce(&FileType) -> bool) -> Result<bool, Failure> {
    Ok(kind_of(path).map_err(not_opened(path))?.is_some_and(|kind| is(&kind)))
}

impl Opened {
    /// The database.
    #[must_use]
    pub(crate) const fn database(&self) -> &Database {
        &self.database
    }

    /// The failure that `source` is, with the file named.
    #[must_use]
    pub(crate) fn failure(&self, source: impl Into<Error>) -> Failure {
        Failure::Engine { path: self.path.clone(), source: source.into() }
    }

    /// The result of `operation`; an error names the file.
    pub(crate) fn run<T, E: Into<Error>>(
        &self,
        operation: impl FnOnce(&Database) -> Result<T, E>,
    ) -> Result<T, Failure> {
        operation(&self.database).map_err(|source| self.failure(source))
    }

    /// How many rows a table has, roughly.
    pub(crate) fn len_estimate(&self, table: Table) -> u64 {
        match self.kept {
            None => self.database.begin().len_estimate(table),
            Some(_) => 0,
        }
    }

    /// A snapshot of everything committed, or the one named by the user.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, Failure> {
        let Some(name) = &self.kept else { return self.run(Database::snapshot) };
        self.require_snapshot(name)?;
        self.run(|database| database.open_named_snapshot(name))
    }

    /// Passes when a snapshot is kept under that name.
    pub(crate) fn require_snapshot(&self, name: &str) -> Result<(), Failure> {
        let kept = self.database.named_snapshots();
        if kept.iter().any(|it| it == name) {
            return Ok(());
        }
        let nearest = nearest(name, kept.iter().map(String::as_str)).map(str::to_owned);
        Err(Failure::NoSnapshot { path: self.path.clone(), snapshot: name.to_owned(), nearest })
    }

    /// Names of all tables that are read, in order.
    pub(crate) fn tables(&self) -> Result<Vec<String>, Failure> {
        match self.kept {
            None => self.run(Database::tables),
            Some(_) => self.snapshot()?.tables().map_err(|source| self.failure(source)),
        }
    }

    /// Runs `operation` in one transaction and makes it durable; a deadlock begins it again. Also gives its cost on
    /// flash.
    pub(crate) fn change<T, E: Into<Error>>(
        &self,
        operation: impl Fn(&mut Transaction) -> Result<T, E>,
    ) -> Result<(T, Bill), Failure> {
        loop {
            let mut transaction = self.database.begin();
            let result = operation(&mut transaction)
                .map_err(Into::into)
                .and_then(|value| Ok((value, transaction.commit()?.bill)));
            match result {
                Err(Error::Deadlock) => {}
                result => return result.map_err(|source| self.failure(source)),
            }
        }
    }

    /// The table called `name`, which must exist.
    pub(crate) fn table(&self, name: &str) -> Result<Table, Failure> {
        let found = match self.kept {
            None => self.run(|database| database.existing_table(name))?,
            Some(_) => self.snapshot()?.table(name).map_err(|source| self.failure(source))?,
        };
        if let Some(table) = found {
            return Ok(table);
        }
        let tables = self.tables()?;
        let nearest = nearest(name, tables.iter().map(String::as_str)).map(str::to_owned);
        Err(Failure::NoTable { path: self.path.clone(), table: name.to_owned(), nearest })
    }

    /// Names of the indexes of `table`, which are renamed and dropped with it.
    pub(crate) fn indexes(&self, table: &str) -> Result<Vec<String>, Failure> {
        let head = format!("{table}@");
        let mut names = self.run(Database::tables)?;
        names.retain(|name| name.starts_with(&head));
        Ok(names)
    }

    /// Warns that rows of `table` were changed past its indexes, if it has any: only the program that made the
    /// indexes knows their keys.
    pub(crate) fn warn_of_indexes(&self, table: &str, form: Form) -> Result<(), Failure> {
        let indexes = self.indexes(table)?.join(", ");
        if !indexes.is_empty() {
            let path = self.path.display();
            let message = format!(
                "{path}: rows of `{table}` were changed past its indexes ({indexes}): repair them in the program, \
                 or drop them, and it makes them anew"
            );
            warn(&message, form);
        }
        Ok(())
    }

    /// Closes the database: the next opening has little to read.
    pub(crate) fn close(self) -> Result<(), Failure> {
        let Self { database, path, .. } = self;
        database.close().map_err(|source| Failure::Engine { path, source: source.into() })
    }
}
