//! Payment: adds to warehouse and district, and takes from a customer's balance.
//!
//! ```text
//! Warehouse → PayWarehouse → District → PayDistrict → Search → Customer → PayCustomer → History
//!                                                       └─ nobody → abort                  ↓
//!                                                                                         Done
//! ```

use super::input::{Chosen, Context};
use super::keys::{self, DistrictKey};
use super::rows::{
    Account, History, Stamp, customer, district, i64_at, push_text, text_at, warehouse,
};
use super::select::Search;
use crate::workload::{Intent, Operations, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Warehouse,
    PayWarehouse,
    District,
    PayDistrict,
    Search,
    Customer,
    PayCustomer,
    History,
    Done,
}

/// One Payment under way.
#[derive(Clone, Debug)]
pub(super) struct Payment {
    place: DistrictKey,
    home: DistrictKey,
    chosen: Chosen,
    amount: u32,
    step: Step,
    search: Search,
    pub(super) customer: u16,
    /// Row read last.
    row: Vec<u8>,
    /// Names of warehouse and district, as the history has them.
    names: Vec<u8>,
    /// Row to write.
    out: Vec<u8>,
}

impl Payment {
    pub(super) fn new(place: DistrictKey, home: DistrictKey, chosen: Chosen, amount: u32) -> Self {
        Self {
            place,
            home,
            chosen,
            amount,
            step: Step::Warehouse,
            search: Search::new(home, chosen),
            customer: 0,
            row: Vec::new(),
            names: Vec::new(),
            out: Vec::new(),
        }
    }

    pub(super) fn restart(&mut self) {
        self.step = Step::Warehouse;
        self.search = Search::new(self.home, self.chosen);
    }

    pub(super) fn advance<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Outcome, O::Stop> {
        let tables = &context.tables;
        let warehouse_key = self.place.warehouse.to_be_bytes();
        let district_key = self.place.encode();
        loop {
            self.step = match self.step {
                Step::Warehouse => {
                    engine.get(tables.warehouse, &warehouse_key, Intent::Change, &mut self.row)?;
                    self.names.clear();
                    self.names.extend_from_slice(text_at(&self.row, warehouse::NAME));
                    Step::PayWarehouse
                }
                Step::PayWarehouse => {
                    let ytd = self.paid(warehouse::YTD.offset);
                    engine.patch(tables.warehouse, &warehouse_key, warehouse::YTD.offset, &ytd)?;
                    Step::District
                }
                Step::District => {
                    engine.get(tables.district, &district_key, Intent::Change, &mut self.row)?;
                    self.names.extend_from_slice(b"    ");
                    self.names.extend_from_slice(text_at(&self.row, district::NAME));
                    Step::PayDistrict
                }
                Step::PayDistrict => {
                    let ytd = self.paid(district::YTD.offset);
                    engine.patch(tables.district, &district_key, district::YTD.offset, &ytd)?;
                    Step::Search
                }
                Step::Search => match self.search.advance(tables, engine)? {
                    Some(customer) => {
                        self.customer = customer;
                        Step::Customer
                    }
                    None => return Ok(Outcome::Abort),
                },
                Step::Customer => {
                    let key = self.home.customer(self.customer);
                    engine.get(tables.customer, &key, Intent::Change, &mut self.row)?;
                    Step::PayCustomer
                }
                Step::PayCustomer => self.pay_customer(context, engine)?,
                Step::History => self.put_history(context, engine)?,
                Step::Done => return Ok(Outcome::Commit),
            };
        }
    }

    /// The sum at `offset` of the row with the amount added.
    fn paid(&self, offset: usize) -> [u8; 8] {
        i64_at(&self.row, offset).wrapping_add(i64::from(self.amount)).to_le_bytes()
    }

    fn pay_customer<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Step, O::Stop> {
        let mut account = Account::decode(&self.row);
        account.balance = account.balance.wrapping_sub(i64::from(self.amount));
        account.ytd_payment = account.ytd_payment.wrapping_add(i64::from(self.amount));
        account.payments = account.payments.wrapping_add(1);
        let (table, key) = (context.tables.customer, self.home.customer(self.customer));
        let credit = customer::CREDIT.offset..customer::CREDIT.offset + customer::CREDIT.size;
        if self.row.get(credit) == Some(b"BC") {
            self.write_bad_credit(&account);
            engine.put(table, &key, &self.out)?;
        } else {
            engine.patch(table, &key, customer::ACCOUNT.offset, &account.encode())?;
        }
        Ok(Step::History)
    }

    /// The customer's row with the payment in front of its data.
    fn write_bad_credit(&mut self, account: &Account) {
        let DistrictKey { warehouse, district } = self.home;
        let data = customer::data_offset(&self.row).min(self.row.len());
        let note = format!(
            "{} {district} {warehouse} {} {} {}.{:02} ",
            self.customer,
            self.place.district,
            self.place.warehouse,
            self.amount / 100,
            self.amount % 100,
        );
        self.out.clear();
        self.out.extend_from_slice(&account.encode());
        self.out.extend_from_slice(self.row.get(customer::ACCOUNT.size..data).unwrap_or(&[]));
        self.out.extend_from_slice(note.as_bytes());
        self.out.extend_from_slice(self.row.get(data..).unwrap_or(&[]));
        self.out.truncate(data + customer::DATA_SIZE_MAX);
    }

    fn put_history<O: Operations>(
        &mut self,
        context: &Context,
        engine: &mut O,
    ) -> Result<Step, O::Stop> {
        let Stamp { client, sequence } = context.stamp;
        let row = History {
            customer: (self.customer, self.home.district, self.home.warehouse),
            district: (self.place.district, self.place.warehouse),
            date: context.stamp.encode(),
            amount: self.amount,
        };
        row.encode(&mut self.out);
        push_text(&mut self.out, &self.names);
        let key = keys::history(client, sequence);
        engine.put(context.tables.history, &key, &self.out)?;
        Ok(Step::Done)
    }
}
