//! What of a source may be shown: its text with every secret replaced by `***`.
//!
//! Secrets are found by where they stand, before anything is known to be right: values under
//! `env`, `headers`, `auth` and `keys`, values of keys that sound like a secret, credentials in URLs
//! and command lines, and values of keys that nobody knows. A text that could not be parsed shows keys only,
//! misspelled ones included.

use std::ops::Range;

use super::suggest::closest;
use crate::config::node::Node;

/// What stands for a secret.
pub(in crate::config) const MASK: &str = "***";

/// Stretches of a text that must not be shown.
#[derive(Debug, Default)]
pub(in crate::config) struct HiddenRanges {
    ranges: Vec<Range<usize>>,
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
                Secrecy::All => self.add_values(&entry.node, text),
            }
        }
    }

    /// Hides what is written in `range` from the first secret on, if it reads as a command line.
    fn add_command_line(&mut self, range: Range<usize>, text: &str) {
        let written = text.get(range.clone()).unwrap_or_default();
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
        let secrets = url_secrets(written).into_iter();
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

/// The length of `${TOKEN}`, or of `${TOKEN:` without the default, at the start of `text`: it
/// tells nothing, and is what the reader needs to see.
fn reference_len(text: &str) -> Option<usize> {
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
    reference_len(text) == Some(text.len()) && text.ends_with('}')
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

/// Where the first secret of the command line `text` begins.
fn first_secret_at(text: &str) -> Option<usize> {
    let is_quote = |c: char| matches!(c, '"' | '\'' | '\\');
    // It may be a list that is written as text.
    let is_between = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']' | '{' | '}');
    let words = text
        .split(is_between)
        .map(|word| word.trim_matches(is_quote));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let mut at = 0;
    for (word, secret) in words.iter().zip(secret_offsets(&words)) {
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
/// what stands behind a name that sounds like it (`--token=`, `API_KEY=`, `X-Api-Key:`), what looks
/// generated, and, whatever they are called, the values of variables and headers that the program
/// hands on, as under `env` and `headers`.
fn secret_offsets(words: &[&str]) -> Vec<Option<usize>> {
    let start = |(index, word): (usize, &&str)| {
        let before = index.checked_sub(1).map_or("", |before| words[before]);
        let follows_flag = before.starts_with('-')
            && !before.contains('=')
            && !PASS_THROUGH_FLAGS.contains(&before)
            && names_secret(before, word)
            && !is_flag(word);
        if follows_flag {
            return Some(0);
        }
        if USER_FLAGS.contains(&before) && !word.contains("://") && word.contains(':') {
            return word.find(':').map(|at| at + 1);
        }
        let lower = word.to_lowercase();
        let is_credential = lower.contains("authorization:") || lower.contains("bearer ");
        // One without a space would be looked at again and again.
        let line = || {
            let is_line = word.contains(char::is_whitespace);
            is_line.then(|| first_secret_at(word)).flatten()
        };
        named_value_start(word, PASS_THROUGH_FLAGS.contains(&before))
            .or_else(|| is_credential.then_some(0))
            .or_else(line)
            .or_else(|| generated_start(word))
    };
    words.iter().enumerate().map(start).collect()
}

/// Flags whose values are variables and headers that the program hands on.
const PASS_THROUGH_FLAGS: [&str; 4] = ["--env", "--header", "-H", "-e"];
/// Flags whose values are a user and a password.
const USER_FLAGS: [&str; 4] = ["--proxy-user", "--user", "-U", "-u"];

/// Where in `word` the value begins whose name sounds secret, or that is one to hand on.
fn named_value_start(word: &str, is_handed_on: bool) -> Option<usize> {
    let glued = PASS_THROUGH_FLAGS
        .iter()
        .find_map(|flag| word.strip_prefix(flag)?.strip_prefix('='));
    let is_handed_on = is_handed_on || glued.is_some();
    let pair = glued.unwrap_or(word);
    let is_of_name = |c: char| !c.is_whitespace() && !matches!(c, '/' | '\\');
    let mut signs = pair.match_indices(['=', ':']).map(|(at, _)| at);
    let sign = signs.find(|at| {
        let (before, value) = (&pair[..*at], &pair[at + 1..]);
        is_handed_on && before.chars().all(is_of_name)
            || name_at_end(before).is_some_and(|name| names_secret(name, value))
    })?;
    Some(word.len() - pair.len() + sign + 1)
}

/// The name that `text` ends with, unless it is a part of a path.
fn name_at_end(text: &str) -> Option<&str> {
    let quotes = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '\\' | ']');
    let text = text.trim_end_matches(quotes);
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name = &text[text.trim_end_matches(is_of_name).len()..];
    let before = &text[..text.len() - name.len()];
    let is_of_path = before.len() > 1 && before.ends_with(['/', '\\']);
    (!name.is_empty() && !is_of_path).then_some(name)
}

/// Whether `word` is a flag itself instead of the value of one.
fn is_flag(word: &str) -> bool {
    let name = word.split('=').next().unwrap_or(word);
    let plain = |c: char| c.is_ascii_lowercase() || matches!(c, '-' | '_');
    name.starts_with('-') && name.len() > 1 && name.chars().all(plain)
}

/// Whether a flag or a variable called `name` has a secret in `value`: by a name as in a config, by a
/// word for one at its end, or by a slip of the pen for either.
fn names_secret(name: &str, value: &str) -> bool {
    /// What may as well name a file.
    const AMBIGUOUS_WORDS: [&str; 12] = [
        "auth", "bearer", "cookie", "cred", "creds", "jwt", "key", "pass", "pat", "pin", "pw",
        "pwd",
    ];
    const MEANT: [&str; 10] = [
        "accesskey",
        "apikey",
        "authorization",
        "bearer",
        "credential",
        "passphrase",
        "password",
        "privatekey",
        "secret",
        "token",
    ];
    /// Shorter words are too near to others.
    const WORD_CHARS_MIN: usize = 4;
    if sounds_secret(name) {
        return true;
    }
    let lower = name.to_lowercase();
    let words: Vec<&str> = lower
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    let is_path = value.starts_with(['/', '.', '~']) || value.is_empty();
    if !is_path
        && words
            .last()
            .is_some_and(|word| AMBIGUOUS_WORDS.contains(word))
    {
        return true;
    }
    let is_meant = |word: &str| {
        let may_be = word.len() >= WORD_CHARS_MIN;
        let slip = |meant: &&str| strsim::damerau_levenshtein(word, meant) <= 1 + meant.len() / 9;
        may_be && MEANT.iter().any(slip)
    };
    let pairs = words.windows(2).map(<[&str]>::concat);
    words.iter().any(|word| is_meant(word)) || pairs.into_iter().any(|pair| is_meant(&pair))
}

/// Where in `word`, which is no path and no URL, begins what nobody made up: a token.
fn generated_start(word: &str) -> Option<usize> {
    if word.starts_with(['/', '.', '~']) || word.contains("://") {
        return None;
    }
    let is_of_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let mut start = 0;
    for part in word.split_inclusive(|c| !is_of_token(c)) {
        if is_generated(part) {
            return Some(start);
        }
        start += part.len();
    }
    None
}

/// Whether `part` has the prefix of a token of a known vendor, or a stretch of letters and digits as
/// only programs choose them.
fn is_generated(part: &str) -> bool {
    const PREFIXES: [&str; 24] = [
        "AIza",
        "AKIA",
        "ASIA",
        "SG.",
        "dop_v1_",
        "eyJ",
        "gho_",
        "ghp_",
        "ghr_",
        "ghs_",
        "ghu_",
        "github_pat_",
        "glpat-",
        "hf_",
        "npm_",
        "pk_",
        "pypi-",
        "rk_",
        "shpat_",
        "sk-",
        "sk_",
        "tbk_",
        "xapp-",
        "xox",
    ];
    const BYTES_MIN: usize = 16;
    let after = PREFIXES.iter().find_map(|prefix| part.strip_prefix(prefix));
    if after.is_some_and(|after| after.len() >= BYTES_MIN) {
        return true;
    }
    let stretches = part.split(|c: char| !c.is_ascii_alphanumeric());
    let mut stretches = stretches.filter(|it| it.len() >= BYTES_MIN);
    stretches.any(|stretch| {
        let bytes = stretch.as_bytes();
        let count = |is: fn(&u8) -> bool| bytes.iter().filter(|b| is(b)).count();
        let upper = count(u8::is_ascii_uppercase);
        let lower = count(u8::is_ascii_lowercase);
        let digits = count(u8::is_ascii_digit);
        let differ = |pair: &&[u8]| pair[0].is_ascii_digit() != pair[1].is_ascii_digit();
        let changes = bytes.windows(2).filter(differ).count();
        // Digits among letters, capitals only, or as many capitals as in no name.
        changes >= 4 && digits >= 3
            || upper + digits == bytes.len() && upper > 0
            || upper.min(lower) * 5 >= bytes.len() * 2
    })
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

/// User, password, query, fragment and generated parts of the path of every URL in `text`.
fn url_secrets(text: &str) -> Vec<Range<usize>> {
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>');
    let mut secrets = Vec::new();
    let mut at = 0;
    while let Some(found) = text[at..].find("://") {
        let start = at + found + 3;
        let end = text[start..]
            .find(ends)
            .map_or(text.len(), |len| start + len);
        let path = start
            + user_info_len(&text[start..end]).map_or(0, |user| {
                secrets.push(start..start + user);
                user
            });
        let url = &text[path..end];
        let query = url.find(['?', '#']).unwrap_or(url.len());
        if query + 1 < url.len() {
            secrets.push(path + query + 1..end);
        }
        let mut part = path;
        for segment in url[..query].split_inclusive('/') {
            let name = segment.trim_end_matches('/');
            if is_generated(name) {
                secrets.push(part..part + name.len());
            }
            part += segment.len();
        }
        at = end;
    }
    if at == 0 {
        secrets.extend(schemeless_url_secrets(text));
    }
    secrets
}

/// The length of user and password in what follows the scheme of a URL. A password may have signs that it
/// must not have: what follows a colon is no port then.
fn user_info_len(url: &str) -> Option<usize> {
    let host = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
    if let Some(user) = host.rfind('@') {
        return Some(user);
    }
    let (name, port) = host.rsplit_once(':')?;
    let is_port = port.bytes().all(|b| b.is_ascii_digit()) || name.starts_with('[');
    (!is_port).then(|| url.rfind('@'))?
}

/// The same of a URL whose scheme was left out: `me:password@host`, `host/?key=...`.
fn schemeless_url_secrets(text: &str) -> Vec<Range<usize>> {
    let inside = text.trim_matches(['"', '\'']);
    let start = text.find(inside).unwrap_or_default();
    let end = start + inside.len();
    if inside.contains(char::is_whitespace) {
        return Vec::new();
    }
    let mut secrets = Vec::new();
    if let Some((user, _)) = inside.rsplit_once('@')
        && let Some((name, password)) = user.split_once(':')
        && !password.is_empty()
        && !name.contains('/')
    {
        secrets.push(start..start + user.len());
    }
    if let Some((before, query)) = inside.split_once('?')
        && query.contains('=')
        && !before.contains('(')
    {
        secrets.push(start + before.len() + 1..end);
    }
    secrets
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

/// Whether `node` says of which kind a credential is, even if misspelt.
fn is_credential_kind(node: &Node) -> bool {
    let kinds = ["basic", "bearer", "header", "none", "oauth"];
    node.as_text()
        .is_some_and(|kind| closest(kind, kinds).is_some())
}

/// How secret the values below a key are.
enum Secrecy {
    /// They never are.
    Public,
    /// That depends on the keys below.
    ByKey,
    /// All of them are.
    All,
}

/// Whether what is called `name` is most likely secret, wherever it stands.
pub(in crate::config) fn sounds_secret(name: &str) -> bool {
    matches!(secrecy(name), Secrecy::All)
}

/// Judges `key` by its name alone, wherever it stands.
fn secrecy(key: &str) -> Secrecy {
    /// Sections whose keys sound like secrets and are none: `limits.headers` is a size,
    /// `governance.auth` a word, and classes of a scan are called `api_key` or `password`.
    const NONE: [&str; 3] = ["governance", "limits", "scan"];
    const WHOLE: [&str; 10] = [
        "auth",
        "authentication",
        "bearer",
        "env",
        "environment",
        "headers",
        "keys",
        "oauth",
        "pass",
        "pwd",
    ];
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
        Secrecy::Public
    } else if WHOLE.contains(&plain.as_str()) || PART.iter().any(|part| plain.contains(part)) {
        Secrecy::All
    } else {
        Secrecy::ByKey
    }
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
