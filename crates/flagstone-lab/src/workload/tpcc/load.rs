//! The rows of a fresh database, each table in key order, and their number and size.
//!
//! Values that two tables share, such as the names of customers and their index, are drawn twice
//! from the same stream instead of being kept.

use std::convert::Infallible;

use flagstone_engine::Table;

use super::keys::{self, DistrictKey};
use super::random::{
    last_name, permutation, push_digits, push_letters, push_marked_text, push_random_text,
};
use super::rows::{Account, Counts, History, INFO_SIZE, LOADED, Line, Order, push_text};
use super::{DISTRICTS, Dialect, NAMES_LOADED, Setting, TABLE_NAMES, Tables};
use crate::sizing::Content;
use crate::workload::Draws;

/// Cents that each customer has paid, in one payment.
const AMOUNT_LOADED: u32 = 1000;

/// Takes one row of a fresh database.
type Put<'a, E> = &'a mut dyn FnMut(Kind, &[u8], &[u8]) -> Result<(), E>;

/// A table, in the order of [`TABLE_NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Warehouse,
    District,
    Customer,
    CustomerName,
    History,
    Order,
    OrderCustomer,
    NewOrder,
    OrderLine,
    Stock,
    Item,
}

impl Kind {
    /// Its handle.
    pub(super) fn of(self, tables: &Tables) -> Table {
        match self {
            Self::Warehouse => tables.warehouse,
            Self::District => tables.district,
            Self::Customer => tables.customer,
            Self::CustomerName => tables.customer_name,
            Self::History => tables.history,
            Self::Order => tables.order,
            Self::OrderCustomer => tables.order_customer,
            Self::NewOrder => tables.new_order,
            Self::OrderLine => tables.order_line,
            Self::Stock => tables.stock,
            Self::Item => tables.item,
        }
    }
}

/// Hands all rows to `put`.
pub(super) fn load<E>(setting: &Setting, put: Put<'_, E>) -> Result<(), E> {
    let mut loader = Loader { setting, row: Vec::new() };
    loader.warehouses(put)?;
    for step in [
        Loader::district,
        Loader::customers,
        Loader::names,
        Loader::history,
        Loader::orders,
        Loader::customer_orders,
        Loader::queue,
        Loader::lines,
    ] {
        for warehouse in 1..=setting.scale {
            for district in 1..=DISTRICTS {
                step(&mut loader, DistrictKey { warehouse, district }, put)?;
            }
        }
    }
    loader.stock(put)?;
    loader.items(put)
}

/// Makes rows in one buffer.
struct Loader<'a> {
    setting: &'a Setting,
    row: Vec<u8>,
}

