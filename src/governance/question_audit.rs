//! What servers ask clients, and what becomes of it: each question has an event of its own in the audit, with the
//! call that it belongs to.
//!
//! Servers ask as often as they like, and no question costs them anything. So that none fills the disk, the
//! first [`RECORDED_PER_INTERVAL_MAX`] of a server in a minute are recorded one by one, and those beyond are summed, by
//! agent, kind and outcome.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
};

use tokio::time::Instant;

use super::{CallContext, Governance, scanning::redact_name};
use crate::{
    audit::{self, ArgumentsDigest, FloodMeter, FloodSum},
    auth::Agent,
    clock,
    lock::lock,
    mcp::{Outcome, Raw, Revision, json},
    names::{AgentId, InvocationId, ServerName},
};

/// Questions of one server in a minute that have records of their own.
const RECORDED_PER_INTERVAL_MAX: u64 = 100;

/// Sums of one server that are told apart; what is beyond is summed by outcome alone.
const SUMS_MAX: usize = 64;

/// Members of one result, or of one request, that are looked at one by one; those beyond are counted.
const INPUT_REQUESTS_MAX: usize = 1000;

/// What is known of a question when it is asked.
#[derive(Clone, Debug)]
pub struct QuestionFacts {
    /// Who asked.
    pub server: ServerName,
    /// Whose client it is; `None` where that cannot be told.
    pub agent: Option<Arc<Agent>>,
    /// The call that it was asked in.
    pub call: Option<InvocationId>,
    method: Option<Box<str>>,
    digest: Option<ArgumentsDigest>,
}

/// What became of a question.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum QuestionEnd {
    /// The client answered.
    Answered,
    /// It is in the result of a call, and its client may answer in a call of its own.
    Asked,
    /// The user dismissed it.
    Cancelled,
    /// The client went, or can be asked nothing more.
    ClientGone,
    /// The user declined.
    Declined,
    /// The gateway did not pass it, or not its answer.
    Refused,
    /// The client answered with an error.
    RefusedByClient,
    /// Nobody answered in time.
    TimedOut,
    /// It could be for the client of nobody, or of several.
    Unattributable,
    /// The server no longer wanted to know, or was gone, or the call was over.
    Withdrawn,
}

impl QuestionEnd {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Asked => "asked",
            Self::Cancelled => "cancelled",
            Self::ClientGone => "client_gone",
            Self::Declined => "declined",
            Self::Refused => "refused",
            Self::RefusedByClient => "refused_by_client",
            Self::TimedOut => "timed_out",
            Self::Unattributable => "unattributable",
            Self::Withdrawn => "withdrawn",
        }
    }

    /// What a client made of a question that it answers so.
    pub fn from_answer(answer: &Outcome) -> Self {
        match answer {
            Ok(result) => Self::from_result(result),
            Err(_) => Self::RefusedByClient,
        }
    }

    fn from_result(result: &Raw) -> Self {
        let action = result.get("action");
        match action.as_ref().and_then(Raw::as_text).as_deref() {
            Some("decline") => Self::Declined,
            Some("cancel") => Self::Cancelled,
            Some(_) | None => Self::Answered,
        }
    }
}

impl QuestionFacts {
    /// A question of `server`, with its params as the server wrote them.
    pub fn new(server: ServerName, method: &str, params: Option<&Raw>) -> Self {
        Self {
            server,
            agent: None,
            call: None,
            method: Some(method.into()),
            digest: params.map(|params| ArgumentsDigest::of(params.as_bytes())),
        }
    }

    /// Its method, if it is one of the protocol: servers may call methods as they like.
    fn known_method(&self) -> Option<&'static str> {
        let mut known = INPUT_RESPONSES.into_iter().map(|(_, method)| method);
        known.find(|method| self.method.as_deref() == Some(*method))
    }
}

/// What may be asked, each with a member that its answer alone has.
const INPUT_RESPONSES: [(&str, &str); 3] = [
    ("action", "elicitation/create"),
    ("roots", "roots/list"),
    ("model", "sampling/createMessage"),
];

/// How much servers asked lately.
#[derive(Debug)]
pub(super) struct QuestionMeter(Mutex<QuestionCounts>);

