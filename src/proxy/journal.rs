//! Who comes and goes, as the audit has it: servers, and clients with a session.

use std::sync::Arc;

use super::Proxy;
use crate::{
    audit::EventKind,
    backend::{Backend, Control, Standing},
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
        &session.mark,
        Some(&session.agent.name),
        name.as_deref(),
    );
}

async fn follow(backend: Arc<Backend>, governance: Arc<Governance>) {
    let mut standing = backend.standing();
    let mut up: Option<Control> = None;
    let mut slept = false;
    loop {
        // Why a server is down is left to logs and `/status`: it may be in the server's own words.
        let is_over = backend.over().is_cancelled();
        let now = match standing.now() {
            _ if is_over => None,
            Standing::Asleep => {
                slept = true;
                up.clone()
            }
            // Not yet again: a short interruption shows in the next connection.
            Standing::Connecting => up.clone(),
            Standing::Down => {
                slept = false;
                None
            }
            Standing::Up(control) => {
                if std::mem::take(&mut slept) && up.is_some() {
                    // A server that slept was not gone.
                    up = Some(control.clone());
                }
                Some(control)
            }
        };
        let is_same = match (&up, &now) {
            (Some(old), Some(new)) => old.is(new),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !is_same {
            let gone = up.as_ref().map(|_| EventKind::ServerDisconnected);
            let come = now.as_ref().map(|_| EventKind::ServerConnected);
            for event in gone.into_iter().chain(come) {
                governance.note(event, backend.name.as_str(), None, None);
            }
            up = now;
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
