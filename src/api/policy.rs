//! What policies say: whether an agent may use something, and why.

use std::sync::Arc;

use aide::axum::{ApiRouter, routing::post_with};
use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    ApiState,
    caller::{Reader, find_agent},
    input::JsonBody,
    problem::{Problem, ProblemType},
    value_places::{ValuePlaces, value_places},
};
use crate::{
    auth::{Agent, route_url, token::TokenRejection},
    config::{Config, ValuePlace},
    governance::{
        Explanation, ItemQuery, PolicyQuestion, PolicySubject, check_vendor_method,
        policy::ItemKind,
    },
    mcp::Raw,
    names::{ProfileName, Scope, ServerName},
};

/// What somebody asks about.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AskedUse {
    /// The name or id of the agent; left out with `token`.
    #[serde(default)]
    agent: Option<String>,
    /// An access token: what its subject may do is asked. It is kept nowhere.
    #[serde(default)]
    token: Option<String>,
    /// What the item is.
    #[serde(default)]
    kind: AskedKind,
    /// The item: its exposed name or `server/name`, the URI of a resource, or `server/method`.
    name: String,
    /// Through this profile. Default: the merged route.
    #[serde(default)]
    profile: Option<String>,
    /// The arguments of a call of the tool, to see whether argument rules refuse them.
    #[serde(default)]
    arguments: Option<Map<String, Value>>,
}

/// What an item is.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum AskedKind {
    Method,
    Prompt,
    Resource,
    #[default]
    Tool,
}

/// Whether an agent may use an item, and where that is written.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ExplainedUse {
    #[serde(flatten)]
    explanation: Explanation,
    /// Where each `key` of the others is written.
    places: ValuePlaces,
}

/// The operations.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new().api_route(
        "/api/v1/policy/explain",
        post_with(explain, |op| {
            op.id("explainPolicy").response::<404, Problem>()
        }),
    )
}

/// Explains whether an agent may use a tool, prompt, resource or method, and which limits count.
pub(super) async fn explain(
    State(state): State<Arc<ApiState>>,
    _: Reader,
    JsonBody(asked): JsonBody<AskedUse>,
) -> Result<Json<ExplainedUse>, Problem> {
    let config = state.writer.running();
    let scope = asked.scope(&config)?;
    let agent = asked.subject_agent(&state, (&config, &scope)).await?;
    let subject = asked.find(&state, (&agent, &scope), &config)?;
    let params = asked.arguments.as_ref();
    let params = params.map(|arguments| Raw::from_value(&json!({ "arguments": arguments })));
    let question = PolicyQuestion {
        agent: &agent,
        scope: &scope,
        subject: &subject,
        params: params.as_ref(),
        profile_hint: "; name it as `profile`",
    };
    let explained = state.proxy.governance().explain(&question);
    let explanation =
        explained.map_err(|error| Problem::new(ProblemType::Unprocessable, error.to_string()))?;
    let is_in_config = config.agents.values().any(|known| known.id == agent.base);
    let places = value_places(&state).await;
    Ok(Json(ExplainedUse {
        places: places_of(&explanation, &places, is_in_config),
        explanation,
    }))
}

impl AskedUse {
    const fn kind(&self) -> ItemKind {
        match self.kind {
            AskedKind::Method => ItemKind::Method,
            AskedKind::Prompt => ItemKind::Prompt,
            AskedKind::Resource => ItemKind::Resource,
            AskedKind::Tool => ItemKind::Tool,
        }
    }

    /// The agent that is given, or that the subject of the token is.
    async fn subject_agent(
        &self,
        state: &ApiState,
        (config, scope): (&Config, &Scope),
    ) -> Result<Arc<Agent>, Problem> {
        let token = match (&self.agent, &self.token) {
            (Some(agent), None) => return find_agent(state, agent),
            (None, Some(token)) => token,
            (Some(_), Some(_)) | (None, None) => {
                let detail = "give either `agent` or `token`";
                return Err(Problem::new(ProblemType::InvalidRequest, detail));
            }
        };
        let profile = scope.profile();
        let directory = state.proxy.governance().directory();
        let resource = route_url(config, profile);
        let refused = |why: TokenRejection| {
            let detail = format!("the token is refused on {resource}: {why}");
            Problem::new(ProblemType::Unprocessable, detail)
        };
        let verified = directory.verify_token(token, &resource).await;
        let verified = verified.map_err(refused)?;
        let agent = directory.agent_of_subject(&verified.subject);
        agent.map_err(refused)
    }

