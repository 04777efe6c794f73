//! The harness on TPC-B: rows, files and their bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use flagstone_engine::Options;
use flagstone_nand::Profile;

use super::cell::{Outcome, Outcomes};
use super::figure::{Axis, Drawing, Panel, Series};
use super::rule::{Claim, Rank, Verdict, change};
use super::*;
use crate::bench::{BenchConfig, MemoryBudget, Warmup};

/// TPC-B in a corner of a chip, both presets, two memory sizes.
fn experiment() -> Experiment {
    let cells = |size: &'static str, memory: usize| {
        ["flagstone", "traditional"].map(|preset| {
            let options = Options::preset(preset).unwrap();
            let mut config = BenchConfig::tpcb(Profile::named("slc-2k").unwrap(), Vec::new());
            config.memory = MemoryBudget::Bytes(memory);
            config.txns = 300;
            config.warmup = Warmup::None;
            Cell::bench(format!("{preset} {size}"), config, options)
        })
    };
    let programs = cells("1 MiB", 1 << 20).into_iter().chain(cells("2 MiB", 2 << 20)).collect();
    let times = cells("1 MiB", 1 << 20).into_iter().collect();
    Experiment {
        paper: "a-paper",
        title: "A paper & its <claims>",
        setting: vec![String::from("TPC-B, one branch")],
        figures: vec![
            Figure::new("1-programs", "Programs", programs, draw_programs),
            Figure::new("2-time", "Time", times, draw_time),
        ],
    }
}

fn draw_programs(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let sizes = ["1 MiB", "2 MiB"];
    let mut series = Vec::new();
    for preset in ["flagstone", "traditional"] {
        let value = |size| outcomes.value(&format!("{preset} {size}"), "page_programs");
        let values = sizes.map(value).into_iter().collect::<Result<Vec<_>, _>>()?;
        series.push(Series { name: preset.to_owned(), values });
    }
    let gains: Vec<f64> = series[1]
        .values
        .iter()
        .zip(&series[0].values)
        .map(|(old, new)| change(*old, *new))
        .collect();
    drawing.claim("fewer programs", &Claim::ChangeBetween(-0.05, -0.9), &gains);
    drawing.claim("no fewer programs", &Claim::NoChange, &gains);
    let axis = Axis::Names(sizes.map(str::to_owned).to_vec());
    let (title, y, x) = ("Programs".into(), "page programs".into(), "memory".into());
    drawing.panel(Panel { title, y, x, axis, series });
    Ok(drawing)
}

fn draw_time(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let time = |preset: &str| outcomes.value(&format!("{preset} 1 MiB"), "elapsed_s");
    let values = [("flagstone", time("flagstone")?), ("traditional", time("traditional")?)];
    drawing.rank("who is faster", Rank::Lowest, "flagstone", &values);
    let series = values.map(|(name, value)| Series { name: name.into(), values: vec![value] });
    let axis = Axis::Numbers(vec![1.0]);
    let (title, y, x) = ("Time".into(), "seconds".into(), "memory, MiB".into());
    drawing.panel(Panel { title, y, x, axis, series: series.to_vec() });
    Ok(drawing)
}

fn request(threads: usize, figure: Option<&str>) -> Request {
    Request {
        paper: String::from("a-paper"),
        figure: figure.map(str::to_owned),
        effort: Effort::Quick,
        seed: 1,
        threads,
        resume: None,
        draw_only: false,
    }
}

fn files(threads: usize) -> (BTreeMap<String, Vec<u8>>, Reproduction) {
    let reproduction = run(experiment(), &request(threads, None), &|_, _| {}).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let page = write(&reproduction, dir.path()).unwrap();
    assert_eq!(page, dir.path().join("a-paper/index.html"));
    let read = |path: &Path| {
        (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap())
    };
    let entries = fs::read_dir(dir.path().join("a-paper")).unwrap();
    (entries.map(|entry| read(&entry.unwrap().path())).collect(), reproduction)
}

/// Goal: X1 and X2. Method: the same experiment on one thread and on three; every file is equal.
#[test]
fn equal_seeds_write_equal_bytes_on_any_number_of_threads() {
    let (one, reproduction) = files(1);
    let (three, _) = files(3);
    let names: Vec<&str> = one.keys().map(String::as_str).collect();
    let expected = ["csv", "json", "svg"];
    let expected =
        ["1-programs", "2-time"].map(|figure| expected.map(|end| format!("{figure}.{end}")));
    let mut expected: Vec<String> = expected.into_iter().flatten().collect();
    expected.push(String::from("index.html"));
    assert_eq!(names, expected);
    assert!(one == three, "files differ");
    let page = String::from_utf8(one["index.html"].clone()).unwrap();
    assert!(page.contains("A paper &amp; its &lt;claims&gt;"));
    assert!(
        !page.contains("http://")
            || page.matches("http://").count()
                == page.matches("http://www.w3.org/2000/svg").count()
    );
    let rows = reproduction.summary().rows;
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[1].judgement.verdict, Verdict::Differs);
}

#[test]
fn rows_have_the_agreed_form() {
    let reproduction = run(experiment(), &request(2, Some("2-time")), &|_, _| {}).unwrap();
    let summary = serde_json::to_value(reproduction.summary()).unwrap();
    assert_eq!(summary["paper"], "a-paper");
    let row = summary["rows"][0].as_object().unwrap();
    let keys: Vec<&str> = row.keys().map(String::as_str).collect();
    assert_eq!(keys, ["figure", "item", "ours", "paper", "verdict", "why"]);
    assert!(row["why"].as_str().unwrap().contains("not steady"), "no warm-up, so not steady");
}

