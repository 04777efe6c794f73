//! The command `lab`: experiments of the papers.
//!
//! Owns the table on the terminal; runs, verdicts and files are the lab's.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use flagstone_lab::compare::{self, Comparison};
use flagstone_lab::crossover::{self, Crossover, Line, Pattern};
use flagstone_lab::reproduce::rule::Verdict;
use flagstone_lab::reproduce::{self, Effort, Reproduction, Request};

use crate::args::{CompareArgs, CrossoverArgs, RawLab, ReproduceArgs, results_directory};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Form, Output};
use crate::progress::Progress;
use crate::table::{Align, Table};

/// Runs `lab`.
pub(crate) fn lab(command: &RawLab, output: &mut Output) -> Result<Exit, Failure> {
    match command {
        RawLab::Reproduce(args) => reproduce(args, output),
        RawLab::Crossover(args) => crossover(args, output),
        RawLab::Compare(args) => compare(args, output),
    }
}

/// Runs `lab crossover`.
fn crossover(args: &CrossoverArgs, output: &mut Output) -> Result<Exit, Failure> {
    let request = crossover::Request {
        profile: args.profile.clone(),
        effort: if args.quick { Effort::Quick } else { Effort::Full },
        seed: args.seed,
        threads: args.threads.map_or_else(cores, |threads| threads as usize),
    };
    let progress = Mutex::new(Progress::new(output.form()));
    let result = crossover::measure(&request, &|done, total| {
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.report("runs", done, total);
    });
    progress.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    let measured = result?;
    measured.write(&results_directory(args.out.as_deref(), args.quick))?;
    output.show(&measured, || crossover_text(&measured))?;
    Ok(Exit::Ok)
}

/// Programs a transaction, one line a size.
fn crossover_text(measured: &Crossover) -> String {
    const HEADS: [&str; 7] =
        ["rows", "changed rows", "log", "flags", "automatic", "of the better", "leaves claimed"];
    let row = |line: &Line| {
        let pattern = if line.pattern == Pattern::Dense { "dense" } else { "scattered" };
        vec![
            pattern.to_owned(),
            line.rows.to_string(),
            format!("{:.3}", line.log.programs),
            format!("{:.3}", line.flags.programs),
            format!("{:.3}", line.auto.programs),
            format!("{:.3}", line.ratio),
            format!("{:.1}", line.auto.claimed),
        ]
    };
    let rows = measured.lines.iter().map(row).collect();
    let table = Table::with_rows(HEADS.into_iter(), rows);
    format!("programs a transaction ({}):\n\n{table}", measured.profile)
}

/// Runs `lab compare`.
fn compare(args: &CompareArgs, output: &mut Output) -> Result<Exit, Failure> {
    let request = compare::Request {
        effort: if args.quick { Effort::Quick } else { Effort::Full },
        seed: args.seed,
        threads: args.threads.map_or_else(cores, |threads| threads as usize),
    };
    let progress = Mutex::new(Progress::new(output.form()));
    let result = compare::measure(&request, &|done, total| {
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.report("runs", done, total);
    });
    progress.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    let measured = result?;
    measured.write(&results_directory(args.out.as_deref(), args.quick))?;
    output.show(&measured, || compare_text(&measured))?;
    Ok(Exit::Ok)
}

/// A request's cost, one line a workload and policy; then the worth of each change.
fn compare_text(measured: &Comparison) -> String {
    const HEADS: [&str; 9] = [
        "workload",
        "policy",
        "reads",
        "programs",
        "erases a thousand",
        "flash us",
        "cpu us",
        "hit ratio",
        "default over it",
    ];
    let rows = measured.lines.iter().map(|line| {
        let cost = &line.cost;
        vec![
            line.workload.clone(),
            line.policy.clone(),
            format!("{:.3}", cost.reads),
            format!("{:.3}", cost.programs),
            format!("{:.2}", 1000.0 * cost.erases),
            format!("{:.1}", cost.flash_us),
            cost.cpu_us.map_or_else(String::new, |cpu_us| format!("{cpu_us:.1}")),
            format!("{:.3}", cost.hit_ratio),
            format!("{:.3}", line.default_ratio),
        ]
    });
    let lines = Table::with_rows(HEADS.into_iter(), rows.collect());
    let rows = measured.steps.iter().map(|step| {
        vec![
            step.workload.clone(),
            step.change.to_owned(),
            format!("{:.1}", step.before_us),
            format!("{:.1}", step.after_us),
            format!("{:+.1} %", 100.0 * (step.after_us / step.before_us - 1.0)),
        ]
    });
    let heads = ["workload", "change", "before, us", "after, us", "worth"];
    let steps = Table::with_rows(heads.into_iter(), rows.collect());
    format!("a request:\n\n{lines}\nfrom lazy-cost to the default:\n\n{steps}")
}

/// Runs `lab reproduce`: a claim that differs is an answer, not a failure.
fn reproduce(args: &ReproduceArgs, output: &mut Output) -> Result<Exit, Failure> {
    let out = results_directory(args.out.as_deref(), args.quick);
    let request = Request {
        paper: args.paper.clone(),
        figure: args.figure.clone(),
        effort: if args.quick { Effort::Quick } else { Effort::Full },
        seed: args.seed,
        threads: args.threads.map_or_else(cores, |threads| threads as usize),
        resume: (args.resume || args.draw_only).then(|| out.clone()),
        draw_only: args.draw_only,
    };
    let reproduction = run(&request, output.form())?;
    let page = reproduce::write(&reproduction, &out)?;
    output.show(&reproduction.summary(), || text(&reproduction, &page))?;
    Ok(Exit::Ok)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

fn run(request: &Request, form: Form) -> Result<Reproduction, Failure> {
    let progress = Mutex::new(Progress::new(form));
    let on_progress = |done, total| {
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.report("runs, in thousandths", done, total);
    };
    let result = reproduce::reproduce(request, &on_progress);
    progress.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    Ok(result?)
}

/// The rows as a table, then the reason of each verdict, one line each.
fn text(reproduction: &Reproduction, page: &Path) -> String {
    const LEFT: Align = Align::Left;
    let heads = ["figure", "item", "paper", "ours", "verdict"];
    let mut table = Table::new(heads.map(|head| (head, LEFT)));
    let mut reasons = String::new();
    for row in reproduction.summary().rows {
        let judgement = &row.judgement;
        let verdict = match judgement.verdict {
            Verdict::Holds => "holds",
            Verdict::Differs => "differs",
        };
        let cells = [row.figure, &row.item, &judgement.paper, &judgement.ours, verdict];
        table.row(cells.map(str::to_owned));
        reasons += &format!("{}, {}: {}\n", row.figure, row.item, judgement.why);
    }
    format!("{table}\n{reasons}\ncharts: {}\n", page.display())
}
