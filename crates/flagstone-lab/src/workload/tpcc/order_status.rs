//! Order-Status: a customer's last order with its lines. Reads only.

use flagstone_engine::{Direction, ScanRange};

use super::input::{Chosen, Context};
use super::keys::{DistrictKey, last_u32};
use super::select::Search;
use crate::workload::{Intent, Operations, Outcome, Scan};

#[derive(Clone, Debug)]
enum Step {
    Search,
    Customer,
    Newest(Scan),
    Order,
    Lines(Scan),
    Done,
}

/// One Order-Status under way.
#[derive(Clone, Debug)]
pub(super) struct OrderStatus {
    home: DistrictKey,
    chosen: Chosen,
    step: Step,
    search: Search,
    customer: u16,
    pub(super) order: u32,
    /// Lines found.
    pub(super) lines: usize,
    row: Vec<u8>,
}

impl OrderStatus {
    pub(super) fn new(home: DistrictKey, chosen: Chosen) -> Self {
        Self {
            home,
            chosen,
            step: Step::Search,
            search: Search::new(home, chosen),
            customer: 0,
            order: 0,
            lines: 0,
            row: Vec::new(),
        }
    }

    pub(super) fn restart(&mut self) {
        self.step = Step::Search;
        self.search = Search::new(self.home, self.chosen);
    }

    pub(super) fn advance<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Outcome, O::Stop> {
        let tables = &context.tables;
        loop {
            self.step = match &mut self.step {
                Step::Search => match self.search.advance(tables, engine)? {
                    Some(customer) => {
                        self.customer = customer;
                        Step::Customer
                    }
                    None => return Ok(Outcome::Abort),
                },
                Step::Customer => {
                    let key = self.home.customer(self.customer);
                    engine.get(tables.customer, &key, Intent::Read, &mut self.row)?;
                    let orders = ScanRange::prefix(&key);
                    Step::Newest(Scan::new(orders, Direction::Backward, 1))
                }
                Step::Newest(scan) => {
                    engine.scan(tables.order_customer, scan)?;
                    match scan.rows().first() {
                        Some(entry) => {
                            self.order = last_u32(&entry.key);
                            Step::Order
                        }
                        None => Step::Done,
                    }
                }
                Step::Order => {
                    let key = self.home.order(self.order);
                    engine.get(tables.order, &key, Intent::Read, &mut self.row)?;
                    let lines = ScanRange::prefix(&key);
                    Step::Lines(Scan::new(lines, Direction::Forward, usize::MAX))
                }
                Step::Lines(scan) => {
                    engine.scan(tables.order_line, scan)?;
                    self.lines = scan.rows().len();
                    Step::Done
                }
                Step::Done => return Ok(Outcome::Commit),
            };
        }
    }
}
