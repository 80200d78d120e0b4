//! Streams of events: the one an answer comes on, and the one for messages that belong to no call.
//!
//! A legacy server may let go of a stream and go on when it is asked for the rest.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method as Verb, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::{
    sync::oneshot,
    task::{consume_budget, yield_now},
    time::{Instant, sleep_until},
};

use super::{
    Content, HttpLink,
    content_encoding::ResponseBodyError,
    content_type, denies_session, describe_unexpected,
    server_events::{ServerEvents, StreamExcess, fail_unframed, unframed_error},
    transport::ResponseBody,
};
use crate::{
    backend::{
        BackendError,
        link::{
            Exchange, each_message,
            pending::{PendingExchange, PendingRequests},
        },
    },
    mcp::{Era, Outcome, envelope::Malformed, header, sse},
    session::Event,
};

/// Wait before a broken stream is resumed, when the server named none.
const RESUME_DELAY: Duration = Duration::from_millis(500);
/// Shortest such wait that a server may name.
const RESUME_DELAY_MIN: Duration = Duration::from_millis(10);
/// Longest such wait that a server may name.
const RESUME_DELAY_MAX: Duration = Duration::from_secs(60);
/// Attempts to resume one broken stream without any event in between.
const RESUMES_MAX: u32 = 5;
/// Least time from one gap in the standing stream that is made up for to the next, twice as long after
/// each: what follows costs more than the stream, and some servers let go of it every few seconds.
const GAP_INTERVAL: Duration = Duration::from_secs(10);
/// The most it comes to, and how long it takes without a gap until it is the least again.
const GAP_INTERVAL_MAX: Duration = Duration::from_secs(300);

impl HttpLink {
    /// Reads events until the answer; resumes where a legacy server lets go of the stream.
    pub(super) async fn read_events(
        &self,
        response: Response<ResponseBody>,
        exchange: &Exchange<'_>,
        pending: &PendingExchange,
    ) -> Result<Outcome, BackendError> {
        let mut place = StreamPosition::default();
        let mut body = Some(response.into_body());
        loop {
            if let Some(outcome) = self.follow_stream(body.take(), &mut place, pending).await? {
                return Ok(outcome);
            }
            let legacy = self.headers().era() != Some(Era::Modern);
            let Some(last) = place.last_id.clone().filter(|_| legacy) else {
                if let Some(unread) = place.unreadable {
                    return Err(BackendError::invalid_response(unread));
                }
                return Err(BackendError::Lost {
                    reason: "the server closed the stream of the call".to_owned(),
                });
            };
            if place.idle_ends > RESUMES_MAX {
                return Err(BackendError::Lost {
                    reason: "the stream of the call failed repeatedly".to_owned(),
                });
            }
            if let Some(caller) = &exchange.caller {
                caller.events.send(Event::Pause {
                    retry_ms: place.retry_ms,
                });
            }
            tokio::time::sleep(place.delay()).await;
            body = match self.open_stream(Some(&last)).await {
                StreamOpening::Stream(body) => Some(body),
                StreamOpening::Failed | StreamOpening::Unsupported | StreamOpening::NotFound => {
                    None
                }
            };
            place.idle_ends += 1;
        }
    }

    /// Follows one stream; the answer, or `None` when the stream ended without it.
    async fn follow_stream(
        &self,
        body: Option<ResponseBody>,
        place: &mut StreamPosition,
        pending: &PendingExchange,
    ) -> Result<Option<Outcome>, BackendError> {
        let Some(mut body) = body else {
            return Ok(None);
        };
        let mut events = ServerEvents::for_call(&self.requests.settings);
        while let Some(frame) = body.frame().await {
            let frame = match frame {
                Ok(frame) => frame,
                Err(ResponseBodyError::Connection(_)) => return Ok(None),
                Err(encoded @ ResponseBodyError::Encoding { .. }) => {
                    return Err(BackendError::protocol_violation(encoded.to_string()));
                }
            };
            let Ok(chunk) = frame.into_data() else {
                continue;
            };
            events.push(&chunk).map_err(StreamExcess::into_error)?;
            while let Some(event) = events.next().await {
                consume_budget().await;
                if event.is_unframed {
                    return Err(unframed_error());
                }
                place.note(&event);
                let payload = self
                    .handle_payload(&event.data, StatusCode::OK, pending)
                    .await;
                if let Some(answer) = payload.answer {
                    return answer.map(Some);
                }
                if matches!(event.data.first(), Some(b'{' | b'[')) {
                    place.unreadable = payload.malformed.or(place.unreadable.take());
                }
            }
            if events.has_unframed_json() {
                return Err(unframed_error());
            }
            // A server that never stops talking leaves something to others, and to deadlines.
            yield_now().await;
        }
        Ok(None)
    }

