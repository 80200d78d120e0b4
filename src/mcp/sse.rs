//! Server-sent events: writing them, and reading them from arbitrary chunks.
//!
//! Source of the format: the HTML standard, "Server-sent events".

use bytes::{Buf, Bytes, BytesMut};

/// One event as received.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SseEvent {
    /// `event:`; empty means `message`.
    pub name: String,
    /// `data:` lines joined by newlines.
    pub data: Bytes,
    /// `id:`, when this event carried one.
    pub id: Option<String>,
    /// `retry:` in milliseconds, when this event carried one.
    pub retry: Option<u64>,
    /// Whether it is no event, but a line of JSON without `data:`, which is `data`.
    pub is_unframed: bool,
}

/// Writes a message event whose data is `json`. Line breaks in it, which JSON has outside of strings
/// only, are written as further `data:` lines; a reader takes each of `\n`, `\r` and both for one.
pub fn write_event(id: Option<&str>, json: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(json.len() + 48);
    if let Some(id) = id {
        out.extend_from_slice(b"id: ");
        out.extend_from_slice(id.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"event: message\n");
    let lines = json.split(|b| *b == b'\n');
    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    for line in lines.flat_map(|line| line.split(|b| *b == b'\r')) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.push(b'\n');
    out.into()
}

/// An event that only names where a reader may resume: empty data, and how long to wait.
pub fn write_priming(id: &str, retry_ms: Option<u64>) -> Bytes {
    let retry = retry_ms
        .map(|ms| format!("retry: {ms}\n"))
        .unwrap_or_default();
    format!("id: {id}\n{retry}data: \n\n").into()
}

/// A comment that keeps the stream alive.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// Reads events from chunks.
#[derive(Debug)]
pub struct SseReader {
    buffer: BytesMut,
    /// How much of the buffer has no end of a line.
    scanned: usize,
    draft: PartialEvent,
    bytes_max: usize,
    at_start: bool,
    /// Bytes of lines that are no longer there, and made no part of an event's data.
    dropped: usize,
}

/// What the chunks hold next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NextEvent {
    /// A whole event.
    Event(SseEvent),
    /// Something that may be found by asking again, which whoever shares a thread leaves for later.
    Yield,
    /// Nothing until more bytes come.
    Pending,
}

/// An event of which not all lines have come.
#[derive(Debug, Default)]
struct PartialEvent {
    event: SseEvent,
    data: BytesMut,
    has_data: bool,
}

/// An event is larger than the reader allows.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("an event exceeds {bytes_max} bytes")]
pub struct EventTooLarge {
    /// The limit.
    pub bytes_max: usize,
}

impl SseReader {
    /// Accepts events of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            scanned: 0,
            draft: PartialEvent::default(),
            bytes_max,
            at_start: true,
            dropped: 0,
        }
    }

    /// Bytes that are there of events which have not come as a whole.
    pub fn buffered(&self) -> usize {
        self.buffer.capacity() + self.draft.data.capacity()
    }

    /// Bytes that came since this was asked last, and are no part of the data of an event.
    pub fn take_dropped_bytes(&mut self) -> usize {
        std::mem::take(&mut self.dropped)
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// When an unfinished event exceeds the limit; the stream is of no further use.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), EventTooLarge> {
        if self.buffer.len() + self.draft.data.len() + chunk.len()
            > self.bytes_max.saturating_add(FRAMING_BYTES)
        {
            return Err(EventTooLarge {
                bytes_max: self.bytes_max,
            });
        }
        self.buffer.extend_from_slice(chunk);
        Ok(())
    }

    /// What comes next, of a bounded number of lines: any number of comments and empty lines may
    /// fill a chunk, and they make no event.
    pub fn next_event(&mut self) -> NextEvent {
        self.skip_bom();
        let mut read = 0;
        let mut next = NextEvent::Yield;
        for _ in 0..LINES_PER_TURN {
            let rest = &self.buffer[read..];
            let Some((line, length)) = first_line(rest, &mut self.scanned) else {
                next = NextEvent::Pending;
                break;
            };
            read += length;
            let had = self.draft.data.len();
            if is_json(line) {
                next = NextEvent::Event(SseEvent {
                    data: Bytes::copy_from_slice(line),
                    is_unframed: true,
                    ..SseEvent::default()
                });
                break;
            }
            if !line.is_empty() {
                self.draft.add_line(line);
            } else if let Some(event) = self.draft.finish() {
                next = NextEvent::Event(event);
                break;
            }
            if self.draft.data.len() == had {
                self.dropped += length;
            }
        }
        self.buffer.advance(read);
        self.at_start &= read == 0;
        next
    }

    /// Whether JSON has begun to come without `data:`, a line that has not ended.
    pub fn has_unframed_json(&self) -> bool {
        is_json(&self.buffer)
    }

    fn skip_bom(&mut self) {
        if self.at_start && self.buffer.starts_with(BOM) {
            self.buffer.advance(BOM.len());
            self.scanned = 0;
            self.at_start = false;
        }
    }
}

