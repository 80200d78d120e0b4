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
const URI: &str = "uri";

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
    pub fn shown(server: &ServerName, uri: &str, catalog: &Catalog) -> Option<Self> {
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
    Unclear,
}

impl NamedResources {
    /// No resource.
    pub const NOTHING: Self = Self::Resources(Vec::new());

    /// What `params`, sent on the route of `server` with a method that it alone knows, name.
    ///
    /// # Errors
    /// What keeps them from it.
    pub fn by(params: &Raw, server: &ServerName, catalog: &Catalog) -> Result<Self, Unnamed> {
        let json = params.as_bytes();
        let mut resources = Vec::new();
        // Of a doubled member, also one that differs in case alone, a server may take either.
        for member in json::members(json, 0).filter(|member| member.is_alike(json, URI)) {
            let value = &json[member.value];
            match json::text(value).filter(|_| resources.len() < URIS_MAX) {
                Some(uri) => {
                    let shown = ItemSubject::shown(server, &uri, catalog);
                    resources.push(shown.ok_or_else(|| Unnamed::Hidden {
                        uri: uri.into_owned(),
                    })?);
                }
                None if value == b"null" => {}
                None if catalog.shows_every_resource(server) => return Ok(Self::Unclear),
                None => return Err(Unnamed::Unclear),
            }
        }
        Ok(Self::Resources(resources))
    }
}

