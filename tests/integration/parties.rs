//! What a server says reaches the one client it belongs to, and nobody else.

use crate::support::{ALL, Backend, Client, Era, Front, TestGateway, Transport};

/// Two clients with equal ids and tokens: progress and results stay apart.
#[tokio::test]
async fn equal_ids_and_tokens_never_cross() {
    for (transport, era) in ALL {
        for front in Front::ALL {
            let backend = Backend::start(transport, era).await;
            let gateway = TestGateway::new().server("x", &backend).start().await;
            let one = gateway.client(front, "/mcp/servers/x", "{}").await;
            let two = gateway.client(front, "/mcp", "{}").await;
            one.call("7", "echo", r#""t""#).await;
            let first = backend.asked("tools/call").await;
            two.call("7", "mcp_x_echo", r#""t""#).await;
            let second = backend.asked("tools/call").await;
            assert_ne!(first.token(), second.token(), "{transport:?} {era:?} {front:?}");
            second.progress(1).await;
            first.progress(2).await;
            second.progress(3).await;
            second.answer(r#"{"content":[],"mine":2}"#).await;
            first.progress(4).await;
            first.answer(r#"{"content":[],"mine":1}"#).await;
            expect_call(&one, &[2, 4], 1).await;
            expect_call(&two, &[1, 3], 2).await;
            one.is_quiet().await;
            two.is_quiet().await;
            gateway.stop().await;
        }
    }
}

async fn expect_call(client: &Client, progress: &[u64], mine: u64) {
    for amount in progress {
        let told = client.must("notifications/progress").await;
        assert_eq!(told.param(&["progressToken"]).as_deref(), Some(r#""t""#));
        assert_eq!(told.param(&["progress"]), Some(amount.to_string()));
    }
    assert_eq!(client.answer("7").await.value()["mine"], mine);
}
