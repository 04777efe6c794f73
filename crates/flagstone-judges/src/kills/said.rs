//! Messages of a worker to the process that keeps the ledger, over standard output.
//!
//! A message is its size in four bytes and its text; rows are bytes. One write of at most 4 KiB is whole in the pipe,
//! whenever its writer is killed, and messages of several threads stand one behind the other. So if "done" of one
//! step stands before "begun" of another, the first was done before the second began.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::AsFd as _;
use std::str::FromStr;
use std::sync::Mutex;

use anyhow::{Context as _, bail};

use super::script::{Appetite, Contents, Rows};

/// A step that the first thread does between its transactions, durable when it returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    /// Makes all commits durable.
    Flush,
    /// Merges, which makes all commits durable, too.
    Merge,
    /// Closes the database, which is opened again.
    Close,
    /// Compacts the database, while it is closed; has ended when the database is shown.
    Compact,
    /// Keeps a snapshot.
    Keep(String),
    /// Drops a snapshot.
    Forget(String),
    /// Makes a table.
    Make(String),
    /// Puts rows in a table in one transaction.
    Fill(String),
    /// Loads rows into a table, in as many transactions as that takes.
    Load(String),
    /// Gives a table another name.
    Rename(String, String),
    /// Drops a table.
    Drop(String),
    /// Writes a backup to the file of that name beside the database.
    Backup(String),
}

impl Chore {
    /// Whether all earlier commits are durable when it returns, or when its effect is there.
    pub(crate) fn is_barrier(&self) -> bool {
        !matches!(self, Self::Forget(_) | Self::Backup(_) | Self::Compact)
    }
}

impl fmt::Display for Chore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flush => f.write_str("flush"),
            Self::Merge => f.write_str("merge"),
            Self::Close => f.write_str("close"),
            Self::Compact => f.write_str("compact"),
            Self::Keep(name) => write!(f, "keep {name}"),
            Self::Forget(name) => write!(f, "forget {name}"),
            Self::Make(name) => write!(f, "make {name}"),
            Self::Fill(name) => write!(f, "fill {name}"),
            Self::Load(name) => write!(f, "load {name}"),
            Self::Rename(from, to) => write!(f, "rename {from} {to}"),
            Self::Drop(name) => write!(f, "drop {name}"),
            Self::Backup(name) => write!(f, "backup {name}"),
        }
    }
}

impl FromStr for Chore {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let words: Vec<_> = text.split(' ').collect();
        let name = || words.get(1).map(|name| (*name).to_owned()).context("a name is missing");
        Ok(match words.first().copied() {
            Some("flush") => Self::Flush,
            Some("merge") => Self::Merge,
            Some("close") => Self::Close,
            Some("compact") => Self::Compact,
            Some("keep") => Self::Keep(name()?),
            Some("forget") => Self::Forget(name()?),
            Some("make") => Self::Make(name()?),
            Some("fill") => Self::Fill(name()?),
            Some("load") => Self::Load(name()?),
            Some("rename") => {
                Self::Rename(name()?, (*words.get(2).context("a name is missing")?).to_owned())
            }
            Some("drop") => Self::Drop(name()?),
            Some("backup") => Self::Backup(name()?),
            _ => bail!("no chore: {text}"),
        })
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The file of the database stands under its name.
    Created,
    /// The database is open.
    Opened,
    /// A thread begins a transaction; for the second time where the first attempt changed nothing.
    Begun { thread: u8, number: u64, appetite: Appetite },
    /// The transaction that the thread began last is committed.
    Done { thread: u8, is_durable: bool },
    /// A chore begins.
    Chore(Chore),
    /// The chore has ended well.
    ChoreDone,
    /// Rows of a table, as the source shows them: the database itself, a snapshot, a backup.
    Rows { source: String, table: String, rows: Rows },
    /// All rows of that source were said.
    Whole { source: String },
    /// A check found nothing wrong.
    Sound,
    /// The stream of a backup was refused.
    Refused(String),
    /// An operation failed with an error that has a type.
    Stumbled(String),
    /// The device has no room left, and the process ends.
    Full,
    /// The process has done all that it had to, and ends.
    Ended,
    /// A promise is broken, or the judge is wrong.
    Failed(String),
}

/// Source of rows that stands for the database itself.
pub(crate) const LIVE: &str = "live";

