//! Output schemas of tools on merged routes: one that clients cannot compile is left out, since the tools of
//! all servers would be gone with it. On the route of its own server it stays as it is.

use std::collections::HashMap;

use crate::{
    json_schema::{self, RootId, SERVER_PATTERNS_MAX},
    mcp::json::{self, Patch, Raw},
};

const KEY: &str = "outputSchema";

/// The metaschemas, which clients have under these already.
const METASCHEMAS: [&str; 2] = ["http://json-schema.org/", "https://json-schema.org/"];

/// What is wrong with an output schema, and what was done about it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OutputSchemaFault {
    /// Clients cannot compile it.
    #[error("`outputSchema` is left out on merged routes, clients could not compile it: {0}")]
    Refused(String),
    /// Schemas of other tools have the same `$id`.
    #[error(
        "the `$id` of `outputSchema` is removed on merged routes, other schemas have it too: `{0}`"
    )]
    SharedId(String),
}

/// Makes `tools`, as merged routes list them, such that clients can compile all output schemas; for each
/// that was changed its position and why. `server_of` tells the servers of tools apart by a number.
pub(super) fn repair(
    tools: &mut [Raw],
    server_of: impl Fn(usize) -> usize,
) -> Vec<(usize, OutputSchemaFault)> {
    let mut patterns_left: HashMap<usize, usize> = HashMap::new();
    let checked = tools.iter().enumerate().map(|(at, tool)| {
        let schema = tool.get(KEY)?;
        let left = patterns_left.entry(server_of(at));
        let left = left.or_insert(SERVER_PATTERNS_MAX);
        Some(json_schema::check_for_clients(schema.as_bytes(), left))
    });
    let checked: Vec<_> = checked.collect();
    let mut owners: HashMap<&str, usize> = HashMap::new();
    for id in checked.iter().flatten().flatten().flatten() {
        *owners.entry(&id.uri).or_default() += 1;
    }
    let is_shared = |id: &RootId| {
        owners[&*id.uri] > 1 || METASCHEMAS.iter().any(|known| id.uri.starts_with(known))
    };
    let mut faults = Vec::new();
    for (at, (tool, checked)) in tools.iter_mut().zip(&checked).enumerate() {
        let fault = match checked {
            None | Some(Ok(None)) => continue,
            Some(Ok(Some(id))) if !is_shared(id) => continue,
            Some(Ok(Some(id))) if id.is_used => OutputSchemaFault::Refused(format!(
                "other schemas have the same `$id`, `{}`, and its references begin with it",
                id.uri
            )),
            Some(Ok(Some(id))) => OutputSchemaFault::SharedId(id.uri.clone()),
            Some(Err(fault)) => OutputSchemaFault::Refused(fault.to_string()),
        };
        *tool = match fault {
            OutputSchemaFault::Refused(_) => without_schema(tool),
            OutputSchemaFault::SharedId(_) => without_schema_id(tool),
        };
        faults.push((at, fault));
    }
    faults
}

fn without_schema(tool: &Raw) -> Raw {
    let json = tool.as_bytes();
    let mut patch = Patch::new(json);
    patch.remove_members(0, |member| member.matches(json, KEY));
    patch.finish()
}

fn without_schema_id(tool: &Raw) -> Raw {
    let json = tool.as_bytes();
    let mut patch = Patch::new(json);
    for member in json::members(json, 0).filter(|member| member.matches(json, KEY)) {
        patch.remove_members(member.value.start, |member| member.matches(json, "$id"));
    }
    patch.finish()
}
