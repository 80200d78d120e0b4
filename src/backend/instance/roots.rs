//! The roots of a client, before its first call.
//!
//! A server that asks for roots does so once it was greeted, and judges calls by what it was told. The
//! connection of a client is made when its first call needs it, so that call would be judged by the
//! roots of nobody. No message says that a server has taken roots in: it gets a moment for that.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{sleep, timeout};

use super::{Connection, connector::BackendConnector, handshake::control_exchange};
use crate::{backend::link::pending::Roots, mcp::Method};

/// How long a call waits for roots at most.
const ROOTS_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a server that asks for roots may take to ask, and to take them in.
const ROOTS_SETTLE_TIME: Duration = Duration::from_millis(100);

impl BackendConnector {
    /// Completes once the server at the other end has not asked for roots, or has those of the client
    /// whose own `connection` is.
    pub(in crate::backend) async fn await_roots(&self, connection: &Connection, is_own: bool) {
        let link = &connection.link;
        let mut roots = link.requests.roots.subscribe();
        let settled = async {
            // What it asks as soon as it may comes before its answer to this, on one stream.
            drop(link.request(&control_exchange(&Method::Ping, None)).await);
            if self.shared.asks_roots.load(Ordering::Relaxed) {
                let asked = roots.wait_for(|roots| *roots != Roots::Unasked);
                drop(timeout(ROOTS_SETTLE_TIME, asked).await);
            }
            if is_own && *roots.borrow() != Roots::Unasked {
                drop(roots.wait_for(|roots| *roots == Roots::Answered).await);
                sleep(ROOTS_SETTLE_TIME).await;
            }
        };
        drop(timeout(ROOTS_TIMEOUT, settled).await);
        if *link.requests.roots.borrow() != Roots::Unasked {
            self.shared.asks_roots.store(true, Ordering::Relaxed);
        }
    }
}
