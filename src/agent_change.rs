//! What may become of agents and keys of the store: the checks of the command line and of the API.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::json;

use crate::{
    audit::ChangedValues,
    auth::{ANONYMOUS, Agent, key::ApiKey},
    config::{Config, Role, Terms},
    escape::escape_controls,
    governance::{InvalidTerms, PolicySet},
    names::{AgentId, ProfileName},
    store::{KeyId, StoredAgent, StoredKey},
};

/// The longest name of an agent, characters, as in a config.
const NAME_CHARS_MAX: usize = 64;

/// Why an agent cannot be as it is asked for; who asks mends it.
#[derive(Debug, thiserror::Error)]
pub enum AgentFault {
    /// An agent of the config has the name or the id of it.
    #[error("agent `{name}` is already configured in {place}")]
    Configured {
        /// The name.
        name: String,
        /// Where agents are configured.
        place: String,
    },
    /// It cannot be called so.
    #[error("invalid agent name `{}`: {why}", escape_controls(name, &[]))]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is no such profile.
    #[error("unknown profile `{}`", escape_controls(.0, &[]))]
    Profile(String),
    /// No team can be called so.
    #[error("the name of a team must not be empty or contain control characters")]
    Team,
    /// Its terms cannot be used.
    #[error("invalid terms of the agent: {0}")]
    Terms(#[from] InvalidTerms),
}

/// Why there is no key for an agent.
#[derive(Debug, thiserror::Error)]
pub enum KeyFault {
    /// Who calls without a key needs none.
    #[error("the anonymous agent has no keys")]
    Anonymous,
    /// What is no time. Who asks mends it.
    #[error("{0}; use a duration such as 90d, or `never`")]
    Lifetime(humantime::DurationError),
    /// It would end after all time. Who asks mends it.
    #[error("the lifetime of the key is too large; use `never`")]
    LifetimeTooLarge,
    /// It would never be good. Who asks mends it.
    #[error("the lifetime of the key must be greater than 0")]
    LifetimeZero,
    /// Nobody looks at keys of agents without a role. The operator changes that.
    #[error("the config does not require keys: set `auth = \"keys\"` in `[governance]` first")]
    NotRequired,
    /// There is no key to be made. The operator mends the system.
    #[error("cannot get random numbers: {0}")]
    Randomness(#[from] getrandom::Error),
}

/// How long a key is good for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyLifetime {
    /// Until it is revoked.
    Never,
    /// For this time.
    Time(Duration),
}

impl KeyLifetime {
    /// Reads `90d` or `never`.
    ///
    /// # Errors
    /// [`KeyFault::Lifetime`].
    pub fn parse(text: &str) -> Result<Self, KeyFault> {
        if text == "never" {
            return Ok(Self::Never);
        }
        let time = humantime::parse_duration(text);
        time.map(Self::Time).map_err(KeyFault::Lifetime)
    }
}

/// A new agent called `name`, which is the same one if it moves to a config. `place` is where agents are configured.
///
/// # Errors
/// The name cannot be, or an agent of `config` has it.
pub fn new_agent(
    name: &str,
    (config, place): (&Config, &str),
    created: Timestamp,
) -> Result<StoredAgent, AgentFault> {
    check_name(name)?;
    let id = AgentId::from_name(name);
    let mut configured = config.agents.values();
    if configured.any(|agent| agent.name == name || agent.id == id) {
        return Err(AgentFault::Configured {
            name: name.to_owned(),
            place: place.to_owned(),
        });
    }
    Ok(StoredAgent {
        id,
        name: name.to_owned(),
        team: None,
        enabled: true,
        role: Role::Agent,
        profiles: None,
        terms: Terms::default(),
        created,
        changed: created,
    })
}

/// What a change made of an agent: `None` where there was or is none.
pub fn changed_values(old: Option<&StoredAgent>, new: Option<&StoredAgent>) -> ChangedValues {
    let [old, new] = [old, new].map(|agent| {
        agent.map_or_else(
            || json!({}),
            |agent| {
                json!({
                    "enabled": agent.enabled,
                    "role": agent.role,
                    "team": agent.team,
                    "profiles": agent.profiles,
                    "terms": agent.terms,
                })
            },
        )
    });
    ChangedValues::between(&old, &new)
}

/// What is recorded of a key that is made.
pub fn new_key_values(key: &StoredKey) -> ChangedValues {
    let expires = key.expires.map(|at| at.to_string());
    let new = json!({ "agent_id": key.agent, "expires": expires, "state": "live" });
    ChangedValues::between(&json!({}), &new)
}

/// What is recorded of a key that is revoked.
pub fn revoked_key_values() -> ChangedValues {
    ChangedValues::of_key("state", "live", "revoked")
}

/// The rules of a config, and no name that reads like an id.
fn check_name(name: &str) -> Result<(), AgentFault> {
    let why = if name.trim().is_empty() || name.trim() != name {
        "it must not be empty or have leading or trailing whitespace"
    } else if name.contains(char::is_control) {
        "it contains a control character"
    } else if name.chars().count() > NAME_CHARS_MAX {
        "it is longer than 64 characters"
    } else if name == ANONYMOUS {
        "reserved for callers without a key"
    } else if name.parse::<AgentId>().is_ok() {
        "that is an id"
    } else {
        return Ok(());
    };
    Err(AgentFault::Name {
        name: name.to_owned(),
        why,
    })
}

/// Checks the name of a team.
///
/// # Errors
/// [`AgentFault::Team`].
pub fn check_team(team: &str) -> Result<(), AgentFault> {
    let is_name = !team.trim().is_empty() && !team.contains(char::is_control);
    is_name.then_some(()).ok_or(AgentFault::Team)
}

/// The profile of `config` called `name`.
///
/// # Errors
/// [`AgentFault::Profile`].
pub fn find_profile(name: &str, config: &Config) -> Result<ProfileName, AgentFault> {
    let mut known = config.profiles.keys();
    let found = known.find(|known| known.as_str() == name).cloned();
    found.ok_or_else(|| AgentFault::Profile(name.to_owned()))
}

/// Refuses terms that could not be used, as a gateway does at its start with those of a config. Servers and
/// other agents are nothing to them.
///
/// # Errors
/// What is wrong with them.
pub fn check_terms(agent: &StoredAgent, config: &Config) -> Result<(), InvalidTerms> {
    let mut config = config.clone();
    config.servers.clear();
    config.agents.clear();
    let policy_set = PolicySet::new(&config)?;
    policy_set.validate(&Arc::new(Agent::from(agent.clone())))
}

/// Makes a key for an agent with this role, and what is kept of it; without a `lifetime` it has that of `config`. Where
/// clients need none, it still signs in to the admin API.
///
/// # Errors
/// Why there can be none.
pub fn new_key(
    (agent, role): (AgentId, Role),
    lifetime: Option<KeyLifetime>,
    config: &Config,
    created: Timestamp,
) -> Result<(ApiKey, StoredKey), KeyFault> {
    if config.governance.auth.allows_anonymous() && role == Role::Agent {
        return Err(KeyFault::NotRequired);
    }
    if agent == AgentId::ANONYMOUS {
        return Err(KeyFault::Anonymous);
    }
    let lifetime = match lifetime {
        Some(KeyLifetime::Never) => None,
        Some(KeyLifetime::Time(time)) => Some(time),
        None => config.governance.key_lifetime,
    };
    let expires = lifetime
        .map(|time| expiry_time(created, time))
        .transpose()?;
    let key = ApiKey::generate()?;
    let stored = StoredKey {
        id: KeyId::generate()?,
        agent,
        hash: key.hash(),
        prefix: key.display_prefix().to_owned(),
        created,
        expires,
        revoked: None,
        last_used: None,
    };
    Ok((key, stored))
}

fn expiry_time(now: Timestamp, time: Duration) -> Result<Timestamp, KeyFault> {
    if time.is_zero() {
        return Err(KeyFault::LifetimeZero);
    }
    now.checked_add(time)
        .map_err(|_| KeyFault::LifetimeTooLarge)
}

/// When `key` ends, for people.
pub fn expiry_text(key: &StoredKey) -> String {
    let expires = key.expires;
    expires.map_or_else(|| "never".to_owned(), |at| format!("{at:.0}"))
}

/// What `key` is at `now`: `revoked`, `shut` where its agent of the store is disabled and hidden, `live` or `expired`.
pub fn key_state(key: &StoredKey, is_locked_out: bool, now: Timestamp) -> &'static str {
    match key.revoked {
        Some(_) => "revoked",
        None if is_locked_out => "shut",
        None if key.is_live(now) => "live",
        None => "expired",
    }
}
