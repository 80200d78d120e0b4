//! The living legacy sessions of clients: found by id, limited in number, ended when idle.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use foldhash::fast::RandomState;
use tokio::{sync::Notify, time::Instant};

use super::{
    saved_session::SessionChanges,
    state::{Session, SessionKind},
};
use crate::{
    auth::Agent,
    clock::millis_since,
    lock::lock,
    names::{AgentId, Scope},
};

/// Sessions that have ended with subscriptions nobody has taken back yet; with more, their servers
/// go on telling of what nobody hears.
const ENDED_MAX: usize = 4096;

/// Bytes of finished answers that are kept for all sessions of one agent while nobody reads them. With more,
/// those go first that were read, then those whose session was used longest ago.
const AGENT_BYTES_MAX: usize = 256 << 20;

/// All sessions of clients that connect over HTTP.
#[derive(Debug)]
pub struct Sessions {
    by_id: DashMap<String, Arc<Session>, RandomState>,
    /// How many of them each agent has, and which of those may make room.
    by_agent: DashMap<AgentId, AgentSessions, RandomState>,
    /// Those that have ended with subscriptions.
    ended: Mutex<Vec<Arc<Session>>>,
    session_ended: Notify,
    per_agent_max: AtomicUsize,
    idle_max_ms: AtomicU64,
    start: Instant,
    /// Whether no session opens any more.
    closed: AtomicBool,
    end_hooks: EndHooks,
    changes: Arc<SessionChanges>,
}

/// The sessions of one agent.
#[derive(Debug, Default)]
struct AgentSessions {
    open: usize,
    /// Those that had no running call when all were last looked at, the one that goes first last: an
    /// agent at its limit has not all of its sessions looked at for each that it opens.
    idle: Vec<(EvictionRank, String)>,
}

/// When a session goes: those that somebody listens to after all others.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct EvictionRank {
    has_reader: bool,
    used_ms: u64,
}

impl EvictionRank {
    /// That of `session`, unless it has a call running.
    fn of(session: &Session) -> Option<Self> {
        (session.in_flight() == 0).then(|| Self {
            has_reader: session.streams.has_reader(),
            used_ms: session.used_ms.load(Ordering::Relaxed),
        })
    }
}

/// What is done when a session ends.
#[derive(Default)]
struct EndHooks(OnceLock<Box<EndHook>>);

/// Is told of every session that ends.
type EndHook = dyn Fn(&Session) + Send + Sync;

impl std::fmt::Debug for EndHooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Farewell")
    }
}

/// Why no session opens.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SessionRefused {
    /// The gateway stops.
    #[error("the gateway is stopping")]
    Closed,
    /// The agent has as many sessions as it may, and calls under way in each of them.
    #[error("all {limit} sessions of the agent are busy (limits.sessions_per_agent)")]
    Full {
        /// How many it may have.
        limit: usize,
    },
}

impl Sessions {
    /// An empty registry that holds at most `per_agent_max` sessions of an agent, each for
    /// `idle_max` after it was last used.
    pub fn new(per_agent_max: usize, idle_max: Duration) -> Self {
        Self {
            idle_max_ms: AtomicU64::new(millis(idle_max)),
            by_id: DashMap::default(),
            by_agent: DashMap::default(),
            ended: Mutex::default(),
            session_ended: Notify::new(),
            per_agent_max: AtomicUsize::new(per_agent_max),
            start: Instant::now(),
            closed: AtomicBool::new(false),
            end_hooks: EndHooks::default(),
            changes: Arc::default(),
        }
    }

    /// Sets how many sessions of an agent are held at most from the next one on.
    pub fn set_per_agent_max(&self, per_agent_max: usize) {
        self.per_agent_max.store(per_agent_max, Ordering::Relaxed);
    }

    /// How many sessions of an agent are held at most.
    pub fn per_agent_max(&self) -> usize {
        self.per_agent_max.load(Ordering::Relaxed)
    }

    /// Sets how long a session may go unused without a reader or a running call.
    pub fn set_idle_max(&self, idle_max: Duration) {
        self.idle_max_ms.store(millis(idle_max), Ordering::Relaxed);
    }

    /// How long a session may go unused without a reader or a running call.
    pub fn idle_max(&self) -> Duration {
        Duration::from_millis(self.idle_max_ms.load(Ordering::Relaxed))
    }

    /// Which sessions are to be written down: those of streamable HTTP that changed or ended. The end
    /// of this process ends none of them.
    pub fn changes(&self) -> &SessionChanges {
        &self.changes
    }

