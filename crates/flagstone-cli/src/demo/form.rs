//! From the fields of the page to a benchmark.
//!
//! Owns the limits of the page and the sentences about faults of a field. A form becomes arguments of the command
//! `bench`, which turns them into a benchmark.
//!
//! - I1: every field is checked, and every fault reported, before anything runs.
//! - I2: a form names nothing outside this program: no file, no node, no profile of the user's.

use std::fmt::Write as _;

use flagstone_lab::bench::BenchConfig;
use flagstone_lab::preset;
use flagstone_nand::Profile;
use serde::{Deserialize, Serialize};

use crate::args::{BenchArgs, RawDevice};
use crate::bench;
use crate::failure::Failure;
use crate::overrides::BadOption;
use crate::request::UsageError;
use crate::size::parse_size;
use crate::table::grouped;

/// The fields of one side, as they were typed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Form {
    benchmark: String,
    dialect: String,
    scale: String,
    txns: String,
    seconds: String,
    clients: String,
    memory: String,
    fill: String,
    warmup: String,
    seed: String,
    profile: String,
    preset: String,
    append_scheme: String,
}

/// A fault in one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fault {
    /// Field concerned; empty when it is the whole.
    pub(super) field: &'static str,
    /// The fault, as a sentence.
    pub(super) message: String,
}

/// A benchmark that can begin.
#[derive(Debug)]
pub(super) struct Plan {
    /// The benchmark to run.
    pub(super) config: BenchConfig,
    /// The same run on the command line.
    pub(super) command: String,
    /// Preset, and scheme of appends where one was named.
    pub(super) label: String,
}

/// A benchmark that the page offers.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Benchmark {
    /// Name on the command line.
    pub(super) name: &'static str,
    /// Name for people.
    title: &'static str,
    /// Unit of the scale.
    scale_of: &'static str,
    scale_min: u32,
    scale_max: u32,
    scale: u32,
    /// Transactions to begin with.
    txns: u64,
    /// Dialects, the usual one first.
    dialects: &'static [&'static str],
}

/// Every benchmark of the page. The largest scales take a few hundred megabytes of memory.
pub(super) const BENCHMARKS: [Benchmark; 5] = [
    Benchmark {
        name: "tpcb",
        title: "TPC-B",
        scale_of: "branches",
        scale_min: 1,
        scale_max: 40,
        scale: 1,
        txns: 20_000,
        dialects: &["spec", "shore-kits", "shore-kits-local"],
    },
    Benchmark {
        name: "tpcc",
        title: "TPC-C",
        scale_of: "warehouses",
        scale_min: 1,
        scale_max: 4,
        scale: 1,
        txns: 5_000,
        dialects: &["spec", "dbt2"],
    },
    Benchmark {
        name: "tatp",
        title: "TATP",
        scale_of: "subscribers",
        scale_min: 1_000,
        scale_max: 1_000_000,
        scale: 20_000,
        txns: 50_000,
        dialects: &["spec", "spec-non-uniform", "shore-kits", "benchbase"],
    },
    Benchmark {
        name: "linkbench",
        title: "LinkBench",
        scale_of: "nodes",
        scale_min: 1_024,
        scale_max: 1_000_000,
        scale: 2_000,
        txns: 20_000,
        dialects: &["spec", "linkbench"],
    },
    Benchmark {
        name: "index",
        title: "Index operations",
        scale_of: "multiples",
        scale_min: 1,
        scale_max: 20,
        scale: 1,
        txns: 20_000,
        dialects: &[
            "w-query-mix",
            "w-query-insert",
            "w-update-insert",
            "w-update-mix",
            "write-intensive",
            "read-intensive",
            "random",
            "aggregation",
            "oltp",
        ],
    },
];

impl Form {
    /// The benchmark that the form describes, or all its faults (I1).
    pub(super) fn plan(&self) -> Result<Plan, Vec<Fault>> {
        let mut check = Check::default();
        let args = self.arguments(&mut check);
        let Some(args) = args.filter(|_| check.faults.is_empty()) else {
            return Err(check.faults);
        };
        let config = bench::config(&args).map_err(|failure| vec![fault_of(&failure)])?;
        let scheme = args.options.first().and_then(|option| option.split_once('='));
        let label = match scheme {
            Some((_, scheme)) => format!("{}, {}", args.preset, scheme.replace('x', "×")),
            None => args.preset.clone(),
        };
        Ok(Plan { config, command: command(&args), label })
    }

