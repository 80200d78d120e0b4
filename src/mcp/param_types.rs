//! The types that the specification gives to members of requests.
//!
//! Servers on typed SDKs cannot read a request in which one of them is something else, and some never answer
//! what they cannot read. So no such request is relayed. `null` stands for what is absent, as nearly
//! everybody reads it.

use serde_json::json;

use super::{
    Method, Params, RpcError,
    error::{self, FailureReason},
    json::{self, Member},
    meta,
};

/// A type of JSON.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ExpectedType {
    Object,
    String,
    /// A string or a number.
    Token,
}

impl ExpectedType {
    fn matches(self, value: &[u8]) -> bool {
        matches!(
            (value.first(), self),
            (Some(b'n'), _)
                | (Some(b'{'), Self::Object)
                | (Some(b'"'), Self::String | Self::Token)
                | (Some(b'-' | b'0'..=b'9'), Self::Token)
        )
    }

    fn name(self) -> &'static str {
        match self {
            Self::Object => "an object",
            Self::String => "a string",
            Self::Token => "a string or a number",
        }
    }
}

/// Members, and the type of each.
type TypedMembers = &'static [(&'static str, ExpectedType)];

/// Of params of any method.
const PARAMS: TypedMembers = &[("_meta", ExpectedType::Object)];

/// Of `_meta` in a request.
const META: TypedMembers = &[
    ("progressToken", ExpectedType::Token),
    (meta::PROTOCOL_VERSION, ExpectedType::String),
    (meta::CLIENT_INFO, ExpectedType::Object),
    (meta::CLIENT_CAPABILITIES, ExpectedType::Object),
    (meta::LOG_LEVEL, ExpectedType::String),
    ("traceparent", ExpectedType::String),
    ("tracestate", ExpectedType::String),
    ("baggage", ExpectedType::String),
];

/// Of the capabilities of a client.
const CAPABILITIES: TypedMembers = &[
    ("elicitation", ExpectedType::Object),
    ("experimental", ExpectedType::Object),
    ("extensions", ExpectedType::Object),
    ("roots", ExpectedType::Object),
    ("sampling", ExpectedType::Object),
    ("tasks", ExpectedType::Object),
];

/// Of what a client says that it is.
const INFO: TypedMembers = &[
    ("name", ExpectedType::String),
    ("version", ExpectedType::String),
];

/// Of what is completed, and for what.
const REFERENCE: TypedMembers = &[
    ("type", ExpectedType::String),
    ("name", ExpectedType::String),
    ("uri", ExpectedType::String),
];
const ARGUMENT: TypedMembers = &[
    ("name", ExpectedType::String),
    ("value", ExpectedType::String),
];

/// Of the params of `method`.
fn params_types(method: &Method) -> TypedMembers {
    match method {
        Method::ToolsCall => &[
            ("name", ExpectedType::String),
            ("arguments", ExpectedType::Object),
            ("task", ExpectedType::Object),
            ("requestState", ExpectedType::String),
            ("inputResponses", ExpectedType::Object),
        ],
        Method::PromptsGet => &[
            ("name", ExpectedType::String),
            ("arguments", ExpectedType::Object),
            ("requestState", ExpectedType::String),
            ("inputResponses", ExpectedType::Object),
        ],
        Method::ResourcesRead => &[
            ("uri", ExpectedType::String),
            ("requestState", ExpectedType::String),
            ("inputResponses", ExpectedType::Object),
        ],
        Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {
            &[("uri", ExpectedType::String)]
        }
        Method::Complete => &[
            ("ref", ExpectedType::Object),
            ("argument", ExpectedType::Object),
            ("context", ExpectedType::Object),
        ],
        Method::PromptsList | Method::ResourcesList | Method::TemplatesList | Method::ToolsList => {
            &[("cursor", ExpectedType::String)]
        }
        Method::Initialize => &[
            ("protocolVersion", ExpectedType::String),
            ("capabilities", ExpectedType::Object),
            ("clientInfo", ExpectedType::Object),
        ],
        Method::Listen => &[("notifications", ExpectedType::Object)],
        Method::SetLevel => &[("level", ExpectedType::String)],
        Method::Discover | Method::Ping | Method::Other(_) => &[],
    }
}

/// Checks the members of `params`, of a request of `method`, that every server reads.
///
/// # Errors
/// `-32602`, which names the first that is of another type.
pub fn check_params(method: &Method, params: Option<&Params>) -> Result<(), RpcError> {
    let Some(params) = params else { return Ok(()) };
    let has_inner =
        params.meta().client_info.is_some() || params.meta().client_capabilities.is_some();
    if params.is_standard() && !has_inner {
        return Ok(());
    }
    let json = params.as_bytes();
    for (key, members) in [("", PARAMS), ("", params_types(method)), ("_meta", META)] {
        check_members(json, key, members)?;
    }
    for object in json::members(json, 0).filter(|member| member.matches(json, "_meta")) {
        let inner = &json[object.value];
        check_members(inner, meta::CLIENT_INFO, INFO)?;
        check_members(inner, meta::CLIENT_CAPABILITIES, CAPABILITIES)?;
    }
    let inner: &[(&str, TypedMembers)] = if *method == Method::Complete {
        &[("ref", REFERENCE), ("argument", ARGUMENT)]
    } else if *method == Method::Initialize {
        &[("clientInfo", INFO), ("capabilities", CAPABILITIES)]
    } else {
        &[]
    };
    let mut inner = inner.iter();
    inner.try_for_each(|(key, members)| check_members(json, key, members))
}

