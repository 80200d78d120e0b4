//! Secrets that show by their form: tokens of known vendors, JWTs, private keys.

use std::ops::Range;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use super::{class::Class, context::Text, search::Found};

/// The characters of a token after its prefix.
#[derive(Clone, Copy, Debug)]
enum Alphabet {
    /// Letters and digits.
    Alnum,
    /// Letters, digits, `-` and `_`.
    Base64Url,
    /// Letters, digits, `-`, `_` and `.`.
    Dotted,
    /// Lower-case hexadecimal digits.
    Hex,
    /// Hexadecimal digits and `-`.
    HexDash,
    /// Upper-case letters and digits.
    Upper,
    /// Letters, digits and `-`.
    Dash,
    /// Letters, digits, `-`, `_` and `/`.
    Path,
    /// Letters, digits and `_`.
    Word,
}

impl Alphabet {
    fn has(self, byte: u8) -> bool {
        match self {
            Self::Alnum => byte.is_ascii_alphanumeric(),
            Self::Base64Url => byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'),
            Self::Dash => byte.is_ascii_alphanumeric() || byte == b'-',
            Self::Dotted => {
                byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'=')
            }
            Self::Hex => byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'),
            Self::HexDash => byte.is_ascii_hexdigit() || byte == b'-',
            Self::Path => byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'/'),
            Self::Upper => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Word => byte.is_ascii_alphanumeric() || byte == b'_',
        }
    }
}

