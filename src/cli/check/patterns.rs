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

use super::super::{
    output::escape_terminal, qualified_names::QualifiedNames, suggest::did_you_mean,
};
use crate::{
    catalog::{
        Catalog, Kind, Prefixes, Profiles, ServerOffer,
        globs::{self, GlobTarget, GlobWidth, Globs, ItemForms, MatchForms, SpannedServers},
    },
    config::{
        Config, ItemRules, Naming, Notice, PolicyMode, Profile, Server, Terms, key_path,
        name_matcher,
    },
    names::{Scope, ServerName},
    store::StoredAgent,
};

const TOOLS: &[Kind] = &[Kind::Tools];
const PROMPTS: &[Kind] = &[Kind::Prompts];
const RESOURCES: &[Kind] = &[Kind::Resources, Kind::Templates];
/// What a profile can give another name.
const RENAMABLE: &[Kind] = &[Kind::Tools, Kind::Prompts];

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
    width: GlobWidth,
}

/// What the patterns of a list are about.
#[derive(Clone, Debug)]
struct PatternPlace {
    /// The server whose own names they match; `None`: those of merged routes and `server/name`.
    server: Option<ServerName>,
    kinds: &'static [Kind],
}

impl PatternPlace {
    fn on_routes(kinds: &'static [Kind]) -> Self {
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
    pub(super) fn with_stored_agents(mut self, stored: &[StoredAgent]) -> Self {
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
                    _ if list == "deny" => GlobWidth::Broad,
                    PolicyMode::Denylist => GlobWidth::Broad,
                    PolicyMode::All | PolicyMode::Allowlist | PolicyMode::None => GlobWidth::Strict,
                };
                let place = PatternPlace::on_routes(kinds);
                self.add_globs(globs, &format!("{at}.policy.{list}"), (&place, reading));
            }
        }
        for (index, rule) in terms.args.iter().enumerate() {
            let place = PatternPlace::on_routes(TOOLS);
            let at = format!("{at}.args[{index}].tools");
            self.add_globs(&rule.tools, &at, (&place, GlobWidth::Broad));
        }
    }

    fn add_profile(&mut self, profile: &Profile, at: &str) {
        for (list, globs, kinds) in [
            ("tools", &profile.tools, TOOLS),
            ("prompts", &profile.prompts, PROMPTS),
            ("resources", &profile.resources, RESOURCES),
        ] {
            let globs = globs.as_deref().unwrap_or_default();
            let place = PatternPlace::on_routes(kinds);
            self.add_globs(globs, &format!("{at}.{list}"), (&place, GlobWidth::Strict));
        }
        let rename = PatternPlace::on_routes(RENAMABLE);
        self.add_names(&profile.rename, &format!("{at}.rename"), &rename);
        let describe = PatternPlace::on_routes(&Kind::ALL);
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
            self.add_globs(&route.tools, &at, (&place(TOOLS), GlobWidth::Strict));
        }
    }

    fn add_rules(&mut self, rules: &ItemRules, at: &str, place: &PatternPlace) {
        let allow = rules.allow.as_deref().unwrap_or_default();
        self.add_globs(allow, &format!("{at}.allow"), (place, GlobWidth::Strict));
        self.add_globs(
            &rules.deny,
            &format!("{at}.deny"),
            (place, GlobWidth::Broad),
        );
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
            glob: Some(if place.kinds == RESOURCES {
                glob.compile_matcher()
            } else {
                name_matcher(glob)
            }),
            place: place.clone(),
            width: reading,
        }));
    }

    fn add_names<T>(&mut self, names: &IndexMap<String, T>, at: &str, place: &PatternPlace) {
        self.0.extend(names.keys().map(|name| ConfigPattern {
            at: key_path(at, name),
            text: name.clone(),
            glob: None,
            place: place.clone(),
            width: GlobWidth::Strict,
        }));
    }

    /// Warns of those that match names of several servers although they begin as those of some do: who
    /// reads them may take them for what they are not.
    pub(super) fn spanning_warnings(&self, config: &Config) -> Vec<Notice> {
        let prefixes = Prefixes::of(config);
        let named = |pattern: &&ConfigPattern| {
            let PatternPlace { server, kinds } = &pattern.place;
            pattern.glob.is_some() && server.is_none() && *kinds != RESOURCES
        };
        let spanning = self.0.iter().filter(named).filter_map(|pattern| {
            let ConfigPattern { at, text, .. } = pattern;
            let SpannedServers {
                intended: meant,
                servers,
            } = globs::spanned_servers(text, &prefixes)?;
            let servers = quoted_list(&servers);
            let message = format!("`{at}`: `{text}` matches names of several servers: {servers}");
            let help = match (meant, pattern.width) {
                (Some(meant), GlobWidth::Strict) => {
                    let meant = quoted_list(meant);
                    format!("it allows only those of {meant} (longest prefix); use `SERVER/...`")
                }
                (_, _) => "it applies to all of them; use `SERVER/...` to select one".to_owned(),
            };
            Some(Notice::warning(message, Some(help)))
        });
        spanning.collect()
    }

    /// Warns of those about a server that `config` does not have, whatever servers list.
    pub(super) fn unknown_server_warnings(&self, config: &Config) -> Vec<Notice> {
        let names = ServerItems::of(config, &[]);
        let unknown = self.0.iter().filter_map(|pattern| {
            let server = names.unknown_server(pattern)?;
            Some(names.unknown_server_notice(pattern, server))
        });
        unknown.collect()
    }

    /// Warns of those that match none of `names`; of those about the server `only`, if one is named.
    pub(super) fn warnings(&self, names: &ServerItems, only: Option<&ServerName>) -> Vec<Notice> {
        let (mut warnings, mut unknown) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for pattern in &self.0 {
            if only.is_some() && names.sole_server(pattern) != only {
                continue;
            }
            match names.evaluate(pattern) {
                PatternVerdict::Matches => {}
                PatternVerdict::NoMatch => {
                    let ConfigPattern { at, text, .. } = pattern;
                    let message = format!("`{at}`: `{text}` matches nothing");
                    warnings.push(Notice::warning(message, names.suggestion(pattern)));
                }
                PatternVerdict::UnknownServer(server) => {
                    warnings.push(names.unknown_server_notice(pattern, server));
                }
                PatternVerdict::Undetermined(servers) => {
                    unknown.entry(servers).or_default().push(&pattern.at);
                }
            }
        }
        warnings.extend(unknown.iter().map(|(servers, keys)| {
            let (servers, keys) = (quoted_list(servers), quoted_list(keys));
            let message = format!("cannot tell whether {keys} match anything");
            Notice::warning(
                message,
                Some(format!("not or only partly listed: {servers}")),
            )
        }));
        warnings
    }
}

