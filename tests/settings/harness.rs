//! Gateways from a few lines of config, and questions to them.

use std::{net::SocketAddr, sync::Arc};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tollbridge::{
    app::{self, ProcessContext},
    config::{self, Config, ConfigFormat, ConfigText, Environment},
};

use crate::support::{
    Auto, Backend, Era, Gateway, TestGateway, Transport, soon,
    wire::{Envelope, request},
};

/// The config of `text`, or what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Config, String> {
    let source = ConfigText {
        name: "test.toml".to_owned(),
        format: ConfigFormat::Toml,
        text: text.to_owned(),
        directory: ".".into(),
    };
    let loaded = config::parse([source], &Environment::default());
    loaded
        .map(|loaded| loaded.config)
        .map_err(|mistakes| mistakes.to_string())
}

/// A gateway of this config, or why there is none; it keeps state in a directory of its own unless
/// the config says where.
pub(crate) async fn try_launch(text: &str) -> Result<Gateway, String> {
    let mut config = parse(text)?;
    let data = Arc::new(tempfile::tempdir().unwrap());
    if !text.contains("data_dir") {
        config.data_dir = data.path().to_owned();
    }
    start(config, data).await
}

/// A gateway of this config in a file, so that the files that it names are read; its servers are
/// listed.
pub(crate) async fn of_file(text: &str) -> Gateway {
    let data = Arc::new(tempfile::tempdir().unwrap());
    let file = data.path().join("tollbridge.toml");
    std::fs::write(&file, format!("listen = \"127.0.0.1:0\"\n{text}")).unwrap();
    let loaded = config::load(&[file], &Environment::default());
    let mut config = loaded
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
        .config;
    config.data_dir = data.path().to_owned();
    let gateway = start(config, data).await.unwrap();
    gateway.settled().await;
    gateway
}

async fn start(config: Config, data: Arc<TempDir>) -> Result<Gateway, String> {
    let surroundings = ProcessContext {
        launcher: Some(env!("CARGO_BIN_EXE_tollbridge").into()),
    };
    let running = app::start(&config, surroundings)
        .await
        .map_err(|invalid| invalid.to_string())?;
    Ok(Gateway {
        running,
        config: Box::new(config),
        _data: data,
    })
}

/// A gateway of this config.
pub(crate) async fn launch(text: &str) -> Gateway {
    let launched = try_launch(text).await;
    launched.unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A legacy server over streamable HTTP.
pub(crate) async fn http_backend() -> Backend {
    Backend::start(Transport::Http, Era::Legacy).await
}

/// A gateway with `backend` as its server `one`, which has `keys` beside how it is reached.
pub(crate) async fn with_one(backend: &Backend, top: &str, keys: &str) -> Gateway {
    let gateway = TestGateway::new().setting(top);
    gateway.server_with("one", backend, keys).start().await
}

/// Lets the server answer every call with its `name`.
pub(crate) fn answer_with(backend: &Backend, name: &'static str) {
    backend.on_request(move |envelope| {
        let result = format!(r#"{{"content":[],"structuredContent":{{"name":"{name}"}}}}"#);
        (envelope.method() == "tools/call").then_some(Auto::Result(result))
    });
}

/// Sends a request without a session.
pub(crate) async fn ask(gateway: &Gateway, path: &str, method: &str, params: &str) -> Envelope {
    let http = gateway.http();
    let answer = http.post(path, request("1", method, params)).await;
    Envelope::of(&answer.text().await)
}

/// Calls a tool on the merged route and gives its structured content.
pub(crate) async fn call(gateway: &Gateway, tool: &str) -> Value {
    let params = format!(r#"{{"name":"{tool}"}}"#);
    let answer = ask(gateway, "/mcp", "tools/call", &params).await;
    answer.value()["structuredContent"].clone()
}

/// The items of a list, such as `tools`.
pub(crate) async fn items(gateway: &Gateway, path: &str, kind: &str) -> Vec<Value> {
    let answer = ask(gateway, path, &format!("{kind}/list"), "{}").await;
    answer.value()[kind].as_array().unwrap().clone()
}

/// The names of a list, or the URIs where there are some.
pub(crate) async fn names(gateway: &Gateway, path: &str, kind: &str) -> Vec<String> {
    let key = if kind == "resources" { "uri" } else { "name" };
    let items = items(gateway, path, kind).await;
    let name = |item: &Value| item[key].as_str().unwrap().to_owned();
    items.iter().map(name).collect()
}

/// A connection on which bytes go out and come in as they are.
pub(crate) struct Raw {
    stream: TcpStream,
    read: String,
}

impl Raw {
    pub(crate) async fn send(addr: SocketAddr, text: &str) -> Self {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let sent = soon("the gateway reads", stream.write_all(text.as_bytes()));
        // Who is refused early may be cut off while it still writes.
        drop(sent.await);
        let read = String::new();
        Self { stream, read }
    }

    /// Reads until `needle` has come `times` times; gives everything read so far.
    pub(crate) async fn until(&mut self, needle: &str, times: usize) -> &str {
        while self.read.matches(needle).count() < times {
            let mut part = [0; 4096];
            let what = format!("{needle:?} comes {times} times after {:?}", self.read);
            let count = soon(&what, self.stream.read(&mut part)).await.unwrap();
            assert!(count > 0, "the end comes before {what}");
            self.read
                .push_str(std::str::from_utf8(&part[..count]).unwrap());
        }
        &self.read
    }

    /// Everything that has come by now.
    pub(crate) fn so_far(&mut self) -> &str {
        let mut part = [0; 4096];
        while let Ok(count @ 1..) = self.stream.try_read(&mut part) {
            self.read
                .push_str(std::str::from_utf8(&part[..count]).unwrap());
        }
        &self.read
    }

    /// Sends more.
    pub(crate) async fn more(&mut self, text: &str) {
        let sent = soon("the gateway reads", self.stream.write_all(text.as_bytes()));
        drop(sent.await);
    }

    /// Whether the gateway closes the connection within such a time, whatever it still says.
    pub(crate) async fn is_closed_within(&mut self, time: std::time::Duration) -> bool {
        let mut part = [0; 4096];
        let closed = async { while let Ok(1..) = self.stream.read(&mut part).await {} };
        tokio::time::timeout(time, closed).await.is_ok()
    }

    /// The status of the first answer.
    pub(crate) async fn status(&mut self) -> u16 {
        let head = self.until("\r\n", 1).await;
        head.split(' ').nth(1).unwrap().parse().unwrap()
    }
}
