//! Hamming code with an overall parity bit (SECDED) over a short byte string.
//!
//! Owns the code that guards page metadata where it stands in spare bytes that the device's ECC
//! does not cover. Never knows the meaning of the bytes.
//!
//! C1. Any one flipped bit, in the data or in the code, is corrected.
//! C2. Any two flipped bits are reported, never "corrected" into other data.
//!
//! Data bit `j` of byte `k` has position `8 * LANES[k] + j`; check bit `i` has position `2^i`.
//! `LANES` leaves out powers of two, so no data bit shares a position with a check bit.

/// Longest byte string the code guards.
pub const DATA_SIZE_MAX: usize = 48;

/// Check bits of the syndrome; the parity bit comes on top.
const CHECK_BITS: u32 = 9;

const LANES: [u16; DATA_SIZE_MAX] = lanes();

const _: () = assert!(LANES[DATA_SIZE_MAX - 1] * 8 + 7 < 1 << CHECK_BITS);

const fn lanes() -> [u16; DATA_SIZE_MAX] {
    let mut lanes = [0; DATA_SIZE_MAX];
    let mut lane = 3;
    let mut index = 0;
    while index < DATA_SIZE_MAX {
        if lane & (lane - 1) != 0 {
            lanes[index] = lane;
            index += 1;
        }
        lane += 1;
    }
    lanes
}

/// Verdict of [`correct`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    /// No bit was wrong.
    Clean,
    /// One bit was wrong; the data are right now.
    Corrected,
    /// More bits were wrong than the code repairs.
    Failed,
}

/// XOR of the bit numbers set in a byte: three bits.
const fn low_syndrome(byte: u8) -> u16 {
    let odd = ((byte & 0b1010_1010).count_ones() & 1) as u16;
    let pairs = ((byte & 0b1100_1100).count_ones() & 1) as u16;
    let nibble = ((byte & 0b1111_0000).count_ones() & 1) as u16;
    odd | pairs << 1 | nibble << 2
}

/// For each byte: its low syndrome, and whether it has an odd number of ones.
static SYNDROMES: [(u16, u16); 256] = {
    let mut syndromes = [(0, 0); 256];
    let mut byte = 0;
    while byte < 256 {
        let odd = ((byte as u8).count_ones() & 1) as u16;
        syndromes[byte] = (low_syndrome(byte as u8), odd);
        byte += 1;
    }
    syndromes
};

fn syndrome(data: &[u8]) -> (u16, u16) {
    let mut positions = 0;
    let mut ones = 0;
    for (byte, lane) in data.iter().zip(LANES) {
        let (low, odd) = SYNDROMES[usize::from(*byte)];
        positions ^= low ^ (odd * (lane << 3));
        ones ^= odd;
    }
    (positions, ones)
}

/// Code of `data`; the unused high bits are 1, as erased cells are.
#[must_use]
pub fn encode(data: &[u8]) -> u16 {
    debug_assert!(data.len() <= DATA_SIZE_MAX, "a longer string would have uncovered bits");
    let (positions, ones) = syndrome(data);
    let parity = ones ^ (positions.count_ones() & 1) as u16;
    positions | parity << CHECK_BITS | !((1 << (CHECK_BITS + 1)) - 1)
}

/// Repairs up to one flipped bit of `data` (C1), reports two (C2).
pub fn correct(data: &mut [u8], code: u16) -> Correction {
    let stored = code & ((1 << CHECK_BITS) - 1);
    let (positions, ones) = syndrome(data);
    let wrong = positions ^ stored;
    let parity = ones ^ ((stored.count_ones() & 1) as u16) ^ (code >> CHECK_BITS & 1);
    match (wrong, parity) {
        (0, 0) => Correction::Clean,
        (_, 0) => Correction::Failed,
        (wrong, _) if wrong & wrong.wrapping_sub(1) == 0 => Correction::Corrected,
        (wrong, _) => flip(data, wrong),
    }
}

fn flip(data: &mut [u8], position: u16) -> Correction {
    let lane = position >> 3;
    let found = LANES.iter().take(data.len()).position(|other| *other == lane);
    let Some(byte) = found.and_then(|index| data.get_mut(index)) else {
        return Correction::Failed;
    };
    *byte ^= 1 << (position & 7);
    Correction::Corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: [u8; 33] = {
        let mut data = [0; 33];
        let mut index = 0;
        while index < 33 {
            data[index] = (index * 37 + 11) as u8;
            index += 1;
        }
        data
    };

    fn flipped(data: &mut [u8], code: &mut u16, bit: usize) {
        match bit.checked_sub(data.len() * 8) {
            Some(bit) => *code ^= 1 << bit,
            None => data[bit / 8] ^= 1 << (bit % 8),
        }
    }

    const BITS: usize = DATA.len() * 8 + 10;

    #[test]
    fn every_single_bit_is_corrected() {
        for bit in 0..BITS {
            let (mut data, mut code) = (DATA, encode(&DATA));
            flipped(&mut data, &mut code, bit);
            assert_eq!(correct(&mut data, code), Correction::Corrected, "bit {bit}");
            assert_eq!(data, DATA, "bit {bit}");
        }
    }

    #[test]
    fn every_pair_of_bits_is_reported() {
        for first in 0..BITS {
            for second in 0..first {
                let (mut data, mut code) = (DATA, encode(&DATA));
                flipped(&mut data, &mut code, first);
                flipped(&mut data, &mut code, second);
                assert_eq!(correct(&mut data, code), Correction::Failed, "{first} {second}");
            }
        }
    }
}
