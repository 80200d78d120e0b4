//! The tools of a server, and what its entry says of each.

use std::sync::Arc;

use aide::axum::{
    ApiRouter,
    routing::{get_with, patch_with},
};
use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::{
    ApiState,
    caller::{Manager, WorkspaceReader},
    input::{ChangeOptions, InPath, JsonBody, QueryParams},
    page::{Page, PageQuery},
    problem::Problem,
    response::WithEtag,
    servers::{ServerChanged, ServerPath, ShownServers, edit_server},
};
use crate::{
    catalog::{Kind, Tool},
    mcp::Raw,
    names::ServerName,
};

/// A tool of a server.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ServerTool {
    /// What the server calls it.
    name: String,
    /// What clients call it; absent where they do not see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    exposed_name: Option<String>,
    /// What clients read of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The schema of its arguments, as the server gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    input_schema: Option<Box<RawValue>>,
    /// The price of a call, USD.
    price: String,
    /// Whether clients see it, as the rules of the server are.
    enabled: bool,
}

/// What is changed of a tool; null takes away what was said.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ToolChange {
    /// Whether clients see it: `tools.deny`.
    enabled: Option<bool>,
    /// What clients read of it: `tools.describe`.
    #[serde(deserialize_with = "present")]
    #[expect(clippy::option_option, reason = "null is not the same as nothing")]
    description: Option<Option<String>>,
    /// The price of a call in USD, such as `"0.02"`: `tools.price`.
    #[serde(deserialize_with = "present")]
    #[expect(clippy::option_option, reason = "null is not the same as nothing")]
    price: Option<Option<String>>,
}

/// Which tool of a server a path means.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(super) struct ServerToolPath {
    /// The name or the id of the server.
    server: String,
    /// What the server calls the tool.
    tool: String,
}

#[expect(clippy::option_option, reason = "null is not the same as nothing")]
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// The operations.
pub(super) fn routes() -> ApiRouter<Arc<ApiState>> {
    ApiRouter::new()
        .api_route(
            "/api/v1/servers/{server}/tools",
            get_with(list, |op| op.id("listServerTools")),
        )
        .api_route(
            "/api/v1/servers/{server}/tools/{tool}",
            patch_with(patch, |op| op.id("patchServerTool")),
        )
}

/// Lists the tools of a server, also those that clients do not see.
pub(super) async fn list(
    State(state): State<Arc<ApiState>>,
    WorkspaceReader(caller): WorkspaceReader,
    InPath(path): InPath<ServerPath>,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<Page<ServerTool>>, Problem> {
    let shown = ShownServers::seen_by(&state, &caller);
    let name = shown.find(&path.server)?;
    let mut tools = tools_of(&shown, &name);
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).collect();
    let show = |name: &&str| {
        let at = names.partition_point(|known| known < name);
        tools[at].clone()
    };
    page.page(&names, show).map(Json)
}

/// Changes what the entry of a server says of a tool.
pub(super) async fn patch(
    State(state): State<Arc<ApiState>>,
    Manager(caller): Manager,
    InPath(path): InPath<ServerToolPath>,
    options: ChangeOptions,
    JsonBody(change): JsonBody<ToolChange>,
) -> Result<WithEtag<ServerChanged>, Problem> {
    let shown = ShownServers::seen_by(&state, &caller);
    let name = shown.find(&path.server)?;
    let tools = tools_of(&shown, &name);
    if !tools.is_empty() && tools.iter().all(|tool| tool.name != path.tool) {
        let what = format!("tool `{}` of the server `{name}`", path.tool);
        return Err(Problem::not_found(what));
    }
    let server = ServerPath {
        server: path.server,
    };
    let edit = |mut document: Value| {
        change.write_into(&path.tool, &mut document);
        document
    };
    edit_server(&state, &caller, (&server, options), edit).await
}

impl ToolChange {
    fn write_into(self, tool: &str, document: &mut Value) {
        let Some(entry) = document.as_object_mut() else {
            return;
        };
        let rules = entry.entry("tools").or_insert_with(|| json!({}));
        if let Some(enabled) = self.enabled {
            let glob = Value::from(globset::escape(tool));
            let denied = rules.get("deny").and_then(Value::as_array);
            let mut denied = denied.cloned().unwrap_or_default();
            denied.retain(|it| *it != glob && it.as_str() != Some(tool));
            if !enabled {
                denied.push(glob);
            }
            rules["deny"] = denied.into();
        }
        for (key, value) in [("describe", self.description), ("price", self.price)] {
            let Some(value) = value else { continue };
            if !rules.get(key).is_some_and(Value::is_object) {
                rules[key] = json!({});
            }
            match (value, rules[key].as_object_mut()) {
                (Some(value), Some(said)) => drop(said.insert(tool.to_owned(), value.into())),
                (None, Some(said)) => drop(said.remove(tool)),
                (_, None) => {}
            }
        }
    }
}

/// What `server` lists, whatever is hidden of it.
fn tools_of(shown: &ShownServers<'_>, server: &ServerName) -> Vec<ServerTool> {
    let store = shown.state.proxy.catalog_store();
    let catalog = store.catalog_of(server);
    let visible: Vec<&Arc<Tool>> = catalog
        .tools()
        .filter(|tool| tool.server == *server)
        .collect();
    let config = shown.entries.config.servers.get(server);
    let offers = store.offers();
    let offer = offers.iter().find(|offer| offer.server == *server);
    let items = offer.map_or(&[][..], |offer| offer.listing.items(Kind::Tools));
    let show = |item: &Raw| {
        let name = text_of(item, "name")?;
        let exposed = visible.iter().find(|tool| *tool.original == *name);
        let rules = config.map(|config| &config.tools);
        let said = rules.and_then(|rules| rules.describe.get(&name)).cloned();
        let price = rules.and_then(|rules| rules.price.get(&name)).copied();
        let price = price.or_else(|| config.and_then(|config| config.price));
        let price = price.unwrap_or(shown.entries.config.governance.price);
        let schema = item.get("inputSchema");
        Some(ServerTool {
            exposed_name: exposed
                .filter(|tool| !tool.merged.is_empty())
                .map(|tool| tool.merged.to_string()),
            description: said.or_else(|| text_of(item, "description")),
            input_schema: schema.and_then(|schema| schema.read::<Box<RawValue>>().ok()),
            price: price.to_decimal(),
            enabled: exposed.is_some(),
            name,
        })
    };
    items.iter().filter_map(show).collect()
}

fn text_of(item: &Raw, key: &str) -> Option<String> {
    item.get(key)?.as_text().map(Into::into)
}
