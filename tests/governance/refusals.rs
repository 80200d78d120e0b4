//! Each row of the table of refusals, as clients of every kind see it and as the audit has it.

use serde_json::{Value, json};
use tollbridge::{
    audit::{Record, RecordedDecision},
    names::AgentId,
};

use crate::{
    harness::{Server, Stage, call_over, records, status_of_call, text_result},
    support::{Auto, Front, wire::Envelope},
};

/// A call that is refused, and why.
struct Case {
    /// Keys of `[governance]`.
    terms: &'static str,
    /// Other sections.
    sections: &'static str,
    /// Keys of the server.
    keys: &'static str,
    path: &'static str,
    tool: &'static str,
    arguments: &'static str,
    /// What the server answers with, where the call reaches it.
    result: Option<&'static str>,
    /// Calls that go through first.
    before: usize,
    code: i64,
    portable: i64,
    name: &'static str,
    message: &'static str,
    retryable: bool,
    /// What the record says of the rule.
    rule: &'static str,
    /// What `observe` calls it.
    observe: Option<&'static str>,
    /// Further members of `data`; `null` stands for any value.
    data: &'static str,
}

const USUAL: Case = Case {
    terms: "",
    sections: "",
    keys: "",
    path: "/mcp",
    tool: "mcp_x_echo",
    arguments: "{}",
    result: None,
    before: 0,
    code: -32003,
    portable: -31003,
    name: "UNAUTHORIZED",
    message: "Tool not authorized",
    retryable: false,
    rule: "",
    observe: None,
    data: "{}",
};

const CASES: [Case; 13] = [
    Case {
        tool: "mcp_x_nothing",
        code: -32602,
        portable: -32602,
        name: "TOOL_NOT_FOUND",
        message: "Unknown tool: mcp_x_nothing",
        rule: "catalog",
        ..USUAL
    },
    Case {
        sections: "[agents.ann]\nenabled = false\n",
        rule: "agent disabled",
        ..USUAL
    },
    Case {
        sections: "[profiles.p]\n[profiles.q]\n[agents.ann]\nprofiles = [\"p\"]\n",
        path: "/mcp/profiles/q",
        rule: "profile",
        ..USUAL
    },
    Case {
        terms: "policy = { mode = \"none\" }",
        rule: "policy: ",
        observe: Some("policy"),
        ..USUAL
    },
    Case {
        terms: "policy = { mode = \"all\", deny = [\"x/ech?\"] }",
        rule: "policy: ",
        observe: Some("policy"),
        ..USUAL
    },
    Case {
        terms: "args = [{ name = \"small\", at = \"/n\", max = 5, action = \"allow\" }]",
        arguments: r#"{"n":6}"#,
        message: "Tool not authorized: rejected by argument rule `small`",
        rule: "args: small",
        observe: Some("args"),
        ..USUAL
    },
    Case {
        terms: "rate = { calls = 1, per = \"24h\" }",
        before: 1,
        code: -32004,
        portable: -31004,
        name: "RATE_LIMITED",
        message: "Rate limit exceeded",
        retryable: true,
        rule: "rate of the agent",
        observe: Some("rate"),
        data: r#"{"limited":"agent","retryAfterMs":null}"#,
        ..USUAL
    },
    Case {
        terms: "tool_rate = { calls = 1, per = \"24h\" }",
        before: 1,
        code: -32004,
        portable: -31004,
        name: "RATE_LIMITED",
        message: "Rate limit exceeded",
        retryable: true,
        rule: "rate of the tool",
        observe: Some("rate"),
        data: r#"{"limited":"tool","retryAfterMs":null}"#,
        ..USUAL
    },
    Case {
        keys: "rate = { calls = 1, per = \"24h\" }",
        before: 1,
        code: -32004,
        portable: -31004,
        name: "RATE_LIMITED",
        message: "Rate limit exceeded",
        retryable: true,
        rule: "rate of the server",
        observe: Some("rate"),
        data: r#"{"limited":"server","retryAfterMs":null}"#,
        ..USUAL
    },
    Case {
        terms: "budget = { limit = \"0.02\", window = \"total\" }",
        before: 1,
        code: -32001,
        portable: -31001,
        name: "BUDGET_EXCEEDED",
        message: "Budget limit exceeded",
        rule: "budget of agent \"",
        observe: Some("budget"),
        data: r#"{"budget":null,"detail":null,"limit":"0.02","limit_micros":20000,"used":"0.02","used_micros":15000,"price_micros":15000}"#,
        ..USUAL
    },
    Case {
        terms: "budget = { limit = \"0.02\", window = \"day\" }",
        before: 1,
        code: -32001,
        portable: -31001,
        name: "BUDGET_EXCEEDED",
        message: "Budget limit exceeded",
        retryable: true,
        rule: "budget of agent \"",
        observe: Some("budget"),
        data: r#"{"budget":null,"detail":null,"limit":"0.02","limit_micros":20000,"used":"0.02","used_micros":15000,"price_micros":15000,"resets_at":null,"retryAfterMs":null}"#,
        ..USUAL
    },
    Case {
        terms: "scan = { arguments = { email = \"block\" } }",
        arguments: r#"{"to":"ann.lee\u0040example.org"}"#,
        code: -32002,
        portable: -31002,
        name: "PII_DETECTED",
        message: "PII in tool params",
        rule: "scan: email",
        observe: Some("scan"),
        data: r#"{"classes":["email"]}"#,
        ..USUAL
    },
    Case {
        terms: "scan = { results = { email = \"block\" } }",
        result: Some("ask ann.lee@example.org"),
        code: -32002,
        portable: -31002,
        name: "PII_DETECTED",
        message: "PII in tool result",
        rule: "scan: email",
        observe: Some("scan"),
        data: r#"{"classes":["email"]}"#,
        ..USUAL
    },
];

