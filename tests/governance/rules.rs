//! Policies, rates, rules about arguments and prices, at each level they can be written at.

use serde_json::json;
use tollbridge::audit::RecordedDecision;

use crate::{
    harness::{ANN, BOB, Level, Server, Stage, ask_on, code_of, keyed},
    support::{Front, TestGateway, client::Who, soon, wire::Envelope},
};

/// The codes of some calls: empty for those that are answered.
async fn calls(stage: &Stage, tools: &[&str]) -> Vec<String> {
    let mut codes = Vec::new();
    for tool in tools {
        let answer = stage.call_tool(tool, "{}").await;
        codes.push(
            answer
                .error
                .as_ref()
                .map_or_else(String::new, |_| code_of(&answer)),
        );
    }
    codes
}

const ECHO: &str = "mcp_x_echo";
const OTHER: &str = "mcp_x_other";

#[tokio::test]
pub(crate) async fn rate_calls() {
    for level in Level::ALL {
        let stage = Stage::at(level, "rate = { calls = 2, per = \"24h\" }").await;
        assert_eq!(
            calls(&stage, &[ECHO, OTHER, ECHO]).await,
            ["", "", "RATE_LIMITED"]
        );
        let refused = stage.call("{}").await.failure();
        let expect = if level == Level::Server {
            "server"
        } else {
            "agent"
        };
        assert_eq!(refused["data"]["limited"], expect, "{level:?}");
        let wait = refused["data"]["retryAfterMs"].as_u64().unwrap();
        assert!((1..=12 * 60 * 60 * 1000).contains(&wait), "{wait}");
        assert_eq!(stage.server.seen().len(), 2);
        stage.stop().await;
    }
}

#[tokio::test]
pub(crate) async fn rate_burst() {
    for level in Level::ALL {
        let stage = Stage::at(level, "rate = \"20/24h/1\"").await;
        assert_eq!(
            calls(&stage, &[ECHO, ECHO]).await,
            ["", "RATE_LIMITED"],
            "{level:?}"
        );
        stage.stop().await;
    }
}

#[tokio::test]
pub(crate) async fn rate_per() {
    for level in Level::ALL {
        let stage = Stage::at(level, "rate = { calls = 20, per = \"1s\", burst = 1 }").await;
        let again = async {
            loop {
                if stage.call("{}").await.error.is_some() {
                    return;
                }
            }
        };
        soon("a call is too early", again).await;
        let later = async { while stage.call("{}").await.error.is_some() {} };
        soon("a call is late enough", later).await;
        stage.stop().await;
    }
}

#[tokio::test]
pub(crate) async fn tool_rate() {
    for level in Level::TERMS {
        let stage = Stage::at(level, "tool_rate = { calls = 5, per = \"24h\", burst = 1 }").await;
        let codes = calls(&stage, &[ECHO, OTHER, ECHO, OTHER]).await;
        assert_eq!(codes, ["", "", "RATE_LIMITED", "RATE_LIMITED"], "{level:?}");
        let refused = stage.call("{}").await.failure();
        assert_eq!(refused["data"]["limited"], "tool");
        stage.stop().await;
        let stage = Stage::at(level, "tool_rate = \"2/24h\"").await;
        let codes = calls(&stage, &[ECHO, ECHO, ECHO]).await;
        assert_eq!(codes, ["", "", "RATE_LIMITED"], "{level:?}");
        stage.stop().await;
        let stage = Stage::at(level, "tool_rate = { calls = 20, per = \"1s\", burst = 1 }").await;
        let later = async {
            stage.must("{}").await;
            while stage.call("{}").await.error.is_some() {}
        };
        soon("a call is late enough", later).await;
        stage.stop().await;
    }
}

/// Nobody's burst costs another anything, neither at one's own limit nor at that of a server.
#[tokio::test]
async fn each_agent_has_its_own_rates() {
    let rate = "rate = { calls = 1, per = \"24h\" }\n";
    for (default, server) in [(rate, ""), ("", rate)] {
        let settings =
            format!("[agents.ann]\n[agents.bob]\n[governance]\nprice = \"0\"\n{default}");
        let stage = Stage::new(&settings, server).await;
        for who in [ANN, BOB] {
            let http = stage.gateway.http().with_key(who.key);
            let params = r#"{"name":"mcp_x_echo"}"#;
            ask_on(&http, "/mcp", "tools/call", params).await.value();
            let refused = ask_on(&http, "/mcp", "tools/call", params).await;
            assert_eq!(code_of(&refused), "RATE_LIMITED");
        }
        stage.stop().await;
    }
}

