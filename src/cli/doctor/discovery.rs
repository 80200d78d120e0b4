//! What the walks of all clients fetch, each only once.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use url::Url;

use crate::egress::{EgressClient, EgressError};

/// What a client says first that speaks a revision up to 2025-11-25.
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"tollbridge-doctor","version":"1"}}}"#;

/// Fetches what is the same for every client once.
#[derive(Debug)]
pub(super) struct Fetcher {
    http: EgressClient,
    documents: Mutex<HashMap<Url, Fetched>>,
    first: Mutex<Option<Result<Response<Bytes>, String>>>,
}

/// A JSON object, or why there is none.
pub(super) type Fetched = Result<Map<String, Value>, String>;

/// The challenge of a 401.
#[derive(Clone, Debug, Default)]
pub(super) struct BearerChallenge {
    pub(super) resource_metadata: Option<String>,
    pub(super) scope: Option<String>,
}

impl Fetcher {
    pub(super) fn new(http: EgressClient) -> Self {
        Self {
            http,
            documents: Mutex::default(),
            first: Mutex::default(),
        }
    }

    /// The response to a client without a token.
    pub(super) async fn connect(&self, url: &Url) -> Result<Response<Bytes>, String> {
        let mut first = self.first.lock().await;
        if first.is_none() {
            let request = Request::post(url.as_str())
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json, text/event-stream")
                .body(INITIALIZE.into());
            *first = Some(self.send(request).await);
        }
        first.clone().expect("it was just filled")
    }

    /// The JSON object at `url`.
    pub(super) async fn document(&self, url: &Url) -> Fetched {
        let mut documents = self.documents.lock().await;
        if let Some(known) = documents.get(url) {
            return known.clone();
        }
        let fetched = match self.http.get(url).await {
            Ok(response) => to_object(&response),
            Err(error) => Err(error.to_string()),
        };
        documents.insert(url.clone(), fetched.clone());
        fetched
    }

    /// Registers a client (RFC 7591).
    pub(super) async fn register(
        &self,
        endpoint: &Url,
        body: &Value,
    ) -> Result<Response<Bytes>, String> {
        let request = Request::post(endpoint.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(body.to_string().into_bytes());
        self.send(request).await
    }

    /// Deletes a client that was registered (RFC 7592), where that works.
    pub(super) async fn unregister(&self, management: &Url, token: &str) {
        let request = Request::delete(management.as_str())
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .body(Vec::new());
        drop(self.send(request).await);
    }

    /// The response at `url`, which may be a redirect, to a browser that has `cookies`.
    pub(super) async fn visit(
        &self,
        url: &Url,
        cookies: &mut BrowserCookies,
    ) -> Result<Response<Bytes>, String> {
        let mut request =
            Request::get(url.as_str()).header(header::ACCEPT, "text/html,application/xhtml+xml");
        if let Some(sent) = cookies.header(url) {
            request = request.header(header::COOKIE, sent);
        }
        let request = request.body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let response = self.http.fetch_unredirected(request).await;
        let response = response.map_err(|error| error.to_string())?;
        cookies.keep(url, response.headers());
        Ok(response)
    }

    async fn send(
        &self,
        request: Result<Request<Vec<u8>>, http::Error>,
    ) -> Result<Response<Bytes>, String> {
        let request = request.map_err(|error| error.to_string())?;
        let response = self.http.fetch(request).await;
        response.map_err(|error: EgressError| error.to_string())
    }
}

/// What a browser was told to keep on the way to a page: login pages look for it.
#[derive(Debug, Default)]
pub(super) struct BrowserCookies(BTreeMap<(String, String), String>);

impl BrowserCookies {
    fn keep(&mut self, url: &Url, headers: &HeaderMap) {
        let host = url.host_str().unwrap_or_default();
        for set in headers.get_all(header::SET_COOKIE) {
            let pair = set.to_str().ok().and_then(|text| text.split(';').next());
            if let Some((name, value)) = pair.and_then(|pair| pair.split_once('=')) {
                let place = (host.to_owned(), name.trim().to_owned());
                self.0.insert(place, value.trim().to_owned());
            }
        }
    }

    /// What goes back to the host that it came from.
    fn header(&self, url: &Url) -> Option<String> {
        let own = self
            .0
            .iter()
            .filter(|((host, _), _)| Some(host.as_str()) == url.host_str());
        let pairs: Vec<String> = own
            .map(|((_, name), value)| format!("{name}={value}"))
            .collect();
        (!pairs.is_empty()).then(|| pairs.join("; "))
    }
}

/// The object in a response of status 200.
fn to_object(response: &Response<Bytes>) -> Fetched {
    if response.status() != StatusCode::OK {
        return Err(format!("HTTP {}", response.status().as_u16()));
    }
    match serde_json::from_slice(response.body()) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => Err("not a JSON object".to_owned()),
        Err(_) => Err("not JSON".to_owned()),
    }
}

