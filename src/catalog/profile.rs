//! Profiles: named parts of the merged route, with names and descriptions of their own.
//!
//! Its route is cut from what the merged route lists, so a profile never shows what that hides. Built
//! with each snapshot; the text of items is spliced, never parsed and printed again.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use globset::Glob;
use indexmap::IndexMap;

use super::{
    ByKind, CatalogProblem, ConfiguredNames, Kind, ListCache, ListEntry, Prefixes, ProblemCause,
    Prompt, RouteTables, Scope, ServerOffer, Tool,
    globs::{GlobTarget, GlobWidth, Globs, GlobsTooLarge, ItemForms},
    instructions::{self, Instructions},
    merge::merged_freshness,
    resource_routes::ResourceSite,
    uri_variants,
    view::{ViewSelection, forms_of},
};
use crate::config;
use crate::mcp::json::{self, Patch, Raw};
use crate::names::{ProfileName, ServerName};

/// The profiles of a config, ready to match.
#[derive(Clone, Debug)]
pub struct Profiles {
    pub(super) all: Vec<(ProfileName, Arc<Selection>)>,
    pub(super) prefixes: Arc<Prefixes>,
    /// What the one view shows that they were asked about.
    pub(super) view: Option<Arc<ViewSelection>>,
}

impl Profiles {
    /// Compiles the profiles of a config that gives its servers `prefixes`. What
    /// [`check`](Self::check) refuses shows nothing.
    pub fn new(profiles: &IndexMap<ProfileName, config::Profile>, prefixes: Arc<Prefixes>) -> Self {
        let compile = |(name, profile): (&ProfileName, &config::Profile)| {
            let selection = Selection::new(profile, &prefixes);
            (name.clone(), Arc::new(selection))
        };
        Self {
            all: profiles.iter().map(compile).collect(),
            prefixes,
            view: None,
        }
    }

    /// None, for servers that have `prefixes`.
    pub fn empty(prefixes: Arc<Prefixes>) -> Self {
        Self {
            all: Vec::new(),
            prefixes,
            view: None,
        }
    }

    /// Whether the lists of `profiles` can be used.
    ///
    /// # Errors
    /// When one is too large to match.
    pub fn check(
        profiles: &IndexMap<ProfileName, config::Profile>,
        prefixes: &Prefixes,
    ) -> Result<(), GlobsTooLarge> {
        let mut lists = profiles.values().flat_map(kind_lists);
        lists.try_for_each(|(_, globs, over)| compile(globs, over, prefixes).map(|_| ()))
    }

    /// The prefixes of the servers that they are about.
    pub fn prefixes(&self) -> &Arc<Prefixes> {
        &self.prefixes
    }

    /// Their names, in the config's order.
    pub fn names(&self) -> impl Iterator<Item = &ProfileName> {
        self.all.iter().map(|(name, _)| name)
    }

    /// Whether there is one called `name`.
    pub fn has(&self, name: &ProfileName) -> bool {
        self.find(name).is_some()
    }

    /// Whether the route of `scope` may show an item of `offer` that has these names.
    pub(super) fn may_show(
        &self,
        scope: &Scope,
        kind: Kind,
        offer: &ServerOffer,
        (original, names): (&str, &ConfiguredNames),
    ) -> bool {
        match scope {
            Scope::All | Scope::Server(_) => true,
            Scope::Profile(name) => self.find(name).is_some_and(|selection| {
                selection.selects_tags(&offer.config.tags)
                    && selection.shows(kind, &offer.server, (original, names))
            }),
            Scope::View { id, .. } => {
                let view = self.view.as_ref().filter(|view| view.id == *id);
                view.is_some_and(|view| {
                    let server = (&offer.server, offer.config.tags.as_slice());
                    let forms = ItemForms {
                        server: &offer.server,
                        original,
                        plain: &names.plain,
                        distinct: &names.distinct,
                        alias: "",
                    };
                    let called = [&*names.plain, &*names.distinct];
                    view.shows(kind, server, (original, names))
                        && (kind != Kind::Tools || view.leaves_tool(&forms, called))
                })
            }
        }
    }

