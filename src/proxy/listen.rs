//! Subscriptions: `resources/subscribe` of the legacy era, `subscriptions/listen` of 2026-07-28.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Proxy, lists, upstream::WayBack};
use crate::{
    backend::Backend,
    catalog::Lookup,
    governance::Ending,
    mcp::{Era, Method, Outcome, Raw, RpcError, error, json::Patch, meta, method::notice},
    names::{Scope, ServerName},
    router,
    session::{
        Call, Event, EventReader, Session,
        events::{EVENTS_MAX, events},
        modern,
    },
};

/// Resources a session may be subscribed to.
const SUBSCRIPTIONS_MAX: usize = 1024;
/// Sessions whose subscriptions are moved at a time: one that waits for its server holds up few
/// others, and a server is not asked by all at once.
const MOVES_MAX: usize = 16;

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
            let message = "a subscription needs a session to deliver updates to";
            return Err(RpcError::new(error::INVALID_REQUEST, message).to_raw());
        };
        if call.method == Method::ResourcesUnsubscribe {
            let was_subscribed = session.unsubscribe(&uri);
            let is_done = match self.resource(&call.scope, &uri) {
                Some((backend, original)) => {
                    self.is_wanted(&backend, &original, |other| backend.joins(&session, other))
                }
                // Its server is not listed: it hears what sessions want once it is.
                None => was_subscribed,
            };
            if is_done {
                return Ok(Raw::from_static("{}"));
            }
            return self.call(call).await;
        }
        if session.subscriptions().len() >= SUBSCRIPTIONS_MAX {
            let message = format!("a session has at most {SUBSCRIPTIONS_MAX} subscriptions");
            return Err(RpcError::new(error::INVALID_REQUEST, message).to_raw());
        }
        // Before the server knows: its first update may be right behind its answer.
        let new = session.subscribe(&uri);
        let outcome = self.call(call).await;
        if outcome.is_err() && new {
            session.unsubscribe(&uri);
        }
        outcome
    }

    /// Ends the subscriptions of sessions that have ended, where nobody else has them.
    pub(super) async fn end_subscriptions(self: Arc<Self>) {
        loop {
            let left = tokio::select! {
                left = self.sessions.left() => left,
                () = self.tasks.stop_token().cancelled() => return,
            };
            for session in left {
                let proxy = Arc::clone(&self);
                self.tasks.spawn("end of subscriptions", async move {
                    tokio::select! {
                        () = proxy.leave_all(&session) => {}
                        () = proxy.tasks.stop_token().cancelled() => {}
                    }
                });
            }
        }
    }

    async fn leave_all(&self, session: &Arc<Session>) {
        for uri in session.subscriptions() {
            let Some((backend, original)) = self.resource(&session.scope, &uri) else {
                continue;
            };
            self.leave(session, &backend, &original).await;
        }
    }

    /// Tells a server that has replaced another what sessions are subscribed to.
    pub(super) fn renew_subscriptions(self: &Arc<Self>, backend: Arc<Backend>) {
        let mut wanted = Vec::new();
        self.sessions.each(|session| {
            for uri in session.subscriptions() {
                let found = self.resource(&session.scope, &uri);
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
            let join = at_once(wanted, |(session, original)| {
                let (proxy, backend) = (Arc::clone(&proxy), Arc::clone(&backend));
                async move {
                    // Its turn may be long after.
                    if proxy.may_hear(&session, &backend.name, &original) {
                        backend.join(&session, &original).await;
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

    /// Ends subscriptions at servers to what the rules no longer let their sessions see, and begins
    /// those again that they let them see again.
    pub(super) fn review_subscriptions(self: &Arc<Self>) {
        let mut subscribed = Vec::new();
        self.sessions.each(|session| {
            if !session.subscriptions().is_empty() {
                subscribed.push(Arc::clone(session));
            }
        });
        if subscribed.is_empty() {
            return;
        }
        let proxy = Arc::clone(self);
        self.tasks.spawn("review of subscriptions", async move {
            let review = at_once(subscribed, |session| {
                let proxy = Arc::clone(&proxy);
                async move { proxy.review(&session).await }
            });
            tokio::select! {
                () = review => {}
                () = proxy.tasks.stop_token().cancelled() => {}
            }
        });
    }

    async fn review(&self, session: &Arc<Session>) {
        for uri in session.subscriptions() {
            let Some((backend, original)) = self.resource(&session.scope, &uri) else {
                continue;
            };
            if self.may_hear(session, &backend.name, &original) {
                backend.join_again(session, &original).await;
            } else {
                self.leave(session, &backend, &original).await;
            }
        }
    }

    /// Ends a subscription of `session` at its server, where nobody else has it.
    async fn leave(&self, session: &Arc<Session>, backend: &Arc<Backend>, original: &str) {
        let is_wanted =
            |instance| self.is_wanted(backend, original, |other| backend.serves(other, instance));
        backend.leave(session, original, is_wanted).await;
    }

    /// Lets subscriptions follow their sessions from one replica of a server to another.
    pub(super) fn follow_replicas(self: &Arc<Self>, backend: &Arc<Backend>) {
        if backend.written().replicas.is_empty() {
            return;
        }
        let (proxy, backend) = (Arc::clone(self), Arc::clone(backend));
        self.tasks.spawn("subscriptions of replicas", async move {
            let follow = async {
                loop {
                    let strays = backend.strays().await;
                    let follow = |(session, left)| {
                        let (proxy, backend) = (Arc::clone(&proxy), Arc::clone(&backend));
                        async move { proxy.follow_session(&session, &backend, left).await }
                    };
                    at_once(strays, follow).await;
                }
            };
            tokio::select! {
                () = follow => {}
                () = backend.retired().cancelled() => {}
                () = proxy.tasks.stop_token().cancelled() => {}
            }
        });
    }

    async fn follow_session(&self, session: &Arc<Session>, backend: &Arc<Backend>, left: usize) {
        for uri in session.subscriptions() {
            let found = self.resource(&session.scope, &uri);
            let Some((_, original)) = found.filter(|(found, _)| Arc::ptr_eq(found, backend)) else {
                continue;
            };
            if !self.may_hear(session, &backend.name, &original) {
                continue;
            }
            let is_wanted = |instance| {
                self.is_wanted(backend, &original, |other| backend.serves(other, instance))
            };
            let follow = backend.follow_session(session, &original, left, is_wanted);
            follow.await;
        }
    }

    /// Whether the client of `session` is still there, and may know of the resource that `server`
    /// calls `original`.
    fn may_hear(&self, session: &Session, server: &ServerName, original: &str) -> bool {
        !session.ended.is_cancelled()
            && self.may_see(&session.agent, &session.scope, server, original)
    }

    /// Subscribes a session of an earlier process again to what it was subscribed to.
    pub(super) async fn subscribe_again(&self, session: &Arc<Session>) {
        let wait = self.settings().first_list_wait;
        self.board.settled(&session.scope, wait).await;
        for uri in session.subscriptions() {
            let Some((backend, original)) = self.resource(&session.scope, &uri) else {
                continue;
            };
            if self.may_hear(session, &backend.name, &original) {
                backend.join(session, &original).await;
            }
        }
    }

    /// What `uri` names on the route of `scope`: a server, and the URI in its spelling.
    fn resource(&self, scope: &Scope, uri: &str) -> Option<(Arc<Backend>, String)> {
        match self.board.catalog().resource(scope, uri) {
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
        let is_it = |scope: &Scope, uri: &str| {
            let found = self.resource(scope, uri);
            found.is_some_and(|(found, uri)| Arc::ptr_eq(&found, backend) && uri == original)
        };
        let mut wanted = false;
        self.sessions.each(|session| {
            let mut subscribed = session.subscriptions().into_iter();
            wanted |= subscribed.any(|uri| is_it(&session.scope, &uri))
                && among(session)
                && self.may_hear(session, &backend.name, original);
        });
        wanted
    }

    /// Holds a listen stream open: acknowledges what can be honoured, then tells of changes until
    /// the client has enough or the gateway stops.
    pub(super) async fn listen(&self, call: Box<Call>) -> Outcome {
        let wish = call
            .params
            .as_ref()
            .and_then(|params| params.get("notifications"));
        let Some(wish) = wish.filter(Raw::is_object) else {
            let message = "subscriptions/listen needs an object `notifications`";
            return Err(RpcError::new(error::INVALID_PARAMS, message).to_raw());
        };
        let wish: Value = wish.read().unwrap_or_default();
        let honoured = self.honour(&wish, &call);
        let flags = honoured.flags.clone();
        let mut seen = self.digests(
            &call.client.agent,
            &call.scope,
            lists::audience(&call.client),
        );
        let mut changes = self.board.changes();
        let mut agents = self.governance.directory().changes();
        tell(
            &call,
            notice::SUBSCRIBED,
            Some(&json!({ "notifications": honoured.to_value() })),
        );
        let stop = CancellationToken::new();
        let _ended = stop.clone().drop_guard();
        let mut upstream = self.listen_upstream(&call, &honoured, &stop);
        loop {
            tokio::select! {
                biased;
                () = call.cancel.cancelled() => break,
                () = self.tasks.drain_token().cancelled() => break,
                // A server's stream has ended: the client listens again, and loses nothing unseen.
                () = stop.cancelled() => break,
                Some(event) = upstream.recv() => { call.events.send(event); },
                told = agents.changed() => {
                    if told.is_err() || !self.governance.directory().still_knows(&call.client.agent) {
                        break;
                    }
                    changes.mark_changed();
                }
                told = changes.changed() => {
                    if told.is_err() || !self.has(&call.scope) {
                        break;
                    }
                    let new = self.digests(&call.client.agent, &call.scope, lists::audience(&call.client));
                    for notification in lists::changed(seen, new) {
                        if flags.contains(&flag_of(notification)) {
                            tell(&call, notification, None);
                        }
                    }
                    seen = new;
                }
            }
        }
        let id = call.id.raw().as_str();
        let info = modern::server_info_member();
        let text = format!(
            r#"{{"resultType":"complete","_meta":{{"{}":{id},{info}}}}}"#,
            meta::SUBSCRIPTION_ID
        );
        Ok(Raw::parse(text).expect("joined from valid JSON"))
    }

    /// What of `wish` can be honoured: list changes always, resources where the server listens too.
    fn honour(&self, wish: &Value, call: &Call) -> Honoured {
        let mut honoured = Honoured::default();
        for flag in FLAGS {
            if wish.get(flag) == Some(&Value::Bool(true)) {
                honoured.flags.push(flag);
            }
        }
        let catalog = self.board.catalog();
        let uris = wish.get("resourceSubscriptions").and_then(Value::as_array);
        for uri in uris.into_iter().flatten().filter_map(Value::as_str) {
            if let Lookup::Found { server, original } = catalog.resource(&call.scope, uri)
                && self.listens(&server)
                && self.may_see(&call.client.agent, &call.scope, &server, &original)
            {
                honoured.uris.push(uri.to_owned());
                honoured.by_server.entry(server).or_default().push(original);
            }
        }
        if let (Scope::Server(server), Some(tasks)) = (&call.scope, wish.get("taskIds"))
            && self.listens(server)
            && self.may_watch_tasks(call, server)
        {
            honoured.tasks = Some(tasks.clone());
            honoured.by_server.entry(server.clone()).or_default();
        }
        honoured
    }

    /// Whether the client of `call` may hear of tasks of `server`: who may get one may.
    fn may_watch_tasks(&self, call: &Call, server: &ServerName) -> bool {
        let sight = self.governance.sight(&call.client.agent, &call.scope);
        sight.shows_method(server, "tasks/get")
    }

    fn listens(&self, server: &ServerName) -> bool {
        let known = self
            .backends
            .get(server)
            .and_then(|backend| backend.capabilities());
        known.is_some_and(|(_, revision)| revision.era() == Era::Modern)
    }

    /// Opens a listen stream to each server whose resources or tasks are wanted.
    fn listen_upstream(
        &self,
        call: &Call,
        honoured: &Honoured,
        stop: &CancellationToken,
    ) -> mpsc::Receiver<Event> {
        let (send, receive) = mpsc::channel(EVENTS_MAX);
        for (server, originals) in &honoured.by_server {
            let mut wish = json!({ "resourceSubscriptions": originals });
            if let Some(tasks) = &honoured.tasks {
                wish["taskIds"] = tasks.clone();
            }
            let (inner_send, inner) = events();
            let mut copy = call.copy_for(Scope::Server(server.clone()), inner_send);
            copy.params = copy.params.map(|params| with_wish(&params, &wish).into());
            copy.cancel = stop.child_token();
            let uris = self.board.catalog().uri_map(&call.scope, server);
            let shows = self.shows(call, server);
            let relay = relay(inner, send.clone(), call.id.raw().clone(), uris, shows);
            let stop_relay = stop.clone();
            self.tasks.spawn("listen relay", async move {
                stop_relay.run_until_cancelled(relay).await;
            });
            let ask = self.ask_upstream(copy, stop.clone());
            self.tasks.spawn("listen upstream", ask);
        }
        receive
    }

    /// Whether the client of `call` may know of a resource of `server`, by the server's own URI.
    fn shows(&self, call: &Call, server: &ServerName) -> impl Fn(&str) -> bool + use<> {
        let (board, governance) = (Arc::clone(&self.board), Arc::clone(&self.governance));
        let (scope, server) = (call.scope.clone(), server.clone());
        let agent = Arc::clone(&call.client.agent);
        move |uri: &str| {
            let catalog = board.catalog();
            let merged = catalog.uris(&Scope::All, &server).expose(uri);
            catalog.shows_resource(&scope, &server, uri)
                && governance
                    .sight(&agent, &scope)
                    .shows_resource(&server, &merged, uri)
        }
    }

    /// The governed request behind an upstream listen stream, as a task of its own.
    fn ask_upstream(
        &self,
        call: Box<Call>,
        ended: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let governance = Arc::clone(&self.governance);
        let routed = router::route(call, &self.board.catalog());
        let routed =
            routed.inspect_err(|lost| tracing::debug!(why = ?lost.1, "no upstream stream"));
        let way = routed
            .as_ref()
            .ok()
            .map(|routed| self.backends.way_to(&routed.server));
        async move {
            if let (Ok(routed), Some(way)) = (routed, way) {
                let mut ticket = governance.open(&routed.call);
                let back = WayBack::of(&routed);
                let ending = match governance.admit(routed, &mut ticket).await {
                    Ok(admitted) => back.ending(way.forward(admitted).await),
                    Err(refusal) => Ending::Refused(refusal),
                };
                let ended = governance.settle(ticket, ending).await;
                tracing::debug!(?ended, "an upstream listen stream ended");
            }
            ended.cancel();
        }
    }
}

const FLAGS: [&str; 3] = [
    "toolsListChanged",
    "promptsListChanged",
    "resourcesListChanged",
];

fn flag_of(notification: &str) -> &'static str {
    match notification {
        notice::TOOLS_CHANGED => FLAGS[0],
        notice::PROMPTS_CHANGED => FLAGS[1],
        _ => FLAGS[2],
    }
}

/// The part of a listen filter that we can honour.
#[derive(Debug, Default)]
struct Honoured {
    flags: Vec<&'static str>,
    uris: Vec<String>,
    tasks: Option<Value>,
    by_server: BTreeMap<ServerName, Vec<String>>,
}

impl Honoured {
    fn to_value(&self) -> Value {
        let mut value = json!({});
        for flag in &self.flags {
            value[flag] = true.into();
        }
        if !self.uris.is_empty() {
            value["resourceSubscriptions"] = json!(self.uris);
        }
        if let Some(tasks) = &self.tasks {
            value["taskIds"] = tasks.clone();
        }
        value
    }
}

fn tell(call: &Call, method: &'static str, params: Option<&Value>) {
    let params = params.map_or(Raw::from_static("{}"), Raw::from_value);
    let params = tagged(&params, call.id.raw());
    call.events.send(Event::Notification {
        method: method.into(),
        params: Some(params),
    });
}

/// `params` with the id of the listen stream they belong to.
fn tagged(params: &Raw, id: &Raw) -> Raw {
    let found = meta::Meta::of(params);
    let mut patch = Patch::new(params.as_bytes());
    if let Some(span) = &found.span {
        let json = params.as_bytes();
        patch.remove_members(span.start, |member| member.is(json, meta::SUBSCRIPTION_ID));
        let stripped = patch.finish();
        let mut patch = Patch::new(stripped.as_bytes());
        meta::Meta::of(&stripped).insert(&tag(id), &mut patch);
        return patch.finish();
    }
    found.insert(&tag(id), &mut patch);
    patch.finish()
}

fn tag(id: &Raw) -> String {
    format!(r#""{}":{}"#, meta::SUBSCRIPTION_ID, id.as_str())
}

/// The params of a listen with another filter.
fn with_wish(params: &Raw, wish: &Value) -> Raw {
    let Some(span) = params.member("notifications") else {
        return params.clone();
    };
    let mut patch = Patch::new(params.as_bytes());
    patch.replace(span, wish.to_string().into_bytes());
    patch.finish()
}

/// Passes on what a server says on its listen stream, in exposed URIs and under the client's id.
/// Of updates, those of resources that the route `shows`.
async fn relay(
    mut from: EventReader,
    to: mpsc::Sender<Event>,
    id: Raw,
    uris: Option<Arc<crate::catalog::UriMap>>,
    shows: impl Fn(&str) -> bool,
) {
    loop {
        let Event::Notification { method, params } = from.next().await else {
            continue;
        };
        if method == notice::SUBSCRIBED {
            continue;
        }
        let params = params.unwrap_or(Raw::from_static("{}"));
        let uri = params.get("uri");
        if method == notice::RESOURCE_UPDATED
            && let Some(uri) = uri.as_ref().and_then(Raw::as_text)
            && !shows(&uri)
        {
            continue;
        }
        let params = match &uris {
            Some(uris) => crate::catalog::rewrite::notification(&method, &params, uris),
            None => params,
        };
        let event = Event::Notification {
            method,
            params: Some(tagged(&params, &id)),
        };
        if to.send(event).await.is_err() {
            return;
        }
    }
}

/// Does it with all of `items`, [`MOVES_MAX`] at a time.
async fn at_once<T, F: Future<Output = ()>>(items: Vec<T>, each: impl FnMut(T) -> F) {
    let items = futures_util::stream::iter(items);
    items.for_each_concurrent(MOVES_MAX, each).await;
}
