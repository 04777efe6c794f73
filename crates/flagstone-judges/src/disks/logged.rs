//! File systems cut at every flush: the log that the kernel's `dm-log-writes` keeps of a block device, replayed.
//!
//! The log holds writes in the order in which a flush made them durable, and marks, which tell the progress of the
//! workload. The device as of an entry is laid into a file, mounted, and judged like any other state.
//!
//! ```text
//! sector 0    magic u64 | version u64 | entries u64 | sector size u32              (little-endian)
//! entry       sector u64 | sectors u64 | flags u64 | data size u64 | text of a mark, one sector in all
//!             then its data, but for discards and marks
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64Mcg;

use super::check::{Court, Manner};
use super::disk::mix;
use super::progress::{History, Progress};
use super::record::{Event, Record};
use super::script::Script;
use super::scripts::script;

const LOG_MAGIC: u64 = 0x6a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// Most bytes of one entry.
const DATA_MAX: u64 = 64 << 20;

/// Bytes that a device keeps together.
const PAGE: usize = 4096;

/// A block device of which little is written.
#[derive(Clone, Debug, Default)]
pub(super) struct Device {
    size: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

impl Device {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let within = (at % PAGE as u64) as usize;
            let count = (PAGE - within).min(bytes.len() - done);
            let page = self.pages.entry(at / PAGE as u64).or_insert_with(|| Box::new([0; PAGE]));
            page[within..within + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
    }

    /// Reads a packed device.
    ///
    /// # Errors
    /// It holds something else.
    pub(super) fn unpack(path: &Path) -> anyhow::Result<Self> {
        let mut device = Self::default();
        for event in Record::load(BufReader::new(File::open(path)?))?.events {
            match event {
                Event::Resize { size, .. } => device.size = size,
                Event::Write { offset, bytes, .. } => device.write(offset, &bytes),
                _ => anyhow::bail!("this is no packed device"),
            }
        }
        Ok(device)
    }

    /// Packs a file: all bytes but zeros.
    ///
    /// # Errors
    /// Errors of the host.
    pub(super) fn pack(from: &Path, to: &Path) -> anyhow::Result<()> {
        let file = File::open(from)?;
        let size = file.metadata()?.len();
        let mut events = vec![Event::Resize { file: 0, size }];
        let mut page = [0; PAGE];
        for offset in (0..size).step_by(PAGE) {
            file.read_exact_at(&mut page, offset)?;
            if page != [0; PAGE] {
                events.push(Event::Write { file: 0, offset, bytes: page.to_vec() });
            }
        }
        let record = Record { script: String::from("device"), seed: 0, events };
        Ok(record.store(std::io::BufWriter::new(File::create(to)?))?)
    }

    /// Lays the device into a file, in place of its content.
    ///
    /// # Errors
    /// Errors of the host.
    pub(super) fn lay(&self, path: &Path) -> anyhow::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        file.set_len(self.size)?;
        for (number, page) in &self.pages {
            file.write_all_at(&page[..], number * PAGE as u64)?;
        }
        Ok(())
    }
}

/// An entry of a log.
#[derive(Debug)]
struct Entry {
    offset: u64,
    flags: u64,
    text: String,
    bytes: Vec<u8>,
}

