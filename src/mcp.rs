//! Protocol vocabulary: envelopes with raw params, methods, revisions as data, codes, `_meta`.
//!
//! No I/O and no state. Whoever needs more than the envelope of a message asks [`json`] for the
//! span it wants; no message we relay is ever parsed into a model and printed again.

pub mod envelope;
pub mod error;
pub mod gateway_headers;
pub mod header;
pub mod json;
pub mod log_level;
pub mod meta;
pub mod method;
pub mod param_types;
pub mod params;
pub mod revision;
pub mod sse;
pub mod tasks;
pub mod trace;

pub use envelope::{Id, Message, Notification, Outcome, Request, Response};
pub use error::RpcError;
pub use gateway_headers::GatewayId;
pub use json::Raw;
pub use log_level::{Level, LogFilter};
pub use method::Method;
pub use params::Params;
pub use revision::{Era, Revision};
pub use trace::Trace;
