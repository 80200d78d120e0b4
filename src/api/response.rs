//! Answers with headers beside their JSON.

use aide::{
    OperationOutput,
    generate::GenContext,
    openapi::{Operation, Response as DocResponse, StatusCode as DocStatus},
};
use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{ETAG, LOCATION},
};
use schemars::{JsonSchema, json_schema};
use serde::Serialize;

use super::{
    idempotency,
    input::{describe_header, problems},
};

/// An answer and the version of what it shows; no version where it cannot be changed.
#[derive(Debug)]
pub(super) struct WithEtag<T> {
    pub(super) body: T,
    pub(super) etag: Option<String>,
}

/// The answer to what was made: with status 201 and where it is; 200 where nothing was made after all.
#[derive(Debug)]
pub(super) struct Created<T> {
    pub(super) body: WithEtag<T>,
    /// Its path.
    pub(super) location: Option<String>,
}

impl<T: Serialize> IntoResponse for WithEtag<T> {
    fn into_response(self) -> Response {
        let mut response = Json(self.body).into_response();
        set_header(&mut response, ETAG, self.etag);
        response
    }
}

impl<T: Serialize> IntoResponse for Created<T> {
    fn into_response(self) -> Response {
        let mut response = self.body.into_response();
        if self.location.is_some() {
            *response.status_mut() = StatusCode::CREATED;
        }
        set_header(&mut response, LOCATION, self.location);
        response
    }
}

fn set_header(response: &mut Response, name: HeaderName, value: Option<String>) {
    if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
        response.headers_mut().insert(name, value);
    }
}

/// Describes answers of JSON with these statuses.
macro_rules! json_answer {
    ($name:ident, $statuses:expr) => {
        impl<T: JsonSchema + Serialize> OperationOutput for $name<T> {
            type Inner = T;

            fn operation_response(
                ctx: &mut GenContext,
                operation: &mut Operation,
            ) -> Option<DocResponse> {
                Json::<T>::operation_response(ctx, operation)
            }

            fn inferred_responses(
                ctx: &mut GenContext,
                operation: &mut Operation,
            ) -> Vec<(Option<DocStatus>, DocResponse)> {
                responses_with::<T>(ctx, operation, $statuses)
            }
        }
    };
}

json_answer!(WithEtag, &[200]);

impl<T: JsonSchema + Serialize> OperationOutput for Created<T> {
    type Inner = T;

    fn operation_response(ctx: &mut GenContext, operation: &mut Operation) -> Option<DocResponse> {
        Json::<T>::operation_response(ctx, operation)
    }

    fn inferred_responses(
        ctx: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<DocStatus>, DocResponse)> {
        let text = json_schema!({ "type": "string", "minLength": 1, "maxLength": idempotency::KEY_BYTES_MAX });
        let description =
            "A new text for each request. A request that is sent again with it is not done twice.";
        describe_header(ctx, operation, ("Idempotency-Key", description), text);
        let mut responses = responses_with::<T>(ctx, operation, &[200, 201]);
        responses.extend(problems(ctx, operation, &[400, 409]));
        responses
    }
}

fn responses_with<T: JsonSchema + Serialize>(
    ctx: &mut GenContext,
    operation: &mut Operation,
    statuses: &[u16],
) -> Vec<(Option<DocStatus>, DocResponse)> {
    let each = statuses.iter().filter_map(|status| {
        let response = Json::<T>::operation_response(ctx, operation)?;
        Some((Some(DocStatus::Code(*status)), response))
    });
    each.collect()
}
