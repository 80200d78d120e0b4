//! The walk through JSON, the search in each text, and what is done with what is found.

pub(super) mod compiled;
mod decode;
mod embedded;
mod escapes;
pub(super) mod redaction;
pub(super) mod schema;
pub(super) mod search;
pub(super) mod sink;
pub(super) mod walk;
