//! Errors of the API: problems of RFC 9457 with types that stay.

use aide::{
    OperationOutput,
    generate::GenContext,
    openapi::{
        MediaType, Operation, Response as DocResponse, SchemaObject, StatusCode as DocStatus,
    },
};
use axum::response::{IntoResponse, Response};
use http::{
    HeaderValue, StatusCode,
    header::{CONTENT_TYPE, ETAG},
};
use indexmap::IndexMap;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::{etag, input::problems};
use crate::{audit::AuditError, config_change::ChangeError, store::StoreError};

/// What went wrong, for programs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemType {
    /// The entry exists already, or a file has one of its name.
    AlreadyExists,
    /// The files of the config have errors, so that nothing can be changed beside them.
    ConfigErrors,
    /// The caller may not do that.
    Forbidden,
    /// The entry stands in a config file and is changed there.
    InConfigFile,
    /// Something else uses it, or belongs to it.
    InUse,
    /// The gateway failed, or its store did.
    InternalError,
    /// The body or a parameter is wrong.
    InvalidRequest,
    /// The path has no such method.
    MethodNotAllowed,
    /// There is no such thing, or the caller may not know of it.
    NotFound,
    /// The version in `If-Match` is not the current one.
    PreconditionFailed,
    /// The body is larger than `limits.body`.
    TooLarge,
    /// There are as many streams of events as there may be.
    TooManyStreams,
    /// The agent has as many views as it may have.
    TooManyViews,
    /// The caller has to sign in.
    Unauthorized,
    /// What it says cannot be used.
    Unprocessable,
    /// The body is no `application/json`.
    UnsupportedMediaType,
}

impl ProblemType {
    const fn status(self) -> StatusCode {
        match self {
            Self::AlreadyExists
            | Self::ConfigErrors
            | Self::InConfigFile
            | Self::InUse
            | Self::TooManyViews => StatusCode::CONFLICT,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
            Self::InvalidRequest => StatusCode::BAD_REQUEST,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooManyStreams => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }

    /// The same for every problem of the type.
    const fn title(self) -> &'static str {
        match self {
            Self::AlreadyExists => "Already exists",
            Self::ConfigErrors => "The config files have errors",
            Self::Forbidden => "Not allowed",
            Self::InConfigFile => "Stands in a config file",
            Self::InUse => "In use",
            Self::InternalError => "Internal error",
            Self::InvalidRequest => "Invalid request",
            Self::MethodNotAllowed => "Method not allowed",
            Self::NotFound => "Not found",
            Self::PreconditionFailed => "Changed meanwhile",
            Self::TooLarge => "Too large",
            Self::TooManyStreams => "Too many streams",
            Self::TooManyViews => "Too many views",
            Self::Unauthorized => "Sign-in required",
            Self::Unprocessable => "Cannot be used",
            Self::UnsupportedMediaType => "Not JSON",
        }
    }
}

/// An error (RFC 9457).
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Problem {
    /// What went wrong, for programs.
    #[serde(rename = "type")]
    pub kind: ProblemType,
    /// The same for people.
    pub title: &'static str,
    /// The status of the response.
    pub status: u16,
    /// What went wrong this time, and what to do.
    pub detail: String,
    /// The current version, where another one was expected.
    #[serde(skip)]
    current: Option<String>,
}

impl Problem {
    /// A problem of this type.
    pub fn new(kind: ProblemType, detail: impl Into<String>) -> Self {
        Self {
            kind,
            title: kind.title(),
            status: kind.status().as_u16(),
            detail: detail.into(),
            current: None,
        }
    }

    /// There is no `what`, or nobody may know of it.
    pub fn not_found(what: impl std::fmt::Display) -> Self {
        Self::new(ProblemType::NotFound, format!("there is no {what}"))
    }

    /// It has the version `current`, and not the one that was expected.
    pub(super) fn changed_meanwhile(detail: &str, current: Timestamp) -> Self {
        let mut problem = Self::new(ProblemType::PreconditionFailed, detail);
        problem.current = Some(etag::of_version(current));
        problem
    }

    /// The caller may not do that: `why`.
    pub fn forbidden(why: impl Into<String>) -> Self {
        Self::new(ProblemType::Forbidden, why)
    }
}

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        let kind = match &error {
            ChangeError::Exists(_) => ProblemType::AlreadyExists,
            ChangeError::InFile { .. } => ProblemType::InConfigFile,
            ChangeError::Invalid { .. } | ChangeError::Rejected(_) => ProblemType::Unprocessable,
            ChangeError::Missing(_) => ProblemType::NotFound,
            ChangeError::Files(_) | ChangeError::NotApplied(_) => ProblemType::ConfigErrors,
            ChangeError::Conflict { .. } => ProblemType::PreconditionFailed,
            ChangeError::NoStore | ChangeError::NotRecorded(_) | ChangeError::Store(_) => {
                ProblemType::InternalError
            }
        };
        if let ChangeError::Conflict { current, .. } = error {
            return Self::changed_meanwhile(&error.to_string(), current);
        }
        Self::new(kind, error.to_string())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let kind = if matches!(error, StoreError::NameTaken { .. }) {
            ProblemType::AlreadyExists
        } else {
            ProblemType::InternalError
        };
        Self::new(kind, error.to_string())
    }
}

impl From<AuditError> for Problem {
    fn from(error: AuditError) -> Self {
        Self::new(ProblemType::InternalError, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.kind.status();
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(current) = self.current.and_then(|it| HeaderValue::try_from(it).ok()) {
            headers.insert(ETAG, current);
        }
        response
    }
}

impl OperationOutput for Problem {
    type Inner = Self;

    fn operation_response(ctx: &mut GenContext, _: &mut Operation) -> Option<DocResponse> {
        let json_schema = ctx.schema.subschema_for::<Self>();
        let schema = SchemaObject {
            json_schema,
            external_docs: None,
            example: None,
        };
        let media = MediaType {
            schema: Some(schema),
            ..MediaType::default()
        };
        Some(DocResponse {
            description: "What went wrong (RFC 9457).".to_owned(),
            content: IndexMap::from([("application/problem+json".to_owned(), media)]),
            ..DocResponse::default()
        })
    }

    fn inferred_responses(
        ctx: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<DocStatus>, DocResponse)> {
        // What else may go wrong say the parts of the operation for which it does.
        problems(ctx, operation, &[500])
    }
}
