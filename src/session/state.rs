//! One legacy session: what its client said about itself, and what it is waiting for.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Cancel, Event, ListViewer, ServerRequest,
    client_info::ClientInfo,
    client_questions::ClientQuestions,
    outgoing::{Encoded, Overflow},
    replay::{ReaderStalled, ReplayStream, StreamItem},
    running_calls::{CallRejected, Calls, IdSharing, RunningGuard},
    saved_session::{SavedSession, SessionChanges},
    streams::SessionStreams,
    subscriptions::{Subscriptions, TooManySubscriptions},
};
use crate::{
    auth::Agent,
    clock,
    lock::lock,
    mcp::{Id, Level, LogFilter, Outcome, Raw, Response},
    names::{Scope, ServerName},
};

/// How a session's client is connected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SessionKind {
    /// HTTP+SSE.
    Sse,
    /// stdin and stdout.
    Stdio,
    /// Streamable HTTP.
    Streamable,
}

/// What logs and the audit call the session `id`: the first 16 hex digits of the id's SHA-256, of
/// which the store has the whole. So nobody who reads them can go on with the session.
pub fn log_id(id: &str) -> String {
    let hash: [u8; 32] = Sha256::digest(id.as_bytes()).into();
    // Eight bytes: two of the sessions that a machine ever has do not meet in so many.
    let start = hash.first_chunk().expect("32 bytes begin with 8");
    format!("{:016x}", u64::from_be_bytes(*start))
}

/// One legacy session.
#[derive(Debug)]
pub struct Session {
    /// 256 random bits in hex; never a credential, but nobody else's to know: who has it and the
    /// agent's key can go on with the session.
    pub id: String,
    /// What logs and the audit call it, see [`log_id`].
    pub log_id: String,
    /// Whose it is.
    pub agent: Arc<Agent>,
    /// What it sees.
    pub scope: Scope,
    /// How its client is connected.
    pub kind: SessionKind,
    client_info: Mutex<Option<Arc<ClientInfo>>>,
    logs: Mutex<LogFilter>,
    pub(super) calls: Calls,
    questions: ClientQuestions,
    pub(super) streams: SessionStreams,
    subscriptions: Subscriptions,
    seen_digests: Mutex<Option<[u64; 4]>>,
    /// Servers with a connection for this session alone.
    dedicated_servers: Mutex<BTreeSet<ServerName>>,
    /// Servers that know it on a connection of many.
    shared_servers: Mutex<BTreeSet<ServerName>>,
    /// Those that had one before a restart, while the client has not been told.
    lost_servers: Mutex<BTreeSet<ServerName>>,
    /// Whom it tells that it changed, when it outlives the process.
    changes: OnceLock<Arc<SessionChanges>>,
    pub(super) used_ms: AtomicU64,
    initialized: AtomicBool,
    /// Cancelled when the session ends.
    pub ended: CancellationToken,
}

impl Session {
    /// A session outside the registry, such as that of the process on stdin.
    pub fn new(kind: SessionKind, agent: Arc<Agent>, scope: Scope) -> Self {
        let id = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        Self {
            log_id: log_id(&id),
            id,
            agent,
            scope,
            kind,
            client_info: Mutex::new(None),
            logs: Mutex::new(LogFilter::All),
            calls: Calls::default(),
            questions: ClientQuestions::default(),
            streams: SessionStreams::with_ids_after(0),
            subscriptions: Subscriptions::default(),
            seen_digests: Mutex::default(),
            dedicated_servers: Mutex::default(),
            shared_servers: Mutex::default(),
            lost_servers: Mutex::default(),
            changes: OnceLock::new(),
            used_ms: AtomicU64::new(0),
            initialized: AtomicBool::new(false),
            ended: CancellationToken::new(),
        }
    }

