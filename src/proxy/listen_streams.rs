//! Subscriptions of 2026-07-28: `subscriptions/listen`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Proxy, lists, response::ResponseMapper, viewers::owners_seen_by};
use crate::{
    auth::Agent,
    catalog::{Kind, Lookup, UriMap, rewrite},
    discovery::CatalogStore,
    governance::{CallOutcome, CallScanners, Governance, Visibility},
    mcp::{Era, Outcome, Raw, RpcError, error, json::Patch, meta, method::notice, tasks},
    names::{Scope, ServerName},
    session::{
        Call, Event, EventReader,
        events::{EVENTS_MAX, event_queue},
        modern,
    },
};

/// How soon somebody who had no room to be told of a change is told again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// How long a client waits for servers to say what they honour; those that have not said it then are
/// taken to honour what they declare.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Tasks that one listen stream may name: whose each is must be looked up.
const TASKS_WATCHED_MAX: usize = 1024;

/// What the client of `call` wants to hear of.
fn requested_filter(call: &Call) -> Result<Value, RpcError> {
    let invalid = |message: String| RpcError::new(error::INVALID_PARAMS, message);
    let params = call.params.as_ref();
    let requested = params.and_then(|params| params.get("notifications"));
    let Some(requested) = requested.filter(Raw::is_object) else {
        let message = "subscriptions/listen requires an object `notifications`";
        return Err(invalid(message.to_owned()));
    };
    let requested: Value = requested.read().unwrap_or_default();
    let watched = requested.get("taskIds").and_then(Value::as_array);
    if watched.is_some_and(|ids| ids.len() > TASKS_WATCHED_MAX) {
        return Err(invalid(format!(
            "`taskIds` has more than {TASKS_WATCHED_MAX} ids"
        )));
    }
    Ok(requested)
}

