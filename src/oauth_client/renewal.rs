//! Getting a token, and another one when its time has passed.

use std::{sync::Arc, time::Duration};

use rmcp::transport::auth::enterprise::{
    EmaAuthorizationServer, EmaClientAssertion, EmaClientAssertionProvider,
    EmaClientAuthentication, EmaError, EmaExchangeRequest,
};
use tokio::{
    sync::{OwnedMutexGuard, oneshot},
    time::{Instant, sleep_until},
};

use super::{
    AccessToken, GrantError, Grants, OAuthServer, SubjectToken, SubjectTokenKind, client_assertion,
    discovery::{self, ServerMetadata},
    grant_lock::GrantLock,
    quirks::Quirks,
    record::{self, GrantRecord, OpenGrant},
    slot::{CurrentToken, Slot},
    token_endpoint::{
        ClientCredential, Form, OAuthClient, TokenEndpoint, TokenError, TokenResponse,
    },
};
use crate::{
    config::GrantKind,
    egress::EgressClient,
    store::{GrantKey, GrantNote, GrantOwner, GrantState},
};

/// How long it is waited for another process that renews a grant.
const LOCK_WAIT: Duration = Duration::from_secs(30);
/// How often it is tried to write a grant down.
const WRITE_ATTEMPTS: usize = 3;

type Renewed = Result<AccessToken, GrantError>;

impl Grants {
    /// Renews the token of `owner` in a task of its own: whoever waits may go away, but what the issuer gave is
    /// kept. `turn` is the right to do so.
    pub(super) fn spawn_renewal(
        &self,
        turn: OwnedMutexGuard<()>,
        server: Arc<OAuthServer>,
        owner: GrantOwner,
        caller: Option<SubjectToken>,
    ) -> oneshot::Receiver<Renewed> {
        let (done, renewed) = oneshot::channel();
        let grants = self.clone();
        self.0.parts.tasks.spawn("oauth_renewal", async move {
            let slot = server.slot(owner);
            let result = grants.renew(&server, owner, &slot, caller.as_ref()).await;
            let result = match result {
                Err(error) => {
                    if server.is_kept_back_by(&error) {
                        slot.fail(&error);
                    }
                    let name = &server.name;
                    tracing::debug!(server = %name, %error, "no token");
                    slot.last_resort(grants.now()).ok_or(error)
                }
                renewed => renewed,
            };
            drop(turn);
            // Nobody may be waiting any more.
            let _sent = done.send(result);
            if server.is_interactive()
                && let Some(at) = slot.plan_retry()
            {
                grants.retry(at, &slot, (server, owner)).await;
            }
        });
        renewed
    }

    /// Tries once more although nobody asks. An answer that was lost may have had the only refresh token that is good;
    /// issuers that take the one of before do so for a short time.
    async fn retry(
        &self,
        at: Instant,
        slot: &Slot,
        (server, owner): (Arc<OAuthServer>, GrantOwner),
    ) {
        tokio::select! {
            () = sleep_until(at) => {}
            () = self.0.parts.tasks.stop_token().cancelled() => return,
        }
        let has_failed = slot.begin_retry();
        if let Ok(turn) = Arc::clone(&slot.renewing).try_lock_owned()
            && has_failed
        {
            drop(self.spawn_renewal(turn, server, owner, None));
        }
    }

    async fn renew(
        &self,
        server: &OAuthServer,
        owner: GrantOwner,
        slot: &Slot,
        caller: Option<&SubjectToken>,
    ) -> Renewed {
        if slot.takes_none() {
            return Err(GrantError::Refused {
                reason: "the server rejects every token that its authorization server gives"
                    .to_owned(),
            });
        }
        match server.grant.grant {
            GrantKind::AuthorizationCode => self.renew_stored(server, owner, slot).await,
            GrantKind::ClientCredentials => self.get_own(server, slot).await,
            GrantKind::IdJag => self.exchange_assertion(server, slot, caller).await,
            GrantKind::TokenExchange => self.exchange_token(server, slot, caller).await,
        }
    }

    /// `client_credentials`.
    async fn get_own(&self, server: &OAuthServer, slot: &Slot) -> Renewed {
        let found = self.discover(server, slot).await?;
        let scopes = slot.with_wanted(&found.scopes).join(" ");
        let mut form = common_form(server, &found, &scopes);
        form.push(("grant_type", "client_credentials"));
        self.get(server, slot, &found, &form).await
    }

