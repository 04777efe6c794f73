//! Claims: large transactions that commit with the leaves they changed, not with a log of the changes.
//!
//! A commit that would fill log pages writes the new images of the leaves that it changed much, under a
//! group of its own, once. Changes that are not worth a page, or whose leaf needs more than one page,
//! are logged.
//!
//! ```text
//!              commits it      leaf after leaf:              last page
//!  commit ──▶  rests on    ──▶ image = base ⊕ durable   ──▶  written  ─┬─▶ record: names the group,
//!              are durable     deltas ⊕ own changes                    │   holds the rest ─▶ durable
//!                 │                 │ nothing is claimed               │
//!                 │                 ▼                                  └─▶ flag programmed and read
//!                 └──────────▶ committed by the log                        back: nothing is logged
//! ```
//!
//! | transition | function | may be relied on afterwards |
//! | --- | --- | --- |
//! | commit → `Settling` | `begin_claim` | the transaction has all its locks: no other changes its keys |
//! | `Settling` → `Writing` | `claim_step` | every commit that its keys had before it is durable (D1, D5) |
//! | `Writing` → `Sealing` | `claim_leaf`, `seal_claim` | the leaves are busy: no other job makes an image |
//! | `Sealing` → `Recorded` | `claim_sealed` | the group is durable; the record is the commit point (D5) |
//! | `Sealing` → `Flagging` | `seal_claim` | the group has all changes; the flag is the commit point (D5) |
//! | → installed | `install_claim` | committed for good: mapping, deltas and locks follow in one step |
//!
//! Invariants:
//! - **Q1** A claimed image is complete to a durable LSN below the transaction's own: changes committed
//!   above it in its range stay as deltas. The transaction's own changes are in the image beyond that
//!   LSN, and only there; no other transaction has changed its keys since (rule D2).
//! - **Q2** Changes of a key from before the claim and from after it are never folded: the claim's own
//!   change comes between. At install the older ones go. After a restart they are kept apart by the LSN
//!   of a marker, which stands in front of the record, or follows a flag before any later change is
//!   logged.
//! - **Q3** The transaction's locks go at install: until then no other transaction reads a part of it,
//!   and it may have to be forgotten. Snapshots that began before keep the old leaves.
//! - **Q4** One claim at a time; other transactions that want one wait for it, and it waits for no
//!   transaction.
//! - **Q5** A leaf that becomes several is claimed when the transaction changed nothing else: the
//!   record that installs the new leaves is then its commit point, and holds no content of the leaves.
//! - **Q6** The marker in front of the record names the pages of the claim: if damage took one of these
//!   leaves since, the leaf counts as lost, and its old version does not come back.
//! - **Q7** A commit by a flag has an LSN that no record has, drawn when all commits before it were
//!   durable: later commits have higher ones, and a cut that takes one of them leaves the flag's commit.

use flagstone_space::{GroupId, GroupSpan, LogicalPage, Lsn, PinId, Version};

use crate::bugs::SeededBug;
use crate::delta::{DeltaMap, KeyRange, Op};
use crate::engine::commit::costs::LeafBytes;
use crate::engine::commit::job::{ClaimJob, Job, Next};
use crate::engine::commit::{Commits, without_versions};
use crate::engine::merge::reshape::ReshapePlan;
use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::catalog::{CATALOG, Table};
use crate::engine::store::descent::{LeafPlace, Seek};
use crate::engine::store::groups::{OldBase, PageWrite, WriteJob};
use crate::engine::store::private_key::{private_bounds, split_private_key};
use crate::engine::txn::claim::{Claim, ClaimedLeaf, Owner, Phase};
use crate::engine::txn::transaction;
use crate::engine::txn::transaction::{Ticket, Transaction};
use crate::error::EngineError;
use crate::lock::Xid;
use crate::node;
use crate::node::{MergeRequest, NoOutline, NodeView};
use crate::options::CommitBy;

/// Inner nodes that may have to be written with the leaves that one leaf becomes, one a level.
const INNER_PAGES: usize = 4;

