//! Fuzzy checkpoints: old dirty pages are written, the two tables are logged, the log's head moves.
//!
//! ```text
//!  Idle ──▶ Writing ─────────▶ Logged ───────────▶ Saving ─────────▶ Idle
//!           dirty pages whose   Begin and the two   mapping checkpoint with the master
//!           first record is     tables are in the   record, then the head moves
//!           old are written     log, not durable
//! ```
//!
//! | transition | function |
//! | --- | --- |
//! | Idle → Writing | `begin_checkpoint` |
//! | Writing → Logged | `log_tables` |
//! | Logged → Saving | `save_job` |
//! | Saving → Idle | `checkpoint_done` |
//!
//! Transactions go on all the while: the tables are a picture of one moment, and restart begins its
//! analysis there.

use flagstone_engine::Xid;
use flagstone_engine::log::{ChainPoint, LogPosition};
use flagstone_space::{LogicalPage, Lsn};

use super::Mistake;
use super::engine::Engine;
use super::record::{Active, Record};

/// Share of the log budget, in percent, at which a checkpoint begins.
const BEGIN_PERCENT: u64 = 60;

/// Log blocks that must be left when a checkpoint begins, for logs of few blocks.
const BEGIN_BLOCKS: u64 = 3;

/// How far a checkpoint goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The older half of the log is freed.
    Half,
    /// Every page that is dirty now is written.
    All,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    /// Pages whose first record is below `target` are being written.
    Writing {
        target: Lsn,
    },
    /// The tables are logged; the head may move to `head`.
    Logged {
        begin: Lsn,
        end: Lsn,
        head: Lsn,
    },
    Saving {
        head: LogPosition,
    },
}

/// Progress of checkpoints.
#[derive(Clone, Debug, Default)]
pub(super) struct Checkpoint {
    phase: Phase,
    wanted: Option<Reach>,
    commits: u64,
    /// Begin record of the last one.
    last_begin: Lsn,
    /// Where the log's head stands.
    head: LogPosition,
    /// Pages still to be looked at.
    queue: Vec<LogicalPage>,
    /// The last page of the queue that was found to be old.
    awaited: Option<LogicalPage>,
}

/// Data for restart that the mapping checkpoint carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Master {
    /// Where redo and undo begin to read.
    pub(super) head: LogPosition,
    /// Where analysis begins to read.
    pub(super) begin: LogPosition,
    /// The begin record.
    pub(super) begin_lsn: Lsn,
    /// Number of the next transaction.
    pub(super) xid_next: u64,
    /// Epoch of the engine that wrote it.
    pub(super) epoch: u32,
}

const MASTER_VERSION: u8 = b'A';

impl Master {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![MASTER_VERSION];
        put_position(&mut out, self.head);
        put_position(&mut out, self.begin);
        out.extend(self.begin_lsn.0.to_le_bytes());
        out.extend(self.xid_next.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out
    }

    /// Reads a master record; any bytes give one or none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (head, rest) = take_position(rest)?;
        let (begin, rest) = take_position(rest)?;
        let (begin_lsn, rest) = rest.split_first_chunk::<8>()?;
        let (xid_next, rest) = rest.split_first_chunk::<8>()?;
        let epoch: &[u8; 4] = rest.try_into().ok()?;
        (*version == MASTER_VERSION).then(|| Self {
            head,
            begin,
            begin_lsn: Lsn(u64::from_le_bytes(*begin_lsn)),
            xid_next: u64::from_le_bytes(*xid_next),
            epoch: u32::from_le_bytes(*epoch),
        })
    }
}

fn put_position(out: &mut Vec<u8>, position: LogPosition) {
    let LogPosition { page, chain } = position;
    out.extend(page.to_le_bytes());
    out.extend(chain.next_sequence.to_le_bytes());
    out.extend(chain.epoch.to_le_bytes());
    out.extend(chain.predecessor.to_le_bytes());
}

