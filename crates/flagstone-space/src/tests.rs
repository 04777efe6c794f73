//! Behaviour of the whole floor: against a model, under cuts, at the limits.

mod basics;
mod cuts;
mod harness;
mod limits;
