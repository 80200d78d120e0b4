//! Patterns of a config that match nothing: a misspelt `deny` protects nobody, and no call says so.
//!
//! [`ConfigPatterns`] are what a config and the agents of the store have, each with its key; [`ServerItems`] what servers call their items, with
//! those that rules of the config hide. Pure. What servers list only for clients that can be asked
//! something is not among the names.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use globset::{Glob, GlobMatcher};
use indexmap::IndexMap;

use super::super::{output::harmless, qualified_names::Slashes, suggest::did_you_mean};
use crate::{
    catalog::{
        Catalog, Kind, Offer, Prefixes, Profiles,
        globs::{self, Forms, GlobWidth, Globs, ItemForms, Over, Spanned},
    },
    config::{Config, ItemRules, Naming, Notice, PolicyMode, Profile, Server, Terms, key_path},
    names::{Scope, ServerName},
    store::StoredAgent,
};

const TOOLS: &[Kind] = &[Kind::Tools];
const PROMPTS: &[Kind] = &[Kind::Prompts];
const RESOURCES: &[Kind] = &[Kind::Resources, Kind::Templates];
/// What a profile can give another name.
const NAMED: &[Kind] = &[Kind::Tools, Kind::Prompts];

/// Every pattern of a config.
#[derive(Debug, Default)]
pub(super) struct ConfigPatterns(Vec<ConfigPattern>);

/// A glob or a name that is to match items.
#[derive(Clone, Debug)]
struct ConfigPattern {
    /// The key of the config that it stands under.
    at: String,
    text: String,
    /// `None`: it is a name.
    glob: Option<GlobMatcher>,
    place: PatternPlace,
    reading: GlobWidth,
}

/// What the patterns of a list are about.
#[derive(Clone, Debug)]
struct PatternPlace {
    /// The server whose own names they match; `None`: those of merged routes and `server/name`.
    server: Option<ServerName>,
    kinds: &'static [Kind],
}

impl PatternPlace {
    fn routes(kinds: &'static [Kind]) -> Self {
        let server = None;
        Self { server, kinds }
    }
}

impl ConfigPatterns {
    /// The patterns of `config`, in its order. Methods of vendors are left out, since no server lists
    /// them, and so are the rules of disabled servers.
    pub(super) fn of(config: &Config) -> Self {
        let mut all = Self::default();
        all.add_terms(&config.governance.terms, "governance");
        for (name, agent) in &config.agents {
            all.add_terms(&agent.terms, &key_path("agents", name));
        }
        for (name, profile) in &config.profiles {
            all.add_profile(profile, &key_path("profiles", name.as_str()));
        }
        for (name, server) in config.servers.iter().filter(|(_, server)| server.enabled) {
            all.add_server(server, name);
        }
        all
    }

    /// With those of agents of the store, each under the key that it would have in a config.
    pub(super) fn and_of(mut self, stored: &[StoredAgent]) -> Self {
        for agent in stored {
            let key = key_path("agents", &agent.name);
            self.add_terms(&agent.terms, &format!("store: {key}"));
        }
        self
    }

    fn add_terms(&mut self, terms: &Terms, at: &str) {
        if let Some(policy) = &terms.policy {
            for (list, globs, kinds) in [
                ("tools", &policy.tools, TOOLS),
                ("prompts", &policy.prompts, PROMPTS),
                ("resources", &policy.resources, RESOURCES),
                ("deny", &policy.deny, &Kind::ALL[..]),
            ] {
                let reading = match policy.mode {
                    _ if list == "deny" => GlobWidth::Wide,
                    PolicyMode::Denylist => GlobWidth::Wide,
                    PolicyMode::All | PolicyMode::Allowlist | PolicyMode::None => GlobWidth::Narrow,
                };
                let place = PatternPlace::routes(kinds);
                self.add_globs(globs, &format!("{at}.policy.{list}"), (&place, reading));
            }
        }
        for (index, rule) in terms.args.iter().enumerate() {
            let place = PatternPlace::routes(TOOLS);
            let at = format!("{at}.args[{index}].tools");
            self.add_globs(&rule.tools, &at, (&place, GlobWidth::Wide));
        }
    }

