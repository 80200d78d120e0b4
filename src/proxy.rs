//! The spine: one short function a verb. Sequence only; each step lives in its own module.
//!
//! Every request of every client, on every transport and in both eras, comes through
//! [`Proxy::answer`]. What reaches a server passes `route`, `admit`, `forward` and `settle`, in
//! that order; lists and introductions are answered from the catalog in memory.

mod lifecycle_audit;
mod listen_streams;
mod lists;
mod notifications;
mod on_demand;
mod persistence;
mod response;
mod routing;
mod session_filter;
mod sign_in;
mod skills_filter;
mod subscriptions;
mod viewers;

use std::{
    collections::{BTreeSet, HashSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use http::HeaderName;
use indexmap::IndexMap;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    backend::{Backend, BackendError, Backends, CallError, Replaced, UpdateReceiver},
    catalog::{Audience, Kind},
    config::{Config, Limits},
    discovery::CatalogStore,
    governance::{CallContext, CallOutcome, Governance, Visibility},
    limiter::Limiter,
    mcp::{
        Era, Level, Method, Outcome, Raw, Revision, RpcError,
        error::{self, FailureReason},
        param_types,
    },
    names::{Scope, ServerName},
    router,
    session::{
        Call, ClientInfo, ListViewer, ServerInfo, Session, legacy, modern, registry::Sessions,
        server_info, state::SessionKind,
    },
    sign_in::SignIns,
    store::Store,
    task::{InFlight, Tasks},
    views::Views,
};
use on_demand::UsedOwners;
use persistence::SessionPersistence;
use session_filter::ProxySessionFilter;
use sign_in::SignInAnswer;
pub(crate) use sign_in::{CALLBACK_PATH, CLIENT_PATH};
use skills_filter::SkillsListing;
use subscriptions::ReviewScope;

/// Everything a request needs on its way.
#[derive(Debug)]
pub struct Proxy {
    governance: Arc<Governance>,
    backends: Backends,
    catalog_store: Arc<CatalogStore>,
    sessions: Sessions,
    limiter: Arc<Limiter>,
    sign_ins: SignIns,
    used_owners: UsedOwners,
    settings: ArcSwap<ProxySettings>,
    /// Requests that are being answered, but for listen streams.
    in_flight: InFlight,
    /// What outlives the process, where anything does.
    persistence: Option<SessionPersistence>,
    tasks: Tasks,
}

/// What outlives the process.
#[derive(Debug, Default)]
pub struct ProxyStorage {
    /// Where sessions and listings are kept, where they are.
    pub store: Option<Store>,
    /// The views of the store.
    pub views: Arc<Views>,
}

/// What the config says of requests, whoever takes them.
#[derive(Clone, Debug)]
pub struct ProxySettings {
    /// Limits on what clients send and hold.
    pub limits: Limits,
    /// Silence on an open stream after which a comment is sent.
    pub keep_alive: Duration,
    /// How long running calls may take to finish when their client, their server or we leave.
    pub drain_timeout: Duration,
    /// How long after the start the first list waits for servers that are not listed yet.
    pub first_list_wait: Duration,
    /// Headers of requests that one server or another gets.
    pub forward_headers: Arc<[HeaderName]>,
    page_size: Option<usize>,
}

impl ProxySettings {
    fn new(config: &Config) -> Self {
        Self {
            limits: config.limits.clone(),
            keep_alive: config.keep_alive,
            drain_timeout: config.drain_timeout,
            first_list_wait: config.first_list_wait,
            forward_headers: forwarded_names(config),
            page_size: config.list_page_size,
        }
    }
}

/// The headers that the servers of `config` get from callers.
fn forwarded_names(config: &Config) -> Arc<[HeaderName]> {
    let servers = config.servers.values();
    let names: BTreeSet<_> = servers.flat_map(|it| &it.forward_headers).collect();
    let names = names.into_iter();
    names.filter_map(|name| name.parse().ok()).collect()
}

impl Proxy {
    /// Joins the parts; [`Proxy::start`] sets them going.
    pub fn new(
        config: &Config,
        governance: Governance,
        backends: Backends,
        storage: ProxyStorage,
        tasks: &Tasks,
    ) -> Self {
        let governance = Arc::new(governance);
        let stop = tasks.stop_token().clone();
        let catalog_store = CatalogStore::new(config, &backends, storage.views, stop);
        let catalog_store = Arc::new(catalog_store);
        backends.set_session_filter(Arc::new(ProxySessionFilter {
            governance: Arc::clone(&governance),
            catalog_store: Arc::clone(&catalog_store),
        }));
        Self {
            governance,
            catalog_store,
            limiter: Arc::clone(backends.limiter()),
            sign_ins: SignIns::default(),
            used_owners: UsedOwners::default(),
            backends,
            sessions: Sessions::new(
                config.limits.sessions_per_agent,
                config.session_idle_timeout,
            ),
            settings: ArcSwap::from_pointee(ProxySettings::new(config)),
            in_flight: InFlight::default(),
            persistence: storage.store.map(SessionPersistence::new),
            tasks: tasks.clone(),
        }
    }

    /// Begins to connect to servers and to tell clients what changes.
    pub fn start(self: &Arc<Self>, updates: UpdateReceiver) {
        self.record_session_ends();
        self.governance.spawn_auth_failure_notices(&self.tasks);
        self.start_persistence();
        for backend in self.backends.all() {
            self.start_if_used(&backend);
        }
        let used = Arc::clone(self).start_used_servers();
        self.tasks.spawn("servers of agents", used);
        self.tasks.spawn(
            "list changes to clients",
            Arc::clone(self).notify_list_changes(),
        );
        self.tasks.spawn(
            "updates to clients",
            Arc::clone(self).forward_updates(updates),
        );
        let end = Arc::clone(self).end_subscriptions();
        self.tasks.spawn("subscriptions of ended sessions", end);
    }

    fn start_server(self: &Arc<Self>, backend: &Arc<Backend>) {
        if !backend.start() && backend.is_enabled() {
            return;
        }
        self.record_server_events(backend);
        self.move_displaced_subscriptions(backend);
        crate::discovery::start(backend, &self.catalog_store, &self.tasks);
    }

    /// Takes another config: servers it has alike stay as they are, others start or end, and every
    /// client whose lists differ from now on is told. What became of the servers.
    pub fn replace(self: &Arc<Self>, config: &Config) -> ServerChanges {
        let settings = ProxySettings::new(config);
        let drain_timeout = settings.drain_timeout;
        self.settings.store(Arc::new(settings));
        self.sessions
            .set_per_agent_max(config.limits.sessions_per_agent);
        self.sessions.set_idle_max(config.session_idle_timeout);
        self.limiter.update(&config.limits);
        let Replaced {
            added: fresh,
            retired: old,
            changed_settings: settings,
        } = self.backends.replace(config);
        let disabled = config.servers.iter().filter(|(_, server)| !server.enabled);
        let disabled = disabled.map(|(name, _)| name.clone()).collect();
        let changes = ServerChanges::of(&fresh, &old, disabled, settings);
        self.backends.retire(old, drain_timeout);
        self.catalog_store.replace(config, &self.backends);
        for backend in fresh {
            self.start_if_used(&backend);
            if changes.changed.contains(&backend.name) {
                self.renew_subscriptions(backend);
            }
        }
        self.review_subscriptions(ReviewScope::All);
        changes
    }

    /// Gives `server` a fresh backend: its calls finish with the old one, whose connections end then. Whether
    /// there is one that is enabled.
    pub fn restart_server(self: &Arc<Self>, server: &ServerName) -> bool {
        let Some((old, fresh)) = self.backends.renew(server) else {
            return false;
        };
        self.backends
            .retire(vec![old], self.settings().drain_timeout);
        self.start_if_used(&fresh);
        self.renew_subscriptions(fresh);
        self.review_subscriptions(ReviewScope::All);
        true
    }

    /// What the config says of requests.
    pub fn settings(&self) -> Arc<ProxySettings> {
        self.settings.load_full()
    }

    /// The legacy sessions of HTTP clients.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// What clients may take of the process.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Who signs in to servers.
    pub fn sign_ins(&self) -> &SignIns {
        &self.sign_ins
    }

    /// What governs calls.
    pub fn governance(&self) -> &Arc<Governance> {
        &self.governance
    }

    /// The backends.
    pub fn backends(&self) -> &Backends {
        &self.backends
    }

    /// The current catalog.
    pub fn catalog_store(&self) -> &CatalogStore {
        &self.catalog_store
    }

    /// Requests that have not been answered yet; streams that only tell of changes do not count.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.count()
    }

    /// Whether the gateway is stopping: it answers what it has taken, and takes nothing more.
    pub fn is_draining(&self) -> bool {
        self.tasks.drain_token().is_cancelled()
    }

    /// Answers one request. Who is shown out meanwhile hears nothing but that.
    pub async fn answer(&self, call: Box<Call>) -> Outcome {
        let client = Arc::clone(&call.client);
        let outcome = self.answer_unchecked(call).await;
        if outcome.is_err()
            || self
                .governance
                .directory()
                .is_still_authorized(&client.agent)
        {
            outcome
        } else {
            Err(self.governance.session_ended_error())
        }
    }

    async fn answer_unchecked(&self, call: Box<Call>) -> Outcome {
        // Whoever begins to drain looks at the count after it said so: one of both sees the other.
        let _running = (call.method != Method::Listen).then(|| self.in_flight.enter());
        if self.is_draining() && call.method != Method::Ping {
            return Box::pin(self.reject_while_draining(call)).await;
        }
        let owners = self.owners_seen_by(&call.client.agent);
        if !owners.is_empty() {
            Box::pin(self.prepare_for(owners)).await;
        }
        if call.scope.view().is_some() {
            Box::pin(self.prepare_view(&call)).await;
        }
        if let Some(held_back) = self.refusal_backoff(&call).await {
            return Err(held_back.to_raw());
        }
        // A listen stream would outlive its client, whose leaving cancels nothing in that era.
        if call.client.era() == Era::Legacy && !call.method.is_legacy() {
            return Err(router::method_not_found(&call.method).to_raw());
        }
        let checked = param_types::check_params(&call.method, call.params.as_ref());
        if let Err(error) = checked {
            return Box::pin(self.reject_malformed(&call, error)).await;
        }
        // All but calls are boxed: a future is as large as its largest branch, and is moved with it.
        match &call.method {
            Method::ToolsList => Box::pin(self.list(&call, Kind::Tools)).await,
            Method::ResourcesList => Box::pin(self.list(&call, Kind::Resources)).await,
            Method::TemplatesList => Box::pin(self.list(&call, Kind::Templates)).await,
            Method::PromptsList => Box::pin(self.list(&call, Kind::Prompts)).await,
            Method::ToolsCall
            | Method::PromptsGet
            | Method::ResourcesRead
            | Method::Complete
            | Method::Other(_) => self.call(call).await,
            Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {
                Box::pin(self.subscribe(call)).await
            }
            Method::SetLevel => self.set_level(&call),
            Method::Listen => Box::pin(self.listen(call)).await,
            Method::Discover => Ok(modern::discover_result(
                &self.server_info(call.list_viewer(), (call.kind, Era::Modern)),
            )),
            Method::Ping => Ok(Raw::from_static("{}")),
            Method::Initialize => Err(RpcError::new(
                error::INVALID_REQUEST,
                "the session is already initialized",
            )
            .to_raw()),
        }
    }

    /// The answer to a request that is held back since its agent was refused too often. It takes a moment:
    /// who does not wait before the next would ask as often as it is answered.
    pub async fn refusal_backoff(&self, call: &Call) -> Option<RpcError> {
        if !is_for_servers(&call.method) {
            return None;
        }
        let wait = self.governance.refusal_backoff(call)?;
        tokio::time::sleep(wait.min(BACKOFF_MAX)).await;
        Some(self.governance.held_back_error(call, wait))
    }

    /// One request that a server answers: opened, attempted, settled.
    async fn call(&self, mut call: Box<Call>) -> Outcome {
        let answer = SignInAnswer::take_from(&mut call);
        let mut context = self.governance.open(&call);
        let session_ended = call.session_ended.clone();
        let ending = catch_panic(self.route_and_forward(call, answer, &mut context)).await;
        let ending = self.with_shutdown_cause(ending, session_ended.as_ref());
        self.governance.settle(context, ending).await
    }

    /// Refuses a request of which a server could not read what the specification says how to write.
    async fn reject_malformed(&self, call: &Call, error: RpcError) -> Outcome {
        if !is_for_servers(&call.method) {
            return Err(error.to_raw());
        }
        let context = self.governance.open(call);
        let outcome = CallOutcome::Failed {
            error,
            delivered: false,
            reason: FailureReason::Malformed,
        };
        self.governance.settle(context, outcome).await
    }

    /// Refuses a request that comes while the gateway stops. One that a server would have answered has
    /// its record, as every other.
    async fn reject_while_draining(&self, call: Box<Call>) -> Outcome {
        if !is_for_servers(&call.method) {
            return Err(draining_error().to_raw());
        }
        let mut context = self.governance.open(&call);
        let ending = catch_panic(async {
            let catalog = self.catalog_for(&call);
            if let Ok(routed) = self.route_in(&catalog, call) {
                context.set_target(&routed);
            }
            CallOutcome::Failed {
                error: draining_error(),
                delivered: false,
                reason: FailureReason::Draining,
            }
        });
        let ending = ending.await;
        self.governance.settle(context, ending).await
    }

    /// The ending in words for whoever still waits: what the stop or the end of its session has cut off
    /// was neither cancelled by them nor lost by its server.
    fn with_shutdown_cause(
        &self,
        mut outcome: CallOutcome,
        session_ended: Option<&CancellationToken>,
    ) -> CallOutcome {
        let CallOutcome::Failed {
            error,
            reason,
            delivered,
        } = &mut outcome
        else {
            return outcome;
        };
        let is_cut_off = matches!(*reason, FailureReason::Lost | FailureReason::Unavailable);
        let cause = if *reason == FailureReason::Cancelled {
            self.cancellation_cause(session_ended)
        } else if is_cut_off && self.tasks.stop_token().is_cancelled() {
            Some(STOPPED_MESSAGE)
        } else {
            None
        };
        let Some(cause) = cause else { return outcome };
        error.message = cause.into();
        if cause == STOPPED_MESSAGE && *reason == FailureReason::Cancelled {
            // Whether the stop reached the call or its server first is all the same.
            *reason = if *delivered {
                FailureReason::Lost
            } else {
                FailureReason::Unavailable
            };
            let data = error.data.get_or_insert_default();
            data["code"] = reason.code().into();
            data["reason"] = reason.as_str().into();
            data["retryable"] = (!*delivered).into();
        }
        outcome
    }

    /// What has cancelled a request, where that was not its client.
    fn cancellation_cause(
        &self,
        session_ended: Option<&CancellationToken>,
    ) -> Option<&'static str> {
        // Sessions that the stop ends cancel their calls; until then clients do.
        if self.sessions.are_closed() || self.tasks.stop_token().is_cancelled() {
            return Some(STOPPED_MESSAGE);
        }
        let has_ended = session_ended.is_some_and(CancellationToken::is_cancelled);
        has_ended.then_some("the session ended before the server responded")
    }

    async fn route_and_forward(
        &self,
        call: Box<Call>,
        answer: Option<SignInAnswer>,
        context: &mut CallContext,
    ) -> CallOutcome {
        let routed = match self.route(call, context).await {
            Ok(routed) => routed,
            Err(ending) => return ending,
        };
        Self::notify_state_lost_in_call(&routed.call, &routed.server);
        if answer == Some(SignInAnswer::Accepted) {
            Box::pin(self.wait_signed_in(&routed)).await;
        }
        let (client, method) = (Arc::clone(&routed.call.client), routed.call.method.clone());
        let back = response::ResponseMapper::of(&routed, || self.is_publicly_cacheable());
        let listing = SkillsListing::of(&routed);
        let admitted = match self.governance.admit(routed, context).await {
            Ok(admitted) => admitted,
            Err(refusal) => return CallOutcome::Refused(refusal),
        };
        let answered = Box::pin(self.backends.forward(admitted)).await;
        if let Err(CallError { failure, state, .. }) = &answered
            && let BackendError::NeedsSignIn { .. } = failure
        {
            let missing = (&back.server, failure, *state);
            return self.sign_in_outcome((&client, &method), missing, answer);
        }
        let outcome = back.to_outcome(answered);
        match listing {
            Some(listing) => Box::pin(self.filter_skills_outcome(listing, outcome)).await,
            None => outcome,
        }
    }

    /// Notes the level of a session's log messages; servers at work for it hear of it, others do before
    /// the next call.
    fn set_level(&self, call: &Call) -> Outcome {
        let level = call.params.as_ref().and_then(|params| params.get("level"));
        let level = level
            .as_ref()
            .and_then(Raw::as_text)
            .and_then(|level| Level::parse(&level));
        let Some(level) = level else {
            let names = Level::ALL.map(Level::as_str).join(", ");
            let message = format!("`level` must be one of {names}");
            return Err(RpcError::new(error::INVALID_PARAMS, message).to_raw());
        };
        if let Some(session) = &call.client.session {
            session.set_level(level);
            self.backends.update_log_level(session);
        }
        Ok(Raw::from_static("{}"))
    }

    /// Opens `session` as its client asks for in `initialize`; the answer to that.
    pub fn initialize(&self, session: &Session, opening: ClientInfo) -> Raw {
        let revision = opening.revision;
        session.initialize(opening);
        self.start_servers_of(&session.agent);
        self.mark_lists_seen(session);
        let introduction = self.server_info(session.list_viewer(), (session.kind, Era::Legacy));
        legacy::initialize_result(revision, &introduction)
    }

    /// How we introduce ourselves on the route of `scope` to `agent`, whose client is connected so and
    /// speaks that era.
    fn server_info(&self, viewer: ListViewer<'_>, (kind, era): (SessionKind, Era)) -> ServerInfo {
        let known = match viewer.scope {
            Scope::All | Scope::Profile(_) | Scope::View { .. } => None,
            Scope::Server(server) => self
                .backends
                .get(server)
                .filter(|_| self.sees_server(viewer.agent, server))
                .and_then(|backend| backend.capabilities()),
        };
        ServerInfo {
            capabilities: capabilities(known.as_ref(), era),
            server_info: server_info(),
            instructions: self.instructions(viewer, kind),
        }
    }

    /// What the servers say for models, of which the agent may use something; where it may use nothing
    /// at all, why, since its empty lists do not tell.
    fn instructions(&self, viewer: ListViewer<'_>, kind: SessionKind) -> Option<String> {
        let ListViewer { agent, scope, .. } = viewer;
        let route = (&self.owners_seen_by(agent), scope);
        let catalog = self.catalog_store.catalog(route);
        let visibility = self.visibility(viewer);
        match &visibility {
            Visibility::All => return catalog.instructions(scope, |_| true),
            Visibility::Hidden(why) => {
                let agent = &agent.name;
                tracing::debug!(?scope, "nothing is visible to this client: {agent} {why}");
                return Some(why.instructions(kind));
            }
            Visibility::Filtered(_) => {}
        }
        let mut seen = HashSet::new();
        for kind in Kind::ALL {
            for entry in catalog.list(scope, kind).entries() {
                if !seen.contains(&entry.server) && visibility.shows(kind, entry) {
                    seen.insert(&entry.server);
                }
            }
        }
        catalog.instructions(scope, |server| seen.contains(server))
    }

    /// Remembers what a client that just opened its session has been told of the lists.
    fn mark_lists_seen(&self, session: &Session) {
        let audience = lists::audience_of(session);
        if audience == Audience::Interactive {
            self.catalog_store.note_interactive_client();
        }
        self.record_client(session);
        session.swap_seen_digests(self.list_digests(session.list_viewer(), audience));
    }
}

