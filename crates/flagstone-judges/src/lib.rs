//! Judges of the promises in `docs/FAULT_MODEL.md`, from outside.
//!
//! A judge drives Flagstone as a program of a user would, through the public interface of the crate
//! `flagstone` with the options a user gets, and through the file system. Judges share no code with the
//! engine, its model or its crash explorer: a wrong assumption of the engine must not be theirs as well.
//!
//! One module a judge, one subcommand of the program `judges` each.
