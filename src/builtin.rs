//! The toolbox that ships inside the binary: a small MCP server for time, ids, hashes, JSON and
//! regular expressions.
//!
//! The `builtin` transport opens an in-process byte stream and gives one end to [`serve`];
//! newline-delimited JSON-RPC runs over it exactly as over a child's stdio. It is an ordinary
//! server in every other respect, which makes a first run work without installing anything.
//!
//! What must stay true: nothing here touches the network, the environment or the disk (but for the
//! system's time zones); every input that costs more than its length is bounded by a named constant
//! beside the tool; a wrong argument is an `isError` result that says where, what and what to do
//! instead, never a protocol error.

mod codec;
mod guide;
mod id;
mod json;
mod jsonpath;
mod lines;
mod pattern;
#[cfg(test)]
mod testing;
mod time;
mod tools;

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams, CompleteResult,
    ContentBlock, CustomRequest, CustomResult, ErrorCode, GetPromptRequestParams,
    GetPromptResponse, Implementation, JsonObject, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams,
    ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{
    QuitReason, RequestContext, RoleServer, ServerInitializeError, serve_server_with_ct,
};
use rmcp::{ErrorData, ServerHandler};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use self::lines::{Lines, UNREADABLE};
use self::tools::{Entry, Weight};

/// Serves the toolbox on one in-process connection until the peer closes it or `stop` is cancelled.
///
/// The first message decides the era: `initialize` opens a legacy session, any request carrying the
/// modern `_meta` keys a modern one, and `server/discover` may come before either. Connections
/// share nothing but the tool table, so any number may be open. Dropping the future closes the
/// connection.
///
/// # Errors
///
/// [`Error::Handshake`] when the peer's first messages are not MCP, [`Error::Task`] when serving
/// panicked.
pub async fn serve<S>(stream: S, stop: CancellationToken) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // The peer is this process, which has read and bounded the message already.
    let transport = Lines::of(stream);
    // rmcp cancels the token it was given when the connection ends, and `stop` belongs to the
    // caller.
    let opening = serve_server_with_ct(Toolbox::new(), transport, stop.child_token());
    let running = match Box::pin(opening).await {
        Ok(running) => running,
        Err(ServerInitializeError::Cancelled | ServerInitializeError::ConnectionClosed(_)) => {
            return Ok(());
        }
        Err(error) => return Err(Error::Handshake(Box::new(error))),
    };
    match running.waiting().await {
        Ok(QuitReason::JoinError(error)) | Err(error) => Err(Error::Task(error)),
        Ok(_) => Ok(()),
    }
}

