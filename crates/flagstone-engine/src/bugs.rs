//! Deliberate bugs, one for each rule of durability that the engine keeps. The crash explorer
//! plants them to prove that it finds them. Without the feature `seeded-bugs` none can be planted.

/// A rule of durability, broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SeededBug {
    /// D1: merges take deltas that are not durable yet.
    MergeBeforeDurable,
    /// D1: a group is installed before its record is durable.
    InstallBeforeDurable,
    /// D1: a group's record is written before the group's pages are durable.
    RecordBeforePages,
    /// D1: the record of a group that split three leaves or more leaves out the last new one.
    SplitsUnnamed,
    /// D1: the record of a merge in parts leaves out the page that holds the end of the rest.
    RestUnnamed,
    /// D2: a delta put back by restart stays although its base holds the change.
    KeepStaleDeltas,
    /// D2: a base claims to be complete beyond the deltas in it.
    ClaimTooMuch,
    /// D2: restart folds changes from before a claim with changes from after it.
    ClaimFolded,
    /// D2: a claimed leaf says to be complete beyond the commits in it.
    ClaimOverwritesNewer,
    /// D3: restart reuses the epoch of the session before.
    ReuseEpoch,
    /// D4: the log's head moves before live deltas were copied.
    SkipCopies,
    /// D4: the log's head moves before structure changes are on flash.
    SkipInnerNodes,
    /// D5: a transaction's pages become current without its record.
    CommitGroupsAtMount,
    /// D5: a claim derives from commits that are not durable.
    ClaimBeforeDurable,
    /// D5: the leaves of a split commit a transaction that changed other leaves as well.
    ClaimInPart,
    /// D7: commits may fill the log, and nothing is left for the checkpoint that frees it.
    LogRoomGiven,
    /// D8: a reader's commit does not wait for the commits it read.
    ReaderNotHeld,
    /// D8: a commit is acknowledged before its record is durable.
    AcknowledgeEarly,
    /// D8: a wake-up for an earlier commit, which comes late, acknowledges a later one.
    LateWakeTrusted,
    /// D9: the last log page is relied on after a cut without being copied.
    SkipTailCopy,
    /// D10: a flush does not sync.
    SkipSync,
    /// D11: restart forgets the install records of the log's tail.
    SkipInstalls,
    /// D12: a trim does not check the group.
    TrimAnyGroup,
    /// D13: a scan does not lock its range.
    ScanWithoutLock,
    /// D14: a rollback to a savepoint forgets spilled changes only.
    KeepRolledBack,
    /// D15: a read that was overtaken by an install is kept.
    KeepStaleReads,
    /// D15: an append changes a leaf that a snapshot still reads.
    AppendBuries,
    /// D16: a patch of an absent key is accepted.
    PatchUnread,
    /// D17: a flush ends between commits that were folded into one.
    FrontierBetween,
}

impl SeededBug {
    /// Every bug.
    pub const ALL: [Self; 29] = [
        Self::MergeBeforeDurable,
        Self::InstallBeforeDurable,
        Self::RecordBeforePages,
        Self::SplitsUnnamed,
        Self::RestUnnamed,
        Self::KeepStaleDeltas,
        Self::ClaimTooMuch,
        Self::ClaimFolded,
        Self::ClaimOverwritesNewer,
        Self::ReuseEpoch,
        Self::SkipCopies,
        Self::SkipInnerNodes,
        Self::CommitGroupsAtMount,
        Self::ClaimBeforeDurable,
        Self::ClaimInPart,
        Self::LogRoomGiven,
        Self::ReaderNotHeld,
        Self::AcknowledgeEarly,
        Self::LateWakeTrusted,
        Self::SkipTailCopy,
        Self::SkipSync,
        Self::SkipInstalls,
        Self::TrimAnyGroup,
        Self::ScanWithoutLock,
        Self::KeepRolledBack,
        Self::KeepStaleReads,
        Self::AppendBuries,
        Self::PatchUnread,
        Self::FrontierBetween,
    ];

    /// Number of the rule in `ARCHITECTURE.md`.
    #[must_use]
    pub const fn rule(self) -> u8 {
        match self {
            Self::MergeBeforeDurable
            | Self::InstallBeforeDurable
            | Self::RecordBeforePages
            | Self::SplitsUnnamed
            | Self::RestUnnamed => 1,
            Self::KeepStaleDeltas
            | Self::ClaimTooMuch
            | Self::ClaimFolded
            | Self::ClaimOverwritesNewer => 2,
            Self::ReuseEpoch => 3,
            Self::SkipCopies | Self::SkipInnerNodes => 4,
            Self::CommitGroupsAtMount | Self::ClaimBeforeDurable | Self::ClaimInPart => 5,
            Self::LogRoomGiven => 7,
            Self::ReaderNotHeld | Self::AcknowledgeEarly | Self::LateWakeTrusted => 8,
            Self::SkipTailCopy => 9,
            Self::SkipSync => 10,
            Self::SkipInstalls => 11,
            Self::TrimAnyGroup => 12,
            Self::ScanWithoutLock => 13,
            Self::KeepRolledBack => 14,
            Self::KeepStaleReads | Self::AppendBuries => 15,
            Self::PatchUnread => 16,
            Self::FrontierBetween => 17,
        }
    }
}

/// The planted bug, if any; always none without the feature.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bugs {
    #[cfg(feature = "seeded-bugs")]
    planted: Option<SeededBug>,
}

#[cfg(feature = "seeded-bugs")]
impl Bugs {
    pub(crate) fn of(planted: Option<SeededBug>) -> Self {
        Self { planted }
    }

    pub(crate) fn has(self, bug: SeededBug) -> bool {
        self.planted == Some(bug)
    }
}

#[cfg(not(feature = "seeded-bugs"))]
impl Bugs {
    pub(crate) const fn has(self, _bug: SeededBug) -> bool {
        false
    }
}
