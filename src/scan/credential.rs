//! Passwords, tokens and keys that only their names give away: `password = ...`, `"api_key": ...`.

use std::ops::Range;

use super::{
    class::Class,
    context::{Text, ending, floor},
    lexicon::{self, Hints},
    search::Found,
};

pub(super) mod sentence;

/// Bytes of a name before `=` or `:` at most.
const NAME_BYTES_MAX: usize = 40;
/// Bytes of a value at most.
const VALUE_BYTES_MAX: usize = 512;

/// Signs of assignment in a value at most; padding of base64 has two.
const ASSIGNMENTS_MAX: usize = 5;

/// What is assigned by the `=` or `:` at `sign`, when what it is assigned to is a secret.
pub(super) fn assigned(text: &Text<'_>, sign: usize) -> Option<Found> {
    let named = Named::before(text, sign)?;
    let secret = named.secret(text)?;
    let mut at = sign + 1;
    // `:=`, `=>`, `==`: a comparison assigns nothing.
    match (text.byte(sign), text.byte(at)) {
        (b':', b'=') | (b'=', b'>') => at += 1,
        (b'=', b'=') | (b':', b':') => return None,
        _ => {}
    }
    if matches!(text.before(sign), b'!' | b'<' | b'>' | b'=' | b':') {
        return None;
    }
    let tight = at == sign + 1 && !text.byte(at).is_ascii_whitespace();
    let value = value_after(text, at)?;
    // A row of assignments is no value; looking at each would cost as much as all of them.
    let assignments = text.bytes()[value.span.clone()]
        .split(|b| *b == b'=')
        .count();
    if !value.quoted && assignments > ASSIGNMENTS_MAX {
        return None;
    }
    let prose = text.byte(sign) == b':' && !tight && !value.quoted;
    let named_like_code = text.before(named.start) == b'.';
    accept(
        text,
        &value,
        secret,
        Style {
            prose,
            named_like_code,
            cell: false,
        },
    )
}

/// The password of `curl -u me:x` and the like, whose colon is at `sign`, and of `mysql -p'x'`.
fn of_option(text: &Text<'_>, name_start: usize) -> bool {
    const OPTIONS: [&[u8]; 4] = [b" -u ", b" -u '", b" --user ", b" -u \""];
    let before = &text.bytes()[..name_start];
    OPTIONS.iter().any(|option| before.ends_with(option))
}

/// The password that is glued to the option `-p` at `word`.
pub(super) fn glued(text: &Text<'_>, word: &Range<usize>) -> Option<Found> {
    const COMMAND_BYTES_MAX: usize = 160;
    let value = value_after(text, word.end)?;
    let found = accept(text, &value, Secret::Password, Style::CELL)?;
    let start = word.start.saturating_sub(COMMAND_BYTES_MAX);
    let before = &text.bytes()[start..word.start];
    let line = memchr::memrchr(b'\n', before).map_or(before, |newline| &before[newline..]);
    let client = [&b"mysql"[..], b"mariadb", b"sshpass", b"mongo"];
    let named = client
        .iter()
        .any(|name| memchr::memmem::find(line, name).is_some());
    named.then_some(found)
}

/// The text of the element that the `>` at `sign` opens, when its name is one of a secret.
pub(super) fn element(text: &Text<'_>, sign: usize) -> Option<Found> {
    let window = &text.bytes()[sign.saturating_sub(NAME_BYTES_MAX)..sign];
    let open = memchr::memrchr(b'<', window)?;
    let name = std::str::from_utf8(&window[open + 1..]).ok()?;
    let secret = secret(ending(name))?;
    let rest = text.bytes().get(sign + 1..)?;
    let rest = &rest[..rest.len().min(VALUE_BYTES_MAX)];
    let value = Value {
        span: sign + 1..sign + 1 + memchr::memchr(b'<', rest)?,
        quoted: true,
    };
    accept(text, &value, secret, Style::PLAIN)
}

