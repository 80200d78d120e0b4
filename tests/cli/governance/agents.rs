//! Agents: made, changed and removed, with all terms there are, and hidden by those of the config.

use std::fs;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::{Value, json};

use tollbridge::store::Store;

use super::{GOVERNED, call, masked, ok};
use crate::support::Place;

#[tokio::test]
async fn agents_are_made_changed_and_removed() {
    let place = Place::new(GOVERNED);
    let args = "agents add bot --tools toolbox/* --deny */uuid --budget 2.50/day 10 --rate 120/1m/20 \
                --team science --profiles reading --admin";
    let added = ok(&place, &args.split_whitespace().collect::<Vec<_>>()).await;
    assert_snapshot!(added.all(), @"
    agent `bot`: added; team science; role admin; profiles reading; policy allowlist tools=toolbox/* deny=*/uuid; budget 2.50/day 10.00/total; rate 120/1m/20
    --- stderr
    --- code 0
    ");
    assert_snapshot!(ok(&place, &["agents", "list"]).await.all(), @"
    NAME→ORIGIN→STATE→TEAM→BUDGET→RATE→POLICY
    bot→store→enabled→science→2.50/day 10.00/total→120/1m/20→allowlist tools=toolbox/* deny=*/uuid
    researcher→config→enabled→science→default→default→allowlist tools=toolbox/* prompts=other/*
    --- stderr
    --- code 0
    ");
    assert_snapshot!(masked(&ok(&place, &["agents", "show", "bot"]).await), @"
    FIELD→VALUE
    name→bot
    id→agent_8e8ad685-d56a-5d08-8ab9-86586d12a55d
    origin→store
    state→enabled
    team→science
    role→admin
    profiles→reading
    policy→allowlist tools=toolbox/* deny=*/uuid
    budget→2.50/day 10.00/total
    rate→120/1m/20
    tool rate→default
    scan→default
    created→TIME
    --- stderr
    --- code 0
    ");
    let shown = ok(&place, &["agents", "show", "bot", "--json"])
        .await
        .json();
    let expect = json!({
        "name": "bot",
        "id": shown["id"],
        "origin": "store",
        "enabled": true,
        "admin": true,
        "role": "admin",
        "team": "science",
        "profiles": ["reading"],
        "created": shown["created"],
        "terms": {
            "policy": { "mode": "allowlist", "tools": ["toolbox/*"], "deny": ["*/uuid"] },
            "budget": [
                { "limit": "2.50", "window": "day" },
                { "limit": "10.00", "window": "total" },
            ],
            "rate": { "calls": 120, "per": "1m", "burst": 20 },
        },
    });
    assert_eq!(shown, expect);
}

/// Who makes an agent learns what it may use, and that its team has no budget.
#[tokio::test]
async fn a_new_agent_is_told_about() {
    let place = Place::new(GOVERNED);
    let check = async |args: &[&str], expect: &str| {
        let ran = ok(&place, &[&["agents", "add"], args].concat()).await;
        assert_eq!(ran.stderr.trim_end(), expect, "{args:?}");
    };
    check(
        &["one"],
        "`one` may use nothing: the default policy is `none` and lists nothing; `tollbridge agents set \
         one --tools 'SERVER/*'` lets it call tools",
    )
    .await;
    check(
        &["it's two", "--tools"],
        "`it's two` may use nothing: its policy is `allowlist` and lists nothing; `tollbridge agents \
         set 'it'\\''s two' --tools 'SERVER/*'` lets it call tools",
    )
    .await;
    check(&["three", "--policy", "all"], "").await;
    check(
        &["four", "--policy", "all", "--team", "scence"],
        "warning: `[governance.teams]` has no budget for the team `scence`; did you mean \
         `science`?",
    )
    .await;
    check(&["five", "--policy", "all", "--team", "science"], "").await;
    let open = GOVERNED.replace(
        "auth = \"keys\"",
        "policy = { mode = \"all\" }\n    auth = \"keys\"",
    );
    let place = Place::new(&open);
    let ran = ok(&place, &["agents", "add", "six"]).await;
    assert_eq!(
        ran.stderr.trim_end(),
        "`six` may use everything (all); use `tollbridge agents set six --tools 'SERVER/*'` to restrict it"
    );
}

/// Everything that a config can say of an agent can be said here, and means the same.
#[tokio::test]
async fn agents_of_the_store_have_all_terms() {
    let place = Place::new(GOVERNED);
    let scan = r#"{ arguments = { "*" = "block", email = "off" }, results = { ticket = "redact" }, custom = { ticket = 'T-\d+' }, allow = ["T-0"] }"#;
    let args = [
        r#"{ name = "small", at = "/limit", max = 1000 }"#,
        r#"{ name = "ours", tools = ["toolbox/*"], at = "/owner", one_of = ["acme"], action = "allow", observe = true }"#,
    ];
    let add = [
        "agents",
        "add",
        "bot",
        "--scan",
        scan,
        "--args",
        args[0],
        args[1],
        "--observe",
        "rate",
        "scan",
        "--tool-rate",
        "30/1m/5",
        "--methods",
        "*/acme/*",
    ];
    assert_snapshot!(ok(&place, &add).await.all(), @"
    agent `bot`: added; policy allowlist methods=*/acme/*; tool rate 30/1m/5; scan arguments.*=block arguments.email=off results.ticket=redact custom=ticket allow=T-0; args small ours; observe rate scan
    --- stderr
    --- code 0
    ");
    assert_snapshot!(masked(&ok(&place, &["agents", "show", "bot"]).await), @"
    FIELD→VALUE
    name→bot
    id→agent_8e8ad685-d56a-5d08-8ab9-86586d12a55d
    origin→store
    state→enabled
    role→agent
    profiles→all
    policy→allowlist methods=*/acme/*
    budget→default
    rate→default
    tool rate→30/1m/5
    scan→arguments.*=block arguments.email=off results.ticket=redact custom=ticket allow=T-0
    args→small ours
    observe→rate scan
    created→TIME
    --- stderr
    --- code 0
    ");
    let show = ["agents", "show", "bot", "--json"];
    let terms = &ok(&place, &show).await.json()["terms"];
    assert_eq!(
        terms["tool_rate"],
        json!({ "calls": 30, "per": "1m", "burst": 5 })
    );
    assert_eq!(terms["policy"]["methods"], json!(["*/acme/*"]));
    assert_eq!(terms["observe"], json!(["rate", "scan"]));
    assert_eq!(
        terms["scan"]["arguments"],
        json!({ "*": "block", "email": "off" })
    );
    assert_eq!(terms["scan"]["custom"], json!({ "ticket": "T-\\d+" }));
    let small = json!({ "name": "small", "tools": ["*"], "at": "/limit", "max": 1000.0, "action": "refuse", "observe": false });
    assert_eq!(terms["args"][0], small);
    assert_eq!(terms["args"][1]["action"], "allow");
    let set = [
        "agents",
        "set",
        "bot",
        "--scan",
        "off",
        "--args",
        "--observe",
        "--tool-rate",
        "default",
        "--methods",
    ];
    assert_snapshot!(ok(&place, &set).await.all(), @"
    agent `bot`: policy allowlist; tool rate default; scan off; args none; observe none
    --- stderr
    --- code 0
    ");
    ok(&place, &["agents", "set", "bot", "--scan", "default"]).await;
    let terms = &ok(&place, &show).await.json()["terms"];
    assert_eq!(*terms, json!({ "policy": { "mode": "allowlist" } }));
    for (flag, value, expect) in [
        ("--scan", "on", "not a TOML table"),
        (
            "--scan",
            "{ results = { emial = \"block\" } }",
            "did you mean `email`?",
        ),
        (
            "--args",
            "{ name = \"n\", at = \"/a\" }",
            "has no condition",
        ),
        (
            "--args",
            "{ name = \"n\", at = \"a\", max = 1 }",
            "not a JSON pointer",
        ),
        (
            "--observe",
            "all",
            "unknown kind of rule `all`: use args, budget",
        ),
        ("--tool-rate", "1", "CALLS/PERIOD"),
        ("--methods", "a{b", "unclosed alternate"),
    ] {
        let ran = place.run(&["agents", "set", "bot", flag, value]).await;
        assert_eq!(ran.code, Some(2), "{flag} {value}: {ran:?}");
        assert!(ran.stderr.contains(expect), "{flag} {value}: {ran:?}");
    }
}

#[tokio::test]
async fn what_is_given_replaces_what_was() {
    let place = Place::new(GOVERNED);
    let args = "agents add bot --policy all --deny x --budget 1 --rate 1/1s --team science --admin \
                --profiles reading --json";
    let args: Vec<&str> = args.split_whitespace().collect();
    let added = ok(&place, &args).await.json();
    let id = added["id"].as_str().expect("an id");
    let set = "--policy default --budget off --rate default --no-team --all-profiles --admin=false";
    let set: Vec<&str> = ["agents", "set", id, "--json"]
        .into_iter()
        .chain(set.split(' '))
        .collect();
    let changed = ok(&place, &set).await.json();
    assert_eq!(changed["terms"], json!({ "budget": [] }));
    assert_eq!(
        (&changed["team"], &changed["profiles"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(changed["admin"], false);
    ok(
        &place,
        &[
            "agents", "set", "bot", "--policy", "denylist", "--tools", "a", "b",
        ],
    )
    .await;
    let lists = ok(
        &place,
        &[
            "agents",
            "set",
            "bot",
            "--tools",
            "--prompts",
            "c",
            "--json",
        ],
    )
    .await;
    let policy = json!({ "mode": "denylist", "prompts": ["c"] });
    assert_eq!(
        lists.json()["terms"]["policy"],
        policy,
        "what is given replaces what was"
    );
    let off = ok(&place, &["agents", "disable", "bot", "--json"])
        .await
        .json();
    assert_eq!(off["enabled"], false);
    let on = ok(&place, &["agents", "enable", "bot", "--json"])
        .await
        .json();
    assert_eq!(on["enabled"], true);
    assert_snapshot!(ok(&place, &["agents", "remove", "bot"]).await.all(), @"
    removed agent `bot` and its keys
    --- stderr
    --- code 0
    ");
    let left = ok(&place, &["agents", "list", "--json"]).await.json();
    assert_eq!(left.as_array().map(Vec::len), Some(1), "{left}");
    assert_eq!(left[0]["origin"], "config");
}

/// An agent of the config hides the one of the store with its id, whose keys are its own then: that is
/// said wherever it matters, with the way out.
#[tokio::test]
async fn an_agent_that_is_hidden_is_told_about() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "zed", "--policy", "none"]).await;
    let key = ok(&place, &["keys", "create", "zed"]).await.stdout;
    let mut serving = place.serve().await;
    assert_eq!(call(&serving, key.trim()).await.1["error"]["code"], -32003);
    let config = place.file("tollbridge.toml");
    let hiding = format!("{GOVERNED}\n[agents.zed]\npolicy = {{ mode = \"all\" }}\n");
    fs::write(&config, &hiding).expect("written");
    serving
        .says("the config overrides an agent of the store")
        .await;
    let (_, answer) = call(&serving, key.trim()).await;
    assert!(
        answer["result"].is_object(),
        "its key is one of the config's agent: {answer}"
    );
    serving.end(rustix::process::Signal::TERM).await;
    let mut serving = place.serve().await;
    serving
        .says("the config overrides an agent of the store")
        .await;
    serving.end(rustix::process::Signal::TERM).await;
    let listed = ok(&place, &["agents", "list"]).await;
    assert_snapshot!(listed.stderr, @"the stored agent `zed` is overridden by the config, and its keys authenticate the configured agent (see `keys list agent_9acd1f3c-241e-5e01-8d40-5851bd601f81`)");
    assert_snapshot!(place.run(&["agents", "remove", "zed"]).await.stderr, @"agent `zed` is configured in tollbridge.toml; change it there. It overrides the stored agent `zed`, which can be changed once the configured agent has another name or `id`");
    let state =
        async || ok(&place, &["keys", "list", "zed", "--json"]).await.json()[0]["state"].clone();
    assert_eq!(state().await, "live");
    fs::write(&config, GOVERNED).expect("written");
    ok(&place, &["agents", "disable", "zed"]).await;
    fs::write(&config, &hiding).expect("written");
    assert_eq!(state().await, "shut", "it would open the one of the config");
    let listed = ok(&place, &["agents", "list", "--json"]).await;
    assert_snapshot!(listed.stderr, @"the stored agent `zed` is overridden by the config, and its keys are not accepted while it is disabled (see `keys list agent_9acd1f3c-241e-5e01-8d40-5851bd601f81`)");
    fs::write(&config, hiding.replace("agents.zed", "agents.zoe")).expect("written");
    ok(&place, &["agents", "remove", "zed"]).await;
    fs::write(&config, &hiding).expect("written");
    let listed = ok(&place, &["agents", "list"]).await;
    assert_eq!(listed.stderr, "");
    // With an id of its own it hides the name alone.
    fs::write(&config, GOVERNED).expect("written");
    ok(&place, &["agents", "add", "zed"]).await;
    let id = "agent_7d444840-9dc0-11d1-b245-5ffdce74fad2";
    fs::write(&config, format!("{hiding}id = \"{id}\"\n")).expect("written");
    let ran = place.run(&["agents", "remove", "zed"]).await;
    let (_, other) = ran.stderr.trim().rsplit_once(' ').expect("words");
    assert!(other.starts_with("agent_"), "{ran:?}");
    ok(&place, &["agents", "remove", other]).await;
}

/// Who looks into the data directory needs no variables of servers, nor the keys of agents; what is said
/// of agents is never said without what it takes.
#[tokio::test]
async fn agents_are_listed_without_the_variables_of_servers() {
    let servers = r#"
        [servers.script]
        command = "sh"
        env_file = "none.env"
        env = { TOKEN = "${NO_SUCH_TOKEN}" }
        budget = { limit = "${NO_SUCH_LIMIT}" }
        [servers.docs]
        url = "${NO_SUCH_URL}"
        tags = ["reading"]
        [profiles.reading]
        tags = ["reading"]
        [governance]
        auth = "keys"
        [agents.researcher]
        keys = ["${NO_SUCH_KEY}", "${NO_OTHER_KEY}"]
    "#;
    let place = Place::new(servers);
    for args in [
        &["agents", "list"][..],
        &["agents", "show", "researcher"],
        &["agents", "add", "bot"],
        &["keys", "create", "bot"],
        &["keys", "list"],
        &["audit"],
        &["audit", "events"],
        &["audit", "verify"],
    ] {
        let ran = ok(&place, args).await;
        assert!(!ran.all().contains("NO_"), "{args:?}: {ran:?}");
        for unneeded in ["docs", "none.env"] {
            assert!(!ran.stderr.contains(unneeded), "{args:?}: {ran:?}");
        }
    }
    let found = place.run(&["audit", "--tool", "docs/search"]).await;
    assert!(!found.stderr.contains("unknown server"), "{found:?}");
    for args in [&["budget", "show"][..], &["check"], &["list"]] {
        let ran = place.run(args).await;
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        for variable in [
            "NO_SUCH_TOKEN",
            "NO_SUCH_LIMIT",
            "NO_SUCH_KEY",
            "NO_OTHER_KEY",
        ] {
            assert!(ran.stderr.contains(variable), "{args:?}: {ran:?}");
        }
    }
    let place = Place::new(&format!("{servers}team = \"${{NO_SUCH_TEAM}}\"\n"));
    let ran = place.run(&["agents", "list"]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("NO_SUCH_TEAM"), "{ran:?}");
}

/// Makes of the small rule of the one agent in the store one that is too large, as a version before this
/// one might have written it.
async fn grow(place: &Place) {
    let store = Store::open(&place.file("data")).await.expect("it opens");
    let listed = store.agents.agents().await.expect("it is read");
    let mut agent = listed.rows[0].clone();
    let terms = serde_json::to_string(&agent.terms).expect("it is JSON");
    let grown = terms.replace(r#""matches":"x""#, r#""matches":"\\w{200}""#);
    agent.terms = serde_json::from_str(&grown).expect("they are terms");
    assert!(
        store
            .agents
            .update(&agent, None)
            .await
            .expect("it is written")
            .is_done()
    );
    store.close().await;
}

/// Terms that no call could be held to are no terms: as in a config, they are refused where they are
/// written, and named at the start where they got in before.
#[tokio::test]
async fn terms_that_cannot_be_used_are_refused() {
    let place = Place::new(GOVERNED);
    let rule = |matches: &str| format!("{{ name = \"big\", at = \"/a\", matches = '{matches}' }}");
    let (small, big) = (rule("x"), rule(r"\w{200}"));
    let expect = "invalid terms of the agent: invalid argument rule `big`: \
                  `matches` is not a valid regular expression: ";
    let added = place.run(&["agents", "add", "bot", "--args", &big]).await;
    assert_eq!((added.code, &*added.stdout), (Some(2), ""), "{added:?}");
    assert!(added.stderr.contains(expect), "{added:?}");
    ok(&place, &["agents", "add", "bot", "--args", &small]).await;
    let set = place.run(&["agents", "set", "bot", "--args", &big]).await;
    assert_eq!((set.code, &*set.stdout), (Some(2), ""), "{set:?}");
    let shown = ok(&place, &["agents", "show", "bot", "--json"])
        .await
        .json();
    assert_eq!(shown["terms"]["args"][0]["matches"], "x");

    grow(&place).await;
    let mut serving = place.serve().await;
    serving.says("invalid terms of an agent").await;
    serving.end(Signal::TERM).await;

    // What is asked for is another matter, but for terms.
    let set = ok(&place, &["agents", "set", "bot", "--team", "science"]).await;
    let (_, rule) = expect.split_once(": ").expect("two parts");
    let warning = format!("warning: `bot` may use nothing: {rule}");
    assert!(set.stderr.contains(&warning), "{set:?}");
    let set = place.run(&["agents", "set", "bot", "--rate", "9/1m"]).await;
    assert_eq!((set.code, &*set.stdout), (Some(2), ""), "{set:?}");
    assert!(set.stderr.contains(expect), "{set:?}");
    let shown = ok(&place, &["agents", "show", "bot", "--json"]).await;
    let shown = shown.json();
    assert_eq!(shown["team"], "science");
    assert_eq!(shown["terms"]["rate"], Value::Null);
}

/// A reload can be what makes them count: those of an agent that the config had until then.
#[tokio::test]
async fn terms_that_count_since_a_reload_are_looked_at() {
    let place = Place::new(GOVERNED);
    let rule = "{ name = \"big\", at = \"/a\", matches = 'x' }";
    ok(&place, &["agents", "add", "bot", "--args", rule]).await;
    grow(&place).await;
    let shown = ok(&place, &["agents", "show", "bot", "--json"]).await;
    let shown = shown.json();
    let id = shown["id"].as_str().expect("a text");
    let write = |text: &str| fs::write(place.file("tollbridge.toml"), text).expect("written");
    write(&format!("{GOVERNED}\n[agents.bot]\nid = \"{id}\"\n"));
    let mut serving = place.serve().await;
    serving.says("overrides an agent of the store").await;
    write(GOVERNED);
    serving.says("invalid terms of an agent").await;
    serving.end(Signal::TERM).await;
}

/// A glob about a server that there is none of matches nothing, which is said where it is written.
#[tokio::test]
async fn globs_of_no_server_are_said() {
    let place = Place::new(GOVERNED);
    let args = [
        "agents",
        "add",
        "bot",
        "--tools",
        "toolbx/*",
        "other/h*",
        "*/uuid",
        "mcp_othr_*",
        "[ab]/x",
        "--resources",
        "file:///a/**",
        "othr/file:///b",
        "--deny",
        "zzz/y",
    ];
    let added = ok(&place, &args).await;
    let warned: Vec<_> = added
        .stderr
        .lines()
        .filter(|line| line.starts_with("warning"))
        .collect();
    assert_eq!(
        warned,
        [
            "warning: --tools: `toolbx/*` matches nothing: unknown server \
             `toolbx`; did you mean `toolbox`?",
            "warning: --resources: `othr/file:///b` matches nothing: unknown server `othr`; did you mean `other`?",
            "warning: --deny: `zzz/y` matches nothing: unknown server `zzz`",
        ]
    );
    for (config, args, expect) in [
        ("", &["denylist", "--tools", "toolbx/*"][..], 1),
        // Names that hold a `/` themselves.
        (
            "[naming]\ncharset = \"original\"",
            &["denylist", "--tools", "mcp_x/*"],
            0,
        ),
        (
            "[naming]\ncharset = \"original\"",
            &["denylist", "--prompts", "mcp_x/*"],
            0,
        ),
        (
            "[naming]\ncharset = \"original\"",
            &["denylist", "--deny", "mcp_x/*"],
            0,
        ),
        (
            "[naming]\ncharset = \"original\"",
            &["denylist", "--deny", "toolbx/*"],
            1,
        ),
        // By such a name an allowlist lets nobody in.
        (
            "[naming]\ncharset = \"original\"",
            &["allowlist", "--tools", "mcp_x/*"],
            1,
        ),
        (
            "[naming]\ntemplate = \"t/{server}_{tool}\"",
            &["denylist", "--tools", "t/*", "u/*"],
            1,
        ),
        (
            "[profiles.p]\nrename = { mcp_toolbox_uuid = \"n/uuid\" }",
            &["allowlist", "--tools", "n/*"],
            0,
        ),
        (
            "[naming]\nnamespace_resources = false",
            &["denylist", "--resources", "docs/*"],
            0,
        ),
        (
            "[naming]\nnamespace_resources = false",
            &["denylist", "--tools", "docs/*"],
            1,
        ),
        (
            "[naming]\nnamespace_resources = false",
            &["denylist", "--deny", "docs/*"],
            0,
        ),
        (
            "[naming]\nnamespace_resources = false",
            &["allowlist", "--resources", "docs/*"],
            1,
        ),
    ] {
        let place = Place::new(&format!("{GOVERNED}\n{config}\n"));
        let args = [&["agents", "add", "bot", "--policy"], args].concat();
        let added = ok(&place, &args).await;
        let warned = added.stderr.matches("matches nothing").count();
        assert_eq!(warned, expect, "{config} {args:?}: {added:?}");
    }
    // What is not written again is not said again.
    let set = ok(&place, &["agents", "set", "bot", "--prompts", "other/*"]).await;
    assert!(!set.stderr.contains("warning"), "{set:?}");
}
