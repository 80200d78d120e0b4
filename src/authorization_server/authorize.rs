//! What a client asks for at the authorization endpoint.

use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use super::{client::GrantClient, redirect_uri::RedirectUri};
use crate::auth::token::Scopes;

/// Scopes that there are, beside one for each profile.
pub const SCOPES: [&str; 2] = ["tools:call", "tools:read"];

/// How the scope of a profile begins.
const PROFILE_PREFIX: &str = "profile:";

/// Characters of a `state`, which comes back to the client as it was.
const STATE_CHARS_MAX: usize = 4_096;
/// Resources that one grant is for.
const RESOURCES_MAX: usize = 10;
/// Characters of an S256 challenge (RFC 7636, section 4.2).
const CHALLENGE_CHARS: usize = 43;

/// A request as its client sent it.
#[derive(Clone, Debug, Default)]
pub struct AuthorizeParams {
    /// Who asks.
    pub client_id: String,
    /// Where the answer goes.
    pub redirect_uri: Option<String>,
    state: Option<String>,
    response_type: Option<String>,
    response_mode: Option<String>,
    scope: Option<String>,
    code_challenge: Option<String>,
    code_challenge_method: Option<String>,
    resources: Vec<String>,
    prompt: Option<String>,
}

/// A request that was checked, until its person has decided.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AuthorizationRequest {
    /// Who asks.
    pub client_id: String,
    /// What the client calls itself.
    pub client_name: Option<String>,
    /// Who answers: the URL of the gateway.
    pub issuer: String,
    /// Where the answer goes.
    pub redirect_uri: String,
    /// What the client gets back with it.
    pub state: Option<String>,
    /// What the grant is for, as tokens have it.
    pub scope: String,
    /// The S256 challenge of PKCE.
    pub code_challenge: String,
    /// The resources, each one of ours.
    pub resources: Vec<String>,
    /// Whether the person is to decide anew in any case.
    pub asks_consent: bool,
    /// Whether somebody is to log in, whoever is logged in.
    pub asks_login: bool,
}

/// An error that the client is told by a redirect (RFC 6749, section 4.1.2.1).
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the request of the client is not valid: {description} ({error})")]
pub struct AuthorizeError {
    /// Its code.
    pub error: &'static str,
    /// More, for developers.
    pub description: &'static str,
}

impl AuthorizeError {
    const fn new(error: &'static str, description: &'static str) -> Self {
        Self { error, description }
    }

    /// What a client is told whose person said no.
    pub const DENIED: Self = Self::new("access_denied", "the person said no");
    /// What it is told when we cannot go on.
    pub const FAILED: Self = Self::new("server_error", "the request failed; try again");
}

impl AuthorizeParams {
    /// Reads a query or a form. Parameters but `resource` stand there once (RFC 6749, section 3.1).
    ///
    /// # Errors
    /// The name of one that stands there twice, or `client_id` where it is missing.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut params = Self::default();
        let mut client_id = None;
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let slot = match &*name {
                "resource" => {
                    params.resources.push(value.into_owned());
                    continue;
                }
                "client_id" => &mut client_id,
                "redirect_uri" => &mut params.redirect_uri,
                "state" => &mut params.state,
                "response_type" => &mut params.response_type,
                "response_mode" => &mut params.response_mode,
                "scope" => &mut params.scope,
                "code_challenge" => &mut params.code_challenge,
                "code_challenge_method" => &mut params.code_challenge_method,
                "prompt" => &mut params.prompt,
                _ => continue,
            };
            if slot.replace(value.into_owned()).is_some() {
                return Err(name.into_owned());
            }
        }
        params.client_id = client_id.ok_or("client_id")?;
        Ok(params)
    }

    /// The `state`, if it is one.
    pub fn state(&self) -> Option<&str> {
        let state = self.state.as_deref();
        state.filter(|state| state.len() <= STATE_CHARS_MAX)
    }

    /// Whether the client wants its person asked so (OpenID Connect Core, section 3.1.2.1).
    fn has_prompt(&self, wanted: &str) -> bool {
        let prompt = self.prompt.as_deref().unwrap_or_default();
        prompt.split(' ').any(|prompt| prompt == wanted)
    }

    /// Checks the rest, once it is known where errors go; `canonical` gives a resource that is ours in its usual
    /// form, and the default for none.
    ///
    /// # Errors
    /// What the client is told.
    pub fn check(
        &self,
        client: &GrantClient,
        (redirect_uri, issuer): (&RedirectUri, &str),
        canonical: impl Fn(Option<&str>) -> Option<String>,
    ) -> Result<AuthorizationRequest, AuthorizeError> {
        let invalid = |description| Err(AuthorizeError::new("invalid_request", description));
        if self.response_type.as_deref() != Some("code") {
            return Err(AuthorizeError::new(
                "unsupported_response_type",
                "response_type is `code`",
            ));
        }
        if self
            .response_mode
            .as_deref()
            .is_some_and(|mode| mode != "query")
        {
            return invalid("response_mode is `query`");
        }
        if self.state.is_some() && self.state().is_none() {
            return invalid("state is too long");
        }
        let Some(challenge) = self.code_challenge.as_deref() else {
            return invalid("PKCE is required: code_challenge is missing");
        };
        if self.code_challenge_method.as_deref() != Some("S256") {
            return invalid("code_challenge_method is `S256`");
        }
        let is_base64url = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
        if challenge.len() != CHALLENGE_CHARS || !challenge.bytes().all(is_base64url) {
            return invalid("code_challenge is not base64url of a SHA-256");
        }
        let resources = resources(&self.resources, canonical).ok_or(AuthorizeError::new(
            "invalid_target",
            "resource is none of this gateway",
        ))?;
        Ok(AuthorizationRequest {
            client_id: client.id.clone(),
            client_name: client.name.clone(),
            issuer: issuer.to_owned(),
            redirect_uri: redirect_uri.to_string(),
            state: self.state.clone(),
            scope: granted_scopes(self.scope.as_deref(), &resources)
                .ok_or(AuthorizeError::new(
                    "invalid_scope",
                    "none of the scopes is known",
                ))?
                .to_string(),
            code_challenge: challenge.to_owned(),
            resources,
            asks_consent: self.has_prompt("consent"),
            asks_login: self.has_prompt("login"),
        })
    }
}