/// The cells of the table that the text is, below headers that name secrets.
pub(super) fn of_columns(text: &Text<'_>, out: &mut Vec<Found>) {
    let Some(columns) = text.columns() else {
        return;
    };
    let secrets: Vec<Option<Secret>> = columns.hints.iter().map(|hints| secret(*hints)).collect();
    if secrets.iter().all(Option::is_none) {
        return;
    }
    let style = Style::CELL;
    for row in columns.rows(text.text) {
        for (span, secret) in row.into_iter().zip(&secrets) {
            let quoted = true;
            let found = secret.and_then(|s| accept(text, &Value { span, quoted }, s, style));
            out.extend(found);
        }
    }
}

/// The values of an `INSERT` whose word `VALUES` is at `word`, below columns that name secrets.
pub(super) fn inserted(text: &Text<'_>, word: &Range<usize>, out: &mut Vec<Found>) {
    const COLUMNS_BYTES_MAX: usize = 256;
    let start = floor(text.text, word.start.saturating_sub(COLUMNS_BYTES_MAX));
    let before = text.text[start..word.start].trim_end();
    let names = before
        .strip_suffix(')')
        .and_then(|inner| inner.rsplit_once('('));
    let Some((_, names)) = names else {
        return;
    };
    let secrets: Vec<Option<Secret>> = names.split(',').map(|name| secret(ending(name))).collect();
    if secrets.iter().all(Option::is_none) {
        return;
    }
    let rest =
        &text.text[word.end..floor(text.text, text.text.len().min(word.end + VALUE_BYTES_MAX))];
    let Some(open) = rest.find('(') else {
        return;
    };
    let (mut column, mut quoted) = (0, None);
    for (index, byte) in rest.bytes().enumerate().skip(open + 1) {
        let here = word.end + index;
        match (byte, quoted) {
            (b'\'', None) => quoted = Some(here + 1),
            (b'\'', Some(start)) => {
                let value = Value {
                    span: start..here,
                    quoted: true,
                };
                let secret = secrets.get(column).copied().flatten();
                out.extend(secret.and_then(|s| accept(text, &value, s, Style::PLAIN)));
                quoted = None;
            }
            (b',', None) => column += 1,
            (b')', None) => return,
            _ => {}
        }
    }
}

/// The secret after `Bearer` or `Basic` of an authorization header; `word` is the scheme.
pub(super) fn authorization(text: &Text<'_>, word: &Range<usize>) -> Option<Found> {
    const TOKEN_BYTES_MIN: usize = 16;
    let value = value_after(text, word.end)?;
    let bytes = &text.bytes()[value.span.clone()];
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(b);
    let mixed = bytes.iter().any(u8::is_ascii_digit) && bytes.iter().any(u8::is_ascii_alphabetic);
    let accepted =
        bytes.len() >= TOKEN_BYTES_MIN && bytes.iter().all(token) && mixed && !is_stand_in(bytes);
    accepted.then_some(Found {
        class: Class::Credential,
        span: value.span,
        by_context: false,
    })
}

/// Whether the text below the key `own` may be a secret as a whole.
pub(super) fn may_be_of_key(own: &str) -> bool {
    is_of_sibling(own) || lexicon::may_name_secret(own)
}

/// Whether a sibling names what stands below the key `own`: `{"name": "password", "value": "x"}`.
fn is_of_sibling(own: &str) -> bool {
    matches!(own, "value" | "default" | "content")
}

