//! Where a config comes from: files in three formats, the environment, variables.

mod decode;
pub(super) mod environment;
mod json;
pub(super) mod load;
mod toml;
mod variables;
mod yaml;
