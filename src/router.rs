//! `Call` -> `Routed`: one lookup in the catalog snapshot, pure.
//!
//! A [`Routed`] names the server and carries the params in that server's own names.

use std::{borrow::Cow, ops::Range, sync::Arc};

use serde_json::json;

use crate::{
    catalog::{Catalog, ConfiguredNames, HeaderParam, Kind, Lookup, Prompt, Tool, UriMap, rewrite},
    mcp::{Era, Method, Params, Raw, RpcError, error, json, tasks},
    names::{Scope, ServerName},
    session::Call,
};

/// The member of params that names a resource.
const URI_MEMBER: &str = "uri";

/// Members that may be called so in params of methods that only their server knows: each is asked about
/// in every spelling, before anybody counts how often an agent calls.
const URIS_MAX: usize = 8;

/// A call whose server is known.
#[derive(Debug)]
pub struct Routed {
    /// The call as the client made it.
    pub call: Box<Call>,
    /// The server that will be asked.
    pub server: ServerName,
    /// The tool, when one is called.
    pub tool: Option<Arc<Tool>>,
    /// The item that is used; `None` for methods that concern a whole server.
    pub subject: Option<ItemSubject>,
    /// What a method that only its server knows names by `uri`; nothing for any other.
    pub named: NamedResources,
    /// The params in the server's own names.
    pub params: Option<Raw>,
    /// How URIs in what comes back become exposed ones; `None` leaves them alone.
    pub uris: Option<Arc<UriMap>>,
}

impl Routed {
    /// The arguments that travel in headers too (2026-07-28).
    pub fn header_params(&self) -> &[HeaderParam] {
        self.tool.as_ref().map_or(&[], |tool| &tool.headers)
    }
}

/// The item that a call uses, by all of its names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ItemSubject {
    /// What it is; completion of a URI is about a template.
    pub kind: Kind,
    /// Its name or URI on merged routes; empty where they do not list it.
    pub merged: Arc<str>,
    /// What rules know it by.
    pub names: ConfiguredNames,
    /// What the profile of the route calls it, where it renames it; else empty.
    pub alias: Arc<str>,
    /// What its server calls it.
    pub original: Arc<str>,
}

impl ItemSubject {
    fn of_tool(tool: &Tool) -> Self {
        Self {
            kind: Kind::Tools,
            merged: tool.merged.clone(),
            names: tool.names.clone(),
            alias: tool.alias.clone(),
            original: tool.original.clone(),
        }
    }

    fn of_prompt(prompt: &Prompt) -> Self {
        Self {
            kind: Kind::Prompts,
            merged: prompt.merged.clone(),
            names: prompt.names.clone(),
            alias: prompt.alias.clone(),
            original: prompt.original.clone(),
        }
    }

    /// The resource that is called `uri` on the route of `server`; `None` where that does not show it.
    pub fn visible_resource(server: &ServerName, uri: &str, catalog: &Catalog) -> Option<Self> {
        match catalog.resource(&Scope::Server(server.clone()), uri) {
            Lookup::Found { server, original } => {
                let kind = Kind::Resources;
                Some(Self::of_resource(kind, &server, &original, catalog))
            }
            Lookup::Ambiguous { .. } | Lookup::NotFound => None,
        }
    }

    fn of_resource(kind: Kind, server: &ServerName, original: &str, catalog: &Catalog) -> Self {
        let uris = catalog.uris(&Scope::All, server);
        let merged = if kind == Kind::Templates {
            uris.expose_template(original)
        } else {
            uris.expose(original)
        };
        Self {
            kind,
            merged: merged.into(),
            names: catalog.resource_names(server, kind, original),
            alias: Arc::default(),
            original: original.into(),
        }
    }
}

/// The resources that the params of a method name in their `uri`, where only the server knows what the
/// method does with it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NamedResources {
    /// These, of which the server may take any.
    Resources(Vec<ItemSubject>),
    /// What is no text, or too many of them, so that nobody can tell which.
    Ambiguous,
}

impl NamedResources {
    /// No resource.
    pub const NOTHING: Self = Self::Resources(Vec::new());

