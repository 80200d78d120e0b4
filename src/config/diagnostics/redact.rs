//! What of a source may be shown: its text with every secret replaced by `***`.
//!
//! Secrets are found by where they stand, before anything is known to be right: values under
//! `env`, `headers`, `auth` and `keys`, values of keys that sound like a secret, credentials in URLs
//! and command lines, and values of keys that nobody knows. A text that could not be parsed shows keys only,
//! misspelled ones included.

use std::ops::Range;

use crate::config::node::Node;
pub(in crate::config) use secret_names::sounds_secret;
use secret_names::{Secrecy, is_credential_kind, is_open_setting, names_secret, secrecy};
pub(in crate::config) use secret_words::is_generated;
use secret_words::{
    first_secret_at, generated_start, is_reference, reference_len, secret_offsets, url_secrets,
};

mod secret_names;
mod secret_words;

/// What stands for a secret.
pub(crate) const MASK: &str = "***";

/// Stretches of a text that must not be shown.
#[derive(Debug, Default)]
pub(in crate::config) struct HiddenRanges {
    ranges: Vec<Range<usize>>,
    /// Whether nothing is hidden to be on the safe side: no variable or header whose name and value look harmless,
    /// and no text that refers to the secret.
    is_lenient: bool,
}

/// Whether there is a secret in `text`, which was read as `node`, and not only what may be one.
pub(in crate::config) fn has_secret(node: &Node, text: &str) -> bool {
    let mut hidden = HiddenRanges {
        is_lenient: true,
        ..HiddenRanges::default()
    };
    hidden.add_secrets(node, text);
    !hidden.ranges.is_empty()
}

impl HiddenRanges {
    /// Hides every value below `node` of a freshly parsed text that stands where secrets do.
    pub(in crate::config) fn add_secrets(&mut self, node: &Node, text: &str) {
        if node.as_text().is_some() {
            self.add_urls(node.span.range(), text);
            self.add_command_line(node.span.range(), text);
        }
        let items = node.as_list().into_iter().flatten();
        let words: Vec<&str> = items
            .clone()
            .map(|item| item.as_text().unwrap_or_default())
            .collect();
        for (item, secret) in items.zip(secret_offsets(&words)) {
            if secret.is_some() {
                self.add_values(item, text);
            } else {
                self.add_secrets(item, text);
            }
        }
        for (key, entry) in node.as_table().into_iter().flatten() {
            match secrecy(key) {
                Secrecy::Public => {}
                Secrecy::ByKey => self.add_secrets(&entry.node, text),
                Secrecy::Credentials => self.add_credentials(&entry.node, text),
                Secrecy::Named if self.is_lenient => self.add_named(&entry.node, text),
                Secrecy::All | Secrecy::Named => self.add_values(&entry.node, text),
            }
        }
    }

    /// Hides the values of a section about credentials, but for settings that say nothing secret.
    fn add_credentials(&mut self, node: &Node, text: &str) {
        let Some(settings) = node.as_table() else {
            return self.add_values(node, text);
        };
        for (key, entry) in settings {
            let node = &entry.node;
            if is_open_setting(key, node) {
                self.add_secrets(node, text);
            } else if matches!(&**key, "idp" | "login") {
                self.add_credentials(node, text);
            } else {
                self.add_values(node, text);
            }
        }
    }

    /// Hides the values of variables or headers that look secret.
    fn add_named(&mut self, node: &Node, text: &str) {
        let Some(values) = node.as_table() else {
            return self.add_secrets(node, text);
        };
        for (name, entry) in values {
            let value = entry.node.as_text().unwrap_or_default();
            if names_secret(name, value) || is_generated(value) {
                self.add_values(&entry.node, text);
            } else {
                self.add_secrets(&entry.node, text);
            }
        }
    }

    /// Hides what is written in `range` from the first secret on, if it reads as a command line.
    fn add_command_line(&mut self, range: Range<usize>, text: &str) {
        let written = text.get(range.clone()).unwrap_or_default();
        if self.is_lenient && written.contains("${") {
            return;
        }
        let written = written.trim_end_matches(['"', '\'']);
        if let Some(start) = first_secret_at(written) {
            self.add(range.start + start..range.start + written.len(), text);
        }
    }

