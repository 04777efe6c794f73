//! Long workloads: a table that is overwritten many times over, a queue, churn, a table that ages.
//!
//! Keys have 8 bytes. A value names its key and the commit that wrote it, and its other bytes are drawn from these
//! two, so that they are its checksum: the check makes each value again. With one thread the check also replays the
//! draws, and expects of each key the value of the commit that changed it last.

use anyhow::{Context, Result, ensure};
use rand::RngExt as _;
use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;

use super::zipf::Zipf;
use super::{Client, Run, Set, Step, Workload, filler, run, scatter};
use crate::store::Store;

/// With a smaller share of the commits tables are smaller as well: they would take longer to load than to change.
const FULL_SHARE: f64 = 0.1;
const LEAST_ROWS: u64 = 4;
/// Bytes of most values.
const VALUE: usize = 100;
const LARGE: usize = 64 << 10;
/// A key of an aged table in so many is deleted and put back.
const DELETED: u64 = 3;
/// Orders the deletes: a prime, so that every key has its turn.
const STRIDE: u64 = 982_451_653;

/// Keys that are changed, and how.
enum Pattern {
    /// Any row is written anew.
    Uniform,
    /// Few of them, all over the table, are written far more often than others.
    Zipf(Zipf),
    /// Nine changes in ten go to a fiftieth of the table, which moves by a key every five changes.
    Hot,
    /// In turns a row behind the last is written and the first is deleted.
    Queue,
    /// In turns a key is written and one deleted, of twice as many as there are rows: either may be there.
    Churn,
    /// As many rows as there are written anew, a third deleted and put back, all written in order, again and again.
    Aging,
}

enum Change {
    Put(u64),
    Delete(u64),
}

struct Long {
    pattern: Pattern,
    rows: u64,
    /// Bytes of the smallest and of the largest value; between them, as many of a size as of its double.
    sizes: (usize, usize),
    /// Changes a commit.
    batch: u64,
    threads: u64,
    seed: u64,
}

/// A table whose rows are overwritten, smaller when less than a tenth of the commits is run.
fn table(rows: u64, size: usize, batch: u64, share: f64, seed: u64) -> Long {
    let part = (share / FULL_SHARE).min(1.0);
    let rows = ((rows as f64 * part) as u64).max(LEAST_ROWS);
    Long { pattern: Pattern::Uniform, rows, sizes: (size, size), batch, threads: 1, seed }
}

pub fn runs(share: f64, seed: u64) -> Vec<Run> {
    let of = |rows, size, batch| table(rows, size, batch, share, seed);
    let million = || of(1_000_000, VALUE, 100);
    let zipf = Pattern::Zipf(Zipf::new(million().rows));
    let threads = |threads| Long { threads, ..of(1_000_000, VALUE, 1) };
    let all = [
        ("overwrite", "a million rows, overwritten 20 times", 200_000, million()),
        (
            "overwrite-zipf",
            "a million rows, overwritten 20 times, few of them most often",
            200_000,
            Long { pattern: zipf, ..million() },
        ),
        (
            "overwrite-hot",
            "a million rows, overwritten 20 times, most often where a hot spot moves",
            200_000,
            Long { pattern: Pattern::Hot, ..million() },
        ),
        (
            "overwrite-1k",
            "100,000 rows of 1 KB, overwritten 20 times",
            20_000,
            of(100_000, 1000, 100),
        ),
        (
            "overwrite-256k",
            "400 values of 256 KiB, overwritten 20 times, one a commit",
            8_000,
            of(400, 256 << 10, 1),
        ),
        (
            "overwrite-4m",
            "32 values of 4 MiB, overwritten 20 times, one a commit",
            640,
            of(32, 4 << 20, 1),
        ),
        (
            "queue",
            "a queue of 100,000 rows: 100 join and 100 leave a commit",
            100_000,
            Long { pattern: Pattern::Queue, ..of(100_000, VALUE, 200) },
        ),
        (
            "churn",
            "half of two million keys: 50 inserts and 50 deletes a commit",
            100_000,
            Long { pattern: Pattern::Churn, ..million() },
        ),
        (
            "aging",
            "100,000 rows of 20 bytes to 8 KB overwritten, a third deleted and back, all imported",
            26_667,
            Long { pattern: Pattern::Aging, sizes: (20, 8192), ..of(100_000, VALUE, 100) },
        ),
        ("overwrite-16", "a million rows, one a commit, sixteen threads", 500_000, threads(16)),
        ("overwrite-32", "a million rows, one a commit, 32 threads", 500_000, threads(32)),
    ];
    let long = |(name, what, count, long): (_, _, _, Long)| Run {
        set: Set::Long,
        share,
        ..run(name, what, long.threads, count, long)
    };
    all.into_iter().map(long).collect()
}

impl Long {
    /// The change that has `place` among all.
    fn change(&self, place: u64, client: &mut Client) -> Change {
        let rows = self.rows;
        match &self.pattern {
            Pattern::Uniform => Change::Put(client.below(rows)),
            Pattern::Zipf(zipf) => Change::Put(scatter(zipf.rank(&mut client.draws)) % rows),
            Pattern::Hot if client.below(10) == 0 => Change::Put(client.below(rows)),
            Pattern::Hot => Change::Put((place / 5 + client.below((rows / 50).max(1))) % rows),
            Pattern::Queue if place.is_multiple_of(2) => Change::Put(rows + place / 2),
            Pattern::Queue => Change::Delete(place / 2),
            Pattern::Churn if place.is_multiple_of(2) => Change::Put(client.below(2 * rows)),
            Pattern::Churn => Change::Delete(client.below(2 * rows)),
            Pattern::Aging => self.aged(place, client),
        }
    }

