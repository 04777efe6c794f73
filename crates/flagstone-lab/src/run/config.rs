//! Configuration of a run: asked for, derived, and observed.

use flagstone_engine::Options;
use serde::{Deserialize, Serialize};

/// Everything that shaped a run, so that it can be repeated (rule R3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// Workload and dialect, such as `tpcb/spec`.
    pub workload: String,
    /// `sim`, `image` or `file`.
    pub device: String,
    /// Profile of the chip.
    pub profile: String,
    /// Preset of the engine.
    pub preset: String,
    /// Scale factor of the workload.
    pub scale: u32,
    /// Clients, which are threads off the simulator.
    pub clients: u32,
    /// Share of the transactions that were made to abort.
    #[serde(default)]
    pub abort_ratio: f64,
    /// Longest random wait of a deadlock's victim, in microseconds.
    #[serde(default)]
    pub backoff_us: u64,
    /// Commits of the window.
    pub txns: u64,
    /// Device time after which the window ended although transactions were left, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Memory budget in bytes.
    pub memory: usize,
    /// Bytes of the budget that are held back for deltas.
    pub held_back: usize,
    /// Live pages / pages of the data region that the chip was sized for.
    pub fill: f64,
    /// `auto`, `none` or a number of transactions.
    pub warmup: String,
    /// Seed of workload and engine.
    pub seed: u64,
    /// Every setting of the engine.
    #[serde(with = "settings")]
    pub options: Options,
    /// Values that were not asked for but found.
    pub observed: Observed,
}

/// Options in a report: every setting by name.
mod settings {
    use flagstone_engine::Options;
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use serde_json::{Map, Value};

    use crate::preset;

    pub(super) fn serialize<S: Serializer>(
        options: &Options,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        preset::settings(options).map_err(S::Error::custom)?.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Options, D::Error> {
        let settings = Map::<String, Value>::deserialize(deserializer)?;
        preset::of_settings(settings).map_err(D::Error::custom)
    }
}

/// Circumstances of the run that follow from the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// Blocks of the chip.
    pub block_count: u32,
    /// Blocks of the data region; the log's and the anchors' come on top.
    pub data_block_count: u32,
    /// Live pages / pages of the data region at the end of the window.
    pub fill: f64,
    /// Bytes of keys and values after the load.
    pub loaded_bytes: u64,
    /// Commits of the warm-up.
    pub warmup_txns: u64,
    /// Difference of the erases per commit between the halves of the window, over their mean.
    pub drift: f64,
    /// Difference that counts as steady.
    pub drift_max: f64,
    /// Hash of every operation on the simulated device; 0 on others.
    pub trace_hash: u64,
}
