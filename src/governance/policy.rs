//! Which tools, prompts, resources and methods an agent may use: compiled once, pure.
//!
//! Up to three policies apply: the agent's, the profile's and the default. The most specific one
//! that is given replaces mode and lists of the others; `deny` entries of all three add up and win.
//! Whoever lists asks the same [`Rules::decide`] as whoever calls, so what is listed is what may be
//! called.
//!
//! A glob is tried on what the item is called on merged routes, on what a profile calls it, and on
//! `server/original`; `*` does not match `/`. The name on the route of one server is no name here:
//! it is the server's to choose, and an entry meant for one server must not let in another.

mod reason;

use globset::{Glob, GlobBuilder};
use regex::bytes::{RegexSet, RegexSetBuilder};

use crate::{
    catalog::{Entry, Kind, Prompt, Prospect, Tool, spelling},
    config::{Policy, PolicyMode},
    mcp::Method,
    names::ServerName,
    router::{Named, Routed, Subject},
};
pub use reason::{Decision, Reason, Whose};

/// The policies that apply to one agent on one route, ready to decide.
#[derive(Debug)]
pub struct Rules {
    /// Who wrote the mode and the lists; `None` when nobody did, which allows nothing.
    chosen: Option<Chosen>,
    /// `deny` of every policy that applies.
    deny: Globs<Whose>,
}

/// The policy whose mode and lists hold.
#[derive(Debug)]
struct Chosen {
    whose: Whose,
    mode: PolicyMode,
    tools: Globs<()>,
    prompts: Globs<()>,
    resources: Globs<()>,
    methods: Globs<()>,
}

impl Rules {
    /// Compiles the policies of an agent, of the profile it came through, and of everybody.
    ///
    /// # Errors
    /// When a list is too large to match; the operator shortens it.
    pub fn new(
        agent: Option<&Policy>,
        profile: Option<&Policy>,
        default: Option<&Policy>,
    ) -> Result<Self, TooLarge> {
        let all = [
            (Whose::Agent, agent),
            (Whose::Profile, profile),
            (Whose::Default, default),
        ];
        let given = || {
            all.into_iter()
                .filter_map(|(whose, policy)| Some((whose, policy?)))
        };
        let deny = given().flat_map(|(whose, policy)| policy.deny.iter().map(move |g| (whose, g)));
        Ok(Self {
            deny: Globs::new(deny)?,
            chosen: match given().next() {
                Some((whose, policy)) => Some(Chosen::new(whose, policy)?),
                None => None,
            },
        })
    }

    /// Whether every item of every kind is allowed, so that nobody needs to ask.
    pub fn allows_everything(&self) -> bool {
        let all = |chosen: &Chosen| chosen.mode == PolicyMode::All;
        self.deny.is_empty() && self.chosen.as_ref().is_some_and(all)
    }

