//! Programs: what a history does, drawn from a seed.

use std::fmt;
use std::time::Duration;

use flagstone::{CommitBy, Durability, Options};

use super::draw::Draw;

/// Where the database of a history lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A plain file; the session ends without a word.
    File,
    /// A plain file of another process, which is killed.
    Process,
    /// A simulated chip, by the name of its profile and with so many blocks; its power is cut.
    Chip(&'static str, u32),
    /// A simulated file; its power is cut, and writes that were not synced may be lost.
    SimulatedFile,
}

/// How soon commits are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// None waits, but one in so many of each thread; 0: none at all.
    Deferred { durable_in: u64 },
    /// None waits but those of the first thread.
    Beside,
    /// Each as drawn.
    Mixed,
}

impl Pace {
    /// Durability of the next commit of a thread.
    pub(crate) fn next(self, thread: u64, draw: &mut Draw) -> Durability {
        match self {
            Self::Deferred { durable_in } if draw.one_in(durable_in) => Durability::Immediate,
            Self::Beside if thread == 0 => Durability::Immediate,
            Self::Deferred { .. } | Self::Beside => Durability::Deferred,
            Self::Mixed => {
                draw.pick(&[Durability::Immediate, Durability::Group, Durability::Deferred])
            }
        }
    }
}

/// What a transaction consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Append,
    Set,
    Transfer,
    Read,
    Scan,
    Member,
    Tag,
    Churn,
    TakenBack,
    Many,
}

impl Piece {
    const ALL: [Self; 10] = [
        Self::Append,
        Self::Set,
        Self::Transfer,
        Self::Read,
        Self::Scan,
        Self::Member,
        Self::Tag,
        Self::Churn,
        Self::TakenBack,
        Self::Many,
    ];
}

/// A stretch of a session.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    /// Transactions of all threads.
    pub(crate) txns: u64,
    pub(crate) pace: Pace,
    weights: [u32; Piece::ALL.len()],
    /// Most pieces of a transaction.
    pub(crate) pieces_max: u64,
    /// One in so many transactions counts in its thread's counter.
    pub(crate) count_in: u64,
    /// One in so many transactions is followed by a snapshot.
    pub(crate) snapshot_in: u64,
}

impl Phase {
    pub(crate) fn piece(&self, draw: &mut Draw) -> Piece {
        Piece::ALL[draw.weighted(&self.weights)]
    }
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Everything stops, in the middle of what it does.
    Cut,
    /// As `Cut`, in the middle of an operation of the device.
    InFlight,
    /// The database is closed.
    Close,
}

/// A history to be made.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) place: Place,
    pub(crate) options: Options,
    pub(crate) threads: u64,
    pub(crate) sessions: u64,
    /// Rows of lists, registers and bank; of members and tags a quarter each.
    pub(crate) rows: u32,
    /// Bytes of filler that most values have at most, and some.
    pub(crate) filler: (u32, u32),
    /// Transactions are divided by this.
    pub(crate) divisor: u64,
    /// Longest time of a session.
    pub(crate) session_time: Duration,
}

/// Chips for histories: with flags and without, with paired pages, with several dies.
const CHIPS: [(&str, u32); 4] =
    [("slc-2k", 300), ("slc-2k", 300), ("slc-4k", 300), ("mlc-2k", 200)];

/// Presets beside the default one.
const PRESETS: [&str; 8] = [
    "flagstone-claims",
    "flagstone-flags",
    "traditional",
    "otf-immediate",
    "otf-group",
    "lazy-biggest",
    "lazy-cost",
    "ls-lru",
];

impl Program {
    /// The program of a seed.
    pub(crate) fn drawn(seed: u64) -> Self {
        let mut draw = Draw::new(seed, 1);
        let place = match draw.weighted(&[3, 2, 5, 2]) {
            0 => Place::File,
            1 => Place::Process,
            2 => {
                let (name, blocks) = draw.pick(&CHIPS);
                Place::Chip(name, blocks)
            }
            _ => Place::SimulatedFile,
        };
        let threads = draw.pick(&[1, 1, 2, 3, 4, 5, 6, 8, 12, 16]);
        let filler = draw.pick(&[(16, 64), (100, 400), (100, 9_000), (300, 2_000), (40, 60_000)]);
        Self {
            seed,
            place,
            options: options(place, &mut draw),
            threads,
            sessions: draw.between(2, 4),
            rows: draw.pick(&[12, 60, 300, 300, 1_000, 3_000]),
            filler,
            divisor: 1,
            session_time: Duration::from_secs(3),
        }
    }

