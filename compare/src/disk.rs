//! What the machine counts: the block device, this process, the files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use rustix::fs::syncfs;
use std::os::unix::fs::MetadataExt;

const SECTOR: u64 = 512;
/// How often a copy begins anew, and the wait between two attempts.
const COPIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(200);

/// A block device and the file system on it.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Name under `/sys/block`.
    pub device: String,
    /// Where it is mounted.
    pub mount: String,
}

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    pub written: u64,
    pub read: u64,
    pub flushes: u64,
}

impl Disk {
    /// Counters after everything that the system holds back has reached the device.
    pub fn settled(&self) -> Result<Reading> {
        syncfs(fs::File::open(&self.mount)?).map_err(io::Error::from)?;
        self.now()
    }

    /// Counters as they are.
    pub fn now(&self) -> Result<Reading> {
        let path = format!("/sys/block/{}/stat", self.device);
        let text = fs::read_to_string(&path).context(path)?;
        let fields: Vec<u64> =
            text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let field =
            |place: usize| fields.get(place).copied().context("the kernel counts no flushes");
        Ok(Reading { read: field(2)? * SECTOR, written: field(6)? * SECTOR, flushes: field(15)? })
    }
}

impl Reading {
    pub fn since(self, before: Self) -> Self {
        Self {
            written: self.written - before.written,
            read: self.read - before.read,
            flushes: self.flushes - before.flushes,
        }
    }
}

/// Has the largest resident size begin anew with what is resident now.
pub fn forget_memory_max() -> Result<()> {
    Ok(fs::write("/proc/self/clear_refs", "5")?)
}

/// Largest resident size of this process since it was forgotten, in bytes.
pub fn memory_max() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next()).context("no VmHWM")?;
    Ok(number.parse::<u64>()? * 1024)
}

/// Processor time of this process, user and system, in seconds.
pub fn processor_s() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let rest = stat.rsplit(')').next().context("no stat")?;
    let ticks: u64 =
        rest.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Nothing for a file that is gone since it was listed.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// A file or directory as it was at one moment.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    path: PathBuf,
    is_directory: bool,
    bytes: u64,
    /// Bytes that it occupies.
    room: u64,
    changed: SystemTime,
}

/// Entries of a directory and of the directories in it, in order: a directory stands before its entries.
fn entries(directory: &Path) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let Some(listed) = if_there(fs::read_dir(directory))? else { return Ok(entries) };
    for entry in listed {
        let path = entry?.path();
        let Some(data) = if_there(fs::symlink_metadata(&path))? else { continue };
        if data.is_dir() {
            entries.extend(self::entries(&path)?);
        }
        entries.push(Entry {
            path,
            is_directory: data.is_dir(),
            bytes: data.len(),
            room: data.blocks() * SECTOR,
            changed: data.modified()?,
        });
    }
    entries.sort_unstable();
    Ok(entries)
}

/// Bytes that the files of a directory occupy.
pub fn size_of(directory: &Path) -> Result<u64> {
    let entries = entries(directory)?;
    Ok(entries.iter().filter(|entry| !entry.is_directory).map(|entry| entry.room).sum())
}

/// Copies a directory's files as they are: what a killed process would leave. An engine that still works behind its
/// last commit would change them meanwhile: the copy begins anew until all are as they were.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    for _ in 0..COPIES {
        let before = entries(from)?;
        let _ = fs::remove_dir_all(to);
        fs::create_dir_all(to)?;
        for entry in &before {
            let target = to.join(entry.path.strip_prefix(from)?);
            match entry.is_directory {
                true => fs::create_dir(target)?,
                false => drop(if_there(fs::copy(&entry.path, target))?),
            }
        }
        if entries(from)? == before {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    bail!("the files do not come to rest")
}

/// Seconds since a moment.
pub fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}