/// How an attempt ends, also where it panics: a mistake of ours costs a call its answer, and no call
/// its record.
async fn catch_panic(attempt: impl Future<Output = CallOutcome>) -> CallOutcome {
    let attempt = AssertUnwindSafe(attempt).catch_unwind();
    attempt.await.unwrap_or_else(|_| CallOutcome::panicked())
}

/// How long the answer to a request that is held back may take.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// What is said of a call that the stop has cut off.
const STOPPED_MESSAGE: &str = "the gateway stopped before the server responded";

/// Whether requests of `method` are answered by servers, and not from what is known here.
fn is_for_servers(method: &Method) -> bool {
    match method {
        Method::Complete
        | Method::Other(_)
        | Method::PromptsGet
        | Method::ResourcesRead
        | Method::ResourcesSubscribe
        | Method::ResourcesUnsubscribe
        | Method::ToolsCall => true,
        Method::Discover
        | Method::Initialize
        | Method::Listen
        | Method::Ping
        | Method::PromptsList
        | Method::ResourcesList
        | Method::SetLevel
        | Method::TemplatesList
        | Method::ToolsList => false,
    }
}

/// The refusal of a request that comes while the gateway stops.
pub(crate) fn draining_error() -> RpcError {
    let message = "the gateway is shutting down and accepts no new requests; try again shortly";
    RpcError::new(error::INTERNAL, message)
        .with_data(FailureReason::Draining.to_data())
        .retry_soon()
}

