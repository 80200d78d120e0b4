//! A person signs in: where their browser is sent, and what it brings back.

use jiff::{SignedDuration, Timestamp};
use oauth2::{CsrfToken, PkceCodeChallenge};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use url::{Url, form_urlencoded};
use uuid::Uuid;

use super::{
    GrantError, Grants, OAuthServer,
    discovery::{self, IssuerMetadata, ServerMetadata},
    quirks::{self, Quirks},
    record::{self, GrantRecord, OpenGrant},
    token_endpoint::{
        ClientCredential, ClientRegistration, Form, OAuthClient, TokenEndpoint, shorten,
    },
};
use crate::{
    names::{AgentId, ServerName},
    store::{GrantKey, GrantNote, GrantOwner, GrantState},
};

/// How long a person has to sign in.
const SIGN_IN_TIME: SignedDuration = SignedDuration::from_secs(600);

/// A sign-in that is to begin.
#[derive(Clone, Debug)]
pub struct SignInRequest {
    /// Where the browser comes back to.
    pub redirect_uri: Url,
    /// What only this browser shows when it comes back, such as the value of a cookie.
    pub browser: String,
    /// The URL of the gateway's own client metadata document, where it publishes one.
    pub client_metadata: Option<Url>,
    /// Whether the person wants another account than the one that the browser may be signed in with.
    pub selects_account: bool,
}

/// What a browser that came back has brought.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SignIn {
    /// A grant. It is kept.
    Done {
        /// Towards which server.
        server: ServerName,
        /// Whose.
        owner: GrantOwner,
    },
    /// The issuer refused what it was asked for, and takes it another way: the browser goes there.
    Again(Url),
}

/// A sign-in that has begun, as it is kept.
#[derive(Clone, Deserialize, Serialize)]
struct BegunSignIn {
    server: String,
    /// Its URL.
    server_url: String,
    /// The id of the agent; none for the gateway.
    agent: Option<[u8; 16]>,
    /// The hash of what only the browser shows.
    browser: [u8; 32],
    redirect_uri: Url,
    client_metadata: Option<Url>,
    verifier: String,
    client: OAuthClient,
    token_endpoint: TokenEndpoint,
    revocation_endpoint: Option<String>,
    /// The issuer as its metadata has it; none of a server without metadata.
    expected_issuer: Option<String>,
    requires_issuer: bool,
    resource: String,
    scopes: Vec<String>,
    selects_account: bool,
}

/// The query that a browser brings back.
#[derive(Default)]
struct Callback {
    code: Option<String>,
    state: Option<String>,
    issuer: Option<String>,
    error: Option<String>,
    description: Option<String>,
}