/// What of the scopes that a client asks for there is. One that asks for none gets all that it needs on `resources`.
fn granted_scopes(wanted: Option<&str>, resources: &[String]) -> Option<Scopes> {
    let wanted = Scopes::parse(wanted.unwrap_or_default());
    if wanted.iter().next().is_none() {
        let profiles = resources.iter().filter_map(|resource| {
            let (before, profile) = resource.rsplit_once('/')?;
            let is_profile = before.ends_with("/profiles");
            is_profile.then(|| format!("{PROFILE_PREFIX}{profile}"))
        });
        return Some(
            SCOPES
                .into_iter()
                .map(str::to_owned)
                .chain(profiles)
                .collect(),
        );
    }
    let is_known = |scope: &&str| SCOPES.contains(scope) || scope.starts_with(PROFILE_PREFIX);
    let known: Scopes = wanted.iter().filter(is_known).collect();
    let has_some = known.iter().next().is_some();
    has_some.then_some(known)
}

/// The resources in their usual form; `None` where one is not ours, or there are too many.
pub(super) fn resources(
    wanted: &[String],
    canonical: impl Fn(Option<&str>) -> Option<String>,
) -> Option<Vec<String>> {
    if wanted.is_empty() {
        return canonical(None).map(|only| vec![only]);
    }
    if wanted.len() > RESOURCES_MAX {
        return None;
    }
    let mut all: Vec<String> = wanted
        .iter()
        .map(|resource| canonical(Some(resource)))
        .collect::<Option<_>>()?;
    all.sort();
    all.dedup();
    Some(all)
}

impl AuthorizationRequest {
    /// The URL that sends `code` to the client (RFC 9207 has `iss`).
    pub(super) fn code_redirect(&self, code: &str) -> String {
        self.redirect(&[("code", code)])
    }

    /// The URL that tells the client of `error`.
    pub fn error_redirect(&self, error: &AuthorizeError) -> String {
        let params = [
            ("error", error.error),
            ("error_description", error.description),
        ];
        self.redirect(&params)
    }

    fn redirect(&self, params: &[(&str, &str)]) -> String {
        let state = self.state.as_deref();
        match RedirectUri::parse(&self.redirect_uri) {
            Ok(uri) => redirect_url(&uri, params, state, &self.issuer),
            Err(_) => self.issuer.clone(),
        }
    }

    /// The parameters that ask for the same again, of whoever is logged in.
    pub fn to_query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.client_id)
            .append_pair("redirect_uri", &self.redirect_uri)
            .append_pair("scope", &self.scope)
            .append_pair("code_challenge", &self.code_challenge)
            .append_pair("code_challenge_method", "S256");
        if let Some(state) = &self.state {
            query.append_pair("state", state);
        }
        for resource in &self.resources {
            query.append_pair("resource", resource);
        }
        if self.asks_consent {
            query.append_pair("prompt", "consent");
        }
        query.finish()
    }
}

/// `uri` with what a client is told there.
pub fn redirect_url(
    uri: &RedirectUri,
    params: &[(&str, &str)],
    state: Option<&str>,
    issuer: &str,
) -> String {
    let state = state.map(|state| ("state", state));
    let all = params.iter().copied().chain(state).chain([("iss", issuer)]);
    uri.with_params(all)
}
