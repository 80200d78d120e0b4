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

use super::CatalogStore;
use crate::{
    backend::{Backend, Backends},
    catalog::{ByKind, Listing, ServerOffer},
    clock,
    config::{Auth, EraPin, Remote, Server, Transport},
    lock::lock,
    names::ServerName,
    store::{Listings, StoreError, StoredListing},
    task::run_blocking,
};

/// Listings that were not confirmed for so long are removed.
const STORED_TTL: SignedDuration = SignedDuration::from_hours(24 * 90);
/// Bytes of a listing that is kept; a larger one is asked for again after a start.
const BYTES_MAX: usize = 32 << 20;

/// What is kept of a server. The board shares a listing for as long as it is the same.
#[derive(Clone, Debug)]
pub(super) struct StoredServer {
    /// See [`StoredListing::connection`].
    connection: [u8; 32],
    plain: Arc<Listing>,
    modern_http: bool,
    /// What it lists beyond that for clients that can be asked something, if that is known.
    interactive: Option<Arc<Listing>>,
}

impl StoredServer {
    fn new(offer: ServerOffer, interactive: Option<Arc<Listing>>) -> Self {
        Self {
            connection: identity(&offer.config),
            plain: offer.listing,
            modern_http: offer.modern_http,
            interactive,
        }
    }

    fn is_same_as(&self, other: &Self) -> bool {
        let is_able_same = match (&self.interactive, &other.interactive) {
            (Some(able), Some(other)) => Arc::ptr_eq(able, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        is_able_same
            && self.connection == other.connection
            && self.modern_http == other.modern_http
            && Arc::ptr_eq(&self.plain, &other.plain)
    }

    /// As the store has it; `None` where it is too large.
    fn body(&self, server: &ServerName) -> Option<String> {
        let body = StoredItemsRef {
            plain: &self.plain,
            modern_http: self.modern_http,
            able: self.interactive.as_deref(),
        };
        let body = serde_json::to_string(&body).ok()?;
        if body.len() > BYTES_MAX {
            tracing::warn!(%server, bytes = body.len(), "the listing is too large to store");
            return None;
        }
        Some(body)
    }
}

/// What the store keeps of a listing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StoredItems {
    plain: Listing,
    modern_http: bool,
    /// What it lists beyond that for clients that can be asked something, if that was known.
    able: Option<Listing>,
}

/// The same on its way to the store.
#[derive(Serialize)]
struct StoredItemsRef<'l> {
    plain: &'l Listing,
    modern_http: bool,
    able: Option<&'l Listing>,
}

