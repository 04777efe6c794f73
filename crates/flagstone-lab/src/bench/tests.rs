use flagstone_engine::Options;
use flagstone_nand::Profile;
use flagstone_opponents::policies::{VictimRule, WithPolicies as _};

use super::*;

/// A small run: little is measured, everything is exercised.
fn small(preset: &str, clients: u32) -> BenchConfig {
    let profile = Profile::named("slc-2k").expect("the profile exists");
    let options = crate::preset::options(preset).expect("the preset exists");
    BenchConfig {
        clients,
        txns: 2_000,
        warmup: Warmup::Txns(500),
        ..BenchConfig::tpcb(profile, vec![options])
    }
}

fn bench(config: &BenchConfig) -> Run {
    let mut runs = run_all(config, &mut |_| ()).expect("the run succeeds").runs;
    runs.pop().expect("one preset, one run")
}

/// For the engine of pages that transactions share: larger pages, on a chip full of cold ones.
fn shared_pages(config: BenchConfig) -> BenchConfig {
    let options = crate::preset::options("cfc-ex").expect("the preset exists");
    let profile = config.profile.clone().with_block_count(1024).expect("1024 blocks");
    let options = vec![options.with_parts(4)];
    BenchConfig { profile, options, chip: ChipUse::Prefilled, ..config }
}

/// Goal: the whole course of a simulated run holds together, sums and restart included, for both
/// presets and with many clients. Method: small windows; the sums are checked within.
#[test]
fn simulated_runs_end_with_equal_sums() {
    for (preset, clients) in [("flagstone", 1), ("flagstone", 16), ("traditional", 4)] {
        let run = bench(&small(preset, clients));
        assert_eq!(run.commits, 2_000, "{preset}");
        assert!(run.elapsed_s > 0.0 && run.tps > 0.0);
        assert!(run.programs_per_commit() > 0.0, "commits reach the flash");
        let causes = run.programs_by_cause;
        assert!(causes.log > 0, "{preset} logs");
        let sum = causes.log
            + causes.data
            + causes.delta
            + causes.flag
            + causes.metadata
            + causes.relocation
            + causes.wear;
        assert_eq!(sum, run.page_programs + run.partial_programs, "every program has a cause");
        assert!(run.recovery.is_some_and(|recovery| recovery.pages_read > 0));
    }
}

/// Goal: a restart right after the window finds room for its log, after a window of any length.
#[test]
fn short_windows_on_small_chips_end_with_a_restart() {
    let run = bench(&BenchConfig { txns: 3_000, warmup: Warmup::Auto, ..small("flagstone", 16) });
    assert_eq!(run.commits, 3_000);
    assert!(run.recovery.is_some_and(|recovery| recovery.log_pages_copied > 0));
}

#[test]
fn dies_work_in_parallel() {
    // A single worker writes the old pages of the classic engine, one batch after the other.
    for (preset, gain) in [("flagstone", 1.5), ("berkeley-original", 1.4)] {
        let tps = |die_count| {
            let mut config = small(preset, 16);
            config.profile.geometry.die_count = die_count;
            bench(&config).tps
        };
        let (one, four) = (tps(1), tps(4));
        assert!(four > gain * one, "{preset}: one die {one:.0}, four {four:.0} a second");
    }
}

/// Goal: a run is a function of its configuration and seed, with every engine: nothing depends on
/// the order of a hashed map. Method: the same run twice, in memory too small for the database.
#[test]
fn equal_seeds_give_equal_runs_and_equal_device_traces() {
    let whole = |preset| BenchConfig {
        memory: MemoryBudget::Bytes(256 << 10),
        txns: 6_000,
        ..small(preset, 8)
    };
    let engines = ["wal", "cfc", "afc", "bpcc", "scc"];
    let presets = crate::preset::flagstone().into_iter().chain(engines);
    let shared = shared_pages(small("cfc-ex", 8));
    for config in presets.map(whole).chain([shared]) {
        let (mut one, two) = (bench(&config), bench(&config));
        (one.wall_s, one.cpu_s) = (two.wall_s, two.cpu_s);
        assert_eq!(one, two);
        assert_ne!(one.config.observed.trace_hash, 0);
    }
    let seed = |seed| bench(&BenchConfig { seed, ..small("flagstone", 3) });
    assert_ne!(seed(1).config.observed.trace_hash, seed(2).config.observed.trace_hash);
}