    /// What `params`, sent on the route of `server` with a method that it alone knows, name.
    ///
    /// # Errors
    /// What keeps them from it.
    pub fn from_params(
        params: &Raw,
        server: &ServerName,
        catalog: &Catalog,
    ) -> Result<Self, NamedResourceError> {
        let json = params.as_bytes();
        let mut resources = Vec::new();
        // Of a doubled member, also one that differs in case alone, a server may take either.
        for member in
            json::members(json, 0).filter(|member| member.matches_ignoring_case(json, URI_MEMBER))
        {
            let value = &json[member.value];
            match json::decode_string(value).filter(|_| resources.len() < URIS_MAX) {
                Some(uri) => {
                    let shown = ItemSubject::visible_resource(server, &uri, catalog);
                    resources.push(shown.ok_or_else(|| NamedResourceError::Hidden {
                        uri: uri.into_owned(),
                    })?);
                }
                None if value == b"null" => {}
                None if catalog.shows_every_resource(server) => return Ok(Self::Ambiguous),
                None => return Err(NamedResourceError::Ambiguous),
            }
        }
        Ok(Self::Resources(resources))
    }
}

/// Why something that a client sends to a server cannot be for it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NamedResourceError {
    /// It names what the server does not show.
    Hidden {
        /// As the client wrote it.
        uri: String,
    },
    /// Nobody can tell what it names, and there is something that the server must not show.
    Ambiguous,
}

/// Why no server is found for a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Unroutable {
    /// What the client is told.
    Refused(RpcError),
    /// The route has no tool of this name.
    UnknownTool {
        /// The name that was called.
        name: String,
    },
}

impl From<RpcError> for Unroutable {
    fn from(error: RpcError) -> Self {
        Self::Refused(error)
    }
}

/// Whether the agent of a call may see the resource of a server; asked where several servers have one.
pub type MaySee<'s> = &'s dyn Fn(&Call, &ServerName, &ItemSubject) -> bool;

/// Finds the server a call belongs to. In a box, as the call: every step hands it to the next.
///
/// # Errors
/// The call, and why there is none.
pub fn route(
    call: Box<Call>,
    catalog: &Catalog,
    sees: MaySee<'_>,
) -> Result<Box<Routed>, Box<(Box<Call>, Unroutable)>> {
    let found = match &call.method {
        Method::ToolsCall => route_tool(&call, catalog),
        Method::PromptsGet => route_prompt(&["name"], &call, catalog).map_err(Unroutable::from),
        Method::ResourcesRead | Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {
            route_resource(&call, catalog, sees).map_err(Unroutable::from)
        }
        Method::Complete => route_completion(&call, catalog, sees).map_err(Unroutable::from),
        Method::Other(_) => route_vendor_method(&call, catalog).map_err(Unroutable::from),
        Method::Listen | Method::SetLevel => route_to_server(&call).map_err(Unroutable::from),
        Method::Discover
        | Method::Initialize
        | Method::Ping
        | Method::PromptsList
        | Method::ResourcesList
        | Method::TemplatesList
        | Method::ToolsList => Err(method_not_found(&call.method).into()),
    };
    match found {
        Ok(RouteTarget {
            server,
            tool,
            subject,
            named,
            params,
        }) => {
            let uris = catalog.uri_map(&call.scope, &server);
            let params = match (params, &uris) {
                (Some(params), Some(uris)) => Some(rewrite::rewrite_input_responses(&params, uris)),
                (params, _) => params,
            };
            Ok(Box::new(Routed {
                call,
                server,
                tool,
                subject,
                named,
                params,
                uris,
            }))
        }
        Err(refusal) => Err(Box::new((call, refusal))),
    }
}

/// What a call names, where that may be an item of a server that is not listed yet.
pub fn requested_item(call: &Call) -> Option<(Kind, String)> {
    let (kind, path): (_, &[_]) = match &call.method {
        Method::ToolsCall => (Kind::Tools, &["name"]),
        Method::PromptsGet => (Kind::Prompts, &["name"]),
        Method::ResourcesRead | Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {
            (Kind::Resources, &[URI_MEMBER])
        }
        // What it hides is not known before.
        Method::Other(_) if matches!(call.scope, Scope::Server(_)) => {
            (Kind::Resources, &[URI_MEMBER])
        }
        Method::Complete => match completion_target(call).ok()? {
            CompletionTarget::Prompt => (Kind::Prompts, CompletionTarget::PROMPT),
            CompletionTarget::Template => (Kind::Templates, CompletionTarget::TEMPLATE),
        },
        Method::Discover
        | Method::Initialize
        | Method::Listen
        | Method::Other(_)
        | Method::Ping
        | Method::PromptsList
        | Method::ResourcesList
        | Method::SetLevel
        | Method::TemplatesList
        | Method::ToolsList => return None,
    };
    let named = RequestedName::at_path(call, path).ok()?;
    Some((kind, named.text.into_owned()))
}

/// The refusal of a method that this route does not have.
pub fn method_not_found(method: &Method) -> RpcError {
    RpcError::new(
        error::METHOD_NOT_FOUND,
        format!("method `{method}` not found"),
    )
}

