//! Finds the authorization server of a server, and who we are there.

use std::sync::{Arc, Mutex};

use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, WWW_AUTHENTICATE},
};
use jiff::{SignedDuration, Timestamp};
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, OAuthHttpClient, OAuthHttpClientFuture, OAuthHttpRequest,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use super::{
    GrantError,
    token_endpoint::{ClientCredential, ClientRegistration, OAuthClient, TokenEndpoint, shorten},
};
use crate::{
    config::OAuthGrant,
    egress::{EgressClient, EgressError},
    lock::lock,
};

/// So long before its secret ends a registered client is replaced at the next sign-in, since its grants end with it; of
/// a secret with less than twice that, after half of its time.
const SECRET_LEEWAY: SignedDuration = SignedDuration::from_hours(24);

/// What a server and its authorization server say of themselves.
#[derive(Clone, Debug)]
pub(super) struct ServerMetadata {
    pub(super) metadata: IssuerMetadata,
    /// The parameter `resource` (RFC 8707).
    pub(super) resource: String,
    /// The scopes to ask for first.
    pub(super) scopes: Vec<String>,
    /// Whether the issuer published metadata; servers of 2025-03-26 may have none.
    pub(super) is_published: bool,
}

/// Metadata of an authorization server (RFC 8414), as far as we use it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct IssuerMetadata {
    pub(super) issuer: Option<String>,
    pub(super) authorization_endpoint: Option<String>,
    pub(super) token_endpoint: String,
    pub(super) registration_endpoint: Option<String>,
    pub(super) revocation_endpoint: Option<String>,
    pub(super) scopes_supported: Option<Vec<String>>,
    pub(super) code_challenge_methods_supported: Option<Vec<String>>,
    pub(super) token_endpoint_auth_methods_supported: Option<Vec<String>>,
    pub(super) client_id_metadata_document_supported: Option<bool>,
    pub(super) authorization_response_iss_parameter_supported: Option<bool>,
    /// The values of `prompt` that it takes (Initiating User Registration via OpenID Connect, section 4).
    pub(super) prompt_values_supported: Option<Vec<String>>,
    /// Every issuer of OpenID Connect has some.
    pub(super) subject_types_supported: Option<Vec<String>>,
}

impl ServerMetadata {
    /// The issuer; the origin of the token endpoint where it does not say.
    pub(super) fn issuer(&self) -> String {
        let origin = || {
            let url = Url::parse(&self.metadata.token_endpoint).ok();
            url.map(|url| url.origin().ascii_serialization())
        };
        (self.metadata.issuer.clone()).unwrap_or_else(|| origin().unwrap_or_default())
    }

    pub(super) fn token_endpoint(&self) -> TokenEndpoint {
        TokenEndpoint {
            issuer: self.issuer(),
            url: self.metadata.token_endpoint.clone(),
            auth_methods: self.metadata.token_endpoint_auth_methods_supported.clone(),
        }
    }
}

/// Asks what `url` says of itself, which has sent `challenge`, the header `WWW-Authenticate` of a 401.
pub(super) async fn discover(
    egress: &EgressClient,
    url: &Url,
    grant: &OAuthGrant,
    challenge: Option<&str>,
) -> Result<ServerMetadata, GrantError> {
    if let Some(issuer) = &grant.issuer {
        let metadata = issuer_metadata(egress, issuer).await?;
        let scopes = with_offline_access(grant.scopes.clone(), &metadata);
        return Ok(ServerMetadata {
            metadata,
            resource: to_resource(url),
            scopes,
            is_published: true,
        });
    }
    let client = Arc::new(DiscoveryClient {
        egress: egress.clone(),
        server: url.clone(),
        resource: Mutex::default(),
    });
    let mut manager =
        AuthorizationManager::new_with_oauth_http_client(url.clone(), Arc::clone(&client) as _)
            .await
            .map_err(|error| from_library(&error))?;
    let probed = match challenge {
        Some(_) => None,
        None => probe(egress, url).await,
    };
    let challenge = challenge.or(probed.as_deref());
    let found = manager.resolve_metadata_from_challenge(challenge).await;
    let found = found.map_err(|error| from_library(&error))?;
    let metadata = serde_json::to_value(&found.metadata).and_then(serde_json::from_value);
    let metadata: IssuerMetadata = metadata.map_err(|error| GrantError::Refused {
        reason: format!("the metadata of the authorization server cannot be used: {error}"),
    })?;
    let is_published = found.source.is_discovered();
    manager.set_metadata(found.metadata);
    let scopes = if grant.scopes.is_empty() {
        manager.select_initial_scopes(&[]).await
    } else {
        with_offline_access(grant.scopes.clone(), &metadata)
    };
    let resource = lock(&client.resource).take();
    // A server may name a part of itself; a foreign one would get its tokens from somebody else's consent.
    let resource = resource.filter(|resource| is_own_resource(resource, url));
    Ok(ServerMetadata {
        metadata,
        resource: resource.unwrap_or_else(|| to_resource(url)),
        scopes,
        is_published,
    })
}

