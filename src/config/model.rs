//! The config as the rest of the program uses it. Most types are also those that a file is read into and
//! that `tollbridge check` prints; what ends in `Section` is only how a value is written.

/// More calls or connections than a process has room for.
pub(super) const CALLS_MAX: usize = 1_000_000;

/// The deepest JSON that `serde_json` reads.
pub(super) const DEPTH_MAX: usize = 128;

pub(super) mod authentication;
pub(super) mod child_env;
pub(super) mod egress;
pub(super) mod entries;
pub(super) mod environment_proxies;
pub(super) mod governance;
pub(super) mod items;
pub(super) mod limits;
pub(super) mod listen;
pub(super) mod oauth;
pub(super) mod oauth_grant;
pub(super) mod policy;
pub(super) mod restart_settings;
pub(super) mod role;
pub(super) mod scan;
pub(super) mod secrets;
pub(super) mod server;
pub(super) mod server_settings;
pub(super) mod transport;
pub(super) mod views;
pub(super) mod workspace;
