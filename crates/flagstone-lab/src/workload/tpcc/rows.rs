//! The bytes of the rows (rules C2 and C3): little-endian columns of fixed size first, texts behind
//! them, each with its size in front.

use crate::workload::Part;

const fn part(offset: usize, size: usize) -> Part {
    Part { offset, size }
}

/// Columns of WAREHOUSE.
pub mod warehouse {
    use super::{Part, part};
    /// Cents, i64.
    pub const YTD: Part = part(0, 8);
    /// Ten-thousandths, u16.
    pub const TAX: Part = part(8, 2);
    /// Text; street, street, city, state, zip follow.
    pub const NAME: usize = 10;
}

/// Columns of DISTRICT.
pub mod district {
    use super::{Part, part};
    /// u32.
    pub const NEXT_ORDER: Part = part(0, 4);
    /// Ten-thousandths, u16.
    pub const TAX: Part = part(4, 2);
    /// Number of the next order and tax together.
    pub const HEAD: Part = part(0, 6);
    /// Cents, i64.
    pub const YTD: Part = part(6, 8);
    /// Text; street, street, city, state, zip follow.
    pub const NAME: usize = 14;
}

/// Columns of CUSTOMER.
pub mod customer {
    use super::{Part, part, text_at};
    /// The columns that transactions change but for the data: see [`super::Account`].
    pub const ACCOUNT: Part = part(0, 20);
    /// Ten-thousandths, u16.
    pub const DISCOUNT: usize = 20;
    /// `GC` or `BC`.
    pub const CREDIT: Part = part(22, 2);
    /// Cents, i64.
    pub const CREDIT_LIMIT: usize = 24;
    /// Logical time, u64.
    pub const SINCE: usize = 32;
    /// First, middle, last, street, street, city, state, zip, phone, then the data.
    pub const TEXTS: usize = 40;
    /// Texts before the data.
    pub const TEXT_COUNT: usize = 9;
    /// Longest data.
    pub const DATA_SIZE_MAX: usize = 500;

    /// Where the data begin: the last column, without a size in front.
    #[must_use]
    pub fn data_offset(row: &[u8]) -> usize {
        (0..TEXT_COUNT).fold(TEXTS, |offset, _| offset + 1 + text_at(row, offset).len())
    }
}

/// Columns of ORDER.
pub mod order {
    use super::{Part, part};
    /// u16.
    pub const CUSTOMER: usize = 0;
    /// Logical time, u64.
    pub const ENTRY: usize = 2;
    /// u8; 0 stands for NULL.
    pub const CARRIER: Part = part(10, 1);
    /// u8.
    pub const LINE_COUNT: usize = 11;
    /// u8.
    pub const ALL_LOCAL: usize = 12;
    /// Bytes of the row.
    pub const SIZE: usize = 13;
}

/// Columns of ORDER-LINE.
pub mod line {
    use super::{Part, part};
    /// Logical time, u64; 0 stands for NULL.
    pub const DELIVERY: Part = part(0, 8);
    /// Cents, u32.
    pub const AMOUNT: Part = part(8, 4);
    /// u32.
    pub const ITEM: usize = 12;
    /// u16.
    pub const SUPPLY: usize = 16;
    /// u8.
    pub const QUANTITY: usize = 18;
    /// 24 characters.
    pub const INFO: usize = 19;
    /// Bytes of the row.
    pub const SIZE: usize = 43;
}

/// Columns of STOCK.
pub mod stock {
    use super::{Part, part};
    /// i16.
    pub const QUANTITY: Part = part(0, 2);
    /// Quantity, year to date (u32), orders (u16), remote orders (u16).
    pub const COUNTS: Part = part(0, 10);
    /// Ten times 24 characters.
    pub const INFO: usize = 10;
    /// Text.
    pub const DATA: usize = INFO + 10 * super::INFO_SIZE;
}

