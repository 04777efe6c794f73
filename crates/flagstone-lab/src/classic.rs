//! A classic engine to compare with: ARIES, as its authors describe it, on the same floors.
//!
//! Mohan et al., "ARIES: a transaction recovery method supporting fine-granularity locking and
//! partial rollbacks using write-ahead logging" (ACM TODS 17(1), 1992), with a buffer pool and a
//! B+-tree in the manner of Berkeley DB. It uses the space floor, the device code, the lock table,
//! the log's packing and the node formats of the engine that it is compared with, so that figures
//! differ by the protocol alone. Like that engine it never does I/O and never waits: an operation
//! completes or names the page or the event that it waits for.
//!
//! ```text
//! put ─▶ lock ─▶ log record (redo, undo) ─▶ image in the pool, dirty      commit ─▶ record ─▶ flush
//!                                              │ least recently used, or old for a checkpoint
//!                                              ▼
//!                         log durable up to its LSN? ─▶ whole page written out of place
//! ```
//!
//! | question | rule |
//! | --- | --- |
//! | May a page leave memory with uncommitted changes? | Yes (steal): undo takes them back. |
//! | Must a commit write its pages? | No (no-force): redo brings them back. |
//! | What is logged? | Bytes that differ, before and after; a shape change as one record. |
//! | What does an abort do? | Undoes record by record, and logs each as a compensation. |
//! | What does a checkpoint do? | Writes old dirty pages, logs the two tables, moves the head. |
//! | What does restart do? | Analysis, redo of everything (repeating history), undo of losers. |
//!
//! Invariants:
//! - **A1** A page is written only when the log is durable up to its LSN; the LSN travels with it.
//! - **A2** A commit is acknowledged only when the log is durable up to its record.
//! - **A3** A change and its record are made in one call that cannot stop half way.
//! - **A4** A compensation is never undone: it names the record to go on with.
//! - **A5** A change of shape is one record and never undone; undo finds its entry by key.
//! - **A6** The log's head stays at or below the first record of every dirty page and of every
//!   transaction that runs, and below every page whose freeing is not in the mapping yet.
//! - **A7** Room to undo every transaction that runs is never given away (rule D7): in leaves (an
//!   entry that would take room that undoing may need splits its leaf first), in page numbers
//!   (pages that running transactions gave up count as theirs), in the log (compensations, and the
//!   part of its tail that two restarts in a row copy).
//!
//! Undo information of running transactions is kept in memory and counts against the budget: frames
//! give way to it, down to a dozen. A transaction is refused (`Full`) before the log lacks the room
//! to undo it, which bounds that memory by the size of the log.
//!
//! Reads for a snapshot go through shared locks on whole tables, as in a lock-based engine without
//! versions.

use flagstone_engine::Options;

use crate::preset::{self, EngineKind};

pub(crate) mod access;
pub(crate) mod appends;
mod check;
mod checkpoint;
mod engine;
mod machine;
pub(crate) mod page;
pub(crate) mod pool;
pub(crate) mod record;
mod recording;
mod restart;
#[cfg(test)]
mod tests;
pub(crate) mod tree;
mod value;

pub use engine::Engine;
pub use machine::{Flush, Machine, Restarted, Work};

/// Granule of locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locking {
    /// Records and key ranges.
    #[default]
    Record,
    /// Pages: coarser, as Berkeley DB does it.
    Page,
}

/// How a classic engine runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Memory, log and seed, as for any engine; the fields about frames and merges are not used.
    pub options: Options,
    /// Granule of locks.
    pub locking: Locking,
    /// A deliberate mistake that the crash explorer has to find; has no effect where bugs cannot be
    /// planted.
    pub mistake: Mistake,
}

/// A rule broken on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mistake {
    /// None.
    #[default]
    None,
    /// Pages are written before the log is durable up to their LSN (A1).
    WriteBeforeLog,
    /// Commits return before their record is durable (A2).
    AcknowledgeEarly,
    /// Restart undoes again a change that a compensation has undone (A4).
    UndoAgain,
    /// The log's head passes records that dirty pages and running transactions need (A6).
    HeadTooFar,
    /// Restart does not repeat history.
    SkipRedo,
    /// Restart leaves losers as they are.
    SkipUndo,
    /// Restart relies on programs that may have been in flight (rule D11).
    TailNotCopied,
    /// An append leaves changes out (P3).
    ChangeForgotten,
}

impl Mistake {
    /// Every mistake, with `None` first.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::WriteBeforeLog,
        Self::AcknowledgeEarly,
        Self::UndoAgain,
        Self::HeadTooFar,
        Self::SkipRedo,
        Self::SkipUndo,
        Self::TailNotCopied,
        Self::ChangeForgotten,
    ];
}

impl Config {
    /// How an engine with these options runs; their preset decides the granule of locks.
    #[must_use]
    pub fn of(options: &Options) -> Self {
        let locking = match preset::engine_of(options) {
            EngineKind::Classic(locking) => locking,
            EngineKind::Flagstone | EngineKind::Shadow(..) | EngineKind::Records(_) => {
                Locking::default()
            }
        };
        Self { options: options.clone(), locking, mistake: Mistake::None }
    }

    /// Whether a mistake is made.
    fn makes(&self, mistake: Mistake) -> bool {
        cfg!(any(test, feature = "seeded-bugs")) && self.mistake == mistake
    }
}
