//! The endpoints that clients themselves ask: tokens, registration, revocation.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{
    HeaderValue, Response, StatusCode,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};
use percent_encoding::percent_decode_str;
use serde_json::json;

use super::{OAuthForm, OAuthRequest, oauth_error};
use crate::{
    audit::EventKind,
    auth::token::Scopes,
    authorization_server::{
        ClientMetadata, CodeParams, GrantClient, GrantRejection, IssuedTokens, Narrowing,
        RegistrationError, Revoked, TokenRequestError,
    },
    clock,
    http::{body::Body, json_response},
};

impl OAuthRequest<'_> {
    pub(super) async fn token(&mut self) -> Response<Body> {
        let form = match self.form().await {
            Ok(form) => form,
            Err(response) => return response,
        };
        match self.issue(&form).await {
            Ok(issued) if self.agent_of(&issued.grant.subject).is_none() => {
                // No rule of `agents.match` is for them any more, or the agent is gone: they log in anew.
                let revoked = self.server().revoke_grant(&issued.grant.id).await;
                if let Err(error) = revoked {
                    tracing::warn!(%error, "a grant of somebody who is no agent cannot be revoked");
                }
                self.end_grant(&issued.grant);
                self.token_error(&TokenRequestError::Grant(GrantRejection::NoAgent))
            }
            Ok(issued) => {
                self.oauth.note_issued(&issued.grant);
                if issued.has_displaced {
                    let governance = self.edge.proxy.governance();
                    governance.directory().forget_tokens();
                }
                token_response(&issued)
            }
            Err(why) => self.token_error(&why),
        }
    }

    async fn issue(&self, form: &OAuthForm) -> Result<IssuedTokens, TokenRequestError> {
        let client = self.client(form).await?;
        let now = clock::now();
        let narrowing = self.narrowing(form)?;
        match form.get("grant_type") {
            Some("authorization_code") => {
                let param =
                    |name, missing| form.get(name).ok_or(TokenRequestError::Request(missing));
                let params = CodeParams {
                    code: param("code", "code is missing")?,
                    redirect_uri: form.get("redirect_uri"),
                    verifier: param("code_verifier", "code_verifier is missing")?,
                };
                self.server()
                    .exchange_code(&client, params, &narrowing, now)
                    .await
            }
            Some("refresh_token") => {
                let token = form.get("refresh_token");
                let token = token.ok_or(TokenRequestError::Request("refresh_token is missing"))?;
                self.server().refresh(&client, token, &narrowing, now).await
            }
            Some(_) => Err(TokenRequestError::GrantType),
            None => Err(TokenRequestError::Request("grant_type is missing")),
        }
    }

    /// The client that shows itself in the header or in the form (RFC 6749, section 2.3.1).
    async fn client(&self, form: &OAuthForm) -> Result<GrantClient, TokenRequestError> {
        let header = self.request.headers().get(AUTHORIZATION);
        let basic = match header {
            Some(value) => Some(basic_credentials(value).ok_or(TokenRequestError::Client)?),
            None => None,
        };
        let (id, secret) = match (&basic, form.get("client_id")) {
            (Some((id, secret)), named) => {
                if named.is_some_and(|named| named != id) || form.get("client_secret").is_some() {
                    let twice = "the client shows itself in the header or in the body, not in both";
                    return Err(TokenRequestError::Request(twice));
                }
                (id.as_str(), Some(secret.as_str()))
            }
            (None, Some(id)) => (id, form.get("client_secret")),
            (None, None) => return Err(TokenRequestError::Request("client_id is missing")),
        };
        self.server().authenticate_client(id, secret).await
    }

    fn narrowing(&self, form: &OAuthForm) -> Result<Narrowing, TokenRequestError> {
        let resources = form.all("resource").map(|resource| {
            self.canonical_resource(Some(resource))
                .ok_or(TokenRequestError::Target)
        });
        let scopes = form.get("scope").map(Scopes::parse);
        Ok(Narrowing {
            scopes: scopes.filter(|scopes| scopes.iter().next().is_some()),
            resources: resources.collect::<Result<_, _>>()?,
        })
    }

    fn token_error(&self, why: &TokenRequestError) -> Response<Body> {
        if let TokenRequestError::Server(error) = why {
            return Self::failed(error);
        }
        if let TokenRequestError::Replayed(grant) = why {
            self.end_grant(grant);
            let detail = "a code or refresh token of it was used twice";
            self.record(
                EventKind::GrantRevoked,
                &grant.id,
                grant.client_label(),
                detail,
            );
        }
        if let Some(reason) = why.reason() {
            self.refused(reason);
        }
        let status = match why {
            TokenRequestError::Client => StatusCode::UNAUTHORIZED,
            TokenRequestError::Grant(_)
            | TokenRequestError::GrantType
            | TokenRequestError::Replayed(_)
            | TokenRequestError::Request(_)
            | TokenRequestError::Scope
            | TokenRequestError::Server(_)
            | TokenRequestError::Target => StatusCode::BAD_REQUEST,
        };
        let mut response = oauth_error(status, why.code(), &why.to_string());
        if status == StatusCode::UNAUTHORIZED {
            let basic = HeaderValue::from_static(r#"Basic realm="tollbridge""#);
            response.headers_mut().insert(WWW_AUTHENTICATE, basic);
        }
        response
    }

    pub(super) async fn register(&mut self) -> Response<Body> {
        if !self.oauth.clients.admit(self.peer.address) {
            self.refused("oauth_registration_rate");
            let why = "too many registrations from this address; try again in a minute";
            return oauth_error(StatusCode::TOO_MANY_REQUESTS, "slow_down", why);
        }
        let body = match self.body().await {
            Ok(body) => body,
            Err(response) => return response,
        };
        let metadata: ClientMetadata = match serde_json::from_slice(&body) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.refused("oauth_registration");
                let why = format!("the body is no client metadata: {error}");
                return oauth_error(StatusCode::BAD_REQUEST, "invalid_client_metadata", &why);
            }
        };
        match self.server().register(&metadata, clock::now()).await {
            Ok(registered) => {
                let name = metadata.client_name.as_deref().unwrap_or("without a name");
                let id = registered["client_id"].as_str().unwrap_or_default();
                tracing::info!(client = id, name, peer = %self.peer.address, "OAuth client registered");
                json_response(StatusCode::CREATED, registered.to_string())
            }
            Err(RegistrationError::Server(error)) => Self::failed(&error),
            Err(why) => {
                self.refused("oauth_registration");
                let status = match why {
                    RegistrationError::Full => StatusCode::SERVICE_UNAVAILABLE,
                    RegistrationError::Off => StatusCode::FORBIDDEN,
                    RegistrationError::Metadata(_) | RegistrationError::Server(_) => {
                        StatusCode::BAD_REQUEST
                    }
                };
                oauth_error(status, why.code(), &why.to_string())
            }
        }
    }

    /// What is unknown counts as revoked (RFC 7009, section 2.2).
    pub(super) async fn revoke(&mut self) -> Response<Body> {
        let form = match self.form().await {
            Ok(form) => form,
            Err(response) => return response,
        };
        let revoked = async {
            let client = self.client(&form).await?;
            let token = form.get("token");
            let token = token.ok_or(TokenRequestError::Request("token is missing"))?;
            self.server().revoke_token(&client, token).await
        };
        match revoked.await {
            Ok(Revoked::AccessToken) => {
                let governance = self.edge.proxy.governance();
                governance.directory().forget_tokens();
                json_response(StatusCode::OK, "{}")
            }
            Ok(Revoked::Grant(grant)) => {
                let client = grant.client_label();
                self.end_grant(&grant);
                self.record(EventKind::GrantRevoked, &grant.id, client, "by its client");
                json_response(StatusCode::OK, "{}")
            }
            Ok(Revoked::Nothing) | Err(TokenRequestError::Grant(GrantRejection::Unknown)) => {
                json_response(StatusCode::OK, "{}")
            }
            Err(why) => self.token_error(&why),
        }
    }
}

