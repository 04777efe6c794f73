//! The model, the scripts that drive it beside a store, and the chip they run on.

use std::collections::BTreeMap;

use flagstone_nand::{Crashable, Nand, Profile, ProgramOrder, SimNand, SpareRange};

use super::super::{Restart, ShadowBug, ShadowError, ShadowOptions, ShadowProtocol, ShadowStore};
use crate::draw::Draw;
use flagstone_space::{GroupId, LogicalPage};

/// A tiny chip with the spare bytes of `flagcommit-slc`, two dies and first programs in order.
pub(in crate::shadow) fn chip(block_count: u32) -> SimNand {
    let mut profile = Profile::named("tiny").unwrap().with_block_count(block_count).unwrap();
    profile.geometry.spare_size = 64;
    profile.geometry.die_count = 2;
    profile.capabilities.spare_raw = SpareRange { offset: 2, size: 38 };
    profile.capabilities.first_program_order = ProgramOrder::Ascending;
    SimNand::new(&profile, 1)
}

pub(super) fn options(protocol: ShadowProtocol) -> ShadowOptions {
    ShadowOptions { unit_pages: 1, ..ShadowOptions::new(protocol) }
}

/// Every protocol, with and without the block-based technique, and with units of two pages.
pub(super) fn variants() -> Vec<ShadowOptions> {
    let plain = ShadowProtocol::ALL.map(options);
    let with_flags = &plain[..2];
    let clusters = with_flags.iter().map(|options| ShadowOptions { block_flags: true, ..*options });
    let wide = plain.iter().map(|options| ShadowOptions { unit_pages: 2, ..*options });
    plain.iter().copied().chain(clusters).chain(wide).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Write { slot: usize, page: u32 },
    Commit { slot: usize, rest: Vec<u32> },
    Abort { slot: usize },
}

const SLOTS: usize = 3;

pub(super) fn script(seed: u64, length: usize, pages: u32) -> Vec<Step> {
    let mut draw = Draw(seed);
    let step = |draw: &mut Draw| {
        let slot = draw.below(SLOTS as u64) as usize;
        let page = |draw: &mut Draw| draw.below(pages.into()) as u32;
        match draw.below(10) {
            0..=4 => Step::Write { slot, page: page(draw) },
            5..=7 => {
                let count = draw.below(4);
                Step::Commit { slot, rest: (0..count).map(|_| page(draw)).collect() }
            }
            8 => Step::Abort { slot },
            _ => Step::Write { slot, page: draw.below(3) as u32 },
        }
    };
    (0..length).map(|_| step(&mut draw)).collect()
}

pub(super) fn content(page: u32, stamp: u64, size: usize) -> Vec<u8> {
    let mut draw = Draw(stamp << 20 ^ u64::from(page));
    let mut bytes: Vec<u8> = (0..size / 8).flat_map(|_| draw.next().to_le_bytes()).collect();
    bytes[..8].copy_from_slice(&stamp.to_le_bytes());
    bytes
}

#[derive(Clone, Debug)]
struct Run {
    xid: GroupId,
    pages: BTreeMap<u32, u64>,
}

/// Contents that a store must have.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    committed: BTreeMap<u32, u64>,
    runs: [Option<Run>; SLOTS],
    /// Pages that a commit in flight adds.
    in_flight: Option<BTreeMap<u32, u64>>,
    stamp: u64,
    /// Transactions that did not fit.
    pub(super) full_count: u32,
    xid_max: GroupId,
}

/// A store with its model.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) store: ShadowStore<SimNand>,
    pub(super) model: Model,
    pub(super) bug: Option<ShadowBug>,
}

impl Pair {
    pub(super) fn format(device: SimNand, options: ShadowOptions) -> Self {
        let store = ShadowStore::format(device, options).unwrap();
        Self { store, model: Model::default(), bug: None }
    }

    #[cfg(feature = "seeded-bugs")]
    pub(super) fn planted(mut self, bug: ShadowBug) -> Self {
        self.store.plant(bug);
        self.bug = Some(bug);
        self
    }

    /// Does a step on both. A page that another transaction wrote is left alone; a transaction that
    /// does not fit is aborted.
    pub(super) fn apply(&mut self, step: &Step) -> Result<(), ShadowError> {
        let (slot, result) = match step {
            Step::Write { slot, page } => (*slot, self.write(*slot, *page)),
            Step::Commit { slot, rest } => (*slot, self.commit(*slot, rest)),
            Step::Abort { slot } => {
                self.abort(*slot);
                (*slot, Ok(()))
            }
        };
        if result == Err(ShadowError::Full) {
            self.model.in_flight = None;
            self.model.full_count += 1;
            self.abort(slot);
            return Ok(());
        }
        result
    }

