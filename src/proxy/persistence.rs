//! What outlives this process: sessions of clients over streamable HTTP, and the lists of servers.
//!
//! Sessions are written in the background, many at a time, and read when a client shows an id that
//! nobody here knows. What a crash loses are those of the last moment, whose clients initialize
//! again. Nothing here is on the way of a call, but for one look at what a session has lost.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, sleep_until},
};

use super::{Proxy, lists};
use crate::{
    auth::Agent,
    catalog::Audience,
    clock,
    mcp::{Raw, method::notice},
    names::{Scope, ServerName},
    session::{
        Call, Event, Session,
        registry::SessionRefused,
        saved_session::{SavedSession, SessionChanges},
        state::SessionKind,
    },
    store::{SessionHash, SessionStore, Store, StoreError, StoredSession},
};

/// How long changes of sessions are gathered before they are written.
const WRITE_DELAY: Duration = Duration::from_millis(100);
/// Sessions written in one transaction.
const WRITE_BATCH: usize = 500;
/// Pause after the store failed.
const STORE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// How often it is written when sessions were last used, at the least; more often where they are
/// soon idle for too long.
const LAST_USED_INTERVAL: Duration = Duration::from_secs(600);
/// How long the last write of a stop may take.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Clients whose sessions can be looked for at a time; those of one session always wait for each
/// other.
const LOCKS: usize = 16;

/// The store, and who is reading from it.
#[derive(Debug)]
pub(super) struct SessionPersistence {
    store: Store,
    locks: [Mutex<()>; LOCKS],
}

impl SessionPersistence {
    pub(super) fn new(store: Store) -> Self {
        Self {
            store,
            locks: Default::default(),
        }
    }
}

impl Proxy {
    /// Serves what servers listed last, until they have been listed anew.
    pub async fn restore_lists(&self) {
        if let Some(memory) = &self.persistence {
            let listings = &*memory.store.listings;
            self.catalog_store.restore(listings, &self.backends).await;
        }
    }

    /// Begins to write down what outlives this process.
    pub(super) fn start_persistence(self: &Arc<Self>) {
        if self.persistence.is_none() {
            return;
        }
        self.sessions.changes().enable();
        let (proxy, stop) = (Arc::clone(self), self.tasks.stop_token().clone());
        self.tasks.spawn("session persistence", async move {
            tokio::select! {
                () = proxy.persist_sessions() => {}
                () = proxy.persist_lists() => {}
                () = stop.cancelled() => {}
            }
        });
    }

    async fn persist_lists(&self) {
        if let Some(memory) = &self.persistence {
            self.catalog_store
                .persist_listings(&*memory.store.listings)
                .await;
        }
    }

    async fn persist_sessions(&self) {
        let mut uses = Instant::now();
        loop {
            let done = tokio::select! {
                () = self.sessions.changes().wait_any() => {
                    sleep(WRITE_DELAY).await;
                    self.write_changes().await
                }
                () = sleep_until(uses) => {
                    uses = Instant::now() + self.last_used_interval();
                    self.write_last_used().await
                }
            };
            if let Err(error) = done {
                tracing::warn!(%error, "cannot persist sessions; clients have to reinitialize \
                    after a restart");
                sleep(STORE_RETRY_DELAY).await;
            }
        }
    }

