//! What of a source may be shown: its text with every secret replaced by `***`.
//!
//! Secrets are found by where they stand, before anything is known to be right: values under
//! `env`, `headers`, `auth` and `keys`, values of keys that sound like a secret, credentials in URLs
//! and command lines, and values of keys that nobody knows. A text that could not be parsed shows keys only,
//! misspelled ones included.

use std::ops::Range;

use super::node::Node;

/// What stands for a secret.
pub(super) const MASK: &str = "***";

/// Keys of command lines, which many write as one string by mistake.
const COMMAND_LINES: [&str; 2] = ["args", "command"];

/// Stretches of a text that must not be shown.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    ranges: Vec<Range<usize>>,
}

impl Hidden {
    /// Hides every value below `node` of a freshly parsed text that stands where secrets do.
    pub(super) fn add_secrets(&mut self, node: &Node, text: &str) {
        if let Some(url) = node.as_text()
            && url.contains("://")
        {
            self.add_url(node.span.range(), text);
        }
        let items = node.as_list().into_iter().flatten();
        let words: Vec<&str> = items
            .clone()
            .map(|item| item.as_text().unwrap_or_default())
            .collect();
        for (item, secret) in items.zip(secret_words(&words)) {
            if secret.is_some() {
                self.add_values(item, text);
            } else {
                self.add_secrets(item, text);
            }
        }
        for (key, entry) in node.as_table().into_iter().flatten() {
            match secrecy(key) {
                Secrecy::None => {}
                Secrecy::Below => {
                    if COMMAND_LINES.contains(&key.as_str()) && entry.node.is_leaf() {
                        self.add_command_line(entry.node.span.range(), text);
                    }
                    self.add_secrets(&entry.node, text);
                }
                Secrecy::Whole => self.add_values(&entry.node, text),
            }
        }
    }

    /// Hides the command line that is written in `range`, as one string, from its first secret on.
    fn add_command_line(&mut self, range: Range<usize>, text: &str) {
        let written = text.get(range.clone()).unwrap_or_default();
        let written = written.trim_end_matches(['"', '\'']);
        if let Some(start) = first_secret(written) {
            self.add(range.start + start..range.start + written.len(), text);
        }
    }

    /// Hides every value below `node`, but for the word that says what it is.
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
            .filter(|(key, _)| *key != "type")
        {
            self.add_values(&entry.node, text);
        }
    }

    /// Hides `range`, but for the quotes around it and the names of variables in it.
    pub(super) fn add(&mut self, range: Range<usize>, text: &str) {
        let Some(written) = text.get(range.clone()) else {
            return;
        };
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
            if let Some(length) = reference(&text[at..range.end]).filter(|_| at >= start) {
                self.ranges.push(start..at);
                start = at + length;
            }
        }
        self.ranges.push(start..range.end);
        self.ranges.retain(|hidden| !hidden.is_empty());
    }

    /// Whether any part of `range` is hidden.
    pub(super) fn hides(&self, range: &Range<usize>) -> bool {
        self.ranges
            .iter()
            .any(|hidden| hidden.start < range.end && range.start < hidden.end)
    }

    /// Hides user, password and query of the URL written in `range`.
    fn add_url(&mut self, range: Range<usize>, text: &str) {
        let Some(written) = text.get(range.clone()) else {
            return;
        };
        let Some(authority) = written.find("://").map(|at| at + 3) else {
            return;
        };
        let path = written[authority..]
            .find('/')
            .map_or(written.len(), |at| authority + at);
        if let Some(at) = written[authority..path].rfind('@') {
            self.ranges
                .push(range.start + authority..range.start + authority + at);
        }
        if let Some(query) = written.find('?') {
            let end = written.trim_end_matches(['"', '\'']).len();
            if end > query + 1 {
                self.ranges.push(range.start + query + 1..range.start + end);
            }
        }
    }

    /// Hides everything that may be a value in a text that could not be parsed.
    pub(super) fn add_unparsed(&mut self, text: &str) {
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let value = start + value_start(line);
            let keys = later_keys(line);
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
fn value_start(line: &str) -> usize {
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
    if is_key { end + 1 } else { 0 }
}

/// The keys on one line of a text that could not be parsed, which the reader needs to see: words
/// between a bracket or comma and `=` or `:`, outside of lists and strings. None where a string has no end,
/// since it is not known then what stands in strings.
fn later_keys(line: &str) -> Vec<Range<usize>> {
    let mut keys = Vec::new();
    let mut brackets = Vec::new();
    // A key may begin here; the one that was read last.
    let (mut may_begin, mut key) = (false, None::<Word>);
    let mut rest = line.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        match c {
            '"' | '\'' => {
                let Some(end) = string_end(&line[at..]).map(|length| at + length) else {
                    return Vec::new();
                };
                let word = Word {
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
                    let word = Word {
                        range,
                        is_quoted: false,
                    };
                    key = may_begin.then_some(word);
                    may_begin = false;
                }
            },
        }
    }
    keys
}

