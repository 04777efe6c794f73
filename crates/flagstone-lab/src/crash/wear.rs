//! Chips that are written until they die (scoreboard B6, B9).
//!
//! Owns the way to the last spare block and the measurements there. Never decides the contents that
//! a dead chip must have: the model does.

use std::sync::Arc;

use flagstone_engine::Durability;
use flagstone_nand::{BlockIndex, Crashable as _, FaultPlan, Nand as _, SimNand, WearOut};

use super::explore::{guarded, violation_of};
use super::faults::{Campaign, Trial};
use super::rig::{Capturing, Rig};
use super::run::{Runner, RunnerRig, Stop, Violation};
use super::script::{HOT_KEY_COUNT, KEY_COUNT, KeyIndex, Mix, Op, Script, TABLE_COUNT};
use super::subject::Subject;
use crate::model::{SlotIndex, TableIndex};

/// Transaction that puts rows.
const SLOT: SlotIndex = SlotIndex(0);

/// How often a worn-out chip is opened again.
const WORN_RESTARTS: u32 = 4;

/// Calls of a life and of the checks after it: an engine that goes round in circles is stopped.
const CALLS_MAX: u64 = 50_000_000;

/// Load that wears a chip.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Operations without an end.
    pub mix: Mix,
    /// Bytes of each row that is put first, all but the hot keys; 0 for none.
    pub row_size: usize,
}

/// Lifetime of a chip in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lifetime {
    /// Operations of the scripts.
    pub steps: u64,
    /// Commits with changes.
    pub commits: u64,
    /// Erases of the most worn block.
    pub erases_max: u32,
    /// Mean of the blocks' erases.
    pub erases_mean: f64,
}

impl Lifetime {
    fn count_erases(&mut self, chip: &SimNand) {
        let blocks = chip.geometry().block_count;
        let erases = |block| chip.erase_count(BlockIndex(block));
        self.erases_max = (0..blocks).map(erases).max().unwrap_or(0);
        let total: u64 = (0..blocks).map(|block| u64::from(erases(block))).sum();
        self.erases_mean = total as f64 / f64::from(blocks.max(1));
    }
}

/// Writes with `load` until blocks that die of wear have left the chip read-only; then everything
/// must still be there, also after it was opened again.
///
/// `chip` in the trial has a low endurance.
///
/// # Errors
///
/// A violation, with the lifetime so far.
pub fn run_to_death<S: Subject<RunnerRig<SimNand>>>(
    trial: &Trial,
    load: &Load,
    steps_max: u64,
) -> Result<Lifetime, (Lifetime, Violation)> {
    let mut chip = trial.chip.clone();
    let wear = WearOut::AtEndurance;
    chip.set_plan(FaultPlan { seed: trial.seed, wear, ..FaultPlan::default() });
    let rig: RunnerRig<SimNand> =
        Rig::new(chip, Arc::default(), Capturing::Off).with_calls(CALLS_MAX);
    let mut lifetime = Lifetime::default();
    let done = guarded(|| {
        let mut runner: Runner<S, SimNand> = Runner::create(rig.clone(), &trial.setup)?;
        put_rows(&mut runner, load.row_size)?;
        for round in 0.. {
            let script = Script::seeded(trial.seed + round, trial.ops, &load.mix);
            let ended = runner.run(&script);
            (lifetime.steps, lifetime.commits) = (runner.trace().steps, runner.trace().commits);
            match ended {
                // Poisoned: the last block went while the log was written.
                Err(Stop::WornOut | Stop::Poisoned) => break,
                other => other?,
            }
            if lifetime.steps > steps_max {
                return Err(Violation::Fault("the chip did not wear out").into());
            }
        }
        let chip = rig.device();
        lifetime.count_erases(&chip);
        must_be_worn(&lifetime, &chip)?;
        stay_dead(&mut runner)
    });
    match done {
        Ok(()) => Ok(lifetime),
        Err(stop) => Err((lifetime, violation_of(stop))),
    }
}

/// A chip is worn out when a block has reached its endurance; an engine that gives up before has no
/// reason to.
fn must_be_worn(lifetime: &Lifetime, chip: &SimNand) -> Result<(), Stop> {
    if lifetime.erases_max >= chip.capabilities().endurance {
        return Ok(());
    }
    Err(Violation::Fault("a chip was given up although none of its blocks is worn out").into())
}

/// Puts rows of `size` bytes under all keys but the hot ones.
fn put_rows<S>(runner: &mut Runner<S, SimNand>, size: usize) -> Result<(), Stop>
where
    S: Subject<RunnerRig<SimNand>>,
{
    let tables = (0..TABLE_COUNT).filter(|_| size > 0).map(TableIndex);
    for table in tables {
        for key in (HOT_KEY_COUNT..KEY_COUNT).map(KeyIndex) {
            runner.put_value(SLOT, table, key, size)?;
            runner.step(Op::Commit(SLOT, Durability::Immediate))?;
        }
    }
    Ok(())
}

/// Commits that were not durable yet are gone (rule D8), and reopening tells the model so; all else
/// is there.
fn stay_dead<S>(runner: &mut Runner<S, SimNand>) -> Result<(), Stop>
where
    S: Subject<RunnerRig<SimNand>>,
{
    runner.check()?;
    for _ in 0..WORN_RESTARTS {
        runner.step(Op::PowerLoss)?;
        runner.verify()?;
        runner.must_be_worn_out()?;
    }
    runner.step(Op::PowerLoss)?;
    runner.verify()
}

/// B6: blocks die of wear until the chip is read-only. The steps taken are the campaign's cases.
#[must_use]
pub fn worn_out<S: Subject<RunnerRig<SimNand>>>(trial: &Trial, steps_max: u64) -> Campaign {
    let (lifetime, failure) = match run_to_death::<S>(trial, &Load::default(), steps_max) {
        Ok(lifetime) => (lifetime, None),
        Err((lifetime, violation)) => (lifetime, Some(violation)),
    };
    let failures = failure.map(|violation| (String::from("worn out"), violation));
    let failures = failures.into_iter().collect();
    Campaign { id: "B6", cases: lifetime.steps, failures, ..Campaign::default() }
}

#[cfg(test)]
mod tests {
    use flagstone_nand::Profile;

    use super::*;

    /// Goal (B6): an engine that gives up a young chip has not worn it out.
    #[test]
    fn a_young_chip_is_not_worn_out() {
        let mut profile = Profile::named("tiny").unwrap();
        profile.capabilities.endurance = 30;
        let chip = SimNand::new(&profile, 1);
        let after = |erases_max| Lifetime { erases_max, ..Lifetime::default() };
        assert!(must_be_worn(&after(29), &chip).is_err());
        assert_eq!(must_be_worn(&after(30), &chip), Ok(()));
    }
}
