//! Programs: the operations of a history, drawn from a seed.

use std::fmt;
use std::time::Duration;

use flagstone::{Durability, Options};

use super::draw::Draw;
use super::value::EVEN;

/// Place of the database of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A plain file; the session ends without closing it.
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
    /// One commit in so many of each thread waits, the others do not; 0: none waits.
    Deferred { durable_in: u64 },
    /// Only commits of the first `durable` threads wait, with this durability.
    Beside { durable: u64, by: Durability },
    /// Each as drawn.
    Mixed,
}

impl Pace {
    /// Durability of the next commit of a thread.
    pub(crate) fn next(self, thread: u64, draw: &mut Draw) -> Durability {
        match self {
            Self::Deferred { durable_in } if draw.one_in(durable_in) => Durability::Immediate,
            Self::Beside { durable, by } if thread < durable => by,
            Self::Deferred { .. } | Self::Beside { .. } => Durability::Deferred,
            Self::Mixed => {
                draw.pick(&[Durability::Immediate, Durability::Group, Durability::Deferred])
            }
        }
    }
}

/// One piece of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Append,
    Set,
    Transfer,
    Spread,
    Read,
    Scan,
    Member,
    Tag,
    Churn,
    TakenBack,
    Many,
}

impl Piece {
    const ALL: [Self; 11] = [
        Self::Append,
        Self::Set,
        Self::Transfer,
        Self::Spread,
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
    /// Transactions that wait until they are durable, and transactions that do not.
    lots: [Lot; 2],
    /// One in so many transactions counts in its thread's counter.
    pub(crate) count_in: u64,
    /// One in so many transactions is followed by a snapshot.
    pub(crate) snapshot_in: u64,
    /// One in so many durable commits is followed by a look at the state that a cut would leave.
    pub(crate) cut_in: u64,
}

impl Phase {
    /// The pieces of a transaction of this durability.
    pub(crate) fn lot(&self, durability: Durability) -> &Lot {
        &self.lots[usize::from(durability == Durability::Deferred)]
    }
}

/// Pieces of transactions, by weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lot {
    weights: [u32; Piece::ALL.len()],
    /// Most pieces of a transaction.
    pub(crate) pieces_max: u64,
}

impl Lot {
    /// A single small piece.
    const SMALL: Self = Self { weights: [30, 10, 10, 0, 4, 0, 4, 4, 0, 0, 0], pieces_max: 1 };

    const TRANSFERS: Self = Self { weights: [0, 0, 20, 0, 1, 0, 0, 0, 0, 0, 0], pieces_max: 1 };
    const SPREADS: Self = Self { weights: [1, 1, 4, 30, 1, 0, 0, 0, 0, 0, 0], pieces_max: 1 };

    fn drawn(draw: &mut Draw) -> Self {
        let mut weights = [30, 30, 40, 10, 12, 8, 12, 12, 2, 6, 1];
        for weight in &mut weights {
            *weight = match draw.below(6) {
                0 => 0,
                1 => *weight * 5,
                _ => *weight,
            };
        }
        weights[Piece::Transfer as usize] += 1;
        Self { weights, pieces_max: draw.pick(&[1, 1, 2, 3]) }
    }

    pub(crate) fn piece(&self, draw: &mut Draw) -> Piece {
        Piece::ALL[draw.weighted(&self.weights)]
    }
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All threads stop, in the middle of their work.
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
    /// Most bytes of filler: of most values, and of some.
    pub(crate) filler: (u32, u32),
    /// Values of a row differ in their heads alone: little of them has to be logged.
    pub(crate) is_even: bool,
    /// Commits of all kinds beside each other, hardly any room, and little log for much change: many changes are not
    /// durable yet, and leave memory while their rows are written again.
    pub(crate) is_pressed: bool,
    /// Transactions are divided by this.
    pub(crate) divisor: u64,
    /// Longest time of a session.
    pub(crate) session_time: Duration,
    /// Deliberate bug of the engine while sessions are at work.
    pub(crate) bug: Option<String>,
}

/// Chips for histories: with flags and without, with paired pages, with several dies.
const CHIPS: [(&str, u32); 4] =
    [("slc-2k", 300), ("slc-2k", 300), ("slc-4k", 300), ("mlc-2k", 200)];

