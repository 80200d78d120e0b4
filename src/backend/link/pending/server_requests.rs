//! What servers ask clients: each question to the one client it belongs to, its answer back, and a
//! look at both.
//!
//! Called by the link that a question comes on. What must stay true: only the client that was asked
//! can answer, the reader of the connection never waits, and nothing passes that the scan of the
//! call, or that of the moment where none is under way, does not let pass.

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{PendingRequests, QuestionRecording, Roots, recipient::Recipient};
use crate::{
    backend::link::{
        exchange_activity::{Activity, Suspended},
        recent_calls::LATE_REQUEST_WINDOW,
    },
    catalog::{UriMap, rewrite},
    governance::{CallScanners, QuestionEnd},
    lock::lock,
    mcp::{
        Era, Id, Method, Outcome, Raw, Revision, RpcError, error, json, meta::Meta, method::notice,
    },
    session::{Client, Event, ServerRequest},
};

/// Requests of one server that may wait for answers of clients at a time.
const FORWARDED_MAX: usize = 256;
/// Requests that a server may make of its client in one call.
const SERVER_REQUESTS_PER_CALL_MAX: u32 = 1000;
/// Progress notifications of a client that may wait until its server takes them.
const PROGRESS_MAX: usize = 64;

/// Ids of server requests towards clients: unique in this process, so in every session.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// A server request that a client has been asked.
#[derive(Clone, Debug)]
pub(super) struct ForwardedRequest {
    key: u64,
    recipient: Recipient,
    /// Whether it can be of no other call than the recipient's.
    is_unambiguous: bool,
    stage: Arc<QuestionStage>,
}

impl ForwardedRequest {
    /// Tells the client that nobody waits for its answer, where it is still to give one.
    fn withdraw(&self, reason: Option<&str>) {
        if !self.stage.withdraw() {
            return;
        }
        let mut params = serde_json::json!({ "requestId": self.key });
        if let Some(reason) = reason {
            params["reason"] = reason.into();
        }
        let params = Raw::from_value(&params);
        self.recipient.send_late(|| Event::Notification {
            method: Cow::Borrowed(notice::CANCELLED),
            params: Some(params.clone()),
        });
    }
}

/// Whether a question waits for its client, and whether it was withdrawn.
#[derive(Debug, Default)]
struct QuestionStage {
    withdrawn: CancellationToken,
    /// Held while it is put: a withdrawal comes after it, or in its place.
    is_open: Mutex<bool>,
}

impl QuestionStage {
    /// Puts the question, unless it was withdrawn; whether it is refused.
    fn deliver(&self, ask: impl FnOnce() -> bool) -> bool {
        let mut is_open = lock(&self.is_open);
        if self.withdrawn.is_cancelled() {
            return false;
        }
        *is_open = ask();
        !*is_open
    }

    /// Withdraws the question; whether its client is to be told.
    fn withdraw(&self) -> bool {
        let mut is_open = lock(&self.is_open);
        self.withdrawn.cancel();
        std::mem::take(&mut *is_open)
    }

    /// Notes that the client has answered.
    fn mark_answered(&self) {
        *lock(&self.is_open) = false;
    }
}

/// A server request that waits for a client.
pub(in crate::backend) struct WaitingRequest {
    key: u64,
    pub(in crate::backend) answer: oneshot::Receiver<Outcome>,
    /// Cancelled when nobody wants the answer any more.
    pub(in crate::backend) withdrawn: CancellationToken,
    stage: Arc<QuestionStage>,
    /// Keeps the deadline of the exchange that waits for it from passing.
    pub(in crate::backend) _deadline_hold: Option<Suspended>,
    pub(in crate::backend) method: Method,
    /// How URIs of the server become exposed ones on the client's route.
    pub(in crate::backend) uris: Option<Arc<UriMap>>,
    /// The progress that the client reports, when the server asked for it.
    pub(in crate::backend) progress: Option<QuestionProgress>,
    /// What is not asked yet: it takes a while to look at.
    pub(in crate::backend) undelivered: Option<ServerQuestion>,
    /// What the client says is looked at with.
    scanners: Option<CallScanners>,
    /// What the `content` of the answer must be like.
    schema: Option<Raw>,
}

/// A server request on its way to the client it belongs to.
#[derive(Debug)]
pub(in crate::backend) struct ServerQuestion {
    recipient: Recipient,
    request: ServerRequest,
    stage: Arc<QuestionStage>,
}

