//! The frames of a backup: numbered, with checksums.
//!
//! Owns the head and the frames; does not know their content. The format is in `docs/FORMAT.md`.
//!
//! Invariant F1: no byte is handed out before the checksum of its frame, which covers the number of the
//! frame, was found right.

use std::io::{self, ErrorKind, Read, Write};

use crc_fast::{CrcAlgorithm, Digest};

use super::BackupError;

/// First bytes of a backup: no text, and harmed by transfers that change ends of lines.
const MAGIC: [u8; 8] = *b"\x8aFLAG\r\n\x1a";

/// Version of the format.
const VERSION: u32 = 1;

/// Bytes that a frame holds, at most.
const FRAME_SIZE: usize = 64 << 10;

/// Size and checksum of a frame.
const FRAME_HEAD_SIZE: usize = 8;

fn checksum(frame: u64, payload: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&frame.to_le_bytes());
    digest.update(payload);
    // A CRC of 32 bits has no higher bits.
    digest.finalize() as u32
}

/// Writes bytes as frames.
#[derive(Debug)]
pub(super) struct FrameWriter<W: Write> {
    sink: W,
    payload: Vec<u8>,
    frame: u64,
}

impl<W: Write> FrameWriter<W> {
    /// Writes the head.
    pub(super) fn begin(mut sink: W) -> io::Result<Self> {
        sink.write_all(&MAGIC)?;
        sink.write_all(&VERSION.to_le_bytes())?;
        Ok(Self { sink, payload: Vec::with_capacity(FRAME_SIZE), frame: 0 })
    }

    pub(super) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = (FRAME_SIZE - self.payload.len()).min(bytes.len());
            let (now, later) = bytes.split_at(room);
            self.payload.extend_from_slice(now);
            bytes = later;
            if self.payload.len() == FRAME_SIZE {
                self.put_frame()?;
            }
        }
        Ok(())
    }

    fn put_frame(&mut self) -> io::Result<()> {
        debug_assert!(self.payload.len() <= FRAME_SIZE, "a reader would refuse the frame");
        let mut head = [0; FRAME_HEAD_SIZE];
        head[..4].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&checksum(self.frame, &self.payload).to_le_bytes());
        self.sink.write_all(&head)?;
        self.sink.write_all(&self.payload)?;
        self.payload.clear();
        self.frame += 1;
        Ok(())
    }

    /// Writes the remaining bytes, and an empty frame as the end.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if !self.payload.is_empty() {
            self.put_frame()?;
        }
        self.put_frame()?;
        self.sink.flush()
    }
}

/// Reads bytes out of frames. The bytes are untrusted until the checksum of their frame was found right.
#[derive(Debug)]
pub(super) struct FrameReader<R: Read> {
    source: R,
    payload: Vec<u8>,
    used: usize,
    /// Number of the frame to be read next.
    frame: u64,
    ended: bool,
}

impl<R: Read> FrameReader<R> {
    /// Reads the head.
    pub(super) fn begin(mut source: R) -> Result<Self, BackupError> {
        let mut head = [0; MAGIC.len() + 4];
        source.read_exact(&mut head).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => BackupError::NotABackup,
            _ => error.into(),
        })?;
        let Some((magic, version)) = head.split_first_chunk::<8>() else {
            return Err(BackupError::NotABackup);
        };
        if *magic != MAGIC {
            return Err(BackupError::NotABackup);
        }
        match version.try_into().map(u32::from_le_bytes) {
            Ok(VERSION) => {}
            Ok(found) => return Err(BackupError::Version { found, known: VERSION }),
            Err(_) => return Err(BackupError::NotABackup),
        }
        Ok(Self { source, payload: Vec::new(), used: 0, frame: 0, ended: false })
    }

    /// The error for a failed `check` in the frame that was read last.
    pub(super) fn damaged(&self, check: &'static str) -> BackupError {
        BackupError::Damaged { frame: self.frame.saturating_sub(1), check }
    }

    fn read_exact(&mut self, target: &mut [u8]) -> Result<(), BackupError> {
        let frame = self.frame;
        self.source.read_exact(target).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => BackupError::Truncated { frame },
            _ => error.into(),
        })
    }

    fn next_frame(&mut self) -> Result<(), BackupError> {
        let frame = self.frame;
        let mut head = [0; FRAME_HEAD_SIZE];
        self.read_exact(&mut head)?;
        let [a, b, c, d, e, f, g, h] = head;
        let size = u32::from_le_bytes([a, b, c, d]) as usize;
        if size > FRAME_SIZE {
            return Err(BackupError::Damaged { frame, check: "the frame is too long" });
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(size, 0);
        self.read_exact(&mut payload)?;
        if checksum(frame, &payload) != u32::from_le_bytes([e, f, g, h]) {
            return Err(BackupError::Damaged { frame, check: "its checksum is wrong" });
        }
        self.ended = payload.is_empty();
        (self.payload, self.used) = (payload, 0);
        self.frame += 1;
        Ok(())
    }

    /// Rest of the current frame, or the next frame; empty at the end.
    fn rest(&mut self) -> Result<&[u8], BackupError> {
        if self.used == self.payload.len() && !self.ended {
            self.next_frame()?;
        }
        Ok(self.payload.get(self.used..).unwrap_or_default())
    }

    /// The next `size` bytes. The bytes are collected frame by frame: a size alone allocates nothing (B3).
    pub(super) fn bytes(&mut self, size: u64) -> Result<Vec<u8>, BackupError> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let missing = usize::try_from(size - bytes.len() as u64).unwrap_or(usize::MAX);
            let rest = self.rest()?;
            if rest.is_empty() {
                return Err(self.damaged("an entry is cut short"));
            }
            let now = missing.min(rest.len());
            bytes.extend_from_slice(&rest[..now]);
            self.used += now;
        }
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], BackupError> {
        let bytes = self.bytes(N as u64)?;
        bytes.try_into().map_err(|_| self.damaged("an entry is cut short"))
    }

    /// Checks that the frames end here, and the stream with them.
    pub(super) fn finish(&mut self) -> Result<(), BackupError> {
        if !self.rest()?.is_empty() {
            return Err(self.damaged("entries follow its end"));
        }
        let mut more = [0];
        loop {
            match self.source.read(&mut more) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(self.damaged("bytes follow its end")),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
