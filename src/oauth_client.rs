//! How the gateway gets, keeps and renews tokens for servers.
//!
//! A grant belongs to one owner: the gateway or an agent. Nobody else ever gets its tokens. The library finds
//! authorization servers and chooses scopes; requests for tokens are ours (`token_endpoint`).
//!
//! [`ServerGrants::access_token`] is what calls use. A token is renewed beside the calls once four fifths of its time have
//! passed, and before one where it has passed or was rejected. One task of one process renews a grant at a time
//! (`renewal`), also when nobody waits for it any more, and what an issuer gave is on disk before it is used.

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use jiff::Timestamp;
use tokio::sync::broadcast;
use url::Url;

pub use self::{
    discovery::client_metadata,
    server_grants::ServerGrants,
    sign_in::{SignIn, SignInRequest},
    slot::{AccessToken, Rejection},
};
use self::{
    slot::Slot,
    subject::{SubjectToken, SubjectTokenKind},
    token_endpoint::{ClientCredential, OAuthClient},
};
use crate::{
    clock,
    config::{Auth, Config, Egress, GrantKind, OAuthGrant, Remote, ServerEgress, Transport},
    egress::EgressClient,
    names::{AgentId, ServerName},
    sealing::SealingKey,
    store::{GRANTS_PURPOSE, GrantOwner, GrantState, Store, StoredGrant},
    task::Tasks,
};

mod client_assertion;
mod discovery;
mod grant_lock;
mod quirks;
mod record;
mod renewal;
mod server_grants;
mod sign_in;
mod slot;
mod subject;
mod token_endpoint;

#[cfg(test)]
mod tests;

/// Changes that a subscriber may be behind.
const CHANGES_MAX: usize = 64;

/// The grants towards the servers of a config.
#[derive(Clone, Debug)]
pub struct Grants(Arc<GrantsState>);

#[derive(Debug)]
struct GrantsState {
    parts: GrantsParts,
    servers: ArcSwap<HashMap<ServerName, Arc<OAuthServer>>>,
    /// What agents showed last, where a grant exchanges it.
    subjects: DashMap<AgentId, SubjectToken>,
    changes: broadcast::Sender<GrantChange>,
}

/// What [`Grants`] are made of.
#[derive(Debug)]
pub struct GrantsParts {
    /// Where they are kept, with the key that seals them. Without it nobody can sign in.
    pub storage: Option<GrantStorage>,
    /// Where tasks run that renew tokens.
    pub tasks: Tasks,
    /// The time.
    pub now: GrantClock,
}

/// Tells the time.
#[derive(Clone)]
pub struct GrantClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl GrantClock {
    /// As `now` tells it.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }
}

impl fmt::Debug for GrantClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrantClock")
    }
}

/// Where grants are kept.
#[derive(Debug)]
pub struct GrantStorage {
    store: Store,
    /// The directory of locks, which the processes of the store share.
    locks: PathBuf,
}

impl GrantStorage {
    /// In `store`, which is that of `data_dir`.
    pub fn new(store: Store, data_dir: &Path) -> Self {
        Self {
            store,
            locks: data_dir.join("locks"),
        }
    }

    /// The key of grants. Where it is not the one of before, nothing is opened and nothing is written.
    async fn key(&self) -> Result<SealingKey, GrantError> {
        Ok(self.store.sealing_key(GRANTS_PURPOSE).await?)
    }
}

/// A grant was made, renewed after it had been lost, rejected, or revoked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum GrantChange {
    /// By another process of the data directory. It may be any.
    Elsewhere,
    /// By this one.
    Here {
        /// Towards which server.
        server: ServerName,
        /// Whose.
        owner: GrantOwner,
    },
}

/// Why there is no token. No text of it has a token.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum GrantError {
    /// Somebody has to sign in, for the first time or again.
    #[error("nobody has signed in, or the sign-in has expired")]
    NeedsSignIn,
    /// It does not work, and will not until somebody changes something.
    #[error("no token: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// The grant cannot be read or kept.
    #[error("the grant cannot be stored: {reason}")]
    Store {
        /// Why.
        reason: String,
    },
    /// The authorization server does not answer. It is asked again.
    #[error("the authorization server cannot be reached: {reason}")]
    Unreachable {
        /// Why.
        reason: String,
    },
}

/// A grant, as people see it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GrantSummary {
    /// Towards which server.
    pub server: ServerName,
    /// Whose.
    pub owner: GrantOwner,
    /// How it stands.
    pub status: GrantStatus,
    /// Who granted it.
    pub issuer: Option<String>,
    /// What it is good for.
    pub scopes: Vec<String>,
    /// When somebody signed in.
    pub granted: Option<Timestamp>,
}

/// How a grant stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GrantStatus {
    /// It can be used.
    Connected,
    /// Nobody has signed in.
    NeedsSignIn,
    /// Its issuer takes it no more: somebody has to sign in again.
    Expired,
}

impl GrantStatus {
    /// The status in a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Expired => "expired",
            Self::NeedsSignIn => "needs_sign_in",
        }
    }
}

