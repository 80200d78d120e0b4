//! Which tools, prompts, resources and methods an agent may use: compiled once, pure.
//!
//! Up to three policies apply: the agent's, the profile's and the default. The most specific one
//! that is given replaces mode and lists of the others; `deny` entries of all three add up and win.
//! Whoever lists asks the same [`PolicyRules::decide`] as whoever calls, so what is listed is what may be
//! called.
//!
//! Globs are tried on what the config alone makes of an item's name, never on what it is called
//! because of what other servers list; see [`catalog::globs`](crate::catalog::globs). The name on the
//! route of one server is no name here: it is the server's to choose, and an entry meant for one server
//! must not let in another.

mod reason;

use globset::Glob;

pub use crate::catalog::globs::GlobsTooLarge;
use crate::{
    catalog::{
        Candidate, ConfiguredNames, Kind, ListEntry, Prefixes, Prompt, Tool,
        globs::{GlobEntry, GlobTarget, GlobWidth, Globs, ItemForms, MatchForms},
        uri_variants,
    },
    config::{Policy, PolicyMode},
    mcp::Method,
    names::ServerName,
    router::{ItemSubject, NamedResources, Routed},
};
pub use reason::{Decision, PolicyLevel, Reason};

/// The policies that apply to one agent on one route, ready to decide.
#[derive(Debug)]
pub struct PolicyRules {
    /// Who wrote the mode and the lists; `None` when nobody did, which allows nothing.
    effective: Option<EffectivePolicy>,
    /// `deny` of every policy that applies.
    deny: Globs<PolicyLevel>,
}

/// The policy whose mode and lists hold.
#[derive(Debug)]
struct EffectivePolicy {
    level: PolicyLevel,
    mode: PolicyMode,
    tools: Globs<()>,
    prompts: Globs<()>,
    resources: Globs<()>,
    methods: Globs<()>,
}

impl PolicyRules {
    /// Compiles the policies of an agent, of the profile it came through, and of everybody.
    ///
    /// # Errors
    /// When a list is too large to match; the operator shortens it.
    pub fn new(
        [agent, profile, default]: [Option<&Policy>; 3],
        prefixes: &Prefixes,
    ) -> Result<Self, GlobsTooLarge> {
        let all = [
            (PolicyLevel::Agent, agent),
            (PolicyLevel::Profile, profile),
            (PolicyLevel::Default, default),
        ];
        let given = || {
            all.into_iter()
                .filter_map(|(whose, policy)| Some((whose, policy?)))
        };
        let deny = given().flat_map(|(whose, policy)| policy.deny.iter().map(move |g| (whose, g)));
        Ok(Self {
            deny: Globs::new(deny, GlobTarget::All, GlobWidth::Broad, prefixes)?,
            effective: match given().next() {
                Some((whose, policy)) => Some(EffectivePolicy::new(whose, policy, prefixes)?),
                None => None,
            },
        })
    }

    /// Whether every item of every kind is allowed, so that nobody needs to ask.
    pub fn allows_everything(&self) -> bool {
        let all = |chosen: &EffectivePolicy| chosen.mode == PolicyMode::All;
        self.deny.is_empty() && self.effective.as_ref().is_some_and(all)
    }