#[derive(Debug)]
struct QuestionCounts {
    /// All of each server.
    servers: FloodMeter<ServerName, (), ()>,
    /// Those that are summed.
    sums: FloodMeter<ServerName, QuestionGroup, Option<Arc<Agent>>>,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct QuestionGroup {
    agent: Option<AgentId>,
    method: Option<&'static str>,
    end: QuestionEnd,
}

/// A sum that is to be recorded.
pub(super) type QuestionSum = (ServerName, QuestionGroup, FloodSum<Option<Arc<Agent>>>);

impl Default for QuestionMeter {
    fn default() -> Self {
        Self(Mutex::new(QuestionCounts {
            servers: FloodMeter::new(RECORDED_PER_INTERVAL_MAX, 1),
            sums: FloodMeter::new(0, SUMS_MAX),
        }))
    }
}

impl QuestionMeter {
    /// Counts a question that ended so; whether it is recorded at once.
    fn count(&self, question: &QuestionFacts, end: QuestionEnd) -> bool {
        let mut counts = lock(&self.0);
        let server = question.server.clone();
        let now = Instant::now();
        let recorded = counts.servers.count(server, ((), ()), ((), 1), now);
        if recorded.is_none() {
            counts.add(question, end, 1);
        }
        recorded.is_some()
    }

    /// Counts questions that are not recorded one by one.
    fn add(&self, question: &QuestionFacts, end: QuestionEnd, times: u64) {
        lock(&self.0).add(question, end, times);
    }

    /// The sums that have waited long enough.
    pub(super) fn due_sums(&self) -> Vec<QuestionSum> {
        let (mut counts, now) = (lock(&self.0), Instant::now());
        counts.servers.due_sums(now);
        counts.sums.due_sums(now)
    }

    /// The sums that were not recorded yet, at the end.
    pub(super) fn remaining_sums(&self) -> Vec<QuestionSum> {
        lock(&self.0).sums.remaining_sums()
    }
}

impl QuestionCounts {
    fn add(&mut self, question: &QuestionFacts, end: QuestionEnd, times: u64) {
        let agent = question.agent.clone();
        let key = QuestionGroup {
            agent: agent.as_ref().map(|agent| agent.id),
            method: question.known_method(),
            end,
        };
        let others = QuestionGroup {
            agent: None,
            method: None,
            end,
        };
        let (server, now) = (question.server.clone(), Instant::now());
        self.sums.count(server, (key, others), (agent, times), now);
    }
}

impl Governance {
    /// Records what became of a question.
    pub fn note_question(&self, question: &QuestionFacts, end: QuestionEnd) {
        if self.storage.audit.chain().is_none() || !self.questions.count(question, end) {
            return;
        }
        let method = question.method.as_deref();
        // Kept in order with everything else; nobody waits for it.
        drop(self.storage.audit.record_question(&audit::QuestionRecord {
            ts: clock::now(),
            server: question.server.as_str(),
            agent: question.agent.as_deref().map(agent_key),
            method: method.map(redact_name),
            outcome: end.as_str(),
            call: question.call,
            params_digest: question.digest,
            sum: None,
        }));
    }

    /// Records the sums of questions that have no records of their own.
    pub(super) fn note_question_sums(&self, sums: &[QuestionSum]) {
        for (server, group, sum) in sums {
            let agent = sum.last.as_deref().filter(|_| group.agent.is_some());
            drop(self.storage.audit.record_question(&audit::QuestionRecord {
                ts: sum.until,
                server: server.as_str(),
                agent: agent.map(agent_key),
                method: group.method.map(Cow::Borrowed),
                outcome: group.end.as_str(),
                call: None,
                params_digest: None,
                sum: Some((sum.count, sum.since)),
            }));
        }
    }

    /// Records what a server asks in `result`; whether its client gets that.
    pub(super) fn note_input_requests(&self, result: &Raw, is_given: bool, context: &CallContext) {
        let end = if is_given {
            QuestionEnd::Asked
        } else {
            QuestionEnd::Refused
        };
        let asked = result.get("inputRequests");
        self.note_each_request(asked.as_ref(), context, |request| {
            let method = request.get("method");
            let method = method.as_ref().and_then(Raw::as_text);
            let params = request.get("params");
            (method.map(Into::into), params, end)
        });
    }

