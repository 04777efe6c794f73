//! TATP across power cuts, on the engine and the event loop.

use super::*;
use crate::workload::cuts::{Cuts, verify_cuts};

/// Goal: wherever the power fails, inputs explain every row after the restart, and no acknowledged
/// commit is lost. Method: cuts spread over a run on a chip of 8 MiB.
#[test]
fn inputs_explain_every_row_after_power_cuts() {
    let tatp = Tatp::new(Dialect::Spec, 4_000, 1);
    verify_cuts(&tatp, &Cuts { blocks: 64, memory: 160 << 10, operations: 2_000 });
}