fn take_position(bytes: &[u8]) -> Option<(LogPosition, &[u8])> {
    let (page, rest) = bytes.split_first_chunk()?;
    let (next_sequence, rest) = rest.split_first_chunk()?;
    let (epoch, rest) = rest.split_first_chunk()?;
    let (predecessor, rest) = rest.split_first_chunk()?;
    let chain = ChainPoint {
        next_sequence: u64::from_le_bytes(*next_sequence),
        epoch: u32::from_le_bytes(*epoch),
        predecessor: u32::from_le_bytes(*predecessor),
    };
    Some((LogPosition { page: u64::from_le_bytes(*page), chain }, rest))
}

impl Checkpoint {
    pub(super) fn count_commit(&mut self) {
        self.commits += 1;
    }

    /// Log page at which the head stands.
    pub(super) fn head_page(&self) -> u64 {
        self.head.page
    }

    /// Restart found this.
    pub(super) fn resume(&mut self, master: &Master) {
        self.head = master.head;
        self.last_begin = master.begin_lsn;
    }
}

impl Engine {
    /// Asks for a checkpoint that writes everything.
    pub fn want_checkpoint(&mut self) {
        self.checkpoint.wanted = Some(Reach::All);
    }

    /// Asks for room in the log.
    pub fn want_log_room(&mut self) {
        self.checkpoint.wanted.get_or_insert(Reach::Half);
    }

    /// Whether a checkpoint was asked for and is not finished.
    #[must_use]
    pub fn is_checkpointing(&self) -> bool {
        self.checkpoint.wanted.is_some() || self.checkpoint.phase != Phase::Idle
    }

    /// Whether a checkpoint should begin or can go on.
    pub(super) fn must_checkpoint(&self) -> bool {
        match self.checkpoint.phase {
            Phase::Idle => self.due_checkpoint().is_some(),
            // With all pages under way, the next look is worth its price when one of them is done.
            Phase::Writing { .. } => {
                let awaited = self.checkpoint.awaited;
                !self.checkpoint.queue.is_empty()
                    || awaited.is_none_or(|page| !self.pool.is_writing(page))
            }
            Phase::Logged { end, .. } => end <= self.durable(),
            Phase::Saving { .. } => false,
        }
    }

    /// How far a due checkpoint goes; none when none is due.
    fn due_checkpoint(&self) -> Option<Reach> {
        if self.checkpoint.wanted.is_some() {
            return self.checkpoint.wanted;
        }
        let every = self.config.options.checkpoint_commits;
        if every > 0 && self.checkpoint.commits >= every {
            return Some(Reach::Half);
        }
        let view = &self.view;
        let limit = (view.log_budget * BEGIN_PERCENT / 100)
            .min(view.log_budget.saturating_sub(BEGIN_BLOCKS * view.log_block_pages));
        let can_move = self.place_of(self.oldest_record()).page > self.checkpoint.head_page();
        (view.log_used > limit && can_move).then_some(Reach::Half)
    }

    /// Begins a checkpoint, or goes on with its tables; false when pages are to be written first.
    pub(super) fn checkpoint_step(&mut self) -> bool {
        match self.checkpoint.phase {
            Phase::Idle => {
                if let Some(reach) = self.due_checkpoint() {
                    self.begin_checkpoint(reach);
                }
                true
            }
            Phase::Writing { target } => {
                let is_done = !self.pool.dirty().any(|(_, first)| first < target);
                if is_done {
                    self.log_tables();
                }
                is_done
            }
            _ => false,
        }
    }

    fn begin_checkpoint(&mut self, reach: Reach) {
        let target = match reach {
            Reach::All => self.next_lsn(),
            Reach::Half => self.middle_record().max(self.checkpoint.last_begin),
        };
        self.checkpoint.wanted = None;
        self.checkpoint.commits = 0;
        self.checkpoint.phase = Phase::Writing { target };
    }

    /// A record in the middle of the log that is in use.
    fn middle_record(&self) -> Lsn {
        let head = self.checkpoint.head_page();
        let tail = self.places.back().map_or(head, |(_, place)| place.page);
        let middle = head + (tail.saturating_sub(head)).div_ceil(2);
        let after = self.places.partition_point(|(_, place)| place.page <= middle);
        self.places.get(after).map_or(self.next_lsn(), |(first, _)| *first)
    }

