//! Bugs that a test of their own shows.
//!
//! Owns the list of these tests. Never runs one: the caller runs the command.

use std::time::Instant;

use flagstone_engine::SeededBug;
use flagstone_space::SpaceBug;

use super::{Found, Quarry};

/// A test that plants a bug and demands that it is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnTest {
    /// Arguments of `cargo test` before the name.
    arguments: &'static str,
    /// Name of the test.
    pub(super) name: &'static str,
}

const IN_SPACE: &str = "-p flagstone-space --lib";

const IN_ENGINE: &str = "-p flagstone --test engine";
const IN_DRIVER: &str = "-p flagstone-engine --lib";

/// Bugs that no way of the hunt has shown, or late: each has a test that does.
pub(super) const OWN_TESTS: [(Quarry, OwnTest); 8] = {
    const FROZEN: OwnTest = OwnTest {
        arguments: IN_SPACE,
        name: "tests::frozen::planted_bugs_of_frozen_mappings_are_found",
    };
    [
        (
            Quarry::Engine(SeededBug::InstallBeforeDurable),
            OwnTest {
                arguments: IN_ENGINE,
                name: "installs::installs_before_their_record_are_seen",
            },
        ),
        (
            Quarry::Engine(SeededBug::LateWakeTrusted),
            OwnTest {
                arguments: IN_DRIVER,
                name: "runtime::drive::tests::late_wake_ups_that_are_trusted_are_seen",
            },
        ),
        (
            Quarry::Engine(SeededBug::ClaimFolded),
            OwnTest { arguments: IN_ENGINE, name: "folds::a_fold_over_a_page_commit_is_seen" },
        ),
        (
            Quarry::Engine(SeededBug::ClaimInPart),
            OwnTest {
                arguments: IN_ENGINE,
                name: "loads::planted_bugs_are_found_by_cutting_loads",
            },
        ),
        (Quarry::Space(SpaceBug::FrozenIgnored), FROZEN),
        (Quarry::Space(SpaceBug::FrozenNotFollowed), FROZEN),
        (
            Quarry::Space(SpaceBug::GrownBlocksForgotten),
            OwnTest {
                arguments: IN_SPACE,
                name: "tests::bugs::grown_blocks_that_a_mount_forgets_are_missed",
            },
        ),
        (
            Quarry::Space(SpaceBug::FlagErased),
            OwnTest {
                arguments: IN_SPACE,
                name: "tests::bugs::flags_that_are_erased_too_early_are_missed",
            },
        ),
    ]
};

impl Quarry {
    /// The test that shows it, where that is no way of the hunt.
    #[must_use]
    pub fn own_test(self) -> Option<OwnTest> {
        OWN_TESTS.into_iter().find(|(quarry, _)| *quarry == self).map(|(_, test)| test)
    }
}

impl OwnTest {
    /// The command that runs it, at the root of the source tree.
    #[must_use]
    pub fn command(self) -> String {
        let Self { arguments, name } = self;
        format!("cargo test {arguments} --features seeded-bugs --locked -- --exact {name}")
    }

    /// Whether the output of the command says that it ran, and saw the bug.
    #[must_use]
    pub fn has_passed(self, printed: &str) -> bool {
        printed.lines().any(|line| line == format!("test {} ... ok", self.name))
    }

    /// The violation it found for `quarry`; `printed` gives the output of the command, if the
    /// command succeeded.
    #[must_use]
    pub fn found(self, quarry: Quarry, printed: impl FnOnce(&str) -> Option<String>) -> Found {
        let started = Instant::now();
        let printed = printed(&self.command()).unwrap_or_default();
        Found {
            bug: quarry.name(),
            rule: quarry.rule(),
            by: self.has_passed(&printed).then_some(self.name),
            seen: String::new(),
            states: 0,
            elapsed_s: started.elapsed().as_secs_f64(),
        }
    }
}
