//! How bytes come from and go to servers: programs, streamable HTTP, SSE, WebSocket.

pub(super) mod http;
pub(super) mod pipe;
pub(super) mod stdio;
pub(super) mod websocket;