impl Loader<'_> {
    /// The stream of the rows of `kind` in one district.
    fn draws(&self, kind: Kind, place: DistrictKey) -> Draws {
        let stream =
            (kind as u64 + 1) << 40 | u64::from(place.warehouse) << 8 | u64::from(place.district);
        Draws::new(self.setting.seed, stream)
    }

    /// Cents that a district's customers have paid: 1,000 a customer.
    fn district_ytd(&self) -> i64 {
        i64::from(self.setting.cardinality.customers) * i64::from(AMOUNT_LOADED)
    }

    fn warehouses<E>(&mut self, put: Put<'_, E>) -> Result<(), E> {
        let ytd = self.district_ytd();
        for warehouse in 1..=self.setting.scale {
            let mut draws = self.draws(Kind::Warehouse, DistrictKey { warehouse, district: 0 });
            self.row.clear();
            self.row.extend_from_slice(&(ytd * i64::from(DISTRICTS)).to_le_bytes());
            self.row.extend_from_slice(&(draws.below(2001) as u16).to_le_bytes());
            push_random_text(&mut self.row, &mut draws, 6, 10);
            push_address(&mut self.row, &mut draws);
            put(Kind::Warehouse, &warehouse.to_be_bytes(), &self.row)?;
        }
        Ok(())
    }

    fn district<E>(&mut self, place: DistrictKey, put: Put<'_, E>) -> Result<(), E> {
        let mut draws = self.draws(Kind::District, place);
        let orders = u32::from(self.setting.cardinality.customers);
        let ytd = self.district_ytd();
        self.row.clear();
        self.row.extend_from_slice(&(orders + 1).to_le_bytes());
        self.row.extend_from_slice(&(draws.below(2001) as u16).to_le_bytes());
        self.row.extend_from_slice(&ytd.to_le_bytes());
        push_random_text(&mut self.row, &mut draws, 6, 10);
        push_address(&mut self.row, &mut draws);
        put(Kind::District, &place.encode(), &self.row)
    }

    /// Last and first names of a district's customers.
    fn customer_names(&self, place: DistrictKey) -> Vec<(String, Vec<u8>)> {
        let mut draws = self.draws(Kind::CustomerName, place);
        let names = self.setting.name_numbers(NAMES_LOADED);
        let name = |number| {
            let drawn = match self.setting.dialect {
                _ if number < 1000 => u32::from(number),
                Dialect::Spec => names.draw(&mut draws),
                Dialect::Dbt2 => names.draw_dbt2(&mut draws),
            };
            let mut first = Vec::new();
            let size = 8 + draws.below(9) as usize;
            push_letters(&mut first, &mut draws, size);
            (last_name(drawn as u16), first)
        };
        (0..self.setting.cardinality.customers).map(name).collect()
    }

    fn customers<E>(&mut self, place: DistrictKey, put: Put<'_, E>) -> Result<(), E> {
        let mut draws = self.draws(Kind::Customer, place);
        for (number, (last, first)) in (1..).zip(self.customer_names(place)) {
            self.customer_row(&mut draws, last.as_bytes(), &first);
            put(Kind::Customer, &place.customer(number), &self.row)?;
        }
        Ok(())
    }

    fn customer_row(&mut self, draws: &mut Draws, last: &[u8], first: &[u8]) {
        let paid = i64::from(AMOUNT_LOADED);
        let account = Account { balance: -paid, ytd_payment: paid, payments: 1, deliveries: 0 };
        let row = &mut self.row;
        row.clear();
        row.extend_from_slice(&account.encode());
        row.extend_from_slice(&(draws.below(5001) as u16).to_le_bytes());
        row.extend_from_slice(if draws.below(10) == 0 { b"BC" } else { b"GC" });
        row.extend_from_slice(&5_000_000_i64.to_le_bytes());
        row.extend_from_slice(&LOADED.to_le_bytes());
        push_text(row, first);
        push_text(row, b"OE");
        push_text(row, last);
        push_address(row, draws);
        row.push(16);
        push_digits(row, draws, 16);
        let size = 300 + draws.below(201) as usize;
        push_letters(row, draws, size);
    }

    fn names<E>(&mut self, place: DistrictKey, put: Put<'_, E>) -> Result<(), E> {
        let names = (1..).zip(self.customer_names(place));
        let mut entries: Vec<Vec<u8>> = names
            .map(|(number, (last, first))| place.name(last.as_bytes(), &first, number))
            .collect();
        entries.sort_unstable();
        entries.iter().try_for_each(|entry| put(Kind::CustomerName, entry, &[]))
    }

    fn history<E>(&mut self, place: DistrictKey, put: Put<'_, E>) -> Result<(), E> {
        let mut draws = self.draws(Kind::History, place);
        let DistrictKey { warehouse, district } = place;
        let customers = u32::from(self.setting.cardinality.customers);
        let number =
            (u32::from(warehouse - 1) * u32::from(DISTRICTS) + u32::from(district - 1)) * customers;
        for customer in 1..=self.setting.cardinality.customers {
            let row = History {
                customer: (customer, district, warehouse),
                district: (district, warehouse),
                date: LOADED,
                amount: AMOUNT_LOADED,
            };
            row.encode(&mut self.row);
            push_random_text(&mut self.row, &mut draws, 12, 24);
            let key = keys::history(0, number + u32::from(customer) - 1);
            put(Kind::History, &key, &self.row)?;
        }
        Ok(())
    }

    /// The orders of a district, from number 1.
    fn order_rows(&self, place: DistrictKey) -> Vec<Order> {
        let mut draws = self.draws(Kind::Order, place);
        let cardinality = self.setting.cardinality;
        let delivered = usize::from(cardinality.customers - cardinality.undelivered);
        let (carriers, lines) = match self.setting.dialect {
            Dialect::Spec => (10, 11),
            Dialect::Dbt2 => (9, 10),
        };
        let customers = permutation(&mut draws, cardinality.customers);
        let order = |(index, customer)| Order {
            customer,
            entry: LOADED,
            carrier: if index < delivered { 1 + draws.below(carriers) as u8 } else { 0 },
            line_count: 5 + draws.below(lines) as u8,
            is_local: true,
        };
        customers.into_iter().enumerate().map(order).collect()
    }

    fn orders<E>(&mut self, place: DistrictKey, put: Put<'_, E>) -> Result<(), E> {
        let mut orders = (1..).zip(self.order_rows(place));
        orders.try_for_each(|(number, row)| put(Kind::Order, &place.order(number), &row.encode()))
    }

    fn customer_orders<E>(&mut self, place: DistrictKey, put: Put<'_, E>) -> Result<(), E> {
        let orders = (1..).zip(self.order_rows(place));
        let mut entries: Vec<_> =
            orders.map(|(number, row)| place.customer_order(row.customer, number)).collect();
        entries.sort_unstable();
        entries.iter().try_for_each(|entry| put(Kind::OrderCustomer, entry, &[]))
    }

    fn queue<E>(&mut self, place: DistrictKey, put: Put<'_, E>) -> Result<(), E> {
        let cardinality = self.setting.cardinality;
        let first = u32::from(cardinality.customers - cardinality.undelivered) + 1;
        let mut orders = first..=u32::from(cardinality.customers);
        orders.try_for_each(|number| put(Kind::NewOrder, &place.order(number), &[]))
    }

    fn lines<E>(&mut self, place: DistrictKey, put: Put<'_, E>) -> Result<(), E> {
        let mut draws = self.draws(Kind::OrderLine, place);
        let items = u64::from(self.setting.cardinality.items);
        let mut info = Vec::new();
        for (order, row) in (1..).zip(self.order_rows(place)) {
            let is_delivered = row.carrier != 0;
            for number in 1..=row.line_count {
                let line = Line {
                    delivery: if is_delivered { row.entry } else { 0 },
                    amount: if is_delivered { 0 } else { 1 + draws.below(999_999) as u32 },
                    item: 1 + draws.below(items) as u32,
                    supply: place.warehouse,
                    quantity: 5,
                };
                info.clear();
                push_letters(&mut info, &mut draws, INFO_SIZE);
                put(Kind::OrderLine, &place.line(order, number), &line.encode(&info))?;
            }
        }
        Ok(())
    }

    fn stock<E>(&mut self, put: Put<'_, E>) -> Result<(), E> {
        for warehouse in 1..=self.setting.scale {
            let mut draws = self.draws(Kind::Stock, DistrictKey { warehouse, district: 0 });
            for item in 1..=self.setting.cardinality.items {
                let quantity = 10 + draws.below(91) as i16;
                let counts = Counts { quantity, ..Counts::default() };
                self.row.clear();
                self.row.extend_from_slice(&counts.encode());
                push_letters(&mut self.row, &mut draws, usize::from(DISTRICTS) * INFO_SIZE);
                push_marked_text(&mut self.row, &mut draws, 26, 50);
                put(Kind::Stock, &keys::stock(warehouse, item), &self.row)?;
            }
        }
        Ok(())
    }

    fn items<E>(&mut self, put: Put<'_, E>) -> Result<(), E> {
        let mut draws = self.draws(Kind::Item, DistrictKey { warehouse: 0, district: 0 });
        for item in 1..=self.setting.cardinality.items {
            self.row.clear();
            self.row.extend_from_slice(&(100 + draws.below(9901) as u32).to_le_bytes());
            self.row.extend_from_slice(&(1 + draws.below(10_000) as u16).to_le_bytes());
            push_random_text(&mut self.row, &mut draws, 14, 24);
            push_marked_text(&mut self.row, &mut draws, 26, 50);
            put(Kind::Item, &item.to_be_bytes(), &self.row)?;
        }
        Ok(())
    }
}