    /// `token_exchange` (RFC 8693).
    async fn exchange_token(
        &self,
        server: &OAuthServer,
        slot: &Slot,
        caller: Option<&SubjectToken>,
    ) -> Renewed {
        let (subject, kind) = subject_token(server, caller)?;
        let found = self.discover(server, slot).await?;
        let scopes = slot.with_wanted(&found.scopes).join(" ");
        let mut form = common_form(server, &found, &scopes);
        let access_token = token_type(SubjectTokenKind::AccessToken);
        form.extend([
            (
                "grant_type",
                "urn:ietf:params:oauth:grant-type:token-exchange",
            ),
            ("subject_token", subject),
            ("subject_token_type", token_type(kind)),
            ("requested_token_type", access_token),
        ]);
        if let Some(actor) = &server.grant.actor_token {
            form.push(("actor_token", actor.expose()));
            form.push(("actor_token_type", access_token));
        }
        self.get(server, slot, &found, &form).await
    }

    /// Asks for a token with `form`, and puts it in place.
    async fn get(
        &self,
        server: &OAuthServer,
        slot: &Slot,
        found: &ServerMetadata,
        form: &Form<'_>,
    ) -> Renewed {
        let client = server.configured_client().ok_or(GrantError::NeedsSignIn)?;
        let endpoint = found.token_endpoint();
        // Its time counts from here at the latest, however long the answer takes.
        let asked_at = self.now();
        let tokens = self
            .ask(&server.egress()?, &endpoint, &client, form)
            .await?;
        let asked = form.iter().find(|(name, _)| *name == "scope");
        let asked = asked.map_or("", |(_, scopes)| scopes).split(' ');
        let asked = || asked.map(str::to_owned).collect();
        let scopes = tokens.scopes.clone().unwrap_or_else(asked);
        Ok(slot.set(CurrentToken::new(&tokens, asked_at, &scopes)?))
    }