    /// Hides every value below `node`, but for a word that says what it is.
    fn add_values(&mut self, node: &Node, text: &str) {
        if node.is_leaf() {
            self.add(node.span.range(), text);
        }
        for item in node.as_list().into_iter().flatten() {
            self.add_values(item, text);
        }
        for (_, entry) in node
            .as_table()
            .into_iter()
            .flatten()
            .filter(|(key, entry)| *key != "type" || !is_credential_kind(&entry.node))
        {
            self.add_values(&entry.node, text);
        }
    }

    /// Hides `range`, but for the quotes around it and the names of variables in it.
    pub(in crate::config) fn add(&mut self, range: Range<usize>, text: &str) {
        let Some(written) = text.get(range.clone()) else {
            return;
        };
        if self.is_lenient && written.contains("${") {
            return;
        }
        let quotes = written.len() >= 2
            && written.starts_with(['"', '\''])
            && written.chars().next() == written.chars().next_back();
        let range = if quotes {
            range.start + 1..range.end - 1
        } else {
            range
        };
        let mut start = range.start;
        for (at, _) in text[range.clone()].match_indices("${") {
            let at = range.start + at;
            if let Some(length) = reference_len(&text[at..range.end]).filter(|_| at >= start) {
                self.ranges.push(start..at);
                start = at + length;
            }
        }
        self.ranges.push(start..range.end);
        self.ranges.retain(|hidden| !hidden.is_empty());
    }

    /// Whether any part of `range` is hidden.
    pub(in crate::config) fn hides(&self, range: &Range<usize>) -> bool {
        self.ranges
            .iter()
            .any(|hidden| hidden.start < range.end && range.start < hidden.end)
    }

    /// Hides what is secret in the URLs written in `range`.
    fn add_urls(&mut self, range: Range<usize>, text: &str) {
        let written = text.get(range.clone()).unwrap_or_default();
        let is_lenient = self.is_lenient;
        let secrets = url_secrets(written).into_iter();
        let secrets = secrets.filter(|it| !is_lenient || !written[it.clone()].contains("${"));
        let moved = secrets.map(|it| range.start + it.start..range.start + it.end);
        self.ranges.extend(moved);
    }

    /// Hides everything that may be a value in a text that could not be parsed.
    pub(in crate::config) fn add_unparsed(&mut self, text: &str) {
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let value = start + line_value_start(line);
            let keys = keys_on_line(line);
            let is_key = |word: &Range<usize>| {
                let within = |key: &Range<usize>| {
                    start + key.start <= word.start && word.end <= start + key.end
                };
                keys.iter().any(within)
            };
            let words = text[value..start + line.len()].char_indices();
            let mut word: Option<usize> = None;
            for (at, c) in words.chain([(start + line.len() - value, '\n')]) {
                let in_word = c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '+' | '~');
                match (in_word, word) {
                    (true, None) => word = Some(value + at),
                    (false, Some(from)) => {
                        let whole = from..value + at;
                        if !is_key(&whole) {
                            self.ranges.push(whole);
                        }
                        word = None;
                    }
                    (true, Some(_)) | (false, None) => {}
                }
            }
            start += line.len();
        }
    }
}

/// Where the value of a line may begin: behind the `=` or `:` after a key, or at once when the line
/// has no key and is no table header.
fn line_value_start(line: &str) -> usize {
    if line.trim_start().starts_with('[') && !line.contains(['=', ':', '"', '\'']) {
        return line.len();
    }
    let Some(end) = line.find(['=', ':']) else {
        return 0;
    };
    let key = line[..end]
        .trim()
        .trim_start_matches(['-', '{', '[', ',', ' ']);
    let quote = key.chars().next().filter(|c| matches!(c, '"' | '\''));
    let is_key = match quote {
        Some(quote) => key.len() > 1 && key.ends_with(quote) && key.matches(quote).count() == 2,
        None => !key.contains(|c: char| c.is_whitespace() || matches!(c, '"' | '\'')),
    };
    // The padding of a token is a `=` too.
    if is_key && generated_start(key).is_none() {
        end + 1
    } else {
        0
    }
}

