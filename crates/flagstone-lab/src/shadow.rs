//! An engine of shadow pages: the basic protocols of flag commit and of cyclic commit, under the
//! same B+-tree, pool and locks as the classic engine.
//!
//! On et al., "Flag Commit" (TKDE 24(9), 2012), sections 3 and 5; Prabhakaran et al.,
//! "Transactional Flash" (OSDI 2008). There is no log: the changes of a transaction go to flash as
//! shadow pages, and the pages themselves prove the commit.
//!
//! ```text
//! put ─▶ lock page ─▶ image in the pool, dirty        commit ─▶ every dirty page of it written
//!                        │ least recently used                    (force), then flag or cycle
//!                        ▼
//!                     shadow page written (steal): nobody else sees it until the commit
//! ```
//!
//! | question | rule |
//! | --- | --- |
//! | May a page leave memory with uncommitted changes? | Yes (steal): its old version stays on flash. |
//! | Must a commit write its pages? | Yes (force): there is nothing to redo from. |
//! | What does an abort do? | Forgets frames; the store forgets shadow pages. |
//! | Who may read a changed page? | Its transaction alone, until the commit is on flash. |
//!
//! Invariants:
//! - **H1** A dirty frame belongs to one running transaction, which holds its page exclusively.
//! - **H2** No transaction looks at a page that another one has changed, inner nodes included.
//! - **H3** A split changes all its pages or none, and only when their locks are all held.
//! - **H4** Locks go when the commit is on flash (strict two-phase locking, no early release): the
//!   page that a later transaction builds on is committed.
//! - **H5** Page numbers that a transaction took are unused again when it aborts.
//!
//! Values must fit into a leaf: the protocols know pages only.

use flagstone_engine::Options;
use flagstone_opponents::shadow::ShadowProtocol;

use crate::preset::{self, EngineKind};

mod access;
mod engine;
mod machine;
#[cfg(test)]
mod tests;
mod tree;

pub use engine::Engine;
pub use machine::{Flush, Machine, Work};

/// How a shadow engine runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Memory and seed, as for any engine; the fields about log and merges are not used.
    pub options: Options,
    /// How the store commits.
    pub protocol: ShadowProtocol,
    /// Whether flags and links stand for clusters of a block (section 3.4).
    pub block_flags: bool,
}

impl Config {
    /// How an engine with these options runs; the protocol follows from their preset.
    #[must_use]
    pub fn of(options: &Options) -> Self {
        let (protocol, block_flags) = match preset::engine_of(options) {
            EngineKind::Shadow(protocol, block_flags) => (protocol, block_flags),
            EngineKind::Flagstone | EngineKind::Classic(_) | EngineKind::Records(_) => {
                (ShadowProtocol::Cfc, false)
            }
        };
        Self { options: options.clone(), protocol, block_flags }
    }
}
