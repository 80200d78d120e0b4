//! The requests of one batch over HTTP: their answers as one array when nothing comes before the last
//! of them, as events when something does or the client has waited for a while.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use http::Response;
use tokio::{
    sync::Notify,
    task::unconstrained,
    time::{Instant, sleep_until},
};

use super::{
    HttpEdge,
    body::{self, Body, EventFormat},
    call_response::{self, PendingAnswer, PendingCall},
    media_types::AnswerForm,
};
use crate::{
    auth::CredentialLifetime,
    mcp::sse,
    session::{
        Event, Session,
        replay::{ReplayStream, StreamItem},
    },
};

/// What is under way of a batch.
pub(super) struct BatchResponse {
    out: Arc<BatchOutput>,
    running: FuturesUnordered<Pin<Box<dyn Future<Output = Done> + Send>>>,
    done: Vec<Done>,
}

/// An answer that is to go out, and what is dropped when it is out.
type Done = (Bytes, Option<PendingAnswer>);

/// Where what precedes an answer goes.
struct BatchOutput {
    session: Arc<Session>,
    form: AnswerForm,
    /// Opened by what comes first.
    stream: OnceLock<Arc<ReplayStream>>,
    opened: Notify,
}

impl BatchOutput {
    fn stream(&self) -> &Arc<ReplayStream> {
        self.stream.get_or_init(|| self.session.open_stream())
    }

    fn push(&self, event: Event) {
        if self.form == AnswerForm::JsonOnly {
            return call_response::deliver_beside(event, Some(&self.session));
        }
        call_response::write_event(event, Some(&self.session), self.stream());
        self.opened.notify_one();
    }
}

/// Whoever leaves before it is known how the answer goes out leaves no stream that never ends.
impl Drop for BatchOutput {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.get() {
            stream.finish();
        }
    }
}

impl BatchResponse {
    /// Starts to answer `asked`, all in `session`, in a `form` that its client takes,
    /// beside the `answers` that are there already.
    pub(super) fn start(
        edge: &HttpEdge,
        (session, form): (&Arc<Session>, AnswerForm),
        asked: Vec<PendingCall>,
        answers: Vec<Bytes>,
    ) -> Self {
        let out = Arc::new(BatchOutput {
            session: Arc::clone(session),
            form,
            stream: OnceLock::new(),
            opened: Notify::new(),
        });
        let running = asked.into_iter().map(|asked| {
            let (id, out) = (asked.call.id.clone(), Arc::clone(&out));
            let (answer, mut events) = call_response::start(edge, asked);
            let done = async move {
                let mut answered = events.drain_until(answer, |event| out.push(event)).await;
                (answered.response(&id), Some(answered))
            };
            Box::pin(done) as Pin<Box<dyn Future<Output = Done> + Send>>
        });
        Self {
            running: running.collect(),
            done: answers.into_iter().map(|answer| (answer, None)).collect(),
            out,
        }
    }

    /// All answers as one array; `None` when something precedes one of them, or `patience` is over, and the
    /// client takes events.
    pub(super) async fn collect(&mut self, patience: Duration) -> Option<Bytes> {
        let silent_until = Instant::now() + patience;
        let takes_events = self.out.form != AnswerForm::JsonOnly;
        loop {
            tokio::select! {
                biased;
                () = self.out.opened.notified() => return None,
                done = self.running.next() => match done {
                    Some(done) => self.done.push(done),
                    // What preceded the last of them came with it.
                    None if self.out.stream.get().is_some() => return None,
                    None => break,
                },
                () = unconstrained(sleep_until(silent_until)), if takes_events => return None,
            }
        }
        let answers: Vec<&[u8]> = self.done.iter().map(|(answer, _)| &**answer).collect();
        Some([b"[", &*answers.join(&b','), b"]"].concat().into())
    }

    /// What there is and what will come as events.
    pub(super) fn into_events(
        self,
        edge: &HttpEdge,
        lifetime: CredentialLifetime,
    ) -> Response<Body> {
        let stream = Arc::clone(self.out.stream());
        let place = stream.attach_at_end();
        let writing = EventFormat {
            keep_alive: edge.proxy.settings().keep_alive,
            ids: true,
            first: Some(sse::KEEP_ALIVE),
            lifetime,
            _guard: None,
            _reader: edge.stream_readers.enter(),
        };
        edge.tasks
            .spawn("stream of a batch", self.run(Arc::clone(&stream)));
        body::events(stream, place, writing)
    }

    async fn run(self, stream: Arc<ReplayStream>) {
        let mut answers = futures_util::stream::iter(self.done).chain(self.running);
        while let Some((answer, answered)) = answers.next().await {
            stream.push_required(StreamItem::Message(answer));
            drop(answered);
        }
        stream.finish();
    }
}
