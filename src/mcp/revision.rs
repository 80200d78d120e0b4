//! The protocol revisions, as data.

use std::fmt;

/// A published revision of the protocol, oldest first.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Revision {
    /// 2024-11-05: stdio and HTTP+SSE.
    V2024,
    /// 2025-03-26: streamable HTTP, sessions, batches.
    V2025March,
    /// 2025-06-18: structured content, elicitation, the version header.
    V2025June,
    /// 2025-11-25: URL elicitation, priming events, core tasks.
    V2025November,
    /// 2026-07-28: stateless.
    V2026,
}

/// The two ways to hold a conversation.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Era {
    /// `initialize`, then a session.
    Legacy,
    /// Every request carries its own `_meta`.
    Modern,
}

impl Revision {
    /// All revisions, newest first: the order in which we offer them.
    pub const ALL: [Self; 5] = [
        Self::V2026,
        Self::V2025November,
        Self::V2025June,
        Self::V2025March,
        Self::V2024,
    ];
    /// The newest revision that `initialize` can settle on.
    pub const LEGACY: Self = Self::V2025November;
    /// The newest stateless revision.
    pub const MODERN: Self = Self::V2026;

    /// The revision with this exact date.
    pub fn parse(date: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|revision| revision.as_str() == date)
    }

    /// The date on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024 => "2024-11-05",
            Self::V2025March => "2025-03-26",
            Self::V2025June => "2025-06-18",
            Self::V2025November => "2025-11-25",
            Self::V2026 => "2026-07-28",
        }
    }

    /// The era it belongs to.
    pub const fn era(self) -> Era {
        match self {
            Self::V2024 | Self::V2025March | Self::V2025June | Self::V2025November => Era::Legacy,
            Self::V2026 => Era::Modern,
        }
    }

    /// Whether a client may send arrays of messages (only 2025-03-26 has them).
    pub const fn has_batches(self) -> bool {
        matches!(self, Self::V2025March)
    }

    /// Whether a stream begins with an event of empty data and may close early (2025-11-25).
    pub const fn has_priming(self) -> bool {
        matches!(self, Self::V2025November)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        })
    }
}
