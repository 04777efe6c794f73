//! Appends of open groups: what counts when, what moves, and what a cut may leave.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::vec::Vec;

use flagstone_nand::{BlockIndex, Crashable, Ending, FaultPlan, Nand, Profile, SimNand};

use super::harness::{Draw, REGION, content, options, profile, sim};
#[cfg(feature = "seeded-bugs")]
use crate::SpaceBug;
use crate::runs::{self, ChangeForm};
use crate::{
    GroupAppend, GroupId, LogicalPage, Lsn, NoOwner, PageInfo, Space, SpaceError, SpaceOptions,
    WriteTag,
};

/// Slots of every page.
const SLOTS: u8 = 3;

/// Pages that groups change; those behind them are there to be collected.
const CHANGED: u32 = 8;

/// Byte of a page that appends without a group change: what becomes of them is the log's affair.
const LOOSE_BYTE: usize = 80;

/// A tiny chip with four code words a page, three of which may take appends.
fn fine_profile() -> Profile {
    let mut profile = profile("tiny");
    profile.capabilities.code_word.data_size = 128;
    profile
}

fn tag() -> WriteTag {
    WriteTag { append_slots: SLOTS, ..WriteTag::data(Lsn(1), REGION) }
}

/// Pages that a group has changed, as they are with it.
#[derive(Clone, Debug)]
struct Batch {
    id: GroupId,
    appends: Vec<GroupAppend>,
    images: BTreeMap<u32, Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// The open group changes a byte of a page.
    Change {
        page: u32,
    },
    /// The record of the open group is durable.
    Record,
    /// The open group is committed, recorded before if it was not.
    Commit,
    /// The open group is given up, if no record commits it.
    Discard,
    /// Changes a byte of a page, without a group.
    Loose {
        page: u32,
    },
    /// Writes another page.
    Fill {
        page: u32,
    },
    Checkpoint,
}

/// A space, what its pages hold, and the records that a log would have.
#[derive(Clone, Debug)]
struct World {
    space: Space<SimNand>,
    images: BTreeMap<u32, Vec<u8>>,
    open: Option<Batch>,
    is_recorded: bool,
    /// Groups whose record is durable and that no checkpoint covers.
    named: Vec<Batch>,
    /// Appends made and refused, for groups.
    appended: u32,
    refused: u32,
}

impl World {
    fn new(profile: &Profile, options: &SpaceOptions) -> Self {
        let mut space = Space::format(sim(profile), options).unwrap();
        let mut images = BTreeMap::new();
        for page in 0..CHANGED {
            let image = content(LogicalPage(page), 1, space.payload_size_with(SLOTS));
            space.ensure_room(1, &mut NoOwner).unwrap();
            space.write(LogicalPage(page), &image, &tag()).unwrap();
            images.insert(page, image);
            // What is written anew shares blocks with what is not, or collection would leave that alone.
            for other in 0..3 {
                let other = LogicalPage(CHANGED + 3 * page + other);
                space.ensure_room(1, &mut NoOwner).unwrap();
                space.write(other, b"other", &tag()).unwrap();
            }
        }
        let (open, named) = (None, Vec::new());
        Self { space, images, open, is_recorded: false, named, appended: 0, refused: 0 }
    }

    fn read(&mut self, page: u32) -> (PageInfo, Vec<u8>) {
        let mut bytes = Vec::new();
        let info = self.space.read(LogicalPage(page), &mut bytes).unwrap();
        (info, bytes)
    }

