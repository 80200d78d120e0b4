//! Who is known: what config and store say of agents and keys, and the roster made of it.
//!
//! Called by [`AgentDirectory`](super::AgentDirectory) whenever one of both has changed.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    Agent, AgentValidity, KeyRejection, certificate::CertificateRule, match_rules::MatchRule,
};
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
    pub(super) configured: Vec<config::AgentConfig>,
    /// The rules for subjects of tokens.
    pub(super) rules: Vec<config::AgentMatch>,
    /// The workspaces that name agents of store or config, by the names of the agents.
    pub(super) members: HashMap<String, String>,
    /// Agents and keys of the store, as they were last read.
    pub(super) stored: (Vec<Agent>, Vec<StoredKey>),
}

/// Everybody that is known, and whose key is whose.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Roster {
    pub(super) authentication: Authentication,
    pub(super) agents: foldhash::HashMap<AgentId, Arc<Agent>>,
    pub(super) credentials: HashMap<KeyHash, Credential>,
    /// Keys of the store that open nothing any more.
    pub(super) rejected: HashMap<KeyHash, KeyRejection>,
    /// Which agents the subjects of tokens are, the first that fits.
    pub(super) rules: Vec<MatchRule>,
    /// Whose client certificates are whose.
    pub(super) certificates: Vec<CertificateRule>,
}

/// What a key opens, and for how long.
#[derive(Clone, Debug, PartialEq)]
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
            authentication: Authentication::ANONYMOUS,
            agents: foldhash::HashMap::default(),
            credentials: HashMap::new(),
            rejected: HashMap::new(),
            rules: Vec::new(),
            certificates: Vec::new(),
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
            rejected: ended,
            certificates: sources.certificates(),
            ..Self::empty()
        };
        for (id, mut agent) in sources.agents() {
            let known = old.agents.get(&id);
            let before = known.map_or(0, |known| known.revocations);
            agent.revocations = before + u64::from(lost.contains(&id));
            // One that was shown out comes in anew.
            let known = known.filter(|known| !known.session_validity.is_revoked());
            let unchanged = known.filter(|known| {
                known.revocations == agent.revocations && known.enabled <= agent.enabled
            });
            agent.session_validity =
                unchanged.map_or_else(AgentValidity::default, |it| it.session_validity.clone());
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
        roster.rules = sources
            .rules
            .iter()
            .map(|rule| roster.rule(rule, sources))
            .collect();
        roster
    }
}

impl Roster {
    /// The same, with whoever came in as the agent `id` shown out.
    pub(super) fn with_agent_revoked(&self, id: AgentId) -> Self {
        let mut roster = self.clone();
        let Some(old) = self.agents.get(&id) else {
            return roster;
        };
        let new = Arc::new(Agent {
            revocations: old.revocations + 1,
            session_validity: AgentValidity::default(),
            ..(**old).clone()
        });
        roster.agents.insert(id, Arc::clone(&new));
        let of_keys = roster.credentials.values_mut().map(|key| &mut key.agent);
        let of_rules = roster
            .rules
            .iter_mut()
            .filter_map(|rule| rule.base.as_mut());
        for agent in of_keys.chain(of_rules).filter(|agent| agent.id == id) {
            *agent = Arc::clone(&new);
        }
        roster
    }

    /// A rule with its agent: where the config and the store have the name under different ids, the config has it.
    fn rule(&self, written: &config::AgentMatch, sources: &AgentSources) -> MatchRule {
        let of_config = sources
            .configured
            .iter()
            .find(|agent| agent.name == written.agent);
        let base = match of_config {
            Some(agent) => self.agents.get(&agent.id),
            None => self
                .agents
                .values()
                .find(|agent| agent.name == written.agent),
        };
        MatchRule {
            written: written.clone(),
            base: base.map(Arc::clone),
        }
    }
}

impl AgentSources {
    /// Where an agent is in the config and in the store, the config has it.
    fn agents(&self) -> HashMap<AgentId, Agent> {
        let stored = self.stored.0.iter().cloned();
        let written = self.configured.iter().map(Agent::from_config);
        let all = [Agent::anonymous()].into_iter().chain(stored);
        let with_team = |mut agent: Agent| {
            let workspace = || self.members.get(&agent.name).cloned();
            agent.team = agent.team.take().or_else(workspace);
            (agent.id, agent)
        };
        all.chain(written).map(with_team).collect()
    }

    /// Whose client certificates are whose.
    fn certificates(&self) -> Vec<CertificateRule> {
        let rules = self.configured.iter().flat_map(|agent| {
            let id = Agent::from_config(agent).id;
            agent.certificates.iter().map(move |glob| CertificateRule {
                glob: glob.clone().into(),
                agent: id,
            })
        });
        rules.collect()
    }

    /// Every key that opens something, and those of the store that have ended, and how.
    fn keys(&self) -> (Vec<KnownKey>, HashMap<KeyHash, KeyRejection>) {
        let of_config = self.configured.iter().flat_map(|agent| {
            let id = Agent::from_config(agent).id;
            agent.keys.iter().map(move |key| KnownKey {
                hash: KeyHash::of(key.expose()),
                agent: id,
                key: None,
                expires: None,
            })
        });
        let (mut live, mut ended) = (of_config.collect::<Vec<_>>(), HashMap::new());
        let (now, shut) = (clock::now(), self.locked_out());
        for key in &self.stored.1 {
            if let Some(end) = rejection_of(key, &shut, now) {
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
    pub(super) fn locked_out(&self) -> HashSet<AgentId> {
        let hidden = self.shadowed().filter(|agent| !agent.enabled);
        hidden.map(|agent| agent.id).collect()
    }

    /// The agents of the store that nobody can be, since the config has their ids.
    pub(super) fn shadowed(&self) -> impl Iterator<Item = &Agent> {
        let written: HashSet<AgentId> = self.configured.iter().map(|agent| agent.id).collect();
        let stored = self.stored.0.iter();
        stored.filter(move |agent| written.contains(&agent.id))
    }
}

/// Why a key of the store opens nothing.
fn rejection_of(key: &StoredKey, shut: &HashSet<AgentId>, now: Timestamp) -> Option<KeyRejection> {
    if key.revoked.is_some() || shut.contains(&key.agent) {
        return Some(KeyRejection::Revoked(key.id.clone()));
    }
    (!key.is_live(now)).then(|| KeyRejection::Expired(key.id.clone()))
}

/// Whether a time that may never come has come.
pub(super) fn is_expired(expires: Option<Timestamp>, now: Timestamp) -> bool {
    expires.is_some_and(|expires| expires <= now)
}
