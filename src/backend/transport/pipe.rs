//! Links over a byte stream or a socket: one writer task, one reader loop.

use std::{sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    task::yield_now,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    backend::{
        BackendError,
        link::{Link, each_message, outbound::QueuedMessage, pending::PendingRequests},
    },
    limiter::Reservation,
    mcp::{
        Id, RpcError,
        envelope::{Malformed, MessageOutline},
        error,
    },
};

/// Messages written in one go.
const BATCH_MAX: usize = 64;
/// What is read of a server once its link is closed: more than any has to say at its end.
const DRAIN_BYTES_MAX: u64 = 64 << 20;
/// Room for messages that a writer keeps.
const WRITE_BUFFER_KEPT_MAX: usize = 256 * 1024;
/// Bytes asked of the reader at a time.
const READ_BYTES: usize = 64 * 1024;
/// How long after the end of input or output a better reason for it may come.
const EXIT_REASON_TIMEOUT: Duration = Duration::from_secs(1);
/// How many times what a line may have it is skipped; it is given up then.
const SKIP_FACTOR_MAX: usize = 16;
/// What is skipped of a line at least before that, where it may have little.
const SKIP_BYTES_MIN: usize = 1 << 20;
/// Lines read in a row before others have their turn.
const LINES_PER_TURN: usize = 128;
/// Lines in a row that are no messages before a server that says nothing is held back: more than wait
/// to be read of one that has ended and whose last line is an answer.
const STRAY_LINES_MAX: usize = 64 * 1024;
/// Lines of one that is held back between two pauses.
const STRAY_LINES_PER_PAUSE: usize = 1024;
/// How long a pause is. The server finds its pipe full meanwhile, and waits like any program whose
/// output is read slowly.
const STRAY_PAUSE: Duration = Duration::from_millis(50);
/// How much of a line that is too long is shown before its end.
const SHOWN_BYTES_MAX: usize = 4096;

/// Opens a link over newline-delimited JSON and starts its two tasks. `odd` is told of lines that
/// are no messages. What comes when the link is closed is read and dropped until `over`.
pub(crate) fn open_lines<R, W>(
    reader: R,
    writer: W,
    requests: &Arc<PendingRequests>,
    stray: impl Fn(&[u8], &Malformed) + Send + Sync + 'static,
    over: CancellationToken,
) -> Arc<Link>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (link, queue) = Link::new_queued(requests);
    let tasks = &requests.tasks;
    tasks.spawn(
        "pipe writer",
        write_lines(writer, queue, Arc::clone(requests)),
    );
    let of_reader = Arc::clone(&link);
    tasks.spawn("pipe reader", async move {
        let settings = &of_reader.requests.settings;
        let room = settings.byte_budget.reserve_answer();
        let mut lines = Lines::new(reader, settings.response_bytes_max, room);
        read_lines(&mut lines, &of_reader, stray).await;
        // It is no use to a link that is closed, and lives as long as somebody holds it.
        drop(of_reader);
        drain(lines.reader, over).await;
    });
    link
}

async fn write_lines<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut queue: mpsc::Receiver<QueuedMessage>,
    requests: Arc<PendingRequests>,
) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    let mut out = BytesMut::new();
    loop {
        let count = tokio::select! {
            biased;
            count = queue.recv_many(&mut batch, BATCH_MAX) => count,
            () = requests.closed.cancelled() => 0,
        };
        if count == 0 {
            break;
        }
        for message in batch
            .drain(..)
            .filter_map(QueuedMessage::into_bytes_if_wanted)
        {
            push_line(&message, &mut out);
        }
        let written = async {
            writer.write_all(&out).await?;
            writer.flush().await
        };
        tokio::select! {
            biased;
            written = written => if let Err(error) = written {
                wait_exit_reason(&requests).await;
                return requests.close(format!("the server stopped reading: {error}"));
            },
            // Whoever holds the other end may never read it.
            () = requests.closed.cancelled() => return,
        }
        clear_buffer(&mut out);
    }
    drop(writer.shutdown().await);
}

/// Empties `out`; a large message does not take memory for the rest of the connection.
fn clear_buffer(out: &mut BytesMut) {
    if out.capacity() > WRITE_BUFFER_KEPT_MAX {
        *out = BytesMut::new();
    }
    out.clear();
}

