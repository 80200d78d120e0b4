//! JSON-RPC errors that we originate, and the codes with a defined meaning.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::json::Raw;

/// Malformed JSON.
pub const PARSE_ERROR: i64 = -32700;
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

/// The codes that we originate, with their meaning.
pub const CODES: [(i64, &str); 10] = [
    (PARSE_ERROR, "The body is not JSON."),
    (
        INVALID_REQUEST,
        "The message is not a valid JSON-RPC request.",
    ),
    (
        METHOD_NOT_FOUND,
        "The method is unknown, or not available on this route or in this revision.",
    ),
    (
        INVALID_PARAMS,
        "The params are invalid, or name an unknown item; see `data.code`.",
    ),
    (
        INTERNAL,
        "The server did not answer, or the gateway could not handle the call; see `data.code`.",
    ),
    (RESOURCE_NOT_FOUND, "Unknown resource (up to 2025-11-25)."),
    (
        URL_ELICITATION_REQUIRED,
        "The client must visit the URLs in `data.elicitations` first (2025-11-25).",
    ),
    (
        HEADER_MISMATCH,
        "A header is missing, malformed or contradicts the body (2026-07-28).",
    ),
    (
        MISSING_CAPABILITY,
        "The request needs a capability that the client did not declare (2026-07-28).",
    ),
    (
        UNSUPPORTED_VERSION,
        "The protocol revision is not supported; `data.supported` lists those that are.",
    ),
];

/// Values of `data.reason` of calls that got no answer. `data.code` is the same in upper case.
pub mod reason {
    /// The server answered, but not with a valid JSON-RPC response.
    pub const BAD_ANSWER: &str = "bad_answer";
    /// The server's circuit breaker is open.
    pub const BREAKER_OPEN: &str = "breaker_open";
    /// All connections, or all places of the queue, are taken.
    pub const BUSY: &str = "busy";
    /// Whoever asked no longer waits.
    pub const CANCELLED: &str = "cancelled";
    /// The server is switched off.
    pub const DISABLED: &str = "disabled";
    /// The gateway stops.
    pub const DRAINING: &str = "draining";
    /// Client and server have no revision in common for this request.
    pub const INCOMPATIBLE: &str = "incompatible";
    /// The gateway itself failed.
    pub const INTERNAL: &str = "internal";
    /// The connection broke off while the request was under way.
    pub const CONNECTION_LOST: &str = "lost";
    /// A member of the params has the wrong type.
    pub const MALFORMED: &str = "malformed";
    /// The server refuses our credential.
    pub const NEEDS_REAUTH: &str = "needs_reauth";
    /// The gateway holds as many bytes as it may.
    pub const OVERLOADED: &str = "overloaded";
    /// All sessions of the agent have calls under way.
    pub const SESSIONS_BUSY: &str = "sessions_busy";
    /// The server is not started again so soon.
    pub const STARTS_LIMITED: &str = "starts_limited";
    /// No answer within the time limit.
    pub const TIMEOUT: &str = "timeout";
    /// A message exceeds a limit of the server.
    pub const TOO_LARGE: &str = "too_large";
    /// The server cannot be reached.
    pub const UNAVAILABLE: &str = "unavailable";
    /// The config has no such server.
    pub const UNKNOWN_SERVER: &str = "unknown_server";

    /// All of them, with what to do about each.
    pub const ALL: [(&str, &str); 18] = [
        (
            BAD_ANSWER,
            "The server's answer is not a valid response, or an HTTP error status. The call may have \
             taken effect. Retryable only after HTTP 429.",
        ),
        (
            BREAKER_OPEN,
            "The circuit breaker is open after repeated failures. Retry after `retryAfterMs`.",
        ),
        (
            BUSY,
            "`limits.in_flight` and `limits.queue`, or all connections of the pool, are in use.",
        ),
        (CANCELLED, "The client cancelled the request."),
        (DISABLED, "The server has `enabled = false`."),
        (
            DRAINING,
            "The gateway is shutting down. Retry after `retryAfterMs`.",
        ),
        (
            INCOMPATIBLE,
            "The request cannot be translated between the protocol revisions of client and server, or \
             the server is not a usable MCP server.",
        ),
        (INTERNAL, "The gateway failed; its log has the details."),
        (
            CONNECTION_LOST,
            "The connection was lost during the call, which may have taken effect. Not retryable.",
        ),
        (
            MALFORMED,
            "A member of the params has the wrong type (`data.code` is `INVALID_PARAMS`).",
        ),
        (
            NEEDS_REAUTH,
            "The server answered 401 or 403: fix `auth` or `headers` of the server.",
        ),
        (
            OVERLOADED,
            "`limits.bytes_in_flight` is nearly used up (HTTP 503, no `data.code`). Retry after \
             `retryAfterMs`.",
        ),
        (
            SESSIONS_BUSY,
            "All `limits.sessions_per_agent` sessions have running calls (HTTP 429, no `data.code`).",
        ),
        (
            STARTS_LIMITED,
            "Too many failed starts (`retry.starts_per_minute`). Retry after `retryAfterMs`.",
        ),
        (
            TIMEOUT,
            "No answer within the time limit that the message names. The call may have taken effect.",
        ),
        (
            TOO_LARGE,
            "The message exceeds `limits.request` or `limits.response` of the server.",
        ),
        (
            UNAVAILABLE,
            "The server is not connected; nothing was sent. `data.state` says where it stands.",
        ),
        (UNKNOWN_SERVER, "There is no server with this name."),
    ];
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
    pub fn with_data(mut self, data: serde_json::Value) -> Self {
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
pub fn is_valid(error: &Raw) -> bool {
    let message = error.get("message");
    code(error).is_some()
        && message.is_some_and(|message| message.as_bytes().first() == Some(&b'"'))
}
