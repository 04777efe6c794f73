//! Where units go: one open block a die and stream, so that pages are programmed in parallel.
//!
//! Owns the open blocks. Never decides which units are live.
//!
//! W1. A block is erased in this session before its first program, and closed with a summary.
//! W2. Hosts open a block only while more than the reserve is free.

use flagstone_nand::{BlockIndex, Nand, NandError};

use super::blocks::State;
use super::flash::Work;
use super::note::{Kind, Note};
use super::table::Written;
use super::{ShadowError, ShadowStore, XID_STEP, summary};
use crate::evidence::Flag;
use flagstone_space::bytes::{get_uint, put_uint};
use flagstone_space::{GroupId, LogicalPage, Version};

/// Programs of one unit that may fail before the store gives up.
pub(super) const ATTEMPTS: u32 = 4;

/// Victims that one opened block may ask for while room is not short.
const VICTIMS_MAX: u32 = 8;

const MARK_MAGIC: &[u8; 4] = b"SHMK";

/// Bytes of a mark before the places it names, and of each place.
const MARK_SIZE: usize = 23;
const HIDDEN_SIZE: usize = 9;

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
    /// Next unit.
    next: u32,
    notes: Vec<Note>,
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

/// A place in which a unit may appear that was in flight when the power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hidden {
    pub(super) at: u32,
    /// Version of the unit before it: another one stands there once the block was erased.
    pub(super) behind: Version,
}

/// Contents of a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) protocol: u8,
    pub(super) block_flags: bool,
    pub(super) unit_pages: u32,
    pub(super) page_count: u32,
    pub(super) xid_bound: u64,
    /// A restart was emptying blocks.
    pub(super) is_emptying: bool,
    /// Places whose content, should any appear, belongs to no transaction.
    pub(super) hidden: Vec<Hidden>,
}

impl Mark {
    /// Places that a mark of `size` bytes can name.
    pub(super) const fn places(size: usize) -> usize {
        (size - MARK_SIZE) / HIDDEN_SIZE
    }

    pub(super) fn decode(image: &[u8]) -> Option<Self> {
        let (image, places) = image.split_at_checked(MARK_SIZE)?;
        (&image[..4] == MARK_MAGIC).then_some(())?;
        let count = get_uint(&image[21..]) as usize;
        let hidden = places.chunks_exact(HIDDEN_SIZE).take(count).map(|bytes| Hidden {
            at: get_uint(&bytes[..4]) as u32,
            behind: Version(get_uint(&bytes[4..])),
        });
        Some(Self {
            protocol: image[4],
            block_flags: image[5] == 1,
            unit_pages: image[6].into(),
            page_count: get_uint(&image[8..12]) as u32,
            xid_bound: get_uint(&image[12..20]),
            is_emptying: image[20] == 1,
            hidden: hidden.collect(),
        })
    }

    fn encode(&self, size: usize) -> Vec<u8> {
        let mut image = vec![0; size];
        image[..4].copy_from_slice(MARK_MAGIC);
        image[4] = self.protocol;
        image[5] = self.block_flags.into();
        image[6] = self.unit_pages as u8;
        put_uint(&mut image[8..12], self.page_count.into());
        put_uint(&mut image[12..20], self.xid_bound);
        image[20] = self.is_emptying.into();
        put_uint(&mut image[21..MARK_SIZE], self.hidden.len() as u64);
        for (bytes, place) in image[MARK_SIZE..].chunks_exact_mut(HIDDEN_SIZE).zip(&self.hidden) {
            put_uint(&mut bytes[..4], place.at.into());
            put_uint(&mut bytes[4..], place.behind.0);
        }
        image
    }
}

