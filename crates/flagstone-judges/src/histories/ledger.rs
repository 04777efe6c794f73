//! Notes go to memory, or, in a process that will be killed, to a file that outlives it.
//!
//! - **L1** A transaction is written down before it is asked to commit, its end before anybody is told of it, each
//!   with one `write`: bytes that the kernel has taken outlive the process.
//! - **L2** A record is its length and its words, 64 bits each, little-endian. A record that is cut short was not
//!   handed over: the step that it announces had not begun.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use super::record::{
    Area, Finding, Flush, Key, List, Look, Notes, Op, Outcome, Txn, TxnId, Version, View, Viewer,
};

/// Takes the notes of one thread.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) notes: Notes,
    file: Option<File>,
    words: Vec<u64>,
    bytes: Vec<u8>,
}

impl Recorder {
    /// Notes that go to a new file.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn to_file(path: &Path) -> io::Result<Self> {
        Ok(Self { file: Some(File::create_new(path)?), ..Self::default() })
    }

    /// A transaction that is about to be asked to commit.
    pub(crate) fn intent(&mut self, txn: Txn) {
        match self.file {
            Some(_) => self.write(|words| put_txn(words, &txn)),
            None => self.notes.txns.push(txn),
        }
    }

    /// The end of the newest transaction.
    pub(crate) fn ended(&mut self, id: TxnId, outcome: Outcome, ended: u64) {
        if self.file.is_some() {
            return self.write(|words| {
                words.extend([ENDED, id.0]);
                put_outcome(words, outcome);
                words.push(ended);
            });
        }
        if let Some(txn) = self.notes.txns.last_mut().filter(|txn| txn.id == id) {
            (txn.outcome, txn.ended) = (outcome, Some(ended));
        }
    }

    /// A transaction with its end.
    pub(crate) fn txn(&mut self, txn: Txn) {
        let (id, outcome, ended) = (txn.id, txn.outcome, txn.ended);
        self.intent(txn);
        if let Some(ended) = ended {
            self.ended(id, outcome, ended);
        }
    }

    pub(crate) fn view(&mut self, view: View) {
        match self.file {
            Some(_) => self.write(|words| {
                words.extend([VIEW, view.viewer as u64, view.begun, view.ended]);
                put_ops(words, &view.ops);
            }),
            None => self.notes.views.push(view),
        }
    }

    /// Contents of a named snapshot, which every later look must show again.
    pub(crate) fn kept(&mut self, name: String, ops: Vec<Op>) {
        match self.file {
            Some(_) => self.write(|words| {
                words.push(KEPT);
                put_text(words, &name);
                put_ops(words, &ops);
            }),
            None => self.notes.kept.push((name, ops)),
        }
    }

    pub(crate) fn flush(&mut self, flush: Flush) {
        match self.file {
            Some(_) => self.write(|words| words.extend([FLUSH, flush.begun, flush.ended])),
            None => self.notes.flushes.push(flush),
        }
    }

    pub(crate) fn finding(&mut self, finding: Finding) {
        match self.file {
            Some(_) => self.write(|words| {
                words.push(FINDING);
                put_text(words, &finding.form);
                put_text(words, &finding.text);
            }),
            None => self.notes.findings.push(finding),
        }
    }

    fn write(&mut self, put: impl FnOnce(&mut Vec<u64>)) {
        self.words.clear();
        put(&mut self.words);
        self.bytes.clear();
        self.bytes.extend_from_slice(&(self.words.len() as u64).to_le_bytes());
        self.bytes.extend(self.words.iter().flat_map(|word| word.to_le_bytes()));
        if let Some(Err(error)) = self.file.as_mut().map(|file| file.write_all(&self.bytes)) {
            eprintln!("a ledger cannot be written: {error}");
            std::process::exit(LEDGER_FAILED);
        }
    }
}

/// Exit code of a process that cannot keep its ledger.
pub(crate) const LEDGER_FAILED: i32 = 70;

