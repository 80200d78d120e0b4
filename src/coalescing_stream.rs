//! A TCP connection whose small writes leave together with those of others, while many requests are
//! under way.
//!
//! Under the connections of clients and of servers behind `http:` alike. What was taken leaves although
//! nobody polls the connection meanwhile; what the system does not take then is sent by who is woken for
//! it, and lost with a connection that was dropped before.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use crate::{
    lock::lock,
    task::{FlushLater, Tasks},
};

/// Bytes that wait for a departure at most; what does not fit goes at once.
const BUFFERED_BYTES_MAX: usize = 16 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct CoalescingStream {
    incoming: OwnedReadHalf,
    outgoing: Arc<Mutex<CoalescingWriter>>,
    /// Whether something may be kept: a flush, of which there are many, looks at nothing else if not.
    has_buffered: bool,
    tasks: Tasks,
}

#[derive(Debug)]
struct CoalescingWriter {
    half: OwnedWriteHalf,
    /// What was taken and not sent; goes before everything else.
    buffered: Vec<u8>,
    /// While it waits for a departure, who sends what that cannot.
    flush_waker: Option<Waker>,
}

impl CoalescingStream {
    /// Speaks over `stream`, whose departures are those of `tasks`.
    pub(crate) fn new(stream: TcpStream, tasks: &Tasks) -> Self {
        let (incoming, half) = stream.into_split();
        let outgoing = CoalescingWriter {
            half,
            buffered: Vec::new(),
            flush_waker: None,
        };
        Self {
            incoming,
            outgoing: Arc::new(Mutex::new(outgoing)),
            has_buffered: false,
            tasks: tasks.clone(),
        }
    }

    /// Sends what a departure could not; ready also before one, since who is told to wait is polled once
    /// more, which costs as much as what is saved. Should something be left then, who polled last is
    /// woken, and whatever that polls next comes here again.
    fn poll_flush_leftover(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.has_buffered {
            return Poll::Ready(Ok(()));
        }
        let mut outgoing = lock(&self.outgoing);
        if let Some(waker) = &mut outgoing.flush_waker {
            waker.clone_from(cx.waker());
            return Poll::Ready(Ok(()));
        }
        let polled = outgoing.poll_flush_buffered(cx);
        self.has_buffered = !outgoing.buffered.is_empty();
        polled
    }

    /// Keeps `parts` for a departure, or has `write` write them.
    fn poll_write_parts(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        write: impl FnOnce(Pin<&mut OwnedWriteHalf>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut outgoing = lock(&self.outgoing);
        let size: usize = parts.iter().map(|part| part.len()).sum();
        let is_aboard = outgoing.flush_waker.is_some();
        // What a departure could not send is sent by who writes.
        let may_wait = is_aboard || (outgoing.buffered.is_empty() && self.tasks.should_batch());
        if !may_wait || outgoing.buffered.len() + size > BUFFERED_BYTES_MAX {
            ready!(outgoing.poll_flush_buffered(cx))?;
            return write(Pin::new(&mut outgoing.half), cx);
        }
        outgoing.buffered.reserve(size);
        for part in parts {
            outgoing.buffered.extend_from_slice(part);
        }
        self.has_buffered = true;
        if !is_aboard {
            outgoing.flush_waker = Some(cx.waker().clone());
            drop(outgoing);
            self.tasks.defer_flush(Arc::clone(&self.outgoing) as _);
        }
        Poll::Ready(Ok(size))
    }
}

impl CoalescingWriter {
    /// Sends what is kept.
    fn poll_flush_buffered(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut sent = 0;
        let polled = loop {
            let rest = &self.buffered[sent..];
            if rest.is_empty() {
                break Poll::Ready(Ok(()));
            }
            match Pin::new(&mut self.half).poll_write(cx, rest) {
                Poll::Ready(Ok(0)) => break Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => sent += count,
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        self.consume_buffered(sent);
        polled
    }

    /// Forgets the first `count` bytes of what is kept; an idle connection keeps no buffer.
    fn consume_buffered(&mut self, count: usize) {
        if count == self.buffered.len() {
            self.buffered = Vec::new();
        } else {
            self.buffered.drain(..count);
        }
    }
}

impl FlushLater for Mutex<CoalescingWriter> {
    fn flush_now(&self) {
        let mut outgoing = lock(self);
        let waker = outgoing.flush_waker.take();
        // It may have gone before something larger.
        if outgoing.buffered.is_empty() {
            return;
        }
        // Who sends the rest finds that something is wrong, if only by another error.
        let sent = outgoing.half.try_write(&outgoing.buffered).unwrap_or(0);
        outgoing.consume_buffered(sent);
        if let Some(waker) = waker
            && !outgoing.buffered.is_empty()
        {
            drop(outgoing);
            waker.wake();
        }
    }
}

impl AsyncRead for CoalescingStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // Some flush once and only read from then on. What goes wrong is no fault of what is read, and
        // found again by who writes.
        let _left = this.poll_flush_leftover(cx);
        Pin::new(&mut this.incoming).poll_read(cx, buf)
    }
}

impl AsyncWrite for CoalescingStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut()
            .poll_write_parts(cx, &[IoSlice::new(bytes)], |half, cx| {
                half.poll_write(cx, bytes)
            })
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut()
            .poll_write_parts(cx, parts, |half, cx| half.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flush_leftover(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut outgoing = lock(&self.outgoing);
        ready!(outgoing.poll_flush_buffered(cx))?;
        Pin::new(&mut outgoing.half).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
        time::Duration,
    };

    use futures_util::FutureExt;
    use proptest::prelude::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        task::yield_now,
        time::timeout,
    };

