//! Jobs of the engine carried out on the space floor.
//!
//! Owns the writes, syncs, releases and checkpoints of one job. Never chooses a job, and never waits for another
//! thread's.

use flagstone_nand::Nand;
use flagstone_space::{Cause, GroupId, LogicalPage, PinId, Space, SpaceError, WriteTag};
use tracing::debug;

use super::{Done, EVENTS, Folding, REGION_SYSTEM, REGION_TABLES, Runtime, SpaceGuard, tag_of};
use crate::bugs::SeededBug;
use crate::engine::{
    Append, CheckpointJob, ClaimJob, Descriptor, Engine, Freed, InstallJob, Job, PageWrite,
    Release, Step, Table, Visited, WriteJob,
};
use crate::error::EngineError;
use crate::lock::Xid;

impl<D: Nand> Runtime<D> {
    pub(super) fn carry_out(&self, job: Job) -> Step<Done> {
        match job {
            Job::Write(job) => Ok(self.write(job)?),
            Job::Sync(last) => Ok(self.sync_groups(last)?),
            Job::Install(job) => Ok(self.install(*job)?),
            Job::Checkpoint(job) => Ok(self.checkpoint(&job)?),
            Job::Spill(job) => {
                // The tag's LSN lies above the record that freed the page numbers: that record,
                // replayed, must not free them.
                let tag = tag_of(self.engine().durable(), REGION_SYSTEM, Cause::Data);
                let images = job.images.iter().map(|(page, image)| (*page, image));
                let written = self.write_group(job.group, images, tag);
                let written = written.and_then(|()| self.seal_group());
                match written {
                    Ok(()) => Ok(Done::Spilled(job)),
                    Err(EngineError::Full) => {
                        self.engine().spill_failed(&job);
                        Ok(Done::Nothing)
                    }
                    Err(error) => Err(error.into()),
                }
            }
            Job::Claim(job) => Ok(self.claim(job)?),
            Job::Release(release, is_new) => {
                self.release(release, is_new)?;
                Ok(Done::Nothing)
            }
            Job::Visit(table, page) => {
                self.visit(table, page)?;
                Ok(Done::Nothing)
            }
            Job::Free(freed) => {
                self.free(freed)?;
                Ok(Done::Nothing)
            }
            Job::Unpin(pins) => {
                let mut space = self.space();
                pins.into_iter().for_each(|pin| space.unpin(pin));
                Ok(Done::Nothing)
            }
        }
    }

    /// Reads a node of a dropped table.
    fn visit(&self, table: Table, page: LogicalPage) -> Result<(), EngineError> {
        let mut image = Vec::new();
        let read = self.space().read(page, &mut image);
        let (found, failed) = match read {
            Ok(_) => (Visited::Node(image), Ok(())),
            Err(SpaceError::Device(error)) => (Visited::Nothing, Err(error)),
            Err(SpaceError::Corrupt { .. } | SpaceError::Lost(_)) => (Visited::Damage, Ok(())),
            Err(_) => (Visited::Nothing, Ok(())),
        };
        self.engine().visited(table, found);
        Ok(failed?)
    }

    /// Frees pages of a dropped table; mapping and engine move together.
    fn free(&self, freed: Freed) -> Result<(), EngineError> {
        let mut space = self.space();
        for page in &freed.pages {
            if !space.trim(*page, None)? {
                // A root that was never written still has a number.
                space.release(*page);
            }
        }
        self.engine().freed(freed);
        Ok(())
    }

