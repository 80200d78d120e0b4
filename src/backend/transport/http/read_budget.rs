//! A connection that leaves something to others: after some reads in a row that found something, or
//! some bytes, it waits for its next turn.
//!
//! Called by `http_client` and `connection`. hyper reads on inside of one poll as long as there are bytes and
//! they make nothing whole, such as informational responses without end (RFC 9110, section 15.2): whoever
//! waits beside it, a deadline above all, would wait as long. And what comes between two parts of answers
//! has a bound, beyond which the connection fails: such responses, or frames of HTTP/2 that carry nothing.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::yield_now,
};

/// Reads in a row.
const READS_PER_TURN_MAX: u8 = 8;
/// Bytes in a row. hyper asks for up to 400 KiB in one read, which are thousands of responses.
const BYTES_PER_TURN_MAX: usize = 64 * 1024;

/// Bytes of HTTP/1 between two parts of answers: no head has as many.
pub(in crate::backend) const OVERHEAD_MAX: usize = 1 << 20;
/// The same where it may be HTTP/2, whose windows let 5 MiB come that nobody has taken yet.
pub(in crate::backend) const OVERHEAD_MAX_HTTP2: usize = 8 << 20;

/// Bytes that came since the last part of an answer.
#[derive(Clone, Debug, Default)]
pub(in crate::backend) struct Overhead(Arc<AtomicUsize>);

impl Overhead {
    /// A part of an answer has come, or a request begins.
    pub(in crate::backend) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn add(&self, bytes: usize, max: usize) -> io::Result<()> {
        if self.0.fetch_add(bytes, Ordering::Relaxed) + bytes <= max {
            return Ok(());
        }
        let why = format!(
            "the server sent more than {max} bytes outside of responses, such as informational \
             responses"
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }
}

/// See the module.
pub(in crate::backend) struct ReadBudget<S> {
    stream: S,
    /// Reads that found something since one that did not.
    reads: u8,
    /// Bytes that they found.
    bytes: usize,
    overhead: Overhead,
    overhead_max: usize,
    /// Whether requests for any server may go in, since a proxy is at the other end.
    is_proxied: bool,
    /// What ends with the next turn.
    pause: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl<S> ReadBudget<S> {
    pub(in crate::backend) fn new(stream: S, overhead_max: usize) -> Self {
        Self {
            stream,
            reads: 0,
            bytes: 0,
            overhead: Overhead::default(),
            overhead_max,
            is_proxied: false,
            pause: None,
        }
    }

    /// The same, to a proxy that is told in each request where that is for.
    pub(in crate::backend) fn proxied(mut self) -> Self {
        self.is_proxied = true;
        self
    }

    /// What is told of the parts of answers.
    pub(in crate::backend) fn overhead(&self) -> Overhead {
        self.overhead.clone()
    }
}

/// Those who use a pooled connection find its [`Overhead`] among the extensions of a response.
impl<S: Connection> Connection for ReadBudget<S> {
    fn connected(&self) -> Connected {
        let connected = self.stream.connected().extra(self.overhead());
        connected.proxy(self.is_proxied)
    }
}

impl<S: std::fmt::Debug> std::fmt::Debug for ReadBudget<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stream.fmt(f)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadBudget<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            stream,
            reads,
            bytes,
            overhead,
            overhead_max,
            pause,
            is_proxied: _,
        } = &mut *self;
        if *reads >= READS_PER_TURN_MAX || *bytes >= BYTES_PER_TURN_MAX {
            let pause = pause.get_or_insert_with(|| Box::pin(yield_now()));
            ready!(pause.as_mut().poll(cx));
            (*reads, *bytes) = (0, 0);
        }
        *pause = None;
        match read_at_most(BYTES_PER_TURN_MAX - *bytes, Pin::new(stream), cx, buf) {
            Poll::Ready(found) => {
                *reads += 1;
                let found = found?;
                *bytes += found;
                Poll::Ready(overhead.add(found, *overhead_max))
            }
            Poll::Pending => {
                (*reads, *bytes) = (0, 0);
                Poll::Pending
            }
        }
    }
}

