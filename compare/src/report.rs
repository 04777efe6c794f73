//! One table a workload.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use anyhow::Result;

use crate::Measured;
use crate::workload::Run;

/// Speeds are shares of this engine's, or of the first one's.
const REFERENCE: &str = "berkeley";

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

/// Prints a table in Markdown.
pub fn print(run: &Run, measured: &[Measured]) {
    let reference = measured.iter().find(|one| one.engine == REFERENCE).or(measured.first());
    let Some(reference) = reference else { return };
    let reference_speed = speed(reference, run.is_written);
    println!("\n### `{}`: {}\n", run.name, run.what);
    println!(
        "| engine | bytes | with close | flushes | per second | ratio | processor µs | memory MiB \
         | reopening ms | file / data | amplification |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for one in measured {
        let count = if run.is_written { one.commits } else { one.reads };
        let per = |total: f64| total / count.max(1) as f64;
        let speed = speed(one, run.is_written);
        println!(
            "| {} | {:.0} | {:.0} | {:.3} | {:.0} | {:.2} | {:.2} | {:.0} | {:.0} | {:.2} | {:.2} |",
            one.engine,
            per(one.bytes as f64),
            per((one.bytes + one.close_bytes) as f64),
            per(one.flushes as f64),
            speed,
            speed / reference_speed,
            per(one.processor_s * 1e6),
            one.memory as f64 / f64::from(1 << 20),
            one.reopen_ms.unwrap_or_default(),
            one.file_bytes as f64 / one.data_bytes as f64,
            one.bytes as f64 / one.data_bytes as f64,
        );
    }
}
