//! Plain requests across eras: what a server of one era must be sent on behalf of a client of the
//! other, and what that client must be told.
//!
//! What needs the client's answer during a call (elicitation, sampling, roots) does not cross, nor do
//! subscriptions to resources and what is asked about tasks: they fail with an error that names both revisions.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::{Client, modern};
use crate::mcp::{
    Era, LogFilter, Method, Outcome, Raw, Revision, RpcError, error,
    json::{self as text, Patch},
    meta::{self, Meta},
    tasks,
};

/// The params that a server of era `to` understands.
pub fn translate_request<'p>(
    params: Option<&'p Raw>,
    client: &Client,
    logs: LogFilter,
    to: Era,
) -> Option<Cow<'p, Raw>> {
    match (client.era(), to) {
        (Era::Legacy, Era::Legacy) | (Era::Modern, Era::Modern) => params.map(Cow::Borrowed),
        (Era::Legacy, Era::Modern) => Some(Cow::Owned(add_envelope(params, client, logs))),
        (Era::Modern, Era::Legacy) => params.map(|params| Cow::Owned(remove_envelope(params))),
    }
}

/// Declares no capability: a question of the server could not reach the client.
fn add_envelope(params: Option<&Raw>, client: &Client, logs: LogFilter) -> Raw {
    let level = match logs {
        LogFilter::From(level) => Some(level.as_str()),
        LogFilter::All | LogFilter::None => None,
    };
    let members = meta::modern_members(client.info.as_ref(), &Raw::from_static("{}"), level);
    let empty = Raw::from_static("{}");
    let params = params.unwrap_or(&empty);
    let json = params.as_bytes();
    let mut patch = Patch::new(json);
    patch.remove_members(0, |member| is_continuation(json, member));
    if let Some(span) = Meta::from_params(params).span {
        patch.remove_members(span.start, |member| is_reserved(json, member));
    }
    let stripped = (!patch.is_empty()).then(|| patch.finish());
    let params = stripped.as_ref().unwrap_or(params);
    let mut patch = Patch::new(params.as_bytes());
    Meta::from_params(params).insert(&members, &mut patch);
    patch.finish()
}

/// Whether a member of params goes on with an earlier request, which legacy clients do not do: what
/// they mean by it is another thing, and a server would take it for its own.
fn is_continuation(json: &[u8], member: &text::Member) -> bool {
    ["inputResponses", "requestState"]
        .iter()
        .any(|key| member.matches_ignoring_case(json, key))
}

fn remove_envelope(params: &Raw) -> Raw {
    let Some(span) = Meta::from_params(params).span else {
        return params.clone();
    };
    let mut patch = Patch::new(params.as_bytes());
    patch.remove_members(span.start, |member| is_reserved(params.as_bytes(), member));
    patch.finish()
}

fn is_reserved(json: &[u8], member: &text::Member) -> bool {
    [
        meta::PROTOCOL_VERSION,
        meta::CLIENT_INFO,
        meta::CLIENT_CAPABILITIES,
        meta::LOG_LEVEL,
    ]
    .iter()
    .any(|key| member.matches(json, key))
}

/// That something cannot cross from one revision to another.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "the server uses {server} and the client {client}: {what}, which is not possible between these \
     revisions"
)]
pub struct UnsupportedInEra {
    what: String,
    client: Revision,
    server: Revision,
}

impl UnsupportedInEra {
    fn new(what: impl Into<String>, client: &Client, server: Revision) -> Self {
        Self {
            what: what.into(),
            client: client.revision,
            server,
        }
    }

    /// Adds both revisions to the data of an error.
    pub fn add_revisions(&self, data: &mut Value) {
        data["serverRevision"] = self.server.as_str().into();
        data["clientRevision"] = self.client.as_str().into();
    }

    fn to_raw(&self) -> Raw {
        let mut data = json!({});
        self.add_revisions(&mut data);
        let error = RpcError::new(error::INTERNAL, self.to_string());
        error.with_data(data).to_raw()
    }
}

/// Why a request of `client` is not sent to a server of revision `to`, which has nothing like it.
pub fn check_supported(method: &Method, client: &Client, to: Revision) -> Option<UnsupportedInEra> {
    let is_legacy_only = matches!(
        method,
        Method::ResourcesSubscribe | Method::ResourcesUnsubscribe
    );
    // Tasks of the two eras have methods of the same names, and no more than those in common.
    let is_unsupported = match (client.era(), to.era()) {
        (Era::Legacy, Era::Legacy) | (Era::Modern, Era::Modern) => false,
        (Era::Legacy, Era::Modern) => is_legacy_only || tasks::is_method(method),
        (Era::Modern, Era::Legacy) => tasks::is_method(method),
    };
    is_unsupported.then(|| UnsupportedInEra::new(format!("`{method}` was requested"), client, to))
}

/// What the client is told of an outcome that a server of revision `from` gave.
pub fn translate_outcome(
    method: &Method,
    outcome: Outcome,
    client: &Client,
    from: Revision,
) -> Outcome {
    match (from.era(), client.era()) {
        (Era::Legacy, Era::Legacy) | (Era::Modern, Era::Modern) => outcome,
        (Era::Legacy, Era::Modern) => match outcome {
            Ok(result) => Ok(modern::upgrade_result(method, &result)),
            Err(refusal) => Err(error_to_modern(method, refusal, client, from)),
        },
        (Era::Modern, Era::Legacy) => match outcome {
            Ok(result) => result_to_legacy(&result, client, from),
            Err(refusal) => Err(error_to_legacy(method, refusal, client, from)),
        },
    }
}

