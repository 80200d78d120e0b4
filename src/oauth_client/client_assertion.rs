//! `private_key_jwt`: the client signs who it is (RFC 7523).

use std::{fs, io, path::Path};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::Serialize;
use uuid::Uuid;

use crate::clock;

/// The parameter `client_assertion_type`.
pub(super) const TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// How long an assertion is good for, in seconds.
const LIFETIME: i64 = 300;

/// Why there is no signature; the operator mends the file.
#[derive(Debug, thiserror::Error)]
pub(super) enum AssertionError {
    #[error("cannot read the private key {0}: {1}")]
    Read(String, io::Error),
    #[error("{0} is not the private key of RSA or P-256 in PEM")]
    NotAKey(String),
    #[error("cannot sign with the private key {0}: {1}")]
    Sign(String, jsonwebtoken::errors::Error),
}

#[derive(Serialize)]
struct Claims<'a> {
    iss: &'a str,
    sub: &'a str,
    aud: &'a str,
    iat: i64,
    exp: i64,
    jti: String,
}

/// An assertion of `client` for `audience`, signed with the key in `path`.
pub(super) fn sign(path: &Path, client: &str, audience: &str) -> Result<String, AssertionError> {
    let shown = || path.display().to_string();
    let pem = fs::read(path).map_err(|error| AssertionError::Read(shown(), error))?;
    let of_curve = EncodingKey::from_ec_pem(&pem).map(|key| (key, Algorithm::ES256));
    let (key, algorithm) = of_curve
        .or_else(|_| EncodingKey::from_rsa_pem(&pem).map(|key| (key, Algorithm::RS256)))
        .map_err(|_| AssertionError::NotAKey(shown()))?;
    let now = clock::now().as_second();
    let claims = Claims {
        iss: client,
        sub: client,
        aud: audience,
        iat: now,
        exp: now + LIFETIME,
        jti: Uuid::new_v4().to_string(),
    };
    jsonwebtoken::encode(&Header::new(algorithm), &claims, &key)
        .map_err(|error| AssertionError::Sign(shown(), error))
}
