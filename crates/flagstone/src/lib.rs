//! Flagstone.
