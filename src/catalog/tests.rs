//! Snapshots as routes show them.

use std::time::Duration;

use globset::Glob;
use indexmap::IndexMap;
use proptest::prelude::*;

use super::*;
use crate::config::{
    Balance, Breaker, Charset, Conflict, Ejection, EraPin, Expose, Health, Isolation, Probe,
    Profile, Retry, Server, ServerLimits, Terms, Transport, Validate,
};

#[test]
fn names_follow_the_template() {
    let check = |template: &str, charset: Charset, server: &str, tool: &str, expect: &str| {
        let naming = Naming {
            template: template.to_owned(),
            charset,
            ..naming()
        };
        let catalog = Catalog::build(&naming, &[offer(server, &[tool])]);
        assert_eq!(
            names(&catalog),
            [expect],
            "{template} of {server} and {tool}"
        );
    };
    let (strict, original) = (Charset::Strict, Charset::Original);
    let default = "mcp_{server}_{tool}";
    check(
        default,
        strict,
        "github",
        "create_issue",
        "mcp_github_create_issue",
    );
    check(
        default,
        strict,
        "aws-s3",
        "list_buckets",
        "mcp_aws_s3_list_buckets",
    );
    check(
        default,
        original,
        "aws-s3",
        "list.buckets",
        "mcp_aws-s3_list.buckets",
    );
    check(default, strict, "a.b", "x/y z", "mcp_a_b_x_y_z");
    check(default, strict, "s", "größe", "mcp_s_gr__e");
    check(default, original, "s", "größe", "mcp_s_größe");
    check("{server}.{tool}", strict, "a-b", "c.d", "a_b.c_d");
    check("{tool}", strict, "s", "plain", "plain");
    check("{tool}@{server}", original, "s", "plain", "plain@s");
    check(
        "{tool}-{tool}",
        original,
        "s",
        "{server}",
        "{server}-{server}",
    );
    check("fixed{other}", original, "s", "t", "fixed{other}");
}

