//! The side file of an image: the profile, and facts that the image does not show.
//!
//! Owns the table `[image]` after the profile:
//!
//! | key | content |
//! | --- | --- |
//! | `clean` | whether the image was closed; `programs` counts only then |
//! | `erase_counts` | erases of each block up to the last save; absent = 0 |
//! | `bad` | bad blocks, for chips without a spare area |
//! | `programs` | `block.page=data/spare/words`: program counts and, in hexadecimal, the code words used, for pages whose bytes do not tell |
//!
//! The text stands twice, with a checksum (CRC-32C) behind each, so that no damaged sector of the host hides the image.
//! Lines of the copy begin with `#|`. A text without a checksum, as a user writes it, stands alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use toml::{Table, Value};

use super::BlockState;
use crate::rules::PageState;
use crate::segment::head;
use crate::storage::{EIO, FileLock, Making, OpenDeviceError, SideFault, Storage as _, kind_of};
use crate::{BlockIndex, Profile};

/// Key of our table, which no profile has.
const TABLE: &str = "image";

/// Whether the side file that is written will be the last of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// The session goes on: program counts will go stale.
    Open,
    /// The image is not written after this.
    Clean,
}

/// Pages by block and position.
type Programs = BTreeMap<(u32, u32), PageState>;

/// Contents of a side file beside the profile.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) bad: Vec<bool>,
    pub(super) erase_counts: Vec<u32>,
    pub(super) programs: Programs,
}

/// Removes a side file, as far as it got.
pub(super) fn remove(path: &Path) {
    // A missing file need not go, and a file that cannot be removed stays.
    let _ = fs::remove_file(path);
}

/// Reads a side file: the profile, and the table of the blocks if there is one.
pub(super) fn load(path: &Path) -> Result<(Profile, Option<Value>), OpenDeviceError> {
    let bytes = fs::read(path).map_err(|found| io(path, &found))?;
    let text = match whole(&bytes) {
        Some(text) => Ok(text),
        None => String::from_utf8(bytes).map_err(|_| error(path, SideFault::Text)),
    };
    parse(&text?).map_err(|fault| error(path, fault))
}

/// Begins the line behind the text.
const CHECKSUM: &str = "# Whoever changes this text deletes all from here on. Checksum: ";

/// Begins the line behind the copy.
const COPY_CHECKSUM: &str = "# Checksum of the copy: ";

/// Begins each line of the copy.
const COPY_LINE: &str = "#|";

/// Bytes of a host that one fault damages.
const HOST_SECTOR_SIZE: usize = 4096;

/// The text and its copy, so far apart that no sector has parts of both.
fn twice(text: &str) -> String {
    let sum = head::crc32c(text.as_bytes());
    let mut both = format!("{text}{CHECKSUM}{sum:08x}\n");
    both.extend(std::iter::repeat_n("#\n", HOST_SECTOR_SIZE / 2));
    for line in text.lines() {
        both.extend([COPY_LINE, line, "\n"]);
    }
    both + &format!("{COPY_CHECKSUM}{sum:08x}\n")
}

/// The text, from the place of the two that has it whole.
fn whole(bytes: &[u8]) -> Option<String> {
    let mut text = Vec::new();
    let mut copy = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if let Some(sum) = line.strip_prefix(CHECKSUM.as_bytes()) {
            if is_sum_of(sum, &text) {
                return String::from_utf8(text).ok();
            }
        } else if let Some(line) = line.strip_prefix(COPY_LINE.as_bytes()) {
            copy.extend_from_slice(line);
        } else if let Some(sum) = line.strip_prefix(COPY_CHECKSUM.as_bytes()) {
            return is_sum_of(sum, &copy).then(|| String::from_utf8(copy).ok())?;
        } else {
            text.extend_from_slice(line);
        }
    }
    None
}

fn is_sum_of(sum: &[u8], text: &[u8]) -> bool {
    sum.trim_ascii() == format!("{:08x}", head::crc32c(text)).as_bytes()
}

/// The error that a fault of the side file at `path` is.
pub(super) fn error(path: &Path, fault: SideFault) -> OpenDeviceError {
    OpenDeviceError::Side { path: path.into(), fault: Box::new(fault) }
}

fn parse(text: &str) -> Result<(Profile, Option<Value>), SideFault> {
    let mut table: Table = match text.parse() {
        Ok(table) => table,
        // Names the line.
        Err(_) => return Err(Profile::from_toml(text).err().map_or(SideFault::Blocks, Into::into)),
    };
    let blocks = table.remove(TABLE);
    Ok((Profile::from_table(&table)?, blocks))
}

impl Side {
    /// The side file of a fresh image.
    pub(super) fn new(profile: &Profile) -> Self {
        let block_count = profile.geometry.block_count as usize;
        Self {
            bad: vec![false; block_count],
            erase_counts: vec![0; block_count],
            programs: Programs::new(),
        }
    }

    /// Block facts from the table of a side file. A profile alone belongs to a dump and is fine.
    pub(super) fn of(profile: &Profile, blocks: Option<Value>) -> Result<Self, SideFault> {
        let mut side = Self::new(profile);
        match blocks {
            None => {}
            Some(Value::Table(blocks)) => side.read(&blocks).ok_or(SideFault::Blocks)?,
            Some(_) => return Err(SideFault::Blocks),
        }
        Ok(side)
    }

