//! How often each list has changed, and who hears of it: the open `subscriptions/listen` streams of
//! 2026-07-28 and the clients of the handshake revisions.
//!
//! The trigger tools call `change`. A listener leaves when its stream ends or when its connection
//! is found closed. What changes after a stream was acknowledged is announced on it, even though
//! rmcp acknowledges a stream before it hands it over.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rmcp::RoleServer;
use rmcp::model::ErrorData;
use rmcp::service::{Peer, SubscriptionContext, SubscriptionSink};
use tokio::task;

/// Listeners of each kind. One more stream is refused; one more session is not told.
const LISTENERS_MAX: usize = 256;

/// A list that can change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum List {
    Prompts,
    Tools,
}

#[derive(Default)]
pub(crate) struct Listeners {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    changes: Changes,
    streams: BTreeMap<u64, SubscriptionSink>,
    streams_added: u64,
    /// The changes before a stream was acknowledged, by the task that serves it.
    acknowledged: HashMap<task::Id, Changes>,
    sessions: Vec<Peer<RoleServer>>,
}

/// How often each list has changed.
#[derive(Clone, Copy, Default)]
struct Changes {
    prompts: u64,
    tools: u64,
}

impl Listeners {
    /// Whether the extra item is in a list: every change adds or removes it.
    pub(crate) fn has_extra(&self, list: List) -> bool {
        let changes = self.lock().changes;
        let times = match list {
            List::Prompts => changes.prompts,
            List::Tools => changes.tools,
        };
        times % 2 == 1
    }

    /// Changes a list and tells every listener that wants to know.
    pub(crate) async fn change(&self, list: List) {
        let (streams, sessions) = {
            let mut known = self.lock();
            match list {
                List::Prompts => known.changes.prompts += 1,
                List::Tools => known.changes.tools += 1,
            }
            let streams: Vec<_> = known.streams.values().cloned().collect();
            (streams, known.sessions.clone())
        };
        for stream in streams {
            tell_stream(&stream, list).await;
        }
        for session in sessions {
            tell_session(&session, list).await;
        }
    }

    /// Adds a client of a handshake revision.
    pub(crate) fn add_session(&self, session: Peer<RoleServer>) {
        let mut known = self.lock();
        known
            .sessions
            .retain(|session| !session.is_transport_closed());
        if known.sessions.len() < LISTENERS_MAX {
            known.sessions.push(session);
        }
    }

    /// Notes that the current task is about to acknowledge a stream and then to `hold` it.
    pub(crate) fn acknowledge(&self) {
        let mut known = self.lock();
        let changes = known.changes;
        // An acknowledgement that did not reach its client leaves its entry behind.
        if known.acknowledged.len() >= LISTENERS_MAX {
            known.acknowledged.clear();
        }
        known.acknowledged.insert(task::id(), changes);
    }

    /// Keeps a stream of 2026-07-28 among the listeners until its client ends it.
    ///
    /// # Errors
    ///
    /// There are too many streams already.
    pub(crate) async fn hold(&self, subscription: SubscriptionContext) -> Result<(), ErrorData> {
        let Some((stream, before, now)) = self.add_stream(subscription.sink()) else {
            return Err(ErrorData::internal_error("too many subscriptions", None));
        };
        if now.prompts > before.prompts {
            tell_stream(subscription.sink(), List::Prompts).await;
        }
        if now.tools > before.tools {
            tell_stream(subscription.sink(), List::Tools).await;
        }
        subscription.cancelled().await;
        self.lock().streams.remove(&stream);
        Ok(())
    }

    /// Adds a stream; returns its number, and the changes until its acknowledgement and until now.
    fn add_stream(&self, sink: &SubscriptionSink) -> Option<(u64, Changes, Changes)> {
        let mut known = self.lock();
        if known.streams.len() >= LISTENERS_MAX {
            return None;
        }
        let now = known.changes;
        let before = known.acknowledged.remove(&task::id()).unwrap_or(now);
        let stream = known.streams_added;
        known.streams_added += 1;
        known.streams.insert(stream, sink.clone());
        Some((stream, before, now))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn tell_stream(stream: &SubscriptionSink, list: List) {
    // An error says that this listener did not ask for the list, or has left.
    match list {
        List::Prompts => stream.notify_prompt_list_changed().await.ok(),
        List::Tools => stream.notify_tool_list_changed().await.ok(),
    };
}

async fn tell_session(session: &Peer<RoleServer>, list: List) {
    // An error says that this client has left.
    match list {
        List::Prompts => session.notify_prompt_list_changed().await.ok(),
        List::Tools => session.notify_tool_list_changed().await.ok(),
    };
}