    /// Opens a stream: the rest of the one whose event is `last`, or the standing one.
    async fn open_stream(&self, last: Option<&HeaderValue>) -> StreamOpening {
        let response = self.send(Verb::GET, (Bytes::new(), Bytes::new), |headers, _| {
            if let Some(last) = last {
                headers.insert(header::LAST_EVENT_ID, last.clone());
            }
        });
        match response.await {
            Ok(response) if response.status() == StatusCode::BAD_REQUEST => {
                let BackendError::Http { body, .. } = describe_unexpected(response).await else {
                    return StreamOpening::Failed;
                };
                if denies_session(body.as_bytes()) {
                    StreamOpening::NotFound
                } else {
                    StreamOpening::Failed
                }
            }
            Ok(response) => match (content_type(&response), response.status()) {
                (Content::Events, _) => StreamOpening::Stream(response.into_body()),
                (_, StatusCode::METHOD_NOT_ALLOWED) => StreamOpening::Unsupported,
                (_, StatusCode::NOT_FOUND) => StreamOpening::NotFound,
                (Content::Json | Content::Other, _) => StreamOpening::Failed,
            },
            Err(_) => StreamOpening::Failed,
        }
    }

    /// Follows the stream for messages that belong to no call, for as long as the link lives. A
    /// server that has none answers 405, which is fine. `opened` is told of the first answer.
    pub(super) async fn listen_until_closed(self: Arc<Self>, opened: oneshot::Sender<()>) {
        tokio::select! {
            biased;
            () = self.requests.closed.cancelled() => {}
            () = self.keep_standalone_stream(opened) => {}
        }
    }

    async fn keep_standalone_stream(&self, opened: oneshot::Sender<()>) {
        let mut place = StreamPosition::default();
        let mut gap = StreamGap::default();
        let mut opened = Some(opened);
        let mut was_open = false;
        let mut failures = 0;
        loop {
            let opening = self.open_stream(place.last_id.as_ref()).await;
            if let Some(opened) = opened.take() {
                // Whoever waited in vain goes on without the stream.
                gap.is_open = opened.is_closed();
            }
            match opening {
                StreamOpening::Stream(body) => {
                    was_open = true;
                    place.idle_ends = 1;
                    let start = Instant::now();
                    let is_let_go = tokio::select! {
                        is_let_go = self.follow_standalone_stream(body, &mut place) => is_let_go,
                        never = gap.signal_missed(&self.requests) => match never {},
                    };
                    // A server that lets go of a stream with ids tells the rest when it is resumed.
                    gap.is_open |= !is_let_go || place.last_id.is_none();
                    failures = place.next_failures(failures, start.elapsed());
                }
                // Where a stream was, only the session can be what is missing.
                StreamOpening::NotFound if was_open && self.headers().has_session() => {
                    return self.requests.close_session_lost();
                }
                StreamOpening::Unsupported | StreamOpening::NotFound => return,
                StreamOpening::Failed => {
                    failures += 1;
                    gap.is_open = true;
                }
            }
            tokio::time::sleep(place.backoff(failures)).await;
        }
    }

    /// Follows one stream to its end; whether the server let go of it, and it did not break.
    async fn follow_standalone_stream(
        &self,
        mut body: ResponseBody,
        place: &mut StreamPosition,
    ) -> bool {
        let mut events = ServerEvents::for_connection(&self.requests.settings);
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            let Ok(chunk) = frame.into_data() else {
                continue;
            };
            if let Err(excess) = events.push(&chunk) {
                let server = &self.requests.settings.server;
                tracing::warn!(%server, "closed the standalone stream: {excess}");
                return false;
            }
            while let Some(event) = events.next().await {
                consume_budget().await;
                if event.is_unframed {
                    fail_unframed(&self.requests, &event.data);
                    continue;
                }
                place.note(&event);
                if let Some(link) = self.link() {
                    each_message(&self.requests, &event.data, |_, parsed| {
                        if let Ok(message) = parsed {
                            link.handle_message(message, None);
                        }
                    })
                    .await;
                }
            }
            yield_now().await;
        }
        true
    }
}