/// What a new config did to the servers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ServerChanges {
    /// Those that are new.
    pub added: Vec<ServerName>,
    /// Those that do not go on, since how they run has changed: they are started, stopped, or both.
    pub changed: Vec<ServerName>,
    /// Those that do not run, whatever became of them.
    pub disabled: Vec<ServerName>,
    /// Those that are gone.
    pub removed: Vec<ServerName>,
    /// The settings in which servers differ that were there before, by the names of their keys; those
    /// that are not in `changed` go on with them.
    pub changed_settings: IndexMap<ServerName, Vec<&'static str>>,
}

impl ServerChanges {
    fn of(
        fresh: &[Arc<Backend>],
        old: &[Arc<Backend>],
        disabled: Vec<ServerName>,
        changed_settings: IndexMap<ServerName, Vec<&'static str>>,
    ) -> Self {
        let names = |all: &[Arc<Backend>]| -> Vec<ServerName> {
            all.iter().map(|backend| backend.name.clone()).collect()
        };
        let (fresh, old) = (names(fresh), names(old));
        let (changed, added): (Vec<_>, _) = fresh.into_iter().partition(|name| old.contains(name));
        let mut removed = old;
        removed.retain(|name| !changed.contains(name));
        Self {
            added,
            changed,
            disabled,
            removed,
            changed_settings,
        }
    }

