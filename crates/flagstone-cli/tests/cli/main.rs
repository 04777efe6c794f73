//! The `flagstone` command as its user meets it: the binary is run, its output and exit code read.
//!
//! Every test works in a directory of its own. Messages are checked only where a user acts on them: names, codes,
//! nearest names.

#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod backup;
mod bad_input;
mod catalog;
mod command;
mod compact;
mod documents;
mod floors;
mod generate;
mod grow;
mod interrupt;
mod names;
mod own_ecc;
mod probe;
mod rows;
mod runs;
mod salvage;
mod snapshot;
mod transfer;
mod words;
