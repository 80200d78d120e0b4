//! Which parts of command lines and URLs are secret.

use std::ops::Range;

use super::secret_names::names_secret;

/// The length of `${TOKEN}`, or of `${TOKEN:` without the default, at the start of `text`: it
/// tells nothing, and is what the reader needs to see.
pub(super) fn reference_len(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("${")?;
    let forms = [
        ("env:", false),
        ("input:", false),
        ("file:", true),
        ("secret:", true),
    ];
    let (name, is_path) = forms
        .into_iter()
        .find_map(|(form, is_path)| Some((inner.strip_prefix(form)?, is_path)))
        .unwrap_or((inner, false));
    let is_legal = |c: char| {
        let is_word = c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        is_word || (is_path && matches!(c, '.' | '/'))
    };
    let end = name.find(|c: char| !is_legal(c))?;
    let ended = name[end..].starts_with(['}', ':']);
    ended.then(|| text.len() - name.len() + end + 1)
}

/// Whether `text` is the name of one variable: it tells nothing.
pub(super) fn is_reference(text: &str) -> bool {
    reference_len(text) == Some(text.len()) && text.ends_with('}')
}

/// Where the first secret of the command line `text` begins.
pub(super) fn first_secret_at(text: &str) -> Option<usize> {
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
pub(super) fn secret_offsets(words: &[&str]) -> Vec<Option<usize>> {
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

/// Where in `word`, which is no path and no URL, begins what nobody made up: a token.
pub(super) fn generated_start(word: &str) -> Option<usize> {
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
pub(in crate::config) fn is_generated(part: &str) -> bool {
    const PREFIXES: [&str; 28] = [
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
        "tba_",
        "tbk_",
        "tbl_",
        "tbr_",
        "tbs_",
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

/// User, password, query, fragment and generated parts of the path of every URL in `text`.
pub(super) fn url_secrets(text: &str) -> Vec<Range<usize>> {
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
