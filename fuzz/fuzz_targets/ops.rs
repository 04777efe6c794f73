//! Any bytes spell a configuration, operations and two power cuts; the model is the oracle.
//!
//! `cargo +nightly fuzz run ops`. A crash is any violation of the promise.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(violation) = flagstone_lab::crash::fuzz_ops(bytes) {
        panic!("{violation}");
    }
});