/// A server with `auth.type = "oauth2"`.
struct OAuthServer {
    name: ServerName,
    url: Url,
    grant: OAuthGrant,
    /// Whether its URLs may be of private places.
    is_trusted: bool,
    /// How its authorization server may be reached.
    egress: ArcSwap<EgressCell>,
    /// The tokens of each owner. They are here so that nobody finds them by a name that another server has by now.
    slots: DashMap<GrantOwner, Arc<Slot>>,
}

/// What the config says of requests to URLs that others name, and the client for them once there is one.
#[derive(Debug)]
struct EgressCell {
    rules: Egress,
    client: OnceLock<EgressClient>,
}

impl EgressCell {
    fn new(rules: &Egress) -> Arc<Self> {
        Arc::new(Self {
            rules: rules.clone(),
            client: OnceLock::new(),
        })
    }
}

impl fmt::Debug for OAuthServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuthServer")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Grants {
    /// The grants of no server: see [`Grants::configure`].
    pub fn new(parts: GrantsParts) -> Self {
        Self(Arc::new(GrantsState {
            parts,
            servers: ArcSwap::default(),
            subjects: DashMap::new(),
            changes: broadcast::Sender::new(CHANGES_MAX),
        }))
    }

    /// Takes the servers of `config` in place of those of before.
    pub fn configure(&self, config: &Config) {
        let before = self.0.servers.load_full();
        let mut servers = HashMap::new();
        for (name, server) in &config.servers {
            let Some((remote, grant)) = oauth_of(&server.transport) else {
                continue;
            };
            let Ok(url) = Url::parse(&remote.url.to_string()) else {
                continue;
            };
            let is_trusted = remote.egress == ServerEgress::Any;
            let is_same = |it: &&Arc<OAuthServer>| {
                it.url == url && it.grant == *grant && it.is_trusted == is_trusted
            };
            let known = before.get(name).filter(is_same).cloned();
            let server = known.unwrap_or_else(|| {
                Arc::new(OAuthServer {
                    name: name.clone(),
                    url,
                    grant: grant.clone(),
                    is_trusted,
                    egress: ArcSwap::new(EgressCell::new(&config.egress)),
                    slots: DashMap::new(),
                })
            });
            if server.egress.load().rules != config.egress {
                server.egress.store(EgressCell::new(&config.egress));
            }
            servers.insert(name.clone(), server);
        }
        self.0.servers.store(Arc::new(servers));
    }

    /// The grants towards `server` as it is configured now; `None` where it takes no tokens of these.
    pub fn towards(&self, server: &ServerName) -> Option<ServerGrants> {
        let server = self.0.servers.load().get(server).cloned()?;
        Some(ServerGrants {
            grants: self.clone(),
            server,
        })
    }

    /// Whether people sign in to `server`.
    pub fn is_interactive(&self, server: &ServerName) -> bool {
        let servers = self.0.servers.load();
        servers
            .get(server)
            .is_some_and(|server| server.is_interactive())
    }

    /// Whether each agent has a grant of its own towards `server`.
    pub fn is_per_agent(&self, server: &ServerName) -> bool {
        let servers = self.0.servers.load();
        servers
            .get(server)
            .is_some_and(|server| server.grant.is_per_agent())
    }

    /// Forgets what it has read of the store, which another process has changed, and tells those who use grants.
    pub fn reread(&self) {
        for server in self.0.servers.load().values() {
            server.slots.iter().for_each(|slot| slot.clear());
        }
        // Nobody may be listening.
        let _told = self.0.changes.send(GrantChange::Elsewhere);
    }

    /// What becomes of grants.
    pub fn subscribe_changes(&self) -> broadcast::Receiver<GrantChange> {
        self.0.changes.subscribe()
    }

    /// Each server that `owner` has to sign in to, and how their grant stands; of [`GrantOwner::Gateway`] those whose
    /// grant serves everybody.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn list(&self, owner: GrantOwner) -> Result<Vec<GrantSummary>, GrantError> {
        let stored = self.storage()?.store.grants.all_grants(Some(owner)).await?;
        let servers = self.0.servers.load_full();
        let signs_in = servers
            .values()
            .filter(|server| server.is_interactive() && server.owner(owner) == owner);
        let mut summaries: Vec<_> = signs_in
            .map(|server| {
                let grants = stored.iter().filter(|it| server.has_made(it));
                summary(server, owner, grants.max_by_key(|it| it.refreshed))
            })
            .collect();
        summaries.sort_by(|a, b| a.server.as_str().cmp(b.server.as_str()));
        Ok(summaries)
    }

    fn server(&self, name: &ServerName) -> Result<Arc<OAuthServer>, GrantError> {
        let found = self.0.servers.load().get(name).cloned();
        found.ok_or_else(|| GrantError::Refused {
            reason: format!("`servers.{name}.auth` is not `oauth2`"),
        })
    }

    /// The token that `owner` showed last.
    fn subject(&self, owner: GrantOwner) -> Option<SubjectToken> {
        match owner {
            GrantOwner::Gateway => None,
            GrantOwner::Agent(agent) => self.0.subjects.get(&agent).map(|it| it.clone()),
        }
    }

    fn storage(&self) -> Result<&GrantStorage, GrantError> {
        self.0
            .parts
            .storage
            .as_ref()
            .ok_or_else(|| GrantError::Store {
                reason: "the gateway has no data directory".to_owned(),
            })
    }

    fn now(&self) -> Timestamp {
        (self.0.parts.now.0)()
    }

    fn tell(&self, server: &OAuthServer, owner: GrantOwner) {
        // Nobody may be listening.
        let _told = self.0.changes.send(GrantChange::Here {
            server: server.name.clone(),
            owner,
        });
    }
}

