//! Writes lines of the log, member by member.

use std::{borrow::Cow, ops::Range, time::Duration};

use jiff::{Timestamp, tz::Offset};
use uuid::Uuid;

use super::record_line::{ArgumentsDigest, LineType, TEXT_BYTES_MAX};
use crate::{audit::hash_chain::append_number, money::Micros};

/// A line being written, without its `}`: the seal brings that.
pub(in crate::audit) struct LineWriter<'a>(&'a mut Vec<u8>);

impl<'a> LineWriter<'a> {
    pub(in crate::audit) fn begin(line: &'a mut Vec<u8>, kind: LineType) -> Self {
        line.clear();
        let head = kind.prefix().as_bytes();
        line.extend_from_slice(&head[..head.len() - 1]);
        Self(line)
    }

    /// A text that is known to need no escapes.
    pub(in crate::audit) fn plain_text(&mut self, name: &str, text: &str) {
        self.key(name);
        self.0.push(b'"');
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(b'"');
    }

    pub(in crate::audit) fn text(&mut self, name: &str, text: &str) {
        self.key(name);
        let kept = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        write_string(self.0, kept);
        if kept.len() < text.len() {
            self.0.pop();
            self.0.extend_from_slice("…\"".as_bytes());
        }
    }

    pub(in crate::audit) fn id(&mut self, name: &str, prefix: &str, id: Uuid) {
        self.key(name);
        self.0.push(b'"');
        self.0.extend_from_slice(prefix.as_bytes());
        let mut buffer = Uuid::encode_buffer();
        let text = id.hyphenated().encode_lower(&mut buffer);
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(b'"');
    }

    pub(super) fn optional_text(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    pub(super) fn texts(&mut self, name: &str, texts: &[Cow<'_, str>]) {
        self.key(name);
        self.0.push(b'[');
        for (n, text) in texts.iter().enumerate() {
            if n > 0 {
                self.0.push(b',');
            }
            write_string(self.0, text);
        }
        self.0.push(b']');
    }

    pub(in crate::audit) fn number(&mut self, name: &str, value: u64) {
        self.key(name);
        append_number(self.0, value);
    }

    pub(super) fn millis(&mut self, name: &str, value: Duration) {
        self.number(name, value.as_millis().try_into().unwrap_or(u64::MAX));
        let micros = value.subsec_micros() % 1000;
        self.0.push(b'.');
        self.0
            .extend([100, 10, 1].map(|unit| b'0' + (micros / unit % 10) as u8));
    }

    pub(in crate::audit) fn time(&mut self, name: &str, at: Timestamp) {
        self.key(name);
        self.0.push(b'"');
        self.0.extend_from_slice(&format_rfc3339(at));
        self.0.push(b'"');
    }

    pub(super) fn digest(&mut self, digest: Option<ArgumentsDigest>) {
        if let Some(ArgumentsDigest(hash)) = digest {
            self.key("arguments_digest");
            self.0.push(b'"');
            self.0.extend_from_slice(&hash.hex());
            self.0.push(b'"');
        }
    }

    /// A document of `bytes_max` at most; of a longer one, how long it is.
    ///
    /// JSON allows newlines between tokens only, where a space means the same.
    pub(super) fn json(&mut self, name: &str, json: &str, bytes_max: usize) {
        if json.len() > bytes_max {
            self.number(&format!("{name}_bytes"), json.len() as u64);
            return;
        }
        self.key(name);
        let is_break = |b: u8| matches!(b, b'\n' | b'\r');
        let spaced = json.bytes().map(|b| if is_break(b) { b' ' } else { b });
        self.0.extend(spaced);
    }

    /// Sums by account.
    pub(in crate::audit) fn sums<'b>(
        &mut self,
        name: &str,
        sums: impl Iterator<Item = (&'b str, Micros)>,
    ) {
        self.key(name);
        self.0.push(b'{');
        for (n, (account, sum)) in sums.enumerate() {
            if n > 0 {
                self.0.push(b',');
            }
            write_string(self.0, account);
            self.0.push(b':');
            append_number(self.0, sum.get());
        }
        self.0.push(b'}');
    }

    /// Objects, given by their members.
    pub(in crate::audit) fn objects<'b>(
        &mut self,
        name: &str,
        objects: impl Iterator<Item = &'b [u8]>,
    ) {
        self.key(name);
        self.0.push(b'[');
        for (n, members) in objects.enumerate() {
            self.0.extend_from_slice(if n > 0 { b",{" } else { b"{" });
            self.0.extend_from_slice(members);
            self.0.push(b'}');
        }
        self.0.push(b']');
    }

    fn key(&mut self, name: &str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }
}

/// `at` in UTC, of our era, with microseconds.
fn format_rfc3339(at: Timestamp) -> [u8; 27] {
    let at = Offset::UTC.to_datetime(at);
    let mut text = *b"0000-00-00T00:00:00.000000Z";
    let mut put = |span: Range<usize>, mut number: u32| {
        for digit in text[span].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    };
    put(0..4, at.year().unsigned_abs().into());
    put(5..7, at.month().unsigned_abs().into());
    put(8..10, at.day().unsigned_abs().into());
    put(11..13, at.hour().unsigned_abs().into());
    put(14..16, at.minute().unsigned_abs().into());
    put(17..19, at.second().unsigned_abs().into());
    put(20..26, at.subsec_nanosecond().unsigned_abs() / 1000);
    text
}

fn write_string(to: &mut Vec<u8>, text: &str) {
    // Looking at every byte is quicker than stopping early: texts are short, and most are plain.
    let special = |b: u8| b < 0x20 || b == b'"' || b == b'\\';
    if text.bytes().fold(false, |found, b| found | special(b)) {
        serde_json::to_writer(to, text).expect("a Vec takes every string");
    } else {
        to.push(b'"');
        to.extend_from_slice(text.as_bytes());
        to.push(b'"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_all_their_digits() {
        for text in [
            "0000-01-01T00:00:00.000000Z",
            "1969-12-31T23:59:59.999999Z",
            "1970-01-01T00:00:00.000000Z",
            "2024-02-29T01:02:03.000004Z",
            "2026-11-22T10:20:30.500000Z",
            "9999-12-30T21:59:59.999999Z",
        ] {
            let at: Timestamp = text.parse().unwrap();
            assert_eq!(format_rfc3339(at), text.as_bytes(), "{text}");
        }
        let at: Timestamp = "2026-11-22T10:20:30.123456789Z".parse().unwrap();
        assert_eq!(&format_rfc3339(at), b"2026-11-22T10:20:30.123456Z");
    }
}