impl Proxy {
    /// Holds a listen stream open: acknowledges what can be honoured, then tells of changes until
    /// the client has enough or the gateway stops.
    pub(super) async fn listen(&self, call: Box<Call>) -> Outcome {
        let mut filter = requested_filter(&call).map_err(|refusal| refusal.to_raw())?;
        self.retain_own_tasks(&mut filter, &call).await;
        let mut supported = self.supported_filter(&filter, &call);
        let flags = supported.flags.clone();
        let digests = || {
            let audience = lists::audience(&call.client);
            self.list_digests_blocking(call.list_viewer(), audience)
        };
        // First what tells of the next change, lest one between is taken for known.
        let mut changes = self.catalog_store.changes();
        let mut seen = digests().await;
        let mut is_behind = false;
        let mut agents = self.governance.directory().changes();
        let mut views = self.catalog_store.views().changes();
        let stop = CancellationToken::new();
        let _ended = stop.clone().drop_guard();
        let (mut upstream, mut words) = self.listen_upstream(&call, &supported, &stop);
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => {}
            () = self.tasks.drain_token().cancelled() => {}
            () = stop.cancelled() => {}
            () = supported.apply_replies(&mut words) => {}
        }
        let granted = json!({ "notifications": supported.to_value() });
        notify(&call, notice::SUBSCRIPTIONS_ACKNOWLEDGED, Some(&granted));
        loop {
            tokio::select! {
                biased;
                () = call.cancel.cancelled() => break,
                () = self.tasks.drain_token().cancelled() => break,
                // A server's stream has ended: the client listens again, and loses nothing unseen.
                () = stop.cancelled() => break,
                Some(event) = upstream.recv() => { call.events.send(event); },
                Some(word) = words.recv() => {
                    // Too late: the client was told something else.
                    if matches!(word, ListenReply::Refused(server) if supported.has(&server)) {
                        break;
                    }
                }
                changed = agents.changed() => {
                    if changed.is_err() || !self.governance.directory().is_still_authorized(&call.client.agent) {
                        break;
                    }
                    changes.mark_changed();
                }
                Ok(()) = views.changed(), if call.scope.view().is_some() => changes.mark_changed(),
                changed = changes.changed() => {
                    if changed.is_err() || !self.has_route_for(&call.client.agent, &call.scope) {
                        break;
                    }
                    is_behind = !notify_changes(&call, &flags, &mut seen, digests().await);
                }
                () = tokio::time::sleep(RETRY_DELAY), if is_behind => {
                    is_behind = !notify_changes(&call, &flags, &mut seen, digests().await);
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

    /// What of `requested` can be honoured: list changes always, resources where their server says that it
    /// tells of them.
    fn supported_filter(&self, filter: &Value, call: &Call) -> SupportedFilter {
        let mut supported = SupportedFilter::default();
        for flag in FLAGS {
            if filter.get(flag) == Some(&Value::Bool(true)) {
                supported.flags.push(flag);
            }
        }
        let owners = self.owners_seen_by(&call.client.agent);
        let catalog = self.catalog_store.catalog((&owners, &call.scope));
        let uris = filter
            .get("resourceSubscriptions")
            .and_then(Value::as_array);
        for uri in uris.into_iter().flatten().filter_map(Value::as_str) {
            if let Lookup::Found { server, original } = catalog.resource(&call.scope, uri)
                && self.supports_listen(&server, supports_subscribe)
                && self.may_see_resource(&call.client.agent, &call.scope, &server, &original)
            {
                let of_server = supported.by_server.entry(server.clone()).or_default();
                of_server.push(original.clone());
                supported.uris.push(WantedUpdates {
                    exposed: uri.to_owned(),
                    server,
                    original,
                });
            }
        }
        if let (Scope::Server(server), Some(tasks)) = (&call.scope, filter.get("taskIds"))
            && self.supports_listen(server, |_| true)
            && self.may_watch_tasks(call, server)
        {
            supported.tasks = Some(tasks.clone());
            supported.by_server.entry(server.clone()).or_default();
        }
        supported
    }

    /// Takes the tasks out of `requested` that are not the agent's own.
    async fn retain_own_tasks(&self, filter: &mut Value, call: &Call) {
        let (Scope::Server(server), Some(tasks)) = (&call.scope, filter.get("taskIds")) else {
            return;
        };
        let agent = &call.client.agent;
        let own = self.governance.filter_task_ids(tasks, agent, server).await;
        if let Some(requested) = filter.as_object_mut() {
            match own {
                Some(own) => drop(requested.insert("taskIds".to_owned(), own)),
                None => drop(requested.remove("taskIds")),
            }
        }
    }

    /// Whether the client of `call` may hear of tasks of `server`: who may get one may.
    fn may_watch_tasks(&self, call: &Call, server: &ServerName) -> bool {
        let visibility = self.governance.visibility(&call.client.agent, &call.scope);
        visibility.shows_method(server, "tasks/get")
    }

    /// Whether `server` has listen streams, and capabilities that will `do`.
    fn supports_listen(&self, server: &ServerName, will_do: impl Fn(&Raw) -> bool) -> bool {
        let known = self
            .backends
            .get(server)
            .and_then(|backend| backend.capabilities());
        known.is_some_and(|(capabilities, revision)| {
            revision.era() == Era::Modern && will_do(&capabilities)
        })
    }

    /// Opens a listen stream to each server whose resources or tasks are wanted. What they tell, and
    /// the first word of each.
    fn listen_upstream(
        &self,
        call: &Call,
        supported: &SupportedFilter,
        stop: &CancellationToken,
    ) -> (mpsc::Receiver<Event>, mpsc::Receiver<ListenReply>) {
        let (send, receive) = mpsc::channel(EVENTS_MAX);
        // Each server has room for its two.
        let (say, words) = mpsc::channel((2 * supported.by_server.len()).max(1));
        for (server, originals) in &supported.by_server {
            let mut filter = json!({ "resourceSubscriptions": originals });
            if let Some(tasks) = &supported.tasks {
                filter["taskIds"] = tasks.clone();
            }
            let (inner_send, inner) = event_queue();
            let mut copy = call.for_scope(Scope::Server(server.clone()), inner_send);
            copy.params = copy
                .params
                .map(|params| with_filter(&params, &filter).into());
            copy.cancel = stop.child_token().into();
            let owners = self.owners_seen_by(&call.client.agent);
            let catalog = self.catalog_store.catalog((&owners, &call.scope));
            let uris = catalog.uri_map(&call.scope, server);
            let updates_filter = self.hearing_for(call, server, originals);
            let stream = ListenStream {
                id: call.id.raw().clone(),
                server: server.clone(),
                uris,
                acknowledged: Arc::default(),
                replies: say.clone(),
                stop: stop.clone(),
                scanners: Arc::default(),
            };
            let relay = relay(inner, send.clone(), stream.clone(), updates_filter);
            let stop_relay = stop.clone();
            self.tasks.spawn("listen relay", async move {
                stop_relay.run_until_cancelled(relay).await;
            });
            let ask = self.run_upstream_listen(copy, stream);
            self.tasks.spawn("listen upstream", ask);
        }
        (receive, words)
    }

    /// What the client of `call` may hear of `server` on its stream.
    fn hearing_for(&self, call: &Call, server: &ServerName, named: &[String]) -> UpdateFilter {
        UpdateFilter {
            catalog_store: Arc::clone(&self.catalog_store),
            governance: Arc::clone(&self.governance),
            agent: Arc::clone(&call.client.agent),
            scope: call.scope.clone(),
            server: server.clone(),
            named_uris: named.to_vec(),
        }
    }

    /// The governed request behind an upstream listen stream, as a task of its own.
    fn run_upstream_listen(
        &self,
        call: Box<Call>,
        stream: ListenStream,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let governance = Arc::clone(&self.governance);
        let catalog = self.catalog_for(&call);
        let routed = self.route_in(&catalog, call);
        let routed =
            routed.inspect_err(|lost| tracing::debug!(why = ?lost.1, "no upstream stream"));
        let way = routed
            .as_ref()
            .ok()
            .map(|routed| self.backends.backend_ref(&routed.server));
        async move {
            let mut outcome = None;
            if let (Ok(routed), Some(way)) = (routed, way) {
                let mut context = governance.open(&routed.call);
                let back = ResponseMapper::of(&routed, || true);
                let ending = match governance.admit(routed, &mut context).await {
                    Ok(admitted) => {
                        stream.set_scanners(context.scanners());
                        back.to_outcome(way.forward(admitted).await)
                    }
                    Err(refusal) => CallOutcome::Refused(refusal),
                };
                let ended = governance.settle(context, ending).await;
                tracing::debug!(?ended, "an upstream listen stream ended");
                outcome = Some(ended);
            }
            stream.ended(matches!(outcome, Some(Ok(_))));
        }
    }
}

/// Whether capabilities say that their server tells of updates of resources.
fn supports_subscribe(capabilities: &Raw) -> bool {
    let part = capabilities.get("resources");
    let subscribe = part.and_then(|part| part.get("subscribe"));
    subscribe.is_some_and(|flag| flag.as_str() == "true")
}

/// What a server says of a listen stream before anything else.
#[derive(Debug)]
enum ListenReply {
    /// That it has begun, and of which resources it tells, in its own spelling; `None` where it does
    /// not say.
    Acknowledged(ServerName, Option<Vec<String>>),
    /// That there is none.
    Refused(ServerName),
}

/// A listen stream of a server, for those that follow it.
#[derive(Clone, Debug)]
struct ListenStream {
    /// What the client calls its own.
    id: Raw,
    server: ServerName,
    /// How URIs of the server become exposed ones.
    uris: Option<Arc<UriMap>>,
    acknowledged: Arc<AtomicBool>,
    replies: mpsc::Sender<ListenReply>,
    /// Ends all streams of the client.
    stop: CancellationToken,
    /// What it was admitted with: its record says what is found on it.
    scanners: Arc<OnceLock<CallScanners>>,
}

impl ListenStream {
    /// Notes what it was admitted with, before anything comes on it.
    fn set_scanners(&self, scanners: Option<&CallScanners>) {
        if let Some(screens) = scanners {
            self.scanners.set(screens.clone()).ok();
        }
    }

    /// Notes what the server honours, as the params of its acknowledgement say.
    fn acknowledged(&self, params: &Raw) {
        let uris = params.get("notifications").map(|honoured| {
            let uris = honoured.get("resourceSubscriptions");
            uris.and_then(|uris| uris.read().ok()).unwrap_or_default()
        });
        if !self.acknowledged.swap(true, Ordering::SeqCst) {
            self.send_reply(ListenReply::Acknowledged(self.server.clone(), uris));
        }
    }

    /// Notes that the stream has ended. The client listens again where it was one.
    fn ended(&self, in_order: bool) {
        if in_order || self.acknowledged.load(Ordering::SeqCst) {
            self.stop.cancel();
        } else {
            self.send_reply(ListenReply::Refused(self.server.clone()));
        }
    }

    fn send_reply(&self, word: ListenReply) {
        // There is room for all; nobody hears it where the client is gone.
        self.replies.try_send(word).ok();
    }
}

const FLAGS: [&str; 3] = [
    "toolsListChanged",
    "promptsListChanged",
    "resourcesListChanged",
];

fn filter_flag(notification: &str) -> &'static str {
    match notification {
        notice::TOOLS_CHANGED => FLAGS[0],
        notice::PROMPTS_CHANGED => FLAGS[1],
        _ => FLAGS[2],
    }
}

/// The part of a listen filter that we can honour.
#[derive(Debug, Default)]
struct SupportedFilter {
    flags: Vec<&'static str>,
    uris: Vec<WantedUpdates>,
    tasks: Option<Value>,
    by_server: BTreeMap<ServerName, Vec<String>>,
}

/// A resource whose updates are wanted.
#[derive(Debug)]
struct WantedUpdates {
    /// As the client calls it.
    exposed: String,
    server: ServerName,
    /// As the server calls it.
    original: String,
}

impl SupportedFilter {
    /// Leaves out what servers do not honour by the first word of each, which is waited for.
    async fn apply_replies(&mut self, replies: &mut mpsc::Receiver<ListenReply>) {
        let mut silent: BTreeSet<_> = self.by_server.keys().cloned().collect();
        let patience = tokio::time::sleep(ACKNOWLEDGE_TIMEOUT);
        tokio::pin!(patience);
        while !silent.is_empty() {
            let word = tokio::select! {
                word = replies.recv() => word,
                () = &mut patience => return,
            };
            match word {
                Some(ListenReply::Acknowledged(server, acknowledged)) => {
                    if let Some(acknowledged) = acknowledged {
                        self.uris.retain(|it| {
                            it.server != server || acknowledged.contains(&it.original)
                        });
                    }
                    silent.remove(&server);
                }
                Some(ListenReply::Refused(server)) => {
                    self.uris.retain(|it| it.server != server);
                    // Tasks are of the one server there is.
                    self.tasks = None;
                    self.by_server.remove(&server);
                    silent.remove(&server);
                }
                None => return,
            }
        }
    }

    /// Whether the client was told that something of `server` is honoured.
    fn has(&self, server: &ServerName) -> bool {
        self.by_server.contains_key(server)
    }

    fn to_value(&self) -> Value {
        let mut value = json!({});
        for flag in &self.flags {
            value[flag] = true.into();
        }
        if !self.uris.is_empty() {
            let uris: Vec<_> = self.uris.iter().map(|it| &it.exposed).collect();
            value["resourceSubscriptions"] = json!(uris);
        }
        if let Some(tasks) = &self.tasks {
            value["taskIds"] = tasks.clone();
        }
        value
    }
}

/// Tells of the lists in which `new` differs from what was `seen`, which is that from then on; whether
/// all of it found room. Notifying twice does no harm.
fn notify_changes(call: &Call, flags: &[&str], seen: &mut [u64; 4], new: [u64; 4]) -> bool {
    let wanted = |name: &&'static str| flags.contains(&filter_flag(name));
    let is_notified = lists::changed_notifications(*seen, new)
        .into_iter()
        .filter(wanted)
        .all(|notification| notify(call, notification, None));
    if is_notified {
        *seen = new;
    }
    is_notified
}

/// Says something on the listen stream of `call`; whether there was room for it.
fn notify(call: &Call, method: &'static str, params: Option<&Value>) -> bool {
    let params = params.map_or(Raw::from_static("{}"), Raw::from_value);
    let params = with_subscription_id(&params, call.id.raw());
    call.events.send(Event::Notification {
        method: method.into(),
        params: Some(params),
    })
}

/// `params` with the id of the listen stream they belong to.
fn with_subscription_id(params: &Raw, id: &Raw) -> Raw {
    let json = params.as_bytes();
    let mut patch = Patch::new(json);
    if let Some(span) = meta::Meta::from_params(params).span {
        patch.remove_members(span.start, |member| {
            member.matches(json, meta::SUBSCRIPTION_ID)
        });
    }
    let stripped = patch.finish();
    let mut patch = Patch::new(stripped.as_bytes());
    meta::Meta::from_params(&stripped).insert(&subscription_member(id), &mut patch);
    patch.finish()
}

fn subscription_member(id: &Raw) -> String {
    format!(r#""{}":{}"#, meta::SUBSCRIPTION_ID, id.as_str())
}

/// The params of a listen with another filter.
fn with_filter(params: &Raw, filter: &Value) -> Raw {
    let Some(span) = params.member("notifications") else {
        return params.clone();
    };
    let json = params.as_bytes();
    let mut patch = Patch::new(json);
    // A server may read another one.
    patch.remove_members(0, |member| {
        member.matches_ignoring_case(json, "notifications") && member.value != span
    });
    patch.replace(span.clone(), filter.to_string().into_bytes());
    patch.finish()
}

/// What the client of a listen stream may hear of a server, by the rules and the catalog of the moment:
/// the stream outlives those that it began under.
struct UpdateFilter {
    catalog_store: Arc<CatalogStore>,
    governance: Arc<Governance>,
    agent: Arc<Agent>,
    scope: Scope,
    server: ServerName,
    /// The resources that the client has named, as the server calls them.
    named_uris: Vec<String>,
}

impl UpdateFilter {
    /// The params of what the server tells on `stream`, in its own spelling, as the client may hear them;
    /// `None` where it may not.
    fn filter(&self, method: &str, params: Raw, stream: &ListenStream) -> Option<Raw> {
        if !self.may_receive(method, &params) {
            return None;
        }
        let Self { agent, scope, .. } = self;
        let Some(screens) = self.governance.scanners_for(agent, scope, &self.server) else {
            return Some(params);
        };
        let begun = stream.scanners.get().unwrap_or(&screens);
        if self.is_named_update(method, &params) {
            return screens.scan_resource_update(begun, params);
        }
        screens.scan_notification_of_call(begun, method, params)
    }

    /// Whether it is an update of a resource that the client itself has named.
    fn is_named_update(&self, method: &str, params: &Raw) -> bool {
        let uri = params
            .get("uri")
            .filter(|_| method == notice::RESOURCE_UPDATED);
        let uri = uri.as_ref().and_then(Raw::as_text);
        uri.is_some_and(|uri| self.named_uris.iter().any(|named| *named == uri))
    }

    /// Whether what is told is no task of another agent.
    async fn is_for_agent(&self, method: &str, params: &Raw) -> bool {
        let (governance, agent) = (&self.governance, &self.agent);
        governance
            .may_receive_notification(method, params, agent, &self.server)
            .await
    }

    /// Whether the client may know of what is told.
    fn may_receive(&self, method: &str, params: &Raw) -> bool {
        let visibility = || self.governance.visibility(&self.agent, &self.scope);
        match method {
            notice::RESOURCE_UPDATED => {
                let uri = params.get("uri");
                let uri = uri.as_ref().and_then(Raw::as_text);
                uri.is_none_or(|uri| self.may_see(&uri, &visibility()))
            }
            // Who may ask for a task may hear of it.
            told if tasks::is_task_notification(told) => {
                visibility().shows_method(&self.server, "tasks/get")
            }
            _ => true,
        }
    }

    /// Whether the client may know of a resource, by the server's own URI.
    fn may_see(&self, uri: &str, visibility: &Visibility) -> bool {
        let parts = (&*self.catalog_store, &*self.governance);
        let owners = owners_seen_by(&self.agent, parts);
        let catalog = self.catalog_store.catalog((&owners, &self.scope));
        let names = catalog.resource_names(&self.server, Kind::Resources, uri);
        self.catalog_store.sees(&owners, &self.server)
            && catalog.shows_resource(&self.scope, &self.server, uri)
            && visibility.shows_resource(&self.server, &names, uri)
    }
}

/// Passes on what a server says on its listen stream, in exposed URIs and under the client's id, as far
/// as the client may hear it.
async fn relay(
    mut from: EventReader,
    to: mpsc::Sender<Event>,
    stream: ListenStream,
    updates_filter: UpdateFilter,
) {
    loop {
        let Event::Notification { method, params } = from.next().await else {
            continue;
        };
        let params = params.unwrap_or(Raw::from_static("{}"));
        if method == notice::SUBSCRIPTIONS_ACKNOWLEDGED {
            stream.acknowledged(&params);
            continue;
        }
        // A server may say more than was asked for.
        if !updates_filter.is_for_agent(&method, &params).await {
            continue;
        }
        let Some(params) = updates_filter.filter(&method, params, &stream) else {
            continue;
        };
        let params = match &stream.uris {
            Some(uris) => rewrite::rewrite_notification(&method, &params, uris),
            None => params,
        };
        let event = Event::Notification {
            method,
            params: Some(with_subscription_id(&params, &stream.id)),
        };
        if to.send(event).await.is_err() {
            return;
        }
    }
}
