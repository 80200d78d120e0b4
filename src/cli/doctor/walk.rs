//! The way of one client to the page where people log in.

mod login;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use serde_json::{Map, Value, json};
use url::{Host, Url};

use self::login::error_of;
use super::{
    ClientReport, SignInStep, StepReport, StepResult,
    clients::{KnownClient, ResourceCheck},
    discovery::{
        BearerChallenge, Fetcher, bearer_challenge, resource_metadata_places,
        server_metadata_places,
    },
};

/// The characters of a text that a report shows.
const SHOWN_CHARS: usize = 200;

/// What to do about a server without metadata of the resource.
const PUBLISH_METADATA: &str = "publish metadata of the resource (RFC 9728) and name them in the challenge of the 401; \
     in Tollbridge: add \"oauth\" to `governance.auth` and set `public_url`";
/// What to do where an authorization server registers nobody, or refuses `resource`.
const USE_BUILTIN: &str = "put an authorization server before it that does: in Tollbridge `oauth.mode = \"builtin\"` \
     with this issuer in `[oauth.login]`";

/// The way of `client` to sign in at `url`; with `client_id` it does not register itself.
pub(super) async fn walk(
    client: &'static KnownClient,
    url: &Url,
    client_id: Option<&str>,
    fetcher: &Fetcher,
) -> ClientReport {
    let mut walk = Walk {
        client,
        url,
        fetcher,
        steps: Vec::new(),
        registered: None,
    };
    let outcome = walk.run(client_id).await;
    let ok = outcome.is_ok();
    if let Some((management, token)) = &walk.registered {
        fetcher.unregister(management, token).await;
    }
    walk.steps.extend(outcome.err());
    ClientReport {
        client: client.name,
        ok,
        steps: walk.steps,
    }
}

struct Walk<'w> {
    client: &'static KnownClient,
    url: &'w Url,
    fetcher: &'w Fetcher,
    steps: Vec<StepReport>,
    /// Where the client that was registered can be deleted (RFC 7592), and the token for that.
    registered: Option<(Url, String)>,
}

/// What is known of the resource.
struct FoundResource {
    /// Its identifier.
    id: String,
    /// Who issues tokens for it.
    issuer: Url,
    /// What to ask for.
    scope: Option<String>,
}

/// A step that the client does not get over.
type Failure = StepReport;

