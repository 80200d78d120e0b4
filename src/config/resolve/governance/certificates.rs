//! Names of client certificates: a subject is compared as RFC 4514 writes it, which is not how `openssl` prints it.

use globset::Glob;

use crate::config::{
    AuthMethod, Authentication, diagnostics::report::Diagnostic, node::ValuePath, resolve::Resolver,
};

/// Attributes of a subject in the order in which certificates have them; RFC 4514 writes the last one first.
const ENCODED_ORDER: [&str; 6] = ["C", "ST", "L", "O", "OU", "CN"];

impl Resolver<'_> {
    /// Warns of names that no certificate has, and of names that nobody looks at.
    pub(in crate::config::resolve) fn check_certificates(
        &mut self,
        certificates: &[Glob],
        auth: Authentication,
        at: &ValuePath<'_>,
    ) {
        let is_unused = auth.identifies_callers() && !auth.allows(AuthMethod::Mtls);
        if is_unused && !certificates.is_empty() && !self.context.is_incomplete {
            self.findings.add(
                Diagnostic::warning(format!("`{}` has no effect", at.path()))
                    .at(at.span(), "clients do not authenticate by certificates")
                    .help("add \"mtls\" to `auth` in `[governance]`"),
            );
        }
        for (index, written) in certificates.iter().enumerate() {
            let at = at.item_at(index);
            let Some(subject) = rfc4514(written.glob()) else {
                continue;
            };
            let help = format!("write \"{subject}\": the most specific part first, without spaces");
            self.findings.add(
                Diagnostic::warning(format!("`{}` matches no certificate", at.path()))
                    .at(at.span(), "not the form of RFC 4514")
                    .help_if(at.is_quotable().then_some(help)),
            );
        }
    }
}

/// What should be written for `written`, if that is a subject in another form: with spaces, with slashes or in the
/// order in which certificates have it.
fn rfc4514(written: &str) -> Option<String> {
    let separator = if written.starts_with('/') { '/' } else { ',' };
    let parts: Option<Vec<_>> = split_unescaped(written.trim_start_matches('/'), separator)
        .into_iter()
        .map(attribute)
        .collect();
    let mut parts = parts?;
    let ranks = parts.iter().filter_map(|(kind, _)| {
        let mut known = ENCODED_ORDER.iter();
        known.position(|known| known.eq_ignore_ascii_case(kind))
    });
    let ranks: Vec<usize> = ranks.collect();
    if ranks.first() < ranks.last() && ranks.is_sorted() {
        parts.reverse();
    }
    let parts: Vec<String> = parts
        .iter()
        .map(|(kind, value)| format!("{kind}={value}"))
        .collect();
    Some(parts.join(",")).filter(|subject| subject != written)
}

/// The parts of `text` between separators that no backslash stands before.
fn split_unescaped(text: &str, separator: char) -> Vec<&str> {
    let mut is_escaped = false;
    let split = |c: char| {
        let splits = c == separator && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        splits
    };
    text.split(split).collect()
}

/// The kind and the value of `CN=ci` or `CN = ci`; `None` for what is none of these, such as a glob or a URI.
fn attribute(part: &str) -> Option<(&str, &str)> {
    let (kind, value) = part.split_once('=')?;
    let (kind, value) = (kind.trim(), value.trim());
    let is_kind = !kind.is_empty() && kind.chars().all(|c| c.is_ascii_alphanumeric() || c == '.');
    is_kind.then_some((kind, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_of_openssl_is_put_right() {
        let check = |written: &str, expect: Option<&str>| {
            assert_eq!(rfc4514(written).as_deref(), expect, "{written}");
        };
        check("CN=ci,O=Example", None);
        check("CN=ci", None);
        check("CN=ci-*", None);
        check("*,O=Example", None);
        check("*.ci.example.com", None);
        check("spiffe://example.com/a?b=c", None);
        check("CN=a\\, b,O=Example", None);
        check("O=Example,O=Other", None);
        check("O=Example, CN=ci", Some("CN=ci,O=Example"));
        check("O=Example,CN=ci", Some("CN=ci,O=Example"));
        check("CN=ci, O=Example", Some("CN=ci,O=Example"));
        check(
            "C = DE, O = Example Ltd, CN = ci",
            Some("CN=ci,O=Example Ltd,C=DE"),
        );
        check("/C=DE/O=Example/CN=ci", Some("CN=ci,O=Example,C=DE"));
        check("O=A\\, B, CN=ci", Some("CN=ci,O=A\\, B"));
    }
}
