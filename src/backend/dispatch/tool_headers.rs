//! What a tool wants in headers by the list of its server at this moment, for a call that was refused
//! for those we sent: the catalog has its list from before.
//!
//! Called by `dispatch`. Nothing of this is published: that the list changed is for `discovery` to find.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Semaphore, time::Instant};

use crate::{
    backend::{
        Backend,
        catalog_connection::{CatalogConnection, ListOutcome},
        instance::Connection,
    },
    catalog::{HeaderParam, Kind},
    lock::lock,
    mcp::{Raw, json},
    task::run_blocking_if_large,
};

/// How long a list is taken for that of the moment: who calls decides how often one is asked for.
const LIST_TTL: Duration = Duration::from_secs(10);

/// What the tools of a server that want headers want there.
type HeaderWants = HashMap<String, Vec<HeaderParam>>;

/// What the list of a server said.
#[derive(Clone, Debug)]
struct FetchedHeaders {
    /// When it was asked for.
    at: Instant,
    /// `None` where it could not be read.
    headers: Option<Arc<HeaderWants>>,
}

/// The list of a server that was asked for last.
#[derive(Debug)]
pub(in crate::backend) struct ToolHeaderCache {
    /// Who has it asks; the others wait for what is found.
    turn: Semaphore,
    latest: Mutex<Option<FetchedHeaders>>,
}

impl Default for ToolHeaderCache {
    fn default() -> Self {
        Self {
            turn: Semaphore::new(1),
            latest: Mutex::default(),
        }
    }
}

impl ToolHeaderCache {
    fn fresh(&self) -> Option<FetchedHeaders> {
        let latest = lock(&self.latest).clone();
        latest.filter(|looked| looked.at.elapsed() < LIST_TTL)
    }
}

impl Backend {
    /// What `tool`, in the server's spelling, wants in headers at this moment; `None` where its server
    /// does not say.
    pub(in crate::backend) async fn current_headers(
        &self,
        tool: &str,
        connection: &Arc<Connection>,
    ) -> Option<Vec<HeaderParam>> {
        let relist = &self.relist;
        // It is never closed.
        let _turn = relist.turn.acquire().await.ok()?;
        let looked = if let Some(looked) = relist.fresh() {
            looked
        } else {
            let wants = self.fetch_headers(connection).await.map(Arc::new);
            let at = Instant::now();
            let looked = FetchedHeaders { at, headers: wants };
            *lock(&relist.latest) = Some(looked.clone());
            looked
        };
        let wants = looked.headers?;
        Some(wants.get(tool).cloned().unwrap_or_default())
    }

    async fn fetch_headers(&self, connection: &Arc<Connection>) -> Option<HeaderWants> {
        let control = CatalogConnection::of(connection);
        let ListOutcome::Complete(list) = self.fetch_list(Kind::Tools, &control).await.ok()? else {
            return None;
        };
        let bytes = list.items.iter().map(|item| item.as_bytes().len()).sum();
        let read = move || list.items.iter().filter_map(header_wants).collect();
        Some(run_blocking_if_large(bytes, read).await)
    }
}

/// What a tool wants, by its name; `None` where that is nothing.
fn header_wants(item: &Raw) -> Option<(String, Vec<HeaderParam>)> {
    let params = HeaderParam::of_tool(item);
    let name = json::decode_string(&item.as_bytes()[item.member("name")?])?;
    (!params.is_empty()).then(|| (name.into_owned(), params))
}
