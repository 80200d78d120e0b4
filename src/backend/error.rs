//! Why a server gave no answer, and what its caller is told.

use std::{borrow::Cow, path::PathBuf, time::Duration};

use http::{HeaderMap, StatusCode, header::WWW_AUTHENTICATE};
use tokio::time::Instant;

use super::{ServerState, call_health::CallHealth};
use crate::{
    config::{NameConflict, Remote},
    mcp::{
        Era, Raw, RpcError,
        error::{self, FailureReason, millis},
        gateway_headers::HOPS_MAX,
    },
    names::ServerName,
    session::bridge::UnsupportedInEra,
};

/// What separates, in the reason of [`BackendError::Lost`], our words from what the server wrote of it.
pub(crate) const STDERR_SEPARATOR: &str = "; on stderr: ";
/// The same for lines on stdout that are no messages.
const STDOUT_SEPARATOR: &str = "; on stdout, not a message: ";

/// What is said of a server that wants a token of an OAuth provider.
const OAUTH_NOTE: &str = "; the server uses OAuth, and logins are not supported by this version: set `auth` \
                          to a token of its provider";

/// Why a server gave no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// It failed too often in a row; nothing was sent. The operator looks at `/status`.
    #[error("circuit breaker open; the next call is allowed in {} ms", millis(*retry_after))]
    BreakerOpen {
        /// How long the caller should wait.
        retry_after: Duration,
    },
    /// The client no longer wants the answer.
    #[error("the client cancelled the request")]
    Cancelled {
        /// Whether the request may have reached the server before.
        is_sent: bool,
    },
    /// No network connection. The operator checks URL and network.
    #[error("no connection: {reason}")]
    Connect {
        /// What the network said.
        reason: String,
    },
    /// The caller asked for what servers of this revision do not have; nothing was sent.
    #[error(transparent)]
    UnsupportedInEra(UnsupportedInEra),
    /// The working directory of the program cannot be used. The operator mends `cwd`.
    #[error("working directory `{}` {problem}", path.display())]
    WorkingDirectory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The server is switched off in the config.
    #[error("disabled in the config")]
    Disabled,
    /// Its names could not be told from those of another. The operator renames one.
    #[error("not started: {0}")]
    NameConflict(NameConflict),
    /// What came back is what was sent. The operator mends `command`.
    #[error("the program echoes its input; it is not an MCP server")]
    Echo,
    /// The server does not speak the era that is wanted.
    #[error("the server does not support the {era} era")]
    Era {
        /// The era that was tried.
        era: Era,
    },
    /// The server broke the protocol.
    #[error("protocol violation: {what}{}", display_body(quoted))]
    ProtocolViolation {
        /// How, in our words.
        what: String,
        /// What it wrote, where that tells more.
        quoted: String,
    },
    /// A configured header cannot be sent. The operator mends the config.
    #[error("the configured header `{name}` has an invalid name or value")]
    Header {
        /// Its name.
        name: String,
    },
    /// An HTTP status that answers no request.
    #[error("the server responded with HTTP {status}{}", display_body(body))]
    Http {
        /// The status.
        status: StatusCode,
        /// The start of the body.
        body: String,
        /// When to come back, where it says so.
        retry_after: Option<Duration>,
    },
    /// The connection ended before the answer came.
    #[error("connection lost: {reason}")]
    Lost {
        /// Why.
        reason: String,
    },
    /// It redirects a request where none is followed. The operator mends `url`.
    #[error(
        "the server redirects (HTTP {status}) {why}; put the final URL into the config{}",
        display_target(target.as_ref())
    )]
    Redirect {
        /// The status.
        status: StatusCode,
        /// Why it is not followed, as the end of a sentence.
        why: &'static str,
        /// Where it leads to, as far as anybody may see that.
        target: Option<String>,
    },
    /// The handshake was refused.
    #[error("handshake refused: {}", error.as_str())]
    Refused {
        /// The error object.
        error: Raw,
    },
    /// The request is larger than `limits.request`.
    #[error("the request has {bytes} bytes, which exceeds limits.request ({limit})")]
    RequestTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The answer is larger than `limits.response`.
    #[error("the response exceeds limits.response ({limit} bytes)")]
    ResponseTooLarge {
        /// The limit.
        limit: usize,
    },
    /// No revision in common.
    #[error("no common protocol revision; the server supports {offered}")]
    Revision {
        /// What it speaks.
        offered: String,
    },
    /// The server no longer knows our session; it had not begun the request.
    #[error("the server no longer knows the session")]
    SessionGone,
    /// The program could not be started. The operator mends `command`.
    #[error("cannot start `{program}`: {error}")]
    Spawn {
        /// The program.
        program: String,
        /// What the system said.
        error: String,
    },
    /// All connections that `max_instances` or `pool_size` allows are in use.
    #[error("all {limit} connections to it are in use ({key})")]
    InstancesBusy {
        /// The limit.
        limit: usize,
        /// The key that sets it.
        key: &'static str,
    },
    /// Nobody has signed in to it: with `per_user` not the agent that calls, else not the operator.
    #[error("{}", display_sign_in(*per_user))]
    NeedsSignIn {
        /// Whether each agent signs in.
        per_user: bool,
    },
    /// Requests to it pass too many gateways. The operator removes one gateway from the servers of another.
    #[error(
        "more than {HOPS_MAX} gateways stand in a row: one of them is probably behind itself, and has to be \
         removed from the servers of another"
    )]
    TooManyGateways,
    /// Its URL leads back to this gateway. The operator mends `url`.
    #[error("request loop: this gateway is configured as its own upstream")]
    LoopDetected,
    /// As many requests to servers over HTTP are under way as there are open files for; this one was not sent.
    /// The operator allows the process more, or lowers `limits.connections`.
    #[error(
        "{limit} requests to servers are under way, for which alone there are open files (limits.connections)"
    )]
    NoFiles {
        /// How many there may be.
        limit: usize,
    },
    /// The gateway holds as many bytes of messages as it may, so that the answer could not be read.
    #[error("out of message memory while reading the response (limits.bytes_in_flight)")]
    NoMemory,
    /// As many calls are under way as `limits.in_flight` allows, and no more may wait, or the call
    /// waited for too long.
    #[error("server busy: {}", display_busy((*in_flight, *queue), *waited))]
    Overloaded {
        /// The calls that may be under way.
        in_flight: usize,
        /// The calls that may wait.
        queue: usize,
        /// For how long this one did, in vain.
        waited: Option<Duration>,
        /// When there may be room.
        retry_after: Duration,
    },
    /// It was started too often lately (`retry.starts_per_minute`); nothing was sent.
    #[error(
        "{starts} failed starts within a minute (retry.starts_per_minute); next start in {} ms",
        millis(remaining(*until))
    )]
    StartsLimited {
        /// The starts that were allowed.
        starts: usize,
        /// When the next start may be.
        until: Instant,
    },
    /// The start took too long.
    #[error("start timed out after {after:?} (`{key}`){}", display_stray(odd))]
    Startup {
        /// The limit.
        after: Duration,
        /// The key that sets it.
        key: &'static str,
        /// What it wrote to stdout in place of messages, the last lines of it.
        odd: Vec<String>,
    },
    /// No answer in time.
    #[error("no response within {after:?}{}", limit_key(*key))]
    Timeout {
        /// The limit.
        after: Duration,
        /// The key that sets it, where one does.
        key: Option<&'static str>,
    },
    /// It did not take the request in time: it reads more slowly than it is written to.
    #[error("timed out after {after:?} sending the request{}", limit_key(*key))]
    WriteTimeout {
        /// The limit.
        after: Duration,
        /// The key that sets it, where one does.
        key: Option<&'static str>,
    },
    /// TLS could not be set up.
    #[error("TLS: {reason}")]
    Tls {
        /// Why.
        reason: String,
    },
    /// 401 or 403: the operator renews the credential.
    #[error(
        "HTTP {status}: the credential for the server is missing, invalid or expired{}",
        if *uses_oauth { OAUTH_NOTE } else { "" }
    )]
    Unauthorized {
        /// The status.
        status: StatusCode,
        /// Whether the server says where to get a token (RFC 9728).
        uses_oauth: bool,
    },
    /// There was no connection that the call could be sent on; nothing was sent.
    #[error("{}", self.client_message())]
    NoConnection {
        /// Why, in words for logs.
        cause: Box<BackendError>,
    },
    /// Its connection could not be made or was lost a moment ago, and it is too early for another.
    #[error("{}", self.client_message())]
    BackingOff {
        /// Why, in words for logs.
        cause: Box<BackendError>,
        /// When the next attempt may be.
        until: Instant,
    },
    /// The issuer of its access tokens gives none. The operator mends `auth`, or signs in again.
    #[error("no access token: {reason}")]
    TokenRefused {
        /// What the issuer said.
        reason: String,
    },
    /// There is no such server.
    #[error("unknown server")]
    UnknownServer,
    /// It is not known yet what it has; nothing was sent.
    #[error("the server has not been listed yet{}", reason_suffix(why.as_ref()))]
    NotListedYet {
        /// Why not, where that is known.
        why: Option<String>,
    },
}

