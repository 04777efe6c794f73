//! CFC and AFC beside their own garbage collection.

use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::println;
use std::string::String;

use super::super::{Flag, FlagWrites, Flags, Shadow, current, heads, target};
use super::{State, Verdict, effort, walk};
use flagstone_space::{GroupId, LogicalPage, Version};

type Page = Shadow<u8>;

/// Rules that a variant leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Without {
    Nothing,
    /// A chain is judged by its head (CFC), or all its flags (AFC); heads of both kinds: aborted.
    PaperJudges,
    /// E1.
    LinkCheck,
    /// E3.
    Finish,
    /// E4.
    Settle,
    /// E5.
    WholeBlock,
    /// E6.
    CutErase,
}

/// Bounds of a walk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scope {
    protocol: Flags,
    without: Without,
    block_count: u8,
    pages_per_block: u8,
    /// Transactions that may run at a time.
    at_once: usize,
    /// Pages of each transaction, in turn.
    transactions: &'static [&'static [u32]],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    xid: GroupId,
    left: Vec<u32>,
    /// Pages written, and where they stand.
    written: Vec<(u32, u8)>,
    /// Flags still to be programmed; none before the commit begins.
    commit: Option<FlagWrites<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Chip {
    scope: Scope,
    slots: Vec<Option<Page>>,
    /// Transactions begun.
    begun: usize,
    runs: Vec<Run>,
    /// The power went in an erase: the next step is a cut.
    is_off: bool,
    /// Transaction that each page's content must come from.
    truth: BTreeMap<u32, GroupId>,
}

impl Chip {
    fn new(scope: Scope) -> Self {
        let pages: BTreeSet<u32> = scope.transactions.concat().into_iter().collect();
        let mut chip = Self {
            slots: vec![None; usize::from(scope.block_count * scope.pages_per_block)],
            begun: 0,
            runs: Vec::new(),
            is_off: false,
            truth: pages.iter().map(|page| (*page, GroupId(0))).collect(),
            scope,
        };
        for (at, page) in (0..).zip(pages) {
            let shadow = Page {
                at,
                page: LogicalPage(page),
                version: Version(0),
                xid: GroupId(0),
                order: 0,
                link: None,
                flag: Flag::True,
            };
            chip.slots[usize::from(at)] = Some(shadow);
        }
        chip
    }

    fn pages(&self) -> impl Iterator<Item = &Page> {
        self.slots.iter().flatten()
    }

    fn own(&self, xid: GroupId) -> Vec<Page> {
        self.pages().filter(|page| page.xid == xid).copied().collect()
    }

    fn target(&self, own: &[Page], from: &Page) -> Option<Page> {
        if self.scope.without == Without::LinkCheck {
            return from.link.and_then(|link| self.slots[usize::from(link)]);
        }
        target(own, from).copied()
    }

    fn heads(&self, own: &[Page]) -> Vec<Page> {
        if self.scope.without != Without::LinkCheck {
            return heads(own).copied().collect();
        }
        let linked: BTreeSet<u8> = self.pages().filter_map(|page| page.link).collect();
        own.iter().filter(|page| !linked.contains(&page.at)).copied().collect()
    }

    fn committed(&self) -> BTreeSet<GroupId> {
        let pages: Vec<Page> = self.pages().copied().collect();
        if self.scope.without != Without::PaperJudges {
            return self.scope.protocol.committed(&pages);
        }
        let xids: BTreeSet<GroupId> = pages.iter().map(|page| page.xid).collect();
        xids.into_iter().filter(|xid| self.paper_judges(*xid)).collect()
    }

    fn paper_judges(&self, xid: GroupId) -> bool {
        let own = self.own(xid);
        let heads = self.heads(&own);
        let is_proven = |head: &Page| match self.scope.protocol {
            Flags::Cfc => head.flag == Flag::True,
            Flags::Afc => self.chain(&own, *head).iter().all(|page| page.flag == Flag::True),
        };
        !heads.is_empty() && heads.iter().all(is_proven)
    }

    fn chain(&self, own: &[Page], head: Page) -> Vec<Page> {
        let mut chain = vec![head];
        while let Some(next) = chain.last().and_then(|page| self.target(own, page)) {
            if chain.iter().any(|page| page.at == next.at) {
                break;
            }
            chain.push(next);
        }
        chain
    }

    fn recovered(&self) -> BTreeMap<u32, GroupId> {
        let pages: Vec<Page> = self.pages().copied().collect();
        let newest = current(&pages, &self.committed());
        newest.into_iter().map(|(page, shadow)| (page.0, shadow.xid)).collect()
    }

