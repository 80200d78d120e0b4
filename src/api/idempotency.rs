//! `Idempotency-Key`: whoever asks again after a lost answer gets that answer, and nothing is made twice.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    body::{Body, to_bytes},
    response::IntoResponse as _,
};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use indexmap::IndexMap;
use sha2::{Digest as _, Sha256};
use tokio::{sync::Mutex as TurnLock, time::Instant};

use super::{
    caller::ApiCaller,
    problem::{Problem, ProblemType},
};
use crate::{lock::lock, names::AgentId};

/// The header, as draft-ietf-httpapi-idempotency-key-header has it.
pub(super) const HEADER: &str = "idempotency-key";
/// The longest key.
pub(super) const KEY_BYTES_MAX: usize = 255;
/// How long an answer is kept.
const KEPT_FOR: Duration = Duration::from_secs(60 * 60);
/// How many answers are kept; one more takes the place of the oldest.
const KEPT_MAX: usize = 1000;

/// Answers that said that something was made, in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct KeptAnswers(Arc<Mutex<IndexMap<(AgentId, String), AnswerSlot>>>);

/// The answer to the requests with one key of one agent. The first one holds it until there is an answer.
#[derive(Clone, Debug)]
pub(super) struct AnswerSlot {
    begun: Instant,
    answer: Arc<TurnLock<Option<KeptAnswer>>>,
}

#[derive(Debug)]
struct KeptAnswer {
    /// SHA-256 of what was asked.
    request: [u8; 32],
    headers: HeaderMap,
    body: Bytes,
}

impl KeptAnswers {
    /// Where the answer to `request` is kept; `None` where it has no key, or nobody has signed in.
    ///
    /// # Errors
    /// A key that is none.
    pub(super) fn slot_of(&self, request: &Request<Bytes>) -> Result<Option<AnswerSlot>, Problem> {
        let caller = request.extensions().get::<ApiCaller>();
        let key = request.headers().get(HEADER);
        let (Some(caller), Some(key), &Method::POST) = (caller, key, request.method()) else {
            return Ok(None);
        };
        let key = key.to_str().unwrap_or_default();
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            let detail = format!(
                "`Idempotency-Key` must be 1 to {KEY_BYTES_MAX} printable ASCII characters"
            );
            return Err(Problem::new(ProblemType::InvalidRequest, detail));
        }
        Ok(Some(self.slot((caller.agent.id, key.to_owned()))))
    }

    fn slot(&self, key: (AgentId, String)) -> AnswerSlot {
        let mut kept = lock(&self.0);
        kept.retain(|_, slot| slot.begun.elapsed() < KEPT_FOR);
        if kept.len() >= KEPT_MAX && !kept.contains_key(&key) {
            kept.shift_remove_index(0);
        }
        let slot = kept.entry(key).or_insert_with(|| AnswerSlot {
            begun: Instant::now(),
            answer: Arc::default(),
        });
        slot.clone()
    }
}

impl AnswerSlot {
    /// The answer to `request`: the kept one, or what `ask` makes of it.
    pub(super) async fn answer(
        self,
        request: Request<Bytes>,
        ask: impl AsyncFnOnce(Request<Bytes>) -> Response<Body>,
    ) -> Response<Body> {
        let digest = digest_of(&request);
        let mut answer = self.answer.lock().await;
        if let Some(kept) = &*answer {
            return kept.to_response(digest);
        }
        let response = ask(request).await;
        if response.status() != StatusCode::CREATED {
            return response;
        }
        let (parts, body) = response.into_parts();
        // A body that is made here is whole.
        let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
        let kept = answer.insert(KeptAnswer {
            request: digest,
            headers: parts.headers,
            body,
        });
        kept.to_response(digest)
    }
}

impl KeptAnswer {
    fn to_response(&self, request: [u8; 32]) -> Response<Body> {
        if request != self.request {
            let detail = "this `Idempotency-Key` belongs to another request: send a new one with each request";
            return Problem::new(ProblemType::Unprocessable, detail).into_response();
        }
        let headers = self.headers.clone();
        (StatusCode::CREATED, headers, Body::from(self.body.clone())).into_response()
    }
}

fn digest_of(request: &Request<Bytes>) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(request.uri().to_string());
    digest.update([0]);
    digest.update(request.body());
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_are_kept_for_a_time_and_up_to_a_number() {
        let kept = KeptAnswers::default();
        let agent = AgentId::ANONYMOUS;
        let slot = |number: usize| kept.slot((agent, number.to_string()));
        let first = slot(0);
        for number in 1..KEPT_MAX {
            slot(number);
        }
        assert!(Arc::ptr_eq(&first.answer, &slot(0).answer));
        slot(KEPT_MAX);
        assert!(
            !Arc::ptr_eq(&first.answer, &slot(0).answer),
            "the oldest is gone"
        );
        let last = slot(KEPT_MAX);
        tokio::time::advance(KEPT_FOR).await;
        assert!(!Arc::ptr_eq(&last.answer, &slot(KEPT_MAX).answer));
        assert_eq!(lock(&kept.0).len(), 1);
    }
}
