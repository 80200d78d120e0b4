//! `reference/metrics.md`: what `/metrics` of a gateway has.

use std::{collections::BTreeSet, fmt::Write as _};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    markdown::wrap,
    support::{Place, bounded},
};

/// A server and one with replicas, so that nothing is left out.
const CONFIG: &str = r#"
    [governance]
    [servers.toolbox]
    transport = "builtin"
    [servers.library]
    replicas = [{ url = "http://127.0.0.1:1/mcp" }, { url = "http://127.0.0.1:2/mcp" }]
"#;
/// Labels whose values are always the same.
const WORDS: [&str; 3] = ["outcome", "result", "state"];

pub(crate) async fn page() -> String {
    let place = Place::new(CONFIG);
    let serving = place.serve().await;
    bounded(call(&serving.url)).await;
    let text = bounded(ask(&serving.url, "GET /metrics", "")).await;
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(help) = line.strip_prefix("# HELP ") else {
            continue;
        };
        let (name, help) = help.split_once(' ').expect("a metric has help");
        let kind = lines.next().and_then(|it| it.rsplit_once(' '));
        let (_, kind) = kind.expect("a metric has a type");
        let mut samples = Vec::new();
        while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
            samples.push(sample);
        }
        let labels = labels(&samples);
        let text = format!("({kind}{labels}): {help}.");
        out.push_str(&wrap(&format!("- `{name}` "), &text, 2));
    }
    out
}

/// The names of the labels of these samples, with their values where these are words.
fn labels(samples: &[&str]) -> String {
    let pairs = samples.iter().filter_map(|sample| {
        let (_, labels) = sample.split_once('{')?;
        Some(labels.rsplit_once('}')?.0.split("\","))
    });
    let pairs = pairs.flatten().filter_map(|label| label.split_once("=\""));
    let pairs: Vec<(&str, &str)> = pairs.collect();
    let names: BTreeSet<&str> = pairs.iter().map(|(name, _)| *name).collect();
    let mut out = String::new();
    for name in names.into_iter().filter(|name| *name != "le") {
        write!(out, ", `{name}`").expect("a String takes all");
        if WORDS.contains(&name) {
            let values = pairs.iter().filter(|(label, _)| *label == name);
            let values: BTreeSet<&str> = values.map(|(_, it)| it.trim_end_matches('"')).collect();
            let values: Vec<&str> = values.into_iter().collect();
            write!(out, ": {}", values.join(" / ")).expect("a String takes all");
        }
    }
    out
}

/// Calls a tool, so that there is something to count.
async fn call(url: &str) {
    let params = r#"{"name":"mcp_toolbox_uuid","arguments":{}}"#;
    let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    ask(url, "POST /mcp", &call).await;
}

async fn ask(url: &str, asked: &str, body: &str) -> String {
    let address = url.strip_prefix("http://").expect("it is plain HTTP");
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let length = body.len();
    let request = format!(
        "{asked} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("it has a body");
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    body.to_owned()
}