fn quoted_list(names: &[impl std::fmt::Display]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// What is known of a pattern.
#[derive(Debug, Eq, PartialEq)]
enum PatternVerdict<'p> {
    /// It matches something, or may match what no server lists.
    Matches,
    NoMatch,
    /// It is about a server that there is none of.
    UnknownServer(&'p str),
    /// Nothing that is listed, but these servers are not.
    Undetermined(Vec<ServerName>),
}

/// What servers call their items.
#[derive(Debug)]
pub(super) struct ServerItems {
    items: HashSet<NamedPattern>,
    /// Every server of the config, and whether it is listed.
    servers: Vec<(ServerName, bool)>,
    /// Before which a `/` there need not be a server.
    qualified_names: QualifiedNames,
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
    fn item_forms(&self) -> ItemForms<'_> {
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
    pub(super) fn of(config: &Config, offers: &[ServerOffer]) -> Self {
        let is_listed = |server: &ServerName| offers.iter().any(|it| it.server == *server);
        let servers = config.servers.keys();
        let mut names = Self {
            items: HashSet::new(),
            servers: servers.map(|it| (it.clone(), is_listed(it))).collect(),
            qualified_names: QualifiedNames::of(config),
            prefixes: Arc::new(Prefixes::of(config)),
        };
        let profiles = Profiles::new(&config.profiles, Arc::clone(&names.prefixes));
        names.add(&config.naming, &profiles, offers);
        // With what rules of servers hide: those rules match something too, and so does a policy
        // that refuses the same once more.
        let open: Vec<ServerOffer> = offers.iter().map(ServerOffer::unfiltered).collect();
        names.add(&config.naming, &profiles, &open);
        names
    }

    fn add(&mut self, naming: &Naming, profiles: &Profiles, offers: &[ServerOffer]) {
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

    fn evaluate<'p>(&self, pattern: &'p ConfigPattern) -> PatternVerdict<'p> {
        let about = self.sole_server(pattern);
        let concerns = |server: &ServerName| about.is_none_or(|about| about == server);
        let globs = pattern.route_globs(&self.prefixes);
        let matches = |item: &NamedPattern| pattern.matches(item, globs.as_ref());
        if self.items_for(pattern).any(matches) || self.matches_all(pattern) {
            return PatternVerdict::Matches;
        }
        if let Some(server) = self.unknown_server(pattern) {
            return PatternVerdict::UnknownServer(server);
        }
        let unlisted = self.servers.iter().filter(|(_, is_listed)| !is_listed);
        let unlisted = unlisted.map(|(server, _)| server.clone());
        let unlisted: Vec<ServerName> = unlisted.filter(concerns).collect();
        if !unlisted.is_empty() {
            return PatternVerdict::Undetermined(unlisted);
        }
        // A server with templates has resources that it does not list.
        let mut items = self.items.iter();
        let has_templates = items.any(|it| it.kind == Kind::Templates && concerns(&it.server));
        if has_templates && pattern.may_match_uris() {
            return PatternVerdict::Matches;
        }
        PatternVerdict::NoMatch
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
    fn sole_server<'n>(&'n self, pattern: &'n ConfigPattern) -> Option<&'n ServerName> {
        if pattern.place.server.is_some() || pattern.glob.is_none() {
            return pattern.place.server.as_ref();
        }
        let (first, _) = pattern.text.split_once('/')?;
        let mut servers = self.servers.iter().map(|(server, _)| server);
        servers.find(|server| server.is_called(first))
    }

    /// The server that `pattern` is about, where the config has none of that name.
    fn unknown_server<'p>(&self, pattern: &'p ConfigPattern) -> Option<&'p str> {
        let PatternPlace { server, kinds } = &pattern.place;
        if server.is_some() || pattern.glob.is_none() {
            return None;
        }
        let (first, _) = pattern.text.split_once('/')?;
        let has = |kind| kinds.contains(&kind);
        let qualified = &self.qualified_names;
        let is_other = has(Kind::Resources) && qualified.exposes_original_uris()
            || (has(Kind::Tools) || has(Kind::Prompts))
                && (qualified.may_start_alias(first) || qualified.may_start_name(first));
        let is_name = ServerName::parse(first).is_ok() && !is_other;
        (is_name && self.sole_server(pattern).is_none()).then_some(first)
    }

    fn unknown_server_notice(&self, pattern: &ConfigPattern, server: &str) -> Notice {
        let ConfigPattern { at, text, .. } = pattern;
        let message = format!("`{at}`: `{text}` matches nothing");
        let servers = self.servers.iter().map(|(name, _)| [name.as_str()]);
        let near = did_you_mean(server, servers);
        Notice::warning(message, Some(format!("unknown server `{server}`{near}")))
    }

    /// Whether it stands for all there is, of all servers or one: nobody has misspelt a name there.
    fn matches_all(&self, pattern: &ConfigPattern) -> bool {
        let rest = match self.sole_server(pattern) {
            Some(server) => [server.as_str(), server.local()]
                .into_iter()
                .find_map(|name| pattern.text.strip_prefix(name)),
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
            let why = "use exposed names or `server/name`";
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
        ending.strip_prefix("; ").map(escape_terminal)
    }
}

