//! From which level on a legacy server sends log messages on a link. It has one level for all who
//! share it: that of whoever wants most. What others did not ask for is kept from them here.

use std::sync::Mutex;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    lock::lock,
    mcp::{Level, Logs, Raw},
};

/// What a server is taken to send unasked, of which nothing less severe was heard before it was
/// asked: servers keep messages for developers until somebody asks for them.
const UNASKED: Level = Level::Info;

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
    asked: Option<Level>,
    /// From which level on it sends them unasked.
    unasked: Level,
}

impl KnownLevels {
    /// The level to be asked for, where not all that is `wanted` is sent yet.
    fn due(&self, wanted: Logs) -> Option<Level> {
        let level = match (wanted, self.asked) {
            (Logs::From(level), _) => level,
            // What others asked for may be less than it would send unasked.
            (Logs::All, Some(_)) => self.unasked,
            (Logs::All, None) | (Logs::None, _) => return None,
        };
        let is_news = self.asked.is_none_or(|asked| level < asked);
        is_news.then_some(level)
    }
}

impl Default for Levels {
    fn default() -> Self {
        Self {
            known: Mutex::new(KnownLevels {
                asked: None,
                unasked: UNASKED,
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
        if let Some(level) = level.filter(|_| known.asked.is_none()) {
            known.unasked = known.unasked.min(level);
        }
    }

    /// What a client gets that wants `wanted`: without a level of its own what the server would send
    /// it unasked, whatever others have asked for.
    pub(super) fn granted(&self, wanted: Logs) -> Logs {
        let known = lock(&self.known);
        match wanted {
            Logs::All if known.asked.is_some() => Logs::From(known.unasked),
            Logs::All | Logs::From(_) | Logs::None => wanted,
        }
    }

    /// Whether the server does not send all that is `wanted` yet.
    pub(in crate::backend) fn lack(&self, wanted: Logs) -> bool {
        lock(&self.known).due(wanted).is_some()
    }

    /// Waits until the server may be asked.
    pub(in crate::backend) async fn turn(&self) -> SemaphorePermit<'_> {
        self.turn.acquire().await.expect("it is never closed")
    }

    /// The level that the server is to be asked for, where it does not send all that is `wanted` yet; from
    /// now on it counts as asked.
    pub(in crate::backend) fn raise(&self, wanted: Logs) -> Option<Level> {
        let mut known = lock(&self.known);
        let level = known.due(wanted)?;
        known.asked = Some(level);
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
        assert_eq!(levels.granted(Logs::All), Logs::All, "nobody has asked yet");
        assert_eq!(levels.raise(Logs::All), None);
        assert_eq!(levels.raise(Logs::From(asked)), Some(asked));
        // What it says from now on it was asked for.
        levels.note(Some(&message("debug")));
        let granted = levels.granted(Logs::All);
        let names = Level::ALL.map(Level::as_str);
        let is_heard = |name: &&&str| granted.want(Some(&message(name)));
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
        let error = Logs::From(Level::Error);
        assert!(levels.lack(error));
        assert_eq!(levels.granted(Logs::All), Logs::All);
        assert_eq!(levels.raise(error), Some(Level::Error));
        assert!(!levels.lack(error));
        assert_eq!(levels.raise(error), None, "it is known");
        assert_eq!(levels.raise(Logs::None), None);
        // Who has no level is not to lose anything by that of another.
        assert_eq!(levels.raise(Logs::All), Some(Level::Info));
        assert_eq!(levels.raise(Logs::All), None);
        let debug = Logs::From(Level::Debug);
        assert_eq!(levels.raise(debug), Some(Level::Debug));
        assert_eq!(levels.granted(debug), debug);
        assert_eq!(levels.granted(Logs::None), Logs::None);
    }
}
