//! What a config says of a server's tools, whatever other servers call theirs.

use std::{collections::BTreeMap, fmt::Write as _};

use proptest::prelude::*;

use super::*;
use crate::{
    catalog::{ByKind, Catalog, Kind, Listing, Prefixes, Profiles, Scope, ServerOffer},
    governance::policy::PolicyItem,
    mcp::Raw,
};

/// Tools of the servers that others come beside.
const OWN: [(&str, &[&str]); 3] = [
    ("git_hub", &["delete", "push", "search", "a/b", "x-1"]),
    (
        "docs",
        &[
            "search",
            "delete",
            "a_name_that_is_much_longer_than_names_may_be",
        ],
    ),
    ("git", &["log", "hub_fork"]),
];

/// Everything that is said of one tool.
#[derive(Debug, PartialEq)]
struct Said {
    allowed: bool,
    arguments: Vec<String>,
    price: Micros,
}

/// What `config` says of the tools of [`OWN`], where the server `beside` lists `tools`.
fn said(config: &Config, beside: &str, tools: &[String]) -> BTreeMap<String, Said> {
    let policy_set = PolicySet::new(config).unwrap();
    let catalog = catalog(config, beside, tools);
    let agent = Arc::new(Agent::from_config(&config.agents["a"]));
    let rules = policy_set
        .compile(&agent, None, &Limiters::default())
        .unwrap();
    let own = catalog.tools().filter(|tool| {
        OWN.iter()
            .any(|(server, _)| *server == tool.server.as_str())
    });
    let said = |tool: &Arc<Tool>| {
        let about = rules.tool_decisions(tool);
        let server_rules = policy_set.server_rules(&tool.server).unwrap();
        let item = PolicyItem::of_tool(tool);
        assert_eq!(rules.policy.decide(&item).allowed, about.allowed);
        let said = Said {
            allowed: about.allowed,
            arguments: rules
                .arguments
                .rule_names(&about.arguments)
                .map(|(name, _)| name.to_owned())
                .collect(),
            price: policy_set.price_of(Some(tool), server_rules),
        };
        (format!("{}/{}", tool.server, tool.original), said)
    };
    own.map(said).collect()
}

fn catalog(config: &Config, beside: &str, tools: &[String]) -> Catalog {
    let prefixes = Arc::new(Prefixes::of(config));
    let profiles = Profiles::new(&config.profiles, prefixes);
    let offers = config.servers.iter().map(|(server, written)| {
        let own = OWN.iter().find(|(name, _)| *name == server.as_str());
        let names: Vec<&str> = match own {
            Some((_, names)) => names.to_vec(),
            None if server.as_str() == beside => tools.iter().map(String::as_str).collect(),
            None => Vec::new(),
        };
        let item = |name: &&str| {
            let name = Raw::string(name);
            Raw::parse(format!(
                r#"{{"name":{},"inputSchema":{{"type":"object"}}}}"#,
                name.as_str()
            ))
            .unwrap()
        };
        ServerOffer {
            server: server.clone(),
            config: Arc::new(written.clone()),
            listing: Arc::new(Listing {
                tools: names.iter().map(item).collect(),
                ..Listing::default()
            }),
            modern_http: false,
            listing_gaps: ByKind::default(),
        }
    });
    Catalog::build_with(&config.naming, &profiles, &offers.collect::<Vec<_>>())
}

/// What the profile of `config` shows of [`OWN`], and as what.
fn shown(catalog: &Catalog) -> Vec<(String, String)> {
    let profile = Scope::Profile(ProfileName::parse("p").unwrap());
    let entries = catalog.list(&profile, Kind::Tools).entries().iter();
    let own = entries.filter(|entry| {
        OWN.iter()
            .any(|(server, _)| *server == entry.server.as_str())
    });
    let named = own.map(|entry| {
        (
            format!("{}/{}", entry.server, entry.original),
            entry.alias.to_string(),
        )
    });
    let mut named: Vec<_> = named.collect();
    named.sort();
    named
}

/// A glob that an operator may write about the tools of [`OWN`].
fn glob() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "mcp_git_hub_delete",
        "mcp_git_hub_*",
        "mcp_git_*",
        "mcp_git*",
        "mcp_*",
        "*",
        "*_delete",
        "git_hub/*",
        "git_hub/delete",
        "git/*",
        "*/delete",
        "docs/*",
        "{git_hub,docs}/{push,search}",
        "mcp_{git_hub,docs}_delete",
        "mcp_docs_search_12790ead",
        "delete",
        "search",
        "docs.search",
        "git_hub.*",
        "search_docs",
        "*_git_hub",
        "mcp_docs_a_name_that_is_much_longer_than_names_may_be",
        "a/b",
        "git_hub/a/b",
        "mcp_git_hub_x_1",
    ])
    .prop_map(str::to_owned)
}

/// What a server may call a tool to come into the way of others.
fn tool() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "hub",
        "_",
        "delete",
        "push",
        "search",
        "docs",
        "git",
        "git_hub",
        "/",
        "-",
        ".",
        "mcp_",
        "x",
        "a/b",
        "search_12790ead",
        "_12790ead",
        "log",
        "fork",
    ]);
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.concat())
}