/// Checks the members of the object `key` of `json`, or of `json` itself where there is no key. Of what
/// stands there more than once, each: servers differ in which they take.
fn check_members(json: &[u8], key: &str, members: TypedMembers) -> Result<(), RpcError> {
    let check = |object: &[u8]| match json::members(object, 0)
        .find_map(|it| mistyped_member(object, &it, members))
    {
        Some((name, wanted, value)) => Err(mistyped_error(key, name, (wanted, value))),
        None => Ok(()),
    };
    if key.is_empty() {
        return check(json);
    }
    let mut objects = json::members(json, 0).filter(|member| member.matches(json, key));
    objects.try_for_each(|object| check(&json[object.value]))
}

/// The name and the type of `member`, and its value, where that is of another.
fn mistyped_member<'j>(
    object: &'j [u8],
    member: &Member,
    members: TypedMembers,
) -> Option<(&'static str, ExpectedType, &'j [u8])> {
    let value = &object[member.value.clone()];
    let mut wanted = members
        .iter()
        .filter(|(name, _)| member.matches(object, name));
    let (name, wanted) = wanted.find(|(_, wanted)| !wanted.matches(value))?;
    Some((name, *wanted, value))
}

fn mistyped_error(key: &str, name: &str, (wanted, value): (ExpectedType, &[u8])) -> RpcError {
    let at = if key.is_empty() { "params" } else { key };
    // Many a model and client writes an object twice.
    let remedy = if wanted == ExpectedType::Object && value.starts_with(b"\"") {
        ", but a string; send the JSON object itself, not a string that contains it"
    } else {
        ""
    };
    let message = format!("`{name}` in {at} is not {}{remedy}", wanted.name());
    RpcError::new(error::INVALID_PARAMS, message).with_data(json!({
        "code": "INVALID_PARAMS",
        "reason": FailureReason::Malformed.as_str(),
        "retryable": false,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::Raw;

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn what_is_of_another_type_is_named() {
        let check = |method: &str, params: &str, expect: &str| {
            let params = Params::from(Raw::parse(params.to_owned()).unwrap());
            let found = super::check_params(&Method::parse(method), Some(&params));
            let found = found.map_err(|error| (error.code, error.message.clone()));
            match expect {
                "" => assert_eq!(found, Ok(()), "{method} {params:?}"),
                expect => assert_eq!(found, Err((error::INVALID_PARAMS, expect.to_owned()))),
            }
        };
        for (params, expect) in [
            (
                r#"{"name":"a","arguments":{},"_meta":{"progressToken":1}}"#,
                "",
            ),
            (
                r#"{"name":"a","arguments":null,"_meta":null,"task":null}"#,
                "",
            ),
            (
                r#"{"_meta":{"progressToken":"x","own":[1]},"other":[1]}"#,
                "",
            ),
            (
                r#"{"_meta":"x"}"#,
                "`_meta` in params is not an object, but a string; send the JSON object itself, \
                 not a string that contains it",
            ),
            (r#"{"_meta":[]}"#, "`_meta` in params is not an object"),
            (
                r#"{"_meta":{},"\u005fmeta":0}"#,
                "`_meta` in params is not an object",
            ),
            (
                r#"{"arguments":[]}"#,
                "`arguments` in params is not an object",
            ),
            (
                r#"{"arguments":"{\"a\":1}"}"#,
                "`arguments` in params is not an object, but a string; send the JSON object itself, \
                 not a string that contains it",
            ),
            (r#"{"task":true}"#, "`task` in params is not an object"),
            (r#"{"name":5}"#, "`name` in params is not a string"),
            (
                r#"{"requestState":{}}"#,
                "`requestState` in params is not a string",
            ),
            (
                r#"{"inputResponses":[]}"#,
                "`inputResponses` in params is not an object",
            ),
            (
                r#"{"_meta":{"progressToken":{}}}"#,
                "`progressToken` in _meta is not a string or a number",
            ),
            (
                r#"{"_meta":{"progressToken":1,"progressToken":true}}"#,
                "`progressToken` in _meta is not a string or a number",
            ),
            (
                r#"{"_meta":{"traceparent":{}}}"#,
                "`traceparent` in _meta is not a string",
            ),
            (
                r#"{"_meta":{"io.modelcontextprotocol/clientInfo":5}}"#,
                "`io.modelcontextprotocol/clientInfo` in _meta is not an object",
            ),
            (
                r#"{"_meta":{"io.modelcontextprotocol/clientInfo":{"name":1}}}"#,
                "`name` in io.modelcontextprotocol/clientInfo is not a string",
            ),
            (
                r#"{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"roots":[]}}}"#,
                "`roots` in io.modelcontextprotocol/clientCapabilities is not an object",
            ),
        ] {
            check("tools/call", params, expect);
        }
        check(
            "resources/read",
            r#"{"uri":["a"]}"#,
            "`uri` in params is not a string",
        );
        check(
            "prompts/get",
            r#"{"arguments":5}"#,
            "`arguments` in params is not an object",
        );
        check(
            "tools/list",
            r#"{"cursor":5}"#,
            "`cursor` in params is not a string",
        );
        check(
            "completion/complete",
            r#"{"ref":{},"argument":{"name":"a","value":5}}"#,
            "`value` in argument is not a string",
        );
        check(
            "initialize",
            r#"{"capabilities":5}"#,
            "`capabilities` in params is not an object",
        );
        check("own/method", r#"{"arguments":5}"#, "");
        check(
            "own/method",
            r#"{"_meta":5}"#,
            "`_meta` in params is not an object",
        );
    }
}
