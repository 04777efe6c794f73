//! Figure 6: one leaf of ten entries, and thirty inserted into it.
//!
//! Owns the smallest run that shows a multi-split. Here an insert that does not fit splits its leaf
//! in the engine with whole pages (`traditional`), which writes both halves; separators stand in
//! the log, and the parent is written once, by the checkpoint at the end.

use flagstone_engine::EngineError;
use flagstone_engine::blocking::Database;
use flagstone_nand::{Profile, SimNand};

use super::super::super::cell::{Cell, Outcome};
use super::super::super::figure::{Drawing, Figure};
use super::super::super::rule::Claim;
use crate::bench::BenchError;
use crate::preset;

const IMMEDIATE: &str = "traditional";
const LAZY: &str = "ls-lru";
/// Ten entries with values of so many bytes fill a page of 512, and twelve do not fit.
const VALUE_SIZE: usize = 36;
const MEMORY: usize = 32 << 10;
/// Leaves around the one that splits.
const ROWS: u32 = 40;
const STEP: u32 = 1000;
const INSERTS: u32 = 30;
/// Data pages written.
const WRITES: &str = "data_pages";
/// Index of the counter of data programs among the counters by cause.
const DATA: usize = 1;

/// The figure.
pub(super) fn figure() -> Figure {
    let cells = [IMMEDIATE, LAZY]
        .map(|preset| Cell::new(format!("multi-split {preset}"), move |_| run(preset)));
    Figure::new("6-multi-split", "Figure 6: multi-split", cells.into(), |outcomes| {
        let mut drawing = Drawing::default();
        for (item, preset, claimed) in
            [("immediate splits", IMMEDIATE, 18.0), ("one multi-split", LAZY, 5.0)]
        {
            let writes = outcomes.value(&format!("multi-split {preset}"), WRITES)?;
            drawing.claim(item, &Claim::Exactly(claimed), &[writes]);
        }
        Ok(drawing)
    })
}

fn run(preset: &str) -> Result<Outcome, BenchError> {
    let options = preset::options(preset).map_err(flagstone_engine::OpenError::from)?;
    let profile = Profile::named("ls-lru-nand")?.with_block_count(64)?;
    let database = Database::create_on(SimNand::new(&profile, 1), &options.with_memory(MEMORY))?;
    let table = database.table("index")?;
    let put = |number: u32| -> Result<(), EngineError> {
        let mut transaction = database.begin();
        transaction.put(table, &number.to_be_bytes(), &[7; VALUE_SIZE])?;
        transaction.commit().map(drop)
    };
    (0..ROWS).try_for_each(|number| put(number * STEP))?;
    database.merge()?;
    let written = || database.runtime().space().stats().programs_by_cause[DATA];
    let before = written();
    let middle = ROWS / 2 * STEP + 1;
    (0..INSERTS).try_for_each(|step| put(middle + step * 13 % INSERTS))?;
    database.merge()?;
    Ok(Outcome::default().with(WRITES, (written() - before) as f64))
}