#[test]
fn a_namespace_stands_for_the_server() {
    let mut github = offer("github-enterprise", &["search"]);
    config(&mut github).namespace = Some("gh".to_owned());
    github.listing = Arc::new(Listing {
        resources: vec![raw(r#"{"uri":"file:///a"}"#)],
        ..(*github.listing).clone()
    });
    let catalog = Catalog::build(&naming(), &[github]);
    assert_eq!(names(&catalog), ["mcp_gh_search"]);
    assert_eq!(exposed(&catalog, Kind::Resources), ["gh+file:///a"]);
}

#[test]
fn long_names_end_in_a_hash() {
    let check = |length: usize, expect: &str| {
        // `mcp_s_` takes six characters.
        let tool = "x".repeat(length - 6);
        let catalog = Catalog::build(&naming(), &[offer("s", &[&tool])]);
        assert_eq!(names(&catalog), [expect], "{length} characters");
        assert!(expect.chars().count() <= 48);
    };
    check(47, &format!("mcp_s_{}", "x".repeat(41)));
    check(48, &format!("mcp_s_{}", "x".repeat(42)));
    // printf 's\0x..x' | sha256sum
    check(49, &format!("mcp_s_{}_23aeee12", "x".repeat(33)));
    check(200, &format!("mcp_s_{}_70dc9be5", "x".repeat(33)));
}

#[test]
fn long_names_are_counted_in_characters() {
    let naming = Naming {
        charset: Charset::Original,
        max_length: 12,
        ..naming()
    };
    let catalog = Catalog::build(&naming, &[offer("s", &["üüüüüü"])]);
    assert_eq!(names(&catalog), ["mcp_s_üüüüüü"]);
    let catalog = Catalog::build(&naming, &[offer("s", &["üüüüüüü"])]);
    let names = names(&catalog);
    assert!(
        names[0].starts_with("mcp_") && names[0].len() == 12,
        "{names:?}"
    );
}

#[test]
fn equal_names_follow_the_conflict_rule() {
    let check = |conflict: Conflict, expect: &[&str], hidden: usize| {
        let naming = Naming {
            template: "{tool}".to_owned(),
            conflict,
            ..naming()
        };
        let mut second = offer("b", &["search", "only_b"]);
        config(&mut second).priority = 1;
        let offers = [offer("a", &["search"]), second, offer("c", &["search"])];
        let catalog = Catalog::build(&naming, &offers);
        let view = catalog.list(&Scope::All, Kind::Tools);
        let found: Vec<String> = view
            .entries()
            .iter()
            .map(|entry| format!("{} {}", entry.exposed, entry.server))
            .collect();
        assert_eq!(found, expect, "{conflict:?}");
        let is_hidden = |problem: &&Problem| {
            matches!(
                &problem.cause,
                Cause::Collision {
                    outcome: Outcome::Hidden(_),
                    ..
                }
            )
        };
        let problems = catalog.problems().iter();
        assert_eq!(problems.filter(is_hidden).count(), hidden, "{conflict:?}");
    };
    check(Conflict::Error, &["only_b b"], 3);
    check(Conflict::First, &["only_b b", "search a"], 2);
    check(Conflict::Priority, &["only_b b", "search b"], 2);
    let all = [
        "only_b b",
        "search_549d551a a",
        "search_5ba67924 b",
        "search_dd88cf04 c",
    ];
    check(Conflict::Namespace, &all, 0);
}

#[test]
fn items_of_one_server_that_map_to_one_name_are_told_apart() {
    let catalog = Catalog::build(&naming(), &[offer("s", &["a.b", "a-b", "c"])]);
    let names = names(&catalog);
    assert_eq!(names.len(), 3);
    for (name, original) in [(names[0], "a.b"), (names[1], "a-b")] {
        assert!(name.starts_with("mcp_s_a_b_"), "{name}");
        let found = catalog.tool(&Scope::All, name).unwrap();
        assert!(["a.b", "a-b"].contains(&&*found.original), "{original}");
    }
    let first = Naming {
        conflict: Conflict::First,
        ..naming()
    };
    let catalog = Catalog::build(&first, &[offer("s", &["a.b", "a-b"])]);
    assert_eq!(
        catalog
            .tool(&Scope::All, "mcp_s_a_b")
            .unwrap()
            .original
            .as_ref(),
        "a-b"
    );
}

#[test]
fn tools_and_prompts_have_separate_names() {
    let listing = Listing {
        tools: vec![tool("x")],
        prompts: vec![raw(r#"{"name":"x","arguments":[]}"#)],
        ..Listing::default()
    };
    let catalog = Catalog::build(&naming(), &[listed("s", listing)]);
    let prompt = catalog.prompt(&Scope::All, "mcp_s_x").unwrap();
    assert_eq!(prompt.item.as_str(), r#"{"name":"mcp_s_x","arguments":[]}"#);
    assert_eq!(prompt.source.as_str(), r#"{"name":"x","arguments":[]}"#);
    assert_eq!(
        catalog
            .tool(&Scope::All, "mcp_s_x")
            .unwrap()
            .original
            .as_ref(),
        "x"
    );
    assert_eq!(catalog.problems(), []);
}

#[test]
fn items_keep_their_bytes_beside_the_name() {
    let text = "{ \"future\" : 1.50e+7,\t\"name\":\"a\\u0062\" , \"x\":{\"name\":\"inner\"} }";
    let catalog = Catalog::build(&naming(), &[listed("s", tools([text]))]);
    let own = catalog.list(&server("s"), Kind::Tools);
    assert_eq!(own.array().as_str(), format!("[{text}]"));
    assert_eq!(own.entries()[0].exposed.as_ref(), "ab");
    let merged = catalog.list(&Scope::All, Kind::Tools);
    let expect = text.replace("\"a\\u0062\"", "\"mcp_s_ab\"");
    assert_eq!(merged.array().as_str(), format!("[{expect}]"));
    let tool = catalog.tool(&Scope::All, "mcp_s_ab").unwrap();
    assert_eq!(
        (tool.item.as_str(), tool.source.as_str()),
        (expect.as_str(), text)
    );
}

#[test]
fn a_repeated_name_cannot_hide_the_servers_own() {
    let catalog = Catalog::build(
        &naming(),
        &[listed("s", tools([r#"{"name":"a","name":"b"}"#]))],
    );
    let merged = catalog.list(&Scope::All, Kind::Tools);
    assert_eq!(
        merged.array().as_str(),
        r#"[{"name":"mcp_s_b","name":"mcp_s_b"}]"#
    );
}

#[test]
fn rules_apply_on_every_route() {
    let mut offer = offer("s", &["get_a", "get_b", "delete_a", "put_a"]);
    config(&mut offer).tools = ItemRules {
        allow: Some(vec![glob("get_*"), glob("delete_*")]),
        deny: vec![glob("delete_*")],
        rename: [("get_a".to_owned(), "fetch".to_owned())]
            .into_iter()
            .collect(),
        describe: [("get_a", "New \"text\""), ("get_b", "B")]
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .into_iter()
            .collect(),
        ..ItemRules::default()
    };
    Arc::make_mut(&mut offer.listing).tools[1] = raw(r#"{"name":"get_b","description":"old"}"#);
    let catalog = Catalog::build(&naming(), &[offer]);
    let own = catalog.list(&server("s"), Kind::Tools);
    let expect = r#"[{"description":"New \"text\"", "name": "get_a", "inputSchema": {"type":"object"} },{"name":"get_b","description":"B"}]"#;
    assert_eq!(own.array().as_str(), expect);
    assert_eq!(names(&catalog), ["mcp_s_fetch", "mcp_s_get_b"]);
    for scope in [Scope::All, server("s")] {
        for name in [
            "mcp_s_put_a",
            "mcp_s_delete_a",
            "put_a",
            "delete_a",
            "mcp_s_get_a",
        ] {
            assert!(catalog.tool(&scope, name).is_none(), "{name}");
        }
    }
    assert_eq!(
        catalog
            .tool(&server("s"), "get_a")
            .unwrap()
            .original
            .as_ref(),
        "get_a"
    );
    assert_eq!(catalog.counts(&name("s")).tools, 2);
    assert_eq!(catalog.problems(), []);
}

#[test]
fn expose_applies_to_merged_routes_only() {
    let listing = Listing {
        tools: vec![tool("t")],
        resources: vec![raw(r#"{"uri":"a:b"}"#)],
        templates: vec![raw(r#"{"uriTemplate":"a:{b}"}"#)],
        prompts: vec![raw(r#"{"name":"p"}"#)],
        instructions: Some("Be brief.".to_owned()),
        ..Listing::default()
    };
    let mut offer = listed("s", listing);
    config(&mut offer).expose = Expose {
        tools: false,
        resources: false,
        prompts: false,
    };
    let catalog = Catalog::build(&naming(), &[offer]);
    for kind in Kind::ALL {
        assert_eq!(
            catalog.list(&Scope::All, kind).array().as_str(),
            "[]",
            "{kind:?}"
        );
        assert_eq!(catalog.list(&server("s"), kind).len(), 1, "{kind:?}");
    }
    assert_eq!(catalog.resource(&Scope::All, "s+a:b"), Lookup::NotFound);
    assert_eq!(catalog.resource(&Scope::All, "a:b"), Lookup::NotFound);
    assert_eq!(catalog.resource(&server("s"), "a:b"), found("s", "a:b"));
    assert_eq!(catalog.instructions(&Scope::All, |_| true).as_deref(), None);
    assert_eq!(
        catalog.instructions(&server("s"), |_| true).as_deref(),
        Some("Be brief.")
    );
}

#[test]
fn odd_items_cost_only_themselves() {
    let odd = [
        "7",
        "null",
        "[]",
        "{}",
        r#"{"name":null}"#,
        r#"{"name":7}"#,
        r#"{"name":""}"#,
        r#"{"name":"\ud800"}"#,
        r#"{"name":"twice","v":1}"#,
        r#"{"name":"twice","v":2}"#,
        r#"{"name":"good"}"#,
    ];
    let catalog = Catalog::build(&naming(), &[listed("s", tools(odd))]);
    let own = catalog.list(&server("s"), Kind::Tools);
    assert_eq!(
        own.array().as_str(),
        r#"[{"name":"twice","v":1},{"name":"good"}]"#
    );
    let problems: Vec<String> = catalog.problems().iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(problems.join("\n"), @r"
    s: tools: item 0 is not an object; it is not served
    s: tools: item 1 is not an object; it is not served
    s: tools: item 2 is not an object; it is not served
    s: tools: item 3 has no usable `name`; it is not served
    s: tools: item 4 has no usable `name`; it is not served
    s: tools: item 5 has no usable `name`; it is not served
    s: tools: item 6 has no usable `name`; it is not served
    s: tools: item 7 has no usable `name`; it is not served
    s: tools: `twice` is listed more than once; only the first is served
    ");
}

#[test]
fn problems_read_well() {
    let listing = Listing {
        resources: vec![raw(r#"{"name":"no uri"}"#)],
        instructions: Some("x".repeat(SERVER_CHARACTERS_MAX + 1)),
        ..tools([
            r#"{"name":"a.b"}"#,
            r#"{"name":"a-b"}"#,
            r#"{"name":"taken"}"#,
            r#"{"name":"old"}"#,
            r#"{"name":"a_name_that_does_not_fit_into_forty_eight_characters"}"#,
            r#"{"name":"h","inputSchema":{"properties":{"p":{"type":"number","x-mcp-header":"P"}}}}"#,
        ])
    };
    let mut first = listed("s.1", listing);
    let rename = [("old".to_owned(), "taken".to_owned())];
    config(&mut first).tools.rename = rename.into_iter().collect();
    let catalog = Catalog::build(&naming(), &[first, offer("s-1", &["a_b"])]);
    let problems: Vec<String> = catalog.problems().iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(problems.join("\n"), @r"
    s.1: tools: `h`: x-mcp-header `P` is on a property that is not a string, integer or boolean; the annotation is left out
    s.1: tools: `taken` is not served, since the config renames `old` to `taken`
    s.1: resources: item 0 has no usable `uri`; it is not served
    s.1: tools: `a.b` shares the exposed name `mcp_s_1_a_b` with s-1, s.1; it is exposed as `mcp_s_1_a_b_7744f5f8`
    s.1: tools: `a-b` shares the exposed name `mcp_s_1_a_b` with s-1, s.1; it is exposed as `mcp_s_1_a_b_d8b19523`
    s.1: tools: `a_name_that_does_not_fit_into_forty_eight_characters` is exposed as `mcp_s_1_a_name_that_does_not_fit_into_f_2154e357`, since its name is too long
    s-1: tools: `a_b` shares the exposed name `mcp_s_1_a_b` with s.1; it is exposed as `mcp_s_1_a_b_cf5d3ffa`
    s.1: instructions are cut after 4096 characters on merged routes
    ");
}

#[test]
fn a_renamed_item_keeps_the_name_the_operator_chose() {
    let mut offer = offer("s", &["search", "find", "swap", "pws"]);
    let renames = [("find", "search"), ("swap", "pws"), ("pws", "swap")];
    let renames = renames.map(|(from, to)| (from.to_owned(), to.to_owned()));
    config(&mut offer).tools.rename = renames.into_iter().collect();
    let catalog = Catalog::build(&naming(), &[offer]);
    let original = |name: &str| {
        catalog
            .tool(&Scope::All, &format!("mcp_s_{name}"))
            .map(|tool| tool.original.to_string())
    };
    assert_eq!(original("search").as_deref(), Some("find"));
    assert_eq!(original("find"), None);
    assert_eq!(original("swap").as_deref(), Some("pws"));
    assert_eq!(original("pws").as_deref(), Some("swap"));
}

#[test]
fn broken_header_annotations_follow_the_transport() {
    let good = r#"{"name":"good","inputSchema":{"properties":{"p":{"type":"string","x-mcp-header":"P"}}}}"#;
    let bad = r#"{"name":"bad","inputSchema":{"properties":{"p":{ "x-mcp-header" : "P", "type":"number"},"q":{"type":"string","x-mcp-header":"Q"}}}}"#;
    let stripped = r#"{"name":"bad","inputSchema":{"properties":{"p":{ "type":"number"},"q":{"type":"string","x-mcp-header":"Q"}}}}"#;
    let mut offer = listed("s", tools([good, bad]));
    let catalog = Catalog::build(&naming(), std::slice::from_ref(&offer));
    let own = catalog.list(&server("s"), Kind::Tools);
    assert_eq!(own.array().as_str(), format!("[{good},{stripped}]"));
    let headers = &catalog.tool(&Scope::All, "mcp_s_bad").unwrap().headers;
    assert_eq!(
        headers
            .iter()
            .map(|param| param.header.as_str())
            .collect::<Vec<_>>(),
        ["Q"]
    );
    offer.modern_http = true;
    let catalog = Catalog::build(&naming(), &[offer]);
    assert_eq!(names(&catalog), ["mcp_s_good"]);
    assert_eq!(catalog.tool(&server("s"), "good").unwrap().headers.len(), 1);
    assert_eq!(catalog.problems().len(), 1);
}

#[test]
fn hints_are_read_and_default_to_no() {
    let check = |annotations: &str, read_only: bool, idempotent: bool| {
        let text = format!(r#"{{"name":"t","annotations":{annotations}}}"#);
        let catalog = Catalog::build(&naming(), &[listed("s", tools([text.as_str()]))]);
        let hints = catalog.tool(&Scope::All, "mcp_s_t").unwrap().hints;
        let expect = Hints {
            read_only,
            idempotent,
        };
        assert_eq!(hints, expect, "{annotations}");
    };
    check("{}", false, false);
    check("null", false, false);
    check(r#"{"readOnlyHint":true}"#, true, false);
    check(
        r#"{"readOnlyHint":"true","idempotentHint":true}"#,
        false,
        true,
    );
    check(r#"{"readOnlyHint":false,"idempotentHint":1}"#, false, false);
}

#[test]
fn links_of_tools_are_exposed_like_the_resources_they_name() {
    let text = r#"{"name":"t","_meta":{"ui":{"resourceUri":"ui://a/b","visibility":["app"]},"ui/resourceUri":"ui://a/b","openai/outputTemplate":"ui://c","vendor/uri":"ui://d"}}"#;
    let listing = Listing {
        resources: vec![raw(r#"{"uri":"ui://a/b"}"#)],
        ..tools([text])
    };
    let catalog = Catalog::build(&naming(), &[listed("gh", listing)]);
    let expect = text
        .replace("ui://a", "ui://gh/a")
        .replace("ui://c", "ui://gh/c")
        .replace(r#""name":"t""#, r#""name":"mcp_gh_t""#);
    let item = &catalog.tool(&Scope::All, "mcp_gh_t").unwrap().item;
    assert_eq!(item.as_str(), expect);
    assert_eq!(exposed(&catalog, Kind::Resources), ["ui://gh/a/b"]);
    assert_eq!(
        catalog.tool(&server("gh"), "t").unwrap().item.as_str(),
        text
    );
    // The view is not listed, yet the tool links to it.
    assert_eq!(
        catalog.resource(&Scope::All, "ui://gh/c"),
        found("gh", "ui://c")
    );
    assert_eq!(
        catalog.resource(&Scope::All, "ui://c"),
        found("gh", "ui://c")
    );
}

#[test]
fn resources_are_found_by_their_exposed_uri() {
    let catalog = Catalog::build(&naming(), &[files(), database()]);
    let uris = [
        "fs+file:///a",
        "fs://file.txt",
        "postgres+postgres://db/users",
    ];
    assert_eq!(exposed(&catalog, Kind::Resources), uris);
    let templates = ["fs+file:///{name}", "postgres+postgres://db/{table}"];
    assert_eq!(exposed(&catalog, Kind::Templates), templates);
    let check = |uri: &str, expect: Lookup| {
        assert_eq!(catalog.resource(&Scope::All, uri), expect, "{uri}");
    };
    check("fs+file:///a", found("fs", "file:///a"));
    check("fs://file.txt", found("fs", "file.txt"));
    check("fs+file:///{name}", found("fs", "file:///{name}"));
    // Neither listed nor matched: the server may have it all the same.
    check("fs+ftp://x", found("fs", "ftp://x"));
    check("fs://other.txt", found("fs", "other.txt"));
    // Without a prefix, by listing and by template.
    check("file:///a", found("fs", "file:///a"));
    check("file.txt", found("fs", "file.txt"));
    check("file:///b", found("fs", "file:///b"));
    check("ftp://x", Lookup::NotFound);
    check("other.txt", Lookup::NotFound);
    check("", Lookup::NotFound);
    // The server's name is its own scheme.
    check(
        "postgres+postgres://db/users",
        found("postgres", "postgres://db/users"),
    );
    check(
        "postgres://db/users",
        found("postgres", "postgres://db/users"),
    );
    check(
        "postgres://db/orders",
        found("postgres", "postgres://db/orders"),
    );
    check("postgres://bare", found("postgres", "bare"));
    // Somebody else's prefix.
    check("gh+file:///a", Lookup::NotFound);
}

#[test]
fn a_uri_that_two_servers_claim_is_ambiguous() {
    let mut other = files();
    other.server = name("other");
    let catalog = Catalog::build(&naming(), &[files(), other]);
    let both = Lookup::Ambiguous {
        servers: vec![name("fs"), name("other")],
    };
    assert_eq!(
        catalog.resource(&Scope::All, "file:///a"),
        both,
        "listed twice"
    );
    assert_eq!(
        catalog.resource(&Scope::All, "file:///b"),
        both,
        "matched twice"
    );
    assert_eq!(
        catalog.resource(&Scope::All, "other+file:///a"),
        found("other", "file:///a")
    );
    assert_eq!(
        catalog.resource(&server("other"), "file:///a"),
        found("other", "file:///a")
    );
}

#[test]
fn denied_uris_are_not_found_however_they_are_written() {
    let mut offer = files();
    config(&mut offer).resources.deny = vec![glob("file:///secret*"), glob("file:///a")];
    let catalog = Catalog::build(&naming(), &[offer]);
    assert_eq!(exposed(&catalog, Kind::Resources), ["fs://file.txt"]);
    for uri in [
        "fs+file:///a",
        "file:///a",
        "fs+file:///secret",
        "file:///secret",
        "fs+file:///b/../secret",
        "fs+file:///b/%2e%2e/a",
        "fs+file:///%61",
        "fs+file://localhost/a",
    ] {
        assert_eq!(
            catalog.resource(&Scope::All, uri),
            Lookup::NotFound,
            "{uri}"
        );
    }
    let unruled = Catalog::build(&naming(), &[files()]);
    let upwards = "file:///b/../secret";
    assert_eq!(
        unruled.resource(&server("fs"), upwards),
        found("fs", upwards)
    );
    assert_eq!(
        catalog.resource(&server("fs"), "file:///secret"),
        Lookup::NotFound
    );
    assert_eq!(
        catalog.resource(&server("fs"), "file:///b"),
        found("fs", "file:///b")
    );
    assert_eq!(
        catalog.resource(&server("gone"), "file:///b"),
        Lookup::NotFound
    );
}

#[test]
fn originals_stay_without_namespaces() {
    let check = |conflict: Conflict, expect: &[&str], shared: Lookup| {
        let naming = Naming {
            conflict,
            namespace_resources: false,
            ..naming()
        };
        let mut other = listed("other", resources(["file:///a", "x:y"]));
        config(&mut other).priority = 1;
        let catalog = Catalog::build(&naming, &[files(), other]);
        assert_eq!(exposed(&catalog, Kind::Resources), expect, "{conflict:?}");
        assert_eq!(exposed(&catalog, Kind::Templates), ["file:///{name}"]);
        let look = |uri| catalog.resource(&Scope::All, uri);
        assert_eq!(look("file:///a"), shared, "{conflict:?}");
        assert_eq!(look("x:y"), found("other", "x:y"));
        assert_eq!(look("file:///b"), found("fs", "file:///b"));
        assert_eq!(look("fs+file:///a"), found("fs", "file:///a"));
        assert_eq!(look("fs+file:///b"), found("fs", "file:///b"));
        assert_eq!(look("z:unclaimed"), Lookup::NotFound);
    };
    let ambiguous = Lookup::Ambiguous {
        servers: vec![name("fs"), name("other")],
    };
    let all = ["file.txt", "fs+file:///a", "other+file:///a", "x:y"];
    check(Conflict::Namespace, &all, ambiguous.clone());
    check(Conflict::Error, &["file.txt", "x:y"], ambiguous);
    let one = ["file.txt", "file:///a", "x:y"];
    check(Conflict::First, &one, found("fs", "file:///a"));
    check(Conflict::Priority, &one, found("other", "file:///a"));
}

#[test]
fn without_namespaces_the_only_server_gets_every_uri() {
    let naming = Naming {
        namespace_resources: false,
        ..naming()
    };
    let catalog = Catalog::build(&naming, &[files(), offer("tools_only", &["t"])]);
    assert_eq!(
        catalog.resource(&Scope::All, "z:unlisted"),
        found("fs", "z:unlisted")
    );
}

#[test]
fn the_map_of_a_server_agrees_with_its_list() {
    let catalog = Catalog::build(&naming(), &[files()]);
    let map = catalog.uris(&Scope::All, &name("fs"));
    assert_eq!(map.expose("file:///a"), "fs+file:///a");
    assert!(catalog.uris(&server("fs"), &name("fs")).is_identity());
    assert!(catalog.uris(&Scope::All, &name("gone")).is_identity());
}

#[test]
fn servers_with_one_prefix_are_told_apart() {
    let listing = resources(["file:///a"]);
    let catalog = Catalog::build(
        &naming(),
        &[listed("a.b", listing.clone()), listed("A.b", listing)],
    );
    let uris = exposed(&catalog, Kind::Resources);
    assert_eq!(uris.len(), 2);
    let servers: Vec<_> = uris
        .iter()
        .map(|uri| catalog.resource(&Scope::All, uri))
        .collect();
    assert!(servers.contains(&found("a.b", "file:///a")), "{uris:?}");
    assert!(servers.contains(&found("A.b", "file:///a")), "{uris:?}");
    assert_eq!(catalog.problems().len(), 2);
}

#[test]
fn listings_are_told_apart_and_joined_by_name() {
    let listing = |names: &[&str]| Listing {
        tools: names
            .iter()
            .map(|name| Raw::from_value(&serde_json::json!({ "title": names, "name": name })))
            .collect(),
        ..Listing::default()
    };
    let names = |listing: &Listing| -> Vec<String> {
        let names = listing.tools.iter().map(|tool| tool.get("name"));
        names
            .map(|name| name.unwrap().as_str().to_owned())
            .collect()
    };
    let (base, mut more) = (listing(&["a", "b"]), listing(&["b", "c", "d"]));
    more.pages.tools = Some(FirstPage::default());
    let beyond = more.beyond(&base);
    assert_eq!(names(&beyond), ["\"c\"", "\"d\""]);
    assert!(base.beyond(&base).is_empty() && !beyond.is_empty());

    // The server may list one of them for everyone by now: then it is there once, as it is there.
    let mut now = listing(&["a", "c"]);
    let c = now.tools[1].clone();
    now.extend(&beyond);
    assert_eq!(names(&now), ["\"a\"", "\"c\"", "\"d\""]);
    assert_eq!((&now.tools[1], &now.pages.tools), (&c, &more.pages.tools));
}

#[test]
fn resources_are_renamed_for_people_only() {
    let text = r#"{"uri":"a:b","name":"old","icons":[{"src":"c:d"}]}"#;
    let mut offer = listed(
        "s",
        Listing {
            resources: vec![raw(text), raw(r#"{"uri":"c:d"}"#)],
            ..Listing::default()
        },
    );
    let renames = ["a:b", "c:d"].map(|uri| (uri.to_owned(), "New".to_owned()));
    config(&mut offer).resources.rename = renames.into_iter().collect();
    let catalog = Catalog::build(&naming(), &[offer]);
    let merged = catalog.list(&Scope::All, Kind::Resources);
    let expect =
        r#"[{"uri":"s+a:b","name":"New","icons":[{"src":"c:d"}]},{"name":"New","uri":"s+c:d"}]"#;
    assert_eq!(merged.array().as_str(), expect);
}

#[test]
fn freshness_is_the_least_of_all_parts() {
    let part = |server: &str, page: Option<(Option<u64>, bool)>| {
        let mut offer = offer(server, &["t"]);
        Arc::make_mut(&mut offer.listing).pages.tools = page.map(|(ttl_ms, public)| FirstPage {
            ttl_ms,
            public,
            rest: Some(raw(r#"{"x":1}"#)),
        });
        offer
    };
    let check = |offers: &[Offer], ttl_ms: u64, public: bool| {
        let catalog = Catalog::build(&naming(), offers);
        let freshness = catalog.list(&Scope::All, Kind::Tools).freshness();
        assert_eq!(freshness, Freshness { ttl_ms, public });
    };
    let (long, short) = (
        part("a", Some((Some(900), true))),
        part("b", Some((Some(300), true))),
    );
    check(&[long.clone(), short.clone()], 300, true);
    check(&[long.clone(), part("b", Some((None, true)))], 0, true);
    check(
        &[long.clone(), part("b", Some((Some(900), false)))],
        900,
        false,
    );
    check(&[long.clone(), part("b", None)], 0, false);
    check(&[long.clone(), offer("b", &[])], 900, true);
    let mut hidden = part("b", None);
    config(&mut hidden).expose.tools = false;
    check(&[long.clone(), hidden], 900, true);
    check(&[], 0, false);
    let catalog = Catalog::build(&naming(), &[long, short]);
    let own = catalog.list(&server("b"), Kind::Tools);
    assert_eq!(own.freshness().ttl_ms, 300);
    assert_eq!(own.rest().map(Raw::as_str), Some(r#"{"x":1}"#));
    assert_eq!(catalog.list(&Scope::All, Kind::Tools).rest(), None);
}

#[test]
fn instructions_are_merged_by_server() {
    let says = |server: &str, text: &str| {
        listed(
            server,
            Listing {
                instructions: Some(text.to_owned()),
                ..Listing::default()
            },
        )
    };
    let own = "Use me.\n# Server b\u{7}";
    let catalog = Catalog::build(
        &naming(),
        &[says("a", own), offer("x", &["t"]), says("b", " B ")],
    );
    let merged = "# Server a\n\nUse me.\n    # Server b\n\n# Server b\n\nB";
    assert_eq!(
        catalog.instructions(&Scope::All, |_| true).as_deref(),
        Some(merged)
    );
    assert_eq!(
        catalog.instructions(&server("a"), |_| true).as_deref(),
        Some(own)
    );
    assert_eq!(
        catalog.instructions(&server("x"), |_| true).as_deref(),
        None
    );
    let length = |count: usize| {
        let catalog = Catalog::build(&naming(), &[says("a", &"ü".repeat(count))]);
        let merged = catalog.instructions(&Scope::All, |_| true).unwrap();
        let problems = catalog.problems().len();
        (merged.chars().filter(|c| *c == 'ü').count(), problems)
    };
    let limit = SERVER_CHARACTERS_MAX;
    assert_eq!(length(limit), (limit, 0));
    assert_eq!(length(limit + 1), (limit, 1));
    let many = 1 + MERGED_CHARACTERS_MAX / limit;
    let offers: Vec<Offer> = (0..many)
        .map(|at| says(&format!("s{at}"), &"ü".repeat(limit)))
        .collect();
    let catalog = Catalog::build(&naming(), &offers);
    let merged = catalog.instructions(&Scope::All, |_| true).unwrap();
    assert_eq!(
        merged.chars().filter(|c| *c == 'ü').count(),
        MERGED_CHARACTERS_MAX
    );
    assert_eq!(catalog.problems().len(), 1);
}

#[test]
fn pages_cover_the_list_once() {
    let catalog = Catalog::build(&naming(), &[offer("s", &["a", "b", "c", "d", "e"])]);
    let view = catalog.list(&server("s"), Kind::Tools);
    for size in [0, 1, 2, 4, 5, 6, usize::MAX] {
        let (mut offset, mut items) = (Some(0), Vec::new());
        while let Some(at) = offset {
            let page = view.page(at, Some(size)).unwrap();
            items.push(page.items);
            offset = page.next;
        }
        assert_eq!(
            format!("[{}]", items.join(",")),
            view.array().as_str(),
            "{size}"
        );
    }
    let whole = view.page(0, None).unwrap();
    assert_eq!(
        (whole.items.len() + 2, whole.next),
        (view.array().as_str().len(), None)
    );
    assert_eq!(view.page(4, None).unwrap().next, None);
    assert_eq!(view.page(5, None), None);
    assert_eq!(view.page(usize::MAX, Some(1)), None);
    let none = catalog.list(&server("gone"), Kind::Tools);
    assert_eq!(
        none.page(0, Some(3)),
        Some(Page {
            items: "".into(),
            next: None
        })
    );
    assert_eq!(none.page(1, Some(3)), None);
}

#[test]
fn the_version_tells_snapshots_apart() {
    let build = |offers: &[Offer]| Catalog::build(&naming(), offers).version();
    let base = build(&[offer("a", &["x"]), offer("b", &["y"])]);
    assert_eq!(build(&[offer("a", &["x"]), offer("b", &["y"])]), base);
    assert_ne!(build(&[offer("a", &["x"]), offer("b", &["z"])]), base);
    assert_ne!(build(&[offer("a", &["x"])]), base);
    let mut told = offer("b", &["y"]);
    Arc::make_mut(&mut told.listing).instructions = Some("i".to_owned());
    assert_ne!(build(&[offer("a", &["x"]), told]), base);
    let mut described = offer("b", &["y"]);
    let text = [("y".to_owned(), "d".to_owned())];
    config(&mut described).tools.describe = text.into_iter().collect();
    assert_ne!(build(&[offer("a", &["x"]), described]), base);
}

#[test]
fn snapshots_are_shared_between_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Catalog>();
    check::<Offer>();
}

#[test]
fn large_catalogs_are_built() {
    let description = "d".repeat(400);
    let offers: Vec<Offer> = (0..20)
        .map(|at| {
            let tools = (0..500).map(|n| {
                let name = format!("tool_number_{n}_with_a_rather_long_name_{}", n * at);
                raw(&format!(
                    r#"{{"name":"{name}","description":"{description}","inputSchema":{{"type":"object","properties":{{"a":{{"type":"string"}}}}}}}}"#
                ))
            });
            let tools = tools.collect();
            listed(&format!("server-{at}"), Listing { tools, ..Listing::default() })
        })
        .collect();
    let catalog = Catalog::build(&naming(), &offers);
    let view = catalog.list(&Scope::All, Kind::Tools);
    assert_eq!(view.len(), 10_000);
    for entry in view.entries() {
        let tool = catalog.tool(&Scope::All, &entry.exposed).unwrap();
        assert_eq!(
            (&tool.server, &tool.original),
            (&entry.server, &entry.original)
        );
        assert!(entry.exposed.len() <= 48);
    }
}

/// Servers whose tools are few and alike, so that names collide in every way.
fn alike() -> impl Strategy<Value = Vec<(String, Vec<String>)>> {
    let tool = prop::sample::select(vec![
        "a",
        "a.b",
        "a-b",
        "a_b",
        "b_a",
        "x",
        "twelve_chars",
        "twelve.chars",
        "longer_than_twelve",
        "a_b_8c9f1e2d",
        "größe",
        "gr__e",
    ]);
    let server = prop::sample::select(vec!["a", "a_b", "b", "A", "c.d", "c_d", "long-server-name"]);
    let tools = prop::collection::hash_set(tool.prop_map(str::to_owned), 0..8);
    let tools = tools.prop_map(|tools| tools.into_iter().collect());
    prop::collection::hash_map(server.prop_map(str::to_owned), tools, 0..6)
        .prop_map(|servers| servers.into_iter().collect())
}

fn conflict() -> impl Strategy<Value = Conflict> {
    prop::sample::select(vec![
        Conflict::Error,
        Conflict::First,
        Conflict::Namespace,
        Conflict::Priority,
    ])
}

type Route = (String, String, String);

fn routes(naming: &Naming, servers: &[(String, Vec<String>)]) -> Vec<Route> {
    let offers: Vec<Offer> = servers
        .iter()
        .map(|(server, tools)| {
            let mut offer = offer(
                server,
                &tools.iter().map(String::as_str).collect::<Vec<_>>(),
            );
            config(&mut offer).priority = i32::try_from(server.len()).unwrap() % 3;
            offer
        })
        .collect();
    let catalog = Catalog::build(naming, &offers);
    let view = catalog.list(&Scope::All, Kind::Tools);
    let routes = view.entries().iter().map(|entry| {
        let tool = catalog.tool(&Scope::All, &entry.exposed).unwrap();
        (
            entry.exposed.to_string(),
            tool.server.to_string(),
            tool.original.to_string(),
        )
    });
    routes.collect()
}

proptest! {
    #[test]
    fn names_do_not_depend_on_order(
        servers in alike(),
        conflict in conflict(),
        template in prop::sample::select(vec!["{tool}", "mcp_{server}_{tool}", "{server}{tool}"]),
        max_length in prop::sample::select(vec![12usize, 20, 48]),
        seed in any::<u64>(),
    ) {
        let naming = Naming {
            template: template.to_owned(),
            conflict,
            max_length,
            ..naming()
        };
        let expected = routes(&naming, &servers);
        for (name, _, _) in &expected {
            prop_assert!(name.chars().count() <= max_length);
            prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
        }
        for pair in expected.windows(2) {
            prop_assert!(pair[0].0 < pair[1].0, "{} and {}", pair[0].0, pair[1].0);
        }
        if conflict == Conflict::Namespace {
            let items: usize = servers.iter().map(|(_, tools)| tools.len()).sum();
            prop_assert_eq!(expected.len(), items);
        }
        let mut shuffled = servers.clone();
        let turn = |length: usize| if length == 0 { 0 } else { usize::try_from(seed % 97).unwrap() % length };
        for (_, tools) in &mut shuffled {
            let by = turn(tools.len());
            tools.rotate_left(by);
            tools.reverse();
        }
        // The order of servers is the config's, and matters where the rule says so.
        if matches!(conflict, Conflict::Error | Conflict::Namespace) {
            let by = turn(shuffled.len());
            shuffled.rotate_left(by);
            shuffled.reverse();
        }
        prop_assert_eq!(routes(&naming, &shuffled), expected);
    }

    #[test]
    fn digests_change_with_the_bytes(one in alike(), other in alike()) {
        let build = |servers: &[(String, Vec<String>)]| {
            let offers: Vec<Offer> = servers
                .iter()
                .map(|(server, tools)| offer(server, &tools.iter().map(String::as_str).collect::<Vec<_>>()))
                .collect();
            Catalog::build(&naming(), &offers)
        };
        let (one, other) = (build(&one), build(&other));
        let (one, other) = (one.list(&Scope::All, Kind::Tools), other.list(&Scope::All, Kind::Tools));
        prop_assert_eq!(one.digest() == other.digest(), one.array() == other.array());
        for (a, b) in one.entries().iter().zip(other.entries()) {
            prop_assert_eq!(a.digest == b.digest, a.item == b.item);
        }
    }
}

#[test]
fn profiles_show_what_their_globs_and_tags_say() {
    let mut tagged = offer("docs", &["search", "read"]);
    config(&mut tagged).tags = vec!["safe".to_owned()];
    let offers = [tagged, offer("gh", &["get_me", "delete_repo"]), files()];
    let check = |profile: Profile, tools: &[&str], resources: usize| {
        let catalog = with_profile(&naming(), &profile, &offers);
        assert_eq!(
            shown(&catalog, &reading(), Kind::Tools),
            tools,
            "{profile:?}"
        );
        assert_eq!(
            catalog.list(&reading(), Kind::Resources).len(),
            resources,
            "{profile:?}"
        );
    };
    let tools = |globs: &[&str]| Profile {
        tools: Some(globs.iter().map(|text| glob(text)).collect()),
        ..profile()
    };
    let all = [
        "mcp_docs_read",
        "mcp_docs_search",
        "mcp_gh_delete_repo",
        "mcp_gh_get_me",
    ];
    check(profile(), &all, 2);
    check(tools(&[]), &[], 2);
    check(
        tools(&["docs/*", "gh/get_*"]),
        &["mcp_docs_read", "mcp_docs_search", "mcp_gh_get_me"],
        2,
    );
    check(tools(&["mcp_gh_*"]), &all[2..], 2);
    check(tools(&["get_me", "gh/*/x"]), &[], 2);
    check(tools(&["**"]), &all, 2);
    // `Glob::new` lets `*` match `/`; here it does not.
    check(tools(&["d*"]), &[], 2);
    let tags = |tags: &[&str]| Profile {
        tags: Some(tags.iter().map(|tag| (*tag).to_owned()).collect()),
        ..profile()
    };
    check(tags(&["safe", "other"]), &all[..2], 0);
    check(tags(&["other"]), &[], 0);
    let both = Profile {
        tools: tools(&["**/read", "gh/*"]).tools,
        ..tags(&["safe"])
    };
    check(both, &all[..1], 0);
}

#[test]
fn profiles_rename_and_describe() {
    let text = r#"{"name":"search","description":"old","name":"search","x":1.50}"#;
    let offers = [
        listed("docs", tools([text, r#"{"name":"plain"}"#])),
        offer("gh", &["get"]),
    ];
    let profile = Profile {
        rename: map([("mcp_docs_search", "find"), ("mcp_gh_get", "a")]),
        describe: map([("mcp_docs_search", "new"), ("mcp_docs_plain", "said")]),
        ..profile()
    };
    let catalog = with_profile(&naming(), &profile, &offers);
    let list = catalog.list(&reading(), Kind::Tools).array().as_str();
    let plain = r#"{"description":"said","name":"mcp_docs_plain"}"#;
    let found = r#"{"name":"find","description":"new","name":"find","x":1.50}"#;
    let got = r#"{ "name": "a", "inputSchema": {"type":"object"} }"#;
    assert_eq!(list, format!("[{got},{found},{plain}]"));
    let tool = catalog.tool(&reading(), "find").unwrap();
    assert_eq!(
        (
            &*tool.original,
            &*tool.merged,
            &*tool.alias,
            tool.server.as_str()
        ),
        ("search", "mcp_docs_search", "find", "docs")
    );
    assert!(catalog.tool(&reading(), "mcp_docs_search").is_none());
    assert!(catalog.tool(&Scope::All, "find").is_none());
    assert_eq!(
        &*catalog.tool(&Scope::All, "mcp_docs_search").unwrap().alias,
        ""
    );
    assert_eq!(catalog.problems(), []);
}

#[test]
fn a_name_that_a_profile_gives_twice_is_a_problem() {
    let mut short = naming();
    short.template = "{tool}".to_owned();
    let offers = [
        offer("docs", &["search", "look", "read"]),
        offer("gh", &["find"]),
    ];
    let check = |renames: &[(&str, &str)], names: &[&str], problems: &[&str]| {
        let profile = Profile {
            rename: renames
                .iter()
                .map(|(from, to)| ((*from).to_owned(), (*to).to_owned()))
                .collect(),
            ..profile()
        };
        let catalog = with_profile(&short, &profile, &offers);
        assert_eq!(
            shown(&catalog, &reading(), Kind::Tools),
            names,
            "{renames:?}"
        );
        let found: Vec<String> = catalog.problems().iter().map(ToString::to_string).collect();
        assert_eq!(found, problems, "{renames:?}");
    };
    check(
        &[("gone", "find")],
        &["find", "look", "read", "search"],
        &[],
    );
    check(
        &[("find", "look"), ("look", "find")],
        &["find", "look", "read", "search"],
        &[],
    );
    check(
        &[("search", "find")],
        &["find", "look", "read"],
        &[
            "gh: tools: `find` is not served in the profile `reading`, which renames `search` to `find`",
        ],
    );
    check(
        &[("search", "x"), ("look", "x")],
        &["find", "read", "x"],
        &[
            "docs: tools: `search` is not served in the profile `reading`, which renames `look` to `x`",
        ],
    );
    check(
        &[("find", "find")],
        &["find", "look", "read", "search"],
        &[],
    );
    // What the profile does not show is not in the way.
    let hides = Profile {
        tools: Some(vec![glob("docs/*")]),
        rename: map([("search", "find")]),
        ..profile()
    };
    let catalog = with_profile(&short, &hides, &offers);
    assert_eq!(
        shown(&catalog, &reading(), Kind::Tools),
        ["find", "look", "read"]
    );
    assert_eq!(catalog.problems(), []);
}

#[test]
fn resources_of_a_profile_are_those_it_shows() {
    let mut fs = files();
    config(&mut fs).tags = vec!["safe".to_owned()];
    let offers = [fs, database()];
    let only = |globs: &[&str]| Profile {
        resources: Some(globs.iter().map(|text| glob(text)).collect()),
        ..profile()
    };
    let check = |profile: Profile, uri: &str, expect: Lookup| {
        let catalog = with_profile(&naming(), &profile, &offers);
        assert_eq!(
            catalog.resource(&reading(), uri),
            expect,
            "{profile:?} {uri}"
        );
        if let Lookup::Found { server, original } = expect {
            assert!(catalog.shows_resource(&reading(), &server, &original));
        }
    };
    let pg = "postgres+postgres://db/users";
    check(profile(), "fs+file:///a", found("fs", "file:///a"));
    check(profile(), pg, found("postgres", "postgres://db/users"));
    let one = || only(&["fs/file:///{a,b}", "fs+file:///c"]);
    check(one(), "fs+file:///a", found("fs", "file:///a"));
    check(one(), "file:///a", found("fs", "file:///a"));
    check(one(), "fs+file:///b", found("fs", "file:///b"));
    check(one(), "fs+file:///c", found("fs", "file:///c"));
    check(one(), "fs+file:///d", Lookup::NotFound);
    let all = || only(&["fs/file:///**"]);
    check(all(), "fs+file:///x/d", found("fs", "file:///x/d"));
    check(all(), "fs+file:///x/../d", Lookup::NotFound);
    check(one(), "fs://file.txt", Lookup::NotFound);
    check(one(), pg, Lookup::NotFound);
    check(
        only(&["fs/file:///{name}"]),
        "fs+file:///{name}",
        Lookup::NotFound,
    );
    check(
        only(&["fs/file:///?name?"]),
        "fs+file:///{name}",
        found("fs", "file:///{name}"),
    );
    let safe = Profile {
        tags: Some(vec!["safe".to_owned()]),
        ..profile()
    };
    check(safe.clone(), "fs+file:///a", found("fs", "file:///a"));
    check(safe, pg, Lookup::NotFound);
    let catalog = with_profile(&naming(), &one(), &offers);
    let listed = |kind| shown(&catalog, &reading(), kind).join(" ");
    assert_eq!(listed(Kind::Resources), "fs+file:///a");
    assert_eq!(listed(Kind::Templates), "");
    assert!(!catalog.shows_resource(&reading(), &name("fs"), "file:///d"));
    assert!(!catalog.shows_resource(&reading(), &name("gone"), "file:///a"));
    let other = Scope::Profile(ProfileName::parse("other").unwrap());
    assert_eq!(catalog.resource(&other, "fs+file:///a"), Lookup::NotFound);
    assert!(!catalog.shows_resource(&other, &name("fs"), "file:///a"));
}

/// An unprefixed URI that two servers claim is clear where the profile shows one of them.
#[test]
fn a_profile_settles_what_is_ambiguous() {
    let offers = [files(), listed("other", resources(["file:///a"]))];
    let profile = Profile {
        resources: Some(vec![glob("other/**")]),
        ..profile()
    };
    let catalog = with_profile(&naming(), &profile, &offers);
    let ambiguous = Lookup::Ambiguous {
        servers: vec![name("fs"), name("other")],
    };
    assert_eq!(catalog.resource(&Scope::All, "file:///a"), ambiguous);
    assert_eq!(
        catalog.resource(&reading(), "file:///a"),
        found("other", "file:///a")
    );
    assert_eq!(
        catalog.resource(&reading(), "fs+file:///a"),
        Lookup::NotFound
    );
}

#[test]
fn instructions_of_a_profile_are_those_of_its_servers() {
    let says = |server: &str, tools: &[&str]| {
        let mut offer = offer(server, tools);
        Arc::make_mut(&mut offer.listing).instructions = Some(format!("use {server}"));
        offer
    };
    let offers = [says("a", &["x"]), says("b", &["y"]), says("c", &[])];
    let check = |profile: Profile, expect: Option<&str>| {
        let catalog = with_profile(&naming(), &profile, &offers);
        assert_eq!(
            catalog.instructions(&reading(), |_| true).as_deref(),
            expect,
            "{profile:?}"
        );
    };
    let merged = "# Server a\n\nuse a\n\n# Server b\n\nuse b\n\n# Server c\n\nuse c";
    check(profile(), Some(merged));
    let tools = |text: &str| Profile {
        tools: Some(vec![glob(text)]),
        ..profile()
    };
    check(tools("b/*"), Some("# Server b\n\nuse b"));
    check(tools("none"), None);
}

#[test]
fn a_profile_changes_only_with_its_own_view() {
    let profile = Profile {
        tools: Some(vec![glob("docs/*")]),
        ..profile()
    };
    let digest = |offers: &[Offer]| {
        let catalog = with_profile(&naming(), &profile, offers);
        let digest = catalog.list(&reading(), Kind::Tools).digest();
        (digest, catalog.version())
    };
    let before = digest(&[offer("docs", &["a"]), offer("gh", &["b"])]);
    let beside = digest(&[offer("docs", &["a"]), offer("gh", &["b", "c"])]);
    let within = digest(&[offer("docs", &["a", "c"]), offer("gh", &["b"])]);
    assert_eq!(before.0, beside.0);
    assert_ne!(before.0, within.0);
    assert_ne!(before.1, beside.1);
    let plain = Catalog::build(&naming(), &[offer("docs", &["a"])]).version();
    let viewed = with_profile(&naming(), &profile, &[offer("docs", &["a"])]).version();
    assert_ne!(plain, viewed, "cursors know of the profiles");
}

/// What policies know an item by is the same on every route.
#[test]
fn items_have_one_merged_name_on_every_route() {
    let mut hidden = offer("hidden", &["t"]);
    config(&mut hidden).expose.tools = false;
    let offers = [files(), offer("gh", &["get.me"]), hidden];
    let profile = Profile {
        rename: map([("mcp_gh_get_me", "me")]),
        ..profile()
    };
    let catalog = with_profile(&naming(), &profile, &offers);
    let check = |scope: &Scope, kind: Kind, expect: &[[&str; 3]]| {
        let entries = catalog.list(scope, kind).entries().iter();
        let found: Vec<_> = entries
            .map(|entry| [&*entry.exposed, &*entry.merged, &*entry.alias])
            .collect();
        assert_eq!(found, expect, "{scope:?} {kind:?}");
    };
    let merged = "mcp_gh_get_me";
    check(&Scope::All, Kind::Tools, &[[merged, merged, ""]]);
    check(&reading(), Kind::Tools, &[["me", merged, "me"]]);
    check(&server("gh"), Kind::Tools, &[["get.me", merged, ""]]);
    check(&server("hidden"), Kind::Tools, &[["t", "", ""]]);
    check(
        &server("fs"),
        Kind::Resources,
        &[
            ["file:///a", "fs+file:///a", ""],
            ["file.txt", "fs://file.txt", ""],
        ],
    );
    let template = ["file:///{name}", "fs+file:///{name}", ""];
    check(&server("fs"), Kind::Templates, &[template]);
}

#[test]
fn filtered_pages_hold_what_is_visible() {
    let catalog = Catalog::build(&naming(), &[offer("s", &["a", "b", "c", "d", "e"])]);
    let view = catalog.list(&server("s"), Kind::Tools);
    let check = |visible: &str| {
        let sees = |entry: &Entry| visible.contains(&*entry.original);
        let expect: Vec<&str> = view
            .entries()
            .iter()
            .filter(|entry| sees(entry))
            .map(|entry| entry.item.as_str())
            .collect();
        for size in [0, 1, 2, 4, 5, usize::MAX] {
            let (mut offset, mut items, mut pages) = (Some(0), Vec::new(), 0);
            while let Some(at) = offset {
                let page = view.page_where(at, Some(size), sees).unwrap();
                items.extend((!page.items.is_empty()).then_some(page.items));
                offset = page.next;
                pages += 1;
            }
            assert_eq!(items.join(","), expect.join(","), "{visible} {size}");
            let full = expect.len().div_ceil(size.max(1)).max(1);
            assert_eq!(pages, full, "no page is empty: {visible} {size}");
        }
        let whole = view.page_where(0, None, sees).unwrap();
        assert_eq!(
            (whole.items.into_owned(), whole.next),
            (expect.join(","), None)
        );
        assert_eq!(view.page_where(5, None, sees), None);
        assert_eq!(view.digest_where(sees) == view.digest(), visible == "abcde");
    };
    for visible in ["", "a", "e", "c", "ab", "de", "ace", "bd", "abde", "abcde"] {
        check(visible);
    }
    assert_eq!(view.page_where(1, Some(2), |_| true), view.page(1, Some(2)));
    let one_run = view.page_where(0, None, |_| true).unwrap();
    assert!(matches!(one_run.items, std::borrow::Cow::Borrowed(_)));
}

fn profile() -> Profile {
    Profile {
        tools: None,
        prompts: None,
        resources: None,
        tags: None,
        rename: IndexMap::new(),
        describe: IndexMap::new(),
        terms: Terms::default(),
    }
}

fn with_profile(naming: &Naming, profile: &Profile, offers: &[Offer]) -> Catalog {
    let name = ProfileName::parse("reading").unwrap();
    let profiles = Profiles::new(&IndexMap::from([(name, profile.clone())]));
    Catalog::build_with(naming, &profiles, offers)
}

fn reading() -> Scope {
    Scope::Profile(ProfileName::parse("reading").unwrap())
}

fn shown<'c>(catalog: &'c Catalog, scope: &Scope, kind: Kind) -> Vec<&'c str> {
    let entries = catalog.list(scope, kind).entries();
    entries.iter().map(|entry| &*entry.exposed).collect()
}

fn map<const N: usize>(pairs: [(&str, &str); N]) -> IndexMap<String, String> {
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn files() -> Offer {
    let listing = Listing {
        templates: vec![raw(r#"{"uriTemplate":"file:///{name}"}"#)],
        ..resources(["file:///a", "file.txt"])
    };
    listed("fs", listing)
}

fn database() -> Offer {
    let listing = Listing {
        templates: vec![raw(r#"{"uriTemplate":"postgres://db/{table}"}"#)],
        ..resources(["postgres://db/users"])
    };
    listed("postgres", listing)
}

fn resources<const N: usize>(uris: [&str; N]) -> Listing {
    Listing {
        resources: uris
            .map(|uri| raw(&format!(r#"{{"uri":"{uri}"}}"#)))
            .to_vec(),
        ..Listing::default()
    }
}

fn tools<const N: usize>(items: [&str; N]) -> Listing {
    Listing {
        tools: items.map(raw).to_vec(),
        ..Listing::default()
    }
}

fn found(server: &str, original: &str) -> Lookup {
    Lookup::Found {
        server: name(server),
        original: original.to_owned(),
    }
}

fn glob(text: &str) -> Glob {
    Glob::new(text).unwrap()
}

fn name(server: &str) -> ServerName {
    ServerName::parse(server).unwrap()
}

fn server(name: &str) -> Scope {
    Scope::Server(self::name(name))
}

fn raw(text: &str) -> Raw {
    Raw::parse(text.to_owned()).unwrap()
}

fn naming() -> Naming {
    Naming {
        template: "mcp_{server}_{tool}".to_owned(),
        charset: Charset::Strict,
        max_length: 48,
        conflict: Conflict::Namespace,
        namespace_resources: true,
    }
}

fn offer(server: &str, tools: &[&str]) -> Offer {
    let tools = tools.iter().map(|name| tool(name)).collect();
    listed(
        server,
        Listing {
            tools,
            ..Listing::default()
        },
    )
}

fn tool(name: &str) -> Raw {
    let name = Raw::string(name);
    raw(&format!(
        r#"{{ "name": {}, "inputSchema": {{"type":"object"}} }}"#,
        name.as_str()
    ))
}

fn listed(server: &str, listing: Listing) -> Offer {
    Offer {
        server: name(server),
        config: Arc::new(server_config()),
        listing: Arc::new(listing),
        modern_http: false,
    }
}

fn config(offer: &mut Offer) -> &mut Server {
    Arc::make_mut(&mut offer.config)
}

fn names(catalog: &Catalog) -> Vec<&str> {
    exposed(catalog, Kind::Tools)
}

fn exposed(catalog: &Catalog, kind: Kind) -> Vec<&str> {
    let entries = catalog.list(&Scope::All, kind).entries();
    entries.iter().map(|entry| &*entry.exposed).collect()
}

fn server_config() -> Server {
    Server {
        transport: Transport::Builtin,
        era: EraPin::Auto,
        enabled: true,
        namespace: None,
        expose: Expose {
            tools: true,
            resources: true,
            prompts: true,
        },
        priority: 0,
        tags: Vec::new(),
        roots: None,
        tools: ItemRules::default(),
        resources: ItemRules::default(),
        prompts: ItemRules::default(),
        isolation: Isolation::Auto,
        max_instances: 1,
        pool_size: 1,
        idle_timeout: Duration::ZERO,
        sleeps: false,
        startup_timeout: Duration::ZERO,
        connect_timeout: Duration::ZERO,
        timeout: Duration::ZERO,
        max_total_timeout: Duration::ZERO,
        retry: Retry {
            base: Duration::ZERO,
            max: Duration::ZERO,
            jitter: 0.0,
            stable_after: Duration::ZERO,
            starts_per_minute: 1,
            failed_after: 1,
        },
        breaker: Breaker {
            failures: 0,
            open_for: Duration::ZERO,
        },
        health: Health {
            interval: Duration::ZERO,
            timeout: Duration::ZERO,
            failures: 1,
            probe: Probe::Off,
        },
        grace: Duration::ZERO,
        limits: ServerLimits {
            request: 0,
            response: 0,
            in_flight: None,
            queue: 0,
            memory: None,
        },
        replicas: Vec::new(),
        balance: Balance::Failover,
        ejection: Ejection {
            base: Duration::ZERO,
            max: Duration::ZERO,
        },
        route: Vec::new(),
        validate: Validate::Off,
        price: None,
        budget: Vec::new(),
        rate: None,
        scan: None,
    }
}