/// Why a connection of the toolbox ended otherwise than by its peer or its stop token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer's opening was not MCP, or could not be answered; the fault is in whoever holds the
    /// other end.
    #[error("the connection to the built-in server did not open: {0}")]
    Handshake(#[source] Box<ServerInitializeError>),
    /// The serving task panicked or was aborted; the fault is ours.
    #[error("the built-in server's connection task failed: {0}")]
    Task(#[source] JoinError),
}

/// Calls of [`Weight::Heavy`] tools that one connection runs at once; further ones wait their turn.
/// They occupy threads of the blocking pool, which the rest of the process needs too.
const HEAVY_CALLS_MAX: usize = 4;

/// One connection's handler.
struct Toolbox {
    heavy: Arc<Semaphore>,
}

impl Toolbox {
    fn new() -> Self {
        Self {
            heavy: Arc::new(Semaphore::new(HEAVY_CALLS_MAX)),
        }
    }

    async fn run(
        &self,
        entry: &'static Entry,
        arguments: JsonObject,
    ) -> Result<CallToolResult, ErrorData> {
        let outcome = match entry.weight {
            Weight::Light => entry.run(arguments),
            Weight::Heavy => {
                let permit = Arc::clone(&self.heavy)
                    .acquire_owned()
                    .await
                    .expect("the semaphore is never closed");
                let work = tokio::task::spawn_blocking(move || {
                    let _permit = permit;
                    entry.run(arguments)
                });
                work.await.map_err(|_| {
                    ErrorData::internal_error(format!("{} failed unexpectedly", entry.name()), None)
                })?
            }
        };
        Ok(match outcome {
            Ok(answer) => CallToolResult::structured(answer),
            Err(mistake) => CallToolResult::error(vec![ContentBlock::text(mistake.to_string())]),
        })
    }
}

impl ServerHandler for Toolbox {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_prompts()
            .enable_resources()
            .enable_tools()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(
                Implementation::new("tollbridge-toolbox", env!("CARGO_PKG_VERSION"))
                    .with_title("Tollbridge toolbox"),
            )
            .with_instructions(
                "Exact answers for things models guess at: the time in any zone, new UUIDs, \
                 hashes, encodings, JSON queries and diffs, regular expression tests. Nothing \
                 leaves the process.",
            )
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        refuse_cursor(request)?;
        Ok(ListToolsResult::with_all_items(tools::list()))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method == UNREADABLE {
            let message = "the request cannot be read: a member is of the wrong type, or missing";
            return Err(ErrorData::invalid_params(message, None));
        }
        Err(ErrorData::new(
            ErrorCode::METHOD_NOT_FOUND,
            request.method,
            None,
        ))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::find(name).map(|entry| entry.tool.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let entry = tools::find(&request.name).ok_or_else(|| {
            ErrorData::invalid_params(format!("Unknown tool: {}", request.name), None)
        })?;
        let arguments = request.arguments.unwrap_or_default();
        self.run(entry, arguments).await.map(Into::into)
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        refuse_cursor(request)?;
        Ok(ListResourcesResult::with_all_items(guide::resources()))
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        refuse_cursor(request)?;
        Ok(ListResourceTemplatesResult::with_all_items(
            guide::templates(),
        ))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        guide::read(&request.uri).map(Into::into)
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        refuse_cursor(request)?;
        Ok(ListPromptsResult::with_all_items(guide::prompts()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        guide::prompt(&request.name, &arguments).map(Into::into)
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        guide::complete(&request.r#ref, &request.argument)
    }
}

/// Refuses a cursor: every list is one page, so none was ever handed out.
fn refuse_cursor(request: Option<PaginatedRequestParams>) -> Result<(), ErrorData> {
    match request.and_then(|request| request.cursor) {
        None => Ok(()),
        Some(_) => Err(ErrorData::invalid_params(
            "Invalid cursor: this list is a single page",
            None,
        )),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};

    use super::testing::{PATIENCE, call, connected, eras, outcome};
    use super::*;

    #[tokio::test]
    async fn speaks_the_legacy_era_in_raw_lines() {
        let answers = exchange(&[
            initialize(1, "2025-06-18"),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!({"jsonrpc": "2.0", "id": "two", "method": "tools/call", "params": {
                "name": "encode", "arguments": {"to": "hex", "text": "a"},
            }}),
            json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "hex"}}),
            json!({"jsonrpc": "2.0", "id": 4, "method": "tools/list", "params": {"cursor": "x"}}),
            json!({"jsonrpc": "2.0", "id": 5, "method": "ping"}),
        ])
        .await;
        assert_eq!(answers[0]["result"]["protocolVersion"], "2025-06-18");
        assert_eq!(
            answers[0]["result"]["serverInfo"]["name"],
            "tollbridge-toolbox"
        );
        assert_eq!(
            answers[0]["result"]["capabilities"],
            json!({"completions": {}, "prompts": {}, "resources": {}, "tools": {}})
        );
        assert_eq!(
            answers[1],
            json!({"jsonrpc": "2.0", "id": "two", "result": {
                "content": [{"type": "text", "text": r#"{"bytes":1,"output":"61"}"#}],
                "structuredContent": {"bytes": 1, "output": "61"},
                "isError": false,
            }})
        );
        assert_eq!(
            answers[2]["error"],
            json!({"code": -32602, "message": "Unknown tool: hex"})
        );
        assert_eq!(answers[3]["error"]["code"], -32602);
        assert_eq!(answers[4]["result"], json!({}));
    }

    #[tokio::test]
    async fn speaks_the_modern_era_in_raw_lines() {
        let meta = modern_meta();
        let answers = exchange(&[
            discover(1),
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"_meta": meta}}),
            json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {
                "_meta": meta, "name": "uuid", "arguments": {"count": 0},
            }}),
            json!({"jsonrpc": "2.0", "id": 4, "method": "tools/list"}),
        ])
        .await;
        let versions = answers[0]["result"]["supportedVersions"]
            .as_array()
            .unwrap();
        assert!(versions.contains(&json!("2026-07-28")), "{versions:?}");
        assert_eq!(answers[1]["result"]["resultType"], "complete");
        assert_eq!(answers[1]["result"]["tools"][0]["name"], "current_time");
        assert_eq!(answers[2]["result"]["isError"], true);
        assert_eq!(
            answers[2]["result"]["content"][0]["text"],
            "count: 0 is not between 1 and 1000. Send a count within these bounds."
        );
        assert_eq!(
            answers[3]["error"]["code"], -32602,
            "a modern request without _meta"
        );
    }

    #[tokio::test]
    async fn a_probe_may_come_before_initialize() {
        let meta = modern_meta();
        let answers = exchange(&[
            discover(1),
            initialize(2, "2025-11-25"),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list"}),
            json!({"jsonrpc": "2.0", "id": 4, "method": "tools/list", "params": {"_meta": meta}}),
        ])
        .await;
        assert!(answers[0]["result"]["supportedVersions"].is_array());
        assert_eq!(answers[1]["result"]["protocolVersion"], "2025-11-25");
        assert_eq!(answers[2]["result"].get("resultType"), None);
        assert_eq!(
            answers[3]["result"]["resultType"], "complete",
            "modern on the same connection"
        );
    }

    #[tokio::test]
    async fn many_connections_share_nothing() {
        let connections = (0..50).flat_map(|n| eras().map(|era| (n, era)));
        join_all(connections.map(|(n, era)| {
            connected(era, async move |client| {
                let arguments = json!({"to": "hex", "text": n.to_string().repeat(4096)});
                let (light, heavy) = tokio::join!(
                    call(client, "uuid", json!({})),
                    call(client, "encode", arguments),
                );
                assert!(outcome(&light).is_ok());
                assert_eq!(
                    outcome(&heavy).unwrap()["bytes"],
                    n.to_string().len() * 4096
                );
            })
        }))
        .await;
    }

    #[tokio::test]
    async fn stop_ends_a_connection_and_a_connection_does_not_stop_others() {
        let stop = CancellationToken::new();
        let (ours, theirs) = tokio::io::duplex(1024);
        drop(ours);
        bounded(serve(theirs, stop.clone())).await.unwrap();
        assert!(!stop.is_cancelled(), "closed before a word");

        let (ours, theirs) = tokio::io::duplex(1024);
        let talk = async {
            let mut lines = Lines::new(ours);
            lines.send(&initialize(1, "2024-11-05")).await;
            lines.receive().await;
        };
        let (served, ()) = bounded(async { tokio::join!(serve(theirs, stop.clone()), talk) }).await;
        served.unwrap();
        assert!(!stop.is_cancelled(), "closed after the handshake");

        let (ours, theirs) = tokio::io::duplex(1024);
        let mut lines = Lines::new(ours);
        let talk = async {
            lines.send(&initialize(1, "2024-11-05")).await;
            lines.receive().await;
            stop.cancel();
        };
        let (served, ()) = bounded(async { tokio::join!(serve(theirs, stop.clone()), talk) }).await;
        served.unwrap();

        let (_ours, theirs) = tokio::io::duplex(1024);
        bounded(serve(theirs, stop)).await.unwrap();
    }

    #[tokio::test]
    async fn an_opening_that_is_not_mcp_is_an_error() {
        let (mut ours, theirs) = tokio::io::duplex(1024);
        ours.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n")
            .await
            .unwrap();
        let error = bounded(serve(theirs, CancellationToken::new()))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Handshake(_)), "{error}");
    }

    #[tokio::test]
    async fn heavy_calls_of_a_connection_have_a_limit() {
        let toolbox = Toolbox::new();
        let heavy = tools::find("hash").unwrap();
        let light = tools::find("uuid").unwrap();
        let run = |entry: &'static Entry| {
            let arguments = match entry.weight {
                Weight::Heavy => json!({"text": "a"}),
                Weight::Light => json!({}),
            };
            toolbox.run(entry, arguments.as_object().unwrap().clone())
        };
        let mut others: Vec<_> = (1..HEAVY_CALLS_MAX)
            .map(|_| toolbox.heavy.try_acquire().unwrap())
            .collect();
        assert!(bounded(run(heavy)).await.is_ok(), "at the limit");
        others.push(toolbox.heavy.try_acquire().unwrap());
        let mut waiting = std::pin::pin!(run(heavy));
        assert!(futures_util::poll!(&mut waiting).is_pending(), "past it");
        assert!(bounded(run(light)).await.is_ok(), "light calls do not wait");
        others.pop();
        assert!(bounded(waiting).await.is_ok(), "back under it");
    }

    /// Sends raw lines and returns the answer to each request, in the order of the requests.
    async fn exchange(messages: &[Value]) -> Vec<Value> {
        let (ours, theirs) = tokio::io::duplex(1024);
        let talk = async {
            let mut lines = Lines::new(ours);
            let mut answers = Vec::new();
            for message in messages {
                lines.send(message).await;
                if message.get("id").is_some() {
                    let answer = lines.receive().await;
                    assert_eq!(answer["id"], message["id"]);
                    answers.push(answer);
                }
            }
            answers
        };
        let serving = serve(theirs, CancellationToken::new());
        let both = Box::pin(async { tokio::join!(serving, talk) });
        let (served, answers) = bounded(both).await;
        served.unwrap();
        answers
    }

    fn initialize(id: u32, version: &str) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }})
    }

    fn discover(id: u32) -> Value {
        let params = json!({"_meta": modern_meta()});
        json!({"jsonrpc": "2.0", "id": id, "method": "server/discover", "params": params})
    }

    fn modern_meta() -> Value {
        json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        })
    }

    async fn bounded<F: Future>(future: F) -> F::Output {
        tokio::time::timeout(PATIENCE, future)
            .await
            .expect("a test hangs")
    }

    struct Lines(BufReader<DuplexStream>);

    impl Lines {
        fn new(stream: DuplexStream) -> Self {
            Self(BufReader::new(stream))
        }

        async fn send(&mut self, message: &Value) {
            self.0
                .write_all(format!("{message}\n").as_bytes())
                .await
                .unwrap();
        }

        async fn receive(&mut self) -> Value {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).await.unwrap(), 0, "closed");
            serde_json::from_str(&line).unwrap()
        }
    }
}
