//! Figures: their drawings and judged claims, computed from the outcomes of the runs.
//!
//! Owns the form of panels and rows. Never draws (`chart` does) and never decides a verdict
//! ([`super::rule`]).

use std::collections::BTreeMap;

use serde::Serialize;

use super::cell::{Cell, Outcome, Outcomes};
use super::rule::{Claim, Judgement, Rank, judge_rank};
use super::{ReproduceError, rule};

type Draw = dyn Fn(&Outcomes) -> Result<Drawing, ReproduceError> + Send + Sync;

/// One figure or table of a paper.
pub struct Figure {
    /// Name on the command line and of its files.
    pub id: &'static str,
    /// Its subject.
    pub title: &'static str,
    /// Runs that it needs.
    pub cells: Vec<Cell>,
    draw: Box<Draw>,
}

/// The part of a figure that is computed from the runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drawing {
    /// Charts, beside each other.
    pub panels: Vec<Panel>,
    /// Claims, judged.
    pub rows: Vec<(String, Judgement)>,
}

/// One chart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Panel {
    /// Its subject.
    pub title: String,
    /// Name and unit of the values.
    pub y: String,
    /// Name and unit of the positions.
    pub x: String,
    /// Where values stand.
    pub axis: Axis,
    /// Values, one set for each thing compared.
    pub series: Vec<Series>,
}

/// Positions of a chart: bars stand over names, lines run over numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Axis {
    /// Groups of bars.
    Names(Vec<String>),
    /// Points of lines, ascending.
    Numbers(Vec<f64>),
}

/// Values at the positions of an axis, in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// The preset, policy or store compared.
    pub name: String,
    /// One value for each position.
    pub values: Vec<f64>,
}

/// A judged claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Figure that makes the claim.
    pub figure: &'static str,
    /// Subject of the claim.
    pub item: String,
    /// Claim and measurement.
    #[serde(flatten)]
    pub judgement: Judgement,
}

/// A figure with all that was computed for it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name.
    pub figure: &'static str,
    /// Its subject.
    pub title: &'static str,
    /// Charts.
    pub panels: Vec<Panel>,
    /// Claims.
    pub rows: Vec<Row>,
    /// The runs behind it.
    pub runs: BTreeMap<String, Outcome>,
}

impl Figure {
    /// A figure that `draw` computes from the outcomes of `cells`.
    pub fn new(
        id: &'static str,
        title: &'static str,
        cells: Vec<Cell>,
        draw: impl Fn(&Outcomes) -> Result<Drawing, ReproduceError> + Send + Sync + 'static,
    ) -> Self {
        Self { id, title, cells, draw: Box::new(draw) }
    }

    /// Computes the figure; every row's reason says how many runs were not steady.
    pub(crate) fn report(&self, outcomes: &Outcomes) -> Result<Report, ReproduceError> {
        let Drawing { panels, rows } = (self.draw)(outcomes)?;
        let runs = outcomes.of(&self.cells);
        let unsteady = runs.values().filter(|run| run.steady == Some(false)).count();
        let note = match unsteady {
            0 => String::new(),
            count => format!("; not steady: {count} of {} runs", runs.len()) + &drift(&runs),
        };
        let row = |(item, mut judgement): (String, Judgement)| {
            judgement.why.push_str(&note);
            Row { figure: self.id, item, judgement }
        };
        let rows = rows.into_iter().map(row).collect();
        Ok(Report { figure: self.id, title: self.title, panels, rows, runs })
    }
}

/// How far the halves of the runs that were not steady lie apart.
fn drift(runs: &BTreeMap<String, Outcome>) -> String {
    let unsteady = runs.values().filter(|run| run.steady == Some(false));
    let drifts = unsteady.filter_map(|run| run.config["observed"]["drift"].as_f64());
    let largest = drifts.max_by(f64::total_cmp);
    largest.map_or_else(String::new, |drift| {
        format!(", erases a commit of their halves up to {:.0} % apart", 100.0 * drift)
    })
}

impl Drawing {
    /// Adds a chart.
    pub fn panel(&mut self, panel: Panel) {
        self.panels.push(panel);
    }

    /// Adds a claim, judged by the measurements.
    pub fn claim(&mut self, item: impl Into<String>, claim: &Claim, ours: &[f64]) {
        self.rows.push((item.into(), claim.judge(ours)));
    }

    /// Adds a claim of order.
    pub fn rank(
        &mut self,
        item: impl Into<String>,
        rank: Rank,
        claimed: &str,
        values: &[(&str, f64)],
    ) {
        self.rows.push((item.into(), judge_rank(rank, claimed, values)));
    }
}

impl Axis {
    /// Number of positions.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Names(names) => names.len(),
            Self::Numbers(numbers) => numbers.len(),
        }
    }

    /// Whether there is no position.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each position as text.
    #[must_use]
    pub fn labels(&self) -> Vec<String> {
        match self {
            Self::Names(names) => names.clone(),
            Self::Numbers(numbers) => numbers.iter().copied().map(rule::number).collect(),
        }
    }
}
