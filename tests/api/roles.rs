//! Who may use which operation, over the whole description.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, AGENT_KEY, TestApi};

/// The key of who manages the workspace `science`.
pub(crate) const LEAD_KEY: &str = "tb_Hd5tM9pXc2vQ7rKz4WnB8sLy3GfJ6aEu";
/// The key of who manages the workspace `arts`.
pub(crate) const STRANGER_KEY: &str = "tb_Vn7kR3yLq8wTz5XcB2mHs9PdG4fJ6aEu";
/// The key of an auditor.
pub(crate) const AUDITOR_KEY: &str = "tb_Zc4mT8xQw2vKp6RnY9bLs7HdF3gJ5aEu";

/// Agents of every role, beside those of the harness.
pub(crate) const AGENTS: &str = "[agents.lead]\nrole = \"workspace_admin\"\nteam = \"science\"\n\
     keys = [\"tb_Hd5tM9pXc2vQ7rKz4WnB8sLy3GfJ6aEu\"]\n\
     [agents.stranger]\nrole = \"workspace_admin\"\nteam = \"arts\"\n\
     keys = [\"tb_Vn7kR3yLq8wTz5XcB2mHs9PdG4fJ6aEu\"]\n\
     [agents.auditor]\nrole = \"auditor\"\n\
     keys = [\"tb_Zc4mT8xQw2vKp6RnY9bLs7HdF3gJ5aEu\"]\n";

/// Who asks: nobody, an agent, who manages the workspace, who manages another one, an auditor, an admin.
const CALLERS: [Option<&str>; 6] = [
    None,
    Some(AGENT_KEY),
    Some(LEAD_KEY),
    Some(STRANGER_KEY),
    Some(AUDITOR_KEY),
    Some(ADMIN_KEY),
];

/// Whoever is let in meets any other status than 401 and 403.
const IN: u16 = 0;

/// What each of the [`CALLERS`] meets at each operation.
const TABLE: &[(&str, [u16; 6])] = &[
    ("createAgent", [401, 403, IN, IN, 403, IN]),
    ("createAgentKey", [401, 403, IN, IN, 403, IN]),
    ("deleteAgent", [401, 403, IN, IN, 403, IN]),
    ("getAgent", [401, 403, IN, IN, IN, IN]),
    ("listAgentKeys", [401, 403, IN, IN, IN, IN]),
    ("listAgents", [401, 403, IN, IN, IN, IN]),
    ("patchAgent", [401, 403, IN, IN, 403, IN]),
    ("revokeAgentKey", [401, 403, IN, IN, 403, IN]),
    ("exportAuditRecords", [401, 403, 403, 403, IN, IN]),
    ("followAuditRecords", [401, 403, 403, 403, IN, IN]),
    ("getAuditRecord", [401, 403, 403, 403, IN, IN]),
    ("listAuditEvents", [401, 403, 403, 403, IN, IN]),
    ("listAuditRecords", [401, 403, 403, 403, IN, IN]),
    ("listOwnAuditRecords", [401, IN, IN, IN, IN, IN]),
    ("verifyAudit", [401, 403, 403, 403, IN, IN]),
    ("listBudgets", [401, 403, IN, IN, IN, IN]),
    ("resetBudget", [401, 403, 403, 403, 403, IN]),
    ("exportConfig", [401, 403, 403, 403, 403, IN]),
    ("getConfig", [401, 403, 403, 403, IN, IN]),
    ("validateConfig", [401, 403, 403, 403, IN, IN]),
    ("explainPolicy", [401, 403, 403, 403, IN, IN]),
    ("createView", [401, IN, IN, IN, IN, IN]),
    ("endView", [401, IN, IN, IN, IN, IN]),
    ("getView", [401, IN, IN, IN, IN, IN]),
    ("listViews", [401, IN, IN, IN, IN, IN]),
    ("patchView", [401, IN, IN, IN, IN, IN]),
    ("getUsage", [401, 403, IN, IN, IN, IN]),
    ("getStatus", [401, 403, 403, 403, IN, IN]),
    ("getMe", [401, IN, IN, IN, IN, IN]),
    ("listOwnTools", [401, IN, IN, IN, IN, IN]),
    ("createProfile", [401, 403, 403, 403, 403, IN]),
    ("deleteProfile", [401, 403, 403, 403, 403, IN]),
    ("getProfile", [401, 403, 403, 403, IN, IN]),
    ("listProfiles", [401, 403, 403, 403, IN, IN]),
    ("patchProfile", [401, 403, 403, 403, 403, IN]),
    ("replaceProfile", [401, 403, 403, 403, 403, IN]),
    ("deleteSecret", [401, 403, IN, IN, 403, IN]),
    ("listSecrets", [401, 403, IN, IN, 403, IN]),
    ("setSecret", [401, 403, IN, IN, 403, IN]),
    ("createServer", [401, 403, IN, IN, 403, IN]),
    ("disableServer", [401, 403, IN, IN, 403, IN]),
    ("enableServer", [401, 403, IN, IN, 403, IN]),
    ("listServerTools", [401, 403, IN, IN, IN, IN]),
    ("listTools", [401, 403, 403, 403, IN, IN]),
    ("patchServerTool", [401, 403, IN, IN, 403, IN]),
    ("testTool", [401, 403, 403, 403, 403, IN]),
    ("restartServer", [401, 403, IN, IN, 403, IN]),
    ("streamEvents", [401, 403, 403, 403, IN, IN]),
    ("streamServerStderr", [401, 403, 403, 403, IN, IN]),
    ("testNewServer", [401, 403, 403, 403, 403, IN]),
    ("testServer", [401, 403, IN, IN, 403, IN]),
    ("deleteServer", [401, 403, IN, IN, 403, IN]),
    ("getServer", [401, 403, IN, IN, IN, IN]),
    ("listServers", [401, 403, IN, IN, IN, IN]),
    ("patchServer", [401, 403, IN, IN, 403, IN]),
    ("replaceServer", [401, 403, IN, IN, 403, IN]),
    ("createWorkspace", [401, 403, 403, 403, 403, IN]),
    ("deleteWorkspace", [401, 403, 403, 403, 403, IN]),
    ("getWorkspace", [401, 403, IN, IN, IN, IN]),
    ("listWorkspaces", [401, 403, IN, IN, IN, IN]),
    ("patchWorkspace", [401, 403, 403, 403, 403, IN]),
    ("replaceWorkspace", [401, 403, 403, 403, 403, IN]),
];

