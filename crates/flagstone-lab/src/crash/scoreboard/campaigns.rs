//! Rows of faults other than power cuts.
//!
//! Owns the device and the length of each campaign's script. Never injects a fault: [`faults`] does.

use std::fmt::Write as _;

use super::super::faults::{self, Campaign, Trial};
use super::super::{CrashError, chip};
use super::{Engine, Outcome, config, counted, grouped};

pub(super) fn trial(profile: &str, ops: usize) -> Result<Trial, CrashError> {
    let chip = chip(profile, 1)?;
    let setup = config("flagstone", profile, ops, 1, 1).options(&chip)?.into();
    Ok(Trial { chip, setup, ops, seed: 1, threads: 2, stride: 1 })
}

pub(super) fn campaign(found: &Campaign) -> Outcome {
    let failures = found.failures.len() as u64;
    for (case, violation) in &found.failures {
        eprintln!("{}, {case}: {violation}", found.id);
    }
    let mut outcome =
        Outcome { cases: found.cases, failures, lost: failures, ..Outcome::default() };
    outcome.is_met = failures == 0 && found.cases > 0;
    outcome.value = counted(&outcome, "cases");
    if found.reported > 0 {
        let _ = write!(outcome.value, ", {} answered with a typed error", grouped(found.reported));
    }
    if found.unknowable > 0 {
        let count = grouped(found.unknowable);
        let _ = write!(outcome.value, ", {count} that nobody can tell from a power cut");
    }
    outcome
}

pub(super) fn correctable(_: u64) -> Result<Outcome, CrashError> {
    Ok(campaign(&faults::correctable_errors::<Engine>(&trial("tiny", 300)?)))
}

pub(super) fn uncorrectable(_: u64) -> Result<Outcome, CrashError> {
    Ok(campaign(&faults::uncorrectable_pages::<Engine>(&trial("tiny", 300)?)))
}

pub(super) fn failing(_: u64) -> Result<Outcome, CrashError> {
    Ok(campaign(&faults::failing_operations::<Engine>(&trial("tiny", 120)?)))
}

pub(super) fn misbehaving(_: u64) -> Result<Outcome, CrashError> {
    Ok(campaign(&faults::misbehaving_blocks::<Engine>(&trial("tiny", 120)?, &faults::BLOCK_FAULTS)))
}

pub(super) fn swapped(effort: u64) -> Result<Outcome, CrashError> {
    let stride = (16 / effort as usize).max(1);
    let found = faults::swapped_pages::<Engine>(&Trial { stride, ..trial("tiny", 120)? });
    Ok(share_of_pairs(campaign(&found), stride))
}

/// Row B8 asks for any two pages: a part of the pairs does not meet it.
pub(super) fn share_of_pairs(mut outcome: Outcome, stride: usize) -> Outcome {
    if stride > 1 {
        outcome.is_met = false;
        let _ = write!(outcome.value, "; one pair in {stride}");
    }
    outcome
}

pub(super) fn changed(effort: u64) -> Result<Outcome, CrashError> {
    Ok(campaign(&faults::changed_images::<Engine>(&trial("tiny", 120)?, 1_000 * effort)))
}

pub(super) fn full(_: u64) -> Result<Outcome, CrashError> {
    // Smaller values cannot fill the chip: there are not enough keys.
    let sizes: Vec<usize> = (0..58).map(|number| 43 + 17 * number).collect();
    Ok(campaign(&faults::full_then_deleted::<Engine>(&trial("tiny", 0)?, &sizes)))
}