/// Appends `message` as one line: line breaks are legal only outside strings, so they become
/// spaces.
pub(crate) fn push_line(message: &[u8], out: &mut BytesMut) {
    let start = out.len();
    out.extend_from_slice(message);
    if memchr::memchr2(b'\n', b'\r', message).is_some() {
        for byte in &mut out[start..] {
            if matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
    }
    out.extend_from_slice(b"\n");
}

/// Takes messages until the link is closed, and closes it when no more can come.
async fn read_lines<R: AsyncRead + Unpin>(
    lines: &mut Lines<R>,
    link: &Arc<Link>,
    stray: impl Fn(&[u8], &Malformed),
) {
    let requests = &link.requests;
    let mut pace = ReadPace::default();
    loop {
        let line = tokio::select! {
            biased;
            line = lines.next() => line,
            () = requests.closed.cancelled() => return,
        };
        match line {
            Ok(Some(OutputLine::Complete(line))) => {
                pace.note(handle_line(&line, link, &stray).await);
            }
            Ok(Some(OutputLine::TooLong { start })) => {
                // An object may be an answer, and say at its end to what.
                if !start.trim_ascii_start().starts_with(b"{") {
                    return requests.close(oversized_reason(requests.settings.response_bytes_max));
                }
            }
            Ok(Some(OutputLine::Skipped(outline, excess))) => {
                reject_oversized(&outline, excess, link);
            }
            Ok(Some(OutputLine::Unterminated)) => {
                return requests.close(oversized_reason(requests.settings.response_bytes_max));
            }
            Ok(None) => {
                if let Some(OutputLine::Skipped(outline, excess)) = lines.take_remainder() {
                    reject_oversized(&outline, excess, link);
                }
                // Who waits for the last line hears that there is none to come.
                drop(stray);
                wait_exit_reason(requests).await;
                return requests.close("the server closed its output");
            }
            Err(error) => {
                return requests.close(format!(
                    "cannot read the server's output: \
                {error}"
                ));
            }
        }
        if pace.pause().await && requests.closed.is_cancelled() {
            return;
        }
    }
}

/// Leaves turns to others while a server has much to say: lines that are there already cost nothing
/// of the budget of a task.
#[derive(Debug, Default)]
struct ReadPace {
    lines: usize,
    stray: usize,
}

impl ReadPace {
    fn note(&mut self, heard: LineKind) {
        self.lines += 1;
        match heard {
            LineKind::Message => self.stray = 0,
            LineKind::Stray => self.stray += 1,
        }
    }

    /// Waits where it is time to; whether it did.
    async fn pause(&mut self) -> bool {
        if self.stray >= STRAY_LINES_MAX + STRAY_LINES_PER_PAUSE {
            self.stray = STRAY_LINES_MAX;
            sleep(STRAY_PAUSE).await;
            return true;
        }
        if self.lines >= LINES_PER_TURN {
            self.lines = 0;
            yield_now().await;
            return true;
        }
        false
    }
}

/// What a line was.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LineKind {
    Message,
    Stray,
}

/// Reads what a server writes once its link is closed, so that it can end in its own way: its last
/// messages are none of its mistakes.
async fn drain<R: AsyncRead + Unpin>(reader: R, over: CancellationToken) {
    let mut rest = reader.take(DRAIN_BYTES_MAX);
    let mut nowhere = tokio::io::sink();
    tokio::select! {
        biased;
        () = over.cancelled() => {}
        // Nobody is left to be told of an error. The runtime ends the turns of one that never stops.
        _ = tokio::io::copy(&mut rest, &mut nowhere) => {}
    }
}

/// A child that has ended says why in a moment: its exit status and last words.
async fn wait_exit_reason(requests: &PendingRequests) {
    requests.wait_large_reads().await;
    drop(timeout(EXIT_REASON_TIMEOUT, requests.closed.cancelled()).await);
}

