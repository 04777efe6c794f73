//! Every short sequence of operations, each cut everywhere (scoreboard A4).
//!
//! Owns the alphabet and the counting. Never draws: all sequences up to a length are run.

use std::sync::Arc;

use flagstone_engine::Durability;
use flagstone_nand::Crashable;

use super::explore::{Limits, Progress, Scenario, Tally, explore, guarded, violation_of};
use super::rig::{Capturing, Rig};
use super::run::{Runner, RunnerRig, Violation};
use super::script::{KeyIndex, Op, Script, Size};
use super::subject::{Setup, Subject};
use crate::model::{Model, SlotIndex, TableIndex};

const SLOT: SlotIndex = SlotIndex(0);
const TABLE: TableIndex = TableIndex(1);
const OLD_KEY: KeyIndex = KeyIndex(3);
const NEW_KEY: KeyIndex = KeyIndex(4);

/// Put, overwrite, delete, commit, abort, checkpoint, collect.
pub const ALPHABET: [Op; 7] = [
    Op::Put(SLOT, TABLE, NEW_KEY, Size(60)),
    Op::Put(SLOT, TABLE, OLD_KEY, Size(200)),
    Op::Delete(SLOT, TABLE, OLD_KEY),
    Op::Commit(SLOT, Durability::Immediate),
    Op::Abort(SLOT),
    Op::Checkpoint,
    Op::Collect,
];

/// All sequences of 1 to `length_max` operations of the alphabet, the shortest first.
#[must_use]
pub fn sequences(length_max: u32) -> Vec<Script> {
    let mut all = Vec::new();
    let mut longest = vec![Vec::new()];
    for _ in 0..length_max {
        let extended = |script: &Vec<Op>| {
            let script = script.clone();
            ALPHABET.map(|op| script.iter().copied().chain([op]).collect::<Vec<Op>>())
        };
        longest = longest.iter().flat_map(extended).collect();
        all.extend(longest.iter().cloned().map(Script));
    }
    all
}

/// A device with a few committed rows, closed cleanly, and its contents.
///
/// # Errors
///
/// A violation on the way.
pub fn prepared<S, C>(device: C, setup: &Setup) -> Result<(C, Model), Violation>
where
    S: Subject<RunnerRig<C>>,
    C: Crashable,
{
    let rig = Rig::new(device, Arc::new(Model::default()), Capturing::Off);
    let model = guarded(|| {
        let mut runner: Runner<S, C> = Runner::create(rig.clone(), setup)?;
        for key in (0..8).map(KeyIndex).filter(|key| *key != NEW_KEY) {
            runner.step(Op::Put(SLOT, TABLE, key, Size(120)))?;
            runner.step(Op::Commit(SLOT, Durability::Immediate))?;
        }
        runner.step(Op::Reopen)?;
        Ok(runner.model().clone())
    });
    let model = model.map_err(violation_of)?;
    Ok((rig.device(), model))
}

/// Explores every state of every sequence from a device that holds rows.
#[must_use]
pub fn explore_sequences<S, C>(
    device: &C,
    model: &Model,
    setup: &Setup,
    length_max: u32,
    limits: &Limits,
    progress: Progress<'_>,
) -> Vec<(Script, Tally)>
where
    S: Subject<RunnerRig<C>>,
    C: Crashable + Send + Sync,
{
    let scripts = sequences(length_max);
    let total = scripts.len() as u64;
    let explored = scripts.into_iter().zip(1..).map(|(script, number)| {
        let scenario = Scenario {
            device: device.clone(),
            model: Some(model.clone()),
            setup: setup.clone(),
            script,
        };
        let tally = explore::<S, C>(&scenario, limits, &|_, _| {});
        progress(number, total);
        (scenario.script, tally)
    });
    explored.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sequences_are_there() {
        assert_eq!(sequences(3).len(), 7 + 49 + 343);
    }
}
