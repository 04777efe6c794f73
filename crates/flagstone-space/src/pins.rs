//! Pins: superseded page versions that still have a reader.
//!
//! Owns the set of pinned units. A pin lives in memory only: a mount knows nothing of it.
//!
//! N1. Pins of one unit hold one version: a pinned unit takes no appends (A5).

use alloc::collections::BTreeMap;

use crate::{LogicalPage, PinId};

/// A pin.
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

    /// Takes the pin out; says whether that was the last pin of its unit.
    pub(crate) fn remove(&mut self, id: PinId) -> Option<(Pin, bool)> {
        let pin = self.pins.remove(&id)?;
        let count = self.units.get_mut(&pin.at)?;
        *count -= 1;
        let last = *count == 0;
        if last {
            self.units.remove(&pin.at);
        }
        Some((pin, last))
    }

    pub(crate) fn is_pinned(&self, at: u32) -> bool {
        !self.units.is_empty() && self.units.contains_key(&at)
    }

    /// Appends of a pinned unit that belong to the version, the newest of several.
    pub(crate) fn appends(&self, at: u32) -> Option<u8> {
        self.is_pinned(at).then_some(())?;
        self.pins.values().filter(|pin| pin.at == at).map(|pin| pin.appends).max()
    }

    /// The pinned unit was copied to `to`, with its appends folded in.
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
