//! Deliberate bugs that the crash explorer must find. Compiled in only with `seeded-bugs`.

/// A bug of this floor, and the rule it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpaceBug {
    /// A block is erased, or given back to the host, before the replacement of its content is synced (D10).
    EraseBeforeSync,
    /// A page still being programmed on another die counts as complete (D1).
    DiesNotAwaited,
    /// A log block is freed before the record that passes it is durable (D4).
    ReuseBeforeCheckpoint,
    /// Users may take the blocks that are kept for collection and checkpoints (D7).
    ReserveGiven,
    /// Pages that share cells with pages still to come are relied on (D9).
    PairsNotSettled,
    /// Relocation gives a page a new version (D6).
    RelocationTakesNewVersion,
    /// A page of an open group counts as committed at mount (D1).
    OpenGroupCounts,
    /// A page or record whose checksum fails is accepted (D6).
    ChecksumIgnored,
    /// A page of an earlier life of its block is accepted (D6).
    StaleSequenceAccepted,
    /// Pages that may have been in flight at the cut are relied on (D11).
    SuspectNotCopied,
    /// Numbers are not reserved before they are used (D3).
    NumbersNotReserved,
    /// The checkpoint leaves out open groups (D4).
    GroupsNotListed,
    /// A free-looking block is programmed without an erase in this session (D11).
    FreeBlockNotErased,
    /// A verdict that a mount based on flags is relied on before it is pinned (D11).
    FlagTrustedInFlight,
    /// A flag goes before a record covers its group (D4).
    FlagErased,
    /// A mount forgets the appends that the recorded mapping counts (D6).
    AppendsForgotten,
    /// A page of an earlier session takes appends: a cut may have left something in its slots (D11).
    AppendsToOldUnits,
    /// A version that a snapshot has pinned may be erased once it is replaced (D15).
    PinsIgnored,
    /// A unit that a frozen mapping points to may be erased once its page is written anew (D15).
    FrozenIgnored,
    /// A mount looks for the units of frozen mappings where they stood when the record was made (D6).
    FrozenNotFollowed,
    /// A mount takes blocks that its record does not know for unused ones (D4).
    GrownBlocksForgotten,
}

impl SpaceBug {
    /// Every bug.
    pub const ALL: [Self; 21] = [
        Self::EraseBeforeSync,
        Self::DiesNotAwaited,
        Self::ReuseBeforeCheckpoint,
        Self::ReserveGiven,
        Self::PairsNotSettled,
        Self::RelocationTakesNewVersion,
        Self::OpenGroupCounts,
        Self::ChecksumIgnored,
        Self::StaleSequenceAccepted,
        Self::SuspectNotCopied,
        Self::NumbersNotReserved,
        Self::GroupsNotListed,
        Self::FreeBlockNotErased,
        Self::FlagTrustedInFlight,
        Self::FlagErased,
        Self::AppendsForgotten,
        Self::AppendsToOldUnits,
        Self::PinsIgnored,
        Self::FrozenIgnored,
        Self::FrozenNotFollowed,
        Self::GrownBlocksForgotten,
    ];

    /// Number of the rule in `ARCHITECTURE.md`.
    #[must_use]
    pub const fn rule(self) -> u8 {
        match self {
            Self::OpenGroupCounts | Self::DiesNotAwaited => 1,
            Self::NumbersNotReserved => 3,
            Self::ReuseBeforeCheckpoint
            | Self::GroupsNotListed
            | Self::FlagErased
            | Self::GrownBlocksForgotten => 4,
            Self::RelocationTakesNewVersion
            | Self::AppendsForgotten
            | Self::FrozenNotFollowed
            | Self::ChecksumIgnored
            | Self::StaleSequenceAccepted => 6,
            Self::ReserveGiven => 7,
            Self::PairsNotSettled => 9,
            Self::EraseBeforeSync => 10,
            Self::SuspectNotCopied
            | Self::FreeBlockNotErased
            | Self::FlagTrustedInFlight
            | Self::AppendsToOldUnits => 11,
            Self::PinsIgnored | Self::FrozenIgnored => 15,
        }
    }
}

/// The planted bugs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bugs {
    #[cfg(feature = "seeded-bugs")]
    planted: Option<SpaceBug>,
}

impl Bugs {
    #[cfg(feature = "seeded-bugs")]
    pub(crate) fn plant(&mut self, bug: SpaceBug) {
        self.planted = Some(bug);
    }

    /// Whether the bug is planted; never without the feature.
    #[cfg(feature = "seeded-bugs")]
    pub(crate) fn has(self, bug: SpaceBug) -> bool {
        self.planted == Some(bug)
    }

    /// Whether the bug is planted; never without the feature.
    #[cfg(not(feature = "seeded-bugs"))]
    #[expect(clippy::unused_self, reason = "same form as with the feature")]
    pub(crate) const fn has(self, _bug: SpaceBug) -> bool {
        false
    }
}
