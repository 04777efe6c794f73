//! Behaviour of the whole floor: against a model, under cuts, at the limits.

mod appends;
mod basics;
#[cfg(feature = "seeded-bugs")]
mod bugs;
mod concurrent_io;
mod cuts;
mod devices;
mod frozen;
mod grouped;
mod grow;
pub(crate) mod harness;
mod limits;
mod log;
mod mount_cost;
mod protected;
mod script;
mod wear;
