//! Which audiences of tokens are good for which route.

use std::fmt;

use crate::{config::Config, names::ProfileName};

/// The path of the route that shows everything.
pub const MERGED_ROUTE: &str = "/mcp";

/// The URL of a route: what a token for it is issued for (RFC 8707).
#[derive(Clone, Copy, Debug)]
pub struct ResourceUrl<'r> {
    /// Its scheme with `://`, or nothing where `base` has one.
    pub scheme: &'r str,
    /// Its host, or the URL of the gateway.
    pub base: &'r str,
    /// The path of the route.
    pub path: &'r str,
}

impl fmt::Display for ResourceUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, base, path } = self;
        write!(f, "{scheme}{base}{path}")
    }
}

/// The URL of the route of `profile`, or of the merged one, as clients know it that come to `config.listen`.
pub fn route_url(config: &Config, profile: Option<&ProfileName>) -> String {
    let base = match &config.public_url {
        Some(url) => url.as_str().trim_end_matches('/').to_owned(),
        None => format!("http://{}", config.listen),
    };
    match profile {
        Some(profile) => format!("{base}{MERGED_ROUTE}/profiles/{profile}"),
        None => format!("{base}{MERGED_ROUTE}"),
    }
}

/// The path of the same over HTTP+SSE.
const MERGED_SSE_ROUTE: &str = "/sse";

/// Whether a token that was issued for `audience` is good for `resource`, the URL of a route. It is where the
/// audience is
///
/// - that route, over streamable HTTP or HTTP+SSE; also where it names no owner of the server and the route does,
///   since an agent means one server by either,
/// - the merged route, which shows what all others show, or
/// - the gateway as a whole.
///
/// A token for one server or profile is good for no other. A slash at the end makes no difference.
pub fn audience_covers(audience: &str, resource: &str) -> bool {
    let (audience, resource) = (trimmed(audience), trimmed(resource));
    let (base, view) = split(resource);
    let Some(path) = audience.strip_prefix(base) else {
        return false;
    };
    let routes = [MERGED_ROUTE, MERGED_SSE_ROUTE];
    let of_merged = || routes.contains(&path);
    let local = view.split_once('@').map_or(view, |(local, _)| local);
    let of_view = || {
        let mut views = routes.iter().filter_map(|route| path.strip_prefix(route));
        views.any(|it| it == view || it == local)
    };
    path.is_empty() || of_merged() || of_view()
}

/// The URL of the gateway, and the view that the route shows of it: `/servers/NAME`, `/profiles/NAME` or nothing.
fn split(resource: &str) -> (&str, &str) {
    let routes = [MERGED_ROUTE, MERGED_SSE_ROUTE];
    let without_route = |text: &'_ str| {
        let mut bases = routes.iter().filter_map(|route| text.strip_suffix(route));
        bases.next().map(str::len)
    };
    let mut segments = resource.rsplitn(3, '/');
    if let (Some(_), Some("servers" | "profiles"), Some(before)) =
        (segments.next(), segments.next(), segments.next())
        && let Some(base) = without_route(before)
    {
        return (&resource[..base], &resource[before.len()..]);
    }
    let base = without_route(resource).unwrap_or(resource.len());
    (&resource[..base], "")
}

fn trimmed(url: &str) -> &str {
    url.strip_suffix('/').unwrap_or(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_its_own_route_and_what_is_below_it() {
        let check = |audience: &str, resource: &str, expect: bool| {
            assert_eq!(
                audience_covers(audience, resource),
                expect,
                "{audience} {resource}"
            );
        };
        let url = |path: &str| format!("https://mcp.example.com{path}");
        for (audience, resource, expect) in [
            ("/mcp", "/mcp", true),
            ("/mcp/", "/mcp", true),
            ("/sse", "/mcp", true),
            ("", "/mcp", true),
            ("/", "/mcp/servers/gh", true),
            ("/mcp", "/mcp/servers/gh", true),
            ("/mcp", "/sse/profiles/reading", true),
            ("/mcp/servers/gh", "/mcp/servers/gh", true),
            ("/mcp/servers/gh", "/sse/servers/gh", true),
            ("/mcp/servers/gh", "/mcp/servers/docs", false),
            ("/mcp/servers/gh", "/mcp/servers/gh@ops", true),
            ("/mcp/servers/gh@ops", "/sse/servers/gh@ops", true),
            ("/mcp/servers/gh@ops", "/mcp/servers/gh@art", false),
            ("/mcp/servers/gh@ops", "/mcp/servers/gh", false),
            ("/mcp/servers/gh", "/mcp/profiles/gh", false),
            ("/mcp/servers/gh", "/mcp", false),
            ("/mcp/servers/mcp", "/mcp/servers/mcp", true),
            ("/mcp", "/mcp/servers/mcp", true),
            ("/mcp/servers", "/mcp/servers/mcp", false),
            ("/mc", "/mcp", false),
            ("/mcpx", "/mcp", false),
        ] {
            check(&url(audience), &url(resource), expect);
        }
        check("https://mcp.example.com.evil.example", &url("/mcp"), false);
        check("https://evil.example/mcp", &url("/mcp"), false);
        check("http://mcp.example.com/mcp", &url("/mcp"), false);
        check("", &url("/mcp"), false);
        check(
            "https://a.example/gw/mcp",
            "https://a.example/gw/mcp/servers/x",
            true,
        );
        check("https://a.example", "https://a.example/gw/mcp", false);
    }
}