    /// Why `routed` may not be carried out; `None` where it may. A resource that a vendor method names
    /// is for those who may read it.
    pub fn objection(&self, routed: &Routed) -> Option<Reason<'_>> {
        if self.allows_everything() {
            return None;
        }
        let item = Item::of_routed(routed)?;
        if !self.allows(&item) {
            return Some(self.decide(&item).because);
        }
        self.objection_to(&routed.named, &routed.server)
    }

    /// Why nothing may be sent to `server` that names these; `None` where it may.
    fn objection_to(&self, named: &Named, server: &ServerName) -> Option<Reason<'_>> {
        let Named::Resources(named) = named else {
            return Some(Reason::Unclear);
        };
        let mut named = named.iter().map(|it| Item::of_subject(server, it));
        let refused = named.find(|item| !self.allows(item))?;
        Some(self.decide(&refused).because)
    }

    /// Whether a notification of `method` that names these may be sent to `server`, which alone knows
    /// what it does with them: as with its methods.
    pub(super) fn allows_notification(
        &self,
        server: &ServerName,
        method: &str,
        named: &Named,
    ) -> bool {
        self.allows(&Item::of_method(server, method)) && self.objection_to(named, server).is_none()
    }

    /// Whether `item` may be used: [`decide`](Self::decide) without the reason, in a fraction of the
    /// time.
    pub fn allows(&self, item: &Item<'_>) -> bool {
        let qualified = item.qualified();
        let others = item.others();
        let names = item.names_that_refuse(&qualified, &others);
        let Some(chosen) = &self.chosen else {
            return false;
        };
        if self.deny.is_match(names) || self.is_astray(item) {
            return false;
        }
        match chosen.mode {
            PolicyMode::All => true,
            PolicyMode::None => false,
            PolicyMode::Allowlist => chosen.lists(item, &qualified),
            PolicyMode::Denylist => !chosen.list(item.kind).is_match(names),
        }
    }

    /// Whether `item` may be used, and why.
    pub fn decide(&self, item: &Item<'_>) -> Decision<'_> {
        let qualified = item.qualified();
        let others = item.others();
        let names = item.names_that_refuse(&qualified, &others);
        if let Some(entry) = self.deny.first_match(names) {
            return Decision::refused(Reason::Denied {
                whose: entry.owner,
                glob: &entry.text,
            });
        }
        let Some(chosen) = &self.chosen else {
            return Decision::refused(Reason::NoPolicy);
        };
        if self.is_astray(item) {
            return Decision::refused(Reason::Astray);
        }
        let (whose, mode, list) = (chosen.whose, chosen.mode, item.kind.list());
        match mode {
            PolicyMode::All => Decision::allowed(Reason::Mode { whose, mode }),
            PolicyMode::None => Decision::refused(Reason::Mode { whose, mode }),
            PolicyMode::Allowlist => match chosen.listed(item, &qualified) {
                Some(entry) => Decision::allowed(Reason::Listed {
                    whose,
                    mode,
                    list,
                    glob: &entry.text,
                }),
                None => Decision::refused(Reason::Unlisted { whose, mode, list }),
            },
            PolicyMode::Denylist => match chosen.list(item.kind).first_match(names) {
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

impl Rules {
    /// Whether `item` is a resource of which nobody can tell by its URI what it is, where that matters.
    fn is_astray(&self, item: &Item<'_>) -> bool {
        item.kind == ItemKind::Resource
            && !self.allows_everything()
            && spelling::strays(item.original)
    }
}

impl Chosen {
    fn new(whose: Whose, policy: &Policy) -> Result<Self, TooLarge> {
        let compile = |globs: &[Glob]| Globs::new(globs.iter().map(|glob| ((), glob)));
        Ok(Self {
            whose,
            mode: policy.mode,
            tools: compile(&policy.tools)?,
            prompts: compile(&policy.prompts)?,
            resources: compile(&policy.resources)?,
            methods: compile(&policy.methods)?,
        })
    }

    /// Whether `item` is on the list that allows it, and what it essentially is as well.
    fn lists(&self, item: &Item<'_>, qualified: &str) -> bool {
        let list = self.list(item.kind);
        let allows =
            |item: &Item<'_>, qualified: &str| list.is_match(item.names_that_allow(qualified));
        let essence = item.essence();
        allows(item, qualified) && essence.is_none_or(|it| allows(&it, &it.qualified()))
    }

    /// The entry by which it is.
    fn listed(&self, item: &Item<'_>, qualified: &str) -> Option<&Listed<()>> {
        let names = item.names_that_allow(qualified);
        let entry = self.list(item.kind).first_match(names);
        entry.filter(|_| self.lists(item, qualified))
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
pub struct Item<'a> {
    /// What it is.
    pub kind: ItemKind,
    /// Its name or URI on merged routes; empty where they do not list it.
    pub exposed: &'a str,
    /// What the profile calls it; empty where none renames it.
    pub alias: &'a str,
    /// The server that has it.
    pub server: &'a ServerName,
    /// What the server calls it.
    pub original: &'a str,
}

impl<'a> Item<'a> {
    /// An entry of a list on any route.
    pub fn of_entry(kind: Kind, entry: &'a Entry) -> Self {
        Self {
            kind: ItemKind::of(kind),
            exposed: &entry.merged,
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
    pub fn of_subject(server: &'a ServerName, subject: &'a Subject) -> Self {
        Self {
            kind: ItemKind::of(subject.kind),
            exposed: &subject.merged,
            alias: &subject.alias,
            server,
            original: &subject.original,
        }
    }

    /// What a server that is not listed may call `original`.
    pub fn of_prospect(prospect: &'a Prospect, original: &'a str) -> Self {
        Self {
            kind: ItemKind::of(prospect.kind),
            exposed: &prospect.exposed,
            alias: "",
            server: &prospect.server,
            original,
        }
    }

    /// A resource by what its server and merged routes call it.
    pub fn of_resource(server: &'a ServerName, exposed: &'a str, original: &'a str) -> Self {
        Self {
            kind: ItemKind::Resource,
            exposed,
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
            alias: "",
            server,
            original: method,
        }
    }

    /// What a resource is by that of its URI which says so, see [`spelling::essence`].
    fn essence(&self) -> Option<Self> {
        let original = spelling::essence(self.original);
        let exposed = spelling::essence(self.exposed);
        let is_less = self.kind == ItemKind::Resource && (original.is_some() || exposed.is_some());
        is_less.then(|| Self {
            original: original.unwrap_or(self.original),
            exposed: exposed.unwrap_or(self.exposed),
            ..*self
        })
    }

    fn qualified(&self) -> String {
        let mut name = String::with_capacity(self.server.as_str().len() + self.original.len() + 1);
        name.push_str(self.server.as_str());
        name.push('/');
        name.push_str(self.original);
        name
    }

    /// Other spellings of the URI of a resource, qualified and as exposed.
    fn others(&self) -> [String; OTHERS] {
        let mut all = <[String; OTHERS]>::default();
        if self.kind != ItemKind::Resource {
            return all;
        }
        let qualified = spelling::others(self.original).map(|uri| match &*uri {
            "" => uri,
            uri => format!("{}/{uri}", self.server.as_str()),
        });
        let both = qualified.into_iter().chain(spelling::others(self.exposed));
        all.iter_mut()
            .zip(both)
            .for_each(|(slot, name)| *slot = name);
        all
    }

    /// Every name that a glob may refuse it by: also those that servers take for the same.
    fn names_that_refuse<'n>(
        &self,
        qualified: &'n str,
        others: &'n [String; OTHERS],
    ) -> [&'n str; 3 + OTHERS]
    where
        'a: 'n,
    {
        let mut all = [""; 3 + OTHERS];
        let others = others.iter().map(String::as_str);
        let names = self.names(qualified).into_iter().chain(others);
        all.iter_mut()
            .zip(names)
            .for_each(|(slot, name)| *slot = name);
        all
    }

    /// Every name of its own.
    fn names<'n>(&self, qualified: &'n str) -> [&'n str; 3]
    where
        'a: 'n,
    {
        [qualified, self.exposed, self.alias]
    }

    /// Every name that a glob may allow it by. An exposed name that reads like an item of another
    /// server is left out: with a template of `{tool}` alone, a server could take it to be let in by
    /// what was written for the other. Methods are exempt, since it is the client who names them.
    fn names_that_allow<'n>(&self, qualified: &'n str) -> [&'n str; 3]
    where
        'a: 'n,
    {
        let exposed = match self.exposed.split_once('/') {
            Some((first, _))
                if self.kind != ItemKind::Method
                    && first != self.server.as_str()
                    && ServerName::parse(first).is_ok() =>
            {
                ""
            }
            Some(_) | None => self.exposed,
        };
        [qualified, exposed, self.alias]
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
    pub const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Tools => Self::Tool,
            Kind::Prompts => Self::Prompt,
            Kind::Resources | Kind::Templates => Self::Resource,
        }
    }

    /// The list of a policy that it is looked for in.
    pub const fn list(self) -> &'static str {
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

/// Other spellings of a resource: those of its qualified name and of its exposed one.
const OTHERS: usize = 2 * spelling::OTHERS;

/// A list of globs is too large to match. The operator shortens it.
#[derive(Debug, thiserror::Error)]
#[error("a list of globs cannot be used: {reason}")]
pub struct TooLarge {
    /// What the matcher says.
    reason: String,
}

/// Globs that are tried at once, each with what it belongs to.
#[derive(Debug)]
pub(super) struct Globs<O> {
    /// By their meaning as regular expressions: a set of globs takes a last segment of `..` for no
    /// name at all and would not match it. None where there are no globs, as most lists have none
    /// and a matcher of nothing is kilobytes.
    set: Option<RegexSet>,
    entries: Vec<Listed<O>>,
}

#[derive(Debug)]
struct Listed<O> {
    owner: O,
    text: String,
}

impl<O: Copy> Globs<O> {
    pub(super) fn new<'g>(globs: impl Iterator<Item = (O, &'g Glob)>) -> Result<Self, TooLarge> {
        let too_large = |reason: String| TooLarge { reason };
        let (mut entries, mut patterns) = (Vec::new(), Vec::new());
        for (owner, glob) in globs {
            // Globs that were read from the store do not know that `/` is special.
            let strict = GlobBuilder::new(glob.glob())
                .literal_separator(true)
                .build()
                .map_err(|error| too_large(error.to_string()))?;
            patterns.push(strict.regex().to_owned());
            entries.push(Listed {
                owner,
                text: glob.glob().to_owned(),
            });
        }
        let set = (!patterns.is_empty())
            .then(|| {
                RegexSetBuilder::new(patterns)
                    .dot_matches_new_line(true)
                    .build()
            })
            .transpose()
            .map_err(|error| too_large(error.to_string()))?;
        Ok(Self { set, entries })
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether any entry matches any of `names`; empty names match nothing.
    fn is_match<const N: usize>(&self, names: [&str; N]) -> bool {
        self.set.as_ref().is_some_and(|set| {
            names
                .into_iter()
                .any(|name| !name.is_empty() && set.is_match(name.as_bytes()))
        })
    }

    /// The first entry that matches the first of `names` that any entry matches.
    fn first_match<const N: usize>(&self, names: [&str; N]) -> Option<&Listed<O>> {
        let set = self.set.as_ref()?;
        let at = names
            .into_iter()
            .filter(|name| !name.is_empty())
            .find_map(|name| set.matches(name.as_bytes()).iter().next())?;
        Some(&self.entries[at])
    }

    /// What every entry belongs to that matches any name of `item`.
    pub(super) fn owners(&self, item: &Item<'_>) -> Vec<O> {
        let Some(set) = &self.set else {
            return Vec::new();
        };
        let qualified = item.qualified();
        item.names(&qualified)
            .into_iter()
            .filter(|name| !name.is_empty())
            .flat_map(|name| set.matches(name.as_bytes()))
            .map(|at| self.entries[at].owner)
            .collect()
    }
}

#[cfg(test)]
mod tests;
