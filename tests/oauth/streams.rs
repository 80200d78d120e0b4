//! What clients have open ends with the token or the grant behind it, and with no other.

use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;
use tollbridge::{control_socket, store::TokenHash};

use crate::{
    sign_in::{SignIns, open_stream},
    support::{
        http::{Events, Http},
        soon,
    },
};

/// A client that has signed in, and the streams that it has open.
struct Standing {
    client: String,
    tokens: Value,
    http: Http,
    streams: [Events; 2],
}

impl Standing {
    async fn new(signing: &SignIns, agent: &str) -> Self {
        let client = signing.client_id().await;
        let code = signing.code(&client, agent).await;
        let (_, tokens) = signing.exchange(&client, &code).await;
        let http = signing.gateway.http();
        let http = http.with_key(tokens["access_token"].as_str().unwrap());
        let accept = ("accept", "text/event-stream");
        let mut old = http.get("/sse", &[accept]).await.events();
        old.must().await;
        Self {
            streams: [open_stream(&http).await, old],
            client,
            tokens,
            http,
        }
    }

    fn text(&self, name: &str) -> &str {
        self.tokens[name].as_str().unwrap()
    }

    async fn end(&mut self) {
        for events in &mut self.streams {
            let ends = async { while events.next().await.is_some() {} };
            soon("the stream ends", ends).await;
        }
    }

    async fn go_on(&mut self) {
        for events in &mut self.streams {
            let ends = async { while events.next().await.is_some() {} };
            let ended = timeout(Duration::from_millis(300), ends).await;
            assert!(ended.is_err(), "a stream has ended");
        }
    }

    async fn grant(&self, signing: &SignIns) -> String {
        let hash = TokenHash::of(self.text("refresh_token"));
        let (stored, _) = signing.store.oauth.token(hash).await.unwrap().unwrap();
        stored.grant
    }
}

/// Another process revokes a grant, or an access token alone: the streams of that end. Those of another client of the
/// same agent go on.
#[tokio::test]
async fn a_revoked_grant_ends_its_own_streams() {
    let signing = SignIns::new("").await;
    let data = signing.gateway.config.data_dir.clone();
    let mut stays = Standing::new(&signing, "ann").await;
    for is_token_gone in [false, true] {
        let mut leaves = Standing::new(&signing, "ann").await;
        let grant = leaves.grant(&signing).await;
        if is_token_gone {
            let hash = TokenHash::of(leaves.text("access_token"));
            assert!(signing.store.oauth.remove_token(hash).await.unwrap());
        } else {
            assert!(signing.store.oauth.revoke_grant(&grant).await.unwrap());
        }
        control_socket::notify_all(&data).await;
        leaves.end().await;
        let token = leaves.text("access_token");
        assert_eq!(signing.call_status(token, "/mcp").await, 401);
    }
    stays.go_on().await;
    let token = stays.text("access_token");
    assert_eq!(signing.call_status(token, "/mcp").await, 200);
    signing.stop().await;
}

/// The same where a client signs itself out.
#[tokio::test]
async fn who_signs_out_ends_no_streams_of_others() {
    let signing = SignIns::new("").await;
    let mut stays = Standing::new(&signing, "ann").await;
    let mut leaves = Standing::new(&signing, "ann").await;
    let form = format!(
        "client_id={}&token={}",
        leaves.client,
        leaves.text("refresh_token")
    );
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    let http = signing.gateway.http();
    let answer = http.send("POST", "/oauth/revoke", &headers, form).await;
    assert_eq!(answer.status(), 200);
    leaves.end().await;
    stays.go_on().await;
    signing.stop().await;
}

/// A client revokes one access token (RFC 7009): its streams end, and those of the next one go on.
#[tokio::test]
async fn a_revoked_access_token_ends_its_own_streams() {
    let signing = SignIns::new("").await;
    let mut leaves = Standing::new(&signing, "ann").await;
    let refresh_token = leaves.text("refresh_token").to_owned();
    let (status, next) = signing.refresh(&leaves.client, &refresh_token).await;
    assert_eq!(status, 200, "{next}");
    let next = next["access_token"].as_str().unwrap();
    let next_http = signing.gateway.http().with_key(next);
    let mut open = open_stream(&next_http).await;
    let (client, token) = (&leaves.client, leaves.text("access_token"));
    let form = format!("client_id={client}&token={token}");
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    let http = signing.gateway.http();
    let answer = http.send("POST", "/oauth/revoke", &headers, form).await;
    assert_eq!(answer.status(), 200);
    leaves.end().await;
    let token = leaves.text("access_token");
    assert_eq!(signing.call_status(token, "/mcp").await, 401);
    assert_eq!(signing.call_status(next, "/mcp").await, 200);
    let ends = async { while open.next().await.is_some() {} };
    let ended = timeout(Duration::from_millis(300), ends).await;
    assert!(ended.is_err(), "the next token was not revoked");
    signing.stop().await;
}

/// Streams end with their token; with the next one the client opens them again.
#[tokio::test]
async fn streams_end_with_their_token() {
    let signing = SignIns::new("access_token_lifetime = \"10s\"").await;
    let mut client = Standing::new(&signing, "ann").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (status, next) = signing
        .refresh(&client.client, client.text("refresh_token"))
        .await;
    assert_eq!(status, 200, "{next}");
    let next = next["access_token"].as_str().unwrap();
    let next = signing.gateway.http().with_key(next);
    let mut open = open_stream(&next).await;
    client.end().await;
    let answer = client.http.get("/mcp", &[]).await;
    assert_eq!(answer.status(), 401, "they ended too early");
    let ends = async { while open.next().await.is_some() {} };
    let ended = timeout(Duration::from_millis(300), ends).await;
    assert!(ended.is_err(), "the next token is good for longer");
    signing.stop().await;
}
