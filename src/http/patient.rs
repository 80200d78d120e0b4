//! A connection that is given up when its peer does not read.
//!
//! What waits to be written is bounded elsewhere (`session::replay`, one answer a call); this ends
//! the wait, and with the connection all that waits with it. Any byte that the system takes begins
//! the time anew, so a slow reader is no silent one.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// How long a peer may take no byte of what is written to it.
pub(super) const WRITE_PATIENCE: Duration = Duration::from_secs(60);

/// A connection whose writes, flushes and end fail after [`WRITE_PATIENCE`] without progress.
#[derive(Debug)]
pub(super) struct Patient<S> {
    stream: S,
    writing: Wait,
    flushing: Wait,
}

/// Since when something cannot go on; the timer exists only then.
#[derive(Debug, Default)]
struct Wait(Option<Pin<Box<Sleep>>>);

impl<S> Patient<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            writing: Wait::default(),
            flushing: Wait::default(),
        }
    }
}

impl Wait {
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.0 = None;
            return progress;
        }
        let timer = self
            .0
            .get_or_insert_with(|| Box::pin(sleep(WRITE_PATIENCE)));
        timer.as_mut().poll(cx).map(|()| {
            let message = format!("the peer has read nothing for {WRITE_PATIENCE:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.writing.watch(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, parts);
        this.writing.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.flushing.watch(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.flushing.watch(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::{Instant, timeout},
    };

    use super::*;

    /// Room between the two ends, bytes.
    const ROOM: usize = 16;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_is_given_up() {
        let (near, _far) = duplex(ROOM);
        let mut near = Patient::new(near);
        near.write_all(&[0; ROOM]).await.expect("there is room");
        let start = Instant::now();
        let failure = near.write_all(&[0]).await.unwrap_err();
        assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), WRITE_PATIENCE);
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
        let failure = Patient::new(Stuck).shutdown().await.unwrap_err();
        assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), WRITE_PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_waited_for() {
        let (near, mut far) = duplex(ROOM);
        let mut near = Patient::new(near);
        let almost = WRITE_PATIENCE.saturating_sub(Duration::from_millis(1));
        let read = async {
            for _ in 0..10 {
                sleep(almost).await;
                far.read_u8().await.expect("it was written");
            }
        };
        let write = near.write_all(&[0; ROOM + 10]);
        let (written, ()) = tokio::join!(write, read);
        written.expect("each byte came in time");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_no_fault() {
        let (near, mut far) = duplex(ROOM);
        let mut near = Patient::new(near);
        let quiet = timeout(10 * WRITE_PATIENCE, near.read_u8()).await;
        assert!(
            quiet.is_err(),
            "nothing ends the wait for what the peer says"
        );
        near.write_all(b"x").await.expect("there is room");
        assert_eq!(far.read_u8().await.expect("it was written"), b'x');
    }
}
