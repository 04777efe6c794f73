//! Reading past damage: every row that reads, and the key ranges that do not.

use flagstone_engine::blocking::Stopped;
use flagstone_engine::{ScanRange, successor};
use flagstone_nand::NandError;
use flagstone_space::SpaceError;

use super::rows::{KeyValue, Range};
use crate::ReadError;

/// Keys of a table whose rows do not read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingRange {
    /// First key.
    pub low: Vec<u8>,
    /// First key behind the range; none = to the end of the table.
    pub high: Option<Vec<u8>>,
    /// Error that is in the way.
    pub error: ReadError,
}

/// An item of [`crate::Snapshot::sound_rows`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SoundRow {
    /// A row.
    Row(KeyValue),
    /// A range of keys whose rows, if there are any, do not read; it comes in key order among the rows.
    Missing(MissingRange),
}

/// Rows of a table in ascending order, and the missing ranges between them. Ends after the first error that
/// is not damage.
#[derive(Debug)]
pub struct SoundRows<'a> {
    rows: Range<'a>,
    /// Where the leaf of a key ends.
    end_of: EndOf<'a>,
}

/// Gives the end of the leaf of a key, as far as the way to the leaf reads.
pub(super) type EndOfKey<'a> = dyn Fn(&[u8]) -> Option<Vec<u8>> + 'a;

pub(super) struct EndOf<'a>(pub(super) Box<EndOfKey<'a>>);

impl std::fmt::Debug for EndOf<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EndOf")
    }
}

impl<'a> SoundRows<'a> {
    pub(super) fn new(rows: Range<'a>, end_of: Box<EndOfKey<'a>>) -> Self {
        Self { rows, end_of: EndOf(end_of) }
    }

    /// The range of keys that `stopped` stands for; the rows go on behind it.
    fn pass(&mut self, stopped: Stopped, error: ReadError) -> MissingRange {
        match stopped {
            Stopped::Row(key) => {
                self.rows.go_on(None);
                MissingRange { high: Some(successor(&key)), low: key, error }
            }
            Stopped::Leaf(ScanRange { low, high }) => {
                // An end at or below the key, from a damaged way to the leaf, is damage too.
                let end = (self.end_of.0)(&low).filter(|end| *end > low);
                let end = match (end, &high) {
                    (Some(end), Some(high)) => Some(end.min(high.clone())),
                    (end, high) => end.or_else(|| high.clone()),
                };
                let rest = end.clone().map(|low| ScanRange { low, high });
                self.rows.go_on(rest.filter(|rest| !rest.is_empty()));
                MissingRange { low, high: end, error }
            }
        }
    }
}

impl Iterator for SoundRows<'_> {
    type Item = Result<SoundRow, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let error = match self.rows.next()? {
            Ok(row) => return Some(Ok(SoundRow::Row(row))),
            Err(error) => error,
        };
        match self.rows.take_stopped().filter(|_| is_damage(&error)) {
            Some(stopped) => Some(Ok(SoundRow::Missing(self.pass(stopped, error)))),
            None => Some(Err(error)),
        }
    }
}

/// Whether an error is about a page that does not read, so that other pages may still read.
pub(crate) const fn is_damage(error: &ReadError) -> bool {
    matches!(
        error,
        ReadError::Corrupt { .. }
            | ReadError::Device(NandError::Uncorrectable { .. })
            | ReadError::Storage(
                SpaceError::Corrupt { .. }
                    | SpaceError::Lost(_)
                    | SpaceError::Unmapped(_)
                    | SpaceError::OutOfRange(_)
            )
    )
}
