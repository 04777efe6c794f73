//! Transactions that patch a few bytes of many rows, and the cost of each to the chip.
//!
//! ```sh
//! cargo run --release -p flagstone-lab --example patches -- PROFILE ROWS PATCHED WHERE SEED
//! ```
//!
//! ROWS rows of 100 bytes come in random order; then transactions patch 8 bytes of PATCHED rows
//! each, which lie `dense`, one behind the other, or `scattered`. As many are counted as were made
//! before, a row patched eight times in each half. Prints one line: programs by cause, appends,
//! erases and device time of a transaction.

use std::error::Error;

use flagstone_engine::Options;
use flagstone_engine::blocking::Database;
use flagstone_nand::{EccNand, Nand, Profile, SimNand};
use flagstone_space::Cause;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

const VALUE_SIZE: usize = 100;
const PATCH_SIZE: usize = 8;

/// Rows patched in each half of the run, for each row of the table.
const ROUNDS: u32 = 8;

/// Share of a leaf that rows take where they came in random order.
const LEAF_USE: f64 = 0.66;

/// Share of the data region that is live.
const FILL: f64 = 0.75;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [profile, rows, patched, place, seed] = &words[..] else {
        return Err("wanted: PROFILE ROWS PATCHED dense|scattered SEED".into());
    };
    let (rows, patched): (u32, u32) = (rows.parse()?, patched.parse()?);
    let (is_dense, seed): (bool, u64) = (place == "dense", seed.parse()?);
    let database = database(&Profile::named(profile)?, rows, seed)?;
    let table = database.table("t")?;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut below = move |bound: u32| (random.next_u64() % u64::from(bound)) as u32;
    let mut order: Vec<u32> = (0..rows).collect();
    for index in (1..rows).rev() {
        order.swap(index as usize, below(index + 1) as usize);
    }
    let mut bytes = Pcg64Mcg::seed_from_u64(!seed);
    for chunk in order.chunks(200) {
        let mut transaction = database.begin();
        for row in chunk {
            let mut value = [0; VALUE_SIZE];
            bytes.fill_bytes(&mut value);
            transaction.put(table, &u64::from(*row).to_be_bytes(), &value)?;
        }
        transaction.commit()?;
    }
    let count = rows * ROUNDS / patched;
    let mut half = || -> Result<Counts, Box<dyn Error>> {
        for _ in 0..count {
            let mut transaction = database.begin();
            let first = below(rows - patched + 1);
            for index in 0..patched {
                let row = if is_dense { first + index } else { below(rows) };
                let mut patch = [0; PATCH_SIZE];
                bytes.fill_bytes(&mut patch);
                transaction.patch(table, &u64::from(row).to_be_bytes(), 0, &patch)?;
            }
            transaction.commit()?;
        }
        Ok(counts(&database))
    };
    let (before, after) = (half()?, half()?);
    let shares = before.iter().zip(&after).map(|((name, before), (_, after))| {
        format!("{name} {:.3}", (after - before) / f64::from(count))
    });
    println!("{place} {patched} seed {seed}: {}", shares.collect::<Vec<_>>().join(", "));
    Ok(())
}

/// Memory is a tenth of the rows; they fill their share of the chip.
fn database(
    profile: &Profile,
    rows: u32,
    seed: u64,
) -> Result<Database<EccNand<SimNand>>, Box<dyn Error>> {
    let row_size = (8 + VALUE_SIZE) as f64;
    let geometry = profile.geometry;
    let memory = (f64::from(rows) * row_size / 10.0) as usize;
    let log_pages = 2 * memory as u32 / geometry.page_size;
    let options = Options::default().with_memory(memory).with_log_pages(log_pages).with_seed(seed);
    let options = options.with_techniques(|techniques| techniques.uncommitted_share = 0.5);
    let pages = f64::from(rows) * row_size / (f64::from(geometry.page_size) * LEAF_USE) / FILL;
    let blocks = (pages as u32 + log_pages) / geometry.pages_per_block + 14;
    let chip = EccNand::simulated(&profile.clone().with_block_count(blocks)?, seed)?;
    Ok(Database::create_on(chip, &options)?)
}

type Counts = Vec<(String, f64)>;

fn counts(database: &Database<EccNand<SimNand>>) -> Counts {
    let claimed = database.stats().claimed_pages;
    let space = database.runtime().space();
    let stats = space.stats();
    let causes = Cause::ALL.iter().zip(stats.programs_by_cause);
    let mut counts: Counts = causes
        .map(|(cause, programs)| (format!("{cause:?}").to_lowercase(), programs as f64))
        .collect();
    counts.push(("claimed".into(), claimed as f64));
    counts.push(("erases".into(), space.device().counters().block_erases as f64));
    counts.push(("ms".into(), space.end_ns() as f64 / 1e6));
    counts
}