/// The text as a whole, when the key above it names a secret.
pub(super) fn of_key(text: &Text<'_>) -> Option<Found> {
    let name = if is_of_sibling(text.names.own) {
        text.names.sibling
    } else {
        text.names.own
    };
    if !lexicon::may_name_secret(name) {
        return None;
    }
    let trimmed = text.text.trim();
    if trimmed.len() > VALUE_BYTES_MAX {
        return None;
    }
    let secret = secret(ending(name))?;
    let start = text.text.len() - text.text.trim_start().len();
    let value = Value {
        span: start..start + trimmed.len(),
        quoted: true,
    };
    accept(text, &value, secret, Style::PLAIN)
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Secret {
    Password,
    Token,
}

#[derive(Debug)]
struct Value {
    span: Range<usize>,
    quoted: bool,
}

/// How a secret is written down.
#[derive(Clone, Copy)]
struct Style {
    /// In a sentence, where most words after a colon are no secrets.
    prose: bool,
    /// As a member of something: `form.password = field.value`.
    named_like_code: bool,
    /// Where nothing but a value can stand, such as in the cell of a table.
    cell: bool,
}

impl Style {
    const PLAIN: Self = Self {
        prose: false,
        named_like_code: false,
        cell: false,
    };
    const CELL: Self = Self {
        prose: false,
        named_like_code: true,
        cell: true,
    };
}

fn secret(named: Hints) -> Option<Secret> {
    if named.any(Hints::OTHER) {
        None
    } else if named.any(Hints::PASSWORD) {
        Some(Secret::Password)
    } else if named.any(Hints::TOKEN) {
        Some(Secret::Token)
    } else {
        None
    }
}

/// The name before a sign.
struct Named<'a> {
    /// The words before the sign.
    words: &'a str,
    /// Where the last of them begins.
    start: usize,
    /// Where the first of them begins.
    first: usize,
}

impl<'a> Named<'a> {
    fn before(text: &Text<'a>, at: usize) -> Option<Self> {
        let span = words_before(text, at)?;
        let words = text.text.get(span.clone())?;
        let last = words
            .rfind(' ')
            .map_or(words.len(), |space| words.len() - space - 1);
        Some(Self {
            words,
            start: span.end - last,
            first: span.start,
        })
    }

    /// What kind of secret is named, if any.
    fn secret(&self, text: &Text<'a>) -> Option<Secret> {
        let last = &self.words[self.start - self.first..];
        if lexicon::may_end_secret(last)
            && let Some(found) = secret(ending(self.words))
        {
            return Some(found);
        }
        match last {
            // `password is: x`
            "is" | "was" | "lautet" | "ist" | "est" | "es" | "jest" | "\u{e8}" | "\u{e9}" => {
                secret(text.ahead(self.start).0)
            }
            // `name="password" value="x"`, `field=password value=x`
            "value" | "Value" | "default" | "valor" | "wert" => {
                let near = text.ahead(self.start).1;
                let kinds = [
                    (Hints::PASSWORD, Secret::Password),
                    (Hints::TOKEN, Secret::Token),
                ];
                kinds
                    .into_iter()
                    .find(|(hints, _)| near.any(*hints))
                    .map(|(_, kind)| kind)
            }
            // `val password: String = "x"`
            _ if text.byte(self.start + last.len()) == b' ' && self.is_type(text) => {
                let before = text.text[..self.first].trim_end_matches([' ', '&']);
                secret(ending(Self::before(text, before.len() - 1)?.words))
            }
            _ if of_option(text, self.start) => Some(Secret::Password),
            // `password for the wiki: x`
            _ => self
                .named_of()
                .or_else(|| self.asked(text))
                .and_then(|named| secret(ending(named)))
                .filter(|found| *found == Secret::Password),
        }
    }

    /// What stands before `for` and the like, which say where a password is one.
    fn named_of(&self) -> Option<&'a str> {
        let mut at = 0;
        for word in self.words.split(' ') {
            let of = matches!(
                word,
                "for"
                    | "f\u{fc}r"
                    | "pour"
                    | "para"
                    | "per"
                    | "voor"
                    | "do"
                    | "dla"
                    | "of"
                    | "von"
                    | "de"
                    | "del"
            );
            if of && at > 0 {
                return self.words.get(..at - 1);
            }
            at += word.len() + 1;
        }
        None
    }

    /// What was asked for right before: `Password? Customer: x`.
    fn asked(&self, text: &Text<'a>) -> Option<&'a str> {
        let question = text.text[..self.first].trim_ascii_end().strip_suffix('?')?;
        Self::before(text, question.len()).map(|named| named.words)
    }

    /// Whether the name is that of a type, after a colon.
    fn is_type(&self, text: &Text<'_>) -> bool {
        let before = &text.bytes()[..self.first];
        let trimmed = before.trim_ascii_end();
        before.len() - trimmed.len() <= 2
            && (trimmed.ends_with(b":") || trimmed.ends_with(b": &"))
            && self
                .words
                .trim()
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_')
    }
}

