//! Requests to the token endpoint of an issuer, and what it answers.
//!
//! The library has requests for three grants only, neither `private_key_jwt` nor what issuers do otherwise than
//! the standards say; so what all of them have in common is made here.

use std::path::PathBuf;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::{
    Url,
    form_urlencoded::{Serializer, byte_serialize},
};

use super::{client_assertion, quirks::Quirks};
use crate::egress::{EgressClient, EgressError};

/// The longest text of an issuer that is repeated.
const REASON_MAX: usize = 200;

/// Requests for one grant: one, and one for each quirk that the answers show.
const ATTEMPTS_MAX: usize = 4;

/// How the client shows who it is.
#[derive(Clone, Deserialize, PartialEq, Serialize)]
pub(super) enum ClientCredential {
    /// It does not: anybody could be this client.
    Public,
    /// By a secret.
    Secret(String),
    /// By a signature of this key.
    PrivateKey(PathBuf),
}

/// A client at an issuer.
#[derive(Clone, Deserialize, PartialEq, Serialize)]
pub(super) struct OAuthClient {
    /// What the issuer calls it.
    pub(super) id: String,
    pub(super) credential: ClientCredential,
    /// Whether the config names it: then the credential is that of the config.
    pub(super) is_configured: bool,
    /// Of a client that the issuer registered for us.
    #[serde(default)]
    pub(super) registration: Option<ClientRegistration>,
}

/// How a client was registered.
#[derive(Clone, Deserialize, PartialEq, Serialize)]
pub(super) struct ClientRegistration {
    pub(super) redirect_uri: Url,
    /// When sign-ins need another client, since the secret of this one ends; in milliseconds.
    pub(super) renew_at_ms: Option<i64>,
}

impl ClientRegistration {
    /// Whether a sign-in at `now` needs another client.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.renew_at_ms
            .is_some_and(|at| now.as_millisecond() >= at)
    }
}

/// The token endpoint of an issuer.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct TokenEndpoint {
    pub(super) issuer: String,
    pub(super) url: String,
    /// How clients show who they are there; all ways, where the issuer does not say.
    pub(super) auth_methods: Option<Vec<String>>,
}

/// What the token endpoint gave.
#[derive(Clone, Deserialize, Serialize)]
pub(super) struct TokenResponse {
    pub(super) access_token: String,
    pub(super) refresh_token: Option<String>,
    /// In seconds.
    pub(super) expires_in: Option<u64>,
    /// `None` where it does not say: then what was asked for.
    pub(super) scopes: Option<Vec<String>>,
}

/// Why the token endpoint gave nothing.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum TokenError {
    /// Of what the client sent something is wrong.
    #[error("{url} refused: {code}{}", .description.as_deref().map(|it| format!(" ({it})")).unwrap_or_default())]
    Refused {
        url: String,
        /// The code of RFC 6749, section 5.2.
        code: String,
        description: Option<String>,
    },
    /// It may work another time.
    #[error("{0}")]
    Unreachable(String),
    /// The client cannot ask, or cannot use what it got.
    #[error("{0}")]
    Unusable(String),
}

impl TokenError {
    /// The code of the issuer's error.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            Self::Unreachable(_) | Self::Unusable(_) => None,
        }
    }

    /// Whether the grant itself is refused.
    pub(super) fn is_invalid_grant(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "invalid_grant")
    }
}

/// The parameters of a token request.
pub(super) type Form<'a> = Vec<(&'a str, &'a str)>;

impl TokenEndpoint {
    /// Asks for a token. `quirks` are those that are known of the issuer, and gain what the answers show.
    pub(super) async fn request(
        &self,
        egress: &EgressClient,
        client: &OAuthClient,
        quirks: &mut Quirks,
        form: &Form<'_>,
    ) -> Result<TokenResponse, TokenError> {
        let mut attempt = 1;
        loop {
            let answer = self.attempt(egress, client, quirks, form).await;
            let Err(TokenError::Refused {
                code, description, ..
            }) = &answer
            else {
                return answer;
            };
            let has_resource = form.iter().any(|(name, _)| *name == "resource");
            let description = description.as_deref().unwrap_or_default();
            let learned = quirks.learn(code, description, has_resource, &client.credential);
            if !learned || attempt == ATTEMPTS_MAX {
                return answer;
            }
            attempt += 1;
        }
    }

