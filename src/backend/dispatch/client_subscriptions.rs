//! What a server hears of a client outside of its calls: the notifications it sends, and that its
//! subscriptions are over.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::time::{Instant, timeout};

use super::selection::ConnectionRequest;
use crate::{
    backend::{
        Backend, BackendError,
        instance::{Instance, InstancePhase, handshake},
    },
    mcp::{Era, Method, Notification, Raw},
    session::{Client, Session},
};

/// How long a server may take to end a subscription.
const SUBSCRIPTION_TIMEOUT: Duration = Duration::from_secs(10);

impl Backend {
    /// Whether the calls of `session` go to the connection `instance`.
    pub(crate) fn serves_session_on(&self, session: &Arc<Session>, instance: u64) -> bool {
        if let Some(replicas) = &self.replicas {
            let home = replicas.assigned(session);
            return home.is_some_and(|home| home.serves_session_on(session, instance));
        }
        let of = self.instances_of(session);
        of.iter().any(|known| known.id == instance)
    }

    /// Whether calls of both sessions go to one connection.
    pub(crate) fn shares_connection(&self, one: &Arc<Session>, other: &Arc<Session>) -> bool {
        if let Some(replicas) = &self.replicas {
            let (one_at, other_at) = (replicas.assigned(one), replicas.assigned(other));
            let is_same = one_at.zip(other_at).filter(|(a, b)| Arc::ptr_eq(a, b));
            return is_same.is_some_and(|(home, _)| home.shares_connection(one, other));
        }
        let of = self.instances_of(one);
        of.iter()
            .any(|instance| self.serves_session_on(other, instance.id))
    }

    /// The connections, present or to be, that calls of `session` go to.
    fn instances_of(&self, session: &Arc<Session>) -> Vec<Arc<Instance>> {
        let Some(client) = Client::of(session) else {
            return Vec::new();
        };
        let of = |era| {
            let key = self.sharing_key(&client, era);
            if self.uses_catalog_connection(&key) {
                return Some(Arc::clone(&self.catalog));
            }
            self.lock().get(&key).cloned()
        };
        let mut instances: Vec<_> = [Era::Legacy, Era::Modern]
            .into_iter()
            .filter_map(of)
            .collect();
        instances.dedup_by_key(|instance| instance.id);
        instances
    }

    /// Ends the subscription to `uri`, in the server's spelling, on each connection of `session`
    /// that nobody else wants it on, as `is_wanted` says of a connection.
    pub(crate) async fn unsubscribe(
        &self,
        session: &Arc<Session>,
        uri: &str,
        is_wanted: impl Fn(u64) -> bool,
    ) {
        if let Some(replicas) = &self.replicas {
            if let Some(home) = replicas.assigned(session) {
                Box::pin(home.unsubscribe_local(session, uri, &is_wanted)).await;
            }
            return;
        }
        self.unsubscribe_local(session, uri, &is_wanted).await;
    }

    async fn unsubscribe_local(
        &self,
        session: &Arc<Session>,
        uri: &str,
        is_wanted: &impl Fn(u64) -> bool,
    ) {
        for instance in self.instances_of(session) {
            if !instance.is_subscribed(uri) || is_wanted(instance.id) {
                continue;
            }
            instance.remove_subscription(uri);
            self.send_subscription(&instance, Method::ResourcesUnsubscribe, uri)
                .await;
            // Whoever subscribed meanwhile may have come first.
            if is_wanted(instance.id) && instance.add_subscription(uri) {
                self.send_subscription(&instance, Method::ResourcesSubscribe, uri)
                    .await;
            }
        }
    }

    /// The sessions whose subscriptions are on another replica than they are, as soon as there are
    /// any, each with what [`Backend::move_subscription`] needs to know of the other; never where there
    /// are no replicas. For one caller at a time.
    pub(crate) async fn displaced_sessions(&self) -> Vec<(Arc<Session>, usize)> {
        match &self.replicas {
            Some(replicas) => replicas.displaced_sessions().await,
            None => std::future::pending().await,
        }
    }

    /// Lets the subscription to `uri`, in the server's spelling, follow its session from the replica
    /// it has `left`, where it ends unless somebody else wants it there. The connection that is
    /// subscribed.
    pub(crate) async fn move_subscription(
        &self,
        session: &Arc<Session>,
        uri: &str,
        left: usize,
        is_wanted: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let joined = self.subscribe(session, uri).await;
        let replicas = self.replicas.as_ref();
        if let Some(left) = replicas.and_then(|replicas| replicas.at(left)) {
            left.unsubscribe_local(session, uri, &is_wanted).await;
        }
        joined
    }

    /// Subscribes to `uri`, in the server's spelling, on the connection of `session`, as soon as there
    /// is one; not when its server takes longer than a start may. The connection that is subscribed.
    pub(crate) async fn subscribe(&self, session: &Arc<Session>, uri: &str) -> Option<u64> {
        if let Some(replicas) = &self.replicas {
            let to = replicas.assigned_or_best(session);
            return Box::pin(to.subscribe(session, uri)).await;
        }
        let joined = timeout(
            self.config().startup_timeout,
            self.subscribe_local(session, uri),
        );
        joined.await.unwrap_or_else(|_| {
            tracing::warn!(server = %self.name, uri, "cannot renew a subscription: the server does \
                not start");
            None
        })
    }

