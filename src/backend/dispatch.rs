//! One call on its way through a server's gate, breaker and connection, and once more where that is
//! safe.

mod client_subscriptions;
pub(super) mod connection_pool;
pub(super) mod fair_limiter;
pub(super) mod replicas;
pub(super) mod selection;
pub(super) mod stats;
pub(super) mod tool_headers;

use std::{borrow::Cow, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Backend, BackendError, ServerState,
    call_health::CallHealth,
    instance::{
        Connection, Instance, InstancePhase, breaker::BreakerGuard, handshake,
        identity::InstanceIdentity,
    },
    link::{Caller, Deadlines, Exchange},
    state_machine::ServerEvent,
};
use crate::{
    catalog::HeaderParam,
    config::{Server, Transport},
    governance::{Admitted, redact_name},
    mcp::{Era, LogFilter, Method, Outcome, Raw, Revision, meta},
    session::{Call, Client, Session, bridge},
};
use connection_pool::ConnectionPool;
use fair_limiter::CallPermit;
use selection::{
    ConnectionRequest, RECONNECT_POLL_INTERVAL, RECONNECT_POLLS_MAX, SelectedConnection,
};
use stats::CountedCall;

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    /// Its result or error.
    pub outcome: Outcome,
    /// The revision it speaks.
    pub revision: Revision,
    /// Whether it knows one agent alone, so that others know other things by the same names.
    pub is_agent_specific: bool,
}

/// That a server gave no answer.
#[derive(Debug)]
pub struct CallError {
    /// Why.
    pub failure: BackendError,
    /// Whether the call may have reached the server.
    pub delivered: bool,
    /// Where the caller's own connection stood then, where it has one; else the server.
    pub state: Option<ServerState>,
    /// Whether there was no connection for it.
    pub(super) was_unreachable: bool,
}

impl CallError {
    /// A failure before anything was sent.
    pub(super) fn before_send(failure: BackendError) -> Self {
        Self {
            failure: failure.into_not_sent(),
            delivered: false,
            state: None,
            was_unreachable: true,
        }
    }

    /// A failure of the exchange itself.
    fn during_exchange(failure: BackendError) -> Self {
        Self {
            delivered: failure.may_have_arrived(),
            failure,
            state: None,
            was_unreachable: false,
        }
    }

    /// That a call failed as `first`, was sent once more, and failed as `second`: what it may have
    /// done, it may have done at either time.
    pub(super) fn after_retry(first: BackendError, second: BackendError) -> Self {
        if !first.may_have_arrived() {
            return Self::during_exchange(second);
        }
        if second.is_retryable() {
            // Nothing came of the second attempt: whoever heard of it alone would make the call again.
            return Self::during_exchange(first);
        }
        Self {
            delivered: true,
            failure: second,
            was_unreachable: false,
            state: None,
        }
    }
}

impl Backend {
    /// What a call that ended with `outcome` says of our credential where `identity` is.
    fn note_credential_result<T>(
        &self,
        identity: &InstanceIdentity,
        outcome: &Result<T, CallError>,
    ) {
        match outcome {
            Ok(_) if identity.state_machine.state().lacks_credential() => {
                self.connector.shared.note_credential_accepted(identity);
            }
            Err(CallError {
                failure:
                    refusal @ (BackendError::NeedsSignIn { .. }
                    | BackendError::TokenRefused { .. }
                    | BackendError::Unauthorized { .. }),
                ..
            }) => {
                let event = ServerEvent::Refused.or_refused(refusal);
                let reason = Some(refusal.to_string());
                identity.state_machine.apply(event, reason);
            }
            Ok(_) | Err(_) => {}
        }
    }

    pub(super) async fn call(&self, admitted: &Admitted) -> Result<Answer, CallError> {
        self.call_with_waited(Duration::ZERO, admitted).await
    }

