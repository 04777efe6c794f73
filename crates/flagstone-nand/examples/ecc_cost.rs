//! What ECC of our own costs the processor: reads and programs of 2 KiB pages on a simulated chip.
//!
//! ```sh
//! cargo run --release -p flagstone-nand --example ecc_cost
//! ```

use std::time::Instant;

use flagstone_nand::{
    EccNand, Nand, NandError, PhysicalPage, Profile, ProgramPart, ReadPart, SimNand,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut profile = Profile::named("slc-2k")?.with_block_count(16)?;
    profile.geometry.spare_size = 128;
    println!("microseconds a page of 2 KiB, median; the first line is the simulated chip alone");
    println!("bits/512  program   read  read, one flip a code word  read, as many as are repaired");
    for strength in [0, 3, 4, 8] {
        let mut profile = profile.clone();
        if strength > 0 {
            profile = profile.with_own_ecc()?;
            profile.capabilities.code_word.strength = strength;
        }
        let chip = EccNand::simulated(&profile.checked()?, 1)?;
        let [program, clean, one, all] = measure(chip, strength)?;
        println!("{strength:>8}  {program:>7.1}  {clean:>5.1}  {one:>26.1}  {all:>29.1}");
    }
    Ok(())
}

/// A program, and a read without flips, with one and with `strength` in each code word.
fn measure(mut chip: EccNand<SimNand>, strength: u32) -> Result<[f64; 4], NandError> {
    let geometry = chip.geometry();
    let pages: Vec<_> =
        (0..geometry.page_count()).filter_map(|page| geometry.page_from_number(page)).collect();
    let data: Vec<u8> = (0..geometry.page_size).map(|byte| ((byte * 31) >> 3) as u8).collect();
    let program = median(&pages, |page| {
        let part = ProgramPart { data_offset: 0, data: &data, spare_offset: 0, spare: &[] };
        chip.program(page, part).map(drop)
    })?;
    let mut reads = [0.0; 3];
    // Flips add up. Without ECC of ours there is nothing to repair.
    for (more, read) in [0, strength.min(1), strength.saturating_sub(1)].into_iter().zip(&mut reads)
    {
        for page in &pages {
            (0..4).for_each(|word| chip.device_mut().flip_bits(*page, word, more));
        }
        let mut data = vec![0; geometry.page_size as usize];
        *read = median(&pages, |page| {
            let part =
                ReadPart { data_offset: 0, data: &mut data, spare_offset: 0, spare: &mut [] };
            chip.read(page, part).map(drop)
        })?;
    }
    let [clean, one, all] = reads;
    Ok([program, clean, one, all])
}

/// Median microseconds of an operation over all pages.
fn median(
    pages: &[PhysicalPage],
    mut operate: impl FnMut(PhysicalPage) -> Result<(), NandError>,
) -> Result<f64, NandError> {
    let mut times = Vec::with_capacity(pages.len());
    for page in pages {
        let started = Instant::now();
        operate(*page)?;
        times.push(started.elapsed().as_nanos());
    }
    times.sort_unstable();
    Ok(times.get(times.len() / 2).copied().unwrap_or_default() as f64 / 1e3)
}
