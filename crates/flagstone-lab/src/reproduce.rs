//! Reproducing a paper: runs, figures, verdicts, and the files that show them.
//!
//! Owns the course of a reproduction: which cells a figure needs, running each once, judging every
//! row, and the files written. Never measures anything itself: a cell does, and every value that it
//! reports under a name can be drawn and judged.
//!
//! ```text
//! experiment ─▶ figures ─▶ cells ──(cores)──▶ outcomes ─▶ drawings ─▶ rows, charts, files
//! ```
//!
//! - **X1** A cell runs once, however many figures need it; its outcome depends on its
//!   configuration alone, so neither threads nor their order change any result.
//! - **X2** Equal seed and effort give equal bytes in every file: no time of day, no wall time.
//! - **X3** A claim of the paper has its row, for any outcome ([`rule`]).

pub mod cell;
mod chart;
pub mod figure;
mod files;
mod page;
pub mod papers;
pub mod rule;

use std::io;
use std::path::PathBuf;

use flagstone_engine::OptionsError;
use flagstone_nand::{ProfileError, suggestion};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bench::BenchError;
use cell::Cell;
use figure::{Figure, Report, Row};

pub(crate) use chart::draw;
pub(crate) use files::put;
pub use files::write;
pub(crate) use page::style;
pub use papers::{PAPERS, Paper};

/// How much of an experiment runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// The paper's sizes.
    #[default]
    Full,
    /// Smaller sizes in the same proportions: minutes.
    Quick,
}

/// Scope of a reproduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Name of the paper.
    pub paper: String,
    /// One figure; none means all.
    pub figure: Option<String>,
    /// Sizes.
    pub effort: Effort,
    /// Seed of everything random.
    pub seed: u64,
    /// Runs at a time.
    pub threads: usize,
    /// Directory of results whose runs are taken as they are, and where each run is noted as it ends.
    pub resume: Option<PathBuf>,
    /// Nothing runs: figures whose runs are not all on file are left out.
    pub draw_only: bool,
}

/// An experiment: everything of one paper that is reproduced.
pub struct Experiment {
    /// Name of the paper on the command line.
    pub paper: &'static str,
    /// Title of the paper.
    pub title: &'static str,
    /// Settings where the paper is silent, a line each.
    pub setting: Vec<String>,
    /// Figures and tables, in the paper's order.
    pub figures: Vec<Figure>,
}

/// Result of a reproduction.
#[derive(Clone, Debug)]
pub struct Reproduction {
    /// Name of the paper.
    pub paper: &'static str,
    /// Title of the paper.
    pub title: &'static str,
    /// Settings, a line each.
    pub setting: Vec<String>,
    /// Sizes.
    pub effort: Effort,
    /// Seed.
    pub seed: u64,
    /// Figures with their rows.
    pub figures: Vec<Report>,
}

/// The answer in the agreed form: `{"paper", "rows"}`.
#[derive(Clone, Debug, Serialize)]
pub struct Summary<'r> {
    /// Name of the paper.
    pub paper: &'r str,
    /// Every row of every figure.
    pub rows: Vec<&'r Row>,
}

/// Why a reproduction gave no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReproduceError {
    /// No paper has this name.
    #[error("there is no paper `{name}`{}", suggestion(*nearest))]
    UnknownPaper {
        /// Name asked for.
        name: String,
        /// Name that was probably meant.
        nearest: Option<&'static str>,
    },
    /// The paper has no figure of this name.
    #[error("`{paper}` has no figure `{name}`; it has {known}")]
    UnknownFigure {
        /// Paper asked for.
        paper: &'static str,
        /// Name asked for.
        name: String,
        /// Figures that exist.
        known: String,
    },
    /// Nothing can be drawn: no figure has all its runs on file.
    #[error("no runs of `{0}` with these sizes and this seed are on file")]
    NothingOnFile(&'static str),
    /// A cell failed.
    #[error("run `{cell}`: {source}")]
    Run {
        /// Cell concerned.
        cell: String,
        /// Why.
        source: BenchError,
    },
    /// A figure asks for a value that no run reports: a mistake in the experiment.
    #[error("no run reports `{value}` of `{cell}`")]
    Missing {
        /// Cell concerned.
        cell: String,
        /// Value asked for.
        value: String,
    },
    /// A profile of the experiment cannot be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A preset of the experiment cannot be used.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A chart could not be drawn.
    #[error("chart of figure `{figure}`: {message}")]
    Chart {
        /// Figure concerned.
        figure: String,
        /// Message of the drawing library.
        message: String,
    },
    /// A file could not be written.
    #[error("{path}: {source}")]
    File {
        /// File concerned.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A result could not be put into JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Told how far the runs are: done and total, in thousandths of a run.
pub type OnProgress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Reproduces the figures that `request` asks for.
///
/// # Errors
///
/// The request's mistakes, or the first cell that failed, by name.
pub fn reproduce(
    request: &Request,
    on_progress: OnProgress<'_>,
) -> Result<Reproduction, ReproduceError> {
    let experiment = papers::experiment(&request.paper, request.effort, request.seed)?;
    run(experiment, request, on_progress)
}

/// Runs an experiment: its cells over the cores, then every figure.
///
/// # Errors
///
/// As [`reproduce`].
pub fn run(
    experiment: Experiment,
    request: &Request,
    on_progress: OnProgress<'_>,
) -> Result<Reproduction, ReproduceError> {
    let Experiment { paper, title, setting, figures } = experiment;
    let mut figures = chosen(paper, figures, request.figure.as_deref())?;
    let made_with = (request.effort, request.seed);
    let known = match &request.resume {
        Some(dir) => files::runs_on_file(dir, paper, made_with)?,
        None => cell::Outcomes::default(),
    };
    if request.draw_only {
        figures.retain(|figure| figure.cells.iter().all(|cell| known.get(cell.name()).is_some()));
        if figures.is_empty() {
            return Err(ReproduceError::NothingOnFile(paper));
        }
    }
    let cells: Vec<&Cell> = figures.iter().flat_map(|figure| &figure.cells).collect();
    let journal = request.resume.as_deref().filter(|_| !request.draw_only);
    let journal = journal.map(|dir| files::Journal::open(dir, paper, made_with)).transpose()?;
    let outcomes = cell::run_all(&cells, request.threads, known, journal.as_ref(), on_progress)?;
    let reports = figures.iter().map(|figure| figure.report(&outcomes));
    let figures = reports.collect::<Result<_, _>>()?;
    Ok(Reproduction { paper, title, setting, effort: request.effort, seed: request.seed, figures })
}

/// The figures asked for.
fn chosen(
    paper: &'static str,
    figures: Vec<Figure>,
    name: Option<&str>,
) -> Result<Vec<Figure>, ReproduceError> {
    let Some(name) = name else { return Ok(figures) };
    let known: Vec<&str> = figures.iter().map(|figure| figure.id).collect();
    let known = known.join(", ");
    let chosen: Vec<Figure> = figures.into_iter().filter(|figure| figure.id == name).collect();
    if chosen.is_empty() {
        return Err(ReproduceError::UnknownFigure { paper, name: name.to_owned(), known });
    }
    Ok(chosen)
}

impl Reproduction {
    /// The answer in the agreed form.
    #[must_use]
    pub fn summary(&self) -> Summary<'_> {
        let rows = self.figures.iter().flat_map(|figure| &figure.rows).collect();
        Summary { paper: self.paper, rows }
    }
}

#[cfg(test)]
mod tests;
