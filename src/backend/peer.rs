//! Who a server is among gateways, as the heads of its answers say: this one itself, by mistake, or another,
//! and which stand behind it. Shared by all connections to the server.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{Response, StatusCode};
use tokio::sync::watch;

use super::{Failure, views::Outlet};
use crate::mcp::{GatewayId, gateway::Behind};

/// See the module.
#[derive(Debug)]
pub(crate) struct Peer {
    /// As whom it is asked.
    pub(crate) own: GatewayId,
    /// Itself, if it is a gateway, and what it says is behind it.
    behind: ArcSwap<Behind>,
    /// Hears when that changes, of any server.
    changes: watch::Sender<()>,
}

impl Peer {
    pub(super) fn new(outlet: &Outlet) -> Arc<Self> {
        Arc::new(Self {
            own: outlet.gateway.clone(),
            behind: ArcSwap::default(),
            changes: outlet.gateways.clone(),
        })
    }

    /// The gateways behind the server.
    pub(super) fn behind(&self) -> Arc<Behind> {
        self.behind.load_full()
    }

    /// Takes in the head of an answer.
    ///
    /// # Errors
    /// When it is a refusal of our own: the URL leads back to this gateway.
    pub(crate) fn hear<B>(&self, response: &Response<B>) -> Result<(), Failure> {
        let (status, headers) = (response.status(), response.headers());
        // Servers mean other things by that status too, so that it alone says nothing.
        if status == StatusCode::LOOP_DETECTED && self.own.has_signed(headers) {
            return Err(Failure::Ourselves);
        }
        // What is between answers in the name of a server that is away.
        if status.is_success() {
            let behind = Behind::server(headers);
            if behind != **self.behind.load() {
                self.behind.store(Arc::new(behind));
                self.changes.send_replace(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
impl Peer {
    /// That of a server of some gateway.
    pub(crate) fn example() -> Arc<Self> {
        Self::new(&Outlet::example())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: StatusCode, gateway: Option<&GatewayId>) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = status;
        if let Some(gateway) = gateway {
            gateway.sign(response.headers_mut());
        }
        response
    }

    #[test]
    fn only_a_refusal_of_our_own_is_one() {
        let peer = Peer::example();
        let other = GatewayId::random();
        let looped = StatusCode::LOOP_DETECTED;
        assert!(peer.hear(&answer(looped, None)).is_ok());
        assert!(peer.hear(&answer(looped, Some(&other))).is_ok());
        assert!(peer.hear(&answer(StatusCode::OK, Some(&peer.own))).is_ok());
        let heard = peer.hear(&answer(looped, Some(&peer.own)));
        assert!(matches!(heard, Err(Failure::Ourselves)), "{heard:?}");
    }

    #[test]
    fn what_changes_is_told_once() {
        let peer = Peer::example();
        let mut changes = peer.changes.subscribe();
        let mut hear = |status, gateway| {
            peer.hear(&answer(status, gateway)).unwrap();
            let is_told = changes.has_changed().unwrap();
            changes.mark_unchanged();
            is_told
        };
        let other = GatewayId::random();
        assert!(!hear(StatusCode::OK, None));
        assert!(hear(StatusCode::ACCEPTED, Some(&other)));
        assert!(peer.behind().has(&other));
        assert!(!hear(StatusCode::OK, Some(&other)));
        // A balancer answers while the server restarts.
        assert!(!hear(StatusCode::BAD_GATEWAY, None));
        assert!(peer.behind().has(&other));
        assert!(hear(StatusCode::OK, None));
        assert!(!peer.behind().has(&other));
    }
}
