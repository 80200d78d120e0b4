//! A connection that is given up when its peer takes too long: to send the head of a request, or to read an
//! answer.
//!
//! What waits to be written is bounded elsewhere (`session::replay`, one answer a call); this ends
//! the wait, and with the connection all that waits with it. An answer has to be read at
//! `limits.body_rate_min` at least, which is looked at whenever the peer has kept us waiting for
//! [`WRITE_TIMEOUT`] in all; one that takes no byte for that long is given up in any case. Bodies of
//! requests have their times in `body`.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep, sleep_until},
};

use crate::limiter::ConnectionPermit;

/// How long a peer may take no byte of what is written to it.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// What the first bytes of HTTP/2 are. Its frames come also outside of requests; it has times of its own.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0";

/// How long a peer may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionTimeouts {
    /// For the head of a request, from its first byte on.
    pub(super) headers: Duration,
    /// Bytes a second at which answers have to be read.
    pub(super) read_rate_min: usize,
}

/// A connection with limits on how long its peer may take.
#[derive(Debug)]
pub(super) struct TimedStream<S> {
    stream: S,
    permit: Arc<ConnectionPermit>,
    times: ConnectionTimeouts,
    head: RequestHead,
    writing: PeerWait,
    flushing: PeerWait,
}

/// The head of a request of which a part has come.
#[derive(Debug, Default)]
struct RequestHead {
    /// When it began, and how many requests had come by then.
    started: Option<(Instant, u64)>,
    /// The timer exists only while it is waited for.
    timer: Option<Pin<Box<Sleep>>>,
    has_read: bool,
    is_http2: bool,
}

/// How a peer reads.
#[derive(Debug, Default)]
struct PeerWait {
    /// Since when nothing goes on; the timer exists only then.
    stalled: Option<(Instant, Pin<Box<Sleep>>)>,
    /// How long it has kept us waiting, and what it took meanwhile.
    total: Duration,
    bytes: usize,
}

impl<S> TimedStream<S> {
    pub(super) fn new(stream: S, permit: Arc<ConnectionPermit>, times: ConnectionTimeouts) -> Self {
        Self {
            stream,
            permit,
            times,
            head: RequestHead::default(),
            writing: PeerWait::default(),
            flushing: PeerWait::default(),
        }
    }
}

impl RequestHead {
    fn note(&mut self, bytes: &[u8], permit: &ConnectionPermit) {
        self.is_http2 |= !self.has_read && bytes.starts_with(HTTP2_PREFACE);
        self.has_read = true;
        if self.started.is_none() && !self.is_http2 && permit.in_flight() == 0 {
            self.started = Some((Instant::now(), permit.requests()));
        }
    }

    /// Whether the rest has not come in time.
    fn is_overdue(
        &mut self,
        cx: &mut Context<'_>,
        permit: &ConnectionPermit,
        patience: Duration,
    ) -> bool {
        let Some((began, requests)) = self.started else {
            return false;
        };
        if permit.requests() != requests {
            (self.started, self.timer) = (None, None);
            return false;
        }
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(began + patience)));
        timer.as_mut().poll(cx).is_ready()
    }
}

impl PeerWait {
    /// Watches over a write, of which `progress` gives the bytes taken.
    fn check_progress<T: WriteProgress>(
        &mut self,
        cx: &mut Context<'_>,
        rate_min: usize,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(result) = &progress {
            let bytes = result.as_ref().map_or(0, WriteProgress::bytes);
            return if self.is_slow(bytes, rate_min) {
                Poll::Ready(Err(timed_out(
                    "reads more slowly than limits.body_rate_min",
                )))
            } else {
                progress
            };
        }
        let (_, timer) = self
            .stalled
            .get_or_insert_with(|| (Instant::now(), Box::pin(sleep(WRITE_TIMEOUT))));
        timer
            .as_mut()
            .poll(cx)
            .map(|()| Err(timed_out("has read nothing for a minute")))
    }

    /// Notes that the peer took so many bytes; whether it takes too few.
    fn is_slow(&mut self, bytes: usize, rate_min: usize) -> bool {
        let Some((since, _)) = self.stalled.take() else {
            return false;
        };
        self.total += since.elapsed();
        self.bytes += bytes;
        if self.total < WRITE_TIMEOUT {
            return false;
        }
        let seconds = usize::try_from(self.total.as_secs()).unwrap_or(usize::MAX);
        let is_slow = self.bytes < rate_min.saturating_mul(seconds);
        (self.total, self.bytes) = (Duration::ZERO, 0);
        is_slow
    }
}

fn timed_out(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the peer {why}"))
}

/// What a write gives.
trait WriteProgress {
    fn bytes(&self) -> usize;
}

impl WriteProgress for usize {
    fn bytes(&self) -> usize {
        *self
    }
}