    fn add_profile(&mut self, profile: &Profile, at: &str) {
        for (list, globs, kinds) in [
            ("tools", &profile.tools, TOOLS),
            ("prompts", &profile.prompts, PROMPTS),
            ("resources", &profile.resources, RESOURCES),
        ] {
            let globs = globs.as_deref().unwrap_or_default();
            let place = PatternPlace::routes(kinds);
            self.add_globs(globs, &format!("{at}.{list}"), (&place, GlobWidth::Narrow));
        }
        let rename = PatternPlace::routes(NAMED);
        self.add_names(&profile.rename, &format!("{at}.rename"), &rename);
        let describe = PatternPlace::routes(&Kind::ALL);
        self.add_names(&profile.describe, &format!("{at}.describe"), &describe);
        self.add_terms(&profile.terms, at);
    }

    fn add_server(&mut self, server: &Server, name: &ServerName) {
        let at = key_path("servers", name.as_str());
        let place = |kinds| PatternPlace {
            server: Some(name.clone()),
            kinds,
        };
        for (key, rules, kinds) in [
            ("tools", &server.tools, TOOLS),
            ("resources", &server.resources, RESOURCES),
            ("prompts", &server.prompts, PROMPTS),
        ] {
            self.add_rules(rules, &format!("{at}.{key}"), &place(kinds));
        }
        for (index, route) in server.route.iter().enumerate() {
            let at = format!("{at}.route[{index}].tools");
            self.add_globs(&route.tools, &at, (&place(TOOLS), GlobWidth::Narrow));
        }
    }

    fn add_rules(&mut self, rules: &ItemRules, at: &str, place: &PatternPlace) {
        let allow = rules.allow.as_deref().unwrap_or_default();
        self.add_globs(allow, &format!("{at}.allow"), (place, GlobWidth::Narrow));
        self.add_globs(&rules.deny, &format!("{at}.deny"), (place, GlobWidth::Wide));
        self.add_names(&rules.rename, &format!("{at}.rename"), place);
        self.add_names(&rules.describe, &format!("{at}.describe"), place);
        self.add_names(&rules.price, &format!("{at}.price"), place);
        self.add_names(&rules.timeout, &format!("{at}.timeout"), place);
    }

    fn add_globs(
        &mut self,
        globs: &[Glob],
        at: &str,
        (place, reading): (&PatternPlace, GlobWidth),
    ) {
        let globs = globs.iter().enumerate();
        self.0.extend(globs.map(|(index, glob)| ConfigPattern {
            at: format!("{at}[{index}]"),
            text: glob.glob().to_owned(),
            glob: Some(glob.compile_matcher()),
            place: place.clone(),
            reading,
        }));
    }

    fn add_names<T>(&mut self, names: &IndexMap<String, T>, at: &str, place: &PatternPlace) {
        self.0.extend(names.keys().map(|name| ConfigPattern {
            at: key_path(at, name),
            text: name.clone(),
            glob: None,
            place: place.clone(),
            reading: GlobWidth::Narrow,
        }));
    }

    /// Warns of those that match names of several servers although they begin as those of some do: who
    /// reads them may take them for what they are not.
    pub(super) fn spanning(&self, config: &Config) -> Vec<Notice> {
        let prefixes = Prefixes::of(config);
        let named = |pattern: &&ConfigPattern| {
            let PatternPlace { server, kinds } = &pattern.place;
            pattern.glob.is_some() && server.is_none() && *kinds != RESOURCES
        };
        let spanning = self.0.iter().filter(named).filter_map(|pattern| {
            let ConfigPattern { at, text, .. } = pattern;
            let Spanned { meant, servers } = globs::spanned(text, &prefixes)?;
            let servers = quoted(&servers);
            let message = format!("`{at}` spans servers: `{text}` matches names of {servers}");
            let help = match (meant, pattern.reading) {
                (Some(meant), GlobWidth::Narrow) => {
                    let meant = quoted(meant);
                    format!("it allows those of {meant} alone, by the longest prefix; write `SERVER/...`")
                }
                (_, _) => "it is about all of them; write `SERVER/...` to say which".to_owned(),
            };
            Some(Notice::warning(message, Some(help)))
        });
        spanning.collect()
    }