impl ServerQuestion {
    /// Whether a look at it takes too long for the reader of a connection.
    fn is_slow_to_scan(&self) -> bool {
        let scanners = self.recipient.scanners();
        let params = self.request.params.as_ref();
        scanners
            .zip(params)
            .is_some_and(|(screens, params)| screens.is_large_question(params))
    }

    fn deliver_now(mut self) -> Result<(), RpcError> {
        let looked_at = match (self.recipient.scanners(), self.request.params.take()) {
            (Some(screens), Some(params)) => Some(screens.scan_question(params)),
            (_, params) => params.map(Ok),
        };
        self.deliver(looked_at)
    }

    /// Asks the client, where it may be asked that, and the server still wants to know.
    fn deliver(mut self, looked_at: Option<Result<Raw, RpcError>>) -> Result<(), RpcError> {
        if let Some(params) = looked_at {
            self.request.params = Some(params?);
        }
        let ask = || self.recipient.send(Event::Request(self.request));
        if !self.stage.deliver(ask) {
            return Ok(());
        }
        Err(RpcError::new(
            error::INTERNAL,
            "the client cannot receive requests",
        ))
    }
}

/// Whether a server that sends this wants the roots of its client.
pub(in crate::backend) fn asks_for_roots(method: &Method) -> bool {
    matches!(method, Method::Other(name) if &**name == "roots/list")
}

impl WaitingRequest {
    /// Which question of the gateway's it is.
    pub(in crate::backend) fn key(&self) -> u64 {
        self.key
    }

    /// Asks what takes a while to look at, unless the server no longer wants to know.
    pub(in crate::backend) async fn deliver(&mut self) -> Result<(), RpcError> {
        let Some(mut question) = self.undelivered.take() else {
            return Ok(());
        };
        let looked_at = match (&self.scanners, question.request.params.take()) {
            (Some(screens), Some(params)) => Some(screens.scan_large_question(params).await),
            (_, params) => params.map(Ok),
        };
        if self.withdrawn.is_cancelled() {
            return Ok(());
        }
        question.deliver(looked_at)
    }

    /// Takes what the client answered, as the server may see it.
    pub(in crate::backend) async fn filter_answer(&self, outcome: Outcome) -> Outcome {
        self.stage.mark_answered();
        let outcome = match (outcome, &self.uris) {
            (Ok(result), Some(uris)) => Ok(rewrite::rewrite_client_result(
                self.method.as_str(),
                &result,
                uris,
            )),
            (outcome, _) => outcome,
        };
        match &self.scanners {
            Some(screens) => {
                screens
                    .scan_client_reply(outcome, self.schema.as_ref())
                    .await
            }
            None => outcome,
        }
    }
}

/// Progress of a client on its way to the server that asked for it.
#[derive(Debug)]
pub(in crate::backend) struct QuestionProgress {
    /// The server's own.
    token: Raw,
    updates: mpsc::Receiver<Raw>,
    scanners: Option<CallScanners>,
}

impl QuestionProgress {
    /// The next params, under the server's own token; never completes where there are none.
    pub(in crate::backend) async fn next(progress: &mut Option<Self>) -> Raw {
        let Some(progress) = progress else {
            return std::future::pending().await;
        };
        while let Some(params) = progress.updates.recv().await {
            if let Some(params) = progress.filter(params) {
                return params;
            }
        }
        std::future::pending().await
    }

    fn filter(&self, params: Raw) -> Option<Raw> {
        let params = match &self.scanners {
            Some(screens) => screens.scan_client_notification(params)?,
            None => params,
        };
        let Some(span) = params.member("progressToken") else {
            return Some(params);
        };
        let mut patch = json::Patch::new(params.as_bytes());
        patch.replace(span, self.token.as_bytes());
        Some(patch.finish())
    }
}

/// The params of a server request under our token `key`, where the server asked for progress.
fn with_gateway_token(
    params: Raw,
    key: u64,
    scanners: Option<&CallScanners>,
) -> (Raw, Option<(QuestionProgress, mpsc::Sender<Raw>)>) {
    let Some(span) = Meta::from_params(&params).progress_token else {
        return (params, None);
    };
    let (sender, receiver) = mpsc::channel(PROGRESS_MAX);
    let progress = QuestionProgress {
        token: params.slice(span.clone()),
        updates: receiver,
        scanners: scanners.cloned(),
    };
    let mut patch = json::Patch::new(params.as_bytes());
    patch.replace(span, key.to_string().into_bytes());
    (patch.finish(), Some((progress, sender)))
}