/// Nobody knows how much a flush has moved: it is as much as may be.
impl WriteProgress for () {
    fn bytes(&self) -> usize {
        usize::MAX / 2
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if polled.is_ready() {
            this.head.note(&buffer.filled()[before..], &this.permit);
        } else if this.head.is_overdue(cx, &this.permit, this.times.headers) {
            return Poll::Ready(Err(timed_out(
                "sends request headers more slowly than limits.headers_timeout",
            )));
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.writing
            .check_progress(cx, this.times.read_rate_min, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, parts);
        this.writing
            .check_progress(cx, this.times.read_rate_min, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.flushing
            .check_progress(cx, this.times.read_rate_min, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.flushing
            .check_progress(cx, this.times.read_rate_min, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::timeout,
    };

    use super::*;
    use crate::names::PeerAddress;
    use crate::{config::Config, limiter::Limiter};

    const TIMES: ConnectionTimeouts = ConnectionTimeouts {
        headers: Duration::from_secs(5),
        read_rate_min: 10,
    };

    fn timed<S>(stream: S) -> TimedStream<S> {
        let limiter = Limiter::new(&Config::example("").limits);
        let permit = limiter.connections.acquire_unchecked(PeerAddress::User(1));
        TimedStream::new(stream, Arc::new(permit), TIMES)
    }

    /// Room between the two ends, bytes.
    const ROOM: usize = 16;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_is_given_up() {
        let (near, _far) = duplex(ROOM);
        let mut near = timed(near);
        near.write_all(&[0; ROOM]).await.expect("there is room");
        let start = Instant::now();
        let failure = near.write_all(&[0]).await.unwrap_err();
        assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), WRITE_TIMEOUT);
    }

    /// What is written to it waits for a reader who never comes.
    struct Stuck;

    impl AsyncWrite for Stuck {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_is_not_waited_for_without_end() {
        let start = Instant::now();
        let failure = timed(Stuck).shutdown().await.unwrap_err();
        assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), WRITE_TIMEOUT);
    }

    /// Who takes so many bytes each time just before it would be given up.
    async fn read_slowly(bytes: usize) -> io::Result<()> {
        let (near, mut far) = duplex(ROOM);
        let mut near = timed(near);
        let almost = WRITE_TIMEOUT.saturating_sub(Duration::from_millis(1));
        let read = async {
            let mut taken = vec![0; bytes];
            for _ in 0..10 {
                sleep(almost).await;
                // It was given up where there is nothing.
                drop(far.read_exact(&mut taken).await);
            }
        };
        let message = vec![0; ROOM + 10 * bytes];
        let write = async {
            let written = near.write_all(&message).await;
            drop(near);
            written
        };
        tokio::join!(write, read).0
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_waited_for_and_a_very_slow_one_is_not() {
        let enough = TIMES.read_rate_min * 120;
        read_slowly(enough).await.expect("it reads fast enough");
        let failure = read_slowly(enough / 2).await.unwrap_err();
        assert!(failure.to_string().contains("limits.body_rate_min"));
        read_slowly(enough * 2).await.expect("it reads fast enough");
    }

    /// The head of each request has its time; between requests there is none.
    #[tokio::test(start_paused = true)]
    async fn a_head_has_its_time_from_its_first_byte_on() {
        let check = async |pause: Duration, is_late: bool| {
            let (near, mut far) = duplex(1024);
            let mut near = timed(near);
            for _ in 0..2 {
                sleep(100 * TIMES.headers).await;
                far.write_all(b"GET /").await.unwrap();
                assert_eq!(near.read_u8().await.unwrap(), b'G');
                let mut rest = [0; 5];
                let rest = near.read_exact(&mut rest);
                let send = async {
                    sleep(pause).await;
                    far.write_all(b"x").await.unwrap();
                };
                let (read, ()) = tokio::join!(rest, send);
                assert_eq!(read.is_err(), is_late, "{pause:?}");
                if is_late {
                    return;
                }
                drop(near.permit.begin_request());
                assert!(timeout(100 * TIMES.headers, near.read_u8()).await.is_err());
            }
        };
        check(TIMES.headers / 2, false).await;
        check(TIMES.headers * 2, true).await;
        check(Duration::ZERO, false).await;
    }

    /// Frames of HTTP/2 come outside of requests.
    #[tokio::test(start_paused = true)]
    async fn there_is_no_head_in_http2() {
        let (near, mut far) = duplex(1024);
        let mut near = timed(near);
        far.write_all(b"PRI * HTTP/2.0").await.unwrap();
        let mut all = [0; 14];
        near.read_exact(&mut all).await.unwrap();
        assert!(timeout(100 * TIMES.headers, near.read_u8()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_no_fault() {
        let (near, mut far) = duplex(ROOM);
        let mut near = timed(near);
        let quiet = timeout(10 * WRITE_TIMEOUT, near.read_u8()).await;
        assert!(
            quiet.is_err(),
            "nothing ends the wait for what the peer says"
        );
        near.write_all(b"x").await.expect("there is room");
        assert_eq!(far.read_u8().await.expect("it was written"), b'x');
    }
}