    /// Warns of those that match none of `names`; of those about the server `only`, if one is named.
    pub(super) fn warnings(&self, names: &ServerItems, only: Option<&ServerName>) -> Vec<Notice> {
        let (mut warnings, mut unknown) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for pattern in &self.0 {
            if only.is_some() && names.server_in(pattern) != only {
                continue;
            }
            match names.judge(pattern) {
                PatternVerdict::Something => {}
                PatternVerdict::Nothing => {
                    let ConfigPattern { at, text, .. } = pattern;
                    let message = format!("`{at}` matches nothing that servers have: `{text}`");
                    warnings.push(Notice::warning(message, names.suggestion(pattern)));
                }
                PatternVerdict::NoServer(server) => {
                    let ConfigPattern { at, text, .. } = pattern;
                    let message = format!("`{at}` matches nothing that servers have: `{text}`");
                    let servers = names.servers.iter().map(|(name, _)| [name.as_str()]);
                    let near = did_you_mean(server, servers);
                    let why = format!("no server is called `{server}`{near}");
                    warnings.push(Notice::warning(message, Some(why)));
                }
                PatternVerdict::Unknown(servers) => {
                    unknown.entry(servers).or_default().push(&pattern.at);
                }
            }
        }
        warnings.extend(unknown.iter().map(|(servers, keys)| {
            let (servers, keys) = (quoted(servers), quoted(keys));
            let message = format!("it is unknown whether anything matches {keys}");
            Notice::warning(
                message,
                Some(format!("not listed, or not in full: {servers}")),
            )
        }));
        warnings
    }
}

fn quoted(names: &[impl std::fmt::Display]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// What is known of a pattern.
#[derive(Debug, Eq, PartialEq)]
enum PatternVerdict<'p> {
    /// It matches something, or may match what no server lists.
    Something,
    Nothing,
    /// It is about a server that there is none of.
    NoServer(&'p str),
    /// Nothing that is listed, but these servers are not.
    Unknown(Vec<ServerName>),
}

/// What servers call their items.
#[derive(Debug)]
pub(super) struct ServerItems {
    items: HashSet<NamedPattern>,
    /// Every server of the config, and whether it is listed.
    servers: Vec<(ServerName, bool)>,
    /// Before which a `/` there need not be a server.
    slashes: Slashes,
    prefixes: Arc<Prefixes>,
}

#[derive(Debug, Eq, Hash, PartialEq)]
struct NamedPattern {
    server: ServerName,
    kind: Kind,
    original: String,
    qualified: String,
    /// On merged routes; empty where these do not list it.
    exposed: String,
    /// What the config makes of its name.
    plain: String,
    /// The other of those names; may be empty.
    distinct: String,
    /// In a profile; empty where none renames it.
    alias: String,
}

impl NamedPattern {
    fn known(&self) -> ItemForms<'_> {
        ItemForms {
            server: &self.server,
            original: &self.original,
            plain: &self.plain,
            distinct: &self.distinct,
            alias: &self.alias,
        }
    }
}

impl ServerItems {
    /// The names of what `offers` have, which were made from `config`.
    pub(super) fn of(config: &Config, offers: &[Offer]) -> Self {
        let is_listed = |server: &ServerName| offers.iter().any(|it| it.server == *server);
        let servers = config.servers.keys();
        let mut names = Self {
            items: HashSet::new(),
            servers: servers.map(|it| (it.clone(), is_listed(it))).collect(),
            slashes: Slashes::of(config),
            prefixes: Arc::new(Prefixes::of(config)),
        };
        let profiles = Profiles::new(&config.profiles, Arc::clone(&names.prefixes));
        names.add(&config.naming, &profiles, offers);
        // With what rules of servers hide: those rules match something too, and so does a policy
        // that refuses the same once more.
        let open: Vec<Offer> = offers.iter().map(without_filters).collect();
        names.add(&config.naming, &profiles, &open);
        names
    }

