//! The token of one grant as calls use it, and what stands in the way of another.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::{GrantError, record::OpenGrant, token_endpoint::TokenResponse};
use crate::lock::lock;

/// So long before its end a token is not sent any more: it has a way to go, and clocks differ.
const LEEWAY: SignedDuration = SignedDuration::from_secs(10);

/// How long a token is used without a look whether the store has another.
const REREAD: Duration = Duration::from_secs(10);

/// The first and the longest time until an issuer is asked again that could not be reached.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// So many times it is tried again though nobody asks.
const RETRIES_MAX: u32 = 5;

/// So many tokens in a row that a server rejects at once are asked for. After that it is the server that is wrong.
const REJECTIONS_MAX: u32 = 3;
/// A token that is rejected later than this after it was received was good before.
const AT_ONCE: SignedDuration = SignedDuration::from_secs(60);

/// So many times within that time more scopes are asked for.
const STEP_UPS_MAX: u32 = 3;
const STEP_UPS_PER: Duration = Duration::from_secs(600);

/// A token for a server. It is shown nowhere.
#[derive(Clone)]
pub struct AccessToken(pub(super) Arc<CurrentToken>);

pub(super) struct CurrentToken {
    header: HeaderValue,
    token: String,
    received: Timestamp,
    expires: Option<Timestamp>,
    scopes: Vec<String>,
    /// When somebody signed in for it; none of one that is not kept in the store.
    granted: Option<Timestamp>,
    /// When it was read from the store.
    read: Option<Instant>,
}

impl AccessToken {
    /// The value of `Authorization`.
    pub fn header(&self) -> &HeaderValue {
        &self.0.header
    }

    /// When somebody signed in for it: another time means another grant, maybe of another account. None where nobody
    /// has to sign in.
    pub fn granted(&self) -> Option<Timestamp> {
        self.0.granted
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(***)")
    }
}

impl CurrentToken {
    pub(super) fn new(
        tokens: &TokenResponse,
        received: Timestamp,
        scopes: &[String],
    ) -> Result<Self, GrantError> {
        let unusable = |_| GrantError::Refused {
            reason: "the access token has characters that no header can have".to_owned(),
        };
        let token = &tokens.access_token;
        let mut header = HeaderValue::try_from(format!("Bearer {token}")).map_err(unusable)?;
        header.set_sensitive(true);
        let lifetime = tokens
            .expires_in
            .map(|it| i64::try_from(it).unwrap_or(i64::MAX));
        let end = |it| received.checked_add(SignedDuration::from_secs(it)).ok();
        Ok(Self {
            header,
            token: token.clone(),
            received,
            expires: lifetime.and_then(end),
            scopes: scopes.to_vec(),
            granted: None,
            read: None,
        })
    }

    pub(super) fn of_grant(grant: &OpenGrant) -> Result<Self, GrantError> {
        let record = &grant.record;
        let token = Self::new(&record.tokens, record.received, &record.scopes)?;
        Ok(Self {
            granted: Some(grant.granted),
            read: Some(Instant::now()),
            ..token
        })
    }

    /// Whether its time has not passed.
    pub(super) fn is_valid(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| {
            // Of a short life the leeway would be all.
            let lifetime = expires.duration_since(self.received);
            now < expires - LEEWAY.min(lifetime / 10)
        })
    }

    /// Whether four fifths of its time have passed.
    fn is_due(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| {
            let lifetime = expires.duration_since(self.received);
            now >= self.received + lifetime * 4 / 5
        })
    }
}

/// What calls find.
pub(super) enum Usable {
    /// A token.
    Yes(AccessToken),
    /// A token that should be renewed beside.
    Due(AccessToken),
    /// None: wait for one.
    No,
}

/// What a server's 401 or 403 comes to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rejection {
    /// The next [`access_token`](super::ServerGrants::access_token) gives another one: try the request again.
    Retry,
    /// The next one says that somebody has to sign in, for more scopes or again.
    SignIn,
    /// No token would help.
    Final,
}

