//! Evidence of commit that stands in the pages themselves: chains of flags, and cycles.
//!
//! Owns the rules by which shadow pages on flash tell whether their transaction committed, which
//! flags a restart has to finish, and which flags are due before a page may be reclaimed. Pure:
//! never reads a device, never keeps state. The store and the exhaustive models of the tests call
//! the same functions.
//!
//! | protocol | committed | restart finishes | before pages go |
//! | --- | --- | --- | --- |
//! | [`Flags::Cfc`] | one page of the transaction is `True` | flags of all heads | committed: their links become `True` |
//! | [`Flags::Afc`] | no page of it is `False` or `First` | nothing | aborted: another page becomes `False` |
//! | [`Cycles::Scc`] | the cycle through its records closes | erases uncommitted records | only superseded or uncommitted records |
//! | [`Cycles::Bpcc`] | the cycle closes and no record is straddled | nothing | the records it straddles go first |
//!
//! - **E1** A link counts only when its target has the same transaction and was written earlier;
//!   transaction numbers are never reused (rule D3). Without this check a relocated page's old
//!   place, used again by another transaction, is handed a flag.
//! - **E2** CFC commits at its first flag: a transaction with heads of both kinds is committed. The
//!   paper takes such a transaction for aborted, which fails beside its own garbage collection.
//! - **E3** Restart finishes the flags of such a transaction before any page is reclaimed.
//! - **E4** The copy that a relocation leaves of a running transaction's page is erased before that
//!   transaction commits, or AFC's stale `First` outlives the commit.
//! - **E5** A block is reclaimed as a whole: evidence that one page of a transaction leaves to
//!   another counts only when the other stays. Two pages of an aborted AFC transaction that are not
//!   `True`, in one block, would each rely on the other.
//! - **E6** An erase that is cut leaves any of the block's pages. When all pages of an aborted AFC
//!   transaction go with one erase, the `True` ones become `False` first, or one of them might be
//!   left alone and prove the transaction committed. And a page that is a CFC head afterwards may
//!   have been linked to while its transaction was whole: before a restart takes a transaction for
//!   uncommitted it reads the flags of all its pages; the paper reads the flags of its heads alone.
//!
//! Sources: On et al., "Flag Commit", TKDE 24(9), 2012; Prabhakaran et al., "Transactional Flash",
//! OSDI 2008.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_space::{GroupId, LogicalPage, Version};

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::effort;

/// Commit flag of a shadow page. Bits only fall: `First` (11) to `True` (10) to `False` (00).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flag {
    /// Not set: written by CFC everywhere, by AFC on the first page. Counts as false.
    First,
    /// Set.
    True,
    /// Cleared, once and for all (AFC only).
    False,
}

/// Evidence that a shadow page carries; `A` is an address on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shadow<A> {
    /// Where it stands.
    pub at: A,
    /// Logical page.
    pub page: LogicalPage,
    /// Its version.
    pub version: Version,
    /// Transaction that wrote it.
    pub xid: GroupId,
    /// Its number among the programs of its transaction: copies have their original's.
    pub order: u32,
    /// Page that the transaction wrote before it.
    pub link: Option<A>,
    /// Its flag.
    pub flag: Flag,
}

/// The two protocols with flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flags {
    /// Commit-based: flags say "committed", collection cares for committed transactions.
    Cfc,
    /// Abort-based: flags say "not aborted", collection cares for aborted transactions.
    Afc,
}

/// Flags to be programmed, each at its address.
pub type FlagWrites<A> = Vec<(A, Flag)>;

impl Flags {
    /// Flag with which a page is written: `order` is its number in its transaction.
    #[must_use]
    pub fn initial(self, order: u32) -> Flag {
        match self {
            Self::Afc if order > 0 => Flag::True,
            _ => Flag::First,
        }
    }

    /// Flag of a copy that a relocation writes: a transaction that has ended needs no chain.
    #[must_use]
    pub fn relocated<A>(self, shadow: &Shadow<A>, is_committed: bool) -> Flag {
        if is_committed { Flag::True } else { shadow.flag }
    }

    /// Transactions that the pages on flash prove committed (rule E2).
    #[must_use]
    pub fn committed<A: Copy + Ord>(self, pages: &[Shadow<A>]) -> BTreeSet<GroupId> {
        let mut proof: BTreeMap<GroupId, bool> = BTreeMap::new();
        for shadow in pages {
            let is_true = shadow.flag == Flag::True;
            let proven = proof.entry(shadow.xid).or_insert(self == Self::Afc);
            match self {
                Self::Cfc => *proven |= is_true,
                Self::Afc => *proven &= is_true,
            }
        }
        proof.into_iter().filter(|(_, proven)| *proven).map(|(xid, _)| xid).collect()
    }

