//! Stores of shadow pages, as the papers describe them: opponents of the engine, on the same devices.
//!
//! Owns the rules by which flags and cycles prove a commit ([`evidence`]), and two stores that live
//! by them: of whole pages ([`shadow`]) and of records ([`shadow::records`]). They have mapping,
//! collection and restart of their own, and take the parts that no protocol concerns from the space
//! floor: types, checksums and the code of metadata.
//!
//! Never needed to use the engine.
#![forbid(unsafe_code)]

pub mod evidence;
pub mod shadow;

#[cfg(test)]
mod draw;
