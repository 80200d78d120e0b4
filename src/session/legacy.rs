//! The rules of the legacy era: `initialize`, and the shape of what it answers.

use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use serde_json::json;

use super::{ServerInfo, client_info::ClientInfo};
use crate::mcp::{Method, Raw, Revision, RpcError, error, param_types};

/// Bytes of `capabilities` and of `clientInfo` in an `initialize`: a session keeps both, in memory and
/// in the store.
pub const CLIENT_INFO_BYTES_MAX: usize = 64 << 10;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeParams<'a> {
    #[serde(borrow)]
    protocol_version: std::borrow::Cow<'a, str>,
}

/// Reads the params of `initialize` and settles the revision: the one asked for when we speak it,
/// else our newest legacy one (Spec 2025-11-25, lifecycle, version negotiation).
///
/// # Errors
/// `-32602` when there is no `protocolVersion`, or more than [`CLIENT_INFO_BYTES_MAX`].
pub fn parse_initialize(params: Option<&Raw>) -> Result<ClientInfo, RpcError> {
    let missing = || {
        let message = "`initialize` requires a string `protocolVersion` in its params";
        RpcError::new(error::INVALID_PARAMS, message)
            .with_data(json!({ "supported": legacy_revisions(), "requested": null }))
    };
    let params = params.ok_or_else(missing)?;
    param_types::check_params(&Method::Initialize, Some(&params.clone().into()))?;
    let asked: InitializeParams<'_> = params.read().map_err(|_| missing())?;
    let revision = Revision::parse(&asked.protocol_version)
        .filter(|revision| revision.era() == crate::mcp::Era::Legacy)
        .unwrap_or(Revision::LEGACY);
    let object = |key: &str| {
        params
            .get(key)
            .filter(Raw::is_object)
            .map(|raw| raw.to_owned_memory())
    };
    let capabilities = object("capabilities").unwrap_or(Raw::from_static("{}"));
    let info = object("clientInfo");
    for (name, part) in [
        ("capabilities", Some(&capabilities)),
        ("clientInfo", info.as_ref()),
    ] {
        let bytes = part.map_or(0, |part| part.as_bytes().len());
        if bytes > CLIENT_INFO_BYTES_MAX {
            let message =
                format!("`{name}` has {bytes} bytes; the maximum is {CLIENT_INFO_BYTES_MAX}");
            return Err(RpcError::new(error::INVALID_PARAMS, message));
        }
    }
    Ok(ClientInfo::new(revision, info, capabilities))
}

impl ClientInfo {
    /// What a client said that speaks `revision`.
    pub(super) fn new(revision: Revision, info: Option<Raw>, capabilities: Raw) -> Self {
        Self {
            revision,
            display_name: OnceLock::new(),
            info,
            profile: canonical_capabilities(&capabilities),
            capabilities,
        }
    }
}

/// Questions of servers to clients, and the capability of a client that each needs.
const SERVER_REQUESTS: [(&str, &str); 3] = [
    ("elicitation/create", "elicitation"),
    ("roots/list", "roots"),
    ("sampling/createMessage", "sampling"),
];

/// Whether a client with these capabilities answers questions of servers.
pub(super) fn accepts_server_requests(capabilities: &Raw) -> bool {
    let mut questions = SERVER_REQUESTS.iter();
    questions.any(|(_, needed)| capabilities.member(needed).is_some())
}

/// What the question `method` needs and a client with these `capabilities` lacks.
pub(super) fn missing_capability(method: &Method, capabilities: &Raw) -> Option<&'static str> {
    let mut questions = SERVER_REQUESTS.iter();
    let (_, needed) = questions.find(|(question, _)| method.as_str() == *question)?;
    capabilities.member(needed).is_none().then_some(*needed)
}

/// The capabilities in a canonical spelling, or as they are where there is none; empty when there
/// are none.
fn canonical_capabilities(capabilities: &Raw) -> Arc<str> {
    match capabilities.read::<serde_json::Value>() {
        Ok(serde_json::Value::Object(object)) if object.is_empty() => Arc::default(),
        Ok(value) => value.to_string().into(),
        // A number, a string or a depth that no value holds.
        Err(_) => capabilities.as_str().into(),
    }
}

/// The result of `initialize`.
pub fn initialize_result(revision: Revision, server_info: &ServerInfo) -> Raw {
    let mut result = json!({
        "protocolVersion": revision.as_str(),
        "capabilities": server_info.capabilities,
        "serverInfo": server_info.server_info,
    });
    if let Some(instructions) = &server_info.instructions {
        result["instructions"] = json!(instructions);
    }
    Raw::from_value(&result)
}

/// Dates of the revisions that `initialize` can settle on, newest first.
pub fn legacy_revisions() -> Vec<&'static str> {
    let legacy = |revision: &Revision| revision.era() == crate::mcp::Era::Legacy;
    Revision::ALL
        .into_iter()
        .filter(legacy)
        .map(Revision::as_str)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_settled() {
        let check = |asked: &str, expect: Revision| {
            let params = Raw::from_value(&json!({ "protocolVersion": asked }));
            assert_eq!(
                parse_initialize(Some(&params)).unwrap().revision,
                expect,
                "{asked}"
            );
        };
        check("2024-11-05", Revision::V2024);
        check("2025-03-26", Revision::V2025March);
        check("2025-11-25", Revision::V2025November);
        check("2026-07-28", Revision::V2025November);
        check("1999-01-01", Revision::V2025November);
        check("DRAFT-2026-v1", Revision::V2025November);
    }

    #[test]
    fn params_without_a_revision_are_refused() {
        for params in [
            None,
            Some(Raw::from_static("{}")),
            Some(Raw::from_static("[1]")),
        ] {
            assert_eq!(
                parse_initialize(params.as_ref()).unwrap_err().code,
                error::INVALID_PARAMS
            );
        }
    }
}
