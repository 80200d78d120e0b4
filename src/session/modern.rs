//! The rules of 2026-07-28: what a stateless request must carry, and what its results carry.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use http::{HeaderMap, HeaderName, StatusCode};
use serde_json::json;

use super::{Client, ClientInfo, Interest, ServerInfo};
use crate::{
    auth::Agent,
    mcp::{
        Level, LogFilter, Method, Params, Raw, Request, Revision, RpcError, error, header,
        json as text, meta,
    },
};

/// Bytes of the id and the params of a `subscriptions/listen`: both are kept as long as the stream is open.
pub const LISTEN_BYTES_MAX: usize = 256 << 10;

/// What a modern request says about its client.
#[derive(Clone, Debug)]
pub struct RequestEnvelope {
    /// The revision of the request.
    pub revision: Revision,
    /// `clientInfo`.
    pub info: Option<Raw>,
    /// `clientCapabilities`, an object.
    pub capabilities: Raw,
    /// Which log messages are wanted.
    pub logs: LogFilter,
    /// `progressToken`.
    pub progress_token: Option<Raw>,
}

impl RequestEnvelope {
    /// The client that a request of `agent` describes, and what it wants.
    pub fn into_client(self, agent: Arc<Agent>) -> (Client, Interest) {
        let client = Client {
            agent,
            client_info: Arc::new(ClientInfo {
                revision: self.revision,
                info: self.info,
                display_name: OnceLock::new(),
                capabilities: self.capabilities,
                profile: Arc::default(),
            }),
            session: None,
            forwarded: None,
            missing_scopes: None,
        };
        let interest = Interest {
            logs: self.logs,
            progress_token: self.progress_token,
        };
        (client, interest)
    }
}

/// A request that is turned away before it reaches the catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct ModernRefusal {
    /// HTTP status, where there is HTTP.
    pub status: StatusCode,
    /// The answer.
    pub error: RpcError,
}

impl ModernRefusal {
    fn bad_request(code: i64, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            error: RpcError::new(code, message),
        }
    }
}

/// Whether `request` claims to be a modern one.
pub fn is_modern(request: &Request) -> bool {
    let params = request.params.as_ref();
    params.is_some_and(|params| params.meta().version.is_some())
}

/// Checks a modern request in the order of Spec 2026-07-28, streamable HTTP: headers against the
/// body, the revision, the method, then the rest of the envelope. `headers` is `None` on stdio.
///
/// # Errors
/// The refusal that the spec prescribes for the first thing wrong.
pub fn check_request(
    request: &Request,
    headers: Option<&HeaderMap>,
) -> Result<RequestEnvelope, ModernRefusal> {
    let no_meta = || {
        let message = format!("params._meta lacks `{}`", meta::PROTOCOL_VERSION);
        ModernRefusal::bad_request(error::INVALID_PARAMS, message)
    };
    let params = request.params.as_ref().ok_or_else(no_meta)?;
    let found = params.meta();
    let version = found.version.clone().ok_or_else(no_meta)?;
    let version = text::decode_string(&params.as_bytes()[version]).ok_or_else(no_meta)?;
    let slice = |span: &Option<Range<usize>>| Some(params.slice(span.clone()?));
    if let Some(headers) = headers {
        check_headers(request, params, &version, headers)?;
    }
    let revision = Revision::parse(&version)
        .filter(|revision| revision.era() == crate::mcp::Era::Modern)
        .ok_or_else(|| unsupported_version(&version))?;
    if !request.method.is_modern() {
        return Err(ModernRefusal {
            status: StatusCode::NOT_FOUND,
            error: RpcError::new(
                error::METHOD_NOT_FOUND,
                format!("{} has no method `{}`", revision, request.method),
            ),
        });
    }
    let bytes = request.id.raw().as_bytes().len() + params.as_bytes().len();
    if request.method == Method::Listen && bytes > LISTEN_BYTES_MAX {
        let message = format!(
            "id and params of `subscriptions/listen` have {bytes} bytes; the maximum is \
             {LISTEN_BYTES_MAX}"
        );
        return Err(ModernRefusal::bad_request(error::INVALID_PARAMS, message));
    }
    let capabilities = slice(&found.client_capabilities)
        .filter(Raw::is_object)
        .ok_or_else(|| {
            let message = format!(
                "params._meta lacks the object `{}`",
                meta::CLIENT_CAPABILITIES
            );
            ModernRefusal::bad_request(error::INVALID_PARAMS, message)
        })?;
    let logs = match slice(&found.log_level) {
        None => LogFilter::None,
        Some(level) => LogFilter::From(parse_level(&level)?),
    };
    Ok(RequestEnvelope {
        revision,
        info: slice(&found.client_info),
        capabilities,
        logs,
        progress_token: slice(&found.progress_token),
    })
}

