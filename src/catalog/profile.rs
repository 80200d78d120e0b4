//! Profiles: named views of the merged route, with names and descriptions of their own.
//!
//! A view is cut from what the merged route lists, so a profile never shows what that hides. Built
//! with each snapshot; the text of items is spliced, never parsed and printed again.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use globset::{Glob, GlobBuilder, GlobMatcher};
use indexmap::IndexMap;

use super::{
    ByKind, Cause, Entry, Kind, Offer, Problem, Prompt, Scope, Shelf, Tables, Tool,
    instructions::{self, Instructions},
    merge::merged_freshness,
    resources::Site,
    spelling,
};
use crate::config;
use crate::mcp::json::{self, Patch, Raw};
use crate::names::{ProfileName, ServerName};

/// The profiles of a config, ready to match.
#[derive(Clone, Debug, Default)]
pub struct Profiles {
    all: Vec<(ProfileName, Arc<Selection>)>,
}

impl Profiles {
    /// Compiles the profiles of a config.
    pub fn new(profiles: &IndexMap<ProfileName, config::Profile>) -> Self {
        let compile = |(name, profile): (&ProfileName, &config::Profile)| {
            (name.clone(), Arc::new(Selection::new(profile)))
        };
        Self {
            all: profiles.iter().map(compile).collect(),
        }
    }

    /// Their names, in the config's order.
    pub fn names(&self) -> impl Iterator<Item = &ProfileName> {
        self.all.iter().map(|(name, _)| name)
    }

    /// Whether there is one called `name`.
    pub fn has(&self, name: &ProfileName) -> bool {
        self.find(name).is_some()
    }

    /// Whether the profile `name` may show items of a server with these tags.
    pub fn takes(&self, name: &ProfileName, tags: &[String]) -> bool {
        self.find(name)
            .is_some_and(|selection| selection.takes(tags))
    }

    /// Whether the route of `scope` may show an item of `offer` that has these names.
    pub(super) fn may_show(
        &self,
        scope: &Scope,
        kind: Kind,
        offer: &Offer,
        [exposed, original]: [&str; 2],
    ) -> bool {
        match scope {
            Scope::All | Scope::Server(_) => true,
            Scope::Profile(name) => self.find(name).is_some_and(|selection| {
                selection.takes(&offer.config.tags)
                    && selection.shows(kind, &offer.server, [exposed, original])
            }),
        }
    }

    fn find(&self, name: &ProfileName) -> Option<&Selection> {
        let mut all = self.all.iter();
        all.find(|(known, _)| known == name)
            .map(|(_, selection)| &**selection)
    }

    /// What each profile shows of `merged`, which was built from `offers`.
    pub(super) fn views(
        &self,
        merged: &Tables,
        offers: &[Offer],
        problems: &mut Vec<Problem>,
    ) -> foldhash::HashMap<ProfileName, ProfileView> {
        let mut views = foldhash::HashMap::default();
        for (name, selection) in &self.all {
            let cut = Cut {
                profile: name,
                selection,
                offers: offers
                    .iter()
                    .filter(|offer| selection.takes(&offer.config.tags))
                    .collect(),
            };
            let view = ProfileView {
                tables: cut.tables(merged, problems),
                selection: Arc::clone(selection),
            };
            views.insert(name.clone(), view);
        }
        views
    }
}

/// What one profile shows.
#[derive(Debug)]
pub(super) struct ProfileView {
    pub(super) tables: Tables,
    selection: Arc<Selection>,
}

impl ProfileView {
    /// Whether a resource of `site` may be read, listed or not.
    pub(super) fn shows_resource(&self, site: &Site, exposed: &str, original: &str) -> bool {
        self.selection.takes(&site.tags)
            && self
                .selection
                .shows(Kind::Resources, &site.server, [exposed, original])
    }
}

/// Which items a profile shows, and how.
#[derive(Debug)]
struct Selection {
    /// `None` shows all of a kind.
    globs: ByKind<Option<Vec<GlobMatcher>>>,
    tags: Option<Vec<String>>,
    rename: IndexMap<String, String>,
    describe: IndexMap<String, String>,
}