    fn abort(&mut self, slot: usize) {
        if let Some(run) = self.model.runs[slot].take() {
            self.store.abort(run.xid);
        }
    }

    fn run(&mut self, slot: usize) -> GroupId {
        if let Some(run) = &self.model.runs[slot] {
            return run.xid;
        }
        let xid = self.store.begin();
        assert!(xid > self.model.xid_max, "{xid:?} was used before");
        self.model.xid_max = xid;
        self.model.runs[slot] = Some(Run { xid, pages: BTreeMap::new() });
        xid
    }

    fn is_locked(&self, slot: usize, page: u32) -> bool {
        let others = self.model.runs.iter().enumerate().filter(|(other, _)| *other != slot);
        others.filter_map(|(_, run)| run.as_ref()).any(|run| run.pages.contains_key(&page))
    }

    fn write(&mut self, slot: usize, page: u32) -> Result<(), ShadowError> {
        if self.is_locked(slot, page) {
            return Ok(());
        }
        let xid = self.run(slot);
        self.model.stamp += 1;
        let stamp = self.model.stamp;
        let image = content(page, stamp, self.store.page_size());
        self.store.write(xid, LogicalPage(page), &image)?;
        if let Some(run) = &mut self.model.runs[slot] {
            run.pages.insert(page, stamp);
        }
        let mut read = vec![0; image.len()];
        assert!(self.store.read(Some(xid), LogicalPage(page), &mut read)?);
        assert_eq!(read, image, "a transaction reads its own page");
        Ok(())
    }

    fn commit(&mut self, slot: usize, rest: &[u32]) -> Result<(), ShadowError> {
        let rest: Vec<u32> =
            rest.iter().copied().filter(|page| !self.is_locked(slot, *page)).collect();
        let xid = self.run(slot);
        let mut images = Vec::new();
        let mut pages = self.model.runs[slot].as_ref().unwrap().pages.clone();
        for page in rest {
            self.model.stamp += 1;
            images.push((page, content(page, self.model.stamp, self.store.page_size())));
            pages.insert(page, self.model.stamp);
        }
        let rest: Vec<(LogicalPage, &[u8])> =
            images.iter().map(|(page, image)| (LogicalPage(*page), &image[..])).collect();
        self.model.in_flight = Some(pages.clone());
        self.store.commit(xid, &rest)?;
        self.model.in_flight = None;
        self.model.committed.append(&mut pages);
        self.model.runs[slot] = None;
        Ok(())
    }

    /// Power comes back: mounts and finds out whether the commit in flight is there.
    pub(super) fn recover(mut device: SimNand, mut model: Model, how: Mount) -> Self {
        device.power_cycle();
        let mut store = how.mount(device).unwrap();
        let found = contents(&mut store);
        model.runs = Default::default();
        if let Some(pages) = model.in_flight.take() {
            let mut with = model.committed.clone();
            with.extend(pages);
            if found == with {
                model.committed = with;
            }
        }
        assert_eq!(found, model.committed, "{:?}", how.how);
        Self { store, model, bug: how.bug }
    }

    /// Mounts a copy without a cut.
    pub(super) fn reopen(self, how: Restart) -> Self {
        let how = Mount { options: *self.store.options(), how, bug: self.bug };
        Self::recover(self.store.into_device(), self.model, how)
    }

    pub(super) fn check(&mut self) {
        assert_eq!(contents(&mut self.store), self.model.committed);
    }
}

/// How to mount.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mount {
    pub(super) options: ShadowOptions,
    pub(super) how: Restart,
    pub(super) bug: Option<ShadowBug>,
}

impl Mount {
    pub(super) fn mount<D: Nand>(self, device: D) -> Result<ShadowStore<D>, ShadowError> {
        #[cfg(feature = "seeded-bugs")]
        if let Some(bug) = self.bug {
            return ShadowStore::mount_planted(device, self.options, self.how, bug);
        }
        ShadowStore::mount(device, self.options, self.how)
    }
}

/// Stamps of all pages that exist; every byte is checked.
pub(super) fn contents<D: Nand>(store: &mut ShadowStore<D>) -> BTreeMap<u32, u64> {
    let mut found = BTreeMap::new();
    let mut image = vec![0; store.page_size()];
    for page in 0..store.page_count() {
        if store.read(None, LogicalPage(page), &mut image).unwrap() {
            let stamp = u64::from_le_bytes(image[..8].try_into().unwrap());
            assert_eq!(image, content(page, stamp, image.len()), "page {page}");
            found.insert(page, stamp);
        }
    }
    found
}
