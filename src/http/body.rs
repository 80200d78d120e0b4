//! Bodies: those of requests read within their limits, those of answers whole or as a stream of
//! events.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, Stream as Chunks, StreamExt};
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::Incoming;
use tokio::{
    task::consume_budget,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::DropGuard;

use super::{HttpEdge, RequestPeer, bad_post, overloaded_response};
use crate::{
    auth::CredentialLifetime,
    body::BodyError,
    config::Limits,
    limiter::{ConnectionPermit, Reservation},
    mcp::{json as scan, sse},
    names::AgentId,
    session::replay::{ReplayCursor, ReplayStream, StreamItem},
    task::{InFlightGuard, Tasks},
};

/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause between looks whether a body comes fast enough.
const RATE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

type EventStream = Pin<Box<dyn Chunks<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

/// The body of an answer.
pub(crate) type Body = Either<Full<Bytes>, StreamBody<EventStream>>;

/// What a body is read with.
#[derive(Debug)]
pub(super) struct BodyReader<'a> {
    limits: &'a Limits,
    permit: &'a ConnectionPermit,
    reservation: Reservation,
}

/// Reads the body of a request of `agent` within the limits on size, nesting and time.
pub(super) async fn read_body(
    request: &mut Request<Incoming>,
    edge: &HttpEdge,
    (agent, peer): (AgentId, &RequestPeer),
) -> Result<Bytes, Response<Body>> {
    let settings = edge.proxy.settings();
    let intake = BodyReader {
        limits: &settings.limits,
        permit: &peer.permit,
        reservation: edge.proxy.limiter().bytes.reserve_request(agent),
    };
    read_bounded(request.body_mut(), intake).await
}

/// Reads the body of a request of anybody, of which there is a little.
pub(super) async fn read_small_body(
    request: &mut Request<Incoming>,
    edge: &HttpEdge,
    peer: &RequestPeer,
    bytes_max: usize,
) -> Result<Bytes, Response<Body>> {
    let settings = edge.proxy.settings();
    let limits = Limits {
        body: bytes_max.min(settings.limits.body),
        ..settings.limits.clone()
    };
    let agent = AgentId::ANONYMOUS;
    let intake = BodyReader {
        limits: &limits,
        permit: &peer.permit,
        reservation: edge.proxy.limiter().bytes.reserve_request(agent),
    };
    read_bounded(request.body_mut(), intake).await
}

async fn read_bounded<B>(body: &mut B, intake: BodyReader<'_>) -> Result<Bytes, Response<Body>>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + 'static,
{
    let BodyReader {
        limits,
        permit,
        reservation,
    } = intake;
    let read = {
        let received = AtomicUsize::new(0);
        let mut body = CountedBody {
            body,
            received: &received,
        };
        let mut read = std::pin::pin!(crate::body::read_to_end(
            &mut body,
            limits.body,
            reservation
        ));
        // Most bodies are there already, and need no timer.
        if let Some(read) = read.as_mut().now_or_never() {
            read
        } else {
            let _unfinished = permit.begin_body();
            let late = Box::pin(too_slow(&received, limits));
            tokio::select! {
                biased;
                read = read => read,
                why = late => return Err(bad_post(StatusCode::REQUEST_TIMEOUT, &why)),
            }
        }
    };
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(BodyError::TooLarge { limit }) => {
            let message = format!("the body exceeds limits.body ({limit} bytes)");
            return Err(bad_post(StatusCode::PAYLOAD_TOO_LARGE, &message));
        }
        Err(BodyError::OutOfMemory(full)) => return Err(overloaded_response(full)),
        Err(BodyError::Connection(_)) => {
            return Err(bad_post(StatusCode::BAD_REQUEST, "the body was incomplete"));
        }
    };
    let depth_max = limits.depth;
    if scan::is_nested_deeper(&bytes, depth_max) {
        let message = format!("the body is nested deeper than limits.depth ({depth_max})");
        return Err(bad_post(StatusCode::BAD_REQUEST, &message));
    }
    Ok(bytes)
}