/// Goal: group commit waits for company, and no longer than it may. Method: the same run with both
/// commits; the cost of the log, and the time of a commit.
#[test]
fn group_commit_trades_latency_for_log_pages() {
    let (immediate, group) = (bench(&small("otf-immediate", 8)), bench(&small("otf-group", 8)));
    let (alone, together) = (immediate.programs_by_cause.log, group.programs_by_cause.log);
    assert!(together * 4 < alone * 3, "{together} log programs together, {alone} at once");
    let delay_us = Options::default().group_delay.as_micros() as f64;
    let (alone, together) = (immediate.latency_us.p50, group.latency_us.p50);
    assert!(together > alone, "{together} us together, {alone} us at once");
    assert!(together < alone + 2.0 * delay_us, "{together} us together, {alone} us at once");
}

#[test]
fn shore_kits_aborts_what_finds_no_account() {
    let run = bench(&BenchConfig {
        workload: WorkloadKind::Tpcb(tpcb::Dialect::ShoreKits),
        ..small("flagstone", 2)
    });
    let share = run.aborts as f64 / (run.aborts + run.commits) as f64;
    assert!((share - 15.0 / 202.0).abs() < 0.02, "{share}");
}

/// Goal: commits whose client does not wait are all there in the end. Method: the run's own check.
#[test]
fn deferred_commits_are_durable_when_the_run_ends() {
    for preset in ["flagstone", "berkeley-original"] {
        let mut config = small(preset, 2);
        config.options[0].durability = flagstone_engine::Durability::Deferred;
        assert_eq!(bench(&config).commits, 2_000, "{preset}");
    }
}

/// Goal: in a database that was opened again a group is chosen by its cost, although every leaf
/// that is read for this is checked for changes it holds already. Method: a run from an image, with
/// memory for few leaves; it ends with every request of the index checked.
#[test]
fn an_index_that_was_opened_again_merges_by_cost() {
    let profile = Profile::named("ls-lru-nand").expect("the profile exists");
    let options = crate::preset::options("flagstone").expect("the preset exists");
    let options = options.with_policies(|policies| policies.victim = VictimRule::Cost);
    let config = BenchConfig::index(index::Dialect::WriteIntensive, profile, vec![options]);
    let run = bench(&BenchConfig { txns: 6_000, warmup: Warmup::Txns(2_000), ..config });
    assert_eq!(run.commits, 6_000);
    assert!(run.programs_by_cause.data > 0, "groups were merged");
}

#[test]
fn an_index_has_one_client() {
    let profile = Profile::named("ls-lru-nand").expect("the profile exists");
    let options = crate::preset::options("flagstone").expect("the preset exists");
    let config = BenchConfig::index(index::Dialect::Random, profile, vec![options]);
    let refused = run_all(&BenchConfig { clients: 2, ..config }, &mut |_| ());
    assert!(matches!(refused, Err(BenchError::Config { option: "clients", .. })), "{refused:?}");
}

#[test]
fn the_run_object_has_the_agreed_keys() {
    let run = bench(&BenchConfig { txns: 100, warmup: Warmup::None, ..small("flagstone", 1) });
    let json = serde_json::to_value(&run).expect("a run is JSON");
    let keys = [
        "commits",
        "aborts",
        "restarts",
        "elapsed_s",
        "wall_s",
        "tps",
        "latency_us",
        "user_bytes",
        "log_bytes",
        "page_reads",
        "page_programs",
        "partial_programs",
        "block_erases",
        "gc_migrations",
        "gc_time_s",
        "bytes_programmed",
        "write_amplification",
        "delta_appends",
        "out_of_place_writes",
        "pool_hits",
        "pool_misses",
        "erase_count",
        "lifetime_txns",
        "recovery",
        "memory",
        "programs_by_cause",
        "steady",
        "by_region",
        "by_class",
        "config",
    ];
    let object = json.as_object().expect("an object");
    assert!(keys.iter().all(|key| object.contains_key(*key)));
    assert_eq!(object.len(), keys.len(), "no key beyond the agreed ones");
    assert_eq!(json["config"]["seed"], 1);
    assert!(json["latency_us"]["p999"].is_number());
}

