//! The `flagstone` command.
//!
//! Owns the process: arguments in, text or JSON out, one exit code. Functions for programs live in the crates below;
//! here are only words, tables and codes.
//!
//! - I1: every failure ends the process with its code of [`exit::EXIT_ROWS`] and one message.
//! - I2: a reader that closes its end of a pipe ends the command in silence, with code 0.

mod args;
mod backup;
mod bench;
mod catalog;
mod compact;
mod crash;
mod demo;
mod escape;
mod exit;
mod failure;
mod files;
mod generate;
mod inspect;
mod interrupt;
mod lab;
mod lines;
mod open;
mod output;
mod overrides;
mod picture;
mod probe;
mod progress;
mod quickstart;
mod request;
mod rows;
mod salvage;
mod scratch;
mod size;
mod snapshot;
mod table;
mod tables;
mod transfer;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::FromArgMatches as _;

use crate::args::{RawArgs, RawCommand};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Form, Output};

fn main() -> ExitCode {
    let matches = args::command().try_get_matches();
    let args = match matches.and_then(|matches| RawArgs::from_arg_matches(&matches)) {
        Ok(args) => args,
        Err(error) => return refuse(&error),
    };
    let form = if args.json { Form::Json } else { Form::Text };
    let mut output = Output::new(form);
    let result = run(args.command, &mut output);
    // Output from before a failure comes before its message.
    let flushed = output.finish().map_err(Failure::from);
    match result.and_then(|exit| flushed.map(|()| exit)) {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(failure) => failure.report(form),
    }
}

/// Runs one command.
fn run(command: RawCommand, output: &mut Output) -> Result<Exit, Failure> {
    match command {
        RawCommand::Quickstart(args) => return quickstart::quickstart(&args, output),
        RawCommand::Bench(args) => return bench::bench(&args, output),
        RawCommand::Demo(args) => return demo::demo(&args, output),
        RawCommand::Crash(args) => return crash::crash(&args, output),
        RawCommand::Lab(command) => return lab::lab(&command, output),
        RawCommand::Check(args) => return inspect::check(&args.try_into()?, output),
        RawCommand::Merge(args) => inspect::merge(&args.try_into()?, output)?,
        RawCommand::Compact(args) => compact::compact(&args.try_into()?, output)?,
        RawCommand::Create(args) => rows::create(&args.try_into()?, output)?,
        RawCommand::Put(args) => rows::put(&args.try_into()?, output)?,
        RawCommand::Get(args) => rows::get(&args.try_into()?, output)?,
        RawCommand::Del(args) => rows::delete(&args.try_into()?, output)?,
        RawCommand::Scan(args) => rows::scan(&args.try_into()?, output)?,
        RawCommand::Tables(args) => tables::tables(&args.try_into()?, output)?,
        RawCommand::Rename(args) => tables::rename(&args.try_into()?, output)?,
        RawCommand::Drop(args) => tables::drop(&args.try_into()?, output)?,
        RawCommand::Snapshot(command) => snapshot::snapshot(command, output)?,
        RawCommand::Backup(args) => return backup::backup(&args.try_into()?, output),
        RawCommand::Salvage(args) => return salvage::salvage(&args.try_into()?, output),
        RawCommand::Restore(args) => backup::restore(args.try_into()?, output)?,
        RawCommand::Export(args) => return transfer::export(&args.try_into()?, output),
        RawCommand::Import(args) => transfer::import(&args.try_into()?, output)?,
        RawCommand::Probe(args) => probe::run(&args.try_into()?, output)?,
        RawCommand::Stats(args) => inspect::stats(&args.try_into()?, output)?,
        RawCommand::Wear(args) => inspect::wear(&args.try_into()?, output)?,
        RawCommand::Profiles(args) => catalog::profiles(args.name.as_deref(), output)?,
        RawCommand::Presets(args) => catalog::presets(args.name.as_deref(), output)?,
        RawCommand::Completions(args) => generate::completions(args.shell, output)?,
        RawCommand::Man(args) => generate::man(args.dir.as_deref(), output)?,
        RawCommand::ExitCodes => catalog::exit_codes(output)?,
    }
    Ok(Exit::Ok)
}

/// Ends the process for a command line that has the wrong shape, or that asks for help.
fn refuse(error: &clap::Error) -> ExitCode {
    let is_json = std::env::args_os().any(|argument| argument == "--json");
    if !error.use_stderr() {
        let form = if is_json { Form::Json } else { Form::Text };
        return match error.print().and_then(|()| io::stdout().flush()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => Failure::Output(error).report(form),
        };
    }
    if is_json {
        failure::report(Exit::Usage, error.to_string().trim_end(), Form::Json);
    } else {
        // No message is possible once the error stream itself is gone.
        let _ = error.print();
    }
    ExitCode::from(Exit::Usage.code())
}