/// Bytes of log that the name of a span of pages takes, at most.
const SPAN_NAME_SIZE_MAX: usize = 20;

/// Result of claiming a leaf.
enum Claimed {
    /// The leaf's changes are left to the log.
    Nothing,
    /// One page.
    Leaf(Box<(ClaimedLeaf, PageWrite)>),
    /// Several pages, and the transaction has no change outside them.
    Several(Box<WriteJob>),
    /// Another change of the tree's shape comes first, as soon as its record is durable.
    Later,
}

impl Commits {
    /// Passes when `xid` commits by the log.
    ///
    /// # Errors
    ///
    /// `Wait::Claim` while `xid`, or another transaction, is committed with its leaves; the stops of
    /// admission; `OutcomeUnknown` when the device failed at the wrong moment.
    pub(super) fn try_page_commit(&mut self, xid: Xid) -> Step<()> {
        let may_be_committed =
            self.claim.as_ref().map(|claim| (claim.xid, claim.may_be_committed()));
        if self.is_poisoned() && may_be_committed == Some((xid, true)) {
            self.end(xid);
            return Err(EngineError::OutcomeUnknown.into());
        }
        self.require_sound()?;
        if self.is_claiming(xid) {
            return Err(Stop::Wait(Wait::Claim));
        }
        if !self.is_worth_a_claim(xid) {
            return Ok(());
        }
        if self.claim.is_some() {
            return Err(Stop::Wait(Wait::Claim));
        }
        let Some(next) = self.first_worth(xid)? else {
            self.transaction(xid)?.is_refused = true;
            return Ok(());
        };
        self.admit_commit(xid)?;
        self.begin_claim(xid, next);
        Err(Stop::Wait(Wait::Claim))
    }

    /// Gives up the commit of `xid`, which met an error. False when its owner has to ask again: its
    /// claim may be committed all the same, or the error was met on the way to a claim and the log
    /// takes all changes.
    pub(crate) fn gives_up(&mut self, xid: Xid) -> bool {
        if self.transactions.get(&xid).is_some_and(|own| own.claimed.is_some()) {
            return false;
        }
        if !self.is_poisoned() && !self.is_claiming(xid) && self.is_worth_a_claim(xid) {
            self.transactions.entry(xid).and_modify(|own| own.is_refused = true);
            return false;
        }
        let own = self.claim.as_ref().filter(|claim| claim.xid == xid);
        let is_decided = match self.is_poisoned() {
            true => own.is_some_and(Claim::may_be_committed),
            false => own.is_some_and(Claim::is_decided),
        };
        if !is_decided {
            self.abandon_claim(xid);
        }
        !is_decided
    }

    /// The owner of a claim has given up; false when there is none. Once the device has failed, no job
    /// goes on with the claim.
    pub(super) fn abandon_claim(&mut self, xid: Xid) -> bool {
        if !self.is_claiming(xid) {
            return false;
        }
        if !self.is_poisoned() {
            self.claim.as_mut().into_iter().for_each(|claim| claim.owner = Owner::Gone);
        } else if self.claim.take_if(|claim| claim.may_be_committed()).is_some() {
            // The next session finds out whether it is committed: this one does nothing more with the
            // group.
            self.end(xid);
        } else {
            self.cancel_claim();
        }
        true
    }

    /// Pages of the claim under way.
    pub(crate) fn claimed_page_count(&self) -> usize {
        self.claim.as_ref().map_or(0, Claim::page_count)
    }

    /// Changes, in bytes, that the claim under way may put into the log and among the deltas.
    pub(crate) fn claim_demand(&self) -> usize {
        match &self.claim {
            Some(claim) if !matches!(claim.phase, Phase::Recorded(_)) => {
                self.demand_of(claim.xid).0 + claim.pages.len() * SPAN_NAME_SIZE_MAX
            }
            _ => 0,
        }
    }

