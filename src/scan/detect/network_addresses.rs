//! E-mail and IP addresses.

use std::{net::Ipv6Addr, ops::Range};

use super::{
    boundary,
    digits::{DigitGroups, Separator},
};
use crate::scan::{
    class::Class,
    context::{Text, is_accent},
    finding::FoundValue,
    lexicon::{Hints, is_listed},
};

/// The address whose `@` is at `sign`, and which begins at `floor` or later.
pub(in crate::scan) fn find_email(
    text: &Text<'_>,
    sign: usize,
    floor: usize,
) -> Option<FoundValue> {
    const LOCAL_BYTES_MAX: usize = 64;
    let mut start = sign;
    // In other scripts nothing may part the address from the words before it but a space.
    let mut before = text.text[..sign].chars();
    let last = before.rfind(|c| !is_accent(*c));
    let foreign = last.is_some_and(|c| !c.is_ascii() && !is_latin(c) && is_letter(c));
    while start > floor && sign - start < LOCAL_BYTES_MAX {
        let Some(width) = local_part_char_before(text, start, foreign) else {
            break;
        };
        start -= width;
    }
    let local = &text.text[start..sign];
    // An accent alone belongs to a letter of another script.
    let stray = |c| matches!(c, '.' | '-' | '+' | '\'' | '/' | '=' | '&' | '%') || is_accent(c);
    start = sign - local.trim_start_matches(stray).len();
    if start == sign || text.byte_before(sign) == b'.' || text.byte_before(start) == b'@' {
        return None;
    }
    let end = domain_end(text, sign + 1)?;
    let host = text.text.get(sign + 1..end)?;
    if !is_public(host) || is_login(text, start, end) {
        return None;
    }
    Some(FoundValue::by_value(Class::Email, start..end))
}

/// The width of the character before `at` when an address may begin with it, or have it before the `@`:
/// letters of Latin script, also those of which the accent is a character of its own.
fn local_part_char_before(text: &Text<'_>, at: usize, foreign: bool) -> Option<usize> {
    let byte = text.byte_before(at);
    if byte.is_ascii() {
        let sign = b"._-+'&#!~*".contains(&byte);
        return (byte.is_ascii_alphanumeric() || sign).then_some(1);
    }
    let c = text.text.get(..at)?.chars().next_back()?;
    (is_latin(c) || is_accent(c) || foreign && is_letter(c)).then_some(c.len_utf8())
}

fn is_latin(c: char) -> bool {
    matches!(c, '\u{c0}'..='\u{24f}' | '\u{1e00}'..='\u{1eff}')
}

/// A letter or digit of any script, or a mark that stands at one in those of India and their kin.
fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || is_accent(c) || matches!(c, '\u{900}'..='\u{eff}')
}

/// Where the domain that begins at `start` ends, when it has a point.
fn domain_end(text: &Text<'_>, start: usize) -> Option<usize> {
    const DOMAIN_BYTES_MAX: usize = 253;
    let mut end = start;
    while end - start < DOMAIN_BYTES_MAX {
        let byte = text.byte(end);
        let inner = matches!(byte, b'.' | b'-') && end > start && text.byte_before(end) != b'.';
        if !(byte.is_ascii_alphanumeric() || byte >= 0x80 || inner) {
            break;
        }
        end += 1;
    }
    while end > start && matches!(text.byte_before(end), b'.' | b'-') {
        end -= 1;
    }
    // Other scripts may follow a domain without a space: it ends where its last letters do.
    let host = text.text.get(start..end)?;
    let last = host.rfind('.')? + 1;
    let ascii = host[last..]
        .bytes()
        .take_while(|b| b.is_ascii_alphanumeric() || *b == b'-' && host[last..].starts_with("xn--"))
        .count();
    if ascii >= 2 {
        return Some(start + last + ascii);
    }
    let letters = host[last..]
        .chars()
        .take_while(|c| is_letter(*c) || *c == '-');
    end = start + last + letters.map(char::len_utf8).sum::<usize>();
    Some(end)
}

