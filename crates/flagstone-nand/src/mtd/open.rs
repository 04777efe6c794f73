//! Opening raw NAND: the driver's description, the profile, and the owner of the ECC on the chip.
//!
//! Owns the way from a path to a device (rules T3 and T5). Programs nothing; a chip that is to get a
//! database under other code words is erased.

use std::fs::{File, OpenOptions};
use std::path::Path;

use rustix::io::Errno;

use super::ioctl::Mode;
use super::sysfs::Sysfs;
use super::{EINVAL, ENDURANCE, KIND_NAND, MtdNand, PROBE_PROGRAMS, Reading, host, ioctl};
use crate::ecc::{Carried, EccNand};
use crate::storage::{Access, FileLock, LockedFile, OpenDeviceError, lock};
use crate::{
    Capabilities, CellMode, CodeWord, EccOwner, Geometry, NandError, PartialCut, Profile,
    ProgramOrder, SpareRange, Timing,
};

/// A device that is open, with its driver's description.
pub(super) struct Found {
    pub(super) file: LockedFile,
    pub(super) profile: Profile,
    /// Code word that the driver's ECC repairs: a step that may be smaller than the least program.
    pub(super) step: CodeWord,
}

impl Found {
    pub(super) fn open(path: &Path) -> Result<Self, OpenDeviceError> {
        Self::open_for(path, Access::Write)
    }

    fn open_for(path: &Path, access: Access) -> Result<Self, OpenDeviceError> {
        let file = open_locked(path, access)?;
        let (profile, step) = described(&file)?;
        Ok(Self { file, profile, step })
    }

    /// Profile of this chip by `asked`, or else by the driver.
    pub(super) fn under(&self, asked: Option<&Profile>) -> Result<Profile, OpenDeviceError> {
        let Some(asked) = asked else { return Ok(self.profile.clone()) };
        let geometry = Geometry { die_count: asked.geometry.die_count, ..self.profile.geometry };
        let is_same = |other: Geometry| Geometry { block_count: 0, ..other };
        if is_same(geometry) != is_same(asked.geometry) || asked.translation.is_some() {
            return Err(OpenDeviceError::Unsuitable);
        }
        Ok(Profile { geometry, ..asked.clone() })
    }

    /// The device byte by byte, with any code words.
    pub(super) fn raw(self) -> (MtdNand, Profile) {
        let Self { file, profile, .. } = self;
        let mut raw = MtdNand::assemble(file, profile.clone());
        raw.mode = Mode::Raw;
        (raw, profile)
    }

    /// The device with the kernel's ECC.
    pub(super) fn plain(self, asked: Option<&Profile>) -> Result<MtdNand, OpenDeviceError> {
        let asked = self.under(asked)?;
        if asked.ecc == EccOwner::Own {
            return Err(OpenDeviceError::Unsuitable);
        }
        let (mut raw, found) = self.raw();
        raw.carried_or_others()?.must_be_the_devices()?;
        raw.settled(asked, &found)
    }
}

impl MtdNand {
    /// Whose code words the chip carries. Where nothing can be read raw, nothing was programmed raw.
    fn carried_or_others(&mut self) -> Result<Carried, OpenDeviceError> {
        Ok(self.carried().map_err(open_error)?.unwrap_or(Carried::Others))
    }

    /// The same device under `profile`, limited by the kernel's ECC where that is in charge.
    fn settled(self, mut profile: Profile, found: &Profile) -> Result<Self, OpenDeviceError> {
        if profile.ecc == EccOwner::Device {
            limit(&mut profile.capabilities, found);
        }
        let mut device = Self::assemble(self.file, profile.checked()?);
        if self.reading == Reading::Watched {
            device.watch().map_err(|errno| open_error(host(errno)))?;
        }
        Ok(device)
    }
}

impl EccNand<MtdNand> {
    /// Opens a device as `profile` has it, or as its driver describes it, with the ECC that is on the chip.
    ///
    /// # Errors
    ///
    /// As [`MtdNand::open_as`]; `Ecc` when the profile names other code words of ours than the chip has.
    pub fn open_mtd(path: &Path, profile: Option<&Profile>) -> Result<Self, OpenDeviceError> {
        Self::open_mtd_for(path, profile, Access::Write)
    }

