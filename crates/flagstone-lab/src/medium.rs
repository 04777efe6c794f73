//! The simulated device of a run: a chip, or a drive where the profile has a translation layer.
//!
//! Owns the choice and nothing else: every operation goes to the device unchanged.

use flagstone_nand::{
    BlockIndex, Capabilities, Completion, Counters, Crashable, EccNand, Geometry, Nand, NandError,
    PhysicalPage, Profile, ProfileError, ProgramPart, ReadPart, SimNand, SimSsd, SsdCounters,
    THIN_FACTOR,
};

/// A simulated chip or drive. `Clone` takes a snapshot.
#[derive(Clone, Debug)]
pub enum Medium {
    /// A chip, with the ECC of its profile.
    Chip(Box<EccNand<SimNand>>),
    /// A drive.
    Ssd(Box<SimSsd>),
}

/// Calls the same method of either device.
macro_rules! of_either {
    ($medium:expr, $device:ident => $call:expr) => {
        match $medium {
            Medium::Chip($device) => $call,
            Medium::Ssd($device) => $call,
        }
    };
}

impl Medium {
    /// The device of `profile`, as it leaves the factory.
    ///
    /// # Errors
    ///
    /// The profile contradicts itself.
    pub fn new(profile: &Profile, seed: u64) -> Result<Self, ProfileError> {
        Ok(match profile.translation {
            None => Self::Chip(Box::new(EccNand::simulated(profile, seed)?)),
            Some(translation) => Self::Ssd(Box::new(SimSsd::new(profile, translation, seed))),
        })
    }

    /// The device of `profile` for a run: a drive has been used before (preconditioned).
    ///
    /// # Errors
    ///
    /// The profile contradicts itself; the drive is too small for its own reserve.
    pub fn used(profile: &Profile, seed: u64) -> Result<Self, NandError> {
        let medium = Self::new(profile, seed);
        let mut medium = medium.map_err(|_| NandError::Host { errno: EINVAL })?;
        if let Self::Ssd(ssd) = &mut medium {
            ssd.precondition(seed)?;
        }
        Ok(medium)
    }

    /// Restores the power.
    pub fn power_cycle(&mut self) {
        of_either!(self, device => device.power_cycle());
    }

    /// Running hash of all operations.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        of_either!(self, device => device.trace_hash())
    }
}

/// `EINVAL` on every Unix: no device is like that.
const EINVAL: i32 = 22;

/// Pages that a block of the device under `profile` really has.
#[must_use]
pub fn real_pages_per_block(profile: &Profile, geometry: &Geometry) -> u32 {
    match profile.translation {
        Some(_) => geometry.pages_per_block / THIN_FACTOR,
        None => geometry.pages_per_block,
    }
}

/// Blocks of a device on which `used_blocks` blocks hold the host's writes: a drive has its reserve
/// on top, at least two blocks a die, and equal dies.
#[must_use]
pub fn real_block_count(profile: &Profile, used_blocks: u32) -> u32 {
    let Some(translation) = profile.translation else { return used_blocks };
    let dies = profile.geometry.die_count.max(1);
    let visible_percent = 100 - translation.reserve_percent.min(99);
    let with_reserve = (u64::from(used_blocks) * 100).div_ceil(u64::from(visible_percent));
    let with_reserve = u32::try_from(with_reserve).unwrap_or(u32::MAX);
    with_reserve.max(used_blocks.saturating_add(2 * dies)).next_multiple_of(dies)
}

impl Nand for Medium {
    fn geometry(&self) -> Geometry {
        of_either!(self, device => device.geometry())
    }

    fn capabilities(&self) -> Capabilities {
        of_either!(self, device => device.capabilities())
    }

    fn read(&mut self, page: PhysicalPage, part: ReadPart<'_>) -> Result<Completion, NandError> {
        of_either!(self, device => device.read(page, part))
    }

    fn program(
        &mut self,
        page: PhysicalPage,
        part: ProgramPart<'_>,
    ) -> Result<Completion, NandError> {
        of_either!(self, device => device.program(page, part))
    }

    fn erase(&mut self, block: BlockIndex) -> Result<Completion, NandError> {
        of_either!(self, device => device.erase(block))
    }

    fn may_lack_room(&self) -> bool {
        of_either!(self, device => device.may_lack_room())
    }

    fn trim(&mut self, first: PhysicalPage, count: u32) {
        of_either!(self, device => device.trim(first, count));
    }

    fn takes_spare(&mut self, page: PhysicalPage) -> Result<bool, NandError> {
        of_either!(self, device => device.takes_spare(page))
    }

    fn is_bad(&mut self, block: BlockIndex) -> Result<bool, NandError> {
        of_either!(self, device => device.is_bad(block))
    }

    fn mark_bad(&mut self, block: BlockIndex) -> Result<(), NandError> {
        of_either!(self, device => device.mark_bad(block))
    }

    fn sync(&mut self) -> Result<Completion, NandError> {
        of_either!(self, device => device.sync())
    }

    fn erase_count(&self, block: BlockIndex) -> u32 {
        of_either!(self, device => device.erase_count(block))
    }

    fn counters(&self) -> Counters {
        of_either!(self, device => device.counters())
    }

    fn translation(&self) -> Option<SsdCounters> {
        of_either!(self, device => device.translation())
    }

    fn reset_counters(&mut self) {
        of_either!(self, device => device.reset_counters());
    }

    fn now_ns(&self) -> u64 {
        of_either!(self, device => device.now_ns())
    }

    fn advance_to(&mut self, now_ns: u64) {
        of_either!(self, device => device.advance_to(now_ns));
    }

    fn resume_at(&mut self, now_ns: u64) {
        of_either!(self, device => device.resume_at(now_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_with_a_translation_layer_makes_a_drive() {
        let chip = Profile::named("tiny").unwrap();
        assert!(matches!(Medium::new(&chip, 1), Ok(Medium::Chip(_))));
        let drive = Profile::named("otf-ssd").unwrap().with_block_count(32).unwrap();
        let medium = Medium::used(&drive, 1).unwrap();
        assert!(medium.translation().is_some(), "a drive counts its own work");
        let real = real_pages_per_block(&drive, &medium.geometry());
        assert_eq!(real, drive.geometry.pages_per_block);
    }

    #[test]
    fn a_drive_has_its_reserve_on_top() {
        let drive = Profile::named("otf-ssd").unwrap();
        assert_eq!(real_block_count(&drive, 930), 1000);
        assert_eq!(real_block_count(&drive, 8), 24, "two blocks a die");
        assert_eq!(real_block_count(&Profile::named("slc-2k").unwrap(), 8), 8);
    }
}
