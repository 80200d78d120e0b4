//! Why a server gave no answer, and what its caller is told.

use std::{borrow::Cow, path::PathBuf, time::Duration};

use http::StatusCode;
use tokio::time::Instant;

use super::{ServerState, call_health::CallHealth};
use crate::{
    mcp::{
        Era, Raw, RpcError,
        error::{self, millis, reason},
    },
    names::ServerName,
    session::bridge::Crossing,
};

/// What separates, in the reason of [`BackendError::Lost`], our words from what the server wrote of it.
pub(super) const OWN_WORDS: &str = "; on stderr: ";
/// The same for lines on stdout that are no messages.
const ODD_WORDS: &str = "; on stdout, no message: ";

/// Why a server gave no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// It failed too often in a row; nothing was sent. The operator looks at `/status`.
    #[error("it keeps failing; the next call is let through in {} ms", millis(*retry_after))]
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
    Crossing(Crossing),
    /// The working directory of the program cannot be used. The operator mends `cwd`.
    #[error("its working directory `{}` {problem}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The server is switched off in the config.
    #[error("it is disabled in the config")]
    Disabled,
    /// What came back is what was sent. The operator mends `command`.
    #[error("the program echoes what it reads; it is not an MCP server")]
    Echo,
    /// The server does not speak the era that is wanted.
    #[error("it does not speak the {era} era")]
    Era {
        /// The era that was tried.
        era: Era,
    },
    /// The server broke the protocol.
    #[error("it broke the protocol: {what}{}", display_body(quoted))]
    Garbled {
        /// How, in our words.
        what: String,
        /// What it wrote, where that tells more.
        quoted: String,
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
        /// The start of the body; of a redirect, what to do about it.
        body: String,
        /// When to come back, where it says so.
        retry_after: Option<Duration>,
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
    /// All connections that `max_instances` or `pool_size` allows are in use.
    #[error("all {limit} connections to it are in use ({key})")]
    InstancesBusy {
        /// The limit.
        limit: usize,
        /// The key that sets it.
        key: &'static str,
    },
    /// Its URL leads back to this gateway. The operator mends `url`.
    #[error("its URL leads to this gateway itself, which cannot be a server of its own")]
    Ourselves,
    /// The gateway holds as many bytes of messages as it may, so that the answer could not be read.
    #[error("the gateway had no memory left to read the answer (limits.bytes_in_flight)")]
    NoMemory,
    /// As many calls are under way as `limits.in_flight` allows, and no more may wait, or the call
    /// waited for too long.
    #[error("it is busy: {}", display_busy((*in_flight, *queue), *waited))]
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
        "it was started in vain {starts} times within a minute (retry.starts_per_minute); the next \
         start is in {} ms",
        millis(left(*until))
    )]
    StartsLimited {
        /// The starts that were allowed.
        starts: usize,
        /// When the next start may be.
        until: Instant,
    },
    /// The start took too long.
    #[error("it did not start within {after:?} (its `{key}`){}", display_odd(odd))]
    Startup {
        /// The limit.
        after: Duration,
        /// The key that sets it.
        key: &'static str,
        /// What it wrote to stdout in place of messages, the last lines of it.
        odd: Vec<String>,
    },
    /// No answer in time.
    #[error("no answer within {after:?}{}", set_by(*key))]
    Timeout {
        /// The limit.
        after: Duration,
        /// The key that sets it, where one does.
        key: Option<&'static str>,
    },
    /// It did not take the request in time: it reads more slowly than it is written to.
    #[error("it did not take the request within {after:?}{}", set_by(*key))]
    Unread {
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
    #[error("it answered HTTP {status}: the credential for it is missing, wrong or expired")]
    Unauthorized {
        /// The status.
        status: StatusCode,
    },
    /// There was no connection that the call could be sent on; nothing was sent.
    #[error("{}", self.for_client())]
    Absent {
        /// Why, in words for logs.
        cause: Box<BackendError>,
    },
    /// Its connection could not be made or was lost a moment ago, and it is too early for another.
    #[error("{}", self.for_client())]
    BackingOff {
        /// Why, in words for logs.
        cause: Box<BackendError>,
        /// When the next attempt may be.
        until: Instant,
    },
    /// There is no such server.
    #[error("there is no such server")]
    Unknown,
    /// It is not known yet what it has; nothing was sent.
    #[error("its lists have not been read yet{}", because(why.as_ref()))]
    Unlisted {
        /// Why not, where that is known.
        why: Option<String>,
    },
}

