//! Policies as an operator writes them, against items of two servers.

use std::{
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use globset::GlobBuilder;
use indexmap::IndexMap;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    auth::Agent,
    catalog::{ByKind, Catalog, Listing, Profiles, Scope, ServerOffer},
    config::{self, Config, ConfigFormat, ConfigText, Environment, Terms},
    mcp::{Id, LogFilter, Raw, Revision},
    names::ProfileName,
    router,
    session::{Call, Cancel, Client, state},
};

static GITHUB: LazyLock<ServerName> = LazyLock::new(|| ServerName::parse("github").unwrap());
static EVIL: LazyLock<ServerName> = LazyLock::new(|| ServerName::parse("evil").unwrap());

#[test]
fn one_policy_decides_by_its_mode_and_lists() {
    let check = |policy: Value, item: PolicyItem<'_>, allowed: bool| {
        let rules = rules([None, None, Some(policy.clone())]);
        assert_eq!(rules.decide(&item).allowed, allowed, "{policy} {item:?}");
        assert_eq!(rules.allows(&item), allowed, "{policy} {item:?}");
    };
    let create = tool("create_issue");
    for (policy, allowed) in [
        (json!({"mode": "none"}), false),
        (json!({"mode": "none", "tools": ["**"]}), false),
        (json!({"mode": "all"}), true),
        (json!({"mode": "all", "tools": ["nothing"]}), true),
        (json!({"mode": "all", "deny": ["github/create_*"]}), false),
        (json!({"mode": "all", "deny": ["mcp_github_*"]}), false),
        (json!({"mode": "all", "deny": ["other/*"]}), true),
        (json!({"mode": "allowlist"}), false),
        (json!({"mode": "allowlist", "prompts": ["**"]}), false),
        (json!({"mode": "allowlist", "tools": ["github/*"]}), true),
        (
            json!({"mode": "allowlist", "tools": ["github/create_issue"]}),
            true,
        ),
        (
            json!({"mode": "allowlist", "tools": ["mcp_github_create_issue"]}),
            true,
        ),
        (
            json!({"mode": "allowlist", "tools": ["mcp_*_create_issue"]}),
            true,
        ),
        (
            json!({"mode": "allowlist", "tools": ["{docs,github}/*"]}),
            true,
        ),
        (
            json!({"mode": "allowlist", "tools": ["create_issue"]}),
            false,
        ),
        (json!({"mode": "allowlist", "tools": ["*"]}), true),
        (json!({"mode": "allowlist", "tools": ["git*"]}), false),
        (
            json!({"mode": "allowlist", "tools": ["github/*"], "deny": ["*/create_*"]}),
            false,
        ),
        (json!({"mode": "denylist"}), true),
        (
            json!({"mode": "denylist", "tools": ["github/delete_*"]}),
            true,
        ),
        (
            json!({"mode": "denylist", "tools": ["github/create_*"]}),
            false,
        ),
        (
            json!({"mode": "denylist", "prompts": ["github/create_*"]}),
            true,
        ),
    ] {
        check(policy, create, allowed);
    }
    let files = json!({"mode": "allowlist", "resources": ["github+file:///pub/**", "github/db:*"]});
    check(
        files.clone(),
        resource("github+file:///pub/a/b", "file:///pub/a/b"),
        true,
    );
    check(
        files.clone(),
        resource("github+file:///pub/{+path}", "file:///pub/{+path}"),
        true,
    );
    check(
        files.clone(),
        resource("github+file:///etc/a", "file:///etc/a"),
        false,
    );
    check(files.clone(), resource("github+db:x", "db:x"), true);
    check(files.clone(), resource("github+db:x/y", "db:x/y"), false);
    check(files, create, false);
    let dots = json!({"mode": "all", "deny": ["**/..", "*/a"]});
    check(dots.clone(), resource("github+x:a/..", "x:a/.."), false);
    check(dots, resource("github+x:a/..b", "x:a/..b"), true);
    let methods = json!({"mode": "allowlist", "methods": ["*/tasks/*", "github/acme/*", "plain"]});
    check(
        methods.clone(),
        PolicyItem::of_method(&GITHUB, "tasks/get"),
        true,
    );
    check(
        methods.clone(),
        PolicyItem::of_method(&EVIL, "tasks/get"),
        true,
    );
    check(
        methods.clone(),
        PolicyItem::of_method(&GITHUB, "acme/run"),
        true,
    );
    check(
        methods.clone(),
        PolicyItem::of_method(&EVIL, "acme/run"),
        false,
    );
    check(methods.clone(), PolicyItem::of_method(&EVIL, "plain"), true);
    check(methods, tool("acme/run"), false);
    let prompts = json!({"mode": "allowlist", "prompts": ["github/*"]});
    let prompt = PolicyItem {
        kind: ItemKind::Prompt,
        ..create
    };
    check(prompts.clone(), prompt, true);
    check(prompts, create, false);
}

