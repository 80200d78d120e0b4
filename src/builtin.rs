//! The MCP server inside the binary: five small tools, so that a first run needs nothing else.
//!
//! The `builtin` transport opens an in-process byte stream and gives one end to [`serve`]. Newline-delimited
//! JSON-RPC runs over it exactly as over the stdio of a child process.
//!
//! What must stay true: nothing here touches the network, the environment or the disk (but for the time zones
//! of the system). Every input that costs more than its length has a limit. A wrong argument is an `isError`
//! result that says what to send instead, never a protocol error.

mod connection;
mod input_error;
#[cfg(test)]
mod tests;
mod text;
mod time;
mod tools;
mod uuid;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest,
    CustomResult, ErrorCode, Implementation, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::{QuitReason, RequestContext, RoleServer, serve_server_with_ct};
use rmcp::{ErrorData, ServerHandler};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// Serves one in-process connection until the peer closes it or `stop` is cancelled.
///
/// The first message decides the era: `initialize` opens a legacy session, any request with the modern `_meta`
/// keys a modern one, and `server/discover` may come before either. Dropping the future closes the connection.
pub(crate) async fn serve<S>(stream: S, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // rmcp cancels the token it was given when the connection ends, and `stop` belongs to the caller.
    let stop = stop.child_token();
    let opening = serve_server_with_ct(BuiltinServer, connection::messages(stream), stop);
    match Box::pin(opening).await {
        Ok(running) => {
            if let Ok(QuitReason::JoinError(error)) | Err(error) = running.waiting().await {
                tracing::error!(%error, "the built-in server failed");
            }
        }
        Err(error) => tracing::debug!(%error, "the built-in server was not initialized"),
    }
}

/// The handler of one connection. Connections share nothing but the table of tools.
struct BuiltinServer;

impl ServerHandler for BuiltinServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(
                Implementation::new("tollbridge-toolbox", env!("CARGO_PKG_VERSION"))
                    .with_title("Tollbridge toolbox"),
            )
            .with_instructions(
                "Exact answers for what models guess at: the time in any zone, new UUIDs and \
                 hashes. Nothing leaves the process.",
            )
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        if request.is_some_and(|request| request.cursor.is_some()) {
            let message = "Invalid cursor: this list is a single page";
            return Err(ErrorData::invalid_params(message, None));
        }
        Ok(ListToolsResult::with_all_items(tools::list()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let entry = tools::find(&request.name).ok_or_else(|| {
            ErrorData::invalid_params(format!("Unknown tool: {}", request.name), None)
        })?;
        let result = match entry.run(request.arguments.unwrap_or_default()) {
            Ok(answer) => CallToolResult::structured(answer),
            Err(error) => CallToolResult::error(vec![ContentBlock::text(error.to_string())]),
        };
        Ok(result.into())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(match request.method.as_str() {
            connection::UNREADABLE => {
                ErrorData::invalid_params("the request cannot be read: a member is wrong", None)
            }
            _ => ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None),
        })
    }
}
