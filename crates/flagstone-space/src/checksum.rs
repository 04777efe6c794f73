//! The one checksum of the format: CRC-32C (Castagnoli), hardware speed where the CPU has it.

use crc_fast::{CrcAlgorithm, checksum};

/// CRC-32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    // The 32-bit checksum travels in the low half of a u64.
    (checksum(CrcAlgorithm::Crc32Iscsi, bytes) & 0xFFFF_FFFF) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_catalogue_comes_out() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }
}
