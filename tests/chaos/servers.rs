//! Twelve servers of all transports, which do what the arguments of a call say.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::sleep;

use crate::{
    seeded_random::Dice,
    support::{
        Auto, Backend, Era, Transport,
        backend::Asked,
        value,
        wire::{Envelope, spawn},
    },
};

const KINDS: [(Transport, Era); 12] = [
    (Transport::Stdio, Era::Legacy),
    (Transport::Stdio, Era::Legacy),
    (Transport::Stdio, Era::Legacy),
    (Transport::Stdio, Era::Modern),
    (Transport::Stdio, Era::Modern),
    (Transport::Http, Era::Legacy),
    (Transport::Http, Era::Modern),
    (Transport::HttpEvents, Era::Legacy),
    (Transport::HttpEvents, Era::Modern),
    (Transport::Sse, Era::Legacy),
    (Transport::WebSocket, Era::Legacy),
    (Transport::WebSocket, Era::Modern),
];
/// Bytes of a large result.
const LARGE: usize = 64 * 1024;

pub(crate) struct Servers {
    backends: Vec<Arc<Backend>>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Servers {
    pub(crate) async fn start() -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut backends = Vec::new();
        for (transport, era) in KINDS {
            let backend = Arc::new(Backend::start(transport, era).await);
            let log = Arc::clone(&seen);
            backend.on_request(move |request| at_once(request, &log));
            spawn(attend(Arc::clone(&backend)));
            backends.push(backend);
        }
        Self { backends, seen }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        (0..self.backends.len())
            .map(|at| format!("s{at}"))
            .collect()
    }

    pub(crate) fn config(&self) -> String {
        let sections = self
            .backends
            .iter()
            .zip(self.names())
            .map(|(backend, name)| {
                format!(
                    "[servers.{name}]\n{}timeout = \"2s\"\n\
                 retry = {{ base = \"20ms\", max = \"500ms\" }}\n",
                    backend.config()
                )
            });
        sections.collect()
    }

    /// The tokens of all calls that came.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// Breaks all connections of one server.
    pub(crate) fn break_one(&self, dice: &mut Dice) {
        dice.one_of(&self.backends).die();
    }

    /// Lets one server forget its sessions, as one does that was started anew.
    pub(crate) fn forget_one(&self, dice: &mut Dice) {
        dice.one_of(&self.backends).forget_sessions();
    }
}

fn at_once(request: &Envelope, log: &Mutex<Vec<String>>) -> Option<Auto> {
    if request.method() != "tools/call" {
        return None;
    }
    log.lock().unwrap().push(token(request));
    match &*mode(request) {
        "die" => Some(Auto::Die),
        "hang" => Some(Auto::Nothing),
        "fail" => Some(Auto::Error(r#"{"code":-32050,"message":"no"}"#.to_owned())),
        "slow" | "junk" => Some(Auto::Hand),
        "large" => Some(Auto::Result(result(request, &"x".repeat(LARGE)))),
        _ => Some(Auto::Result(result(request, ""))),
    }
}

/// Answers what is not answered at once.
async fn attend(backend: Arc<Backend>) {
    while let Some(asked) = backend.next().await {
        let is_pipe = matches!(
            backend.script.transport,
            Transport::Stdio | Transport::WebSocket | Transport::Sse
        );
        spawn(answer(asked, is_pipe));
    }
}

async fn answer(asked: Asked, is_pipe: bool) {
    if mode(&asked.envelope) == "junk" {
        // A message first, so that an answer over HTTP is a stream of events.
        asked
            .tell(
                "notifications/message",
                r#"{"level":"info","data":"junk follows"}"#,
            )
            .await;
        let junk = if is_pipe {
            "this is no message\n"
        } else {
            "data: this is no message\n\n"
        };
        asked.raw(junk).await;
    } else {
        sleep(Duration::from_millis(200)).await;
    }
    asked.answer(&result(&asked.envelope, "")).await;
}

fn result(request: &Envelope, padding: &str) -> String {
    let token = token(request);
    format!(
        r#"{{"content":[{{"type":"text","text":"{token}"}}],"padding":"{padding}","resultType":"complete"}}"#
    )
}

fn token(request: &Envelope) -> String {
    argument(request, "token")
}

fn mode(request: &Envelope) -> String {
    argument(request, "mode")
}

fn argument(request: &Envelope, name: &str) -> String {
    let text = request.param(&["arguments", name]).unwrap_or_default();
    value(&text).as_str().unwrap().to_owned()
}
