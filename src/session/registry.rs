//! The living legacy sessions, and what each of them is waiting for.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use dashmap::DashMap;
use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Event, ServerRequest, legacy,
    replay::{Item, Stream},
};
use crate::{
    auth::Agent,
    mcp::{Id, Level, Logs, Outcome, Raw, Revision, envelope},
    names::Scope,
};

/// Unanswered server requests a session may hold.
pub const ASKED_MAX: usize = 64;
/// Streams of a session that are kept for resumption, the finished ones included.
pub const STREAMS_MAX: usize = 16;
/// Bytes in the streams of a session at which finished ones are given up, the oldest first.
pub const STREAM_BYTES_MAX: usize = 16 << 20;
/// Calls a session may have running.
pub const CALLS_MAX: usize = 1024;
/// How long a session may go unused without a reader or a running call.
pub const IDLE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Event ids of the stream for messages that belong to no call name this one.
const STANDING: u64 = 0;

/// How a session's client is connected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// HTTP+SSE.
    Sse,
    /// stdin and stdout.
    Stdio,
    /// Streamable HTTP.
    Streamable,
}

/// What a client said in its `initialize`.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The revision agreed on.
    pub revision: Revision,
    /// `clientInfo`.
    pub info: Option<Raw>,
    /// `capabilities`, an object.
    pub capabilities: Raw,
    /// The capabilities in a canonical spelling; empty when there are none.
    pub profile: Arc<str>,
}

impl Opening {
    /// Whether servers can ask the client something.
    pub fn can_be_asked(&self) -> bool {
        legacy::declares_answers(&self.capabilities)
    }
}

/// One legacy session.
#[derive(Debug)]
pub struct Session {
    /// 256 random bits in hex; never a credential.
    pub id: String,
    /// Whose it is.
    pub agent: Arc<Agent>,
    /// What it sees.
    pub scope: Scope,
    /// How its client is connected.
    pub kind: Kind,
    opening: Mutex<Option<Arc<Opening>>>,
    logs: Mutex<Logs>,
    calls: Mutex<HashMap<Id, CancellationToken>>,
    asked: Mutex<HashMap<u64, oneshot::Sender<Outcome>>>,
    streams: Mutex<Vec<Arc<Stream>>>,
    standing: Mutex<Option<Arc<Stream>>>,
    subscriptions: Mutex<Vec<String>>,
    seen: Mutex<Option<[u64; 4]>>,
    next_stream: AtomicU64,
    used_ms: AtomicU64,
    initialized: AtomicBool,
    /// Whether the client can answer no more.
    mute: AtomicBool,
    /// Cancelled when the session ends.
    pub ended: CancellationToken,
}

