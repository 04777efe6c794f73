//! The command `quickstart`: the main job, and its work on the flash.
//!
//! Owns the story as text and the comparison; the job itself is the lab's.

use flagstone::Options;
use flagstone_lab::quickstart::{
    CutReport, Life, QuickstartConfig, QuickstartProgress, Stage, quickstart as run,
};
use flagstone_lab::run::Run;
use serde_json::json;

use crate::args::QuickstartArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Form, Output, path_text};
use crate::progress::Progress;
use crate::request::{self, CHIP_PROFILE};
use crate::scratch::Scratch;
use crate::table::{Table, grouped};

/// Engines that are compared: the traditional one, and this one.
const PRESETS: [&str; 2] = ["traditional", "flagstone"];

/// Runs `quickstart`.
pub(crate) fn quickstart(args: &QuickstartArgs, output: &mut Output) -> Result<Exit, Failure> {
    let scratch = Scratch::new(args.dir.as_deref())?;
    let options = PRESETS.map(Options::preset).into_iter().collect::<Result<Vec<_>, _>>()?;
    let profile = request::profile(CHIP_PROFILE)?;
    let mut config = QuickstartConfig::new(scratch.path().to_owned(), profile, options);
    config.txns = args.txns.unwrap_or(config.txns);
    config.seed = args.seed;
    let lives = live(&config, output.form())?;
    let cuts: Vec<_> = lives.iter().map(cut_json).collect();
    let runs: Vec<_> = lives.iter().map(|life| &life.run).collect();
    output.show(&json!({ "runs": runs, "cuts": cuts }), || report(&config, &lives))?;
    Ok(Exit::Ok)
}

fn live(config: &QuickstartConfig, form: Form) -> Result<Vec<Life>, Failure> {
    let mut progress = Progress::new(form);
    let mut on_progress = |state: QuickstartProgress<'_>| {
        let phase = format!("{}: {}", state.preset, stage_name(state.stage));
        progress.report(&phase, state.done, state.total);
    };
    let result = run(config, &mut on_progress);
    progress.finish();
    Ok(result?)
}

const fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Load => "load",
        Stage::BeforeCut => "before the cut",
        Stage::Recovery => "recovery",
        Stage::AfterCut => "after the cut",
        Stage::Verify => "verify",
    }
}

fn cut_json(life: &Life) -> serde_json::Value {
    let CutReport { acknowledged, found, sum, recovery } = life.cut;
    json!({
        "preset": life.run.config.preset,
        "image": path_text(&life.image),
        "acknowledged": acknowledged,
        "found": found,
        "sum": sum,
        "recovery": recovery,
    })
}

fn report(config: &QuickstartConfig, lives: &[Life]) -> String {
    let story: String = lives.iter().map(|life| story(config, life)).collect();
    format!("{story}\nWhat each engine did to the flash, load left out:\n\n{}", comparison(lives))
}

fn story(config: &QuickstartConfig, life: &Life) -> String {
    let CutReport { acknowledged, found, sum, recovery } = life.cut;
    let chip = life.run.config.observed.block_count;
    format!(
        "{}: TPC-B on the image of chip {} ({} blocks), {} clients\n\
         \x20 power cut inside a program, {} commits acknowledged\n\
         \x20 reopened in {:.1} ms: {} pages read, {} written\n\
         \x20 {} commits found, all acknowledged ones among them\n\
         \x20 branches, tellers, accounts and history agree: sum {sum}\n\
         \x20 went on to {} commits, all verified\n",
        life.run.config.preset,
        config.profile.name,
        chip,
        config.clients,
        grouped(acknowledged),
        recovery.time_s * 1000.0,
        grouped(recovery.pages_read),
        grouped(recovery.pages_written),
        grouped(found),
        grouped(life.run.commits),
    )
}

/// The engines side by side, and the savings of the last one.
fn comparison(lives: &[Life]) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut line = |name: &str, cell: &dyn Fn(&Run) -> String, saved: String| {
        let cells = lives.iter().map(|life| cell(&life.run));
        rows.push([name.to_owned()].into_iter().chain(cells).chain([saved]).collect());
    };
    let programs = |run: &Run| run.page_programs + run.partial_programs;
    let fewer = |of: &dyn Fn(&Run) -> f64| times(factor(lives, of), "fewer", "more");
    line("transactions", &|run| grouped(run.commits), String::new());
    line("programs", &|run| grouped(programs(run)), fewer(&|run| programs(run) as f64));
    let per_commit = |run: &Run| format!("{:.2}", run.programs_per_commit());
    line("programs a transaction", &per_commit, fewer(&Run::programs_per_commit));
    line("erases", &|run| grouped(run.block_erases), fewer(&|run| run.block_erases as f64));
    let amplification = |run: &Run| format!("{:.1}", run.write_amplification);
    line("write amplification", &amplification, fewer(&|run| run.write_amplification));
    let life = factor(lives, &|run| run.lifetime_txns.map_or(f64::NAN, |txns| txns as f64));
    let longer = times(1.0 / life, "longer", "shorter");
    line("expected lifetime, transactions", &crate::bench::lifetime, longer);
    let heads = lives.iter().map(|life| life.run.config.preset.as_str());
    let difference = lives.last().map_or("", |life| life.run.config.preset.as_str());
    let difference = format!("{difference} has");
    Table::with_rows([""].into_iter().chain(heads).chain([difference.as_str()]), rows).to_string()
}

/// First engine over last one; not a number where one of them lacks the figure.
fn factor(lives: &[Life], of: &dyn Fn(&Run) -> f64) -> f64 {
    match (lives.first(), lives.last()) {
        (Some(first), Some(last)) => of(&first.run) / of(&last.run),
        _ => f64::NAN,
    }
}

/// `factor` in words; nothing where there is no factor.
fn times(factor: f64, above: &str, below: &str) -> String {
    if !factor.is_normal() {
        return String::new();
    }
    if factor >= 1.0 {
        return format!("{factor:.1} times {above}");
    }
    format!("{:.1} times {below}", 1.0 / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_below_one_is_said_the_other_way_round() {
        assert_eq!(times(2.5, "fewer", "more"), "2.5 times fewer");
        assert_eq!(times(0.5, "fewer", "more"), "2.0 times more");
        assert_eq!(times(f64::NAN, "fewer", "more"), "");
        assert_eq!(times(1.0 / 0.0, "fewer", "more"), "");
    }
}