/// Whether `resource` is the server at `url`, or something that it is a part of.
fn is_own_resource(resource: &str, url: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else {
        return false;
    };
    let path = resource.path().trim_end_matches('/');
    let rest = url.path().strip_prefix(path);
    resource.origin() == url.origin()
        && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The header `WWW-Authenticate` of what a server answers to a request without a token, should it be a 401.
async fn probe(egress: &EgressClient, url: &Url) -> Option<String> {
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
    let mut request = Request::new(list.to_string().into_bytes());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url.as_str().parse().ok()?;
    let headers = request.headers_mut();
    let json = HeaderValue::from_static("application/json");
    headers.insert(CONTENT_TYPE, json);
    let both = HeaderValue::from_static("application/json, text/event-stream");
    headers.insert(ACCEPT, both);
    let answer = egress.fetch(request).await.ok()?;
    let is_challenge = answer.status() == StatusCode::UNAUTHORIZED;
    let challenge = answer
        .headers()
        .get(WWW_AUTHENTICATE)
        .filter(|_| is_challenge)?;
    challenge.to_str().ok().map(str::to_owned)
}

/// `scopes` with the one that refresh tokens need where the issuer lists it.
fn with_offline_access(mut scopes: Vec<String>, metadata: &IssuerMetadata) -> Vec<String> {
    const OFFLINE: &str = "offline_access";
    let is = |scope: &String| scope == OFFLINE;
    let is_supported = (metadata.scopes_supported.as_ref()).is_some_and(|it| it.iter().any(is));
    if is_supported && !scopes.is_empty() && !scopes.iter().any(is) {
        scopes.push(OFFLINE.to_owned());
    }
    scopes
}

/// The canonical URI of a server.
fn to_resource(url: &Url) -> String {
    let mut url = url.clone();
    url.set_fragment(None);
    match url.path() {
        "/" if url.query().is_none() => url.as_str().trim_end_matches('/').to_owned(),
        _ => url.to_string(),
    }
}

/// The metadata of `issuer`, which the config names.
pub(super) async fn issuer_metadata(
    egress: &EgressClient,
    issuer: &str,
) -> Result<IssuerMetadata, GrantError> {
    let refused = |reason: String| GrantError::Refused { reason };
    let base = Url::parse(issuer).map_err(|_| refused(format!("`{issuer}` is not a URL")))?;
    let mut unreachable = None;
    for place in metadata_places(&base) {
        let answer = match egress.get(&place).await {
            Ok(answer) if answer.status() == StatusCode::OK => answer,
            Ok(answer) if answer.status().is_server_error() => {
                unreachable = Some(format!("{place}: HTTP {}", answer.status()));
                continue;
            }
            Ok(_) => continue,
            Err(error @ EgressError::Refused { .. }) => return Err(refused(error.to_string())),
            Err(error) => {
                unreachable = Some(error.to_string());
                continue;
            }
        };
        let Ok(metadata) = serde_json::from_slice::<IssuerMetadata>(answer.body()) else {
            continue;
        };
        let found = metadata.issuer.as_deref().unwrap_or_default();
        if found.trim_end_matches('/') != issuer.trim_end_matches('/') {
            let found = shorten(found);
            return Err(refused(format!(
                "the metadata at {place} are those of the issuer `{found}`, not of `{issuer}`"
            )));
        }
        if metadata.token_endpoint.is_empty() {
            continue;
        }
        return Ok(metadata);
    }
    Err(match unreachable {
        Some(reason) => GrantError::Unreachable { reason },
        None => refused(format!("`{issuer}` publishes no metadata (RFC 8414)")),
    })
}

/// Where an issuer may publish its metadata, in the order of the protocol.
fn metadata_places(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_matches('/').to_owned();
    let paths = if path.is_empty() {
        vec![
            "/.well-known/oauth-authorization-server".to_owned(),
            "/.well-known/openid-configuration".to_owned(),
        ]
    } else {
        vec![
            format!("/.well-known/oauth-authorization-server/{path}"),
            format!("/.well-known/openid-configuration/{path}"),
            format!("/{path}/.well-known/openid-configuration"),
        ]
    };
    let place = |path: String| {
        let mut place = issuer.clone();
        place.set_path(&path);
        place
    };
    paths.into_iter().map(place).collect()
}

/// What the gateway says of itself as a client, to issuers that register it or read its document (RFC 7591,
/// section 2).
pub fn client_metadata(redirect_uri: &Url) -> Value {
    let is_web = redirect_uri.scheme() == "https";
    json!({
        "client_name": "Tollbridge",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": if is_web { "web" } else { "native" },
    })
}

/// Registers us at an issuer (RFC 7591), at this time with this redirect URI.
pub(super) async fn register(
    egress: &EgressClient,
    metadata: &IssuerMetadata,
    (redirect_uri, now): (&Url, Timestamp),
    scopes: &[String],
) -> Result<OAuthClient, GrantError> {
    let refused = |reason: String| GrantError::Refused { reason };
    let endpoint = metadata.registration_endpoint.as_deref().ok_or_else(|| {
        refused(
            "the authorization server registers no clients by itself; register one there and set `auth.client_id`"
                .to_owned(),
        )
    })?;
    let methods = metadata.token_endpoint_auth_methods_supported.as_deref();
    let takes = |method: &str| methods.is_none_or(|all| all.iter().any(|it| it == method));
    let method = ["none", "client_secret_basic", "client_secret_post"];
    let method = method.into_iter().find(|it| takes(it)).unwrap_or("none");
    let mut body = client_metadata(redirect_uri);
    body["token_endpoint_auth_method"] = method.into();
    if !scopes.is_empty() {
        body["scope"] = scopes.join(" ").into();
    }
    let mut request = Request::new(body.to_string().into_bytes());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = (endpoint.parse())
        .map_err(|_| refused("the registration endpoint is not a URL".to_owned()))?;
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(CONTENT_TYPE, json);
    let answer = egress.fetch(request).await.map_err(|error| {
        let reason = error.to_string();
        if matches!(error, EgressError::Refused { .. }) {
            refused(reason)
        } else {
            GrantError::Unreachable { reason }
        }
    })?;
    registered(endpoint, &answer, (redirect_uri, now))
}

/// When a client whose secret ends at `expires`, in seconds, is replaced. 0 is never (RFC 7591, section 3.2.1).
fn renew_at(now: Timestamp, expires: i64) -> Option<Timestamp> {
    let expires = Timestamp::from_second(expires).ok();
    let expires = expires.filter(|it| *it != Timestamp::UNIX_EPOCH)?;
    let left = expires.duration_since(now);
    Some(expires - SECRET_LEEWAY.min(left / 2))
}

fn registered(
    endpoint: &str,
    answer: &Response<bytes::Bytes>,
    (redirect_uri, now): (&Url, Timestamp),
) -> Result<OAuthClient, GrantError> {
    let status = answer.status();
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    let text = |key: &str| body[key].as_str().filter(|it| !it.is_empty());
    let Some(id) = text("client_id").filter(|_| status.is_success()) else {
        let code = text("error").map(shorten).unwrap_or_default();
        let description = text("error_description").map(shorten).unwrap_or_default();
        let reason = format!("{endpoint}: HTTP {status} {code} {description}");
        let reason = reason.trim_end().to_owned();
        return Err(if status.is_server_error() {
            GrantError::Unreachable { reason }
        } else {
            GrantError::Refused { reason }
        });
    };
    let is_public = text("token_endpoint_auth_method") == Some("none");
    let secret = text("client_secret").filter(|_| !is_public);
    let expires = body["client_secret_expires_at"].as_i64();
    let expires = expires.filter(|_| secret.is_some());
    let expires = expires.and_then(|expires| renew_at(now, expires));
    Ok(OAuthClient {
        id: id.to_owned(),
        credential: secret.map_or(ClientCredential::Public, |secret| {
            ClientCredential::Secret(secret.to_owned())
        }),
        is_configured: false,
        registration: Some(ClientRegistration {
            redirect_uri: redirect_uri.clone(),
            renew_at_ms: expires.map(Timestamp::as_millisecond),
        }),
    })
}

fn from_library(error: &AuthError) -> GrantError {
    let mut reason = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        reason = format!("{reason}: {inner}");
        cause = inner.source();
    }
    if let AuthError::DiscoveryRequestFailed { .. } = error {
        return GrantError::Unreachable { reason };
    }
    GrantError::Refused { reason }
}

