//! A gateway inside this process, for commands that ask something and end.
//!
//! What is asked goes through the same [`Proxy`] as the requests of clients, as a request of
//! 2026-07-28, so it is routed and governed like any other.

use std::{
    io::{self, IsTerminal},
    pin::pin,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt},
};
use tokio::time::{Instant, interval_at, timeout, timeout_at};

use super::{
    ABORT_TIMEOUT, EXIT_INTERRUPTED,
    args::{self, NoConfig},
    data_dir::check_store_owner,
    gateway_target::GatewayTarget,
    interrupted,
    output::{OutputFormat, eprint, escape_terminal, to_single_line},
    process_context, report_failure, second_interrupt,
    server_summary::FoundServer,
    usage_error,
};
use crate::{
    app::GatewayCore,
    auth::Agent,
    backend::{Backend, ReplicaReport, ServerState},
    catalog::{ByKind, Catalog, CatalogProblem, Kind, ProblemImpact, Tool},
    governance::{HiddenReason, Visibility},
    mcp::{Id, Level, LogFilter, Method, Outcome, Raw, Request, Revision, RpcError, error, meta},
    names::{OwnerSet, Scope, ServerName},
    proxy::Proxy,
    session::{Call, Event, EventReader, modern::RequestEnvelope, server_info},
};

/// How long people wait before they are told for what, and how often they are told again.
const PROGRESS_DELAY: Duration = Duration::from_secs(1);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// When a line says it where no person reads, such as in the log of a job; once.
const PROGRESS_DELAY_NO_TTY: Duration = Duration::from_secs(2);
/// How long it may take to look at the schemas of all servers: those of one take 30 s at most, and few are
/// worth more than a moment.
pub(super) const SCHEMAS_TIMEOUT: Duration = Duration::from_secs(60);
/// Items that are missing and named; of more their number says enough.
const MISSING_LISTED_MAX: usize = 100;
/// The least severe log message that is shown.
const LOG_LEVEL: Level = Level::Info;

/// A running gateway.
#[derive(Debug)]
pub(super) struct Gateway {
    core: GatewayCore,
    /// Whose calls these are.
    agent: Arc<Agent>,
    pub(super) scope: Scope,
    start: Instant,
    /// How long servers may take to be listed.
    list_timeout: Duration,
    /// Whether what is asked is behind a URL of the command line.
    is_url: bool,
    /// Whether no agent is named: operators see the servers of all owners.
    sees_all_servers: bool,
}

/// Runs `work` with a gateway that asks `target`, and stops it whatever happens. What is wrong with the
/// config is said in `form`.
pub(super) async fn with(
    target: GatewayTarget,
    form: OutputFormat,
    work: impl AsyncFnOnce(&Gateway) -> ExitCode,
) -> ExitCode {
    if let Err(refused) = check_store_owner(&target.config.data_dir) {
        return refused.report();
    }
    let core = match GatewayCore::start_stateless(&target.config, process_context()).await {
        Ok(core) => core,
        Err(error) if error.is_config_error() => return NoConfig::from(error).report(form),
        Err(error) => return report_failure(&error),
    };
    let directory = core.proxy.governance().directory();
    let agent = match args::find_agent(target.agent.as_deref(), directory) {
        Ok(agent) => agent,
        Err(code) => {
            core.stop().await;
            return code;
        }
    };
    if let (Some(name), Scope::Server(server)) = (&target.agent, &target.scope)
        && !core.proxy.sees_server(&agent, server)
    {
        core.stop().await;
        return usage_error(&format!(
            "the agent `{name}` does not see the server `{server}`"
        ));
    }
    match target.agent {
        None => core.proxy.start_all_servers(),
        Some(_) => core.proxy.start_servers_of(&agent),
    }
    let gateway = Gateway {
        core,
        agent,
        scope: target.scope,
        start: Instant::now(),
        list_timeout: target.config.first_list_wait,
        is_url: target.is_url,
        sees_all_servers: target.agent.is_none(),
    };
    let cut_short = ExitCode::from(EXIT_INTERRUPTED);
    let done = tokio::select! {
        code = work(&gateway) => Some(code),
        () = interrupted() => None,
    };
    // Children may take their time to end; who has none to wait interrupts again.
    let again = async {
        match done {
            Some(_) => interrupted().await,
            None => second_interrupt().await,
        }
    };
    let abort = gateway.core.abort_token();
    let mut stop = pin!(gateway.core.stop());
    tokio::select! {
        _ = &mut stop => done.unwrap_or(cut_short),
        () = again => {
            abort.cancel();
            drop(timeout(ABORT_TIMEOUT, stop).await);
            cut_short
        }
    }
}

