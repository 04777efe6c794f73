//! Tests of the store of shadow pages.
//!
//! The model knows what every page must hold: what was acknowledged, and nothing of a transaction
//! that was not, except that one whose commit was in flight at a cut is there whole or not at all.

mod basics;
#[cfg(feature = "seeded-bugs")]
mod bugs;
mod cuts;
mod faults;
pub(super) mod harness;
