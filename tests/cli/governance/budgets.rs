//! Budgets: what is spent, held and left of them, and what a new limit or a reset changes.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{GOVERNED, call, masked, ok};
use crate::support::Place;

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
    let legend = "HELD is the part of LEFT reserved by gateways\n";
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
    team `science`: reset the budget for `total` to 0.00
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