impl Gateway {
    pub(super) fn proxy(&self) -> &Proxy {
        &self.core.proxy
    }

    /// Who asks.
    pub(super) fn agent(&self) -> &Arc<Agent> {
        &self.agent
    }

    /// The owners whose servers the agent sees beside the gateway's.
    pub(super) fn owners(&self) -> OwnerSet {
        self.proxy().owners_seen_by(&self.agent)
    }

    /// What the agent's clients could use.
    pub(super) fn catalog(&self) -> Arc<Catalog> {
        self.proxy()
            .catalog_store()
            .catalog((&self.owners(), &self.scope))
    }

    /// Waits until every server that matters here has been listed or has failed, and says how each does.
    pub(super) async fn wait_for_servers(&self) -> Vec<FoundServer> {
        let backends = self.relevant_backends();
        let all = join_all(backends.iter().map(|backend| self.server_summary(backend)));
        with_progress(all, || self.progress_text()).await
    }

    /// The servers of which something may be shown here.
    fn relevant_backends(&self) -> Vec<Arc<Backend>> {
        let board = self.proxy().catalog_store();
        let owners = self.owners();
        let is_for_operator = |server: &ServerName| match &self.scope {
            _ if !self.sees_all_servers || !server.is_owned() => false,
            Scope::All => true,
            Scope::Profile(_) | Scope::View { .. } => false,
            Scope::Server(only) => only == server,
        };
        let mut backends: Vec<_> = self.proxy().backends().all().collect();
        backends.retain(|backend| {
            is_for_operator(&backend.name) || board.may_show((&owners, &self.scope), &backend.name)
        });
        backends
    }

    async fn server_summary(&self, backend: &Backend) -> FoundServer {
        let board = self.proxy().catalog_store();
        let scope = Scope::Server(backend.name.clone());
        let route = (&self.owners(), &scope);
        board.wait_ready(route, self.list_timeout).await;
        let latency = self.start.elapsed();
        let known = ByKind::from_fn(|kind| board.has_current_list(&backend.name, kind));
        let offers = self.item_counts(&backend.name);
        FoundServer::new(backend.report(), offers, latency).with_known(known)
    }

    /// The same, once that is so of every replica too; `report` is given each server then.
    pub(super) async fn wait_for_each(
        &self,
        mut report: impl FnMut(&FoundServer),
    ) -> Vec<FoundServer> {
        let backends = self.relevant_backends();
        let tried = backends.iter().enumerate().map(async |(place, backend)| {
            let mut found = self.server_summary(backend).await;
            found.replicas = self.wait_for_replicas(backend).await;
            (place, found)
        });
        let mut tried: FuturesUnordered<_> = tried.collect();
        let mut servers = Vec::new();
        let all = async {
            while let Some((place, found)) = tried.next().await {
                report(&found);
                servers.push((place, found));
            }
        };
        with_progress(all, || self.progress_text()).await;
        servers.sort_by_key(|(place, _)| *place);
        servers.into_iter().map(|(_, found)| found).collect()
    }

    /// The replicas of `backend`, once each was tried.
    async fn wait_for_replicas(&self, backend: &Backend) -> Vec<ReplicaReport> {
        let mut changes = backend.watch_catalog();
        let all_tried = async {
            while backend.report().has_untried_replica() {
                changes.any_changed().await;
            }
        };
        drop(timeout_at(self.start + self.list_timeout, all_tried).await);
        backend.report().replicas
    }