/// What a server takes for the same resource is no other one to a policy.
#[test]
fn no_spelling_of_a_uri_leads_around_a_policy() {
    let check = |policy: &Value, original: &str, because: Option<&str>| {
        let rules = rules([None, None, Some(policy.clone())]);
        let exposed = format!("github+{original}");
        let item = resource(&exposed, original);
        let decision = rules.decide(&item);
        let found = (!decision.allowed).then(|| decision.reason.to_string());
        let as_expected = match (&found, because) {
            (Some(found), Some(because)) => found.contains(because),
            (found, because) => found.is_none() && because.is_none(),
        };
        assert!(as_expected, "{policy} {original}: {found:?}");
        assert_eq!(rules.allows(&item), decision.allowed, "{policy} {original}");
    };
    let list = json!({"mode": "allowlist", "resources": ["github/file:///pub/**"]});
    let upwards = Some("could bypass policies");
    check(&list, "file:///pub/a", None);
    check(&list, "file:///pub/../priv/a", upwards);
    check(&list, "file:///pub/%2e%2e/priv/a", upwards);
    check(&list, "file:///pub/.\t./priv/a", upwards);
    let none = json!({"mode": "denylist", "resources": ["github/file:///priv/**"]});
    check(&none, "file:///pub/../priv/a", upwards);
    check(&none, "file:///pub/a", None);
    check(&none, "FILE:///priv/a", Some("file:///priv/**"));
    for glob in ["github/file:///priv/**", "github+file:///priv/**"] {
        let deny = json!({"mode": "all", "deny": [glob]});
        check(&deny, "file:///pub/a", None);
        check(&deny, "file:///pub/../priv/a", upwards);
        for same in [
            "file:///priv/a",
            "FILE:///priv/a",
            "file://localhost/priv/a",
            "file:///%70riv/a",
            "file:///./priv/a",
            "file:////priv/a",
            "file:///PRIV/A",
        ] {
            check(&deny, same, Some("in `deny`"));
        }
    }
    check(&json!({"mode": "all"}), "file:///pub/../priv/a", None);
    let notes = json!({"mode": "allowlist", "resources": ["github/file:///pub/*.md", "github/https://h/*.md", "github/https://*.h/**"]});
    let unlisted = Some("no entry of `resources` matches");
    for (uri, because) in [
        ("file:///pub/a.md", None),
        ("file:///pub/a.md#.md", None),
        ("file:///pub/a.md?.md", None),
        ("file:///pub/a.env#.md", unlisted),
        ("file:///pub/a.env?.md", unlisted),
        ("https://h/a.env#.md", unlisted),
        ("https://a.h/b", None),
        ("https://evil?.h/b", unlisted),
        ("https://evil#.h/b", unlisted),
        // A query is part of what is asked for there.
        ("https://h/a?b=.md", None),
    ] {
        check(&notes, uri, because);
    }
}

/// Without prefixes, a URI that another server lists too is still the one that a policy names.
#[test]
fn a_uri_is_the_same_whoever_else_has_it() {
    let config = Config::example(
        "naming.namespace_resources = false\n[servers.github]\ncommand = 'a'\n[servers.evil]\ncommand = 'b'\n",
    );
    let prefixes = Prefixes::of(&config);
    let names = |server: &ServerName| {
        prefixes.names_for_item(
            (server, &config.servers[server]),
            (Kind::Resources, "file:///a"),
        )
    };
    let (own, posing) = (names(&GITHUB), names(&EVIL));
    for glob in ["file:///a", "github+file:///a", "github/file:///a"] {
        let decide = |policy: Value, server, names| {
            let policy: Policy = serde_json::from_value(policy).unwrap();
            let rules = PolicyRules::new([None, None, Some(&policy)], &prefixes).unwrap();
            rules.allows(&PolicyItem::of_resource(server, names, "file:///a"))
        };
        let deny = json!({"mode": "all", "deny": [glob]});
        assert!(!decide(deny.clone(), &*GITHUB, &own), "{glob}");
        let of_all = glob == "file:///a";
        assert_eq!(decide(deny, &*EVIL, &posing), !of_all, "{glob}");
        let allow = json!({"mode": "allowlist", "resources": [glob]});
        assert!(decide(allow.clone(), &*GITHUB, &own), "{glob}");
        assert_eq!(decide(allow, &*EVIL, &posing), of_all, "{glob}");
    }
}