/// The place of one grant.
#[derive(Default)]
pub(super) struct Slot {
    current: ArcSwapOption<CurrentToken>,
    /// Who renews it, one at a time.
    pub(super) renewing: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<SlotState>,
}

#[derive(Default)]
struct SlotState {
    /// The token that the server took no more.
    rejected: Option<String>,
    /// Tokens that were rejected one after the other.
    rejections: u32,
    rejected_last: Option<Instant>,
    /// The scopes that it asked for besides.
    wanted: Vec<String>,
    step_ups: u32,
    stepped: Option<Instant>,
    /// Whether a person has to agree to `wanted`.
    needs_sign_in: bool,
    failures: u32,
    /// Why there is no token, and until when nobody asks.
    failed: Option<(GrantError, Instant)>,
    /// Whether it is tried then, though nobody asks.
    retries: bool,
    /// The header `WWW-Authenticate` that came last.
    challenge: Option<String>,
    /// What the issuer gave and the store did not take.
    unwritten: Option<OpenGrant>,
}

impl Slot {
    pub(super) fn usable(&self, now: Timestamp) -> Usable {
        let Some(current) = self.current.load_full() else {
            return Usable::No;
        };
        if !current.is_valid(now) || self.is_rejected(&current.token) {
            return Usable::No;
        }
        if current.is_due(now) || current.read.is_some_and(|it| it.elapsed() > REREAD) {
            return Usable::Due(AccessToken(current));
        }
        Usable::Yes(AccessToken(current))
    }

    /// The token that there is, should it be good yet.
    pub(super) fn last_resort(&self, now: Timestamp) -> Option<AccessToken> {
        match self.usable(now) {
            Usable::Yes(token) | Usable::Due(token) => Some(token),
            Usable::No => None,
        }
    }

    pub(super) fn is_rejected(&self, token: &str) -> bool {
        lock(&self.state).rejected.as_deref() == Some(token)
    }

    /// Whether `token` can be used, and needs no other in its place yet.
    pub(super) fn is_good(&self, token: &CurrentToken, now: Timestamp) -> bool {
        token.is_valid(now) && !token.is_due(now) && !self.is_rejected(&token.token)
    }

    /// Puts `token` in place.
    pub(super) fn set(&self, token: CurrentToken) -> AccessToken {
        let token = Arc::new(token);
        self.current.store(Some(Arc::clone(&token)));
        let mut state = lock(&self.state);
        (state.failed, state.failures) = (None, 0);
        AccessToken(token)
    }

    /// Forgets what it has: the store knows better.
    pub(super) fn clear(&self) {
        self.current.store(None);
        let mut state = lock(&self.state);
        (state.failed, state.failures) = (None, 0);
    }

    /// Somebody has signed in.
    pub(super) fn reset(&self) {
        self.current.store(None);
        let mut state = lock(&self.state);
        // An issuer that gives no more scopes than before is not asked for ever.
        *state = SlotState {
            step_ups: state.step_ups,
            stepped: state.stepped,
            ..SlotState::default()
        };
    }

    /// Keeps why there is no token: nobody asks again at once.
    pub(super) fn fail(&self, error: &GrantError) {
        let mut state = lock(&self.state);
        let delay = BACKOFF * 2_u32.saturating_pow(state.failures);
        state.failures = (state.failures + 1).min(16);
        state.failed = Some((error.clone(), Instant::now() + delay.min(BACKOFF_MAX)));
    }

    /// When it is to be tried again though nobody asks; `None` where it is not, or somebody else does.
    pub(super) fn plan_retry(&self) -> Option<Instant> {
        let mut state = lock(&self.state);
        let (error, at) = state.failed.as_ref()?;
        let is_passing = matches!(error, GrantError::Unreachable { .. });
        let at = Some(*at).filter(|_| is_passing && state.failures <= RETRIES_MAX)?;
        (!std::mem::replace(&mut state.retries, true)).then_some(at)
    }

