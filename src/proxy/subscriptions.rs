//! Subscriptions of the legacy era: `resources/subscribe`, and what becomes of them when servers,
//! sessions and rules come and go.

use std::{borrow::Cow, sync::Arc};

use futures_util::StreamExt;

use super::Proxy;
use crate::{
    auth::Agent,
    backend::{Backend, Update},
    catalog::{Kind, Lookup},
    mcp::{Method, Outcome, Raw, RpcError, error},
    names::{Scope, ServerName},
    session::{Call, Session},
};

/// Sessions whose subscriptions are moved at a time: one that waits for its server holds up few
/// others, and a server is not asked by all at once.
const CONCURRENT_MOVES_MAX: usize = 16;

/// How much of the subscriptions is gone through.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReviewScope {
    /// Those that are over.
    Ended,
    /// Those that are possible again too.
    All,
}

impl Proxy {
    /// Subscribes or unsubscribes a session; the server hears of the last to leave only.
    pub(super) async fn subscribe(&self, call: Box<Call>) -> Outcome {
        let uri = call.params.as_ref().and_then(|params| params.get("uri"));
        let uri = uri.as_ref().and_then(Raw::as_text).map(Cow::into_owned);
        let Some(uri) = uri else {
            let message = format!("{} needs a string `uri`", call.method);
            return Err(RpcError::new(error::INVALID_PARAMS, message).to_raw());
        };
        let Some(session) = call.client.session.clone() else {
            let message = "subscriptions require a session";
            return Err(RpcError::new(error::INVALID_REQUEST, message).to_raw());
        };
        if call.method == Method::ResourcesUnsubscribe {
            return self.unsubscribe(call, &session, &uri).await;
        }
        // Before the server knows: its first update may be right behind its answer.
        let new = session
            .subscribe(&uri)
            .map_err(|full| RpcError::new(error::INVALID_REQUEST, full.to_string()).to_raw())?;
        if let Some((backend, original)) = self.resolve_uri((&call.client.agent, &call.scope), &uri)
        {
            session.set_subscription_target(&uri, &backend.name, &original);
        }
        let outcome = self.call(call).await;
        if outcome.is_err() && new {
            session.unsubscribe(&uri);
        }
        outcome
    }

    async fn unsubscribe(&self, call: Box<Call>, session: &Arc<Session>, uri: &str) -> Outcome {
        let place = self.resolve_subscription(session, uri);
        let is_found = self
            .resolve_uri((&call.client.agent, &call.scope), uri)
            .is_some();
        let was_subscribed = session.unsubscribe(uri);
        let done = Ok(Raw::from_static("{}"));
        let Some((backend, original)) = place else {
            return if was_subscribed {
                done
            } else {
                self.call(call).await
            };
        };
        let is_wanted = || {
            self.is_wanted(&backend, &original, |other| {
                backend.shares_connection(session, other)
            })
        };
        if is_wanted() {
            return done;
        }
        if !is_found {
            // No call finds the way there: its server is away, or it may no longer be seen.
            self.unsubscribe_upstream(session, &backend, &original)
                .await;
            return done;
        }
        let outcome = self.call(call).await;
        // Whoever subscribed meanwhile may have come first.
        if is_wanted() {
            backend.resubscribe(session, &original).await;
        }
        outcome
    }

    /// Ends the subscriptions of sessions that have ended, where nobody else has them.
    pub(super) async fn end_subscriptions(self: Arc<Self>) {
        loop {
            let left = tokio::select! {
                left = self.sessions.ended_with_subscriptions() => left,
                () = self.tasks.stop_token().cancelled() => return,
            };
            for session in left {
                let proxy = Arc::clone(&self);
                self.tasks.spawn("end of subscriptions", async move {
                    tokio::select! {
                        () = proxy.unsubscribe_all(&session) => {}
                        () = proxy.tasks.stop_token().cancelled() => {}
                    }
                });
            }
        }
    }

    async fn unsubscribe_all(&self, session: &Arc<Session>) {
        for uri in session.subscriptions() {
            if let Some((backend, original)) = self.resolve_subscription(session, &uri) {
                self.unsubscribe_upstream(session, &backend, &original)
                    .await;
            }
        }
    }