/// Presets beside the default one.
const PRESETS: [&str; 3] = ["flagstone-claims", "flagstone-flags", "traditional"];

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
        let program = Self {
            seed,
            place,
            options: options(place, &mut draw),
            threads: draw.pick(&[1, 1, 2, 3, 4, 5, 6, 8, 12, 16]),
            sessions: draw.between(2, 4),
            rows: draw.pick(&[12, 60, 300, 300, 1_000, 3_000]),
            filler: draw.pick(&[(16, 64), (100, 400), (100, 9_000), (300, 2_000), (40, 60_000)]),
            is_even: draw.one_in(4),
            is_pressed: draw.one_in(3),
            divisor: 1,
            session_time: Duration::from_millis(draw.pick(&[300, 1_000, 1_000, 3_000])),
            bug: None,
        };
        let mut program = if program.is_pressed { program.pressed(&mut draw) } else { program };
        if program.options.preset == "flagstone-flags" {
            // These commits are told no place of their own, so the order of several at a time is unknown.
            program.threads = 1;
        }
        program
    }

    /// The program with accounts that just fit its memory, which is small.
    fn pressed(mut self, draw: &mut Draw) -> Self {
        let memory = draw.between(96 << 10, 256 << 10);
        if self.options.memory > memory as usize {
            self.options = self.options.with_memory(memory as usize);
        }
        self.options.group_delay = Duration::from_micros(draw.pick(&[100, 1_000]));
        if !draw.one_in(3) {
            self.options.checkpoint_commits = draw.between(20, 300);
        }
        self.threads = draw.pick(&[3, 4, 5, 5, 6]);
        self.rows = draw.pick(&[200, 300, 400]);
        let size = self.options.memory as u32 / self.rows * draw.between(5, 9) as u32 / 10;
        self.filler = (size.saturating_sub(40).max(16), 400);
        self.is_even = true;
        self
    }

    /// The stretches of one session, in order.
    pub(crate) fn phases(&self, session: u64) -> Vec<Phase> {
        let mut draw = Draw::new(self.seed, 1_000 + session);
        let mut phases = Vec::new();
        for _ in 0..draw.between(1, 3) {
            let paces = if self.is_pressed { [1, 9, 0] } else { [4, 4, 2] };
            let pace = match draw.weighted(&paces) {
                0 => Pace::Deferred { durable_in: draw.pick(&[0, 0, 2_000, 300, 40]) },
                1 => Pace::Beside {
                    durable: draw.pick(&[1, 1, 1, 2, self.threads / 2]),
                    by: draw.pick(&[
                        Durability::Immediate,
                        Durability::Immediate,
                        Durability::Group,
                    ]),
                },
                _ => Pace::Mixed,
            };
            let txns: u64 = match pace {
                Pace::Deferred { .. } => draw.pick(&[1_000, 4_000, 10_000, 30_000]),
                Pace::Beside { .. } => draw.pick(&[1_000, 5_000, 20_000]),
                Pace::Mixed => draw.pick(&[300, 1_000, 4_000]),
            };
            let (mut lot, is_small) = (Lot::drawn(&mut draw), draw.one_in(2));
            // Waiting transactions are often small, so that more of them wait.
            let mut waits = if is_small { Lot::SMALL } else { lot };
            if self.is_pressed {
                (waits, lot) = (Lot::TRANSFERS, Lot::SPREADS);
            }
            phases.push(Phase {
                txns: txns.div_ceil(self.divisor),
                pace,
                lots: [waits, lot],
                count_in: draw.pick(&[1, 1, 4, 50]),
                snapshot_in: draw.pick(&[10, 30, 100, 400]),
                cut_in: draw.pick(&[10, 40, 40, 200]),
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
        if self.is_even && !draw.one_in(200) {
            return usual | EVEN;
        }
        let size_max = if draw.one_in(200) { max } else { usual };
        draw.below(u64::from(size_max) + 1) as u32
    }
}

/// Options of a program: the defaults, or others that fit the place.
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
    options.seed = Some(draw.bits());
    options
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, place, options, threads, sessions, rows, .. } = self;
        let pressed = if self.is_pressed { "pressed, " } else { "" };
        write!(
            f,
            "seed {seed}: {pressed}{place:?}, {threads} threads, {sessions} sessions, {rows} rows, \
             preset {}, memory {} KiB, group delay {:?}, checkpoint after {} commits",
            options.preset,
            options.memory >> 10,
            options.group_delay,
            options.checkpoint_commits
        )
    }
}
