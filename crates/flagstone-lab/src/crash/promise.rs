//! The promise tested on Flagstone: small explorations that run in seconds.
//!
//! Longer than 600 lines: a list of one small test for each promise.
//!
//! `FLAGSTONE_EFFORT=N` makes them N times as large. Every failure prints how to get there again:
//! a replay line, the seed of a swarm, or the fault of a campaign.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flagstone_engine::blocking::Database;
use flagstone_engine::{Collection, OpenError, OptionsError, WearLevelling};
use flagstone_nand::{
    Crashable, Ending, FaultPlan, Nand, Profile, SegmentFile, SimNand, SimSsd, SimStorage,
};

use super::faults::{self, Campaign, Trial};
use super::fuzz::{ImageVerdict, image_on_chip, image_seeds};
use super::opening::opening_reads;
use super::rig::{Capturing, Rig};
use super::run::Runner;
use super::script::{self, Op, Script, value_bytes};
use super::sequences::{explore_sequences, prepared};
use super::subject::Setup;
use super::swarm::{CHIP_PROFILES, Draw};
use super::wear;
use super::{
    Classic, CrashConfig, CrashReport, Cut, CutPath, Flagstone, Limits, Records, RunnerRig,
    Scenario, Shadow, chip, drive, explore, fuzz_image, fuzz_ops, replay,
};

use crate::preset::{self, EngineKind};

type Engine = Flagstone<RunnerRig<SimNand>>;
type OnFile = Flagstone<RunnerRig<SegmentFile<SimStorage>>>;

