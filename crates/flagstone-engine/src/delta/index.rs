//! The index over the chunks of a map: two levels of sorted arrays.
//!
//! A slot holds a chunk and the lowest key that belongs to it. Slots stand in groups of at most
//! `GROUP_SLOTS_MAX`, so that an insertion moves a few KiB even with a million deltas.
//!
//! Invariants:
//! - X1: a key belongs to the last slot whose `low` is at or below it, or to the first slot.
//! - X2: no group and no chunk is empty.
//! - X3: `memory_size` is the sum of the allocations of groups, keys and chunks, `packed_size` the
//!   sum of the bytes in the chunks.
//! - X4: `firsts` has the head of each group's first key: a search compares these heads, side by
//!   side in memory, before it enters a group.

use super::chunk::{CHUNK_SIZE_MAX, Chunk, key_head};

/// Most slots of a group.
const GROUP_SLOTS_MAX: usize = 64;
/// Step in which a group grows, in slots.
const GROUP_GROWTH: usize = 8;
/// Longest key kept inside a slot.
const INLINE_KEY_SIZE: usize = 22;

/// A key, in place when it is short.
#[derive(Clone, Debug)]
enum SlotKey {
    Inline { size: u8, bytes: [u8; INLINE_KEY_SIZE] },
    Heap(Box<[u8]>),
}

impl SlotKey {
    fn of(key: &[u8]) -> Self {
        let mut bytes = [0; INLINE_KEY_SIZE];
        match bytes.get_mut(..key.len()) {
            Some(head) => {
                head.copy_from_slice(key);
                Self::Inline { size: key.len() as u8, bytes }
            }
            None => Self::Heap(key.into()),
        }
    }

    #[inline]
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Inline { size, bytes } => &bytes[..usize::from(*size).min(INLINE_KEY_SIZE)],
            Self::Heap(key) => key,
        }
    }

    /// Whether this key is at or below `key`, whose head is `head`.
    #[inline]
    fn is_at_or_below(&self, key: &[u8], head: u64) -> bool {
        let low = match self {
            Self::Inline { bytes, .. } => key_head(bytes),
            Self::Heap(low) => key_head(low),
        };
        low < head || (low == head && self.as_slice() <= key)
    }

    fn heap_size(&self) -> usize {
        match self {
            Self::Inline { .. } => 0,
            Self::Heap(key) => key.len(),
        }
    }
}

/// A chunk and the begin of its key range.
#[derive(Clone, Debug)]
struct Slot {
    low: SlotKey,
    chunk: Chunk,
}

impl Slot {
    fn new(low: &[u8], chunk: Chunk) -> Self {
        Self { low: SlotKey::of(low), chunk }
    }

    fn heap_size(&self) -> usize {
        self.low.heap_size() + self.chunk.capacity()
    }
}

/// Address of a slot; valid until the index changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    group: usize,
    slot: usize,
}

/// The chunks of a map in key order.
#[derive(Debug, Default)]
pub(super) struct Index {
    groups: Vec<Vec<Slot>>,
    firsts: Vec<u64>,
    memory_size: usize,
    packed_size: usize,
}

impl Clone for Index {
    /// A copy whose allocations fit exactly.
    fn clone(&self) -> Self {
        let (groups, firsts) = (self.groups.clone(), self.firsts.clone());
        let memory_size = groups.iter().map(size_of_group).sum();
        Self { groups, firsts, memory_size, packed_size: self.packed_size }
    }
}

/// Bytes allocated for a group and its slots.
fn size_of_group(group: &Vec<Slot>) -> usize {
    group.capacity() * size_of::<Slot>() + group.iter().map(Slot::heap_size).sum::<usize>()
}

impl Index {
    /// Bytes allocated below this struct (X3).
    pub(super) fn memory_size(&self) -> usize {
        self.memory_size
            + self.groups.capacity() * size_of::<Vec<Slot>>()
            + self.firsts.capacity() * size_of::<u64>()
    }

    /// Bytes of all records (X3).
    pub(super) fn packed_size(&self) -> usize {
        self.packed_size
    }

    /// The slot to which `key` belongs (X1).
    #[inline]
    pub(super) fn locate(&self, key: &[u8]) -> Option<Position> {
        let head = key_head(key);
        let is_below = |slot: &Slot| slot.low.is_at_or_below(key, head);
        let begin = self.firsts.partition_point(|first| *first < head);
        let equal = self.firsts[begin..].partition_point(|first| *first == head);
        let alike = self.groups.get(begin..begin + equal)?;
        let above = alike.partition_point(|group| group.first().is_some_and(is_below));
        let group = (begin + above).saturating_sub(1);
        let slot = self.groups.get(group)?.partition_point(is_below).saturating_sub(1);
        Some(Position { group, slot })
    }

