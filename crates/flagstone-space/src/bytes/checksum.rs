//! The one checksum of the format: CRC-32C (Castagnoli).
//!
//! Hardware speed with the standard library; tables, eight bytes a step, without it.

/// CRC-32C of `bytes`.
#[cfg(feature = "std")]
pub fn crc32c(bytes: &[u8]) -> u32 {
    use crc_fast::{CrcAlgorithm, checksum};
    // The 32-bit checksum travels in the low half of a u64.
    (checksum(CrcAlgorithm::Crc32Iscsi, bytes) & 0xFFFF_FFFF) as u32
}

/// CRC-32C of `bytes`.
#[cfg(not(feature = "std"))]
pub fn crc32c(bytes: &[u8]) -> u32 {
    tables::crc32c(bytes)
}

#[cfg(any(test, not(feature = "std")))]
mod tables {
    /// The polynomial of CRC-32C, bits reversed.
    const POLYNOMIAL: u32 = 0x82F6_3B78;

    static TABLES: [[u32; 256]; 8] = tables();

    const fn tables() -> [[u32; 256]; 8] {
        let mut tables = [[0; 256]; 8];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc >> 1) ^ (POLYNOMIAL * (crc & 1));
                bit += 1;
            }
            tables[0][byte] = crc;
            byte += 1;
        }
        let mut table = 1;
        while table < 8 {
            let mut byte = 0;
            while byte < 256 {
                let before = tables[table - 1][byte];
                tables[table][byte] = (before >> 8) ^ tables[0][(before & 0xFF) as usize];
                byte += 1;
            }
            table += 1;
        }
        tables
    }

    /// Slicing-by-8 (Kounavis and Berry, 2005).
    pub(super) fn crc32c(bytes: &[u8]) -> u32 {
        let mut crc = !0_u32;
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let low = crc.to_le_bytes();
            crc = 0;
            for (index, byte) in chunk.iter().enumerate() {
                let folded = byte ^ low.get(index).copied().unwrap_or(0);
                crc ^= TABLES[7 - index][usize::from(folded)];
            }
        }
        for byte in chunks.remainder() {
            crc = crc >> 8 ^ TABLES[0][usize::from(*byte ^ crc as u8)];
        }
        !crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_catalogue_comes_out() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(tables::crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn tables_and_hardware_agree_at_every_length() {
        let bytes: std::vec::Vec<u8> = (0..600_u32).map(|index| (index * 31 + 7) as u8).collect();
        for size in 0..bytes.len() {
            assert_eq!(crc32c(&bytes[..size]), tables::crc32c(&bytes[..size]), "{size} bytes");
        }
    }
}
