//! JSON-RPC errors that we originate, and the codes with a defined meaning.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::json::Raw;

/// Malformed JSON.
pub const PARSE_ERROR: i64 = -32700;
/// Not a JSON-RPC message.
pub const INVALID_REQUEST: i64 = -32600;
/// What `data.code` of a refusal for the scopes of a token says.
pub const INSUFFICIENT_SCOPE: &str = "INSUFFICIENT_SCOPE";

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

/// Why a call got no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailureReason {
    /// The server answered, but not with a valid JSON-RPC response.
    BadAnswer,
    /// The server's circuit breaker is open.
    BreakerOpen,
    /// All connections, or all places of the queue, are taken.
    Busy,
    /// Whoever asked no longer waits.
    Cancelled,
    /// The server is switched off.
    Disabled,
    /// The gateway stops.
    Draining,
    /// Client and server have no revision in common for this request.
    Incompatible,
    /// The gateway itself failed.
    Internal,
    /// The connection broke off while the request was under way.
    Lost,
    /// A member of the params has the wrong type.
    Malformed,
    /// The server refuses our credential.
    NeedsReauth,
    /// Nobody has signed in to the server, or not as this agent.
    NeedsSignIn,
    /// The gateway holds as many bytes as it may.
    Overloaded,
    /// All sessions of the agent have calls under way.
    SessionsBusy,
    /// The server is not started again so soon.
    StartsLimited,
    /// No answer within the time limit.
    Timeout,
    /// A message exceeds a limit of the server.
    TooLarge,
    /// The server cannot be reached.
    Unavailable,
    /// The config has no such server.
    UnknownServer,
}

impl FailureReason {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::BadAnswer,
        Self::BreakerOpen,
        Self::Busy,
        Self::Cancelled,
        Self::Disabled,
        Self::Draining,
        Self::Incompatible,
        Self::Internal,
        Self::Lost,
        Self::Malformed,
        Self::NeedsReauth,
        Self::NeedsSignIn,
        Self::Overloaded,
        Self::SessionsBusy,
        Self::StartsLimited,
        Self::Timeout,
        Self::TooLarge,
        Self::Unavailable,
        Self::UnknownServer,
    ];

    /// The value of `data.reason`: the code in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadAnswer => "bad_answer",
            Self::BreakerOpen => "breaker_open",
            Self::Busy => "busy",
            Self::Cancelled => "cancelled",
            Self::Disabled => "disabled",
            Self::Draining => "draining",
            Self::Incompatible => "incompatible",
            Self::Internal => "internal",
            Self::Lost => "lost",
            Self::Malformed => "malformed",
            Self::NeedsReauth => "needs_reauth",
            Self::NeedsSignIn => "needs_sign_in",
            Self::Overloaded => "overloaded",
            Self::SessionsBusy => "sessions_busy",
            Self::StartsLimited => "starts_limited",
            Self::Timeout => "timeout",
            Self::TooLarge => "too_large",
            Self::Unavailable => "unavailable",
            Self::UnknownServer => "unknown_server",
        }
    }

    /// The value of `data.code`, in the log and in the audit too.
    pub const fn code(self) -> &'static str {
        match self {
            Self::BadAnswer => "BAD_ANSWER",
            Self::BreakerOpen => "BREAKER_OPEN",
            Self::Busy => "BUSY",
            Self::Cancelled => "CANCELLED",
            Self::Disabled => "DISABLED",
            Self::Draining => "DRAINING",
            Self::Incompatible => "INCOMPATIBLE",
            Self::Internal => "INTERNAL",
            Self::Lost => "LOST",
            Self::Malformed => "MALFORMED",
            Self::NeedsReauth => "NEEDS_REAUTH",
            Self::NeedsSignIn => "NEEDS_SIGN_IN",
            Self::Overloaded => "OVERLOADED",
            Self::SessionsBusy => "SESSIONS_BUSY",
            Self::StartsLimited => "STARTS_LIMITED",
            Self::Timeout => "TIMEOUT",
            Self::TooLarge => "TOO_LARGE",
            Self::Unavailable => "UNAVAILABLE",
            Self::UnknownServer => "UNKNOWN_SERVER",
        }
    }

    /// Whether a server, or the way to it, is what failed: whoever called may use another tool meanwhile. The
    /// rest is between the client and the gateway.
    pub const fn is_of_server(self) -> bool {
        match self {
            Self::BadAnswer
            | Self::BreakerOpen
            | Self::Busy
            | Self::Disabled
            | Self::Incompatible
            | Self::Internal
            | Self::Lost
            | Self::NeedsReauth
            | Self::NeedsSignIn
            | Self::StartsLimited
            | Self::Timeout
            | Self::TooLarge
            | Self::Unavailable
            | Self::UnknownServer => true,
            Self::Cancelled
            | Self::Draining
            | Self::Malformed
            | Self::Overloaded
            | Self::SessionsBusy => false,
        }
    }

    /// The members `code` and `reason` of `data`.
    pub fn to_data(self) -> serde_json::Value {
        serde_json::json!({ "code": self.code(), "reason": self.as_str() })
    }

    /// What happened, and what to do about it.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::BadAnswer => {
                "The server's answer is not a valid response, or an HTTP error status. The call may have taken effect. Retryable only after HTTP 429."
            }
            Self::BreakerOpen => {
                "The circuit breaker is open after repeated failures. Retry after `retryAfterMs`."
            }
            Self::Busy => {
                "`limits.in_flight` and `limits.queue`, or all connections of the pool, are in use."
            }
            Self::Cancelled => "The client cancelled the request.",
            Self::Disabled => "The server has `enabled = false`.",
            Self::Draining => "The gateway is shutting down. Retry after `retryAfterMs`.",
            Self::Incompatible => {
                "The request cannot be translated between the protocol revisions of client and server, or the server is not a usable MCP server."
            }
            Self::Internal => "The gateway failed; its log has the details.",
            Self::Lost => {
                "The connection was lost during the call, which may have taken effect. Not retryable."
            }
            Self::Malformed => {
                "A member of the params has the wrong type (`data.code` is `INVALID_PARAMS`)."
            }
            Self::NeedsReauth => {
                "The server answered 401 or 403: fix `auth` or `headers` of the server."
            }
            Self::NeedsSignIn => {
                "Sign in to the server first: at `data.signIn.url`, or the operator with `tollbridge login`. Nothing was sent."
            }
            Self::Overloaded => {
                "`limits.bytes_in_flight` is nearly used up (HTTP 503). Retry after `retryAfterMs`."
            }
            Self::SessionsBusy => {
                "All `limits.sessions_per_agent` sessions have running calls (HTTP 429)."
            }
            Self::StartsLimited => {
                "Too many failed starts (`retry.starts_per_minute`). Retry after `retryAfterMs`."
            }
            Self::Timeout => {
                "No answer within the time limit that the message names. The call may have taken effect."
            }
            Self::TooLarge => {
                "The message exceeds `limits.request` or `limits.response` of the server."
            }
            Self::Unavailable => {
                "The server is not connected; nothing was sent. `data.state` says where it stands."
            }
            Self::UnknownServer => "There is no server with this name.",
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_its_code_in_lower_case() {
        for reason in FailureReason::ALL {
            assert_eq!(reason.code().to_ascii_lowercase(), reason.as_str());
        }
    }
}
