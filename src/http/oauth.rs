//! What clients are told of authorization: by which URL a route is known, and how to get a token for it.

mod public_url;
mod resource_server;

use http::{Response, StatusCode};
use serde_json::json;

use super::{body::Body, json_response, with_retry_after};
use crate::auth::jwt::ExternalMetadata;
pub(super) use public_url::{PublicUrl, RequestTarget};
pub(super) use resource_server::ResourceServer;

/// The metadata of the issuer of tokens, for clients that look for an authorization server at the origin of the
/// gateway and nowhere else (Spec 2025-03-26, authorization). Its endpoints are its own.
pub(super) async fn answer_metadata(issuer: &ExternalMetadata) -> Response<Body> {
    if let Some(document) = issuer.document().await {
        return json_response(StatusCode::OK, document);
    }
    let error = json!({
        "error": "temporarily_unavailable",
        "error_description": "the issuer of tokens cannot be reached; the log of the gateway says why",
    });
    let status = StatusCode::SERVICE_UNAVAILABLE;
    with_retry_after(json_response(status, error.to_string()))
}
