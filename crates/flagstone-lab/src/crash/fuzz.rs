//! Entry points of the fuzzer, and of the seeded loops that stand in for it.
//!
//! Owns the meaning of bytes: an image, or a configuration with a script and two power cuts. Never
//! panics itself; a violation is returned, and the fuzz target makes a crash of it.

use std::sync::Arc;

use flagstone_engine::{Durability, EngineError, Options};
use flagstone_nand::{Profile, SimNand};

use super::explore::{Pick, Scenario, follow, guarded};
use super::rig::{Capturing, Rig};
use super::run::{RunnerRig, Stop, Violation};
use super::script::{KeyIndex, Mix, Script, TABLE_COUNT, key_bytes};
use super::subject::{Setup, Subject};
use super::swarm::{CHIP_PROFILES, Draw};
use super::{chip, small};
use crate::model::{Model, SlotIndex, TableIndex};

type ChipRig = RunnerRig<SimNand>;

/// Outcome of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageVerdict {
    /// It was opened; so many pairs were read.
    Opened(usize),
    /// It was opened, and a later step was refused with this error.
    Damaged(String),
    /// It was refused with this error.
    Refused(String),
}

/// Operations of a fuzzed script; more only cost time.
const OPS_MAX: usize = 150;

/// Bytes in front of a fuzzed script: seed of the configuration, and two cuts.
const PICK_SIZE: usize = 3;

/// Runs the case that `bytes` spell: configuration, script, a cut, and a cut in the recovery.
///
/// # Errors
///
/// The violation found.
pub fn ops<S: Subject<ChipRig>>(bytes: &[u8]) -> Result<(), Violation> {
    let Some((seed, rest)) = bytes.split_at_checked(2) else { return Ok(()) };
    let Some((picks, script)) = rest.split_at_checked(2 * PICK_SIZE) else { return Ok(()) };
    let seed = u64::from(u16::from_le_bytes([seed[0], seed[1]]));
    let draw = Draw::seeded(seed, 1);
    let Ok(profile) = Profile::named(draw.profile) else { return Ok(()) };
    let Ok(profile) = profile.with_block_count(draw.block_count) else { return Ok(()) };
    let scenario = Scenario {
        device: SimNand::new(&profile, seed),
        model: None,
        setup: draw.options.into(),
        script: Script::from_bytes(script, OPS_MAX),
    };
    let picks = picks
        .chunks_exact(PICK_SIZE)
        .map(|pick| Pick { operation: u16::from_le_bytes([pick[0], pick[1]]), ending: pick[2] });
    follow::<S, SimNand>(&scenario, picks, seed)
}

/// Opens, reads, checks, writes and closes `bytes`, taken for the image of a tiny chip.
///
/// The first byte chooses the chip.
///
/// # Errors
///
/// A panic or an endless loop; every typed error is a good answer.
pub fn image<S: Subject<ChipRig>>(bytes: &[u8]) -> Result<ImageVerdict, Violation> {
    let (choice, content) = bytes.split_first().unwrap_or((&0, &[]));
    let name = CHIP_PROFILES[usize::from(*choice) % CHIP_PROFILES.len()];
    let mut chip = small_chip(name)?;
    chip.load_image(content);
    image_on_chip::<S>(chip)
}

fn small_chip(name: &str) -> Result<SimNand, Violation> {
    chip(name, 0).map_err(|_| Violation::Fault("a shipped profile is missing"))
}

/// Inputs of [`image`] that open: a chip of each kind on which a script was run, with its name.
///
/// # Errors
///
/// A violation on the way.
pub fn image_seeds<S: Subject<ChipRig>>() -> Result<Vec<(&'static str, Vec<u8>)>, Violation> {
    let seed = |(choice, name): (u8, &'static str)| {
        let chip = small_chip(name)?;
        let setup = small(Options::default(), &chip).into();
        let script = Script::seeded(u64::from(choice), OPS_MAX, &Mix::default());
        let scenario = Scenario { device: chip, model: None, setup, script: Script::default() };
        let chip = scenario.in_use::<S>(&script)?.device;
        Ok((name, [vec![choice], chip.to_image()].concat()))
    };
    (0..).zip(CHIP_PROFILES).map(seed).collect()
}

/// As [`image`], for a chip that holds the image already.
///
/// # Errors
///
/// As [`image`].
pub fn image_on_chip<S: Subject<ChipRig>>(chip: SimNand) -> Result<ImageVerdict, Violation> {
    let setup = small(Options::default(), &chip).into();
    let rig = Rig::new(chip, Arc::new(Model::default()), Capturing::Off);
    let verdict = guarded(|| Ok(survey::<S>(rig.clone(), &setup)));
    match verdict {
        Err(Stop::Violation(violation)) => Err(violation),
        _ if rig.is_exhausted() => Err(Violation::Endless),
        Ok(verdict) => Ok(verdict),
        Err(_) => Err(Violation::Fault("a survey cannot stop otherwise")),
    }
}

fn survey<S: Subject<ChipRig>>(rig: ChipRig, setup: &Setup) -> ImageVerdict {
    match S::open(rig, setup) {
        Err(error) => ImageVerdict::Refused(error.to_string()),
        Ok(subject) => match use_all(subject) {
            Ok(count) => ImageVerdict::Opened(count),
            Err(error) => ImageVerdict::Damaged(error.to_string()),
        },
    }
}

/// Uses everything an opened image offers; the first error ends it.
fn use_all<S: Subject<ChipRig>>(mut subject: S) -> Result<usize, EngineError> {
    let slot = SlotIndex(0);
    let contents = subject.contents();
    subject.check()?;
    let count = contents?.len();
    subject.prepare_tables()?;
    subject.begin(slot)?;
    for table in (0..TABLE_COUNT).map(TableIndex) {
        subject.put(slot, table, &key_bytes(table, KeyIndex(1)), b"written after damage")?;
    }
    subject.commit(slot, Durability::Immediate)?;
    subject.collect()?;
    subject.close()?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::Flagstone;

    #[test]
    fn seeds_of_the_fuzzer_open() {
        let seeds = image_seeds::<Flagstone<ChipRig>>().unwrap();
        assert_eq!(seeds.len(), CHIP_PROFILES.len());
        for (name, bytes) in seeds {
            let verdict = image::<Flagstone<ChipRig>>(&bytes).unwrap();
            assert!(matches!(verdict, ImageVerdict::Opened(1..)), "{name}: {verdict:?}");
        }
    }
}
