//! URIs as servers may understand them, where a rule has only their text: `..` and escapes lead a
//! server to another resource than the one that a glob was tried on.
//!
//! Called by rules about resources alone; what is sent to the server stays as it was written. What
//! URL parsers do beyond RFC 3986 is in the URL Standard of the WHATWG, which many servers follow.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, Ipv6Addr},
};

use icu_normalizer::ComposingNormalizerBorrowed;

/// What spellings begin with that do not tell upper from lower case: no URI begins so.
const FOLDED_MARK: char = '\u{1}';

/// Ports that stand for themselves when no port is written.
const DEFAULT_PORTS: [(&str, u16); 10] = [
    ("ftp", 21),
    ("http", 80),
    ("https", 443),
    ("mongodb", 27017),
    ("mysql", 3306),
    ("postgres", 5432),
    ("postgresql", 5432),
    ("redis", 6379),
    ("ws", 80),
    ("wss", 443),
];

/// Whether nobody can tell by `uri` what its server makes of it: its path leads upwards, however
/// that is escaped (RFC 3986, section 5.2.4), or it has what is legal in no URI and what parsers drop
/// or take for something else (control characters, space around it, backslashes, hosts in disguise).
pub(crate) fn is_ambiguous(uri: &str) -> bool {
    if uri.trim() != uri || uri.contains(|c: char| c.is_control() || c == '\\') {
        return true;
    }
    let (_, rest) = uri.split_once(':').unwrap_or(("", uri));
    if authority(rest).is_some_and(|host| !host.is_ascii() || host.contains('%')) {
        return true;
    }
    let path = &uri[..path_end(uri)];
    if !path.contains("..") && !path.contains('%') {
        return false;
    }
    let bytes = percent_decode(path, |byte| matches!(byte, b'.' | b'/' | b'\\'));
    bytes.contains(&b'\\') || {
        let mut segments = bytes.split(|byte| matches!(byte, b'/' | b':'));
        // Some take what follows a `;` for a parameter, and no part of the name.
        segments.any(|segment| segment == b".." || segment.starts_with(b"..;"))
    }
}

/// The part of `uri` that says which resource it is, where that is not all of it: nobody sends a fragment
/// on, a file has no query, and a query right after a host could pass for the rest of its name. What allows
/// a resource must allow it by that as well.
pub(crate) fn canonical(uri: &str) -> Option<&str> {
    let (scheme, rest) = uri.split_once(':').unwrap_or_default();
    let (is_file, is_web) = scheme_kind(scheme);
    let is_pathless =
        || authority(rest).is_some_and(|host| rest[2 + host.len()..].starts_with('?'));
    let end = if is_file || is_web && is_pathless() {
        path_end(uri)
    } else {
        uri.find('#').unwrap_or(uri.len())
    };
    // In a template the sign stands in an expression.
    let essence = &uri[..end];
    (end < uri.len()).then(|| essence.strip_suffix('{').unwrap_or(essence))
}

/// Whether `scheme`, which may have others before it, is that of files, or of what is on the web.
fn scheme_kind(scheme: &str) -> (bool, bool) {
    let last = scheme.rsplit('+').next().unwrap_or_default();
    let is = |name: &&str| last.eq_ignore_ascii_case(name);
    (is(&"file"), ["http", "https", "ws", "wss"].iter().any(is))
}

/// Other spellings of what servers take for the same as `uri` (RFC 3986, section 6.2.2): scheme and
/// host in small letters, the host without what it says of the user, its last dot, and a port that goes
/// without saying, and an address as the URL Standard writes it; no empty or `.` segments, no parameters
/// of segments on the web, no fragment, no empty query; a file without host and query, and once more without its case, since its server's
/// system may not tell one from the other; with nothing escaped that need not be, and with everything
/// escaped that may be; and both as programs read the path of a file, to whom `%2F` is a slash and one
/// at the end is nothing.
pub(crate) fn variants(uri: &str) -> Vec<String> {
    variants_of("", uri)
}

