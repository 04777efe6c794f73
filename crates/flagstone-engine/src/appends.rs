//! The option for appends of small changes to their page: the N x M scheme.
//!
//! Owns the text form of the option. Schemes by table belong to the lab's classic engine, whose
//! paper declares them: this engine refuses them. The form of an append on flash, and the devices
//! that take appends, belong to the space floor.

use std::fmt;
use std::str::FromStr;

use flagstone_space::runs::ChangeForm;
use flagstone_space::{APPEND_SLOTS_MAX, AppendLack};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Number and size of the appends that a page takes between two whole writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AppendScheme {
    /// None: every change is a whole page, the paper's 0x0.
    #[default]
    None,
    /// N records of M changed bytes, as pairs of value and offset (In-Place Appends, section 3).
    Pairs {
        /// Records a page takes, N.
        records: u8,
        /// Changed bytes a record holds, M.
        bytes: u8,
    },
    /// N records of byte runs, as many as a slot holds.
    Runs {
        /// Records a page takes.
        records: u8,
    },
    /// Records of byte runs, as many as pay; none on a device without appends.
    ///
    /// Leaves take as many appends as fit behind their content. In the lab's classic engine, tables
    /// reserve slots by the observed size of their changes.
    Auto,
}

/// Most slots that [`AppendScheme::Auto`] reserves, in the lab's classic engine.
pub(crate) const AUTO_RECORDS_MAX: u8 = 3;

impl AppendScheme {
    /// Most slots that a page is written with.
    #[must_use]
    pub const fn records_max(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Pairs { records, .. } | Self::Runs { records } => records,
            Self::Auto => AUTO_RECORDS_MAX,
        }
    }

    /// Fewest slots that a page is written with: a device has to carry them.
    #[must_use]
    pub const fn records_min(self) -> u8 {
        match self {
            Self::Auto => 0,
            scheme => scheme.records_max(),
        }
    }

    /// Encoding of the records.
    #[must_use]
    pub const fn form(self) -> ChangeForm {
        match self {
            Self::Pairs { bytes, .. } => ChangeForm::Pairs { bytes_max: bytes },
            Self::None | Self::Runs { .. } | Self::Auto => ChangeForm::Runs,
        }
    }
}

impl fmt::Display for AppendScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "0x0"),
            Self::Pairs { records, bytes } => write!(f, "{records}x{bytes}"),
            Self::Runs { records } => write!(f, "{records}xruns"),
            Self::Auto => write!(f, "auto"),
        }
    }
}

/// A text that is not a scheme.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is no append scheme: `NxM` (records a page, bytes a record), `Nxruns`, `0x0` or `auto`, \
     N at most {max}; tables with another one follow as `,TABLE=SCHEME`",
    max = APPEND_SLOTS_MAX
)]
pub struct BadScheme(String);

impl FromStr for AppendScheme {
    type Err = BadScheme;

    fn from_str(text: &str) -> Result<Self, BadScheme> {
        let bad = || BadScheme(text.to_owned());
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let (records, bytes) = text.split_once('x').ok_or_else(bad)?;
        let records: u8 = records.parse().map_err(|_| bad())?;
        let scheme = match bytes {
            "runs" => Self::Runs { records },
            bytes => Self::Pairs { records, bytes: bytes.parse().map_err(|_| bad())? },
        };
        match scheme {
            Self::Pairs { records: 0, bytes: 0 } => Ok(Self::None),
            Self::Pairs { records: 0, .. } | Self::Pairs { bytes: 0, .. } => Err(bad()),
            Self::Runs { records: 0 } => Err(bad()),
            scheme if scheme.records_max() > APPEND_SLOTS_MAX => Err(bad()),
            scheme => Ok(scheme),
        }
    }
}

/// A default scheme, and the tables with a scheme of their own: `2x4,history=0x0`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Appends {
    /// Scheme of all other tables.
    pub scheme: AppendScheme,
    /// Tables by name, with their schemes; for the lab's classic engine.
    pub tables: Vec<(String, AppendScheme)>,
}

impl Appends {
    /// `auto` for every table.
    #[must_use]
    pub const fn auto() -> Self {
        Self { scheme: AppendScheme::Auto, tables: Vec::new() }
    }

    /// Scheme of the table called `name`.
    #[must_use]
    pub fn of(&self, name: &str) -> AppendScheme {
        let own = self.tables.iter().find(|(table, _)| table == name);
        own.map_or(self.scheme, |(_, scheme)| *scheme)
    }

    /// Most slots that any page is written with.
    #[must_use]
    pub fn records_max(&self) -> u8 {
        self.each().map(AppendScheme::records_max).max().unwrap_or_default()
    }

    /// Slots that some page is written with in any case: the device has to carry them.
    #[must_use]
    pub fn records_min(&self) -> u8 {
        self.each().map(AppendScheme::records_min).max().unwrap_or_default()
    }

    fn each(&self) -> impl Iterator<Item = AppendScheme> + '_ {
        self.tables.iter().map(|(_, scheme)| *scheme).chain([self.scheme])
    }
}

impl fmt::Display for Appends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.scheme)?;
        self.tables.iter().try_for_each(|(table, scheme)| write!(f, ",{table}={scheme}"))
    }
}

impl FromStr for Appends {
    type Err = BadScheme;

    fn from_str(text: &str) -> Result<Self, BadScheme> {
        let mut parts = text.split(',');
        let scheme = parts.next().unwrap_or_default().parse()?;
        let table = |part: &str| {
            let (name, scheme) = part.split_once('=').ok_or_else(|| BadScheme(part.to_owned()))?;
            Ok((name.to_owned(), scheme.parse()?))
        };
        Ok(Self { scheme, tables: parts.map(table).collect::<Result<_, _>>()? })
    }
}

impl TryFrom<String> for Appends {
    type Error = BadScheme;

    fn try_from(text: String) -> Result<Self, BadScheme> {
        text.parse()
    }
}

impl From<Appends> for String {
    fn from(appends: Appends) -> Self {
        appends.to_string()
    }
}

/// The capability that a device lacks for appends.
pub(crate) const fn capability_of(lack: AppendLack) -> &'static str {
    match lack {
        AppendLack::Cells => "flash cells that take a second program, for in-place appends",
        AppendLack::PartialPrograms => "more programs of a page (NOP), for in-place appends",
        AppendLack::ReprogramOrder => "later programs in any order, for in-place appends",
        AppendLack::IsolatedCuts => {
            "partial programs whose cut harms nothing else, for in-place appends"
        }
        AppendLack::CodeWords => "smaller code words of the ECC, for in-place appends",
        AppendLack::Pages => "fewer pages, for in-place appends",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_is_read_as_it_is_written() {
        for text in ["0x0", "2x4", "3xruns", "auto", "2x4,history=0x0", "auto,a=1x8,b=2xruns"] {
            assert_eq!(text.parse::<Appends>().unwrap().to_string(), text);
        }
        let appends: Appends = "2x4,history=0x0".parse().unwrap();
        assert_eq!(appends.of("history"), AppendScheme::None);
        assert_eq!(appends.of("account").records_max(), 2);
        assert_eq!(appends.records_max(), 2);
    }

    #[test]
    fn what_is_no_scheme_is_refused() {
        for text in
            ["", "2", "0x4", "2x0", "0xruns", "8x4", "2x300", "2x4,", "2x4,history", "x", "-1x4"]
        {
            assert!(text.parse::<Appends>().is_err(), "{text}");
        }
    }
}