impl Said {
    fn text(&self) -> String {
        match self {
            Self::Created => String::from("created"),
            Self::Opened => String::from("opened"),
            Self::Begun { thread, number, appetite: Appetite::Full } => {
                format!("begun {thread} {number}")
            }
            Self::Begun { thread, number, appetite: Appetite::Lean } => {
                format!("lean {thread} {number}")
            }
            Self::Done { thread, is_durable: true } => format!("durable {thread}"),
            Self::Done { thread, is_durable: false } => format!("deferred {thread}"),
            Self::Chore(chore) => format!("chore {chore}"),
            Self::ChoreDone => String::from("chore-done"),
            Self::Rows { source, table, rows } => {
                format!("{} rows of {table} in {source}", rows.len())
            }
            Self::Whole { source } => format!("whole {source}"),
            Self::Sound => String::from("sound"),
            Self::Refused(why) => format!("refused {why}"),
            Self::Stumbled(why) => format!("stumbled {why}"),
            Self::Full => String::from("full"),
            Self::Ended => String::from("ended"),
            Self::Failed(why) => format!("failed {why}"),
        }
    }

    /// The message with its size before it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        if let Self::Rows { source, table, rows } = self {
            bytes.push(0);
            put(&mut bytes, source.as_bytes());
            put(&mut bytes, table.as_bytes());
            for (key, value) in rows {
                put(&mut bytes, key);
                put(&mut bytes, value);
            }
        } else {
            bytes.extend_from_slice(self.text().as_bytes());
        }
        let size = bytes.len() as u32 - 4;
        bytes[..4].copy_from_slice(&size.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> anyhow::Result<Self> {
        if let Some((0, rest)) = bytes.split_first() {
            return decode_rows(rest);
        }
        let text = str::from_utf8(bytes)?;
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let begun = |appetite| {
            let (thread, number) = rest.split_once(' ').context("two numbers")?;
            anyhow::Ok(Self::Begun { thread: thread.parse()?, number: number.parse()?, appetite })
        };
        Ok(match word {
            "created" => Self::Created,
            "opened" => Self::Opened,
            "begun" => begun(Appetite::Full)?,
            "lean" => begun(Appetite::Lean)?,
            "durable" => Self::Done { thread: rest.parse()?, is_durable: true },
            "deferred" => Self::Done { thread: rest.parse()?, is_durable: false },
            "chore" => Self::Chore(rest.parse()?),
            "chore-done" => Self::ChoreDone,
            "whole" => Self::Whole { source: rest.to_owned() },
            "sound" => Self::Sound,
            "refused" => Self::Refused(rest.to_owned()),
            "stumbled" => Self::Stumbled(rest.to_owned()),
            "full" => Self::Full,
            "ended" => Self::Ended,
            "failed" => Self::Failed(rest.to_owned()),
            _ => bail!("no message: {text}"),
        })
    }

    /// The next message; none at the end of the pipe, whole or not.
    pub(crate) fn read(pipe: &mut impl Read) -> anyhow::Result<Option<Self>> {
        let mut size = [0; 4];
        if pipe.read_exact(&mut size).is_err() {
            return Ok(None);
        }
        let mut bytes = vec![0; u32::from_le_bytes(size) as usize];
        if pipe.read_exact(&mut bytes).is_err() {
            return Ok(None);
        }
        Self::decode(&bytes).map(Some)
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

fn put(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
    bytes.extend_from_slice(part);
}

fn take<'a>(bytes: &mut &'a [u8]) -> anyhow::Result<&'a [u8]> {
    let (size, rest) = bytes.split_first_chunk().context("a size")?;
    let part = rest.split_at_checked(u32::from_le_bytes(*size) as usize);
    let (part, rest) = part.context("a part")?;
    *bytes = rest;
    Ok(part)
}

fn decode_rows(mut rest: &[u8]) -> anyhow::Result<Said> {
    let source = String::from_utf8(take(&mut rest)?.to_vec())?;
    let table = String::from_utf8(take(&mut rest)?.to_vec())?;
    let mut rows = Rows::new();
    while !rest.is_empty() {
        let key = take(&mut rest)?.to_vec();
        rows.insert(key, take(&mut rest)?.to_vec());
    }
    Ok(Said::Rows { source, table, rows })
}

/// The end of the pipe at which a process speaks.
pub(crate) struct Voice(Mutex<File>);

impl Voice {
    /// Over standard output, past its buffer.
    ///
    /// # Errors
    /// The file cannot be had a second time.
    pub(crate) fn new() -> io::Result<Self> {
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Self(Mutex::new(File::from(output))))
    }

    /// Sends a message, which is lost where nobody listens any more.
    pub(crate) fn say(&self, said: &Said) {
        let bytes = said.encode();
        let mut pipe = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = pipe.write_all(&bytes);
    }

    /// Says all rows of a source.
    pub(crate) fn show(&self, source: &str, contents: Contents) {
        for (table, rows) in contents {
            self.say(&Said::Rows { source: source.to_owned(), table, rows });
        }
        self.say(&Said::Whole { source: source.to_owned() });
    }
}