const TXN: u64 = 1;
const ENDED: u64 = 2;
const VIEW: u64 = 3;
const KEPT: u64 = 4;
const FLUSH: u64 = 5;
const FINDING: u64 = 6;

fn put_txn(words: &mut Vec<u64>, txn: &Txn) {
    words.extend([TXN, txn.id.0, txn.begun, u64::from(txn.is_durable)]);
    put_ops(words, &txn.ops);
}

fn put_outcome(words: &mut Vec<u64>, outcome: Outcome) {
    words.extend(match outcome {
        Outcome::Committed { lsn: Some(lsn) } => [0, lsn],
        Outcome::Committed { lsn: None } => [1, 0],
        Outcome::Aborted => [2, 0],
        Outcome::Unknown => [3, 0],
    });
}

fn put_key(words: &mut Vec<u64>, key: Key) {
    words.extend([(key.area as u64) << 32 | u64::from(key.row), key.value]);
}

fn put_look(words: &mut Vec<u64>, look: Look) {
    words.extend(match look {
        Look::Absent => [0, 0],
        Look::Version(version) => [1, version.0],
        Look::Content(hash) => [2, hash],
    });
}

fn put_text(words: &mut Vec<u64>, text: &str) {
    words.push(text.len() as u64);
    words.extend(text.bytes().map(u64::from));
}

fn put_ops(words: &mut Vec<u64>, ops: &[Op]) {
    words.push(ops.len() as u64);
    for op in ops {
        match op {
            Op::Read(key, look) => {
                words.push(0);
                put_key(words, *key);
                put_look(words, *look);
            }
            Op::Scan { first, last, rows } => {
                words.push(1);
                put_key(words, *first);
                put_key(words, *last);
                words.push(rows.len() as u64);
                for (key, look) in rows {
                    put_key(words, *key);
                    put_look(words, *look);
                }
            }
            Op::List(key, list) => {
                words.push(2);
                put_key(words, *key);
                words.extend([list.before, list.elements.len() as u64]);
                words.extend(list.elements.iter().map(|element| element.0));
            }
            Op::Write(key, version, look) => {
                words.push(3);
                put_key(words, *key);
                words.push(version.0);
                put_look(words, *look);
            }
            Op::Hidden(version) => words.extend([4, version.0]),
        }
    }
}

/// Reads the ledger that a process left.
///
/// # Errors
/// The host's; `InvalidData` for anything but a ledger.
pub(crate) fn read(path: &Path) -> io::Result<Notes> {
    let bytes = std::fs::read(path)?;
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|chunk| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        .collect();
    let mut notes = Notes::default();
    let mut rest = &words[..];
    while let Some((length, behind)) = rest.split_first() {
        let Some((record, behind)) = behind.split_at_checked(*length as usize) else { break };
        let mut reader = Reader { words: record };
        reader.record(&mut notes).ok_or(io::ErrorKind::InvalidData)?;
        rest = behind;
    }
    Ok(notes)
}

struct Reader<'a> {
    words: &'a [u64],
}

