//! Numbers that are never used twice, across restarts (rule D3).
//!
//! N1. No number at or above its reserve is given out before a durable record moves the reserve. N2. A
//! session starts at the reserves of the one before, so numbers that it left unused are lost. A closed
//! session leaves nearly all of them to the next.

use crate::{GroupId, Version};

/// Versions, block sequences and groups that one record reserves.
const VERSIONS: u64 = 1 << 24;
const SEQUENCES: u32 = 1 << 12;
const GROUPS: u64 = 1 << 16;

/// Numbers that have to be left when an operation starts: a collection or a checkpoint takes fewer.
const VERSIONS_LEFT: u64 = 1 << 20;
const SEQUENCES_LEFT: u32 = 1 << 10;
const GROUPS_LEFT: u64 = 16;

/// Numbers that the last record of a session takes at most: a block of the ring for every attempt to write it.
const LAST_RECORD: u32 = 1 << 8;

/// Next numbers and their reserves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) version: u64,
    pub(crate) version_reserved: u64,
    pub(crate) sequence: u32,
    pub(crate) sequence_reserved: u32,
    pub(crate) group: u64,
    pub(crate) group_reserved: u64,
    /// Number of the next record.
    pub(crate) record: u64,
}

impl Numbers {
    /// Numbers that start here, with nothing reserved.
    pub(crate) fn starting(version: u64, sequence: u32, group: u64, record: u64) -> Self {
        Self {
            version,
            version_reserved: version,
            sequence,
            sequence_reserved: sequence,
            group: group.max(1),
            group_reserved: group.max(1),
            record,
        }
    }

    /// Whether the reserves should be moved before the next operation.
    pub(crate) fn are_short(&self) -> bool {
        self.version_reserved.saturating_sub(self.version) < VERSIONS_LEFT
            || self.sequence_reserved.saturating_sub(self.sequence) < SEQUENCES_LEFT
            || self.group_reserved.saturating_sub(self.group) < GROUPS_LEFT
    }

    /// Reserves that the next record is to name.
    pub(crate) fn next_reserves(&self) -> (u64, u32, u64) {
        let sequence = self.sequence.saturating_add(SEQUENCES);
        (self.version + VERSIONS, sequence, self.group + GROUPS)
    }

    /// Numbers that a closed session leaves to the next one: all but the few that its last record
    /// may take itself.
    pub(crate) fn last_reserves(&self) -> (u64, u32, u64) {
        let sequence = self.sequence.saturating_add(LAST_RECORD);
        (self.version + u64::from(LAST_RECORD), sequence, self.group)
    }

    /// A record with these reserves is durable.
    pub(crate) fn reserved(&mut self, (version, sequence, group): (u64, u32, u64)) {
        self.version_reserved = version;
        self.sequence_reserved = sequence;
        self.group_reserved = group;
    }

    pub(crate) fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version - 1)
    }

    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.saturating_add(1);
        self.sequence - 1
    }

    pub(crate) fn next_group(&mut self) -> GroupId {
        self.group += 1;
        GroupId(self.group - 1)
    }

    pub(crate) fn next_record(&mut self) -> Version {
        self.record += 1;
        Version(self.record - 1)
    }
}