/// Whether the name could be one of mail on the internet.
fn is_public(host: &str) -> bool {
    // Units of systemd, files, and what RFC 2606 keeps from ever being an address.
    const NO_DOMAINS: &str = "invalid service socket mount timer target slice scope device swap automount png jpg jpeg gif \
        svg webp bmp ico css js json html xml txt yaml yml tgz zip pdf tar mjs";
    let Some((rest, last)) = host.rsplit_once('.') else {
        return false;
    };
    let lower = last.to_ascii_lowercase();
    let punycode = lower.starts_with("xn--");
    let letters = punycode
        || lower.chars().all(|c| is_letter(c) && !c.is_ascii_digit())
            && (2..=63).contains(&lower.len());
    letters && !rest.is_empty() && !is_listed(NO_DOMAINS, lower.as_bytes())
}

/// Whether what looks like an address names an account on a machine: `git@host:path`, or the
/// part of a URL before the host.
fn is_login(text: &Text<'_>, start: usize, end: usize) -> bool {
    const LOGIN_BYTES_MAX: usize = 128;
    let follows_path = text.byte(end) == b':' && {
        let next = text.byte(end + 1);
        next.is_ascii_alphabetic() && &text.bytes()[start..(start + 3).min(end)] == b"git"
            || matches!(next, b'/' | b'~')
    };
    if follows_path || text.bytes()[..start].ends_with(b"://") {
        return true;
    }
    let window = &text.bytes()[start.saturating_sub(LOGIN_BYTES_MAX)..start];
    let ends = |b: &u8| b.is_ascii_whitespace() || matches!(b, b'"' | b'/' | b'?' | b'\'');
    let url = window.iter().rposition(ends).map(|at| &window[..=at]);
    url.is_some_and(|before| before.ends_with(b"://"))
}

/// An IPv4 address, when `number` is one.
pub(in crate::scan) fn find_ipv4(number: &DigitGroups<'_>) -> Option<FoundValue> {
    if number.lens.len() != 4 || number.separator() != Some(Separator::Dot) || number.plus {
        return None;
    }
    let octets = [0, 1, 2, 3].map(|at| number.group(at));
    let leading_zero =
        |at: usize| number.lens[at] > 1 && octets[at] < 10u32.pow(u32::from(number.lens[at]) - 1);
    if octets.iter().any(|o| *o > 255) || (0..4).any(leading_zero) || is_reserved_address(octets) {
        return None;
    }
    let (text, end) = (number.text, number.span.end);
    let (next, later) = (text.byte(end), text.byte(end + 1));
    let ends = match next {
        b'-' => later.is_ascii_digit() || !later.is_ascii_alphanumeric(),
        b'.' => !later.is_ascii_alphanumeric(),
        b'_' => boundary::is_word_end_underscore(text, end),
        b'+' | b'@' | b'%' => false,
        _ => !next.is_ascii_alphanumeric(),
    };
    let before = text.byte_before(number.span.start);
    let pinned = matches!(before, b'=' | b'>' | b'<' | b'^' | b'~' | b'@')
        && matches!(
            text.byte_before(number.span.start.saturating_sub(1)),
            b'=' | b'>' | b'<' | b'~' | b'!'
        );
    if !ends || pinned || before == b'v' {
        return None;
    }
    let around = number.around();
    let port_or_prefix = matches!(next, b':' | b'/') && later.is_ascii_digit();
    let small = octets.iter().all(|o| *o < 32) && octets[0] != 10;
    let version = around.strong.intersects(Hints::VERSION)
        || around.nearby.intersects(Hints::VERSION)
            && !around.nearby.intersects(Hints::IP)
            && text.is_labelled(&number.span, Hints::VERSION);
    let named = around.strong.intersects(Hints::IP)
        && (!around.strong.intersects(Hints::VERSION)
            || text
                .preceding_label(number.span.start)
                .intersects(Hints::IP));
    let accept = named
        || port_or_prefix && !around.strong.intersects(Hints::VERSION)
        || !version && (!small || around.nearby.intersects(Hints::IP));
    accept.then(|| FoundValue::by_value(Class::IpAddress, number.span.clone()))
}

