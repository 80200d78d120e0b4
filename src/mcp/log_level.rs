//! Severities of log messages.

use super::json::Raw;

/// A severity of RFC 5424, least severe first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// Details for developers.
    Debug,
    /// Normal operation.
    Info,
    /// Normal but significant.
    Notice,
    /// Worth a look.
    Warning,
    /// An operation failed.
    Error,
    /// A component failed.
    Critical,
    /// Act now.
    Alert,
    /// The system is unusable.
    Emergency,
}

impl Level {
    /// All levels, least severe first.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// The level named so.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

/// Which log messages a caller wants during a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogFilter {
    /// What the server sends unasked: a legacy client that never set a level.
    All,
    /// Those at least as severe.
    From(Level),
    /// None: a 2026-07-28 request without a level.
    None,
}

impl LogFilter {
    /// Whether the log message with these params is wanted. Unknown levels are.
    pub fn accepts(self, params: Option<&Raw>) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::From(least) => params
                .and_then(|params| params.get("level"))
                .and_then(|level| Level::parse(&level.as_text()?))
                .is_none_or(|level| level >= least),
        }
    }
}