/// Goal: C1. Method: count the runs of a cell that two figures share.
#[test]
fn a_cell_that_two_figures_need_runs_once() {
    let count = Arc::new(AtomicU32::new(0));
    let cell = || {
        let count = Arc::clone(&count);
        Cell::new("shared", move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Outcome::default().with("x", 1.0))
        })
    };
    let figure = |id| Figure::new(id, id, vec![cell()], |_| Ok(Drawing::default()));
    let experiment = Experiment {
        paper: "a-paper",
        title: "A paper",
        setting: Vec::new(),
        figures: vec![figure("one"), figure("two")],
    };
    run(experiment, &request(2, None), &|_, _| {}).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

/// Goal: a reproduction that ended early goes on. Method: of two runs the second fails at first.
#[test]
fn runs_that_ended_are_not_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let count = Arc::new(AtomicU32::new(0));
    let attempt = |seed: u64, is_whole: bool| {
        let count = Arc::clone(&count);
        let first = Cell::new("a first", move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Outcome::default().with("x", 0.1 + 0.2))
        });
        let second = Cell::new("a second", move |_| match is_whole {
            true => Ok(Outcome::default().with("x", 2.0)),
            false => Err(BenchError::Engine(flagstone_engine::EngineError::Full)),
        });
        let claims = |outcomes: &Outcomes| {
            let mut drawing = Drawing::default();
            let gain = change(outcomes.value("a second", "x")?, outcomes.value("a first", "x")?);
            drawing.claim("a claim", &Claim::Change(0.1), &[gain]);
            Ok(drawing)
        };
        let experiment = Experiment {
            paper: "a-paper",
            title: "A paper",
            setting: Vec::new(),
            figures: vec![Figure::new("one", "One", vec![first, second], claims)],
        };
        let resume = Some(dir.path().to_owned());
        run(experiment, &Request { seed, resume, ..request(1, None) }, &|_, _| {})
    };
    let runs = || count.load(Ordering::Relaxed);
    assert!(
        matches!(attempt(1, false), Err(ReproduceError::Run { cell, .. }) if cell == "a second")
    );
    // The entry that was being written when the process ended is missing.
    let journal = dir.path().join("a-paper/runs.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    fs::write(&journal, text + "{\"effort\":\"quick\",\"seed\":1,\"runs\":{\"a sec").unwrap();
    let resumed = attempt(1, true).unwrap();
    assert_eq!(runs(), 1);
    write(&resumed, dir.path()).unwrap();
    fs::remove_file(&journal).unwrap();
    let again = attempt(1, false).unwrap();
    assert_eq!((runs(), &again.figures[0].runs), (1, &resumed.figures[0].runs));
    attempt(2, true).unwrap();
    assert_eq!(runs(), 2, "another seed is another run");
}

/// Goal: figures with all runs on file are drawn without a run, others are left out.
#[test]
fn figures_are_drawn_from_the_runs_on_file_alone() {
    let dir = tempfile::tempdir().unwrap();
    let resume = || Some(dir.path().to_owned());
    let one = Request { resume: resume(), ..request(2, Some("2-time")) };
    let made = run(experiment(), &one, &|_, _| {}).unwrap();
    write(&made, dir.path()).unwrap();
    let drawn = Request { resume: resume(), draw_only: true, ..request(1, None) };
    let drawn = run(experiment(), &drawn, &|_, _| {}).unwrap();
    let figures: Vec<&str> = drawn.figures.iter().map(|figure| figure.figure).collect();
    assert_eq!(figures, ["2-time"]);
    assert_eq!(drawn.figures[0].rows, made.figures[0].rows);
    // A page without figures is not drawn over one that has some.
    let other = Request { resume: resume(), draw_only: true, seed: 2, ..request(1, None) };
    let error = run(experiment(), &other, &|_, _| {}).unwrap_err();
    assert!(matches!(error, ReproduceError::NothingOnFile("a-paper")));
}

#[test]
fn a_figure_without_charts_has_no_file_of_them() {
    let claims = |_: &Outcomes| {
        let mut drawing = Drawing::default();
        drawing.claim("a claim", &Claim::NoChange, &[]);
        Ok(drawing)
    };
    let experiment = Experiment {
        paper: "a-paper",
        title: "A paper",
        setting: Vec::new(),
        figures: vec![Figure::new("claims", "Claims", Vec::new(), claims)],
    };
    let reproduction = run(experiment, &request(1, None), &|_, _| {}).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let page = fs::read_to_string(write(&reproduction, dir.path()).unwrap()).unwrap();
    assert!(page.contains("a claim") && !page.contains("<figure>"));
    let files = fs::read_dir(dir.path().join("a-paper")).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["claims.json", "index.html"]);
}

#[test]
fn what_does_not_exist_is_named() {
    let unknown = Request { paper: String::from("flag-comit"), ..request(1, None) };
    let error = reproduce(&unknown, &|_, _| {}).unwrap_err();
    assert_eq!(error.to_string(), "there is no paper `flag-comit`; did you mean `flag-commit`?");
    let error = run(experiment(), &request(1, Some("3")), &|_, _| {}).unwrap_err();
    assert_eq!(error.to_string(), "`a-paper` has no figure `3`; it has 1-programs, 2-time");
    let missing = Outcomes::default().value("a cell", "a value").unwrap_err();
    assert_eq!(missing.to_string(), "no run reports `a value` of `a cell`");
}
