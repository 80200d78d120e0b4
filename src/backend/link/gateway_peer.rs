//! What a server is among gateways, as its answers say: this one itself, by mistake, or another. Shared by
//! all connections to the server.

use std::sync::atomic::{AtomicU8, Ordering};

use http::{Response, StatusCode};
use tokio::sync::watch;

use crate::{
    backend::BackendError,
    mcp::{
        GatewayId,
        gateway_headers::{self, GATEWAY_HEADER, HOPS_MAX},
    },
};

/// See the module.
#[derive(Debug)]
pub(crate) struct GatewayPeer {
    /// As whom it is asked.
    pub(crate) own_id: GatewayId,
    /// How many gateways stand in a row from the server on; 0 where it is none.
    depth: AtomicU8,
    /// Counts changes of what the server lists.
    changes: watch::Sender<u64>,
}

impl GatewayPeer {
    pub(in crate::backend) fn new(own_id: GatewayId, changes: watch::Sender<u64>) -> Self {
        Self {
            own_id,
            depth: AtomicU8::new(0),
            changes,
        }
    }

    /// How many gateways stand in a row from the server on.
    pub(in crate::backend) fn depth(&self) -> u8 {
        self.depth.load(Ordering::Relaxed)
    }

    /// Whether too many gateways stand in a row: no connection to the server is of use.
    pub(crate) fn is_in_loop(&self) -> bool {
        self.depth() > HOPS_MAX
    }

    /// Notes that nobody answers at the URL.
    pub(in crate::backend) fn note_unreachable(&self) {
        self.depth.store(0, Ordering::Relaxed);
    }

    /// Takes in the head of an answer.
    ///
    /// # Errors
    /// When requests to the server come back to this gateway, or pass too many.
    pub(crate) fn note_response<B>(&self, response: &Response<B>) -> Result<(), BackendError> {
        let (status, headers) = (response.status(), response.headers());
        // Servers mean other things by that status too, so that it alone says nothing.
        if status == StatusCode::LOOP_DETECTED && headers.contains_key(GATEWAY_HEADER) {
            return Err(if self.own_id.is_in_header(headers) {
                BackendError::LoopDetected
            } else {
                BackendError::TooManyGateways
            });
        }
        // What stands between may answer in the name of a server that is away.
        if status.is_success() {
            let depth = gateway_headers::hops(headers);
            if depth != self.depth() {
                self.depth.store(depth, Ordering::Relaxed);
                // It lists more or less of others now, and may have said so before anybody listened.
                self.changes.send_modify(|count| *count += 1);
            }
            if self.is_in_loop() {
                return Err(BackendError::TooManyGateways);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
impl GatewayPeer {
    /// That of a server of some gateway.
    pub(crate) fn example() -> Self {
        Self::new(GatewayId::random(), watch::Sender::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: StatusCode, gateway: Option<&GatewayId>) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = status;
        if let Some(gateway) = gateway {
            gateway.set_header(response.headers_mut());
        }
        response
    }

    #[test]
    fn a_refusal_says_whose_loop_it_is() {
        let peer = GatewayPeer::example();
        let other = GatewayId::random();
        let looped = StatusCode::LOOP_DETECTED;
        assert!(peer.note_response(&answer(looped, None)).is_ok());
        let heard = peer.note_response(&answer(looped, Some(&other)));
        assert!(
            matches!(heard, Err(BackendError::TooManyGateways)),
            "{heard:?}"
        );
        assert!(!peer.is_in_loop(), "one request was refused");
        assert!(
            peer.note_response(&answer(StatusCode::OK, Some(&peer.own_id)))
                .is_ok()
        );
        let heard = peer.note_response(&answer(looped, Some(&peer.own_id)));
        assert!(
            matches!(heard, Err(BackendError::LoopDetected)),
            "{heard:?}"
        );
    }

    #[test]
    fn too_many_in_a_row_are_a_loop() {
        let peer = GatewayPeer::example();
        let hear = |status, depth| {
            let mut response = answer(status, None);
            gateway_headers::set_hops(response.headers_mut(), depth);
            let is_taken = peer.note_response(&response).is_ok();
            assert_eq!(is_taken, !peer.is_in_loop() || !status.is_success());
            peer.depth()
        };
        assert_eq!(hear(StatusCode::OK, HOPS_MAX), HOPS_MAX);
        assert!(!peer.is_in_loop());
        assert_eq!(hear(StatusCode::OK, HOPS_MAX + 1), HOPS_MAX + 1);
        assert!(peer.is_in_loop());
        // A balancer answers while the server restarts.
        assert_eq!(hear(StatusCode::BAD_GATEWAY, 0), HOPS_MAX + 1);
        assert_eq!(hear(StatusCode::ACCEPTED, 0), 0);
    }
}
