//! Lists to choose from: profiles, presets, exit codes.
//!
//! Owns the listings; the lists themselves belong to the crates that use them.

use std::io;

use flagstone::Options;
use flagstone_lab::preset;
use flagstone_nand::{CellMode, PartialCut, Profile, ProgramOrder, Translation};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::exit::EXIT_ROWS;
use crate::failure::Failure;
use crate::output::Output;
use crate::size::format_size;
use crate::table::{Align, Table};
use crate::{overrides, request};

/// Lists the shipped profiles, or prints one as the TOML file that `--profile` takes.
pub(crate) fn profiles(name: Option<&str>, output: &mut Output) -> Result<(), Failure> {
    if let Some(name) = name {
        let profile = request::profile(name)?;
        let json = json!({ "name": profile.name, "toml": profile.to_toml() });
        return Ok(output.show(&json, || profile.to_toml())?);
    }
    let all = Profile::names().map(Profile::named).collect::<Result<Vec<_>, _>>()?;
    let json = json!({ "profiles": all.iter().map(profile_json).collect::<Vec<_>>() });
    Ok(output.show(&json, || profile_table(&all))?)
}

fn profile_json(profile: &Profile) -> Value {
    let (shape, able) = (&profile.geometry, &profile.capabilities);
    json!({
        "name": profile.name,
        "page_size": shape.page_size,
        "spare_size": shape.spare_size,
        "pages_per_block": shape.pages_per_block,
        "block_count": shape.block_count,
        "die_count": shape.die_count,
        "channel_count": channels(profile),
        "reserve_percent": profile.translation.map(|translation| translation.reserve_percent),
        "data_size": shape.data_size(),
        "programs_data": able.programs_data,
        "programs_spare": able.programs_spare,
        "cell_mode": cell_mode(able.cell_mode),
        "program_order": program_order(able.first_program_order),
        "partial_cut": partial_cut(able.partial_cut),
        "endurance": able.endurance,
        "source": profile.source,
        "confidence": profile.confidence,
    })
}

fn profile_table(profiles: &[Profile]) -> String {
    let mut table = Table::new([
        ("profile", Align::Left),
        ("page", Align::Right),
        ("pages", Align::Right),
        ("blocks", Align::Right),
        ("dies", Align::Right),
        ("buses", Align::Right),
        ("size", Align::Right),
        ("reserve", Align::Right),
        ("cells", Align::Left),
        ("programs", Align::Right),
        ("order", Align::Left),
        ("partial cut", Align::Left),
        ("endurance", Align::Right),
    ]);
    for profile in profiles {
        let (shape, able) = (&profile.geometry, &profile.capabilities);
        table.row([
            profile.name.clone(),
            format!("{}+{}", shape.page_size, shape.spare_size),
            shape.pages_per_block.to_string(),
            shape.block_count.to_string(),
            shape.die_count.to_string(),
            channels(profile).to_string(),
            format_size(shape.data_size()),
            reserve(profile),
            cell_mode(able.cell_mode).to_owned(),
            format!("{}+{}", able.programs_data, able.programs_spare),
            program_order(able.first_program_order).to_owned(),
            partial_cut(able.partial_cut).to_owned(),
            endurance(able.endurance),
        ]);
    }
    format!(
        "{table}\n\
         page: data + spare bytes. programs: of a page's data and spare area between two erases.\n\
         reserve: what the translation layer of a drive keeps of that size. buses: that the dies share.\n\
         Drives are for `bench`; `create` makes an image of their bare chips, and on a real one a plain file.\n\
         `flagstone profiles NAME` prints one as the TOML file that `--profile` takes.\n"
    )
}

/// Buses to the dies: one each unless the profile says otherwise.
fn channels(profile: &Profile) -> u32 {
    match profile.timing.channel_count {
        0 => profile.geometry.die_count,
        count => count,
    }
}

/// Share of its pages that a drive hides from its host; chips hide none.
fn reserve(profile: &Profile) -> String {
    let percent = |translation: Translation| format!("{} %", translation.reserve_percent);
    profile.translation.map_or_else(|| String::from("-"), percent)
}