    /// Writes everything that is still to be written, at the end of this process.
    pub async fn flush(&self) {
        let Some(memory) = &self.persistence else {
            return;
        };
        let last = async {
            self.write_changes().await?;
            self.write_last_used().await?;
            self.catalog_store
                .persist_unsaved(&*memory.store.listings)
                .await
        };
        match tokio::time::timeout(FINAL_WRITE_TIMEOUT, last).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "some sessions were not persisted"),
            Err(_) => tracing::warn!("some sessions were not persisted: timed out"),
        }
    }

    /// Writes sessions that changed and removes those that ended.
    async fn write_changes(&self) -> Result<(), StoreError> {
        let Some(memory) = &self.persistence else {
            return Ok(());
        };
        let row = |id: &str| {
            let session = self.sessions.get(id)?;
            self.stored_row(&session)
        };
        write_all(self.sessions.changes(), &*memory.store.sessions, row).await
    }

    fn stored_row(&self, session: &Session) -> Option<StoredSession> {
        Some(StoredSession {
            id: SessionHash::of(&session.id),
            agent: session.agent.id,
            used: self.last_used(session),
            body: SavedSession::of(session)?.to_json(),
        })
    }

    fn last_used(&self, session: &Session) -> Timestamp {
        let idle = SignedDuration::try_from(self.sessions.idle(session));
        clock::now() - idle.unwrap_or_default()
    }

    /// Pause between writes of when sessions were last used: that is the age of what a crash leaves.
    fn last_used_interval(&self) -> Duration {
        LAST_USED_INTERVAL.min(self.sessions.idle_max() / 4)
    }

    /// Writes when sessions were last used, and removes those that nobody uses any more.
    async fn write_last_used(&self) -> Result<(), StoreError> {
        let Some(memory) = &self.persistence else {
            return Ok(());
        };
        let mut used = Vec::new();
        self.sessions.for_each(|session| {
            // Some time more than since the last round: what is written twice does no harm.
            if session.kind == SessionKind::Streamable
                && self.sessions.idle(session) < 2 * LAST_USED_INTERVAL
            {
                used.push((SessionHash::of(&session.id), self.last_used(session)));
            }
        });
        for part in used.chunks(WRITE_BATCH) {
            memory.store.sessions.touch(part).await?;
        }
        // What was written may be older than the truth by that pause.
        let idle_max = self
            .sessions
            .idle_max()
            .saturating_add(self.last_used_interval());
        let idle_max = SignedDuration::try_from(idle_max).unwrap_or(SignedDuration::MAX);
        let per_agent_max = self.sessions.per_agent_max();
        let trim = memory
            .store
            .sessions
            .trim(clock::now() - idle_max, per_agent_max);
        trim.await
    }

    /// The session `id` of `agent` on the route of `scope`: one that lives, or one of an earlier
    /// process. A session of anybody else is as unknown as one that has ended.
    ///
    /// # Errors
    /// When one of an earlier process finds no room: it may be asked for again.
    pub async fn find_or_restore_session(
        self: &Arc<Self>,
        id: &str,
        agent: &Arc<Agent>,
        scope: &Scope,
    ) -> Result<Option<Arc<Session>>, SessionRefused> {
        let found = match self.sessions.find(id, agent) {
            Some(found) => Some(found),
            None => Box::pin(self.restore(id, agent, scope)).await?,
        };
        Ok(found.filter(|found| found.kind == SessionKind::Streamable && found.scope == *scope))
    }

    async fn restore(
        self: &Arc<Self>,
        id: &str,
        agent: &Arc<Agent>,
        scope: &Scope,
    ) -> Result<Option<Arc<Session>>, SessionRefused> {
        let Some(memory) = &self.persistence else {
            return Ok(None);
        };
        let hash = SessionHash::of(id);
        let _turn = memory.locks[usize::from(hash.0[0]) % LOCKS].lock().await;
        if self.sessions.get(id).is_some() {
            // Somebody was faster.
            return Ok(self.sessions.find(id, agent));
        }
        // Before the store is asked, where it may still be.
        if self.sessions.changes().has_ended(id) || self.is_draining() {
            return Ok(None);
        }
        let stored = match memory.store.sessions.session(hash).await {
            Ok(stored) => stored,
            Err(error) => {
                tracing::warn!(%error, "cannot look up a stored session");
                return Ok(None);
            }
        };
        let restored = stored.and_then(|stored| self.rebuild_session(&stored, id, agent, scope));
        let Some((session, saved)) = restored else {
            return Ok(None);
        };
        let session = self.sessions.restore(session)?;
        self.on_restored(&session, saved.servers_with_lost_state());
        Ok(Some(session))
    }

    /// The session that was stored, if it is still one of `agent` on the route of `scope`.
    fn rebuild_session(
        &self,
        stored: &StoredSession,
        id: &str,
        agent: &Arc<Agent>,
        scope: &Scope,
    ) -> Option<(Session, SavedSession)> {
        let idle = clock::now().duration_since(stored.used);
        let saved = SavedSession::from_json(&stored.body)?;
        let is_alive = stored.agent == agent.id
            && SignedDuration::try_from(self.sessions.idle_max()).is_ok_and(|most| idle < most)
            && agent.enabled
            && self.governance.directory().is_still_authorized(agent);
        if !is_alive || !saved.is_on_route(scope) {
            return None;
        }
        let session = Session::restored(id, Arc::clone(agent), scope.clone(), &saved)?;
        Some((session, saved))
    }

    /// Sets up what belongs to a session that was taken back.
    fn on_restored(self: &Arc<Self>, session: &Arc<Session>, lost: &[ServerName]) {
        if lists::audience_of(session) == Audience::Interactive {
            self.catalog_store.note_interactive_client();
        }
        self.record_client(session);
        self.start_servers_of(&session.agent);
        tracing::debug!(session = session.log_id, "restored a session");
        for server in lost {
            tracing::warn!(
                session = session.log_id,
                %server,
                "restored a session; the server's state for it is lost"
            );
        }
        if session.subscriptions().is_empty() {
            return;
        }
        let (proxy, session) = (Arc::clone(self), Arc::clone(session));
        self.tasks.spawn("subscriptions of a session", async move {
            tokio::select! {
                () = proxy.resubscribe(&session) => {}
                () = session.ended.cancelled() => {}
                () = proxy.tasks.stop_token().cancelled() => {}
            }
        });
    }

    /// Tells the client of a call that its server has forgotten it, if that is news.
    pub(super) fn notify_state_lost_in_call(call: &Call, server: &ServerName) {
        let Some(session) = &call.client.session else {
            return;
        };
        for server in session.take_lost_servers(Some(server)) {
            if let Some(warning) = state_lost_message(session, &server) {
                call.events.send(warning);
            }
        }
    }

    /// Tells the client of a session, on its own stream, which servers have forgotten it.
    pub(super) fn notify_state_lost(session: &Session) {
        for server in session.take_lost_servers(None) {
            if let Some(warning) = state_lost_message(session, &server) {
                session.deliver(warning);
            }
        }
    }
}

