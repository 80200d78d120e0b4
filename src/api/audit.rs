//! The audit: records of calls, latest first, as the log has them.

use std::{io, path::PathBuf, sync::Arc};

use aide::{
    OperationOutput,
    axum::{
        ApiRouter,
        routing::{get_with, post_with},
    },
    generate::GenContext,
    openapi::{MediaType, Operation, Response as DocResponse, StatusCode as DocStatus},
};
use axum::{
    Json,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderValue, header::CONTENT_TYPE};
use indexmap::IndexMap;
use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{
    ApiState,
    caller::{ApiCaller, Reader, SignedIn},
    input::{InPath, QueryParams},
    page::{Page, PageQuery, cursor_of},
    problem::{Problem, ProblemType},
};
use crate::{
    audit::{
        AuditError, EventFilter, EventPlace, FoundRecord, IndexLag, LogEntry, Position, Query,
        RecordFilter, RecordedDecision, TrustAnchors, latest_events, latest_records, verify_with,
    },
    clock,
    names::InvocationId,
};

/// Chunks of an export that wait for who reads it.
const EXPORT_QUEUE: usize = 4;
/// How far back events are listed where nobody says so: they are searched in all lines of the log.
const EVENTS_SINCE: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Bytes of a chunk.
const EXPORT_CHUNK: usize = 64 << 10;

/// Which records; everything that is given must hold.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct AuditFilter {
    /// Only calls of this agent: its name or id.
    agent: Option<String>,
    /// Only calls of this server, by its name.
    server: Option<String>,
    /// Only calls of this tool, by the server's name or the exposed one.
    tool: Option<String>,
    /// Only this decision.
    decision: Option<RecordedDecision>,
    /// Not before this time, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    since: Option<String>,
    /// Before this time, RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    until: Option<String>,
}

/// Which events; everything that is given must hold.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct EventParams {
    /// Only what happened so: `config_changed`, `agent_changed`, `key_created` and so on.
    event: Option<String>,
    /// Only what happened to this: a server, an agent, the id of a key.
    subject: Option<String>,
    /// Not before this time, RFC 3339. Default: seven days ago.
    since: Option<String>,
    /// Before this time, RFC 3339.
    until: Option<String>,
}

/// Which record a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct RecordPath {
    /// Its id, `inv_` and a UUID.
    id: String,
}

/// A record of a call as the log has it: see the reference of the audit.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct AuditRecord(Value);

/// What came of the verification of the log.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Verification {
    /// Whether nothing is wrong.
    ok: bool,
    /// How many chains there are.
    chains: usize,
    /// How many lines they have.
    lines: u64,
    /// How many of the lines are not signed yet.
    unsigned: u64,
    /// What is wrong: lines that were changed or removed, in words.
    faults: Vec<String>,
}

/// Records as JSON lines.
#[derive(Debug)]
pub(super) struct JsonLines(Body);

/// The operations.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route(
            "/api/v1/audit",
            get_with(list, |op| op.id("listAuditRecords")),
        )
        .api_route(
            "/api/v1/audit/export",
            get_with(export, |op| op.id("exportAuditRecords")),
        )
        .api_route(
            "/api/v1/audit/verify",
            post_with(verify, |op| op.id("verifyAudit")),
        )
        .api_route(
            "/api/v1/audit/events",
            get_with(list_events, |op| op.id("listAuditEvents")),
        )
        .api_route(
            "/api/v1/audit/{id}",
            get_with(show, |op| op.id("getAuditRecord")),
        )
        .api_route(
            "/api/v1/me/audit",
            get_with(list_own, |op| op.id("listOwnAuditRecords")),
        )
}

/// Lists records of calls, latest first, without their results.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    _: Reader,
    QueryParams(page): QueryParams<PageQuery>,
    QueryParams(filter): QueryParams<AuditFilter>,
) -> Result<Json<Page<AuditRecord>>, Problem> {
    page_of(&state, &page, filter).await.map(Json)
}

