//! Full chips (C1): filled to the brim, emptied, filled again.
//!
//! Owns the order of these steps. Never decides when a chip is full: the engine does.

use flagstone_engine::Durability;
use flagstone_nand::SimNand;

use super::super::explore::{guarded, violation_of};
use super::super::run::{Damage, Runner, Stop, Violation};
use super::super::script::{KeyIndex, Op, Script, Size, TABLE_COUNT};
use super::super::subject::Subject;
use super::{Campaign, ChipRig, ChipRunner, SLOT, Trial, verdict_of};
use crate::model::{Model, TableIndex};

/// C1: the chip is filled to the brim, then everything is deleted, then writing works again.
///
/// Each size of value makes the chip run full at another operation.
#[must_use]
pub fn full_then_deleted<S: Subject<ChipRig>>(trial: &Trial, sizes: &[usize]) -> Campaign {
    let case = |size: &usize| {
        let done = guarded(|| {
            let rig = trial.rig(trial.chip.clone());
            let mut runner: ChipRunner<S> = Runner::create(rig, &trial.setup)?;
            fill(&mut runner, *size)?;
            runner.verify()?;
            empty(&mut runner)?;
            runner.step(Op::Reopen)?;
            fill(&mut runner, *size)?;
            runner.verify()
        });
        verdict_of(done, Damage::None)
    };
    trial.campaign("C1", sizes, |size| format!("values of {size} bytes"), case)
}

/// A chip filled until the engine reports it full, with its contents: cuts find it at its tightest.
///
/// # Errors
///
/// A violation on the way.
pub fn filled<S: Subject<ChipRig>>(
    trial: &Trial,
    size: usize,
) -> Result<(SimNand, Model), Violation> {
    let rig = trial.rig(trial.chip.clone());
    let done = guarded(|| {
        let mut runner: ChipRunner<S> = Runner::create(rig.clone(), &trial.setup)?;
        fill(&mut runner, size)?;
        runner.step(Op::PowerLoss)?;
        Ok(runner.model().clone())
    });
    done.map(|model| (rig.device(), model)).map_err(violation_of)
}

/// Deletes, puts and upkeep in turn: they make room on a full chip and take it again.
#[must_use]
pub fn churn(rounds: u8) -> Script {
    let round = |number: u8| {
        let table = TableIndex(number % TABLE_COUNT);
        let key = |offset: u8| KeyIndex(number * 2 + offset);
        let end = match number % 8 {
            3 => Op::Collect,
            5 => Op::Checkpoint,
            _ => Op::Commit(SLOT, Durability::Immediate),
        };
        let commit = Op::Commit(SLOT, Durability::Immediate);
        [
            Op::Delete(SLOT, table, key(0)),
            Op::Delete(SLOT, table, key(1)),
            commit,
            Op::Put(SLOT, table, key(0), Size(120)),
            end,
        ]
    };
    Script((0..rounds).flat_map(round).collect())
}

/// Puts values of `size` bytes until the engine has no room, one transaction a value.
pub(super) fn fill<S: Subject<ChipRig>>(
    runner: &mut ChipRunner<S>,
    size: usize,
) -> Result<(), Stop> {
    let full = runner.trace().full;
    for table in (0..TABLE_COUNT).map(TableIndex) {
        for key in (0..=u8::MAX).map(KeyIndex) {
            runner.put_value(SLOT, table, key, size)?;
            runner.step(Op::Commit(SLOT, Durability::Immediate))?;
            if runner.trace().full > full {
                return Ok(());
            }
        }
    }
    Err(Violation::Fault("the chip cannot be filled with so small values").into())
}

/// Deletes every key, one transaction a key: none may be refused for want of room (rule D7).
fn empty<S: Subject<ChipRig>>(runner: &mut ChipRunner<S>) -> Result<(), Stop> {
    let full = runner.trace().full;
    for table in (0..TABLE_COUNT).map(TableIndex) {
        for key in (0..=u8::MAX).map(KeyIndex) {
            runner.step(Op::Delete(SLOT, table, key))?;
            runner.step(Op::Commit(SLOT, Durability::Immediate))?;
            if runner.trace().full > full {
                return Err(Violation::Fault("a full chip refuses a delete").into());
            }
        }
    }
    Ok(())
}
