//! Exposed URIs: a server's own ones behind a prefix, and back.
//!
//! Pure string work, since a URL parser would change what it reads. Whatever a server calls a
//! resource, `original(expose(uri))` is `uri` again, and two servers never expose equal URIs. Only
//! the head of a template is touched, so every expansion of an exposed template leads back to the
//! same expansion of the original one.

use std::{borrow::Cow, collections::HashSet, sync::Arc};

use crate::names::HOST_SCHEMES;

/// How often a server's own prefix may stand before a shared URI and still be seen. A bound, since
/// each level costs a copy of what may be a long text from a stranger.
const NESTED_PREFIXES_MAX: usize = 8;

/// How the URIs of one server look on one route.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UriMap {
    rule: UriRule,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum UriRule {
    /// As the server wrote them.
    Original,
    /// Each behind the prefix.
    Prefixed { prefix: String },
    /// As the server wrote them, except those that another server has too.
    PrefixShared {
        prefix: String,
        shared: Arc<HashSet<Arc<str>>>,
    },
}

impl UriMap {
    /// Leaves URIs alone, as on the route of a single server.
    pub const fn identity() -> Self {
        Self {
            rule: UriRule::Original,
        }
    }

    /// Puts `prefix`, as [`uri_prefix`](crate::names::uri_prefix) makes it, before every URI.
    pub fn prefixed(prefix: String) -> Self {
        Self {
            rule: UriRule::Prefixed { prefix },
        }
    }

    /// Puts `prefix` before the URIs that are in `shared`, and leaves the others alone.
    pub(super) fn sharing(prefix: String, shared: Arc<HashSet<Arc<str>>>) -> Self {
        Self {
            rule: UriRule::PrefixShared { prefix, shared },
        }
    }

    /// Whether URIs are left alone.
    pub fn is_identity(&self) -> bool {
        self.rule == UriRule::Original
    }

    /// The URI a client sees for the server's `uri`.
    pub fn expose<'a>(&self, uri: &'a str) -> Cow<'a, str> {
        match &self.rule {
            UriRule::Prefixed { prefix } => insert_prefix(prefix, uri, uri_head(uri)).into(),
            UriRule::PrefixShared { prefix, shared } if is_shared(prefix, shared, uri) => {
                insert_prefix(prefix, uri, uri_head(uri)).into()
            }
            UriRule::Original | UriRule::PrefixShared { .. } => uri.into(),
        }
    }

    /// The template a client sees for the server's `template` (RFC 6570).
    pub fn expose_template<'a>(&self, template: &'a str) -> Cow<'a, str> {
        match &self.rule {
            UriRule::Prefixed { prefix } => {
                insert_prefix(prefix, template, template_head(template)).into()
            }
            UriRule::PrefixShared { prefix, shared } if is_shared(prefix, shared, template) => {
                insert_prefix(prefix, template, template_head(template)).into()
            }
            UriRule::Original | UriRule::PrefixShared { .. } => template.into(),
        }
    }

    /// The server's URI for what a client sent; `None` when it is not one of this server's.
    ///
    /// More is accepted than [`expose`](Self::expose) makes, because a template may expand to a URI
    /// of another shape than its own head.
    pub fn original<'a>(&self, exposed: &'a str) -> Option<Cow<'a, str>> {
        match &self.rule {
            UriRule::Original => Some(exposed.into()),
            UriRule::Prefixed { prefix } => strip_prefix(prefix, exposed),
            UriRule::PrefixShared { prefix, shared } => strip_prefix(prefix, exposed)
                .filter(|uri| is_shared(prefix, shared, uri))
                .or(Some(exposed.into())),
        }
    }

    /// What follows this server's prefix in `exposed`, whether or not the rule asks for a prefix.
    pub(super) fn without_prefix<'a>(&self, exposed: &'a str) -> Option<Cow<'a, str>> {
        match &self.rule {
            UriRule::Original => None,
            UriRule::Prefixed { prefix } | UriRule::PrefixShared { prefix, .. } => {
                strip_prefix(prefix, exposed)
            }
        }
    }
}

/// The prefix that `exposed` would carry if some server had exposed it.
pub(super) fn prefix_in(exposed: &str) -> Option<&str> {
    if let Some((_, rest)) = split_host_scheme(exposed) {
        return rest.split_once('/').map(|(prefix, _)| prefix);
    }
    let end = exposed.find(['+', ':'])?;
    let after = &exposed[end..];
    (after.starts_with('+') || after.starts_with("://")).then_some(&exposed[..end])
}

/// A URI that looks like the exposed form of a shared one is prefixed as well; otherwise two
/// different URIs of the server would be exposed as the same one.
fn is_shared(prefix: &str, shared: &HashSet<Arc<str>>, uri: &str) -> bool {
    let mut inner = Some(Cow::Borrowed(uri));
    for _ in 0..=NESTED_PREFIXES_MAX {
        let Some(uri) = inner else { return false };
        if shared.contains(uri.as_ref()) {
            return true;
        }
        inner = strip_prefix(prefix, &uri).map(|inner| Cow::Owned(inner.into_owned()));
    }
    false
}

