//! What of a legacy session outlives the process, and which sessions have changed since that was
//! written down.
//!
//! [`SavedSession`] is that part as a value. [`SessionChanges`] is filled on the way of requests, which costs a lock
//! and nothing else, and emptied in the background by whoever writes. What ended is remembered here
//! until it is removed where it was written, so that nobody restores it meanwhile.

use std::{collections::HashSet, sync::Mutex};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::state::{Session, log_id};
use crate::{
    lock::lock,
    mcp::{Level, LogFilter, Raw, Revision},
    names::{ProfileName, Scope, ServerName},
};

/// Sessions that have ended and are not yet removed where they were written; with more, a client that
/// deleted its session could go on with it after a restart.
const ENDED_MAX: usize = 65_536;

/// What outlives the process of a session that has said `initialize`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct SavedSession {
    /// The route, as its path has it behind `/mcp`.
    pub(super) route: String,
    pub(super) revision: String,
    pub(super) info: Option<Raw>,
    pub(super) capabilities: Option<Raw>,
    pub(super) initialized: bool,
    /// The least severe log message wanted, once the client has set it.
    pub(super) level: Option<String>,
    pub(super) subscriptions: Vec<String>,
    /// The lists that the client has been told of.
    pub(super) seen: Option<[u64; 4]>,
    /// Servers with a connection for this session alone.
    pub(super) own: Vec<ServerName>,
}

impl SavedSession {
    /// What is to be kept of `session`; nothing before it was opened.
    pub fn of(session: &Session) -> Option<Self> {
        let info = session.client_info()?;
        Some(Self {
            route: route(&session.scope),
            revision: info.revision.as_str().to_owned(),
            info: info.info.clone(),
            capabilities: Some(info.capabilities.clone()),
            initialized: session.is_initialized(),
            level: match session.logs() {
                LogFilter::All | LogFilter::None => None,
                LogFilter::From(level) => Some(level.as_str().to_owned()),
            },
            subscriptions: session.subscriptions(),
            seen: session.seen_digests(),
            own: session.dedicated_servers(),
        })
    }

    /// Reads what [`SavedSession::to_json`] wrote; `None` for what this version does not understand.
    pub fn from_json(json: &str) -> Option<Self> {
        let saved: Self = serde_json::from_str(json).ok()?;
        saved.revision()?;
        Some(saved)
    }

    /// As text.
    pub fn to_json(&self) -> String {
        Raw::from_value(self).as_str().to_owned()
    }

    /// Whether the session is one of the route of `scope`.
    pub fn is_on_route(&self, scope: &Scope) -> bool {
        self.route == route(scope)
    }

    /// The servers that knew things of this session alone, which end with their process.
    pub fn servers_with_lost_state(&self) -> &[ServerName] {
        &self.own
    }

    pub(super) fn revision(&self) -> Option<Revision> {
        Revision::parse(&self.revision)
    }

    pub(super) fn logs(&self) -> LogFilter {
        let level = self.level.as_deref().and_then(Level::parse);
        level.map_or(LogFilter::All, LogFilter::From)
    }
}

fn route(scope: &Scope) -> String {
    let under = |kind: &str, name: &str| format!("/{kind}/{name}");
    match scope {
        Scope::All => String::new(),
        Scope::Profile(profile) => under("profiles", ProfileName::as_str(profile)),
        Scope::Server(server) => under("servers", server.as_str()),
        Scope::View { id, .. } => under("views", &id.to_string()),
    }
}

/// Which sessions are to be written down, or removed.
#[derive(Debug, Default)]
pub struct SessionChanges {
    noted: Mutex<SavedChange>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct SavedChange {
    /// Whether anybody takes what is noted.
    is_enabled: bool,
    changed: HashSet<String>,
    ended: HashSet<String>,
}

impl SessionChanges {
    /// From now on changes are noted.
    pub fn enable(&self) {
        lock(&self.noted).is_enabled = true;
    }

    /// Notes that a session changed.
    pub fn mark_changed(&self, id: &str) {
        let mut noted = lock(&self.noted);
        if noted.is_enabled && !noted.ended.contains(id) && noted.changed.insert(id.to_owned()) {
            drop(noted);
            self.notify.notify_one();
        }
    }

    /// Notes that a session ended, before it can no longer be found.
    pub fn mark_ended(&self, id: &str) {
        let mut noted = lock(&self.noted);
        if !noted.is_enabled {
            return;
        }
        noted.changed.remove(id);
        if noted.ended.len() >= ENDED_MAX {
            drop(noted);
            return tracing::warn!(
                session = log_id(id),
                "too many ended sessions; the session stays in the store"
            );
        }
        noted.ended.insert(id.to_owned());
        drop(noted);
        self.notify.notify_one();
    }