    /// As [`EccNand::open_mtd`], to be read, which it may be by several at a time. The kernel refuses each program
    /// and erase.
    ///
    /// # Errors
    ///
    /// As [`EccNand::open_mtd`], but for `ReadOnly`.
    pub fn open_mtd_read_only(
        path: &Path,
        profile: Option<&Profile>,
    ) -> Result<Self, OpenDeviceError> {
        Self::open_mtd_for(path, profile, Access::Read)
    }

    fn open_mtd_for(
        path: &Path,
        profile: Option<&Profile>,
        access: Access,
    ) -> Result<Self, OpenDeviceError> {
        let found = Found::open_for(path, access)?;
        let asked = found.under(profile)?;
        let (mut raw, found) = found.raw();
        let asked = raw.carried_or_others()?.settle(asked)?;
        let device = raw.settled(asked, &found)?;
        let profile = device.profile.clone();
        Ok(Self::new(device, &profile)?)
    }

    /// Profile of a device before a probe: its driver's description, with the ECC that is on the chip, or
    /// with ECC of our own, no weaker than the driver's.
    ///
    /// # Errors
    ///
    /// As [`MtdNand::open`]; `Profile` when code words of our own do not fit.
    pub fn describe_to_probe(path: &Path, ecc: EccOwner) -> Result<Profile, OpenDeviceError> {
        let found = Found::open(path)?;
        let step = found.step;
        let (mut raw, found) = found.raw();
        let known = raw.carried_or_others()?.settle(found)?;
        Ok(if ecc == EccOwner::Own { known.with_own_ecc_over(step)? } else { known })
    }

    /// Opens a device to find out its capabilities, through the ECC that `known` names.
    ///
    /// # Errors
    ///
    /// As [`MtdNand::open_to_probe`].
    pub fn open_to_probe(path: &Path, known: &Profile) -> Result<Self, OpenDeviceError> {
        if known.ecc == EccOwner::Device {
            let device = MtdNand::open_to_probe(path)?;
            let profile = device.profile.clone();
            return Ok(Self::new(device, &profile)?);
        }
        let found = Found::open(path)?;
        let mut profile = found.under(Some(known))?;
        let capabilities = &mut profile.capabilities;
        capabilities.programs_data = profile.geometry.page_size / capabilities.code_word.data_size;
        capabilities.programs_spare = PROBE_PROGRAMS;
        capabilities.first_program_order = ProgramOrder::Any;
        capabilities.reprogram_order = ProgramOrder::Any;
        let profile = profile.checked()?;
        Ok(Self::new(MtdNand::assemble(found.file, profile.clone()), &profile)?)
    }

    /// Opens a device that is to get a database, with the ECC of `profile`, or with `ecc` beside the rest of
    /// profile or driver: our ECC is then no weaker than theirs. A chip that carries other code words is
    /// erased: its content is lost.
    ///
    /// # Errors
    ///
    /// As [`MtdNand::open_as`]; `Io` with `EOPNOTSUPP` when the ECC is to be ours and the chip cannot be read raw.
    pub fn create_mtd(
        path: &Path,
        profile: Option<&Profile>,
        ecc: EccOwner,
    ) -> Result<Self, OpenDeviceError> {
        let found = Found::open(path)?;
        let asked = found.under(profile)?;
        let asked = if ecc == EccOwner::Own { asked.with_own_ecc_over(found.step)? } else { asked };
        let (mut raw, found) = found.raw();
        let gives_way = gives_way(raw.carried().map_err(open_error)?, &asked)?;
        let mut device = raw.settled(asked, &found)?;
        if !gives_way {
            device.erase_all().map_err(open_error)?;
        }
        let profile = device.profile.clone();
        Ok(Self::new(device, &profile)?)
    }
}

/// Whether a database may be made under `asked` without erasing anything first.
///
/// # Errors
///
/// The ECC is to be ours, and the chip cannot be read raw: nothing is to be erased for that.
pub(super) fn gives_way(
    carried: Option<Carried>,
    asked: &Profile,
) -> Result<bool, OpenDeviceError> {
    match (carried, asked.ecc) {
        (Some(carried), _) => Ok(carried.gives_way_to(asked)),
        (None, EccOwner::Device) => Ok(true),
        (None, EccOwner::Own) => {
            Err(OpenDeviceError::Io { errno: Errno::OPNOTSUPP.raw_os_error() })
        }
    }
}