    /// Whether the route of `scope`, which is no server's own, may show anything of `server`, which has these tags.
    pub fn may_show_server(&self, scope: &Scope, (server, tags): (&ServerName, &[String])) -> bool {
        match scope {
            Scope::All => true,
            Scope::Profile(name) => self.find(name).is_some_and(|it| it.selects_tags(tags)),
            Scope::Server(own) => own == server,
            Scope::View { id, .. } => {
                let view = self.view.as_ref().filter(|view| view.id == *id);
                view.is_some_and(|view| view.selects_server(server, tags))
            }
        }
    }

    pub(super) fn find(&self, name: &ProfileName) -> Option<&Arc<Selection>> {
        let mut all = self.all.iter();
        all.find(|(known, _)| known == name)
            .map(|(_, selection)| selection)
    }

    /// What each profile shows of `merged`, which was built from `offers`.
    pub(super) fn build_routes(
        &self,
        merged: &RouteTables,
        offers: &[ServerOffer],
        problems: &mut Vec<CatalogProblem>,
    ) -> foldhash::HashMap<ProfileName, ProfileRoute> {
        let mut routes = foldhash::HashMap::default();
        for (name, selection) in &self.all {
            let cut = ProfileCut {
                profile: Some(name),
                selection,
                prefixes: &self.prefixes,
                view: None,
                selected_offers: offers
                    .iter()
                    .filter(|offer| selection.selects_tags(&offer.config.tags))
                    .collect(),
            };
            let route = ProfileRoute {
                tables: cut.tables(merged, problems),
                selection: Arc::clone(selection),
            };
            routes.insert(name.clone(), route);
        }
        routes
    }
}

/// What one profile shows.
#[derive(Debug)]
pub(super) struct ProfileRoute {
    pub(super) tables: RouteTables,
    selection: Arc<Selection>,
}

impl ProfileRoute {
    /// Whether a resource of `site` may be read, listed or not.
    pub(super) fn shows_resource(&self, site: &ResourceSite, original: &str) -> bool {
        let kind = Kind::Resources;
        self.selection.selects_tags(&site.tags)
            && self
                .selection
                .shows(kind, &site.server, (original, &site.names(kind, original)))
    }
}

/// Which items a profile shows, and how. By default it shows none.
#[derive(Debug)]
pub(super) struct Selection {
    /// `None` shows all of a kind.
    globs: ByKind<Option<Globs<()>>>,
    tags: Option<Vec<String>>,
    rename: IndexMap<String, String>,
    describe: IndexMap<String, String>,
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            globs: ByKind::default(),
            tags: Some(Vec::new()),
            rename: IndexMap::new(),
            describe: IndexMap::new(),
        }
    }
}

impl Selection {
    fn new(profile: &config::Profile, prefixes: &Prefixes) -> Self {
        let mut selection = Self {
            globs: ByKind::default(),
            tags: profile.tags.clone(),
            rename: profile.rename.clone(),
            describe: profile.describe.clone(),
        };
        for (kind, globs, over) in kind_lists(profile) {
            let globs = compile(globs, over, prefixes).unwrap_or(Globs::empty());
            selection.globs[kind] = Some(globs);
        }
        selection
    }

    pub(super) fn selects_tags(&self, tags: &[String]) -> bool {
        let wanted = self.tags.as_ref();
        wanted.is_none_or(|wanted| tags.iter().any(|tag| wanted.contains(tag)))
    }

    /// Whether a glob names the item.
    pub(super) fn shows(
        &self,
        kind: Kind,
        server: &ServerName,
        (original, names): (&str, &ConfiguredNames),
    ) -> bool {
        let Some(globs) = &self.globs[kind] else {
            return true;
        };
        let known = ItemForms {
            server,
            original,
            plain: &names.plain,
            distinct: &names.distinct,
            alias: "",
        };
        if kind.has_uris() {
            !uri_variants::is_ambiguous(original) && globs.matching_uri(&known).is_some()
        } else {
            globs.matching_name(&known).is_some()
        }
    }

