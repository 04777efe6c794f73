//! The crossover of commits: how many programs a transaction takes by its size, when the log holds
//! its changes, when it is committed with the leaves it changed, and when the engine chooses.
//!
//! Owns the runs, the table of both patterns and the files. Never decides how a commit is made.
//!
//! - **K1** Every program at the device counts, for any cause: merges, checkpoints, collection.
//! - **K2** All three ways make the same transactions on equal chips. A run is warm when its changes
//!   have filled the memory several times, and the chip has been written several times over.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use flagstone_engine::blocking::Database;
use flagstone_engine::{CommitBy, EngineError};
use flagstone_engine::{OpenError, Options, OptionsError, Table};
use flagstone_nand::{EccNand, Profile, ProfileError, SimNand};
use flagstone_space::{Cause, SpaceError, blocks_needed};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use crate::bench::BenchError;
use crate::parallel;
use crate::reproduce::figure::{Axis, Panel, Report, Series};
use crate::reproduce::{self, Effort, ReproduceError};

/// Rows that a transaction changes.
const SIZES: [u32; 7] = [1, 4, 16, 64, 256, 1024, 4096];

/// Bytes of a value; keys have eight.
const VALUE_SIZE: usize = 100;

/// Rows of the table.
const ROWS: u32 = 100_000;

/// Memory for frames and deltas: a third of the table.
const MEMORY: usize = 4 << 20;

/// Share of a leaf that rows take.
const LEAF_USE: f64 = 0.9;

/// Share of the data region that is live.
const FILL: f64 = 0.7;

/// Changed rows of the measured window, and before it, at the full size.
const WINDOW_ROWS: u32 = 500_000;

/// A transaction changes at most one of so many parts of the table: the quick runs leave the
/// largest out.
const LARGEST_SHARE: u32 = 16;

/// Rows of one commit while the table is filled.
const LOAD_ROWS: u32 = 200;

/// Where the rows of a transaction lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// One behind the other, from a random one on.
    Dense,
    /// Anywhere.
    Scattered,
}

/// Scope of the measurement.
#[derive(Clone, Debug)]
pub struct Request {
    /// Profile of the chip: it has to carry flags.
    pub profile: String,
    /// Full or quick.
    pub effort: Effort,
    /// Seed of the chip and of the transactions.
    pub seed: u64,
    /// Runs at a time.
    pub threads: usize,
}

/// Costs of a transaction in one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Programs of any kind.
    pub programs: f64,
    /// Of these, partial programs that set flags.
    pub flags: f64,
    /// Of these, pages of the log.
    pub log: f64,
    /// Of these, data pages.
    pub data: f64,
    /// Device time, in milliseconds.
    pub time_ms: f64,
    /// Leaves claimed.
    pub claimed: f64,
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Where the changed rows lie.
    pub pattern: Pattern,
    /// Rows that a transaction changes.
    pub rows: u32,
    /// By the log alone.
    pub log: Cost,
    /// By flags wherever they can be.
    pub flags: Cost,
    /// As the engine chooses.
    pub auto: Cost,
    /// The engine's choice over the better of the two, in programs.
    pub ratio: f64,
}