fn display_busy((in_flight, queue): (usize, usize), waited: Option<Duration>) -> String {
    let under_way = format!("{in_flight} calls are under way (limits.in_flight)");
    match waited {
        Some(waited) => format!(
            "{under_way}, and its turn had not come after {} ms",
            millis(waited)
        ),
        None => format!("{under_way}, and {queue} may wait (limits.queue)"),
    }
}

fn because(why: Option<&String>) -> String {
    why.map(|why| format!(": {why}")).unwrap_or_default()
}

/// Which key of the server a limit is from.
fn set_by(key: Option<&str>) -> String {
    key.map(|key| format!(" (its `{key}`)")).unwrap_or_default()
}

/// What is left of the time until then.
fn left(until: Instant) -> Duration {
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
pub(super) fn display_odd(lines: &[String]) -> String {
    let quoted: Vec<_> = lines.iter().map(|line| format!("`{line}`")).collect();
    if quoted.is_empty() {
        String::new()
    } else {
        format!("{ODD_WORDS}{}", quoted.join(", "))
    }
}

impl BackendError {
    /// That what came is no answer to a request.
    pub(super) fn no_answer(why: impl std::fmt::Display) -> Self {
        Self::garbled(format!("its answer is none: {why}"))
    }

    /// That the server broke the protocol; `what` is told to clients.
    pub(crate) fn garbled(what: impl Into<String>) -> Self {
        Self::Garbled {
            what: what.into(),
            quoted: String::new(),
        }
    }

    /// Adds what the server wrote to stdout in place of messages before its connection was lost.
    pub(super) fn with_odd(mut self, lines: &[String]) -> Self {
        if let Self::Lost { reason } = &mut self {
            reason.push_str(&display_odd(lines));
        }
        self
    }

    /// What the client is told. What the server wrote is left to logs and `/status`: it may name
    /// paths, hosts and secrets of where it runs.
    pub fn to_error(&self, server: &ServerName, state: Option<ServerState>) -> RpcError {
        let mut data = serde_json::json!({
            "code": self.kind().to_ascii_uppercase(),
            "server": server.as_str(),
            "reason": self.kind(),
            "retryable": self.is_retryable(),
        });
        if let Some(state) = state {
            data["state"] = state.as_str().into();
        }
        if let Self::Crossing(crossing) = self {
            crossing.describe(&mut data);
        }
        if let Some(wait) = self.retry_after() {
            data["retryAfterMs"] = millis(wait).into();
        }
        RpcError::new(
            error::INTERNAL,
            format!("server `{server}`: {}", self.for_client()),
        )
        .with(data)
    }

    /// Whether the same call may succeed later although nobody asks the server in another way, and
    /// cannot be done twice by that.
    pub(super) fn is_retryable(&self) -> bool {
        let is_new = matches!(
            self,
            Self::Absent { .. } | Self::SessionGone | Self::Unlisted { .. }
        );
        // It says so itself.
        let is_turned_away =
            matches!(self, Self::Http { status, .. } if *status == StatusCode::TOO_MANY_REQUESTS);
        let may_pass = self.retry_after().is_some() || self.may_pass() || is_new;
        is_turned_away || may_pass && !self.may_have_arrived()
    }

    /// How long the caller should wait before the next attempt, where that is known.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::BreakerOpen { retry_after } | Self::Overloaded { retry_after, .. } => {
                Some(*retry_after)
            }
            Self::Http { retry_after, .. } => *retry_after,
            Self::InstancesBusy { .. } | Self::NoMemory => Some(error::RETRY_SOON),
            Self::BackingOff { until, .. } | Self::StartsLimited { until, .. } => {
                Some(left(*until))
            }
            Self::Absent { .. }
            | Self::Cancelled { .. }
            | Self::Connect { .. }
            | Self::Crossing(_)
            | Self::Directory { .. }
            | Self::Disabled
            | Self::Echo
            | Self::Era { .. }
            | Self::Garbled { .. }
            | Self::Header { .. }
            | Self::Lost { .. }
            | Self::Ourselves
            | Self::Refused { .. }
            | Self::RequestTooLarge { .. }
            | Self::ResponseTooLarge { .. }
            | Self::Revision { .. }
            | Self::SessionGone
            | Self::Spawn { .. }
            | Self::Startup { .. }
            | Self::Timeout { .. }
            | Self::Unread { .. }
            | Self::Tls { .. }
            | Self::Unauthorized { .. }
            | Self::Unknown
            | Self::Unlisted { .. } => None,
        }
    }

    /// The same when `time` has passed.
    pub(super) fn after(mut self, time: Duration) -> Self {
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
    pub fn kind(&self) -> &'static str {
        match self {
            Self::BreakerOpen { .. } => reason::BREAKER_OPEN,
            Self::Cancelled { .. } => reason::CANCELLED,
            Self::Absent { .. }
            | Self::BackingOff { .. }
            | Self::Connect { .. }
            | Self::Directory { .. }
            | Self::Spawn { .. }
            | Self::Startup { .. }
            | Self::Tls { .. }
            | Self::Unlisted { .. } => reason::UNAVAILABLE,
            Self::StartsLimited { .. } => reason::STARTS_LIMITED,
            Self::Disabled => reason::DISABLED,
            Self::InstancesBusy { .. } | Self::NoMemory | Self::Overloaded { .. } => reason::BUSY,
            Self::Crossing(_)
            | Self::Echo
            | Self::Era { .. }
            | Self::Ourselves
            | Self::Refused { .. }
            | Self::Revision { .. } => reason::INCOMPATIBLE,
            Self::Garbled { .. } | Self::Http { .. } => reason::BAD_ANSWER,
            Self::Header { .. } | Self::Unauthorized { .. } => reason::NEEDS_REAUTH,
            Self::Lost { .. } | Self::SessionGone => reason::LOST,
            Self::RequestTooLarge { .. } | Self::ResponseTooLarge { .. } => reason::TOO_LARGE,
            Self::Timeout { .. } | Self::Unread { .. } => reason::TIMEOUT,
            Self::Unknown => reason::UNKNOWN_SERVER,
        }
    }

    /// Whether it is about one request alone: the server is there, and does not answer that one as it
    /// should.
    pub fn is_of_one_request(&self) -> bool {
        matches!(
            self,
            Self::Garbled { .. }
                | Self::Http { .. }
                | Self::NoMemory
                | Self::ResponseTooLarge { .. }
                | Self::Timeout { .. }
                | Self::Unauthorized { .. }
        )
    }

    /// The same, of a call that was not sent: whatever was on the way, it was not this.
    #[must_use]
    pub fn unsent(mut self) -> Self {
        if let Self::Cancelled { is_sent } = &mut self {
            *is_sent = false;
        }
        if self.may_have_arrived() {
            let cause = Box::new(self);
            return Self::Absent { cause };
        }
        self
    }

    /// The same, of a request that was given up before its server took it.
    pub(super) fn untaken(self) -> Self {
        if let Self::Timeout { after, key } = self {
            return Self::Unread { after, key };
        }
        self.unsent()
    }

    /// Whether the request may have reached the server although no answer came.
    pub fn may_have_arrived(&self) -> bool {
        match self {
            Self::Cancelled { is_sent } => *is_sent,
            Self::Garbled { .. }
            | Self::Http { .. }
            | Self::Lost { .. }
            | Self::NoMemory
            | Self::ResponseTooLarge { .. }
            | Self::Timeout { .. } => true,
            Self::Absent { .. }
            | Self::BackingOff { .. }
            | Self::BreakerOpen { .. }
            | Self::Connect { .. }
            | Self::Crossing(_)
            | Self::Directory { .. }
            | Self::Disabled
            | Self::Echo
            | Self::Era { .. }
            | Self::Header { .. }
            | Self::InstancesBusy { .. }
            | Self::Ourselves
            | Self::Overloaded { .. }
            | Self::Refused { .. }
            | Self::RequestTooLarge { .. }
            | Self::Revision { .. }
            | Self::SessionGone
            | Self::Spawn { .. }
            | Self::StartsLimited { .. }
            | Self::Startup { .. }
            | Self::Tls { .. }
            | Self::Unauthorized { .. }
            | Self::Unknown
            | Self::Unlisted { .. }
            | Self::Unread { .. } => false,
        }
    }

    /// The cause without any words of the server.
    pub fn for_client(&self) -> Cow<'static, str> {
        match self {
            Self::Absent { cause } => {
                if let Self::Timeout { after, key } = **cause {
                    let (after, set_by) = (millis(after), set_by(key));
                    return format!("it was not ready within {after} ms{set_by}").into();
                }
                format!("it is not connected: {}", cause.for_client()).into()
            }
            Self::BackingOff { cause, until } => format!(
                "it is not connected: {}; the next attempt may be in {} ms",
                cause.for_client(),
                millis(left(*until))
            )
            .into(),
            Self::Garbled { what, .. } => format!("it broke the protocol: {what}").into(),
            Self::Http { status, .. } => format!("it answered HTTP {status}").into(),
            Self::Lost { reason } => {
                let ends = [OWN_WORDS, ODD_WORDS].iter();
                let end = ends.filter_map(|words| reason.find(words)).min();
                let reason = &reason[..end.unwrap_or(reason.len())];
                format!("the connection was lost: {reason}").into()
            }
            Self::Refused { .. } => "it refused the handshake".into(),
            Self::Revision { .. } => "it speaks none of our revisions".into(),
            Self::Directory { .. } | Self::Spawn { .. } => "its program cannot be started".into(),
            Self::Startup { after, key, .. } => {
                format!("it did not start within {after:?} (its `{key}`)").into()
            }
            Self::BreakerOpen { .. }
            | Self::Cancelled { .. }
            | Self::Connect { .. }
            | Self::Crossing(_)
            | Self::Disabled
            | Self::Echo
            | Self::Era { .. }
            | Self::Header { .. }
            | Self::InstancesBusy { .. }
            | Self::NoMemory
            | Self::Ourselves
            | Self::Overloaded { .. }
            | Self::RequestTooLarge { .. }
            | Self::ResponseTooLarge { .. }
            | Self::SessionGone
            | Self::StartsLimited { .. }
            | Self::Timeout { .. }
            | Self::Unread { .. }
            | Self::Tls { .. }
            | Self::Unauthorized { .. }
            | Self::Unknown
            | Self::Unlisted { .. } => self.to_string().into(),
        }
    }

    /// Whether it may pass by itself while a server is started again.
    pub(super) fn may_pass(&self) -> bool {
        CallHealth::of(self, true) != CallHealth::None
    }

    /// Whether the server refuses the era itself, rather than being out of order.
    pub(super) fn refuses_era(&self) -> bool {
        let is_said = matches!(
            self,
            Self::Era { .. } | Self::Refused { .. } | Self::Revision { .. }
        );
        is_said || self.is_old_refusal()
    }

    /// A client error without a JSON-RPC body is how old HTTP servers meet unknown requests.
    pub(super) fn is_old_refusal(&self) -> bool {
        matches!(self, Self::Http { status, .. }
            if status.is_client_error() && *status != StatusCode::TOO_MANY_REQUESTS)
    }

    /// The failure that `status` means, where it means that our credential is refused.
    pub(super) fn of_credential(status: StatusCode) -> Option<Self> {
        let is_refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        is_refused.then_some(Self::Unauthorized { status })
    }
}

#[cfg(test)]
mod tests;
