//! The admin API at `/api/v1`: what a person can see or change, one operation each.
//!
//! Operations are axum handlers; aide makes the OpenAPI description of their types, so that the two cannot differ. Who
//! may use one is the extractor that it takes first (`caller`). What is changed are entries of the store, by a
//! [`ConfigWriter`] that checks, writes and applies them; `http` brings the requests here, signed in.

mod agent_keys;
mod agent_servers;
mod agents;
mod audit;
mod audit_follow;
mod budgets;
mod caller;
mod config;
mod entries;
mod etag;
mod events;
mod idempotency;
mod input;
mod me;
mod page;
mod plan;
mod policy;
mod problem;
mod profiles;
mod response;
mod secrets;
mod server_actions;
mod server_tools;
mod servers;
mod status;
mod tools;
mod trials;
mod usage;
mod value_places;
mod views;
mod workspace_rules;
mod workspaces;

use std::{path::PathBuf, sync::Arc, time::Duration};

use aide::{
    axum::ApiRouter,
    openapi::{Components, Info, OpenApi, ReferenceOr, SecurityRequirement, SecurityScheme},
};
use axum::{
    Extension, body::Body, extract::DefaultBodyLimit, response::IntoResponse, routing::get,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, header::CONTENT_TYPE};
use indexmap::IndexMap;
use jiff::Timestamp;
use tokio::sync::oneshot;
use tower_service::Service;

use crate::{
    backend::ServerStatusReport,
    catalog::Tool,
    config::Config,
    config_change::{ChangeError, EntryChange},
    names::ServerName,
    proxy::Proxy,
    status::Status,
    store::{Store, StoredEntry},
    task::Tasks,
    views::{ViewChange, ViewOutcome},
};
pub(crate) use caller::ApiCaller;
pub use config::{ExportFailure, export_config};
pub(crate) use events::EventStreams;
use idempotency::KeptAnswers;
pub use plan::ChangePlan;
pub use problem::{Problem, ProblemType};
pub(crate) use trials::ServerTrials;
pub(crate) use value_places::FoundPlaces;
pub(crate) use views::view_event;

/// What the description calls how callers sign in.
const SIGN_IN: &str = "signIn";

/// Changes entries of the config that stand in the store.
pub trait ConfigWriter: std::fmt::Debug + Send + Sync {
    /// The config that runs.
    fn running(&self) -> Arc<Config>;

    /// The entries of the store, as they were last read.
    fn entries(&self) -> Vec<StoredEntry>;

    /// What `change` would do.
    ///
    /// # Errors
    /// Why it cannot be made.
    fn plan<'a>(
        &'a self,
        change: &'a EntryChange,
    ) -> BoxFuture<'a, Result<ChangePlan, ChangeError>>;

    /// Makes `change`: it is checked, written, recorded with who made it and what it is, and counts when this is
    /// over. What it did, and the version that the entry has now.
    ///
    /// # Errors
    /// Why it was not made.
    fn apply<'a>(
        &'a self,
        change: &'a EntryChange,
        record: (&'a str, &'a str),
    ) -> BoxFuture<'a, Result<(ChangePlan, Timestamp), ChangeError>>;

    /// Connects to the server `name` beside what runs, with `unsaved` or as it is, and lists it.
    ///
    /// # Errors
    /// Why it is none that could run.
    fn try_server<'a>(
        &'a self,
        name: &'a ServerName,
        unsaved: Option<&'a EntryChange>,
    ) -> BoxFuture<'a, Result<ServerTrial, ChangeError>>;

    /// Lets this gateway and others on the store read agents and keys again, which were changed there.
    ///
    /// # Errors
    /// Why this one cannot.
    fn apply_agents(&self) -> BoxFuture<'_, Result<(), String>>;

    /// Makes `change` to a view and records it, with who made it and what it is, if it was made; then every gateway on
    /// the store knows it.
    ///
    /// # Errors
    /// Why it could not be written.
    fn change_view<'a>(
        &'a self,
        change: &'a ViewChange,
        record: (&'a str, &'a str),
    ) -> BoxFuture<'a, Result<ViewOutcome, Problem>>;

    /// Ends every connection to a server and makes new ones; whether it is one that is enabled.
    fn restart_server(&self, name: &ServerName) -> bool;
}

/// What came of connecting to a server.
#[derive(Debug)]
pub struct ServerTrial {
    /// How it does; `None` where there is no such server.
    pub(crate) report: Option<ServerStatusReport>,
    /// What it lists.
    pub(crate) tools: Vec<Arc<Tool>>,
    /// From the start to the end of its lists.
    pub(crate) latency: Duration,
}

