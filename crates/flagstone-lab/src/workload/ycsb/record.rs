//! Records: their keys and fields (rule Y2).

use crate::workload::{Draws, scramble};

/// Fields of a record.
pub const FIELD_COUNT: usize = 10;
/// Bytes of a field.
pub const FIELD_SIZE: usize = 100;
/// Bytes of all fields.
pub(super) const VALUE_SIZE: usize = FIELD_COUNT * FIELD_SIZE;

/// Bytes at the start of a field that name record, client and request.
const TAG_SIZE: usize = 24;

/// Bits that the numbers of a client's records take.
const CLIENT_SHIFT: u32 = 40;

/// A record's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Record(pub(super) u64);

/// Writer of a field: the client, counted from 1, and its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writer {
    pub(super) client: u64,
    pub(super) request: u64,
}

impl Writer {
    /// The load.
    pub(super) const LOAD: Self = Self { client: 0, request: 0 };
    /// No writer: the record is not there.
    pub(super) const NOBODY: Self = Self { client: 0, request: u64::MAX };
}

impl Record {
    /// Record `index` of the load.
    pub(super) fn loaded(index: u32) -> Self {
        Self(u64::from(index))
    }

    /// Record `index` among the inserts of client `number`.
    pub(super) const fn inserted(number: u64, index: u64) -> Self {
        Self((number + 1) << CLIENT_SHIFT | index)
    }

    /// Whether a client inserted it.
    pub(super) const fn is_inserted(self) -> bool {
        self.0 >> CLIENT_SHIFT > 0
    }

    /// Its key: hashed, so that neighbours in number are none in the table.
    pub(super) fn key(self) -> String {
        format!("user{}", fnv(self.0))
    }

    /// Content that `writer` puts into field `field`.
    pub(super) fn field(self, field: usize, writer: Writer) -> [u8; FIELD_SIZE] {
        let mut bytes = [0; FIELD_SIZE];
        let words = [self.0, writer.client, writer.request];
        for (place, word) in bytes.chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        let mut draws =
            Draws::new(scramble(self.0) ^ writer.request, writer.client << 8 | field as u64);
        for place in bytes[TAG_SIZE..].chunks_mut(8) {
            place.copy_from_slice(&draws.below(u64::MAX).to_be_bytes()[..place.len()]);
        }
        bytes
    }

    /// All its fields, written by one request.
    pub(super) fn value(self, writer: Writer) -> Vec<u8> {
        (0..FIELD_COUNT).flat_map(|field| self.field(field, writer)).collect()
    }
}

/// The record that a value belongs to, and the writer of each field; none when the bytes are no
/// record.
pub(super) fn parse(value: &[u8]) -> Option<(Record, [Writer; FIELD_COUNT])> {
    if value.len() != VALUE_SIZE {
        return None;
    }
    let mut writers = [Writer::NOBODY; FIELD_COUNT];
    let record = Record(word(value, 0)?);
    for (number, (field, writer)) in value.chunks(FIELD_SIZE).zip(&mut writers).enumerate() {
        *writer = Writer { client: word(field, 1)?, request: word(field, 2)? };
        if record.field(number, *writer) != *field {
            return None;
        }
    }
    Some((record, writers))
}

fn word(bytes: &[u8], index: usize) -> Option<u64> {
    let bytes = bytes.get(8 * index..8 * index + 8)?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// FNV-1a over eight bytes, as YCSB hashes: without the sign.
pub(super) fn fnv(number: u64) -> u64 {
    const OFFSET: u64 = 0xCBF2_9CE4_8422_2325;
    const PRIME: u64 = 1_099_511_628_211;
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    number.to_le_bytes().into_iter().fold(OFFSET, step).cast_signed().unsigned_abs()
}