    fn act(&mut self, act: Act, value: u8) -> Result<(), SpaceError> {
        match act {
            Act::Change { page } => self.change(page, value),
            Act::Record => self.record(),
            Act::Commit => {
                self.record()?;
                if let Some(batch) = self.open.take() {
                    self.is_recorded = false;
                    self.space.commit_group(batch.id)?;
                    self.images.extend(batch.images);
                }
                Ok(())
            }
            Act::Discard => {
                if let Some(batch) = self.open.take_if(|_| !self.is_recorded) {
                    self.space.discard_group(batch.id);
                }
                Ok(())
            }
            Act::Loose { page } => {
                let (info, old) = self.read(page);
                let mut new = old.clone();
                new[LOOSE_BYTE] ^= value | 1;
                let size_max = self.space.append_size_max();
                let records = runs::encode(&old, &new, ChangeForm::Runs, 1, size_max).unwrap();
                let page = LogicalPage(page);
                self.space.append(page, &info, info.lsn, ChangeForm::Runs, &records).map(drop)
            }
            Act::Fill { page } => {
                match self.space.ensure_room(1, &mut NoOwner) {
                    // What a restart has not decided yet takes its room.
                    Err(SpaceError::Full) => return Ok(()),
                    room => room?,
                }
                let image = content(LogicalPage(page), value.into(), 64);
                self.space.write(LogicalPage(page), &image, &tag()).map(drop)
            }
            Act::Checkpoint => {
                self.space.checkpoint(&[])?;
                let open = self.open.as_ref().map(|batch| batch.id);
                self.named.retain(|batch| Some(batch.id) == open);
                Ok(())
            }
        }
    }

    fn change(&mut self, page: u32, value: u8) -> Result<(), SpaceError> {
        if self.is_recorded || self.open.as_ref().is_some_and(|it| it.images.contains_key(&page)) {
            return Ok(());
        }
        if self.open.is_none() {
            let id = self.space.new_group()?;
            self.open = Some(Batch { id, appends: Vec::new(), images: BTreeMap::new() });
        }
        self.space.ensure_room(1, &mut NoOwner)?;
        let (info, old) = self.read(page);
        let mut new = old.clone();
        new[usize::from(value) % 64] ^= value | 1;
        let size_max = self.space.append_room().grouped_size_max;
        let records = runs::encode(&old, &new, ChangeForm::Runs, 1, size_max).unwrap();
        let Some(batch) = &mut self.open else { return Ok(()) };
        let (id, number, form) = (batch.id, LogicalPage(page), ChangeForm::Runs);
        let append = self.space.append_in_group(id, number, &info, info.lsn, form, &records)?;
        match append {
            Some(append) => {
                batch.appends.push(append);
                self.appended += 1;
            }
            None => {
                self.refused += 1;
                self.space.write_in_group(id, number, &new, &tag())?;
            }
        }
        batch.images.insert(page, new);
        Ok(())
    }

    fn record(&mut self) -> Result<(), SpaceError> {
        if let Some(batch) = self.open.as_ref().filter(|_| !self.is_recorded) {
            self.space.fence()?;
            self.named.push(batch.clone());
            self.is_recorded = true;
        }
        Ok(())
    }

    /// More bits of a code word of the unit that holds `page` are wrong than can be corrected.
    fn damage(&mut self, page: u32, code_word: u32) {
        let at = self.read(page).0.at;
        self.damage_at(at, code_word);
    }

    fn damage_at(&mut self, at: u32, code_word: u32) {
        let device = self.space.device_mut();
        let page = device.geometry().page_from_number(at).unwrap();
        let strength = device.capabilities().code_word.strength;
        device.flip_bits(page, code_word, strength + 1);
    }

    /// Power comes back, and the log is read: nothing is written yet, and nothing counted.
    fn remount(&mut self) {
        let mut device = self.space.device().clone();
        device.power_cycle();
        let (space, report) = Space::mount(device).unwrap();
        assert_eq!(report.lost_pages, 0, "a cut loses no page");
        self.space = space;
        (self.open, self.is_recorded) = (None, false);
        for batch in &self.named {
            self.space.find_appends(batch.id, &batch.appends, |_| false).unwrap();
        }
    }

    /// The log's tail is safe: what its records say becomes current.
    fn decide(&mut self) {
        for batch in &self.named {
            match self.space.commit_group(batch.id) {
                Ok(_) | Err(SpaceError::UnknownGroup(_)) => {}
                Err(error) => panic!("{error}"),
            }
            self.images.extend(batch.images.clone());
        }
        self.space.groups().into_iter().for_each(|group| self.space.discard_group(group));
    }