    /// What is wrong with the schemas of tools that `servers` list, and what is not known of them, since
    /// it takes too long to look at them.
    pub(super) async fn schemas(
        &self,
        servers: &[FoundServer],
    ) -> (Vec<Arc<[CatalogProblem]>>, Vec<ServerName>) {
        let mut backends = self.relevant_backends();
        backends.retain(|backend| servers.iter().any(|it| it.server == backend.name.as_str()));
        let board = self.proxy().catalog_store();
        let looks = join_all(backends.iter().map(async |backend| {
            let is_done = board.has_schemas(&backend.name, SCHEMAS_TIMEOUT).await;
            (backend.name.clone(), is_done)
        }));
        let looks = with_progress(looks, || "waiting for the schema check".to_owned());
        let looks = looks.await;
        let problems = looks
            .iter()
            .map(|(server, _)| board.schema_problems(server));
        let problems = problems.collect();
        let left = looks.into_iter().filter(|(_, is_done)| !is_done);
        (problems, left.map(|(server, _)| server).collect())
    }

    /// How many items are shown of `server`.
    fn item_counts(&self, server: &ServerName) -> ByKind<usize> {
        match &self.scope {
            Scope::All | Scope::Server(_) => {
                let catalog = self.proxy().catalog_store().catalog_of(server);
                catalog.counts(server)
            }
            Scope::Profile(_) | Scope::View { .. } => ByKind::from_fn(|kind| {
                let catalog = self.catalog();
                let shown = catalog.list(&self.scope, kind).entries().iter();
                shown.filter(|entry| entry.server == *server).count()
            }),
        }
    }

    /// What `find` finds in the catalog, as soon as it is certain; `None` once the servers that may have the
    /// item of `kind` called `name` have been listed or have failed. Also says which those are. The
    /// name may be `server/item`.
    pub(super) async fn wait_for_item<T>(
        &self,
        kind: Kind,
        name: &str,
        find: impl Fn() -> Option<T>,
    ) -> (Option<T>, Vec<ServerName>) {
        let qualified = name.split_once('/').map(|(server, _)| server);
        let backends = self.relevant_backends().into_iter();
        let mut enabled = backends.filter(|backend| backend.is_enabled());
        let named = enabled.find(|backend| qualified.is_some_and(|it| backend.name.is_called(it)));
        let candidates = match named {
            Some(backend) => vec![backend.name.clone()],
            None => self.candidates(kind, name),
        };
        (self.find_among(&candidates, find).await, candidates)
    }

    /// The same of the tool that clients see as `name`.
    pub(super) async fn find_tool(&self, name: &str) -> (Option<Arc<Tool>>, Vec<ServerName>) {
        let candidates = self.candidates(Kind::Tools, name);
        let find = || self.catalog().tool(&self.scope, name).map(Arc::clone);
        (self.find_among(&candidates, find).await, candidates)
    }

    /// What `find` finds: at once where one server alone may have it. Of several each may have another of
    /// that name, and only all of them together say whose it is.
    async fn find_among<T>(
        &self,
        candidates: &[ServerName],
        find: impl Fn() -> Option<T>,
    ) -> Option<T> {
        let board = self.proxy().catalog_store();
        let look = async {
            let mut changes = board.changes();
            let settled = join_all(candidates.iter().map(async |server| {
                let route = (&self.owners(), &Scope::Server(server.clone()));
                board.wait_ready(route, self.list_timeout).await;
            }));
            let mut settled = pin!(settled);
            let is_one = candidates.len() == 1;
            loop {
                if let Some(found) = find().filter(|_| is_one) {
                    return Some(found);
                }
                tokio::select! {
                    _ = changes.changed() => {}
                    _ = &mut settled => return find(),
                }
            }
        };
        with_progress(look, || waiting_text(&self.still_connecting(candidates))).await
    }