/// Whether a line is JSON where a field should be.
fn is_json(line: &[u8]) -> bool {
    matches!(line.trim_ascii_start().first(), Some(b'{' | b'['))
}

/// The first line of `rest`, and how long it is with its end. `scanned` of it have no end of a line,
/// and none of what follows the line has been looked at.
fn first_line<'r>(rest: &'r [u8], scanned: &mut usize) -> Option<(&'r [u8], usize)> {
    let found = memchr::memchr2(b'\n', b'\r', &rest[*scanned..]);
    let Some(end) = found.map(|found| *scanned + found) else {
        *scanned = rest.len();
        return None;
    };
    // A lone CR at the end of a chunk may be half of a CRLF: wait for the next byte.
    if rest[end] == b'\r' && end + 1 == rest.len() {
        *scanned = end;
        return None;
    }
    *scanned = 0;
    let pair = rest[end..].starts_with(b"\r\n");
    Some((&rest[..end], end + if pair { 2 } else { 1 }))
}

impl PartialEvent {
    /// Takes a line; a comment is a field without a name.
    fn add_line(&mut self, line: &[u8]) {
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        let (name, rest) = line.split_at(colon);
        let value = rest.strip_prefix(b":").unwrap_or(rest);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                if self.has_data {
                    self.data.extend_from_slice(b"\n");
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => self.event.name = String::from_utf8_lossy(value).into_owned(),
            b"id" if !value.contains(&0) => {
                self.event.id = Some(String::from_utf8_lossy(value).into_owned());
            }
            b"retry" => {
                self.event.retry = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok());
            }
            _ => {}
        }
    }

    /// Ends the event at a blank line; an event that carried nothing at all is none.
    fn finish(&mut self) -> Option<SseEvent> {
        if !self.has_data && self.event.id.is_none() && self.event.retry.is_none() {
            self.event.name.clear();
            return None;
        }
        let mut event = std::mem::take(&mut self.event);
        event.data = self.data.split().freeze();
        self.has_data = false;
        Some(event)
    }
}

