//! Which connection serves a caller: the catalog's own, one that others of its kind share, or a
//! new one.
//!
//! Called by [`Backend`] for each call. A caller is served in its own era wherever the server
//! speaks it, and only by a connection of its own key; there are never more than `max_instances`.

use std::{
    collections::HashMap,
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::Duration,
};

use super::{
    Backend, Failure,
    instance::{Connection, Instance, Phase},
    shared::{REFUSED, SPOKEN},
    supervisor::Wanted,
};
use crate::{
    config::{EraPin, Isolation},
    lock::lock,
    mcp::{Era, Raw},
    names::AgentId,
    session::Client,
};

/// Which callers share a connection.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Key {
    pub(super) owner: Owner,
    era: Era,
    /// The capabilities declared to a legacy server.
    profile: Arc<str>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) enum Owner {
    Agent(AgentId),
    Session(String),
    Shared,
}

/// A connection, and the instance it is one of.
pub(super) struct Served {
    pub(super) connection: Arc<Connection>,
    pub(super) instance: Arc<Instance>,
}

impl Backend {
    /// The connection that serves `client`, when there is nothing to wait for.
    pub(super) fn at_hand(&self, client: &Client) -> Option<Served> {
        let era = match self.config.era {
            EraPin::Legacy => Era::Legacy,
            EraPin::Modern => Era::Modern,
            EraPin::Auto => client.era(),
        };
        if self.config.era == EraPin::Auto && self.maker.shared.knows(era) != SPOKEN {
            return None;
        }
        let instance = self.instance(client, era).ok()?;
        let connection = instance.ready()?;
        Some(Served {
            connection,
            instance,
        })
    }

    /// The connection that serves `client`, as soon as there is one.
    pub(super) async fn connection(&self, client: &Client) -> Result<Served, Failure> {
        let era = self.era_for(client.era()).await?;
        match self.served(client, era).await {
            // It ended before it could be used; another takes its place.
            Err(Failure::Lost { .. } | Failure::SessionGone) => self.served(client, era).await,
            Err(failure) if failure.refuses_era() && self.may_switch(era) => {
                self.maker.shared.refuse(era);
                self.served(client, other(era)).await
            }
            attempt => attempt,
        }
    }

    async fn served(&self, client: &Client, era: Era) -> Result<Served, Failure> {
        let instance = self.instance(client, era)?;
        let connection = instance.connection().await?;
        Ok(Served {
            connection,
            instance,
        })
    }

    /// A connection other than `old`, which has ended.
    pub(super) async fn reconnected(
        &self,
        old: &Arc<Connection>,
        client: &Client,
    ) -> Result<Served, Failure> {
        let mut fresh = self.connection(client).await;
        // The supervisor may not have noticed yet, or wait before it connects again.
        for _ in 0..RECONNECT_CHECKS {
            match &fresh {
                Ok(served) if !Arc::ptr_eq(&served.connection, old) => break,
                Ok(_) | Err(_) => tokio::time::sleep(RECONNECT_PAUSE).await,
            }
            fresh = self.connection(client).await;
        }
        fresh
    }

    /// The era to speak for a client: its own wherever the server does.
    async fn era_for(&self, client: Era) -> Result<Era, Failure> {
        match self.config.era {
            EraPin::Legacy => return Ok(Era::Legacy),
            EraPin::Modern => return Ok(Era::Modern),
            EraPin::Auto => {}
        }
        let shared = &self.maker.shared;
        if shared.knows(client) == SPOKEN {
            return Ok(client);
        }
        // The catalog's connection finds out first what the server speaks.
        let catalog = self.catalog.connection().await?;
        if catalog.era() == client {
            return Ok(client);
        }
        // A server that was found to be legacy was asked for the modern era and declined.
        if client == Era::Modern || shared.knows(client) == REFUSED {
            return Ok(catalog.era());
        }
        Ok(client)
    }

    fn may_switch(&self, era: Era) -> bool {
        self.config.era == EraPin::Auto && self.maker.shared.knows(other(era)) == SPOKEN
    }