/// Where metadata of the resource at `url` are by themselves, the first that counts first (RFC 9728, section 3.1).
pub(super) fn resource_metadata_places(url: &Url) -> Vec<Url> {
    let path = url.path().trim_end_matches('/');
    let well_known = "/.well-known/oauth-protected-resource";
    places(url, [format!("{well_known}{path}"), well_known.to_owned()])
}

/// Where metadata of `issuer` are, the first that counts first (Spec 2025-11-25, authorization server discovery).
pub(super) fn server_metadata_places(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_end_matches('/');
    places(
        issuer,
        [
            format!("/.well-known/oauth-authorization-server{path}"),
            format!("/.well-known/openid-configuration{path}"),
            format!("{path}/.well-known/openid-configuration"),
        ],
    )
}

/// `paths` at the origin of `url`, each once.
fn places<const N: usize>(url: &Url, paths: [String; N]) -> Vec<Url> {
    let mut places = Vec::new();
    for path in paths {
        let mut place = url.clone();
        place.set_path(&path);
        place.set_query(None);
        place.set_fragment(None);
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// The challenge of the scheme `Bearer` in `headers`.
pub(super) fn bearer_challenge(headers: &HeaderMap) -> Option<BearerChallenge> {
    let values = headers.get_all(header::WWW_AUTHENTICATE);
    values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .find_map(parse_challenge)
}

/// Reads `Bearer a="b", c=d` (RFC 9110, section 11.6.1), also behind challenges of other schemes.
fn parse_challenge(text: &str) -> Option<BearerChallenge> {
    let lower = text.to_ascii_lowercase();
    let at = lower.find("bearer")?;
    let mut challenge = BearerChallenge::default();
    let mut rest = &text[at + "bearer".len()..];
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim().trim_start_matches(',').trim();
        let (value, next) = if let Some(quoted) = after.trim_start().strip_prefix('"') {
            take_quoted(quoted)
        } else {
            let end = after.find(',').unwrap_or(after.len());
            (after[..end].trim().to_owned(), &after[end..])
        };
        match name.to_ascii_lowercase().as_str() {
            "resource_metadata" => challenge.resource_metadata = Some(value),
            "scope" => challenge.scope = Some(value),
            _ => {}
        }
        rest = next;
    }
    Some(challenge)
}

/// A quoted string, without its quotes and escapes, and what follows it.
fn take_quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            _ => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_as_servers_write_them() {
        let check = |text: &str, expect: Option<(Option<&str>, Option<&str>)>| {
            let read = parse_challenge(text);
            let read = read.as_ref();
            let read = read.map(|it| (it.resource_metadata.as_deref(), it.scope.as_deref()));
            assert_eq!(read, expect, "{text}");
        };
        check("Basic realm=\"x\"", None);
        check("Bearer", Some((None, None)));
        check(
            r#"Bearer resource_metadata="https://x/.well-known/a", scope="a b""#,
            Some((Some("https://x/.well-known/a"), Some("a b"))),
        );
        check(
            r#"bearer error="invalid_token", error_description="a \"b\", scope=\"no\"", resource_metadata=https://x/y"#,
            Some((Some("https://x/y"), None)),
        );
        check(
            r#"Bearer scope="unfinished"#,
            Some((None, Some("unfinished"))),
        );
    }

    #[test]
    fn metadata_are_looked_for_where_they_belong() {
        let urls = |places: Vec<Url>| places.into_iter().map(String::from).collect::<Vec<_>>();
        let parse = |url: &str| Url::parse(url).unwrap();
        assert_eq!(
            urls(resource_metadata_places(&parse("https://x/mcp?a=b"))),
            [
                "https://x/.well-known/oauth-protected-resource/mcp",
                "https://x/.well-known/oauth-protected-resource"
            ]
        );
        assert_eq!(
            urls(server_metadata_places(&parse("https://x/"))),
            [
                "https://x/.well-known/oauth-authorization-server",
                "https://x/.well-known/openid-configuration"
            ]
        );
        assert_eq!(
            urls(server_metadata_places(&parse("https://x/t/v2.0"))),
            [
                "https://x/.well-known/oauth-authorization-server/t/v2.0",
                "https://x/.well-known/openid-configuration/t/v2.0",
                "https://x/t/v2.0/.well-known/openid-configuration"
            ]
        );
    }
}