    /// Records what a client answers in the request of `context`, which reached the server. What kind of
    /// question each was shows in its answer alone.
    pub(super) fn note_input_responses(&self, context: &CallContext, revision: Option<&str>) {
        let may_ask = revision.is_none_or(|revision| revision == Revision::MODERN.as_str());
        let answers = context.input_responses().filter(|_| may_ask);
        self.note_each_request(answers.as_ref(), context, |answer| {
            let has = |name: &str| answer.get(name).is_some();
            let method = INPUT_RESPONSES.into_iter().find(|(member, _)| has(member));
            let method = method.map(|(_, method)| method.into());
            (method, None, QuestionEnd::from_result(answer))
        });
    }

    fn note_each_request(
        &self,
        all: Option<&Raw>,
        context: &CallContext,
        read: impl Fn(&Raw) -> (Option<Box<str>>, Option<Raw>, QuestionEnd),
    ) {
        let (Some(all), Some(target)) = (all, &context.target) else {
            return;
        };
        let of = |method, params: Option<&Raw>| QuestionFacts {
            server: target.server.clone(),
            agent: Some(
                context
                    .agent
                    .as_ref()
                    .unwrap_or(&context.client.agent)
                    .clone(),
            ),
            call: Some(context.id),
            method,
            digest: params.map(|params| ArgumentsDigest::of(params.as_bytes())),
        };
        let mut members = json::members(all.as_bytes(), 0);
        let mut last = None;
        for member in members.by_ref().take(INPUT_REQUESTS_MAX) {
            let (method, params, end) = read(&all.slice(member.value));
            self.note_question(&of(method, params.as_ref()), end);
            last = Some(end);
        }
        let rest = u64::try_from(members.count()).unwrap_or(u64::MAX);
        if let Some(end) = last.filter(|_| rest > 0) {
            self.questions.add(&of(None, None), end, rest);
        }
    }
}

fn agent_key(agent: &Agent) -> (AgentId, &str) {
    (agent.id, &agent.name)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;
    use uuid::Uuid;

    use super::*;
    use crate::audit::SUM_INTERVAL;

    fn question(server: &str, agent: u128, method: &str) -> QuestionFacts {
        let id = AgentId(Uuid::from_u128(agent));
        let agent = Agent {
            id,
            ..Agent::anonymous()
        };
        let server = ServerName::parse(server).unwrap();
        QuestionFacts {
            agent: Some(Arc::new(agent)),
            ..QuestionFacts::new(server, method, None)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn at_past_and_back_under_the_bound() {
        let (questions, end) = (QuestionMeter::default(), QuestionEnd::Answered);
        let asked = question("x", 1, "roots/list");
        for _ in 0..RECORDED_PER_INTERVAL_MAX {
            assert!(questions.count(&asked, end));
        }
        assert!(!questions.count(&asked, end) && !questions.count(&asked, end));
        let other = question("y", 1, "roots/list");
        assert!(questions.count(&other, end), "of another server");
        advance(SUM_INTERVAL / 2).await;
        assert!(!questions.count(&asked, end));
        assert!(questions.due_sums().is_empty(), "too early");
        advance(SUM_INTERVAL / 2).await;
        assert!(!questions.count(&asked, end), "before its sum is recorded");
        let due = questions.due_sums();
        let [(server, _, sum)] = &due[..] else {
            panic!("{due:?}")
        };
        assert_eq!((server.as_str(), sum.count), ("x", 4));
        assert!(questions.count(&asked, end));
        assert!(questions.remaining_sums().is_empty());
        for _ in 0..2 {
            advance(SUM_INTERVAL).await;
            assert!(questions.due_sums().is_empty());
        }
        assert_eq!(lock(&questions.0).servers.keys(), 0, "all is forgotten");
    }

    /// Neither agents nor methods without number make sums without number, and none is lost.
    #[tokio::test(start_paused = true)]
    async fn sums_are_bounded() {
        let (questions, end) = (QuestionMeter::default(), QuestionEnd::Refused);
        for _ in 0..RECORDED_PER_INTERVAL_MAX {
            questions.count(&question("x", 0, "roots/list"), end);
        }
        for number in 0..1000 {
            let method = format!("acme/{number}");
            questions.count(&question("x", 1, &method), end);
            questions.count(&question("x", number, "roots/list"), end);
        }
        let rest = questions.remaining_sums();
        assert_eq!(rest.len(), SUMS_MAX + 1);
        let all: u64 = rest.iter().map(|(_, _, sum)| sum.count).sum();
        assert_eq!(all, 2000);
    }
}
