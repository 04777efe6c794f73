//! Rows that the table may hold after the commits that returned.

use std::collections::BTreeSet;

use thiserror::Error;

use super::client::{Client, Request};
use super::record::{FIELD_COUNT, Record, Writer, parse};
use super::{TABLE, Ycsb};
use crate::bench::BenchError;
use crate::store::Store;
use crate::workload::claims::{Claims, Standing};
use crate::workload::{Acknowledged, GivingUp, Outcome, Terminal as _};

/// The table does not hold the rows that the commits leave.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// A row is no record, or stands under another record's key.
    #[error("the row {0} is no record of this table, or half of one")]
    Row(String),
    /// A field that no commit explains.
    #[error("field {field} of record {record} was written by request {request} of client {client}")]
    Field {
        /// Number of the record.
        record: u64,
        /// Number of the field.
        field: usize,
        /// Client that wrote it, counted from 1; 0 is the load.
        client: u64,
        /// Which of its requests.
        request: u64,
    },
    /// A record is missing.
    #[error("record {0} is missing")]
    Missing(u64),
    /// Records of the load.
    #[error("{found} records of the load instead of {loaded}")]
    Count {
        /// Records found.
        found: u64,
        /// Records loaded.
        loaded: u64,
    },
}

/// A field of a record.
type Cell = (Record, usize);

/// Rows of the table seen so far, beside the claims of the commits.
pub(super) struct Audit<'a> {
    ycsb: &'a Ycsb,
    claims: Claims<Cell, Writer>,
    /// Records of the load found, and the others.
    loaded: u64,
    inserted: BTreeSet<Record>,
    fault: Option<Fault>,
}

/// Looks at every row, and for every record whose insertion returned.
pub(super) fn verify<S: Store>(
    ycsb: &Ycsb,
    store: &S,
    acknowledged: &Acknowledged,
) -> Result<(), BenchError> {
    let mut audit = Audit::new(ycsb, acknowledged);
    store.visit(&[TABLE], &mut |_, key, value| audit.row(key, value))?;
    audit.verdict().map_err(Into::into)
}

/// Claims of the clients' writes, which follow from the number of requests that ended (rule Y1).
fn claims(ycsb: &Ycsb, acknowledged: &Acknowledged) -> Claims<Cell, Writer> {
    let mut claims = Claims::new();
    if ycsb.giving_up == GivingUp::AtWill {
        return claims;
    }
    for (number, by_class) in acknowledged {
        let mut client = Client::new(ycsb, flagstone_engine::table_with_id(0), *number);
        let returned: u64 = by_class.iter().sum();
        for place in 0..=returned {
            let standing = if place < returned { Standing::Returned } else { Standing::InFlight };
            let (request, writer) = client.request();
            let fields = match request {
                Request::Insert(record) => Some((record, 0..FIELD_COUNT)),
                Request::Update(record, field) | Request::Modify(record, field) => {
                    Some((record, field..field + 1))
                }
                Request::Read(_) | Request::Scan(..) => None,
            };
            for (record, field) in fields
                .into_iter()
                .flat_map(|(record, fields)| fields.map(move |field| (record, field)))
            {
                claims.add((record, field), *number, standing, writer);
            }
            client.next(Outcome::Commit);
        }
    }
    claims
}

impl<'a> Audit<'a> {
    pub(super) fn new(ycsb: &'a Ycsb, acknowledged: &Acknowledged) -> Self {
        let claims = claims(ycsb, acknowledged);
        Self { ycsb, claims, loaded: 0, inserted: BTreeSet::new(), fault: None }
    }

    pub(super) fn row(&mut self, key: &[u8], value: &[u8]) {
        let Some((record, writers)) = parse(value).filter(|(it, _)| it.key().as_bytes() == key)
        else {
            return self.found(Fault::Row(String::from_utf8_lossy(key).into_owned()));
        };
        if record.is_inserted() {
            self.inserted.insert(record);
        } else {
            self.loaded += 1;
        }
        if self.ycsb.giving_up == GivingUp::AtWill {
            return;
        }
        let nobody = if record.is_inserted() { Writer::NOBODY } else { Writer::LOAD };
        for (field, writer) in writers.iter().enumerate() {
            if !self.claims.explains(&(record, field), writer, &nobody) {
                let (Record(record), Writer { client, request }) = (record, *writer);
                return self.found(Fault::Field { record, field, client, request });
            }
        }
    }

    fn found(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    pub(super) fn verdict(mut self) -> Result<(), Fault> {
        let (found, loaded) = (self.loaded, u64::from(self.ycsb.records));
        if found != loaded {
            self.found(Fault::Count { found, loaded });
        }
        let missing = self.claims.cells().find(|(record, field)| {
            record.is_inserted()
                && !self.inserted.contains(record)
                && !self.claims.explains(&(*record, *field), &Writer::NOBODY, &Writer::NOBODY)
        });
        let missing = missing.map(|(record, _)| Fault::Missing(record.0));
        self.fault.or(missing).map_or(Ok(()), Err)
    }
}
