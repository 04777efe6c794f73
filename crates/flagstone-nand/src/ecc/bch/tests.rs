//! Goal: parity is that of the published codes, and flips up to the strength are repaired.
//!
//! Method: generator polynomials of the textbook, parity that Linux's `lib/bch.c` computes and that its
//! OMAP driver holds as constants, and random flips in random data.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::mix::Draw;

fn code(data_size: usize, strength: u32) -> Bch {
    Bch::new(data_size, strength).unwrap()
}

fn parity_of(code: &Bch, data: &[u8]) -> Vec<u8> {
    let mut parity = vec![0; code.parity_size()];
    code.encode(data.iter().copied(), &mut parity);
    parity
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of the vectors: 3, 10, 17, ...
fn ramp(size: usize) -> Vec<u8> {
    (0..size).map(|index| (index * 7 + 3) as u8).collect()
}

/// Lin and Costello, Error Control Coding, appendix C, in octal.
#[test]
fn generators_are_those_of_the_textbook() {
    for (degree, strength, expected) in [
        (5, 1, 0o45),
        (5, 2, 0o3551),
        (5, 3, 0o107_657),
        (5, 5, 0o5_423_325),
        (6, 1, 0o103),
        (6, 2, 0o12_471),
        (6, 3, 0o1_701_317),
        (6, 4, 0o166_623_567),
    ] {
        let field = Field::new(degree).unwrap();
        assert_eq!(generator(&field, strength), Some(expected), "m = {degree}, t = {strength}");
    }
}

/// Computed by Linux's `lib/bch.c`, as bchlib 2.1.3 wraps it.
#[test]
fn parity_is_that_of_linux() {
    for (data_size, strength, expected) in [
        (128, 2, "7a4c5c"),
        (256, 2, "1a91ad"),
        (512, 3, "51b20686d8"),
        (512, 4, "ccb5fa2e4cfad0"),
        (512, 8, "5b0fac81b931e94ceaad77880a"),
        (1024, 4, "cab2d0a3ecd31e"),
        (1024, 8, "aa65e753e689e97be1167f6c0b73"),
    ] {
        let code = code(data_size, strength);
        assert_eq!(Bch::parity_size_of(data_size, strength), Some(expected.len() / 2));
        assert_eq!(hex(&parity_of(&code, &ramp(data_size))), expected, "{strength} in {data_size}");
    }
}

/// `bch4_polynomial` and `bch8_polynomial` of drivers/mtd/nand/raw/omap2.c: the bytes that turn the parity of
/// 512 bytes of `0xFF` into `0xFF`.
#[test]
fn parity_of_an_erased_step_is_that_of_the_omap_driver() {
    const BCH4: [u8; 7] = [0x28, 0x13, 0xcc, 0x39, 0x96, 0xac, 0x7f];
    const BCH8: [u8; 13] =
        [0xef, 0x51, 0x2e, 0x09, 0xed, 0x93, 0x9a, 0xc2, 0x97, 0x79, 0xe5, 0x24, 0xb5];
    for (strength, constant) in [(4, &BCH4[..]), (8, &BCH8[..])] {
        let parity = parity_of(&code(512, strength), &[0xFF; 512]);
        assert!(parity.iter().zip(constant).all(|(one, other)| one ^ other == 0xFF));
    }
}

#[test]
fn codes_that_no_field_has_room_for_are_refused() {
    assert!(Bch::new(0, 4).is_none());
    assert!(Bch::new(512, 0).is_none());
    assert!(Bch::new(512, STRENGTH_MAX + 1).is_none());
    assert!(Bch::new(4096, 1).is_none());
    assert!(Bch::new(usize::MAX, 1).is_none());
    assert!(Bch::new(4080, STRENGTH_MAX).is_some());
}

/// Flips `count` bits of a code word; each another one.
fn flip(draw: &mut Draw, data: &mut [u8], parity: &mut [u8], parity_bits: u32, count: usize) {
    let data_bits = data.len() as u32 * 8;
    let mut flipped = Vec::new();
    while flipped.len() < count {
        let place = draw.below(data_bits + parity_bits);
        if flipped.contains(&place) {
            continue;
        }
        flipped.push(place);
        let (bytes, place) =
            if place < data_bits { (&mut *data, place) } else { (&mut *parity, place - data_bits) };
        bytes[place as usize / 8] ^= 0x80 >> (place % 8);
    }
}

#[test]
fn each_single_flip_is_repaired() {
    for (data_size, strength) in [(64, 1), (128, 2), (512, 4)] {
        let code = code(data_size, strength);
        let data = ramp(data_size);
        let parity = parity_of(&code, &data);
        for place in 0..data_size * 8 + code.parity_bits as usize {
            let (mut read, mut read_parity) = (data.clone(), parity.clone());
            let (bytes, place) = match place.checked_sub(data_size * 8) {
                None => (&mut read, place),
                Some(place) => (&mut read_parity, place),
            };
            bytes[place / 8] ^= 0x80 >> (place % 8);
            assert_eq!(code.correct(&mut read, &read_parity), Ok(1));
            assert_eq!(read, data);
        }
    }
}

proptest! {
    /// B2, B3: up to the strength everything is repaired; beyond it nothing is returned as the old bytes.
    #[test]
    fn flips_are_repaired_or_reported(
        size_index in 0_usize..5,
        strength in 1_u32..=STRENGTH_MAX,
        count in 0_usize..20,
        seed: u64,
    ) {
        let data_size = [100, 128, 256, 512, 1024][size_index];
        let code = code(data_size, strength);
        let mut draw = Draw::new(seed, 0);
        let mut data = vec![0; data_size];
        draw.fill(&mut data);
        let parity = parity_of(&code, &data);
        let (mut read, mut read_parity) = (data.clone(), parity);
        flip(&mut draw, &mut read, &mut read_parity, code.parity_bits, count);
        let before = read.clone();
        match code.correct(&mut read, &read_parity) {
            Ok(repaired) if count <= strength as usize => {
                prop_assert_eq!(repaired as usize, count);
                prop_assert_eq!(&read, &data);
            }
            // Nearer to another code word than to its own.
            Ok(repaired) => prop_assert!(repaired <= strength),
            Err(TooManyErrors) => {
                prop_assert!(count > strength as usize);
                prop_assert_eq!(&read, &before);
            }
        }
    }

    #[test]
    fn any_bytes_decode_or_are_refused(bytes: Vec<u8>, strength in 1_u32..=STRENGTH_MAX) {
        let code = code(64, strength);
        let mut data = bytes.clone();
        data.resize(64, 0xA5);
        let parity: Vec<u8> = bytes.iter().rev().copied().chain([0; 20]).collect();
        let _ = code.correct(&mut data, &parity[..code.parity_size()]);
    }
}
