//! Links over a byte stream or a socket: one writer task, one reader loop.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    task::yield_now,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Failure,
    link::{Link, each_message},
    mux::Mux,
    queued::Queued,
};
use crate::mcp::{Id, Raw, envelope::Malformed};

/// Messages that may wait for a server to read them.
const QUEUE_MAX: usize = 256;
/// Messages written in one go.
const BATCH_MAX: usize = 64;
/// What is read of a server once its link is closed: more than any has to say at its end.
const REST_BYTES_MAX: u64 = 64 << 20;
/// Bytes asked of the reader at a time.
const READ_BYTES: usize = 64 * 1024;
/// How long after the end of input or output a better reason for it may come.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// How much of an odd line is kept for `/status`.
const ODD_LINE_BYTES_MAX: usize = 200;
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
/// How much of an oversized line is searched for its id.
const ID_SEARCH_BYTES: usize = 4096;

/// Opens a link over newline-delimited JSON and starts its two tasks. `odd` is told of lines that
/// are no messages. What comes when the link is closed is read and dropped until `over`.
pub(crate) fn over_lines<R, W>(
    reader: R,
    writer: W,
    mux: &Arc<Mux>,
    odd: impl Fn(&str) + Send + Sync + 'static,
    over: CancellationToken,
) -> Arc<Link>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (send, queue) = mpsc::channel(QUEUE_MAX);
    let tasks = mux.tasks.clone();
    let link = Arc::new(Link::pipe(Arc::clone(mux), send));
    tasks.spawn("pipe writer", write_lines(writer, queue, Arc::clone(mux)));
    let of_reader = Arc::clone(&link);
    tasks.spawn("pipe reader", async move {
        let mut lines = Lines::new(reader, of_reader.mux.settings.response_bytes_max);
        read_lines(&mut lines, &of_reader, odd).await;
        // It is no use to a link that is closed, and lives as long as somebody holds it.
        drop(of_reader);
        drop_rest(lines.reader, over).await;
    });
    link
}

