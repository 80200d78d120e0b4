//! JWTs of other issuers: access tokens of an external authorization server, and tokens of machines.
//!
//! The library checks signatures alone. Which issuers, algorithms, types, times and audiences are good is decided here,
//! in the order in which a wrong token can be told apart from others.

mod issuer_keys;
mod issuer_metadata;
mod issuer_quirks;

use std::time::Duration;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::{FutureExt, future::BoxFuture};
use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::{Algorithm, Validation};
use serde_json::{Map, Value};

use self::issuer_keys::IssuerKeys;
pub use self::{
    issuer_metadata::ExternalMetadata,
    issuer_quirks::{IssuerQuirks, is_same_issuer},
};
use super::{
    TokenValidity, audience_covers,
    token::{Scopes, TokenRejection, TokenSubject, TokenVerifier, VerifiedToken},
};
use crate::{
    clock,
    config::{JwtAlgorithm, JwtIssuer, OAuthConfig},
    egress::EgressClient,
};

/// The types of JWTs that are access tokens (RFC 9068, section 2.1), or do not say what they are. An ID token says
/// nothing either; it is for another audience.
const ACCESS_TOKEN_TYPES: [&str; 4] = ["at+jwt", "application/at+jwt", "jwt", "application/jwt"];

/// Claims that an ID token has and an access token has not: it says who somebody is, to another client than us, and
/// gives nobody access.
const ID_TOKEN_CLAIMS: [&str; 3] = ["at_hash", "c_hash", "nonce"];

/// Knows the tokens of some issuers.
#[derive(Debug)]
pub struct JwtVerifier {
    issuers: Vec<TrustedIssuer>,
}

/// An issuer and what its tokens must have.
#[derive(Debug)]
pub struct TrustedIssuer {
    issuer: String,
    audience: Vec<String>,
    algorithms: Vec<Algorithm>,
    clock_skew: SignedDuration,
    grant: ScopeGrant,
    purpose: TokenPurpose,
    keys: IssuerKeys,
}

/// What the tokens of an issuer are for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum TokenPurpose {
    /// They are access tokens.
    Access,
    /// They are ID tokens: they say who logged in.
    Login,
}

/// What a token is good for.
#[derive(Debug)]
enum ScopeGrant {
    /// For its scopes.
    Own,
    /// For everything, where it has all of these; scopes of ours that it has limit it.
    All(Scopes),
}

impl TrustedIssuer {
    /// The authorization server of `config`, where that is not the gateway.
    pub fn external(config: &OAuthConfig, egress: &EgressClient) -> Option<Self> {
        let issuer = config.external_issuer()?;
        let grant = if config.scopes.is_empty() {
            ScopeGrant::Own
        } else {
            ScopeGrant::All(config.scopes.iter().map(|scope| last_part(scope)).collect())
        };
        Some(Self {
            issuer: issuer.to_owned(),
            audience: config.audience.clone(),
            algorithms: JwtAlgorithm::ALL.map(library_algorithm).to_vec(),
            clock_skew: signed(JwtIssuer::CLOCK_SKEW),
            grant,
            purpose: TokenPurpose::Access,
            keys: IssuerKeys::new(issuer, None, egress.clone()),
        })
    }

    /// The issuer of machines that `config` has.
    pub fn machines(config: &JwtIssuer, egress: &EgressClient) -> Self {
        let algorithms = config.algorithms.iter().copied();
        Self {
            issuer: config.issuer.clone(),
            audience: config.audience.clone(),
            algorithms: algorithms.map(library_algorithm).collect(),
            clock_skew: signed(config.clock_skew),
            grant: ScopeGrant::All(Scopes::default()),
            purpose: TokenPurpose::Access,
            keys: IssuerKeys::new(&config.issuer, config.jwks_url.as_deref(), egress.clone()),
        }
    }

    /// The issuer of `config` where people log in at this gateway: it is the audience of their ID tokens.
    pub fn logins(config: &JwtIssuer, egress: &EgressClient) -> Self {
        Self {
            purpose: TokenPurpose::Login,
            ..Self::machines(config, egress)
        }
    }

