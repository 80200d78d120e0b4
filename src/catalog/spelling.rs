//! URIs as servers may understand them, where a rule has only their text: `..` and escapes lead a
//! server to another resource than the one that a glob was tried on.
//!
//! Called by rules about resources alone; what is sent to the server stays as it was written. What
//! URL parsers do beyond RFC 3986 is in the URL Standard of the WHATWG, which many servers follow.

use std::fmt::Write as _;

/// How many spellings [`others`] gives.
pub(crate) const OTHERS: usize = 4;

/// Whether nobody can tell by `uri` what its server makes of it: its path leads upwards, however
/// that is escaped (RFC 3986, section 5.2.4), or it has what is legal in no URI and what parsers drop
/// or take for something else (control characters, space around it, backslashes, hosts in disguise).
pub(crate) fn strays(uri: &str) -> bool {
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
    let bytes = decoded(path, |byte| matches!(byte, b'.' | b'/' | b'\\'));
    bytes.contains(&b'\\') || {
        let mut segments = bytes.split(|byte| matches!(byte, b'/' | b':'));
        segments.any(|segment| segment == b"..")
    }
}

/// The part of `uri` that says which resource it is, where that is not all of it: nobody sends a fragment
/// on, a file has no query, and a query right after a host could pass for the rest of its name. What allows
/// a resource must allow it by that as well.
pub(crate) fn essence(uri: &str) -> Option<&str> {
    let (scheme, rest) = uri.split_once(':').unwrap_or_default();
    let (is_file, is_web) = kind_of(scheme);
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
fn kind_of(scheme: &str) -> (bool, bool) {
    let last = scheme.rsplit('+').next().unwrap_or_default();
    let is = |name: &&str| last.eq_ignore_ascii_case(name);
    (is(&"file"), ["http", "https", "ws", "wss"].iter().any(is))
}

/// Other spellings of what servers take for the same as `uri` (RFC 3986, section 6.2.2): scheme and
/// host in small letters, no empty or `.` segments, no fragment; a file without host and query; with
/// nothing escaped that need not be, and with everything escaped that may be; and both as programs
/// read the path of a file, to whom `%2F` is a slash and one at the end is nothing. Empty where `uri`
/// is spelled so.
pub(crate) fn others(uri: &str) -> [String; OTHERS] {
    let Some((scheme, rest)) = uri.split_once(':') else {
        return Default::default();
    };
    let scheme = scheme.to_ascii_lowercase();
    let (is_file, is_web) = kind_of(&scheme);
    let (body, tail) = rest.split_at(path_end(rest));
    let (body, has_host) = match authority(rest) {
        // Parsers take any number of slashes for two.
        _ if is_web => (body.trim_start_matches('/'), true),
        Some(_) => (&body[2..], true),
        None => (body, false),
    };
    let host_end = body.find('/').unwrap_or(body.len());
    let (host, path) = body.split_at(if has_host { host_end } else { 0 });
    let host = if is_file { "" } else { host };
    let slashes = if has_host || is_file { "//" } else { "" };
    let start = format!("{scheme}:{slashes}{}", host.to_ascii_lowercase());
    let tail = tail
        .split('#')
        .next()
        .filter(|_| !is_file)
        .unwrap_or_default();
    let path = without_empty(path, is_file);
    let parted = as_files(&path, is_file);
    let other = |path: String| {
        let spelled = format!("{start}{path}{tail}");
        if spelled == uri {
            String::new()
        } else {
            spelled
        }
    };
    let [first, second] = [plain(&path), escaped(&path)].map(other);
    // Few paths read otherwise as files.
    if parted == path {
        return [first, second, String::new(), String::new()];
    }
    let [third, fourth] = [plain(&parted), escaped(&parted)].map(other);
    [first, second, third, fourth]
}

/// What stands between `//` and the path in `rest`, which follows the scheme.
fn authority(rest: &str) -> Option<&str> {
    let after = rest.strip_prefix("//")?;
    let end = after.find(['/', '?', '#']).unwrap_or(after.len());
    Some(&after[..end])
}

/// `path` without empty and `.` segments, the latter also where they are escaped.
fn without_empty(path: &str, is_rooted: bool) -> String {
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

/// `path` with its escaped slashes as such, and none at its end.
fn as_files(path: &str, is_rooted: bool) -> String {
    let bytes = decoded(path, |byte| byte == b'/');
    let parted = String::from_utf8(bytes).unwrap_or_else(|_| path.to_owned());
    let parted = without_empty(&parted, is_rooted);
    parted.strip_suffix('/').unwrap_or(&parted).to_owned()
}

/// `path` with nothing escaped but what would part it otherwise.
fn plain(path: &str) -> String {
    let bytes = decoded(path, |byte| !matches!(byte, b'/' | b'?' | b'#' | b'%'));
    String::from_utf8(bytes).unwrap_or_else(|_| path.to_owned())
}

/// `path` with everything escaped that is legal in no path.
fn escaped(path: &str) -> String {
    let plain = plain(path);
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
fn decoded(text: &str, is_wanted: impl Fn(u8) -> bool) -> Vec<u8> {
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
            assert!(strays(uri), "{uri:?}");
        }
        for uri in [
            "file:///pub/a..b/...",
            "file:///pub/%2e",
            "file:///pub/%252e%252e/a",
            "file:///pub/a?../b",
            "file:///pub/%zz%2",
            "file:///my docs/\u{e9}",
            "x",
            "",
        ] {
            assert!(!strays(uri), "{uri:?}");
        }
    }

    #[test]
    fn equivalents_have_a_spelling_in_common() {
        let check = |uri: &str, expect: &str| {
            let found = others(uri);
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
        for alone in ["a:%+2e", "plain", "x+file:///priv/a"] {
            assert_eq!(others(alone), [""; OTHERS]);
        }
    }

    proptest! {
        #[test]
        fn a_spelling_is_its_own_spelling(uri in "[a-z+]{1,6}:[/.%2eE+\u{e9} ?#a-c]{0,20}") {
            for other in others(&uri).into_iter().filter(|other| !other.is_empty()) {
                let again = others(&other);
                prop_assert!(again.contains(&String::new()), "{} {} {:?}", uri, other, again);
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
            assert_eq!(essence(uri), expect, "{uri}");
        }
    }
}