    /// Has a token revoked (RFC 7009); this is the revocation endpoint.
    pub(super) async fn revoke(
        &self,
        egress: &EgressClient,
        client: &OAuthClient,
        quirks: &Quirks,
        form: &Form<'_>,
    ) -> Result<(), TokenError> {
        let answer = self.send(egress, client, quirks, form).await?;
        if answer.status().is_success() {
            return Ok(());
        }
        let refused = format!("{}: HTTP {}", self.url, answer.status());
        Err(TokenError::Unreachable(refused))
    }

    async fn attempt(
        &self,
        egress: &EgressClient,
        client: &OAuthClient,
        quirks: &Quirks,
        form: &Form<'_>,
    ) -> Result<TokenResponse, TokenError> {
        let answer = self.send(egress, client, quirks, form).await?;
        parse(&self.url, &answer).map_err(|error| hide_secrets(error, client, form))
    }

    async fn send(
        &self,
        egress: &EgressClient,
        client: &OAuthClient,
        quirks: &Quirks,
        form: &Form<'_>,
    ) -> Result<Response<Bytes>, TokenError> {
        let request = self.build(client, quirks, form)?;
        egress.fetch(request).await.map_err(|error| match error {
            EgressError::Refused { .. } | EgressError::TooLarge { .. } => {
                TokenError::Unusable(error.to_string())
            }
            EgressError::Client(_)
            | EgressError::Failed { .. }
            | EgressError::Redirects(_)
            | EgressError::Timeout { .. } => TokenError::Unreachable(error.to_string()),
        })
    }

    fn build(
        &self,
        client: &OAuthClient,
        quirks: &Quirks,
        form: &Form<'_>,
    ) -> Result<Request<Vec<u8>>, TokenError> {
        let mut body = Serializer::new(String::new());
        let skips_resource = quirks.refuses_resource;
        let sent = form
            .iter()
            .filter(|(name, _)| !(skips_resource && *name == "resource"));
        body.extend_pairs(sent);
        let mut authorization = None;
        match &client.credential {
            ClientCredential::Public => {
                body.append_pair("client_id", &client.id);
            }
            ClientCredential::Secret(secret) if self.takes_form(quirks) => {
                body.append_pair("client_id", &client.id);
                body.append_pair("client_secret", secret);
            }
            ClientCredential::Secret(secret) => {
                authorization = Some(basic(&client.id, secret));
            }
            ClientCredential::PrivateKey(path) => {
                let audience = if quirks.assertion_for_endpoint {
                    &self.url
                } else {
                    &self.issuer
                };
                let assertion = client_assertion::sign(path, &client.id, audience);
                let assertion =
                    assertion.map_err(|error| TokenError::Unusable(error.to_string()))?;
                body.append_pair("client_id", &client.id);
                body.append_pair("client_assertion_type", client_assertion::TYPE);
                body.append_pair("client_assertion", &assertion);
            }
        }
        let mut request = Request::new(body.finish().into_bytes());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = (self.url.parse())
            .map_err(|_| TokenError::Unusable(format!("`{}` is not a URL", shorten(&self.url))))?;
        let headers = request.headers_mut();
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(CONTENT_TYPE, form);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization);
        }
        Ok(request)
    }

    /// Whether a secret stands in the form: where the issuer says that it takes only this, or has shown it.
    fn takes_form(&self, quirks: &Quirks) -> bool {
        let methods = self.auth_methods.as_deref().unwrap_or_default();
        let has = |method: &str| methods.iter().any(|it| it == method);
        let is_listed = has("client_secret_post") && !has("client_secret_basic");
        quirks.secret_in_form != is_listed
    }
}

