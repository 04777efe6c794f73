//! Effect of an append on the pages beside it: on plain MLC, where the append is forced, and in the
//! modes that take appends.
//!
//! Section 3 of the paper: MLC is more susceptible to interference, pSLC as tolerant as SLC, and
//! odd-MLC appends to LSB pages alone. The simulated cells have rates that are assumed
//! (`flagstone-nand`, module `disturb`), so that the figure shows the consequence of these rates
//! for code words and their ECC, not the behaviour of a real chip. A plain MLC chip refuses such a
//! program; here it is made all the same.

use flagstone_nand::{
    BlockIndex, CellRole, Nand as _, NandError, PhysicalPage, Profile, ProgramPart, ReadPart,
    SimNand,
};

use super::super::super::ReproduceError;
use super::super::super::cell::{Cell, Outcome, Outcomes};
use super::super::super::figure::{Axis, Drawing, Figure, Panel, Series};
use super::super::super::rule::Rank;
use crate::bench::BenchError;

const MODES: [(&str, &str); 3] = [
    ("plain MLC", "openssd-jasmine-mlc"),
    ("pSLC", "openssd-jasmine-pslc"),
    ("odd-MLC", "openssd-jasmine-odd-mlc"),
];
/// Appends to one page, as many as modes with four programs a page take, and more.
const APPENDS: [u32; 6] = [1, 2, 3, 4, 6, 8];
/// Slots at the end of a page for them.
const SLOTS: u32 = 8;
/// Blocks that are tried: one page of each is appended to.
const BLOCKS: u32 = 64;

/// The figure.
pub(super) fn figure(seed: u64) -> Figure {
    let cells = MODES.iter().map(|(mode, profile)| {
        Cell::new(format!("disturb {mode}"), move |_| measure(profile, seed))
    });
    Figure::new("disturb", "What forced appends do to neighbours", cells.collect(), draw)
}

/// Neighbours of the pages that were appended to, after so many appends.
#[derive(Clone, Copy, Debug, Default)]
struct Neighbours {
    pages: u32,
    bit_errors: u64,
    code_words: u32,
    lost: u32,
}

fn measure(profile: &str, seed: u64) -> Result<Outcome, BenchError> {
    let profile = Profile::named(profile)?.with_block_count(BLOCKS)?;
    let mut chip = SimNand::new(&profile, seed);
    let mut outcome = Outcome::default();
    let targets = (0..BLOCKS).map(|block| fill(&mut chip, BlockIndex(block)));
    let targets = targets.collect::<Result<Vec<_>, _>>().map_err(device_failed)?;
    let mut done = 0;
    for count in APPENDS {
        for slot in done..count {
            for (target, _) in &targets {
                append(&mut chip, *target, slot).map_err(device_failed)?;
            }
        }
        done = count;
        let mut all = Neighbours::default();
        for (_, neighbours) in &targets {
            for page in neighbours {
                look(&mut chip, *page, &mut all).map_err(device_failed)?;
            }
        }
        let errors = all.bit_errors as f64 / f64::from(all.pages);
        let lost = f64::from(all.lost) / f64::from(all.code_words);
        outcome = outcome
            .with(&format!("bit_errors.{count}"), errors)
            .with(&format!("lost.{count}"), lost);
    }
    Ok(outcome)
}

fn device_failed(error: NandError) -> BenchError {
    BenchError::Replay(error.to_string())
}

fn word_size(chip: &SimNand) -> u32 {
    chip.capabilities().code_word.data_size
}

