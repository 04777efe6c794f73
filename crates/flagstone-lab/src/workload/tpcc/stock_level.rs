//! Stock-Level: how many items of the last twenty orders run short. Reads only.

use flagstone_engine::{Direction, RowValue, ScanRange};

use super::input::Context;
use super::keys::{self, DistrictKey};
use super::rows::{Line, district, stock, u16_at, u32_at};
use crate::workload::{Intent, Operations, Outcome, Scan};

/// Orders looked at.
const ORDERS: u32 = 20;

#[derive(Clone, Debug)]
enum Step {
    District,
    Lines(Scan),
    Stock,
    Done,
}

/// One Stock-Level under way.
#[derive(Clone, Debug)]
pub(super) struct StockLevel {
    place: DistrictKey,
    threshold: i16,
    step: Step,
    /// Distinct items still to be looked at.
    items: Vec<u32>,
    /// Items below the threshold.
    pub(super) low: u32,
    row: Vec<u8>,
}

impl StockLevel {
    pub(super) fn new(place: DistrictKey, threshold: i16) -> Self {
        let items = Vec::new();
        Self { place, threshold, step: Step::District, items, low: 0, row: Vec::new() }
    }

    pub(super) fn restart(&mut self) {
        (self.step, self.low) = (Step::District, 0);
    }

    pub(super) fn advance<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Outcome, O::Stop> {
        let tables = &context.tables;
        loop {
            self.step = match &mut self.step {
                Step::District => {
                    let (key, part) = (self.place.encode(), district::NEXT_ORDER);
                    engine.get_part(tables.district, &key, part, Intent::Read, &mut self.row)?;
                    Step::Lines(self.lines(u32_at(&self.row, 0)))
                }
                Step::Lines(scan) => {
                    engine.scan(tables.order_line, scan)?;
                    let items = scan.rows().iter().filter_map(|row| match &row.value {
                        RowValue::Inline(value) => Some(Line::decode(value).item),
                        RowValue::Large(_) => None,
                    });
                    self.items = items.collect();
                    self.items.sort_unstable();
                    self.items.dedup();
                    Step::Stock
                }
                Step::Stock => {
                    let Some(item) = self.items.last() else {
                        self.step = Step::Done;
                        continue;
                    };
                    let (key, part) = (keys::stock(self.place.warehouse, *item), stock::QUANTITY);
                    engine.get_part(tables.stock, &key, part, Intent::Read, &mut self.row)?;
                    self.low += u32::from((u16_at(&self.row, 0) as i16) < self.threshold);
                    self.items.pop();
                    Step::Stock
                }
                Step::Done => return Ok(Outcome::Commit),
            };
        }
    }

    /// The lines of the last orders before number `next`.
    fn lines(&self, next: u32) -> Scan {
        let range = ScanRange {
            low: self.place.order(next.saturating_sub(ORDERS)).to_vec(),
            high: Some(self.place.order(next).to_vec()),
        };
        Scan::new(range, Direction::Forward, usize::MAX)
    }
}