/// `error` without what was sent, should the issuer repeat it, in any of the ways in which it is sent.
fn hide_secrets(mut error: TokenError, client: &OAuthClient, form: &Form<'_>) -> TokenError {
    let TokenError::Refused {
        code, description, ..
    } = &mut error
    else {
        return error;
    };
    let is_public = |name| matches!(name, "grant_type" | "resource" | "scope" | "audience");
    let sent = form.iter().filter(|(name, _)| !is_public(*name));
    let mut secrets: Vec<String> = sent.map(|(_, value)| (*value).to_owned()).collect();
    if let ClientCredential::Secret(secret) = &client.credential {
        secrets.push(basic_pair(&client.id, secret));
        secrets.push(secret.clone());
    }
    for secret in secrets.iter().filter(|it| !it.is_empty()) {
        let encoded: String = byte_serialize(secret.as_bytes()).collect();
        for text in description.iter_mut().chain([&mut *code]) {
            *text = text.replace(secret, "***").replace(&encoded, "***");
        }
    }
    *code = shorten(code);
    *description = description.as_deref().map(shorten);
    error
}

/// `client_secret_basic` (RFC 6749, section 2.3.1).
fn basic(id: &str, secret: &str) -> HeaderValue {
    let pair = basic_pair(id, secret);
    #[expect(clippy::expect_used, reason = "base64 is legal in headers")]
    let mut value = HeaderValue::try_from(format!("Basic {pair}")).expect("ASCII");
    value.set_sensitive(true);
    value
}

fn basic_pair(id: &str, secret: &str) -> String {
    let encode = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    STANDARD.encode(format!("{}:{}", encode(id), encode(secret)))
}

/// Reads an answer. Errors of some issuers come with 200, numbers of some as texts.
fn parse(url: &str, answer: &Response<Bytes>) -> Result<TokenResponse, TokenError> {
    let status = answer.status();
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    let text = |key: &str| body[key].as_str().filter(|it| !it.is_empty());
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return Err(TokenError::Unreachable(format!("{url}: HTTP {status}")));
    }
    if let Some(code) = text("error") {
        if matches!(code, "server_error" | "temporarily_unavailable") {
            return Err(TokenError::Unreachable(format!("{url}: {code}")));
        }
        return Err(TokenError::Refused {
            url: url.to_owned(),
            code: code.to_owned(),
            description: text("error_description").map(str::to_owned),
        });
    }
    if !status.is_success() {
        return Err(TokenError::Unreachable(format!(
            "{url}: HTTP {status} without an OAuth error"
        )));
    }
    let Some(access_token) = text("access_token") else {
        let reason = format!("{url}: the answer has no access token");
        return Err(TokenError::Unreachable(reason));
    };
    let kind = text("token_type").unwrap_or("Bearer");
    if !kind.eq_ignore_ascii_case("bearer") {
        let reason = format!("{url}: tokens of type `{}` cannot be used", shorten(kind));
        return Err(TokenError::Unusable(reason));
    }
    Ok(TokenResponse {
        access_token: access_token.to_owned(),
        refresh_token: text("refresh_token").map(str::to_owned),
        expires_in: to_seconds(&body["expires_in"]),
        scopes: to_scopes(&body["scope"]),
    })
}

/// A lifetime; `None` for one that says nothing: with a token that ends before it can be sent, every call would ask
/// for another one. What the server refuses is renewed all the same.
fn to_seconds(value: &Value) -> Option<u64> {
    let text = || value.as_str()?.trim().parse::<f64>().ok();
    let seconds = value.as_f64().or_else(text)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is clamped, and fractions of seconds do not count"
    )]
    let seconds = seconds.clamp(0.0, f64::from(u32::MAX)) as u64;
    Some(seconds).filter(|seconds| *seconds > 0)
}

fn to_scopes(value: &Value) -> Option<Vec<String>> {
    let split = |text: &str| text.split_ascii_whitespace().map(str::to_owned).collect();
    match value {
        Value::String(text) if !text.trim().is_empty() => Some(split(text)),
        Value::Array(items) => Some(
            items
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            None
        }
    }
}

