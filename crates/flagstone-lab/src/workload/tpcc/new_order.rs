//! New-Order: reads warehouse, district and customer, and takes stock for 5 to 15 lines.
//!
//! ```text
//! Warehouse → District → TakeNumber → Customer → Order → Index → Queue
//!                                                                  ↓
//!                                Done ← … Line ← Take ← Stock ← Item
//!                                                          └──────┴─ absent → abort
//! ```

use super::input::{Context, OrderedItem};
use super::keys::{self, DistrictKey};
use super::rows::{
    Counts, INFO_SIZE, Line, Order, customer, district, is_original, item, stock, text_at, u16_at,
    u32_at, warehouse,
};
use crate::workload::{Intent, Operations, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Warehouse,
    District,
    TakeNumber,
    Customer,
    Order,
    Index,
    Queue,
    Item,
    Stock,
    Take,
    Line,
    Done,
}

/// Output of the terminal in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Receipt {
    /// Number of the order.
    pub(super) order: u32,
    /// Ten-thousandths.
    discount: u16,
    /// Ten-thousandths, of warehouse and district together.
    tax: u32,
    /// Cents before discount and taxes.
    amount: u64,
    /// Lines whose item and stock are both original.
    pub(super) branded: u8,
}

impl Receipt {
    /// Cents to pay.
    pub(super) fn total(&self) -> u64 {
        let discounted = self.amount * (10_000 - u64::from(self.discount));
        discounted * (10_000 + u64::from(self.tax)) / 100_000_000
    }
}

/// One New-Order under way.
#[derive(Clone, Debug)]
pub(super) struct NewOrder {
    place: DistrictKey,
    customer: u16,
    items: Vec<OrderedItem>,
    step: Step,
    /// Lines done.
    line: usize,
    pub(super) receipt: Receipt,
    /// Price of the line's item in cents.
    price: u32,
    is_original: bool,
    /// Row read last.
    row: Vec<u8>,
}

impl NewOrder {
    pub(super) fn new(place: DistrictKey, customer: u16, items: Vec<OrderedItem>) -> Self {
        Self {
            place,
            customer,
            items,
            step: Step::Warehouse,
            line: 0,
            receipt: Receipt::default(),
            price: 0,
            is_original: false,
            row: Vec::new(),
        }
    }

    pub(super) fn restart(&mut self) {
        (self.step, self.line, self.receipt) = (Step::Warehouse, 0, Receipt::default());
    }

    pub(super) fn advance<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Outcome, O::Stop> {
        loop {
            self.step = match self.step {
                Step::Warehouse => self.read_warehouse(context, engine)?,
                Step::District => self.read_district(context, engine)?,
                Step::TakeNumber => self.take_number(context, engine)?,
                Step::Customer => self.read_customer(context, engine)?,
                Step::Order => self.put_order(context, engine)?,
                Step::Index => {
                    let entry = self.place.customer_order(self.customer, self.receipt.order);
                    engine.put(context.tables.order_customer, &entry, &[])?;
                    Step::Queue
                }
                Step::Queue => {
                    let key = self.place.order(self.receipt.order);
                    engine.put(context.tables.new_order, &key, &[])?;
                    Step::Item
                }
                Step::Item | Step::Stock | Step::Take | Step::Line => {
                    let Some(item) = self.items.get(self.line).copied() else {
                        self.step = Step::Done;
                        continue;
                    };
                    match self.advance_line(context, engine, item)? {
                        Some(step) => step,
                        None => return Ok(Outcome::Abort),
                    }
                }
                Step::Done => return Ok(Outcome::Commit),
            };
        }
    }

    fn read_warehouse<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Step, O::Stop> {
        let key = self.place.warehouse.to_be_bytes();
        let table = context.tables.warehouse;
        engine.get_part(table, &key, warehouse::TAX, Intent::Read, &mut self.row)?;
        self.receipt.tax = u32::from(u16_at(&self.row, 0));
        Ok(Step::District)
    }

    fn read_district<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Step, O::Stop> {
        let key = self.place.encode();
        let table = context.tables.district;
        engine.get_part(table, &key, district::HEAD, Intent::Change, &mut self.row)?;
        self.receipt.order = u32_at(&self.row, district::NEXT_ORDER.offset);
        self.receipt.tax += u32::from(u16_at(&self.row, district::TAX.offset));
        Ok(Step::TakeNumber)
    }

    fn take_number<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Step, O::Stop> {
        let next = self.receipt.order.wrapping_add(1).to_le_bytes();
        let offset = district::NEXT_ORDER.offset;
        engine.patch(context.tables.district, &self.place.encode(), offset, &next)?;
        Ok(Step::Customer)
    }

    /// Discount, last name and credit.
    fn read_customer<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Step, O::Stop> {
        let key = self.place.customer(self.customer);
        engine.get(context.tables.customer, &key, Intent::Read, &mut self.row)?;
        self.receipt.discount = u16_at(&self.row, customer::DISCOUNT);
        Ok(Step::Order)
    }

    fn put_order<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Step, O::Stop> {
        let home = self.place.warehouse;
        let row = Order {
            customer: self.customer,
            entry: context.stamp.encode(),
            carrier: 0,
            line_count: self.items.len() as u8,
            is_local: self.items.iter().all(|item| item.supply == home),
        };
        let key = self.place.order(self.receipt.order);
        engine.put(context.tables.order, &key, &row.encode())?;
        Ok(Step::Index)
    }

    /// One step of a line; none when its item or its stock does not exist.
    fn advance_line<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
        ordered: OrderedItem,
    ) -> Result<Option<Step>, O::Stop> {
        let OrderedItem { item: number, supply, quantity } = ordered;
        let tables = &context.tables;
        let stock_key = keys::stock(supply, number);
        match self.step {
            Step::Item => {
                let key = number.to_be_bytes();
                if !engine.get(tables.item, &key, Intent::Read, &mut self.row)? {
                    return Ok(None);
                }
                self.price = u32_at(&self.row, item::PRICE);
                let data = item::NAME + 1 + text_at(&self.row, item::NAME).len();
                self.is_original = is_original(text_at(&self.row, data));
                Ok(Some(Step::Stock))
            }
            Step::Stock => {
                if !engine.get(tables.stock, &stock_key, Intent::Change, &mut self.row)? {
                    return Ok(None);
                }
                Ok(Some(Step::Take))
            }
            Step::Take => {
                let is_remote = supply != self.place.warehouse;
                let counts = Counts::decode(&self.row).ordered(quantity, is_remote);
                let offset = stock::COUNTS.offset;
                engine.patch(tables.stock, &stock_key, offset, &counts.encode())?;
                Ok(Some(Step::Line))
            }
            _ => {
                let amount = self.price * u32::from(quantity);
                let row = Line { delivery: 0, amount, item: number, supply, quantity };
                let key = self.place.line(self.receipt.order, self.line as u8 + 1);
                engine.put(tables.order_line, &key, &row.encode(self.info()))?;
                self.end_line(amount);
                Ok(Some(Step::Item))
            }
        }
    }

    /// The stock row's information about the order's district.
    fn info(&self) -> &[u8] {
        let start = stock::INFO + usize::from(self.place.district - 1) * INFO_SIZE;
        self.row.get(start..start + INFO_SIZE).unwrap_or(&[])
    }

    fn end_line(&mut self, amount: u32) {
        let is_branded = self.is_original && is_original(text_at(&self.row, stock::DATA));
        self.receipt.branded += u8::from(is_branded);
        self.receipt.amount += u64::from(amount);
        self.line += 1;
    }
}
