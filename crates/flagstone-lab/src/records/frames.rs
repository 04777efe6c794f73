//! Pages in memory: reads that are missed, versions that are written, checkpoints.

use std::collections::BTreeSet;

use flagstone_engine::node::{self as node_format, NodeView};
use flagstone_engine::{EngineError, Fetch, Fetched, Step, Stop, Wait, Xid};
use flagstone_space::{GroupId, LogicalPage, Lsn};

use super::engine::{CATALOG, CATALOG_ROOT, Checkpoint, Engine};
use super::page::{self, Before, Listed, Pending, Side};
use crate::classic::page::cell_of;

/// Frames that there are however little memory the options give.
pub(super) const FRAMES_MIN: usize = 12;

/// Pages at the end of the pool's order that are written ahead of need: a share of the pool, within
/// bounds.
const CLEAN_SHARE: usize = 8;
const CLEAN_MIN: usize = 4;
const CLEAN_MAX: usize = 32;

/// Notes of pages that are not in memory, as a multiple of the frames, beyond which they are swept.
const SIDES_SHARE: usize = 4;

/// A version to be written.
#[derive(Debug)]
pub(super) struct WriteJob {
    pub(super) page: LogicalPage,
    pub(super) content: Vec<u8>,
    pub(super) lsn: Lsn,
    /// First log record that it leaves out, because the value before has to be on flash first.
    pub(super) lacks: Option<Lsn>,
    pub(super) members: Vec<GroupId>,
}

impl Engine {
    /// The node of a page, or a miss that is noted as under way.
    pub(super) fn image(&mut self, page: LogicalPage) -> Step<&[u8]> {
        let is_there = self.pool.peek(page).is_some();
        if !is_there || self.sides.get(&page).is_some_and(Side::wants_read) {
            return Err(self.miss(page));
        }
        let frame = self.pool.get(page);
        frame.map(|frame| frame.image.as_slice()).ok_or(Stop::Wait(Wait::Memory))
    }

    pub(super) fn miss(&mut self, page: LogicalPage) -> Stop {
        if !self.reads.contains(page) {
            if self.pool.peek(page).is_none()
                && let Err(stop) = self.make_room(1)
            {
                return stop;
            }
            self.pool.misses += 1;
        }
        Stop::Miss(Fetch::Page(page, self.reads.begin(page)))
    }

    /// Makes room for `count` frames beside the frames being read.
    pub(super) fn make_room(&mut self, count: usize) -> Step<()> {
        let wanted = (self.reads.page_count() + count) * self.pool.frame_size();
        self.is_crowded = !self.pool.shrink(self.frames_limit().saturating_sub(wanted));
        let frames = self.frames_limit() / self.pool.frame_size();
        if self.sides.len() > SIDES_SHARE * frames {
            let pool = &self.pool;
            self.sides.retain(|page, _| pool.peek(*page).is_some());
        }
        if self.is_crowded { Err(Stop::Wait(Wait::Memory)) } else { Ok(()) }
    }

    pub(super) fn frames_limit(&self) -> usize {
        self.config.options.memory.max(FRAMES_MIN * self.pool.frame_size())
    }

    /// Whether a page in memory lacks values that flash has: it is read as it was committed.
    pub(super) fn wants_committed(&self, page: LogicalPage) -> bool {
        self.pool.peek(page).is_some() && self.sides.get(&page).is_some_and(Side::wants_read)
    }

    /// Takes a page that was read for a miss: a node with its section, or a node as it was committed.
    ///
    /// # Errors
    ///
    /// `Corrupt` when the page does not parse, or is absent.
    pub(super) fn filled(&mut self, fetched: Fetched) -> Result<(), EngineError> {
        let Fetch::Page(page, number) = fetched.fetch else { return Ok(()) };
        if self.reads.end(page, number) {
            return Ok(());
        }
        let is_there = self.pool.peek(page).is_some();
        match fetched.found {
            Some((_, node)) if is_there && node.len() == self.node_size => {
                self.repair(page, &node);
                Ok(())
            }
            Some((info, content)) if !is_there && content.len() == self.content_size => {
                self.fill_frame(page, info.lsn, content)
            }
            // Another operation filled or dropped the frame meanwhile.
            Some(_) => Ok(()),
            None if is_there => Ok(()),
            None if page == CATALOG_ROOT => {
                let leaf = node_format::empty_leaf(CATALOG, self.node_size);
                self.sides.insert(page, Side::default());
                self.pool.fill(page, self.log.last(), leaf);
                Ok(())
            }
            None => {
                let check = "page is referred to but was never written";
                Err(EngineError::Corrupt { page, check })
            }
        }
    }

