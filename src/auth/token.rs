//! Tokens: what a verified one says, and why one is rejected.
//!
//! Two kinds of verifier implement [`TokenVerifier`]: that of the built-in authorization server, whose tokens are
//! random texts that the store knows, and that of JWTs of other issuers.

use std::{collections::BTreeSet, fmt};

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::TokenValidity;
use crate::names::{AgentId, ProfileName};

/// Knows the tokens of one kind of issuer.
pub trait TokenVerifier: fmt::Debug + Send + Sync {
    /// What `token`, shown for the protected `resource` (RFC 8707), says; `None` where it is none of this kind.
    fn verify<'t>(
        &'t self,
        token: &'t str,
        resource: &'t str,
    ) -> BoxFuture<'t, Option<Result<VerifiedToken, TokenRejection>>>;
}

/// What a token says that was found to be good.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifiedToken {
    /// Whose it is.
    pub subject: TokenSubject,
    /// What it is good for.
    pub scopes: Scopes,
    /// The OAuth client that it was issued to.
    pub client: Option<String>,
    /// The grant behind it, where the built-in authorization server issued it.
    pub grant: Option<String>,
    /// When its time passes.
    pub expires: Timestamp,
    /// Whether it was revoked since; for ever valid where its issuer does not tell.
    pub validity: TokenValidity,
}

/// Whose a token is.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenSubject {
    /// That of an agent, which is known by its id.
    Agent(AgentId),
    /// That of a user of an issuer, with all claims about them; `agents.match` says which agent that is.
    Claims(serde_json::Map<String, serde_json::Value>),
}

/// Scopes of a token, or those that a request needs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Scopes(BTreeSet<String>);

impl Scopes {
    /// Lists, reads, and everything else but calls of tools.
    pub const READ: &str = "tools:read";
    /// Calls of tools.
    pub const CALL: &str = "tools:call";
    /// What the scope of the route of a profile begins with.
    const PROFILE_PREFIX: &str = "profile:";
    /// The routes of all profiles.
    const EVERY_PROFILE: &str = "profile:*";

    /// Reads them as tokens have them: separated by spaces (RFC 6749, section 3.3).
    pub fn parse(text: &str) -> Self {
        Self(text.split_ascii_whitespace().map(str::to_owned).collect())
    }

    /// Whether `scope` is one of them.
    pub fn contains(&self, scope: &str) -> bool {
        self.0.contains(scope)
    }

    /// Whether they are enough for something that needs `scope`.
    pub fn allows(&self, scope: &str) -> bool {
        let is_profile = scope.starts_with(Self::PROFILE_PREFIX);
        self.contains(scope) || (is_profile && self.contains(Self::EVERY_PROFILE))
    }

    /// Those that are good for everything an agent may do.
    pub fn everything() -> Self {
        [Self::READ, Self::CALL, Self::EVERY_PROFILE]
            .into_iter()
            .collect()
    }

    /// Those of them that mean something to the gateway.
    #[must_use]
    pub fn of_gateway(&self) -> Self {
        let known = |scope: &&str| {
            [Self::READ, Self::CALL].contains(scope) || scope.starts_with(Self::PROFILE_PREFIX)
        };
        self.iter().filter(known).collect()
    }

    /// What a request needs: a call of a tool, or anything else, on the route of `profile` or another.
    pub fn needed(is_call: bool, profile: Option<&ProfileName>) -> Self {
        let what = if is_call { Self::CALL } else { Self::READ };
        let profile = profile.map(|name| format!("{}{name}", Self::PROFILE_PREFIX));
        std::iter::once(what.to_owned()).chain(profile).collect()
    }

    /// What somebody with these scopes has to ask for to do what needs others: all that they have and all that it
    /// needs; `None` where they suffice.
    pub fn missing_for(&self, is_call: bool, profile: Option<&ProfileName>) -> Option<Self> {
        let what = if is_call { Self::CALL } else { Self::READ };
        if self.contains(what) && profile.is_none() {
            return None;
        }
        let needed = Self::needed(is_call, profile);
        let has_all = needed.iter().all(|scope| self.allows(scope));
        (!has_all).then(|| needed.union(&self.of_gateway()))
    }

    /// All scopes that a route has.
    pub fn of_route(profile: Option<&ProfileName>) -> Self {
        let (read, call) = (Self::needed(false, profile), Self::needed(true, profile));
        read.iter().chain(call.iter()).collect()
    }

    /// These and `others`.
    #[must_use]
    pub fn union(&self, others: &Self) -> Self {
        self.iter().chain(others.iter()).collect()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl<S: Into<String>> FromIterator<S> for Scopes {
    fn from_iter<I: IntoIterator<Item = S>>(scopes: I) -> Self {
        Self(scopes.into_iter().map(Into::into).collect())
    }
}

/// As tokens and challenges have them.
impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, scope) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{scope}")?;
        }
        Ok(())
    }
}

/// Why a token opens nothing, for the operator; clients hear `invalid_token` alone.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
pub enum TokenRejection {
    /// It is signed by an algorithm that is not accepted: none, or a symmetric one.
    #[error("its algorithm is not accepted")]
    Algorithm,
    /// It was issued for another resource.
    #[error("its audience is another resource")]
    Audience,
    /// Its time has passed.
    #[error("it has expired")]
    Expired,
    /// Nobody whose tokens are accepted issued it.
    #[error("its issuer is not accepted")]
    Issuer,
    /// The keys of its issuer could not be had, now or before.
    #[error("the keys of its issuer cannot be fetched")]
    IssuerUnreachable,
    /// It cannot be read, or lacks a claim that it must have.
    #[error("it is malformed")]
    Malformed,
    /// Its time has not come.
    #[error("it is not valid yet")]
    NotYetValid,
    /// It, or the grant behind it, was revoked.
    #[error("it was revoked")]
    Revoked,
    /// Its issuer did not sign it.
    #[error("its signature is wrong")]
    Signature,
    /// No agent is for who it belongs to.
    #[error("no rule of `agents.match` maps its subject to an agent")]
    Subject,
    /// Nobody issued it.
    #[error("it is unknown")]
    Unknown,
}

impl TokenRejection {
    /// The reason in a word, as it is counted.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Algorithm => "token_algorithm",
            Self::Audience => "token_audience",
            Self::Expired => "token_expired",
            Self::Issuer => "token_issuer",
            Self::IssuerUnreachable => "token_issuer_unreachable",
            Self::Malformed => "token_malformed",
            Self::NotYetValid => "token_not_yet_valid",
            Self::Revoked => "token_revoked",
            Self::Signature => "token_signature",
            Self::Subject => "token_subject",
            Self::Unknown => "token_unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_and_written_as_tokens_have_them() {
        let scopes = Scopes::parse(" tools:read  tools:call tools:read ");
        assert_eq!(scopes.to_string(), "tools:call tools:read");
        assert!(scopes.contains("tools:call") && !scopes.contains("tools"));
        assert_eq!(Scopes::parse("").to_string(), "");
    }
}