    fn scope(&self, config: &Config) -> Result<Scope, Problem> {
        let Some(written) = &self.profile else {
            return Ok(Scope::All);
        };
        let missing = || Problem::not_found(format_args!("profile `{written}`"));
        let name = ProfileName::parse(written).map_err(|_| missing())?;
        let known = config.profiles.contains_key(&name);
        known.then_some(Scope::Profile(name)).ok_or_else(missing)
    }

    /// What is meant: listed, hidden, or of a server that is not listed.
    fn find(
        &self,
        state: &ApiState,
        (agent, scope): (&Agent, &Scope),
        config: &Config,
    ) -> Result<PolicySubject, Problem> {
        let (kind, name) = (self.kind(), self.name.as_str());
        let missing = || Problem::not_found(format_args!("{} `{name}`", kind.noun()));
        let query = ItemQuery { kind, name };
        if kind == ItemKind::Method {
            return self.find_method(config);
        }
        let (board, owners) = (
            state.proxy.catalog_store(),
            state.proxy.owners_seen_by(agent),
        );
        let catalog = board.catalog((&owners, scope));
        if let Some(found) = query.find(&catalog, scope) {
            return Ok(found);
        }
        let whole = state.proxy.whole_catalog(agent, &config.naming);
        if let Some(why) = query.hidden_by(&catalog, scope, &whole) {
            return Err(Problem::new(ProblemType::NotFound, why));
        }
        let list = query.kinds().first().copied().ok_or_else(missing)?;
        let qualified = name.split_once('/').and_then(|(server, item)| {
            let mut servers = config.servers.keys();
            let server = servers.find(|it| it.is_called(server) && board.sees(&owners, it))?;
            Some((Scope::Server(server.clone()), item))
        });
        let unlisted = match &qualified {
            Some((server, item)) => board.unlisted_candidates((&owners, server), list, item),
            None => board.unlisted_candidates((&owners, scope), list, name),
        };
        let first = unlisted.into_iter().next();
        first.map(PolicySubject::Unlisted).ok_or_else(missing)
    }

    /// No server needs to be asked whether it has such a method.
    fn find_method(&self, config: &Config) -> Result<PolicySubject, Problem> {
        let invalid = |why: String| Problem::new(ProblemType::InvalidRequest, why);
        let name = &self.name;
        let written = name.split_once('/');
        let (server, method) =
            written.ok_or_else(|| invalid(format!("`{name}` is not `server/method`")))?;
        check_vendor_method(method).map_err(invalid)?;
        let parsed = ServerName::parse(server).ok();
        let server = parsed.filter(|it| config.servers.contains_key(it));
        let missing = || Problem::not_found(format_args!("server of `{name}`"));
        Ok(PolicySubject::Method {
            server: server.ok_or_else(missing)?,
            method: method.to_owned(),
        })
    }
}

/// Where the keys of `explanation` are written: what the config does not have is of the store.
fn places_of(explanation: &Explanation, all: &ValuePlaces, is_in_config: bool) -> ValuePlaces {
    let rule = explanation.rule.iter().map(|it| &it.key);
    let keys = rule
        .chain(explanation.rates.iter().map(|it| &it.key))
        .chain(explanation.budgets.iter().map(|it| &it.key));
    let place = |key: &String| {
        let below = format!("{key}.");
        let inner = || all.range(below.clone()..).next();
        let inner = || inner().filter(|(known, _)| known.starts_with(&below));
        let found = all.get(key).or_else(|| inner().map(|(_, place)| place));
        let of_store = || {
            let is_of_agent = !is_in_config && key.starts_with("agents.");
            let variables = Vec::new();
            is_of_agent.then_some(ValuePlace::Store { variables })
        };
        Some((key.clone(), found.cloned().or_else(of_store)?))
    };
    keys.filter_map(place).collect()
}