    fn fill_frame(
        &mut self,
        page: LogicalPage,
        lsn: Lsn,
        mut content: Vec<u8>,
    ) -> Result<(), EngineError> {
        let check = "node does not parse";
        let listed = page::listed(&content, self.node_size);
        let listed = listed.ok_or(EngineError::Corrupt { page, check })?;
        let mut side = Side { flash: Some(lsn), ..Side::default() };
        content.truncate(self.node_size);
        for Listed { key, xid, before_size } in listed {
            debug_assert!(self.transactions.contains_key(&xid), "others were merged by the reader");
            let pending = Pending {
                xid,
                before: Before::OnFlash,
                before_size,
                is_before_on_flash: true,
                first: lsn,
                last: lsn,
                is_written: true,
                is_absent: NodeView::trusted(&content).search(&key).is_err(),
            };
            side.pending.insert(key, pending);
        }
        self.sides.insert(page, side);
        self.pool.fill(page, lsn, content);
        Ok(())
    }

    /// Gives a page in memory the values that flash has and it lacks.
    fn repair(&mut self, page: LogicalPage, committed: &[u8]) {
        let (Some(side), Some(frame)) = (self.sides.get_mut(&page), self.pool.peek(page)) else {
            return;
        };
        let (mut image, lsn) = (frame.image.clone(), frame.lsn);
        let invalid = std::mem::take(&mut side.invalid);
        for key in &invalid {
            let value = cell_of(committed, key);
            match page::with_value(&image, key, value.as_ref()) {
                Some(repaired) => image = repaired,
                None => debug_assert!(false, "a leaf has room for every outcome (H4)"),
            }
        }
        for (key, pending) in &mut side.pending {
            if pending.before == Before::OnFlash {
                pending.before = Before::Known(cell_of(committed, key));
            }
        }
        side.wants_befores = false;
        if !invalid.is_empty() {
            side.touched(lsn);
            self.pool.change(page, lsn, image);
        }
    }

    /// A read took so many versions.
    pub(super) fn merged(&mut self, version_count: usize) {
        self.counts.merged_reads += u64::from(version_count > 1);
        self.counts.merged_max = self.counts.merged_max.max(version_count as u64);
    }

    /// A read that was asked for failed: nothing will come.
    pub(super) fn fetch_failed(&mut self, fetch: Fetch) {
        if let Fetch::Page(page, number) = fetch {
            self.reads.end(page, number);
        }
    }
}

/// Versions that are written.
impl Engine {
    /// Dirty pages that should be written now: the pool's oldest, when it is nearly full.
    pub(super) fn crowding_pages(&self) -> Vec<LogicalPage> {
        let frames = self.frames_limit() / self.pool.frame_size().max(1);
        let depth = (frames / CLEAN_SHARE).clamp(CLEAN_MIN, CLEAN_MAX);
        let is_full = self.pool.bytes() + depth * self.pool.frame_size() > self.frames_limit();
        if !is_full && !self.is_crowded {
            return Vec::new();
        }
        let old = self.pool.old_dirty(depth).filter(|(_, frame)| !frame.is_writing());
        old.map(|(page, _)| page).collect()
    }

    /// The version of a page to be written now; none when it has to wait for the log, or no write
    /// is needed. Stops when the page has to be read first.
    pub(super) fn write_begin(&mut self, page: LogicalPage) -> Step<Option<WriteJob>> {
        let Some(side) = self.sides.get(&page) else { return Ok(None) };
        if side.wants_read() {
            return Err(self.miss(page));
        }
        let Some(frame) = self.pool.peek(page).filter(|frame| !frame.is_writing()) else {
            return Ok(None);
        };
        // The store may know already that they committed: they are plain content in a moment.
        if side.members().iter().any(|xid| self.is_committing(*xid)) {
            return Ok(None);
        }
        if side.shape > self.durable {
            self.wanted = self.wanted.max(side.shape);
            return Ok(None);
        }
        Ok(job_of(page, &frame.image, frame.lsn, side, self.content_size))
    }

