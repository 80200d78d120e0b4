//! Budgets through the whole gateway: exactly what there is room for, however many ask at once.

use std::sync::Arc;

use serde_json::{Value, json};
use sqlx::{ConnectOptions, Connection, sqlite::SqliteConnectOptions};
use tollbridge::{
    audit::RecordedDecision,
    clock,
    config::{Budget, Window},
    governance::budget::{AppliedBudget, Budgets},
    money::Micros,
    names::AgentId,
    store::{BudgetSubject, Store},
};

use crate::{
    harness::{ANN, BOB, Level, Server, Stage, ask_on, call_over, code_of, records},
    support::{Auto, Era, Front, Gateway, TestGateway, Transport, http::Http, soon, wire::spawn},
};

/// Callers at once.
const CALLERS: usize = 200;

const ECHO: &str = r#"{"name":"mcp_x_echo","arguments":{}}"#;
/// The same, as clients are given it.
const CALL: &str = r#""name":"mcp_x_echo","arguments":{}"#;

/// Calls once from each of `callers` at the same time; how many were answered, and the codes of the
/// others.
async fn call_at_once(http: &Http, path: &'static str, callers: usize) -> (usize, Vec<String>) {
    let calls: Vec<_> = (0..callers)
        .map(|_| {
            let http = http.clone();
            spawn(async move { ask_on(&http, path, "tools/call", ECHO).await })
        })
        .collect();
    let (mut answered, mut refused) = (0, Vec::new());
    for call in calls {
        let answer = soon("a call ends", call).await.unwrap();
        if answer.error.is_some() {
            refused.push(code_of(&answer));
        } else {
            answered += 1;
        }
    }
    (answered, refused)
}

/// The sum of all prices in the audit, and what the accounts of `subject` spent says the store.
async fn spent(gateway: Gateway, subject: BudgetSubject, window: Window) -> (u64, u64) {
    let Gateway {
        running,
        config,
        _data: data,
    } = gateway;
    let data_dir = config.data_dir;
    soon("the gateway stops", running.stop()).await;
    let prices = records(&data_dir);
    let prices = prices.iter().map(|record| record.price.get()).sum();
    let store = Store::open(&data_dir).await.unwrap();
    let budgets = Budgets::new(Arc::clone(&store.leases), "test");
    let limit = Micros::new(1);
    let applied = AppliedBudget::new(subject, Budget { limit, window });
    let standing = budgets.status(&applied, clock::now()).await.unwrap();
    assert_eq!(standing.held, Micros::ZERO);
    assert_eq!(standing.elsewhere, Micros::ZERO, "a lease is still open");
    store.close().await;
    drop(data);
    (prices, standing.spent.get())
}

/// Room for exactly `fits` calls of 0.01 each, by whatever the settings and keys say.
async fn check(settings: &str, keys: &str, fits: usize, subject: BudgetSubject, window: Window) {
    let stage = Stage::new(settings, keys).await;
    let http = stage.http();
    let (answered, refused) = call_at_once(&http, stage.path, CALLERS).await;
    assert_eq!(answered, fits, "{settings}{keys}");
    assert!(refused.iter().all(|code| code == "BUDGET_EXCEEDED"));
    assert_eq!(stage.server.seen().len(), fits);
    let paid = |records: Vec<tollbridge::audit::Record<'_>>| {
        let paid =
            |record: &&tollbridge::audit::Record<'_>| record.decision == RecordedDecision::Allowed;
        records.iter().filter(paid).count()
    };
    let records = stage.records();
    assert_eq!(records.len(), CALLERS);
    assert_eq!(paid(records), fits);
    let exact = u64::try_from(fits).unwrap() * 10_000;
    let spent = spent(stage.gateway, subject, window).await;
    assert_eq!(spent, (exact, exact), "{settings}{keys}");
}