    /// Arguments of `bench`; faults go to `check`.
    fn arguments(&self, check: &mut Check) -> Option<BenchArgs> {
        let benchmark = BENCHMARKS.into_iter().find(|one| one.name == self.benchmark);
        let Some(benchmark) = benchmark else {
            let names = BENCHMARKS.map(|one| one.name).join(", ");
            check.fault("benchmark", format!("The benchmark must be one of {names}."));
            return None;
        };
        let Benchmark { scale_of, scale_min, scale_max, .. } = benchmark;
        let scale_text = format!("The number of {scale_of}");
        let (min, max) = (u64::from(scale_min), u64::from(scale_max));
        let scale =
            check.whole("scale", &scale_text, &self.scale, min, max, benchmark.scale.into());
        let scale = u32::try_from(scale).ok();
        let of = |name: &str| scale.filter(|_| benchmark.name == name);
        let own = |name: &str| !matches!(name, "tatp" | "linkbench");
        Some(BenchArgs {
            workload: benchmark.name.to_owned(),
            dialect: Some(check.one_of("dialect", &self.dialect, benchmark.dialects)),
            device: RawDevice::Sim,
            dir: None,
            node: None,
            overwrite: false,
            profile: Some(check.profile(&self.profile)),
            preset: check.preset(&self.preset),
            options: check.scheme(&self.append_scheme),
            scale: scale.filter(|_| own(benchmark.name)),
            subscribers: of("tatp"),
            nodes: of("linkbench"),
            records: None,
            clients: check.clients(&self.clients, benchmark.name),
            abort_ratio: 0.0,
            txns: check.whole("txns", "The transactions", &self.txns, 1, TXNS_MAX, benchmark.txns),
            seconds: check.seconds(&self.seconds),
            memory: check.memory(&self.memory),
            held_back: None,
            fill: check.fill(&self.fill),
            warmup: check.one_of("warmup", &self.warmup, &["none", "auto"]),
            durability: None,
            seed: check.whole("seed", "The seed", &self.seed, 0, u64::MAX, 1),
        })
    }
}

/// Most transactions of a run.
const TXNS_MAX: u64 = 5_000_000;
/// Most clients.
const CLIENTS_MAX: u64 = 256;
/// Most simulated seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;
/// Bounds of the memory budget.
const MEMORY_MIN: u64 = 64 << 10;
const MEMORY_MAX: u64 = 1 << 30;

/// Checks of single fields, and their faults. An empty field means its default.
#[derive(Debug, Default)]
struct Check {
    faults: Vec<Fault>,
}

impl Check {
    fn fault(&mut self, field: &'static str, message: String) {
        self.faults.push(Fault { field, message });
    }

    fn whole(
        &mut self,
        field: &'static str,
        subject: &str,
        text: &str,
        min: u64,
        max: u64,
        default: u64,
    ) -> u64 {
        let text = text.trim();
        match text.parse() {
            _ if text.is_empty() => default,
            Ok(number) if (min..=max).contains(&number) => number,
            _ => {
                let (min, max) = (grouped(min), grouped(max));
                let message = format!("{subject} must be a whole number from {min} to {max}.");
                self.fault(field, message);
                default
            }
        }
    }

    /// A number with decimals between two bounds.
    fn decimal(&mut self, field: &'static str, text: &str, bounds: [f64; 2]) -> Option<f64> {
        let number = text.trim().parse().ok().filter(|number: &f64| {
            let [min, max] = bounds;
            number.is_finite() && (min..=max).contains(number)
        });
        if number.is_none() {
            let [min, max] = bounds;
            self.fault(field, format!("This must be a number from {min} to {max}."));
        }
        number
    }

    fn one_of(&mut self, field: &'static str, text: &str, names: &[&str]) -> String {
        let default = names.first().copied().unwrap_or_default();
        let text = text.trim();
        if !text.is_empty() && !names.contains(&text) {
            self.fault(field, format!("This must be one of {}.", names.join(", ")));
        }
        if text.is_empty() { default.to_owned() } else { text.to_owned() }
    }

    /// A shipped profile (I2).
    fn profile(&mut self, text: &str) -> String {
        let name = if text.trim().is_empty() { PROFILE } else { text.trim() };
        match Profile::named(name) {
            Ok(profile) if is_chip(&profile) => {}
            Ok(_) => self.fault("profile", format!("`{name}` is no chip and no drive.")),
            Err(error) => self.fault("profile", sentence(&error.to_string())),
        }
        name.to_owned()
    }