/// The keys on one line of a text that could not be parsed, which the reader needs to see: words
/// between a bracket or comma and `=` or `:`, outside of lists and strings. None where a string has no end,
/// since it is not known then what stands in strings.
fn keys_on_line(line: &str) -> Vec<Range<usize>> {
    let mut keys = Vec::new();
    let mut brackets = Vec::new();
    // A key may begin here; the one that was read last.
    let (mut may_begin, mut key) = (false, None::<MaskWord>);
    let mut rest = line.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        match c {
            '"' | '\'' => {
                let Some(end) = quoted_len(&line[at..]).map(|length| at + length) else {
                    return Vec::new();
                };
                let word = MaskWord {
                    range: at + 1..end - 1,
                    is_quoted: true,
                };
                key = may_begin.then_some(word);
                may_begin = false;
                while rest.next_if(|(at, _)| *at < end).is_some() {}
            }
            '{' | '[' => {
                brackets.push(c);
                (may_begin, key) = (c == '{', None);
            }
            '}' | ']' => {
                brackets.pop();
                (may_begin, key) = (brackets.last() != Some(&'['), None);
            }
            ',' => (may_begin, key) = (brackets.last() != Some(&'['), None),
            '=' | ':' => {
                let is_apart = rest.peek().is_none_or(|(_, next)| next.is_whitespace());
                let word = key.take();
                keys.extend(
                    word.filter(|word| c == '=' || word.is_quoted || is_apart)
                        .map(|word| word.range),
                );
            }
            _ if c.is_whitespace() => {}
            _ => match &mut key {
                Some(word) if !word.is_quoted && word.range.end == at => {
                    word.range.end += c.len_utf8();
                }
                Some(_) => key = None,
                None => {
                    let range = at..at + c.len_utf8();
                    let word = MaskWord {
                        range,
                        is_quoted: false,
                    };
                    key = may_begin.then_some(word);
                    may_begin = false;
                }
            },
        }
    }
    keys.retain(|key| generated_start(&line[key.clone()]).is_none());
    keys
}

/// What may be a key.
struct MaskWord {
    range: Range<usize>,
    is_quoted: bool,
}

/// The length of the string, quotes included, that `text` begins with.
fn quoted_len(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' && quote == '"' {
            is_escaped = true;
        } else if c == quote {
            return Some(at + 1);
        }
    }
    None
}

/// The words of a command line without what is secret in them.
pub(in crate::config) fn redact_words(words: &[&str]) -> Vec<String> {
    let secrets = secret_offsets(words);
    let shown = words.iter().zip(secrets).map(|(word, start)| match start {
        Some(start) if is_reference(&word[start..]) => (*word).to_owned(),
        Some(start) => format!("{}{MASK}", &word[..start]),
        None => redact_urls(word),
    });
    shown.collect()
}

/// The command line `text`, one string, up to its first secret: where that ends nobody knows.
pub(in crate::config) fn redact_command_line(text: &str) -> String {
    match first_secret_at(text) {
        Some(start) => format!("{}{MASK}", redact_urls(&text[..start])),
        None => redact_urls(text),
    }
}

/// `text` without what is secret in its URLs.
pub(in crate::config) fn redact_urls(text: &str) -> String {
    let mut hidden = HiddenRanges::default();
    hidden.add_urls(0..text.len(), text);
    RedactedText::new("", text, &hidden).text
}

/// The `path` of a URL without what looks generated in it.
pub(in crate::config) fn redact_path(path: &str) -> String {
    let segments = path.split('/');
    let shown = segments.map(|it| if is_generated(it) { MASK } else { it });
    shown.collect::<Vec<_>>().join("/")
}