    fn check(&mut self) {
        for (page, image) in self.images.clone() {
            let (_, mut bytes) = self.read(page);
            bytes[LOOSE_BYTE] = image[LOOSE_BYTE];
            assert!(bytes == image, "page {page}");
        }
        assert_eq!(self.space.verify().unwrap(), []);
    }
}

fn script(seed: u64, length: usize, pages: u32) -> Vec<(Act, u8)> {
    let mut draw = Draw(seed);
    let act = |draw: &mut Draw| {
        let page = draw.below(CHANGED.into()) as u32;
        let other = CHANGED + draw.below(u64::from(pages - CHANGED)) as u32;
        let act = match draw.below(100) {
            0..=29 => Act::Change { page },
            30..=36 => Act::Record,
            37..=46 => Act::Commit,
            47..=49 => Act::Discard,
            50..=56 => Act::Loose { page },
            57..=97 => Act::Fill { page: other },
            _ => Act::Checkpoint,
        };
        (act, draw.below(255) as u8)
    };
    (0..length).map(|_| act(&mut draw)).collect()
}

/// Every operation of some acts, with every ending.
fn cuts_of(world: &World, acts: &[(Act, u8)]) -> Vec<(u64, Ending)> {
    let mut calm = world.clone();
    calm.space.device_mut().record_operations();
    let first = calm.space.device().operation_count();
    acts.iter().for_each(|(act, value)| calm.act(*act, *value).unwrap());
    let device = calm.space.device();
    let numbers = first..device.operation_count();
    let each = |number| device.endings_at(number).into_iter().map(move |ending| (number, ending));
    numbers.flat_map(each).collect()
}

fn cut(world: &World, acts: &[(Act, u8)], at: (u64, Ending)) -> World {
    let mut world = cut_off(world, acts, at, 1);
    world.remount();
    world
}

/// As it is when the power has gone; `draw` decides what the ending leaves open.
fn cut_off(world: &World, acts: &[(Act, u8)], (number, ending): (u64, Ending), draw: u64) -> World {
    let mut world = world.clone();
    world.space.device_mut().set_plan(FaultPlan::power_cut(draw, number, ending));
    let failed = acts.iter().any(|(act, value)| world.act(*act, *value).is_err());
    assert!(failed && world.space.device().is_off(), "the operation was never reached");
    world
}

fn goes_on(mut world: World, acts: &[(Act, u8)]) {
    world.decide();
    world.check();
    acts.iter().for_each(|(act, value)| world.act(*act, *value).unwrap());
    world.remount();
    world.decide();
    world.check();
}

/// What was explored: states, appends made and refused.
#[derive(Debug, Default)]
struct Seen {
    states: u64,
    appended: u32,
    refused: u32,
}

/// Cuts every operation of the acts behind `warm_up`; `twice` cuts what a restart writes before it has
/// decided, too. There the last record may be gone with the tail of the log.
fn explore(seed: u64, warm_up: usize, steps: usize, twice: bool) -> Seen {
    explore_from(World::new(&fine_profile(), &options()), seed, warm_up, steps, twice)
}