    /// Sets what is done with each session that ends, be it in this process only; only the first call
    /// counts.
    pub fn on_end(&self, hook: impl Fn(&Session) + Send + Sync + 'static) {
        drop(self.end_hooks.0.set(Box::new(hook)));
    }

    /// Opens a session; beyond the limit the agent's least recently used one without a running
    /// call ends.
    ///
    /// # Errors
    /// After [`Sessions::close_all`], and when the agent's sessions all have calls running.
    pub fn open(
        &self,
        kind: SessionKind,
        agent: Arc<Agent>,
        scope: Scope,
    ) -> Result<Arc<Session>, SessionRefused> {
        self.evict_for(&agent)?;
        self.register(Session::new(kind, agent, scope))
    }

    /// Registers a session of an earlier process.
    ///
    /// # Errors
    /// As [`Sessions::open`].
    pub fn restore(&self, session: Session) -> Result<Arc<Session>, SessionRefused> {
        self.evict_for(&session.agent)?;
        self.register(session)
    }

    /// Registers a session for which there is room.
    fn register(&self, session: Session) -> Result<Arc<Session>, SessionRefused> {
        let session = Arc::new(session);
        if session.kind == SessionKind::Streamable {
            session.set_change_tracker(&self.changes);
        }
        self.touch(&session);
        self.register_external(&session);
        if session.ended.is_cancelled() {
            return Err(SessionRefused::Closed);
        }
        Ok(session)
    }

    /// Registers a session that was opened elsewhere, such as that of the process on stdin. After
    /// [`Sessions::close_all`] it ends at once.
    pub fn register_external(&self, session: &Arc<Session>) {
        self.by_agent.entry(session.agent.id).or_default().open += 1;
        self.by_id.insert(session.id.clone(), Arc::clone(session));
        // Whoever closes all says so before looking: one of both sees the other.
        if self.are_closed() && self.by_id.remove(&session.id).is_some() {
            self.remove_from_agent(session);
            session.end();
        }
    }

    /// The session `id`, whoever's it is.
    pub fn get(&self, id: &str) -> Option<Arc<Session>> {
        self.by_id.get(id).map(|entry| Arc::clone(&entry))
    }

