//! Where units go: one open block a die and stream, so that pages are programmed in parallel.
//!
//! Owns the open blocks. Never decides which units are live.
//!
//! W1. A block is erased in this session before its first program, and closed with a summary.
//! W2. Hosts open a block only while collection, the log and a restart keep the blocks they may
//! need.

use flagstone_nand::{BlockIndex, Nand, NandError};

use super::note::{self, Body, Kind, Note};
use super::{Flag, LogicalPage, NOWHERE, RESERVE, RecordStore, ShadowError, State};

/// Programs of one unit that may fail before the store gives up.
pub(super) const ATTEMPTS: u32 = 4;

/// Victims that one opened block may ask for while room is not short.
const VICTIMS_MAX: u32 = 8;

/// One block in so many is never filled, however few there are.
const SLACK: u32 = 20;

/// The log has one block in so many for itself.
const LOG_SHARE: u32 = 32;

/// Free blocks that hosts leave to the log.
const LOG_RESERVE: u32 = 2;

/// Writers, each with blocks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Hosts,
    Moved,
}

/// A block that takes units.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) block: BlockIndex,
    bodies: Vec<Body>,
}

/// One open block a die.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    open: Vec<Option<Open>>,
    cursor: u32,
}

impl Stream {
    pub(super) fn new(die_count: u32) -> Self {
        Self { open: vec![None; die_count as usize], cursor: 0 }
    }

    /// Asks for the next place on a die, if there is one.
    pub(super) const fn aim(&mut self, die: u32) {
        self.cursor = die;
    }

    fn die_of(&self, block: BlockIndex) -> Option<usize> {
        self.open.iter().position(|open| open.as_ref().is_some_and(|open| open.block == block))
    }
}

impl<D: Nand> RecordStore<D> {
    fn stream(&mut self, line: Line) -> &mut Stream {
        match line {
            Line::Hosts => &mut self.hosts,
            Line::Moved => &mut self.moved,
        }
    }

    /// Blocks that a restart may need before it can collect anything: for units that were being
    /// written when the power went, for pages of the pool, and for the log with its verdict.
    fn restart_reserve(&self) -> u32 {
        let dies = self.flash.sizes.geometry.die_count;
        let units = 2 * dies + self.options.restart_pages;
        units.div_ceil(self.flash.sizes.units_per_block) + dies + 2
    }

    /// Blocks that the log has for itself: beyond them a checkpoint is due.
    #[must_use]
    pub fn log_budget(&self) -> u32 {
        (self.flash.sizes.geometry.block_count / LOG_SHARE).max(LOG_RESERVE + 1)
    }

    fn kept(&self, line: Line) -> u32 {
        match line {
            Line::Hosts => RESERVE + LOG_RESERVE + self.restart_reserve(),
            Line::Moved => self.restart_reserve(),
        }
    }

    /// Logical pages: the number that options offer, less the room of open blocks, the log and
    /// reserves.
    pub(super) fn offered(&self) -> u32 {
        let good = self.blocks.good_count();
        let dies = self.flash.sizes.geometry.die_count;
        let kept = (u64::from(good) * u64::from(self.options.reserve_percent)).div_ceil(100);
        // Collection needs room to gain.
        let least = self.kept(Line::Hosts) + 2 * dies + self.log_budget() + 1 + good / SLACK;
        let kept = u32::try_from(kept).unwrap_or(good).max(least);
        good.saturating_sub(kept) * self.flash.sizes.units_per_block
    }

    /// Next place of a line, on the next die that has one.
    fn place(&mut self, line: Line) -> Result<u32, ShadowError> {
        let dies = self.flash.sizes.geometry.die_count;
        for step in 0..dies {
            let die = (self.stream(line).cursor + step) % dies;
            if self.stream(line).open[die as usize].is_none() {
                self.open_block(line, die)?;
            }
            if let Some(open) = &self.stream(line).open[die as usize] {
                let (block, next) = (open.block, open.bodies.len() as u32);
                self.stream(line).cursor = die + 1;
                return Ok(self.flash.sizes.first_of(block) + next * self.flash.sizes.parts);
            }
        }
        Err(ShadowError::Full)
    }

    /// Opens a block on a die, if one may be taken there (W2).
    fn open_block(&mut self, line: Line, die: u32) -> Result<(), ShadowError> {
        if line == Line::Hosts {
            self.make_room()?;
            if self.hosts.open[die as usize].is_some() {
                return Ok(());
            }
        }
        while self.may_open(line) {
            let found = match line {
                Line::Hosts => self.blocks.free_on(die),
                Line::Moved => self.blocks.worn_on(die),
            };
            let Some(block) = found else { break };
            if self.take(block)? {
                self.stream(line).open[die as usize] = Some(Open { block, bodies: Vec::new() });
                break;
            }
        }
        Ok(())
    }

    /// Takes a free block for programs; whether it is fit for them.
    pub(super) fn take(&mut self, block: BlockIndex) -> Result<bool, ShadowError> {
        if self.blocks.state(block) == (State::Free { clean: false }) {
            self.erase(block)?;
        }
        let is_fit = self.blocks.state(block) == (State::Free { clean: true });
        if is_fit {
            self.blocks.set_state(block, State::Open);
        }
        Ok(is_fit)
    }

    fn may_open(&self, line: Line) -> bool {
        let is_spare = self.blocks.free_count() > self.kept(line);
        match line {
            Line::Hosts => is_spare,
            Line::Moved => {
                let has_room = self.moved.open.iter().any(Option::is_some);
                is_spare || !has_room || self.restart.is_some()
            }
        }
    }

