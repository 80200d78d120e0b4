//! What is known of a server beyond one connection: its eras, restarts, and what it announces.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{Instance, breaker::Breaker, identity::InstanceIdentity, reconnect::ReconnectPolicy};
use crate::{
    backend::{
        ServerState, Update,
        link::{
            pending::{NotedSignals, PendingRequests},
            resource_updates::UpdateSender,
        },
        state_machine::{ServerEvent, StateMachine},
    },
    config::{Retry, Server},
    lock::lock,
    mcp::Era,
    names::ServerName,
    store::GrantOwner,
    task::Tasks,
};

/// What is known of a server beyond one connection.
#[derive(Debug)]
pub(crate) struct SharedState {
    pub(in crate::backend) server: ServerName,
    eras: [AtomicU8; 2],
    /// Of all its instances, also of those that are no more.
    pub(in crate::backend) restarts: AtomicU64,
    pub(in crate::backend) failed_starts: AtomicU64,
    /// That of the catalog's instance: where the server stands.
    pub(in crate::backend) identity: Arc<InstanceIdentity>,
    pub(in crate::backend) reconnect: Arc<ReconnectPolicy>,
    pub(in crate::backend) breaker: Arc<Breaker>,
    /// Whether it was seen to ask for the roots of a client.
    pub(in crate::backend) asks_roots: AtomicBool,
    pub(in crate::backend) changes: watch::Sender<u64>,
    /// Whether its lists were ever read by this process.
    listed: watch::Sender<bool>,
    /// What belongs to the server it is a replica of.
    parent: OnceLock<ReplicaSharedState>,
    list_reads: Arc<ListReads>,
    /// When it was last to be listed since a call was answered after a refusal.
    credential_relisted: Mutex<Option<Instant>>,
    /// Whose access token it was listed with last, where each agent has its own.
    list_owner: Mutex<Option<GrantOwner>>,
    updates: UpdateSender,
}

/// What replicas share.
#[derive(Debug)]
struct ReplicaSharedState {
    changes: watch::Sender<u64>,
    listed: watch::Sender<bool>,
    reads: Arc<ListReads>,
}

/// Readings of its lists.
#[derive(Debug, Default)]
struct ListReads {
    under_way: AtomicUsize,
    /// Those that ended since it was connected.
    done: AtomicUsize,
}

/// Its lists are being read until this is dropped.
#[derive(Debug)]
pub struct ReadingLists {
    own: Arc<ListReads>,
    /// Those of all replicas.
    all: Option<Arc<ListReads>>,
}

