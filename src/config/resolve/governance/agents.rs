//! The agents of a config: no two may be taken for each other.

use std::collections::HashMap;

use indexmap::IndexMap;

use crate::{
    config::{
        AgentConfig, Role, Secret,
        diagnostics::{report::Diagnostic, suggest},
        file,
        node::ValuePath,
        resolve::{Resolver, key_strength::weakness, quoted_or_hidden},
    },
    names::{AgentId, ProfileName},
};

/// The least length of a key, which leaves 128 bits to hexadecimal digits.
const KEY_CHARS_MIN: usize = 32;

/// The longest name of an agent, characters.
const NAME_CHARS_MAX: usize = 64;

/// What the agent of callers without a credential is called.
const ANONYMOUS_NAME: &str = "anonymous";

impl Resolver<'_> {
    /// Resolves the agents; `profiles` are the ones that they may name.
    pub(in crate::config::resolve) fn agents(
        &mut self,
        agents: IndexMap<String, file::AgentSection>,
        profiles: &[String],
        at: &ValuePath<'_>,
    ) -> IndexMap<String, AgentConfig> {
        let mut resolved = IndexMap::new();
        for (name, agent) in agents {
            let at = at.child(&name);
            self.check_agent_name(&name, &at);
            self.check_team(agent.team.as_deref(), &at.child("team"));
            self.check_agent_keys(&agent.keys, &at.child("keys"));
            self.check_terms(&agent.terms, &at);
            let agent = AgentConfig {
                id: self.agent_id(agent.id.as_deref(), &name, &at.child("id")),
                team: agent.team,
                enabled: agent.enabled,
                role: self.agent_role(agent.admin, agent.role, &at),
                keys: agent.keys,
                certificates: agent.certificates,
                profiles: agent
                    .profiles
                    .map(|names| self.agent_profiles(&names, profiles, &at.child("profiles"))),
                terms: agent.terms,
                name: name.clone(),
            };
            resolved.insert(name, agent);
        }
        self.check_unique_ids(&resolved, at);
        self.check_unique_keys(&resolved, at);
        resolved
    }

    /// Warns of agents in a config with which nobody can be told from anybody else.
    pub(in crate::config::resolve) fn warn_of_unreachable_agents(&mut self, root: &ValuePath<'_>) {
        let agents = root.child("agents");
        let Some(first) = agents.keys().next() else {
            return;
        };
        let auth = root.child("governance").child("auth");
        self.findings.add(
            Diagnostic::warning("agents are configured but callers cannot be identified")
                .at(
                    agents.child(first).key_span(),
                    "every caller is the anonymous agent",
                )
                .at(
                    auth.span().filter(|_| auth.is_written()),
                    "callers do not authenticate",
                )
                .help("set `auth = \"keys\"` in `[governance]`"),
        );
    }

    fn check_agent_name(&mut self, name: &str, at: &ValuePath<'_>) {
        let is_text = !name.is_empty() && !name.contains(char::is_control);
        let (label, help) = if !is_text || name.trim() != name {
            ("empty, or with leading or trailing whitespace", None)
        } else if name.chars().count() > NAME_CHARS_MAX {
            ("longer than 64 characters", None)
        } else if name == ANONYMOUS_NAME {
            let help = "configure them in `[governance]`";
            ("reserved for callers without a key", Some(help.to_owned()))
        } else {
            return;
        };
        self.findings.add(
            Diagnostic::error("invalid agent name")
                .at(at.key_span(), label)
                .help_if(help),
        );
    }

    fn agent_id(&mut self, written: Option<&str>, name: &str, at: &ValuePath<'_>) -> AgentId {
        let by_name = AgentId::from_name(name);
        let Some(written) = written else {
            return by_name;
        };
        let problem = match written.parse::<AgentId>() {
            Ok(AgentId::ANONYMOUS) => "reserved for callers without a key".to_owned(),
            Ok(id) => return id,
            Err(invalid) => invalid.to_string(),
        };
        self.findings.add(
            Diagnostic::error(format!(
                "{} is not a valid agent id",
                quoted_or_hidden(written, at)
            ))
            .at(at.span(), problem)
            .help(format!("remove it, or use \"{by_name}\"")),
        );
        by_name
    }

    fn agent_role(&mut self, is_admin: bool, role: Option<Role>, at: &ValuePath<'_>) -> Role {
        if let (true, Some(role)) = (is_admin, role)
            && role != Role::Admin
        {
            let (role_at, admin_at) = (at.child("role"), at.child("admin"));
            let path = role_at.path();
            self.findings.add(
                Diagnostic::error(format!("`{path}` is `{role}` and `admin` is `true`"))
                    .at(role_at.span(), "this role")
                    .at(admin_at.span(), "means the role `admin`")
                    .help("remove one of them"),
            );
        }
        if is_admin {
            return Role::Admin;
        }
        role.unwrap_or_default()
    }

    fn check_team(&mut self, team: Option<&str>, at: &ValuePath<'_>) {
        if team.is_some_and(|team| team.trim().is_empty()) {
            self.findings.add(
                Diagnostic::error(format!("`{}` is empty", at.path()))
                    .at(at.span(), "use a word, or remove it"),
            );
        }
    }

    /// Reports keys that can be guessed or sent by nobody, without showing them.
    fn check_agent_keys(&mut self, keys: &[Secret], at: &ValuePath<'_>) {
        for (index, key) in keys.iter().enumerate() {
            let item = at.item_at(index);
            let key = key.expose();
            let (problem, label) = if !key.chars().all(|c| c.is_ascii_graphic()) {
                (
                    "cannot be sent in a header",
                    "contains a space or a character that is not printable ASCII",
                )
            } else if key.len() < KEY_CHARS_MIN {
                ("is too short", "fewer than 32 characters")
            } else if let Some(weakness) = weakness(key) {
                ("can be guessed", weakness)
            } else {
                continue;
            };
            self.findings.add(
                Diagnostic::error(format!("`{}` {problem}", item.path()))
                    .at(item.span(), label)
                    .help("generate a key with `openssl rand -hex 32`"),
            );
        }
    }

    pub(in crate::config::resolve) fn agent_profiles(
        &mut self,
        names: &[String],
        known: &[String],
        at: &ValuePath<'_>,
    ) -> Vec<ProfileName> {
        for (index, name) in names.iter().enumerate() {
            if known.contains(name) || self.context.is_incomplete {
                continue;
            }
            let item = at.item_at(index);
            let close = suggest::closest(name, known.iter().map(String::as_str));
            let help = match (close, known) {
                (Some(close), _) => format!("did you mean \"{close}\"?"),
                (None, []) => "the config has no profiles".to_owned(),
                (None, known) => format!("the profiles are {}", suggest::list_and(known)),
            };
            self.findings.add(
                Diagnostic::error(format!(
                    "{} is not a profile",
                    quoted_or_hidden(name, &item)
                ))
                .at(item.span(), "no such profile")
                .help(help),
            );
        }
        let parsed = names.iter().map(|name| ProfileName::parse(name));
        // A profile with a name that is none is reported where it stands.
        parsed.filter_map(Result::ok).collect()
    }

    fn check_unique_ids(&mut self, agents: &IndexMap<String, AgentConfig>, at: &ValuePath<'_>) {
        let mut taken: HashMap<AgentId, &str> = HashMap::new();
        for agent in agents.values() {
            let Some(other) = taken.insert(agent.id, &agent.name) else {
                continue;
            };
            let place = |name: &str| {
                let id = at.child(name).child("id");
                let key = at.child(name).key_span();
                id.span().filter(|_| id.is_written()).or(key)
            };
            let name = &agent.name;
            self.findings.add(
                Diagnostic::error(format!("`{other}` and `{name}` have the same id"))
                    .at(place(name), "this agent")
                    .at(place(other), "and this one")
                    .help("ids must be unique: remove one of them"),
            );
        }
    }

    fn check_unique_keys(&mut self, agents: &IndexMap<String, AgentConfig>, at: &ValuePath<'_>) {
        let mut taken: HashMap<&str, (&str, ValuePath<'_>)> = HashMap::new();
        for agent in agents.values() {
            let name = agent.name.as_str();
            let list = at.child(name).child("keys");
            for (index, key) in agent.keys.iter().enumerate() {
                let item = list.item_at(index);
                let Some((other, before)) = taken.insert(key.expose(), (name, item.clone())) else {
                    continue;
                };
                let message = if other == name {
                    format!("`{name}` has a duplicate key")
                } else {
                    format!("`{other}` and `{name}` have the same key")
                };
                self.findings.add(
                    Diagnostic::error(message)
                        .at(item.span(), "this key")
                        .at(before.span(), "same as this one")
                        .help("a key identifies its agent: use a different key for each"),
                );
            }
        }
    }
}
