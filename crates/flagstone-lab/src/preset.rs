//! Presets of every engine that the lab can run: one table for `bench`, `crash` and `presets`.
//!
//! The engine's own presets come first, as they are. Presets of the lab's engines live here, since
//! only the lab has the engines. A preset is plain [`Options`]; which engine they are for follows
//! from the preset's name, which they carry.

use flagstone_engine::{AppendScheme, Appends, Options, OptionsError, PRESETS};

use flagstone_opponents::evidence::Flags;
use flagstone_opponents::shadow::ShadowProtocol;

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

/// Commits between two checkpoints of a classic engine: as in the presets of on-the-fly redo.
const CHECKPOINT_COMMITS: u64 = 5_000;

/// Every preset, the default one first.
pub fn all() -> impl Iterator<Item = Preset> {
    let own = PRESETS.iter().map(|preset| Preset {
        name: preset.name,
        summary: preset.summary,
        engine: EngineKind::Flagstone,
    });
    own.chain(LAB.iter().copied())
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
    match LAB.iter().find(|preset| preset.name == name) {
        Some(preset) => Ok(Options {
            preset: preset.name.to_owned(),
            checkpoint_commits: CHECKPOINT_COMMITS,
            append_scheme: appends_of(preset.name),
            ..Options::default()
        }),
        None => Options::preset(name),
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
}
