//! The `requestState` of a server (2026-07-28) on its way through a client and back.
//!
//! A server that needs an answer of its client forgets the call: what it needs to go on it gives away,
//! and gets it back with the answer in a new request. All agents come to a server as one and the same
//! client, so it cannot tell who returns what it gave to whom. Therefore a client is given the state
//! sealed: with until when it holds, and a code (HMAC-SHA-256) over that, the agent, the server, what
//! was called, and the arguments. What comes back must fit the request that it comes in, and its
//! server receives it byte for byte as it wrote it. The state itself is not hidden: it was meant to be
//! handed to the client.
//!
//! A state is good for [`STATE_USES_MAX`](super::STATE_USES_MAX) requests, so that one whose answer was lost can be made again, and
//! nobody makes a server go on from one place without end; see [`use_counts`]. Nothing is kept here while a client
//! answers: the call that gave the state is settled, and each request that brings it back is governed and paid
//! for as a call of its own.
//!
//! The key is kept in the store, so that a state outlives a restart, and every gateway of a data
//! directory opens what another one sealed.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac as _};
use jiff::Timestamp;
use sha2::Sha256;

use super::{
    call_context::CallContext,
    state_field::{InvalidState, REQUEST_STATE, StateId, is_input_required},
};
use crate::{
    clock,
    mcp::{Era, Method, Outcome, Params, Raw, Revision, json},
    names::AgentId,
    router::Routed,
    task::run_blocking_if_large,
};
use canonical::canonical;
use use_counts::StateUses;

mod canonical;
mod use_counts;

/// Begins what is sealed; another form would begin otherwise.
const SEAL_VERSION: &str = "v3";

/// What states are sealed with, and how often each was brought back.
#[derive(Clone)]
pub struct Seal {
    key: Hmac<Sha256>,
    uses: Arc<StateUses>,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    /// Seals with `key`, which is a secret.
    pub fn new(key: &[u8; 32]) -> Self {
        Self {
            key: Hmac::new_from_slice(key).expect("HMAC takes a key of any length"),
            uses: Arc::default(),
        }
    }

    /// `state` as the client gets it who made the request that is `about`.
    fn seal(&self, state: &Raw, id: StateId, about: &[u8]) -> Raw {
        let (id, state) = (id.to_string(), state.as_str());
        let code = self.mac(&id, about, state).finalize().into_bytes();
        let code = URL_SAFE_NO_PAD.encode(code);
        Raw::string(&format!("{SEAL_VERSION}.{id}.{code}.{state}"))
    }

    /// The state as its server wrote it, and which it is.
    fn unseal(&self, sealed: &Raw, about: &[u8]) -> Result<(Raw, StateId), InvalidState> {
        let SealedState {
            id,
            mac: code,
            state,
        } = SealedState::parse(sealed)?;
        let fits = self.mac(&id.to_string(), about, &state).verify_slice(&code);
        fits.map_err(|_| InvalidState::Mismatch)?;
        let state = Raw::parse(state).map_err(|_| InvalidState::Foreign)?;
        Ok((state, id))
    }

    fn mac(&self, id: &str, about: &[u8], state: &str) -> Hmac<Sha256> {
        let mut code = self.key.clone();
        for part in [id.as_bytes(), about, state.as_bytes()] {
            hash_with_length(part, |bytes| code.update(bytes));
        }
        code
    }
}

/// A state in the form that clients get, whoever made it.
struct SealedState {
    id: StateId,
    mac: Vec<u8>,
    state: String,
}

impl SealedState {
    fn parse(sealed: &Raw) -> Result<Self, InvalidState> {
        let text = sealed.as_text().ok_or(InvalidState::Foreign)?;
        let mut parts = text.splitn(5, '.');
        let mut part = || parts.next().ok_or(InvalidState::Foreign);
        let (form, until, nonce) = (part()?, part()?, part()?);
        let (code, state) = (part()?, part()?);
        if form != SEAL_VERSION {
            return Err(InvalidState::Foreign);
        }
        let code = URL_SAFE_NO_PAD.decode(code);
        Ok(Self {
            id: StateId::parse(until, nonce).ok_or(InvalidState::Foreign)?,
            mac: code.map_err(|_| InvalidState::Foreign)?,
            state: state.to_owned(),
        })
    }
}

/// Hands `part` on after its length, so that no two lists of parts are one text.
fn hash_with_length(part: &[u8], mut on: impl FnMut(&[u8])) {
    let length = u64::try_from(part.len()).expect("a length fits into 64 bits");
    on(&length.to_be_bytes());
    on(part);
}

/// Whether a server may take something in `params` for a state or for arguments that is not what is
/// looked at here.
fn is_ambiguous(params: &Raw) -> bool {
    let json = params.as_bytes();
    let arguments = json::members(json, 0).filter(|it| it.matches_ignoring_case(json, "arguments"));
    let is_other = |it: &json::Member| {
        it.matches_ignoring_case(json, REQUEST_STATE) && !it.matches(json, REQUEST_STATE)
    };
    arguments.count() > 1 || json::members(json, 0).any(|it| is_other(&it))
}

