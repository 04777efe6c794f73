//! A loaded database on a device, for any device and any driver.

use flagstone_engine::{OpenError, Options};
use flagstone_nand::Nand as _;

use super::observe::{Observer, tell};
use super::prepare;
use super::report::{Measured, compose, seconds};
use super::{BenchError, Job, Phase};
use crate::run::{Memory, Observed, Recovery, Run, Scan, Totals};
use crate::sizing::{ChipSize, OVERWRITES};
use crate::steady::Steadiness;
use crate::store::Store;
use crate::workload::{Acknowledged, Workload};

/// A loaded database on a device.
pub(crate) struct Machine<S, T> {
    pub(crate) database: S,
    pub(crate) tables: T,
    pub(crate) options: Options,
    pub(crate) size: ChipSize,
}

impl<S: Store, T: Copy> Machine<S, T> {
    /// Formats `device` and loads the rows.
    pub(crate) fn load<W: Workload<Tables = T>>(
        job: Job<'_, W>,
        options: Options,
        size: ChipSize,
        device: S::Device,
        observer: &mut dyn Observer,
    ) -> Result<Self, BenchError> {
        let database = S::create(device, &options)?;
        let tables = prepare::load(&database, job.workload, observer)?;
        job.prefill(&database, &options)?;
        Ok(Self { database, tables, options, size })
    }

    /// Opens `device`, which holds the rows already.
    pub(crate) fn open<W: Workload<Tables = T>>(
        job: Job<'_, W>,
        options: Options,
        size: ChipSize,
        device: S::Device,
    ) -> Result<Self, BenchError> {
        let database = S::open(device, &options)?;
        let tables = prepare::open_tables(&database, job.workload)?;
        Ok(Self { database, tables, options, size })
    }

    /// Counters as they stand.
    pub(crate) fn totals(&self) -> Totals {
        let engine = self.database.stats();
        let space = self.database.space_stats();
        self.database.with_device(|device| Totals::of(device, &space, &engine))
    }

    /// Block erases as they stand.
    pub(crate) fn erases(&self) -> u64 {
        self.database.with_device(|device| device.counters().block_erases)
    }

    /// Peaks of memory so far.
    pub(crate) fn memory(&self) -> Memory {
        Memory::of(&self.database.space_stats(), &self.database.stats())
    }

    /// Programs that make an automatic warm-up.
    pub(crate) fn warmup_programs(&self) -> u64 {
        (OVERWRITES * self.size.data_pages() as f64) as u64
    }

    /// Live pages / pages of the data region as they stand.
    fn fill(&self) -> f64 {
        self.live_pages() as f64 / self.size.data_pages() as f64
    }

    /// Physical pages that hold data, as they stand.
    pub(crate) fn live_pages(&self) -> u64 {
        u64::from(self.database.space_stats().live_pages) * u64::from(self.options.parts)
    }

    /// Circumstances at the end of the window.
    pub(crate) fn observe(
        &self,
        job: Job<'_, impl Workload>,
        warmup_txns: u64,
        steadiness: &Steadiness,
    ) -> Observed {
        let geometry = self.database.with_device(|device| device.geometry());
        Observed {
            block_count: geometry.block_count,
            data_block_count: self.size.data_blocks,
            fill: self.fill(),
            loaded_bytes: job.workload.loaded_bytes(),
            warmup_txns,
            drift: steadiness.drift,
            drift_max: steadiness.drift_max,
            trace_hash: 0,
        }
    }

    /// A power cut after the window, a restart, and the check of the database (rule B2); `revive`
    /// gives the device its power back, and may try another way of restart on a copy of the device.
    pub(crate) fn finish(
        self,
        job: Job<'_, impl Workload>,
        window: Measured,
        acknowledged: &Acknowledged,
        revive: impl FnOnce(&mut S::Device) -> Result<Option<Scan>, OpenError>,
        observer: &mut dyn Observer,
    ) -> Result<Run, BenchError> {
        tell(observer, Phase::Verify, 0, 1)?;
        let mut device = self.database.into_device().ok_or(BenchError::Shared)?;
        let run = compose(job, &self.options, &device, window);
        let by_scan = revive(&mut device)?;
        let (recovery, database) = restart::<S>(device, &self.options)?;
        job.workload.verify(&database, acknowledged)?;
        tell(observer, Phase::Verify, 1, 1)?;
        Ok(Run { recovery: Some(Recovery { by_scan, ..recovery }), ..run })
    }
}

/// Opens the database on `device` again, and reports the cost of the restart.
pub(crate) fn restart<S: Store>(
    device: S::Device,
    options: &Options,
) -> Result<(Recovery, S), BenchError> {
    let (before, started_ns) = (device.counters(), device.now_ns());
    let database = S::open(device, options)?;
    let log_pages_copied = database.recovery().log_pages_copied;
    let engine = database.stats();
    let space = database.space_stats();
    let (after, ended_ns, data_pages_written) = database.with_device(|device| {
        let data = Totals::of(device, &space, &engine).causes().data;
        (device.counters(), device.now_ns(), data)
    });
    let programs_before = before.page_programs + before.partial_programs;
    let recovery = Recovery {
        pages_read: after.page_reads - before.page_reads,
        pages_written: after.page_programs + after.partial_programs - programs_before,
        data_pages_written,
        changes_undone: database.changes_undone(),
        log_pages_copied,
        time_s: seconds(ended_ns.saturating_sub(started_ns)),
        by_scan: None,
    };
    Ok((recovery, database))
}