    fn is_unrestricted(&self) -> bool {
        Kind::ALL.iter().all(|kind| self.globs[*kind].is_none())
    }
}

/// The lists that `profile` has.
fn kind_lists(profile: &config::Profile) -> impl Iterator<Item = (Kind, &[Glob], GlobTarget)> {
    let lists = [
        (Kind::Tools, &profile.tools, GlobTarget::Names),
        (Kind::Resources, &profile.resources, GlobTarget::Uris),
        (Kind::Templates, &profile.resources, GlobTarget::Uris),
        (Kind::Prompts, &profile.prompts, GlobTarget::Names),
    ];
    let lists = lists.into_iter();
    lists.filter_map(|(kind, globs, over)| Some((kind, globs.as_deref()?, over)))
}

fn compile(
    globs: &[Glob],
    over: GlobTarget,
    prefixes: &Prefixes,
) -> Result<Globs<()>, GlobsTooLarge> {
    let globs = globs.iter().map(|glob| ((), glob));
    Globs::new(globs, over, GlobWidth::Strict, prefixes)
}

/// One profile on its way to a route.
pub(super) struct ProfileCut<'a> {
    /// Where problems are told.
    pub(super) profile: Option<&'a ProfileName>,
    pub(super) selection: &'a Selection,
    pub(super) prefixes: &'a Prefixes,
    /// Those with a tag of the profile, or that the view adds.
    pub(super) selected_offers: Vec<&'a ServerOffer>,
    /// The view that changes it.
    pub(super) view: Option<&'a ViewSelection>,
}

