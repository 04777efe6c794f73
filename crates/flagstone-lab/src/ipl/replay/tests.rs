//! Small traces of the classic engine, replayed.

use flagstone_engine::{AppendScheme, Options};
use flagstone_nand::{Crashable as _, Ending, FaultPlan, Profile, SimNand};

use super::super::{Config, Event, Recording, Trace, Variant};
use super::*;
use crate::medium::Medium;
use crate::preset;
use crate::workload::tatp::{Dialect, Tatp};

const COMMITS: u64 = 3_000;

/// TATP in a corner of a chip: updates, inserts, deletes, aborts.
fn trace(preset: &str) -> Trace {
    let profile = Profile::named("ipl-2007").unwrap().with_block_count(128).unwrap();
    let workload = Tatp::new(Dialect::Spec, 3_000, 3);
    let options = preset::options(preset).unwrap();
    let options = Options { memory: 200_000, parts: 4, seed: Some(3), ..options };
    let recording = Recording { options, clients: 4, commits: COMMITS, seed: 3 };
    Trace::record(&recording, &workload, Medium::new(&profile, 3).unwrap(), &mut |_| ()).unwrap()
}

fn chip() -> SimNand {
    SimNand::new(&Profile::named("ipl-2007").unwrap().with_block_count(48).unwrap(), 3)
}

fn count(trace: &Trace, is_asked: impl Fn(&Event) -> bool) -> u64 {
    trace.events.iter().filter(|event| is_asked(event)).count() as u64
}

/// Goal: a trace tells everything that happens to pages, in an order that can have happened.
#[test]
fn traces_tell_reads_changes_and_writes() {
    let trace = trace("ipa-0x0");
    assert!(trace.page_size > 8_000 && trace.pages.len() > 50, "{}", trace.pages.len());
    let commits = count(&trace, |event| matches!(event, Event::Commit(_)));
    assert!(commits >= COMMITS, "with those that change nothing: {commits}");
    let is_small = |event: &Event| match event {
        Event::Write { changed: Some(changed), .. } => {
            changed.iter().map(|(_, size)| usize::from(*size)).sum::<usize>() <= 8
        }
        _ => false,
    };
    assert!(count(&trace, is_small) > 20, "updates of a location change few bytes");
    assert!(count(&trace, |event| matches!(event, Event::Read(_))) > 100);
    // A page changes before it is written, and only with a record.
    let mut changed = std::collections::HashSet::new();
    for event in &trace.events {
        match event {
            Event::Change { page, size, .. } => {
                assert!(*size > 4);
                changed.insert(*page);
            }
            Event::Write { page, .. } => assert!(changed.remove(page), "page {page}"),
            _ => {}
        }
    }
}

/// Goal: both variants hold every page as the trace left it (rule R2), at the cost they state.
#[test]
fn in_page_logging_carries_a_trace() {
    let trace = trace("ipa-0x0");
    let writes = count(&trace, |event| matches!(event, Event::Write { .. }));
    let run = |variant| on_ipl(&trace, chip(), Config::of(variant), 0).unwrap();
    let basic = run(Variant::Basic);
    assert_eq!(basic.writes, writes);
    assert!(basic.ipl.merges > 0 && basic.ipl.sectors + basic.ipl.pages_created >= writes);
    assert_eq!(basic.device.partial_programs, basic.ipl.sectors);
    let recovery = run(Variant::Recovery);
    assert!(recovery.ipl.status_sectors > 20, "{:?}", recovery.ipl);
    assert!(recovery.device.partial_programs > basic.device.partial_programs);
}

#[test]
fn pages_take_appends_where_the_scheme_lets_them() {
    let trace = trace("ipa-2x4");
    let run = |scheme| on_space(&trace, chip(), 4, scheme, 0).unwrap();
    let whole = run(AppendScheme::None);
    assert_eq!((whole.appends, whole.reads), (0, count(&trace, |it| matches!(it, Event::Read(_)))));
    let pairs = run(AppendScheme::Pairs { records: 2, bytes: 4 });
    let runs = run(AppendScheme::Runs { records: 2 });
    assert!(0 < pairs.appends && pairs.appends <= runs.appends && runs.appends < runs.writes);
    let programs = |it: &Replayed| it.device.page_programs + it.device.partial_programs;
    assert!(programs(&runs) <= programs(&pairs) && programs(&pairs) < programs(&whole));
}

/// Goal: the window alone is counted.
#[test]
fn a_window_and_what_comes_before_it_make_the_whole() {
    let trace = trace("ipa-0x0");
    let commits = count(&trace, |event| matches!(event, Event::Commit(_)));
    let all = on_ipl(&trace, chip(), Config::of(Variant::Basic), 0).unwrap();
    let late = on_ipl(&trace, chip(), Config::of(Variant::Basic), commits / 2).unwrap();
    assert_eq!(late.commits, commits - commits / 2);
    assert_eq!(late.ipl, all.ipl, "the store did the same");
    assert!(late.device.page_reads < all.device.page_reads && late.time_ns < all.time_ns);
}

/// Goal: a device that fails ends a replay. Method: the power goes before posted programs are
/// waited for.
#[test]
fn a_device_that_fails_is_told() {
    let config = Config::of(Variant::Basic);
    let store = IplStore::format(chip(), config).unwrap();
    let mut target =
        Logging { store, config, pages: HashMap::new(), undo: BTreeMap::new(), number: 0 };
    assert!(target.end_ns().is_ok());
    let next = target.device().operation_count();
    target.device().set_plan(FaultPlan::power_cut(1, next, Ending::Untouched));
    target.create(1);
    assert!(target.store.flush(1).is_err());
    assert!(target.end_ns().is_err());
}