    /// Takes a call of whose time `waited` is gone.
    pub(super) async fn call_with_waited(
        &self,
        waited: Duration,
        admitted: &Admitted,
    ) -> Result<Answer, CallError> {
        // A listen stream is no call that a stop should wait for.
        if admitted.routed().call.method == Method::Listen {
            return self.call_without_breaker(admitted, waited).await;
        }
        let (_seat, waited) = match self.limiter.try_acquire() {
            Some(seat) => (seat, waited),
            None => Box::pin(self.acquire_permit(admitted)).await?,
        };
        let start = Instant::now();
        let running = CountedCall::start(&self.stats, start);
        let mut outcome = self.call_with_breaker(admitted, waited, start).await;
        // Of replicas each has its own.
        if self.replicas.is_none() {
            // Where a caller's own headers or token went, what is refused may be those.
            let client = &admitted.routed().call.client;
            if self.forwarded_headers(client).is_none() && !self.has_token_per_agent() {
                self.note_credential_result(&self.connector.shared.identity, &outcome);
            }
            if let Err(unanswered) = &mut outcome {
                unanswered.state = self.dedicated_state(&admitted.routed().call.client);
            }
        }
        running.finish(outcome.is_ok());
        outcome
    }

    /// Attempts a call where the breaker lets it.
    async fn call_with_breaker(
        &self,
        admitted: &Admitted,
        waited: Duration,
        start: Instant,
    ) -> Result<Answer, CallError> {
        if let Some(replicas) = &self.replicas {
            // Each of them has a breaker of its own.
            return Box::pin(replicas.call(admitted, waited)).await;
        }
        let guard = self.acquire_breaker(&admitted.routed().call.client, start)?;
        let outcome = self.attempt(admitted, waited, start).await;
        let health = outcome
            .as_ref()
            .map_or_else(|error| self.health_after(error), |_| CallHealth::Success);
        for changed in guard.finish(health) {
            let last = outcome.as_ref().err();
            changed.log(&self.name, last.map(|unanswered| &unanswered.failure));
        }
        outcome
    }

