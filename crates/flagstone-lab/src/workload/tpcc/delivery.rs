//! Delivery: takes the oldest new order of each district out of the queue and charges its customer.
//!
//! ```text
//! Queue → Oldest → Take → Order → Carrier → (Amount → Deliver)… → Customer → Charge ─┐
//!   ▲        └─ none: skip                                                           │
//!   └───────────────────────────────── next district ────────────────────────────────┘
//! ```

use std::ops::RangeInclusive;

use flagstone_engine::{Direction, ScanRange};

use super::input::Context;
use super::keys::{DistrictKey, last_u32};
use super::rows::{Account, Order, customer, line, order, u32_at};
use crate::workload::{Intent, Operations, Outcome, Scan};

#[derive(Clone, Debug)]
enum Step {
    Queue,
    Oldest(Scan),
    Take,
    Order,
    Carrier,
    Amount,
    Deliver,
    Customer,
    Charge,
    Done,
}

/// One Delivery under way.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    warehouse: u16,
    carrier: u8,
    /// Districts to deliver from.
    districts: RangeInclusive<u8>,
    district: u8,
    step: Step,
    /// Number and row of the order under way.
    order: (u32, Order),
    line: u8,
    /// Cents of its lines so far.
    sum: i64,
    /// Orders delivered.
    pub(super) delivered: u8,
    row: Vec<u8>,
}

impl Delivery {
    pub(super) fn new(warehouse: u16, carrier: u8, districts: RangeInclusive<u8>) -> Self {
        Self {
            warehouse,
            carrier,
            district: *districts.start(),
            districts,
            step: Step::Queue,
            order: (0, Order::decode(&[])),
            line: 1,
            sum: 0,
            delivered: 0,
            row: Vec::new(),
        }
    }

    pub(super) fn restart(&mut self) {
        self.district = *self.districts.start();
        (self.step, self.delivered) = (Step::Queue, 0);
    }

    fn place(&self) -> DistrictKey {
        DistrictKey { warehouse: self.warehouse, district: self.district }
    }

    /// Step that follows a district.
    fn next_district(&mut self) -> Step {
        if self.district >= *self.districts.end() {
            return Step::Done;
        }
        self.district += 1;
        Step::Queue
    }

    pub(super) fn advance<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Outcome, O::Stop> {
        loop {
            self.step = match &mut self.step {
                Step::Queue | Step::Oldest(_) | Step::Take => self.dequeue(context, engine)?,
                Step::Order | Step::Carrier => self.deliver_order(context, engine)?,
                Step::Amount | Step::Deliver => self.deliver_line(context, engine)?,
                Step::Customer | Step::Charge => self.charge(context, engine)?,
                // Without an order to deliver there is nothing to commit.
                Step::Done if self.delivered == 0 => return Ok(Outcome::Abort),
                Step::Done => return Ok(Outcome::Commit),
            };
        }
    }

    fn dequeue<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Step, O::Stop> {
        let (table, place) = (context.tables.new_order, self.place());
        match &mut self.step {
            Step::Oldest(scan) => {
                engine.scan(table, scan)?;
                let oldest = scan.rows().first().map(|row| last_u32(&row.key));
                let Some(order) = oldest else { return Ok(self.next_district()) };
                self.order.0 = order;
                Ok(Step::Take)
            }
            Step::Take => {
                engine.delete(table, &place.order(self.order.0))?;
                Ok(Step::Order)
            }
            _ => {
                // The head of the queue, which no row has, stands for the right to take from it:
                // two deliveries that both looked would wait for each other.
                engine.get(table, &place.encode(), Intent::Change, &mut self.row)?;
                let queue = ScanRange::prefix(&place.encode());
                Ok(Step::Oldest(Scan::new(queue, Direction::Forward, 1)))
            }
        }
    }

    fn deliver_order<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Step, O::Stop> {
        let (table, key) = (context.tables.order, self.place().order(self.order.0));
        if matches!(self.step, Step::Order) {
            engine.get(table, &key, Intent::Change, &mut self.row)?;
            self.order.1 = Order::decode(&self.row);
            return Ok(Step::Carrier);
        }
        engine.patch(table, &key, order::CARRIER.offset, &[self.carrier])?;
        (self.line, self.sum) = (1, 0);
        Ok(Step::Amount)
    }

    fn deliver_line<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Step, O::Stop> {
        let (order, row) = self.order;
        let (table, key) = (context.tables.order_line, self.place().line(order, self.line));
        if matches!(self.step, Step::Amount) {
            if self.line > row.line_count {
                return Ok(Step::Customer);
            }
            engine.get_part(table, &key, line::AMOUNT, Intent::Change, &mut self.row)?;
            return Ok(Step::Deliver);
        }
        let now = context.stamp.encode().to_le_bytes();
        engine.patch(table, &key, line::DELIVERY.offset, &now)?;
        self.sum += i64::from(u32_at(&self.row, 0));
        self.line += 1;
        Ok(Step::Amount)
    }

    fn charge<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Step, O::Stop> {
        let table = context.tables.customer;
        let key = self.place().customer(self.order.1.customer);
        if matches!(self.step, Step::Customer) {
            engine.get_part(table, &key, customer::ACCOUNT, Intent::Change, &mut self.row)?;
            return Ok(Step::Charge);
        }
        let mut account = Account::decode(&self.row);
        account.balance = account.balance.wrapping_add(self.sum);
        account.deliveries = account.deliveries.wrapping_add(1);
        engine.patch(table, &key, customer::ACCOUNT.offset, &account.encode())?;
        self.delivered += 1;
        Ok(self.next_district())
    }
}