/// The same, each behind the name of `server` and a `/`, where there is one.
pub(crate) fn variants_of(server: &str, uri: &str) -> Vec<String> {
    let place = |uri: &str| match server {
        "" => uri.to_owned(),
        server => format!("{server}/{uri}"),
    };
    let Some(parts) = ParsedUri::of(uri, path_end(uri)) else {
        return Vec::new();
    };
    let mut all: Vec<String> = Vec::new();
    let spell = |path: &str, tail: &str| {
        let hosts = parts.hosts.iter();
        hosts
            .map(|host| place(&format!("{}{host}{path}{tail}", parts.start)))
            .collect::<Vec<_>>()
    };
    let parted = as_file_path(&parts.path, parts.is_file);
    let bare = remove_path_parameters(&parts.path).filter(|_| parts.is_web);
    for path in [&parts.path, &parted].into_iter().chain(&bare) {
        all.extend(spell(&minimally_escaped(path), &parts.tail));
        all.extend(spell(
            &minimally_escaped(path),
            &minimally_escaped(&parts.tail),
        ));
        all.extend(spell(&fully_escaped(path), &parts.tail));
    }
    let own = place(uri);
    if parts.is_file {
        let folded: Vec<String> = all.iter().chain([&own]).map(|it| case_folded(it)).collect();
        all.extend(folded);
    }
    all.sort_unstable();
    all.dedup();
    all.retain(|other| *other != own);
    all
}

/// Other spellings of `glob`, which is about URIs: as [`variants`] spells what it matches.
pub(crate) fn glob_variants(glob: &str) -> Vec<String> {
    let is_special = |text: &str| text.contains(['*', '?', '[', '{']);
    let Some(colon) = glob.find(':') else {
        // It may well be about files, unless it is a name.
        return Vec::from_iter(is_special(glob).then(|| case_folded(glob)));
    };
    let server_end = glob[..colon].rfind('/').map_or(0, |slash| slash + 1);
    let (server, uri) = glob.split_at(server_end);
    let mut all = Vec::new();
    if let Some(parts) = ParsedUri::of(uri, uri.len()) {
        let path = minimally_escaped(&parts.path);
        // Who names a user means that user.
        let host = parts.hosts.last().map_or("", |host| host);
        all.push(format!("{server}{}{host}{path}", parts.start));
    }
    let scheme = glob[server_end..colon].to_ascii_lowercase();
    if scheme_kind(&scheme).0 || is_special(&scheme) {
        let plain = all.first().map_or(glob, |plain| plain);
        let both = [case_folded(glob), case_folded(plain)];
        all.extend(both);
    }
    all.dedup();
    all.retain(|other| other != glob);
    all
}

/// `text` without case, and composed (NFC): file systems find a file by either form.
fn case_folded(text: &str) -> String {
    let folded = text.to_lowercase();
    let composed = ComposingNormalizerBorrowed::new_nfc().normalize(&folded);
    format!("{FOLDED_MARK}{composed}")
}

/// A URI taken apart.
struct ParsedUri {
    /// Up to the host, in small letters.
    start: String,
    /// The host without and with the user; empty in a file.
    hosts: Vec<String>,
    path: String,
    /// The query.
    tail: String,
    is_file: bool,
    is_web: bool,
}

impl ParsedUri {
    /// Those of `uri`, whose path ends at `end`.
    fn of(uri: &str, end: usize) -> Option<Self> {
        let (scheme, rest) = uri.split_once(':')?;
        let scheme = scheme.to_ascii_lowercase();
        let (is_file, is_web) = scheme_kind(&scheme);
        let end = end.checked_sub(scheme.len() + 1)?;
        let (body, tail) = rest.split_at(end);
        let (body, has_host) = match authority(rest) {
            // Parsers take any number of slashes for two.
            _ if is_web => (body.trim_start_matches('/'), true),
            Some(_) => (&body[2..], true),
            None => (body, false),
        };
        let host_end = body.find('/').unwrap_or(body.len());
        let (host, path) = body.split_at(if has_host { host_end } else { 0 });
        let hosts = if is_file || !has_host {
            vec![String::new()]
        } else {
            host_variants(scheme.rsplit('+').next().unwrap_or_default(), host)
        };
        let slashes = if has_host || is_file { "//" } else { "" };
        let tail = tail.split('#').next().unwrap_or_default();
        let tail = if is_file || tail == "?" { "" } else { tail };
        Some(Self {
            start: format!("{scheme}:{slashes}"),
            hosts,
            path: remove_empty_segments(path, is_file || is_web),
            tail: tail.to_owned(),
            is_file,
            is_web,
        })
    }
}

/// What stands between `//` and the path of a URI with `scheme`, without and with the user.
fn host_variants(scheme: &str, authority: &str) -> Vec<String> {
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let host = host.to_ascii_lowercase();
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (name, port),
        Some(_) | None => (&*host, ""),
    };
    let name = canonical_host(name.trim_end_matches('.'));
    let default = DEFAULT_PORTS.iter().find(|(known, _)| *known == scheme);
    let port = port.trim_start_matches('0');
    let is_default = default.is_some_and(|(_, default)| port == default.to_string());
    let host = if port.is_empty() || is_default {
        name
    } else {
        format!("{name}:{port}")
    };
    if user.is_empty() {
        return vec![host];
    }
    let with_user = format!("{user}@{host}");
    vec![host, with_user]
}