/// Where the words right before `at` stand.
fn words_before(text: &Text<'_>, at: usize) -> Option<Range<usize>> {
    let bytes = text.bytes();
    let mut end = at;
    while at - end < 4
        && matches!(
            text.before(end),
            b' ' | b'"' | b'\'' | b']' | b'\\' | b'`' | b'*' | b':' | b'>'
        )
    {
        end -= 1;
    }
    // `Password (temporary): x`
    if text.before(end) == b')' {
        let window = &bytes[end.saturating_sub(NAME_BYTES_MAX)..end];
        if let Some(open) = memchr::memrchr(b'(', window) {
            end -= window.len() - open;
            end -= usize::from(text.before(end) == b' ');
        }
    }
    // Leaders: `Password . . . . : x`
    let leaders = bytes[..end]
        .iter()
        .rev()
        .take(NAME_BYTES_MAX)
        .take_while(|b| matches!(b, b' ' | b'.'))
        .count();
    if leaders >= 4 {
        end -= leaders;
    }
    let mut start = end;
    let (mut spaces, floor_at) = (0, end.saturating_sub(NAME_BYTES_MAX));
    while start > floor_at {
        match bytes[start - 1] {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | 0x80.. => {}
            b' ' if spaces < 3 => spaces += 1,
            _ => break,
        }
        start -= 1;
    }
    if start == end || !bytes[end - 1].is_ascii_alphanumeric() && bytes[end - 1] < 0x80 {
        return None;
    }
    let words = text.text.get(floor(text.text, start)..end)?;
    let masked = text.before(start) == b'[' && text.byte(end) == b']';
    if masked && !words.bytes().any(|b| b.is_ascii_lowercase()) {
        return None;
    }
    Some(end - words.len()..end)
}

/// The value that begins after spaces and an opening quote at `at`.
fn value_after(text: &Text<'_>, mut at: usize) -> Option<Value> {
    let spaces = at;
    while matches!(text.byte(at), b' ' | b'\t') && at - spaces < 8 {
        at += 1;
    }
    // Markdown: `**Password:** x`.
    if text.bytes()[at..].starts_with(b"** ") || text.bytes()[at..].starts_with(b"* ") {
        at += 1 + usize::from(text.byte(at + 1) == b'*') + 1;
    }
    if let Some(value) = in_guillemets(text, at) {
        return Some(value);
    }
    let escaped = text.byte(at) == b'\\' && matches!(text.byte(at + 1), b'"' | b'\'');
    at += usize::from(escaped);
    let quote = text.byte(at);
    let quoted = matches!(quote, b'"' | b'\'' | b'`');
    at += usize::from(quoted);
    let rest = text.bytes().get(at..)?;
    let rest = &rest[..rest.len().min(VALUE_BYTES_MAX)];
    // What is cut here has too many signs of assignment for a value.
    let cut = memchr::memchr_iter(b'=', rest).nth(ASSIGNMENTS_MAX + 1);
    let rest = &rest[..cut.filter(|_| !quoted).unwrap_or(rest.len())];
    let end = if quoted {
        rest.iter()
            .position(|b| *b == quote || *b == b'\n' || escaped && *b == b'\\')?
    } else {
        let stop = |b: &u8| {
            b.is_ascii_whitespace()
                || matches!(
                    b,
                    b'"' | b'\'' | b'`' | b',' | b';' | b'<' | b'>' | b'|' | b'\\'
                )
        };
        let in_query = |b: &u8| *b == b'&';
        rest.iter()
            .position(|b| stop(b) || in_query(b))
            .unwrap_or(rest.len())
    };
    let mut end = at + end;
    while !quoted && end > at && matches!(text.before(end), b'.' | b')' | b']' | b'}' | b':' | b'?')
    {
        end -= 1;
    }
    (end > at && text.text.is_char_boundary(end)).then_some(Value {
        span: at..end,
        quoted,
    })
}

