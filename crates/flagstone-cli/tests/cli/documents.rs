//! The examples of the README, run as they stand there.

use std::process::Command;

use crate::command::{Place, run};

/// Commands that take long, or do not end.
const LONG: [&str; 6] = ["bench", "crash", "demo", "lab", "quickstart", "man"];

/// Goal: the README's command lines work as written. Method: a shell runs the block of command lines, one after the
/// other in one directory, except for raw NAND and for commands that take long.
#[test]
fn the_commands_of_the_readme_work_in_their_order() {
    let place = Place::empty();
    let text = include_str!("../../../../README.md");
    let (_, section) = text.split_once("## On the command line").expect("a section");
    let block = section.lines().skip_while(|line| *line != "```sh").skip(1);
    let mut count = 0;
    for line in block.take_while(|line| *line != "```") {
        let Some(call) = line.strip_prefix("flagstone ") else { continue };
        if call.contains("/dev/") || LONG.iter().any(|name| call.starts_with(name)) {
            continue;
        }
        let script = format!("{} {call}", env!("CARGO_BIN_EXE_flagstone"));
        run(Command::new("sh").args(["-c", &script]).current_dir(place.file(""))).ok();
        count += 1;
    }
    assert!(count >= 15, "only {count} command lines were found");
}