impl CatalogStore {
    /// Serves the last listing of every enabled server until it has been listed anew. What cannot be
    /// read is as if it had never been kept.
    pub async fn restore(&self, store: &dyn Listings, backends: &Backends) {
        if let Err(error) = store.remove_before(clock::now() - STORED_TTL).await {
            tracing::warn!(%error, "cannot remove old listings");
        }
        let mut restored = Vec::new();
        for backend in backends.all() {
            if !backend.is_enabled() {
                continue;
            }
            let found = store
                .listing(&backend.name, identity(&backend.load_config()))
                .await;
            let stored = match found {
                Ok(Some(stored)) => stored,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(server = %backend.name, %error, "cannot read the stored \
                        listing");
                    continue;
                }
            };
            let Ok(body) = serde_json::from_str::<StoredItems>(&stored.body) else {
                tracing::debug!(server = %backend.name, "stored listing has an incompatible \
                    version; ignored");
                continue;
            };
            let offer = ServerOffer {
                server: backend.name.clone(),
                config: backend.load_config(),
                listing: Arc::new(body.plain),
                modern_http: body.modern_http,
                listing_gaps: ByKind::default(),
            };
            restored.push((offer, body.able.map(Arc::new), stored.listed));
        }
        self.serve_stored(restored);
    }

    fn serve_stored(&self, restored: Vec<(ServerOffer, Option<Arc<Listing>>, Timestamp)>) {
        let Some(mut next) = self.begin_draft().filter(|_| !restored.is_empty()) else {
            return;
        };
        let catalogs = &mut next.state.offers;
        let mut kept = lock(&self.saved);
        let (mut listed, mut known_for_able) = (Vec::new(), Vec::new());
        for (offer, able, when) in restored {
            let server = offer.server.clone();
            catalogs.plain.insert(server.clone(), offer.clone());
            catalogs.stored.insert(server.clone(), when);
            if let Some(able) = &able {
                catalogs
                    .interactive
                    .insert(server.clone(), Arc::clone(able));
                known_for_able.push(server.clone());
            }
            kept.insert(server.clone(), StoredServer::new(offer, able));
            listed.push(server);
        }
        drop(kept);
        next.merge();
        next.publish();
        for server in &listed {
            self.mark_ready(server);
        }
        for server in &known_for_able {
            self.mark_interactive_ready(server);
        }
    }

    /// When what is served of `server` was listed, if that was in an earlier process.
    pub fn stored_at(&self, server: &ServerName) -> Option<Timestamp> {
        self.current.load().offers.stored.get(server).copied()
    }

    /// The listing that the store has of the server as it is reached at present, as far as this
    /// process read or wrote it.
    pub(in crate::discovery) fn saved_listing(&self, backend: &Backend) -> Option<Arc<Listing>> {
        let connection = identity(&backend.load_config());
        let kept = lock(&self.saved);
        let kept = kept.get(&backend.name);
        let kept = kept.filter(|kept| kept.connection == connection);
        kept.map(|kept| Arc::clone(&kept.plain))
    }

    /// Keeps every new listing in `store`, for ever.
    pub async fn persist_listings(&self, store: &dyn Listings) {
        loop {
            self.listed.notified().await;
            if let Err(error) = self.persist_unsaved(store).await {
                tracing::warn!(%error, "cannot store listings; the next start has to wait for \
                    servers");
            }
        }
    }

    /// Keeps the listings that are not kept yet; one that is given up on the way remains for the next
    /// time.
    ///
    /// # Errors
    /// The first of the store; what was not written is tried again with the next listing of any server.
    pub async fn persist_unsaved(&self, store: &dyn Listings) -> Result<(), StoreError> {
        let servers: Vec<ServerName> = lock(&self.unsaved).iter().cloned().collect();
        let mut kept = Ok(());
        for server in servers {
            let new = self.listing_to_save(&server);
            if let Some(new) = &new
                && let Err(error) = self.persist_listing(&server, new, store).await
            {
                kept = kept.and(Err(error));
                continue;
            }
            let mut unkept = lock(&self.unsaved);
            let is_same = match (&new, self.listing_to_save(&server)) {
                (Some(new), Some(current)) => new.is_same_as(&current),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            if is_same {
                unkept.remove(&server);
            }
        }
        kept
    }

    async fn persist_listing(
        &self,
        server: &ServerName,
        new: &StoredServer,
        store: &dyn Listings,
    ) -> Result<(), StoreError> {
        // A server says often that its lists changed when they did not.
        let known = lock(&self.saved).get(server).cloned();
        let is_known = known.is_some_and(|known| known.is_same_as(new));
        if is_known && store.confirm(server, new.connection, clock::now()).await? {
            return Ok(());
        }
        let (whose, what) = (server.clone(), new.clone());
        let Some(body) = run_blocking(move || what.body(&whose)).await else {
            return Ok(());
        };
        let listing = StoredListing {
            server: server.clone(),
            connection: new.connection,
            listed: clock::now(),
            body,
        };
        store.put(&listing).await?;
        lock(&self.saved).insert(server.clone(), new.clone());
        Ok(())
    }

    /// What is to be kept of `server`.
    fn listing_to_save(&self, server: &ServerName) -> Option<StoredServer> {
        let catalogs = &self.current.load().offers;
        let offer = catalogs
            .plain
            .get(server)
            .filter(|it| it.is_complete())?
            .clone();
        Some(StoredServer::new(
            offer,
            catalogs.interactive.get(server).cloned(),
        ))
    }
}

/// The SHA-256 of what makes a server this one and no other.
fn identity(server: &Server) -> [u8; 32] {
    let era = match server.era {
        EraPin::Auto => "auto",
        EraPin::Legacy => "legacy",
        EraPin::Modern => "modern",
    };
    let way = match &server.transport {
        Transport::Auto(remote) => remote_identity("auto", remote),
        Transport::Builtin => json!(["builtin", env!("CARGO_PKG_VERSION")]),
        Transport::ControlSocket(session) => json!(["control_socket", session.socket]),
        Transport::Http(remote) => remote_identity("http", remote),
        Transport::Sse(remote) => remote_identity("sse", remote),
        Transport::Stdio(command) => {
            let names: Vec<_> = command.env.keys().collect();
            json!(["stdio", command.program, command.args, names, command.cwd])
        }
        Transport::WebSocket(remote) => remote_identity("websocket", remote),
    };
    Sha256::digest(json!([era, way]).to_string()).into()
}

