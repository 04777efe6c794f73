//! The program `judges`: a subcommand a judge.

use clap::{Parser, Subcommand};

mod calls;
mod disks;
mod histories;
mod kills;
mod patience;

#[derive(Parser)]
#[command(name = "judges", version, about = "Judges of Flagstone's promises, from outside")]
struct Arguments {
    #[command(subcommand)]
    judge: Judge,
}

#[derive(Subcommand)]
enum Judge {
    /// System calls that fail: each call of each operation in turn.
    Calls(calls::Arguments),
    /// Disks as the kernel makes them: every state that a power cut can leave of a file.
    Disks(Box<disks::Arguments>),
    /// Random histories over the public interface, checked for serializability and whole commits.
    Histories(histories::Arguments),
    /// Processes killed at any time, with a ledger in another process.
    Kills(kills::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().judge {
        Judge::Calls(arguments) => calls::run(&arguments),
        Judge::Disks(arguments) => disks::run(&arguments),
        Judge::Histories(arguments) => histories::run(&arguments),
        Judge::Kills(arguments) => kills::run(&arguments),
    }
}
