//! Byte changes of a page: the differences of two images, in few bytes.
//!
//! Owns the two byte forms of a change. Never knows the meaning of the bytes, nor their place on flash.
//!
//! B1. Applied to the old image, the changes give the new one, byte for byte.
//! B2. Bytes from flash that are no changes of such an image are refused; nothing panics.
//!
//! ```text
//! pairs    value 1, offset 2, once for each changed byte       (In-Place Appends, section 3)
//! runs     gap varint, length varint, bytes, once for each run of changed bytes
//! ```

use alloc::vec::Vec;
use core::ops::Range;

/// Bytes of a pair.
const PAIR_SIZE: usize = 3;

/// Equal bytes between two runs that cost less than a run of their own.
const GAP_MIN: usize = 2;

/// How changes are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeForm {
    /// New value and offset of each changed byte, at most so many of them in a record: the scheme of
    /// the paper. Only for pages of up to 65,536 bytes.
    Pairs {
        /// Changed bytes that a record may hold, M of the paper.
        bytes_max: u8,
    },
    /// Runs of changed bytes, as many as fit.
    Runs,
}

/// Ranges in which `new` differs from `old`, in ascending order. Past its end either reads as erased.
pub fn differences<'a>(old: &'a [u8], new: &'a [u8]) -> impl Iterator<Item = Range<usize>> + 'a {
    let byte = |image: &[u8], at: usize| image.get(at).copied().unwrap_or(0xFF);
    let end = old.len().max(new.len());
    let mut at = 0;
    core::iter::from_fn(move || {
        let is_changed = |at: &usize| byte(old, *at) != byte(new, *at);
        let start = (at..end).find(is_changed)?;
        let stop = (start..end).find(|at| !is_changed(at)).unwrap_or(end);
        at = stop;
        Some(start..stop)
    })
}

/// Bytes in which two images differ.
#[must_use]
pub fn changed_bytes(old: &[u8], new: &[u8]) -> usize {
    differences(old, new).map(|range| range.len()).sum()
}

/// Changes from `old` to `new` as at most `records_max` records of at most `size_max` bytes; none when
/// they do not fit. Without a difference there is no record.
#[must_use]
pub fn encode(
    old: &[u8],
    new: &[u8],
    form: ChangeForm,
    records_max: usize,
    size_max: usize,
) -> Option<Vec<Vec<u8>>> {
    encode_ranges(differences(old, new), new, form, records_max, size_max)
}

/// As [`encode`], for changes that are known: `changed` are ranges of `new` in ascending order.
#[must_use]
pub fn encode_ranges(
    changed: impl Iterator<Item = Range<usize>>,
    new: &[u8],
    form: ChangeForm,
    records_max: usize,
    size_max: usize,
) -> Option<Vec<Vec<u8>>> {
    let records = match form {
        ChangeForm::Pairs { bytes_max } => pairs(changed, new, usize::from(bytes_max), size_max)?,
        ChangeForm::Runs => runs(changed, new, records_max, size_max)?,
    };
    (records.len() <= records_max).then_some(records)
}

fn pairs(
    changed: impl Iterator<Item = Range<usize>>,
    new: &[u8],
    bytes_max: usize,
    size_max: usize,
) -> Option<Vec<Vec<u8>>> {
    let per_record = bytes_max.min(size_max / PAIR_SIZE);
    let mut records: Vec<Vec<u8>> = Vec::new();
    for at in changed.flatten() {
        let offset = u16::try_from(at).ok()?;
        if records.last().is_none_or(|last| last.len() >= per_record * PAIR_SIZE) {
            (per_record > 0).then_some(())?;
            records.push(Vec::new());
        }
        let record = records.last_mut()?;
        record.push(new.get(at).copied().unwrap_or(0xFF));
        record.extend_from_slice(&offset.to_le_bytes());
    }
    Some(records)
}

fn runs(
    changed: impl Iterator<Item = Range<usize>>,
    new: &[u8],
    records_max: usize,
    size_max: usize,
) -> Option<Vec<Vec<u8>>> {
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in changed {
        match merged.last_mut() {
            Some(last) if range.start - last.end <= GAP_MIN => last.end = range.end,
            _ => merged.push(range),
        }
    }
    let mut records = Vec::new();
    let (mut record, mut end) = (Vec::new(), 0);
    for mut range in merged {
        while !range.is_empty() {
            let gap = range.start - end;
            let head = varint_size(gap) + varint_size(range.len());
            let room = size_max.saturating_sub(record.len() + head);
            if room == 0 {
                // A record begins at the front of the page again.
                (!record.is_empty() && records.len() < records_max).then_some(())?;
                records.push(core::mem::take(&mut record));
                end = 0;
                continue;
            }
            let size = room.min(range.len());
            put_varint(&mut record, gap);
            put_varint(&mut record, size);
            let bytes = range.start..range.start + size;
            record.extend(bytes.map(|at| new.get(at).copied().unwrap_or(0xFF)));
            range.start += size;
            end = range.start;
        }
    }
    if !record.is_empty() {
        records.push(record);
    }
    Some(records)
}