fn result_to_legacy(result: &Raw, client: &Client, from: Revision) -> Outcome {
    let kind = result.get("resultType");
    match kind.as_ref().and_then(Raw::as_text).as_deref() {
        None | Some("complete") => Ok(modern::downgrade_result(result)),
        Some("input_required") => Err(UnsupportedInEra::new(
            "the server requires \
            input",
            client,
            from,
        )
        .to_raw()),
        Some(other) => {
            let what = format!("the result has type `{other}`");
            Err(UnsupportedInEra::new(what, client, from).to_raw())
        }
    }
}

/// A missing resource has another code for a modern client; -32042 is a request for input.
fn error_to_modern(method: &Method, refusal: Raw, client: &Client, from: Revision) -> Raw {
    match error::code(&refusal) {
        Some(error::RESOURCE_NOT_FOUND) if *method == Method::ResourcesRead => {
            with_code(&refusal, error::INVALID_PARAMS)
        }
        Some(error::URL_ELICITATION_REQUIRED) => {
            UnsupportedInEra::new("the server requires input", client, from).to_raw()
        }
        Some(_) | None => refusal,
    }
}

fn error_to_legacy(method: &Method, refusal: Raw, client: &Client, from: Revision) -> Raw {
    match error::code(&refusal) {
        Some(error::INVALID_PARAMS)
            if *method == Method::ResourcesRead
                && refusal
                    .get("data")
                    .is_some_and(|data| data.member("uri").is_some()) =>
        {
            with_code(&refusal, error::RESOURCE_NOT_FOUND)
        }
        Some(error::MISSING_CAPABILITY) => {
            let needed = refusal
                .get("data")
                .and_then(|data| data.get("requiredCapabilities"));
            let needed =
                needed.map_or_else(String::new, |needed| format!(" ({})", needed.as_str()));
            let what = format!("the server requires a client capability{needed}");
            UnsupportedInEra::new(what, client, from).to_raw()
        }
        Some(_) | None => refusal,
    }
}

/// The same error under another code.
pub fn with_code(refusal: &Raw, code: i64) -> Raw {
    let Some(span) = refusal.member("code") else {
        return refusal.clone();
    };
    let mut patch = Patch::new(refusal.as_bytes());
    patch.replace(span, code.to_string().into_bytes());
    patch.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};

    use super::*;
    use crate::{auth::Agent, session::ClientInfo};

    fn client(revision: Revision) -> Client {
        Client {
            agent: Arc::new(Agent::anonymous()),
            client_info: Arc::new(ClientInfo {
                revision,
                info: Some(Raw::from_static(r#"{"name":"c"}"#)),
                display_name: OnceLock::new(),
                capabilities: Raw::from_static("{}"),
                profile: Arc::default(),
            }),
            session: None,
            forwarded: None,
            missing_scopes: None,
        }
    }

    #[test]
    fn params_cross() {
        let check = |revision: Revision, to: Era, params: &'static str, expect: &str| {
            let params = Raw::from_static(params);
            let found =
                translate_request(Some(&params), &client(revision), LogFilter::All, to).unwrap();
            assert_eq!(found.as_str(), expect);
        };
        let own = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"c"}"#;
        check(
            Revision::V2025June,
            Era::Modern,
            r#"{"name":"x"}"#,
            &format!(r#"{{"_meta":{{{own}}},"name":"x"}}"#),
        );
        check(
            Revision::V2025June,
            Era::Modern,
            r#"{"name":"x","_meta":{"k": 1}}"#,
            &format!(r#"{{"name":"x","_meta":{{{own},"k": 1}}}}"#),
        );
        check(
            Revision::V2026,
            Era::Legacy,
            r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","k": 1},"a":1e3}"#,
            r#"{"_meta":{"k": 1},"a":1e3}"#,
        );
        check(Revision::V2026, Era::Modern, r#"{"a" :1}"#, r#"{"a" :1}"#);
    }

    #[test]
    fn outcomes_cross() {
        let check = |from: Revision, to: Revision, method: &str, given: Outcome, expect: &str| {
            let found = match translate_outcome(&Method::parse(method), given, &client(to), from) {
                Ok(result) => format!("ok {}", result.as_str()),
                Err(refusal) => format!("error {}", refusal.as_str()),
            };
            assert!(found.contains(expect), "{found} has no {expect}");
        };
        let (old, new) = (Revision::V2025November, Revision::V2026);
        let missing = Raw::from_static(r#"{"code":-32002,"message":"no","data":{"uri":"a:b"}}"#);
        check(
            old,
            new,
            "resources/read",
            Err(missing.clone()),
            r#"{"code":-32602,"message":"no""#,
        );
        let gone = Raw::from_static(r#"{"code":-32602,"message":"no","data":{"uri":"a:b"}}"#);
        check(
            new,
            old,
            "resources/read",
            Err(gone.clone()),
            r#"{"code":-32002"#,
        );
        check(new, old, "prompts/get", Err(gone), r#"{"code":-32602"#);
        let ask = Raw::from_static(r#"{"resultType":"input_required","inputRequests":{}}"#);
        check(
            new,
            old,
            "tools/call",
            Ok(ask),
            "the server uses 2026-07-28 and the client 2025-11-25",
        );
        let done = Raw::from_static(r#"{"resultType":"complete","content":[]}"#);
        check(new, old, "tools/call", Ok(done), r#"ok {"content":[]}"#);
        let plain = Raw::from_static(r#"{"content":[]}"#);
        check(
            old,
            new,
            "tools/call",
            Ok(plain),
            r#"ok {"resultType":"complete","content":[]}"#,
        );
        check(old, old, "resources/read", Err(missing), "-32002");
    }
}
