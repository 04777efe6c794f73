//! One page with all figures of a reproduction: readable alone, without a network.
//!
//! Owns the HTML: charts inlined, tables beside them, light and dark by the reader's preference.
//! Everything that a chart shows stands in a table too.

use std::fmt::Write as _;

use super::cell::Outcome;
use super::figure::{Panel, Report, Row};
use super::rule::{Verdict, number};
use super::{Effort, Reproduction, chart, files};

/// Renders the page; `charts` are the figures' SVG documents, in order, where they have one.
pub(super) fn render(reproduction: &Reproduction, charts: &[Option<String>]) -> String {
    let title = escape(reproduction.title);
    let mut body = String::new();
    for (report, svg) in reproduction.figures.iter().zip(charts) {
        figure(&mut body, report, svg.as_deref());
    }
    let count = |verdict| {
        let rows = reproduction.figures.iter().flat_map(|figure| &figure.rows);
        rows.filter(|row| row.judgement.verdict == verdict).count()
    };
    let setting: String =
        reproduction.setting.iter().map(|line| format!("<li>{}</li>\n", escape(line))).collect();
    let contents: String = reproduction
        .figures
        .iter()
        .map(|report| {
            format!("<li><a href=\"#{}\">{}</a></li>\n", report.figure, escape(report.title))
        })
        .collect();
    let effort = match reproduction.effort {
        Effort::Full => "full sizes",
        Effort::Quick => "quick: smaller sizes, not the paper's",
    };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} reproduced</title>\n<style>\n{}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#figures\">Skip to the figures</a>\n<header>\n<h1>{title}</h1>\n\
         <p>{} claims hold, {} differ ({effort}).</p>\n<p><code>{}</code></p>\n</header>\n\
         <nav aria-label=\"Figures\">\n<ul>\n{contents}</ul>\n</nav>\n\
         <section aria-labelledby=\"setting\">\n<h2 id=\"setting\">Setting</h2>\n\
         <ul>\n{setting}</ul>\n</section>\n<main id=\"figures\">\n{body}</main>\n</body>\n</html>\n",
        style(),
        count(Verdict::Holds),
        count(Verdict::Differs),
        escape(&files::command(reproduction)),
    )
}

fn figure(out: &mut String, report: &Report, svg: Option<&str>) {
    let chart = svg.map_or_else(String::new, |svg| format!("<figure>\n{svg}</figure>\n"));
    let (id, title) = (report.figure, escape(report.title));
    let rows: String = report.rows.iter().map(verdict_row).collect();
    let panels: String = report.panels.iter().map(panel_table).collect();
    let runs: String = report.runs.iter().map(run_row).collect();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<section id=\"{id}\" aria-labelledby=\"{id}-head\">\n<h2 id=\"{id}-head\">{title}</h2>\n\
         {chart}<div class=\"wide\" role=\"region\" aria-label=\"Claims\" tabindex=\"0\">\n<table>\n\
         <caption>Claims</caption>\n<thead><tr><th scope=\"col\">Item</th>\
         <th scope=\"col\">Paper</th><th scope=\"col\">Ours</th><th scope=\"col\">Verdict</th>\
         <th scope=\"col\">Why</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n\
         <details>\n<summary>Values and runs</summary>\n{panels}<div class=\"wide\" role=\"region\" \
         aria-label=\"Runs\" tabindex=\"0\">\n<table>\n<caption>Runs</caption>\n<thead><tr>\
         <th scope=\"col\">Run</th><th scope=\"col\">Steady</th>\
         <th scope=\"col\">Halves apart</th><th scope=\"col\">Fill at the end</th></tr></thead>\n\
         <tbody>\n{runs}\
         </tbody>\n</table>\n</div>\n</details>\n</section>\n"
    );
}

fn verdict_row(row: &Row) -> String {
    let (class, word) = match row.judgement.verdict {
        Verdict::Holds => ("holds", "holds"),
        Verdict::Differs => ("differs", "differs"),
    };
    format!(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td class=\"{class}\">{word}</td>\
         <td>{}</td></tr>\n",
        escape(&row.item),
        escape(&row.judgement.paper),
        escape(&row.judgement.ours),
        escape(&row.judgement.why),
    )
}

