//! Which server a name may belong to that no server has listed, while some have not listed anything.
//!
//! Called by `discovery` for requests that lead nowhere. Names are never parsed where the catalog
//! knows them; here nothing is known yet, so what precedes the item in a name of the template is
//! all there is to go by. What a prospect says is a guess: it decides who waits, never what is
//! allowed, since whoever has waited is routed by what the server lists.

use super::{
    ConfiguredNames, Kind, Profiles, Scope, ServerOffer, UriMap, item::ItemFilter,
    naming::NameTemplate,
};
use crate::config::{Charset, Naming};
use crate::names::{ServerName, uri_prefix};

/// A server that may have an item once it is listed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Candidate {
    /// The server.
    pub server: ServerName,
    /// What kind of item it would be.
    pub kind: Kind,
    /// What the server may call it, and what rules know it by; several where the charset leaves that
    /// open, never none.
    pub originals: Vec<(String, ConfiguredNames)>,
}

/// Where the item called `name` on the route of `scope` may come from, of servers that have listed
/// nothing: `unlisted` are their offers, without items. Those with the longest prefix come first.
pub(super) fn find_candidates(
    naming: &Naming,
    profiles: &Profiles,
    unlisted: &[ServerOffer],
    (scope, kind, name): (&Scope, Kind, &str),
) -> Vec<Candidate> {
    let template = NameTemplate::parse(naming);
    let guess = |offer: &ServerOffer| match scope {
        Scope::Server(server) if *server == offer.server => {
            Some((vec![name.to_owned()], name.len()))
        }
        Scope::Server(_) => None,
        Scope::All | Scope::Profile(_) | Scope::View { .. } if !offer.shows_kind(kind) => None,
        Scope::All | Scope::Profile(_) | Scope::View { .. } if kind.has_uris() => {
            let uris = uri_map_of(offer);
            let original = uris.original(name).filter(|_| naming.namespace_resources)?;
            let rest = original.len();
            Some((vec![original.into_owned()], rest))
        }
        Scope::All | Scope::Profile(_) | Scope::View { .. } => {
            let item = template.strip_affix(offer.namespace(), name)?;
            let originals = original_names(item, kind, naming, offer);
            Some((originals, item.len()))
        }
    };
    let prospects = unlisted.iter().filter_map(|offer| {
        let (originals, rest) = guess(offer)?;
        let filter = ItemFilter::new(offer.rules(kind), kind);
        let permitted = originals.into_iter().filter(|it| filter.permits(it));
        let named = permitted.map(|original| {
            let server = (&offer.server, &*offer.config);
            let names = profiles
                .prefixes()
                .names_for_item(server, (kind, &original));
            (original, names)
        });
        let shown = named.filter(|(original, names)| {
            profiles.may_show(scope, kind, offer, (original.as_str(), names))
        });
        let originals: Vec<_> = shown.collect();
        if originals.is_empty() {
            return None;
        }
        let candidate = Candidate {
            server: offer.server.clone(),
            kind,
            originals,
        };
        Some((rest, candidate))
    });
    // A shorter rest is a longer prefix.
    let mut prospects: Vec<(usize, Candidate)> = prospects.collect();
    prospects.sort_by_key(|(rest, _)| *rest);
    prospects
        .into_iter()
        .map(|(_, prospect)| prospect)
        .collect()
}

fn uri_map_of(offer: &ServerOffer) -> UriMap {
    UriMap::prefixed(uri_prefix(offer.namespace()))
}

