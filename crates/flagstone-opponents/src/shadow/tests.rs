//! Tests of the store of shadow pages.
//!
//! The model knows the content that every page must have: every acknowledged transaction and no
//! other, except that a transaction whose commit was in flight at a cut is there whole or not at
//! all.

mod basics;
#[cfg(feature = "seeded-bugs")]
mod bugs;
mod cuts;
mod faults;
pub(super) mod harness;
