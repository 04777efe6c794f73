//! Answers of the engine, and their meaning for a run (U1).
//!
//! Owns the errors that a run excuses. Never calls the device.

use flagstone_engine::{EngineError, OpenError};
use flagstone_nand::Crashable;

use super::super::script::Op;
use super::super::subject::Subject;
use super::{Damage, Runner, RunnerRig, Stop, Violation};
use crate::model::SlotIndex;

impl<S: Subject<RunnerRig<C>>, C: Crashable> Runner<S, C> {
    pub(super) fn opened(&mut self, doing: &str, answer: Result<S, OpenError>) -> Result<S, Stop> {
        answer.map_err(|error| {
            let error = match error {
                OpenError::Engine(error) => error.to_string(),
                other => other.to_string(),
            };
            self.stop_for(doing, error)
        })
    }

    fn stop_for(&self, doing: &str, error: String) -> Stop {
        if self.rig.is_exhausted() {
            return Violation::Endless.into();
        }
        if self.rig.with_device(|device| device.is_off()) {
            return Stop::PowerOff;
        }
        match self.damage {
            Damage::Injected => Stop::Reported(error),
            Damage::None => Violation::Refused { doing: doing.to_owned(), error }.into(),
        }
    }

    /// Changes something within a transaction; false when the engine had no room for the change and
    /// the transaction was given up.
    pub(super) fn change(
        &mut self,
        op: Op,
        slot: SlotIndex,
        call: impl FnOnce(&mut S) -> Result<(), EngineError>,
    ) -> Result<bool, Stop> {
        let done = self.ask_op(op, call)?.is_some();
        if !done {
            self.abort(slot)?;
        }
        Ok(done)
    }

    pub(super) fn ask_op<T>(
        &mut self,
        op: Op,
        call: impl FnOnce(&mut S) -> Result<T, EngineError>,
    ) -> Result<Option<T>, Stop> {
        match self.subject.as_mut().map(call) {
            None => Ok(None),
            Some(Ok(answer)) => Ok(Some(answer)),
            Some(Err(error)) => self.refused(&format!("{op:?}"), &error).map(|()| None),
        }
    }

    /// As [`Runner::ask_op`], for operations that need no room.
    pub(super) fn read_op<T>(
        &mut self,
        op: Op,
        call: impl FnOnce(&mut S) -> Result<T, EngineError>,
    ) -> Result<Option<T>, Stop> {
        match self.subject.as_mut().map(call) {
            None => Ok(None),
            Some(Ok(answer)) => Ok(Some(answer)),
            Some(Err(EngineError::Full)) if S::LOCKS_PAGES && self.model.open_slots().len() > 1 => {
                self.refused(&format!("{op:?}"), &EngineError::Full).map(|()| None)
            }
            Some(Err(error)) => Err(self.stop_of(&format!("{op:?}"), &error)),
        }
    }

    /// As [`Runner::read_op`], for reads outside a script; none while nothing is open.
    pub(super) fn read<T>(
        &mut self,
        doing: &str,
        call: impl FnOnce(&mut S) -> Result<T, EngineError>,
    ) -> Result<Option<T>, Stop> {
        let answer = self.subject.as_mut().map(call).transpose();
        answer.map_err(|error| self.stop_of(doing, &error))
    }

    pub(super) fn ask_snapshot<T>(
        &mut self,
        op: Op,
        slot: SlotIndex,
        call: impl FnOnce(&mut S) -> Result<T, EngineError>,
    ) -> Result<Option<T>, Stop> {
        match self.subject.as_mut().map(call) {
            Some(Err(EngineError::SnapshotTooOld)) => self.snapshot_close(slot).map(|()| None),
            None => Ok(None),
            Some(Ok(answer)) => Ok(Some(answer)),
            Some(Err(error)) => Err(self.stop_of(&format!("{op:?}"), &error)),
        }
    }

    /// Meaning of an error of a change or of upkeep for the run: `Ok` when the engine just had no
    /// room.
    pub(super) fn refused(&mut self, doing: &str, error: &EngineError) -> Result<(), Stop> {
        match (self.stop_of(doing, error), error) {
            (Stop::PowerOff, _) => Err(Stop::PowerOff),
            (_, EngineError::Full | EngineError::TooLarge | EngineError::TooManySnapshots) => {
                self.trace.full += 1;
                Ok(())
            }
            (stop, _) => Err(stop),
        }
    }

    /// Meaning of an error for the run where want of room is no excuse.
    pub(super) fn stop_of(&self, doing: &str, error: &EngineError) -> Stop {
        match (self.stop_for(doing, error.to_string()), error) {
            (Stop::PowerOff, _) => Stop::PowerOff,
            (_, EngineError::WornOut | EngineError::ReadOnly) => Stop::WornOut,
            (_, EngineError::Poisoned | EngineError::OutcomeUnknown) => Stop::Poisoned,
            (stop, _) => stop,
        }
    }

    pub(super) fn compare<T: PartialEq + std::fmt::Debug>(
        &mut self,
        op: Op,
        slot: SlotIndex,
        found: Option<T>,
        expected: &T,
    ) -> Result<(), Stop> {
        let Some(found) = found else {
            return self.abort(slot);
        };
        if found == *expected {
            return Ok(());
        }
        let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
        Err(Violation::Read { doing: format!("{op:?}"), found, expected }.into())
    }
}

/// Whether the engine says that nothing of the commit will ever show.
pub(super) fn is_refused_whole(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Full
            | EngineError::TooLarge
            | EngineError::TooManyTables
            | EngineError::Deadlock
            | EngineError::ReadOnly
            | EngineError::WornOut
    )
}
