//! Floor 0: flash devices.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

mod address;
mod device;
mod geometry;

pub use address::{BlockIndex, PhysicalPage};
pub use device::{
    Completion, Counters, FlashRule, Nand, NandError, ProgramPart, ReadPart,
};
pub use geometry::{
    Capabilities, CellMode, CodeWord, Geometry, PartialCut, ProgramOrder, SpareRange,
};
