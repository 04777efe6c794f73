//! The mapping from logical pages to units, in memory, four bytes a page.
//!
//! Owns which numbers are taken and which mapping pages changed since the last checkpoint. Never
//! reads a device and never decides which version wins.
//!
//! P1. A mapped number is taken; a taken number need not be mapped (it is reserved). P2. A page
//! whose version damage took stays taken and known as lost, across checkpoints, until it is written
//! again or forgotten: it is never taken for an unwritten page. P3. A mapping page is dirty when
//! one of its entries differs from its copy on flash. P4. The upper bits of an entry count the
//! appends of its unit that are complete.

use alloc::vec;
use alloc::vec::Vec;

use crate::LogicalPage;

/// Entry of a logical page without a version.
pub(crate) const UNMAPPED: u32 = u32::MAX;

/// Entry of a logical page that had a version which a mount did not find any more (P2).
pub(crate) const LOST: u32 = u32::MAX - 1;

/// Bits of an entry that tell the unit, where the others count its appends.
const UNIT_BITS: u32 = 29;

/// Whether a mapping of units below `page_count` has room to count appends.
pub(crate) const fn counts_appends(page_count: u32) -> bool {
    page_count < (1 << UNIT_BITS) - 1
}

const fn is_unit(entry: u32) -> bool {
    entry < LOST
}

/// One bit a thing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    /// Room for `count` things; new ones have clear bits.
    pub(crate) fn extend(&mut self, count: usize) {
        self.0.resize(count.div_ceil(64).max(self.0.len()), 0);
    }

    pub(crate) fn get(&self, index: u32) -> bool {
        self.0.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Whether all bits are clear.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Sets the bit; whether it was clear.
    pub(crate) fn insert(&mut self, index: u32) -> bool {
        let word = &mut self.0[index as usize / 64];
        let was = *word >> (index % 64) & 1;
        *word |= 1 << (index % 64);
        was == 0
    }

    /// Clears the bit; whether it was set.
    pub(crate) fn remove(&mut self, index: u32) -> bool {
        let word = &mut self.0[index as usize / 64];
        let was = *word >> (index % 64) & 1;
        *word &= !(1 << (index % 64));
        was == 1
    }

    /// Sets the bit to `value`, if there is one.
    pub(crate) fn put(&mut self, index: u32, value: bool) {
        if let Some(word) = self.0.get_mut(index as usize / 64) {
            *word = *word & !(1 << (index % 64)) | u64::from(value) << (index % 64);
        }
    }

    /// First clear bit at or after `from`, below `end`.
    fn first_clear(&self, from: u32, end: u32) -> Option<u32> {
        let mut index = from;
        while index < end {
            let free = !self.0[index as usize / 64] >> (index % 64);
            if free != 0 {
                let found = index + free.trailing_zeros();
                return (found < end).then_some(found);
            }
            index = (index / 64 + 1) * 64;
        }
        None
    }

    pub(crate) fn size(&self) -> usize {
        self.0.len() * 8
    }
}

/// The mapping.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    entries: Vec<u32>,
    taken: Bits,
    taken_count: u32,
    mapped_count: u32,
    hint: u32,
    dirty: Bits,
    entries_per_page: u32,
    /// Bits of an entry that tell the unit (P4).
    unit_mask: u32,
}

impl Mapping {
    /// A mapping with nothing in it, to units below `page_count`.
    pub(crate) fn new(logical_pages: u32, entries_per_page: u32, page_count: u32) -> Self {
        let pages = logical_pages.div_ceil(entries_per_page);
        Self {
            entries: vec![UNMAPPED; logical_pages as usize],
            taken: Bits::new(logical_pages as usize),
            taken_count: 0,
            mapped_count: 0,
            hint: 0,
            dirty: Bits::new(pages as usize),
            entries_per_page,
            unit_mask: if counts_appends(page_count) { (1 << UNIT_BITS) - 1 } else { u32::MAX },
        }
    }

    /// Numbers below `logical_pages` exist from now on.
    pub(crate) fn extend(&mut self, logical_pages: u32) {
        let count = (logical_pages as usize).max(self.entries.len());
        self.entries.resize(count, UNMAPPED);
        self.taken.extend(count);
        self.dirty.extend(count.div_ceil(self.entries_per_page as usize));
    }

    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// First page of the unit that holds the newest valid version.
    pub(crate) fn get(&self, page: LogicalPage) -> Option<u32> {
        let entry = self.entries.get(page.0 as usize).copied().filter(|entry| is_unit(*entry))?;
        Some(entry & self.unit_mask)
    }

    /// Appends of the page's unit that are complete (P4).
    pub(crate) fn appends(&self, page: LogicalPage) -> u8 {
        let entry = self.entries.get(page.0 as usize).copied().filter(|entry| is_unit(*entry));
        entry.map_or(0, |entry| ((entry & !self.unit_mask) >> UNIT_BITS) as u8)
    }

    /// The page's unit has taken `count` more.
    pub(crate) fn append(&mut self, page: LogicalPage, count: u8) {
        debug_assert!(self.get(page).is_some() && self.appends(page) + count <= 7, "it has room");
        if let Some(entry) = self.entries.get_mut(page.0 as usize) {
            *entry += u32::from(count) << UNIT_BITS;
            self.dirty.insert(page.0 / self.entries_per_page);
        }
    }

    /// No unit has taken any.
    pub(crate) fn forget_appends(&mut self) {
        for entry in self.entries.iter_mut().filter(|entry| is_unit(**entry)) {
            *entry &= self.unit_mask;
        }
    }

