//! Messages of one connection of the toolbox, one a line.
//!
//! What the SDK cannot read as the request that it names is handed on as one of a method that nobody has, so
//! that it gets an answer as any other: whoever asked would wait for it.

use std::{io, sync::Arc};

use rmcp::{
    RoleServer,
    model::{ClientRequest, CustomRequest, RequestId},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde::Deserialize;
use tokio::{
    io::{
        AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf,
        split,
    },
    sync::Mutex,
};

/// The method of a request that could not be read.
pub(super) const UNREADABLE: &str = "tollbridge/unreadable";

/// The lines of one connection.
pub(super) struct Lines<S> {
    read: BufReader<ReadHalf<S>>,
    /// What has come of the next one.
    line: Vec<u8>,
    write: Arc<Mutex<WriteHalf<S>>>,
}

impl<S: AsyncRead + AsyncWrite> Lines<S> {
    pub(super) fn of(stream: S) -> Self {
        let (read, write) = split(stream);
        Self {
            read: BufReader::new(read),
            line: Vec::new(),
            write: Arc::new(Mutex::new(write)),
        }
    }
}

impl<S> Transport<RoleServer> for Lines<S>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let write = Arc::clone(&self.write);
        async move {
            let mut line = serde_json::to_vec(&item)?;
            line.push(b'\n');
            let mut write = write.lock().await;
            write.write_all(&line).await?;
            write.flush().await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            // Whoever gives up waiting leaves what has come in the line.
            self.read.read_until(b'\n', &mut self.line).await.ok()?;
            if self.line.pop() != Some(b'\n') {
                return None;
            }
            let message = message(&self.line);
            self.line.clear();
            if message.is_some() {
                return message;
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.write.lock().await.shutdown().await
    }
}

/// The message that `line` is; `None` for what is none and gets no answer.
fn message(line: &[u8]) -> Option<RxJsonRpcMessage<RoleServer>> {
    #[derive(Deserialize)]
    struct Request {
        id: RequestId,
        #[serde(rename = "method")]
        _method: String,
    }
    match serde_json::from_slice(line) {
        Ok(message) => Some(message),
        Err(error) => {
            tracing::debug!(%error, "the toolbox cannot read a message");
            let Request { id, .. } = serde_json::from_slice(line).ok()?;
            let request = CustomRequest::new(UNREADABLE, None);
            let request = ClientRequest::CustomRequest(request);
            Some(RxJsonRpcMessage::<RoleServer>::request(request, id))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio_util::sync::CancellationToken;

    use super::super::serve;

    /// What is wrong with a request is said in the answer to it, and the connection goes on.
    #[tokio::test]
    async fn whatever_has_an_id_gets_an_answer() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let talking = async {
            let (read, mut write) = tokio::io::split(ours);
            let mut lines = BufReader::new(read).lines();
            let initialize = json!({"jsonrpc": "2.0", "id": "first", "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}
            }});
            let odd = [
                json!({"name": "uuid", "_meta": "x"}),
                json!({"name": "uuid", "_meta": {"progressToken": {}}}),
                json!({"name": "uuid", "arguments": []}),
                json!({"name": "uuid", "task": "x"}),
                json!({"name": 5}),
                json!([]),
                json!(5),
            ];
            let odd = odd.into_iter().map(|params| ("tools/call", params));
            let others = [
                ("resources/read", json!({"uri": 5})),
                ("prompts/get", json!({"name": "x", "arguments": 5})),
                ("completion/complete", json!({"ref": 5})),
                ("tools/list", json!({"cursor": 5})),
                ("ping", json!({"_meta": 5})),
                ("of/nobody", json!({"_meta": 5})),
            ];
            write
                .write_all(format!("{initialize}\n").as_bytes())
                .await
                .unwrap();
            let greeting: Value =
                serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
            assert_eq!(greeting["id"], "first");
            let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
            write
                .write_all(format!("{ready}\n").as_bytes())
                .await
                .unwrap();
            for (id, (method, params)) in odd.chain(others).enumerate() {
                let request =
                    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
                write
                    .write_all(format!("not JSON\n{request}\n").as_bytes())
                    .await
                    .unwrap();
                let answer = tokio::time::timeout(Duration::from_secs(20), lines.next_line()).await;
                let answer = answer.unwrap_or_else(|_| panic!("no answer to {request}"));
                let answer: Value = serde_json::from_str(&answer.unwrap().unwrap()).unwrap();
                assert_eq!(answer["id"], id, "{request} {answer}");
            }
            let call = json!({"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": {"name": "uuid"}});
            write
                .write_all(format!("{call}\n").as_bytes())
                .await
                .unwrap();
            let answer: Value =
                serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
            assert!(answer["result"].is_object(), "{answer}");
        };
        let (served, ()) = tokio::join!(Box::pin(serve(theirs, CancellationToken::new())), talking);
        served.unwrap();
    }
}