/// Columns of ITEM.
pub mod item {
    /// Cents, u32.
    pub const PRICE: usize = 0;
    /// u16.
    pub const IMAGE: usize = 4;
    /// Text; the data follow.
    pub const NAME: usize = 6;
}

/// Columns of HISTORY.
pub mod history {
    /// Customer u16, its district u8, its warehouse u16.
    pub const CUSTOMER: usize = 0;
    /// District u8, warehouse u16.
    pub const DISTRICT: usize = 5;
    /// Logical time, u64.
    pub const DATE: usize = 8;
    /// Cents, u32.
    pub const AMOUNT: usize = 16;
    /// Text.
    pub const DATA: usize = 20;
}

/// Characters of the information about a district.
pub const INFO_SIZE: usize = 24;

/// Logical time of the rows of a fresh database.
pub const LOADED: u64 = 1;

/// Logical time of a client's commit: the client and how many commits of the class it made before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Client, from 1.
    pub client: u32,
    /// Commits before.
    pub sequence: u32,
}

impl Stamp {
    /// The time as a column; never 0, and never [`LOADED`].
    #[must_use]
    pub fn encode(self) -> u64 {
        u64::from(self.client) << 32 | u64::from(self.sequence)
    }

    /// The commit that a column names; none for a row of a fresh database.
    #[must_use]
    pub fn decode(time: u64) -> Option<Self> {
        let (client, sequence) = ((time >> 32) as u32, time as u32);
        (client > 0).then_some(Self { client, sequence })
    }
}

/// The columns of a customer that are sums and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Cents.
    pub balance: i64,
    /// Cents.
    pub ytd_payment: i64,
    /// Payments.
    pub payments: u16,
    /// Deliveries.
    pub deliveries: u16,
}

impl Account {
    /// The columns in a row, or in their bytes alone.
    #[must_use]
    pub fn decode(row: &[u8]) -> Self {
        Self {
            balance: i64_at(row, 0),
            ytd_payment: i64_at(row, 8),
            payments: u16_at(row, 16),
            deliveries: u16_at(row, 18),
        }
    }

    /// Their bytes.
    #[must_use]
    pub fn encode(self) -> [u8; customer::ACCOUNT.size] {
        let mut bytes = [0; customer::ACCOUNT.size];
        set(&mut bytes, 0, &self.balance.to_le_bytes());
        set(&mut bytes, 8, &self.ytd_payment.to_le_bytes());
        set(&mut bytes, 16, &self.payments.to_le_bytes());
        set(&mut bytes, 18, &self.deliveries.to_le_bytes());
        bytes
    }
}

/// The columns of a stock row that are sums and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pieces.
    pub quantity: i16,
    /// Pieces ordered.
    pub ytd: u32,
    /// Order lines.
    pub orders: u16,
    /// Order lines of other warehouses.
    pub remote: u16,
}

impl Counts {
    /// The columns in a row, or in their bytes alone.
    #[must_use]
    pub fn decode(row: &[u8]) -> Self {
        Self {
            quantity: u16_at(row, 0) as i16,
            ytd: u32_at(row, 2),
            orders: u16_at(row, 6),
            remote: u16_at(row, 8),
        }
    }

    /// Their bytes.
    #[must_use]
    pub fn encode(self) -> [u8; stock::COUNTS.size] {
        let mut bytes = [0; stock::COUNTS.size];
        set(&mut bytes, 0, &self.quantity.to_le_bytes());
        set(&mut bytes, 2, &self.ytd.to_le_bytes());
        set(&mut bytes, 6, &self.orders.to_le_bytes());
        set(&mut bytes, 8, &self.remote.to_le_bytes());
        bytes
    }

    /// After `quantity` pieces were ordered.
    #[must_use]
    pub fn ordered(self, quantity: u8, is_remote: bool) -> Self {
        let pieces = i16::from(quantity);
        let refill = if self.quantity >= pieces + 10 { 0 } else { 91 };
        Self {
            quantity: self.quantity - pieces + refill,
            ytd: self.ytd.wrapping_add(u32::from(quantity)),
            orders: self.orders.wrapping_add(1),
            remote: self.remote.wrapping_add(u16::from(is_remote)),
        }
    }
}

