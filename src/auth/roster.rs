//! Who is known: what config and store say of agents and keys, and the roster made of it.
//!
//! Called by [`AgentDirectory`](super::AgentDirectory) whenever one of both has changed.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;

use super::{Agent, AgentStanding, Wrong};
use crate::{
    clock,
    config::{self, Authentication},
    names::AgentId,
    store::{KeyHash, KeyId, StoredKey},
};

/// What config and store say.
#[derive(Debug)]
pub(super) struct AgentSources {
    pub(super) authentication: Authentication,
    pub(super) written: Vec<config::AgentConfig>,
    /// Agents and keys of the store, as they were last read.
    pub(super) stored: (Vec<Agent>, Vec<StoredKey>),
}

/// Everybody that is known, and whose key is whose.
#[derive(Debug, PartialEq)]
pub(super) struct Roster {
    pub(super) authentication: Authentication,
    pub(super) agents: foldhash::HashMap<AgentId, Arc<Agent>>,
    pub(super) credentials: HashMap<KeyHash, Credential>,
    /// Keys of the store that open nothing any more.
    pub(super) ended: HashMap<KeyHash, Wrong>,
}

/// What a key opens, and for how long.
#[derive(Debug, PartialEq)]
pub(super) struct Credential {
    pub(super) agent: Arc<Agent>,
    /// The id of a key of the store; those of the config have none.
    pub(super) key: Option<KeyId>,
    pub(super) expires: Option<Timestamp>,
}

/// A key and whose it is.
#[derive(Debug)]
struct KnownKey {
    hash: KeyHash,
    agent: AgentId,
    key: Option<KeyId>,
    expires: Option<Timestamp>,
}

impl Roster {
    pub(super) fn empty() -> Self {
        Self {
            authentication: Authentication::Anonymous,
            agents: foldhash::HashMap::default(),
            credentials: HashMap::new(),
            ended: HashMap::new(),
        }
    }

    /// Everybody that `sources` know; `old` says who was known before.
    pub(super) fn new(sources: &AgentSources, old: &Self) -> Self {
        let (keys, ended) = sources.keys();
        let kept: HashSet<KeyHash> = keys.iter().map(|key| key.hash).collect();
        let lost: HashSet<AgentId> = old
            .credentials
            .iter()
            .filter(|(hash, _)| !kept.contains(hash))
            .map(|(_, credential)| credential.agent.id)
            .collect();
        let mut roster = Self {
            authentication: sources.authentication,
            ended,
            ..Self::empty()
        };
        for (id, mut agent) in sources.agents() {
            let known = old.agents.get(&id);
            let before = known.map_or(0, |known| known.revocations);
            agent.revocations = before + u64::from(lost.contains(&id));
            // One that was shown out comes in anew.
            let known = known.filter(|known| !known.standing.has_ended());
            let stays = known.filter(|known| {
                known.revocations == agent.revocations && known.enabled <= agent.enabled
            });
            agent.standing = stays.map_or_else(AgentStanding::default, |it| it.standing.clone());
            // Whoever keeps something for an agent keeps it while the agent stays the same.
            let agent = match known.filter(|known| ***known == agent) {
                Some(known) => Arc::clone(known),
                None => Arc::new(agent),
            };
            roster.agents.insert(id, agent);
        }
        for known in keys {
            if let Some(agent) = roster.agents.get(&known.agent) {
                let credential = Credential {
                    agent: Arc::clone(agent),
                    key: known.key,
                    expires: known.expires,
                };
                roster.credentials.insert(known.hash, credential);
            }
        }
        roster
    }
}

impl AgentSources {
    /// Where an agent is in the config and in the store, the config has it.
    fn agents(&self) -> HashMap<AgentId, Agent> {
        let stored = self.stored.0.iter().cloned();
        let written = self.written.iter().map(Agent::written);
        let all = [Agent::anonymous()].into_iter().chain(stored);
        all.chain(written).map(|agent| (agent.id, agent)).collect()
    }

    /// Every key that opens something, and those of the store that have ended, and how.
    fn keys(&self) -> (Vec<KnownKey>, HashMap<KeyHash, Wrong>) {
        let of_config = self.written.iter().flat_map(|agent| {
            let id = Agent::written(agent).id;
            agent.keys.iter().map(move |key| KnownKey {
                hash: KeyHash::of(key.expose()),
                agent: id,
                key: None,
                expires: None,
            })
        });
        let (mut live, mut ended) = (of_config.collect::<Vec<_>>(), HashMap::new());
        let (now, shut) = (clock::now(), self.shut());
        for key in &self.stored.1 {
            if let Some(end) = end_of(key, &shut, now) {
                ended.insert(key.hash, end);
                continue;
            }
            live.push(KnownKey {
                hash: key.hash,
                agent: key.agent,
                key: Some(key.id.clone()),
                expires: key.expires,
            });
        }
        (live, ended)
    }

    /// The agents of the config whose keys in the store open nothing: whoever disables an agent of the
    /// store means its keys, also where the config has an agent of that id, which they would open.
    pub(super) fn shut(&self) -> HashSet<AgentId> {
        let hidden = self.hidden().filter(|agent| !agent.enabled);
        hidden.map(|agent| agent.id).collect()
    }

    /// The agents of the store that nobody can be, since the config has their ids.
    pub(super) fn hidden(&self) -> impl Iterator<Item = &Agent> {
        let written: HashSet<AgentId> = self.written.iter().map(|agent| agent.id).collect();
        let stored = self.stored.0.iter();
        stored.filter(move |agent| written.contains(&agent.id))
    }
}

/// Why a key of the store opens nothing.
fn end_of(key: &StoredKey, shut: &HashSet<AgentId>, now: Timestamp) -> Option<Wrong> {
    if key.revoked.is_some() || shut.contains(&key.agent) {
        return Some(Wrong::Revoked(key.id.clone()));
    }
    (!key.is_live(now)).then(|| Wrong::Expired(key.id.clone()))
}

/// Whether a time that may never come has come.
pub(super) fn has_passed(expires: Option<Timestamp>, now: Timestamp) -> bool {
    expires.is_some_and(|expires| expires <= now)
}
