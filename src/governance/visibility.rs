//! What an agent may see: lists and updates are cut down by the same rules that admit calls.

use std::sync::Arc;

use super::{policy::PolicyItem, rules::AgentRules};
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
    Everything,
    /// Nothing, whatever there is.
    Nothing(Blind),
    /// What its rules allow.
    Some(Visible),
}

/// Why an agent sees nothing on a route, in words that follow its name.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Blind {
    /// It is not enabled, or known no more; the operator enables it.
    #[error("is disabled")]
    Disabled,
    /// It has profiles, and the route is of none of them: these exist. Whoever set up the client gives it
    /// the URL of one, or the operator changes `profiles`.
    #[error("{}", only(.0))]
    Elsewhere(Vec<ProfileName>),
    /// What is said of it cannot be used; the operator finds in the log why.
    #[error("has terms that cannot be used")]
    Terms,
}

impl Blind {
    /// The same for the agent's client, which is connected so, and where that may connect.
    pub fn instructions(&self, kind: SessionKind) -> String {
        let why = format!("Nothing is listed here: this agent {self}.");
        let (how, before) = match kind {
            SessionKind::Sse => ("Connect to", "/sse/profiles/"),
            SessionKind::Stdio => ("Start `tollbridge stdio` with", "--profile "),
            SessionKind::Streamable => ("Connect to", "/mcp/profiles/"),
        };
        match self {
            Self::Elsewhere(profiles) if !profiles.is_empty() => {
                let ways = profiles.iter().map(|name| format!("{before}{name}"));
                let ways: Vec<String> = ways.collect();
                format!("{why} {how} {}.", ways.join(" or "))
            }
            Self::Disabled | Self::Elsewhere(_) | Self::Terms => why,
        }
    }
}

fn only(profiles: &[ProfileName]) -> String {
    let names: Vec<String> = profiles.iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => "may use no profile that there is, and nothing beside them".to_owned(),
        [name] => format!("may use the profile {name} and nothing beside it"),
        names => format!(
            "may use the profiles {} and nothing beside them",
            names.join(", ")
        ),
    }
}

/// By what an agent sees some things and others not.
#[derive(Clone, Debug)]
pub struct Visible {
    /// The rules; `None` where they allow everything.
    pub(super) rules: Option<Arc<AgentRules>>,
    /// Servers of which nothing is shown.
    pub(super) apart: Arc<[ServerName]>,
}

impl Visible {
    fn allows(&self, server: &ServerName, by: impl FnOnce(&AgentRules) -> bool) -> bool {
        !self.apart.contains(server) && self.rules.as_deref().is_none_or(by)
    }
}

impl Visibility {
    /// The same without anything of the servers `apart`.
    #[must_use]
    pub fn without(self, apart: Vec<ServerName>) -> Self {
        let rules = match self {
            _ if apart.is_empty() => return self,
            Self::Nothing(_) => return self,
            Self::Everything => None,
            Self::Some(Visible { rules, .. }) => rules,
        };
        Self::Some(Visible {
            rules,
            apart: apart.into(),
        })
    }

    /// Whether an entry of a list is in it.
    pub fn shows(&self, kind: Kind, entry: &ListEntry) -> bool {
        self.decides(|| PolicyItem::of_entry(kind, entry))
    }

    /// Whether a tool of the route is in it.
    pub fn shows_tool(&self, tool: &Tool) -> bool {
        self.decides(|| PolicyItem::of_tool(tool))
    }

    /// Whether a resource is in it, by its names in the config and with its server.
    pub fn shows_resource(
        &self,
        server: &ServerName,
        names: &ConfiguredNames,
        original: &str,
    ) -> bool {
        self.decides(|| PolicyItem::of_resource(server, names, original))
    }

    /// Whether a method that only `server` knows is in it.
    pub fn shows_method(&self, server: &ServerName, method: &str) -> bool {
        self.decides(|| PolicyItem::of_method(server, method))
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
            Self::Everything => true,
            Self::Nothing(_) => false,
            Self::Some(visible) => visible.allows(server, |rules| {
                rules.policy.allows_notification(server, method, named)
            }),
        }
    }

    /// Whether something that `prospect` may stand for is in it.
    pub fn may_show(&self, prospect: &Candidate) -> bool {
        let mut originals = prospect.originals.iter();
        originals.any(|(original, names)| {
            self.decides(|| PolicyItem::of_prospect(prospect, (original, names)))
        })
    }

    fn decides<'i>(&self, item: impl FnOnce() -> PolicyItem<'i>) -> bool {
        match self {
            Self::Everything => true,
            Self::Nothing(_) => false,
            Self::Some(visible) => {
                let item = item();
                visible.allows(item.server, |rules| rules.policy.allows(&item))
            }
        }
    }
}