    /// Why `routed` may not be carried out; `None` where it may. A resource that a vendor method names
    /// is for those who may read it.
    pub fn denial(&self, routed: &Routed) -> Option<Reason<'_>> {
        if self.allows_everything() {
            return None;
        }
        let item = PolicyItem::of_routed(routed)?;
        if !self.allows(&item) {
            return Some(self.decide(&item).reason);
        }
        self.denial_of_resources(&routed.named, &routed.server)
    }

    /// Why nothing may be sent to `server` that names these; `None` where it may.
    fn denial_of_resources(
        &self,
        named: &NamedResources,
        server: &ServerName,
    ) -> Option<Reason<'_>> {
        let NamedResources::Resources(named) = named else {
            return Some(Reason::AmbiguousResource);
        };
        let mut named = named.iter().map(|it| PolicyItem::of_subject(server, it));
        let refused = named.find(|item| !self.allows(item))?;
        Some(self.decide(&refused).reason)
    }

    /// Whether a notification of `method` that names these may be sent to `server`, which alone knows
    /// what it does with them: as with its methods.
    pub(super) fn allows_notification(
        &self,
        server: &ServerName,
        method: &str,
        named: &NamedResources,
    ) -> bool {
        self.allows(&PolicyItem::of_method(server, method))
            && self.denial_of_resources(named, server).is_none()
    }

    /// Whether `item` may be used: [`decide`](Self::decide) without the reason, in a fraction of the
    /// time.
    pub fn allows(&self, item: &PolicyItem<'_>) -> bool {
        let Some(chosen) = &self.effective else {
            return false;
        };
        let is_denied = !self.deny.is_empty() && self.deny.is_match(&item.glob_forms());
        if is_denied || self.is_ambiguous_uri(item) {
            return false;
        }
        match chosen.mode {
            PolicyMode::All => true,
            PolicyMode::None => false,
            PolicyMode::Allowlist => chosen.matching_entry(item).is_some(),
            PolicyMode::Denylist => !chosen.list(item.kind).is_match(&item.glob_forms()),
        }
    }

    /// Whether `item` may be used, and why.
    pub fn decide(&self, item: &PolicyItem<'_>) -> Decision<'_> {
        let forms = item.glob_forms();
        if let Some(entry) = self.deny.first_match(&forms) {
            return Decision::refused(Reason::Denied {
                whose: entry.owner,
                glob: &entry.text,
            });
        }
        let Some(chosen) = &self.effective else {
            return Decision::refused(Reason::NoPolicy);
        };
        if self.is_ambiguous_uri(item) {
            return Decision::refused(Reason::AmbiguousUri);
        }
        let (whose, mode, list) = (chosen.level, chosen.mode, item.kind.policy_list());
        match mode {
            PolicyMode::All => Decision::allowed(Reason::Mode { whose, mode }),
            PolicyMode::None => Decision::refused(Reason::Mode { whose, mode }),
            PolicyMode::Allowlist => match chosen.matching_entry(item) {
                Some(entry) => Decision::allowed(Reason::Listed {
                    whose,
                    mode,
                    list,
                    glob: &entry.text,
                }),
                None => Decision::refused(Reason::Unlisted { whose, mode, list }),
            },
            PolicyMode::Denylist => match chosen.list(item.kind).first_match(&forms) {
                Some(entry) => Decision::refused(Reason::Listed {
                    whose,
                    mode,
                    list,
                    glob: &entry.text,
                }),
                None => Decision::allowed(Reason::Unlisted { whose, mode, list }),
            },
        }
    }
}

impl PolicyRules {
    /// Whether `item` is a resource of which nobody can tell by its URI what it is, where that matters.
    fn is_ambiguous_uri(&self, item: &PolicyItem<'_>) -> bool {
        item.kind == ItemKind::Resource
            && !self.allows_everything()
            && uri_variants::is_ambiguous(item.original)
    }
}

impl EffectivePolicy {
    fn new(
        whose: PolicyLevel,
        policy: &Policy,
        prefixes: &Prefixes,
    ) -> Result<Self, GlobsTooLarge> {
        let reading = match policy.mode {
            PolicyMode::Denylist => GlobWidth::Broad,
            PolicyMode::All | PolicyMode::Allowlist | PolicyMode::None => GlobWidth::Strict,
        };
        let compile = |globs: &[Glob], over| {
            let globs = globs.iter().map(|glob| ((), glob));
            Globs::new(globs, over, reading, prefixes)
        };
        Ok(Self {
            level: whose,
            mode: policy.mode,
            tools: compile(&policy.tools, GlobTarget::Names)?,
            prompts: compile(&policy.prompts, GlobTarget::Names)?,
            resources: compile(&policy.resources, GlobTarget::Uris)?,
            methods: compile(&policy.methods, GlobTarget::Names)?,
        })
    }

    /// The entry that allows `item`.
    fn matching_entry(&self, item: &PolicyItem<'_>) -> Option<&GlobEntry<()>> {
        let list = self.list(item.kind);
        match item.kind {
            ItemKind::Resource => list.matching_uri(&item.item_forms()),
            ItemKind::Method | ItemKind::Prompt | ItemKind::Tool => {
                list.matching_name(&item.item_forms())
            }
        }
    }

    fn list(&self, kind: ItemKind) -> &Globs<()> {
        match kind {
            ItemKind::Method => &self.methods,
            ItemKind::Prompt => &self.prompts,
            ItemKind::Resource => &self.resources,
            ItemKind::Tool => &self.tools,
        }
    }
}

/// What is asked about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PolicyItem<'a> {
    /// What it is.
    pub kind: ItemKind,
    /// Its name or URI on merged routes, for people; empty where they do not list it.
    pub exposed: &'a str,
    /// What the config makes of its name or URI: policies know it by that, see [`ConfiguredNames`].
    pub plain: &'a str,
    /// The other of those names; may be empty.
    pub distinct: &'a str,
    /// What the profile calls it; empty where none renames it.
    pub alias: &'a str,
    /// The server that has it.
    pub server: &'a ServerName,
    /// What the server calls it.
    pub original: &'a str,
}

impl<'a> PolicyItem<'a> {
    /// An entry of a list on any route.
    pub fn of_entry(kind: Kind, entry: &'a ListEntry) -> Self {
        Self {
            kind: ItemKind::from_kind(kind),
            exposed: &entry.merged,
            plain: &entry.names.plain,
            distinct: &entry.names.distinct,
            alias: &entry.alias,
            server: &entry.server,
            original: &entry.original,
        }
    }

