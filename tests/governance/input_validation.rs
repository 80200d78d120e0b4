//! Arguments against the input schemas of tools.

use serde_json::{Value, json};
use tollbridge::{
    audit::RecordedDecision,
    config::{Config, Validate},
    names::ServerName,
};

use crate::{
    harness::{Server, Stage, call_over, code_of},
    support::{Era, Front, Transport},
};

/// What the tool `echo` takes.
const SCHEMA: &str = r##"{"type":"object","additionalProperties":false,"required":["owner"],"properties":{"owner":{"type":"string","maxLength":8},"page":{"$ref":"#/$defs/page"}},"$defs":{"page":{"type":"integer","minimum":1}}}"##;

/// A server whose `echo` has this schema, checked as `mode` says.
async fn stage(server: Server, schema: &str, mode: &str) -> Stage {
    let tools = format!(
        r#"[{{"name":"echo","inputSchema":{schema}}},{{"name":"other","inputSchema":{{"type":"object"}}}}]"#
    );
    server.backend.set_list("tools/list", tools);
    let terms = "[governance]\nprice = \"0.01\"\n";
    Stage::with(server, terms, &format!("validate = \"{mode}\"")).await
}

async fn validation(stage: &Stage) -> Value {
    stage.gateway.status("x").await["validation"].clone()
}

/// What does not match is refused with its place and reason, never reaches the server and costs
/// nothing; what matches arrives as it was written.
#[tokio::test]
async fn a_call_that_does_not_match_is_refused() {
    for era in [Era::Legacy, Era::Modern] {
        let server = Server::over(Transport::Http, era).await;
        let stage = stage(server, SCHEMA, "refuse").await;
        let mut refused = 0;
        for front in Front::ALL {
            let client = stage.client(front).await;
            let arguments = r#"{"owner":5,"page":0,"extra":"secret words"}"#;
            let failure = call_over(&client, "1", "mcp_x_echo", arguments)
                .await
                .failure();
            refused += 1;
            assert_eq!(failure["code"], -32602, "{front:?} {failure}");
            let data = &failure["data"];
            assert_eq!(data["code"], "INVALID_ARGUMENTS");
            assert_eq!(data["retryable"], false);
            let faults = data["faults"].as_array().unwrap();
            let at: Vec<_> = faults
                .iter()
                .map(|fault| fault["pointer"].as_str())
                .collect();
            assert!(
                at.contains(&Some("/owner")) && at.contains(&Some("/page")),
                "{failure}"
            );
            let message = failure["message"].as_str().unwrap();
            let fault = r#"/owner: value is not of type "string""#;
            assert!(message.contains(fault), "{message}");
            assert!(!failure.to_string().contains("secret words"), "{failure}");
            let record = stage.last();
            assert_eq!(record.decision, RecordedDecision::Refused);
            assert_eq!(record.code.as_deref(), Some("INVALID_ARGUMENTS"));
            assert_eq!(record.price.get(), 0);
            let rule = record.rule.unwrap();
            assert!(rule.contains("/properties/owner/type"), "{rule}");
        }
        assert!(stage.server.seen().is_empty());
        let exact = r#"{ "owner":"\u0061cme", "page":1.0 }"#;
        stage.must(exact).await;
        let seen = stage.server.seen();
        assert_eq!(seen[0].param(&["arguments"]).as_deref(), Some(exact));
        assert_eq!(stage.last().price.get(), 10_000);
        let counted = json!({ "reported": 0, "refused": refused });
        assert_eq!(validation(&stage).await, counted);
        stage.stop().await;
    }
}

