//! The bytes of keys and rows. Columns that change stand at fixed places, so that a change is a patch.

use super::Dialect;
use crate::workload::Part;

/// Columns of SUBSCRIBER: ten bits (u8), ten hexes (u8), ten byte2s (u16), msc, vlr (u32), number.
pub mod subscriber {
    use super::Part;
    /// The first bit, u8.
    pub const BIT_1: Part = Part { offset: 0, size: 1 };
    /// Where the subscriber is, u32.
    pub const VLR_LOCATION: Part = Part { offset: 44, size: 4 };
    /// Bytes without padding.
    pub const SIZE: usize = 63;
}

/// Columns of ACCESS_INFO: data1, data2 (u16), three letters, five letters.
pub mod access {
    /// Bytes without padding.
    pub const SIZE: usize = 12;
}

/// Columns of SPECIAL_FACILITY: is_active (u8), error_cntrl, data_a (u16), five letters.
pub mod facility {
    use super::Part;
    /// 1 where the facility is in use, u8.
    pub const IS_ACTIVE: usize = 0;
    /// u16.
    pub const DATA_A: Part = Part { offset: 3, size: 2 };
    /// Bytes without padding.
    pub const SIZE: usize = 10;
}

/// Columns of CALL_FORWARDING: end_time (u8), 15 digits.
pub mod forwarding {
    /// Hour, u8.
    pub const END_TIME: usize = 0;
    /// Bytes without padding.
    pub const SIZE: usize = 16;
}

/// Digits of a number.
pub const NUMBER_SIZE: usize = 15;

/// Bytes of the five tables' keys.
const KEY_SIZES: [usize; 5] = [4, NUMBER_SIZE, 5, 5, 6];

/// Bytes of the five tables' values. Shore-Kits pads subscribers to 100 bytes and the others to 50,
/// the columns of the key included; key columns of the details take two bytes each.
#[must_use]
pub const fn value_sizes(dialect: Dialect) -> [usize; 5] {
    match dialect {
        Dialect::ShoreKits => [96, 4, 44, 44, 42],
        _ => [subscriber::SIZE, 4, access::SIZE, facility::SIZE, forwarding::SIZE],
    }
}

/// Bytes of the five tables' keys and values together.
pub(super) fn entry_sizes(dialect: Dialect) -> [u32; 5] {
    let values = value_sizes(dialect);
    std::array::from_fn(|place| (KEY_SIZES[place] + values[place]) as u32)
}

/// Key of a subscriber.
#[must_use]
pub fn subscriber_key(subscriber: u32) -> [u8; 4] {
    subscriber.to_be_bytes()
}

/// Key of a subscriber's access data or facility of one type.
#[must_use]
pub fn detail_key(subscriber: u32, kind: u8) -> [u8; 5] {
    let [a, b, c, d] = subscriber.to_be_bytes();
    [a, b, c, d, kind]
}

/// Key of a forwarded call.
#[must_use]
pub fn forwarding_key(subscriber: u32, kind: u8, start: u8) -> [u8; 6] {
    let [a, b, c, d] = subscriber.to_be_bytes();
    [a, b, c, d, kind, start]
}

/// A number as 15 digits, with zeroes in front.
#[must_use]
pub fn digits(number: u64) -> [u8; NUMBER_SIZE] {
    let mut digits = [b'0'; NUMBER_SIZE];
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    digits
}

/// A forwarded call's row.
#[must_use]
pub fn forwarding_row(dialect: Dialect, end: u8, number: u64) -> Vec<u8> {
    let mut row = vec![end];
    row.extend_from_slice(&digits(number));
    row.resize(value_sizes(dialect)[4], b' ');
    row
}
