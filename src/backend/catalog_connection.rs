//! The gateway's own traffic with a server: lists, and being told when they change.
//!
//! Nothing here is done on behalf of a client, so nothing here is governed.

mod listability;
mod page;

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::DropGuard;

use super::{
    Backend, BackendError, EMPTY_PAGES_MAX, ITEMS_MAX, PAGES_MAX,
    instance::{
        Connection, InstancePhase, connector::ConnectSpec, handshake, reconnect::random_fraction,
    },
};
use crate::{
    catalog::{ByKind, FirstPage, Kind},
    config::EraPin,
    mcp::{Era, Method, Raw, error},
    task::run_blocking_if_large,
};
pub(crate) use listability::{CatalogWatch, Listability};
use page::ListPage;

/// The catalog's connection to a server, or one for its lists alone; for control traffic only.
#[derive(Clone, Debug)]
pub struct CatalogConnection(Arc<Connection>);

impl CatalogConnection {
    pub(super) fn of(connection: &Arc<Connection>) -> Self {
        Self(Arc::clone(connection))
    }

    /// The server's advice for the model.
    pub fn instructions(&self) -> Option<String> {
        self.0.hello.instructions.clone()
    }

    /// Whether this is HTTP in the modern era.
    pub fn is_modern_http(&self) -> bool {
        self.0.link.as_http().is_some() && self.0.era() == Era::Modern
    }

    /// Whether this is of the legacy era, where a server learns in `initialize` what its client can
    /// do and may list accordingly.
    pub fn is_legacy(&self) -> bool {
        self.0.era() == Era::Legacy
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.0.closed().is_cancelled()
    }

    /// Whether the server declares that it has lists of `kind`.
    pub fn declares(&self, kind: Kind) -> bool {
        let capabilities = &self.0.hello.capabilities;
        capabilities.member(list_capability(kind)).is_some()
    }

    /// How long lists that came with `pages` are taken for fresh where the server does not say when they
    /// change: for as long as it said, with jitter on top. `None` where that is for ever.
    pub fn freshness(&self, pages: &ByKind<Option<FirstPage>>) -> Option<Duration> {
        let ages = Kind::ALL
            .iter()
            .filter(|kind| !self.declares_list_changed(list_capability(**kind)));
        let ages = ages.filter_map(|kind| pages[*kind].as_ref()?.ttl_ms);
        let ttl = ages.filter(|ttl_ms| *ttl_ms > 0).min()?;
        let ttl = Duration::from_millis(ttl.min(TTL_MS_MAX)).max(TTL_MIN);
        Some(ttl.mul_f64(1.0 + JITTER * random_fraction()))
    }

    fn declares_list_changed(&self, capability: &str) -> bool {
        let part = self.0.hello.capabilities.get(capability);
        part.and_then(|part| part.get("listChanged"))
            .is_some_and(|flag| flag.as_str() == "true")
    }
}

/// Equal where both are the same connection.
impl PartialEq for CatalogConnection {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A connection for the lists of a server alone; closed when dropped.
#[derive(Debug)]
pub struct ListConnection {
    control: CatalogConnection,
    _closed: DropGuard,
}

impl ListConnection {
    fn new(connection: Arc<Connection>) -> Self {
        Self {
            _closed: connection.closed().clone().drop_guard(),
            control: CatalogConnection(connection),
        }
    }

    /// What the server is asked with.
    pub fn control(&self) -> &CatalogConnection {
        &self.control
    }

    /// Ends the connection, politely where the transport allows it.
    pub async fn end(self) {
        self.control.0.end("listed the server").await;
    }
}

/// Follows what a server says of its lists.
#[derive(Debug)]
pub struct ListChanges(watch::Receiver<u64>);

impl ListChanges {
    /// Counts everything said so far as known.
    pub fn mark_unchanged(&mut self) {
        self.0.mark_unchanged();
    }

    /// Completes when something changed and then nothing for `quiet`.
    pub async fn changed_then_quiet(&mut self, quiet: Duration) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        for _ in 0..DEBOUNCE_ROUNDS_MAX {
            if !timeout(quiet, self.0.changed())
                .await
                .is_ok_and(|it| it.is_ok())
            {
                return;
            }
        }
    }
}