/// How a URI begins, which decides where the prefix goes.
#[derive(Clone, Copy, Debug)]
enum UriHead {
    NoScheme,
    Host(&'static str),
    Scheme,
}

fn uri_head(uri: &str) -> UriHead {
    if let Some((scheme, _)) = split_host_scheme(uri) {
        return UriHead::Host(scheme);
    }
    let end = uri.find(|c: char| !is_scheme_character(c));
    match end.map(|at| (at, uri.as_bytes()[at])) {
        Some((at, b':')) if at > 0 && uri.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            UriHead::Scheme
        }
        _ => UriHead::NoScheme,
    }
}

/// Like [`uri_head`], where expressions may stand for a part of the scheme or for all of it.
fn template_head(template: &str) -> UriHead {
    let mut scheme = String::new();
    let mut rest = template;
    while let Some(next) = rest.chars().next() {
        if let Some(expression) = rest.strip_prefix('{') {
            match expression.chars().next() {
                // Reserved expansion carries `:` and `/`, so the value may be an absolute URI.
                Some('+') => {
                    return if scheme.is_empty() {
                        UriHead::Scheme
                    } else {
                        uri_head(template)
                    };
                }
                // These begin with a character that no scheme has.
                Some('#' | '/' | ';' | '?' | '&') => return UriHead::NoScheme,
                _ => scheme.push('x'),
            }
            rest = expression.split_once('}').map_or("", |(_, after)| after);
        } else if next == ':' || is_scheme_character(next) {
            scheme.push(next);
            if next == ':' {
                break;
            }
            rest = &rest[next.len_utf8()..];
        } else {
            return UriHead::NoScheme;
        }
    }
    match split_host_scheme(template) {
        Some((host, _)) => UriHead::Host(host),
        None => uri_head(&scheme),
    }
}

fn is_scheme_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')
}

fn split_host_scheme(uri: &str) -> Option<(&'static str, &str)> {
    HOST_SCHEMES.into_iter().find_map(|scheme| {
        let rest = uri.strip_prefix(scheme)?.strip_prefix("://")?;
        Some((scheme, rest))
    })
}

fn insert_prefix(prefix: &str, uri: &str, head: UriHead) -> String {
    match head {
        UriHead::NoScheme => format!("{prefix}://{uri}"),
        UriHead::Host(scheme) => format!("{scheme}://{prefix}/{}", &uri[scheme.len() + 3..]),
        UriHead::Scheme => format!("{prefix}+{uri}"),
    }
}

