//! The walk through JSON, the search in each text, and what is done with what is found.

pub(super) mod compiled;
mod decode;
pub(super) mod document_walk;
mod embedded;
mod escapes;
pub(super) mod scan_sink;
pub(super) mod schema;
pub(super) mod schema_fit;
pub(super) mod search;