    fn set(&self, at: u8, page: Option<Page>) -> Self {
        let mut next = self.clone();
        next.slots[usize::from(at)] = page.map(|page| Page { at, ..page });
        next
    }

    fn program_flag(&self, at: u8, flag: Flag) -> Self {
        let page = self.slots[usize::from(at)];
        self.set(at, page.map(|page| Page { flag, ..page }))
    }

    /// The next free page of each block: pages are programmed in order.
    fn free(&self) -> Vec<u8> {
        let size = self.scope.pages_per_block;
        let next = |block: u8| {
            let pages = block * size..(block + 1) * size;
            let last = pages.clone().rev().find(|at| self.slots[usize::from(*at)].is_some());
            last.map_or(pages.start, |last| last + 1)
        };
        let blocks = 0..self.scope.block_count;
        blocks
            .map(|block| (block, next(block)))
            .filter(|(b, at)| at / size == *b)
            .map(|(_, at)| at)
            .collect()
    }

    fn cut(&self) -> Self {
        let mut next = self.clone();
        next.truth = self.recovered();
        next.runs.clear();
        next.is_off = false;
        next
    }

    fn begin(&self, out: &mut Vec<Self>) {
        let Some(pages) = self.scope.transactions.get(self.begun) else { return };
        let locked: BTreeSet<u32> = self
            .runs
            .iter()
            .flat_map(|run| run.left.iter().chain(run.written.iter().map(|(page, _)| page)))
            .copied()
            .collect();
        if self.runs.len() >= self.scope.at_once || pages.iter().any(|page| locked.contains(page)) {
            return;
        }
        let mut next = self.clone();
        next.begun += 1;
        let xid = GroupId(next.begun as u64);
        next.runs.push(Run { xid, left: pages.to_vec(), written: Vec::new(), commit: None });
        out.push(next);
    }

    fn go_on(&self, number: usize, out: &mut Vec<Self>) {
        let run = &self.runs[number];
        let Some(flags) = &run.commit else {
            let mut aborted = self.clone();
            aborted.runs.remove(number);
            out.push(aborted);
            self.write(number, out);
            self.commit(number, out);
            return;
        };
        let mut next = self.clone();
        if let Some((at, flag)) = flags.first() {
            next = self.program_flag(*at, *flag);
            next.runs[number].commit = Some(flags[1..].to_vec());
        } else {
            // Acknowledged.
            next.truth.extend(run.written.iter().map(|(page, _)| (*page, run.xid)));
            next.runs.remove(number);
        }
        out.push(next);
    }

    fn write(&self, number: usize, out: &mut Vec<Self>) {
        let run = &self.runs[number];
        let Some(page) = run.left.first() else { return };
        let versions = self.pages().filter(|shadow| shadow.page.0 == *page);
        let version = versions.map(|shadow| shadow.version.0).max().unwrap_or(0) + 1;
        let order = run.written.len() as u32;
        for at in self.free() {
            let shadow = Page {
                at,
                page: LogicalPage(*page),
                version: Version(version),
                xid: run.xid,
                order,
                link: run.written.last().map(|(_, at)| *at),
                flag: self.scope.protocol.initial(order),
            };
            let mut next = self.set(at, Some(shadow));
            next.runs[number].left.remove(0);
            next.runs[number].written.push((*page, at));
            out.push(next);
        }
    }

    fn commit(&self, number: usize, out: &mut Vec<Self>) {
        let run = &self.runs[number];
        let is_mine = |page: &Page| run.written.iter().any(|(_, at)| *at == page.at);
        let all = self.own(run.xid);
        let is_stale = all.iter().any(|page| !is_mine(page));
        if !run.left.is_empty() || is_stale && self.scope.without != Without::Settle {
            return;
        }
        let own: Vec<Page> = all.into_iter().filter(is_mine).collect();
        let flags = match self.scope.protocol {
            Flags::Cfc => self.heads(&own).iter().map(|head| (head.at, Flag::True)).collect(),
            Flags::Afc => Flags::Afc.to_commit(&own),
        };
        let mut next = self.clone();
        next.runs[number].commit = Some(flags);
        out.push(next);
    }

    fn is_mine(&self, page: &Page) -> bool {
        self.runs.iter().any(|run| run.written.iter().any(|(_, at)| *at == page.at))
    }

    fn run_of(&self, xid: GroupId) -> Option<&Run> {
        self.runs.iter().find(|run| run.xid == xid)
    }