impl Walk<'_> {
    async fn run(&mut self, client_id: Option<&str>) -> Result<(), Failure> {
        let Some(challenge) = self.connect().await? else {
            return Ok(());
        };
        let resource = self.find_resource(&challenge).await?;
        let server = self.find_server(&resource.issuer).await?;
        self.check_pkce(&server)?;
        let id = match client_id {
            Some(id) => id.to_owned(),
            None => self.register(&server).await?,
        };
        self.start_login(&server, &resource, &id).await
    }

    fn ok(&mut self, step: SignInStep, detail: String) {
        self.steps.push(StepReport {
            step,
            result: StepResult::Ok,
            detail,
            advice: None,
        });
    }

    fn warn(&mut self, step: SignInStep, detail: String, advice: &str) {
        self.steps.push(StepReport {
            step,
            result: StepResult::Warning,
            detail,
            advice: Some(advice.to_owned()),
        });
    }

    /// Asks without a token; `None` where none is needed.
    async fn connect(&mut self) -> Result<Option<BearerChallenge>, Failure> {
        let step = SignInStep::Connect;
        let response = self.fetcher.connect(self.url).await;
        let response = response.map_err(|why| {
            failure(
                step,
                why,
                "check the URL, and whether the server runs and can be reached from here",
            )
        })?;
        if self.client.is_hosted {
            self.check_reach()?;
        }
        let status = response.status();
        if status == StatusCode::UNAUTHORIZED {
            self.ok(step, "401, as a client without a token expects".to_owned());
            return self.read_challenge(&response).map(Some);
        }
        if status.is_success() {
            self.ok(step, format!("{status}: it wants no sign-in"));
            return Ok(None);
        }
        let advice = match status {
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
                "use the URL of the MCP endpoint, such as https://HOST/mcp"
            }
            StatusCode::FORBIDDEN => {
                "answer 401 to requests without a token: clients begin a sign-in on nothing else. A firewall or a \
                 proxy before the server may have answered"
            }
            _ if status.is_redirection() => "use the URL that it redirects to",
            _ => "look into the log of the server, or of a proxy before it",
        };
        let place = response.headers().get(header::LOCATION);
        let place = place.and_then(|place| place.to_str().ok());
        let place = place.map_or(String::new(), |place| format!(", to {}", shorten(place)));
        Err(failure(step, format!("{status}{place}, not 401"), advice))
    }

    /// Whether the servers of a vendor can reach the URL.
    fn check_reach(&mut self) -> Result<(), Failure> {
        let step = SignInStep::Connect;
        let name = self.client.name;
        let host = self.url.host_str().unwrap_or_default();
        if is_private(self.url) {
            let detail = format!("{name} connects from its own servers, which cannot reach {host}");
            let advice =
                "publish it under a public name with `https:`, and try again with that URL";
            self.warn(step, detail, advice);
        } else if self.url.scheme() != "https" {
            let detail = format!("{name} connects over TLS alone, and this is {}", self.url);
            return Err(failure(step, detail, "serve it with `https:`"));
        }
        Ok(())
    }

    fn read_challenge(&mut self, response: &Response<Bytes>) -> Result<BearerChallenge, Failure> {
        let step = SignInStep::Challenge;
        let challenge = bearer_challenge(response.headers());
        if let Some(challenge) = challenge.clone()
            && let Some(metadata) = challenge.resource_metadata.clone()
        {
            self.ok(step, format!("it names {}", shorten(&metadata)));
            return Ok(challenge);
        }
        let detail = match &challenge {
            Some(_) => "`WWW-Authenticate` has no `resource_metadata`",
            None => "the 401 has no `WWW-Authenticate: Bearer`",
        };
        let advice = "send `WWW-Authenticate: Bearer resource_metadata=\"URL\"` with the 401, and see that no proxy \
             takes it away; Tollbridge sends it where \"oauth\" is in `governance.auth`";
        if self.client.finds_metadata {
            self.warn(
                step,
                format!("{detail}; it looks in well-known places"),
                advice,
            );
            return Ok(challenge.unwrap_or_default());
        }
        let detail = format!("{detail}, and it looks nowhere else");
        Err(failure(step, detail, advice))
    }

    async fn find_resource(
        &mut self,
        challenge: &BearerChallenge,
    ) -> Result<FoundResource, Failure> {
        let step = SignInStep::ResourceMetadata;
        let places = match &challenge.resource_metadata {
            Some(written) => vec![Url::parse(written).map_err(|error| {
                let detail = format!("{}: {error}", shorten(written));
                failure(
                    step,
                    detail,
                    "write an absolute URL into `resource_metadata`",
                )
            })?],
            None => resource_metadata_places(self.url),
        };
        let mut missing = Vec::new();
        for place in &places {
            match self.fetcher.document(place).await {
                Ok(metadata) => return self.read_resource(place, &metadata, challenge),
                Err(why) => missing.push(format!("{place}: {why}")),
            }
        }
        let detail = missing.join("; ");
        if challenge.resource_metadata.is_some() || !self.client.assumes_server {
            return Err(failure(step, detail, PUBLISH_METADATA));
        }
        let detail = format!("{detail}; it takes the server itself for the authorization server");
        self.warn(step, detail, PUBLISH_METADATA);
        let mut issuer = self.url.clone();
        issuer.set_path("");
        issuer.set_query(None);
        issuer.set_fragment(None);
        Ok(FoundResource {
            id: self.url.to_string(),
            issuer,
            scope: challenge.scope.clone(),
        })
    }

    fn read_resource(
        &mut self,
        place: &Url,
        metadata: &Map<String, Value>,
        challenge: &BearerChallenge,
    ) -> Result<FoundResource, Failure> {
        let step = SignInStep::ResourceMetadata;
        let id = metadata.get("resource").and_then(Value::as_str);
        let id = id.ok_or_else(|| {
            let detail = format!("{place} has no `resource`");
            failure(step, detail, PUBLISH_METADATA)
        })?;
        if !self.is_resource(id) {
            let detail = format!(
                "the resource of {place} is {}, the URL is {}",
                shorten(id),
                self.url
            );
            let advice = "use the URL that the metadata name, or have them name this one; in Tollbridge they are made \
                 of `public_url`";
            return Err(failure(step, detail, advice));
        }
        let servers = metadata.get("authorization_servers");
        let server = servers.and_then(Value::as_array).and_then(|it| it.first());
        let issuer = server.and_then(Value::as_str).map(Url::parse);
        let Some(Ok(issuer)) = issuer else {
            let detail = format!("{place} names no authorization server");
            let advice = "add `authorization_servers` with the URL of the issuer to the metadata";
            return Err(failure(step, detail, advice));
        };
        let supported = metadata.get("scopes_supported").and_then(Value::as_array);
        let supported = supported.filter(|_| self.client.reads_scopes).map(|all| {
            let all: Vec<&str> = all.iter().filter_map(Value::as_str).collect();
            all.join(" ")
        });
        self.ok(step, format!("{place} names the issuer {issuer}"));
        Ok(FoundResource {
            id: id.to_owned(),
            issuer,
            scope: challenge.scope.clone().or(supported),
        })
    }

    /// Whether the client accepts `id` as the identifier of what is at the URL.
    fn is_resource(&self, id: &str) -> bool {
        let Ok(id) = Url::parse(id) else {
            return false;
        };
        let url = self.url;
        match self.client.resource {
            ResourceCheck::Any => true,
            ResourceCheck::Exact => id == *url,
            ResourceCheck::Covers => {
                let above = id.path().trim_end_matches('/');
                let rest = url.path().strip_prefix(above);
                id.origin() == url.origin()
                    && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }

    async fn find_server(&mut self, issuer: &Url) -> Result<Map<String, Value>, Failure> {
        let step = SignInStep::ServerMetadata;
        let mut missing = Vec::new();
        for place in server_metadata_places(issuer) {
            let metadata = match self.fetcher.document(&place).await {
                Ok(metadata) => metadata,
                Err(why) => {
                    missing.push(format!("{place}: {why}"));
                    continue;
                }
            };
            for endpoint in ["authorization_endpoint", "token_endpoint"] {
                if url_of(&metadata, endpoint).is_none() {
                    let detail = format!("{place} has no `{endpoint}`");
                    let advice = "complete the metadata of the authorization server (RFC 8414)";
                    return Err(failure(step, detail, advice));
                }
            }
            self.check_issuer(issuer, &place, &metadata)?;
            self.check_token_endpoint(&metadata)?;
            return Ok(metadata);
        }
        let advice = "publish metadata of the authorization server in one of these places (RFC 8414, OpenID Connect \
             Discovery); where the issuer is private, use --allow";
        Err(failure(step, missing.join("; "), advice))
    }

    fn check_issuer(
        &mut self,
        issuer: &Url,
        place: &Url,
        metadata: &Map<String, Value>,
    ) -> Result<(), Failure> {
        let step = SignInStep::ServerMetadata;
        let named = metadata.get("issuer").and_then(Value::as_str);
        let named = named.unwrap_or_default();
        let (without_slash, expected) = (named.trim_end_matches('/'), issuer.as_str());
        // An issuer that is an origin is written without a slash, where a URL has one.
        let is_same =
            named == expected || (issuer.path() == "/" && format!("{named}/") == expected);
        if is_same {
            self.ok(step, format!("{place}"));
            return Ok(());
        }
        let detail = format!("{place} is of the issuer {}, not {issuer}", shorten(named));
        let advice = "name the issuer in the metadata of the resource exactly as it names itself, also in the slash at \
             its end";
        let is_slash = without_slash == expected.trim_end_matches('/');
        if self.client.checks_issuer && !is_slash {
            return Err(failure(step, detail, advice));
        }
        self.warn(
            step,
            format!("{detail}; clients of 2026-07-28 refuse that"),
            advice,
        );
        Ok(())
    }

    /// Whether the servers of a vendor can redeem codes. Where they cannot even reach the URL, that is told before.
    fn check_token_endpoint(&self, metadata: &Map<String, Value>) -> Result<(), Failure> {
        let endpoint = url_of(metadata, "token_endpoint");
        let Some(endpoint) = endpoint.filter(|endpoint| {
            self.client.is_hosted && is_private(endpoint) && !is_private(self.url)
        }) else {
            return Ok(());
        };
        let detail = format!(
            "{} redeems codes from its own servers, which cannot reach {endpoint}",
            self.client.name
        );
        let advice = format!("publish the authorization server too, or {USE_BUILTIN}");
        Err(failure(SignInStep::ServerMetadata, detail, &advice))
    }

    fn check_pkce(&mut self, server: &Map<String, Value>) -> Result<(), Failure> {
        let step = SignInStep::Pkce;
        let methods = strings(server, "code_challenge_methods_supported");
        let advice = "have the authorization server name `S256` in `code_challenge_methods_supported`; where it cannot, \
             as with Microsoft Entra: ";
        let advice = format!("{advice}{USE_BUILTIN}");
        match methods {
            Some(methods) if methods.contains(&"S256") => {
                self.ok(step, "S256".to_owned());
                Ok(())
            }
            Some(methods) => {
                let detail = format!("the authorization server has {methods:?} alone, not S256");
                Err(failure(step, detail, &advice))
            }
            None => {
                let detail = "the metadata of the authorization server do not name PKCE".to_owned();
                if self.client.wants_pkce_named {
                    return Err(failure(step, detail, &advice));
                }
                self.warn(step, format!("{detail}; it uses it all the same"), &advice);
                Ok(())
            }
        }
    }

    /// The id of the client: the URL of its metadata, or one by dynamic registration.
    async fn register(&mut self, server: &Map<String, Value>) -> Result<String, Failure> {
        let step = SignInStep::Registration;
        let takes_documents = server.get("client_id_metadata_document_supported");
        let takes_documents = takes_documents.and_then(Value::as_bool) == Some(true);
        let methods = strings(server, "token_endpoint_auth_methods_supported");
        let takes_public = methods.is_some_and(|methods| methods.contains(&"none"));
        let fits = takes_documents && (takes_public || !self.client.document_wants_none);
        if let Some(document) = self.client.document.filter(|_| fits) {
            self.ok(step, format!("by its document {document}"));
            return Ok(document.to_owned());
        }
        let Some(endpoint) = url_of(server, "registration_endpoint") else {
            let mut detail = "the authorization server registers no clients".to_owned();
            if takes_documents && self.client.document.is_some() {
                detail.push_str(
                    ", and takes documents of clients without `none` in `token_endpoint_auth_methods_supported`, \
                     which this client wants",
                );
            }
            return Err(failure(step, detail, &self.register_by_hand()));
        };
        let body = json!({
            "client_name": format!("{} (tollbridge doctor)", self.client.name),
            "redirect_uris": self.client.redirect_uris,
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        });
        let response = self.fetcher.register(&endpoint, &body).await;
        let response = response.map_err(|why| failure(step, why, &self.register_by_hand()))?;
        let answer: Value = serde_json::from_slice(response.body()).unwrap_or_default();
        match answer["client_id"].as_str() {
            Some(id) if response.status().is_success() => {
                let management = answer["registration_client_uri"].as_str();
                let management = management.and_then(|written| Url::parse(written).ok());
                let token = answer["registration_access_token"].as_str();
                self.registered = management.zip(token.map(str::to_owned));
                self.ok(step, format!("{endpoint} registered it"));
                Ok(id.to_owned())
            }
            _ => {
                let detail = format!("{endpoint}: {}", error_of(&response));
                let advice = format!(
                    "let anybody register with these redirect URIs: {}; or {}",
                    self.client.redirect_uris.join(" "),
                    self.register_by_hand()
                );
                Err(failure(step, detail, &advice))
            }
        }
    }

    fn register_by_hand(&self) -> String {
        format!(
            "register a client by hand with the redirect URI {} and enter its id in {} (--client-id tries it here); \
             or {USE_BUILTIN}",
            self.client.redirect_uri, self.client.client_id_setting
        )
    }
}

fn failure(step: SignInStep, detail: String, advice: &str) -> Failure {
    StepReport {
        step,
        result: StepResult::Failed,
        detail,
        advice: Some(advice.to_owned()),
    }
}

/// Whether only this machine or this network reaches `url`.
fn is_private(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => {
            address.is_loopback() || address.is_private() || address.is_link_local()
        }
        Some(Host::Ipv6(address)) => address.is_loopback() || address.is_unique_local(),
        Some(Host::Domain(name)) => {
            let endings = [".localhost", ".local", ".internal", ".lan"];
            !name.contains('.') || endings.iter().any(|ending| name.ends_with(ending))
        }
        None => false,
    }
}