impl Grants {
    /// Where the browser goes in which somebody signs in to `server` for `owner`.
    ///
    /// # Errors
    /// Why nobody can sign in.
    pub async fn begin(
        &self,
        server: &ServerName,
        owner: GrantOwner,
        request: &SignInRequest,
    ) -> Result<Url, GrantError> {
        let server = self.server(server)?;
        if !server.is_interactive() {
            return Err(refused("nobody signs in to this server: see `auth.grant`"));
        }
        let owner = server.owner(owner);
        let slot = server.slot(owner);
        let challenge = slot.challenge();
        let egress = server.egress()?;
        let found =
            discovery::discover(&egress, &server.url, &server.grant, challenge.as_deref()).await?;
        let quirks = self.quirks(&found.issuer()).await;
        check_pkce(&server, &found, &quirks)?;
        let scopes = slot.with_wanted(&found.scopes);
        let client = self.client(&server, &found, request, &scopes).await?;
        let (code_challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let state = CsrfToken::new_random();
        let begun = BegunSignIn {
            server: server.name.to_string(),
            server_url: server.url.to_string(),
            agent: match owner {
                GrantOwner::Gateway => None,
                GrantOwner::Agent(agent) => Some(agent.0.into_bytes()),
            },
            browser: Sha256::digest(&request.browser).into(),
            redirect_uri: request.redirect_uri.clone(),
            client_metadata: request.client_metadata.clone(),
            verifier: verifier.into_secret(),
            client,
            token_endpoint: found.token_endpoint(),
            revocation_endpoint: found.metadata.revocation_endpoint.clone(),
            expected_issuer: found.metadata.issuer.clone(),
            requires_issuer: found
                .metadata
                .authorization_response_iss_parameter_supported
                .unwrap_or_default(),
            resource: found.resource.clone(),
            scopes,
            selects_account: request.selects_account
                || self.has_namesake_grant(&server, owner).await?,
        };
        let url = authorization_url(&server, &found, &quirks, &begun)?;
        let url = with_state(url, code_challenge.as_str(), state.secret());
        let key = hash_of(state.secret());
        self.keep_note(
            GrantNote::SignIn,
            &key,
            &begun,
            Some(self.now() + SIGN_IN_TIME),
        )
        .await?;
        Ok(url)
    }

    /// Whether `owner` has signed in to another server at the URL of `server`: two names are for two accounts.
    async fn has_namesake_grant(
        &self,
        server: &OAuthServer,
        owner: GrantOwner,
    ) -> Result<bool, GrantError> {
        let stored = self.storage()?.store.grants.all_grants(Some(owner)).await?;
        Ok(stored.iter().any(|grant| server.is_for_namesake(grant)))
    }

    /// Takes what a browser has brought back: the `query` of the URL that it was sent to, and what only it shows.
    ///
    /// # Errors
    /// Why there is no grant.
    pub async fn finish(&self, query: &str, browser: &str) -> Result<SignIn, GrantError> {
        let callback = Callback::parse(query);
        let state = callback.state.as_deref().unwrap_or_default();
        let key = hash_of(state);
        let storage = self.storage()?;
        let place = GrantNote::SignIn.place(&key);
        let kept = storage.store.grants.note((GrantNote::SignIn, &key)).await?;
        let kept = kept.ok_or_else(|| refused(UNKNOWN_STATE))?;
        let begun: BegunSignIn = record::open(&storage.key().await?, &place, &kept)?;
        if begun.browser != <[u8; 32]>::from(Sha256::digest(browser)) {
            return Err(refused("this sign-in was begun in another browser"));
        }
        begun.check_issuer(callback.issuer.as_deref())?;
        // Of several that come back together one goes on.
        let taken = storage
            .store
            .grants
            .take_note((GrantNote::SignIn, &key), self.now());
        taken.await?.ok_or_else(|| refused(UNKNOWN_STATE))?;
        let server = ServerName::parse(&begun.server).map_err(|_| refused(UNKNOWN_STATE))?;
        let server = self.server(&server)?;
        // The config may have another server of that name by now.
        if begun.server_url != server.url.as_str() {
            return Err(refused(UNKNOWN_STATE));
        }
        if let Some(code) = callback.error {
            let description = callback.description.unwrap_or_default();
            return self
                .refused_sign_in(&server, &begun, &code, &description)
                .await;
        }
        let code = callback.code.unwrap_or_default();
        // The code is good for once: it is used also when nobody waits any more.
        let (done, exchanged) = oneshot::channel();
        let grants = self.clone();
        self.0.parts.tasks.spawn("oauth_sign_in", async move {
            let exchanged = grants.exchange_code(&server, &begun, &code).await;
            let _sent = done.send(exchanged);
        });
        let stopping = || GrantError::Unreachable {
            reason: "the gateway is stopping".to_owned(),
        };
        exchanged.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Forgets the grants of `owner` towards `server`, and asks their issuer to do so. Whether there was one.
    ///
    /// # Errors
    /// When the store does not forget it.
    pub async fn revoke(&self, server: &ServerName, owner: GrantOwner) -> Result<bool, GrantError> {
        let server = self.server(server)?;
        let owner = server.owner(owner);
        let storage = self.storage()?;
        let stored = storage
            .store
            .grants
            .grants(&server.grant_resource(), owner)
            .await?;
        let is_any = !stored.is_empty();
        for stored in stored {
            let lock = self.lock(&stored.key).await?;
            storage.store.grants.remove_grant(&stored.key).await?;
            lock.remove().await;
            if let Ok(key) = storage.key().await
                && let Ok(grant) = OpenGrant::open(stored, &key)
            {
                self.revoke_at_issuer(&server, &grant).await;
            }
        }
        server.slot(owner).reset();
        self.tell(&server, owner);
        Ok(is_any)
    }

    /// The issuer may not be there, and may keep tokens until they end: nothing depends on it.
    async fn revoke_at_issuer(&self, server: &OAuthServer, grant: &OpenGrant) {
        let record = &grant.record;
        let (Some(url), Ok(egress)) = (&record.revocation_endpoint, server.egress()) else {
            return;
        };
        let tokens = &record.tokens;
        let refresh_token = tokens.refresh_token.as_deref();
        let form: Form<'_> = vec![
            ("token", refresh_token.unwrap_or(&tokens.access_token)),
            (
                "token_type_hint",
                refresh_token.map_or("access_token", |_| "refresh_token"),
            ),
        ];
        let endpoint = TokenEndpoint {
            url: url.clone(),
            ..record.token_endpoint.clone()
        };
        let quirks = self.quirks(&endpoint.issuer).await;
        let client = server.client_of(record);
        if let Err(error) = endpoint.revoke(&egress, &client, &quirks, &form).await {
            let server = &server.name;
            tracing::info!(%server, %error, "the issuer did not confirm that a grant is revoked");
        }
    }

    /// Who we are at the issuer: as the config says, by our metadata document, or registered there.
    async fn client(
        &self,
        server: &OAuthServer,
        found: &ServerMetadata,
        request: &SignInRequest,
        scopes: &[String],
    ) -> Result<OAuthClient, GrantError> {
        if let Some(client) = server.configured_client() {
            return Ok(client);
        }
        let takes_documents = found.metadata.client_id_metadata_document_supported;
        let document = request.client_metadata.as_ref();
        if let Some(url) = document.filter(|_| takes_documents == Some(true)) {
            return Ok(OAuthClient {
                id: url.to_string(),
                credential: ClientCredential::Public,
                is_configured: false,
                registration: None,
            });
        }
        let key = registration_key(&found.issuer(), &request.redirect_uri);
        let kept = self.registered_client(&key).await?;
        let is_over = |registration: &ClientRegistration| registration.is_over(self.now());
        let is_good = |kept: &OAuthClient| !kept.registration.as_ref().is_some_and(is_over);
        if let Some(kept) = kept.filter(is_good) {
            return Ok(kept);
        }
        let egress = server.egress()?;
        let redirect_uri = (&request.redirect_uri, self.now());
        let client = discovery::register(&egress, &found.metadata, redirect_uri, scopes).await?;
        self.keep_note(GrantNote::Registration, &key, &client, None)
            .await?;
        Ok(client)
    }

    /// The issuer has sent the browser back with an error.
    async fn refused_sign_in(
        &self,
        server: &OAuthServer,
        begun: &BegunSignIn,
        code: &str,
        description: &str,
    ) -> Result<SignIn, GrantError> {
        let issuer = &begun.token_endpoint.issuer;
        let mut quirks = self.quirks(issuer).await;
        if quirks::refuses_resource(code, description) && !quirks.refuses_resource {
            quirks.refuses_resource = true;
            self.keep_quirks(issuer, &quirks).await;
            return Ok(SignIn::Again(self.begin_again(server, begun).await?));
        }
        self.forget_unknown_client(begun, code).await;
        let (code, description) = (shorten(code), shorten(description));
        Err(refused(
            format!("{issuer}: {code} {description}").trim_end(),
        ))
    }

    /// The same sign-in once more, in the same browser.
    async fn begin_again(
        &self,
        server: &OAuthServer,
        begun: &BegunSignIn,
    ) -> Result<Url, GrantError> {
        // Its own request has the hash of what the browser shows, so the new one is told of it afterwards.
        let request = SignInRequest {
            redirect_uri: begun.redirect_uri.clone(),
            browser: String::new(),
            client_metadata: begun.client_metadata.clone(),
            selects_account: begun.selects_account,
        };
        let url = self.begin(&server.name, begun.owner(), &request).await?;
        let state = url.query_pairs().find(|(name, _)| name == "state");
        let key = hash_of(
            &state
                .map(|(_, state)| state.into_owned())
                .unwrap_or_default(),
        );
        let storage = self.storage()?;
        let kept = storage.store.grants.note((GrantNote::SignIn, &key)).await?;
        let kept = kept.ok_or_else(|| refused(UNKNOWN_STATE))?;
        let place = GrantNote::SignIn.place(&key);
        let mut again: BegunSignIn = record::open(&storage.key().await?, &place, &kept)?;
        again.browser = begun.browser;
        self.keep_note(
            GrantNote::SignIn,
            &key,
            &again,
            Some(self.now() + SIGN_IN_TIME),
        )
        .await?;
        Ok(url)
    }

    /// The client that an issuer registered, as it is kept.
    async fn registered_client(&self, key: &str) -> Result<Option<OAuthClient>, GrantError> {
        let storage = self.storage()?;
        let note = (GrantNote::Registration, key);
        let Some(kept) = storage.store.grants.note(note).await? else {
            return Ok(None);
        };
        let place = GrantNote::Registration.place(key);
        record::open(&storage.key().await?, &place, &kept).map(Some)
    }

    /// An issuer that does not know the client it registered registers another for the next sign-in.
    async fn forget_unknown_client(&self, begun: &BegunSignIn, code: &str) {
        if matches!(code, "invalid_client" | "unauthorized_client") {
            let issuer = &begun.token_endpoint.issuer;
            self.forget_registration(&begun.client, issuer).await;
        }
    }

    /// Forgets `client`, which `issuer` registered, unless there is another in its place.
    pub(super) async fn forget_registration(&self, client: &OAuthClient, issuer: &str) {
        let Some(registration) = &client.registration else {
            return;
        };
        let key = registration_key(issuer, &registration.redirect_uri);
        let forget = async {
            let kept = self.registered_client(&key).await?;
            if kept.is_some_and(|kept| kept.id == client.id) {
                let note = (GrantNote::Registration, &*key);
                let grants = &self.storage()?.store.grants;
                grants.take_note(note, self.now()).await?;
            }
            Ok::<_, GrantError>(())
        };
        if let Err(error) = forget.await {
            tracing::warn!(%error, issuer, "a client that the issuer does not know is still kept");
        }
    }

    async fn exchange_code(
        &self,
        server: &OAuthServer,
        begun: &BegunSignIn,
        code: &str,
    ) -> Result<SignIn, GrantError> {
        let form: Form<'_> = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", begun.redirect_uri.as_str()),
            ("code_verifier", &begun.verifier),
            ("resource", &begun.resource),
        ];
        let endpoint = &begun.token_endpoint;
        let mut client = begun.client.clone();
        if client.is_configured {
            let configured = server.configured_client();
            client = configured
                .filter(|it| it.id == begun.client.id)
                .unwrap_or(client);
        }
        let now = self.now();
        let answer = self.ask(&server.egress()?, endpoint, &client, &form).await;
        let tokens = match answer {
            Ok(tokens) => tokens,
            Err(error) => {
                if let Some(code) = error.code() {
                    self.forget_unknown_client(begun, code).await;
                }
                return Err(error.into());
            }
        };
        let scopes = tokens.scopes.clone();
        let grant = OpenGrant {
            key: GrantKey {
                resource: server.grant_resource(),
                issuer: endpoint.issuer.clone(),
                owner: begun.owner(),
            },
            state: GrantState::Active,
            granted: now,
            record: GrantRecord {
                tokens,
                received: now,
                client: begun.client.clone(),
                token_endpoint: endpoint.clone(),
                revocation_endpoint: begun.revocation_endpoint.clone(),
                resource: begun.resource.clone(),
                scopes: scopes.unwrap_or_else(|| begun.scopes.clone()),
            },
        };
        self.keep_grant(server, &grant).await?;
        Ok(SignIn::Done {
            server: server.name.clone(),
            owner: begun.owner(),
        })
    }

