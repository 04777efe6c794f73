//! TPC-C across power cuts, on the engine and the event loop.

use flagstone::EngineError;
use flagstone_nand::{Crashable as _, Ending, FaultPlan};

use super::*;
use crate::bench::{BenchError, prepare};
use crate::event_loop::{EventLoop, Manners};
use crate::store::{Drivable as _, Store as _};
use crate::timed::Timed;

type Lab = Database<Timed<SimNand>>;

const CLIENTS: u32 = 4;
/// Programs and erases of a run, at most.
const OPERATIONS: u64 = 3_000;
const ENDINGS: [Ending; 6] = [
    Ending::Untouched,
    Ending::Complete,
    Ending::Torn { units: 1 },
    Ending::RandomBits,
    Ending::LooksUntouched,
    Ending::LooksComplete,
];

fn options(preset: &str) -> Options {
    Options::preset(preset).expect("the preset exists").with_memory(160 << 10)
}

/// A loaded chip of 8 MiB.
fn image(tpcc: &Tpcc) -> SimNand {
    let profile = Profile::named("slc-2k").expect("the profile exists");
    let profile = profile.with_block_count(64).expect("64 blocks");
    let device = Timed::new(SimNand::new(&profile, 3));
    let store = Lab::create(device, &options("flagstone")).expect("a fresh database");
    prepare::load(&store, tpcc, &mut |_| ()).expect("the rows fit");
    tpcc.verify_loaded(&store).expect("a consistent load");
    store.settle().expect("a checkpoint");
    store.into_device().expect("nobody else uses it").into_inner()
}

/// Runs clients on a copy of `image` until the power goes, and returns what was acknowledged and
/// the device without power.
fn run_until_cut(
    tpcc: &Tpcc,
    mut image: SimNand,
    preset: &str,
    after: u64,
    ending: Ending,
) -> (Acknowledged, SimNand) {
    let operation = image.operation_count() + after;
    image.set_plan(FaultPlan::power_cut(after, operation, ending));
    let device = Timed::new(image);
    let store = Lab::open(device, &options(preset)).expect("the cut comes later");
    let tables = prepare::open_tables(&store, tpcc).expect("the tables are there");
    let durability = options(preset).durability;
    let mut clients =
        EventLoop::new(store.engine(), tpcc, tables, CLIENTS, durability, Manners::default())
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
    assert!(is_cut, "{preset}, cut {after}, {ending:?}: {cut:?}");
    let acknowledged = clients.acknowledged();
    drop(clients);
    (acknowledged, store.into_device().expect("nobody else uses it").into_inner())
}

/// Goal: wherever the power fails, all conditions hold after the restart, and no acknowledged
/// commit is lost. Method: cuts spread over a run, with each ending, for each preset. Replay: the
/// failure names preset, cut and ending.
#[test]
fn all_conditions_hold_after_power_cuts() {
    let tpcc = Tpcc::new(small(Dialect::Spec, 1));
    let image = image(&tpcc);
    let mut commits = 0;
    for preset in ["flagstone", "otf-group"] {
        for (number, ending) in (1..).zip(ENDINGS) {
            let after = number * OPERATIONS / ENDINGS.len() as u64;
            let (acknowledged, mut device) =
                run_until_cut(&tpcc, image.clone(), preset, after, ending);
            device.power_cycle();
            let store = Lab::open(Timed::new(device), &options(preset));
            let verified = store.map(|store| tpcc.verify(&store, &acknowledged));
            assert!(matches!(verified, Ok(Ok(()))), "{preset}, {after}, {ending:?}: {verified:?}");
            commits += acknowledged.values().flatten().sum::<u64>();
        }
    }
    assert!(commits > 1_000, "runs without commits would prove nothing: {commits}");
}
