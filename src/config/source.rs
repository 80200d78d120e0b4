//! Where a config comes from: files in three formats, the environment, variables.

pub(super) mod decode;
pub(super) mod environment;
mod exec;
pub(super) mod json;
mod override_path;
pub(super) mod secret_values;
pub(super) mod toml;
pub(super) mod variables;
pub(super) mod yaml;