/// What may be a key.
struct Word {
    range: Range<usize>,
    is_quoted: bool,
}

/// The length of the string, quotes included, that `text` begins with.
fn string_end(text: &str) -> Option<usize> {
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

/// The length of `${TOKEN}`, or of `${TOKEN:` without the default, at the start of `text`: it
/// tells nothing, and is what the reader needs to see.
fn reference(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("${")?;
    let name = ["env:", "input:"]
        .iter()
        .find_map(|form| inner.strip_prefix(form))
        .unwrap_or(inner);
    let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-')))?;
    let ended = name[end..].starts_with(['}', ':']);
    ended.then(|| text.len() - name.len() + end + 1)
}

/// Whether `text` is the name of one variable: it tells nothing.
fn is_reference(text: &str) -> bool {
    reference(text) == Some(text.len()) && text.ends_with('}')
}

/// The words of a command line without what is secret in them.
pub(super) fn shown_words(words: &[&str]) -> Vec<String> {
    let secrets = secret_words(words);
    let shown = words.iter().zip(secrets).map(|(word, start)| match start {
        Some(start) if is_reference(&word[start..]) => (*word).to_owned(),
        Some(start) => format!("{}{MASK}", &word[..start]),
        None => without_secrets(word),
    });
    shown.collect()
}

/// The command line `text`, one string, up to its first secret: where that ends nobody knows.
pub(super) fn shown_line(text: &str) -> String {
    match first_secret(text) {
        Some(start) => format!("{}{MASK}", &text[..start]),
        None => text.to_owned(),
    }
}

/// Where the first secret of the command line `text` begins.
fn first_secret(text: &str) -> Option<usize> {
    let is_quote = |c: char| matches!(c, '"' | '\'' | '\\');
    // It may be a list that is written as text.
    let is_between = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']' | '{' | '}');
    let words = text
        .split(is_between)
        .map(|word| word.trim_matches(is_quote));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let mut at = 0;
    for (word, secret) in words.iter().zip(secret_words(&words)) {
        // Each stands behind the one before it.
        at += text[at..].find(word)?;
        if let Some(start) = secret {
            return Some(at + start);
        }
        at += word.len();
    }
    None
}