    /// What became of `server`, which was there before and differs.
    pub fn change_of(&self, server: &ServerName) -> ServerChange {
        let settings = self.changed_settings.get(server);
        let is_switched = settings.is_some_and(|settings| settings.contains(&"enabled"));
        let is_disabled = self.disabled.contains(server);
        match (is_switched, is_disabled) {
            (true, true) => ServerChange::Stopped,
            (true, false) => ServerChange::Started,
            (false, true) => ServerChange::StaysDisabled,
            (false, false) if self.changed.contains(server) => ServerChange::Restarted,
            (false, false) => ServerChange::Reconfigured,
        }
    }
}

/// What a new config did to a server that was there before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ServerChange {
    /// It did not run, and does.
    Started,
    /// It runs in place of the one before it.
    Restarted,
    /// It ran, and does not.
    Stopped,
    /// It runs as before, with other settings.
    Reconfigured,
    /// It runs neither before nor after.
    StaysDisabled,
}

impl ServerChange {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 5] = [
        Self::Started,
        Self::Restarted,
        Self::Stopped,
        Self::Reconfigured,
        Self::StaysDisabled,
    ];

    /// The same in words for operators.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reconfigured => "reconfigured without restart",
            Self::Started => "started",
            Self::Restarted => "restarted",
            Self::StaysDisabled => "changed while disabled",
            Self::Stopped => "stopped",
        }
    }
}

