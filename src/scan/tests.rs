//! tests

