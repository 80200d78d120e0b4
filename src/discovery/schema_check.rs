//! Finds tools whose input schema is none that can be used, for operators to see in `/status`.
//!
//! Called by `discovery`, one task a server, after a listing is published: nobody waits for it but
//! `check --connect`, and it changes nothing of what is served. One server at a time has a thread for it, a few tools a turn, and
//! a schema that stays is compiled once.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::CatalogStore;
use crate::{
    backend::Backend,
    catalog::{CatalogProblem, Kind, Listing, ProblemCause},
    json_schema::{Schema, shortened},
    mcp::Raw,
    names::ServerName,
    task::run_blocking,
};

/// Tools that are looked at in one turn.
const TOOLS_PER_TURN: usize = 64;
/// How long the schemas of one listing are compiled; those that are left then are counted.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(30);

/// Looks at what `backend` lists, for ever.
pub(super) async fn follow(backend: Arc<Backend>, store: Arc<CatalogStore>) {
    let mut changes = store.changes();
    let mut looked_at: Option<Arc<Listing>> = None;
    let mut known = SchemaFaults::default();
    loop {
        changes.mark_unchanged();
        let listing = store.listing(&backend.name);
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
            (problems, known) = look.finish(&store).await;
            looked_at = listing;
            store.note_schemas(&backend.name, looked_at.clone(), problems);
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
    previous: SchemaFaults,
    found: SchemaFaults,
    problems: Vec<CatalogProblem>,
}

impl SchemaCheck {
    fn new(listing: Arc<Listing>, previous: SchemaFaults, server: &ServerName) -> Self {
        Self {
            listing,
            server: server.clone(),
            count: 0,
            previous,
            found: SchemaFaults::new(),
            problems: Vec::new(),
        }
    }

    /// Looks at all tools, or at as many as there is time for.
    async fn finish(mut self, store: &CatalogStore) -> (Vec<CatalogProblem>, SchemaFaults) {
        let _turn = store.schema_permit().await;
        let deadline = Instant::now() + COMPILE_TIMEOUT;
        while self.count < self.listing.tools.len() {
            if Instant::now() > deadline {
                let count = self.listing.tools.len() - self.count;
                self.record_problem(ProblemCause::SchemasUnchecked { count });
                break;
            }
            self = run_blocking(move || {
                self.check_batch(deadline);
                self
            })
            .await;
        }
        (self.problems, self.found)
    }

    fn check_batch(&mut self, deadline: Instant) {
        let listing = Arc::clone(&self.listing);
        for tool in listing.tools.iter().skip(self.count).take(TOOLS_PER_TURN) {
            // One schema may take long already.
            if Instant::now() > deadline {
                return;
            }
            self.count += 1;
            // What is no object is mended, and named for that.
            let schema = tool.get("inputSchema");
            let schema = schema.filter(|schema| schema.as_str().starts_with('{'));
            let Some(reason) = schema.and_then(|schema| self.schema_fault(schema)) else {
                continue;
            };
            let name = tool.get(Kind::Tools.key());
            let name = name.as_ref().and_then(Raw::as_text);
            self.record_problem(ProblemCause::Schema {
                tool: name.unwrap_or_default().into_owned(),
                reason,
            });
        }
    }

    /// Why `schema` cannot be used, if so.
    fn schema_fault(&mut self, schema: Raw) -> Option<String> {
        if let Some(reason) = self.found.get(&schema) {
            return reason.clone();
        }
        let reason = self.previous.remove(&schema).unwrap_or_else(|| {
            let checked = Schema::check(schema.as_bytes());
            checked.err().map(|error| shortened(error.to_string()))
        });
        self.found.insert(schema, reason.clone());
        reason
    }

    fn record_problem(&mut self, cause: ProblemCause) {
        self.problems.push(CatalogProblem {
            server: self.server.clone(),
            kind: Some(Kind::Tools),
            cause,
        });
    }
}
