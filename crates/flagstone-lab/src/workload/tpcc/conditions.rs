//! Conditions that hold in every state of the database (rules C4 and C5).
//!
//! Owns the twelve consistency conditions of the specification (3.3.2.1 to 3.3.2.12), and beside
//! them: indexes and tables agree, the stock's sums equal the lines' sums, and every commit that
//! returned left its rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use thiserror::Error;

use super::keys::{DistrictKey, last_u16, last_u32};
use super::rows::{
    Account, Counts, History, Line, Order, Stamp, district, i64_at, u32_at, warehouse,
};
use super::{Class, Setting};
use crate::workload::Acknowledged;

/// Place of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A warehouse.
    Warehouse(u16),
    /// A district.
    District(DistrictKey),
    /// A customer.
    Customer(DistrictKey, u16),
    /// An order.
    Order(DistrictKey, u32),
}

/// How a database contradicts TPC-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// One of the twelve conditions does not hold: its two sides differ.
    #[error("consistency condition {condition} fails at {place}: {left} is not {right}")]
    Condition {
        /// Number in the specification.
        condition: u8,
        /// Where.
        place: Place,
        /// One side.
        left: i64,
        /// The other side.
        right: i64,
    },
    /// An index and its table differ.
    #[error("the index of {place} does not agree with its row")]
    Index {
        /// Where.
        place: Place,
    },
    /// The sums of the stock differ from the sums of the lines ordered.
    #[error("the stock of {place} counts {stock}, its order lines {lines}")]
    Stock {
        /// Where.
        place: Place,
        /// Pieces or lines by the stock.
        stock: i64,
        /// Pieces or lines by the order lines.
        lines: i64,
    },
    /// Commits of one client and class are missing below a later one.
    #[error("client {client} left {found} commits of class {class}, numbered up to {last}")]
    Gap {
        /// Client, from 0.
        client: u64,
        /// Class.
        class: &'static str,
        /// Commits found.
        found: u64,
        /// Greatest number.
        last: u64,
    },
    /// Fewer commits than were acknowledged.
    #[error("client {client} left {found} commits of class {class}, but {acknowledged} returned")]
    Lost {
        /// Client, from 0.
        client: u64,
        /// Class.
        class: &'static str,
        /// Commits found.
        found: u64,
        /// Commits that returned.
        acknowledged: u64,
    },
}

/// Everything the checks need of all rows.
#[derive(Clone, Debug)]
pub struct Audit {
    setting: Setting,
    warehouses: BTreeMap<u16, Warehouse>,
    districts: BTreeMap<DistrictKey, District>,
    /// Numbers of each client's commits, by class.
    commits: BTreeMap<(u64, usize), BTreeSet<u32>>,
}

#[derive(Clone, Debug, Default)]
struct Warehouse {
    ytd: i64,
    districts: i64,
    paid: i64,
    /// Pieces, lines and remote lines by the stock, then by the lines.
    stock: [i64; 3],
    ordered: [i64; 3],
    /// Stock rows that hold fewer than 10 or more than 100 pieces.
    misfits: i64,
}

#[derive(Clone, Debug, Default)]
struct District {
    ytd: i64,
    paid: i64,
    next: u32,
    customers: BTreeMap<u16, Customer>,
    orders: BTreeMap<u32, OrderState>,
}

#[derive(Clone, Debug, Default)]
struct Customer {
    account: Option<Account>,
    index_entries: u32,
    paid: i64,
    delivered: i64,
}

#[derive(Clone, Debug, Default)]
struct OrderState {
    row: Option<Order>,
    /// Customers that the index names.
    indexed: Vec<u16>,
    is_queued: bool,
    lines: i64,
    delivered_lines: i64,
    delivered: i64,
}

impl Audit {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(setting: Setting) -> Self {
        let commits = BTreeMap::new();
        Self { setting, warehouses: BTreeMap::new(), districts: BTreeMap::new(), commits }
    }