impl Session {
    /// A session outside the registry, such as that of the process on stdin.
    pub fn new(kind: Kind, agent: Arc<Agent>, scope: Scope) -> Self {
        Self {
            id: format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()),
            agent,
            scope,
            kind,
            opening: Mutex::new(None),
            logs: Mutex::new(Logs::All),
            calls: Mutex::default(),
            asked: Mutex::default(),
            streams: Mutex::default(),
            standing: Mutex::default(),
            subscriptions: Mutex::default(),
            seen: Mutex::default(),
            next_stream: AtomicU64::new(1),
            used_ms: AtomicU64::new(0),
            initialized: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            ended: CancellationToken::new(),
        }
    }

    /// Notes what the client said in `initialize`; a second one replaces the first.
    pub fn open(&self, opening: Opening) {
        *lock(&self.opening) = Some(Arc::new(opening));
    }

    /// What the client said in `initialize`; `None` before it did.
    pub fn opening(&self) -> Option<Arc<Opening>> {
        lock(&self.opening).clone()
    }

    /// Notes that the client finished its handshake.
    pub fn set_initialized(&self) {
        self.initialized.store(true, Ordering::Relaxed);
    }

    /// Whether the client finished its handshake.
    pub fn is_initialized(&self) -> bool {
        self.initialized.load(Ordering::Relaxed)
    }

    /// Sets the least severe log message the client wants.
    pub fn set_level(&self, level: Level) {
        *lock(&self.logs) = Logs::From(level);
    }

    /// Which log messages the client wants.
    pub fn logs(&self) -> Logs {
        *lock(&self.logs)
    }

    /// Registers a running call, so that a cancellation can find it.
    ///
    /// # Errors
    /// When a call with the same id is running: the spec forbids reuse, and answers would be mixed.
    /// When [`CALLS_MAX`] are.
    pub fn begin(
        self: &Arc<Self>,
        id: &Id,
        cancel: CancellationToken,
    ) -> Result<Running, NotBegun> {
        let mut calls = lock(&self.calls);
        if calls.contains_key(id) {
            return Err(NotBegun::Duplicate);
        }
        if calls.len() >= CALLS_MAX {
            return Err(NotBegun::Busy);
        }
        calls.insert(id.clone(), cancel);
        Ok(Running {
            session: Arc::clone(self),
            id: id.clone(),
        })
    }

    /// Cancels the running call `id`; whether there was one.
    pub fn cancel(&self, id: &Id) -> bool {
        let found = lock(&self.calls).get(id).cloned();
        found.inspect(CancellationToken::cancel).is_some()
    }

    /// Calls running.
    pub fn in_flight(&self) -> usize {
        lock(&self.calls).len()
    }

    /// The wire form of `event`; a server request is registered as waiting for this client.
    /// `None` for what is no message.
    pub fn encode(&self, event: Event) -> Option<Encoded> {
        match event {
            Event::Notification { method, params } => {
                let bytes = envelope::notification(&method, params.as_ref());
                Some(Encoded {
                    bytes,
                    may_drop: true,
                })
            }
            Event::Request(request) => self.ask(request),
            Event::Pause { .. } => None,
        }
    }

    fn ask(&self, request: ServerRequest) -> Option<Encoded> {
        let mut asked = lock(&self.asked);
        asked.retain(|_, answer| !answer.is_closed());
        if asked.len() >= ASKED_MAX || self.mute.load(Ordering::Relaxed) {
            return None;
        }
        let id = Id::number(request.key);
        let bytes = envelope::request(&id, request.method.as_str(), request.params.as_ref());
        asked.insert(request.key, request.answer);
        Some(Encoded {
            bytes,
            may_drop: false,
        })
    }

    /// Notes that the client can answer no more: whoever waits for it, now or later, is told.
    pub fn set_mute(&self) {
        let mut asked = lock(&self.asked);
        self.mute.store(true, Ordering::Relaxed);
        asked.clear();
    }

    /// Hands the client's answer to the server request `id`; whether one was waiting.
    pub fn answer(&self, id: &Id, outcome: Outcome) -> bool {
        let waiting = id
            .as_number()
            .and_then(|key| lock(&self.asked).remove(&key));
        waiting.is_some_and(|waiting| waiting.send(outcome).is_ok())
    }

    /// Sends a message that belongs to no call. `false` when the client has no open stream for it.
    pub fn deliver(&self, event: Event) -> bool {
        let Some(stream) = self.standing() else {
            return false;
        };
        let Some(encoded) = self.encode(event) else {
            return false;
        };
        if encoded.may_drop {
            stream.offer(encoded.bytes);
        } else {
            stream.push(Item::Message(encoded.bytes));
        }
        true
    }

    /// The stream for messages that belong to no call, once its client has opened it.
    pub fn standing(&self) -> Option<Arc<Stream>> {
        lock(&self.standing).clone()
    }

    /// The same stream, opened when there is none.
    pub fn open_standing(&self) -> Arc<Stream> {
        let mut standing = lock(&self.standing);
        if let Some(stream) = standing.as_ref().filter(|stream| !stream.is_finished()) {
            return Arc::clone(stream);
        }
        // A client of streamable HTTP can open the stream again; for others it is the session.
        let overrun = match self.kind {
            Kind::Sse | Kind::Stdio => self.ended.clone(),
            Kind::Streamable => CancellationToken::new(),
        };
        let stream = Arc::new(Stream::watched(STANDING, overrun));
        if self.ended.is_cancelled() {
            stream.finish();
        }
        *standing = Some(Arc::clone(&stream));
        stream
    }

    /// A new stream for the answer to one call.
    pub fn open_stream(&self) -> Arc<Stream> {
        self.add_stream()
    }

    /// The stream `id`, while it is kept.
    pub fn stream(&self, id: u64) -> Option<Arc<Stream>> {
        if id == STANDING {
            return Some(self.open_standing());
        }
        lock(&self.streams)
            .iter()
            .find(|stream| stream.id == id)
            .cloned()
    }

    fn add_stream(&self) -> Arc<Stream> {
        let stream = Arc::new(Stream::new(
            self.next_stream.fetch_add(1, Ordering::Relaxed),
        ));
        self.trim();
        let mut streams = lock(&self.streams);
        if streams.len() >= STREAMS_MAX
            && let Some(oldest) = streams.iter().position(|stream| stream.is_finished())
        {
            streams.remove(oldest);
        }
        streams.push(Arc::clone(&stream));
        stream
    }

    /// Gives up finished streams that were read, and the oldest ones beyond the budget.
    fn trim(&self) {
        let mut streams = lock(&self.streams);
        streams.retain(|stream| !stream.is_spent());
        let mut bytes: usize = streams.iter().map(|stream| stream.bytes()).sum();
        streams.retain(|stream| {
            let keep = bytes <= STREAM_BYTES_MAX || !stream.is_finished();
            if !keep {
                bytes -= stream.bytes();
            }
            keep
        });
    }

    /// Whether somebody reads one of its streams: a body of an answer attends the stream it follows.
    fn has_reader(&self) -> bool {
        self.standing().is_some_and(|stream| stream.readers() > 0)
            || lock(&self.streams)
                .iter()
                .any(|stream| stream.readers() > 0)
    }

    /// Notes the state of the lists that the client has been told of; the state before.
    pub fn swap_seen(&self, digests: [u64; 4]) -> Option<[u64; 4]> {
        lock(&self.seen).replace(digests)
    }

    /// Resource URIs this session subscribed to, as it named them.
    pub fn subscriptions(&self) -> Vec<String> {
        lock(&self.subscriptions).clone()
    }

    /// Adds a subscription; whether it is new.
    pub fn subscribe(&self, uri: &str) -> bool {
        let mut all = lock(&self.subscriptions);
        let new = !all.iter().any(|known| known == uri);
        if new {
            all.push(uri.to_owned());
        }
        new
    }

    /// Removes a subscription; whether there was one.
    pub fn unsubscribe(&self, uri: &str) -> bool {
        let mut all = lock(&self.subscriptions);
        let before = all.len();
        all.retain(|known| known != uri);
        all.len() < before
    }

    /// Ends the session: its calls are cancelled, its streams finished.
    pub fn end(&self) {
        self.ended.cancel();
        for cancel in lock(&self.calls).values() {
            cancel.cancel();
        }
        lock(&self.asked).clear();
        for stream in lock(&self.streams).iter() {
            stream.finish();
        }
        if let Some(standing) = self.standing() {
            standing.finish();
        }
    }
}

