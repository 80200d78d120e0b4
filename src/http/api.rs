//! Brings requests to the API: who signed in, and their bodies within the limits.

use axum::response::IntoResponse as _;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderValue, Request, Response, StatusCode, header::WWW_AUTHENTICATE};
use http_body_util::{BodyStream, Either, StreamBody};
use hyper::body::Incoming;

use super::{
    HttpEdge, RequestPeer,
    body::{self, Body},
    oauth::RequestTarget,
    request_log::refused_request,
};
use crate::{
    api::{Api, ApiCaller, Problem, ProblemType},
    auth::{AuthError, Credentials, Identity, MERGED_ROUTE},
    config::Role,
};

/// The scope without which a token is no sign-in to the API: clients have tokens for tools in the name of people who
/// may do more.
const ADMIN_SCOPE: &str = "admin";

/// Answers a request to the API.
pub(super) async fn handle(
    edge: &HttpEdge,
    api: &Api,
    peer: &RequestPeer,
    request: &mut Request<Incoming>,
) -> Response<Body> {
    let caller = match caller_of(edge, peer, request).await {
        Ok(caller) => Some(caller),
        Err(error) if error.is_missing() => None,
        Err(error) => {
            let governance = edge.proxy.governance();
            governance.record_auth_failure(&error, peer.address, refused_request(request));
            let problem = Problem::new(ProblemType::Unauthorized, error.to_string());
            return into_response(problem.into_response());
        }
    };
    // Nobody's body is read: what anybody may see is asked for without one.
    let body = match &caller {
        Some(caller) => body::read_body(request, edge, (caller.agent.id, peer)).await,
        None => Ok(Bytes::new()),
    };
    let body = match body {
        Ok(body) => body,
        Err(refused) if refused.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let limit = edge.proxy.settings().limits.body;
            let detail = format!("the body exceeds `limits.body` ({limit} bytes)");
            let problem = Problem::new(ProblemType::TooLarge, detail);
            return into_response(problem.into_response());
        }
        Err(refused) => return refused,
    };
    let mut asked = Request::new(body);
    request.method().clone_into(asked.method_mut());
    request.uri().clone_into(asked.uri_mut());
    request.headers().clone_into(asked.headers_mut());
    if let Some(caller) = caller {
        asked.extensions_mut().insert(caller);
    }
    into_response(api.handle(asked).await)
}

async fn caller_of(
    edge: &HttpEdge,
    peer: &RequestPeer,
    request: &Request<Incoming>,
) -> Result<ApiCaller, AuthError> {
    let resource_server = edge.resource_server.load();
    let shown = Credentials {
        headers: request.headers(),
        certificate: peer.certificate.as_deref(),
        resource: resource_server
            .public_url
            .resource(MERGED_ROUTE, RequestTarget::of(request)),
    };
    let directory = edge.proxy.governance().directory();
    let identity = directory.authenticate_signed_in(shown).await?;
    Ok(ApiCaller {
        role: role_of(&identity),
        agent: identity.agent,
        address: peer.address,
    })
}

/// What somebody may do. A token that is not for the API is that of an agent, whoever granted it.
fn role_of(identity: &Identity) -> Role {
    let scopes = identity.scopes.as_ref();
    let is_for_api = scopes.is_none_or(|scopes| scopes.contains(ADMIN_SCOPE));
    if identity.agent.enabled && is_for_api {
        identity.agent.role
    } else {
        Role::Agent
    }
}

/// The answer of the API as one of ours.
pub(super) fn into_response(response: Response<axum::body::Body>) -> Response<Body> {
    let status = response.status();
    let mut response = response.map(|body| {
        // A body that breaks off ends there.
        let frames = BodyStream::new(body).take_while(|frame| std::future::ready(frame.is_ok()));
        let frames = frames.filter_map(|frame| std::future::ready(frame.ok().map(Ok)));
        Either::Right(StreamBody::new(Box::pin(frames) as _))
    });
    if status == StatusCode::UNAUTHORIZED {
        let challenge = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}
