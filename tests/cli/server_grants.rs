//! Grants towards servers outlive what happens to gateways.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::LOCATION};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::sleep};
use tollbridge::{
    config::{self, ConfigFormat, ConfigText, Environment},
    names::ServerName,
    oauth_client::{GrantStorage, Grants, GrantsParts, SignInRequest},
    store::{GrantOwner, Store},
    task::Tasks,
};
use url::Url;

use crate::{
    issuer::{Behaviour, Issuer},
    support::{Place, bounded, send},
};

/// Starts a server with the tool `echo`, which takes tokens of `issuer` alone; its URL.
#[expect(
    clippy::disallowed_methods,
    reason = "the gateway's tasks are not the test's"
)]
async fn protected_server(issuer: &Issuer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let issuer = issuer.clone();
    drop(tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let issuer = issuer.clone();
            let service = service_fn(move |request| respond(issuer.clone(), request));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            drop(tokio::spawn(async move { drop(connection.await) }));
        }
    }));
    url
}

async fn respond(
    issuer: Issuer,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let reply = |status: u16, body: Value| {
        let response = Response::builder().status(status);
        let response = response.header("content-type", "application/json");
        Ok(response.body(Full::from(body.to_string())).unwrap())
    };
    let token = parts.headers.get("authorization");
    let token = token.and_then(|it| it.to_str().unwrap().strip_prefix("Bearer "));
    if token.and_then(|it| issuer.issued(it)).is_none() {
        return reply(401, Value::Null);
    }
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "s", "version": "1"},
        }),
        Some("tools/list") => {
            json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
        }
        Some("tools/call") => json!({"content": [{"type": "text", "text": "said"}]}),
        Some(_) if message.get("id").is_none() => return reply(202, Value::Null),
        Some(_) => {
            let error = json!({"code": -32601, "message": "unknown"});
            return reply(
                200,
                json!({"jsonrpc": "2.0", "id": message["id"], "error": error}),
            );
        }
        None => return reply(405, Value::Null),
    };
    reply(
        200,
        json!({"jsonrpc": "2.0", "id": message["id"], "result": result}),
    )
}

/// A place with the config of one server, to which somebody has signed in for all.
async fn signed_in(issuer: &Issuer) -> Place {
    let url = protected_server(issuer).await;
    let config = format!(
        "listen = '127.0.0.1:0'\n[servers.s]\nurl = '{url}'\nera = 'legacy'\n[servers.s.auth]\ntype = 'oauth2'\n\
         grant = 'authorization_code'\nper_user = false\nissuer = '{}'\n",
        issuer.url()
    );
    let place = Place::new(&config);
    sign_in(&place, config).await;
    place
}

/// Signs in to the server of `config` for all.
async fn sign_in(place: &Place, config: String) {
    let source = ConfigText {
        name: "tollbridge.toml".to_owned(),
        format: ConfigFormat::Toml,
        text: config,
        directory: place.file(""),
    };
    let loaded = config::parse([source], &Environment::default()).unwrap();
    let store = Store::open(&place.file("data")).await.unwrap();
    let storage = GrantStorage::new(store.clone(), &place.file("data"));
    let grants = Grants::new(GrantsParts::new(Some(storage), Tasks::new()));
    grants.configure(&loaded.config);
    let server = ServerName::parse("s").unwrap();
    let request = SignInRequest {
        selects_account: false,
        redirect_uri: Url::parse("http://127.0.0.1:1/oauth/callback").unwrap(),
        browser: "a browser".to_owned(),
        client_metadata: None,
    };
    let url = grants
        .begin(&server, GrantOwner::Gateway, &request)
        .await
        .unwrap();
    let browser = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let answer = browser.get(url.as_str().parse().unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::FOUND);
    let back = Url::parse(answer.headers()[LOCATION].to_str().unwrap()).unwrap();
    grants
        .finish(back.query().unwrap(), "a browser")
        .await
        .unwrap();
    store.close().await;
}

