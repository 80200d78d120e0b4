//! What the path of a request leads to.

use http::Method as Verb;

use super::oauth_probes;
use crate::{
    names::{ProfileName, Scope, ServerName, ViewId},
    proxy,
};

/// What a path leads to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Route {
    /// Where the gateway is managed.
    Api,
    /// Where a person signs in to servers.
    Connections,
    /// Where people see and change the gateway in a browser.
    Dashboard,
    Health,
    Mcp(Scope),
    Messages,
    Metrics,
    /// Where clients look for an authorization server.
    OAuth,
    /// Where issuers send browsers back.
    OAuthCallback,
    /// Where issuers read who this client is.
    OAuthClient,
    Ready,
    Sse(Scope),
    Status,
}

impl Route {
    pub(super) fn parse(path: &str) -> Option<Self> {
        match path.strip_suffix('/').unwrap_or(path) {
            "/mcp" => Some(Self::Mcp(Scope::All)),
            "/sse" => Some(Self::Sse(Scope::All)),
            "/messages" => Some(Self::Messages),
            "/connections" => Some(Self::Connections),
            proxy::CALLBACK_PATH => Some(Self::OAuthCallback),
            proxy::CLIENT_PATH => Some(Self::OAuthClient),
            "/status" | "" => Some(Self::Status),
            "/metrics" => Some(Self::Metrics),
            "/healthz" => Some(Self::Health),
            "/readyz" => Some(Self::Ready),
            "/ui" => Some(Self::Dashboard),
            path if path.starts_with("/ui/") => Some(Self::Dashboard),
            path if path.starts_with("/api/") => Some(Self::Api),
            path if oauth_probes::is_probe(path) => Some(Self::OAuth),
            path => {
                if let Some(part) = path.strip_prefix("/mcp/") {
                    return parse_scope(part).map(Self::Mcp);
                }
                path.strip_prefix("/sse/")
                    .and_then(parse_scope)
                    .map(Self::Sse)
            }
        }
    }

    /// The verbs it takes, and how the header `Allow` lists them.
    pub(super) fn allowed_methods(&self) -> (&'static [Verb], &'static str) {
        match self {
            Self::Api => (&API_METHODS, "GET, HEAD, POST, PUT, PATCH, DELETE"),
            Self::Health | Self::Metrics | Self::Ready | Self::Status => {
                (&[Verb::GET, Verb::HEAD], "GET, HEAD")
            }
            Self::Mcp(_) => (&[Verb::GET, Verb::POST, Verb::DELETE], "GET, POST, DELETE"),
            Self::Messages => (&[Verb::POST], "POST"),
            Self::Connections | Self::Dashboard | Self::OAuth => {
                (&[Verb::GET, Verb::HEAD, Verb::POST], "GET, HEAD, POST")
            }
            Self::OAuthCallback | Self::OAuthClient => (&[Verb::GET, Verb::HEAD], "GET, HEAD"),
            Self::Sse(_) => (&[Verb::GET], "GET"),
        }
    }

    /// Whether clients speak MCP there, which is for agents only.
    pub(super) fn requires_agent(&self) -> bool {
        match self {
            Self::Mcp(_) | Self::Messages | Self::Sse(_) => true,
            Self::Api
            | Self::Connections
            | Self::Dashboard
            | Self::Health
            | Self::Metrics
            | Self::OAuth
            | Self::OAuthCallback
            | Self::OAuthClient
            | Self::Ready
            | Self::Status => false,
        }
    }

    /// Whether it is where clients are served, and not on a listener of its own.
    pub(super) fn is_for_clients(&self) -> bool {
        let is_sign_in = matches!(
            self,
            Self::Connections | Self::OAuth | Self::OAuthCallback | Self::OAuthClient
        );
        is_sign_in || self.requires_agent()
    }

    pub(super) fn scope(&self) -> Option<&Scope> {
        match self {
            Self::Mcp(scope) | Self::Sse(scope) => Some(scope),
            Self::Api
            | Self::Connections
            | Self::Dashboard
            | Self::Health
            | Self::Messages
            | Self::Metrics
            | Self::OAuth
            | Self::OAuthCallback
            | Self::OAuthClient
            | Self::Ready
            | Self::Status => None,
        }
    }
}

/// The verbs of the API: which of them an operation has, the API says.
const API_METHODS: [Verb; 6] = [
    Verb::GET,
    Verb::HEAD,
    Verb::POST,
    Verb::PUT,
    Verb::PATCH,
    Verb::DELETE,
];

/// The scope that the end of a path names.
fn parse_scope(path: &str) -> Option<Scope> {
    if let Some(name) = path.strip_prefix("servers/") {
        return ServerName::parse(name).ok().map(Scope::Server);
    }
    if let Some(id) = path.strip_prefix("views/") {
        let id = ViewId::parse(id)?;
        return Some(Scope::View { id, profile: None });
    }
    let name = path.strip_prefix("profiles/")?;
    ProfileName::parse(name).ok().map(Scope::Profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_somewhere_or_nowhere() {
        let check = |path: &str, expect: Option<Route>| {
            assert_eq!(Route::parse(path), expect, "{path}");
        };
        let one = || Scope::Server(ServerName::parse("gh").unwrap());
        check("/mcp", Some(Route::Mcp(Scope::All)));
        check("/mcp/", Some(Route::Mcp(Scope::All)));
        check("/mcp/servers/gh", Some(Route::Mcp(one())));
        check("/sse/servers/gh", Some(Route::Sse(one())));
        let reading = || Scope::Profile(ProfileName::parse("reading").unwrap());
        check("/mcp/profiles/reading", Some(Route::Mcp(reading())));
        check("/sse/profiles/reading/", Some(Route::Sse(reading())));
        check("/mcp/profiles/", None);
        check("/mcp/profiles/a/b", None);
        check("/mcp/others/a", None);
        let id = "view_0190c42f-7e1c-7abc-8def-0123456789ab";
        let view = || Scope::View {
            id: ViewId::parse(id).unwrap(),
            profile: None,
        };
        check(&format!("/mcp/views/{id}"), Some(Route::Mcp(view())));
        check(&format!("/sse/views/{id}/"), Some(Route::Sse(view())));
        check(&format!("/mcp/views/{}", id.to_uppercase()), None);
        check("/mcp/views/a", None);
        check("/messages/", Some(Route::Messages));
        check("/metrics", Some(Route::Metrics));
        check("/", Some(Route::Status));
        for probe in [
            "/.well-known/oauth-protected-resource/mcp",
            "/mcp/.well-known/openid-configuration",
            "/register",
            "/token",
            "/authorize/",
        ] {
            check(probe, Some(Route::OAuth));
        }
        check("/tokens", None);
        check("/mcp/token", None);
        check("/mcp/servers/", None);
        check("/mcp/servers/a/b", None);
        check("/api/v1/servers", Some(Route::Api));
        check("/api", None);
        check("/ui", Some(Route::Dashboard));
        check("/ui/servers/gh", Some(Route::Dashboard));
        check("/uis", None);
        check("/other", None);
    }
}