    /// Whether claiming leaves may save as much as a program, or is asked for by the options.
    fn is_worth_a_claim(&self, xid: Xid) -> bool {
        let Some(own) = self.transactions.get(&xid) else { return false };
        // Runs, and values with pages of their own, have a group that commits them already.
        let is_plain = own.group.is_none() && own.runs.is_empty() && own.dropped.is_empty();
        if !is_plain
            || !own.drops.is_empty()
            || own.is_refused
            || self.may_be_ahead()
            || self.view.log_page_size == 0
        {
            return false;
        }
        match self.options.techniques.commit {
            CommitBy::Log => false,
            CommitBy::Claims | CommitBy::Flags => true,
            CommitBy::Auto => {
                let fills_a_page =
                    |bytes| self.commit_costs.log_pages(bytes, self.view.log_page_size) >= 1.0;
                // The memory of its changes is larger than the changes, and is known without counting.
                fills_a_page(own.size) && fills_a_page(own.writes.range_bytes(KeyRange::ALL))
            }
        }
    }

    /// The first private key whose leaf is worth its page, where all such leaves together save at least
    /// one program, as far as can be told without reading them: a claim without that prospect is not
    /// begun. The search ends where the remaining changes cannot save that much; after a stop for a
    /// node it goes on where it stopped.
    fn first_worth(&mut self, xid: Xid) -> Step<Option<Vec<u8>>> {
        let changes = self.transaction(xid)?.writes.range_bytes(KeyRange::ALL);
        loop {
            let own = self.transaction(xid)?;
            let Some(key) = first_from(&own.writes, &own.prospect.looked) else { return Ok(None) };
            let gain = own.prospect.gain;
            let left = changes.saturating_sub(own.prospect.looked_bytes);
            let gain_max = gain + self.commit_costs.log_pages(left, self.view.log_page_size);
            if self.options.techniques.commit == CommitBy::Auto && gain_max < 1.0 {
                return Ok(None);
            }
            let (table, user_key) = split_private_key(&key);
            let place = self.place_of(table, user_key)?;
            let range = KeyRange { low: &place.low, high: place.high.as_deref() };
            let (low, high) = private_bounds(table, range);
            let inside = KeyRange { low: &low, high: Some(&high) };
            let gain = self.gain_of(xid, table, &place, inside)?;
            let own = self.transaction(xid)?;
            let looked_bytes = own.writes.range_bytes(inside);
            let prospect = &mut own.prospect;
            prospect.looked_bytes += looked_bytes;
            prospect.looked = high;
            if gain > 0.0 {
                prospect.gain += gain;
                prospect.first.get_or_insert(key);
            }
            if prospect.gain >= 1.0 {
                return Ok(prospect.first.take());
            }
        }
    }

    fn begin_claim(&mut self, xid: Xid, next: Vec<u8>) {
        let first = self.transactions.get(&xid).and_then(|own| first_from(&own.writes, &[]));
        let phase = Phase::Settling(self.committed);
        self.claim = Some(Claim {
            xid,
            group: None,
            phase,
            owner: Owner::Waits,
            has_rest: first.as_ref() != Some(&next),
            next: Some(next),
            leaves: Vec::new(),
            pages: Vec::new(),
            reshaped: None,
        });
        if self.committed > self.durable() && !self.bugs.has(SeededBug::ClaimBeforeDurable) {
            self.flush_to = self.flush_to.max(self.committed);
        }
    }

