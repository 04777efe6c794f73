//! Deliberate bugs that the crash exploration must find. They do harm only with `seeded-bugs`.

/// A bug of the store, and the rule it breaks.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordBug {
    /// The version that an aborted record leads back to is given up (R1).
    ValueBeforeDropped,
    /// A version is programmed while the one that it leads back to is under way (R2).
    BackNotAwaited,
    /// The log lets a commit record go before its flags are set (R3).
    RecordDropped,
    /// A restart takes the epoch of one that gave no verdict (R4).
    EpochTakenAgain,
    /// A restart erases the log before its verdict (R5).
    LogErasedEarly,
    /// Blocks without a summary are left out of the verdict (R5).
    BlocksNotAdopted,
    /// Transactions that a restart found uncommitted are left out of its verdict (R5).
    DeadNotNamed,
    /// A flag that cannot be set goes unsaid (R6).
    FailureUnsaid,
    /// A block is erased with flags that others need (R7).
    FlagsNotHandedOn,
    /// Programs that may have been in flight at a cut are relied on (M1).
    SuspectsKept,
    /// Of two copies the first is taken, whether it reads or not (M3).
    CopyNotRead,
    /// A flag counts as set without being read back (F2).
    FlagNotVerified,
}

impl RecordBug {
    /// Every bug.
    pub const ALL: [Self; 12] = [
        Self::ValueBeforeDropped,
        Self::BackNotAwaited,
        Self::RecordDropped,
        Self::EpochTakenAgain,
        Self::LogErasedEarly,
        Self::BlocksNotAdopted,
        Self::DeadNotNamed,
        Self::FailureUnsaid,
        Self::FlagsNotHandedOn,
        Self::SuspectsKept,
        Self::CopyNotRead,
        Self::FlagNotVerified,
    ];
}
