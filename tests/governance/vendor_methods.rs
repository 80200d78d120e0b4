//! Methods that only their server knows lead to no resource that an agent may not read.

use crate::{
    harness::{Server, Stage},
    support::{Era, Front, Transport},
};

/// So many `uri` in a row, of a resource that may be read.
fn of_public(count: usize) -> String {
    vec![r#""uri":"file:///pub/a""#; count].join(",")
}

/// Methods that only their server knows are for whoever may read what they name by `uri`, and reach it as
/// they were written.
#[tokio::test]
async fn a_method_of_a_server_names_no_resource_that_is_denied() {
    let denies = "mode = \"all\", deny = [\"x+file:///priv/**\"]";
    let allows = "mode = \"allowlist\", methods = [\"**\"], resources = [\"x/file:///pub/**\"]";
    for (policy, unnamed) in [(denies, 0), (allows, -32003)] {
        let settings = format!("[governance]\nprice = \"0\"\npolicy = {{ {policy} }}\n");
        for era in [Era::Legacy, Era::Modern] {
            let server = Server::over(Transport::Http, era).await;
            let stage = Stage::with(server, &settings, "").await;
            let front = if era == Era::Legacy {
                Front::Streamable
            } else {
                Front::Modern
            };
            let client = stage.gateway.client(front, "/mcp/servers/x", "{}").await;
            for (members, code) in [
                (r#""uri":"file:///pub/a", "x" : 1e3"#, 0),
                (r#""uri":"file:///pub/a","URI":"file:\/\/\/pub/b""#, 0),
                (r#""uri":null,"to":"file:///priv/a""#, 0),
                ("", 0),
                (r#""uri":"https://h/a""#, unnamed),
                (r#""uri":"file:///priv/a""#, -32003),
                (r#""uri":"file:///pr\u0069v/a""#, -32003),
                (r#""uri":"file:///%70riv/a""#, -32003),
                (r#""uri":"file:///pub/../priv/a""#, -32003),
                (r#""\u0075ri":"file:///priv/a""#, -32003),
                (r#""Uri":"file:///priv/a""#, -32003),
                (r#""uri":"file:///priv/a","uri":"file:///pub/a""#, -32003),
                (r#""uri":"file:///pub/a","Uri":"file:///priv/a""#, -32003),
                (r#""uri":["file:///priv/a"]"#, -32003),
                (r#""uri":{"path":"/priv/a"}"#, -32003),
                (&of_public(8), 0),
                (&of_public(9), -32003),
            ] {
                for method in ["resources/directory/read", "acme/open"] {
                    let before = stage.server.seen().len();
                    client.ask("1", method, members).await;
                    let answer = client.answer("1").await;
                    let found = answer.error.as_ref().map_or(0, |_| answer.code());
                    assert_eq!(found, code, "{policy} {era:?} {method} {members}");
                    let seen = stage.server.seen().split_off(before);
                    assert_eq!(seen.len(), usize::from(code == 0), "{method} {members}");
                    for seen in seen {
                        let params = seen.params.unwrap_or_default();
                        assert!(params.contains(members), "{params} for {members}");
                    }
                    if code != 0 {
                        let rule = stage.last().rule.unwrap();
                        assert!(rule.starts_with("policy: "), "{rule}");
                    }
                }
            }
            stage.stop().await;
        }
    }
}

/// Nor one that its server must not show; where nothing is said of resources, all passes.
#[tokio::test]
async fn a_method_of_a_server_names_no_resource_that_is_hidden() {
    for (keys, code, odd) in [
        ("", 0, 0),
        (
            "resources = { deny = [\"file:///priv/**\"] }",
            -32002,
            -32602,
        ),
        (
            "resources = { allow = [\"file:///pub/**\"] }",
            -32002,
            -32602,
        ),
    ] {
        let mut stage = Stage::new("[governance]\nprice = \"0\"\n", keys).await;
        stage.path = "/mcp/servers/x";
        for (params, code) in [
            (r#"{"uri":"file:///priv/a"}"#, code),
            (r#"{"uri":["file:///priv/a"]}"#, odd),
            (r#"{"uri":"file:///pub/a"}"#, 0),
        ] {
            let answer = stage.ask("acme/open", params).await;
            let found = answer.error.as_ref().map_or(0, |_| answer.code());
            assert_eq!(found, code, "{keys} {params}");
        }
        stage.stop().await;
    }
}

/// A notification asks for no answer, and is held to the same rules.
#[tokio::test]
async fn a_notification_names_no_resource_that_is_denied() {
    const NOTICE: &str = "notifications/acme/opened";
    let denies = "mode = \"all\", deny = [\"x+file:///priv/**\"]";
    let allows = "mode = \"allowlist\", methods = [\"**\"], resources = [\"x/file:///pub/**\"]";
    let hides = "resources = { deny = [\"file:///priv/**\"] }";
    for (policy, keys) in [(denies, ""), (allows, ""), ("mode = \"all\"", hides)] {
        let settings = format!("[governance]\nprice = \"0\"\npolicy = {{ {policy} }}\n");
        let server = Server::over(Transport::Http, Era::Legacy).await;
        let stage = Stage::with(server, &settings, keys).await;
        for front in Front::LEGACY {
            let client = stage.gateway.client(front, "/mcp/servers/x", "{}").await;
            for (method, members, passes) in [
                (NOTICE, r#""uri":"file:///pub/a""#, true),
                (NOTICE, r#""uri":null,"to":"file:///priv/a""#, true),
                (NOTICE, r#""uri":"file:///priv/a""#, false),
                (NOTICE, r#""\u0075ri":"file:///priv/a""#, false),
                (
                    NOTICE,
                    r#""uri":"file:///pub/a","Uri":"file:///priv/a""#,
                    false,
                ),
                (NOTICE, r#""uri":["file:///priv/a"]"#, false),
                (NOTICE, &of_public(8), true),
                (NOTICE, &of_public(9), false),
                (
                    "notifications/resources/updated",
                    r#""uri":"file:///priv/a""#,
                    false,
                ),
            ] {
                client.notify(method, &format!("{{{members}}}")).await;
                // What comes next was sent after it.
                client.notify(NOTICE, r#"{"last":true}"#).await;
                let mut heard = Vec::new();
                while heard.last().is_none_or(|it: &String| !it.contains("last")) {
                    let next = stage.server.backend.told(NOTICE).await.envelope;
                    heard.push(next.params.unwrap_or_default());
                }
                let came = heard.len() > 1;
                assert_eq!(came, passes, "{policy} {keys} {front:?} {method} {members}");
                assert!(!came || heard[0].contains(members), "{heard:?}");
            }
        }
        stage.stop().await;
    }
}

/// What an agent may not read is in no list that a method of its server gives, and the rest of the list is
/// as it was written.
#[tokio::test]
async fn a_method_of_a_server_lists_no_resource_that_is_denied() {
    let denies = r#"policy = { mode = "all", deny = ["x+file:///priv/**"] }"#;
    let lists = r#"methods = ["**"], resources = ["x/file:///pub/**"]"#;
    let allows = format!("policy = {{ mode = \"allowlist\", {lists} }}");
    let observed = "policy = { mode = \"none\" }\nobserve = [\"policy\"]";
    let hides = "resources = { deny = [\"file:///priv/**\"] }";
    let (first, last) = (
        r#"{"uri":"file:///pub/a", "x" : 1e3}"#,
        r#"{ "uri":"file:\/\/\/pub/b"}"#,
    );
    let hidden = [
        r#"{"uri":"file:///priv/a"}"#,
        r#"{"\u0075ri":"file:///priv/a"}"#,
        r#"{"uri":"file:///pub/a","URI":"file:///priv/a"}"#,
        r#"{"uri":["file:///priv/a"]}"#,
        r#"{"path":"/priv/a"}"#,
        r#""file:///priv/a""#,
    ];
    for (policy, keys, is_cut) in [
        (denies, "", true),
        (&allows, "", true),
        ("", hides, true),
        ("", "", false),
        (observed, "", false),
    ] {
        let settings = format!("[governance]\nprice = \"0\"\n{policy}\n");
        for (method, member) in [
            ("resources/directory/read", "resources"),
            ("skills/list", "skills"),
        ] {
            let server = Server::over(Transport::Http, Era::Modern).await;
            let written = format!(
                r#"{{"{member}":[{first},{},{last}],"nextCursor":"c","resultType":"complete"}}"#,
                hidden.join(",")
            );
            server.answers(method, &written);
            let stage = Stage::with(server, &settings, keys).await;
            let client = stage
                .gateway
                .client(Front::Modern, "/mcp/servers/x", "{}")
                .await;
            client.ask("1", method, "").await;
            let answer = client.answer("1").await;
            let found = answer
                .result
                .unwrap_or_else(|| panic!("{:?}", answer.error));
            let cut = format!(r#""{member}":[{first},{last}],"nextCursor":"c""#);
            let whole = hidden.iter().all(|entry| found.contains(entry));
            assert_eq!(whole, !is_cut, "{policy} {keys} {method}: {found}");
            assert_eq!(
                found.contains(&cut),
                is_cut,
                "{policy} {keys} {method}: {found}"
            );
            stage.stop().await;
        }
    }
}
