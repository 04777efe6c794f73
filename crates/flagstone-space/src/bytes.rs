//! Byte forms that everything on flash needs: numbers, the checksum, the code of metadata.
//!
//! For stores outside this crate as well, which keep pages of their own on the same devices.

mod checksum;
pub mod code;

pub use checksum::crc32c;

/// Writes the low bytes of `value`, the lowest first.
pub fn put_uint(target: &mut [u8], value: u64) {
    for (byte, source) in target.iter_mut().zip(value.to_le_bytes()) {
        *byte = source;
    }
}

/// The number that at most eight bytes hold, the lowest first.
#[must_use]
pub fn get_uint(source: &[u8]) -> u64 {
    source.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