fn config(
    (template, charset, conflict): (&str, &str, &str),
    (mode, tools, deny): (&str, &[String], &[String]),
    beside: Option<&str>,
) -> Config {
    let mut text = format!(
        "[naming]\ntemplate = '{template}'\ncharset = '{charset}'\nconflict = '{conflict}'\n\
         [governance]\nauth = 'keys'\nprice = '0.01'\n\
         args = [{{ name = 'some', tools = {tools:?}, at = '/a', equals = 1 }}, {{ name = 'denied', tools = {deny:?}, at = '/a', equals = 2 }}]\n\
         [agents.a]\nkeys = ['q7Zr2mVx9LwB4nHs8KdPf3GyTc6JaUe1Xo5R']\n\
         policy = {{ mode = '{mode}', tools = {tools:?}, deny = {deny:?} }}\n\
         [profiles.p]\ntools = {tools:?}\nrename = {{ mcp_git_hub_search = 'find', search = 'look' }}\n"
    );
    for (server, _) in OWN {
        let section = "command = 'x'\ntools = { price = { delete = '0.5' } }";
        writeln!(text, "[servers.{server}]\n{section}").unwrap();
    }
    if let Some(beside) = beside {
        writeln!(text, "[servers.'{beside}']\ncommand = 'x'\npriority = 9").unwrap();
    }
    Config::example(&text)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever another server lists, the same is said of the tools of a server. Whatever server the
    /// config gets beside it, nothing more may be done with them.
    #[test]
    fn nothing_depends_on_what_other_servers_list(
        naming in prop::sample::select(vec![
            ("mcp_{server}_{tool}", "strict"), ("{server}.{tool}", "original"), ("{tool}", "original"),
            ("{tool}_{server}", "strict"),
        ]),
        conflict in prop::sample::select(vec!["namespace", "priority", "first", "error"]),
        mode in prop::sample::select(vec!["all", "allowlist", "denylist"]),
        (tools, deny) in (prop::collection::vec(glob(), 1..3), prop::collection::vec(glob(), 0..2)),
        beside in prop::sample::select(vec!["g", "hub", "git_hub_x", "zz", "mcp", "git.hub-9", "git_hub_del"]),
        listed in prop::collection::vec(tool(), 1..6),
    ) {
        let naming = (naming.0, naming.1, conflict);
        let policy = (mode, &*tools, &*deny);
        let alone = said(&config(naming, policy, None), beside, &[]);
        let config = config(naming, policy, Some(beside));
        let quiet = said(&config, beside, &[]);
        let loud = said(&config, beside, &listed);
        prop_assert_eq!(&quiet, &loud);
        for (tool, before) in &alone {
            let after = &quiet[tool];
            prop_assert!(before.allowed || !after.allowed, "{} is let in", tool);
            prop_assert_eq!(&before.arguments, &after.arguments, "{}", tool);
            prop_assert_eq!(before.price, after.price, "{}", tool);
        }
        if conflict == "namespace" {
            let quiet = shown(&catalog(&config, beside, &[]));
            let loud = shown(&catalog(&config, beside, &listed));
            prop_assert_eq!(quiet, loud);
        }
    }
}

/// What the check of a config compiled is what calls are held to, as long as the agent has the same terms.
#[test]
fn rules_are_compiled_once() {
    let config = Config::example("[agents.a]\npolicy = { mode = 'all' }\n[profiles.p]\n");
    let policy_set = PolicySet::new(&config).unwrap();
    let profile = config.profiles.keys().next();
    let agent = Arc::new(Agent::from_config(&config.agents["a"]));
    for route in [None, profile] {
        let compiled = Arc::clone(&policy_set.rules.get(&(agent.id, route.cloned())).unwrap());
        let limiters = Limiters::default();
        let first = policy_set.rules_of(&agent, route, &limiters).unwrap();
        assert!(Arc::ptr_eq(&first.policy, &compiled.policy));
        assert!(Arc::ptr_eq(&first.arguments, &compiled.arguments));
        assert!(Arc::ptr_eq(&first.agent, &agent));
        let same = Arc::new(Agent::clone(&agent));
        let again = policy_set.rules_of(&same, route, &limiters).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        let mut other = Agent::from_config(&config.agents["a"]);
        other.terms.policy = None;
        let other = policy_set
            .rules_of(&Arc::new(other), route, &limiters)
            .unwrap();
        assert!(!Arc::ptr_eq(&other.policy, &compiled.policy));
    }
}

/// At the limit all stay compiled; past it the rest is compiled with the first call.
#[test]
fn only_so_many_rules_are_kept() {
    let compiled = |agents: usize| {
        let agents: Vec<String> = (0..agents).map(|at| format!("[agents.a{at}]\n")).collect();
        let policy_set = PolicySet::new(&Config::example(&agents.concat())).unwrap();
        policy_set.rules.len()
    };
    assert_eq!(compiled(COMPILED_MAX - 2), COMPILED_MAX - 1);
    assert_eq!(compiled(COMPILED_MAX - 1), COMPILED_MAX);
    assert_eq!(compiled(COMPILED_MAX), COMPILED_MAX);
}

/// What was compiled for agents that come and go does not stay.
#[test]
fn rules_of_agents_that_are_gone_are_forgotten() {
    let config = Config::example("[agents.a]\n[agents.b]\n");
    let policy_set = PolicySet::new(&config).unwrap();
    let limiters = Limiters::default();
    for agent in config.agents.values().map(Agent::from_config).map(Arc::new) {
        policy_set.rules_of(&agent, None, &limiters).unwrap();
    }
    assert_eq!(
        policy_set.rules.len(),
        3,
        "and those of the anonymous agent"
    );
    policy_set.forget_unlisted(|agent| agent.name == "b");
    let left: Vec<String> = policy_set
        .rules
        .iter()
        .map(|it| it.agent.name.clone())
        .collect();
    assert_eq!(left, ["b"]);
}
