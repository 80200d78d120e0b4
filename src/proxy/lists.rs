//! Lists, answered from the snapshot, and telling clients when theirs changed.

use std::{borrow::Cow, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use tokio::sync::mpsc;

use super::{Proxy, subscriptions::Review, wait};
use crate::{
    auth::Agent,
    backend::Update,
    catalog::{Audience, Catalog, Kind, View},
    governance::Sight,
    mcp::{Era, Outcome, Raw, RpcError, error, json::Patch, method::notice},
    names::{Scope, ServerName},
    session::{Call, Client, Event, Session, modern, state::Kind as SessionKind},
};

impl Proxy {
    /// One page of a list; by default the page is the whole list.
    pub(super) async fn list(&self, call: &Call, kind: Kind) -> Outcome {
        let settings = self.settings();
        self.first_listed(call).await;
        if call.cancel.is_cancelled() {
            // What is there so far would be taken for all there is.
            return Err(self.not_listed(call).to_raw());
        }
        let catalog = self.board.catalog_for(audience(&call.client));
        let view = catalog.list(&call.scope, kind);
        let cursor = call.params.as_ref().and_then(|params| params.get("cursor"));
        let offset = match cursor.filter(|cursor| cursor.as_str() != "null") {
            None => 0,
            Some(cursor) => Self::offset(&cursor, kind, &catalog)
                .filter(|_| settings.page_size.is_some())
                .ok_or_else(stale_cursor)?,
        };
        let sight = self.governance.sight(&call.client.agent, &call.scope);
        let sees_all = matches!(sight, Sight::Everything);
        let page = if sees_all {
            view.page(offset, settings.page_size)
        } else {
            view.page_where(offset, settings.page_size, |entry| sight.shows(kind, entry))
        };
        let page = page.ok_or_else(stale_cursor)?;
        let mut members = format!(r#""{}":[{}]"#, kind.member(), page.items);
        if let Some(next) = page.next {
            let cursor = seal(kind, next, &catalog);
            members.push_str(r#","nextCursor":""#);
            members.push_str(&cursor);
            members.push('"');
        }
        let public = view.freshness().public && sees_all;
        Ok(finish(&members, view, public, call.client.era()))
    }

    /// What is said of a list that was cut off while it waited.
    fn not_listed(&self, call: &Call) -> RpcError {
        if self.is_draining() {
            return super::draining();
        }
        let cause = self.cut_off_by(call.ended.as_ref());
        cause.map_or_else(wait::given_up, |cause| {
            RpcError::new(error::INTERNAL, cause)
        })
    }

    fn offset(cursor: &Raw, kind: Kind, catalog: &Catalog) -> Option<usize> {
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

    /// The state of what `agent` may see of each list on the route of `scope`.
    pub(super) fn digests(&self, agent: &Agent, scope: &Scope, audience: Audience) -> [u64; 4] {
        let catalog = self.board.catalog_for(audience);
        let sight = self.governance.sight(agent, scope);
        Kind::ALL.map(|kind| match &sight {
            Sight::Everything => catalog.list(scope, kind).digest(),
            Sight::Nothing | Sight::Some(_) => catalog
                .list(scope, kind)
                .digest_where(|entry| sight.shows(kind, entry)),
        })
    }

    /// Tells every session with an open stream which of its lists changed.
    pub(super) async fn tell_changes(self: Arc<Self>) {
        let mut changes = self.board.changes();
        let mut agents = self.governance.directory().changes();
        loop {
            tokio::select! {
                told = changes.changed() => {
                    if told.is_err() {
                        return;
                    }
                    // Whatever there is for anybody is there for clients that can be asked.
                    let catalog = self.board.catalog_for(Audience::Able);
                    self.governance.forget_unlisted(&catalog);
                    self.review_subscriptions(Review::Ends);
                }
                told = agents.changed() => {
                    if told.is_err() {
                        return;
                    }
                    self.review_subscriptions(Review::Whole);
                }
                () = self.tasks.stop_token().cancelled() => return,
            }
            self.dismiss_strangers();
            self.sessions.each(|session| self.tell_session(session));
        }
    }

    /// Ends the sessions of agents that are no longer known, or that lost a key, and those on routes
    /// that are gone. What talks to us on stdin cannot go elsewhere and may stay on its route.
    fn dismiss_strangers(&self) {
        let directory = self.governance.directory();
        let mut unknown = Vec::new();
        self.sessions.each(|session| {
            let is_lost = session.kind != SessionKind::Stdio && !self.has(&session.scope);
            if is_lost || !directory.still_knows(&session.agent) {
                unknown.push(session.id.clone());
            }
        });
        for id in unknown {
            self.sessions.close(&id);
        }
    }

    /// Tells one session which of its lists changed since it was last told.
    pub fn tell_session(&self, session: &Session) {
        if session.standing().is_none() || !session.is_initialized() {
            return;
        }
        Self::tell_lost(session);
        let new = self.digests(&session.agent, &session.scope, audience_of(session));
        let Some(old) = session.swap_seen(new) else {
            return;
        };
        for notification in changed(old, new) {
            session.deliver(Event::Notification {
                method: notification.into(),
                params: None,
            });
        }
    }

    /// Passes updates of resources to the sessions that subscribed to them.
    pub(super) async fn tell_updates(self: Arc<Self>, mut updates: mpsc::Receiver<Update>) {
        loop {
            let update = tokio::select! {
                update = updates.recv() => update,
                () = self.tasks.stop_token().cancelled() => return,
            };
            let Some(update) = update else { return };
            self.sessions
                .each(|session| self.tell_update(session, &update));
        }
    }

    /// Whether `agent` may know of the resource that `server` calls `original`.
    pub(super) fn may_see(
        &self,
        agent: &Agent,
        scope: &Scope,
        server: &ServerName,
        original: &str,
    ) -> bool {
        let sight = self.governance.sight(agent, scope);
        let merged = self
            .board
            .catalog()
            .uris(&Scope::All, server)
            .expose(original);
        sight.shows_resource(server, &merged, original)
    }

    /// Passes an update to `session` when it subscribed to the resource or to one that contains it.
    pub fn tell_update(&self, session: &Arc<Session>, update: &Update) {
        let catalog = self.board.catalog();
        let uris = catalog.uris(&session.scope, &update.server);
        let serves = catalog.shows_resource(&session.scope, &update.server, &update.uri)
            && self.may_see(&session.agent, &session.scope, &update.server, &update.uri);
        let exposed = uris.expose(&update.uri);
        let subscribed = |known: &String| {
            *known == exposed || *known == update.uri || is_within(&exposed, known)
        };
        // Another connection to the same server tells its own clients.
        let backend = self.backends.get(&update.server);
        let serves = serves && backend.is_some_and(|b| b.serves(session, update.instance));
        if !serves || !session.subscriptions().iter().any(subscribed) {
            return;
        }
        let mut patch = Patch::new(update.params.as_bytes());
        if let Some(span) = update.params.member("uri") {
            patch.replace(span, Raw::string(&exposed).as_bytes().to_vec());
        }
        session.deliver(Event::Notification {
            method: Cow::Borrowed(notice::RESOURCE_UPDATED),
            params: Some(patch.finish()),
        });
    }
}

/// What `client` is shown.
pub(super) fn audience(client: &Client) -> Audience {
    if client.can_be_asked() {
        Audience::Able
    } else {
        Audience::Plain
    }
}

/// What the client of `session` is shown.
pub(super) fn audience_of(session: &Session) -> Audience {
    match session.opening() {
        Some(opening) if opening.can_be_asked() => Audience::Able,
        Some(_) | None => Audience::Plain,
    }
}

/// The notifications for what differs between two states of the lists.
pub(super) fn changed(old: [u64; 4], new: [u64; 4]) -> Vec<&'static str> {
    let differs = |kind: Kind| {
        let at = Kind::ALL
            .iter()
            .position(|known| *known == kind)
            .unwrap_or_default();
        old[at] != new[at]
    };
    let mut told = Vec::new();
    if differs(Kind::Tools) {
        told.push(notice::TOOLS_CHANGED);
    }
    if differs(Kind::Resources) || differs(Kind::Templates) {
        told.push(notice::RESOURCES_CHANGED);
    }
    if differs(Kind::Prompts) {
        told.push(notice::PROMPTS_CHANGED);
    }
    told
}

/// Whether `uri` lies below `parent`.
fn is_within(uri: &str, parent: &str) -> bool {
    uri.strip_prefix(parent)
        .is_some_and(|rest| parent.ends_with('/') || rest.starts_with('/'))
}

fn seal(kind: Kind, offset: usize, catalog: &Catalog) -> String {
    URL_SAFE_NO_PAD.encode(format!(
        "{} {:016x} {offset}",
        kind.method(),
        catalog.version()
    ))
}

fn stale_cursor() -> Raw {
    let message = "the cursor is not one of ours, or the list has changed since; list again";
    RpcError::new(error::INVALID_PARAMS, message).to_raw()
}

/// The result around a page, with what the server's own list result carried beside its items.
fn finish(members: &str, view: View<'_>, public: bool, era: Era) -> Raw {
    let rest = view.rest().map(|rest| {
        let text = rest.as_str().trim();
        text[1..text.len() - 1].to_owned()
    });
    let has_meta = view
        .rest()
        .is_some_and(|rest| rest.member("_meta").is_some());
    let members = match rest.filter(|rest| !rest.trim().is_empty()) {
        Some(rest) => format!("{members},{rest}"),
        None => members.to_owned(),
    };
    let text = match era {
        Era::Legacy => format!("{{{members}}}"),
        Era::Modern => {
            let ttl_ms = view.freshness().ttl_ms;
            let scope = if public { "public" } else { "private" };
            let meta = if has_meta {
                String::new()
            } else {
                format!(r#","_meta":{{{}}}"#, modern::server_info_member())
            };
            format!(
                r#"{{{members},"resultType":"complete","ttlMs":{ttl_ms},"cacheScope":"{scope}"{meta}}}"#
            )
        }
    };
    Raw::parse(text).expect("joined from valid JSON")
}