/// A text of an issuer as errors repeat it: one line of it, without what could be a token.
pub(super) fn shorten(text: &str) -> String {
    let shown = |c: char| !c.is_control();
    text.chars()
        .filter(|c| shown(*c))
        .take(REASON_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Result<TokenResponse, TokenError> {
        let mut response = Response::new(Bytes::from(body.to_owned()));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        parse("https://as/token", &response)
    }

    #[test]
    fn answers_are_read_as_issuers_write_them() {
        let check = |body: &str, expires_in, scopes: Option<&[&str]>| {
            let read = answer(200, body)
                .map_err(|error| error.to_string())
                .unwrap();
            assert_eq!(read.access_token, "t");
            let read_scopes = read.scopes.as_deref();
            assert_eq!(read.expires_in, expires_in, "{body}");
            assert_eq!(
                read_scopes.map(<[_]>::len),
                scopes.map(<[_]>::len),
                "{body}"
            );
        };
        check(r#"{"access_token":"t"}"#, None, None);
        check(r#"{"access_token":"t","expires_in":60}"#, Some(60), None);
        check(
            r#"{"access_token":"t","expires_in":"3599"}"#,
            Some(3599),
            None,
        );
        check(r#"{"access_token":"t","expires_in":59.5}"#, Some(59), None);
        check(r#"{"access_token":"t","expires_in":1}"#, Some(1), None);
        check(r#"{"access_token":"t","expires_in":0}"#, None, None);
        check(r#"{"access_token":"t","expires_in":-5}"#, None, None);
        check(r#"{"access_token":"t","expires_in":null}"#, None, None);
        check(
            r#"{"access_token":"t","token_type":"bearer","scope":"a b"}"#,
            None,
            Some(&["a", "b"]),
        );
        check(r#"{"access_token":"t","scope":["a"]}"#, None, Some(&["a"]));
        check(r#"{"access_token":"t","scope":""}"#, None, None);
    }

    #[test]
    fn errors_show_nothing_of_what_was_sent() {
        let client = OAuthClient {
            id: "gateway".to_owned(),
            credential: ClientCredential::Secret("a secret+".to_owned()),
            is_configured: true,
            registration: None,
        };
        let form = vec![("grant_type", "refresh_token"), ("refresh_token", "r/t")];
        let check = |echoed: &str, expect: &str| {
            let body = serde_json::json!({"error": "invalid_client", "error_description": echoed});
            let error = answer(401, &body.to_string()).err().unwrap();
            let TokenError::Refused { description, .. } = hide_secrets(error, &client, &form)
            else {
                panic!("{echoed}");
            };
            assert_eq!(description.as_deref(), Some(expect), "{echoed}");
        };
        check(
            "the secret `a secret+` is wrong",
            "the secret `***` is wrong",
        );
        check("client_secret=a+secret%2B&x", "client_secret=***&x");
        check("Basic Z2F0ZXdheTphK3NlY3JldCUyQg==", "Basic ***");
        check("refresh_token r/t or r%2Ft", "refresh_token *** or ***");
        check("grant refresh_token", "grant refresh_token");
        let error = answer(400, r#"{"error":"a secret+"}"#).err().unwrap();
        assert_eq!(hide_secrets(error, &client, &form).code(), Some("***"));
    }

    #[test]
    fn only_the_issuer_refuses_a_grant() {
        let check = |status, body: &str, is_invalid: bool, is_passing: bool| {
            let error = answer(status, body).err().unwrap();
            assert_eq!(error.is_invalid_grant(), is_invalid, "{body}");
            let passes = matches!(error, TokenError::Unreachable(_));
            assert_eq!(passes, is_passing, "{body}");
        };
        check(400, r#"{"error":"invalid_grant"}"#, true, false);
        check(200, r#"{"error":"invalid_grant"}"#, true, false);
        check(400, r#"{"error":"invalid_client"}"#, false, false);
        check(500, r#"{"error":"invalid_grant"}"#, false, true);
        check(503, "", false, true);
        check(429, r#"{"error":"slow_down"}"#, false, true);
        check(400, "<html>blocked by a proxy</html>", false, true);
        check(404, "", false, true);
        check(400, r#"{"error":"temporarily_unavailable"}"#, false, true);
        check(200, "<html>welcome</html>", false, true);
        check(
            200,
            r#"{"access_token":"t","token_type":"mac"}"#,
            false,
            false,
        );
    }
}
