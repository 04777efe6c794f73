//! LinkBench across power cuts, on the engine and the event loop.

use super::*;
use crate::workload::cuts::{Cuts, verify_cuts};

/// Goal: wherever the power fails, counts, index and data agree after the restart, inputs explain
/// every row, and no acknowledged commit is lost. Method: cuts spread over a run on a chip of 8 MiB.
#[test]
fn inputs_explain_every_row_after_power_cuts() {
    let setting = Setting { bounds: Bounds::SMALL, ..Setting::new(Dialect::Spec, 3_000, 4, 1) };
    let linkbench = Linkbench::new(setting);
    verify_cuts(&linkbench, &Cuts { blocks: 64, memory: 160 << 10, operations: 3_000 });
}
