//! Bodies of answers: whole, or a stream of events.

use std::{convert::Infallible, pin::Pin, time::Duration};

use bytes::Bytes;
use futures_util::Stream as Chunks;
use http::{
    HeaderValue, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use http_body::Frame;
use http_body_util::{Either, Full, StreamBody};
use std::sync::Arc;
use tokio::time::sleep;
use tokio_util::sync::DropGuard;

use crate::{
    mcp::sse,
    session::replay::{Item, Place, Stream},
};

type Events = Pin<Box<dyn Chunks<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

/// The body of an answer.
pub(crate) type Body = Either<Full<Bytes>, StreamBody<Events>>;

/// A whole body.
pub(super) fn full(bytes: impl Into<Bytes>) -> Body {
    Either::Left(Full::new(bytes.into()))
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