impl PendingRequests {
    pub(in crate::backend) fn answer_locally(&self, method: &Method) -> Option<Outcome> {
        if *method == Method::Ping {
            return Some(Ok(Raw::from_static("{}")));
        }
        let roots = self.settings.roots.as_ref();
        let roots = roots.filter(|_| asks_for_roots(method))?;
        let roots: Vec<_> = roots
            .iter()
            .map(|root| match &root.name {
                Some(name) => serde_json::json!({ "uri": root.uri, "name": name }),
                None => serde_json::json!({ "uri": root.uri }),
            })
            .collect();
        Some(Ok(Raw::from_value(&serde_json::json!({ "roots": roots }))))
    }

    /// What a server hears on a link that is for its lists alone: nobody is there who could answer.
    pub(in crate::backend) fn answer_without_client(
        &self,
        method: &Method,
        params: Option<&Raw>,
    ) -> Option<Outcome> {
        if !self.settings.is_for_lists {
            return None;
        }
        if asks_for_roots(method) {
            self.note_asked_for_roots();
            // We declare that there are roots, so that a refusal would look like a failure.
            return Some(Ok(Raw::from_static(r#"{"roots":[]}"#)));
        }
        let recording = self.begin_recording(method, params, None);
        recording.finish(QuestionEnd::Unattributable);
        let message =
            format!("`{method}` is not available: this connection is only used for listing");
        Some(Err(RpcError::new(error::INVALID_REQUEST, message).to_raw()))
    }

    /// Notes that the server wants the roots of its client, who may have others than the next.
    fn note_asked_for_roots(&self) {
        self.roots.send_replace(Roots::Asked);
        self.signals.roots_requested();
    }

    /// Hands a server request to the client it belongs to.
    pub(in crate::backend) fn relay_to_client(
        &self,
        id: &Id,
        method: Method,
        params: Option<Raw>,
        origin: Option<u64>,
    ) -> Result<(WaitingRequest, QuestionRecording), RpcError> {
        if asks_for_roots(&method) {
            self.note_asked_for_roots();
        }
        let recipient = self.recipient(origin, LATE_REQUEST_WINDOW).filter(|it| {
            origin.is_some() || self.is_addressed_to(it, method.as_str(), params.as_ref())
        });
        let recording = self.begin_recording(&method, params.as_ref(), recipient.as_ref());
        let Some(recipient) = recipient else {
            recording.finish(QuestionEnd::Unattributable);
            return Err(self.unattributable_error(&method));
        };
        match self.forward_request(id, (method, params), recipient, origin.is_some()) {
            Ok(waiting) => Ok((waiting, recording)),
            Err(refusal) => {
                recording.finish(QuestionEnd::Refused);
                Err(refusal)
            }
        }
    }

    /// Asks the client of `recipient`, where it may be asked that; `is_named`: the server says in which call.
    fn forward_request(
        &self,
        id: &Id,
        (method, params): (Method, Option<Raw>),
        recipient: Recipient,
        is_named: bool,
    ) -> Result<WaitingRequest, RpcError> {
        if let Some(client) = recipient.client()
            && client.era() == Era::Modern
        {
            return Err(cross_era_error(
                &method,
                client,
                self.revision.get().copied(),
            ));
        }
        // It has told the server so, and may leave unanswered what it does not know.
        let opening = recipient.client_info();
        if let Some(lacking) = opening.and_then(|opening| opening.missing_capability(&method)) {
            let message = format!("the client has not declared the capability `{lacking}`");
            return Err(RpcError::new(error::METHOD_NOT_FOUND, message));
        }
        if let Recipient::Call { activity, .. } = &recipient
            && activity.count_client_request() >= SERVER_REQUESTS_PER_CALL_MAX
        {
            let message = format!(
                "too many requests in this call \
                ({SERVER_REQUESTS_PER_CALL_MAX})"
            );
            return Err(RpcError::new(error::INVALID_REQUEST, message));
        }
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        let stage = Arc::new(QuestionStage::default());
        let asked = ForwardedRequest {
            key,
            recipient: recipient.clone(),
            // Without an origin it is of the latest call, and another may have been meant.
            is_unambiguous: is_named || self.in_flight() == 1,
            stage: Arc::clone(&stage),
        };
        self.register_forwarded(id, asked)?;
        if let Some(params) = &params {
            self.url_elicitations.note(params, recipient.session());
        }
        let (agent, session) = (recipient.agent(), recipient.session().upgrade());
        let (mut waiting, question) = prepare(method, params, key, recipient, stage);
        if question.is_slow_to_scan() {
            waiting.undelivered = Some(question);
        } else if let Err(refusal) = question.deliver_now() {
            self.remove_forwarded(id, key);
            return Err(refusal);
        }
        self.signals.client_asked(agent, session.as_deref());
        Ok(waiting)
    }

    fn register_forwarded(&self, id: &Id, entry: ForwardedRequest) -> Result<(), RpcError> {
        let mut asked = lock(&self.forwarded);
        // What is asked already is withdrawn after it was closed.
        if self.closed.is_cancelled() {
            return Err(RpcError::new(error::INTERNAL, "the connection is closed"));
        }
        if asked.len() >= FORWARDED_MAX {
            let message = "too many requests are waiting for clients";
            return Err(RpcError::new(error::INTERNAL, message).retry_soon());
        }
        if asked.contains_key(id) {
            let message = "a request with this id is still pending";
            return Err(RpcError::new(error::INVALID_REQUEST, message));
        }
        asked.insert(id.clone(), entry);
        Ok(())
    }

    fn unattributable_error(&self, method: &Method) -> RpcError {
        self.unattributed.fetch_add(1, Ordering::Relaxed);
        let server = &self.settings.server;
        let message = format!(
            "`{method}` cannot be attributed to one client: the connection to `{server}` is \
             shared; set `isolation = \"session\"` for this server"
        );
        RpcError::new(error::INVALID_REQUEST, message)
    }

    /// The server withdraws a request of its own; whoever was not asked yet never hears of it.
    pub(super) fn handle_cancelled(&self, params: Option<&Raw>) {
        let id = params
            .and_then(|params| params.get("requestId"))
            .and_then(Id::from_raw);
        let Some(asked) = id.and_then(|id| lock(&self.forwarded).remove(&id)) else {
            return;
        };
        let reason = params.and_then(|params| params.get("reason"));
        asked.withdraw(reason.as_ref().and_then(Raw::as_text).as_deref());
    }

    /// Withdraws all that the server has asked, since it is gone. Before whoever waits for the server
    /// is told so: nothing of a call follows its answer.
    pub(super) fn withdraw_all(&self) {
        let all = std::mem::take(&mut *lock(&self.forwarded));
        for asked in all.values() {
            asked.withdraw(Some("the server disconnected"));
        }
    }

    /// Withdraws what was asked in the exchange of `activity`, which has ended without an answer. The
    /// server may still wait, and is told that there will be none.
    pub(super) fn withdraw_of_exchange(&self, activity: &Arc<Activity>) {
        let of_exchange: Vec<ForwardedRequest> = {
            let asked = lock(&self.forwarded);
            let all = asked.values().filter(|asked| asked.is_unambiguous);
            let found = all.filter(|asked| asked.recipient.is_of_exchange(activity));
            found.cloned().collect()
        };
        for asked in of_exchange {
            asked.withdraw(Some("the enclosing request has ended"));
        }
    }

    /// Withdraws the question `key` that the server calls `id`, which nobody has answered in time.
    pub(in crate::backend) fn withdraw_unanswered(&self, id: &Id, key: u64) {
        let asked = lock(&self.forwarded).get(id).cloned();
        if let Some(asked) = asked.filter(|asked| asked.key == key) {
            asked.withdraw(Some("timed out"));
        }
    }

    /// Forgets the question `key` that the server calls `id`, which may be another's by now; whether
    /// the server still waits for the answer.
    pub(in crate::backend) fn remove_forwarded(&self, id: &Id, key: u64) -> bool {
        let mut asked = lock(&self.forwarded);
        let is_known = asked.get(id).is_some_and(|known| known.key == key);
        if is_known {
            asked.remove(id);
        }
        is_known
    }
}

/// A question to `recipient` in its own names, and what waits for the answer.
fn prepare(
    method: Method,
    params: Option<Raw>,
    key: u64,
    recipient: Recipient,
    stage: Arc<QuestionStage>,
) -> (WaitingRequest, ServerQuestion) {
    let (tell, answer) = oneshot::channel();
    let held = match &recipient {
        Recipient::Call { activity, .. } => Some(Suspended::new(activity)),
        Recipient::Session(..) => None,
    };
    let (uris, screens) = (recipient.uris(), recipient.scanners());
    let schema = params
        .as_ref()
        .filter(|_| method.as_str() == "elicitation/create")
        .and_then(|params| params.get("requestedSchema"));
    let params = match (params, &uris) {
        (Some(params), Some(uris)) => {
            Some(rewrite::rewrite_request(method.as_str(), &params, uris))
        }
        (params, _) => params,
    };
    let (params, progress) = params
        .map(|params| with_gateway_token(params, key, screens.as_ref()))
        .map_or((None, None), |(params, progress)| (Some(params), progress));
    let (progress, tell_progress) = progress.unzip();
    let request = ServerRequest {
        key,
        method: method.clone(),
        params,
        answer: tell,
        progress: tell_progress,
    };
    let waiting = WaitingRequest {
        key,
        answer,
        withdrawn: stage.withdrawn.clone(),
        stage: Arc::clone(&stage),
        _deadline_hold: held,
        method,
        uris,
        progress,
        undelivered: None,
        scanners: screens,
        schema,
    };
    let question = ServerQuestion {
        recipient,
        request,
        stage,
    };
    (waiting, question)
}

/// Why a server of one era cannot ask a client of the other.
fn cross_era_error(method: &Method, client: &Client, spoken: Option<Revision>) -> RpcError {
    let message = format!(
        "`{method}` was sent over {}, but the client uses {}: requests to clients cannot be \
         translated between these revisions",
        spoken.map_or("a revision with `initialize`", Revision::as_str),
        client.revision
    );
    RpcError::new(error::METHOD_NOT_FOUND, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        auth::Agent,
        backend::link::pending::LinkSettings,
        names::Scope,
        session::{Session, replay::StreamItem, state::SessionKind},
        task::Tasks,
    };

    #[tokio::test]
    async fn a_forgotten_session_leaves_no_questions() {
        let requests = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
        let agent = Arc::new(Agent::anonymous());
        let session = Arc::new(Session::new(SessionKind::Stdio, agent, Scope::All));
        let asked = ForwardedRequest {
            key: 1,
            recipient: requests.session_recipient(Arc::clone(&session)).unwrap(),
            is_unambiguous: true,
            stage: Arc::default(),
        };
        requests.register_forwarded(&Id::number(1), asked).unwrap();
        requests.close_session_lost();
        assert_eq!(Arc::strong_count(&session), 1, "nothing holds its client");
    }

    /// What a client is sent of a question that takes a while to look at, and is withdrawn before or
    /// after that.
    async fn withdrawn(is_asked_first: bool) -> Vec<String> {
        let agent = Arc::new(Agent::anonymous());
        let session = Arc::new(Session::new(SessionKind::Stdio, agent, Scope::All));
        let stream = session.open_standalone_stream();
        let home = Some(Arc::clone(&session));
        let requests = PendingRequests::new(LinkSettings::example(), home, Tasks::new());
        let recipient = requests.recipient(None, LATE_REQUEST_WINDOW).unwrap();
        let (method, stage) = (Method::parse("roots/list"), Arc::<QuestionStage>::default());
        let (mut waiting, question) =
            prepare(method, None, 1, recipient.clone(), Arc::clone(&stage));
        waiting.undelivered = Some(question);
        let asked = ForwardedRequest {
            key: 1,
            recipient,
            is_unambiguous: true,
            stage,
        };
        requests.register_forwarded(&Id::number(7), asked).unwrap();
        if is_asked_first {
            waiting.deliver().await.unwrap();
        }
        requests.handle_cancelled(Some(&Raw::from_static(r#"{"requestId":7}"#)));
        waiting.deliver().await.unwrap();
        stream.finish();
        let (mut place, mut sent) = (stream.resume(0), Vec::new());
        while let Some(StreamItem::Message(message)) = stream.next(&mut place).await {
            sent.push(String::from_utf8(message.to_vec()).unwrap());
        }
        sent
    }

    #[tokio::test]
    async fn who_was_not_asked_is_not_told_of_a_withdrawal() {
        let sent = withdrawn(true).await;
        assert_eq!(sent.len(), 2, "{sent:?}");
        assert!(sent[0].contains("roots/list") && sent[1].contains(notice::CANCELLED));
        assert_eq!(withdrawn(false).await, Vec::<String>::new());
    }
}
