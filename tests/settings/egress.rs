//! Requests to URLs that others name.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tollbridge::{
    config::ServerEgress,
    egress::{EgressClient, EgressError},
};
use url::Url;

use crate::{binary::Place, harness::parse, support::wire::spawn};

/// What a client by a config with these keys of `egress` reads from `server`, in bytes.
async fn fetch(keys: &str, server: &Url) -> Result<usize, EgressError> {
    let config = parse(&format!("[egress]\n{keys}")).unwrap();
    let client = EgressClient::new(&config.egress, []).unwrap();
    client.get(server).await.map(|it| it.body().len())
}

/// Answers each connection with so many bytes, or never.
async fn answering(answer: Option<usize>) -> Url {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    spawn(async move {
        let mut silent = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let Some(size) = answer else {
                silent.push(stream);
                continue;
            };
            stream.read_u8().await.unwrap();
            let body = "a".repeat(size);
            let said = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n{body}");
            stream.write_all(said.as_bytes()).await.unwrap();
        }
    });
    url.parse().unwrap()
}

#[tokio::test]
pub(crate) async fn allow() {
    let server = answering(Some(10)).await;
    let refused = fetch("allow = []", &server).await.unwrap_err();
    assert!(matches!(refused, EgressError::Refused { .. }), "{refused}");
    assert_eq!(fetch("allow = ['127.0.0.0/8']", &server).await.unwrap(), 10);
    let wrong = parse("[egress]\nallow = ['10.0.0.0/33']").unwrap_err();
    assert!(wrong.contains("`10.0.0.0/33` is not a place"), "{wrong}");
    for (scheme, transport) in [
        ("http", "http"),
        ("https", "http"),
        ("http", "sse"),
        ("ws", "websocket"),
    ] {
        let server = format!(
            "[servers.a]\nurl = '{scheme}://169.254.169.254:1/'\ntransport = '{transport}'\n\
             connect_timeout = '1s'\nproxy = 'off'"
        );
        let place = Place::new(&server);
        let refused = place.run(&["check", "--connect"]).await.all();
        let expect = "169.254.169.254, which is link-local";
        assert!(refused.contains(expect), "{scheme}: {refused}");
        let listed = format!("egress.allow = ['169.254.0.0/16']\n{server}");
        place.write_private("tollbridge.toml", &listed);
        let tried = place.run(&["check", "--connect"]).await.all();
        assert!(!tried.contains(expect), "{scheme}: {tried}");
    }
}

/// A server whose URL somebody else wrote is at a public address, or listed.
#[tokio::test]
pub(crate) async fn server() {
    let expect = "localhost is at ";
    let url = "url = 'http://localhost:1/', connect_timeout = '1s', proxy = 'off'";
    let replica = url.replace(", connect_timeout = '1s'", "");
    for (egress, is_refused) in [("any", false), ("public", true)] {
        for server in [
            format!("a = {{ {url}, egress = '{egress}' }}"),
            format!("a = {{ replicas = [{{ {replica}, egress = '{egress}' }}] }}"),
        ] {
            let place = Place::new(&format!("[servers]\n{server}"));
            let tried = place.run(&["check", "--connect"]).await.all();
            assert_eq!(tried.contains(expect), is_refused, "{server}: {tried}");
            let listed = format!("egress.allow = ['localhost']\n[servers]\n{server}");
            place.write_private("tollbridge.toml", &listed);
            let tried = place.run(&["check", "--connect"]).await.all();
            assert!(!tried.contains(expect), "{server}: {tried}");
        }
    }
    // What its owner sets as a secret is no URL of an admin.
    let config = |name: &str| {
        let server = format!("[servers.\"{name}\"]\nurl = 'https://${{secret:host}}/'");
        let config = parse(&server).unwrap();
        config.servers[0].transport.remote().unwrap().egress
    };
    assert_eq!(config("a@science"), ServerEgress::Public);
    assert_eq!(config("a"), ServerEgress::Any);
}

#[tokio::test]
pub(crate) async fn response() {
    let keys = "allow = ['127.0.0.1']\nresponse = '1 KiB'";
    assert_eq!(
        fetch(keys, &answering(Some(1024)).await).await.unwrap(),
        1024
    );
    let large = fetch(keys, &answering(Some(1025)).await).await.unwrap_err();
    assert!(
        matches!(large, EgressError::TooLarge { limit: 1024, .. }),
        "{large}"
    );
    let keys = "allow = ['127.0.0.1']\nresponse = '2 KiB'";
    assert_eq!(
        fetch(keys, &answering(Some(1025)).await).await.unwrap(),
        1025
    );
}

#[tokio::test]
pub(crate) async fn timeout() {
    let server = answering(None).await;
    let slow = fetch("allow = ['127.0.0.1']\ntimeout = '50ms'", &server).await;
    let slow = slow.unwrap_err();
    assert!(matches!(slow, EgressError::Timeout { .. }), "{slow}");
}
