//! The record of a commit in the log: group, runs, values that it drops, and its changes. Pages that the record
//! names are durable before it is appended (rule D1); the record alone decides (rule D5).

use flagstone_space::{GroupId, Lsn};

use crate::delta::{KeyRange, pack};
use crate::engine::commit::Commits;
use crate::engine::store::private_key::split_private_key;
use crate::engine::store::run::record::MasterRun;
use crate::engine::store::value::Descriptor;
use crate::engine::txn::transaction::Transaction;
use crate::log::{Blob, ItemBuf, Record};

impl Commits {
    /// Appends a transaction's commit record: its place among all commits. It is committed when the record is
    /// durable (rule D5).
    pub(crate) fn append_commit(&mut self, transaction: &Transaction) -> Lsn {
        let before = self.frontier.log.pending_bytes();
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
        self.frontier.log.skip(transaction.runs.len() as u64);
        let head = Record::Commit {
            group: transaction.group.unwrap_or(GroupId::NONE),
            runs: runs.items(),
            dropped: dropped.items(),
            changes: &[],
        };
        let lsn = self.frontier.log.append_with(|out| {
            head.encode(out);
            pack_writes(transaction, out);
        });
        let bytes = self.frontier.log.pending_bytes() - before;
        self.counts.log_bytes += bytes as u64;
        self.commit_costs.logged(bytes, self.options.memory);
        lsn
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
