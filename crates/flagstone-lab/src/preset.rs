//! Presets of every engine that the lab can run: one table for `bench`, `crash` and `presets`.
//!
//! The engine's own presets come first, as they are; then those of the papers that run on it, with
//! guests for policies. Presets of the lab's engines live here, since only the lab has the engines. A preset is plain [`Options`]; which engine they are for follows
//! from the preset's name, which they carry.

use flagstone_engine::{AppendScheme, Appends, Techniques};
use flagstone_engine::{Options, OptionsError, PRESETS};
use flagstone_nand::nearest;

use flagstone_opponents::evidence::Flags;
use flagstone_opponents::policies::PolicyOptions;
use flagstone_opponents::presets;
use flagstone_opponents::shadow::ShadowProtocol;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::classic::Locking;

/// The engine that a preset is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// The shipped one.
    Flagstone,
    /// ARIES, with locks on records or on pages.
    Classic(Locking),
    /// Shadow pages under a protocol; whether its flags stand for clusters of a block.
    Shadow(ShadowProtocol, bool),
    /// Shared shadow pages with a redo log, under the protocol of these flags.
    Records(Flags),
}

/// A preset: its name, its purpose, and its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// Engine that it is for.
    pub engine: EngineKind,
}

const LAB: &[Preset] = &[
    Preset {
        name: "berkeley-original",
        summary: "ARIES: steal, no-force, undo and redo log, whole pages, LRU, eager splits (lab)",
        engine: EngineKind::Classic(Locking::Record),
    },
    Preset {
        name: "berkeley-page-locks",
        summary: "as berkeley-original, with locks on pages (lab)",
        engine: EngineKind::Classic(Locking::Page),
    },
    Preset {
        name: "wal",
        summary: "as berkeley-original: what the extended flag commits are compared with (lab)",
        engine: EngineKind::Classic(Locking::Record),
    },
    Preset {
        name: "ipa-0x0",
        summary: "as berkeley-original: what in-place appends are compared with, [0x0] (lab)",
        engine: EngineKind::Classic(Locking::Record),
    },
    Preset {
        name: "ipa-2x4",
        summary: "small changes appended to their page: 2 records of 4 bytes, but for history (lab)",
        engine: EngineKind::Classic(Locking::Record),
    },
    Preset {
        name: "ipa-runs",
        summary: "as ipa-2x4, 2 records of byte runs as large as a slot (lab)",
        engine: EngineKind::Classic(Locking::Record),
    },
    Preset {
        name: "ipa-auto",
        summary: "as ipa-runs, records of each table as its changes are worth (lab)",
        engine: EngineKind::Classic(Locking::Record),
    },
    Preset {
        name: "cfc",
        summary: "commit-based flags in shadow pages, by block: steal, force, page locks (lab)",
        engine: EngineKind::Shadow(ShadowProtocol::Cfc, true),
    },
    Preset {
        name: "afc",
        summary: "abort-based flags in shadow pages, by block: steal, force, page locks (lab)",
        engine: EngineKind::Shadow(ShadowProtocol::Afc, true),
    },
    Preset {
        name: "cfc-pages",
        summary: "as cfc, with chains of pages instead of clusters of a block (lab)",
        engine: EngineKind::Shadow(ShadowProtocol::Cfc, false),
    },
    Preset {
        name: "afc-pages",
        summary: "as afc, with chains of pages instead of clusters of a block (lab)",
        engine: EngineKind::Shadow(ShadowProtocol::Afc, false),
    },
    Preset {
        name: "scc",
        summary: "simple cyclic commit in shadow pages: steal, force, page locks (lab)",
        engine: EngineKind::Shadow(ShadowProtocol::Scc, false),
    },
    Preset {
        name: "bpcc",
        summary: "cyclic commit with back pointers: steal, force, page locks (lab)",
        engine: EngineKind::Shadow(ShadowProtocol::Bpcc, false),
    },
    Preset {
        name: "cfc-ex",
        summary: "cfc extended: no-force with a redo log, record locks, pages shared by writers (lab)",
        engine: EngineKind::Records(Flags::Cfc),
    },
    Preset {
        name: "afc-ex",
        summary: "afc extended in the same way (lab)",
        engine: EngineKind::Records(Flags::Afc),
    },
];

