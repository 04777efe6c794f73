//! Full devices, failing blocks, damaged pages.