/// Rated cycles; files have none.
fn endurance(cycles: u32) -> String {
    if cycles == u32::MAX { String::from("-") } else { cycles.to_string() }
}

/// Short name of how a chip uses its cells.
#[must_use]
pub(crate) const fn cell_mode(mode: CellMode) -> &'static str {
    match mode {
        CellMode::Slc => "SLC",
        CellMode::Mlc { .. } => "MLC",
        CellMode::PseudoSlc => "pSLC",
        CellMode::OddMlc { .. } => "odd-MLC",
        CellMode::Tlc => "TLC",
        CellMode::Qlc => "QLC",
        CellMode::File => "file",
        CellMode::Translated => "translated",
    }
}

const fn program_order(order: ProgramOrder) -> &'static str {
    match order {
        ProgramOrder::Any => "any",
        ProgramOrder::Ascending => "ascending",
    }
}

const fn partial_cut(cut: PartialCut) -> &'static str {
    match cut {
        PartialCut::Isolated => "isolated",
        PartialCut::PageAtRisk => "page at risk",
    }
}

/// A preset as it is printed.
#[derive(Debug, Serialize)]
struct PresetRow {
    name: &'static str,
    summary: &'static str,
    options: Map<String, Value>,
}

/// Lists the presets, or prints the options of one.
pub(crate) fn presets(name: Option<&str>, output: &mut Output) -> Result<(), Failure> {
    if let Some(name) = name {
        return preset_options(&preset::options(name)?, output);
    }
    let mut rows = Vec::new();
    for preset in preset::all() {
        let options = preset::settings(&preset::options(preset.name)?)?;
        rows.push(PresetRow { name: preset.name, summary: preset.summary, options });
    }
    let text = || {
        let mut table = Table::new([("preset", Align::Left), ("what it does", Align::Left)]);
        for row in &rows {
            table.row([row.name.to_owned(), row.summary.to_owned()]);
        }
        format!("{table}\n`flagstone presets NAME` prints one with all its options.\n")
    };
    Ok(output.show(&json!({ "presets": rows }), text)?)
}

fn preset_options(options: &Options, output: &mut Output) -> Result<(), Failure> {
    let fields = preset::settings(options)?;
    let text = || {
        let lines =
            fields.iter().map(|(name, value)| format!("{name}={}\n", overrides::show(value)));
        lines.collect()
    };
    Ok(output.show(&json!({ "options": fields }), text)?)
}

/// Lists the exit codes.
pub(crate) fn exit_codes(output: &mut Output) -> io::Result<()> {
    let rows = EXIT_ROWS
        .iter()
        .map(|row| json!({ "code": row.exit.code(), "name": row.name, "meaning": row.meaning }));
    let json = json!({ "exit_codes": rows.collect::<Vec<_>>() });
    output.show(&json, exit_table)
}

/// The exit codes as text.
#[must_use]
pub(crate) fn exit_table() -> String {
    let mut table =
        Table::new([("code", Align::Right), ("name", Align::Left), ("meaning", Align::Left)]);
    for row in EXIT_ROWS {
        let code = row.exit.code().to_string();
        table.row([code, row.name.to_owned(), row.meaning.to_owned()]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the document lists everything shipped. Method: every profile and every key that one of them prints
    /// stands there between backticks; small geometries for tests are named as a group.
    #[test]
    fn the_document_names_every_profile_and_every_key() {
        let document = include_str!("../../../docs/PROFILES.md");
        let stands = |word: &str| document.contains(&format!("`{word}`"));
        for name in Profile::names() {
            assert!(stands(name) || name.starts_with("tiny"), "docs/PROFILES.md lacks {name}");
            let text = Profile::named(name).unwrap().to_toml();
            let tables = text.lines().skip_while(|line| !line.starts_with('['));
            for (key, _) in tables.filter_map(|line| line.split_once(" = ")) {
                assert!(stands(key), "docs/PROFILES.md lacks the key {key}");
            }
        }
    }
}
