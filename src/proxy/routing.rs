//! Finds the server of a call, which waits where that is not known yet.
//!
//! Called by the spine for every call. What no server lists may be of one that has not been listed
//! yet, or not for long: then the call waits for that server as it would if it knew the name, and
//! is told why where the server is down. Whoever may not see the server hears that there is no such
//! tool, as of any name.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Proxy, lists};
use crate::{
    backend::{Backend, BackendError},
    catalog::{Audience, Candidate, Catalog, Kind},
    governance::{CallContext, CallOutcome, Refusal},
    mcp::{RpcError, error},
    names::ServerName,
    router::{self, ItemSubject, Routed, Unroutable},
    session::Call,
};

/// Pause between looks at a server that is waited for: not all that becomes of it has an event.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

impl Proxy {
    /// Finds the server of a call.
    pub(super) async fn route(
        &self,
        call: Box<Call>,
        context: &mut CallContext,
    ) -> Result<Box<Routed>, CallOutcome> {
        let audience = lists::audience(&call.client);
        let route = |call: Box<Call>| {
            let catalog = self.catalog_for(&call);
            self.route_in(&catalog, call)
        };
        let mut lost = match route(call) {
            Ok(routed) => return Ok(routed),
            Err(lost) => lost,
        };
        if !self.catalog_store.is_ready() || !self.catalog_store.is_ready_for(audience) {
            Box::pin(self.wait_first_listing(&lost.0)).await;
            lost = match route(lost.0) {
                Ok(routed) => return Ok(routed),
                Err(lost) => lost,
            };
            if lost.0.cancel.is_cancelled() {
                // What is not listed by now might have been.
                return Err(CallOutcome::Failed {
                    error: cancelled_error(),
                    delivered: false,
                    reason: CANCELLED.kind(),
                });
            }
        }
        let candidates = self.candidates(&lost.0);
        if candidates.is_empty() {
            return Err(outcome_of(lost.1));
        }
        Box::pin(self.route_once_listed(*lost, &candidates, context)).await
    }

    /// Finds the server of a call in `catalog`, for what its agent may see.
    pub(super) fn route_in(
        &self,
        catalog: &Catalog,
        call: Box<Call>,
    ) -> Result<Box<Routed>, Box<(Box<Call>, Unroutable)>> {
        let sees = |call: &Call, server: &ServerName, resource: &ItemSubject| {
            let visibility = self.governance.visibility(&call.client.agent, &call.scope);
            visibility.shows_resource(server, &resource.names, &resource.original)
        };
        router::route(call, catalog, &sees)
    }

    /// Waits until the servers of the route of `call` are listed for its client, for as long as lists
    /// may wait and somebody wants the answer.
    pub(super) async fn wait_first_listing(&self, call: &Call) {
        let patience = self.settings.load().first_list_wait;
        let owners = self.owners_seen_by(&call.client.agent);
        let route = (&owners, &call.scope);
        let listed = async {
            self.catalog_store.wait_ready(route, patience).await;
            if lists::audience(&call.client) == Audience::Interactive {
                self.catalog_store
                    .wait_ready_interactive(route, patience)
                    .await;
            }
        };
        tokio::select! {
            biased;
            () = listed => {}
            () = call.cancel.cancelled() => {}
        }
    }

    /// Finds the server of a call among `prospects`, as soon as one that is listed has what it names.
    async fn route_once_listed(
        &self,
        (mut call, mut unroutable): (Box<Call>, Unroutable),
        candidates: &[Candidate],
        context: &mut CallContext,
    ) -> Result<Box<Routed>, CallOutcome> {
        let (since, cancel) = (Instant::now(), call.cancel.clone());
        let mut away = None;
        let mut waits: FuturesUnordered<_> = candidates
            .iter()
            .map(|prospect| self.wait_listed(prospect, &cancel, since))
            .collect();
        let waiting = self.governance.admit_wait(&candidates[0].server, context);
        waiting.map_err(CallOutcome::Refused)?;
        while let Some(listed) = waits.next().await {
            if let Err(failure) = listed {
                // Another may have it.
                away.get_or_insert(failure);
                continue;
            }
            match self.route_in(&self.catalog_for(&call), call) {
                Ok(routed) => return Ok(routed),
                Err(lost) => (call, unroutable) = *lost,
            }
        }
        Err(away.map_or_else(
            || outcome_of(unroutable),
            |(backend, failure)| {
                if let BackendError::NeedsSignIn { .. } = failure {
                    let missing = (&backend.name, &failure, Some(backend.state()));
                    return self.sign_in_outcome((&call.client, &call.method), missing, None);
                }
                unavailable_outcome(&backend, &failure)
            },
        ))
    }