/// Completes when a body of which so many bytes have come takes too long; says why.
async fn too_slow(received: &AtomicUsize, limits: &Limits) -> String {
    let start = Instant::now();
    let mut pause = limits.body_grace.min(BODY_TIMEOUT);
    loop {
        sleep(pause).await;
        let elapsed = start.elapsed();
        if elapsed >= BODY_TIMEOUT {
            return format!("the body did not come within {BODY_TIMEOUT:?}");
        }
        let millis = usize::try_from(elapsed.as_millis()).unwrap_or(usize::MAX);
        let rate = limits.body_rate_min;
        if received.load(Ordering::Relaxed) < rate.saturating_mul(millis) / 1000 {
            return format!(
                "the body arrived more slowly than limits.body_rate_min ({rate} bytes per second)"
            );
        }
        pause = RATE_CHECK_INTERVAL.min(BODY_TIMEOUT.saturating_sub(elapsed));
    }
}

/// A body of which it is known how much has come.
struct CountedBody<'a, B> {
    body: &'a mut B,
    received: &'a AtomicUsize,
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for CountedBody<'_, B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut *this.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            this.received.fetch_add(data.len(), Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// How much of a body is taken after its request was answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrainLimit {
    bytes_max: usize,
    duration_max: Duration,
}

impl DrainLimit {
    /// A client may be in the midst of a large one.
    pub(super) const fn for_client() -> Self {
        Self {
            bytes_max: usize::MAX,
            duration_max: Duration::from_secs(5),
        }
    }

    /// Of a client that has not said who it is in a way that counts, `bytes_max` at most.
    pub(super) const fn for_unauthenticated(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            duration_max: Duration::from_millis(250),
        }
    }
}

/// Takes what is left of the `body` of a request that was answered, for a while: a connection that is
/// closed with something unread is reset, and its client may never see why it was refused (RFC 9112,
/// section 9.6).
pub(super) fn drain(mut body: Incoming, limit: DrainLimit, tasks: &Tasks) {
    // One in chunks does not know that its end was read.
    if body.is_end_stream() || matches!(body.frame().now_or_never(), Some(None)) {
        return;
    }
    let mut left = limit.bytes_max;
    if body.size_hint().lower() > u64::try_from(left).unwrap_or(u64::MAX) {
        return;
    }
    let taken = async move {
        while let Some(Ok(frame)) = body.frame().await {
            let size = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(size) else {
                return;
            };
            left = rest;
            consume_budget().await;
        }
    };
    let stop = tasks.stop_token().clone();
    tasks.spawn("rest of a body", async move {
        stop.run_until_cancelled(timeout(limit.duration_max, taken))
            .await;
    });
}

/// A whole body.
pub(super) fn full_body(bytes: impl Into<Bytes>) -> Body {
    Either::Left(Full::new(bytes.into()))
}

/// `body`, which holds `what` until it is written, where that takes a while.
pub(super) fn with_guard(body: Body, what: impl Send + 'static) -> Body {
    match body {
        Either::Left(whole) => Either::Left(whole),
        Either::Right(events) => {
            let held = events.map(move |event| {
                let _ = &what;
                event
            });
            Either::Right(StreamBody::new(Box::pin(held) as EventStream))
        }
    }
}

/// How a stream of messages is written as events.
#[derive(Debug)]
pub(super) struct EventFormat {
    /// Silence after which a comment is sent.
    pub(super) keep_alive: Duration,
    /// Whether events carry ids, so that the reader can resume.
    pub(super) ids: bool,
    /// Written first.
    pub(super) first: Option<Bytes>,
    /// How long who reads may do so.
    pub(super) lifetime: CredentialLifetime,
    /// Dropped when the reader is gone.
    pub(super) _guard: Option<DropGuard>,
    /// Counts the reader until it is gone.
    pub(super) _reader: InFlightGuard,
}

