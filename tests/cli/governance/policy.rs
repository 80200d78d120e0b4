//! Policies: why an agent may use an item or not, and what it sees.

use std::fs;

use serde_json::json;

use super::{GOVERNED, RESEARCHER, ok};
use crate::support::{LIBRARY, Place, Ran, SCRIPT};

#[tokio::test]
async fn policies_are_explained() {
    let prompts_of_script = GOVERNED.replace("prompts = [\"other/*\"]", "prompts = [\"script/*\"]");
    let place = Place::new(&format!("{prompts_of_script}{SCRIPT}{LIBRARY}"));
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
    rules_about_arguments_are_named(&place).await;
    check("bot hash --profile reading", 2, "unknown tool `hash`").await;
    check("bot toolbox/hash --profile reading", 0, "bot may call").await;
    check(
        "bot other/hash --profile reading",
        1,
        "the profile `reading` does not show",
    )
    .await;
    check(
        "researcher library/greet --prompt",
        1,
        "may not use the prompt",
    )
    .await;
    check(
        "researcher mcp_script_greet --prompt",
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

/// What cannot be listed is not unknown: the answer says which server is down, and what holds of the tool if
/// there is one. What a rule of its server hides is told as that.
#[tokio::test]
async fn what_is_not_listed_is_not_unknown() {
    let place = Place::new(&format!(
        "{GOVERNED}\n[servers.missing]\ncommand = \"/no/such\"\n\
         [servers.files]\ntransport = \"builtin\"\n\
         tools = {{ deny = [\"*\"] }}\n"
    ));
    let explain = async |name: &str| place.run(&["policy", "explain", "researcher", name]).await;
    for name in ["missing/a/b", "mcp_missing_read"] {
        let ran = explain(name).await;
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let why = "server `missing` is not connected: cannot start `/no/such`";
        assert!(ran.stderr.contains(why), "{ran:?}");
        assert!(!ran.stderr.contains("unknown"), "{ran:?}");
        let what = "`missing` may not have this tool. If it has: researcher may not call";
        assert!(ran.stdout.starts_with(what), "{ran:?}");
    }
    let args = ["policy", "explain", "researcher", "missing/a", "--json"];
    assert_eq!(place.run(&args).await.json()["allowed"], json!(null));
    let hidden = explain("files/hash").await;
    assert_eq!(hidden.code, Some(1), "{hidden:?}");
    let why = "the tool `files/hash` is hidden by `allow` or `deny` of `[servers.files.tools]`";
    assert!(hidden.stderr.contains(why), "{hidden:?}");
    assert_eq!(explain("files/nothing").await.code, Some(2));
}

/// Beside its profiles an agent may use nothing, whatever its policy says; what is said of it agrees.
#[tokio::test]
async fn the_profiles_of_an_agent_are_all_it_may_use() {
    let place = Place::new(&format!("{GOVERNED}{LIBRARY}\n[profiles.writing]\n"));
    let with =
        |name: &'static str, more: &'static [&str]| [&["agents", "add", name], more].concat();
    ok(
        &place,
        &with("open", &["--policy", "all", "--profiles", "reading"]),
    )
    .await;
    ok(&place, &with("bare", &["--profiles", "reading", "writing"])).await;
    for (more, count) in [(&[][..], 0), (&["--profile", "reading"], 1)] {
        let args = [&["list", "--agent", "open", "--json"], more].concat();
        let ran = ok(&place, &args).await;
        assert_eq!(ran.json().as_array().map(Vec::len), Some(count), "{args:?}");
        let why = "open may only use the profile `reading`; see --profile\n";
        let expect = if count == 0 { why } else { "" };
        assert_eq!(ran.stderr, expect, "{args:?}");
    }
    let called = place
        .run(&["call", "mcp_toolbox_uuid", "--agent", "open"])
        .await;
    let why = "open may only use the profile `reading`; see --profile\n\
               Tool not authorized (-32003)\n";
    assert_eq!((called.code, called.stderr.as_str()), (Some(1), why));
    let resources = ok(&place, &["list", "resources", "--json"]).await.json();
    let uri = resources[0]["uri"].as_str().expect("a resource");
    let one = "open may only use the profile `reading`; see --profile.";
    let two = "bare may only use the profiles `reading`, `writing`; see --profile.";
    for item in [
        ["toolbox/hash"].as_slice(),
        &["library/greet", "--prompt"],
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
    let key = ok(&place, &["keys", "create", "open"]).await.stdout;
    let serving = place.serve().await;
    fs::write(place.file("key"), key).expect("written");
    let url = serving.mcp();
    let args = ["list", "--url", &url, "--key-file", "key"];
    let said = "server `127.0.0.1` lists nothing; its instructions: Nothing is listed here: this agent may only use \
                the profile `reading`. Connect to /mcp/profiles/reading.\n";
    assert_eq!(ok(&place, &args).await.stderr, said);
    let args = [&args[..], &["--profile", "reading"]].concat();
    assert_eq!(ok(&place, &args).await.stderr, "");
}

/// What is said of them helps: neither the flag that was given nor a profile that is gone does.
#[tokio::test]
async fn the_profiles_of_an_agent_are_told_where_they_help() {
    let place = Place::new(&format!("{GOVERNED}\n[profiles.writing]\n"));
    let add = "agents add open --policy all --profiles reading";
    ok(&place, &add.split(' ').collect::<Vec<_>>()).await;
    let check = async |args: &str, code: i32, expect: &str| {
        let ran = place.run(&args.split(' ').collect::<Vec<_>>()).await;
        assert_eq!(ran.code, Some(code), "{args}: {ran:?}");
        let said = [ran.stdout, ran.stderr].concat();
        assert!(said.ends_with(expect), "{args}: {said:?}");
    };
    let list = "list --agent open";
    let explain = "policy explain open toolbox/hash";
    let only = "open may only use the profile `reading`";
    check(list, 0, &format!("{only}; see --profile\n")).await;
    check(
        &format!("{list} --profile writing"),
        0,
        &format!("{only}\n"),
    )
    .await;
    check(explain, 1, &format!("{only}; see --profile.\n")).await;
    check(
        &format!("{explain} --profile writing"),
        1,
        &format!("{only}.\n"),
    )
    .await;
    let without = GOVERNED.replace("profiles.reading", "profiles.other");
    fs::write(place.file("tollbridge.toml"), without).expect("written");
    let none = "open may only use profiles that do not exist";
    check(list, 0, &format!("{none}\n")).await;
    check(explain, 1, &format!("{none}.\n")).await;
}

/// A method that no item has is decided by what is written; no server is asked whether it has it.
#[tokio::test]
async fn methods_are_explained() {
    let place = Place::new(&format!(
        "{SCRIPT}{}",
        r#"
        [governance]
        auth = "keys"
        [agents.some]
        policy = { mode = "allowlist", methods = ["script/vendor/*"] }
        [agents.most]
        policy = { mode = "all", deny = ["vendor/x"] }
        [agents.reader]
        policy = { mode = "all" }
        profiles = ["reading"]
        [profiles.reading]
        "#
    ));
    let check = async |line: &str, code: i32, expect: &str| {
        let args: Vec<&str> = ["policy", "explain", "--method"]
            .into_iter()
            .chain(line.split(' '))
            .collect();
        let ran = place.run(&args).await;
        assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
        let said = ran.stdout.clone() + &ran.stderr;
        assert!(said.contains(expect), "{line}: {ran:?}");
    };
    let may = "some may use the method `script/vendor/do`: the agent's own policy is an allowlist";
    check("some script/vendor/do", 0, may).await;
    check("some script/tasks/get", 1, "no entry of `methods` matches").await;
    check("most script/tasks/get", 0, "most may use the method").await;
    check("most script/vendor/x", 1, "has `vendor/x` in `deny`").await;
    let only = "reader may only use the profile `reading`.\n";
    check("reader script/vendor/do", 1, only).await;
    check("most script/tools/list", 2, "protocol method `tools/list`").await;
    check("most vendor", 2, "`vendor` is not `server/method`").await;
    check("most scrypt/do", 2, "did you mean `script`?").await;
    check("most script/do --prompt", 2, "cannot be used with").await;
    check("most script/do --profile reading", 2, "cannot be used with").await;
    let args = [
        "policy",
        "explain",
        "some",
        "script/vendor/do",
        "--method",
        "--json",
    ];
    let object = place.run(&args).await.json();
    assert_eq!(
        (&object["kind"], &object["server"]),
        (&json!("method"), &json!("script"))
    );
    assert_eq!(object["original"], "vendor/do");
    assert!(!place.file("pids").exists(), "no server was started");
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
    let place = Place::new(&format!("{GOVERNED}{LIBRARY}"));
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

/// What a call may still be refused for.
async fn rules_about_arguments_are_named(place: &Place) {
    let explain = async |tool: &str| {
        let ran = place
            .run(&["policy", "explain", "bot", tool, "--json"])
            .await;
        (ran.json(), ran.code)
    };
    let (plain, _) = explain("other/hash").await;
    assert_eq!(plain["argument_rules"], json!([]));
    let rules = [
        "{ name = \"short\", tools = [\"other/*\"], at = \"/text\", matches = \"^.{20}\" }",
        "{ name = \"plain\", tools = [\"other/h*\"], at = \"/text\", matches = \"!\", observe = true }",
        "{ name = \"one\", tools = [\"*/uuid\", \"toolbox/hash\"], at = \"/n\", max = 1, action = \"allow\" }",
    ];
    let set = [&["agents", "set", "bot", "--args"][..], &rules].concat();
    ok(place, &set).await;
    let (told, code) = explain("other/hash").await;
    let expect = json!([
        { "name": "short", "observed": false },
        { "name": "plain", "observed": true },
    ]);
    assert_eq!(
        (&told["argument_rules"], code),
        (&expect, Some(0)),
        "{told}"
    );
    let because = told["because"].as_str().expect("a text");
    let expect = " Argument rules: `short`, `plain` (only observed).";
    assert!(because.ends_with(expect), "{because}");
    let (told, _) = explain("toolbox/hash").await;
    let because = told["because"].as_str().expect("a text");
    let expect = ". Argument rule: `one`.";
    assert!(because.ends_with(expect), "{because}");
    // What is not called is held to nothing.
    let (told, code) = explain("other/uuid").await;
    assert_eq!(
        (&told["argument_rules"], code),
        (&json!([]), Some(1)),
        "{told}"
    );
    ok(place, &["agents", "set", "bot", "--args"]).await;
}