/// What the server may call the item that a name of the template calls `item`.
fn original_names(item: &str, kind: Kind, naming: &Naming, offer: &ServerOffer) -> Vec<String> {
    let renames = &offer.rules(kind).rename;
    if let Some((original, _)) = renames.iter().find(|(_, name)| *name == item) {
        return vec![original.clone()];
    }
    let mut originals = vec![item.to_owned()];
    // What the strict charset replaces is `-` nearly always.
    if naming.charset == Charset::Strict && item.contains('_') {
        originals.push(item.replace('_', "-"));
    }
    originals
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use indexmap::IndexMap;

    use super::*;
    use crate::{
        catalog::{ByKind, Listing, Prefixes},
        config::{ConfigFormat, ConfigText},
        names::ProfileName,
    };

    /// The prospects among servers of which none has listed anything.
    fn prospects(config: &str, scope: &Scope, kind: Kind, name: &str) -> Vec<Candidate> {
        let source = ConfigText {
            name: "test.toml".to_owned(),
            format: ConfigFormat::Toml,
            text: config.to_owned(),
            directory: ".".into(),
        };
        let environment = crate::config::Environment::default();
        let config = crate::config::parse([source], &environment).unwrap().config;
        let offer = |(name, server): (&ServerName, &crate::config::Server)| ServerOffer {
            server: name.clone(),
            config: Arc::new(server.clone()),
            listing: Arc::new(Listing::default()),
            modern_http: false,
            listing_gaps: ByKind::default(),
        };
        let offers: Vec<ServerOffer> = config.servers.iter().map(offer).collect();
        let profiles: &IndexMap<ProfileName, _> = &config.profiles;
        find_candidates(
            &config.naming,
            &Profiles::new(profiles, Arc::new(Prefixes::of(&config))),
            &offers,
            (scope, kind, name),
        )
    }

    const TWO_SERVERS: &str = "[servers.git]\ncommand = 'a'\n[servers.git-hub]\ncommand = 'b'\n";

    /// `expect` is the server and the originals, of the first.
    fn check(config: &str, scope: &Scope, kind: Kind, name: &str, expect: Option<(&str, &[&str])>) {
        let found = prospects(config, scope, kind, name).into_iter().next();
        let found = found.map(|found| {
            let originals = found.originals.into_iter().map(|(original, _)| original);
            (found.server.to_string(), originals.collect::<Vec<_>>())
        });
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expect = expect.map(|(server, names)| (server.to_owned(), owned(names)));
        assert_eq!(found, expect, "{name} of\n{config}");
    }

    #[test]
    fn a_name_leads_to_the_server_with_the_longest_prefix() {
        let all = |config: &str, name: &str, expect| {
            check(config, &Scope::All, Kind::Tools, name, expect);
        };
        all(TWO_SERVERS, "mcp_git_log", Some(("git", &["log"])));
        all(
            TWO_SERVERS,
            "mcp_git_hub_fork",
            Some(("git-hub", &["fork"])),
        );
        all(TWO_SERVERS, "mcp_git_a_b", Some(("git", &["a_b", "a-b"])));
        all(TWO_SERVERS, "mcp_svn_log", None);
        all(TWO_SERVERS, "mcp_git_", None);
        all(TWO_SERVERS, "log", None);
        let dotted = format!(
            "[naming]\ntemplate = '{{server}}.{{tool}}'\ncharset = 'original'\n{TWO_SERVERS}"
        );
        all(&dotted, "git-hub.a_b", Some(("git-hub", &["a_b"])));
        all(&dotted, "git.hub", Some(("git", &["hub"])));
        // Such a name could be anybody's.
        all(
            &format!("[naming]\ntemplate = '{{tool}}'\n{TWO_SERVERS}"),
            "log",
            None,
        );
    }

    #[test]
    fn all_that_a_name_may_belong_to_are_found() {
        let check = |rename: &str, expect: &[&str]| {
            let config = format!("{TWO_SERVERS}{rename}");
            let found = prospects(&config, &Scope::All, Kind::Tools, "mcp_git_hub_fork");
            let servers: Vec<_> = found.iter().map(|found| found.server.as_str()).collect();
            assert_eq!(servers, expect, "{config}");
        };
        check("", &["git-hub", "git"]);
        // What the server calls it says nothing of the prefix.
        let long = "tools = { rename = { 'a_much_longer_name' = 'fork' } }";
        check(long, &["git-hub", "git"]);
    }

    #[test]
    fn what_a_server_would_not_show_is_no_prospect() {
        let all = |keys: &str, kind, name: &str, expect| {
            let config = format!("[servers.x]\ncommand = 'a'\n{keys}");
            check(&config, &Scope::All, kind, name, expect);
        };
        all("tools = { deny = ['log'] }", Kind::Tools, "mcp_x_log", None);
        all(
            "tools = { allow = ['a-b'] }",
            Kind::Tools,
            "mcp_x_a_b",
            Some(("x", &["a-b"])),
        );
        all(
            "tools = { rename = { log = 'show' } }",
            Kind::Tools,
            "mcp_x_show",
            Some(("x", &["log"])),
        );
        all("expose = ['prompts']", Kind::Tools, "mcp_x_log", None);
        all("namespace = 'y'", Kind::Tools, "mcp_x_log", None);
        all(
            "namespace = 'y'",
            Kind::Prompts,
            "mcp_y_ask",
            Some(("x", &["ask"])),
        );
        all(
            "",
            Kind::Resources,
            "x+file:///a",
            Some(("x", &["file:///a"])),
        );
        all("", Kind::Resources, "file:///a", None);
    }

    #[test]
    fn other_routes_have_their_own() {
        let server = |name: &str| Scope::Server(ServerName::parse(name).unwrap());
        check(
            TWO_SERVERS,
            &server("git"),
            Kind::Tools,
            "any",
            Some(("git", &["any"])),
        );
        check(TWO_SERVERS, &server("none"), Kind::Tools, "any", None);
        let own = prospects(TWO_SERVERS, &server("git-hub"), Kind::Tools, "a-b");
        assert_eq!(own.len(), 1);
        assert_eq!(&*own[0].originals[0].1.plain, "mcp_git_hub_a_b");
        let config = format!("{TWO_SERVERS}[profiles.p]\ntools = ['git/*']\n");
        let profile = Scope::Profile(ProfileName::parse("p").unwrap());
        check(
            &config,
            &profile,
            Kind::Tools,
            "mcp_git_log",
            Some(("git", &["log"])),
        );
        // Of the other, which the profile does not show, it would be `fork`.
        let of_git = Some(("git", &["hub_fork", "hub-fork"][..]));
        check(&config, &profile, Kind::Tools, "mcp_git_hub_fork", of_git);
        let none = Scope::Profile(ProfileName::parse("none").unwrap());
        check(&config, &none, Kind::Tools, "mcp_git_log", None);
    }
}
