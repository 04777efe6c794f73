//! Deliberate bugs that the crash exploration must find. Compiled in only with `seeded-bugs`.

/// A bug of the store, and the rule it breaks.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShadowBug {
    /// A link counts without a check of the page it leads to (E1).
    LinkNotChecked,
    /// A transaction with heads of both kinds counts as aborted (E2).
    HalfFlaggedAborts,
    /// Restart does not finish the flags of such a transaction (E3).
    FlagsNotFinished,
    /// The stale copy of a running transaction's page is not erased (E4).
    StaleCopyKept,
    /// Pages that go with one erase rely on each other (E5).
    PagesReclaimedAlone,
    /// A cut erase is believed to leave nothing (E6).
    CutEraseIgnored,
    /// A flag counts as set without being read back (F2).
    FlagNotVerified,
    /// A version that a record names is given again (BPCC).
    NamedVersionReused,
    /// A record is reclaimed that straddles one that did not commit (BPCC).
    StraddlerReclaimed,
    /// Records that name a page are not erased before the page is written (SCC).
    NamingNotErased,
    /// Programs that may have been in flight at a cut are relied on (H5).
    SuspectsKept,
}

/// The planted bug of a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bugs<B> {
    planted: Option<B>,
}

impl<B> Default for Bugs<B> {
    fn default() -> Self {
        Self { planted: None }
    }
}

impl<B: Copy + PartialEq> Bugs<B> {
    #[cfg(feature = "seeded-bugs")]
    pub(super) const fn plant(&mut self, bug: B) {
        self.planted = Some(bug);
    }

    /// Whether the bug is planted; never without the feature.
    pub(super) fn has(self, bug: B) -> bool {
        cfg!(feature = "seeded-bugs") && self.planted == Some(bug)
    }
}
