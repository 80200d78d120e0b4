//! Updates of resources on their way to the sessions that are subscribed: what servers say of them, and
//! that nobody heard for a while what they say.
//!
//! Fed by `shared`, read by `proxy`. What servers say is lost where too much waits; that it may have been
//! is told for certain, however much any server says meanwhile.

use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::{mcp::Raw, names::ServerName};

/// What servers said that may wait to be passed on.
const UPDATES_QUEUED_MAX: usize = 1024;
/// Resources of which nobody heard that may wait; who tells of more waits as well.
const MISSED_QUEUED_MAX: usize = 16;

/// A resource of a server was updated.
#[derive(Clone, Debug)]
pub struct Update {
    /// The server.
    pub server: ServerName,
    /// Its URI, in the server's own spelling.
    pub uri: String,
    /// The params of the notification.
    pub params: Raw,
    /// The connection on which it came.
    pub(crate) instance: u64,
}

impl Update {
    /// That the resource `uri` may have been updated while nobody listened on the connection
    /// `instance`.
    pub(crate) fn possibly_missed(server: &ServerName, uri: String, instance: u64) -> Self {
        Self {
            server: server.clone(),
            params: Raw::from_value(&serde_json::json!({ "uri": uri })),
            uri,
            instance,
        }
    }
}

/// Takes updates.
#[derive(Clone, Debug)]
pub(crate) struct UpdateSender {
    updates: Sender<Update>,
    missed: Sender<Update>,
}

impl UpdateSender {
    /// Tells what a server said; whether there was room for it.
    pub(in crate::backend) fn send(&self, update: Update) -> bool {
        self.updates.try_send(update).is_ok()
    }

    /// Tells of a resource of which nobody heard for a while, as soon as there is room.
    pub(in crate::backend) async fn send_missed(&self, update: Update) {
        // Nobody takes it while the gateway stops.
        self.missed.send(update).await.ok();
    }
}

/// The updates, to be passed on.
#[derive(Debug)]
pub struct UpdateReceiver {
    updates: Receiver<Update>,
    missed: Receiver<Update>,
}

impl UpdateReceiver {
    /// The next one; `None` once there are none to come. Cancel-safe.
    pub async fn next(&mut self) -> Option<Update> {
        // Neither comes first: a server that says much on and on holds up no other.
        tokio::select! {
            Some(update) = self.updates.recv() => Some(update),
            Some(update) = self.missed.recv() => Some(update),
            else => None,
        }
    }
}

/// A way for updates that nothing has been told on.
pub(crate) fn update_channel() -> (UpdateSender, UpdateReceiver) {
    let (tell_said, said) = mpsc::channel(UPDATES_QUEUED_MAX);
    let (tell_unheard, unheard) = mpsc::channel(MISSED_QUEUED_MAX);
    let update_sender = UpdateSender {
        updates: tell_said,
        missed: tell_unheard,
    };
    (
        update_sender,
        UpdateReceiver {
            updates: said,
            missed: unheard,
        },
    )
}