fn effort() -> u64 {
    std::env::var("FLAGSTONE_EFFORT").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn config(preset: &str, profile: &str, ops: usize, depth: u32, seed: u64) -> CrashConfig {
    let (preset, profile) = (preset.to_owned(), profile.to_owned());
    CrashConfig { preset, profile, ops, depth, seed, ..CrashConfig::default() }
}

fn explored(config: &CrashConfig) -> CrashReport {
    let report = explore(config, &|_, _| {}).unwrap();
    assert!(report.states > 20, "{config:?}: only {} states", report.states);
    report
}

/// Goal: at any operation at which power fails, and with any ending of that operation, reopening
/// yields every acknowledged commit and at most the ones in flight.
///
/// Method: all states of seeded scripts on every chip and on a file. Nothing is sampled.
#[test]
fn every_power_cut_recovers_a_committed_prefix() {
    let mut lines = Vec::new();
    for profile in CHIP_PROFILES.into_iter().chain(["tiny-dies", "segment-file"]) {
        for seed in 0..effort() {
            lines.extend(explored(&config("flagstone", profile, 80, 1, seed)).lines);
        }
    }
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

/// Goal: the same where the second page of a pair is in flight on one die while another die erases.
/// Method: all states of a script on paired cells with two dies; and recoveries cut again on four.
#[test]
fn every_power_cut_beside_another_die_recovers() {
    for (profile, die_count, depth) in [("tiny-mlc", 2, 1), ("tiny-dies", 4, 2)] {
        let mut shape = Profile::named(profile).unwrap().with_block_count(80).unwrap();
        shape.geometry.die_count = die_count;
        let config = config("flagstone", profile, 100, depth, 1);
        let scenario = config.scenario(SimNand::new(&shape, 1)).unwrap();
        let limits =
            Limits { depth, states_max: 600 / u64::from(depth * depth), ..Limits::default() };
        let tally = super::explore::explore::<Engine, _>(&scenario, &limits, &|_, _| {});
        assert!(tally.states > 100, "{profile}: only {} states", tally.states);
        assert_eq!(tally.failures, [], "{profile}");
    }
}

/// Goal: the same where merges append to the page of their leaf.
/// Method: all states of scripts of small changes on a chip whose pages take three appends each.
#[test]
fn every_power_cut_of_an_append_recovers() {
    for seed in 0..effort() {
        let config = config("flagstone", "tiny-shared", 300, 1, seed);
        let mut scenario = config.scenario(chip("tiny-shared", seed).unwrap()).unwrap();
        scenario.script = Script::seeded(seed, config.ops, &script::APPENDS);
        let rig: RunnerRig<SimNand> =
            Rig::new(scenario.device.clone(), Arc::default(), Capturing::Off);
        let mut runner = Runner::<Engine, _>::create(rig, &scenario.setup).unwrap();
        // Counters of an engine end with the engine.
        let mut calm = scenario.script.clone();
        calm.0.retain(|op| !matches!(op, Op::Reopen | Op::PowerLoss));
        runner.run(&calm).unwrap();
        let appends = runner.subject().map(|engine| engine.stats().delta_appends);
        assert!(appends.is_some_and(|appends| appends > 0), "seed {seed}: {appends:?} appends");
        let limits = Limits { states_max: 1_000, ..Limits::default() };
        let tally = super::explore::explore::<Engine, _>(&scenario, &limits, &|_, _| {});
        assert!(tally.states > 100, "seed {seed}: only {} states", tally.states);
        assert_eq!(tally.failures, [], "seed {seed}");
    }
}

/// Goal: the same with any order of collection, and where resting data is left alone. Method:
/// states of a script for each pair of policies.
#[test]
fn every_power_cut_under_every_collection_recovers() {
    for collection in [Collection::CostBenefit, Collection::CostAgeTimes] {
        for wear_levelling in [WearLevelling::Dynamic, WearLevelling::Static] {
            let config = config("flagstone", "tiny", 120, 1, 3);
            let mut scenario = config.scenario(chip("tiny", 3).unwrap()).unwrap();
            let options = scenario.setup.options.with_wear_levelling(wear_levelling);
            scenario.setup.options =
                options.with_techniques(|techniques| techniques.collection = collection);
            let limits = Limits { states_max: 500, ..Limits::default() };
            let tally = super::explore::explore::<Engine, _>(&scenario, &limits, &|_, _| {});
            assert!(tally.states > 100, "{collection:?}: only {} states", tally.states);
            assert_eq!(tally.failures, [], "{collection:?}, {wear_levelling:?}");
        }
    }
}

/// Goal: the same on a drive, whose translation layer collects and erases beneath the engine.
/// Method: all states of seeded scripts on a drive that was used before; a replay line leads to one.
#[test]
fn every_power_cut_of_a_drive_recovers() {
    for seed in 0..effort() {
        let config = config("flagstone", "otf-ssd", 120, 1, seed);
        let report = explored(&config);
        assert!(report.lines.is_empty(), "{}", report.lines.join("\n"));
        let profile = Profile::named("otf-ssd").unwrap();
        let drive = drive(profile.clone(), profile.translation.unwrap(), seed).unwrap();
        let rig: RunnerRig<SimSsd> = Rig::new(drive, Arc::default(), Capturing::Off);
        let scenario = config.scenario(rig.device()).unwrap();
        let mut runner =
            Runner::<Flagstone<RunnerRig<SimSsd>>, _>::create(rig.clone(), &scenario.setup)
                .unwrap();
        runner.run(&scenario.script).unwrap();
        let inside = rig.device().translation().unwrap();
        assert!(inside.erases > 0, "seed {seed}: the drive never collected");
        let path = CutPath(vec![Cut::of(30, Ending::Untouched)]);
        assert_eq!(replay(&config, &path).unwrap().failures, 0, "seed {seed}");
    }
}

/// Goal: the same on every shipped drive, made as small as the others. Method: a short script on each.
#[test]
fn every_power_cut_of_every_shipped_drive_recovers() {
    let is_drive = |name: &&str| Profile::named(name).unwrap().translation.is_some();
    for name in Profile::names().filter(is_drive) {
        let report = explored(&config("flagstone", name, 25, 1, 1));
        assert!(report.lines.is_empty(), "{name}: {}", report.lines.join("\n"));
    }
}

/// Goal: the same where the drive programs overwrites in place. Method: all states of seeded scripts of
/// engines that append, on drives that see only whole pages.
#[test]
fn every_power_cut_of_a_drive_that_appends_recovers() {
    for profile in ["openssd-jasmine-pslc-ssd", "openssd-jasmine-odd-mlc-ssd"] {
        for (preset, seed) in [("ipa-2x4", 1), ("flagstone", 2)] {
            let report = explored(&config(preset, profile, 120, 1, seed));
            assert!(report.lines.is_empty(), "{}", report.lines.join("\n"));
        }
    }
}

/// The chip for a preset of the classic engine: one that takes appends where it makes any.
fn classic_profile(preset: &str) -> &'static str {
    if preset::options(preset).unwrap().techniques().append_scheme.records_max() > 0 {
        "tiny-shared"
    } else {
        "tiny"
    }
}

/// Goal: the same for every engine and preset that the lab compares.
#[test]
fn every_power_cut_of_every_preset_recovers() {
    let mut lines = Vec::new();
    for preset in preset::all() {
        for seed in 0..effort() {
            let profile = match preset.engine {
                EngineKind::Shadow(..) => "tiny-flags",
                EngineKind::Records(_) => "tiny-shared",
                EngineKind::Flagstone if preset.name == "flagstone-flags" => "tiny-flags",
                EngineKind::Classic(_) => classic_profile(preset.name),
                EngineKind::Flagstone => "tiny",
            };
            lines.extend(explored(&config(preset.name, profile, 120, 1, seed)).lines);
        }
    }
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

/// Goal: a restart of the shadow engine may be cut as well. Method: two cuts, all states.
#[test]
fn every_power_cut_of_a_shadow_restart_recovers() {
    for preset in ["cfc", "afc"] {
        let report = explored(&config(preset, "tiny-flags", 8, 2, effort()));
        assert!(report.lines.is_empty(), "{}", report.lines.join("\n"));
    }
}

/// Goal: a transaction of the shadow engine that ends a deadlock is refused, at its commit too.
/// Method: a script in which it asks for nothing in between.
#[test]
fn a_deadlock_that_a_commit_learns_of_is_no_failure() {
    let report = explored(&config("cfc", "tiny-flags", 120, 1, 35));
    assert!(report.lines.is_empty(), "{}", report.lines.join("\n"));
}

/// Goal: a cut of restart's redo and undo changes nothing. Method: two cuts, all states; pages of
/// transactions that never committed are on flash, so that the undo has work.
#[test]
fn a_cut_during_undo_changes_nothing() {
    let mut lines = Vec::new();
    for profile in ["tiny", "segment-file"] {
        lines.extend(explored(&config("berkeley-original", profile, 12, 2, effort())).lines);
    }
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

/// Goal: a device that is nearly full, and a log too, keep the room to undo the transactions that
/// run at a cut.
/// Method: scripts so long that the smallest chip fills up, with long values that are dropped.
#[test]
fn a_nearly_full_device_has_room_to_undo() {
    let mut lines = Vec::new();
    for seed in [7, 18, 25] {
        lines.extend(explored(&config("berkeley-original", "tiny", 600, 1, seed)).lines);
    }
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

/// Goal: a power cut during recovery changes nothing. Method: two cuts, all states.
#[test]
fn a_cut_during_recovery_changes_nothing() {
    let mut lines = Vec::new();
    for profile in ["tiny", "tiny-nospare"] {
        lines.extend(explored(&config("flagstone", profile, 12, 2, effort())).lines);
    }
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

/// Goal (A4): no short sequence of operations has a bad cut. Method: all sequences, all cuts.
#[test]
fn every_short_sequence_survives_every_cut() {
    let device = chip("tiny", 1).unwrap();
    let setup: Setup = config("flagstone", "tiny", 0, 1, 1).options(&device).unwrap().into();
    let (device, model) = prepared::<Engine, _>(device, &setup).unwrap();
    let length_max = if effort() > 1 { 3 } else { 2 };
    let limits = Limits::default();
    let explored =
        explore_sequences::<Engine, _>(&device, &model, &setup, length_max, &limits, &|_, _| {});
    for (script, tally) in explored {
        assert_eq!(tally.failures, [], "{script:?}");
    }
}

fn trial(ops: usize, stride: usize) -> Trial {
    trial_on("tiny", ops, stride)
}

fn trial_on(profile: &str, ops: usize, stride: usize) -> Trial {
    trial_of("flagstone", profile, ops, stride)
}

fn trial_of(preset: &str, profile: &str, ops: usize, stride: usize) -> Trial {
    let chip = chip(profile, 1).unwrap();
    let setup = config(preset, profile, ops, 1, 1).options(&chip).unwrap().into();
    let stride = stride.div_ceil(effort() as usize);
    Trial { chip, setup, ops, seed: 1, threads: 2, stride }
}

fn assert_kept(campaign: &Campaign) {
    assert!(campaign.cases > 0, "{} tried nothing", campaign.id);
    let failures: Vec<_> =
        campaign.failures.iter().map(|(case, violation)| format!("{case}: {violation}")).collect();
    assert!(failures.is_empty(), "{}: {}", campaign.id, failures.join("\n"));
}

#[test]
fn bit_errors_within_the_ecc_are_invisible() {
    assert_kept(&faults::correctable_errors::<Engine>(&trial(120, 1)));
}

#[test]
fn a_page_beyond_the_ecc_is_reported_or_not_needed() {
    assert_kept(&faults::uncorrectable_pages::<Engine>(&trial(120, 2)));
}

#[test]
fn a_failing_program_or_erase_loses_nothing() {
    assert_kept(&faults::failing_operations::<Engine>(&trial(80, 5)));
}

/// Goal (B4): the same for the engines that the lab compares. Method: each program and erase of a
/// script fails, once and for ever; in the store of shared pages whole blocks fail, too. These
/// engines promise nothing about a chip that fails without a report.
#[test]
fn a_failing_program_or_erase_loses_nothing_in_the_labs_engines() {
    type Rigged = RunnerRig<SimNand>;
    for preset in preset::all() {
        let trial = |profile| trial_of(preset.name, profile, 200, 5);
        match preset.engine {
            EngineKind::Flagstone => {}
            EngineKind::Classic(_) => {
                let trial = trial(classic_profile(preset.name));
                assert_kept(&faults::failing_operations::<Classic<Rigged>>(&trial));
            }
            EngineKind::Shadow(..) => {
                assert_kept(&faults::failing_operations::<Shadow<Rigged>>(&trial("tiny-flags")));
            }
            EngineKind::Records(_) => {
                let trial = trial("tiny-shared");
                assert_kept(&faults::failing_operations::<Records<Rigged>>(&trial));
                assert_kept(&faults::misbehaving_blocks::<Records<Rigged>>(
                    &trial,
                    &faults::TOLD_FAULTS,
                ));
            }
        }
    }
}

#[test]
fn two_swapped_pages_are_noticed() {
    assert_kept(&faults::swapped_pages::<Engine>(&trial(120, 61)));
}

/// Goal (C1, rule D7): a full chip can be emptied, key by key, and filled again. Method: sizes of
/// values that make it run full in a leaf, in a split, and in a value with pages of its own.
#[test]
fn a_full_chip_can_be_emptied_and_filled_again() {
    for profile in ["tiny", "tiny-mlc", "tiny-nospare"] {
        let trial = trial_on(profile, 0, 1);
        assert_kept(&faults::full_then_deleted::<Engine>(&trial, &[50, 100, 300, 900]));
    }
    let smallest = SimNand::new(&Profile::named("tiny").unwrap(), 1);
    let trial = Trial { chip: smallest, ..trial(0, 1) };
    assert_kept(&faults::full_then_deleted::<Engine>(&trial, &[9]));
}

/// Goal (rule D7): the same with a power cut anywhere. Method: all states of a script that deletes
/// and puts on a chip that is full.
#[test]
fn a_cut_on_a_full_chip_changes_nothing() {
    let mut lines = Vec::new();
    for (profile, size) in [("tiny", 100), ("tiny", 900), ("tiny-mlc", 300)] {
        let trial = trial_on(profile, 0, 1);
        let (device, model) = faults::filled::<Engine>(&trial, size).unwrap();
        let script = faults::churn(24);
        let scenario = Scenario { device, model: Some(model), setup: trial.setup, script };
        let tally = super::explore::explore::<Engine, _>(&scenario, &Limits::default(), &|_, _| {});
        assert!(tally.states > 20, "{profile}: only {} states", tally.states);
        lines.extend(tally.failures.into_iter().map(|failure| {
            format!("{profile}, values of {size} bytes, {}: {}", failure.path, failure.violation)
        }));
    }
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

/// Goal (rule D7): with any size asked for, the log is large enough to go round, also on the
/// smallest chip, and leaves room for data. Method: a script on each, then restarts in a row.
#[test]
fn a_log_of_any_size_asked_for_leaves_room_and_moves_on() {
    for (log_pages, block_count) in [(0, 24), (1, 24), (16, 24), (0, 32)] {
        let profile = Profile::named("tiny").unwrap().with_block_count(block_count).unwrap();
        let chip = SimNand::new(&profile, 1);
        let mut options = config("flagstone", "tiny", 0, 1, 1).options(&chip).unwrap();
        options.log_pages = log_pages;
        let trial = Trial { chip, setup: options.into(), ..trial(60, 1) };
        let mut base = trial.after_script::<Engine>().unwrap();
        for _ in 0..12 {
            base = trial.reopened::<Engine>(base).unwrap();
        }
        assert_kept(&faults::full_then_deleted::<Engine>(&trial, &[100]));
    }
}

/// Goal: a device that is too small is refused before anything is written, and the error says how
/// many blocks it takes. Method: one block fewer, then that many.
#[test]
fn a_chip_that_is_too_small_is_refused_with_what_it_takes() {
    for profile in CHIP_PROFILES {
        let create = |block_count: u32| {
            let profile = Profile::named(profile).unwrap().with_block_count(block_count).unwrap();
            let chip = SimNand::new(&profile, 1);
            let options = config("flagstone", "tiny", 0, 1, 1).options(&chip).unwrap();
            Database::create_on(chip, &options)
        };
        let Err(OpenError::Options(OptionsError::TooFewBlocks { blocks, needed, .. })) = create(10)
        else {
            panic!("{profile}: ten blocks are too few");
        };
        assert_eq!(blocks, 10);
        assert!(create(needed - 1).is_err(), "{profile}: {needed} blocks are not needed");
        assert!(create(needed).unwrap().table("t").is_ok(), "{profile}: {needed} blocks");
    }
}

/// Goal: a format that a cut interrupted leaves no database at all, rather than one with a log of
/// another size.
/// Method: all states of a creation on paired cells, where no block has a summary.
#[test]
fn a_cut_inside_create_leaves_no_other_log() {
    let report = explored(&config("flagstone", "tiny-mlc", 1, 1, 0));
    assert!(report.lines.is_empty(), "{}", report.lines.join("\n"));
    let device = chip("tiny-mlc", 0).unwrap();
    let options = config("flagstone", "tiny-mlc", 0, 1, 0).options(&device).unwrap();
    for operation in 0..40 {
        let mut device = device.clone();
        device.set_plan(FaultPlan::power_cut(0, operation, Ending::Complete));
        let rig: RunnerRig<SimNand> = Rig::new(device, Arc::default(), Capturing::Off);
        let made = Database::create_on(rig.clone(), &options).is_ok();
        let mut device = rig.device();
        device.power_cycle();
        if let Ok(database) = Database::open_on(device, &options) {
            let budget = database.runtime().space().log_budget_pages();
            assert!(budget >= u64::from(options.log_pages), "cut {operation}: {budget} pages");
        }
        if made {
            return;
        }
    }
}

/// Goal (B6): a chip without spare blocks is read-only, holds everything, and opens like that.
#[test]
fn a_worn_out_chip_is_read_only_and_complete() {
    for seed in 0..2 * effort() {
        let mut profile = Profile::named("tiny").unwrap().with_block_count(32).unwrap();
        profile.capabilities.endurance = 30;
        let chip = SimNand::new(&profile, seed);
        let trial = Trial { chip, seed, ..trial(200, 1) };
        assert_kept(&wear::worn_out::<Engine>(&trial, 100_000));
    }
}

#[test]
fn a_block_that_misbehaves_loses_nothing_or_is_reported() {
    assert_kept(&faults::misbehaving_blocks::<Engine>(&trial(120, 1), &faults::BLOCK_FAULTS));
}

/// Goal (D3): damage that no power cut explains is never taken for an older state.
#[test]
fn changed_pages_are_noticed() {
    assert_kept(&faults::changed_images::<Engine>(&trial(120, 1), 300 * effort()));
}

/// Goal: the same on files that grow. Method: the same draws, on such a file.
#[test]
fn the_swarm_finds_nothing_on_files_that_grow() {
    let mut failures = Vec::new();
    for seed in 0..8 * effort() {
        let tally = Draw::seeded(seed, 8).explore_growing::<OnFile>().unwrap();
        failures.extend(
            tally.failures.into_iter().map(|failure| {
                format!("swarm seed {seed}, {}: {}", failure.path, failure.violation)
            }),
        );
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Goal: no configuration that can be drawn breaks the promise. Method: seeds, states sampled.
#[test]
fn the_swarm_finds_nothing() {
    let mut failures = Vec::new();
    for seed in 0..12 * effort() {
        let draw = Draw::seeded(seed, 8);
        let tally = draw.explore::<Engine>().unwrap();
        failures.extend(
            tally.failures.into_iter().map(|failure| {
                format!("swarm seed {seed}, {}: {}", failure.path, failure.violation)
            }),
        );
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Goal: bugs that the swarm found once stay mended. Method: the seeds named in `tests/failures`.
#[test]
fn the_swarm_finds_nothing_where_it_once_did() {
    for seed in [30, 60, 238, 395, 562, 608, 631, 1108, 1363, 1407, 1438, 6063, 8727] {
        let mut draw = Draw::seeded(seed, 8);
        // As it was drawn when the bug was found.
        draw.mix.pieces = 0;
        let tally = draw.explore::<Engine>().unwrap();
        assert_eq!(tally.failures, [], "swarm seed {seed}");
    }
}

/// Goal: bytes that spell operations and cuts break nothing: the fuzz target, in a seeded loop.
#[test]
fn drawn_bytes_as_operations_break_nothing() {
    for seed in 0..30 * effort() {
        let found = fuzz_ops(&value_bytes(seed, 200));
        assert_eq!(found, Ok(()), "bytes of seed {seed}");
    }
}

/// Goal: no image makes the engine panic or go round in circles: the fuzz target, in seeded loops.
#[test]
fn drawn_bytes_as_images_are_refused() {
    for seed in 0..200 * effort() {
        let verdict = fuzz_image(&value_bytes(seed, 20_000));
        assert!(matches!(verdict, Ok(ImageVerdict::Refused(_))), "seed {seed}: {verdict:?}");
    }
}

/// Goal: the same for images that were whole once. Method: bytes of a valid image changed.
#[test]
fn changed_images_are_opened_or_refused() {
    let base = trial(120, 1).after_script::<Engine>().unwrap();
    let image = base.chip.to_image();
    for seed in 0..300 * effort() {
        let mut changed = image.clone();
        let draws = value_bytes(seed, 64);
        for draw in draws.chunks_exact(4).take(1 + seed as usize % 16) {
            let at = u32::from_le_bytes([draw[0], draw[1], draw[2], 0]) as usize % changed.len();
            changed[at] = draw[3];
        }
        let mut chip = chip("tiny", 1).unwrap();
        chip.load_image(&changed);
        let verdict = image_on_chip::<Engine>(chip);
        assert!(verdict.is_ok(), "seed {seed}: {verdict:?}");
    }
}

/// Goal (D5): bytes that decode are doubted, too. Method: bytes of valid images changed, and every
/// checksum computed anew.
#[cfg(feature = "seeded-bugs")]
#[test]
fn forged_images_are_opened_or_refused() {
    for profile in CHIP_PROFILES {
        let forged = super::forged::forged_images::<Engine>;
        assert_kept(&forged(&trial_on(profile, 150, 1), 300 * effort()));
    }
}

/// Goal (C5): opening reads no more than the formula allows. Method: states of a script on a chip in
/// use.
#[test]
fn opening_reads_what_the_formula_allows() {
    for profile in CHIP_PROFILES {
        let limits = Limits { states_max: 60 * effort(), ..Limits::default() };
        let found = opening_reads(chip(profile, 1).unwrap(), &limits, 60).unwrap();
        assert!(found.failures == 0 && found.states > 0, "{profile}: {found:?}");
        assert!(found.reads_max <= found.bound, "{profile}: {found:?}");
    }
}

/// Seeds that no run had before, for so many seconds a unit of effort; `FLAGSTONE_SEED=N` begins
/// with a known one.
fn fresh_seeds(seconds: u64) -> impl Iterator<Item = u64> {
    let asked = std::env::var("FLAGSTONE_SEED").ok().and_then(|text| text.parse().ok());
    let first = asked.unwrap_or_else(|| RandomState::new().build_hasher().finish() >> 16);
    let until = Instant::now() + Duration::from_secs(seconds * effort());
    (first..).take_while(move |_| Instant::now() < until)
}

/// Goal: the fuzz target of operations finds nothing with any input. Method: fresh bytes.
#[test]
fn fresh_bytes_as_operations_break_nothing() {
    for seed in fresh_seeds(3) {
        let found = fuzz_ops(&value_bytes(seed, 20 + seed as usize % 400));
        assert_eq!(found, Ok(()), "again: FLAGSTONE_SEED={seed}");
    }
}

/// Goal: the fuzz target of images finds nothing either. Method: valid images of every chip, changed
/// in fresh places.
#[test]
fn fresh_changes_of_images_are_opened_or_refused() {
    let whole = image_seeds::<Engine>().unwrap();
    for seed in fresh_seeds(3) {
        let mut image = whole[seed as usize % whole.len()].1.clone();
        for draw in value_bytes(seed, 4 * (1 + seed as usize % 16)).chunks_exact(4) {
            let at = u32::from_le_bytes([draw[0], draw[1], draw[2], 0]) as usize % image.len();
            image[at] = draw[3];
        }
        image.truncate(image.len() - seed as usize % 9 / 8 * (seed as usize % image.len()));
        let verdict = fuzz_image(&image);
        assert!(verdict.is_ok(), "again: FLAGSTONE_SEED={seed}: {verdict:?}");
    }
}

/// Goal (T6): equal seeds give equal runs. Method: one script twice, down to the device's trace.
#[test]
fn equal_seeds_give_equal_traces() {
    let run = || {
        let trial = trial(150, 1);
        let base = trial.after_script::<Engine>().unwrap();
        (base.chip.trace_hash(), base.chip.state_hash(), base.history)
    };
    assert_eq!(run(), run());
}