/// Lists the records of the caller's own calls, latest first.
pub(super) async fn list_own(
    State(state): State<Arc<ApiState>>,
    SignedIn(ApiCaller { agent, .. }): SignedIn,
    QueryParams(page): QueryParams<PageQuery>,
    QueryParams(filter): QueryParams<AuditFilter>,
) -> Result<Json<Page<AuditRecord>>, Problem> {
    let own = AuditFilter {
        agent: Some(agent.id.to_string()),
        ..filter
    };
    page_of(&state, &page, own).await.map(Json)
}

/// Shows the record of a call, with its result where `audit.results` records it.
pub(super) async fn show(
    State(state): State<Arc<ApiState>>,
    _: Reader,
    InPath(path): InPath<RecordPath>,
) -> Result<Json<AuditRecord>, Problem> {
    let id = path.id.strip_prefix("inv_").unwrap_or(&path.id);
    let id = uuid::Uuid::parse_str(id).ok();
    let missing = || Problem::not_found(format_args!("record `{}`", path.id));
    let filter = RecordFilter {
        id: Some(InvocationId(id.ok_or_else(missing)?)),
        ..RecordFilter::default()
    };
    let found = find(&state, &filter, 1).await?;
    found.first().map(to_resource).map(Json).ok_or_else(missing)
}

/// Lists what happened beside calls, latest first: changes with their old and new values, and who made them.
pub(super) async fn list_events(
    State(state): State<Arc<ApiState>>,
    _: Reader,
    QueryParams(page): QueryParams<PageQuery>,
    QueryParams(params): QueryParams<EventParams>,
) -> Result<Json<Page<AuditRecord>>, Problem> {
    let limit = page.limit()?;
    let before = page
        .after()?
        .map(|key| parse_event_cursor(&key).ok_or_else(foreign_cursor));
    let filter = EventFilter {
        before: before.transpose()?,
        ..params.resolve()?
    };
    let directory = log_dir(&state);
    let read = spawn_blocking(move || latest_events(&directory, &filter, limit + 1)).await;
    let read = read.map_err(|error| Problem::new(ProblemType::InternalError, error.to_string()))?;
    let mut found = read.map_err(|error| failed(&error))?;
    found.reverse();
    let has_more = found.len() > limit;
    found.truncate(limit);
    let last = found.last().filter(|_| has_more);
    Ok(Json(Page {
        next_cursor: last.map(|last| cursor_of(&event_cursor(last.place()))),
        items: found.iter().map(|found| shown_line(&found.entry)).collect(),
    }))
}

/// Gives all records that match as JSON lines, oldest first: the lines of the log, unchanged.
pub(super) async fn export(
    State(state): State<Arc<ApiState>>,
    _: Reader,
    QueryParams(filter): QueryParams<AuditFilter>,
) -> Result<JsonLines, Problem> {
    let records = Query::new(&log_dir(&state), filter.resolve()?).map_err(|it| failed(&it))?;
    let (chunks, read) = mpsc::channel::<io::Result<Bytes>>(EXPORT_QUEUE);
    // Who reads no more ends it.
    drop(spawn_blocking(move || write_lines(records, &chunks)));
    let read = futures_util::stream::unfold(read, async |mut read| {
        read.recv().await.map(|chunk| (chunk, read))
    });
    Ok(JsonLines(Body::from_stream(read)))
}

