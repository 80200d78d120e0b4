//! Streams of what happens: server-sent events that look at the gateway again and again.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use aide::{
    OperationOutput,
    axum::{ApiRouter, routing::get_with},
    generate::GenContext,
    openapi::{MediaType, Operation, Response as DocResponse, StatusCode as DocStatus},
};
use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, header};
use indexmap::IndexMap;
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{
    ApiState,
    caller::Reader,
    input::InPath,
    problem::{Problem, ProblemType},
    servers::{ServerPath, ShownServers},
};
use crate::mcp::sse::KEEP_ALIVE;

/// How often a stream looks what is new.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The most streams at a time.
const STREAMS_MAX: usize = 32;

/// How many more streams there may be.
#[derive(Debug)]
pub(crate) struct EventStreams(Arc<Semaphore>);

impl Default for EventStreams {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(STREAMS_MAX)))
    }
}

impl EventStreams {
    /// Room for one more stream.
    pub(super) fn permit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permit = Arc::clone(&self.0).try_acquire_owned();
        permit.map_err(|_| {
            let detail = format!("there are {STREAMS_MAX} streams of events already; end one");
            Problem::new(ProblemType::TooManyStreams, detail)
        })
    }
}

/// A stream of events.
#[derive(Debug)]
pub(super) struct SseResponse(Body);

/// The operations.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route(
            "/api/v1/events",
            get_with(events, |op| {
                op.id("streamEvents").response::<503, Problem>()
            }),
        )
        .api_route(
            "/api/v1/servers/{server}/stderr",
            get_with(stderr, |op| {
                op.id("streamServerStderr").response::<503, Problem>()
            }),
        )
}

/// Tells of states of servers (`server_state`, first of all that there are), of changes of the catalog
/// (`catalog_changed`) and of the config (`config_changed`).
pub(super) async fn events(
    State(state): State<Arc<ApiState>>,
    _: Reader,
) -> Result<SseResponse, Problem> {
    let permit = state.event_streams.permit()?;
    let mut seen = SeenState::default();
    Ok(stream(state, permit, move |state: &ApiState| {
        seen.look(state)
    }))
}

/// What a server writes to stderr, a line an event (`stderr`); first the last lines that it wrote.
pub(super) async fn stderr(
    State(state): State<Arc<ApiState>>,
    _: Reader,
    InPath(path): InPath<ServerPath>,
) -> Result<SseResponse, Problem> {
    let name = ShownServers::read(&state).find(&path.server)?;
    let permit = state.event_streams.permit()?;
    let mut last = 0;
    Ok(stream(state, permit, move |state: &ApiState| {
        let Some(backend) = state.proxy.backends().get(&name) else {
            return String::new();
        };
        let (lines, end) = backend.stderr_after(last);
        last = end;
        let events = lines.iter().map(|line| event("stderr", &json!(line)));
        events.collect()
    }))
}

/// What a stream has told of.
#[derive(Debug, Default)]
struct SeenState {
    servers: BTreeMap<String, &'static str>,
    catalog: Option<u64>,
    reloads: Option<u64>,
}

impl SeenState {
    fn look(&mut self, state: &ApiState) -> String {
        let mut text = String::new();
        let reloads = state.status.reloads();
        if self
            .reloads
            .replace(reloads)
            .is_some_and(|it| it != reloads)
        {
            text.push_str(&event("config_changed", &json!({})));
        }
        let servers = state.proxy.backends().all();
        let servers = servers.map(|it| (it.name.to_string(), it.state().as_str()));
        let servers: BTreeMap<_, _> = servers.collect();
        for (server, now) in &servers {
            if self.servers.get(server) != Some(now) {
                let data = json!({ "server": server, "state": now });
                text.push_str(&event("server_state", &data));
            }
        }
        for server in self.servers.keys() {
            if !servers.contains_key(server) {
                let data = json!({ "server": server, "state": "removed" });
                text.push_str(&event("server_state", &data));
            }
        }
        self.servers = servers;
        let catalog = *state.proxy.catalog_store().changes().borrow();
        if self
            .catalog
            .replace(catalog)
            .is_some_and(|it| it != catalog)
        {
            text.push_str(&event("catalog_changed", &json!({})));
        }
        text
    }
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// What a stream tells of.
pub(super) trait EventSource: Send + 'static {
    /// The events since the last time, as text; `None` ends the stream.
    fn next_events<'a>(&'a mut self, state: &'a ApiState) -> BoxFuture<'a, Option<String>>;
}

impl<L: FnMut(&ApiState) -> String + Send + 'static> EventSource for L {
    fn next_events<'a>(&'a mut self, state: &'a ApiState) -> BoxFuture<'a, Option<String>> {
        let text = self(state);
        Box::pin(async { Some(text) })
    }
}

/// A stream of what `source` tells, until the gateway stops; a comment keeps it alive where that is nothing.
pub(super) fn stream(
    state: Arc<ApiState>,
    permit: OwnedSemaphorePermit,
    source: impl EventSource,
) -> SseResponse {
    let begin = StreamState {
        state,
        source,
        last_sent: None,
        _permit: permit,
    };
    let chunks = futures_util::stream::unfold(begin, StreamState::next_chunk);
    SseResponse(Body::from_stream(chunks))
}

/// A stream between two chunks.
struct StreamState<L> {
    state: Arc<ApiState>,
    source: L,
    /// When something was last sent.
    last_sent: Option<Instant>,
    _permit: OwnedSemaphorePermit,
}

impl<L: EventSource> StreamState<L> {
    async fn next_chunk(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        while !self.state.proxy.is_draining() {
            let text = self.source.next_events(&self.state).await?;
            let keep_alive = self.state.proxy.settings().keep_alive;
            let is_silent = self.last_sent.is_none_or(|at| at.elapsed() >= keep_alive);
            if !text.is_empty() || is_silent {
                self.last_sent = Some(Instant::now());
                let bytes = if text.is_empty() {
                    KEEP_ALIVE
                } else {
                    text.into()
                };
                return Some((Ok(bytes), self));
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        None
    }
}

impl IntoResponse for SseResponse {
    fn into_response(self) -> Response {
        let mut response = Response::new(self.0);
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("text/event-stream");
        headers.insert(header::CONTENT_TYPE, kind);
        let cache = HeaderValue::from_static("no-store");
        headers.insert(header::CACHE_CONTROL, cache);
        response
    }
}

impl OperationOutput for SseResponse {
    type Inner = String;

    fn operation_response(_: &mut GenContext, _: &mut Operation) -> Option<DocResponse> {
        Some(DocResponse {
            description: "A stream of events.".to_owned(),
            content: IndexMap::from([("text/event-stream".to_owned(), MediaType::default())]),
            ..DocResponse::default()
        })
    }

    fn inferred_responses(
        ctx: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<DocStatus>, DocResponse)> {
        let response = Self::operation_response(ctx, operation);
        let response = response.map(|response| (Some(DocStatus::Code(200)), response));
        response.into_iter().collect()
    }
}
