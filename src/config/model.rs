//! The config as the rest of the program uses it.

pub(super) mod child_env;
pub(super) mod governance;
pub(super) mod listen;
pub(super) mod restart_settings;
pub(super) mod server;
pub(super) mod server_settings;