    /// Whether the page had a version that is gone (P2).
    pub(crate) fn is_lost(&self, page: LogicalPage) -> bool {
        self.entries.get(page.0 as usize) == Some(&LOST)
    }

    /// Takes note that the version of an unmapped page is gone (P2).
    pub(crate) fn lose(&mut self, page: LogicalPage) {
        debug_assert!(self.get(page).is_none(), "a version that is found is not lost");
        self.reserve(page);
        if let Some(entry) = self.entries.get_mut(page.0 as usize) {
            *entry = LOST;
            self.dirty.insert(page.0 / self.entries_per_page);
        }
    }

    /// Moves the entry and returns the unit it pointed to.
    pub(crate) fn set(&mut self, page: LogicalPage, at: u32) -> Option<u32> {
        debug_assert!(is_unit(at), "clear() forgets a page");
        let old = core::mem::replace(&mut self.entries[page.0 as usize], at);
        self.dirty.insert(page.0 / self.entries_per_page);
        if self.taken.insert(page.0) {
            self.taken_count += 1;
        }
        if !is_unit(old) {
            self.mapped_count += 1;
            return None;
        }
        Some(old & self.unit_mask)
    }

    /// Forgets the entry and frees the number.
    pub(crate) fn clear(&mut self, page: LogicalPage) -> Option<u32> {
        let old = core::mem::replace(&mut self.entries[page.0 as usize], UNMAPPED);
        if self.taken.remove(page.0) {
            self.taken_count -= 1;
        }
        if old == UNMAPPED {
            return None;
        }
        self.dirty.insert(page.0 / self.entries_per_page);
        if old == LOST {
            return None;
        }
        self.mapped_count -= 1;
        Some(old & self.unit_mask)
    }

    /// Takes a number that is not taken.
    pub(crate) fn allocate(&mut self) -> Option<LogicalPage> {
        let end = self.len();
        let found = self.taken.first_clear(self.hint, end);
        let found = found.or_else(|| self.taken.first_clear(0, self.hint))?;
        self.hint = found + 1;
        self.reserve(LogicalPage(found));
        Some(LogicalPage(found))
    }

    /// Takes the number; whether it was free.
    pub(crate) fn reserve(&mut self, page: LogicalPage) -> bool {
        let free = page.0 < self.len() && self.taken.insert(page.0);
        self.taken_count += u32::from(free);
        free
    }

    /// Frees a number that is taken but not mapped.
    pub(crate) fn release(&mut self, page: LogicalPage) {
        let is_unused = self.entries.get(page.0 as usize) == Some(&UNMAPPED);
        if is_unused && self.taken.remove(page.0) {
            self.taken_count -= 1;
        }
    }

    pub(crate) fn taken_count(&self) -> u32 {
        self.taken_count
    }

    pub(crate) fn mapped_count(&self) -> u32 {
        self.mapped_count
    }

    /// Every mapped page with its unit, in order of numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LogicalPage, u32)> + '_ {
        let mapped = self.entries.iter().enumerate().filter(|(_, entry)| is_unit(**entry));
        mapped.map(|(page, entry)| (LogicalPage(page as u32), *entry & self.unit_mask))
    }

    pub(crate) fn is_dirty(&self, map_page: u32) -> bool {
        self.dirty.get(map_page)
    }

    /// Whether the copy on flash has every entry.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    pub(crate) fn mark_dirty(&mut self, map_page: u32) {
        self.dirty.insert(map_page);
    }

    /// Every mapping page with an entry is to be written.
    pub(crate) fn mark_used_dirty(&mut self) {
        for page in 0..self.len().div_ceil(self.entries_per_page) {
            let first = (page * self.entries_per_page) as usize;
            let last = (first + self.entries_per_page as usize).min(self.entries.len());
            self.dirty.put(page, self.entries[first..last].iter().any(|entry| *entry != UNMAPPED));
        }
    }

    pub(crate) fn mark_clean(&mut self, map_page: u32) {
        self.dirty.remove(map_page);
    }

    /// Byte form of one mapping page.
    pub(crate) fn encode(&self, map_page: u32, target: &mut Vec<u8>) {
        target.clear();
        let first = (map_page * self.entries_per_page) as usize;
        let last = (first + self.entries_per_page as usize).min(self.entries.len());
        for entry in &self.entries[first..last] {
            target.extend_from_slice(&entry.to_le_bytes());
        }
    }

    /// Loads the entries of one mapping page from flash that `accept` lets in; returns the other
    /// pages.
    pub(crate) fn load(
        &mut self,
        map_page: u32,
        bytes: &[u8],
        accept: impl Fn(u32) -> bool,
    ) -> Vec<LogicalPage> {
        let mut refused = Vec::new();
        let first = map_page * self.entries_per_page;
        for (index, entry) in bytes.chunks_exact(4).take(self.entries_per_page as usize).enumerate()
        {
            let page = first + index as u32;
            let entry = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
            if page >= self.len() || entry == UNMAPPED {
                continue;
            }
            let page = LogicalPage(page);
            match entry {
                LOST => self.lose(page),
                entry if accept(entry & self.unit_mask) => drop(self.set(page, entry)),
                _ => refused.push(page),
            }
        }
        self.mark_clean(map_page);
        refused
    }

    /// Bytes of memory.
    pub(crate) fn size(&self) -> usize {
        self.entries.len() * 4 + self.taken.size() + self.dirty.size()
    }
}
