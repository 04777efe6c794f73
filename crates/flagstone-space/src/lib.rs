//! Floor 1: logical pages on flash.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

mod types;

pub use types::{Cause, GroupId, LogicalPage, Lsn, RegionId, Version};