/// The form of a vendor's token: prefix, alphabet, and how many characters follow.
struct Form(&'static str, Alphabet, Range<usize>);

/// Shorter tokens than this are not of any vendor here.
pub(super) const TOKEN_BYTES_MIN: usize = 20;
/// Longer tokens than this are not of any vendor here.
const TOKEN_BYTES_MAX: usize = 600;

use Alphabet::{Alnum, Base64Url, Dash, Dotted, Hex, HexDash, Path, Upper, Word};

/// By prefix; of two prefixes of one vendor the longer one stands first.
const FORMS: &[Form] = &[
    Form("tbk_", Alnum, 49..50),
    Form("AKIA", Upper, 16..17),
    Form("ASIA", Upper, 16..17),
    Form("ABIA", Upper, 16..17),
    Form("ACCA", Upper, 16..17),
    Form("ABSK", Dotted, 100..300),
    Form("github_pat_", Word, 36..260),
    Form("ghp_", Alnum, 36..260),
    Form("gho_", Alnum, 36..260),
    Form("ghu_", Alnum, 36..260),
    Form("ghs_", Base64Url, 36..TOKEN_BYTES_MAX),
    Form("ghr_", Alnum, 36..260),
    Form("glpat-", Dotted, 20..300),
    Form("gldt-", Dotted, 20..300),
    Form("glrt-", Dotted, 20..300),
    Form("glptt-", Dotted, 20..300),
    Form("glcbt-", Dotted, 20..300),
    Form("glsoat-", Dotted, 20..300),
    Form("glft-", Dotted, 20..300),
    Form("glagent-", Dotted, 20..300),
    Form("gloas-", Dotted, 20..300),
    Form("glimt-", Dotted, 20..300),
    Form("xoxb-", Dash, 20..300),
    Form("xoxp-", Dash, 20..300),
    Form("xoxa-", Dash, 20..300),
    Form("xoxr-", Dash, 20..300),
    Form("xoxs-", Dash, 20..300),
    Form("xoxo-", Dash, 20..300),
    Form("xoxc-", Dash, 20..300),
    Form("xoxd-", Dotted, 20..400),
    Form("xoxe.xoxp-", Dash, 20..300),
    Form("xoxe-", Dash, 20..300),
    Form("xapp-", Dash, 20..300),
    Form("sk_live_", Alnum, 16..260),
    Form("sk_test_", Alnum, 16..260),
    Form("rk_live_", Alnum, 16..260),
    Form("rk_test_", Alnum, 16..260),
    Form("pk_live_", Alnum, 16..260),
    Form("pk_test_", Alnum, 16..260),
    Form("whsec_", Dotted, 24..100),
    Form("sk-ant-", Base64Url, 24..200),
    Form("sk-proj-", Base64Url, 24..300),
    Form("sk-svcacct-", Base64Url, 24..300),
    Form("sk-admin-", Base64Url, 24..300),
    Form("sk-or-v1-", Hex, 64..65),
    Form("sk-", Base64Url, 32..200),
    Form("gsk_", Alnum, 40..80),
    Form("xai-", Alnum, 60..120),
    Form("r8_", Alnum, 37..41),
    Form("pplx-", Alnum, 40..80),
    Form("AIza", Base64Url, 35..36),
    Form("GOCSPX-", Base64Url, 28..29),
    Form("ya29.", Dotted, 20..TOKEN_BYTES_MAX),
    Form("npm_", Alnum, 36..37),
    Form("pypi-", Base64Url, 60..TOKEN_BYTES_MAX),
    Form("rubygems_", Hex, 48..49),
    Form("dckr_pat_", Base64Url, 27..60),
    Form("SG.", Dotted, 60..80),
    Form("key-", Hex, 32..33),
    Form("hf_", Alnum, 30..50),
    Form("dapi", HexDash, 32..35),
    Form("dop_v1_", Hex, 64..65),
    Form("doo_v1_", Hex, 64..65),
    Form("dor_v1_", Hex, 64..65),
    Form("shpat_", Alnum, 32..33),
    Form("shpca_", Alnum, 32..33),
    Form("shppa_", Alnum, 32..33),
    Form("shpss_", Alnum, 32..33),
    Form("hvs.", Base64Url, 24..300),
    Form("hvb.", Base64Url, 24..400),
    Form("hvr.", Base64Url, 24..400),
    Form("AC", Hex, 32..33),
    Form("SK", Hex, 32..33),
    Form("sq0atp-", Base64Url, 22..60),
    Form("sq0csp-", Base64Url, 40..60),
    Form("lin_api_", Alnum, 32..60),
    Form("ntn_", Alnum, 40..60),
    Form("secret_", Alnum, 43..44),
    Form("figd_", Base64Url, 36..60),
    Form("PMAK-", HexDash, 50..80),
    Form("NRAK-", Upper, 27..28),
    Form("glc_", Dotted, 32..400),
    Form("glsa_", Word, 32..60),
    Form("sntrys_", Dotted, 60..500),
    Form("sntryu_", Hex, 64..65),
    Form("dp.pt.", Alnum, 40..50),
    Form("dp.st.", Dotted, 40..80),
    Form("pul-", Hex, 40..41),
    Form("tskey-", Dash, 24..120),
    Form("atlasv1.", Dotted, 60..100),
    Form("ATATT3", Dotted, 60..300),
    Form("patP", Dotted, 60..90),
    Form("AGE-SECRET-KEY-1", Upper, 58..59),
    Form("CFPAT-", Base64Url, 40..60),
    Form("FLWSECK_TEST-", Alnum, 12..60),
    Form("nvapi-", Base64Url, 60..80),
    Form("sbp_", Hex, 40..41),
    Form("sb_secret_", Base64Url, 20..60),
    Form("pscale_tkn_", Dotted, 32..80),
    Form("pscale_pw_", Dotted, 32..80),
    Form("oy2", Alnum, 43..44),
    // Whoever knows the address of a webhook may post to it.
    Form("https://hooks.slack.com/services/T", Path, 30..100),
    Form("hooks.slack.com/services/T", Path, 30..100),
    Form("https://discord.com/api/webhooks/", Path, 60..140),
    Form("https://discordapp.com/api/webhooks/", Path, 60..140),
];

/// Which pairs of first characters a prefix has: one look for every word of a text.
#[derive(Debug)]
pub(super) struct Prefixes {
    pairs: Box<[u64; 1024]>,
    /// Indices of forms by the first byte of their prefix.
    forms: Vec<Vec<usize>>,
}

impl Prefixes {
    pub(super) fn new() -> Self {
        let mut pairs = Box::new([0u64; 1024]);
        let mut forms = vec![Vec::new(); 256];
        for (index, Form(prefix, ..)) in FORMS.iter().enumerate() {
            let bytes = prefix.as_bytes();
            forms[usize::from(bytes[0])].push(index);
            let pair = usize::from(bytes[0]) << 8 | usize::from(bytes[1]);
            pairs[pair >> 6] |= 1 << (pair & 63);
        }
        let pair = usize::from(b'e') << 8 | usize::from(b'y');
        pairs[pair >> 6] |= 1 << (pair & 63);
        Self { pairs, forms }
    }

    pub(super) fn may_begin(&self, first: u8, second: u8) -> bool {
        let pair = usize::from(first) << 8 | usize::from(second);
        self.pairs[pair >> 6] & (1 << (pair & 63)) != 0
    }
}

/// The token or JWT that begins at `start`.
pub(super) fn token(text: &Text<'_>, start: usize, prefixes: &Prefixes) -> Option<Found> {
    let rest = &text.bytes()[start..];
    if rest.starts_with(b"ey") {
        return jwt(text, start);
    }
    let third = text.byte(start + 2);
    for index in &prefixes.forms[usize::from(text.byte(start))] {
        let Form(prefix, alphabet, lengths) = &FORMS[*index];
        let differs = prefix.as_bytes().get(2).is_some_and(|byte| *byte != third);
        if differs || !rest.starts_with(prefix.as_bytes()) {
            continue;
        }
        let tail = &rest[prefix.len()..rest.len().min(prefix.len() + TOKEN_BYTES_MAX)];
        let mut len = tail
            .iter()
            .position(|b| !alphabet.has(*b))
            .unwrap_or(tail.len());
        while len > 0 && matches!(tail[len - 1], b'.' | b'-') {
            len -= 1;
        }
        let end = start + prefix.len() + len;
        let whole = !text.byte(end).is_ascii_alphanumeric();
        if whole && lengths.contains(&len) && is_random(&tail[..len]) {
            let class = if *prefix == "AGE-SECRET-KEY-1" {
                Class::PrivateKey
            } else {
                Class::ApiKey
            };
            return Some(Found {
                class,
                span: start..end,
                by_context: false,
            });
        }
    }
    None
}

/// A token that begins with a long word followed by `.` or `:`: Discord's, Telegram's.
pub(super) fn parted(text: &Text<'_>, word: &Range<usize>) -> Option<Found> {
    let rest = &text.bytes()[word.end..];
    let run = |alphabet: Alphabet, from: usize, most: usize| {
        let part = &rest[from.min(rest.len())..rest.len().min(from + most)];
        part.iter()
            .position(|b| !alphabet.has(*b))
            .unwrap_or(part.len())
    };
    let found = |len: usize| {
        let span = word.start..word.end + len;
        let whole = !text.byte(span.end).is_ascii_alphanumeric();
        whole.then_some(Found {
            class: Class::ApiKey,
            span,
            by_context: false,
        })
    };
    match rest.first() {
        Some(b':') if (8..=10).contains(&word.len()) => {
            let len = run(Base64Url, 1, 40);
            (len == 35 && rest[1..].starts_with(b"AA")).then(|| found(1 + len))?
        }
        Some(b'.')
            if (23..=28).contains(&word.len()) && matches!(text.byte(word.start), b'M'..=b'O') =>
        {
            let middle = run(Base64Url, 1, 8);
            let last = run(Base64Url, middle + 2, 46);
            let shaped = middle == 6 && rest.get(7) == Some(&b'.') && (27..=45).contains(&last);
            shaped.then(|| found(2 + middle + last))?
        }
        // A webhook of Slack or an identity of Google is known by what stands around it.
        _ => None,
    }
}

/// Whether a token has enough different characters to be one, and not a stand-in such as `xxxx`.
fn is_random(tail: &[u8]) -> bool {
    const DISTINCT_MIN: u32 = 7;
    let seen = tail
        .iter()
        .fold(0u128, |seen, byte| seen | 1 << (byte & 127));
    let stand_in = |word: &[u8]| {
        tail.windows(word.len())
            .any(|window| window.eq_ignore_ascii_case(word))
    };
    seen.count_ones() >= DISTINCT_MIN.min(u32::try_from(tail.len() / 2).unwrap_or(DISTINCT_MIN))
        && !stand_in(b"your")
        && !stand_in(b"xxxx")
        && !stand_in(b"redacted")
        && !stand_in(b"placeholder")
}

/// A JSON web token or its encrypted kin: parts of base64url, the first a JSON object with `alg`.
fn jwt(text: &Text<'_>, start: usize) -> Option<Found> {
    const PART_BYTES_MAX: usize = 16 * 1024;
    const HEADER_BYTES_MIN: usize = 12;
    let bytes = text.bytes();
    if !bytes[start..].starts_with(b"eyJ") && !bytes[start..].starts_with(b"ewo") {
        return None;
    }
    let part = |from: usize| {
        let rest = &bytes[from.min(bytes.len())..bytes.len().min(from + PART_BYTES_MAX)];
        from + rest
            .iter()
            .position(|b| !Base64Url.has(*b))
            .unwrap_or(rest.len())
    };
    let header = part(start);
    if header - start < HEADER_BYTES_MIN || text.byte(header) != b'.' {
        return None;
    }
    let mut end = part(header + 1);
    let mut parts = 2;
    while parts < 5 && text.byte(end) == b'.' {
        let next = part(end + 1);
        if next == end + 1 && !(parts == 2 && end > header + 4) && text.byte(next) != b'.' {
            break;
        }
        (end, parts) = (next, parts + 1);
    }
    let decoded = URL_SAFE_NO_PAD.decode(&bytes[start..header]).ok()?;
    let object =
        decoded.first() == Some(&b'{') && decoded.windows(5).any(|window| window == b"\"alg\"");
    (object && parts >= 3).then_some(Found {
        class: Class::Jwt,
        span: start..end,
        by_context: false,
    })
}

/// Whether the body of a key is one of an example: something was left out, or stands for it.
fn is_abridged(body: &[u8]) -> bool {
    const DISTINCT_MIN: u32 = 8;
    let seen = body
        .iter()
        .fold(0u128, |seen, byte| seen | 1 << (byte & 127));
    let has = |word: &[u8]| memchr::memmem::find(body, word).is_some();
    // A path is as long as a line of a key; it has no such mixture.
    let random = |line: &[u8]| {
        let count = |test: fn(&u8) -> bool| line.iter().filter(|b| test(b)).count();
        line.len() >= 24 && count(u8::is_ascii_uppercase) >= 3 && count(u8::is_ascii_lowercase) >= 3
    };
    let key = |b: &u8| !(b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'='));
    if !body.split(key).any(random) {
        return true;
    }
    seen.count_ones() < DISTINCT_MIN
        || [
            &b"..."[..],
            b"XXXX",
            b"xxxx",
            b"REDACTED",
            b"redacted",
            b"_KEY_",
            b"<",
        ]
        .into_iter()
        .any(has)
}

