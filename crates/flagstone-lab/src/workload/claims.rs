//! Values that concurrent clients may leave in a cell that each of them overwrites.
//!
//! Owns the claims that clients' inputs lay to cells, and the consequences of the commits that
//! returned; never reads a database itself.
//!
//! - **M1** A client's commit that returned stands until another transaction overwrites it: the cell
//!   holds that client's last such value, the value of a commit that may have become durable
//!   without having returned, or another client's value. It never holds the loaded value.
//! - **M2** A transaction in flight is there completely or not at all.

use std::collections::BTreeMap;

/// Whether clients commit every transaction that can commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GivingUp {
    /// They do: which of their inputs committed is known from how many did.
    #[default]
    Never,
    /// Some abort where they would commit, so that counts say less.
    AtWill,
}

/// Whether a transaction is known to have committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its commit returned.
    Returned,
    /// Nothing returned: it may be there.
    InFlight,
}

/// A value that a client wrote, or was about to write.
#[derive(Clone, Copy, Debug)]
struct Claim<V> {
    client: u64,
    standing: Standing,
    value: V,
}

/// Claims to cells of type `K`, which hold values of type `V`.
#[derive(Clone, Debug)]
pub(crate) struct Claims<K, V> {
    cells: BTreeMap<K, Vec<Claim<V>>>,
}

impl<K: Ord, V: PartialEq> Claims<K, V> {
    /// No claims.
    pub(crate) fn new() -> Self {
        Self { cells: BTreeMap::new() }
    }

    /// The next transaction of `client` writes `value` to `cell`.
    pub(crate) fn add(&mut self, cell: K, client: u64, standing: Standing, value: V) {
        let claims = self.cells.entry(cell).or_default();
        if standing == Standing::Returned {
            // Its own later commit has overwritten the earlier one.
            claims.retain(|claim| claim.client != client);
        }
        claims.push(Claim { client, standing, value });
    }

    /// Cells with claims.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &K> {
        self.cells.keys()
    }

    /// Whether a cell that was loaded with `loaded` may hold `found` (rule M1).
    pub(crate) fn explains(&self, cell: &K, found: &V, loaded: &V) -> bool {
        self.allows(cell, found, loaded, |_| true)
    }

    /// Whether it may, if the transaction in flight of `client` is there.
    pub(crate) fn explains_with(&self, cell: &K, found: &V, client: u64) -> bool {
        let claims = self.cells.get(cell).into_iter().flatten();
        let mut later =
            claims.filter(|it| it.client != client || it.standing == Standing::InFlight);
        later.any(|claim| claim.value == *found)
    }

    /// Whether it may, if the transaction in flight of `client` is not there.
    pub(crate) fn explains_without(&self, cell: &K, found: &V, loaded: &V, client: u64) -> bool {
        self.allows(cell, found, loaded, |claim| {
            claim.client != client || claim.standing == Standing::Returned
        })
    }

    fn allows(&self, cell: &K, found: &V, loaded: &V, counts: impl Fn(&Claim<V>) -> bool) -> bool {
        let claims = || self.cells.get(cell).into_iter().flatten().filter(|claim| counts(claim));
        claims().any(|claim| claim.value == *found)
            || (found == loaded && claims().all(|claim| claim.standing == Standing::InFlight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_commit_stands_until_somebody_overwrites_it() {
        let mut claims = Claims::new();
        assert!(claims.explains(&"cell", &0, &0), "as loaded");
        claims.add("cell", 1, Standing::InFlight, 9);
        assert!(claims.explains(&"cell", &0, &0) && claims.explains(&"cell", &9, &0));
        claims.add("cell", 2, Standing::Returned, 5);
        claims.add("cell", 2, Standing::Returned, 6);
        claims.add("cell", 2, Standing::InFlight, 7);
        let held = [0, 5, 6, 7, 8, 9].map(|found| claims.explains(&"cell", &found, &0));
        assert_eq!(held, [false, false, true, true, false, true]);
    }

    #[test]
    fn a_transaction_in_flight_is_there_or_not() {
        let mut claims = Claims::new();
        claims.add("cell", 1, Standing::InFlight, 9);
        assert!(claims.explains_with(&"cell", &9, 1));
        assert!(!claims.explains_with(&"cell", &0, 1));
        assert!(claims.explains_without(&"cell", &0, &0, 1));
        assert!(!claims.explains_without(&"cell", &9, &0, 1));
    }
}