    /// What one session does, one stretch after the other.
    pub(crate) fn phases(&self, session: u64) -> Vec<Phase> {
        let mut draw = Draw::new(self.seed, 1_000 + session);
        let mut phases = Vec::new();
        for _ in 0..draw.between(1, 3) {
            let pace = match draw.weighted(&[5, 3, 2]) {
                0 => Pace::Deferred { durable_in: draw.pick(&[0, 0, 2_000, 300, 40]) },
                1 => Pace::Beside,
                _ => Pace::Mixed,
            };
            let txns: u64 = match pace {
                Pace::Deferred { .. } => draw.pick(&[1_000, 4_000, 10_000, 30_000]),
                Pace::Beside => draw.pick(&[1_000, 5_000, 20_000]),
                Pace::Mixed => draw.pick(&[300, 1_000, 4_000]),
            };
            let mut weights = [30, 30, 40, 12, 8, 12, 12, 2, 6, 1];
            for weight in &mut weights {
                *weight = match draw.below(6) {
                    0 => 0,
                    1 => *weight * 5,
                    _ => *weight,
                };
            }
            weights[Piece::Transfer as usize] += 1;
            phases.push(Phase {
                txns: txns.div_ceil(self.divisor),
                pace,
                weights,
                pieces_max: draw.pick(&[1, 1, 2, 3]),
                count_in: draw.pick(&[1, 1, 4, 50]),
                snapshot_in: draw.pick(&[10, 30, 100, 400]),
            });
        }
        phases
    }

    /// How a session ends.
    pub(crate) fn end(&self, session: u64) -> End {
        match Draw::new(self.seed, 2_000 + session).weighted(&[5, 3, 1]) {
            0 => End::Cut,
            1 => End::InFlight,
            _ => End::Close,
        }
    }

    /// Bytes of filler of the next value.
    pub(crate) fn filler(&self, draw: &mut Draw) -> u32 {
        let (usual, max) = self.filler;
        let size_max = if draw.one_in(200) { max } else { usual };
        draw.below(u64::from(size_max) + 1) as u32
    }
}

/// Options of a program: those a user gets by default, or others that fit the place.
fn options(place: Place, draw: &mut Draw) -> Options {
    let mut options = Options::default();
    let is_chip = matches!(place, Place::Chip(..));
    if draw.one_in(5) {
        let name = draw.pick(&PRESETS);
        let fits =
            name != "flagstone-flags" || matches!(place, Place::Chip("slc-2k" | "slc-4k", _));
        options = Options::preset(name).ok().filter(|_| fits).unwrap_or_default();
    }
    let page_size: u64 =
        if matches!(place, Place::Chip("slc-2k" | "mlc-2k", _)) { 2_048 } else { 4_096 };
    options.memory = match draw.below(if is_chip { 8 } else { 4 }) {
        0 | 1 => options.memory,
        2 => draw.between(1 << 19, 4 << 20) as usize,
        _ => draw.between(page_size * 32, page_size * 160) as usize,
    };
    options.group_delay = Duration::from_micros(draw.pick(&[0, 100, 1_000]));
    if draw.one_in(6) {
        options.lock_timeout = Duration::from_millis(draw.between(1, 50));
    }
    if draw.one_in(8) {
        options.checkpoint_commits = draw.between(50, 3_000);
    }
    if draw.one_in(8) && options.commit == CommitBy::Auto {
        options.commit = draw.pick(&[CommitBy::Log, CommitBy::Claims]);
    }
    options.seed = draw.bits();
    options
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, place, options, threads, sessions, rows, .. } = self;
        write!(
            f,
            "seed {seed}: {place:?}, {threads} threads, {sessions} sessions, {rows} rows, preset {}, \
             commit {:?}, memory {} KiB",
            options.preset,
            options.commit,
            options.memory >> 10
        )
    }
}
