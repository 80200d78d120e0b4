//! Why a server gave no answer, and what its caller is told.

use std::time::Duration;

use http::StatusCode;

use crate::{
    mcp::{Era, Raw, RpcError, error},
    names::ServerName,
};

/// Why a server gave no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The client no longer wants the answer.
    #[error("the client cancelled the request")]
    Cancelled,
    /// No network connection. The operator checks URL and network.
    #[error("no connection: {reason}")]
    Connect {
        /// What the network said.
        reason: String,
    },
    /// The server is switched off in the config.
    #[error("it is disabled in the config")]
    Disabled,
    /// The server does not speak the era that is wanted.
    #[error("it does not speak the {era} era")]
    Era {
        /// The era that was tried.
        era: Era,
    },
    /// The server broke the protocol.
    #[error("it broke the protocol: {what}")]
    Garbled {
        /// How.
        what: String,
    },
    /// A configured header cannot be sent. The operator mends the config.
    #[error("the configured header `{name}` has an impossible name or value")]
    Header {
        /// Its name.
        name: String,
    },
    /// An HTTP status that answers no request.
    #[error("it answered HTTP {status}{}", display_body(body))]
    Http {
        /// The status.
        status: StatusCode,
        /// The start of the body.
        body: String,
    },
    /// The connection ended before the answer came.
    #[error("the connection was lost: {reason}")]
    Lost {
        /// Why.
        reason: String,
    },
    /// The handshake was refused.
    #[error("it refused the handshake: {}", error.as_str())]
    Refused {
        /// The error object.
        error: Raw,
    },
    /// The request is larger than `limits.request`.
    #[error("the request has {bytes} bytes, limits.request allows {limit}")]
    RequestTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The answer is larger than `limits.response`.
    #[error("the answer is larger than limits.response ({limit} bytes)")]
    ResponseTooLarge {
        /// The limit.
        limit: usize,
    },
    /// No revision in common.
    #[error("it speaks none of our revisions, but {offered}")]
    Revision {
        /// What it speaks.
        offered: String,
    },
    /// The server no longer knows our session; it had not begun the request.
    #[error("it no longer knows the session")]
    SessionGone,
    /// The program could not be started. The operator mends `command`.
    #[error("`{program}` cannot be started: {error}")]
    Spawn {
        /// The program.
        program: String,
        /// What the system said.
        error: String,
    },
    /// All connections that `max_instances` allows are in use.
    #[error("all {limit} connections to it are in use (max_instances)")]
    InstancesBusy {
        /// The limit.
        limit: usize,
    },
    /// The start took too long.
    #[error("it did not start within {after:?}")]
    Startup {
        /// The limit.
        after: Duration,
    },
    /// No answer in time.
    #[error("no answer within {after:?}")]
    Timeout {
        /// The limit.
        after: Duration,
    },
    /// TLS could not be set up.
    #[error("TLS: {reason}")]
    Tls {
        /// Why.
        reason: String,
    },
    /// 401 or 403: the operator renews the credential.
    #[error("it answered HTTP {status}: the credential for it is missing, wrong or expired")]
    Unauthorized {
        /// The status.
        status: StatusCode,
    },
    /// There is no such server.
    #[error("there is no such server")]
    Unknown,
}

fn display_body(body: &str) -> String {
    if body.trim().is_empty() {
        String::new()
    } else {
        format!(": {}", body.trim())
    }
}

impl Failure {
    /// What the client is told.
    pub fn to_error(&self, server: &ServerName) -> RpcError {
        let kind = match self {
            Self::Cancelled => "cancelled",
            Self::Connect { .. } | Self::Spawn { .. } | Self::Startup { .. } | Self::Tls { .. } => {
                "unavailable"
            }
            Self::Disabled => "disabled",
            Self::InstancesBusy { .. } => "busy",
            Self::Era { .. } | Self::Refused { .. } | Self::Revision { .. } => "incompatible",
            Self::Garbled { .. } | Self::Http { .. } => "bad_answer",
            Self::Header { .. } | Self::Unauthorized { .. } => "needs_reauth",
            Self::Lost { .. } | Self::SessionGone => "lost",
            Self::RequestTooLarge { .. } | Self::ResponseTooLarge { .. } => "too_large",
            Self::Timeout { .. } => "timeout",
            Self::Unknown => "unknown_server",
        };
        RpcError::new(error::INTERNAL, format!("server `{server}`: {self}"))
            .with(serde_json::json!({ "server": server.as_str(), "reason": kind }))
    }

    /// Whether the server refuses the era itself, rather than being out of order.
    pub(super) fn refuses_era(&self) -> bool {
        match self {
            Self::Era { .. } | Self::Refused { .. } | Self::Revision { .. } => true,
            Self::Http { status, .. } => {
                status.is_client_error() && *status != StatusCode::TOO_MANY_REQUESTS
            }
            Self::Cancelled
            | Self::Connect { .. }
            | Self::Disabled
            | Self::Garbled { .. }
            | Self::Header { .. }
            | Self::InstancesBusy { .. }
            | Self::Lost { .. }
            | Self::RequestTooLarge { .. }
            | Self::ResponseTooLarge { .. }
            | Self::SessionGone
            | Self::Spawn { .. }
            | Self::Startup { .. }
            | Self::Timeout { .. }
            | Self::Tls { .. }
            | Self::Unauthorized { .. }
            | Self::Unknown => false,
        }
    }
}