fn strip_prefix<'a>(prefix: &str, exposed: &'a str) -> Option<Cow<'a, str>> {
    if let Some((scheme, rest)) = split_host_scheme(exposed) {
        let inner = rest.strip_prefix(prefix)?.strip_prefix('/')?;
        return Some(format!("{scheme}://{inner}").into());
    }
    let rest = exposed.strip_prefix(prefix)?;
    rest.strip_prefix('+')
        .or_else(|| rest.strip_prefix("://"))
        .map(Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::names::uri_prefix as prefix;

    #[test]
    fn prefixes_are_schemes() {
        let check = |name: &str, expect: &str| assert_eq!(prefix(name), expect, "{name}");
        check("gh", "gh");
        check("GitHub", "github");
        check("my_server.v2", "my-server.v2");
        check("3d-print", "s-3d-print");
        check("-x", "s--x");
        check("größe", "gr--e");
        check("ui", "s-ui");
        check("Skill", "s-skill");
    }

    #[test]
    fn uris_get_the_prefix() {
        let check = |prefix: &str, uri: &str, expect: &str| {
            let map = UriMap::prefixed(prefix.to_owned());
            assert_eq!(map.expose(uri), expect);
            assert_eq!(map.original(expect).as_deref(), Some(uri));
        };
        check("gh", "file:///a/b", "gh+file:///a/b");
        check("fs", "file.txt", "fs://file.txt");
        check(
            "docs",
            "https://example.com/a?b#c",
            "docs+https://example.com/a?b#c",
        );
        check("gh", "FILE:///A/../b%20c", "gh+FILE:///A/../b%20c");
        check("gh", "git+ssh://host", "gh+git+ssh://host");
        check("gh", "urn:isbn:1", "gh+urn:isbn:1");
        check("gh", "/etc/hosts", "gh:///etc/hosts");
        check("gh", "a/b:c", "gh://a/b:c");
        check("gh", "1:2", "gh://1:2");
        check("gh", "", "gh://");
        check("gh", "gh+file:///a", "gh+gh+file:///a");
        check("gh", "ui://x/y", "ui://gh/x/y");
        check("gh", "ui://gh/y", "ui://gh/gh/y");
        check("gh", "ui:x", "gh+ui:x");
        check("gh", "UI://x", "gh+UI://x");
        check(
            "gh",
            "skill://refunds/SKILL.md",
            "skill://gh/refunds/SKILL.md",
        );
    }

    #[test]
    fn foreign_uris_are_not_this_servers() {
        let map = UriMap::prefixed("gh".to_owned());
        for uri in [
            "file:///a",
            "ghx+file:///a",
            "ui://other/x",
            "ui://gh",
            "gh",
            "gh:x",
            "",
        ] {
            assert_eq!(map.original(uri), None, "{uri}");
        }
    }

    #[test]
    fn templates_get_the_prefix_before_their_head() {
        let check = |template: &str, expect: &str| {
            let map = UriMap::prefixed("gh".to_owned());
            assert_eq!(map.expose_template(template), expect);
        };
        check("file:///{path}", "gh+file:///{path}");
        check("{+uri}", "gh+{+uri}");
        check("{scheme}://{host}", "gh+{scheme}://{host}");
        check("db{n}://{table}", "gh+db{n}://{table}");
        check("{name}.txt", "gh://{name}.txt");
        check("{name}", "gh://{name}");
        check("{/path*}", "gh://{/path*}");
        check("users/{id}", "gh://users/{id}");
        check("a{+rest}", "gh://a{+rest}");
        check("ui://{view}/x", "ui://gh/{view}/x");
        check("plain.txt", "gh://plain.txt");
        check("broken{", "gh://broken{");
    }

    #[test]
    fn only_shared_uris_get_a_prefix_without_namespaces() {
        let shared = HashSet::from(["file:///a".into(), "ui://x".into()]);
        let map = UriMap::sharing("gh".to_owned(), Arc::new(shared));
        let check = |uri: &str, expect: &str| {
            assert_eq!(map.expose(uri), expect);
            assert_eq!(map.original(expect).as_deref(), Some(uri));
        };
        check("file:///b", "file:///b");
        check("file:///a", "gh+file:///a");
        check("gh+file:///a", "gh+gh+file:///a");
        check("gh+file:///b", "gh+file:///b");
        check("ui://x", "ui://gh/x");
        check("ui://gh/x", "ui://gh/gh/x");
        check("gh://x", "gh://x");
    }

    /// Texts that look like URIs more often than arbitrary ones do.
    fn uri() -> impl Strategy<Value = String> {
        let head = prop::sample::select(vec![
            "", "gh", "gh+", "gh://", "ui://", "ui://gh/", "skill://", "file:///", "x-1+", "s-ui",
        ]);
        (prop::collection::vec(head, 0..4), ".{0,12}")
            .prop_map(|(heads, tail)| format!("{}{tail}", heads.concat()))
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            "[A-Za-z0-9_.-]{1,6}",
            Just("ui".to_owned()),
            Just("gh".to_owned())
        ]
    }

    proptest! {
        #[test]
        fn exposing_is_undone(uri in uri(), name in name(), shared in prop::collection::hash_set(uri(), 0..3)) {
            let prefix = prefix(&name);
            let shared = shared.iter().map(|uri| Arc::from(uri.as_str())).collect();
            for map in [
                UriMap::identity(),
                UriMap::prefixed(prefix.clone()),
                UriMap::sharing(prefix, Arc::new(shared)),
            ] {
                let exposed = map.expose(&uri);
                let original = map.original(&exposed);
                prop_assert_eq!(original.as_deref(), Some(uri.as_str()));
            }
        }

        #[test]
        fn a_prefix_tells_whose_a_uri_is(uri in uri(), ours in name(), theirs in name()) {
            let (ours, theirs) = (prefix(&ours), prefix(&theirs));
            prop_assume!(ours != theirs);
            let map = UriMap::prefixed(ours.clone());
            let exposed = map.expose(&uri);
            prop_assert_eq!(prefix_in(&exposed), Some(ours.as_str()));
            prop_assert_eq!(UriMap::prefixed(theirs).original(&exposed), None);
        }

        #[test]
        fn expansions_of_templates_lead_back(
            head in uri(),
            operator in prop::sample::select(vec!["", "+"]),
            tail in "[a-z/]{0,4}",
            value in uri(),
        ) {
            let template = format!("{head}{{{operator}v}}{tail}");
            let map = UriMap::prefixed("gh".to_owned());
            let expression = format!("{{{operator}v}}");
            let expand = |template: &str| match template.rsplit_once(&expression) {
                Some((before, after)) => format!("{before}{value}{after}"),
                None => template.to_owned(),
            };
            let exposed = expand(&map.expose_template(&template));
            let expected = expand(&template);
            let original = map.original(&exposed);
            prop_assert_eq!(original.as_deref(), Some(expected.as_str()));
        }
    }
}