/// Whether a server may answer a request of `method` with a state.
fn may_return_state(method: &Method) -> bool {
    matches!(
        method,
        Method::PromptsGet | Method::ResourcesRead | Method::ToolsCall
    )
}

/// Whose request a ticket is for, at which server, of what, with which arguments: what the states of a
/// call and of those that go on with it have in common.
async fn state_binding(context: &CallContext) -> Vec<u8> {
    // Who has none may say so.
    let arguments = context.arguments().unwrap_or(Raw::from_static("{}"));
    let bytes = arguments.as_bytes().len();
    let arguments = run_blocking_if_large(bytes, move || canonical(arguments.as_bytes())).await;
    let agent = context.agent().id.to_string();
    let target = context.target.as_ref();
    let server = target.map_or("", |target| target.server.as_str());
    let original = target.and_then(|target| target.original.as_deref());
    let mut about = Vec::new();
    for part in [
        agent.as_bytes(),
        server.as_bytes(),
        context.method.as_str().as_bytes(),
        original.unwrap_or_default().as_bytes(),
        &arguments,
    ] {
        hash_with_length(part, |bytes| about.extend_from_slice(bytes));
    }
    about
}

/// `body` with what `with` makes of each state in it; a member that stands there twice is changed
/// twice, since who reads it may take either. `None` when it has no state.
fn map_states<E>(
    body: &Raw,
    mut with: impl FnMut(&Raw) -> Result<Raw, E>,
) -> Result<Option<Raw>, E> {
    let json = body.as_bytes();
    let states = json::members(json, 0).filter(|member| member.matches(json, REQUEST_STATE));
    let parts: Result<Vec<_>, E> = states
        .map(|member| Ok((member.value.clone(), with(&body.slice(member.value))?)))
        .collect();
    let parts = parts?;
    Ok((!parts.is_empty()).then(|| super::scanning::replace_parts(body, parts)))
}

/// The result in which a server of `revision` asks the client of `context` for more.
pub(super) fn input_required_result<'r>(
    outcome: &'r Outcome,
    revision: Option<&str>,
    context: &CallContext,
) -> Option<&'r Raw> {
    let may_ask = revision == Some(Revision::MODERN.as_str()) && may_return_state(&context.method);
    let result = outcome.as_ref().ok().filter(|_| may_ask)?;
    is_input_required(result).then_some(result)
}

/// Whether `outcome`, which [asks for more](input_required_result), has a state.
pub(super) fn has_state(outcome: &Outcome) -> bool {
    outcome
        .as_ref()
        .is_ok_and(|result| result.member(REQUEST_STATE).is_some())
}

/// The params of a request that brings a state back.
pub(super) fn returned_state_params<'r>(
    routed: &'r Routed,
    context: &CallContext,
) -> Option<&'r Raw> {
    let is_modern = context.client.era() == Era::Modern;
    let may_have_state = !routed.call.params.as_ref().is_some_and(Params::is_standard);
    let is_looked_at = is_modern && may_return_state(&context.method) && may_have_state;
    let params = routed.params.as_ref().filter(|_| is_looked_at)?;
    let json = params.as_bytes();
    let has_state =
        json::members(json, 0).any(|member| member.matches_ignoring_case(json, REQUEST_STATE));
    has_state.then_some(params)
}

impl Seal {
    /// The outcome of a call that [gives a state](has_state) as its client gets it. The state is good for as
    /// long as `lasting`.
    pub(super) async fn seal_outcome(
        &self,
        outcome: Outcome,
        context: &CallContext,
        lasting: Duration,
    ) -> Outcome {
        let result = outcome?;
        let until = clock::now().saturating_add(lasting);
        let until = until.unwrap_or(Timestamp::MAX);
        let id = StateId::new(until, context.id);
        let about = state_binding(context).await;
        let close = |state: &Raw| Ok::<_, Infallible>(self.seal(state, id, &about));
        let Ok(sealed) = map_states(&result, close);
        Ok(sealed.unwrap_or(result))
    }

    /// The params of a request that [brings a state](returned_state_params) as its server gets them. It is a use of the
    /// state, which is [given back](Self::refund_uses) where the request does not reach the server.
    pub(super) async fn unseal_params(
        &self,
        params: &Raw,
        context: &mut CallContext,
    ) -> Result<Option<Raw>, InvalidState> {
        if is_ambiguous(params) {
            return Err(InvalidState::Foreign);
        }
        // Before the arguments, of which there may be much, are gone through for it.
        map_states(params, |state| {
            SealedState::parse(state).map(|_| state.clone())
        })?;
        let about = state_binding(context).await;
        let mut brought = Vec::new();
        let opened = map_states(params, |state| {
            let (state, id) = self.unseal(state, &about)?;
            brought.push(id);
            Ok(state)
        })?;
        // One that stands there twice is used once.
        brought.dedup();
        let (agent, now) = (context.agent().id, clock::now());
        for id in brought {
            self.uses.count(agent, id, now)?;
            context.states_used.push(id);
        }
        Ok(opened)
    }

    /// Lets the uses of `states` by `agent` not have been: their request did not reach its server.
    pub(super) fn refund_uses(&self, agent: AgentId, states: &[StateId]) {
        for id in states {
            self.uses.refund(agent, *id);
        }
    }
}
