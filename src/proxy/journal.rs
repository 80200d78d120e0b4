//! Who comes and goes, as the audit has it: servers, and clients with a session.

use std::sync::Arc;

use super::Proxy;
use crate::{
    audit::EventKind,
    backend::{Backend, Standing},
    governance::Governance,
    mcp::Raw,
    session::Session,
};

impl Proxy {
    /// Begins to record when a server comes and goes.
    pub(super) fn follow_server(&self, backend: &Arc<Backend>) {
        if !backend.config.enabled {
            return;
        }
        let follow = follow(Arc::clone(backend), Arc::clone(&self.governance));
        let stop = self.tasks.stop_token().clone();
        self.tasks.spawn("journal of a server", async move {
            tokio::select! {
                () = follow => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// Begins to record which clients go.
    pub(super) fn follow_sessions(&self) {
        let governance = Arc::clone(&self.governance);
        self.sessions.on_end(move |session| {
            note(EventKind::ClientDisconnected, session, &governance);
        });
    }

    /// Records a client that has just introduced itself.
    pub(super) fn note_client(&self, session: &Session) {
        note(EventKind::ClientConnected, session, &self.governance);
    }
}

fn note(event: EventKind, session: &Session, governance: &Governance) {
    // A client that never introduced itself has not been recorded as one that came.
    let Some(opening) = session.opening() else {
        return;
    };
    let info = opening.info.as_ref().and_then(|info| info.get("name"));
    let name = info.as_ref().and_then(Raw::as_text);
    governance.note(
        event,
        &session.id,
        Some(&session.agent.name),
        name.as_deref(),
    );
}

async fn follow(backend: Arc<Backend>, governance: Arc<Governance>) {
    let mut standing = backend.standing();
    let mut is_up = false;
    loop {
        // Why a server is down is left to logs and `/status`: it may be in the server's own words.
        let is_over = backend.over().is_cancelled();
        let now = match standing.now() {
            _ if is_over => false,
            Standing::Connecting => is_up,
            Standing::Down => false,
            Standing::Up(_) => true,
        };
        if now != is_up {
            is_up = now;
            let event = if is_up {
                EventKind::ServerConnected
            } else {
                EventKind::ServerDisconnected
            };
            governance.note(event, backend.name.as_str(), None, None);
        }
        if is_over {
            return;
        }
        tokio::select! {
            () = standing.changed() => {}
            () = backend.over().cancelled() => {}
        }
    }
}
