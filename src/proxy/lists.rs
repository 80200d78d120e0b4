//! Lists, answered from the snapshot, and telling clients when theirs changed.

use std::{borrow::Cow, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use tokio::task::consume_budget;

use super::{Proxy, routing, subscriptions::ReviewScope};
use crate::{
    auth::Agent,
    backend::{Update, UpdateReceiver},
    catalog::{Audience, Catalog, CatalogView, Kind, PageRange},
    governance::Visibility,
    mcp::{Era, Outcome, Raw, RpcError, error, json::Patch, method::notice},
    names::{Scope, ServerName},
    session::{Call, Client, Event, ListViewer, Session, modern, state::SessionKind},
    task::{run_blocking, run_blocking_if_large},
};

impl Proxy {
    /// One page of a list; by default the page is the whole list.
    pub(super) async fn list(&self, call: &Call, kind: Kind) -> Outcome {
        let settings = self.settings();
        self.wait_first_listing(call).await;
        if call.cancel.is_cancelled() {
            // What is there so far would be taken for all there is.
            return Err(self.list_cancelled_error(call).to_raw());
        }
        let catalog = self.catalog_for(call);
        let visibility = self.visibility(call.list_viewer());
        let cursor = call.params.as_ref().and_then(|params| params.get("cursor"));
        let wanted = ListRequest {
            kind,
            scope: call.scope.clone(),
            cursor: cursor.filter(|cursor| cursor.as_str() != "null"),
            size: settings.page_size,
            era: call.client.era(),
            is_shared: self.is_publicly_cacheable(),
        };
        let bytes = catalog.list(&wanted.scope, kind).array().as_bytes().len();
        run_blocking_if_large(bytes, move || wanted.page_of(&catalog, &visibility)).await
    }

    /// Whether all callers may do and see the same, so that a cache may keep for all of them what it got
    /// for one.
    pub(super) fn is_publicly_cacheable(&self) -> bool {
        self.governance.directory().is_anonymous()
    }

    /// What is said of a list that was cut off while it waited.
    fn list_cancelled_error(&self, call: &Call) -> RpcError {
        if self.is_draining() {
            return super::draining_error();
        }
        let cause = self.cancellation_cause(call.session_ended.as_ref());
        cause.map_or_else(routing::cancelled_error, |cause| {
            RpcError::new(error::INTERNAL, cause)
        })
    }

    /// What `onlooker` is shown.
    pub(super) fn visibility(&self, viewer: ListViewer<'_>) -> Visibility {
        self.governance.visibility(viewer.agent, viewer.scope)
    }

    /// The state of what `onlooker` is shown of each list.
    pub(super) fn list_digests(&self, onlooker: ListViewer<'_>, audience: Audience) -> [u64; 4] {
        let route = (&self.owners_seen_by(onlooker.agent), onlooker.scope);
        let catalog = self.catalog_store.catalog_for(route, audience);
        digests_of(&catalog, onlooker.scope, &self.visibility(onlooker))
    }

    /// The same, aside where the lists are long and each of their items is looked at.
    pub(super) async fn list_digests_blocking(
        &self,
        viewer: ListViewer<'_>,
        audience: Audience,
    ) -> [u64; 4] {
        let route = (&self.owners_seen_by(viewer.agent), viewer.scope);
        let catalog = self.catalog_store.catalog_for(route, audience);
        let visibility = self.visibility(viewer);
        let scope = viewer.scope.clone();
        let bytes = match &visibility {
            Visibility::All | Visibility::Hidden(_) => 0,
            Visibility::Filtered(_) => {
                let lists = Kind::ALL.iter().map(|kind| catalog.list(&scope, *kind));
                lists.map(|list| list.array().as_bytes().len()).sum()
            }
        };
        run_blocking_if_large(bytes, move || digests_of(&catalog, &scope, &visibility)).await
    }

    /// Tells every session with an open stream which of its lists changed.
    pub(super) async fn notify_list_changes(self: Arc<Self>) {
        let mut changes = self.catalog_store.changes();
        let mut agents = self.governance.directory().changes();
        let mut views = self.catalog_store.views().changes();
        loop {
            let (changed, review) = tokio::select! {
                changed = views.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let proxy = Arc::clone(&self);
                    run_blocking(move || proxy.notify_view_sessions()).await;
                    continue;
                }
                changed = changes.changed() => (changed, ReviewScope::Ended),
                changed = agents.changed() => (changed, ReviewScope::All),
                () = self.tasks.stop_token().cancelled() => return,
            };
            if changed.is_err() {
                return;
            }
            // It takes long where there are many sessions, or much is listed.
            let proxy = Arc::clone(&self);
            run_blocking(move || proxy.notify_all_sessions(review)).await;
        }
    }

    fn notify_all_sessions(self: &Arc<Self>, review: ReviewScope) {
        // Whatever there is for anybody is there for clients that can be asked.
        self.governance
            .forget_unlisted(&self.catalog_store.snapshots());
        self.review_subscriptions(review);
        self.end_unknown_sessions();
        // Those that come and go meanwhile wait for nothing.
        for session in self.sessions.all() {
            self.notify_session(&session);
        }
    }

    /// The same for sessions on routes of views alone, of which some changed or ended.
    fn notify_view_sessions(&self) {
        self.end_unknown_sessions();
        for session in self.sessions.all() {
            if session.scope.view().is_some() {
                self.notify_session(&session);
            }
        }
    }

    /// Ends the sessions of agents that are no longer known, or that lost a key, and those on routes
    /// that are gone. What talks to us on stdin cannot go elsewhere and may stay on its route.
    fn end_unknown_sessions(&self) {
        let directory = self.governance.directory();
        let mut unknown = Vec::new();
        self.sessions.for_each(|session| {
            let is_lost = session.kind != SessionKind::Stdio
                && !self.has_route_for(&session.agent, &session.scope);
            if is_lost || !directory.is_still_authorized(&session.agent) {
                unknown.push(session.id.clone());
            }
        });
        for id in unknown {
            self.sessions.close(&id);
        }
    }

    /// Tells one session which of its lists changed since it was last told.
    pub fn notify_session(&self, session: &Session) {
        if session.standalone_stream().is_none() || !session.is_initialized() {
            return;
        }
        Self::notify_state_lost(session);
        let new = self.list_digests(session.list_viewer(), audience_of(session));
        let Some(old) = session.swap_seen_digests(new) else {
            return;
        };
        for notification in changed_notifications(old, new) {
            session.deliver(Event::Notification {
                method: notification.into(),
                params: None,
            });
        }
    }

    /// Passes updates of resources to the sessions that subscribed to them.
    pub(super) async fn forward_updates(self: Arc<Self>, mut updates: UpdateReceiver) {
        loop {
            let update = tokio::select! {
                update = updates.next() => update,
                () = self.tasks.stop_token().cancelled() => return,
            };
            let Some(update) = update else { return };
            for session in self.sessions.subscribed() {
                self.forward_update(&session, &update);
                // What it says is scanned for each.
                consume_budget().await;
            }
        }
    }

    /// Whether `agent` may know of the resource that `server` calls `original`.
    pub(super) fn may_see_resource(
        &self,
        agent: &Agent,
        scope: &Scope,
        server: &ServerName,
        original: &str,
    ) -> bool {
        let owners = self.owners_seen_by(agent);
        if !self.catalog_store.sees(&owners, server) {
            return false;
        }
        let visibility = self.governance.visibility(agent, scope);
        let catalog = self.catalog_store.catalog((&owners, scope));
        let names = catalog.resource_names(server, Kind::Resources, original);
        visibility.shows_resource(server, &names, original)
    }

    /// Passes an update to `session` when it subscribed to the resource or to one that contains it.
    pub fn forward_update(&self, session: &Arc<Session>, update: &Update) {
        let mut known = session.subscriptions();
        if known.is_empty() {
            return;
        }
        let route = (&self.owners_seen_by(&session.agent), &session.scope);
        let catalog = self.catalog_store.catalog(route);
        let uris = catalog.uris(&session.scope, &update.server);
        let serves = catalog.shows_resource(&session.scope, &update.server, &update.uri)
            && self.may_see_resource(&session.agent, &session.scope, &update.server, &update.uri);
        let exposed = uris.expose(&update.uri);
        let is_of = |uri: &str, known: &String| uri == known || is_below(uri, known);
        // What a server calls it may be the name that another has for something else.
        let is_theirs = |known: &String| {
            let place = session.subscription_target(known);
            place.is_none_or(|(server, _)| server == update.server)
        };
        let subscribed = |known: &String| {
            is_of(&exposed, known) || (is_of(&update.uri, known) && is_theirs(known))
        };
        let is_named = |known: &String| *known == exposed || *known == update.uri;
        // Another connection to the same server tells its own clients.
        let backend = self.backends.get(&update.server);
        let serves =
            serves && backend.is_some_and(|b| b.serves_session_on(session, update.instance));
        known.retain(subscribed);
        if !serves || known.is_empty() {
            return;
        }
        let Some(params) = self.scan_update(session, update, known.iter().any(is_named)) else {
            return;
        };
        let mut patch = Patch::new(params.as_bytes());
        if let Some(span) = params.member("uri")
            && let Some(uri) = params.slice(span.clone()).as_text()
        {
            let exposed = Raw::string(&uris.expose(&uri));
            patch.replace(span, exposed.as_bytes().to_vec());
        }
        session.deliver(Event::Notification {
            method: Cow::Borrowed(notice::RESOURCE_UPDATED),
            params: Some(patch.finish()),
        });
    }

    /// The params of an update as `session` may see them, by the rules of the moment; `None` where it may
    /// not. What the client itself `has_named` is no news to it.
    fn scan_update(&self, session: &Session, update: &Update, has_named: bool) -> Option<Raw> {
        let params = update.params.clone();
        let Session { agent, scope, .. } = session;
        let Some(screens) = self.governance.scanners_for(agent, scope, &update.server) else {
            return Some(params);
        };
        if has_named {
            screens.scan_resource_update(&screens, params)
        } else {
            screens.scan_notification(notice::RESOURCE_UPDATED, params)
        }
    }
}