    use super::*;

    async fn pair(tasks: &Tasks) -> (CoalescingStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap());
        let (near, far) = tokio::join!(near, listener.accept());
        (CoalescingStream::new(near.unwrap(), tasks), far.unwrap().0)
    }

    /// Takes `bytes` without waiting for anything.
    fn put(socket: &mut CoalescingStream, bytes: &[u8]) {
        let written = socket.write_all(bytes).now_or_never();
        written.expect("there is room").unwrap();
        let flushed = socket.flush().now_or_never();
        flushed.expect("nobody is told to wait").unwrap();
    }

    fn kept(socket: &CoalescingStream) -> usize {
        lock(&socket.outgoing).buffered.len()
    }

    async fn read(far: &mut TcpStream, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let read = timeout(Duration::from_secs(10), far.read_exact(&mut bytes)).await;
        read.expect("it comes").unwrap();
        bytes
    }

    #[tokio::test]
    async fn few_are_sent_at_once_and_many_while_nobody_polls() {
        let tasks = Tasks::new();
        let (mut near, mut far) = pair(&tasks).await;
        put(&mut near, b"few");
        assert_eq!(kept(&near), 0);
        let busy = tasks.in_flight_for_batching();
        put(&mut near, b"many");
        put(&mut near, b"more");
        assert_eq!(kept(&near), 8, "both wait for one departure");
        assert_eq!(read(&mut far, 11).await, b"fewmanymore");
        assert_eq!(kept(&near), 0);
        drop(busy);
        put(&mut near, b"few");
        assert_eq!(kept(&near), 0);
        tasks.finish().await;
    }

    #[tokio::test]
    async fn what_does_not_fit_goes_at_once_after_what_is_kept() {
        let tasks = Tasks::new();
        let _busy = tasks.in_flight_for_batching();
        let (mut near, mut far) = pair(&tasks).await;
        put(&mut near, &[b'a'; BUFFERED_BYTES_MAX]);
        assert_eq!(kept(&near), BUFFERED_BYTES_MAX);
        put(&mut near, b"b");
        assert_eq!(kept(&near), 0);
        put(&mut near, b"c");
        assert_eq!(kept(&near), 1, "the departure is still ahead");
        let bytes = read(&mut far, BUFFERED_BYTES_MAX + 2).await;
        assert_eq!(bytes[..BUFFERED_BYTES_MAX], [b'a'; BUFFERED_BYTES_MAX]);
        assert_eq!(bytes[BUFFERED_BYTES_MAX..], *b"bc");
        put(&mut near, &vec![b'd'; BUFFERED_BYTES_MAX + 1]);
        assert_eq!(kept(&near), 0);
        tasks.finish().await;
    }

    #[tokio::test]
    async fn who_is_dropped_still_departs() {
        let tasks = Tasks::new();
        let _busy = tasks.in_flight_for_batching();
        let (mut near, mut far) = pair(&tasks).await;
        put(&mut near, b"last words");
        drop(near);
        let mut heard = String::new();
        far.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "last words");
        tasks.finish().await;
    }

    #[tokio::test]
    async fn who_ends_does_not_wait_for_the_departure() {
        let tasks = Tasks::new();
        let _busy = tasks.in_flight_for_batching();
        let (mut near, mut far) = pair(&tasks).await;
        put(&mut near, b"last words");
        near.shutdown().now_or_never().expect("at once").unwrap();
        let mut heard = String::new();
        far.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "last words");
        tasks.finish().await;
    }

    #[tokio::test]
    async fn a_peer_that_is_gone_is_found_by_who_flushes() {
        let tasks = Tasks::new();
        let _busy = tasks.in_flight_for_batching();
        let (mut near, far) = pair(&tasks).await;
        far.set_zero_linger().unwrap();
        drop(far);
        let failed = async {
            loop {
                near.write_all(b"anybody there?").await?;
                near.flush().await?;
                yield_now().await;
            }
        };
        let failed: io::Result<()> = timeout(Duration::from_secs(10), failed).await.unwrap();
        failed.unwrap_err();
        tasks.finish().await;
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn what_does_not_depart_is_sent_by_who_flushes() {
        let tasks = Tasks::new();
        let (mut near, mut far) = pair(&tasks).await;
        let total = stuff(&mut near, &tasks, b"last words").await;
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut flush = || Pin::new(&mut near).poll_flush(&mut Context::from_waker(&waker));
        assert!(flush().is_ready(), "the departure is ahead");
        let wakes = async |count| {
            while woken.0.load(Ordering::Relaxed) < count {
                yield_now().await;
            }
        };
        let departed = timeout(Duration::from_secs(10), wakes(1)).await;
        departed.expect("who polled last is told that something is left");
        assert!(flush().is_pending(), "nothing was read");
        let heard = async {
            let mut heard = read(&mut far, total).await;
            wakes(2).await;
            assert!(flush().is_ready());
            heard.append(&mut read(&mut far, 10).await);
            heard
        };
        let heard = timeout(Duration::from_secs(10), heard).await;
        let heard = heard.expect("there is room once it was read");
        assert_eq!(heard[total..], *b"last words");
        assert_eq!(heard[..total], vec![b'a'; total]);
        tasks.finish().await;
    }

    #[tokio::test]
    async fn what_does_not_depart_is_sent_by_who_only_reads_from_then_on() {
        let tasks = Tasks::new();
        let (mut near, mut far) = pair(&tasks).await;
        let total = stuff(&mut near, &tasks, b"hello").await;
        let heard = async {
            let heard = read(&mut far, total + 5).await;
            far.write_all(b"well?").await.unwrap();
            heard
        };
        let mut answer = [0; 5];
        let (heard, answered) = tokio::join!(heard, near.read_exact(&mut answer));
        answered.unwrap();
        assert_eq!(heard[total..], *b"hello");
        assert_eq!(answer, *b"well?");
        tasks.finish().await;
    }

    /// Fills what the system keeps for `near`, and then has it keep `bytes` for a departure; how many
    /// came before those.
    async fn stuff<S: AsyncWrite + Unpin>(near: &mut S, tasks: &Tasks, bytes: &[u8]) -> usize {
        let mut total = 0;
        // The system goes on taking a little while it moves things about.
        let settled = Duration::from_millis(100);
        while let Ok(count) = timeout(settled, near.write(&[b'a'; BUFFERED_BYTES_MAX])).await {
            total += count.unwrap();
        }
        let _busy = tasks.in_flight_for_batching();
        near.write_all(bytes).await.unwrap();
        near.flush().await.unwrap();
        total
    }

    /// A step of a connection: bytes written, whether many requests are under way, bytes read.
    type Step = (usize, bool, usize);

    async fn check(steps: Vec<Step>) -> Result<(), TestCaseError> {
        let tasks = Tasks::new();
        let (mut near, mut far) = pair(&tasks).await;
        let total: usize = steps.iter().map(|step| step.0).sum();
        let all: Vec<u8> = (0..=250).cycle().take(total).collect();
        let writing = async {
            let mut rest = &all[..];
            for (count, is_busy, _) in &steps {
                let _busy = is_busy.then(|| tasks.in_flight_for_batching());
                let (part, after) = rest.split_at(*count);
                rest = after;
                near.write_all(part).await.unwrap();
                near.flush().await.unwrap();
            }
            near.shutdown().await.unwrap();
        };
        let reading = async {
            let mut heard = Vec::new();
            for (_, _, count) in &steps {
                let mut part = vec![0; *count];
                let count = far.read(&mut part).await.unwrap();
                heard.extend_from_slice(&part[..count]);
            }
            far.read_to_end(&mut heard).await.unwrap();
            heard
        };
        let moved = async { tokio::join!(writing, reading).1 };
        let heard = timeout(Duration::from_secs(10), moved).await;
        prop_assert!(heard.expect("it comes to an end") == all);
        tasks.finish().await;
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn everything_comes_once_and_in_order(
            steps in prop::collection::vec(
                (prop_oneof![0..2000_usize, Just(BUFFERED_BYTES_MAX), 0..2_000_000_usize], any::<bool>(), 1..5000_usize),
                1..12,
            ),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(check(steps))?;
        }
    }
}