/// Verifies the hash chains and signatures of the log, and compares it with its index.
pub(super) async fn verify(
    State(state): State<Arc<ApiState>>,
    _: Reader,
) -> Result<Json<Verification>, Problem> {
    let directory = log_dir(&state);
    let trust = TrustAnchors::local(&directory).map_err(|error| failed(&error))?;
    let store = state.store.as_ref().ok_or_else(no_index)?;
    let report = verify_with(&directory, &*store.audit, &trust).await;
    let report = report.map_err(|error| lagging(&error))?;
    let broken = report.chains.iter().filter_map(|chain| {
        let fault = chain.fault.as_ref()?;
        Some(format!("chain {}, {fault}", chain.chain))
    });
    let shortened = report.shortened.iter();
    let shortened = shortened.map(|it| format!("chain {}, segment {}: {it}", it.chain, it.segment));
    Ok(Json(Verification {
        ok: report.is_valid(),
        chains: report.chains.len(),
        lines: report.chains.iter().map(|chain| chain.lines).sum(),
        unsigned: report.chains.iter().map(|chain| chain.unsigned).sum(),
        faults: broken.chain(shortened).collect(),
    }))
}

fn write_lines(records: Query, chunks: &mpsc::Sender<io::Result<Bytes>>) {
    let mut chunk = Vec::with_capacity(EXPORT_CHUNK);
    for found in records {
        match found {
            Ok(found) => {
                chunk.extend_from_slice(&found.entry.line);
                chunk.push(b'\n');
            }
            // The body breaks off: what is there is not all.
            Err(error) => {
                drop(chunks.blocking_send(Err(io::Error::other(error))));
                return;
            }
        }
        if chunk.len() >= EXPORT_CHUNK {
            let full = std::mem::take(&mut chunk);
            if chunks.blocking_send(Ok(full.into())).is_err() {
                return;
            }
        }
    }
    drop(chunks.blocking_send(Ok(chunk.into())));
}

impl AuditFilter {
    pub(super) fn resolve(self) -> Result<RecordFilter, Problem> {
        Ok(RecordFilter {
            agent: self.agent,
            server: self.server,
            tool: self.tool,
            decision: self.decision,
            since: parse_time("since", self.since.as_deref())?,
            until: parse_time("until", self.until.as_deref())?,
            limit: None,
            id: None,
        })
    }
}

impl EventParams {
    fn resolve(self) -> Result<EventFilter, Problem> {
        let event = self.event.map(|text| serde_json::from_value(text.into()));
        let event = event
            .transpose()
            .map_err(|error| invalid("event", &error))?;
        let since = parse_time("since", self.since.as_deref())?;
        let week_ago = || clock::now().checked_sub(EVENTS_SINCE).unwrap_or_default();
        Ok(EventFilter {
            event,
            subject: self.subject,
            since: Some(since.unwrap_or_else(week_ago)),
            until: parse_time("until", self.until.as_deref())?,
            before: None,
        })
    }
}

/// The time that `text`, which is given as `what`, says.
pub(super) fn parse_time(what: &str, text: Option<&str>) -> Result<Option<Timestamp>, Problem> {
    let parsed = text.map(str::parse).transpose();
    parsed.map_err(|error: jiff::Error| {
        let why = format!("{error}; use RFC 3339, such as 2026-11-28T09:00:00Z");
        invalid(what, &why)
    })
}

fn invalid(what: &str, why: &dyn std::fmt::Display) -> Problem {
    Problem::new(ProblemType::InvalidRequest, format!("`{what}`: {why}"))
}

/// A page of what `filter` wants. A cursor is the time and the id of the last record before.
async fn page_of(
    state: &ApiState,
    page: &PageQuery,
    filter: AuditFilter,
) -> Result<Page<AuditRecord>, Problem> {
    let limit = page.limit()?;
    let mut filter = filter.resolve()?;
    let after = page
        .after()?
        .map(|key| parse_cursor(&key).ok_or_else(foreign_cursor));
    let after = after.transpose()?;
    if let Some((time, _)) = after {
        // Others of the same moment follow it.
        let end = time + SignedDuration::from_micros(1);
        filter.until = Some(filter.until.map_or(end, |until| until.min(end)));
    }
    let mut count = limit + 1;
    let found = loop {
        let mut found = find(state, &filter, count).await?;
        let is_all = found.len() < count;
        found.reverse();
        if let Some((_, id)) = &after {
            // All that came before it are of its moment.
            let at = found.iter().position(|it| it.record.id.to_string() == *id);
            found.drain(..at.map_or(found.len(), |at| at + 1));
        }
        if is_all || found.len() > limit {
            break found;
        }
        count *= 2;
    };
    let shown = &found[..found.len().min(limit)];
    let last = shown.last().filter(|_| found.len() > limit);
    Ok(Page {
        next_cursor: last.map(|it| cursor_of(&format!("{} {}", it.record.ts, it.record.id))),
        items: shown.iter().map(to_listed).collect(),
    })
}