    fn add(&mut self, naming: &Naming, profiles: &Profiles, offers: &[Offer]) {
        let catalog = Catalog::build_with(naming, profiles, offers);
        let servers = offers
            .iter()
            .map(|offer| Scope::Server(offer.server.clone()));
        let views = profiles.names().cloned().map(Scope::Profile);
        for scope in servers.chain(views) {
            for kind in Kind::ALL {
                let entries = catalog.list(&scope, kind).entries();
                self.items.extend(entries.iter().map(|entry| NamedPattern {
                    server: entry.server.clone(),
                    kind,
                    original: entry.original.to_string(),
                    qualified: format!("{}/{}", entry.server, entry.original),
                    exposed: entry.merged.to_string(),
                    plain: entry.names.plain.to_string(),
                    distinct: entry.names.distinct.to_string(),
                    alias: entry.alias.to_string(),
                }));
            }
        }
    }

    fn judge<'p>(&self, pattern: &'p ConfigPattern) -> PatternVerdict<'p> {
        let about = self.server_in(pattern);
        let concerns = |server: &ServerName| about.is_none_or(|about| about == server);
        let globs = pattern.of_routes(&self.prefixes);
        let matches = |item: &NamedPattern| pattern.matches(item, globs.as_ref());
        if self.items_for(pattern).any(matches) || self.means_all(pattern) {
            return PatternVerdict::Something;
        }
        if let Some(server) = self.server_of_none(pattern) {
            return PatternVerdict::NoServer(server);
        }
        let unlisted = self.servers.iter().filter(|(_, is_listed)| !is_listed);
        let unlisted = unlisted.map(|(server, _)| server.clone());
        let unlisted: Vec<ServerName> = unlisted.filter(concerns).collect();
        if !unlisted.is_empty() {
            return PatternVerdict::Unknown(unlisted);
        }
        // A server with templates has resources that it does not list.
        let mut items = self.items.iter();
        let has_templates = items.any(|it| it.kind == Kind::Templates && concerns(&it.server));
        if has_templates && pattern.may_be_of_uris() {
            return PatternVerdict::Something;
        }
        PatternVerdict::Nothing
    }

    /// The items that `pattern` is about.
    fn items_for(&self, pattern: &ConfigPattern) -> impl Iterator<Item = &NamedPattern> {
        let PatternPlace { server, kinds } = &pattern.place;
        let items = self.items.iter();
        items.filter(move |item| {
            kinds.contains(&item.kind) && server.as_ref().is_none_or(|it| *it == item.server)
        })
    }

    /// The one server that `pattern` is about.
    fn server_in<'n>(&'n self, pattern: &'n ConfigPattern) -> Option<&'n ServerName> {
        if pattern.place.server.is_some() || pattern.glob.is_none() {
            return pattern.place.server.as_ref();
        }
        let (first, _) = pattern.text.split_once('/')?;
        let mut servers = self.servers.iter().map(|(server, _)| server);
        servers.find(|server| server.as_str() == first)
    }

    /// The server that `pattern` is about, where the config has none of that name.
    fn server_of_none<'p>(&self, pattern: &'p ConfigPattern) -> Option<&'p str> {
        let PatternPlace { server, kinds } = &pattern.place;
        if server.is_some() || pattern.glob.is_none() {
            return None;
        }
        let (first, _) = pattern.text.split_once('/')?;
        let has = |kind| kinds.contains(&kind);
        let slashes = &self.slashes;
        let is_other = has(Kind::Resources) && slashes.begin_uris()
            || (has(Kind::Tools) || has(Kind::Prompts))
                && (slashes.begin_alias(first) || slashes.begin_name(first));
        let is_name = ServerName::parse(first).is_ok() && !is_other;
        (is_name && self.server_in(pattern).is_none()).then_some(first)
    }

    /// Whether it stands for all there is, of all servers or one: nobody has misspelt a name there.
    fn means_all(&self, pattern: &ConfigPattern) -> bool {
        let rest = match self.server_in(pattern) {
            Some(server) => pattern.text.strip_prefix(server.as_str()),
            None => None,
        };
        let rest = rest.unwrap_or(&pattern.text);
        rest.contains('*') && rest.bytes().all(|byte| matches!(byte, b'*' | b'/'))
    }

    /// What may have been meant.
    fn suggestion(&self, pattern: &ConfigPattern) -> Option<String> {
        let ConfigPattern { text, place, .. } = pattern;
        let is_of_routes = place.server.is_none();
        let mut items = self.items_for(pattern);
        if let Some(glob) = &pattern.glob
            && is_of_routes
            && items.any(|item| glob.is_match(&item.original))
        {
            let why = "names are exposed ones or `server/name` here";
            return Some(format!("{why}: write `*/{text}`"));
        }
        let known = self.items_for(pattern).map(|item| {
            let [own, whole, shown] = [&item.original, &item.qualified, &item.exposed];
            let ways = match (is_of_routes, &pattern.glob) {
                (false, _) => [own, whole, shown],
                (true, Some(_)) => [whole, shown, own],
                (true, None) => [shown, whole, own],
            };
            ways.map(String::as_str)
        });
        let ending = did_you_mean(text, known);
        ending.strip_prefix("; ").map(harmless)
    }
}

