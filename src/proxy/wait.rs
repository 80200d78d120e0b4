//! Finds the server of a call, which waits where that is not known yet.
//!
//! Called by the spine for every call. What no server lists may be of one that has not been listed
//! yet, or not for long: then the call waits for that server as it would if it knew the name, and
//! is told why where the server is down. Whoever may not see the server hears that there is no such
//! tool, as of any name.

use std::time::Duration;

use tokio::time::sleep;

use super::{Proxy, lists};
use crate::{
    backend::Failure,
    catalog::Prospect,
    governance::{Ending, Refusal, Ticket},
    names::ServerName,
    router::{self, Routed, Unroutable},
    session::Call,
};

/// Pause between looks at a server that is waited for: not all that becomes of it has an event.
const LOOK: Duration = Duration::from_millis(250);

impl Proxy {
    /// Finds the server of a call.
    pub(super) async fn route(&self, call: Call, ticket: &mut Ticket) -> Result<Routed, Ending> {
        let audience = lists::audience(&call.client);
        let route = |call| router::route(call, &self.board.catalog_for(audience));
        let mut lost = match route(call) {
            Ok(routed) => return Ok(routed),
            Err(lost) => lost,
        };
        if !self.board.is_settled() {
            let patience = self.settings.load().first_list_wait;
            Box::pin(self.board.settled(&lost.0.scope, patience)).await;
            lost = match route(lost.0) {
                Ok(routed) => return Ok(routed),
                Err(lost) => lost,
            };
        }
        let (call, unroutable) = *lost;
        match self.prospect(&call) {
            Some(prospect) => Box::pin(self.listed(&prospect, &call, ticket)).await?,
            None => return Err(ending_of(unroutable)),
        }
        route(call).map_err(|lost| ending_of(lost.1))
    }

    /// The server that may have what `call` names once it is listed, where its agent may know that.
    fn prospect(&self, call: &Call) -> Option<Prospect> {
        let (kind, name) = router::wanted(call)?;
        let prospect = self.board.prospect(&call.scope, kind, &name)?;
        let sight = self.governance.sight(&call.client.agent, &call.scope);
        sight.may_show(&prospect).then_some(prospect)
    }

    /// Waits until the server is listed, for as long as the call may take.
    async fn listed(
        &self,
        prospect: &Prospect,
        call: &Call,
        ticket: &mut Ticket,
    ) -> Result<(), Ending> {
        let server = &prospect.server;
        let waits = self.governance.let_wait(server, ticket);
        waits.map_err(Ending::Refused)?;
        let Some(backend) = self.backends.get(server) else {
            return Ok(());
        };
        let outcome = tokio::select! {
            biased;
            outcome = self.until_listed(server) => outcome,
            () = call.cancel.cancelled() => Err(Failure::Cancelled),
            () = sleep(backend.patience_with(&prospect.originals)) => Err(Failure::Unlisted),
        };
        outcome.map_err(|failure| Ending::Failed {
            error: failure.to_error(server, Some(backend.state())),
            delivered: false,
            reason: failure.kind(),
        })
    }

    /// Completes when the server is listed, or gone; fails when it will not be for now.
    async fn until_listed(&self, server: &ServerName) -> Result<(), Failure> {
        let mut changes = self.board.changes();
        while !self.board.lists(server) {
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

/// How a call ends that no server is found for.
fn ending_of(unroutable: Unroutable) -> Ending {
    match unroutable {
        Unroutable::Refused(error) => Ending::Unroutable(error),
        Unroutable::UnknownTool { name } => Ending::Refused(Refusal::UnknownTool { name }),
    }
}
