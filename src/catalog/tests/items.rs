//! Items: their bytes, the rules of a server about them, and what is wrong with odd ones.

use super::*;

#[test]
fn items_keep_their_bytes_beside_the_name() {
    let text = "{ \"future\" : 1.50e+7,\t\"name\":\"a\\u0062\" , \"inputSchema\":{\"type\":\"object\"},\"x\":{\"name\":\"inner\"} }";
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
        &[listed(
            "s",
            tools([r#"{"name":"a","name":"b","inputSchema":{"type":"object"}}"#]),
        )],
    );
    let merged = catalog.list(&Scope::All, Kind::Tools);
    assert_eq!(
        merged.array().as_str(),
        r#"[{"name":"mcp_s_b","name":"mcp_s_b","inputSchema":{"type":"object"}}]"#
    );
}

/// A server names its tools as it likes, so `*` is any character of a name; a URI has segments.
#[test]
fn rules_of_a_server_are_about_names_with_slashes_too() {
    let names_of = ["plain", "repo/delete_all", "a/b/c", "../x", "x/.."];
    let shown = |rules: ItemRules| {
        let mut offer = offer("s", &names_of);
        config(&mut offer).tools = rules;
        let catalog = Catalog::build(&naming(), &[offer]);
        catalog.counts(&name("s")).tools
    };
    let allow = |globs: &[&str]| ItemRules {
        allow: Some(globs.iter().map(|text| glob(text)).collect()),
        ..ItemRules::default()
    };
    let deny = |globs: &[&str]| ItemRules {
        deny: globs.iter().map(|text| glob(text)).collect(),
        ..ItemRules::default()
    };
    for (globs, matching) in [
        (&["*"][..], 5),
        (&["**"], 5),
        (&["*delete*"], 1),
        (&["?????????*"], 1),
        (&["repo/*", "a/*"], 2),
        (&["*/*"], 4),
        (&["delete*"], 0),
    ] {
        assert_eq!(shown(allow(globs)), matching, "{globs:?}");
        assert_eq!(shown(deny(globs)), names_of.len() - matching, "{globs:?}");
    }
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
    let get_b = r#"{"name":"get_b","description":"old","inputSchema":{"type":"object"}}"#;
    Arc::make_mut(&mut offer.listing).tools[1] = raw(get_b);
    let catalog = Catalog::build(&naming(), &[offer]);
    let own = catalog.list(&server("s"), Kind::Tools);
    let expect = r#"[{"description":"New \"text\"", "name": "get_a", "inputSchema": {"type":"object"} },{"name":"get_b","description":"B","inputSchema":{"type":"object"}}]"#;
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
        r#"{"name":"twice","inputSchema":{"type":"object"}}"#,
        r#"{"name":"twice","v":2}"#,
        r#"{"name":"good","inputSchema":{"type":"object"}}"#,
    ];
    let catalog = Catalog::build(&naming(), &[listed("s", tools(odd))]);
    let own = catalog.list(&server("s"), Kind::Tools);
    assert_eq!(
        own.array().as_str(),
        r#"[{"name":"twice","inputSchema":{"type":"object"}},{"name":"good","inputSchema":{"type":"object"}}]"#
    );
    let problems: Vec<String> = catalog.problems().iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(problems.join("\n"), @r"
    s: tools: item 0 is not an object; skipped
    s: tools: item 1 is not an object; skipped
    s: tools: item 2 is not an object; skipped
    s: tools: item 3 has no valid `name`; skipped
    s: tools: item 4 has no valid `name`; skipped
    s: tools: item 5 has no valid `name`; skipped
    s: tools: item 6 has no valid `name`; skipped
    s: tools: item 7 has no valid `name`; skipped
    s: tools: `twice` is listed more than once; only the first is served
    ");
}

#[test]
fn problems_read_well() {
    let listing = Listing {
        resources: vec![raw(r#"{"name":"no uri"}"#)],
        instructions: Some("x".repeat(SERVER_CHARACTERS_MAX + 1)),
        ..tools([
            r#"{"name":"a.b","inputSchema":{"type":"object"}}"#,
            r#"{"name":"a-b","inputSchema":{"type":"object"}}"#,
            r#"{"name":"taken","inputSchema":{"type":"object"}}"#,
            r#"{"name":"old","inputSchema":null,"title":null}"#,
            r#"{"name":"a_name_that_does_not_fit_into_forty_eight_characters","inputSchema":{"type":"object"}}"#,
            r#"{"name":"h","inputSchema":{"type":"object","properties":{"p":{"type":"number","x-mcp-header":"P"}}}}"#,
        ])
    };
    let mut first = listed("s.1", listing);
    let rename = [("old".to_owned(), "taken".to_owned())];
    config(&mut first).tools.rename = rename.into_iter().collect();
    let catalog = Catalog::build(&naming(), &[first, offer("s-1", &["a_b"])]);
    let problems: Vec<String> = catalog.problems().iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(problems.join("\n"), @r"
    s.1: tools: `h`: x-mcp-header `P` annotates a property that is not a string, integer or boolean; the annotation is ignored
    s.1: tools: `taken` is not served because the config renames `old` to `taken`
    s.1: resources: item 0 has no valid `uri`; skipped
    s.1: tools: `a.b` has the same exposed name `mcp_s_1_a_b` as s-1, s.1; exposed as `mcp_s_1_a_b_7744f5f8`
    s.1: tools: `a-b` has the same exposed name `mcp_s_1_a_b` as s-1, s.1; exposed as `mcp_s_1_a_b_d8b19523`
    s.1: tools: `a_name_that_does_not_fit_into_forty_eight_characters` is exposed as `mcp_s_1_a_name_that_does_not_fit_into_f_2154e357`: its name is longer than `naming.max_length` (48; Claude Code allows 64 with its prefix `mcp__tollbridge__`)
    s-1: tools: `a_b` has the same exposed name `mcp_s_1_a_b` as s.1; exposed as `mcp_s_1_a_b_cf5d3ffa`
    s.1: tools: `old`: `title`, `inputSchema` missing or of the wrong type; repaired on merged routes
    s.1: instructions are truncated to 4096 characters on merged routes
    ");
}

/// A name may be taken by what a collision of others gave it to: it is not too long for that.
#[test]
fn a_name_that_a_collision_gave_away_is_taken() {
    let colliding = Catalog::build(&naming(), &[offer("s", &["a.b", "a-b"])]);
    let given = names(&colliding)[0].to_owned();
    let own = given.strip_prefix("mcp_s_").unwrap();
    let catalog = Catalog::build(&naming(), &[offer("s", &["a.b", "a-b", own])]);
    let problems: Vec<String> = catalog.problems().iter().map(ToString::to_string).collect();
    let about_it = format!("`{own}` has the same exposed name `{given}` as s; exposed as");
    assert!(
        problems.iter().any(|problem| problem.contains(&about_it)),
        "{problems:?}"
    );
    assert!(
        !problems.iter().any(|problem| problem.contains("is longer")),
        "{problems:?}"
    );
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
    let good = r#"{"name":"good","inputSchema":{"type":"object","properties":{"p":{"type":"string","x-mcp-header":"P"}}}}"#;
    let bad = r#"{"name":"bad","inputSchema":{"type":"object","properties":{"p":{ "x-mcp-header" : "P", "type":"number"},"q":{"type":"string","x-mcp-header":"Q"}}}}"#;
    let stripped = r#"{"name":"bad","inputSchema":{"type":"object","properties":{"p":{ "type":"number"},"q":{"type":"string","x-mcp-header":"Q"}}}}"#;
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
        let expect = ToolHints {
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
    let text = r#"{"name":"t","inputSchema":{"type":"object"},"_meta":{"ui":{"resourceUri":"ui://a/b","visibility":["app"]},"ui/resourceUri":"ui://a/b","openai/outputTemplate":"ui://c","vendor/uri":"ui://d"}}"#;
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

/// On all routes and of all kinds: at the limit, past it, and back under it.
#[test]
fn items_that_are_too_deep_or_too_large_are_left_out() {
    let nested = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
    let padded = |bytes: usize| format!("\"{}\"", "x".repeat(bytes.saturating_sub(2)));
    let check = |value: &str, limits: (usize, usize), excess: Option<&str>| {
        for kind in Kind::ALL {
            let key = kind.key();
            let name = if kind == Kind::Resources || kind == Kind::Templates {
                "x:n"
            } else {
                "n"
            };
            let item = format!(
                r#"{{"{key}":"{name}","_meta":{{"x":{value}}},"inputSchema":{{"type":"object"}}}}"#
            );
            let plain =
                format!(r#"{{"{key}":"{name}2","name":"m","inputSchema":{{"type":"object"}}}}"#);
            let mut listing = Listing::default();
            listing.set_list(kind, vec![raw(&item), raw(&plain)], FirstPage::default());
            let mut offer = listed("s", listing);
            let (bytes, depth) = limits;
            config(&mut offer).limits.item = item.len() + bytes - value.len();
            config(&mut offer).limits.item_depth = depth;
            let catalog = Catalog::build(&naming(), &[offer]);
            let expect = 1 + usize::from(excess.is_none());
            for scope in [Scope::All, server("s")] {
                assert_eq!(
                    catalog.list(&scope, kind).len(),
                    expect,
                    "{value} {limits:?} {scope:?}"
                );
            }
            let said = catalog.problems().iter().map(ToString::to_string);
            let said: Vec<String> = said.filter(|it| it.contains("not served")).collect();
            match excess {
                None => assert!(said.is_empty(), "{said:?}"),
                Some(excess) => assert!(
                    said[0].contains(&format!("`{name}`")) && said[0].contains(excess),
                    "{said:?}"
                ),
            }
        }
    };
    let all = 1 << 20;
    // The item and `_meta` are two levels.
    check(&nested(30), (all, 32), None);
    check(
        &nested(31),
        (all, 32),
        Some("`limits.item_depth` (32 levels)"),
    );
    check(&nested(29), (all, 32), None);
    check(&format!("\"{}\"", "[".repeat(50)), (all, 32), None);
    for (bytes, excess) in [(100, None), (101, Some("`limits.item`")), (99, None)] {
        check(&padded(bytes), (100, 32), excess);
    }
}

/// What comes beside the items of a list is held to the same.
#[test]
fn what_comes_with_a_list_may_be_left_out() {
    for (levels, is_left) in [(31, false), (32, true), (30, false)] {
        let deep = format!("{{\"x\":{}1{}}}", "[".repeat(levels), "]".repeat(levels));
        let mut listing = tools([r#"{"name":"n","inputSchema":{"type":"object"}}"#]);
        let rest = Some(raw(&deep));
        listing.pages.tools = Some(FirstPage {
            rest,
            ..FirstPage::default()
        });
        let catalog = Catalog::build(&naming(), &[listed("s", listing)]);
        let own = catalog.list(&server("s"), Kind::Tools);
        assert_eq!(own.other_members().is_none(), is_left, "{levels}");
        assert_eq!(catalog.problems().len(), usize::from(is_left), "{levels}");
        assert_eq!(own.len(), 1);
    }
}
