//! Which connection serves a caller: the catalog's own, one that others of its kind share, or a
//! new one.
//!
//! Called by [`Backend`] for each call. A caller is served in its own era wherever the server
//! speaks it, and only by a connection of its own key; there are never more than `max_instances`.
//! Where each call has a connection to itself, `pool` lends them.

mod eviction;

use std::{
    collections::HashMap,
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::broadcast::error::RecvError, time::Instant};

use self::eviction::evict_instances;
use super::connection_pool::{ConnectionPool, PooledConnection};
use crate::{
    backend::{
        Backend, BackendError, ServerState,
        credential::{CredentialSource, TokenOwner},
        instance::{
            Connection, Instance, InstancePhase,
            breaker::BreakerCaller,
            connector::ConnectSpec,
            identity::{InstanceIdentity, SharedBy},
            reconnect::RETRIES_AWAITED_MAX,
        },
        sharing::{Sharing, SharingKey},
    },
    config::{EraPin, Isolation},
    lock::lock,
    mcp::{Era, Method, Raw},
    names::AgentId,
    session::{Client, ForwardedHeaders},
};

/// A connection, and the instance it is one of.
pub(in crate::backend) struct SelectedConnection {
    pub(in crate::backend) connection: Arc<Connection>,
    pub(in crate::backend) instance: Arc<Instance>,
    /// What keeps it from serving anybody else meanwhile, where it must not.
    pub(in crate::backend) loan: Option<PooledConnection>,
}

impl SelectedConnection {
    /// Notes that a call is made on it.
    pub(in crate::backend) fn note_call(&mut self) {
        if let Some(loan) = &mut self.loan {
            loan.note_call();
        }
    }

    /// Notes that the call was answered.
    pub(in crate::backend) fn note_answer(&mut self) {
        if let Some(loan) = &mut self.loan {
            loan.note_answer();
        }
    }
}

/// What an instance takes over from the one whose place it takes.
#[derive(Debug, Default)]
pub(in crate::backend) struct Predecessor {
    /// Failures in a row.
    pub(in crate::backend) failures: u32,
    /// `None` where it is the first for its callers.
    pub(in crate::backend) identity: Option<Arc<InstanceIdentity>>,
}

impl Predecessor {
    fn of(instance: &Instance) -> Self {
        Self {
            failures: instance.retry.failures(),
            identity: Some(Arc::clone(&instance.identity)),
        }
    }
}

/// Who wants a connection, for what, and until when one must be free.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend) struct ConnectionRequest<'c> {
    pub(in crate::backend) client: &'c Client,
    pub(in crate::backend) method: &'c Method,
    pub(in crate::backend) until: Instant,
}

impl Backend {
    /// The connection that serves `client`, when there is nothing to wait for.
    pub(in crate::backend) fn try_connection(&self, client: &Client) -> Option<SelectedConnection> {
        if self.pool.is_some() {
            return None;
        }
        let era = self.known_era(client.era())?;
        let instance = if self.has_token_per_agent() {
            // Whether there is a token is looked at before a connection is begun.
            self.known_instance(client, era)?
        } else {
            self.instance(client, era).ok()?
        };
        let connection = instance.ready()?;
        Some(SelectedConnection {
            connection,
            instance,
            loan: None,
        })
    }

    /// The connection that serves `wish`, as soon as there is one.
    pub(in crate::backend) async fn connection(
        &self,
        request: ConnectionRequest<'_>,
    ) -> Result<SelectedConnection, BackendError> {
        self.check_signed_in(request.client).await?;
        let era = self.era_for(request.client.era()).await?;
        match self.select(request, era).await {
            // It ended before it could be used; another takes its place, where it is not too early.
            Err(lost @ (BackendError::Lost { .. } | BackendError::SessionGone)) => {
                match self.select(request, era).await {
                    Err(BackendError::BackingOff { .. }) => Err(lost),
                    attempt => attempt,
                }
            }
            Err(failure) if failure.refuses_era() && self.may_try_era(era) => {
                self.connector.shared.note_refuses(era);
                self.select(request, other_era(era)).await
            }
            Err(failure) if failure.refuses_era() => {
                // What the catalog's connection found out may no longer hold.
                if let Some(catalog) = self.catalog.ready() {
                    catalog.link.requests.note_identity_doubt();
                }
                Err(failure)
            }
            attempt => attempt,
        }
    }

