//! Requests in which a member is of another type than the specification says: no server gets one, and whoever
//! sent it is told at once.

use crate::support::{Backend, Era, Front, Gateway, TestGateway, Transport};

/// Members of calls, and what is wrong with them.
const ODD: [(&str, &str); 7] = [
    (r#""name":"mcp_x_echo","arguments":[]"#, "`arguments`"),
    (r#""name":"mcp_x_echo","arguments":"{}""#, "`arguments`"),
    (r#""name":"mcp_x_echo","arguments":5"#, "`arguments`"),
    (r#""name":"mcp_x_echo","task":"x""#, "`task`"),
    (r#""name":"mcp_x_echo","requestState":{}"#, "`requestState`"),
    (
        r#""name":"mcp_x_echo","inputResponses":[]"#,
        "`inputResponses`",
    ),
    (r#""name":"mcp_x_echo","_meta":"x""#, ""),
];

#[tokio::test]
async fn no_server_gets_a_member_of_the_wrong_type() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let gateway: Gateway = TestGateway::new().server("x", &backend).start().await;
    for front in Front::ALL {
        let client = gateway.client(front, "/mcp", "{}").await;
        for (members, named) in ODD {
            client.ask("1", "tools/call", members).await;
            let refused = client.answer("1").await.failure();
            assert_eq!(refused["code"], -32602, "{front:?} {members} {refused}");
            let message = refused["message"].as_str().unwrap();
            assert!(message.contains(named), "{front:?} {members} {message}");
        }
        for (method, members) in [
            ("resources/read", r#""uri":"x","requestState":5"#),
            ("prompts/get", r#""name":"mcp_x_greet","arguments":[]"#),
            ("completion/complete", r#""ref":5,"argument":{}"#),
            ("tools/list", r#""cursor":5"#),
        ] {
            client.ask("1", method, members).await;
            let refused = client.answer("1").await.failure();
            assert_eq!(refused["code"], -32602, "{front:?} {method} {refused}");
        }
    }
    gateway.stop().await;
}

/// The toolbox hears nothing either, and answers at once.
#[tokio::test]
async fn the_toolbox_does_not_hang() {
    let gateway = TestGateway::new()
        .setting("[servers.toolbox]\ntransport = \"builtin\"\n")
        .start()
        .await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    for members in [
        r#""_meta":"x""#,
        r#""_meta":{"progressToken":{}}"#,
        r#""arguments":[]"#,
    ] {
        let members = format!(r#""name":"mcp_toolbox_uuid",{members}"#);
        client.ask("1", "tools/call", &members).await;
        assert_eq!(
            client.answer("1").await.failure()["code"],
            -32602,
            "{members}"
        );
    }
    let members = r#""name":"mcp_toolbox_uuid","arguments":null,"_meta":null"#;
    client.ask("1", "tools/call", members).await;
    client.answer("1").await.value();
    gateway.stop().await;
}