/// Reads up to `bytes_max` bytes into `buf`; how many there were.
fn read_at_most<S: AsyncRead>(
    bytes_max: usize,
    stream: Pin<&mut S>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<usize>> {
    if buf.remaining() <= bytes_max {
        let before = buf.filled().len();
        ready!(stream.poll_read(cx, buf))?;
        return Poll::Ready(Ok(buf.filled().len() - before));
    }
    // Only large buffers come here, after many bytes: to clear a part of one costs little.
    let mut part = ReadBuf::new(buf.initialize_unfilled_to(bytes_max));
    ready!(stream.poll_read(cx, &mut part))?;
    let found = part.filled().len();
    buf.advance(found);
    Poll::Ready(Ok(found))
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadBudget<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Reads `count` times, each of which finds something at once.
    fn read_on<S: AsyncRead + Unpin>(stream: &mut ReadBudget<S>, count: u8) {
        for read in 0..count {
            let found = stream.read(&mut [0; 4]).now_or_never();
            assert!(found.is_some(), "read {read} of {count}");
        }
    }

    #[tokio::test]
    async fn who_always_finds_something_waits_for_the_next_turn() {
        let mut stream = ReadBudget::new(tokio::io::repeat(b'a'), usize::MAX);
        read_on(&mut stream, READS_PER_TURN_MAX);
        for _ in 0..3 {
            assert!(stream.read(&mut [0; 4]).now_or_never().is_none());
            assert_eq!(stream.read(&mut [0; 4]).await.unwrap(), 4);
            read_on(&mut stream, READS_PER_TURN_MAX - 1);
        }
    }

    #[tokio::test]
    async fn a_turn_has_so_many_bytes() {
        let mut stream = ReadBudget::new(tokio::io::repeat(b'a'), usize::MAX);
        let mut large = vec![0; 4 * BYTES_PER_TURN_MAX];
        let mut found = stream.read(&mut large).now_or_never();
        for _ in 0..3 {
            assert_eq!(found.unwrap().unwrap(), BYTES_PER_TURN_MAX);
            assert!(stream.read(&mut large).now_or_never().is_none());
            found = Some(stream.read(&mut large).await);
        }
        // What is left of a turn, to the byte.
        stream.bytes = BYTES_PER_TURN_MAX - 5;
        assert_eq!(stream.read(&mut [0; 4]).now_or_never().unwrap().unwrap(), 4);
        assert_eq!(stream.read(&mut large).now_or_never().unwrap().unwrap(), 1);
        assert_eq!((large[0], stream.bytes), (b'a', BYTES_PER_TURN_MAX));
        assert!(stream.read(&mut large).now_or_never().is_none());
    }

    #[tokio::test]
    async fn who_finds_nothing_now_and_then_goes_on_at_once() {
        let (mut near, far) = tokio::io::duplex(64);
        let mut stream = ReadBudget::new(far, usize::MAX);
        for _ in 0..3 {
            let some = [b'a'; 4 * (READS_PER_TURN_MAX as usize - 1)];
            near.write_all(&some).await.unwrap();
            read_on(&mut stream, READS_PER_TURN_MAX - 1);
            assert!(stream.read(&mut [0; 4]).now_or_never().is_none());
        }
    }

    #[tokio::test]
    async fn what_is_part_of_no_answer_has_a_bound() {
        let mut stream = ReadBudget::new(tokio::io::repeat(b'a'), OVERHEAD_MAX);
        let overhead = stream.overhead();
        let mut whole = vec![0; OVERHEAD_MAX];
        for _ in 0..3 {
            stream
                .read_exact(&mut whole)
                .await
                .expect("so much may come");
            overhead.reset();
        }
        stream.read_exact(&mut whole).await.unwrap();
        let failed = stream.read(&mut [0]).await.unwrap_err();
        assert!(failed.to_string().contains("informational"), "{failed}");
    }
}
