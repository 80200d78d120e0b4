//! Subscriptions of 2026-07-28: `subscriptions/listen`.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Proxy, lists, upstream::WayBack};
use crate::{
    catalog::Lookup,
    governance::Ending,
    mcp::{Era, Outcome, Raw, RpcError, error, json::Patch, meta, method::notice},
    names::{Scope, ServerName},
    router,
    session::{
        Call, Event, EventReader,
        events::{EVENTS_MAX, events},
        modern,
    },
};

/// How soon somebody who had no room to be told of a change is told again.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

impl Proxy {
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
        let digests = || {
            let audience = lists::audience(&call.client);
            self.digests_aside(&call.client.agent, &call.scope, audience)
        };
        // First what tells of the next change, lest one between is taken for known.
        let mut changes = self.board.changes();
        let mut seen = digests().await;
        let mut is_behind = false;
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
                    is_behind = !tell_changes(&call, &flags, &mut seen, digests().await);
                }
                () = tokio::time::sleep(AGAIN), if is_behind => {
                    is_behind = !tell_changes(&call, &flags, &mut seen, digests().await);
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
            copy.cancel = stop.child_token().into();
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

/// Tells of the lists in which `new` differs from what was `seen`, which is that from then on; whether
/// all of it found room. What is told twice is true twice.
fn tell_changes(call: &Call, flags: &[&str], seen: &mut [u64; 4], new: [u64; 4]) -> bool {
    let wanted = |name: &&'static str| flags.contains(&flag_of(name));
    let told = lists::changed(*seen, new)
        .into_iter()
        .filter(wanted)
        .all(|notification| tell(call, notification, None));
    if told {
        *seen = new;
    }
    told
}

/// Says something on the listen stream of `call`; whether there was room for it.
fn tell(call: &Call, method: &'static str, params: Option<&Value>) -> bool {
    let params = params.map_or(Raw::from_static("{}"), Raw::from_value);
    let params = tagged(&params, call.id.raw());
    call.events.send(Event::Notification {
        method: method.into(),
        params: Some(params),
    })
}

/// `params` with the id of the listen stream they belong to.
fn tagged(params: &Raw, id: &Raw) -> Raw {
    let json = params.as_bytes();
    let mut patch = Patch::new(json);
    if let Some(span) = meta::Meta::of(params).span {
        patch.remove_members(span.start, |member| member.is(json, meta::SUBSCRIPTION_ID));
    }
    let stripped = patch.finish();
    let mut patch = Patch::new(stripped.as_bytes());
    meta::Meta::of(&stripped).insert(&tag(id), &mut patch);
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
