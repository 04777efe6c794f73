//! The files of a reproduction: JSON, CSV and SVG for each figure, and one page for all.
//!
//! Owns names and forms of the files. Everything in them follows from seed and effort (rule X2).
//!
//! ```text
//! DIR/<paper>/<figure>.json   panels, rows and the runs behind them
//! DIR/<paper>/<figure>.csv    the values of the charts, if any: panel, series, x, value
//! DIR/<paper>/<figure>.svg    the charts, if any
//! DIR/<paper>/index.html      all of it on one page that needs nothing else
//! ```

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::figure::Report;
use super::{Effort, ReproduceError, Reproduction, chart, page};

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
    let quick = if reproduction.effort == Effort::Quick { " --quick" } else { "" };
    format!("flagstone lab reproduce {}{quick} --seed {}", reproduction.paper, reproduction.seed)
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

fn failed(path: &Path, source: std::io::Error) -> ReproduceError {
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
