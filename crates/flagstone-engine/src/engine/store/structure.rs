//! Structure changes that inner nodes on flash lack: separators to put and to delete, by
//! (level, key), so that restart applies them without knowing which page held them then (rule D2).

use std::collections::BTreeMap;

use flagstone_space::{LogicalPage, Lsn};

use crate::node;
use crate::node::NodeView;

/// A separator's newest change: the child that it leads to, or none when the separator went.
type Change = (Lsn, Option<LogicalPage>);

/// Structure deltas of one tree.
#[derive(Debug, Default)]
pub(crate) struct Structure {
    changes: BTreeMap<(u8, Vec<u8>), Change>,
}

impl Structure {
    /// Notes one change; the newest change of a separator replaces older ones.
    pub(crate) fn note(&mut self, level: u8, key: &[u8], lsn: Lsn, child: Option<LogicalPage>) {
        let entry = self.changes.entry((level, key.to_vec())).or_insert((lsn, child));
        if entry.0 <= lsn {
            *entry = (lsn, child);
        }
    }

    /// Forgets the changes that an image of a node, complete to `upto`, already has.
    pub(crate) fn forget(&mut self, level: u8, low: &[u8], high: Option<&[u8]>, upto: Lsn) {
        self.changes.retain(|(at, key), (lsn, _)| {
            *at != level
                || *lsn > upto
                || key.as_slice() < low
                || high.is_some_and(|high| key.as_slice() >= high)
        });
    }

    /// The first change at or before `lsn`: some node on flash lacks it.
    pub(crate) fn first_until(&self, lsn: Lsn) -> Option<(u8, Vec<u8>)> {
        let old = self.changes.iter().find(|(_, change)| change.0 <= lsn);
        old.map(|((level, key), _)| (*level, key.clone()))
    }

    /// Whether every change is on flash.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Brings the image of an inner node, complete to `lsn`, up to date.
    ///
    /// Returns the new image with the LSN that it is complete to, or none when no change was missing or
    /// the result would not fit its page (then the image is not of this tree's history).
    pub(crate) fn apply(&self, image: &[u8], lsn: Lsn) -> Option<(Vec<u8>, Lsn)> {
        let view = NodeView::trusted(image);
        let (low, high) = (view.low(), view.high());
        let mut puts = Vec::new();
        let mut deletes = Vec::new();
        let mut upto = lsn;
        let from = (view.level(), low.to_vec());
        for ((level, key), (at, child)) in self.changes.range(from..) {
            if *level != view.level() || high.as_ref().is_some_and(|high| key.as_slice() >= *high) {
                break;
            }
            if *at <= lsn {
                continue;
            }
            upto = upto.max(*at);
            match child {
                Some(child) => puts.push((key.as_slice(), *child)),
                None => deletes.push(key.as_slice()),
            }
        }
        if upto == lsn {
            return None;
        }
        let built = node::inner_with(&view, &puts, &deletes, image.len()).ok()?;
        let mut built = built.into_iter();
        let first = built.next()?;
        built.next().is_none().then_some((first.image, upto))
    }
}
