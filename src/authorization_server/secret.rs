//! The texts of tokens and codes: 256 random bits each, so that nobody guesses one and a plain hash keeps them.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::store::TokenHash;

/// How access tokens begin.
pub(super) const ACCESS_PREFIX: &str = "tba_";
/// How refresh tokens begin.
pub(super) const REFRESH_PREFIX: &str = "tbr_";
/// How authorization codes begin.
pub(super) const CODE_PREFIX: &str = "tbc_";
/// How login codes begin.
pub(super) const LOGIN_PREFIX: &str = "tbl_";
/// How secrets of clients begin.
pub(super) const CLIENT_PREFIX: &str = "tbs_";

/// A fresh text that begins with `prefix`, and its hash.
pub(super) fn generate(prefix: &str) -> Result<(String, TokenHash), getrandom::Error> {
    let text = format!("{prefix}{}", random_text::<32>()?);
    let hash = TokenHash::of(&text);
    Ok((text, hash))
}

/// `BYTES` random bytes as text for URLs.
pub(super) fn random_text<const BYTES: usize>() -> Result<String, getrandom::Error> {
    let mut random = [0; BYTES];
    getrandom::fill(&mut random)?;
    Ok(URL_SAFE_NO_PAD.encode(random))
}
