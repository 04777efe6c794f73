//! Options changed on the command line: `KEY=VALUE` on top of a preset.
//!
//! Owns the way from text to a field of [`Options`], through the same serde form in which options
//! are printed. Knows no option by name: the fields of `Options` are the list of a user, and the
//! settings of the lab that of an experiment.
//!
//! Invariant I1: an option that no preset has is refused, with the name that was probably meant.

use flagstone::Options;
use flagstone_lab::preset;
use flagstone_nand::{nearest, suggestion};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::size::{BadQuantity, parse_duration, parse_size};

/// Why a `KEY=VALUE` is refused.
#[derive(Debug, Error)]
pub(crate) enum BadOption {
    /// No `=` in it.
    #[error("`{0}` is not of the form KEY=VALUE")]
    Form(String),
    /// No option has the name.
    #[error("there is no option `{name}`{}", suggestion(nearest.as_deref()))]
    Unknown {
        /// Name given.
        name: String,
        /// Name that was probably meant.
        nearest: Option<String>,
    },
    /// The option is a setting of experiments.
    #[error("option `{0}` is for `bench` alone")]
    Experiment(String),
    /// The value is no size or duration.
    #[error("option `{name}`: {source}")]
    Quantity {
        /// Option concerned.
        name: String,
        /// The fault of the text.
        source: BadQuantity,
    },
    /// The value has the wrong type or is none of the values allowed.
    #[error("option `{name}` cannot be `{value}`: {reason}")]
    Value {
        /// Option concerned.
        name: String,
        /// Text given.
        value: String,
        /// Accepted values.
        reason: String,
    },
    /// The options have no serde form; a bug of this program.
    #[error("the options cannot be written down: {0}")]
    Serde(#[from] serde_json::Error),
}

/// Options that a command lets one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those of a user.
    User,
    /// Every setting of an experiment.
    Experiment,
}

impl Scope {
    /// The fields of `options`, as they are given.
    fn fields(self, options: &Options) -> Result<Map<String, Value>, serde_json::Error> {
        match self {
            Self::Experiment => preset::settings(options),
            Self::User => match serde_json::to_value(options)? {
                Value::Object(fields) => Ok(fields),
                _ => Ok(Map::new()),
            },
        }
    }

    /// `options` with other fields.
    fn replaced(
        self,
        options: &Options,
        fields: Map<String, Value>,
    ) -> Result<Options, serde_json::Error> {
        match self {
            Self::Experiment => preset::of_settings(fields),
            Self::User => {
                let new: Options = serde_json::from_value(Value::Object(fields))?;
                Ok(new.with_techniques(|techniques| techniques.clone_from(options.techniques())))
            }
        }
    }
}

/// `options` with each `KEY=VALUE` of `changes` applied in order.
///
/// # Errors
///
/// Names the option and its accepted values.
pub(crate) fn apply(
    options: &Options,
    changes: &[String],
    scope: Scope,
) -> Result<Options, BadOption> {
    let mut result = options.clone();
    for change in changes {
        let (name, text) = change.split_once('=').ok_or_else(|| BadOption::Form(change.clone()))?;
        result = with(&result, name.trim(), text.trim(), scope)?;
    }
    Ok(result)
}

/// The option that a `KEY=VALUE` names, as it is called in [`Options`].
pub(crate) fn name_of(change: &str) -> Option<String> {
    Some(change.split_once('=')?.0.trim().replace('-', "_"))
}

fn with(options: &Options, name: &str, text: &str, scope: Scope) -> Result<Options, BadOption> {
    let mut fields = scope.fields(options)?;
    let name = name.replace('-', "_");
    let Some(old) = fields.get(&name) else {
        if preset::settings(options)?.contains_key(&name) {
            return Err(BadOption::Experiment(name));
        }
        let nearest = nearest(&name, fields.keys().map(String::as_str)).map(str::to_owned);
        return Err(BadOption::Unknown { name, nearest });
    };
    let new = value_like(old, &name, text)?;
    fields.insert(name.clone(), new);
    scope.replaced(options, fields).map_err(|error| BadOption::Value {
        name,
        value: text.to_owned(),
        reason: error.to_string(),
    })
}

/// The value that `text` stands for, where `old` shows the type.
fn value_like(old: &Value, name: &str, text: &str) -> Result<Value, BadOption> {
    let quantity = |source| BadOption::Quantity { name: name.to_owned(), source };
    match old {
        Value::Number(number) if number.is_u64() => {
            parse_size(text).map(Value::from).map_err(quantity)
        }
        Value::Object(_) => {
            let duration = parse_duration(text).map_err(quantity)?;
            Ok(serde_json::to_value(duration)?)
        }
        Value::String(_) => Ok(Value::from(text)),
        _ => Ok(serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))),
    }
}

/// Text for the value of an option, in the form that `KEY=VALUE` takes.
#[must_use]
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) => show_duration(fields),
        other => other.to_string(),
    }
}

/// Serde writes a duration as seconds and nanoseconds.
fn show_duration(fields: &Map<String, Value>) -> String {
    let part = |name: &str| fields.get(name).and_then(Value::as_u64).unwrap_or(0);
    let duration_ns = u128::from(part("secs")) * 1_000_000_000 + u128::from(part("nanos"));
    let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
    let whole = units.into_iter().find(|(_, factor)| duration_ns.is_multiple_of(*factor));
    whole.map_or_else(String::new, |(unit, factor)| format!("{}{unit}", duration_ns / factor))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn changed(change: &str) -> Result<Options, BadOption> {
        apply(&Options::default(), &[change.to_owned()], Scope::Experiment)
    }

    #[test]
    fn sizes_durations_and_names_reach_their_fields() {
        assert_eq!(changed("memory=1MiB").unwrap().memory, 1 << 20);
        assert_eq!(changed("group-delay=2ms").unwrap().group_delay, Duration::from_millis(2));
        assert_eq!(changed("frame_share = 0.5").unwrap().techniques().frame_share, 0.5);
        assert_ne!(changed("victim=cost").unwrap(), Options::default());
    }

    #[test]
    fn an_unknown_option_is_answered_with_the_nearest() {
        let error = changed("memroy=1").unwrap_err();
        assert_eq!(error.to_string(), "there is no option `memroy`; did you mean `memory`?");
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_refused() {
        for change in ["memory=lots", "frames=sideways", "frame_share=half", "group_delay=5", "x"] {
            assert!(changed(change).is_err(), "{change}");
        }
    }

    #[test]
    fn what_is_printed_can_be_given_back() {
        let options = Options::default();
        for (name, value) in preset::settings(&options).unwrap() {
            let change = format!("{name}={}", show(&value));
            assert_eq!(changed(&change).unwrap(), options, "{change}");
        }
    }

    #[test]
    fn a_user_changes_options_and_keeps_the_techniques_of_the_preset() {
        let traditional = Options::preset("traditional").unwrap();
        let user = |change: &str| apply(&traditional, &[change.to_owned()], Scope::User);
        assert_eq!(user("parts=2").unwrap(), traditional.clone().with_parts(2));
        let refused = user("frames=base").unwrap_err().to_string();
        assert_eq!(refused, "option `frames` is for `bench` alone");
    }
}
