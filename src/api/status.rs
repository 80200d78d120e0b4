//! How the gateway does: what `/status` says.

use std::sync::Arc;

use aide::axum::{ApiRouter, routing::get_with};
use axum::{Json, extract::State};
use serde_json::Value;

use super::{
    ApiState,
    caller::Reader,
    problem::{Problem, ProblemType},
};
use crate::status::StatusAccess;

/// The operations.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new().api_route("/api/v1/status", get_with(show, |op| op.id("getStatus")))
}

/// Shows how the gateway and its servers do, as `/status` does to who may see all of it.
async fn show(State(state): State<Arc<ApiState>>, _: Reader) -> Result<Json<Value>, Problem> {
    let status = state.status.to_json(&StatusAccess::Full);
    let status = status.and_then(|json| serde_json::from_slice(&json));
    let status =
        status.map_err(|error| Problem::new(ProblemType::InternalError, error.to_string()));
    status.map(Json)
}