/// What precedes the first `/` is the server, whatever methods are called.
#[test]
fn a_method_that_reads_like_a_server_is_not_of_it() {
    let check = |policy: Value, server: &ServerName, method: &str, allowed: bool| {
        let rules = rules([None, None, Some(policy.clone())]);
        let item = PolicyItem::of_method(server, method);
        assert_eq!(rules.allows(&item), allowed, "{policy} {server} {method}");
        assert_eq!(
            rules.decide(&item).allowed,
            allowed,
            "{policy} {server} {method}"
        );
    };
    let allow = |glob: &str| json!({"mode": "allowlist", "methods": [glob]});
    for glob in [
        "github/*",
        "github/**",
        "{github,x}/*",
        "git?ub/*",
        r"github\/*",
        "*hub/*",
    ] {
        check(allow(glob), &GITHUB, "run", true);
        check(allow(glob), &GITHUB, "acme/run/now", true);
        check(allow(glob), &EVIL, "github/run", false);
    }
    check(allow("*"), &EVIL, "github/run", true);
    check(allow("*/github/*"), &EVIL, "github/run", true);
    check(allow("gone/*"), &EVIL, "gone/run", false);
    // What refuses may mean both.
    for mode in ["all", "denylist"] {
        let refuse = json!({"mode": mode, "methods": ["github/*"], "deny": ["github/*"]});
        check(refuse.clone(), &GITHUB, "run", false);
        check(refuse.clone(), &EVIL, "github/run", false);
        check(refuse, &EVIL, "run", true);
    }
}

/// A server that chooses its names does not lead around a deny of all servers.
#[test]
fn a_deny_of_every_server_covers_names_with_slashes() {
    let denied = |glob: &str, name: &str| {
        let rules = rules([None, None, Some(json!({"mode": "all", "deny": [glob]}))]);
        !rules.decide(&tool(name)).allowed
    };
    for name in [
        "delete_all",
        "repo/delete_all",
        "a/b/delete_c",
        "../delete_x",
    ] {
        assert!(denied("*/delete_*", name), "{name}");
        assert!(denied("github/*", name), "{name}");
    }
    for name in ["read", "repo/read", "delete"] {
        assert!(!denied("*/delete_*", name), "{name}");
    }
    let list = json!({"mode": "allowlist", "tools": ["*/read_*"]});
    let rules = rules([None, None, Some(list)]);
    assert!(rules.decide(&tool("read_a")).allowed);
    assert!(
        !rules.decide(&tool("repo/read_a")).allowed,
        "what allows says no more"
    );
}

/// A `deny` of all that a server has is one of its resources too, though `*` is no `/` in other URIs.
#[test]
fn a_deny_of_a_server_is_of_all_its_items() {
    let check = |glob: &str, server: &'static str, expect: bool| {
        let rules = rules([None, None, Some(json!({"mode": "all", "deny": [glob]}))]);
        let server = ServerName::parse(server).unwrap();
        let own = PolicyItem {
            server: &server,
            ..resource("x+file:///a/b", "file:///a/b")
        };
        assert_eq!(rules.decide(&own).allowed, expect, "{glob}");
        assert_eq!(rules.allows(&own), expect, "{glob}");
    };
    for whole in [
        "github/*",
        "github/**",
        "*/*",
        "*",
        "{docs,github}/*",
        r"github\/*",
    ] {
        check(whole, "github", false);
    }
    for (other, server) in [
        ("github/*", "evil"),
        ("github/file:///*", "github"),
        ("github/f*", "github"),
    ] {
        check(other, server, true);
    }
    let list = json!({"mode": "allowlist", "resources": ["github/*"]});
    let item = resource("x+file:///a/b", "file:///a/b");
    assert!(
        !rules([None, None, Some(list)]).decide(&item).allowed,
        "what allows says no more"
    );
}