/// One list of a server, all pages joined.
#[derive(Debug)]
pub struct ServerList {
    /// The items, in the server's order.
    pub items: Vec<Raw>,
    /// What came with the first page.
    pub first: FirstPage,
}

/// What came of asking for one list.
#[derive(Debug)]
pub enum ListOutcome {
    /// What its pages have until one leads back to a page before.
    Circular(ServerList),
    /// The server declares it and has no such method.
    MethodNotFound,
    /// The server refused it, or a page of it, with this error.
    Refused(Raw),
    /// The server does not have it, as it says.
    Undeclared,
    /// All of it.
    Complete(ServerList),
}

impl Backend {
    /// Follows what the server says of its lists.
    pub fn list_changes(&self) -> ListChanges {
        ListChanges(self.connector.shared.changes.subscribe())
    }

    /// A connection beside all others that declares every capability of clients we relay, for its
    /// lists. The server's questions on it have no client and are refused, but for roots: those of the
    /// config, or none.
    ///
    /// # Errors
    /// When there is no connection to be had.
    pub async fn connect_interactive(&self) -> Result<ListConnection, BackendError> {
        let connector = &self.listing_source().connector;
        let wanted = ConnectSpec {
            era: EraPin::Legacy,
            capabilities: handshake::RELAYED_CAPABILITIES,
            session: None,
            is_for_lists: true,
            forwarded: None,
            token_owner: connector.catalog_token_owner(),
            // This is how it is known before the first call of any client.
            awaits_roots: true,
            identity: Arc::clone(&connector.shared.identity),
            start_quota_key: None,
        };
        let connection = connector.connect(&wanted).await?;
        Ok(ListConnection::new(connection))
    }

    /// Whether `control` is the catalog's connection as it is now.
    pub(super) fn is_current(&self, control: &CatalogConnection) -> bool {
        let phase = self.catalog.phase();
        let is_same = matches!(&phase, InstancePhase::Ready(now) if Arc::ptr_eq(now, &control.0));
        is_same && !control.is_closed()
    }

    /// The list of `kind`.
    ///
    /// # Errors
    /// When a page cannot be had, or the server pages without end.
    pub async fn fetch_list(
        &self,
        kind: Kind,
        control: &CatalogConnection,
    ) -> Result<ListOutcome, BackendError> {
        if !control.declares(kind) {
            return Ok(ListOutcome::Undeclared);
        }
        let mut list = ServerList {
            items: Vec::new(),
            first: FirstPage::default(),
        };
        let mut cursor: Option<Raw> = None;
        let mut cursors = HashSet::new();
        let mut empty = 0;
        for page in 0..PAGES_MAX {
            let result = match self.fetch_page(kind, cursor.as_ref(), control).await? {
                Ok(result) => result,
                Err(refusal) if page == 0 && is_method_not_found(&refusal) => {
                    return Ok(ListOutcome::MethodNotFound);
                }
                Err(refusal) => return Ok(ListOutcome::Refused(refusal)),
            };
            let bytes = result.as_bytes().len();
            // One more than may be is enough to know.
            let items_max = ITEMS_MAX + 1 - list.items.len();
            let read =
                run_blocking_if_large(bytes, move || ListPage::read(&result, kind, items_max))
                    .await;
            if page == 0 {
                list.first = read.first;
            }
            empty = if read.items.is_empty() { empty + 1 } else { 0 };
            let known = list.items.len();
            list.items.extend(read.items);
            if list.items.len() > ITEMS_MAX {
                let what = format!("{} has more than {ITEMS_MAX} items", kind.method());
                return Err(BackendError::protocol_violation(what));
            }
            let Some(next) = read.next else {
                return Ok(ListOutcome::Complete(list));
            };
            // A slice would keep its page, also one that has no items.
            if !cursors.insert(next.to_owned_memory()) {
                // The first page has no cursor by which it could be known again.
                let (before, last) = list.items.split_at(known);
                if before.starts_with(last) {
                    list.items.truncate(known);
                }
                return Ok(ListOutcome::Circular(list));
            }
            if empty == EMPTY_PAGES_MAX {
                break;
            }
            cursor = Some(next);
        }
        let what = format!(
            "{} does not end: read {} items, at most {PAGES_MAX} pages",
            kind.method(),
            list.items.len()
        );
        Err(BackendError::protocol_violation(what))
    }