async fn handle_line(
    line: &Bytes,
    link: &Arc<Link>,
    stray: &impl Fn(&[u8], &Malformed),
) -> LineKind {
    let mut heard = LineKind::Stray;
    if line.iter().all(u8::is_ascii_whitespace) {
        return heard;
    }
    each_message(&link.requests, line, |part, parsed| match parsed {
        Ok(message) => {
            heard = LineKind::Message;
            link.handle_message(message, None);
        }
        Err(unread) => {
            link.requests.fail_unreadable(&unread);
            stray(part, &unread.malformed);
        }
    })
    .await;
    heard
}

/// An oversized message fails its own call when its id can be read, else the link.
fn reject_oversized(outline: &MessageOutline, excess: LineExcess, link: &Arc<Link>) {
    let limit = link.requests.settings.response_bytes_max;
    if let (Some(id), LineExcess::Memory) = (outline.request_id(), excess) {
        let error = RpcError::new(error::INTERNAL, "out of memory for the request");
        return link.respond(id.clone(), Err(error.to_raw()));
    }
    match (outline.response_id().and_then(Id::as_number), excess) {
        (Some(id), LineExcess::Length) => link
            .requests
            .fail(id, BackendError::ResponseTooLarge { limit }),
        (Some(id), LineExcess::Memory) => link.requests.fail(id, BackendError::NoMemory),
        (None, LineExcess::Length) => link.requests.close(oversized_reason(limit)),
        // It is no fault of the server, and was no answer.
        (None, LineExcess::Memory) => {}
    }
}

/// Why a link ended whose server sent more than it may in one message.
pub(in crate::backend) fn oversized_reason(limit: usize) -> String {
    format!("a message exceeds limits.response ({limit} bytes)")
}

/// Lines of a byte stream.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: R,
    buffer: BytesMut,
    scanned: usize,
    bytes_max: usize,
    /// What the line that comes takes of the memory of the process.
    reservation: Reservation,
    /// What there was of a line that grew too long, of which nothing more is kept.
    skipped: Option<Skipped>,
}

/// A line that is thrown away while it comes.
#[derive(Debug)]
struct Skipped {
    bytes: usize,
    outline: MessageOutline,
    excess: LineExcess,
}

/// Why a line is not kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LineExcess {
    /// It is longer than it may be.
    Length,
    /// The gateway has no memory for it.
    Memory,
}

/// One line.
#[derive(Debug)]
pub(crate) enum OutputLine {
    /// The end of a line that was longer than allowed, and what message it was.
    Skipped(MessageOutline, LineExcess),
    /// Longer than allowed; its start. All of it is skipped.
    TooLong { start: Bytes },
    /// Such a line goes on and on, and may never end.
    Unterminated,
    /// Without its line end.
    Complete(Bytes),
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(crate) fn new(reader: R, bytes_max: usize, reservation: Reservation) -> Self {
        Self {
            reader,
            reservation,
            buffer: BytesMut::new(),
            scanned: 0,
            bytes_max,
            skipped: None,
        }
    }