/// Where in each word of a command line begins what is most likely secret: all that follows `--token`,
/// what stands behind a name that sounds like it (`--token=`, `API_KEY=`, `X-Api-Key:`), and, whatever
/// they are called, the values of variables and headers that the program hands on, as under `env` and
/// `headers`.
fn secret_words(words: &[&str]) -> Vec<Option<usize>> {
    const HANDING_ON: [&str; 4] = ["--env", "--header", "-H", "-e"];
    let start = |(index, word): (usize, &&str)| {
        let before = index.checked_sub(1).map_or("", |before| words[before]);
        let mut flags = HANDING_ON.iter();
        let glued = flags.find_map(|flag| word.strip_prefix(flag)?.strip_prefix('='));
        let is_handed_on = glued.is_some() || HANDING_ON.contains(&before);
        let follows_flag = !is_handed_on
            && before.starts_with('-')
            && !before.contains('=')
            && sounds_secret(before)
            && !word.starts_with('-');
        if follows_flag {
            return Some(0);
        }
        let is_of_name = |c: char| !c.is_whitespace() && !matches!(c, '/' | '\\');
        let pair = glued.unwrap_or(word);
        let mut ends = pair.match_indices(['=', ':']).map(|(at, _)| at);
        let behind_name = ends
            .find(|at| is_handed_on || sounds_secret(&pair[..*at]))
            .filter(|at| pair[..*at].chars().all(is_of_name))
            .map(|at| word.len() - pair.len() + at + 1);
        behind_name.or_else(|| {
            let lower = word.to_lowercase();
            let is_credential = lower.contains("authorization:") || lower.contains("bearer ");
            is_credential.then_some(0)
        })
    };
    words.iter().enumerate().map(start).collect()
}

/// `text` without what is secret in a URL: user, password and query.
pub(super) fn without_secrets(text: &str) -> String {
    let mut hidden = Hidden::default();
    if text.contains("://") {
        hidden.add_url(0..text.len(), text);
    }
    Masked::new("", text, &hidden).text
}

/// How secret the values below a key are.
enum Secrecy {
    /// They never are.
    None,
    /// That depends on the keys below.
    Below,
    /// All of them are.
    Whole,
}

/// Whether what is called `name` is most likely secret, wherever it stands.
pub(super) fn sounds_secret(name: &str) -> bool {
    matches!(secrecy(name), Secrecy::Whole)
}

/// Judges `key` by its name alone, wherever it stands.
fn secrecy(key: &str) -> Secrecy {
    /// Sections whose keys sound like secrets and are none: `limits.headers` is a size,
    /// `governance.auth` a word, and classes of a scan are called `api_key` or `password`.
    const NONE: [&str; 3] = ["governance", "limits", "scan"];
    const WHOLE: [&str; 5] = ["auth", "env", "environment", "headers", "keys"];
    const PART: [&str; 7] = [
        "apikey",
        "authorization",
        "credential",
        "passw",
        "privatekey",
        "secret",
        "token",
    ];
    let plain: String = key
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect::<String>()
        .to_lowercase();
    if NONE.contains(&plain.as_str()) {
        Secrecy::None
    } else if WHOLE.contains(&plain.as_str()) || PART.iter().any(|part| plain.contains(part)) {
        Secrecy::Whole
    } else {
        Secrecy::Below
    }
}

/// A text without its secrets, and how places in it moved.
#[derive(Debug)]
pub(super) struct Masked {
    pub(super) name: String,
    pub(super) text: String,
    /// Hidden stretch of the original text, and what stands for it here.
    moves: Vec<(Range<usize>, Range<usize>)>,
}

impl Masked {
    pub(super) fn new(name: &str, original: &str, hidden: &Hidden) -> Self {
        let mut masked = Self {
            name: name.to_owned(),
            text: String::new(),
            moves: Vec::new(),
        };
        let mut at = 0;
        for range in joined(&hidden.ranges) {
            masked.text.push_str(&original[at..range.start]);
            let start = masked.text.len();
            masked.text.push_str(MASK);
            // Lines keep their numbers.
            let lines = original[range.clone()].matches('\n').count();
            masked.text.push_str(&"\n".repeat(lines));
            at = range.end;
            masked.moves.push((range, start..masked.text.len()));
        }
        masked.text.push_str(&original[at..]);
        masked
    }

    /// Where `range` of the original text is here.
    pub(super) fn range(&self, range: Range<usize>) -> Range<usize> {
        let start = self.position(range.start, |stand_in| stand_in.start);
        let end = self.position(range.end, |stand_in| stand_in.end);
        start..end.max(start)
    }

    fn position(&self, at: usize, inside: impl Fn(&Range<usize>) -> usize) -> usize {
        let mut position = at;
        for (original, stand_in) in &self.moves {
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
fn joined(ranges: &[Range<usize>]) -> Vec<Range<usize>> {
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
