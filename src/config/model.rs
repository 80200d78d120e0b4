//! The config as the rest of the program uses it.

pub(super) mod child_env;
pub(super) mod governance;
pub(super) mod items;
pub(super) mod listen;
pub(super) mod policy;
pub(super) mod restart_settings;
pub(super) mod scan;
pub(super) mod server;
pub(super) mod server_settings;
pub(super) mod transport;
