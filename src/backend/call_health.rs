//! What the end of a call says about the health of its server.

use super::BackendError;

/// What the end of a call says about its server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CallHealth {
    /// No connection could be made.
    Unreachable,
    /// The connection was lost, or the call failed on it.
    Error,
    /// Nothing: the call was cancelled, refused, or invalid.
    Neutral,
    /// The server answered.
    Success,
}

impl CallHealth {
    /// What `failure` says; `away` tells whether there was no connection for the call.
    pub(super) fn of(failure: &BackendError, away: bool) -> Self {
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
            BackendError::Http { status, .. } if status.is_server_error() && away => {
                Self::Unreachable
            }
            BackendError::Http { status, .. } if status.is_server_error() => Self::Error,
            BackendError::Lost { .. }
            | BackendError::Timeout { .. }
            | BackendError::WriteTimeout { .. } => Self::Error,
            // Nobody asked the server.
            BackendError::BackingOff { .. }
            | BackendError::BreakerOpen { .. }
            | BackendError::Cancelled { .. }
            | BackendError::UnsupportedInEra(_)
            | BackendError::Disabled
            | BackendError::NameConflict(_)
            | BackendError::NeedsSignIn { .. }
            | BackendError::TokenRefused { .. }
            | BackendError::Echo
            | BackendError::Era { .. }
            | BackendError::ProtocolViolation { .. }
            | BackendError::TooManyGateways
            | BackendError::Header { .. }
            | BackendError::Http { .. }
            | BackendError::InstancesBusy { .. }
            | BackendError::NoFiles { .. }
            | BackendError::NoMemory
            | BackendError::LoopDetected
            | BackendError::Overloaded { .. }
            | BackendError::Redirect { .. }
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