/// An order row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Customer.
    pub customer: u16,
    /// Logical time.
    pub entry: u64,
    /// 0 stands for NULL.
    pub carrier: u8,
    /// Lines.
    pub line_count: u8,
    /// Whether all lines are supplied by the home warehouse.
    pub is_local: bool,
}

impl Order {
    /// The row's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; order::SIZE] {
        let mut row = [0; order::SIZE];
        set(&mut row, order::CUSTOMER, &self.customer.to_le_bytes());
        set(&mut row, order::ENTRY, &self.entry.to_le_bytes());
        let flags = [self.carrier, self.line_count, u8::from(self.is_local)];
        set(&mut row, order::CARRIER.offset, &flags);
        row
    }

    /// The row in its bytes.
    #[must_use]
    pub fn decode(row: &[u8]) -> Self {
        Self {
            customer: u16_at(row, order::CUSTOMER),
            entry: u64_at(row, order::ENTRY),
            carrier: u8_at(row, order::CARRIER.offset),
            line_count: u8_at(row, order::LINE_COUNT),
            is_local: u8_at(row, order::ALL_LOCAL) != 0,
        }
    }
}

/// An order line without the information about its district.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Logical time; 0 stands for NULL.
    pub delivery: u64,
    /// Cents.
    pub amount: u32,
    /// Item.
    pub item: u32,
    /// Warehouse that supplies it.
    pub supply: u16,
    /// Pieces.
    pub quantity: u8,
}

impl Line {
    /// The row's bytes, with `info` about the district.
    #[must_use]
    pub fn encode(&self, info: &[u8]) -> [u8; line::SIZE] {
        let mut row = [b' '; line::SIZE];
        set(&mut row, line::DELIVERY.offset, &self.delivery.to_le_bytes());
        set(&mut row, line::AMOUNT.offset, &self.amount.to_le_bytes());
        set(&mut row, line::ITEM, &self.item.to_le_bytes());
        set(&mut row, line::SUPPLY, &self.supply.to_le_bytes());
        set(&mut row, line::QUANTITY, &[self.quantity]);
        set(&mut row, line::INFO, info);
        row
    }

    /// The row in its bytes.
    #[must_use]
    pub fn decode(row: &[u8]) -> Self {
        Self {
            delivery: u64_at(row, line::DELIVERY.offset),
            amount: u32_at(row, line::AMOUNT.offset),
            item: u32_at(row, line::ITEM),
            supply: u16_at(row, line::SUPPLY),
            quantity: u8_at(row, line::QUANTITY),
        }
    }
}

/// A history row without its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// Customer, its district and warehouse.
    pub customer: (u16, u8, u16),
    /// District and warehouse of the payment.
    pub district: (u8, u16),
    /// Logical time.
    pub date: u64,
    /// Cents.
    pub amount: u32,
}

impl History {
    /// The row's bytes but for the text, in `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (customer, district, warehouse) = self.customer;
        out.clear();
        out.extend_from_slice(&customer.to_le_bytes());
        out.push(district);
        out.extend_from_slice(&warehouse.to_le_bytes());
        out.push(self.district.0);
        out.extend_from_slice(&self.district.1.to_le_bytes());
        out.extend_from_slice(&self.date.to_le_bytes());
        out.extend_from_slice(&self.amount.to_le_bytes());
    }

    /// The row in its bytes.
    #[must_use]
    pub fn decode(row: &[u8]) -> Self {
        Self {
            customer: (u16_at(row, 0), u8_at(row, 2), u16_at(row, 3)),
            district: (u8_at(row, history::DISTRICT), u16_at(row, history::DISTRICT + 1)),
            date: u64_at(row, history::DATE),
            amount: u32_at(row, history::AMOUNT),
        }
    }
}

