//! Finding a customer, by number or by last name.

use flagstone_engine::{Direction, ScanRange};

use super::Tables;
use super::input::Chosen;
use super::keys::{DistrictKey, last_u16};
use super::random::last_name;
use crate::workload::{Operations, Scan};

/// A customer being looked for.
#[derive(Clone, Debug)]
pub(super) struct Search {
    home: DistrictKey,
    chosen: Chosen,
    scan: Option<Scan>,
}

impl Search {
    pub(super) fn new(home: DistrictKey, chosen: Chosen) -> Self {
        Self { home, chosen, scan: None }
    }

    /// Number of the customer: of several with the name, the one in the middle by first name,
    /// rounded up. None when no customer has the name.
    pub(super) fn advance<O: Operations>(
        &mut self,
        tables: &Tables,
        engine: &mut O,
    ) -> Result<Option<u16>, O::Stop> {
        let name = match self.chosen {
            Chosen::Number(number) => return Ok(Some(number)),
            Chosen::Name(name) => name,
        };
        let home = self.home;
        let scan = self.scan.get_or_insert_with(|| {
            let prefix = home.name_prefix(last_name(name).as_bytes());
            Scan::new(ScanRange::prefix(&prefix), Direction::Forward, usize::MAX)
        });
        engine.scan(tables.customer_name, scan)?;
        let rows = scan.rows();
        let middle = rows.get(rows.len().div_ceil(2).saturating_sub(1));
        Ok(middle.map(|row| last_u16(&row.key)))
    }
}
