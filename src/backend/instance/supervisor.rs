//! Keeps connections to one server alive: connects, waits, backs off, connects again.
//!
//! An [`Instance`] is one connection as its users know it: a phase they can wait on. The catalog's
//! instance is kept up for ever, asleep while nobody uses it where that is wanted; others start on
//! the first call and end when idle.

use std::{future::ready, pin::pin, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use tokio::{
    sync::{OwnedSemaphorePermit, broadcast::error::RecvError},
    time::{Instant, sleep, timeout},
};

use super::{
    AbandonGuard, Connection, Instance, InstancePhase,
    connector::{BackendConnector, ConnectSpec},
    handshake, health,
    reconnect::{RETRIES_AWAITED_MAX, StartQuotaKey},
};
use crate::{
    backend::{
        BackendError, credential::CredentialSource, link::pending::PendingRequests,
        live_config::LiveConfig, state_machine::ServerEvent,
    },
    config::Isolation,
    mcp::{Era, Method, Raw},
};

/// Resources that are subscribed to again at a time: one that is slow holds up few others.
const RENEWALS_MAX: usize = 16;
/// The reason of a server that sleeps.
const ASLEEP_REASON: &str = "idle; the next call starts it";
/// How long the calls of a session that ended may take to be cancelled, before their connection ends.
const CANCEL_GRACE: Duration = Duration::from_millis(500);
/// Pause between looks whether an idle connection can end.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl BackendConnector {
    /// Keeps the catalog's instance up for as long as the gateway runs.
    pub(crate) async fn supervise_catalog(self: Arc<Self>, instance: Arc<Instance>) {
        let _down = AbandonGuard(&instance);
        let mut was_connected = false;
        // Who led to the next attempt.
        let mut start_quota_key = None;
        while !instance.stop.is_cancelled() {
            instance.retry.note_attempt();
            instance.set_phase(InstancePhase::Connecting);
            let wanted = self.catalog_spec(&instance, start_quota_key.take());
            let start = Instant::now();
            let attempt = tokio::select! {
                attempt = self.connect(&wanted) => attempt,
                () = instance.stop.cancelled() => return,
            };
            let (failure, event) = match attempt {
                Ok(connection) => {
                    was_connected = true;
                    let up = Instant::now();
                    let Some(failure) = self.serve_catalog(&instance, connection).await else {
                        continue;
                    };
                    self.count_lost(&instance, &wanted, up.elapsed());
                    (failure, ServerEvent::Lost)
                }
                Err(failure @ BackendError::NeedsSignIn { .. }) => {
                    self.wait_signed_in(&instance, failure).await;
                    continue;
                }
                Err(failure) => {
                    self.count_failed_attempt(&instance, &wanted, start);
                    let event = ServerEvent::Unreachable.or_refused(&failure);
                    (failure, event)
                }
            };
            if instance.stop.is_cancelled() {
                return;
            }
            // First of all: who sees that it is down may ask where the server stands.
            self.shared
                .state_machine()
                .apply(event, Some(failure.to_string()));
            let held_back = self.shared.reconnect.start_limit_error(None);
            let is_awaited = was_connected
                && failure.is_transient()
                && self.are_retries_awaited(&instance)
                && held_back.is_none();
            // A server that has only forgotten us is there: callers wait for the greeting.
            instance.set_phase(if is_awaited || failure == BackendError::SessionGone {
                InstancePhase::Connecting
            } else {
                let failure = held_back.unwrap_or_else(|| failure.clone());
                InstancePhase::Down { failure }
            });
            let retry_in = round_for_display(self.retry_in(&instance));
            tracing::debug!(server = %self.server, %failure, ?retry_in, "server is down");
            tokio::select! {
                led = self.wait_before_retry(&instance) => start_quota_key = led,
                () = instance.stop.cancelled() => return,
            }
            self.shared.count_restart(&instance.identity);
        }
    }

    /// Which connection the catalog's instance has.
    fn catalog_spec(
        &self,
        instance: &Instance,
        start_quota_key: Option<StartQuotaKey>,
    ) -> ConnectSpec {
        ConnectSpec {
            era: self.config().era,
            capabilities: Raw::from_static("{}"),
            session: None,
            is_for_lists: false,
            forwarded: None,
            token_owner: self.catalog_token_owner(),
            awaits_roots: false,
            identity: Arc::clone(&instance.identity),
            start_quota_key,
        }
    }

    /// Serves the catalog's connection until it ends; says why it did, unless it slept since then
    /// and was woken, or is being stopped.
    async fn serve_catalog(
        &self,
        instance: &Instance,
        connection: Arc<Connection>,
    ) -> Option<BackendError> {
        self.shared.forget_eras();
        self.shared.note_speaks(connection.era());
        let reason = "listing the server".to_owned();
        self.shared
            .state_machine()
            .apply(ServerEvent::Greeted, Some(reason));
        let requests = Arc::clone(&connection.link.requests);
        self.shared.note_start(&requests);
        self.renew_subscriptions(instance, &connection);
        let slept = self.serve_or_sleep(instance, connection).await;
        (!slept).then(|| requests.lost_error())
    }

    /// Waits until there is a token for the lists of the server, or the config has changed. Calls meanwhile are told
    /// of `missing`; nothing is tried, and nothing counts as failed.
    async fn wait_signed_in(&self, instance: &Instance, missing: BackendError) {
        let (event, reason) = (ServerEvent::SignInNeeded, Some(missing.to_string()));
        self.shared.state_machine().apply(event, reason);
        let mut rewrites = self.live_config.updates();
        let Some(grants) = &self.grants else {
            return;
        };
        let mut changes = grants.subscribe_changes();
        let credential = CredentialSource::new(grants, self.catalog_token_owner(), &self.shared);
        loop {
            let failure = missing.clone();
            instance.set_phase(InstancePhase::Down { failure });
            if !matches!(
                credential.check().await,
                Err(BackendError::NeedsSignIn { .. })
            ) {
                return;
            }
            tokio::select! {
                change = changes.recv() => if let Err(RecvError::Closed) = change {
                    return;
                },
                () = rewrites.changed() => return,
                // Whoever waits is told again.
                () = instance.retry.hurried() => {}
                () = instance.stop.cancelled() => return,
            }
        }
    }

    /// Time until the next attempt that nobody asks for.
    fn retry_in(&self, instance: &Instance) -> Duration {
        let backoff = instance.retry.remaining(self.config().retry.max);
        backoff.max(self.shared.reconnect.start_wait(None))
    }

    /// Waits until the next attempt of the catalog's instance: until its pause is over, or a call triggers
    /// it. Who led to it. A call that waits is told of the attempt, or why there is none yet.
    async fn wait_before_retry(&self, instance: &Instance) -> Option<StartQuotaKey> {
        let mut rewrites = self.live_config.updates();
        loop {
            let wait = self.retry_in(instance);
            if wait.is_zero() {
                return None;
            }
            let is_backing_off = instance.retry.due_at().is_some();
            tokio::select! {
                () = sleep(wait) => {}
                () = rewrites.changed() => {}
                () = instance.retry.reached(), if is_backing_off => {}
                () = instance.retry.hurried() => {
                    let callers = StartQuotaKey::Callers;
                    let Some(failure) = self.shared.reconnect.start_limit_error(Some(&callers)) else {
                        return Some(callers);
                    };
                    instance.set_phase(InstancePhase::Down { failure });
                }
            }
        }
    }

    /// Whether calls wait for the next attempt, as far as the failures before it say: whoever calls while a
    /// server is restarted does not notice.
    fn are_retries_awaited(&self, instance: &Instance) -> bool {
        !self.config().grace.is_zero() && instance.retry.failures() <= RETRIES_AWAITED_MAX
    }

    /// Counts an attempt that began at `start` and failed.
    fn count_failed_attempt(&self, instance: &Instance, wanted: &ConnectSpec, start: Instant) {
        self.shared.count_failed_start(&instance.identity);
        let quota_key = wanted.start_quota_key.as_ref();
        self.shared.reconnect.note_failed_start(quota_key);
        let retry = self.config().retry;
        instance.retry.note_failure(retry, start, Duration::ZERO);
    }

    /// Counts the loss of a connection that had lasted for `up`.
    fn count_lost(&self, instance: &Instance, wanted: &ConnectSpec, up: Duration) {
        let retry = self.config().retry;
        if up < retry.stable_after {
            let quota_key = wanted.start_quota_key.as_ref();
            self.shared.reconnect.note_failed_start(quota_key);
        }
        instance.retry.note_failure(retry, Instant::now(), up);
    }

    /// Serves until the connection ends. Where its program may sleep it does so once nobody uses
    /// it, until a call wakes it or the config does; whether that happened.
    async fn serve_or_sleep(&self, instance: &Instance, connection: Arc<Connection>) -> bool {
        let requests = Arc::clone(&connection.link.requests);
        let hello = Arc::new(connection.hello.clone());
        tokio::select! {
            _ = self.serve(instance, connection) => return false,
            () = self.wait_unused(instance, &requests) => {}
        }
        let reason = ASLEEP_REASON.to_owned();
        self.shared
            .state_machine()
            .apply(ServerEvent::FellAsleep, Some(reason));
        tokio::select! {
            () = instance.sleep(hello) => {}
            () = self.sleep_disabled() => {}
            () = instance.stop.cancelled() => {}
        }
        true
    }

    /// Completes when the config says that it does not sleep.
    async fn sleep_disabled(&self) {
        let mut rewrites = self.live_config.updates();
        while self.config().sleeps {
            rewrites.changed().await;
        }
    }

    /// Whether no client is ever served by the catalog's program, which then ends once it was listed.
    fn is_for_lists_only(&self) -> bool {
        self.server.is_of_agent() && self.config().isolation == Isolation::Session
    }

    /// Ends the link once no client has used it for as long as it is kept; completes then. What we
    /// ask ourselves is no use of it, but is waited for.
    async fn wait_unused(&self, instance: &Instance, requests: &PendingRequests) {
        instance.touch();
        let mut rewrites = self.live_config.updates();
        loop {
            if !self.config().sleeps {
                rewrites.changed().await;
                continue;
            }
            if !self.is_for_lists_only() {
                idle_timeout(instance, &self.live_config).await;
            }
            let sleeps = self.config().sleeps;
            if sleeps && self.shared.are_lists_read() && requests.close_if_unused() {
                return;
            }
            sleep(IDLE_POLL_INTERVAL).await;
        }
    }

    /// Keeps an instance beside the catalog's until it fails, ends, or is idle for long enough.
    pub(crate) async fn supervise_on_demand(
        self: Arc<Self>,
        instance: Arc<Instance>,
        mut wanted: ConnectSpec,
    ) {
        let _down = AbandonGuard(&instance);
        let identity = &*instance.identity;
        let held_back = self
            .shared
            .reconnect
            .start_limit_error(wanted.start_quota_key.as_ref());
        if let Some(failure) = held_back {
            // Of one that sleeps nothing was lost.
            if !identity.state_machine.is_asleep() {
                let reason = Some(failure.to_string());
                identity
                    .state_machine
                    .apply(ServerEvent::Unreachable, reason);
            }
            return instance.abandon(failure);
        }
        let mut turn = None;
        loop {
            if identity.state_machine.is_down() {
                self.shared.count_restart(identity);
            }
            identity.state_machine.apply(ServerEvent::Started, None);
            instance.retry.note_attempt();
            let start = Instant::now();
            let attempt = tokio::select! {
                attempt = self.connect(&wanted) => attempt,
                () = instance.stop.cancelled() => return,
            };
            let ending = match attempt {
                Ok(connection) => {
                    drop(turn.take());
                    self.serve_instance(&instance, &wanted, connection).await
                }
                Err(failure @ BackendError::NeedsSignIn { .. }) if !instance.is_busy() => {
                    // Nothing failed: somebody has to sign in.
                    let (event, reason) = (ServerEvent::SignInNeeded, Some(failure.to_string()));
                    identity.state_machine.apply(event, reason);
                    return instance.abandon(failure);
                }
                Err(failure) => self.note_connect_failed(&instance, &wanted, failure, start),
            };
            // Whoever is next knows what came of it.
            drop(turn.take());
            let InstanceEnd::Lost { failure, forgotten } = ending else {
                return;
            };
            // A server that has only forgotten us is there; a lost one is waited for, since
            // clients are subscribed to what it has.
            let is_awaited = forgotten || instance.is_busy() && !self.is_era_mismatch(&failure);
            if instance.stop.is_cancelled() || !is_awaited {
                return instance.abandon(failure);
            }
            let at_once = self.set_lost(&instance, failure, forgotten);
            tokio::select! {
                next = self.wait_before_instance_retry(&instance, at_once) => (wanted.start_quota_key, turn) = next,
                () = session_ended(&wanted) => return,
                () = instance.stop.cancelled() => return,
            }
            instance.set_phase(InstancePhase::Connecting);
        }
    }

    /// Shows that the connection of an instance was lost, or could not be made, and that another will be:
    /// calls wait for that, as long as there were few failures. One that nobody waits for is down. Whether
    /// it is made at once, as where the server has only forgotten us, but not on and on.
    fn set_lost(&self, instance: &Instance, failure: BackendError, forgotten: bool) -> bool {
        let quota_key = instance.identity.start_quota_key();
        let held_back = self.shared.reconnect.start_limit_error(quota_key);
        let is_awaited = self.are_retries_awaited(instance)
            && (forgotten || failure.is_transient() && instance.retry.is_wanted())
            && held_back.is_none();
        let at_once = forgotten && !instance.is_backing_off();
        instance.set_phase(if at_once || is_awaited {
            InstancePhase::Connecting
        } else {
            let failure = held_back.unwrap_or(failure);
            InstancePhase::Down { failure }
        });
        at_once
    }

    /// Waits until another connection is to be made to what clients are subscribed to: once a call wants
    /// it, else once the server is back where its state is known. Whose that is, and its turn where it has
    /// one: those who only listen leave starts to those who call.
    async fn wait_before_instance_retry(
        &self,
        instance: &Instance,
        at_once: bool,
    ) -> (Option<StartQuotaKey>, Option<OwnedSemaphorePermit>) {
        instance.retry.due().await;
        let policy = &self.shared.reconnect;
        tokio::select! {
            biased;
            () = ready(()), if at_once => {}
            () = instance.retry.wanted() => {}
            turn = policy.listener_start_permit(self.shared.state_machine()) => {
                return (Some(StartQuotaKey::Listeners), Some(turn));
            }
        }
        let start_quota_key = instance.identity.start_quota_key();
        let wait = policy.start_wait(start_quota_key);
        if let Some(failure) = policy.start_limit_error(start_quota_key) {
            // Whoever wants it is told.
            instance.set_phase(InstancePhase::Down { failure });
        }
        sleep(wait).await;
        (start_quota_key.cloned(), None)
    }

    /// Whether `failure` shows that clients cannot be subscribed there any more. What stands before a
    /// server may refuse the same while that is away.
    fn is_era_mismatch(&self, failure: &BackendError) -> bool {
        failure.refuses_era() && !self.shared.speaks(Era::Legacy)
    }

    /// Notes that no connection could be made.
    fn note_connect_failed(
        &self,
        instance: &Instance,
        wanted: &ConnectSpec,
        failure: BackendError,
        start: Instant,
    ) -> InstanceEnd {
        let identity = &*instance.identity;
        self.count_failed_attempt(instance, wanted, start);
        if failure.is_transient() {
            self.shared.reconnect.note_suspicion(identity);
        }
        let event = ServerEvent::Unreachable.or_refused(&failure);
        identity
            .state_machine
            .apply(event, Some(failure.to_string()));
        InstanceEnd::Lost {
            failure,
            forgotten: false,
        }
    }

    /// Serves the connection of an instance beside the catalog's until it ends.
    async fn serve_instance(
        &self,
        instance: &Instance,
        wanted: &ConnectSpec,
        connection: Arc<Connection>,
    ) -> InstanceEnd {
        let identity = &*instance.identity;
        // Its start is no idle time.
        instance.touch();
        self.shared.note_speaks(connection.era());
        let reason = "the server has not been listed yet".to_owned();
        let reason = (!self.shared.is_listed()).then_some(reason);
        identity.state_machine.apply(ServerEvent::Greeted, reason);
        self.shared.note_instance_start();
        self.renew_subscriptions(instance, &connection);
        let up = Instant::now();
        let is_stopped = tokio::select! {
            is_stopped = self.serve(instance, Arc::clone(&connection)) => is_stopped,
            () = session_ended(wanted) => {
                // Nobody can wake it. Its calls are being cancelled.
                instance.stop.cancel();
                drop(timeout(CANCEL_GRACE, no_calls_in_flight(&connection.link.requests)).await);
                connection.end(self.end_reason("the session ended")).await;
                return InstanceEnd::Intended;
            }
            () = idle_timeout(instance, &self.live_config) => {
                identity.state_machine.apply(ServerEvent::FellAsleep, Some(ASLEEP_REASON.to_owned()));
                // New callers find another connection while this one says goodbye.
                instance.abandon(BackendError::SessionGone);
                connection.end("idle").await;
                return InstanceEnd::Intended;
            }
            never = self.shared.follow_listing(identity) => match never {},
        };
        if is_stopped {
            return InstanceEnd::Intended;
        }
        let failure = connection.link.requests.lost_error();
        identity
            .state_machine
            .apply(ServerEvent::Lost, Some(failure.to_string()));
        let forgotten = connection.link.requests.is_session_lost();
        if forgotten {
            let retry = self.config().retry;
            instance.retry.note_forgotten(retry, up.elapsed());
        } else {
            self.shared.reconnect.note_suspicion(identity);
            self.count_lost(instance, wanted, up.elapsed());
        }
        InstanceEnd::Lost { failure, forgotten }
    }

    /// Why a connection is ended: `reason`, unless all are.
    fn end_reason(&self, reason: &'static str) -> &'static str {
        if self.tasks.drain_token().is_cancelled() || self.tasks.stop_token().is_cancelled() {
            "the gateway is stopping"
        } else {
            reason
        }
    }

    /// Subscribes again to what clients subscribed to on an earlier connection. What was updated
    /// meanwhile nobody tells them: they are told that it may have been.
    fn renew_subscriptions(&self, instance: &Instance, connection: &Arc<Connection>) {
        let uris = instance.subscriptions();
        if uris.is_empty() || connection.era() == Era::Modern {
            return;
        }
        let (connection, limit) = (Arc::clone(connection), self.config().timeout);
        let (shared, id) = (Arc::clone(&self.shared), instance.id);
        instance
            .identity
            .tasks
            .spawn("renewed subscriptions", async move {
                let renew = async |uri: String| {
                    let params = Raw::from_value(&serde_json::json!({ "uri": uri }));
                    let request =
                        handshake::control_exchange(&Method::ResourcesSubscribe, Some(params));
                    let answer = timeout(limit, connection.link.request(&request)).await;
                    tracing::debug!(uri, ?answer, "resubscribed");
                    matches!(answer, Ok(Ok(Ok(_)))).then_some(uri)
                };
                let renewed = stream::iter(uris).map(renew);
                let renewed = renewed.buffer_unordered(RENEWALS_MAX);
                let renewed: Vec<String> = renewed.filter_map(ready).collect().await;
                // Nobody is told of what is not listed.
                shared.wait_lists_read(limit).await;
                shared.report_possible_updates(renewed, id).await;
            });
    }

    /// Serves until the connection ends; whether that is because the instance is stopped.
    async fn serve(&self, instance: &Instance, connection: Arc<Connection>) -> bool {
        instance.set_phase(InstancePhase::Ready(Arc::clone(&connection)));
        let identity = &*instance.identity;
        let watch =
            health::watch_until_dead(&connection, &self.live_config, &self.shared, identity);
        let mut death = pin!(watch);
        let signals = &connection.link.requests.signals;
        loop {
            tokio::select! {
                biased;
                // Who lost it may have stopped the instance before we look.
                () = connection.closed().cancelled() => {
                    return self.tasks.stop_token().is_cancelled();
                }
                () = instance.stop.cancelled() => {
                    connection.end(self.end_reason("stopping")).await;
                    return true;
                }
                reason = &mut death => {
                    connection.end(&reason).await;
                    return false;
                }
                noted = signals.take() => self.shared.handle_signals(noted, instance),
            }
        }
    }
}

/// Why an instance beside the catalog's serves no longer.
enum InstanceEnd {
    /// Its connection was lost, or could not be made.
    Lost {
        failure: BackendError,
        /// Whether its server is there and only knows us no more.
        forgotten: bool,
    },
    /// It was idle, or is stopped.
    Intended,
}

/// `delay` without more digits than anyone reads.
fn round_for_display(delay: Duration) -> Duration {
    let step = if delay < Duration::from_secs(1) {
        10
    } else {
        100
    };
    let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(millis.saturating_add(step / 2) / step * step)
}

/// Completes when the session ends whose own the connection is.
async fn session_ended(wanted: &ConnectSpec) {
    match &wanted.session {
        Some(session) => session.ended.cancelled().await,
        None => std::future::pending().await,
    }
}

/// Completes when no call is under way.
async fn no_calls_in_flight(requests: &PendingRequests) {
    while requests.in_flight() > 0 {
        sleep(CANCEL_GRACE / 50).await;
    }
}

/// Completes when nobody has used the instance for as long as the config says.
async fn idle_timeout(instance: &Instance, written: &LiveConfig) {
    let mut rewrites = written.updates();
    loop {
        let left = written
            .current()
            .idle_timeout
            .saturating_sub(instance.idle_for());
        if left.is_zero() && !instance.is_busy() {
            return;
        }
        tokio::select! {
            () = sleep(left.max(Duration::from_secs(1))) => {}
            () = rewrites.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_rounded_for_people() {
        let check = |micros: u64, expect: &str| {
            let shown = format!("{:?}", round_for_display(Duration::from_micros(micros)));
            assert_eq!(shown, expect, "{micros}");
        };
        check(499_607, "500ms");
        check(84_999, "80ms");
        check(3_000, "0ns");
        check(995_000, "1s");
        check(12_345_678, "12.3s");
    }
}