/// What of `args` is not shown, where `shown` is how they are shown.
pub(crate) fn hidden_parts(args: &[String], shown: &[String]) -> Vec<String> {
    let each = args.iter().zip(shown).filter(|(arg, shown)| arg != shown);
    let hidden = each.flat_map(|(arg, shown)| {
        let (mut rest, mut shown) = (arg.as_str(), shown.as_str());
        let mut hidden = Vec::new();
        while let Some(place) = next_redaction(shown) {
            let literal = shown[..place.start].replace("$$", "$");
            shown = &shown[place.end..];
            let after = &shown[..next_redaction(shown).map_or(shown.len(), |next| next.start)];
            let after = after.replace("$$", "$");
            rest = rest.strip_prefix(&*literal).unwrap_or(rest);
            let end = if after.is_empty() {
                None
            } else {
                rest.find(&*after)
            };
            let end = end.unwrap_or(rest.len());
            hidden.push(rest[..end].to_owned());
            rest = &rest[end..];
        }
        hidden
    });
    hidden.collect()
}

/// Where in `shown` something else stands than the value: a mask, or the name of a variable.
fn next_redaction(shown: &str) -> Option<Range<usize>> {
    let mask = shown.find(MASK).map(|at| at..at + MASK.len());
    let variable = shown.find("${").map(|at| {
        let end = shown[at..]
            .find('}')
            .map_or(shown.len(), |len| at + len + 1);
        at..end
    });
    [mask, variable]
        .into_iter()
        .flatten()
        .min_by_key(|it| it.start)
}

/// What of `value`, which is a secret, is one also by itself: the password in a URL, what stands behind
/// `Bearer`, the lines of a key.
pub(crate) fn secret_parts(value: &str) -> Vec<&str> {
    const LINE_BYTES_MIN: usize = 16;
    let mut parts = Vec::new();
    for secret in url_secrets(value) {
        let secret = &value[secret];
        parts.extend(secret.split('&').map(|part| {
            let at = part.find(['=', ':']).map_or(0, |at| at + 1);
            &part[at..]
        }));
    }
    if let Some(start) = first_secret_at(value) {
        let end = |c: char| c.is_whitespace() || matches!(c, ';' | '&' | ',' | '"' | '\'');
        let secret = value[start..].trim_start_matches(end);
        parts.extend(secret.split(end).next());
    }
    let schemes = ["Basic ", "Bearer ", "bearer ", "Token ", "token "];
    parts.extend(schemes.iter().find_map(|scheme| value.strip_prefix(scheme)));
    if value.contains('\n') {
        parts.extend(value.lines().filter(|line| line.len() >= LINE_BYTES_MIN));
    }
    parts
}

/// A text without its secrets, and how places in it moved.
#[derive(Debug)]
pub(in crate::config) struct RedactedText {
    pub(in crate::config) name: String,
    pub(in crate::config) text: String,
    /// Hidden stretch of the original text, and what stands for it here.
    offsets: Vec<(Range<usize>, Range<usize>)>,
}

impl RedactedText {
    pub(in crate::config) fn new(name: &str, original: &str, hidden: &HiddenRanges) -> Self {
        let mut masked = Self {
            name: name.to_owned(),
            text: String::new(),
            offsets: Vec::new(),
        };
        let mut at = 0;
        for range in merge_ranges(&hidden.ranges) {
            masked.text.push_str(&original[at..range.start]);
            let start = masked.text.len();
            masked.text.push_str(MASK);
            // Lines keep their numbers.
            let lines = original[range.clone()].matches('\n').count();
            masked.text.push_str(&"\n".repeat(lines));
            at = range.end;
            masked.offsets.push((range, start..masked.text.len()));
        }
        masked.text.push_str(&original[at..]);
        masked
    }

    /// Where `range` of the original text is here.
    pub(in crate::config) fn map_range(&self, range: Range<usize>) -> Range<usize> {
        let start = self.map_position(range.start, |stand_in| stand_in.start);
        let end = self.map_position(range.end, |stand_in| stand_in.end);
        start..end.max(start)
    }

    fn map_position(&self, at: usize, inside: impl Fn(&Range<usize>) -> usize) -> usize {
        let mut position = at;
        for (original, stand_in) in &self.offsets {
            if at >= original.end {
                position = stand_in.end + (at - original.end);
            } else if at > original.start {
                return inside(stand_in);
            }
        }
        let mut position = position.min(self.text.len());
        while !self.text.is_char_boundary(position) {
            position -= 1;
        }
        position
    }
}

/// The ranges in order, overlapping ones joined.
fn merge_ranges(ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut ranges = ranges.to_vec();
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
