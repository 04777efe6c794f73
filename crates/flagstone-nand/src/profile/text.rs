//! Profiles as text: the shipped files, reading and writing.

use std::fmt::Write;

use toml::{Table, Value};

use super::{EccOwner, Profile, ProfileError, Translation};
use crate::{
    Capabilities, CellMode, CodeWord, Geometry, PartialCut, ProgramOrder, SpareRange, Timing,
    nearest,
};

macro_rules! shipped {
    ($($name:literal),+ $(,)?) => {
        /// Shipped profiles, in the order in which they are listed.
        const SHIPPED: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../profiles/", $name, ".toml")))),+];
    };
}

shipped!(
    "slc-2k",
    "slc-2k-raw",
    "slc-4k",
    "slc-512",
    "flagcommit-slc",
    "lazy-slc",
    "ls-lru-nand",
    "otf-ssd",
    "openssd-jasmine-mlc",
    "openssd-jasmine-pslc",
    "openssd-jasmine-odd-mlc",
    "openssd-jasmine-pslc-ssd",
    "openssd-jasmine-odd-mlc-ssd",
    "ipl-2007",
    "spi-nand",
    "spi-micron",
    "spi-w25n",
    "spi-gd5f",
    "mlc-2k",
    "tlc-3d",
    "pslc-3d",
    "nandsim",
    "femu-slc",
    "femu-mlc",
    "femu-tlc",
    "femu-qlc",
    "femu-bb",
    "disksim-ssd",
    "flashsim",
    "ssdsim",
    "wiscsim",
    "mqsim-mlc",
    "simplessd-mlc",
    "simplessd-tlc",
    "nvmevirt-970pro",
    "tiny",
    "tiny-dies",
    "tiny-nop1",
    "tiny-ordered",
    "tiny-risk",
    "tiny-nospare",
    "tiny-mlc",
    "tiny-flags",
    "tiny-shared",
    "tiny-own",
    "segment-file",
);

const TOP_KEYS: &[&str] =
    &["name", "source", "confidence", "geometry", "time_ns", "rules", "translation"];
const TRANSLATION_KEYS: &[&str] = &["reserve_percent", "in_place_appends", "copy_back"];
const GEOMETRY_KEYS: &[&str] =
    &["page_size", "spare_size", "pages_per_block", "block_count", "die_count", "channel_count"];
const TIME_KEYS: &[&str] = &[
    "read",
    "read_center",
    "read_upper_center",
    "read_msb",
    "program",
    "program_center",
    "program_upper_center",
    "program_msb",
    "partial_program",
    "erase",
    "transfer_page",
    "host_page",
    "sync",
];
const RULE_KEYS: &[&str] = &[
    "programs_data",
    "programs_spare",
    "first_program_order",
    "reprogram_order",
    "cell_mode",
    "pair_distance",
    "ecc",
    "code_word_size",
    "code_word_strength",
    "spare_raw_offset",
    "spare_raw_size",
    "spare_covered_offset",
    "spare_covered_size",
    "partial_cut",
    "endurance",
    "rewrite_tail",
    "needs_sync",
];