    /// The way past the breaker for a call of `client` that begins at `start`.
    fn acquire_breaker<'c>(
        &self,
        client: &'c Client,
        start: Instant,
    ) -> Result<BreakerGuard<'_, 'c>, CallError> {
        self.breaker
            .acquire(self.breaker_caller(client), start)
            .map_err(|failure| {
                if self.breaker.is_unreachable() {
                    // No call finds out whether the server is there again: a check does, or an attempt.
                    self.connector.shared.reconnect.check_catalog();
                    self.catalog.retry_now();
                }
                CallError::before_send(failure)
            })
    }

    /// What a failed call says about the server. Without a connection for the call it is unreachable if the
    /// catalog's connection is down as well; else the caller's connection ended for reasons of its own.
    fn health_after(&self, error: &CallError) -> CallHealth {
        let health = CallHealth::of(&error.failure, error.was_unreachable);
        let is_down = || match self.catalog.phase() {
            InstancePhase::Connecting | InstancePhase::Down { .. } => true,
            InstancePhase::Asleep(_) | InstancePhase::Ready(_) => false,
        };
        if health == CallHealth::Error && error.was_unreachable && is_down() {
            CallHealth::Unreachable
        } else {
            health
        }
    }

    /// Attempts what no breaker stops.
    async fn call_without_breaker(
        &self,
        admitted: &Admitted,
        waited: Duration,
    ) -> Result<Answer, CallError> {
        match &self.replicas {
            None => self.attempt(admitted, waited, Instant::now()).await,
            Some(replicas) => Box::pin(replicas.call(admitted, waited)).await,
        }
    }

    /// A seat at the gate, and how long the call waited for it.
    async fn acquire_permit(
        &self,
        admitted: &Admitted,
    ) -> Result<(CallPermit, Duration), CallError> {
        // Whom the breaker would not let through does not wait for that.
        let start = Instant::now();
        let call = &admitted.routed().call;
        drop(self.acquire_breaker(&call.client, start)?);
        let patience = self.call_idle_timeout(admitted);
        let latency = self.stats.latency();
        let entry = self
            .limiter
            .acquire(call.client.agent.id, patience, &call.cancel, latency);
        let seat = entry.await.map_err(CallError::before_send)?;
        Ok((seat, start.elapsed()))
    }

    async fn attempt(
        &self,
        admitted: &Admitted,
        waited: Duration,
        start: Instant,
    ) -> Result<Answer, CallError> {
        let call = &admitted.routed().call;
        let mut limits = self.deadlines(admitted, waited);
        let (patience, key) = (limits.idle, limits.idle_key);
        if call.method == Method::Listen {
            limits = handshake::UNBOUNDED;
        }
        let request = ConnectionRequest {
            client: &call.client,
            method: &call.method,
            until: start + patience,
        };
        // What is rare is boxed: a future is as large as its largest branch, and is moved with it.
        let mut served = if let Some(served) = self.try_connection(&call.client) {
            served
        } else {
            let connection = self.connection(request);
            let connection = Box::pin(wait_for_connection(call, (patience, key), connection)).await;
            connection.map_err(CallError::before_send)?
        };
        check_era_support(call, &served.connection).map_err(CallError::before_send)?;
        let wanted = call.client.logs(call.log_filter);
        if served.connection.lacks_log_level(wanted) {
            Box::pin(request_log_level(&served.connection, wanted)).await;
        }
        served.note_call();
        self.note_use(&call.client);
        let outcome = self.exchange(admitted, &served.connection, limits).await;
        // No connection comes back while the gateway stops.
        let is_over = || self.connector.tasks.stop_token().is_cancelled();
        let outcome = match outcome {
            Err(failure) if self.may_retry(admitted, &failure) && !is_over() => {
                let left = limits.minus_elapsed(start.elapsed());
                self.log_retry(admitted, &failure);
                let again = match Box::pin(self.retry_call(admitted, served, left)).await {
                    Ok(again) => again,
                    Err(why) if failure == BackendError::SessionGone => {
                        return Err(CallError::before_send(why));
                    }
                    // What was sent may have had its effect: the caller is told of that.
                    Err(_) => return Err(CallError::during_exchange(failure)),
                };
                served = again.0;
                again
                    .1
                    .map_err(|second| CallError::after_retry(failure, second))
            }
            outcome => outcome.map_err(CallError::during_exchange),
        };
        served.instance.touch();
        if served.instance.identity.shared_by.is_some() {
            self.note_credential_result(&served.instance.identity, &outcome);
        }
        let outcome = outcome?;
        served.note_answer();
        note_subscription(admitted, &outcome, &served.instance);
        let revision = served.connection.hello.revision;
        let outcome = bridge::translate_outcome(&call.method, outcome, &call.client, revision);
        Ok(Answer {
            outcome,
            revision,
            is_agent_specific: self.serves_one_agent(&served),
        })
    }

    /// Tells the log why a call is sent once more: who reads the server's own finds it there twice. The
    /// fields are those of the line of the call.
    fn log_retry(&self, admitted: &Admitted, failure: &BackendError) {
        let (call, subject) = (&admitted.routed().call, &admitted.routed().subject);
        let tool = subject
            .as_ref()
            .map(|subject| redact_name(&subject.original));
        tracing::info!(
            invocation = %admitted.invocation(),
            agent = call.client.agent.name,
            server = self.name.as_str(),
            method = &*redact_name(call.method.as_str()),
            tool = tool.as_deref(),
            failure = &*failure.to_string(),
            "retrying a call"
        );
    }

    /// Whether what answered is a program that serves one agent. A server behind a URL is one and the
    /// same for all, however many connections there are.
    fn serves_one_agent(&self, served: &SelectedConnection) -> bool {
        let callers = served.instance.identity.shared_by.as_ref();
        let is_of_one = callers.is_some_and(|callers| callers.agent.is_some());
        is_of_one && matches!(self.config().transport, Transport::Stdio(_))
    }

    /// Whether a call that failed is sent once more: where the server cannot have begun it, since it
    /// no longer knew the session; or where doing it twice is like doing it once. Of replicas another
    /// takes it, which need not be waited for.
    fn may_retry(&self, admitted: &Admitted, failure: &BackendError) -> bool {
        let is_lost = matches!(failure, BackendError::Lost { .. });
        let is_alone = !self.connector.shared.is_replica();
        *failure == BackendError::SessionGone || is_lost && is_alone && is_idempotent(admitted)
    }

    /// Sends a call once more within what is `left` of its time, on a connection that stands. A server
    /// behind a URL that starts again has one all the time, and is looked for a few times.
    async fn retry_call(
        &self,
        admitted: &Admitted,
        mut served: SelectedConnection,
        left: Deadlines,
    ) -> Result<(SelectedConnection, Result<Outcome, BackendError>), BackendError> {
        let call = &admitted.routed().call;
        let start = Instant::now();
        let patience = left.idle.min(self.call_idle_timeout(admitted));
        let mut looks = 0..RECONNECT_POLLS_MAX;
        let mut is_renewed = false;
        loop {
            if served.connection.closed().is_cancelled() {
                let request = ConnectionRequest {
                    client: &call.client,
                    method: &call.method,
                    until: start + patience,
                };
                served = wait_for_connection(
                    call,
                    (patience, left.idle_key),
                    self.reconnect(served, request),
                )
                .await?;
            }
            check_era_support(call, &served.connection)?;
            served.note_call();
            let left = left.minus_elapsed(start.elapsed());
            let outcome = self.exchange(admitted, &served.connection, left).await;
            let goes_on = match &outcome {
                Err(BackendError::Connect { .. }) => looks.next().is_some(),
                // It has started anew. Whoever denies a new session denies the next.
                Err(BackendError::SessionGone) => !std::mem::replace(&mut is_renewed, true),
                Ok(_) | Err(_) => false,
            };
            if !goes_on {
                return Ok((served, outcome));
            }
            tokio::time::sleep(RECONNECT_POLL_INTERVAL).await;
        }
    }

    /// Tells legacy servers that are at work for `session` of the log messages it wants from now on,
    /// where they do not send them yet. Others hear of it before the next call.
    pub(super) fn update_log_level(&self, session: &Arc<Session>) {
        if let Some(replicas) = &self.replicas {
            let replicas = replicas.backends();
            return replicas.for_each(|replica| replica.update_log_level(session));
        }
        let mut instances: Vec<_> = self.lock().values().map(Arc::clone).collect();
        instances.push(Arc::clone(&self.catalog));
        instances.extend(self.pool.iter().flat_map(ConnectionPool::all));
        for instance in instances {
            if let InstancePhase::Ready(connection) = instance.phase()
                && connection.link.requests.serves(session)
                && connection.lacks_log_level(session.logs())
            {
                let wanted = session.logs();
                let ask = async move { request_log_level(&connection, wanted).await };
                instance.identity.tasks.spawn("log level", ask);
            }
        }
    }

    /// Sends a call, and once more where its server refuses it for headers that its tool no longer has.
    async fn exchange(
        &self,
        admitted: &Admitted,
        connection: &Arc<Connection>,
        limits: Deadlines,
    ) -> Result<Outcome, BackendError> {
        let start = Instant::now();
        let sent = admitted.routed().header_params();
        let outcome = self
            .exchange_with_headers(sent, admitted, connection, limits)
            .await;
        if !connection.link.refuses_headers(&outcome) {
            return outcome;
        }
        let left = limits.minus_elapsed(start.elapsed());
        let wanted = Box::pin(self.refreshed_headers(admitted, connection, left)).await;
        let left = limits.minus_elapsed(start.elapsed());
        match wanted {
            Some(wanted) if !left.are_expired() => {
                let tool = admitted.routed().tool.as_ref();
                tracing::info!(
                    invocation = %admitted.invocation(),
                    agent = admitted.routed().call.client.agent.name,
                    server = self.name.as_str(),
                    tool = tool.map(|tool| &*tool.original),
                    "retrying a call with updated headers"
                );
                let again = self.exchange_with_headers(&wanted, admitted, connection, left);
                Box::pin(again).await
            }
            Some(_) | None => outcome,
        }
    }

    /// The headers that the tool of a call wants, where its server lists others now; waits for that no
    /// longer than the client does.
    async fn refreshed_headers(
        &self,
        admitted: &Admitted,
        connection: &Arc<Connection>,
        limits: Deadlines,
    ) -> Option<Vec<HeaderParam>> {
        let routed = admitted.routed();
        let tool = routed.tool.as_ref()?;
        let wanted = tokio::select! {
            biased;
            wanted = self.current_headers(&tool.original, connection) => wanted,
            () = routed.call.cancel.cancelled() => None,
            () = tokio::time::sleep(limits.idle.min(limits.total)) => None,
        };
        wanted.filter(|wanted| wanted != routed.header_params())
    }

    async fn exchange_with_headers(
        &self,
        headers: &[HeaderParam],
        admitted: &Admitted,
        connection: &Connection,
        limits: Deadlines,
    ) -> Result<Outcome, BackendError> {
        let routed = admitted.routed();
        let call = &routed.call;
        let params = bridge::translate_request(
            routed.params.as_ref(),
            &call.client,
            call.log_filter,
            connection.era(),
        );
        let header_params = match &params {
            Some(params) if connection.era() == Era::Modern => {
                let value =
                    |param: &HeaderParam| Some((param.header.clone(), param.header_text(params)?));
                headers.iter().filter_map(value).collect()
            }
            Some(_) | None => Vec::new(),
        };
        self.stats.note_sent(params.as_deref());
        let caller = Caller {
            invocation: admitted.invocation(),
            client: Arc::clone(&call.client),
            events: call.events.clone(),
            logs: call.log_filter,
            progress: call.progress.clone(),
            uris: routed.uris.clone(),
            scanners: admitted.scanners().cloned(),
        };
        let exchange = Exchange {
            method: &call.method,
            params,
            may_name_token: call
                .params
                .as_ref()
                .is_some_and(meta::may_contain_progress_token),
            tool: routed.tool.as_deref(),
            caller: Some(caller),
            header_params,
            correlation: call.correlation.as_deref(),
            limits,
            cancel: Cow::Borrowed(&call.cancel),
        };
        let outcome = connection.link.request(&exchange).await;
        if let Ok(outcome) = &outcome {
            self.stats.note_received(outcome);
        }
        outcome
    }

    /// How long a call may take without progress: what its tool says, else what the server says.
    pub(super) fn call_idle_timeout(&self, admitted: &Admitted) -> Duration {
        configured_idle_timeout(admitted, &self.config())
    }

    /// How long a call of a tool that may have one of these names may take without progress.
    pub fn idle_timeout_of_tools<'t>(&self, mut tools: impl Iterator<Item = &'t str>) -> Duration {
        let config = self.config();
        let timeouts = &config.tools.timeout;
        let known = tools.find_map(|tool| timeouts.get(tool));
        known.copied().unwrap_or(config.timeout)
    }

    /// The deadlines of a call that has `waited` already.
    fn deadlines(&self, admitted: &Admitted, waited: Duration) -> Deadlines {
        let config = self.config();
        let idle = configured_idle_timeout(admitted, &config);
        let total = config.max_total_timeout.max(idle);
        Deadlines {
            idle,
            idle_key: match tool_idle_timeout(admitted, &config) {
                Some(_) => "tools.timeout",
                None => "timeout",
            },
            total: total.saturating_sub(waited),
        }
    }
}

