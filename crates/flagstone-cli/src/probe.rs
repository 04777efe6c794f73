//! The command `probe`: description and abilities of a chip.
//!
//! Owns the print of the findings, and the profile file. The experiments are in `flagstone_nand::probe`; without
//! `--scratch` the device is only read.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flagstone_nand::{
    BlockIndex, Capabilities, EccOwner, Findings, Nand, ProbeError, Profile, ProgramOrder,
    SPARE_PROGRAMS_MAX, SpareRange, check_scratch, probe, read_time,
};
use serde_json::{Value, json};

use crate::args::ProbeArgs;
use crate::failure::Failure;
use crate::open::{device_to_probe, require_no_database_to_probe};
use crate::output::{Output, path_text};
use crate::request::UsageError;
use crate::size::format_size;
use crate::table::{Align, Table, grouped};

/// Pages that are read for the time of a read.
const PAGES_READ: u32 = 64;

/// A device to look at.
#[derive(Debug)]
pub(crate) struct Probe {
    path: PathBuf,
    scratch: Vec<BlockIndex>,
    /// Scratch blocks are used up although the chip holds a database.
    overwrite: bool,
    profile: Option<PathBuf>,
    ecc: EccOwner,
}

impl TryFrom<ProbeArgs> for Probe {
    type Error = UsageError;

    fn try_from(args: ProbeArgs) -> Result<Self, UsageError> {
        let scratch = args.scratch.as_deref().map(blocks).transpose()?;
        let ecc = args.ecc.map_or(EccOwner::Device, EccOwner::from);
        Ok(Self {
            path: args.path,
            scratch: scratch.unwrap_or_default(),
            overwrite: args.overwrite,
            profile: args.out,
            ecc,
        })
    }
}

/// Reads `4,7-9`.
fn blocks(text: &str) -> Result<Vec<BlockIndex>, UsageError> {
    let bad = || UsageError::Value {
        option: "--scratch",
        value: text.to_owned(),
        must: "block numbers with commas between them, or ranges of them: 4,7-9",
    };
    let mut blocks = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| bad());
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last - first >= SCRATCH_MAX {
            return Err(bad());
        }
        blocks.extend((first..=last).map(BlockIndex));
    }
    Ok(blocks)
}

/// Most blocks of a range: a probe learns nothing from more of them.
const SCRATCH_MAX: u32 = 64;

/// Findings of a probe.
struct Seen {
    /// Profile of the device before the probe.
    known: Profile,
    bad_blocks: Vec<u32>,
    read_ns: u64,
    findings: Option<Findings>,
}

/// Runs `probe`.
pub(crate) fn run(request: &Probe, output: &mut Output) -> Result<(), Failure> {
    let (mut device, known) = device_to_probe(&request.path, request.ecc)?;
    let failure = |source: ProbeError| Failure::Probe { path: request.path.clone(), source };
    if !request.scratch.is_empty() {
        check_scratch(&mut device, &request.scratch).map_err(failure)?;
        if !request.overwrite {
            // A device is open once at a time.
            drop(device);
            require_no_database_to_probe(&request.path)?;
            (device, _) = device_to_probe(&request.path, request.ecc)?;
        }
    }
    let geometry = device.geometry();
    let mut bad_blocks = Vec::new();
    for block in geometry.blocks() {
        if device.is_bad(block).map_err(|source| failure(source.into()))? {
            bad_blocks.push(block.0);
        }
    }
    // A profile that cannot be written is refused before a scratch block is spent.
    let file = request.profile.as_deref().map(create).transpose()?;
    let seen = look(&mut device, &request.scratch).map_err(failure);
    let seen = seen.map(|(read_ns, findings)| Seen { known, bad_blocks, read_ns, findings });
    let seen = match (file, &request.profile) {
        (Some(file), Some(path)) => {
            seen.and_then(|seen| write(file, path, seen)).inspect_err(|_| {
                // It was made a moment ago; if it cannot be removed, it stays.
                let _ = fs::remove_file(path);
            })
        }
        _ => seen,
    }?;
    Ok(output.show(&seen.json(request), || seen.text(request))?)
}

/// The time of a read, and the findings on the scratch blocks, if there are any.
fn look<D: Nand>(
    device: &mut D,
    scratch: &[BlockIndex],
) -> Result<(u64, Option<Findings>), ProbeError> {
    let read_ns = read_time(device, PAGES_READ)?;
    let findings = if scratch.is_empty() { None } else { Some(probe(device, scratch)?) };
    Ok((read_ns, findings))
}

fn write(mut file: File, path: &Path, seen: Seen) -> Result<Seen, Failure> {
    let written = file.write_all(seen.profile(path).to_toml().as_bytes());
    written.map_err(|source| Failure::File { path: path.into(), source })?;
    Ok(seen)
}

fn create(path: &Path) -> Result<File, Failure> {
    let file = File::create_new(path);
    file.map_err(|source: io::Error| Failure::File { path: path.into(), source })
}