    /// Whether the claim can go on without a flush.
    pub(in crate::engine) fn has_claim_work(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| match claim.phase {
            Phase::Settling(lsn) => self.has_settled(lsn),
            Phase::Writing => true,
            Phase::Sealing | Phase::Recorded(_) | Phase::Flagging(_) => false,
        })
    }

    fn has_settled(&self, lsn: Lsn) -> bool {
        lsn <= self.durable() || self.bugs.has(SeededBug::ClaimBeforeDurable)
    }

    /// The claim's next piece of work.
    pub(in crate::engine) fn claim_step(&mut self) -> Step<Next> {
        if !self.has_claim_work() {
            return Ok(Next::Idle);
        }
        let Some(claim) = &mut self.claim else { return Ok(Next::Idle) };
        if claim.owner == Owner::Gone {
            self.cancel_claim();
            return Ok(Next::Stepped);
        }
        if matches!(claim.phase, Phase::Settling(_)) {
            claim.phase = Phase::Writing;
        }
        while let Some(key) = self.claim.as_ref().and_then(|claim| claim.next.clone()) {
            match self.claim_leaf(&key)? {
                Next::Stepped => {}
                next => return Ok(next),
            }
        }
        if self.must_flush_before_flag() {
            self.flush_to = self.flush_to.max(self.committed);
            return Ok(Next::Idle);
        }
        Ok(self.seal_claim().map_or(Next::Stepped, |job| Next::Job(Job::Claim(job))))
    }

    /// Claims the leaf of the private key `key`, or leaves its changes to the log.
    fn claim_leaf(&mut self, key: &[u8]) -> Step<Next> {
        let (table, key) = split_private_key(key);
        let place = self.place_of(table, key)?;
        let range = KeyRange { low: &place.low, high: place.high.as_deref() };
        let (low, high) = private_bounds(table, range);
        let inside = KeyRange { low: &low, high: Some(&high) };
        let claimed = self.claimed_image(table, &place, inside)?;
        let Some(xid) = self.claim.as_ref().map(|claim| claim.xid) else { return Ok(Next::Idle) };
        let next = self.transactions.get(&xid).and_then(|own| first_from(&own.writes, &high));
        let group = match &claimed {
            Claimed::Leaf(_) => Some(self.group_of_claim()?),
            _ => None,
        };
        let Some(claim) = &mut self.claim else { return Ok(Next::Idle) };
        match (claimed, group) {
            (Claimed::Leaf(claimed), Some(group)) => {
                let (leaf, write) = *claimed;
                claim.next = next;
                claim.leaves.push(leaf);
                self.busy.insert(place.page);
                Ok(Next::Job(Job::Claim(ClaimJob::Write(group, write))))
            }
            (Claimed::Several(job), _) => {
                (claim.next, claim.phase) = (None, Phase::Sealing);
                Ok(Next::Job(Job::Claim(ClaimJob::Reshape(job))))
            }
            (Claimed::Later, _) => {
                self.await_installs();
                Ok(Next::Idle)
            }
            _ => {
                (claim.next, claim.has_rest) = (next, true);
                Ok(Next::Stepped)
            }
        }
    }

    fn group_of_claim(&mut self) -> Step<GroupId> {
        if let Some(group) = self.claim.as_ref().and_then(|claim| claim.group) {
            return Ok(group);
        }
        let group = self.take_group()?;
        if let Some(claim) = &mut self.claim {
            claim.group = Some(group);
        }
        Ok(group)
    }

    /// Programs that a leaf's claim saves; zero or less when its changes are better in the log. Where
    /// the options ask for claims: one if the leaf can be claimed, else zero.
    fn gain_of(
        &self,
        xid: Xid,
        table: Table,
        place: &LeafPlace,
        inside: KeyRange<'_>,
    ) -> Step<f64> {
        let Some(writes) = self.transactions.get(&xid).map(|own| &own.writes) else {
            return Ok(0.0);
        };
        let own = writes.range_bytes(inside);
        let pages = 1 + own / self.payload_size;
        let is_possible = table != CATALOG
            && !self.busy.contains(&place.page)
            && !self.obstacles.passes_over(place.page)
            && self.may_claim(xid, self.claimed_page_count() + pages);
        if !is_possible || self.options.techniques.commit != CommitBy::Auto {
            return Ok(f64::from(u8::from(is_possible)));
        }
        if own > self.payload_size * 2 {
            // A leaf that outgrows its page is left to merges, unless it has all changes of the
            // transaction: then the old page alone may have to be written again.
            let saved = self.commit_costs.log_pages(own, self.view.log_page_size) - 1.0;
            return Ok(if is_all(writes, inside) { saved } else { 0.0 });
        }
        let range = KeyRange { low: &place.low, high: place.high.as_deref() };
        let others = self.tree(table)?.deltas.range_bytes(range);
        let leaf = LeafBytes { own, others };
        Ok(self.commit_costs.gain(leaf, self.view.log_page_size, self.view.moves_per_write))
    }

    /// Whether the claim of `xid` may come to have so many pages. A cut brings back every group that no
    /// checkpoint covers, committed groups too, and the first record afterwards names them all, beside
    /// the groups of spills that come meanwhile. Spills may have as much room as `can_name_more` gives
    /// to all.
    fn may_claim(&self, xid: Xid, pages: usize) -> bool {
        let more = pages - self.claimed_page_count() + self.cycle.grouped_pages();
        self.has_room_to_claim(pages as u64) && self.can_name_more(xid, 2 * more, 0)
    }

    /// The leaf's new image; none when its changes are left to the log.
    fn claimed_image(
        &mut self,
        table: Table,
        place: &LeafPlace,
        inside: KeyRange<'_>,
    ) -> Step<Claimed> {
        let Some(xid) = self.claim.as_ref().map(|claim| claim.xid) else {
            return Ok(Claimed::Nothing);
        };
        if self.is_left_alone(xid, place.page, inside)
            || self.gain_of(xid, table, place, inside)? <= 0.0
        {
            return Ok(Claimed::Nothing);
        }
        let index = self.leaf_for(table, Seek::At(&place.low))?;
        let base_lsn = self.pool.frame(index).lsn;
        let range = KeyRange { low: &place.low, high: place.high.as_deref() };
        if self.load_some_runs(table, range, Lsn(u64::MAX))?.is_some() {
            return Ok(Claimed::Nothing);
        }
        self.drop_redundant(table, range, base_lsn);
        let Some(index) = self.pool.peek(place.page) else { return Ok(Claimed::Nothing) };
        let upto = match self.bugs.has(SeededBug::ClaimBeforeDurable) {
            true => self.committed,
            false => self.merge_lsn(),
        };
        let Some(changes) = self.changes_of(table, range, inside, upto) else {
            return Ok(Claimed::Nothing);
        };
        let view = NodeView::trusted(&self.pool.frame(index).image);
        let own_lsn = Lsn(upto.0 + 1);
        let request =
            MergeRequest { tree: table.id, range, upto: own_lsn, page_size: self.payload_size };
        let merged = match self.may_become_several(xid, inside) {
            true => node::merge_leaf(Some(view), &changes, request, &mut NoOutline).map(Some),
            false => node::merge_leaf_alone(view, &changes, request, &mut NoOutline),
        };
        let merged = match merged {
            Ok(Some(merged)) => merged,
            Ok(None) => {
                self.must_split.insert(place.page);
                return Ok(Claimed::Nothing);
            }
            Err(_) => return Ok(Claimed::Nothing),
        };
        let is_root = self.root_of(table)? == place.page;
        let grown = merged.entry_count as i64 - view.count() as i64;
        if !merged.dropped_refs.is_empty() {
            return Ok(Claimed::Nothing);
        }
        let (low, high) = (place.low.clone(), place.high.clone());
        let page = place.page;
        if merged.pages.len() > 1 {
            let old = vec![OldBase { page, low: low.clone(), high: high.clone(), lsn: base_lsn }];
            let (pages, dropped) = (merged.pages, Vec::new());
            let plan = ReshapePlan {
                table,
                page,
                low,
                high,
                upto,
                pages,
                dropped,
                old,
                rest: None,
                grown,
                frees: 0,
                is_due: true,
            };
            return self.claimed_pages(xid, plan, inside);
        }
        let Some(built) = merged.pages.into_iter().next() else { return Ok(Claimed::Nothing) };
        if self.is_small(&built) && !is_root {
            // The merge of such a leaf looks for a neighbour.
            return Ok(Claimed::Nothing);
        }
        let leaf = ClaimedLeaf { table, page, low, high, upto, base_lsn, grown };
        let lsn = match self.bugs.has(SeededBug::ClaimOverwritesNewer) {
            true => Lsn(upto.0 + 8),
            false => upto,
        };
        let write = PageWrite::new(page, built.image, lsn);
        Ok(Claimed::Leaf(Box::new((leaf, write))))
    }

    /// The pages that one leaf becomes, if they are all that the transaction changed (Q5).
    fn claimed_pages(
        &mut self,
        xid: Xid,
        plan: ReshapePlan,
        inside: KeyRange<'_>,
    ) -> Step<Claimed> {
        if !self.may_become_several(xid, inside)
            || !self.may_claim(xid, plan.pages.len() + INNER_PAGES)
        {
            return Ok(Claimed::Nothing);
        }
        let Some(job) = self.claim_reshape(xid, plan)? else { return Ok(Claimed::Later) };
        Ok(Claimed::Several(Box::new(job)))
    }

    /// Whether a leaf that becomes several may be claimed: it must have all changes of the transaction
    /// (Q5).
    fn may_become_several(&self, xid: Xid, inside: KeyRange<'_>) -> bool {
        self.transactions.get(&xid).is_some_and(|own| is_all(&own.writes, inside))
            || self.bugs.has(SeededBug::ClaimInPart)
    }

    /// Whether the engine leaves to merges a leaf that it found to become several: the leaf's waiting
    /// deltas only grow until then. The leaf counts all the same when a claim is weighed: other leaves
    /// are written along with it.
    fn is_left_alone(&self, xid: Xid, page: LogicalPage, inside: KeyRange<'_>) -> bool {
        self.options.techniques.commit == CommitBy::Auto
            && self.must_split.contains(&page)
            && !self.may_become_several(xid, inside)
    }

    /// Durable deltas of a leaf with the claiming transaction's changes on top.
    fn changes_of(
        &self,
        table: Table,
        range: KeyRange<'_>,
        inside: KeyRange<'_>,
        upto: Lsn,
    ) -> Option<DeltaMap> {
        let own = &self.transactions.get(&self.claim.as_ref()?.xid)?.writes;
        let mut changes = self.trees.get(table.id as usize)?.deltas.copy_range(range, upto);
        for entry in own.range(inside) {
            // Versions that savepoints kept apart become one.
            let mut whole = DeltaMap::new();
            let mut versions = entry.versions();
            if versions.clone().nth(1).is_some() {
                for (number, op) in versions {
                    whole.insert(entry.key(), op, number, &[]);
                }
                versions = whole.versions(entry.key());
            }
            for (_, op) in versions {
                changes.insert(split_private_key(entry.key()).1, op, Lsn(upto.0 + 1), &[]);
            }
        }
        Some(changes)
    }

    /// Every leaf was looked at: the job that commits the claim.
    fn seal_claim(&mut self) -> Option<ClaimJob> {
        let claim = self.claim.as_ref()?;
        let Some(group) = claim.group.filter(|_| !claim.leaves.is_empty()) else {
            self.refuse_claim();
            return None;
        };
        let (phase, job) = match self.may_flag(claim) {
            true => {
                self.open_log();
                (Phase::Flagging(self.log.skip(1)), ClaimJob::Flag(group))
            }
            false => (Phase::Sealing, ClaimJob::Seal),
        };
        self.claim.as_mut()?.phase = phase;
        Some(job)
    }

    /// Whether a flag may decide: nothing of the transaction is in the log. Where other commits wait
    /// for the log anyway, a record rides along for less.
    fn may_flag(&self, claim: &Claim) -> bool {
        let is_possible = !claim.has_rest && self.view.carries_flags;
        is_possible
            && match self.options.techniques.commit {
                CommitBy::Flags => true,
                CommitBy::Auto => self.durable() >= self.committed,
                CommitBy::Log | CommitBy::Claims => false,
            }
    }

    /// Commits keep their order: a flag follows when all commits before it are durable.
    fn must_flush_before_flag(&self) -> bool {
        let flagged = self.claim.as_ref().filter(|claim| !claim.leaves.is_empty());
        let is_pending = self.durable() < self.committed;
        flagged.is_some_and(|claim| self.may_flag(claim))
            && is_pending
            && !self.bugs.has(SeededBug::ClaimBeforeDurable)
    }

    /// A leaf of the claim is on flash, as this version.
    pub(crate) fn claim_written(&mut self, page: LogicalPage, version: Version) {
        let Some(claim) = &mut self.claim else { return };
        if !claim.pages.last_mut().is_some_and(|last| last.extend(page, version)) {
            claim.pages.push(GroupSpan { page, version, count: 1 });
        }
    }

    /// The claim finds no room on the device.
    pub(crate) fn claim_failed(&mut self) {
        self.refuse_claim();
    }

    /// The log takes all changes of the claim.
    fn refuse_claim(&mut self) {
        let is_waited_for = self.claim.as_ref().is_some_and(|claim| claim.owner == Owner::Waits);
        if !is_waited_for {
            return self.cancel_claim();
        }
        if let Some(xid) = self.drop_claim()
            && let Some(own) = self.transactions.get_mut(&xid)
        {
            own.is_refused = true;
        }
    }

    fn cancel_claim(&mut self) {
        if let Some(xid) = self.drop_claim() {
            self.forget(xid);
        }
    }

    fn drop_claim(&mut self) -> Option<Xid> {
        let claim = self.claim.take()?;
        for leaf in &claim.leaves {
            self.busy.remove(&leaf.page);
        }
        if let Some(group) = claim.group {
            self.trims.discard_group(group);
        }
        Some(claim.xid)
    }

    /// The pages of the claim are durable: its record commits it, together with the changes outside the
    /// pages.
    pub(crate) fn claim_sealed(&mut self) {
        if self.is_poisoned() {
            return self.cancel_claim();
        }
        let Some(mut claim) = self.claim.take_if(|claim| claim.owner == Owner::Waits) else {
            return self.cancel_claim();
        };
        let Some(mut own) = self.transactions.remove(&claim.xid) else { return };
        self.uncommitted_size -= own.size;
        own.writes = without_versions(&own.writes, &mut own.dropped);
        for leaf in &claim.leaves {
            let (low, high) = private_bounds(leaf.table, leaf.range());
            let inside = KeyRange { low: &low, high: Some(&high) };
            own.writes.remove_range(inside, Lsn(u64::MAX));
        }
        own.growth = growth_of(&own.writes).min(own.growth);
        own.group = claim.group;
        self.append_claimed_record(claim.group.unwrap_or(GroupId::NONE), &claim.pages);
        let lsn = self.append_commit(&own);
        own.group = None;
        self.cycle.count_committed(own.writes.bytes());
        self.apply_commit(&own, lsn);
        (self.committed, self.flush_to) = (lsn, self.flush_to.max(lsn));
        claim.phase = Phase::Recorded(lsn);
        self.transactions
            .insert(claim.xid, Transaction { is_refused: true, ..Transaction::default() });
        self.claim = Some(claim);
    }

    /// There are no pages for the claim, or one of its leaves cannot be read: the log takes all
    /// changes. False when no claim is being written.
    pub(in crate::engine) fn claim_cannot_go_on(&mut self) -> bool {
        let is_writing = self.claim.as_ref().is_some_and(|claim| claim.phase == Phase::Writing);
        if is_writing {
            self.refuse_claim();
        }
        is_writing
    }

    /// Whether a claim's record waits for a flush.
    pub(crate) fn awaits_record(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| matches!(claim.phase, Phase::Recorded(_)))
    }

    /// The group of the claim whose record has become durable.
    pub(crate) fn recorded_claim(&self) -> Option<GroupId> {
        let claim = self.claim.as_ref()?;
        let is_durable = matches!(claim.phase, Phase::Recorded(lsn) if lsn <= self.durable());
        claim.group.filter(|_| is_durable)
    }

    /// The group of the claim whose flag is being programmed.
    pub(crate) fn flagging_claim(&self) -> Option<GroupId> {
        // Once the device has failed, the claim's locks may be gone: no reader may see parts of it
        // come.
        let claim = self.claim.as_ref().filter(|_| !self.is_poisoned())?;
        claim.group.filter(|_| matches!(claim.phase, Phase::Flagging(_)))
    }

    /// Pages whose old versions snapshots need: to be pinned before the mapping moves.
    pub(crate) fn claim_pins(&self) -> Vec<LogicalPage> {
        let pages = |claim: &Claim| match &claim.reshaped {
            Some(install) => install.grouped.pins().collect(),
            None => claim.leaves.iter().map(|leaf| leaf.page).collect(),
        };
        let pinned = self.claim.as_ref().filter(|_| !self.snapshots.is_empty());
        pinned.map(pages).unwrap_or_default()
    }

    /// The claim is committed and the mapping has moved to its pages: the engine follows. `pins` are
    /// the pins of the pages of `Engine::claim_pins`.
    pub(crate) fn install_claim(&mut self, pins: &[Option<PinId>]) {
        let Some(claim) = self.claim.take() else { return };
        let (lsn, ticket) = match claim.phase {
            Phase::Flagging(place) => {
                self.counts.flag_commits += 1;
                // Later changes of its keys are logged behind the marker (Q2).
                (self.append_marker(claim.group), Ticket { lsn: self.durable(), place })
            }
            Phase::Recorded(lsn) => (lsn, Ticket { lsn, place: lsn }),
            Phase::Settling(_) | Phase::Writing | Phase::Sealing => {
                debug_assert!(false, "only a decided claim is installed");
                self.claim = Some(claim);
                return;
            }
        };
        let page_count = claim.page_count();
        match claim.reshaped {
            Some(install) => self.install(install, pins),
            None => self.cycle.count_grouped(page_count),
        }
        let pins = pins.iter().copied().chain(std::iter::repeat(None));
        for (leaf, pin) in claim.leaves.into_iter().zip(pins) {
            self.install_leaf(leaf, pin, lsn);
        }
        if let Some(own) = self.transactions.remove(&claim.xid) {
            self.uncommitted_size -= own.size;
        }
        if claim.owner == Owner::Waits {
            let claimed = Transaction { claimed: Some(ticket), ..Transaction::default() };
            self.transactions.insert(claim.xid, claimed);
        }
        self.counts.commits += 1;
        self.counts.claimed_pages += page_count as u64;
        self.release(claim.xid);
    }

    /// Installs one leaf; snapshots below `until` need the old one.
    fn install_leaf(&mut self, leaf: ClaimedLeaf, pin: Option<PinId>, until: Lsn) {
        self.busy.remove(&leaf.page);
        let pin = pin.map(|pin| (pin, leaf.page));
        self.retain_copy(leaf.table, leaf.range(), pin, leaf.base_lsn, until);
        self.remove_deltas(leaf.table, leaf.range(), leaf.upto);
        if let Some(tree) = self.trees.get_mut(leaf.table.id as usize) {
            tree.entry_count += leaf.grown;
        }
        self.forget_page(leaf.page);
    }
}

/// Whether all of `writes` lies inside a range.
fn is_all(writes: &DeltaMap, inside: KeyRange<'_>) -> bool {
    let first = |low| writes.range(KeyRange { low, high: None }).next();
    let is_none_below = first(&[]).is_some_and(|first| first.key() >= inside.low);
    is_none_below && inside.high.is_none_or(|high| first(high).is_none())
}

/// The first key of `writes` at or above `low`.
fn first_from(writes: &DeltaMap, low: &[u8]) -> Option<Vec<u8>> {
    writes.range(KeyRange { low, high: None }).next().map(|entry| entry.key().to_vec())
}

/// Bytes by which changes may make leaves grow.
fn growth_of(writes: &DeltaMap) -> usize {
    let each = |entry: crate::delta::Entry<'_>| {
        let puts = entry.versions().filter(|(_, op)| matches!(op, Op::Put(_) | Op::PutRef(_)));
        puts.map(|(_, op)| transaction::growth_of(entry.key().len(), op)).sum::<usize>()
    };
    writes.range(KeyRange::ALL).map(each).sum()
}

#[cfg(test)]
mod tests;
