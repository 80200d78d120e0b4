//! Where clients look for an authorization server. There is none: they are told what is wanted in its place, in
//! the form of an OAuth error, whose description SDKs show (RFC 6749, section 5.2).

use http::{Response, StatusCode};
use serde_json::json;

use super::{body::Body, json_response, oauth_server::Endpoint};

/// Whether `path`, without a slash at its end, is such a place. Metadata are looked for below
/// `/.well-known/` at the root, and at the URL of the server (RFC 8414, section 5).
pub(super) fn is_probe(path: &str) -> bool {
    Endpoint::parse(path, "").is_some() || path.contains("/.well-known/")
}

/// The answer where tokens are taken, and nothing is at the path.
pub(super) fn not_found() -> Response<Body> {
    let description =
        "nothing is here; /.well-known/oauth-protected-resource/mcp says who issues tokens";
    let error = json!({ "error": "invalid_request", "error_description": description });
    json_response(StatusCode::NOT_FOUND, error.to_string())
}

/// The answer there.
pub(super) fn refuse(is_anonymous: bool) -> Response<Body> {
    let description = if is_anonymous {
        "this gateway has no OAuth sign-in: it serves clients without authentication"
    } else {
        "this gateway has no OAuth sign-in but API keys: set the header `Authorization: Bearer KEY` or \
         `X-API-Key: KEY` in the client; the operator of the gateway has the keys"
    };
    let error = json!({ "error": "invalid_request", "error_description": description });
    json_response(StatusCode::NOT_FOUND, error.to_string())
}
