//! Replays of a page trace: in-page logging, and pages that are written whole or appended to.
//!
//! Owns the cost of an event on each store. All stores work on one profile; counters are the
//! device's.
//!
//! - **R1** The pages of the trace are loaded first; the events of the warm-up come before counting.
//! - **R2** Reads are checked: a page holds the changes that the trace made to it, no more and no less.
//!   Pages of the space floor are checked by their own checksums.

use std::collections::{BTreeMap, HashMap};

use flagstone_engine::{AppendScheme, EngineError};
use flagstone_nand::{Counters, Nand, SimNand};
use flagstone_space::{LogicalPage, Lsn, NoOwner, PageInfo, Space, SpaceError, SpaceOptions};

use super::{Change, Config, Event, IplError, IplStats, IplStore, Trace, Variant, Version};
use crate::bench::BenchError;
use crate::classic::appends::{Changes, Content, Placing, write_content};
use crate::steady::{SLICE_COUNT, Slice, Steadiness};

/// Commits between two checkpoints of the mapping, as in the classic engine's presets.
const CHECKPOINT_COMMITS: u64 = 5_000;

/// Log pages of a space that logs nothing.
const LOG_PAGES: u32 = 64;

/// Counters of a replay.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Commits of the window.
    pub commits: u64,
    /// Events of the window: reads and writes of a page.
    pub reads: u64,
    /// Writes of a page.
    pub writes: u64,
    /// Writes that became appends.
    pub appends: u64,
    /// Operations of the device in the window.
    pub device: Counters,
    /// Device time of the window, in nanoseconds.
    pub time_ns: u64,
    /// Counters of in-page logging, over the whole replay.
    pub ipl: IplStats,
    /// Whether erases a commit were the same all over the window.
    pub steadiness: Steadiness,
}

/// A store that a trace is replayed on.
trait Target {
    fn event(&mut self, event: &Event) -> Result<(), ReplayError>;
    fn device(&mut self) -> &mut SimNand;
    /// Device time at which all is done.
    fn end_ns(&mut self) -> Result<u64, ReplayError>;
    /// Writes so far that became appends.
    fn appends(&self) -> u64 {
        0
    }
}

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The store failed.
    #[error(transparent)]
    Ipl(#[from] IplError),
    /// The space floor failed.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// A page does not hold its written content (rule R2).
    #[error("page {page} holds {found:?} instead of {expected:?}")]
    Wrong {
        /// Page.
        page: u32,
        /// Content found.
        found: Version,
        /// Content expected.
        expected: Version,
    },
}

impl From<ReplayError> for BenchError {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Space(error) => Self::Engine(EngineError::from(error)),
            error => Self::Replay(error.to_string()),
        }
    }
}

/// Replays `trace` on in-page logging; the window begins after `warmup` commits.
///
/// # Errors
///
/// The store failed, or a page does not hold its written content.
pub fn on_ipl(
    trace: &Trace,
    device: SimNand,
    config: Config,
    warmup: u64,
) -> Result<Replayed, ReplayError> {
    let store = IplStore::format(device, config)?;
    let mut target =
        Logging { store, config, pages: HashMap::new(), undo: BTreeMap::new(), number: 0 };
    for (page, _) in &trace.pages {
        target.create(*page);
        target.store.flush(*page)?;
    }
    let mut replayed = replay(trace, &mut target, warmup)?;
    replayed.ipl = target.store.stats();
    Ok(replayed)
}

/// Replays `trace` on the space floor, whose pages take appends under `scheme`.
///
/// # Errors
///
/// The space failed.
pub fn on_space(
    trace: &Trace,
    device: SimNand,
    parts: u8,
    scheme: AppendScheme,
    warmup: u64,
) -> Result<Replayed, ReplayError> {
    let options = SpaceOptions { parts, log_pages: LOG_PAGES, ..SpaceOptions::default() };
    let mut space = Space::format(device, &options)?;
    space.checkpoint(&[])?;
    let mut target =
        Paging { space, scheme, versions: HashMap::new(), lsn: 0, commits: 0, appends: 0 };
    for (page, slots) in &trace.pages {
        target.space.reserve(LogicalPage(*page));
        target.write(*page, None, *slots)?;
    }
    target.space.checkpoint(&[])?;
    replay(trace, &mut target, warmup)
}

