//! Measures rows of the scoreboard and writes `docs/RELIABILITY.md` from all results so far.
//!
//! ```sh
//! cargo run --release -p flagstone-lab --features seeded-bugs --example reliability -- A1 B2 --effort 4
//! ```
//!
//! Without names of rows, all are measured. Run it at the root of the source tree. With `--add`, images
//! (rows D1 and D5) go on behind the images that were drawn at this commit before; their result so
//! far is written every few seconds.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use flagstone_lab::crash::scoreboard::{Measured, Outcome, ROWS, Results, document};

/// Command that measures a row again, before the row's name.
const COMMAND: &str =
    "cargo run --release -p flagstone-lab --features seeded-bugs --example reliability --";
const RESULTS: &str = "results/reliability.json";
const DOCUMENT: &str = "docs/RELIABILITY.md";

fn main() -> Result<(), Box<dyn Error>> {
    // A panic is a finding that the harness catches and reports.
    std::panic::set_hook(Box::new(|_| ()));
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (mut effort, mut adds) = (1, false);
    let mut names = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--effort" => effort = words.next().ok_or("--effort needs a number")?.parse()?,
            "--add" => adds = true,
            name if ROWS.iter().any(|row| row.id == name) => names.push(name),
            name => return Err(format!("there is no row `{name}`").into()),
        }
    }
    let mut results: Results = match fs::read_to_string(RESULTS) {
        Ok(text) => serde_json::from_str(&text)?,
        Err(_) => Results::new(),
    };
    let commit = commit();
    for row in ROWS.iter().filter(|row| names.is_empty() || names.contains(&row.id)) {
        let started = Instant::now();
        let before = results.get(row.id).filter(|found| adds && found.commit == commit);
        let before = before.map(|found| found.outcome.clone());
        let measured = |outcome: &Outcome| Measured {
            outcome: outcome.clone(),
            commit: commit.clone(),
            command: format!("{COMMAND} {} --effort {}", row.id, row.effort_of(outcome, effort)),
        };
        let mut told = results.clone();
        let mut tell = |outcome: &Outcome| {
            told.insert(row.id.to_owned(), measured(outcome));
            if let Err(error) = write(&told) {
                eprintln!("{error}");
            }
        };
        let outcome = row.measure(effort, &results, before.as_ref(), &mut tell)?;
        println!("{:<3} {} ({:.0} s)", row.id, outcome.value, started.elapsed().as_secs_f64());
        results.insert(row.id.to_owned(), measured(&outcome));
        write(&results)?;
    }
    write(&results)
}

fn write(results: &Results) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(Path::new(RESULTS).parent().unwrap_or(Path::new(".")))?;
    fs::write(RESULTS, serde_json::to_string_pretty(results)? + "\n")?;
    fs::write(DOCUMENT, document(results))?;
    Ok(())
}

/// Short name of the commit that is checked out.
fn commit() -> String {
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let name = output.ok().filter(|output| output.status.success());
    name.map_or_else(
        || String::from("unknown"),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
