use super::*;

const BASE: usize = 500;
const CHANGE: usize = 35;

/// A memory of `size` bytes whose frames are named by their page.
struct Memory {
    units: Units,
    size: usize,
    /// Units whose changes met their page.
    writes: u32,
    reads: u32,
}

impl Memory {
    fn new(window: f64, size: usize) -> Self {
        Self { units: Units::new(window, 0), size, writes: 0, reads: 0 }
    }

    fn unit(&self, page: u32) -> Option<Unit> {
        let used = self.units.places.get(&LogicalPage(page))?;
        self.units.order.get(used).copied()
    }

    fn is_here(&self, page: u32) -> bool {
        self.unit(page).is_some_and(|unit| unit.base.is_some())
    }

    fn change(&mut self, page: u32, size: usize) {
        self.units.note_changes(LogicalPage(page), Changes { size, writes: 1 });
    }

    /// The changes of a unit meet their page; a page that has to be read for that is the oldest.
    fn merge(&mut self, page: u32) {
        self.units.set_background(true);
        self.writes += 1;
        if !self.is_here(page) {
            self.reads += 1;
            self.units.insert(page, LogicalPage(page), BASE);
        }
        self.change(page, 0);
        self.units.set_background(false);
    }

    /// Makes room for `size` more bytes; returns the pages whose base copies went.
    fn make_room(&mut self, size: usize) -> Vec<u32> {
        let mut gone = Vec::new();
        while self.units.size + size > self.size {
            if let Some(page) = self.units.victim(Urgency::Soon) {
                self.units.remove(page);
                gone.push(page);
                continue;
            }
            assert!(self.units.is_dry());
            let due = self.units.due_from(0).next().map(|(page, _)| page);
            let Some(page) = self.units.tail().or(due) else { break };
            self.merge(page.0);
        }
        gone
    }

    /// A reference as in a buffer that reads before it writes; returns the pages that left for it.
    fn refer(&mut self, page: u32, writes: bool) -> Vec<u32> {
        let mut gone = Vec::new();
        if self.is_here(page) {
            self.units.touch(page);
        } else {
            gone = self.make_room(BASE);
            self.reads += 1;
            self.units.insert(page, LogicalPage(page), BASE);
        }
        if writes {
            let before = self.unit(page).map_or(0, |unit| unit.changes.size);
            self.change(page, before + CHANGE);
            self.units.use_changes(LogicalPage(page));
        }
        self.check();
        gone
    }

    /// The invariants, from the order alone.
    fn check(&self) {
        let units = &self.units;
        let size: usize = units.order.values().map(Unit::size).sum();
        assert_eq!(size, units.size);
        let target = (units.window * size as f64).ceil() as usize;
        let (mut cold, mut dirty, mut clean) = (0, Vec::new(), 0);
        for (used, unit) in &units.order {
            assert!(unit.size() > 0, "L1");
            assert_eq!(units.places.get(&unit.page), Some(used), "L1");
            assert_eq!(cold < target, *used < units.border, "L2 at {used}");
            if cold < target && unit.is_dirty() {
                dirty.push(unit.rank(*used));
            }
            clean += usize::from(!unit.is_dirty());
            cold += if cold < target { unit.size() } else { 0 };
        }
        dirty.sort_unstable();
        assert_eq!(cold, units.cold_size, "L2");
        assert_eq!((clean, units.places.len()), (units.clean.len(), units.order.len()));
        assert!(units.dirty.iter().eq(dirty.iter()));
    }
}

/// Numbers below `below`, the same on every machine.
fn draws() -> impl FnMut(u32) -> u32 {
    let mut state = 7u32;
    move |below| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    }
}

/// Goal: without a window the policy is LRU, reference by reference: the same pages leave, and changed
/// pages are written when they leave.
#[test]
fn no_window_is_lru() {
    const FRAMES: usize = 30;
    let mut draw = draws();
    let mut memory = Memory::new(0.0, FRAMES * BASE);
    let (mut model, mut writes): (Vec<(u32, bool)>, u32) = (Vec::new(), 0);
    for step in 0..20_000 {
        let page = if draw(4) > 0 { draw(40) } else { draw(320) };
        let is_write = draw(3) == 0;
        let known = model.iter().position(|(other, _)| *other == page);
        let was_dirty = known.is_some_and(|at| model.remove(at).1);
        let mut expected = Vec::new();
        if known.is_none() && model.len() == FRAMES {
            let (gone, is_dirty) = model.remove(0);
            writes += u32::from(is_dirty);
            expected.push(gone);
        }
        model.push((page, was_dirty || is_write));
        // Changes are no part of a page that LRU counts.
        let changes: usize = memory.units.order.values().map(|unit| unit.changes.size).sum();
        memory.size = FRAMES * BASE + changes;
        let before = memory.writes;
        assert_eq!(memory.refer(page, is_write), expected, "step {step}");
        assert!(memory.writes - before <= 1);
        assert_eq!(memory.writes, writes, "step {step}");
    }
}