/// Overwrites bytes of a row; bytes beyond its end are left out.
fn set(row: &mut [u8], offset: usize, bytes: &[u8]) {
    for (target, source) in row.iter_mut().skip(offset).zip(bytes) {
        *target = *source;
    }
}

/// `N` bytes of a row; zeroes when it is too short.
fn bytes_at<const N: usize>(row: &[u8], offset: usize) -> [u8; N] {
    row.get(offset..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// A column of one byte.
#[must_use]
pub fn u8_at(row: &[u8], offset: usize) -> u8 {
    row.get(offset).copied().unwrap_or(0)
}

/// A column of two bytes.
#[must_use]
pub fn u16_at(row: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes_at(row, offset))
}

/// A column of four bytes.
#[must_use]
pub fn u32_at(row: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes_at(row, offset))
}

/// A column of eight bytes.
#[must_use]
pub fn u64_at(row: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes_at(row, offset))
}

/// A signed column of eight bytes.
#[must_use]
pub fn i64_at(row: &[u8], offset: usize) -> i64 {
    i64::from_le_bytes(bytes_at(row, offset))
}

/// A text with its size in front.
#[must_use]
pub fn text_at(row: &[u8], offset: usize) -> &[u8] {
    let start = offset + 1;
    row.get(start..start + usize::from(u8_at(row, offset))).unwrap_or(&[])
}

/// Appends a text with its size in front; at most 255 bytes of the text.
pub fn push_text(out: &mut Vec<u8>, text: &[u8]) {
    let text = text.get(..255).unwrap_or(text);
    out.push(text.len() as u8);
    out.extend_from_slice(text);
}

/// Whether `ORIGINAL` occurs in a text.
#[must_use]
pub fn is_original(text: &[u8]) -> bool {
    text.windows(ORIGINAL.len()).any(|window| window == ORIGINAL)
}

/// Mark of one tenth of the items and of the stock.
pub const ORIGINAL: &[u8] = b"ORIGINAL";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_their_bytes() {
        let account = Account { balance: -1000, ytd_payment: 7, payments: 3, deliveries: 9 };
        assert_eq!(Account::decode(&account.encode()), account);
        let counts = Counts { quantity: -3, ytd: 70_000, orders: 8, remote: 1 };
        assert_eq!(Counts::decode(&counts.encode()), counts);
        let order =
            Order { customer: 3000, entry: 9 << 32, carrier: 4, line_count: 15, is_local: true };
        assert_eq!(Order::decode(&order.encode()), order);
        let line = Line { delivery: 5, amount: 999_999, item: 100_000, supply: 2, quantity: 10 };
        assert_eq!(Line::decode(&line.encode(b"info")), line);
        let history =
            History { customer: (7, 8, 9), district: (10, 11), date: 12, amount: 500_000 };
        let mut row = Vec::new();
        history.encode(&mut row);
        assert_eq!((History::decode(&row), row.len()), (history, history::DATA));
    }

    #[test]
    fn a_stock_below_ten_is_refilled() {
        let counts = |quantity| Counts { quantity, ..Counts::default() };
        assert_eq!(counts(20).ordered(10, false).quantity, 10);
        assert_eq!(
            counts(19).ordered(10, true),
            Counts { quantity: 100, ytd: 10, orders: 1, remote: 1 }
        );
    }

    #[test]
    fn stamps_are_told_from_loaded_rows() {
        let stamp = Stamp { client: 1, sequence: 0 };
        assert_eq!(Stamp::decode(stamp.encode()), Some(stamp));
        assert_eq!((Stamp::decode(LOADED), Stamp::decode(0)), (None, None));
    }

    #[test]
    fn short_rows_hold_nothing() {
        assert_eq!((u32_at(&[1, 2], 0), text_at(&[9, 1], 0).len()), (0, 0));
    }
}
