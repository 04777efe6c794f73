//! The files of a reproduction: JSON, CSV and SVG for each figure, and one page for all.
//!
//! Owns names and forms of the files. Everything in them follows from seed and effort (rule X2).
//!
//! ```text
//! DIR/<paper>/<figure>.json   panels, rows and the runs behind them
//! DIR/<paper>/<figure>.csv    the values of the charts, if any: panel, series, x, value
//! DIR/<paper>/<figure>.svg    the charts, if any
//! DIR/<paper>/index.html      all of it on one page that needs nothing else
//! DIR/<paper>/runs.jsonl      runs as they end, one a line, where a reproduction may be resumed
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::cell::{Outcome, Outcomes};
use super::figure::Report;
use super::{Effort, ReproduceError, Reproduction, chart, page};

const JOURNAL: &str = "runs.jsonl";

/// Content of a figure's JSON file.
#[derive(Serialize)]
struct FigureFile<'r> {
    paper: &'r str,
    effort: Effort,
    seed: u64,
    command: String,
    #[serde(flatten)]
    report: &'r Report,
}

/// Runs with their effort and seed: a line of the journal, and part of a figure's JSON file.
#[derive(Serialize, Deserialize)]
struct Runs {
    effort: Effort,
    seed: u64,
    runs: BTreeMap<String, Outcome>,
}

/// Where runs are noted as they end.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: Mutex<File>,
    effort: Effort,
    seed: u64,
}

impl Journal {
    /// Opens the journal of a paper below `dir`: its lines stay.
    pub(super) fn open(
        dir: &Path,
        paper: &str,
        (effort, seed): (Effort, u64),
    ) -> Result<Self, ReproduceError> {
        let dir = dir.join(paper);
        fs::create_dir_all(&dir).map_err(|source| failed(&dir, source))?;
        let path = dir.join(JOURNAL);
        let file = File::options().create(true).append(true).open(&path);
        let mut file = file.map_err(|source| failed(&path, source))?;
        // A cut-off entry stands on a line of its own.
        file.write_all(b"\n").map_err(|source| failed(&path, source))?;
        Ok(Self { path, file: Mutex::new(file), effort, seed })
    }

    /// Notes a run.
    pub(super) fn note(&self, name: &str, outcome: &Outcome) -> Result<(), ReproduceError> {
        let runs = BTreeMap::from([(name.to_owned(), outcome.clone())]);
        let mut line = serde_json::to_string(&Runs { effort: self.effort, seed: self.seed, runs })?;
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes()).map_err(|source| failed(&self.path, source))
    }
}

/// The runs of this effort and seed that the files of a paper below `dir` hold; a line that does
/// not parse counts as missing.
pub(super) fn runs_on_file(
    dir: &Path,
    paper: &str,
    (effort, seed): (Effort, u64),
) -> Result<Outcomes, ReproduceError> {
    let dir = dir.join(paper);
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Outcomes::default()),
        entries => entries.map_err(|source| failed(&dir, source))?,
    };
    let mut known = Outcomes::default();
    for entry in entries {
        let path = entry.map_err(|source| failed(&dir, source))?.path();
        let is_journal = path.file_name().is_some_and(|name| name == JOURNAL);
        if !is_journal && path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|source| failed(&path, source))?;
        let parts = if is_journal { text.lines().collect() } else { vec![text.as_str()] };
        for runs in parts.into_iter().filter_map(|part| serde_json::from_str::<Runs>(part).ok()) {
            if (runs.effort, runs.seed) == (effort, seed) {
                known.extend(runs.runs.into_iter().map(|(name, run)| (name, run.judged())));
            }
        }
    }
    Ok(known)
}

/// Writes all files of `reproduction` below `dir`; the page's path.
///
/// # Errors
///
/// Names the file that could not be written, or the figure that could not be drawn.
pub fn write(reproduction: &Reproduction, dir: &Path) -> Result<PathBuf, ReproduceError> {
    let dir = dir.join(reproduction.paper);
    fs::create_dir_all(&dir).map_err(|source| failed(&dir, source))?;
    let mut charts = Vec::with_capacity(reproduction.figures.len());
    for report in &reproduction.figures {
        let base = dir.join(report.figure);
        put(&base.with_extension("json"), &json(reproduction, report)?)?;
        if report.panels.is_empty() {
            charts.push(None);
            continue;
        }
        let svg = chart::draw(report)?;
        put(&base.with_extension("csv"), &csv(report))?;
        put(&base.with_extension("svg"), &svg)?;
        charts.push(Some(svg));
    }
    let path = dir.join("index.html");
    put(&path, &page::render(reproduction, &charts))?;
    Ok(path)
}

/// The command that repeats a reproduction.
pub(super) fn command(reproduction: &Reproduction) -> String {
    let Reproduction { paper, effort, seed, figures, .. } = reproduction;
    let figure = match figures.as_slice() {
        [report] => format!(" {}", report.figure),
        _ => String::new(),
    };
    let quick = if *effort == Effort::Quick { " --quick" } else { "" };
    format!("flagstone lab reproduce {paper}{figure}{quick} --seed {seed}")
}

fn json(reproduction: &Reproduction, report: &Report) -> Result<String, ReproduceError> {
    let file = FigureFile {
        paper: reproduction.paper,
        effort: reproduction.effort,
        seed: reproduction.seed,
        command: command(reproduction),
        report,
    };
    let mut text = serde_json::to_string_pretty(&file)?;
    text.push('\n');
    Ok(text)
}

fn csv(report: &Report) -> String {
    let mut text = String::from("panel,series,x,value\n");
    for panel in &report.panels {
        let labels = panel.axis.labels();
        for series in &panel.series {
            for (label, value) in labels.iter().zip(&series.values) {
                let names = [&panel.title, &series.name, label].map(|name| quoted(name));
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{},{value}", names.join(","));
            }
        }
    }
    text
}

/// A field of CSV (RFC 4180).
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// Writes a file.
pub(crate) fn put(path: &Path, text: &str) -> Result<(), ReproduceError> {
    fs::write(path, text).map_err(|source| failed(path, source))
}

fn failed(path: &Path, source: io::Error) -> ReproduceError {
    ReproduceError::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        assert_eq!(quoted("run time, s"), "\"run time, s\"");
        assert_eq!(quoted("a \"b\""), "\"a \"\"b\"\"\"");
        assert_eq!(quoted("plain"), "plain");
    }
}
