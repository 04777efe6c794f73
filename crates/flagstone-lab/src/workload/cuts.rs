//! Workloads across power cuts, on the engine and the event loop: shared parts of their tests.

use flagstone_engine::blocking::Database;
use flagstone_engine::{EngineError, Options};
use flagstone_nand::{Crashable as _, Ending, FaultPlan, Profile, SimNand};

use super::{Acknowledged, Workload};
use crate::bench::observe::Listener;
use crate::bench::{BenchError, prepare};
use crate::event_loop::{EventLoop, Manners};
use crate::preset;
use crate::store::{Drivable as _, Store as _};
use crate::timed::Timed;

type Lab = Database<Timed<SimNand>>;

const CLIENTS: u32 = 4;
const ENDINGS: [Ending; 6] = [
    Ending::Untouched,
    Ending::Complete,
    Ending::Torn { units: 1 },
    Ending::RandomBits,
    Ending::LooksUntouched,
    Ending::LooksComplete,
];

/// Where and how often the power fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cuts {
    /// Blocks of the chip.
    pub(crate) blocks: u32,
    /// Bytes of memory.
    pub(crate) memory: usize,
    /// Programs and erases of a run, at most.
    pub(crate) operations: u64,
}

impl Cuts {
    fn options(&self, name: &str) -> Options {
        preset::options(name).expect("the preset exists").with_memory(self.memory)
    }

    /// A loaded chip.
    fn image(&self, workload: &impl Workload) -> SimNand {
        let profile = Profile::named("slc-2k").expect("the profile exists");
        let profile = profile.with_block_count(self.blocks).expect("as many blocks");
        let device = Timed::new(SimNand::new(&profile, 3));
        let store = Lab::create(device, &self.options("flagstone")).expect("a fresh database");
        prepare::load(&store, workload, &mut Listener(&mut |_| ())).expect("the rows fit");
        workload.verify_loaded(&store).expect("a consistent load");
        store.settle().expect("a checkpoint");
        store.into_device().expect("nobody else uses it").into_inner()
    }

    /// Runs clients on a copy of `image` until the power goes, and returns the acknowledged commits
    /// and the device without power.
    fn run_until_cut(
        &self,
        workload: &impl Workload,
        mut image: SimNand,
        name: &str,
        (after, ending): (u64, Ending),
    ) -> (Acknowledged, SimNand) {
        let operation = image.operation_count() + after;
        image.set_plan(FaultPlan::power_cut(after, operation, ending));
        let options = self.options(name);
        let store = Lab::open(Timed::new(image), &options).expect("the cut comes later");
        let tables = prepare::open_tables(&store, workload).expect("the tables are there");
        let (durability, manners) = (options.durability, Manners::default());
        let mut clients =
            EventLoop::new(store.engine(), workload, tables, CLIENTS, durability, manners)
                .expect("histograms fit");
        let cut = clients.run_until(u64::MAX);
        let is_cut = matches!(
            cut,
            Err(BenchError::Engine(
                EngineError::Device(_)
                    | EngineError::Space(_)
                    | EngineError::OutcomeUnknown
                    | EngineError::Poisoned
            ))
        );
        assert!(is_cut, "{name}, cut {after}, {ending:?}: {cut:?}");
        let acknowledged = clients.acknowledged();
        drop(clients);
        (acknowledged, store.into_device().expect("nobody else uses it").into_inner())
    }
}

/// Cuts the power of runs, with each ending and for two presets, and checks the database after the
/// restart. Replay: the failure names preset, cut and ending.
pub(crate) fn verify_cuts(workload: &impl Workload, cuts: &Cuts) {
    let image = cuts.image(workload);
    let mut commits = 0;
    for name in ["flagstone", "otf-group"] {
        for (number, ending) in (1..).zip(ENDINGS) {
            let after = number * cuts.operations / ENDINGS.len() as u64;
            let cut = (after, ending);
            let (acknowledged, mut device) = cuts.run_until_cut(workload, image.clone(), name, cut);
            device.power_cycle();
            let store = Lab::open(Timed::new(device), &cuts.options(name));
            let verified = store.map(|store| workload.verify(&store, &acknowledged));
            assert!(matches!(verified, Ok(Ok(()))), "{name}, {after}, {ending:?}: {verified:?}");
            commits += acknowledged.values().flatten().sum::<u64>();
        }
    }
    assert!(commits > 1_000, "runs without commits would prove nothing: {commits}");
}
