//! Values of a history: each carries its version, and every byte of it can be checked.
//!
//! ```text
//!  0  version        changed by a patch
//!  8  number         an amount, a count, elements of a list that are gone; changed by a patch
//! 16  body           version of the write that made the rest
//! 24  elements, size of the filler: 32 bits each
//! 32  elements of a list, 64 bits each
//!     filler         drawn from `body`
//! ```

use super::draw::mixed;
use super::record::{List, Version};

const HEAD_SIZE: usize = 32;

/// A value as a program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) version: Version,
    pub(crate) number: i64,
    pub(crate) body: Version,
    pub(crate) elements: Vec<Version>,
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
        let size = HEAD_SIZE + self.elements.len() * 8 + self.filler as usize;
        let mut bytes = Vec::with_capacity(size);
        bytes.extend_from_slice(&self.patched());
        bytes.extend_from_slice(&self.body.0.to_le_bytes());
        bytes.extend_from_slice(&(self.elements.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.filler.to_le_bytes());
        for element in &self.elements {
            bytes.extend_from_slice(&element.0.to_le_bytes());
        }
        fill(&mut bytes, self.body, self.filler as usize);
        bytes
    }

    /// The bytes at offset 0 that make another version of a value, and nothing else.
    pub(crate) fn patched(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.version.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// The value of these bytes; none where they are not what was written.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |offset: usize| -> Option<u64> {
            Some(u64::from_le_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
        };
        let sizes = word(24)?;
        let (count, filler) = (sizes as u32 as usize, (sizes >> 32) as u32);
        if bytes.len() != HEAD_SIZE + count.checked_mul(8)? + filler as usize {
            return None;
        }
        let elements =
            (0..count).map(|index| word(HEAD_SIZE + index * 8).map(Version)).collect::<Option<_>>();
        let value = Self {
            version: Version(word(0)?),
            number: word(8)? as i64,
            body: Version(word(16)?),
            elements: elements?,
            filler,
        };
        let mut expected = Vec::with_capacity(filler as usize);
        fill(&mut expected, value.body, filler as usize);
        (bytes[HEAD_SIZE + count * 8..] == expected).then_some(value)
    }
}

/// Appends `size` bytes that only `body` has.
fn fill(bytes: &mut Vec<u8>, body: Version, size: usize) {
    let end = bytes.len() + size;
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
    fn a_value_reads_back_and_one_wrong_byte_is_seen() {
        let version = TxnId::new(1, 2, 3).version(4);
        let list = List { before: 5, elements: vec![version, Version(9)] };
        let value = Value::list(version, &list, 100);
        let bytes = value.encode();
        assert_eq!(Value::decode(&bytes), Some(value));
        for index in 16..bytes.len() {
            let is_element = (32..48).contains(&index);
            let mut damaged = bytes.clone();
            damaged[index] ^= 1;
            assert_eq!(Value::decode(&damaged).is_some(), is_element, "byte {index}");
        }
    }
}
