//! The index requests of TPC-C, for the paper's OLTP trace, which is not public.
//!
//! Owns the rows and the transactions: the seven indexes of TPC-C that change, in one table of 4-byte
//! keys, and for each transaction of the mix its requests to them, one after the other. A warehouse
//! of about a fifth of the standard's rows, so that there are as many as in the other workloads.
//! Stock-Level looks up so much stock that 74.1 % of the requests write, as in the trace.
//!
//! | bits 28 to 31 | index | the other bits |
//! | --- | --- | --- |
//! | 1, 2 | warehouse, district | number |
//! | 3 | customer | district (4), number (20) |
//! | 4 | stock | number |
//! | 5, 6 | order, new order | district (4), number (20) |
//! | 7 | order line | district (4), number (20), line (4) |

use std::collections::VecDeque;

use super::model::Request;
use crate::workload::Draws;

const DISTRICTS: u64 = 10;
/// Lines of an order.
const LINES: u64 = 10;
/// Rows at scale 1: customers and orders of a district, stock.
const CUSTOMERS: u64 = 639;
const STOCK: u64 = 21_300;
/// Shares of the constants A of NURand(A, x, y), in thousandths of the range drawn from: 1023 of 3000,
/// 8191 of 100,000.
const CUSTOMER_SKEW: u64 = 341;
const STOCK_SKEW: u64 = 82;
/// Orders whose lines Stock-Level reads, and stock that it looks up.
const LEVEL_ORDERS: u64 = 20;
const LEVEL_STOCK: u64 = 13;

const WAREHOUSE: u64 = 1;
const DISTRICT: u64 = 2;
const CUSTOMER: u64 = 3;
const STOCK_ROW: u64 = 4;
const ORDER: u64 = 5;
const NEW_ORDER: u64 = 6;
const LINE: u64 = 7;

/// Rows that a thousand requests leave behind, net: five for each transaction.
pub(super) const GROWTH: u64 = 403;

/// State from which the next transactions follow.
#[derive(Clone, Debug)]
pub(super) struct Oltp {
    customers: u64,
    stock: u64,
    /// Next order of each district.
    next: [u64; DISTRICTS as usize],
    /// Oldest order that was not delivered.
    oldest: [u64; DISTRICTS as usize],
    /// Remaining requests of the transaction under way.
    requests: VecDeque<Request>,
}

const fn row(index: u64, number: u64) -> u64 {
    index << 28 | number
}

const fn of_district(index: u64, district: u64, number: u64) -> u64 {
    row(index, district << 20 | number)
}

const fn line(district: u64, order: u64, line: u64) -> u64 {
    row(LINE, district << 24 | order << 4 | line)
}

impl Oltp {
    /// So many thousandths of the rows.
    pub(super) fn new(thousandths: u64) -> Self {
        let customers = (CUSTOMERS * thousandths / 1000).max(10);
        let stock = (STOCK * thousandths / 1000).max(10);
        let [next, oldest] = [customers, customers * 7 / 10].map(|at| [at; DISTRICTS as usize]);
        Self { customers, stock, next, oldest, requests: VecDeque::new() }
    }