    /// The version is on its way: the buffer need not keep records that it carries (rule B1 of the
    /// log).
    pub(super) fn write_begun(&mut self, job: &WriteJob) {
        self.counts.befores_written += u64::from(job.lacks.is_some());
        self.counts.stolen += u64::from(!job.members.is_empty());
        self.reads.mark_stale(job.page);
        self.pool.write_begun(job.page);
        self.log.drop_page(job.page, job.lsn);
        if let Some(side) = self.sides.get_mut(&job.page) {
            side.written(job.lsn, job.lacks);
        }
    }

    /// The version is on flash.
    pub(super) fn write_end(&mut self, page: LogicalPage) {
        self.pool.write_ended(page);
        let Some(side) = self.sides.get_mut(&page) else { return };
        let Some(lacks) = side.writing.take() else { return };
        side.lacks = lacks;
        let Some(frame) = self.pool.peek(page) else { return };
        if lacks.is_some() && frame.rec_lsn.is_none() {
            self.pool.patch(page, frame.lsn, 0, &[]);
        }
    }
}

/// The next version of a page (H1, H2).
fn job_of(
    page: LogicalPage,
    image: &[u8],
    lsn: Lsn,
    side: &Side,
    content_size: usize,
) -> Option<WriteJob> {
    let mut node = image.to_vec();
    let mut lacks: Option<Lsn> = None;
    let mut listed = Vec::new();
    for (key, pending) in &side.pending {
        if pending.is_before_on_flash {
            let (key, xid, before_size) = (key.clone(), pending.xid, pending.before_size);
            listed.push(Listed { key, xid, before_size });
            continue;
        }
        let Before::Known(before) = &pending.before else { return None };
        node = page::with_value(&node, key, before.as_ref())?;
        lacks = Some(lacks.map_or(pending.first, |lacks| lacks.min(pending.first)));
    }
    let members: BTreeSet<Xid> = listed.iter().map(|entry| entry.xid).collect();
    let members = members.into_iter().map(|xid| GroupId(xid.0)).collect();
    let content = page::content(&node, &listed, content_size)?;
    let lsn = lacks.map_or(lsn, |lacks| Lsn(lacks.0 - 1));
    Some(WriteJob { page, content, lsn, lacks, members })
}

impl Side {
    /// A version is being written, complete up to `lsn`; `lacks` is the first LSN that it leaves
    /// out.
    fn written(&mut self, lsn: Lsn, lacks: Option<Lsn>) {
        for pending in self.pending.values_mut() {
            pending.is_written |= pending.is_before_on_flash;
            pending.is_before_on_flash = true;
        }
        self.unwritten.clear();
        self.flash = Some(self.flash.map_or(lsn, |flash| flash.max(lsn)));
        self.writing = Some(lacks);
    }
}

/// Checkpoints.
impl Engine {
    /// Whether a checkpoint is due: after so many commits, or when the log is long.
    pub(super) fn is_checkpoint_due(&self) -> bool {
        let options = &self.config.options;
        let commits_max = options.checkpoint_commits.max(1);
        self.checkpoint.commits >= commits_max || self.is_log_long()
    }

    /// Whether the log takes more blocks than it may.
    pub(super) fn is_log_long(&self) -> bool {
        self.log_blocks > self.log_blocks_max
    }

    /// A page that was dirty at the last checkpoint and is still (H5).
    pub(super) fn noted_page(&self) -> Option<LogicalPage> {
        let noted = self.checkpoint.lsn;
        self.pool.dirty().map(|(page, _)| page).find(|page| {
            let lacks = self.sides.get(page).and_then(|side| side.lacks);
            lacks.is_some_and(|lacks| lacks <= noted) && !self.pool.is_writing(*page)
        })
    }

    /// Whether a page that was dirty at the last checkpoint is not complete on flash.
    pub(super) fn has_noted_page(&self) -> bool {
        let noted = self.checkpoint.lsn;
        self.pool.dirty().any(|(page, _)| {
            let lacks = self.sides.get(&page).and_then(|side| side.lacks);
            lacks.is_some_and(|lacks| lacks <= noted)
        })
    }

    /// A checkpoint is in the log, before batch `batch`: dirty pages are noted.
    pub(super) fn checkpointed(&mut self, batch: u64) {
        self.checkpoint = Checkpoint { lsn: self.log.last(), batch, commits: 0 };
        self.counts.checkpoints += 1;
    }
}
