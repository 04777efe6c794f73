//! Inputs of the transactions, drawn by one client.

use super::rows::Stamp;
use super::{DISTRICTS, Dialect, Mix, NAMES_RUN, Setting};
use crate::workload::Draws;
use crate::workload::tpcc::keys::DistrictKey;

/// Class of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// An order comes in.
    NewOrder,
    /// A customer pays.
    Payment,
    /// A customer asks for the last order.
    OrderStatus,
    /// The oldest orders are delivered.
    Delivery,
    /// How many items run short.
    StockLevel,
}

impl Class {
    /// Names of the classes, in their order.
    pub const NAMES: [&'static str; 5] =
        ["new-order", "payment", "order-status", "delivery", "stock-level"];

    /// The class for a number below 100: 45, 43, 4, 4 and 4 percent.
    #[must_use]
    pub fn of_percent(percent: u64) -> Self {
        match percent {
            0..45 => Self::NewOrder,
            45..88 => Self::Payment,
            88..92 => Self::OrderStatus,
            92..96 => Self::Delivery,
            _ => Self::StockLevel,
        }
    }
}

/// How a customer is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// By number.
    Number(u16),
    /// By the last name of this number.
    Name(u16),
}

/// One line of a New-Order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderedItem {
    /// Item; one that does not exist makes the transaction fail.
    pub item: u32,
    /// Warehouse that supplies it.
    pub supply: u16,
    /// Pieces.
    pub quantity: u8,
}

/// Inputs of one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// An order comes in.
    NewOrder {
        /// Where.
        place: DistrictKey,
        /// From this customer.
        customer: u16,
        /// For these items.
        items: Vec<OrderedItem>,
    },
    /// A customer pays.
    Payment {
        /// Where.
        place: DistrictKey,
        /// District of the customer.
        home: DistrictKey,
        /// The customer.
        customer: Chosen,
        /// Cents.
        amount: u32,
    },
    /// A customer asks for the last order.
    OrderStatus {
        /// District of the customer.
        home: DistrictKey,
        /// The customer.
        customer: Chosen,
    },
    /// The oldest orders are delivered.
    Delivery {
        /// From this warehouse.
        warehouse: u16,
        /// By this carrier.
        carrier: u8,
    },
    /// How many items run short.
    StockLevel {
        /// Where.
        place: DistrictKey,
        /// Fewer pieces than this.
        threshold: i16,
    },
}

/// Endless inputs of one client, whose warehouse and district for Stock-Level are fixed.
#[derive(Clone, Debug)]
pub struct Stream {
    setting: Setting,
    draws: Draws,
    home: DistrictKey,
}

impl Stream {
    /// Inputs of client `number`, from 0: clients spread over warehouses, then over districts.
    #[must_use]
    pub fn new(setting: Setting, number: u32) -> Self {
        let scale = u32::from(setting.scale.max(1));
        let home = DistrictKey {
            warehouse: (number % scale) as u16 + 1,
            district: (number / scale % u32::from(DISTRICTS)) as u8 + 1,
        };
        Self { setting, draws: Draws::new(setting.seed, u64::from(number)), home }
    }

    /// Inputs of the next transaction.
    pub fn inputs(&mut self) -> Inputs {
        let class = match self.setting.mix {
            Mix::All => Class::of_percent(self.draws.below(100)),
            Mix::Short => Class::Payment,
            // 45 New-Orders to 4 Deliveries.
            Mix::Long if self.draws.below(49) < 45 => Class::NewOrder,
            Mix::Long => Class::Delivery,
        };
        match class {
            Class::NewOrder => self.new_order(),
            Class::Payment => self.payment(),
            Class::OrderStatus => {
                let home = self.district();
                Inputs::OrderStatus { home, customer: self.chosen() }
            }
            Class::Delivery => Inputs::Delivery {
                warehouse: self.home.warehouse,
                carrier: 1 + self.draws.below(10) as u8,
            },
            Class::StockLevel => {
                Inputs::StockLevel { place: self.home, threshold: 10 + self.draws.below(11) as i16 }
            }
        }
    }

