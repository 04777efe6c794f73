//! One table a workload.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use anyhow::Result;

use crate::Measured;
use crate::workload::Run;

/// Speeds are shares of this engine's, or of the first one's, and of the fastest but the subject.
const REFERENCE: &str = "berkeley";
const SUBJECT: &str = "flagstone";

/// Appends a line of JSON a measurement.
pub fn append(path: &Path, measured: &[Measured]) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    for one in measured {
        writeln!(file, "{}", serde_json::to_string(one)?)?;
    }
    Ok(())
}

fn speed(one: &Measured, is_written: bool) -> f64 {
    let count = if is_written { one.commits } else { one.reads };
    count as f64 / one.seconds
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or("–".into(), |ratio| format!("{ratio:.2}"))
}

/// A number with three digits that count.
fn digits(number: f64) -> String {
    let before_point = number.max(0.1).log10().floor() as i32;
    format!("{number:.0$}", (2 - before_point).clamp(0, 3) as usize)
}

/// Prints a table in Markdown.
pub fn print(run: &Run, measured: &[Measured]) {
    let reference = measured.iter().find(|one| one.engine == REFERENCE).or(measured.first());
    let Some(reference) = reference else { return };
    let reference_speed = speed(reference, run.is_written);
    let peers = measured.iter().filter(|one| one.engine != SUBJECT);
    let best = peers.map(|one| speed(one, run.is_written)).reduce(f64::max);
    println!("\n### `{}`: {}\n", run.name, run.title());
    println!(
        "| engine | bytes | with close | flushes | per second | ratio | of best peer | drift | p50 ms \
         | p99 ms | p99.9 ms | longest ms | processor µs | memory MiB | reopening ms | file / data \
         | amplification |"
    );
    println!("|{}", " --- |".repeat(17));
    for one in measured {
        let count = if run.is_written { one.commits } else { one.reads };
        let per = |total: f64| total / count.max(1) as f64;
        let speed = speed(one, run.is_written);
        println!(
            "| {} | {:.0} | {:.0} | {:.3} | {:.0} | {:.2} | {} | {} | {} | {} | {} | {} | {:.2} | {:.0} \
             | {:.0} | {:.2} | {:.2} |",
            one.engine,
            per(one.bytes as f64),
            per((one.bytes + one.close_bytes) as f64),
            per(one.flushes as f64),
            speed,
            speed / reference_speed,
            ratio(best.map(|best| speed / best)),
            ratio(one.drift),
            digits(one.latency_ms.p50),
            digits(one.latency_ms.p99),
            digits(one.latency_ms.p999),
            digits(one.latency_ms.longest),
            per(one.processor_s * 1e6),
            one.memory as f64 / f64::from(1 << 20),
            one.reopen_ms.unwrap_or_default(),
            one.file_bytes as f64 / one.data_bytes as f64,
            one.bytes as f64 / one.changed_bytes as f64,
        );
    }
}