/// How long a call may take without progress by what the config says of its server.
fn configured_idle_timeout(admitted: &Admitted, config: &Server) -> Duration {
    tool_idle_timeout(admitted, config).unwrap_or(config.timeout)
}

/// The same where the config says it of the tool.
fn tool_idle_timeout(admitted: &Admitted, config: &Server) -> Option<Duration> {
    let tool = admitted.routed().tool.as_ref()?;
    config.tools.timeout.get(&*tool.original).copied()
}

/// Whether a call may be made twice, as its method or its tool says.
pub(super) fn is_idempotent(admitted: &Admitted) -> bool {
    let routed = admitted.routed();
    match &routed.call.method {
        Method::ToolsCall => routed
            .tool
            .as_ref()
            .is_some_and(|tool| tool.hints.read_only || tool.hints.idempotent),
        Method::Complete
        | Method::Discover
        | Method::Ping
        | Method::PromptsGet
        | Method::PromptsList
        | Method::ResourcesList
        | Method::ResourcesRead
        | Method::ResourcesSubscribe
        | Method::ResourcesUnsubscribe
        | Method::SetLevel
        | Method::TemplatesList
        | Method::ToolsList => true,
        Method::Initialize | Method::Listen | Method::Other(_) => false,
    }
}

/// How long the first call waits for a server to take its client's log level.
const SET_LEVEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits `after` for a connection, as `key` says, while the client does.
async fn wait_for_connection(
    call: &Call,
    (after, key): (Duration, &'static str),
    connection: impl Future<Output = Result<SelectedConnection, BackendError>>,
) -> Result<SelectedConnection, BackendError> {
    tokio::select! {
        biased;
        connection = connection => connection,
        () = call.cancel.cancelled() => Err(BackendError::Cancelled { is_sent: false }),
        () = tokio::time::sleep(after) => Err(BackendError::Timeout {
            after,
            key: Some(key),
        }),
    }
}

/// Whether a server like the one of the connection has what is asked for.
fn check_era_support(call: &Call, connection: &Connection) -> Result<(), BackendError> {
    let revision = connection.hello.revision;
    let barrier = bridge::check_supported(&call.method, &call.client, revision);
    barrier.map_or(Ok(()), |crossing| {
        Err(BackendError::UnsupportedInEra(crossing))
    })
}

/// Asks a legacy server for the log messages that are `wanted`, where nobody did meanwhile. What others did
/// not ask for is filtered on the way to them.
async fn request_log_level(connection: &Connection, wanted: LogFilter) {
    let requests = &connection.link.requests;
    let ask = async {
        let _turn = requests.levels.acquire_turn().await;
        let level = requests.levels.next_request(wanted)?;
        let params = Raw::from_value(&serde_json::json!({ "level": level.as_str() }));
        let request = handshake::control_exchange(&Method::SetLevel, Some(params));
        Some(connection.link.request(&request).await)
    };
    let answer = tokio::time::timeout(SET_LEVEL_TIMEOUT, ask).await;
    tracing::debug!(server = %requests.settings.server, ?answer, "log level set");
}

/// Notes what the server of a legacy connection has been subscribed to, or not any longer.
fn note_subscription(admitted: &Admitted, outcome: &Outcome, instance: &Instance) {
    let routed = admitted.routed();
    let subscribes = routed.call.method == Method::ResourcesSubscribe;
    if !subscribes && routed.call.method != Method::ResourcesUnsubscribe {
        return;
    }
    let uri = routed.params.as_ref().and_then(|params| params.get("uri"));
    let Some(uri) = uri.as_ref().and_then(Raw::as_text) else {
        return;
    };
    match (subscribes, outcome) {
        (true, Ok(_)) => drop(instance.add_subscription(&uri)),
        // One that is refused ends no other: the server may have been asked for somebody else before.
        (true, Err(_)) => {}
        (false, Ok(_) | Err(_)) => instance.remove_subscription(&uri),
    }
}
