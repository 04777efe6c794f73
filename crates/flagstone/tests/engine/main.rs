//! The engine through its public interface, one module a subject, in one program, so that the engine is
//! compiled once.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails here")]

mod backup;
mod beside;
mod bill;
mod compact;
mod deferred;
mod emptied;
mod failing;
mod files;
mod folds;
mod full_device;
mod full_host;
mod grow;
mod handles;
mod hooked;
mod indexes;
mod installs;
mod interface;
mod isolation;
mod kept;
mod loads;
mod on;
mod own_ecc;
mod paced;
mod progress;
mod read_only;
mod recovery;
mod rows;
mod salvage;
mod shared_reads;
mod single_points;
mod smoke;
mod tables;
mod typed;
mod values;