/// Replays the events, and counts the ones of the window.
fn replay(trace: &Trace, target: &mut impl Target, warmup: u64) -> Result<Replayed, ReplayError> {
    let all = trace.events.iter().filter(|event| matches!(event, Event::Commit(_))).count() as u64;
    let slice = (all.saturating_sub(warmup) / SLICE_COUNT as u64).max(1);
    let mut counted = Replayed::default();
    let (mut commits, mut start, mut slices) = (0, None, Vec::new());
    let (mut erases, mut appends) = (0, 0);
    for event in &trace.events {
        if commits == warmup && start.is_none() {
            let end_ns = target.end_ns()?;
            target.device().advance_to(end_ns);
            target.device().reset_counters();
            start = Some(end_ns);
            (erases, appends) = (0, target.appends());
        }
        target.event(event)?;
        let is_counted = start.is_some();
        match event {
            Event::Read(_) => counted.reads += u64::from(is_counted),
            Event::Write { .. } => counted.writes += u64::from(is_counted),
            Event::Commit(_) => {
                commits += 1;
                counted.commits += u64::from(is_counted);
                if is_counted && counted.commits.is_multiple_of(slice) {
                    let now = target.device().counters().block_erases;
                    slices.push(Slice { commits: slice, erases: now - erases });
                    erases = now;
                }
            }
            _ => {}
        }
    }
    counted.appends = target.appends() - appends;
    counted.device = target.device().counters();
    counted.time_ns = target.end_ns()?.saturating_sub(start.unwrap_or(0));
    counted.steadiness = Steadiness::of(&slices);
    Ok(counted)
}

/// In-page logging, with the content that each page must have.
struct Logging {
    store: IplStore<SimNand>,
    config: Config,
    pages: HashMap<u32, Version>,
    /// Changes of running transactions (recovery variant).
    undo: BTreeMap<u64, Vec<(u32, u64)>>,
    /// Number of the last change.
    number: u64,
}

impl Logging {
    fn create(&mut self, page: u32) {
        self.number += 1;
        self.store.create(page, self.number);
        let mut version = Version::default();
        version.add(page, self.number);
        self.pages.insert(page, version);
    }

    /// A log record, or several where it is larger than a sector.
    fn change(&mut self, page: u32, xid: u64, size: u32) -> Result<(), ReplayError> {
        let mut left = size as usize;
        loop {
            let size = left.min(IplStore::<SimNand>::record_size_max());
            self.number += 1;
            let number = self.number;
            self.store.change(page, Change { xid, number, size })?;
            self.pages.entry(page).or_default().add(page, number);
            if self.config.variant == Variant::Recovery && xid != 0 {
                self.undo.entry(xid).or_default().push((page, number));
            }
            left -= size;
            if left == 0 {
                return Ok(());
            }
        }
    }

    fn read(&mut self, page: u32) -> Result<(), ReplayError> {
        let found = self.store.read(page)?;
        let expected = self.pages.get(&page).copied().unwrap_or_default();
        if found == expected { Ok(()) } else { Err(ReplayError::Wrong { page, found, expected }) }
    }
}

