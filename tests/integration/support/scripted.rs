//! A legacy server over HTTP whose responses tests write byte by byte.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::wire::Envelope;

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) verb: String,
    pub(crate) target: String,
    /// The lines of the head after the first, in lower case but for their values.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The message in its body.
    pub(crate) fn message(&self) -> Envelope {
        Envelope::of(&self.body)
    }

    /// The response with this result to it.
    pub(crate) fn result(&self, result: &str) -> String {
        let id = self.message().id.unwrap_or_default();
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
    }

    /// Whether it calls this tool.
    pub(crate) fn calls(&self, tool: &str) -> bool {
        self.body.contains("\"tools/call\"") && self.body.contains(&format!("\"{tool}\""))
    }
}

/// An HTTP response.
pub(crate) fn response(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// A response that is JSON.
pub(crate) fn json(body: impl AsRef<[u8]>) -> Vec<u8> {
    response("200 OK", "content-type: application/json\r\n", body)
}

/// See the module.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    _serving: JoinSet<()>,
}

impl Scripted {
    /// A server that answers as `respond` says, and where that says nothing as a server with the tool
    /// `echo` does.
    pub(crate) async fn start(
        respond: impl Fn(&Received) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let (respond, seen) = (Arc::new(respond), Arc::clone(&received));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (respond, seen) = (Arc::clone(&respond), Arc::clone(&seen));
                connections.spawn(serve(stream, move |request: Received| {
                    let response = respond(&request).unwrap_or_else(|| usual(&request));
                    seen.lock().unwrap().push(request);
                    response
                }));
            }
        });
        Self {
            address,
            received,
            _serving: serving,
        }
    }

    /// The keys of a config that lead to it.
    pub(crate) fn config(&self) -> String {
        format!("url = \"http://{}/mcp\"\n", self.address)
    }

    /// All requests so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, mut respond: impl FnMut(Received) -> Vec<u8>) {
    let mut read = Vec::new();
    loop {
        while let Some((request, length)) = parse(&read) {
            read.drain(..length);
            if stream.write_all(&respond(request)).await.is_err() {
                return;
            }
        }
        if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
            return;
        }
    }
}

/// The first request of `read`, and how long it is.
fn parse(read: &[u8]) -> Option<(Received, usize)> {
    let end = read.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let head = String::from_utf8(read[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ').map(str::to_owned);
    let (verb, target) = (first.next()?, first.next()?);
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    let mut request = Received {
        verb,
        target,
        headers: headers.collect(),
        body: String::new(),
    };
    let length = request.header("content-length");
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    let body = read.get(end..end + length)?;
    request.body = String::from_utf8(body.to_vec()).unwrap();
    Some((request, end + length))
}

fn usual(request: &Received) -> Vec<u8> {
    if request.verb != "POST" {
        return response("405 Method Not Allowed", "", "");
    }
    let message = request.message();
    if message.id.is_none() {
        return response("202 Accepted", "", "");
    }
    let result = match message.method() {
        "initialize" => {
            r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#
        }
        "tools/list" => r#"{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}"#,
        "tools/call" => r#"{"content":[]}"#,
        "ping" => "{}",
        _ => {
            let id = message.id.unwrap_or_default();
            let error = r#"{"code":-32601,"message":"no such method"}"#;
            return json(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#));
        }
    };
    json(request.result(result))
}