/// An agent's own rate replaces that of everybody.
#[tokio::test]
async fn the_most_specific_rate_holds() {
    let settings = "[agents.ann]\nrate = { calls = 3, per = \"24h\" }\n\
                    [governance]\nprice = \"0\"\nrate = { calls = 1, per = \"24h\" }\n";
    let stage = Stage::new(settings, "").await;
    assert_eq!(
        calls(&stage, &[ECHO; 4]).await,
        ["", "", "", "RATE_LIMITED"]
    );
    stage.stop().await;
}

/// Which of some arguments a rule lets through.
async fn pass(level: Level, rule: &str, arguments: &[&str]) -> Vec<bool> {
    let stage = Stage::at(level, &format!("args = [{{ name = \"r\", {rule} }}]")).await;
    let mut passed = Vec::new();
    for arguments in arguments {
        let answer = stage.call(arguments).await;
        if answer.error.is_some() {
            assert_eq!(code_of(&answer), "UNAUTHORIZED");
            assert_eq!(stage.last().rule.as_deref(), Some("args: r"));
        }
        passed.push(answer.error.is_none());
    }
    let reached = passed.iter().filter(|passed| **passed).count();
    assert_eq!(stage.server.seen().len(), reached);
    stage.stop().await;
    passed
}

#[tokio::test]
pub(crate) async fn conditions_of_arguments() {
    for level in Level::TERMS {
        let check = async |rule: &str, arguments: &[(&str, bool)]| {
            let (texts, expect): (Vec<_>, Vec<_>) = arguments.iter().copied().unzip();
            let passed = pass(level, rule, &texts).await;
            assert_eq!(passed, expect, "{level:?} {rule} {texts:?}");
        };
        check(
            "at = \"/a/b\", equals = 5",
            &[
                (r#"{"a":{"b":5}}"#, false),
                (r#"{"a":{"b":6}}"#, true),
                (r#"{"b":5}"#, true),
            ],
        )
        .await;
        check(
            "at = \"/a\", one_of = [\"x\", 2]",
            &[
                (r#"{"a":"x"}"#, false),
                (r#"{"a":2.0}"#, false),
                (r#"{"a":"2"}"#, false),
                (r#"{"a":"y"}"#, true),
            ],
        )
        .await;
        check(
            "at = \"/a\", matches = \"^rm \"",
            &[
                (r#"{"a":"rm -rf"}"#, false),
                (r#"{"a":"r\u006d x"}"#, false),
                (r#"{"a":"ls"}"#, true),
            ],
        )
        .await;
        check(
            "at = \"/a\", min = 10",
            &[
                (r#"{"a":10}"#, false),
                (r#"{"a":9.5}"#, true),
                (r#"{"a":1e9}"#, false),
            ],
        )
        .await;
        check(
            "at = \"/a\", max = 10, action = \"allow\"",
            &[
                (r#"{"a":10}"#, true),
                (r#"{"a":10.1}"#, false),
                ("{}", false),
            ],
        )
        .await;
        check(
            "at = \"/a\", equals = 1, action = \"refuse\"",
            &[(r#"{"a":1}"#, false), (r#"{"a":2}"#, true)],
        )
        .await;
    }
}

/// Servers on common SDKs convert; what they would take for what is refused is refused.
#[tokio::test]
async fn rules_see_what_servers_convert() {
    let check = async |rule: &str, refused: &[&str], passes: &[&str]| {
        let all = [refused, passes].concat();
        let expect: Vec<bool> = all.iter().map(|it| passes.contains(it)).collect();
        let passed = pass(Level::Default, rule, &all).await;
        assert_eq!(passed, expect, "{rule} and {all:?}");
    };
    check(
        "at = \"/a/b\", equals = \"admin\"",
        &[
            r#"{"a":{"b":"admin"}}"#,
            r#"{"a":"{\"b\": \"admin\"}"}"#,
            r#"{"A":{"B":"admin"}}"#,
        ],
        &[r#"{"a":{"b":"user"}}"#, r#"{"a":"admin"}"#],
    )
    .await;
    check(
        "at = \"/a\", equals = true",
        &[
            r#"{"a":"yes"}"#,
            r#"{"a":"on"}"#,
            r#"{"a":"t"}"#,
            r#"{"a":1}"#,
            r#"{"a":"1"}"#,
        ],
        &[r#"{"a":false}"#, r#"{"a":"no"}"#, r#"{"a":"maybe"}"#],
    )
    .await;
    check(
        "at = \"/a/*\", matches = \"^/etc\"",
        &[
            r#"{"a":["/tmp","/etc/x"]}"#,
            r#"{"a":"[\"/etc/x\"]"}"#,
            r#"{"a":{"k":["/etc/x"]}}"#,
        ],
        &[r#"{"a":["/tmp"]}"#],
    )
    .await;
    check(
        "at = \"/a\", min = 100",
        &[
            r#"{"a":"1_000"}"#,
            r#"{"a":"nan"}"#,
            r#"{"a":" 1e3 "}"#,
            r#"{"a":"\u0e51\u0e50\u0e50"}"#,
        ],
        &[r#"{"a":"99"}"#, r#"{"a":true}"#],
    )
    .await;
}

/// A rule is about the tools that it names, and can be observed on its own.
#[tokio::test]
pub(crate) async fn tools_of_a_rule_and_its_observation() {
    for level in Level::TERMS {
        let rule = |more: &str| {
            format!(
                "args = [{{ name = \"r\", tools = [\"x/ec*\"], at = \"/a\", equals = 1{more} }}]"
            )
        };
        let stage = Stage::at(level, &rule("")).await;
        stage.call_tool(OTHER, r#"{"a":1}"#).await.value();
        assert_eq!(
            stage.must_not(r#"{"a":1}"#).await,
            "UNAUTHORIZED",
            "{level:?}"
        );
        stage.stop().await;
        let stage = Stage::at(level, &rule(", observe = true")).await;
        stage.must(r#"{"a":1}"#).await;
        assert_eq!(stage.last().decision, RecordedDecision::Observed);
        assert_eq!(stage.last().rule.as_deref(), Some("args: r"));
        assert_eq!(stage.counts()["observed"], json!({ "args": 1 }));
        stage.stop().await;
    }
}

/// What one agent has used up of a server's rate is there for another.
#[tokio::test]
async fn the_rate_of_a_server_is_that_of_each_caller() {
    let settings = "[agents.ann]\n[agents.bob]\n[governance]\nprice = \"0\"\n";
    let stage = Stage::new(settings, "rate = { calls = 2, per = \"24h\" }").await;
    for who in [ANN, BOB] {
        let http = stage.gateway.http().with_key(who.key);
        for (call, allowed) in [true, true, false].into_iter().enumerate() {
            let params = r#"{"name":"mcp_x_echo"}"#;
            let answer = ask_on(&http, "/mcp", "tools/call", params).await;
            assert_eq!(answer.error.is_none(), allowed, "{who:?} {call}");
            if !allowed {
                let refused = answer.failure();
                assert_eq!(refused["data"]["code"], "RATE_LIMITED");
                assert_eq!(refused["data"]["limited"], "server");
            }
        }
    }
    assert_eq!(stage.server.seen().len(), 4);
    stage.stop().await;
}

/// Every kind of rule can be observed, at each level.
#[tokio::test]
pub(crate) async fn observe() {
    for level in Level::TERMS {
        for (rule, terms) in [
            ("policy", "policy = { mode = \"none\" }"),
            ("rate", "rate = { calls = 1, per = \"24h\" }"),
            ("budget", "budget = { limit = \"0.015\" }"),
            ("args", "args = [{ name = \"r\", at = \"/a\", equals = 1 }]"),
            ("scan", "scan = { arguments = { email = \"block\" } }"),
        ] {
            let stage = Stage::at(level, &format!("{terms}\nobserve = [\"{rule}\"]")).await;
            let arguments = r#"{"a":1,"b":"ann.lee@example.org"}"#;
            stage.must(arguments).await;
            stage.must(arguments).await;
            assert_eq!(
                stage.last().decision,
                RecordedDecision::Observed,
                "{level:?} {rule}"
            );
            let counted = stage.counts()["observed"][rule].as_u64();
            assert!(counted.is_some_and(|times| times > 0), "{level:?} {rule}");
            stage.stop().await;
        }
    }
}

/// Under `observe` nothing is masked either.
#[tokio::test]
async fn an_observed_scan_masks_nothing() {
    let settings = "[governance]\nprice = \"0\"\nobserve = [\"scan\"]\n\
                    scan = { arguments = { email = \"redact\" }, results = { email = \"redact\" } }\n";
    let stage = Stage::new(settings, "").await;
    stage.must(r#"{"a":"ann.lee@example.org"}"#).await;
    assert_eq!(
        stage.server.last_arguments(),
        json!({ "a": "ann.lee@example.org" })
    );
    let rule = stage.last().rule.unwrap();
    assert!(rule.contains("email x1 reported"), "{rule}");
    stage.stop().await;
}

/// Which of the four kinds of item may be used: tool, prompt, resource, method.
async fn allowed(level: Level, policy: &str) -> [bool; 4] {
    let mut stage = Stage::at(level, &format!("policy = {policy}")).await;
    let is_allowed = |answer: Envelope| answer.error.is_none();
    let mut allowed = [
        is_allowed(stage.call("{}").await),
        is_allowed(stage.ask("prompts/get", r#"{"name":"mcp_x_greet"}"#).await),
        is_allowed(
            stage
                .ask("resources/read", r#"{"uri":"x+file:///a.txt"}"#)
                .await,
        ),
        false,
    ];
    // Methods of a vendor are those of the route of one server, where no profile holds.
    stage.path = "/mcp/servers/x";
    allowed[3] = is_allowed(stage.ask("acme/do", "{}").await);
    stage.stop().await;
    allowed
}

#[tokio::test]
pub(crate) async fn policies() {
    for level in Level::TERMS {
        let check = async |policy: &str, mut expect: [bool; 4]| {
            if level == Level::Profile {
                expect[3] = true;
            }
            assert_eq!(allowed(level, policy).await, expect, "{level:?} {policy}");
        };
        check("{ mode = \"all\" }", [true; 4]).await;
        check("{ mode = \"none\" }", [false; 4]).await;
        check("{ mode = \"allowlist\" }", [false; 4]).await;
        check("{ mode = \"denylist\" }", [true; 4]).await;
        for (at, list) in [
            "tools = [\"x/echo\"]",
            "prompts = [\"mcp_x_greet\"]",
            "resources = [\"x+file:///*\"]",
            "methods = [\"x/acme/*\"]",
        ]
        .into_iter()
        .enumerate()
        {
            let only = |only: bool| std::array::from_fn(|kind| (kind == at) == only);
            check(&format!("{{ mode = \"allowlist\", {list} }}"), only(true)).await;
            check(&format!("{{ mode = \"denylist\", {list} }}"), only(false)).await;
        }
        let deny = "{ mode = \"all\", deny = [\"x/echo\", \"mcp_x_greet\"] }";
        check(deny, [false, false, true, true]).await;
    }
}

/// The most specific policy replaces mode and lists; `deny` of all adds up.
#[tokio::test]
async fn policies_of_several_levels() {
    let settings = "[agents.ann]\npolicy = { mode = \"all\" }\n[agents.bob]\n\
                    [profiles.p]\npolicy = { mode = \"all\", deny = [\"x/other\"] }\n\
                    [governance]\nprice = \"0\"\n\
                    policy = { mode = \"none\", deny = [\"x/greet\"] }\n";
    let stage = Stage::new(settings, "").await;
    let names = async |who, path: &str| {
        let client = stage.gateway.client_of(who, Front::Streamable, path).await;
        (
            client.list("tools").await.len(),
            client.list("prompts").await.len(),
        )
    };
    assert_eq!(names(ANN, "/mcp").await, (2, 0));
    assert_eq!(names(BOB, "/mcp").await, (0, 0));
    assert_eq!(names(ANN, "/mcp/profiles/p").await, (1, 0));
    assert_eq!(names(BOB, "/mcp/profiles/p").await, (1, 0));
    stage.stop().await;
}

#[tokio::test]
pub(crate) async fn prices() {
    for (default, keys, echo, other) in [
        ("", "", 15_000, 15_000),
        ("price = \"0.000001\"", "", 1, 1),
        ("price = \"0.5\"", "price = \"0.02\"", 20_000, 20_000),
        (
            "",
            "price = \"0.02\"\ntools = { price = { echo = \"0.3\" } }",
            300_000,
            20_000,
        ),
        (
            "price = \"0.1\"",
            "tools = { price = { other = \"0\" } }",
            100_000,
            0,
        ),
    ] {
        let stage = Stage::new(&format!("[governance]\n{default}\n"), keys).await;
        for (tool, price) in [(ECHO, echo), (OTHER, other)] {
            stage.call_tool(tool, "{}").await.value();
            assert_eq!(stage.last().price.get(), price, "{default} {keys} {tool}");
        }
        stage.stop().await;
    }
}

/// Names, descriptions and choice of items of a profile.
#[tokio::test]
pub(crate) async fn views_of_profiles() {
    let settings = "[governance]\nprice = \"0\"\n\
        [profiles.tools]\ntools = [\"x/other\"]\nprompts = []\nresources = []\n\
        [profiles.rest]\ntools = []\nresources = [\"x+file:///**\"]\n\
        [profiles.tags]\ntags = [\"local\"]\n\
        [profiles.none]\ntags = [\"far\"]\n\
        [profiles.names]\nrename = { mcp_x_echo = \"say\" }\ndescribe = { mcp_x_echo = \"Says it.\" }\n";
    let stage = Stage::new(settings, "tags = [\"local\"]").await;
    let counts = async |profile: &str| {
        let path = format!("/mcp/profiles/{profile}");
        let client = stage.gateway.client(Front::Streamable, &path, "{}").await;
        let mut counts = [0; 3];
        for (count, kind) in counts.iter_mut().zip(["tools", "resources", "prompts"]) {
            *count = client.list(kind).await.len();
        }
        counts
    };
    assert_eq!(counts("tools").await, [1, 0, 0]);
    assert_eq!(counts("rest").await, [0, 1, 1]);
    assert_eq!(counts("tags").await, [2, 1, 1]);
    assert_eq!(counts("none").await, [0, 0, 0]);
    let client = stage
        .gateway
        .client(Front::Streamable, "/mcp/profiles/names", "{}")
        .await;
    let tools = client.list("tools").await;
    let say = tools.iter().find(|tool| tool["name"] == "say").unwrap();
    assert_eq!(say["description"], "Says it.");
    client.ask("1", "tools/call", r#""name":"say""#).await;
    client.answer("1").await.value();
    assert_eq!(stage.last().tool.as_deref(), Some("echo"));
    assert_eq!(stage.last().exposed.as_deref(), Some("say"));
    stage.stop().await;
}

/// What a server lists changes nothing about the tools of another, on any route.
#[tokio::test]
async fn no_server_lifts_what_is_said_of_another() {
    let rules = "[agents.ann]\npolicy = { mode = \"all\", deny = [\"mcp_git_hub_delete\"] }\n\
                 [agents.bob]\npolicy = { mode = \"allowlist\", tools = [\"mcp_git_hub_push\"] }\n\
                 [profiles.p]\npolicy = { mode = \"denylist\", tools = [\"mcp_git_hub_delete\"] }\n\
                 [governance]\nprice = \"0\"\n\
                 args = [{ name = \"acme\", tools = [\"mcp_git_hub_push\"], at = \"/owner\", one_of = [\"acme\"], action = \"allow\" }]\n";
    let listed = |names: &[&str]| {
        let item =
            |name: &&str| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
        let items: Vec<String> = names.iter().map(item).collect();
        format!("[{}]", items.join(","))
    };
    for intruders in [&["log"][..], &["hub_delete", "hub_push"]] {
        let (git, hub) = (Server::start().await, Server::start().await);
        git.backend.set_list("tools/list", listed(intruders));
        hub.backend
            .set_list("tools/list", listed(&["delete", "push"]));
        let gateway = TestGateway::new()
            .setting(&keyed(rules))
            .server("git", &git.backend)
            .server("git_hub", &hub.backend)
            .start()
            .await;
        for (path, delete, push) in [
            ("/mcp", "mcp_git_hub_delete", "mcp_git_hub_push"),
            ("/mcp/profiles/p", "mcp_git_hub_delete", "mcp_git_hub_push"),
            ("/mcp/servers/git_hub", "delete", "push"),
        ] {
            let call = async |who: Who<'_>, tool: &str, owner: &str| {
                let http = gateway.http().with_key(who.key);
                let params = format!(r#"{{"name":"{tool}","arguments":{{"owner":"{owner}"}}}}"#);
                let answer = ask_on(&http, path, "tools/call", &params).await;
                answer.error.is_none() || {
                    assert_eq!(code_of(&answer), "UNAUTHORIZED");
                    false
                }
            };
            for who in [ANN, BOB] {
                assert!(!call(who, delete, "acme").await, "{path} {intruders:?}");
                assert!(!call(who, push, "evil").await, "{path} {intruders:?}");
                assert!(call(who, push, "acme").await, "{path} {intruders:?}");
            }
        }
        assert!(git.seen().is_empty(), "{intruders:?}");
        // Nor is anything of another let in by what is said of it.
        let bob = gateway.client_of(BOB, Front::Streamable, "/mcp").await;
        assert_eq!(bob.list("tools").await.len(), 1, "{intruders:?}");
        gateway.stop().await;
    }
}