/// Addresses that are no one's: unspecified, loopback, multicast, masks, broadcast, and those of large
/// networks in tables of routes.
fn is_reserved_address(octets: [u32; 4]) -> bool {
    matches!(octets, [0 | 127 | 224.., ..] | [.., 0, 0])
}

/// The IPv6 address around the colon at `colon`; `floor` is where the search may look back to.
pub(in crate::scan) fn find_ipv6(
    text: &Text<'_>,
    colon: usize,
    floor: usize,
) -> Option<FoundValue> {
    const ADDRESS_BYTES_MAX: usize = 45;
    let part = |b: u8| b.is_ascii_hexdigit() || b == b':';
    let mut start = colon;
    while start > floor && colon - start < ADDRESS_BYTES_MAX && part(text.byte_before(start)) {
        start -= 1;
    }
    let mut end = colon;
    while end - start < ADDRESS_BYTES_MAX
        && (part(text.byte(end)) || text.byte(end) == b'.' && text.byte(end + 1).is_ascii_digit())
    {
        end += 1;
    }
    let glued = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let glued_after =
        text.byte(end).is_ascii_alphanumeric() || matches!(text.byte(end), b'_' | b'-');
    if glued(text.byte_before(start)) || glued_after {
        return None;
    }
    // The colon of a sentence is none of the address.
    if text.byte_before(end) == b':' && !text.bytes()[start..end].ends_with(b"::") {
        end -= 1;
    }
    let span = start..end;
    let written = text.text.get(span.clone())?;
    let address: Ipv6Addr = written.parse().ok()?;
    let groups = written.split(':').filter(|group| !group.is_empty()).count();
    let plain = groups >= 3 && written.bytes().any(|b| b.is_ascii_digit());
    let prefixed = matches!(address.segments()[0], 0x2000..=0x3FFF | 0xFC00..=0xFDFF | 0xFE80..=0xFEBF)
        && written.bytes().any(|b| b.is_ascii_digit());
    let network = written.ends_with("::") && text.byte(span.end) == b'/';
    if address.is_unspecified() || address.is_loopback() || network {
        return None;
    }
    (plain || prefixed || groups >= 2 && text.context(&span).strong.intersects(Hints::IP))
        .then_some(FoundValue::by_value(Class::IpAddress, span))
}

/// The part of a URL between `://` and the host that a password is in, if there is one.
pub(in crate::scan) fn userinfo_password(
    text: &Text<'_>,
    scheme_end: usize,
) -> Option<Range<usize>> {
    const USERINFO_BYTES_MAX: usize = 512;
    let rest = &text.bytes()[scheme_end..(scheme_end + USERINFO_BYTES_MAX).min(text.text.len())];
    let stop = rest
        .iter()
        .position(|b| {
            b.is_ascii_whitespace()
                || matches!(b, b'/' | b'"' | b'\'' | b'<' | b'>' | b'`' | b'?' | b'#')
        })
        .unwrap_or(rest.len());
    let at = memchr::memrchr(b'@', &rest[..stop])?;
    let colon = memchr::memchr(b':', &rest[..at])?;
    let stands_for_one = matches!(rest[colon + 1], b'$' | b'{' | b'<' | b'%' | b'*' | b'[')
        || rest[colon + 1..at].eq_ignore_ascii_case(b"password")
        || rest[colon + 1..at].eq_ignore_ascii_case(b"pass");
    let password = scheme_end + colon + 1..scheme_end + at;
    (!password.is_empty() && !stands_for_one).then_some(password)
}
