//! The translation layer of a simulated SSD: which page of the chips holds which page of the host.
//!
//! Owns the mapping, the free blocks of each die and the choice of the block to collect. Never
//! touches a chip: it names the next page to move or block to erase, one step at a time.
//!
//! - **F1** A host's page has at most one page of the chips, and the chip's page knows the host's.
//! - **F2** `live` of a block is the number of its pages that are mapped.
//! - **F3** Every die has one open block; host and collection write to it. The last free block of a
//!   die is the collection's.
//! - **F4** Collection is greedy: the closed block of the die with the fewest live pages, the one
//!   with the lower number among equals.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::mix::mix;
use crate::{BlockIndex, Geometry};

/// A page that is not mapped.
const NONE: u32 = u32::MAX;

/// Free blocks of a die below which it collects.
const FREE_MIN: usize = 2;

/// Blocks of a die that hold no data of the host: the open one, and the collection's (F3).
const FIXED_BLOCKS: u32 = 2;

/// One step of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Copy a page; the mapping has moved already.
    Move {
        /// Page to be read.
        from: u32,
        /// Page to be programmed.
        to: u32,
    },
    /// Erase the block, whose pages have all been moved.
    Erase(BlockIndex),
}

/// One die.
#[derive(Clone, Debug)]
struct Die {
    free: VecDeque<u32>,
    /// Block that is written, and the next page in it.
    open: Option<(u32, u32)>,
    /// Block that is being emptied, and the next page to look at.
    victim: Option<(u32, u32)>,
}

/// The translation layer.
#[derive(Clone, Debug)]
pub(super) struct Ftl {
    chip: Geometry,
    capacity: u32,
    /// Chips' page of each host's page.
    forward: Vec<u32>,
    /// Host's page of each chips' page.
    backward: Vec<u32>,
    live: Vec<u32>,
    live_total: u32,
    dies: Vec<Die>,
    /// Die of the next write.
    turn: u32,
}

impl Ftl {
    /// An empty translation layer over `chip` for `host_pages` addresses.
    pub(super) fn new(chip: Geometry, host_pages: u32, reserve_percent: u32) -> Self {
        let die = |die: u32| Die {
            free: (0..chip.block_count).filter(|block| block % chip.die_count == die).collect(),
            open: None,
            victim: None,
        };
        let reserve = u64::from(chip.page_count()) * u64::from(reserve_percent) / 100;
        let fixed = u64::from(FIXED_BLOCKS * chip.die_count) * u64::from(chip.pages_per_block);
        let capacity = u64::from(chip.page_count()).saturating_sub(reserve.max(fixed));
        Self {
            chip,
            capacity: capacity as u32,
            forward: vec![NONE; host_pages as usize],
            backward: vec![NONE; chip.page_count() as usize],
            live: vec![0; chip.block_count as usize],
            live_total: 0,
            dies: (0..chip.die_count).map(die).collect(),
            turn: 0,
        }
    }

    /// Pages that can be mapped.
    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Pages that are mapped.
    pub(super) fn live_pages(&self) -> u32 {
        self.live_total
    }

    /// Page of the chips that holds `host`.
    pub(super) fn lookup(&self, host: u32) -> Option<u32> {
        self.forward.get(host as usize).copied().filter(|at| *at != NONE)
    }

    /// Hash of the mapping.
    pub(super) fn hash(&self) -> u64 {
        self.forward.iter().fold(0, |hash, at| mix(hash, u64::from(*at)))
    }

    /// Forgets the content of `host`; whether it had any.
    pub(super) fn trim(&mut self, host: u32) -> bool {
        let Some(at) = self.lookup(host) else { return false };
        self.forward[host as usize] = NONE;
        self.kill(at);
        true
    }

    /// The next die in turn that can take a page; none when the device is full.
    pub(super) fn next_die(&mut self) -> Option<u32> {
        for _ in 0..self.chip.die_count {
            let die = self.turn;
            self.turn = (self.turn + 1) % self.chip.die_count;
            if self.can_take(die) {
                return Some(die);
            }
        }
        None
    }

    /// Gives `host` the next page of `die`, which must have been collected; none when the device
    /// holds as many pages as it can.
    pub(super) fn place(&mut self, die: u32, host: u32) -> Option<u32> {
        let is_new = self.lookup(host).is_none();
        if is_new && self.live_total >= self.capacity {
            return None;
        }
        let at = self.next_page(die)?;
        self.trim(host);
        self.bind(host, at);
        Some(at)
    }

    /// The next thing to do before `die` takes a page; none when it can.
    pub(super) fn collect_step(&mut self, die: u32) -> Option<Step> {
        let state = &self.dies[die as usize];
        if state.victim.is_none() {
            let is_short = state.open.is_none() && state.free.len() < FREE_MIN;
            let victim = is_short.then(|| self.greedy_victim(die)).flatten()?;
            self.dies[die as usize].victim = Some((victim, 0));
        }
        let (victim, next) = self.dies[die as usize].victim?;
        let first = victim * self.chip.pages_per_block;
        let live = (next..self.chip.pages_per_block)
            .find(|index| self.backward[(first + index) as usize] != NONE);
        let Some(index) = live else {
            let state = &mut self.dies[die as usize];
            state.victim = None;
            state.free.push_back(victim);
            return Some(Step::Erase(BlockIndex(victim)));
        };
        let from = first + index;
        let to = self.next_page(die)?;
        let host = self.backward[from as usize];
        self.kill(from);
        self.bind(host, to);
        self.dies[die as usize].victim = Some((victim, index + 1));
        Some(Step::Move { from, to })
    }

    /// Whether `die` has a page left, or can gain one by collecting.
    fn can_take(&self, die: u32) -> bool {
        let state = &self.dies[die as usize];
        state.open.is_some() || state.free.len() >= FREE_MIN || self.greedy_victim(die).is_some()
    }

    /// Rule F4; none when every closed block is full of live pages.
    fn greedy_victim(&self, die: u32) -> Option<u32> {
        let state = &self.dies[die as usize];
        let open = state.open.map(|(block, _)| block);
        let blocks = (die..self.chip.block_count).step_by(self.chip.die_count as usize);
        let closed = blocks.filter(|block| Some(*block) != open && !state.free.contains(block));
        let victim = closed.min_by_key(|block| (self.live[*block as usize], *block))?;
        (self.live[victim as usize] < self.chip.pages_per_block).then_some(victim)
    }

    /// The next page of the die's open block; takes a free block when there is none open.
    fn next_page(&mut self, die: u32) -> Option<u32> {
        let state = &mut self.dies[die as usize];
        let (block, next) = match state.open {
            Some(open) => open,
            None => (state.free.pop_front()?, 0),
        };
        let after = next + 1;
        state.open = (after < self.chip.pages_per_block).then_some((block, after));
        Some(block * self.chip.pages_per_block + next)
    }

    fn bind(&mut self, host: u32, at: u32) {
        debug_assert!(self.backward[at as usize] == NONE, "F1: the page is taken");
        self.forward[host as usize] = at;
        self.backward[at as usize] = host;
        self.live[(at / self.chip.pages_per_block) as usize] += 1;
        self.live_total += 1;
    }

    fn kill(&mut self, at: u32) {
        self.backward[at as usize] = NONE;
        self.live[(at / self.chip.pages_per_block) as usize] -= 1;
        self.live_total -= 1;
    }
}
