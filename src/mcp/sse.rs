//! Server-sent events: writing them, and reading them from arbitrary chunks.
//!
//! Source of the format: the HTML standard, "Server-sent events".

use bytes::{Buf, Bytes, BytesMut};

/// One event as received.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Event {
    /// `event:`; empty means `message`.
    pub name: String,
    /// `data:` lines joined by newlines.
    pub data: Bytes,
    /// `id:`, when this event carried one.
    pub id: Option<String>,
    /// `retry:` in milliseconds, when this event carried one.
    pub retry: Option<u64>,
}

/// Writes a message event whose data is `json`. Line breaks in it, which JSON has outside of strings
/// only, are written as further `data:` lines; a reader takes each of `\n`, `\r` and both for one.
pub fn write(id: Option<&str>, json: &[u8]) -> Bytes {
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
pub fn priming(id: &str, retry_ms: Option<u64>) -> Bytes {
    let retry = retry_ms
        .map(|ms| format!("retry: {ms}\n"))
        .unwrap_or_default();
    format!("id: {id}\n{retry}data: \n\n").into()
}

/// A comment that keeps the stream alive.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// Reads events from chunks.
#[derive(Debug)]
pub struct Reader {
    buffer: BytesMut,
    scanned: usize,
    data: BytesMut,
    has_data: bool,
    event: Event,
    bytes_max: usize,
    at_start: bool,
}

/// An event is larger than the reader allows.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("an event is larger than {bytes_max} bytes")]
pub struct TooLarge {
    /// The limit.
    pub bytes_max: usize,
}

impl Reader {
    /// Accepts events of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            scanned: 0,
            data: BytesMut::new(),
            has_data: false,
            event: Event::default(),
            bytes_max,
            at_start: true,
        }
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// When an unfinished event exceeds the limit; the stream is of no further use.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), TooLarge> {
        if self.buffer.len() + self.data.len() + chunk.len()
            > self.bytes_max.saturating_add(FRAMING)
        {
            return Err(TooLarge {
                bytes_max: self.bytes_max,
            });
        }
        self.buffer.extend_from_slice(chunk);
        Ok(())
    }

    /// The next whole event; `None` until more bytes come.
    pub fn next_event(&mut self) -> Option<Event> {
        while let Some(line) = self.next_line() {
            if line.is_empty() {
                if let Some(event) = self.dispatch() {
                    return Some(event);
                }
                continue;
            }
            self.field(&line);
        }
        None
    }

    fn next_line(&mut self) -> Option<BytesMut> {
        if self.at_start && self.buffer.starts_with(BOM) {
            self.buffer.advance(BOM.len());
        }
        let found = memchr::memchr2(b'\n', b'\r', &self.buffer[self.scanned..]);
        let Some(end) = found.map(|found| self.scanned + found) else {
            self.scanned = self.buffer.len();
            return None;
        };
        // A lone CR at the end of a chunk may be half of a CRLF: wait for the next byte.
        if self.buffer[end] == b'\r' && end + 1 == self.buffer.len() {
            self.scanned = end;
            return None;
        }
        self.at_start = false;
        self.scanned = 0;
        let line = self.buffer.split_to(end);
        let pair = self.buffer.starts_with(b"\r\n");
        self.buffer.advance(if pair { 2 } else { 1 });
        Some(line)
    }

    fn field(&mut self, line: &[u8]) {
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
    fn dispatch(&mut self) -> Option<Event> {
        let mut event = std::mem::take(&mut self.event);
        event.data = self.data.split().freeze();
        let empty = !self.has_data && event.id.is_none() && event.retry.is_none();
        self.has_data = false;
        (!empty).then_some(event)
    }
}

const BOM: &[u8] = b"\xef\xbb\xbf";
/// Room for field names and line ends beside the data of one event.
const FRAMING: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(chunks: &[&[u8]]) -> Vec<Event> {
        let mut reader = Reader::new(1024);
        let mut events = Vec::new();
        for chunk in chunks {
            reader.push(chunk).unwrap();
            while let Some(event) = reader.next_event() {
                events.push(event);
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
    fn an_event_over_the_limit_is_refused() {
        let mut reader = Reader::new(10);
        assert_eq!(reader.push(&vec![b'x'; FRAMING + 10]), Ok(()));
        assert_eq!(reader.push(b"x"), Err(TooLarge { bytes_max: 10 }));
    }

    proptest! {
        #[test]
        fn space_between_tokens_does_not_matter(spaces in prop::collection::vec("[ \t\r\n]{0,3}", 6)) {
            let tokens = ["{", "\"a\"", ":", "[1", ",2", "]}"];
            let json = tokens.iter().zip(&spaces).flat_map(|(token, space)| [*token, space]);
            let json: String = json.collect();
            let events = read(&[&write(None, json.as_bytes())]);
            prop_assert_eq!(events.len(), 1, "{:?}", json);
            let found: serde_json::Value = serde_json::from_slice(&events[0].data).unwrap();
            prop_assert_eq!(found, serde_json::json!({"a": [1, 2]}));
        }

        #[test]
        fn chunk_borders_do_not_matter(json in "[ -~\n]{0,40}", cut in 0usize..80) {
            let bytes = write(Some("s-1"), json.as_bytes());
            let cut = cut.min(bytes.len());
            let events = read(&[&bytes[..cut], &bytes[cut..]]);
            prop_assert_eq!(events.len(), 1);
            prop_assert_eq!(&events[0].data[..], json.as_bytes());
        }
    }
}