impl ProfileCut<'_> {
    pub(super) fn tables(
        &self,
        merged: &RouteTables,
        problems: &mut Vec<CatalogProblem>,
    ) -> RouteTables {
        let servers: HashSet<&ServerName> =
            self.selected_offers.iter().map(|o| &o.server).collect();
        let mut tables = RouteTables::default();
        for kind in Kind::ALL {
            let entries = merged.lists[kind].entries().iter();
            let shown: Vec<&ListEntry> = entries
                .filter(|entry| servers.contains(&entry.server))
                .filter(|entry| {
                    let names = (&*entry.original, &entry.names);
                    self.is_added(&entry.server) || self.selection.shows(kind, &entry.server, names)
                })
                .collect();
            let mut entries = self.apply_renames(kind, &shown, problems);
            if let (Kind::Tools, Some(view)) = (kind, self.view) {
                entries.retain(|entry| {
                    view.leaves_tool(&forms_of(entry), [&*entry.exposed, &*entry.merged])
                });
            }
            entries.sort_by(|a, b| a.exposed.cmp(&b.exposed));
            tables.set_entries(kind, entries, merged);
            tables.lists[kind].freshness =
                merged_freshness(kind, self.selected_offers.iter().copied());
        }
        tables.instructions = self.instructions(&tables);
        tables
    }

    /// Gives the entries their names here. What a rename collides with is left out: the operator
    /// chose the name, and a server must not be able to take it by listing another item of it. Nor may
    /// it by listing an item that the same rename is about: then neither has the name.
    fn apply_renames(
        &self,
        kind: Kind,
        shown: &[&ListEntry],
        problems: &mut Vec<CatalogProblem>,
    ) -> Vec<ListEntry> {
        let mut owners: HashMap<&str, (&str, Option<&ListEntry>)> = HashMap::new();
        for entry in shown.iter().copied() {
            if let Some((key, name)) = self.alias(kind, entry) {
                let (known, owner) = owners.entry(name).or_insert((key, Some(entry)));
                if *known == key {
                    owner.take_if(|owner| owner.exposed != entry.exposed);
                } else if owner.is_none_or(|owner| entry.exposed < owner.exposed) {
                    (*known, *owner) = (key, Some(entry));
                }
            }
        }
        let owner_of = |name: &str| owners.get(name).and_then(|(_, owner)| *owner);
        let mut entries = Vec::with_capacity(shown.len());
        for entry in shown.iter().copied() {
            let alias = self.alias(kind, entry).map(|(_, name)| name);
            let is_renamed = alias.is_some_and(|name| owner_of(name).is_some());
            let name = alias.filter(|_| is_renamed).unwrap_or(&entry.exposed);
            match owner_of(name) {
                Some(owner) if owner.exposed != entry.exposed => {
                    problems.extend(self.profile.map(|profile| CatalogProblem {
                        server: entry.server.clone(),
                        kind: Some(kind),
                        cause: ProblemCause::ProfileRenamedOver {
                            profile: profile.clone(),
                            original: entry.exposed.to_string(),
                            by: owner.exposed.to_string(),
                            name: name.to_owned(),
                        },
                    }));
                }
                Some(_) | None => {
                    entries.push(self.render((kind, entry), alias, is_renamed));
                }
            }
        }
        entries
    }

    /// The name that the profile gives to a tool or prompt, behind the name that it says so of; the URI of a
    /// resource is its identity.
    fn alias(&self, kind: Kind, entry: &ListEntry) -> Option<(&str, &str)> {
        let (key, name) = self.override_for(&self.selection.rename, (kind, entry))?;
        (!kind.has_uris() && *name != *entry.exposed).then_some((key, name))
    }

    /// What `table` says of an entry, by a name that the config gives it: one that begins with the
    /// prefix of another server is of an item there.
    fn override_for<'t>(
        &self,
        table: &'t IndexMap<String, String>,
        (kind, entry): (Kind, &ListEntry),
    ) -> Option<(&'t str, &'t str)> {
        let names = [&entry.names.plain, &entry.names.distinct];
        let mut own = names.into_iter().filter(|name| {
            let owners = self.prefixes.matching_servers(name, name, true);
            kind.has_uris() || owners.is_none_or(|owners| owners.contains(&entry.server))
        });
        let written = own.find_map(|name| table.get_key_value(&**name));
        written.map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// The entry as it is listed here. Rules know it by its alias whether it `is_renamed` or not.
    fn render(&self, item: (Kind, &ListEntry), alias: Option<&str>, is_renamed: bool) -> ListEntry {
        let (_, entry) = item;
        let description = self.override_for(&self.selection.describe, item);
        let description = description.map(|(_, text)| text);
        let mut shown = entry.clone();
        shown.alias = alias.unwrap_or_default().into();
        let alias = alias.filter(|_| is_renamed);
        if alias.is_some() {
            shown.exposed = shown.alias.clone();
        }
        if alias.is_some() || description.is_some() {
            shown.item = with_members(&entry.item, alias, description);
        }
        shown
    }

    /// Whether the view shows everything of `server`.
    fn is_added(&self, server: &ServerName) -> bool {
        self.view.is_some_and(|view| view.shows_all_of(server))
    }

    /// Those of the servers that put something into this route.
    fn instructions(&self, tables: &RouteTables) -> Instructions {
        let shown: HashSet<&ServerName> = Kind::ALL
            .iter()
            .flat_map(|kind| tables.lists[*kind].entries())
            .map(|entry| &entry.server)
            .collect();
        let unrestricted = self.selection.is_unrestricted();
        let offers = self.selected_offers.iter().copied();
        let offers = offers.filter(|offer| {
            unrestricted || shown.contains(&offer.server) || self.is_added(&offer.server)
        });
        // What is cut was reported for the merged route.
        instructions::merge(offers, &mut Vec::new())
    }
}

impl RouteTables {
    /// Fills in `entries`, which were cut from `merged`.
    fn set_entries(&mut self, kind: Kind, entries: Vec<ListEntry>, merged: &RouteTables) {
        let list = ListCache::of(kind, entries);
        for entry in list.entries() {
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
        self.lists[kind] = list;
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
        for member in json::members(json, 0).filter(|member| member.matches(json, key)) {
            found = true;
            patch.replace(member.value, quoted.as_bytes().to_vec());
        }
        if !found {
            patch.insert_members(0, &format!("\"{key}\":{}", quoted.as_str()));
        }
    }
    patch.finish()
}
