//! What callers make up, as records may hold it: without what identifies somebody or opens something,
//! and looked at no further than is shown of it. Pure.

use std::{borrow::Cow, sync::LazyLock};

use super::CallScanners;
use crate::{
    audit::TEXT_BYTES_MAX,
    config::{Scan, ScanAction},
    mcp::Raw,
    scan::{Direction, Scanner},
};

/// Bytes behind those that are shown which are looked at too: what begins before the cut may be known by
/// its end alone. The longest such are JWTs, and hardly any server takes headers of half as much.
const LOOKAHEAD_BYTES: usize = 16 << 10;

/// Bytes of a client's name, and of its version, that are shown: with a `/` between them, and both cut, they
/// fit a text of the audit, which would cut the version else.
const CLIENT_PART_BYTES_MAX: usize = (TEXT_BYTES_MAX - "/".len()) / 2 - "…".len();

/// What passes here on its way into a record: everything that any detector finds is masked. Made when
/// it is first needed, which it is for little: memory is better left to calls.
static MASKER: LazyLock<Scanner> = LazyLock::new(|| {
    let everything = Scan {
        arguments: std::iter::once(("*".to_owned(), ScanAction::Redact)).collect(),
        ..Scan::default()
    };
    Scanner::new(&everything).expect("only an operator's own patterns can be wrong")
});

/// Arguments or the like as a record may hold them, where `screens` looked at the call; `None` when that
/// cannot be done.
pub(in crate::governance) fn redact_arguments(
    arguments: &Raw,
    scanners: Option<&CallScanners>,
) -> Option<Raw> {
    let own = scanners.and_then(|screens| screens.redact_custom_classes(arguments));
    let arguments = own.as_ref().unwrap_or(arguments);
    let verdict = MASKER.scan(Direction::Arguments, arguments, || None);
    if verdict.blocked.is_some() {
        return None;
    }
    Some(verdict.redacted.unwrap_or_else(|| arguments.clone()))
}

/// A name or URI as a record may hold it.
pub(crate) fn redact_name(name: &str) -> Cow<'_, str> {
    let verdict = MASKER.scan(
        Direction::Arguments,
        &Raw::string(scanned_prefix(name)),
        || None,
    );
    let masked = verdict.redacted.as_ref().and_then(Raw::as_text);
    match masked {
        None => truncate_masked(Cow::Borrowed(scanned_prefix(name)), name, TEXT_BYTES_MAX),
        Some(masked) => Cow::Owned(truncate_masked(masked, name, TEXT_BYTES_MAX).into_owned()),
    }
}

/// What a client says it is in `info`, its `clientInfo`, as records may hold it: `name/version`; `None`
/// where it has no name. Each may say what the other is.
pub(in crate::governance) fn client_name(info: &Raw) -> Option<Box<str>> {
    let written = ["name", "version"].map(|key| info.get(key));
    let [name, version] = written
        .each_ref()
        .map(|text| text.as_ref().and_then(Raw::as_text));
    let name = name?;
    let members = [("name", Some(&name)), ("version", version.as_ref())];
    let members = members.into_iter().filter_map(|(key, text)| {
        Some(format!(
            "\"{key}\":{}",
            Raw::string(scanned_prefix(text?)).as_str()
        ))
    });
    let members: Vec<_> = members.collect();
    let masked = redact_arguments(
        &Raw::parse(format!("{{{}}}", members.join(","))).ok()?,
        None,
    )?;
    let part = |key: &str, written: &str| {
        let masked = masked.get(key)?;
        Some(truncate_masked(masked.as_text()?, written, CLIENT_PART_BYTES_MAX).into_owned())
    };
    let name = part("name", &name)?;
    Some(
        match version.and_then(|version| part("version", &version)) {
            Some(version) => [&*name, "/", &*version].concat().into(),
            None => name.into(),
        },
    )
}

/// The beginning of `text` that is looked at: as good as all of it, but for what nobody calls a name.
fn scanned_prefix(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX + LOOKAHEAD_BYTES)]
}