fn parse_level(level: &Raw) -> Result<Level, ModernRefusal> {
    level
        .as_text()
        .and_then(|level| Level::parse(&level))
        .ok_or_else(|| {
            let names = Level::ALL.map(Level::as_str).join(", ");
            ModernRefusal::bad_request(
                error::INVALID_PARAMS,
                format!("the log level must be one of {names}"),
            )
        })
}

/// The refusal of a revision that is not spoken here, or not without a session.
fn unsupported_version(requested: &str) -> ModernRefusal {
    let Some(legacy) = Revision::parse(requested) else {
        return refuse_version(requested, &Revision::ALL);
    };
    // Whoever is refused goes on with one that is listed, in the same way.
    let mut refusal = refuse_version(requested, &[Revision::MODERN]);
    refusal.error.message =
        format!("protocol version {legacy} has no per-request _meta: send `initialize` first");
    refusal
}

/// The refusal of a revision where only `supported` ones are spoken.
pub fn refuse_version(requested: &str, supported: &[Revision]) -> ModernRefusal {
    let error = RpcError::new(
        error::UNSUPPORTED_VERSION,
        format!("protocol version {requested} is not supported"),
    );
    let supported: Vec<_> = supported.iter().map(|revision| revision.as_str()).collect();
    ModernRefusal {
        status: StatusCode::BAD_REQUEST,
        error: error.with_data(json!({ "supported": supported, "requested": requested })),
    }
}

fn check_headers(
    request: &Request,
    params: &Params,
    version: &str,
    headers: &HeaderMap,
) -> Result<(), ModernRefusal> {
    expect_header(headers, &header::PROTOCOL_VERSION, version)?;
    expect_header(headers, &header::METHOD, request.method.as_str())?;
    let Some(member) = request.method.name_key() else {
        return Ok(());
    };
    let name = params.text_member(member).ok_or_else(|| {
        let message = format!("{} needs a string `{member}`", request.method);
        ModernRefusal::bad_request(error::INVALID_PARAMS, message)
    })?;
    // The tasks extension only asks clients to send it.
    let optional = matches!(request.method, Method::Other(_));
    if optional && !headers.contains_key(header::NAME) {
        return Ok(());
    }
    expect_header(headers, &header::NAME, &name)
}

/// Whether the header `name` is there once and, decoded, equals `expect`.
fn expect_header(
    headers: &HeaderMap,
    name: &HeaderName,
    expect: &str,
) -> Result<(), ModernRefusal> {
    let mismatch = |message: String| ModernRefusal::bad_request(error::HEADER_MISMATCH, message);
    let mut values = headers.get_all(name).iter();
    let value = values
        .next()
        .ok_or_else(|| mismatch(format!("the header {name} is missing")))?;
    if values.next().is_some() {
        return Err(mismatch(format!(
            "the header {name} is given more than once"
        )));
    }
    if header::matches_plain(value, expect) {
        return Ok(());
    }
    match value.to_str().ok().and_then(header::decode) {
        Some(value) if value == expect => Ok(()),
        Some(value) => Err(mismatch(format!(
            "the header {name} is `{value}` but the body has `{expect}`"
        ))),
        None => Err(mismatch(format!("the header {name} cannot be decoded"))),
    }
}

