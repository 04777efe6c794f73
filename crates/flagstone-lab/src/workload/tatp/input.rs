//! Inputs of the transactions, drawn by one client (rule P1).

use super::{Dialect, Tatp};
use crate::workload::Draws;

/// Class of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// All about a subscriber.
    GetSubscriberData,
    /// Where a call goes now.
    GetNewDestination,
    /// Access data of one type.
    GetAccessData,
    /// A bit of the subscriber, and a byte of a facility.
    UpdateSubscriberData,
    /// The subscriber has moved.
    UpdateLocation,
    /// Calls are forwarded from an hour on.
    InsertCallForwarding,
    /// They no longer are.
    DeleteCallForwarding,
}

impl Class {
    /// Names of the classes, in their order.
    pub const NAMES: [&'static str; 7] = [
        "get-subscriber-data",
        "get-new-destination",
        "get-access-data",
        "update-subscriber-data",
        "update-location",
        "insert-call-forwarding",
        "delete-call-forwarding",
    ];

    /// The class for a number below 100: 35, 10, 35, 2, 14, 2 and 2 percent.
    #[must_use]
    pub const fn of_percent(percent: u64) -> Self {
        match percent {
            0..35 => Self::GetSubscriberData,
            35..45 => Self::GetNewDestination,
            45..80 => Self::GetAccessData,
            80..82 => Self::UpdateSubscriberData,
            82..96 => Self::UpdateLocation,
            96..98 => Self::InsertCallForwarding,
            _ => Self::DeleteCallForwarding,
        }
    }
}

/// Inputs of one transaction; fields that its class does not use are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// The transaction.
    pub class: Class,
    /// To whom: 1 to the number of subscribers.
    pub subscriber: u32,
    /// Type of the access data or of the facility: 1 to 4.
    pub kind: u8,
    /// Hour from which: 0, 8 or 16.
    pub start: u8,
    /// Hour until which: 1 to 24.
    pub end: u8,
    /// The subscriber's new bit.
    pub bit: u8,
    /// The facility's new data, below 256.
    pub data: u16,
    /// The subscriber's new location.
    pub location: u32,
    /// Where calls go.
    pub number: u64,
}

/// Endless inputs of one client.
#[derive(Clone, Debug)]
pub struct Stream {
    tatp: Tatp,
    draws: Draws,
}

impl Stream {
    /// Inputs of client `number`, from 0.
    #[must_use]
    pub fn new(tatp: Tatp, number: u64) -> Self {
        Self { tatp, draws: Draws::new(tatp.seed, number) }
    }

    /// Inputs of the next transaction.
    pub fn inputs(&mut self) -> Inputs {
        let class = Class::of_percent(self.draws.below(100));
        let subscriber = self.subscriber();
        let none = Inputs {
            class,
            subscriber,
            kind: 0,
            start: 0,
            end: 0,
            bit: 0,
            data: 0,
            location: 0,
            number: 0,
        };
        match class {
            Class::GetSubscriberData => none,
            Class::GetNewDestination => {
                let (kind, start, end) = (self.kind(), self.start(), self.end());
                Inputs { kind, start, end, ..none }
            }
            Class::GetAccessData => Inputs { kind: self.kind(), ..none },
            Class::UpdateSubscriberData => {
                let (bit, data) = (self.draws.below(2) as u8, self.draws.below(256) as u16);
                Inputs { kind: self.kind(), bit, data, ..none }
            }
            Class::UpdateLocation => Inputs { location: self.location(), ..none },
            Class::InsertCallForwarding => {
                let (kind, start, end) = (self.kind(), self.start(), self.end());
                Inputs { kind, start, end, number: self.number(subscriber), ..none }
            }
            Class::DeleteCallForwarding => {
                Inputs { kind: self.kind(), start: self.start(), ..none }
            }
        }
    }

    fn subscriber(&mut self) -> u32 {
        let count = self.tatp.subscribers;
        match self.tatp.dialect {
            Dialect::SpecNonUniform => {
                let any = self.draws.below(u64::from(mask(count)) + 1);
                let even = 1 + self.draws.below(u64::from(count));
                ((any | even) % u64::from(count.max(1))) as u32 + 1
            }
            _ => 1 + self.draws.below(u64::from(count)) as u32,
        }
    }

    fn kind(&mut self) -> u8 {
        1 + self.draws.below(4) as u8
    }

    fn start(&mut self) -> u8 {
        8 * self.draws.below(3) as u8
    }

    fn end(&mut self) -> u8 {
        1 + self.draws.below(24) as u8
    }

    /// A number of up to 15 digits.
    fn number(&mut self, subscriber: u32) -> u64 {
        match self.tatp.dialect {
            Dialect::Spec | Dialect::SpecNonUniform => self.draws.below(NUMBER_COUNT),
            Dialect::ShoreKits => u64::from(self.subscriber()),
            Dialect::Benchbase => u64::from(subscriber),
        }
    }

    fn location(&mut self) -> u32 {
        self.draws.below(location_count(self.tatp.dialect)) as u32
    }
}

/// Numbers of 15 digits.
pub(super) const NUMBER_COUNT: u64 = 1_000_000_000_000_000;

/// Locations that an update draws from.
const fn location_count(dialect: Dialect) -> u64 {
    match dialect {
        Dialect::Spec | Dialect::SpecNonUniform => 1 << 32,
        Dialect::ShoreKits => 1 << 17,
        Dialect::Benchbase => 1 << 31,
    }
}

/// The constant A of the non-uniform rule.
const fn mask(subscribers: u32) -> u32 {
    match subscribers {
        0..=1_000_000 => 65_535,
        1_000_001..=10_000_000 => 1_048_575,
        _ => 2_097_151,
    }
}
