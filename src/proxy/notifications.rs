//! What clients tell outside of any call: to us, to the server that asked, or to the one of the route.

use std::sync::Arc;

use super::Proxy;
use crate::{
    backend::Backend,
    mcp::{Id, Notification, method::notice},
    names::Scope,
    router::NamedResources,
    session::Session,
};

impl Proxy {
    /// Takes a notification of the client of `session`.
    pub fn handle_notification(&self, session: &Arc<Session>, notification: &Notification) {
        let params = notification.params.as_ref();
        let is_taken = match notification.method.as_ref() {
            notice::INITIALIZED => {
                session.set_initialized();
                // Its lists may have changed since its `initialize`.
                self.notify_session(session);
                true
            }
            notice::CANCELLED => params.is_some_and(|params| {
                let id = params.get("requestId").and_then(Id::from_raw);
                id.is_some_and(|id| session.cancel(&id, params))
            }),
            notice::ROOTS_CHANGED => {
                self.backends.notify_roots_changed(session);
                true
            }
            notice::PROGRESS => params.is_some_and(|params| session.progress(params)),
            _ => self.forward_unknown(session, notification),
        };
        if !is_taken {
            let method = &*notification.method;
            tracing::debug!(
                session = session.log_id,
                method,
                "a notification concerns nobody"
            );
        }
    }

    /// Passes a notification that we do not know to the one server of the route; whether there is
    /// one. A request without an id is none: the server might do what it asks, though no step of
    /// governance has seen it.
    fn forward_unknown(&self, session: &Arc<Session>, notification: &Notification) -> bool {
        if !notification.method.starts_with(notice::NOTIFICATION_PREFIX) {
            return false;
        }
        let backend = match &session.scope {
            Scope::All | Scope::Profile(_) | Scope::View { .. } => None,
            Scope::Server(server) => self
                .backends
                .get(server)
                .filter(|_| self.sees_server(&session.agent, server)),
        };
        let Some(backend) =
            backend.filter(|backend| self.may_forward(session, backend, notification))
        else {
            return false;
        };
        let Some(params) = &notification.params else {
            return backend.notify(session, notification);
        };
        let (agent, scope) = (&session.agent, &session.scope);
        let scanned =
            self.governance
                .scan_client_notification(agent, scope, &backend.name, params.clone());
        scanned.is_some_and(|params| {
            let notification = Notification {
                method: notification.method.clone(),
                params: Some(params),
            };
            backend.notify(session, &notification)
        })
    }

    /// Whether the client of `session` may send `notification` to `backend`.
    fn may_forward(
        &self,
        session: &Session,
        backend: &Backend,
        notification: &Notification,
    ) -> bool {
        let Notification { method, params } = notification;
        let server = &backend.name;
        let route = (&self.owners_seen_by(&session.agent), &session.scope);
        let named = params
            .as_ref()
            .map_or(Ok(NamedResources::NOTHING), |params| {
                NamedResources::from_params(params, server, &self.catalog_store.catalog(route))
            });
        let visibility = self.governance.visibility(&session.agent, &session.scope);
        let may = named.is_ok_and(|named| visibility.shows_notification(server, method, &named));
        if !may {
            tracing::debug!(%server, %method, "rejected a notification");
        }
        may
    }
}