/// Fills a block but for the slots, and picks an LSB page in it: with its neighbours: the page that
/// shares its word line where there is one, and the pages of the word lines beside it.
fn fill(
    chip: &mut SimNand,
    block: BlockIndex,
) -> Result<(PhysicalPage, Vec<PhysicalPage>), NandError> {
    let geometry = chip.geometry();
    let body = vec![0x5A; (geometry.page_size - SLOTS * word_size(chip)) as usize];
    let pages = geometry.pages_per_block;
    let role = |index| chip.capabilities().cell_role(index, pages);
    let lsb: Vec<u32> =
        (0..pages).filter(|index| !matches!(role(*index), CellRole::Msb { .. })).collect();
    let middle = lsb.len() / 2;
    let line = |place: usize| {
        let partner = match role(lsb[place]) {
            CellRole::Lsb { partner } => Some(partner),
            CellRole::Alone | CellRole::Msb { .. } => None,
        };
        [Some(lsb[place]), partner]
    };
    let near = [line(middle - 1), line(middle), line(middle + 1)];
    let target = lsb[middle];
    let near: Vec<u32> =
        near.into_iter().flatten().flatten().filter(|index| *index != target).collect();
    for page in (0..pages).filter_map(|index| geometry.page(block, index)) {
        chip.program(page, part(0, &body))?;
    }
    let at = |index| geometry.page(block, index);
    let near = near.into_iter().filter_map(at).collect();
    Ok((at(target).ok_or(NandError::PowerOff)?, near))
}

const fn part(data_offset: u32, data: &[u8]) -> ProgramPart<'_> {
    ProgramPart { data_offset, data, spare_offset: 0, spare: &[] }
}

fn append(chip: &mut SimNand, page: PhysicalPage, slot: u32) -> Result<(), NandError> {
    let word_size = word_size(chip);
    let offset = chip.geometry().page_size - (SLOTS - slot) * word_size;
    chip.force_program(page, part(offset, &vec![0xA5; word_size as usize])).map(drop)
}

/// Counts bit errors before the ECC, and the code words that it gives up.
fn look(chip: &mut SimNand, page: PhysicalPage, all: &mut Neighbours) -> Result<(), NandError> {
    let word_size = word_size(chip);
    let body = chip.geometry().page_size - SLOTS * word_size;
    let mut data = vec![0; word_size as usize];
    all.pages += 1;
    all.bit_errors += u64::from(chip.bit_errors(page));
    for data_offset in (0..body).step_by(word_size as usize) {
        all.code_words += 1;
        let part = ReadPart { data_offset, data: &mut data, spare_offset: 0, spare: &mut [] };
        match chip.read(page, part) {
            Ok(_) => {}
            Err(NandError::Uncorrectable { .. }) => all.lost += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn draw(outcomes: &Outcomes) -> Result<Drawing, ReproduceError> {
    let mut drawing = Drawing::default();
    let last = APPENDS[APPENDS.len() - 1];
    for (title, y, name) in [
        ("Bit errors of a neighbour", "bits of a page of 16 KiB, before the ECC", "bit_errors"),
        ("Code words lost", "share of the neighbours' code words", "lost"),
    ] {
        let mut series = Vec::new();
        let mut at_last = Vec::new();
        for (mode, _) in MODES {
            let at = |count: &u32| {
                outcomes.value(&format!("disturb {mode}"), &format!("{name}.{count}"))
            };
            let values = APPENDS.iter().map(at).collect::<Result<Vec<_>, _>>()?;
            at_last.push((mode, at(&last)?));
            series.push(Series { name: mode.to_owned(), values });
        }
        let item = format!("{}, highest", title.to_lowercase());
        drawing.rank(item, Rank::Highest, "plain MLC", &at_last);
        drawing.panel(Panel {
            title: title.to_owned(),
            y: y.to_owned(),
            x: String::from("appends to the page beside it"),
            axis: Axis::Numbers(APPENDS.map(f64::from).to_vec()),
            series,
        });
    }
    Ok(drawing)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the simulated cells behave in each mode as the paper says. Method: the figure itself.
    #[test]
    fn neighbours_suffer_on_plain_mlc_and_nowhere_else() {
        let of = |profile| measure(profile, 1).unwrap();
        let mlc = of("openssd-jasmine-mlc");
        assert!(mlc.values["bit_errors.1"] > 10.0, "{mlc:?}");
        assert!(mlc.values["lost.8"] > mlc.values["lost.1"], "{mlc:?}");
        for (_, profile) in &MODES[1..] {
            assert!(of(profile).values.values().all(|value| *value == 0.0), "{profile}");
        }
    }
}