/// The `_meta` member that says who we are.
pub fn server_info_member() -> String {
    let info = super::server_info();
    format!(r#""{}":{info}"#, meta::SERVER_INFO)
}

/// The result of `server/discover`.
pub fn discover_result(server_info: &ServerInfo) -> Raw {
    let supported = Revision::ALL.map(Revision::as_str);
    let mut result = format!(
        r#"{{"supportedVersions":{},"capabilities":{}"#,
        json!(supported),
        server_info.capabilities
    );
    if let Some(instructions) = &server_info.instructions {
        result.push_str(r#","instructions":"#);
        result.push_str(&json!(instructions).to_string());
    }
    result.push_str(r#","resultType":"complete","ttlMs":0,"cacheScope":"private","_meta":{"#);
    result.push_str(&server_info_member());
    result.push_str("}}");
    Raw::parse(result).expect("members of ours are JSON")
}

/// Makes the result of a legacy server one of 2026-07-28: what is missing is added at the front.
pub fn upgrade_result(method: &Method, result: &Raw) -> Raw {
    if !result.is_object() {
        return result.clone();
    }
    let json = result.as_bytes();
    let mut add = String::new();
    if text::find_member(json, 0, "resultType").is_none() {
        add.push_str(r#""resultType":"complete""#);
    }
    if method.is_cacheable() && text::find_member(json, 0, "ttlMs").is_none() {
        add.push_str(if add.is_empty() { "" } else { "," });
        add.push_str(r#""ttlMs":0,"cacheScope":"private""#);
    }
    if add.is_empty() {
        return result.clone();
    }
    let mut patch = text::Patch::new(json);
    patch.insert_members(0, &add);
    patch.finish()
}

/// Makes a 2026-07-28 result one of the legacy era: its own members are removed, and structured
/// content that is no object becomes text.
pub fn downgrade_result(result: &Raw) -> Raw {
    let json = result.as_bytes();
    let mut patch = text::Patch::new(json);
    // Walked once: it may be large.
    let members: Vec<text::Member> = text::members(json, 0).collect();
    let find = |key: &str| members.iter().rfind(|member| member.matches(json, key));
    let foreign = find("structuredContent").filter(|it| json[it.value.start] != b'{');
    let unread = foreign.map(|foreign| {
        let content = find("content").filter(|it| json[it.value.start] == b'[');
        add_text_content(&mut patch, json, foreign, content)
    });
    patch.remove_from(&members, |member| {
        ["resultType", "ttlMs", "cacheScope"]
            .iter()
            .chain(&unread)
            .any(|key| member.matches(json, key))
    });
    if let Some(meta) = find("_meta") {
        patch.remove_members(meta.value.start, |member| {
            member.matches(json, meta::SERVER_INFO)
        });
    }
    if patch.is_empty() {
        result.clone()
    } else {
        patch.finish()
    }
}

/// Has no cache keep a result of 2026-07-28 for others than who asked.
pub fn mark_private(result: &Raw) -> Raw {
    let json = result.as_bytes();
    let mut patch = text::Patch::new(json);
    for member in text::members(json, 0) {
        if member.matches(json, "cacheScope") && &json[member.value.clone()] != PRIVATE_SCOPE {
            patch.replace(member.value, PRIVATE_SCOPE);
        }
    }
    if patch.is_empty() {
        result.clone()
    } else {
        patch.finish()
    }
}

const PRIVATE_SCOPE: &[u8] = br#""private""#;

/// Has the content of a tool's result say what `structured` does, unless it has text already; the
/// member that is to be removed then.
fn add_text_content(
    patch: &mut text::Patch<'_>,
    json: &[u8],
    structured: &text::Member,
    content: Option<&text::Member>,
) -> &'static str {
    let said = Raw::string(&String::from_utf8_lossy(&json[structured.value.clone()]));
    let block = format!(r#"{{"type":"text","text":{}}}"#, said.as_str());
    let Some(content) = content.map(|content| content.value.start) else {
        patch.replace(structured.key.clone(), &br#""content""#[..]);
        patch.replace(structured.value.clone(), format!("[{block}]").into_bytes());
        return "content";
    };
    let is_text = |element: Range<usize>| {
        let kind = text::find_member(json, element.start, "type");
        kind.is_some_and(|kind| &json[kind] == br#""text""#)
    };
    if !text::elements(json, content).any(is_text) {
        let is_empty = text::elements(json, content).next().is_none();
        let comma = if is_empty { "" } else { "," };
        let front = content + 1;
        patch.replace(front..front, format!("{block}{comma}").into_bytes());
    }
    "structuredContent"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structured_content_of_legacy_results_is_an_object() {
        let check = |modern: &str, legacy: &str| {
            let modern = Raw::parse(modern.to_owned()).unwrap();
            let downgraded = downgrade_result(&modern);
            assert_eq!(downgraded.as_str(), legacy);
            downgraded.read::<serde_json::Value>().expect("JSON");
        };
        let text = r#"{"type":"text","text":"[1,\"a\"]"}"#;
        check(
            r#"{"structuredContent":[1,"a"],"resultType":"complete"}"#,
            &format!(r#"{{"content":[{text}]}}"#),
        );
        check(
            r#"{"content":null, "structuredContent":[1,"a"],"x":1}"#,
            &format!(r#"{{"content":[{text}],"x":1}}"#),
        );
        check(
            r#"{"content":[ ],"structuredContent":[1,"a"]}"#,
            &format!(r#"{{"content":[{text} ]}}"#),
        );
        check(
            r#"{"content":[{"type":"image"}],"structuredContent":[1,"a"],"isError":true}"#,
            &format!(r#"{{"content":[{text},{{"type":"image"}}],"isError":true}}"#),
        );
        let said = r#""content":[{"type":"image"},{"type":"text","text":"x"}]"#;
        check(
            &format!(r#"{{"structuredContent":null,{said},"resultType":"complete"}}"#),
            &format!("{{{said}}}"),
        );
        let kept = format!(r#"{{{said},"structuredContent":{{"a":[]}}}}"#);
        check(&kept, &kept);
    }

    const META: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}"#;

    fn request(method: &str, params: &str) -> Request {
        Request {
            id: crate::mcp::Id::number(1),
            method: Method::parse(method),
            params: Some(Raw::parse(params.to_owned()).unwrap().into()),
        }
    }

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in list {
            map.append(*name, http::HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn a_request_is_refused_for_the_first_thing_wrong() {
        let version = ("mcp-protocol-version", "2026-07-28");
        let check = |method: &str, params: &str, list: &[(&'static str, &'static str)], expect| {
            let request = request(method, params);
            let found = super::check_request(&request, Some(&headers(list)));
            let found = found.err().map(|r| (r.status.as_u16(), r.error.code));
            assert_eq!(found, expect, "{method} {params} {list:?}");
        };
        let call = format!(r#"{{"name":"echo","_meta":{{{META}}}}}"#);
        let method = ("mcp-method", "tools/call");
        let name = ("mcp-name", "echo");
        check("tools/call", &call, &[version, method, name], None);
        check(
            "tools/call",
            &call,
            &[version, method, ("mcp-name", "=?base64?ZWNobw==?=")],
            None,
        );
        check("tools/call", &call, &[method, name], Some((400, -32020)));
        check("tools/call", &call, &[version, name], Some((400, -32020)));
        check("tools/call", &call, &[version, method], Some((400, -32020)));
        check(
            "tools/call",
            &call,
            &[version, method, ("mcp-name", "Echo")],
            Some((400, -32020)),
        );
        check(
            "tools/call",
            &call,
            &[version, method, name, name],
            Some((400, -32020)),
        );
        check(
            "tools/call",
            r#"{"name":"echo"}"#,
            &[version, method, name],
            Some((400, -32602)),
        );
        let future = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01"}}"#;
        let list = ("mcp-method", "tools/list");
        check(
            "tools/list",
            future,
            &[("mcp-protocol-version", "2031-01-01"), list],
            Some((400, -32022)),
        );
        let bare = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        check("tools/list", bare, &[version, list], Some((400, -32602)));
        let envelope = format!(r#"{{"_meta":{{{META}}}}}"#);
        check(
            "ping",
            &envelope,
            &[version, ("mcp-method", "ping")],
            Some((404, -32601)),
        );
        check(
            "initialize",
            &envelope,
            &[version, ("mcp-method", "initialize")],
            Some((404, -32601)),
        );
        let level = format!(r#"{{"_meta":{{{META},"io.modelcontextprotocol/logLevel":"loud"}}}}"#);
        check("tools/list", &level, &[version, list], Some((400, -32602)));
    }

    #[test]
    fn results_cross_the_eras() {
        let legacy = Raw::from_static(r#"{"contents":[], "x":1e3}"#);
        let modern = upgrade_result(&Method::ResourcesRead, &legacy);
        assert_eq!(
            modern.as_str(),
            r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[], "x":1e3}"#
        );
        assert_eq!(downgrade_result(&modern), legacy);
        let call = Raw::from_static(r#"{"content":[]}"#);
        assert_eq!(
            upgrade_result(&Method::ToolsCall, &call).as_str(),
            r#"{"resultType":"complete","content":[]}"#
        );
    }
}