    /// Fails where each agent signs in to the server and that of `client` has not: no connection is begun for it.
    async fn check_signed_in(&self, client: &Client) -> Result<(), BackendError> {
        match self.agent_credential(client) {
            Some(credential) => credential.check().await,
            None => Ok(()),
        }
    }

    /// Completes when the agent of `client` has signed in, where that is needed.
    pub async fn signed_in(&self, client: &Client) {
        let (Some(credential), Some(grants)) =
            (self.agent_credential(client), &self.connector.grants)
        else {
            return;
        };
        let mut changes = grants.subscribe_changes();
        while let Err(BackendError::NeedsSignIn { .. }) = credential.check().await {
            if let Err(RecvError::Closed) = changes.recv().await {
                return;
            }
        }
    }

    /// Whether there is a token to list the server with.
    pub async fn has_list_token(&self) -> bool {
        let Some(grants) = &self.connector.grants else {
            return false;
        };
        let owner = self.connector.catalog_token_owner();
        let credential = CredentialSource::new(grants, owner, &self.connector.shared);
        credential.check().await.is_ok()
    }

    /// The access tokens of the agent of `client`, where each has its own.
    fn agent_credential(&self, client: &Client) -> Option<CredentialSource> {
        let grants = self.connector.grants.as_ref();
        let grants = grants.filter(|_| self.has_token_per_agent())?;
        let owner = TokenOwner::Agent(client.agent.id);
        Some(CredentialSource::new(grants, owner, &self.connector.shared))
    }

    /// Whether requests carry the access token of the agent that calls.
    pub(in crate::backend) fn has_token_per_agent(&self) -> bool {
        self.connector.has_token_per_agent()
    }

    async fn select(
        &self,
        request: ConnectionRequest<'_>,
        era: Era,
    ) -> Result<SelectedConnection, BackendError> {
        let was_known = self.requests_roots();
        let served = self.select_by_known_era(request, era).await?;
        if was_known || !self.requests_roots() {
            return Ok(served);
        }
        // It asked only now. Its roots are those of one client, who may have one of its own.
        drop(served);
        self.select_by_known_era(request, era).await
    }

    async fn select_by_known_era(
        &self,
        request: ConnectionRequest<'_>,
        era: Era,
    ) -> Result<SelectedConnection, BackendError> {
        if let Some(pool) = self.pool_for(request) {
            return self.select_from_pool(pool, request, era).await;
        }
        let mut instance = self.instance(request.client, era)?;
        if self.is_retry_awaited(&instance) {
            // Where that finds the server, nobody waits any longer.
            self.catalog.retry_now();
            instance.retry.due().await;
            instance = self.instance(request.client, era)?;
        }
        if let Some(failure) = instance.backoff_error() {
            if !self.is_back_now().await {
                return Err(failure);
            }
            instance = self.instance(request.client, era)?;
        }
        let connection = self.wait_connection(&instance).await?;
        Ok(SelectedConnection {
            connection,
            instance,
            loan: None,
        })
    }

    /// The pool whose connections serve `wish`. Subscriptions and listen streams are no calls: they
    /// would hold a connection for ever, or lose it with its call. What is asked for them goes to
    /// a connection that no call uses.
    fn pool_for(&self, request: ConnectionRequest<'_>) -> Option<&ConnectionPool> {
        let pool = self.pool.as_ref()?;
        let stands = matches!(
            request.method,
            Method::Listen | Method::ResourcesSubscribe | Method::ResourcesUnsubscribe
        );
        (!stands).then_some(pool)
    }