/// What the parameters of paths stand for: something of the workspace `science`, where that may own one.
const PARAMETERS: &[(&str, &str)] = &[
    ("agent", "nothing"),
    ("budget", "team:nothing:day"),
    ("id", "inv_0"),
    ("key", "key_0"),
    ("profile", "nothing"),
    ("secret", "nothing"),
    ("server", "own"),
    ("tool", "nothing"),
    ("view", "nothing"),
    ("workspace", "nothing"),
];

/// A request to the operation `verb` `path`, which changes nothing.
fn filled(path: &str) -> String {
    let mut path = path.strip_prefix("/api/v1").unwrap_or(path).to_owned();
    for (name, value) in PARAMETERS {
        path = path.replace(&format!("{{{name}}}"), value);
    }
    assert!(
        !path.contains('{'),
        "{path} has a parameter without a value"
    );
    format!("{path}?dry_run=true")
}

#[tokio::test]
async fn each_operation_is_open_to_the_roles_of_the_table() {
    let api = TestApi::start(AGENTS).await;
    let document: Value = serde_json::from_slice(&tollbridge::api::openapi()).unwrap();
    let mut rows: Vec<&str> = TABLE.iter().map(|(id, _)| *id).collect();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (verb, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            let row = TABLE.iter().find(|(known, _)| *known == id);
            let (_, expect) = row.unwrap_or_else(|| panic!("{verb} {path} ({id}) has no row"));
            rows.retain(|known| *known != id);
            let method = Method::from_bytes(verb.to_uppercase().as_bytes()).unwrap();
            for (key, expect) in CALLERS.into_iter().zip(expect) {
                let mut request = api.request(method.clone(), &filled(path));
                if let Some(key) = key {
                    request = request.bearer_auth(key);
                }
                if method != Method::GET {
                    request = request.json(&json!({}));
                }
                let status = request.send().await.unwrap().status().as_u16();
                let fits = match *expect {
                    IN => !matches!(status, 401 | 403),
                    expect => status == expect,
                };
                assert!(fits, "{id} by {key:?}: {status} and not {expect}");
            }
            roles_are_those_of_the_description(operation, (id, expect));
        }
    }
    assert!(rows.is_empty(), "there are no operations {rows:?}");
    api.stop().await;
}

/// What the description says of roles is what holds.
fn roles_are_those_of_the_description(operation: &Value, (id, expect): (&str, &[u16; 6])) {
    let roles = operation["x-roles"].as_array().unwrap();
    for (role, expect) in [
        ("agent", expect[1]),
        ("workspace_admin", expect[2]),
        ("auditor", expect[4]),
        ("admin", expect[5]),
    ] {
        let is_open = roles.iter().any(|it| it == role);
        assert_eq!(is_open, expect != 403, "{id}: {role}");
    }
}
