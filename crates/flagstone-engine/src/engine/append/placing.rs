//! Regions: the tables whose leaves take appends, and those whose leaves are whole pages.
//!
//! Owns what merges say of how a table grows, and the choice. Slots are left free behind a leaf wherever
//! they fit (rule A1): the region says whether they are used, and counts the table's pages apart.
//!
//! | table | region |
//! | --- | --- |
//! | declared `0x0`; growing by runs; not known yet | `REGION_TABLES` |
//! | declared `Nxruns`; any other | `REGION_APPENDS` |
//!
//! A *run* is several new rows side by side. A table that most merges give runs (a history, a log, a series
//! by time) fills one leaf after the other and leaves it alone then: an append would only put off the page
//! that is written anyway. Rows that are replaced, or that come here and there, are small changes of leaves
//! that stay. How much room a split leaves is decided apart (rule A5): a load, too, comes in runs.
//!
//! What merges say is not kept: a unit of an earlier session takes no append (space, A3), so that each
//! leaf is written as a whole before it matters again.

use flagstone_space::RegionId;

use crate::appends::AppendScheme;
use crate::delta::{DeltaMap, KeyRange};
use crate::engine::{Engine, Table};
use crate::node::NodeView;
use crate::runtime::{REGION_APPENDS, REGION_TABLES};

/// What a merge does to the rows of its leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// One row at the end: the begin of a run, or none.
    Unknown,
    /// Several rows are added side by side, and nothing else changes.
    Run,
    /// Rows are replaced or taken away, or added in several places.
    Other,
}

impl Growth {
    /// What `deltas` do to the rows of a leaf, of which there are `grown` more then.
    pub(crate) fn of(
        leaf: NodeView<'_>,
        deltas: &DeltaMap,
        range: KeyRange<'_>,
        grown: i64,
    ) -> Self {
        let mut keys = deltas.range(range).map(|entry| entry.key());
        let Some(first) = keys.next() else { return Self::Other };
        let last = keys.last().unwrap_or(first);
        // No row of the leaf lies between the first key and the last.
        match (leaf.search(first), leaf.search(last)) {
            (Err(one), Err(other)) if one == other && grown > 1 => Self::Run,
            (Err(place), Err(_)) if grown == 1 && place == leaf.count() => Self::Unknown,
            _ => Self::Other,
        }
    }
}

/// Merges after which an earlier one counts no more.
const MERGES_KNOWN: u32 = 64;

/// How a table grew lately.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rows {
    /// Share of runs among the merges that say something.
    runs: f64,
    seen: u32,
}

impl Rows {
    pub(crate) fn note(&mut self, growth: Growth) {
        let run = match growth {
            Growth::Unknown => return,
            Growth::Run => 1.0,
            Growth::Other => 0.0,
        };
        self.seen = (self.seen + 1).min(MERGES_KNOWN);
        self.runs += (run - self.runs) / f64::from(self.seen);
    }

    /// Whether most merges are small changes of leaves that stay.
    fn are_changed(self) -> bool {
        self.seen > 0 && self.runs <= 0.5
    }
}

impl Engine {
    /// A merge changed a leaf of the table so.
    pub(crate) fn note_rows(&mut self, table: Table, growth: Growth) {
        if let Some(tree) = self.trees.get_mut(table.id as usize) {
            tree.rows.note(growth);
        }
    }

    /// The scheme that is declared for a table.
    pub(crate) fn scheme_of(&self, table: Table) -> AppendScheme {
        let declared = self.trees.get(table.id as usize).and_then(|tree| tree.declared);
        declared.unwrap_or(self.options.append_scheme.scheme)
    }

    /// Region in which a table's leaves are written at present; that of all tables for one of another engine.
    #[must_use]
    pub fn region_of(&self, table: Table) -> RegionId {
        let Ok(table) = self.own(table) else { return REGION_TABLES };
        let takes_appends = self.append_room.slots_max > 0
            && match self.scheme_of(table) {
                AppendScheme::None => false,
                AppendScheme::Auto => {
                    self.trees.get(table.id as usize).is_some_and(|it| it.rows.are_changed())
                }
                AppendScheme::Runs { .. } | AppendScheme::Pairs { .. } => true,
            };
        if takes_appends { REGION_APPENDS } else { REGION_TABLES }
    }

    /// Slots behind a node that is about to be written, and the region that it is counted for.
    pub(crate) fn placing_of(&self, image: &[u8]) -> (u8, RegionId) {
        let view = NodeView::trusted(image);
        let table = Table::of(view.tree());
        let region = if view.is_leaf() { self.region_of(table) } else { REGION_TABLES };
        (self.slots_behind(image), region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(merges: &[Growth]) -> Rows {
        let mut rows = Rows::default();
        merges.iter().for_each(|growth| rows.note(*growth));
        rows
    }

    #[test]
    fn what_most_merges_do_decides() {
        use Growth::{Other, Run, Unknown};
        assert!(!known(&[]).are_changed(), "nothing is known");
        assert!(!known(&[Unknown]).are_changed());
        assert!(known(&[Other]).are_changed());
        assert!(known(&[Run, Other]).are_changed(), "loaded, then changed");
        assert!(!known(&[Run, Run, Other, Unknown]).are_changed());
    }

    #[test]
    fn a_table_that_behaves_otherwise_is_known_so_after_as_many_merges() {
        let mut rows = known(&[Growth::Run; 10_000]);
        (0..MERGES_KNOWN).for_each(|_| rows.note(Growth::Other));
        assert!(rows.are_changed());
        (0..MERGES_KNOWN).for_each(|_| rows.note(Growth::Run));
        assert!(!rows.are_changed());
    }
}
