//! JSON-RPC errors that we originate, and the codes with a defined meaning.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::json::Raw;

/// Malformed JSON.
pub const PARSE: i64 = -32700;
/// Not a JSON-RPC message.
pub const INVALID_REQUEST: i64 = -32600;
/// Unknown method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// Wrong params; also an unknown tool, prompt, cursor and (2026-07-28) resource.
pub const INVALID_PARAMS: i64 = -32602;
/// Everything else.
pub const INTERNAL: i64 = -32603;
/// Resource not found, up to 2025-11-25.
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// 2025-11-25: the client has to visit the URLs in `data.elicitations` first.
pub const URL_ELICITATION_REQUIRED: i64 = -32042;
/// 2026-07-28: a header is missing, malformed or differs from the body.
pub const HEADER_MISMATCH: i64 = -32020;
/// 2026-07-28: the request needs a capability that the client did not declare.
pub const MISSING_CAPABILITY: i64 = -32021;
/// 2026-07-28: the revision is not spoken here.
pub const UNSUPPORTED_VERSION: i64 = -32022;

/// Values of `data.reason` that something depends on, here or in the command line.
pub mod reason {
    /// The server's circuit breaker is open.
    pub const BREAKER_OPEN: &str = "breaker_open";
    /// Whoever asked no longer waits.
    pub const CANCELLED: &str = "cancelled";
    /// The gateway stops.
    pub const DRAINING: &str = "draining";
    /// The connection broke off while the request was under way.
    pub const LOST: &str = "lost";
    /// The server is not started again so soon.
    pub const STARTS_LIMITED: &str = "starts_limited";
    /// The server cannot be reached.
    pub const UNAVAILABLE: &str = "unavailable";
}

/// When what stands in the way only for the moment may be gone. Not known more exactly: this keeps
/// whoever is refused from asking in a loop.
pub const RETRY_SOON: Duration = Duration::from_secs(1);

/// Whole milliseconds, rounded up: who waits that long is not too early.
pub fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A JSON-RPC error object of our own making.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RpcError {
    /// See the constants of this module.
    pub code: i64,
    /// What happened, for people.
    pub message: String,
    /// What happened, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<serde_json::Value>,
}

impl RpcError {
    /// An error without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    /// Adds data.
    #[must_use]
    pub fn with(mut self, data: serde_json::Value) -> Self {
        self.data = Some(data);
        self
    }

    /// Says in the data that the same request may succeed in a moment.
    #[must_use]
    pub fn retry_soon(mut self) -> Self {
        let data = self.data.get_or_insert_with(|| json!({}));
        data["retryable"] = json!(true);
        data["retryAfterMs"] = json!(millis(RETRY_SOON));
        self
    }

    /// The error object as JSON.
    pub fn to_raw(&self) -> Raw {
        Raw::from_value(self)
    }
}

/// The `code` of an error object, when it is an integer.
pub fn code(error: &Raw) -> Option<i64> {
    error
        .get("code")
        .and_then(|code| code.as_str().parse().ok())
}

/// Whether this is an error object, which has an integer `code` and a `message`.
pub fn is_legal(error: &Raw) -> bool {
    let message = error.get("message");
    code(error).is_some()
        && message.is_some_and(|message| message.as_bytes().first() == Some(&b'"'))
}
