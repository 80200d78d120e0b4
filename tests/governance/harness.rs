//! Gateways from a few lines of terms, servers that remember what reached them, and the audit as it
//! stands in the files.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tollbridge::audit::{Query, Record, RecordFilter};

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport,
    client::Who,
    http::Http,
    value,
    wire::{Envelope, request},
};

/// Where terms are written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Level {
    Agent,
    Default,
    Profile,
    Server,
}

impl Level {
    /// The levels that have all terms.
    pub(crate) const TERMS: [Self; 3] = [Self::Agent, Self::Default, Self::Profile];
    pub(crate) const ALL: [Self; 4] = [Self::Agent, Self::Default, Self::Profile, Self::Server];

    /// The route on which terms of this level hold.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Agent | Self::Default | Self::Server => "/mcp",
            Self::Profile => "/mcp/profiles/p",
        }
    }
}

/// A server that answers by itself and remembers what reached it.
pub(crate) struct Server {
    pub(crate) backend: Backend,
    seen: Arc<Mutex<Vec<Envelope>>>,
    listened: Arc<Mutex<Vec<Envelope>>>,
    answers: Arc<Mutex<HashMap<String, Auto>>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::over(Transport::Http, Era::Legacy).await
    }

    pub(crate) async fn over(transport: Transport, era: Era) -> Self {
        let backend = Backend::start(transport, era).await;
        let (seen, answers) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(Mutex::new(HashMap::<String, Auto>::new())),
        );
        let listened = Arc::new(Mutex::new(Vec::new()));
        let listens = Arc::clone(&listened);
        let (log, known) = (Arc::clone(&seen), Arc::clone(&answers));
        backend.on_request(move |envelope| {
            let method = envelope.method();
            if method == "subscriptions/listen" && !is_about_lists(envelope) {
                listens.lock().unwrap().push(envelope.clone());
            }
            let known = known.lock().unwrap().get(method).cloned();
            if is_housekeeping(method) {
                return known;
            }
            log.lock().unwrap().push(envelope.clone());
            Some(known.unwrap_or_else(|| usual(method, era)))
        });
        Self {
            backend,
            seen,
            listened,
            answers,
        }
    }

    /// Answers `method` with this result from now on.
    pub(crate) fn answers(&self, method: &str, result: &str) -> &Self {
        self.does(method, Auto::Result(result.to_owned()))
    }

    /// Does this with requests of `method` from now on.
    pub(crate) fn does(&self, method: &str, auto: Auto) -> &Self {
        self.answers.lock().unwrap().insert(method.to_owned(), auto);
        self
    }

    /// What reached it, but for what a gateway asks by itself.
    pub(crate) fn seen(&self) -> Vec<Envelope> {
        self.seen.lock().unwrap().clone()
    }

    /// The listen streams for clients that it was asked for.
    pub(crate) fn listened(&self) -> Vec<Envelope> {
        self.listened.lock().unwrap().clone()
    }

    /// The arguments of the last call that reached it.
    pub(crate) fn last_arguments(&self) -> Value {
        let seen = self.seen();
        let last = seen.last().unwrap_or_else(|| panic!("nothing came"));
        value(&last.param(&["arguments"]).unwrap())
    }
}

/// Whether a listen stream is the gateway's own.
fn is_about_lists(listen: &Envelope) -> bool {
    let params = listen.params.as_deref().unwrap_or_default();
    params.contains("ListChanged") && !params.contains("resourceSubscriptions")
}

/// What a gateway asks by itself.
fn is_housekeeping(method: &str) -> bool {
    matches!(
        method,
        "initialize"
            | "server/discover"
            | "ping"
            | "logging/setLevel"
            | "subscriptions/listen"
            | "tools/list"
            | "prompts/list"
            | "resources/list"
            | "resources/templates/list"
    )
}

