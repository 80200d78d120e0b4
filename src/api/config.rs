//! The config as a whole: what runs and where it comes from, and whether a document could be one.

use std::{collections::BTreeMap, sync::Arc};

use aide::axum::{
    ApiRouter,
    routing::{get_with, post_with},
};
use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ApiState, caller::Reader, input::JsonBody, problem::Problem};
use crate::{
    config::{self, ConfigFormat, ConfigText, Environment, Notice, Severity, ValuePlace},
    governance::PolicySet,
    task::run_blocking,
};

/// What messages call a document that is validated.
const DOCUMENT_NAME: &str = "document";

/// The config that runs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct RunningConfig {
    /// All of it with every default, as a config file would have it. Secrets are `***`.
    config: Value,
    /// Where each value comes from, by its key, such as `servers.docs.url`.
    origins: BTreeMap<String, ValuePlace>,
}

/// A document that could be a config file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewDocument {
    /// What it says: its text, or the document itself where it is JSON.
    document: WrittenDocument,
    /// How the text is written.
    #[serde(default)]
    format: TextFormat,
}

/// A document as text or as JSON.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum WrittenDocument {
    Text(String),
    Json(serde_json::Map<String, Value>),
}

/// How a text is written.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum TextFormat {
    Json,
    #[default]
    Toml,
    Yaml,
}

/// What came of validating a document.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct DocumentValidation {
    /// Whether it could be used; with warnings it can.
    valid: bool,
    /// What keeps it from being used.
    errors: Vec<DocumentFinding>,
    /// What else is odd about it.
    warnings: Vec<DocumentFinding>,
}

/// What is wrong with a document.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct DocumentFinding {
    /// What is wrong, in one sentence.
    message: String,
    /// The line, from 1, where it stands somewhere. That of a JSON document counts in its indented form.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// The column in characters, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    /// What is wrong at that place.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
}

/// The operations.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route("/api/v1/config", get_with(show, |op| op.id("getConfig")))
        .api_route(
            "/api/v1/config/validate",
            post_with(validate, |op| op.id("validateConfig")),
        )
}

/// Shows the config that runs, and where each of its values comes from.
pub(super) async fn show(State(state): State<Arc<ApiState>>, _: Reader) -> Json<RunningConfig> {
    let running = state.writer.running();
    let shown = run_blocking(move || RunningConfig {
        config: running.to_display().to_json(),
        origins: running.value_places(),
    });
    Json(shown.await)
}

/// Checks a document as a config file would be, and applies nothing. It is looked at alone: every variable, secret and
/// file that it names is taken to be there, and entries of the store are not.
pub(super) async fn validate(
    _: Reader,
    JsonBody(new): JsonBody<NewDocument>,
) -> Result<Json<DocumentValidation>, Problem> {
    Ok(Json(run_blocking(move || new.validate()).await))
}

impl NewDocument {
    fn validate(self) -> DocumentValidation {
        let (text, format) = match self.document {
            WrittenDocument::Text(text) => (text, self.format.into()),
            WrittenDocument::Json(json) => {
                (format!("{:#}", Value::Object(json)), ConfigFormat::Json)
            }
        };
        let source = ConfigText {
            name: DOCUMENT_NAME.to_owned(),
            format,
            text,
            directory: "/".into(),
        };
        let notices = match config::parse([source], &Environment::assumed()) {
            Ok(loaded) => {
                let invalid = PolicySet::new(&loaded.config).err();
                let invalid = invalid.map(|terms| Notice::error(terms.to_string()));
                loaded.warnings.into_iter().chain(invalid).collect()
            }
            Err(errors) => errors.notices,
        };
        let (errors, warnings): (Vec<_>, Vec<_>) = notices
            .into_iter()
            .partition(|notice| notice.severity == Severity::Mistake);
        DocumentValidation {
            valid: errors.is_empty(),
            errors: errors.into_iter().map(DocumentFinding::from).collect(),
            warnings: warnings.into_iter().map(DocumentFinding::from).collect(),
        }
    }
}

impl From<Notice> for DocumentFinding {
    fn from(notice: Notice) -> Self {
        Self {
            message: notice.message,
            line: notice.line,
            column: notice.column,
            label: notice.label.filter(|label| !label.is_empty()),
            help: notice.suggestion,
        }
    }
}

impl From<TextFormat> for ConfigFormat {
    fn from(format: TextFormat) -> Self {
        match format {
            TextFormat::Json => Self::Json,
            TextFormat::Toml => Self::Toml,
            TextFormat::Yaml => Self::Yaml,
        }
    }
}
