//! What the end of a call says of its server, for whoever counts that.

use super::BackendError;

/// What the end of a call says of its server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CallHealth {
    /// There was no connection to be had: the server cannot be reached, or not be started.
    Unreachable,
    /// There was no connection to be had: that of the caller has ended.
    Disconnected,
    /// It failed a call that it was connected for.
    Error,
    /// Nothing: the call was given up, refused, or wrong in itself.
    Neutral,
    /// It answered.
    Success,
}

impl CallHealth {
    /// What `failure` says; `away` tells whether there was no connection for the call.
    pub(super) fn of(failure: &BackendError, away: bool) -> Self {
        let unless_away = |sign| if away { sign } else { Self::Error };
        match failure {
            // One that is still starting has not failed.
            BackendError::NoConnection { cause }
                if matches!(**cause, BackendError::Timeout { .. }) =>
            {
                Self::Neutral
            }
            BackendError::NoConnection { cause } => Self::of(cause, true),
            BackendError::Connect { .. }
            | BackendError::WorkingDirectory { .. }
            | BackendError::Spawn { .. }
            | BackendError::Startup { .. }
            | BackendError::Tls { .. } => Self::Unreachable,
            BackendError::Lost { .. }
            | BackendError::Timeout { .. }
            | BackendError::WriteTimeout { .. } => unless_away(Self::Disconnected),
            BackendError::Http { status, .. } if status.is_server_error() => {
                unless_away(Self::Unreachable)
            }
            // Nobody asked the server.
            BackendError::BackingOff { .. }
            | BackendError::BreakerOpen { .. }
            | BackendError::Cancelled { .. }
            | BackendError::UnsupportedInEra(_)
            | BackendError::Disabled
            | BackendError::Echo
            | BackendError::Era { .. }
            | BackendError::ProtocolViolation { .. }
            | BackendError::Header { .. }
            | BackendError::Http { .. }
            | BackendError::InstancesBusy { .. }
            | BackendError::NoMemory
            | BackendError::LoopDetected
            | BackendError::Overloaded { .. }
            | BackendError::Refused { .. }
            | BackendError::RequestTooLarge { .. }
            | BackendError::ResponseTooLarge { .. }
            | BackendError::Revision { .. }
            | BackendError::SessionGone
            | BackendError::StartsLimited { .. }
            | BackendError::Unauthorized { .. }
            | BackendError::UnknownServer
            | BackendError::NotListedYet { .. } => Self::Neutral,
        }
    }
}