fn explore_from(world: World, seed: u64, warm_up: usize, steps: usize, twice: bool) -> Seen {
    let mut world = world;
    let pages = world.space.capacity_pages() - 6;
    let acts = script(seed, warm_up + steps + 12, pages);
    let mut seen = Seen::default();
    for (index, (act, value)) in acts[..warm_up + steps].iter().enumerate() {
        let (now, after) = (&acts[index..=index], &acts[index + 1..index + 9]);
        let cuts = if index < warm_up { Vec::new() } else { cuts_of(&world, now) };
        for first in cuts {
            let run = || {
                let mut states = 1;
                let after_cut = cut(&world, now, first);
                goes_on(after_cut.clone(), after);
                // Restart writes before it has decided: copies, and whatever collection moves.
                let fills: Vec<_> =
                    (0..3).map(|fill| (Act::Fill { page: CHANGED + fill * 5 }, 9)).collect();
                if !twice {
                    let mut late = after_cut;
                    fills.iter().for_each(|(act, value)| late.act(*act, *value).unwrap());
                    goes_on(late, after);
                    return states + 1;
                }
                for second in cuts_of(&after_cut, &fills) {
                    let again = cut(&after_cut, &fills, second);
                    let mut shorter = again.clone();
                    goes_on(again, after);
                    let open = world.open.as_ref().map(|batch| batch.id);
                    if let Some(last) = shorter.named.pop_if(|batch| Some(batch.id) == open) {
                        shorter.remount();
                        let had = world.named.iter().any(|batch| batch.id == last.id);
                        assert!(!had || world.is_recorded, "a record is there or not");
                        goes_on(shorter, after);
                        states += 1;
                    }
                    states += 1;
                }
                states
            };
            let result = catch_unwind(AssertUnwindSafe(run));
            assert!(result.is_ok(), "seed {seed} step {index} {act:?} cut {first:?}");
            seen.states += result.unwrap_or(0);
        }
        world.act(*act, *value).unwrap();
    }
    world.check();
    (seen.appended, seen.refused) = (world.appended, world.refused);
    seen
}

#[test]
fn every_cut_among_appends_of_groups_recovers() {
    for seed in 0..8 {
        let seen = explore(seed, 120, 60, false);
        assert!(seen.states > 300 && seen.appended > 10 && seen.refused > 5, "{seed}: {seen:?}");
    }
}

#[test]
fn every_second_cut_among_appends_of_groups_recovers() {
    for seed in [17, 41] {
        let seen = explore(seed, 150, 10, true);
        assert!(seen.states > 300 && seen.appended > 10, "{seed}: {seen:?}");
    }
}

/// Goal: the exploration sees what it is there for. Method: bugs planted in the session that is cut.
#[cfg(feature = "seeded-bugs")]
#[test]
fn planted_bugs_of_open_appends_are_found() {
    for bug in [SpaceBug::OpenAppendsCount, SpaceBug::OpenAppendsLeft] {
        let is_found = |seed| {
            let mut world = World::new(&fine_profile(), &options());
            world.space.plant(bug);
            let run = || explore_from(world, seed, 120, 60, false);
            catch_unwind(AssertUnwindSafe(run)).is_err()
        };
        assert!((0..8).any(is_found), "{bug:?}");
    }
}

/// Goal (U2): a mount relies on nothing that stands in a block whose erase was cut: what reads whole there
/// now may not later. Method: after the mount the block is erased for good.
#[test]
fn what_an_interrupted_erase_left_is_not_relied_on() {
    const SEEDS: u64 = 4;
    const LENGTH: usize = 400;
    const DRAWS: u64 = 12;
    let mut states = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(&fine_profile(), &options());
        let acts = script(seed, LENGTH + 10, world.space.capacity_pages() - 6);
        for (index, (act, value)) in acts[..LENGTH].iter().enumerate() {
            let (now, after) = (&acts[index..=index], &acts[index + 1..index + 9]);
            let cuts = if index < 80 { Vec::new() } else { cuts_of(&world, now) };
            for (number, _) in cuts.into_iter().filter(|cut| cut.1 == Ending::PartlyErased) {
                let before = cut_off(&world, now, (number, Ending::Untouched), 1);
                for draw in 0..DRAWS {
                    let mut world = cut_off(&world, now, (number, Ending::PartlyErased), draw);
                    let (old, new) = (before.space.device(), world.space.device());
                    let blocks = (0..new.geometry().block_count).map(BlockIndex);
                    let erased =
                        blocks.into_iter().find(|it| old.erase_count(*it) != new.erase_count(*it));
                    world.remount();
                    world.space.device_mut().erase(erased.unwrap()).unwrap();
                    let run = || goes_on(world, after);
                    let result = catch_unwind(AssertUnwindSafe(run));
                    assert!(
                        result.is_ok(),
                        "seed {seed} step {index} {act:?} cut {number} draw {draw}"
                    );
                    states += 1;
                }
            }
            world.act(*act, *value).unwrap();
        }
    }
    assert!(states > 300, "{states}");
}