    /// Tells a server that has replaced another what sessions are subscribed to.
    pub(super) fn renew_subscriptions(self: &Arc<Self>, backend: Arc<Backend>) {
        let mut wanted = Vec::new();
        self.sessions.for_each(|session| {
            for uri in session.subscriptions() {
                let found = self.resolve_uri((&session.agent, &session.scope), &uri);
                if let Some((found, original)) = found
                    && Arc::ptr_eq(&found, &backend)
                {
                    wanted.push((Arc::clone(session), original));
                }
            }
        });
        if wanted.is_empty() {
            return;
        }
        let proxy = Arc::clone(self);
        let stop = self.tasks.stop_token().clone();
        self.tasks.spawn("renewed subscriptions", async move {
            let join = for_each_concurrently(wanted, |(session, original)| {
                let (proxy, backend) = (Arc::clone(&proxy), Arc::clone(&backend));
                async move {
                    // Its turn may be long after.
                    if proxy.may_receive_updates(&session, &backend.name, &original) {
                        let joined = backend.subscribe(&session, &original).await;
                        proxy.notify_possible_update(&session, &backend, &original, joined);
                    }
                }
            });
            tokio::select! {
                () = join => {}
                () = backend.retired().cancelled() => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// Ends subscriptions at servers to what their sessions can no longer see, and where it is a
    /// [`ReviewScope::All`] one begins those again that they can see again.
    pub(super) fn review_subscriptions(self: &Arc<Self>, review: ReviewScope) {
        let mut subscribed = Vec::new();
        self.sessions.for_each(|session| {
            if !session.subscriptions().is_empty() {
                subscribed.push(Arc::clone(session));
            }
        });
        if subscribed.is_empty() {
            return;
        }
        let proxy = Arc::clone(self);
        self.tasks.spawn("review of subscriptions", async move {
            let reviews = for_each_concurrently(subscribed, |session| {
                let proxy = Arc::clone(&proxy);
                async move { proxy.review_session(&session, review).await }
            });
            tokio::select! {
                () = reviews => {}
                () = proxy.tasks.stop_token().cancelled() => {}
            }
        });
    }

    async fn review_session(&self, session: &Arc<Session>, review: ReviewScope) {
        for uri in session.subscriptions() {
            let Some((backend, original)) = self.resolve_subscription(session, &uri) else {
                continue;
            };
            match (
                self.may_receive_updates(session, &backend.name, &original),
                review,
            ) {
                (true, ReviewScope::All) => backend.resubscribe(session, &original).await,
                (true, ReviewScope::Ended) => {}
                (false, _) => {
                    self.unsubscribe_upstream(session, &backend, &original)
                        .await;
                }
            }
        }
    }

    /// Ends a subscription of `session` at its server, where nobody else has it.
    async fn unsubscribe_upstream(
        &self,
        session: &Arc<Session>,
        backend: &Arc<Backend>,
        original: &str,
    ) {
        let is_wanted = |instance| {
            self.is_wanted(backend, original, |other| {
                backend.serves_session_on(other, instance)
            })
        };
        backend.unsubscribe(session, original, is_wanted).await;
    }

    /// Lets subscriptions follow their sessions from one replica of a server to another.
    pub(super) fn move_displaced_subscriptions(self: &Arc<Self>, backend: &Arc<Backend>) {
        if backend.load_config().replicas.is_empty() {
            return;
        }
        let (proxy, backend) = (Arc::clone(self), Arc::clone(backend));
        self.tasks.spawn("subscriptions of replicas", async move {
            let follow = async {
                loop {
                    let displaced = backend.displaced_sessions().await;
                    let follow = |(session, left)| {
                        let (proxy, backend) = (Arc::clone(&proxy), Arc::clone(&backend));
                        async move {
                            proxy
                                .move_session_subscriptions(&session, &backend, left)
                                .await;
                        }
                    };
                    for_each_concurrently(displaced, follow).await;
                }
            };
            tokio::select! {
                () = follow => {}
                () = backend.retired().cancelled() => {}
                () = proxy.tasks.stop_token().cancelled() => {}
            }
        });
    }

    async fn move_session_subscriptions(
        &self,
        session: &Arc<Session>,
        backend: &Arc<Backend>,
        left: usize,
    ) {
        for uri in session.subscriptions() {
            let found = self.resolve_uri((&session.agent, &session.scope), &uri);
            let Some((_, original)) = found.filter(|(found, _)| Arc::ptr_eq(found, backend)) else {
                continue;
            };
            if !self.may_receive_updates(session, &backend.name, &original) {
                continue;
            }
            let is_wanted = |instance| {
                self.is_wanted(backend, &original, |other| {
                    backend.serves_session_on(other, instance)
                })
            };
            let follow = backend.move_subscription(session, &original, left, is_wanted);
            let joined = follow.await;
            self.notify_possible_update(session, backend, &original, joined);
        }
    }

    /// Tells `session`, which is subscribed again on the connection `joined`, that the resource may have
    /// been updated while it was not.
    fn notify_possible_update(
        &self,
        session: &Arc<Session>,
        backend: &Backend,
        original: &str,
        joined: Option<u64>,
    ) {
        if let Some(instance) = joined {
            let update = Update::possibly_missed(&backend.name, original.to_owned(), instance);
            self.forward_update(session, &update);
        }
    }

    /// Whether the client of `session` is still there, and may know of the resource that `server`
    /// calls `original`.
    fn may_receive_updates(&self, session: &Session, server: &ServerName, original: &str) -> bool {
        !session.ended.is_cancelled()
            && self.may_see_resource(&session.agent, &session.scope, server, original)
            && !self.is_hidden_on_route((&session.agent, &session.scope), server, original)
    }

    /// Whether the route of `scope` has for `agent` no way to what a server that is listed calls `original`.
    fn is_hidden_on_route(
        &self,
        (agent, scope): (&Agent, &Scope),
        server: &ServerName,
        original: &str,
    ) -> bool {
        let route = (&self.owners_seen_by(agent), scope);
        let catalog = self.catalog_store.catalog(route);
        let own = catalog.resource(&Scope::Server(server.clone()), original);
        let is_found = matches!(own, Lookup::Found { .. });
        // What templates have is found by them alone.
        let is_known = [Kind::Resources, Kind::Templates]
            .into_iter()
            .all(|kind| self.catalog_store.has_current_list(server, kind));
        is_known && !(is_found && catalog.shows_resource(scope, server, original))
    }

    /// Subscribes a session of an earlier process again to what it was subscribed to.
    pub(super) async fn resubscribe(&self, session: &Arc<Session>) {
        let wait = self.settings().first_list_wait;
        let owners = self.owners_seen_by(&session.agent);
        let route = (&owners, &session.scope);
        self.catalog_store.wait_ready(route, wait).await;
        let subscriptions = session.subscriptions();
        if !subscriptions.is_empty() {
            // What it is told waits there for a client that says something else first.
            session.open_standalone_stream();
        }
        for uri in subscriptions {
            let Some((backend, original)) =
                self.resolve_uri((&session.agent, &session.scope), &uri)
            else {
                continue;
            };
            session.set_subscription_target(&uri, &backend.name, &original);
            if self.may_receive_updates(session, &backend.name, &original) {
                let joined = backend.subscribe(session, &original).await;
                self.notify_possible_update(session, &backend, &original, joined);
            }
        }
    }

    /// Where a subscription of `session` is: what `uri` names now, else what it did when it began.
    fn resolve_subscription(&self, session: &Session, uri: &str) -> Option<(Arc<Backend>, String)> {
        self.resolve_uri((&session.agent, &session.scope), uri)
            .or_else(|| {
                let (server, original) = session.subscription_target(uri)?;
                Some((self.backends.get(&server)?, original))
            })
    }

    /// What `uri` names for `agent` on the route of `scope`: a server, and the URI in its spelling.
    fn resolve_uri(
        &self,
        (agent, scope): (&Agent, &Scope),
        uri: &str,
    ) -> Option<(Arc<Backend>, String)> {
        let route = (&self.owners_seen_by(agent), scope);
        let catalog = self.catalog_store.catalog(route);
        match catalog.resource(scope, uri) {
            Lookup::Found { server, original } => {
                let backend = self.backends.get(&server)?;
                Some((backend, original))
            }
            Lookup::Ambiguous { .. } | Lookup::NotFound => None,
        }
    }

    /// Whether any session `among` them is subscribed to a resource that it may know of, however its
    /// route spells it.
    fn is_wanted(
        &self,
        backend: &Arc<Backend>,
        original: &str,
        among: impl Fn(&Arc<Session>) -> bool,
    ) -> bool {
        let is_it = |session: &Session, uri: &str| {
            let found = self.resolve_subscription(session, uri);
            found.is_some_and(|(found, uri)| Arc::ptr_eq(&found, backend) && uri == original)
        };
        let mut wanted = false;
        self.sessions.for_each(|session| {
            let mut subscribed = session.subscriptions().into_iter();
            wanted |= subscribed.any(|uri| is_it(session, &uri))
                && among(session)
                && self.may_receive_updates(session, &backend.name, original);
        });
        wanted
    }
}

/// Does it with all of `items`, [`CONCURRENT_MOVES_MAX`] at a time.
async fn for_each_concurrently<T, F: Future<Output = ()>>(items: Vec<T>, each: impl FnMut(T) -> F) {
    let items = futures_util::stream::iter(items);
    items.for_each_concurrent(CONCURRENT_MOVES_MAX, each).await;
}
