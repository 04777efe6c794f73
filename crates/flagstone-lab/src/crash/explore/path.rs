//! Paths to a crash state: the cuts that lead there, as the command line takes and prints them.
//!
//! Owns their text and the reasons to refuse one. Never makes a device.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use flagstone_nand::{Ending, UnknownEnding};

use super::ModelCapture;

/// A power cut: an operation under way, and how it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Number of the operation.
    pub operation: u64,
    /// Number of the last operation that overtook it on another die; its own, where none did.
    pub until: u64,
    /// How it ends.
    pub ending: Ending,
    /// How that last operation ends; the ones between are complete.
    pub until_ending: Ending,
}

impl Cut {
    /// A cut of an operation that nothing overtook.
    #[must_use]
    pub const fn of(operation: u64, ending: Ending) -> Self {
        Self { operation, until: operation, ending, until_ending: Ending::Complete }
    }
}

/// Cuts that lead to one crash state, the outermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutPath(pub Vec<Cut>);

impl CutPath {
    pub(super) fn with(&self, cut: Cut) -> Self {
        let mut path = self.clone();
        path.0.push(cut);
        path
    }

    /// Reads the forms of [`fmt::Display`]: `--cut` and `--ending`, each a list with commas. Of
    /// `--cut 17+23`, operation 17 is under way while operations up to 23 on other dies are
    /// complete; with `--ending torn-1+torn-2`, both are.
    ///
    /// # Errors
    ///
    /// `BadCut` when they are not numbers and endings, as many of one as of the other.
    pub fn parse(cuts: &str, endings: &str) -> Result<Self, BadCut> {
        let operation = |text: &str| {
            let (operation, until) = text.split_once('+').unwrap_or((text, text));
            Ok::<_, ParseIntError>((operation.parse::<u64>()?, until.parse::<u64>()?))
        };
        let operations: Result<Vec<_>, _> = cuts.split(',').map(operation).collect();
        let ending = |text: &str| {
            let (first, last) = text.split_once('+').unwrap_or((text, "complete"));
            Ok::<_, UnknownEnding>((Ending::from_str(first)?, Ending::from_str(last)?))
        };
        let endings: Result<Vec<_>, _> = endings.split(',').map(ending).collect();
        let operations = operations.map_err(|_| BadCut::Operation)?;
        let endings = endings.map_err(|_| BadCut::Ending)?;
        if operations.len() != endings.len() {
            return Err(BadCut::Count);
        }
        let cuts = operations.into_iter().zip(endings);
        let cut = |((operation, until), (ending, until_ending))| Cut {
            operation,
            until,
            ending,
            until_ending,
        };
        Ok(Self(cuts.map(cut).collect()))
    }
}

impl fmt::Display for CutPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = |cut: &Cut| match cut.until {
            until if until == cut.operation => until.to_string(),
            until => format!("{}+{until}", cut.operation),
        };
        let operations: Vec<_> = self.0.iter().map(operation).collect();
        let ending = |cut: &Cut| match cut.until_ending {
            Ending::Complete => cut.ending.to_string(),
            last => format!("{}+{last}", cut.ending),
        };
        let endings: Vec<_> = self.0.iter().map(ending).collect();
        write!(f, "--cut {} --ending {}", operations.join(","), endings.join(","))
    }
}

/// Why a cut on the command line names no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadCut {
    /// `--cut` is no list of numbers.
    #[error("`--cut` takes operation numbers, or `17+23`, with commas for cuts within cuts")]
    Operation,
    /// `--ending` names no ending.
    #[error(
        "`--ending` takes names of endings, with commas for cuts within cuts: {}",
        joined(Ending::names())
    )]
    Ending,
    /// The two lists differ in length.
    #[error("`--cut` and `--ending` must be equally long lists")]
    Count,
    /// The run, or the recovery, has no such operation.
    #[error("there is no operation {operation} to cut: the first is {first}, the last {last}")]
    NoSuchOperation {
        /// Number given.
        operation: u64,
        /// Lowest number.
        first: u64,
        /// Highest number.
        last: u64,
    },
    /// The operation has no such ending.
    #[error("operation {operation} ends in one of these ways: {}", joined(endings))]
    NoSuchEnding {
        /// Number given.
        operation: u64,
        /// Its endings.
        endings: Vec<Ending>,
    },
    /// The operations are not under way at a time, or the last one does not end so.
    #[error("operation {operation} is not overtaken by {until}, or that one does not end so")]
    NotOvertaken {
        /// Number given.
        operation: u64,
        /// Number given for the last one beside it.
        until: u64,
    },
}

fn joined(endings: impl IntoIterator<Item: fmt::Display>) -> String {
    let names: Vec<_> = endings.into_iter().map(|ending| ending.to_string()).collect();
    names.join(", ")
}

impl BadCut {
    /// Why none of these captures is the one that `cut` names.
    pub(super) fn of<C>(cut: Cut, captures: &[ModelCapture<C>]) -> Self {
        let operation = cut.operation;
        let numbers = || captures.iter().map(|capture| capture.operation);
        match captures.iter().find(|capture| capture.operation == operation) {
            Some(capture) if capture.endings.contains(&cut.ending) => {
                Self::NotOvertaken { operation, until: cut.until }
            }
            Some(capture) => Self::NoSuchEnding { operation, endings: capture.endings.clone() },
            None => Self::NoSuchOperation {
                operation,
                first: numbers().min().unwrap_or_default(),
                last: numbers().max().unwrap_or_default(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
