//! The engine's records in the log.

use std::ops::Bound;

use flagstone_space::{GroupId, GroupSpan, LogicalPage, Lsn, Version};

use super::Store;
use super::catalog::Tree;
use super::checkpoint::MasterRun;
use super::transaction::{Transaction, split_private_key};
use super::value::Descriptor;
use crate::delta::{KeyRange, pack};
use crate::log::{Blob, ClaimedSpan, Install, ItemBuf, LogWriter, Record, Separator};

/// Content of an install record.
pub(crate) struct InstallParts<'a> {
    pub(crate) group: GroupId,
    pub(crate) tree: u32,
    pub(crate) level: u8,
    pub(crate) puts: &'a [(Vec<u8>, LogicalPage)],
    pub(crate) deletes: &'a [Vec<u8>],
    pub(crate) trims: &'a [LogicalPage],
    pub(crate) dropped: &'a [Vec<u8>],
}

impl Store {
    /// Appends a transaction's commit record: the point at which it is committed (rule D5).
    pub(crate) fn append_commit(&mut self, transaction: &Transaction) -> Lsn {
        let before = self.log.pending_bytes();
        let [mut runs, mut dropped] = [const { ItemBuf::EMPTY }; 2];
        for run in &transaction.runs {
            let mut bytes = Vec::new();
            let rolled_back = transaction.rolled_back.clone();
            MasterRun { lsn: Lsn::ZERO, run: run.clone(), rolled_back }.encode(&mut bytes);
            runs.push(Blob(&bytes));
        }
        transaction.dropped.iter().for_each(|descriptor| dropped.push(Blob(descriptor)));
        let garbage = garbage_of(transaction);
        garbage.iter().for_each(|descriptor| dropped.push(Blob(descriptor)));
        self.open_log();
        self.log.skip(transaction.runs.len() as u64);
        let head = Record::Commit {
            group: transaction.group.unwrap_or(GroupId::NONE),
            runs: runs.items(),
            dropped: dropped.items(),
            changes: &[],
        };
        let lsn = self.log.append_with(|out| {
            head.encode(out);
            pack_writes(transaction, out);
        });
        let bytes = self.log.pending_bytes() - before;
        self.counts.log_bytes += bytes as u64;
        self.commit_costs.logged(bytes, self.options.memory);
        lsn
    }

    /// Begins an epoch of the log, unless that was done. Its marker is flushed alone: later records
    /// stay apart from earlier ones (rule D17).
    pub(super) fn open_log(&mut self) {
        self.log.open();
        if self.log.marker().is_some() {
            self.refresh_floors();
        }
    }

    /// Appends the marker of a claim: restart keeps changes from before and after it apart (rule D2).
    /// The marker commits nothing, and is written with the next flush. Pages are named where the next
    /// record commits the claim.
    pub(crate) fn append_claimed_record(&mut self, group: GroupId, pages: &[GroupSpan]) -> Lsn {
        let before = self.log.pending_bytes();
        let lowest = pages.iter().map(|span| span.version).min().unwrap_or(Version(0));
        let mut spans = ItemBuf::EMPTY;
        for &GroupSpan { page, version, count } in pages {
            spans.push(ClaimedSpan { page, above: version.0 - lowest.0, count });
        }
        self.open_log();
        let lsn = self.log.append(&Record::Claimed { group, lowest, spans: spans.items() });
        self.counts.log_bytes += (self.log.pending_bytes() - before) as u64;
        lsn
    }

    /// Appends an install record: the point at which a change of shape is committed.
    pub(crate) fn append_install_record(&mut self, parts: &InstallParts<'_>) -> Lsn {
        let before = self.log.pending_bytes();
        let [mut puts, mut deletes, mut trims, mut dropped] = [const { ItemBuf::EMPTY }; 4];
        for (key, child) in parts.puts {
            puts.push(Separator { key, child: *child });
        }
        parts.deletes.iter().for_each(|key| deletes.push(Blob(key)));
        parts.trims.iter().for_each(|page| trims.push(*page));
        parts.dropped.iter().for_each(|descriptor| dropped.push(Blob(descriptor)));
        self.open_log();
        let lsn = self.log.append(&Record::Install(Install {
            group: parts.group,
            tree: parts.tree,
            level: parts.level,
            puts: puts.items(),
            deletes: deletes.items(),
            trims: trims.items(),
            dropped: dropped.items(),
        }));
        self.counts.log_bytes += (self.log.pending_bytes() - before) as u64;
        self.note_freed(parts.trims, lsn);
        lsn
    }

    /// A record of the log frees page numbers.
    pub(crate) fn note_freed(&mut self, trims: &[LogicalPage], lsn: Lsn) {
        if !trims.is_empty() {
            self.freed_lsn = self.freed_lsn.max(lsn);
        }
    }
}

/// Names of the pages that a transaction gave back: a mount may find them in its group.
fn garbage_of(transaction: &Transaction) -> Option<Vec<u8>> {
    let pages = [&transaction.given_back[..], &transaction.given_saved].concat();
    let group = transaction.group.filter(|_| !pages.is_empty())?;
    Some(Descriptor::of_pages(group, pages).encode())
}

/// Appends the changes of a commit record, which end it.
fn pack_writes(transaction: &Transaction, out: &mut Vec<u8>) {
    let mut before: &[u8] = &[];
    for entry in transaction.writes.range(KeyRange::ALL) {
        let (table, key) = split_private_key(entry.key());
        for (_, op) in entry.versions() {
            pack(before, u64::from(table.id), key, op, out);
            before = key;
        }
    }
}

/// Appends copies of a tree's deltas below `below` that follow the key `after`, until they take
/// `room` bytes.
///
/// Returns how many were copied, and the last key when more follow.
pub(crate) fn append_copies(
    log: &mut LogWriter,
    cycle: u32,
    tree: &Tree,
    below: Lsn,
    after: Option<Vec<u8>>,
    room: usize,
) -> (usize, Option<Vec<u8>>) {
    let mut changes = Vec::new();
    let newest = Lsn(below.0.saturating_sub(1));
    let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut last: Option<&[u8]> = None;
    let mut more = false;
    let mut count = 0;
    for (key, lsn, op) in tree.deltas.older_than(below, from) {
        // The versions of one key stay together: the cursor goes by keys.
        if changes.len() >= room && last != Some(key) {
            more = true;
            break;
        }
        pack(last.unwrap_or(&[]), newest.0.saturating_sub(lsn.0), key, op, &mut changes);
        count += 1;
        last = Some(key);
    }
    if count > 0 {
        log.open();
        log.append(&Record::Copy { cycle, tree: tree.id, newest, changes: &changes });
    }
    (count, last.filter(|_| more).map(<[u8]>::to_vec))
}