impl Selection {
    fn new(profile: &config::Profile) -> Self {
        let compile = |globs: &Option<Vec<Glob>>| {
            let globs = globs.as_ref()?;
            Some(globs.iter().map(matcher).collect::<Vec<_>>())
        };
        Self {
            globs: ByKind {
                tools: compile(&profile.tools),
                resources: compile(&profile.resources),
                templates: compile(&profile.resources),
                prompts: compile(&profile.prompts),
            },
            tags: profile.tags.clone(),
            rename: profile.rename.clone(),
            describe: profile.describe.clone(),
        }
    }

    fn takes(&self, tags: &[String]) -> bool {
        let wanted = self.tags.as_ref();
        wanted.is_none_or(|wanted| tags.iter().any(|tag| wanted.contains(tag)))
    }

    /// Whether a glob matches the exposed name, or the server's name and the original one.
    fn shows(&self, kind: Kind, server: &ServerName, [exposed, original]: [&str; 2]) -> bool {
        let Some(globs) = &self.globs[kind] else {
            return true;
        };
        if kind.has_uris() && spelling::strays(original) {
            return false;
        }
        let shows = |exposed: &str, original: &str| {
            let qualified = format!("{server}/{original}");
            let mut globs = globs.iter();
            globs.any(|glob| glob.is_match(exposed) || glob.is_match(&qualified))
        };
        let essence = |uri| spelling::essence(uri).filter(|_| kind.has_uris());
        let is_all = essence(original).is_none() && essence(exposed).is_none();
        let shows_essence = || {
            let part = |uri| essence(uri).unwrap_or(uri);
            shows(part(exposed), part(original))
        };
        shows(exposed, original) && (is_all || shows_essence())
    }

    fn is_unrestricted(&self) -> bool {
        Kind::ALL.iter().all(|kind| self.globs[*kind].is_none())
    }
}

/// `*` does not match `/`, wherever the glob was read.
fn matcher(glob: &Glob) -> GlobMatcher {
    let strict = GlobBuilder::new(glob.glob())
        .literal_separator(true)
        .build();
    strict.as_ref().unwrap_or(glob).compile_matcher()
}

/// One profile on its way to a view.
struct Cut<'a> {
    profile: &'a ProfileName,
    selection: &'a Selection,
    /// Those with a tag of the profile.
    offers: Vec<&'a Offer>,
}