    fn write(&self, mut job: Box<WriteJob>) -> Result<Done, EngineError> {
        let mut space = self.space();
        let begun_ns = space.busy_ns();
        let written = match self.append(&mut space, &mut job) {
            Ok(true) => {
                let cost_ns = space.busy_ns() - begun_ns;
                self.engine().note_append_cost(cost_ns);
                return Ok(Done::Written(job, None));
            }
            Ok(false) => self.write_pages(&mut space, &mut job),
            Err(error) => Err(error),
        };
        match written.and_then(|pin| Ok((self.seal_job(space, &mut job)?, pin))) {
            Ok((space, pin)) => {
                let cost_ns = space.busy_ns() - begun_ns;
                self.engine().note_write_cost(job.pages.len(), cost_ns);
                Ok(Done::Written(job, pin))
            }
            Err(error) => {
                let goes_on = self.engine().write_failed(&job);
                match EngineError::from(error) {
                    EngineError::Full if goes_on => Ok(Done::Nothing),
                    error => self.fail(error),
                }
            }
        }
    }

    /// Appends a job's changes to the page that holds their leaf; false when the page takes no
    /// append.
    fn append(&self, space: &mut Space<D>, job: &mut WriteJob) -> Result<bool, SpaceError> {
        let [write] = job.pages.as_mut_slice() else { return Ok(false) };
        let Some(append) = write.append.take() else { return Ok(false) };
        let Append { onto, records } = append;
        write.version = space.append(write.page, &onto, write.lsn, Append::FORM, &records)?;
        Ok(write.version.is_some())
    }

    fn write_pages(
        &self,
        space: &mut Space<D>,
        job: &mut WriteJob,
    ) -> Result<Option<PinId>, SpaceError> {
        let count = u32::try_from(job.pages.len()).unwrap_or(u32::MAX);
        space.ensure_room(count, &mut Folding(&self.engine))?;
        let pin = job.pin.and_then(|page| space.pin(page).ok());
        for write in &mut job.pages {
            let append_slots = self.engine().slots_behind(&write.image);
            let tag = WriteTag { append_slots, ..tag_of(write.lsn, REGION_TABLES, job.cause) };
            let body = write.image.get(..space.payload_size_with(append_slots));
            let body = body.unwrap_or(&write.image);
            let info = if job.group == GroupId::NONE {
                space.write(write.page, body, &tag)?
            } else {
                space.write_in_group(job.group, write.page, body, &tag)?
            };
            write.version = Some(info);
        }
        Ok(pin)
    }

