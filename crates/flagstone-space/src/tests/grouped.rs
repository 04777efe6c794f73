//! Groups beside appends: which pages count, which move, and the states that a cut may leave.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::vec::Vec;

use flagstone_nand::{BlockIndex, Crashable, Ending, FaultPlan, Nand, Profile, SimNand};

use super::devices::{options, profile, sim};
use super::harness::{REGION, content};
use super::script::Draw;
use crate::runs::{self, ChangeForm};
use crate::{
    GroupId, GroupSpan, LogicalPage, Lsn, NoOwner, PageInfo, Space, SpaceError, SpaceOptions,
    WriteTag,
};

/// Slots of every page.
const SLOTS: u8 = 3;

/// Pages that groups change; the pages behind them are there to be collected.
const CHANGED: u32 = 8;

/// Byte of a page that appends without a group change: the log would bring these appends back, so checks
/// leave the byte out.
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

/// Pages that a group has changed, with their content in the group.
#[derive(Clone, Debug)]
struct Batch {
    id: GroupId,
    spans: Vec<GroupSpan>,
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

/// A space, the content of its pages, and the records that a log would have.
#[derive(Clone, Debug)]
struct World {
    space: Space<SimNand>,
    images: BTreeMap<u32, Vec<u8>>,
    open: Option<Batch>,
    is_recorded: bool,
    /// Groups whose record is durable and that no checkpoint covers.
    named: Vec<Batch>,
    /// Appends made, and pages of groups written.
    appended: u32,
    written: u32,
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
            // Rewritten pages share blocks with pages that stay, or collection would leave the latter alone.
            for other in 0..3 {
                let other = LogicalPage(CHANGED + 3 * page + other);
                space.ensure_room(1, &mut NoOwner).unwrap();
                space.write(other, b"other", &tag()).unwrap();
            }
        }
        let (open, named) = (None, Vec::new());
        Self { space, images, open, is_recorded: false, named, appended: 0, written: 0 }
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
                let (page, form) = (LogicalPage(page), ChangeForm::Runs);
                let appended = self.space.append(page, &info, info.lsn, form, &records)?;
                self.appended += u32::from(appended.is_some());
                Ok(())
            }
            Act::Fill { page } => {
                match self.space.ensure_room(1, &mut NoOwner) {
                    // Groups that a restart has not decided yet take their room.
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
            self.open = Some(Batch { id, spans: Vec::new(), images: BTreeMap::new() });
        }
        self.space.ensure_room(1, &mut NoOwner)?;
        let mut new = match self.images.contains_key(&page) {
            true => self.read(page).1,
            false => content(LogicalPage(page), 8, self.space.payload_size_with(SLOTS)),
        };
        new[usize::from(value) % 64] ^= value | 1;
        self.written += 1;
        let Some(batch) = &mut self.open else { return Ok(()) };
        let info = self.space.write_in_group(batch.id, LogicalPage(page), &new, &tag())?;
        batch.spans.push(GroupSpan { page: LogicalPage(page), version: info.version, count: 1 });
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

    /// More bits of a code word of the unit at `at` are wrong than can be corrected.
    fn damage_at(&mut self, at: u32, code_word: u32) {
        let device = self.space.device_mut();
        let page = device.geometry().page_from_number(at).unwrap();
        let strength = device.capabilities().code_word.strength;
        device.flip_bits(page, code_word, strength + 1);
    }

    /// Power comes back, and the log is read: nothing is written yet, and no record has taken effect.
    fn remount(&mut self) {
        let mut device = self.space.device().clone();
        device.power_cycle();
        let (space, report) = Space::mount(device).unwrap();
        assert_eq!(report.lost_pages, 0, "a cut loses no page");
        self.space = space;
        (self.open, self.is_recorded) = (None, false);
        for batch in &self.named {
            self.space.require_pages(batch.id, &batch.spans, |_| false).unwrap();
        }
    }

    /// The log's tail is safe: the groups of its records become current.
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

/// Pages in use: a group's pages have room beside the pages that they replace; the writer of groups sees to
/// that.
fn pages_of(world: &World) -> u32 {
    world.space.capacity_pages() - 6 - CHANGED
}

fn script(seed: u64, length: usize, pages: u32) -> Vec<(Act, u8)> {
    let mut draw = Draw(seed);
    let act = |draw: &mut Draw| {
        let page = draw.below(CHANGED.into()) as u32;
        let other = CHANGED + draw.below(u64::from(pages - CHANGED)) as u32;
        let act = match draw.below(100) {
            0..=24 => Act::Change { page },
            25..=31 => Act::Record,
            32..=41 => Act::Commit,
            42..=44 => Act::Discard,
            45..=56 => Act::Loose { page },
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

/// The world at the loss of power; `draw` decides the part that the ending leaves open.
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

/// Extent of an exploration: states, appends made, and pages of groups written.
#[derive(Debug, Default)]
struct Seen {
    states: u64,
    appended: u32,
    written: u32,
}

/// Cuts every operation of the acts behind `warm_up`; with `twice`, also each write that a restart makes
/// before it has decided. With such a second cut the last record may be gone with the tail of the log.
fn explore(seed: u64, warm_up: usize, steps: usize, twice: bool) -> Seen {
    explore_from(World::new(&fine_profile(), &options()), seed, warm_up, steps, twice)
}

fn explore_from(world: World, seed: u64, warm_up: usize, steps: usize, twice: bool) -> Seen {
    let mut world = world;
    let pages = pages_of(&world);
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
                // Restart writes before it has decided: copies, and the moves of collection.
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
    (seen.appended, seen.written) = (world.appended, world.written);
    seen
}

#[test]
fn every_cut_among_groups_and_appends_recovers() {
    for seed in 0..8 {
        let seen = explore(seed, 120, 60, false);
        assert!(seen.states > 300 && seen.appended > 10 && seen.written > 5, "{seed}: {seen:?}");
    }
}

#[test]
fn every_second_cut_among_groups_and_appends_recovers() {
    for seed in [17, 41] {
        let seen = explore(seed, 150, 10, true);
        assert!(seen.states > 300 && seen.appended > 10, "{seed}: {seen:?}");
    }
}

/// Goal (U2): a mount relies on nothing in a block whose erase was cut: content that reads whole there now
/// may not read later. Method: after the mount the block is erased for good.
#[test]
fn what_an_interrupted_erase_left_is_not_relied_on() {
    const SEEDS: u64 = 4;
    const LENGTH: usize = 400;
    const DRAWS: u64 = 12;
    let mut states = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(&fine_profile(), &options());
        let acts = script(seed, LENGTH + 10, pages_of(&world));
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

/// Goal (U5): of a group that a record names, a page that damage took is lost, and does not fall back to its
/// version before. Method: damage in the group's page, anywhere in a block, before and after the commit of
/// the group.
#[test]
fn a_page_of_a_group_that_is_gone_is_told() {
    for act in [Act::Record, Act::Commit] {
        damage_in_a_group(&World::new(&fine_profile(), &options()), Beside::Nothing, act);
    }
}

/// Goal (U5): the same where the page has no version before: it does not read as a page that was never
/// written.
#[test]
fn a_first_version_of_a_group_that_is_gone_is_told() {
    let mut world = World::new(&fine_profile(), &options());
    world.space.trim(LogicalPage(2), None).unwrap();
    world.images.remove(&2);
    damage_in_a_group(&world, Beside::Nothing, Act::Record);
}

/// Goal (U5): the same where a group that was given up left a newer version of the page.
#[test]
fn a_page_of_a_group_that_was_given_up_does_not_stand_for_one_that_is_gone() {
    damage_in_a_group(&World::new(&fine_profile(), &options()), Beside::GivenUp, Act::Record);
}

/// Goal (U5): the same where a group that is committed once more at the mount had written the page before.
#[test]
fn an_older_page_of_a_group_does_not_stand_for_one_that_is_gone() {
    let mut world = World::new(&fine_profile(), &options());
    damage_in_a_group(&world, Beside::Older, Act::Record);
    world.space.trim(LogicalPage(2), None).unwrap();
    world.images.remove(&2);
    damage_in_a_group(&world, Beside::Older, Act::Record);
}

/// Version of the lost page in another group.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    GivenUp,
    Older,
}

fn damage_in_a_group(fresh: &World, beside: Beside, act: Act) {
    let page = LogicalPage(2);
    let mut lost = 0;
    for ahead in 0..8 {
        let mut world = fresh.clone();
        world.act(Act::Checkpoint, 0).unwrap();
        (0..ahead).for_each(|_| world.act(Act::Fill { page: CHANGED }, 1).unwrap());
        world.space.ensure_room(4, &mut NoOwner).unwrap();
        let other = world.space.new_group().unwrap();
        if beside == Beside::Older {
            let image = content(page, 7, world.space.payload_size_with(SLOTS));
            world.space.write_in_group(other, page, &image, &tag()).unwrap();
            world.space.commit_group(other).unwrap();
            world.images.insert(page.0, image);
        }
        for changed in [page.0, 5] {
            world.act(Act::Change { page: changed }, 7).unwrap();
        }
        if beside == Beside::GivenUp {
            world.space.write_in_group(other, page, b"given up", &tag()).unwrap();
            world.space.discard_group(other);
        }
        world.act(Act::Fill { page: CHANGED }, 2).unwrap();
        let group = world.open.as_ref().unwrap().id;
        let at = world.space.groups.get(group, page).unwrap().at;
        world.act(act, 0).unwrap();
        let remount = |world: &mut World| {
            world.remount();
            // The log commits it again.
            let committed = (beside == Beside::Older).then(|| world.space.commit_group(other));
            world.decide();
            committed
        };
        let mut sound = world.clone();
        remount(&mut sound);
        sound.check();
        world.damage_at(at, 0);
        let committed = remount(&mut world);
        match world.space.read(page, &mut Vec::new()) {
            Err(SpaceError::Lost(_)) => {
                assert!(committed.is_none_or(|moved| moved == Ok(Vec::new())), "{ahead}");
                lost += 1;
            }
            // The block's summary lists it.
            Err(SpaceError::Corrupt { .. }) => {}
            other => panic!("{ahead}: {:?}", other.map(|info| info.version)),
        }
        assert_eq!(world.read(5).1, world.images[&5]);
    }
    assert!(lost > 0, "each was listed");
}

/// Goal: names that make no sense are passed over.
#[test]
fn pages_that_there_cannot_be_are_passed_over() {
    let mut world = World::new(&fine_profile(), &options());
    world.act(Act::Change { page: 2 }, 7).unwrap();
    world.act(Act::Record, 0).unwrap();
    let (version, count) = (world.named[0].spans[0].version, u32::MAX);
    let beyond = LogicalPage(world.space.map.len());
    world.named[0].spans.push(GroupSpan { page: LogicalPage(u32::MAX), version, count });
    world.named[0].spans.push(GroupSpan { page: beyond, version, count });
    world.named[0].spans.push(GroupSpan { page: LogicalPage(2), version, count: 0 });
    world.remount();
    world.decide();
    world.check();
}

/// Goal (Y4): a unit that both a pin and a frozen mapping hold is found for the frozen mapping after any cut.
/// Method: pin and mapping hold one version, with an append; every cut while collection moves it.
#[test]
fn what_a_pin_and_a_frozen_mapping_have_is_found() {
    let mut world = World::new(&fine_profile(), &options());
    world.act(Act::Loose { page: 2 }, 1).unwrap();
    assert_eq!(world.appended, 1);
    let pin = world.space.pin(LogicalPage(2)).unwrap();
    // The pages beside it are written anew, or collection would leave its block alone.
    (0..24).for_each(|other| world.act(Act::Fill { page: CHANGED + other }, 3).unwrap());
    let id = world.space.freeze(b"with it", &mut NoOwner).unwrap();
    let (PageInfo { at, .. }, expected) = world.read(2);
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
    let mut bytes = Vec::new();
    world.space.read_pinned(pin, &mut bytes).unwrap();
    assert!(bytes == expected, "the pin");
}