/// The value between French, German or typographic quotation marks at `at`.
fn in_guillemets(text: &Text<'_>, at: usize) -> Option<Value> {
    const MARKS: [(&str, &str); 3] = [
        ("\u{ab}", "\u{bb}"),
        ("\u{201e}", "\u{201c}"),
        ("\u{201c}", "\u{201d}"),
    ];
    if text.byte(at) < 0x80 {
        return None;
    }
    let rest = text
        .text
        .get(at..floor(text.text, text.text.len().min(at + VALUE_BYTES_MAX)))?;
    let (open, close) = MARKS.into_iter().find(|(open, _)| rest.starts_with(open))?;
    let inner = &rest[open.len()..];
    let inner = &inner[..inner.find(close)?];
    let value = inner.trim();
    let start = at + open.len() + inner.find(value)?;
    (!value.is_empty()).then_some(Value {
        span: start..start + value.len(),
        quoted: true,
    })
}

fn accept(text: &Text<'_>, value: &Value, secret: Secret, style: Style) -> Option<Found> {
    let bytes = &text.bytes()[value.span.clone()];
    let bytes_min = match secret {
        Secret::Password => 4,
        Secret::Token => 8,
    };
    if bytes.len() < bytes_min {
        return None;
    }
    let kinds = Kinds::of(bytes);
    if kinds.space {
        return None;
    }
    let plausible = match secret {
        Secret::Password if style.cell && kinds.lower && kinds.inner_uppers > 0 => true,
        // A word alone is as often a value of a form, a type or a function.
        Secret::Password if value.quoted && !style.named_like_code => {
            kinds.digit || kinds.symbol || kinds.lower && kinds.upper || bytes.len() >= 6
        }
        Secret::Password if style.prose => {
            kinds.digit && (kinds.lower || kinds.upper)
                || kinds.symbol && kinds.lower && bytes.len() >= 8 && kinds.strong
                || kinds.lower && kinds.inner_uppers >= 3 && bytes.len() >= 8
        }
        Secret::Password => kinds.digit || kinds.strong,
        Secret::Token => kinds.digit && (kinds.lower || kinds.upper) && bytes.len() >= 10,
    };
    let accepted = plausible && !is_stand_in(bytes) && !is_code(bytes, value.quoted);
    accepted.then(|| Found {
        class: if is_vendors(text, &value.span) {
            Class::ApiKey
        } else {
            Class::Credential
        },
        span: value.span.clone(),
        by_context: false,
    })
}

/// Whether form and name together are those of a vendor's key: those of AWS, Azure and Twilio have
/// no prefix to know them by.
fn is_vendors(text: &Text<'_>, span: &Range<usize>) -> bool {
    const NEAR_BYTES_MAX: usize = 96;
    let value = &text.bytes()[span.clone()];
    let base64 = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    let names: &[&str] = match value.len() {
        32 if value.iter().all(u8::is_ascii_hexdigit) => &["twilio"],
        40 if value.iter().all(base64) && !value.iter().all(u8::is_ascii_hexdigit) => {
            &["secretaccesskey", "awssecret", "secretkey", "aws"]
        }
        88 if value.ends_with(b"==") && value[..86].iter().all(base64) => {
            &["accountkey", "accesskey", "azure", "storage"]
        }
        _ => return false,
    };
    let start = floor(text.text, span.start.saturating_sub(NEAR_BYTES_MAX));
    let header = text.text[..span.start]
        .split('\n')
        .next()
        .unwrap_or_default();
    let header = &header[..floor(header, header.len().min(NEAR_BYTES_MAX))];
    let near = [
        &text.text[start..span.start],
        header,
        text.names.own,
        text.names.parent,
    ];
    near.into_iter().any(|part| {
        let plain: String = part
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|c| c.to_ascii_lowercase())
            .collect();
        names.iter().any(|name| plain.contains(name))
    })
}