/// Nor does a spelling of its host.
#[test]
fn no_spelling_of_a_host_leads_around_a_policy() {
    let check = |policy: &Value, original: &str, refused: bool| {
        let rules = rules([None, None, Some(policy.clone())]);
        let exposed = format!("github+{original}");
        let decision = rules.decide(&resource(&exposed, original));
        let is_denied = decision.reason.to_string().contains("in `deny`");
        assert_eq!(
            (!decision.allowed, is_denied),
            (refused, refused),
            "{policy} {original}"
        );
    };
    for glob in [
        "github/https://h/priv/**",
        "github+https://h:443/priv/**",
        "github/HTTPS://h./priv/*",
    ] {
        let deny = json!({"mode": "all", "deny": [glob]});
        check(&deny, "https://h/pub/a", false);
        for same in [
            "https://h/priv/a",
            "https://h:443/priv/a",
            "https://u:p@h/priv/a",
            "https://h./priv/a",
            "https:/H/priv/a",
        ] {
            check(&deny, same, true);
        }
    }
    let host = json!({"mode": "all", "deny": ["github/https://h/**"]});
    check(&host, "https://h?/a", true);
    check(&host, "https://h", true);
}

/// A glob of names means the servers of the longest prefix where it allows, and all that it matches where
/// it refuses.
#[test]
fn exposed_names_mean_the_server_of_the_longest_prefix() {
    const SERVERS: &str = "[servers.git]\ncommand = 'a'\n[servers.git_hub]\ncommand = 'b'\n\
                           [servers.docs]\ncommand = 'c'\n";
    let check = |naming: &str,
                 glob: &str,
                 (server, original): (&str, &str),
                 [allows, refuses]: [bool; 2]| {
        let config = Config::example(&format!("{naming}\n{SERVERS}"));
        let prefixes = Prefixes::of(&config);
        let server = ServerName::parse(server).unwrap();
        let names =
            prefixes.names_for_item((&server, &config.servers[&server]), (Kind::Tools, original));
        let item = PolicyItem {
            kind: ItemKind::Tool,
            exposed: "",
            plain: &names.plain,
            distinct: &names.distinct,
            alias: "",
            server: &server,
            original,
        };
        let allowed = |policy: Value| {
            let policy: Policy = serde_json::from_value(policy).unwrap();
            PolicyRules::new([None, None, Some(&policy)], &prefixes)
                .unwrap()
                .allows(&item)
        };
        let allow = json!({"mode": "allowlist", "tools": [glob]});
        assert_eq!(allowed(allow), allows, "{glob} allows {server}/{original}");
        for refuse in [
            json!({"mode": "all", "deny": [glob]}),
            json!({"mode": "denylist", "tools": [glob]}),
        ] {
            assert_eq!(
                !allowed(refuse),
                refuses,
                "{glob} refuses {server}/{original}"
            );
        }
    };
    let default = |glob, item, expect| check("", glob, item, expect);
    let (own, intruder) = (("git_hub", "delete"), ("git", "hub_delete"));
    for glob in [
        "mcp_git_hub_delete",
        "mcp_git_hub_*",
        "mcp_{git_hub,docs}_delete",
        "mcp_git_hub_[d]elete",
        "mcp_{git_{hub,lab},docs}_*",
    ] {
        default(glob, own, [true, true]);
        default(glob, intruder, [false, true]);
    }
    default("mcp_git_*", own, [false, true]);
    default("mcp_git_*", intruder, [true, true]);
    for glob in ["mcp_*", "*", "**", "mcp_git*", "*_delete"] {
        default(glob, own, [true, true]);
        default(glob, intruder, [true, true]);
    }
    default("git_hub/*", own, [true, true]);
    default("git_hub/*", intruder, [false, false]);
    default("git/*", intruder, [true, true]);
    default("git/*", ("git", "a/b/c"), [true, true]);
    default("git/a*c", ("git", "a/b/c"), [true, true]);
    default("git/a", ("git", "a/b/c"), [false, false]);
    default("git[!x]hub/*", own, [true, true]);
    default("git[!x]hub/*", ("git", "hub/x"), [false, true]);
    // Names as they are exposed where they are too long or another's as well.
    default("mcp_docs_search_12790ead", ("docs", "search"), [true, true]);
    let long = ("docs", "a_name_that_is_longer_than_names_may_be_at_all");
    for glob in [
        "mcp_docs_a_name_that_is_longer_than_n_10b4ea7f",
        "mcp_docs_a_name_that_is_longer_than_names_*",
    ] {
        default(glob, long, [true, true]);
    }
    // Without a server in them, they are of every server that has such a tool.
    for naming in ["naming.template = '{tool}'", "naming.template = 'x_{tool}'"] {
        let name = naming
            .trim_start_matches("naming.template = '")
            .trim_end_matches('\'')
            .replace("{tool}", "delete");
        for server in ["git", "docs"] {
            check(naming, &name, (server, "delete"), [true, true]);
        }
    }
    let behind = "naming.template = '{tool}_{server}'";
    check(
        behind,
        "delete_git_hub",
        ("git_hub", "delete"),
        [true, true],
    );
    check(behind, "*_git_hub", ("git_hub", "delete"), [true, true]);
    let dots = "naming = { template = '{server}.{tool}', charset = 'original' }";
    check(dots, "git.*", ("git", "a/b"), [true, true]);
    check(dots, "git_hub.delete", ("git_hub", "delete"), [true, true]);
}