/// Makes the requests of the library, and keeps what it does not tell.
struct DiscoveryClient {
    egress: EgressClient,
    server: Url,
    /// What the server calls itself (RFC 9728).
    resource: Mutex<Option<String>>,
}

impl OAuthHttpClient for DiscoveryClient {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            let url = request.request.uri().to_string();
            let is_server = url == self.server.as_str();
            let answer = self.egress.execute(request).await;
            // Whoever asks a server without being challenged may get an event stream without an end: what it
            // says is in its metadata.
            let answer = match answer {
                Err(_) if is_server => {
                    let mut none = Response::new(Vec::new());
                    *none.status_mut() = StatusCode::NOT_FOUND;
                    none
                }
                answer => answer?,
            };
            let is_metadata = answer.status() == StatusCode::OK && !is_server;
            let body = || serde_json::from_slice::<Value>(answer.body()).ok();
            if let Some(body) = is_metadata.then(body).flatten()
                && body.get("issuer").is_none()
                && let Some(resource) = body["resource"].as_str()
            {
                *lock(&self.resource) = Some(resource.to_owned());
            }
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_are_looked_for_in_the_order_of_the_protocol() {
        let check = |issuer: &str, expect: &[&str]| {
            let places = metadata_places(&Url::parse(issuer).unwrap());
            let places: Vec<_> = places.iter().map(Url::path).collect();
            assert_eq!(places, expect, "{issuer}");
        };
        let root = [
            "/.well-known/oauth-authorization-server",
            "/.well-known/openid-configuration",
        ];
        check("https://as", &root);
        check("https://as/", &root);
        let tenant = [
            "/.well-known/oauth-authorization-server/a/b",
            "/.well-known/openid-configuration/a/b",
            "/a/b/.well-known/openid-configuration",
        ];
        check("https://as/a/b", &tenant);
        check("https://as/a/b/", &tenant);
    }

    #[test]
    fn clients_are_replaced_before_their_secret_ends() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let check = |expires_in: i64, expect: i64| {
            let at = renew_at(now, now.as_second() + expires_in).unwrap();
            assert_eq!(at.duration_since(now).as_secs(), expect, "{expires_in}");
        };
        let day = 24 * 3600;
        check(30 * day, 29 * day);
        check(2 * day + 1, day + 1);
        check(2 * day, day);
        check(3600, 1800);
        assert_eq!(renew_at(now, 0), None);
        assert!(renew_at(now, 1).unwrap() < now, "it has ended");
    }

    #[test]
    fn the_resource_is_the_canonical_url() {
        let check = |url: &str, expect: &str| {
            assert_eq!(to_resource(&Url::parse(url).unwrap()), expect);
        };
        check("https://MCP.example.com", "https://mcp.example.com");
        check(
            "https://mcp.example.com/mcp#x",
            "https://mcp.example.com/mcp",
        );
        check(
            "https://mcp.example.com/?a=b",
            "https://mcp.example.com/?a=b",
        );
    }
}