    /// The servers that may have what `call` names once they are listed, where its agent may know
    /// that; the likeliest first.
    fn candidates(&self, call: &Call) -> Vec<Candidate> {
        let Some((kind, name)) = router::requested_item(call) else {
            return Vec::new();
        };
        let owners = self.owners_seen_by(&call.client.agent);
        let route = (&owners, &call.scope);
        let mut candidates = self.catalog_store.unlisted_candidates(route, kind, &name);
        if !candidates.is_empty() {
            let visibility = self.governance.visibility(&call.client.agent, &call.scope);
            candidates.retain(|prospect| visibility.may_show_candidate(prospect));
        }
        candidates
    }

    /// Waits until the server is listed, for as long as a call that came at `since` may take.
    async fn wait_listed(
        &self,
        candidate: &Candidate,
        cancel: &CancellationToken,
        since: Instant,
    ) -> Result<(), (Arc<Backend>, BackendError)> {
        let Some(backend) = self.backends.get(&candidate.server) else {
            return Ok(());
        };
        let originals = candidate.originals.iter().map(|(original, _)| &**original);
        let deadline = since + backend.idle_timeout_of_tools(originals);
        let outcome = tokio::select! {
            biased;
            outcome = self.wait_kind_listed(&candidate.server, candidate.kind) => outcome,
            () = cancel.cancelled() => Err(BackendError::Cancelled { is_sent: false }),
            () = sleep_until(deadline) => Err(BackendError::NotListedYet { why: None }),
        };
        outcome.map_err(|failure| (backend, failure.into_not_sent()))
    }

    /// Completes when it is known what the server has of `kind`, or it is gone; fails when it will not
    /// be for now.
    async fn wait_kind_listed(&self, server: &ServerName, kind: Kind) -> Result<(), BackendError> {
        let mut changes = self.catalog_store.changes();
        while !self.catalog_store.has_current_list(server, kind) {
            let Some(backend) = self.backends.get(server) else {
                break;
            };
            if let Some(failure) = backend.listing_obstacle() {
                // The sign-in that it waited for may have been made this moment.
                let is_over = matches!(failure, BackendError::NeedsSignIn { .. })
                    && backend.has_list_token().await;
                if !is_over {
                    return Err(failure);
                }
            }
            let mut standing = backend.watch_catalog();
            tokio::select! {
                _ = changes.changed() => {}
                () = standing.changed() => {}
                () = sleep(POLL_INTERVAL) => {}
            }
        }
        Ok(())
    }
}

/// How a call ends whose server is away.
fn unavailable_outcome(backend: &Backend, failure: &BackendError) -> CallOutcome {
    backend.count_unconnected_call();
    CallOutcome::Failed {
        error: failure.to_error(&backend.name, Some(backend.state())),
        delivered: false,
        reason: failure.kind(),
    }
}

/// That a request was given up before a server was found for it.
const CANCELLED: BackendError = BackendError::Cancelled { is_sent: false };

/// What is said of such a request.
pub(super) fn cancelled_error() -> RpcError {
    let mut data = CANCELLED.kind().to_data();
    data["retryable"] = false.into();
    RpcError::new(error::INTERNAL, CANCELLED.to_string()).with_data(data)
}

/// How a call ends that no server is found for.
fn outcome_of(unroutable: Unroutable) -> CallOutcome {
    match unroutable {
        Unroutable::Refused(error) => CallOutcome::Unroutable(error),
        Unroutable::UnknownTool { name } => CallOutcome::Refused(Refusal::UnknownTool { name }),
    }
}