    fn new_order(&mut self) -> Inputs {
        let place = self.district();
        let customer = self.customer();
        let count = match self.setting.dialect {
            Dialect::Spec => 5 + self.draws.below(11),
            Dialect::Dbt2 => 6 + self.draws.below(10),
        };
        let mut items: Vec<OrderedItem> = (0..count).map(|_| self.ordered_item()).collect();
        // One in a hundred names an item that does not exist, and fails at its last line.
        if self.draws.below(100) == 0
            && let Some(last) = items.last_mut()
        {
            last.item = match self.setting.dialect {
                Dialect::Spec => self.setting.cardinality.items + 1,
                Dialect::Dbt2 => 0,
            };
        }
        Inputs::NewOrder { place, customer, items }
    }

    fn ordered_item(&mut self) -> OrderedItem {
        let numbers = self.setting.item_numbers();
        let item = match self.setting.dialect {
            Dialect::Spec => numbers.draw(&mut self.draws),
            Dialect::Dbt2 => numbers.draw_dbt2(&mut self.draws),
        };
        let is_remote = self.setting.scale > 1 && self.draws.below(100) == 0;
        let supply = if is_remote { self.remote() } else { self.home.warehouse };
        OrderedItem { item, supply, quantity: 1 + self.draws.below(10) as u8 }
    }

    fn payment(&mut self) -> Inputs {
        let place = self.district();
        let customer = self.chosen();
        let home = if self.draws.below(100) < 85 {
            place
        } else {
            let district = self.district().district;
            let is_remote = self.setting.scale > 1;
            // DBT-2 mends the warehouse 0 here, though not in its New-Orders.
            let warehouse = if is_remote { self.remote().max(1) } else { place.warehouse };
            DistrictKey { warehouse, district }
        };
        let amount = 100 + self.draws.below(499_901) as u32;
        Inputs::Payment { place, home, customer, amount }
    }

    /// A warehouse other than the client's; of several.
    fn remote(&mut self) -> u16 {
        let scale = self.setting.scale;
        let drawn = 1 + self.draws.below(u64::from(scale) - 1) as u16;
        if drawn < self.home.warehouse {
            return drawn;
        }
        match self.setting.dialect {
            Dialect::Spec => drawn + 1,
            Dialect::Dbt2 => (drawn + 1) % scale,
        }
    }

    fn district(&mut self) -> DistrictKey {
        let district = 1 + self.draws.below(u64::from(DISTRICTS)) as u8;
        DistrictKey { warehouse: self.home.warehouse, district }
    }

    fn customer(&mut self) -> u16 {
        let numbers = self.setting.customer_numbers();
        match self.setting.dialect {
            Dialect::Spec => numbers.draw(&mut self.draws) as u16,
            Dialect::Dbt2 => numbers.draw_dbt2(&mut self.draws) as u16,
        }
    }

    fn chosen(&mut self) -> Chosen {
        if self.draws.below(100) >= 60 {
            return Chosen::Number(self.customer());
        }
        let names = self.setting.name_numbers(NAMES_RUN);
        Chosen::Name(match self.setting.dialect {
            Dialect::Spec => names.draw(&mut self.draws) as u16,
            Dialect::Dbt2 => names.draw_dbt2(&mut self.draws) as u16,
        })
    }
}

impl Inputs {
    /// Class of the transaction.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::NewOrder { .. } => Class::NewOrder,
            Self::Payment { .. } => Class::Payment,
            Self::OrderStatus { .. } => Class::OrderStatus,
            Self::Delivery { .. } => Class::Delivery,
            Self::StockLevel { .. } => Class::StockLevel,
        }
    }
}

/// Data that a transaction is given beside its inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub(super) tables: super::Tables,
    /// Logical time.
    pub(super) stamp: Stamp,
}
