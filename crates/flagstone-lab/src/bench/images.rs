//! Loaded databases, kept so that later runs begin with the same image.
//!
//! Owns the images; never runs a workload on one.
//!
//! - **G1** An image depends on the workload and on the settings of the load alone: chip, page
//!   size, log and seed. One preset loads it for every preset that asks, so that runs begin alike
//!   and in any order.
//! - **G2** An image is checked and brought to rest before its first use.
//! - **G3** Each run gets a copy of its own; blocks are shared until either side changes them.
//! - **G4** Where the number of images is limited, a dropped image is loaded again on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use flagstone_engine::{EngineError, Options};
use flagstone_nand::Profile;

use super::observe::Observer;
use super::{BenchError, Chip, Job, prepare};
use crate::medium::Medium;
use crate::preset::{self, EngineKind};
use crate::store::Store;
use crate::timed::Timed;
use crate::workload::Workload;

/// Images by the settings they depend on.
#[derive(Debug, Default)]
pub struct Images {
    slots: Mutex<BTreeMap<String, Slot>>,
    /// Images kept at a time; none is no limit.
    count_max: Option<usize>,
}

/// An image that is loaded or will be.
type Slot = Arc<Mutex<Option<Medium>>>;

impl Images {
    /// Keeps `count` images at a time, for chips of which memory holds no more (rule G4).
    #[must_use]
    pub fn at_most(count: usize) -> Self {
        Self { count_max: Some(count), ..Self::default() }
    }

    /// Drops images that no run is loading or copying until one more may be kept.
    fn make_room(slots: &BTreeMap<String, Slot>, key: &str, count_max: usize) {
        let others = || slots.iter().filter(|(other, _)| *other != key);
        let is_kept = |slot: &Slot| slot.try_lock().map_or(true, |image| image.is_some());
        let kept = others().filter(|(_, slot)| is_kept(slot)).count();
        let idle = others().filter_map(|(_, slot)| slot.try_lock().ok()).filter(|it| it.is_some());
        for mut image in idle.take((kept + 1).saturating_sub(count_max)) {
            *image = None;
        }
    }

    /// A copy of the image for `job` under `options` on a chip of so many blocks, loaded onto a
    /// `new` one when there is none yet.
    ///
    /// # Errors
    ///
    /// The load failed, or its database is wrong.
    pub(super) fn get<S: Store<Device = Chip>, W: Workload>(
        &self,
        job: Job<'_, W>,
        options: &Options,
        (profile, block_count): (&Profile, u32),
        new: impl FnOnce() -> Result<Medium, EngineError>,
        observer: &mut dyn Observer,
    ) -> Result<Medium, BenchError> {
        let options = loader(options);
        let key = format!(
            "{} {} {} {block_count} {:?} {options:?}",
            std::any::type_name::<S>(),
            job.workload.identity(),
            profile.name,
            job.config.chip,
        );
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let image = Arc::clone(slots.entry(key.clone()).or_default());
        if let Some(count_max) = self.count_max {
            Self::make_room(&slots, &key, count_max);
        }
        drop(slots);
        // A run that asks while the image is being loaded waits for it; other images are not held
        // up.
        let mut image = image.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = &*image {
            return Ok(image.clone());
        }
        let loaded = load::<S, W>(job, &options, Timed::new(new()?), observer)?;
        Ok(image.insert(loaded.into_inner()).clone())
    }
}

/// Options that load an image for runs with `options` (rule G1).
fn loader(options: &Options) -> Options {
    // A store of shadow pages is of its protocol from the start.
    let preset = match preset::engine_of(options) {
        EngineKind::Shadow(..) | EngineKind::Records(_) => options.preset.clone(),
        EngineKind::Flagstone | EngineKind::Classic(_) => Options::default().preset,
    };
    let mut loader = Options::default().with_memory(options.memory).with_parts(options.parts);
    (loader.preset, loader.log_pages, loader.seed) = (preset, options.log_pages, options.seed);
    loader.with_techniques(|techniques| {
        techniques.collection = options.techniques().collection;
        techniques.append_scheme = options.techniques().append_scheme.clone();
    })
}

/// A loaded device (rule G2).
fn load<S: Store<Device = Chip>, W: Workload>(
    job: Job<'_, W>,
    options: &Options,
    device: Chip,
    observer: &mut dyn Observer,
) -> Result<Chip, BenchError> {
    let store = S::create(device, options)?;
    prepare::load(&store, job.workload, observer)?;
    job.workload.verify_loaded(&store)?;
    store.settle()?;
    job.prefill(&store, options)?;
    store.with_device(Chip::come_to_rest);
    store.into_device().ok_or(BenchError::Shared)
}
