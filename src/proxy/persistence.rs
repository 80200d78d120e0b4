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
        registry::Unopened,
        saved::{Saved, SessionChanges},
        state::SessionKind,
    },
    store::{SessionHash, SessionStore, Store, StoreError, StoredSession},
};

/// How long changes of sessions are gathered before they are written.
const GATHER: Duration = Duration::from_millis(100);
/// Sessions written in one transaction.
const BATCH: usize = 500;
/// Pause after the store failed.
const PAUSE: Duration = Duration::from_secs(5);
/// How often it is written when sessions were last used, at the least; more often where they are
/// soon idle for too long.
const USES: Duration = Duration::from_secs(600);
/// How long the last write of a stop may take.
const LAST_WRITE: Duration = Duration::from_secs(5);
/// Clients whose sessions can be looked for at a time; those of one session always wait for each
/// other.
const LANES: usize = 16;

/// The store, and who is reading from it.
#[derive(Debug)]
pub(super) struct SessionPersistence {
    store: Store,
    lanes: [Mutex<()>; LANES],
}

impl SessionPersistence {
    pub(super) fn new(store: Store) -> Self {
        Self {
            store,
            lanes: Default::default(),
        }
    }
}

impl Proxy {
    /// Serves what servers listed last, until they have been listed anew.
    pub async fn remember_lists(&self) {
        if let Some(memory) = &self.memory {
            let listings = &*memory.store.listings;
            self.board.restore(listings, &self.backends).await;
        }
    }

    /// Begins to write down what outlives this process.
    pub(super) fn keep(self: &Arc<Self>) {
        if self.memory.is_none() {
            return;
        }
        self.sessions.changes().want();
        let (proxy, stop) = (Arc::clone(self), self.tasks.stop_token().clone());
        self.tasks.spawn("what outlives the process", async move {
            tokio::select! {
                () = proxy.keep_sessions() => {}
                () = proxy.keep_lists() => {}
                () = stop.cancelled() => {}
            }
        });
    }

    async fn keep_lists(&self) {
        if let Some(memory) = &self.memory {
            self.board.keep(&*memory.store.listings).await;
        }
    }

    async fn keep_sessions(&self) {
        let mut uses = Instant::now();
        loop {
            let done = tokio::select! {
                () = self.sessions.changes().any() => {
                    sleep(GATHER).await;
                    self.write_changes().await
                }
                () = sleep_until(uses) => {
                    uses = Instant::now() + self.uses_pause();
                    self.write_uses().await
                }
            };
            if let Err(error) = done {
                tracing::warn!(%error, "sessions are not kept; after a restart clients begin anew");
                sleep(PAUSE).await;
            }
        }
    }

