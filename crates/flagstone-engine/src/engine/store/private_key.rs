//! Keys of the changes of all tables in one map: table number, then key.

use crate::delta::KeyRange;
use crate::engine::store::catalog::Table;

/// Key of a change in a transaction's private map.
pub(crate) fn private_key(table: Table, key: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.reserve(size_of::<u32>() + key.len());
    out.extend_from_slice(&table.id.to_be_bytes());
    out.extend_from_slice(key);
}

/// Splits a key of a private map.
pub(crate) fn split_private_key(key: &[u8]) -> (Table, &[u8]) {
    let (tree, rest) = key.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    (Table::of(u32::from_be_bytes(*tree)), rest)
}

/// Private keys of a range of one table: low inclusive, high exclusive.
pub(in crate::engine) fn private_bounds(table: Table, range: KeyRange<'_>) -> (Vec<u8>, Vec<u8>) {
    let (mut low, mut high) = (Vec::new(), Vec::new());
    private_key(table, range.low, &mut low);
    match range.high {
        Some(bound) => private_key(table, bound, &mut high),
        None => private_key(Table::of(table.id + 1), &[], &mut high),
    }
    (low, high)
}