    fn read(&mut self, blocks: &Table) -> Option<()> {
        for (count, value) in self.erase_counts.iter_mut().zip(list(blocks, "erase_counts")?) {
            *count = number(value)?;
        }
        for block in list(blocks, "bad")? {
            *self.bad.get_mut(number(block)? as usize)? = true;
        }
        if blocks.get("clean").and_then(Value::as_bool) != Some(true) {
            return Some(());
        }
        for line in list(blocks, "programs")? {
            let (place, state) = line.as_str().and_then(entry)?;
            self.programs.insert(place, state);
        }
        Some(())
    }

    /// Writes the side file, replacing the old one as a whole.
    pub(super) fn save(
        &self,
        path: &Path,
        profile: &Profile,
        closing: Closing,
    ) -> Result<(), OpenDeviceError> {
        let text = self.text(profile, closing);
        let replace = || {
            // A link goes on pointing to the file.
            let is_there = kind_of(path)?.is_some();
            let target = if is_there { fs::canonicalize(path) } else { Ok(path.to_owned()) };
            let target = target.map_err(|error| io(path, &error))?;
            // The image has the lock.
            let (making, mut storage) = Making::begin(&target, FileLock::WherePossible)?;
            storage.write_at(0, twice(&text).as_bytes())?;
            if is_there { making.replace() } else { making.appear() }
        };
        replace().map_err(|failed| match failed {
            OpenDeviceError::Io { errno } => error(path, SideFault::Io { errno }),
            failed => failed,
        })
    }

    fn text(&self, profile: &Profile, closing: Closing) -> String {
        let mut text = profile.to_toml();
        let bad: Vec<_> = (0..self.bad.len()).filter(|block| self.bad[*block]).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n[{TABLE}]\nclean = {}", closing == Closing::Clean);
        let _ = writeln!(text, "bad = {bad:?}\nerase_counts = {:?}", self.erase_counts);
        if closing == Closing::Clean {
            text.push_str("programs = [\n");
            for ((block, page), state) in &self.programs {
                let PageState { words, data_programs, spare_programs } = state;
                let counts = format!("{data_programs}/{spare_programs}/{words:x}");
                let _ = writeln!(text, "    \"{block}.{page}={counts}\",");
            }
            text.push_str("]\n");
        }
        text
    }

    /// State of a page whose bytes tell `derived`.
    pub(super) fn recall(&self, block: BlockIndex, page: u32, derived: PageState) -> PageState {
        let Some(known) = self.programs.get(&(block.0, page)) else { return derived };
        PageState {
            words: derived.words | known.words,
            data_programs: derived.data_programs.max(known.data_programs),
            spare_programs: derived.spare_programs.max(known.spare_programs),
        }
    }

    pub(super) fn erase(&mut self, block: BlockIndex) {
        let pages = (block.0, 0)..=(block.0, u32::MAX);
        while let Some(place) = self.programs.range(pages.clone()).next().map(|(place, _)| *place) {
            self.programs.remove(&place);
        }
    }

    pub(super) fn forget(&mut self) {
        self.programs.clear();
    }

    /// The counts to remember: of touched blocks as they are now, of others as they were.
    pub(super) fn programs_with(&self, blocks: &[Option<BlockState>]) -> Programs {
        let touched = |block: u32| blocks.get(block as usize).is_some_and(Option::is_some);
        let kept = self.programs.iter().filter(|((block, _), _)| !touched(*block));
        let mut programs: Programs = kept.map(|(place, state)| (*place, *state)).collect();
        for (block, state) in (0..).zip(blocks) {
            let pages = state.iter().flat_map(|state| (0..).zip(&state.pages));
            let telling = pages.filter(|(_, page)| !page.is_erased());
            programs.extend(telling.map(|(index, page)| ((block, index), *page)));
        }
        programs
    }
}

pub(super) fn io(path: &Path, found: &std::io::Error) -> OpenDeviceError {
    error(path, SideFault::Io { errno: found.raw_os_error().unwrap_or(EIO) })
}

/// A list of the table; absent = empty.
fn list<'a>(blocks: &'a Table, key: &str) -> Option<&'a [Value]> {
    blocks.get(key).map_or(Some(&[]), |value| value.as_array().map(Vec::as_slice))
}

fn number(value: &Value) -> Option<u32> {
    value.as_integer()?.try_into().ok()
}

/// Reads `block.page=data/spare/words`.
fn entry(line: &str) -> Option<((u32, u32), PageState)> {
    let (place, counts) = line.split_once('=')?;
    let (block, page) = place.split_once('.')?;
    let mut counts = counts.split('/');
    let data_programs = counts.next()?.parse().ok()?;
    let spare_programs = counts.next()?.parse().ok()?;
    let words = u64::from_str_radix(counts.next()?, 16).ok()?;
    let state = PageState { words, data_programs, spare_programs };
    Some(((block.parse().ok()?, page.parse().ok()?), state))
}
