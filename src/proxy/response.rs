//! The way back: from what a server answered to what its caller is told.

use std::sync::Arc;

use serde::Serialize;

use crate::{
    backend::{Answer, CallError},
    catalog::{Tool, UriMap, rewrite},
    governance::{CallOutcome, ServerAnswer},
    mcp::{Era, Method, Outcome, Raw, error, tasks},
    names::{Scope, ServerName},
    router::Routed,
    session::{bridge, modern},
    store::TaskIdScope,
};

/// Codes of our own refusals, which no server may imitate on a merged route.
const RESERVED_CODES: std::ops::RangeInclusive<i64> = -32004..=-32001;

/// Codes about the request that we sent and not about that of the client, which would take them for
/// faults of its own headers and revision.
const HOP_CODES: [i64; 2] = [error::HEADER_MISMATCH, error::UNSUPPORTED_VERSION];

/// What is needed of a call once it has been forwarded.
#[derive(Debug)]
pub(super) struct ResponseMapper {
    pub(super) server: ServerName,
    method: Method,
    tool: Option<Arc<Tool>>,
    is_merged_route: bool,
    is_legacy_client: bool,
    /// Whether what is read may not be kept for other callers, whatever the server says of it.
    is_private: bool,
    uris: Option<Arc<UriMap>>,
}

impl ResponseMapper {
    /// The way back of `routed`; what is read is for who asked alone unless `is_shared`.
    pub(super) fn of(routed: &Routed, is_shared: impl FnOnce() -> bool) -> Self {
        let is_legacy_client = routed.call.client.era() == Era::Legacy;
        let is_read = routed.call.method == Method::ResourcesRead;
        Self {
            server: routed.server.clone(),
            method: routed.call.method.clone(),
            tool: routed.tool.clone(),
            is_merged_route: !matches!(routed.call.scope, Scope::Server(_)),
            is_legacy_client,
            is_private: is_read && !is_legacy_client && !is_shared(),
            uris: routed.uris.clone(),
        }
    }

    /// How the call ended, as its client may be told.
    pub(super) fn to_outcome(&self, answer: Result<Answer, CallError>) -> CallOutcome {
        match answer {
            Ok(Answer {
                outcome,
                revision,
                is_agent_specific: is_of_one_agent,
            }) => CallOutcome::Answered(ServerAnswer {
                outcome: self.translate(outcome),
                revision: Some(revision.as_str()),
                same_task_id: if is_of_one_agent {
                    TaskIdScope::PerAgent
                } else {
                    TaskIdScope::Shared
                },
            }),
            Err(CallError {
                failure,
                delivered,
                state,
                ..
            }) => CallOutcome::Failed {
                error: failure.to_error(&self.server, state),
                delivered,
                reason: failure.kind(),
            },
        }
    }

    /// The outcome with exposed URIs, and errors that cannot be mistaken for ours.
    fn translate(&self, outcome: Outcome) -> Outcome {
        let outcome = match outcome {
            Err(refusal) if error::code(&refusal).is_some_and(|it| HOP_CODES.contains(&it)) => {
                let uris = self.uris.as_ref().filter(|_| self.is_merged_route);
                let exposed = uris.map(|uris| rewrite::rewrite_error(&refusal, uris));
                return Err(self.wrap_as_server_error(&exposed.unwrap_or(refusal)));
            }
            Ok(result) if self.is_private => Ok(modern::mark_private(&result)),
            other => other,
        };
        if !self.is_merged_route {
            return outcome.map_err(|refusal| self.remap_reserved_code(refusal));
        }
        let method = self.method.as_str();
        match (outcome, &self.uris) {
            (Ok(result), Some(uris)) => Ok(rewrite::rewrite_result(method, &result, uris)),
            (Ok(result), None) => Ok(result),
            (Err(refusal), uris) => {
                let refusal = match uris {
                    Some(uris) => rewrite::rewrite_error(&refusal, uris),
                    None => refusal,
                };
                Err(self.wrap_error(self.add_task_hint(refusal)))
            }
        }
    }

    /// On the route of one server its errors pass unchanged, but for the code of unknown resources,
    /// which 2026-07-28 has changed.
    fn remap_reserved_code(&self, refusal: Raw) -> Raw {
        let is_unknown = error::code(&refusal) == Some(error::RESOURCE_NOT_FOUND);
        if self.is_legacy_client || !is_unknown || !self.is_about_resource() {
            return refusal;
        }
        bridge::with_code(&refusal, error::INVALID_PARAMS)
    }

    fn is_about_resource(&self) -> bool {
        matches!(
            self.method,
            Method::ResourcesRead | Method::ResourcesSubscribe | Method::ResourcesUnsubscribe
        )
    }

    /// A server that carries a call out as a task only cannot be asked for that on a merged route. Its
    /// refusal says where it can.
    fn add_task_hint(&self, refusal: Raw) -> Raw {
        let tool = self.tool.as_ref();
        if !tool.is_some_and(|tool| tasks::is_task_required_error(&refusal, &tool.source)) {
            return refusal;
        }
        let message = refusal.get("message");
        let message = message.as_ref().and_then(Raw::as_text);
        let (Some(span), Some(message)) = (refusal.member("message"), message) else {
            return refusal;
        };
        let hint = format!(
            "{message} (tasks are only served on /mcp/servers/{server} and /sse/servers/{server})",
            server = self.server
        );
        refusal.with_text(span, &hint)
    }

    fn wrap_error(&self, refusal: Raw) -> Raw {
        let Some(code) = error::code(&refusal).filter(|code| RESERVED_CODES.contains(code)) else {
            return refusal;
        };
        if code == error::RESOURCE_NOT_FOUND && self.is_about_resource() && self.is_legacy_client {
            return refusal;
        }
        self.wrap_as_server_error(&refusal)
    }

    /// The refusal as one of the server, under a code that means nothing else.
    fn wrap_as_server_error(&self, refusal: &Raw) -> Raw {
        let message = refusal.get("message");
        let message = message.as_ref().and_then(Raw::as_text).unwrap_or_default();
        Raw::from_value(&WrappedError {
            code: error::INTERNAL,
            message: format!("server `{}`: {message}", self.server),
            data: UpstreamData {
                server: self.server.as_str(),
                upstream: refusal,
            },
        })
    }
}

/// An error of a server under another code. What the server wrote is no [`serde_json::Value`],
/// which holds neither every number nor every string nor every depth.
#[derive(Serialize)]
struct WrappedError<'a> {
    code: i64,
    message: String,
    data: UpstreamData<'a>,
}

#[derive(Serialize)]
struct UpstreamData<'a> {
    server: &'a str,
    upstream: &'a Raw,
}