    /// Collects before numbers of the log are given: a collection may have to write a record there.
    pub(super) fn make_room_for_log(&mut self) -> Result<(), ShadowError> {
        if self.blocks.free_count() <= self.kept(Line::Hosts) {
            self.make_room()?;
        }
        Ok(())
    }

    /// A free block for the log, which goes before hosts.
    pub(super) fn block_for_log(&mut self) -> Result<BlockIndex, ShadowError> {
        let dies = self.flash.sizes.geometry.die_count;
        let turn = self.log.block_count();
        let least = if self.restart.is_some() { 0 } else { self.kept(Line::Moved) };
        for step in 0..dies {
            while self.blocks.free_count() > least
                && let Some(block) = self.blocks.free_on((turn + step) % dies)
            {
                if self.take(block)? {
                    return Ok(block);
                }
            }
        }
        Err(ShadowError::Full)
    }

    /// Units that collection can place without another erase.
    pub(super) fn moved_room(&self) -> u32 {
        let units = self.flash.sizes.units_per_block;
        let open = self.moved.open.iter().flatten().map(|open| units - open.bodies.len() as u32);
        open.sum::<u32>() + self.blocks.free_count() * units
    }

    /// Collects until more than the wanted share of blocks is free, or nothing is to be gained.
    fn make_room(&mut self) -> Result<(), ShadowError> {
        for block in self.failing.clone() {
            self.collect(block)?;
        }
        let blocks = u64::from(self.flash.sizes.geometry.block_count);
        let share = blocks * u64::from(self.options.collect_below_percent) / 100;
        let kept = self.kept(Line::Hosts);
        let wanted = u32::try_from(share).unwrap_or(u32::MAX).max(kept);
        for count in 0.. {
            let free = self.blocks.free_count();
            if free > wanted || (free > kept && count >= VICTIMS_MAX) || !self.collect_one()? {
                break;
            }
        }
        Ok(())
    }

    /// Programs a unit where its line goes on; gives its place, and the time at which it is
    /// complete.
    pub(super) fn put(
        &mut self,
        line: Line,
        body: &Body,
        flags: &[Flag],
        image: &[u8],
    ) -> Result<(u32, u64), ShadowError> {
        let mut bytes = vec![0; self.flash.sizes.unit_size];
        let skipped = self.flash.sizes.unit_size - self.image_size();
        let (header, content) = bytes.split_at_mut(skipped);
        body.header.encode(header);
        content.copy_from_slice(image);
        for _ in 0..ATTEMPTS {
            let at = self.place(line)?;
            match self.flash.program_unit(at, (body.page, body.version), flags, &bytes) {
                Ok(end_ns) => {
                    self.filled(line, at, body)?;
                    return Ok((at, end_ns));
                }
                Err(NandError::ProgramFailed { .. }) => self.abandon(at),
                Err(error) => return Err(self.fail(error)),
            }
        }
        Err(ShadowError::Full)
    }

    /// The unit at `at`, the place given last, was programmed.
    fn filled(&mut self, line: Line, at: u32, body: &Body) -> Result<(), ShadowError> {
        let block = self.flash.sizes.block_of(at);
        let units = self.flash.sizes.units_per_block;
        let stream = self.stream(line);
        let open = stream.die_of(block).and_then(|die| stream.open[die].as_mut());
        let Some(open) = open else { return Ok(()) };
        open.bodies.push(body.clone());
        if open.bodies.len() as u32 == units {
            self.close(line, block)?;
        }
        Ok(())
    }

    /// Closes an open block with its summary (W1).
    fn close(&mut self, line: Line, block: BlockIndex) -> Result<(), ShadowError> {
        let stream = self.stream(line);
        let open = stream.die_of(block).and_then(|die| stream.open[die].take());
        let Some(open) = open else { return Ok(()) };
        self.blocks.set_state(block, State::Closed);
        let version = self.next_version();
        let page_size = self.flash.sizes.geometry.page_size as usize;
        let bytes = note::encode_summary(&open.bodies, page_size);
        let (kind, page) = (Kind::Summary, LogicalPage(NOWHERE));
        let note = Note { kind, part: 0, parts: 1, page, version };
        match self.flash.program_page(self.flash.sizes.last_of(block), &note, &[], &bytes) {
            Ok(_) => Ok(()),
            Err(NandError::ProgramFailed { .. }) => {
                self.failing.push(block);
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// A program failed in an open block: it takes no more units.
    fn abandon(&mut self, at: u32) {
        let block = self.flash.sizes.block_of(at);
        for line in [Line::Hosts, Line::Moved] {
            let stream = self.stream(line);
            if let Some(die) = stream.die_of(block) {
                stream.open[die] = None;
                self.blocks.set_state(block, State::Closed);
                self.failing.push(block);
            }
        }
    }

    /// Erases a block without units that count; gives the time at which the erase is complete. A
    /// block that fails is marked bad.
    pub(super) fn erase(&mut self, block: BlockIndex) -> Result<u64, ShadowError> {
        self.adopted.remove(&block);
        if !self.failing.contains(&block) {
            match self.flash.erase(block) {
                Ok(end_ns) => {
                    let erases = self.flash.device.erase_count(block);
                    let erases = erases.max(self.blocks.erases(block) + 1);
                    self.blocks.set_state(block, State::Free { clean: true });
                    self.blocks.erased(block, erases);
                    self.forget_erased(block, end_ns);
                    return Ok(end_ns);
                }
                Err(NandError::EraseFailed { .. }) => {}
                Err(error) => return Err(self.fail(error)),
            }
        }
        self.failing.retain(|other| *other != block);
        self.flash.device.mark_bad(block).map_err(|error| self.fail(error))?;
        self.blocks.set_state(block, State::Bad);
        let now_ns = self.flash.now();
        self.forget_erased(block, now_ns);
        Ok(now_ns)
    }
}