/// An answer that follows `stream` from `place` on.
pub(super) fn events(
    stream: Arc<ReplayStream>,
    place: ReplayCursor,
    writing: EventFormat,
) -> Response<Body> {
    let attendance = stream.attach_reader();
    let state = (stream, place, writing, attendance);
    let chunks = futures_util::stream::unfold(
        state,
        |(stream, mut place, mut writing, attendance)| async move {
            let bytes = match writing.first.take() {
                Some(first) => first,
                None => next_event(&stream, &mut place, &writing).await?,
            };
            Some((Ok(Frame::data(bytes)), (stream, place, writing, attendance)))
        },
    );
    let mut response = Response::new(Either::Right(StreamBody::new(
        Box::pin(chunks) as EventStream
    )));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("no-cache, no-transform"),
    );
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

async fn next_event(
    stream: &ReplayStream,
    place: &mut ReplayCursor,
    writing: &EventFormat,
) -> Option<Bytes> {
    let item = tokio::select! {
        biased;
        () = writing.lifetime.ended() => return None,
        item = stream.next(place) => item?,
        () = sleep(writing.keep_alive) => return Some(sse::KEEP_ALIVE),
    };
    let id = writing.ids.then(|| event_id(stream.id, place.seq));
    Some(match item {
        StreamItem::Message(bytes) => sse::write_event(id.as_deref(), &bytes),
        StreamItem::Pause(retry_ms) => match id {
            Some(id) => sse::write_priming(&id, retry_ms),
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
    use crate::names::PeerAddress;
    use crate::{config::Config, limiter::Limiter};

    /// Reads what comes in so many pieces of so many bytes, with such a pause before each; the status it is
    /// refused with, and when that was or the last piece came.
    async fn check(
        limits: &Limits,
        pieces: usize,
        bytes: usize,
        pause: Duration,
    ) -> (u16, Duration) {
        let limiter = Limiter::new(limits);
        let permit = limiter.connections.acquire_unchecked(PeerAddress::User(1));
        let _active = permit.begin_request();
        let chunks = futures_util::stream::unfold(0, |piece| async move {
            (piece < pieces).then_some(())?;
            sleep(pause).await;
            let data = Ok::<_, Infallible>(Frame::data(vec![b' '; bytes].into()));
            Some((data, piece + 1))
        });
        let mut body = StreamBody::new(Box::pin(chunks));
        let start = Instant::now();
        let intake = BodyReader {
            limits,
            permit: &permit,
            reservation: limiter.bytes.reserve_request(AgentId::ANONYMOUS),
        };
        let found = read_bounded(&mut body, intake).await;
        assert!(!permit.is_awaiting_bodies());
        let status = found.map_or_else(|refusal| refusal.status().as_u16(), |_| 200);
        (status, start.elapsed())
    }

    fn limits(rate: &str) -> Limits {
        Config::example(&format!("limits.body_rate_min = \"{rate}\"")).limits
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_take_its_time_and_no_longer() {
        let any = limits("0B");
        for (pause, expect) in [
            (BODY_TIMEOUT / 2, (200, BODY_TIMEOUT / 2)),
            (BODY_TIMEOUT * 2, (408, BODY_TIMEOUT)),
            (Duration::ZERO, (200, Duration::ZERO)),
        ] {
            assert_eq!(check(&any, 1, 9, pause).await, expect);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_comes_at_its_rate_or_not_at_all() {
        let second = Duration::from_secs(1);
        let some = limits("100B");
        let grace = some.body_grace;
        for (bytes, expect) in [
            (99, (408, grace)),
            (100, (200, 20 * second)),
            (98, (408, grace)),
        ] {
            assert_eq!(check(&some, 20, bytes, second).await, expect, "{bytes}");
        }
        // One that begins well does not rest on that.
        let (status, after) = check(&some, 2, 1000, 12 * second).await;
        assert_eq!((status, after), (408, grace));
        let short = check(&some, 1, 1, grace.saturating_sub(second)).await;
        assert_eq!(
            short,
            (200, grace.saturating_sub(second)),
            "within the grace"
        );
    }

    #[tokio::test]
    async fn a_body_for_which_there_is_no_room_is_turned_away() {
        let small = Config::example("limits.bytes_in_flight = \"256KiB\"").limits;
        for (bytes, expect) in [(64 << 10, 200), (129 << 10, 503), (128 << 10, 200)] {
            let (status, _) = check(&small, 1, bytes, Duration::ZERO).await;
            assert_eq!(status, expect, "{bytes}");
        }
    }
}