    /// Whether a session ended that may still be found where it was written.
    pub fn has_ended(&self, id: &str) -> bool {
        lock(&self.noted).ended.contains(id)
    }

    /// Completes when there is something to write, or may be. For one caller at a time.
    pub async fn wait_any(&self) {
        self.notify.notified().await;
    }

    /// Takes up to `limit` ids of sessions that changed and copies as many of those that ended,
    /// which [`SessionChanges::forget_ended`] takes.
    pub fn take(&self, limit: usize) -> (Vec<String>, Vec<String>) {
        let mut noted = lock(&self.noted);
        let changed: Vec<String> = noted.changed.iter().take(limit).cloned().collect();
        for id in &changed {
            noted.changed.remove(id);
        }
        let ended = noted.ended.iter().take(limit).cloned().collect();
        if !noted.changed.is_empty() || noted.ended.len() > limit {
            self.notify.notify_one();
        }
        (changed, ended)
    }

    /// Notes that what was taken could not be written: those that `changed` are to be written again,
    /// those that ended still are to be removed.
    pub fn restore_taken(&self, changed: &[String]) {
        for id in changed {
            self.mark_changed(id);
        }
        if !lock(&self.noted).ended.is_empty() {
            self.notify.notify_one();
        }
    }

    /// Notes that sessions which ended are no longer kept anywhere.
    pub fn forget_ended(&self, ended: &[String]) {
        let mut noted = lock(&self.noted);
        for id in ended {
            noted.ended.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        auth::Agent,
        session::{legacy, state::SessionKind},
    };

    #[test]
    fn a_session_comes_back_as_it_was() {
        let server = ServerName::parse("gh").unwrap();
        let agent = Arc::new(Agent::anonymous());
        let scope = Scope::Server(server.clone());
        let session = Session::new(SessionKind::Streamable, Arc::clone(&agent), scope.clone());
        assert_eq!(SavedSession::of(&session), None, "it was not opened");
        let params = r#"{"protocolVersion":"2025-06-18","capabilities":{"roots" : {}},"clientInfo":{"name":"c","version":"1","x":1e3}}"#;
        session.initialize(legacy::parse_initialize(Some(&Raw::from_static(params))).unwrap());
        session.set_initialized();
        session.set_level(Level::Error);
        session.subscribe("file:///a").unwrap();
        session.swap_seen_digests([1, 2, 3, u64::MAX]);
        session.note_dedicated(&server);
        let saved = SavedSession::of(&session).unwrap();
        let read = SavedSession::from_json(&saved.to_json()).unwrap();
        assert_eq!(read, saved);
        assert!(read.is_on_route(&scope) && !read.is_on_route(&Scope::All));

        let back = Session::restored(&session.id, agent, scope, &read).unwrap();
        let opening = back.client_info().unwrap();
        assert_eq!(opening.capabilities.as_str(), r#"{"roots" : {}}"#);
        assert_eq!(opening.profile, session.client_info().unwrap().profile);
        assert_eq!(back.logs(), LogFilter::From(Level::Error));
        assert_eq!(back.take_lost_servers(None), [server]);
        assert_eq!(back.take_lost_servers(None), [], "it is told once");
        let mut expect = saved;
        expect.own.clear();
        assert_eq!(
            SavedSession::of(&back),
            Some(expect),
            "but for its connections"
        );
    }

    #[test]
    fn what_another_version_wrote_is_no_session() {
        for json in ["", "[]", "{}", r#"{"revision":"2031-01-01"}"#] {
            assert_eq!(SavedSession::from_json(json), None, "{json}");
        }
        let bare = SavedSession::from_json(r#"{"revision":"2025-03-26","more":1}"#).unwrap();
        assert!(bare.is_on_route(&Scope::All));
    }

    #[test]
    fn what_ended_is_not_forgotten_before_it_is_removed() {
        let changes = SessionChanges::default();
        changes.mark_changed("a");
        assert_eq!(changes.take(9), (vec![], vec![]), "nobody wants to know");
        changes.enable();
        changes.mark_changed("a");
        changes.mark_changed("b");
        changes.mark_ended("b");
        changes.mark_changed("b");
        assert_eq!(changes.take(9), (vec!["a".into()], vec!["b".into()]));
        assert!(changes.has_ended("b"));
        assert_eq!(changes.take(9), (vec![], vec!["b".into()]));
        changes.forget_ended(&["b".into()]);
        assert!(!changes.has_ended("b"));
        assert_eq!(changes.take(9), (vec![], vec![]));
    }
}