/// The host `name`, an address in its one form.
fn canonical_host(name: &str) -> String {
    if let Some(inner) = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        let address = inner.parse::<Ipv6Addr>();
        return address.map_or_else(|_| name.to_owned(), |it| format!("[{it}]"));
    }
    parse_ipv4(name).map_or_else(|| name.to_owned(), |address| address.to_string())
}

/// The address that parsers see in `name`: one to four numbers, of which the last stands for all bytes that
/// are left (URL Standard, "IPv4 parser").
fn parse_ipv4(name: &str) -> Option<Ipv4Addr> {
    let number = |text: &str| {
        let (digits, radix) = match text.strip_prefix("0x") {
            Some(hex) => (hex, 16),
            None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
            None => (text, 10),
        };
        let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
        is_number.then(|| u32::from_str_radix(digits, radix).ok())?
    };
    let parts: Vec<&str> = name.split('.').collect();
    let (last, first) = parts.split_last()?;
    let last = number(last)?;
    let mut value = 0;
    for (at, part) in first.iter().enumerate() {
        let byte = number(part).filter(|byte| *byte < 256)?;
        value |= byte.checked_shl(u32::try_from(24_usize.checked_sub(8 * at)?).ok()?)?;
    }
    let room = 32_u32.checked_sub(8 * u32::try_from(first.len()).ok()?)?;
    let fits = room == 32 || (room > 0 && last < 1 << room);
    fits.then(|| Ipv4Addr::from(value | last))
}

/// What stands between `//` and the path in `rest`, which follows the scheme.
fn authority(rest: &str) -> Option<&str> {
    let after = rest.strip_prefix("//")?;
    let end = after.find(['/', '?', '#']).unwrap_or(after.len());
    Some(&after[..end])
}

/// `path` without empty and `.` segments, the latter also where they are escaped.
fn remove_empty_segments(path: &str, is_rooted: bool) -> String {
    let is_dot = |part: &&str| matches!(*part, "." | "%2e" | "%2E");
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && !is_dot(part))
        .collect();
    let root = if is_rooted || path.starts_with('/') {
        "/"
    } else {
        ""
    };
    let end = if path.ends_with('/') && !parts.is_empty() {
        "/"
    } else {
        ""
    };
    format!("{root}{}{end}", parts.join("/"))
}

/// `path` without the parameters of its segments, if there are any (RFC 3986, section 3.3).
fn remove_path_parameters(path: &str) -> Option<String> {
    let bare = |segment: &str| segment.split(';').next().unwrap_or_default().to_owned();
    let segments = || path.split('/').map(bare).collect::<Vec<_>>();
    let found = path.contains(';').then(|| segments().join("/"))?;
    Some(remove_empty_segments(&found, true))
}

/// `path` with its escaped slashes as such, and none at its end.
fn as_file_path(path: &str, is_rooted: bool) -> String {
    let bytes = percent_decode(path, |byte| byte == b'/');
    let parted = String::from_utf8(bytes).unwrap_or_else(|_| path.to_owned());
    let parted = remove_empty_segments(&parted, is_rooted);
    parted.strip_suffix('/').unwrap_or(&parted).to_owned()
}

/// `path` with nothing escaped but what would part it otherwise.
fn minimally_escaped(path: &str) -> String {
    let bytes = percent_decode(path, |byte| !matches!(byte, b'/' | b'?' | b'#' | b'%'));
    String::from_utf8(bytes).unwrap_or_else(|_| path.to_owned())
}

/// `path` with everything escaped that is legal in no path.
fn fully_escaped(path: &str) -> String {
    let plain = minimally_escaped(path);
    let is_legal = |c: char| c.is_ascii_graphic() && !"\"<>\\^`{|}".contains(c);
    let mut out = String::with_capacity(plain.len());
    for c in plain.chars() {
        if is_legal(c) {
            out.push(c);
        } else {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                write!(out, "%{byte:02X}").expect("a String takes everything");
            }
        }
    }
    out
}

/// Where query or fragment begin.
fn path_end(uri: &str) -> usize {
    uri.find(['?', '#']).unwrap_or(uri.len())
}

