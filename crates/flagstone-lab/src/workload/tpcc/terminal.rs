//! One client: an endless sequence of the five transactions.

use super::delivery::Delivery;
use super::input::{Context, Inputs, Stream};
use super::new_order::NewOrder;
use super::order_status::OrderStatus;
use super::payment::Payment;
use super::rows::Stamp;
use super::stock_level::StockLevel;
use super::{Class, DISTRICTS, DeliveryUnit, Setting, Tables};
use crate::workload::{self, Operations, Outcome};

/// A client of TPC-C.
#[derive(Clone, Debug)]
pub struct Terminal {
    tables: Tables,
    stream: Stream,
    delivery: DeliveryUnit,
    /// Number of the client in stamps, from 1.
    client: u32,
    /// Commits of each class (rule C5).
    committed: [u32; Class::NAMES.len()],
    pub(super) transaction: Transaction,
}

/// Output of the terminal for the transaction under way, final once the transaction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A New-Order.
    NewOrder {
        /// Number of the order.
        order: u32,
        /// Cents to pay, after discount and taxes.
        total: u64,
        /// Lines whose item and stock are both original: brand "B".
        branded: u8,
    },
    /// A Payment.
    Payment {
        /// The customer who paid.
        customer: u16,
    },
    /// An Order-Status.
    OrderStatus {
        /// Number of the order.
        order: u32,
        /// Its lines found.
        lines: usize,
    },
    /// A Delivery.
    Delivery {
        /// Orders delivered; districts without a new order are skipped.
        delivered: u8,
    },
    /// A Stock-Level.
    StockLevel {
        /// Items below the threshold.
        low: u32,
    },
}

/// A transaction under way.
#[derive(Clone, Debug)]
pub(super) enum Transaction {
    NewOrder(NewOrder),
    Payment(Payment),
    OrderStatus(OrderStatus),
    Delivery(Delivery),
    /// A Delivery of one district, the carrier and the district.
    DistrictDelivery(Delivery, u16, u8, u8),
    StockLevel(StockLevel),
}

impl Terminal {
    /// Client `number`, from 0, before its first transaction.
    #[must_use]
    pub fn new(setting: Setting, tables: Tables, number: u32) -> Self {
        let mut stream = Stream::new(setting, number);
        let delivery = setting.delivery;
        let transaction = Transaction::new(stream.inputs(), delivery);
        let committed = [0; Class::NAMES.len()];
        Self { tables, stream, delivery, client: number + 1, committed, transaction }
    }

    /// Output of the terminal.
    #[must_use]
    pub fn output(&self) -> Output {
        match &self.transaction {
            Transaction::NewOrder(one) => Output::NewOrder {
                order: one.receipt.order,
                total: one.receipt.total(),
                branded: one.receipt.branded,
            },
            Transaction::Payment(one) => Output::Payment { customer: one.customer },
            Transaction::OrderStatus(one) => {
                Output::OrderStatus { order: one.order, lines: one.lines }
            }
            Transaction::Delivery(one) | Transaction::DistrictDelivery(one, ..) => {
                Output::Delivery { delivered: one.delivered }
            }
            Transaction::StockLevel(one) => Output::StockLevel { low: one.low },
        }
    }
}

impl Transaction {
    fn new(inputs: Inputs, unit: DeliveryUnit) -> Self {
        match inputs {
            Inputs::NewOrder { place, customer, items } => {
                Self::NewOrder(NewOrder::new(place, customer, items))
            }
            Inputs::Payment { place, home, customer, amount } => {
                Self::Payment(Payment::new(place, home, customer, amount))
            }
            Inputs::OrderStatus { home, customer } => {
                Self::OrderStatus(OrderStatus::new(home, customer))
            }
            Inputs::Delivery { warehouse, carrier } => match unit {
                DeliveryUnit::Warehouse => {
                    Self::Delivery(Delivery::new(warehouse, carrier, 1..=DISTRICTS))
                }
                DeliveryUnit::District => Self::of_district(warehouse, carrier, 1),
            },
            Inputs::StockLevel { place, threshold } => {
                Self::StockLevel(StockLevel::new(place, threshold))
            }
        }
    }

    fn of_district(warehouse: u16, carrier: u8, district: u8) -> Self {
        let delivery = Delivery::new(warehouse, carrier, district..=district);
        Self::DistrictDelivery(delivery, warehouse, carrier, district)
    }

    /// The rest of the inputs; none when this was all.
    fn rest(&self) -> Option<Self> {
        match self {
            Self::DistrictDelivery(_, warehouse, carrier, district) if *district < DISTRICTS => {
                Some(Self::of_district(*warehouse, *carrier, district + 1))
            }
            _ => None,
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::NewOrder(_) => Class::NewOrder,
            Self::Payment(_) => Class::Payment,
            Self::OrderStatus(_) => Class::OrderStatus,
            Self::Delivery(_) | Self::DistrictDelivery(..) => Class::Delivery,
            Self::StockLevel(_) => Class::StockLevel,
        }
    }
}

impl workload::Terminal for Terminal {
    fn class(&self) -> usize {
        self.transaction.class() as usize
    }

    fn advance<O: Operations>(&mut self, engine: &mut O) -> Result<Outcome, O::Stop> {
        let sequence = self.committed.get(self.class()).copied().unwrap_or(0);
        let stamp = Stamp { client: self.client, sequence };
        let context = Context { tables: self.tables, stamp };
        match &mut self.transaction {
            Transaction::NewOrder(one) => one.advance(&context, engine),
            Transaction::Payment(one) => one.advance(&context, engine),
            Transaction::OrderStatus(one) => one.advance(&context, engine),
            Transaction::Delivery(one) | Transaction::DistrictDelivery(one, ..) => {
                one.advance(&context, engine)
            }
            Transaction::StockLevel(one) => one.advance(&context, engine),
        }
    }

    fn restart(&mut self) {
        match &mut self.transaction {
            Transaction::NewOrder(one) => one.restart(),
            Transaction::Payment(one) => one.restart(),
            Transaction::OrderStatus(one) => one.restart(),
            Transaction::Delivery(one) | Transaction::DistrictDelivery(one, ..) => one.restart(),
            Transaction::StockLevel(one) => one.restart(),
        }
    }

    fn next(&mut self, ended: Outcome) {
        if ended == Outcome::Commit
            && let Some(count) = self.committed.get_mut(self.transaction.class() as usize)
        {
            *count += 1;
        }
        let rest = self.transaction.rest();
        self.transaction =
            rest.unwrap_or_else(|| Transaction::new(self.stream.inputs(), self.delivery));
    }
}
