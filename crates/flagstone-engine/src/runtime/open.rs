//! Creating and opening: format or mount, then restart.
//!
//! Owns the assembly of the runtime, and the report of a restart. Never reads the log.

use flagstone_nand::{Capabilities, CellMode};
use flagstone_space::{MountError, MountReport};

use super::restart::Restart;
use super::sizing::space_options;
use super::{
    EngineError, Latch, LogGeometry, Lsn, Mutex, Nand, OpenError, Options, Runtime, RwLock, Space,
};
use crate::bugs::Bugs;
use crate::engine::{
    CATALOG, CATALOG_ROOT, Direction, Engine, Identity, Master, RowValue, ScanRange, is_name,
};
use crate::error::Corruption;
use crate::log::{ChainPoint, LogWriter};

/// Purpose of opening a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Write,
    /// Nothing is written, not even by restart: answers rest on the data that reads now.
    Read,
}

/// Work and findings of a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Physical pages read, log pages included.
    pub pages_read: u64,
    /// Physical pages programmed: copies of the log's tail; data only where memory or room was short (rule D11).
    pub pages_written: u64,
    /// Log pages read.
    pub log_pages_read: u64,
    /// Log fragments that may have been in flight at a cut and were programmed again.
    pub log_pages_copied: u64,
    /// Commits put back into memory.
    pub commits: u64,
    /// Whether all blocks of the chip had to be scanned.
    pub full_scan: bool,
    /// Device time spent on opening, in nanoseconds.
    pub time_ns: u64,
}

const NO_MASTER: Corruption = Corruption { page: None, check: "master record does not decode" };
pub(super) const EPOCHS: Corruption =
    Corruption { page: None, check: "restart epochs are used up" };
const NO_SLOTS: Corruption = Corruption { page: None, check: "log slots are too small" };

impl<D: Nand> Runtime<D> {
    /// Formats `device` and starts an empty engine on it.
    ///
    /// # Errors
    ///
    /// The options do not fit the device, or the device failed.
    pub fn create(mut device: D, options: &Options) -> Result<Self, OpenError> {
        options.require(&device)?;
        options.require_own_appends()?;
        let capabilities = device.capabilities();
        let space_options = space_options(&mut device, options)?;
        let mut space = Space::format(device, &space_options)?;
        let identity = Identity::draw(options.seed);
        let master = Master { identity: Some(identity), ..Master::default() };
        space.checkpoint(&master.encode())?;
        let log = LogWriter::new(1, ChainPoint::START, Lsn::ZERO).map_err(|_| EPOCHS)?;
        let runtime = Self::assemble(space, capabilities, options, log)?;
        runtime.engine().identity = identity;
        runtime.space().reserve(CATALOG_ROOT);
        runtime.observe(&runtime.space());
        Ok(runtime)
    }

    /// Mounts `device` and restarts its engine.
    ///
    /// # Errors
    ///
    /// No database, a damaged one, options that do not fit, or a failing device.
    pub fn open(device: D, options: &Options) -> Result<Self, OpenError> {
        Self::open_with(device, options, Access::Write, Bugs::default(), Space::mount)
    }

    /// Mounts `device` and restarts its engine in memory alone: nothing is written, now or later.
    ///
    /// # Errors
    ///
    /// As [`Runtime::open`]; `NeedsMemory` when the changes that no page holds yet do not fit the
    /// memory.
    pub fn open_read_only(device: D, options: &Options) -> Result<Self, OpenError> {
        Self::open_with(device, options, Access::Read, Bugs::default(), |device| {
            let mut mounted = Space::mount(device)?;
            mounted.0.forbid_writes();
            Ok(mounted)
        })
    }

    /// As [`Runtime::open`], with deliberate bugs of both floors at work from the start.
    #[cfg(feature = "seeded-bugs")]
    pub fn open_planted(
        device: D,
        options: &Options,
        bug: Option<crate::SeededBug>,
        below: Option<flagstone_space::SpaceBug>,
    ) -> Result<Self, OpenError> {
        Self::open_with(device, options, Access::Write, Bugs::of(bug), |device| match below {
            Some(below) => Space::mount_planted(device, below),
            None => Space::mount(device),
        })
    }

    /// Plants a deliberate bug in a running engine.
    #[cfg(feature = "seeded-bugs")]
    pub fn plant(&self, bug: Option<crate::SeededBug>) {
        self.engine().bugs = Bugs::of(bug);
    }