#[test]
fn the_most_specific_policy_replaces_and_denials_add_up() {
    let allow = |globs: &[&str]| Some(json!({"mode": "allowlist", "tools": globs}));
    let all = || Some(json!({"mode": "all"}));
    let deny = |mode: &str, globs: &[&str]| Some(json!({"mode": mode, "deny": globs}));
    let check = |policies: [Option<Value>; 3], allowed: bool, because: &str| {
        let rules = rules(policies.clone());
        let decision = rules.decide(&tool("get"));
        assert_eq!(decision.allowed, allowed, "{policies:?}");
        assert_eq!(decision.reason.to_string(), because, "{policies:?}");
    };
    let everything = |whose: &str| format!("{whose} policy allows everything");
    check(
        [None, None, None],
        false,
        "no policy applies, so nothing is allowed",
    );
    check([all(), None, None], true, &everything("the agent's own"));
    check(
        [all(), allow(&["x"]), allow(&["y"])],
        true,
        &everything("the agent's own"),
    );
    check(
        [None, allow(&["github/g*", "*"]), all()],
        true,
        "the profile's policy is an allowlist and `tools` has `github/g*`",
    );
    check(
        [None, allow(&["x"]), all()],
        false,
        "the profile's policy is an allowlist and no entry of `tools` matches",
    );
    check(
        [Some(json!({"mode": "none"})), all(), all()],
        false,
        "the agent's own policy allows nothing",
    );
    check(
        [all(), all(), deny("all", &["x", "*/get"])],
        false,
        "the default policy has `*/get` in `deny`, which overrides all lists",
    );
    check(
        [allow(&["*"]), deny("all", &["mcp_github_get"]), all()],
        false,
        "the profile's policy has `mcp_github_get` in `deny`, which overrides all lists",
    );
    check(
        [
            None,
            None,
            Some(json!({"mode": "denylist", "tools": ["g*", "*_get"]})),
        ],
        false,
        "the default policy is a denylist and `tools` has `*_get`",
    );
}

/// The names of a server are its own to choose, those of a profile the operator's.
#[test]
fn names_that_are_chosen_by_a_server_open_nothing() {
    let allow = rules([
        None,
        None,
        Some(json!({"mode": "allowlist", "tools": ["github/*", "find"]})),
    ]);
    // With the template `{tool}` and the original charset.
    let posing = PolicyItem {
        exposed: "github/get",
        plain: "github/get",
        server: &EVIL,
        original: "github/get",
        ..tool("x")
    };
    assert!(!allow.decide(&posing).allowed);
    let own = PolicyItem {
        exposed: "github/get",
        plain: "github/get",
        ..tool("github/get")
    };
    assert!(allow.decide(&own).allowed, "it is that server's");
    let deny = rules([
        None,
        None,
        Some(json!({"mode": "all", "deny": ["github/*"]})),
    ]);
    assert!(!deny.decide(&posing).allowed, "what refuses may match more");
    let aliased = PolicyItem {
        alias: "find",
        ..tool("search")
    };
    assert!(
        !rules([None, None, Some(json!({"mode": "all", "deny": ["find"]}))])
            .decide(&aliased)
            .allowed
    );
    assert!(allow.decide(&aliased).allowed);
    let hidden = PolicyItem {
        exposed: "",
        ..tool("get")
    };
    assert!(allow.decide(&hidden).allowed, "by its server");
    let by_name = rules([
        None,
        None,
        Some(json!({"mode": "allowlist", "tools": ["mcp_*", ""]})),
    ]);
    assert!(by_name.allows(&hidden), "its name is the config's");
}

