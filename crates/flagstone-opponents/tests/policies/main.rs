//! The engine with the policies and presets of the papers, through the public interface, one module a subject.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

#[path = "../../../flagstone/tests/engine/hooked.rs"]
mod hooked;
mod lazy_split_lru;
#[path = "../../../flagstone/tests/engine/on.rs"]
#[expect(dead_code, reason = "shared with the tests of the public interface")]
mod on;
mod on_the_fly_redo;
mod openings;
mod victims;

use flagstone_engine::Options;

/// Options of a preset of the papers, or of the engine.
fn preset(name: &str) -> Options {
    flagstone_opponents::presets::options(name).unwrap_or_else(|| Options::preset(name).unwrap())
}
