//! Records in the log that no commit makes: the begin of an epoch, installs, frees, markers and copies.

use std::ops::Bound;

use flagstone_space::{GroupId, GroupSpan, LogicalPage, Lsn, Version};

use crate::delta::pack;
use crate::engine::store::Store;
use crate::engine::store::catalog::Tree;
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
    pub(in crate::engine) fn append_marker(&mut self, group: Option<GroupId>) -> Lsn {
        self.append_claimed_record(group.unwrap_or(GroupId::NONE), &[])
    }

    /// Begins an epoch of the log, unless that was done. Its marker is flushed alone: later records
    /// stay apart from earlier ones (rule D17).
    pub(in crate::engine) fn open_log(&mut self) {
        self.frontier.log.open();
        if self.frontier.log.marker().is_some() {
            self.refresh_boundaries();
        }
    }

    /// Appends the marker of a claim: restart keeps changes from before and after it apart (rule D2).
    /// The marker commits nothing, and is written with the next flush. Pages are named where the next
    /// record commits the claim.
    pub(crate) fn append_claimed_record(&mut self, group: GroupId, pages: &[GroupSpan]) -> Lsn {
        let before = self.frontier.log.pending_bytes();
        let lowest = pages.iter().map(|span| span.version).min().unwrap_or(Version(0));
        let mut spans = ItemBuf::EMPTY;
        for &GroupSpan { page, version, count } in pages {
            spans.push(ClaimedSpan { page, above: version.0 - lowest.0, count });
        }
        self.open_log();
        let lsn =
            self.frontier.log.append(&Record::Claimed { group, lowest, spans: spans.items() });
        self.counts.log_bytes += (self.frontier.log.pending_bytes() - before) as u64;
        lsn
    }

    /// Appends an install record: the point at which a change of shape is committed.
    pub(crate) fn append_install_record(&mut self, parts: &InstallParts<'_>) -> Lsn {
        let before = self.frontier.log.pending_bytes();
        let [mut puts, mut deletes, mut trims, mut dropped] = [const { ItemBuf::EMPTY }; 4];
        for (key, child) in parts.puts {
            puts.push(Separator { key, child: *child });
        }
        parts.deletes.iter().for_each(|key| deletes.push(Blob(key)));
        parts.trims.iter().for_each(|page| trims.push(*page));
        parts.dropped.iter().for_each(|descriptor| dropped.push(Blob(descriptor)));
        self.open_log();
        let lsn = self.frontier.log.append(&Record::Install(Install {
            group: parts.group,
            tree: parts.tree,
            level: parts.level,
            puts: puts.items(),
            deletes: deletes.items(),
            trims: trims.items(),
            dropped: dropped.items(),
        }));
        self.counts.log_bytes += (self.frontier.log.pending_bytes() - before) as u64;
        self.note_freed(parts.trims, lsn);
        lsn
    }

    /// A record of the log frees page numbers.
    pub(crate) fn note_freed(&mut self, trims: &[LogicalPage], lsn: Lsn) {
        if !trims.is_empty() {
            self.frontier.freed_lsn = self.frontier.freed_lsn.max(lsn);
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