fn url_of(metadata: &Map<String, Value>, member: &str) -> Option<Url> {
    let written = metadata.get(member).and_then(Value::as_str);
    written.and_then(|written| Url::parse(written).ok())
}

fn strings<'m>(metadata: &'m Map<String, Value>, member: &str) -> Option<Vec<&'m str>> {
    let list = metadata.get(member)?.as_array()?;
    Some(list.iter().filter_map(Value::as_str).collect())
}

/// The first characters of what others wrote.
fn shorten(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    let short: String = text.chars().take(SHOWN_CHARS).collect();
    if short.len() < text.len() {
        format!("{short}...")
    } else {
        short
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Egress, egress::EgressClient};

    /// The browser of a user reaches an issuer that the servers of a vendor do not.
    #[test]
    fn hosted_clients_need_a_public_token_endpoint() {
        let check = |client: &str, url: &str, endpoint: &str, expect: bool| {
            let url = Url::parse(url).unwrap();
            let http = EgressClient::new(&Egress::default(), []).unwrap();
            let walk = Walk {
                client: KnownClient::find(client).unwrap(),
                url: &url,
                fetcher: &Fetcher::new(http),
                steps: Vec::new(),
                registered: None,
            };
            let metadata = json!({ "token_endpoint": endpoint });
            let checked = walk.check_token_endpoint(metadata.as_object().unwrap());
            assert_eq!(checked.is_ok(), expect, "{client} {url} {endpoint}");
        };
        let (url, private) = ("https://mcp.example.com/mcp", "https://10.0.0.1/token");
        check("Claude", url, private, false);
        check("ChatGPT", url, "https://idp.corp.internal/token", false);
        check("VS Code", url, private, true);
        check("Claude", url, "https://login.example.com/token", true);
        check("Claude", "http://127.0.0.1:8080/mcp", private, true);
    }
}