    fn aged(&self, place: u64, client: &mut Client) -> Change {
        let (rows, deleted) = (self.rows, self.rows / DELETED);
        let place = place % (2 * rows + 2 * deleted);
        let scattered = |place: u64| place * STRIDE % deleted * DELETED;
        if place < rows {
            Change::Put(client.below(rows))
        } else if place < rows + deleted {
            Change::Delete(scattered(place - rows))
        } else if place < rows + 2 * deleted {
            Change::Put(scattered(place - rows - deleted))
        } else {
            Change::Put(place - rows - 2 * deleted)
        }
    }

    fn changes(&self, client: &mut Client) -> Vec<Change> {
        let first = client.sequence * self.batch;
        (first..first + self.batch).map(|place| self.change(place, client)).collect()
    }

    /// Part of the changes that writes a value.
    fn puts(&self) -> f64 {
        match self.pattern {
            Pattern::Queue | Pattern::Churn => 0.5,
            Pattern::Aging => 0.875,
            _ => 1.0,
        }
    }

    /// Keys that the load writes.
    fn loaded(&self) -> Box<dyn Iterator<Item = u64>> {
        match self.pattern {
            Pattern::Churn => {
                Box::new((0..2 * self.rows).filter(|key| scatter(*key).is_multiple_of(2)))
            }
            _ => Box::new(0..self.rows),
        }
    }

    /// Mean of the sizes of values.
    fn size(&self) -> f64 {
        let (least, most) = (self.sizes.0 as f64, self.sizes.1 as f64);
        if least < most { (most - least) / (most / least).ln() } else { most }
    }

    /// The value that a commit writes; the load is commit 0.
    fn value(&self, key: u64, commit: u64) -> Vec<u8> {
        let mut draws = Pcg64Mcg::seed_from_u64(key ^ commit << 32);
        let (least, most) = (self.sizes.0 as f64, self.sizes.1 as f64);
        let size = least * (most / least).powf(draws.random());
        let mut value = filler(&mut draws, size as usize);
        value[..8].copy_from_slice(&key.to_le_bytes());
        value[8..16].copy_from_slice(&commit.to_le_bytes());
        value
    }

    /// The key and the commit of a row, if its value is what this commit wrote.
    fn row(&self, key: &[u8], value: &[u8]) -> Option<(u64, u64)> {
        let key = u64::from_be_bytes(key.try_into().ok()?);
        let commit = u64::from_le_bytes(value.get(8..16)?.try_into().ok()?);
        (value == self.value(key, commit)).then_some((key, commit))
    }

    /// For each key the commit that wrote its value.
    fn replay(&self, commits: u64) -> Vec<Option<u32>> {
        let mut written = Vec::new();
        let mut write = |key: u64, commit| {
            let key = key as usize;
            written.resize(written.len().max(key + 1), None);
            written[key] = commit;
        };
        self.loaded().for_each(|key| write(key, Some(0)));
        let mut client = Client::new(self.seed, 0);
        for commit in 1..=commits {
            for change in self.changes(&mut client) {
                match change {
                    Change::Put(key) => write(key, Some(commit as u32)),
                    Change::Delete(key) => write(key, None),
                }
            }
            client.sequence += 1;
        }
        written
    }
}

impl Workload for Long {
    fn tables(&self) -> usize {
        1
    }

    fn bytes(&self, _commits: u64) -> u64 {
        (self.rows as f64 * (8.0 + self.size())) as u64
    }

    fn changed(&self, commits: u64) -> u64 {
        ((commits * self.batch) as f64 * (8.0 + self.puts() * self.size())) as u64
    }

    fn has_large_values(&self) -> bool {
        self.sizes.0 >= LARGE
    }

    fn load(&self, store: &dyn Store) -> Result<()> {
        let row = |key: u64| (key.to_be_bytes().into(), self.value(key, 0));
        store.load(0, &mut self.loaded().map(row))
    }

    fn step(&self, store: &dyn Store, client: &mut Client) -> Result<Step> {
        let commit = client.sequence * self.threads + client.number + 1;
        let rows = self.changes(client).into_iter().map(|change| match change {
            Change::Put(key) => (key.to_be_bytes(), Some(self.value(key, commit))),
            Change::Delete(key) => (key.to_be_bytes(), None),
        });
        let rows: Vec<_> = rows.collect();
        store.write(&mut |txn| {
            rows.iter().try_for_each(|(key, value)| match value {
                Some(value) => txn.put(0, key, value),
                None => txn.delete(0, key),
            })?;
            Ok(true)
        })?;
        Ok(Step::Commit)
    }

    /// Several threads write in an order that nobody knows; they change no key that was not loaded, and delete none.
    fn verify(&self, store: &dyn Store, commits: u64) -> Result<()> {
        let is_known = self.threads == 1;
        let written = self.replay(if is_known { commits } else { 0 });
        let mut expected = (0_u64..).zip(written).filter_map(|(key, commit)| Some((key, commit?)));
        let mut check = |key: &[u8], value: &[u8]| {
            let (key, commit) = self.row(key, value).context("a value is damaged")?;
            let (wanted, by) = expected.next().context("a row too many")?;
            ensure!(key == wanted, "row {key} instead of {wanted}");
            ensure!(!is_known || commit == u64::from(by), "row {key} of {commit} instead of {by}");
            Ok(())
        };
        let mut checked = Ok(());
        store.read(&mut |txn| {
            txn.scan(0, &[], &mut |key, value| {
                checked = check(key, value);
                checked.is_ok()
            })
        })?;
        checked?;
        ensure!(expected.next().is_none(), "rows are missing");
        Ok(())
    }
}