    fn open_with(
        device: D,
        options: &Options,
        access: Access,
        bugs: Bugs,
        mount: impl FnOnce(D) -> Result<(Space<D>, MountReport), MountError>,
    ) -> Result<Self, OpenError> {
        options.require(&device)?;
        options.require_own_appends()?;
        let begun_ns = device.now_ns();
        let counters = device.counters();
        let capabilities = device.capabilities();
        let (space, mount) = mount(device)?;
        // A power cut between the format and the first checkpoint leaves an empty database.
        let master = match mount.full_scan || mount.user.is_empty() {
            true => Master::default(),
            false => Master::decode(&mount.user).ok_or(NO_MASTER)?,
        };
        let geometry = log_geometry(&space)?;
        // The writer's place in the chain is known only when the log is read.
        let log = LogWriter::new(1, ChainPoint::START, Lsn::ZERO).map_err(|_| EPOCHS)?;
        let mut runtime = Self::assemble(space, capabilities, options, log)?;
        runtime.engine().bugs = bugs;
        let carries_flags = runtime.space().carries_flags();
        let mut restart = Restart {
            runtime: &runtime,
            access,
            carries_flags,
            master,
            mount,
            geometry,
            report: RecoveryReport::default(),
            effects: Vec::new(),
            freed_lost: Vec::new(),
            meets_at: 0,
            meet_step: 0,
        };
        restart.run()?;
        // Restarts take log blocks too: many in a row must not use up the log (rule D7). A
        // checkpoint that is not urgent waits for background work: it may write pages, which would
        // prolong the opening.
        if access == Access::Write && runtime.engine().is_checkpoint_urgent() {
            restart.widen_for_copies()?;
            match runtime.checkpoint_now() {
                Ok(()) | Err(EngineError::Full | EngineError::WornOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        runtime.engine().end_opening();
        let mut report = restart.report;
        let space = runtime.space();
        let now = space.device().counters();
        report.pages_read = now.page_reads - counters.page_reads;
        report.pages_written = now.page_programs + now.partial_programs
            - counters.page_programs
            - counters.partial_programs;
        report.time_ns = space.end_ns().max(space.device().now_ns()).saturating_sub(begun_ns);
        drop(space);
        runtime.recovery = report;
        Ok(runtime)
    }

    fn assemble(
        mut space: Space<D>,
        capabilities: Capabilities,
        options: &Options,
        log: LogWriter,
    ) -> Result<Self, OpenError> {
        let geometry = log_geometry(&space)?;
        let device_geometry = space.device().geometry();
        let has_pairs =
            matches!(capabilities.cell_mode, CellMode::Mlc { .. } | CellMode::OddMlc { .. });
        if options.discard {
            space.discard_free_blocks();
        }
        let mut engine = Engine::new(options.clone(), space.payload_size(), log);
        engine.carry_appends(space.append_room());
        Ok(Self {
            engine: RwLock::new(engine),
            space: Latch::new(space),
            sleepers: super::Sleepers::default(),
            working: Mutex::new(()),
            wear: Mutex::new(None),
            named: Mutex::default(),
            geometry,
            needs_sync: capabilities.needs_sync,
            has_dies: device_geometry.die_count > 1,
            has_pairs,
            recovery: RecoveryReport::default(),
            opened_by: std::process::id(),
        })
    }
}

fn log_geometry<D: Nand>(space: &Space<D>) -> Result<LogGeometry, OpenError> {
    let slots = u16::try_from(space.log_slots_per_page()).unwrap_or(u16::MAX);
    Ok(LogGeometry::new(space.log_slot_size(), slots).ok_or(NO_SLOTS)?)
}

/// Name and value.
type CatalogEntry = (Vec<u8>, Vec<u8>);

impl<D: Nand> Runtime<D> {
    /// Entries of the catalog.
    pub(super) fn catalog(&self) -> Result<Vec<CatalogEntry>, EngineError> {
        let mut entries = Vec::new();
        let mut range = Some(ScanRange { low: Vec::new(), high: None });
        while let Some(part) = range {
            let mut rows = Vec::new();
            range = self.run(|engine| {
                rows.clear();
                engine.scan_committed(CATALOG, &part, Direction::Forward, &mut rows)
            })?;
            entries.extend(rows.into_iter().filter_map(|row| match row.value {
                RowValue::Inline(value) => Some((row.key, value)),
                RowValue::Large(_) => None,
            }));
        }
        Ok(entries)
    }

    /// Names in the catalog.
    ///
    /// # Errors
    ///
    /// The device failed; the catalog is damaged.
    pub fn table_names(&self) -> Result<Vec<Vec<u8>>, EngineError> {
        let keys = self.catalog()?.into_iter().map(|(key, _)| key);
        Ok(keys.filter(|key| is_name(key)).collect())
    }
}

#[cfg(test)]
mod tests;