    async fn select_from_pool(
        &self,
        pool: &ConnectionPool,
        request: ConnectionRequest<'_>,
        era: Era,
    ) -> Result<SelectedConnection, BackendError> {
        let turn = pool.acquire(request.until).await?;
        let key = self.pool_key(request.client, era);
        pool.wait_loss_known(&key).await;
        let loan = pool.lend(turn, key.clone(), |before| {
            self.start_instance(&key, request.client, before)
        });
        let loan = loan.inspect_err(|_| {
            // Behind a URL the next one need not wait where that finds the server.
            self.catalog.retry_now();
        })?;
        let connection = loan.instance.connection().await;
        loan.note_start(connection.is_ok());
        Ok(SelectedConnection {
            connection: connection?,
            instance: Arc::clone(&loan.instance),
            loan: Some(loan),
        })
    }

    /// The connection of `instance`, as soon as there is one. Where the server is away, it is tried at once.
    async fn wait_connection(&self, instance: &Instance) -> Result<Arc<Connection>, BackendError> {
        match instance.connection().await {
            Err(failure) if failure.is_transient() => {
                if !self.callers_wait_for_retries() {
                    instance.retry_now();
                    return Err(failure);
                }
                instance.retry_result().await.unwrap_or(Err(failure))
            }
            outcome => outcome,
        }
    }

    /// Whether the server is there again as the catalog's connection finds out at once, for all others
    /// where they lead to the same server.
    async fn is_back_now(&self) -> bool {
        self.connector.shared.reconnect.is_remote()
            && self.callers_wait_for_retries()
            && matches!(self.catalog.retry_result().await, Some(Ok(_)))
    }

    /// Has a server that is away tried at once, since a call needs it; whether it is worth waiting for.
    pub(in crate::backend) fn retry_now(&self) -> bool {
        let is_hurried = match &self.replicas {
            None => self.catalog.retry_now(),
            // Whichever is back will do.
            Some(replicas) => {
                let hurried = replicas.backends().filter(|it| it.catalog.retry_now());
                hurried.count() > 0
            }
        };
        is_hurried && !self.config().grace.is_zero()
    }

    /// Whether calls wait for attempts to connect: at a replica they do not, since another takes them.
    fn callers_wait_for_retries(&self) -> bool {
        !self.config().grace.is_zero() && !self.connector.shared.is_replica()
    }

    /// Whether a server that failed just now may be back when it is tried again, so that callers
    /// wait until then.
    fn is_retry_awaited(&self, instance: &Instance) -> bool {
        let may_pass = match instance.phase() {
            InstancePhase::Down { failure } => failure.is_transient(),
            InstancePhase::Asleep(_) | InstancePhase::Connecting | InstancePhase::Ready(_) => false,
        };
        may_pass
            && !self.config().grace.is_zero()
            && instance.is_backing_off()
            && instance.retry.failures() <= RETRIES_AWAITED_MAX
    }

    /// A connection other than `old`, which has ended.
    pub(in crate::backend) async fn reconnect(
        &self,
        old: SelectedConnection,
        request: ConnectionRequest<'_>,
    ) -> Result<SelectedConnection, BackendError> {
        if old.loan.is_some() {
            // The next one may be in need of its place.
            let failed = Arc::clone(&old.instance);
            drop(old);
            failed.retry.due().await;
            return self.connection(request).await;
        }
        let mut fresh = self.connection(request).await;
        // The supervisor may not have noticed yet, or wait before it connects again.
        for _ in 0..RECONNECT_POLLS_MAX {
            match &fresh {
                Ok(served) if !Arc::ptr_eq(&served.connection, &old.connection) => break,
                Ok(_) | Err(_) => tokio::time::sleep(RECONNECT_POLL_INTERVAL).await,
            }
            fresh = self.connection(request).await;
        }
        fresh
    }

