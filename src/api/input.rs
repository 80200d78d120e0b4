//! What requests say: bodies, queries and headers, whose mistakes are problems.

use aide::{
    OperationInput,
    generate::GenContext,
    openapi::{Operation, Response as DocResponse, StatusCode as DocStatus},
};
use axum::{
    Json,
    body::to_bytes,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
};
use http::{StatusCode, request::Parts};
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    etag,
    problem::{Problem, ProblemType},
};
use crate::config_change::EntryPrecondition;

/// A body of JSON.
#[derive(Debug)]
pub(super) struct JsonBody<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        // It came whole and within `limits.body`.
        let bytes = to_bytes(body, usize::MAX).await.unwrap_or_default();
        let is_array = bytes.trim_ascii_start().starts_with(b"[");
        let request = Request::from_parts(parts, bytes.into());
        let read = Json::<T>::from_request(request, state).await;
        let Json(body) = read.map_err(|refused| match refused.status() {
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Problem::new(
                ProblemType::UnsupportedMediaType,
                "send the body as JSON: `Content-Type: application/json`",
            ),
            StatusCode::PAYLOAD_TOO_LARGE => {
                Problem::new(ProblemType::TooLarge, refused.body_text())
            }
            _ => invalid(&refused.body_text()),
        })?;
        // Serde would take its items for the fields of an object.
        if is_array {
            return Err(invalid("the body must be a JSON object, not an array"));
        }
        Ok(Self(body))
    }
}

impl<T: JsonSchema> OperationInput for JsonBody<T> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        Json::<T>::operation_input(ctx, operation);
    }

    fn inferred_early_responses(
        ctx: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<DocStatus>, DocResponse)> {
        problems(ctx, operation, &[400, 413, 415, 422])
    }
}

/// Parameters in the query.
#[derive(Debug)]
pub(super) struct QueryParams<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let read = Query::<T>::from_request_parts(parts, state).await;
        read.map(|Query(params)| Self(params))
            .map_err(|refused| invalid(&refused.body_text()))
    }
}

impl<T: JsonSchema> OperationInput for QueryParams<T> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        Query::<T>::operation_input(ctx, operation);
    }

    fn inferred_early_responses(
        ctx: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<DocStatus>, DocResponse)> {
        problems(ctx, operation, &[400])
    }
}

/// What stands in the path.
#[derive(Debug)]
pub(super) struct InPath<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for InPath<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let read = Path::<T>::from_request_parts(parts, state).await;
        read.map(|Path(path)| Self(path))
            .map_err(|refused| invalid(&refused.body_text()))
    }
}

impl<T: JsonSchema> OperationInput for InPath<T> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        Path::<T>::operation_input(ctx, operation);
    }

    fn inferred_early_responses(
        ctx: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<DocStatus>, DocResponse)> {
        problems(ctx, operation, &[400, 404])
    }
}

/// How a change is to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangeOptions {
    /// Whether only what the change would do is told.
    pub(super) dry_run: bool,
    /// What `If-Match` asks.
    pub(super) precondition: EntryPrecondition,
}

/// The parameter of a change.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct DryRun {
    /// Change nothing: answer with what the change would do.
    pub(super) dry_run: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for ChangeOptions {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let QueryParams(DryRun { dry_run }) = QueryParams::from_request_parts(parts, state).await?;
        Ok(Self {
            dry_run,
            precondition: etag::precondition(&parts.headers)?,
        })
    }
}

impl OperationInput for ChangeOptions {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        QueryParams::<DryRun>::operation_input(ctx, operation);
        let text = ctx.schema.subschema_for::<String>();
        let description = "The `ETag` of the version that is to be changed; without it any is.";
        describe_header(ctx, operation, ("If-Match", description), text);
    }

    fn inferred_early_responses(
        ctx: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<DocStatus>, DocResponse)> {
        problems(ctx, operation, &[400, 409, 412, 422])
    }
}

/// Adds a header that need not be sent.
pub(super) fn describe_header(
    ctx: &mut GenContext,
    operation: &mut Operation,
    (name, description): (&str, &str),
    json_schema: schemars::Schema,
) {
    use aide::openapi::{
        HeaderStyle, Parameter, ParameterData, ParameterSchemaOrContent, SchemaObject,
    };
    let format = ParameterSchemaOrContent::Schema(SchemaObject {
        json_schema,
        external_docs: None,
        example: None,
    });
    let parameter_data = ParameterData {
        name: name.to_owned(),
        description: Some(description.to_owned()),
        required: false,
        deprecated: None,
        format,
        example: None,
        examples: IndexMap::default(),
        explode: None,
        extensions: IndexMap::default(),
    };
    let style = HeaderStyle::Simple;
    let header = Parameter::Header {
        parameter_data,
        style,
    };
    aide::operation::add_parameters(ctx, operation, [header]);
}

/// The problems with these statuses, for the description.
pub(super) fn problems(
    ctx: &mut GenContext,
    operation: &mut Operation,
    statuses: &[u16],
) -> Vec<(Option<DocStatus>, DocResponse)> {
    use aide::OperationOutput as _;
    let each = statuses.iter().filter_map(|status| {
        let response = Problem::operation_response(ctx, operation)?;
        Some((Some(DocStatus::Code(*status)), response))
    });
    each.collect()
}

fn invalid(why: &str) -> Problem {
    Problem::new(ProblemType::InvalidRequest, why)
}