    /// Keeps a new grant in place of those of before.
    async fn keep_grant(&self, server: &OAuthServer, grant: &OpenGrant) -> Result<(), GrantError> {
        // Whoever renews the grant of before must not write that down later.
        let _lock = self.lock(&grant.key).await?;
        self.write(grant).await?;
        let storage = self.storage()?;
        let owner = grant.key.owner;
        for other in storage
            .store
            .grants
            .grants(&grant.key.resource, owner)
            .await?
        {
            if other.key.issuer != grant.key.issuer {
                storage.store.grants.remove_grant(&other.key).await?;
            }
        }
        server.slot(owner).reset();
        self.tell(server, owner);
        Ok(())
    }

    /// Keeps a note, sealed.
    pub(super) async fn keep_note(
        &self,
        note: GrantNote,
        key: &str,
        value: &impl Serialize,
        expires: Option<Timestamp>,
    ) -> Result<(), GrantError> {
        let storage = self.storage()?;
        let sealed = record::seal(&storage.key().await?, &note.place(key), value)?;
        let kept = storage
            .store
            .grants
            .put_note((note, key), &sealed, expires, self.now());
        Ok(kept.await?)
    }
}

impl BegunSignIn {
    fn owner(&self) -> GrantOwner {
        self.agent.map_or(GrantOwner::Gateway, |agent| {
            GrantOwner::Agent(AgentId(Uuid::from_bytes(agent)))
        })
    }