impl<D: Nand> ShadowStore<D> {
    fn stream(&mut self, line: Line) -> &mut Stream {
        match line {
            Line::Hosts => &mut self.hosts,
            Line::Moved => &mut self.moved,
        }
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
                let (block, next) = (open.block, open.next);
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
        while self.may_open(line)
            && let Some(block) = self.choose(line, die)
        {
            if self.blocks.state(block) == (State::Free { clean: false }) {
                self.erase(block)?;
            }
            if self.blocks.state(block) == (State::Free { clean: true }) {
                self.blocks.set_state(block, State::Open);
                let open = Open { block, next: 0, notes: Vec::new() };
                self.stream(line).open[die as usize] = Some(open);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Copies stay longer than writes of hosts: they get the most worn block, where there is a
    /// choice.
    fn choose(&self, line: Line, die: u32) -> Option<BlockIndex> {
        match line {
            Line::Hosts => self.blocks.free_on(die),
            Line::Moved => self.blocks.worn_on(die),
        }
    }

    fn may_open(&self, line: Line) -> bool {
        match line {
            Line::Hosts => self.blocks.free_count() > self.reserve(),
            Line::Moved => {
                let has_room = self.moved.open.iter().any(Option::is_some);
                self.blocks.free_count() > self.reserve() || !has_room
            }
        }
    }

    /// Units that collection can place without another erase.
    pub(super) fn moved_room(&self) -> u32 {
        let units = self.flash.sizes.units_per_block;
        let open = self.moved.open.iter().flatten().map(|open| units - open.next);
        open.sum::<u32>() + self.blocks.free_count() * units
    }

    /// Collects until more than the wanted share of blocks is free, or nothing is to be gained.
    fn make_room(&mut self) -> Result<(), ShadowError> {
        self.retire_failing()?;
        let blocks = u64::from(self.flash.sizes.geometry.block_count);
        let share = blocks * u64::from(self.options.collect_below_percent) / 100;
        let wanted = u32::try_from(share).unwrap_or(u32::MAX).max(self.reserve());
        for count in 0.. {
            let free = self.blocks.free_count();
            if free > wanted
                || (free > self.reserve() && count >= VICTIMS_MAX)
                || !self.collect_one()?
            {
                break;
            }
        }
        Ok(())
    }

    /// The unit at `at`, the place given last, was programmed.
    fn filled(&mut self, line: Line, at: u32, note: Note) -> Result<(), ShadowError> {
        let block = self.flash.sizes.block_of(at);
        let units = self.flash.sizes.units_per_block;
        let stream = self.stream(line);
        let Some(die) = stream.die_of(block) else { return Ok(()) };
        let Some(open) = &mut stream.open[die] else { return Ok(()) };
        open.next += 1;
        open.notes.push(note);
        if open.next == units {
            self.close(block)?;
        }
        Ok(())
    }

    /// Closes an open block with its summary (W1).
    pub(super) fn close(&mut self, block: BlockIndex) -> Result<(), ShadowError> {
        let found = [Line::Hosts, Line::Moved]
            .into_iter()
            .find_map(|line| Some((line, self.stream(line).die_of(block)?)));
        let Some((line, die)) = found else { return Ok(()) };
        let Some(open) = self.stream(line).open[die].take() else { return Ok(()) };
        self.blocks.set_state(block, State::Closed);
        let page_size = self.flash.sizes.geometry.page_size as usize;
        let bytes = summary::encode(&open.notes, page_size);
        let note = Note::own(Kind::Summary, Version(self.version));
        match self.flash.program_page(self.flash.sizes.summary_of(block), &note, &bytes) {
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

    /// Programs a unit where its line goes on. `note` makes the note once the place is known, and
    /// waits for the pages that the unit vouches for (H2).
    pub(super) fn put(
        &mut self,
        line: Line,
        image: &[u8],
        mut note: impl FnMut(&mut Self, u32) -> Result<Note, ShadowError>,
    ) -> Result<(Written, u64), ShadowError> {
        for _ in 0..ATTEMPTS {
            let at = self.place(line)?;
            let note = note(self, at)?;
            match self.flash.program_unit(at, &note, image) {
                Ok(end_ns) => {
                    self.add_live(at);
                    self.filled(line, at, note)?;
                    return Ok((Written { at, note, flag: note.initial }, end_ns));
                }
                Err(NandError::ProgramFailed { .. }) => self.abandon(at),
                Err(error) => return Err(self.fail(error)),
            }
        }
        Err(ShadowError::Full)
    }

    /// As [`ShadowStore::put`], for a host's page: numbers are reserved first (rule D3).
    pub(super) fn put_host(
        &mut self,
        xid: GroupId,
        image: &[u8],
        note: impl FnMut(&mut Self, u32) -> Result<Note, ShadowError>,
    ) -> Result<(Written, u64), ShadowError> {
        if xid.0 >= self.xid_bound {
            self.write_mark()?;
            self.flash.wait(self.end_ns);
        }
        let put = self.put(Line::Hosts, image, note)?;
        self.counts.host_writes += 1;
        self.end_ns = put.1;
        Ok(put)
    }

    /// Writes a page that is a committed transaction of its own.
    pub(super) fn put_alone(
        &mut self,
        xid: GroupId,
        page: LogicalPage,
        image: &[u8],
    ) -> Result<(), ShadowError> {
        let has_flags = self.flash.sizes.has_flags;
        let (written, _) = self.put_host(xid, image, |store, _| {
            let note = store.note(page);
            Ok(match has_flags {
                true => Note { initial: Flag::True, owner: xid.0, mark: store.floor(), ..note },
                false => {
                    let mark = store.cycles.back(page).0;
                    Note { owner: note.version.0, link: page.0, mark, ..note }
                }
            })
        })?;
        self.remap(&written);
        Ok(())
    }

    /// Reserves numbers and describes the store, in a unit of its own.
    pub(super) fn write_mark(&mut self) -> Result<(), ShadowError> {
        let bound = self.next_xid + XID_STEP;
        let mark = Mark {
            protocol: self.options.protocol.number(),
            block_flags: self.options.block_flags,
            unit_pages: self.options.unit_pages,
            page_count: self.page_count,
            xid_bound: bound,
            is_emptying: self.is_emptying,
            hidden: self.hidden.clone(),
        };
        let image = mark.encode(self.page_size());
        let parts = self.flash.sizes.parts as u8;
        let (written, end_ns) = self.put(Line::Moved, &image, |store, _| {
            let version = store.next_version();
            Ok(Note { parts, mark: store.floor(), ..Note::own(Kind::Mark, version) })
        })?;
        if let Some(old) = self.mark_at.replace(written.at) {
            self.drop_live(old);
        }
        self.xid_bound = bound;
        self.is_mark_due = false;
        self.end_ns = end_ns;
        Ok(())
    }

    /// Erases a block without units that count; gives the time at which the erase is complete. A
    /// block that fails is marked bad.
    pub(super) fn erase(&mut self, block: BlockIndex) -> Result<u64, ShadowError> {
        let is_failing = self.failing.contains(&block);
        if !is_failing {
            match self.flash.erase(block) {
                Ok(end_ns) => {
                    let erases = self.flash.device.erase_count(block);
                    let erases = erases.max(self.blocks.erases(block) + 1);
                    self.blocks.set_state(block, State::Free { clean: true });
                    self.blocks.erased(block, erases);
                    self.hidden.retain(|place| self.flash.sizes.block_of(place.at) != block);
                    return Ok(end_ns);
                }
                Err(NandError::EraseFailed { .. }) => {}
                Err(error) => return Err(self.fail(error)),
            }
        }
        self.failing.retain(|other| *other != block);
        self.flash.device.mark_bad(block).map_err(|error| self.fail(error))?;
        self.blocks.set_state(block, State::Bad);
        Ok(self.flash.now())
    }

    /// Empties the blocks in which programs failed, and marks them bad.
    fn retire_failing(&mut self) -> Result<(), ShadowError> {
        if self.flash.work == Work::Restart {
            return Ok(());
        }
        for block in self.failing.clone() {
            self.collect(block)?;
        }
        Ok(())
    }
}