    /// Adds a row of the table that is number `table` in [`super::TABLE_NAMES`].
    pub fn add(&mut self, table: usize, key: &[u8], value: &[u8]) {
        if table == 0 {
            let row = self.warehouse(key.first_chunk().map_or(0, |id| u16::from_be_bytes(*id)));
            row.ytd = i64_at(value, warehouse::YTD.offset);
        } else if table == 4 {
            self.add_history(value);
        } else if table == 9 {
            self.add_stock(key, value);
        } else if let Some((place, rest)) = DistrictKey::decode(key)
            && table < 9
        {
            self.add_to_district(table, place, rest, value);
        }
    }

    fn warehouse(&mut self, id: u16) -> &mut Warehouse {
        self.warehouses.entry(id).or_default()
    }

    fn add_history(&mut self, value: &[u8]) {
        let row = History::decode(value);
        let amount = i64::from(row.amount);
        let (customer, home, home_warehouse) = row.customer;
        let (district, warehouse) = row.district;
        let home = DistrictKey { warehouse: home_warehouse, district: home };
        self.warehouse(warehouse).paid += amount;
        self.districts.entry(DistrictKey { warehouse, district }).or_default().paid += amount;
        let customers = &mut self.districts.entry(home).or_default().customers;
        customers.entry(customer).or_default().paid += amount;
        self.note_commit(row.date, Class::Payment);
    }

    fn add_stock(&mut self, key: &[u8], value: &[u8]) {
        let counts = Counts::decode(value);
        let warehouse = key.first_chunk().map_or(0, |id| u16::from_be_bytes(*id));
        let warehouse = self.warehouse(warehouse);
        warehouse.misfits += i64::from(!(10..=100).contains(&counts.quantity));
        let seen = [i64::from(counts.ytd), counts.orders.into(), counts.remote.into()];
        for (sum, more) in warehouse.stock.iter_mut().zip(seen) {
            *sum += more;
        }
    }

    fn add_to_district(&mut self, table: usize, place: DistrictKey, rest: &[u8], value: &[u8]) {
        let district = self.districts.entry(place).or_default();
        let order = rest.first_chunk().map_or(0, |number| u32::from_be_bytes(*number));
        match table {
            1 => {
                district.ytd = i64_at(value, district::YTD.offset);
                district.next = u32_at(value, district::NEXT_ORDER.offset);
                let ytd = district.ytd;
                self.warehouse(place.warehouse).districts += ytd;
            }
            2 => {
                let customer = district.customers.entry(last_u16(rest)).or_default();
                customer.account = Some(Account::decode(value));
            }
            3 => district.customers.entry(last_u16(rest)).or_default().index_entries += 1,
            5 => {
                let row = Order::decode(value);
                district.orders.entry(order).or_default().row = Some(row);
                self.note_commit(row.entry, Class::NewOrder);
            }
            6 => {
                let customer = rest.first_chunk().map_or(0, |id| u16::from_be_bytes(*id));
                district.orders.entry(last_u32(rest)).or_default().indexed.push(customer);
            }
            7 => district.orders.entry(order).or_default().is_queued = true,
            _ => self.add_line(place, order, &Line::decode(value)),
        }
    }

    fn add_line(&mut self, place: DistrictKey, order: u32, line: &Line) {
        let district = self.districts.entry(place).or_default();
        let state = district.orders.entry(order).or_default();
        state.lines += 1;
        if line.delivery != 0 {
            state.delivered_lines += 1;
            state.delivered += i64::from(line.amount);
        }
        if state.row.is_some_and(|row| Stamp::decode(row.entry).is_some()) {
            let is_remote = i64::from(line.supply != place.warehouse);
            let sums = &mut self.warehouse(line.supply).ordered;
            for (sum, more) in sums.iter_mut().zip([i64::from(line.quantity), 1, is_remote]) {
                *sum += more;
            }
        }
        self.note_commit(line.delivery, Class::Delivery);
    }

