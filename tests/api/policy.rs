//! What an agent may use, and why.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Answer, TestApi};

const TERMS: &str = "[agents.held]\nkeys = []\nteam = \"science\"\nrate = \"5/1m\"\n\
     policy = { mode = \"allowlist\", tools = [\"own/*\"], deny = [\"own/uuid\"] }\n\
     [[agents.held.args]]\nname = \"short\"\ntools = [\"own/echo\"]\nat = \"/text\"\nmatches = \"^.{9,}$\"\n\
     [profiles.reading]\ntools = [\"own/hash\"]\nbudget = \"2/day\"\n\
     [governance]\nauth = \"keys\"\ntool_rate = \"7/1m\"\npolicy = { mode = \"all\" }\n\
     [governance.teams]\nscience = { budget = \"9/month\" }\n";

async fn explain(api: &TestApi, asked: Value) -> Answer {
    api.send(Method::POST, "/policy/explain", &asked).await
}

/// Waits until the tools are listed.
async fn start() -> TestApi {
    let api = TestApi::start(TERMS).await;
    api.items("/tools").await;
    api
}

#[tokio::test]
async fn a_decision_names_its_rule_and_its_limits() {
    let api = start().await;
    let asked = json!({ "agent": "held", "name": "own/echo" });
    let Answer { status, body, .. } = explain(&api, asked).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(body["allowed"], true, "{body}");
    assert_eq!(body["exposed"], "mcp_own_echo");
    let rule = json!({ "key": "agents.held.policy.tools", "entry": "own/*" });
    assert_eq!(body["rule"], rule);
    let place = &body["places"]["agents.held.policy.tools"];
    assert_eq!(
        (&place["type"], &place["line"]),
        (&json!("file"), &json!(14)),
        "{body}"
    );
    let rates: Vec<_> = body["rates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["key"])
        .collect();
    assert_eq!(rates, ["agents.held.rate", "governance.tool_rate"]);
    let budgets = body["budgets"].as_array().unwrap();
    let of = |of: &str| budgets.iter().find(|it| it["of"] == of).unwrap();
    assert_eq!(of("team")["limit"], "9.00");
    assert_eq!(of("team")["key"], "governance.teams.science.budget");
    assert_eq!(of("agent")["key"], "governance.budget", "the default one");
    let rules = json!([{ "name": "short", "observed": false }]);
    assert_eq!(body["argument_rules"], rules);
    let asked = json!({ "agent": "held", "name": "mcp_own_uuid" });
    let denied = explain(&api, asked).await.body;
    assert_eq!(denied["allowed"], false);
    assert_eq!(denied["rule"]["key"], "agents.held.policy.deny");
    api.stop().await;
}

#[tokio::test]
async fn arguments_are_held_to_their_rules() {
    let api = start().await;
    for (text, allowed) in [("short", true), ("much longer", false)] {
        let asked = json!({ "agent": "held", "name": "own/echo", "arguments": { "text": text } });
        let body = explain(&api, asked).await.body;
        assert_eq!(body["allowed"], allowed, "{body}");
        assert_eq!(body["argument_rules"][0]["refuses"], !allowed);
    }
    api.stop().await;
}

#[tokio::test]
async fn routes_methods_and_what_is_missing() {
    let api = start().await;
    let asked = json!({ "agent": "reader", "name": "own/hash", "profile": "reading" });
    let through = explain(&api, asked).await.body;
    assert_eq!(
        (&through["allowed"], &through["profile"]),
        (&json!(true), &json!("reading"))
    );
    assert_eq!(
        through["budgets"][0]["key"], "profiles.reading.budget",
        "{through}"
    );
    let asked = json!({ "agent": "reader", "name": "own/echo", "profile": "reading" });
    let hidden = explain(&api, asked).await;
    assert_eq!(hidden.status, StatusCode::NOT_FOUND);
    let why = "the profile `reading` does not show the tool `own/echo`";
    assert_eq!(hidden.body["detail"], why);
    let asked = json!({ "agent": "held", "name": "own/x/y", "kind": "method" });
    assert_eq!(explain(&api, asked).await.body["allowed"], false);
    for (asked, status) in [
        (json!({ "agent": "nobody", "name": "own/echo" }), 404),
        (json!({ "agent": "held", "name": "own/nothing" }), 404),
        (
            json!({ "agent": "held", "name": "own/echo", "profile": "none" }),
            404,
        ),
        (
            json!({ "agent": "held", "name": "none/x/y", "kind": "method" }),
            404,
        ),
        (
            json!({ "agent": "held", "name": "own/tools/call", "kind": "method" }),
            400,
        ),
        (json!({ "agent": "held" }), 400),
    ] {
        let answered = explain(&api, asked.clone()).await;
        assert_eq!(answered.status.as_u16(), status, "{asked}: {answered:?}");
    }
    api.stop().await;
}

/// A token stands for its subject; one that opens nothing is refused with the reason, and is in no answer.
#[tokio::test]
async fn a_token_that_opens_nothing_explains_nothing() {
    let api = start().await;
    for (asked, expect, why) in [
        (json!({}), StatusCode::BAD_REQUEST, "either"),
        (
            json!({ "agent": "held", "token": "t0ken" }),
            StatusCode::BAD_REQUEST,
            "either",
        ),
        (
            json!({ "token": "t0ken" }),
            StatusCode::UNPROCESSABLE_ENTITY,
            "it is unknown",
        ),
    ] {
        let mut asked = asked;
        asked["name"] = json!("own/echo");
        let refused = explain(&api, asked).await;
        assert_eq!(refused.status, expect, "{refused:?}");
        let text = refused.body.to_string();
        assert!(text.contains(why) && !text.contains("t0ken"), "{text}");
    }
    api.stop().await;
}
