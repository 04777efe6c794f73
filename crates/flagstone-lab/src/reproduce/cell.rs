//! Cells: the runs of an experiment, each once, spread over the cores.
//!
//! Owns the name of a run, its report and the order of reports. Never knows the work of a run: a
//! cell carries it as a closure.
//!
//! - **C1** Two cells of one name are one run.
//! - **C2** Outcomes are found by name; neither threads nor order show in them (rule X1).
//! - **C3** An outcome holds nothing that depends on the host: wall times are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use flagstone_engine::Options;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::files::Journal;
use super::{OnProgress, ReproduceError};
use crate::bench::{self, BenchConfig, BenchError, Phase, Progress};
use crate::parallel::each;
use crate::run::Run;
use crate::steady::Steadiness;

/// Steps of progress that a cell counts for.
const CELL_STEPS: u64 = 1000;

/// Told how far a cell is, as a share.
pub type OnShare<'a> = &'a mut dyn FnMut(f64);

type Work = dyn Fn(OnShare<'_>) -> Result<Outcome, BenchError> + Send + Sync;

/// One run of an experiment.
pub struct Cell {
    name: String,
    work: Box<Work>,
}

/// Report of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether the run was steady, where the rule applies.
    pub steady: Option<bool>,
    /// Numbers by name; a part's numbers with a dot, as `recovery.pages_read`.
    pub values: BTreeMap<String, f64>,
    /// Configuration of the run.
    pub config: Value,
}

/// Outcomes by the name of their cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcomes(BTreeMap<String, Outcome>);

impl Cell {
    /// Name, under which its outcome is found.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A cell called `name` that does `work`.
    pub fn new(
        name: impl Into<String>,
        work: impl Fn(OnShare<'_>) -> Result<Outcome, BenchError> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), work: Box::new(work) }
    }

    /// A benchmark of `options` as a cell; it reports every number of the run object.
    pub fn bench(name: impl Into<String>, config: BenchConfig, options: Options) -> Self {
        Self::new(name, move |on_share| {
            let mut report = |progress: Progress| on_share(share(progress));
            bench::run(&config, &options, &mut report).map(|run| Outcome::of(&run))
        })
    }
}

/// Share of a benchmark that is done: its stages count alike.
fn share(progress: Progress) -> f64 {
    let stage = match progress.phase {
        Phase::Load => 0.0,
        Phase::WarmUp => 1.0,
        Phase::Measure => 2.0,
        Phase::Verify => 3.0,
    };
    let within = progress.done as f64 / progress.total.max(1) as f64;
    (stage + within.min(1.0)) / 4.0
}

impl Outcome {
    /// The numbers of a run object (rule C3).
    #[must_use]
    pub fn of(run: &Run) -> Self {
        let mut outcome = Self { steady: Some(run.steady), ..Self::default() };
        let Ok(Value::Object(mut fields)) = serde_json::to_value(run) else { return outcome };
        fields.remove("wall_s");
        outcome.config = fields.remove("config").unwrap_or_default();
        outcome.flatten("", &Value::Object(fields));
        outcome
            .with("commit_wait_us", run.commit_wait_us)
            .with("leaf_references", run.leaf_references as f64)
            .with("leaf_misses", run.leaf_misses as f64)
            .with("gc_victims", run.gc_victims as f64)
            .judged()
    }

    /// The same outcome, not steady where its window cannot tell whether it drifts.
    #[must_use]
    pub(super) fn judged(mut self) -> Self {
        let allowed = self.config["observed"]["drift_max"].as_f64();
        if allowed.is_some_and(|allowed| allowed > Steadiness::ALLOWED_MAX) {
            self.steady = self.steady.map(|_| false);
        }
        self
    }

    /// The same outcome with one number more.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.values.insert(name.to_owned(), value);
        self
    }

    fn flatten(&mut self, name: &str, value: &Value) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                    self.flatten(&name, value);
                }
            }
            value => {
                if let Some(number) = value.as_f64() {
                    self.values.insert(name.to_owned(), number);
                }
            }
        }
    }
}

impl Outcomes {
    /// Outcome of the cell called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Outcome> {
        self.0.get(name)
    }

    /// Number `value` of the cell called `cell`.
    ///
    /// # Errors
    ///
    /// `Missing`, with both names.
    pub fn value(&self, cell: &str, value: &str) -> Result<f64, ReproduceError> {
        let found = self.get(cell).and_then(|outcome| outcome.values.get(value)).copied();
        found.ok_or_else(|| ReproduceError::Missing {
            cell: cell.to_owned(),
            value: value.to_owned(),
        })
    }

    /// The outcomes of `cells` alone.
    #[must_use]
    pub fn of(&self, cells: &[Cell]) -> BTreeMap<String, Outcome> {
        let names: BTreeSet<&str> = cells.iter().map(|cell| cell.name.as_str()).collect();
        let found = self.0.iter().filter(|(name, _)| names.contains(name.as_str()));
        found.map(|(name, outcome)| (name.clone(), outcome.clone())).collect()
    }
}

impl Extend<(String, Outcome)> for Outcomes {
    fn extend<I: IntoIterator<Item = (String, Outcome)>>(&mut self, named: I) {
        self.0.extend(named);
    }
}

impl FromIterator<(String, Outcome)> for Outcomes {
    fn from_iter<I: IntoIterator<Item = (String, Outcome)>>(named: I) -> Self {
        Self(named.into_iter().collect())
    }
}

/// Runs every cell once that is not `known`, `threads` at a time (rules C1 and C2), and notes each in
/// the journal, if there is one, as it ends.
pub(super) fn run_all(
    cells: &[&Cell],
    threads: usize,
    known: Outcomes,
    journal: Option<&Journal>,
    on_progress: OnProgress<'_>,
) -> Result<Outcomes, ReproduceError> {
    let mut seen: BTreeSet<&str> = known.0.keys().map(String::as_str).collect();
    let mut cells: Vec<&Cell> =
        cells.iter().copied().filter(|cell| seen.insert(cell.name.as_str())).collect();
    // Cells of one engine follow each other: they begin with the same image.
    cells.sort_by(|one, other| one.name.cmp(&other.name));
    drop(seen);
    let total = cells.len() as u64 * CELL_STEPS;
    let done = AtomicU64::new(0);
    on_progress(0, total);
    let results: Vec<Result<_, ReproduceError>> = each(threads, &cells, |cell| {
        let mut before = 0;
        let mut on_share = |share: f64| {
            let now = (share.clamp(0.0, 1.0) * CELL_STEPS as f64) as u64;
            // A run that begins again with another chip reports smaller shares for a while.
            let step = now.saturating_sub(before);
            before = before.max(now);
            on_progress(done.fetch_add(step, Ordering::Relaxed) + step, total);
        };
        let result = (cell.work)(&mut on_share);
        on_share(1.0);
        let outcome =
            result.map_err(|source| ReproduceError::Run { cell: cell.name.clone(), source })?;
        journal.map_or(Ok(()), |journal| journal.note(&cell.name, &outcome))?;
        Ok((cell.name.clone(), outcome))
    });
    let Outcomes(mut all) = known;
    for result in results {
        all.extend([result?]);
    }
    Ok(Outcomes(all))
}
