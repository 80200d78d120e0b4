//! What servers ask the client of one legacy session, by the ids we gave that, until it is answered.

use std::sync::Mutex;

use bytes::Bytes;
use foldhash::HashMap;
use tokio::sync::{mpsc, oneshot};

use super::ServerRequest;
use crate::{
    lock::lock,
    mcp::{Id, Outcome, Raw, envelope},
};

/// Unanswered questions a session may hold.
const PENDING_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ClientQuestions(Mutex<QuestionsInner>);

#[derive(Debug, Default)]
struct QuestionsInner {
    pending: HashMap<u64, PendingQuestion>,
    /// Whether the client can answer no more.
    is_disconnected: bool,
}

/// A question that waits for the client.
#[derive(Debug)]
struct PendingQuestion {
    answer: oneshot::Sender<Outcome>,
    progress: Option<mpsc::Sender<Raw>>,
}

impl ClientQuestions {
    /// Notes `request` as waiting, and gives its wire form; `None` where the client cannot be asked
    /// any more, or not now.
    pub(super) fn ask(&self, request: ServerRequest) -> Option<Bytes> {
        let QuestionsInner {
            pending: asked,
            is_disconnected: mute,
        } = &mut *lock(&self.0);
        asked.retain(|_, waiting| !waiting.answer.is_closed());
        if *mute || asked.len() >= PENDING_MAX {
            return None;
        }
        let id = Id::number(request.key);
        let bytes = envelope::encode_request(&id, request.method.as_str(), request.params.as_ref());
        let waiting = PendingQuestion {
            answer: request.answer,
            progress: request.progress,
        };
        asked.insert(request.key, waiting);
        Some(bytes)
    }

    /// Hands the client's answer to whoever asked `id`; whether somebody waited for it.
    pub(super) fn answer(&self, id: &Id, outcome: Outcome) -> bool {
        let waiting = id
            .as_number()
            .and_then(|key| lock(&self.0).pending.remove(&key));
        waiting.is_some_and(|waiting| waiting.answer.send(outcome).is_ok())
    }

    /// Hands the client's progress to the server that asked; whether one waits for it. What is too
    /// much for the server is lost.
    pub(super) fn progress(&self, params: &Raw) -> bool {
        let token = params.get("progressToken").and_then(Id::from_raw);
        let inner = lock(&self.0);
        let waiting = token.and_then(|token| inner.pending.get(&token.as_number()?));
        let progress = waiting.and_then(|waiting| waiting.progress.as_ref());
        progress.is_some_and(|progress| progress.try_send(params.clone()).is_ok())
    }

    /// Notes that the client can answer no more: whoever waits for it, now or later, is told.
    pub(super) fn disconnect(&self) {
        let mut inner = lock(&self.0);
        inner.is_disconnected = true;
        inner.pending.clear();
    }

    /// Tells whoever waits that there will be no answer.
    pub(super) fn cancel_all(&self) {
        lock(&self.0).pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::Method;

    /// Asks under `key`; what comes of it, and where the answer would arrive.
    fn ask(questions: &ClientQuestions, key: u64) -> (bool, oneshot::Receiver<Outcome>) {
        let (answer, taken) = oneshot::channel();
        let asked = questions.ask(ServerRequest {
            key,
            method: Method::parse("roots/list"),
            params: None,
            answer,
            progress: None,
        });
        (asked.is_some(), taken)
    }

    #[test]
    fn only_an_answer_that_is_awaited_is_taken() {
        let questions = ClientQuestions::default();
        let (_, mut taken) = ask(&questions, 9);
        let answer = |key| questions.answer(&Id::number(key), Ok(Raw::from_static("{}")));
        assert!(!answer(8));
        assert!(answer(9));
        assert!(!answer(9), "only once");
        assert_eq!(taken.try_recv().unwrap(), Ok(Raw::from_static("{}")));
    }

    #[test]
    fn so_many_may_wait() {
        let questions = ClientQuestions::default();
        let most = u64::try_from(PENDING_MAX).unwrap();
        let mut waiting: Vec<_> = (0..most).map(|key| ask(&questions, key)).collect();
        assert!(waiting.iter().all(|(asked, _)| *asked));
        assert!(!ask(&questions, most).0, "one more");
        waiting.pop();
        assert!(
            ask(&questions, most).0,
            "nobody waits for one of them any more"
        );
    }

    #[test]
    fn who_is_mute_is_asked_nothing() {
        let questions = ClientQuestions::default();
        let (_, mut taken) = ask(&questions, 1);
        questions.disconnect();
        assert!(taken.try_recv().is_err(), "nobody will answer");
        assert!(!ask(&questions, 2).0);
    }
}