/// A world in which one group has appended to two pages.
fn appended() -> World {
    let mut world = World::new(&fine_profile(), &options());
    for page in [2, 5] {
        world.act(Act::Change { page }, 7).unwrap();
    }
    assert_eq!(world.appended, 2);
    world
}

/// Moves all pages to other units, by writes of others.
fn churn(world: &mut World, is_done: impl Fn(&mut World) -> bool) {
    let (mut draw, pages) = (Draw(4), world.space.capacity_pages() - 20);
    for turn in 0.. {
        assert!(turn < 5_000, "nothing is moved");
        if is_done(world) {
            return;
        }
        let page = CHANGED + draw.below(pages.into()) as u32;
        world.act(Act::Fill { page }, 3).unwrap();
    }
}

#[test]
fn what_a_group_appends_counts_once_it_is_committed() {
    let mut world = appended();
    let before = world.space.device().counters();
    world.check();
    world.act(Act::Commit, 0).unwrap();
    world.check();
    let after = world.space.device().counters();
    assert_eq!(
        before.page_programs + before.partial_programs,
        after.page_programs + after.partial_programs,
        "no program for it"
    );
    world.act(Act::Checkpoint, 0).unwrap();
    assert!(world.named.is_empty());
    world.remount();
    world.check();
}

#[test]
fn a_mount_finds_what_the_record_names_and_nothing_else() {
    let mut world = appended();
    world.act(Act::Record, 0).unwrap();
    let mut unnamed = world.clone();
    unnamed.named.clear();
    unnamed.remount();
    unnamed.decide();
    unnamed.check();
    // Twice: the first restart leaves it to the log.
    for _ in 0..2 {
        world.remount();
        world.decide();
        world.check();
        assert_eq!(world.read(2).0.appends, 1);
    }
}

/// Goal (A7): nothing follows an append that was given up: its slot may not be told from one that counts.
#[test]
fn a_page_whose_group_was_given_up_takes_no_append() {
    let mut world = appended();
    world.act(Act::Discard, 0).unwrap();
    world.check();
    let (info, mut image) = world.read(2);
    let old = image.clone();
    image[0] ^= 1;
    let records = runs::encode(&old, &image, ChangeForm::Runs, 1, 64).unwrap();
    let appended = world.space.append(LogicalPage(2), &info, Lsn(2), ChangeForm::Runs, &records);
    assert_eq!(appended.unwrap(), None);
    world.space.write(LogicalPage(2), &image, &tag()).unwrap();
    world.images.insert(2, image);
    world.act(Act::Change { page: 2 }, 9).unwrap();
    assert_eq!(world.appended, 3, "a new version takes appends again");
    world.act(Act::Commit, 0).unwrap();
    world.check();
}

/// Goal (X3): a unit that moves takes what an open group has appended along, whatever becomes of the group.
#[test]
fn an_open_append_moves_as_a_page_of_its_group() {
    for act in [Act::Commit, Act::Discard] {
        let mut world = appended();
        let group = world.open.as_ref().unwrap().id;
        churn(&mut world, |world| world.space.group_pages(group).len() == 2);
        assert_eq!(world.space.open_append_count(), 0);
        world.check();
        let mut recorded = world.clone();
        world.act(act, 0).unwrap();
        world.check();
        world.remount();
        world.decide();
        world.check();
        recorded.act(Act::Record, 0).unwrap();
        recorded.remount();
        recorded.decide();
        recorded.check();
    }
}