    /// Whether this is the only good copy of the content that its logical page must hold.
    fn is_needed(&self, page: &Page) -> bool {
        let is_twin =
            |other: &&Page| other.at != page.at && other.page == page.page && other.xid == page.xid;
        let mut twins = self.pages().filter(is_twin);
        self.truth.get(&page.page.0) == Some(&page.xid)
            && !twins.any(|twin| twin.flag == Flag::True)
    }

    /// The next flag to be programmed before the pages `going` go, none of which is needed.
    fn before_reclaim(&self, going: &[&Page]) -> Option<(u8, Flag)> {
        let committed = self.committed();
        // A stale copy of a running transaction's page needs nothing.
        let ended = going.iter().filter(|page| self.run_of(page.xid).is_none());
        let xids: BTreeSet<GroupId> = ended.map(|page| page.xid).collect();
        let flags = xids.into_iter().flat_map(|xid| {
            let is_going = |page: &Page| going.iter().any(|other| other.at == page.at);
            let (gone, stay): (Vec<_>, Vec<_>) = self.own(xid).into_iter().partition(is_going);
            let is_committed = committed.contains(&xid);
            match self.scope.without {
                Without::LinkCheck if is_committed => self.hand_on_blindly(&gone),
                Without::WholeBlock => {
                    let alone = |page: &Page| {
                        let stay: Vec<_> =
                            self.own(xid).into_iter().filter(|other| other.at != page.at).collect();
                        self.scope.protocol.before_reclaim(&stay, &[*page], is_committed)
                    };
                    let gone = gone.iter().filter(|page| {
                        self.scope.protocol == Flags::Cfc || page.flag != Flag::True
                    });
                    gone.flat_map(alone).collect()
                }
                Without::CutErase => {
                    let flags = self.scope.protocol.before_reclaim(&stay, &gone, is_committed);
                    let stays = |at: u8| stay.iter().any(|page| page.at == at);
                    flags.into_iter().filter(|(at, _)| stays(*at)).collect()
                }
                _ => self.scope.protocol.before_reclaim(&stay, &gone, is_committed),
            }
        });
        flags.collect::<Vec<_>>().pop()
    }

    /// A flag for any page that stands where a link leads.
    fn hand_on_blindly(&self, gone: &[Page]) -> FlagWrites<u8> {
        let next = gone.iter().filter_map(|page| self.target(&[], page));
        next.filter(|next| next.flag != Flag::True).map(|next| (next.at, Flag::True)).collect()
    }

    /// Flags first, then the erase of a block without needed pages.
    fn reclaim(&self, out: &mut Vec<Self>) {
        for block in self.slots.chunks(usize::from(self.scope.pages_per_block)) {
            let pages: Vec<&Page> = block.iter().flatten().collect();
            let keeps = |page: &&Page| self.is_mine(page) || self.is_needed(page);
            if pages.is_empty() || pages.iter().any(keeps) {
                continue;
            }
            match self.before_reclaim(&pages) {
                Some((at, flag)) => out.push(self.program_flag(at, flag)),
                None => self.erase(&pages, out),
            }
        }
    }

    /// An erase, and all that it leaves when it is cut.
    fn erase(&self, pages: &[&Page], out: &mut Vec<Self>) {
        for taken in 1..1_u32 << pages.len() {
            let is_taken = |index: usize| taken >> index & 1 == 1;
            let gone = pages.iter().enumerate().filter(|(index, _)| is_taken(*index));
            let mut next = gone.fold(self.clone(), |chip, (_, page)| chip.set(page.at, None));
            next.is_off = taken + 1 != 1 << pages.len();
            out.push(next);
        }
    }

    fn relocate(&self, out: &mut Vec<Self>) {
        let free = self.free();
        let size = self.scope.pages_per_block;
        for page in self.pages() {
            let run = self.run_of(page.xid);
            let moves = match run {
                Some(run) => run.commit.is_none() && self.is_mine(page),
                None => self.is_needed(page),
            };
            let Some(to) = free.iter().find(|to| **to / size != page.at / size && moves) else {
                continue;
            };
            let flag = self.scope.protocol.relocated(page, run.is_none());
            let mut next = self.set(*to, Some(Page { flag, ..*page }));
            let places = next.runs.iter_mut().flat_map(|run| &mut run.written);
            places.filter(|(_, at)| *at == page.at).for_each(|(_, at)| *at = *to);
            out.push(next);
        }
    }

    /// Flags that restart programs before anything else.
    fn unfinished(&self) -> FlagWrites<u8> {
        let variants = [Without::Finish, Without::PaperJudges, Without::LinkCheck];
        if variants.contains(&self.scope.without) || !self.runs.is_empty() {
            return FlagWrites::new();
        }
        let committed = self.committed();
        committed.iter().flat_map(|xid| self.scope.protocol.to_finish(&self.own(*xid))).collect()
    }
}

