//! Snapshots as routes show them.

use std::time::Duration;

use globset::Glob;
use proptest::prelude::*;

use super::*;
use crate::config::{
    Charset, Conflict, EraPin, Expose, Isolation, Retry, Server, ServerLimits, Transport,
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
        server: ServerName::parse(server).unwrap(),
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
        idle_timeout: Duration::ZERO,
        startup_timeout: Duration::ZERO,
        connect_timeout: Duration::ZERO,
        timeout: Duration::ZERO,
        max_total_timeout: Duration::ZERO,
        retry: Retry {
            base: Duration::ZERO,
            max: Duration::ZERO,
            jitter: 0.0,
        },
        limits: ServerLimits {
            request: 0,
            response: 0,
        },
    }
}