    /// `id_jag`: the identity provider vouches for the caller, and the authorization server of the server gives a
    /// token for that.
    async fn exchange_assertion(
        &self,
        server: &OAuthServer,
        slot: &Slot,
        caller: Option<&SubjectToken>,
    ) -> Renewed {
        let (subject, kind) = subject_token(server, caller)?;
        if server.grant.subject_token.is_none() && kind == SubjectTokenKind::AccessToken {
            return Err(GrantError::Refused {
                reason: "the identity provider vouches for callers with an ID token only"
                    .to_owned(),
            });
        }
        let egress = server.egress()?;
        let idp = server.grant.idp.as_ref();
        let (Some(idp), Some(client)) = (idp, server.configured_client()) else {
            return Err(GrantError::NeedsSignIn);
        };
        let found = self.discover(server, slot).await?;
        let at_idp = OAuthClient {
            id: idp.client_id.clone(),
            credential: (idp.client_secret.as_ref()).map_or(ClientCredential::Public, |secret| {
                ClientCredential::Secret(secret.expose().to_owned())
            }),
            is_configured: true,
            registration: None,
        };
        let of_idp = discovery::issuer_metadata(&egress, &idp.issuer).await?;
        let idp_endpoint = TokenEndpoint {
            issuer: idp.issuer.clone(),
            url: of_idp.token_endpoint,
            auth_methods: of_idp.token_endpoint_auth_methods_supported,
        };
        let exchange = EmaExchangeRequest::new_with_id_token(
            to_library(&idp_endpoint, &at_idp),
            to_library(&found.token_endpoint(), &client),
            &found.resource,
            subject,
        );
        let scopes = slot.with_wanted(&found.scopes);
        let asked_at = self.now();
        let given = exchange.with_scopes(scopes).exchange_id_jag(&egress).await;
        let assertion = given.map_err(|error| from_exchange(&error))?;
        // Only the assertion carries what may be done: `scope` and `resource` could undo its limits.
        let form: Form<'_> = vec![
            ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
            ("assertion", assertion.assertion().secret()),
        ];
        let tokens = self
            .ask(&egress, &found.token_endpoint(), &client, &form)
            .await?;
        let mut scopes: Vec<_> = assertion.scopes().iter().cloned().collect();
        scopes.sort();
        let scopes = tokens.scopes.clone().unwrap_or(scopes);
        Ok(slot.set(CurrentToken::new(&tokens, asked_at, &scopes)?))
    }

    /// Of a grant that somebody signed in for: what the store has, or what the issuer gives for its refresh token.
    async fn renew_stored(&self, server: &OAuthServer, owner: GrantOwner, slot: &Slot) -> Renewed {
        if let Some(unwritten) = slot.take_unwritten()
            && let Err(error) = self.write_late(&unwritten).await
        {
            slot.keep_unwritten(unwritten);
            return Err(error);
        }
        let kept = self.read(server, owner).await?;
        let kept = kept.ok_or(GrantError::NeedsSignIn)?;
        let token = CurrentToken::of_grant(&kept)?;
        if slot.is_good(&token, self.now()) || !can_refresh(&kept) {
            return self.use_up(slot, token, &kept);
        }
        let _lock = self.lock(&kept.key).await?;
        // Whoever had the lock before may have renewed it.
        let kept = self.read(server, owner).await?;
        let kept = kept.ok_or(GrantError::NeedsSignIn)?;
        let token = CurrentToken::of_grant(&kept)?;
        if slot.is_good(&token, self.now()) || !can_refresh(&kept) {
            return self.use_up(slot, token, &kept);
        }
        self.refresh(server, slot, kept).await
    }

    /// The right to change the grant of `key`, which one process at a time has.
    pub(super) async fn lock(&self, key: &GrantKey) -> Result<GrantLock, GrantError> {
        let directory = &self.storage()?.locks;
        let lock = GrantLock::acquire(directory, key, Instant::now() + LOCK_WAIT).await;
        lock.map_err(|error| GrantError::Store {
            reason: format!("cannot lock the grant: {error}"),
        })
    }

    /// Uses `token`, which is not renewed, while it lasts.
    fn use_up(&self, slot: &Slot, token: CurrentToken, kept: &OpenGrant) -> Renewed {
        if token.is_valid(self.now()) && !slot.is_rejected(&kept.record.tokens.access_token) {
            return Ok(slot.set(token));
        }
        Err(GrantError::NeedsSignIn)
    }

    /// Spends the refresh token of `kept`. Only who has the lock of the grant does that.
    async fn refresh(&self, server: &OAuthServer, slot: &Slot, mut kept: OpenGrant) -> Renewed {
        let record = &kept.record;
        let client = server.client_of(record);
        let refresh_token = record.tokens.refresh_token.as_deref().unwrap_or_default();
        let form: Form<'_> = vec![
            ("grant_type", "refresh_token"),
            ("refresh_token", refresh_token),
            ("resource", &record.resource),
        ];
        let egress = server.egress()?;
        let asked_at = self.now();
        let answer = self
            .ask(&egress, &record.token_endpoint, &client, &form)
            .await;
        let tokens = match answer {
            Ok(tokens) => tokens,
            Err(error)
                if error.is_invalid_grant() || self.is_registration_lost(record, &error).await =>
            {
                tracing::warn!(server = %server.name, %error, "somebody has to sign in again");
                kept.state = GrantState::Rejected;
                self.write(&kept).await?;
                self.tell(server, kept.key.owner);
                let token = CurrentToken::of_grant(&kept)?;
                return self.use_up(slot, token, &kept);
            }
            Err(error) => return Err(error.into()),
        };
        kept.record = record.renewed(tokens, asked_at);
        kept.state = GrantState::Active;
        self.write_or_keep(slot, &kept).await?;
        Ok(slot.set(CurrentToken::of_grant(&kept)?))
    }

    /// Whether `error` says that the issuer has lost the client that it registered. The refresh token was that client's;
    /// the next sign-in is one of another.
    async fn is_registration_lost(&self, record: &GrantRecord, error: &TokenError) -> bool {
        let issuer = &record.token_endpoint.issuer;
        let is_unknown = error.code() == Some("invalid_client");
        if !is_unknown || record.client.registration.is_none() {
            return false;
        }
        tracing::warn!(
            issuer,
            "the authorization server does not know the client that it registered for the gateway; the next \
             sign-in registers another"
        );
        self.forget_registration(&record.client, issuer).await;
        true
    }

    /// The grant of `owner` that was renewed last.
    pub(super) async fn read(
        &self,
        server: &OAuthServer,
        owner: GrantOwner,
    ) -> Result<Option<OpenGrant>, GrantError> {
        let storage = self.storage()?;
        let stored = storage
            .store
            .grants
            .grants(&server.grant_resource(), owner)
            .await?;
        let newest = stored.into_iter().find(|it| server.has_made(it));
        let Some(stored) = newest else {
            return Ok(None);
        };
        OpenGrant::open(stored, &storage.key().await?).map(Some)
    }

    /// Writes `grant` down; it is on disk when this has returned.
    pub(super) async fn write(&self, grant: &OpenGrant) -> Result<(), GrantError> {
        let storage = self.storage()?;
        let sealed = grant.seal(&storage.key().await?)?;
        let mut attempt = 1;
        loop {
            match storage.store.grants.put_grant(&sealed).await {
                Ok(()) => return Ok(()),
                Err(error) if attempt == WRITE_ATTEMPTS => return Err(error.into()),
                Err(error) => tracing::warn!(%error, "a grant is not written down yet"),
            }
            attempt += 1;
        }
    }

    /// The same. What cannot be written down is not lost: its refresh token is the only one that is good.
    async fn write_or_keep(&self, slot: &Slot, grant: &OpenGrant) -> Result<(), GrantError> {
        let written = self.write(grant).await;
        if written.is_err() {
            slot.keep_unwritten(grant.clone());
        }
        written
    }

    /// Writes down what could not be written when the issuer gave it. Another process may have a newer grant by now, or
    /// have given it up: that stays as it is.
    async fn write_late(&self, unwritten: &OpenGrant) -> Result<(), GrantError> {
        let key = &unwritten.key;
        let _lock = self.lock(key).await?;
        let grants = &self.storage()?.store.grants;
        let stored = grants.grants(&key.resource, key.owner).await?;
        let stored = stored.iter().find(|it| it.key == *key);
        if stored.is_some_and(|stored| unwritten.renews(stored)) {
            self.write(unwritten).await?;
        }
        Ok(())
    }

    /// Asks a token endpoint, and keeps what that shows of its issuer.
    pub(super) async fn ask(
        &self,
        egress: &EgressClient,
        endpoint: &TokenEndpoint,
        client: &OAuthClient,
        form: &Form<'_>,
    ) -> Result<TokenResponse, TokenError> {
        let known = self.quirks(&endpoint.issuer).await;
        let mut quirks = known.clone();
        let answer = endpoint.request(egress, client, &mut quirks, form).await;
        if answer.is_ok() && quirks != known {
            self.keep_quirks(&endpoint.issuer, &quirks).await;
        }
        answer
    }

    /// What is known of `issuer`.
    pub(super) async fn quirks(&self, issuer: &str) -> Quirks {
        let known = || Quirks::known(issuer);
        let Ok(storage) = self.storage() else {
            return known();
        };
        match storage.store.grants.note((GrantNote::Quirks, issuer)).await {
            Ok(Some(kept)) => {
                let place = GrantNote::Quirks.place(issuer);
                match storage.key().await {
                    Ok(key) => record::open(&key, &place, &kept).unwrap_or_else(|_| known()),
                    Err(_) => known(),
                }
            }
            Ok(None) | Err(_) => known(),
        }
    }

    pub(super) async fn keep_quirks(&self, issuer: &str, quirks: &Quirks) {
        let kept = self
            .keep_note(GrantNote::Quirks, issuer, quirks, None)
            .await;
        if let Err(error) = kept {
            tracing::debug!(%error, "what is known of an issuer was not kept");
        }
    }

    /// What the server and its issuer say of themselves.
    async fn discover(
        &self,
        server: &OAuthServer,
        slot: &Slot,
    ) -> Result<ServerMetadata, GrantError> {
        let challenge = slot.challenge();
        let egress = server.egress()?;
        discovery::discover(&egress, &server.url, &server.grant, challenge.as_deref()).await
    }
}

