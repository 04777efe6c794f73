//! Writes seeds for the fuzz target `image`: chips that hold a database, of every kind.
//!
//! ```sh
//! cargo run --release -p flagstone-lab --example fuzz_seeds -- fuzz/corpus/image
//! ```

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use flagstone_lab::crash::fuzz::image_seeds;
use flagstone_lab::crash::{Flagstone, RunnerRig};
use flagstone_nand::SimNand;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("needs the directory of the corpus")?;
    let directory = PathBuf::from(directory);
    fs::create_dir_all(&directory)?;
    for (name, bytes) in image_seeds::<Flagstone<RunnerRig<SimNand>>>()? {
        fs::write(directory.join(name), bytes)?;
    }
    Ok(())
}
