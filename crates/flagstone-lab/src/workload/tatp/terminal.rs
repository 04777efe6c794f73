//! One client: an endless sequence of the seven transactions, as a state machine (rule W2).
//!
//! ```text
//! get-subscriber-data      Subscriber
//! get-new-destination      Facility → Forwards
//! get-access-data          Access
//! update-subscriber-data   PatchBit → Facility → PatchData      Shore-Kits: Facility → PatchData → PatchBit
//! update-location          Number → PatchLocation
//! insert-call-forwarding   Number → Facilities → Forward → Put
//! delete-call-forwarding   Number → Forward → Delete
//! ```

use flagstone_engine::{Direction, ScanRange, Table};

use super::rows::{
    detail_key, digits, facility, forwarding, forwarding_key, forwarding_row, subscriber,
    subscriber_key,
};
use super::{Class, Dialect, Inputs, Stream, Tables, Tatp};
use crate::workload::{self, Intent, Operations, Outcome, Scan};

#[derive(Clone, Debug)]
enum Step {
    Begin,
    PatchBit,
    Facility,
    PatchData,
    Forwards(Scan),
    Facilities(Scan),
    Forward,
    Change,
    Done,
}

/// A client of TATP.
#[derive(Clone, Debug)]
pub struct Terminal {
    dialect: Dialect,
    tables: Tables,
    stream: Stream,
    inputs: Inputs,
    step: Step,
    /// Row read last.
    row: Vec<u8>,
}

/// Successor of a step: another step, or the end.
enum Next {
    Step(Step),
    End(Outcome),
}

impl Terminal {
    /// Client `number`, from 0, before its first transaction.
    #[must_use]
    pub fn new(tatp: Tatp, tables: Tables, number: u64) -> Self {
        let mut stream = Stream::new(tatp, number);
        let inputs = stream.inputs();
        Self { dialect: tatp.dialect, tables, stream, inputs, step: Step::Begin, row: Vec::new() }
    }

    /// Inputs of the transaction under way.
    #[must_use]
    pub fn inputs(&self) -> Inputs {
        self.inputs
    }

    /// The facility's key.
    fn detail(&self) -> [u8; 5] {
        detail_key(self.inputs.subscriber, self.inputs.kind)
    }

    fn begin<O: Operations>(&mut self, engine: &mut O) -> Result<Next, O::Stop> {
        let Inputs { subscriber, .. } = self.inputs;
        let mut get =
            |table: Table, key: &[u8]| engine.get(table, key, Intent::Read, &mut self.row);
        Ok(match self.inputs.class {
            Class::GetSubscriberData => {
                found(get(self.tables.subscriber, &subscriber_key(subscriber))?)
            }
            Class::GetAccessData => {
                found(get(self.tables.access_info, &detail_key(subscriber, self.inputs.kind))?)
            }
            Class::GetNewDestination => Next::Step(Step::Facility),
            Class::UpdateSubscriberData if self.dialect == Dialect::ShoreKits => {
                Next::Step(Step::Facility)
            }
            Class::UpdateSubscriberData => Next::Step(Step::PatchBit),
            Class::UpdateLocation | Class::DeleteCallForwarding => {
                let is_update = self.inputs.class == Class::UpdateLocation;
                let step = if is_update { Step::Change } else { Step::Forward };
                by_number(get(self.tables.sub_nbr, &digits(u64::from(subscriber)))?, || step)
            }
            Class::InsertCallForwarding => {
                by_number(get(self.tables.sub_nbr, &digits(u64::from(subscriber)))?, || {
                    Step::Facilities(all_under(&subscriber_key(subscriber)))
                })
            }
        })
    }

    fn patch_bit<O: Operations>(&mut self, engine: &mut O) -> Result<Next, O::Stop> {
        let key = subscriber_key(self.inputs.subscriber);
        let bit = [self.inputs.bit];
        engine.patch(self.tables.subscriber, &key, subscriber::BIT_1.offset, &bit)?;
        Ok(Next::Step(match self.dialect {
            Dialect::ShoreKits => Step::Done,
            _ => Step::Facility,
        }))
    }

    fn facility<O: Operations>(&mut self, engine: &mut O) -> Result<Next, O::Stop> {
        let (table, key) = (self.tables.special_facility, self.detail());
        let is_update = self.inputs.class == Class::UpdateSubscriberData;
        let intent = if is_update { Intent::Change } else { Intent::Read };
        let is_there = engine.get(table, &key, intent, &mut self.row)?;
        if is_update {
            return Ok(match (is_there, self.dialect.commits_update(is_there)) {
                (true, true) => Next::Step(Step::PatchData),
                (false, true) => Next::Step(Step::Done),
                (_, false) => Next::End(Outcome::Abort),
            });
        }
        let is_active = self.row.get(facility::IS_ACTIVE) == Some(&1);
        Ok(match is_there && is_active {
            true => Next::Step(Step::Forwards(all_under(&key))),
            false => Next::End(Outcome::Abort),
        })
    }