#[test]
fn explanations_are_one_paragraph() {
    let policies = [
        None,
        None,
        Some(json!({"mode": "allowlist", "tools": ["github/get_*"], "deny": ["*/delete_*"]})),
    ];
    let rules = rules(policies);
    let check = |item: PolicyItem<'_>, expect: &str| {
        assert_eq!(rules.decide(&item).explain("`researcher`", &item), expect);
    };
    check(
        tool("get_me"),
        "`researcher` may call the tool `github/get_me` (exposed as `mcp_github_get_me`): \
         the default policy is an allowlist and `tools` has `github/get_*`.",
    );
    check(
        PolicyItem {
            alias: "remove",
            ..tool("delete_repo")
        },
        "`researcher` may not call the tool `github/delete_repo` (exposed as \
         `mcp_github_delete_repo`, in the profile as `remove`): the default policy has \
         `*/delete_*` in `deny`, which overrides all lists.",
    );
    check(
        PolicyItem {
            exposed: "",
            ..tool("push")
        },
        "`researcher` may not call the tool `github/push`: the default policy is an allowlist and \
         no entry of `tools` matches.",
    );
    check(
        PolicyItem::of_method(&GITHUB, "acme/run"),
        "`researcher` may not use the method `github/acme/run`: the default policy is an allowlist \
         and no entry of `methods` matches.",
    );
}

#[test]
fn what_allows_everything_says_so() {
    let check = |policies: [Option<Value>; 3], expect: bool| {
        assert_eq!(
            rules(policies.clone()).allows_everything(),
            expect,
            "{policies:?}"
        );
    };
    let all = || Some(json!({"mode": "all"}));
    check([None, None, all()], true);
    check([None, all(), Some(json!({"mode": "none"}))], true);
    check(
        [all(), None, Some(json!({"mode": "all", "deny": ["x"]}))],
        false,
    );
    check([None, None, Some(json!({"mode": "denylist"}))], false);
    check([None, None, None], false);
}

#[test]
fn a_list_that_is_too_large_is_refused() {
    let huge = "[!a][!b][!c][!d]".repeat(60_000);
    let policy: Policy = serde_json::from_value(json!({"mode": "all", "deny": [huge]})).unwrap();
    let prefixes = Prefixes::of(&config());
    let error = PolicyRules::new([None, None, Some(&policy)], &prefixes).unwrap_err();
    assert!(
        error.to_string().starts_with("invalid list of globs: "),
        "{error}"
    );
}