/// Goal (N1): a version that was pinned before the commit stays what it was, wherever it moves.
#[test]
fn a_pin_from_before_the_commit_holds_the_version_without_it() {
    let mut world = appended();
    let old = world.read(2).1;
    let pin = world.space.pin(LogicalPage(2)).unwrap();
    world.act(Act::Commit, 0).unwrap();
    let later = world.space.pin(LogicalPage(2)).unwrap();
    let at = world.read(2).0.at;
    let check = |world: &mut World| {
        let (mut bytes, new) = (Vec::new(), world.images[&2].clone());
        world.space.read_pinned(pin, &mut bytes).unwrap();
        assert!(bytes == old, "the pin from before");
        world.space.read_pinned(later, &mut bytes).unwrap();
        assert!(bytes == new, "the pin from after");
        world.check();
    };
    check(&mut world);
    let mut unpinned = world.clone();
    churn(&mut world, |world| world.read(2).0.at != at);
    check(&mut world);
    world.space.unpin(pin);
    world.space.unpin(later);
    world.check();
    // The older version is the only one that is left of the unit.
    unpinned.space.unpin(later);
    let image = content(LogicalPage(2), 8, unpinned.space.payload_size_with(SLOTS));
    unpinned.space.write(LogicalPage(2), &image, &tag()).unwrap();
    unpinned.images.insert(2, image);
    churn(&mut unpinned, |world| world.space.device().counters().block_erases > 60);
    let mut bytes = Vec::new();
    unpinned.space.read_pinned(pin, &mut bytes).unwrap();
    assert!(bytes == old, "after the page was written anew");
    unpinned.space.unpin(pin);
    unpinned.check();
}

/// Goal: without any checkpoint record an append of a group counts where another append follows it, and
/// else if the log says so.
#[test]
fn without_a_record_the_last_append_of_a_group_waits_for_the_log() {
    let mut world = appended();
    world.act(Act::Commit, 0).unwrap();
    world.act(Act::Loose { page: 2 }, 1).unwrap();
    let ring = world.space.ring.halves.clone();
    for block in ring.iter().flat_map(|half| &half.blocks) {
        world.space.device_mut().erase(BlockIndex(*block)).unwrap();
    }
    let named = core::mem::take(&mut world.named);
    let mut found = world.clone();
    found.remount();
    assert_eq!((found.read(2).0.appends, found.read(5).0.appends), (2, 0));
    world.named = named;
    world.remount();
    world.decide();
    world.check();
}

/// Goal: damage in an append that counts is reported; names that say nonsense are passed over.
#[test]
fn damage_and_wrong_names_are_told() {
    let mut world = appended();
    world.act(Act::Record, 0).unwrap();
    world.damage(2, 1);
    let names = world.named[0].appends.clone();
    for name in names {
        let batch = &mut world.named[0];
        batch.appends.push(GroupAppend { page: LogicalPage(u32::MAX), ..name });
        batch.appends.push(GroupAppend { at: u32::MAX, ..name });
        batch.appends.push(GroupAppend { sequence: name.sequence + 1, ..name });
        batch.appends.push(GroupAppend { count: 8, ..name });
        batch.appends.push(GroupAppend { count: 0, ..name });
    }
    world.remount();
    world.decide();
    let damaged = world.space.read(LogicalPage(2), &mut Vec::new());
    assert!(matches!(damaged, Err(SpaceError::Corrupt { .. })), "{damaged:?}");
    assert_eq!(world.read(5).1, world.images[&5]);
}

/// Goal (X7): what was committed with an append is lost with its unit, not what it was before. Method: damage in
/// a unit that no record knows, anywhere in a block; the version before it still reads.
#[test]
fn a_unit_that_is_gone_with_its_append_is_told() {
    damage_below_appends(&World::new(&fine_profile(), &options()), Beside::Nothing);
}

/// Goal (X7): the same where there is no version before it: the page is not one that was never written.
#[test]
fn a_first_version_that_is_gone_with_its_append_is_told() {
    let mut world = World::new(&fine_profile(), &options());
    world.space.trim(LogicalPage(2), None).unwrap();
    world.images.remove(&2);
    damage_below_appends(&world, Beside::Nothing);
}