fn remote_identity(transport: &str, remote: &Remote) -> Value {
    let auth = match &remote.auth {
        Auth::Bearer { .. } => "bearer",
        Auth::Header { name, .. } => name,
        Auth::None => "",
        Auth::OAuth2(_) => "oauth2",
    };
    let headers: Vec<_> = remote.headers.keys().collect();
    json!([transport, remote.url.to_string(), headers, auth])
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    };

    use futures_util::future::{BoxFuture, FutureExt, pending, ready};
    use tokio::task::yield_now;

    use super::*;
    use crate::{discovery::catalog_store::tests, mcp::Raw, task::Tasks};

    /// Notes what it is asked to do.
    #[derive(Debug, Default)]
    struct Noting {
        asked: Mutex<Vec<&'static str>>,
        /// Whether somebody else has removed what it had.
        is_empty: AtomicBool,
        /// Whether what it is given to keep takes for ever.
        is_stuck: AtomicBool,
    }

    impl Noting {
        fn asked(&self) -> Vec<&'static str> {
            std::mem::take(&mut *lock(&self.asked))
        }
    }

    impl Listings for Noting {
        fn put<'a>(&'a self, _: &'a StoredListing) -> BoxFuture<'a, Result<(), StoreError>> {
            lock(&self.asked).push("put");
            if self.is_stuck.load(Ordering::SeqCst) {
                return pending().boxed();
            }
            ready(Ok(())).boxed()
        }

        fn confirm<'a>(
            &'a self,
            _: &'a ServerName,
            _: [u8; 32],
            _: Timestamp,
        ) -> BoxFuture<'a, Result<bool, StoreError>> {
            lock(&self.asked).push("confirm");
            ready(Ok(!self.is_empty.load(Ordering::SeqCst))).boxed()
        }

        fn listing<'a>(
            &'a self,
            _: &'a ServerName,
            _: [u8; 32],
        ) -> BoxFuture<'a, Result<Option<StoredListing>, StoreError>> {
            ready(Ok(None)).boxed()
        }

        fn remove_before(&self, _: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
            ready(Ok(())).boxed()
        }
    }

    #[tokio::test]
    async fn a_listing_is_written_once() {
        let (board, ..) = tests::board(&Tasks::new());
        let server = ServerName::parse("one").unwrap();
        let store = Noting::default();
        let keep = async || {
            board.mark_unsaved(&server);
            board.persist_unsaved(&store).await.unwrap();
            store.asked()
        };
        assert!(keep().await.is_empty(), "it has listed nothing");
        tests::list(&board, "one");
        store.is_stuck.store(true, Ordering::SeqCst);
        board.mark_unsaved(&server);
        let mut cut_off = Box::pin(board.persist_unsaved(&store));
        while lock(&store.asked).is_empty() {
            assert!(cut_off.as_mut().now_or_never().is_none());
            yield_now().await;
        }
        drop(cut_off);
        store.is_stuck.store(false, Ordering::SeqCst);
        board.persist_unsaved(&store).await.unwrap();
        assert_eq!(store.asked(), ["put", "put"], "the first was cut off");
        assert_eq!(keep().await, ["confirm"], "it is the same");
        tests::list(&board, "two");
        assert_eq!(keep().await, ["confirm"], "another server has listed");
        tests::list(&board, "one");
        assert_eq!(keep().await, ["put"], "it has listed something else");
        let mut next = board.begin_draft().unwrap();
        let more = Listing {
            prompts: vec![Raw::from_static("{}")],
            ..Listing::default()
        };
        next.state
            .offers
            .interactive
            .insert(server.clone(), more.into());
        next.publish();
        assert_eq!(keep().await, ["put"], "it lists more for some");
        store.is_empty.store(true, Ordering::SeqCst);
        assert_eq!(keep().await, ["confirm", "put"], "it is there no more");
    }
}