    fn preset(&mut self, text: &str) -> String {
        let name = if text.trim().is_empty() { "flagstone" } else { text.trim() };
        if let Err(error) = preset::options(name) {
            self.fault("preset", sentence(&error.to_string()));
        }
        name.to_owned()
    }

    /// The option for a scheme of appends; none leaves it to the preset.
    fn scheme(&mut self, text: &str) -> Vec<String> {
        let text = text.trim().to_lowercase().replace('×', "x");
        if text.is_empty() {
            return Vec::new();
        }
        let is_number = |text: &str| {
            (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        let is_pair = text.split_once('x').is_some_and(|(n, m)| is_number(n) && is_number(m));
        if text != "auto" && !is_pair {
            let message = "N×M must be two whole numbers such as 2x4, or 0x0, or auto.";
            self.fault("append_scheme", message.to_owned());
        }
        vec![format!("append_scheme={text}")]
    }

    fn clients(&mut self, text: &str, benchmark: &str) -> u32 {
        let clients = self.whole("clients", "The clients", text, 1, CLIENTS_MAX, 1);
        if benchmark == "index" && clients != 1 {
            self.fault("clients", String::from("Index operations have one client."));
        }
        u32::try_from(clients).unwrap_or(1)
    }

    fn seconds(&mut self, text: &str) -> Option<f64> {
        if text.trim().is_empty() {
            return None;
        }
        self.decimal("seconds", text, [0.001, SECONDS_MAX])
    }

    /// Live share of the chip, from a percentage.
    fn fill(&mut self, text: &str) -> f64 {
        if text.trim().is_empty() {
            return FILL_PERCENT / 100.0;
        }
        self.decimal("fill", text, [5.0, 95.0]).unwrap_or(FILL_PERCENT) / 100.0
    }

    fn memory(&mut self, text: &str) -> Option<String> {
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        match parse_size(text) {
            Ok(MEMORY_MIN..=MEMORY_MAX) => {}
            Ok(_) => {
                self.fault("memory", String::from("The memory must be from 64KiB to 1GiB."));
            }
            Err(error) => self.fault("memory", sentence(&error.to_string())),
        }
        Some(text.to_owned())
    }
}

/// Profile and fill that a form begins with.
pub(super) const PROFILE: &str = "openssd-jasmine-pslc";
pub(super) const FILL_PERCENT: f64 = 30.0;

/// Whether a profile is a chip, or a drive of chips, rather than a plain file.
pub(super) fn is_chip(profile: &Profile) -> bool {
    profile.name != crate::request::SEGMENT_PROFILE
}

/// The fault that the command `bench` finds in the arguments.
fn fault_of(failure: &Failure) -> Fault {
    let field = match failure {
        Failure::Usage(UsageError::Option(
            BadOption::Unknown { .. } | BadOption::Value { .. } | BadOption::Quantity { .. },
        )) => "append_scheme",
        Failure::Usage(UsageError::Preset(_)) => "preset",
        _ => "",
    };
    Fault { field, message: sentence(&failure.to_string()) }
}

/// A message of the program as a sentence.
pub(super) fn sentence(message: &str) -> String {
    let mut letters = message.chars();
    let Some(first) = letters.next() else { return String::new() };
    let end = if message.ends_with(['.', '?']) { "" } else { "." };
    format!("{}{}{end}", first.to_uppercase(), letters.as_str())
}

/// The command line of these arguments.
fn command(args: &BenchArgs) -> String {
    let mut text = format!("flagstone bench {}", args.workload);
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = write!(text, " {name} {value}");
        }
    };
    option("--dialect", args.dialect.clone());
    option("--scale", args.scale.map(|scale| scale.to_string()));
    option("--subscribers", args.subscribers.map(|count| count.to_string()));
    option("--nodes", args.nodes.map(|count| count.to_string()));
    option("--txns", Some(args.txns.to_string()));
    option("--seconds", args.seconds.map(|seconds| seconds.to_string()));
    option("--clients", Some(args.clients.to_string()));
    option("--memory", args.memory.as_ref().map(|memory| memory.replace(' ', "")));
    option("--fill", Some(args.fill.to_string()));
    option("--warmup", Some(args.warmup.clone()));
    option("--seed", Some(args.seed.to_string()));
    option("--profile", args.profile.clone());
    option("--preset", Some(args.preset.clone()));
    args.options.iter().for_each(|change| option("-o", Some(change.clone())));
    text
}