    pub(super) fn first(&self) -> Option<Position> {
        (!self.groups.is_empty()).then_some(Position { group: 0, slot: 0 })
    }

    pub(super) fn last(&self) -> Option<Position> {
        let group = self.groups.len().checked_sub(1)?;
        let slot = self.groups.get(group)?.len().checked_sub(1)?;
        Some(Position { group, slot })
    }

    /// The next slot; `position` may be one past the end of its group.
    pub(super) fn next(&self, position: Position) -> Option<Position> {
        self.settle(Position { slot: position.slot + 1, ..position })
    }

    /// The slot at `position`, or the first slot of the next group when `position` is past the end.
    fn settle(&self, position: Position) -> Option<Position> {
        let slots = self.groups.get(position.group)?;
        if position.slot < slots.len() {
            return Some(position);
        }
        let group = position.group + 1;
        (group < self.groups.len()).then_some(Position { group, slot: 0 })
    }

    pub(super) fn previous(&self, position: Position) -> Option<Position> {
        if let Some(slot) = position.slot.checked_sub(1) {
            return Some(Position { slot, ..position });
        }
        let group = position.group.checked_sub(1)?;
        let slot = self.groups.get(group)?.len().checked_sub(1)?;
        Some(Position { group, slot })
    }

    pub(super) fn chunk(&self, position: Position) -> Option<&Chunk> {
        Some(&self.groups.get(position.group)?.get(position.slot)?.chunk)
    }

    /// Lowest key that belongs to the slot.
    pub(super) fn low(&self, position: Position) -> Option<&[u8]> {
        Some(self.groups.get(position.group)?.get(position.slot)?.low.as_slice())
    }

    /// Changes a chunk and updates the totals.
    pub(super) fn update<T>(
        &mut self,
        position: Position,
        change: impl FnOnce(&mut Chunk) -> T,
    ) -> Option<T> {
        let slot = self.groups.get_mut(position.group)?.get_mut(position.slot)?;
        let (capacity, packed) = (slot.chunk.capacity(), slot.chunk.bytes().len());
        let result = change(&mut slot.chunk);
        self.memory_size = self.memory_size + slot.chunk.capacity() - capacity;
        self.packed_size = self.packed_size + slot.chunk.bytes().len() - packed;
        Some(result)
    }

    /// Replaces the chunk at `position` with the parts of a split.
    pub(super) fn split(&mut self, position: Position, parts: Vec<Chunk>) {
        let mut lows = parts.windows(2).map(separator_between).collect::<Vec<_>>().into_iter();
        let mut parts = parts.into_iter();
        let Some(first) = parts.next() else { return };
        self.update(position, |chunk| *chunk = first);
        let mut position = position;
        for part in parts {
            let low = lows.next().unwrap_or_default();
            position = self.insert_after(position, Slot::new(&low, part));
        }
    }

    /// Adds a chunk behind all others; `low` is at or below every key in it.
    pub(super) fn push(&mut self, low: &[u8], chunk: Chunk) {
        let slot = Slot::new(low, chunk);
        match self.last() {
            Some(last) => {
                self.insert_after(last, slot);
            }
            None => {
                self.memory_size += slot.heap_size();
                self.packed_size += slot.chunk.bytes().len();
                let mut group = Vec::new();
                push_slot(&mut group, 0, slot, &mut self.memory_size);
                self.groups.push(group);
                self.firsts.push(key_head(low));
            }
        }
    }

    fn insert_after(&mut self, position: Position, slot: Slot) -> Position {
        let mut target = Position { slot: position.slot + 1, ..position };
        self.memory_size += slot.heap_size();
        self.packed_size += slot.chunk.bytes().len();
        if self.groups[target.group].len() >= GROUP_SLOTS_MAX {
            target = self.split_group(target);
        }
        push_slot(&mut self.groups[target.group], target.slot, slot, &mut self.memory_size);
        self.note_first(target.group);
        target
    }

    /// Updates the head of a group, which may begin with another key (X4).
    fn note_first(&mut self, group: usize) {
        let first = self.groups.get(group).and_then(|group| group.first());
        if let (Some(known), Some(slot)) = (self.firsts.get_mut(group), first) {
            *known = key_head(slot.low.as_slice());
        }
    }