/// Every preset, the default one first.
pub fn all() -> impl Iterator<Item = Preset> {
    let own = PRESETS.iter().map(|preset| Preset {
        name: preset.name,
        summary: preset.summary,
        engine: EngineKind::Flagstone,
    });
    let papers = presets::PRESETS.iter().map(|preset| Preset {
        name: preset.name,
        summary: preset.summary,
        engine: EngineKind::Flagstone,
    });
    own.chain(papers).chain(LAB.iter().copied())
}

/// Names of the presets that the shipped engine runs, with guests or without.
#[must_use]
pub fn flagstone() -> Vec<&'static str> {
    let own = all().filter(|preset| preset.engine == EngineKind::Flagstone);
    own.map(|preset| preset.name).collect()
}

/// The engine that options are for.
#[must_use]
pub fn engine_of(options: &Options) -> EngineKind {
    let preset = LAB.iter().find(|preset| preset.name == options.preset);
    preset.map_or(EngineKind::Flagstone, |preset| preset.engine)
}

/// Options of the preset called `name`.
///
/// # Errors
///
/// `UnknownPreset`, with the name that was probably meant.
pub fn options(name: &str) -> Result<Options, OptionsError> {
    if let Some(preset) = LAB.iter().find(|preset| preset.name == name) {
        // As often as in on-the-fly redo.
        let mut options =
            Options::default().with_checkpoint_commits(presets::OTF_CHECKPOINT_COMMITS);
        options.preset = preset.name.to_owned();
        let appends = appends_of(preset.name);
        return Ok(options.with_techniques(|techniques| techniques.append_scheme = appends));
    }
    if let Some(options) = presets::options(name) {
        return Ok(options);
    }
    Options::preset(name).map_err(|_| OptionsError::UnknownPreset {
        name: name.to_owned(),
        nearest: nearest(name, all().map(|preset| preset.name)),
    })
}

/// Every setting of an experiment by name: the options of a user, the techniques of the engine, and the
/// configuration of its guests.
///
/// # Errors
///
/// Only if one of these had no serde form.
pub fn settings(options: &Options) -> Result<Map<String, Value>, serde_json::Error> {
    let mut settings = fields(options)?;
    settings.extend(fields(options.techniques())?);
    settings.extend(fields(&PolicyOptions::of(options))?);
    Ok(settings)
}

/// The options that these settings describe.
///
/// # Errors
///
/// When a value has the wrong type, is none of the values allowed, or stands for no setting.
pub fn of_settings(mut settings: Map<String, Value>) -> Result<Options, serde_json::Error> {
    let mut taken = |names: Map<String, Value>| {
        let parts = names.into_iter().filter_map(|(name, _)| settings.remove_entry(&name));
        Value::Object(parts.collect())
    };
    let techniques: Techniques = serde_json::from_value(taken(fields(&Techniques::default())?))?;
    let policies: PolicyOptions =
        serde_json::from_value(taken(fields(&PolicyOptions::default())?))?;
    let options: Options = serde_json::from_value(Value::Object(settings))?;
    Ok(policies.apply_to(options.with_techniques(|own| *own = techniques)))
}

fn fields(value: &impl Serialize) -> Result<Map<String, Value>, serde_json::Error> {
    match serde_json::to_value(value)? {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

/// Append schemes by preset: tables that only grow stand in a region of their own, as in the paper.
fn appends_of(preset: &str) -> Appends {
    let scheme = match preset {
        "ipa-2x4" => AppendScheme::Pairs { records: 2, bytes: 4 },
        "ipa-runs" => AppendScheme::Runs { records: 2 },
        "ipa-auto" => return Appends { scheme: AppendScheme::Auto, ..Appends::default() },
        _ => return Appends::default(),
    };
    let whole = |name: &str| (name.to_owned(), AppendScheme::None);
    Appends { scheme, tables: vec![whole("history")] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_found_by_its_name_and_leads_to_its_engine() {
        for preset in all() {
            assert_eq!(engine_of(&options(preset.name).unwrap()), preset.engine);
        }
        assert!(options("berkeley").is_err());
    }

    #[test]
    fn settings_describe_the_options_of_every_preset() {
        for preset in all() {
            let options = options(preset.name).unwrap();
            assert_eq!(of_settings(settings(&options).unwrap()).unwrap(), options);
        }
    }
}