struct RouteTarget {
    server: ServerName,
    tool: Option<Arc<Tool>>,
    subject: Option<ItemSubject>,
    named: NamedResources,
    params: Option<Raw>,
}

fn route_tool(call: &Call, catalog: &Catalog) -> Result<RouteTarget, Unroutable> {
    let name = RequestedName::at_path(call, &["name"])?;
    let tool = catalog
        .tool(&call.scope, &name.text)
        .ok_or_else(|| Unroutable::UnknownTool {
            name: name.text.to_string(),
        })?;
    let params = name.with_name(&tool.original);
    let is_merged = !matches!(call.scope, Scope::Server(_));
    let params = if is_merged && call.params.as_ref().is_some_and(tasks::may_request_task) {
        // Nobody could ask for the task there.
        tasks::without_task_request(&params).into_owned()
    } else {
        params
    };
    Ok(RouteTarget {
        server: tool.server.clone(),
        params: Some(params),
        subject: Some(ItemSubject::of_tool(tool)),
        named: NamedResources::NOTHING,
        tool: Some(Arc::clone(tool)),
    })
}

fn route_prompt(path: &[&str], call: &Call, catalog: &Catalog) -> Result<RouteTarget, RpcError> {
    let name = RequestedName::at_path(call, path)?;
    let prompt = catalog.prompt(&call.scope, &name.text).ok_or_else(|| {
        RpcError::new(
            error::INVALID_PARAMS,
            format!("Unknown prompt: {}", name.text),
        )
    })?;
    let params = Some(name.with_name(&prompt.original));
    Ok(RouteTarget {
        server: prompt.server.clone(),
        params,
        subject: Some(ItemSubject::of_prompt(prompt)),
        named: NamedResources::NOTHING,
        tool: None,
    })
}

fn route_resource(
    call: &Call,
    catalog: &Catalog,
    sees: MaySee<'_>,
) -> Result<RouteTarget, RpcError> {
    let uri = RequestedName::at_path(call, &[URI_MEMBER])?;
    let (server, original) = find_resource(call, catalog, sees, &uri.text)?;
    let subject = ItemSubject::of_resource(Kind::Resources, &server, &original, catalog);
    Ok(RouteTarget {
        server,
        params: Some(uri.with_name(&original)),
        subject: Some(subject),
        named: NamedResources::NOTHING,
        tool: None,
    })
}

fn route_completion(
    call: &Call,
    catalog: &Catalog,
    sees: MaySee<'_>,
) -> Result<RouteTarget, RpcError> {
    match completion_target(call)? {
        CompletionTarget::Prompt => route_prompt(CompletionTarget::PROMPT, call, catalog),
        CompletionTarget::Template => {
            let uri = RequestedName::at_path(call, CompletionTarget::TEMPLATE)?;
            let (server, original) = find_resource(call, catalog, sees, &uri.text)?;
            let subject = ItemSubject::of_resource(Kind::Templates, &server, &original, catalog);
            Ok(RouteTarget {
                server,
                params: Some(uri.with_name(&original)),
                subject: Some(subject),
                named: NamedResources::NOTHING,
                tool: None,
            })
        }
    }
}

/// What a completion is for.
enum CompletionTarget {
    Prompt,
    Template,
}

impl CompletionTarget {
    const PROMPT: &[&str] = &["ref", "name"];
    const TEMPLATE: &[&str] = &["ref", "uri"];
}

/// What `call` wants completed. A `ref` that names something of the other kind as well is refused:
/// a server that went by that would complete what was not authorized.
fn completion_target(call: &Call) -> Result<CompletionTarget, RpcError> {
    let wrong = |what: &str| RpcError::new(error::INVALID_PARAMS, what);
    let kind = RequestedName::at_path(call, &["ref", "type"])?;
    let (completed, other) = match &*kind.text {
        "ref/prompt" => (CompletionTarget::Prompt, CompletionTarget::TEMPLATE),
        "ref/resource" => (CompletionTarget::Template, CompletionTarget::PROMPT),
        _ => {
            return Err(wrong("`ref.type` must be `ref/prompt` or `ref/resource`"));
        }
    };
    match find_member(kind.params.as_bytes(), other) {
        (None, false) => Ok(completed),
        (_, _) => Err(wrong(
            "`ref` must name either a prompt or a resource, not both",
        )),
    }
}