impl Profile {
    /// A shipped profile.
    ///
    /// # Errors
    ///
    /// `UnknownName`, with the name that was probably meant.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        match SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            Some((_, text)) => Self::from_toml(text),
            None => Err(ProfileError::UnknownName {
                name: name.into(),
                nearest: nearest(name, Self::names()).map(Into::into),
            }),
        }
    }

    /// Names of the shipped profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// Reads a profile file.
    ///
    /// # Errors
    ///
    /// Names the line, key or relation that is wrong; unknown keys are refused (F2).
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        let table: Table = text.parse().map_err(|error| syntax(text, &error))?;
        Self::from_table(&table)
    }

    /// Reads a profile that is part of a larger file.
    pub(crate) fn from_table(table: &Table) -> Result<Self, ProfileError> {
        let top = Section::new("", table, TOP_KEYS)?;
        let rules = top.section("rules", RULE_KEYS)?;
        let shape = top.section("geometry", GEOMETRY_KEYS)?;
        let profile = Self {
            name: top.text("name")?,
            geometry: geometry(&shape)?,
            timing: timing(&top.section("time_ns", TIME_KEYS)?, &shape)?,
            capabilities: capabilities(&rules)?,
            ecc: ecc(&rules)?,
            translation: translation(&top)?,
            source: top.text("source")?,
            confidence: top.text("confidence")?,
        };
        if profile.ecc == EccOwner::Own && !rules.has("spare_raw_size") {
            // The spare bytes that the layout leaves.
            let word = profile.capabilities.code_word;
            return profile.with_own_code(word);
        }
        profile.checked()
    }

    /// Writes the profile as a file that [`Profile::from_toml`] reads back unchanged.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for (key, value) in
            [("name", &self.name), ("source", &self.source), ("confidence", &self.confidence)]
        {
            line(&mut text, key, &Value::String(value.clone()));
        }
        text.push_str("\n[geometry]\n");
        geometry_lines(&mut text, &self.geometry);
        if self.timing.channel_count > 0 {
            number_lines(&mut text, &[("channel_count", self.timing.channel_count)]);
        }
        text.push_str("\n[time_ns]\n");
        timing_lines(&mut text, &self.timing);
        text.push_str("\n[rules]\n");
        rule_lines(&mut text, &self.capabilities);
        if self.ecc == EccOwner::Own {
            line(&mut text, "ecc", &Value::String("own".into()));
        }
        if let Some(translation) = &self.translation {
            text.push_str("\n[translation]\n");
            number_lines(&mut text, &[("reserve_percent", translation.reserve_percent)]);
            for (key, switch) in [
                ("in_place_appends", translation.in_place_appends),
                ("copy_back", translation.copy_back),
            ] {
                line(&mut text, key, &Value::Boolean(switch));
            }
        }
        text
    }
}

/// One table of the file, with the keys it may have.
struct Section<'a> {
    prefix: &'a str,
    table: &'a Table,
}

impl<'a> Section<'a> {
    /// Refuses keys outside `known` (F2).
    fn new(
        prefix: &'a str,
        table: &'a Table,
        known: &'static [&'static str],
    ) -> Result<Self, ProfileError> {
        let section = Self { prefix, table };
        match table.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(section),
            Some(key) => Err(ProfileError::UnknownKey {
                key: section.path(key),
                nearest: nearest(key, known.iter().copied()).map(|key| section.path(key)),
            }),
        }
    }

    fn path(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.into() } else { format!("{}.{key}", self.prefix) }
    }

    fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    fn missing(&self, key: &str) -> ProfileError {
        ProfileError::MissingKey { key: self.path(key) }
    }

    fn bad(&self, key: &str, expected: &'static str) -> ProfileError {
        ProfileError::BadValue { key: self.path(key), expected }
    }

    fn section(
        &self,
        key: &'a str,
        known: &'static [&'static str],
    ) -> Result<Section<'a>, ProfileError> {
        let value = self.table.get(key).ok_or_else(|| self.missing(key))?;
        let table = value.as_table().ok_or_else(|| self.bad(key, "a table"))?;
        Section::new(key, table, known)
    }

    fn text(&self, key: &str) -> Result<String, ProfileError> {
        let value = self.table.get(key).ok_or_else(|| self.missing(key))?;
        value.as_str().map(Into::into).ok_or_else(|| self.bad(key, "text"))
    }

    fn number<N: TryFrom<i64>>(&self, key: &str) -> Result<N, ProfileError> {
        let value = self.table.get(key).ok_or_else(|| self.missing(key))?;
        let number = value.as_integer().and_then(|number| N::try_from(number).ok());
        number.ok_or_else(|| self.bad(key, "a whole number in range"))
    }

    fn number_or<N: TryFrom<i64>>(&self, key: &str, default: N) -> Result<N, ProfileError> {
        if self.has(key) { self.number(key) } else { Ok(default) }
    }

    fn switch_or(&self, key: &str, default: bool) -> Result<bool, ProfileError> {
        match self.table.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.bad(key, "true or false")),
        }
    }

    fn order(&self, key: &str) -> Result<ProgramOrder, ProfileError> {
        match self.text(key)?.as_str() {
            "any" => Ok(ProgramOrder::Any),
            "ascending" => Ok(ProgramOrder::Ascending),
            _ => Err(self.bad(key, "any or ascending")),
        }
    }
}

