//! Pages of a run, built from a transaction's changes.

use flagstone_space::{GroupId, LogicalPage, Lsn};

use crate::delta::{DeltaMap, KeyRange, Op, put_varint};
use crate::engine::store::run::record::MasterRun;
use crate::engine::store::run::{RUN_MAGIC, RUN_VERSION, Run};

/// A change to a private key: the key, its number in the transaction, and the operation.
type Version<'a> = (&'a [u8], Lsn, Op<'a>);

/// Fills one page of `size` bytes with the first of `versions`; returns the image and the number of
/// versions in it.
///
/// The versions of one key stay on one page, unless a page is too small for them: then they begin a
/// page, and the pages that follow begin with the same key (R5).
fn build_page(versions: &[Version<'_>], size: usize) -> (Vec<u8>, usize) {
    let mut image = vec![RUN_MAGIC, RUN_VERSION, 0, 0];
    let mut count = 0;
    for of_key in versions.chunk_by(|one, other| one.0 == other.0) {
        let (begin, mut end) = (image.len(), count);
        for version in of_key {
            let entry_begin = image.len();
            put_entry(&mut image, version);
            if image.len() > size || end == usize::from(u16::MAX) {
                image.truncate(entry_begin);
                break;
            }
            end += 1;
        }
        let is_cut = end < count + of_key.len();
        if is_cut && count > 0 {
            image.truncate(begin);
            break;
        }
        count = end;
        if is_cut {
            break;
        }
    }
    image[2..4].copy_from_slice(&(count as u16).to_le_bytes());
    image.resize(size, 0);
    (image, count)
}

/// A page of changes, not written yet.
#[derive(Debug)]
pub(in crate::engine) struct BuiltPage {
    /// The prefix of its first key that tells it from the keys before.
    pub(in crate::engine) first: Vec<u8>,
    /// Whether it begins with the key that the page before ended with.
    pub(in crate::engine) goes_on: bool,
    pub(in crate::engine) image: Vec<u8>,
}

/// Some pages' worth of a transaction's changes.
pub(in crate::engine) struct BuiltPages {
    pub(in crate::engine) pages: Vec<BuiltPage>,
    pub(in crate::engine) last: Vec<u8>,
    /// First key behind these pages that stays in memory.
    pub(in crate::engine) rest: Option<Vec<u8>>,
}

impl BuiltPages {
    /// Bytes that name these pages in a record, at most, in parts of so many pages and with so many
    /// ranges rolled back.
    pub(in crate::engine) fn named_size(&self, part_pages: usize, rolled_back: usize) -> usize {
        // Numbers far from each other take most.
        let far = [0, u32::MAX - 1].map(LogicalPage).into_iter().cycle();
        MasterRun::size_of(&Run::of(GroupId::NONE, self, far, part_pages), rolled_back)
    }
}

/// Fills `page_count` pages with changes of keys from `from` on, and as many more as the last key
/// needs.
pub(in crate::engine) fn build_pages(
    writes: &DeltaMap,
    from: &[u8],
    page_count: usize,
    size: usize,
) -> Option<BuiltPages> {
    let versions = first_versions(writes, from, page_count * size);
    let mut pages = Vec::new();
    let mut count = 0;
    let goes_on = |count: usize| count > 0 && versions[count - 1].0 == versions[count].0;
    while count < versions.len() && (pages.len() < page_count || goes_on(count)) {
        let (image, taken) = build_page(&versions[count..], size);
        let before = count.checked_sub(1).map(|before| versions[before].0);
        let first = beginning(before, versions[count].0).to_vec();
        pages.push(BuiltPage { first, goes_on: goes_on(count), image });
        count += taken;
    }
    let last = versions[..count].last()?.0.to_vec();
    let rest = versions.get(count).map(|(key, ..)| key.to_vec());
    Some(BuiltPages { pages, last, rest })
}

/// The prefix of a private key that tells it from the one before; at least its tree.
fn beginning<'a>(before: Option<&[u8]>, key: &'a [u8]) -> &'a [u8] {
    let Some(before) = before else { return key };
    let shared = before.iter().zip(key).take_while(|(one, other)| one == other).count();
    key.get(..(shared + 1).max(size_of::<u32>())).unwrap_or(key)
}

/// The versions of the first keys from `from` on that together take more than `bytes`, and of one key
/// beyond; all of them where they take less.
fn first_versions<'a>(writes: &'a DeltaMap, from: &'a [u8], bytes: usize) -> Vec<Version<'a>> {
    let mut versions = Vec::new();
    let mut taken = 0;
    for entry in writes.range(KeyRange { low: from, high: None }) {
        let is_enough = taken > bytes;
        for (number, op) in entry.versions() {
            taken += entry.key().len() + op.encoded_size();
            versions.push((entry.key(), number, op));
        }
        if is_enough {
            break;
        }
    }
    versions
}

fn put_entry(image: &mut Vec<u8>, (key, number, op): &Version<'_>) {
    put_varint(image, key.len() as u32);
    image.extend_from_slice(key);
    put_varint(image, number.0 as u32);
    put_varint(image, op.encoded_size() as u32);
    op.encode(image);
}
