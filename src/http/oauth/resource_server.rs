//! What clients are told of the authorization that a route needs: the challenge of an answer (RFC 6750, section 3) and
//! the metadata of the resource (RFC 9728).

use http::HeaderValue;
use serde_json::{Value, json};

use super::{PublicUrl, RequestTarget};
use crate::{
    auth::{AuthError, MERGED_ROUTE, token::Scopes},
    config::{AuthMethod, Authentication, Config, Listen},
    http::Route,
    names::{ProfileName, Scope},
};

/// The place of metadata of resources.
pub(in crate::http) const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";

/// What a config says of the resources that the routes are.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::http) struct ResourceServer {
    pub(in crate::http) public_url: PublicUrl,
    authentication: Authentication,
    /// Who issues tokens, where that is not the gateway.
    issuers: Vec<String>,
    /// What an external issuer is asked for, in place of our scopes.
    scopes: Option<Scopes>,
}

impl ResourceServer {
    /// By `config`, whose listener is at `listen`.
    pub(in crate::http) fn new(config: &Config, listen: &Listen) -> Self {
        let authentication = config.governance.auth;
        let external = config.oauth.external_issuer().map(str::to_owned);
        let machines = config.jwt.values().map(|issuer| issuer.issuer.clone());
        let issuers = if authentication.allows(AuthMethod::Oauth) {
            external.into_iter().collect()
        } else {
            machines.collect()
        };
        let is_external = config.oauth.external_issuer().is_some();
        let scopes = (is_external && !config.oauth.scopes.is_empty())
            .then(|| config.oauth.scopes.iter().map(String::as_str).collect());
        Self {
            public_url: PublicUrl::new(config, listen),
            authentication,
            issuers,
            scopes,
        }
    }

    /// What `WWW-Authenticate` says on the route at `path`, where the rules of `profile` hold.
    pub(in crate::http) fn challenge(
        &self,
        why: &AuthError,
        (path, profile): (&str, Option<&ProfileName>),
        request: RequestTarget<'_>,
    ) -> HeaderValue {
        let mut parameters = vec![("realm", "tollbridge".to_owned())];
        if let Some(error) = why.challenge_error() {
            parameters.push(("error", error.to_owned()));
        }
        if self.authentication.allows_tokens() && !why.is_mistake() {
            let base = self.public_url.of(request);
            parameters.push(("resource_metadata", format!("{base}{METADATA_PATH}{path}")));
            let needed = if let AuthError::InsufficientScope(needed) = why {
                needed.clone()
            } else {
                Scopes::of_route(profile)
            };
            let scopes = self.asked_scopes(needed);
            parameters.push(("scope", scopes.to_string()));
        }
        let parameters = parameters
            .iter()
            .map(|(name, value)| format!("{name}=\"{value}\""));
        let parameters: Vec<_> = parameters.collect();
        let challenge = format!("Bearer {}", parameters.join(", "));
        // A scope of the config may have a quote in it, or be no ASCII.
        HeaderValue::try_from(challenge).unwrap_or_else(|_| HeaderValue::from_static("Bearer"))
    }

    /// The metadata at the URL path `asked`, which begins with [`METADATA_PATH`]; `None` where no route is behind it
    /// that `find_route` knows.
    pub(in crate::http) fn metadata(
        &self,
        asked: &str,
        request: RequestTarget<'_>,
        find_route: impl FnOnce(Scope) -> Option<Scope>,
    ) -> Option<Value> {
        if !self.authentication.allows_tokens() {
            return None;
        }
        let rest = asked.strip_prefix(METADATA_PATH)?;
        // The path of the public URL, where it has one, precedes that of the route (RFC 9728, section 3.1).
        let prefix = self.public_url.path();
        let path = rest
            .strip_prefix(prefix)
            .filter(|_| !prefix.is_empty())
            .unwrap_or(rest);
        let path = if matches!(path, "" | "/") {
            MERGED_ROUTE
        } else {
            path
        };
        let route = Route::parse(path)?;
        let (Route::Mcp(scope) | Route::Sse(scope)) = route else {
            return None;
        };
        let scope = find_route(scope)?;
        let path = path.strip_suffix('/').unwrap_or(path);
        let base = self.public_url.of(request);
        let servers = if self.issuers.is_empty() {
            vec![base.clone()]
        } else {
            self.issuers.clone()
        };
        let scopes = self.asked_scopes(Scopes::of_route(scope.profile()));
        Some(json!({
            "resource": format!("{base}{path}"),
            "authorization_servers": servers,
            "scopes_supported": scopes.iter().collect::<Vec<_>>(),
            "bearer_methods_supported": ["header"],
            "resource_name": format!("Tollbridge {path}"),
        }))
    }

