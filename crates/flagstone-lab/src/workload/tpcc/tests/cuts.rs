//! TPC-C across power cuts, on the engine and the event loop.

use super::*;
use crate::workload::cuts::{Cuts, verify_cuts};

/// Goal: wherever the power fails, all conditions hold after the restart, and no acknowledged
/// commit is lost. Method: cuts spread over a run on a chip of 8 MiB.
#[test]
fn all_conditions_hold_after_power_cuts() {
    let tpcc = Tpcc::new(small(Dialect::Spec, 1));
    verify_cuts(&tpcc, &Cuts { blocks: 64, memory: 160 << 10, operations: 3_000 });
}
