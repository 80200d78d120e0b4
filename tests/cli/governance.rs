//! Agents, keys, budgets, policies and the audit: each command alone, and with a gateway that runs.

use std::fs;

use insta::assert_snapshot;
use serde_json::{Value, json};
use sqlx::Connection;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixListener},
};

use crate::support::{Place, Ran, Serving, TOOLBOX, bounded};

/// Two servers, an agent of the config, and budgets of all kinds.
const GOVERNED: &str = r#"
    listen = "127.0.0.1:0"
    [servers.toolbox]
    transport = "builtin"
    price = "0.25"
    [servers.other]
    transport = "builtin"
    budget = { limit = "5.00", window = "month" }
    [governance]
    auth = "keys"
    [governance.teams.science]
    budget = { limit = "3.00" }
    [agents.researcher]
    team = "science"
    keys = ["0123456789abcdef0123456789abcdef"]
    policy = { mode = "allowlist", tools = ["toolbox/*"], prompts = ["other/*"] }
    [profiles.reading]
    tools = ["toolbox/hash"]
"#;
/// The key of the agent in the config.
const RESEARCHER: &str = "0123456789abcdef0123456789abcdef";

async fn ok(place: &Place, args: &[&str]) -> Ran {
    let ran = place.run(args).await;
    assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    ran
}