fn foreign_cursor() -> Problem {
    let detail = "`cursor` is not a `next_cursor` of this list";
    Problem::new(ProblemType::InvalidRequest, detail)
}

fn event_cursor(place: EventPlace) -> String {
    let EventPlace { ts, position } = place;
    let Position {
        chain,
        segment,
        offset,
        length,
    } = position;
    format!("{ts} {chain} {segment} {offset} {length}")
}

fn parse_event_cursor(key: &str) -> Option<EventPlace> {
    let mut words = key.split(' ');
    let ts = words.next()?.parse().ok()?;
    let position = Position {
        chain: words.next()?.parse().ok()?,
        segment: words.next()?.parse().ok()?,
        offset: words.next()?.parse().ok()?,
        length: words.next()?.parse().ok()?,
    };
    Some(EventPlace { ts, position })
}

fn parse_cursor(key: &str) -> Option<(Timestamp, String)> {
    let (time, id) = key.split_once(' ')?;
    Some((time.parse().ok()?, id.to_owned()))
}

/// The latest records that match, oldest of them first.
async fn find(
    state: &ApiState,
    filter: &RecordFilter,
    count: usize,
) -> Result<Vec<FoundRecord>, Problem> {
    let store = state.store.as_ref().ok_or_else(no_index)?;
    let found = latest_records(&log_dir(state), &*store.audit, filter, count).await;
    found.map_err(|error| lagging(&error))
}

/// The same for a list, which has no results: they are long.
fn to_listed(found: &FoundRecord) -> AuditRecord {
    let AuditRecord(mut record) = to_resource(found);
    if let Some(members) = record.as_object_mut() {
        members.remove("result");
    }
    AuditRecord(record)
}

fn to_resource(found: &FoundRecord) -> AuditRecord {
    shown_line(&found.entry)
}

fn shown_line(entry: &LogEntry) -> AuditRecord {
    AuditRecord(serde_json::from_slice(&entry.line).unwrap_or_default())
}

pub(super) fn log_dir(state: &ApiState) -> PathBuf {
    state.data_dir.join("audit")
}

fn failed(error: &AuditError) -> Problem {
    Problem::new(ProblemType::InternalError, error.to_string())
}

pub(super) fn lagging(error: &IndexLag) -> Problem {
    Problem::new(ProblemType::InternalError, error.to_string())
}

pub(super) fn no_index() -> Problem {
    let detail = "this gateway has no store, so that the audit has no index; see `data_dir`";
    Problem::new(ProblemType::InternalError, detail)
}

impl IntoResponse for JsonLines {
    fn into_response(self) -> Response {
        let mut response = self.0.into_response();
        let kind = HeaderValue::from_static("application/jsonl");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

impl OperationOutput for JsonLines {
    type Inner = Self;

    fn inferred_responses(
        _: &mut GenContext,
        _: &mut Operation,
    ) -> Vec<(Option<DocStatus>, DocResponse)> {
        let response = DocResponse {
            description: "A record on each line.".to_owned(),
            content: IndexMap::from([("application/jsonl".to_owned(), MediaType::default())]),
            ..DocResponse::default()
        };
        vec![(Some(DocStatus::Code(200)), response)]
    }
}
