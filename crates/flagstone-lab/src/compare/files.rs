//! The files of a comparison: JSON, CSV, a chart, and one page that needs nothing else.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::{CompareError, Comparison, Cost, Line};
use crate::reproduce::figure::{Axis, Panel, Report, Series};
use crate::reproduce::{self, Effort, ReproduceError};

/// Policies in the charts, each with its name there: the default, one of each paper, whole pages
/// and BFTL.
const CHARTED: [(&str, &str); 5] = [
    ("flagstone", "flagstone"),
    ("lazy-cost", "lazy-cost"),
    ("cover, ls-lru", "ls-lru"),
    ("traditional, lru", "traditional"),
    ("bftl", "bftl"),
];

const TITLE: &str = "Index policies side by side";

impl Comparison {
    /// Flash time of a request: a panel for each workload, a bar for each policy that ran.
    fn panels(&self) -> Vec<Panel> {
        let mut workloads: Vec<&str> = self.lines.iter().map(|line| &line.workload[..]).collect();
        workloads.dedup();
        let panel = |workload: &str| {
            let of = |policy: &str| {
                let line = |line: &&Line| line.workload == workload && line.policy == policy;
                self.lines.iter().find(line)
            };
            let bars = CHARTED.iter().filter_map(|(policy, name)| Some((*name, of(policy)?)));
            let (names, values) =
                bars.map(|(name, line)| (name.to_owned(), line.cost.flash_us)).unzip();
            Panel {
                title: workload.to_owned(),
                y: String::from("flash time a request, us"),
                x: String::from("policy"),
                axis: Axis::Names(names),
                series: vec![Series { name: String::from("flash time"), values }],
            }
        };
        workloads.into_iter().map(panel).collect()
    }

    fn csv(&self) -> String {
        let mut text = String::from(
            "workload,policy,reads,programs,data,erases,flash_us,hit_ratio,chip,default_ratio\n",
        );
        for line in &self.lines {
            let Cost { reads, programs, data, erases, flash_us, hit_ratio, chip, .. } = line.cost;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{},\"{}\",{reads},{programs},{data},{erases},{flash_us},{hit_ratio},{chip},{}",
                line.workload, line.policy, line.default_ratio
            );
        }
        text
    }

    fn page(&self, chart: &str) -> String {
        let mut rows = String::new();
        for line in &self.lines {
            let Cost { reads, programs, erases, flash_us, hit_ratio, .. } = line.cost;
            let numbers =
                [reads, programs, 1000.0 * erases, flash_us, hit_ratio, line.default_ratio];
            let cells: String = numbers
                .iter()
                .map(|value| format!("<td class=\"number\">{value:.3}</td>"))
                .collect();
            let names = [&line.workload, &line.policy];
            let heads: String =
                names.iter().map(|name| format!("<th scope=\"row\">{name}</th>")).collect();
            rows += &format!("<tr>{heads}{cells}</tr>\n");
        }
        let steps: String = self
            .steps
            .iter()
            .map(|step| {
                format!(
                    "<tr><th scope=\"row\">{}</th><th scope=\"row\">{}</th><td class=\"number\">{:.1}</td>\
                     <td class=\"number\">{:.1}</td></tr>\n",
                    step.workload, step.change, step.before_us, step.after_us
                )
            })
            .collect();
        let quick = if self.effort == Effort::Quick { " --quick" } else { "" };
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{TITLE}</title>\n<style>\n{}</style>\n</head>\n<body>\n<h1>{TITLE}</h1>\n\
             <p><code>flagstone lab compare index{quick} --seed {}</code></p>\n\
             <figure>\n{chart}</figure>\n<div class=\"wide\" role=\"region\" aria-label=\"Policies\" \
             tabindex=\"0\">\n<table>\n<caption>Every policy, a request</caption>\n<thead><tr>\
             <th scope=\"col\">Workload</th><th scope=\"col\">Policy</th><th scope=\"col\">Reads</th>\
             <th scope=\"col\">Programs</th><th scope=\"col\">Erases a thousand</th>\
             <th scope=\"col\">Flash time, us</th><th scope=\"col\">Hit ratio</th>\
             <th scope=\"col\">Default over it</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n\
             </div>\n<table>\n<caption>From lazy-cost to the default: flash time, us</caption>\n\
             <thead><tr><th scope=\"col\">Workload</th><th scope=\"col\">Change</th>\
             <th scope=\"col\">Before</th><th scope=\"col\">After</th></tr></thead>\n\
             <tbody>\n{steps}</tbody>\n</table>\n</body>\n</html>\n",
            reproduce::style(),
            self.seed,
        )
    }

    /// Writes `index.json`, `.csv`, `.svg` and `.html` below `dir`/compare. The time that the processor
    /// took is left out: equal seeds write equal bytes.
    ///
    /// # Errors
    ///
    /// Names the file that could not be written.
    pub fn write(&self, dir: &Path) -> Result<(), CompareError> {
        let dir = dir.join("compare");
        std::fs::create_dir_all(&dir)
            .map_err(|source| ReproduceError::File { path: dir.clone(), source })?;
        let mut counted = self.clone();
        counted.lines.iter_mut().for_each(|line| line.cost.cpu_us = None);
        let json = serde_json::to_string_pretty(&counted).map_err(ReproduceError::from)?;
        let chart = reproduce::draw(&Report {
            figure: "compare-index",
            title: TITLE,
            panels: self.panels(),
            rows: Vec::new(),
            runs: BTreeMap::new(),
        })?;
        let base = dir.join("index");
        reproduce::put(&base.with_extension("json"), &(json + "\n"))?;
        reproduce::put(&base.with_extension("csv"), &self.csv())?;
        reproduce::put(&base.with_extension("html"), &self.page(&chart))?;
        reproduce::put(&base.with_extension("svg"), &chart)?;
        Ok(())
    }
}