fn open_error(error: NandError) -> OpenDeviceError {
    match error {
        NandError::Host { errno } => OpenDeviceError::Io { errno },
        NandError::WriteProtected => OpenDeviceError::ReadOnly,
        _ => OpenDeviceError::Io { errno: crate::storage::EIO },
    }
}

fn open_locked(path: &Path, access: Access) -> Result<LockedFile, OpenDeviceError> {
    let opened = OpenOptions::new().read(true).write(access == Access::Write).open(path);
    let file = opened.map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem
            if access == Access::Write =>
        {
            OpenDeviceError::ReadOnly
        }
        _ => OpenDeviceError::Io { errno: error.raw_os_error().unwrap_or(EINVAL) },
    })?;
    lock(&file, access, FileLock::Required).map(|()| LockedFile::over(file))
}

/// The kernel's description of the chip, and nothing more (rule T1).
fn described(file: &File) -> Result<(Profile, CodeWord), OpenDeviceError> {
    let info = ioctl::info(file).map_err(|errno| match errno {
        Errno::NOTTY => OpenDeviceError::NotMtd,
        _ => OpenDeviceError::Io { errno: errno.raw_os_error() },
    })?;
    let sysfs = Sysfs::of(file).ok_or(OpenDeviceError::NotMtd)?;
    let is_slc = sysfs.kind().map_or(info.kind == KIND_NAND, |kind| kind == "nand");
    if info.kind != KIND_NAND || !is_slc {
        return Err(OpenDeviceError::NotSlc);
    }
    if let Some(ubi) = sysfs.ubi() {
        return Err(OpenDeviceError::Attached { ubi });
    }
    let size = sysfs.number("size").unwrap_or_else(|| info.size.into());
    let number = |name: &str| sysfs.number(name).and_then(|number| u32::try_from(number).ok());
    let free = ioctl::free_spare(file).unwrap_or((0, 0));
    let (page_size, erase_size) = (info.write_size.max(1), info.erase_size.max(1));
    let sub_page = number("subpagesize").filter(|size| *size > 0).unwrap_or(page_size);
    let step = CodeWord {
        data_size: number("ecc_step_size").filter(|size| *size > 0).unwrap_or(page_size),
        strength: number("ecc_strength").unwrap_or(0),
    };
    let profile = Profile {
        name: String::from("mtd"),
        geometry: Geometry {
            page_size,
            spare_size: info.oob_size,
            pages_per_block: erase_size / page_size,
            block_count: u32::try_from(size / u64::from(erase_size)).unwrap_or(u32::MAX),
            die_count: 1,
        },
        capabilities: Capabilities {
            programs_data: page_size / sub_page,
            programs_spare: page_size / sub_page,
            first_program_order: ProgramOrder::Ascending,
            reprogram_order: ProgramOrder::Ascending,
            cell_mode: CellMode::Slc,
            code_word: CodeWord { data_size: sub_page.max(step.data_size), ..step },
            spare_raw: SpareRange { offset: 0, size: 0 },
            spare_covered: SpareRange { offset: free.0, size: free.1 },
            partial_cut: PartialCut::PageAtRisk,
            endurance: ENDURANCE,
            rewrite_tail: false,
            needs_sync: false,
        },
        timing: Timing::default(),
        ecc: EccOwner::Device,
        translation: None,
        source: String::from("the kernel's description of the device"),
        confidence: String::from("what the driver knows; the chip may do more"),
    };
    Ok((profile.checked()?, step))
}

/// Removes the capabilities from a profile that the kernel's ECC does not let through (rule T1).
pub(super) fn limit(capabilities: &mut Capabilities, found: &Profile) {
    let CodeWord { data_size: step, strength } = found.capabilities.code_word;
    let page_size = found.geometry.page_size;
    capabilities.code_word.data_size = capabilities.code_word.data_size.max(step);
    if strength > 0 {
        // More bits are never reported as corrected: a page would not be scrubbed before it is lost.
        capabilities.code_word.strength = capabilities.code_word.strength.min(strength);
    }
    capabilities.programs_data = capabilities.programs_data.min(page_size / step.max(1));
    let free = found.capabilities.spare_covered;
    let inside = |range: SpareRange| {
        let end = (range.offset + range.size).min(free.offset + free.size);
        let offset = range.offset.max(free.offset);
        SpareRange { offset, size: end.saturating_sub(offset) }
    };
    capabilities.spare_raw = inside(capabilities.spare_raw);
    capabilities.spare_covered = inside(capabilities.spare_covered);
}
