//! One process that judges states of a record: a share of them, told by their hashes.
//!
//! Lines on its standard output: `at PLACE CUT` before a state, so that its parent can name the one that hangs;
//! `broken PLACE CUT TEXT` for a broken promise; `sum …` at the end.

use std::collections::HashSet;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rand::SeedableRng as _;
use rand::seq::IndexedRandom as _;
use rand_pcg::Pcg64Mcg;

use super::check::{Court, Manner};
use super::cuts::{Cut, cuts, order};
use super::disk::{Disk, mix};
use super::place::Stage;
use super::progress::{History, Progress};
use super::record::{Event, Record};
use super::script::Script;
use super::scripts::script;
use super::workload::DATABASE;

/// How much is to be judged.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effort {
    States(u64),
    Time(Duration),
}

impl Effort {
    /// A share of this effort.
    pub(super) fn part(self, number: u64, of: u64) -> Self {
        match self {
            Self::States(states) => Self::States((states * number).div_ceil(of)),
            Self::Time(time) => Self::Time(time.mul_f64(number as f64 / of as f64)),
        }
    }
}

/// A part of the states, and its size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) number: u64,
    pub(super) of: u64,
    pub(super) effort: Effort,
}

/// Counts of judged states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    /// Places of the record at which power was cut.
    pub(super) places: u64,
    /// States that differ in their bytes or in the steps that must be there, each opened.
    pub(super) states: u64,
    /// States that differ in their bytes.
    pub(super) contents: u64,
    /// States that were made and known already.
    pub(super) repeated: u64,
    pub(super) broken: u64,
}

/// Broken promises after which a process gives up.
const BROKEN_MAX: u64 = 3;

/// Places of power cuts: before each sync ends, and behind each promise made while writes were pending.
fn places(record: &Record, script: &Script) -> anyhow::Result<HashSet<usize>> {
    let (mut disk, mut progress) = (Disk::default(), Progress::new(script));
    let (mut places, mut demand) = (HashSet::new(), None);
    for (number, event) in record.events.iter().enumerate() {
        let is_place = match event {
            Event::Synced { .. } | Event::NamesSynced { .. } => true,
            Event::Mark(mark) => {
                progress.take(mark, number, script)?;
                demand != Some(progress.demand()) && !disk.pending.is_empty()
            }
            _ => false,
        };
        if is_place {
            demand = Some(progress.demand());
            places.insert(number);
        }
        disk.advance(record, number);
    }
    Ok(places)
}

/// A record while it is walked through.
struct Bench<'a> {
    record: &'a Record,
    script: &'a Script,
    disk: Disk,
    progress: Progress,
    court: Court<'a>,
    stage: Stage,
    seen: HashSet<u64>,
    contents: HashSet<u64>,
    sum: Sum,
}

impl<'a> Bench<'a> {
    fn new(record: &'a Record, script: &'a Script, home: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            record,
            script,
            disk: Disk::default(),
            progress: Progress::new(script),
            court: Court { script, history: History::new(script) },
            stage: Stage::new(home)?,
            seen: HashSet::new(),
            contents: HashSet::new(),
            sum: Sum::default(),
        })
    }

    /// Takes in an event.
    fn advance(&mut self, number: usize) -> anyhow::Result<()> {
        if let Event::Mark(mark) = &self.record.events[number] {
            self.progress.take(mark, number, self.script)?;
            if mark.starts_with("done") {
                self.court.history.give_up(&self.progress)?;
            }
        }
        let settled = self.disk.advance(self.record, number);
        self.stage.forget(settled);
        Ok(())
    }

    /// Judges cuts at one place, as long as `goes_on` is true.
    fn place(
        &mut self,
        number: usize,
        share: Share,
        mut goes_on: impl FnMut(&Sum) -> bool,
    ) -> anyhow::Result<()> {
        let seed = mix(self.record.seed, number as u64);
        let cuts = cuts(&self.disk, self.record, seed);
        self.sum.places += 1;
        for index in order(cuts.len(), seed) {
            if !goes_on(&self.sum) || self.sum.broken >= BROKEN_MAX {
                break;
            }
            let state = cuts[index].state(&self.disk, self.record);
            let content = self.disk.hash(&state);
            let key = mix(content, self.progress.demand());
            if key % share.of != share.number {
                continue;
            }
            if !self.seen.insert(key) {
                self.sum.repeated += 1;
                continue;
            }
            self.sum.states += 1;
            self.sum.contents += u64::from(self.contents.insert(content));
            say(&format!("at {number} {index}"))?;
            if let Err(error) = self.judge(cuts[index], Manner(mix(key, self.record.seed)))? {
                self.sum.broken += 1;
                let text = format!("{:?}: {error:#}", cuts[index]).replace('\n', " ");
                say(&format!("broken {number} {index} {text}"))?;
            }
        }
        Ok(())
    }

    /// Judges one state; the outer error is the judge's own.
    fn judge(&mut self, cut: Cut, manner: Manner) -> anyhow::Result<anyhow::Result<()>> {
        let state = cut.state(&self.disk, self.record);
        self.stage.put(&self.disk, &state).context("the state cannot be made")?;
        let judged = catch_unwind(AssertUnwindSafe(|| {
            self.court.judge(&self.stage.directory, &self.progress, manner)
        }));
        self.stage.take_back(&self.disk, &state).context("the state cannot be taken back")?;
        Ok(judged.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(anyhow::anyhow!("a panic: {}", text.unwrap_or("without words")))
        }))
    }
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Judges a share of the states of a record, in the directory `home`.
///
/// # Errors
/// The judge could not work; broken promises are printed instead.
pub(super) fn run(record: &Record, home: &Path, share: Share) -> anyhow::Result<()> {
    let script = script(&record.script, record.seed)?;
    let places = places(record, &script)?;
    let mut places_left = u32::try_from(places.len())?;
    let begun = Instant::now();
    let mut bench = Bench::new(record, &script, home)?;
    for number in 0..record.events.len() {
        let is_mark = matches!(record.events[number], Event::Mark(_));
        if is_mark {
            bench.advance(number)?;
        }
        if places.contains(&number) {
            let states_before = bench.sum.states;
            let now = Instant::now();
            match share.effort {
                Effort::Time(time) => {
                    let part = time.saturating_sub(begun.elapsed()) / places_left.max(1);
                    bench.place(number, share, |_| now.elapsed() < part)?;
                }
                Effort::States(states) => {
                    let left = states.saturating_sub(states_before);
                    let part = left.div_ceil(u64::from(places_left.max(1)));
                    bench.place(number, share, |sum| sum.states < states_before + part)?;
                }
            }
            places_left = places_left.saturating_sub(1);
        }
        if !is_mark {
            bench.advance(number)?;
        }
    }
    let Sum { places, states, contents, repeated, broken } = bench.sum;
    say(&format!("sum {places} {states} {contents} {repeated} {broken}"))
}

