//! Rows of power cuts: every operation, every ending, and the reads of an opening.
//!
//! Owns which presets and chips a row explores. Never decides which contents are right: the model does.

use std::fmt::Write as _;

use flagstone_nand::{Profile, SimNand};

use super::super::explore::Limits;
use super::super::opening::{FORMULA, Opening, opening_reads};
use super::super::sequences::{explore_sequences, prepared};
use super::super::subject::Setup;
use super::super::swarm::CHIP_PROFILES;
use super::super::{CrashConfig, CrashError, CrashReport, chip, explore};
use super::{Engine, Outcome, config, counted, grouped, seeds};
use crate::preset;

/// Operations that were cut, and operations that the device counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cuts {
    pub(super) points: u64,
    pub(super) operations: u64,
}

pub(super) fn explored(
    configs: impl IntoIterator<Item = CrashConfig>,
) -> Result<(Cuts, Outcome), CrashError> {
    let (mut cuts, mut outcome) = (Cuts::default(), Outcome::default());
    for config in configs {
        let CrashReport { points, operations, states, failures, lost_commits, lines, .. } =
            explore(&config, &|_, _| {})?;
        lines.iter().for_each(|line| eprintln!("{line}"));
        cuts.points += points;
        cuts.operations += operations;
        outcome.cases += states;
        outcome.failures += failures;
        outcome.lost += lost_commits;
    }
    outcome.is_met = outcome.failures == 0;
    Ok((cuts, outcome))
}

pub(super) fn every_cut(effort: u64) -> Result<Outcome, CrashError> {
    let (cuts, outcome) = explored(seeds(effort).flat_map(|seed| every_preset(120, seed)))?;
    Ok(cuts_of_all(cuts, outcome))
}

/// Each preset of the engine on a small chip that has what the preset asks for.
pub(super) fn every_preset(ops: usize, seed: u64) -> impl Iterator<Item = CrashConfig> {
    preset::flagstone().into_iter().map(move |preset| {
        let profile = if preset == "flagstone-flags" { "tiny-flags" } else { "tiny" };
        config(preset, profile, ops, 1, seed)
    })
}

/// Row A1: every operation that the device counted was cut.
pub(super) fn cuts_of_all(Cuts { points, operations }: Cuts, mut outcome: Outcome) -> Outcome {
    outcome.is_met &= points == operations && operations > 0;
    let (points, operations) = (grouped(points), grouped(operations));
    outcome.value = format!("{points}/{operations}, {} failures", outcome.failures);
    outcome
}

pub(super) fn every_state(effort: u64) -> Result<Outcome, CrashError> {
    let profiles = CHIP_PROFILES.into_iter().chain(["tiny-dies", "segment-file"]);
    let configs = profiles.flat_map(|profile| {
        seeds(effort).map(move |seed| config("flagstone", profile, 120, 1, seed))
    });
    let (cuts, mut outcome) = explored(configs)?;
    outcome.is_met &= outcome.cases >= 1_000_000;
    let (states, points) = (grouped(outcome.cases), grouped(cuts.points));
    outcome.value = format!("{states} states of {points} cuts, {} failures", outcome.failures);
    Ok(outcome)
}

pub(super) fn two_deep(effort: u64) -> Result<Outcome, CrashError> {
    let configs = ["tiny", "tiny-nospare"].into_iter().flat_map(|profile| {
        seeds(effort).map(move |seed| config("flagstone", profile, 12, 2, seed))
    });
    let (_, mut outcome) = explored(configs)?;
    outcome.value = counted(&outcome, "states");
    Ok(outcome)
}

pub(super) fn file_states(effort: u64) -> Result<Outcome, CrashError> {
    let configs = seeds(4 * effort).map(|seed| config("flagstone", "segment-file", 150, 1, seed));
    let (_, mut outcome) = explored(configs)?;
    outcome.is_met &= outcome.cases >= 100_000;
    outcome.value = counted(&outcome, "states");
    Ok(outcome)
}

pub(super) fn short_sequences(effort: u64) -> Result<Outcome, CrashError> {
    let device = chip("tiny", 1)?;
    let setup: Setup = config("flagstone", "tiny", 0, 1, 1).options(&device)?.into();
    let mut outcome = Outcome { is_met: true, ..Outcome::default() };
    let length_max = if effort > 1 { 3 } else { 2 };
    match prepared::<Engine, _>(device, &setup) {
        Ok((device, model)) => {
            let limits = Limits::default();
            for (_, tally) in explore_sequences::<Engine, _>(
                &device,
                &model,
                &setup,
                length_max,
                &limits,
                &|_, _| {},
            ) {
                outcome.cases += tally.states;
                outcome.failures += tally.failure_count;
                outcome.lost += tally.lost_commits;
            }
        }
        Err(_) => outcome.failures = 1,
    }
    outcome.is_met = outcome.failures == 0 && length_max == 3;
    outcome.value = format!("length ≤ {length_max}: {}", counted(&outcome, "states"));
    Ok(outcome)
}

pub(super) fn opening(effort: u64) -> Result<Outcome, CrashError> {
    let mut outcome = Outcome { is_met: true, ..Outcome::default() };
    outcome.details += "| chip | pages | states opened | most reads | formula |\n";
    outcome.details += "| --- | --- | --- | --- | --- |\n";
    let mut worst: f64 = 0.0;
    for profile in CHIP_PROFILES.into_iter().chain(["slc-2k"]) {
        let mut all = Opening::default();
        for seed in seeds(effort) {
            let chip = match profile {
                "slc-2k" => SimNand::new(&Profile::named(profile)?.with_block_count(128)?, seed),
                tiny => chip(tiny, seed)?,
            };
            let limits = Limits { seed, states_max: 2_000, ..Limits::default() };
            let found = opening_reads(chip, &limits, 100)?;
            let (states, failures) = (all.states + found.states, all.failures + found.failures);
            all = Opening {
                states,
                failures,
                reads_max: all.reads_max.max(found.reads_max),
                ..found
            };
        }
        let Opening { states, failures, reads_max, bound, pages } = all;
        outcome.cases += states;
        outcome.failures += failures;
        outcome.is_met &= failures == 0 && reads_max <= bound;
        worst = worst.max(reads_max as f64 / bound as f64);
        let (pages, states) = (grouped(pages), grouped(states));
        let _ = writeln!(
            outcome.details,
            "| `{profile}` | {pages} | {states} | {reads_max} | {bound} |"
        );
    }
    let states = grouped(outcome.cases);
    outcome.value = format!(
        "at most {:.0} % of {FORMULA}, in {states} states, {} failures",
        worst * 100.0,
        outcome.failures
    );
    Ok(outcome)
}