/// Goal (X7): the same where the version before it is a copy: it is not one of the unit that is gone.
#[test]
fn an_older_copy_is_not_taken_for_the_unit_that_is_gone() {
    let mut world = World::new(&fine_profile(), &options());
    let at = world.read(2).0.at;
    churn(&mut world, |world| world.read(2).0.at != at);
    damage_below_appends(&world, Beside::Nothing);
}

/// Goal (X7): the same where a group that was given up left a page that is newer than the unit.
#[test]
fn a_page_of_a_group_that_was_given_up_does_not_stand_for_the_unit_that_is_gone() {
    damage_below_appends(&World::new(&fine_profile(), &options()), Beside::GivenUp);
}

/// Goal (X7): the same where a group that is committed once more at the mount had written the page before.
#[test]
fn an_older_page_of_a_group_does_not_stand_for_the_unit_that_is_gone() {
    let mut world = World::new(&fine_profile(), &options());
    damage_below_appends(&world, Beside::Older);
    world.space.trim(LogicalPage(2), None).unwrap();
    world.images.remove(&2);
    damage_below_appends(&world, Beside::Older);
}

/// Goal (X7): what a group appended is told as well where the page is gone that the append became, and the copy of
/// its unit reads as before. Method: the unit moves before the group is committed; damage in the group's page, anywhere in
/// a block.
#[test]
fn a_page_that_is_gone_with_the_append_it_was_is_told() {
    let mut lost = 0;
    for ahead in 0..8 {
        let mut world = appended();
        (0..ahead).for_each(|_| world.act(Act::Fill { page: CHANGED }, 1).unwrap());
        let group = world.open.as_ref().unwrap().id;
        churn(&mut world, |world| world.space.groups.get(group, LogicalPage(2)).is_some());
        world.act(Act::Record, 0).unwrap();
        let mut sound = world.clone();
        sound.remount();
        sound.decide();
        sound.check();
        let at = world.space.groups.get(group, LogicalPage(2)).unwrap().at;
        world.damage_at(at, 0);
        world.remount();
        world.decide();
        match world.space.read(LogicalPage(2), &mut Vec::new()) {
            Err(SpaceError::Lost(LogicalPage(2))) => lost += 1,
            // The block's summary lists it.
            Err(SpaceError::Corrupt { .. }) => {}
            other => panic!("{ahead}: {:?}", other.map(|info| info.version)),
        }
    }
    assert!(lost > 0, "each was listed");
}

/// What a group has of the page beside the unit that is gone.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    GivenUp,
    Older,
}

fn damage_below_appends(fresh: &World, beside: Beside) {
    let mut lost = 0;
    for ahead in 0..8 {
        let mut world = fresh.clone();
        world.act(Act::Checkpoint, 0).unwrap();
        (0..ahead).for_each(|_| world.act(Act::Fill { page: CHANGED }, 1).unwrap());
        let image = content(LogicalPage(2), 8, world.space.payload_size_with(SLOTS));
        world.space.ensure_room(2, &mut NoOwner).unwrap();
        let group = world.space.new_group().unwrap();
        if beside == Beside::Older {
            world.space.write_in_group(group, LogicalPage(2), b"older", &tag()).unwrap();
            world.space.commit_group(group).unwrap();
        }
        world.space.write(LogicalPage(2), &image, &tag()).unwrap();
        if beside == Beside::GivenUp {
            world.space.write_in_group(group, LogicalPage(2), b"given up", &tag()).unwrap();
            world.space.discard_group(group);
        }
        world.images.insert(2, image);
        world.act(Act::Fill { page: CHANGED }, 2).unwrap();
        for page in [2, 5] {
            world.act(Act::Change { page }, 7).unwrap();
        }
        let took = |page| world.open.iter().flat_map(|it| &it.appends).any(|it| it.page.0 == page);
        assert!(took(2), "page 5 may be a copy, which takes none (X6)");
        world.act(Act::Record, 0).unwrap();
        world.damage(2, 0);
        world.remount();
        if beside == Beside::Older {
            let moved = world.space.commit_group(group);
            assert_eq!(moved, Ok(Vec::new()), "{ahead}: the log commits it again");
        }
        world.decide();
        match world.space.read(LogicalPage(2), &mut Vec::new()) {
            Err(SpaceError::Lost(LogicalPage(2))) => lost += 1,
            // The block's summary lists it.
            Err(SpaceError::Corrupt { .. }) => {}
            other => panic!("{ahead}: {other:?}"),
        }
        assert_eq!(world.read(5).1, world.images[&5]);
    }
    assert!(lost > 0, "each was listed");
}

