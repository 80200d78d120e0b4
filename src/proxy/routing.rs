//! Finds the server of a call, which waits where that is not known yet.
//!
//! Called by the spine for every call. What no server lists may be of one that has not been listed
//! yet, or not for long: then the call waits for that server as it would if it knew the name, and
//! is told why where the server is down. Whoever may not see the server hears that there is no such
//! tool, as of any name.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use serde_json::json;
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
const LOOK: Duration = Duration::from_millis(250);

impl Proxy {
    /// Finds the server of a call.
    pub(super) async fn route(
        &self,
        call: Box<Call>,
        ticket: &mut CallContext,
    ) -> Result<Box<Routed>, CallOutcome> {
        let audience = lists::audience(&call.client);
        let route = |call| self.route_in(&self.board.catalog_for(audience), call);
        let mut lost = match route(call) {
            Ok(routed) => return Ok(routed),
            Err(lost) => lost,
        };
        if !self.board.is_settled() || !self.board.is_settled_for(audience) {
            Box::pin(self.first_listed(&lost.0)).await;
            lost = match route(lost.0) {
                Ok(routed) => return Ok(routed),
                Err(lost) => lost,
            };
            if lost.0.cancel.is_cancelled() {
                // What is not listed by now might have been.
                return Err(CallOutcome::Failed {
                    error: given_up(),
                    delivered: false,
                    reason: GIVEN_UP.kind(),
                });
            }
        }
        let prospects = self.prospects(&lost.0);
        if prospects.is_empty() {
            return Err(ending_of(lost.1));
        }
        Box::pin(self.route_once_listed(*lost, &prospects, ticket)).await
    }

    /// Finds the server of a call in `catalog`, for what its agent may see.
    pub(super) fn route_in(
        &self,
        catalog: &Catalog,
        call: Box<Call>,
    ) -> Result<Box<Routed>, Box<(Box<Call>, Unroutable)>> {
        let sees = |call: &Call, server: &ServerName, resource: &ItemSubject| {
            let sight = self.governance.sight(&call.client.agent, &call.scope);
            sight.shows_resource(server, &resource.names, &resource.original)
        };
        router::route(call, catalog, &sees)
    }

    /// Waits until the servers of the route of `call` are listed for its client, for as long as lists
    /// may wait and somebody wants the answer.
    pub(super) async fn first_listed(&self, call: &Call) {
        let patience = self.settings.load().first_list_wait;
        let listed = async {
            self.board.settled(&call.scope, patience).await;
            if lists::audience(&call.client) == Audience::Able {
                self.board.settled_for_able(&call.scope, patience).await;
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
        prospects: &[Candidate],
        ticket: &mut CallContext,
    ) -> Result<Box<Routed>, CallOutcome> {
        let (since, cancel) = (Instant::now(), call.cancel.clone());
        let audience = lists::audience(&call.client);
        let mut away = None;
        let mut waits: FuturesUnordered<_> = prospects
            .iter()
            .map(|prospect| self.listed(prospect, &cancel, since))
            .collect();
        let waiting = self.governance.let_wait(&prospects[0].server, ticket);
        waiting.map_err(CallOutcome::Refused)?;
        while let Some(listed) = waits.next().await {
            if let Err(failure) = listed {
                // Another may have it.
                away.get_or_insert(failure);
                continue;
            }
            match self.route_in(&self.board.catalog_for(audience), call) {
                Ok(routed) => return Ok(routed),
                Err(lost) => (call, unroutable) = *lost,
            }
        }
        Err(away.map_or_else(
            || ending_of(unroutable),
            |(backend, failure)| absent(&backend, &failure),
        ))
    }

    /// The servers that may have what `call` names once they are listed, where its agent may know
    /// that; the likeliest first.
    fn prospects(&self, call: &Call) -> Vec<Candidate> {
        let Some((kind, name)) = router::wanted(call) else {
            return Vec::new();
        };
        let mut prospects = self.board.prospects(&call.scope, kind, &name);
        if !prospects.is_empty() {
            let sight = self.governance.sight(&call.client.agent, &call.scope);
            prospects.retain(|prospect| sight.may_show(prospect));
        }
        prospects
    }

    /// Waits until the server is listed, for as long as a call that came at `since` may take.
    async fn listed(
        &self,
        prospect: &Candidate,
        cancel: &CancellationToken,
        since: Instant,
    ) -> Result<(), (Arc<Backend>, BackendError)> {
        let Some(backend) = self.backends.get(&prospect.server) else {
            return Ok(());
        };
        let originals = prospect.originals.iter().map(|(original, _)| &**original);
        let deadline = since + backend.patience_with(originals);
        let outcome = tokio::select! {
            biased;
            outcome = self.until_listed(&prospect.server, prospect.kind) => outcome,
            () = cancel.cancelled() => Err(BackendError::Cancelled { is_sent: false }),
            () = sleep_until(deadline) => Err(BackendError::Unlisted { why: None }),
        };
        outcome.map_err(|failure| (backend, failure.unsent()))
    }

    /// Completes when it is known what the server has of `kind`, or it is gone; fails when it will not
    /// be for now.
    async fn until_listed(&self, server: &ServerName, kind: Kind) -> Result<(), BackendError> {
        let mut changes = self.board.changes();
        while !self.board.lists(server, kind) {
            let Some(backend) = self.backends.get(server) else {
                break;
            };
            if let Some(failure) = backend.obstacle() {
                return Err(failure);
            }
            let mut standing = backend.standing();
            tokio::select! {
                _ = changes.changed() => {}
                () = standing.changed() => {}
                () = sleep(LOOK) => {}
            }
        }
        Ok(())
    }
}

/// How a call ends whose server is away.
fn absent(backend: &Backend, failure: &BackendError) -> CallOutcome {
    backend.note_absence();
    CallOutcome::Failed {
        error: failure.to_error(&backend.name, Some(backend.state())),
        delivered: false,
        reason: failure.kind(),
    }
}

/// That a request was given up before a server was found for it.
const GIVEN_UP: BackendError = BackendError::Cancelled { is_sent: false };

/// What is said of such a request.
pub(super) fn given_up() -> RpcError {
    let reason = GIVEN_UP.kind();
    RpcError::new(error::INTERNAL, GIVEN_UP.to_string()).with(json!({
        "code": reason.to_ascii_uppercase(),
        "reason": reason,
        "retryable": false,
    }))
}

/// How a call ends that no server is found for.
fn ending_of(unroutable: Unroutable) -> CallOutcome {
    match unroutable {
        Unroutable::Refused(error) => CallOutcome::Unroutable(error),
        Unroutable::UnknownTool { name } => CallOutcome::Refused(Refusal::UnknownTool { name }),
    }
}