/// Street, street, city, state, zip.
fn push_address(row: &mut Vec<u8>, draws: &mut Draws) {
    push_random_text(row, draws, 10, 20);
    push_random_text(row, draws, 10, 20);
    push_random_text(row, draws, 10, 20);
    push_random_text(row, draws, 2, 2);
    row.push(9);
    push_digits(row, draws, 4);
    row.extend_from_slice(b"11111");
}

/// Rows of each table of a fresh database, and the bytes of their keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Volume {
    tables: [(u64, u64); TABLE_NAMES.len()],
}

impl Volume {
    /// Counts the rows by making them.
    pub(super) fn of(setting: &Setting) -> Self {
        let mut volume = Self::default();
        let counted = load::<Infallible>(setting, &mut |kind, key, value| {
            let (rows, bytes) = &mut volume.tables[kind as usize];
            *rows += 1;
            *bytes += (key.len() + value.len()) as u64;
            Ok(())
        });
        let Ok(()) = counted;
        volume
    }

    pub(super) fn row_count(&self) -> u64 {
        self.tables.iter().map(|(rows, _)| rows).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.tables.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Contents of the tables after `txns` commits of the mix.
    pub(super) fn after(&self, setting: &Setting, txns: u64) -> Vec<Content> {
        let orders = txns * 45 / 100;
        let lines = match setting.dialect {
            Dialect::Spec => orders * 10,
            Dialect::Dbt2 => orders * 21 / 2,
        };
        let districts = u32::from(setting.scale) * u32::from(DISTRICTS);
        let content = |(index, (rows, bytes)): (usize, &(u64, u64))| {
            let (added, edges) = match index {
                index if index == Kind::Order as usize => (orders, districts),
                index if index == Kind::OrderCustomer as usize => (orders, 0),
                index if index == Kind::OrderLine as usize => (lines, districts),
                index if index == Kind::History as usize => (txns * 43 / 100, 0),
                _ => (0, 0),
            };
            let entry_size = bytes.div_ceil((*rows).max(1)) as u32 + ENTRY_OVERHEAD;
            Content { rows: rows + added, entry_size, edges }
        };
        self.tables.iter().enumerate().map(content).collect()
    }
}

/// Bytes of a leaf entry beside key and value.
const ENTRY_OVERHEAD: u32 = 4;
