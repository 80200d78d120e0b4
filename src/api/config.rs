//! The config as a whole: what runs and where it comes from, and whether a document could be one.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use aide::{
    OperationOutput,
    axum::{
        ApiRouter,
        routing::{get_with, post_with},
    },
    generate::GenContext,
    openapi::{MediaType, Operation, Response as DocResponse, StatusCode as DocStatus},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, header::CONTENT_TYPE};
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    ApiState,
    caller::{AdminOnly, Reader},
    input::JsonBody,
    problem::{Problem, ProblemType},
};
use crate::{
    clock,
    config::{
        self, AgentConfig, Config, ConfigFormat, ConfigText, Environment, ExportError,
        ExportedAgents, Notice, Severity, ValuePlace,
    },
    governance::PolicySet,
    names::AgentId,
    store::{Store, StoreError},
    task::run_blocking,
};

/// The media type of TOML.
const TOML_TYPE: &str = "application/toml";
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
            "/api/v1/config/export",
            get_with(export, |op| op.id("exportConfig")),
        )
        .api_route(
            "/api/v1/config/validate",
            post_with(validate, |op| op.id("validateConfig")),
        )
}

/// Prints one config file, TOML, that says what files and store say. Secrets are references; what cannot be carried
/// over is told in comments.
pub(super) async fn export(
    State(state): State<Arc<ApiState>>,
    _: AdminOnly,
) -> Result<TomlText, Problem> {
    let text = export_config(&state.writer.running(), state.store.as_ref()).await;
    text.map(TomlText)
        .map_err(|error| Problem::new(ProblemType::InternalError, error.to_string()))
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

/// Why a config cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportFailure {
    /// The config.
    #[error(transparent)]
    Config(#[from] ExportError),
    /// The store, which the operator mends.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One config file, TOML, that says what `config` is made of, and has the agents of `store`.
///
/// # Errors
/// [`ExportFailure`].
pub async fn export_config(
    config: &Config,
    store: Option<&Store>,
) -> Result<String, ExportFailure> {
    let mut exported = ExportedAgents::default();
    let Some(store) = store else {
        return Ok(config.export(&exported)?);
    };
    let mut names: HashMap<AgentId, &str> = HashMap::new();
    names.extend(config.agents.values().map(|agent| (agent.id, &*agent.name)));
    let stored = store.agents.agents().await?.rows;
    let stored: Vec<_> = stored
        .into_iter()
        .filter(|agent| !names.contains_key(&agent.id))
        .collect();
    names.extend(stored.iter().map(|agent| (agent.id, &*agent.name)));
    let now = clock::now();
    for key in store.keys.keys().await?.rows {
        if let Some(agent) = names.get(&key.agent).filter(|_| key.is_live(now)) {
            *exported.keys.entry((*agent).to_owned()).or_default() += 1;
        }
    }
    let agents = stored.iter().map(|agent| AgentConfig {
        id: agent.id,
        name: agent.name.clone(),
        team: agent.team.clone(),
        enabled: agent.enabled,
        role: agent.role,
        keys: Vec::new(),
        certificates: Vec::new(),
        profiles: agent.profiles.clone(),
        terms: agent.terms.clone(),
    });
    exported.agents = agents.collect();
    Ok(config.export(&exported)?)
}

/// TOML as a response.
#[derive(Debug)]
pub(super) struct TomlText(String);

impl IntoResponse for TomlText {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static(TOML_TYPE);
        ([(CONTENT_TYPE, kind)], self.0).into_response()
    }
}

impl OperationOutput for TomlText {
    type Inner = Self;

    fn inferred_responses(
        _: &mut GenContext,
        _: &mut Operation,
    ) -> Vec<(Option<DocStatus>, DocResponse)> {
        let response = DocResponse {
            description: "A config file.".to_owned(),
            content: IndexMap::from([(TOML_TYPE.to_owned(), MediaType::default())]),
            ..DocResponse::default()
        };
        vec![(Some(DocStatus::Code(200)), response)]
    }
}