    /// The era to speak for a client: its own wherever the server does.
    async fn era_for(&self, client: Era) -> Result<Era, BackendError> {
        if let Some(era) = self.known_era(client) {
            return Ok(era);
        }
        // The catalog's connection finds out first what the server speaks.
        let mut catalog = self.wait_connection(&self.catalog).await;
        for _ in 0..RECONNECT_POLLS_MAX {
            // Whoever asks has signed in, and the catalog's connection is about to hear of that.
            let Err(BackendError::NeedsSignIn { per_user: true }) = catalog else {
                break;
            };
            tokio::time::sleep(RECONNECT_POLL_INTERVAL).await;
            catalog = self.wait_connection(&self.catalog).await;
        }
        Ok(self.era_given_catalog(catalog?.era(), client))
    }

    /// The era to speak for a client, where that can be told without the catalog's connection.
    fn known_era(&self, client: Era) -> Option<Era> {
        match self.config().era {
            EraPin::Legacy => Some(Era::Legacy),
            EraPin::Modern => Some(Era::Modern),
            EraPin::Auto => self.connector.shared.speaks(client).then_some(client),
        }
    }

    /// The era to speak for a client where that of the catalog's connection is `catalog`.
    fn era_given_catalog(&self, catalog: Era, client: Era) -> Era {
        // A server that was found to be legacy was asked for the modern era and declined.
        let is_refused = client == Era::Modern || self.connector.shared.has_refused(client);
        if is_refused { catalog } else { client }
    }

