//! Why a request has no agent.

use std::sync::Arc;

use http::StatusCode;

use super::token::{Scopes, TokenRejection};
use crate::{
    config::{AuthMethod, Authentication},
    store::KeyId,
};

/// Why a request has no agent.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AuthError {
    /// There are several API keys or tokens, and they differ.
    #[error("the request has several different API keys")]
    Ambiguous,
    /// The certificate of the client, with this subject, is that of no agent, or of several.
    #[error("the client certificate is not that of an agent")]
    Certificate(Arc<str>),
    /// The token is good, and not for this: it needs all of these scopes.
    #[error("the access token needs the scopes {0}")]
    InsufficientScope(Scopes),
    /// There is no credential where one of these is needed.
    #[error("{}", missing_message(*.0))]
    Missing(Authentication),
    /// The key opens nothing. Whoever presents it is not told which it is: that would say of a found
    /// key that it was one.
    #[error("the API key is invalid, revoked or expired")]
    Rejected(KeyRejection),
    /// The token is good for nothing here. Whoever presents it is told no more.
    #[error("{}", token_message(*.0))]
    Token(TokenRejection),
    /// The credentials are good, and those of different agents.
    #[error("the request has credentials of two different agents: send those of one")]
    TwoAgents,
}

/// What the log says of a request that is refused, as its client put it.
#[derive(Clone, Copy, Debug)]
pub struct RefusedRequest<'r> {
    /// That of its URL.
    pub path: &'r str,
    /// What its client calls itself.
    pub user_agent: &'r str,
}

/// Why a key opens nothing, for the operator.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum KeyRejection {
    /// Its time has passed; whose it is needs another.
    Expired(KeyId),
    /// It was revoked, and somebody has it still.
    Revoked(KeyId),
    /// Nobody has such a key, or it is not even sent as one.
    Unknown,
}

impl AuthError {
    /// The status of the answer. A second credential is a mistake in the request, which no sign-in mends.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::TwoAgents => StatusCode::BAD_REQUEST,
            // The token may be good: a client that is told otherwise throws it away.
            Self::Token(TokenRejection::IssuerUnreachable) => StatusCode::SERVICE_UNAVAILABLE,
            Self::InsufficientScope(_) => StatusCode::FORBIDDEN,
            Self::Ambiguous
            | Self::Certificate(_)
            | Self::Missing(_)
            | Self::Rejected(_)
            | Self::Token(_) => StatusCode::UNAUTHORIZED,
        }
    }

    /// The `error` of the challenge in `WWW-Authenticate` (RFC 6750, section 3.1).
    pub const fn challenge_error(&self) -> Option<&'static str> {
        match self {
            // It is about what the headers carry, which a certificate says nothing of.
            Self::Certificate(_) | Self::Missing(_) => None,
            Self::InsufficientScope(_) => Some("insufficient_scope"),
            Self::Ambiguous | Self::TwoAgents => Some("invalid_request"),
            Self::Rejected(_) | Self::Token(_) => Some("invalid_token"),
        }
    }

    /// Whether another token would not help, but another request.
    pub const fn is_mistake(&self) -> bool {
        matches!(self, Self::Ambiguous | Self::TwoAgents)
    }

    /// Whether the request has no credential at all.
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::Missing(_))
    }

    /// The reason in a word, as it is counted.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Ambiguous => "several",
            Self::Certificate(_) => "certificate",
            Self::InsufficientScope(_) => "insufficient_scope",
            Self::Missing(_) => "missing",
            Self::Rejected(KeyRejection::Expired(_)) => "expired",
            Self::Rejected(KeyRejection::Revoked(_)) => "revoked",
            Self::Rejected(KeyRejection::Unknown) => "unknown",
            Self::Token(rejection) => rejection.reason(),
            Self::TwoAgents => "two_agents",
        }
    }

    /// The subject of the certificate that was shown (RFC 4514).
    pub fn subject(&self) -> Option<&str> {
        match self {
            Self::Certificate(subject) => Some(subject),
            Self::Ambiguous
            | Self::InsufficientScope(_)
            | Self::Missing(_)
            | Self::Rejected(_)
            | Self::Token(_)
            | Self::TwoAgents => None,
        }
    }

    /// The id of the key that opened something once.
    pub const fn key(&self) -> Option<&KeyId> {
        match self {
            Self::Rejected(KeyRejection::Expired(key) | KeyRejection::Revoked(key)) => Some(key),
            Self::Ambiguous
            | Self::Certificate(_)
            | Self::InsufficientScope(_)
            | Self::Missing(_)
            | Self::Rejected(KeyRejection::Unknown)
            | Self::Token(_)
            | Self::TwoAgents => None,
        }
    }
}

/// What is said of a token that is refused.
const fn token_message(why: TokenRejection) -> &'static str {
    if matches!(why, TokenRejection::IssuerUnreachable) {
        "the issuer of the access token cannot be reached to verify it; try again soon"
    } else {
        "the access token is invalid, revoked or expired, or was issued for another resource"
    }
}

/// What is asked for where there is nothing.
fn missing_message(methods: Authentication) -> String {
    let no_sign_in = if methods.allows(AuthMethod::Oauth) {
        ""
    } else {
        "; there is no OAuth sign-in"
    };
    let ways: Vec<&str> = methods.methods().filter_map(way_of).collect();
    let joined = ways.join(", or ");
    let start = if methods.allows(AuthMethod::Keys) && ways.len() == 1 {
        "an API key is required: "
    } else {
        "authentication is required: "
    };
    format!("{start}{joined}{no_sign_in}")
}

/// What a client does to authenticate so.
const fn way_of(method: AuthMethod) -> Option<&'static str> {
    match method {
        AuthMethod::Anonymous => None,
        AuthMethod::Keys => Some("set the header `Authorization: Bearer KEY` or `X-API-Key: KEY`"),
        AuthMethod::Oauth => Some("sign in with OAuth"),
        AuthMethod::Jwt => Some("send a JWT as `Authorization: Bearer TOKEN`"),
        AuthMethod::Mtls => Some("connect with a client certificate"),
    }
}