/// A private key in armour whose first dashes are at `start`.
pub(super) fn private_key(text: &Text<'_>, start: usize) -> Option<Found> {
    const LABEL_BYTES_MAX: usize = 64;
    const BODY_BYTES_MAX: usize = 64 * 1024;
    // That of Ed25519, the shortest, has 64.
    const KEY_CHARS_MIN: usize = 56;
    const RUN_CHARS_MIN: usize = 24;
    let bytes = text.bytes();
    let rest = bytes[start..].strip_prefix(b"-----BEGIN ")?;
    let label = &rest[..rest.len().min(LABEL_BYTES_MAX)];
    let close = memchr::memmem::find(label, b"-----")?;
    if !label[..close].ends_with(b"PRIVATE KEY") && &label[..close] != b"PGP PRIVATE KEY BLOCK" {
        return None;
    }
    let body = start + 11 + close + 5;
    let (mut at, mut chars, mut run, mut longest) = (body, 0, 0, 0);
    let stop = bytes.len().min(body + BODY_BYTES_MAX);
    while at < stop && !bytes[at..].starts_with(b"-----") {
        match bytes[at] {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' | b'=' => {
                (chars, run) = (chars + 1, run + 1);
                longest = longest.max(run);
            }
            // Lines may be folded, quoted, escaped or indented; armour may have headers.
            b' ' | b'\n' | b'\r' | b'\t' | b'\\' | b'-' | b',' | b':' | b'.' | b'>' | b'"'
            | b'\'' | b'#' | b'*' | b'|' | b'_' | b'<' | b'(' | b')' | b'@' => run = 0,
            _ => break,
        }
        at += 1;
    }
    // What is written about keys has words, none as long as a line of a key.
    let body = &bytes[body..at];
    if chars < KEY_CHARS_MIN || longest < RUN_CHARS_MIN || is_abridged(body) {
        return None;
    }
    let tail = &bytes[at..bytes.len().min(at + LABEL_BYTES_MAX)];
    let end = if tail.starts_with(b"-----END ") {
        memchr::memmem::find(&tail[9..], b"-----").map_or(at, |close| at + 9 + close + 5)
    } else {
        at
    };
    Some(Found {
        class: Class::PrivateKey,
        span: start..end,
        by_context: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_is_shorter_than_the_least() {
        for Form(prefix, _, lens) in FORMS {
            assert!(prefix.len() + lens.start >= TOKEN_BYTES_MIN, "{prefix}");
        }
    }
}