fn usual(method: &str, era: Era) -> Auto {
    let members = match method {
        "tools/call" => r#""content":[{"type":"text","text":"fine"}]"#,
        "prompts/get" => r#""messages":[]"#,
        "resources/read" => r#""contents":[]"#,
        "completion/complete" => r#""completion":{"values":[]}"#,
        _ => "",
    };
    let marker = match (era, members) {
        (Era::Legacy, _) => "",
        (Era::Modern, "") => r#""resultType":"complete""#,
        (Era::Modern, _) => r#","resultType":"complete""#,
    };
    Auto::Result(format!("{{{members}{marker}}}"))
}

/// Agents of the tests, each with its key.
pub(crate) const ANN: Who<'static> = Who {
    name: "ann",
    key: "tbk_ann_5d0c1e7f9a3b48d2a6c4e8f0b1d3a5c7",
};
pub(crate) const BOB: Who<'static> = Who {
    name: "bob",
    key: "tbk_bob_9f8e7d6c5b4a39281706f5e4d3c2b1a0",
};

/// Settings with keys for the agents they have; where there are some, who has none is refused.
pub(crate) fn keyed(settings: &str) -> String {
    let mut keyed = settings.to_owned();
    let mut is_keyed = false;
    for who in [ANN, BOB] {
        let head = format!("[agents.{}]\n", who.name);
        is_keyed |= keyed.contains(&head);
        let key = format!("{head}keys = [\"{}\"]\n", who.key);
        keyed = keyed.replace(&head, &key);
    }
    if is_keyed && !keyed.contains("auth =") {
        let (head, auth) = ("[governance]\n", "[governance]\nauth = \"keys\"\n");
        assert!(keyed.contains(head), "{settings}");
        keyed = keyed.replace(head, auth);
        let governance = keyed.split(auth).nth(1).unwrap();
        if !governance.contains("policy =") {
            let open = format!("{auth}policy = {{ mode = \"all\" }}\n");
            keyed = keyed.replace(auth, &open);
        }
    }
    keyed
}

/// A gateway with one server `x`.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) gateway: Gateway,
    pub(crate) path: &'static str,
    /// Who asks, where agents have keys.
    pub(crate) who: Option<Who<'static>>,
}

impl Stage {
    /// With these settings, and these keys of the server.
    pub(crate) async fn new(settings: &str, keys: &str) -> Self {
        Self::with(Server::start().await, settings, keys).await
    }

    /// In front of this server.
    pub(crate) async fn with(server: Server, settings: &str, keys: &str) -> Self {
        let settings = keyed(settings);
        let gateway = TestGateway::new()
            .setting(&settings)
            .server_with("x", &server.backend, keys)
            .start()
            .await;
        Self {
            server,
            gateway,
            path: "/mcp",
            who: settings.contains(ANN.key).then_some(ANN),
        }
    }

    /// How the gateway introduces itself on `path` to a client on each front.
    pub(crate) async fn introductions(&self, who: Who<'_>, path: &str) -> Vec<(Front, Value)> {
        let mut all = Vec::new();
        for front in Front::ALL {
            let client = self.gateway.client_of(who, front, path).await;
            if let Some(introduced) = client.introduced.get() {
                all.push((front, introduced.clone()));
                continue;
            }
            client.ask("1", "server/discover", "").await;
            all.push((front, client.answer("1").await.value()));
        }
        all
    }

    /// With these lines of terms at one level. Calls are free unless the lines say otherwise.
    pub(crate) async fn at(level: Level, lines: &str) -> Self {
        Self::at_in_front_of(Server::start().await, level, lines).await
    }

    pub(crate) async fn at_in_front_of(server: Server, level: Level, lines: &str) -> Self {
        let price = if lines.contains("budget") {
            "0.015"
        } else {
            "0"
        };
        let (settings, keys) = match level {
            Level::Agent => (format!("[agents.ann]\n{lines}\n"), ""),
            Level::Default => (String::new(), ""),
            Level::Profile => (format!("[profiles.p]\n{lines}\n"), ""),
            Level::Server => (String::new(), lines),
        };
        let default = if level == Level::Default { lines } else { "" };
        let settings = format!("{settings}[governance]\nprice = \"{price}\"\n{default}\n");
        let stage = Self::with(server, &settings, keys).await;
        Self {
            path: level.path(),
            ..stage
        }
    }