    /// The enabled servers that may have the item called `name`: all, where the name does not say.
    fn candidates(&self, kind: Kind, name: &str) -> Vec<ServerName> {
        let named = match &self.scope {
            Scope::All | Scope::Server(_) => {
                let board = self.proxy().catalog_store();
                board.possible_servers(&self.owners(), kind, name)
            }
            // It may have given the name to anything.
            Scope::Profile(_) | Scope::View { .. } => Vec::new(),
        };
        if !named.is_empty() {
            return named;
        }
        let backends = self.relevant_backends().into_iter();
        let enabled = backends.filter(|backend| backend.is_enabled());
        enabled.map(|backend| backend.name.clone()).collect()
    }

    /// Asks with a request whose params have `members` (`"key":value,...`); `hear` takes what comes
    /// before the answer.
    pub(super) async fn request(
        &self,
        method: Method,
        members: &str,
        mut hear: impl FnMut(&str, Option<Raw>),
    ) -> Outcome {
        let (call, mut receiver) = self.new_call(method, members);
        let mut answer = pin!(self.proxy().answer(call));
        let outcome = loop {
            tokio::select! {
                biased;
                event = receiver.next() => handle_event(event, &mut hear),
                outcome = &mut answer => break outcome,
            }
        };
        while let Some(event) = receiver.try_next() {
            handle_event(event, &mut hear);
        }
        outcome
    }