fn display_sign_in(per_user: bool) -> &'static str {
    if per_user {
        "you have not signed in to it"
    } else {
        "nobody has signed in to it; the operator signs in with `tollbridge login`"
    }
}

fn display_busy((in_flight, queue): (usize, usize), waited: Option<Duration>) -> String {
    let under_way = format!("{in_flight} calls in flight (limits.in_flight)");
    match waited {
        Some(waited) => format!(
            "{under_way}, timed out in the queue after {} ms",
            millis(waited)
        ),
        None => format!("{under_way}, queue of {queue} full (limits.queue)"),
    }
}

fn reason_suffix(why: Option<&String>) -> String {
    why.map(|why| format!(": {why}")).unwrap_or_default()
}

fn display_target(target: Option<&String>) -> String {
    target.map(|url| format!(": `{url}`")).unwrap_or_default()
}

/// Which key of the server a limit is from.
fn limit_key(key: Option<&str>) -> String {
    key.map(|key| format!(" (its `{key}`)")).unwrap_or_default()
}

/// What is left of the time until then.
fn remaining(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn display_body(body: &str) -> String {
    if body.trim().is_empty() {
        String::new()
    } else {
        format!(": {}", body.trim())
    }
}

/// Lines of a server in place of messages, as the end of a reason.
pub(super) fn display_stray(lines: &[String]) -> String {
    let quoted: Vec<_> = lines.iter().map(|line| format!("`{line}`")).collect();
    if quoted.is_empty() {
        String::new()
    } else {
        format!("{STDOUT_SEPARATOR}{}", quoted.join(", "))
    }
}

impl BackendError {
    /// That what came is no answer to a request.
    pub(super) fn invalid_response(why: impl std::fmt::Display) -> Self {
        Self::protocol_violation(format!("invalid response: {why}"))
    }

    /// That the server broke the protocol; `what` is told to clients.
    pub(crate) fn protocol_violation(what: impl Into<String>) -> Self {
        Self::ProtocolViolation {
            what: what.into(),
            quoted: String::new(),
        }
    }

    /// Adds what the server wrote to stdout in place of messages before its connection was lost.
    pub(super) fn with_stray_lines(mut self, lines: &[String]) -> Self {
        if let Self::Lost { reason } = &mut self {
            reason.push_str(&display_stray(lines));
        }
        self
    }

    /// What the client is told. What the server wrote is left to logs and `/status`: it may name
    /// paths, hosts and secrets of where it runs.
    pub fn to_error(&self, server: &ServerName, state: Option<ServerState>) -> RpcError {
        let mut data = serde_json::json!({
            "code": self.kind().code(),
            "server": server.as_str(),
            "reason": self.kind().as_str(),
            "retryable": self.is_retryable(),
        });
        if let Some(state) = state {
            data["state"] = state.as_str().into();
        }
        if let Self::UnsupportedInEra(crossing) = self {
            crossing.add_revisions(&mut data);
        }
        if let Some(wait) = self.retry_after() {
            data["retryAfterMs"] = millis(wait).into();
        }
        RpcError::new(
            error::INTERNAL,
            format!("server `{server}`: {}", self.client_message()),
        )
        .with_data(data)
    }

    /// Whether the same call may succeed later although nobody asks the server in another way, and
    /// cannot be done twice by that.
    pub(super) fn is_retryable(&self) -> bool {
        let is_new = matches!(
            self,
            Self::NoConnection { .. } | Self::SessionGone | Self::NotListedYet { .. }
        );
        // It says so itself.
        let is_turned_away =
            matches!(self, Self::Http { status, .. } if *status == StatusCode::TOO_MANY_REQUESTS);
        let may_pass = self.retry_after().is_some() || self.is_transient() || is_new;
        is_turned_away || may_pass && !self.may_have_arrived()
    }

    /// How long the caller should wait before the next attempt, where that is known.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::BreakerOpen { retry_after } | Self::Overloaded { retry_after, .. } => {
                Some(*retry_after)
            }
            Self::Http { retry_after, .. } => *retry_after,
            Self::InstancesBusy { .. } | Self::NoFiles { .. } | Self::NoMemory => {
                Some(error::RETRY_SOON)
            }
            Self::BackingOff { until, .. } | Self::StartsLimited { until, .. } => {
                Some(remaining(*until))
            }
            Self::NoConnection { .. }
            | Self::Cancelled { .. }
            | Self::Connect { .. }
            | Self::UnsupportedInEra(_)
            | Self::WorkingDirectory { .. }
            | Self::Disabled
            | Self::NameConflict(_)
            | Self::Echo
            | Self::Era { .. }
            | Self::ProtocolViolation { .. }
            | Self::TooManyGateways
            | Self::Header { .. }
            | Self::Lost { .. }
            | Self::LoopDetected
            | Self::Redirect { .. }
            | Self::Refused { .. }
            | Self::RequestTooLarge { .. }
            | Self::ResponseTooLarge { .. }
            | Self::Revision { .. }
            | Self::SessionGone
            | Self::Spawn { .. }
            | Self::Startup { .. }
            | Self::Timeout { .. }
            | Self::WriteTimeout { .. }
            | Self::Tls { .. }
            | Self::NeedsSignIn { .. }
            | Self::TokenRefused { .. }
            | Self::Unauthorized { .. }
            | Self::UnknownServer
            | Self::NotListedYet { .. } => None,
        }
    }

    /// The same when `time` has passed.
    pub(super) fn with_elapsed(mut self, time: Duration) -> Self {
        if let Self::BreakerOpen { retry_after }
        | Self::Overloaded { retry_after, .. }
        | Self::Http {
            retry_after: Some(retry_after),
            ..
        } = &mut self
        {
            *retry_after = retry_after.saturating_sub(time);
        }
        self
    }

    /// The kind of failure, for programs and for the audit.
    pub fn kind(&self) -> FailureReason {
        match self {
            Self::BreakerOpen { .. } => FailureReason::BreakerOpen,
            Self::Cancelled { .. } => FailureReason::Cancelled,
            Self::NoConnection { .. }
            | Self::BackingOff { .. }
            | Self::Connect { .. }
            | Self::NameConflict(_)
            | Self::WorkingDirectory { .. }
            | Self::Spawn { .. }
            | Self::Startup { .. }
            | Self::Tls { .. }
            | Self::NotListedYet { .. } => FailureReason::Unavailable,
            Self::StartsLimited { .. } => FailureReason::StartsLimited,
            Self::Disabled => FailureReason::Disabled,
            Self::InstancesBusy { .. }
            | Self::NoFiles { .. }
            | Self::NoMemory
            | Self::Overloaded { .. } => FailureReason::Busy,
            Self::UnsupportedInEra(_)
            | Self::Echo
            | Self::Era { .. }
            | Self::TooManyGateways
            | Self::LoopDetected
            | Self::Refused { .. }
            | Self::Revision { .. } => FailureReason::Incompatible,
            Self::ProtocolViolation { .. } | Self::Http { .. } | Self::Redirect { .. } => {
                FailureReason::BadAnswer
            }
            Self::Header { .. } | Self::TokenRefused { .. } | Self::Unauthorized { .. } => {
                FailureReason::NeedsReauth
            }
            Self::NeedsSignIn { .. } => FailureReason::NeedsSignIn,
            Self::Lost { .. } | Self::SessionGone => FailureReason::Lost,
            Self::RequestTooLarge { .. } | Self::ResponseTooLarge { .. } => FailureReason::TooLarge,
            Self::Timeout { .. } | Self::WriteTimeout { .. } => FailureReason::Timeout,
            Self::UnknownServer => FailureReason::UnknownServer,
        }
    }

    /// Whether it is about one request alone: the server is there, and does not answer that one as it
    /// should.
    pub fn is_request_specific(&self) -> bool {
        matches!(
            self,
            Self::ProtocolViolation { .. }
                | Self::Http { .. }
                | Self::NoMemory
                | Self::Redirect { .. }
                | Self::ResponseTooLarge { .. }
                | Self::Timeout { .. }
                | Self::Unauthorized { .. }
        )
    }

    /// The same, of a call that was not sent: whatever was on the way, it was not this.
    #[must_use]
    pub fn into_not_sent(mut self) -> Self {
        if let Self::Cancelled { is_sent } = &mut self {
            *is_sent = false;
        }
        if self.may_have_arrived() {
            let cause = Box::new(self);
            return Self::NoConnection { cause };
        }
        self
    }

    /// The same, of a request that was given up before its server took it.
    pub(super) fn into_not_delivered(self) -> Self {
        if let Self::Timeout { after, key } = self {
            return Self::WriteTimeout { after, key };
        }
        self.into_not_sent()
    }

    /// Whether the request may have reached the server although no answer came.
    pub fn may_have_arrived(&self) -> bool {
        match self {
            Self::Cancelled { is_sent } => *is_sent,
            Self::ProtocolViolation { .. }
            | Self::Http { .. }
            | Self::Lost { .. }
            | Self::NoMemory
            | Self::ResponseTooLarge { .. }
            | Self::Timeout { .. } => true,
            Self::NoConnection { .. }
            | Self::BackingOff { .. }
            | Self::BreakerOpen { .. }
            | Self::Connect { .. }
            | Self::UnsupportedInEra(_)
            | Self::WorkingDirectory { .. }
            | Self::Disabled
            | Self::NameConflict(_)
            | Self::Echo
            | Self::Era { .. }
            | Self::TooManyGateways
            | Self::Header { .. }
            | Self::InstancesBusy { .. }
            | Self::NoFiles { .. }
            | Self::LoopDetected
            | Self::Overloaded { .. }
            | Self::Redirect { .. }
            | Self::Refused { .. }
            | Self::RequestTooLarge { .. }
            | Self::Revision { .. }
            | Self::SessionGone
            | Self::Spawn { .. }
            | Self::StartsLimited { .. }
            | Self::Startup { .. }
            | Self::Tls { .. }
            | Self::NeedsSignIn { .. }
            | Self::TokenRefused { .. }
            | Self::Unauthorized { .. }
            | Self::UnknownServer
            | Self::NotListedYet { .. }
            | Self::WriteTimeout { .. } => false,
        }
    }

    /// The cause without any words of the server.
    pub fn client_message(&self) -> Cow<'static, str> {
        match self {
            Self::NoConnection { cause } => {
                if let Self::Timeout { after, key } = **cause {
                    let (after, set_by) = (millis(after), limit_key(key));
                    return format!("not ready within {after} ms{set_by}").into();
                }
                format!("not connected: {}", cause.client_message()).into()
            }
            Self::BackingOff { cause, until } => format!(
                "not connected: {}; next attempt in {} ms",
                cause.client_message(),
                millis(remaining(*until))
            )
            .into(),
            Self::ProtocolViolation { what, .. } => format!("protocol violation: {what}").into(),
            Self::Http { status, .. } => format!("the server responded with HTTP {status}").into(),
            Self::Lost { reason } => {
                let ends = [STDERR_SEPARATOR, STDOUT_SEPARATOR].iter();
                let end = ends.filter_map(|words| reason.find(words)).min();
                let reason = &reason[..end.unwrap_or(reason.len())];
                format!("connection lost: {reason}").into()
            }
            Self::Refused { .. } => "handshake refused".into(),
            Self::Revision { .. } => "no common protocol revision".into(),
            Self::WorkingDirectory { .. } | Self::Spawn { .. } => "cannot start its program".into(),
            Self::Startup { after, key, .. } => {
                format!("start timed out after {after:?} (`{key}`)").into()
            }
            Self::TokenRefused { .. } => "no access token for it".into(),
            Self::BreakerOpen { .. }
            | Self::Cancelled { .. }
            | Self::Connect { .. }
            | Self::UnsupportedInEra(_)
            | Self::Disabled
            | Self::NameConflict(_)
            | Self::NeedsSignIn { .. }
            | Self::Echo
            | Self::Era { .. }
            | Self::TooManyGateways
            | Self::Header { .. }
            | Self::InstancesBusy { .. }
            | Self::NoFiles { .. }
            | Self::NoMemory
            | Self::LoopDetected
            | Self::Overloaded { .. }
            | Self::Redirect { .. }
            | Self::RequestTooLarge { .. }
            | Self::ResponseTooLarge { .. }
            | Self::SessionGone
            | Self::StartsLimited { .. }
            | Self::Timeout { .. }
            | Self::WriteTimeout { .. }
            | Self::Tls { .. }
            | Self::Unauthorized { .. }
            | Self::UnknownServer
            | Self::NotListedYet { .. } => self.to_string().into(),
        }
    }

    /// Whether it may pass by itself while a server is started again.
    pub(super) fn is_transient(&self) -> bool {
        CallHealth::of(self, true) != CallHealth::Neutral
    }

    /// Whether the server refuses the era itself, rather than being out of order.
    pub(super) fn refuses_era(&self) -> bool {
        let is_said = matches!(
            self,
            Self::Era { .. } | Self::Refused { .. } | Self::Revision { .. }
        );
        is_said || self.is_legacy_rejection()
    }

    /// A client error without a JSON-RPC body is how old HTTP servers meet unknown requests.
    pub(super) fn is_legacy_rejection(&self) -> bool {
        matches!(self, Self::Http { status, .. }
            if status.is_client_error() && *status != StatusCode::TOO_MANY_REQUESTS)
    }

    /// The failure that the head of a response means, where it means that our credential is refused.
    pub(super) fn from_auth_status(status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let is_refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter();
        let mut challenges = challenges.filter_map(|value| value.to_str().ok());
        is_refused.then(|| Self::Unauthorized {
            status,
            uses_oauth: challenges.any(|challenge| challenge.contains("resource_metadata")),
        })
    }

    /// The same failure, with where the endpoint of the server may be: many configs have the URL of the
    /// host alone.
    pub(super) fn with_endpoint_hint(mut self, remote: &Remote) -> Self {
        let (url, path) = (&remote.url, remote.displayed_path());
        let has_path = ["mcp", "sse"].iter().any(|part| url.path().contains(part));
        if let Self::Http { status, body, .. } = &mut self
            && *status == StatusCode::NOT_FOUND
            && !has_path
        {
            let scheme = url.scheme_str().unwrap_or_default();
            let host = url.authority().map_or("", |authority| authority.as_str());
            let path = path.trim_end_matches('/');
            let separator = if body.trim().is_empty() { "" } else { "; " };
            *body = format!(
                "{}{separator}try `{scheme}://{host}{path}/mcp`",
                body.trim()
            );
        }
        self
    }
}

#[cfg(test)]
mod tests;
