//! A whole gateway on a port of its own.

use std::{fmt::Write, net::SocketAddr, sync::Arc, time::Duration};

use serde_json::Value;
use tempfile::TempDir;
use tollbridge::{
    app::{self, ProcessContext, RunningGateway},
    config::{self, Config, ConfigFormat, ConfigText, Environment, Profile},
    names::{OwnerSet, ProfileName, Scope, ServerName},
};

use super::{
    backend::{Backend, Era, Transport},
    client::{Client, Front, Introduction, Who},
    http::Http,
    wire::request,
    wire::{PATIENCE, soon, value},
};

/// The config of a gateway to be.
pub(crate) struct TestGateway {
    top: String,
    servers: String,
    data: Arc<TempDir>,
    profiles: Vec<(ProfileName, Profile)>,
}

impl TestGateway {
    /// A gateway without servers.
    pub(crate) fn new() -> Self {
        Self {
            top: "listen = \"127.0.0.1:0\"\n".to_owned(),
            servers: String::new(),
            data: Arc::new(tempfile::tempdir().unwrap()),
            profiles: Vec::new(),
        }
    }

    /// Adds lines to the top of the config.
    pub(crate) fn setting(mut self, lines: &str) -> Self {
        self.top.push_str(lines);
        self.top.push('\n');
        self
    }

    /// Lets every step of governance have something to do, and everything pass as it is.
    pub(crate) fn governed(mut self) -> Self {
        self.servers.push_str(GOVERNED);
        self
    }

    /// Adds a scripted server.
    pub(crate) fn server(self, name: &str, backend: &Backend) -> Self {
        self.server_with(name, backend, "")
    }

    /// Adds a scripted server with further keys.
    pub(crate) fn server_with(self, name: &str, backend: &Backend, keys: &str) -> Self {
        self.section(name, &format!("{}{keys}\n", backend.config()))
    }

    /// Adds a server by its keys alone.
    pub(crate) fn section(mut self, name: &str, keys: &str) -> Self {
        write!(
            self.servers,
            "[servers.{name}]\n{keys}\n{}\n",
            if keys.contains("retry") { "" } else { RETRY }
        )
        .unwrap();
        self
    }

    /// Adds a profile.
    pub(crate) fn profile(mut self, name: &str, profile: Profile) -> Self {
        let name = ProfileName::parse(name).unwrap();
        self.profiles.push((name, profile));
        self
    }

    /// The text of the config, but for profiles. State is kept in a directory that lives as long as this and its
    /// gateways, unless a setting says where.
    pub(crate) fn text(&self) -> String {
        let data = if self.top.contains("data_dir") {
            String::new()
        } else {
            format!("data_dir = '{}'\n", self.data.path().display())
        };
        let drain = if self.top.contains("drain_timeout") {
            ""
        } else {
            "drain_timeout = \"0s\"\n"
        };
        format!("{data}{drain}{}{}", self.top, self.servers)
    }

    pub(crate) fn config(&self, text: &str) -> Config {
        let source = ConfigText {
            name: "test.toml".to_owned(),
            format: ConfigFormat::Toml,
            text: text.to_owned(),
            directory: ".".into(),
        };
        let mut config = match config::parse([source], &Environment::default()) {
            Ok(loaded) => loaded.config,
            Err(mistakes) => panic!("{mistakes}\n{text}"),
        };
        config.profiles.extend(self.profiles.iter().cloned());
        config
    }

    /// Starts it; its servers may still be connecting.
    pub(crate) async fn launch(&self) -> Gateway {
        self.launch_as(&self.text()).await
    }

    /// Starts it with another text of the config.
    pub(crate) async fn launch_as(&self, text: &str) -> Gateway {
        let config = Box::new(self.config(text));
        let surroundings = ProcessContext {
            launcher: Some(env!("CARGO_BIN_EXE_tollbridge").into()),
        };
        let running = Box::pin(app::start(&config, surroundings)).await.unwrap();
        Gateway {
            running,
            config,
            _data: Arc::clone(&self.data),
        }
    }

    /// Starts it and waits until every server is listed or has failed.
    pub(crate) async fn start(&self) -> Gateway {
        let gateway = self.launch().await;
        gateway.settled().await;
        gateway
    }
}

/// Rules that refuse nothing and change nothing.
const GOVERNED: &str = include_str!("../../suites/governed.toml");

/// Soon enough for a test that waits for a reconnection.
const RETRY: &str = "retry = { base = \"20ms\", max = \"200ms\", jitter = 0.0 }";

/// A running gateway.
pub(crate) struct Gateway {
    pub(crate) running: RunningGateway,
    pub(crate) config: Box<Config>,
    /// Where it keeps state, when the config does not say.
    pub(crate) _data: Arc<TempDir>,
}

