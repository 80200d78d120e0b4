//! Who comes and goes, as the audit has it: servers, and clients with a session.

use std::{borrow::Cow, sync::Arc};

use tokio_util::sync::CancellationToken;

use super::Proxy;
use crate::{
    audit::EventKind,
    backend::{Backend, CatalogConnection, Listability},
    governance::{Governance, scanning::redact_name},
    mcp::Raw,
    session::Session,
};

impl Proxy {
    /// Begins to record when a server comes and goes.
    pub(super) fn record_server_events(&self, backend: &Arc<Backend>) {
        if !backend.is_enabled() {
            return;
        }
        let stop = self.tasks.stop_token().clone();
        let follow = record_backend_events(Arc::clone(backend), Arc::clone(&self.governance), stop);
        self.tasks.spawn("journal of a server", follow);
    }

    /// Begins to record which clients go.
    pub(super) fn record_session_ends(&self) {
        let governance = Arc::clone(&self.governance);
        self.sessions.on_end(move |session| {
            record(EventKind::ClientDisconnected, session, &governance);
        });
    }

    /// Records a client that has just introduced itself.
    pub(super) fn record_client(&self, session: &Session) {
        record(EventKind::ClientConnected, session, &self.governance);
    }
}

fn record(event: EventKind, session: &Session, governance: &Governance) {
    // A client that never introduced itself has not been recorded as one that came.
    let Some(opening) = session.client_info() else {
        return;
    };
    let info = opening.info.as_ref().and_then(|info| info.get("name"));
    let name = info.as_ref().and_then(Raw::as_text);
    let name = name.as_deref().filter(|name| !name.is_empty());
    governance.record_event(
        event,
        &session.log_id,
        Some(&session.agent.name),
        Some(&name.map_or("a client without a name".into(), redact_name)),
    );
}

/// Records until the server or the gateway is over, and then that its connection is.
async fn record_backend_events(
    backend: Arc<Backend>,
    governance: Arc<Governance>,
    stop: CancellationToken,
) {
    let mut standing = backend.watch_catalog();
    let mut up: Option<CatalogConnection> = None;
    let mut slept = false;
    loop {
        let is_over = backend.closed().is_cancelled() || stop.is_cancelled();
        let now = match standing.current() {
            _ if is_over => None,
            Listability::Asleep => {
                slept = true;
                up.clone()
            }
            // Not yet again: a short interruption shows in the next connection.
            Listability::Connecting => up.clone(),
            Listability::Down => {
                slept = false;
                None
            }
            Listability::Up(control) => {
                if std::mem::take(&mut slept) && up.is_some() {
                    // A server that slept was not gone.
                    up = Some(control.clone());
                }
                Some(control)
            }
        };
        let is_same = match (&up, &now) {
            (Some(old), Some(new)) => old == new,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !is_same {
            let server = backend.name.as_str();
            if up.is_some() {
                let why = if stop.is_cancelled() {
                    "the gateway stops".into()
                } else {
                    disconnect_reason(&backend, now.is_some())
                };
                governance.record_event(EventKind::ServerDisconnected, server, None, Some(&why));
            }
            if now.is_some() {
                let how = backend.transport_name();
                governance.record_event(EventKind::ServerConnected, server, None, Some(how));
            }
            up = now;
        }
        if is_over {
            return;
        }
        tokio::select! {
            () = standing.changed() => {}
            () = backend.closed().cancelled() => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Why the connection of a server ended. What the server wrote is left to logs and `/status`.
fn disconnect_reason(backend: &Backend, is_back: bool) -> Cow<'static, str> {
    if backend.closed().is_cancelled() {
        return "the config has changed".into();
    }
    if is_back {
        return "replaced by another connection".into();
    }
    let failure = backend.last_failure();
    failure.map_or("reconnecting".into(), |failure| {
        failure.client_message().into_owned().into()
    })
}