    fn patch_data<O: Operations>(&mut self, engine: &mut O) -> Result<Next, O::Stop> {
        let data = self.inputs.data.to_le_bytes();
        let offset = facility::DATA_A.offset;
        engine.patch(self.tables.special_facility, &self.detail(), offset, &data)?;
        Ok(Next::Step(match self.dialect {
            Dialect::ShoreKits => Step::PatchBit,
            _ => Step::Done,
        }))
    }

    /// The call that is to be inserted or deleted.
    fn forward<O: Operations>(&mut self, engine: &mut O) -> Result<Next, O::Stop> {
        let key = self.forwarding_key();
        let table = self.tables.call_forwarding;
        let is_there = engine.get(table, &key, Intent::Change, &mut self.row)?;
        let is_wanted = self.inputs.class == Class::DeleteCallForwarding;
        Ok(match is_there == is_wanted {
            true => Next::Step(Step::Change),
            false => Next::End(Outcome::Abort),
        })
    }

    fn change<O: Operations>(&mut self, engine: &mut O) -> Result<Next, O::Stop> {
        let Inputs { subscriber, end, number, location, .. } = self.inputs;
        let key = self.forwarding_key();
        match self.inputs.class {
            Class::InsertCallForwarding => {
                let row = forwarding_row(self.dialect, end, number);
                engine.put(self.tables.call_forwarding, &key, &row)?;
            }
            Class::DeleteCallForwarding => engine.delete(self.tables.call_forwarding, &key)?,
            _ => {
                let (key, offset) = (subscriber_key(subscriber), subscriber::VLR_LOCATION.offset);
                engine.patch(self.tables.subscriber, &key, offset, &location.to_le_bytes())?;
            }
        }
        Ok(Next::Step(Step::Done))
    }

    fn forwarding_key(&self) -> [u8; 6] {
        forwarding_key(self.inputs.subscriber, self.inputs.kind, self.inputs.start)
    }

    fn step<O: Operations>(&mut self, engine: &mut O) -> Result<Next, O::Stop> {
        match &mut self.step {
            Step::Begin => self.begin(engine),
            Step::PatchBit => self.patch_bit(engine),
            Step::Facility => self.facility(engine),
            Step::PatchData => self.patch_data(engine),
            Step::Forwards(scan) => {
                engine.scan(self.tables.call_forwarding, scan)?;
                let Inputs { start, end, .. } = self.inputs;
                let is_found = scan.rows().iter().any(|row| {
                    let from = row.key.last().copied().unwrap_or(u8::MAX);
                    let until = inline(row).get(forwarding::END_TIME).copied().unwrap_or(0);
                    from <= start && until > end
                });
                Ok(found(is_found))
            }
            Step::Facilities(scan) => {
                engine.scan(self.tables.special_facility, scan)?;
                let kind = self.inputs.kind;
                let has_facility = scan.rows().iter().any(|row| row.key.last() == Some(&kind));
                Ok(match has_facility {
                    true => Next::Step(Step::Forward),
                    false => Next::End(Outcome::Abort),
                })
            }
            Step::Forward => self.forward(engine),
            Step::Change => self.change(engine),
            Step::Done => Ok(Next::End(Outcome::Commit)),
        }
    }
}

impl workload::Terminal for Terminal {
    fn class(&self) -> usize {
        self.inputs.class as usize
    }

    fn advance<O: Operations>(&mut self, engine: &mut O) -> Result<Outcome, O::Stop> {
        loop {
            match self.step(engine)? {
                Next::Step(step) => self.step = step,
                Next::End(outcome) => return Ok(outcome),
            }
        }
    }

    fn restart(&mut self) {
        self.step = Step::Begin;
    }

    fn next(&mut self, _: Outcome) {
        self.inputs = self.stream.inputs();
        self.step = Step::Begin;
    }
}

/// The end of a transaction that reads one row.
fn found(is_there: bool) -> Next {
    Next::End(if is_there { Outcome::Commit } else { Outcome::Abort })
}

/// Successor of the look-up of a subscriber's number.
fn by_number(is_there: bool, step: impl FnOnce() -> Step) -> Next {
    if is_there { Next::Step(step()) } else { Next::End(Outcome::Abort) }
}

/// All rows whose keys begin with `prefix`.
fn all_under(prefix: &[u8]) -> Scan {
    Scan::new(ScanRange::prefix(prefix), Direction::Forward, usize::MAX)
}

/// A row's value.
fn inline(row: &flagstone_engine::Row) -> &[u8] {
    match &row.value {
        flagstone_engine::RowValue::Inline(value) => value,
        flagstone_engine::RowValue::Large(_) => &[],
    }
}