/// Which kinds of characters a value has.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says one thing of a text"
)]
#[derive(Default)]
struct Kinds {
    digit: bool,
    lower: bool,
    upper: bool,
    symbol: bool,
    /// Symbols that names and paths do not have.
    strong: bool,
    space: bool,
    /// Capitals after the first character.
    inner_uppers: usize,
}

impl Kinds {
    fn of(bytes: &[u8]) -> Self {
        let mut kinds = Self::default();
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'a'..=b'z' => kinds.lower = true,
                b'A'..=b'Z' => {
                    kinds.upper = true;
                    kinds.inner_uppers += usize::from(at > 0);
                }
                b'0'..=b'9' => kinds.digit = true,
                _ => {
                    kinds.symbol = true;
                    kinds.strong |= b"!@#$%^&*+?~".contains(byte);
                    kinds.space |= byte.is_ascii_whitespace();
                }
            }
        }
        kinds
    }
}

/// Whether a value stands for one that is to be filled in, or has been taken out.
fn is_stand_in(bytes: &[u8]) -> bool {
    const WORDS: [&[u8]; 17] = [
        b"your",
        b"xxx",
        b"redacted",
        b"placeholder",
        b"change_me",
        b"changeme",
        b"replace",
        b"insert",
        b"todo",
        b"<",
        b"${",
        b"{{",
        b"%(",
        b"process.env",
        b"os.environ",
        b"getenv",
        b"secretref",
    ];
    const WHOLE: [&[u8]; 22] = [
        b"null",
        b"none",
        b"true",
        b"false",
        b"undefined",
        b"string",
        b"required",
        b"optional",
        b"hidden",
        b"password",
        b"passwort",
        b"secret",
        b"token",
        b"unset",
        b"empty",
        b"masked",
        b"encrypted",
        b"missing",
        b"invalid",
        b"expired",
        b"number",
        b"bearer",
    ];
    let same = bytes.iter().all(|b| b == &bytes[0]);
    let masked = bytes.first() == Some(&b'[') && bytes.last() == Some(&b']');
    let stars = bytes
        .iter()
        .filter(|b| matches!(b, b'*' | b'.' | 0x80..))
        .count()
        * 2
        > bytes.len();
    same || masked
        || stars && !bytes.iter().any(u8::is_ascii_digit)
        || bytes.ends_with(b"***")
        || WHOLE.iter().any(|word| bytes.eq_ignore_ascii_case(word))
        || WORDS.iter().any(|word| {
            bytes
                .windows(word.len())
                .any(|window| window.eq_ignore_ascii_case(word))
        })
}

/// Whether a value is an expression instead of a literal.
fn is_code(bytes: &[u8], quoted: bool) -> bool {
    let begins = bytes.first().copied().unwrap_or(0);
    let variable = matches!(begins, b'$' | b'%' | b'{' | b'<' | b'(' | b'&') && !quoted
        || begins == b'$'
            && bytes
                .get(1)
                .is_some_and(|b| b.is_ascii_uppercase() || matches!(b, b'{' | b'('));
    if quoted {
        let address = bytes.starts_with(b"http")
            || bytes.starts_with(b"arn:")
            || bytes.starts_with(b"vault:");
        let path = matches!(begins, b'/' | b'.')
            && bytes.split(|b| *b == b'/').count() > 2
            && !bytes.contains(&b'=');
        return variable
            || address
            || path
                && bytes
                    .iter()
                    .all(|b| b.is_ascii_lowercase() || matches!(b, b'/' | b'.' | b'_' | b'-'));
    }
    let call = bytes.contains(&b'(') || bytes.contains(&b'[') && bytes.contains(&b']');
    let member = bytes.split(|b| *b == b'.').count() > 1
        && bytes.split(|b| *b == b'.').all(|part| {
            part.first()
                .is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
                && part.iter().all(|b| b.is_ascii_alphabetic() || *b == b'_')
        });
    let identifier = bytes.iter().all(|b| b.is_ascii_alphabetic() || *b == b'_');
    variable || call || member || identifier || begins == b'/' || bytes.starts_with(b"http")
}