impl ConfigPattern {
    /// The matcher of a glob over names of routes.
    fn of_routes(&self, prefixes: &Prefixes) -> Option<Globs<()>> {
        let glob = self.glob.as_ref().filter(|_| self.place.server.is_none())?;
        let globs = std::iter::once(((), glob.glob()));
        // What cannot be used is refused before anybody is asked what it matches.
        Globs::new(globs, Over::All, self.reading, prefixes).ok()
    }

    /// Whether it matches `item`, which is of its kind and server; `globs` is its matcher where it is about
    /// names of routes.
    fn matches(&self, item: &NamedPattern, globs: Option<&Globs<()>>) -> bool {
        let is_uri = matches!(item.kind, Kind::Resources | Kind::Templates);
        match (&self.glob, globs) {
            (Some(_), Some(globs)) => match (self.reading, is_uri) {
                (GlobWidth::Narrow, false) => globs.allowing(&item.known()).is_some(),
                (GlobWidth::Narrow, true) => globs.allowing_uri(&item.known()).is_some(),
                (GlobWidth::Wide, false) => globs.is_match(&Forms::of_name(&item.known())),
                (GlobWidth::Wide, true) => globs.is_match(&Forms::of_any_uri(&item.known())),
            },
            (Some(glob), None) => glob.is_match(&item.original),
            (None, _) if self.place.server.is_some() => self.text == item.original,
            (None, _) => [&item.exposed, &item.plain, &item.distinct].contains(&&self.text),
        }
    }

    /// Whether it is about resources, listed or not; a `deny` is about all kinds, and says so by a URI.
    fn may_be_of_uris(&self) -> bool {
        let kinds = self.place.kinds;
        let is_of_uris = kinds == RESOURCES || self.text.contains(':');
        is_of_uris && kinds.contains(&Kind::Resources) && self.glob.is_some()
    }
}

/// The offer with all that its server listed.
fn without_filters(offer: &Offer) -> Offer {
    let mut config = Server::clone(&offer.config);
    for rules in [
        &mut config.tools,
        &mut config.resources,
        &mut config.prompts,
    ] {
        rules.allow = None;
        rules.deny.clear();
    }
    Offer {
        config: config.into(),
        ..offer.clone()
    }
}

#[cfg(test)]
mod tests;