/// Goal: TPC-B's history never appends, its accounts, tellers and branches do, whoever places them: by declaration
/// (`ipa-2x4`), or as the classic engine learns. Method: small runs on pSLC; the run object says which table stood
/// where.
#[test]
fn history_stands_in_a_region_without_appends() {
    for preset in ["ipa-2x4", "ipa-auto"] {
        let profile = Profile::named("openssd-jasmine-pslc").expect("the profile exists");
        let options = crate::preset::options(preset).expect("the preset exists");
        let mut config = BenchConfig { clients: 8, ..BenchConfig::tpcb(profile, vec![options]) };
        config.profile.geometry.die_count = 1;
        (config.scale, config.txns, config.warmup) = (2, 4_000, Warmup::Txns(6_000));
        (config.memory, config.fill) = (MemoryBudget::Share(0.1), 0.5);
        let run = bench(&config);
        let stands = |table: &str| {
            let of = run.by_region.values().find(|it| it.tables.iter().any(|it| it == table));
            of.unwrap_or_else(|| panic!("{preset}: {table}: {:?}", run.by_region)).clone()
        };
        println!("{preset}: {:?}", run.by_region);
        let history = stands("history");
        assert_eq!(history.appends, 0, "{preset}: {:?}", run.by_region);
        assert!(history.writes > 0, "{preset}: {:?}", run.by_region);
        for table in ["account", "teller", "branch"] {
            assert!(stands(table).appends > 0, "{preset}: {table}: {:?}", run.by_region);
        }
    }
}

#[test]
fn contradictory_configurations_are_refused() {
    for config in [
        BenchConfig { scale: 0, ..small("flagstone", 1) },
        BenchConfig { clients: 0, ..small("flagstone", 1) },
        BenchConfig { txns: 0, ..small("flagstone", 1) },
        BenchConfig { fill: 1.5, ..small("flagstone", 1) },
        BenchConfig { device: BenchDevice::Image("absent".into()), ..small("flagstone", 1_001) },
    ] {
        assert!(matches!(run_all(&config, &mut |_| ()), Err(BenchError::Config { .. })));
    }
}

/// Goal: threads on an image and on a file end with equal sums too.
#[test]
fn threaded_runs_end_with_equal_sums() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_path_buf();
    let file = Profile::named("segment-file").expect("the profile exists");
    for (device, profile) in
        [(BenchDevice::Image(path.clone()), None), (BenchDevice::File(path.clone()), Some(file))]
    {
        let config = small("flagstone", 2);
        let profile = profile.unwrap_or_else(|| config.profile.clone());
        let run = bench(&BenchConfig { device, profile, txns: 300, ..config });
        assert_eq!(run.commits, 300);
    }
}

/// A small TPC-C run from an image.
fn small_tpcc(presets: &[&str], dialect: tpcc::Dialect) -> BenchConfig {
    let profile = Profile::named("slc-2k").expect("the profile exists");
    let options =
        presets.iter().map(|name| crate::preset::options(name).expect("the preset exists"));
    let workload = WorkloadKind::Tpcc {
        dialect,
        delivery: tpcc::DeliveryUnit::default(),
        cardinality: tpcc::Cardinality::SMALL,
    };
    BenchConfig {
        workload,
        clients: 8,
        txns: 1_000,
        memory: MemoryBudget::Share(0.25),
        fill: 0.15,
        warmup: Warmup::Txns(200),
        ..BenchConfig::tpcc(profile, options.collect())
    }
}