/// Id and secret of `Basic`, each encoded as in a form.
fn basic_credentials(value: &HeaderValue) -> Option<(String, String)> {
    let (scheme, encoded) = value.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(BASE64_STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (id, secret) = decoded.split_once(':')?;
    let plain = |text: &str| {
        let spaced = text.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().ok()?;
        Some(decoded.into_owned())
    };
    Some((plain(id)?, plain(secret)?))
}

fn token_response(issued: &IssuedTokens) -> Response<Body> {
    let body = json!({
        "access_token": issued.access_token,
        "token_type": "Bearer",
        "expires_in": issued.expires_in.as_secs(),
        "refresh_token": issued.refresh_token,
        "scope": issued.scope,
    });
    json_response(StatusCode::OK, body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_shows_itself_in_the_header_as_in_a_form() {
        let check = |value: &str, expect: Option<(&str, &str)>| {
            let found = basic_credentials(&HeaderValue::from_str(value).unwrap());
            let expect = expect.map(|(id, secret)| (id.to_owned(), secret.to_owned()));
            assert_eq!(found, expect, "{value}");
        };
        check("Basic YTpi", Some(("a", "b")));
        check("basic YSUzQXg6YiUyQmI=", Some(("a:x", "b+b")));
        check("Bearer YTpi", None);
        check("Basic YQ==", None);
        check("Basic ?", None);
    }
}