    /// Flags that commit the transaction whose current pages are `own`, in this order. Committed at
    /// the first flag (CFC), or the only one (AFC).
    #[must_use]
    pub fn to_commit<A: Copy + Ord>(self, own: &[Shadow<A>]) -> FlagWrites<A> {
        match self {
            Self::Cfc => heads(own).map(|head| (head.at, Flag::True)).collect(),
            Self::Afc => {
                let first = own.iter().filter(|shadow| shadow.flag == Flag::First);
                first.map(|shadow| (shadow.at, Flag::True)).collect()
            }
        }
    }

    /// Flags that restart programs before any page is reclaimed (rule E3): `own` are the pages of a
    /// committed transaction.
    #[must_use]
    pub fn to_finish<A: Copy + Ord>(self, own: &[Shadow<A>]) -> FlagWrites<A> {
        match self {
            Self::Cfc => heads(own)
                .filter(|head| head.flag != Flag::True)
                .map(|head| (head.at, Flag::True))
                .collect(),
            Self::Afc => Vec::new(),
        }
    }

    /// Flags that must be programmed before the pages `going` of one transaction go, all with one
    /// erase (rules E5 and E6); `stay` are its other pages on flash.
    #[must_use]
    pub fn before_reclaim<A: Copy + Ord>(
        self,
        stay: &[Shadow<A>],
        going: &[Shadow<A>],
        is_committed: bool,
    ) -> FlagWrites<A> {
        let is_true = |shadow: &Shadow<A>| shadow.flag == Flag::True;
        match self {
            Self::Cfc if is_committed => {
                let heirs = going.iter().filter_map(|shadow| target(stay, shadow));
                let heirs: BTreeSet<A> =
                    heirs.filter(|heir| !is_true(heir)).map(|heir| heir.at).collect();
                heirs.into_iter().map(|heir| (heir, Flag::True)).collect()
            }
            Self::Afc if !is_committed && stay.is_empty() => {
                let alone = going.iter().filter(|shadow| is_true(shadow));
                alone.map(|shadow| (shadow.at, Flag::False)).collect()
            }
            Self::Afc if !is_committed && stay.iter().all(is_true) => {
                // The half toward the last page gets one.
                let heir = stay.iter().max_by_key(|shadow| shadow.order);
                heir.map(|heir| (heir.at, Flag::False)).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The page that a link leads to, if the link counts (rule E1).
fn target<'p, A: Copy + Ord>(own: &'p [Shadow<A>], from: &Shadow<A>) -> Option<&'p Shadow<A>> {
    let link = from.link?;
    let counts = |to: &&Shadow<A>| to.at == link && to.xid == from.xid && to.order < from.order;
    own.iter().find(counts)
}

/// Pages of one transaction to which none of its pages links.
fn heads<A: Copy + Ord>(own: &[Shadow<A>]) -> impl Iterator<Item = &Shadow<A>> {
    let linked: BTreeSet<A> =
        own.iter().filter_map(|shadow| target(own, shadow)).map(|to| to.at).collect();
    own.iter().filter(move |shadow| !linked.contains(&shadow.at))
}

/// Newest committed page of each logical page. Two copies of one version may stand side by side
/// while one is being moved: either will do.
#[must_use]
pub fn current<A: Copy + Ord>(
    pages: &[Shadow<A>],
    committed: &BTreeSet<GroupId>,
) -> BTreeMap<LogicalPage, Shadow<A>> {
    let mut newest: BTreeMap<LogicalPage, Shadow<A>> = BTreeMap::new();
    for shadow in pages.iter().filter(|shadow| committed.contains(&shadow.xid)) {
        let place = newest.entry(shadow.page).or_insert(*shadow);
        if place.version < shadow.version {
            *place = *shadow;
        }
    }
    newest
}

/// An intention record of cyclic commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Intention {
    /// Logical page.
    pub page: LogicalPage,
    /// Its version.
    pub version: Version,
    /// Next record of the cycle.
    pub next: (LogicalPage, Version),
    /// Last committed version of the page when this one was made (BPCC only).
    pub back: Version,
}

/// Intention records on flash, by page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intentions(BTreeMap<LogicalPage, Filed>);

/// Records that concern one page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Filed {
    /// Its records, the oldest first.
    own: Vec<Intention>,
    /// Records whose `next` is a version of the page.
    naming: Vec<Intention>,
}

impl FromIterator<Intention> for Intentions {
    fn from_iter<I: IntoIterator<Item = Intention>>(records: I) -> Self {
        let mut all = Self::default();
        records.into_iter().for_each(|record| all.insert(record));
        all
    }
}

impl Intentions {
    /// Files a record; copies of one that is there already count once.
    pub fn insert(&mut self, record: Intention) {
        let own = &mut self.0.entry(record.page).or_default().own;
        let place = own.partition_point(|other| other.version < record.version);
        if own.get(place) == Some(&record) {
            return;
        }
        own.insert(place, record);
        self.0.entry(record.next.0).or_default().naming.push(record);
    }