impl Proxy {
    /// The current snapshot for the client of `call`.
    pub(super) fn catalog_for(&self, call: &Call) -> Arc<Catalog> {
        let route = (&self.owners_seen_by(&call.client.agent), &call.scope);
        self.catalog_store
            .catalog_for(route, audience(&call.client))
    }
}

/// What `client` is shown.
pub(super) fn audience(client: &Client) -> Audience {
    if client.accepts_server_requests() {
        Audience::Interactive
    } else {
        Audience::Plain
    }
}

/// What the client of `session` is shown.
pub(super) fn audience_of(session: &Session) -> Audience {
    match session.client_info() {
        Some(opening) if opening.can_be_asked() => Audience::Interactive,
        Some(_) | None => Audience::Plain,
    }
}

/// The notifications for what differs between two states of the lists.
pub(super) fn changed_notifications(old: [u64; 4], new: [u64; 4]) -> Vec<&'static str> {
    let differs = |kind: Kind| {
        let at = Kind::ALL
            .iter()
            .position(|known| *known == kind)
            .unwrap_or_default();
        old[at] != new[at]
    };
    let mut notifications = Vec::new();
    if differs(Kind::Tools) {
        notifications.push(notice::TOOLS_CHANGED);
    }
    if differs(Kind::Resources) || differs(Kind::Templates) {
        notifications.push(notice::RESOURCES_CHANGED);
    }
    if differs(Kind::Prompts) {
        notifications.push(notice::PROMPTS_CHANGED);
    }
    notifications
}