    fn note_commit(&mut self, time: u64, class: Class) {
        if let Some(Stamp { client, sequence }) = Stamp::decode(time) {
            let client = (u64::from(client - 1), class as usize);
            self.commits.entry(client).or_default().insert(sequence);
        }
    }

    /// Commits found of `class`.
    #[must_use]
    pub fn commits_of(&self, class: Class) -> u64 {
        let of_class = self.commits.iter().filter(|((_, one), _)| *one == class as usize);
        of_class.map(|(_, numbers)| numbers.len() as u64).sum()
    }

    /// Checks all that must hold at any time, and that every commit of `acknowledged` is there.
    ///
    /// # Errors
    ///
    /// The first contradiction.
    pub fn verify(&self, acknowledged: &Acknowledged) -> Result<(), Fault> {
        let any_time = (1..=12).filter(|condition| *condition != 11);
        for condition in any_time {
            self.check(condition)?;
        }
        self.check_indexes()?;
        self.check_stock()?;
        self.check_commits(acknowledged)
    }

    /// Checks condition 11, which holds right after the load.
    ///
    /// # Errors
    ///
    /// When it does not hold.
    pub fn verify_loaded(&self) -> Result<(), Fault> {
        self.check(11)
    }

    /// Checks the consistency condition of this number, from 1 to 12.
    ///
    /// # Errors
    ///
    /// The first place where it does not hold.
    pub fn check(&self, condition: u8) -> Result<(), Fault> {
        let equal = |place, left: i64, right: i64| {
            let fault = Fault::Condition { condition, place, left, right };
            if left == right { Ok(()) } else { Err(fault) }
        };
        match condition {
            1 | 8 => self.warehouses.iter().try_for_each(|(id, row)| {
                let right = if condition == 1 { row.districts } else { row.paid };
                equal(Place::Warehouse(*id), row.ytd, right)
            }),
            2..=4 | 9 | 11 => self.districts.iter().try_for_each(|(key, district)| {
                self.sides_of_district(condition, district)
                    .into_iter()
                    .try_for_each(|(left, right)| equal(Place::District(*key), left, right))
            }),
            5..=7 => self.orders().try_for_each(|(key, number, order)| {
                let (left, right) = sides_of_order(condition, order);
                equal(Place::Order(key, number), left, right)
            }),
            _ => self.customers().try_for_each(|(key, number, customer)| {
                let account = customer.account.unwrap_or_default();
                let (left, right) = match condition {
                    10 => (account.balance, customer.delivered - customer.paid),
                    _ => (account.balance + account.ytd_payment, customer.delivered),
                };
                equal(Place::Customer(key, number), left, right)
            }),
        }
    }

    /// Pairs that must be equal in a district.
    fn sides_of_district(&self, condition: u8, district: &District) -> Vec<(i64, i64)> {
        let queued = || district.orders.iter().filter(|(_, order)| order.is_queued);
        let placed = || district.orders.iter().filter(|(_, order)| order.row.is_some());
        let (first, last) = (queued().next(), queued().next_back());
        let number =
            |entry: Option<(&u32, &OrderState)>| entry.map(|(number, _)| i64::from(*number));
        let count = queued().count() as i64;
        match condition {
            2 => {
                let last_placed = number(placed().next_back()).unwrap_or(0);
                let next = i64::from(district.next) - 1;
                let newest = number(last).map(|last| (next, last));
                std::iter::once((next, last_placed)).chain(newest).collect()
            }
            3 => {
                let span = number(first).zip(number(last)).map(|(first, last)| last - first + 1);
                vec![(span.unwrap_or(0), count)]
            }
            4 => {
                let said = placed().filter_map(|(_, order)| order.row);
                let said = said.map(|row| i64::from(row.line_count)).sum();
                vec![(said, district.orders.values().map(|order| order.lines).sum())]
            }
            9 => vec![(district.ytd, district.paid)],
            _ => {
                let cardinality = self.setting.cardinality;
                let delivered = cardinality.customers - cardinality.undelivered;
                vec![(placed().count() as i64 - count, i64::from(delivered))]
            }
        }
    }