/// What a server may have said while nobody followed its standing stream.
#[derive(Debug, Default)]
struct StreamGap {
    /// Whether it is not made up for yet.
    is_open: bool,
    /// When the one before was, and how far from it the next is at least.
    last_recovery: Option<(Instant, Duration)>,
}

impl StreamGap {
    /// Lets what may have been missed be found out, [`GAP_INTERVAL`] from the time before or more.
    async fn signal_missed(&mut self, requests: &PendingRequests) -> Infallible {
        if self.is_open {
            let apart = match self.last_recovery {
                Some((before, apart)) if before.elapsed() < GAP_INTERVAL_MAX => {
                    sleep_until(before + apart).await;
                    GAP_INTERVAL_MAX.min(2 * apart)
                }
                Some(_) | None => GAP_INTERVAL,
            };
            requests.signals.messages_missed();
            *self = Self {
                is_open: false,
                last_recovery: Some((Instant::now(), apart)),
            };
        }
        pending().await
    }
}

/// How far a stream of events was read.
#[derive(Debug, Default)]
struct StreamPosition {
    last_id: Option<HeaderValue>,
    retry_ms: Option<u64>,
    idle_ends: u32,
    /// Why the last event that looked like a message is none.
    unreadable: Option<Malformed>,
}

impl StreamPosition {
    fn note(&mut self, event: &sse::SseEvent) {
        if let Some(id) = &event.id {
            // What no header can carry cannot be asked for; an empty one takes back those before.
            let id = Some(id.as_bytes()).filter(|id| !id.is_empty());
            self.last_id = id.and_then(|id| HeaderValue::from_bytes(id).ok());
        }
        if event.retry.is_some() {
            self.retry_ms = event.retry;
        }
        self.idle_ends = 0;
    }

    fn delay(&self) -> Duration {
        self.retry_ms
            .map_or(RESUME_DELAY, Duration::from_millis)
            .clamp(RESUME_DELAY_MIN, RESUME_DELAY_MAX)
    }

    /// The failures in a row, after so many and a stream that stood so long: one that says nothing and
    /// does not outlast the wait for the next is one more, unless the server says when to come back.
    fn next_failures(&self, failures: u32, stood: Duration) -> u32 {
        let is_of_use = self.idle_ends == 0 || self.retry_ms.is_some();
        if is_of_use || stood >= self.backoff(failures + 1) {
            0
        } else {
            failures + 1
        }
    }

    /// The wait after so many failures in a row, each of which doubles it.
    fn backoff(&self, failures: u32) -> Duration {
        let delay = match failures {
            0 => self.delay(),
            _ => self.delay().max(RESUME_DELAY),
        };
        delay
            .saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)))
            .min(RESUME_DELAY_MAX)
    }
}

/// What came of opening a stream.
enum StreamOpening {
    /// No answer, or one that says nothing about the next attempt.
    Failed,
    /// The server has no such streams.
    Unsupported,
    /// The server has no such stream, or no such session.
    NotFound,
    Stream(ResponseBody),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long it is waited for the next stream, where each of `streams` stood so long in silence.
    fn waits(place: &StreamPosition, streams: &[u64]) -> Vec<u128> {
        let mut failures = 0;
        let mut wait = |seconds: &u64| {
            failures = place.next_failures(failures, Duration::from_secs(*seconds));
            place.backoff(failures).as_millis()
        };
        streams.iter().map(&mut wait).collect()
    }

    #[test]
    fn a_stream_that_ends_at_once_is_opened_less_and_less_often() {
        let silent = StreamPosition {
            idle_ends: 1,
            ..StreamPosition::default()
        };
        let waited = waits(&silent, &[0; 9]);
        assert_eq!(
            waited,
            [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]
        );
        assert_eq!(waits(&silent, &[0, 0, 30, 30]), [500, 1000, 500, 500]);
        let of_use = StreamPosition::default();
        assert_eq!(waits(&of_use, &[0; 3]), [500; 3]);
        let asked_to = StreamPosition {
            retry_ms: Some(20),
            ..silent
        };
        assert_eq!(waits(&asked_to, &[0; 3]), [20; 3]);
    }
}