    /// Whether the answer is one of the issuer that was asked (RFC 9207). What another says is not shown.
    fn check_issuer(&self, received: Option<&str>) -> Result<(), GrantError> {
        match (received, self.expected_issuer.as_deref()) {
            (Some(received), Some(expected)) if received == expected => Ok(()),
            (None, _) if !self.requires_issuer => Ok(()),
            (Some(_) | None, _) => Err(refused(
                "the answer is not one of the authorization server that was asked (`iss`)",
            )),
        }
    }
}

impl Callback {
    fn parse(query: &str) -> Self {
        let mut callback = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let place = match &*name {
                "code" => &mut callback.code,
                "error" => &mut callback.error,
                "error_description" => &mut callback.description,
                "iss" => &mut callback.issuer,
                "state" => &mut callback.state,
                _ => continue,
            };
            place.get_or_insert_with(|| value.into_owned());
        }
        callback
    }
}

const UNKNOWN_STATE: &str =
    "this sign-in is not known, has been used, or is older than 10 minutes; begin again";

fn refused(reason: impl Into<String>) -> GrantError {
    GrantError::Refused {
        reason: reason.into(),
    }
}

fn hash_of(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

/// A client that is registered with one redirect URI is not good for another.
fn registration_key(issuer: &str, redirect_uri: &Url) -> String {
    serde_json::json!([issuer, redirect_uri]).to_string()
}

/// Refuses issuers that do not say that they have PKCE with S256, without which codes can be stolen.
fn check_pkce(
    server: &OAuthServer,
    found: &ServerMetadata,
    quirks: &Quirks,
) -> Result<(), GrantError> {
    let methods = found.metadata.code_challenge_methods_supported.as_deref();
    let is_trusted = quirks.hides_pkce || server.grant.issuer.is_some() || !found.is_published;
    match methods {
        Some(methods) if methods.iter().any(|it| it == "S256") => Ok(()),
        None if is_trusted => Ok(()),
        Some(_) | None => Err(refused(
            "the authorization server does not say that it supports PKCE with S256; set `auth.issuer` if it does",
        )),
    }
}

/// Where somebody signs in, without `state` and PKCE.
fn authorization_url(
    server: &OAuthServer,
    found: &ServerMetadata,
    quirks: &Quirks,
    begun: &BegunSignIn,
) -> Result<Url, GrantError> {
    let IssuerMetadata {
        authorization_endpoint,
        ..
    } = &found.metadata;
    let endpoint = authorization_endpoint.as_deref().unwrap_or_default();
    let url = Url::parse(endpoint).ok();
    let is_web = |url: &Url| matches!(url.scheme(), "http" | "https");
    let mut url = url.filter(is_web).ok_or_else(|| {
        refused("the authorization server has no authorization endpoint that a browser can go to")
    })?;
    {
        let mut query = url.query_pairs_mut();
        query.append_pair("response_type", "code");
        query.append_pair("client_id", &begun.client.id);
        query.append_pair("redirect_uri", begun.redirect_uri.as_str());
        if !begun.scopes.is_empty() {
            query.append_pair("scope", &begun.scopes.join(" "));
        }
        if !quirks.refuses_resource {
            query.append_pair("resource", &begun.resource);
        }
        if let Some(audience) = &server.grant.audience {
            query.append_pair("audience", audience);
        }
        let account = begun
            .selects_account
            .then(|| quirks::account_prompt(&found.metadata));
        let mut prompts: Vec<&str> = account.flatten().into_iter().collect();
        for (name, value) in &quirks.authorize {
            if name == "prompt" {
                prompts.push(value);
            } else {
                query.append_pair(name, value);
            }
        }
        if !prompts.is_empty() {
            query.append_pair("prompt", &prompts.join(" "));
        }
    }
    Ok(url)
}

fn with_state(mut url: Url, code_challenge: &str, state: &str) -> Url {
    url.query_pairs_mut()
        .append_pair("code_challenge", code_challenge)
        .append_pair("code_challenge_method", "S256")
        .append_pair("state", state);
    url
}

#[cfg(test)]
#[test]
fn callbacks_are_read_once_each() {
    let callback = Callback::parse("code=a%20b&state=s&iss=https%3A%2F%2Fas&code=c");
    assert_eq!(callback.code.as_deref(), Some("a b"));
    assert_eq!(callback.issuer.as_deref(), Some("https://as"));
    assert!(callback.error.is_none());
}