impl Seen {
    /// The profile with these findings, named like its file.
    fn profile(&self, path: &Path) -> Profile {
        let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into());
        match &self.findings {
            Some(findings) => findings.profile(&self.known, &name),
            None => Profile { name, ..self.known.clone() },
        }
    }

    /// Spare bytes for users, inside the ECC or outside.
    fn free_spare(&self) -> SpareRange {
        let Capabilities { spare_raw, spare_covered, .. } = self.known.capabilities;
        if spare_raw.size > 0 { spare_raw } else { spare_covered }
    }

    fn json(&self, request: &Probe) -> Value {
        let shape = &self.known.geometry;
        let (rules, free) = (&self.known.capabilities, self.free_spare());
        json!({
            "path": path_text(&request.path),
            "device": {
                "page_size": shape.page_size,
                "spare_size": shape.spare_size,
                "pages_per_block": shape.pages_per_block,
                "block_count": shape.block_count,
                "data_size": shape.data_size(),
            },
            "bad_blocks": self.bad_blocks,
            "ecc": {
                "own": self.known.ecc == EccOwner::Own,
                "code_word_size": rules.code_word.data_size,
                "strength": rules.code_word.strength,
                "free_spare_offset": free.offset,
                "free_spare_size": free.size,
            },
            "read_ns": self.read_ns,
            "scratch": self.findings.map(|findings| findings_json(request, &findings)),
            "profile": request.profile.as_deref().map(path_text),
        })
    }

    fn text(&self, request: &Probe) -> String {
        let shape = &self.known.geometry;
        let (rules, free) = (&self.known.capabilities, self.free_spare());
        let mut table = Table::new([("device", Align::Left), ("", Align::Right)]);
        let mut line = |name: &str, value: String| table.row([name.to_owned(), value]);
        line("data area", format_size(shape.data_size()));
        line(
            "blocks x pages x bytes + spare bytes",
            format!(
                "{} x {} x {} + {}",
                shape.block_count, shape.pages_per_block, shape.page_size, shape.spare_size
            ),
        );
        line("bad blocks", grouped(self.bad_blocks.len() as u64));
        line(
            "ECC: bits a code word of bytes",
            format!("{} / {}", rules.code_word.strength, rules.code_word.data_size),
        );
        line("free spare bytes", format!("{} from {} on", free.size, free.offset));
        line("read of a page, us", micros(self.read_ns));
        let findings = self.findings.as_ref().map_or_else(
            || {
                String::from(
                    "what it can do was not tried: name blocks that may be used up, --scratch\n",
                )
            },
            findings_text,
        );
        let profile = request
            .profile
            .as_ref()
            .map_or_else(String::new, |path| format!("\nprofile written to {}\n", path.display()));
        format!("{table}\n{findings}{profile}")
    }
}

fn micros(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e3)
}

const fn order_name(order: ProgramOrder) -> &'static str {
    match order {
        ProgramOrder::Any => "any",
        ProgramOrder::Ascending => "ascending",
    }
}

fn findings_json(request: &Probe, findings: &Findings) -> Value {
    let times = findings.times;
    json!({
        "blocks": request.scratch.iter().map(|block| block.0).collect::<Vec<_>>(),
        "times_ns": {
            "read": times.read_ns,
            "program": times.program_ns,
            "partial_program": times.partial_program_ns,
            "spare_program": times.spare_program_ns,
            "erase": times.erase_ns,
        },
        "programs_data": findings.programs_data,
        "programs_spare": findings.programs_spare,
        "programs_spare_tried": SPARE_PROGRAMS_MAX,
        "spare_outside_ecc": findings.spare_is_free(),
        "first_program_order": order_name(findings.first_program_order),
        "reprogram_order": order_name(findings.reprogram_order),
        "corrected_bits_max": findings.corrected_bits_max,
        // Only a power cut can show it.
        "partial_cut": Value::Null,
    })
}

fn findings_text(findings: &Findings) -> String {
    let times = findings.times;
    let mut table = Table::new([("on scratch blocks", Align::Left), ("", Align::Right)]);
    let mut line = |name: &str, value: String| table.row([name.to_owned(), value]);
    line("program of a page, us", micros(times.program_ns));
    line("program of a code word, us", micros(times.partial_program_ns));
    line("program of spare bytes, us", micros(times.spare_program_ns));
    line("erase of a block, us", micros(times.erase_ns));
    line("programs of a page's data before errors", grouped(findings.programs_data.into()));
    let at_least = if findings.programs_spare >= SPARE_PROGRAMS_MAX { "at least " } else { "" };
    line("programs of its spare area", format!("{at_least}{}", findings.programs_spare));
    line(
        "free spare bytes lie outside the ECC",
        String::from(if findings.spare_is_free() { "yes" } else { "no" }),
    );
    line("order of first programs", order_name(findings.first_program_order).into());
    line("order of later programs", order_name(findings.reprogram_order).into());
    line("most bits corrected in a code word", grouped(findings.corrected_bits_max.into()));
    line("what a power cut harms", String::from("not tried"));
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_blocks_are_numbers_and_ranges() {
        let numbers =
            |text| blocks(text).map(|blocks| blocks.iter().map(|block| block.0).collect());
        assert_eq!(numbers("4,7-9").ok(), Some(vec![4, 7, 8, 9]));
        for text in ["", "a", "9-7", "1-", "0-999999", "-1"] {
            assert!(blocks(text).is_err(), "{text}");
        }
    }
}