    /// How long ago a session was last used.
    pub fn idle(&self, session: &Session) -> Duration {
        let used = session.used_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.now_ms().saturating_sub(used))
    }

    /// The session `id` of `agent`; the possession of an id proves nothing.
    pub fn find(&self, id: &str, agent: &Agent) -> Option<Arc<Session>> {
        let session = self.get(id)?;
        if session.agent.id != agent.id {
            return None;
        }
        self.touch(&session);
        Some(session)
    }

    /// Ends the session `id`.
    pub fn close(&self, id: &str) {
        if let Some(session) = self.get(id) {
            self.note_end(&session);
        }
        if let Some((_, session)) = self.by_id.remove(id) {
            self.remove_from_agent(&session);
            self.end_session(&session);
        }
    }

    /// Takes a session that is no longer found from what its agent has.
    fn remove_from_agent(&self, session: &Session) {
        let id = session.agent.id;
        if let Some(mut of_agent) = self.by_agent.get_mut(&id) {
            of_agent.open = of_agent.open.saturating_sub(1);
        }
        self.by_agent
            .remove_if(&id, |_, of_agent| of_agent.open == 0);
    }

    /// To be called before a session can no longer be found, so that nobody finds it elsewhere.
    fn note_end(&self, session: &Session) {
        if session.kind == SessionKind::Streamable {
            self.changes.mark_ended(&session.id);
        }
    }

    /// Ends a session that is no longer found.
    fn end_session(&self, session: &Arc<Session>) {
        session.end();
        self.run_end_hook(session);
        if session.subscriptions().is_empty() {
            return;
        }
        let mut left = lock(&self.ended);
        if left.len() < ENDED_MAX {
            left.push(Arc::clone(session));
            self.session_ended.notify_one();
        } else {
            tracing::warn!(
                session = session.log_id,
                "too many ended sessions; subscriptions are left at their servers"
            );
        }
    }

    /// The sessions that have ended with subscriptions since the last call, as soon as there are
    /// any. For one caller at a time.
    pub async fn ended_with_subscriptions(&self) -> Vec<Arc<Session>> {
        loop {
            let left = std::mem::take(&mut *lock(&self.ended));
            if !left.is_empty() {
                return left;
            }
            self.session_ended.notified().await;
        }
    }

    /// Whether all have ended, since the process does.
    pub fn are_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Ends all sessions of this process, and every one that is opened later. Those that were written
    /// down go on in the next process.
    pub fn close_all(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let mut ended = Vec::new();
        self.by_id.retain(|_, session| {
            session.end();
            ended.push(Arc::clone(session));
            false
        });
        // A farewell is written down, which nobody who looks for a session should wait for.
        for session in ended {
            self.remove_from_agent(&session);
            self.run_end_hook(&session);
        }
    }

    fn run_end_hook(&self, session: &Session) {
        if let Some(farewell) = self.end_hooks.0.get() {
            farewell(session);
        }
    }

    /// Ends the sessions that nobody has used for [`Sessions::idle_max`], and trims the streams of
    /// the others.
    pub fn sweep(&self) {
        let mut ended = Vec::new();
        self.by_id.retain(|_, session| {
            session.streams.trim();
            if session.kind == SessionKind::Stdio
                || session.in_flight() > 0
                || session.streams.has_reader()
            {
                self.touch(session);
                return true;
            }
            let keep = self.idle(session) < self.idle_max();
            if !keep {
                self.note_end(session);
                ended.push(Arc::clone(session));
            }
            keep
        });
        // What follows is recorded, which nobody who looks for a session should wait for.
        for session in ended {
            self.remove_from_agent(&session);
            self.end_session(&session);
        }
        self.trim_agents(AGENT_BYTES_MAX);
    }

    /// Gives up finished answers of agents with more than `bytes_max` of them.
    fn trim_agents(&self, bytes_max: usize) {
        let mut agents: HashMap<AgentId, (usize, Vec<Arc<Session>>)> = HashMap::new();
        for session in self.all() {
            let bytes = session.streams.unread_bytes();
            if bytes > 0 {
                let (sum, sessions) = agents.entry(session.agent.id).or_default();
                *sum += bytes;
                sessions.push(session);
            }
        }
        for (bytes, mut sessions) in agents.into_values() {
            if bytes <= bytes_max {
                continue;
            }
            sessions.sort_by_key(|session| session.used_ms.load(Ordering::Relaxed));
            let mut excess = bytes - bytes_max;
            for also_unread in [false, true] {
                for session in &sessions {
                    let freed = session.streams.abandon_finished(excess, also_unread);
                    excess = excess.saturating_sub(freed);
                }
            }
        }
    }

    /// Calls `visit` with every session.
    pub fn for_each(&self, mut visit: impl FnMut(&Arc<Session>)) {
        for entry in &self.by_id {
            visit(&entry);
        }
    }

    /// Those that are open, for what takes long with each.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.by_id.iter().map(|entry| Arc::clone(&entry)).collect()
    }

    /// Those that are subscribed to any resource.
    pub fn subscribed(&self) -> Vec<Arc<Session>> {
        let all = self.by_id.iter();
        let subscribed = all.filter(|entry| entry.is_subscribed());
        subscribed.map(|entry| Arc::clone(&entry)).collect()
    }

    /// Sessions open.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    fn touch(&self, session: &Session) {
        session.used_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        millis_since(self.start)
    }

    fn evict_for(&self, agent: &Agent) -> Result<(), SessionRefused> {
        let limit = self.per_agent_max();
        let held = self.by_agent.get(&agent.id).map_or(0, |it| it.open);
        // More than one goes where the limit has become smaller.
        for _ in limit..=held {
            let id = self
                .least_recently_used(agent)
                .ok_or(SessionRefused::Full { limit })?;
            self.close(&id);
        }
        Ok(())
    }

    /// The session of `agent` that goes first of those without a running call.
    fn least_recently_used(&self, agent: &Agent) -> Option<String> {
        let take = || {
            let mut of_agent = self.by_agent.get_mut(&agent.id)?;
            while let Some((last_use, id)) = of_agent.idle.pop() {
                let session = self.get(&id);
                if session.and_then(|it| EvictionRank::of(&it)) == Some(last_use) {
                    return Some(id);
                }
            }
            None
        };
        take().or_else(|| {
            let mut idle: Vec<_> = self
                .by_id
                .iter()
                .filter(|session| session.agent.id == agent.id)
                .filter_map(|session| Some((EvictionRank::of(&session)?, session.id.clone())))
                .collect();
            idle.sort_unstable_by(|a, b| b.cmp(a));
            self.by_agent.get_mut(&agent.id)?.idle = idle;
            take()
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        mcp::Id,
        session::{Cancel, replay::StreamItem, running_calls::IdSharing},
    };

    const IDLE_MAX: Duration = Duration::from_secs(60);

    fn agent() -> Arc<Agent> {
        Arc::new(Agent::anonymous())
    }

    /// An update of a resource costs nothing for the rest, however many they are.
    #[test]
    fn updates_are_for_those_that_subscribed() {
        let sessions = Sessions::new(3, IDLE_MAX);
        let open = || sessions.open(SessionKind::Streamable, agent(), Scope::All);
        let all = [open().unwrap(), open().unwrap(), open().unwrap()];
        assert!(sessions.subscribed().is_empty());
        all[1].subscribe("file:///a").unwrap();
        let subscribed = sessions.subscribed();
        assert_eq!(subscribed.len(), 1);
        assert!(Arc::ptr_eq(&subscribed[0], &all[1]));
        all[1].unsubscribe("file:///a");
        assert!(sessions.subscribed().is_empty());
    }

    #[test]
    fn the_least_recently_used_session_makes_room() {
        let sessions = Sessions::new(2, IDLE_MAX);
        let first = sessions
            .open(SessionKind::Streamable, agent(), Scope::All)
            .unwrap();
        let second = sessions
            .open(SessionKind::Streamable, agent(), Scope::All)
            .unwrap();
        first.used_ms.store(5, Ordering::Relaxed);
        second.used_ms.store(3, Ordering::Relaxed);
        assert_eq!(sessions.len(), 2, "at the limit");
        let third = sessions
            .open(SessionKind::Streamable, agent(), Scope::All)
            .unwrap();
        assert_eq!(sessions.len(), 2, "past the limit one ended");
        assert!(second.ended.is_cancelled());
        sessions.close(&third.id);
        sessions
            .open(SessionKind::Streamable, agent(), Scope::All)
            .unwrap();
        assert!(
            !first.ended.is_cancelled(),
            "back under the limit nothing ends"
        );
    }

    /// Not all sessions are looked at for each that opens; one that was used since goes later, and the count
    /// follows those that end.
    #[test]
    fn an_agent_at_its_limit_opens_sessions_cheaply() {
        const MAX: u64 = 100;
        let sessions = Sessions::new(100, IDLE_MAX);
        let open = |used: u64| {
            let opened = sessions.open(SessionKind::Streamable, agent(), Scope::All);
            let session = opened.unwrap();
            session.used_ms.store(used, Ordering::Relaxed);
            session
        };
        let looked_at = || sessions.by_agent.get(&agent().id).unwrap().idle.len();
        let first: Vec<_> = (0..MAX).map(&open).collect();
        assert_eq!(looked_at(), 0, "at the limit");
        open(MAX);
        assert!(first[0].ended.is_cancelled());
        assert_eq!(looked_at(), 99, "all at once");
        first[1].used_ms.store(2 * MAX, Ordering::Relaxed);
        open(MAX + 1);
        assert!(!first[1].ended.is_cancelled() && first[2].ended.is_cancelled());
        assert_eq!(looked_at(), 97, "no more than were passed by");
        sessions.close(&first[3].id);
        open(MAX + 2);
        assert_eq!(looked_at(), 97, "back under the limit");
        assert_eq!(sessions.len(), 100);
        sessions.close_all();
        assert!(sessions.by_agent.is_empty());
    }

    #[test]
    fn a_smaller_limit_holds_from_the_next_session_on() {
        let sessions = Sessions::new(5, IDLE_MAX);
        for _ in 0..5 {
            sessions
                .open(SessionKind::Streamable, agent(), Scope::All)
                .unwrap();
        }
        sessions.set_per_agent_max(2);
        assert_eq!(sessions.len(), 5, "nothing ends by itself");
        sessions
            .open(SessionKind::Streamable, agent(), Scope::All)
            .unwrap();
        assert_eq!(sessions.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_session_ends_and_one_with_a_call_does_not() {
        let sessions = Sessions::new(8, IDLE_MAX);
        let idle = sessions
            .open(SessionKind::Streamable, agent(), Scope::All)
            .unwrap();
        let busy = sessions
            .open(SessionKind::Streamable, agent(), Scope::All)
            .unwrap();
        let _running = busy
            .begin(&Id::number(1), IdSharing::Refused, Cancel::default())
            .unwrap();
        sessions.sweep();
        assert!(!idle.ended.is_cancelled());
        let last = Duration::from_millis(1);
        tokio::time::advance(IDLE_MAX.saturating_sub(last)).await;
        sessions.sweep();
        assert!(!idle.ended.is_cancelled(), "at the limit");
        tokio::time::advance(last).await;
        sessions.sweep();
        assert!(idle.ended.is_cancelled() && !busy.ended.is_cancelled());
    }

    /// Sessions are found while the end of others is recorded, however long that takes.
    #[tokio::test(start_paused = true)]
    #[allow(
        clippy::disallowed_methods,
        reason = "the clock of the runtime stands still while another thread looks"
    )]
    async fn sessions_are_found_while_others_end() {
        let sessions = Arc::new(Sessions::new(8, IDLE_MAX));
        let idle = sessions.open(SessionKind::Streamable, agent(), Scope::All);
        let id = idle.unwrap().id.clone();
        let (tell, receiver) = std::sync::mpsc::channel();
        let (found_by, weak) = (id.clone(), Arc::downgrade(&sessions));
        sessions.on_end(move |_| {
            let (id, weak, tell) = (found_by.clone(), weak.clone(), tell.clone());
            let looking = std::thread::spawn(move || weak.upgrade()?.get(&id));
            // Longer than a look takes that waits for nobody.
            let patience = std::time::Instant::now() + Duration::from_secs(10);
            while !looking.is_finished() && std::time::Instant::now() < patience {
                std::thread::yield_now();
            }
            tell.send(looking.is_finished()).unwrap();
        });
        tokio::time::advance(IDLE_MAX).await;
        sessions.sweep();
        assert!(receiver.recv().unwrap(), "who looks for a session waits");
        assert!(sessions.get(&id).is_none());
    }

    #[tokio::test]
    async fn the_answers_of_an_agent_have_a_bound() {
        let sessions = Sessions::new(8, IDLE_MAX);
        let open = |used: u64| {
            let opened = sessions.open(SessionKind::Streamable, agent(), Scope::All);
            let session = opened.unwrap();
            session.used_ms.store(used, Ordering::Relaxed);
            session
        };
        let answer = |session: &Session, is_finished: bool| {
            let stream = session.streams.open();
            stream.push_required(StreamItem::Message(Bytes::from(vec![b'x'; 100])));
            if is_finished {
                stream.finish();
            }
            stream
        };
        let (old, new) = (open(1), open(2));
        answer(&old, false);
        let attended = answer(&old, true);
        let reader = attended.attach_reader();
        answer(&old, true);
        answer(&new, true);
        let read = answer(&new, true);
        let mut place = read.attach_at_end();
        while read.next(&mut place).await.is_some() {}
        let each = read.bytes();
        assert!(each >= 100);
        let check = |bytes_max: usize, expect: [usize; 2]| {
            sessions.trim_agents(bytes_max);
            let kept = [&old, &new].map(|session| session.streams.unread_bytes() / each);
            assert_eq!(kept, expect, "{bytes_max}");
        };
        check(3 * each, [1, 2]);
        check(3 * each - 1, [1, 1]);
        assert!(
            new.streams.answer(read.id).is_none(),
            "what was read goes first"
        );
        check(each, [0, 1]);
        check(0, [0, 0]);
        drop(reader);
        check(each, [1, 0]);
        check(0, [0, 0]);
    }

    #[test]
    fn none_opens_while_all_are_busy() {
        let sessions = Sessions::new(1, IDLE_MAX);
        let open = || sessions.open(SessionKind::Streamable, agent(), Scope::All);
        let busy = open().unwrap();
        let running = busy
            .begin(&Id::number(1), IdSharing::Refused, Cancel::default())
            .unwrap();
        assert_eq!(open().unwrap_err(), SessionRefused::Full { limit: 1 });
        assert!(!busy.ended.is_cancelled());
        drop(running);
        assert!(open().is_ok());
        assert!(busy.ended.is_cancelled());
    }

    #[test]
    fn none_opens_once_all_are_closed() {
        let sessions = Sessions::new(8, IDLE_MAX);
        let early = sessions.open(SessionKind::Streamable, agent(), Scope::All);
        sessions.close_all();
        assert!(early.unwrap().ended.is_cancelled());
        let late = sessions.open(SessionKind::Streamable, agent(), Scope::All);
        assert_eq!(late.unwrap_err(), SessionRefused::Closed);
        let adopted = Arc::new(Session::new(SessionKind::Stdio, agent(), Scope::All));
        sessions.register_external(&adopted);
        assert!(adopted.ended.is_cancelled() && sessions.is_empty());
    }

    #[test]
    fn a_session_answers_only_its_own_agent() {
        let sessions = Sessions::new(8, IDLE_MAX);
        let session = sessions
            .open(SessionKind::Streamable, agent(), Scope::All)
            .unwrap();
        let other = Agent {
            id: AgentId::from_name("other"),
            ..Agent::anonymous()
        };
        assert!(sessions.find(&session.id, &other).is_none());
        assert!(sessions.find(&session.id, &Agent::anonymous()).is_some());
    }
}