/// `text` with the escapes of those bytes decoded that `is_wanted` says.
fn percent_decode(text: &str, is_wanted: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut out = Vec::with_capacity(rest.len());
    while let [first, after @ ..] = rest {
        let escaped = (*first == b'%')
            .then(|| after.first_chunk::<2>())
            .flatten()
            .and_then(|[high, low]| Some(hex_digit(*high)? << 4 | hex_digit(*low)?))
            .filter(|byte| is_wanted(*byte));
        out.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() {
            &after[2..]
        } else {
            after
        };
    }
    out
}

/// What `byte` is worth as a digit. Numbers are not read by `from_str_radix`, which takes a sign.
fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_may_lead_elsewhere_is_seen() {
        for uri in [
            "file:///pub/../priv/a",
            "file:///pub/%2e%2E/priv/a",
            "file:///pub/.%2e/priv/a",
            "file:///pub/..%2Fpriv",
            "file:///pub%5c..%5cpriv",
            r"file:///pub\..\priv",
            "file:///pub/..",
            "mem:../a",
            "https://h/pub/..;/priv",
            "https://h/pub/%2e.;x=y/priv",
            "file:///pub/..?x",
            "file:///pub/.\t./priv/a",
            "file:///pub/.\n./priv/a",
            "fi\tle:///priv/a",
            " file:///priv/a",
            r"file:\\\priv\a",
            "file://%6cocalhost/priv/a",
            "file://\u{ff4c}ocalhost/priv/a",
            r"https:\\h\priv",
        ] {
            assert!(is_ambiguous(uri), "{uri:?}");
        }
        for uri in [
            "file:///pub/a..b/...",
            "file:///pub/%2e",
            "file:///pub/%252e%252e/a",
            "file:///pub/a?../b",
            "https://h/pub/..a;b",
            "file:///pub/%zz%2",
            "file:///my docs/\u{e9}",
            "x",
            "",
        ] {
            assert!(!is_ambiguous(uri), "{uri:?}");
        }
    }

    #[test]
    fn equivalents_have_a_spelling_in_common() {
        let check = |uri: &str, expect: &str| {
            let found = variants(uri);
            assert!(
                uri == expect || found.iter().any(|other| other == expect),
                "{uri}: {found:?}"
            );
        };
        for uri in [
            "file:///priv/a",
            "FILE:///priv/a",
            "file://localhost/priv/a",
            "file://anything/priv/a",
            "file:/priv/a",
            "file:priv/a",
            "file:///%70riv/a",
            "file:///./priv//%2e/a",
            "file:////priv/%61",
            "file:///priv/a?",
            "file:///priv/a?b#c",
            "file:///priv/a#x",
            "file:///priv%2Fa",
            "file:///priv%2fa/",
            "file:///priv/a%2F",
            "file:///%2Fpriv//a/",
        ] {
            check(uri, "file:///priv/a");
            check(&format!("x+{uri}"), "x+file:///priv/a");
        }
        for uri in [
            "file:///my docs/\u{e9}",
            "file:///my%20docs/%C3%A9",
            "file:///my%20docs/%c3%a9",
        ] {
            check(uri, "file:///my docs/\u{e9}");
            check(uri, "file:///my%20docs/%C3%A9");
        }
        for uri in [
            "https://h/a",
            "https:/h/a",
            "https:h/a",
            "HTTPS://H/a#b",
            "https:///h/a",
        ] {
            check(uri, "https://h/a");
        }
        check("https://H/A%20b/?Q=%41#x", "https://h/A%20b/?Q=%41");
        check("urn:A:b", "urn:A:b");
        // A sign is no digit.
        check("a:%%2b2e", "a:%+2e");
        for alone in ["a:%+2e", "plain", "docs://users"] {
            assert_eq!(variants(alone), Vec::<String>::new());
        }
    }

    /// What a glob of `deny` about the one spelling refuses, it refuses in the others.
    fn check_glob(glob: &str, uri: &str, expect: bool) {
        let matches = |glob: &str| {
            let glob = globset::GlobBuilder::new(glob)
                .literal_separator(true)
                .build();
            let glob = glob.unwrap().compile_matcher();
            glob.is_match(uri) || variants(uri).iter().any(|other| glob.is_match(other))
        };
        let found = matches(glob) || glob_variants(glob).iter().any(|other| matches(other));
        assert_eq!(found, expect, "{glob} of {uri}: {:?}", variants(uri));
    }

    #[test]
    fn no_authority_hides_a_resource() {
        let check = check_glob;
        let same = [
            "https://h.org/priv/a",
            "https://h.org/priv;x/a",
            "https://h.org/;/priv/a;b=c",
            "https://h.org:443/priv/a",
            "https://h.org:0443/priv/a",
            "https://h.org:/priv/a",
            "https://h.org./priv/a",
            "https://H.ORG.:443/priv/a",
            "https://u@h.org/priv/a",
            "https://u:p@h.org:443/priv/a",
            "https://u@v@h.org/priv/%61",
            "https:/h.org/priv/a?",
        ];
        for uri in same {
            for glob in [
                "https://h.org/priv/**",
                "https://h.org:443/priv/*",
                "HTTPS://H.org./priv/a",
                "https://h.org/%70riv/a",
            ] {
                check(glob, uri, true);
                check(&format!("x+{glob}"), &format!("x+{uri}"), true);
            }
            check("https://h.org:8443/priv/**", uri, false);
            check("http://h.org/priv/**", uri, false);
        }
        check("https://bob@h/**", "https://h/a", false);
        check("https://bob@h/**", "https://bob@h.:443/a", true);
        for uri in [
            "https://h",
            "https://h?/a",
            "https://h/?x",
            "https://h#x",
            "https://h.",
        ] {
            check("https://h/**", uri, true);
            check("https://h", uri, !uri.contains(['?']));
        }
        for uri in [
            "http://127.0.0.1/a",
            "http://127.1/a",
            "http://2130706433/a",
            "http://0x7f.0.0.1/a",
            "http://0177.0.0.01/a",
        ] {
            check("http://127.0.0.1/**", uri, true);
            check("http://0x7f000001/**", uri, true);
            check("http://127.0.0.2/**", uri, false);
        }
        check("http://?::1?/**", "http://[0:0:0:0:0:0:0:1]:80/a", true);
        check("postgres://db/**", "postgres://u:p@db:5432/t", true);
        check("db/postgres://db/**", "db/postgres://db/t", true);
        for uri in ["file:///Priv/a", "FILE://host/PRIV/A", "file:///priv/%41"] {
            check("file:///priv/**", uri, true);
            check("file:///PRIV/*", uri, true);
            check("**/priv/a", uri, true);
        }
        check("file:///caf\u{c9}", "file:///caf%C3%A9", true);
        check("file:///caf\u{e9}", "file:///cafe%CC%81", true);
        check("file:///cafe\u{301}", "file:///caf\u{e9}", true);
        check("https://h/priv", "https://h/PRIV", false);
    }

    #[test]
    fn addresses_are_read_as_parsers_read_them() {
        for (name, expect) in [
            ("1.2.3.4", Some("1.2.3.4")),
            ("1.2.772", Some("1.2.3.4")),
            ("0x01020304", Some("1.2.3.4")),
            ("1.131844", Some("1.2.3.4")),
            ("1.2.3.256", None),
            ("1.2.3.4.5", None),
            ("4294967296", None),
            ("1.2.3.", None),
            ("h.1a", None),
            ("h", None),
            ("08.1", None),
        ] {
            assert_eq!(
                parse_ipv4(name).map(|it| it.to_string()).as_deref(),
                expect,
                "{name}"
            );
        }
    }

    proptest! {
        /// What is spelled plainly stays so.
        #[test]
        fn a_spelling_is_its_own_spelling(uri in "(x\\+)?[a-z]{1,6}:[/.%2eE+@:\u{e9} ?#a-c0]{0,20}") {
            let all = |uri: &str| {
                let mut all = variants(uri);
                all.push(uri.to_owned());
                all
            };
            let own = all(&uri);
            for other in &own {
                prop_assert!(all(other).iter().any(|it| own.contains(it)), "{} {}", uri, other);
            }
        }
    }

    #[test]
    fn a_resource_is_what_its_uri_says_before_what_nobody_looks_at() {
        for (uri, expect) in [
            ("file:///a/b", None),
            ("file:///a/b?c", Some("file:///a/b")),
            ("FILE:///a/b?c#d", Some("FILE:///a/b")),
            ("fs+file:///a/b#/c", Some("fs+file:///a/b")),
            ("https://h/a?b", None),
            ("https://h/a?b#c", Some("https://h/a?b")),
            ("db:t?file:#x", Some("db:t?file:")),
            ("db://users?limit=1", None),
            ("docs://a{#part}", Some("docs://a")),
            ("https://evil?.h/b", Some("https://evil")),
            ("https://evil#.h/b", Some("https://evil")),
            ("no uri", None),
            ("", None),
        ] {
            assert_eq!(canonical(uri), expect, "{uri}");
        }
    }
}
