//! Changes to agents and keys of the store, as the command line and the API make them alike.

use std::{path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    auth::{ANONYMOUS, Agent, key::ApiKey},
    clock,
    config::{
        AgentConfig, Config, ConfigFormat, ConfigText, Environment, Role, Severity, Terms, parse,
    },
    governance::{InvalidTerms, PolicySet},
    names::AgentId,
    store::{KeyId, StoredAgent, StoredKey},
};

/// The longest name of an agent, characters, as in a config.
const NAME_CHARS_MAX: usize = 64;

/// Keys of an agent of a config that one of the store cannot have, and what to do instead.
const NOT_STORED: [(&str, &str); 3] = [
    ("certificates", "set them in a config file"),
    ("id", "it is made of the name"),
    ("keys", "create keys of the agent once it is there"),
];

/// Why an agent or a key cannot be as somebody wants it. Who asked mends it.
#[derive(Debug, thiserror::Error)]
pub enum InvalidAgent {
    /// The name of a new agent.
    #[error("invalid agent name `{name}`: {problem}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// What it says is wrong, by the rules of configs.
    #[error("{0}")]
    Document(String),
    /// It has a profile that there is none of.
    #[error("there is no profile `{0}`")]
    Profile(String),
    /// Its terms cannot be used.
    #[error("invalid terms of the agent: {0}")]
    Terms(#[from] InvalidTerms),
}

/// Checks the name of a new agent: the rules of a config, and no name that reads like an id.
///
/// # Errors
/// [`InvalidAgent::Name`].
pub fn check_name(name: &str) -> Result<(), InvalidAgent> {
    let problem = if name.trim().is_empty() || name.trim() != name {
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
    Err(InvalidAgent::Name {
        name: name.to_owned(),
        problem,
    })
}

/// An agent `name` as it is when nothing is said of it.
pub fn new_agent(name: &str) -> StoredAgent {
    let now = clock::now();
    StoredAgent {
        // As in a config, so that an agent that moves there stays the same.
        id: AgentId::from_name(name),
        name: name.to_owned(),
        team: None,
        enabled: true,
        role: Role::Agent,
        profiles: None,
        terms: Terms::default(),
        created: now,
        changed: now,
    }
}

/// What a config file would say of an agent.
pub fn to_document(agent: &Agent) -> Value {
    let written = AgentConfig {
        id: agent.id,
        name: agent.name.clone(),
        team: agent.team.clone(),
        enabled: agent.enabled,
        role: agent.role,
        keys: Vec::new(),
        certificates: Vec::new(),
        profiles: agent.profiles.clone(),
        terms: agent.terms.clone(),
    };
    let mut document = serde_json::to_value(written).unwrap_or_default();
    if let Some(document) = document.as_object_mut() {
        document.remove("id");
        document.retain(|_, value| !value.is_null());
    }
    document
}

/// Writes into `agent` what `document` says, which a config file would have below `agents.NAME`.
///
/// # Errors
/// What is wrong with it.
pub fn apply_document(
    agent: &mut StoredAgent,
    document: &Value,
    config: &Config,
) -> Result<(), InvalidAgent> {
    for (key, instead) in NOT_STORED {
        if document.get(key).is_some() {
            let message = format!("`{key}` cannot be set here: {instead}");
            return Err(InvalidAgent::Document(message));
        }
    }
    let read = parse_agent(&agent.name, document, config)?;
    let profiles = read.profiles.iter().flatten();
    for profile in profiles {
        if !config.profiles.contains_key(profile) {
            return Err(InvalidAgent::Profile(profile.to_string()));
        }
    }
    agent.team = read.team;
    agent.enabled = read.enabled;
    agent.role = read.role;
    agent.profiles = read.profiles;
    agent.terms = read.terms;
    check_terms(agent, config)
}

/// Reads an agent as a config is read, so that it means the same and mistakes are found alike.
fn parse_agent(name: &str, document: &Value, config: &Config) -> Result<AgentConfig, InvalidAgent> {
    let profiles = config.profiles.keys();
    let profiles: serde_json::Map<String, Value> = profiles
        .map(|profile| (profile.to_string(), json!({})))
        .collect();
    let whole = json!({
        "governance": { "auth": "keys" },
        "profiles": profiles,
        "agents": { name: document },
    });
    let source = ConfigText {
        name: "agent".to_owned(),
        format: ConfigFormat::Json,
        text: whole.to_string(),
        directory: PathBuf::from("/"),
    };
    let loaded = parse([source], &Environment::default());
    let mut loaded = loaded.map_err(|mistakes| {
        let notices = mistakes.notices.iter();
        let mistakes = notices.filter(|notice| notice.severity == Severity::Mistake);
        let messages = mistakes.map(|notice| match &notice.suggestion {
            Some(suggestion) => format!("{}: {suggestion}", notice.message),
            None => notice.message.clone(),
        });
        InvalidAgent::Document(messages.collect::<Vec<_>>().join("; "))
    })?;
    let read = loaded.config.agents.shift_remove(name);
    read.ok_or_else(|| InvalidAgent::Document("an agent is an object".to_owned()))
}

/// Refuses terms that could not be used, as a gateway does at its start with those of a config. Servers and
/// other agents are nothing to them.
///
/// # Errors
/// [`InvalidAgent::Terms`].
pub fn check_terms(agent: &StoredAgent, config: &Config) -> Result<(), InvalidAgent> {
    let mut config = config.clone();
    config.servers.clear();
    config.agents.clear();
    let policy_set = PolicySet::new(&config)?;
    Ok(policy_set.validate(&Arc::new(Agent::from(agent.clone())))?)
}

/// Why no key is made.
#[derive(Debug, thiserror::Error)]
pub enum NewKeyError {
    /// The system has no random numbers. The operator mends it.
    #[error("cannot get random numbers: {0}")]
    Randomness(#[from] getrandom::Error),
    /// Its time would have passed. Who asked mends it.
    #[error("the lifetime of a key must be greater than 0")]
    NoLifetime,
    /// Its time is beyond what can be written. Who asked mends it.
    #[error("the lifetime of the key is too large; use `never`")]
    LifetimeTooLarge,
}

/// Makes a key of `agent` that is good for `lifetime`, or for ever: the key, and what is kept of it.
///
/// # Errors
/// [`NewKeyError`].
pub fn new_key(
    agent: AgentId,
    lifetime: Option<Duration>,
) -> Result<(ApiKey, StoredKey), NewKeyError> {
    let created = clock::now();
    let expires = match lifetime {
        Some(time) if time.is_zero() => return Err(NewKeyError::NoLifetime),
        Some(time) => {
            let at = created.checked_add(time);
            Some(at.map_err(|_| NewKeyError::LifetimeTooLarge)?)
        }
        None => None,
    };
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

/// How a key is; the keys of an agent that is `locked_out` open nothing.
pub fn key_state(key: &StoredKey, locked_out: bool, now: Timestamp) -> &'static str {
    match key.revoked {
        Some(_) => "revoked",
        None if locked_out => "shut",
        None if key.is_live(now) => "live",
        None => "expired",
    }
}

/// A lifetime as people write it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyLifetime {
    /// For ever.
    Never,
    /// This long.
    Time(Duration),
}

impl KeyLifetime {
    /// Reads a duration such as `90d`, or `never`.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self::Never);
        }
        let time = humantime::parse_duration(text);
        time.map(Self::Time)
            .map_err(|error| format!("{error}; use a duration such as 90d, or `never`"))
    }

    /// How long that is; `None`: for ever.
    pub const fn time(self) -> Option<Duration> {
        match self {
            Self::Never => None,
            Self::Time(time) => Some(time),
        }
    }
}