    /// Keys to begin with.
    pub(super) fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        let districts = (0..DISTRICTS).flat_map(|district| {
            let per_order = (0..self.next[0]).flat_map(move |order| {
                let lines = (0..LINES).map(move |number| line(district, order, number));
                lines.chain([of_district(ORDER, district, order)])
            });
            let customers = (0..self.customers).map(move |at| of_district(CUSTOMER, district, at));
            let waiting = self.oldest[0]..self.next[0];
            let waiting = waiting.map(move |order| of_district(NEW_ORDER, district, order));
            per_order.chain(customers).chain(waiting).chain([row(DISTRICT, district)])
        });
        let stock = (0..self.stock).map(|at| row(STOCK_ROW, at));
        districts.chain(stock).chain([row(WAREHOUSE, 0)])
    }

    /// The next request; `pointer` gives new pointers.
    pub(super) fn request(
        &mut self,
        draws: &mut Draws,
        pointer: &mut impl FnMut() -> u32,
    ) -> Request {
        loop {
            if let Some(request) = self.requests.pop_front() {
                return request;
            }
            match draws.below(100) {
                0..45 => self.new_order(draws, pointer),
                45..88 => self.payment(draws, pointer),
                88..92 => self.order_status(draws),
                92..96 => self.delivery(pointer),
                _ => self.stock_level(draws),
            }
        }
    }

    fn customer(&self, draws: &mut Draws) -> u64 {
        let district = draws.below(DISTRICTS);
        of_district(CUSTOMER, district, skewed(draws, CUSTOMER_SKEW, self.customers))
    }

    fn stock(&self, draws: &mut Draws) -> u64 {
        row(STOCK_ROW, skewed(draws, STOCK_SKEW, self.stock))
    }

    fn new_order(&mut self, draws: &mut Draws, pointer: &mut impl FnMut() -> u32) {
        let district = draws.below(DISTRICTS);
        let next = &mut self.next[district as usize];
        let order = *next;
        *next += 1;
        let mut put = |key| vec![(key, pointer())];
        self.requests.push_back(Request::Select(row(WAREHOUSE, 0)));
        self.requests.push_back(Request::Select(self.customer(draws)));
        self.requests.push_back(Request::Modify(put(row(DISTRICT, district))));
        for _ in 0..LINES {
            self.requests.push_back(Request::Modify(put(self.stock(draws))));
        }
        self.requests.push_back(Request::Insert(put(of_district(ORDER, district, order))));
        self.requests.push_back(Request::Insert(put(of_district(NEW_ORDER, district, order))));
        let lines = (0..LINES).flat_map(|number| put(line(district, order, number)));
        self.requests.push_back(Request::Insert(lines.collect()));
    }

    fn payment(&mut self, draws: &mut Draws, pointer: &mut impl FnMut() -> u32) {
        let customer = self.customer(draws);
        self.requests.push_back(Request::Select(customer));
        for key in [row(WAREHOUSE, 0), row(DISTRICT, draws.below(DISTRICTS)), customer] {
            self.requests.push_back(Request::Modify(vec![(key, pointer())]));
        }
    }

    fn order_status(&mut self, draws: &mut Draws) {
        let district = draws.below(DISTRICTS);
        let order = draws.below(self.next[district as usize]);
        self.requests.push_back(Request::Select(self.customer(draws)));
        self.requests.push_back(Request::Select(of_district(ORDER, district, order)));
        self.requests.push_back(Request::SelectRange(line(district, order, 0)));
    }

    fn delivery(&mut self, pointer: &mut impl FnMut() -> u32) {
        for district in 0..DISTRICTS {
            let oldest = &mut self.oldest[district as usize];
            if *oldest >= self.next[district as usize] {
                continue;
            }
            let order = *oldest;
            *oldest += 1;
            let mut put = |key| vec![(key, pointer())];
            let waiting = of_district(NEW_ORDER, district, order);
            self.requests.push_back(Request::Select(waiting));
            self.requests.push_back(Request::Delete(vec![waiting]));
            self.requests.push_back(Request::Modify(put(of_district(ORDER, district, order))));
            let lines = (0..LINES).flat_map(|number| put(line(district, order, number)));
            self.requests.push_back(Request::Modify(lines.collect()));
            let customer = of_district(CUSTOMER, district, order % self.customers);
            self.requests.push_back(Request::Modify(put(customer)));
        }
    }

    fn stock_level(&mut self, draws: &mut Draws) {
        let district = draws.below(DISTRICTS);
        let next = self.next[district as usize];
        self.requests.push_back(Request::Select(row(DISTRICT, district)));
        for order in next.saturating_sub(LEVEL_ORDERS)..next {
            self.requests.push_back(Request::SelectRange(line(district, order, 0)));
        }
        for _ in 0..LEVEL_STOCK {
            self.requests.push_back(Request::Select(self.stock(draws)));
        }
    }
}

/// NURand of TPC-C (section 2.1.6) below `bound`, its constant A in thousandths of `bound`.
fn skewed(draws: &mut Draws, thousandths: u64, bound: u64) -> u64 {
    let mask = (bound * thousandths / 1000).next_power_of_two() - 1;
    (draws.below(mask + 1) | draws.below(bound)) % bound
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Goal: the write ratio of the trace, at the number of rows of the other workloads.
    #[test]
    fn the_trace_s_share_of_requests_writes() {
        let mut oltp = Oltp::new(1000);
        let keys: BTreeSet<u64> = oltp.keys().collect();
        assert_eq!((keys.len(), oltp.keys().count()), (99_911, 99_911), "no key twice");
        let (mut draws, mut number) = (Draws::new(1, 1), 0);
        let mut pointer = || {
            number += 1;
            number
        };
        let mut writes = 0;
        let mut rows = 0_i64;
        for _ in 0..100_000 {
            match oltp.request(&mut draws, &mut pointer) {
                Request::Select(_) | Request::SelectRange(_) => continue,
                Request::Insert(keys) => rows += keys.len() as i64,
                Request::Delete(keys) => rows -= keys.len() as i64,
                Request::Modify(_) => {}
            }
            writes += 1;
        }
        assert!((73_600..74_600).contains(&writes), "{writes} of 100,000 write");
        assert!((rows / 100).abs_diff(GROWTH as i64) < 12, "{rows} rows more");
    }
}
