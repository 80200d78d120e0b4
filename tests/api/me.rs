//! What an agent may know of itself.

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::harness::{AGENT_KEY, Answer, TestApi, answer};

const LEAD_KEY: &str = "tb_Hd5tM9pXc2vQ7rKz4WnB8sLy3GfJ6aEu";

const TERMS: &str = "price = \"0.5\"\n\
     [agents.lead]\nteam = \"science\"\npolicy = { mode = \"all\" }\nbudget = \"3/day\"\n\
     rate = \"3/1h\"\ntool_rate = \"2/1h\"\n\
     keys = [\"tb_Hd5tM9pXc2vQ7rKz4WnB8sLy3GfJ6aEu\"]\n\
     [governance]\nauth = \"keys\"\npolicy = { mode = \"allowlist\", tools = [\"own/echo\"] }\n\
     [governance.teams]\nscience = { budget = \"5/month\" }\n";

async fn read(api: &TestApi, key: &str, path: &str) -> Answer {
    answer(api.request(Method::GET, path).bearer_auth(key)).await
}

#[tokio::test]
async fn an_agent_sees_what_it_has_used_and_what_is_left() {
    let api = TestApi::start(TERMS).await;
    let tools = api.items("/tools").await;
    let echo = tools
        .iter()
        .find(|tool| tool["server_tool"] == "echo")
        .unwrap();
    let path = format!("/tools/{}/test", echo["name"].as_str().unwrap());
    let call = json!({ "agent": "lead", "arguments": { "text": "a" } });
    let called = api.send(Method::POST, &path, &call).await;
    assert!(called.body["result"].is_object(), "{called:?}");
    let me = read(&api, LEAD_KEY, "/me").await;
    assert_eq!(me.status, StatusCode::OK, "{me:?}");
    let body = &me.body;
    assert_eq!(
        (&body["name"], &body["team"], &body["role"]),
        (&json!("lead"), &json!("science"), &json!("agent"))
    );
    assert_eq!(body["calls"]["answered"], 1);
    assert_eq!(body["calls"]["spent_micros"], 500_000);
    let left = body["budgets"].as_array().unwrap().iter();
    let left: Vec<_> = left.map(|it| (&it["id"], &it["left"])).collect();
    assert_eq!(
        left,
        [
            (&json!("agent:lead:day"), &json!("2.50")),
            (&json!("team:science:month"), &json!("4.50")),
        ]
    );
    let left = body["rates"].as_array().unwrap().iter();
    let left: Vec<_> = left
        .map(|it| (&it["of"], &it["tool"], &it["left"]))
        .collect();
    assert_eq!(
        left,
        [
            (&json!("agent"), &json!(null), &json!(2)),
            (&json!("tool"), &json!("echo"), &json!(1)),
        ]
    );
    // Another one sees its own alone: nothing was used, the default budget holds, and one tool is allowed.
    let other = read(&api, AGENT_KEY, "/me").await.body;
    assert_eq!(other["name"], "reader");
    assert_eq!(other["calls"]["answered"], 0);
    assert_eq!(other["budgets"][0]["id"], "agent:reader:total");
    assert_eq!(other["budgets"].as_array().unwrap().len(), 1);
    let seen = read(&api, AGENT_KEY, "/me/tools").await.body;
    let names: Vec<_> = seen["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["server_tool"])
        .collect();
    assert_eq!(names, ["echo"]);
    let all = read(&api, LEAD_KEY, "/me/tools").await.body;
    assert_eq!(all["items"].as_array().unwrap().len(), tools.len());
    let none = read(&api, LEAD_KEY, "/me/tools?q=nothing-is-called-so")
        .await
        .body;
    assert_eq!(none["items"], json!([]));
    api.stop().await;
}