impl ConfigPattern {
    /// The matcher of a glob over names of routes.
    fn route_globs(&self, prefixes: &Prefixes) -> Option<Globs<()>> {
        let glob = self.glob.as_ref().filter(|_| self.place.server.is_none())?;
        let globs = std::iter::once(((), glob.glob()));
        // What cannot be used is refused before anybody is asked what it matches.
        Globs::new(globs, GlobTarget::All, self.width, prefixes).ok()
    }

    /// Whether it matches `item`, which is of its kind and server; `globs` is its matcher where it is about
    /// names of routes.
    fn matches(&self, item: &NamedPattern, globs: Option<&Globs<()>>) -> bool {
        let is_uri = matches!(item.kind, Kind::Resources | Kind::Templates);
        match (&self.glob, globs) {
            (Some(_), Some(globs)) => match (self.width, is_uri) {
                (GlobWidth::Strict, false) => globs.matching_name(&item.item_forms()).is_some(),
                (GlobWidth::Strict, true) => globs.matching_uri(&item.item_forms()).is_some(),
                (GlobWidth::Broad, false) => {
                    globs.is_match(&MatchForms::for_name(&item.item_forms()))
                }
                (GlobWidth::Broad, true) => {
                    globs.is_match(&MatchForms::for_any_uri(&item.item_forms()))
                }
            },
            (Some(glob), None) => glob.is_match(&item.original),
            (None, _) if self.place.server.is_some() => self.text == item.original,
            (None, _) => [&item.exposed, &item.plain, &item.distinct].contains(&&self.text),
        }
    }

    /// Whether it is about resources, listed or not; a `deny` is about all kinds, and says so by a URI.
    fn may_match_uris(&self) -> bool {
        let kinds = self.place.kinds;
        let is_of_uris = kinds == RESOURCES || self.text.contains(':');
        is_of_uris && kinds.contains(&Kind::Resources) && self.glob.is_some()
    }
}

#[cfg(test)]
mod tests;