    async fn subscribe_local(&self, session: &Arc<Session>, uri: &str) -> Option<u64> {
        let client = Client::of(session)?;
        while !session.ended.is_cancelled() {
            if let Ok(served) = self.connection(self.out_of_call_request(&client)).await {
                // To servers of 2026-07-28 nobody subscribes in this way.
                if session.ended.is_cancelled() || served.connection.era() == Era::Modern {
                    return None;
                }
                let instance = served.instance;
                if instance.add_subscription(uri) {
                    self.send_subscription(&instance, Method::ResourcesSubscribe, uri)
                        .await;
                }
                return Some(instance.id);
            }
            tokio::time::sleep(self.config().retry.max).await;
        }
        None
    }

    /// Subscribes to `uri` again, in the server's spelling, on the connections of `session`: now where
    /// they stand, else when they do. One is made where there is none.
    pub(crate) async fn resubscribe(&self, session: &Arc<Session>, uri: &str) {
        if let Some(replicas) = &self.replicas {
            if let Some(home) = replicas.assigned(session) {
                Box::pin(home.resubscribe(session, uri)).await;
            }
            return;
        }
        let mut instances = self.instances_of(session);
        instances.retain(|instance| !instance.is_abandoned());
        if instances.is_empty() {
            self.subscribe(session, uri).await;
            return;
        }
        for instance in instances {
            let is_ours = match instance.phase() {
                InstancePhase::Ready(connection) => connection.era() == Era::Legacy,
                // It is noted, for the connection that comes.
                InstancePhase::Asleep(_)
                | InstancePhase::Connecting
                | InstancePhase::Down { .. } => true,
            };
            if is_ours && instance.add_subscription(uri) {
                self.send_subscription(&instance, Method::ResourcesSubscribe, uri)
                    .await;
            }
        }
    }

    async fn send_subscription(&self, instance: &Instance, method: Method, uri: &str) {
        let InstancePhase::Ready(connection) = instance.phase() else {
            return;
        };
        let params = Raw::from_value(&serde_json::json!({ "uri": uri }));
        let request = handshake::control_exchange(&method, Some(params));
        let answer = timeout(SUBSCRIPTION_TIMEOUT, connection.link.request(&request)).await;
        tracing::debug!(server = %self.name, ?method, uri, ?answer, "changing a subscription");
    }

    /// Passes a notification to the connection that serves `session`, which is made where there is
    /// none. Whether it is on its way.
    pub(crate) fn notify(
        self: &Arc<Self>,
        session: &Arc<Session>,
        notification: &Notification,
    ) -> bool {
        if let Some(replicas) = &self.replicas {
            let to = replicas
                .assigned(session)
                .or_else(|| replicas.backends().next());
            return to.is_some_and(|to| to.notify(session, notification));
        }
        let Some(client) = Client::of(session) else {
            return false;
        };
        let bytes = notification
            .params
            .as_ref()
            .map_or(0, |params| params.as_bytes().len());
        if bytes > self.config().limits.request {
            tracing::debug!(server = %self.name, bytes, "dropped a notification that exceeds \
                limits.request");
            return false;
        }
        // Nothing that the client asks next may overtake it where the connection stands.
        if let Some(Ok(served)) = self
            .connection(self.out_of_call_request(&client))
            .now_or_never()
        {
            let link = &served.connection.link;
            return link.forward_notification(&notification.method, notification.params.as_ref());
        }
        let Some(place) = self.backlog.try_reserve(bytes) else {
            tracing::debug!(server = %self.name, "dropped a notification: queue full");
            return false;
        };
        let (backend, notification) = (Arc::clone(self), notification.clone());
        self.connector.tasks.spawn("notification of a client", async move {
            let notified = backend.notify_when_connected(&client, &notification.method, notification.params.as_ref());
            if let Err(failure) = notified.await {
                tracing::debug!(server = %backend.name, %failure, "cannot deliver a notification");
            }
            drop(place);
        });
        true
    }

    /// What a client says outside of its calls goes where its subscriptions would.
    fn out_of_call_request<'c>(&self, client: &'c Client) -> ConnectionRequest<'c> {
        ConnectionRequest {
            client,
            method: &Method::ResourcesSubscribe,
            until: Instant::now() + self.config().timeout,
        }
    }

    async fn notify_when_connected(
        &self,
        client: &Client,
        method: &str,
        params: Option<&Raw>,
    ) -> Result<(), BackendError> {
        let after = self.config().timeout;
        let served = timeout(after, self.connection(self.out_of_call_request(client))).await;
        let served = served.unwrap_or(Err(BackendError::Timeout {
            after,
            key: Some("timeout"),
        }))?;
        served.connection.link.notify(method, params).await
    }
}