/// Whether `uri` lies below `parent`.
fn is_below(uri: &str, parent: &str) -> bool {
    uri.strip_prefix(parent)
        .is_some_and(|rest| parent.ends_with('/') || rest.starts_with('/'))
}

fn encode_cursor(kind: Kind, offset: usize, catalog: &Catalog) -> String {
    URL_SAFE_NO_PAD.encode(format!(
        "{} {:016x} {offset}",
        kind.method(),
        catalog.version()
    ))
}

fn decode_cursor(cursor: &Raw, kind: Kind, catalog: &Catalog) -> Option<usize> {
    let cursor = cursor.as_text()?;
    let text = URL_SAFE_NO_PAD.decode(cursor.as_bytes()).ok()?;
    let text = String::from_utf8(text).ok()?;
    let mut parts = text.split(' ');
    let (method, version, offset) = (parts.next()?, parts.next()?, parts.next()?);
    let fits = method == kind.method() && version == format!("{:016x}", catalog.version());
    offset
        .parse()
        .ok()
        .filter(|_| fits && parts.next().is_none())
}

fn stale_cursor_error() -> Raw {
    let message = "invalid or outdated cursor; list again";
    RpcError::new(error::INVALID_PARAMS, message).to_raw()
}

/// The state of each list on the route of `scope`, as far as it is in `sight`.
fn digests_of(catalog: &Catalog, scope: &Scope, sight: &Visibility) -> [u64; 4] {
    Kind::ALL.map(|kind| match sight {
        Visibility::All => catalog.list(scope, kind).digest(),
        Visibility::Hidden(_) | Visibility::Filtered(_) => catalog
            .list(scope, kind)
            .digest_where(|entry| sight.shows(kind, entry)),
    })
}