impl Gateway {
    /// One in front of a scripted server `x` with further keys, under rules that let everything pass.
    pub(crate) async fn governed(transport: Transport, era: Era, keys: &str) -> (Backend, Self) {
        let backend = Backend::start(transport, era).await;
        let gateway = TestGateway::new().governed();
        let gateway = gateway.server_with("x", &backend, keys).start().await;
        (backend, gateway)
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        let address = self.running.listen.address();
        address.expect("it listens on an address")
    }

    /// Waits until every server is listed or has failed.
    pub(crate) async fn settled(&self) {
        let proxy = &self.running.core().proxy;
        let board = proxy.catalog_store();
        let settled = async {
            for backend in proxy.backends().all() {
                let scope = Scope::Server(backend.name.clone());
                board
                    .wait_ready((&OwnerSet::default(), &scope), PATIENCE)
                    .await;
            }
        };
        soon("the catalog settles", settled).await;
        assert!(board.is_ready());
    }

    /// Waits until `listed` holds of the exposed names of the merged tool list.
    pub(crate) async fn tools_until(&self, listed: impl Fn(&[String]) -> bool) {
        let mut changes = self.running.core().proxy.catalog_store().changes();
        let wait = async {
            loop {
                changes.mark_unchanged();
                if listed(&self.tools().await) {
                    return;
                }
                changes.changed().await.unwrap();
            }
        };
        soon("the tools are listed", wait).await;
    }

    /// The exposed names of the merged tool list.
    pub(crate) async fn tools(&self) -> Vec<String> {
        let answer = self
            .http()
            .post("/mcp", r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#)
            .await;
        let answer = value(&answer.text().await);
        let tools = answer["result"]["tools"].as_array().unwrap();
        let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
        tools.iter().map(name).collect()
    }

    /// What `/status` says of one server.
    pub(crate) async fn status(&self, server: &str) -> Value {
        let answer = self.http().get("/status", &[]).await;
        let status = value(&answer.text().await);
        let servers = status["servers"].as_array().unwrap();
        let found = servers.iter().find(|found| found["name"] == server);
        found.unwrap_or_else(|| panic!("{status}")).clone()
    }

    /// Waits until `reached` holds of what `/status` says of one server.
    pub(crate) async fn status_until(
        &self,
        server: &str,
        reached: impl Fn(&Value) -> bool,
    ) -> Value {
        let name = ServerName::parse(server).unwrap();
        let backend = self.running.core().proxy.backends().get(&name).unwrap();
        let mut standing = backend.watch_catalog();
        let wait = async {
            loop {
                let status = self.status(server).await;
                if reached(&status) {
                    return status;
                }
                // What a status says beside the state has no event of its own.
                drop(tokio::time::timeout(LOOK, standing.changed()).await);
            }
        };
        soon(&format!("the status of {server}"), wait).await
    }

    pub(crate) fn http(&self) -> Http {
        Http::new(self.addr())
    }

    /// A client on the route `path`, past its handshake, that declares `capabilities`.
    pub(crate) async fn client(&self, front: Front, path: &str, capabilities: &str) -> Client {
        let introduction = Introduction {
            revision: "2025-11-25",
            capabilities,
            who: None,
        };
        Client::open(self, front, path, introduction).await
    }

    /// Like [`Gateway::client`], of an older revision.
    #[allow(dead_code, reason = "only tests of revisions need it")]
    pub(crate) async fn client_speaking(
        &self,
        revision: &'static str,
        front: Front,
        path: &str,
    ) -> Client {
        let introduction = Introduction {
            revision,
            capabilities: "{}",
            who: None,
        };
        Client::open(self, front, path, introduction).await
    }

    /// Like [`Gateway::client`], of an agent that has shown its key.
    #[allow(dead_code, reason = "only tests of governance show keys")]
    pub(crate) async fn client_of(&self, who: Who<'_>, front: Front, path: &str) -> Client {
        let introduction = Introduction {
            revision: "2025-11-25",
            capabilities: "{}",
            who: Some(who),
        };
        Client::open(self, front, path, introduction).await
    }

    pub(crate) async fn stop(self) {
        soon("the gateway stops", self.running.stop()).await;
    }
}

/// Pause between looks at what has no event of its own.
const LOOK: Duration = Duration::from_millis(20);

/// A gateway before one legacy server, `x`, which is a process.
pub(crate) async fn with_one_server() -> (Gateway, Backend) {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    (gateway, backend)
}

pub(crate) async fn initialize(gateway: &Gateway, revision: &str) -> String {
    let params = format!(
        r#"{{"protocolVersion":"{revision}","capabilities":{{}},"clientInfo":{{"name":"t","version":"1"}}}}"#
    );
    let answer = gateway
        .http()
        .post("/mcp", request("1", "initialize", &params))
        .await;
    let session = answer.header("mcp-session-id").unwrap().to_owned();
    let result = value(&answer.text().await);
    assert_eq!(result["result"]["protocolVersion"], revision);
    session
}
