//! People log in at an OpenID Connect issuer, whose client the gateway is.

use std::{sync::Mutex, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{
    Request, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::Instant;
use url::{Url, form_urlencoded};

use super::{AuthorizationRequest, AuthorizationServer, LoggedIn, ServerError, secret, tokens};
use crate::{
    auth::{
        jwt::{JwtVerifier, TrustedIssuer, is_same_issuer},
        token::{TokenSubject, TokenVerifier},
    },
    config::{JwtAlgorithm, JwtIssuer, OidcLogin},
    egress::{EgressClient, EgressError},
    lock::lock,
};

/// How long metadata of the issuer are kept.
const METADATA_KEPT: Duration = Duration::from_secs(60 * 60);
/// How long somebody may take to log in.
const LOGIN_LIFETIME: Duration = Duration::from_secs(10 * 60);

/// The claims that people are called by, the first that there is.
const NAME_CLAIMS: [&str; 4] = ["name", "preferred_username", "email", "sub"];

/// Claims about the login and not about the person.
const PROTOCOL_CLAIMS: [&str; 9] = [
    "at_hash",
    "auth_time",
    "c_hash",
    "exp",
    "iat",
    "jti",
    "nbf",
    "nonce",
    "sid",
];

/// The issuer where people log in.
#[derive(Debug)]
pub struct OidcIssuer {
    config: OidcLogin,
    egress: EgressClient,
    verifier: JwtVerifier,
    metadata: Mutex<Option<(Instant, LoginIssuerMetadata)>>,
}

/// What the issuer says of itself.
#[derive(Clone, Debug, Deserialize)]
struct LoginIssuerMetadata {
    issuer: String,
    authorization_endpoint: Url,
    token_endpoint: Url,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

/// What the issuer answers at its token endpoint.
#[derive(Debug, Deserialize)]
struct IssuerTokens {
    id_token: String,
}

/// Why nobody is logged in.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// The issuer cannot be reached.
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// It does not say what is needed.
    #[error("{0} is not the metadata of the issuer")]
    Metadata(Url),
    /// It refused.
    #[error("the login failed: {0}")]
    Refused(String),
    /// What it said about the person is not good.
    #[error("the ID token is not valid: {0}")]
    IdToken(String),
    /// The answer is not that to a login that was begun in this browser.
    #[error("the answer does not belong to a login in this browser, or came too late")]
    State,
    /// We cannot go on.
    #[error(transparent)]
    Server(#[from] ServerError),
}

impl OidcError {
    /// The reason in a word, as it is counted.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Egress(_) | Self::Metadata(_) | Self::Server(_) => "oauth_login_unavailable",
            Self::IdToken(_) => "oauth_id_token",
            Self::Refused(_) => "oauth_login_refused",
            Self::State => "oauth_tampered_state",
        }
    }
}

/// What somebody logs in for.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoginPurpose {
    /// To decide about the request of a client.
    Authorize(Box<AuthorizationRequest>),
    /// To see their connections to servers; with the code of the link that led there.
    Connections(Option<String>),
}

/// A login that is to begin.
#[derive(Clone, Debug)]
pub struct LoginRequest<'r> {
    /// What for.
    pub purpose: LoginPurpose,
    /// The URL of the gateway, as the browser knows it.
    pub gateway: &'r str,
    /// What only the browser shows when it comes back.
    pub browser: &'r str,
}

/// A login that was begun.
#[derive(Debug, Deserialize, Serialize)]
struct LoginState {
    browser: String,
    gateway: String,
    purpose: LoginPurpose,
    nonce: String,
    verifier: String,
    #[serde(with = "super::time_ms")]
    expires: Timestamp,
}

/// What the issuer sent the browser back with.
#[derive(Clone, Copy, Debug)]
pub struct LoginCallback<'c> {
    /// The code, unless it refused.
    pub code: Option<&'c str>,
    /// What it was sent there with.
    pub state: &'c str,
    /// Who says so (RFC 9207).
    pub iss: Option<&'c str>,
    /// Why it refused.
    pub error: Option<&'c str>,
}

impl OidcIssuer {
    /// Its URL.
    pub fn url(&self) -> &str {
        &self.config.issuer
    }

    /// Whether `issuer` is its name.
    pub fn is(&self, issuer: &str) -> bool {
        is_same_issuer(&self.config.issuer, issuer)
    }