const BOM: &[u8] = b"\xef\xbb\xbf";
/// Room for field names and line ends beside the data of one event.
const FRAMING_BYTES: usize = 4096;
/// Lines that are read in a row: some microseconds, and more than ordinary events have.
const LINES_PER_TURN: usize = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(chunks: &[&[u8]]) -> Vec<SseEvent> {
        let mut reader = SseReader::new(1024);
        let mut events = Vec::new();
        for chunk in chunks {
            reader.push(chunk).unwrap();
            loop {
                match reader.next_event() {
                    NextEvent::Event(event) => events.push(event),
                    NextEvent::Yield => {}
                    NextEvent::Pending => break,
                }
            }
        }
        events
    }

    #[test]
    fn streams_of_real_servers_are_read() {
        let check = |text: &str, expect: &[(&str, &str, Option<&str>, Option<u64>)]| {
            let found = read(&[text.as_bytes()]);
            let found: Vec<_> = found
                .iter()
                .map(|e| {
                    let data = std::str::from_utf8(&e.data).unwrap();
                    (e.name.as_str(), data, e.id.as_deref(), e.retry)
                })
                .collect();
            assert_eq!(found, expect, "{text:?}");
        };
        check(
            "event: message\ndata: {}\n\n",
            &[("message", "{}", None, None)],
        );
        check(
            "data: \nid: 7\nretry: 500\n\n",
            &[("", "", Some("7"), Some(500))],
        );
        check(
            ": ping\n\n:\n\ndata:a\ndata: b\r\n\r\n",
            &[("", "a\nb", None, None)],
        );
        check(
            "\u{feff}data: x\r\rdata: y\n\n",
            &[("", "x", None, None), ("", "y", None, None)],
        );
        check("data: unfinished\n", &[]);
    }

    #[test]
    fn what_makes_no_event_is_read_a_bounded_number_of_lines_at_a_time() {
        let check = |line: &str, count: usize, later: usize| {
            let lines = line.matches('\n').count();
            let rest = line.repeat((LINES_PER_TURN - 1) / lines);
            let text = line.repeat(count) + "data: x\n\n" + &rest;
            let mut reader = SseReader::new(text.len());
            reader.push(text.as_bytes()).unwrap();
            for _ in 0..later {
                assert_eq!(reader.next_event(), NextEvent::Yield, "{line:?} {count}");
            }
            let NextEvent::Event(event) = reader.next_event() else {
                panic!("no event after {count} of {line:?}");
            };
            assert_eq!(&event.data[..], b"x");
            assert_eq!(reader.next_event(), NextEvent::Pending, "{line:?} {count}");
            assert!(reader.buffer.is_empty());
        };
        for line in [":\n", "\n", "event: x\n\r\n", ": ping\r\n", "odd\n"] {
            let lines = line.matches('\n').count();
            let most = (LINES_PER_TURN - 2) / lines;
            check(line, most, 0);
            check(line, most + 1, 1);
            check(line, most + 3 * LINES_PER_TURN / lines, 3);
        }
    }

    #[test]
    fn a_mark_in_pieces_is_skipped_once() {
        let events = read(&[b"\xef", b"\xbb\xbf", b"\ndata: x\n\n"]);
        assert_eq!(events.len(), 1);
        let events = read(&[b"\n", b"\xef\xbb\xbfdata: x\n\n"]);
        assert_eq!(
            events,
            [],
            "it is a part of the name where something precedes it"
        );
    }

    #[test]
    fn an_event_over_the_limit_is_refused() {
        let mut reader = SseReader::new(10);
        assert_eq!(reader.push(&vec![b'x'; FRAMING_BYTES + 10]), Ok(()));
        assert_eq!(reader.push(b"x"), Err(EventTooLarge { bytes_max: 10 }));
    }

    /// Events are the same however the stream is split.
    #[test]
    fn fuzz_sse() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let bytes = &bytes[..bytes.len().min(1000)];
            let middle = bytes.first().map_or(0, |at| usize::from(*at) % bytes.len());
            let (before, after) = bytes.split_at(middle);
            assert_eq!(read(&[bytes]), read(&[before, after]));
        });
    }

    proptest! {
        #[test]
        fn space_between_tokens_does_not_matter(spaces in prop::collection::vec("[ \t\r\n]{0,3}", 6)) {
            let tokens = ["{", "\"a\"", ":", "[1", ",2", "]}"];
            let json = tokens.iter().zip(&spaces).flat_map(|(token, space)| [*token, space]);
            let json: String = json.collect();
            let events = read(&[&write_event(None, json.as_bytes())]);
            prop_assert_eq!(events.len(), 1, "{:?}", json);
            let found: serde_json::Value = serde_json::from_slice(&events[0].data).unwrap();
            prop_assert_eq!(found, serde_json::json!({"a": [1, 2]}));
        }

        #[test]
        fn chunk_borders_do_not_matter(json in "[ -~\n]{0,40}", cut in 0usize..80) {
            let bytes = write_event(Some("s-1"), json.as_bytes());
            let cut = cut.min(bytes.len());
            let events = read(&[&bytes[..cut], &bytes[cut..]]);
            prop_assert_eq!(events.len(), 1);
            prop_assert_eq!(&events[0].data[..], json.as_bytes());
        }
    }
}