/// Arguments are held to what their client was shown: on merged routes that may be a repaired schema, where
/// the server's own cannot be used.
#[tokio::test]
async fn what_was_shown_is_what_arguments_are_held_to() {
    let odd = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":null}"#;
    let server = Server::over(Transport::Http, Era::Legacy).await;
    let mut stage = stage(server, odd, "refuse").await;
    let arguments = r#"{"n":"text"}"#;
    for _ in 0..2 {
        let client = stage.client(Front::Streamable).await;
        let refused = call_over(&client, "1", "mcp_x_echo", arguments).await;
        assert_eq!(refused.failure()["code"], -32602);
    }
    assert!(stage.server.seen().is_empty());
    stage.path = "/mcp/servers/x";
    let client = stage.client(Front::Streamable).await;
    let passed = call_over(&client, "1", "echo", arguments).await;
    assert_eq!(passed.value()["content"][0]["text"], "fine");
    stage.stop().await;
}

/// A tool whose schema is not used is passed on unchecked, but refused where argument rules are about it:
/// they would speak of arguments that the tool may read otherwise.
#[tokio::test]
async fn tools_with_argument_rules_need_a_schema_that_is_used() {
    let tree =
        r##"{"type":"object","properties":{"page":{"type":"integer"},"next":{"$ref":"#"}}}"##;
    let rule = |more: &str| {
        format!(
            "args = [{{ name = \"r\", tools = [\"x/echo\"], at = \"/page\", equals = 7{more} }}]\n"
        )
    };
    for (rule, validate, is_refused) in [
        (rule(""), "", true),
        (rule(""), "validate = \"refuse\"", true),
        (rule(""), "validate = \"report\"", false),
        (rule(""), "validate = \"off\"", false),
        (rule(", observe = true"), "", false),
        (String::new(), "validate = \"refuse\"", false),
    ] {
        let server = Server::start().await;
        let tools = format!(r#"[{{"name":"echo","inputSchema":{tree}}}]"#);
        server.backend.set_list("tools/list", tools);
        let terms = format!("[governance]\nprice = \"0\"\n{rule}");
        let stage = Stage::with(server, &terms, validate).await;
        let answer = stage.call(r#"{"page":8}"#).await;
        if is_refused {
            let failure = answer.failure();
            assert_eq!(failure["data"]["code"], "INVALID_ARGUMENTS");
            let message = failure["message"].as_str().unwrap();
            let why =
                "the input schema of the tool cannot be used: its reference `#` leads in a circle";
            assert!(message.contains(why), "{message}");
            assert_eq!(stage.last().rule.as_deref(), Some("validate: inputSchema"));
        } else {
            answer.value();
        }
        let told = |report: &Value| report["problems"].to_string().contains("leads in a circle");
        stage.gateway.status_until("x", told).await;
        stage.stop().await;
    }
}

/// Without a word on it, arguments are checked of the tools that argument rules may refuse.
#[tokio::test]
async fn tools_with_argument_rules_are_checked_by_default() {
    let rule = |more: &str| {
        format!(
            "args = [{{ name = \"r\", tools = [\"x/echo\"], at = \"/page\", equals = 7{more} }}]\n"
        )
    };
    let wrong = r#"{"owner":"acme","page":"many"}"#;
    for (rule, validate, is_refused) in [
        (rule(""), "", true),
        (rule(""), "validate = \"off\"", false),
        (rule(", observe = true"), "", false),
        (rule("") + "observe = [\"args\"]\n", "", false),
        (String::new(), "", false),
    ] {
        let server = Server::start().await;
        let tools = format!(
            r#"[{{"name":"echo","inputSchema":{SCHEMA}}},{{"name":"other","inputSchema":{SCHEMA}}}]"#
        );
        server.backend.set_list("tools/list", tools);
        let terms = format!("[governance]\nprice = \"0\"\n{rule}");
        let stage = Stage::with(server, &terms, validate).await;
        let answer = stage.call(wrong).await;
        if is_refused {
            assert_eq!(code_of(&answer), "INVALID_ARGUMENTS");
        } else {
            answer.value();
        }
        stage.call_tool("mcp_x_other", wrong).await.value();
        stage.stop().await;
    }
}

/// A call without arguments has none, which may be what a tool takes.
#[tokio::test]
async fn arguments_may_be_absent() {
    let stage = stage(Server::start().await, SCHEMA, "refuse").await;
    let absent = stage.ask("tools/call", r#"{"name":"mcp_x_echo"}"#).await;
    assert_eq!(code_of(&absent), "INVALID_ARGUMENTS");
    let absent = stage.ask("tools/call", r#"{"name":"mcp_x_other"}"#).await;
    absent.value();
    stage.stop().await;
}

/// What is only reported passes, and the audit and the status say so.
#[tokio::test]
async fn a_report_refuses_nothing() {
    let stage = stage(Server::start().await, SCHEMA, "report").await;
    stage.must(r#"{"owner":"much too long"}"#).await;
    let record = stage.last();
    assert_eq!(record.decision, RecordedDecision::Observed);
    let rule = record.rule.unwrap();
    assert_eq!(rule, "validate: /properties/owner/maxLength");
    assert_eq!(record.price.get(), 10_000);
    stage.must(r#"{"owner":"acme"}"#).await;
    assert_eq!(stage.last().decision, RecordedDecision::Allowed);
    let counted = json!({ "reported": 1, "refused": 0 });
    assert_eq!(validation(&stage).await, counted);
    stage.stop().await;
}

/// A schema that is none, or that would have to be fetched, is named in the status and checks
/// nothing, until the server mends it.
#[tokio::test]
async fn a_schema_that_cannot_be_used_checks_nothing() {
    for schema in [
        r#"{"type":"object","properties":{"a":{"$ref":"https://example.com/a.json"}}}"#,
        r#"{"type":"object","properties":{"a":{"type":"objekt"}}}"#,
        r##"{"type":"object","properties":{"a":{"$ref":"#"}}}"##,
        r##"{"type":"object","properties":{"a":{"$dynamicRef":"#b"}}}"##,
    ] {
        let stage = stage(Server::start().await, schema, "refuse").await;
        stage.must(r#"{"a":1}"#).await;
        stage.must(r#"{"a":1}"#).await;
        let counted = validation(&stage).await;
        assert_eq!(counted["refused"], 0, "{counted}");
        let unusable = counted["unusable"].as_object().unwrap();
        assert_eq!(unusable.len(), 1, "{counted}");
        assert!(unusable["echo"].is_string(), "{counted}");
        stage.stop().await;
    }
}

/// A tool that is listed with another schema is held to that one.
#[tokio::test]
async fn a_schema_may_change() {
    let stage = stage(
        Server::start().await,
        r#"{"type":"object","allOf":7}"#,
        "refuse",
    )
    .await;
    stage.must(r#"{"n":1}"#).await;
    let tools = r#"[{"name":"new","inputSchema":{}},{"name":"echo","inputSchema":{"type":"object","required":["m"]}}]"#;
    stage.server.backend.set_list("tools/list", tools);
    stage.server.backend.list_changed("tools").await;
    let listed = |names: &[String]| names.iter().any(|name| name == "mcp_x_new");
    stage.gateway.tools_until(listed).await;
    assert_eq!(stage.must_not(r#"{"n":1}"#).await, "INVALID_ARGUMENTS");
    stage.must(r#"{"m":1}"#).await;
    let counted = json!({ "reported": 0, "refused": 1 });
    assert_eq!(
        validation(&stage).await,
        counted,
        "the unusable one is gone"
    );
    stage.stop().await;
}

fn reload(stage: &Stage, change: impl FnOnce(&mut Config)) {
    let mut config = stage.gateway.config.clone();
    change(&mut config);
    stage.gateway.running.core().apply_config(&config).unwrap();
}

/// A reload counts on, also where nothing is checked for a while, and knows the schemas; what is not
/// listed any more is forgotten.
#[tokio::test]
async fn what_was_counted_and_compiled_outlives_a_reload() {
    let stage = stage(Server::start().await, SCHEMA, "refuse").await;
    let listed = format!(
        r#"[{{"name":"echo","inputSchema":{SCHEMA}}},{{"name":"broken","inputSchema":{{"type":"object","allOf":7}}}}]"#
    );
    stage.server.backend.set_list("tools/list", listed);
    stage.server.backend.list_changed("tools").await;
    let has = |name: &'static str| move |names: &[String]| names.iter().any(|it| it == name);
    stage.gateway.tools_until(has("mcp_x_broken")).await;
    assert_eq!(stage.must_not("{}").await, "INVALID_ARGUMENTS");
    stage.call_tool("mcp_x_broken", "{}").await;
    let counted = validation(&stage).await;
    assert_eq!(counted["refused"], 1);
    assert!(counted["unusable"]["broken"].is_string(), "{counted}");

    let x = ServerName::parse("x").unwrap();
    for mode in [Validate::Report, Validate::Refuse] {
        reload(&stage, |config| config.servers[&x].validate = Validate::Off);
        assert_eq!(validation(&stage).await, Value::Null);
        reload(&stage, |config| config.servers[&x].validate = mode);
        assert_eq!(validation(&stage).await, counted, "{mode:?}");
    }

    let tools = r#"[{"name":"last","inputSchema":{"type":"object"}}]"#;
    stage.server.backend.set_list("tools/list", tools);
    stage.server.backend.list_changed("tools").await;
    stage.gateway.tools_until(has("mcp_x_last")).await;
    let forgotten = |report: &Value| report["validation"]["unusable"].is_null();
    let report = stage.gateway.status_until("x", forgotten).await;
    assert_eq!(report["validation"]["refused"], 1);
    stage.stop().await;
}

/// References to references make a small schema longer than anything: it checks nothing, and ends
/// nothing.
#[tokio::test]
async fn a_schema_that_is_too_large_checks_nothing() {
    let chain = |count: usize, of: fn(&str) -> String| {
        let definitions = (1..=count).map(|level| {
            let below = of(&format!(r##"{{"$ref":"#/$defs/n{}"}}"##, level - 1));
            format!(r#""n{level}":{below}"#)
        });
        let definitions: Vec<_> = definitions.collect();
        format!(
            r##"{{"type":"object","$ref":"#/$defs/n{count}","$defs":{{"n0":{{"required":["a"]}},{}}}}}"##,
            definitions.join(",")
        )
    };
    for (schema, why) in [
        (chain(12_000, str::to_owned), "more than 64 deep"),
        (
            chain(24, |below| format!(r#"{{"allOf":[{below},{below}]}}"#)),
            "more than 65536 parts",
        ),
    ] {
        let stage = stage(Server::start().await, &schema, "refuse").await;
        // On a busy machine it may take too long to find out, which says nothing yet.
        for _ in 0..10 {
            drop(stage.call("{}").await);
            if validation(&stage).await["unusable"]["echo"].is_string() {
                break;
            }
        }
        stage.must("{}").await;
        let counted = validation(&stage).await;
        let told = counted["unusable"]["echo"].as_str().unwrap();
        assert!(told.contains(why), "{told}");
        stage.stop().await;
    }
}

/// Arguments that are too large for their schema do not pass; others are checked as before.
#[tokio::test]
async fn arguments_that_would_take_too_long_do_not_pass() {
    // What nothing has evaluated is looked for member by member in every branch.
    let (branches, members) = (4_000, 5_000);
    let list = |count: usize, of: &dyn Fn(usize) -> String| {
        let all: Vec<_> = (0..count).map(of).collect();
        all.join(",")
    };
    let schema = format!(
        r#"{{"type":"object","allOf":[{}],"unevaluatedProperties":false}}"#,
        list(branches, &|n| format!(
            r#"{{"properties":{{"m{n}":true}}}}"#
        ))
    );
    let arguments = format!("{{{}}}", list(members, &|n| format!(r#""m{n}":1"#)));
    let stage = stage(Server::start().await, &schema, "refuse").await;
    let refused = stage.must_not(&arguments).await;
    assert_eq!(refused, "INVALID_ARGUMENTS");
    stage.must("{}").await;
    assert_eq!(stage.must_not(r#"{"other":1}"#).await, "INVALID_ARGUMENTS");
    let counted = validation(&stage).await;
    assert_eq!(counted, json!({ "reported": 0, "refused": 2 }));
    stage.stop().await;
}