    /// The issuer of `config`, whose host may be private.
    ///
    /// # Errors
    /// When requests cannot be made.
    pub fn new(config: &OidcLogin, egress: &crate::config::Egress) -> Result<Self, EgressError> {
        let written = Url::parse(&config.issuer).ok();
        let egress = EgressClient::new(egress, written.iter())?;
        // An ID token is for the client alone (OpenID Connect Core, section 3.1.3.7).
        let issuer = JwtIssuer {
            issuer: config.issuer.clone(),
            audience: vec![config.client_id.clone()],
            jwks_url: None,
            algorithms: JwtAlgorithm::ALL.to_vec(),
            clock_skew: JwtIssuer::CLOCK_SKEW,
        };
        Ok(Self {
            verifier: JwtVerifier::new(vec![TrustedIssuer::logins(&issuer, &egress)]),
            config: config.clone(),
            egress,
            metadata: Mutex::default(),
        })
    }

    async fn metadata(&self) -> Result<LoginIssuerMetadata, OidcError> {
        if let Some((since, known)) = &*lock(&self.metadata)
            && since.elapsed() < METADATA_KEPT
        {
            return Ok(known.clone());
        }
        let issuer = self.config.issuer.trim_end_matches('/');
        let url = format!("{issuer}/.well-known/openid-configuration");
        let url = Url::parse(&url).map_err(|error| OidcError::Refused(error.to_string()))?;
        let response = self.egress.get(&url).await?;
        let is_there = response.status() == StatusCode::OK;
        let found: Option<LoginIssuerMetadata> = serde_json::from_slice(response.body()).ok();
        let found = found.filter(|_| is_there);
        let found = found.filter(|found| is_same_issuer(issuer, &found.issuer));
        let found = found.ok_or(OidcError::Metadata(url))?;
        *lock(&self.metadata) = Some((Instant::now(), found.clone()));
        Ok(found)
    }

    /// The ID token that `code` is good for.
    async fn exchange(
        &self,
        code: &str,
        verifier: &str,
        redirect_uri: &str,
    ) -> Result<String, OidcError> {
        let metadata = self.metadata().await?;
        let params = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
            ("code_verifier", verifier),
        ];
        let request = self.token_request(&metadata, &params)?;
        let response = self.egress.fetch(request).await?;
        let tokens: IssuerTokens = serde_json::from_slice(response.body())
            .map_err(|_| OidcError::Refused(oauth_error(&response)))?;
        Ok(tokens.id_token)
    }

    /// A request to the token endpoint, with what shows who we are.
    fn token_request(
        &self,
        metadata: &LoginIssuerMetadata,
        params: &[(&str, &str)],
    ) -> Result<Request<Vec<u8>>, OidcError> {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(params);
        let mut request = Request::post(metadata.token_endpoint.as_str())
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        match &self.config.client_secret {
            Some(secret) if metadata.takes_basic() => {
                let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
                let (id, secret) = (encoded(&self.config.client_id), encoded(secret.expose()));
                let credentials = BASE64_STANDARD.encode(format!("{id}:{secret}"));
                request = request.header(AUTHORIZATION, format!("Basic {credentials}"));
            }
            secret => {
                form.append_pair("client_id", &self.config.client_id);
                if let Some(secret) = secret {
                    form.append_pair("client_secret", secret.expose());
                }
            }
        }
        let request = request.body(form.finish().into_bytes());
        request.map_err(|error| OidcError::Refused(error.to_string()))
    }

    /// What the issuer says about the person in `id_token`.
    async fn claims(&self, id_token: &str, nonce: &str) -> Result<Map<String, Value>, OidcError> {
        let verified = self.verifier.verify(id_token, "").await;
        let verified = verified.ok_or(OidcError::IdToken("it is no JWT".to_owned()))?;
        let verified = verified.map_err(|why| OidcError::IdToken(why.to_string()))?;
        let TokenSubject::Claims(claims) = verified.subject else {
            return Err(OidcError::IdToken("it has no claims".to_owned()));
        };
        if claims.get("nonce").and_then(Value::as_str) != Some(nonce) {
            return Err(OidcError::IdToken(
                "its nonce is that of another login".to_owned(),
            ));
        }
        let party = claims.get("azp").and_then(Value::as_str);
        if party.is_some_and(|party| party != self.config.client_id) {
            return Err(OidcError::IdToken("it is for another client".to_owned()));
        }
        Ok(claims)
    }
}

