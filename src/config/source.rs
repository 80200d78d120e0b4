//! Where a config comes from: files in three formats, the environment, variables.

pub(super) mod decode;
pub(super) mod environment;
pub(super) mod json;
mod override_path;
pub(super) mod toml;
pub(super) mod variables;
pub(super) mod yaml;