fn translation(top: &Section<'_>) -> Result<Option<Translation>, ProfileError> {
    const KEY: &str = "translation";
    if !top.has(KEY) {
        return Ok(None);
    }
    let section = top.section(KEY, TRANSLATION_KEYS)?;
    let reserve_percent = section.number("reserve_percent")?;
    if !(1..=50).contains(&reserve_percent) {
        return Err(section.bad("reserve_percent", "between 1 and 50"));
    }
    let in_place_appends = section.switch_or("in_place_appends", false)?;
    let copy_back = section.switch_or("copy_back", true)?;
    Ok(Some(Translation { reserve_percent, in_place_appends, copy_back }))
}

fn geometry(section: &Section<'_>) -> Result<Geometry, ProfileError> {
    Ok(Geometry {
        page_size: section.number("page_size")?,
        spare_size: section.number("spare_size")?,
        pages_per_block: section.number("pages_per_block")?,
        block_count: section.number("block_count")?,
        die_count: section.number_or("die_count", 1)?,
    })
}

fn timing(section: &Section<'_>, shape: &Section<'_>) -> Result<Timing, ProfileError> {
    let read_ns = section.number("read")?;
    let program_ns = section.number("program")?;
    Ok(Timing {
        read_ns,
        read_center_ns: section.number_or("read_center", read_ns)?,
        read_upper_center_ns: section.number_or("read_upper_center", read_ns)?,
        read_msb_ns: section.number_or("read_msb", read_ns)?,
        program_ns,
        program_center_ns: section.number_or("program_center", program_ns)?,
        program_upper_center_ns: section.number_or("program_upper_center", program_ns)?,
        program_msb_ns: section.number_or("program_msb", program_ns)?,
        partial_program_ns: section.number_or("partial_program", program_ns)?,
        erase_ns: section.number("erase")?,
        transfer_page_ns: section.number_or("transfer_page", 0)?,
        host_page_ns: section.number_or("host_page", 0)?,
        channel_count: shape.number_or("channel_count", 0)?,
        sync_ns: section.number_or("sync", 0)?,
    })
}

fn capabilities(section: &Section<'_>) -> Result<Capabilities, ProfileError> {
    Ok(Capabilities {
        programs_data: section.number("programs_data")?,
        programs_spare: section.number("programs_spare")?,
        first_program_order: section.order("first_program_order")?,
        reprogram_order: section.order("reprogram_order")?,
        cell_mode: cell_mode(section)?,
        code_word: CodeWord {
            data_size: section.number("code_word_size")?,
            strength: section.number("code_word_strength")?,
        },
        spare_raw: SpareRange {
            offset: section.number_or("spare_raw_offset", 0)?,
            size: section.number_or("spare_raw_size", 0)?,
        },
        spare_covered: SpareRange {
            offset: section.number_or("spare_covered_offset", 0)?,
            size: section.number_or("spare_covered_size", 0)?,
        },
        partial_cut: match section.text("partial_cut")?.as_str() {
            "isolated" => PartialCut::Isolated,
            "page_at_risk" => PartialCut::PageAtRisk,
            _ => return Err(section.bad("partial_cut", "isolated or page_at_risk")),
        },
        endurance: section.number("endurance")?,
        rewrite_tail: section.switch_or("rewrite_tail", false)?,
        needs_sync: section.switch_or("needs_sync", false)?,
    })
}

/// Whose the ECC is: the device's unless the profile says otherwise.
fn ecc(section: &Section<'_>) -> Result<EccOwner, ProfileError> {
    if !section.has("ecc") {
        return Ok(EccOwner::Device);
    }
    match section.text("ecc")?.as_str() {
        "device" => Ok(EccOwner::Device),
        "own" => Ok(EccOwner::Own),
        _ => Err(section.bad("ecc", "device or own")),
    }
}

fn cell_mode(section: &Section<'_>) -> Result<CellMode, ProfileError> {
    let name = section.text("cell_mode")?;
    if section.has("pair_distance") && !matches!(name.as_str(), "mlc" | "odd_mlc") {
        return Err(section.bad("pair_distance", "none: pages pair in mlc and odd_mlc alone"));
    }
    let mode = match name.as_str() {
        "slc" => CellMode::Slc,
        "mlc" => CellMode::Mlc { distance: section.number("pair_distance")? },
        "pseudo_slc" => CellMode::PseudoSlc,
        "odd_mlc" => CellMode::OddMlc { distance: section.number("pair_distance")? },
        "tlc" => CellMode::Tlc,
        "qlc" => CellMode::Qlc,
        "file" => CellMode::File,
        "translated" => CellMode::Translated,
        _ => {
            let expected = "slc, mlc, pseudo_slc, odd_mlc, tlc, qlc or file";
            return Err(section.bad("cell_mode", expected));
        }
    };
    Ok(mode)
}

