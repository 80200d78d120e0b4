//! Who hears that a list has changed: the open `subscriptions/listen` streams of 2026-07-28 and the
//! clients of the handshake revisions.
//!
//! The trigger tools call `announce`. A listener leaves when its stream ends or when its connection
//! is found closed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rmcp::RoleServer;
use rmcp::model::ErrorData;
use rmcp::service::{Peer, SubscriptionContext, SubscriptionSink};

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
    next_stream: u64,
    streams: BTreeMap<u64, SubscriptionSink>,
    sessions: Vec<Peer<RoleServer>>,
}

impl Listeners {
    /// Keeps a stream of 2026-07-28 among the listeners until its client ends it.
    ///
    /// # Errors
    ///
    /// There are too many streams already.
    pub(crate) async fn hold(&self, subscription: SubscriptionContext) -> Result<(), ErrorData> {
        let Some(stream) = self.add_stream(subscription.sink()) else {
            return Err(ErrorData::internal_error("too many subscriptions", None));
        };
        subscription.cancelled().await;
        self.lock().streams.remove(&stream);
        Ok(())
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

    /// Tells every listener that wants to know.
    pub(crate) async fn announce(&self, list: List) {
        let (streams, sessions) = {
            let known = self.lock();
            let streams: Vec<_> = known.streams.values().cloned().collect();
            (streams, known.sessions.clone())
        };
        // A failure means that the listener did not ask for this list or has left.
        for stream in streams {
            match list {
                List::Prompts => stream.notify_prompt_list_changed().await.ok(),
                List::Tools => stream.notify_tool_list_changed().await.ok(),
            };
        }
        for session in sessions {
            match list {
                List::Prompts => session.notify_prompt_list_changed().await.ok(),
                List::Tools => session.notify_tool_list_changed().await.ok(),
            };
        }
    }

    fn add_stream(&self, sink: &SubscriptionSink) -> Option<u64> {
        let mut known = self.lock();
        if known.streams.len() >= LISTENERS_MAX {
            return None;
        }
        let stream = known.next_stream;
        known.next_stream += 1;
        known.streams.insert(stream, sink.clone());
        Some(stream)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
