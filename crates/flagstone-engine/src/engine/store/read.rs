//! Committed values: a base with the deltas above it, up to an LSN.

use flagstone_space::Lsn;

use crate::delta::{Op, Value, Versions, apply};
use crate::engine::step::Step;
use crate::engine::store::Store;
use crate::engine::store::catalog::Table;
use crate::engine::store::descent::Seek;
use crate::engine::store::value::Descriptor;
use crate::error::EngineError;
use crate::node::{NodeView, ValueRef};

/// Result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The key has no value.
    Absent,
    /// The value is in the caller's buffer.
    Inline,
    /// The value has pages of its own, which the caller reads.
    Large(Descriptor),
}

impl Store {
    /// Reads a committed value, without a transaction.
    pub(crate) fn read_committed(
        &mut self,
        table: Table,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Step<Read> {
        let value = self.committed_value(table, key, Lsn(u64::MAX))?;
        into_read(value, out)
    }

    pub(crate) fn check_key(&self, key: &[u8]) -> Result<(), EngineError> {
        let size_max = self.key_size_max();
        if key.len() > size_max {
            return Err(EngineError::KeyTooLong { size: key.len(), size_max });
        }
        Ok(())
    }

    /// The value of `key` made of commits up to `upto`.
    pub(crate) fn committed_value(
        &mut self,
        table: Table,
        key: &[u8],
        upto: Lsn,
    ) -> Step<Option<Value>> {
        self.load_runs_at(table, key)?;
        self.tell_query(table, key);
        let recovered = self.frontier.recovered;
        let is_settled = |lsn: Lsn| lsn > recovered && lsn <= upto;
        let whole = |(lsn, op): (Lsn, Op<'_>)| is_settled(lsn) && !matches!(op, Op::Patch(_));
        let versions = self.tree(table)?.deltas.versions(key);
        let mut all = versions;
        if all.any(whole) {
            let value = with_versions(None, versions, Lsn::ZERO, upto);
            self.pool.note_found();
            return Ok(value);
        }
        let has_none = versions.is_empty();
        let (base_lsn, value) = self.base_value(table, key)?;
        if has_none {
            return Ok(value);
        }
        Ok(with_versions(value, self.tree(table)?.deltas.versions(key), base_lsn, upto))
    }

    fn base_value(&mut self, table: Table, key: &[u8]) -> Step<(Lsn, Option<Value>)> {
        let index = self.leaf_for(table, Seek::At(key))?;
        let frame = self.pool.frame(index);
        Ok((frame.lsn, value_in(&NodeView::trusted(&frame.image), key)))
    }

    /// Whether the committed value is known without its leaf.
    pub(in crate::engine) fn is_set_by_delta(&self, table: Table, key: &[u8]) -> bool {
        let sets =
            |(lsn, op): (Lsn, Op<'_>)| lsn > self.frontier.recovered && !matches!(op, Op::Patch(_));
        self.runs.is_empty()
            && self.tree(table).is_ok_and(|tree| tree.deltas.versions(key).any(sets))
    }

    pub(in crate::engine) fn holds_delta(&self, table: Table, key: &[u8]) -> bool {
        self.tree(table).is_ok_and(|tree| tree.deltas.versions(key).next().is_some())
    }
}

/// The value of `key` in a leaf.
pub(crate) fn value_in(view: &NodeView<'_>, key: &[u8]) -> Option<Value> {
    let index = view.search(key).ok()?;
    match view.entry(index)?.value {
        ValueRef::Inline(bytes) => Some(Value::Inline(bytes.to_vec())),
        ValueRef::Ref(descriptor) => Some(Value::Ref(descriptor.to_vec())),
    }
}

/// A value with the versions of its key above `base` and up to `upto` applied.
fn with_versions(
    mut value: Option<Value>,
    versions: Versions<'_>,
    base: Lsn,
    upto: Lsn,
) -> Option<Value> {
    for (_, op) in versions.filter(|(lsn, _)| *lsn > base && *lsn <= upto) {
        // A patch never meets an out-of-line value: `Transactions::patch` leaves such a value to its owner,
        // which rewrites it whole.
        let _ = apply(op, &mut value);
    }
    value
}

pub(in crate::engine) fn into_read(value: Option<Value>, out: &mut Vec<u8>) -> Step<Read> {
    out.clear();
    match value {
        None => Ok(Read::Absent),
        Some(Value::Inline(bytes)) => {
            out.extend_from_slice(&bytes);
            Ok(Read::Inline)
        }
        Some(Value::Ref(descriptor)) => Ok(Read::Large(Descriptor::decode(&descriptor)?)),
    }
}