    async fn verify(
        &self,
        token: &str,
        head: &TokenHead,
        resource: &str,
    ) -> Result<VerifiedToken, TokenRejection> {
        if !self.algorithms.contains(&head.algorithm) {
            return Err(TokenRejection::Algorithm);
        }
        let claims = self.keys.verify(token, head).await?;
        // What was read before the signature was checked is what was signed.
        if claims != head.claims {
            return Err(TokenRejection::Malformed);
        }
        let is_id_token = ID_TOKEN_CLAIMS
            .iter()
            .any(|name| claims.contains_key(*name));
        if is_id_token && self.purpose == TokenPurpose::Access {
            return Err(TokenRejection::Malformed);
        }
        let expires = self.check_times(&claims, clock::now())?;
        self.check_audience(&claims, resource)?;
        let mut clients = ["client_id", "azp", "appid", "cid"].iter();
        let client = clients.find_map(|name| claims.get(*name)?.as_str());
        Ok(VerifiedToken {
            scopes: self.scopes(&claims),
            client: client.map(str::to_owned),
            grant: None,
            expires,
            validity: TokenValidity::default(),
            subject: TokenSubject::Claims(claims),
        })
    }

    fn check_times(
        &self,
        claims: &Map<String, Value>,
        now: Timestamp,
    ) -> Result<Timestamp, TokenRejection> {
        let time = |name: &str| {
            let seconds = claims.get(name).map(Value::as_f64);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "seconds are whole in nearly all tokens"
            )]
            let at = seconds.map(|seconds| Timestamp::from_second(seconds? as i64).ok());
            at.map(|at| at.ok_or(TokenRejection::Malformed)).transpose()
        };
        let expires = time("exp")?.ok_or(TokenRejection::Malformed)?;
        let later = |at: Timestamp| at.checked_add(self.clock_skew).unwrap_or(Timestamp::MAX);
        let expires = later(expires);
        if expires <= now {
            return Err(TokenRejection::Expired);
        }
        if time("nbf")?.is_some_and(|begins| begins > later(now)) {
            return Err(TokenRejection::NotYetValid);
        }
        Ok(expires)
    }

    fn check_audience(
        &self,
        claims: &Map<String, Value>,
        resource: &str,
    ) -> Result<(), TokenRejection> {
        let named: Vec<&str> = match claims.get("aud") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let is_accepted = |audience: &str| {
            self.audience.iter().any(|accepted| accepted == audience)
                || audience_covers(audience, resource)
        };
        if named.into_iter().any(is_accepted) {
            Ok(())
        } else {
            Err(TokenRejection::Audience)
        }
    }

    fn scopes(&self, claims: &Map<String, Value>) -> Scopes {
        let own = scopes_of(claims);
        let ScopeGrant::All(needed) = &self.grant else {
            return own;
        };
        if !needed.iter().all(|scope| own.contains(scope)) {
            // It is good for nothing, and the challenge names what to ask for.
            return Scopes::default();
        }
        let limited = own.of_gateway();
        if limited.is_empty() {
            Scopes::everything()
        } else {
            limited
        }
    }
}

impl JwtVerifier {
    /// A verifier of the tokens of `issuers`.
    pub fn new(issuers: Vec<TrustedIssuer>) -> Self {
        Self { issuers }
    }
}

impl TokenVerifier for JwtVerifier {
    fn verify<'t>(
        &'t self,
        token: &'t str,
        resource: &'t str,
    ) -> BoxFuture<'t, Option<Result<VerifiedToken, TokenRejection>>> {
        async move {
            let head = match TokenHead::read(token)? {
                Ok(head) => head,
                Err(rejection) => return Some(Err(rejection)),
            };
            // Two may have the same issuer: one for people and one for machines, with audiences of their own.
            let mut rejection = TokenRejection::Issuer;
            for issuer in &self.issuers {
                if !is_same_issuer(&issuer.issuer, &head.issuer) {
                    continue;
                }
                match issuer.verify(token, &head, resource).await {
                    Ok(verified) => return Some(Ok(verified)),
                    Err(why) => rejection = why,
                }
            }
            Some(Err(rejection))
        }
        .boxed()
    }
}

