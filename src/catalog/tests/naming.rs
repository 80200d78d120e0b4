//! Names: templates, lengths, collisions and who wins.

use super::*;

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
        let is_hidden = |problem: &&CatalogProblem| {
            matches!(
                &problem.cause,
                ProblemCause::Collision {
                    outcome: NameOutcome::Hidden(_),
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

/// A name is of the server with the longest prefix: no other takes it or changes it by what it lists.
#[test]
fn a_longer_prefix_keeps_its_names() {
    for conflict in [
        Conflict::Error,
        Conflict::First,
        Conflict::Namespace,
        Conflict::Priority,
    ] {
        let naming = Naming {
            conflict,
            ..naming()
        };
        let mut git = offer("git", &["hub_search", "log"]);
        config(&mut git).priority = 9;
        let offers = [git, offer("git_hub", &["search"])];
        let catalog = Catalog::build(&naming, &offers);
        let expect = [
            "mcp_git_hub_search",
            "mcp_git_hub_search_02a4f55d",
            "mcp_git_log",
        ];
        assert_eq!(names(&catalog), expect, "{conflict:?}");
        let tool = catalog.tool(&Scope::All, "mcp_git_hub_search").unwrap();
        assert_eq!(tool.server.as_str(), "git_hub", "{conflict:?}");
        let problems: Vec<String> = catalog.problems().iter().map(ToString::to_string).collect();
        let problem = "git: tools: `hub_search` has the same exposed name `mcp_git_hub_search` as git_hub; \
                       exposed as `mcp_git_hub_search_02a4f55d`";
        assert_eq!(problems, [problem], "{conflict:?}");
    }
}
