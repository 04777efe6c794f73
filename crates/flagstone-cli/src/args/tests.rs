//! Goal: every command line in the help and the README is valid. Method: each is parsed, and its values are validated
//! as by the command; nothing is run.

use std::fs;

use clap::{Command, CommandFactory as _};
use tempfile::TempDir;

use super::*;
use crate::failure::Failure;
use crate::probe::Probe;
use crate::request::{
    Backup, Compact, Creation, Export, Import, KeyAt, Rename, Restore, RowAt, Scan, TableAt,
    Target, ValueAt, Wear,
};

/// Understands the values of a command line.
fn understand(command: RawCommand) -> Result<(), Failure> {
    match command {
        RawCommand::Create(args) => drop(Creation::try_from(args)?),
        RawCommand::Put(args) => drop(RowAt::try_from(args)?),
        RawCommand::Get(args) => drop(ValueAt::try_from(args)?),
        RawCommand::Del(args) => drop(KeyAt::try_from(args)?),
        RawCommand::Scan(args) => drop(Scan::try_from(args)?),
        RawCommand::Backup(args) => drop(Backup::try_from(args)?),
        RawCommand::Restore(args) => drop(Restore::try_from(args)?),
        RawCommand::Export(args) => drop(Export::try_from(args)?),
        RawCommand::Import(args) => drop(Import::try_from(args)?),
        RawCommand::Tables(args) => drop(Target::try_from(args)?),
        RawCommand::Stats(args) | RawCommand::Check(args) | RawCommand::Merge(args) => {
            drop(Target::try_from(args)?)
        }
        RawCommand::Rename(args) => drop(Rename::try_from(args)?),
        RawCommand::Drop(args) => drop(TableAt::try_from(args)?),
        RawCommand::Compact(args) => drop(Compact::try_from(args)?),
        RawCommand::Wear(args) => drop(Wear::try_from(args)?),
        RawCommand::Probe(args) => drop(Probe::try_from(args)?),
        // The command looks at a node, which may not exist here.
        RawCommand::Bench(args) if args.node.is_none() => drop(crate::bench::config(&args)?),
        _ => {}
    }
    Ok(())
}

/// Words of a line, as a shell splits them.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for c in line.chars() {
        match (c, words.last_mut()) {
            ('\'', _) => is_quoted = !is_quoted,
            (' ', _) if !is_quoted => words.push(String::new()),
            (_, Some(word)) => word.push(c),
            (_, None) => {}
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The calls of `flagstone` in a line, up to two spaces or a `#`.
fn calls(line: &str) -> Vec<Vec<String>> {
    let line = line.trim();
    let line = line.split("  ").next().unwrap_or_default();
    let line = line.split(" #").next().unwrap_or_default();
    let parts = line.split(['|', '(', ')']).map(str::trim);
    let parts = parts.filter(|part| part.starts_with("flagstone "));
    // Redirections are the shell's affair.
    parts.map(|part| words(part.split(" >").next().unwrap_or_default())).collect()
}

fn helps(command: &Command, texts: &mut Vec<String>) {
    texts.extend(command.get_after_help().map(ToString::to_string));
    for command in command.get_subcommands() {
        helps(command, texts);
    }
}

/// The lines of the block of README.md that holds command lines.
fn readme() -> Vec<&'static str> {
    let text = include_str!("../../../../README.md");
    let (_, section) = text.split_once("## On the command line").unwrap();
    section
        .lines()
        .skip_while(|line| *line != "```sh")
        .skip(1)
        .take_while(|l| *l != "```")
        .collect()
}

#[track_caller]
fn require_understood(lines: &[&str], count_min: usize) {
    let place = TempDir::new().unwrap();
    let own = place.path().join("own.toml");
    let chip = flagstone_nand::Profile::named("slc-2k").unwrap();
    fs::write(&own, chip.to_toml()).unwrap();
    let own = own.to_str().unwrap();
    let mut count = 0;
    for call in lines.iter().flat_map(|line| calls(line)) {
        let call: Vec<_> = call.iter().map(|w| if w == "own.toml" { own } else { w }).collect();
        let args = RawArgs::try_parse_from(&call).unwrap_or_else(|error| panic!("{error}"));
        understand(args.command).unwrap_or_else(|error| panic!("{call:?}: {error}"));
        count += 1;
    }
    assert!(count >= count_min, "only {count} command lines were found");
}

#[test]
fn every_command_line_of_the_help_is_understood() {
    let mut texts = Vec::new();
    helps(&RawArgs::command(), &mut texts);
    let lines: Vec<_> = texts.iter().flat_map(|text| text.lines()).collect();
    require_understood(&lines, 70);
}

#[test]
fn every_command_line_of_the_readme_is_understood() {
    require_understood(&readme(), 30);
}