proptest! {
    /// Each glob alone, as its own matcher sees it, gives the same answer as all of them at once.
    #[test]
    fn lists_match_what_their_globs_match(
        globs in prop::collection::vec("[a-c/*?.]{1,6}", 1..6),
        name in "[a-c/.]{1,6}",
    ) {
        let strict = |glob: &String| GlobBuilder::new(glob).literal_separator(true).build().ok();
        prop_assume!(globs.iter().all(|glob| strict(glob).is_some()));
        // A matcher takes a last segment of `..` for no name at all.
        prop_assume!(!name.ends_with(".."));
        // Of names the alternatives are tried one by one, see there.
        let item = PolicyItem { kind: ItemKind::Resource, plain: &name, ..tool("-") };
        let is_all = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte == b'*');
        // What names all of a server, or everything, does so however deep.
        let whole = |glob: &String| match glob.split_once('/') {
            Some((server, item)) => is_all(item).then(|| format!("{server}/**")),
            None => is_all(glob).then(|| "**".to_owned()),
        };
        let expect = globs.iter().cloned().chain(globs.iter().filter_map(whole)).any(|glob| {
            let matcher = strict(&glob).unwrap().compile_matcher();
            matcher.is_match(&name) || matcher.is_match("github/-")
        });
        let deny = rules([None, None, Some(json!({"mode": "all", "deny": globs}))]);
        prop_assert_eq!(deny.decide(&item).allowed, !expect);
    }

    /// A denial anywhere refuses, whatever else is written.
    #[test]
    fn denials_win(
        modes in prop::collection::vec(prop::option::of(0usize..4), 3),
        at in 0usize..3,
    ) {
        let names = ["all", "none", "allowlist", "denylist"];
        let mut policies: Vec<Option<Value>> = modes
            .into_iter()
            .map(|mode| mode.map(|mode| json!({"mode": names[mode], "tools": ["github/*"]})))
            .collect();
        let denying = policies[at].get_or_insert_with(|| json!({"mode": "all"}));
        denying["deny"] = json!(["github/get"]);
        let rules = rules(policies.try_into().unwrap());
        prop_assert!(!rules.decide(&tool("get")).allowed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// On every route and for every kind, an item is listed exactly when it may be used.
    #[test]
    fn what_is_listed_may_be_used_and_nothing_else(policies in prop::array::uniform3(policy())) {
        let rules = rules(policies);
        let catalog = catalog();
        let reading = ProfileName::parse("reading").unwrap();
        let scopes = [
            Scope::All,
            Scope::Profile(reading),
            Scope::Server(GITHUB.clone()),
            Scope::Server(EVIL.clone()),
        ];
        for (scope, kind) in scopes.iter().flat_map(|scope| Kind::ALL.map(|kind| (scope, kind))) {
            let view = catalog.list(scope, kind);
            let visible = |entry: &ListEntry| rules.allows(&PolicyItem::of_entry(kind, entry));
            let listed = format!("[{}]", view.page_where(0, None, visible).unwrap().items);
            let usable = view.entries().iter().filter(|entry| {
                let call = call(scope, kind, &entry.exposed);
                let routed = router::route(call, &catalog, &|_, _, _| true).map_err(|lost| lost.1).unwrap();
                rules.decide(&PolicyItem::of_routed(&routed).unwrap()).allowed
            });
            let usable: Vec<&str> = usable.map(|entry| entry.item.as_str()).collect();
            prop_assert_eq!(listed, format!("[{}]", usable.join(",")), "{:?} {:?}", scope, kind);
        }
    }
}

#[test]
fn methods_of_a_server_are_items_and_those_of_the_protocol_are_not() {
    let catalog = catalog();
    let scope = Scope::Server(GITHUB.clone());
    let check = |method: Method, expect: Option<PolicyItem<'_>>| {
        let mut call = call(&scope, Kind::Tools, "");
        call.method = method;
        let routed = router::route(call, &catalog, &|_, _, _| true)
            .map_err(|lost| lost.1)
            .unwrap();
        assert_eq!(PolicyItem::of_routed(&routed), expect);
    };
    let vendor = Method::parse("acme/run");
    check(vendor, Some(PolicyItem::of_method(&GITHUB, "acme/run")));
    check(Method::SetLevel, None);
}

fn policy() -> impl Strategy<Value = Option<Value>> {
    let glob = prop::sample::select(vec![
        "*",
        "**",
        "github/*",
        "github/**",
        "evil/**",
        "mcp_*",
        "mcp_github_get",
        "find",
        "*/get",
        "github+file:///**",
        "file:///*",
        "get",
        "*get*",
        "evil/github/get",
        "{github,evil}/[gf]*",
    ]);
    let globs = || prop::collection::vec(glob.clone(), 0..3);
    let mode = prop::sample::select(vec!["all", "none", "allowlist", "denylist"]);
    let some = (mode, globs(), globs(), globs(), globs()).prop_map(
        |(mode, tools, prompts, resources, deny)| {
            json!({
                "mode": mode, "tools": tools, "prompts": prompts, "resources": resources,
                "deny": deny,
            })
        },
    );
    prop::option::of(some)
}