fn anonymous() -> BudgetSubject {
    BudgetSubject::agent(AgentId::ANONYMOUS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_as_many_as_there_is_room_for() {
    for (name, window) in [
        ("total", Window::Total),
        ("day", Window::Day),
        ("month", Window::Month),
    ] {
        let day = today();
        let settings = format!(
            "[governance]\nprice = \"0.01\"\nbudget = {{ limit = \"0.379999\", window = \"{name}\" }}\n"
        );
        check(&settings, "", 37, anonymous(), window).await;
        assert_eq!(day, today(), "it was midnight; run the test again");
    }
}

fn today() -> String {
    clock::now().to_string()[..10].to_owned()
}

/// The narrowest of all budgets counts, wherever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
pub(crate) async fn every_budget_holds() {
    let ann = || BudgetSubject::agent(AgentId::from_name("ann"));
    for (agent, team, server, fits) in [
        ("0.11", "0.50", "0.70", 11),
        ("0.70", "0.13", "0.50", 13),
        ("0.50", "0.70", "0.17", 17),
    ] {
        for (of_agent, of_team) in [
            ("team = \"t\"", "[governance.teams.t]"),
            ("", "[workspaces.t]\nmembers = [\"ann\"]"),
        ] {
            let settings = format!(
                "[agents.ann]\n{of_agent}\n\
                 budget = [{{ limit = \"{agent}\" }}, {{ limit = \"9.00\", window = \"month\" }}]\n\
                 [governance]\nprice = \"0.01\"\n{of_team}\nbudget = {{ limit = \"{team}\" }}\n"
            );
            let keys = format!("budget = {{ limit = \"{server}\" }}");
            check(&settings, &keys, fits, ann(), Window::Total).await;
        }
    }
}

/// Agents of one team at once: each within its own budget, all of them within that of the team.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_of_a_team_share_its_budget() {
    for (name, window) in [
        ("total", Window::Total),
        ("day", Window::Day),
        ("month", Window::Month),
    ] {
        let day = today();
        let settings = format!(
            "[agents.ann]\nteam = \"t\"\nbudget = {{ limit = \"0.11\", window = \"{name}\" }}\n\
             [agents.bob]\nteam = \"t\"\nbudget = {{ limit = \"0.90\", window = \"{name}\" }}\n\
             [governance]\nprice = \"0.01\"\n\
             [governance.teams.t]\nbudget = {{ limit = \"0.37\", window = \"{name}\" }}\n"
        );
        let stage = Stage::new(&settings, "").await;
        let [ann, bob] = [ANN, BOB].map(|who| stage.gateway.http().with_key(who.key));
        let (of_ann, of_bob) = tokio::join!(
            call_at_once(&ann, "/mcp", CALLERS / 2),
            call_at_once(&bob, "/mcp", CALLERS / 2)
        );
        assert!(of_ann.0 <= 11, "{} calls of 11", of_ann.0);
        assert_eq!(of_ann.0 + of_bob.0, 37, "{name}");
        let mut refused = of_ann.1.iter().chain(&of_bob.1);
        assert!(refused.all(|code| code == "BUDGET_EXCEEDED"));
        assert_eq!(stage.server.seen().len(), 37);
        let spent = spent(stage.gateway, BudgetSubject::team("t"), window).await;
        assert_eq!(spent, (370_000, 370_000), "{name}");
        assert_eq!(day, today(), "it was midnight; run the test again");
    }
}

/// Two gateways over one data directory: never more than the limit together, and in the end all of
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_that_share_a_directory_share_the_budget() {
    let server = Server::start().await;
    let plan = TestGateway::new()
        .setting("[governance]\nprice = \"0.01\"\nbudget = { limit = \"0.90\" }")
        .server("x", &server.backend);
    let (one, two) = (plan.start().await, plan.start().await);
    let (first, second) = (one.http(), two.http());
    let (of_one, of_two) = tokio::join!(
        call_at_once(&first, "/mcp", CALLERS / 2),
        call_at_once(&second, "/mcp", CALLERS / 2)
    );
    let answered = of_one.0 + of_two.0;
    assert!(answered <= 90, "{answered} calls of 90");
    assert_eq!(server.seen().len(), answered);
    one.stop().await;
    two.stop().await;
    let three = plan.start().await;
    let (rest, refused) = call_at_once(&three.http(), "/mcp", CALLERS).await;
    assert_eq!(answered + rest, 90, "{answered} and {rest}");
    assert_eq!(refused.len(), CALLERS - rest);
    assert_eq!(server.seen().len(), 90);
    let (prices, spent) = spent(three, anonymous(), Window::Total).await;
    assert_eq!((prices, spent), (900_000, 900_000));
}

/// A budget has room for one call of 0.01; what does the other call cost?
async fn cost_of(server: Server, more: &str, keys: &str, arguments: &str) -> u64 {
    let settings =
        format!("[governance]\nprice = \"0.01\"\nbudget = {{ limit = \"0.01\" }}\n{more}\n");
    let stage = Stage::with(server, &settings, keys).await;
    let _any = stage.call(arguments).await;
    let record = stage.last();
    // What the record says is what the next call finds.
    stage
        .server
        .does("tools/call", Auto::Result("{}".to_owned()));
    let next = stage.call("{}").await;
    match record.price.get() {
        0 => assert_eq!(next.error, None, "{next:?}"),
        10_000 => assert_eq!(code_of(&next), "BUDGET_EXCEEDED"),
        other => panic!("{other}"),
    }
    let price = record.price.get();
    stage.stop().await;
    price
}

#[tokio::test]
pub(crate) async fn a_call_costs_once_it_may_have_reached_its_server() {
    let result = |text: &str| Auto::Result(text.to_owned());
    let failed = || result(r#"{"content":[],"isError":true}"#);
    let error = || Auto::Error(r#"{"code":-32000,"message":"no"}"#.to_owned());
    let free = "charge_errors = false";
    let small = "limits = { request = \"1KiB\" }";
    let large = format!(r#"{{"a":"{}"}}"#, "a".repeat(4096));
    for (what, auto, more, keys, arguments, cost) in [
        ("a result", result("{}"), "", "", "{}", 10_000),
        ("isError", failed(), "", "", "{}", 10_000),
        ("isError, free", failed(), free, "", "{}", 0),
        ("an error", error(), "", "", "{}", 10_000),
        (
            "an error, only results free",
            error(),
            free,
            "",
            "{}",
            10_000,
        ),
        (
            "a result that errors may be free",
            result("{}"),
            free,
            "",
            "{}",
            10_000,
        ),
        (
            "no answer",
            Auto::Nothing,
            "",
            "timeout = \"200ms\"",
            "{}",
            10_000,
        ),
        (
            "no answer, only results free",
            Auto::Nothing,
            free,
            "timeout = \"200ms\"",
            "{}",
            10_000,
        ),
        ("a broken connection", Auto::Die, "", "", "{}", 10_000),
        (
            "a call that is lost, only results free",
            Auto::Die,
            free,
            "",
            "{}",
            10_000,
        ),
        (
            "too large to be sent",
            result("{}"),
            "",
            small,
            large.as_str(),
            0,
        ),
    ] {
        let server = Server::start().await;
        server.does("tools/call", auto);
        assert_eq!(cost_of(server, more, keys, arguments).await, cost, "{what}");
    }
}

/// A call of 2026-07-28 in several rounds is a call in each: its server works for each of them.
#[tokio::test]
async fn each_round_of_a_call_costs_its_price() {
    let server = Server::over(Transport::Http, Era::Modern).await;
    let settings = "[governance]\nprice = \"0.01\"\nbudget = { limit = \"0.02\" }\n";
    let stage = Stage::with(server, settings, "").await;
    let client = stage.client(Front::Modern).await;
    let asks = r#"{"resultType":"input_required","requestState":"s","inputRequests":{}}"#;
    stage.server.answers("tools/call", asks);
    client
        .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
        .await;
    let state = client.answer("1").await.value()["requestState"].to_string();
    stage
        .server
        .answers("tools/call", r#"{"resultType":"complete","content":[]}"#);
    let more = format!(r#""name":"mcp_x_echo","inputResponses":{{}},"requestState":{state}"#);
    client.ask("2", "tools/call", &more).await;
    client.answer("2").await.value();
    let prices: Vec<_> = stage.records().iter().map(|it| it.price.get()).collect();
    assert_eq!(prices, [10_000, 10_000]);
    client.ask("3", "tools/call", &more).await;
    assert_eq!(code_of(&client.answer("3").await), "BUDGET_EXCEEDED");
    stage.stop().await;
}

/// What is refused leaves the money for others.
#[tokio::test]
async fn a_refused_call_costs_nothing() {
    for refused in [
        "args = [{ name = \"n\", at = \"/n\", equals = 1 }]",
        "scan = { arguments = { email = \"block\" } }",
    ] {
        let server = Server::start().await;
        let arguments = r#"{"n":1,"to":"ann.lee@example.org"}"#;
        assert_eq!(cost_of(server, refused, "", arguments).await, 0);
    }
}

/// What the one call of `stage` costs, once it is recorded.
async fn cost_of_only_call(stage: &Stage, what: &str) -> u64 {
    let recorded = async {
        while stage.records().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    soon(what, recorded).await;
    let record = stage.last();
    assert_eq!(record.code.as_deref(), Some("CANCELLED"), "{what}");
    record.price.get()
}

/// A client that gives up pays once its call may have reached the server, which is no error of a tool.
#[tokio::test]
async fn a_cancelled_call_costs_what_was_delivered() {
    let price = 10_000;
    for terms in ["", "charge_errors = false"] {
        for front in Front::ALL {
            let settings = format!(
                "[governance]\nprice = \"0.01\"\nbudget = {{ limit = \"1.00\" }}\n{terms}\n"
            );
            let stage = Stage::new(&settings, "").await;
            stage.server.does("tools/call", Auto::Hand);
            let client = stage.client(front).await;
            let sent = client.ask("1", "tools/call", CALL).await;
            let asked = stage.server.backend.asked("tools/call").await;
            match front {
                Front::Modern => sent.disconnect(),
                Front::Sse | Front::Stdio | Front::StdioModern | Front::Streamable => {
                    client.cancel("1").await;
                }
            }
            let what = format!("{front:?} {terms}");
            assert_eq!(cost_of_only_call(&stage, &what).await, price, "{what}");
            drop(asked);
            let (_, spent) = spent(stage.gateway, anonymous(), Window::Total).await;
            assert_eq!(spent, price, "{what}");
        }
    }
}

/// What never left costs nothing: the call waits for a connection of its own that never comes up.
#[tokio::test]
async fn a_call_cancelled_before_it_left_costs_nothing() {
    for front in [Front::Sse, Front::Stdio, Front::Streamable] {
        let settings = "[governance]\nprice = \"0.01\"\nbudget = { limit = \"1.00\" }\n";
        let stage = Stage::new(settings, "isolation = \"session\"").await;
        let client = stage.client(front).await;
        assert_eq!(client.list("tools").await.len(), 2);
        stage.server.does("initialize", Auto::Nothing);
        client.ask("1", "tools/call", CALL).await;
        let gives_up = async {
            // Until the call is known there is nothing to cancel.
            while stage.records().is_empty() {
                client.cancel("1").await;
            }
        };
        soon("the call is recorded", gives_up).await;
        let what = format!("{front:?}");
        assert_eq!(cost_of_only_call(&stage, &what).await, 0, "{what}");
        assert!(stage.server.seen().is_empty(), "{what}");
        let (_, spent) = spent(stage.gateway, anonymous(), Window::Total).await;
        assert_eq!(spent, 0, "{what}");
    }
}

/// Runs a statement on the database of a gateway, as whoever damages it would.
async fn meddle(stage: &Stage, statement: &'static str) {
    let path = stage
        .gateway
        .config
        .data_dir
        .join(tollbridge::store::FILE_NAME);
    let options = SqliteConnectOptions::new().filename(path);
    let mut connection = options.connect().await.unwrap();
    sqlx::query(statement)
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

/// Where budgets cannot be read nothing is called, clients of every kind are told, and all is well
/// once they can be.
#[tokio::test]
async fn a_budget_that_cannot_be_read_lets_nothing_through() {
    let settings = "[governance]\nprice = \"0.01\"\nbudget = { limit = \"1.00\" }\n";
    let stage = Stage::new(settings, "").await;
    meddle(&stage, "ALTER TABLE leases RENAME TO mislaid").await;
    for front in Front::ALL {
        let client = stage.client(front).await;
        let refused = call_over(&client, "1", "mcp_x_echo", "{}").await;
        assert_eq!(code_of(&refused), "BUDGET_UNAVAILABLE", "{front:?}");
        let failed = refused.failure();
        assert_eq!(failed["code"], -32603);
        assert_eq!(failed["message"], "The budget cannot be checked");
        assert_eq!(failed["data"]["retryable"], true);
        assert_eq!(failed["data"]["retryAfterMs"], 1000);
        assert!(!failed.to_string().contains("leases"), "{failed}");
        let record = stage.last();
        assert_eq!(record.decision, RecordedDecision::Refused);
        assert_eq!(record.code.as_deref(), Some("BUDGET_UNAVAILABLE"));
        assert_eq!(record.price, Micros::ZERO);
    }
    assert!(stage.server.seen().is_empty());
    assert_eq!(
        stage.counts()["refused"],
        json!({ "BUDGET_UNAVAILABLE": 5 })
    );
    meddle(&stage, "ALTER TABLE mislaid RENAME TO leases").await;
    stage.must("{}").await;
    let (_, spent) = spent(stage.gateway, anonymous(), Window::Total).await;
    assert_eq!(spent, 10_000);
}

/// Other methods than `tools/call` cost nothing.
#[tokio::test]
async fn only_tools_have_prices() {
    let stage = Stage::new("[governance]\nbudget = { limit = \"0.00\" }\n", "").await;
    for (method, params) in [
        ("prompts/get", r#"{"name":"mcp_x_greet"}"#),
        ("resources/read", r#"{"uri":"x+file:///a.txt"}"#),
    ] {
        stage.ask(method, params).await.value();
        assert_eq!(stage.last().price, Micros::ZERO);
    }
    assert_eq!(stage.must_not("{}").await, "BUDGET_EXCEEDED");
    stage.stop().await;
}

/// An observed budget is exceeded, and what is beyond it is in the audit, on no account.
#[tokio::test]
async fn an_observed_budget_says_who_would_have_been_refused() {
    let stage = Stage::new(
        "[governance]\nprice = \"0.01\"\nbudget = { limit = \"0.01\" }\nobserve = [\"budget\"]\n",
        "",
    )
    .await;
    stage.must("{}").await;
    assert_eq!(stage.last().accounts.len(), 1);
    stage.must("{}").await;
    let beyond = stage.last();
    assert_eq!(beyond.decision, RecordedDecision::Observed);
    assert!(beyond.accounts.is_empty());
    assert_eq!(stage.counts()["observed"], json!({ "budget": 1 }));
    let (_, spent) = spent(stage.gateway, anonymous(), Window::Total).await;
    assert_eq!(spent, 10_000);
}

/// The budget of each level: it is that of the most specific terms, for each agent.
#[tokio::test]
pub(crate) async fn a_budget_of_any_level_holds() {
    for level in Level::ALL {
        let stage = Stage::at(level, "budget = { limit = \"0.03\" }").await;
        stage.must("{}").await;
        stage.must("{}").await;
        assert_eq!(stage.must_not("{}").await, "BUDGET_EXCEEDED", "{level:?}");
        stage.stop().await;
    }
    // What is switched off at one level is not asked for; without it the default is $10.00.
    for level in Level::ALL {
        let stage = Stage::at(level, "budget = \"off\"").await;
        stage.must("{}").await;
        let accounts = stage.last().accounts.len();
        assert_eq!(accounts, usize::from(level == Level::Server), "{level:?}");
        stage.stop().await;
    }
}

/// A refusal says which window is used up, whosever budget it is.
#[tokio::test]
pub(crate) async fn a_window_of_any_level_is_named() {
    let budget = |window: &str| format!("budget = {{ limit = \"0.00\", window = \"{window}\" }}");
    let of_team = |window: &str| {
        format!(
            "[agents.ann]\nteam = \"t\"\n[governance]\nprice = \"0.01\"\n[governance.teams.t]\n{}\n",
            budget(window)
        )
    };
    let day = today();
    for (window, start) in [("day", &day[..]), ("month", &day[..7]), ("total", "total")] {
        let mut stages = vec![Stage::new(&of_team(window), "").await];
        for level in Level::ALL {
            stages.push(Stage::at(level, &budget(window)).await);
        }
        for stage in stages {
            let refused = stage.call("{}").await.failure();
            let account = refused["data"]["budget"].as_str().unwrap();
            assert!(account.ends_with(&format!("/{start}#0")), "{account}");
            assert_eq!(refused["data"]["resets_at"].is_string(), window != "total");
            check_wait(&refused["data"]);
            stage.stop().await;
        }
    }
    assert_eq!(day, today(), "it was midnight; run the test again");
}

/// Checks that a refusal says how long its window lasts, if it ends.
fn check_wait(data: &Value) {
    let wait = data["retryAfterMs"].as_u64();
    assert_eq!(data["retryable"], wait.is_some(), "{data}");
    let ends = data["resets_at"].as_str();
    let ends = ends.map(|ends| ends.parse::<jiff::Timestamp>().unwrap().as_millisecond());
    let now = clock::now().as_millisecond();
    assert_eq!(ends.is_some(), wait.is_some(), "{data}");
    if let Some((ends, wait)) = ends.zip(wait) {
        let end = now + i64::try_from(wait).unwrap();
        assert!((ends..ends + 10_000).contains(&end), "{data}");
    }
}

/// Each agent has what a budget of the default or of a profile says, for itself.
#[tokio::test]
async fn agents_do_not_share_the_default_budget() {
    let settings = "[agents.ann]\n[agents.bob]\n[governance]\nprice = \"0.01\"\nbudget = { limit = \"0.01\" }\n";
    let stage = Stage::new(settings, "").await;
    for who in [ANN, BOB] {
        let http = stage.gateway.http().with_key(who.key);
        let (answered, refused) = call_at_once(&http, "/mcp", 5).await;
        assert_eq!((answered, refused.len()), (1, 4), "{who:?}");
    }
    stage.stop().await;
}