/// Why something that a client sends to a server cannot be for it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Unnamed {
    /// It names what the server does not show.
    Hidden {
        /// As the client wrote it.
        uri: String,
    },
    /// Nobody can tell what it names, and there is something that the server must not show.
    Unclear,
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
        Method::ToolsCall => tool(&call, catalog),
        Method::PromptsGet => prompt(&["name"], &call, catalog).map_err(Unroutable::from),
        Method::ResourcesRead | Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {
            resource(&call, catalog, sees).map_err(Unroutable::from)
        }
        Method::Complete => completion(&call, catalog, sees).map_err(Unroutable::from),
        Method::Other(_) => vendor(&call, catalog).map_err(Unroutable::from),
        Method::Listen | Method::SetLevel => whole_server(&call).map_err(Unroutable::from),
        Method::Discover
        | Method::Initialize
        | Method::Ping
        | Method::PromptsList
        | Method::ResourcesList
        | Method::TemplatesList
        | Method::ToolsList => Err(unknown_method(&call.method).into()),
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
                (Some(params), Some(uris)) => Some(rewrite::answers(&params, uris)),
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
pub fn wanted(call: &Call) -> Option<(Kind, String)> {
    let (kind, path): (_, &[_]) = match &call.method {
        Method::ToolsCall => (Kind::Tools, &["name"]),
        Method::PromptsGet => (Kind::Prompts, &["name"]),
        Method::ResourcesRead | Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {
            (Kind::Resources, &[URI])
        }
        // What it hides is not known before.
        Method::Other(_) if matches!(call.scope, Scope::Server(_)) => (Kind::Resources, &[URI]),
        Method::Complete => match completed(call).ok()? {
            Completed::Prompt => (Kind::Prompts, Completed::PROMPT),
            Completed::Template => (Kind::Templates, Completed::TEMPLATE),
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
    let named = RequestedName::of(call, path).ok()?;
    Some((kind, named.text.into_owned()))
}

/// The refusal of a method that this route does not have.
pub fn unknown_method(method: &Method) -> RpcError {
    RpcError::new(
        error::METHOD_NOT_FOUND,
        format!("there is no method `{method}` here"),
    )
}

struct RouteTarget {
    server: ServerName,
    tool: Option<Arc<Tool>>,
    subject: Option<ItemSubject>,
    named: NamedResources,
    params: Option<Raw>,
}

fn tool(call: &Call, catalog: &Catalog) -> Result<RouteTarget, Unroutable> {
    let name = RequestedName::of(call, &["name"])?;
    let tool = catalog
        .tool(&call.scope, &name.text)
        .ok_or_else(|| Unroutable::UnknownTool {
            name: name.text.to_string(),
        })?;
    let params = name.replaced(&tool.original);
    let is_merged = matches!(call.scope, Scope::All | Scope::Profile(_));
    let params = if is_merged && call.params.as_ref().is_some_and(tasks::may_be_wished) {
        // Nobody could ask for the task there.
        tasks::without(&params).into_owned()
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

fn prompt(path: &[&str], call: &Call, catalog: &Catalog) -> Result<RouteTarget, RpcError> {
    let name = RequestedName::of(call, path)?;
    let prompt = catalog.prompt(&call.scope, &name.text).ok_or_else(|| {
        RpcError::new(
            error::INVALID_PARAMS,
            format!("Unknown prompt: {}", name.text),
        )
    })?;
    let params = Some(name.replaced(&prompt.original));
    Ok(RouteTarget {
        server: prompt.server.clone(),
        params,
        subject: Some(ItemSubject::of_prompt(prompt)),
        named: NamedResources::NOTHING,
        tool: None,
    })
}

fn resource(call: &Call, catalog: &Catalog, sees: MaySee<'_>) -> Result<RouteTarget, RpcError> {
    let uri = RequestedName::of(call, &[URI])?;
    let (server, original) = find_resource(call, catalog, sees, &uri.text)?;
    let subject = ItemSubject::of_resource(Kind::Resources, &server, &original, catalog);
    Ok(RouteTarget {
        server,
        params: Some(uri.replaced(&original)),
        subject: Some(subject),
        named: NamedResources::NOTHING,
        tool: None,
    })
}

fn completion(call: &Call, catalog: &Catalog, sees: MaySee<'_>) -> Result<RouteTarget, RpcError> {
    match completed(call)? {
        Completed::Prompt => prompt(Completed::PROMPT, call, catalog),
        Completed::Template => {
            let uri = RequestedName::of(call, Completed::TEMPLATE)?;
            let (server, original) = find_resource(call, catalog, sees, &uri.text)?;
            let subject = ItemSubject::of_resource(Kind::Templates, &server, &original, catalog);
            Ok(RouteTarget {
                server,
                params: Some(uri.replaced(&original)),
                subject: Some(subject),
                named: NamedResources::NOTHING,
                tool: None,
            })
        }
    }
}

/// What a completion is for.
enum Completed {
    Prompt,
    Template,
}

impl Completed {
    const PROMPT: &[&str] = &["ref", "name"];
    const TEMPLATE: &[&str] = &["ref", "uri"];
}

/// What `call` wants completed. A `ref` that names something of the other kind as well is refused:
/// a server that went by that would complete what was not authorized.
fn completed(call: &Call) -> Result<Completed, RpcError> {
    let wrong = |what: &str| RpcError::new(error::INVALID_PARAMS, what);
    let kind = RequestedName::of(call, &["ref", "type"])?;
    let (completed, other) = match &*kind.text {
        "ref/prompt" => (Completed::Prompt, Completed::TEMPLATE),
        "ref/resource" => (Completed::Template, Completed::PROMPT),
        _ => {
            return Err(wrong(
                "`ref.type` is neither `ref/prompt` nor `ref/resource`",
            ));
        }
    };
    match find(kind.params.as_bytes(), other) {
        (None, false) => Ok(completed),
        (_, _) => Err(wrong("`ref` names both a prompt and a resource")),
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
        [] => Err(not_found(call, uri)),
        [only] => Ok((only.clone(), uri.to_owned())),
        several => {
            let mut names: Vec<&str> = several.iter().map(ServerName::as_str).collect();
            names.sort_unstable();
            let names = names.join(", ");
            let message = format!("{uri} could be a resource of {names}; use its listed URI");
            Err(no_resource(call, uri, message))
        }
    }
}

fn not_found(call: &Call, uri: &str) -> RpcError {
    no_resource(call, uri, format!("Resource not found: {uri}"))
}

/// The refusal of a `uri` that no one resource is found by.
fn no_resource(call: &Call, uri: &str, message: String) -> RpcError {
    let code = match call.client.era() {
        Era::Legacy => error::RESOURCE_NOT_FOUND,
        Era::Modern => error::INVALID_PARAMS,
    };
    RpcError::new(code, message).with(json!({ "uri": uri }))
}

/// Methods without a name to route by belong to the one server of their route.
fn whole_server(call: &Call) -> Result<RouteTarget, RpcError> {
    match &call.scope {
        Scope::Server(server) => Ok(RouteTarget {
            server: server.clone(),
            tool: None,
            subject: None,
            named: NamedResources::NOTHING,
            params: call.params.as_deref().cloned(),
        }),
        Scope::All | Scope::Profile(_) => Err(unknown_method(&call.method)),
    }
}

/// Methods that only their server knows belong to the one of their route, as all without a name to
/// route by. What they name by `uri` is for those who may read it, as with methods that we know.
fn vendor(call: &Call, catalog: &Catalog) -> Result<RouteTarget, RpcError> {
    let target = whole_server(call)?;
    let Some(params) = &call.params else {
        return Ok(target);
    };
    let named = NamedResources::by(params, &target.server, catalog);
    let named = named.map_err(|unnamed| match unnamed {
        Unnamed::Hidden { uri } => not_found(call, &uri),
        Unnamed::Unclear => {
            let message = format!("{} needs a string `{URI}`", call.method);
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
    fn of(call: &'a Call, path: &[&str]) -> Result<Self, RpcError> {
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
            .ok_or_else(|| wrong("needs a string"))?;
        let (span, is_doubled) = match path {
            ["name"] => (params.member("name"), params.name_is_doubled()),
            path => find(params.as_bytes(), path),
        };
        if is_doubled {
            return Err(wrong("has a doubled member"));
        }
        let text = span
            .as_ref()
            .and_then(|span| json::text(&params.as_bytes()[span.clone()]));
        match (span, text) {
            (Some(span), Some(text)) => Ok(Self { params, span, text }),
            (_, _) => Err(wrong("needs a string")),
        }
    }

    /// The params with `original` in the string's place.
    fn replaced(&self, original: &str) -> Raw {
        if original == self.text {
            return Raw::clone(self.params);
        }
        self.params.with_text(self.span.clone(), original)
    }
}

/// The value at `path`; none and `true` where a member on the way is doubled, whatever its case.
fn find(json: &[u8], path: &[&str]) -> (Option<Range<usize>>, bool) {
    let mut span = 0..json.len();
    for key in path {
        let mut found = json::members(json, span.start).filter(|it| it.is_alike(json, key));
        match (found.next(), found.next()) {
            (Some(only), None) if only.is(json, key) => span = only.value,
            (_, second) => return (None, second.is_some()),
        }
    }
    (Some(span), false)
}