fn line(text: &mut String, key: &str, value: &Value) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{key} = {value}");
}

fn number_lines<N: Into<u64> + Copy>(text: &mut String, lines: &[(&str, N)]) {
    for (key, number) in lines {
        let _ = writeln!(text, "{key} = {}", (*number).into());
    }
}

fn geometry_lines(text: &mut String, geometry: &Geometry) {
    number_lines(
        text,
        &[
            ("page_size", geometry.page_size),
            ("spare_size", geometry.spare_size),
            ("pages_per_block", geometry.pages_per_block),
            ("block_count", geometry.block_count),
            ("die_count", geometry.die_count),
        ],
    );
}

fn timing_lines(text: &mut String, timing: &Timing) {
    let (read_ns, program_ns) = (timing.read_ns, timing.program_ns);
    number_lines(
        text,
        &[
            ("read", read_ns),
            ("read_msb", timing.read_msb_ns),
            ("program", program_ns),
            ("program_msb", timing.program_msb_ns),
            ("partial_program", timing.partial_program_ns),
            ("erase", timing.erase_ns),
            ("transfer_page", timing.transfer_page_ns),
            ("host_page", timing.host_page_ns),
            ("sync", timing.sync_ns),
        ],
    );
    // Only cells of three and four bits have such pages.
    for (key, time_ns, default_ns) in [
        ("read_center", timing.read_center_ns, read_ns),
        ("read_upper_center", timing.read_upper_center_ns, read_ns),
        ("program_center", timing.program_center_ns, program_ns),
        ("program_upper_center", timing.program_upper_center_ns, program_ns),
    ] {
        if time_ns != default_ns {
            number_lines(text, &[(key, time_ns)]);
        }
    }
}

fn rule_lines(text: &mut String, rules: &Capabilities) {
    let (mode, distance) = match rules.cell_mode {
        CellMode::Slc => ("slc", None),
        CellMode::Mlc { distance } => ("mlc", Some(distance)),
        CellMode::PseudoSlc => ("pseudo_slc", None),
        CellMode::OddMlc { distance } => ("odd_mlc", Some(distance)),
        CellMode::Tlc => ("tlc", None),
        CellMode::Qlc => ("qlc", None),
        CellMode::File => ("file", None),
        CellMode::Translated => ("translated", None),
    };
    let partial_cut = match rules.partial_cut {
        PartialCut::Isolated => "isolated",
        PartialCut::PageAtRisk => "page_at_risk",
    };
    for (key, word) in [
        ("first_program_order", order_name(rules.first_program_order)),
        ("reprogram_order", order_name(rules.reprogram_order)),
        ("cell_mode", mode),
        ("partial_cut", partial_cut),
    ] {
        line(text, key, &Value::String(word.into()));
    }
    if let Some(distance) = distance {
        number_lines(text, &[("pair_distance", distance)]);
    }
    number_lines(
        text,
        &[
            ("programs_data", rules.programs_data),
            ("programs_spare", rules.programs_spare),
            ("code_word_size", rules.code_word.data_size),
            ("code_word_strength", rules.code_word.strength),
            ("spare_raw_offset", rules.spare_raw.offset),
            ("spare_raw_size", rules.spare_raw.size),
            ("spare_covered_offset", rules.spare_covered.offset),
            ("spare_covered_size", rules.spare_covered.size),
            ("endurance", rules.endurance),
        ],
    );
    line(text, "rewrite_tail", &Value::Boolean(rules.rewrite_tail));
    line(text, "needs_sync", &Value::Boolean(rules.needs_sync));
}

const fn order_name(order: ProgramOrder) -> &'static str {
    match order {
        ProgramOrder::Any => "any",
        ProgramOrder::Ascending => "ascending",
    }
}

fn syntax(text: &str, error: &toml::de::Error) -> ProfileError {
    let start = error.span().map_or(0, |span| span.start).min(text.len());
    let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
    ProfileError::Syntax { line }
}
