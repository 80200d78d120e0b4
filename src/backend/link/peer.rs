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
        gateway::{BEHIND, GATEWAY, GatewaysBehind},
    },
};

/// How long a gateway counts that no longer answers where another does: several may stand behind one URL, and
/// take turns.
const UNHEARD_MAX: Duration = Duration::from_secs(300);

/// How many gateways behind one URL are told apart; of more, those heard last count.
const HEARD_MAX: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct GatewayPeer {
    /// As whom it is asked.
    pub(crate) own: GatewayId,
    /// The gateways that have answered, each as it was heard last.
    heard: Mutex<Vec<PeerNews>>,
    /// All of them, and what they say is behind them.
    behind: ArcSwap<GatewaysBehind>,
    /// Hears when that changes, of any server.
    changes: watch::Sender<()>,
}

/// What one gateway has said.
#[derive(Debug)]
struct PeerNews {
    id: HeaderValue,
    told: Option<HeaderValue>,
    behind: Arc<GatewaysBehind>,
    at: Instant,
}

impl GatewayPeer {
    pub(in crate::backend) fn new(outlet: &UpstreamContext) -> Arc<Self> {
        Arc::new(Self {
            own: outlet.gateway.clone(),
            heard: Mutex::default(),
            behind: ArcSwap::default(),
            changes: outlet.gateways.clone(),
        })
    }

    /// The gateways behind the server.
    pub(in crate::backend) fn behind(&self) -> Arc<GatewaysBehind> {
        self.behind.load_full()
    }

    /// Takes in the head of an answer.
    ///
    /// # Errors
    /// When it is a refusal of our own: the URL leads back to this gateway.
    pub(crate) fn hear<B>(&self, response: &Response<B>) -> Result<(), BackendError> {
        let (status, headers) = (response.status(), response.headers());
        // Servers mean other things by that status too, so that it alone says nothing.
        if status == StatusCode::LOOP_DETECTED && self.own.has_signed(headers) {
            return Err(BackendError::Ourselves);
        }
        // What stands between may answer in the name of a server that is away.
        if status.is_success() {
            self.note(headers);
        }
        Ok(())
    }

    fn note(&self, headers: &HeaderMap) {
        let id = headers.get(GATEWAY);
        // Most servers are no gateways.
        if id.is_none() && self.behind.load().is_empty() {
            return;
        }
        let mut heard = lock(&self.heard);
        let (now, before) = (Instant::now(), heard.len());
        let mut is_news = false;
        if let Some(id) = id {
            let told = headers.get(BEHIND);
            let known = heard.iter().position(|it| it.id == *id);
            let known = known.map(|at| heard.remove(at));
            let same = known.filter(|it| it.told.as_ref() == told);
            is_news = same.is_none();
            let latest = same.map(|it| PeerNews { at: now, ..it });
            heard.push(latest.unwrap_or_else(|| PeerNews {
                id: id.clone(),
                told: told.cloned(),
                behind: Arc::new(GatewaysBehind::server(headers)),
                at: now,
            }));
        }
        heard.retain(|it| now.saturating_duration_since(it.at) < UNHEARD_MAX);
        let beyond = heard.len().saturating_sub(HEARD_MAX);
        heard.drain(..beyond);
        if is_news || heard.len() < before {
            let all = heard.iter().map(|it| &*it.behind);
            self.behind.store(Arc::new(GatewaysBehind::all(all)));
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
            gateway.sign(response.headers_mut());
        }
        response
    }

    #[test]
    fn only_a_refusal_of_our_own_is_one() {
        let peer = GatewayPeer::example();
        let other = GatewayId::random();
        let looped = StatusCode::LOOP_DETECTED;
        assert!(peer.hear(&answer(looped, None)).is_ok());
        assert!(peer.hear(&answer(looped, Some(&other))).is_ok());
        assert!(peer.hear(&answer(StatusCode::OK, Some(&peer.own))).is_ok());
        let heard = peer.hear(&answer(looped, Some(&peer.own)));
        assert!(matches!(heard, Err(BackendError::Ourselves)), "{heard:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_is_told_once() {
        let peer = GatewayPeer::example();
        let mut changes = peer.changes.subscribe();
        let mut hear = |status, gateway| {
            peer.hear(&answer(status, gateway)).unwrap();
            let is_told = changes.has_changed().unwrap();
            changes.mark_unchanged();
            is_told
        };
        let (one, other) = (GatewayId::random(), GatewayId::random());
        assert!(!hear(StatusCode::OK, None));
        assert!(hear(StatusCode::ACCEPTED, Some(&one)));
        assert!(peer.behind().has(&one));
        assert!(!hear(StatusCode::OK, Some(&one)));
        // A balancer answers while the server restarts, or has answers of several in turn.
        assert!(!hear(StatusCode::BAD_GATEWAY, None));
        assert!(hear(StatusCode::OK, Some(&other)));
        for _ in 0..3 {
            assert!(!hear(StatusCode::OK, Some(&one)) && !hear(StatusCode::OK, Some(&other)));
            assert!(!hear(StatusCode::OK, None));
        }
        assert!(peer.behind().has(&one) && peer.behind().has(&other));
        let last = Duration::from_millis(1);
        tokio::time::advance(UNHEARD_MAX.saturating_sub(last)).await;
        assert!(!hear(StatusCode::OK, Some(&one)));
        tokio::time::advance(last).await;
        assert!(hear(StatusCode::OK, Some(&one)));
        assert!(peer.behind().has(&one) && !peer.behind().has(&other));
        tokio::time::advance(UNHEARD_MAX).await;
        assert!(hear(StatusCode::OK, None));
        assert!(!peer.behind().has(&one));
    }

    #[test]
    fn those_heard_last_count() {
        let peer = GatewayPeer::example();
        let all: Vec<_> = (0..=HEARD_MAX).map(|_| GatewayId::random()).collect();
        let hear = |gateway| peer.hear(&answer(StatusCode::OK, Some(gateway))).unwrap();
        all[..HEARD_MAX].iter().for_each(hear);
        assert!(all[..HEARD_MAX].iter().all(|it| peer.behind().has(it)));
        hear(&all[0]);
        hear(&all[HEARD_MAX]);
        assert!(peer.behind().has(&all[0]) && !peer.behind().has(&all[1]));
    }
}