/// Two servers that share names, one of them posing as the other, and a profile that renames.
fn catalog() -> Catalog {
    let config = config();
    let all = |text: &str| {
        text.split(' ')
            .map(|item| Raw::parse(item.to_owned()).unwrap())
            .collect()
    };
    let listing = Listing {
        tools: all(r#"{"name":"get"} {"name":"delete"} {"name":"github/get"}"#),
        prompts: all(r#"{"name":"get"} {"name":"greet"}"#),
        resources: all(r#"{"uri":"file:///a"} {"uri":"file:///a/b"} {"uri":"github/get"}"#),
        templates: all(r#"{"uriTemplate":"file:///{path}"} {"uriTemplate":"{+any}"}"#),
        ..Listing::default()
    };
    let offers = config.servers.iter().map(|(server, config)| ServerOffer {
        server: server.clone(),
        config: Arc::new(config.clone()),
        listing: Arc::new(listing.clone()),
        modern_http: false,
        listing_gaps: ByKind::default(),
    });
    let rename = [
        ("mcp_github_get", "find"),
        ("mcp_evil_get", "mcp_github_get"),
    ];
    let profile = config::Profile {
        tools: None,
        prompts: None,
        resources: Some(vec![Glob::new("*+file:///**").unwrap()]),
        tags: None,
        rename: rename
            .map(|(from, to)| (from.to_owned(), to.to_owned()))
            .into(),
        describe: IndexMap::new(),
        terms: Terms::default(),
    };
    let reading = ProfileName::parse("reading").unwrap();
    let prefixes = Arc::new(Prefixes::of(&config));
    let profiles = Profiles::new(&IndexMap::from([(reading, profile)]), prefixes);
    Catalog::build_with(&config.naming, &profiles, &offers.collect::<Vec<_>>())
}

fn config() -> Config {
    let source = ConfigText {
        name: "test.toml".to_owned(),
        format: ConfigFormat::Toml,
        text: "[servers.github]\ncommand = \"a\"\n[servers.evil]\ncommand = \"b\"\n".to_owned(),
        directory: PathBuf::new(),
    };
    let loaded = config::parse([source], &Environment::default());
    loaded
        .unwrap_or_else(|mistakes| panic!("{mistakes}"))
        .config
}

/// A request that uses the item `name`.
fn call(scope: &Scope, kind: Kind, name: &str) -> Box<Call> {
    let (method, params) = match kind {
        Kind::Tools => (Method::ToolsCall, json!({ "name": name })),
        Kind::Prompts => (Method::PromptsGet, json!({ "name": name })),
        Kind::Resources => (Method::ResourcesRead, json!({ "uri": name })),
        Kind::Templates => {
            let reference = json!({ "type": "ref/resource", "uri": name });
            (Method::Complete, json!({ "ref": reference }))
        }
    };
    Box::new(Call {
        id: Id::number(1),
        method,
        params: Some(Raw::from_value(&params).into()),
        client: Arc::new(Client::stateless(
            Arc::new(Agent::anonymous()),
            Revision::MODERN,
        )),
        scope: scope.clone(),
        kind: state::SessionKind::Streamable,
        log_filter: LogFilter::All,
        progress: None,
        events: crate::session::events::event_queue().0,
        cancel: Cancel::default(),
        session_ended: None,
        correlation: None,
        address: None,
    })
}

fn rules([agent, profile, default]: [Option<Value>; 3]) -> PolicyRules {
    let read = |policy: Option<Value>| {
        policy.map(|policy| serde_json::from_value::<Policy>(policy).unwrap())
    };
    let (agent, profile, default) = (read(agent), read(profile), read(default));
    let policies = [agent.as_ref(), profile.as_ref(), default.as_ref()];
    PolicyRules::new(policies, &Prefixes::of(&config())).unwrap()
}

/// A tool of the server `github` with the name that the default template gives it.
fn tool(original: &str) -> PolicyItem<'_> {
    let exposed = match original {
        "create_issue" => "mcp_github_create_issue",
        "get" => "mcp_github_get",
        "get_me" => "mcp_github_get_me",
        "delete_repo" => "mcp_github_delete_repo",
        "search" => "mcp_github_search",
        _ => "",
    };
    PolicyItem {
        kind: ItemKind::Tool,
        exposed,
        plain: exposed,
        distinct: "",
        alias: "",
        server: &GITHUB,
        original,
    }
}

fn resource<'a>(exposed: &'a str, original: &'a str) -> PolicyItem<'a> {
    PolicyItem {
        kind: ItemKind::Resource,
        exposed,
        plain: exposed,
        distinct: "",
        alias: "",
        server: &GITHUB,
        original,
    }
}
