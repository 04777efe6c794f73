//! Stores of shadow pages and policies of memory, as the papers describe them: opponents of the engine, on
//! the same devices.
//!
//! Owns the rules by which flags and cycles prove a commit ([`evidence`]), and two stores that live
//! by them: of whole pages ([`shadow`]) and of records ([`shadow::records`]). They have mapping,
//! collection and restart of their own, and take the parts that no protocol concerns from the space
//! floor: types, checksums and the code of metadata. Owns the policies that choose leaves and frames
//! within the engine itself, as its guests ([`policies`]), and the presets that the papers made of them
//! ([`presets`]).
//!
//! Never needed to use the engine.
#![forbid(unsafe_code)]

pub mod evidence;
pub mod policies;
pub mod presets;
pub mod shadow;

#[cfg(test)]
mod draw;