impl GrantsParts {
    /// By the clock of this machine.
    pub fn new(storage: Option<GrantStorage>, tasks: Tasks) -> Self {
        Self {
            storage,
            tasks,
            now: GrantClock::new(clock::now),
        }
    }
}

impl OAuthServer {
    /// Whether a person has to sign in.
    fn is_interactive(&self) -> bool {
        self.grant.grant == GrantKind::AuthorizationCode
    }

    /// Whose grant serves `caller`.
    fn owner(&self, caller: GrantOwner) -> GrantOwner {
        if self.grant.is_per_agent() {
            caller
        } else {
            GrantOwner::Gateway
        }
    }

    fn slot(&self, owner: GrantOwner) -> Arc<Slot> {
        if let Some(slot) = self.slots.get(&owner) {
            return Arc::clone(&slot);
        }
        Arc::clone(&self.slots.entry(owner).or_default())
    }

    /// The client for whatever its authorization server is asked.
    fn egress(&self) -> Result<EgressClient, GrantError> {
        let egress = self.egress.load();
        if let Some(client) = egress.client.get() {
            return Ok(client.clone());
        }
        let idp = self.grant.idp.as_ref().map(|idp| &idp.issuer);
        let issuers = self.grant.issuer.iter().chain(idp);
        let mut written: Vec<_> = issuers.filter_map(|url| Url::parse(url).ok()).collect();
        written.push(self.url.clone());
        written.retain(|_| self.is_trusted);
        let made = EgressClient::new(&egress.rules, &written);
        let made = made.map_err(|error| GrantError::Refused {
            reason: error.to_string(),
        })?;
        Ok(egress.client.get_or_init(|| made).clone())
    }

    /// The client that the config names.
    fn configured_client(&self) -> Option<OAuthClient> {
        let id = self.grant.client_id.clone()?;
        let secret = self.grant.client_secret.as_ref();
        let secret = secret.map(|it| ClientCredential::Secret(it.expose().to_owned()));
        let key = self
            .grant
            .private_key
            .clone()
            .map(ClientCredential::PrivateKey);
        Some(OAuthClient {
            id,
            credential: secret.or(key).unwrap_or(ClientCredential::Public),
            is_configured: true,
            registration: None,
        })
    }

    /// What grants towards it are kept by: a server of another URL has others, and so has one of another name, for
    /// a second account.
    fn grant_resource(&self) -> String {
        format!("{} {}", self.name, self.url)
    }

    /// Whether `stored` is a grant towards another server at the same URL.
    fn is_for_namesake(&self, stored: &StoredGrant) -> bool {
        let server = stored.key.resource.split_once(' ');
        server.is_some_and(|(name, url)| name != self.name.as_str() && url == self.url.as_str())
    }

    /// Whether `stored` is a grant towards this server as it is configured now.
    fn has_made(&self, stored: &StoredGrant) -> bool {
        let issuer = self.grant.issuer.as_deref();
        let is_issuer =
            |it: &str| it.trim_end_matches('/') == stored.key.issuer.trim_end_matches('/');
        stored.key.resource == self.grant_resource() && issuer.is_none_or(is_issuer)
    }
}

/// How a server is reached that has `auth.type = "oauth2"`.
fn oauth_of(transport: &Transport) -> Option<(&Remote, &OAuthGrant)> {
    let remote = match transport {
        Transport::Auto(remote)
        | Transport::Http(remote)
        | Transport::Sse(remote)
        | Transport::WebSocket(remote) => remote,
        Transport::Builtin | Transport::ControlSocket(_) | Transport::Stdio(_) => return None,
    };
    match &remote.auth {
        Auth::OAuth2(grant) => Some((remote, grant)),
        Auth::Bearer { .. } | Auth::Header { .. } | Auth::None => None,
    }
}

fn summary(server: &OAuthServer, owner: GrantOwner, grant: Option<&StoredGrant>) -> GrantSummary {
    let split = |text: &String| text.split_ascii_whitespace().map(str::to_owned).collect();
    GrantSummary {
        server: server.name.clone(),
        owner,
        status: match grant.map(|grant| grant.state) {
            None => GrantStatus::NeedsSignIn,
            Some(GrantState::Active) => GrantStatus::Connected,
            Some(GrantState::Rejected) => GrantStatus::Expired,
        },
        issuer: grant.map(|grant| grant.key.issuer.clone()),
        scopes: grant.map(|grant| split(&grant.scopes)).unwrap_or_default(),
        granted: grant.map(|grant| grant.granted),
    }
}
