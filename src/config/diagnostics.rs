//! What is told of mistakes in a config: where, with an excerpt, without secrets.

pub(super) mod ignored_keys;
pub(super) mod masked;
pub(super) mod redact;
pub(super) mod renamed_keys;
pub(super) mod report;
pub(super) mod suggest;
