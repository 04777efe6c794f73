//! Changes that a process made to the files of one directory, in order.
//!
//! - **R1** A write stands where its call began, since any part of it may be on the medium from then on; its data
//!   count as handed over only behind its [`Event::Ended`]. A change of a name stands where its call ended.
//! - **R2** A sync stands where it returned. It covers the calls that had ended before it began.
//! - **R3** A call that failed leaves [`Event::Nothing`], a short one the part that it did.

use std::fmt;
use std::io::{self, Read, Write};

use anyhow::{Context as _, ensure};

/// One file under any of its names; numbers are not used again.
pub(super) type FileNumber = u64;

/// One request to the kernel, or one message of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A call that failed (R3).
    Nothing,
    /// A file that is there before the first call, durable.
    Standing { name: String, file: FileNumber, bytes: Vec<u8> },
    /// Bytes at an offset.
    Write { file: FileNumber, offset: u64, bytes: Vec<u8> },
    /// The file has this length from here on.
    Resize { file: FileNumber, size: u64 },
    /// The file is at least that long.
    Reserve { file: FileNumber, size: u64 },
    /// These bytes of the file read as zeros.
    Punch { file: FileNumber, offset: u64, size: u64 },
    /// A name for a file.
    Link { name: String, file: FileNumber },
    /// A name less.
    Unlink { name: String },
    /// Another name for the file with the first one, in place of the file with the second.
    Rename { from: String, to: String },
    /// The call of the event with that number returned (R1).
    Ended { event: u64 },
    /// The file is durable as far as calls had ended before event `begun` (R2).
    Synced { file: FileNumber, begun: u64 },
    /// As [`Event::Synced`], the names of the directory.
    NamesSynced { begun: u64 },
    /// A message of the process about its own progress.
    Mark(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standing { name, file, bytes } => {
                write!(f, "file {file}: {name}, {} bytes", bytes.len())
            }
            Self::Write { file, offset, bytes } => {
                write!(f, "file {file}: {} bytes at {offset}", bytes.len())
            }
            other => write!(f, "{other:?}"),
        }
    }
}

/// A whole record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Script and seed of the workload.
    pub(super) script: String,
    pub(super) seed: u64,
    pub(super) events: Vec<Event>,
}

/// First bytes of a record.
const MAGIC: [u8; 8] = *b"DISKREC1";

impl Record {
    /// Stores a record.
    ///
    /// # Errors
    /// Errors of the sink.
    pub(super) fn store(&self, mut sink: impl Write) -> io::Result<()> {
        sink.write_all(&MAGIC)?;
        put_bytes(&mut sink, self.script.as_bytes())?;
        put_number(&mut sink, self.seed)?;
        put_number(&mut sink, self.events.len() as u64)?;
        self.events.iter().try_for_each(|event| put_event(&mut sink, event))
    }

    /// Puts marks before everything else.
    pub(super) fn put_before(&mut self, marks: Vec<Event>) {
        let count = marks.len() as u64;
        for event in &mut self.events {
            match event {
                Event::Ended { event: number }
                | Event::Synced { begun: number, .. }
                | Event::NamesSynced { begun: number } => *number += count,
                _ => {}
            }
        }
        self.events.splice(0..0, marks);
    }

    /// Reads a record that was stored.
    ///
    /// # Errors
    /// Errors of the source; the source holds no record.
    pub(super) fn load(mut source: impl Read) -> anyhow::Result<Self> {
        let mut magic = [0; 8];
        source.read_exact(&mut magic).context("the record has no head")?;
        ensure!(magic == MAGIC, "this is no record");
        let (script, seed) = (get_text(&mut source)?, get_number(&mut source)?);
        let count = get_number(&mut source)?;
        let events = (0..count).map(|_| get_event(&mut source)).collect::<anyhow::Result<_>>()?;
        Ok(Self { script, seed, events })
    }
}

fn put_number(sink: &mut impl Write, number: u64) -> io::Result<()> {
    sink.write_all(&number.to_le_bytes())
}

fn get_number(source: &mut impl Read) -> anyhow::Result<u64> {
    let mut raw = [0; 8];
    source.read_exact(&mut raw).context("the record ends too early")?;
    Ok(u64::from_le_bytes(raw))
}

fn put_bytes(sink: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    put_number(sink, bytes.len() as u64)?;
    // Files are made by filling them with zeros.
    let kept = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    put_number(sink, kept as u64)?;
    sink.write_all(&bytes[..kept])
}