/// A message ready to be written.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The JSON-RPC message.
    pub bytes: Bytes,
    /// Whether a reader that is too slow may miss it.
    pub may_drop: bool,
}

/// Why a call was not begun.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NotBegun {
    /// Its id is in use.
    #[error("a request with this id is still running in this session")]
    Duplicate,
    /// Too many are running.
    #[error("{CALLS_MAX} requests are still running in this session")]
    Busy,
}

/// Marks a call as running until dropped.
#[derive(Debug)]
pub struct Running {
    session: Arc<Session>,
    id: Id,
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.session.calls).remove(&self.id);
    }
}

/// All sessions of clients that connect over HTTP.
#[derive(Debug)]
pub struct Sessions {
    by_id: DashMap<String, Arc<Session>>,
    per_agent_max: usize,
    start: Instant,
}

impl Sessions {
    /// An empty registry that holds at most `per_agent_max` sessions of an agent.
    pub fn new(per_agent_max: usize) -> Self {
        Self {
            by_id: DashMap::new(),
            per_agent_max,
            start: Instant::now(),
        }
    }

    /// Opens a session; beyond the limit the agent's least recently used one without a running
    /// call ends.
    pub fn open(&self, kind: Kind, agent: Arc<Agent>, scope: Scope) -> Arc<Session> {
        self.make_room(&agent);
        let session = Arc::new(Session::new(kind, agent, scope));
        self.touch(&session);
        self.by_id.insert(session.id.clone(), Arc::clone(&session));
        session
    }

    /// Registers a session that was opened elsewhere, such as that of the process on stdin.
    pub fn adopt(&self, session: &Arc<Session>) {
        self.by_id.insert(session.id.clone(), Arc::clone(session));
    }

    /// The session `id` of `agent`; the possession of an id proves nothing.
    pub fn find(&self, id: &str, agent: &Agent) -> Option<Arc<Session>> {
        let session = self.by_id.get(id).map(|entry| Arc::clone(&entry))?;
        if session.agent.id != agent.id {
            return None;
        }
        self.touch(&session);
        Some(session)
    }

    /// Ends the session `id`.
    pub fn close(&self, id: &str) {
        if let Some((_, session)) = self.by_id.remove(id) {
            session.end();
        }
    }

    /// Ends all sessions.
    pub fn close_all(&self) {
        self.by_id.retain(|_, session| {
            session.end();
            false
        });
    }