    /// Who looks at its lists.
    pub fn list_viewer(&self) -> ListViewer<'_> {
        ListViewer {
            agent: &self.agent,
            scope: &self.scope,
        }
    }

    /// The session `id` of an earlier process; `None` when it cannot be understood.
    pub fn restored(
        id: &str,
        agent: Arc<Agent>,
        scope: Scope,
        saved: &SavedSession,
    ) -> Option<Self> {
        let capabilities = saved.capabilities.clone();
        let capabilities = capabilities.filter(Raw::is_object);
        let capabilities = capabilities.unwrap_or(Raw::from_static("{}"));
        let info = ClientInfo::new(saved.revision()?, saved.info.clone(), capabilities);
        // More milliseconds have passed since 1970 than streams were opened before.
        let life = u64::try_from(clock::now().as_millisecond()).unwrap_or(1);
        Some(Self {
            log_id: log_id(id),
            id: id.to_owned(),
            client_info: Mutex::new(Some(Arc::new(info))),
            logs: Mutex::new(saved.logs()),
            subscriptions: Subscriptions::to(&saved.subscriptions),
            seen_digests: Mutex::new(saved.seen),
            lost_servers: Mutex::new(saved.own.iter().cloned().collect()),
            streams: SessionStreams::with_ids_after(life),
            initialized: AtomicBool::new(saved.initialized),
            ..Self::new(SessionKind::Streamable, agent, scope)
        })
    }

    /// From now on, tells `changes` whenever what outlives the process has changed.
    pub(super) fn set_change_tracker(&self, changes: &Arc<SessionChanges>) {
        self.changes.get_or_init(|| Arc::clone(changes));
    }

    fn mark_changed(&self) {
        if let Some(changes) = self.changes.get() {
            changes.mark_changed(&self.id);
        }
    }

    /// Notes what the client said in `initialize`; a second one replaces the first.
    pub fn initialize(&self, info: ClientInfo) {
        *lock(&self.client_info) = Some(Arc::new(info));
        self.mark_changed();
    }

    /// What the client said in `initialize`; `None` before it did.
    pub fn client_info(&self) -> Option<Arc<ClientInfo>> {
        lock(&self.client_info).clone()
    }

    /// Notes that the client finished its handshake.
    pub fn set_initialized(&self) {
        self.initialized.store(true, Ordering::Relaxed);
        self.mark_changed();
    }

    /// Whether the client finished its handshake.
    pub fn is_initialized(&self) -> bool {
        self.initialized.load(Ordering::Relaxed)
    }

    /// Sets the least severe log message the client wants.
    pub fn set_level(&self, level: Level) {
        *lock(&self.logs) = LogFilter::From(level);
        self.mark_changed();
    }

    /// Which log messages the client wants.
    pub fn logs(&self) -> LogFilter {
        *lock(&self.logs)
    }

    /// Registers a running call, so that a cancellation can find it.
    ///
    /// # Errors
    /// When a call with the same id is running and `sharing` refuses that: answers would be mixed.
    /// When [`CALLS_MAX`](super::running_calls::CALLS_MAX) are. When the session has ended.
    pub fn begin(
        self: &Arc<Self>,
        id: &Id,
        sharing: IdSharing,
        cancel: Cancel,
    ) -> Result<RunningGuard, CallRejected> {
        self.calls.begin(self, id, sharing, cancel)
    }

    /// Cancels the running call `id`, as its client wants, which said `params`; whether there was one, and
    /// no other that has the id.
    pub fn cancel(&self, id: &Id, params: &Raw) -> bool {
        self.calls.cancel(id, params)
    }

    /// Calls running.
    pub fn in_flight(&self) -> usize {
        self.calls.in_flight()
    }

    /// The wire form of `event`; a server request is registered as waiting for this client.
    /// `None` for what is no message.
    pub fn encode(&self, event: Event) -> Option<Encoded> {
        match event {
            Event::Notification { method, params } => {
                Some(Encoded::notification(&method, params.as_ref()))
            }
            Event::Request(request) => self.ask(request),
            Event::Pause { .. } => None,
        }
    }

    fn ask(&self, request: ServerRequest) -> Option<Encoded> {
        let bytes = self.questions.ask(request)?;
        let overflow = Overflow::Required;
        Some(Encoded { bytes, overflow })
    }

    /// Notes that the client can answer no more: whoever waits for it, now or later, is told.
    pub fn disconnect_client(&self) {
        self.questions.disconnect();
    }

    /// Hands the client's answer to the server request `id`; whether one was waiting.
    pub fn answer(&self, id: &Id, outcome: Outcome) -> bool {
        self.questions.answer(id, outcome)
    }

    /// As [`Session::answer`], for what a client sent as an answer.
    pub fn handle_response(&self, response: Response) -> bool {
        let id = response.id;
        id.is_some_and(|id| self.answer(&id, response.outcome))
    }

    /// Hands the client's progress on a server request to its server; whether one waits for it.
    /// What is too much for the server is lost.
    pub fn progress(&self, params: &Raw) -> bool {
        self.questions.progress(params)
    }

    /// Sends a message that belongs to no call. `false` when the client has no open stream for it.
    pub fn deliver(&self, event: Event) -> bool {
        let Some(stream) = self.standalone_stream() else {
            return false;
        };
        let Some(encoded) = self.encode(event) else {
            return false;
        };
        encoded.push_to(&stream);
        true
    }

    /// The stream for messages that belong to no call, once its client has opened it.
    pub fn standalone_stream(&self) -> Option<Arc<ReplayStream>> {
        self.streams.standalone()
    }

    /// The same stream, opened when there is none.
    pub fn open_standalone_stream(&self) -> Arc<ReplayStream> {
        // A client of streamable HTTP can open the stream again; for others it is the session.
        let overrun = || match self.kind {
            SessionKind::Sse | SessionKind::Stdio => self.ended.clone(),
            SessionKind::Streamable => CancellationToken::new(),
        };
        let has_ended = || self.ended.is_cancelled();
        self.streams.open_standalone(overrun, has_ended)
    }

    /// Adds an answer to one of its streams once there is room; at once when the session has ended,
    /// since its streams wait for the answer then.
    ///
    /// # Errors
    /// When the client did not make room in time; the stream is finished then.
    pub async fn send(&self, answer: Bytes, stream: &ReplayStream) -> Result<(), ReaderStalled> {
        tokio::select! {
            biased;
            sent = stream.send(answer.clone()) => sent,
            () = self.ended.cancelled() => {
                stream.push_required(StreamItem::Message(answer));
                Ok(())
            }
        }
    }

    /// A new stream for the answer to one call.
    pub fn open_stream(&self) -> Arc<ReplayStream> {
        self.streams.open()
    }

    /// The stream `id`, while it is kept.
    pub fn stream(&self, id: u64) -> Option<Arc<ReplayStream>> {
        if self.streams.is_standalone(id) {
            return Some(self.open_standalone_stream());
        }
        self.streams.answer(id)
    }

    /// Whether `id` was that of the stream for messages that belong to no call, before a restart.
    pub fn was_standalone(&self, id: u64) -> bool {
        self.streams.was_standalone(id)
    }

    /// Whether somebody reads its stream for what belongs to no call.
    pub fn is_listening(&self) -> bool {
        self.streams.is_listening()
    }

    /// Notes the state of the lists that the client has been told of; the state before.
    pub fn swap_seen_digests(&self, digests: [u64; 4]) -> Option<[u64; 4]> {
        let before = lock(&self.seen_digests).replace(digests);
        if before != Some(digests) {
            self.mark_changed();
        }
        before
    }

    /// The state of the lists that the client has been told of.
    pub(super) fn seen_digests(&self) -> Option<[u64; 4]> {
        *lock(&self.seen_digests)
    }

    /// Notes that `server` has a connection for this session alone, and may remember things there.
    pub fn note_dedicated(&self, server: &ServerName) {
        if lock(&self.dedicated_servers).insert(server.clone()) {
            self.mark_changed();
        }
    }

    /// Notes that `server` knows this session on a connection of many.
    pub fn note_shared(&self, server: &ServerName) {
        let mut shared = lock(&self.shared_servers);
        if !shared.contains(server) {
            shared.insert(server.clone());
        }
    }

    /// Whether `server` knows this session on a connection of many.
    pub fn is_shared_with(&self, server: &ServerName) -> bool {
        lock(&self.shared_servers).contains(server)
    }

    /// Servers with a connection for this session alone, or that had one while the client has not been
    /// told of its end.
    pub(super) fn dedicated_servers(&self) -> Vec<ServerName> {
        let lost = lock(&self.lost_servers).clone();
        lost.union(&lock(&self.dedicated_servers))
            .cloned()
            .collect()
    }

    /// The servers, or only `one`, that lost with a restart what they knew of this session; each is
    /// given once, so that the client is told once.
    pub fn take_lost_servers(&self, one: Option<&ServerName>) -> Vec<ServerName> {
        let mut lost = lock(&self.lost_servers);
        if lost.is_empty() {
            return Vec::new();
        }
        let taken: Vec<ServerName> = match one {
            Some(server) => lost.take(server).into_iter().collect(),
            None => std::mem::take(&mut *lost).into_iter().collect(),
        };
        drop(lost);
        if !taken.is_empty() {
            self.mark_changed();
        }
        taken
    }

    /// Resource URIs this session subscribed to, as it named them.
    pub fn subscriptions(&self) -> Vec<String> {
        self.subscriptions.uris()
    }

    /// Whether it has any.
    pub fn is_subscribed(&self) -> bool {
        !self.subscriptions.is_empty()
    }

    /// Adds a subscription; whether it is new.
    ///
    /// # Errors
    /// Where the session would have more than [`SUBSCRIPTIONS_MAX`], or with
    /// [`SUBSCRIPTION_BYTES_MAX`] of URIs.
    ///
    /// [`SUBSCRIPTIONS_MAX`]: super::subscriptions::SUBSCRIPTIONS_MAX
    /// [`SUBSCRIPTION_BYTES_MAX`]: super::subscriptions::SUBSCRIPTION_BYTES_MAX
    pub fn subscribe(&self, uri: &str) -> Result<bool, TooManySubscriptions> {
        let is_new = self.subscriptions.add(uri)?;
        if is_new {
            self.mark_changed();
        }
        Ok(is_new)
    }

    /// Notes what a subscribed URI names: a server, and the URI in its spelling. While the server is
    /// away, and where it may no longer be seen, nothing else tells.
    pub fn set_subscription_target(&self, uri: &str, server: &ServerName, original: &str) {
        self.subscriptions.set_target(uri, server, original);
    }

    /// What the subscribed URI named when that was noted last.
    pub fn subscription_target(&self, uri: &str) -> Option<(ServerName, String)> {
        self.subscriptions.target_of(uri)
    }

    /// Removes a subscription; whether there was one.
    pub fn unsubscribe(&self, uri: &str) -> bool {
        let was_there = self.subscriptions.remove(uri);
        if was_there {
            self.mark_changed();
        }
        was_there
    }

    /// Ends the session: its calls are cancelled, and its streams are finished as soon as their
    /// answers are out.
    pub fn end(&self) {
        self.ended.cancel();
        self.questions.cancel_all();
        if self.calls.cancel_all() {
            self.streams.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::replay::RETAINED_MESSAGES_MAX;

    fn agent() -> Arc<Agent> {
        Arc::new(Agent::anonymous())
    }

    #[test]
    fn an_id_in_use_is_refused_until_its_call_ends() {
        let session = Arc::new(Session::new(SessionKind::Streamable, agent(), Scope::All));
        let id = Id::number(1);
        let running = session
            .begin(&id, IdSharing::Refused, Cancel::default())
            .unwrap();
        assert!(
            session
                .begin(&id, IdSharing::Refused, Cancel::default())
                .is_err()
        );
        drop(running);
        assert!(
            session
                .begin(&id, IdSharing::Refused, Cancel::default())
                .is_ok()
        );
    }

    /// Where each answer has its own response, calls of one id run beside each other; a cancellation that
    /// names several of them ends none.
    #[test]
    fn calls_may_share_an_id_where_their_answers_are_told_apart() {
        let session = Arc::new(Session::new(SessionKind::Streamable, agent(), Scope::All));
        let id = Id::number(1);
        let begin = || {
            let cancel = Cancel::default();
            let running = session.begin(&id, IdSharing::Allowed, cancel.clone());
            (running.unwrap(), cancel)
        };
        let cancel = || session.cancel(&id, &Raw::from_static(r#"{"requestId":1}"#));
        let ((mut first, first_cancel), (mut second, second_cancel)) = (begin(), begin());
        assert_eq!(session.in_flight(), 2);
        assert!(!cancel(), "nobody knows which is meant");
        assert!(!first_cancel.is_cancelled() && !second_cancel.is_cancelled());
        assert!(first.mark_answered());
        drop(first);
        assert!(cancel(), "one is left");
        assert!(second_cancel.is_cancelled());
        assert!(!second.mark_answered());
        let (_third, _) = begin();
        let refused = session.begin(&id, IdSharing::Refused, Cancel::default());
        assert_eq!(refused.unwrap_err(), CallRejected::Duplicate);
    }

    /// Who cancelled a call expects no answer; who had it cut off does.
    #[test]
    fn an_answer_is_expected_unless_its_client_cancelled() {
        let check = |cancel: fn(&Session), expect: bool| {
            let session = Arc::new(Session::new(SessionKind::Sse, agent(), Scope::All));
            let token = Cancel::default();
            let mut running = session
                .begin(&Id::number(1), IdSharing::Refused, token.clone())
                .unwrap();
            cancel(&session);
            assert!(token.is_cancelled());
            assert_eq!(running.mark_answered(), expect);
        };
        let by_client = |session: &Session| {
            let params = Raw::from_static(r#"{"requestId":1}"#);
            assert!(session.cancel(&Id::number(1), &params));
        };
        check(by_client, false);
        check(Session::end, true);
    }

    #[test]
    fn an_id_is_free_before_its_answer_is_out() {
        let session = Arc::new(Session::new(SessionKind::Streamable, agent(), Scope::All));
        let stream = session.open_stream();
        let id = Id::number(1);
        let begin = || session.begin(&id, IdSharing::Refused, Cancel::default());
        let mut running = begin().unwrap();
        assert!(running.mark_answered());
        assert!(!running.mark_answered(), "only once");
        drop(begin().expect("the id is free"));
        session.end();
        assert!(!stream.is_finished(), "the answer is not out");
        drop(running);
        assert!(stream.is_finished());
    }

    /// A client that does not read holds up neither the end of its session nor the last answers.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_session_waits_for_no_reader() {
        let session = Arc::new(Session::new(SessionKind::Sse, agent(), Scope::All));
        let stream = session.open_standalone_stream();
        for _ in 0..=RETAINED_MESSAGES_MAX {
            stream.push_droppable(Bytes::from_static(b"{}"));
        }
        let start = tokio::time::Instant::now();
        let running = session.begin(&Id::number(1), IdSharing::Refused, Cancel::default());
        let answer = session.send(Bytes::from_static(b"last"), &stream);
        let end = async {
            session.end();
            assert!(!stream.is_finished(), "an answer is still to come");
        };
        let (sent, ()) = tokio::join!(answer, end);
        sent.unwrap();
        drop(running);
        assert!(stream.is_finished());
        assert_eq!(start.elapsed(), std::time::Duration::ZERO);
        let mut place = stream.resume(0);
        let mut last = None;
        while let Some(item) = stream.next(&mut place).await {
            last = Some(item);
        }
        assert_eq!(last, Some(StreamItem::Message(Bytes::from_static(b"last"))));
    }
}