/// Makes one state of a record, drawn by a seed, in `home/state`; gives the marks before it. None where there is no database.
///
/// # Errors
/// The judge could not work.
pub(super) fn draw(record: &Record, home: &Path, seed: u64) -> anyhow::Result<Option<Vec<Event>>> {
    let script = script(&record.script, record.seed)?;
    let mut places: Vec<usize> = places(record, &script)?.into_iter().collect();
    places.sort_unstable();
    let mut draws = Pcg64Mcg::seed_from_u64(seed);
    let place = *places.choose(&mut draws).context("a record without places")?;
    let mut bench = Bench::new(record, &script, home)?;
    for number in 0..place {
        bench.advance(number)?;
    }
    let cuts = cuts(&bench.disk, record, seed);
    let cut = *cuts.choose(&mut draws).context("a place without cuts")?;
    let state = cut.state(&bench.disk, record);
    if !state.names.contains_key(DATABASE) {
        return Ok(None);
    }
    bench.stage.put(&bench.disk, &state)?;
    let is_mark = |event: &&Event| matches!(event, Event::Mark(_));
    Ok(Some(record.events[..place].iter().filter(is_mark).cloned().collect()))
}

/// Judges one state of a record; or makes it in `home/state` and leaves it there.
///
/// # Errors
/// A promise is broken; there is no such state.
pub(super) fn replay(
    record: &Record,
    home: &Path,
    place: usize,
    cut: usize,
    leaves: bool,
) -> anyhow::Result<()> {
    let script = script(&record.script, record.seed)?;
    let mut bench = Bench::new(record, &script, home)?;
    // A mark is taken in before the power fails there, anything else is not.
    let is_mark = matches!(record.events.get(place), Some(Event::Mark(_)));
    for number in 0..place + usize::from(is_mark) {
        bench.advance(number)?;
    }
    let cuts = cuts(&bench.disk, record, mix(record.seed, place as u64));
    let cut = *cuts.get(cut).context("there is no such cut")?;
    let state = cut.state(&bench.disk, record);
    let key = mix(bench.disk.hash(&state), bench.progress.demand());
    println!("{cut:?} of {} pending events:", bench.disk.pending.len());
    for (index, number) in bench.disk.pending.iter().enumerate() {
        println!("  {index}: event {number}, {}", record.events[*number]);
    }
    println!("{}", bench.progress);
    if leaves {
        bench.stage.put(&bench.disk, &state)?;
        println!("the state is in {}", bench.stage.directory.display());
        return Ok(());
    }
    bench.judge(cut, Manner(mix(key, record.seed)))?
}

impl Sum {
    /// Adds another share of the same record, which was walked through at the same places.
    pub(super) fn add_share(&mut self, other: &Self) {
        let places = self.places.max(other.places);
        self.add(other);
        self.places = places;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.places += other.places;
        self.states += other.states;
        self.contents += other.contents;
        self.repeated += other.repeated;
        self.broken += other.broken;
    }

    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let numbers: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
        let [places, states, contents, repeated, broken] = numbers?[..] else {
            anyhow::bail!("a sum of other numbers: {text}");
        };
        Ok(Self { places, states, contents, repeated, broken })
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { places, states, contents, repeated, broken } = self;
        write!(
            f,
            "{states} states ({contents} of different bytes, {repeated} more were alike) \
             at {places} places, {broken} broken"
        )
    }
}
