//! What the end of a call says of its server, for whoever counts that.

use super::BackendError;

/// What the end of a call says of its server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CallHealth {
    /// There was no connection to be had: the server cannot be reached, or not be started.
    Away,
    /// There was no connection to be had: that of the caller has ended.
    Gone,
    /// It failed a call that it was connected for.
    Ill,
    /// Nothing: the call was given up, refused, or wrong in itself.
    None,
    /// It answered.
    Well,
}

impl CallHealth {
    /// What `failure` says; `away` tells whether there was no connection for the call.
    pub(super) fn of(failure: &BackendError, away: bool) -> Self {
        let unless_away = |sign| if away { sign } else { Self::Ill };
        match failure {
            // One that is still starting has not failed.
            BackendError::Absent { cause } if matches!(**cause, BackendError::Timeout { .. }) => {
                Self::None
            }
            BackendError::Absent { cause } => Self::of(cause, true),
            BackendError::Connect { .. }
            | BackendError::Directory { .. }
            | BackendError::Spawn { .. }
            | BackendError::Startup { .. }
            | BackendError::Tls { .. } => Self::Away,
            BackendError::Lost { .. }
            | BackendError::Timeout { .. }
            | BackendError::Unread { .. } => unless_away(Self::Gone),
            BackendError::Http { status, .. } if status.is_server_error() => {
                unless_away(Self::Away)
            }
            // Nobody asked the server.
            BackendError::BackingOff { .. }
            | BackendError::BreakerOpen { .. }
            | BackendError::Cancelled { .. }
            | BackendError::Crossing(_)
            | BackendError::Disabled
            | BackendError::Echo
            | BackendError::Era { .. }
            | BackendError::Garbled { .. }
            | BackendError::Header { .. }
            | BackendError::Http { .. }
            | BackendError::InstancesBusy { .. }
            | BackendError::NoMemory
            | BackendError::Ourselves
            | BackendError::Overloaded { .. }
            | BackendError::Refused { .. }
            | BackendError::RequestTooLarge { .. }
            | BackendError::ResponseTooLarge { .. }
            | BackendError::Revision { .. }
            | BackendError::SessionGone
            | BackendError::StartsLimited { .. }
            | BackendError::Unauthorized { .. }
            | BackendError::Unknown
            | BackendError::Unlisted { .. } => Self::None,
        }
    }
}
