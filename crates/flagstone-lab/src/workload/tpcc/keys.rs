//! The bytes of the keys (rule C2).

/// A district: warehouse and number within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DistrictKey {
    /// Warehouse, from 1.
    pub warehouse: u16,
    /// District, from 1 to 10.
    pub district: u8,
}

impl DistrictKey {
    /// Key of the district's row, and prefix of everything that belongs to the district.
    #[must_use]
    pub fn encode(self) -> [u8; 3] {
        let [high, low] = self.warehouse.to_be_bytes();
        [high, low, self.district]
    }

    /// The district that a key begins with.
    #[must_use]
    pub fn decode(key: &[u8]) -> Option<(Self, &[u8])> {
        let ([high, low, district], rest) = key.split_first_chunk::<3>()?;
        let warehouse = u16::from_be_bytes([*high, *low]);
        Some((Self { warehouse, district: *district }, rest))
    }

    /// Key of a customer.
    #[must_use]
    pub fn customer(self, customer: u16) -> [u8; 5] {
        join(&self.encode(), &customer.to_be_bytes())
    }

    /// Key of an order and of its place in the queue of new orders.
    #[must_use]
    pub fn order(self, order: u32) -> [u8; 7] {
        join(&self.encode(), &order.to_be_bytes())
    }

    /// Key of an order line.
    #[must_use]
    pub fn line(self, order: u32, number: u8) -> [u8; 8] {
        join(&self.order(order), &[number])
    }

    /// Entry of an order in the index of orders by customer.
    #[must_use]
    pub fn customer_order(self, customer: u16, order: u32) -> [u8; 9] {
        join(&self.customer(customer), &order.to_be_bytes())
    }

    /// Prefix of all customers called `last` in the index of customers by name.
    #[must_use]
    pub fn name_prefix(self, last: &[u8]) -> Vec<u8> {
        [&self.encode()[..], last, &[0]].concat()
    }

    /// Entry of a customer in the index of customers by name.
    #[must_use]
    pub fn name(self, last: &[u8], first: &[u8], customer: u16) -> Vec<u8> {
        [&self.encode()[..], last, &[0], first, &[0], &customer.to_be_bytes()].concat()
    }
}

/// Key of a stock row.
#[must_use]
pub fn stock(warehouse: u16, item: u32) -> [u8; 6] {
    join(&warehouse.to_be_bytes(), &item.to_be_bytes())
}

/// Key of a history row: a client and how many payments it had committed before; the rows of a
/// fresh database have client 0.
#[must_use]
pub fn history(client: u32, sequence: u32) -> [u8; 8] {
    join(&client.to_be_bytes(), &sequence.to_be_bytes())
}

/// The number that the last two bytes of a key hold.
#[must_use]
pub fn last_u16(key: &[u8]) -> u16 {
    key.last_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// The number that the last four bytes of a key hold.
#[must_use]
pub fn last_u32(key: &[u8]) -> u32 {
    key.last_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// `first` followed by `second`, which together are `N` bytes.
fn join<const N: usize>(first: &[u8], second: &[u8]) -> [u8; N] {
    debug_assert_eq!(first.len() + second.len(), N, "the parts make the whole");
    let mut key = [0; N];
    for (target, source) in key.iter_mut().zip(first.iter().chain(second)) {
        *target = *source;
    }
    key
}
