//! A gateway that is managed over HTTP.

use std::{fs, path::PathBuf, time::Duration};

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::Value;
use tempfile::TempDir;
use tollbridge::{
    app::{self, ConfigSource, ProcessContext, RunningGateway},
    config::{self, Environment},
    config_change::{ChangedStoreReader, EntryChange},
};

/// The key of the agent `admin` of the file.
pub(crate) const ADMIN_KEY: &str = "tb_Qm7xN2vKp9sLw4TzR8bYh3CdFj6GaEu5";
/// The key of the agent `reader` of the file, which has no role.
pub(crate) const AGENT_KEY: &str = "tb_Wk4nB8cXz2mVq7RtY5pLs9HgDf3JaKe6";

/// A gateway whose file has two agents and the toolbox, and what the test adds.
pub(crate) struct TestApi {
    dir: TempDir,
    running: RunningGateway,
    client: reqwest::Client,
}

/// An answer of the API.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) etag: Option<String>,
    pub(crate) body: Value,
}

impl TestApi {
    /// Starts one with `more` in its file.
    pub(crate) async fn start(more: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let text = format!(
            "listen = \"127.0.0.1:0\"\ndata_dir = \"{}\"\n[agents.admin]\nadmin = true\nkeys = [\"{ADMIN_KEY}\"]\n\
             [agents.reader]\nkeys = [\"{AGENT_KEY}\"]\n[servers.own]\ntransport = \"builtin\"\n{more}",
            dir.path().join("data").display()
        );
        let text = if more.contains("[governance]") {
            text
        } else {
            format!("{text}\n[governance]\nauth = \"keys\"\npolicy = {{ mode = \"all\" }}\n")
        };
        fs::write(dir.path().join("tollbridge.toml"), text).unwrap();
        Self::run(dir).await
    }

    /// Starts one whose file `text` says, in which `{data_dir}` is where it keeps its state.
    pub(crate) async fn start_file(text: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let data_dir = dir.path().join("data");
        let text = text.replace("{data_dir}", data_dir.to_str().unwrap());
        fs::write(dir.path().join("tollbridge.toml"), text).unwrap();
        Self::run(dir).await
    }

    /// The base URL of its paths.
    pub(crate) fn url(&self) -> &str {
        &self.running.url
    }

    /// Where it keeps its state.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    async fn run(dir: TempDir) -> Self {
        let files = vec![dir.path().join("tollbridge.toml")];
        let config = load(&files, None).unwrap();
        let context = ProcessContext {
            launcher: Some(env!("CARGO_BIN_EXE_tollbridge").into()),
        };
        let running = app::start(&config.config, context).await.unwrap();
        let source = ConfigSource::new(files.clone(), move |change| load(&files, change));
        running.core().follow_config(source);
        // The library has no choice of its own.
        drop(rustls::crypto::ring::default_provider().install_default());
        Self {
            dir,
            running,
            client: reqwest::Client::new(),
        }
    }

    /// Stops the gateway and starts another on the same files and the same store.
    pub(crate) async fn restart(self) -> Self {
        self.running.stop().await;
        Self::run(self.dir).await
    }

    pub(crate) async fn stop(self) {
        self.running.stop().await;
    }

    /// A request to a path below `/api/v1`, without a key.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}/api/v1{path}", self.running.url);
        self.client.request(method, url)
    }

    /// A request to a path of the gateway.
    pub(crate) fn request_at(&self, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, format!("{}{path}", self.running.url))
    }

    /// Sends `body` as the admin.
    pub(crate) async fn send(&self, method: Method, path: &str, body: &Value) -> Answer {
        let request = self.request(method, path).bearer_auth(ADMIN_KEY);
        answer(request.json(body)).await
    }

    /// The items at `path` once something is listed there.
    pub(crate) async fn items(&self, path: &str) -> Vec<Value> {
        for _ in 0..200 {
            let listed = self.get(path).await;
            assert_eq!(listed.status, StatusCode::OK, "{listed:?}");
            let items = listed.body["items"].as_array().unwrap().clone();
            if !items.is_empty() {
                return items;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("nothing is listed")
    }

    /// Changes the file, as its operator would.
    pub(crate) fn write_file(&self, text: &str) {
        fs::write(self.dir.path().join("tollbridge.toml"), text).unwrap();
    }

    /// What the file says.
    pub(crate) fn file(&self) -> String {
        fs::read_to_string(self.dir.path().join("tollbridge.toml")).unwrap()
    }

    /// Reads `path` as the admin.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        answer(self.request(Method::GET, path).bearer_auth(ADMIN_KEY)).await
    }
}

fn load(
    files: &[PathBuf],
    change: Option<EntryChange>,
) -> Result<config::LoadedConfig, config::ConfigErrors> {
    let environment = Environment::from_iter([("HOME", "/nowhere"), ("PLANTED", "of-environment")]);
    config::load(files, &environment.with_store(ChangedStoreReader(change)))
}

/// Sends a request, and reads what comes back.
pub(crate) async fn answer(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let etag = response.headers().get("etag");
    Answer {
        status: response.status(),
        etag: etag.map(|etag| etag.to_str().unwrap().to_owned()),
        body: response.json().await.unwrap_or_default(),
    }
}