fn get_bytes(source: &mut impl Read) -> anyhow::Result<Vec<u8>> {
    let size = usize::try_from(get_number(source)?)?;
    let kept = usize::try_from(get_number(source)?)?;
    ensure!(kept <= size && size <= 1 << 32, "the record is damaged");
    let mut bytes = vec![0; size];
    source.read_exact(&mut bytes[..kept]).context("the record ends too early")?;
    Ok(bytes)
}

fn get_text(source: &mut impl Read) -> anyhow::Result<String> {
    String::from_utf8(get_bytes(source)?).context("the record is damaged")
}

fn put_event(sink: &mut impl Write, event: &Event) -> io::Result<()> {
    let numbers = |sink: &mut _, tag, numbers: &[u64]| {
        put_number(sink, tag)?;
        numbers.iter().try_for_each(|number| put_number(sink, *number))
    };
    match event {
        Event::Nothing => numbers(sink, 0, &[]),
        Event::Write { file, offset, bytes } => {
            numbers(sink, 1, &[*file, *offset])?;
            put_bytes(sink, bytes)
        }
        Event::Resize { file, size } => numbers(sink, 2, &[*file, *size]),
        Event::Reserve { file, size } => numbers(sink, 3, &[*file, *size]),
        Event::Punch { file, offset, size } => numbers(sink, 4, &[*file, *offset, *size]),
        Event::Link { name, file } => {
            numbers(sink, 5, &[*file])?;
            put_bytes(sink, name.as_bytes())
        }
        Event::Unlink { name } => {
            numbers(sink, 6, &[])?;
            put_bytes(sink, name.as_bytes())
        }
        Event::Rename { from, to } => {
            numbers(sink, 7, &[])?;
            put_bytes(sink, from.as_bytes())?;
            put_bytes(sink, to.as_bytes())
        }
        Event::Ended { event } => numbers(sink, 8, &[*event]),
        Event::Synced { file, begun } => numbers(sink, 9, &[*file, *begun]),
        Event::NamesSynced { begun } => numbers(sink, 10, &[*begun]),
        Event::Standing { name, file, bytes } => {
            numbers(sink, 12, &[*file])?;
            put_bytes(sink, name.as_bytes())?;
            put_bytes(sink, bytes)
        }
        Event::Mark(text) => {
            numbers(sink, 11, &[])?;
            put_bytes(sink, text.as_bytes())
        }
    }
}

fn get_event(source: &mut impl Read) -> anyhow::Result<Event> {
    let tag = get_number(source)?;
    let mut number = || get_number(source);
    Ok(match tag {
        0 => Event::Nothing,
        1 => {
            let (file, offset) = (number()?, number()?);
            Event::Write { file, offset, bytes: get_bytes(source)? }
        }
        2 => Event::Resize { file: number()?, size: number()? },
        3 => Event::Reserve { file: number()?, size: number()? },
        4 => Event::Punch { file: number()?, offset: number()?, size: number()? },
        5 => {
            let file = number()?;
            Event::Link { name: get_text(source)?, file }
        }
        6 => Event::Unlink { name: get_text(source)? },
        7 => {
            let from = get_text(source)?;
            Event::Rename { from, to: get_text(source)? }
        }
        8 => Event::Ended { event: number()? },
        9 => Event::Synced { file: number()?, begun: number()? },
        10 => Event::NamesSynced { begun: number()? },
        11 => Event::Mark(get_text(source)?),
        12 => {
            let file = number()?;
            Event::Standing { name: get_text(source)?, file, bytes: get_bytes(source)? }
        }
        _ => anyhow::bail!("the record is damaged"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_was_stored_is_read_again() {
        let mut bytes = vec![0; 5000];
        bytes[77] = 3;
        let name = || String::from("db");
        let events = vec![
            Event::Nothing,
            Event::Standing { name: name(), file: 1, bytes: vec![1; 700] },
            Event::Write { file: 1, offset: 512, bytes },
            Event::Write { file: 1, offset: 0, bytes: vec![0; 4096] },
            Event::Resize { file: 1, size: 7 },
            Event::Reserve { file: 1, size: 9 },
            Event::Punch { file: 1, offset: 4096, size: 8192 },
            Event::Link { name: name(), file: 2 },
            Event::Unlink { name: name() },
            Event::Rename { from: name(), to: String::from("other") },
            Event::Ended { event: 1 },
            Event::Synced { file: 1, begun: 4 },
            Event::NamesSynced { begun: 8 },
            Event::Mark(String::from("b 0 1")),
        ];
        let record = Record { script: name(), seed: 7, events };
        let mut stored = Vec::new();
        record.store(&mut stored).unwrap();
        assert_eq!(Record::load(stored.as_slice()).unwrap(), record);
        for size in 0..stored.len() {
            assert!(Record::load(&stored[..size]).is_err(), "{size} bytes");
        }
    }
}