    fn new_call(&self, method: Method, members: &str) -> (Box<Call>, EventReader) {
        let envelope = RequestEnvelope {
            revision: Revision::MODERN,
            info: Some(Raw::from_value(&server_info())),
            // No capability is declared: nobody is here to answer a server.
            capabilities: Raw::from_static("{}"),
            logs: LogFilter::From(LOG_LEVEL),
            progress_token: Some(Raw::from_static("1")),
        };
        let RequestEnvelope {
            info, capabilities, ..
        } = &envelope;
        let written = meta::modern_members(info.as_ref(), capabilities, Some(LOG_LEVEL.as_str()));
        let comma = if members.is_empty() { "" } else { "," };
        let params = format!(r#"{{{members}{comma}"_meta":{{{written},"progressToken":1}}}}"#);
        let request = Request {
            id: Id::number(1),
            method,
            params: Some(Raw::parse(params).expect("joined from valid JSON").into()),
        };
        let (client, wants) = envelope.into_client(Arc::clone(&self.agent));
        Call::new(request, Arc::new(client), self.scope.clone(), wants)
    }

    /// Says on stderr which servers that matter here are not well, and why; whether it is known of all
    /// of them what they have of `kinds`.
    pub(super) fn report_unhealthy(&self, kinds: &[Kind]) -> bool {
        self.report_unhealthy_where(kinds, |_| true)
    }

    /// The same of some of them.
    pub(super) fn report_unhealthy_where(
        &self,
        kinds: &[Kind],
        matters: impl Fn(&ServerName) -> bool,
    ) -> bool {
        let board = self.proxy().catalog_store();
        let mut complete = true;
        let backends = self.relevant_backends().into_iter();
        for backend in backends.filter(|backend| matters(&backend.name)) {
            let found = FoundServer::new(backend.report(), ByKind::default(), Duration::ZERO);
            let state = match found.state {
                ServerState::Connected | ServerState::Disabled => continue,
                // It is there: what it has of other kinds is missed by nobody.
                ServerState::Degraded => {
                    let mut kinds = kinds.iter();
                    complete &= kinds.all(|kind| board.has_current_list(&backend.name, *kind));
                    found.state()
                }
                ServerState::Connecting
                | ServerState::Disconnected
                | ServerState::Failed
                | ServerState::NeedsReauth
                | ServerState::NeedsSignIn => {
                    complete = false;
                    "not connected"
                }
            };
            found.report(state);
            if self.is_url && found.state == ServerState::NeedsReauth {
                eprint("use --key-file FILE to send a key\n");
            }
        }
        complete
    }

    /// Says on stderr why its agent may use nothing of what is asked, where that is so; a gateway behind
    /// a URL that lists nothing may say that itself.
    pub(super) fn report_hidden_route(&self) {
        let agent = &self.agent;
        if let Visibility::Hidden(why) = self.proxy().governance().visibility(agent, &self.scope) {
            return eprint(&format!("{}\n", hidden_reason(agent, &why, &self.scope)));
        }
        let catalog = self.catalog();
        let lists = |kind: Kind| !catalog.list(&self.scope, kind).entries().is_empty();
        if let Scope::Server(server) = &self.scope
            && !Kind::ALL.into_iter().any(lists)
            && let Some(said) = catalog.instructions(&self.scope, |_| true)
        {
            let said = to_single_line(&said);
            eprint(&format!(
                "server `{server}` lists nothing; its instructions: {said}\n"
            ));
        }
    }

    /// Says on stderr which items of `kinds` are not listed although their servers have them, and why;
    /// whether that is as the config asks for.
    pub(super) fn report_missing_items(&self, kinds: &[Kind]) -> bool {
        let mut complete = true;
        let mut missing = 0;
        for problem in self.catalog().problems() {
            let matters = problem.affects_route(&self.scope);
            let cost = problem.impact();
            let is_asked = problem.kind.is_some_and(|kind| kinds.contains(&kind));
            if !matters || !is_asked || cost == ProblemImpact::Nothing {
                continue;
            }
            complete &= cost == ProblemImpact::LostName;
            missing += 1;
            if missing <= MISSING_LISTED_MAX {
                eprint(&format!("{}\n", escape_terminal(&problem.to_string())));
            }
        }
        if missing > MISSING_LISTED_MAX {
            eprint(&format!("... and {} more\n", missing - MISSING_LISTED_MAX));
        }
        complete
    }

    fn progress_text(&self) -> String {
        let backends = self.relevant_backends();
        let all: Vec<_> = backends
            .iter()
            .map(|backend| backend.name.clone())
            .collect();
        match self.still_connecting(&all).as_slice() {
            [] => "waiting for replicas".to_owned(),
            connecting => waiting_text(connecting),
        }
    }

    /// Those of `servers` of which it is not known yet what becomes of them.
    pub(super) fn still_connecting(&self, servers: &[ServerName]) -> Vec<ServerName> {
        let backends = self.proxy().backends();
        let state = |server| backends.get(server).map(|backend| backend.state());
        let servers = servers.iter();
        let connecting = servers.filter(|server| state(server) == Some(ServerState::Connecting));
        connecting.cloned().collect()
    }
}

/// Why `agent` is shown nothing on the route of `scope`, and which flag shows more.
fn hidden_reason(agent: &Agent, why: &HiddenReason, scope: &Scope) -> String {
    let is_given = matches!(scope, Scope::Profile(_));
    let ending = match why {
        HiddenReason::OtherProfiles(profiles) if !profiles.is_empty() && !is_given => {
            "; see --profile"
        }
        HiddenReason::Disabled | HiddenReason::OtherProfiles(_) | HiddenReason::InvalidTerms => "",
    };
    format!("{} {why}{ending}", agent.name)
}

fn waiting_text(servers: &[ServerName]) -> String {
    let names: Vec<&str> = servers.iter().map(ServerName::as_str).collect();
    format!("waiting for {}", names.join(", "))
}

fn handle_event(event: Event, hear: &mut impl FnMut(&str, Option<Raw>)) {
    match event {
        Event::Notification { method, params } => hear(&method, params),
        Event::Request(request) => {
            let message = "no user to respond";
            let refusal = RpcError::new(error::METHOD_NOT_FOUND, message).to_raw();
            drop(request.answer.send(Err(refusal)));
        }
        Event::Pause { .. } => {}
    }
}

/// Does `work`; when it takes long, people are told what for.
pub(super) async fn with_progress<F: Future>(work: F, what_for: impl Fn() -> String) -> F::Output {
    let is_read = io::stderr().is_terminal();
    let silence = if is_read {
        PROGRESS_DELAY
    } else {
        PROGRESS_DELAY_NO_TTY
    };
    let mut work = pin!(work);
    let mut remind = interval_at(Instant::now() + silence, PROGRESS_INTERVAL);
    let mut is_reported = false;
    loop {
        tokio::select! {
            output = &mut work => return output,
            _ = remind.tick(), if is_read || !is_reported => {
                is_reported = true;
                eprint(&format!("{} ...\n", what_for()));
            }
        }
    }
}
