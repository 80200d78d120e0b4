//! A connection that leaves something to others: after some reads in a row that found something, or
//! some bytes, it waits for its next turn.
//!
//! Called by `pool`. hyper reads on inside of one poll as long as there are bytes and they make
//! nothing whole, such as informational responses without end (RFC 9110, section 15.2): whoever
//! waits beside it, a deadline above all, would wait as long.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::yield_now,
};

/// Reads in a row.
const READS_MAX: u8 = 8;
/// Bytes in a row. hyper asks for up to 400 KiB in one read, which are thousands of responses.
const BYTES_MAX: usize = 64 * 1024;

/// See the module.
pub(super) struct Turns<S> {
    stream: S,
    /// Reads that found something since one that did not.
    reads: u8,
    /// Bytes that they found.
    bytes: usize,
    /// What ends with the next turn.
    pause: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl<S> Turns<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            reads: 0,
            bytes: 0,
            pause: None,
        }
    }
}

impl<S: std::fmt::Debug> std::fmt::Debug for Turns<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stream.fmt(f)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Turns<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            stream,
            reads,
            bytes,
            pause,
        } = &mut *self;
        if *reads >= READS_MAX || *bytes >= BYTES_MAX {
            let pause = pause.get_or_insert_with(|| Box::pin(yield_now()));
            ready!(pause.as_mut().poll(cx));
            (*reads, *bytes) = (0, 0);
        }
        *pause = None;
        match read_at_most(BYTES_MAX - *bytes, Pin::new(stream), cx, buf) {
            Poll::Ready(found) => {
                *reads += 1;
                *bytes += found.as_ref().unwrap_or(&0);
                Poll::Ready(found.map(drop))
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Turns<S> {
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
    fn read_on<S: AsyncRead + Unpin>(stream: &mut Turns<S>, count: u8) {
        for read in 0..count {
            let found = stream.read(&mut [0; 4]).now_or_never();
            assert!(found.is_some(), "read {read} of {count}");
        }
    }

    #[tokio::test]
    async fn who_always_finds_something_waits_for_the_next_turn() {
        let mut stream = Turns::new(tokio::io::repeat(b'a'));
        read_on(&mut stream, READS_MAX);
        for _ in 0..3 {
            assert!(stream.read(&mut [0; 4]).now_or_never().is_none());
            assert_eq!(stream.read(&mut [0; 4]).await.unwrap(), 4);
            read_on(&mut stream, READS_MAX - 1);
        }
    }

    #[tokio::test]
    async fn a_turn_has_so_many_bytes() {
        let mut stream = Turns::new(tokio::io::repeat(b'a'));
        let mut large = vec![0; 4 * BYTES_MAX];
        let mut found = stream.read(&mut large).now_or_never();
        for _ in 0..3 {
            assert_eq!(found.unwrap().unwrap(), BYTES_MAX);
            assert!(stream.read(&mut large).now_or_never().is_none());
            found = Some(stream.read(&mut large).await);
        }
        // What is left of a turn, to the byte.
        stream.bytes = BYTES_MAX - 5;
        assert_eq!(stream.read(&mut [0; 4]).now_or_never().unwrap().unwrap(), 4);
        assert_eq!(stream.read(&mut large).now_or_never().unwrap().unwrap(), 1);
        assert_eq!((large[0], stream.bytes), (b'a', BYTES_MAX));
        assert!(stream.read(&mut large).now_or_never().is_none());
    }

    #[tokio::test]
    async fn who_finds_nothing_now_and_then_goes_on_at_once() {
        let (mut near, far) = tokio::io::duplex(64);
        let mut stream = Turns::new(far);
        for _ in 0..3 {
            let some = [b'a'; 4 * (READS_MAX as usize - 1)];
            near.write_all(&some).await.unwrap();
            read_on(&mut stream, READS_MAX - 1);
            assert!(stream.read(&mut [0; 4]).now_or_never().is_none());
        }
    }
}