/// What we declare: on merged routes everything, since servers come and go; on the route of one
/// server what it declares. We can always tell that a list changed.
fn capabilities(known: Option<&(Raw, Revision)>, era: Era) -> Value {
    let everything = json!({
        "tools": { "listChanged": true },
        "resources": { "listChanged": true, "subscribe": true },
        "prompts": { "listChanged": true },
        "completions": {},
        "logging": {},
    });
    let Some((server, revision)) = known else {
        return everything;
    };
    let Ok(Value::Object(mut own)) = server.read::<Value>() else {
        return everything;
    };
    for list in ["tools", "resources", "prompts"] {
        if let Some(Value::Object(list)) = own.get_mut(list) {
            list.insert("listChanged".to_owned(), Value::Bool(true));
        }
    }
    if revision.era() != era {
        // Tasks, extensions and subscriptions do not cross eras.
        own.remove("tasks");
        own.remove("extensions");
        if let Some(Value::Object(resources)) = own.get_mut("resources") {
            resources.remove("subscribe");
        }
    }
    Value::Object(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_attempt_that_panics_has_an_ending() {
        let found = catch_panic(async { panic!("a mistake of ours") }).await;
        let CallOutcome::Failed {
            error, delivered, ..
        } = found
        else {
            panic!("{found:?}");
        };
        assert_eq!(error.data.unwrap()["code"], "INTERNAL");
        assert!(delivered, "nobody knows how far it came");
    }
}