/// The refresh tokens that were sent, in order.
fn spent(issuer: &Issuer) -> Vec<String> {
    let requests = issuer.requests_for("/token");
    let sent = requests.iter().filter_map(|it| it.param("refresh_token"));
    sent.map(str::to_owned).collect()
}

async fn call(place: &Place) {
    let called = place.run(&["call", "mcp_s_echo"]).await;
    assert_eq!(called.code, Some(0), "{called:?}");
    assert!(called.stdout.contains("said"), "{called:?}");
}

/// The issuer has rotated, and the gateway dies before it has written that down.
#[tokio::test]
async fn a_gateway_that_is_killed_after_a_rotation_goes_on() {
    let issuer = Issuer::start(Behaviour {
        lifetime: 2,
        rotates_with_grace: true,
        ..Behaviour::default()
    });
    let issuer = issuer.await;
    let place = signed_in(&issuer).await;
    sleep(Duration::from_secs(3)).await;
    issuer.change(|it| it.loses_token_answers = true);
    let serving = place.serve().await;
    bounded(async {
        while spent(&issuer).is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    send(&serving.child, Signal::KILL);
    drop(serving);
    issuer.change(|it| {
        it.loses_token_answers = false;
        it.lifetime = 3600;
    });
    let serving = place.serve().await;
    call(&place).await;
    serving.end(Signal::TERM).await;
}

/// With another key nothing is opened or changed, until somebody says that the grants are given up.
#[tokio::test]
async fn grants_are_given_up_with_the_key_that_is_lost() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let place = signed_in(&issuer).await;
    call(&place).await;
    std::fs::write(place.file("data/secret.key"), [7; 32]).unwrap();
    let refused = place.run(&["call", "mcp_s_echo"]).await;
    assert_ne!(refused.code, Some(0), "{refused:?}");
    let serving = place.serve().await;
    let status = serving.mcp().replace("/mcp", "/status");
    let browser = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    bounded(async {
        loop {
            let answer = browser.get(status.parse().unwrap()).await.unwrap();
            let said = answer.into_body().collect().await.unwrap().to_bytes();
            if String::from_utf8_lossy(&said).contains("`tollbridge logout --all`") {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let given_up = place.run(&["logout", "--all"]).await;
    assert_eq!(given_up.code, Some(0), "{given_up:?}");
    assert_eq!(
        given_up.stdout,
        "1 grant forgotten; people have to sign in again\n"
    );
    let events = place.run(&["audit", "events", "--json"]).await;
    let event = "forgotten, of the gateway";
    assert!(events.stdout.contains(event), "{events:?}");
    serving.end(Signal::TERM).await;
    let config = std::fs::read_to_string(place.file("tollbridge.toml")).unwrap();
    sign_in(&place, config).await;
    call(&place).await;
    let neither = place.run(&["logout"]).await;
    assert_eq!(neither.code, Some(2), "{neither:?}");
}

/// Tokens end all the time, and two gateways of one data directory need them.
#[tokio::test]
async fn two_gateways_never_both_spend_a_refresh_token() {
    let issuer = Issuer::start(Behaviour {
        lifetime: 2,
        ..Behaviour::default()
    });
    let issuer = issuer.await;
    let place = signed_in(&issuer).await;
    let (one, two) = (place.serve().await, place.serve().await);
    for _ in 0..4 {
        let both = [one.mcp(), two.mcp()];
        for url in &both {
            let called = place.run(&["call", "--url", url, "mcp_s_echo"]).await;
            assert_eq!(called.code, Some(0), "{called:?}");
        }
        sleep(Duration::from_secs(2)).await;
    }
    let spent = spent(&issuer);
    assert!(spent.len() >= 2, "{}", spent.len());
    let unique: HashSet<_> = spent.iter().collect();
    assert_eq!(unique.len(), spent.len());
    one.end(Signal::TERM).await;
    two.end(Signal::TERM).await;
}
