//! The server at the end of every path: one tool that says what it was told, as cheaply as it can.
//!
//! Children of the benchmark and of the gateway run it. Its own cost is on every path alike, so it
//! must be small and must not grow with what came before: no state, one thread. It accepts what a
//! client of its era sends and gives a session id, which it never checks.

use std::{
    borrow::Cow,
    io::{BufRead, BufReader, Write},
    net::Ipv4Addr,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    Fault,
    call::{Era, SESSION_ID},
};

/// The one tool.
pub(crate) const TOOL: &str = "echo";

const TOOLS: &str = r#""tools":[{"name":"echo","description":"Says what it was told.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}]"#;
const LEGACY_HELLO: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1.0.0"}}"#;
const MODERN_HELLO: &str = r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":3600000,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"echo","version":"1.0.0"}}}"#;

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    arguments: Option<Arguments<'a>>,
}

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    text: &'a RawValue,
}

enum Reply {
    /// A result.
    Result(String),
    /// An error: the method is not known in this era.
    Unknown(String),
    /// Nothing: the message was a notification, or nothing we asked for.
    Silence,
}

fn reply(message: &[u8], era: Era) -> Reply {
    let Ok(message) = serde_json::from_slice::<Message<'_>>(message) else {
        return Reply::Silence;
    };
    let Some(id) = message.id else {
        return Reply::Silence;
    };
    let result = match (&*message.method, era) {
        ("tools/call", _) => echo(&message, era),
        ("tools/list", Era::Legacy) => format!("{{{TOOLS}}}"),
        ("tools/list", Era::Modern) => {
            format!(r#"{{"resultType":"complete",{TOOLS},"ttlMs":3600000,"cacheScope":"public"}}"#)
        }
        ("initialize", Era::Legacy) => LEGACY_HELLO.to_owned(),
        ("ping", Era::Legacy) => "{}".to_owned(),
        ("server/discover", Era::Modern) => MODERN_HELLO.to_owned(),
        _ => {
            return Reply::Unknown(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"Method not found"}}}}"#
            ));
        }
    };
    Reply::Result(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
    ))
}

fn echo(message: &Message<'_>, era: Era) -> String {
    let arguments = message
        .params
        .as_ref()
        .and_then(|params| params.arguments.as_ref());
    let text = arguments.map_or(r#""""#, |arguments| arguments.text.get());
    let kind = match era {
        Era::Legacy => "",
        Era::Modern => r#""resultType":"complete","#,
    };
    format!(r#"{{{kind}"content":[{{"type":"text","text":{text}}}]}}"#)
}

/// Serves stdin and stdout until stdin ends.
pub(crate) fn serve_stdio(era: Era) -> Result<(), Fault> {
    let mut input = BufReader::with_capacity(64 << 10, std::io::stdin().lock());
    let mut output = std::io::BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        match reply(&line, era) {
            Reply::Result(answer) | Reply::Unknown(answer) => writeln!(output, "{answer}")?,
            Reply::Silence => {}
        }
        line.clear();
        // What arrived together is answered together.
        if !input.buffer().contains(&b'\n') {
            output.flush()?;
        }
    }
    Ok(())
}

/// Serves HTTP on a free port of loopback, on any path, until the process is ended from outside.
pub(crate) fn serve_http(era: Era) -> Result<(), Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("listening on http://{}", listener.local_addr()?);
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            connections.spawn(serve_connection(stream, era));
            while connections.try_join_next().is_some() {}
        }
    })
}

async fn serve_connection(stream: TcpStream, era: Era) {
    let service = service_fn(move |request| answer(request, era));
    // A client that goes away ends its connection, which is no news.
    drop(
        http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await,
    );
}

async fn answer(
    request: Request<Incoming>,
    era: Era,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let status = match *request.method() {
        Method::POST => None,
        Method::DELETE => Some(StatusCode::OK),
        _ => Some(StatusCode::METHOD_NOT_ALLOWED),
    };
    if let Some(status) = status {
        return Ok(respond(status, String::new()));
    }
    let opens = !request.headers().contains_key(SESSION_ID);
    let body = request.into_body().collect().await?.to_bytes();
    let mut response = match reply(&body, era) {
        Reply::Result(answer) => respond(StatusCode::OK, answer),
        Reply::Unknown(answer) => respond(StatusCode::BAD_REQUEST, answer),
        Reply::Silence => respond(StatusCode::ACCEPTED, String::new()),
    };
    if era == Era::Legacy && opens {
        let session = HeaderValue::from_static("5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11");
        response.headers_mut().insert(SESSION_ID, session);
    }
    Ok(response)
}

fn respond(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