/// Goal (X3): of two appends that a unit took, the earlier one does not move without the later one, or the page
/// would read as without it. Method: two groups that a record names each; damage in the later one's slot;
/// restart collects the block before the log is read to its end, for twice as many erases as it takes to move
/// the unit where nothing is damaged.
#[test]
fn appends_of_one_unit_move_together() {
    let mut world = appended();
    world.act(Act::Commit, 0).unwrap();
    world.act(Act::Change { page: 2 }, 9).unwrap();
    assert_eq!(world.appended, 3);
    world.act(Act::Record, 0).unwrap();
    let groups = [world.named[0].id, world.named[1].id];
    let moved = |world: &World| {
        groups.map(|group| world.space.group_pages(group).contains(&LogicalPage(2)))
    };
    let erases = |world: &World| world.space.device().counters().block_erases;
    let before = erases(&world);
    let mut sound = world.clone();
    sound.remount();
    churn(&mut sound, |world| moved(world) != [false; 2]);
    assert_eq!(moved(&sound), [true; 2]);
    let enough = before + 2 * (erases(&sound) - before);
    world.damage(2, 2);
    world.remount();
    churn(&mut world, |world| erases(world) > enough);
    assert_eq!(moved(&world), [false; 2]);
    world.decide();
    let damaged = world.space.read(LogicalPage(2), &mut Vec::new());
    assert!(matches!(damaged, Err(SpaceError::Corrupt { .. })), "{damaged:?}");
    assert_eq!(world.read(5).1, world.images[&5]);
}

/// Goal (Y4): what a pin holds is never taken for what a frozen mapping has, although both have one version.
/// Method: a pin from before an append that the frozen mapping has; every cut while collection moves both.
#[test]
fn what_a_pin_holds_is_not_what_a_frozen_mapping_has() {
    let mut world = appended();
    world.space.pin(LogicalPage(2)).unwrap();
    world.act(Act::Commit, 0).unwrap();
    // What stands beside it is written anew, or collection would leave it alone.
    (0..24).for_each(|other| world.act(Act::Fill { page: CHANGED + other }, 3).unwrap());
    let id = world.space.freeze(b"with it", &mut NoOwner).unwrap();
    let expected = world.images[&2].clone();
    let at = world.read(2).0.at;
    let image = content(LogicalPage(2), 9, world.space.payload_size_with(SLOTS));
    world.space.write(LogicalPage(2), &image, &tag()).unwrap();
    let is_there = |world: &World| world.space.frozen.maps[&id].map.get(LogicalPage(2)) == Some(at);
    let (mut draw, mut states, mut left) = (Draw(4), 0, 20);
    for _ in 0..2_000 {
        if left == 0 {
            break;
        }
        let page = CHANGED + draw.below(12) as u32;
        let fill = [(Act::Fill { page }, 3)];
        let mut after = world.clone();
        after.act(fill[0].0, 3).unwrap();
        left -= i32::from(!is_there(&after));
        let cuts = if is_there(&after) { Vec::new() } else { cuts_of(&world, &fill) };
        for at in cuts {
            let mut cut = cut(&world, &fill, at);
            let mut bytes = Vec::new();
            cut.space.read_frozen(id, LogicalPage(2), &mut bytes).unwrap();
            assert!(bytes == expected, "{at:?}");
            states += 1;
        }
        world = after;
    }
    assert!(states > 20, "{states}");
}