impl State for Chip {
    fn told(&self, next: &Self) -> String {
        let mut told = Vec::new();
        for (before, after) in self.slots.iter().zip(&next.slots) {
            let name =
                |page: &Page| format!("page {} of T{} at {}", page.page.0, page.xid.0, page.at);
            told.push(match (before, after) {
                (None, Some(page)) => format!("program {}, {:?}", name(page), page.flag),
                (Some(page), None) => format!("erase {}", name(page)),
                (Some(old), Some(page)) if old.flag != page.flag => {
                    format!("flag {} {:?}", name(page), page.flag)
                }
                _ => continue,
            });
        }
        if next.begun > self.begun {
            told.push(format!("T{} begins", next.begun));
        }
        for run in self.runs.iter().filter(|run| next.run_of(run.xid).is_none()) {
            let is_committed = run.commit.as_ref().is_some_and(Vec::is_empty);
            told.push(format!(
                "T{} {}",
                run.xid.0,
                if is_committed { "is acknowledged" } else { "ends, by a cut or an abort" }
            ));
        }
        let commits = |run: &&Run| {
            run.commit.is_some() && self.run_of(run.xid).is_some_and(|old| old.commit.is_none())
        };
        next.runs
            .iter()
            .filter(commits)
            .for_each(|run| told.push(format!("T{} commits", run.xid.0)));
        told.join("; ")
    }

    fn is_right(&self) -> bool {
        let mut found = self.recovered();
        for run in self.runs.iter().filter(|run| run.commit.is_some()) {
            // Whole, or not at all.
            if run.written.iter().all(|(page, _)| found.get(page) == Some(&run.xid)) {
                found.extend(run.written.iter().map(|(page, _)| (*page, self.truth[page])));
            }
        }
        found == self.truth
    }

    fn next(&self) -> Vec<Self> {
        if self.is_off {
            return vec![self.cut()];
        }
        let unfinished = self.unfinished();
        if !unfinished.is_empty() {
            return unfinished.iter().map(|(at, flag)| self.program_flag(*at, *flag)).collect();
        }
        let mut out = Vec::new();
        if !self.runs.is_empty() {
            out.push(self.cut());
        }
        self.begin(&mut out);
        (0..self.runs.len()).for_each(|number| self.go_on(number, &mut out));
        self.reclaim(&mut out);
        self.relocate(&mut out);
        out
    }
}

const TWO: &[&[u32]] = &[&[1, 2], &[1, 2]];
const THREE: &[&[u32]] = &[&[1, 2], &[2, 1], &[1]];
const BESIDE: &[&[u32]] = &[&[1, 2], &[3], &[2, 3]];

fn walked(scope: Scope, limit: usize) -> Verdict {
    let verdict = walk(Chip::new(scope.clone()), limit);
    println!("{scope:?}: {verdict:?}");
    verdict
}

#[test]
fn flags_recover_what_was_acknowledged() {
    for protocol in [Flags::Cfc, Flags::Afc] {
        for ((block_count, pages_per_block), at_once, transactions) in
            [((5, 1), 1, THREE), ((4, 2), 1, THREE), ((7, 1), 2, BESIDE), ((4, 2), 2, BESIDE)]
        {
            let without = Without::Nothing;
            let scope =
                Scope { protocol, without, block_count, pages_per_block, at_once, transactions };
            assert!(walked(scope.clone(), 40_000 * effort()).is_sound(), "{scope:?}");
        }
    }
}

/// The counter-examples: each rule is needed.
#[test]
fn flags_fail_without_any_of_their_rules() {
    for (protocol, without, transactions, (block_count, pages_per_block)) in [
        (Flags::Cfc, Without::PaperJudges, TWO, (5, 1)),
        (Flags::Cfc, Without::LinkCheck, THREE, (5, 1)),
        (Flags::Cfc, Without::Finish, THREE, (5, 1)),
        (Flags::Afc, Without::Settle, TWO, (5, 1)),
        (Flags::Afc, Without::WholeBlock, THREE, (4, 2)),
        (Flags::Afc, Without::CutErase, THREE, (4, 2)),
    ] {
        let at_once = 1;
        let scope =
            Scope { protocol, without, block_count, pages_per_block, at_once, transactions };
        let verdict = walked(scope, 2_000_000);
        assert!(matches!(verdict, Verdict::Fails(_)), "{protocol:?} {without:?}: {verdict:?}");
    }
}