fn panel_table(panel: &Panel) -> String {
    let labels = panel.axis.labels();
    let heads: String =
        labels.iter().map(|label| format!("<th scope=\"col\">{}</th>", escape(label))).collect();
    let rows: String = panel
        .series
        .iter()
        .map(|series| {
            let cells: String = series
                .values
                .iter()
                .map(|value| format!("<td class=\"number\">{}</td>", number(*value)))
                .collect();
            format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", escape(&series.name))
        })
        .collect();
    let caption = escape(&format!("{}: {}", panel.title, panel.y));
    format!(
        "<div class=\"wide\" role=\"region\" aria-label=\"{caption}\" tabindex=\"0\">\n<table>\n\
         <caption>{caption}</caption>\n<thead><tr><th scope=\"col\">{}</th>{heads}</tr></thead>\n\
         <tbody>\n{rows}</tbody>\n</table>\n</div>\n",
        escape(&panel.x),
    )
}

fn run_row((name, outcome): (&String, &Outcome)) -> String {
    let steady = match outcome.steady {
        Some(true) => "yes",
        Some(false) => "no",
        None => "does not apply",
    };
    let observed = &outcome.config["observed"];
    let share = |value: &str| {
        observed[value].as_f64().map_or_else(String::new, |share| format!("{:.1} %", 100.0 * share))
    };
    format!(
        "<tr><th scope=\"row\">{}</th><td>{steady}</td><td class=\"number\">{}</td>\
         <td class=\"number\">{}</td></tr>\n",
        escape(name),
        share("drift"),
        share("fill"),
    )
}

/// Text with the characters that HTML and SVG reserve written out.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

/// The style sheet; charts take their ink, grid and ground from it too.
pub(crate) fn style() -> String {
    let hex = |color: plotters::style::RGBColor| {
        format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2)
    };
    let mut style = String::from(BASE_STYLE);
    for (color, name) in [(chart::INK, "ink"), (chart::GRID, "grid"), (chart::PAPER, "paper")] {
        let hex = hex(color);
        // Writing to a string cannot fail.
        let _ = writeln!(style, "svg [fill=\"{hex}\"] {{ fill: var(--{name}); }}");
        let _ = writeln!(style, "svg [stroke=\"{hex}\"] {{ stroke: var(--{name}); }}");
    }
    style
}

const BASE_STYLE: &str = "\
:root { color-scheme: light dark; --ink: #1f2328; --grid: #d8dee4; --paper: #ffffff; \
--soft: #59636e; --link: #0550ae; --holds: #116329; --differs: #a40e26; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --grid: #343b44; \
--paper: #0d1117; --soft: #9ba5b0; --link: #79b8ff; --holds: #56d364; --differs: #ff8a80; } }
body { margin: 0 auto; max-width: 80rem; padding: 1rem 1.25rem 4rem; background: var(--paper); \
color: var(--ink); font: 1rem/1.55 system-ui, sans-serif; }
a { color: var(--link); }
.skip { position: absolute; left: -100rem; }
.skip:focus { position: static; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
h1 { font-size: 1.7rem; line-height: 1.25; }
h2 { font-size: 1.3rem; margin-top: 2.5rem; }
code { background: var(--grid); border-radius: 4px; padding: 0.15em 0.4em; }
figure { margin: 1rem 0; }
figure svg { display: block; width: 100%; height: auto; max-width: 78rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.75rem 0; }
caption { text-align: left; font-weight: 600; padding: 0.25rem 0; }
th, td { border-bottom: 1px solid var(--grid); padding: 0.35rem 0.8rem; text-align: left; \
vertical-align: top; }
tbody th { font-weight: 400; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.holds { color: var(--holds); font-weight: 600; }
td.differs { color: var(--differs); font-weight: 600; }
summary { cursor: pointer; color: var(--soft); }
@media print { details { display: block; } }
";