/// What a JWT says of itself; nobody has vouched for it.
pub fn unverified_claims(token: &str) -> Option<Map<String, Value>> {
    json_part(token.split('.').nth(1)?)
}

/// What a token says that nobody has vouched for yet.
#[derive(Debug)]
struct TokenHead {
    algorithm: Algorithm,
    key: Option<String>,
    issuer: String,
    claims: Map<String, Value>,
}

impl TokenHead {
    /// Reads what says who issued a token; `None` for what is no JWT at all.
    fn read(token: &str) -> Option<Result<Self, TokenRejection>> {
        let mut parts = token.split('.');
        let (header, payload) = (parts.next()?, parts.next()?);
        let is_jwt = parts.next().is_some() && parts.next().is_none();
        let header = json_part(header).filter(|_| is_jwt)?;
        Some(Self::check(&header, payload))
    }

    fn check(header: &Map<String, Value>, payload: &str) -> Result<Self, TokenRejection> {
        let text = |name: &str| header.get(name).and_then(Value::as_str);
        let algorithm = text("alg").ok_or(TokenRejection::Malformed)?;
        let mut known = JwtAlgorithm::ALL.into_iter().map(library_algorithm);
        let algorithm = algorithm
            .parse()
            .ok()
            .and_then(|it| known.find(|one| *one == it));
        let algorithm = algorithm.ok_or(TokenRejection::Algorithm)?;
        let is_typed = text("typ").is_some_and(|typ| {
            !ACCESS_TOKEN_TYPES
                .iter()
                .any(|known| typ.eq_ignore_ascii_case(known))
        });
        // Whoever issued it means something by it that is not understood (RFC 7515, section 4.1.11).
        if is_typed || header.contains_key("crit") {
            return Err(TokenRejection::Malformed);
        }
        let claims = json_part(payload).ok_or(TokenRejection::Malformed)?;
        let issuer = claims.get("iss").and_then(Value::as_str);
        Ok(Self {
            algorithm,
            key: text("kid").map(str::to_owned),
            issuer: issuer.ok_or(TokenRejection::Issuer)?.to_owned(),
            claims,
        })
    }

    /// How the library is to check the signature: nothing but that.
    fn validation(&self) -> Validation {
        let mut validation = Validation::new(self.algorithm);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        validation
    }
}

fn json_part(part: &str) -> Option<Map<String, Value>> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(part).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// The scopes of a token: `scope` as RFC 9068 has it, `scp` as Entra and Okta do; a text or a list.
fn scopes_of(claims: &Map<String, Value>) -> Scopes {
    let texts = ["scope", "scp"].iter().filter_map(|name| claims.get(*name));
    let texts = texts.flat_map(|value| {
        let items = value.as_array().into_iter().flatten();
        value
            .as_str()
            .into_iter()
            .chain(items.filter_map(Value::as_str))
    });
    texts.flat_map(str::split_ascii_whitespace).collect()
}

/// The name of a scope in tokens: clients ask Entra for `api://APP/name`, and its tokens have `name`.
fn last_part(scope: &str) -> &str {
    match scope.split_once("://") {
        Some((_, rest)) => rest.rsplit('/').next().unwrap_or(scope),
        None => scope,
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::ZERO)
}

const fn library_algorithm(algorithm: JwtAlgorithm) -> Algorithm {
    match algorithm {
        JwtAlgorithm::EdDSA => Algorithm::EdDSA,
        JwtAlgorithm::ES256 => Algorithm::ES256,
        JwtAlgorithm::ES384 => Algorithm::ES384,
        JwtAlgorithm::PS256 => Algorithm::PS256,
        JwtAlgorithm::PS384 => Algorithm::PS384,
        JwtAlgorithm::PS512 => Algorithm::PS512,
        JwtAlgorithm::RS256 => Algorithm::RS256,
        JwtAlgorithm::RS384 => Algorithm::RS384,
        JwtAlgorithm::RS512 => Algorithm::RS512,
    }
}
