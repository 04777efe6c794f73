//! Claims: large transactions that commit with the leaves they changed, not with a log of the changes.
//!
//! A commit that would fill log pages writes the new images of the leaves that it changed much, under a
//! group of its own, once. Changes that are not worth a page are logged, and so are changes whose leaf needs
//! more than one page, unless the transaction changed nothing else (Q5).
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
//! | `Writing` → `Flagging` | `seal_claim` | the group has all changes; the flag is the commit point (D5) |
//! | `Writing` → `Sealing` → `Recorded` | `claim_leaf`, `claim_reshaped` | one leaf became several (Q5): its install record commits |
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
use crate::engine::commit::claim::image::Claimed;
use crate::engine::commit::job::{ClaimJob, Job, Next};
use crate::engine::commit::{Commits, without_versions};
use crate::engine::step::{Step, Stop, Wait};
use crate::engine::store::private_key::{private_bounds, split_private_key};
use crate::engine::txn::claim::{Claim, ClaimedLeaf, Owner, Phase};
use crate::engine::txn::transaction;
use crate::engine::txn::transaction::{Ticket, Transaction};
use crate::error::EngineError;
use crate::lock::Xid;
use crate::options::CommitBy;

mod image;
mod worth;

/// Bytes of log that the name of a span of pages takes, at most.
const SPAN_NAME_SIZE_MAX: usize = 20;

impl Commits {
    /// Passes when `xid` does not commit with its leaves.
    ///
    /// # Errors
    ///
    /// `Wait::CommitPages` while `xid`, or another transaction, is committed with its leaves; the stops of
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
            return Err(Stop::Wait(Wait::CommitPages));
        }
        if !self.is_worth_a_claim(xid) {
            return Ok(());
        }
        if self.claim.is_some() {
            return Err(Stop::Wait(Wait::CommitPages));
        }
        let Some(next) = self.first_worth(xid)? else {
            self.transaction(xid)?.is_refused = true;
            return Ok(());
        };
        self.admit_commit(xid)?;
        self.begin_claim(xid, next);
        Err(Stop::Wait(Wait::CommitPages))
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

    fn begin_claim(&mut self, xid: Xid, next: Vec<u8>) {
        let first = self.transactions.get(&xid).and_then(|own| first_from(&own.writes, &[]));
        let phase = Phase::Settling(self.frontier.committed);
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
        if self.frontier.committed > self.durable() && !self.bugs.has(SeededBug::ClaimBeforeDurable)
        {
            self.frontier.flush_to = self.frontier.flush_to.max(self.frontier.committed);
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
        let Some(claim) = &mut self.claim else {
            debug_assert!(false, "a claim that has work is there");
            return Ok(Next::Idle);
        };
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
            self.frontier.flush_to = self.frontier.flush_to.max(self.frontier.committed);
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
        let Some(xid) = self.claim.as_ref().map(|claim| claim.xid) else {
            debug_assert!(false, "a claim stays while its leaves are looked at");
            return Ok(Next::Idle);
        };
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
                self.groups.busy.insert(place.page);
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
                (Phase::Flagging(self.frontier.log.skip(1)), ClaimJob::Flag(group))
            }
            false => (Phase::Sealing, ClaimJob::Seal),
        };
        self.claim.as_mut()?.phase = phase;
        Some(job)
    }

    /// Whether a flag may decide: nothing of the transaction is in the log. Where other commits wait
    /// for the log anyway, a record rides along for less.
    fn may_flag(&self, claim: &Claim) -> bool {
        let is_possible = !claim.has_rest && self.room.view.carries_flags;
        is_possible
            && match self.options.techniques.commit {
                CommitBy::Flags => true,
                CommitBy::Auto => self.durable() >= self.frontier.committed,
                CommitBy::Log | CommitBy::Claims => false,
            }
    }

    /// Commits keep their order: a flag follows when all commits before it are durable.
    fn must_flush_before_flag(&self) -> bool {
        let flagged = self.claim.as_ref().filter(|claim| !claim.leaves.is_empty());
        let is_pending = self.durable() < self.frontier.committed;
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
            self.groups.busy.remove(&leaf.page);
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
        let Some(mut own) = self.transactions.remove(&claim.xid) else {
            debug_assert!(false, "a claim has its transaction until it is sealed");
            return;
        };
        self.memory.uncommitted -= own.size;
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
        (self.frontier.committed, self.frontier.flush_to) = (lsn, self.frontier.flush_to.max(lsn));
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
    /// the pins of the pages of `Commits::claim_pins`.
    pub(crate) fn install_claim(&mut self, pins: &[Option<PinId>]) {
        let Some(claim) = self.claim.take() else {
            debug_assert!(false, "a claim that is installed is there");
            return;
        };
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
            self.memory.uncommitted -= own.size;
        }
        if claim.owner == Owner::Waits {
            let claimed = Transaction { claimed: Some(ticket), ..Transaction::default() };
            self.transactions.insert(claim.xid, claimed);
        }
        self.counts.commits += 1;
        self.counts.claimed_pages += page_count as u64;
        self.release_locks(claim.xid);
    }

    /// Installs one leaf; snapshots below `until` need the old one.
    fn install_leaf(&mut self, leaf: ClaimedLeaf, pin: Option<PinId>, until: Lsn) {
        self.groups.busy.remove(&leaf.page);
        let pin = pin.map(|pin| (pin, leaf.page));
        self.retain_copy(leaf.table, leaf.range(), pin, leaf.base_lsn, until);
        self.remove_deltas(leaf.table, leaf.range(), leaf.upto);
        if let Some(tree) = self.trees.get_mut(leaf.table.id as usize) {
            tree.entry_count += leaf.grown;
        }
        self.forget_page(leaf.page);
    }
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
