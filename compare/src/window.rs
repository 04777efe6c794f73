//! The window of a measurement: all threads until enough is counted, how long each commit takes, and how all of this
//! goes from slice to slice.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::disk::{self, Disk, Reading};
use crate::store::{Rows, Store, Txn};
use crate::workload::{Client, Run, Step};

/// Slices of a window when they are asked for. Fewer take no time that would count, and tell whether speed drifts.
const SLICES: u64 = 200;
const HALVES: u64 = 2;

/// A part of the window with as many commits as any other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Slice {
    /// Its end, in seconds since the window began.
    pub seconds: f64,
    /// Commits up to its end; reads where nothing is written.
    pub commits: u64,
    /// Bytes that reached the device in it.
    pub bytes: u64,
    /// Its longest commit.
    pub longest_ms: f64,
    /// Bytes of the files at its end.
    pub file_bytes: u64,
}

/// Milliseconds that commits took, or transactions that read where nothing is written.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Latencies {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub longest: f64,
}

#[derive(Default)]
pub struct Done {
    pub commits: u64,
    pub reads: u64,
    pub failed: u64,
}

/// Counts a window while it runs.
pub struct Window {
    began: Instant,
    wanted: u64,
    slices: u64,
    disk: Disk,
    home: PathBuf,
    counted: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// In nanoseconds.
    took: Histogram<u64>,
    counted: u64,
    /// The slice under way.
    longest: Duration,
    reading: Reading,
    done: Vec<Slice>,
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

impl Window {
    /// Begins a window of `wanted` steps on the files of `home`.
    pub fn new(wanted: u64, is_sliced: bool, disk: &Disk, home: PathBuf) -> Result<Self> {
        let state = State {
            took: Histogram::new(3)?,
            counted: 0,
            longest: Duration::ZERO,
            reading: disk.now()?,
            done: Vec::new(),
        };
        Ok(Self {
            began: Instant::now(),
            wanted,
            slices: if is_sliced { SLICES } else { HALVES },
            disk: disk.clone(),
            home,
            counted: AtomicU64::new(0),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.counted.load(Ordering::Relaxed) >= self.wanted
    }

    fn count(&self, steps: u64, took: Duration) -> Result<()> {
        let mut state = self.state();
        state.took.record(took.as_nanos() as u64)?;
        state.longest = state.longest.max(took);
        let slices = |counted: u64| counted.min(self.wanted) * self.slices / self.wanted;
        let before = slices(state.counted);
        state.counted += steps;
        self.counted.store(state.counted, Ordering::Relaxed);
        if slices(state.counted) > before { self.cut(&mut state) } else { Ok(()) }
    }

    /// Ends the slice under way.
    fn cut(&self, state: &mut State) -> Result<()> {
        let reading = self.disk.now()?;
        state.done.push(Slice {
            seconds: disk::seconds(self.began),
            commits: state.counted,
            bytes: reading.since(state.reading).written,
            longest_ms: ms(std::mem::take(&mut state.longest)),
            file_bytes: disk::size_of(&self.home)?,
        });
        state.reading = reading;
        Ok(())
    }

    /// All threads until enough has been counted: commits, or reads where nothing is written.
    pub fn run(&self, run: &Run, store: &dyn Store, seed: u64) -> Result<Done> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..run.threads)
                .map(|number| scope.spawn(move || self.client(run, store, seed, number)))
                .collect();
            let mut sum = Done::default();
            for thread in threads {
                let Ok(done) = thread.join() else { bail!("a client panicked") };
                let done = done?;
                sum.commits += done.commits;
                sum.reads += done.reads;
                sum.failed += done.failed;
            }
            Ok(sum)
        })
    }

    fn client(&self, run: &Run, store: &dyn Store, seed: u64, number: u64) -> Result<Done> {
        let mut client = Client::new(seed, number);
        let mut done = Done::default();
        let timed = Timed { store, last: AtomicU64::new(0) };
        while !self.is_over() {
            let step = run.workload.step(&timed, &mut client)?;
            client.sequence += 1;
            match step {
                Step::Commit => done.commits += 1,
                Step::Reads(count) => done.reads += count,
                Step::Failed => done.failed += 1,
            }
            match step {
                Step::Commit => self.count(1, timed.last())?,
                Step::Reads(count) if !run.is_written => self.count(count, timed.last())?,
                _ => {}
            }
        }
        Ok(done)
    }

    pub fn latencies(&self) -> Latencies {
        let state = self.state();
        let at = |share| ms(Duration::from_nanos(state.took.value_at_quantile(share)));
        Latencies { p50: at(0.5), p99: at(0.99), p999: at(0.999), longest: at(1.0) }
    }

    pub fn slices(&self) -> Vec<Slice> {
        self.state().done.clone()
    }
}

/// Speed of the second half of a window, of the first half's.
pub fn drift(slices: &[Slice]) -> Option<f64> {
    let last = slices.last()?;
    let half = slices.iter().find(|slice| 2 * slice.commits >= last.commits)?;
    let first = half.commits as f64 / half.seconds;
    let second = (last.commits - half.commits) as f64 / (last.seconds - half.seconds);
    (last.commits > half.commits).then_some(second / first)
}

/// A store that takes the time of its transactions. Each thread has one of its own.
struct Timed<'a> {
    store: &'a dyn Store,
    /// Nanoseconds.
    last: AtomicU64,
}

impl Timed<'_> {
    fn last(&self) -> Duration {
        Duration::from_nanos(self.last.load(Ordering::Relaxed))
    }

    fn time<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let result = body();
        self.last.store(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }
}

impl Store for Timed<'_> {
    fn load(&self, table: usize, rows: Rows<'_>) -> Result<()> {
        self.store.load(table, rows)
    }

    fn write(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<bool>) -> Result<bool> {
        self.time(|| self.store.write(body))
    }

    fn read(&self, body: &mut dyn FnMut(&mut dyn Txn) -> Result<()>) -> Result<()> {
        self.time(|| self.store.read(body))
    }

    fn close(self: Box<Self>) -> Result<()> {
        bail!("a store is closed by its owner")
    }
}