    /// Lets the lines that come next be this long.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// The next line, `None` at the end of the stream. Cancel-safe: what was read stays.
    pub(crate) async fn next(&mut self) -> std::io::Result<Option<OutputLine>> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(line));
            }
            self.buffer.reserve(READ_BYTES);
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// What stands behind the last line end, once the stream has ended.
    pub(crate) fn take_remainder(&mut self) -> Option<OutputLine> {
        if let Some(skipped) = self.skipped.take() {
            return Some(OutputLine::Skipped(skipped.outline, skipped.excess));
        }
        (!self.buffer.is_empty()).then(|| OutputLine::Complete(self.buffer.split().freeze()))
    }

    fn take_line(&mut self) -> Option<OutputLine> {
        let found = memchr::memchr(b'\n', &self.buffer[self.scanned..]);
        let end = found.map(|found| self.scanned + found);
        if self.skipped.is_some() {
            return self.skip(end);
        }
        let bytes = end.unwrap_or(self.buffer.len());
        let excess = if bytes > self.bytes_max {
            Some(LineExcess::Length)
        } else if self.reservation.grow_to(bytes).is_err() {
            Some(LineExcess::Memory)
        } else {
            None
        };
        if let Some(excess) = excess {
            let start = Bytes::copy_from_slice(&self.buffer[..bytes.min(SHOWN_BYTES_MAX)]);
            self.scanned = 0;
            drop(self.reservation.split_off());
            self.skipped = Some(Skipped {
                bytes: 0,
                outline: MessageOutline::default(),
                excess,
            });
            return Some(OutputLine::TooLong { start });
        }
        let Some(end) = end else {
            self.scanned = bytes;
            return None;
        };
        let mut line = self.buffer.split_to(end + 1).freeze();
        line.truncate(end);
        self.scanned = 0;
        Some(OutputLine::Complete(
            self.reservation.split_off().attach(line),
        ))
    }

    /// Throws away what there is of a line that is too long, of which `end` is the end.
    fn skip(&mut self, end: Option<usize>) -> Option<OutputLine> {
        let skipped = self.skipped.as_mut()?;
        let bytes = end.unwrap_or(self.buffer.len());
        skipped.outline.read(&self.buffer[..bytes]);
        let endless = self.bytes_max.saturating_mul(SKIP_FACTOR_MAX);
        let endless = endless.max(SKIP_BYTES_MIN);
        let was_endless = skipped.bytes > endless;
        skipped.bytes = skipped.bytes.saturating_add(bytes);
        let is_endless = skipped.bytes > endless;
        if end.is_some() {
            self.buffer.advance(bytes + 1);
            let skipped = self.skipped.take();
            return skipped.map(|it| OutputLine::Skipped(it.outline, it.excess));
        }
        self.buffer.clear();
        (is_endless && !was_endless).then_some(OutputLine::Unterminated)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::limiter::ByteBudget;

    fn room() -> Reservation {
        ByteBudget::new(usize::MAX).reserve_answer()
    }

    #[test]
    fn a_large_message_takes_no_memory_for_ever() {
        for (bytes, is_kept) in [
            (WRITE_BUFFER_KEPT_MAX, true),
            (WRITE_BUFFER_KEPT_MAX + 1, false),
        ] {
            let mut out = BytesMut::with_capacity(bytes);
            out.extend_from_slice(b"x");
            clear_buffer(&mut out);
            assert!(out.is_empty());
            assert_eq!(out.capacity() >= WRITE_BUFFER_KEPT_MAX, is_kept, "{bytes}");
        }
    }

    /// A line for which there is no room is skipped as one that is too long, and the next is read.
    #[tokio::test]
    async fn a_line_is_read_as_far_as_there_is_memory() {
        let budget = ByteBudget::new(2 * READ_BYTES);
        let line = |bytes: usize| format!("{}\n", "x".repeat(bytes));
        let text = [2 * READ_BYTES, 2 * READ_BYTES + 1, 2 * READ_BYTES, 1]
            .map(line)
            .concat();
        let mut lines = Lines::new(text.as_bytes(), usize::MAX, budget.reserve_answer());
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            found.push(match line {
                OutputLine::Complete(line) => format!("{} {}", line.len(), budget.used()),
                OutputLine::TooLong { .. } => "too long".to_owned(),
                OutputLine::Skipped(_, excess) => format!("{excess:?}"),
                OutputLine::Unterminated => "endless".to_owned(),
            });
        }
        assert_eq!(
            found,
            [
                "131072 131072",
                "too long",
                "Memory",
                "131072 131072",
                "1 0"
            ]
        );
        assert_eq!((budget.used(), budget.rejected()), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_held_back() {
        // How long it takes to hear as many lines that are nothing, a message, and as many again.
        let check = async |first: usize, then: usize, expect: Duration| {
            let (start, mut pace) = (Instant::now(), ReadPace::default());
            for (odd, heard) in [(first, LineKind::Message), (then, LineKind::Stray)] {
                for _ in 0..odd {
                    pace.note(LineKind::Stray);
                    pace.pause().await;
                }
                pace.note(heard);
                pace.pause().await;
            }
            assert_eq!(start.elapsed(), expect, "{first} and {then}");
        };
        let first = STRAY_LINES_MAX + STRAY_LINES_PER_PAUSE;
        check(first - 1, first - 2, Duration::ZERO).await;
        check(first - 1, first - 1, STRAY_PAUSE).await;
        check(first, 0, STRAY_PAUSE).await;
        check(first + 2 * STRAY_LINES_PER_PAUSE, 0, 3 * STRAY_PAUSE).await;
    }

    #[tokio::test]
    async fn lines_at_past_and_back_under_the_limit() {
        let text = b"12345\n123456\n1234\n\nrest";
        let mut lines = Lines::new(&text[..], 5, room());
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            found.push(match line {
                OutputLine::Complete(line) => String::from_utf8(line.to_vec()).unwrap(),
                OutputLine::TooLong { .. } => "too long".to_owned(),
                OutputLine::Skipped(outline, _) => format!("{:?}", outline.request_id()),
                OutputLine::Unterminated => "endless".to_owned(),
            });
        }
        assert_eq!(found, ["12345", "too long", "None", "1234", ""]);
        assert!(
            matches!(lines.take_remainder(), Some(OutputLine::Complete(rest)) if rest == "rest")
        );
        assert!(lines.take_remainder().is_none());
        let mut lines = Lines::new(&b"123456"[..], 5, room());
        while lines.next().await.unwrap().is_some() {}
        assert!(matches!(
            lines.take_remainder(),
            Some(OutputLine::Skipped(..))
        ));
        assert!(lines.take_remainder().is_none());
    }

    /// Of a line that is thrown away it is known which message it was, in however many pieces it came.
    #[tokio::test]
    async fn a_line_that_is_too_long_has_an_outline() {
        let long = "x".repeat(3 * READ_BYTES);
        let text = format!("{{\"method\":\"m\",\"params\":\"{long}\",\"id\":7}}\nnext\n");
        for bytes_max in [9, READ_BYTES, 2 * READ_BYTES] {
            let mut lines = Lines::new(text.as_bytes(), bytes_max, room());
            let first = lines.next().await.unwrap();
            assert!(
                matches!(first, Some(OutputLine::TooLong { .. })),
                "{first:?}"
            );
            let second = lines.next().await.unwrap();
            let Some(OutputLine::Skipped(outline, _)) = second else {
                panic!("{second:?}");
            };
            assert_eq!(outline.request_id(), Some(&Id::number(7)));
            let third = lines.next().await.unwrap();
            assert!(matches!(third, Some(OutputLine::Complete(line)) if line == "next"));
        }
    }

    /// Who sends without an end is known for it before the end.
    #[tokio::test]
    async fn a_line_is_too_long_before_it_ends() {
        let (mut writer, reader) = tokio::io::duplex(READ_BYTES);
        let mut lines = Lines::new(reader, 9, room());
        let mut text = vec![b'x'; SKIP_BYTES_MIN + 2 * READ_BYTES];
        text.extend_from_slice(b"x\nnext\n");
        let write = async { writer.write_all(&text).await.unwrap() };
        let read = async { read_endless(&mut lines).await };
        tokio::join!(write, read);
    }

    async fn read_endless<R: AsyncRead + Unpin>(lines: &mut Lines<R>) {
        let first = lines.next().await.unwrap();
        assert!(
            matches!(first, Some(OutputLine::TooLong { start }) if start.starts_with(b"xxxxxxxxxx"))
        );
        let second = lines.next().await.unwrap();
        assert!(matches!(second, Some(OutputLine::Unterminated)));
        let third = lines.next().await.unwrap();
        assert!(matches!(third, Some(OutputLine::Skipped(..))));
        let fourth = lines.next().await.unwrap();
        assert!(matches!(fourth, Some(OutputLine::Complete(line)) if line == "next"));
    }

    #[tokio::test]
    async fn so_much_is_read_of_what_nobody_wants() {
        // What is left of so many bytes.
        let left = async |bytes: u64, over: CancellationToken| {
            let mut rest = tokio::io::repeat(b'x').take(bytes);
            drain(&mut rest, over).await;
            rest.limit()
        };
        let never = CancellationToken::new;
        assert_eq!(left(DRAIN_BYTES_MAX, never()).await, 0);
        assert_eq!(left(DRAIN_BYTES_MAX + 1, never()).await, 1);
        assert_eq!(left(DRAIN_BYTES_MAX - 1, never()).await, 0);
        let over = never();
        over.cancel();
        assert_eq!(left(10, over).await, 10);
    }

    #[test]
    fn a_message_is_written_on_one_line() {
        let mut out = BytesMut::new();
        push_line(b"{\"a\":\r\n1}", &mut out);
        assert_eq!(&out[..], b"{\"a\":  1}\n");
    }
}