impl Case {
    /// A gateway for this case, past the calls that go through.
    async fn stage(&self, more: &str) -> Stage {
        let server = Server::start().await;
        if let Some(text) = self.result {
            server.answers("tools/call", &text_result(text));
        }
        let settings = format!("{}[governance]\n{}\n{more}\n", self.sections, self.terms);
        let mut stage = Stage::with(server, &settings, self.keys).await;
        for _ in 0..self.before {
            stage.must("{}").await;
        }
        stage.path = self.path;
        stage
    }

    /// Whether the call reaches the server before its answer is withheld.
    fn is_delivered(&self) -> bool {
        self.result.is_some()
    }

    fn price(&self) -> u64 {
        if self.is_delivered() { 15_000 } else { 0 }
    }

    /// The agent that calls.
    fn agent(&self) -> (String, &'static str) {
        if self.sections.contains("ann") {
            return (AgentId::from_name("ann").to_string(), "ann");
        }
        (AgentId::ANONYMOUS.to_string(), "anonymous")
    }

    fn check_data(&self, data: &Value, records: &[Record<'static>]) {
        let mut data = data.clone();
        let id = data["invocation_id"].as_str().unwrap().to_owned();
        assert!(id.starts_with("inv_"), "{id}");
        let expect: Value = serde_json::from_str(self.data).unwrap();
        let members = data.as_object_mut().unwrap();
        members.remove("invocation_id");
        assert_eq!(members.remove("code"), Some(json!(self.name)));
        assert_eq!(members.remove("agent_id"), Some(json!(self.agent().0)));
        assert_eq!(members.remove("retryable"), Some(json!(self.retryable)));
        for (key, value) in expect.as_object().unwrap() {
            let found = members.remove(key);
            let found = found.unwrap_or_else(|| panic!("no {key} in {members:?}"));
            assert!(value.is_null() || *value == found, "{key}: {found}");
        }
        assert!(members.is_empty(), "{members:?}");
        self.check_record(&id, records);
    }

    fn check_record(&self, id: &str, records: &[Record<'static>]) {
        let of_call: Vec<_> = records
            .iter()
            .filter(|record| record.id.to_string() == id)
            .collect();
        let [record] = of_call[..] else {
            panic!("{} records of {id}", of_call.len());
        };
        assert_eq!(record.decision, RecordedDecision::Refused);
        assert_eq!(record.code.as_deref(), Some(self.name));
        let rule = record.rule.as_deref().unwrap();
        assert!(rule.starts_with(self.rule), "{rule}");
        assert_eq!(record.price.get(), self.price(), "{}", self.rule);
        assert_eq!(record.agent_name, self.agent().1);
        assert_eq!(record.exposed.as_deref(), Some(self.tool));
        let server = (self.code != -32602).then_some("x");
        assert_eq!(record.server.as_deref(), server);
    }
}

/// The counts are those of `/status`.
#[tokio::test]
async fn the_status_counts_refusals() {
    let case = &CASES[3];
    let stage = case.stage("").await;
    stage.must_not("{}").await;
    let answer = stage.http().get("/status", &[]).await.text().await;
    let status: Value = serde_json::from_str(&answer).unwrap();
    let governance = &status["governance"];
    assert_eq!(governance["refused"], json!({ "UNAUTHORIZED": 1 }));
    assert_eq!(governance["audit_error"], Value::Null);
    assert_eq!(governance["audit_lost"], 0);
    assert_eq!(governance["budget_error"], Value::Null);
    assert!(governance["audit_chain"].is_string(), "{governance}");
    stage.stop().await;
}

#[tokio::test]
async fn every_client_sees_the_row_of_the_table() {
    for case in &CASES {
        let stage = case.stage("").await;
        let mut delivered = case.before;
        for front in Front::ALL {
            let client = stage.client(front).await;
            let answer = call_over(&client, "1", case.tool, case.arguments).await;
            let status = status_of_call(&client, case.tool, case.arguments).await;
            assert!(status.is_none_or(|status| status == 200), "{status:?}");
            if case.is_delivered() {
                delivered += 1 + usize::from(status.is_some());
            }
            let failed = answer.failure();
            assert_eq!(failed["code"], case.code, "{front:?} {}", case.rule);
            assert_eq!(failed["message"], case.message);
            case.check_data(&failed["data"], &stage.records());
        }
        let data_dir = stage.gateway.config.data_dir.clone();
        let seen = stage.server.seen().len();
        assert_eq!(seen, delivered, "{}", case.rule);
        let counts = stage.counts();
        let total = records(&data_dir).len() - case.before;
        assert_eq!(counts["refused"], json!({ case.name: total }), "{counts}");
        assert_eq!(counts["observed"], json!({}));
        stage.stop().await;
    }
}

#[tokio::test]
pub(crate) async fn portable_codes_are_outside_the_reserved_block() {
    for case in &CASES {
        let stage = case.stage("error_codes = \"portable\"").await;
        for front in [Front::Streamable, Front::Modern] {
            let client = stage.client(front).await;
            let answer = call_over(&client, "1", case.tool, case.arguments).await;
            let failed = answer.failure();
            assert_eq!(failed["code"], case.portable, "{front:?} {}", case.rule);
            assert_eq!(failed["message"], case.message);
            case.check_data(&failed["data"], &stage.records());
        }
        stage.stop().await;
    }
}

#[tokio::test]
pub(crate) async fn refusals_can_be_results_that_a_model_reads() {
    for case in &CASES {
        let stage = case.stage("errors = \"tool_result\"").await;
        for front in Front::ALL {
            let client = stage.client(front).await;
            let answer = call_over(&client, "1", case.tool, case.arguments).await;
            let result = answer.value();
            assert_eq!(result["isError"], true, "{front:?} {}", case.rule);
            let modern = front.is_modern().then_some("complete");
            assert_eq!(result["resultType"].as_str(), modern);
            let text = result["content"][0]["text"].as_str().unwrap();
            let words = case.message.split(':').next().unwrap();
            assert!(text.starts_with(words), "{text}");
            assert!(text.contains(case.name), "{text}");
            case.check_data(&result["_meta"]["tollbridge/refusal"], &stage.records());
        }
        stage.stop().await;
    }
}

/// So can failures of servers; the record says what failed either way. What is wrong with the request stays an
/// error.
#[tokio::test]
async fn failures_of_servers_can_be_results_that_a_model_reads() {
    for (form, is_result) in [("tool_result", true), ("jsonrpc", false)] {
        let settings = format!("[governance]\nerrors = \"{form}\"\n");
        let keys = "timeout = \"300ms\"\nbreaker = { failures = 0 }";
        let stage = Stage::new(&settings, keys).await;
        for front in Front::ALL {
            let client = stage.client(front).await;
            for (does, code, reason) in [
                (Auto::Nothing, "TIMEOUT", "timeout"),
                (Auto::Status(500), "BAD_ANSWER", "bad_answer"),
                (Auto::Die, "LOST", "lost"),
            ] {
                stage.server.does("tools/call", does);
                let answer = call_over(&client, "1", "mcp_x_echo", "{}").await;
                assert_eq!(stage.last().code.as_deref(), Some(code), "{front:?}");
                let data = if is_result {
                    let result = answer.value();
                    assert_eq!(result["isError"], true, "{front:?} {reason}");
                    let modern = front.is_modern().then_some("complete");
                    assert_eq!(result["resultType"].as_str(), modern);
                    let text = result["content"][0]["text"].as_str().unwrap();
                    assert!(text.ends_with(&format!("({code})")), "{text}");
                    result["_meta"]["tollbridge/failure"].clone()
                } else {
                    answer.failure()["data"].clone()
                };
                assert_eq!(data["code"], code, "{front:?} {data}");
                assert_eq!(data["server"], "x", "{front:?} {data}");
                assert!(data["invocation_id"].is_string(), "{front:?} {data}");
            }
            let answer = call_over(&client, "1", "mcp_x_echo", "\"{}\"").await;
            assert_eq!(answer.code(), -32602, "{front:?}");
        }
        stage.stop().await;
    }
}

/// Only tools have results that a model reads.
#[tokio::test]
async fn other_methods_are_refused_with_errors() {
    let terms = "[governance]\nerrors = \"tool_result\"\npolicy = { mode = \"none\" }\n";
    let stage = Stage::new(terms, "").await;
    for (method, params) in [
        ("prompts/get", r#"{"name":"mcp_x_greet"}"#),
        ("resources/read", r#"{"uri":"x+file:///a.txt"}"#),
    ] {
        let failed = stage.ask(method, params).await.failure();
        assert_eq!(failed["code"], -32003, "{failed}");
    }
    assert!(stage.server.seen().is_empty());
    stage.stop().await;
}

/// What is only observed refuses nothing, and is counted and audited.
#[tokio::test]
async fn observed_rules_refuse_nothing() {
    for case in &CASES {
        let Some(rule) = case.observe else { continue };
        let stage = case.stage(&format!("observe = [\"{rule}\"]")).await;
        for (calls, front) in Front::ALL.into_iter().enumerate() {
            let client = stage.client(front).await;
            let answer = call_over(&client, "1", case.tool, case.arguments).await;
            let text = answer.value()["content"][0]["text"].clone();
            assert_eq!(text, case.result.unwrap_or("fine"), "{front:?}");
            let counts = stage.counts();
            assert_eq!(counts["observed"], json!({ rule: calls + 1 }), "{rule}");
            assert_eq!(counts["refused"], json!({}), "{rule}");
            let record = stage.last();
            assert_eq!(record.decision, RecordedDecision::Observed, "{rule}");
            assert_eq!(record.code, None);
            let noted = record.rule.unwrap();
            assert!(noted.contains(rule), "{noted}");
        }
        let last = stage.server.seen().len();
        assert_eq!(last, case.before + Front::ALL.len());
        stage.stop().await;
    }
}

/// An answer that is withheld was paid for, since the server has done its work.
#[tokio::test]
async fn a_withheld_answer_is_charged() {
    let terms = "[governance]\nprice = \"0.01\"\nbudget = { limit = \"0.02\" }\n\
                 scan = { results = { email = \"block\" } }\n";
    let stage = Stage::new(terms, "").await;
    stage
        .server
        .answers("tools/call", &text_result("ann.lee@example.org"));
    let codes = [
        stage.must_not("{}").await,
        stage.must_not("{}").await,
        stage.must_not("{}").await,
    ];
    assert_eq!(codes, ["PII_DETECTED", "PII_DETECTED", "BUDGET_EXCEEDED"]);
    assert_eq!(stage.server.seen().len(), 2);
    let prices: Vec<_> = stage.records().iter().map(|it| it.price.get()).collect();
    assert_eq!(prices, [10_000, 10_000, 0]);
    stage.stop().await;
}

/// `initialize`, `server/discover`, `ping` and lists go on whatever is used up.
#[tokio::test]
async fn greetings_and_lists_are_never_refused() {
    let terms = "[governance]\nbudget = { limit = \"0.00\" }\n\
                 rate = { calls = 1, per = \"24h\" }\n\
                 scan = { arguments = { \"*\" = \"block\" } }\n";
    let stage = Stage::new(terms, "").await;
    assert_eq!(stage.must_not("{}").await, "BUDGET_EXCEEDED");
    assert_eq!(stage.must_not("{}").await, "RATE_LIMITED");
    for front in Front::ALL {
        let client = stage.client(front).await;
        client.is_quiet().await;
        let tools = client.list("tools").await;
        assert_eq!(tools.len(), 2, "{front:?}");
    }
    stage.stop().await;
}

/// What is no refusal of ours has no data of ours.
#[tokio::test]
async fn an_answer_that_is_allowed_is_as_it_was() {
    let stage = Stage::new("[governance]\n", "").await;
    stage
        .server
        .answers("tools/call", r#"{"content":[],"isError":true,"x":1e3}"#);
    let answer: Envelope = stage.call("{}").await;
    let text = answer.result.unwrap();
    assert_eq!(text, r#"{"content":[],"isError":true,"x":1e3}"#);
    assert_eq!(stage.last().decision, RecordedDecision::Allowed);
    stage.stop().await;
}

/// What a server did not answer names the call and its agent as a refusal does, on every route and
/// to every client; it was paid for, since the call may have arrived.
#[tokio::test]
async fn a_failure_names_its_call() {
    let settings = "[agents.ann]\n[governance]\nprice = \"0.01\"\n";
    let keys = "timeout = \"200ms\"\nbreaker = { failures = 1000 }";
    let mut stage = Stage::new(settings, keys).await;
    let agent = json!(AgentId::from_name("ann").to_string());
    for (path, tool) in [("/mcp", "mcp_x_echo"), ("/mcp/servers/x", "echo")] {
        stage.path = path;
        for front in Front::ALL {
            let client = stage.client(front).await;
            for (id, does, code) in [
                ("1", Auto::Status(502), "BAD_ANSWER"),
                ("2", Auto::Nothing, "TIMEOUT"),
                ("3", Auto::Die, "LOST"),
            ] {
                stage.server.does("tools/call", does);
                let failed = call_over(&client, id, tool, "{}").await.failure();
                let (data, last) = (&failed["data"], stage.last());
                assert_eq!(failed["code"], -32603, "{front:?} {failed}");
                assert_eq!(data["code"], code, "{front:?} {failed}");
                assert_eq!(data["server"], "x", "{failed}");
                assert_eq!(data["invocation_id"], json!(last.id.to_string()));
                assert_eq!(data["agent_id"], agent, "{failed}");
                assert_eq!(
                    last.decision,
                    RecordedDecision::Failed,
                    "{front:?} {last:?}"
                );
                assert_eq!(last.code.as_deref(), data["code"].as_str());
                assert_eq!(last.price.get(), 10_000, "{front:?} {last:?}");
                let status = status_of_call(&client, tool, "{}").await;
                assert!(status.is_none_or(|status| status == 200), "{status:?}");
            }
        }
    }
    stage.stop().await;
}
