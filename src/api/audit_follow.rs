//! New records of the audit as server-sent events.

use std::sync::Arc;

use aide::{
    OperationInput,
    axum::{ApiRouter, routing::get_with},
    generate::GenContext,
    openapi::{Operation, Response as DocResponse, StatusCode as DocStatus},
};
use axum::extract::{FromRequestParts, State};
use futures_util::future::BoxFuture;
use http::request::Parts;

use super::{
    ApiState,
    audit::{AuditFilter, lagging, log_dir, no_index},
    caller::Reader,
    events::{EventSource, SseResponse, stream},
    input::{QueryParams, describe_header, problems},
    problem::{Problem, ProblemType},
};
use crate::audit::{FoundRecord, RecordFilter, new_records};

/// Records of one look; what does not fit comes with the next one.
const RECORDS_MAX: usize = 500;

/// The header in which a client says which event it had last.
const LAST_EVENT_ID: &str = "last-event-id";

/// The number of the record that a client had last.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastEventId(Option<i64>);

/// Where a stream of records is.
struct RecordFollower {
    filter: RecordFilter,
    after: i64,
}

/// The operations.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new().api_route(
        "/api/v1/audit/follow",
        get_with(follow, |op| {
            op.id("followAuditRecords").response::<503, Problem>()
        }),
    )
}

/// Streams new records (`record`) within two seconds. The id of an event is that of its record in the index: who comes
/// again with it as `Last-Event-ID` gets all that the index has since then.
pub(super) async fn follow(
    State(state): State<Arc<ApiState>>,
    _: Reader,
    LastEventId(last): LastEventId,
    QueryParams(filter): QueryParams<AuditFilter>,
) -> Result<SseResponse, Problem> {
    let filter = filter.resolve()?;
    let permit = state.event_streams.permit()?;
    let store = state.store.as_ref().ok_or_else(no_index)?;
    let after = if let Some(last) = last {
        last
    } else {
        let now = new_records(&log_dir(&state), &*store.audit, &filter, None, 0).await;
        now.map_err(|error| lagging(&error))?.end
    };
    let follower = RecordFollower { filter, after };
    Ok(stream(state, permit, follower))
}

impl EventSource for RecordFollower {
    fn next_events<'a>(&'a mut self, state: &'a ApiState) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let store = state.store.as_ref()?;
            let (directory, after) = (log_dir(state), Some(self.after));
            let new = new_records(&directory, &*store.audit, &self.filter, after, RECORDS_MAX);
            match new.await {
                Ok(new) => {
                    self.after = new.end;
                    Some(new.records.iter().map(to_event).collect())
                }
                Err(error) => {
                    // Its client comes again, with the last record that it had.
                    tracing::warn!(%error, "a stream of audit records ends");
                    None
                }
            }
        })
    }
}

fn to_event((number, found): &(i64, FoundRecord)) -> String {
    // A line of the log is one line of JSON.
    let line = String::from_utf8_lossy(&found.entry.line);
    format!("event: record\nid: {number}\ndata: {}\n\n", line.trim_end())
}

impl<S: Send + Sync> FromRequestParts<S> for LastEventId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Some(written) = parts.headers.get(LAST_EVENT_ID) else {
            return Ok(Self(None));
        };
        let number = written.to_str().ok().and_then(|text| text.parse().ok());
        let number = number.filter(|number: &i64| *number >= 0).ok_or_else(|| {
            let detail = "`Last-Event-ID` is not the id of an event of this stream";
            Problem::new(ProblemType::InvalidRequest, detail)
        });
        number.map(|number| Self(Some(number)))
    }
}

impl OperationInput for LastEventId {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        let text = ctx.schema.subschema_for::<String>();
        let description =
            "The id of the last event that the client had. Default: what is new from now on.";
        describe_header(ctx, operation, ("Last-Event-ID", description), text);
    }

    fn inferred_early_responses(
        ctx: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<DocStatus>, DocResponse)> {
        problems(ctx, operation, &[400])
    }
}
