//! Values of a history: each carries its version, and every byte of it can be checked.
//!
//! ```text
//!  0  version        changed by a patch
//!  8  number         an amount, a count, elements of a list that are gone; changed by a patch
//! 16  body           version of the write that made the rest, as the newest patch knew it
//! 24  body           the same, as that write left it
//! 32  elements, size of the filler: 32 bits each
//! 40  elements of a list, 64 bits each
//!     filler         drawn from `body`, or the same byte again and again
//! ```
//!
//! So a patch over a value that it was not made for differs from every value that was written.

use super::draw::mixed;
use super::record::{List, Version};

const HEAD_SIZE: usize = 40;

/// Bit of a filler's size: the filler repeats one byte, so that values differ in their heads alone.
pub(crate) const EVEN: u32 = 1 << 31;

const fn size_of_filler(filler: u32) -> usize {
    (filler & !EVEN) as usize
}

/// A value as a program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) version: Version,
    pub(crate) number: i64,
    pub(crate) body: Version,
    pub(crate) elements: Vec<Version>,
    /// Size of the filler, and whether it is [`EVEN`].
    pub(crate) filler: u32,
}

impl Value {
    pub(crate) fn plain(version: Version, number: i64, filler: u32) -> Self {
        Self { version, number, body: version, elements: Vec::new(), filler }
    }

    pub(crate) fn list(version: Version, list: &List, filler: u32) -> Self {
        let elements = list.elements.clone();
        Self { version, number: list.before as i64, body: version, elements, filler }
    }

    pub(crate) fn to_list(&self) -> List {
        List { before: self.number as u64, elements: self.elements.clone() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let size = HEAD_SIZE + self.elements.len() * 8 + size_of_filler(self.filler);
        let mut bytes = Vec::with_capacity(size);
        bytes.extend_from_slice(&self.patched());
        bytes.extend_from_slice(&self.body.0.to_le_bytes());
        bytes.extend_from_slice(&(self.elements.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.filler.to_le_bytes());
        for element in &self.elements {
            bytes.extend_from_slice(&element.0.to_le_bytes());
        }
        fill(&mut bytes, self.body, self.filler);
        bytes
    }

    /// The bytes at offset 0 that make another version of a value, and nothing else.
    pub(crate) fn patched(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.version.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..].copy_from_slice(&self.body.0.to_le_bytes());
        bytes
    }

    /// The version that these bytes name.
    pub(crate) fn version_of(bytes: &[u8]) -> Option<Version> {
        Some(Version(u64::from_le_bytes(*bytes.first_chunk()?)))
    }

    /// The value of these bytes; none where no write made them.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |offset: usize| -> Option<u64> {
            Some(u64::from_le_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
        };
        let sizes = word(32)?;
        let (count, filler) = (sizes as u32 as usize, (sizes >> 32) as u32);
        if bytes.len() != HEAD_SIZE + count.checked_mul(8)? + size_of_filler(filler) {
            return None;
        }
        let elements =
            (0..count).map(|index| word(HEAD_SIZE + index * 8).map(Version)).collect::<Option<_>>();
        let value = Self {
            version: Version(word(0)?),
            number: word(8)? as i64,
            body: Version(word(24)?),
            elements: elements?,
            filler,
        };
        if word(16)? != value.body.0 {
            return None;
        }
        let mut expected = Vec::with_capacity(size_of_filler(filler));
        fill(&mut expected, value.body, filler);
        (bytes[HEAD_SIZE + count * 8..] == expected).then_some(value)
    }
}

/// Appends a filler: bytes that only `body` has, unless it is even.
fn fill(bytes: &mut Vec<u8>, body: Version, filler: u32) {
    let end = bytes.len() + size_of_filler(filler);
    if filler & EVEN != 0 {
        bytes.resize(end, 0x5A);
        return;
    }
    let mut counter = body.0;
    while bytes.len() < end {
        counter = counter.wrapping_add(1 << 40);
        let word = mixed(counter).to_le_bytes();
        let left = (end - bytes.len()).min(8);
        bytes.extend_from_slice(&word[..left]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::TxnId;
    use super::*;

    #[test]
    fn a_patch_over_another_value_is_seen() {
        let id = TxnId::new(1, 2, 3);
        let value = Value::plain(id.version(1), 0, 50);
        let patched = Value { version: id.version(2), number: 7, ..value.clone() };
        let mut bytes = value.encode();
        bytes[..24].copy_from_slice(&patched.patched());
        assert_eq!(Value::decode(&bytes), Some(patched.clone()));
        let mut other = Value::plain(id.version(3), 0, 50).encode();
        other[..24].copy_from_slice(&patched.patched());
        assert_eq!(Value::decode(&other), None);
    }

    #[test]
    fn a_value_reads_back_and_one_wrong_byte_is_seen() {
        let version = TxnId::new(1, 2, 3).version(4);
        let list = List { before: 5, elements: vec![version, Version(9)] };
        for filler in [100, 100 | EVEN] {
            let value = Value::list(version, &list, filler);
            let bytes = value.encode();
            assert_eq!(Value::decode(&bytes), Some(value));
            for index in 16..bytes.len() {
                let is_element = (40..56).contains(&index);
                let mut damaged = bytes.clone();
                damaged[index] ^= 1;
                assert_eq!(Value::decode(&damaged).is_some(), is_element, "byte {index}");
            }
        }
    }
}
