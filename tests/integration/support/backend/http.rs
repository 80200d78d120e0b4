//! The scripted server behind streamable HTTP and HTTP+SSE.

use std::{
    io,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
};

use ::http::{HeaderMap, Method, Request, Response, StatusCode};
use bytes::Bytes;
use futures_util::Stream;
use http_body::Frame;
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;

use super::{Asked, Conn, Era, Out, Reply, Script, Transport, lock, spawn};
use crate::support::wire::{self, Envelope};

type Events = Pin<Box<dyn Stream<Item = io::Result<Frame<Bytes>>> + Send>>;
type Body = Either<Full<Bytes>, StreamBody<Events>>;

pub(super) async fn serve(script: Arc<Script>, listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let script = Arc::clone(&script);
        spawn(async move {
            let gone = script.gone.clone();
            let service = service_fn(move |request| handle(Arc::clone(&script), request));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            // A broken connection is what some tests are about.
            drop(gone.run_until_cancelled(connection).await);
        });
    }
}

async fn handle(script: Arc<Script>, request: Request<Incoming>) -> io::Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let gate = lock(&script.gate).clone();
    let refused = gate.and_then(|gate| gate(parts.method.as_str(), &parts.headers));
    if let Some(refused) = refused {
        return Ok(status(refused));
    }
    let text = String::from_utf8(body.to_vec()).map_err(io::Error::other)?;
    match (script.transport, parts.method) {
        (Transport::Sse, Method::GET) => Ok(stream_of_messages(&script)),
        (Transport::Sse, Method::POST) if parts.uri.path() == "/messages" => {
            let id = parts.uri.query().unwrap_or_default().parse().unwrap_or(0);
            let Some(conn) = find(&script, id) else {
                return Ok(denial(&script));
            };
            script.take(&text, &conn, parts.headers, Reply::Pipe).await;
            if script.late.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            Ok(status(202))
        }
        (Transport::Sse, _) => Ok(status(405)),
        (_, Method::POST) => post(&script, parts.headers, &text).await,
        (_, Method::GET) => get(&script, parts.headers).await,
        (_, Method::DELETE) => Ok(status(200)),
        (_, _) => Ok(status(405)),
    }
}

fn find(script: &Script, id: usize) -> Option<Arc<Conn>> {
    let conns = lock(&script.conns);
    conns.iter().find(|conn| conn.id == id).cloned()
}

/// The connection that the session header names.
fn of_session(script: &Script, headers: &HeaderMap) -> Option<Arc<Conn>> {
    let id = headers.get("mcp-session-id")?.to_str().ok()?;
    find(script, id.strip_prefix("session-")?.parse().ok()?)
}

async fn post(script: &Arc<Script>, headers: HeaderMap, text: &str) -> io::Result<Response<Body>> {
    let envelope = Envelope::of(text);
    let opens = script.era() == Era::Legacy && envelope.method() == "initialize";
    let conn = match (script.era(), headers.contains_key("mcp-session-id")) {
        _ if opens => Some(script.connect(None)),
        (Era::Legacy, true) => of_session(script, &headers),
        (Era::Legacy, false) => return Ok(status(400)),
        (Era::Modern, _) => {
            let first = lock(&script.conns).first().cloned();
            Some(first.unwrap_or_else(|| script.connect(None)))
        }
    };
    let Some(conn) = conn else {
        return Ok(denial(script));
    };
    let (send, out) = mpsc::channel(1024);
    let is_request = envelope.id.is_some() && !envelope.is_response();
    script.take(text, &conn, headers, Reply::Http(send)).await;
    if !is_request {
        return Ok(status(202));
    }
    let mut response = respond(out).await?;
    if opens {
        let id = format!("session-{}", conn.id).parse().unwrap();
        response.headers_mut().insert("mcp-session-id", id);
    }
    Ok(response)
}

/// The standing stream; a resumed one is the test's to answer.
async fn get(script: &Arc<Script>, headers: HeaderMap) -> io::Result<Response<Body>> {
    if script.era() == Era::Modern {
        return Ok(status(405));
    }
    let Some(conn) = of_session(script, &headers) else {
        return Ok(denial(script));
    };
    let (send, out) = mpsc::channel(1024);
    if headers.contains_key("last-event-id") {
        let envelope = Envelope {
            method: Some("GET".to_owned()),
            ..Envelope::default()
        };
        let asked = Asked {
            conn,
            envelope,
            headers,
            reply: Reply::Http(send),
            events: true.into(),
        };
        drop(script.requests.send(asked).await);
        return respond(out).await;
    }
    *lock(&conn.out) = Some(send);
    script.open.send_modify(|count| *count += 1);
    Ok(stream(": open\n\n".to_owned(), out, conn.broken.clone()))
}

fn stream_of_messages(script: &Script) -> Response<Body> {
    let (send, out) = mpsc::channel(1024);
    let conn = script.connect(Some(send));
    stream(
        format!("event: endpoint\ndata: /messages?{}\n\n", conn.id),
        out,
        conn.broken.clone(),
    )
}

/// The response as the test writes it; none at all breaks the connection.
async fn respond(mut out: mpsc::Receiver<Out>) -> io::Result<Response<Body>> {
    match out.recv().await {
        Some(Out::Message(message)) => Ok(json(200, message)),
        Some(Out::Raw(text)) => Ok(stream(text, out, CancellationToken::new())),
        Some(Out::Status(code)) => Ok(status(code)),
        Some(Out::Under(code, message)) => Ok(json(code, message)),
        Some(Out::Break) | None => Err(io::Error::other("the test breaks the connection")),
    }
}

fn stream(first: String, out: mpsc::Receiver<Out>, broken: CancellationToken) -> Response<Body> {
    let state = (Some(first), out, broken);
    let chunks = futures_util::stream::unfold(state, |(first, mut out, broken)| async move {
        let next = if let Some(first) = first {
            Out::Raw(first)
        } else {
            tokio::select! {
                next = out.recv() => next?,
                () = broken.cancelled() => Out::Break,
            }
        };
        let frame = match next {
            Out::Message(message) => Ok(wire::event(None, &message)),
            Out::Raw(text) => Ok(text),
            Out::Break | Out::Status(_) | Out::Under(..) => Err(io::Error::other("broken off")),
        };
        Some((
            frame.map(|text| Frame::data(Bytes::from(text))),
            (None, out, broken),
        ))
    });
    let mut response = Response::new(Either::Right(StreamBody::new(Box::pin(chunks) as Events)));
    let events = "text/event-stream".parse().unwrap();
    response.headers_mut().insert("content-type", events);
    response
}

fn denial(script: &Script) -> Response<Body> {
    let (code, body) = *lock(&script.denial);
    let mut response = status(code);
    *response.body_mut() = Either::Left(Full::new(Bytes::from_static(body.as_bytes())));
    response
}

fn status(code: u16) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(Bytes::new())));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

fn json(code: u16, message: String) -> Response<Body> {
    let mut response = status(code);
    *response.body_mut() = Either::Left(Full::new(Bytes::from(message)));
    let json = "application/json".parse().unwrap();
    response.headers_mut().insert("content-type", json);
    response
}
