//! One client: an endless sequence of requests (rule Y1).

use flagstone_engine::{Direction, ScanRange, Table};

use super::record::{FIELD_COUNT, FIELD_SIZE, Record, Writer, fnv};
use super::{Dialect, Mix, Ycsb};
use crate::workload::zipf::Zipf;
use crate::workload::{Draws, Intent, Operations, Outcome, Scan, Terminal};

/// Exponent of every distribution.
const THETA: f64 = 0.99;
/// Items of the scrambled distribution, and the sum that YCSB gives for them.
const SCRAMBLED_COUNT: u64 = 10_000_000_000;
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;
/// Records that a range reads, at most.
const SCAN_MAX: u64 = 100;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Read(Record),
    Update(Record, usize),
    Insert(Record),
    Scan(Record, usize),
    Modify(Record, usize),
}

impl Request {
    /// Index into the classes of the workload.
    const fn class(self) -> usize {
        match self {
            Self::Read(_) => 0,
            Self::Update(..) => 1,
            Self::Insert(_) => 2,
            Self::Scan(..) => 3,
            Self::Modify(..) => 4,
        }
    }
}

/// A client.
#[derive(Clone, Debug)]
pub struct Client {
    dialect: Dialect,
    table: Table,
    number: u64,
    draws: Draws,
    /// Records of the load, and records that the client inserted.
    loaded: u64,
    inserted: u64,
    /// Keys over which the scrambled ranks are spread. It never changes: a rank that is wanted often is
    /// one record throughout.
    key_space: u64,
    /// Ranks among all records, the newest first.
    latest: Zipf,
    scrambled: Zipf,
    request: Request,
    /// Requests that came to an end.
    ended: u64,
    /// The record to be modified was read.
    is_read: bool,
    value: Vec<u8>,
    scan: Option<Scan>,
}

impl Client {
    /// Client `number` of `ycsb` before its first request.
    pub(super) fn new(ycsb: &Ycsb, table: Table, number: u64) -> Self {
        let loaded = u64::from(ycsb.records);
        let mut client = Self {
            dialect: ycsb.dialect,
            table,
            number,
            draws: Draws::new(ycsb.seed, number),
            loaded,
            inserted: 0,
            key_space: loaded + 2 * ycsb.inserts,
            latest: Zipf::exact(loaded, THETA),
            scrambled: Zipf::with_sum(SCRAMBLED_COUNT, THETA, SCRAMBLED_ZETA),
            request: Request::Read(Record(0)),
            ended: 0,
            is_read: false,
            value: Vec::new(),
            scan: None,
        };
        client.draw();
        client
    }

    /// The request under way, and whose it is.
    pub(super) fn request(&self) -> (Request, Writer) {
        (self.request, Writer { client: self.number + 1, request: self.ended })
    }

    fn draw(&mut self) {
        let Mix { update, insert, scan, modify } = self.dialect.mix();
        let draw = self.draws.below(100);
        self.request = if draw < insert {
            Request::Insert(Record::inserted(self.number, self.inserted))
        } else if draw < insert + scan {
            let record = self.wanted();
            Request::Scan(record, 1 + self.draws.below(SCAN_MAX) as usize)
        } else if draw < insert + scan + update {
            let record = self.wanted();
            Request::Update(record, self.draws.below(FIELD_COUNT as u64) as usize)
        } else if draw < insert + scan + update + modify {
            let record = self.wanted();
            Request::Modify(record, self.draws.below(FIELD_COUNT as u64) as usize)
        } else {
            Request::Read(self.wanted())
        };
        self.begin_again();
    }

    /// A record by the distribution of the workload.
    fn wanted(&mut self) -> Record {
        let known = self.loaded + self.inserted;
        let index = loop {
            let share = self.draws.below(1 << 53) as f64 / (1_u64 << 53) as f64;
            let index = match self.dialect {
                Dialect::D => known - 1 - self.latest.quantile(share).min(known - 1),
                _ => fnv(self.scrambled.quantile(share)) % self.key_space,
            };
            // A record that is not inserted yet is drawn again.
            if index < known {
                break index;
            }
        };
        match index.checked_sub(self.loaded) {
            None => Record(index),
            Some(index) => Record::inserted(self.number, index),
        }
    }

    fn begin_again(&mut self) {
        (self.is_read, self.scan) = (false, None);
    }
}

impl Terminal for Client {
    fn class(&self) -> usize {
        self.request.class()
    }

    fn advance<O: Operations>(&mut self, engine: &mut O) -> Result<Outcome, O::Stop> {
        let (request, writer) = self.request();
        match request {
            Request::Read(record) => {
                let key = record.key();
                engine.get(self.table, key.as_bytes(), Intent::Read, &mut self.value)?;
            }
            Request::Insert(record) => {
                engine.put(self.table, record.key().as_bytes(), &record.value(writer))?;
            }
            Request::Scan(record, count) => {
                let range = || ScanRange { low: record.key().into_bytes(), high: None };
                let scan =
                    self.scan.get_or_insert_with(|| Scan::new(range(), Direction::Forward, count));
                engine.scan(self.table, scan)?;
            }
            Request::Update(record, field) | Request::Modify(record, field) => {
                let key = record.key();
                if matches!(request, Request::Modify(..)) && !self.is_read {
                    engine.get(self.table, key.as_bytes(), Intent::Change, &mut self.value)?;
                    self.is_read = true;
                }
                let bytes = record.field(field, writer);
                engine.patch(self.table, key.as_bytes(), field * FIELD_SIZE, &bytes)?;
            }
        }
        Ok(Outcome::Commit)
    }

    fn restart(&mut self) {
        self.begin_again();
    }

    fn next(&mut self, ended: Outcome) {
        if matches!(self.request, Request::Insert(_)) && ended == Outcome::Commit {
            self.inserted += 1;
            self.latest.grow();
        }
        self.ended += 1;
        self.draw();
    }
}
