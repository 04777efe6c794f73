//! The command `crash`: explores crash states, or replays one.
//!
//! Owns the report as text; the exploration is the lab's. A failing state prints one line that
//! replays it: on the output as text, on the error stream beside JSON.

use std::io::{Write as _, stderr};
use std::num::TryFromIntError;
use std::sync::{Mutex, PoisonError};

use flagstone_lab::crash::{self, CrashConfig, CrashReport, CutPath};

use crate::args::CrashArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Form, Output};
use crate::progress::Progress;
use crate::table::grouped;

/// Runs `crash`.
pub(crate) fn crash(args: &CrashArgs, output: &mut Output) -> Result<Exit, Failure> {
    let config = CrashConfig {
        preset: args.preset.clone(),
        profile: args.profile.clone(),
        ops: args.ops.try_into().map_err(|_: TryFromIntError| Failure::TooMany("--ops"))?,
        depth: args.depth,
        seed: args.seed,
        ..CrashConfig::default()
    };
    let report = match (&args.cut, &args.ending) {
        (Some(cut), Some(ending)) => {
            let path = CutPath::parse(cut, ending).map_err(crash::CrashError::from)?;
            crash::replay(&config, &path)?
        }
        _ => explore(&config, output.form())?,
    };
    if output.form() == Form::Json {
        let mut stream = stderr().lock();
        for line in &report.lines {
            // No message is possible once the error stream itself is gone.
            let _ = writeln!(stream, "{line}");
        }
    }
    output.show(&report, || text(&report))?;
    match report.failures {
        0 => Ok(Exit::Ok),
        count => Err(Failure::Broken { states: count }),
    }
}

fn explore(config: &CrashConfig, form: Form) -> Result<CrashReport, Failure> {
    let progress = Mutex::new(Progress::new(form));
    let on_progress = |done, total| {
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.report("crash states", done, total);
    };
    let result = crash::explore(config, &on_progress);
    progress.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    Ok(result?)
}

fn text(report: &CrashReport) -> String {
    let lines = report.lines.iter().map(|line| format!("{line}\n"));
    let lines: String = lines.collect();
    let (points, states) = (grouped(report.points), grouped(report.states));
    let refused = match report.probes_refused {
        0 => String::new(),
        count => format!(" ({} without room for another change)", grouped(count)),
    };
    format!(
        "{lines}{}: power cut at {points} operations, {states} crash states recovered{refused}, \
         {} failures, {} commits lost, {:.1} s\n",
        report.preset, report.failures, report.lost_commits, report.elapsed_s
    )
}
