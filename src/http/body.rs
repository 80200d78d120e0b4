//! Bodies: those of requests read within their limits, those of answers whole or as a stream of
//! events.

use std::{convert::Infallible, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, Stream as Chunks, StreamExt};
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::Incoming;
use tokio::{
    task::consume_budget,
    time::{sleep, timeout},
};
use tokio_util::sync::DropGuard;

use super::refused;
use crate::{
    body::Unread,
    config::Limits,
    mcp::{json as scan, sse},
    session::replay::{Item, Place, Stream},
    task::{Present, Tasks},
};

/// How long a client may take to send a body.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long what a client goes on sending is taken after it was answered.
const LINGER: Duration = Duration::from_secs(5);

type Events = Pin<Box<dyn Chunks<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

/// The body of an answer.
pub(crate) type Body = Either<Full<Bytes>, StreamBody<Events>>;

/// Reads a body within the limits on size and nesting.
pub(super) async fn read<B>(body: &mut B, limits: &Limits) -> Result<Bytes, Response<Body>>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + 'static,
{
    let read = {
        let mut read = std::pin::pin!(crate::body::read(body, limits.body));
        // Most bodies are there already, and need no timer.
        match read.as_mut().now_or_never() {
            Some(read) => read,
            None => Box::pin(timeout(PATIENCE, read)).await.map_err(|_| {
                let message = format!("the body did not come within {PATIENCE:?}");
                refused(StatusCode::REQUEST_TIMEOUT, &message)
            })?,
        }
    };
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(Unread::TooLarge { limit }) => {
            let message = format!("the body is larger than limits.body ({limit} bytes)");
            return Err(refused(StatusCode::PAYLOAD_TOO_LARGE, &message));
        }
        Err(Unread::BrokeOff(_)) => {
            return Err(refused(StatusCode::BAD_REQUEST, "the body broke off"));
        }
    };
    let depth_max = limits.depth;
    if scan::is_deeper(&bytes, depth_max) {
        let message = format!("the body is nested deeper than limits.depth ({depth_max})");
        return Err(refused(StatusCode::BAD_REQUEST, &message));
    }
    Ok(bytes)
}

/// Takes what is left of the `body` of a request that was answered, for a while: a connection that is
/// closed with something unread is reset, and its client may never see why it was refused (RFC 9112,
/// section 9.6).
pub(super) fn leave(mut body: Incoming, tasks: &Tasks) {
    // One in chunks does not know that its end was read.
    if body.is_end_stream() || matches!(body.frame().now_or_never(), Some(None)) {
        return;
    }
    let taken = async move {
        while body.frame().await.is_some_and(|frame| frame.is_ok()) {
            consume_budget().await;
        }
    };
    let stop = tasks.stop_token().clone();
    tasks.spawn("rest of a body", async move {
        stop.run_until_cancelled(timeout(LINGER, taken)).await;
    });
}

/// A whole body.
pub(super) fn full(bytes: impl Into<Bytes>) -> Body {
    Either::Left(Full::new(bytes.into()))
}

/// `body`, which holds `what` until it is written, where that takes a while.
pub(super) fn holding(body: Body, what: impl Send + 'static) -> Body {
    match body {
        Either::Left(whole) => Either::Left(whole),
        Either::Right(events) => {
            let held = events.map(move |event| {
                let _ = &what;
                event
            });
            Either::Right(StreamBody::new(Box::pin(held) as Events))
        }
    }
}

/// How a stream of messages is written as events.
#[derive(Debug)]
pub(super) struct Writing {
    /// Silence after which a comment is sent.
    pub(super) keep_alive: Duration,
    /// Whether events carry ids, so that the reader can resume.
    pub(super) ids: bool,
    /// Written first.
    pub(super) first: Option<Bytes>,
    /// Dropped when the reader is gone.
    pub(super) _guard: Option<DropGuard>,
    /// Counts the reader until it is gone.
    pub(super) _reader: Present,
}

/// An answer that follows `stream` from `place` on.
pub(super) fn events(stream: Arc<Stream>, place: Place, writing: Writing) -> Response<Body> {
    let attendance = stream.attend();
    let state = (stream, place, writing, attendance);
    let chunks = futures_util::stream::unfold(
        state,
        |(stream, mut place, mut writing, attendance)| async move {
            let bytes = match writing.first.take() {
                Some(first) => first,
                None => next(&stream, &mut place, &writing).await?,
            };
            Some((Ok(Frame::data(bytes)), (stream, place, writing, attendance)))
        },
    );
    let mut response = Response::new(Either::Right(StreamBody::new(Box::pin(chunks) as Events)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("no-cache, no-transform"),
    );
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

async fn next(stream: &Stream, place: &mut Place, writing: &Writing) -> Option<Bytes> {
    let item = tokio::select! {
        biased;
        item = stream.next(place) => item?,
        () = sleep(writing.keep_alive) => return Some(sse::KEEP_ALIVE),
    };
    let id = writing.ids.then(|| event_id(stream.id, place.seq));
    Some(match item {
        Item::Message(bytes) => sse::write(id.as_deref(), &bytes),
        Item::Pause(retry_ms) => match id {
            Some(id) => sse::priming(&id, retry_ms),
            None => sse::KEEP_ALIVE,
        },
    })
}

/// The id of an event: its stream and its place there.
pub(super) fn event_id(stream: u64, seq: u64) -> String {
    format!("{stream}-{seq}")
}

/// Reads an id written by [`event_id`].
pub(super) fn parse_event_id(id: &str) -> Option<(u64, u64)> {
    let (stream, seq) = id.split_once('-')?;
    Some((stream.parse().ok()?, seq.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        connections: None,
        body: 1024,
        headers: 1024,
        depth: 16,
        sessions_per_agent: 1,
        in_flight_per_agent: None,
    };

    #[tokio::test(start_paused = true)]
    async fn a_body_may_take_its_time_and_no_longer() {
        let check = async |after: Duration, expect: Result<&str, u16>| {
            let start = tokio::time::Instant::now();
            let chunks = futures_util::stream::once(async move {
                sleep(after).await;
                Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"{}")))
            });
            let mut body = StreamBody::new(Box::pin(chunks));
            let found = read(&mut body, &LIMITS).await;
            let found = found.map_err(|refusal| refusal.status().as_u16());
            assert_eq!(
                found.as_deref(),
                expect.as_ref().map(|text| text.as_bytes())
            );
            assert_eq!(start.elapsed(), after.min(PATIENCE));
        };
        check(PATIENCE / 2, Ok("{}")).await;
        check(PATIENCE * 2, Err(408)).await;
        check(Duration::ZERO, Ok("{}")).await;
    }
}