impl Target for Logging {
    fn event(&mut self, event: &Event) -> Result<(), ReplayError> {
        let is_basic = self.config.variant == Variant::Basic;
        match event {
            Event::Read(page) => self.read(*page),
            // An abort has dropped the changes that undo would take back.
            Event::Change { is_undo: true, .. } if !is_basic => Ok(()),
            Event::Change { page, .. } if !self.store.has(*page) => {
                self.create(*page);
                Ok(())
            }
            Event::Change { page, xid, size, .. } => self.change(*page, *xid, *size),
            Event::Write { page, .. } => {
                if !self.store.has(*page) {
                    self.create(*page);
                }
                Ok(self.store.flush(*page)?)
            }
            Event::Free(page) => {
                self.store.forget(*page);
                self.pages.remove(page);
                Ok(())
            }
            Event::Commit(xid) if !is_basic => {
                self.undo.remove(xid);
                Ok(self.store.commit(*xid)?)
            }
            Event::Abort(xid) if !is_basic => {
                self.store.abort(*xid);
                for (page, number) in self.undo.remove(xid).unwrap_or_default() {
                    if let Some(version) = self.pages.get_mut(&page) {
                        version.remove(page, number);
                    }
                }
                Ok(())
            }
            Event::Commit(_) | Event::Abort(_) => Ok(()),
        }
    }

    fn device(&mut self) -> &mut SimNand {
        self.store.device_mut()
    }

    fn end_ns(&mut self) -> Result<u64, ReplayError> {
        // A sync waits for all posted programs.
        let device = self.store.device_mut();
        device.sync().map_err(IplError::from)?;
        Ok(device.now_ns())
    }
}

/// Pages on the space floor.
struct Paging {
    space: Space<SimNand>,
    scheme: AppendScheme,
    versions: HashMap<u32, PageInfo>,
    lsn: u64,
    commits: u64,
    appends: u64,
}

impl Paging {
    fn write(
        &mut self,
        page: u32,
        changed: Option<&[(u16, u16)]>,
        slots: u8,
    ) -> Result<(), ReplayError> {
        self.lsn += 1;
        let slots = slots.min(self.scheme.records_max());
        let ranges = changed.map(|changed| {
            let range = |(start, size): &(u16, u16)| {
                usize::from(*start)..usize::from(*start) + usize::from(*size)
            };
            changed.iter().map(range).collect()
        });
        let version = self.versions.get(&page).copied();
        let changes = version
            .zip(ranges)
            .map(|(info, ranges)| Changes::known(info, ranges))
            .unwrap_or_default();
        let image = vec![page as u8; self.space.payload_size_with(slots)];
        let content = Content { image: &image, used: 0, lsn: Lsn(self.lsn), changes: &changes };
        let placing = Placing::under(self.scheme, slots);
        let info = write_content(&mut self.space, LogicalPage(page), &content, placing)?;
        self.appends += u64::from(info.appends > 0);
        self.versions.insert(page, info);
        Ok(())
    }
}

impl Target for Paging {
    fn event(&mut self, event: &Event) -> Result<(), ReplayError> {
        match event {
            Event::Read(page) => {
                let mut image = Vec::new();
                let info = self.space.read(LogicalPage(*page), &mut image)?;
                self.versions.insert(*page, info);
            }
            Event::Write { page, changed, slots } => {
                if !self.versions.contains_key(page) {
                    self.space.reserve(LogicalPage(*page));
                }
                self.write(*page, changed.as_deref(), *slots)?;
            }
            Event::Free(page) => {
                if self.versions.remove(page).is_some() {
                    self.space.trim(LogicalPage(*page), None)?;
                }
            }
            Event::Commit(_) => {
                self.commits += 1;
                if self.commits.is_multiple_of(CHECKPOINT_COMMITS) {
                    self.space.ensure_room(0, &mut NoOwner)?;
                    self.space.checkpoint(&[])?;
                    while self.space.background(&mut NoOwner)? {}
                }
            }
            Event::Change { .. } | Event::Abort(_) => {}
        }
        Ok(())
    }

    fn device(&mut self) -> &mut SimNand {
        self.space.device_mut()
    }

    fn end_ns(&mut self) -> Result<u64, ReplayError> {
        Ok(self.space.end_ns().max(self.space.device().now_ns()))
    }

    fn appends(&self) -> u64 {
        self.appends
    }
}

#[cfg(test)]
mod tests;