    /// It is time for that: whether it is still of use.
    pub(super) fn begin_retry(&self) -> bool {
        let mut state = lock(&self.state);
        state.retries = false;
        state.failed.is_some()
    }

    /// Why nobody asks now.
    pub(super) fn failure(&self) -> Option<GrantError> {
        let state = lock(&self.state);
        let (error, until) = state.failed.as_ref()?;
        (Instant::now() < *until).then(|| error.clone())
    }

    /// The scopes that the server asked for besides those of `granted`.
    pub(super) fn with_wanted(&self, granted: &[String]) -> Vec<String> {
        let mut all = granted.to_vec();
        for scope in &lock(&self.state).wanted {
            if !all.contains(scope) {
                all.push(scope.clone());
            }
        }
        all
    }

    pub(super) fn keep_unwritten(&self, grant: OpenGrant) {
        lock(&self.state).unwritten = Some(grant);
    }

    pub(super) fn take_unwritten(&self) -> Option<OpenGrant> {
        lock(&self.state).unwritten.take()
    }

    pub(super) fn challenge(&self) -> Option<String> {
        lock(&self.state).challenge.clone()
    }

    /// A server has not taken `token` (401).
    pub(super) fn reject(
        &self,
        token: &AccessToken,
        challenge: Option<&str>,
        now: Timestamp,
    ) -> Rejection {
        let mut state = lock(&self.state);
        state.challenge = challenge.map(str::to_owned).or(state.challenge.take());
        let is_current = self
            .current
            .load()
            .as_ref()
            .is_none_or(|it| it.token == token.0.token);
        if !is_current {
            // Another call was faster.
            return Rejection::Retry;
        }
        if state.rejected.as_deref() != Some(&token.0.token) {
            let was_good = now.duration_since(token.0.received) > AT_ONCE;
            state.rejections = if was_good { 1 } else { state.rejections + 1 };
            state.rejected = Some(token.0.token.clone());
            state.rejected_last = Some(Instant::now());
        }
        (state.failed, state.failures) = (None, 0);
        if state.rejections > REJECTIONS_MAX {
            return Rejection::Final;
        }
        Rejection::Retry
    }

    /// Whether the server takes none of the tokens of its issuer.
    pub(super) fn takes_none(&self) -> bool {
        let mut state = lock(&self.state);
        if state
            .rejected_last
            .is_some_and(|at| at.elapsed() > BACKOFF_MAX)
        {
            state.rejections = state.rejections.min(REJECTIONS_MAX);
        }
        state.rejections > REJECTIONS_MAX
    }

    /// A server wants `scopes` besides (403).
    pub(super) fn step_up(
        &self,
        token: &AccessToken,
        scopes: &[String],
        is_interactive: bool,
    ) -> Rejection {
        let mut state = lock(&self.state);
        let is_new =
            |scope: &&String| !token.0.scopes.contains(*scope) && !state.wanted.contains(*scope);
        let news: Vec<_> = scopes.iter().filter(is_new).cloned().collect();
        if state.stepped.is_some_and(|at| at.elapsed() > STEP_UPS_PER) {
            state.step_ups = 0;
        }
        if news.is_empty() || state.step_ups >= STEP_UPS_MAX {
            let is_pending = news.is_empty() && state.needs_sign_in;
            return if is_pending {
                Rejection::SignIn
            } else {
                Rejection::Final
            };
        }
        state.step_ups += 1;
        state.stepped = Some(Instant::now());
        for scope in token.0.scopes.iter().chain(&news) {
            if !state.wanted.contains(scope) {
                state.wanted.push(scope.clone());
            }
        }
        if is_interactive {
            // The grant of before serves what it did: only who needs more is asked to sign in.
            state.needs_sign_in = true;
            return Rejection::SignIn;
        }
        state.rejected = Some(token.0.token.clone());
        Rejection::Retry
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot(***)")
    }
}