impl Reader<'_> {
    fn next(&mut self) -> Option<u64> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(*first)
    }

    fn record(&mut self, notes: &mut Notes) -> Option<()> {
        match self.next()? {
            TXN => {
                let txn = Txn {
                    id: TxnId(self.next()?),
                    begun: self.next()?,
                    ended: None,
                    outcome: Outcome::Unknown,
                    is_durable: self.next()? != 0,
                    ops: self.ops()?,
                };
                notes.txns.push(txn);
            }
            ENDED => {
                let id = TxnId(self.next()?);
                let outcome = self.outcome()?;
                let ended = Some(self.next()?);
                let txn = notes.txns.last_mut().filter(|txn| txn.id == id)?;
                (txn.outcome, txn.ended) = (outcome, ended);
            }
            VIEW => {
                let viewer = match self.next()? {
                    0 => Viewer::Snapshot,
                    1 => Viewer::Kept,
                    2 => Viewer::Backup,
                    3 => Viewer::Cut,
                    _ => Viewer::Closed,
                };
                let (begun, ended) = (self.next()?, self.next()?);
                notes.views.push(View { viewer, begun, ended, ops: self.ops()? });
            }
            KEPT => notes.kept.push((self.text()?, self.ops()?)),
            FLUSH => notes.flushes.push(Flush { begun: self.next()?, ended: self.next()? }),
            FINDING => notes.findings.push(Finding { form: self.text()?, text: self.text()? }),
            _ => return None,
        }
        self.words.is_empty().then_some(())
    }

    fn outcome(&mut self) -> Option<Outcome> {
        let (kind, lsn) = (self.next()?, self.next()?);
        Some(match kind {
            0 => Outcome::Committed { lsn: Some(lsn) },
            1 => Outcome::Committed { lsn: None },
            2 => Outcome::Aborted,
            _ => Outcome::Unknown,
        })
    }

    fn key(&mut self) -> Option<Key> {
        let (place, value) = (self.next()?, self.next()?);
        let area = *Area::ALL.get((place >> 32) as usize)?;
        Some(Key { area, row: place as u32, value })
    }

    fn look(&mut self) -> Option<Look> {
        Some(match (self.next()?, self.next()?) {
            (0, _) => Look::Absent,
            (1, version) => Look::Version(Version(version)),
            (_, hash) => Look::Content(hash),
        })
    }

    fn text(&mut self) -> Option<String> {
        let length = self.next()?;
        let bytes: Option<Vec<u8>> =
            (0..length).map(|_| self.next().map(|word| word as u8)).collect();
        String::from_utf8(bytes?).ok()
    }

    fn ops(&mut self) -> Option<Vec<Op>> {
        let count = self.next()?;
        (0..count).map(|_| self.op()).collect()
    }

    fn op(&mut self) -> Option<Op> {
        Some(match self.next()? {
            0 => Op::Read(self.key()?, self.look()?),
            1 => {
                let (first, last, count) = (self.key()?, self.key()?, self.next()?);
                let rows =
                    (0..count).map(|_| Some((self.key()?, self.look()?))).collect::<Option<_>>()?;
                Op::Scan { first, last, rows }
            }
            2 => {
                let (key, before, count) = (self.key()?, self.next()?, self.next()?);
                let elements =
                    (0..count).map(|_| self.next().map(Version)).collect::<Option<_>>()?;
                Op::List(key, List { before, elements })
            }
            3 => Op::Write(self.key()?, Version(self.next()?), self.look()?),
            4 => Op::Hidden(Version(self.next()?)),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_reads_back_but_for_a_record_cut_short() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let key = Key::new(Area::Lists, 7);
        let id = TxnId::new(1, 2, 3);
        let list = List { before: 2, elements: vec![id.version(1)] };
        let look = Look::Version(id.version(1));
        let ops = vec![
            Op::Read(key, Look::Absent),
            Op::Scan { first: key, last: key, rows: vec![(key, look)] },
            Op::List(key, list),
            Op::Write(key, id.version(1), look),
            Op::Hidden(id.version(2)),
        ];
        let outcome = Outcome::Committed { lsn: Some(9) };
        let txn = Txn { id, begun: 4, ended: Some(5), outcome, is_durable: true, ops };
        let view = View { viewer: Viewer::Cut, begun: 6, ended: 7, ops: txn.ops.clone() };
        let mut expected = Notes {
            txns: vec![txn.clone()],
            views: vec![view.clone()],
            flushes: vec![Flush { begun: 8, ended: 9 }],
            findings: vec![Finding::new("form", "text")],
            kept: vec![("name".into(), txn.ops.clone())],
        };
        let mut recorder = Recorder::to_file(&path).unwrap();
        recorder.txn(txn);
        recorder.view(view);
        recorder.flush(expected.flushes[0]);
        recorder.kept("name".into(), expected.kept[0].1.clone());
        recorder.finding(expected.findings[0].clone());
        assert_eq!(read(&path).unwrap(), expected);

        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
        expected.findings.clear();
        assert_eq!(read(&path).unwrap(), expected);
    }
}