/// Writes the rows of sessions that changed to `store` and removes those that ended. What the store
/// does not take stays noted in `changes`, which says that there is something to write.
async fn write_all(
    changes: &SessionChanges,
    store: &dyn SessionStore,
    row: impl Fn(&str) -> Option<StoredSession>,
) -> Result<(), StoreError> {
    loop {
        let (changed, ended) = changes.take(WRITE_BATCH);
        if changed.is_empty() && ended.is_empty() {
            return Ok(());
        }
        let rows: Vec<StoredSession> = changed.iter().filter_map(|id| row(id)).collect();
        let gone: Vec<SessionHash> = ended.iter().map(|id| SessionHash::of(id)).collect();
        let written = async {
            if !rows.is_empty() {
                store.put(&rows).await?;
            }
            if !gone.is_empty() {
                store.remove(&gone).await?;
            }
            Ok(())
        };
        if let Err(error) = written.await {
            changes.restore_taken(&changed);
            return Err(error);
        }
        changes.forget_ended(&ended);
    }
}

/// The log message about a server that knows nothing any more, if the client wants it.
fn state_lost_message(session: &Session, server: &ServerName) -> Option<Event> {
    let params = Raw::from_value(&serde_json::json!({
        "level": "warning",
        "logger": env!("CARGO_PKG_NAME"),
        "data": format!(
            "the gateway and server {server} were restarted: the server's state for this session \
             is lost"
        ),
    }));
    session
        .logs()
        .accepts(Some(&params))
        .then(|| Event::Notification {
            method: notice::MESSAGE.into(),
            params: Some(params),
        })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::future::{BoxFuture, ready};
    use tokio::time::timeout;

    use super::*;

    /// Takes everything while `works`.
    #[derive(Debug, Default)]
    struct Flaky {
        works: AtomicBool,
        removed: std::sync::Mutex<Vec<SessionHash>>,
    }

    impl Flaky {
        fn done(&self) -> BoxFuture<'_, Result<(), StoreError>> {
            let done = if self.works.load(Ordering::Relaxed) {
                Ok(())
            } else {
                Err(StoreError::Busy {
                    path: "x".into(),
                    doing: "testing",
                    seconds: 0,
                })
            };
            Box::pin(ready(done))
        }
    }

    impl SessionStore for Flaky {
        fn put<'a>(&'a self, _: &'a [StoredSession]) -> BoxFuture<'a, Result<(), StoreError>> {
            self.done()
        }

        fn session(
            &self,
            _: SessionHash,
        ) -> BoxFuture<'_, Result<Option<StoredSession>, StoreError>> {
            Box::pin(ready(Ok(None)))
        }

        fn touch<'a>(
            &'a self,
            _: &'a [(SessionHash, Timestamp)],
        ) -> BoxFuture<'a, Result<(), StoreError>> {
            self.done()
        }

        fn remove<'a>(&'a self, ids: &'a [SessionHash]) -> BoxFuture<'a, Result<(), StoreError>> {
            if self.works.load(Ordering::Relaxed) {
                self.removed.lock().unwrap().extend(ids);
            }
            self.done()
        }

        fn trim(&self, _: Timestamp, _: usize) -> BoxFuture<'_, Result<(), StoreError>> {
            self.done()
        }
    }

    /// Whoever deleted a session must not find it again after a restart.
    #[tokio::test(start_paused = true)]
    async fn a_session_that_could_not_be_removed_is_removed_later() {
        let (changes, store) = (SessionChanges::default(), Flaky::default());
        let news = || timeout(STORE_RETRY_DELAY, changes.wait_any());
        changes.enable();
        changes.mark_ended("a");
        for _ in 0..3 {
            assert!(news().await.is_ok(), "there is something to write");
            let written = write_all(&changes, &store, |_| None).await;
            assert!(written.is_err() && changes.has_ended("a"));
        }
        store.works.store(true, Ordering::Relaxed);
        assert!(news().await.is_ok(), "it is still to be removed");
        write_all(&changes, &store, |_| None).await.unwrap();
        assert_eq!(*store.removed.lock().unwrap(), [SessionHash::of("a")]);
        assert!(!changes.has_ended("a"));
        assert!(news().await.is_err(), "nothing is left");
    }
}
