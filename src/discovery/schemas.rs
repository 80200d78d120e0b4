//! Finds tools whose input schema is none that can be used, for operators to see in `/status`.
//!
//! Called by `discovery`, one task a server, after a listing is published: nobody waits for it but
//! `check --connect`, and it changes nothing of what is served. One server at a time has a thread for it, a few tools a turn, and
//! a schema that stays is compiled once.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::CatalogStore;
use crate::{
    backend::Backend,
    catalog::{CatalogProblem, Cause, Kind, Listing},
    json_schema::{Formats, Schema, shortened},
    mcp::Raw,
    names::ServerName,
    task::run_blocking,
};

/// Tools that are looked at in one turn.
const TURN: usize = 64;
/// How long the schemas of one listing are compiled; those that are left then are counted.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Looks at what `backend` lists, for ever.
pub(super) async fn follow(backend: Arc<Backend>, board: Arc<CatalogStore>) {
    let mut changes = board.changes();
    let mut looked_at: Option<Arc<Listing>> = None;
    let mut known = SchemaFaults::default();
    loop {
        changes.mark_unchanged();
        let listing = board.listing(&backend.name);
        let is_same = match (&looked_at, &listing) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (None, None) => true,
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !is_same {
            let all = Arc::clone(listing.as_ref().unwrap_or(&Arc::default()));
            let start = Instant::now();
            let look = SchemaCheck::new(all, known, &backend.name);
            let problems;
            (problems, known) = look.finish(&board).await;
            looked_at = listing;
            board.note_schemas(&backend.name, looked_at.clone(), problems);
            // A server that lists other schemas on and on has a thread half of the time at most.
            sleep(start.elapsed()).await;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Why schemas cannot be used, by their text; `None` for those that can.
type SchemaFaults = HashMap<Raw, Option<String>>;

/// A look at the tools of one listing.
struct SchemaCheck {
    listing: Arc<Listing>,
    server: ServerName,
    /// Tools that were looked at.
    count: usize,
    /// What an earlier look found out.
    before: SchemaFaults,
    known: SchemaFaults,
    problems: Vec<CatalogProblem>,
}

impl SchemaCheck {
    fn new(listing: Arc<Listing>, before: SchemaFaults, server: &ServerName) -> Self {
        Self {
            listing,
            server: server.clone(),
            count: 0,
            before,
            known: SchemaFaults::new(),
            problems: Vec::new(),
        }
    }

    /// Looks at all tools, or at as many as there is time for.
    async fn finish(mut self, board: &CatalogStore) -> (Vec<CatalogProblem>, SchemaFaults) {
        let _turn = board.schema_turn().await;
        let deadline = Instant::now() + TIME_MAX;
        while self.count < self.listing.tools.len() {
            if Instant::now() > deadline {
                let count = self.listing.tools.len() - self.count;
                self.note(Cause::SchemasLeft { count });
                break;
            }
            self = run_blocking(move || {
                self.go_on(deadline);
                self
            })
            .await;
        }
        (self.problems, self.known)
    }

    fn go_on(&mut self, deadline: Instant) {
        let listing = Arc::clone(&self.listing);
        for tool in listing.tools.iter().skip(self.count).take(TURN) {
            // One schema may take long already.
            if Instant::now() > deadline {
                return;
            }
            self.count += 1;
            // What is no object is mended, and named for that.
            let schema = tool.get("inputSchema");
            let schema = schema.filter(|schema| schema.as_str().starts_with('{'));
            let Some(reason) = schema.and_then(|schema| self.reason(schema)) else {
                continue;
            };
            let name = tool.get(Kind::Tools.key());
            let name = name.as_ref().and_then(Raw::as_text);
            self.note(Cause::Schema {
                tool: name.unwrap_or_default().into_owned(),
                reason,
            });
        }
    }

    /// Why `schema` cannot be used, if so.
    fn reason(&mut self, schema: Raw) -> Option<String> {
        if let Some(reason) = self.known.get(&schema) {
            return reason.clone();
        }
        let reason = self.before.remove(&schema).unwrap_or_else(|| {
            // Most schemas are; to compile the first that is not takes 3 MB for good.
            if schema.read().is_ok_and(|schema| is_plain(&schema)) {
                return None;
            }
            let compiled = Schema::compile(schema.as_bytes(), Formats::Annotations);
            compiled.err().map(|error| shortened(error.to_string()))
        });
        self.known.insert(schema, reason.clone());
        reason
    }

    fn note(&mut self, cause: Cause) {
        self.problems.push(CatalogProblem {
            server: self.server.clone(),
            kind: Some(Kind::Tools),
            cause,
        });
    }
}

/// Whether `schema` has only the commonest keywords, each with a value of its kind: nothing can be wrong
/// with it then.
fn is_plain(schema: &Value) -> bool {
    const DIALECTS: [&str; 2] = [
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2020-12/schema",
    ];
    const TYPES: [&str; 7] = [
        "array", "boolean", "integer", "null", "number", "object", "string",
    ];
    let Value::Object(members) = schema else {
        return schema.is_boolean();
    };
    members
        .iter()
        .all(|(keyword, value)| match keyword.as_str() {
            "$schema" => value.as_str().is_some_and(|name| DIALECTS.contains(&name)),
            "additionalProperties" | "items" => is_plain(value),
            "default" => true,
            "description" | "format" | "title" => value.is_string(),
            "maximum" | "minimum" => value.is_number(),
            "properties" => value
                .as_object()
                .is_some_and(|properties| properties.values().all(is_plain)),
            "required" => value.as_array().is_some_and(|names| {
                let distinct: HashSet<_> = names.iter().filter_map(Value::as_str).collect();
                distinct.len() == names.len()
            }),
            "type" => value.as_str().is_some_and(|name| TYPES.contains(&name)),
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_plain_compiles() {
        let plain = |schema: Value, expect: bool| {
            assert_eq!(is_plain(&schema), expect, "{schema}");
            let compiles = Schema::compile(schema.to_string().as_bytes(), Formats::Annotations);
            assert!(!expect || compiles.is_ok(), "{schema}");
        };
        plain(json!({}), true);
        let seven = "http://json-schema.org/draft-07/schema#";
        plain(json!({ "$schema": seven, "type": "null" }), true);
        plain(
            json!({
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "title": "a",
                "format": "strange",
                "description": "b",
                "properties": {
                    "type": { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 1.5 }, "default": [] },
                    "$ref": true
                },
                "required": ["type", "x"],
                "additionalProperties": false
            }),
            true,
        );
        for odd in [
            json!({ "type": "strange" }),
            json!({ "$schema": "http://example.com/", "type": "object" }),
            json!({ "type": ["string"] }),
            json!({ "properties": { "a": { "type": 1 } } }),
            json!({ "properties": [] }),
            json!({ "required": ["a", "a"] }),
            json!({ "required": ["a", 1] }),
            json!({ "items": [{}] }),
            json!({ "minimum": "1" }),
            json!({ "description": 1 }),
            json!({ "$ref": "#/none" }),
            json!({ "pattern": "(" }),
        ] {
            plain(odd, false);
        }
    }
}
