//! Page numbers in order, with numbers that follow each other as one span.

use flagstone_space::LogicalPage;

use crate::engine::store::run::record::Input;

/// Bytes of a span in a record.
const SPAN_SIZE: usize = 8;

/// Pages that one list of a record may come to: damaged counts take no more memory.
const PAGES_MAX: usize = 1 << 24;

/// A list of pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageSpans {
    /// First page of each, and how many they are.
    spans: Vec<(LogicalPage, u32)>,
}

impl PageSpans {
    pub(crate) fn push(&mut self, page: LogicalPage) {
        self.push_span(page, 1);
    }

    /// Appends pages that follow each other.
    pub(super) fn push_span(&mut self, first: LogicalPage, count: u32) {
        match self.spans.last_mut() {
            _ if count == 0 => {}
            Some((last, known)) if last.0.checked_add(*known) == Some(first.0) => *known += count,
            _ => self.spans.push((first, count)),
        }
    }

    /// First page of each stretch of pages that follow each other, and how many they are.
    pub(in crate::engine) fn spans(&self) -> &[(LogicalPage, u32)] {
        &self.spans
    }

    pub(crate) fn len(&self) -> usize {
        self.spans.iter().map(|(_, count)| *count as usize).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = LogicalPage> + '_ {
        self.spans.iter().flat_map(|(first, count)| (0..*count).map(|it| LogicalPage(first.0 + it)))
    }

    pub(crate) fn contains(&self, page: LogicalPage) -> bool {
        let is_in = |(first, count): &(LogicalPage, u32)| {
            page.0.checked_sub(first.0).is_some_and(|distance| distance < *count)
        };
        self.spans.iter().any(is_in)
    }

    /// Bytes in a record: a count, then the spans.
    pub(crate) fn encoded_size(&self) -> usize {
        size_of::<u32>() + SPAN_SIZE * self.spans.len()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend((self.spans.len() as u32).to_le_bytes());
        for (first, count) in &self.spans {
            out.extend(first.0.to_le_bytes());
            out.extend(count.to_le_bytes());
        }
    }

    /// Reads a list from untrusted bytes.
    pub(crate) fn decode(input: &mut Input<'_>) -> Option<Self> {
        let mut list = Self::default();
        for _ in 0..input.u32()? {
            let (first, count) = (input.u32()?, input.u32()?);
            first.checked_add(count)?;
            list.spans.push((LogicalPage(first), count));
        }
        (list.len() <= PAGES_MAX).then_some(list)
    }
}

impl FromIterator<LogicalPage> for PageSpans {
    fn from_iter<I: IntoIterator<Item = LogicalPage>>(pages: I) -> Self {
        let mut list = Self::default();
        pages.into_iter().for_each(|page| list.push(page));
        list
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::Cursor;

    proptest! {
        #[test]
        fn a_list_is_what_was_pushed(numbers in prop::collection::vec(0_u32..20, 0..40)) {
            let pages: Vec<_> = numbers.iter().copied().map(LogicalPage).collect();
            let list: PageSpans = pages.iter().copied().collect();
            prop_assert_eq!(list.iter().collect::<Vec<_>>(), pages.clone());
            prop_assert_eq!(list.len(), pages.len());
            for page in (0..21).map(LogicalPage) {
                prop_assert_eq!(list.contains(page), pages.contains(&page));
            }
            let mut bytes = Vec::new();
            list.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), list.encoded_size());
            prop_assert_eq!(PageSpans::decode(&mut Input(Cursor::new(&bytes))), Some(list));
        }
    }

    #[test]
    fn neighbours_share_a_span() {
        let list: PageSpans = (7..1_000).map(LogicalPage).collect();
        assert_eq!(list.encoded_size(), 12);
    }

    /// Goal: damaged counts give nothing, and take no memory.
    #[test]
    fn spans_that_no_device_has_are_refused() {
        for span in [[u32::MAX, 1], [1, u32::MAX], [0, 1 << 25]] {
            let mut bytes = 1_u32.to_le_bytes().to_vec();
            span.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
            assert_eq!(PageSpans::decode(&mut Input(Cursor::new(&bytes))), None, "{span:?}");
        }
    }
}