    /// Takes a record out.
    pub fn remove(&mut self, record: &Intention) {
        if let Some(filed) = self.0.get_mut(&record.page) {
            filed.own.retain(|other| other != record);
        }
        if let Some(filed) = self.0.get_mut(&record.next.0) {
            filed.naming.retain(|other| other != record);
        }
    }

    /// Whether the `next` of a record is a version of `page`.
    #[must_use]
    pub fn are_named(&self, page: LogicalPage) -> bool {
        !self.naming(page).is_empty()
    }

    fn own(&self, page: LogicalPage) -> &[Intention] {
        self.0.get(&page).map_or(&[], |filed| &filed.own)
    }

    fn naming(&self, page: LogicalPage) -> &[Intention] {
        self.0.get(&page).map_or(&[], |filed| &filed.naming)
    }

    /// Highest version of a page.
    fn highest(&self, page: LogicalPage) -> Option<Version> {
        self.own(page).last().map(|record| record.version)
    }

    fn find(&self, (page, version): (LogicalPage, Version)) -> Option<&Intention> {
        self.own(page).iter().find(|record| record.version == version)
    }

    /// Whether a later record says that this one did not commit.
    fn is_straddled(&self, (page, version): (LogicalPage, Version)) -> bool {
        self.own(page).iter().any(|record| straddles(record, version))
    }
}

/// Whether `record` says that `version` of its page did not commit.
fn straddles(record: &Intention, version: Version) -> bool {
    record.back < version && version < record.version
}

/// The two protocols with cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cycles {
    /// Simple: uncommitted records are erased before their page is written again.
    Scc,
    /// With back pointers: later records straddle uncommitted ones.
    Bpcc,
}

impl Cycles {
    /// Version of a new record of `page`: never one that a record on flash has, nor (BPCC) one
    /// that a record names.
    #[must_use]
    pub fn next_version(self, records: &Intentions, page: LogicalPage) -> Version {
        let named = records.naming(page).iter().map(|record| record.next.1);
        let named = named.filter(|_| self == Self::Bpcc).max();
        let highest = records.highest(page).max(named);
        Version(highest.map_or(0, |version| version.0 + 1))
    }

    /// Records that must be erased before `page` is written; `is_committed` tells of each.
    #[must_use]
    pub fn before_write(
        self,
        records: &Intentions,
        page: LogicalPage,
        is_committed: impl Fn(&Intention) -> bool,
    ) -> BTreeSet<Intention> {
        let concerned = records.own(page).iter().chain(records.naming(page));
        match self {
            Self::Scc => concerned.filter(|record| !is_committed(record)).copied().collect(),
            Self::Bpcc => BTreeSet::new(),
        }
    }

    /// Records that must go before the superseded `victim` may: it is the only evidence that their
    /// transactions did not commit.
    #[must_use]
    pub fn before_reclaim(
        self,
        records: &Intentions,
        victim: &Intention,
        is_committed: impl Fn(&Intention) -> bool,
    ) -> BTreeSet<Intention> {
        let depends = |record: &&Intention| {
            straddles(victim, record.next.1) && *record != victim && !is_committed(record)
        };
        match self {
            Self::Bpcc if is_committed(victim) => {
                records.naming(victim.page).iter().filter(depends).copied().collect()
            }
            _ => BTreeSet::new(),
        }
    }

    /// The committed version of each page, out of the records on flash.
    #[must_use]
    pub fn current(self, records: &Intentions) -> BTreeMap<LogicalPage, Version> {
        let newest = |(page, filed): (&LogicalPage, &Filed)| {
            let mut versions = filed.own.iter().rev().map(|record| record.version);
            let version = match self {
                // All but the highest are committed: uncommitted records are erased before a page
                // is written.
                Self::Scc => {
                    let highest = versions.next()?;
                    let is_committed = self.is_committed(records, (*page, highest));
                    if is_committed { Some(highest) } else { versions.next() }
                }
                Self::Bpcc => {
                    versions.find(|version| self.is_committed(records, (*page, *version)))
                }
            };
            Some((*page, version?))
        };
        records.0.iter().filter_map(newest).collect()
    }

    /// Whether the cycle through a record closes. SCC asks it of the highest version of a page.
    #[must_use]
    pub fn is_committed(self, records: &Intentions, record: (LogicalPage, Version)) -> bool {
        let mut visited = BTreeSet::new();
        let mut place = record;
        while visited.insert(place) {
            let is_straddled = |place| self == Self::Bpcc && records.is_straddled(place);
            let Some(record) = records.find(place) else { return true };
            let next = record.next;
            match records.highest(next.0) {
                _ if is_straddled(place) || is_straddled(next) => return false,
                Some(highest) if highest == next.1 => place = next,
                highest => return highest > Some(next.1),
            }
        }
        true
    }
}