    /// Makes the pages of a group durable unless the job may wait for a later sync, while other
    /// threads read.
    fn seal_job<'a>(
        &'a self,
        space: SpaceGuard<'a, D>,
        job: &mut WriteJob,
    ) -> Result<SpaceGuard<'a, D>, SpaceError> {
        let skips_sync = self.engine().bugs.has(SeededBug::RecordBeforePages);
        // Where pages of a block are paired, programs that follow must not endanger their
        // neighbours.
        let may_wait = job.may_wait && self.needs_sync && !self.has_pairs && !skips_sync;
        job.is_durable = job.group != GroupId::NONE && !may_wait;
        match job.is_durable && (self.needs_sync || self.has_pairs) && !skips_sync {
            true => self.sync(space),
            false => Ok(space),
        }
    }

    /// Makes the pages of all groups up to `last` durable, while other threads read and write.
    fn sync_groups(&self, last: GroupId) -> Result<Done, EngineError> {
        match self.sync(self.space()) {
            Ok(_) => Ok(Done::Synced(last)),
            Err(error) => self.fail(error.into()),
        }
    }

    /// Writes pages under a transaction's group; they count only after [`Runtime::seal_group`].
    pub(super) fn write_group<'a>(
        &self,
        group: GroupId,
        images: impl ExactSizeIterator<Item = (LogicalPage, &'a Vec<u8>)>,
        tag: WriteTag,
    ) -> Result<(), EngineError> {
        let mut space = self.space();
        let count = u32::try_from(images.len()).unwrap_or(u32::MAX);
        let result = (|| {
            space.ensure_room(count, &mut Folding(&self.engine))?;
            for (page, image) in images {
                space.write_in_group(group, page, image, &tag)?;
            }
            Ok(())
        })();
        result.or_else(|error: SpaceError| self.fail(error.into()))
    }

    /// Makes the pages of a group durable before a record commits them (rule D1), while other
    /// threads read.
    pub(super) fn seal_group(&self) -> Result<(), EngineError> {
        if self.engine().bugs.has(SeededBug::RecordBeforePages) {
            return Ok(());
        }
        let mut space = self.space();
        let sealed = match self.needs_sync || self.has_pairs {
            true => self.sync(space).map(drop),
            false => space.fence(),
        };
        sealed.or_else(|error| self.fail(error.into()))
    }

    /// Does one job of a claim: a write, the sync, or the flag. Without room the log takes all
    /// changes.
    fn claim(&self, job: ClaimJob) -> Result<Done, EngineError> {
        let done = match job {
            ClaimJob::Reshape(job) => return self.claim_unless_full(self.write(job)),
            ClaimJob::Write(group, write) => self.claim_page(group, write).map(|()| Done::Nothing),
            ClaimJob::Seal => self.seal_claim().map(|()| Done::Sealed),
            ClaimJob::Flag(group) => self.space().flag_group(group).map(|()| Done::Flagged),
        };
        self.claim_unless_full(done.map_err(EngineError::from))
    }

    /// Passes a job's result on; without room for the claim, the log takes all changes.
    fn claim_unless_full(&self, done: Result<Done, EngineError>) -> Result<Done, EngineError> {
        match done {
            Ok(done) => Ok(done),
            Err(EngineError::Full) => {
                self.engine().claim_failed();
                Ok(Done::Nothing)
            }
            Err(error) => self.fail(error),
        }
    }

    /// Makes the pages of a claim durable. Where no sync is needed they are: `work_end` waited for the end of
    /// each program.
    fn seal_claim(&self) -> Result<(), SpaceError> {
        let skips_sync = self.engine().bugs.has(SeededBug::RecordBeforePages);
        match (self.needs_sync || self.has_pairs) && !skips_sync {
            true => self.sync(self.space()).map(drop),
            false => Ok(()),
        }
    }

    fn claim_page(&self, group: GroupId, write: PageWrite) -> Result<(), SpaceError> {
        let mut space = self.space();
        let begun_ns = space.busy_ns();
        space.ensure_room(1, &mut Folding(&self.engine))?;
        let append_slots = self.engine().slots_behind(&write.image);
        let tag = WriteTag { append_slots, ..tag_of(write.lsn, REGION_TABLES, Cause::Data) };
        let body = write.image.get(..space.payload_size_with(append_slots));
        let written = space.write_claimed(group, write.page, body.unwrap_or(&write.image), &tag)?;
        let cost_ns = space.busy_ns() - begun_ns;
        let mut engine = self.engine();
        engine.note_write_cost(1, cost_ns);
        engine.claim_written(write.page, written.version);
        Ok(())
    }

    /// Moves mapping and engine together, under both latches (rule D15).
    fn install(&self, job: InstallJob) -> Result<Done, EngineError> {
        let mut space = self.space();
        let mut engine = self.engine();
        let grouped = &job.grouped;
        let pins: Vec<Option<PinId>> = match engine.must_pin(grouped) {
            true => grouped.pins().map(|page| space.pin(page).ok()).collect(),
            false => Vec::new(),
        };
        space.commit_group(grouped.group)?;
        for page in grouped.trims() {
            space.trim(*page, None)?;
            hold_number(&mut space, &mut engine, *page);
        }
        engine.install(job, &pins);
        Ok(Done::Nothing)
    }

    fn checkpoint(&self, job: &CheckpointJob) -> Result<Done, EngineError> {
        let mut space = self.space();
        space.log_release(job.release_before);
        let written = match job.is_last {
            true => space.close(&job.master),
            false => Self::checkpoint_beside_readers(&mut space, &job.master),
        };
        if let Err(error) = written {
            self.engine().checkpoint_failed();
            return self.fail(error.into());
        }
        debug!(target: EVENTS, log_used = space.log_used_pages(), live = space.live_pages(), "checkpoint written");
        // Upkeep that the space floor noted is rare, and cheap beside a checkpoint. A page that
        // cannot be repaired now is met again by its next reader.
        while !job.is_last && space.background(&mut Folding(&self.engine)).is_ok_and(|more| more) {}
        Ok(Done::Checkpoint)
    }

    /// Makes a checkpoint; other threads read during its syncs, where the device allows it.
    fn checkpoint_beside_readers(
        space: &mut SpaceGuard<'_, D>,
        master: &[u8],
    ) -> Result<(), SpaceError> {
        let mut next = space.begin_checkpoint(master)?;
        if next.is_none() {
            return space.checkpoint(master);
        }
        while let Some(checkpoint) = next {
            let synced = space.lend(|| checkpoint.run());
            next = space.advance_checkpoint(checkpoint, synced)?;
        }
        Ok(())
    }

    fn release(&self, release: Release, is_new: bool) -> Result<(), EngineError> {
        match release {
            Release::CommitGroup(group) => match self.space().commit_group(group) {
                Ok(_) | Err(SpaceError::UnknownGroup(_)) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Release::DiscardGroup(group) => {
                self.space().discard_group(group);
                Ok(())
            }
            Release::Pages(group, pages) => self.trim_all(pages.iter(), group, is_new),
            Release::Value(descriptor) => {
                let (group, pages) = self.value_pages(&descriptor)?;
                self.trim_all(pages.into_iter(), group, is_new)
            }
        }
    }

    /// The group of a value, and its pages as far as they are found: list pages last.
    fn value_pages(&self, descriptor: &[u8]) -> Result<(GroupId, Vec<LogicalPage>), EngineError> {
        let descriptor = Descriptor::decode(descriptor)?;
        let mut pages = match self.chunks_of(&descriptor) {
            Ok(chunks) => chunks,
            // The value was trimmed before a crash, and its release is replayed.
            Err(EngineError::Corrupt { .. } | EngineError::Space(_)) => Vec::new(),
            Err(error) => return Err(error),
        };
        if descriptor.is_indirect() {
            pages.extend(descriptor.pages());
        }
        Ok((descriptor.group(), pages))
    }

    /// Takes the values that a transaction stored and no longer refers to out of its group.
    pub(super) fn give_back(&self, xid: Xid) -> Result<(), EngineError> {
        loop {
            let Some(garbage) = self.engine().next_garbage(xid) else { return Ok(()) };
            let (group, pages) = self.value_pages(&garbage)?;
            let mut space = self.space();
            // Both latches are held throughout: a commit in between would make the pages current.
            let mut engine = self.engine();
            if engine.give_back(xid, &garbage, &pages) {
                space.discard_pages(group, &pages);
            }
            drop(engine);
            self.observe(&space);
        }
    }

    fn trim_all(
        &self,
        pages: impl Iterator<Item = LogicalPage>,
        group: GroupId,
        is_new: bool,
    ) -> Result<(), EngineError> {
        let mut space = self.space();
        let guard = (!self.engine().bugs.has(SeededBug::TrimAnyGroup)).then_some(group);
        let mut image = Vec::new();
        for page in pages {
            // For a release that restart found, the number may have had another owner since. An
            // unreadable page may be the new owner's: trimmed, the root of a table would pass for a
            // root that was never written.
            let is_there = match is_new {
                true => space.is_mapped(page) || space.is_lost(page),
                false => match space.read(page, &mut image) {
                    Err(SpaceError::Device(error)) => return Err(error.into()),
                    read => read.is_ok(),
                },
            };
            if is_there && space.trim(page, guard)? {
                hold_number(&mut space, &mut self.engine(), page);
            }
        }
        Ok(())
    }
}

/// Keeps a page number from a new owner until the restart has ended (rule D11): the images that
/// restart writes are complete only to LSNs below the record that frees the number.
fn hold_number<D: Nand>(space: &mut Space<D>, engine: &mut Engine, page: LogicalPage) {
    if engine.is_replaying() {
        space.reserve(page);
        engine.hold_number(page);
    }
}