/// Ids and times differ each time.
fn masked(ran: &Ran) -> String {
    let mut text = ran.all();
    for (pattern, mask) in [
        (r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z", "TIME"),
        (r"tbk_[A-Za-z0-9]{49}", "KEY"),
        (r"tbk_[A-Za-z0-9]{4}", "PREFIX"),
        (r"key_[A-Za-z0-9]{12}", "KEY_ID"),
        (r"inv_[0-9a-f-]{36}", "INV"),
    ] {
        let pattern = regex::Regex::new(pattern).expect("a regex");
        text = pattern.replace_all(&text, mask).into_owned();
    }
    text
}

#[tokio::test]
async fn agents_are_made_changed_and_removed() {
    let place = Place::new(GOVERNED);
    let args = "agents add bot --tools toolbox/* --deny */uuid --budget 2.50/day 10 --rate 120/1m/20 \
                --team science --profiles reading --admin";
    let added = ok(&place, &args.split_whitespace().collect::<Vec<_>>()).await;
    assert_snapshot!(added.all(), @"
    agent `bot`: added; team science; admin true; profiles reading; policy allowlist tools=toolbox/* deny=*/uuid; budget 2.50/day 10.00/total; rate 120/1m/20
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
    admin→true
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
        "warning: no budget is written for the team `scence` in `[governance.teams]`; did you mean \
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
        "`six` may use everything (all); `tollbridge agents set six --tools 'SERVER/*'` narrows it"
    );
}

/// A change that no running gateway hears of says so: the one that runs may use another directory.
#[tokio::test]
async fn a_change_that_no_gateway_hears_of_says_so() {
    let place = Place::new(GOVERNED);
    let added = ok(&place, &["agents", "add", "bot"]).await;
    let dir = place.file("data");
    let expect = format!(
        "no running gateway uses {}: the change counts once one starts with it\n",
        dir.display()
    );
    assert_eq!(added.unheard, expect);
    let key = ok(&place, &["keys", "create", "bot", "--json"]).await;
    assert_eq!(key.unheard, expect);
    let id = key.json()["id"].as_str().expect("an id").to_owned();
    let changes = [
        &["keys", "revoke", &id][..],
        &["keys", "revoke", &id],
        &["budget", "set", "bot", "2/day"],
        &["budget", "reset", "bot", "--reason", "a slip"],
        &["agents", "disable", "bot"],
    ];
    for change in changes {
        assert_eq!(ok(&place, change).await.unheard, expect, "{change:?}");
    }
    assert_eq!(ok(&place, &["budget", "show"]).await.unheard, "");
    let serving = place.serve().await;
    for change in changes {
        assert_eq!(ok(&place, change).await.unheard, "", "{change:?}");
    }
    serving.end(rustix::process::Signal::TERM).await;
}

/// An answer without records says so, and what may have been meant.
#[tokio::test]
async fn an_audit_without_matches_says_so() {
    let place = Place::new(GOVERNED);
    for (args, expect) in [
        ("audit", "no record matches"),
        ("audit --server other", "no record matches"),
        (
            "audit --server othr",
            "no record matches; no server is called `othr`; did you mean `other`?",
        ),
        (
            "audit --tool toolbx/hash",
            "no record matches; no server is called `toolbx`; did you mean `toolbox`?",
        ),
        ("audit --tool hahs", "no record matches"),
        (
            "audit export --server othr",
            "no record matches; no server is called `othr`; did you mean `other`?",
        ),
    ] {
        let ran = ok(&place, &args.split(' ').collect::<Vec<_>>()).await;
        assert_eq!(ran.stderr.trim_end(), expect, "{args}");
    }
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
        "acme/*",
    ];
    assert_snapshot!(ok(&place, &add).await.all(), @"
    agent `bot`: added; policy allowlist methods=acme/*; tool rate 30/1m/5; scan arguments.*=block arguments.email=off results.ticket=redact custom=ticket allow=T-0; args small ours; observe rate scan
    --- stderr
    --- code 0
    ");
    assert_snapshot!(masked(&ok(&place, &["agents", "show", "bot"]).await), @"
    FIELD→VALUE
    name→bot
    id→agent_8e8ad685-d56a-5d08-8ab9-86586d12a55d
    origin→store
    state→enabled
    admin→false
    profiles→all
    policy→allowlist methods=acme/*
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
    assert_eq!(terms["policy"]["methods"], json!(["acme/*"]));
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
        ("--scan", "on", "no table of TOML"),
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
            "no kind of rule: these are args, budget",
        ),
        ("--tool-rate", "1", "CALLS/PERIOD"),
        ("--methods", "a{b", "unclosed alternate"),
    ] {
        let ran = place.run(&["agents", "set", "bot", flag, value]).await;
        assert_eq!(ran.code, Some(2), "{flag} {value}: {ran:?}");
        assert!(ran.stderr.contains(expect), "{flag} {value}: {ran:?}");
    }
}

/// What the command line writes, a gateway that runs goes by.
#[tokio::test]
async fn terms_of_the_store_govern() {
    let place = Place::new(GOVERNED);
    let scan = "{ arguments = { email = \"block\" } }";
    let args = "{ name = \"short\", at = \"/text\", matches = \"^.{20}\" }";
    let add = [
        "agents", "add", "bot", "--policy", "all", "--scan", scan, "--args", args,
    ];
    ok(&place, &add).await;
    let created = ok(&place, &["keys", "create", "bot", "--json"])
        .await
        .json();
    let key = created["key"].as_str().expect("a key").to_owned();
    let serving = place.serve().await;
    let hash = async |data: &str| {
        let (_, answer) = call_with(&serving, &key, data).await;
        answer["error"]["data"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(hash("a").await, "");
    assert_eq!(hash("a@example.org").await, "PII_DETECTED");
    assert_eq!(hash("twenty letters or more").await, "UNAUTHORIZED");
    ok(
        &place,
        &["agents", "set", "bot", "--observe", "scan", "args"],
    )
    .await;
    assert_eq!(hash("a@example.org").await, "");
    assert_eq!(hash("twenty letters or more").await, "");
    ok(&place, &["agents", "set", "bot", "--tool-rate", "1/24h"]).await;
    assert_eq!(hash("a").await, "");
    assert_eq!(hash("a").await, "RATE_LIMITED");
    serving.end(rustix::process::Signal::INT).await;
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
    agent `bot` and its keys are removed
    --- stderr
    --- code 0
    ");
    let left = ok(&place, &["agents", "list", "--json"]).await.json();
    assert_eq!(left.as_array().map(Vec::len), Some(1), "{left}");
    assert_eq!(left[0]["origin"], "config");
}

/// What is said of an agent that may not be changed here.
const WRITTEN: &str = "the agent `researcher` is written in tollbridge.toml; change it there";
/// Command lines, and a part of what is said of them.
const WRONG: &[(&str, &str)] = &[
    ("agents set researcher --admin", WRITTEN),
    ("agents disable researcher", WRITTEN),
    ("agents enable researcher", WRITTEN),
    ("agents remove researcher", WRITTEN),
    ("budget set researcher 1", WRITTEN),
    (
        "agents set anonymous --admin",
        "is written in `[governance]`",
    ),
    (
        "agents add researcher",
        "there is already an agent `researcher`",
    ),
    ("agents add bot", "there is already an agent named `bot`"),
    ("agents add anonymous", "callers without a key"),
    (
        "agents show bto",
        "there is no agent `bto`; did you mean `bot`?",
    ),
    (
        "agents show zzz",
        "there is no agent `zzz`; these are: bot, researcher",
    ),
    ("agents set bot", "nothing to change"),
    ("agents set bot --team x --no-team", "cannot be used with"),
    (
        "agents set bot --profiles writing",
        "there is no profile `writing`",
    ),
    ("agents set bot --deny x", "--deny needs --policy"),
    ("agents set bot --policy all --tools x", "have no effect"),
    ("agents set bot --policy default --tools x", "has no lists"),
    (
        "agents set bot --policy some",
        "possible values: all, allowlist",
    ),
    ("agents set bot --tools a{b", "unclosed alternate"),
    ("agents set bot --budget 1/week", "`week` is no window"),
    ("agents set bot --budget off 1", "stand alone"),
    ("agents set bot --rate 1", "CALLS/PERIOD"),
    ("keys create nobody", "there is no agent `nobody`"),
    ("keys create anonymous", "callers without a key have none"),
    ("keys create bot --expires 0s", "would open nothing"),
    ("keys create bot --expires soon", "invalid value"),
    ("keys list nobody", "there is no agent `nobody`"),
    (
        "keys revoke key_x",
        "there is no key `key_x`; there are none",
    ),
    ("keys revoke tbk_abcd", "revoked by their ids"),
    ("budget show nobody", "there is no agent `nobody`"),
    ("budget show --team sciense", "did you mean `science`?"),
    ("budget show --server tolbox", "did you mean `toolbox`?"),
    ("budget show bot --team science", "cannot be used with"),
    ("budget set bot", "<LIMIT>"),
    ("budget set bot x", "an amount is a decimal"),
    ("budget reset researcher", "--reason"),
    ("budget reset --reason x", "whose budget?"),
    (
        "budget reset bot --reason x",
        "the agent `bot` has no such budget",
    ),
    (
        "budget reset --server toolbox --reason x",
        "the server `toolbox` has no",
    ),
    (
        "budget reset --team science --window day --reason x",
        "no such budget",
    ),
    ("policy explain nobody hash", "there is no agent `nobody`"),
    ("policy explain bto hash", "did you mean `bot`?"),
    ("policy explain bot hsh", "did you mean `mcp_other_hash`"),
    (
        "policy explain bot hash --profile x",
        "there is no profile `x`",
    ),
    (
        "policy explain bot x --prompt --resource",
        "cannot be used with",
    ),
    (
        "list --agent bto",
        "there is no agent `bto`; did you mean `bot`?",
    ),
    ("call mcp_other_hash", "say whose calls these are"),
    ("audit --agent nobody", "there is no agent `nobody`"),
    ("audit export --agent nobody", "there is no agent `nobody`"),
    ("audit --decision maybe", "a decision is `allowed`"),
    ("audit --since yesterday", "how long ago"),
    ("audit --id 7", "an id is `inv_` and a UUID"),
    ("audit --follow --until 1h", "cannot be used with"),
    ("audit export --format xml", "jsonl, csv"),
];

#[tokio::test]
async fn wrong_input_is_refused_with_clear_words() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot", "--budget", "off"]).await;
    let check = async |line: &str, expect: &str| {
        let args: Vec<&str> = line.split(' ').collect();
        let ran = place.run(&args).await;
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert!(ran.stderr.contains(expect), "{line}: {ran:?}");
        assert_eq!(ran.stdout, "", "{line}");
    };
    for (line, expect) in WRONG {
        check(line, expect).await;
    }
    let id = "agent_8e8ad685-d56a-5d08-8ab9-86586d12a55d";
    check(&format!("agents add {id}"), "that is an id").await;
    check(&format!("agents add {}", "x".repeat(65)), "longer than 64").await;
    let reset = ["budget", "reset", "researcher", "--reason", " "];
    let blank = place.run(&reset).await;
    assert!(blank.stderr.contains("--reason is empty"), "{blank:?}");
}

#[tokio::test]
async fn keys_are_shown_once() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot"]).await;
    let made = ok(&place, &["keys", "create", "bot", "--expires", "90d"]).await;
    assert_snapshot!(masked(&made), @"
    KEY
    --- stderr
    key KEY_ID for agent `bot`, expires TIME; it is not shown again
    --- code 0
    ");
    let key = made.stdout.trim();
    let object = ok(&place, &["keys", "create", "researcher", "--json"])
        .await
        .json();
    assert_eq!(object["agent"], "researcher");
    assert_eq!(
        (&object["state"], &object["expires"]),
        (&json!("live"), &Value::Null)
    );
    assert!(
        object["key"]
            .as_str()
            .is_some_and(|key| key.starts_with("tbk_"))
    );
    let listed = ok(&place, &["keys", "list"]).await;
    assert_snapshot!(masked(&listed), @"
    ID→AGENT→PREFIX→STATE→CREATED→EXPIRES→LAST USED
    KEY_ID→bot→PREFIX→live→TIME→TIME→
    KEY_ID→researcher→PREFIX→live→TIME→→
    --- stderr
    keys that are written in the config are not listed; these have some: researcher
    --- code 0
    ");
    assert!(!listed.stdout.contains(key));
    let of_bot = ok(&place, &["keys", "list", "bot", "--json"]).await.json();
    assert_eq!(of_bot.as_array().map(Vec::len), Some(1), "{of_bot}");
    let id = of_bot[0]["id"].as_str().expect("an id");
    let revoked = ok(&place, &["keys", "revoke", id, "--json"]).await.json();
    assert_eq!(revoked["state"], "revoked");
    assert!(revoked["revoked"].is_string() && revoked.get("key").is_none());
    let again = ok(&place, &["keys", "revoke", id]).await;
    assert_snapshot!(masked(&again), @"
    key KEY_ID of agent `bot` is revoked already
    --- stderr
    --- code 0
    ");
    let unlike = place.run(&["keys", "revoke", &id[..id.len() - 1]]).await;
    assert!(unlike.stderr.contains("did you mean `key_"), "{unlike:?}");
    ok(&place, &["agents", "remove", "bot"]).await;
    let gone = ok(&place, &["keys", "list", "--json"]).await.json();
    assert_eq!(
        gone.as_array().map(Vec::len),
        Some(1),
        "keys go with their agent"
    );
}

#[tokio::test]
async fn a_config_that_asks_for_no_keys_gets_none() {
    let place = Place::new(TOOLBOX);
    let added = ok(&place, &["agents", "add", "bot"]).await;
    assert!(
        added
            .stderr
            .contains("nobody can call as this agent over HTTP"),
        "{added:?}"
    );
    let none = place.run(&["keys", "create", "bot"]).await;
    assert_eq!((none.code, none.stdout.as_str()), (Some(2), ""), "{none:?}");
    assert!(
        none.stderr.contains("the config asks for no keys"),
        "{none:?}"
    );
    let shown = ok(&place, &["budget", "show"]).await;
    assert!(
        shown.stderr.contains("the config has no `[governance]`"),
        "{shown:?}"
    );
    let all = ok(&place, &["agents", "list", "--json"]).await.json();
    assert_eq!(all[0]["name"], "anonymous");
    assert_eq!(all[0]["origin"], "builtin");
    let listed = ok(&place, &["list", "--agent", "bot"]).await;
    assert!(listed.stdout.contains("mcp_toolbox_hash"), "{listed:?}");
}

#[tokio::test]
async fn budgets_are_shown_set_and_reset() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot"]).await;
    let set = ok(&place, &["budget", "set", "bot", "1.255/day"]).await;
    assert_eq!(set.stdout, "agent `bot`: budget 1.255/day\n");
    let call = [
        "call",
        "mcp_toolbox_hash",
        "--arg",
        "text=1",
        "--agent",
        "researcher",
    ];
    ok(&place, &call).await;
    let shown = ok(&place, &["budget", "show"]).await;
    assert_snapshot!(masked(&shown), @"
    OF→NAME→WINDOW→LIMIT→SPENT→LEFT→HELD→ENDS→FROM
    agent→bot→day→1.255→0.00→1.255→0.00→TIME→agent
    agent→researcher→total→10.00→0.25→9.75→0.00→→default
    team→science→total→3.00→0.25→2.75→0.00→→team
    server→other→month→5.00→0.00→5.00→0.00→TIME→server
    --- stderr
    --- code 0
    ");
    let of_agent = ok(&place, &["budget", "show", "researcher", "--json"])
        .await
        .json();
    let expect = json!([{
        "of": "agent",
        "name": "researcher",
        "from": "default",
        "window": "total",
        "account": of_agent[0]["account"],
        "limit": "10.00",
        "limit_micros": 10_000_000,
        "spent": "0.25",
        "spent_micros": 250_000,
        "held_micros": 0,
        "elsewhere_micros": 0,
        "left": "9.75",
        "left_micros": 9_750_000,
        "ends": null,
    }]);
    assert_eq!(of_agent, expect);
}

/// What a gateway keeps for its calls is not spent, and said to be a part of what is left.
#[tokio::test]
async fn what_a_gateway_holds_is_left() {
    let place = Place::new(GOVERNED);
    let serving = place.serve().await;
    let add = "agents add bot --policy all --budget 20";
    ok(&place, &add.split(' ').collect::<Vec<_>>()).await;
    let key = ok(&place, &["keys", "create", "bot"]).await.stdout;
    let first = call(&serving, key.trim()).await;
    assert!(first.1["result"]["content"].is_array(), "{first:?}");
    let shown = ok(&place, &["budget", "show", "bot"]).await;
    let legend = "HELD is the part of LEFT that gateways keep for calls\n";
    assert_eq!(shown.stderr, legend);
    let row: Vec<&str> = shown
        .stdout
        .lines()
        .nth(1)
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(
        row[..6],
        ["agent", "bot", "total", "20.00", "0.25", "19.75"]
    );
    let held: f64 = row[6].parse().unwrap();
    assert!(held > 0.0, "{row:?}");
    drop(serving);
}

/// What was spent stays in sight when its limit goes, or counts in another window.
#[tokio::test]
async fn spending_without_a_limit_is_shown() {
    let place = Place::new(GOVERNED);
    ok(
        &place,
        &["agents", "add", "bot", "--policy", "all", "--budget", "1"],
    )
    .await;
    ok(
        &place,
        &[
            "call",
            "mcp_toolbox_hash",
            "--arg",
            "text=1",
            "--agent",
            "bot",
        ],
    )
    .await;
    ok(&place, &["budget", "set", "bot", "2/day"]).await;
    let shown = ok(&place, &["budget", "show", "bot"]).await;
    assert_snapshot!(masked(&shown), @"
    OF→NAME→WINDOW→LIMIT→SPENT→LEFT→HELD→ENDS→FROM
    agent→bot→day→2.00→0.00→2.00→0.00→TIME→agent
    agent→bot→total→none→0.25→→0.00→→
    --- stderr
    --- code 0
    ");
    let shown = ok(&place, &["budget", "show", "bot", "--json"])
        .await
        .json();
    let old = &shown[1];
    assert_eq!((&old["limit"], &old["left"]), (&Value::Null, &Value::Null));
    assert_eq!(old["spent_micros"], 250_000);
    let other = ok(&place, &["budget", "show", "researcher", "--json"]).await;
    assert_eq!(other.json().as_array().map(Vec::len), Some(1), "{other:?}");
}

#[tokio::test]
async fn a_reset_concerns_one_subject() {
    let place = Place::new(GOVERNED);
    let call = "call mcp_toolbox_hash --arg text=1 --agent researcher";
    ok(&place, &call.split(' ').collect::<Vec<_>>()).await;
    let reset = [
        "budget",
        "reset",
        "--team",
        "science",
        "--reason",
        "a new grant",
    ];
    assert_snapshot!(ok(&place, &reset).await.all(), @"
    team `science`: the budget for `total` begins again at 0.00
    --- stderr
    --- code 0
    ");
    let team = ok(&place, &["budget", "show", "--team", "science", "--json"])
        .await
        .json();
    assert_eq!(team[0]["spent_micros"], 0);
    let kept = ok(&place, &["budget", "show", "researcher", "--json"])
        .await
        .json();
    assert_eq!(kept[0]["spent_micros"], 250_000, "another subject's");
    let args = [
        "budget",
        "reset",
        "researcher",
        "--window",
        "total",
        "--reason",
        "x",
        "--json",
    ];
    let object = ok(&place, &args).await.json();
    assert_eq!(
        (&object[0]["window"], &object[0]["reason"]),
        (&json!("total"), &json!("x"))
    );
    let server = ok(&place, &["budget", "show", "--server", "other", "--json"])
        .await
        .json();
    assert_eq!(server[0]["limit_micros"], 5_000_000);
}

#[tokio::test]
async fn policies_are_explained() {
    let place = Place::new(GOVERNED);
    ok(
        &place,
        &[
            "agents",
            "add",
            "bot",
            "--policy",
            "all",
            "--deny",
            "mcp_other_uuid",
        ],
    )
    .await;
    let check = async |line: &str, code: i32, expect: &str| {
        let args: Vec<&str> = ["policy", "explain"]
            .into_iter()
            .chain(line.split(' '))
            .collect();
        let ran = place.run(&args).await;
        assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
        assert!(
            (ran.stdout.clone() + &ran.stderr).contains(expect),
            "{line}: {ran:?}"
        );
    };
    check(
        "researcher toolbox/hash",
        0,
        "researcher may call the tool `toolbox/hash`",
    )
    .await;
    check("researcher mcp_toolbox_hash", 0, "`tools` has `toolbox/*`").await;
    check(
        "researcher other/hash",
        1,
        "researcher may not call the tool `other/hash`",
    )
    .await;
    check("bot other/uuid", 1, "has `mcp_other_uuid` in `deny`").await;
    check("bot other/hash", 0, "bot may call").await;
    check("bot hash --profile reading", 2, "there is no tool `hash`").await;
    check("bot toolbox/hash --profile reading", 0, "bot may call").await;
    check(
        "bot other/hash --profile reading",
        1,
        "the profile `reading` does not show",
    )
    .await;
    check(
        "researcher toolbox/write_regex --prompt",
        1,
        "may not use the prompt",
    )
    .await;
    check(
        "researcher mcp_other_write_regex --prompt",
        0,
        "may use the prompt",
    )
    .await;
    let resources = ok(&place, &["list", "resources", "--json"]).await.json();
    let uri = resources[0]["uri"].as_str().expect("a resource").to_owned();
    check(
        &format!("bot {uri} --resource"),
        0,
        "bot may use the resource",
    )
    .await;
    check(
        &format!("researcher {uri} --resource"),
        1,
        "researcher may not use the resource",
    )
    .await;
    let args = ["policy", "explain", "researcher", "other/hash", "--json"];
    let object = place.run(&args).await.json();
    assert_eq!(
        (&object["allowed"], &object["kind"]),
        (&json!(false), &json!("tool"))
    );
    assert_eq!(object["exposed"], "mcp_other_hash");
    ok(&place, &["agents", "set", "bot", "--profiles", "reading"]).await;
    ok(&place, &["agents", "disable", "bot"]).await;
    check("bot other/hash", 1, "bot is disabled").await;
    let missing = Place::new(&format!(
        "{GOVERNED}\n[servers.missing]\ncommand = \"/no/such\"\n"
    ));
    let args = ["policy", "explain", "researcher", "missing/read"];
    let ran = missing.run(&args).await;
    assert_eq!(
        ran.code,
        Some(1),
        "it may be one of the server that is down: {ran:?}"
    );
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
        .says("the config has an agent that is in the store too")
        .await;
    let (_, answer) = call(&serving, key.trim()).await;
    assert!(
        answer["result"].is_object(),
        "its key is one of the config's agent: {answer}"
    );
    serving.end(rustix::process::Signal::TERM).await;
    let mut serving = place.serve().await;
    serving
        .says("the config has an agent that is in the store too")
        .await;
    serving.end(rustix::process::Signal::TERM).await;
    let listed = ok(&place, &["agents", "list"]).await;
    assert_snapshot!(listed.stderr, @"the agent `zed` of the store is hidden by the one of the config, and its keys open that one (see `keys list agent_9acd1f3c-241e-5e01-8d40-5851bd601f81`)");
    assert_snapshot!(place.run(&["agents", "remove", "zed"]).await.stderr, @"the agent `zed` is written in tollbridge.toml; change it there. It hides the agent `zed` of the store, which can be changed or removed, with its keys, once the one of the config has another name or `id`");
    let state =
        async || ok(&place, &["keys", "list", "zed", "--json"]).await.json()[0]["state"].clone();
    assert_eq!(state().await, "live");
    fs::write(&config, GOVERNED).expect("written");
    ok(&place, &["agents", "disable", "zed"]).await;
    fs::write(&config, &hiding).expect("written");
    assert_eq!(state().await, "shut", "it would open the one of the config");
    let listed = ok(&place, &["agents", "list", "--json"]).await;
    assert_snapshot!(listed.stderr, @"the agent `zed` of the store is hidden by the one of the config, and its keys open nothing while it is disabled (see `keys list agent_9acd1f3c-241e-5e01-8d40-5851bd601f81`)");
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

/// Beside its profiles an agent may use nothing, whatever its policy says; what is said of it agrees.
#[tokio::test]
async fn the_profiles_of_an_agent_are_all_it_may_use() {
    let place = Place::new(&format!("{GOVERNED}\n[profiles.writing]\n"));
    let with =
        |name: &'static str, more: &'static [&str]| [&["agents", "add", name], more].concat();
    ok(
        &place,
        &with("open", &["--policy", "all", "--profiles", "reading"]),
    )
    .await;
    ok(&place, &with("bare", &["--profiles", "reading", "writing"])).await;
    let resources = ok(&place, &["list", "resources", "--json"]).await.json();
    let uri = resources[0]["uri"].as_str().expect("a resource");
    let one = "open may use the profile `reading` and nothing beside it; see --profile.";
    let two =
        "bare may use the profiles `reading`, `writing` and nothing beside them; see --profile.";
    for item in [
        ["toolbox/hash"].as_slice(),
        &["toolbox/write_regex", "--prompt"],
        &[uri, "--resource"],
    ] {
        for (agent, expect) in [("open", one), ("bare", two)] {
            let args = [&["policy", "explain", agent], item].concat();
            let ran = place.run(&args).await;
            assert_eq!(ran.stdout, format!("{expect}\n"), "{ran:?}");
            assert_eq!(ran.code, Some(1), "{ran:?}");
            let object = place.run(&[&args[..], &["--json"]].concat()).await.json();
            assert_eq!(
                (&object["allowed"], &object["because"]),
                (&json!(false), &json!(expect))
            );
        }
    }
}

/// What matters to the answer is waited for, and nothing else: the other server takes for ever.
#[tokio::test]
async fn an_explanation_waits_for_the_servers_of_the_name_only() {
    let slow = "[servers.slow]\ncommand = \"sh\"\nargs = [\"-c\", \"exec sleep 600\"]\n\
                startup_timeout = \"10m\"\n";
    let place = Place::new(&format!("{GOVERNED}\n{slow}"));
    for (name, code) in [
        ("toolbox/hash", 0),
        ("mcp_toolbox_hash", 0),
        ("mcp_other_hash", 1),
        ("mcp_toolbox_none", 2),
        ("other/none", 2),
    ] {
        let ran = place.run(&["policy", "explain", "researcher", name]).await;
        assert_eq!(ran.code, Some(code), "{name}: {ran:?}");
        assert!(!ran.stderr.contains("slow"), "{name}: {ran:?}");
    }
}

#[tokio::test]
async fn an_agent_sees_what_it_may_call_and_who_looks_leaves_nothing() {
    let place = Place::new(GOVERNED);
    let names = |ran: &Ran| -> Vec<String> {
        let rows = ran.stdout.lines().skip(1);
        rows.map(|row| row.split('\t').next().unwrap_or_default().to_owned())
            .collect()
    };
    let all = names(&ok(&place, &["list"]).await);
    let check = ok(&place, &["check", "--connect"]).await;
    assert!(check.stdout.contains("connected"), "{check:?}");
    assert!(!place.file("data").exists(), "nothing is kept of a look");
    let seen = names(&ok(&place, &["list", "--agent", "researcher"]).await);
    let expect: Vec<_> = all
        .iter()
        .filter(|name| name.starts_with("mcp_toolbox_"))
        .collect();
    assert!(!expect.is_empty() && expect.len() < all.len());
    assert_eq!(seen.iter().collect::<Vec<_>>(), expect);
    let resources = ok(&place, &["list", "resources", "--agent", "researcher"]).await;
    assert_eq!(names(&resources), Vec::<String>::new());
    ok(&place, &["list", "servers", "--agent", "researcher"]).await;
    assert!(!place.file("data/audit").exists(), "a look begins no chain");

    let serving = place.serve().await;
    let elsewhere = Place::new("");
    fs::write(elsewhere.file("key"), RESEARCHER).expect("written");
    let url = serving.mcp();
    let remote = ["list", "--url", &url, "--key-file", "key"];
    let remote = names(&ok(&elsewhere, &remote).await);
    assert_eq!(remote, seen, "over HTTP it sees the same");
    assert!(!elsewhere.file("data").exists());
}

#[tokio::test]
async fn a_data_directory_that_cannot_be_used_is_named() {
    let place = Place::new(GOVERNED);
    fs::write(place.file("data"), "a file").expect("written");
    for line in [
        "agents list",
        "keys list",
        "budget show",
        "audit",
        "serve --listen 127.0.0.1:0",
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let ran = place.run(&args).await;
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (Some(1), ""),
            "{line}: {ran:?}"
        );
        assert!(
            ran.stderr.contains("data is a file; move it away"),
            "{line}: {ran:?}"
        );
    }
    let verify = place.run(&["audit", "verify"]).await;
    assert_eq!(verify.code, Some(1), "{verify:?}");
    assert!(verify.stderr.contains("cannot be used"), "{verify:?}");
}

#[tokio::test]
async fn what_cannot_be_recorded_is_not_done() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "list"]).await;
    fs::write(place.file("data/audit"), "a file").expect("written");
    let ran = place.run(&["agents", "add", "bot"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("the audit directory"), "{ran:?}");
    fs::remove_file(place.file("data/audit")).expect("removed");
    let agents = ok(&place, &["agents", "list", "--json"]).await.json();
    assert_eq!(agents.as_array().map(Vec::len), Some(1), "{agents}");
}

#[tokio::test]
async fn records_are_found_by_what_is_known_of_them() {
    let place = Place::new(GOVERNED);
    let none = ok(&place, &["audit", "verify"]).await;
    assert!(
        none.stdout.starts_with("there is no record in "),
        "{none:?}"
    );
    assert_eq!(ok(&place, &["audit", "--json"]).await.stdout, "[]\n");
    let call = async |tool: &str, agent: &str| {
        place
            .run(&["call", tool, "--arg", "text=1", "--agent", agent])
            .await
    };
    ok(&place, &["agents", "add", "bot", "--policy", "all"]).await;
    assert_eq!(call("mcp_toolbox_hash", "researcher").await.code, Some(0));
    assert_eq!(call("mcp_other_hash", "researcher").await.code, Some(1));
    assert_eq!(call("mcp_other_hash", "bot").await.code, Some(0));
    let all = ok(&place, &["audit", "query", "--json"]).await.json();
    assert_eq!(all.as_array().map(Vec::len), Some(3), "{all}");
    let (id, ts) = (all[1]["id"].as_str().expect("an id"), &all[1]["ts"]);
    let find = async |line: &str| {
        let args: Vec<&str> = ["audit", "--json"]
            .into_iter()
            .chain(line.split(' '))
            .collect();
        let found = ok(&place, &args).await.json();
        let found = found.as_array().expect("an array").iter();
        let at = |record: &Value| all.as_array()?.iter().position(|it| it == record);
        found
            .map(|record| at(record).expect("as before"))
            .collect::<Vec<_>>()
    };
    assert_eq!(find("--agent researcher").await, [0, 1]);
    assert_eq!(find("--server other").await, [1, 2]);
    assert_eq!(find("--tool hash").await, [0, 1, 2]);
    assert_eq!(find("--tool other/hash").await, [1, 2]);
    assert_eq!(find("--tool mcp_toolbox_hash").await, [0]);
    assert_eq!(find("--decision refused").await, [1]);
    assert_eq!(find(&format!("--id {id}")).await, [1]);
    assert_eq!(find("--since 1h").await, [0, 1, 2]);
    assert_eq!(find("--until 1h").await, [] as [usize; 0]);
    assert_eq!(
        find(&format!("--since {}", ts.as_str().expect("a time"))).await,
        [1, 2]
    );
    let largest = usize::MAX.to_string();
    for limit in ["65536", &largest] {
        let listed = ok(&place, &["audit", "--limit", limit]).await;
        assert_eq!(listed.stdout.lines().count(), 4, "{listed:?}");
        let events = ok(&place, &["audit", "events", "--limit", limit]).await;
        assert!(events.stdout.contains("agent_changed"), "{events:?}");
    }
    let two = ok(&place, &["audit", "--limit", "2"]).await;
    assert!(
        two.stderr.contains("only the latest 2 are shown"),
        "{two:?}"
    );
    assert_eq!(two.stdout.lines().count(), 3, "{two:?}");
    assert!(
        two.stdout
            .lines()
            .nth(1)
            .is_some_and(|row| row.contains(id)),
        "oldest first"
    );
}

#[tokio::test]
async fn records_are_exported_and_outlive_their_agent() {
    let place = Place::new(GOVERNED);
    let call = async |agent: &str| {
        let args = [
            "call",
            "mcp_other_hash",
            "--arg",
            "text=1",
            "--agent",
            agent,
        ];
        place.run(&args).await
    };
    ok(&place, &["agents", "add", "bot", "--policy", "all"]).await;
    assert_eq!(call("researcher").await.code, Some(1));
    assert_eq!(call("bot").await.code, Some(0));
    ok(&place, &["agents", "remove", "bot"]).await;
    let all = ok(&place, &["audit", "--json"]).await.json();
    let of_bot = ok(&place, &["audit", "--agent", "bot", "--json"]).await;
    assert_eq!(of_bot.json(), json!([all[1]]));
    let lines = ok(&place, &["audit", "export", "--agent", "bot"])
        .await
        .stdout;
    assert_eq!(lines.lines().count(), 1, "{lines}");
    assert_eq!(
        serde_json::from_str::<Value>(&lines).ok().as_ref(),
        all.get(1)
    );
    let args = [
        "audit",
        "export",
        "--format",
        "csv",
        "--decision",
        "refused",
    ];
    let csv = ok(&place, &args).await.stdout;
    assert_eq!(csv.lines().count(), 2, "{csv}");
    let id = all[0]["id"].as_str().expect("an id");
    assert!(csv.starts_with("chain,id,ts,") && csv.contains(id), "{csv}");
}

/// Changes of an agent, a key and a budget are events of the audit.
#[tokio::test]
async fn changes_are_recorded() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot", "--budget", "1"]).await;
    let key = ok(&place, &["keys", "create", "bot", "--json"])
        .await
        .json();
    let id = key["id"].as_str().expect("an id");
    ok(&place, &["keys", "revoke", id]).await;
    ok(&place, &["budget", "set", "bot", "2/day"]).await;
    ok(&place, &["budget", "reset", "bot", "--reason", "a mistake"]).await;
    ok(&place, &["agents", "disable", "bot"]).await;
    ok(&place, &["agents", "remove", "bot"]).await;
    let events = ok(&place, &["audit", "events"]).await;
    let text = masked(&events);
    assert_snapshot!(text, @"
    TIME→EVENT→SUBJECT→BY→DETAIL
    TIME→agent_changed→bot→cli→added; budget 1.00/total
    TIME→key_created→KEY_ID→cli→for bot; expires never
    TIME→key_revoked→KEY_ID→cli→of bot
    TIME→budget_changed→bot→cli→set to 2.00/day
    TIME→budget_changed→bot→cli→reset day: a mistake
    TIME→agent_changed→bot→cli→disabled
    TIME→agent_changed→bot→cli→removed
    --- stderr
    --- code 0
    ");
    let latest = ok(&place, &["audit", "events", "--limit", "1", "--json"]).await;
    assert_eq!(latest.json()[0]["detail"], "removed");
    assert!(
        latest.stderr.contains("only the latest 1 is shown"),
        "{latest:?}"
    );
    let old = ok(&place, &["audit", "events", "--until", "1h", "--json"]).await;
    assert_eq!(old.stdout, "[]\n");
    let secret = key["key"].as_str().expect("a key");
    assert!(
        !lines_of_the_log(&place)
            .iter()
            .any(|line| line.contains(secret))
    );
    let verified = ok(&place, &["audit", "verify", "--json"]).await.json();
    assert_eq!(verified["ok"], true);
    assert_eq!(
        verified["chains"].as_array().map(Vec::len),
        Some(7),
        "{verified}"
    );
    assert_eq!(verified["chains"][0]["ended"], true);
}

/// All lines, in the order of chains.
fn lines_of_the_log(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.file("data/audit")).expect("it is there");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let read = |file| fs::read_to_string(file).expect("it can be read");
    let texts: Vec<String> = files.iter().map(read).collect();
    texts
        .iter()
        .flat_map(|text| text.lines().map(str::to_owned))
        .collect()
}

#[tokio::test]
async fn what_is_changed_counts_at_once_in_a_gateway_that_runs() {
    let place = Place::new(GOVERNED);
    let serving = place.serve().await;
    ok(
        &place,
        &[
            "agents", "add", "bot", "--policy", "all", "--budget", "0.25/day",
        ],
    )
    .await;
    let key = ok(&place, &["keys", "create", "bot"]).await.stdout;
    let key = key.trim();

    let first = call(&serving, key).await;
    assert!(first.1["result"]["content"].is_array(), "{first:?}");
    let second = call(&serving, key).await;
    assert_eq!(
        (second.0, &second.1["error"]["code"]),
        (200, &json!(-32001)),
        "{second:?}"
    );
    let spent = ok(&place, &["budget", "show", "bot", "--json"])
        .await
        .json();
    assert_eq!(
        spent[0]["spent_micros"], 250_000,
        "a gateway that is asked says it: {spent}"
    );
    ok(&place, &["budget", "reset", "bot", "--reason", "one more"]).await;
    let third = call(&serving, key).await;
    assert!(
        third.1["result"].is_object(),
        "a reset counts at once: {third:?}"
    );
    ok(&place, &["budget", "set", "bot", "0.60/day"]).await;
    let fourth = call(&serving, key).await;
    assert!(
        fourth.1["result"].is_object(),
        "a new limit counts at once: {fourth:?}"
    );

    ok(&place, &["agents", "disable", "bot"]).await;
    let disabled = call(&serving, key).await;
    assert_eq!(
        (disabled.0, &disabled.1["error"]["code"]),
        (200, &json!(-32003)),
        "{disabled:?}"
    );
    ok(&place, &["agents", "enable", "bot"]).await;
    ok(&place, &["agents", "set", "bot", "--policy", "none"]).await;
    let unlisted = call(&serving, key).await;
    assert_eq!(unlisted.1["error"]["code"], -32003, "{unlisted:?}");

    let id = ok(&place, &["keys", "list", "bot", "--json"]).await.json();
    let id = id[0]["id"].as_str().expect("an id");
    ok(&place, &["keys", "revoke", id]).await;
    let (status, _) = call(&serving, key).await;
    assert_eq!(status, 401, "a revoked key opens nothing, at once");
    let (status, _) = call(&serving, RESEARCHER).await;
    assert_eq!(status, 200);

    let ended = serving.end(rustix::process::Signal::TERM).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    what_was_called_is_recorded(&place).await;
    tampering_is_found(&place).await;
}

async fn what_was_called_is_recorded(place: &Place) {
    let args = ["audit", "--agent", "bot", "--json"];
    let records = ok(place, &args).await.json();
    let records = records.as_array().expect("an array").iter();
    let decisions: Vec<_> = records.map(|record| record["decision"].as_str()).collect();
    let [allowed, refused] = ["allowed", "refused"].map(Some);
    assert_eq!(
        decisions,
        [allowed, refused, allowed, allowed, refused, refused]
    );
    let verified = ok(place, &["audit", "verify"]).await;
    assert!(
        verified
            .stdout
            .starts_with("every line is as it was written"),
        "{verified:?}"
    );
}

/// A change is written all the same, and the exit code says that it may not be in force.
#[tokio::test]
async fn a_gateway_that_cannot_be_told_is_a_failure() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot"]).await;
    fs::create_dir_all(place.file("data/control")).expect("made");
    let socket = place.file("data/control/odd.sock");
    let listener = UnixListener::bind(&socket).expect("bound");
    let refuse = async || {
        let (mut stream, _) = listener.accept().await.expect("a command");
        let mut asked = [0; b"refresh\n".len()];
        stream.read_exact(&mut asked).await.expect("a line");
        let answer = b"its store is gone\n";
        stream.write_all(answer).await.expect("it is read");
    };
    let disable = ["agents", "disable", "bot"];
    let (ran, ()) = tokio::join!(place.run(&disable), bounded(refuse()));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let expect = "the change, which is written, may not be in force there: its store is gone";
    assert!(ran.stderr.contains(expect), "{ran:?}");
    let (ran, ()) = tokio::join!(place.run(&["budget", "show", "bot"]), bounded(refuse()));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("what it has spent is missing"),
        "{ran:?}"
    );
    drop(listener);
    let shown = ok(&place, &["agents", "show", "bot", "--json"])
        .await
        .json();
    assert_eq!(shown["enabled"], false);
    ok(&place, &["agents", "enable", "bot"]).await;
    assert!(!socket.exists(), "what a dead gateway left is removed");
}

/// One byte of one line is changed.
async fn tampering_is_found(place: &Place) {
    let entries = fs::read_dir(place.file("data/audit")).expect("it is there");
    let files = entries.map(|entry| entry.expect("a file").path());
    let found = files.filter_map(|file| {
        let text = fs::read_to_string(&file).ok()?;
        text.contains(r#""decision":"refused""#)
            .then_some((file, text))
    });
    let (file, text) = found.last().expect("there is a refusal");
    let line = text
        .lines()
        .position(|line| line.contains(r#""decision":"refused""#));
    let line = line.expect("it is there") + 1;
    let changed = text.replacen(r#""code":"BUDGET"#, r#""code":"BUDGES"#, 1);
    assert_ne!(changed, text);
    fs::write(&file, changed).expect("written");
    let ran = place.run(&["audit", "verify"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let expect = format!("segment 1, line {line}, seq {line}: `hash` is not the hash of the line");
    assert!(ran.stdout.contains(&expect), "{expect}: {ran:?}");
    let object = place.run(&["audit", "verify", "--json"]).await.json();
    assert_eq!(object["ok"], false);
    let chains = object["chains"].as_array().expect("an array");
    let faults: Vec<_> = chains
        .iter()
        .filter(|chain| !chain["fault"].is_null())
        .collect();
    assert_eq!(faults.len(), 1, "{object}");
    assert_eq!(faults[0]["fault"]["line"], line);
}

/// What is gone of the log is named as long as the index knows it, and is an event from the next
/// start of a gateway on.
#[tokio::test]
async fn missing_records_are_named() {
    let place = Place::new(GOVERNED);
    for _ in 0..2 {
        let call = ["call", "mcp_toolbox_hash", "--arg", "text=1"];
        let called = place
            .run(&[&call[..], &["--agent", "researcher"]].concat())
            .await;
        assert_eq!(called.code, Some(0), "{called:?}");
    }
    ok(&place, &["audit"]).await;
    let entries = fs::read_dir(place.file("data/audit")).expect("it is there");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let [gone, cut] = &files[..] else {
        panic!("{files:?}");
    };
    let text = fs::read_to_string(cut).expect("it can be read");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    // Recovery writes an end as long as this one.
    let rest = lines[..lines.len() - 1].concat();
    fs::write(cut, &rest).expect("written");
    let bytes_gone = fs::metadata(gone).expect("it is there").len();
    fs::remove_file(gone).expect("removed");

    let chain = |path: &std::path::Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.strip_suffix(".1.jsonl"))
            .expect("a segment")
            .to_owned()
    };
    let ran = place.run(&["audit", "verify"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let whole = format!(
        "chain {}, segment 1: {bytes_gone} bytes are known, the file is gone\n\
         chain {}, segment 1: {} bytes are known, {} are there\n",
        chain(gone),
        chain(cut),
        text.len(),
        rest.len()
    );
    assert_eq!(ran.stdout, whole);
    let object = place.run(&["audit", "verify", "--json"]).await.json();
    assert_eq!(
        (&object["ok"], &object["indexed"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(
        object["shortened"],
        json!([
            {"chain": chain(gone), "segment": 1, "bytes_known": bytes_gone, "bytes_found": null},
            {"chain": chain(cut), "segment": 1, "bytes_known": text.len(), "bytes_found": rest.len()},
        ])
    );

    for _ in 0..2 {
        let serving = place.serve().await;
        serving.end(rustix::process::Signal::TERM).await;
        let events = ok(&place, &["audit", "events", "--json"]).await.json();
        let events = events.as_array().expect("an array").iter();
        let lost = events.filter(|event| event["event"] == "log_shortened");
        let lost: Vec<_> = lost.map(|event| event["subject"].clone()).collect();
        assert_eq!(
            lost,
            [gone, cut].map(|path| json!(format!("{}/1", chain(path))))
        );
    }
    ok(&place, &["audit", "verify"]).await;
}

/// The index knows a chain to its end once its gateway has stopped: no later start is needed to
/// miss the last line, or a part of it.
#[tokio::test]
async fn a_missing_end_is_named() {
    for left in [0, 20] {
        let place = Place::new(GOVERNED);
        let call = ["call", "mcp_toolbox_hash", "--arg", "text=1"];
        ok(&place, &[&call[..], &["--agent", "researcher"]].concat()).await;
        ok(&place, &["audit", "verify"]).await;
        let entries = fs::read_dir(place.file("data/audit")).expect("it is there");
        let files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
        let [file] = &files[..] else {
            panic!("{files:?}");
        };
        let text = fs::read_to_string(file).expect("it can be read");
        let end = text.trim_end().rfind('\n').expect("several lines") + 1;
        assert!(text[end..].starts_with(r#"{"kind":"end""#), "{text}");
        fs::write(file, &text[..end + left]).expect("written");
        let ran = place.run(&["audit", "verify"]).await;
        assert_eq!(ran.code, Some(1), "{left}: {ran:?}");
        let known = format!("{} bytes are known, {end} are there\n", text.len());
        assert!(ran.stdout.ends_with(&known), "{left}: {ran:?}");
    }
}

/// Who cuts the audit gets no money back, be it of a process that ended or of one that was killed.
#[tokio::test]
async fn a_cut_audit_gives_no_budget_back() {
    let place = Place::new(GOVERNED);
    let call = ["call", "mcp_toolbox_hash", "--arg", "text=1"];
    let args = [&call[..], &["--agent", "researcher"]].concat();
    for _ in 0..3 {
        ok(&place, &args).await;
    }
    let show = ["budget", "show", "researcher", "--json"];
    let before = ok(&place, &show).await.json();
    assert_eq!(before[0]["spent"], "0.75", "{before}");
    for entry in fs::read_dir(place.file("data/audit")).expect("it is there") {
        let path = entry.expect("a file").path();
        let text = fs::read_to_string(&path).expect("it can be read");
        let first = text.split_inclusive('\n').next().expect("a line");
        fs::write(&path, first).expect("written");
    }
    let serving = place.serve().await;
    serving.end(rustix::process::Signal::TERM).await;
    assert_eq!(ok(&place, &show).await.json()[0]["spent"], "0.75");
}

/// The log is verified also where its index is of no use.
#[tokio::test]
async fn records_are_verified_without_the_index() {
    let place = Place::new(GOVERNED);
    let call = ["call", "mcp_toolbox_hash", "--arg", "text=1"];
    let args = [&call[..], &["--agent", "researcher"]].concat();
    assert_eq!(place.run(&args).await.code, Some(0));
    let url = format!("sqlite:{}", place.file("data/tollbridge.db").display());
    let mut store = sqlx::SqliteConnection::connect(&url)
        .await
        .expect("a store");
    let drop = sqlx::raw_sql("DROP TABLE audit_blocks")
        .execute(&mut store)
        .await;
    drop.expect("dropped");
    store.close().await.expect("closed");
    uncompared(&place).await;
    fs::write(place.file("data/tollbridge.db"), "no database").expect("written");
    uncompared(&place).await;
}

async fn uncompared(place: &Place) {
    let ran = ok(place, &["audit", "verify", "--json"]).await;
    let said = "the audit is not compared with its index: ";
    assert!(ran.stderr.starts_with(said), "{ran:?}");
    assert_eq!(ran.json()["indexed"], false);
}

/// New records are shown as they come, those before first.
#[tokio::test]
async fn records_are_followed() {
    let place = Place::new(GOVERNED);
    let call = [
        "call",
        "mcp_toolbox_hash",
        "--arg",
        "text=1",
        "--agent",
        "researcher",
    ];
    ok(&place, &call).await;
    let mut follow = place.command(&["audit", "--follow", "--json"]);
    let mut child = follow.spawn().expect("it starts");
    let stdout = child.stdout.take().expect("it is piped");
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(stdout));
    let mut next = async || {
        let line = bounded(lines.next_line()).await.expect("it can be read");
        serde_json::from_str::<Value>(&line.expect("a line")).expect("JSON")
    };
    let before = next().await;
    ok(&place, &call).await;
    let after = next().await;
    assert_eq!(
        (&before["decision"], &after["decision"]),
        (&json!("allowed"), &json!("allowed"))
    );
    assert_ne!(before["id"], after["id"]);
    crate::support::send(&child, rustix::process::Signal::INT);
    let status = bounded(child.wait()).await.expect("it ends");
    assert_eq!(status.code(), Some(130));
}

/// Calls a tool with `key`, as a client without a session: the status and the body.
async fn call(serving: &Serving, key: &str) -> (u16, Value) {
    call_with(serving, key, "1").await
}

/// The same with this text.
async fn call_with(serving: &Serving, key: &str, text: &str) -> (u16, Value) {
    let address = serving.url.trim_start_matches("http://");
    let body = json!({
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": { "name": "mcp_toolbox_hash", "arguments": { "text": text } },
    });
    let body = body.to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut answer = Vec::new();
    bounded(async {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream
            .write_all(request.as_bytes())
            .await
            .expect("it is read");
        stream.read_to_end(&mut answer).await.expect("it answers");
    })
    .await;
    let text = String::from_utf8_lossy(&answer);
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let json = text
        .find('{')
        .zip(text.rfind('}'))
        .map(|(from, to)| &text[from..=to]);
    let body = json.and_then(|json| serde_json::from_str(json).ok());
    (status.expect("a status"), body.unwrap_or_default())
}