    /// The next page that the checkpoint has to write.
    pub(super) fn old_page(&mut self) -> Option<LogicalPage> {
        let Phase::Writing { target } = self.checkpoint.phase else { return None };
        if self.checkpoint.queue.is_empty() {
            self.checkpoint.queue = self.dirty_before(target);
        }
        while let Some(page) = self.checkpoint.queue.pop() {
            let frame = self.pool.peek(page);
            let is_old = frame.and_then(|it| it.rec_lsn).is_some_and(|first| first < target);
            if is_old {
                self.checkpoint.awaited = Some(page);
                if !self.pool.is_writing(page) {
                    return Some(page);
                }
            }
        }
        None
    }

    /// Dirty pages whose first record is below `target`, the oldest last.
    fn dirty_before(&self, target: Lsn) -> Vec<LogicalPage> {
        let old = self.pool.dirty().filter(|(_, first)| *first < target);
        let mut old: Vec<_> = old.map(|(page, first)| (first, page)).collect();
        old.sort_unstable_by(|one, two| two.cmp(one));
        old.into_iter().map(|(_, page)| page).collect()
    }

    fn log_tables(&mut self) {
        let begin = self.append(&Record::Begin);
        let dirty: Vec<(LogicalPage, Lsn)> = self.pool.dirty().collect();
        let active = |(xid, it): (&Xid, &super::engine::Transaction)| {
            (it.last != Lsn::ZERO).then_some(Active { xid: *xid, last: it.last })
        };
        let active = self.transactions.iter().filter_map(active).collect();
        let firsts = dirty.iter().map(|(_, first)| *first);
        let freed = self.freed.iter().map(|(lsn, _)| *lsn);
        let oldest = [begin, self.oldest_record()];
        let head = match self.config.makes(Mistake::HeadTooFar) {
            true => begin,
            false => firsts.chain(freed).chain(oldest).min().unwrap_or(begin),
        };
        let end = self.append(&Record::Checkpoint { begin, dirty, active });
        self.want_durable(end);
        self.checkpoint.phase = Phase::Logged { begin, end, head };
    }

    /// The data that the mapping checkpoint is to carry, and the first log page that is needed
    /// after it.
    pub(super) fn save_job(&mut self) -> Option<(Vec<u8>, u64)> {
        let Phase::Logged { begin, end, head } = self.checkpoint.phase else { return None };
        if end > self.durable() {
            return None;
        }
        let head = self.place_of(head);
        let master = Master {
            head,
            begin: self.place_of(begin),
            begin_lsn: begin,
            xid_next: self.xid_next,
            epoch: self.log.epoch(),
        };
        self.checkpoint.last_begin = begin;
        self.checkpoint.phase = Phase::Saving { head };
        Some((master.encode(), head.page))
    }

    /// The mapping checkpoint is durable: the head has moved.
    pub(super) fn checkpoint_done(&mut self) {
        if let Phase::Saving { head } = self.checkpoint.phase {
            self.checkpoint.head = head;
            let stale = self.places.iter().take_while(|(_, place)| *place != head).count();
            if stale < self.places.len() {
                self.places.drain(..stale);
            }
        }
        self.checkpoint.phase = Phase::Idle;
        self.counts.checkpoints += 1;
    }

    /// The mapping checkpoint was not written; a later one begins anew.
    pub(super) fn checkpoint_failed(&mut self) {
        self.checkpoint.phase = Phase::Idle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_record_reads_back_and_no_prefix_of_it_does() {
        let master =
            Master { begin_lsn: Lsn(1 << 40), xid_next: 77, epoch: 3, ..Master::default() };
        let bytes = master.encode();
        assert_eq!(Master::decode(&bytes), Some(master));
        assert!((0..bytes.len()).all(|size| Master::decode(&bytes[..size]).is_none()));
    }
}
