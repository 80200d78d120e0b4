//! The keys of an issuer: fetched when first needed, and again when they are old or one is unknown. While the issuer
//! cannot be reached, the last ones stay good.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use jsonwebtoken::{
    DecodingKey, decode,
    errors::ErrorKind,
    jwk::{Jwk, KeyAlgorithm, PublicKeyUse},
};
use serde_json::{Map, Value};
use tokio::{sync::Mutex as TurnLock, time::Instant};
use url::Url;

use super::{
    TokenHead,
    issuer_metadata::{MetadataUnavailable, fetch_metadata, get_object, parse_url},
};
use crate::{auth::token::TokenRejection, egress::EgressClient, lock::lock};

/// How old keys may be before they are fetched again.
const AGE_MAX: Duration = Duration::from_secs(60 * 60);

/// Pause between two fetches, whatever tokens ask for: keys that no issuer has can be asked for without end.
const FETCH_PAUSE: Duration = Duration::from_secs(30);

/// The same as long as there are no keys at all: clients wait for the first.
const FIRST_FETCH_PAUSE: Duration = Duration::from_secs(2);

/// Keys of one issuer that are kept.
const KEYS_MAX: usize = 100;

/// The keys of one issuer.
#[derive(Debug)]
pub(super) struct IssuerKeys {
    issuer: String,
    jwks_url: Option<String>,
    egress: EgressClient,
    state: Mutex<KeyState>,
    /// Who fetches; others wait for it.
    turn: TurnLock<()>,
}

#[derive(Debug, Default)]
struct KeyState {
    keys: Option<Arc<Vec<IssuerKey>>>,
    fetched: Option<Instant>,
    tried: Option<Instant>,
}

struct IssuerKey {
    id: Option<String>,
    algorithm: Option<KeyAlgorithm>,
    key: DecodingKey,
}

impl std::fmt::Debug for IssuerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuerKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl IssuerKeys {
    pub(super) fn new(issuer: &str, jwks_url: Option<&str>, egress: EgressClient) -> Self {
        Self {
            issuer: issuer.to_owned(),
            jwks_url: jwks_url.map(str::to_owned),
            egress,
            state: Mutex::default(),
            turn: TurnLock::default(),
        }
    }

    /// The claims of a token that one of the keys has signed.
    ///
    /// # Errors
    /// Where none has.
    pub(super) async fn verify(
        &self,
        token: &str,
        head: &TokenHead,
    ) -> Result<Map<String, Value>, TokenRejection> {
        let keys = self
            .keys(|keys| keys.iter().any(|key| key.may_verify(head)))
            .await;
        let keys = keys.ok_or(TokenRejection::IssuerUnreachable)?;
        let validation = head.validation();
        let mut rejection = TokenRejection::Signature;
        for key in keys.iter().filter(|key| key.may_verify(head)) {
            match decode::<Map<String, Value>>(token, &key.key, &validation) {
                Ok(token) => return Ok(token.claims),
                Err(error) => {
                    let kind = error.kind();
                    if matches!(kind, ErrorKind::Json(_) | ErrorKind::Base64(_)) {
                        rejection = TokenRejection::Malformed;
                    }
                }
            }
        }
        Err(rejection)
    }

    /// The keys, fetched again where they are old or do not `suffice`.
    async fn keys(&self, suffice: impl Fn(&[IssuerKey]) -> bool) -> Option<Arc<Vec<IssuerKey>>> {
        let sufficient = |state: &KeyState| state.keys.as_ref().is_some_and(|keys| suffice(keys));
        let wanted = |state: &KeyState| {
            let is_old = state.fetched.is_none_or(|at| at.elapsed() >= AGE_MAX);
            is_old || !sufficient(state)
        };
        {
            let state = lock(&self.state);
            // Old keys serve while somebody fetches. Where they do not suffice, that fetch may bring the one.
            if !wanted(&state) || (sufficient(&state) && state.has_just_tried()) {
                return state.keys.clone();
            }
        }
        let _turn = self.turn.lock().await;
        {
            // Somebody may have fetched meanwhile.
            let mut state = lock(&self.state);
            if !wanted(&state) || state.has_just_tried() {
                return state.keys.clone();
            }
            state.tried = Some(Instant::now());
        }
        let fetched = self.fetch().await;
        let mut state = lock(&self.state);
        match fetched {
            Ok(keys) => {
                state.keys = Some(Arc::new(keys));
                state.fetched = Some(Instant::now());
            }
            Err(why) => {
                // Those who waited for this turn would each try as long.
                state.tried = Some(Instant::now());
                let issuer = &self.issuer;
                let kept = state.keys.is_some();
                tracing::warn!(
                    issuer,
                    kept,
                    "the keys of an issuer cannot be fetched: {why}"
                );
            }
        }
        state.keys.clone()
    }

    async fn fetch(&self) -> Result<Vec<IssuerKey>, MetadataUnavailable> {
        let url = match &self.jwks_url {
            Some(url) => parse_url(url)?,
            None => self.discover().await?,
        };
        let document = get_object(&url, &self.egress).await?;
        let keys = document.get("keys").and_then(Value::as_array);
        let keys = keys.map(|keys| keys.iter().filter_map(IssuerKey::read));
        let keys: Vec<_> = keys.into_iter().flatten().take(KEYS_MAX).collect();
        // The keys of before are better than none.
        if keys.is_empty() {
            return Err(MetadataUnavailable::Malformed(url));
        }
        Ok(keys)
    }

    /// Where the issuer says that its keys are.
    async fn discover(&self) -> Result<Url, MetadataUnavailable> {
        let (url, document) = fetch_metadata(&self.issuer, &self.egress, &["jwks_uri"]).await?;
        let keys = document.get("jwks_uri").and_then(Value::as_str);
        parse_url(keys.ok_or(MetadataUnavailable::Malformed(url))?)
    }
}

impl KeyState {
    fn has_just_tried(&self) -> bool {
        let pause = if self.keys.is_some() {
            FETCH_PAUSE
        } else {
            FIRST_FETCH_PAUSE
        };
        self.tried.is_some_and(|at| at.elapsed() < pause)
    }
}

impl IssuerKey {
    /// Reads one key of a set; `None` for those that sign nothing, or are of a kind that is not known.
    fn read(written: &Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(written.clone()).ok()?;
        let signs = jwk.common.public_key_use.as_ref();
        if signs.is_some_and(|it| *it != PublicKeyUse::Signature) || written.get("k").is_some() {
            return None;
        }
        Some(Self {
            key: DecodingKey::from_jwk(&jwk).ok()?,
            id: jwk.common.key_id,
            algorithm: jwk.common.key_algorithm,
        })
    }

    /// Whether the token may be signed with it. A token that names no key may be signed with any.
    fn may_verify(&self, head: &TokenHead) -> bool {
        let is_named = head.key.is_none() || self.id.is_none() || self.id == head.key;
        let name = format!("{:?}", head.algorithm);
        let is_for = self.algorithm.is_none_or(|it| it.to_string() == name);
        is_named && is_for && self.key.family() == head.algorithm.family()
    }
}
