//! Wrong input of each command, and data that cannot be used: what is said about them.

use std::fs;

use super::{GOVERNED, ok};
use crate::support::Place;

/// What is said of an agent that may not be changed here.
const WRITTEN: &str = "agent `researcher` is configured in tollbridge.toml; change it there";
/// Command lines, and a part of what is said of them.
const WRONG: &[(&str, &str)] = &[
    ("agents set researcher --admin", WRITTEN),
    ("agents disable researcher", WRITTEN),
    ("agents enable researcher", WRITTEN),
    ("agents remove researcher", WRITTEN),
    ("budget set researcher 1", WRITTEN),
    (
        "agents set anonymous --admin",
        "is configured in `[governance]`",
    ),
    (
        "agents add researcher",
        "agent `researcher` is already configured in",
    ),
    ("agents add bot", "an agent named `bot` already exists"),
    ("agents add anonymous", "callers without a key"),
    (
        "agents show bto",
        "unknown agent `bto`; did you mean `bot`?",
    ),
    (
        "agents show zzz",
        "unknown agent `zzz`; these are: bot, researcher",
    ),
    ("agents set bot", "nothing to change"),
    ("agents set bot --team x --no-team", "cannot be used with"),
    (
        "agents set bot --profiles writing",
        "unknown profile `writing`",
    ),
    ("agents set bot --deny x", "--deny requires --policy"),
    ("agents set bot --policy all --tools x", "have no effect"),
    (
        "agents set bot --policy default --tools x",
        "cannot be combined with lists",
    ),
    (
        "agents set bot --policy some",
        "possible values: all, allowlist",
    ),
    ("agents set bot --tools a{b", "unclosed alternate"),
    ("agents set bot --budget 1/week", "unknown window `week`"),
    (
        "agents set bot --budget off 1",
        "cannot be combined with limits",
    ),
    ("agents set bot --rate 1", "CALLS/PERIOD"),
    ("keys create nobody", "unknown agent `nobody`"),
    ("keys create anonymous", "the anonymous agent has no keys"),
    ("keys create bot --expires 0s", "must be greater than 0"),
    ("keys create bot --expires soon", "invalid value"),
    ("keys list nobody", "unknown agent `nobody`"),
    ("keys revoke key_x", "none exist"),
    ("keys revoke tbk_abcd", "use the key id"),
    ("budget show nobody", "unknown agent `nobody`"),
    ("budget show --team sciense", "did you mean `science`?"),
    ("budget show --server tolbox", "did you mean `toolbox`?"),
    ("budget show bot --team science", "cannot be used with"),
    ("budget set bot", "<LIMIT>"),
    ("budget set bot x", "an amount is a decimal"),
    ("budget reset researcher", "--reason"),
    (
        "budget reset --reason x",
        "specify an agent, --team or --server",
    ),
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
    ("policy explain nobody hash", "unknown agent `nobody`"),
    ("policy explain bto hash", "did you mean `bot`?"),
    ("policy explain bot hsh", "did you mean `mcp_other_hash`"),
    ("policy explain bot hash --profile x", "unknown profile `x`"),
    (
        "policy explain bot x --prompt --resource",
        "cannot be used with",
    ),
    (
        "list --agent bto",
        "unknown agent `bto`; did you mean `bot`?",
    ),
    ("call mcp_other_hash", "choose an agent with --agent"),
    ("audit --agent nobody", "unknown agent `nobody`"),
    ("audit export --agent nobody", "unknown agent `nobody`"),
    ("audit --decision maybe", "a decision is `allowed`"),
    ("audit --since yesterday", "a duration before now"),
    ("audit --id 7", "an id consists of `inv_` and a UUID"),
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
    assert!(
        blank.stderr.contains("--reason must not be empty"),
        "{blank:?}"
    );
}

#[tokio::test]
async fn a_data_directory_that_cannot_be_used_is_named() {
    let place = Place::new(GOVERNED);
    fs::write(place.file("data"), "a file").expect("written");
    for line in [
        "agents list",
        "keys list",
        "budget show",
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
            ran.stderr.contains("data is a file; move it"),
            "{line}: {ran:?}"
        );
    }
    for args in [&["audit"][..], &["audit", "verify"]] {
        let ran = place.run(args).await;
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(
            ran.stderr.contains("cannot use the audit directory"),
            "{ran:?}"
        );
    }
}