    fn orders(&self) -> impl Iterator<Item = (DistrictKey, u32, &OrderState)> {
        self.districts.iter().flat_map(|(key, district)| {
            district.orders.iter().map(|(number, order)| (*key, *number, order))
        })
    }

    /// Customers with the amounts delivered to them.
    fn customers(&self) -> impl Iterator<Item = (DistrictKey, u16, Customer)> {
        self.districts.iter().flat_map(|(key, district)| {
            let mut customers = district.customers.clone();
            for order in district.orders.values() {
                if let Some(row) = order.row {
                    customers.entry(row.customer).or_default().delivered += order.delivered;
                }
            }
            customers.into_iter().map(|(number, customer)| (*key, number, customer))
        })
    }

    fn check_indexes(&self) -> Result<(), Fault> {
        for (key, number, order) in self.orders() {
            let customer = order.row.map(|row| vec![row.customer]);
            if customer.as_ref() != Some(&order.indexed) {
                return Err(Fault::Index { place: Place::Order(key, number) });
            }
        }
        for (key, number, customer) in self.customers() {
            if customer.index_entries != u32::from(customer.account.is_some()) {
                return Err(Fault::Index { place: Place::Customer(key, number) });
            }
        }
        Ok(())
    }

    fn check_stock(&self) -> Result<(), Fault> {
        for (id, warehouse) in &self.warehouses {
            let sides = warehouse.stock.iter().zip(&warehouse.ordered);
            for (stock, lines) in sides.chain([(&warehouse.misfits, &0)]) {
                if stock != lines {
                    let (place, stock, lines) = (Place::Warehouse(*id), *stock, *lines);
                    return Err(Fault::Stock { place, stock, lines });
                }
            }
        }
        Ok(())
    }

    /// Rule C5.
    fn check_commits(&self, acknowledged: &Acknowledged) -> Result<(), Fault> {
        for ((client, class), numbers) in &self.commits {
            let (found, last) = (numbers.len() as u64, numbers.last().map_or(0, |last| *last));
            let (client, class, last) = (*client, Class::NAMES[*class], u64::from(last));
            if found != last + 1 {
                return Err(Fault::Gap { client, class, found, last });
            }
        }
        for class in [Class::NewOrder, Class::Payment, Class::Delivery] {
            for (&client, counts) in acknowledged {
                let acknowledged = counts.get(class as usize).copied().unwrap_or(0);
                let found = self.commits.get(&(client, class as usize));
                let found = found.map_or(0, |numbers| numbers.len() as u64);
                if found < acknowledged {
                    let class = Class::NAMES[class as usize];
                    return Err(Fault::Lost { client, class, found, acknowledged });
                }
            }
        }
        Ok(())
    }
}

/// Pair that must be equal in an order.
fn sides_of_order(condition: u8, order: &OrderState) -> (i64, i64) {
    let row = order.row.unwrap_or(Order::decode(&[]));
    let is_open = row.carrier == 0;
    match condition {
        5 => (i64::from(is_open), i64::from(order.is_queued)),
        6 => (i64::from(row.line_count), order.lines),
        _ => (if is_open { 0 } else { order.lines }, order.delivered_lines),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Warehouse(warehouse) => write!(formatter, "warehouse {warehouse}"),
            Self::District(key) => write!(formatter, "{key}"),
            Self::Customer(key, customer) => write!(formatter, "customer {customer} of {key}"),
            Self::Order(key, order) => write!(formatter, "order {order} of {key}"),
        }
    }
}

impl fmt::Display for DistrictKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "district {} of warehouse {}", self.district, self.warehouse)
    }
}
