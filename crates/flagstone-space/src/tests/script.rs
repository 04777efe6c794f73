//! Seeded scripts of steps, the same on every machine.

use std::vec::Vec;

/// Seeded numbers, the same on every machine (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Write {
        page: u32,
        cold: bool,
    },
    /// A change of a few bytes, appended where the page takes it.
    Change {
        page: u32,
    },
    WriteInGroup {
        page: u32,
        slot: usize,
    },
    Commit {
        slot: usize,
    },
    Discard {
        slot: usize,
    },
    Trim {
        page: u32,
    },
    Checkpoint,
    Log {
        slots: u32,
    },
    Sync,
    Background,
    /// Freezes the mapping, or gives the oldest frozen one up.
    Freeze,
}

pub(super) fn script(seed: u64, length: usize, pages: u32) -> Vec<Step> {
    let mut draw = Draw(seed);
    let step = |draw: &mut Draw| {
        let page = draw.below(pages.into()) as u32;
        let slot = draw.below(2) as usize;
        match draw.below(100) {
            0..=49 => Step::Write { page, cold: draw.below(4) == 0 },
            50..=61 => Step::WriteInGroup { page, slot },
            62..=67 => Step::Commit { slot },
            68..=69 => Step::Discard { slot },
            70..=75 => Step::Trim { page },
            76..=79 => Step::Checkpoint,
            80..=91 => Step::Log { slots: 1 + draw.below(2) as u32 },
            92..=95 => Step::Sync,
            _ => Step::Background,
        }
    };
    (0..length).map(|_| step(&mut draw)).collect()
}

/// The same with two thirds of the writes as small changes.
pub(super) fn script_of_changes(seed: u64, length: usize, pages: u32) -> Vec<Step> {
    let mut draw = Draw(seed ^ 0xA99E);
    let changed = |step| match step {
        Step::Write { page, .. } if draw.below(3) > 0 => Step::Change { page },
        step => step,
    };
    script(seed, length, pages).into_iter().map(changed).collect()
}

/// Pages behind the others that groups alone write in a script of freezes, so that they often are not mapped.
const GROUP_PAGES: u32 = 4;

/// The same with mappings that are frozen and given up.
pub(super) fn script_of_freezes(seed: u64, length: usize, pages: u32) -> Vec<Step> {
    let mut draw = Draw(seed ^ 0xF2EE);
    let own = |page| pages + page % GROUP_PAGES;
    let changed = |step| match step {
        Step::Sync | Step::Log { .. } if draw.below(2) > 0 => Step::Freeze,
        Step::WriteInGroup { page, slot } if draw.below(2) > 0 => {
            Step::WriteInGroup { page: own(page), slot }
        }
        Step::Trim { page } if draw.below(2) > 0 => Step::Trim { page: own(page) },
        step => step,
    };
    script_of_changes(seed, length, pages).into_iter().map(changed).collect()
}
