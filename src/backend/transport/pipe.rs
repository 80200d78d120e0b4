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
        envelope::{Malformed, Outline},
        error,
    },
};

/// Messages written in one go.
const BATCH_MAX: usize = 64;
/// What is read of a server once its link is closed: more than any has to say at its end.
const REST_BYTES_MAX: u64 = 64 << 20;
/// Room for messages that a writer keeps.
const KEPT_BYTES_MAX: usize = 256 * 1024;
/// Bytes asked of the reader at a time.
const READ_BYTES: usize = 64 * 1024;
/// How long after the end of input or output a better reason for it may come.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// How many times what a line may have it is skipped; it is given up then.
const ENDLESS_TIMES: usize = 16;
/// What is skipped of a line at least before that, where it may have little.
const ENDLESS_BYTES_MIN: usize = 1 << 20;
/// Lines read in a row before others have their turn.
const LINES_MAX: usize = 128;
/// Lines in a row that are no messages before a server that says nothing is held back: more than wait
/// to be read of one that has ended and whose last line is an answer.
const ODD_LINES_MAX: usize = 64 * 1024;
/// Lines of one that is held back between two pauses.
const ODD_LINES_BETWEEN: usize = 1024;
/// How long a pause is. The server finds its pipe full meanwhile, and waits like any program whose
/// output is read slowly.
const ODD_PAUSE: Duration = Duration::from_millis(50);
/// How much of a line that is too long is shown before its end.
const START_BYTES_MAX: usize = 4096;

/// Opens a link over newline-delimited JSON and starts its two tasks. `odd` is told of lines that
/// are no messages. What comes when the link is closed is read and dropped until `over`.
pub(crate) fn over_lines<R, W>(
    reader: R,
    writer: W,
    mux: &Arc<PendingRequests>,
    odd: impl Fn(&[u8], &Malformed) + Send + Sync + 'static,
    over: CancellationToken,
) -> Arc<Link>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (link, queue) = Link::queued(mux);
    let tasks = &mux.tasks;
    tasks.spawn("pipe writer", write_lines(writer, queue, Arc::clone(mux)));
    let of_reader = Arc::clone(&link);
    tasks.spawn("pipe reader", async move {
        let settings = &of_reader.mux.settings;
        let room = settings.bytes.answer();
        let mut lines = Lines::new(reader, settings.response_bytes_max, room);
        read_lines(&mut lines, &of_reader, odd).await;
        // It is no use to a link that is closed, and lives as long as somebody holds it.
        drop(of_reader);
        drop_rest(lines.reader, over).await;
    });
    link
}

async fn write_lines<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut queue: mpsc::Receiver<QueuedMessage>,
    mux: Arc<PendingRequests>,
) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    let mut out = BytesMut::new();
    loop {
        let count = tokio::select! {
            biased;
            count = queue.recv_many(&mut batch, BATCH_MAX) => count,
            () = mux.closed.cancelled() => 0,
        };
        if count == 0 {
            break;
        }
        for message in batch.drain(..).filter_map(QueuedMessage::take) {
            push_line(&message, &mut out);
        }
        let written = async {
            writer.write_all(&out).await?;
            writer.flush().await
        };
        tokio::select! {
            biased;
            written = written => if let Err(error) = written {
                better_reason(&mux).await;
                return mux.close(format!("it stopped reading: {error}"));
            },
            // Whoever holds the other end may never read it.
            () = mux.closed.cancelled() => return,
        }
        clear(&mut out);
    }
    drop(writer.shutdown().await);
}