impl Drop for ReadingLists {
    fn drop(&mut self) {
        for reads in std::iter::once(&self.own).chain(&self.all) {
            reads.done.fetch_add(1, Ordering::SeqCst);
        }
        self.own.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Least time between two listings that answered calls lead to.
const CREDENTIAL_RELIST_INTERVAL: Duration = Duration::from_secs(10);

/// Pause between looks whether the lists of a server are read.
const READ_POLL_INTERVAL: Duration = Duration::from_millis(50);

const UNKNOWN: u8 = 0;
const SPOKEN: u8 = 1;
const REFUSED: u8 = 2;

impl SharedState {
    pub(in crate::backend) fn new(
        server: &ServerName,
        config: &Server,
        updates: &UpdateSender,
        tasks: &Tasks,
    ) -> Self {
        let retry = config.retry;
        let reconnect = ReconnectPolicy::new(&config.transport, retry.starts_per_minute);
        Self {
            server: server.clone(),
            eras: [AtomicU8::new(UNKNOWN), AtomicU8::new(UNKNOWN)],
            restarts: AtomicU64::new(0),
            failed_starts: AtomicU64::new(0),
            identity: InstanceIdentity::for_catalog(server, retry.failed_after, &reconnect, tasks),
            reconnect,
            breaker: Arc::new(Breaker::new(config.breaker)),
            asks_roots: AtomicBool::new(false),
            changes: watch::channel(0).0,
            listed: watch::channel(false).0,
            parent: OnceLock::new(),
            list_reads: Arc::default(),
            credential_relisted: Mutex::default(),
            list_owner: Mutex::default(),
            updates: updates.clone(),
        }
    }

    fn era(&self, era: Era) -> &AtomicU8 {
        match era {
            Era::Legacy => &self.eras[0],
            Era::Modern => &self.eras[1],
        }
    }

    pub(crate) fn note_speaks(&self, era: Era) {
        self.era(era).store(SPOKEN, Ordering::Relaxed);
    }

    /// Holds no verdict any longer: the server may have been replaced by a newer one.
    pub(crate) fn forget_eras(&self) {
        for verdict in &self.eras {
            verdict.store(UNKNOWN, Ordering::Relaxed);
        }
    }

    pub(in crate::backend) fn note_refuses(&self, era: Era) {
        self.era(era).store(REFUSED, Ordering::Relaxed);
    }

    /// Whether it is known to speak `era`.
    pub(in crate::backend) fn speaks(&self, era: Era) -> bool {
        self.era(era).load(Ordering::Relaxed) == SPOKEN
    }

    /// Whether it is known not to speak `era`.
    pub(in crate::backend) fn has_refused(&self, era: Era) -> bool {
        self.era(era).load(Ordering::Relaxed) == REFUSED
    }

    /// Where the server stands.
    pub(in crate::backend) fn state_machine(&self) -> &StateMachine {
        &self.identity.state_machine
    }

    /// Notes that a start on an instance of `identity` failed.
    pub(in crate::backend) fn count_failed_start(&self, identity: &InstanceIdentity) {
        identity.count_failed_start();
        self.failed_starts.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that an instance of `identity` is being started again.
    pub(in crate::backend) fn count_restart(&self, identity: &InstanceIdentity) {
        identity.count_restart();
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// What it takes for a start to wait, and for the server to have failed, from now on.
    pub(in crate::backend) fn set_retry(&self, retry: Retry) {
        self.reconnect
            .set_starts_per_minute(retry.starts_per_minute);
        self.identity
            .state_machine
            .set_failed_after(retry.failed_after);
    }

    /// Says to `server` from now on that its lists changed, or were read.
    pub(in crate::backend) fn join_server(&self, server: &Self) {
        let joined = ReplicaSharedState {
            changes: server.changes.clone(),
            listed: server.listed.clone(),
            reads: Arc::clone(&server.list_reads),
        };
        // A replica is of one server only.
        self.parent.set(joined).ok();
    }

    /// Whether it is one of several that serve the same calls.
    pub(in crate::backend) fn is_replica(&self) -> bool {
        self.parent.get().is_some()
    }

    pub(in crate::backend) fn begin_reading_lists(&self) -> ReadingLists {
        self.list_reads.under_way.fetch_add(1, Ordering::SeqCst);
        ReadingLists {
            own: Arc::clone(&self.list_reads),
            all: self.parent.get().map(|joined| Arc::clone(&joined.reads)),
        }
    }

    /// Whether its lists were read since it was connected, and are not being read now. Of replicas
    /// one is listed: those of another will do.
    pub(in crate::backend) fn are_lists_read(&self) -> bool {
        let is_done = |reads: &ListReads| reads.done.load(Ordering::SeqCst) > 0;
        let by_another = self
            .parent
            .get()
            .is_some_and(|joined| is_done(&joined.reads));
        self.list_reads.under_way.load(Ordering::SeqCst) == 0
            && (is_done(&self.list_reads) || by_another)
    }

    /// Notes that the catalog's connection, that of `requests`, was made.
    pub(in crate::backend) fn note_start(&self, requests: &Arc<PendingRequests>) {
        self.list_reads.done.store(0, Ordering::SeqCst);
        self.reconnect.note_catalog(requests);
        self.breaker.note_reconnected();
    }

    /// Notes that a connection beside the catalog's was made.
    pub(in crate::backend) fn note_instance_start(&self) {
        self.reconnect.note_reached();
        self.breaker.note_reconnected();
    }

    /// Notes that a check that a suspected failure led to was answered.
    pub(in crate::backend) fn note_reachable(&self) {
        // The connections of a program say nothing of whether another can be made.
        if self.reconnect.is_remote() {
            self.breaker.note_reconnected();
        }
    }

    fn is_catalog(&self, identity: &InstanceIdentity) -> bool {
        identity.number == self.identity.number
    }

    /// Lets the server be listed again.
    pub(in crate::backend) fn request_listing(&self) {
        let joined = self.parent.get().map(|joined| &joined.changes);
        let changes = joined.unwrap_or(&self.changes);
        changes.send_modify(|count| *count += 1);
    }

    /// Notes that its lists were read.
    pub(in crate::backend) fn note_listed(&self) {
        self.listed().send_replace(true);
    }

    /// Notes whose access token its lists are asked for with; `None` where nobody has one.
    pub(in crate::backend) fn note_list_owner(&self, owner: Option<GrantOwner>) {
        *lock(&self.list_owner) = owner;
    }

    /// Whose access token it was listed with last, where each agent has its own.
    pub(in crate::backend) fn list_owner(&self) -> Option<GrantOwner> {
        *lock(&self.list_owner)
    }

    /// Whether its lists were ever read by this process.
    pub(in crate::backend) fn is_listed(&self) -> bool {
        *self.listed().borrow()
    }

    /// Of replicas one is listed, for all of them.
    fn listed(&self) -> &watch::Sender<bool> {
        let joined = self.parent.get();
        joined.map_or(&self.listed, |joined| &joined.listed)
    }

    /// Says of an instance beside the catalog's, once it is greeted and the server listed, that it is
    /// connected.
    pub(in crate::backend) async fn follow_listing(
        &self,
        identity: &InstanceIdentity,
    ) -> Infallible {
        let mut listed = self.listed().subscribe();
        // The sender is at hand: this cannot fail.
        drop(listed.wait_for(|is_listed| *is_listed).await);
        let is_new = || identity.state_machine.state() == ServerState::Connecting;
        identity
            .state_machine
            .apply_if(ServerEvent::Listed, None, is_new);
        std::future::pending().await
    }

    /// It answers as it did not for a while: it is to be listed again.
    pub(in crate::backend) fn note_recovered(&self) {
        if self.parent.get().is_some() {
            // Of replicas one is listed, and it may be another.
            self.state_machine().apply(ServerEvent::Greeted, None);
        }
        self.request_listing();
    }

    /// The instance of `identity` answers as it did not for a while.
    pub(in crate::backend) fn note_instance_recovered(&self, identity: &InstanceIdentity) {
        if self.is_catalog(identity) {
            self.reconnect.note_reached();
            return self.note_recovered();
        }
        identity.state_machine.apply(ServerEvent::Greeted, None);
        if self.is_listed() {
            identity.state_machine.apply(ServerEvent::Listed, None);
        }
    }

    /// A call was answered where the instance of `identity` is, to which our credential was refused before. It may
    /// refuse its lists all the same, so it is listed again for that at a pace; a health check finds out as well.
    pub(in crate::backend) fn note_credential_accepted(&self, identity: &InstanceIdentity) {
        if self.is_catalog(identity) {
            let mut last = lock(&self.credential_relisted);
            if last.is_some_and(|at| at.elapsed() < CREDENTIAL_RELIST_INTERVAL) {
                return;
            }
            *last = Some(Instant::now());
        }
        self.note_instance_recovered(identity);
    }

    /// Passes on what a server said on the connection of `instance`.
    pub(crate) fn handle_signals(self: &Arc<Self>, noted: NotedSignals, instance: &Instance) {
        if !noted.asked_clients.is_empty() {
            for changed in self.breaker.note_client_request(&noted.asked_clients) {
                changed.log(&self.server, None);
            }
        }
        if noted.roots_requested {
            self.asks_roots.store(true, Ordering::Relaxed);
        }
        // Of the lists the catalog's connection hears: others that missed something ask for nothing.
        let is_catalogs = instance.identity.shared_by.is_none();
        let has_gap = noted.gap_count > 0;
        if noted.lists_changed || has_gap && is_catalogs {
            self.request_listing();
        }
        if noted.lists_changed && !is_catalogs {
            let server = &self.server;
            tracing::debug!(%server, "the lists changed for one caller; the catalog keeps those of \
                its own connection");
        }
        let said = noted.updates.into_iter().filter_map(|params| {
            Some(Update {
                server: self.server.clone(),
                uri: params.get("uri")?.as_text()?.into_owned(),
                params,
                instance: instance.id,
            })
        });
        let mut lost = noted.updates_lost;
        for update in said {
            lost += u64::from(!self.updates.send(update));
        }
        let uris = instance.subscriptions();
        if has_gap && !uris.is_empty() {
            let (shared, id) = (Arc::clone(self), instance.id);
            let tell = async move { shared.report_possible_updates(uris, id).await };
            instance.identity.tasks.spawn("updates after a gap", tell);
        }
        if lost > 0 {
            tracing::warn!(server = %self.server, lost, "dropped resource updates: too many at \
                once");
        }
    }

    /// Tells those who are subscribed to them on the connection `instance` that resources may have
    /// been updated while nobody listened.
    pub(in crate::backend) async fn report_possible_updates(
        &self,
        uris: Vec<String>,
        instance: u64,
    ) {
        for uri in uris {
            let update = Update::possibly_missed(&self.server, uri, instance);
            self.updates.send_missed(update).await;
        }
    }

    /// Waits until its lists were read on the connection that was made last, for `limit` at most.
    pub(in crate::backend) async fn wait_lists_read(&self, limit: Duration) {
        let read = async {
            while !self.are_lists_read() {
                sleep(READ_POLL_INTERVAL).await;
            }
        };
        drop(timeout(limit, read).await);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{
        backend::link::resource_updates::update_channel,
        config::{self, ConfigText, Environment},
    };

    fn shared() -> (Arc<SharedState>, Tasks) {
        shared_telling(&update_channel().0)
    }

    fn shared_telling(update_sender: &UpdateSender) -> (Arc<SharedState>, Tasks) {
        let source = ConfigText {
            name: "test.toml".to_owned(),
            format: config::ConfigFormat::Toml,
            text: "[servers.x]\nurl = \"http://127.0.0.1:9/mcp\"\n".to_owned(),
            directory: std::path::PathBuf::new(),
        };
        let config = config::parse([source], &Environment::default()).unwrap();
        let servers: HashMap<_, _> = config.config.servers.into_iter().collect();
        let (name, server) = servers.iter().next().unwrap();
        let tasks = Tasks::new();
        (
            Arc::new(SharedState::new(name, server, update_sender, &tasks)),
            tasks,
        )
    }

    /// However many resources there are of which nobody heard for a while, and however much another server
    /// says meanwhile, all of them are told of.
    #[tokio::test(start_paused = true)]
    async fn no_gap_is_too_large() {
        let (update_sender, mut updates) = update_channel();
        let (shared, _tasks) = shared_telling(&update_sender);
        let instance = Instance::new(Arc::clone(&shared.identity), None);
        let mut uris: Vec<_> = (0..40).map(|at| format!("file:///{at}")).collect();
        for uri in &uris {
            instance.add_subscription(uri);
        }
        let mut gap = NotedSignals::default();
        gap.gap_count = 1;
        let flood = || {
            let server = ServerName::parse("other").unwrap();
            while update_sender.send(Update::possibly_missed(
                &server,
                "file:///flood".to_owned(),
                0,
            )) {}
        };
        flood();
        shared.handle_signals(gap, &instance);
        let mut heard = Vec::new();
        for _ in 0..10_000 {
            let update = updates.next().await.unwrap();
            flood();
            if update.server == shared.server {
                heard.push(update.uri);
            }
        }
        uris.sort();
        heard.sort();
        assert_eq!(heard, uris);
    }

    /// A server that refuses our credential for its lists alone is asked for them at a pace, however
    /// many calls it answers.
    #[tokio::test(start_paused = true)]
    async fn answered_calls_lead_to_few_listings() {
        let (shared, _tasks) = shared();
        let identity = Arc::clone(&shared.identity);
        identity.state_machine.apply(ServerEvent::Refused, None);
        let asked = || *shared.changes.borrow();
        for _ in 0..1000 {
            shared.note_credential_accepted(&identity);
        }
        assert_eq!(asked(), 1, "the first leads to one at once");
        for _ in 0..600 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            shared.note_credential_accepted(&identity);
        }
        assert!((6..=7).contains(&asked()), "{} in a minute", asked());
    }
}