impl LoginIssuerMetadata {
    /// Whether a secret goes into the header, as it does where nothing is said (RFC 8414, section 2).
    fn takes_basic(&self) -> bool {
        let methods = self.token_endpoint_auth_methods_supported.as_ref();
        methods.is_none_or(|methods| {
            let has = |name: &str| methods.iter().any(|method| method == name);
            has("client_secret_basic") || !has("client_secret_post")
        })
    }
}

impl AuthorizationServer {
    /// Begins a login: the URL of the issuer that the browser is sent to.
    ///
    /// # Errors
    /// When the issuer cannot be reached.
    pub async fn begin_login(
        &self,
        issuer: &OidcIssuer,
        login: LoginRequest<'_>,
        now: Timestamp,
    ) -> Result<String, OidcError> {
        let metadata = issuer.metadata().await?;
        let random = || secret::random_text::<32>().map_err(ServerError::from);
        let asks_login = match &login.purpose {
            LoginPurpose::Authorize(request) => request.asks_login,
            LoginPurpose::Connections(_) => false,
        };
        let state = LoginState {
            browser: login.browser.to_owned(),
            gateway: login.gateway.to_owned(),
            purpose: login.purpose,
            nonce: random()?,
            verifier: random()?,
            expires: tokens::after(now, LOGIN_LIFETIME),
        };
        let mut url = metadata.authorization_endpoint;
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &issuer.config.client_id)
            .append_pair("redirect_uri", &callback_url(&state.gateway))
            .append_pair("scope", &issuer.config.scopes.join(" "))
            .append_pair("nonce", &state.nonce)
            .append_pair("code_challenge", &tokens::challenge_of(&state.verifier))
            .append_pair("code_challenge_method", "S256")
            .append_pair("state", &self.seal_text("oauth login", &state)?);
        if asks_login {
            url.query_pairs_mut().append_pair("prompt", "login");
        }
        Ok(url.into())
    }

    /// Ends a login in the browser with this binding: what it was for, and who logged in.
    ///
    /// # Errors
    /// Why nobody did.
    pub async fn finish_login(
        &self,
        issuer: &OidcIssuer,
        callback: LoginCallback<'_>,
        browser: &str,
        now: Timestamp,
    ) -> Result<(LoginPurpose, LoggedIn), OidcError> {
        let state: Option<LoginState> = self.open_text("oauth login", callback.state);
        let state = state.filter(|state| state.browser == browser && now < state.expires);
        let state = state.ok_or(OidcError::State)?;
        if callback
            .iss
            .is_some_and(|iss| !is_same_issuer(&issuer.config.issuer, iss))
        {
            return Err(OidcError::State);
        }
        if let Some(error) = callback.error {
            return Err(OidcError::Refused(error.chars().take(100).collect()));
        }
        let code = callback.code.ok_or(OidcError::State)?;
        let redirect_uri = callback_url(&state.gateway);
        let id_token = issuer
            .exchange(code, &state.verifier, &redirect_uri)
            .await?;
        let claims = issuer.claims(&id_token, &state.nonce).await?;
        let mut claims = claims;
        claims.retain(|name, _| !PROTOCOL_CLAIMS.contains(&name.as_str()));
        let mut names = NAME_CLAIMS.iter();
        let name = names.find_map(|name| claims.get(*name)?.as_str());
        let name = name.unwrap_or_default().to_owned();
        let who = LoggedIn::new(&TokenSubject::Claims(claims), name);
        Ok((state.purpose, who))
    }
}

/// Where the issuer sends browsers back to.
fn callback_url(gateway: &str) -> String {
    format!("{gateway}/oauth/login/callback")
}

/// What an error of OAuth says, of which there is no more to know than its code.
fn oauth_error(response: &Response<Bytes>) -> String {
    let error: Option<Value> = serde_json::from_slice(response.body()).ok();
    let code = error
        .as_ref()
        .and_then(|error| error.get("error")?.as_str());
    let status = response.status().as_u16();
    code.map_or_else(
        || format!("HTTP {status}"),
        |code| code.chars().take(100).collect(),
    )
}
