//! Who a server is among gateways, as the heads of its answers say: this one itself, by mistake, or another,
//! and which stand behind it. Shared by all connections to the server.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::{sync::watch, time::Instant};

use super::session_filter::UpstreamContext;
use crate::{
    backend::BackendError,
    lock::lock,
    mcp::{
        GatewayId,
        gateway_headers::{BEHIND_HEADER, GATEWAY_HEADER, GatewaysBehind},
    },
};

/// How long a gateway counts that no longer answers where another does: several may stand behind one URL, and
/// take turns.
const PEER_TTL: Duration = Duration::from_secs(300);

/// How many gateways behind one URL are told apart; of more, those heard last count.
const PEERS_MAX: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct GatewayPeer {
    /// As whom it is asked.
    pub(crate) own_id: GatewayId,
    /// The gateways that have answered, each as it was heard last.
    peers: Mutex<Vec<PeerNews>>,
    /// All of them, and what they say is behind them.
    behind: ArcSwap<GatewaysBehind>,
    /// Hears when that changes, of any server.
    changes: watch::Sender<()>,
}

/// What one gateway has said.
#[derive(Debug)]
struct PeerNews {
    id: HeaderValue,
    behind_header: Option<HeaderValue>,
    behind: Arc<GatewaysBehind>,
    at: Instant,
}

impl GatewayPeer {
    pub(in crate::backend) fn new(context: &UpstreamContext) -> Arc<Self> {
        Arc::new(Self {
            own_id: context.gateway.clone(),
            peers: Mutex::default(),
            behind: ArcSwap::default(),
            changes: context.gateway_changes.clone(),
        })
    }

    /// The gateways behind the server.
    pub(in crate::backend) fn gateways_behind(&self) -> Arc<GatewaysBehind> {
        self.behind.load_full()
    }

    /// Takes in the head of an answer.
    ///
    /// # Errors
    /// When it is a refusal of our own: the URL leads back to this gateway.
    pub(crate) fn note_response<B>(&self, response: &Response<B>) -> Result<(), BackendError> {
        let (status, headers) = (response.status(), response.headers());
        // Servers mean other things by that status too, so that it alone says nothing.
        if status == StatusCode::LOOP_DETECTED && self.own_id.is_in_header(headers) {
            return Err(BackendError::LoopDetected);
        }
        // What stands between may answer in the name of a server that is away.
        if status.is_success() {
            self.note_headers(headers);
        }
        Ok(())
    }

    fn note_headers(&self, headers: &HeaderMap) {
        let id = headers.get(GATEWAY_HEADER);
        // Most servers are no gateways.
        if id.is_none() && self.behind.load().is_empty() {
            return;
        }
        let mut heard = lock(&self.peers);
        let (now, before) = (Instant::now(), heard.len());
        let mut is_news = false;
        if let Some(id) = id {
            let told = headers.get(BEHIND_HEADER);
            let known = heard.iter().position(|it| it.id == *id);
            let known = known.map(|at| heard.remove(at));
            let same = known.filter(|it| it.behind_header.as_ref() == told);
            is_news = same.is_none();
            let latest = same.map(|it| PeerNews { at: now, ..it });
            heard.push(latest.unwrap_or_else(|| PeerNews {
                id: id.clone(),
                behind_header: told.cloned(),
                behind: Arc::new(GatewaysBehind::from_response(headers)),
                at: now,
            }));
        }
        heard.retain(|it| now.saturating_duration_since(it.at) < PEER_TTL);
        let beyond = heard.len().saturating_sub(PEERS_MAX);
        heard.drain(..beyond);
        if is_news || heard.len() < before {
            let all = heard.iter().map(|it| &*it.behind);
            self.behind.store(Arc::new(GatewaysBehind::union(all)));
            self.changes.send_replace(());
        }
    }
}

#[cfg(test)]
impl GatewayPeer {
    /// That of a server of some gateway.
    pub(crate) fn example() -> Arc<Self> {
        Self::new(&UpstreamContext::example())
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
    fn only_a_refusal_of_our_own_is_one() {
        let peer = GatewayPeer::example();
        let other = GatewayId::random();
        let looped = StatusCode::LOOP_DETECTED;
        assert!(peer.note_response(&answer(looped, None)).is_ok());
        assert!(peer.note_response(&answer(looped, Some(&other))).is_ok());
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

    #[tokio::test(start_paused = true)]
    async fn what_changes_is_told_once() {
        let peer = GatewayPeer::example();
        let mut changes = peer.changes.subscribe();
        let mut hear = |status, gateway| {
            peer.note_response(&answer(status, gateway)).unwrap();
            let is_told = changes.has_changed().unwrap();
            changes.mark_unchanged();
            is_told
        };
        let (one, other) = (GatewayId::random(), GatewayId::random());
        assert!(!hear(StatusCode::OK, None));
        assert!(hear(StatusCode::ACCEPTED, Some(&one)));
        assert!(peer.gateways_behind().contains(&one));
        assert!(!hear(StatusCode::OK, Some(&one)));
        // A balancer answers while the server restarts, or has answers of several in turn.
        assert!(!hear(StatusCode::BAD_GATEWAY, None));
        assert!(hear(StatusCode::OK, Some(&other)));
        for _ in 0..3 {
            assert!(!hear(StatusCode::OK, Some(&one)) && !hear(StatusCode::OK, Some(&other)));
            assert!(!hear(StatusCode::OK, None));
        }
        assert!(peer.gateways_behind().contains(&one) && peer.gateways_behind().contains(&other));
        let last = Duration::from_millis(1);
        tokio::time::advance(PEER_TTL.saturating_sub(last)).await;
        assert!(!hear(StatusCode::OK, Some(&one)));
        tokio::time::advance(last).await;
        assert!(hear(StatusCode::OK, Some(&one)));
        assert!(peer.gateways_behind().contains(&one) && !peer.gateways_behind().contains(&other));
        tokio::time::advance(PEER_TTL).await;
        assert!(hear(StatusCode::OK, None));
        assert!(!peer.gateways_behind().contains(&one));
    }

    #[test]
    fn those_heard_last_count() {
        let peer = GatewayPeer::example();
        let all: Vec<_> = (0..=PEERS_MAX).map(|_| GatewayId::random()).collect();
        let hear = |gateway| {
            peer.note_response(&answer(StatusCode::OK, Some(gateway)))
                .unwrap();
        };
        all[..PEERS_MAX].iter().for_each(hear);
        assert!(
            all[..PEERS_MAX]
                .iter()
                .all(|it| peer.gateways_behind().contains(it))
        );
        hear(&all[0]);
        hear(&all[PEERS_MAX]);
        assert!(
            peer.gateways_behind().contains(&all[0]) && !peer.gateways_behind().contains(&all[1])
        );
    }
}
