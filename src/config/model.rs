//! The config as the rest of the program uses it.

pub(super) mod changed;
pub(super) mod child_env;
pub(super) mod fixed;
pub(super) mod governing;
pub(super) mod listen;
pub(super) mod server;
