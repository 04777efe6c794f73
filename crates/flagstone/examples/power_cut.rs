//! A simulated NAND chip loses its power; every durable commit is there afterwards.
//!
//! `cargo run --release -p flagstone --example power_cut`

use std::error::Error;

use flagstone::device::{Nand, Profile, SimNand};
use flagstone::{Database, Durability, Options};

fn main() -> Result<(), Box<dyn Error>> {
    let profile = Profile::named("slc-2k")?.with_block_count(64)?;
    let db = Database::create_on(SimNand::new(&profile, 1), &Options::default())?;
    let readings = db.table("readings")?;

    // Ninety commits return before they are durable; each of the last ten returns only when it is durable.
    // The log is written in order, so by then all hundred are.
    for second in 0_u64..100 {
        let durability = if second < 90 { Durability::Deferred } else { Durability::Immediate };
        let mut txn = db.begin();
        txn.put(readings, &second.to_be_bytes(), &(second * second).to_le_bytes())?;
        txn.commit_with(durability)?;
    }

    // No flush, no close: as if the plug were pulled.
    let chip = db.into_device().ok_or("the database is still shared")?;
    let counted = chip.counters();
    println!(
        "programs {}, erases {}",
        counted.page_programs + counted.partial_programs,
        counted.block_erases
    );

    let db = Database::open_on(chip, &Options::default())?;
    let readings = db.table("readings")?;
    println!("rows after the cut: {}", db.snapshot()?.len(readings)?);
    Ok(())
}