    /// A tool of any route.
    pub fn of_tool(tool: &'a Tool) -> Self {
        Self {
            kind: ItemKind::Tool,
            exposed: &tool.merged,
            plain: &tool.names.plain,
            distinct: &tool.names.distinct,
            alias: &tool.alias,
            server: &tool.server,
            original: &tool.original,
        }
    }

    /// A prompt of any route.
    pub fn of_prompt(prompt: &'a Prompt) -> Self {
        Self {
            kind: ItemKind::Prompt,
            exposed: &prompt.merged,
            plain: &prompt.names.plain,
            distinct: &prompt.names.distinct,
            alias: &prompt.alias,
            server: &prompt.server,
            original: &prompt.original,
        }
    }

    /// What a call uses: its item, or a method that only the route of its server has; `None` for
    /// methods of the protocol that concern no item.
    pub fn of_routed(routed: &'a Routed) -> Option<Self> {
        let Some(subject) = &routed.subject else {
            return match &routed.call.method {
                Method::Other(method) => Some(Self::of_method(&routed.server, method)),
                Method::Complete
                | Method::Discover
                | Method::Initialize
                | Method::Listen
                | Method::Ping
                | Method::PromptsGet
                | Method::PromptsList
                | Method::ResourcesList
                | Method::ResourcesRead
                | Method::ResourcesSubscribe
                | Method::ResourcesUnsubscribe
                | Method::SetLevel
                | Method::TemplatesList
                | Method::ToolsCall
                | Method::ToolsList => None,
            };
        };
        Some(Self::of_subject(&routed.server, subject))
    }

    /// What a call uses, of `server`.
    pub fn of_subject(server: &'a ServerName, subject: &'a ItemSubject) -> Self {
        Self {
            kind: ItemKind::from_kind(subject.kind),
            exposed: &subject.merged,
            plain: &subject.names.plain,
            distinct: &subject.names.distinct,
            alias: &subject.alias,
            server,
            original: &subject.original,
        }
    }

    /// What a server that is not listed may call `original`.
    pub fn of_candidate(
        candidate: &'a Candidate,
        (original, names): (&'a str, &'a ConfiguredNames),
    ) -> Self {
        Self {
            kind: ItemKind::from_kind(candidate.kind),
            exposed: &names.plain,
            plain: &names.plain,
            distinct: &names.distinct,
            alias: "",
            server: &candidate.server,
            original,
        }
    }

    /// A resource by what its server and the config call it.
    pub fn of_resource(
        server: &'a ServerName,
        names: &'a ConfiguredNames,
        original: &'a str,
    ) -> Self {
        Self {
            kind: ItemKind::Resource,
            exposed: &names.plain,
            plain: &names.plain,
            distinct: &names.distinct,
            alias: "",
            server,
            original,
        }
    }

    /// A method that only the route of its server has.
    pub fn of_method(server: &'a ServerName, method: &'a str) -> Self {
        Self {
            kind: ItemKind::Method,
            exposed: method,
            plain: method,
            distinct: "",
            alias: "",
            server,
            original: method,
        }
    }

    /// What globs know it by.
    pub(super) fn item_forms(&self) -> ItemForms<'a> {
        ItemForms {
            server: self.server,
            original: self.original,
            plain: self.plain,
            distinct: self.distinct,
            alias: self.alias,
        }
    }

    /// What globs that refuse it, or that demand something of its callers, are tried on.
    pub(super) fn glob_forms(&self) -> MatchForms {
        match self.kind {
            ItemKind::Resource => MatchForms::for_any_uri(&self.item_forms()),
            ItemKind::Method | ItemKind::Prompt | ItemKind::Tool => {
                MatchForms::for_name(&self.item_forms())
            }
        }
    }
}

/// What an item is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ItemKind {
    /// A vendor method of the route of one server.
    Method,
    /// A prompt.
    Prompt,
    /// A resource or a template, by its URI.
    Resource,
    /// A tool.
    Tool,
}

impl ItemKind {
    /// What an item of a list is.
    pub const fn from_kind(kind: Kind) -> Self {
        match kind {
            Kind::Tools => Self::Tool,
            Kind::Prompts => Self::Prompt,
            Kind::Resources | Kind::Templates => Self::Resource,
        }
    }

    /// The list of a policy that it is looked for in.
    pub const fn policy_list(self) -> &'static str {
        match self {
            Self::Method => "methods",
            Self::Prompt => "prompts",
            Self::Resource => "resources",
            Self::Tool => "tools",
        }
    }

    /// What people call it.
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Prompt => "prompt",
            Self::Resource => "resource",
            Self::Tool => "tool",
        }
    }
}

#[cfg(test)]
mod tests;