fn word(raw: &[u8], at: usize) -> u64 {
    raw.get(at..at + 8).and_then(|raw| raw.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Reads a log.
fn entries(path: &Path) -> anyhow::Result<Vec<Entry>> {
    let mut source = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut head = [0; 512];
    source.read_exact(&mut head)?;
    ensure!(word(&head, 0) == LOG_MAGIC && word(&head, 8) == 1, "this is no log of dm-log-writes");
    let sector_size = word(&head, 24) & u64::from(u32::MAX);
    ensure!(sector_size == 512, "sectors of {sector_size} bytes");
    let read = |_| -> anyhow::Result<Entry> {
        let mut raw = [0; 512];
        source.read_exact(&mut raw)?;
        let [sector, sectors, flags, size] = [0, 8, 16, 24].map(|at| word(&raw, at));
        let text = match flags & MARK {
            0 => String::new(),
            _ => {
                String::from_utf8_lossy(raw.get(32..32 + size as usize).unwrap_or_default()).into()
            }
        };
        let size = if flags & (DISCARD | MARK) == 0 { sectors * sector_size } else { 0 };
        ensure!(size <= DATA_MAX, "an entry of {size} bytes");
        let mut bytes = vec![0; size as usize];
        source.read_exact(&mut bytes)?;
        Ok(Entry { offset: sector * sector_size, flags, text, bytes })
    };
    (0..word(&head, 16)).map(read).collect()
}

/// Arguments of the judgement of a log.
#[derive(clap::Args)]
pub(super) struct Replay {
    /// Script and seed of the workload.
    script: String,
    seed: u64,
    /// The packed device before it.
    packed: PathBuf,
    log: PathBuf,
    /// Name of the file system.
    #[arg(long)]
    kind: String,
    /// File that the device is laid into.
    #[arg(long)]
    device: PathBuf,
    /// Directory where it is mounted.
    #[arg(long)]
    mount: PathBuf,
    /// States are judged for so long, in a random order.
    #[arg(long)]
    seconds: u64,
}

/// A state to be judged: behind so many entries, with the progress at that time.
struct Place {
    entries: usize,
    progress: Progress,
}

/// Places of a log: behind each flush, each write past the cache, each mark.
fn places(log: &[Entry], script: &Script) -> anyhow::Result<Vec<Place>> {
    let mut progress = Progress::new(script);
    let mut places = Vec::new();
    let mut is_ready = false;
    for (index, entry) in log.iter().enumerate() {
        let words: Vec<&str> = entry.text.split('-').collect();
        if let ["begin" | "done", step] = words[..] {
            progress.reached(words[0] == "done", step.parse()?, script);
        }
        is_ready |= entry.text == "ready";
        if is_ready && entry.flags & (FLUSH | FUA | MARK) != 0 {
            places.push(Place { entries: index + 1, progress: progress.clone() });
        }
    }
    Ok(places)
}

/// Judges the states of a log.
///
/// # Errors
/// A promise is broken, or nothing could be judged.
pub(super) fn replay(it: &Replay) -> anyhow::Result<()> {
    let begun = Instant::now();
    let script = script(&it.script, it.seed)?;
    let base = Device::unpack(&it.packed)?;
    let log = entries(&it.log)?;
    let places = places(&log, &script)?;
    let limit = Duration::from_secs(it.seconds);
    // Each pass walks through the log once and judges some of the places.
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.shuffle(&mut Pcg64Mcg::seed_from_u64(it.seed));
    let (mut judged, mut broken) = (0, 0);
    for pass in order.chunks(PASS) {
        let mut pass = pass.to_vec();
        pass.sort_unstable();
        let mut device = base.clone();
        let mut court = Court { script: &script, history: History::new(&script) };
        let mut done = 0;
        for place in pass {
            if judged > 0 && begun.elapsed() >= limit {
                break;
            }
            let place = &places[place];
            for entry in &log[done..place.entries] {
                device.write(entry.offset, &entry.bytes);
            }
            done = place.entries;
            judged += 1;
            if let Err(error) = judge(it, &device, &mut court, place) {
                broken += 1;
                println!("BROKEN {} behind entry {}: {error:#}", it.kind, place.entries);
            }
        }
    }
    let (states, seconds) = (places.len(), begun.elapsed().as_secs());
    println!(
        "{}: {judged} of {states} states behind flushes and marks judged, {broken} broken, in {seconds} s",
        it.kind
    );
    ensure!(judged > 0, "nothing was judged");
    ensure!(broken == 0, "promises are broken in {broken} states");
    Ok(())
}

/// Places of one pass through a log.
const PASS: usize = 100;

fn judge(it: &Replay, device: &Device, court: &mut Court<'_>, place: &Place) -> anyhow::Result<()> {
    device.lay(&it.device)?;
    let mut mount = Command::new("mount");
    mount.args(["-t", &it.kind, "-o", "loop"]).args([&it.device, &it.mount]);
    ensure!(mount.status()?.success(), "the file system cannot be mounted");
    let directory = it.mount.join("directory");
    let manner = Manner(mix(it.seed, place.entries as u64));
    let judged = match directory.is_dir() {
        true => court.judge(&directory, &place.progress, manner),
        false => Err(anyhow::anyhow!("the directory is gone")),
    };
    let unmounted = Command::new("umount").arg("-d").arg(&it.mount).status()?;
    ensure!(unmounted.success(), "the file system cannot be unmounted");
    judged
}

/// Puts a mark into the log of a device of `dm-log-writes`.
///
/// # Errors
/// `dmsetup` does not do it.
pub(super) fn mark(device: &str, text: &str) -> anyhow::Result<()> {
    let status = Command::new("dmsetup").args(["message", device, "0", "mark", text]).status();
    ensure!(status.context("dmsetup")?.success(), "dmsetup refuses a mark");
    Ok(())
}

/// Makes the directory of the workload, durably, before anything is judged.
///
/// # Errors
/// Errors of the host.
pub(super) fn prepare(mount: &Path) -> anyhow::Result<PathBuf> {
    let directory = mount.join("directory");
    fs::create_dir(&directory)?;
    File::open(mount)?.sync_all()?;
    File::open(&directory)?.sync_all()?;
    Ok(directory)
}