/// Applies a record of changes in this form to `image`; whether it was one (B2).
#[must_use]
pub fn apply(image: &mut [u8], form: ChangeForm, record: &[u8]) -> bool {
    match form {
        ChangeForm::Pairs { .. } => apply_pairs(image, record),
        ChangeForm::Runs => apply_runs(image, record).is_some(),
    }
}

fn apply_pairs(image: &mut [u8], record: &[u8]) -> bool {
    let (pairs, rest) = record.as_chunks::<PAIR_SIZE>();
    let is_inside = |pair: &[u8; PAIR_SIZE]| usize::from(offset_of(pair)) < image.len();
    if !rest.is_empty() || !pairs.iter().all(is_inside) {
        return false;
    }
    for pair in pairs {
        image[usize::from(offset_of(pair))] = pair[0];
    }
    true
}

const fn offset_of(pair: &[u8; PAIR_SIZE]) -> u16 {
    u16::from_le_bytes([pair[1], pair[2]])
}

fn apply_runs(image: &mut [u8], mut record: &[u8]) -> Option<()> {
    let mut at = 0_usize;
    while !record.is_empty() {
        at = at.checked_add(take_varint(&mut record)?)?;
        let size = take_varint(&mut record)?;
        let bytes = record.get(..size)?;
        image.get_mut(at..at.checked_add(size)?)?.copy_from_slice(bytes);
        record = &record[size..];
        at += size;
    }
    Some(())
}

const fn varint_size(value: usize) -> usize {
    let bits = usize::BITS - value.leading_zeros();
    if bits == 0 { 1 } else { bits.div_ceil(7) as usize }
}

fn put_varint(target: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        target.push(value as u8 | 0x80);
        value >>= 7;
    }
    target.push(value as u8);
}

fn take_varint(source: &mut &[u8]) -> Option<usize> {
    let mut value = 0_usize;
    for shift in (0..28).step_by(7) {
        let (first, rest) = source.split_first()?;
        *source = rest;
        value |= usize::from(first & 0x7F) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    const PAIRS: ChangeForm = ChangeForm::Pairs { bytes_max: 4 };

    #[test]
    fn the_paper_s_scheme_counts_changed_bytes() {
        let old = vec![7; 100];
        let mut new = old.clone();
        for at in [3, 4, 5, 90, 91] {
            new[at] = 9;
        }
        let records = encode(&old, &new, PAIRS, 2, 64).unwrap();
        assert_eq!(records.iter().map(Vec::len).collect::<Vec<_>>(), [12, 3], "4 bytes and 1");
        assert_eq!(encode(&old, &new, PAIRS, 1, 64), None, "five bytes take two records");
        assert_eq!(encode(&old, &old, PAIRS, 0, 64), Some(Vec::new()));
        assert_eq!(changed_bytes(&old, &new), 5);
    }

    #[test]
    fn runs_need_fewer_bytes_than_pairs() {
        let old = vec![0; 4000];
        let mut new = old.clone();
        new[3000..3008].fill(1);
        new[3010] = 1;
        let record = encode(&old, &new, ChangeForm::Runs, 1, 500).unwrap().remove(0);
        assert_eq!(record.len(), 3 + 11, "one run over the two equal bytes");
        assert_eq!(encode(&old, &new, PAIRS, 3, 500).unwrap().concat().len(), 27);
    }

    proptest! {
        /// B1, for any images, form and room.
        #[test]
        fn changes_lead_from_the_old_image_to_the_new(
            old in prop::collection::vec(0_u8..3, 0..300),
            patches in prop::collection::vec((0_usize..300, 1_usize..40, 0_u8..3), 0..6),
            size_max in 0_usize..80,
            bytes_max in 0_u8..9,
        ) {
            let mut new = old.clone();
            for (at, size, value) in patches {
                let end = (at + size).min(new.len());
                if let Some(bytes) = new.get_mut(at..end) {
                    bytes.fill(value);
                }
            }
            for form in [ChangeForm::Pairs { bytes_max }, ChangeForm::Runs] {
                for records_max in 0..4 {
                    let Some(records) = encode(&old, &new, form, records_max, size_max) else {
                        continue;
                    };
                    prop_assert!(records.len() <= records_max);
                    prop_assert!(records.iter().all(|record| record.len() <= size_max));
                    let mut image = old.clone();
                    prop_assert!(records.iter().all(|record| apply(&mut image, form, record)));
                    prop_assert_eq!(&image, &new);
                }
            }
            let whole = encode(&old, &new, ChangeForm::Runs, 1, usize::MAX);
            prop_assert!(whole.is_some(), "with room enough there is a record");
        }

        /// B2.
        #[test]
        fn any_bytes_are_changes_or_refused(
            mut image in prop::collection::vec(any::<u8>(), 0..50),
            record in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            for form in [PAIRS, ChangeForm::Runs] {
                let _ = apply(&mut image, form, &record);
            }
        }
    }
}
