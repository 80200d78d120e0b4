//! From which level on a legacy server sends log messages on a link. It has one level for all who
//! share it: that of whoever wants most. What others did not ask for is kept from them here.

use std::sync::Mutex;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    lock::lock,
    mcp::{Level, LogFilter, Raw},
};

/// What a server is taken to send unasked, of which nothing less severe was heard before it was
/// asked: servers keep messages for developers until somebody asks for them.
const DEFAULT_LEVEL: Level = Level::Info;

/// See the module.
#[derive(Debug)]
pub(in crate::backend) struct Levels {
    known: Mutex<KnownLevels>,
    /// Who has it asks the server: of two messages under way that might take the later one first.
    turn: Semaphore,
}

#[derive(Debug)]
struct KnownLevels {
    /// From which level on it was asked for messages, when it was.
    requested: Option<Level>,
    /// From which level on it sends them unasked.
    default_level: Level,
}

impl KnownLevels {
    /// The level to be asked for, where not all that is `wanted` is sent yet.
    fn missing_level(&self, wanted: LogFilter) -> Option<Level> {
        let level = match (wanted, self.requested) {
            (LogFilter::From(level), _) => level,
            // What others asked for may be less than it would send unasked.
            (LogFilter::All, Some(_)) => self.default_level,
            (LogFilter::All, None) | (LogFilter::None, _) => return None,
        };
        let is_news = self.requested.is_none_or(|asked| level < asked);
        is_news.then_some(level)
    }
}

impl Default for Levels {
    fn default() -> Self {
        Self {
            known: Mutex::new(KnownLevels {
                requested: None,
                default_level: DEFAULT_LEVEL,
            }),
            turn: Semaphore::new(1),
        }
    }
}

impl Levels {
    /// Notes a log message.
    pub(super) fn note(&self, params: Option<&Raw>) {
        let level = params.and_then(|params| params.get("level"));
        let level = level.and_then(|level| Level::parse(&level.as_text()?));
        let mut known = lock(&self.known);
        if let Some(level) = level.filter(|_| known.requested.is_none()) {
            known.default_level = known.default_level.min(level);
        }
    }

    /// What a client gets that wants `wanted`: without a level of its own what the server would send
    /// it unasked, whatever others have asked for.
    pub(super) fn granted(&self, wanted: LogFilter) -> LogFilter {
        let known = lock(&self.known);
        match wanted {
            LogFilter::All if known.requested.is_some() => LogFilter::From(known.default_level),
            LogFilter::All | LogFilter::From(_) | LogFilter::None => wanted,
        }
    }

    /// Whether the server does not send all that is `wanted` yet.
    pub(in crate::backend) fn lacks(&self, wanted: LogFilter) -> bool {
        lock(&self.known).missing_level(wanted).is_some()
    }

    /// Waits until the server may be asked.
    pub(in crate::backend) async fn acquire_turn(&self) -> SemaphorePermit<'_> {
        self.turn.acquire().await.expect("it is never closed")
    }

    /// The level that the server is to be asked for, where it does not send all that is `wanted` yet; from
    /// now on it counts as asked.
    pub(in crate::backend) fn next_request(&self, wanted: LogFilter) -> Option<Level> {
        let mut known = lock(&self.known);
        let level = known.missing_level(wanted)?;
        known.requested = Some(level);
        Some(level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: &str) -> Raw {
        Raw::from_value(&serde_json::json!({ "level": level, "data": 1 }))
    }

    /// What a client without a level hears of each, once another has set `asked`, of a server that said
    /// `before` unasked.
    fn heard(before: &[&str], asked: Level) -> Vec<&'static str> {
        let levels = Levels::default();
        for level in before {
            levels.note(Some(&message(level)));
        }
        assert_eq!(
            levels.granted(LogFilter::All),
            LogFilter::All,
            "nobody has asked yet"
        );
        assert_eq!(levels.next_request(LogFilter::All), None);
        assert_eq!(levels.next_request(LogFilter::From(asked)), Some(asked));
        // What it says from now on it was asked for.
        levels.note(Some(&message("debug")));
        let granted = levels.granted(LogFilter::All);
        let names = Level::ALL.map(Level::as_str);
        let is_heard = |name: &&&str| granted.accepts(Some(&message(name)));
        names.iter().filter(is_heard).copied().take(2).collect()
    }

    #[test]
    fn who_set_no_level_hears_what_is_sent_unasked() {
        assert_eq!(heard(&[], Level::Debug), ["info", "notice"]);
        assert_eq!(heard(&["error"], Level::Debug), ["info", "notice"]);
        assert_eq!(heard(&["odd", "debug"], Level::Debug), ["debug", "info"]);
        assert_eq!(heard(&["debug"], Level::Error), ["debug", "info"]);
    }

    #[test]
    fn a_server_is_asked_for_what_anybody_wants() {
        let levels = Levels::default();
        let error = LogFilter::From(Level::Error);
        assert!(levels.lacks(error));
        assert_eq!(levels.granted(LogFilter::All), LogFilter::All);
        assert_eq!(levels.next_request(error), Some(Level::Error));
        assert!(!levels.lacks(error));
        assert_eq!(levels.next_request(error), None, "it is known");
        assert_eq!(levels.next_request(LogFilter::None), None);
        // Who has no level is not to lose anything by that of another.
        assert_eq!(levels.next_request(LogFilter::All), Some(Level::Info));
        assert_eq!(levels.next_request(LogFilter::All), None);
        let debug = LogFilter::From(Level::Debug);
        assert_eq!(levels.next_request(debug), Some(Level::Debug));
        assert_eq!(levels.granted(debug), debug);
        assert_eq!(levels.granted(LogFilter::None), LogFilter::None);
    }
}
