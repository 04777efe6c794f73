//! SCC and BPCC beside their own garbage collection.

use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::println;
use std::string::String;

use super::super::{Cycles, Intention, Intentions};
use super::{State, Verdict, effort, walk};
use flagstone_space::{LogicalPage, Version};

/// Rules that a variant leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Without {
    Nothing,
    /// SCC: erase before a page is written again.
    Erase,
    /// SCC: erase the records that name the page, too.
    EraseNaming,
    /// BPCC: versions that records name are taken.
    NamedVersions,
    /// BPCC: straddled records go before the record that straddles them.
    Straddled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Fate {
    Committed,
    Dead,
    Running,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scope {
    protocol: Cycles,
    without: Without,
    /// Transactions that may run at a time.
    at_once: usize,
    version_max: u64,
    /// Pages of each transaction that may begin at any time.
    transactions: &'static [&'static [u32]],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Chip {
    scope: Scope,
    records: BTreeSet<(Intention, Fate)>,
    /// Records of each running transaction, and whether they are written.
    runs: Vec<Vec<(Intention, bool)>>,
}

impl Chip {
    fn new(scope: Scope) -> Self {
        let pages: BTreeSet<u32> = scope.transactions.concat().into_iter().collect();
        let first = |page: &u32| {
            let (page, zero) = (LogicalPage(*page), Version(0));
            (Intention { page, version: zero, next: (page, zero), back: zero }, Fate::Committed)
        };
        Self { records: pages.iter().map(first).collect(), runs: Vec::new(), scope }
    }

    fn intentions(&self) -> Intentions {
        self.records.iter().map(|(record, _)| *record).collect()
    }

    fn has(&self, record: &Intention, fate: Fate) -> bool {
        self.records.contains(&(*record, fate))
    }

    fn committed_version(&self, page: LogicalPage) -> Option<Version> {
        let own = self.records.iter().filter(|(record, _)| record.page == page);
        own.filter(|(_, fate)| *fate == Fate::Committed).map(|(record, _)| record.version).max()
    }

    /// Whether records must be erased before `page` is written.
    fn must_erase(&self, records: &Intentions, page: LogicalPage) -> bool {
        let is_committed = |record: &Intention| self.has(record, Fate::Committed);
        let first = self.scope.protocol.before_write(records, page, is_committed);
        match self.scope.without {
            Without::Erase => false,
            Without::EraseNaming => first.iter().any(|record| record.page == page),
            _ => !first.is_empty(),
        }
    }

    fn next_version(&self, records: &Intentions, page: LogicalPage) -> Version {
        match self.scope.without {
            // SCC's rule does not look at the versions that records name.
            Without::NamedVersions => Cycles::Scc.next_version(records, page),
            _ => self.scope.protocol.next_version(records, page),
        }
    }

    fn begin(&self, pages: &[u32]) -> Option<Self> {
        let pages: Vec<LogicalPage> = pages.iter().copied().map(LogicalPage).collect();
        let records = self.intentions();
        let is_locked =
            |page: &LogicalPage| self.runs.iter().flatten().any(|(other, _)| other.page == *page);
        if pages.iter().any(|page| is_locked(page) || self.must_erase(&records, *page)) {
            return None;
        }
        let version = |page| self.next_version(&records, page);
        let made = |(index, page): (usize, &LogicalPage)| {
            let next = pages[(index + 1) % pages.len()];
            let back = self.committed_version(*page).unwrap_or_default();
            let next = (next, version(next));
            (Intention { page: *page, version: version(*page), next, back }, false)
        };
        let run: Vec<_> = pages.iter().enumerate().map(made).collect();
        if run.iter().any(|(record, _)| record.version.0 > self.scope.version_max) {
            return None;
        }
        let mut next = self.clone();
        next.runs.push(run);
        Some(next)
    }

    fn end(&self, number: usize, fate: Fate) -> Self {
        let mut next = self.clone();
        for (record, is_written) in next.runs.remove(number) {
            if is_written {
                next.records.remove(&(record, Fate::Running));
                next.records.insert((record, fate));
            }
        }
        next
    }

    fn write(&self, number: usize, index: usize) -> Self {
        let mut next = self.clone();
        next.runs[number][index].1 = true;
        next.records.insert((next.runs[number][index].0, Fate::Running));
        if next.runs[number].iter().all(|(_, is_written)| *is_written) {
            // The last record closes the cycle: committed.
            return next.end(number, Fate::Committed);
        }
        next
    }

    fn may_go(&self, records: &Intentions, record: &Intention, fate: Fate) -> bool {
        let is_not_dead = |other: &Intention| !self.has(other, Fate::Dead);
        match fate {
            Fate::Running => false,
            Fate::Dead => true,
            Fate::Committed => {
                let first = self.scope.protocol.before_reclaim(records, record, is_not_dead);
                let is_free = first.is_empty() || self.scope.without == Without::Straddled;
                is_free && self.committed_version(record.page) > Some(record.version)
            }
        }
    }

    fn reclaim(&self, out: &mut Vec<Self>) {
        let records = self.intentions();
        for (record, fate) in &self.records {
            if self.may_go(&records, record, *fate) {
                let mut next = self.clone();
                next.records.remove(&(*record, *fate));
                out.push(next);
            }
        }
    }
}

impl State for Chip {
    fn told(&self, next: &Self) -> String {
        let name = |record: &Intention| {
            let Intention { page, version, next, back } = record;
            format!("{}.{} (next {}.{}, back {})", page.0, version.0, next.0.0, next.1.0, back.0)
        };
        let mut told = Vec::new();
        let has = |chip: &Self, record: &Intention| {
            chip.records.iter().find(|(other, _)| other == record).map(|(_, fate)| *fate)
        };
        for (record, fate) in &next.records {
            match has(self, record) {
                None => told.push(format!("program {}", name(record))),
                Some(before) if before != *fate && *fate == Fate::Dead => {
                    told.push(format!("{} is dead", name(record)));
                }
                Some(_) => {}
            }
        }
        let gone = self.records.iter().filter(|(record, _)| has(next, record).is_none());
        told.extend(gone.map(|(record, _)| format!("erase {}", name(record))));
        told.extend((next.runs.len() > self.runs.len()).then(|| String::from("begin")));
        told.join("; ")
    }

    fn is_right(&self) -> bool {
        let pages = self.records.iter().map(|(record, _)| record.page);
        let truth: BTreeMap<LogicalPage, Version> =
            pages.filter_map(|page| Some((page, self.committed_version(page)?))).collect();
        self.scope.protocol.current(&self.intentions()) == truth
    }

    fn next(&self) -> Vec<Self> {
        let mut out = Vec::new();
        if self.runs.len() < self.scope.at_once {
            out.extend(self.scope.transactions.iter().filter_map(|pages| self.begin(pages)));
        }
        for (number, run) in self.runs.iter().enumerate() {
            let unwritten = run.iter().enumerate().filter(|(_, (_, is_written))| !is_written);
            out.extend(unwritten.map(|(index, _)| self.write(number, index)));
            out.push(self.end(number, Fate::Dead));
        }
        self.reclaim(&mut out);
        out
    }
}

const TWO: &[&[u32]] = &[&[1], &[2], &[1, 2]];
const THREE: &[&[u32]] = &[&[1, 2], &[2, 3], &[1, 3], &[1, 2, 3], &[1]];

fn walked(scope: Scope, limit: usize) -> Verdict {
    let verdict = walk(Chip::new(scope.clone()), limit);
    println!("{scope:?}: {verdict:?}");
    verdict
}

#[test]
fn cycles_recover_what_was_acknowledged() {
    for protocol in [Cycles::Scc, Cycles::Bpcc] {
        for (at_once, version_max, transactions) in
            [(1, 3, TWO), (1, 2, THREE), (2, 3, TWO), (2, 2, THREE)]
        {
            let without = Without::Nothing;
            let scope = Scope { protocol, without, at_once, version_max, transactions };
            assert!(walked(scope.clone(), 40_000 * effort()).is_sound(), "{scope:?}");
        }
    }
}

/// The counter-examples: each rule is needed.
#[test]
fn cycles_fail_without_any_of_their_rules() {
    for (protocol, without) in [
        (Cycles::Scc, Without::Erase),
        (Cycles::Scc, Without::EraseNaming),
        (Cycles::Bpcc, Without::NamedVersions),
        (Cycles::Bpcc, Without::Straddled),
    ] {
        let scope = Scope { protocol, without, at_once: 1, version_max: 3, transactions: TWO };
        let verdict = walked(scope, 2_000_000);
        assert!(matches!(verdict, Verdict::Fails(_)), "{protocol:?} {without:?}: {verdict:?}");
    }
}
