//! The lab: workloads, a virtual clock, measured runs, and crash exploration.
//!
//! Everything here drives the engine as it is shipped: the same code runs under threads on an
//! image or a file, and under any number of virtual clients on a simulated chip.
//!
//! - [`workload`]: seeded generators and restartable transactions.
//! - [`store`]: the interface that the lab asks of an engine, so that engines can be exchanged.
//! - [`medium`]: the simulated device of a run, a chip or a drive.
//! - [`event_loop`], [`clock`], [`timed`]: clients in device time, on one thread, deterministically.
//! - [`mod@bench`], [`sizing`], [`steady`], [`run`]: a measured run from the chip's size to the report.
//! - [`bftl`]: a B-tree layer with a reservation buffer, which index policies are compared with.
//! - [`classic`]: an ARIES engine on the same floors, to compare with.
//! - [`shadow`]: an engine of shadow pages with commit flags or cycles, to compare with.
//! - [`compare`]: every index policy on every index workload, side by side.
//! - [`crash`], [`model`]: every power cut of a script, with an executable model as the oracle.
//! - [`crossover`]: programs a transaction by its size, by the log, by flags, and as chosen.
//! - [`ipl`]: in-page logging, which in-place appends are compared with.
//! - [`lazy_index`]: the lazy-update B+-tree with its paper's structure, as counts of nodes.
//! - [`quickstart`]: the main job, with a power cut in the middle.
//! - [`reproduce`]: the experiments of the papers: runs, figures, verdicts, files.

pub mod bench;
pub mod bftl;
pub mod classic;
pub mod clock;
pub mod compare;
pub mod crash;
pub mod crossover;
pub mod event_loop;
pub mod ipl;
pub mod lazy_index;
pub mod medium;
pub mod model;
pub mod pages;
mod parallel;
pub mod preset;
pub mod quickstart;
pub mod records;
pub mod reproduce;
pub mod run;
pub mod shadow;
pub mod sizing;
pub mod steady;
pub mod store;
pub mod tally;
pub mod timed;
pub mod workload;