    /// Whose failures those of `client`'s calls are: nobody else's calls are held back for them. `None`
    /// where nobody has to say who they are, which is everybody.
    pub(in crate::backend) fn breaker_caller<'c>(
        &self,
        client: &'c Client,
    ) -> Option<BreakerCaller<'c>> {
        let agent = Sharing::Agent(client.agent.id);
        let owner = if self.pool.is_some() {
            // Each call has a connection to itself.
            agent
        } else {
            let era = self.likely_era(client.era());
            match self
                .sharing_key(client, era.unwrap_or(client.era()))
                .sharing
            {
                Sharing::Shared => agent,
                owner @ (Sharing::Agent(_) | Sharing::Session(_)) => owner,
            }
        };
        (owner != Sharing::Agent(AgentId::ANONYMOUS)).then_some(BreakerCaller {
            sharing: owner,
            client,
        })
    }

    /// The era to speak for a client, as far as that is known.
    fn likely_era(&self, client: Era) -> Option<Era> {
        self.known_era(client).or_else(|| {
            let catalog = self.catalog.era()?;
            Some(self.era_given_catalog(catalog, client))
        })
    }

    /// Where the connection beside the catalog's stands by which `client` is served; `None` where it has
    /// none, or each call another.
    pub(in crate::backend) fn dedicated_state(&self, client: &Client) -> Option<ServerState> {
        if self.pool.is_some() {
            return None;
        }
        let key = self.sharing_key(client, self.likely_era(client.era())?);
        let instance = self.lock().get(&key).map(Arc::clone)?;
        Some(instance.state())
    }

    fn may_try_era(&self, era: Era) -> bool {
        self.config().era == EraPin::Auto && self.connector.shared.speaks(other_era(era))
    }

    /// The instance that serves `client` beside the catalog's, where there is one.
    fn known_instance(&self, client: &Client, era: Era) -> Option<Arc<Instance>> {
        let key = self.sharing_key(client, era);
        let instances = self.lock();
        let known = instances.get(&key)?;
        (!known.stop.is_cancelled()).then(|| Arc::clone(known))
    }

    fn instance(&self, client: &Client, era: Era) -> Result<Arc<Instance>, BackendError> {
        let key = self.sharing_key(client, era);
        if self.uses_catalog_connection(&key) {
            return Ok(Arc::clone(&self.catalog));
        }
        let mut instances = self.lock();
        if self.service.is_closed() {
            let reason = "the config has changed".to_owned();
            return Err(BackendError::Lost { reason });
        }
        // Whoever is told to stop serves nobody again.
        instances.retain(|_, it| !it.stop.is_cancelled() && !it.is_removable());
        let mut before = Predecessor::default();
        if let Some(known) = instances.get(&key) {
            // One that failed just now is not replaced at once: a crash loop must cost nothing.
            if !known.is_abandoned() || known.is_backing_off() {
                return Ok(Arc::clone(known));
            }
            before = Predecessor::of(known);
        } else if instances.len() >= self.config().max_instances {
            let instances_max = self.config().max_instances;
            evict_instances(&mut instances, instances_max, client.agent.id)?;
        }
        let instance = self.start_instance(&key, client, before);
        instances.insert(key, Arc::clone(&instance));
        Ok(instance)
    }

    /// Begins to make a connection for the callers of `key`, of which `client` is one.
    fn start_instance(
        &self,
        key: &SharingKey,
        client: &Client,
        before: Predecessor,
    ) -> Arc<Instance> {
        if let (Sharing::Session(_), Some(session)) = (&key.sharing, &client.session) {
            session.note_dedicated(&self.name);
        }
        let identity = before.identity.unwrap_or_else(|| {
            let callers = match &key.sharing {
                Sharing::Agent(_) => SharedBy::for_agent(client, key.era),
                Sharing::Session(_) => SharedBy::for_session(client, key.era),
                Sharing::Shared => SharedBy::for_anyone(key.era),
            };
            let connector = &self.connector;
            InstanceIdentity::for_callers(
                &self.name,
                callers,
                &connector.shared.reconnect,
                &connector.tasks,
            )
        });
        let instance = Instance::new(Arc::clone(&identity), Some(client.agent.id));
        instance.retry.set_failures(before.failures);
        let wanted = ConnectSpec {
            era: match key.era {
                Era::Legacy => EraPin::Legacy,
                Era::Modern => EraPin::Modern,
            },
            capabilities: if key.capabilities.is_empty() {
                Raw::from_static("{}")
            } else {
                client.capabilities.clone()
            },
            session: match (&key.sharing, self.config().isolation) {
                (Sharing::Session(_), _) | (_, Isolation::Call) => client.session.clone(),
                (Sharing::Agent(_) | Sharing::Shared, _) => None,
            },
            is_for_lists: false,
            forwarded: key.forwarded.clone(),
            token_owner: if self.has_token_per_agent() {
                TokenOwner::Agent(client.agent.id)
            } else {
                TokenOwner::Gateway
            },
            awaits_roots: self.has_roots_of(client, &key.capabilities),
            start_quota_key: identity.start_quota_key().cloned(),
            identity,
        };
        let keep = Arc::clone(&self.connector).supervise_on_demand(Arc::clone(&instance), wanted);
        instance.identity.tasks.spawn("connection", keep);
        instance
    }

    /// Which connections of the pool serve `client`: those that were told what it can do.
    fn pool_key(&self, client: &Client, era: Era) -> SharingKey {
        let profile = declared_capabilities(client, era);
        let session = client.session.as_ref();
        let owner = match session.filter(|_| self.is_split_by_roots(client, &profile)) {
            Some(session) => Sharing::Session(session.id.clone()),
            None => self.widest_sharing(client),
        };
        SharingKey::new(owner, era, profile).with_forwarded(self.forwarded_headers(client))
    }

    /// The headers of the request of `client` that the server gets.
    pub(super) fn forwarded_headers(&self, client: &Client) -> Option<Arc<ForwardedHeaders>> {
        let sent = client.forwarded.as_ref()?;
        sent.only(&self.config().forward_headers)
    }

    pub(in crate::backend) fn sharing_key(&self, client: &Client, era: Era) -> SharingKey {
        if self.pool.is_some() {
            let key = SharingKey::new(self.widest_sharing(client), era, Arc::default());
            return key.with_forwarded(self.forwarded_headers(client));
        }
        let profile = declared_capabilities(client, era);
        let agent = Sharing::Agent(client.agent.id);
        let session = || {
            client
                .session
                .as_ref()
                .map(|session| Sharing::Session(session.id.clone()))
        };
        let owner = match (self.config().isolation, era) {
            (Isolation::Session, _) => session().unwrap_or(agent),
            (Isolation::Auto, Era::Legacy) if self.is_split_by_roots(client, &profile) => {
                session().unwrap_or(agent)
            }
            (Isolation::Agent, _) | (Isolation::Auto, Era::Legacy) => agent,
            (Isolation::Auto, Era::Modern)
            | (Isolation::Call | Isolation::Pool | Isolation::Shared, _) => {
                self.widest_sharing(client)
            }
        };
        SharingKey::new(owner, era, profile).with_forwarded(self.forwarded_headers(client))
    }

    /// Everybody, unless each agent has a credential of its own.
    fn widest_sharing(&self, client: &Client) -> Sharing {
        if self.has_token_per_agent() {
            Sharing::Agent(client.agent.id)
        } else {
            Sharing::Shared
        }
    }

    /// A server that asks for roots sees those of one client only. A session that it knows already on
    /// a connection of many stays there: a new process would know nothing of what it was told.
    fn is_split_by_roots(&self, client: &Client, profile: &str) -> bool {
        let session = client.session.as_ref();
        let affinity = || session.is_some_and(|session| session.is_shared_with(&self.name));
        self.may_offer_roots(profile) && self.requests_roots() && !affinity()
    }

    /// Notes that `client` makes a call while nobody knows yet whether the server asks for roots.
    pub(in crate::backend) fn note_use(&self, client: &Client) {
        if let Some(session) = &client.session
            && self.may_offer_roots(&client.profile)
            && !self.requests_roots()
        {
            session.note_shared(&self.name);
        }
    }

    fn requests_roots(&self) -> bool {
        self.connector.shared.asks_roots.load(Ordering::Relaxed)
    }

    fn may_offer_roots(&self, profile: &str) -> bool {
        self.config().roots.is_none() && profile.contains("\"roots\"")
    }

    /// Whether a server that asks for roots before a call of `client` gets them: not on a connection
    /// of many clients, where only a call says whose, nor of one who takes no questions yet.
    fn has_roots_of(&self, client: &Client, profile: &str) -> bool {
        let is_split = match self.config().isolation {
            Isolation::Auto | Isolation::Call | Isolation::Pool | Isolation::Session => true,
            Isolation::Agent | Isolation::Shared => false,
        };
        let session = client.session.as_ref();
        let is_listening = session.is_some_and(|session| session.is_listening());
        is_split && is_listening && self.may_offer_roots(profile)
    }

    /// Whether the catalog's own connection serves the callers of `key`.
    pub(in crate::backend) fn uses_catalog_connection(&self, key: &SharingKey) -> bool {
        let anonymous = Sharing::Agent(AgentId::ANONYMOUS);
        (key.sharing == Sharing::Shared || key.sharing == anonymous)
            && key.capabilities.is_empty()
            && key.forwarded.is_none()
            && !self.has_token_per_agent()
            && self.catalog.era().is_none_or(|era| era == key.era)
    }

    pub(in crate::backend) fn lock(&self) -> MutexGuard<'_, HashMap<SharingKey, Arc<Instance>>> {
        lock(&self.instances)
    }
}

/// Pause between looks for a new connection, and how many looks there are.
pub(in crate::backend) const RECONNECT_POLL_INTERVAL: Duration = Duration::from_millis(50);
pub(in crate::backend) const RECONNECT_POLLS_MAX: usize = 40;

/// The capabilities of `client` that a server of `era` is told when it is connected.
fn declared_capabilities(client: &Client, era: Era) -> Arc<str> {
    if era == Era::Legacy && client.era() == Era::Legacy {
        Arc::clone(&client.profile)
    } else {
        Arc::default()
    }
}

fn other_era(era: Era) -> Era {
    match era {
        Era::Legacy => Era::Modern,
        Era::Modern => Era::Legacy,
    }
}