impl Cut<'_> {
    fn tables(&self, merged: &Tables, problems: &mut Vec<Problem>) -> Tables {
        let servers: HashSet<&ServerName> = self.offers.iter().map(|o| &o.server).collect();
        let mut tables = Tables::default();
        for kind in Kind::ALL {
            let entries = merged.shelves[kind].entries().iter();
            let shown: Vec<&Entry> = entries
                .filter(|entry| servers.contains(&entry.server))
                .filter(|entry| {
                    let names = [&*entry.exposed, &*entry.original];
                    self.selection.shows(kind, &entry.server, names)
                })
                .collect();
            let mut entries = self.rename(kind, &shown, problems);
            entries.sort_by(|a, b| a.exposed.cmp(&b.exposed));
            tables.take(kind, entries, merged);
            tables.shelves[kind].freshness = merged_freshness(kind, self.offers.iter().copied());
        }
        tables.instructions = self.instructions(&tables);
        tables
    }

    /// Gives the entries their names here. What a rename collides with is left out: the operator
    /// chose the name, and a server must not be able to take it by listing another item of it.
    fn rename(&self, kind: Kind, shown: &[&Entry], problems: &mut Vec<Problem>) -> Vec<Entry> {
        let mut owners: HashMap<&str, &Entry> = HashMap::new();
        for entry in shown {
            if let Some(name) = self.alias(kind, entry) {
                let owner = owners.entry(name).or_insert(entry);
                if entry.exposed < owner.exposed {
                    *owner = entry;
                }
            }
        }
        let mut entries = Vec::with_capacity(shown.len());
        for entry in shown {
            let alias = self.alias(kind, entry);
            let name = alias.unwrap_or(&entry.exposed);
            match owners.get(name) {
                Some(owner) if owner.exposed != entry.exposed => problems.push(Problem {
                    server: entry.server.clone(),
                    kind: Some(kind),
                    cause: Cause::ProfileRenamedOver {
                        profile: self.profile.clone(),
                        original: entry.exposed.to_string(),
                        by: owner.exposed.to_string(),
                        name: name.to_owned(),
                    },
                }),
                Some(_) | None => entries.push(self.render(entry, alias)),
            }
        }
        entries
    }

    /// The name that the profile gives to a tool or prompt; the URI of a resource is its identity.
    fn alias(&self, kind: Kind, entry: &Entry) -> Option<&str> {
        let name = self.selection.rename.get(&*entry.exposed)?;
        (!kind.has_uris() && **name != *entry.exposed).then_some(name)
    }

    fn render(&self, entry: &Entry, alias: Option<&str>) -> Entry {
        let description = self.selection.describe.get(&*entry.exposed);
        let mut shown = entry.clone();
        if let Some(name) = alias {
            shown.exposed = name.into();
            shown.alias = shown.exposed.clone();
        }
        if alias.is_some() || description.is_some() {
            shown.item = with_members(&entry.item, alias, description.map(String::as_str));
        }
        shown
    }

    /// Those of the servers that put something into this view.
    fn instructions(&self, tables: &Tables) -> Instructions {
        let shown: HashSet<&ServerName> = Kind::ALL
            .iter()
            .flat_map(|kind| tables.shelves[*kind].entries())
            .map(|entry| &entry.server)
            .collect();
        let unrestricted = self.selection.is_unrestricted();
        let offers = self.offers.iter().copied();
        let offers = offers.filter(|offer| unrestricted || shown.contains(&offer.server));
        // What is cut was reported for the merged route.
        instructions::merge(offers, &mut Vec::new())
    }
}

impl Tables {
    /// Fills in `entries`, which were cut from `merged`.
    fn take(&mut self, kind: Kind, entries: Vec<Entry>, merged: &Tables) {
        let shelf = Shelf::of(kind, entries);
        for entry in shelf.entries() {
            match kind {
                Kind::Tools => {
                    if let Some(tool) = merged.tools.get(&entry.merged) {
                        let tool = Tool {
                            exposed: entry.exposed.clone(),
                            alias: entry.alias.clone(),
                            item: entry.item.clone(),
                            ..Tool::clone(tool)
                        };
                        self.tools.insert(entry.exposed.clone(), tool.into());
                    }
                }
                Kind::Prompts => {
                    if let Some(prompt) = merged.prompts.get(&entry.merged) {
                        let prompt = Prompt {
                            exposed: entry.exposed.clone(),
                            alias: entry.alias.clone(),
                            item: entry.item.clone(),
                            ..Prompt::clone(prompt)
                        };
                        self.prompts.insert(entry.exposed.clone(), prompt.into());
                    }
                }
                Kind::Resources | Kind::Templates => {}
            }
        }
        self.shelves[kind] = shelf;
    }
}

/// The item with another `name` and `description`. Repeated keys all change, so that no reader sees
/// another value than we do.
fn with_members(item: &Raw, name: Option<&str>, description: Option<&str>) -> Raw {
    let json = item.as_bytes();
    let mut patch = Patch::new(json);
    for (key, text) in [("name", name), ("description", description)] {
        let Some(text) = text else { continue };
        let quoted = Raw::string(text);
        let mut found = false;
        for member in json::members(json, 0).filter(|member| member.is(json, key)) {
            found = true;
            patch.replace(member.value, quoted.as_bytes().to_vec());
        }
        if !found {
            patch.insert_members(0, &format!("\"{key}\":{}", quoted.as_str()));
        }
    }
    patch.finish()
}