/// What a request for a list asks for.
struct ListRequest {
    kind: Kind,
    scope: Scope,
    cursor: Option<Raw>,
    /// Items of a page; all of the list for `None`.
    size: Option<usize>,
    era: Era,
    /// See [`Proxy::is_publicly_cacheable`].
    is_shared: bool,
}

impl ListRequest {
    /// The page of `catalog`, as far as it is in `sight`.
    fn page_of(&self, catalog: &Catalog, visibility: &Visibility) -> Outcome {
        let view = catalog.list(&self.scope, self.kind).for_era(self.era);
        let offset = match &self.cursor {
            None => 0,
            Some(cursor) => decode_cursor(cursor, self.kind, catalog)
                .filter(|_| self.size.is_some())
                .ok_or_else(stale_cursor_error)?,
        };
        let sees_all = matches!(visibility, Visibility::All);
        let page = if sees_all {
            view.page(offset, self.size)
        } else {
            view.page_where(offset, self.size, |entry| {
                visibility.shows(self.kind, entry)
            })
        };
        let page = page.ok_or_else(stale_cursor_error)?;
        let cursor = page
            .next
            .map(|next| encode_cursor(self.kind, next, catalog));
        let public = view.freshness().public && self.is_shared && sees_all;
        Ok(self.render_page(page, cursor.as_deref(), view, public))
    }

    /// The result around a page, with what the server's own list result carried beside its items.
    fn render_page(
        &self,
        page: PageRange<'_>,
        cursor: Option<&str>,
        view: CatalogView<'_>,
        public: bool,
    ) -> Raw {
        let mut beside = String::new();
        if let Some(cursor) = cursor {
            push_members(&mut beside, &[r#""nextCursor":""#, cursor, "\""]);
        }
        if let Some(rest) = view.other_members() {
            let text = rest.as_str().trim();
            push_members(&mut beside, &[&text[1..text.len() - 1]]);
        }
        if self.era == Era::Modern {
            let ttl_ms = view.freshness().ttl_ms;
            let scope = if public { "public" } else { "private" };
            let members =
                format!(r#""resultType":"complete","ttlMs":{ttl_ms},"cacheScope":"{scope}""#);
            push_members(&mut beside, &[&members]);
            let has_meta = |rest: &Raw| rest.member("_meta").is_some();
            if !view.other_members().is_some_and(has_meta) {
                let info = modern::server_info_member();
                push_members(&mut beside, &[&format!(r#""_meta":{{{info}}}"#)]);
            }
        }
        let empty = format!(r#"{{"{}":[]}}"#, self.kind.member());
        let (within, behind) = (empty.len() - 2, empty.len() - 1);
        // Spliced, so that a long list is copied once and read by nobody.
        let mut patch = Patch::new(empty.as_bytes());
        match page.items {
            Cow::Borrowed(items) => patch.replace(within..within, items.as_bytes()),
            Cow::Owned(items) => patch.replace(within..within, items.into_bytes()),
        }
        patch.replace(behind..behind, beside.into_bytes());
        patch.finish()
    }
}

/// Appends members, given in parts, to `beside` behind a comma; nothing where there are none.
fn push_members(beside: &mut String, members: &[&str]) {
    if members.iter().any(|part| !part.trim().is_empty()) {
        beside.push(',');
        beside.extend(members.iter().copied());
    }
}