/// Empties `out`; a large message does not take memory for the rest of the connection.
fn clear(out: &mut BytesMut) {
    if out.capacity() > KEPT_BYTES_MAX {
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
    odd: impl Fn(&[u8], &Malformed),
) {
    let mux = &link.mux;
    let mut pace = ReadPace::default();
    loop {
        let line = tokio::select! {
            biased;
            line = lines.next() => line,
            () = mux.closed.cancelled() => return,
        };
        match line {
            Ok(Some(OutputLine::Whole(line))) => pace.note(take(&line, link, &odd).await),
            Ok(Some(OutputLine::TooLong { start })) => {
                // An object may be an answer, and say at its end to what.
                if !start.trim_ascii_start().starts_with(b"{") {
                    return mux.close(oversized(mux.settings.response_bytes_max));
                }
            }
            Ok(Some(OutputLine::Skipped(outline, excess))) => refuse(&outline, excess, link),
            Ok(Some(OutputLine::Endless)) => {
                return mux.close(oversized(mux.settings.response_bytes_max));
            }
            Ok(None) => {
                if let Some(OutputLine::Skipped(outline, excess)) = lines.rest() {
                    refuse(&outline, excess, link);
                }
                // Who waits for the last line hears that there is none to come.
                drop(odd);
                better_reason(mux).await;
                return mux.close("it closed its output");
            }
            Err(error) => return mux.close(format!("its output cannot be read: {error}")),
        }
        if pace.rest().await && mux.closed.is_cancelled() {
            return;
        }
    }
}

/// Leaves turns to others while a server has much to say: lines that are there already cost nothing
/// of the budget of a task.
#[derive(Debug, Default)]
struct ReadPace {
    lines: usize,
    odd: usize,
}

impl ReadPace {
    fn note(&mut self, heard: LineKind) {
        self.lines += 1;
        match heard {
            LineKind::Message => self.odd = 0,
            LineKind::Nothing => self.odd += 1,
        }
    }

    /// Waits where it is time to; whether it did.
    async fn rest(&mut self) -> bool {
        if self.odd >= ODD_LINES_MAX + ODD_LINES_BETWEEN {
            self.odd = ODD_LINES_MAX;
            sleep(ODD_PAUSE).await;
            return true;
        }
        if self.lines >= LINES_MAX {
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
    Nothing,
}

/// Reads what a server writes once its link is closed, so that it can end in its own way: its last
/// messages are none of its mistakes.
async fn drop_rest<R: AsyncRead + Unpin>(reader: R, over: CancellationToken) {
    let mut rest = reader.take(REST_BYTES_MAX);
    let mut nowhere = tokio::io::sink();
    tokio::select! {
        biased;
        () = over.cancelled() => {}
        // Nobody is left to be told of an error. The runtime ends the turns of one that never stops.
        _ = tokio::io::copy(&mut rest, &mut nowhere) => {}
    }
}

/// A child that has ended says why in a moment: its exit status and last words.
async fn better_reason(mux: &PendingRequests) {
    mux.read_out().await;
    drop(timeout(END_PATIENCE, mux.closed.cancelled()).await);
}

async fn take(line: &Bytes, link: &Arc<Link>, odd: &impl Fn(&[u8], &Malformed)) -> LineKind {
    let mut heard = LineKind::Nothing;
    if line.iter().all(u8::is_ascii_whitespace) {
        return heard;
    }
    each_message(&link.mux, line, |part, parsed| match parsed {
        Ok(message) => {
            heard = LineKind::Message;
            link.incoming(message, None);
        }
        Err(malformed) => {
            link.mux.failed_by(&malformed);
            odd(part, &malformed);
        }
    })
    .await;
    heard
}

/// An oversized message fails its own call when its id can be read, else the link.
fn refuse(outline: &Outline, excess: LineExcess, link: &Arc<Link>) {
    let limit = link.mux.settings.response_bytes_max;
    if let (Some(id), LineExcess::Memory) = (outline.request(), excess) {
        let error = RpcError::new(error::INTERNAL, "the gateway has no memory for the request");
        return link.respond(id.clone(), Err(error.to_raw()));
    }
    match (outline.answer().and_then(Id::as_number), excess) {
        (Some(id), LineExcess::Length) => link
            .mux
            .failed(id, BackendError::ResponseTooLarge { limit }),
        (Some(id), LineExcess::Memory) => link.mux.failed(id, BackendError::NoMemory),
        (None, LineExcess::Length) => link.mux.close(oversized(limit)),
        // It is no fault of the server, and was no answer.
        (None, LineExcess::Memory) => {}
    }
}

/// Why a link ended whose server sent more than it may in one message.
pub(in crate::backend) fn oversized(limit: usize) -> String {
    format!("a message of the server is larger than limits.response ({limit} bytes)")
}

/// Lines of a byte stream.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: R,
    buffer: BytesMut,
    scanned: usize,
    bytes_max: usize,
    /// What the line that comes takes of the memory of the process.
    room: Reservation,
    /// What there was of a line that grew too long, of which nothing more is kept.
    skipped: Option<Skipped>,
}

/// A line that is thrown away while it comes.
#[derive(Debug)]
struct Skipped {
    bytes: usize,
    outline: Outline,
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
    Skipped(Outline, LineExcess),
    /// Longer than allowed; its start. All of it is skipped.
    TooLong { start: Bytes },
    /// Such a line goes on and on, and may never end.
    Endless,
    /// Without its line end.
    Whole(Bytes),
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(crate) fn new(reader: R, bytes_max: usize, room: Reservation) -> Self {
        Self {
            reader,
            room,
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
    pub(crate) fn rest(&mut self) -> Option<OutputLine> {
        if let Some(skipped) = self.skipped.take() {
            return Some(OutputLine::Skipped(skipped.outline, skipped.excess));
        }
        (!self.buffer.is_empty()).then(|| OutputLine::Whole(self.buffer.split().freeze()))
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
        } else if self.room.grow_to(bytes).is_err() {
            Some(LineExcess::Memory)
        } else {
            None
        };
        if let Some(excess) = excess {
            let start = Bytes::copy_from_slice(&self.buffer[..bytes.min(START_BYTES_MAX)]);
            self.scanned = 0;
            drop(self.room.take());
            self.skipped = Some(Skipped {
                bytes: 0,
                outline: Outline::default(),
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
        Some(OutputLine::Whole(self.room.take().hold(line)))
    }

    /// Throws away what there is of a line that is too long, of which `end` is the end.
    fn skip(&mut self, end: Option<usize>) -> Option<OutputLine> {
        let skipped = self.skipped.as_mut()?;
        let bytes = end.unwrap_or(self.buffer.len());
        skipped.outline.read(&self.buffer[..bytes]);
        let endless = self.bytes_max.saturating_mul(ENDLESS_TIMES);
        let endless = endless.max(ENDLESS_BYTES_MIN);
        let was_endless = skipped.bytes > endless;
        skipped.bytes = skipped.bytes.saturating_add(bytes);
        let is_endless = skipped.bytes > endless;
        if end.is_some() {
            self.buffer.advance(bytes + 1);
            let skipped = self.skipped.take();
            return skipped.map(|it| OutputLine::Skipped(it.outline, it.excess));
        }
        self.buffer.clear();
        (is_endless && !was_endless).then_some(OutputLine::Endless)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::limiter::ByteBudget;

    fn room() -> Reservation {
        ByteBudget::new(usize::MAX).answer()
    }

    #[test]
    fn a_large_message_takes_no_memory_for_ever() {
        for (bytes, is_kept) in [(KEPT_BYTES_MAX, true), (KEPT_BYTES_MAX + 1, false)] {
            let mut out = BytesMut::with_capacity(bytes);
            out.extend_from_slice(b"x");
            clear(&mut out);
            assert!(out.is_empty());
            assert_eq!(out.capacity() >= KEPT_BYTES_MAX, is_kept, "{bytes}");
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
        let mut lines = Lines::new(text.as_bytes(), usize::MAX, budget.answer());
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            found.push(match line {
                OutputLine::Whole(line) => format!("{} {}", line.len(), budget.used()),
                OutputLine::TooLong { .. } => "too long".to_owned(),
                OutputLine::Skipped(_, excess) => format!("{excess:?}"),
                OutputLine::Endless => "endless".to_owned(),
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
            for (odd, heard) in [(first, LineKind::Message), (then, LineKind::Nothing)] {
                for _ in 0..odd {
                    pace.note(LineKind::Nothing);
                    pace.rest().await;
                }
                pace.note(heard);
                pace.rest().await;
            }
            assert_eq!(start.elapsed(), expect, "{first} and {then}");
        };
        let first = ODD_LINES_MAX + ODD_LINES_BETWEEN;
        check(first - 1, first - 2, Duration::ZERO).await;
        check(first - 1, first - 1, ODD_PAUSE).await;
        check(first, 0, ODD_PAUSE).await;
        check(first + 2 * ODD_LINES_BETWEEN, 0, 3 * ODD_PAUSE).await;
    }

    #[tokio::test]
    async fn lines_at_past_and_back_under_the_limit() {
        let text = b"12345\n123456\n1234\n\nrest";
        let mut lines = Lines::new(&text[..], 5, room());
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            found.push(match line {
                OutputLine::Whole(line) => String::from_utf8(line.to_vec()).unwrap(),
                OutputLine::TooLong { .. } => "too long".to_owned(),
                OutputLine::Skipped(outline, _) => format!("{:?}", outline.request()),
                OutputLine::Endless => "endless".to_owned(),
            });
        }
        assert_eq!(found, ["12345", "too long", "None", "1234", ""]);
        assert!(matches!(lines.rest(), Some(OutputLine::Whole(rest)) if rest == "rest"));
        assert!(lines.rest().is_none());
        let mut lines = Lines::new(&b"123456"[..], 5, room());
        while lines.next().await.unwrap().is_some() {}
        assert!(matches!(lines.rest(), Some(OutputLine::Skipped(..))));
        assert!(lines.rest().is_none());
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
            assert_eq!(outline.request(), Some(&Id::number(7)));
            let third = lines.next().await.unwrap();
            assert!(matches!(third, Some(OutputLine::Whole(line)) if line == "next"));
        }
    }

    /// Who sends without an end is known for it before the end.
    #[tokio::test]
    async fn a_line_is_too_long_before_it_ends() {
        let (mut writer, reader) = tokio::io::duplex(READ_BYTES);
        let mut lines = Lines::new(reader, 9, room());
        let mut text = vec![b'x'; ENDLESS_BYTES_MIN + 2 * READ_BYTES];
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
        assert!(matches!(second, Some(OutputLine::Endless)));
        let third = lines.next().await.unwrap();
        assert!(matches!(third, Some(OutputLine::Skipped(..))));
        let fourth = lines.next().await.unwrap();
        assert!(matches!(fourth, Some(OutputLine::Whole(line)) if line == "next"));
    }

    #[tokio::test]
    async fn so_much_is_read_of_what_nobody_wants() {
        // What is left of so many bytes.
        let left = async |bytes: u64, over: CancellationToken| {
            let mut rest = tokio::io::repeat(b'x').take(bytes);
            drop_rest(&mut rest, over).await;
            rest.limit()
        };
        let never = CancellationToken::new;
        assert_eq!(left(REST_BYTES_MAX, never()).await, 0);
        assert_eq!(left(REST_BYTES_MAX + 1, never()).await, 1);
        assert_eq!(left(REST_BYTES_MAX - 1, never()).await, 0);
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
