//! How records name runs: a few bytes a page, since all names of unfinished work have to fit one record
//! of a checkpoint.
//!
//! ```text
//! run:   group u64 | last key | count | part ...        numbers are varints, keys have their size in front
//! part:  bytes of the first key that it shares with the part before | the rest of it | count | span ...
//! span:  pages between the end of the span before and its first page, zigzag | pages
//! ```

use flagstone_space::{GroupId, LogicalPage};

use crate::engine::store::run::record::Input;
use crate::engine::store::run::{Run, RunPart};
use crate::engine::store::spans::PageSpans;
use crate::log::put_varint;

/// Pages that one run may come to: damaged counts take no more memory.
const PAGES_MAX: u64 = 1 << 24;

/// Bytes that first keys of one run may come to: each may share all of the one before.
const KEY_BYTES_MAX: usize = 16 << 20;

/// Where a name goes.
trait Sink {
    fn number(&mut self, number: u64);
    fn bytes(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn number(&mut self, number: u64) {
        put_varint(self, number);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Counts bytes.
#[derive(Default)]
struct Size(usize);

impl Sink for Size {
    fn number(&mut self, number: u64) {
        self.0 += (u64::BITS - (number | 1).leading_zeros()).div_ceil(7) as usize;
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

impl Run {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.name(out);
    }

    /// Bytes of its name.
    pub(crate) fn encoded_size(&self) -> usize {
        let mut size = Size::default();
        self.name(&mut size);
        size.0
    }

    fn name(&self, out: &mut impl Sink) {
        out.bytes(&self.group.0.to_le_bytes());
        put_key(out, &self.last);
        out.number(self.parts.len() as u64);
        let (mut before, mut next): (&[u8], _) = (&[], 0);
        for part in &self.parts {
            let shared = before.iter().zip(&part.first).take_while(|(one, other)| one == other);
            let shared = shared.count();
            out.number(shared as u64);
            put_key(out, &part.first[shared..]);
            before = &part.first;
            out.number(part.pages.spans().len() as u64);
            for (first, count) in part.pages.spans() {
                out.number(zigzag(i64::from(first.0) - next));
                out.number(u64::from(*count));
                next = i64::from(first.0) + i64::from(*count);
            }
        }
    }

    /// Reads a name from untrusted bytes.
    pub(crate) fn decode(input: &mut Input<'_>) -> Option<Self> {
        let group = GroupId(input.u64()?);
        let last = input.key()?.to_vec();
        let mut parts: Vec<RunPart> = Vec::new();
        let (mut next, mut page_count) = (0_i64, 0_u64);
        let mut key_bytes = 0;
        for _ in 0..input.number()? {
            let before = parts.last().map_or(&[][..], |part| &part.first);
            let shared = before.get(..usize::try_from(input.number()?).ok()?)?;
            let rest = input.key()?;
            key_bytes += shared.len() + rest.len();
            if key_bytes > KEY_BYTES_MAX {
                return None;
            }
            let first = [shared, rest].concat();
            if first.len() < size_of::<u32>() || first.as_slice() <= before {
                return None;
            }
            let mut pages = PageSpans::default();
            for _ in 0..input.number()? {
                let begin = next.checked_add(unzigzag(input.number()?))?;
                let count = input.number()?;
                page_count = count.checked_add(page_count).filter(|all| *all <= PAGES_MAX)?;
                next = begin.checked_add_unsigned(count)?;
                let (begin, _) = (u32::try_from(begin).ok()?, u32::try_from(next).ok()?);
                pages.push_span(LogicalPage(begin), count as u32);
            }
            if pages.len() == 0 {
                return None;
            }
            parts.push(RunPart { first, pages });
        }
        let is_sound = parts.last().is_none_or(|part| part.first <= last);
        is_sound.then_some(Self { group, parts, last })
    }
}

fn put_key(out: &mut impl Sink, key: &[u8]) {
    out.number(key.len() as u64);
    out.bytes(key);
}

fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::Cursor;

    /// Parts as runs have them: keys in order, with pages.
    fn parts() -> impl Strategy<Value = Vec<RunPart>> {
        any_parts().prop_map(|mut parts| {
            parts.iter_mut().for_each(|part| part.first.splice(..0, [0; 4]).for_each(drop));
            parts.sort_by(|one, other| one.first.cmp(&other.first));
            parts.dedup_by(|one, other| one.first == other.first);
            parts
        })
    }

    fn any_parts() -> impl Strategy<Value = Vec<RunPart>> {
        let pages = proptest::collection::vec(any::<u32>().prop_map(|page| page >> 1), 1..4);
        let key = proptest::collection::vec(0_u8..3, 0..6);
        let part = (key, pages).prop_map(|(first, pages)| RunPart {
            first,
            pages: pages.into_iter().map(LogicalPage).collect(),
        });
        proptest::collection::vec(part, 0..6)
    }

    proptest! {
        /// Goal (rule D7): the bound of a record is the size of its names, and a name is read as it was
        /// written.
        #[test]
        fn names_are_read_as_they_were(parts in parts(), group: u64, last: [u8; 5]) {
            let run = Run { group: GroupId(group), parts, last: [&[1][..], &last].concat() };
            let mut bytes = Vec::new();
            run.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), run.encoded_size());
            prop_assert_eq!(Run::decode(&mut Input(Cursor::new(&bytes))), Some(run));
        }

        /// Goal (D5): a name whose parts are in no order, or have no pages, is damage. Method: any parts.
        #[test]
        fn parts_out_of_order_are_refused(parts in any_parts()) {
            let run = Run { group: GroupId(1), parts, last: vec![9; 9] };
            let mut bytes = Vec::new();
            run.encode(&mut bytes);
            let is_whole = run.parts.iter().all(|part| part.first.len() >= 4);
            let is_sorted = run.parts.is_sorted_by(|one, other| one.first < other.first);
            let found = Run::decode(&mut Input(Cursor::new(&bytes)));
            prop_assert_eq!(found.is_some(), is_whole && is_sorted);
        }

        /// Goal (D5): damage is no panic, and takes no memory that it names.
        #[test]
        fn damaged_names_are_refused_or_read(bytes: Vec<u8>) {
            if let Some(run) = Run::decode(&mut Input(Cursor::new(&bytes))) {
                prop_assert!(run.page_count() as u64 <= PAGES_MAX);
            }
        }
    }

    /// Goal: a run of a bulk commit takes few bytes of the record for each of its pages.
    #[test]
    fn pages_that_follow_each_other_are_named_in_few_bytes() {
        let part = |number: u8| RunPart {
            first: vec![0, 0, 0, 1, number * 9, 7],
            pages: PageSpans::from_iter([LogicalPage(70_000 + u32::from(number))]),
        };
        let run = Run { group: GroupId(1), parts: (0..27).map(part).collect(), last: vec![0; 20] };
        assert!(run.encoded_size() <= 40 + 27 * 8, "{} bytes", run.encoded_size());
    }
}