    /// Whether clients are told where to get tokens.
    pub(in crate::http) fn takes_tokens(&self) -> bool {
        self.authentication.allows_tokens()
    }

    fn asked_scopes(&self, needed: Scopes) -> Scopes {
        self.scopes.clone().unwrap_or(needed)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::names::ServerName;

    const EXTERNAL: &str = r#"
        public_url = "https://mcp.example.com"
        [governance]
        auth = ["keys", "oauth"]
        [oauth]
        mode = "external"
        issuer = "https://idp.example.com"
    "#;

    fn metadata(config: &str, path: &str) -> Option<String> {
        let config = Config::example(config);
        let server = ResourceServer::new(&config, &config.listen);
        let request = Request::get(path)
            .header("host", "localhost:8080")
            .body(())
            .unwrap();
        let none = Scope::Server(ServerName::parse("none").unwrap());
        let find_route = |scope: Scope| {
            let view = scope.view().map(|id| Scope::View {
                id,
                profile: ProfileName::parse("reading").ok(),
            });
            let scope = view.unwrap_or(scope);
            (scope != none).then_some(scope)
        };
        let found = server.metadata(path, RequestTarget::of(&request), find_route);
        found.map(|found| {
            format!(
                "{} {} {}",
                found["resource"], found["authorization_servers"], found["scopes_supported"]
            )
        })
    }

    #[test]
    fn each_route_is_a_resource_of_its_own() {
        let check = |path: &str, expect: Option<(&str, &str)>| {
            let found = metadata(EXTERNAL, &format!("{METADATA_PATH}{path}"));
            let expect = expect.map(|(resource, scopes)| {
                let url = format!("https://mcp.example.com{resource}");
                format!("\"{url}\" [\"https://idp.example.com\"] {scopes}")
            });
            assert_eq!(found, expect, "{path}");
        };
        let both = r#"["tools:call","tools:read"]"#;
        check("", Some(("/mcp", both)));
        check("/mcp", Some(("/mcp", both)));
        check("/mcp/", Some(("/mcp", both)));
        check("/sse", Some(("/sse", both)));
        check("/mcp/servers/gh", Some(("/mcp/servers/gh", both)));
        check("/mcp/servers/none", None);
        check("/status", None);
        let profile = r#"["profile:reading","tools:call","tools:read"]"#;
        check(
            "/mcp/profiles/reading",
            Some(("/mcp/profiles/reading", profile)),
        );
        // A view's are those of its profile.
        let view = "/mcp/views/view_0190c42f-7e1c-7abc-8def-0123456789ab";
        check(view, Some((view, profile)));
    }

    #[test]
    fn who_issues_tokens_is_said_by_the_config() {
        let at = METADATA_PATH;
        let builtin = "[governance]\nauth = 'oauth'";
        let found = metadata(builtin, at).unwrap();
        assert!(
            found.starts_with(r#""http://localhost:8080/mcp" ["http://localhost:8080"]"#),
            "{found}"
        );
        let below = EXTERNAL.replace(
            "example.com\"\n        [gov",
            "example.com/gw\"\n        [gov",
        );
        let found = metadata(&below, &format!("{at}/gw/mcp")).unwrap();
        assert!(
            found.starts_with(r#""https://mcp.example.com/gw/mcp""#),
            "{found}"
        );
        let entra = format!("{EXTERNAL}\nscopes = ['api://x/access']");
        assert!(
            metadata(&entra, at)
                .unwrap()
                .ends_with(r#"["api://x/access"]"#)
        );
        assert_eq!(metadata("[governance]\nauth = 'keys'", at), None);
    }

    #[test]
    fn challenges_say_where_to_get_a_token() {
        let config = Config::example(EXTERNAL);
        let server = ResourceServer::new(&config, &config.listen);
        let request = Request::get("/").body(()).unwrap();
        let check = |why: &AuthError, path: &str, expect: &str| {
            let found = server.challenge(why, (path, None), RequestTarget::of(&request));
            assert_eq!(found.to_str().unwrap(), expect);
        };
        check(
            &AuthError::Missing(config.governance.auth),
            "/mcp",
            "Bearer realm=\"tollbridge\", resource_metadata=\"https://mcp.example.com/.well-known/\
             oauth-protected-resource/mcp\", scope=\"tools:call tools:read\"",
        );
        let needed = Scopes::needed(true, None);
        check(
            &AuthError::InsufficientScope(needed),
            "/mcp/servers/gh",
            "Bearer realm=\"tollbridge\", error=\"insufficient_scope\", resource_metadata=\"https://mcp.example.com/\
             .well-known/oauth-protected-resource/mcp/servers/gh\", scope=\"tools:call\"",
        );
        check(
            &AuthError::TwoAgents,
            "/mcp",
            "Bearer realm=\"tollbridge\", error=\"invalid_request\"",
        );
    }
}
