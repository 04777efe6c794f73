//! Any bytes, taken for the image of a tiny chip, are opened, read, checked and written.
//!
//! `cargo +nightly fuzz run image`. A crash is a panic of the engine or a loop without an end.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(violation) = flagstone_lab::crash::fuzz_image(bytes) {
        panic!("{violation}");
    }
});
