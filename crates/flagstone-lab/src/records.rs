//! An engine of shared shadow pages: the extended protocols of flag commit, under the same B+-tree,
//! pool and lock table as the other engines of the lab.
//!
//! On et al., "Flag Commit" (TKDE 24(9), 2012), section 4: no-force with a redo log, locks on
//! records, one flag a transaction and page. The store beneath
//! ([`flagstone_opponents::shadow::records`]) keeps the versions, the flags and the pages of the
//! log; this engine knows which records are whose.
//!
//! ```text
//! put ─▶ lock record, place in the leaf ─▶ redo record in the log buffer, image in the pool
//!                                             │ least recently used, or old for a checkpoint
//!                                             ▼
//!      one version with the pending records of up to max_c transactions; what the version carries
//!      leaves the log buffer
//!
//! commit ─▶ all of it on flash?  yes ─▶ flags                              no log write at all
//!                                no  ─▶ commit record, buffer forced ─▶ flags, when there is time
//! ```
//!
//! A leaf's content is its node, and behind it a **section** of pending records: entry, transaction,
//! size of the value before. The value itself stands in the version that the unit leads back to, or in
//! an older one. Reading merges: values before aborted changes are taken from there.
//!
//! | question | rule |
//! | --- | --- |
//! | May a page leave memory with uncommitted changes? | Yes (steal): they are pending records. |
//! | Must a commit write its pages? | No (no-force): the log brings them back. |
//! | What does an abort do? | Forgets log records; drops pages that it alone changed; takes its records back on others, or has them read again. |
//! | How many transactions may change a page at a time? | As many as it has flags: the next one waits. |
//! | How is a leaf split? | In memory, as one log record that nobody undoes; pending records move along. |
//!
//! Invariants:
//! - **H1** A pending record's value before is on flash, or in memory. A version carries the record
//!   as pending only when that value is on flash in an earlier version: else a version is written
//!   first that holds the value before in its place. (The paper takes the value before from disk,
//!   which does not have it when the last commit of the record is in the log alone.)
//! - **H2** A version says up to which log record it is complete; it may hold more, and the log has
//!   every record that the version may lack. Redo repeats whole values, so that twice is once.
//! - **H3** A page whose shape changed is written when the log has the record of that change (rule
//!   D1).
//! - **H4** A leaf has room for every outcome of its pending records: shrinking by one transaction
//!   makes no room for another until it commits.
//! - **H5** A checkpoint is taken only after all pages are written that were dirty at the
//!   checkpoint before; records older than that earlier one may leave the log, except commit
//!   records of which a flag is unset.
//! - **H6** Locks go when the commit is durable (strict two-phase locking, no early release).
//!
//! Values must fit into a leaf; there are no savepoints.

use flagstone_engine::Options;
use flagstone_opponents::evidence::Flags;

use crate::preset::{self, EngineKind};

mod access;
mod engine;
mod frames;
mod log;
mod machine;
mod page;
mod resolve;
mod restart;
#[cfg(test)]
mod tests;
mod tree;

pub use engine::Engine;
pub use machine::{Flush, Machine, Sharing, Work};

/// How an engine of shared pages runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Memory and seed, as for any engine; the fields about merges are not used.
    pub options: Options,
    /// Protocol of the flags.
    pub flags: Flags,
}

impl Config {
    /// How an engine with these options runs; their preset decides the protocol of the flags.
    #[must_use]
    pub fn of(options: &Options) -> Self {
        let flags = match preset::engine_of(options) {
            EngineKind::Records(flags) => flags,
            EngineKind::Flagstone | EngineKind::Classic(_) | EngineKind::Shadow(..) => Flags::Cfc,
        };
        Self { options: options.clone(), flags }
    }
}