/// The whole measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Crossover {
    /// Profile of the chip.
    pub profile: String,
    /// Seed.
    pub seed: u64,
    /// Full or quick.
    pub effort: Effort,
    /// Rows of the table.
    pub table_rows: u32,
    /// Memory of the engine, in bytes.
    pub memory: usize,
    /// The lines, by pattern and size.
    pub lines: Vec<Line>,
}

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CrossoverError {
    /// The profile is refused.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The chip carries no flags.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The database could not be made.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A transaction failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A run failed, which is named, or a file could not be written.
    #[error(transparent)]
    Lab(#[from] ReproduceError),
}

impl CrossoverError {
    /// The failure of this run.
    fn of(self, cell: Cell) -> Self {
        let name = format!("{:?}, {} rows, by {:?}", cell.pattern, cell.rows, cell.commit);
        let source: BenchError = match self {
            Self::Open(error) => error.into(),
            Self::Engine(error) => error.into(),
            other => return other,
        };
        ReproduceError::Run { cell: name.to_lowercase(), source }.into()
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Cell {
    pattern: Pattern,
    rows: u32,
    commit: CommitBy,
}

const COMMITS: [CommitBy; 3] = [CommitBy::Log, CommitBy::Flags, CommitBy::Auto];

/// Measures the crossover; `progress` hears how many runs of how many are done.
///
/// # Errors
///
/// A profile that does not exist or carries no flags; a run that failed.
pub fn measure(
    request: &Request,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Crossover, CrossoverError> {
    let profile = Profile::named(&request.profile)?;
    let mut cells = Vec::new();
    for pattern in [Pattern::Dense, Pattern::Scattered] {
        let largest = table_rows(request.effort) / LARGEST_SHARE;
        for rows in SIZES.into_iter().filter(|rows| *rows <= largest) {
            cells.extend(COMMITS.map(|commit| Cell { pattern, rows, commit }));
        }
    }
    let done = std::sync::atomic::AtomicU64::new(0);
    let costs = parallel::each(request.threads, &cells, |cell| {
        let cost = run(&profile, request, *cell).map_err(|error| error.of(*cell));
        let count = done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        progress(count, cells.len() as u64);
        cost
    });
    let costs = costs.into_iter().collect::<Result<Vec<Cost>, _>>()?;
    let lines = cells.chunks_exact(3).zip(costs.chunks_exact(3)).map(|(cells, costs)| {
        let (log, flags, auto) = (costs[0], costs[1], costs[2]);
        let ratio = auto.programs / log.programs.min(flags.programs);
        Line { pattern: cells[0].pattern, rows: cells[0].rows, log, flags, auto, ratio }
    });
    Ok(Crossover {
        profile: request.profile.clone(),
        seed: request.seed,
        effort: request.effort,
        table_rows: table_rows(request.effort),
        memory: memory(request.effort),
        lines: lines.collect(),
    })
}

const fn share(effort: Effort) -> u32 {
    match effort {
        Effort::Full => 1,
        Effort::Quick => 4,
    }
}

const fn table_rows(effort: Effort) -> u32 {
    ROWS / share(effort)
}

const fn memory(effort: Effort) -> usize {
    MEMORY / share(effort) as usize
}

/// A chip on which the table fills its share of the pages that may be live.
fn chip(
    profile: &Profile,
    options: &Options,
    request: &Request,
) -> Result<EccNand<SimNand>, CrossoverError> {
    let mut probe = EccNand::simulated(profile, request.seed)?;
    let space = flagstone_engine::space_options(&mut probe, options)?;
    let row_size = (8 + VALUE_SIZE) as f64;
    let leaf_size = f64::from(profile.geometry.page_size) * LEAF_USE;
    let pages = f64::from(table_rows(request.effort)) * row_size / leaf_size / FILL;
    let needed = blocks_needed(profile.geometry, profile.capabilities, &space, pages as u32)
        .map_err(|fault| OpenError::Space(SpaceError::Options(fault)))?;
    let blocks = needed.unwrap_or(profile.geometry.block_count);
    Ok(EccNand::simulated(&profile.clone().with_block_count(blocks)?, request.seed)?)
}

fn run(profile: &Profile, request: &Request, cell: Cell) -> Result<Cost, CrossoverError> {
    let memory = memory(request.effort);
    let log_pages = 2 * memory as u32 / profile.geometry.page_size;
    let options = Options::default().with_memory(memory).with_log_pages(log_pages);
    let options = options.with_seed(request.seed).with_techniques(|techniques| {
        (techniques.commit, techniques.uncommitted_share) = (cell.commit, 0.5);
    });
    let chip = chip(profile, &options, request)?;
    options.require(&chip)?;
    let database = Database::create_on(chip, &options)?;
    let mut bench =
        Bench { table: database.table("t")?, database, random: seeded(request), round: 0 };
    let (rows, window) = (table_rows(request.effort), WINDOW_ROWS / share(request.effort));
    for low in (0..rows).step_by(LOAD_ROWS as usize) {
        bench.commit(low..(low + LOAD_ROWS).min(rows))?;
    }
    let count = window.div_ceil(cell.rows);
    for _ in 0..count {
        bench.step(cell, rows)?;
    }
    let before = bench.counts();
    for _ in 0..count {
        bench.step(cell, rows)?;
    }
    Ok(bench.counts().cost_since(&before, count))
}

fn seeded(request: &Request) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(request.seed)
}

/// A database and the draws that change it.
struct Bench {
    database: Database<EccNand<SimNand>>,
    table: Table,
    random: Pcg64Mcg,
    round: u64,
}

impl Bench {
    fn step(&mut self, cell: Cell, rows: u32) -> Result<(), EngineError> {
        let mut below = |bound: u32| (self.random.next_u64() % u64::from(bound)) as u32;
        match cell.pattern {
            Pattern::Dense => {
                let first = below(rows - cell.rows + 1);
                self.commit(first..first + cell.rows)
            }
            Pattern::Scattered => {
                let mut chosen = BTreeSet::new();
                while chosen.len() < cell.rows as usize {
                    chosen.insert(below(rows));
                }
                self.commit(chosen)
            }
        }
    }

    fn commit(&mut self, rows: impl IntoIterator<Item = u32>) -> Result<(), EngineError> {
        self.round += 1;
        let mut transaction = self.database.begin();
        let mut value = [0; VALUE_SIZE];
        for row in rows {
            let mut random = Pcg64Mcg::seed_from_u64(self.round << 32 | u64::from(row));
            random.fill_bytes(&mut value);
            transaction.put(self.table, &u64::from(row).to_be_bytes(), &value)?;
        }
        transaction.commit().map(drop)
    }

    fn counts(&self) -> Counts {
        let claimed = self.database.runtime().engine().stats().claimed_pages;
        let space = self.database.runtime().space();
        let stats = space.stats();
        let of = |cause: Cause| {
            let place = Cause::ALL.iter().position(|other| *other == cause);
            place.map_or(0, |place| stats.programs_by_cause[place])
        };
        Counts {
            programs: stats.programs_by_cause.iter().sum(),
            flags: of(Cause::Flag),
            log: of(Cause::Log),
            data: of(Cause::Data),
            time_ns: space.end_ns(),
            claimed,
        }
    }
}

/// Counters of a run.
struct Counts {
    programs: u64,
    flags: u64,
    log: u64,
    data: u64,
    time_ns: u64,
    claimed: u64,
}

impl Counts {
    fn cost_since(&self, before: &Self, count: u32) -> Cost {
        let each = |now: u64, before: u64| (now - before) as f64 / f64::from(count);
        Cost {
            programs: each(self.programs, before.programs),
            flags: each(self.flags, before.flags),
            log: each(self.log, before.log),
            data: each(self.data, before.data),
            time_ms: each(self.time_ns, before.time_ns) / 1e6,
            claimed: each(self.claimed, before.claimed),
        }
    }
}

impl Crossover {
    /// Programs for a changed row, by size: one chart a pattern.
    fn panels(&self) -> Vec<Panel> {
        let panel = |pattern: Pattern, title: &str| {
            let lines: Vec<&Line> =
                self.lines.iter().filter(|line| line.pattern == pattern).collect();
            let series = |name: &str, cost: fn(&Line) -> Cost| Series {
                name: name.to_owned(),
                values: lines
                    .iter()
                    .map(|line| cost(line).programs / f64::from(line.rows))
                    .collect(),
            };
            Panel {
                title: title.to_owned(),
                y: String::from("programs a changed row"),
                x: String::from("changed rows of a transaction"),
                axis: Axis::Names(lines.iter().map(|line| line.rows.to_string()).collect()),
                series: vec![
                    series("log", |line| line.log),
                    series("flags", |line| line.flags),
                    series("automatic", |line| line.auto),
                ],
            }
        };
        vec![
            panel(Pattern::Dense, "Rows one behind the other"),
            panel(Pattern::Scattered, "Rows anywhere"),
        ]
    }

    fn csv(&self) -> String {
        let mut text = String::from("pattern,rows,log,flags,auto,ratio\n");
        for line in &self.lines {
            let pattern = if line.pattern == Pattern::Dense { "dense" } else { "scattered" };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{pattern},{},{},{},{},{}",
                line.rows, line.log.programs, line.flags.programs, line.auto.programs, line.ratio
            );
        }
        text
    }

    /// Writes `crossover.json`, `.csv` and `.svg` below `dir`/crossover.
    ///
    /// # Errors
    ///
    /// Names the file that could not be written.
    pub fn write(&self, dir: &Path) -> Result<(), CrossoverError> {
        let dir = dir.join("crossover");
        std::fs::create_dir_all(&dir)
            .map_err(|source| ReproduceError::File { path: dir.clone(), source })?;
        let base = dir.join("crossover");
        let json = serde_json::to_string_pretty(self).map_err(ReproduceError::from)?;
        let chart = reproduce::draw(&Report {
            figure: "crossover",
            title: "Programs by the size of a transaction",
            panels: self.panels(),
            rows: Vec::new(),
            runs: BTreeMap::new(),
        })?;
        reproduce::put(&base.with_extension("json"), &(json + "\n"))?;
        reproduce::put(&base.with_extension("csv"), &self.csv())?;
        reproduce::put(&base.with_extension("svg"), &chart)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: where the engine may choose, it is not far behind the better way. Method: a small table,
    /// the ends of the scale.
    #[test]
    fn the_choice_is_near_the_better_way() {
        let request =
            Request { profile: String::from("slc-2k"), effort: Effort::Quick, seed: 1, threads: 2 };
        let profile = Profile::named(&request.profile).unwrap();
        for (pattern, rows) in [(Pattern::Dense, 256), (Pattern::Scattered, 16)] {
            let cost = |commit| run(&profile, &request, Cell { pattern, rows, commit }).unwrap();
            let [log, flags, auto] = COMMITS.map(|commit| cost(commit).programs);
            assert_eq!(flags < log, pattern == Pattern::Dense, "{log} {flags}");
            assert!(auto < log.min(flags) * 1.1, "{pattern:?} {rows}: {log} {flags} {auto}");
        }
    }
}