impl OAuthServer {
    /// Whether `error` would be the same for whoever asked at once again.
    fn is_kept_back_by(&self, error: &GrantError) -> bool {
        match error {
            GrantError::NeedsSignIn | GrantError::Store { .. } => false,
            GrantError::Refused { .. } => !self.grant.is_per_agent() || self.is_interactive(),
            GrantError::Unreachable { .. } => true,
        }
    }

    /// The client of a grant. The credential of one that the config names is there.
    pub(super) fn client_of(&self, record: &GrantRecord) -> OAuthClient {
        let kept = record.client.clone();
        if !kept.is_configured {
            return kept;
        }
        let configured = self.configured_client();
        configured.filter(|it| it.id == kept.id).unwrap_or(kept)
    }
}

impl From<TokenError> for GrantError {
    fn from(error: TokenError) -> Self {
        let reason = error.to_string();
        match error {
            TokenError::Unreachable(_) => Self::Unreachable { reason },
            TokenError::Refused { .. } | TokenError::Unusable(_) => Self::Refused { reason },
        }
    }
}

/// What every request for a new token has.
fn common_form<'a>(
    server: &'a OAuthServer,
    found: &'a ServerMetadata,
    scopes: &'a str,
) -> Form<'a> {
    let mut form: Form<'_> = vec![("resource", &found.resource)];
    if !scopes.is_empty() {
        form.push(("scope", scopes));
    }
    if let Some(audience) = &server.grant.audience {
        form.push(("audience", audience));
    }
    form
}