#[test]
fn a_unit_goes_through_its_states() {
    let mut memory = Memory::new(1.0, 2 * BASE);
    memory.refer(1, true);
    let semi_clean = memory.unit(1).unwrap();
    assert!(semi_clean.base.is_some() && semi_clean.changes.size == CHANGE);
    assert_eq!(memory.refer(2, false), [1], "two copies and a change are too much");
    assert_eq!(memory.refer(3, false), [2]);
    let dirty = memory.unit(1).unwrap();
    assert!(dirty.is_dirty() && dirty.changes.size == CHANGE, "a base copy went, changes stay");
    assert!(memory.unit(2).is_none(), "a clean unit is gone as a whole");
    memory.refer(1, false);
    assert!(memory.unit(1).unwrap().base.is_some(), "read again");
    memory.merge(1);
    assert_eq!(memory.unit(1).unwrap().changes.size, 0, "clean again");
}

#[test]
fn copies_of_the_cold_region_go_before_changes_are_merged() {
    let mut memory = Memory::new(0.5, 4 * BASE);
    for page in 1..=4 {
        memory.refer(page, page == 1);
    }
    assert!(memory.unit(1).unwrap().is_dirty(), "the oldest copy went, not its changes");
    // Pages 3 and 4 are hot. Page 2, then nothing of the cold region can go without a write.
    assert_eq!(memory.units.victim(Urgency::Soon), Some(2));
    memory.units.remove(2);
    memory.change(1, 3 * BASE);
    assert_eq!(memory.units.victim(Urgency::Soon), None);
    assert!(memory.units.is_dry());
    assert_eq!(memory.units.due_from(0).map(|(page, _)| page.0).collect::<Vec<_>>(), [1]);
    assert_eq!(memory.units.victim(Urgency::Now), Some(3), "memory is a limit all the same");
}

#[test]
fn background_work_moves_no_unit() {
    let mut memory = Memory::new(0.5, 10 * BASE);
    for page in 1..=3 {
        memory.refer(page, true);
    }
    let order = |memory: &Memory| -> Vec<u32> {
        memory.units.order.values().map(|unit| unit.page.0).collect()
    };
    memory.units.remove(2);
    memory.units.set_background(true);
    memory.units.touch(1);
    memory.units.insert(2, LogicalPage(2), BASE);
    memory.units.insert(9, LogicalPage(9), BASE);
    memory.change(3, 0);
    assert_eq!(order(&memory), [9, 1, 2, 3], "what it brings first is the oldest");
    memory.units.set_background(false);
    memory.units.touch(1);
    assert_eq!(order(&memory), [9, 2, 3, 1]);
    memory.check();
}

#[test]
fn what_is_kept_is_passed_over() {
    let mut memory = Memory::new(1.0, 10 * BASE);
    (1..=3).for_each(|page| drop(memory.refer(page, false)));
    memory.units.keep_only(&[LogicalPage(1)]);
    assert_eq!(memory.units.victim(Urgency::Soon), Some(2));
    memory.units.keep_only(&[]);
    assert_eq!(memory.units.victim(Urgency::Soon), Some(1));
    memory.units.set_background(true);
    memory.units.touch(1);
    assert_eq!(memory.units.victim(Urgency::Now), Some(2), "a merge is looking at the other");
    memory.units.set_background(false);
    assert_eq!(memory.units.victim(Urgency::Now), Some(1));
}

/// Goal: a window saves writes for reads, and every step keeps the invariants.
#[test]
fn a_wider_window_writes_less() {
    let writes = [0.0, 0.25, 0.5, 1.0].map(|window| {
        let mut draw = draws();
        let mut memory = Memory::new(window, 60 * BASE);
        for _ in 0..6_000 {
            let page = if draw(4) > 0 { draw(60) } else { draw(320) };
            memory.refer(page, draw(2) == 0);
        }
        memory.writes
    });
    assert!(writes.windows(2).all(|pair| pair[0] > pair[1]), "{writes:?}");
}

/// Goal: fewest writes first, then most memory freed, in any order of arrival.
#[test]
fn what_is_due_comes_by_writes_and_size() {
    let mut units = Units::new(1.0, 0);
    for (page, size, writes) in [(1, 100, 1), (2, 300, 3), (3, 200, 1), (4, 250, 3)] {
        units.note_changes(LogicalPage(page), Changes { size, writes });
    }
    let pages = |from| units.due_from(from).map(|(page, _)| page.0).collect::<Vec<_>>();
    assert_eq!(pages(0), [3, 1, 2, 4]);
    assert_eq!(pages(2), [2, 4]);
}
