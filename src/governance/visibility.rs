//! What an agent may see: lists and updates are cut down by the same rules that admit calls.

use std::sync::Arc;

use super::{agent_rules::AgentRules, policy::PolicyItem};
use crate::{
    catalog::{Candidate, ConfiguredNames, Kind, ListEntry, Tool},
    names::{ProfileName, ServerName},
    router::NamedResources,
    session::state::SessionKind,
};

/// What an agent may see on a route.
#[derive(Clone, Debug)]
pub enum Visibility {
    /// All there is.
    All,
    /// Nothing, whatever there is.
    Hidden(HiddenReason),
    /// What its rules allow.
    Filtered(VisibleItems),
}

/// Why an agent sees nothing on a route, in words that follow its name.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HiddenReason {
    /// It is not enabled, or known no more; the operator enables it.
    #[error("is disabled")]
    Disabled,
    /// It has profiles, and the route is of none of them: these exist. Whoever set up the client gives it
    /// the URL of one, or the operator changes `profiles`.
    #[error("{}", profile_list(.0))]
    OtherProfiles(Vec<ProfileName>),
    /// What is said of it cannot be used; the operator finds in the log why.
    #[error("has invalid terms")]
    InvalidTerms,
}

impl HiddenReason {
    /// The same for the agent's client, which is connected so, and where that may connect.
    pub fn instructions(&self, kind: SessionKind) -> String {
        let why = format!("Nothing is listed here: this agent {self}.");
        let (how, before) = match kind {
            SessionKind::Sse => ("Connect to", "/sse/profiles/"),
            SessionKind::Stdio => ("Run `tollbridge stdio` with", "--profile "),
            SessionKind::Streamable => ("Connect to", "/mcp/profiles/"),
        };
        match self {
            Self::OtherProfiles(profiles) if !profiles.is_empty() => {
                let ways = profiles.iter().map(|name| format!("{before}{name}"));
                let ways: Vec<String> = ways.collect();
                format!("{why} {how} {}.", ways.join(" or "))
            }
            Self::Disabled | Self::OtherProfiles(_) | Self::InvalidTerms => why,
        }
    }
}

fn profile_list(profiles: &[ProfileName]) -> String {
    let names: Vec<String> = profiles.iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => "may only use profiles that do not exist".to_owned(),
        [name] => format!("may only use the profile {name}"),
        names => format!("may only use the profiles {}", names.join(", ")),
    }
}

/// The rules of an agent.
#[derive(Clone, Debug)]
pub struct VisibleItems(pub(super) Arc<AgentRules>);

impl Visibility {
    /// Whether an entry of a list is in it.
    pub fn shows(&self, kind: Kind, entry: &ListEntry) -> bool {
        self.allows_item(|| PolicyItem::of_entry(kind, entry))
    }

    /// Whether a tool of the route is in it.
    pub fn shows_tool(&self, tool: &Tool) -> bool {
        self.allows_item(|| PolicyItem::of_tool(tool))
    }

    /// Whether a resource is in it, by its names in the config and with its server.
    pub fn shows_resource(
        &self,
        server: &ServerName,
        names: &ConfiguredNames,
        original: &str,
    ) -> bool {
        self.allows_item(|| PolicyItem::of_resource(server, names, original))
    }

    /// Whether a method that only `server` knows is in it.
    pub fn shows_method(&self, server: &ServerName, method: &str) -> bool {
        self.allows_item(|| PolicyItem::of_method(server, method))
    }

    /// Whether a notification of `method`, which only `server` knows, may be sent to it: as with its
    /// methods, what it names is for those who may read it.
    pub fn shows_notification(
        &self,
        server: &ServerName,
        method: &str,
        named: &NamedResources,
    ) -> bool {
        match self {
            Self::All => true,
            Self::Hidden(_) => false,
            Self::Filtered(VisibleItems(rules)) => {
                rules.policy.allows_notification(server, method, named)
            }
        }
    }

    /// Whether something that `candidate` may stand for is in it.
    pub fn may_show_candidate(&self, candidate: &Candidate) -> bool {
        let mut originals = candidate.originals.iter();
        originals.any(|(original, names)| {
            self.allows_item(|| PolicyItem::of_candidate(candidate, (original, names)))
        })
    }

    fn allows_item<'i>(&self, item: impl FnOnce() -> PolicyItem<'i>) -> bool {
        match self {
            Self::All => true,
            Self::Hidden(_) => false,
            Self::Filtered(VisibleItems(rules)) => rules.policy.allows(&item()),
        }
    }
}