/// What is shown of `masked`, which is the [`scanned_prefix`] of `text` with masks: `bytes_max` at most. Where that is
/// not all of it, whatever the end of the head may have cut in two, so that nobody knew it, is not shown.
fn truncate_masked<'m>(masked: Cow<'m, str>, text: &str, bytes_max: usize) -> Cow<'m, str> {
    let head = scanned_prefix(text);
    let is_all = head.len() == text.len();
    if is_all && masked.len() <= bytes_max {
        return masked;
    }
    let sure = if is_all {
        masked.len()
    } else {
        let pairs = masked.bytes().rev().zip(head.bytes().rev());
        let unmasked = pairs.take_while(|(masked, written)| masked == written);
        masked.len() - unmasked.count().min(LOOKAHEAD_BYTES)
    };
    let kept = &masked[..masked.floor_char_boundary(sure.min(bytes_max))];
    Cow::Owned(format!("{kept}…"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AKIAQ3EGRZ7XHWLDT5NB";

    /// Neither is any of the key left that the cut leaves in part.
    #[test]
    fn long_names_are_cut_and_have_no_half_of_a_secret() {
        let fill = |bytes: usize| "ab ".repeat(bytes / 3);
        // Its mask is so short that what comes after it would be shown.
        let body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC".repeat(520);
        let long = format!("-----BEGIN PRIVATE KEY-----{body}-----END PRIVATE KEY-----");
        let end = TEXT_BYTES_MAX + LOOKAHEAD_BYTES;
        for (case, name) in [
            ("nothing", fill(4 << 20)),
            ("before the cut", fill(900) + KEY + " " + &fill(4 << 20)),
            (
                "across it",
                fill(TEXT_BYTES_MAX - 10) + KEY + " " + &fill(4 << 20),
            ),
            ("across the end", fill(end - 10) + KEY + &fill(4 << 20)),
            (
                "across the end, behind a mask",
                format!(
                    "{long} {}{KEY} {}",
                    fill(end - 11 - long.len()),
                    fill(1 << 20)
                ),
            ),
            (
                "across the end, all masked",
                "ann.lee@example.org ".repeat(1 << 17),
            ),
        ] {
            let shown = redact_name(&name);
            let kept = shown.strip_suffix('…').expect(case);
            assert!(kept.len() <= TEXT_BYTES_MAX, "{case}: {}", kept.len());
            for secret in [&KEY[..6], "MII", "ann"] {
                assert!(!kept.contains(secret), "{case}: {kept}");
            }
        }
        let all = "a".repeat(TEXT_BYTES_MAX);
        assert!(matches!(redact_name(&all), Cow::Borrowed(it) if it == all));
        for more in [format!("{all}b"), format!("{all}{}", fill(LOOKAHEAD_BYTES))] {
            assert_eq!(redact_name(&more), format!("{all}…"), "{}", more.len());
        }
    }

    #[test]
    fn a_client_is_called_by_its_name_and_version() {
        let long = "x y ".repeat(1 << 18);
        for (info, expect) in [
            (r#"{"name":"a","version":"1"}"#.to_owned(), Some("a/1")),
            (r#"{"version":1,"name":"a"}"#.to_owned(), Some("a")),
            (r#"{"version":"1"}"#.to_owned(), None),
            (r#"{"name":["a"],"version":"1"}"#.to_owned(), None),
            (
                format!(r#"{{"name":"{KEY}","version":"{KEY}"}}"#),
                Some("[API_KEY]/[API_KEY]"),
            ),
        ] {
            let found = client_name(&Raw::parse(info.clone()).unwrap());
            assert_eq!(found.as_deref(), expect, "{info}");
        }
        let info = format!(r#"{{"name":"{long}","version":"{long}"}}"#);
        let found = client_name(&Raw::parse(info).unwrap()).unwrap();
        let cut = long[..CLIENT_PART_BYTES_MAX].to_owned() + "…";
        assert_eq!(*found, format!("{cut}/{cut}"));
        assert!(found.len() <= TEXT_BYTES_MAX, "the audit cuts none of it");
    }
}
