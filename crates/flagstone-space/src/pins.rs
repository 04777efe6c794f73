//! Pins: superseded page versions that somebody still reads.
//!
//! Owns which units are pinned. A pin lives in memory only: no mount knows of it.
//!
//! N1. Pins of one unit hold one version, but where appends that were made before the pins have been
//!     counted since (the unit is parted): the pins from before hold one without them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::{LogicalPage, PinId};

/// One pin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pin {
    pub(crate) page: LogicalPage,
    pub(crate) at: u32,
    /// Appends of the unit that belong to the version.
    pub(crate) appends: u8,
}

/// All pins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pins {
    pins: BTreeMap<PinId, Pin>,
    /// Pins of each pinned unit.
    units: BTreeMap<u32, u32>,
    /// Units that hold more versions than one, and the appends of the older ones (N1).
    parted: BTreeMap<u32, Vec<u8>>,
    next: u64,
}

impl Pins {
    pub(crate) fn add(&mut self, page: LogicalPage, at: u32, appends: u8) -> PinId {
        let id = PinId(self.next);
        self.next += 1;
        self.pins.insert(id, Pin { page, at, appends });
        *self.units.entry(at).or_default() += 1;
        id
    }

    pub(crate) fn get(&self, id: PinId) -> Option<Pin> {
        self.pins.get(&id).copied()
    }

    /// Takes the pin out; whether its unit is pinned no more.
    pub(crate) fn remove(&mut self, id: PinId) -> Option<(Pin, bool)> {
        let pin = self.pins.remove(&id)?;
        let count = self.units.get_mut(&pin.at)?;
        *count -= 1;
        let last = *count == 0;
        if last {
            self.units.remove(&pin.at);
        }
        self.forget_older(pin.at);
        Some((pin, last))
    }

    /// Appends of the unit have been counted since it was pinned: what its pins hold is an older version.
    pub(crate) fn part(&mut self, at: u32) {
        if self.is_pinned(at) {
            let mut counts: Vec<u8> =
                self.pins.values().filter(|pin| pin.at == at).map(|pin| pin.appends).collect();
            counts.sort_unstable();
            counts.dedup();
            self.parted.insert(at, counts);
        }
    }

    /// Appends of an older version that pins of the unit hold beside the newest (N1).
    pub(crate) fn parted(&self, at: u32) -> Option<u8> {
        self.parted.get(&at)?.first().copied()
    }

    /// Versions that take a unit of their own when those that hold them move.
    pub(crate) fn parted_count(&self) -> usize {
        self.parted.values().map(Vec::len).sum()
    }

    /// Older versions that nobody holds any more need no place.
    fn forget_older(&mut self, at: u32) {
        let Some(counts) = self.parted.get_mut(&at) else { return };
        counts.retain(|count| self.pins.values().any(|pin| (pin.at, pin.appends) == (at, *count)));
        if counts.is_empty() {
            self.parted.remove(&at);
        }
    }

    /// The older version with so many appends was copied to `to`, its appends folded in.
    pub(crate) fn relocate_version(&mut self, from: u32, appends: u8, to: u32) {
        let mut moved = 0;
        for pin in self.pins.values_mut().filter(|pin| (pin.at, pin.appends) == (from, appends)) {
            (pin.at, pin.appends) = (to, 0);
            moved += 1;
        }
        *self.units.entry(to).or_default() += moved;
        if let Some(count) = self.units.get_mut(&from) {
            *count = count.saturating_sub(moved);
            if *count == 0 {
                self.units.remove(&from);
            }
        }
        self.forget_older(from);
    }

    pub(crate) fn is_pinned(&self, at: u32) -> bool {
        !self.units.is_empty() && self.units.contains_key(&at)
    }

    /// Appends of a pinned unit that belong to the version, the newest of several.
    pub(crate) fn appends(&self, at: u32) -> Option<u8> {
        self.is_pinned(at).then_some(())?;
        self.pins.values().filter(|pin| pin.at == at).map(|pin| pin.appends).max()
    }

    /// The pinned unit was copied to `to`, its appends folded in.
    pub(crate) fn relocate(&mut self, from: u32, to: u32) {
        let Some(count) = self.units.remove(&from) else { return };
        *self.units.entry(to).or_default() += count;
        for pin in self.pins.values_mut().filter(|pin| pin.at == from) {
            (pin.at, pin.appends) = (to, 0);
        }
    }

    pub(crate) fn units(&self) -> impl Iterator<Item = u32> + '_ {
        self.units.keys().copied()
    }
}
