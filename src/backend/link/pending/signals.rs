//! What a server says that concerns the gateway rather than one call, until the supervisor takes it.
//!
//! What is true or not is noted once, however often it is said: no flood of anything else can hide
//! that a list has changed. Only updates of resources queue, and those that find no room are counted.

use std::{collections::HashSet, sync::Mutex};

use tokio::{
    sync::Notify,
    time::{Duration, Instant},
};

use crate::{backend::sharing::Sharing, lock::lock, mcp::Raw, names::AgentId, session::Session};

/// Updates of resources that may wait for the supervisor, which takes all of them at a time.
const UPDATES_MAX: usize = 1024;
/// Bytes of such updates; one larger update may wait.
const UPDATES_BYTES_MAX: usize = 4 << 20;
/// Least time from one answer that casts doubt on the lists to the next that does: who calls decides how
/// often there is one.
const DOUBT_INTERVAL: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    noted: Mutex<NotedSignals>,
    /// Something was noted that nobody has taken yet.
    notify: Notify,
    /// When an answer last cast doubt on the lists.
    doubted: Mutex<Option<Instant>>,
}

/// What was said since the supervisor asked last.
#[derive(Debug, Default)]
pub(crate) struct NotedSignals {
    /// It asked clients something, and waits: whose connections that may be on.
    pub(in crate::backend) asked_clients: HashSet<Sharing>,
    /// It asked for the roots of a client.
    pub(crate) roots_requested: bool,
    /// A list changed; ask again.
    pub(crate) lists_changed: bool,
    /// Resources were updated; the params name them.
    pub(crate) updates: Vec<Raw>,
    /// Updates that there was no room for.
    pub(crate) updates_lost: u64,
    /// Times in which it may have said things that nobody heard.
    pub(crate) gap_count: u64,
    bytes: usize,
}

impl Signals {
    /// It asked a client of `agent` something, in `session` where it has one.
    pub(super) fn client_asked(&self, agent: AgentId, session: Option<&Session>) {
        self.note(|noted| {
            noted.asked_clients.insert(Sharing::Agent(agent));
            let session = session.map(|session| Sharing::Session(session.id.clone()));
            noted.asked_clients.extend(session);
        });
    }

    pub(super) fn roots_requested(&self) {
        self.note(|noted| noted.roots_requested = true);
    }

    pub(super) fn lists_changed(&self) {
        self.note(|noted| noted.lists_changed = true);
    }

    /// An answer looks as if a list had changed.
    pub(in crate::backend) fn lists_suspected(&self) {
        let mut doubted = lock(&self.doubted);
        if doubted.is_none_or(|at| at.elapsed() >= DOUBT_INTERVAL) {
            *doubted = Some(Instant::now());
            drop(doubted);
            self.lists_changed();
        }
    }

    pub(crate) fn messages_missed(&self) {
        self.note(|noted| noted.gap_count += 1);
    }

    pub(super) fn resource_updated(&self, params: Raw) {
        self.note(|noted| {
            let bytes = noted.bytes + params.as_bytes().len();
            let is_full = noted.updates.len() >= UPDATES_MAX
                || (!noted.updates.is_empty() && bytes > UPDATES_BYTES_MAX);
            if is_full {
                noted.updates_lost += 1;
                return;
            }
            noted.bytes = bytes;
            noted.updates.push(params);
        });
    }

    fn note(&self, note: impl FnOnce(&mut NotedSignals)) {
        note(&mut lock(&self.noted));
        self.notify.notify_one();
    }

    /// What was said since, once there is something.
    pub(crate) async fn take(&self) -> NotedSignals {
        self.notify.notified().await;
        std::mem::take(&mut lock(&self.noted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(bytes: usize) -> Raw {
        Raw::string(&"x".repeat(bytes - 2))
    }

    #[tokio::test]
    async fn a_flood_hides_no_change() {
        let signals = Signals::default();
        for _ in 0..UPDATES_MAX {
            signals.resource_updated(update(10));
        }
        signals.lists_changed();
        signals.roots_requested();
        let noted = signals.take().await;
        assert_eq!((noted.updates.len(), noted.updates_lost), (UPDATES_MAX, 0));
        assert!(noted.lists_changed && noted.roots_requested && noted.asked_clients.is_empty());
        for _ in 0..=UPDATES_MAX {
            signals.resource_updated(update(10));
        }
        signals.client_asked(AgentId::ANONYMOUS, None);
        let noted = signals.take().await;
        assert_eq!((noted.updates.len(), noted.updates_lost), (UPDATES_MAX, 1));
        assert!(!noted.asked_clients.is_empty() && !noted.lists_changed);
    }

    #[tokio::test]
    async fn so_many_bytes_of_updates_wait() {
        let counted = async |sizes: &[usize]| {
            let signals = Signals::default();
            for size in sizes {
                signals.resource_updated(update(*size));
            }
            let noted = signals.take().await;
            (noted.updates.len(), noted.updates_lost)
        };
        let half = UPDATES_BYTES_MAX / 2;
        assert_eq!(counted(&[half, half]).await, (2, 0));
        assert_eq!(counted(&[half, half + 1]).await, (1, 1));
        assert_eq!(counted(&[UPDATES_BYTES_MAX + 1]).await, (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn doubts_lead_to_a_list_now_and_then() {
        let signals = Signals::default();
        let is_noted = || lock(&signals.noted).lists_changed;
        signals.lists_suspected();
        assert!(signals.take().await.lists_changed);
        tokio::time::advance(DOUBT_INTERVAL / 2).await;
        signals.lists_suspected();
        assert!(!is_noted());
        tokio::time::advance(DOUBT_INTERVAL / 2).await;
        signals.lists_suspected();
        assert!(is_noted());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_taken_is_not_there_again() {
        let signals = Signals::default();
        signals.lists_changed();
        signals.lists_changed();
        assert!(signals.take().await.lists_changed);
        let second = std::time::Duration::from_secs(1);
        assert!(tokio::time::timeout(second, signals.take()).await.is_err());
    }
}