    /// Splits a full group; returns the new position of `target`.
    fn split_group(&mut self, target: Position) -> Position {
        let slots = &mut self.groups[target.group];
        let at_end = target.slot == slots.len() && target.group + 1 == self.groups.len();
        let slots = &mut self.groups[target.group];
        let cut = if at_end { slots.len() } else { slots.len() / 2 };
        let before = slots.capacity();
        let mut right = Vec::new();
        right.reserve_exact((slots.len() - cut).next_multiple_of(GROUP_GROWTH));
        right.extend(slots.drain(cut..));
        slots.shrink_to(slots.len());
        self.memory_size -= (before - slots.capacity()) * size_of::<Slot>();
        self.memory_size += right.capacity() * size_of::<Slot>();
        self.groups.insert(target.group + 1, right);
        self.firsts.insert(target.group + 1, 0);
        self.note_first(target.group + 1);
        if target.slot < cut || (target.slot == cut && !at_end) {
            return target;
        }
        Position { group: target.group + 1, slot: target.slot - cut }
    }

    /// Removes a slot; returns the position of the slot that followed.
    fn remove(&mut self, position: Position) -> Option<Position> {
        let slots = self.groups.get_mut(position.group)?;
        if position.slot >= slots.len() {
            return None;
        }
        let slot = slots.remove(position.slot);
        self.memory_size -= slot.heap_size();
        self.packed_size -= slot.chunk.bytes().len();
        if slots.is_empty() {
            self.memory_size -= slots.capacity() * size_of::<Slot>();
            self.groups.remove(position.group);
            self.firsts.remove(position.group);
            let group = position.group;
            return (group < self.groups.len()).then_some(Position { group, slot: 0 });
        }
        let before = slots.capacity();
        if before > slots.len() + 2 * GROUP_GROWTH {
            slots.shrink_to(slots.len().next_multiple_of(GROUP_GROWTH));
            self.memory_size -= (before - slots.capacity()) * size_of::<Slot>();
        }
        self.note_first(position.group);
        self.settle(position)
    }

    /// Removes the slot when its chunk is empty, joins it to the slot before when it is sparse;
    /// returns the position of the slot that follows.
    pub(super) fn tidy(&mut self, position: Position) -> Option<Position> {
        let chunk = self.chunk(position)?;
        if chunk.bytes().is_empty() {
            return self.remove(position);
        }
        if let Some(before) = self.previous(position)
            && self.is_sparse_pair(before, position)
        {
            let bytes = self.chunk(position)?.bytes().to_vec();
            let end = self.chunk(before)?.bytes().len();
            self.update(before, |chunk| chunk.replace(end..end, &bytes));
            return self.remove(position);
        }
        self.next(position)
    }

    /// Whether sizes (X3) and heads (X4) match the slots, and the chunks are sound.
    #[cfg(test)]
    pub(super) fn is_sound(&self) -> bool {
        let first = |group: &Vec<Slot>| group.first().map(|slot| key_head(slot.low.as_slice()));
        let packed = self.groups.iter().flatten().map(|slot| slot.chunk.bytes().len());
        self.memory_size == self.groups.iter().map(size_of_group).sum::<usize>()
            && self.packed_size == packed.sum::<usize>()
            && self.firsts.iter().copied().map(Some).eq(self.groups.iter().map(first))
            && self.groups.iter().flatten().all(|slot| slot.chunk.is_sound())
    }

    /// Whether the two chunks, joined, still leave room to grow.
    fn is_sparse_pair(&self, left: Position, right: Position) -> bool {
        let size = |position| self.chunk(position).map_or(CHUNK_SIZE_MAX, |it| it.bytes().len());
        size(left) + size(right) <= CHUNK_SIZE_MAX * 3 / 4
    }
}

fn push_slot(slots: &mut Vec<Slot>, at: usize, slot: Slot, memory_size: &mut usize) {
    if slots.len() == slots.capacity() {
        let before = slots.capacity();
        slots.reserve_exact(GROUP_GROWTH);
        *memory_size += (slots.capacity() - before) * size_of::<Slot>();
    }
    slots.insert(at, slot);
}

/// Shortest key above every key of the left chunk and at or below every key of the right one.
fn separator_between(pair: &[Chunk]) -> Vec<u8> {
    let [left, right] = pair else { return Vec::new() };
    let last = left.records().last().map_or(&[][..], |record| record.key);
    let first = right.records().next().map_or(&[][..], |record| record.key);
    separator(last, first).to_vec()
}

/// Shortest key above `last` and at or below `first`, which follows it.
pub(super) fn separator<'a>(last: &[u8], first: &'a [u8]) -> &'a [u8] {
    let common = last.iter().zip(first).take_while(|(left, right)| left == right).count();
    first.get(..=common).unwrap_or(first)
}