    async fn fetch_page(
        &self,
        kind: Kind,
        cursor: Option<&Raw>,
        control: &CatalogConnection,
    ) -> Result<crate::mcp::Outcome, BackendError> {
        let mut members = Vec::new();
        if control.0.era() == Era::Modern {
            members.push(format!(r#""_meta":{{{}}}"#, handshake::gateway_meta()));
        }
        if let Some(cursor) = cursor {
            members.push(format!(r#""cursor":{}"#, cursor.as_str()));
        }
        let params = (!members.is_empty()).then(|| {
            Raw::parse(format!("{{{}}}", members.join(","))).expect("members of ours are JSON")
        });
        let method = Method::parse(kind.method());
        let request = handshake::control_exchange(&method, params);
        let after = self.config().timeout;
        let answer = timeout(after, control.0.link.request(&request)).await;
        answer.unwrap_or(Err(BackendError::Timeout {
            after,
            key: Some("timeout"),
        }))
    }

    /// Opens the stream on which a modern server says that its lists changed.
    pub fn follow_list_changes(&self, control: &CatalogConnection) {
        let announced: Vec<&str> = [
            ("tools", "toolsListChanged"),
            ("prompts", "promptsListChanged"),
            ("resources", "resourcesListChanged"),
        ]
        .into_iter()
        .filter(|(capability, _)| control.declares_list_changed(capability))
        .map(|(_, flag)| flag)
        .collect();
        let can_be = control.0.era() == Era::Modern && !announced.is_empty();
        if !can_be || !control.0.start_following() {
            return;
        }
        let flags: Vec<_> = announced
            .iter()
            .map(|flag| format!(r#""{flag}":true"#))
            .collect();
        let params = format!(
            r#"{{"_meta":{{{}}},"notifications":{{{}}}}}"#,
            handshake::gateway_meta(),
            flags.join(",")
        );
        let params = Raw::parse(params).expect("members of ours are JSON");
        let connection = Arc::clone(&control.0);
        let changes = self.connector.shared.changes.clone();
        self.connector.tasks.spawn("list changes", async move {
            let mut pause = RELISTEN_DELAY;
            while !connection.closed().is_cancelled() {
                let requests = &connection.link.requests;
                let acknowledged = requests.acknowledged();
                let listen = handshake::control_exchange(&Method::Listen, Some(params.clone()));
                let ended = connection.link.request(&listen).await;
                tracing::debug!(?ended, "list change stream ended");
                if requests.acknowledged() > acknowledged {
                    pause = RELISTEN_DELAY;
                }
                tokio::select! {
                    () = sleep(pause.mul_f64(1.0 - JITTER * random_fraction())) => {}
                    () = connection.closed().cancelled() => break,
                }
                pause = pause.saturating_mul(2).min(RELISTEN_DELAY_MAX);
                // What happened in the gap is not told again.
                changes.send_modify(|count| *count += 1);
            }
        });
    }
}

/// Changes that are waited out at most: a server that never falls quiet is listed all the same.
const DEBOUNCE_ROUNDS_MAX: usize = 10;

/// Pause before a stream of list changes that ended is opened again; it doubles while the server does
/// not acknowledge any.
const RELISTEN_DELAY: Duration = Duration::from_secs(5);

/// The longest such pause.
const RELISTEN_DELAY_MAX: Duration = Duration::from_secs(300);

/// Least time for which lists are taken for fresh, however soon their server says that they are not.
const TTL_MIN: Duration = Duration::from_secs(30);

/// Milliseconds for which lists are taken for fresh at most.
const TTL_MS_MAX: u64 = 24 * 3600 * 1000;

/// How much of a pause is left to chance, lest everybody asks at once.
const JITTER: f64 = 0.2;

/// Where a server declares that it has lists of `kind`.
fn list_capability(kind: Kind) -> &'static str {
    match kind {
        Kind::Tools => "tools",
        Kind::Resources | Kind::Templates => "resources",
        Kind::Prompts => "prompts",
    }
}

/// Whether a server refused since it has no such method.
fn is_method_not_found(refusal: &Raw) -> bool {
    error::code(refusal) == Some(error::METHOD_NOT_FOUND)
}

#[cfg(test)]
mod tests;