/// What operations work with.
#[derive(Debug)]
pub(crate) struct ApiState {
    pub(crate) tasks: Tasks,
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) status: Arc<Status>,
    pub(crate) writer: Arc<dyn ConfigWriter>,
    /// `None`: there is none, and nothing can be changed.
    pub(crate) store: Option<Store>,
    pub(crate) data_dir: PathBuf,
    /// Held while an agent is changed: what is written is what was read.
    pub(crate) agent_changes: tokio::sync::Mutex<()>,
    /// What servers listed when they were tried.
    pub(crate) trials: ServerTrials,
    pub(crate) event_streams: EventStreams,
    pub(crate) found_places: FoundPlaces,
}

/// The API.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    router: axum::Router,
    kept_answers: KeptAnswers,
    tasks: Tasks,
}

impl Api {
    /// The operations on a gateway.
    pub(crate) fn new(state: ApiState) -> Self {
        let (router, description) = describe();
        let tasks = state.tasks.clone();
        let state = Arc::new(state);
        Self {
            router: router
                .merge(agent_servers::routes())
                .method_not_allowed_fallback(async || {
                    let detail = "the path has no such method; `Allow` says which it has";
                    Problem::new(ProblemType::MethodNotAllowed, detail)
                })
                // Bodies come within `limits.body`.
                .layer(DefaultBodyLimit::disable())
                .layer(Extension(Arc::new(description)))
                .with_state(state),
            kept_answers: KeptAnswers::default(),
            tasks,
        }
    }

    /// Answers a request; its extension is the [`ApiCaller`], where somebody has signed in.
    pub(crate) async fn handle(&self, request: Request<Bytes>) -> Response<Body> {
        if request.method().is_safe() {
            return self.route(request).await;
        }
        let slot = match self.kept_answers.slot_of(&request) {
            Ok(slot) => slot,
            Err(problem) => return problem.into_response(),
        };
        let api = self.clone();
        let (answer, answered) = oneshot::channel();
        // Whoever hangs up does not stop a change half way.
        self.tasks.spawn("change over the API", async move {
            let response = match slot {
                Some(slot) => {
                    slot.answer(request, async |asked| api.route(asked).await)
                        .await
                }
                None => api.route(request).await,
            };
            drop(answer.send(response));
        });
        answered.await.unwrap_or_else(|_| {
            let detail = "the gateway stops: look whether the change was made";
            Problem::new(ProblemType::InternalError, detail).into_response()
        })
    }

    async fn route(&self, mut request: Request<Bytes>) -> Response<Body> {
        if let Some(uri) = servers::uri_beside_operations(&request) {
            *request.uri_mut() = uri;
        }
        let mut router = self.router.clone();
        match router.call(request.map(Body::from)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// The operations, and their description as JSON.
fn describe() -> (axum::Router<Arc<ApiState>>, Bytes) {
    let sign_in = SecurityScheme::Http {
        scheme: "bearer".to_owned(),
        bearer_format: None,
        description: Some("A key of an agent, or an access token for it.".to_owned()),
        extensions: IndexMap::new(),
    };
    let mut document = OpenApi {
        info: Info {
            title: "Tollbridge".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            description: Some("The admin API of a Tollbridge gateway.".to_owned()),
            ..Info::default()
        },
        security: vec![SecurityRequirement::from_iter([(
            SIGN_IN.to_owned(),
            Vec::new(),
        )])],
        components: Some(Components {
            security_schemes: IndexMap::from([(SIGN_IN.to_owned(), ReferenceOr::Item(sign_in))]),
            ..Components::default()
        }),
        ..OpenApi::default()
    };
    let router = router().finish_api(&mut document);
    let description = serde_json::to_vec_pretty(&document).unwrap_or_default();
    (router, description.into())
}

/// The OpenAPI description, JSON.
pub fn openapi() -> Bytes {
    describe().1
}

/// Every operation; each room of them has routes of its own.
fn router() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .merge(agent_keys::routes())
        .merge(agents::routes())
        .merge(audit::routes())
        .merge(audit_follow::routes())
        .merge(budgets::routes())
        .merge(config::routes())
        .merge(me::routes())
        .merge(policy::routes())
        .merge(profiles::routes())
        .merge(events::routes())
        .merge(secrets::routes())
        .merge(server_actions::routes())
        .merge(server_tools::routes())
        .merge(servers::routes())
        .merge(status::routes())
        .merge(tools::routes())
        .merge(usage::routes())
        .merge(views::routes())
        .merge(workspaces::routes())
        .route("/api/v1/openapi.json", get(show_description))
        .fallback(async || Problem::not_found("such path"))
}

async fn show_description(Extension(description): Extension<Arc<Bytes>>) -> impl IntoResponse {
    let json = HeaderValue::from_static("application/json");
    ([(CONTENT_TYPE, json)], Bytes::clone(&description))
}