    fn instance(&self, client: &Client, era: Era) -> Result<Arc<Instance>, Failure> {
        let key = self.key(client, era);
        if self.is_catalogs(&key) {
            return Ok(Arc::clone(&self.catalog));
        }
        let mut instances = self.lock();
        if self.life.is_over() {
            let reason = "the config has changed".to_owned();
            return Err(Failure::Lost { reason });
        }
        let mut failures = 0;
        if let Some(known) = instances.get(&key) {
            // One that failed just now is not replaced at once: a crash loop must cost nothing.
            if !matches!(known.phase(), Phase::Down { .. }) || known.must_wait() {
                return Ok(Arc::clone(known));
            }
            failures = known.failures();
        } else if instances.len() >= self.config.max_instances {
            make_room(&mut instances, self.config.max_instances)?;
        }
        let instance = Instance::new(&self.maker.tasks);
        instance.set_failures(failures);
        let wanted = Wanted {
            era: match era {
                Era::Legacy => EraPin::Legacy,
                Era::Modern => EraPin::Modern,
            },
            capabilities: match era {
                Era::Legacy if client.era() == Era::Legacy => client.capabilities.clone(),
                Era::Legacy | Era::Modern => Raw::from_static("{}"),
            },
            home: match &key.owner {
                Owner::Session(_) => client.session.clone(),
                Owner::Agent(_) | Owner::Shared => None,
            },
        };
        let keep = Arc::clone(&self.maker).keep_while_used(Arc::clone(&instance), wanted);
        self.maker.tasks.spawn("connection", keep);
        instances.insert(key, Arc::clone(&instance));
        Ok(instance)
    }

    pub(super) fn key(&self, client: &Client, era: Era) -> Key {
        let legacy_pair = era == Era::Legacy && client.era() == Era::Legacy;
        let profile = if legacy_pair {
            Arc::clone(&client.profile)
        } else {
            Arc::default()
        };
        let agent = Owner::Agent(client.agent.id);
        let session = || {
            client
                .session
                .as_ref()
                .map(|session| Owner::Session(session.id.clone()))
        };
        let owner = match (self.config.isolation, era) {
            (Isolation::Session, _) => session().unwrap_or(agent),
            (Isolation::Auto, Era::Legacy) if self.splits_by_roots(&profile) => {
                session().unwrap_or(agent)
            }
            (Isolation::Agent, _) | (Isolation::Auto, Era::Legacy) => agent,
            (Isolation::Auto, Era::Modern) | (Isolation::Shared, _) => Owner::Shared,
        };
        Key {
            owner,
            era,
            profile,
        }
    }

    /// A server that asks for roots sees those of one client only.
    fn splits_by_roots(&self, profile: &str) -> bool {
        self.config.roots.is_none()
            && profile.contains("\"roots\"")
            && self.maker.shared.asks_roots.load(Ordering::Relaxed)
    }

    /// Whether the catalog's own connection serves the callers of `key`.
    pub(super) fn is_catalogs(&self, key: &Key) -> bool {
        let anonymous = Owner::Agent(AgentId::ANONYMOUS);
        let era = match self.catalog.phase() {
            Phase::Ready(connection) => Some(connection.era()),
            Phase::Connecting | Phase::Down { .. } => None,
        };
        (key.owner == Owner::Shared || key.owner == anonymous)
            && key.profile.is_empty()
            && era.is_none_or(|era| era == key.era)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Instance>>> {
        lock(&self.instances)
    }
}

/// Pause between looks for a new connection, and how many looks there are.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
const RECONNECT_CHECKS: usize = 40;

fn other(era: Era) -> Era {
    match era {
        Era::Legacy => Era::Modern,
        Era::Modern => Era::Legacy,
    }
}

/// Makes room for one more: those that are down go first, then the one that was unused for longest.
fn make_room(
    instances: &mut HashMap<Key, Arc<Instance>>,
    instances_max: usize,
) -> Result<(), Failure> {
    instances.retain(|_, instance| {
        !matches!(instance.phase(), Phase::Down { .. }) || instance.must_wait()
    });
    if instances.len() < instances_max {
        return Ok(());
    }
    let unused = instances.iter().filter(|(_, instance)| !instance.is_busy());
    let oldest = unused
        .max_by_key(|(_, instance)| instance.idle())
        .map(|(key, _)| key.clone());
    let oldest = oldest.ok_or(Failure::InstancesBusy {
        limit: instances_max,
    })?;
    if let Some(instance) = instances.remove(&oldest) {
        instance.stop.cancel();
    }
    Ok(())
}
