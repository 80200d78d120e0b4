//! The scripted server behind a child process or a WebSocket.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use ::http::{HeaderMap, HeaderValue, StatusCode};
use futures_util::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_tungstenite::{
    accept_hdr_async,
    tungstenite::{
        Message as Frame,
        handshake::server::{ErrorResponse, Request, Response},
    },
};

use super::{Conn, Out, Reply, Script, Transport, lock, spawn};

/// The program that joins stdin and stdout to a port.
pub(super) fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let directory = test.parent().and_then(Path::parent).unwrap();
        let program = directory.join("examples/scripted_stdio");
        // Who runs this test alone has not built the examples.
        if !program.is_file() {
            let built = std::process::Command::new(env!("CARGO"))
                .args(["build", "--quiet", "--example", "scripted_stdio"])
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .status();
            assert!(built.is_ok_and(|status| status.success()) && program.is_file());
        }
        program
    })
}

pub(super) async fn serve(script: Arc<Script>, listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        let script = Arc::clone(&script);
        spawn(async move {
            match script.transport {
                Transport::WebSocket => socket(script, stream).await,
                Transport::Stdio | Transport::Http | Transport::HttpEvents | Transport::Sse => {
                    lines(script, stream).await;
                }
            }
        });
    }
}

async fn lines(script: Arc<Script>, stream: TcpStream) {
    let (send, mut queue) = mpsc::channel(1024);
    let conn = script.connect(Some(send));
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader).lines();
    let read = async {
        while let Ok(Some(line)) = reader.next_line().await {
            take(&script, &line, &conn).await;
        }
    };
    let write = async {
        while let Some(out) = queue.recv().await {
            let line = match out {
                // A server on stdout writes a message on one line.
                Out::Message(message) => message.replace('\n', " ") + "\n",
                Out::Raw(text) => text,
                Out::Break | Out::Status(_) | Out::Under(..) => return,
            };
            if writer.write_all(line.as_bytes()).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
        () = conn.broken.cancelled() => {}
        () = script.gone.cancelled() => {}
    }
    conn.closed.cancel();
}

async fn take(script: &Arc<Script>, text: &str, conn: &Arc<Conn>) {
    script.take(text, conn, HeaderMap::new(), Reply::Pipe).await;
}

fn agree(
    script: &Script,
    request: &Request,
    mut response: Response,
) -> Result<Response, ErrorResponse> {
    let gate = lock(&script.gate).clone();
    let refused = gate.and_then(|gate| gate(request.method().as_str(), request.headers()));
    if let Some(refused) = refused {
        let mut refusal = ErrorResponse::default();
        *refusal.status_mut() = StatusCode::from_u16(refused).unwrap();
        return Err(refusal);
    }
    let protocol = HeaderValue::from_static("mcp");
    response
        .headers_mut()
        .insert("sec-websocket-protocol", protocol);
    Ok(response)
}

async fn socket(script: Arc<Script>, stream: TcpStream) {
    let greeting = accept_hdr_async(stream, |request: &Request, response| {
        agree(&script, request, response)
    });
    let Ok(socket) = greeting.await else {
        return;
    };
    let (send, mut queue) = mpsc::channel(1024);
    let conn = script.connect(Some(send));
    let (mut writer, mut reader) = socket.split();
    let read = async {
        while let Some(Ok(frame)) = reader.next().await {
            if let Frame::Text(text) = frame {
                take(&script, &text, &conn).await;
            }
        }
    };
    let write = async {
        while let Some(out) = queue.recv().await {
            let (Out::Message(text) | Out::Raw(text)) = out else {
                return;
            };
            if writer.send(Frame::text(text)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
        () = conn.broken.cancelled() => {}
        () = script.gone.cancelled() => {}
    }
    conn.closed.cancel();
}
