//! The last listing of each server, kept in the store so that nobody waits for servers after a
//! restart.
//!
//! A listing belongs to a name and to how the server is reached: whoever points a name at another
//! program does not get the lists of the one before. Credentials do not count, since nothing that
//! can be computed from them should be on disk.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Board;
use crate::{
    backend::Backends,
    catalog::{Listing, Offer},
    clock,
    config::{Auth, EraPin, Remote, Server, Transport},
    names::ServerName,
    store::{Listings, StoreError, StoredListing},
};

/// Listings that were not confirmed for so long are removed.
const KEPT: SignedDuration = SignedDuration::from_hours(24 * 90);
/// Bytes of a listing that is kept; a larger one is asked for again after a start.
const BYTES_MAX: usize = 32 << 20;

/// A listing that is new, as it is on the board.
struct New {
    offer: Offer,
    able: Option<Listing>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Body {
    plain: Listing,
    modern_http: bool,
    /// What it lists beyond that for clients that can be asked something, if that was known.
    able: Option<Listing>,
}

impl Board {
    /// Serves the last listing of every enabled server until it has been listed anew. What cannot be
    /// read is as if it had never been kept.
    pub async fn restore(&self, store: &dyn Listings, backends: &Backends) {
        if let Err(error) = store.forget(clock::now() - KEPT).await {
            tracing::warn!(%error, "old listings are not removed");
        }
        for backend in backends.all() {
            if !backend.is_enabled() {
                continue;
            }
            let found = store
                .listing(&backend.name, identity(&backend.written()))
                .await;
            let stored = match found {
                Ok(Some(stored)) => stored,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(server = %backend.name, %error, "its last listing is not read");
                    continue;
                }
            };
            let Ok(body) = serde_json::from_str::<Body>(&stored.body) else {
                tracing::debug!(server = %backend.name, "its last listing is of another version");
                continue;
            };
            let offer = Offer {
                server: backend.name.clone(),
                config: backend.written(),
                listing: Arc::new(body.plain),
                modern_http: body.modern_http,
            };
            self.serve_stored(offer, body.able, stored.listed);
        }
    }

    fn serve_stored(&self, offer: Offer, able: Option<Listing>, listed: Timestamp) {
        let server = offer.server.clone();
        let mut offers = self.lock();
        offers.plain.insert(server.clone(), offer);
        let is_known_for_able = able.is_some();
        offers.able.extend(able.map(|able| (server.clone(), able)));
        offers.stored.insert(server.clone(), listed);
        self.rebuild(&offers);
        drop(offers);
        self.settle(&server);
        if is_known_for_able {
            self.settle_for_able(&server);
        }
    }

    /// When what is served of `server` was listed, if that was in an earlier process.
    pub fn stored(&self, server: &ServerName) -> Option<Timestamp> {
        self.lock().stored.get(server).copied()
    }

    /// Keeps every new listing in `store`, for ever.
    pub async fn keep(&self, store: &dyn Listings) {
        loop {
            self.listed.notified().await;
            if let Err(error) = self.keep_new(store).await {
                tracing::warn!(%error, "listings are not kept; the next start waits for servers");
            }
        }
    }

    /// Keeps the listings that are new since the last time.
    ///
    /// # Errors
    /// Those of the store; what was not written is not tried again before it changes.
    pub async fn keep_new(&self, store: &dyn Listings) -> Result<(), StoreError> {
        for new in self.take_new() {
            if let Some(listing) = stored(new) {
                store.put(&listing).await?;
            }
        }
        Ok(())
    }

    /// Takes what is new, and leaves writing it out to whoever holds no lock.
    fn take_new(&self) -> Vec<New> {
        let mut offers = self.lock();
        let new = std::mem::take(&mut offers.unkept);
        let new = new.into_iter().filter_map(|server| {
            Some(New {
                offer: offers.plain.get(&server)?.clone(),
                able: offers.able.get(&server).cloned(),
            })
        });
        new.collect()
    }
}

/// What the store keeps of a listing; nothing of one that is too large.
fn stored(New { offer, able }: New) -> Option<StoredListing> {
    let body = Body {
        plain: Arc::unwrap_or_clone(offer.listing),
        modern_http: offer.modern_http,
        able,
    };
    let body = serde_json::to_string(&body).ok()?;
    let server = offer.server;
    if body.len() > BYTES_MAX {
        tracing::warn!(%server, bytes = body.len(), "its listing is too large to be kept");
        return None;
    }
    Some(StoredListing {
        connection: identity(&offer.config),
        server,
        listed: clock::now(),
        body,
    })
}

/// The SHA-256 of what makes a server this one and no other.
fn identity(server: &Server) -> [u8; 32] {
    let era = match server.era {
        EraPin::Auto => "auto",
        EraPin::Legacy => "legacy",
        EraPin::Modern => "modern",
    };
    let way = match &server.transport {
        Transport::Auto(remote) => away("auto", remote),
        Transport::Builtin => json!(["builtin", env!("CARGO_PKG_VERSION")]),
        Transport::Http(remote) => away("http", remote),
        Transport::Sse(remote) => away("sse", remote),
        Transport::Stdio(command) => {
            let names: Vec<_> = command.env.keys().collect();
            json!(["stdio", command.program, command.args, names, command.cwd])
        }
        Transport::WebSocket(remote) => away("websocket", remote),
    };
    Sha256::digest(json!([era, way]).to_string()).into()
}

fn away(transport: &str, remote: &Remote) -> Value {
    let auth = match &remote.auth {
        Auth::Bearer { .. } => "bearer",
        Auth::Header { name, .. } => name,
        Auth::None => "",
    };
    let headers: Vec<_> = remote.headers.keys().collect();
    json!([transport, remote.url.to_string(), headers, auth])
}