/// Goal: simulated TPC-C runs end with all conditions, after a restart too, and report the classes
/// apart. Method: small runs of several presets; the conditions are checked within.
#[test]
fn tpcc_runs_end_with_all_conditions() {
    for dialect in tpcc::Dialect::ALL {
        // Long enough that a failing New-Order is as good as certain: 13 are expected.
        let presets = ["flagstone", "traditional", "otf-group"];
        let config = BenchConfig { txns: 3_000, ..small_tpcc(&presets, dialect) };
        let runs = run_all(&config, &mut |_| ()).expect("the runs succeed").runs;
        for run in &runs {
            let commits: u64 = run.by_class.values().map(|class| class.commits).sum();
            assert_eq!(commits, run.commits);
            let new_order = run.by_class["new-order"];
            let share = new_order.commits as f64 / commits as f64;
            assert!((share - 0.45).abs() < 0.06, "{}: {share}", run.config.preset);
            assert!(new_order.latency_us.p50 > 0.0);
        }
        let failed: u64 = runs.iter().map(|run| run.by_class["new-order"].aborts).sum();
        assert!(failed > 0, "one New-Order in a hundred must fail");
    }
}

/// Small runs of TATP and of LinkBench, on a chip that carries flags.
fn small_others(clients: u32, abort_ratio: f64) -> [BenchConfig; 2] {
    let profile = Profile::named("flagcommit-slc").expect("the profile exists");
    let bounds = linkbench::Bounds::SMALL;
    let base = BenchConfig {
        clients,
        abort_ratio,
        txns: 600,
        memory: MemoryBudget::Bytes(1 << 20),
        fill: 0.5,
        warmup: Warmup::Txns(100),
        ..BenchConfig::tatp(tatp::Dialect::Spec, profile, Vec::new())
    };
    let workload = WorkloadKind::Linkbench { dialect: linkbench::Dialect::Spec, bounds };
    let tatp = BenchConfig { scale: 5_000, ..base.clone() };
    [tatp, BenchConfig { workload, scale: 4_000, ..base }]
}

/// Goal: TATP and LinkBench run on every engine, and end with every row explained after a restart.
/// Method: small runs of a preset of each kind, with aborts and without; checked within.
#[test]
fn tatp_and_linkbench_run_on_every_engine() {
    let presets = ["flagstone", "traditional", "otf-group", "berkeley-original", "cfc", "bpcc"];
    for (preset, abort_ratio) in presets.into_iter().zip([0.0, 0.05].into_iter().cycle()) {
        for config in small_others(4, abort_ratio) {
            let options = crate::preset::options(preset).expect("the preset exists");
            let run = super::run(&config, &options, &mut |_| ());
            let run = run.unwrap_or_else(|error| panic!("{preset} {:?}: {error}", config.workload));
            let commits: u64 = run.by_class.values().map(|class| class.commits).sum();
            assert_eq!((commits, run.commits), (600, 600), "{preset}");
        }
    }
}

#[test]
fn tatp_and_linkbench_run_on_the_engine_of_shared_pages() {
    for config in small_others(4, 0.0) {
        let config = shared_pages(config);
        let options = config.options[0].clone();
        let run = super::run(&config, &options, &mut |_| ());
        let run = run.unwrap_or_else(|error| panic!("{:?}: {error}", config.workload));
        assert_eq!(run.commits, 600);
    }
}

#[test]
fn tatp_and_linkbench_run_with_threads_on_files() {
    let directory = tempfile::tempdir().expect("a directory");
    for config in small_others(3, 0.0) {
        let device = BenchDevice::File(directory.path().into());
        let profile = Profile::named("segment-file").expect("the profile exists");
        let options = vec![Options::default()];
        let run = bench(&BenchConfig { device, profile, options, ..config });
        assert_eq!(run.commits, 600);
    }
}