fn can_refresh(grant: &OpenGrant) -> bool {
    grant.state == GrantState::Active && grant.record.tokens.refresh_token.is_some()
}

/// The token to exchange.
fn subject_token<'a>(
    server: &'a OAuthServer,
    caller: Option<&'a SubjectToken>,
) -> Result<(&'a str, SubjectTokenKind), GrantError> {
    if let Some(own) = &server.grant.subject_token {
        let kind = match server.grant.grant {
            GrantKind::IdJag => SubjectTokenKind::IdToken,
            GrantKind::AuthorizationCode
            | GrantKind::ClientCredentials
            | GrantKind::TokenExchange => SubjectTokenKind::AccessToken,
        };
        return Ok((own.expose(), kind));
    }
    let caller = caller.ok_or_else(|| GrantError::Refused {
        reason: "the caller has no token that could be exchanged (`governance.auth` needs `oauth` or `jwt`)"
            .to_owned(),
    })?;
    Ok((caller.token.expose(), caller.kind))
}

const fn token_type(kind: SubjectTokenKind) -> &'static str {
    match kind {
        // It was shown as an access token.
        SubjectTokenKind::AccessToken | SubjectTokenKind::Jwt => {
            "urn:ietf:params:oauth:token-type:access_token"
        }
        SubjectTokenKind::IdToken => "urn:ietf:params:oauth:token-type:id_token",
    }
}

/// A client as the library has it.
fn to_library(endpoint: &TokenEndpoint, client: &OAuthClient) -> EmaAuthorizationServer {
    let methods = endpoint.auth_methods.as_deref().unwrap_or_default();
    let has = |method: &str| methods.iter().any(|it| it == method);
    let in_form = has("client_secret_post") && !has("client_secret_basic");
    let authentication = match &client.credential {
        ClientCredential::Public => EmaClientAuthentication::None,
        ClientCredential::Secret(secret) if in_form => {
            EmaClientAuthentication::ClientSecretPost(oauth2::ClientSecret::new(secret.clone()))
        }
        ClientCredential::Secret(secret) => {
            EmaClientAuthentication::ClientSecretBasic(oauth2::ClientSecret::new(secret.clone()))
        }
        ClientCredential::PrivateKey(path) => {
            EmaClientAuthentication::JwtAssertion(Arc::new(KeySigner(path.clone())))
        }
    };
    EmaAuthorizationServer::new(&endpoint.issuer, &endpoint.url, &client.id)
        .with_client_authentication(authentication)
}

/// Signs who the client is, for the library.
struct KeySigner(std::path::PathBuf);

impl EmaClientAssertionProvider for KeySigner {
    fn create_assertion<'a, 's, 'f>(
        &'a self,
        server: &'s EmaAuthorizationServer,
    ) -> std::pin::Pin<
        Box<
            dyn Future<
                    Output = Result<EmaClientAssertion, Box<dyn std::error::Error + Send + Sync>>,
                > + Send
                + 'f,
        >,
    >
    where
        'a: 'f,
        's: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let signed = client_assertion::sign(&self.0, &server.client_id, &server.issuer)?;
            Ok(EmaClientAssertion::new(signed))
        })
    }
}

fn from_exchange(error: &EmaError) -> GrantError {
    let reason = error.to_string();
    let is_passing = matches!(
        error,
        EmaError::RequestFailed(_) | EmaError::OAuthRejected { status: 500.., .. }
    );
    if is_passing {
        GrantError::Unreachable { reason }
    } else {
        GrantError::Refused { reason }
    }
}
