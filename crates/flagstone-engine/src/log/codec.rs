//! Encoding of numbers, byte strings and lists in records.

use std::marker::PhantomData;

/// The check that refused the bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFault {
    /// The bytes end before the record does.
    #[error("it is cut short")]
    Truncated,
    /// A number is longer than its type.
    #[error("a number is out of range")]
    NumberRange,
    /// No record has this kind.
    #[error("kind {0} is unknown")]
    UnknownKind(u8),
    /// Bytes are left after the record.
    #[error("bytes follow its end")]
    TrailingBytes,
}

/// Appends a number, seven bits a byte, low bits first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a byte string after its length.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads untrusted bytes from front to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// A cursor before the first of `bytes`.
    #[must_use]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The unread bytes.
    #[must_use]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything has been read.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// One byte.
    ///
    /// # Errors
    ///
    /// `Truncated` at the end.
    pub(crate) fn byte(&mut self) -> Result<u8, RecordFault> {
        let (byte, rest) = self.rest.split_first().ok_or(RecordFault::Truncated)?;
        self.rest = rest;
        Ok(*byte)
    }

    /// A number of up to 64 bits.
    ///
    /// # Errors
    ///
    /// `Truncated`, or `NumberRange` when it has more bits.
    pub(crate) fn varint(&mut self) -> Result<u64, RecordFault> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits {
                return Err(RecordFault::NumberRange);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(RecordFault::NumberRange)
    }

    /// A number of up to 32 bits.
    ///
    /// # Errors
    ///
    /// `Truncated`, or `NumberRange` when it has more bits.
    pub(crate) fn varint32(&mut self) -> Result<u32, RecordFault> {
        self.varint()?.try_into().map_err(|_| RecordFault::NumberRange)
    }

    /// The next `size` bytes.
    ///
    /// # Errors
    ///
    /// `Truncated` when there are fewer.
    pub(crate) fn take(&mut self, size: u64) -> Result<&'a [u8], RecordFault> {
        let size = usize::try_from(size).map_err(|_| RecordFault::Truncated)?;
        let (taken, rest) = self.rest.split_at_checked(size).ok_or(RecordFault::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// All unread bytes.
    pub(crate) fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// A byte string behind its length.
    ///
    /// # Errors
    ///
    /// `Truncated` or `NumberRange`.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], RecordFault> {
        let size = self.varint()?;
        self.take(size)
    }
}

/// An element of a list in a record.
pub(crate) trait Item<'a>: Sized {
    /// Appends the element.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads the element.
    ///
    /// # Errors
    ///
    /// Says which check fired.
    fn decode(input: &mut Cursor<'a>) -> Result<Self, RecordFault>;
}

/// An encoded list: walked without copying, decoded as it is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Items<'a, T> {
    count: u64,
    bytes: &'a [u8],
    marker: PhantomData<T>,
}

impl<T> Default for Items<'_, T> {
    fn default() -> Self {
        Self { count: 0, bytes: &[], marker: PhantomData }
    }
}

impl<'a, T: Item<'a>> Items<'a, T> {
    /// Whether there are no elements.
    #[must_use]
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Walks the elements; ends after the first fault.
    #[must_use]
    pub(crate) fn iter(&self) -> ItemsIter<'a, T> {
        ItemsIter { cursor: Cursor::new(self.bytes), marker: PhantomData }
    }

    /// Appends the list in a form that more fields can follow.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.count);
        if self.count > 0 {
            put_bytes(out, self.bytes);
        }
    }

    /// Appends the list as the last part of a record.
    pub(super) fn put_last(&self, out: &mut Vec<u8>) {
        put_varint(out, self.count);
        out.extend_from_slice(self.bytes);
    }

    /// Reads a list that more fields follow.
    pub(super) fn take(input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        let count = input.varint()?;
        let bytes = if count > 0 { input.bytes()? } else { &[] };
        Ok(Self { count, bytes, marker: PhantomData })
    }

    /// Reads the list that ends a record.
    pub(super) fn take_last(input: &mut Cursor<'a>) -> Result<Self, RecordFault> {
        let count = input.varint()?;
        let bytes = input.take(input.rest().len() as u64)?;
        Ok(Self { count, bytes, marker: PhantomData })
    }
}

impl<'a, T: Item<'a>> IntoIterator for Items<'a, T> {
    type Item = Result<T, RecordFault>;
    type IntoIter = ItemsIter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Walks an encoded list.
#[derive(Clone, Debug)]
pub(crate) struct ItemsIter<'a, T> {
    cursor: Cursor<'a>,
    marker: PhantomData<T>,
}

impl<'a, T: Item<'a>> Iterator for ItemsIter<'a, T> {
    type Item = Result<T, RecordFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.cursor.is_empty() {
            return None;
        }
        let before = self.cursor.rest().len();
        let item = T::decode(&mut self.cursor);
        if item.is_err() || self.cursor.rest().len() == before {
            self.cursor = Cursor::new(&[]);
        }
        Some(item)
    }
}

/// A list under construction: encoded as it grows.
///
/// All elements of one list have one type, the one that [`ItemBuf::items`] names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ItemBuf {
    count: u64,
    bytes: Vec<u8>,
}

impl ItemBuf {
    /// A list without elements or memory.
    pub(crate) const EMPTY: Self = Self { count: 0, bytes: Vec::new() };

    /// Appends an element.
    pub(crate) fn push<'a, T: Item<'a>>(&mut self, item: T) {
        item.encode(&mut self.bytes);
        self.count += 1;
    }

    /// The list, to put into a record.
    #[must_use]
    pub(crate) fn items<'a, T: Item<'a>>(&'a self) -> Items<'a, T> {
        Items { count: self.count, bytes: &self.bytes, marker: PhantomData }
    }
}
