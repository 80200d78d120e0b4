//! Whose a name of merged routes is, by what the config says alone: rules must not mean something else
//! because of what a server lists.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Kind,
    naming::{self, NameTemplate},
    uri_map::UriMap,
};
use crate::config::{Config, Naming, Server};
use crate::names::{OwnerSet, ServerName, uri_prefix};

/// The names that the config gives an item on merged routes, whatever any server lists. Rules know it by
/// both, on every route.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ConfiguredNames {
    /// As the template or the prefix of URIs makes it; a method of a vendor as it is.
    pub plain: Arc<str>,
    /// As it is exposed where that is too long, or another's as well; empty where it never is.
    pub distinct: Arc<str>,
}

/// What stands before and after the item in the names of a server.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Affix {
    pub(super) before: String,
    pub(super) after: String,
}

impl Affix {
    pub(super) fn len(&self) -> usize {
        self.before.len() + self.after.len()
    }

    /// Whether something is between the two in `name`.
    fn surrounds(&self, name: &str) -> bool {
        name.len() > self.len() && name.starts_with(&self.before) && name.ends_with(&self.after)
    }
}

/// The prefixes that a config gives its servers, enabled or not.
#[derive(Debug)]
pub struct Prefixes {
    template: NameTemplate,
    length_max: usize,
    namespaces_resources: bool,
    /// Each once, the longest first, with the servers that have it.
    affixes: Vec<(Affix, Vec<ServerName>)>,
}

impl Prefixes {
    /// Those of `config`.
    pub fn of(config: &Config) -> Self {
        Self::new(&config.naming, &config.servers)
    }

    /// Those that `naming` gives `servers`.
    pub fn new<'c>(
        naming: &Naming,
        servers: impl IntoIterator<Item = (&'c ServerName, &'c Server)>,
    ) -> Self {
        let template = NameTemplate::parse(naming);
        let mut affixes: BTreeMap<Affix, Vec<ServerName>> = BTreeMap::new();
        for (name, server) in servers {
            let affix = template.affix_of(namespace(name, server));
            affixes.entry(affix).or_default().push(name.clone());
        }
        let mut affixes: Vec<_> = affixes.into_iter().collect();
        affixes.sort_by_key(|(affix, _)| std::cmp::Reverse(affix.len()));
        Self {
            template,
            length_max: naming.max_length,
            namespaces_resources: naming.namespace_resources,
            affixes,
        }
    }

    /// The same without the servers that whoever sees `owners` does not see: another's server must not change
    /// what a rule means.
    #[must_use]
    pub fn seen_with(&self, owners: &OwnerSet) -> Self {
        let affixes = self.affixes.iter().filter_map(|(affix, servers)| {
            let seen = servers.iter().filter(|server| owners.sees(server));
            let seen: Vec<_> = seen.cloned().collect();
            (!seen.is_empty()).then(|| (affix.clone(), seen))
        });
        Self {
            template: self.template.clone(),
            affixes: affixes.collect(),
            ..*self
        }
    }

    /// Every server of the config.
    pub(super) fn servers(&self) -> impl Iterator<Item = &ServerName> {
        self.affixes.iter().flat_map(|(_, servers)| servers)
    }

    /// The servers of which a pattern is that begins with `head`, ends with `tail` and `is_name` if there
    /// is nothing special between: those with the longest prefix. `None` where it may be of all.
    pub(super) fn matching_servers(
        &self,
        head: &str,
        tail: &str,
        is_name: bool,
    ) -> Option<&[ServerName]> {
        if self.affixes.len() < 2 {
            return None;
        }
        let mut affixes = self.affixes.iter();
        let found = affixes.find(|(affix, _)| {
            if is_name {
                affix.surrounds(head)
            } else {
                head.starts_with(&affix.before) && tail.ends_with(&affix.after)
            }
        });
        found.map(|(_, servers)| &**servers)
    }

    /// Whether a pattern that begins with `head` and ends with `tail` says something of the server.
    pub(super) fn is_server_specific(&self, head: &str, tail: &str) -> bool {
        let (before, after) = self.template.literal_lengths();
        before.is_some_and(|before| head.len() > before) || after.is_some_and(|it| tail.len() > it)
    }

    /// Every affix with the servers that have it.
    pub(super) fn affixes(&self) -> impl Iterator<Item = (&Affix, &[ServerName])> {
        let affixes = self.affixes.iter();
        affixes.map(|(affix, servers)| (affix, &**servers))
    }

    /// What the config makes of the item that a server calls `original`.
    pub fn names_for_item(
        &self,
        (name, server): (&ServerName, &Server),
        (kind, original): (Kind, &str),
    ) -> ConfiguredNames {
        if kind.has_uris() {
            let uris = UriMap::prefixed(uri_prefix(namespace(name, server)));
            return self.names_for_uri(&uris, kind, original);
        }
        let rules = match kind {
            Kind::Prompts => &server.prompts,
            Kind::Resources | Kind::Templates | Kind::Tools => &server.tools,
        };
        let item = rules.rename.get(original).map_or(original, |it| &**it);
        let plain = self.template.render(namespace(name, server), item);
        let distinct = naming::with_hash(&plain, (name, original), self.length_max);
        ConfiguredNames {
            plain: plain.into(),
            distinct: distinct.into(),
        }
    }

    /// The same for the resource or template that a server whose URIs `prefixed` puts its prefix before
    /// calls `original`.
    pub(super) fn names_for_uri(
        &self,
        prefixed: &UriMap,
        kind: Kind,
        original: &str,
    ) -> ConfiguredNames {
        let prefixed = match kind {
            Kind::Templates => prefixed.expose_template(original),
            Kind::Prompts | Kind::Resources | Kind::Tools => prefixed.expose(original),
        };
        if self.namespaces_resources {
            return ConfiguredNames {
                plain: prefixed.into(),
                distinct: Arc::default(),
            };
        }
        ConfiguredNames {
            plain: original.into(),
            distinct: prefixed.into(),
        }
    }
}

/// What the template and URIs call a server.
pub(super) fn namespace<'s>(name: &'s ServerName, server: &'s Server) -> &'s str {
    server.namespace.as_deref().unwrap_or(name.local())
}