    /// Writes everything that is still to be written, at the end of this process.
    pub async fn keep_all(&self) {
        let Some(memory) = &self.memory else { return };
        let last = async {
            self.write_changes().await?;
            self.write_uses().await?;
            self.board.keep_new(&*memory.store.listings).await
        };
        match tokio::time::timeout(LAST_WRITE, last).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "some sessions do not outlive this process"),
            Err(_) => tracing::warn!("some sessions do not outlive this process: no time is left"),
        }
    }

    /// Writes sessions that changed and removes those that ended.
    async fn write_changes(&self) -> Result<(), StoreError> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        let row = |id: &str| {
            let session = self.sessions.get(id)?;
            self.row(&session)
        };
        write_all(self.sessions.changes(), &*memory.store.sessions, row).await
    }

    fn row(&self, session: &Session) -> Option<StoredSession> {
        Some(StoredSession {
            id: SessionHash::of(&session.id),
            agent: session.agent.id,
            used: self.used(session),
            body: Saved::of(session)?.to_json(),
        })
    }

    fn used(&self, session: &Session) -> Timestamp {
        let idle = SignedDuration::try_from(self.sessions.idle(session));
        clock::now() - idle.unwrap_or_default()
    }

    /// Pause between writes of when sessions were last used: that is the age of what a crash leaves.
    fn uses_pause(&self) -> Duration {
        USES.min(self.sessions.idle_max() / 4)
    }

    /// Writes when sessions were last used, and removes those that nobody uses any more.
    async fn write_uses(&self) -> Result<(), StoreError> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        let mut used = Vec::new();
        self.sessions.each(|session| {
            // Some time more than since the last round: what is written twice does no harm.
            if session.kind == SessionKind::Streamable && self.sessions.idle(session) < 2 * USES {
                used.push((SessionHash::of(&session.id), self.used(session)));
            }
        });
        for part in used.chunks(BATCH) {
            memory.store.sessions.touch(part).await?;
        }
        // What was written may be older than the truth by that pause.
        let idle_max = self.sessions.idle_max().saturating_add(self.uses_pause());
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
    pub async fn session(
        self: &Arc<Self>,
        id: &str,
        agent: &Arc<Agent>,
        scope: &Scope,
    ) -> Result<Option<Arc<Session>>, Unopened> {
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
    ) -> Result<Option<Arc<Session>>, Unopened> {
        let Some(memory) = &self.memory else {
            return Ok(None);
        };
        let hash = SessionHash::of(id);
        let _turn = memory.lanes[usize::from(hash.0[0]) % LANES].lock().await;
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
                tracing::warn!(%error, "a session of before cannot be looked for");
                return Ok(None);
            }
        };
        let revived = stored.and_then(|stored| self.revived(&stored, id, agent, scope));
        let Some((session, saved)) = revived else {
            return Ok(None);
        };
        let session = self.sessions.take_back(session)?;
        self.welcome_back(&session, saved.lost());
        Ok(Some(session))
    }

    /// The session that was stored, if it is still one of `agent` on the route of `scope`.
    fn revived(
        &self,
        stored: &StoredSession,
        id: &str,
        agent: &Arc<Agent>,
        scope: &Scope,
    ) -> Option<(Session, Saved)> {
        let idle = clock::now().duration_since(stored.used);
        let saved = Saved::from_json(&stored.body)?;
        let is_alive = stored.agent == agent.id
            && SignedDuration::try_from(self.sessions.idle_max()).is_ok_and(|most| idle < most)
            && agent.enabled
            && self.governance.directory().still_knows(agent);
        if !is_alive || !saved.is_of(scope) {
            return None;
        }
        let session = Session::restored(id, Arc::clone(agent), scope.clone(), &saved)?;
        Some((session, saved))
    }

    /// Sets up what belongs to a session that was taken back.
    fn welcome_back(self: &Arc<Self>, session: &Arc<Session>, lost: &[ServerName]) {
        if lists::audience_of(session) == Audience::Able {
            self.board.expect_able();
        }
        self.note_client(session);
        tracing::debug!(session = session.mark, "a client goes on with its session");
        for server in lost {
            tracing::warn!(
                session = session.mark,
                %server,
                "a client goes on with its session; what this server knew of it is lost"
            );
        }
        if session.subscriptions().is_empty() {
            return;
        }
        let (proxy, session) = (Arc::clone(self), Arc::clone(session));
        self.tasks.spawn("subscriptions of a session", async move {
            tokio::select! {
                () = proxy.subscribe_again(&session) => {}
                () = session.ended.cancelled() => {}
                () = proxy.tasks.stop_token().cancelled() => {}
            }
        });
    }

    /// Tells the client of a call that its server has forgotten it, if that is news.
    pub(super) fn tell_lost_in(call: &Call, server: &ServerName) {
        let Some(session) = &call.client.session else {
            return;
        };
        for server in session.take_lost(Some(server)) {
            if let Some(warning) = warning(session, &server) {
                call.events.send(warning);
            }
        }
    }

    /// Tells the client of a session, on its own stream, which servers have forgotten it.
    pub(super) fn tell_lost(session: &Session) {
        for server in session.take_lost(None) {
            if let Some(warning) = warning(session, &server) {
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
        let (changed, ended) = changes.take(BATCH);
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
            changes.give_back(&changed);
            return Err(error);
        }
        changes.forget(&ended);
    }
}

/// The log message about a server that knows nothing any more, if the client wants it.
fn warning(session: &Session, server: &ServerName) -> Option<Event> {
    let params = Raw::from_value(&serde_json::json!({
        "level": "warning",
        "logger": env!("CARGO_PKG_NAME"),
        "data": format!(
            "the gateway was restarted, and the server {server} with it: what it knew of this \
             session is lost"
        ),
    }));
    session
        .logs()
        .want(Some(&params))
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
        let news = || timeout(PAUSE, changes.any());
        changes.want();
        changes.end("a");
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