    /// Ends the sessions that nobody has used for [`IDLE_MAX`], and trims the streams of the others.
    pub fn sweep(&self) {
        let now = self.now_ms();
        let idle_max = u64::try_from(IDLE_MAX.as_millis()).unwrap_or(u64::MAX);
        self.by_id.retain(|_, session| {
            session.trim();
            if session.kind == Kind::Stdio || session.in_flight() > 0 || session.has_reader() {
                self.touch(session);
                return true;
            }
            let used = session.used_ms.load(Ordering::Relaxed);
            let keep = now.saturating_sub(used) < idle_max;
            if !keep {
                session.end();
            }
            keep
        });
    }

    /// Calls `visit` with every session.
    pub fn each(&self, mut visit: impl FnMut(&Arc<Session>)) {
        for entry in &self.by_id {
            visit(&entry);
        }
    }

    /// Sessions open.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    fn touch(&self, session: &Session) {
        session.used_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn make_room(&self, agent: &Agent) {
        if self.by_id.len() < self.per_agent_max {
            return;
        }
        let mut held = 0;
        let mut oldest: Option<((bool, u64), String)> = None;
        for entry in &self.by_id {
            if entry.agent.id != agent.id {
                continue;
            }
            held += 1;
            // Those that somebody listens to go last.
            let used = (entry.has_reader(), entry.used_ms.load(Ordering::Relaxed));
            if entry.in_flight() == 0 && oldest.as_ref().is_none_or(|(best, _)| used < *best) {
                oldest = Some((used, entry.id.clone()));
            }
        }
        if held >= self.per_agent_max
            && let Some((_, id)) = oldest
        {
            self.close(&id);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent() -> Arc<Agent> {
        Arc::new(Agent::anonymous())
    }

    #[test]
    fn the_least_recently_used_session_makes_room() {
        let sessions = Sessions::new(2);
        let first = sessions.open(Kind::Streamable, agent(), Scope::All);
        let second = sessions.open(Kind::Streamable, agent(), Scope::All);
        first.used_ms.store(5, Ordering::Relaxed);
        second.used_ms.store(3, Ordering::Relaxed);
        assert_eq!(sessions.len(), 2, "at the limit");
        let third = sessions.open(Kind::Streamable, agent(), Scope::All);
        assert_eq!(sessions.len(), 2, "past the limit one ended");
        assert!(second.ended.is_cancelled());
        sessions.close(&third.id);
        sessions.open(Kind::Streamable, agent(), Scope::All);
        assert!(
            !first.ended.is_cancelled(),
            "back under the limit nothing ends"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_session_ends_and_one_with_a_call_does_not() {
        let sessions = Sessions::new(8);
        let idle = sessions.open(Kind::Streamable, agent(), Scope::All);
        let busy = sessions.open(Kind::Streamable, agent(), Scope::All);
        let _running = busy
            .begin(&Id::number(1), CancellationToken::new())
            .unwrap();
        sessions.sweep();
        assert!(!idle.ended.is_cancelled());
        tokio::time::advance(IDLE_MAX).await;
        sessions.sweep();
        assert!(idle.ended.is_cancelled() && !busy.ended.is_cancelled());
    }

    #[test]
    fn a_session_answers_only_its_own_agent() {
        let sessions = Sessions::new(8);
        let session = sessions.open(Kind::Streamable, agent(), Scope::All);
        let stranger = Agent {
            id: Uuid::from_u128(1),
            name: "stranger".to_owned(),
        };
        assert!(sessions.find(&session.id, &stranger).is_none());
        assert!(sessions.find(&session.id, &Agent::anonymous()).is_some());
    }

    #[test]
    fn an_id_in_use_is_refused_until_its_call_ends() {
        let session = Arc::new(Session::new(Kind::Streamable, agent(), Scope::All));
        let id = Id::number(1);
        let running = session.begin(&id, CancellationToken::new()).unwrap();
        assert!(session.begin(&id, CancellationToken::new()).is_err());
        drop(running);
        assert!(session.begin(&id, CancellationToken::new()).is_ok());
    }

    #[test]
    fn only_an_answer_that_is_awaited_is_taken() {
        let session = Session::new(Kind::Streamable, agent(), Scope::All);
        let (answer, mut taken) = oneshot::channel();
        let method = crate::mcp::Method::parse("roots/list");
        session.encode(Event::Request(ServerRequest {
            key: 9,
            method,
            params: None,
            answer,
        }));
        assert!(!session.answer(&Id::number(8), Ok(Raw::from_static("{}"))));
        assert!(session.answer(&Id::number(9), Ok(Raw::from_static("{}"))));
        assert!(
            !session.answer(&Id::number(9), Ok(Raw::from_static("{}"))),
            "only once"
        );
        assert_eq!(taken.try_recv().unwrap(), Ok(Raw::from_static("{}")));
    }
}