    /// Asks on the route of the stage, without a session.
    pub(crate) async fn ask(&self, method: &str, params: &str) -> Envelope {
        ask_on(&self.http(), self.path, method, params).await
    }

    /// What sends as the agent of the stage.
    pub(crate) fn http(&self) -> Http {
        match self.who {
            Some(who) => self.gateway.http().with_key(who.key),
            None => self.gateway.http(),
        }
    }

    /// A client of the agent of the stage.
    pub(crate) async fn client(&self, front: Front) -> Client {
        match self.who {
            Some(who) => self.gateway.client_of(who, front, self.path).await,
            None => self.gateway.client(front, self.path, "{}").await,
        }
    }

    /// Calls a tool by its exposed name.
    pub(crate) async fn call_tool(&self, tool: &str, arguments: &str) -> Envelope {
        let params = format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#);
        self.ask("tools/call", &params).await
    }

    /// Calls `echo`.
    pub(crate) async fn call(&self, arguments: &str) -> Envelope {
        self.call_tool("mcp_x_echo", arguments).await
    }

    /// Calls `echo`, which must succeed.
    pub(crate) async fn must(&self, arguments: &str) -> Value {
        self.call(arguments).await.value()
    }

    /// Calls `echo`, which must be refused; the code of the refusal.
    pub(crate) async fn must_not(&self, arguments: &str) -> String {
        code_of(&self.call(arguments).await)
    }

    /// The records of the audit, oldest first.
    pub(crate) fn records(&self) -> Vec<Record<'static>> {
        records(&self.gateway.config.data_dir)
    }

    /// The youngest record.
    pub(crate) fn last(&self) -> Record<'static> {
        let last = self.records().pop();
        last.unwrap_or_else(|| panic!("there is no record"))
    }

    /// What `/status` counts of governance.
    pub(crate) fn counts(&self) -> Value {
        let status = self.gateway.running.core().proxy.governance().counts();
        serde_json::to_value(status).unwrap()
    }

    pub(crate) async fn stop(self) {
        self.gateway.stop().await;
    }
}

/// The discriminator of a refusal.
pub(crate) fn code_of(answer: &Envelope) -> String {
    let failed = answer.failure();
    failed["data"]["code"]
        .as_str()
        .unwrap_or_else(|| panic!("no refusal: {failed}"))
        .to_owned()
}

/// Asks without a session.
pub(crate) async fn ask_on(http: &Http, path: &str, method: &str, params: &str) -> Envelope {
    let answer = http.post(path, request("1", method, params)).await;
    Envelope::of(&answer.text().await)
}

/// Every record in a data directory, oldest first.
pub(crate) fn records(data_dir: &Path) -> Vec<Record<'static>> {
    let query = Query::new(&data_dir.join("audit"), RecordFilter::default()).unwrap();
    query.map(|found| found.unwrap().record).collect()
}

/// Calls a tool over a client of any kind, with these arguments.
pub(crate) async fn call_over(client: &Client, id: &str, tool: &str, arguments: &str) -> Envelope {
    let members = format!(r#""name":"{tool}","arguments":{arguments}"#);
    client.ask(id, "tools/call", &members).await;
    client.answer(id).await
}

/// The HTTP status of the answer to a call, where there is one.
pub(crate) async fn status_of_call(client: &Client, tool: &str, arguments: &str) -> Option<u16> {
    let members = format!(r#""name":"{tool}","arguments":{arguments}"#);
    let text = request("77", "tools/call", &client.params(&members, ""));
    let headers = match client.front {
        Front::Modern => crate::support::client::modern_headers(&Envelope::of(&text)),
        Front::Streamable => vec![
            ("mcp-session-id".to_owned(), client.session.clone().unwrap()),
            ("mcp-protocol-version".to_owned(), "2025-11-25".to_owned()),
        ],
        Front::Sse | Front::Stdio | Front::StdioModern => return None,
    };
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let answer = client.http.post_with(&client.path, &headers, text).await;
    Some(answer.status().as_u16())
}

/// A result with this text.
pub(crate) fn text_result(text: &str) -> String {
    json!({ "content": [{ "type": "text", "text": text }] }).to_string()
}