fn find_resource(
    call: &Call,
    catalog: &Catalog,
    sees: MaySee<'_>,
    uri: &str,
) -> Result<(ServerName, String), RpcError> {
    let mut servers = match catalog.resource(&call.scope, uri) {
        Lookup::Found { server, original } => return Ok((server, original)),
        Lookup::NotFound => Vec::new(),
        Lookup::Ambiguous { servers } => servers,
    };
    // What an agent may not see is not there for it.
    servers.retain(|server| {
        let resource = ItemSubject::of_resource(Kind::Resources, server, uri, catalog);
        sees(call, server, &resource)
    });
    match servers.as_slice() {
        [] => Err(resource_not_found(call, uri)),
        [only] => Ok((only.clone(), uri.to_owned())),
        several => {
            let mut names: Vec<&str> = several.iter().map(ServerName::as_str).collect();
            names.sort_unstable();
            let names = names.join(", ");
            let message = format!(
                "{uri} is ambiguous: it may belong to {names}; use the listed \
                URI"
            );
            Err(resource_error(call, uri, message))
        }
    }
}

fn resource_not_found(call: &Call, uri: &str) -> RpcError {
    resource_error(call, uri, format!("Resource not found: {uri}"))
}

/// The refusal of a `uri` that no one resource is found by.
fn resource_error(call: &Call, uri: &str, message: String) -> RpcError {
    let code = match call.client.era() {
        Era::Legacy => error::RESOURCE_NOT_FOUND,
        Era::Modern => error::INVALID_PARAMS,
    };
    RpcError::new(code, message).with_data(json!({ "uri": uri }))
}

/// Methods without a name to route by belong to the one server of their route.
fn route_to_server(call: &Call) -> Result<RouteTarget, RpcError> {
    match &call.scope {
        Scope::Server(server) => Ok(RouteTarget {
            server: server.clone(),
            tool: None,
            subject: None,
            named: NamedResources::NOTHING,
            params: call.params.as_deref().cloned(),
        }),
        Scope::All | Scope::Profile(_) | Scope::View { .. } => Err(method_not_found(&call.method)),
    }
}

/// Methods that only their server knows belong to the one of their route, as all without a name to
/// route by. What they name by `uri` is for those who may read it, as with methods that we know.
fn route_vendor_method(call: &Call, catalog: &Catalog) -> Result<RouteTarget, RpcError> {
    let target = route_to_server(call)?;
    let Some(params) = &call.params else {
        return Ok(target);
    };
    let named = NamedResources::from_params(params, &target.server, catalog);
    let named = named.map_err(|unnamed| match unnamed {
        NamedResourceError::Hidden { uri } => resource_not_found(call, &uri),
        NamedResourceError::Ambiguous => {
            let message = format!("{} requires a string `{URI_MEMBER}`", call.method);
            RpcError::new(error::INVALID_PARAMS, message)
        }
    })?;
    Ok(RouteTarget { named, ..target })
}

/// A string in the params that names what is wanted.
struct RequestedName<'a> {
    params: &'a Params,
    span: Range<usize>,
    text: Cow<'a, str>,
}

impl<'a> RequestedName<'a> {
    /// The string at `path`. A doubled member is refused, also one that differs in case alone: who
    /// reads it differently from us would act on another name than the one that was authorized.
    fn at_path(call: &'a Call, path: &[&str]) -> Result<Self, RpcError> {
        let wrong = |what: &str| {
            let at = path.join(".");
            RpcError::new(
                error::INVALID_PARAMS,
                format!("{} {what} `{at}`", call.method),
            )
        };
        let params = call
            .params
            .as_ref()
            .ok_or_else(|| wrong("requires a string"))?;
        let (span, is_doubled) = match path {
            ["name"] => (params.member("name"), params.has_duplicate_name()),
            path => find_member(params.as_bytes(), path),
        };
        if is_doubled {
            return Err(wrong("has a duplicate member"));
        }
        let text = span
            .as_ref()
            .and_then(|span| json::decode_string(&params.as_bytes()[span.clone()]));
        match (span, text) {
            (Some(span), Some(text)) => Ok(Self { params, span, text }),
            (_, _) => Err(wrong("requires a string")),
        }
    }

    /// The params with `original` in the string's place.
    fn with_name(&self, original: &str) -> Raw {
        if original == self.text {
            return Raw::clone(self.params);
        }
        self.params.with_text(self.span.clone(), original)
    }
}

/// The value at `path`; none and `true` where a member on the way is doubled, whatever its case.
fn find_member(json: &[u8], path: &[&str]) -> (Option<Range<usize>>, bool) {
    let mut span = 0..json.len();
    for key in path {
        let mut found =
            json::members(json, span.start).filter(|it| it.matches_ignoring_case(json, key));
        match (found.next(), found.next()) {
            (Some(only), None) if only.matches(json, key) => span = only.value,
            (_, second) => return (None, second.is_some()),
        }
    }
    (Some(span), false)
}