/// Goal: YCSB runs on every engine, and ends with every field explained after a restart. Method: small
/// runs of all six workloads, checked within.
#[test]
fn ycsb_runs_on_every_engine() {
    let profile = Profile::named("flagcommit-slc").expect("the profile exists");
    let presets = ["flagstone", "traditional", "otf-group", "cfc", "bpcc", "berkeley-original"];
    for (preset, dialect) in presets.into_iter().zip(ycsb::Dialect::ALL) {
        let config = BenchConfig {
            scale: 2_000,
            clients: 4,
            abort_ratio: if preset == "cfc" { 0.05 } else { 0.0 },
            txns: 600,
            memory: MemoryBudget::Bytes(1 << 20),
            fill: 0.5,
            warmup: Warmup::Txns(100),
            ..BenchConfig::ycsb(dialect, profile.clone(), Vec::new())
        };
        let options = crate::preset::options(preset).expect("the preset exists");
        let options = options.with_parts(4);
        let run = super::run(&config, &options, &mut |_| ());
        let run = run.unwrap_or_else(|error| panic!("{preset} {dialect}: {error}"));
        assert_eq!(run.commits, 600, "{preset} {dialect}");
        let few = options.with_parts(1);
        let refused = super::run(&config, &few, &mut |_| ());
        assert!(matches!(refused, Err(BenchError::Config { .. })), "{preset} {dialect}");
    }
}

/// Goal: a workload that never overwrites its chip comes to an end. Method: reads alone, and inserts
/// alone, with the warm-up that would wait for overwrites.
#[test]
fn a_workload_that_overwrites_nothing_warms_up_and_ends() {
    let profile = Profile::named("otf-ssd").expect("the profile exists");
    for dialect in [ycsb::Dialect::C, ycsb::Dialect::D] {
        let (scale, txns, memory) = (2_000, 200, MemoryBudget::Bytes(1 << 20));
        let base = BenchConfig::ycsb(dialect, profile.clone(), Vec::new());
        let config = BenchConfig { scale, txns, memory, ..base };
        let run = super::run(&config, &Options::default(), &mut |_| ()).expect("it ends");
        assert_eq!(run.commits, txns, "{dialect}");
    }
}

/// Goal: a transaction that only read durable rows waits for no flush. Method: one client, so that
/// no other client's flush wakes it.
#[test]
fn a_lone_client_goes_on_after_reading() {
    let config = BenchConfig { clients: 1, ..small_tpcc(&["flagstone"], tpcc::Dialect::Spec) };
    assert_eq!(bench(&config).commits, config.txns);
}

#[test]
fn a_tpcc_run_is_the_same_whoever_loaded_its_image() {
    let config = small_tpcc(&["flagstone", "otf-immediate"], tpcc::Dialect::Spec);
    let mut runs = run_all(&config, &mut |_| ()).expect("the runs succeed").runs;
    let alone = BenchConfig { options: vec![config.options[1].clone()], ..config };
    let (mut one, two) = (bench(&alone), runs.remove(1));
    (one.wall_s, one.cpu_s) = (two.wall_s, two.cpu_s);
    assert_eq!(one, two);
    assert_ne!(one.config.observed.trace_hash, 0);
}

/// Goal: a share of the transactions aborts where it would commit. Method: a tenth of many; the
/// sums, checked within, show that none of their changes stays.
#[test]
fn a_share_of_the_transactions_is_made_to_abort() {
    for preset in ["flagstone", "berkeley-original"] {
        let run = bench(&BenchConfig { abort_ratio: 0.1, ..small(preset, 4) });
        let share = run.aborts as f64 / (run.aborts + run.commits) as f64;
        assert!((0.08..0.12).contains(&share), "{preset}: {share}");
    }
}

/// Goal: a window without a warm-up does not hold the time of the load. Method: the first
/// transactions of a fresh database take about as long as the next ones do, loaded here and from an
/// image.
#[test]
fn the_time_of_the_load_is_no_part_of_the_window() {
    for start in [Start::Load, Start::Image(std::sync::Arc::default())] {
        let elapsed_s = |txns| {
            let start = start.clone();
            let config = BenchConfig { txns, start, warmup: Warmup::None, ..small("flagstone", 1) };
            bench(&config).elapsed_s
        };
        let (few, more) = (elapsed_s(200), elapsed_s(400));
        assert!(few < 0.7 * more, "200 transactions take {few} s, 400 {more} s");
    }
}
