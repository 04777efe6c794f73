//! Random histories over the public interface.
//!
//! A seed draws a program: the place of the database (a file, a file of a process that will be killed, a simulated
//! chip or file whose power is cut), its options, 1 to 16 threads, and their operations, in sessions one after the
//! other. Each thread notes down its operations and their results. A checker that knows nothing of the engine says
//! whether a serial order explains the notes ([`checker`]). A seed gives the same program each time; the order in
//! which its threads take turns differs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;

mod checker;
mod draft;
mod draw;
mod ledger;
mod medium;
mod process;
mod program;
mod record;
mod session;
mod value;
mod worker;
mod world;

use program::Program;
use session::Tally;

/// Arguments of the judge of histories.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Begins no history after so many seconds.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Seed of the first history; each one after it has the next one.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Makes so many histories, however long they take.
    #[arg(long, value_name = "COUNT")]
    histories: Option<u64>,
    /// Goes on until so many transactions have been checked, however long that takes.
    #[arg(long, value_name = "COUNT")]
    transactions: Option<u64>,
    /// Makes the history of the first seed again and again: its threads take other turns each time.
    #[arg(long)]
    again: bool,
    /// Goes on after a failure, and says at the end when each form of failure was seen first.
    #[arg(long)]
    keep_going: bool,
    /// Prints the program of each history.
    #[arg(long)]
    verbose: bool,
    /// Directory for databases; by default the one for temporary files.
    #[arg(long, value_name = "PATH")]
    directory: Option<PathBuf>,
    /// Plants a deliberate bug in the engine, by its name in `SeededBug`: the judge has to see it.
    #[arg(long, value_name = "NAME")]
    bug: Option<String>,
    #[command(flatten)]
    part: process::Part,
}

/// When a form of failure was seen first, and how often.
struct Seen {
    after: Duration,
    seed: u64,
    count: u64,
}

/// Runs the judge, and prints its findings.
///
/// # Errors
/// A promise that is broken, or a judge that could not work.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if process::run_part(&arguments.part, arguments.bug.as_deref())? {
        return Ok(());
    }
    process::watch(process::WAIT_MAX);
    let begun = Instant::now();
    let (mut tally, mut forms) = (Tally::default(), BTreeMap::new());
    let mut seed = arguments.seed;
    while goes_on(arguments, &tally, begun) {
        let program = Program { bug: arguments.bug.clone(), ..Program::drawn(seed) };
        if arguments.verbose {
            println!("{:>6.1} s  {program}", begun.elapsed().as_secs_f64());
        }
        let directory = match &arguments.directory {
            Some(parent) => tempfile::tempdir_in(parent)?,
            None => tempfile::tempdir()?,
        };
        session::run(&program, directory.path(), &mut tally)?;
        for finding in tally.findings.drain(..) {
            let after = begun.elapsed();
            println!("{}: {}\n  {program}", finding.form, finding.text);
            let bug = program.bug.iter().map(|bug| format!(" --bug {bug}")).collect::<String>();
            println!("  again: judges histories --seed {seed} --again{bug}");
            forms.entry(finding.form).or_insert(Seen { after, seed, count: 0 }).count += 1;
        }
        if !forms.is_empty() && !arguments.keep_going {
            break;
        }
        seed += u64::from(!arguments.again);
    }
    report(&tally, &forms, begun.elapsed())
}

/// Plants a deliberate bug.
#[cfg(feature = "seeded-bugs")]
fn plant(db: &flagstone::Database, name: &str) -> anyhow::Result<()> {
    let bug = flagstone::SeededBug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
    anyhow::ensure!(bug.is_some(), "there is no deliberate bug {name}");
    db.runtime().plant(bug);
    Ok(())
}

#[cfg(not(feature = "seeded-bugs"))]
fn plant(_: &flagstone::Database, name: &str) -> anyhow::Result<()> {
    bail!("deliberate bugs such as {name} need the feature `seeded-bugs`")
}

fn goes_on(arguments: &Arguments, tally: &Tally, begun: Instant) -> bool {
    match (arguments.histories, arguments.transactions) {
        (Some(count), _) => tally.histories < count,
        (None, Some(count)) => tally.transactions < count,
        (None, None) => begun.elapsed().as_secs() < arguments.seconds,
    }
}

fn report(tally: &Tally, forms: &BTreeMap<String, Seen>, took: Duration) -> anyhow::Result<()> {
    let Tally { histories, sessions, transactions, snapshots, cuts, copies, .. } = tally;
    let seconds = took.as_secs_f64();
    println!(
        "{transactions} transactions in {histories} histories of {sessions} sessions: {snapshots} snapshots, \
         {cuts} restarts, {copies} backups; {seconds:.1} s, {:.0} transactions a second",
        *transactions as f64 / seconds
    );
    for (form, Seen { after, seed, count }) in forms {
        println!("  {form}: first after {:.1} s, seed {seed}; {count} in all", after.as_secs_f64());
    }
    if forms.is_empty() {
        println!("anomalies: 0");
        return Ok(());
    }
    bail!("{} forms of anomalies", forms.len())
}

#[cfg(test)]
mod tests {
    use super::program::Place;
    use super::*;

    /// Goal: no anomaly in small histories on each kind of device. Method: the histories of the first seeds, except
    /// those in a process of their own, with a tenth of their transactions. Again:
    /// `judges histories --seed SEED --again`.
    #[test]
    fn small_histories_are_serializable_and_whole() {
        let mut tally = Tally::default();
        for seed in 2..8 {
            let program = Program { divisor: 10, ..Program::drawn(seed) };
            assert_ne!(program.place, Place::Process, "{program}");
            let directory = tempfile::tempdir().unwrap();
            session::run(&program, directory.path(), &mut tally).unwrap();
            assert!(tally.findings.is_empty(), "{program}: {:#?}", tally.findings);
        }
        assert!(tally.transactions > 1_000 && tally.cuts > 10, "{tally:?}");
    }
}