async fn write_lines<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut queue: mpsc::Receiver<Queued>,
    mux: Arc<Mux>,
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
        for message in batch.drain(..).filter_map(Queued::take) {
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
        out.clear();
    }
    drop(writer.shutdown().await);
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
    odd: impl Fn(&str),
) {
    let mux = &link.mux;
    let mut pace = Pace::default();
    loop {
        let line = tokio::select! {
            biased;
            line = lines.next() => line,
            () = mux.closed.cancelled() => return,
        };
        match line {
            Ok(Some(Line::Whole(line))) => pace.note(take(&line, link, &odd).await),
            Ok(Some(Line::TooLong { start })) => refuse(&start, link),
            Ok(Some(Line::Endless)) => {
                return mux.close(oversized(mux.settings.response_bytes_max));
            }
            Ok(None) => {
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
struct Pace {
    lines: usize,
    odd: usize,
}

impl Pace {
    fn note(&mut self, heard: Heard) {
        self.lines += 1;
        match heard {
            Heard::Message => self.odd = 0,
            Heard::Nothing => self.odd += 1,
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
enum Heard {
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
async fn better_reason(mux: &Mux) {
    mux.read_out().await;
    drop(timeout(END_PATIENCE, mux.closed.cancelled()).await);
}

async fn take(line: &Bytes, link: &Arc<Link>, odd: &impl Fn(&str)) -> Heard {
    let mut heard = Heard::Nothing;
    if line.iter().all(u8::is_ascii_whitespace) {
        return heard;
    }
    each_message(&link.mux, line, |part, parsed| match parsed {
        Ok(message) => {
            heard = Heard::Message;
            link.incoming(message, None);
        }
        Err(malformed) => {
            link.mux.failed_by(&malformed);
            note_odd(part, &malformed, link, odd);
        }
    })
    .await;
    heard
}

fn note_odd(line: &[u8], malformed: &Malformed, link: &Link, odd: &impl Fn(&str)) {
    let text = String::from_utf8_lossy(&line[..line.len().min(ODD_LINE_BYTES_MAX)]);
    tracing::debug!(server = %link.mux.settings.server, %malformed, "odd output");
    odd(&text);
}

/// An oversized message fails its own call when its id can be read, else the link.
fn refuse(start: &[u8], link: &Arc<Link>) {
    let limit = link.mux.settings.response_bytes_max;
    match leading_id(start).as_ref().and_then(Id::as_number) {
        Some(id) => link.mux.failed(id, Failure::ResponseTooLarge { limit }),
        None => link.mux.close(oversized(limit)),
    }
}

/// Why a link ended whose server sent more than it may in one message.
pub(super) fn oversized(limit: usize) -> String {
    format!("a message of the server is larger than limits.response ({limit} bytes)")
}

/// The id of an answer of which only the start is known. Only members of the message itself count,
/// and only while nothing large precedes them: what is nested in a result may look the same.
fn leading_id(start: &[u8]) -> Option<Id> {
    let head = std::str::from_utf8(ascii_head(&start[..start.len().min(ID_SEARCH_BYTES)])).ok()?;
    let mut rest = head.trim_start().strip_prefix('{')?;
    let mut id = None;
    loop {
        let (name, after) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
        let after = after.trim_start().strip_prefix(':')?.trim_start();
        let (value, after) = match name {
            "result" | "error" => return id,
            "id" | "jsonrpc" => after.split_once(',')?,
            _ => return None,
        };
        if name == "id" {
            id = Raw::parse(value.trim_end().to_owned())
                .ok()
                .and_then(Id::from_raw);
        }
        rest = after;
    }
}

/// `bytes` up to the first that is not ASCII: ids of ours and names of members are.
fn ascii_head(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| !byte.is_ascii());
    &bytes[..end.unwrap_or(bytes.len())]
}

/// Lines of a byte stream.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: R,
    buffer: BytesMut,
    scanned: usize,
    bytes_max: usize,
    /// How much there was of a line that grew too long, of which nothing more is kept.
    skipped: Option<usize>,
}

/// One line.
#[derive(Debug)]
pub(crate) enum Line {
    /// Longer than allowed; its start. What follows of it is skipped.
    TooLong { start: Bytes },
    /// Such a line goes on and on, and may never end.
    Endless,
    /// Without its line end.
    Whole(Bytes),
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(crate) fn new(reader: R, bytes_max: usize) -> Self {
        Self {
            reader,
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
    pub(crate) async fn next(&mut self) -> std::io::Result<Option<Line>> {
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
    pub(crate) fn rest(&mut self) -> Option<Bytes> {
        let is_whole = self.skipped.is_none() && !self.buffer.is_empty();
        is_whole.then(|| self.buffer.split().freeze())
    }

    fn take_line(&mut self) -> Option<Line> {
        loop {
            let found = memchr::memchr(b'\n', &self.buffer[self.scanned..]);
            let Some(end) = found.map(|found| self.scanned + found) else {
                return self.take_part();
            };
            let line = self.buffer.split_to(end + 1).freeze();
            self.scanned = 0;
            if self.skipped.take().is_some() {
                continue;
            }
            if line.len() - 1 > self.bytes_max {
                let start = line.slice(..line.len().min(ID_SEARCH_BYTES));
                return Some(Line::TooLong { start });
            }
            return Some(Line::Whole(line.slice(..line.len() - 1)));
        }
    }

    /// What is to be said of a line before its end.
    fn take_part(&mut self) -> Option<Line> {
        self.scanned = self.buffer.len();
        if let Some(skipped) = &mut self.skipped {
            let endless = self.bytes_max.saturating_mul(ENDLESS_TIMES);
            let endless = endless.max(ENDLESS_BYTES_MIN);
            let was_endless = *skipped > endless;
            *skipped = skipped.saturating_add(self.buffer.len());
            let is_endless = *skipped > endless;
            self.forget();
            return (is_endless && !was_endless).then_some(Line::Endless);
        }
        if self.buffer.len() <= self.bytes_max {
            return None;
        }
        let head = &self.buffer[..self.buffer.len().min(ID_SEARCH_BYTES)];
        let start = Bytes::copy_from_slice(head);
        self.skipped = Some(self.buffer.len());
        self.forget();
        Some(Line::TooLong { start })
    }

    fn forget(&mut self) {
        self.buffer.clear();
        self.scanned = 0;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_held_back() {
        // How long it takes to hear as many lines that are nothing, a message, and as many again.
        let check = async |first: usize, then: usize, expect: Duration| {
            let (start, mut pace) = (Instant::now(), Pace::default());
            for (odd, heard) in [(first, Heard::Message), (then, Heard::Nothing)] {
                for _ in 0..odd {
                    pace.note(Heard::Nothing);
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
        let mut lines = Lines::new(&text[..], 5);
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            found.push(match line {
                Line::Whole(line) => String::from_utf8(line.to_vec()).unwrap(),
                Line::TooLong { .. } => "too long".to_owned(),
                Line::Endless => "endless".to_owned(),
            });
        }
        assert_eq!(found, ["12345", "too long", "1234", ""]);
        assert_eq!(lines.rest().unwrap(), "rest");
        assert_eq!(lines.rest(), None);
        let mut lines = Lines::new(&b"123456"[..], 5);
        while lines.next().await.unwrap().is_some() {}
        assert_eq!(lines.rest(), None, "it was too long");
    }

    /// Who sends without an end is known for it before the end.
    #[tokio::test]
    async fn a_line_is_too_long_before_it_ends() {
        let (mut writer, reader) = tokio::io::duplex(READ_BYTES);
        let mut lines = Lines::new(reader, 9);
        let mut text = vec![b'x'; ENDLESS_BYTES_MIN + 2 * READ_BYTES];
        text.extend_from_slice(b"x\nnext\n");
        let write = async { writer.write_all(&text).await.unwrap() };
        let read = async { read_endless(&mut lines).await };
        tokio::join!(write, read);
    }

    async fn read_endless<R: AsyncRead + Unpin>(lines: &mut Lines<R>) {
        let first = lines.next().await.unwrap();
        assert!(matches!(first, Some(Line::TooLong { start }) if start.starts_with(b"xxxxxxxxxx")));
        let second = lines.next().await.unwrap();
        assert!(matches!(second, Some(Line::Endless)));
        let third = lines.next().await.unwrap();
        assert!(matches!(third, Some(Line::Whole(line)) if line == "next"));
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

    #[test]
    fn the_id_of_a_cut_message_is_its_own() {
        let check = |start: &str, expect: Option<u64>| {
            let found = leading_id(start.as_bytes())
                .as_ref()
                .and_then(Id::as_number);
            assert_eq!(found, expect, "{start}");
        };
        check(r#"{"jsonrpc":"2.0","id": 42,"result":{"conte"#, Some(42));
        check(r#" { "id" : 7 , "jsonrpc":"2.0","error":{"é"#, Some(7));
        check(r#"{"jsonrpc":"2.0","result":{"#, None);
        check(r#"{"jsonrpc":"2.0","result":{"id":3,"x":"#, None);
        check(r#"{"jsonrpc":"2.0","id":4,"method":"sampling/create"#, None);
        check(r#"{"jsonrpc":"2.0","method":"m","id":4,"params":{"#, None);
        check(r#"{"jsonrpc":"2.0","params":{"id":5,"result":"#, None);
        check(r#"{"note":",\"id\":6,\"result\":","id":8,"result":"#, None);
        check(r#"{"jsonrpc":"2.0","id":9"#, None);
    }
}
